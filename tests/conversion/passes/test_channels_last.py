"""Values of convolutions that a Transpose moves into Paddle's layout, and their results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
import pytest
from openvino import Model, Node, PartialShape, Type
from openvino import opset15 as ops

from paddle_ngraph.conversion import processor
from paddle_ngraph.conversion.passes import channels_last
from tests.programs import Program, floats


@pytest.fixture(autouse=True)
def avx512(monkeypatch) -> None:
    monkeypatch.setattr(processor, "has_avx512", lambda: True)


def _convolution(x: Node, channels: int, rank: int = 4) -> Node:
    ones = [1] * (rank - 2)
    weight = np.ones((channels, x.get_output_partial_shape(0)[1].get_length(), *ones), np.float32)
    zeros = [0] * len(ones)
    return ops.relu(ops.convolution(x, ops.constant(weight), ones, zeros, zeros, ones))


def _flat(x: Node, channels: int) -> Node:
    return ops.reshape(x, ops.constant([1, channels, -1]), False)


def _moves(value: Node, x: Node) -> int:
    """The number of pairs of transpositions that the pass adds to a model."""
    shape = value.get_output_partial_shape(0)
    model = Model([value], [x], "model")
    channels_last.move_channels(model)
    assert model.get_results()[0].get_output_partial_shape(0) == shape
    found = sum(node.get_type_name() == "Transpose" for node in model.get_ops())
    return found // 2


@pytest.mark.parametrize(
    ("channels", "sizes", "is_slow"),
    [
        (32, (64, 64), True),
        (16, (32, 32), True),
        (64, (16, 16), True),  # planes of 1 KB share four sets
        (32, (16, 16), False),
        (8, (64, 64), False),  # as many as the ways of the cache
        (65, (64, 64), False),
        (32, (60, 60), False),
        (32, (8, 16, 16), True),
        (32, (-1, 64), False),
    ],
)
def test_planes_that_share_sets_of_the_cache_are_transposed(
    channels: int, sizes: Sequence[int], is_slow: bool
) -> None:
    x = ops.parameter(PartialShape([-1, 3, *sizes]), Type.f32)
    assert _moves(_convolution(x, channels, 2 + len(sizes)), x) == is_slow


def test_each_value_is_moved_once_before_readers_in_plain_layout() -> None:
    x = ops.parameter([1, 3, 64, 64], Type.f32)
    value = _convolution(x, 16)
    assert _moves(ops.add(_flat(value, 16), ops.tanh(_flat(value, 16))), x) == 1
    assert _moves(_convolution(_convolution(x, 16), 16), x) == 1, "convolutions read channels last"
    assert _moves(ops.add(value, _convolution(x, 16)), x) == 1
    assert _moves(ops.prelu(value, ops.constant(np.float32(0.5))), x) == 1
    picture = ops.parameter([1, 16, 64, 64], Type.f32)
    assert _moves(ops.relu(picture), picture) == 0
    assert _moves(ops.add(picture, _convolution(picture, 16)), picture) == 0


def test_processors_without_avx512_keep_their_models(monkeypatch) -> None:
    monkeypatch.setattr(processor, "has_avx512", lambda: False)
    x = ops.parameter([1, 3, 64, 64], Type.f32)
    assert _moves(_convolution(x, 32), x) == 0


@pytest.mark.usefixtures("small_intervals_pay")
@pytest.mark.parametrize("shape", [(2, 3, 16, 64), (2, 3, 4, 16, 16)])
def test_results_equal_paddle(shape: Sequence[int]) -> None:
    def build():
        x = paddle.static.data("x", [-1, *shape[1:]], "float32")
        layer = paddle.nn.Conv2D if len(shape) == 4 else paddle.nn.Conv3D
        hidden = paddle.nn.functional.relu(layer(3, 20, 3, padding=1)(x))
        return hidden, paddle.tanh(paddle.flatten(hidden, 2))

    Program(build).both(x=floats(*shape))
