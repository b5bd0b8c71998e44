"""The packed layers compared with Paddle's: outputs, states, gradients, training."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import paddle
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import mkl_packed
from paddle_ngraph.mkl_packed import layers
from tests.float_environments import DENORMAL, FLUSHED, float_environment

from .comparing import (
    MODES,
    Packs,
    Shape,
    assert_close,
    data,
    layer,
    pair,
    run,
)

SIZES = [(32, 1, 7), (33, 5, 6), (128, 100, 3), (512, 5, 4)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirect"])
@pytest.mark.parametrize(("hidden", "batch", "steps"), SIZES)
def test_one_layer(mode, ragged, direction, hidden, batch, steps):
    shape = Shape(hidden // 2, hidden, batch, steps, direction=direction)
    native, packed = pair(mode, shape)
    given = data(mode, shape, ragged)
    with Packs() as packs:
        found = run(packed, given)
    assert_close(run(native, given), found)
    assert packs.count == 2 * shape.cells


@pytest.mark.parametrize(("batch", "ragged"), [(1, False), (5, True), (100, True)])
@pytest.mark.parametrize("mode", ["RNN_TANH", "GRU", "LSTM"])
def test_the_largest_size(mode, batch, ragged):
    shape = Shape(32, 2048, batch, 2)
    native, packed = pair(mode, shape)
    given = data(mode, shape, ragged)
    assert_close(run(native, given), run(packed, given))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("layers", [2, 3])
def test_many_layers_with_dropout_between(mode, time_major, layers):
    shape = Shape(7, 24, 4, 6, layers=layers, direction="bidirect")
    native, packed = pair(mode, shape, time_major=time_major, dropout=0.4)
    given = data(mode, shape, ragged=True, time_major=time_major)
    assert_close(run(native, given), run(packed, given))


@pytest.mark.parametrize("dropout", [0.0, 1.0])
def test_dropout_of_none_and_of_all(dropout):
    shape = Shape(4, 8, 2, 3, layers=2)
    native, packed = pair("GRU", shape, dropout=dropout)
    given = data("GRU", shape)
    expected, found = run(native, given), run(packed, given)
    assert_close({"out": expected["out"]}, {"out": found["out"]})


def test_the_random_stream_continues_as_after_paddles_layer():
    shape = Shape(4, 8, 2, 3, layers=2)
    numbers = []
    for net in pair("LSTM", shape, dropout=0.5):
        run(net, data("LSTM", shape), seed=9)
        numbers.append(paddle.rand([4]).numpy())
    np.testing.assert_array_equal(*numbers)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("direction", ["forward", "bidirect"])
def test_a_batch_equals_its_sequences_one_at_a_time(mode, direction):
    shape = Shape(6, 32, 5, 7, layers=2, direction=direction)
    net = layer(mode, shape, packed=True)
    net.eval()
    given = data(mode, shape, ragged=True)
    x, lengths = paddle.to_tensor(given.x), given.lengths
    out, last = net(x, sequence_length=paddle.to_tensor(lengths))
    for i, length in enumerate(lengths):
        alone, last_alone = net(x[i : i + 1, : int(length)])
        np.testing.assert_allclose(out[i, : int(length)], alone[0], atol=1e-6)
        assert not out[i, int(length) :].any()
        states = zip(last, last_alone) if mode == "LSTM" else [(last, last_alone)]
        for batch_state, state in states:
            np.testing.assert_allclose(batch_state[:, i], state[:, 0], atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("features", "hidden"), [(1, 64), (4, 1), (1, 1)])
def test_a_single_feature(mode, features, hidden):
    shape = Shape(features, hidden, 16, 10)
    native, packed = pair(mode, shape)
    given = data(mode, shape)
    assert_close(run(native, given), run(packed, given))


# Up to four sequences have separate kernels: columns in blocks of 64, the last of which is not full
# here.
FEW = [(1, 1), (15, 2), (16, 1), (64, 3), (100, 1), (100, 2), (100, 3), (100, 4), (100, 5)]


@pytest.mark.parametrize(("hidden", "batch"), FEW)
@pytest.mark.parametrize("mode", MODES)
def test_a_few_sequences(mode, hidden, batch):
    shape = Shape(5, hidden, batch, 4, direction="bidirect")
    native, packed = pair(mode, shape)
    given = data(mode, shape)
    assert_close(run(native, given), run(packed, given))


# SSE41 and AVX2 have kernels of their own; without this variable, AVX-512 where there is one.
@pytest.mark.parametrize("instructions", ["SSE41", "AVX2"])
def test_a_few_sequences_with_fewer_instructions(instructions, provider):
    if provider != "onednn":
        pytest.skip("the kernels are those of both providers")
    script = """
