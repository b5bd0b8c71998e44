"""How large the elements of tensors may be: a mask hides scores that are smaller than its numbers.

Products and normalized tensors are taken to be ordinary, unless constants of the program make them
large. Whatever else follows from data may be of any size: a bias that is fed may hide words itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from paddle_ngraph.ir.graph import Op, TensorSpec

# Numbers of a magnitude up to this one, added to scores, hide nothing.
VISIBLE = 1e6
_PRODUCTS = frozenset(f"pd_op.{name}" for name in ("bmm", "conv2d", "matmul"))
_NORMALIZED = frozenset(f"pd_op.{name}" for name in ("layer_norm", "sigmoid", "softmax", "tanh"))
_OPEN = frozenset(
    f"pd_op.{name}"
    for name in (
        *("cumprod", "cumsum", "divide", "elementwise_pow", "exp", "log", "pow", "prod"),
        *("rsqrt", "sum"),
    )
)


class Magnitude(NamedTuple):
    """How large the elements of a tensor may be.

    Attributes:
        factor: How far the constants of the program enlarge them, or their magnitude if they are
            constants.
        is_open: Whether they may have any size, apart from that.
    """

    factor: float
    is_open: bool


ORDINARY = Magnitude(1.0, False)


def magnitude_outside(spec: TensorSpec) -> Magnitude:
    """The magnitude of a tensor from outside of the loop, or of one that it carries."""
    return Magnitude(1.0, spec.dtype != "bool")


def magnitude_of_table(table: np.ndarray) -> Magnitude:
    """The magnitude of known elements; NaN counts as infinite."""
    most = float(np.max(np.abs(table.astype(np.float64)), initial=0.0))
    return Magnitude(math.inf if math.isnan(most) else most, False)


def magnitude_of(
    op: Op, read: Mapping[str, Sequence[Magnitude]], tables: Mapping[str, np.ndarray]
) -> Magnitude:
    """The magnitude of an operator's results.

    Args:
        op: The operator.
        read: The magnitudes of its inputs, by name, as far as they are known.
        tables: The elements of inputs that are known, by name.
    """
    (result, *_) = op.output_specs()
    if op.type in _NORMALIZED or result.dtype == "bool":
        return ORDINARY
    known = [each for name, specs in read.items() if name not in _INTEGERS for each in specs]
    is_open = any(each.is_open for each in known)
    factor = _factor(op, [each.factor for each in known], tables)
    if any(isinstance(value, float) and abs(value) > VISIBLE for value in op.attrs.values()):
        factor = math.inf
    if math.isnan(factor):
        factor = math.inf
    if op.type in _PRODUCTS:
        return Magnitude(factor, False)
    return Magnitude(factor, is_open or (op.type in _OPEN and not _divides_by_constant(op, tables)))


# Inputs that say where elements are.
_INTEGERS = frozenset({"axis", "ends", "shape", "starts"})


def _factor(op: Op, factors: Sequence[float], tables: Mapping[str, np.ndarray]) -> float:
    if op.type == "pd_op.scale":
        return math.prod(factors) + abs(float(op.attr("bias", 0.0)) or 0.0)
    if op.type in _PRODUCTS or op.type == "pd_op.multiply":
        return math.prod(factors)
    if op.type == "pd_op.square":
        return math.prod(factors) ** 2
    if op.type in ("pd_op.add", "pd_op.subtract"):
        return math.fsum(factors)
    if op.type == "pd_op.divide" and _divides_by_constant(op, tables):
        least = float(np.min(np.abs(tables["y"].astype(np.float64)), initial=math.inf))
        return factors[0] / least if least > 0 else math.inf
    return max(factors, default=1.0)


def _divides_by_constant(op: Op, tables: Mapping[str, np.ndarray]) -> bool:
    return op.type == "pd_op.divide" and "y" in tables
