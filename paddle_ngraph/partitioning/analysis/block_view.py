"""View of a Paddle block for partitioning: operators, variables, aliases and ordering effects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import BFLOAT16, FallbackForm, Graph, Op, TensorSpec, is_random
from paddle_ngraph.paddle_private.names import operators
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.aliases import VIEWS, Aliases, may_share, members_of
from paddle_ngraph.partitioning.analysis.operator_kinds import (
    FEEDS,
    LISTS,
    REGIONS,
    SCOPE_NAMES,
    SCOPE_WRITERS,
    SINKS,
    SOURCES,
    WHILE,
    YIELD,
    blocks_outermost_first,
    captured,
    dtype_name,
    is_engine,
    is_known,
    is_legacy_operator,
    is_packed,
    legacy_effects,
    operands_of,
    overwritten,
    value_id,
)
from paddle_ngraph.partitioning.analysis.placement import PLACE_ATTRIBUTE, device_of
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.dtypes import ARRAY_SUFFIX, integer_in

# The names of the operands and results of loops and branches, for converters: the condition, the
# initial values of a loop, captured variables, the results.
COND, INITIAL_VALUES, CAPTURED, OUT = "cond", "inputs", "captured", "out"
SHADOW_OUTPUT = "builtin.shadow_output"
FETCH = "pd_op.fetch"
# Types of constants, which every subgraph that reads one contains as a copy.
CONSTANTS = frozenset({"pd_op.full", "pd_op.full_int_array"})
# Operators whose attribute ``shape`` is the shape of their result.
_SHAPED_CONSTANTS = frozenset({"pd_op.full", "pd_op.assign_value"})

# Types of operators that act outside of the process's memory, such as printing.
_SIDE_EFFECTS = frozenset({"pd_op.print", "pd_op.assert"})
# Types of operators that write variables other than their results.
_IMPLICIT_WRITERS = frozenset({"pd_op.load", "pd_op.load_combine", "pd_op.py_func"})
# The attribute, an id of a process group, by which operators that send or receive are recognized.
RING_ATTRIBUTE = "ring_id"
# Types of operators that communicate, but have no attribute `ring_id`.
_COMMUNICATION = frozenset(
    {
        "pd_op.barrier",
        "pd_op.comm_init_all",
        "pd_op.distributed_lookup_table",
        "pd_op.distributed_push_sparse",
        "pd_op.p_recv",
        "pd_op.p_recv_array",
        "pd_op.p_send",
        "pd_op.p_send_array",
        "pd_op.pull_sparse_v2",
        "pd_op.push_dense",
        "pd_op.push_sparse_v2",
        "pd_op.recv_v2",
        "pd_op.send_v2",
        "pd_op.send_and_recv",
    }
)
# Suffixes of an operator's place attribute that mark the whole program: one whose operators run
# sequentially in program order, and one whose parameters another program updates repeatedly.
_SEQUENTIAL_MARK, _TRAINED_MARK = "/in_order", "/trained"
_MARKS = re.compile(f"(?:{_SEQUENTIAL_MARK}|{_TRAINED_MARK})*$")
# Ordering effects: sampling, acting outside, communicating. Operators that share an effect keep
# their order.
DRAW, ACT, COMMUNICATE = "draw", "act", "communicate"


@dataclass(eq=False)
class OpNode:
    """One operator of a block.

    Attributes:
        op: Paddle's operator.
        index: The index in the operator list of the block.
        type: The type of the operator, e.g. ``pd_op.add``.
        reads: Ids of the variables that it reads, variables captured by its sub-blocks included.
        writes: Ids of its results.
        overwrites: (operand id, result id) of every output that is written over an input.
        outer_writes: Ids of overwritten variables without a result: variables written by its
            sub-blocks, variables written through another value, and ``initial_values``.
        initial_values: Ids of the initial values of a loop, which have no other reader.
        captured: Ids of variables of outer blocks that its sub-blocks read.
        writes_inside: Ids of variables of outer blocks that its sub-blocks overwrite.
        effects: Its ordering effects: sampling of random numbers (``DRAW``), external side effects
            (``ACT``), or communication with other processes (``COMMUNICATE``), which expect one
            order on all ranks. Operators with the same effect keep their order.
        writes_variables: Whether it overwrites a variable that outlives the run, as far as its
            block shows.
        is_observed: Whether it overwrites memory that another variable shares, or operators inside
            do: Paddle would run it concurrently with readers of that variable.
        device: The chosen device; empty if none was chosen.
    """

    op: Operation
    index: int
    type: str
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    overwrites: list[tuple[str, str]] = field(default_factory=list)
    outer_writes: list[str] = field(default_factory=list)
    effects: frozenset[str] = frozenset()
    writes_variables: bool = False
    writes_inside: list[str] = field(default_factory=list)
    initial_values: list[str] = field(default_factory=list)
    captured: list[str] = field(default_factory=list)
    is_observed: bool = False
    device: str = ""

    @property
    def writes_outer_variables(self) -> bool:
        """Whether a block inside the operator overwrites a variable of an enclosing block."""
        return bool(self.writes_inside)

    @property
    def is_source(self) -> bool:
        """Whether the operator computes nothing: its result is a variable, a feed or a constant."""
        return self.type in SOURCES

    @property
    def is_compute(self) -> bool:
        """Whether the operator counts in the reported share of converted operators."""
        return self.type not in SOURCES | SINKS | LISTS | CONSTANTS and not self.is_engine

    @property
    def is_engine(self) -> bool:
        """Whether the operator is an engine operator."""
        return is_engine(self.type)

    @property
    def may_write_variables(self) -> bool:
        """Whether a run of the operator may change a variable that later runs read."""
        return self.type in SCOPE_WRITERS or self.may_overwrite_variables

    @property
    def may_overwrite_variables(self) -> bool:
        """Whether the operator may overwrite a variable that existed before it."""
        if self.writes_variables or self.type == "builtin.set_parameter":
            return True
        if len(self.outer_writes) > len(self.initial_values):
            return True
        return _may_write_unnamed(self.op)

    @property
    def is_known(self) -> bool:
        """Whether the operator belongs to Paddle or this package: not a user's custom operator."""
        return is_known(self.type)

    @property
    def has_in_place_form(self) -> bool:
        """Whether Paddle may run the operator in place, over an operand without later readers."""
        name = self.type.removeprefix("pd_op.")
        return not name.endswith("_") and hasattr(operators, f"{name}_")

    @property
    def graph(self) -> str:
        """The graph string of an engine operator."""
        return str(self.op.attrs()["graph"])

    @property
    def draws(self) -> bool:
        """Whether the operator is an engine operator whose subgraph samples random numbers."""
        if not self.is_engine:
            return False
        operators = list(Graph.from_string(self.graph).all_ops())
        entries = [kernel_calls.find(o) for o in operators]
        return any(entry is None or entry.draws(op) for entry, op in zip(entries, operators))


