"""Node builders that converters of several modules share; no converters of operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from openvino import Node, Output, Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.errors import overflow_error
from paddle_ngraph.conversion.node_tools import as_output
from paddle_ngraph.conversion.registry import Range
from paddle_ngraph.conversion.size_rules import is_same_shape
from paddle_ngraph.conversion.symbolic_sizes import Number, SymbolicSize, is_symbolic
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op

_MAX_EXACT_FLOAT32_INTEGER = 2**24

# -- ranges of integers ----------------------------------------------------------------------------


def positions_along_axis(op: Op, ranges: Mapping[str, Range]) -> Range | None:
    """The range of indices along attribute or input ``axis`` of ``x``.

    ``None`` if the axis, or its size, is not known. With attribute ``flatten``, ``x`` is treated as
    one axis.
    """
    sizes = op.input("x").shape
    if op.attr("flatten", False) or not sizes:
        size = math.prod(sizes) if min(sizes, default=0) >= 0 else -1
    else:
        (axis,) = op.constants.get("axis") or [op.attr("axis", None)]
        size = -1 if axis is None else sizes[int(axis)]
    return None if size < 0 else (0, max(0, size - 1))


def require_declared(bridge: NgraphBridge, op: Op, axes: Iterable[int]) -> None:
    """Rejects sizes of ``x`` that differ from the declared ones, on which a range was based.

    Paddle accepts any size.

    Raises:
        NgraphError: A size along one of these axes differs.
    """
    declared, actual = op.input("x").shape, bridge.shape(bridge.get_input_node(op, "x"))
    if any(declared[axis] >= 0 and declared[axis] != actual[axis] for axis in axes):
        raise NgraphError(f"input 'x' is declared as {list(declared)}, not {list(actual)}")


# -- scalars ---------------------------------------------------------------------------------------


def constant(value: float | np.floating[Any]) -> Node:
    """A constant float32 scalar."""
    return opset15.constant(np.float32(value))


def is_constant(node: NodeInput, value: float) -> bool:
    """Whether ``node`` is a constant of one element with this value."""
    producer = node.get_node() if isinstance(node, Output) else node
    return producer.get_type_name() == "Constant" and bool(np.all(producer.get_data() == value))


def scalar_input(bridge: NgraphBridge, op: Op, name: str, dtype: Type) -> Any:
    """The only element of input ``name``, as a scalar of type ``dtype``."""
    node = bridge.get_input_node(op, name)
    producer = node.get_node()
    if producer.get_type_name() == "Constant":
        return opset15.constant(producer.get_data().reshape(()).astype(dtype.to_dtype()), dtype)
    if node.get_element_type() != dtype:
        node = opset15.convert(node, dtype)
    return reshaped(bridge, node, [])


def known_ints(bridge: NgraphBridge, op: Op, name: str) -> list[Number]:
    """The integers in input ``name``, known while the function is built."""
    return [_integer(number) for number in bridge.constant(op, name).reshape(-1).tolist()]


def known_int(bridge: NgraphBridge, op: Op, name: str) -> Number:
    """The single integer in input ``name``, known while the function is built."""
    return _integer(bridge.constant(op, name).item())


def known_number(bridge: NgraphBridge, op: Op, name: str) -> Any:
    """The scalar in input ``name``, known while the function is built.

    A size that was cast to float32 is returned as a size, if float32 represents it exactly.
    """
    size = bridge.folding.size_behind(bridge.get_input_node(op, name))
    if size is not None and -_MAX_EXACT_FLOAT32_INTEGER <= size <= _MAX_EXACT_FLOAT32_INTEGER:
        return size
    return bridge.constant(op, name).item()


def _integer(number: Any) -> Number:
    return number if isinstance(number, SymbolicSize) else int(number)


# -- arithmetic of int64 -------------------------------------------------------------------------

_CHECKED_OPERATORS: Mapping[Callable[..., Node], str] = {
    opset15.add: "CheckedAdd",
    opset15.multiply: "CheckedMultiply",
    opset15.subtract: "CheckedSubtract",
}


def always(op: Op) -> bool:
    """Returns true: for converters whose operators can all be built with overflow checks."""
    return True


def in_32_bits(bridge: NgraphBridge, op: Op, function: Callable[..., Node], x: Any, y: Any) -> Any:
    """The node ``function(x, y)``, with a check of int64 for int32 overflow if ``op.checked``."""
    out = as_output(function(x, y))
    if not op.checked or out.get_element_type() != Type.i64 or bridge.integers.require_32_bits(out):
        return out
    shape = bridge.shape(out)
    operands = [
        each
        if is_same_shape(bridge.shape(each), shape)
        else opset15.broadcast(each, bridge.ints(shape))
        for each in (x, y)
    ]
    error = overflow_error(op).attributes()
    checked = bridge.extension(_CHECKED_OPERATORS[function], operands, **error)
    return opset15.convert(checked, Type.i64)


# -- choices ---------------------------------------------------------------------------------------


def select_number(condition: NodeInput, yes: float = 1.0, no: float = 0.0) -> Node:
    """One of two float32 scalars by a condition; by default the condition as 1 or 0."""
    return opset15.select(condition, constant(yes), constant(no))


def masked(condition: NodeInput, value: float) -> Node:
    """``value`` times the condition as 1 or 0, so NaN where a value that is not finite meets 0."""
    return select_number(condition, value, 0.0 if math.isfinite(value) else math.nan)


def index_range(bridge: NgraphBridge, count: Number, dtype: Type) -> Node:
    """The integers from 0 to ``count - 1``, as a tensor."""
    if not isinstance(count, SymbolicSize):
        return opset15.constant(np.arange(count).astype(dtype.to_dtype()), dtype)
    if dtype == Type.f32 and count > 2**24:
        raise NgraphError("float32 cannot count that far")
    ends = bridge.full(0, Type.i64), bridge.full(count, Type.i64), bridge.full(1, Type.i64)
    return opset15.range(*ends, output_type=dtype)


def keep_nan(x: NodeInput, result: NodeInput) -> Node:
    """``result``, but NaN where ``x`` is NaN: some kernels of the engine lose NaN."""
    return opset15.select(opset15.not_equal(x, x), x, result)


# -- shapes and axes -------------------------------------------------------------------------------


def axis_of(axis: Any, rank: int) -> int:
    """``axis`` as a nonnegative index of an axis of a tensor of this rank."""
    axis = int(axis)
    return axis + rank if axis < 0 else axis


def axis_first(axis: int, rank: int) -> list[int]:
    """The permutation of axes that moves ``axis`` to the front."""
    return [axis, *(i for i in range(rank) if i != axis)]


def reshaped(bridge: NgraphBridge, x: NodeInput, shape: Sequence[Number]) -> Output:
    """``x`` in ``shape``; one dimension may be -1, which is inferred."""
    now = bridge.shape(x)
    if not is_same_shape(now, shape):
        target, keeps = _target(now, shape)
        x = opset15.reshape(x, bridge.ints(target), keeps)
    return as_output(x)


def _target(now: Sequence[Number], shape: Sequence[Number]) -> tuple[list[Number], bool]:
    """The target shape of a Reshape, static if possible, and whether 0 in it keeps a dimension."""
    target = list(shape)
    if not is_symbolic(target) or any(is_same_shape([size], [0]) for size in target):
        return target, False
    for axis, pair in enumerate(zip(now, shape)):
        if isinstance(pair[1], SymbolicSize) and is_same_shape(pair[:1], pair[1:]):
            target[axis] = 0
    left = [axis for axis, size in enumerate(target) if isinstance(size, SymbolicSize)]
    if len(left) == 1 and not any(is_same_shape([size], [-1]) for size in target):
        target[left[0]] = -1
    return target, True


def transposed(
    bridge: NgraphBridge, x: NodeInput, order: Sequence[int], back: bool = False
) -> Output:
    """``x`` with its axes permuted to ``order``, or by the inverse permutation if ``back``."""
    if list(order) != sorted(order):
        x = opset15.transpose(x, bridge.ints(np.argsort(order).tolist() if back else order))
    return as_output(x)


# -- broadcasting and sums -------------------------------------------------------------------------


def broadcast_to(bridge: NgraphBridge, x: NodeInput, shape: Sequence[Number]) -> Any:
    """``x`` broadcast to ``shape``."""
    dims = bridge.shape(x)
    # Repeats a last axis of 1 by Gather: OpenVINO's Broadcast copies such elements one by one.
    by_gather = (
        bool(dims)
        and is_same_shape(dims[-1:], [1])
        and isinstance(shape[-1], int)
        and shape[-1] != 1
    )
    target = [*shape[:-1], 1] if by_gather else list(shape)
    if not is_same_shape(dims, target):
        x = opset15.broadcast(x, bridge.ints(target))
    if by_gather:
        x = opset15.gather(x, bridge.ints([0] * shape[-1]), bridge.ints([len(shape) - 1]))
    return x


def reduce_to(bridge: NgraphBridge, node: NodeInput, shape: Sequence[Number]) -> Any:
    """Sums ``node`` over axes until it has ``shape``: the gradient of a broadcast."""
    current = bridge.shape(node)
    extra = len(current) - len(shape)
    axes = list(range(extra))
    axes += [extra + i for i, dim in enumerate(shape) if dim == 1 and current[extra + i] != 1]
    return reshaped(
        bridge, opset15.reduce_sum(node, bridge.ints(axes), False) if axes else node, shape
    )


def sum_over(bridge: NgraphBridge, node: NodeInput, axes: Sequence[int]) -> Node:
    """The sum of ``node`` over ``axes``, which remain as axes of size 1."""
    return opset15.reduce_sum(node, bridge.ints(axes), keep_dims=True)


def set_reduced(bridge: NgraphBridge, op: Op, source: str, make: Callable[[], Any]) -> None:
    """Sets the gradient of input ``source``, if it is used, to ``make()`` summed to its shape."""
    if op.has_output(f"{source}_grad"):
        shape = bridge.shape(bridge.get_input_node(op, source))
        bridge.set_output_node(op, f"{source}_grad", reduce_to(bridge, make(), shape))
