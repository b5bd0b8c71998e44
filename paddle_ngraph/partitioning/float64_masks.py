"""float64 tensors that are rounded to float32 before anything computes with them.

Formula decoders build a mask of float64 (``full``, ``masked_fill``, ``expand``), and cast it. The
engine has no float64. Rounding commutes with operators that only fill, move and select elements, so
these get float32 operands instead, which is exact. The float64 tensors stay where they have other
readers.
"""

from __future__ import annotations

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    blocks_outermost_first,
    dtype_name,
    is_overwritten,
    put_before,
)

_CAST = "pd_op.cast"
# Types of operators that fill a tensor with a number, or move or select elements of their tensors.
_MOVES = frozenset(
    {
        *("pd_op.assign", "pd_op.expand", "pd_op.flatten", "pd_op.full", "pd_op.full_like"),
        *("pd_op.full_with_tensor", "pd_op.masked_fill"),
        *(
            "pd_op.reshape",
            "pd_op.slice",
            "pd_op.squeeze",
            "pd_op.tile",
            "pd_op.transpose",
            "pd_op.tril",
        ),
        *("pd_op.triu", "pd_op.unsqueeze", "pd_op.where"),
    }
)
_READ_SHAPES = frozenset({"pd_op.shape", "pd_op.shape64"})
_EXACT = ("bool", "float32")


def round_before_moves(program: Program) -> None:
    """Replaces, in place, casts of float64 tensors that operators have only filled and moved."""
    for block in blocks_outermost_first(program):
        casts = [op for op in block.ops if op.name() == _CAST and _is_rounding(op)]
        for op in casts:
            value = op.operand_source(0)
            if _can_be_rounded(value):
                rounded: dict[int, Value] = {}
                op.result(0).replace_all_uses_with(_rounded(value, rounded))
                block.remove_op(op)
                _drop_unread(value)


def _is_rounding(op: Operation) -> bool:
    dtypes = dtype_name(op.operand_source(0).dtype), dtype_name(op.result(0).dtype)
    return dtypes == ("float64", "float32")


def _can_be_rounded(value: Value) -> bool:
    """Whether only operators that fill, move and select have computed a float64 tensor."""
    op = value.get_defining_op()
    if op is None or is_overwritten(value) or len(op.results()) != 1:
        return False
    if op.name() == _CAST:
        return dtype_name(op.operand_source(0).dtype) in _EXACT
    return op.name() in _MOVES and all(map(_can_be_rounded, _operands_of_float64(op)))


def _operands_of_float64(op: Operation) -> list[Value]:
    return [each for each in op.operands_source() if _is_float64(each)]


def _is_float64(value: Value) -> bool:
    return bool(value.initialized() and value.is_dense_tensor_type()) and (
        dtype_name(value.dtype) == "float64"
    )


def _rounded(value: Value, known: dict[int, Value]) -> Value:
    """``value`` in float32, computed in front of the operator that computes it in float64."""
    if value.id not in known:
        op = value.get_defining_op()
        assert op is not None  # see _can_be_rounded
        operands = [_rounded(v, known) if _is_float64(v) else v for v in op.operands_source()]
        attributes = [
            (name, kind, "float32" if kind == "dtype" else given)
            for name, kind, given in _core.attributes_of(op)
        ]
        known[value.id] = put_before(op, op.name(), operands, attributes)
        for reader in value.all_used_ops():
            if reader.name() in _READ_SHAPES:
                reader.operand(0).set_source(known[value.id])
    return known[value.id]


def _drop_unread(value: Value) -> None:
    """Removes the operator of ``value``, and those before it, as far as nothing reads them."""
    for reader in value.all_used_ops():
        # A result that nothing reads, of ``masked_fill_`` in a program, say.
        if reader.name() in _MOVES and all(result.use_empty() for result in reader.results()):
            reader.get_parent_block().remove_op(reader)
    op = value.get_defining_op()
    if op is not None and value.use_empty():
        operands = _operands_of_float64(op)
        op.get_parent_block().remove_op(op)
        for each in operands:
            _drop_unread(each)
