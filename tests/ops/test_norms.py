"""Norms compared with plain Paddle."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.ops.harness import check, check_fallback
from tests.ops.merging import merged
from tests.programs import Program, floats


def mixed(*shape: int) -> np.ndarray:
    """Random values with zeros among them."""
    x = floats(*shape)
    x.reshape(-1)[::3] = 0
    return x


@merged
@pytest.mark.parametrize(
    "shape, axis, keepdim, order",
    [((2, 3, 4), 1, True, order) for order in (0, 1, 2, 3, 2.5, 4, 0.5, np.inf, -np.inf, -2)]
    + [((3, 4), 1, False, order) for order in (2, 3, np.inf)]
    + [((2, 3, 4), None, False, order) for order in (0, 1, 2, np.inf)]
    + [((5,), -1, True, 2)],
)
def test_p_norm(shape, axis, keepdim, order):
    def build(x: Any) -> Any:
        flat = axis is None
        return paddle._C_ops.p_norm(x, float(order), -1 if flat else axis, 1e-12, keepdim, flat)

    x = floats(*shape) if order < 1 else mixed(*shape)
    check(build, {"x": x}, ["p_norm", "p_norm_grad"])


@merged
@pytest.mark.parametrize("order", [0, 1, 2, 3, np.inf, -np.inf])
def test_p_norm_of_zeros_and_of_nan_and_infinity(order):
    x = floats(6, 4)
    x[0] = 0
    x[1, 2] = np.inf
    x[2, 1] = -np.inf
    x[4] = np.inf
    if np.isfinite(order):
        x[3, 3] = np.nan
    check(lambda x: paddle.norm(x, order, axis=1), {"x": x}, ["p_norm", "p_norm_grad"])


@merged
@pytest.mark.parametrize("order", [np.inf, -np.inf])
def test_p_norm_of_an_infinite_order_has_nan_in_the_gradient(order):
    """The norm itself is NaN or not, depending on the index of the NaN along the axis, also in
    Paddle.
    """
    x = np.array([[0, 2, np.nan, 1], [1, -1, 0, 3]], "float32")

    def build(x: Any) -> Any:
        return paddle.static.gradients([paddle.norm(x, order, axis=0)], [x])

    check(build, {"x": x}, ["p_norm_grad"], gradients=False)


@merged
@pytest.mark.parametrize("axis, keepdim", [([0, 1], False), ([-1, 1], True), (None, False)])
def test_frobenius_norm(axis, keepdim):
    def build(x: Any) -> Any:
        return paddle._C_ops.frobenius_norm(x, axis or [], keepdim, axis is None)

    check(build, {"x": mixed(2, 3, 4)}, ["frobenius_norm", "frobenius_norm_grad"])
    check(build, {"x": np.zeros((2, 3, 4), "float32")}, ["frobenius_norm", "frobenius_norm_grad"])


@merged
@pytest.mark.parametrize("shape, axis", [((3, 4), 1), ((3, 4), 0), ((2, 3, 4), -2)])
def test_norm(shape, axis):
    def build(x: Any) -> Any:
        return paddle._C_ops.norm(x, axis, 1e-6, False)[:2]

    x = mixed(*shape)
    x[0] = 0
    check(lambda x: build(x)[0], {"x": x}, ["norm", "norm_grad"], rtol=1e-4)
    check(build, {"x": x}, ["norm"], gradients=False)


@merged
@pytest.mark.parametrize("p, axis", [(2, 1), (3, 0), (1, -1)])
def test_normalize(p, axis):
    inputs = {"x": mixed(3, 4, 5)}
    check(lambda x: F.normalize(x, p, axis), inputs, ["p_norm", "p_norm_grad"], atol=1e-5)


@merged
@pytest.mark.parametrize("bound", [0.5, 100.0])
@pytest.mark.parametrize("shape", [(), (1,), (3, 4)])
def test_clip_by_norm(shape, bound):
    def build(x: Any) -> Any:
        return paddle._C_ops.clip_by_norm(x, bound)

    for x in (floats(*shape), np.zeros(shape), np.full(shape, np.nan), np.full(shape, np.inf)):
        inputs = {"x": np.asarray(x, "float32")}
        check(build, inputs, ["clip_by_norm"], gradients=False)


@pytest.mark.parametrize("dim", [None, 0, 1, 2])
def test_weight_norm(dim):
    def build() -> Any:
        x = paddle.static.data("x", [2, 3, 8], "float32")
        layer = paddle.nn.utils.weight_norm(paddle.nn.Conv1D(3, 4, 3), dim=dim)
        loss = (layer(x) ** 2).mean()
        paddle.optimizer.SGD(0.1).minimize(loss)
        return loss

    losses = []
    for engine in (False, True):
        program = Program(build)
        losses.append([program.run(engine, x=floats(2, 3, 8))[0] for _ in range(4)])
    np.testing.assert_allclose(*losses, 1e-5)
    assert not paddle_ngraph.explain(program.main).native


@merged
@pytest.mark.parametrize("order", [0, 2, 2.5, -np.inf])
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((2, 1, 4), (3, 1))])
def test_dist(shapes, order):
    x, y = floats(*shapes[0]), floats(*shapes[1], seed=1)
    check(lambda x, y: paddle.dist(x, y, order), {"x": x, "y": y}, ["dist", "dist_grad"])


@merged
@pytest.mark.parametrize("bad", [0, np.nan, np.inf])
@pytest.mark.parametrize("kind", ["l1_norm", "squared_l2_norm"])
def test_sums_of_sizes(kind, bad):
    x = mixed(3, 4)
    x[1, 2] = bad
    function = getattr(paddle._C_ops, kind)
    for part in (x, x[0, 1]):
        check(lambda x: function(x), {"x": part}, [kind, f"{kind}_grad"])


@merged
@pytest.mark.parametrize("p, axis, bound", [(2.0, 0, 1.0), (1.0, 1, 2.0), (3.0, 2, 100.0)])
def test_renorm(p, axis, bound):
    inputs = {"x": floats(2, 3, 4)}
    check(lambda x: paddle.renorm(x, p, axis, bound), inputs, ["renorm", "renorm_grad"])


@merged
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_renorm_of_nan_and_infinity(bad):
    x = floats(3, 4)
    x[0, 1] = bad
    check(lambda x: paddle.renorm(x, 2.0, 0, 1.0), {"x": x}, ["renorm", "renorm_grad"])


@merged
def test_renorm_of_an_infinite_order_falls_back():
    inputs = {"x": floats(2, 3)}
    check_fallback(lambda x: paddle.renorm(x, np.inf, 0, 1.0), inputs, ["renorm"], gradients=False)


@merged
@pytest.mark.parametrize("shape, dim", [((3, 4), 0), ((2, 4, 3, 3), 1), ((2, 3, 5), 0)])
@pytest.mark.parametrize("steps", [1, 3])
def test_spectral_norm(shape, dim, steps):
    rest = int(np.prod(shape)) // shape[dim]
    inputs = {"weight": floats(*shape), "u": floats(shape[dim], seed=1), "v": floats(rest, seed=2)}

    def build(weight: Any, u: Any, v: Any) -> Any:
        u.stop_gradient = v.stop_gradient = True
        return paddle._C_ops.spectral_norm(weight, u, v, dim, steps, 1e-12)

    check(build, inputs, ["spectral_norm", "spectral_norm_grad"], rtol=1e-4, atol=1e-5)


def squared_norm(x):
    return paddle._C_ops.squared_l2_norm(x)


@merged
@pytest.mark.parametrize("shape", [[], [1], [7], [4, 5], [2, 3, 4]])
def test_squared_l2_norm(shape):
    check(squared_norm, {"x": floats(*shape)}, ["squared_l2_norm"], gradients=False)


@merged
def test_squared_l2_norm_of_nan():
    x = np.array([1, np.nan, 2], dtype="float32")
    check(squared_norm, {"x": x}, ["squared_l2_norm"], gradients=False)
