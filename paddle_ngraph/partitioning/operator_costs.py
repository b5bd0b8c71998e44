"""Estimated work of an operator: multiplications and additions, and bytes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paddle_ngraph.ir.graph import TensorSpec, function_type, is_gradient
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils.dtypes import element_bytes

_MATMULS = frozenset({"matmul", "bmm", "mm", "linear", "matmul_with_flatten", "mul"})
_CONVOLUTIONS = frozenset({"conv2d", "conv3d", "depthwise_conv2d"})
_TRANSPOSED = frozenset({"conv2d_transpose", "conv3d_transpose", "depthwise_conv2d_transpose"})


def elements(spec: TensorSpec) -> int:
    """The number of elements of a tensor, with the typical size for dynamic dimensions."""
    return math.prod(SETTINGS.typical_dimension_size if s < 0 else s for s in spec.shape)


def num_bytes(specs: Sequence[TensorSpec]) -> int:
    """The bytes of tensors that an operator reads or writes, each of them once."""
    return sum(elements(spec) * element_bytes(spec.dtype) for spec in specs)


def num_flops(op_type: str, read: Sequence[TensorSpec], written: Sequence[TensorSpec]) -> int:
    """Estimated floating-point operations: a multiplication and an addition count as two.

    A matmul of M x K by K x N takes 2MKN, a convolution 2 for each weight of a filter and element
    of a result, their gradients as many for each result. Others take one for each element of their
    results.

    Args:
        op_type: The operator type.
        read, written: The tensors in the order of Paddle's operands and results.
    """
    name = function_type(op_type).removeprefix("pd_op.")
    results = sum(map(elements, written))
    if len(read) < 2 or not written:
        return results
    forward = _forward_flops(name, read, read[2] if _has_gradient(op_type, read) else written[0])
    return results if forward is None else forward * (len(written) if is_gradient(op_type) else 1)


def _has_gradient(op_type: str, read: Sequence[TensorSpec]) -> bool:
    return is_gradient(op_type) and len(read) > 2


def _forward_flops(name: str, read: Sequence[TensorSpec], result: TensorSpec) -> int | None:
    """Of the forward operator with this result; ``None`` if it is no matmul or convolution."""
    if name in _MATMULS:
        return 2 * elements(result) * _common_size(read[0], result)
    if name in _CONVOLUTIONS:
        return 2 * elements(result) * math.prod(read[1].shape[1:])
    if name in _TRANSPOSED:
        return 2 * elements(read[0]) * math.prod(read[1].shape[1:])
    return None


def _common_size(left: TensorSpec, result: TensorSpec) -> int:
    """The size K of M x K by K x N, whichever operand is transposed."""
    if len(left.shape) < 2 or len(result.shape) < 2:
        return elements(left)
    matrix = TensorSpec(left.id, left.dtype, left.shape[-2:])
    rows = TensorSpec(left.id, left.dtype, result.shape[-2:-1])
    return elements(matrix) // max(elements(rows), 1)
