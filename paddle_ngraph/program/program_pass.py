"""The program pass: finds the convertible intervals of a program and replaces each by one operator.

Three steps, one direction: :func:`classify` says of every operator whether it can be converted,
:func:`partition` groups the convertible ones into as few intervals as the dependencies allow, and
a rewriter puts one ``ngraph_engine`` operator in the place of each.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from paddle_ngraph import _core, statistics
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.function import disk_cache, refusals
from paddle_ngraph.function.bridge import try_conversion
from paddle_ngraph.function.registry import (
    ABSENT,
    KNOWN,
    RANGES,
    Converter,
    Range,
    RangeRule,
    find_converter,
    range_of,
)
from paddle_ngraph.graph import FOLD_LIMIT, Graph, Op, TensorSpec
from paddle_ngraph.paddle_seam.names import set_persistable
from paddle_ngraph.program import cost, loops, native_interval, packed_layers
from paddle_ngraph.program.report import BlockReport, IntervalReport, NativeOp, Report
from paddle_ngraph.program.view import (
    CONSTANTS,
    LISTS,
    BlockView,
    OpNode,
    blocks_outside_in,
    changes_parameters,
    describe,
    dtype_name,
    is_packed,
    may_write_variables,
    value_id,
)

_MAX_OUTPUTS: int = _core.max_outputs
_INT32 = RANGES["int32"]


def apply(
    program: Any,
    keep_weights: bool = False,
    open_size: int | None = cost.TYPICAL_SIZE,
    gradients: Collection[str] = (),
) -> Report:
    """Rewrites a PIR program in place, every block of it.

    Args:
        program: A ``paddle.pir.Program`` (``paddle.static.Program`` in PIR mode), or its global
            block.
        keep_weights: Let functions keep its parameters as constants. For a program that writes
            none of its variables, where whoever does says so (``weights_written`` of the core).
        open_size: What the dimensions are about that the program leaves open, for the cost rule;
            ``None``: the rule does not count.
        gradients: Types of operators in another program that compute gradients of this one's.

    Returns:
        What was converted and what was not, with reasons.
    """
    loops.copy_start_values(program)
    packed = packed_layers.apply(program)
    aim = _Aim(keep_weights, open_size, sorted(gradients))
    blocks = [_apply_to_block(block, aim) for block in blocks_outside_in(program)]
    report = Report(blocks, packed)
    statistics.count(report)
    return report


def apply_by_name(block: Any, scope: Any) -> None:
    """The pass as Paddle runs it, by its name ``ngraph_pass``.

    Weights are kept for a predictor, whose ``scope`` nobody else writes. Elsewhere nothing is known
    of what the program will run beside.
    """
    runs = getattr(_by_name, "runs", None)
    has_state = runs is not None and changes_parameters(block)
    report = apply(block, scope is not None and not may_write_variables(block))
    if runs is not None:
        parameters = [
            op.attrs()["parameter_name"] for op in block.ops if op.name() == "builtin.parameter"
        ]
        runs.append(RunByName(report, has_state, parameters, scope))


class RunByName(NamedTuple):
    """What the pass did by its name.

    Attributes:
        report: What became of the program.
        has_state: Whether it changes parameters.
        parameters: The names of all that it has.
        scope: Where these are, as long as the predictor lives that it is for.
    """

    report: Report
    has_state: bool
    parameters: list[str]
    scope: Any


_by_name = threading.local()


@contextmanager
def runs_by_name() -> Iterator[list[RunByName]]:
    """Collects what the pass does by its name inside, in this thread."""
    before = getattr(_by_name, "runs", None)
    _by_name.runs = []
    try:
        yield _by_name.runs
    finally:
        _by_name.runs = before


def plan(program: Any, open_size: int | None = cost.TYPICAL_SIZE) -> Report:
    """What :func:`apply` would do, without changing the program."""
    copy = program.clone()
    loops.copy_start_values(copy)
    packed = packed_layers.apply(copy)
    aim = _Aim(False, open_size)
    plans = [_plan_block(block, aim) for block in blocks_outside_in(copy)]
    return Report([_report(capable, borders) for capable, borders in plans], packed)


class _Aim(NamedTuple):
    """What intervals are made for: see :func:`apply`."""

    keep_weights: bool
    open_size: int | None
    gradients: Sequence[str] = ()


def _apply_to_block(block: Any, aim: _Aim) -> BlockReport:
    capable, borders = _plan_block(block, aim)
    if borders:
        _Rewriter(capable, borders).run()
    return _report(capable, borders)


def _plan_block(block: Any, aim: _Aim) -> tuple[Capability, list[Border]]:
    capable = classify(BlockView(block))
    while True:
        intervals = partition(capable)
        borders = [_GraphBuilder(capable, each, aim).build() for each in intervals]
        refused = dict(_refused(capable, borders, aim.open_size))
        cut_off = set(_cut_off(capable, intervals)) - capable.cut_off
        if not refused and not cut_off:
            return capable, borders
        for node, reason in refused.items():
            capable.reject(node, reason)
        capable.cut_off |= cut_off
        _reject_what_does_not_fit(capable)


def _refused(
    capable: Capability, borders: list[Border], open_size: int | None
) -> Iterator[tuple[OpNode, str]]:
    """Operators that cannot stay in their intervals, and why."""
    for border in borders:
        interval = border.interval
        if (reason := cost.reason_against(border.graph, open_size)) is not None:
            capable.has_small_interval = True
            yield from ((node, reason) for node in interval.nodes)
        elif len(border.outputs) > _MAX_OUTPUTS:
            makers = {
                spec.id: node
                for node in interval.nodes
                for spec in capable.ops[node].outputs_used()
            }
            for spec in border.graph.outputs[_MAX_OUTPUTS:]:
                yield makers[spec.id], f"its interval has more than {_MAX_OUTPUTS} outputs"
        elif drawing := list(_draws_for_nobody(capable, border)):
            for node in drawing:
                yield node, "nothing in its interval reads its random numbers"
        else:
            yield from _refused_before(border)


def _refused_before(border: Border) -> Iterator[tuple[OpNode, str]]:
    if (reason := refusals.reason_against_interval(border.graph)) is not None:
        yield from ((node, reason) for node in border.interval.nodes)
    elif (found := native_interval.reason_against(border.graph)) is not None:
        yield next(n for n in border.interval.nodes if n.index == found[0].index), found[1]
    elif disk_cache.is_stored(border.text):
        return  # it was converted before
    elif error := try_conversion(border.graph, border.text):
        failing = next(n for n in border.interval.nodes if n.index == error.op.index)
        yield failing, refusals.refuse_operator(error)


def _drawing(capable: Capability, interval: Interval) -> list[OpNode]:
    return [n for n in interval.nodes if capable.converters[n].draws(capable.ops[n])]


def _draws_for_nobody(capable: Capability, border: Border) -> Iterator[OpNode]:
    """Operators that would draw random numbers only to hand them out, or to be dropped."""
    drawing = _drawing(capable, border.interval)
    if drawing and not border.outputs and not border.states:
        yield from drawing
    inside = set(border.interval.nodes)
    for node in drawing:
        constant = capable.converters[node].constant
        computes = any(name not in constant for name, _ in capable.slots(node))
        readers = {reader for vid in node.writes for reader in capable.view.readers.get(vid, ())}
        if not computes and not any(reader in inside or reader.type in LISTS for reader in readers):
            yield node


def _cut_off(capable: Capability, intervals: list[Interval]) -> Iterator[tuple[OpNode, str]]:
    """Operators that read what another interval knows while it is built, and which variable."""
    level = {node: interval.level for interval in intervals for node in interval.nodes}
    for node in level:
        for name, vid in capable.slots(node):
            producer = capable.view.producer.get(vid)
            if producer not in level or level[producer] == level[node]:
                continue
            if name not in capable.converters[node].unread and capable.integers.is_static(vid):
                yield node, vid


# -- step 1: what can be converted -------------------------------------------------------------


@dataclass
class Capability:
    """What is known of each operator of a block.

    Attributes:
        view: The block.
        ops: The convertible operators as converters see them.
        converters: Their converters.
        reasons: Why each other compute operator stays native.
        numbers: The number of each variable in graphs.
        constants: Operators that make a constant, copied into every interval that reads it.
        ignored_by: Readers of outputs that their operator does not make: they must be converted,
            for they ignore what a native operator would read.
        cut_off: Operators and variables they read that only another interval knows at its build.
        integers: What is known of its whole numbers.
        has_small_interval: Whether one was too small to pay.
        levels: Of all operators, see :func:`partition`.
    """

    view: BlockView
    ops: dict[OpNode, Op] = field(default_factory=dict)
    converters: dict[OpNode, Converter] = field(default_factory=dict)
    reasons: dict[OpNode, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    constants: set[OpNode] = field(default_factory=set)
    ignored_by: dict[OpNode, list[OpNode]] = field(default_factory=dict)
    cut_off: set[tuple[OpNode, str]] = field(default_factory=set)
    has_small_interval: bool = False
    integers: _Integers = field(init=False)
    levels: dict[OpNode, int] = field(init=False)
    _slots: dict[OpNode, list[tuple[str, str]]] = field(default_factory=dict)

    def can_convert(self, node: OpNode) -> bool:
        """Whether ``node`` becomes part of an interval."""
        return node in self.ops

    def reject(self, node: OpNode, reason: str) -> None:
        """Leaves ``node`` native."""
        self.ops.pop(node, None)
        self.converters.pop(node, None)
        self.reasons[node] = reason

    def slots(self, node: OpNode) -> list[tuple[str, str]]:
        """(input name, variable id) of every tensor that a convertible ``node`` reads."""
        if node not in self._slots:
            inputs = zip(node.op.get_input_names(), node.op.operands_source())
            self._slots[node] = [
                (name, vid) for name, value in inputs for vid in self.view.unpacked(value) or ()
            ]
        return self._slots[node]


def classify(view: BlockView) -> Capability:
    """Says of every operator of a block whether it can be converted, and if not, why."""
    capable = Capability(view)
    for node in view.nodes:
        _classify_node(capable, node)
    _reject_what_does_not_fit(capable)
    return capable


def _reject_what_does_not_fit(capable: Capability) -> None:
    """Rejects until nothing changes: what is rejected is known no longer to its readers."""
    while True:
        capable.integers = _Integers(capable)
        rejected = capable.integers.reject_what_needs_64_bits() or _reject_what_is_read(capable)
        if not (rejected or _reject_what_is_made_natively(capable)):
            return


def _reject_what_is_read(capable: Capability) -> bool:
    """Rejects operators with an output that a native one reads, though they do not make it."""
    read = [
        node
        for node, readers in capable.ignored_by.items()
        if capable.can_convert(node) and not all(map(capable.can_convert, readers))
    ]
    for node in read:
        capable.reject(node, "a native operator uses an output that the engine does not make")
    return bool(read)


def _reject_what_is_made_natively(capable: Capability) -> bool:
    """Rejects operators with an input that is only right where a converted operator made it."""
    made = [
        node
        for node, entry in capable.converters.items()
        for name, vid in (capable.slots(node) if entry.internal else ())
        if name in entry.internal and not any(map(capable.can_convert, _makers(capable, vid)))
    ]
    for node in set(made):
        capable.reject(node, "the operator that it is the gradient of stays native")
    return bool(made)


def _classify_node(capable: Capability, node: OpNode) -> None:
    if node.type in CONSTANTS and not any(capable.view.is_overwritten(v) for v in node.writes):
        entry = find_converter(node.type)
        described = describe(capable.view, node, capable.numbers)
        assert entry is not None
        if isinstance(described, Op) and all(s.dtype in KNOWN for s in described.output_specs()):
            capable.constants.add(node)
            capable.ops[node] = described
            capable.converters[node] = entry
        return
    if not node.is_compute:
        return
    entry = find_converter(node.type)
    if entry is None:
        capable.reasons[node] = ABSENT.get(node.type, "no converter")
        return
    if any(capable.view.is_outer(operand) for operand, _ in node.overwrites):
        # Paddle would not see it, and run others that use the variable at the same time.
        capable.reasons[node] = "it overwrites a variable of an outer block"
        return
    if any(capable.view.is_named(operand) for operand, _ in node.overwrites):
        # Paddle would name a variable that nothing writes.
        capable.reasons[node] = "it overwrites what the program names afterwards"
        return
    if any(map(capable.view.names_a_rival, node.writes)):
        capable.reasons[node] = "it writes a variable that the program also has by another value"
        return
    described = describe(capable.view, node, capable.numbers, entry.unwritten)
    if isinstance(described, str):
        capable.reasons[node] = described
        return
    if _reads_what_nothing_writes(capable.view, node, entry):
        capable.reasons[node] = "an input has a shape, but no contents"
        return
    _leave_out_what_is_ignored(capable, node, described, entry)
    # What nobody reads is dropped, whatever it is.
    if described.outputs_used() and (reason := entry.reason_against(described)) is not None:
        capable.reasons[node] = reason
        return
    if (reason := refusals.reason_against(described)) is not None:
        capable.reasons[node] = reason
        return
    if entry.draws(described) and not described.outputs_used():
        # Dropped, it would not move the random stream on.
        capable.reasons[node] = "nobody reads its random numbers"
        return
    capable.ops[node] = described
    capable.converters[node] = entry


def _reads_what_nothing_writes(view: BlockView, node: OpNode, entry: Converter) -> bool:
    """Whether it reads what nothing writes: ``data`` beside the ``feed`` of old-style programs."""
    inputs = zip(node.op.get_input_names(), node.op.operands_source())
    read = {value_id(v) for name, v in inputs if v.initialized() and name not in entry.ignored}
    sources = [view.producer[vid] for vid in read if vid in view.producer]
    unfed = [source for source in sources if source.type == "pd_op.data"]
    return bool(unfed) and any(other.type == "pd_op.feed" for other in view.nodes)


def _leave_out_what_is_ignored(
    capable: Capability, node: OpNode, described: Op, entry: Converter
) -> None:
    for name, value in zip(node.op.get_output_names(), node.op.results()):
        if name not in entry.unwritten:
            continue
        members = [vid for vid in capable.view.result_members(value) or () if vid is not None]
        reads = [read for vid in members for read in _reads_through_lists(capable, vid)]
        if reads and all(_ignores(capable, reader, vid) for reader, vid in reads):
            described.outputs[name] = (None,) * len(described.outputs[name])
            capable.ignored_by.setdefault(node, []).extend(reader for reader, _ in reads)


def _reads_through_lists(capable: Capability, vid: str) -> Iterator[tuple[OpNode, str]]:
    """Who reads a variable, by itself or as a member of a list."""
    for reader in capable.view.readers.get(vid, ()):
        if reader.type != "builtin.combine":
            yield reader, vid
            continue
        for joined in reader.writes:
            yield from ((last, vid) for last in capable.view.readers.get(joined, ()))


def _ignores(capable: Capability, reader: OpNode, vid: str) -> bool:
    entry = find_converter(reader.type)
    if entry is None:  # what hands a variable on has no names for its inputs either
        return False
    names = {name for name, v in capable.slots(reader) if v == vid}
    return bool(names) and names <= entry.ignored


class _Integers:
    """The 64-bit rule: the engine computes int64 in 32 bits.

    An int64 tensor may pass where its values surely fit into 32 bits, where they are used as
    positions only, or where they are known and read while the function is built, and then only.

    Positions that come from outside fit, whatever else is done with them: the engine refuses a run
    in which they do not.
    """

    def __init__(self, capable: Capability) -> None:
        self._capable = capable
        self._view = capable.view
        self._static: dict[str, bool] = {}
        self._ranges: dict[str, Range | None] = {}
        self._position: dict[str, bool] = {}
        self._checked: set[str] = set()

        for node in reversed(self._view.nodes):
            self._checked |= self._checked_by(node)
        self._checked -= self._read_by_value()
        for node in self._view.nodes:  # in this order no recursion goes deep
            for vid in node.writes:
                self.is_static(vid)
                self.is_small(vid)

    def reject_what_needs_64_bits(self) -> bool:
        """Rejects the operators that do not follow the rule; whether there were any."""
        rejected = False
        for node in reversed(self._view.nodes):
            for vid in node.writes:
                self.is_position(vid)
            if node not in self._capable.ops or node in self._capable.constants:
                continue
            if not self._fits(node):
                rejected = True
                self._capable.reject(
                    node, "int64 arithmetic needs 64 bits, the engine computes it in 32"
                )
        return rejected

    def is_static(self, vid: str) -> bool:
        """Whether the contents are known while the function is built."""
        if vid not in self._static:
            self._static[vid] = False
            node = self._view.producer.get(vid)
            self._static[vid] = (
                node is not None
                and not self._view.is_overwritten(vid)
                and not node.overwrites
                and self._makes_static(node)
            )
        return self._static[vid]

    def is_known_to(self, reader: OpNode, vid: str) -> bool:
        """Whether ``reader`` gets to know the contents while its function is built."""
        return (reader, vid) not in self._capable.cut_off and self.is_static(vid)

    def _makes_static(self, node: OpNode) -> bool:
        if node in self._capable.constants:
            return all(_can_be_folded(spec) for spec in self._outputs(node)) or all(
                self.is_small(vid) for vid in node.writes
            )
        entry = self._capable.converters.get(node)
        if entry is None:
            return False
        if any(spec.dtype not in ("int32", "int64", "bool") for spec in self._outputs(node)):
            return False
        return self._is_folded(node, entry)

    def _is_folded(self, node: OpNode, entry: Converter) -> bool:
        """Whether the bridge computes ``node`` while it builds the function, in 64 bits."""
        read = [(name, v) for name, v in self._capable.slots(node) if name not in entry.unread]
        computed = any(name not in entry.constant for name, _ in read)
        if computed and any(not _can_be_folded(spec) for spec in self._outputs(node)):
            return False
        return all(self.is_known_to(node, v) for _, v in read)

    def _outputs(self, node: OpNode) -> list[TensorSpec]:
        return list(self._capable.ops[node].output_specs())

    def _checked_by(self, node: OpNode) -> set[str]:
        """What the engine refuses to take into an interval for ``node`` beyond 32 bits."""
        goes_on = not self._checked.isdisjoint(node.writes)
        if node.type in LISTS:
            return set(node.reads) if goes_on else set()
        entry = self._capable.converters.get(node)
        if entry is None:
            return set()
        passive = entry.constant | entry.unread
        return {
            vid
            for name, vid in self._capable.slots(node)
            if name in entry.index or (entry.moves and goes_on and name not in passive)
        }

    def _read_by_value(self) -> set[str]:
        return {
            vid
            for node, entry in self._capable.converters.items()
            for name, vid in self._capable.slots(node)
            if name in entry.constant
        }

    def is_small(self, vid: str) -> bool:
        """Whether it is no int64, or every value surely fits into 32 bits."""
        if self._view.is_tensor(vid) and not self._is_int64(vid):
            return True
        found = self._range(vid)
        return found is not None and _INT32[0] <= found[0] and found[1] <= _INT32[1]

    def _range(self, vid: str) -> Range | None:
        """The least and the greatest value of a variable; ``None`` where nothing is known."""
        if vid not in self._ranges:
            self._ranges[vid] = None
            self._ranges[vid] = self._find_range(vid)
        return self._ranges[vid]

    def _find_range(self, vid: str) -> Range | None:
        node = self._view.producer.get(vid)
        if self._view.is_tensor(vid) and not self._is_int64(vid):
            whole = RANGES.get(dtype_name(self._view.values[vid].dtype))
            if whole is None or node is None or self._view.is_overwritten(vid):
                return whole
            made = self._range_made_by(node)  # beyond the whole range it wraps around
            return made if made and whole[0] <= made[0] and made[1] <= whole[1] else whole
        if self._view.is_overwritten(vid):
            return None
        if node is not None and node.type in LISTS:
            return self._range_of_all(node.reads)
        if vid in self._checked and (node is None or not self._capable.can_convert(node)):
            return _INT32
        return None if node is None else self._range_made_by(node)

    def _range_of_all(self, vids: Iterable[str]) -> Range | None:
        ranges = [self._range(vid) for vid in vids]
        found = [(low, high) for low, high in filter(None, ranges)]
        if not found or len(found) < len(ranges):
            return None
        return min(low for low, _ in found), max(high for _, high in found)

    def _range_made_by(self, node: OpNode) -> Range | None:
        if node in self._capable.constants:
            value = self._capable.ops[node].attr("value")
            return range_of(value if isinstance(value, list) else [value])
        entry = find_converter(node.type)
        if entry is None:
            return None
        if entry.integers is not None and node in self._capable.ops:
            return self._range_by_rule(node, entry, entry.integers)
        if entry.small_integers:
            return _INT32
        if not entry.moves:
            return None
        return self._range_of_all(vid for _, vid in self._data(node, entry))

    def _range_by_rule(self, node: OpNode, entry: Converter, rule: RangeRule) -> Range | None:
        data: dict[str, list[str]] = {}
        for name, vid in self._data(node, entry):
            if self._is_int64(vid) or dtype_name(self._view.values[vid].dtype) in RANGES:
                data.setdefault(name, []).append(vid)
        ranges = {name: self._range_of_all(vids) for name, vids in data.items()}
        known = {name: found for name, found in ranges.items() if found is not None}
        return rule(self._capable.ops[node], known) if known == ranges else None

    def _is_int64(self, vid: str) -> bool:
        return dtype_name(self._view.values[vid].dtype) == "int64"

    def _data(self, node: OpNode, entry: Converter) -> Iterator[tuple[str, str]]:
        """What the converter computes with: no positions, no shapes."""
        passive = entry.index | entry.constant | entry.unread
        return ((name, vid) for name, vid in self._capable.slots(node) if name not in passive)

    def is_position(self, vid: str) -> bool:
        """Whether the variable is only ever used as positions, inside the engine."""
        if vid not in self._position:
            self._position[vid] = False
            node = self._view.producer.get(vid)
            self._position[vid] = (node is None or not self._view.is_result(node)) and all(
                self._reads_as_position(reader, vid) for reader in self._view.readers.get(vid, ())
            )
        return self._position[vid]

    def _reads_as_position(self, reader: OpNode, vid: str) -> bool:
        if reader.type in LISTS:
            return all(self.is_position(result) for result in reader.writes)
        entry = self._capable.converters.get(reader)
        if entry is None:
            return False
        names = {name for name, v in self._capable.slots(reader) if v == vid}
        if names and names <= entry.index | entry.unread:
            return True
        return entry.moves and self._outputs_are_positions(reader)

    def _outputs_are_positions(self, node: OpNode) -> bool:
        return all(self.is_position(v) for v in node.writes)

    def _is_read_at_build(self, vid: str) -> bool:
        """Whether the contents, which are known, are read only while the function is built."""
        node = self._view.producer.get(vid)
        if node is None or self._view.is_result(node):
            return False
        return all(self._reads_at_build(r, vid) for r in self._view.readers.get(vid, ()))

    def _reads_at_build(self, reader: OpNode, vid: str) -> bool:
        if reader.type in LISTS:
            return all(self._is_read_at_build(result) for result in reader.writes)
        entry = self._capable.converters.get(reader)
        if entry is None:
            return False
        passive = entry.constant | entry.unread | entry.index
        if all(name in passive for name, v in self._capable.slots(reader) if v == vid):
            return True
        if all(self.is_static(v) for v in reader.writes):
            return True
        return entry.moves and self._is_folded(reader, entry)

    def _fits(self, node: OpNode) -> bool:
        if not self._outputs(node):
            return True
        entry = self._capable.converters[node]
        wide = not self._is_folded(node, entry) and any(
            not self.is_small(vid) for _, vid in self._data(node, entry)
        )
        makes_int64 = any(spec.dtype == "int64" for spec in self._outputs(node))
        if not wide and not makes_int64:
            return True
        if all(
            self.is_small(vid) or (self.is_static(vid) and self._is_read_at_build(vid))
            for vid in node.writes
        ):
            return not wide
        return entry.moves and self._outputs_are_positions(node)


def _can_be_folded(spec: TensorSpec) -> bool:
    """Whether the tensor is small enough for the bridge to compute it, and surely so."""
    return -1 not in spec.shape and math.prod(spec.shape) <= FOLD_LIMIT


# -- step 2: intervals -------------------------------------------------------------------------


@dataclass
class Interval:
    """Operators that one engine operator stands for, in program order."""

    level: int
    nodes: list[OpNode]

    @property
    def range(self) -> list[int]:
        """First and last position in the operator list."""
        return [self.nodes[0].index, self.nodes[-1].index]


@dataclass
class _Edge:
    source: OpNode
    apart: bool = False  # the two may not share an interval


def partition(capable: Capability) -> list[Interval]:
    """Groups the convertible operators into as few intervals as the dependencies allow.

    Every operator gets a level: interval ``k`` runs before the native operators of level ``k``, and
    these before interval ``k + 1``. An operator that cannot be converted and does not depend on the
    middle of an interval therefore never cuts it. An operator is moved to the latest interval it
    may be in, which keeps its results inside.
    """
    levels = capable.levels = _levels(capable)
    members: dict[int, list[OpNode]] = {}
    for node in capable.view.nodes:
        if capable.can_convert(node) and node not in capable.constants:
            members.setdefault(levels[node], []).append(node)
    return [Interval(level, members[level]) for level in sorted(members)]


def _levels(capable: Capability) -> dict[OpNode, int]:
    edges = _dependencies(capable)
    levels: dict[OpNode, int] = {}
    for node in capable.view.nodes:
        converted = capable.can_convert(node)
        level = 0 if converted else -1
        for edge in edges[node]:
            step = 0
            if converted:
                step = 1 if edge.apart or not capable.can_convert(edge.source) else 0
            level = max(level, levels[edge.source] + step)
        levels[node] = level
    _move_late(capable, edges, levels)
    return levels


def _move_late(
    capable: Capability, edges: dict[OpNode, list[_Edge]], levels: dict[OpNode, int]
) -> None:
    latest: dict[OpNode, int] = {}
    for node in reversed(capable.view.nodes):
        if capable.can_convert(node):
            levels[node] = max(levels[node], latest.get(node, levels[node]))
        for edge in edges[node]:
            if node.type in LISTS or not capable.can_convert(edge.source):
                continue
            bound = levels[node] - (1 if edge.apart and capable.can_convert(node) else 0)
            latest[edge.source] = min(latest.get(edge.source, bound), bound)
    for node in capable.view.nodes:  # lists follow what they hold
        if node.type in LISTS:
            levels[node] = max([-1, *(levels[edge.source] for edge in edges[node])])


def _dependencies(capable: Capability) -> dict[OpNode, list[_Edge]]:
    """What each operator has to wait for: data, memory that is overwritten, and order."""
    view = capable.view
    edges: dict[OpNode, list[_Edge]] = {}
    writer: dict[str, OpNode] = {}
    readers: dict[str, list[OpNode]] = {}
    last_ordered: dict[str, OpNode] = {}
    for node in view.nodes:
        apart = _read_by_value(capable, node)
        found = [_Edge(p, v in apart) for v in node.reads for p in _makers(capable, v)]
        read = {view.root(member) for vid in node.reads for member in view.members(vid)}
        targets = [*(operand for operand, _ in node.overwrites), *node.touches]
        overwritten = {view.root(member) for vid in targets for member in view.members(vid)}
        for root in read:
            if last := writer.get(root):
                found.append(_Edge(last))
        for root in overwritten:
            found += [_Edge(reader) for reader in readers.pop(root, ()) if reader is not node]
            writer[root] = node
        for root in read:
            readers.setdefault(root, []).append(node)
        for deed in node.ordered:
            if deed in last_ordered:
                found.append(_Edge(last_ordered[deed]))
            last_ordered[deed] = node
        edges[node] = found
    return edges


def _makers(capable: Capability, vid: str) -> Iterator[OpNode]:
    """The operators that compute a variable; lists, sources and constants are looked through."""
    node = capable.view.producer.get(vid)
    if node is None or node.is_source or node in capable.constants:
        return
    if node.type not in LISTS:
        yield node
        return
    for read in node.reads:
        yield from _makers(capable, read)


def _read_by_value(capable: Capability, node: OpNode) -> set[str]:
    """Variables whose contents shape the function and are known only when it runs."""
    if not capable.can_convert(node):
        return set()
    entry = capable.converters[node]
    return {
        vid
        for name, vid in capable.slots(node)
        if name in entry.constant and not capable.integers.is_known_to(node, vid)
    }


# -- step 3: one operator for each interval ----------------------------------------------------


@dataclass
class Border:
    """The graph of an interval and the variables that cross its border."""

    interval: Interval
    graph: Graph
    inputs: list[str]
    states: list[str]
    outputs: list[str]
    replaced_by: dict[str, tuple[str, int]]  # variable -> ("output" or "state", position)

    @cached_property
    def text(self) -> str:
        """The graph string."""
        return self.graph.to_string()


class _Rewriter:
    """Replaces each interval by one ``ngraph_engine`` operator and drops what is dead."""

    def __init__(self, capable: Capability, borders: list[Border]) -> None:
        self._capable = capable
        self._view = capable.view
        self._borders = {border.interval.level: border for border in borders}
        self._levels = capable.levels
        self._current = dict(capable.view.values)  # variable -> the value that holds it now

    def run(self) -> None:
        borders = self._borders
        inside = {node for border in borders.values() for node in border.interval.nodes}
        kept = [node for node in self._view.nodes if node not in inside]
        first = [n for n in kept if n.is_source or n in self._capable.constants]
        last = [n for n in kept if n.type == "cf.yield"]
        self._to_end(first)
        rest = [n for n in kept if n not in set(first) and n not in set(last)]
        by_level: dict[int, list[OpNode]] = {}
        for node in rest:
            by_level.setdefault(self._levels[node], []).append(node)
        for level in sorted({*by_level, *borders}):
            if level in borders and (borders[level].outputs or borders[level].states):
                self._insert(borders[level])
            self._to_end(by_level.get(level, []))
        self._to_end(last)
        self._drop_dead(inside)

    def _to_end(self, nodes: Iterable[OpNode]) -> None:
        for node in nodes:
            self._view.block.move_op_to_block_end(node.op)

    def _insert(self, border: Border) -> None:
        native_interval.made(border.text)
        values = _core.insert_ngraph_engine(
            self._view.block,
            None,
            [self._current[v] for v in border.inputs],
            [self._current[v] for v in border.states],
            [self._view.values[v] for v in border.outputs],
            border.text,
            border.interval.range,
        )
        _keep_persistable([self._view.values[v] for v in border.outputs], values)
        offset = {"output": 0, "state": len(border.outputs)}
        for vid, (kind, position) in border.replaced_by.items():
            value = values[offset[kind] + position]
            self._view.values[vid].replace_all_uses_with(value)
            self._current[vid] = value

    def _drop_dead(self, inside: set[OpNode]) -> None:
        for node in reversed(self._view.nodes):
            if node not in inside and node.type not in LISTS | CONSTANTS:
                continue
            used = any(v.initialized() and not v.use_empty() for v in node.op.results())
            if not used:
                self._view.block.remove_op(node.op)
            elif node in inside:
                raise NgraphError(
                    f"{node.type} (operator {node.index}) was converted, but is still in use; "
                    "please report this program"
                )


def _keep_persistable(old: Sequence[Any], new: Sequence[Any]) -> None:
    """Tell Paddle which results to put into the outermost scope, where it looks for them."""
    persistable = {value_id(b) for a, b in zip(old, new) if a.persistable}
    if persistable:
        for result in new[0].get_defining_op().results():  # all, or its attributes cannot be read
            set_persistable(result, result.initialized() and value_id(result) in persistable)


class _GraphBuilder:
    """Describes one interval as a graph, with memory as Paddle sees it.

    An operator that writes over its input gives that memory new contents: whoever reads it
    afterwards, under whatever name, reads the new ones.
    """

    def __init__(self, capable: Capability, interval: Interval, aim: _Aim) -> None:
        self._capable = capable
        self._view = capable.view
        self._interval = interval
        self._aim = aim
        self._nodes = set(interval.nodes)
        self._names = {number: vid for vid, number in capable.numbers.items()}
        self._content: dict[str, str] = {}  # memory -> the variable that names what it holds
        self._external: list[str] = []  # memory that comes from outside, in order of first use
        self._external_names: dict[str, str] = {}
        self._overwritten: list[str] = []
        self._by_value: set[str] = set()
        self._ops: list[Op] = []
        self._made: set[int] = set()  # tensors, those that converters do not make too

    def build(self) -> Border:
        for node in self._interval.nodes:
            if self._capable.ops[node].outputs_used():
                self._by_value |= {self._view.root(v) for v in _read_by_value(self._capable, node)}
                self._add(node)
        states = [root for root in self._external if root in self._overwritten]
        inputs = [root for root in self._external if root not in self._overwritten]
        replaced, outputs = self._outputs(states)
        graph = Graph(
            ops=self._ops,
            inputs=[self._spec(self._external_names[root]) for root in inputs],
            states=[self._spec(self._external_names[root]) for root in states],
            outputs=[self._spec(self._content[root]) for root in outputs],
            state_outputs=[self._spec(self._content[root]) for root in states],
            value_inputs=[i for i, root in enumerate(inputs) if root in self._by_value],
            weights=[i for i, root in enumerate(inputs) if self._is_weight(root)],
            adapts=any(node.type == "pd_op.feed" for node in self._view.nodes),
            gradients=list(self._aim.gradients),
        )
        return Border(
            interval=self._interval,
            graph=graph,
            inputs=[self._external_names[root] for root in inputs],
            states=[self._external_names[root] for root in states],
            outputs=[self._content[root] for root in outputs],
            replaced_by=replaced,
        )

    def _is_weight(self, root: str) -> bool:
        value = self._view.values[root]
        maker = value.get_defining_op()
        is_parameter = maker is not None and maker.name() == "builtin.parameter"
        return self._aim.keep_weights and is_parameter and dtype_name(value.dtype) == "float32"

    def _add(self, node: OpNode) -> None:
        op = self._capable.ops[node]
        ignored = self._capable.converters[node].ignored
        inputs = {
            name: tuple(self._read(self._names[spec.id]) for spec in specs if name not in ignored)
            for name, specs in op.inputs.items()
        }
        assert op.form is not None
        kept = {name: self._known_here(op.inputs.get(name, ())) for name in ignored}
        form = replace(op.form, ignored={name: specs for name, specs in kept.items() if specs})
        self._ops.append(replace(op, inputs=inputs, constants={}, form=form))
        self._made.update(spec.id for specs in op.form.results.values() for spec in specs)
        for spec in op.output_specs():
            vid = self._names[spec.id]
            root = self._view.root(vid)
            if root != vid and root in self._external and root not in self._overwritten:
                self._overwritten.append(root)
            self._content[root] = vid

    def _known_here(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """The tensors, if the interval makes or reads them all anyway."""
        roots = [self._view.root(self._names[spec.id]) for spec in specs]
        now = [
            self._spec(self._content[root]) if root in self._content else spec
            for root, spec in zip(roots, specs)
        ]
        known = (root in self._content or spec.id in self._made for root, spec in zip(roots, specs))
        return tuple(now) if all(known) else ()

    def _read(self, vid: str) -> TensorSpec:
        root = self._view.root(vid)
        if root not in self._content:
            producer = self._view.producer.get(vid)
            if producer is not None and producer in self._capable.constants:
                self._add_constant(producer)
            else:
                self._external.append(root)
                self._external_names[root] = vid
                self._content[root] = vid
        return self._spec(self._content[root])

    def _add_constant(self, node: OpNode) -> None:
        op = self._capable.ops[node]
        self._ops.append(op)
        for spec in op.output_specs():
            vid = self._names[spec.id]
            self._content[vid] = vid

    def _outputs(self, states: list[str]) -> tuple[dict[str, tuple[str, int]], list[str]]:
        replaced: dict[str, tuple[str, int]] = {}
        outputs: list[str] = []
        for node in self._interval.nodes:
            for spec in self._capable.ops[node].output_specs():
                vid = self._names[spec.id]
                root = self._view.root(vid)
                if root in states:
                    replaced[vid] = ("state", states.index(root))
                elif self._is_used_outside(vid) or self._view.is_result(node):
                    if root not in outputs:
                        outputs.append(root)
                    replaced[vid] = ("output", outputs.index(root))
        return replaced, outputs

    def _is_used_outside(self, vid: str) -> bool:
        for reader in self._view.readers.get(vid, ()):
            if reader.type in LISTS:
                if any(self._is_used_outside(result) for result in reader.writes):
                    return True
            elif reader not in self._nodes:
                return True
        return False

    def _spec(self, vid: str) -> TensorSpec:
        return self._view.spec(vid, self._capable.numbers[vid])


# -- the report --------------------------------------------------------------------------------


def _report(capable: Capability, borders: list[Border]) -> BlockReport:
    intervals = [border.interval for border in borders]
    return BlockReport(
        intervals=[
            IntervalReport(
                first=interval.range[0],
                last=interval.range[1],
                types=[node.type for node in interval.nodes],
                draws=bool(_drawing(capable, interval)),
            )
            for interval in intervals
        ],
        native=[
            NativeOp(node.index, node.type, capable.reasons.get(node, "no converter"))
            for node in capable.view.nodes
            if node.is_compute and not capable.can_convert(node) and not is_packed(node.type)
        ],
        has_small_interval=capable.has_small_interval,
        engines=sum(node.is_engine for node in capable.view.nodes),
    )