import paddle
from paddle_ngraph import mkl_packed
from paddle_ngraph.mkl_packed import layers
from tests.mkl_packed.comparing import MODES, Shape, Packs, assert_close, data, pair, run
for mode in MODES:
    for batch in range(1, 5):
        shape = Shape(5, 100, batch, 4)
        native, packed = pair(mode, shape)
        given = data(mode, shape)
        with Packs() as packs:
            found = run(packed, given)
        assert_close(run(native, given), found)
        assert packs.count == 1, packs.count
"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], env=environment, check=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_inference_without_the_operator(mode, time_major, ragged, monkeypatch):
    shape = Shape(7, 24, 3, 6, layers=2, direction="bidirect")
    net = layer(mode, shape, packed=True, time_major=time_major)
    net.eval()
    given = data(mode, shape, ragged, time_major)
    states = tuple(map(paddle.to_tensor, given.states))
    lengths = paddle.to_tensor(given.lengths) if ragged else None
    arguments = (paddle.to_tensor(given.x), states if len(states) > 1 else states[0], lengths)
    expected = paddle.utils.flatten(net(*arguments))
    monkeypatch.setattr(layers, "run_custom_operator", None)
    with paddle.no_grad():
        found = paddle.utils.flatten(net(*arguments))
    assert len(found) == len(expected) == (3 if mode == "LSTM" else 2)
    for value, other in zip(found, expected):
        assert value.stop_gradient
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize("mode", MODES)
def test_inference_on_views(mode, monkeypatch):
    shape = Shape(7, 8, 3, 4)
    net = layer(mode, shape, packed=True)
    net.eval()
    given = data(mode, shape, ragged=True)
    whole = [paddle.to_tensor(each) for each in (given.x, *given.states, given.lengths)]
    # Every other element of the last axis: the elements between them would be other results.
    views = [paddle.stack([each, 0 * each], -1).flatten(-2)[..., ::2] for each in whole]
    assert not any(each.is_contiguous() for each in views)

    def run(x, *states_and_lengths):
        *states, lengths = states_and_lengths
        with paddle.no_grad():
            results = net(x, tuple(states) if len(states) > 1 else states[0], lengths)
        return paddle.utils.flatten(results)

    monkeypatch.setattr(layers, "run_custom_operator", None)
    for value, other in zip(run(*views), run(*whole)):
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize("mode", MODES)
def test_inference_of_an_empty_batch(mode):
    shape = Shape(4, 8, 0, 3)
    native, packed = pair(mode, shape)
    native.eval(), packed.eval()
    results = [net(paddle.ones([0, 3, 4])) for net in (native, packed)]
    states = [list(last) if mode == "LSTM" else [last] for _, last in results]
    assert results[1][0].shape == results[0][0].shape == [0, 3, 8]
    assert [state.shape for state in states[1]] == [state.shape for state in states[0]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("has_lengths", [False, True])
def test_gradients_of_an_empty_batch(mode, has_lengths):
    """Paddle's own operator computes none, and only one layer in one direction."""
    shape = Shape(4, 8, 0, 3, layers=2, direction="bidirect")
    net = layer(mode, shape, packed=True, dropout=0.5)
    x = paddle.ones([0, 3, 4])
    x.stop_gradient = False
    out, _ = net(x, None, paddle.zeros([0], "int32") if has_lengths else None)
    out.sum().backward()
    assert out.shape == [0, 3, shape.width] and x.grad.shape == [0, 3, 4]
    for parameter in net.parameters():
        assert parameter.grad.shape == parameter.shape and not parameter.grad.any()


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_equals_training(mode):
    shape = Shape(6, 20, 3, 5, layers=3, direction="bidirect")
    native, packed = pair(mode, shape)
    x = paddle.to_tensor(data(mode, shape).x)
    native.eval(), packed.eval()
    np.testing.assert_allclose(packed(x)[0], native(x)[0], atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_training_step_by_step(mode):
    shape = Shape(8, 32, 4, 6)
    x = paddle.to_tensor(data(mode, shape).x)
    losses = []
    for net in pair(mode, shape):
        optimizer = paddle.optimizer.Adam(0.01, parameters=net.parameters())
        losses.append([])
        for _ in range(50):
            loss = paddle.mean(paddle.square(net(x)[0] - 0.3))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses[-1].append(float(loss))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[1][-1] < losses[1][0] / 2


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_differences(mode):
    shape = Shape(3, 5, 2, 4, layers=2)
    net = layer(mode, shape, packed=True)
    given = data(mode, shape, ragged=True)
    grads = run(net, given)

    def loss() -> float:
        found = run(net, given)
        parts = [(found["out"], given.out_grad)]
        parts += [(found[f"last_{i}"], g) for i, g in enumerate(given.state_grads)]
        return sum(float((a.astype(np.float64) * b).sum()) for a, b in parts)

    step = 1e-2
    for name, parameter in net.named_parameters():
        values = parameter.numpy()
        differences = np.zeros(3)
        for i, where in enumerate(np.random.default_rng(2).integers(0, values.size, 3)):
            moved = []
            for sign in (1, -1):
                changed = values.copy()
                changed.flat[where] += sign * step
                parameter.set_value(changed)
                moved.append(loss())
            differences[i] = (moved[0] - moved[1]) / (2 * step)
            assert differences[i] == pytest.approx(
                grads[f"grad of {name}"].flat[where], rel=2e-2, abs=2e-2
            )
        parameter.set_value(values)


def test_parameters_equal_paddles():
    shape = Shape(6, 8, 2, 3, layers=2, direction="bidirect")
    native, packed = pair("LSTM", shape)
    assert list(native.state_dict()) == list(packed.state_dict())
    for a, b in zip(native.parameters(), packed.parameters()):
        assert a.shape == b.shape
    assert isinstance(packed, nn.LSTM)


def test_use_mkl_packed_replaces_the_layers_of_a_model():
    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8))
            self.first = nn.GRU(8, 16)
            self.second = nn.LayerList([nn.LSTM(16, 8), nn.SimpleRNN(8, 4)])

        def forward(self, x):
            x, _ = self.first(self.encoder(x))
            for inner in self.second:
                x, _ = inner(x)
            return x

    model = Model()
    model.eval()
    x = paddle.randn([3, 5, 6])
    expected = model(x)
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    with Packs() as none:
        model(x)
    assert paddle_ngraph.use_mkl_packed(model) is model
    with Packs() as packs:
        found = model(x)
    assert (none.count, packs.count) == (0, 3)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before
    assert type(model.first) is mkl_packed.GRU
    paddle_ngraph.use_mkl_packed(model, on=False)
    with Packs() as none:
        model(x)
    assert none.count == 0


