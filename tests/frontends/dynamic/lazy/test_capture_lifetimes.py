"""Lifetimes across captured calls: exposed memory, other threads, the garbage collector."""

from __future__ import annotations

import gc
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.utils import dlpack

import paddle_ngraph
from tests.dynamic import agree, floats
from tests.frontends.dynamic.test_compiled_layer import Warm, both

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

CALLS = 6


def engine_runs() -> int:
    return int(paddle_ngraph.stats()["engine_runs"])


# -- empty tensors -------------------------------------------------------------------------------

EMPTY: dict[str, Callable[[Any], Any]] = {
    "split": lambda x: paddle.split(x, [0, 6])[0],
    "tile": lambda x: x.tile([0, 1]),
    "expand": lambda x: x[:1].expand([0, 6]),
    "index": lambda x: x[False],
    "slice": lambda x: x[2:2],
}


@pytest.mark.parametrize("make", EMPTY.values(), ids=EMPTY)
def test_results_without_elements(make):
    def scenario(compiled):
        function = compiled(lambda x: (make(x * 2.0), F.relu(make(x + 1.0)), x - 1.0))
        return [function(floats(6, 6, seed=number)) for number in range(CALLS)]

    both(scenario)


# -- exposed memory -----------------------------------------------------------------------------

KNOWING: dict[str, Callable[[Any], Any]] = {
    "address": lambda x: x.data_ptr(),
    "tensor": lambda x: x.get_tensor(),
    "capsule": dlpack.to_dlpack,
}


@pytest.mark.parametrize("know", KNOWING.values(), ids=KNOWING)
def test_views_and_statistics_of_exposed_tensors(know):
    def scenario(compiled):
        mean, variance = paddle.zeros([4]), paddle.ones([4])
        function = compiled(
            lambda x: (
                *(x[1:3], x.reshape([32]), F.batch_norm(x, mean, variance, training=True)),
                F.relu(x) * 2.0,
            )
        )
        found, known = [], []
        for number in range(CALLS):
            x = floats(8, 4, seed=number)
            if number >= CALLS // 2:
                known += [know(each) for each in (x, mean, variance)]
            with paddle.no_grad():
                part, flat, normal, other = function(x)
            x.add_(paddle.ones([8, 4]))
            found += [part.clone(), flat.clone(), normal, other, mean.clone(), variance.clone()]
        return found

    both(scenario)


def ones() -> np.ndarray:
    return np.ones([4, 4], "float32")


def to_capsule(x: Any) -> Callable[[], Any]:
    other = dlpack.from_dlpack(dlpack.to_dlpack(x.detach()))
    return lambda: other.add_(paddle.to_tensor(ones()))


def to_array(x: Any) -> Callable[[], Any]:
    other = paddle.utils.dlpack.from_dlpack(x.detach().__dlpack__())
    return lambda: other.scale_(2.0)


def to_tensor(x: Any) -> Callable[[], Any]:
    tensor = paddle.base.core.DenseTensor()
    tensor._share_data_with(x.get_tensor())
    return lambda: tensor.set(ones(), paddle.CPUPlace())


def to_slice(x: Any) -> Callable[[], Any]:
    tensor = x.get_tensor()._slice(0, 4)
    return lambda: tensor.set(ones(), paddle.CPUPlace())


@pytest.mark.parametrize("is_weight", [False, True])
@pytest.mark.parametrize("pass_on", [to_capsule, to_array, to_tensor, to_slice])
def test_exposed_memory_is_written_during_a_call(pass_on, is_weight):
    def scenario(compiled):
        layer = nn.Linear(4, 4)
        layer.weight.set_value(np.eye(4, dtype="float32"))
        layer.eval()
        writers: list[Any] = []

        def function(x):
            y = layer(x) * 2.0
            for write in writers:
                write()
            return y + 1.0

        called = compiled(function)
        x, found = floats(4, 4), []
        with paddle.no_grad():
            for number in range(CALLS):
                if number == CALLS // 2:
                    writers.append(pass_on(layer.weight if is_weight else x))
                found.append(called(x))
        return found

    both(scenario)


