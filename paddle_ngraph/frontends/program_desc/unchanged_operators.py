"""ProgramDesc operators that the translated program runs unchanged.

Paddle's translator has no counterpart for such an operator. So it is replaced, before the
translation, by a placeholder with the same variables that the translator accepts; in the translated
program, the placeholder is replaced by a custom operator (partitioning/legacy_operators.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from paddle_ngraph import _core
from paddle_ngraph.frontends.program_desc.single_assignment import (
    NotTranslatable,
    blocks,
    copy_variable,
    declared,
    operators,
)
from paddle_ngraph.ir.graph import is_random
from paddle_ngraph.paddle_private.names import (
    AttrType,
    VarType,
    block_number,
    insert_operator,
    make_persistable,
    producer_of,
)
from paddle_ngraph.paddle_private.protocols import (
    LegacyBlock,
    LegacyOperator,
    LegacyProgramDesc,
    Operation,
    Program,
    Value,
)
from paddle_ngraph.partitioning import legacy_operators
from paddle_ngraph.partitioning.analysis.block_view import blocks_outermost_first

# The type of placeholders, of which inputs and outputs are lists; the first input is the mark.
PLACEHOLDER = "broadcast_tensors"
_MARK = "@legacy_operator@"
# The slot of the variables that operators in the block of a loop or branch read.
_READ_SLOTS = {"while": "X", "conditional_block": "Input"}
# Attributes by which operators that communicate, or read a file, are recognized.
_OUTSIDE = ("ring_id", "file_path")
# Attributes of operators that communicate if the attribute is set.
_REMOTE = ("endpoints", "epmap")
# Types of attributes that refer to blocks of the program, which a single operator does not have.
_REFERENCES = frozenset({AttrType.BLOCK, AttrType.BLOCKS})
# Operators that call Python, whose errors and Ctrl-C have to reach the caller, or that print the
# names of their variables.
_SHOWN = {
    "print": "prints the name of its variable, in an order",
    "py_func": "calls Python, whose errors reach the caller",
}
# Kinds of variables that a custom operator cannot have.
_KINDS = {
    VarType.DENSE_TENSOR_ARRAY: "a TensorArray",
    VarType.SELECTED_ROWS: "rows of a sparse gradient",
    VarType.STEP_SCOPES: "the scopes of a block",
}
# Samplers that draw from a generator of their own in each run, if their seed is not 0.
SEEDED = frozenset(
    {
        *("gaussian_inplace", "gaussian_random", "randint", "seed", "truncated_gaussian_random"),
        *("uniform_random", "uniform_random_batch_size_like", "uniform_random_inplace"),
    }
)


@dataclass(frozen=True)
class Unchanged:
    """An operator that has been replaced by a placeholder.

    Attributes:
        text: Its description.
        type: Its type.
        reason: Why it is not translated.
        outputs: The number of its outputs.
    """

    text: str
    type: str
    reason: str
    outputs: int


def replace(
    description: LegacyProgramDesc, block: LegacyBlock, op: LegacyOperator, mark: int, reason: str
) -> Unchanged:
    """Replaces ``op``, in place, by a placeholder.

    Args:
        description: The program.
        block: The block of the operator.
        op: The operator.
        mark: The number of the operator, by which :func:`insert` finds it again.
        reason: Why it is not translated.

    Raises:
        NotTranslatable: The operator cannot run on its own.
    """
    text, inputs, outputs = legacy_operators.described(op, block)
    obstacle = _obstacle_to(block, op, inputs, outputs)
    if obstacle is not None:
        raise NotTranslatable(f"{reason}; {op.type()} cannot stay as it is, since it {obstacle}")
    unchanged = Unchanged(text, op.type(), reason, len(outputs))
    variable = description.block(0).var(f"{_MARK}{mark}".encode())
    variable.set_type(VarType.DENSE_TENSOR)
    variable.set_dtype(VarType.FP32)
    variable.set_shape([1])
    variable.set_persistable(True)
    _pass_into(description, block, variable.name())
    for slot in op.input_names():
        op.remove_input(slot)
    for slot in op.output_names():
        op.remove_output(slot)
    for name in op.attr_names(True):
        op.remove_attr(name)
    op.set_type(PLACEHOLDER)
    op.set_input("X", [variable.name(), *inputs])
    op.set_output("Out", _assigned(block, op, f"{variable.name()}@", outputs))
    return unchanged


def _pass_into(description: LegacyProgramDesc, block: LegacyBlock, name: str) -> None:
    """Makes a variable of the outermost block an input of the loops and branches around a block."""
    for outer in blocks(description):
        for op in operators(outer):
            if op.type() in _READ_SLOTS and block_number(op, "sub_block") == block.id:
                slot = _READ_SLOTS[op.type()]
                # Once, since operators of a damaged program may share a block, or contain it.
                if name not in op.input(slot):
                    op.set_input(slot, [*op.input(slot), name])
                    _pass_into(description, outer, name)


def _assigned(block: LegacyBlock, op: LegacyOperator, prefix: str, names: list[str]) -> list[str]:
    """Inserts assignments of new variables to ``names`` after ``op``; returns the new names.

    Paddle's translator takes members out of lists for operators that compute, not for branches.
    """
    position = next(i for i, other in enumerate(operators(block)) if other is op) + 1
    members = [f"{prefix}{index}" for index in range(len(names))]
    for member, name in zip(members, names):
        copy_variable(block, declared(block, name), member)
        assign = insert_operator(block, position)
        assign.set_type("assign")
        assign.set_input("X", [member])
        assign.set_output("Out", [name])
    return members


def is_placeholder(op: LegacyOperator) -> bool:
    """Whether an operator is the placeholder of another one."""
    return op.type() == PLACEHOLDER and is_mark(op.input("X")[0])


def is_mark(name: str) -> bool:
    """Whether a variable is the mark of a placeholder, and none of the program."""
    return name.startswith(_MARK)


def insert(program: Program, replaced: dict[int, Unchanged]) -> None:
    """Replaces the placeholders of a translated program by operators that run the unchanged ones.

    Args:
        program: The translated program.
        replaced: The results of :func:`replace`, by their number.

    Raises:
        NotTranslatable: The translation has lost a placeholder.
    """
    marks: dict[int, Operation] = {}
    left = dict(replaced)
    for block in blocks_outermost_first(program):
        for op in [op for op in block.ops if op.name() == f"pd_op.{PLACEHOLDER}"]:
            joined = producer_of(op.operand_source(0))
            source = producer_of(joined.operand_source(0))
            number = _number(source)
            if number is not None:
                marks[number] = source
                _insert_operator(op, joined, left.pop(number))
    if left:
        raise NotTranslatable("Paddle cannot translate it")
    for source in marks.values():
        source.get_parent_block().remove_op(source)


def _number(source: Operation) -> int | None:
    name = str(source.attrs().get("parameter_name", ""))
    return int(name.removeprefix(_MARK)) if name.startswith(_MARK) else None


def _insert_operator(op: Operation, joined: Operation, unchanged: Unchanged) -> None:
    block = op.get_parent_block()
    mark, *operands = joined.operands_source()
    type = legacy_operators.type_of(unchanged.outputs)
    like = [mark] * legacy_operators.capacity_of(type)
    readers = op.result(0).all_used_ops()
    members = [member for reader in readers for member in _members(reader)]
    assigns = [reader for _, value in members for reader in value.all_used_ops()]
    for index, value in members:
        like[index] = value
    listed = [_core.insert_combine(op, operands) if operands else None]
    attributes: dict[str, bool | int | float | str] = {
        "operator": unchanged.text,
        "type": unchanged.type,
        "reason": unchanged.reason,
    }
    results = _core.insert_operator(op, type, listed, like, attributes)
    for index, value in members:
        value.replace_all_uses_with(results[index])
    for assign in assigns:
        if assign.name() == "pd_op.assign":
            assigned, source = assign.result(0), assign.operand_source(0)
            if assigned.persistable:
                make_persistable(source)
            assigned.replace_all_uses_with(source)
            block.remove_op(assign)
    for each in [*readers, op, joined]:
        block.remove_op(each)


def _members(reader: Operation) -> list[tuple[int, Value]]:
    """The members of a list that a reader of the list takes from it, with their indices."""
    if reader.name() == "builtin.split":
        return list(enumerate(reader.results()))
    if reader.name() == "builtin.slice":
        return [(int(reader.attrs()["index"]), reader.result(0))]
    raise NotTranslatable("Paddle cannot translate it")


def _obstacle_to(
    block: LegacyBlock, op: LegacyOperator, inputs: list[str], outputs: list[str]
) -> str | None:
    """The reason why a custom operator cannot run an operator; ``None`` if one can.

    Paddle's passes may merge, drop or reorder custom operators, so it must not sample or
    communicate.
    """
    if op.type() in _SHOWN:
        return _SHOWN[op.type()]
    if _samples(op):
        return "draws from the generator of all samplers"
    if any(map(op.has_attr, _OUTSIDE)):
        return "communicates, or reads or writes a file"
    if any(op.has_attr(name) and op.attr(name) for name in _REMOTE):
        return "communicates"
    if any(op.attr_type(name, True) in _REFERENCES for name in op.attr_names(True)):
        return "runs a block of the program"
    if not legacy_operators.holds_numbers(op):
        return "has a variable that holds no number in place of an attribute"
    variables = [block.find_var_recursive(name.encode()) for name in (*inputs, *outputs)]
    types = {None if variable is None else variable.type() for variable in variables}
    if others := types - {VarType.DENSE_TENSOR}:
        kinds = sorted({_KINDS.get(each, "a variable of another kind") for each in others})
        return f"reads or writes {', '.join(kinds)}"
    if not 0 < len(outputs) <= legacy_operators.MAX_OUTPUTS:
        return f"has {len(outputs)} results"
    return None


def _samples(op: LegacyOperator) -> bool:
    """Whether an operator may draw random numbers from a generator that it shares with others."""
    if op.type() in SEEDED and op.has_attr("seed") and op.attr("seed"):
        return False
    has_seed = op.has_attr("seed") or is_random(f"pd_op.{op.type()}")
    return has_seed and not (op.has_attr("is_test") and op.attr("is_test"))
