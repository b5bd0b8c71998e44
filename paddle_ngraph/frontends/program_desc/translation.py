"""Translates ProgramDesc programs to PIR, if that preserves the semantics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import paddle

from paddle_ngraph import _core
from paddle_ngraph.frontends.program_desc import (
    branches,
    lod,
    old_operators,
    single_assignment,
    unchanged_operators,
)
from paddle_ngraph.frontends.program_desc.chains import Chains
from paddle_ngraph.frontends.program_desc.single_assignment import (
    LossyOperators,
    NotTranslatable,
    blocks,
    declared,
    numbered,
    operators,
)
from paddle_ngraph.paddle_private.names import (
    ProgramDesc,
    VarType,
    insert_operator,
    make_persistable,
    producer_of,
    set_attribute,
    translate_with_values,
)
from paddle_ngraph.paddle_private.protocols import (
    Block,
    LegacyBlock,
    LegacyProgramDesc,
    Operation,
    Program,
    Value,
)
from paddle_ngraph.partitioning.analysis.block_view import (
    FETCH,
    LISTS,
    SCOPE_NAMES,
    SHADOW_OUTPUT,
    blocks_outermost_first,
    put_before,
    scope_name,
)
from paddle_ngraph.partitioning.block_report import BlockReport, NativeOp
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.utils import signals

# Operators that Paddle cannot run after a translation: kernels reject the operands, or the result
# has no memory, or is a complex gradient, of which only ProgramDesc programs retain the real part.
_CANNOT_RUN = frozenset(
    {
        *("eig_grad", "lars_momentum", "lod_reset", "lod_reset_grad", "merged_momentum"),
        "range_v2",
    }
)
# Operators on which Paddle's translator crashes: it has kernels of them for rows of a sparse
# gradient, and no PIR operator in place.
_CRASH = frozenset({"ftrl"})
# Operators that PIR lacks, although Paddle's translator has a rule for them.
_ABSENT = frozenset({"py_func"})
# The name of the variable in which a ProgramDesc program stores what it fetches.
FETCHED = "fetch"


def to_pir(description: LegacyProgramDesc, owner: str) -> Program | None:
    """Translates a ``ProgramDesc`` to PIR; ``None`` where :func:`translate` would raise.

    ``owner`` is as in :func:`translate`.
    """
    try:
        return translate(description, owner=owner)
    except NotTranslatable:
        return None


def translate(
    description: LegacyProgramDesc,
    feeds_lod: bool = False,
    may_chain: bool = True,
    owner: str = "",
) -> Program:
    """Translates a ``ProgramDesc`` to a PIR program.

    The translation is Paddle's, applied to a copy in single-assignment form after a check that
    it preserves the semantics of each operator. Operators of which it would lose information, and
    those that read or write a LoD, run unchanged in the translated program.

    Args:
        description: The program.
        feeds_lod: Whether the translated program is run on feeds with a LoD, too, instead of
            falling back to Paddle.
        may_chain: Whether operators may run in a chain: in a program that a predictor runs, Paddle
            would drop some of them; a saved one outlives the functions that they call.
        owner: As of :class:`Chains`.

    Raises:
        NotTranslatable: Paddle cannot translate the program, cannot run the translation, or would
            lose information in the translation.
    """
    with signals.own_errors():
        try:
            description = ProgramDesc(description)
            single_assignment.declare_outermost(description)
            chains = Chains(description, owner)
            unchanged = {
                **lod.operators_with_lod(description, feeds_lod),
                **chains.reasons(),
                **_reasons(description),
            }
            while True:
                unchanged = chains.completed(unchanged)
                if not may_chain:
                    chains.reject(unchanged)
                try:
                    return _translated(description, unchanged, chains)
                except LossyOperators as found:
                    # Each round has more unchanged operators.
                    unchanged.update(found.reasons)
        except NotTranslatable:
            raise
        except Exception as error:
            # Catches all exceptions, since Paddle raises errors of many types.
            raise NotTranslatable("Paddle cannot translate it") from error


def _reasons(description: LegacyProgramDesc) -> dict[int, str]:
    """Reasons against the translation of operators, as far as their types and variables show."""
    reasons = old_operators.overlaps(description)
    for number, (_, op) in enumerate(numbered(description)):
        if op.type() in _CANNOT_RUN:
            reasons[number] = f"Paddle cannot run the translation of {op.type()}"
        if op.type() in _CRASH | _ABSENT:
            reasons[number] = f"Paddle cannot translate {op.type()}"
        # A copy to another device, which this build of Paddle skips: in PIR it is an error.
        if op.type() == "memcpy" and op.attr("dst_place_type") != 0:
            reasons[number] = "Paddle cannot run the translation of memcpy to another device"
        # In PIR, the results are sorted.
        if op.type() == "unique" and not op.attr("is_sorted"):
            reasons[number] = "the translation loses is_sorted = False of unique"
    return reasons


def _translated(
    description: LegacyProgramDesc, unchanged: dict[int, str], chains: Chains
) -> Program:
    """Translates a copy of ``description``; operators with these numbers remain unchanged.

    Raises:
        LossyOperators: The translation would lose information of other operators.
    """
    copy: LegacyProgramDesc = ProgramDesc(description)
    single_assignment.store_numbers(copy)
    operators = list(numbered(copy))
    replaced = {
        number: unchanged_operators.replace(copy, *operators[number], number, reason, chains)
        for number, reason in sorted(unchanged.items())
    }
    unchanged_operators.begin_runs(copy, replaced)
    old_operators.rewrite_for_translation(copy)
    single_assignment.rename(copy)
    old_operators.check(copy)
    program, values = translate_with_values(copy)
    _restore_shapes(copy, program, values)
    unchanged_operators.insert(program, replaced)
    # Rejects the program if a variable has no counterpart, such as an XShape, which PIR does not
    # have.
    lost = _persistent_in(description) - _scope_names(program)
    if lost:
        reason = "the translation loses a variable that outlives a run"
        writers = {
            number: reason
            for number, (_, op) in enumerate(numbered(description))
            if not lost.isdisjoint(op.output_arg_names()) and number not in unchanged
        }
        raise LossyOperators(writers) if writers else NotTranslatable(reason)
    for op in [op for block in blocks_outermost_first(program) for op in block.ops]:
        _sum_arrays(op)
        _copy_list_member(op)
    branches.merge_branches(program)
    _sort_feeds(program.global_block())
    _fetch_each_column_once(program.global_block())
    return program


def translate_fetching(
    description: LegacyProgramDesc, names: Sequence[str], may_chain: bool = False
) -> tuple[Program, list[Operation]]:
    """The PIR program of a ``ProgramDesc``, with operators that fetch these variables at its end.

    ``may_chain`` is as in :func:`translate`.

    Raises:
        NotTranslatable: As in :func:`translate`.
    """
    copy: LegacyProgramDesc = ProgramDesc(description)
    block = copy.block(0)
    columns = [op.attr("col") for op in operators(block) if op.type() in ("fetch", "fetch_v2")]
    first = 1 + max(columns, default=-1)
    if names:
        results = block.var(FETCHED.encode())
        results.set_type(VarType.FETCH_LIST)
        results.set_persistable(True)
    for column, name in enumerate(names, first):
        op = block.append_op()
        op.set_type("fetch")
        op.set_input("X", [name])
        op.set_output("Out", [FETCHED])
        set_attribute(op, "col", column)
    program = translate(copy, feeds_lod=True, may_chain=may_chain)
    fetches = {op.attrs()["col"]: op for op in program.global_block().ops if op.name() == FETCH}
    return program, [fetches[column] for column in range(first, first + len(names))]


def with_parameters(
    description: LegacyProgramDesc, overwritten: Iterable[str]
) -> LegacyProgramDesc:
    """A copy of a program in which these variables are parameters that it only reads.

    Args:
        description: The program.
        overwritten: Variables that each run writes before it reads them, such as normalized
            weights: the copy has others in their place, that do not outlive a run.
    """
    copy: LegacyProgramDesc = ProgramDesc(description)
    block = copy.block(0)
    first = sum(op.type() == "feed" for op in operators(block))
    for name in sorted(overwritten):
        current, value = f"{name}@current", declared(block, name)
        single_assignment.copy_variable(block, value, current)
        single_assignment.copy_variable(block, value, f"{name}@stored")
        for each in blocks(copy):
            for op in operators(each):
                single_assignment.rename_inputs(each, op, {name: current})
                single_assignment.rename_outputs(op, {name: current})
        op = insert_operator(block, first)
        op.set_type("assign")
        op.set_input("X", [name])
        op.set_output("Out", [f"{name}@stored"])
    return copy


def rename_as_pir(program: Program) -> None:
    """Names the variables of a translated program as in a program that was built as PIR.

    ``paddle.jit.load`` requires such names of inputs. Executor treats a program that sets
    parameters as a startup program, of which only parameters can be fetched.
    """
    block = program.global_block()
    for op in block.ops:
        if op.name() == "builtin.set_parameter":
            (value,) = op.operands_source()
            make_persistable(value)
            _core.insert_operator(op, SHADOW_OUTPUT, [value], [], {"output_name": scope_name(op)})
            block.remove_op(op)
    feed_by_data(program)


def feed_by_data(program: Program) -> None:
    """Feeds a translated program by ``data`` operators, in the place of ``feed`` operators.

    Paddle's predictors delete a ``feed`` that nothing reads, and then have no handle of the input
    although its name is among theirs.
    """
    block = program.global_block()
    for op in block.ops:
        if op.name() != "pd_op.feed":
            continue
        fed = op.result(0)
        with paddle.pir_utils.IrGuard(), block:
            data = paddle.static.data(op.attrs()["name"], fed.shape, fed.dtype)
        fed.replace_all_uses_with(data)
        producer_of(data).move_before(op)
        block.remove_op(op)


def native_report(description: LegacyProgramDesc, reason: str) -> Report:
    """The report of the program pass on a program that cannot be translated."""
    return Report(
        [
            BlockReport(
                intervals=[],
                native=[
                    NativeOp(index, op.type(), reason)
                    for index, op in enumerate(operators(block))
                    if op.type() not in ("feed", "fetch")
                ],
            )
            for block in blocks(description)
        ]
    )


def calls_python(description: LegacyProgramDesc) -> bool:
    """Whether some operator of a ProgramDesc program calls a Python function."""
    return any(op.type() == "py_func" for block in blocks(description) for op in operators(block))


def _sum_arrays(op: Operation) -> None:
    """Replaces a sum of TensorArrays, which is another operator in PIR."""
    if op.name() != "pd_op.add_n":
        return
    terms = op.operand_source(0)
    if any(each.is_dense_tensor_array_type() for each in producer_of(terms).operands_source()):
        _core.replace_operator(op, "pd_op.add_n_array", [terms])


def _copy_list_member(op: Operation) -> None:
    """Has a ``set_parameter`` of a list member read a copy: Paddle would not write the member."""
    if op.name() != "builtin.set_parameter":
        return
    member = op.operand_source(0)
    if producer_of(member).name() in LISTS:
        copy = put_before(op, "pd_op.assign", [member], [])
        make_persistable(copy)
        op.operand(0).set_source(copy)


def _restore_shapes(
    description: LegacyProgramDesc, program: Program, values: dict[str, list[Value]]
) -> None:
    """Connects gradient operators to the tensors whose shapes they restore.

    In a ProgramDesc program these shapes are in an XShape, which the forward operator writes. PIR
    has no XShape: Paddle's translation reads variables there that no operator writes.
    """
    shape_sources = {
        name: op.input("X")[0]
        for block in blocks(description)
        for op in operators(block)
        if "XShape" in op.output_names() and "X" in op.input_names()
        for name in op.output("XShape")
    }
    written = {name for block in blocks(description) for name in _written_by(block)}
    # A feed that the program overwrites is read before.
    written -= {v.name() for v in description.block(0).all_vars() if v.need_check_feed()}
    for block in blocks_outermost_first(program):
        unwritten = [op for op in block.ops if _reads_one_of(written, op)]
        for op in unwritten:
            found = values.get(shape_sources.get(op.attrs()["name"], ""))
            if not found:
                raise NotTranslatable("it would read a variable that no operator writes")
            op.result(0).replace_all_uses_with(found[0])
            block.remove_op(op)


def _reads_one_of(names: set[str], op: Operation) -> bool:
    return op.name() == "pd_op.data" and op.attrs()["name"] in names


def _written_by(block: LegacyBlock) -> set[str]:
    return {name for op in operators(block) for name in op.output_arg_names()}


def _persistent_in(description: LegacyProgramDesc) -> set[str]:
    """The names of the persistable tensors that operators of a ProgramDesc write, in any block."""
    found = (
        (name, block.find_var_recursive(name.encode()))
        for block in single_assignment.blocks(description)
        for name in _written_by(block)
    )
    return {
        name
        for name, variable in found
        if variable is not None
        and variable.persistable()
        and variable.type() == VarType.DENSE_TENSOR
    }


def _scope_names(program: Program) -> set[str]:
    """The names of the variables that a program reads from the scope or writes to it."""
    operators = program.global_block().ops
    return {scope_name(op) for op in operators if op.name() in SCOPE_NAMES}


def _sort_feeds(block: Block) -> None:
    """Sorts feed operators by their column: PIR numbers inputs in the order of operators."""
    feeds = [op for op in block.ops if op.name() == "pd_op.feed"]
    for op in sorted(feeds, key=lambda op: int(op.attrs()["col"]), reverse=True):
        first = block.ops[0]
        if op.id() != first.id():
            op.move_before(first)


def _fetch_each_column_once(block: Block) -> None:
    """Reduces fetch operators to those that PIR allows: one per column, with unique names.

    A loaded program has fetch operators of its own, to which ``Executor.run`` adds others for the
    same columns; the last one of a column is used. One variable may be fetched into several
    columns.
    """
    fetches = [op for op in block.ops if op.name() == FETCH]
    last = {op.attrs()["col"]: op for op in fetches}
    for op in fetches:
        if last[op.attrs()["col"]] is not op:
            block.remove_op(op)
    names: set[str] = set()
    for column, op in last.items():
        name = op.attrs()["name"]
        if name in names:
            op.set_str_attr("name", f"{name}_{column}")
        names.add(op.attrs()["name"])
