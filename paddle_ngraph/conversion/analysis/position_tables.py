"""Tensors of a loop's body whose elements are known functions of positions: masks, places.

A mask of a decoder is computed from the number of words alone. Its elements at positions ``i`` and
``j`` are those of one table for the largest number of words, if every operator computes an element
from those at the same positions, or from the positions themselves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paddle_ngraph.conversion.analysis.axis_order import axis_order
from paddle_ngraph.ir.graph import BFLOAT16, Op

Table = np.ndarray

# Maximum number of elements of a table.
MAX_TABLE = 2**23

_UNARY: Mapping[str, Callable[..., np.ndarray]] = {
    "pd_op.assign": np.asarray,
    "pd_op.bitwise_not": np.invert,
    "pd_op.cast": np.asarray,
    "pd_op.logical_not": np.logical_not,
}
_BINARY: Mapping[str, Callable[..., np.ndarray]] = {
    "pd_op.add": operator.add,
    "pd_op.bitwise_and": np.bitwise_and,
    "pd_op.bitwise_or": np.bitwise_or,
    "pd_op.equal": operator.eq,
    "pd_op.greater_equal": operator.ge,
    "pd_op.greater_than": operator.gt,
    "pd_op.less_equal": operator.le,
    "pd_op.less_than": operator.lt,
    "pd_op.logical_and": np.logical_and,
    "pd_op.logical_or": np.logical_or,
    "pd_op.maximum": np.maximum,
    "pd_op.minimum": np.minimum,
    "pd_op.multiply": operator.mul,
    "pd_op.not_equal": operator.ne,
    "pd_op.subtract": operator.sub,
}
TRIANGLES: Mapping[str, Callable[..., np.ndarray]] = {"pd_op.tril": np.tril, "pd_op.triu": np.triu}
_SELECTIONS = ("pd_op.where", "pd_op.masked_fill")
_OF_OTHER_RANK = ("pd_op.expand", "pd_op.reshape", "pd_op.squeeze", "pd_op.unsqueeze")


def table_of(
    op: Op, tables: Mapping[str, Table], before: Sequence[int], after: Sequence[int], grows: bool
) -> Table | None:
    """The table of an operator's result; ``None`` if it is not a function of positions alone.

    A table is smaller than the tensor, of size 1, along axes along which elements are equal.

    Args:
        op: The operator, with one result.
        tables: The tables of its inputs, by name, as far as there are any.
        before: The largest sizes of its input ``x``; 1 where a size is unknown.
        after: The largest sizes of the result; those other than 1, also unknown ones, are those of
            ``x`` in order if the operator is a reshape. Those of a triangle are known.
        grows: Whether the result has an axis that grows from iteration to iteration.
    """
    (result,) = op.output_specs()
    if result.dtype == BFLOAT16 or not _is_small(op, tables):
        return None
    try:
        with np.errstate(all="ignore"):
            found = _computed(op, tables, before, after, grows)
    except TypeError:  # NumPy has no difference of bools, for example
        return None
    if found is None or found.size > MAX_TABLE:
        return None
    return found.astype(result.dtype, copy=False)


def _is_small(op: Op, tables: Mapping[str, Table]) -> bool:
    """Whether the table of an operator that broadcasts is small enough to be computed."""
    if op.type not in _BINARY and op.type not in _SELECTIONS:
        return True
    shape = np.broadcast_shapes(*(table.shape for table in tables.values()))
    return math.prod(shape) <= MAX_TABLE


def _computed(
    op: Op, tables: Mapping[str, Table], before: Sequence[int], after: Sequence[int], grows: bool
) -> Table | None:
    rank = len(after)
    if op.type == "pd_op.full":
        return np.full([1] * rank, op.attr("value"))
    if op.type in ("pd_op.full_like", "pd_op.full_with_tensor"):
        value = tables.get("value")
        return None if value is None or value.size != 1 else value.reshape([1] * rank)
    if op.type == "pd_op.arange":
        first, step = tables.get("start"), tables.get("step")
        if not grows or first is None or step is None:
            return None
        return first.reshape(-1)[:1] + step.reshape(-1)[:1] * np.arange(after[0])
    if not {name for name, specs in op.inputs.items() if specs} - {"axis", "shape"} <= {*tables}:
        return None
    if op.type in _BINARY:
        return _BINARY[op.type](tables["x"], tables["y"])
    if op.type in _SELECTIONS:
        return _selected(op, tables)
    x = tables.get("x")
    if x is None:
        return None
    if op.type in _UNARY:
        return _UNARY[op.type](x)
    if op.type == "pd_op.scale":
        return _scaled(op, x, tables["scale"])
    if op.type == "pd_op.transpose":
        return x.transpose(axis_order(op))
    if op.type in TRIANGLES and x[..., 0, 0].size * after[-1] * after[-2] <= MAX_TABLE:
        whole = np.broadcast_to(x, (*x.shape[:-2], *after[-2:]))
        return TRIANGLES[op.type](whole, op.attr("diagonal"))
    if op.type in _OF_OTHER_RANK:
        return _with_rank(op, x, before, after)
    return None


def _selected(op: Op, tables: Mapping[str, Table]) -> Table:
    if op.type == "pd_op.where":
        return np.where(tables["condition"], tables["x"], tables["y"])
    return np.where(tables["mask"], tables["value"], tables["x"])


def _scaled(op: Op, x: Table, scale: Table) -> Table | None:
    if scale.size != 1:
        return None
    dtype = np.float32 if x.dtype == np.float32 else np.float64
    factor, bias = (np.asarray(n, dtype) for n in (scale.reshape(()), op.attr("bias", 0.0)))
    return x * factor + bias if op.attr("bias_after_scale", True) else (x + bias) * factor


def _with_rank(op: Op, x: Table, before: Sequence[int], after: Sequence[int]) -> Table:
    """The table of a tensor with other axes of size 1, or repeated along new axes."""
    if op.type == "pd_op.expand":
        return x.reshape([1] * (len(after) - x.ndim) + [*x.shape])
    sizes = iter(kept for size, kept in zip(before, x.shape) if size != 1)
    return x.reshape([1 if size == 1 else next(sizes) for size in after])