class BlockView:
    """The operators of one block with their reads, writes and aliases.

    Args:
        block: Paddle's block.
        aliases: The aliases in its program if they are known.
    """

    def __init__(self, block: Block, aliases: Aliases | None = None) -> None:
        self.block = block
        self.aliases = Aliases.around(block) if aliases is None else aliases
        self.values: dict[str, Value] = {}
        self.producer: dict[str, OpNode] = {}
        self.readers: dict[str, list[OpNode]] = {}
        self._root: dict[str, str] = {}
        self._types: dict[str, tuple[str, tuple[int, ...]]] = {}
        # For each name in the scope, the id of the first value in the block that has this name.
        self._variables: dict[str, str] = {}
        self._aliased_names = _aliased_names(block)
        self._has_sinks = any(op.name() in SINKS for op in block.ops)
        self.nodes = [self._node(op, index) for index, op in enumerate(block.ops)]
        setters = [node for node in self.nodes if node.type == "builtin.set_parameter"]
        self._named = {self.root(vid) for node in setters for vid in node.reads}

    def root(self, vid: str) -> str:
        """The variable that first had the memory of ``vid``: another one for results in place."""
        while vid in self._root:
            vid = self._root[vid]
        return vid

    def memory(self, vid: str) -> str:
        """The name of the memory of ``vid``: equal for variables that share observed memory.

        Only variables of one root have the same contents.
        """
        return self.aliases.memory(vid) or self.root(vid)

    def is_outer(self, vid: str) -> bool:
        """Whether the memory of a variable belongs to a variable of an enclosing block."""
        return self.root(vid) not in self.producer

    def has_aliased_name(self, vid: str) -> bool:
        """Whether another value in the block has the same name in the scope."""
        return self.values[vid].id in self._aliased_names

    def is_named(self, vid: str) -> bool:
        """Whether ``builtin.set_parameter`` stores the variable's memory in the scope, by name."""
        return self.root(vid) in self._named

    def members(self, vid: str) -> list[str]:
        """The variables in a list; ``vid`` itself if it is not a list."""
        value = self.values[vid]
        producer = self.producer.get(vid)
        if value.is_dense_tensor_type() or producer is None or producer.type != "builtin.combine":
            return [vid]
        return producer.reads

    def is_tensor(self, vid: str) -> bool:
        """Whether the variable is a dense tensor."""
        return bool(self.values[vid].is_dense_tensor_type())

    def is_array(self, vid: str) -> bool:
        """Whether the variable is a TensorArray."""
        return bool(self.values[vid].is_dense_tensor_array_type())

    def tensor_types(self, vid: str) -> list[tuple[str, tuple[int, ...]]]:
        """Dtypes and shapes of the dense tensors in a variable: itself, or members of a list."""
        if vid not in self._types:
            return [self._type(each) for each in self.members(vid) if self.is_tensor(each)]
        known = self._types[vid]
        return [] if known[0].endswith(ARRAY_SUFFIX) else [known]

    def spec(self, vid: str, number: int) -> TensorSpec:
        """The dtype and shape of a variable, with ``number`` as its id in a graph."""
        return TensorSpec(number, *self._type(vid))

    def _type(self, vid: str) -> tuple[str, tuple[int, ...]]:
        if vid not in self._types:
            value = self.values[vid]
            suffix = ARRAY_SUFFIX if self.is_array(vid) else ""
            shape = _constant_shape(value)
            shape = value.shape if shape is None else shape
            self._types[vid] = _dtype_of(value) + suffix, _with_unknown_dims(shape)
        return self._types[vid]

    def unpacked(self, value: Value) -> list[str] | None:
        """The ids of the variables in ``value``: that of a tensor, or those of a list's members.

        ``None`` if the members of a list are unknown; empty for an absent value.
        """
        if not value.initialized():
            return []
        if _is_variable(value):
            return [self.known(value)]
        producer = value.get_defining_op()
        if producer is not None and producer.name() == "builtin.combine":
            members = producer.operands_source()
            if all(member.is_dense_tensor_type() for member in members):
                return [self.known(member) for member in members]
        return None

    def result_members(self, value: Value) -> list[str | None] | None:
        """The variables that readers extract from ``value``; ``None`` if they are unknown.

        The members of a list are known if ``builtin.split`` is its only kind of user; a member that
        is never read is ``None``.
        """
        if not value.initialized():
            return [None]
        if _is_variable(value):
            return [self.known(value)]
        members: list[str | None] | None = None
        for user in value.all_used_ops():
            if user.name() == "builtin.split":
                results = user.results()
                members = members or [None] * len(results)
                for i, result in enumerate(results):
                    members[i] = members[i] or self.known(result)
            else:
                return None
        return members

    def all_members(self, value: Value, type: Any) -> Iterator[tuple[str, Any]]:
        """Yields (id, type) of a result or, for a list, of each member.

        A member of a list without a reader has no variable; its id is made from that of the list.
        """
        if type is None:
            return
        if not isinstance(type, list):
            yield self.known(value), type
            return
        members = self.result_members(value) or ()
        for index, each in enumerate(type):
            known = members[index] if index < len(members) else None
            yield known or f"{value_id(value)}[{index}]", each

    def known(self, value: Value) -> str:
        """Registers a variable in the view; returns its id."""
        vid = value_id(value)
        self.values.setdefault(vid, value)
        return vid

    def _node(self, op: Operation, index: int) -> OpNode:
        signals.safe_point()
        node = OpNode(op=op, index=index, type=op.name(), device=device_of(op))
        node.reads = [self.known(value) for value in operands_of(op)]
        node.writes = [self.known(value) for value in op.results() if value.initialized()]
        if op.num_regions() > 0:
            node.captured = list(dict.fromkeys(self.known(value) for value in captured(op)))
            node.reads += node.captured
            node.outer_writes = [self.known(value) for value in _outer_writes(op)]
            node.outer_writes += self._written_under_other_names(node)
            for name, is_written in _named_inside(op):
                if name in self._variables:
                    (node.outer_writes if is_written else node.reads).append(self._variables[name])
        node.writes_inside = list(node.outer_writes)
        if node.type == WHILE:
            # Initial values are treated as written, since Paddle's ``while`` moves them out of
            # their variables.
            node.initial_values = [self.known(value) for value in operands_of(op)[1:]]
            node.outer_writes += node.initial_values
        node.effects = ordering_effects(op)
        for vid in node.writes:
            self.producer[vid] = node
            self._share(node, vid)
        for vid in node.reads:
            self.readers.setdefault(vid, []).append(node)
        node.overwrites = list(self._overwrites(op))
        for operand, result in node.overwrites:
            self._root[result] = operand
        if node.type == "builtin.split":
            self._share_members(node)
        written = [operand for operand, _ in node.overwrites]
        written += [vid for vid in node.initial_values if not self._is_fed(vid)]
        node.writes_variables = any(map(self._is_persistent, written))
        node.is_observed = any(
            self.aliases.is_observed(member)
            for vid in (*(operand for operand, _ in node.overwrites), *node.writes_inside)
            for member in self.members(vid)
        )
        return node

    def _written_under_other_names(self, node: OpNode) -> list[str]:
        """The variables outside of ``node`` that operators inside overwrite through aliases."""
        if not self.aliases:
            return []
        operands = [self.known(value) for value in operands_of(node.op)]
        shared = {vid: self.aliases.memory(vid) for vid in (*operands, *node.captured)}
        if not any(shared.values()):
            return []
        written = {self.aliases.memory(value_id(value)) for value in _written_inside(node.op)}
        return [vid for vid, memory in shared.items() if memory in written - {None}]

    def _share(self, node: OpNode, vid: str) -> None:
        """Records that values with one name in the scope share the memory of the first one."""
        if node.is_source and node.type in SCOPE_NAMES:
            name = node.op.attrs()[SCOPE_NAMES[node.type]]
        elif (name := self._aliased_names.get(self.values[vid].id)) is None:
            return
        first = self._variables.setdefault(name, vid)
        if first == vid:
            return
        if node.is_source:
            self._root[vid] = first
        else:
            node.outer_writes.append(first)

    def _share_members(self, node: OpNode) -> None:
        """Records that members of a list share memory with the members that it overwrites."""
        for read in node.reads:
            members = self.members(self.root(read))
            if read in self._root and len(members) == len(node.writes):
                self._root.update(zip(node.writes, members))

    def _is_persistent(self, vid: str) -> bool:
        members = self.members(vid)
        producers = [self.producer.get(self.root(member)) for member in members]
        return any(producer is None or producer.is_source for producer in producers) or any(
            map(self.aliases.is_lasting, members)
        )

    def _is_fed(self, vid: str) -> bool:
        producer = self.producer.get(self.root(vid))
        return producer is not None and is_fed(producer.op)

    def _overwrites(self, op: Operation) -> Iterator[tuple[str, str]]:
        for operand, result in overwritten(op):
            yield self.known(operand), self.known(result)

    def is_result(self, node: OpNode) -> bool:
        """Whether ``node`` has no readers, so that a caller may fetch its results.

        ``False`` in a program with sinks, which name what is fetched.
        """
        if self._has_sinks or any(map(self.is_array, node.writes)):
            return False
        return not any(self.readers.get(vid) for vid in node.writes)

    def is_overwritten(self, vid: str) -> bool:
        """Whether an operator of the block writes its result to the memory of the variable.

        For observed memory: of any block.
        """
        return self.aliases.is_observed(vid) or any(
            vid == operand
            for reader in self.readers.get(vid, ())
            for operand in [*(o for o, _ in reader.overwrites), *reader.outer_writes]
            if operand not in reader.initial_values
        )


