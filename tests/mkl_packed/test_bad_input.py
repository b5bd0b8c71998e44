"""Invalid input is rejected before any computation."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import flags, mkl_packed


@pytest.fixture
def net():
    return mkl_packed.LSTM(4, 8)


def ones(*shape: int):
    return paddle.ones(list(shape))


def test_a_wrong_number_of_features(net):
    with pytest.raises(ValueError, match=r"weight_ih has the shape \[32, 4\], expected \[32, 5\]"):
        net(ones(2, 3, 5))


def test_a_matrix_instead_of_sequences(net):
    with pytest.raises(ValueError):
        net(ones(3, 4))


@pytest.mark.parametrize("batch", [0, 2])
def test_no_steps(net, batch):
    with pytest.raises(ValueError, match="x is empty"):
        net(ones(batch, 0, 4), (ones(1, batch, 8), ones(1, batch, 8)))


def test_states_of_another_batch(net):
    with pytest.raises(ValueError, match=r"an initial state has the shape \[1, 3, 8\]"):
        net(ones(2, 3, 4), (ones(1, 3, 8), ones(1, 3, 8)))


@pytest.mark.parametrize("lengths", [[4, 1], [1, -1]])
def test_a_length_beyond_the_input(net, lengths):
    with pytest.raises(ValueError, match="sequence_length holds"):
        net(ones(2, 3, 4), None, paddle.to_tensor(lengths))


def test_lengths_of_another_batch(net):
    with pytest.raises(ValueError, match=r"sequence_length has the shape \[3\], expected \[2\]"):
        net(ones(2, 3, 4), None, paddle.to_tensor([1, 2, 3]))


def test_lengths_may_be_int32_or_int64(net):
    net.eval()
    results = [
        net(ones(2, 3, 4), None, paddle.to_tensor([3, 1], dtype=dtype))[0].numpy()
        for dtype in ("int32", "int64")
    ]
    np.testing.assert_array_equal(*results)
    with pytest.raises(ValueError, match="expected int32 or int64"):
        net(ones(2, 3, 4), None, paddle.to_tensor([3.0, 1.0]))


def test_float64_is_left_to_paddle(net):
    with pytest.raises(Exception, match=r"(?i)dtype|data type|type"):
        net(ones(2, 3, 4).astype("float64"))
    paddle.set_default_dtype("float64")
    wide = mkl_packed.GRU(4, 8)
    paddle.set_default_dtype("float32")
    before = mkl_packed.pack_count()
    assert wide(ones(2, 3, 4).astype("float64"))[0].dtype == paddle.float64
    assert mkl_packed.pack_count() == before


def test_a_missing_bias():
    # Paddle's own operator reads the missing bias.
    with pytest.raises(ValueError, match="there are 3 weights and biases, expected 4"):
        mkl_packed.GRU(4, 8, bias_ih_attr=False)(ones(2, 3, 4))


def test_there_is_no_gradient_in_evaluation_mode(net):
    """Paddle raises an error of the same type, about a tensor without memory."""
    x = ones(2, 3, 4)
    x.stop_gradient = False
    for layer, message in ((net, "evaluation mode"), (paddle.nn.GRU(4, 8), "holds no memory")):
        layer.eval()
        with pytest.raises(RuntimeError, match=message):
            layer(x)[0].sum().backward()


def test_a_view_of_other_memory(net):
    net.eval()
    x = paddle.randn([3, 2, 4])
    expected, _ = net(paddle.to_tensor(x.numpy().transpose(1, 0, 2)))
    found, _ = net(x.transpose([1, 0, 2]))
    np.testing.assert_array_equal(found, expected)


def test_an_unknown_provider(net):
    flags.set("mkl_packed_provider", "cublas")
    with pytest.raises(paddle_ngraph.NgraphError, match="use auto, mkl or onednn"):
        mkl_packed.provider()
    with pytest.raises(RuntimeError, match="use auto, mkl or onednn"):
        net(ones(2, 3, 4))


def test_the_flag_selects_the_provider(provider):
    assert mkl_packed.provider() == provider
    flags.set("mkl_packed_provider", "auto")
    assert mkl_packed.provider() in ("mkl", "onednn")
