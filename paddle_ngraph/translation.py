"""Old-style programs (ProgramDesc) as PIR programs, where the translation keeps the meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import paddle
from paddle.base import core

from paddle_ngraph.program_view import BLANK, LISTS, SCOPE_NAMES, blocks_outside_in

# Operators that Paddle translates, and whose kernels then refuse what they get.
_CANNOT_RUN = frozenset({"pd_op.lod_reset", "pd_op.lod_reset_grad", "pd_op.merged_momentum_"})


def to_pir(description: Any) -> Any:
    """The PIR program of a ``core.ProgramDesc``.

    Returns:
        ``None`` where Paddle cannot translate the program, cannot run what it makes of it, or would
        lose a variable that outlives a run.
    """
    try:
        program = paddle.pir.translate_to_pir(_with_named_axes(description))
    except Exception:  # Paddle's own errors have many types
        return None
    # PIR has no place for an XShape, say.
    if not _kept_by(description.block(0)) <= _named_by(program) or not _can_run(program):
        return None
    _mark_what_got_lost(description.block(0), program.global_block())
    _fetch_each_column_once(program.global_block())
    return program


def calls_python(description: Any) -> bool:
    """Whether an old-style program has an operator that calls a Python function."""
    blocks = (description.block(i) for i in range(description.num_blocks()))
    return any(op.type() == "py_func" for block in blocks for op in _operators(block))


def _with_named_axes(description: Any) -> Any:
    """A copy where reductions over everything name every axis: ``reduce_all`` gets lost."""
    copy = core.ProgramDesc(description)
    for block in (copy.block(i) for i in range(copy.num_blocks())):
        for op in _operators(block):
            if op.type().startswith("reduce_") and op.has_attr("reduce_all"):
                _name_axes(block, op)
    return copy


def _name_axes(block: Any, op: Any) -> None:
    variable = block.find_var_recursive(op.input("X")[0].encode())
    if op.attr("reduce_all") and variable is not None and variable.shape():
        op._set_attr("dim", list(range(len(variable.shape()))))


def _operators(block: Any) -> Iterator[Any]:
    return (block.op(i) for i in range(block.op_size()))


def _can_run(program: Any) -> bool:
    """Whether Paddle can run a translated program."""
    operators = (op for block in blocks_outside_in(program) for op in block.ops)
    return not any(
        op.name() in _CANNOT_RUN or _sums_arrays(op) or _keeps_a_list_member(op) for op in operators
    )


def _sums_arrays(op: Any) -> bool:
    if op.name() != "pd_op.add_n":
        return False
    maker = op.operand_source(0).get_defining_op()
    return any(value.is_dense_tensor_array_type() for value in maker.operands_source())


def _keeps_a_list_member(op: Any) -> bool:
    """Whether it names a member of a list for the scope: Paddle does not write that variable."""
    if op.name() != "builtin.set_parameter":
        return False
    return op.operand_source(0).get_defining_op().name() in LISTS


def _mark_what_got_lost(description: Any, block: Any) -> None:
    """Marks ``data`` operators that stand for what the old-style block itself writes: an XShape."""
    written = _written_by(description)
    for op in block.ops:
        if op.name() == "pd_op.data" and op.attrs()["name"] in written:
            op.set_bool_attr(BLANK, True)


def _written_by(block: Any) -> set[str]:
    return {name for op in _operators(block) for name in op.output_arg_names()}


def _kept_by(block: Any) -> set[str]:
    """The tensors that an old-style block writes and that outlive a run."""
    variables = ((name, block.find_var(name.encode())) for name in _written_by(block))
    return {
        name
        for name, variable in variables
        if variable is not None
        and variable.persistable()
        and variable.type() == core.VarDesc.VarType.DENSE_TENSOR
    }


def _named_by(program: Any) -> set[str]:
    """The names of what a program takes from the scope and puts there."""
    operators = program.global_block().ops
    return {op.attrs()[SCOPE_NAMES[op.name()]] for op in operators if op.name() in SCOPE_NAMES}


def _fetch_each_column_once(block: Any) -> None:
    """Give old-style fetch operators what PIR expects: one for a column, no name twice.

    A loaded program has fetch operators of its own, to which ``Executor.run`` adds others of the
    same columns; the last one writes last. One variable may be fetched into several columns.
    """
    fetches = [op for op in block.ops if op.name() == "pd_op.fetch"]
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