def _is_variable(value: Value) -> bool:
    """Whether a value is a tensor or a TensorArray, and not a list of them."""
    return bool(value.is_dense_tensor_type() or value.is_dense_tensor_array_type())


def scope_name(op: Operation) -> str:
    """The name of the scope variable that an operator reads, writes or is fed."""
    return str(op.attrs()[SCOPE_NAMES.get(op.name(), "name")])


def is_fed(op: Operation) -> bool:
    """Whether the result of an operator is a variable that each run feeds."""
    return op.name() in FEEDS and not any(op.attrs().get("persistable", ()))


def _aliased_names(block: Block) -> dict[int, str]:
    """Names in the scope of values that share their name with other values in the block."""
    named = [
        (scope_name(op), op.operand_source(0).id)
        for op in block.ops
        if op.name() in SCOPE_WRITERS and op.name() in SCOPE_NAMES
    ]
    names = Counter(name for name, _ in named)
    names.update(
        scope_name(op) for op in block.ops if op.name() in SOURCES and op.name() in SCOPE_NAMES
    )
    return {value: name for name, value in named if names[name] > 1}


def _named_inside(op: Operation) -> Iterator[tuple[str, bool]]:
    """Yields (name, is written) of the scope variables that operators inside ``op`` name."""
    for block in op.blocks():
        sources = {}
        for inner in block.ops:
            name = SCOPE_NAMES.get(inner.name())
            if inner.name() in SOURCES and name is not None:
                sources[value_id(inner.results()[0])] = inner.attrs()[name]
            elif name is not None:
                yield inner.attrs()[name], True
            for operand, _ in overwritten(inner):
                if value_id(operand) in sources:
                    yield sources[value_id(operand)], True
            yield from _named_inside(inner)
        yield from ((name, False) for name in sources.values())


