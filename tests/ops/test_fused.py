"""Fused operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle.incubate.nn import functional as I

import paddle_ngraph
from paddle_ngraph.paddle_private import releases
from tests.ops.harness import check
from tests.ops.merging import merged
from tests.programs import Program, floats

# -- attention -----------------------------------------------------------------------------------


@merged
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (2, 2, 8, 32)])
def test_softmax_mask(shape):
    inputs = {"x": floats(*shape), "mask": 60 * floats(shape[0], 1, *shape[2:], seed=1)}
    check(
        paddle.incubate.softmax_mask_fuse,
        inputs,
        ["fused_softmax_mask", "fused_softmax_mask_grad"],
        dynamic={"x": [-1, *shape[1:]], "mask": [-1, 1, *shape[2:]]},
    )


@merged
def test_softmax_mask_of_minus_infinity():
    x = floats(1, 1, 5, 40)
    x[..., 1, :30], x[..., 3, 3] = -np.inf, -1e30
    inputs = {"x": x, "mask": floats(1, 1, 5, 40, seed=1)}
    check(paddle.incubate.softmax_mask_fuse, inputs, ["fused_softmax_mask"])


def test_a_mask_that_paddle_rejects():
    def build() -> Any:
        x = paddle.static.data("x", [-1, 2, 4, 5])
        return paddle.incubate.softmax_mask_fuse(x, paddle.static.data("mask", [-1, 1, 4, 5]))

    program = Program(build)
    with pytest.raises(Exception, match="mask"):
        program.run(x=floats(3, 2, 4, 5), mask=floats(1, 1, 4, 5))


# -- fully connected layers ------------------------------------------------------------------------


@merged
@pytest.mark.parametrize("activation", ["", "relu"])
@pytest.mark.parametrize("rows", [1, 2])
def test_fc(rows, activation):
    def build(x: Any, w: Any, bias: Any) -> Any:
        return paddle._C_ops.fc(x, w, bias, rows, activation, False)

    inputs = {"x": floats(3, 4, 5), "w": floats(20 if rows == 1 else 5, 7), "bias": floats(7)}
    check(build, inputs, ["fc"], gradients=False, dynamic={"x": [-1, 4, 5]})


@merged
def test_fc_without_bias():
    def build(x: Any, w: Any) -> Any:
        return paddle._C_ops.fc(x, w, None, 1, "", False)

    check(build, {"x": floats(3, 4), "w": floats(4, 5)}, ["fc"], gradients=False)


@merged
def test_fc_of_padded_weights():
    def build(x: Any, w: Any, bias: Any) -> Any:
        return paddle._C_ops.fc(x, w, bias, 1, "relu", True)

    inputs = {"x": floats(3, 4), "w": floats(8, 9), "bias": floats(5)}
    check(build, inputs, ["fc"], gradients=False)


@merged
def test_repeated_fc():
    def build(x: Any, v: Any, a: Any, w: Any, b: Any) -> Any:
        return paddle._C_ops.fusion_repeated_fc_relu(x, [v, w], [a, b])[1]

    inputs = {
        "x": floats(3, 4),
        "v": floats(4, 6),
        "a": floats(6),
        "w": floats(6, 5),
        "b": floats(5),
    }
    check(build, inputs, ["fusion_repeated_fc_relu"], gradients=False)


@merged
def test_squared_mat_sub():
    def build(x: Any, y: Any) -> Any:
        return paddle._C_ops.fusion_squared_mat_sub(x, y, 0.5)

    inputs = {"x": floats(3, 4), "y": floats(4, 5, seed=1)}
    check(build, inputs, ["fusion_squared_mat_sub"], gradients=False, atol=1e-5)


# -- normalization of a sum ------------------------------------------------------------------------
# Paddle's own kernels need AVX-512; expected is what its functions compose of.

X, W, B = floats(3, 4, 5), floats(20, seed=1), floats(20, seed=2)
RESIDUAL, BIAS = floats(3, 4, 5, seed=3), floats(4, 5, seed=4)


def data(name: str, value: np.ndarray) -> Any:
    return paddle.static.data(name, value.shape, "float32")


def inputs_of(residual: bool, bias: bool) -> dict[str, np.ndarray]:
    return {
        **({"residual": RESIDUAL} if residual else {}),
        **({"bias": BIAS} if bias else {}),
    }


def run_in_engine(build: Any, kind: str, **feed: np.ndarray) -> list[np.ndarray]:
    program = Program(lambda: build(**{name: data(name, value) for name, value in feed.items()}))
    assert not paddle_ngraph.explain(program.main).native
    assert any(op.name() == f"pd_op.{kind}" for op in program.main.global_block().ops)
    return program.run(**feed)


@pytest.mark.parametrize("residual, bias", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("affine", ["wb", "w", "b"])
def test_layer_norm_of_a_sum(affine, residual, bias):
    given = {"w": W, "b": B}
    feed = {"x": X, **{name: given[name] for name in affine}, **inputs_of(residual, bias)}

    def build(x: Any, w: Any = None, b: Any = None, residual: Any = None, bias: Any = None) -> Any:
        out = I.fused_layer_norm(
            x, w, b, 1e-5, 0.5, begin_norm_axis=1, bias=bias, residual=residual
        )
        return out[:2] if residual is not None else out[0] if isinstance(out, tuple) else out

    total = X + (0.5 * RESIDUAL if residual else 0) + (BIAS if bias else 0)
    rows = total.reshape(3, 20)
    normal = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    expected = normal * (W if "w" in affine else 1) + (B if "b" in affine else 0)
    results = run_in_engine(build, "fused_bias_residual_layernorm", **feed)
    np.testing.assert_allclose(results[0], expected.reshape(3, 4, 5), 1e-5, 1e-5)
    if residual:
        np.testing.assert_allclose(results[1], total, 1e-5, 1e-5)


def test_a_sum_without_normalization():
    def build(x: Any, residual: Any, bias: Any) -> Any:
        out = I.fused_layer_norm(
            x, None, None, 1e-5, 0.5, begin_norm_axis=2, bias=bias, residual=residual
        )
        return out[0]

    kind = "fused_bias_residual_layernorm"
    results = run_in_engine(build, kind, x=X, residual=RESIDUAL, bias=BIAS[0])
    np.testing.assert_allclose(results[0], X + 0.5 * RESIDUAL + BIAS[0], 1e-5, 1e-5)


@pytest.mark.parametrize("residual, bias", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_rms_norm_of_a_sum(has_bias, residual, bias):
    feed = {"x": X, "w": W, **({"b": B} if has_bias else {}), **inputs_of(residual, bias)}

    def build(x: Any, w: Any, b: Any = None, residual: Any = None, bias: Any = None) -> Any:
        out = I.fused_rms_norm(x, w, b, 1e-5, 1, bias=bias, residual=residual)
        return out[:2] if residual is not None else out[0]

    rows = (X + (RESIDUAL if residual else 0) + (BIAS if bias else 0)).reshape(3, 20)
    expected = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-5) * W
    results = run_in_engine(build, releases.CURRENT.fused_rms_norm.partition(".")[2], **feed)
    expected = expected + (B if has_bias else 0)
    np.testing.assert_allclose(results[0], expected.reshape(3, 4, 5), 1e-5, 1e-5)
    if residual:
        np.testing.assert_allclose(results[1], rows.reshape(3, 4, 5), 1e-5, 1e-5)


def test_a_bias_without_a_residual_falls_back():
    def build() -> Any:
        out = I.fused_rms_norm(data("x", X), data("w", W), None, 1e-5, 1, bias=data("bias", BIAS))
        return out[0]

    (op,) = paddle_ngraph.explain(Program(build).main).native
    assert "bias without a residual" in op.reason


def test_unknown_activations_fall_back():
    def build() -> Any:
        x, w = paddle.static.data("x", [3, 4]), paddle.static.data("w", [4, 5])
        return paddle._C_ops.fc(x, w, None, 1, "gelu", False)

    (op,) = paddle_ngraph.explain(Program(build).main).native
    assert "activation_type" in op.reason
