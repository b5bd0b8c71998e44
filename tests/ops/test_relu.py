"""Piecewise linear activations and their smooth variants, with gradients."""

from __future__ import annotations

from functools import partial

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from tests.ops import harness
from tests.ops.harness import both, check, check_fallback
from tests.ops.merging import merged

ACTIVATIONS = {
    "celu": F.celu,
    "selu": F.selu,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "thresholded_relu": F.thresholded_relu,
    "hardtanh": F.hardtanh,
    "rrelu": lambda x: F.rrelu(x, training=False),
}
normal = partial(harness.normal, scale=2.0)
SHAPES = [(), (1,), (3, 5), (2, 3, 4, 5)]
EDGES = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1e-40, 90.0, -110.0], "float32"
)


@merged
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_shapes(name, shape):
    check(ACTIVATIONS[name], {"x": normal(shape)}, both(name))


@merged
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_many_values_of_dynamic_shape(name):
    x = np.concatenate([normal(500), np.linspace(-30, 30, 241, dtype="float32")]).reshape(-1, 3)
    check(ACTIVATIONS[name], {"x": x}, both(name), dynamic={"x": [-1, 3]})


@merged
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_infinity_and_edges(name):
    check(ACTIVATIONS[name], {"x": EDGES}, both(name))


@merged
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradient_of_infinity(name):
    def build(x, slope):
        return ACTIVATIONS[name](x) * slope

    x = np.repeat(np.array([-3.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 7.0], "float32"), 3)
    slope = np.tile(np.array([np.inf, -np.inf, np.nan], "float32"), 8)
    check(build, {"x": x, "slope": slope}, both(name))


@merged
@pytest.mark.parametrize("alpha", [0.5, 2.0, -0.7])
def test_celu(alpha):
    x = np.concatenate([normal(40), [np.nan]]).astype("float32")
    check(lambda x: F.celu(x, alpha), {"x": x}, both("celu"))


@merged
def test_selu_with_other_constants():
    check(lambda x: F.selu(x, 1.5, 0.5), {"x": normal(40)}, both("selu"))


@merged
@pytest.mark.parametrize("threshold", [0.0, 1.3])
@pytest.mark.parametrize("name", ["hardshrink", "softshrink"])
def test_shrink(name, threshold):
    check(lambda x: getattr(F, name)(x, threshold), {"x": normal(40)}, both(name))


@merged
def test_thresholded_relu_with_a_value():
    check(lambda x: F.thresholded_relu(x, 0.3, -4.0), {"x": normal(40)}, both("thresholded_relu"))


@merged
@pytest.mark.parametrize(
    "arguments", [(np.nan, 2.0), (np.inf, 2.0), (0.3, np.nan), (0.3, -np.inf)], ids=str
)
def test_thresholded_relu_of_attributes_that_are_not_finite(arguments):
    x = np.array([*normal(20), 0.0, -0.0, np.inf, -np.inf], "float32")
    check(lambda x: F.thresholded_relu(x, *arguments), {"x": x}, both("thresholded_relu"))


@merged
def test_hardtanh_of_other_bounds():
    check(lambda x: F.hardtanh(x, -0.3, 1.7), {"x": normal(40)}, both("hardtanh"))


@merged
@pytest.mark.parametrize(
    ("name", "arguments"), [("hardtanh_", (-1.0, 1.0)), ("thresholded_relu_", (0.5, 0.1))]
)
def test_in_place(name, arguments):
    def build(x):
        return getattr(paddle._C_ops, name)(x * 1.0, *arguments)

    check(build, {"x": normal((3, 5))}, [name], gradients=False)


@merged
def test_rrelu_of_training_falls_back():
    build = lambda x: F.rrelu(x, training=True) * 0  # noqa: E731
    check_fallback(build, {"x": normal(6)}, ["rrelu"], gradients=False)


@merged
@pytest.mark.parametrize(
    ("shape", "slopes", "layout"),
    [
        ((2, 3, 4, 5), 1, "NCHW"),
        ((2, 3, 4, 5), 3, "NCHW"),
        ((2, 4, 5, 3), 3, "NHWC"),
        ((4, 3), 3, "NCHW"),
        ((7,), 1, "NCHW"),
        ((2, 3, 4), 3, "NCL"),
    ],
    ids=str,
)
def test_prelu(shape, slopes, layout):
    inputs = {"x": normal(shape), "w": normal(slopes, 1)}
    check(lambda x, w: F.prelu(x, w, layout), inputs, both("prelu"))


@merged
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 5)], ids=str)
def test_prelu_of_one_slope_for_each_element(shape):
    def build(x, w):
        return paddle._C_ops.prelu(x, w, "NCHW", "element")

    inputs = {"x": normal(shape), "w": normal((1, *shape[1:]), 1)}
    check(build, inputs, both("prelu"))


@merged
def test_prelu_of_special_values():
    inputs = {"x": EDGES, "w": np.array([0.3], "float32")}
    check(lambda x, w: F.prelu(x, w), inputs, both("prelu"))