def put_before(op: Operation, name: str, operands: list[Any], attributes: list[Any]) -> Value:
    """Inserts an operator before ``op`` in its block; returns its only result.

    Operands and attributes are as in ``_core.append_operator``.
    """
    block = op.get_parent_block()
    (result,) = _core.append_operator(block, name, operands, None, attributes, before=op)
    return result


def is_overwritten(value: Value) -> bool:
    """Whether an operator writes to the memory of ``value``, under its own or another name."""
    users = value.all_used_ops()
    if any(operand.is_same(value) for op in users for operand, _ in overwritten(op)):
        return True
    may_have_aliases = any(may_share(op) or op.name() == YIELD for op in users)
    producer = value.get_defining_op()
    if producer is None or not may_have_aliases:
        return False
    return Aliases.around(producer.get_parent_block()).is_observed(value_id(value))


def ordering_effects(op: Operation) -> frozenset[str]:
    """The effects of an operator: some of ``DRAW``, ``ACT`` and ``COMMUNICATE``.

    Operators that share an effect keep their order; see ``effects`` in :class:`OpNode`.
    """
    name = op.name()
    if op.has_attr(RING_ATTRIBUTE) or name.removesuffix("_") in _COMMUNICATION:
        return frozenset({COMMUNICATE})
    if op.num_regions() > 0:
        inner = [ordering_effects(inner) for block in op.blocks() for inner in block.ops]
        return frozenset({ACT}).union(*inner)
    if is_engine(name):
        return frozenset({DRAW})
    if is_legacy_operator(name):
        return legacy_effects(op) & {DRAW, ACT, COMMUNICATE}
    if is_packed(name):
        return (
            frozenset({DRAW})
            if _has_dropout(op.attrs()) and not name.endswith("_grad")
            else frozenset()
        )
    if name == "pd_op.py_func" or not name.startswith(("pd_op.", "builtin.", "cf.")):
        return frozenset({ACT, DRAW})
    if name in _SIDE_EFFECTS or name.startswith("cf."):
        return frozenset({ACT})
    if not is_random(name) or op.attrs().get("is_test", False):
        return frozenset()
    if name == "pd_op.rnn" and not _has_dropout(op.attrs()):
        return frozenset()
    return frozenset({DRAW})


