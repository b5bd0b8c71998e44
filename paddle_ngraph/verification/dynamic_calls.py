"""Operators of optimizers in dynamic mode by kernels of the core, compared with Paddle's kernels.

They are part of no subgraph: the core computes a call of a C function of Paddle. The reference is
that function, on copies of the arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import paddle

from paddle_ngraph.ir.graph import Op
from paddle_ngraph.paddle_private.names import is_initialized, operators
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.verification import checks
from paddle_ngraph.verification.bisection import Located
from paddle_ngraph.verification.comparison import Pair, Reference, compare_pairs
from paddle_ngraph.verification.evaluation import Noise, tensor_of
from paddle_ngraph.verification.judgement import FLOAT32


def check_call(name: str, given: tuple[Any, ...], result: Any) -> None:
    """Compares the result of a call with Paddle's. Called by the core, whose kernels are off here.

    Args:
        name: The function.
        given: Its arguments before the call, with copies of tensors.
        result: The result; of a call in place, tensors among the arguments.
    """

    def compared() -> None:
        subject = checks.subjects.get_or_create(f"call of {name}", checks.Subject)
        call = _RepeatedCall(name, given)
        native, found = call.results(), _arrays(_listed(result))
        reference = Reference(call.exact_results, FLOAT32)
        pairs = [
            Pair(f"result {number}", number, _dense(found[number]), _dense(native[number]))
            for number in native
        ]
        differences = compare_pairs(pairs, reference)
        op = Op(f"pd_op.{name}", 0)
        located = Located(op, f"{op.type}, a call of dynamic mode")
        checks.record(subject, differences, lambda: checks.Mismatch(differences, located))

    checks.check(compared)


class _RepeatedCall:
    """A call that Paddle repeats, in float32 or in float64."""

    def __init__(self, name: str, given: tuple[Any, ...]) -> None:
        self._function = getattr(operators, name)
        self._arrays = _arrays(given)
        self._given = given

    def results(self, dtype: str = "float32", noise: Noise | None = None) -> dict[int, np.ndarray]:
        """The results by position."""
        args = list(self._given)
        for number, array in self._arrays.items():
            changed = array if noise is None else noise.added(array.astype(dtype))
            args[number] = paddle.to_tensor(changed.astype(dtype))
        return _arrays(_listed(self._function(*args)))

    def exact_results(self, noise: Noise | None) -> Mapping[int, np.ndarray]:
        """The results in float64."""
        found = self.results("float64", noise)
        return found if noise is None else {n: noise.added(array) for n, array in found.items()}


def _listed(result: Any) -> Iterable[Any]:
    return result if isinstance(result, (tuple, list)) else [result]


def _arrays(values: Iterable[Any]) -> dict[int, np.ndarray]:
    """The contents of the tensors among some values, by position."""
    return {
        number: value.numpy()
        for number, value in enumerate(values)
        if isinstance(value, paddle.Tensor) and is_initialized(cast("Tensor", value.get_tensor()))
    }


def _dense(array: np.ndarray) -> Tensor:
    return tensor_of(array, array.dtype.name)
