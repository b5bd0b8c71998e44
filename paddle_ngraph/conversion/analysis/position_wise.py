"""Operators that compute each position along an axis of their result by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from paddle_ngraph.conversion.analysis.axis_order import axis_order
from paddle_ngraph.ir.graph import Op

_OF_EACH_ELEMENT = frozenset(
    f"pd_op.{name}"
    for name in (
        *("abs", "assign", "bitwise_not", "cast", "cos", "elu", "exp", "gelu", "hardsigmoid"),
        *("hardswish", "leaky_relu", "log", "logical_not", "logsigmoid", "mish", "pow", "relu"),
        *("relu6", "rsqrt", "scale", "selu", "sigmoid", "silu", "sin", "softplus", "softsign"),
        *("sqrt", "square", "swish", "tanh"),
    )
)
# Operators of two tensors that are broadcast to one shape.
BROADCASTING = frozenset(
    f"pd_op.{name}"
    for name in (
        *("add", "bitwise_and", "bitwise_or", "divide", "elementwise_pow", "equal"),
        *("greater_equal", "greater_than", "less_equal", "less_than", "logical_and"),
        *("logical_or", "maximum", "minimum", "multiply", "not_equal", "subtract"),
    )
)
# Operators that select elements of tensors that are broadcast to one shape, with these inputs.
SELECTIONS = {"pd_op.masked_fill": ("x", "mask"), "pd_op.where": ("condition", "x", "y")}


_REDUCTIONS = frozenset(f"pd_op.{name}" for name in ("max", "mean", "min", "sum"))


class Sliced(NamedTuple):
    """An input of an operator that has the positions of its result, along ``axis``."""

    name: str
    position: int
    axis: int


def reads_of_position(
    op: Op, axis: int, known: Callable[[Op, str], list[int] | None]
) -> list[Sliced] | None:
    """The inputs from which an operator computes each position along an axis of its result.

    All other inputs are read whole. ``None`` if other positions have an effect, too, or if the
    operator is a kernel call.

    Args:
        op: The operator.
        axis: The axis.
        known: The integers of an input of an operator; ``None`` if they are unknown.
    """
    if op.called:
        return None
    if op.type in _OF_EACH_ELEMENT or (op.type == "pd_op.dropout" and op.attr("is_test")):
        return [Sliced("x", 0, axis)]
    results = list(op.output_specs())
    if len(results) != 1:
        return None
    rank = len(results[0].shape)
    if op.type in BROADCASTING:
        return _read_by_broadcast(op, ("x", "y"), axis, rank)
    if op.type in SELECTIONS:
        return _read_by_broadcast(op, SELECTIONS[op.type], axis, rank)
    if op.type == "pd_op.matmul":
        return _read_by_product(op, axis, rank)
    if op.type == "pd_op.embedding":
        return [Sliced("x", 0, axis)] if axis < rank - 1 else None
    if op.type == "pd_op.layer_norm":
        return [Sliced("x", 0, axis)] if axis < op.attr("begin_norm_axis") else None
    if op.type == "pd_op.softmax":
        return [Sliced("x", 0, axis)] if axis != op.attr("axis") % rank else None
    if op.type == "pd_op.transpose":
        return [Sliced("x", 0, axis_order(op)[axis])]
    if op.type == "pd_op.conv2d":
        return [Sliced("input", 0, axis)] if axis >= 2 and _is_pointwise(op) else None
    if op.type in ("pd_op.unsqueeze", "pd_op.squeeze"):
        return _read_by_other_rank(op, axis, known)
    if op.type in _REDUCTIONS:
        return _read_by_reduction(op, axis, known)
    if op.type == "pd_op.concat":
        along = known(op, "axis")
        if along is None or along[0] % rank == axis:
            return None
        return [Sliced("x", index, axis) for index in range(len(op.inputs["x"]))]
    return None


def _read_by_broadcast(op: Op, names: tuple[str, ...], axis: int, rank: int) -> list[Sliced]:
    found = []
    for name in names:
        shape = op.input(name).shape
        own = axis - (rank - len(shape))
        if own >= 0 and shape[own] != 1:
            found.append(Sliced(name, 0, own))
    return found


def _read_by_product(op: Op, axis: int, rank: int) -> list[Sliced] | None:
    x, y = (op.input(name).shape for name in "xy")
    if min(len(x), len(y)) < 2 or axis == rank - 1:
        return None
    if axis < rank - 2:
        return _read_by_broadcast(op, ("x", "y"), axis, rank)
    return [Sliced("x", 0, len(x) - 1 - (not op.attr("transpose_x")))]


def _read_by_other_rank(
    op: Op, axis: int, known: Callable[[Op, str], list[int] | None]
) -> list[Sliced] | None:
    axes, x = known(op, "axis"), op.input("x").shape
    if not axes:
        return None
    if op.type == "pd_op.unsqueeze":
        # For each axis of the result, that of ``x``.
        own: list[int | None] = [*range(len(x))]
        for added in axes:
            own.insert(added % (len(own) + 1), None)
        read = own[axis]
        return None if read is None else [Sliced("x", 0, read)]
    dropped = {each % len(x) for each in axes}
    kept = [n for n in range(len(x)) if n not in dropped]
    return [Sliced("x", 0, kept[axis])] if all(x[n] == 1 for n in dropped) else None


def _read_by_reduction(
    op: Op, axis: int, known: Callable[[Op, str], list[int] | None]
) -> list[Sliced] | None:
    given = known(op, "axis") if op.has_input("axis") else op.attr("axis")
    axes = [given] if isinstance(given, int) else given
    if not axes:
        return None
    rank = len(op.input("x").shape)
    reduced = {each % rank for each in axes}
    kept = [n for n in range(rank) if op.attr("keepdim") or n not in reduced]
    return [Sliced("x", 0, kept[axis])] if kept[axis] not in reduced else None


def _is_pointwise(op: Op) -> bool:
    """Whether a convolution has a filter of one element, and takes all positions once."""
    window = op.input("filter").shape[2:]
    return (
        op.attr("data_format") == "NCHW"
        and {*window} == {*op.attr("strides")} == {1}
        and not any(op.attr("paddings"))
        and op.attr("padding_algorithm") != "SAME"
    )
