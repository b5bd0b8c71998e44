"""Weights of matmuls as integers of 8 or 4 bits.

A matmul of few rows takes the time in which its weights come from memory: fewer bytes are less
time. Only weights are rounded, and the plugin multiplies by them in float32, decompressing within
its kernel; activations stay as they are.

Integers stand for ``scale * (integer - zero point)``:

* ``int8`` has a scale for each output, and no zero point: integers from -127 to 127;
* ``int4`` has a scale and a zero point for each group of :data:`GROUP` consecutive inputs of an
  output: integers from 0 to 15.

A weight keeps its format where it is small, is not finite, or cannot be divided into groups.
Source: OpenVINO's documentation of weight compression (NNCF), whose models the plugin recognizes
by the nodes that :func:`_decompressed` creates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import Model, Node, Output, Shape, Tensor, Type, opset15

# The number of inputs with one scale, in int4.
GROUP = 128
# Weights of fewer elements stay as they are: they remain in a cache.
MIN_ELEMENTS = 1 << 14
Array = np.ndarray[Any, Any]


def compress_weights(model: Model, weight_format: str) -> None:
    """Rounds the constant weights of a model's matmuls.

    Args:
        model: A complete model, with float32 weights of rank 2 as constants.
        weight_format: ``"int8"`` or ``"int4"``.
    """
    compressed: dict[tuple[str, bool], Output | None] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        weight = node.input_value(1).get_node()
        if not _is_weight(weight):
            continue
        is_transposed = node.get_attributes()["transpose_b"]
        key = weight.get_name(), is_transposed
        if key not in compressed:
            compressed[key] = _compressed(weight, is_transposed, weight_format)
        _read_compressed(node, compressed[key])


def _is_weight(node: Node) -> bool:
    if node.get_type_name() != "Constant" or node.get_element_type() != Type.f32:
        return False
    data = node.get_data()
    return data.ndim == 2 and data.size >= MIN_ELEMENTS


def _read_compressed(matmul: Node, weight: Output | None) -> None:
    if weight is None:
        return
    is_transposed = matmul.get_attributes()["transpose_a"]
    product = opset15.matmul(matmul.input_value(0), weight, is_transposed, True)
    product.set_friendly_name(matmul.get_friendly_name())
    for reader in matmul.output(0).get_target_inputs():
        reader.replace_source_output(product.output(0))


def _compressed(weight: Node, is_transposed: bool, weight_format: str) -> Output | None:
    """The weight, with a row for each output; ``None`` if it keeps its format."""
    data = weight.get_data()
    rows = np.ascontiguousarray(data if is_transposed else data.T)
    if not np.isfinite(rows).all():
        return None
    if weight_format == "int8":
        return _of_int8(rows)
    return _of_int4(rows) if rows.shape[1] % GROUP == 0 else None


def _of_int8(rows: Array) -> Output:
    scales = _nonzero(np.abs(rows).max(axis=1, keepdims=True) / 127)
    integers = np.rint(rows / scales).astype(np.int8)
    return _decompressed(opset15.constant(integers), None, scales)


def _of_int4(rows: Array) -> Output:
    groups = rows.reshape(len(rows), -1, GROUP)
    low = np.minimum(groups.min(axis=2, keepdims=True), 0)
    scales = _nonzero((np.maximum(groups.max(axis=2, keepdims=True), 0) - low) / 15)
    zero_points = np.rint(-low / scales)
    integers = np.clip(np.rint(groups / scales) + zero_points, 0, 15)
    whole = _decompressed(_of_four_bits(integers), _of_four_bits(zero_points), scales)
    return opset15.reshape(whole, np.array(rows.shape, np.int64), False).output(0)


def _nonzero(scales: Array) -> Array:
    """Scales, and 1 in place of those too small to divide by: all that they scale becomes 0."""
    smallest = np.finfo(np.float32).tiny
    return np.where(scales < smallest, np.float32(1), scales).astype(np.float32)


def _of_four_bits(values: Array) -> Node:
    """A constant of integers from 0 to 15, two in a byte, the first in the lower half."""
    flat = values.astype(np.uint8).reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    tensor = Tensor(Type.u4, Shape(values.shape))
    tensor.data[...] = (flat[0::2] | (flat[1::2] << 4)).reshape(tensor.data.shape)
    return opset15.constant(tensor)


def _decompressed(integers: Node, zero_points: Node | None, scales: Array) -> Output:
    """``scales * (integers - zero_points)`` as nodes that the plugin fuses with the matmul."""
    floats = opset15.convert(integers, Type.f32)
    if zero_points is not None:
        floats = opset15.subtract(floats, opset15.convert(zero_points, Type.f32))
    return opset15.multiply(floats, opset15.constant(scales)).output(0)