def saved(layer: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        x = paddle.static.InputSpec([None, 3, 6, 6], "float32")
        paddle.jit.save(layer, f"{folder}/model", input_spec=[x])


def shared_with_itself(layer: Any) -> None:
    for each in layer.state_dict().values():
        each.get_tensor()._share_data_with(each.get_tensor())


SHARING: dict[str, Callable[[Any], Any]] = {
    "to dtype": lambda layer: layer.to(dtype="float32"),
    "to device": lambda layer: layer.to(device="cpu"),
    "there and back": lambda layer: layer.to(dtype="float64").to(dtype="float32"),
    "float": lambda layer: layer.float(),
    "save": saved,
    "itself": shared_with_itself,
}


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("share", SHARING.values(), ids=SHARING)
def test_views_of_weights_that_were_shared_once_end_no_trace(share, trains):
    def scenario(compiled):
        paddle.seed(3)
        layer = nn.Sequential(
            *(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.Conv2D(4, 4, 3)),
            *(nn.Flatten(), nn.Linear(16, 5)),
        )
        layer.eval()
        share(layer)
        if trains:
            layer.train()
        if isinstance(compiled, Warm):
            compiled(layer, full_graph=True)
        found = []
        for number in range(CALLS):
            x = floats(2, 3, 6, 6, seed=number)
            with paddle.set_grad_enabled(trains):
                found.append(layer(x))
            if trains:
                found[-1].mean().backward()
                found += [each.grad.clone() for each in layer.parameters() if each.trainable]
                layer.clear_gradients()
        return found, [each.clone() for each in layer.state_dict().values()]

    both(scenario)


def test_a_view_of_a_weight_is_right_beside_another_holder():
    """The holder is written between calls and during calls, before and after the view is made."""

    def scenario(compiled):
        weight = paddle.create_parameter([4, 4], "float32")
        weight.set_value(np.eye(4, dtype="float32"))
        writers: list[Any] = []

        def function(x, at):
            for write in writers[: at == 0]:
                write()
            flat = weight.reshape([16])
            for write in writers[: at == 1]:
                write()
            y = (x * flat).reshape([4, 4]) @ weight
            for write in writers[: at == 2]:
                write()
            return y + flat.reshape([4, 4])

        called, found = compiled(function), []
        with paddle.no_grad():
            for number in range(4 * CALLS):
                if number in (CALLS, 2 * CALLS):
                    writers.append(to_tensor(weight))
                if number == 3 * CALLS:
                    writers.clear()
                found.append(called(floats(16, seed=number), number % 4))
                if writers and number % 4 == 3:
                    writers[0]()
        return found

    both(scenario)


WRITERS: dict[str, Callable[[Any], Any]] = {
    "add_": lambda w: w.add_(paddle.ones([8, 8])),
    "view": lambda w: w[2].add_(paddle.ones([8])),
    "setitem": lambda w: w.__setitem__(2, 5.0),
    "set_value": lambda w: w.set_value(np.ones([8, 8], "float32")),
    "copy_": lambda w: w.copy_(paddle.ones([8, 8]), True),
    "assign": lambda w: paddle.assign(paddle.ones([8, 8]), output=w),
    "tensor": lambda w: w.get_tensor().set(np.ones([8, 8], "float32"), paddle.CPUPlace()),
    "share": lambda w: paddle.ones([8, 8])._share_buffer_to(w),
}


@pytest.mark.parametrize("other_ends", [False, True])
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_another_thread_writes_inputs_of_deferred_operators(write, other_ends):
    def scenario(compiled):
        go, is_waiting = threading.Event(), threading.Event()

        def slow(x, w, pauses):
            y = paddle.tanh(x * w)
            if pauses:
                is_waiting.set()
                assert go.wait(60)
            return y

        one, other = compiled(slow), compiled(lambda x, w: paddle.exp(x + w))
        x, found = floats(8, 8, seed=1), []
        for _ in range(3):
            one(x, x, False), other(x, x)
        for number in range(3):
            w = floats(8, 8, seed=number)
            go.clear(), is_waiting.clear()
            thread = threading.Thread(target=lambda w=w: found.append(one(x, w, True)))
            thread.start()
            assert is_waiting.wait(60)
            if other_ends:
                other(x, w)
            write(w)
            go.set()
            thread.join()
        return found

    both(scenario)


# -- the garbage collector -----------------------------------------------------------------------


def test_destructors_that_compute_while_graphs_are_built():
    y, results = floats(3, 3), []

    class Noisy:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            results.append(float(((y + 1.0) * 2.0).sum()))

    function = paddle_ngraph.compile(lambda x: F.relu(x * 2.0) + 1.0)
    expected = float(((y + 1.0) * 2.0).sum())
    before, thresholds = engine_runs(), gc.get_threshold()
    gc.set_threshold(5)
    try:
        with paddle.no_grad():
            for size in range(1, 13):
                for _ in range(3):
                    x = floats(size, 4)
                    Noisy()
                    agree(function(x), F.relu(x * 2.0) + 1.0)
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert gc.isenabled() and engine_runs() > before
    assert len(results) == 36
    np.testing.assert_allclose(results, expected, rtol=1e-5)


# -- retained objects ----------------------------------------------------------------------------


def test_deleted_layers_are_released():
    function = paddle_ngraph.compile(lambda layer, x: F.relu(layer(x)) + 1.0)
    weights = []
    before = engine_runs()
    with paddle.no_grad():
        for _ in range(6):
            layer = nn.Linear(16, 16)
            for _ in range(3):
                agree(function(layer, floats(2, 16)), F.relu(layer(floats(2, 16))) + 1.0)
            weights.append(weakref.ref(layer.weight))
    assert engine_runs() > before
    del layer
    gc.collect()
    assert [each() for each in weights] == [None] * 6


def test_a_recorded_call_retains_no_more_than_eager_execution():
    def function(x):
        for _ in range(40):
            x = paddle.tanh(x) * 0.5
        return x

    x = floats(1024, 256)
    core = paddle.base.core
    with paddle.no_grad():
        function(x)
        core.host_memory_stat_reset_peak_value("Allocated", 0)
        before = core.host_memory_stat_current_value("Allocated", 0)
        paddle_ngraph.compile(function)(x)
    peak = core.host_memory_stat_peak_value("Allocated", 0) - before
    assert peak < 8 * x.numel().item() * 4


@pytest.mark.parametrize("first", ["clip", "empty", "index"])
def test_a_first_operator_that_is_not_deferred(first):
    makers: dict[str, Callable[[Any], Any]] = {
        "clip": lambda x: paddle.clip(x, min=paddle.to_tensor(0.0)),
        "empty": lambda x: x[2:2],
        "index": lambda x: x[paddle.to_tensor([0, 1])],
    }

    def scenario(compiled):
        def function(x):
            y = makers[first](x)
            return y, F.relu(x * 2.0) + 1.0

        called = compiled(function)
        return [called(floats(6, 6, seed=number)) for number in range(CALLS)]

    both(scenario, runs=CALLS)


def test_calls_that_use_different_results_share_functions():
    """A graph for each of 2^6 subsets would use up Paddle's limit of graphs that train."""
    layer = nn.Linear(4, 4)

    def function(x):
        results = []
        for _ in range(6):
            x = layer(x)
            results.append(x)
        return results

    called = paddle_ngraph.compile(function)
    generator = np.random.default_rng(3)
    made = paddle_ngraph.stats()["functions_built"]
    for number in range(20):
        kept = generator.permutation(6)[:3]
        given = floats(2, 4, seed=number)
        found = [result for place, result in enumerate(called(given)) if place in kept]
        expected = [result for place, result in enumerate(function(given)) if place in kept]
        agree(found, expected)
        del found, expected
    assert paddle_ngraph.stats()["functions_built"] - made <= 4 * 6


# -- many known calls ----------------------------------------------------------------------------


def other_scalars() -> list[Any]:
    """New objects in each call, as a loop computes them."""
    numbers = [number / 7 for number in range(6)]
    return [
        *numbers,
        0.0,
        -0.0,
        float("nan"),
        *(np.float64(number + 3) for number in numbers),
        *range(6),
    ]


def test_a_call_is_found_among_many_that_came_next_before():
    """Scalars by their bits and types, sizes, and tensors by their positions."""

    def function(x, number, rows):
        full = paddle._C_ops.full_like
        return (full(x, number, x.dtype, x.place) if rows else x.reshape([-1, number + 1])).tanh()

    calls = [(4, number, True) for number in other_scalars()]
    calls += [(rows, 2.5, True) for rows in range(5, 10)] + [(12, n, False) for n in range(4)]
    compiled = paddle_ngraph.compile(function)
    traces = []
    for _ in range(3):
        other = [(4, number, True) for number in other_scalars()] + calls[len(other_scalars()) :]
        agree(
            [compiled(floats(rows), *rest) for rows, *rest in other],
            [function(floats(rows), *rest) for rows, *rest in other],
        )
        traces.append(len(compiled._tuner.traces._traces.ends()))
    assert traces[0] == traces[1] == traces[2] > 20
    assert engine_runs() >= len(calls)


def test_a_list_that_contains_itself_is_an_error_after_many_known_calls():
    compiled = paddle_ngraph.compile(
        lambda x, number: (
            paddle._C_ops.leaky_relu(x, number)
            if isinstance(number, float)
            else paddle._C_ops.concat(number, 0)
        )
    )
    for number in range(12):
        compiled(floats(3), number + 0.5)
    items = [floats(3)]
    items.append(items)
    with pytest.raises(ValueError, match="list of Tensors"):
        compiled(floats(3), items)