def _has_dropout(attributes: Mapping[str, Any]) -> bool:
    """Whether a recurrent operator applies dropout between its layers, so that it samples."""
    drops = attributes["dropout_prob"] > 0 and attributes["num_layers"] > 1
    return bool(drops and not attributes["is_test"])


def _outer_writes(op: Operation) -> Iterator[Value]:
    """Yields variables of enclosing blocks that operators inside ``op`` overwrite."""
    outer = {value_id(value) for value in captured(op)} if op.num_regions() else set()
    for block in op.blocks():
        for inner in block.ops:
            operands = [operand for operand, _ in overwritten(inner)]
            for value in [*operands, *_outer_writes(inner)]:
                if value_id(value) in outer:
                    yield value


def _written_inside(op: Operation) -> Iterator[Value]:
    """Yields the variables that operators inside ``op`` overwrite."""
    for block in op.blocks() if op.num_regions() > 0 else ():
        for inner in block.ops:
            yield from (operand for operand, _ in overwritten(inner))
            yield from _written_inside(inner)


def nodes_of(program: Program | Block) -> Iterator[OpNode]:
    """The operators of all blocks of a program, or of a block and those inside."""
    for view in _views(program):
        yield from view.nodes


def _views(program: Program | Block) -> Iterator[BlockView]:
    aliases = None
    for block in blocks_outermost_first(program):
        view = BlockView(block, aliases)
        aliases = view.aliases
        yield view


