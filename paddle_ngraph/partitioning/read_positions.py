"""Operators that compute each position along an axis by itself, of which some positions are read.

These positions are computed alone, and those that several operators read once. A slice moves past
writes of other positions, to the value that was written. A recurrent layer becomes single steps,
each from the state that the step before has left: at each position the layer depends on earlier
positions only. Positions are planned first, as *parts*, of which equal ones are one; a plan that
computes more than it saves is not carried out.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from paddle_ngraph import _core
from paddle_ngraph.conversion.analysis.position_wise import reads_of_position
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.paddle_private.protocols import Operation
from paddle_ngraph.partitioning.analysis.block_view import CONSTANTS, OpNode, put_before
from paddle_ngraph.partitioning.analysis.operator_kinds import LISTS, SINKS
from paddle_ngraph.partitioning.analysis.value_facts import (
    Size,
    SizeOf,
    ValueFacts,
    attributes_key,
    is_pure,
)

_SLICE, _RNN, _CONCAT = "pd_op.slice", "pd_op.rnn", "pd_op.concat"
_RESHAPE, _EXPAND = "pd_op.reshape", "pd_op.expand"
_WRITE = "pd_op.set_value_with_tensor"
# Operators that are slow, beside which others do not count.
SLOW = frozenset(
    f"pd_op.{name}"
    for name in ("addmm", "bmm", "conv2d", "conv2d_transpose", "conv3d", "depthwise_conv2d")
) | {"pd_op.matmul", _RNN}
# An operator is computed at single positions if these are at most this share of all.
_LARGEST_SHARE = 0.5
# The largest number of steps of a recurrent layer that are taken one by one.
_MAX_STEPS = 512
# The largest number of plans, each of which leaves more operators as they are than the one before.
_MAX_PLANS = 8


@dataclass(eq=False)
class _Part:
    """A tensor of the rewritten program: a tensor that there is, or the result of a new operator.

    Attributes:
        type: The type of the new operator; empty for a tensor that there is.
        vid: That tensor.
        operands: The operands of the new operator: parts, lists of parts, or ``None``.
        attributes: Its attributes.
        sources: The operators of the program of which the new one computes a position.
        positions: The number of positions of these.
        member: For a state of a recurrent layer, which one it is.
        values: The results, once they are in the program.
        has_slow: Whether a new slow operator computes it, or a part that it reads.
    """

    type: str = ""
    vid: str = ""
    operands: Sequence[Any] = ()
    attributes: Sequence[Any] = ()
    sources: dict[OpNode, None] = field(default_factory=dict)
    positions: int = 0
    member: int = 0
    values: list[Any] | None = None
    has_slow: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_slow = self.type in SLOW or any(each.has_slow for each in self.read())

    def read(self) -> Iterator[_Part]:
        """The parts among the operands."""
        for operand in self.operands:
            yield from operand if isinstance(operand, list) else filter(None, [operand])


# A search for a position: it asks for the positions of other tensors, and returns the part.
_Search = Generator[tuple[str, int, int], _Part, Optional[_Part]]


class _PositionPlan:
    """The tensors at single positions of a block, from which those that are read follow.

    Args:
        facts: The facts about the block.
        whole: Operators that compute all positions.
    """

    def __init__(self, facts: ValueFacts, whole: set[OpNode]) -> None:
        self._facts, self._whole = facts, whole
        self._parts: dict[Hashable, _Part] = {}
        self._positions: dict[tuple[int, int, int], _Part] = {}
        self.groups: dict[_Part, Hashable] = {}

    def position(self, vid: str, axis: int, k: int) -> _Part:
        """A tensor at position ``k`` of an axis, which has size 1 then."""
        key = self._key(vid, axis, k)
        if (known := self._positions.get(key)) is not None:
            return known
        # The searches that wait for each other: programs are deeper than Python's stack.
        pending = [(key, self._search(vid, axis, k))]
        found: _Part | None = None
        while pending:
            key, search = pending[-1]
            try:
                asked = next(search) if found is None else search.send(found)
            except StopIteration as end:
                found = self._positions[key] = end.value
                pending.pop()
                continue
            key = self._key(*asked)
            found = self._positions.get(key)
            if found is None:
                pending.append((key, self._search(*asked)))
        assert found is not None  # the last search has ended
        return found

    def _key(self, vid: str, axis: int, k: int) -> tuple[int, int, int]:
        return self._facts.number(vid), axis, k

    def tensor(self, vid: str) -> _Part:
        """A tensor that there is, or an equal one that is computed earlier."""
        number = self._facts.number(vid)
        first = self._facts.first[number]
        return self._part(("tensor", number), _Part(vid=first))

    def _part(self, key: Hashable, part: _Part) -> _Part:
        found = self._parts.setdefault(key, part)
        found.sources.update(part.sources)
        return found

    def _new(
        self,
        type: str,
        operands: Sequence[Any],
        attributes: Sequence[Any],
        node: OpNode | None = None,
        positions: int = 0,
    ) -> _Part:
        """A new operator, or an equal one."""
        read = tuple(tuple(each) if isinstance(each, list) else each for each in operands)
        key = (type, read, repr(sorted(attributes, key=str)))
        sources = {} if node is None else {node: None}
        return self._part(key, _Part(type, "", operands, attributes, sources, positions))

    def _ints(self, numbers: Sequence[int]) -> _Part:
        attributes = [("value", "int64", list(numbers)), ("dtype", "dtype", "int64")]
        return self._new("pd_op.full_int_array", [], attributes)

    def _search(self, vid: str, axis: int, k: int) -> _Search:
        """Searches for a position of a tensor; a slice of the tensor if nothing better."""
        facts = self._facts
        copied = self._copied(vid, axis, k)
        if isinstance(copied, tuple):
            copied = yield copied
        if copied is not None:
            return copied
        node, size = facts.view.producer.get(vid), facts.dims[vid][axis]
        op = None if node is None or node in self._whole else facts.op(node)
        part = None
        if (
            node is not None
            and is_pure(node, op)
            and node.writes[0] == vid
            and isinstance(size, int)
        ):
            assert op is not None  # since it is pure
            rules = {_RNN: self._step, _RESHAPE: self._reshaped, _EXPAND: self._expanded}
            part = yield from rules.get(op.type, self._computed)(node, op, axis, k, size)
        return self._slice(vid, axis, k) if part is None else part

    def _copied(self, vid: str, axis: int, k: int) -> _Part | tuple[str, int, int] | None:
        """The tensor of which a position is a copy, or that, the axis and its position there."""
        facts = self._facts
        if facts.dims[vid][axis] == 1:
            return self.tensor(vid)
        node = facts.view.producer.get(vid)
        op = None if node is None or node in self._whole else facts.op(node)
        if op is None or not isinstance(facts.dims[vid][axis], int):
            return None
        if op.type == _WRITE and (written := self._written(op, axis)) is not None:
            if written != k:
                return facts.variable(op.input("x")), axis, k
            return self._unsqueezed(facts.variable(op.input("values")), axis)
        if op.type == _CONCAT and facts.axes(op) in ([axis], [axis - len(facts.dims[vid])]):
            return self._piece(op, axis, k)
        return None

    def _slice(self, vid: str, axis: int, k: int) -> _Part:
        bounds = self._ints([k]), self._ints([k + 1])
        attributes = [("axes", "int64", [axis]), ("infer_flags", "int64", [1])]
        attributes.append(("decrease_axis", "int64", []))
        return self._new(_SLICE, [self.tensor(vid), *bounds], attributes)

    def _written(self, op: Op, axis: int) -> int | None:
        """The position along an axis that an operator writes; ``None`` if others, too."""
        facts = self._facts
        known = [facts.integers(op, name) for name in ("starts", "ends", "steps")]
        if list(op.attr("axes")) != [axis] or list(op.attr("decrease_axes")) != [axis]:
            return None
        if op.attr("none_axes") or any(each is None or len(each) != 1 for each in known):
            return None
        (start,), (end,), (step,) = known  # type: ignore[misc]
        x = list(facts.dims[facts.variable(op.input("x"))])
        size = x.pop(axis)
        values = facts.dims[facts.variable(op.input("values"))]
        same = op.input("x").dtype == op.input("values").dtype and tuple(x) == values
        is_one = step == 1 and end == start + 1 and isinstance(size, int) and 0 <= start < size
        return start if same and is_one else None

    def _unsqueezed(self, vid: str, axis: int) -> _Part:
        return self._new("pd_op.unsqueeze", [self.tensor(vid), self._ints([axis])], [])

    def _piece(self, op: Op, axis: int, k: int) -> tuple[str, int, int] | None:
        """The tensor of a concatenation that has position ``k``, the axis, the position in it."""
        for spec in op.inputs["x"]:
            vid = self._facts.variable(spec)
            size = self._facts.dims[vid][axis]
            if not isinstance(size, int):
                return None
            if k < size:
                return vid, axis, k
            k -= size
        return None

    def _computed(self, node: OpNode, op: Op, axis: int, k: int, size: int) -> _Search:
        """The position of an operator that computes each by itself."""
        facts = self._facts
        reads = reads_of_position(op, axis, facts.integers)
        if not reads:
            return None
        own = {(name, position): at for name, position, at in reads}
        operands: list[Any] = []
        for name, value in zip(node.op.get_input_names(), node.op.operands_source()):
            parts = []
            for position, spec in enumerate(op.inputs[name]):
                vid, at = facts.variable(spec), own.get((name, position))
                if at is not None and facts.dims[vid][at] != size:
                    return None
                parts.append(self.tensor(vid) if at is None else (yield vid, at, k))
            is_list = value.initialized() and not value.is_dense_tensor_type()
            operands.append(parts if is_list else parts[0] if parts else None)
        return self._new(op.type, operands, _attributes(node), node, size)

    def _reshaped(self, node: OpNode, op: Op, axis: int, k: int, size: int) -> _Search:
        facts = self._facts
        x = facts.variable(op.input("x"))
        before, after = facts.dims[x], facts.dims[node.writes[0]]
        target = facts.sizes(op, "shape")
        if target is None or len(target) != len(after) or before[: axis + 1] != after[: axis + 1]:
            return None
        shape: list[Size] = [*(0 for _ in range(axis)), 1]
        for n in range(axis + 1, len(target)):
            same = n < len(before) and target[n] == before[n]
            shape.append(0 if same and isinstance(target[n], SizeOf) else target[n])
        operands = [(yield x, axis, k), self._shape(shape)]
        return self._new(_RESHAPE, operands, _attributes(node), node, size)

    def _expanded(self, node: OpNode, op: Op, axis: int, k: int, size: int) -> _Search:
        facts = self._facts
        x = facts.variable(op.input("x"))
        before, after = facts.dims[x], facts.dims[node.writes[0]]
        if len(before) != len(after) or before[axis] not in (1, size):
            return None
        part = (yield x, axis, k) if before[axis] == size else self.tensor(x)
        shape: list[Size] = [-1 if a == b else b for a, b in zip(before, after)]
        shape[axis] = 1
        if all(each == -1 for n, each in enumerate(shape) if n != axis):
            return part
        return self._new(_EXPAND, [part, self._shape(shape)], _attributes(node), node, size)

    def _shape(self, shape: Sequence[Size]) -> _Part:
        """A tensor of sizes."""
        known = [size for size in shape if isinstance(size, int)]
        if len(known) == len(shape):
            return self._ints(known)
        scalars = [
            self._size(size) if isinstance(size, SizeOf) else self._scalar(size) for size in shape
        ]
        return self._new("pd_op.stack", [scalars], [("axis", None, 0)])

    def _scalar(self, number: int) -> _Part:
        attributes = [("shape", "ints", []), ("value", "float64", float(number))]
        return self._new("pd_op.full", [], [*attributes, ("dtype", "dtype", "int64")])

    def _size(self, size: SizeOf) -> _Part:
        vid = self._facts.first[size.number]
        sizes = self._new("pd_op.shape64", [self.tensor(vid)], [])
        attributes = [("axes", "int64", [0]), ("infer_flags", "int64", [1])]
        attributes.append(("decrease_axis", "int64", [0]))
        bounds = self._ints([size.axis]), self._ints([size.axis + 1])
        return self._new(_SLICE, [sizes, *bounds], attributes)

    def _step(self, node: OpNode, op: Op, axis: int, k: int, size: int) -> _Search:
        """The output of a recurrent layer at a position, from the state after the one before."""
        has_dropout = (
            op.attr("num_layers") > 1 and op.attr("dropout_prob") and not op.attr("is_test")
        )
        if axis != 0 or op.attr("is_bidirec") or has_dropout or k >= _MAX_STEPS:
            return None
        if op.has_input("sequence_length"):
            return None
        facts = self._facts
        x = facts.variable(op.input("x"))
        weights = [self.tensor(facts.variable(spec)) for spec in op.inputs["weight_list"]]
        state = [self.tensor(facts.variable(spec)) for spec in op.inputs["pre_state"]]
        given = op.inputs["dropout_state_in"]
        dropout = self.tensor(facts.variable(given[0])) if given else None
        group = (attributes_key(node), tuple(weights), tuple(state))
        attributes = _attributes(node)
        for position in range(k + 1):
            own: list[Any] = [(yield x, 0, position), state, weights, None, dropout]
            part = self._new(_RNN, own, attributes, node, size)
            self.groups[part] = group
            if position == k:
                return part
            state = [self._state(part, n) for n in range(len(state))]
        return None

    def _state(self, part: _Part, member: int) -> _Part:
        found = _Part("state", operands=[part], member=member)
        return self._part(("state", part, member), found)


def _attributes(node: OpNode) -> list[Any]:
    return [each for each in _core.attributes_of(node.op) if each[0] != "op_callstack"]


class _PositionRead:
    """A slice that reads one position.

    Attributes:
        node: The slice.
        axis: The axis.
        part: The position, with the axis.
        drops: Whether the result lacks the axis.
    """

    def __init__(self, node: OpNode, axis: int, part: _Part, drops: bool) -> None:
        self.node, self.axis, self.part, self.drops = node, axis, part, drops


def compute_read_positions(facts: ValueFacts) -> None:
    """Replaces slices of one position by operators that compute that position alone.

    Args:
        facts: The facts about the block, which do not hold any more when operators are replaced.
    """
    whole: set[OpNode] = set()
    for _ in range(_MAX_PLANS):
        plan = _PositionPlan(facts, whole)
        reads = [read for read in _reads(facts, plan) if read.part.has_slow]
        if not reads:
            return
        excessive = _excessive(facts, plan, reads)
        if not excessive:
            _rewrite(facts, reads, _dead(facts, reads, _all_parts(reads)))
            return
        whole |= excessive


def _reads(facts: ValueFacts, plan: _PositionPlan) -> Iterator[_PositionRead]:
    for node in facts.view.nodes:
        op = facts.op(node)
        if node.type != _SLICE or op is None or len(op.attr("axes")) != 1:
            continue
        if facts.view.is_result(node):
            continue  # a caller has its result
        source = facts.variable(op.input("input"))
        axis = op.attr("axes")[0] % len(facts.dims[source])
        starts, ends = (facts.integers(op, name) for name in ("starts", "ends"))
        size = facts.dims[source][axis]
        if starts is None or ends is None or not isinstance(size, int) or size < 2:
            continue
        (first, last) = (n + size if n < 0 else n for n in (starts[0], ends[0]))
        if 0 <= first < size and min(last, size) == first + 1:
            part = plan.position(source, axis, first)
            yield _PositionRead(node, axis, part, bool(op.attr("decrease_axis")))


def _all_parts(reads: Sequence[_PositionRead]) -> list[_Part]:
    """The parts of some reads, each behind those that it reads."""
    found: dict[_Part, None] = {}
    for read in reads:
        _add_parts(read.part, found)
    return list(found)


def _add_parts(part: _Part, found: dict[_Part, None]) -> list[_Part]:
    """Adds a part, behind the parts that it reads; returns the ones that were not there."""
    pending, added = [part], []
    while pending:
        part = pending[-1]
        missing = [each for each in part.read() if each not in found]
        pending += missing
        if not missing and pending.pop() not in found:
            found[part] = None
            added.append(part)
    return added


def _excessive(
    facts: ValueFacts, plan: _PositionPlan, reads: Sequence[_PositionRead]
) -> set[OpNode]:
    """The slow operators of which too many positions would be computed, or all as well."""
    parts = _all_parts(reads)
    dead = _dead(facts, reads, parts)
    computed: dict[OpNode, int] = {}
    groups: dict[Hashable, list[_Part]] = {}
    for part in parts:
        if part.type == _RNN:
            groups.setdefault(plan.groups[part], []).append(part)
        elif part.type in SLOW:
            for node in part.sources:
                computed[node] = computed.get(node, 0) + 1
    sizes = {node: part.positions for part in parts for node in part.sources}
    found = {
        node
        for node, count in computed.items()
        if node not in dead or count > _LARGEST_SHARE * sizes[node]
    }
    for members in groups.values():
        layers = {node for part in members for node in part.sources}
        if len(members) > _LARGEST_SHARE * sum(sizes[node] for node in layers & dead):
            found |= layers
    return found


def _dead(facts: ValueFacts, reads: Sequence[_PositionRead], parts: Sequence[_Part]) -> set[OpNode]:
    """The operators whose results nothing reads once slices are replaced."""
    view = facts.view
    kept = {part.vid for part in parts if part.vid}
    dead = {read.node for read in reads}
    for node in reversed(view.nodes):
        readers = [reader for vid in node.writes for reader in view.readers.get(vid, ())]
        is_kept = not kept.isdisjoint(node.writes) or any(each not in dead for each in readers)
        if not is_kept and not view.is_result(node) and _can_be_removed(facts, node):
            dead.add(node)
    return dead


def _rewrite(facts: ValueFacts, reads: Sequence[_PositionRead], dead: Iterable[OpNode]) -> None:
    """Inserts the parts of slices in front of them, and removes what nothing reads then."""
    found: dict[_Part, None] = {}
    for read in reads:
        op = read.node.op
        for part in _add_parts(read.part, found):
            part.values = _inserted(facts, part, op)
        assert read.part.values is not None  # it is the last of its parts
        value = read.part.values[0]
        if read.drops:
            attributes = [("value", "int64", [read.axis]), ("dtype", "dtype", "int64")]
            axis = put_before(op, "pd_op.full_int_array", [], attributes)
            value = put_before(op, "pd_op.squeeze", [value, axis], [])
        elif _is_stored(facts, read.node):
            # Several slices of a position have variables of their own, each with a name.
            value = put_before(op, "pd_op.assign", [value], [])
        op.result(0).replace_all_uses_with(value)
    remove_unread(facts, dead)


def _is_stored(facts: ValueFacts, node: OpNode) -> bool:
    return any(
        reader.type in SINKS for vid in node.writes for reader in facts.view.readers.get(vid, ())
    )


def _inserted(facts: ValueFacts, part: _Part, before: Operation) -> list[Any]:
    """The results of a part; of a new operator, inserted in front of ``before``."""
    if part.vid:
        return [facts.view.values[part.vid]]
    if part.type == "state":
        (layer,) = part.operands
        return [layer.values[1][part.member]]
    operands = [
        [each.values[0] for each in operand]
        if isinstance(operand, list)
        else None
        if operand is None
        else operand.values[0]
        for operand in part.operands
    ]
    results = _core.append_operator(
        before.get_parent_block(), part.type, operands, None, part.attributes, before=before
    )
    return [results[0], results[2]] if part.type == _RNN else list(results)


def remove_unread(facts: ValueFacts, removed: Iterable[OpNode]) -> None:
    """Removes operators that are replaced, and those before them that nothing reads any more."""
    pending = set(removed)
    block = facts.view.block
    for node in reversed(facts.view.nodes):
        if node not in pending or not all(value.use_empty() for value in node.op.results()):
            continue
        producers = map(facts.view.producer.get, node.reads)
        pending |= {each for each in producers if each and _can_be_removed(facts, each)}
        block.remove_op(node.op)


def _can_be_removed(facts: ValueFacts, node: OpNode) -> bool:
    if node.type in LISTS or node.type in CONSTANTS:
        return True
    has_names = any(facts.view.values[vid].persistable for vid in node.writes)
    return is_pure(node, facts.op(node)) and not has_names
