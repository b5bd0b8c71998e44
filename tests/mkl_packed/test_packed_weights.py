"""Weights are packed once for each version, and never used stale."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import mkl_packed
from tests.programs import at_once

from .comparing import Packs, Shape, data, layer, pair

SHAPE = Shape(6, 32, 4, 5)


def inference(mode: str = "LSTM"):
    native, packed = pair(mode, SHAPE)
    native.eval(), packed.eval()
    x = paddle.to_tensor(data(mode, SHAPE).x)

    def agree() -> None:
        np.testing.assert_allclose(packed(x)[0], native(x)[0], atol=1e-6)

    return native, packed, agree


@pytest.mark.parametrize("mode", ["RNN_TANH", "GRU", "LSTM"])
def test_weights_are_packed_once_for_inference(mode):
    net = layer(mode, SHAPE, packed=True)
    net.eval()
    with Packs() as packs, paddle.no_grad():
        for _ in range(7):
            net(paddle.randn([4, 5, 6]))
    assert packs.count == 1


@pytest.mark.parametrize("mode", ["RNN_TANH", "GRU", "LSTM"])
def test_weights_are_packed_twice_in_each_training_iteration(mode):
    net = layer(mode, SHAPE, packed=True)
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    with Packs() as packs:
        for _ in range(7):
            net(paddle.randn([4, 5, 6]))[0].sum().backward()
            optimizer.step()
            optimizer.clear_grad()
    assert packs.count == 2 * 7


@pytest.mark.parametrize(("hidden", "count"), [(63, 2), (64, 1)])
def test_the_gradient_of_a_few_sequences_reads_the_weight_where_it_is(hidden, count):
    net = layer("GRU", Shape(6, hidden, 4, 5), packed=True)
    with Packs() as packs:
        net(paddle.randn([4, 5, 6]))[0].sum().backward()
    assert packs.count == count


def test_an_optimizer_update_is_detected():
    native, packed, agree = inference()
    agree()
    before = packed.weight_hh_l0.numpy()
    packed.train()
    packed(paddle.ones([4, 5, 6]))[0].sum().backward()
    paddle.optimizer.SGD(0.5, parameters=packed.parameters()).step()
    packed.eval()
    assert not np.allclose(packed.weight_hh_l0.numpy(), before)
    native.set_state_dict(packed.state_dict())
    with Packs() as packs:
        agree()
    assert packs.count == 1


@pytest.mark.parametrize("way", ["set_value", "in_place", "raw", "state_dict", "one_element"])
def test_every_write_is_detected(way):
    native, packed, agree = inference()
    agree()
    changed = packed.weight_hh_l0.numpy()
    if way == "one_element":
        changed[3, 5] = np.nextafter(changed[3, 5], 1)
    else:
        changed = changed[::-1] * 2
    with Packs() as packs:
        for net in (native, packed):
            weight = net.weight_hh_l0
            if way == "in_place":
                with paddle.no_grad():
                    weight.scale_(0)
                    weight.add_(paddle.to_tensor(changed))
            elif way == "raw":
                weight.get_tensor().set(changed, paddle.CPUPlace())
            elif way == "state_dict":
                net.set_state_dict({**net.state_dict(), "weight_hh_l0": paddle.to_tensor(changed)})
            else:
                weight.set_value(changed)
        agree()
    assert packs.count == 1


def test_a_swap_of_two_weights_is_detected():
    a, b = layer("GRU", SHAPE, packed=True), layer("GRU", SHAPE, packed=True)
    a.eval(), b.eval()
    x = paddle.randn([4, 5, 6])
    of_a, of_b = a(x)[0].numpy(), b(x)[0].numpy()
    states = [{k: v.clone() for k, v in net.state_dict().items()} for net in (a, b)]
    a.set_state_dict(states[1]), b.set_state_dict(states[0])
    np.testing.assert_array_equal(a(x)[0], of_b)
    np.testing.assert_array_equal(b(x)[0], of_a)


def test_packed_weights_end_with_their_weights():
    for seed in range(20):  # memory is used again
        paddle.seed(seed)
        native, packed, agree = inference("GRU")
        agree()
        del native, packed, agree


def test_another_batch_size():
    native, packed, _ = inference()
    for batch in (4, 1, 9, 4):
        x = paddle.randn([batch, 5, 6])
        np.testing.assert_allclose(packed(x)[0], native(x)[0], atol=1e-6)


def test_threads_share_the_packed_weights():
    native, packed, _ = inference()
    inputs = [paddle.randn([4, 5, 6]) for _ in range(8)]
    expected = [native(x)[0].numpy() for x in inputs]
    found: dict[int, np.ndarray] = {}

    def work(i: int) -> None:
        with paddle.no_grad():
            for _ in range(5):
                found[i] = packed(inputs[i])[0].numpy()

    at_once(work, 8)
    for i, value in enumerate(expected):
        np.testing.assert_allclose(found[i], value, atol=1e-6)


def test_clear_cache():
    _, _, agree = inference()
    agree()
    mkl_packed.clear_cache()
    with Packs() as packs:
        agree()
    assert packs.count == 1


@pytest.mark.parametrize("way", ["scope", "program_state", "load"])
def test_writes_between_runs_of_a_program_are_detected(way, tmp_path):
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        net = layer("GRU", SHAPE)
        net.eval()
        out, _ = net(paddle.static.data("x", [4, 5, 6], "float32"))
    executor = paddle.static.Executor(paddle.CPUPlace())
    feed = {"x": np.ones((4, 5, 6), np.float32)}
    random = np.random.default_rng(0)

    def run(through: bool) -> np.ndarray:
        with paddle_ngraph.use_ngraph(through):
            return executor.run(main, feed=feed, fetch_list=[out])[0]

    def write(values: np.ndarray) -> None:
        tensor = paddle.static.global_scope().var(net.weight_hh_l0.name).get_tensor()
        if way == "program_state":
            state = {net.weight_hh_l0.name: values}
            paddle.static.set_program_state(main, state)
        else:
            tensor.set(values, paddle.CPUPlace())
        if way == "load":
            paddle.static.save(main, str(tmp_path / "model"))
            tensor.set(np.zeros_like(values), paddle.CPUPlace())
            run(True)
            paddle.static.load(main, str(tmp_path / "model"), executor)

    with paddle.static.scope_guard(paddle.static.Scope()):
        executor.run(startup)
        before = run(False)
        for _ in range(3):
            write(random.standard_normal((96, 32)).astype(np.float32) * 0.1)
            with Packs() as packs:
                found = [run(True) for _ in range(4)]
            expected = run(False)
            assert packs.count == 1
            assert not np.allclose(expected, before)
            np.testing.assert_allclose(found, [expected] * 4, atol=1e-6)
            before = expected
