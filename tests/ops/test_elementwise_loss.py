"""Losses of one prediction for one label each, and their gradients."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.ops.harness import both, check, normal
from tests.ops.merging import merged

SHAPES = [(), (1,), (3, 5), (2, 1, 4)]
STRANGE = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 2.0], "float32")


def uniform(shape, seed=0):
    return np.asarray(np.random.default_rng(seed).uniform(size=shape), "float32")


def pairs(values=STRANGE):
    x, y = np.meshgrid(values, values)
    return {"x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)}


@merged
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_binary_cross_entropy(shape, reduction):
    def build(x, y):
        return F.binary_cross_entropy(x, y, reduction=reduction)

    check(build, {"x": uniform(shape), "y": uniform(shape, 1)}, ["bce_loss_grad"], rtol=2e-5)


@merged
def test_weighted_binary_cross_entropy():
    inputs = {"x": uniform((3, 5)), "y": uniform((3, 5), 1), "w": uniform((5,), 2)}
    check(lambda x, y, w: F.binary_cross_entropy(x, y, w), inputs, ["bce_loss_grad"])


@merged
def test_binary_cross_entropy_at_the_edges():
    def build(x, y):
        return F.binary_cross_entropy(x, y, reduction="none")

    x = np.array([0.1, 0.5, 1.0, 0.0, 1e-7, 1.0, 0.0, 1e-40, 0.3], "float32")
    y = np.array([0, 1, 1, 1, 0, 0, 0, 1, np.nan], "float32")
    check(build, {"x": x, "y": y}, ["bce_loss_grad"])


@pytest.mark.parametrize("bad", [-0.1, 1.0001, np.nan, np.inf])
def test_binary_cross_entropy_beyond_0_and_1(bad):
    main = paddle.static.Program()
    with paddle.static.program_guard(main):
        x = paddle.static.data("x", [3])
        out = F.binary_cross_entropy(x, x, reduction="sum")
    feed = {"x": np.array([0.5, bad, 0.3], "float32")}
    executor = paddle.static.Executor(paddle.CPUPlace())
    for engine in (False, True):
        with paddle_ngraph.use_ngraph(engine), pytest.raises(ValueError):
            executor.run(main, feed=feed, fetch_list=[out])


@merged
@pytest.mark.parametrize("epsilon", [1e-4, 0.1])
def test_log_loss(epsilon):
    inputs = {"x": uniform((7, 1)), "y": uniform((7, 1), 1)}
    check(lambda x, y: F.log_loss(x, y, epsilon), inputs, both("log_loss"))


@merged
def test_log_loss_of_special_values():
    inputs = {name: value.reshape(-1, 1) for name, value in pairs().items()}
    check(lambda x, y: F.log_loss(x, y), inputs, both("log_loss"))


@merged
def test_hinge_loss():
    inputs = {"x": normal((9, 1)), "y": np.asarray(normal((9, 1), 1) > 0, "float32")}
    check(lambda x, y: paddle._C_ops.hinge_loss(x, y), inputs, both("hinge_loss"))
    edges = {"x": np.array([[1.0], [-1.0], [2.0]], "float32"), "y": np.ones((3, 1), "float32")}
    check(lambda x, y: paddle._C_ops.hinge_loss(x, y), edges, both("hinge_loss"))


@merged
@pytest.mark.parametrize("log_target", [True, False])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum", "batchmean"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 4)], ids=str)
def test_divergence(shape, reduction, log_target):
    inputs = {"x": normal(shape), "y": normal(shape, 1)}
    converted = both("kldiv_loss")
    check(lambda x, y: F.kl_div(x, y, reduction, log_target), inputs, converted)
    check(lambda x, y: paddle._C_ops.kldiv_loss(x, y, reduction, log_target), inputs, converted)


@merged
@pytest.mark.parametrize("log_target", [True, False])
def test_divergence_of_special_values(log_target):
    check(lambda x, y: F.kl_div(x, y, "none", log_target), pairs(), both("kldiv_loss"))


@merged
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)], ids=str)
def test_label_smoothing(shape):
    inputs = {"x": uniform(shape)}
    check(lambda x: F.label_smooth(x, epsilon=0.2), inputs, both("label_smooth"))
    inputs["p"] = uniform((1, 4), 1)
    check(lambda x, p: F.label_smooth(x, p), inputs, both("label_smooth"))


LOSSES = {
    "mse": (F.mse_loss, ["subtract", "square_grad", "mean"]),
    "l1": (F.l1_loss, ["subtract", "abs_grad", "mean_all"]),
    "smooth_l1": (F.smooth_l1_loss, ["huber_loss_grad", "mean"]),
    "square_error": (F.square_error_cost, ["square_grad"]),
    "poisson_nll": (F.poisson_nll_loss, ["exp_grad", "mean"]),
    "soft_margin": (F.soft_margin_loss, ["log_grad", "exp_grad"]),
    "multi_label_soft_margin": (F.multi_label_soft_margin_loss, ["logsigmoid_grad"]),
    "hinge_embedding": (F.hinge_embedding_loss, ["where_grad", "relu_grad"]),
    "cosine_similarity": (F.cosine_similarity, ["clip_grad", "sqrt_grad"]),
}


@merged
@pytest.mark.parametrize("name", LOSSES)
def test_composed_losses(name):
    loss, converted = LOSSES[name]
    inputs = {"x": normal((3, 4)), "y": normal((3, 4), 1)}
    check(lambda x, y: loss(x, y), inputs, converted)


@merged
def test_losses_of_three_tensors():
    x, y, z = normal((3, 4)), normal((3, 4), 1), normal((3, 4), 2)
    inputs = {"x": x, "y": y, "z": z}
    check(lambda x, y, z: F.triplet_margin_loss(x, y, z), inputs, ["clip_grad"])
    check(lambda x, y, z: F.margin_ranking_loss(x, y, z), inputs, ["relu_grad"])
    inputs = {"x": x, "y": y, "z": np.array([1, -1, 1], "int32")}
    check(lambda x, y, z: F.cosine_embedding_loss(x, y, z), inputs, ["where_grad", "clip_grad"])
