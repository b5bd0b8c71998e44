"""Activation functions and their gradients."""

from __future__ import annotations

from functools import partial

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle.incubate.nn.functional import swiglu

from tests.ops import harness
from tests.ops.harness import both, check
from tests.ops.merging import merged

ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "tanh": paddle.tanh,
    "sigmoid": F.sigmoid,
    "silu": F.silu,
    "swish": F.swish,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "mish": F.mish,
    "logsigmoid": F.log_sigmoid,
    "gelu": F.gelu,
    "softsign": F.softsign,
    "tanh_shrink": F.tanhshrink,
    "stanh": paddle.stanh,
}
normal = partial(harness.normal, scale=3.0)
SHAPES = [(), (1,), (3, 5), (2, 1, 4), (2, 1, 2, 3, 2)]
# Plain Paddle's gradient at an infinite x contains its exp of -infinity, 3e-39.
NO_INFINITY = {"silu"}


@merged
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_shapes(name, shape):
    check(ACTIVATIONS[name], {"x": normal(shape)}, both(name))


@merged
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_many_values_of_dynamic_shape(name):
    x = np.concatenate([normal(500), np.linspace(-30, 30, 241, dtype="float32")]).reshape(-1, 3)
    check(ACTIVATIONS[name], {"x": x}, both(name), dynamic={"x": [-1, 3]}, atol=3e-6)


@merged
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_infinity_and_edges(name):
    edges = [np.nan, 0.0, -0.0, 3.0, -3.0, 6.0, 20.0, -20.0, 1e-40, 60.0, -60.0, 1e4, -1e4]
    if name not in NO_INFINITY:
        edges += [np.inf, -np.inf]
    check(ACTIVATIONS[name], {"x": np.array(edges, "float32")}, both(name))


@merged
@pytest.mark.parametrize("name", ["relu", "relu6", "hardswish", "gelu", "tanh", "sigmoid"])
def test_nan_after_a_matmul(name):
    def build(x, y):
        return ACTIVATIONS[name](paddle.matmul(x, y))

    x = normal((4, 5))
    x[1, 2], x[2, 0] = np.nan, np.inf
    check(build, {"x": x, "y": np.abs(normal((5, 17), 1)) + 1}, ["matmul", *both(name)])


@merged
@pytest.mark.parametrize("name", ["relu", "relu6", "leaky_relu", "hardsigmoid"])
def test_gradient_of_nan(name):
    def build(x):
        return ACTIVATIONS[name](x) * paddle.full([4], float("nan"))

    check(build, {"x": np.array([1.0, -1.0, 0.0, 7.0], "float32")}, both(name))


@merged
@pytest.mark.parametrize("slope", [0.3, 0.0, -0.5, 1.0, 2.0])
def test_leaky_relu(slope):
    check(lambda x: F.leaky_relu(x, slope), {"x": normal((3, 5))}, both("leaky_relu"))


@merged
@pytest.mark.parametrize("slope", [np.nan, np.inf, -np.inf])
def test_leaky_relu_of_a_slope_that_is_not_finite(slope):
    x = np.array([*normal(20), 0.0, -0.0, np.inf, -np.inf], "float32")
    check(lambda x: F.leaky_relu(x, slope), {"x": x}, both("leaky_relu"))


@merged
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 0.0])
def test_elu(alpha):
    check(lambda x: F.elu(x, alpha), {"x": normal((3, 5))}, both("elu"))


@merged
def test_elu_of_negative_alpha():
    x = np.concatenate([normal(20), np.array([np.nan, -np.inf, np.inf], "float32")])
    check(lambda x: F.elu(x, -0.5), {"x": x}, both("elu"))


@merged
@pytest.mark.parametrize("approximate", [True, False])
def test_gelu(approximate):
    x = np.concatenate([normal(200), np.array([np.nan, np.inf, -np.inf, 0, 9, -9], "float32")])
    check(lambda x: F.gelu(x, approximate), {"x": x}, both("gelu"), atol=3e-6)


@merged
@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (2.0, 20.0), (0.5, 1.5), (1.0, 3.0)])
def test_softplus(beta, threshold):
    x = np.concatenate([normal(200), np.array([np.nan, np.inf, -np.inf, 3.0], "float32")])
    check(lambda x: F.softplus(x, beta, threshold), {"x": x}, both("softplus"))


@merged
def test_hardsigmoid_line():
    x = np.concatenate([normal(20), np.array([np.nan, np.inf, -np.inf], "float32")])
    check(lambda x: F.hardsigmoid(x, 0.3, 0.2), {"x": x}, both("hardsigmoid"))


@merged
@pytest.mark.parametrize("name", ["relu_", "tanh_", "sigmoid_", "leaky_relu_", "elu_"])
def test_in_place(name):
    arguments = {"leaky_relu_": (0.1,), "elu_": (1.0,)}.get(name, ())

    def build(x):
        return getattr(paddle._C_ops, name)(x * 1.0, *arguments)

    check(build, {"x": normal((3, 5))}, [name], gradients=False)


@merged
def test_stanh_with_other_constants():
    check(lambda x: paddle.stanh(x, 1.5, 0.3), {"x": normal((3, 5))}, both("stanh"))


@merged
@pytest.mark.parametrize("shape", [(4,), (3, 6), (2, 3, 4)], ids=str)
def test_swiglu(shape):
    check(swiglu, {"x": normal(shape)}, both("swiglu"))
    check(swiglu, {"x": normal(shape), "y": normal(shape, 1)}, both("swiglu"))


@merged
def test_swiglu_of_special_values():
    inputs = {"x": np.array([np.nan, 1.0, 0.0, 60.0, -60.0], "float32"), "y": normal(5)}
    check(swiglu, inputs, both("swiglu"))
    check(swiglu, {"x": inputs["y"], "y": np.array([np.nan, np.inf, -np.inf, 0, 1], "float32")})


@merged
def test_glu():
    check(F.glu, {"x": normal((3, 6))}, ["split_with_num", "sigmoid", "multiply"])