def has_engines(program: Program | Block) -> bool:
    """Whether a program contains engine operators."""
    return any(
        is_engine(op.name()) for block in blocks_outermost_first(program) for op in block.ops
    )


def has_bfloat16(program: Program) -> bool:
    """Whether some operator of a program, in loops and branches too, has a bfloat16 result."""
    blocks = blocks_outermost_first(program)
    results = (value for block in blocks for op in block.ops for value in op.results())
    tensors = (each for each in results if each.initialized() and each.is_dense_tensor_type())
    return any(dtype_name(each.dtype) == BFLOAT16 for each in tensors)


def can_be_placed(op: Operation) -> bool:
    """Whether an operator computes something, so that it can be placed on a device."""
    return op.name() not in SOURCES | SINKS | LISTS | CONSTANTS


def mark_sequential(program: Program) -> None:
    """Marks a program, whose operators then run one by one in program order, in one thread."""
    _mark(program, _SEQUENTIAL_MARK)


def is_sequential(program: Program) -> bool:
    """Whether a program, or the one it is a copy of, was marked by :func:`mark_sequential`."""
    return _is_marked(program, _SEQUENTIAL_MARK)


def mark_trained_elsewhere(program: Program) -> None:
    """Marks a program whose functions retain no weights, since another program updates these."""
    _mark(program, _TRAINED_MARK)


def is_trained_elsewhere(program: Program) -> bool:
    """Whether a program, or the one it copies, was marked by :func:`mark_trained_elsewhere`."""
    return _is_marked(program, _TRAINED_MARK)


def _mark(program: Program, mark: str) -> None:
    for block in blocks_outermost_first(program):
        for op in block.ops:
            if op.name().startswith("pd_op.") and mark not in _marks(op):
                attribute = op.str_attr(PLACE_ATTRIBUTE) if op.has_attr(PLACE_ATTRIBUTE) else ""
                op.set_str_attr(PLACE_ATTRIBUTE, attribute + mark)


def _is_marked(program: Program, mark: str) -> bool:
    return any(mark in _marks(op) for op in program.global_block().ops)


def _marks(op: Operation) -> str:
    found = _MARKS.search(op.str_attr(PLACE_ATTRIBUTE)) if op.has_attr(PLACE_ATTRIBUTE) else None
    return found[0] if found else ""


def _writes_results_only(program: Program | Block) -> bool:
    """Whether operators of a program, which has one block, write nothing but their results.

    A look at operators alone, which takes a small part of the time of a :class:`BlockView`.
    """
    block = next(iter(blocks_outermost_first(program)))
    return not any(
        op.num_regions() > 0
        or op.name() in SCOPE_WRITERS
        or _may_write_unnamed(op)
        or next(overwritten(op), None) is not None
        for op in block.ops
    )


def _may_write_unnamed(op: Operation) -> bool:
    """Whether an operator may write variables that are not its operands."""
    name = op.name()
    if is_legacy_operator(name):
        return ACT in legacy_effects(op)
    return not is_known(name) or name in _IMPLICIT_WRITERS


def may_write_variables(program: Program | Block) -> bool:
    """Whether running a PIR program may write a variable that outlives the run."""
    return not _writes_results_only(program) and any(
        node.may_write_variables for node in nodes_of(program)
    )


def must_run_sequentially(nodes: Collection[OpNode], drawing: int) -> bool:
    """Whether rewritten programs have to run in program order, which Paddle would not preserve.

    Args:
        nodes: All operators.
        drawing: The number of engine operators that sample random numbers.
    """
    # If an engine operator samples, and another operator too, the order has to be enforced: Paddle
    # keeps the order of its own stochastic operators only.
    native = sum(not node.is_engine and DRAW in node.effects for node in nodes)
    if drawing > 0 and drawing + native > 1:
        return True
    # Program order also has to be enforced for writes of sub-blocks and to observed memory, for
    # operators that communicate, and for what operators of ProgramDesc programs overwrite, and
    # their effects: Paddle's executor ignores all of these.
    return any(
        node.writes_outer_variables
        or node.is_observed
        or COMMUNICATE in node.effects
        or (is_legacy_operator(node.type) and (node.effects or node.overwrites))
        for node in nodes
    )


