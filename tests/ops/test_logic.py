"""Comparison, logic, where."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_fallback, normal
from tests.ops.merging import merged
from tests.programs import Program

ORDER = ["less_than", "less_equal", "greater_than", "greater_equal"]
COMPARISONS = ["equal", "not_equal", *ORDER]
SHAPES = [((), ()), ((3,), ()), ((2, 3), (3,)), ((2, 1), (1, 3)), ((2, 3, 4, 5), (3, 1, 5))]
STRANGE = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.5, 1e-40], "float32")


def small(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 2, shape).astype("float32")


@merged
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison(name, shapes):
    inputs = {"x": small(shapes[0], 1), "y": small(shapes[1], 2)}
    check(lambda x, y: getattr(paddle, name)(x, y), inputs, [name])


@merged
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison_of_nan_and_infinity(name):
    x, y = (np.ascontiguousarray(part) for part in np.broadcast_arrays(STRANGE[:, None], STRANGE))
    dynamic = {"x": [-1, 7], "y": [-1, -1]}
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": y}, [name], dynamic=dynamic)


@merged
@pytest.mark.parametrize("name", ["equal", "not_equal"])
def test_equality_of_int32_is_exact(name):
    x = np.array([2**24, 2**24 + 1, 2**31 - 1, -(2**31), 0, -5], "int32")
    y = np.array([2**24 + 1, 2**24 + 1, 2**31 - 2, -(2**31), 0, 5], "int32")
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": y}, [name])
    check(lambda x, y: getattr(paddle, name)(x + y, y), {"x": x, "y": y}, [name, "add"])


@merged
@pytest.mark.parametrize("name", ORDER)
def test_order_of_int32_is_exact(name):
    edges = [2**24, 2**24 + 1, 2**31 - 1, 2**31 - 2, -(2**31), 1 - 2**31, 0, 1, -1, 5, -(2**24) - 1]
    x, y = np.meshgrid(np.array(edges, "int32"), np.array(edges, "int32"))
    inputs = {"x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)}
    check(lambda x, y: getattr(paddle, name)(x, y), inputs, [name])
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": x[0], "y": y[1:2, 1]}, [name])


@merged
@pytest.mark.parametrize("name", COMPARISONS)
def test_int64_falls_back(name):
    x = np.array([1, 2**40], "int64")
    check_fallback(lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": x + 1}, [name])


@merged
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor", "equal", "not_equal"])
def test_logic(name, shapes):
    inputs = {"x": np.asarray(small(shapes[0], 1) > 0), "y": np.asarray(small(shapes[1], 2) > 0)}
    check(lambda x, y: getattr(paddle, name)(x, y), inputs, [name])


@merged
@pytest.mark.parametrize("shape", [(), (1,), (3, 5)], ids=str)
def test_logical_not(shape):
    check(paddle.logical_not, {"x": np.asarray(small(shape) > 0)}, ["logical_not"])


@merged
@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic_of_floats_and_integers(name):
    def build(x, y):
        function = getattr(paddle, name)
        return function(x, y), paddle.logical_not(x)

    x, y = (np.ascontiguousarray(part) for part in np.broadcast_arrays(STRANGE[:, None], STRANGE))
    check(build, {"x": x, "y": y}, [name, "logical_not"])
    whole = np.array([2**31 - 1, -(2**31), 0, 1, -1, 2**24 + 1], "int32")
    check(build, {"x": whole, "y": whole[::-1].copy()}, [name, "logical_not"])


@merged
def test_logic_of_int64_falls_back():
    x = {"x": np.array([2**32, 0], "int64")}
    check_fallback(lambda x: paddle.logical_not(x), x, ["logical_not"])


@merged
@pytest.mark.parametrize("name", ["equal", "not_equal", "logical_and", "logical_or", "logical_xor"])
def test_in_place(name):
    def build(x, y):
        return getattr(paddle._C_ops, f"{name}_")(x > 0, y > 0)

    check(build, {"x": small((3, 4)), "y": small((3, 4), 1)}, [f"{name}_"])


@merged
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison_in_place(name):
    def build(x, y):
        return getattr(paddle._C_ops, f"{name}_")(x * 1.0, y)

    check(build, {"x": small((3, 4)), "y": small((3, 4), 1)}, [f"{name}_"], gradients=False)


@merged
def test_in_place_logical_not():
    check(lambda x: paddle._C_ops.logical_not_(x > 0), {"x": small((3, 4))}, ["logical_not_"])


@merged
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits(name):
    edges = np.array([2**24 + 1, 2**31 - 1, -(2**31), 0, -1, 5, 0x55555555], "int32")
    x, y = np.meshgrid(edges, edges)
    inputs = {"x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)}
    check(lambda x, y: getattr(paddle, name)(x, y), inputs, [name])
    check(lambda x, y: getattr(paddle._C_ops, f"{name}_")(x + y, y), inputs, [f"{name}_"])
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": edges, "y": edges[:1]}, [name])
    flags = {"x": small((3, 4)) > 0, "y": small((4,), 1) > 0}
    check(lambda x, y: getattr(paddle, name)(x, y), flags, [name])


@merged
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits_of_int64_that_fits_into_int32(name):
    edges = np.array([2**24 + 1, 2**31 - 1, -(2**31), 0, -1, 5, 0x55555555], "int32")
    x, y = np.meshgrid(edges, edges)

    def build(x, y):
        x, y = (paddle.cast(each, "int64") for each in (x, y))
        return getattr(paddle, name)(x, paddle.bitwise_not(y))

    inputs = {"x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)}
    check(build, inputs, [name, "bitwise_not"])


@merged
@pytest.mark.parametrize("shape", [(), (1,), (3, 5)], ids=str)
def test_bitwise_not(shape):
    x = np.random.default_rng(0).integers(-(2**31), 2**31, shape, dtype="int32")
    check(lambda x: paddle.bitwise_not(x), {"x": np.asarray(x)}, ["bitwise_not"])
    check(lambda x: paddle.bitwise_not(x), {"x": np.asarray(x > 0)}, ["bitwise_not"])


@merged
@pytest.mark.parametrize("equal_nan", [True, False])
@pytest.mark.parametrize("name", ["isclose", "allclose"])
def test_isclose_and_allclose(name, equal_nan):
    def build(x, y):
        return getattr(paddle, name)(x, y, rtol=1e-3, atol=1e-4, equal_nan=equal_nan)

    x, y = (np.ascontiguousarray(part) for part in np.meshgrid(STRANGE, STRANGE))
    check(build, {"x": x, "y": y}, [name])
    check(build, {"x": x[0], "y": x[0]}, [name])
    check(build, {"x": np.float32(1.0), "y": np.float32(1.0009)}, [name])
    check(build, {"x": normal(30), "y": normal(30) * np.float32(1.001)}, [name])
    check(build, {"x": normal(9), "y": normal(9)}, [name])


REFUSED = [("isclose", np.ones(2)), ("allclose", np.ones(2)), ("allclose", np.ones(1, "int32"))]


@pytest.mark.parametrize(("name", "refused"), REFUSED, ids=str)
@pytest.mark.parametrize("tolerance", ["rtol", "atol"])
def test_tolerances_that_paddle_rejects(name, refused, tolerance):
    def build(x, **tolerances):
        tolerances = {"rtol": 0.5, "atol": 0.5, **tolerances}
        return getattr(paddle._C_ops, name)(x, x, tolerances["rtol"], tolerances["atol"], False)

    accepted = {"x": normal(3), tolerance: np.ones(1)}
    check(build, accepted, [name], gradients=False)
    with pytest.raises(ValueError, match=r"(?i)tol|element"):
        check_fallback(build, {**accepted, tolerance: refused}, [name], gradients=False)


@merged
def test_nan_to_num():
    check(lambda x: paddle.nan_to_num(x), {"x": STRANGE}, ["isnan", "where", "equal"])


@merged
@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_isnan_isinf_and_isfinite(name):
    check(getattr(paddle, name), {"x": STRANGE}, [name])
    check(getattr(paddle, name), {"x": np.resize(STRANGE, (5, 33))}, [name])


BEFORE = {
    "square": paddle.square,
    "relu": paddle.nn.functional.relu,
    "add": lambda x: x + 1.0,
    "abs": paddle.abs,
}


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("is_open", [False, True])
def test_isnan_isinf_and_isfinite_after_another_operator(name, before, is_open):
    """The plugin fuses both into one loop."""
    function = getattr(paddle, name)

    def build():
        x = paddle.static.data("x", [-1 if is_open else 33], "float32")
        return function(before(x)), function(before(x) * 0.5)

    program = Program(build)
    for size in (33, 1, 7, 8, 16, 17) if is_open else (33,):
        program.both(x=np.resize(STRANGE, size).astype("float32"))


@merged
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_where(shapes):
    def build(c, x, y):
        return paddle._C_ops.where(c, x, y)

    shape = np.broadcast_shapes(*shapes)
    c = np.asarray(small(shape) > 0)
    inputs = {"c": c, "x": normal(shape, 1), "y": normal(shape, 2)}
    check(build, inputs, ["where", "where_grad"])


@merged
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_where_with_broadcasting(shapes):
    def build(x, y):
        return paddle.where(x > y, x, y)

    check(build, {"x": normal(shapes[0], 1), "y": normal(shapes[1], 2)}, ["where", "where_grad"])


@merged
def test_where_with_dynamic_shapes():
    def build(x, y):
        return paddle.where(x > y, x, y * 2)

    inputs = {"x": normal((5, 3), 1), "y": normal((5, 3), 2)}
    dynamic = {"x": [-1, 3], "y": [-1, 3]}
    check(build, inputs, ["where", "where_grad"], dynamic=dynamic)


@merged
def test_where_of_nan():
    def build(x, y):
        return paddle.where(paddle.isnan(x), y, x)

    check(build, {"x": np.resize(STRANGE, (4, 7)), "y": normal((4, 7))}, ["where", "where_grad"])


EDGES = [2**24 + 1, -(2**24) - 1, 2**31 - 1, 2**31 - 2, 1 - 2**31, -(2**31), 2**30 + 1, 0, -1, 7]
CONDITIONS = {
    "given": lambda c, x, y, a: c,
    "of floats": lambda c, x, y, a: a > 0.0,
    "of whole numbers": lambda c, x, y, a: x <= y,
    "equality": lambda c, x, y, a: paddle.equal(x, y),
    "negated": lambda c, x, y, a: paddle.logical_not(c),
    "combined": lambda c, x, y, a: paddle.logical_xor(c, a < 0.5),
    "finite": lambda c, x, y, a: paddle.isfinite(a),
}


def edges(shape, seed):
    return np.random.default_rng(seed).choice(np.array(EDGES, "int32"), shape)


def whole_inputs(shape, y_shape=None):
    """Operands of CONDITIONS: a mask, two of int32, a float."""
    mask = np.asarray(small(shape, 3) > 0)
    y = edges(shape if y_shape is None else y_shape, 2)
    return {"c": mask, "x": edges(shape, 1), "y": y, "a": normal(shape)}


@merged
@pytest.mark.parametrize("shapes", [((), ()), ((1,), (1,)), ((8, 16), (8, 16)), ((8, 16), (8, 1))])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_where_of_int32_is_exact(condition, shapes):
    def build(c, x, y, a):
        return paddle.where(CONDITIONS[condition](c, x, y, a), x, y)

    check(build, whole_inputs(*shapes), ["where"], gradients=False)


@merged
@pytest.mark.parametrize("condition", CONDITIONS)
def test_where_of_int32_among_arithmetic_is_exact(condition):
    def build(c, x, y, a):
        chosen = paddle.where(CONDITIONS[condition](c, x, y, a), x + y, x * y)
        return [chosen - x, paddle.maximum(chosen, y), chosen.astype("float32")]

    check(build, whole_inputs((8, 16)), ["where", "maximum"], gradients=False)


@merged
@pytest.mark.parametrize("name", ["maximum", "minimum"])
@pytest.mark.parametrize("shapes", [((1,), (1,)), ((8, 16), (8, 16)), ((8, 16), (16,))])
def test_where_of_int32_after_a_comparison_is_exact(name, shapes):
    def build(c, x, y, a):
        ones = (a > 0.0).astype("int32")
        better = getattr(paddle, name)(x * ones, y)
        return [better, paddle.clip(better - ones, -(2**24) - 1, 2**24 + 1)]

    check(build, whole_inputs(*shapes), [name, "clip"], gradients=False)


@merged
def test_where_of_int64_falls_back():
    x = np.array([2**40, 5], "int64")
    c = np.array([True, False])
    check_fallback(lambda c, x, y: paddle.where(c, x, y), {"c": c, "x": x, "y": x - 1}, ["where"])


@merged
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 4)], ids=str)
def test_masked_fill(shape):
    def build(x):
        return paddle.masked_fill(x, x > 0.2, -3.5)

    check(build, {"x": normal(shape)}, ["masked_fill", "masked_fill_grad"])


@merged
@pytest.mark.parametrize("shape", [(), (1,), (8, 16)], ids=str)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_masked_fill_of_int32_is_exact(condition, shape):
    def build(c, x, y, a):
        return paddle.masked_fill(x, CONDITIONS[condition](c, x, y, a), 2**24 + 1)

    check(build, whole_inputs(shape), ["masked_fill"], gradients=False)


@merged
def test_masked_fill_with_a_tensor():
    def build(x, value):
        return paddle.masked_fill(x, x > 0.2, value)

    inputs = {"x": normal((3, 5)), "value": np.array(2.5, "float32")}
    check(build, inputs, ["masked_fill", "masked_fill_grad"])


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3), (2, 1)), ((1,), (1,))])
def test_equal_all(shapes, dtype):
    x, y = (np.ones(shape, dtype) for shape in shapes)
    for other in (y, 1 - y if dtype != "bool" else ~y):
        (found,) = check(paddle.equal_all, {"x": x, "y": other}, ["equal_all"])
        assert found.dtype == bool
