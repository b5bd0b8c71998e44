"""Lets Paddle 3.3 export networks under the old IR.

Its ``paddle.matmul``, ``paddle.multiply`` and 50 more call functions of the core that take no
``Variable``, so that hardly any network can be exported under ``FLAGS_enable_pir_api=0``. Files of
Paddle 2 have these operators: here such calls append what Paddle 2 appends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import paddle
from paddle import _C_ops
from paddle.base.framework import Variable
from paddle.base.layer_helper import LayerHelper

Function = Callable[..., Any]

_INT64 = 3


def _append(
    type: str,
    inputs: Mapping[str, Any],
    attributes: Mapping[str, Any] | None = None,
    dtype: Any = None,
    output: str = "Out",
) -> Any:
    """The result of a new operator, by default of the dtype of its first input."""
    helper = LayerHelper(type)
    first = next(iter(inputs.values()))
    out = helper.create_variable_for_type_inference(first.dtype if dtype is None else dtype)
    helper.append_op(
        type=type, inputs=dict(inputs), outputs={output: out}, attrs=dict(attributes or {})
    )
    return out


def _unary(type: str, dtype: Any = None) -> Function:
    return lambda x, name=None, *, out=None: _append(type, {"X": x}, dtype=dtype)


def _binary(type: str, dtype: Any = None, **attributes: Any) -> Function:
    def call(x: Any, y: Any, name: str | None = None, *, out: Any = None) -> Any:
        return _append(type, {"X": x, "Y": y}, attributes, dtype)

    return call


def _reduction(type: str, result: Any = None) -> Function:
    def call(
        x: Any, axis: Any = None, *more: Any, keepdim: bool = False, dtype: Any = None, **_: Any
    ) -> Any:
        axes = [] if axis is None else list(axis) if isinstance(axis, (list, tuple)) else [axis]
        if more:  # keepdim, or of a sum dtype and keepdim
            keepdim = bool(more[-1])
        attributes = {
            **{"dim": axes or [0], "keep_dim": keepdim},
            "reduce_all": not axes or len(axes) == len(x.shape),
        }
        return _append(type, {"X": x}, attributes, result or dtype)

    return call


def _logsumexp(x: Any, axis: Any = None, keepdim: bool = False, name: Any = None) -> Any:
    axes = [] if axis is None else list(axis) if isinstance(axis, (list, tuple)) else [axis]
    attributes = {"axis": axes or [0], "keepdim": keepdim, "reduce_all": not axes}
    return _append("logsumexp", {"X": x}, attributes)


def _extreme_index(type: str) -> Function:
    def call(
        x: Any, axis: Any = None, keepdim: bool = False, dtype: Any = "int64", name: Any = None
    ) -> Any:
        flatten = axis is None
        attributes = {
            **{"axis": 0 if flatten else axis, "keepdims": keepdim},
            **{"flatten": flatten, "dtype": _INT64},
        }
        return _append(type, {"X": x}, attributes, "int64")

    return call


def _matmul(
    x: Any,
    y: Any,
    transpose_x: bool = False,
    transpose_y: bool = False,
    name: Any = None,
    *,
    out: Any = None,
) -> Any:
    attributes = {"trans_x": transpose_x, "trans_y": transpose_y}
    return _append("matmul_v2", {"X": x, "Y": y}, attributes)


def _expand_as(x: Any, y: Any, name: Any = None) -> Any:
    return _append("expand_as_v2", {"X": x, "Y": y}, {"target_shape": list(y.shape)})


def _gelu(x: Any, approximate: Any = False, name: Any = None) -> Any:
    return _append("gelu", {"X": x}, {"approximate": approximate in (True, "tanh")})


def _softplus(x: Any, beta: float = 1, threshold: float = 20, name: Any = None) -> Any:
    return _append("softplus", {"X": x}, {"beta": float(beta), "threshold": float(threshold)})


def _grid_sample(
    x: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = True,
    name: Any = None,
) -> Any:
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    return _append("grid_sampler", {"X": x, "Grid": grid}, attributes, output="Output")


def _roll(x: Any, shifts: Any, axis: Any = None, name: Any = None) -> Any:
    shifts, axes = ([v] if isinstance(v, int) else list(v or []) for v in (shifts, axis))
    return _append("roll", {"X": x}, {"shifts": shifts, "axis": axes})


def _normalize(
    x: Any,
    p: float = 2,
    axis: int = 1,
    epsilon: float = 1e-12,
    name: Any = None,
    *,
    out: Any = None,
) -> Any:
    attributes = {"axis": axis, "porder": float(p), "keepdim": True, "epsilon": epsilon}
    norm = _append("p_norm", {"X": x}, attributes)
    least = paddle.full([1], epsilon, norm.dtype)
    norm = _append("elementwise_max", {"X": norm, "Y": least}, {"axis": -1})
    return _append("elementwise_div", {"X": x, "Y": norm}, {"axis": -1})


def _triangle(lower: bool) -> Function:
    def call(x: Any, diagonal: int = 0, name: Any = None, *, out: Any = None) -> Any:
        return _append("tril_triu", {"X": x}, {"diagonal": diagonal, "lower": lower})

    return call


_UNARY = (
    *("abs", "acos", "acosh", "asin", "atanh", "ceil", "cos", "cosh", "exp", "expm1", "floor"),
    *("log", "log10", "log1p", "log2", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh"),
    *("sqrt", "tanh"),
)
_LOGICAL = ("logical_and", "logical_or", "logical_xor", "greater_than")

REPLACEMENTS: dict[str, Function] = {
    **{name: _unary(name) for name in _UNARY},
    **{name: _unary(f"{name}_v2", "bool") for name in ("isfinite", "isinf", "isnan")},
    **{name: _binary(name, "bool") for name in _LOGICAL},
    **{name: _reduction(f"reduce_{name}") for name in ("sum", "amax", "amin")},
    **{name: _reduction(f"reduce_{name}", "bool") for name in ("all", "any")},
    "logical_not": _unary("logical_not", "bool"),
    "multiply": _binary("elementwise_mul", axis=-1),
    "maximum": _binary("elementwise_max", axis=-1),
    "minimum": _binary("elementwise_min", axis=-1),
    "bmm": _binary("bmm"),
    "dot": _binary("dot"),
    "logsumexp": _logsumexp,
    "argmax": _extreme_index("arg_max"),
    "argmin": _extreme_index("arg_min"),
    "matmul": _matmul,
    "expand_as": _expand_as,
    "gelu": _gelu,
    "softplus": _softplus,
    "grid_sample": _grid_sample,
    "roll": _roll,
    "tril": _triangle(lower=True),
    "triu": _triangle(lower=False),
}


# The same for functions of Paddle's Python code.
_IN_PYTHON: dict[Function, Function] = {paddle.nn.functional.normalize: _normalize}


@contextmanager
def old_ir() -> Iterator[None]:
    """Behaves as ``FLAGS_enable_pir_api=0`` does, with the functions of Paddle 2."""
    functions = {getattr(_C_ops, name): older for name, older in REPLACEMENTS.items()}
    replaced = {
        present: _taking_variables(present, older)
        for present, older in {**functions, **_IN_PYTHON}.items()
    }
    with paddle.pir_utils.OldIrGuard(), ExitStack() as stack:
        for module, name, function in _references(list(replaced)):
            stack.enter_context(patch.object(module, name, replaced[function]))
        yield


def _references(functions: list[Function]) -> Iterator[tuple[Any, str, Function]]:
    """The names in modules of Paddle, and the methods of variables, that are these functions."""
    wanted = {id(function): function for function in functions}
    for name, value in list(vars(Variable).items()):
        if id(value) in wanted:
            yield Variable, name, wanted[id(value)]
    for title, module in list(sys.modules.items()):
        if title.partition(".")[0] == "paddle":
            for name, value in list(vars(module).items()):
                if id(value) in wanted:
                    yield module, name, wanted[id(value)]


def _taking_variables(present: Function, older: Function) -> Function:
    def call(*arguments: Any, **named: Any) -> Any:
        values = [*arguments, *named.values()]
        # In dynamic mode, tensors are instances of it, too.
        is_old = not paddle.in_dynamic_mode() and any(isinstance(v, Variable) for v in values)
        takes = older if is_old else present
        return takes(*arguments, **named)

    return call
