"""Converters of paddle_ngraph.ops.quantization against native Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import _C_ops

import paddle_ngraph
from tests.ops.harness import Case, check, check_native, normal, strange

EVALUATION = True
ROUNDS = [0, 1]  # to even, away from zero
QUANTIZED = {"per tensor": (-1, [2.0]), "axis 0": (0, [1.0, 2.5, 3e-31]), "axis 1": (1, [4.0] * 4)}


def halves(*shape):
    """Numbers halfway between two others for a scale of 127, among them the bounds."""
    return np.resize(np.arange(-130, 131, dtype="float32") / 2 * 1.0, shape)


def around(*shape):
    """Strange numbers, and numbers beyond any scale here."""
    return strange(*shape) * np.float32(3)


def quantize(x, scale, axis=-1, round_type=0, is_test=True, only_observer=False, bits=8):
    """``quantize_linear`` as paddle.quantization calls it; all its outputs."""
    one, scales = (paddle.to_tensor(v) for v in ([1.0], [0.0] * len(scale)))
    return one, scales


def constants(*values):
    return [paddle.assign(np.array(value, "float32")) for value in values]


def quantized(x, scale, axis=-1, round_type=0, is_test=True, only_observer=False, bits=8):
    scales, zeros, accum, state = constants(scale, np.zeros(len(scale)), [1.0], [1.0])
    qmax = 2 ** (bits - 1) - 1
    return _C_ops.quantize_linear(
        *(x, scales, zeros, accum, state, axis, bits, -qmax - 1, qmax),
        *(round_type, is_test, only_observer),
    )


@pytest.mark.parametrize("round_type", ROUNDS)
@pytest.mark.parametrize("axis, scale", QUANTIZED.values(), ids=QUANTIZED)
def test_quantize_linear(axis, scale, round_type):
    def build(x):
        return quantized(x, scale, axis, round_type)[0]

    check(build, {"x": around(3, 4, 5)}, ["quantize_linear"], gradients=False)


@pytest.mark.parametrize("round_type", ROUNDS)
def test_halves_round_as_paddle_rounds(round_type):
    def build(x):
        return quantized(x, [127.0], round_type=round_type)[0]

    check(build, {"x": halves(300)}, ["quantize_linear"], gradients=False, rtol=0, atol=0)