def test_use_mkl_packed_replaces_a_derived_layer():
    class Doubled(nn.GRU):
        def forward(self, *args):
            out, last = super().forward(*args)
            return 2 * out, last

    net = Doubled(4, 8)
    x = paddle.randn([2, 3, 4])
    expected, _ = net(x)
    paddle_ngraph.use_mkl_packed(net)
    with Packs() as packs:
        found, _ = net(x)
    assert packs.count == 1 and isinstance(net, Doubled)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_copy_of_a_layer_is_packed_too():
    net = copy.deepcopy(layer("GRU", Shape(4, 8, 2, 3), packed=True))
    with Packs() as packs:
        net(paddle.randn([2, 3, 4]))
    assert packs.count == 1


def test_to_static():
    shape = Shape(6, 16, 3, 5, layers=2)
    native, packed = pair("LSTM", shape)
    x = data("LSTM", shape).x
    grads = []
    for net in (native, paddle.jit.to_static(packed, full_graph=True)):
        value = paddle.to_tensor(x, stop_gradient=False)
        with Packs() as packs:
            out, _ = net(value)
            out.sum().backward()
        grads.append(value.grad.numpy())
    assert packs.count == 4
    np.testing.assert_allclose(*grads, rtol=1e-4, atol=1e-5)


# oneDNN divides work by the number of threads that OpenMP promises.
@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("setting", ["OMP_THREAD_LIMIT", "OMP_DYNAMIC"])
def test_openmp_that_gives_fewer_threads_than_asked(setting):
    script = """
import paddle, numpy as np
from paddle_ngraph import mkl_packed
paddle.set_flags({"FLAGS_ngraph_num_threads": 4, "FLAGS_mkl_packed_provider": "onednn"})
native, packed = paddle.nn.GRU(128, 256), mkl_packed.GRU(128, 256)
packed.set_state_dict(native.state_dict())
for batch in (1, 50, 64):
    x = paddle.randn([batch, 10, 128])
    np.testing.assert_allclose(packed(x)[0].numpy(), native(x)[0].numpy(), atol=1e-5)
"""
    environment = {**os.environ, setting: "1" if setting == "OMP_THREAD_LIMIT" else "true"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], env=environment, check=True)