def may_share_memory(nodes: Collection[OpNode]) -> bool:
    """Whether Paddle's in-place pass, which knows one name of a memory, would overwrite variables.

    It lets the last reader of a variable overwrite memory that also has a view, or another name
    by an operator in place, which is read later.
    """
    places = {node.op.id(): place for place, node in enumerate(nodes)}
    return any(
        node.is_observed or node.type in VIEWS or _leaves_two_names(node, places) for node in nodes
    )


def _leaves_two_names(node: OpNode, places: Mapping[int, int]) -> bool:
    """Whether both an operand and the result that overwrites it are read after an operator."""
    place = places[node.op.id()]
    return any(
        not result.use_empty()
        and any(places.get(user.id(), -1) > place for user in member.all_used_ops())
        for operand, result in overwritten(node.op)
        for member in members_of(operand)
    )


def changes_parameters(program: Program | Block) -> bool:
    """Whether an operator of a program, in any block, writes a parameter or an alias of one."""
    if _writes_results_only(program):
        return False
    views = list(_views(program))
    sources = [node for view in views for node in view.nodes if node.type == "builtin.parameter"]
    parameters = {views[0].memory(vid) for node in sources for vid in node.writes}
    for view in views:
        for node in view.nodes:
            written = [*(operand for operand, _ in node.overwrites), *node.outer_writes]
            if any(view.memory(m) in parameters for vid in written for m in view.members(vid)):
                return True
            if node.type in SCOPE_WRITERS or _may_write_unnamed(node.op):
                return True
    return False


def describe(
    view: BlockView,
    node: OpNode,
    tensor_ids: dict[str, int],
    omitted: Collection[str] = (),
) -> Op | str:
    """Returns the operator as converters see it, or the reason why it cannot be described.

    Args:
        view: The block.
        node: One of its operators.
        tensor_ids: Ids of variables in the graph; extended as needed.
        omitted: Outputs that the converter does not produce: omitted if they have no reader.
    """
    if node.type in REGIONS:
        return _describe_region(view, node, tensor_ids)
    op = Op(type=node.type, index=node.index)
    try:
        input_names, output_names = node.op.get_input_names(), node.op.get_output_names()
    except ValueError:
        return "its inputs have no names"

    def spec(vid: str) -> TensorSpec:
        return view.spec(vid, tensor_ids.setdefault(vid, len(tensor_ids)))

    for name, value in zip(input_names, node.op.operands_source()):
        members = view.unpacked(value)
        if members is None:
            return f"input '{name}' is not a dense tensor"
        op.inputs[name] = tuple(spec(vid) for vid in members)
        constant = constant_of(view, members)
        if constant is not None:
            op.constants[name] = constant
    states = {result for _, result in node.overwrites}
    for name, value in zip(output_names, node.op.results()):
        if not value.initialized() and not value.use_empty():
            return f"output '{name}' is absent, but still used"
        if not value.initialized():
            op.outputs[name] = ()
            continue
        results = view.result_members(value)
        if results is None and value.use_empty() and not view.is_result(node):
            # Nothing reads the list, so that its members need not be known.
            results = []
        if results is None:
            return f"output '{name}' is not a dense tensor"
        wanted = view.is_result(node) and name not in omitted
        op.outputs[name] = tuple(
            spec(vid) if vid and (wanted or vid in states or view.readers.get(vid)) else None
            for vid in results
        )
    try:
        _describe_form(view, node, op, tensor_ids)
    except NgraphError as error:
        # The reason why the graph cannot describe the operator for Paddle, such as a complex dtype.
        return str(error)
    return op


def slots(view: BlockView, node: OpNode) -> list[tuple[str, str]]:
    """(input name, variable id) of every tensor that an operator reads, in operand order."""
    if node.type in REGIONS:
        cond, *_ = map(value_id, operands_of(node.op))
        return [
            (COND, cond),
            *((INITIAL_VALUES, vid) for vid in node.initial_values),
            *((CAPTURED, vid) for vid in node.captured),
        ]
    try:
        names = node.op.get_input_names()
    except ValueError:  # an operator without a table of its inputs has no names: it falls back
        return []
    inputs = zip(names, node.op.operands_source())
    return [(name, vid) for name, value in inputs for vid in view.unpacked(value) or ()]


