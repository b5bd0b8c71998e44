"""Converters of paddle_ngraph.ops.quantization compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import _C_ops

import paddle_ngraph
from tests.ops.harness import (
    both,
    check,
    check_fallback,
    forced_fallback,
    normal,
    strange,
)
from tests.ops.merging import merged

EVALUATES, TRAINS = True, False
ROUNDS = [0, 1]  # ties to even, ties away from zero
# Axis and scales for [3, 4, 5]; the smallest scale is treated as zero.
SCALES = {
    "per tensor": (-1, [2.0]),
    "axis 0": (0, [1.0, 2.5, 3e-31]),
    "axis 1": (1, [4.0, 0.1, 0.0, 2.0]),
}
EXACT = {"gradients": False, "rtol": 0, "atol": 0}
# Paddle multiplies by the scale and divides in a different order.
DEQUANTIZED = {"gradients": False, "rtol": 3e-7, "atol": 0}


def values(*shape):
    """Special values, and values beyond every scale of these tests."""
    x = strange(*shape) * np.float32(3)
    return np.where(np.isinf(x), np.float32(1e30), x)


def halves():
    """Midpoints between integers for a scale of 127, up to beyond the clipping bounds."""
    return np.arange(-262, 263, dtype="float32").reshape(-1, 1, 5) / 2


def tensors(*arrays):
    return [paddle.assign(np.asarray(array, "float32")) for array in arrays]


def quantize_linear(
    x, axis, scale, round_type=0, is_test=EVALUATES, only_observer=False, bits=8, made=tensors
):
    """Returns all results of ``quantize_linear``, called as by ``paddle.quantization``."""
    scales, zeros, accum, state = made(scale, np.zeros(len(scale)), [1.5], [2.0])
    qmax = 2 ** (bits - 1) - 1
    return _C_ops.quantize_linear(
        *(x, scales, zeros, accum, state, axis, bits, -qmax - 1, qmax),
        *(round_type, is_test, only_observer),
    )


def parameters(*arrays):
    """Parameters as in a saved model: no subgraph computes them, and a subgraph contains those it
    reads.
    """
    return [
        paddle.create_parameter(
            array.shape, "float32", default_initializer=paddle.nn.initializer.Assign(array)
        )
        for array in (np.asarray(array, "float32") for array in arrays)
    ]


def dequantize_linear(x, axis, scale, only_observer=False, bits=8, qmax=0):
    scales, zeros, accum, state = tensors(scale, np.zeros(len(scale)), [1.0], [1.0])
    qmax = qmax or 2 ** (bits - 1) - 1
    return _C_ops.dequantize_linear(
        *(x, scales, zeros, accum, state, axis, bits, -qmax - 1, qmax),
        *(0, EVALUATES, only_observer),
    )[0]


# -- quantization ----------------------------------------------------------------------------------


@merged
@pytest.mark.parametrize("made", [tensors, parameters], ids=["tensors", "parameters"])
@pytest.mark.parametrize("round_type", ROUNDS)
@pytest.mark.parametrize("axis, scale", SCALES.values(), ids=SCALES)
def test_quantize_linear(axis, scale, round_type, made):
    def build(x):
        return quantize_linear(x, axis, scale, round_type, made=made)[0]

    check(build, {"x": values(3, 4, 5)}, ["quantize_linear"], **EXACT)
    check(build, {"x": values(3, 4, 5)}, ["quantize_linear"], dynamic={"x": [-1, 4, -1]}, **EXACT)


@merged
@pytest.mark.parametrize("round_type", ROUNDS)
def test_infinities(round_type):
    x = np.array([np.inf, -np.inf, np.nan, 3e38], "float32")
    check(lambda x: quantize_linear(x, -1, [1.0], round_type)[0], {"x": x}, **EXACT)


@merged
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("round_type", ROUNDS)
def test_halves_round_as_paddle_rounds_them(round_type, bits):
    def build(x):
        return quantize_linear(x, -1, [127.0], round_type, bits=bits)[0]

    check(build, {"x": halves()}, ["quantize_linear"], **EXACT)


@merged
def test_an_observer_forwards_x():
    def build(x):
        return paddle.nn.functional.relu(quantize_linear(x, -1, [1.0], only_observer=True)[0])

    check(build, {"x": values(3, 4)}, ["quantize_linear", "relu"], **EXACT)


@merged
def test_quantize_linear_of_an_empty_tensor():
    def build(x):
        return quantize_linear(x, -1, [1.0])[0]

    check(build, {"x": np.zeros([0, 4], "float32")}, dynamic={"x": [-1, 4]}, gradients=False)


@merged
def test_quantize_linear_falls_back_in_training():
    def build(x):
        return quantize_linear(x, -1, [1.0], is_test=TRAINS)[0]

    check_fallback(build, {"x": normal([3, 4])}, ["quantize_linear"], gradients=False)


@merged
@pytest.mark.parametrize("round_type", ROUNDS)
@pytest.mark.parametrize("dequantizes", [True, False])
def test_moving_average_abs_max_in_evaluation(dequantizes, round_type):
    name = f"fake_quantize_{'dequantize_' * dequantizes}moving_average_abs_max"

    def build(x):
        (scale,) = tensors([2.0])
        return getattr(_C_ops, name)(x, scale, None, None, 0.9, 8, EVALUATES, round_type)[0]

    check(build, {"x": values(3, 4, 5)}, [name], **DEQUANTIZED)
    check(build, {"x": halves() / 60}, [name], **DEQUANTIZED)


@merged
@pytest.mark.parametrize("round_type", ROUNDS)
def test_moving_average_abs_max_in_training(round_type):
    name = "fake_quantize_dequantize_moving_average_abs_max"

    def build(x):
        scale, accum, state = tensors([2.0], [1.5], [3.0])
        return getattr(_C_ops, name)(x, scale, accum, state, 0.9, 8, TRAINS, round_type)

    check(build, {"x": normal([3, 4, 5])}, [name])
    check(lambda x: build(x)[0], {"x": normal([3, 4, 5])}, both(name))


@merged
@pytest.mark.parametrize("round_type", ROUNDS)
@pytest.mark.parametrize(
    "name", ["fake_quantize_abs_max", "fake_quantize_dequantize_abs_max"], ids=["q", "qdq"]
)
def test_abs_max(name, round_type):
    def build(x):
        return getattr(_C_ops, name)(x, 8, round_type)

    check(build, {"x": normal([3, 4, 5])}, [name], **DEQUANTIZED)


@merged
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("round_type", ROUNDS)
def test_channel_wise_abs_max(round_type, axis):
    name = "fake_channel_wise_quantize_dequantize_abs_max"

    def build(x):
        return getattr(_C_ops, name)(x, 8, round_type, axis)

    check(build, {"x": normal([6, 4, 3, 3])}, [name], **DEQUANTIZED)
    check(lambda x: build(x)[0], {"x": normal([6, 4, 3, 3])}, both(name))


@merged
@pytest.mark.parametrize("made", [tensors, parameters], ids=["tensors", "parameters"])
@pytest.mark.parametrize("round_type", ROUNDS)
def test_range_abs_max(round_type, made):
    def build(x):
        (scale,) = tensors([2.0])
        steps = paddle.assign(np.array([7], "int64"))
        if made is parameters:
            seven = paddle.nn.initializer.Constant(7)
            steps = paddle.create_parameter([1], "int64", default_initializer=seven)
        return _C_ops.fake_quantize_range_abs_max(x, scale, steps, 100, 8, EVALUATES, round_type)[0]

    check(build, {"x": values(3, 4, 5)}, ["fake_quantize_range_abs_max"], **EXACT)


# -- dequantization --------------------------------------------------------------------------------


def codes(*shape):
    return np.random.default_rng(3).integers(-128, 128, shape).astype("float32")


def run(build, x, shape):
    """Returns the results of a program with the engine enabled, computed by the engine or by
    fallback.
    """
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        out = build(paddle.static.data("x", shape, str(x.dtype)))
    executor = paddle.static.Executor(paddle.CPUPlace())
    paddle_ngraph.reset_stats()
    with paddle_ngraph.use_ngraph():
        (found,) = executor.run(program, feed={"x": x}, fetch_list=[out])
    return found


@pytest.mark.parametrize("axis, scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("bits", [8, 4])
def test_dequantize_linear(axis, scale, bits):
    """Dequantizes as in dynamic mode; in PIR, Paddle quantizes once more."""
    x = codes(3, 4, 5)

    def build(x):
        return dequantize_linear(x, axis, scale, bits=bits)

    spread = np.float32(scale).reshape([-1 if i == axis else 1 for i in range(3)])
    expected = x * spread / np.float32(2 ** (bits - 1) - 1)
    np.testing.assert_array_equal(run(build, x, [-1, 4, 5]), expected)
    assert paddle_ngraph.stats()["engine_runs"] == 1, "the engine did not run"
    with forced_fallback():
        np.testing.assert_array_equal(run(build, x, [-1, 4, 5]), expected)
    assert paddle_ngraph.stats()["native_runs"] == 1


@pytest.mark.parametrize("axis, scale", SCALES.values(), ids=SCALES)
def test_dequantize_linear_by_any_largest_number(axis, scale):
    x = codes(3, 4, 5)
    found = run(lambda x: dequantize_linear(x, axis, scale, qmax=100), x, [-1, 4, 5])
    spread = np.float32(scale).reshape([-1 if i == axis else 1 for i in range(3)])
    np.testing.assert_allclose(found, x * spread / np.float32(100), 1e-6)
    assert paddle_ngraph.stats()["engine_runs"] == 1, "the engine did not run"


def test_an_observer_dequantizes_nothing():
    x = codes(3, 4)
    found = run(lambda x: dequantize_linear(x, -1, [2.0], only_observer=True) + 1, x, [3, 4])
    np.testing.assert_array_equal(found, x + 1)


@merged
def test_dequantize_max_abs():
    def build(x):
        (scale,) = tensors([2.0])
        return _C_ops.fake_dequantize_max_abs(x, scale, 127.0)

    check(build, {"x": codes(3, 4)}, ["fake_dequantize_max_abs"], **EXACT)


@merged
@pytest.mark.parametrize("axis", [0, 1])
def test_channel_wise_dequantize_max_abs(axis):
    def build(x):
        (scale,) = tensors(np.arange(1, 1 + (3, 4)[axis]) / 7)
        return _C_ops.fake_channel_wise_dequantize_max_abs(x, [scale], [8], axis, 1)

    check(build, {"x": codes(3, 4, 5)}, ["fake_channel_wise_dequantize_max_abs"], **EXACT)


@merged
def test_a_matmul_is_dequantized_by_two_scales():
    def build(x):
        channels, scale = tensors(np.arange(1, 5) / 7, [3.0])
        return _C_ops.fake_channel_wise_dequantize_max_abs(x, [channels, scale], [8, 8], 0, 1)

    x = codes(3, 4, 5) * 100
    check(build, {"x": x}, ["fake_channel_wise_dequantize_max_abs"], gradients=False)
