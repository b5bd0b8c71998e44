"""Kinds of operators, and the variables that an operator overwrites by its own declaration."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from paddle_ngraph import _core
from paddle_ngraph.ops.normalization import uses_running_statistics
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value

# Types of operators that compute nothing: their result is a variable of the scope, a feed or a
# constant.
SOURCES = frozenset(
    {
        "pd_op.data",
        "pd_op.feed",
        "builtin.parameter",
        "builtin.constant",
    }
)
# Types of operators whose result may be fed: see SOURCES.
FEEDS = frozenset({"pd_op.data", "pd_op.feed"})
# Type of the terminator of a loop body or branch: its operands are the results.
YIELD = "cf.yield"
# Types of operators that compute nothing: they store a variable in the scope, or yield it.
SINKS = frozenset(
    {
        "pd_op.fetch",
        "pd_op.shadow_output",
        "builtin.shadow_output",
        "builtin.set_parameter",
        YIELD,
    }
)
# Types of operators that combine variables to a list, and take lists apart.
LISTS = frozenset({"builtin.combine", "builtin.split", "builtin.slice"})
# Types of operators with bodies. A body may read variables of the enclosing blocks.
WHILE, IF = "pd_op.while", "pd_op.if"
REGIONS = frozenset({WHILE, IF})
# Operators that name a variable of the scope in a PIR program, and the attribute with the name.
SCOPE_NAMES = {
    "pd_op.data": "name",
    "builtin.parameter": "parameter_name",
    "builtin.set_parameter": "parameter_name",
    "builtin.shadow_output": "output_name",
}
# Types of operators that write a variable of the scope, which may have existed before the run.
SCOPE_WRITERS = frozenset({"pd_op.shadow_output", "builtin.shadow_output", "builtin.set_parameter"})
ENGINE_PREFIX = "custom_op.ngraph_engine_"
# Prefix of the types of recurrent layers with packed weights, which run as they are: the program
# pass does not convert them.
PACKED_PREFIX = "custom_op.mkl_packed_"
# Prefix of the types of the operators that run an operator of a ProgramDesc program.
LEGACY_PREFIX = "custom_op.ngraph_legacy_operator_"
# The effect of an operator of a ProgramDesc program that calls a Python function of the user.
CALLS_PYTHON = "python"
# (input, result) of the running statistics, which share memory although Paddle does not declare
# them in place.
_STATISTICS = {"pd_op.batch_norm_": [("mean", "mean_out"), ("variance", "variance_out")]}


def is_engine(op_name: str) -> bool:
    """Whether an operator of type ``op_name`` is an engine operator."""
    return op_name.startswith(ENGINE_PREFIX)


def is_packed(op_name: str) -> bool:
    """Whether an operator type is a recurrent layer with packed weights, or its gradient."""
    return op_name.startswith(PACKED_PREFIX)


def is_legacy_operator(op_name: str) -> bool:
    """Whether an operator of type ``op_name`` runs an operator of a ProgramDesc program."""
    return op_name.startswith(LEGACY_PREFIX)


def is_known(op_name: str) -> bool:
    """Whether an operator type belongs to Paddle or this package: not a user's custom operator."""
    is_paddles = op_name.startswith(("pd_op.", "builtin.", "cf."))
    return is_paddles or is_engine(op_name) or is_packed(op_name) or is_legacy_operator(op_name)


def blocks_outermost_first(program: Program | Block) -> Iterator[Block]:
    """Yields every block of a program (or inside a block), outer blocks before inner ones."""
    pending = [program.global_block() if hasattr(program, "global_block") else program]
    while pending:
        block = pending.pop(0)
        yield block
        pending += [inner for op in block.ops if op.num_regions() > 0 for inner in op.blocks()]


def value_id(value: Value) -> str:
    """The id of a variable of a program, which is valid until the program is changed."""
    return str(value.id)


def dtype_name(dtype: Hashable) -> str:
    """Paddle's name of a dtype, e.g. ``"float32"``."""
    return str(dtype).rpartition(".")[2].lower()


def overwritten(op: Operation) -> Iterator[tuple[Value, Value]]:
    """Yields (operand, result) for each output that ``op`` computes in place."""
    if is_legacy_operator(op.name()):
        yield from _overwritten_members(op)
        return
    pairs = pairs_in_place(op)
    if not pairs:
        return
    inputs, outputs = op.get_input_names(), op.get_output_names()
    for name_in, name_out in pairs:
        operand = op.operand_source(inputs.index(name_in))
        result = op.result(outputs.index(name_out))
        if not operand.initialized() or not result.initialized():
            continue
        if op.name() in _STATISTICS and result.use_empty() and uses_running_statistics(op.attrs()):
            continue
        yield operand, result


def _overwritten_members(op: Operation) -> Iterator[tuple[Value, Value]]:
    """The members of its list of operands that an operator of a ProgramDesc program overwrites."""
    pairs = str(op.attrs()["overwrites"]).split()
    members = op.operand_source(0).get_defining_op() if pairs else None
    if members is not None:
        for operand, result in (map(int, pair.split(":")) for pair in pairs):
            yield members.operand_source(operand), op.result(result)


def legacy_effects(op: Operation) -> frozenset[str]:
    """The effects of an operator that runs one of a ProgramDesc program."""
    return frozenset(str(op.attrs()["effects"]).split())


def pairs_in_place(op: Operation) -> list[tuple[str, str]]:
    """(input name, output name) of every output that this operator type writes over an input."""
    if not op.name().endswith("_"):
        return []
    return _core.inplace_pairs(op) or _STATISTICS.get(op.name(), [])


def operands_of(op: Operation) -> list[Value]:
    """The operands of an operator that are present."""
    return [value for value in op.operands_source() if value.initialized()]


def captured(op: Operation) -> Iterator[Value]:
    """Yields variables of enclosing blocks that operators inside ``op`` read."""
    for block in op.blocks():
        inside: set[str] = {value_id(arg) for arg in block.args()}
        for inner in block.ops:
            for value in [*operands_of(inner), *captured(inner)]:
                if value_id(value) not in inside:
                    yield value
            inside.update(value_id(v) for v in inner.results() if v.initialized())