def _describe_region(view: BlockView, node: OpNode, tensor_ids: dict[str, int]) -> Op | str:
    """Describes a loop or a branch like :func:`describe`, but without its bodies."""

    def spec(vid: str) -> TensorSpec:
        return view.spec(vid, tensor_ids.setdefault(vid, len(tensor_ids)))

    arrays = {vid for vid in node.captured if view.is_array(vid)}
    if not all(map(view.is_tensor, {*node.reads, *node.writes} - arrays)):
        return "it yields a value that is not a dense tensor"
    op = Op(type=node.type, index=node.index)
    op.inputs = {COND: (), INITIAL_VALUES: (), CAPTURED: ()}
    for name, vid in slots(view, node):
        op.inputs[name] += (spec(vid),)
    results = tuple(map(spec, node.writes))
    is_wanted = view.is_result(node) or bool(node.writes_inside)
    is_read = [is_wanted or bool(view.readers.get(vid)) for vid in node.writes]
    op.outputs = {OUT: tuple(s if read else None for s, read in zip(results, is_read))}
    op.form = FallbackForm(results={OUT: results})
    return op


def _describe_form(view: BlockView, node: OpNode, op: Op, tensor_ids: dict[str, int]) -> None:
    """Adds the attributes and types for a run by Paddle. Raises NgraphError if unknown."""
    attribute_types = {}
    for name, attribute_type, value in _core.attributes_of(node.op):
        op.attrs[name] = value
        if attribute_type is not None:
            attribute_types[name] = attribute_type
    inputs = zip(node.op.get_input_names(), node.op.operands_source())
    input_lists = {name for name, v in inputs if v.initialized() and not _is_variable(v)}
    output_lists: set[str] = set()
    results = {}
    names, values = node.op.get_output_names(), node.op.results()
    for name, value, type in zip(names, values, _core.result_types(node.op)):
        if isinstance(type, list):
            output_lists.add(name)
        results[name] = tuple(
            TensorSpec(
                tensor_ids.setdefault(vid, len(tensor_ids)), dtype, _with_unknown_dims(shape)
            )
            for vid, (dtype, shape) in view.all_members(value, type)
        )
    op.form = FallbackForm(
        attribute_types, (frozenset(input_lists), frozenset(output_lists)), {}, results
    )


def _dtype_of(value: Value) -> str:
    """The dtype that a variable has in a run: of some results, programs declare another one."""
    declared, producer = dtype_name(value.dtype), value.get_defining_op()
    if producer is None or producer.name() not in kernel_calls.WRONGLY_DECLARED:
        return declared
    first = dtype_name(producer.operand_source(0).dtype)
    for name, result in zip(producer.get_output_names(), producer.results()):
        if value.is_same(result):
            return kernel_calls.made_dtype(producer.name(), name, first) or declared
    return declared


def _constant_shape(value: Value) -> Sequence[int] | None:
    """The shape of a constant or of a copy of one; ``None`` for other variables.

    In a translated ProgramDesc, Paddle may declare another one: a placeholder is declared as what a
    loop later assigns to its variable.
    """
    producer = value.get_defining_op()
    while producer is not None and producer.name() == "pd_op.assign":
        producer = producer.operand_source(0).get_defining_op()
    if producer is None or producer.name() not in _SHAPED_CONSTANTS:
        return None
    shape: Sequence[int] = producer.attrs()["shape"]
    return shape


def _with_unknown_dims(shape: Sequence[int]) -> tuple[int, ...]:
    # Every negative dimension becomes -1: Paddle multiplies dynamic dimensions, so that four
    # instances of -1 become -4.
    return tuple(max(dim, -1) for dim in shape)


def constant_of(view: BlockView, members: list[str]) -> list[float] | list[int] | None:
    """The contents of constants of rank 0 or 1, if the program defines them by attributes."""
    contents: list[Any] = []
    for vid in members:
        producer = view.producer.get(vid)
        if producer is None or producer.type not in CONSTANTS or view.aliases.is_observed(vid):
            return None
        attributes = producer.op.attrs()
        value = attributes["value"]
        if producer.type == "pd_op.full":
            shape = tuple(attributes["shape"])
            if shape not in ((), (1,)):
                return None
            value = [value]
        dtype = dtype_name(attributes["dtype"])
        contents += [integer_in(dtype, v) if dtype.startswith("int") else v for v in value]
    return contents if members and None not in contents else None
