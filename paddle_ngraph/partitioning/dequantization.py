"""Decomposition of ``dequantize_linear``, for which Paddle has no kernel in PIR.

In PIR, Paddle 3.3.1 runs the kernel of ``quantize_linear`` instead and so quantizes again, with
wrong results in every program that ``paddle.quantization`` has converted. In dynamic mode and in
ProgramDesc programs the operator is correct. The operators inserted here are correct for the engine
and for Paddle's interpreter alike.
"""

from __future__ import annotations

from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    blocks_outermost_first,
    dtype_name,
    put_before,
)

_TYPE = "pd_op.dequantize_linear"
_PER_TENSOR = "pd_op.fake_dequantize_max_abs"
_PER_CHANNEL = "pd_op.fake_channel_wise_dequantize_max_abs"


def replace_dequantize_linear(program: Program) -> None:
    """Replaces operators ``dequantize_linear`` of which only the first result has a reader."""
    found = [
        op for block in blocks_outermost_first(program) for op in block.ops if op.name() == _TYPE
    ]
    for op in found:
        result, *statistics = op.results()
        if not any(value.initialized() and value.all_used_ops() for value in statistics):
            result.replace_all_uses_with(_dequantized(op))
            op.get_parent_block().remove_op(op)


def _dequantized(op: Operation) -> Value:
    """Inserts ``x * scale / qmax`` before ``op``, returns the product; for an observer, x."""
    attributes = op.attrs()
    x, scale = op.operand_source(0), op.operand_source(1)
    dtype = dtype_name(op.result(0).dtype)
    if dtype_name(x.dtype) != dtype:
        x = put_before(op, "pd_op.cast", [x], [("dtype", "dtype", dtype)])
    if attributes["only_observer"]:
        return x
    qmax, axis = attributes["qmax"], attributes["quant_axis"]
    if axis < 0:
        return put_before(op, _PER_TENSOR, [x, scale], [("max_range", None, float(qmax))])
    bits = ("quant_bits", None, [qmax.bit_length() + 1])
    given = [bits, ("quant_axis", None, axis), ("x_num_col_dims", None, 1)]
    product = put_before(op, _PER_CHANNEL, [x, [scale]], given)
    largest = (1 << qmax.bit_length()) - 1  # by which that operator divides
    if qmax == largest:
        return product
    one = [("shape", "ints", [1]), ("value", "float64", 1.0), ("dtype", "dtype", dtype)]
    operands = [product, put_before(op, "pd_op.full", [], one)]
    return put_before(op, _PER_TENSOR, operands, [("max_range", None, qmax / largest)])