@contextmanager
def flag_of_threads(threads):
    flag = "FLAGS_ngraph_num_threads"
    before = paddle.get_flags(flag)
    paddle.set_flags({flag: threads})
    try:
        yield
    finally:
        paddle.set_flags(before)


# Three threads have 16 of 48 rows each; 8 and 50 rows do not split into slices worth a thread.
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 8, 48, 50])
@pytest.mark.parametrize(("mode", "ragged"), [("RNN_TANH", False), ("GRU", True), ("LSTM", True)])
def test_any_number_of_threads(mode, ragged, batch, threads):
    shape = Shape(64, 512, batch, 3, direction="bidirect")
    native, packed = pair(mode, shape)
    given = data(mode, shape, ragged)
    with flag_of_threads(threads):
        assert_close(run(native, given), run(packed, given))
        native.eval(), packed.eval()
        x = paddle.to_tensor(given.x)
        np.testing.assert_allclose(packed(x)[0], native(x)[0], atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_threads_share_matmuls_over_all_steps_though_steps_run_alone(mode):
    shape = Shape(48, 60, 3, 120)
    native, packed = pair(mode, shape)
    given = data(mode, shape)
    with flag_of_threads(3):
        assert_close(run(native, given), run(packed, given))


@pytest.mark.parametrize("batch", [3, 300])
def test_denormals_count_in_every_floating_point_environment(batch):
    """A bias of 1e-40 opens the gate of a ReLU; see tests/core/test_float_environment.py."""
    hidden, steps = 40, 2
    net = mkl_packed.SimpleRNN(8, hidden, activation="relu")
    for name, parameter in net.named_parameters():
        value = DENORMAL if name.endswith("bias_ih_l0") else 0.0
        parameter.set_value(np.full(parameter.shape, value, "float32"))
    x = paddle.zeros([batch, steps, 8])
    with float_environment(FLUSHED):
        net(x)[0].sum().backward()
    bias = next(p for name, p in net.named_parameters() if name.endswith("bias_ih_l0"))
    np.testing.assert_array_equal(bias.grad.numpy(), np.full(hidden, batch * steps, "float32"))
