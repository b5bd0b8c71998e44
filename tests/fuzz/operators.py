"""The table of operators: each function samples its arguments and appends one or a few operators.

Values stay bounded and away from poles, so that results are well conditioned wherever they can be.
Where they cannot (ties after rounding, kinks, cancellation) :mod:`tests.fuzz.check` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.fuzz.programs import LARGEST, Builder, Shape, Value, broadcast, joint_bits

Operator = Callable[[Builder], object]

# Sampled with these weights; failing programs shrink to the first ones.
TABLE: list[tuple[Operator, int]] = []


def operator(weight: int = 4) -> Callable[[Operator], Operator]:
    """Adds the decorated function to the table."""

    def register(function: Operator) -> Operator:
        TABLE.append((function, weight))
        return function

    return register


def _reduced(shape: Shape, axes: tuple[int, ...], keepdim: bool) -> Shape:
    axes = tuple(axis % len(shape) for axis in axes)
    if keepdim:
        return tuple(1 if n in axes else dim for n, dim in enumerate(shape))
    return tuple(dim for n, dim in enumerate(shape) if n not in axes)


def _pair(b: Builder, dtype: str = "real") -> tuple[Value, Value, Shape]:
    x = b.real() if dtype == "real" else b.whole()
    y = b.partner(x)
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    return (y, x, shape) if b.chance(40) else (x, y, shape)


# --- elementwise -------------------------------------------------------------------------------


@operator(14)
def arithmetic(b: Builder) -> None:
    """Sums, differences, products and scaled copies; exact for short numbers."""
    kind = b.choose(["add", "subtract", "multiply", "scale", "square", "neg"])
    if kind in ("add", "subtract", "multiply"):
        x, y, shape = _pair(b)
        bits = joint_bits(x, y)
        if bits is not None and kind == "multiply":
            bits = (x.bits or 0) + (y.bits or 0)
        bound = x.bound * y.bound if kind == "multiply" else x.bound + y.bound
        b.emit(f"paddle.{kind}({{0}}, {{1}})", x, y, shape=shape, bound=bound, bits=bits)
        return
    x = b.real()
    if kind == "scale":
        factor, bias = b.choose([(0.5, 0.0), (2.0, 1.0), (-0.3, 0.7)])
        after = b.choose([True, False])
        bits = None if x.bits is None or factor == -0.3 else x.bits + 1
        code = f"paddle.scale({{0}}, {factor}, {bias}, bias_after_scale={after})"
        b.emit(code, x, shape=x.shape, bound=2 * (x.bound + 1), bits=bits)
    elif kind == "square":
        bits = None if x.bits is None else 2 * x.bits
        b.emit("paddle.square({0})", x, shape=x.shape, bound=x.bound**2, bits=bits)
    else:
        b.emit("-{0}", x, shape=x.shape, bits=x.bits)


_ACTIVATIONS = (
    "paddle.tanh({0})",
    "F.sigmoid({0})",
    "F.gelu({0})",
    "F.gelu({0}, approximate=True)",
    "F.silu({0})",
    "F.swish({0})",
    "F.mish({0})",
    "F.softplus({0}, beta=1.5, threshold=4.0)",
    "F.log_sigmoid({0})",
    "F.leaky_relu({0}, 0.1)",
    "F.leaky_relu({0}, 1.5)",
    "F.elu({0}, 0.7)",
    "F.hardsigmoid({0})",
    "F.hardswish({0})",
    "F.celu({0}, 0.8)",
    "F.selu({0})",
    "F.softsign({0})",
    "F.tanhshrink({0})",
)
# Where Paddle's loop is vectorized, the gradient of silu at infinity is infinite and e^-infinity is
# the least positive number, elsewhere they are NaN and 0; infinity times the latter shows it.
_UNSTEADY_AT_INFINITY = ("F.silu({0})", "F.log_sigmoid({0})", "F.celu({0}, 0.8)")
_KINKED = (
    ("F.relu({0})", 1e9),
    ("F.relu6({0})", 6.0),
    ("paddle.abs({0})", 1e9),
    ("paddle.clip({0}, -1.0, 1.5)", 1.5),
    ("F.hardtanh({0}, -0.5, 1.0)", 1.0),
    ("F.hardshrink({0}, 0.5)", 1e9),
    ("F.thresholded_relu({0}, 0.5)", 1e9),
    ("paddle.sign({0})", 1.0),
)
_ROUNDING = ("paddle.floor({0})", "paddle.ceil({0})", "paddle.round({0})", "paddle.trunc({0})")


@operator(8)
def activation(b: Builder) -> None:
    """Smooth activations."""
    x = b.real()
    code = b.choose(_ACTIVATIONS)
    code = "F.swish({0})" if x.wild and code in _UNSTEADY_AT_INFINITY else code
    b.emit(code, x, shape=x.shape, bound=1.8 * x.bound + 1)


@operator(6)
def kinked(b: Builder) -> None:
    """Selects or cuts: no rounding, but a kink."""
    x = b.real()
    code, bound = b.choose(_KINKED)
    b.select(code, x, shape=x.shape, bound=min(max(x.bound, 1.0), bound))


@operator(2)
def rounding(b: Builder) -> None:
    """Rounds to integers."""
    x = b.real()
    b.select(b.choose(_ROUNDING), x, shape=x.shape, bound=x.bound + 1)


_SQUARE = ("paddle.pow({0}, 2.0)", 256.0)
_SMOOTH = (
    ("paddle.exp(paddle.tanh({0}))", 3.0),
    ("paddle.log(paddle.abs({0}) + 0.5)", 4.0),
    ("paddle.sqrt(paddle.abs({0}) + 0.5)", 5.0),
    ("paddle.rsqrt(paddle.abs({0}) + 0.5)", 2.0),
    ("paddle.reciprocal(paddle.abs({0}) + 0.5)", 2.0),
    ("paddle.erf({0})", 1.0),
    ("paddle.sin({0})", 1.0),
    ("paddle.cos({0})", 1.0),
    ("paddle.atan({0})", 2.0),
    ("paddle.log1p(paddle.abs({0}))", 4.0),
    ("paddle.expm1(paddle.tanh({0}))", 3.0),
    ("paddle.pow(paddle.abs({0}) + 0.5, 1.5)", 80.0),
    _SQUARE,
    ("paddle.pow({0}, 3.0)", 4096.0),
    ("0.5 - {0}", 17.0),
    ("1.0 / (paddle.abs({0}) + 0.5)", 2.0),
    ("{0} / 3.0", 6.0),
    ("paddle.log2(paddle.abs({0}) + 0.5)", 5.0),
    ("paddle.tan(paddle.tanh({0}))", 2.0),
    ("paddle.stanh({0})", 2.0),
    ("paddle.logit(F.sigmoid({0}), 0.01)", 5.0),
)


@operator(6)
def smooth(b: Builder) -> None:
    """Functions of one tensor, away from poles."""
    x = b.real()
    code, bound = b.choose(_SMOOTH)
    # Where Paddle's loop is vectorized, its cube of -infinity is infinity, and its derivative of
    # erf at infinity is not 0, as e^-infinity is not.
    unsteady = code in ("paddle.pow({0}, 3.0)", "paddle.erf({0})")
    code, bound = _SQUARE if unsteady and x.wild else (code, bound)
    b.emit(code, x, shape=x.shape, bound=bound)


@operator(5)
def extremum(b: Builder) -> None:
    """Maximum and minimum of two."""
    x, y, shape = _pair(b)
    kind = b.choose(["maximum", "minimum", "fmax", "fmin"])
    b.select(f"paddle.{kind}({{0}}, {{1}})", x, y, shape=shape)


@operator(4)
def quotient(b: Builder) -> None:
    """Division and powers, with safe second or first operands."""
    x, y, shape = _pair(b)
    code, bound = b.choose(
        [
            ("{0} / (paddle.abs({1}) + 0.5)", 2 * x.bound),
            ("paddle.pow(paddle.abs({0}) + 0.5, paddle.tanh({1}))", max(2.0, x.bound + 0.5)),
            ("F.mse_loss({0}, {1}, reduction='none')", (x.bound + y.bound) ** 2),
            ("paddle.add_n([{0}, {0}])", 2 * x.bound),
            ("paddle.lerp({0}, {1}, 0.3)", x.bound + y.bound),
        ]
    )
    if "mse" in code and x.shape != y.shape:
        code = "paddle.square({0} - {1})"
    if "add_n" in code:
        shape = x.shape
        b.emit(code, x, shape=shape, bound=bound)
        return
    b.emit(code, x, y, shape=shape, bound=bound)


# --- integers, comparisons, bools --------------------------------------------------------------


@operator(5)
def integers(b: Builder) -> None:
    """Integer arithmetic, within 31 bits."""
    x, y, shape = _pair(b, "whole")
    kind = b.choose(["add", "subtract", "maximum", "minimum", "multiply", "floor_divide", "mod"])
    bound = {"multiply": x.bound * y.bound, "add": x.bound + y.bound, "subtract": x.bound + y.bound}
    if kind in ("floor_divide", "mod"):
        divisor = b.choose([3, 4, 7])
        b.emit(f"paddle.{kind}({{0}}, paddle.full([], {divisor}, '{x.dtype}'))", x, shape=x.shape,
               dtype=x.dtype, bound=x.bound, rounds=False)  # fmt: skip
        return
    if bound.get(kind, 1) > 2.0**30:
        kind = "maximum"
    b.emit(f"paddle.{kind}({{0}}, {{1}})", x, y, shape=shape, dtype=x.dtype, rounds=False,
           bound=bound.get(kind, max(x.bound, y.bound)))  # fmt: skip


@operator(5)
def comparison(b: Builder) -> None:
    """Comparisons of floats, integers and bools."""
    kind = b.choose(
        ["greater_than", "less_than", "greater_equal", "less_equal", "equal", "not_equal"]
    )
    x, y, shape = _pair(b, b.choose(["real", "real", "whole"]))
    b.emit(f"paddle.{kind}({{0}}, {{1}})", x, y, shape=shape, dtype="bool", bound=1, rounds=False)


@operator(3)
def logic(b: Builder) -> None:
    """Logical operators."""
    x = b.truth()
    kind = b.choose(["logical_and", "logical_or", "logical_xor", "logical_not"])
    if kind == "logical_not":
        b.emit("paddle.logical_not({0})", x, shape=x.shape, dtype="bool", rounds=False)
        return
    y = b.partner(x)
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    b.emit(f"paddle.{kind}({{0}}, {{1}})", x, y, shape=shape, dtype="bool", rounds=False)


@operator(2)
def finite(b: Builder) -> None:
    """Tests for NaN, infinities and finite values."""
    x = b.real()
    kind = b.choose(["isfinite", "isnan", "isinf"])
    b.emit(f"paddle.{kind}({{0}})", x, shape=x.shape, dtype="bool", bound=1, rounds=False)


@operator(6)
def where(b: Builder) -> None:
    """Selection by a condition."""
    x, y, shape = _pair(b, b.choose(["real", "real", "real", "whole"]))
    if x.dtype != y.dtype:
        return
    condition = b.of_shape(shape, "bool")
    if b.chance(25):
        other = b.partner(x, "bool")
        wider = broadcast(shape, other.shape)
        if wider is not None and math.prod(wider) <= LARGEST:
            condition, shape = other, wider
    code = "paddle.where({2}, {0}, {1})"
    b.select(code, x, y, condition, shape=shape, bound=max(x.bound, y.bound))


@operator(2)
def masked_fill(b: Builder) -> None:
    """A scalar wherever a condition is true."""
    x = b.real(low=1)
    mask = b.of_shape(x.shape, "bool")
    b.select("paddle.masked_fill({0}, {1}, -0.5)", x, mask, shape=x.shape)


@operator(5)
def cast(b: Builder) -> None:
    """From one dtype to another."""
    x = b.any_value()
    target = b.choose(["real", "int32", "bool", "int64"])
    if target == x.dtype or (target == "real" and x.bound > 2**20):
        return
    if x.dtype == "real" and target != "bool":  # no NaN: a cast of it is undefined
        code = f'paddle.cast(paddle.where(paddle.isfinite({{0}}), {{0}}, {{0}} * 0), "{target}")'
        code = code.replace("{0} * 0", "paddle.zeros_like({0})")
    else:
        code = "paddle.cast({0}, REAL)" if target == "real" else f'paddle.cast({{0}}, "{target}")'
    bound = 1.0 if "bool" in (target, x.dtype) else x.bound
    bits = 0 if target == "real" else None
    b.emit(code, x, shape=x.shape, dtype=target, bound=bound, rounds=False, bits=bits)


# --- reductions --------------------------------------------------------------------------------


def _axes(b: Builder, x: Value, several: bool) -> tuple[int, ...]:
    axes = [b.axis(x)]
    if several and x.rank > 1 and b.chance(40):
        other = b.axis(x)
        if other % x.rank != axes[0] % x.rank:
            axes.append(other)
    return tuple(axes)


_EXTREMA = ("max", "min", "amax", "amin")


@operator(9)
def reduction(b: Builder) -> None:
    """Sums, means, extrema, products over axes."""
    kind = b.choose(["sum", "mean", "max", "min", "amax", "amin", "logsumexp", "prod"])
    keepdim = b.chance(50)
    x = b.real() if kind in ("sum", "mean", "max", "min") else b.real(low=1, high=4)
    if x.rank == 0 or b.chance(20):
        axes, text = tuple(range(x.rank)), "None"
    else:
        # Paddle leaves the gradient of an extremum over two axes of five unwritten.
        axes = _axes(b, x, kind != "prod" and not (x.rank == 5 and kind in _EXTREMA))
        text = str(list(axes)) if len(axes) > 1 or b.chance(30) else str(axes[0])
    shape = _reduced(x.shape, axes, keepdim) if x.rank else ()
    count = math.prod(x.shape[axis] for axis in axes)
    code = f"paddle.{kind}({{0}}, axis={text}, keepdim={keepdim})"
    if kind in _EXTREMA:
        b.select(code, x, shape=shape)
    elif kind == "sum":
        b.emit(code, x, shape=shape, bound=count * x.bound, bits=x.bits)
    elif kind == "prod":
        if count > 8:
            return
        code = f"paddle.prod(paddle.tanh({{0}}) + 0.4, axis={text}, keepdim={keepdim})"
        b.emit(code, x, shape=shape, bound=1.4**count)
    elif kind == "logsumexp":
        b.emit(code, x, shape=shape, bound=x.bound + math.log(max(count, 1)))
    else:
        b.emit(code, x, shape=shape, bound=x.bound)


@operator(3)
def positions(b: Builder) -> None:
    """Indices of the maximum and the minimum."""
    x = b.real(low=1)
    axis, keepdim = b.axis(x), b.chance(50)
    kind, dtype = b.choose(["argmax", "argmin"]), b.choose(["int64", "int32"])
    b.emit(f'paddle.{kind}({{0}}, axis={axis}, keepdim={keepdim}, dtype="{dtype}")', x,
           shape=_reduced(x.shape, (axis,), keepdim), dtype=dtype, bound=x.shape[axis],
           rounds=False)  # fmt: skip


@operator(2)
def truth_reduction(b: Builder) -> None:
    """Any and all."""
    x = b.truth()
    kind, keepdim = b.choose(["any", "all"]), b.chance(50)
    axes = _axes(b, x, True) if x.rank else ()
    text = list(axes) if axes else None
    b.emit(f"paddle.{kind}({{0}}, axis={text}, keepdim={keepdim})", x,
           shape=_reduced(x.shape, axes, keepdim) if x.rank else (), dtype="bool", bound=1,
           rounds=False)  # fmt: skip


@operator(2)
def whole_reduction(b: Builder) -> None:
    """Reductions of integers."""
    x = b.whole(lambda value: value.rank > 0)
    if x.rank == 0:
        return
    kind, axis = b.choose(["max", "min", "sum"]), b.axis(x)
    dtype = "int64" if kind == "sum" else x.dtype
    bound = x.bound * x.shape[axis] if kind == "sum" else x.bound
    b.emit(f"paddle.{kind}({{0}}, axis={axis})", x, shape=_reduced(x.shape, (axis,), False),
           dtype=dtype, bound=bound, rounds=False)  # fmt: skip


@operator(2)
def cumulative(b: Builder) -> None:
    """Running sums, variance, norms."""
    x = b.real(low=1, where=lambda value: value.bits is None and not value.wild)
    axis = b.axis(x)
    count = x.shape[axis]
    kind = b.choose(["cumsum", "var", "norm"])
    if kind == "cumsum":
        b.emit(f"paddle.cumsum({{0}}, axis={axis})", x, shape=x.shape, bound=count * x.bound)
    elif kind == "var":
        b.emit(f"paddle.var({{0}}, axis={axis}, unbiased=False)", x,
               shape=_reduced(x.shape, (axis,), False), bound=x.bound**2)  # fmt: skip
    else:
        b.emit(f"paddle.sqrt(paddle.sum(paddle.square({{0}}), axis={axis}) + 0.5)", x,
               shape=_reduced(x.shape, (axis,), False), bound=2 * x.bound * count)  # fmt: skip


# --- matrices ----------------------------------------------------------------------------------


@operator(9)
def matmul(b: Builder) -> None:
    """Products of matrices, vectors and batches of them."""
    x = b.real(low=1, high=4)
    left, right = x.rank > 1 and b.chance(30), b.chance(30)
    inner = x.shape[-2] if left else x.shape[-1]
    if b.chance(15):
        y = b.of_shape((inner,))
        right = False
        columns: Shape = ()
    else:
        width = b.choose([3, 1, 4, 6])
        batch = x.shape[:-2] if x.rank > 2 and b.chance(40) else ()
        if batch and b.chance(40):
            batch = tuple(1 if b.chance(40) else dim for dim in batch)
        y = b.of_shape(batch + ((width, inner) if right else (inner, width)))
        columns = (width,)
    rows: Shape = () if x.rank == 1 else (x.shape[-1] if left else x.shape[-2],)
    shape = x.shape[:-2] + rows + columns
    bits = None if joint_bits(x, y) is None else (x.bits or 0) + (y.bits or 0)
    b.emit(f"paddle.matmul({{0}}, {{1}}, transpose_x={left}, transpose_y={right})", x, y,
           shape=shape, bound=x.bound * y.bound * inner, bits=bits)  # fmt: skip


@operator(4)
def small_products(b: Builder) -> None:
    """bmm, mv, dot, addmm, linear, einsum."""
    kind = b.choose(["linear", "addmm", "bmm", "mv", "dot", "einsum"])
    if kind == "dot":
        x = b.real(low=1, high=2)
        y = b.of_shape(x.shape)
        b.emit("paddle.dot({0}, {1})", x, y, shape=x.shape[:-1],
               bound=x.bound * y.bound * x.shape[-1])  # fmt: skip
        return
    x = b.real(low=3, high=3) if kind == "bmm" else b.real(low=2, high=2)
    inner = x.shape[-1]
    if kind == "bmm":
        y = b.of_shape((x.shape[0], inner, 3))
        b.emit("paddle.bmm({0}, {1})", x, y, shape=(*x.shape[:2], 3),
               bound=x.bound * y.bound * inner)  # fmt: skip
    elif kind == "mv":
        y = b.of_shape((inner,))
        b.emit("paddle.mv({0}, {1})", x, y, shape=x.shape[:1], bound=x.bound * y.bound * inner)
    elif kind == "einsum":
        y = b.of_shape((inner, 2))
        b.emit("paddle.einsum('ij,jk->ki', {0}, {1})", x, y, shape=(2, x.shape[0]),
               bound=x.bound * y.bound * inner)  # fmt: skip
    else:
        y = b.of_shape((inner, 4))
        bias = b.of_shape((4,) if kind == "linear" else (x.shape[0], 4))
        code = (
            "F.linear({0}, {1}, {2})"
            if kind == "linear"
            else "paddle.addmm({2}, {0}, {1}, beta=0.5, alpha=1.5)"
        )
        b.emit(code, x, y, bias, shape=(x.shape[0], 4),
               bound=1.5 * x.bound * y.bound * inner + bias.bound)  # fmt: skip


# --- moving elements ---------------------------------------------------------------------------


@operator(7)
def reshape(b: Builder) -> None:
    """Equal elements in another shape."""
    x = b.any_value()
    kind = b.choose(["reshape", "flatten", "unsqueeze", "squeeze"])
    if kind == "unsqueeze" and x.rank < 5:
        axis = b.integer(-x.rank - 1, x.rank)
        place = axis % (x.rank + 1)
        b.select(f"paddle.unsqueeze({{0}}, {axis})", x,
                 shape=(*x.shape[:place], 1, *x.shape[place:]))  # fmt: skip
    elif kind == "squeeze" and 1 in x.shape:
        axis = x.shape.index(1)
        b.select(f"paddle.squeeze({{0}}, {axis})", x,
                 shape=x.shape[:axis] + x.shape[axis + 1 :])  # fmt: skip
    elif kind == "flatten" and x.rank > 1:
        start = b.integer(0, x.rank - 2)
        shape = (*x.shape[:start], math.prod(x.shape[start:]))
        b.select(f"paddle.flatten({{0}}, start_axis={start})", x, shape=shape)
    else:
        size, shape_list = x.size, []
        for _ in range(b.integer(0, 3)):
            dim = b.choose([d for d in (2, 3, 1, 4, 5) if size % d == 0])
            shape_list.append(dim)
            size //= dim
        shape_list.insert(b.integer(0, len(shape_list)), size)
        text = list(shape_list)
        if b.chance(50):
            text[b.integer(0, len(text) - 1)] = -1
        b.select(f"paddle.reshape({{0}}, {text})", x, shape=tuple(shape_list))


@operator(6)
def transpose(b: Builder) -> None:
    """Another order of the axes, or of the elements along one."""
    x = b.any_value(low=1)
    if x.rank == 0:
        return
    kind = b.choose(["transpose", "flip", "roll"])
    if kind == "transpose":
        order = list(range(x.rank))
        for n in range(x.rank - 1, 0, -1):
            m = n - b.integer(0, n)
            order[n], order[m] = order[m], order[n]
        b.select(f"paddle.transpose({{0}}, {order})", x, shape=tuple(x.shape[n] for n in order))
    elif kind == "flip":
        b.select(f"paddle.flip({{0}}, axis=[{b.axis(x)}])", x, shape=x.shape)
    else:
        b.select(f"paddle.roll({{0}}, {b.integer(-2, 3)}, axis={b.axis(x)})", x, shape=x.shape)


@operator(6)
def concat(b: Builder) -> None:
    """Several tensors in one."""
    x = b.any_value(low=1)
    if x.rank == 0 or 3 * x.size > LARGEST:
        return
    kind = b.choose(["concat", "stack"])
    others = [b.of_shape(x.shape, x.dtype) for _ in range(b.integer(1, 2))]
    parts = [x, *others]
    bound = max(part.bound for part in parts)
    text = ", ".join(f"{{{n}}}" for n in range(len(parts)))
    if kind == "concat":
        axis = b.axis(x)
        shape = list(x.shape)
        shape[axis] *= len(parts)
        b.select(f"paddle.concat([{text}], axis={axis})", *parts, shape=tuple(shape), bound=bound)
    elif x.rank < 5:
        axis = b.integer(-x.rank - 1, x.rank)
        place = axis % (x.rank + 1)
        b.select(f"paddle.stack([{text}], axis={axis})", *parts, bound=bound,
                 shape=(*x.shape[:place], len(parts), *x.shape[place:]))  # fmt: skip


@operator(5)
def split(b: Builder) -> None:
    """One tensor in several."""
    x = b.any_value(low=1)
    if x.rank == 0:
        return
    axis = b.axis(x)
    dim = x.shape[axis]
    kind = b.choose(["split", "unbind", "chunks"])
    before, after = x.shape[: axis % x.rank], x.shape[axis % x.rank + 1 :]
    if kind == "unbind" and dim <= 5:
        b.emit_several(f"paddle.unbind({{0}}, axis={axis})", x, shapes=[before + after] * dim)
    elif kind == "chunks" and dim % 2 == 0:
        shapes = [(*before, dim // 2, *after)] * 2
        b.emit_several(f"paddle.split({{0}}, 2, axis={axis})", x, shapes=shapes)
    elif dim > 1:
        first = b.integer(1, dim - 1)
        shapes = [(*before, part, *after) for part in (first, dim - first)]
        b.emit_several(
            f"paddle.split({{0}}, [{first}, {dim - first}], axis={axis})", x, shapes=shapes
        )


@operator(6)
def slice_(b: Builder) -> None:
    """A slice of a tensor, with positive and negative indices and steps."""
    x = b.any_value(low=1)
    if x.rank == 0:
        return
    texts, shape = [], []
    for dim in x.shape:
        kind = b.choose(["all", "part", "one", "step"])
        if kind == "one":
            texts.append(str(b.integer(-dim, dim - 1)))
            continue
        start = b.integer(0, dim - 1) if kind != "all" else 0
        stop = b.integer(start + 1, dim) if kind != "all" else dim
        step = b.choose([2, 3]) if kind == "step" else 1
        texts.append(":" if kind == "all" else f"{start}:{stop}:{step}")
        shape.append(len(range(start, stop, step)))
    b.select(f"{{0}}[{', '.join(texts)}]", x, shape=tuple(shape))


@operator(4)
def expand(b: Builder) -> None:
    """Copies along axes."""
    x = b.any_value(high=4)
    kind = b.choose(["expand", "tile", "repeat"])
    if kind == "expand":
        shape = tuple(b.choose([2, 3]) if dim == 1 else dim for dim in x.shape)
        if x.rank < 4 and b.chance(50):
            shape = (2, *shape)
        if math.prod(shape) <= LARGEST:
            b.select(f"paddle.expand({{0}}, {list(shape)})", x, shape=shape)
    elif kind == "tile" and x.rank and x.size * 4 <= LARGEST:
        times = [b.choose([1, 2]) for _ in x.shape]
        b.select(f"paddle.tile({{0}}, {times})", x,
                 shape=tuple(n * dim for n, dim in zip(times, x.shape)))  # fmt: skip
    elif x.rank and x.size * 2 <= LARGEST and x.dtype != "bool":
        axis = b.integer(0, x.rank - 1)
        shape_list = list(x.shape)
        shape_list[axis] *= 2
        b.select(f"paddle.repeat_interleave({{0}}, 2, axis={axis})", x, shape=tuple(shape_list))


@operator(3)
def pad(b: Builder) -> None:
    """Padding around a tensor, or a triangle of a matrix."""
    kind = b.choose(["pad", "pad2d", "tril", "triu"])
    if kind == "pad":
        x = b.real(low=1, high=4)
        pads = [b.integer(0, 2) for _ in range(2 * x.rank)]
        shape = tuple(dim + pads[2 * n] + pads[2 * n + 1] for n, dim in enumerate(x.shape))
        if math.prod(shape) <= LARGEST:
            b.select(f"F.pad({{0}}, {pads}, value=0.5)", x, shape=shape, bound=x.bound + 0.5)
    elif kind == "pad2d":
        x = b.real(low=4, high=4, where=lambda value: min(value.shape[2:]) > 1)
        mode = b.choose(["constant", "reflect", "replicate", "circular"])
        shape = (*x.shape[:2], x.shape[2] + 2, x.shape[3] + 1)
        if min(x.shape[2:]) > 1:
            b.select(f'F.pad({{0}}, [1, 0, 1, 1], mode="{mode}")', x, shape=shape)
    else:
        x = b.real(low=2)
        b.select(f"paddle.{kind}({{0}}, diagonal={b.integer(-1, 1)})", x, shape=x.shape)


# --- indexing ----------------------------------------------------------------------------------


@operator(6)
def gather(b: Builder) -> None:
    """Elements at indices."""
    x = b.any_value(low=1, high=4)
    if x.rank == 0 or x.dtype == "bool":
        return
    kind = b.choose(["gather", "index_select", "gather_nd", "take_along_axis", "index_sample"])
    axis = b.integer(0, x.rank - 1)
    if kind == "gather_nd":
        ids = b.new_ids((3, 1), x.shape[0])
        b.select("paddle.gather_nd({0}, {1})", x, ids, shape=(3, *x.shape[1:]), bound=x.bound)
    elif kind == "take_along_axis":
        shape_list = list(x.shape)
        shape_list[axis] = b.choose([2, 1, 5])
        ids = b.new_ids(tuple(shape_list), x.shape[axis])
        b.select(f"paddle.take_along_axis({{0}}, {{1}}, {axis})", x, ids, bound=x.bound,
                 shape=tuple(shape_list))  # fmt: skip
    elif kind == "index_sample" and x.rank == 2:
        ids = b.new_ids((x.shape[0], 3), x.shape[1])
        b.select("paddle.index_sample({0}, {1})", x, ids, shape=ids.shape, bound=x.bound)
    else:
        name = "index_select" if kind == "index_select" else "gather"
        ids = b.new_ids((b.choose([3, 1, 6]),), x.shape[axis])
        shape = x.shape[:axis] + ids.shape + x.shape[axis + 1 :]
        if math.prod(shape) <= LARGEST:
            b.select(f"paddle.{name}({{0}}, {{1}}, axis={axis})", x, ids, shape=shape,
                     bound=x.bound)  # fmt: skip


@operator(4)
def embedding(b: Builder) -> None:
    """Rows of a table, and rows of a table with one row."""
    ids = b.new_ids(b.shape(1, 2), 5)
    if b.chance(40):
        b.emit(
            "paddle.cast(F.one_hot({0}, 5), REAL)",
            ids,
            shape=(*ids.shape, 5),
            bound=1,
            bits=0,
            rounds=False,
        )
        return
    table = b.of_shape((5, b.choose([3, 1, 4])))
    padding = b.choose([None, 0])
    b.select(f"F.embedding({{1}}, {{0}}, padding_idx={padding})", table, ids,
             shape=(*ids.shape, table.shape[1]), bound=table.bound)  # fmt: skip


@operator(2)
def ordering(b: Builder) -> None:
    """Largest elements and sorted ones."""
    x = b.real(low=1, where=lambda value: value.bits is None and not value.wild)
    axis = b.axis(x)
    if b.chance(50):
        k = b.integer(1, x.shape[axis])
        shape_list = list(x.shape)
        shape_list[axis] = k
        b.select(f"paddle.topk({{0}}, {k}, axis={axis})[0]", x, shape=tuple(shape_list))
    else:
        b.select(f"paddle.sort({{0}}, axis={axis})", x, shape=x.shape)


@operator(2)
def counting(b: Builder) -> None:
    """Ramps, filled tensors, shapes as tensors."""
    x = b.real()
    kind = b.choose(["full_like", "arange", "shape", "zeros", "numel"])
    if kind == "arange":
        b.emit("paddle.arange(0, 6, dtype=REAL)", shape=(6,), bound=6, bits=0, rounds=False)
    elif kind == "shape" and x.rank:
        b.emit("paddle.shape({0})", x, shape=(x.rank,), dtype="int64", bound=10, rounds=False)
    elif kind == "numel":
        b.emit("paddle.numel({0})", x, shape=(), dtype="int64", bound=LARGEST, rounds=False)
    else:
        code = "paddle.full_like({0}, 0.75)" if kind == "full_like" else "paddle.zeros_like({0})"
        b.emit(code, x, shape=x.shape, bound=1, bits=2, rounds=False)


# --- convolutions, pooling, normalization ------------------------------------------------------


def _image(b: Builder, low: int = 2, calm: bool = False) -> Value:
    """A tensor [n, c, h, w] with h, w of at least ``low``."""

    def fits(value: Value) -> bool:
        return min(value.shape[2:]) >= low and not (calm and value.wild)

    x = b.real(low=4, high=4, where=fits)
    if fits(x):
        return x
    return b.new_real((b.choose([2, 1]), b.choose([2, 1, 4]), low + 2, low + 1), calm)


@operator(5)
def conv(b: Builder) -> None:
    """Convolutions, grouped and transposed ones too."""
    # In plain Paddle, infinite weights give NaN for the zeros around an image.
    x = _image(b, 2, calm=True)
    channels = x.shape[1]
    groups = channels if channels > 1 and b.chance(30) else 1
    stride, padding = b.choose([1, 2]), b.choose([0, 1])
    kernel = b.choose([2, 1])
    if b.chance(25):
        w = b.of_shape((channels, 2, kernel, kernel), calm=True)
        sides = tuple((dim - 1) * stride - 2 * padding + kernel for dim in x.shape[2:])
        shape = (x.shape[0], 2, *sides)
        if min(sides) < 1 or math.prod(shape) > LARGEST:
            return
        b.emit(f"F.conv2d_transpose({{0}}, {{1}}, stride={stride}, padding={padding})", x, w,
               shape=shape, bound=x.bound * w.bound * channels * kernel**2)  # fmt: skip
        return
    out = groups * b.choose([1, 2]) if groups > 1 else b.choose([3, 1, 2])
    w = b.of_shape((out, channels // groups, kernel, kernel), calm=True)
    sides = tuple((dim + 2 * padding - kernel) // stride + 1 for dim in x.shape[2:])
    shape = (x.shape[0], out, *sides)
    code = f"F.conv2d({{0}}, {{1}}, None, {stride}, {padding}, 1, {groups})"
    b.emit(code, x, w, shape=shape,
           bound=x.bound * w.bound * channels // groups * kernel**2 + 1)  # fmt: skip


def _above_least(code: str, x: Value) -> str:
    """The maximum ``code`` of windows of ``x``, without the lowest float.

    A window of NaN and -infinity alone yields it. Its square overflows float32, and in a
    normalization Paddle's root of that infinity is NaN where its loop is vectorized.
    """
    return f"paddle.maximum({code}, paddle.full([], -16.0, REAL))" if x.wild else code


def _pooled(shape: Shape, kernel: int, stride: int, padding: int, ceil: bool) -> Shape:
    more = stride - 1 if ceil else 0
    return tuple((dim + 2 * padding - kernel + more) // stride + 1 for dim in shape)


@operator(4)
def pool(b: Builder) -> None:
    """Pooling, fixed and adaptive; resized images."""
    x = _image(b, 2)
    kind = b.choose(["max", "avg", "adaptive_avg", "adaptive_max", "interpolate"])
    if kind.startswith("adaptive"):
        code = f"F.{kind}_pool2d({{0}}, [2, 1])"
        code = _above_least(code, x) if kind == "adaptive_max" else code
        b.emit(code, x, shape=(*x.shape[:2], 2, 1))
    elif kind == "interpolate":
        shape = (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
        mode = b.choose(["nearest", "bilinear"])
        if math.prod(shape) <= LARGEST:
            code = f'F.interpolate({{0}}, scale_factor=[2, 2], mode="{mode}")'
            b.emit(code, x, shape=shape)
    else:
        kernel, stride, padding = 2, b.choose([2, 1]), b.choose([0, 1])
        ceil = b.chance(30)
        sides = _pooled(x.shape[2:], kernel, stride, padding, ceil)
        # The maximum of a window with padding alone is the lowest float.
        if any((n - 1) * stride - padding >= dim for n, dim in zip(sides, x.shape[2:])):
            ceil = False
            sides = _pooled(x.shape[2:], kernel, stride, padding, ceil)
        code = f"F.{kind}_pool2d({{0}}, 2, {stride}, {padding}, ceil_mode={ceil})"
        emit = b.select if kind == "max" else b.emit
        code = _above_least(code, x) if kind == "max" else code
        emit(code, x, shape=(*x.shape[:2], *sides))


@operator(5)
def normalization(b: Builder) -> None:
    """Batch, layer, group and instance normalization."""
    kind = b.choose(["layer_norm", "batch_norm", "group_norm", "instance_norm"])

    def varied(value: Value) -> bool:
        return value.bits is None

    if kind == "layer_norm":
        x = b.real(low=2, high=4, where=varied)
        w, bias = b.of_shape(x.shape[-1:]), b.of_shape(x.shape[-1:])
        # If both are one tensor, Paddle's gradient of float64, the reference, may have no memory.
        bias = b.new_real(x.shape[-1:]) if bias is w else bias
        code = f"F.layer_norm({{0}}, {list(x.shape[-1:])}, {{1}}, {{2}}, 0.001)"
        b.emit(code, x, w, bias, shape=x.shape, bound=w.bound * 4 + bias.bound)
        return
    x = b.real(low=2, high=4, where=varied) if kind == "batch_norm" else _image(b)
    channels = x.shape[1]
    w, bias = b.of_shape((channels,)), b.of_shape((channels,))
    if kind == "batch_norm":
        mean, variance = b.fixed((channels,), -0.5, 0.5), b.fixed((channels,), 0.5, 1.5)
        training = b.chance(60)
        code = f"F.batch_norm({{0}}, {{3}}, {{4}}, {{1}}, {{2}}, {training}, 0.9, 0.001)"
        b.emit(code, x, w, bias, mean, variance, shape=x.shape,
               bound=w.bound * (4 + x.bound) + bias.bound)  # fmt: skip
    elif kind == "group_norm":
        code = "F.group_norm({0}, 1, 0.001, {1}, {2})"
        b.emit(code, x, w, bias, shape=x.shape, bound=w.bound * 4 + bias.bound)
    else:
        code = "F.instance_norm({0}, weight={1}, bias={2}, eps=0.001)"
        b.emit(code, x, w, bias, shape=x.shape, bound=w.bound * 4 + bias.bound)


# --- losses ------------------------------------------------------------------------------------


@operator(5)
def softmax(b: Builder) -> None:
    """Softmax and its logarithm."""
    x = b.real(low=1)
    axis = b.axis(x)
    kind = b.choose(["softmax", "log_softmax"])
    b.emit(f"F.{kind}({{0}}, axis={axis})", x, shape=x.shape, bound=2 * x.bound + 3)


@operator(6)
def loss(b: Builder) -> None:
    """Losses for classes and for values."""
    kind = b.choose(
        ["cross_entropy", "nll", "soft", "bce_logits", "bce", "smooth_l1", "l1", "kl", "mse"]
    )
    reduction = b.choose(["mean", "none", "sum"])
    if kind in ("cross_entropy", "nll"):
        x = b.real(low=2, high=2)
        ids = b.new_ids(x.shape[:1], x.shape[1])
        shape: Shape = x.shape[:1] if reduction == "none" else ()
        code = (
            f'F.cross_entropy({{0}}, {{1}}, reduction="{reduction}")'
            if kind == "cross_entropy"
            else f'F.nll_loss(F.log_softmax({{0}}), {{1}}, reduction="{reduction}")'
        )
        if ids.dtype == "int32" and kind == "nll":
            code = code.replace("{1}", 'paddle.cast({1}, "int64")')
        b.emit(code, x, ids, shape=shape, bound=(2 * x.bound + 3) * x.shape[0])
        return
    x = b.real(low=2, high=3) if kind == "soft" else b.real(low=1)
    y = b.of_shape(x.shape)
    shape = x.shape if reduction == "none" else ()
    if kind == "soft":
        shape = (*x.shape[:-1], 1) if reduction == "none" else ()
    code = {
        "soft": "F.cross_entropy({0}, F.softmax({1}), soft_label=True, reduction='R')",
        "bce_logits": "F.binary_cross_entropy_with_logits({0}, F.sigmoid({1}), reduction='R')",
        "bce": "F.binary_cross_entropy(F.sigmoid({0}), F.sigmoid({1}), reduction='R')",
        "smooth_l1": "F.smooth_l1_loss({0}, {1}, reduction='R', delta=0.7)",
        "l1": "F.l1_loss({0}, {1}, reduction='R')",
        "kl": "F.kl_div(F.log_softmax({0}), F.softmax({1}), reduction='R')",
        "mse": "F.mse_loss({0}, {1}, reduction='R')",
    }[kind].replace("R", reduction)
    count = x.size if reduction == "sum" else 1
    b.emit(code, x, y, shape=shape, bound=count * (x.bound + y.bound + 2) ** 2)


# --- bfloat16, empty tensors -------------------------------------------------------------------


@operator(2)
def bfloat16(b: Builder) -> None:
    """A round trip, for values of at most 8 binary digits."""

    def is_short(value: Value) -> bool:
        return value.bits is not None and value.bits + math.log2(max(value.bound, 1.0)) <= 7

    x = b.real(where=is_short)
    if not is_short(x):
        return
    short = "paddle.cast({0}, 'bfloat16')"
    if b.chance(40):
        b.select(f"paddle.cast({short} * 2.0, REAL)", x, shape=x.shape, bound=2 * x.bound)
    else:
        b.select(f"paddle.cast({short}, REAL)", x, shape=x.shape)


@operator(4)
def empty(b: Builder) -> None:
    """Tensors that are or may be empty: selected elements, no elements, slices of length 0."""
    x = b.real(low=1, high=4, where=lambda value: not value.wild)
    if x.wild:
        return
    kind = b.choose(["masked", "none", "nonzero", "concat", "sum", "product", "norm", "gather"])
    nothing = "{0}[0:0]"
    if kind in ("masked", "none"):
        mask = b.of_shape(x.shape, "bool")
        chosen = "{1}" if kind == "masked" else "paddle.logical_and({1}, paddle.logical_not({1}))"
        b.emit(f"paddle.sum(F.relu(paddle.masked_select({{0}}, {chosen})))", x, mask, shape=(),
               bound=x.size * x.bound, bits=x.bits)  # fmt: skip
    elif kind == "nonzero":
        b.emit("paddle.sum(paddle.nonzero({0} > 1), axis=0)", x, shape=(x.rank,), dtype="int64",
               bound=x.size * 10, rounds=False)  # fmt: skip
    elif kind == "concat":
        b.select(f"paddle.concat([{nothing}, {{0}}], axis=0)", x, shape=x.shape)
    elif kind == "sum":
        b.emit(f"paddle.sum(paddle.tanh({nothing}), axis=0)", x, shape=x.shape[1:], bound=1)
    elif kind == "product" and x.rank > 1:
        y = b.of_shape((x.shape[-1], 3))
        b.emit(f"paddle.sum(paddle.matmul({nothing}, {{1}}), axis=0)", x, y,
               shape=(*x.shape[1:-1], 3), bound=1)  # fmt: skip
    elif kind == "norm":
        b.emit(f"paddle.sum(F.softmax({nothing}, axis=-1) * 2.0, axis=0)", x,
               shape=x.shape[1:], bound=1)  # fmt: skip
    elif x.rank > 1:
        rows = "paddle.reshape(paddle.nonzero({0}[:, 0] > 1), [-1])" if x.rank == 2 else None
        if rows is not None:
            b.emit(f"paddle.sum(paddle.gather({{0}}, {rows}), axis=0)", x, shape=x.shape[1:],
                   bound=x.bound * x.shape[0], bits=x.bits)  # fmt: skip


# --- control flow ------------------------------------------------------------------------------

_BODIES = (
    ("paddle.tanh({0})", 1.0),
    ("{0} * 0.5 + 0.25", 16.0),
    ("F.relu({0}) - 0.5", 16.0),
    ("paddle.maximum({0}, -{0})", 16.0),
    ("F.softmax({0} * 0.5, axis=-1)", 1.0),
)


def _body(b: Builder, x: Value) -> tuple[str, float]:
    return b.choose(_BODIES if x.rank else _BODIES[:4])


def _branch(b: Builder, x: Value, condition: str) -> tuple[str, float]:
    """The code of a branch, and the bound of its yielded value."""
    (one, first), (other, second) = _body(b, x), _body(b, x)
    code = f"paddle.static.nn.cond({condition}, lambda: {one}, lambda: {other})"
    return code, max(min(x.bound, first), min(x.bound, second)) + 0.5


def _loop(iterations: int, body: str, x: str = "{0}") -> str:
    """The code of a loop over ``i`` and ``h``.

    Plain Paddle overwrites the initial value, although ``x`` has other readers: it is copied.
    """
    return (
        f"paddle.static.nn.while_loop(lambda i, h: i < {iterations}, lambda i, h: [i + 1, {body}], "
        f"[paddle.full([], 0, 'int64'), paddle.assign({x})])[1]"
    )


@operator(3)
def branch(b: Builder) -> None:
    """A branch by a condition that is unknown before a run."""
    x, truth = b.real(where=lambda value: not value.wild), b.truth()
    code, bound = _branch(b, x, "paddle.any({1})")
    b.emit(code, x, truth, shape=x.shape, bound=bound)


@operator(3)
def loop(b: Builder) -> None:
    """A few iterations, or none; around a branch, or in one."""
    x = b.real(where=lambda value: not value.wild)
    iterations, kind = b.choose([2, 0, 1, 4]), b.choose(["plain", "branch inside", "in a branch"])
    if kind == "plain":
        body, _ = _body(b, x)
    else:
        body, _ = _branch(b, x, "i % 2 == 0")
    if kind == "in a branch":
        truth = b.truth()
        body = _loop(iterations, body.replace("{0}", "h"))
        code = f"paddle.static.nn.cond(paddle.all({{1}}), lambda: {body}, lambda: {{0}} + 0.5)"
        b.emit(code, x, truth, shape=x.shape, bound=x.bound + 1)
    else:
        b.emit(_loop(iterations, body.replace("{0}", "h")), x, shape=x.shape, bound=x.bound + 1)


# --- in-place operators ------------------------------------------------------------------------

_IN_PLACE = (
    ("F.relu_({0})", False),
    ("paddle.tanh_({0})", True),
    ("{0}.exp_()", True),
    ("{0}.scale_(0.5)", True),
    ("{0}.clip_(-1.0, 1.0)", False),
    ("{0}.floor_()", False),
)


@operator(2)
def in_place(b: Builder) -> None:
    """Operators that overwrite their input."""
    fresh = [v for v in reversed(b.values) if v.dtype == "real" and b.is_fresh(v)]
    if not fresh:
        return
    x = b.choose(fresh)
    code, rounds = b.choose(_IN_PLACE)
    # Where Paddle's loop is vectorized, e^-infinity is not 0.
    if "exp" in code and (x.bound > 3 or x.wild):
        return
    b.in_place(code, x, math.exp(x.bound) if "exp" in code else x.bound + 1, rounds)


CHOICES = [function for function, weight in TABLE for _ in range(weight)]

OPTIMIZERS = (
    "paddle.optimizer.SGD(0.1)",
    "paddle.optimizer.Momentum(0.1, 0.9)",
    "paddle.optimizer.Adam(0.05)",
    "paddle.optimizer.Adagrad(0.1)",
    "paddle.optimizer.AdamW(0.05, weight_decay=0.02)",
    "paddle.optimizer.RMSProp(0.05)",
    "paddle.optimizer.Adadelta(0.5)",
    "paddle.optimizer.Adamax(0.05)",
    "paddle.optimizer.Lamb(0.05)",
    "paddle.optimizer.Momentum(0.1, 0.9, use_nesterov=True, weight_decay=0.01)",
    "paddle.optimizer.SGD(0.1, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5))",
    "paddle.optimizer.Adam(0.05, grad_clip=paddle.nn.ClipGradByNorm(0.5))",
)
