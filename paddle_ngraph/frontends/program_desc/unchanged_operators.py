"""ProgramDesc operators that the translated program runs unchanged.

Paddle's translator has no counterpart for such an operator. So it is replaced, before the
translation, by a placeholder with the same variables that the translator accepts; in the translated
program, the placeholder is replaced by a custom operator (partitioning/legacy_operators.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.frontends.program_desc.chains import Chains
from paddle_ngraph.frontends.program_desc.single_assignment import (
    NotTranslatable,
    blocks,
    copy_variable,
    declared,
    operators,
)
from paddle_ngraph.paddle_private.names import (
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
    LegacyVariable,
    Operation,
    Program,
    Value,
)
from paddle_ngraph.partitioning import legacy_operators, operator_chains
from paddle_ngraph.partitioning.analysis.block_view import blocks_outermost_first

# The type of placeholders, of which inputs and outputs are lists; the first input is the mark.
PLACEHOLDER = "broadcast_tensors"
_MARK = "@legacy_operator@"
# The slot of the variables that operators in the block of a loop or branch read.
_READ_SLOTS = {"while": "X", "conditional_block": "Input"}
# The variables of a chain: the number of the run, and what orders its operators.
_RUN, _LINK = f"{_MARK}run", f"{_MARK}link"
# The numbers of the placeholders of the operators that begin and end a run.
_BEGIN, _END = -1, -2


@dataclass(frozen=True)
class Unchanged:
    """An operator that has been replaced by a placeholder.

    Attributes:
        text: Its description.
        type: Its type.
        reason: Why it is not translated.
        outputs: The number of its outputs.
        effects: Its effects.
        kept: (operand, output) of each variable that it overwrites.
    """

    text: str
    type: str
    reason: str
    outputs: int
    effects: frozenset[str] = frozenset()
    kept: tuple[tuple[int, int], ...] = ()


def replace(
    description: LegacyProgramDesc,
    block: LegacyBlock,
    op: LegacyOperator,
    mark: int,
    reason: str,
    chains: Chains | None = None,
) -> Unchanged:
    """Replaces ``op``, in place, by a placeholder.

    Args:
        description: The program.
        block: The block of the operator.
        op: The operator.
        mark: The number of the operator, by which :func:`insert` finds it again.
        reason: Why it is not translated.
        chains: The operators of the program that can only run in a chain; ``None``: it has none.

    Raises:
        NotTranslatable: The operator cannot stay as it is.
    """
    effects: frozenset[str] = frozenset()
    if chains is None or not (chains.needs_chain(mark) or not legacy_operators.holds_numbers(op)):
        text, inputs, outputs = legacy_operators.described(op, block)
    else:
        unit, effects = chains.unit(mark), chains.effects(mark)
        text, inputs, outputs = unit.text, [_RUN, _LINK, *unit.inputs], [_LINK, *unit.outputs]
        chains.empty(description, mark)
        _declare(description, _RUN, VarType.INT64)
        _declare(description, _LINK, VarType.INT64)
        for name in (_RUN, _LINK):
            _pass_into(description, block, name)
    if not 0 < len(outputs) <= legacy_operators.MAX_OUTPUTS:
        why = f"{op.type()} cannot stay as it is, since it has {len(outputs)} results"
        raise NotTranslatable(f"{reason}; {why}")
    kept = tuple((inputs.index(n), i) for i, n in enumerate(outputs) if n in inputs and n != _LINK)
    unchanged = Unchanged(text, op.type(), reason, len(outputs), effects, kept)
    _place(description, block, op, mark, inputs, outputs)
    return unchanged


def begin_runs(description: LegacyProgramDesc, replaced: dict[int, Unchanged]) -> None:
    """Inserts the operators that begin and end a run, if some of these are in a chain."""
    block = description.block(0)
    if block.find_var(_RUN.encode()) is None:
        return
    fed = [name for op in operators(block) if op.type() == "feed" for name in op.output("Out")]
    position = next((i for i, op in enumerate(operators(block)) if op.type() != "feed"), 0)
    op = insert_operator(block, position)
    # Of a feed: Paddle's predictors compute operators without operands once.
    _place(description, block, op, _BEGIN, fed[:1], [_RUN, _LINK])
    replaced[_BEGIN] = Unchanged(operator_chains.BEGIN, "begin", "it begins a run of others", 2)
    _place(description, block, block.append_op(), _END, [_RUN, _LINK], [_LINK])
    replaced[_END] = Unchanged(operator_chains.END, "end", "it ends a run of others", 1)


def _declare(description: LegacyProgramDesc, name: str, dtype: Any) -> LegacyVariable:
    """The variable of this name of the outermost block, which is made if there is none."""
    variable = description.block(0).var(name.encode())
    variable.set_type(VarType.DENSE_TENSOR)
    variable.set_dtype(dtype)
    variable.set_shape([1])
    return variable


def _place(
    description: LegacyProgramDesc,
    block: LegacyBlock,
    op: LegacyOperator,
    mark: int,
    inputs: list[str],
    outputs: list[str],
) -> None:
    """Makes ``op`` the placeholder of an operator with these operands and outputs."""
    variable = _declare(description, f"{_MARK}{mark}", VarType.FP32)
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
    left, inserted = dict(replaced), []
    for block in blocks_outermost_first(program):
        for op in [op for op in block.ops if op.name() == f"pd_op.{PLACEHOLDER}"]:
            joined = producer_of(op.operand_source(0))
            source = producer_of(joined.operand_source(0))
            number = _number(source)
            if number is not None:
                marks[number] = source
                unchanged = left.pop(number)
                inserted.append((_insert_operator(op, joined, unchanged), unchanged.kept))
    if left:
        raise NotTranslatable("Paddle cannot translate it")
    for source in marks.values():
        source.get_parent_block().remove_op(source)
    places = {op.id(): place for place, op in enumerate(program.global_block().ops)}
    for op, kept in inserted:
        if op.id() in places:
            _overwrite_parameters(op, kept, places)


def _number(source: Operation) -> int | None:
    name = str(source.attrs().get("parameter_name", ""))
    return int(name.removeprefix(_MARK)) if is_mark(name) else None


def _overwrite_parameters(
    op: Operation, kept: Sequence[tuple[int, int]], places: Mapping[int, int]
) -> None:
    """Has an operator of a chain overwrite parameters in place, as in Paddle.

    Removes the operators that would store the results in the parameters.

    Args:
        op: The operator, in the outermost block.
        kept: (operand, result) of each variable that the ProgramDesc operator overwrites.
        places: The places of the operators in the block, by id.
    """
    text, pairs = str(op.attrs()["operator"]), []
    for index, number in kept if operator_chains.is_chained(text) else ():
        storing = _storing(op, index, number, places)
        if storing is not None:
            storing.result(0).replace_all_uses_with(op.result(number))
            storing.get_parent_block().remove_op(storing)
            pairs.append((index, number))
    if pairs:
        overwritten = operator_chains.overwriting(text, [operand for operand, _ in pairs])
        op.set_str_attr("operator", overwritten)
        op.set_str_attr("overwrites", " ".join(f"{i}:{number}" for i, number in pairs))


def _storing(op: Operation, index: int, number: int, places: Mapping[int, int]) -> Operation | None:
    """The operator that stores a result in a parameter which nothing else reads later."""
    operand, result = producer_of(op.operand_source(0)).operand_source(index), op.result(number)
    if producer_of(operand).name() != "builtin.parameter":
        return None
    later = [
        user
        for user in operand.all_used_ops()
        if places.get(user.id(), len(places)) > places[op.id()]
    ]
    stores = [
        user
        for user in later
        if user.name() == "pd_op.assign_out_"
        and user.operand_source(0).is_same(result)
        and user.operand_source(1).is_same(operand)
    ]
    return stores[0] if len(later) == len(stores) == 1 else None


def _insert_operator(op: Operation, joined: Operation, unchanged: Unchanged) -> Operation:
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
        "effects": " ".join(sorted(unchanged.effects)),
        "overwrites": "",
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
    return producer_of(results[0])


def _members(reader: Operation) -> list[tuple[int, Value]]:
    """The members of a list that a reader of the list takes from it, with their indices."""
    if reader.name() == "builtin.split":
        return list(enumerate(reader.results()))
    if reader.name() == "builtin.slice":
        return [(int(reader.attrs()["index"]), reader.result(0))]
    raise NotTranslatable("Paddle cannot translate it")
