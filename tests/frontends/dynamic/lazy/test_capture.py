"""Lazy tensors of compiled functions: readers and writers see the values of eager execution."""

from __future__ import annotations

import copy
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.utils import dlpack

import paddle_ngraph
from paddle_ngraph.frontends.dynamic.compiled_layer import Compiled
from tests.dynamic import agree, floats, gradients, made, mlp
from tests.frontends.dynamic.lazy.test_captured_integers import check_one_graph, played
from tests.frontends.dynamic.test_compiled_layer import Warm, both

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

CALLS = 5


def repeated(function: Callable[..., Any], *args: Any) -> Callable[[Any], list[Any]]:
    """A scenario that calls a function CALLS times."""

    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        called = compiled(function)
        return [called(*args) for _ in range(CALLS)]

    return scenario


# -- readers -------------------------------------------------------------------------------------


class Squared(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensor()
        return gradient * x * 2


class Parts(paddle.autograd.PyLayer):
    """Several results, one of which is a number; writes one of its tensors. For inference."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float, one: Any, other: Any, write: bool = False) -> Any:
        y = x * factor
        if write:
            y[0] = one[0]
        return y, F.tanh(y) + other, x * 1.0, x.shape[0]


PY_LAYERS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda y: Squared.apply(y) + 1.0,
    "twice": lambda y: Squared.apply(Squared.apply(y) + 1.0) * y,
    "parts": lambda y: list(Parts.apply(y, 2.0, y + 1.0, y * 3.0)[:3]),
    "written": lambda y: (lambda z: [z[0] * 2.0, z[1], z[2] + z[3]])(
        Parts.apply(y, 2.0, y + 1.0, y * 1.5, write=True)
    ),
    "of a tensor of the user": lambda y: Squared.apply(USERS) + y,
}
USERS = floats(3, 4, seed=5)


@pytest.mark.parametrize("function", PY_LAYERS.values(), ids=PY_LAYERS)
def test_functions_with_gradients_of_their_own_break_no_graph_in_inference(function):
    layer = nn.Linear(4, 4)

    def called(x: Any) -> Any:
        with paddle.no_grad():
            return function(F.tanh(layer(x)) * 2.0)

    check_one_graph(played(repeated(called, floats(3, 4)), runs=2))


@pytest.mark.parametrize("name", ["alone", "twice", "of a tensor of the user"])
def test_functions_with_gradients_of_their_own_train(name):
    layer = nn.Linear(4, 4)

    def called(x: Any) -> Any:
        return PY_LAYERS[name](F.tanh(layer(x)) * 2.0)

    def scenario(compiled: Callable[[Any], Any]) -> Any:
        found = []
        for result in repeated(called, floats(3, 4))(compiled):
            result.square().sum().backward()
            found += [result, *gradients(layer)]
            layer.clear_gradients()
        return found

    both(scenario)


READERS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda y: y.numpy(),
    "asarray": np.asarray,
    "item": lambda y: y[0, 0].item(),
    "float": lambda y: float(y.sum()),
    "truth": lambda y: bool((y > 0).any()),
    "list": lambda y: y.tolist(),
    "text": lambda y: len(str(y)),
    "copy": lambda y: copy.copy(y).numpy(),
    "deepcopy": lambda y: copy.deepcopy(y.detach()).numpy(),
    "pickle": lambda y: pickle.loads(pickle.dumps(y.detach())),
    "clone": lambda y: y.clone().numpy(),
    "tensor": lambda y: paddle.Tensor(y).numpy(),
    "to_tensor": lambda y: paddle.to_tensor(y).numpy(),
    "handle": lambda y: np.array(y.get_tensor()),
    "value": lambda y: np.array(y.value().get_tensor()),
    "dlpack": lambda y: dlpack.from_dlpack(dlpack.to_dlpack(y.detach())).numpy(),
    "numpy_dlpack": lambda y: np.from_dlpack(y.detach()).copy(),
    "sorted": lambda y: paddle.sort(y).numpy(),
    "gathered": lambda y: paddle.gather(y, paddle.to_tensor([2, 0])).numpy(),
    "nonzero": lambda y: paddle.nonzero(y).numpy(),
    "equal": lambda y: bool(paddle.equal_all(y, y + 0.0)),
    "strides": lambda y: list(y.transpose([1, 0]).strides),
    "py_layer": lambda y: Squared.apply(y).numpy(),
    "parameter": lambda y: paddle.create_parameter(
        [3, 4], "float32", default_initializer=nn.initializer.Assign(y.detach())
    ).numpy(),
}


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_readers_see_computed_values(read, trains):
    layer = nn.Linear(4, 4)

    def function(x: Any) -> Any:
        with paddle.set_grad_enabled(trains):
            y = F.tanh(layer(x)) * 1.5 + x
            return [read(y), F.relu(layer(y)) * 2.5]

    found = both(repeated(function, floats(3, 4)))
    assert len(found) == CALLS


def test_names_are_available_without_memory():
    @paddle_ngraph.compile
    def function(x: Any) -> Any:
        y = F.relu(x) * 2.0
        seen = y.name
        z = y + 1.0
        z.name = "given"
        return y, z, seen

    x = floats(3, 4)
    for _ in range(CALLS):
        y, z, seen = function(x)
        assert y.name == seen and z.name == "given"
        agree([y, z], [F.relu(x) * 2.0, F.relu(x) * 2.0 + 1.0])
    report = function.explain()
    assert report.breaks == [] and report.graphs[0].operators == 3


@pytest.mark.parametrize("trains", [True, False])
def test_layers_may_retain_lazy_tensors(trains):
    """Paddle names tensors that are assigned to a layer, such as weights normalized per call."""

    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        normalized = [nn.utils.weight_norm(layer) for layer in (nn.Linear(4, 5), nn.Linear(5, 3))]
        layer = compiled(nn.Sequential(normalized[0], nn.Tanh(), normalized[1]))
        found = []
        for number in range(CALLS):
            with paddle.set_grad_enabled(trains):
                y = layer(floats(3, 4, seed=number))
            found += [y, *[each.weight for each in normalized]]
            if trains:
                y.square().sum().backward()
                found += gradients(layer)
        if isinstance(layer.forward, Compiled):
            assert paddle_ngraph.explain(layer).breaks == []
        return found

    both(lambda compiled: made(lambda: scenario(compiled)))


def test_sparse_lookups_infer_in_one_graph():
    layer = paddle_ngraph.compile(
        nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3), nn.Tanh())
    )
    words = paddle.to_tensor([[1, 8], [0, 3]])
    expected = layer(words).numpy()  # the first call runs eagerly
    with paddle.no_grad():
        for _ in range(CALLS):
            agree(layer(words), expected)
        report = paddle_ngraph.explain(layer)
    (graph,) = [each for each in report.graphs if each.why_native is None]
    assert "embedding" in str(graph.reports[0])


# -- writers -------------------------------------------------------------------------------------


def writes_array(x: Any) -> Any:
    array = np.ones((3, 4), "float32")
    given = paddle.Tensor(array, zero_copy=True)
    y = F.relu(given) * 2.5
    array[:] = 7.0
    return y + x


def writes_handle(x: Any) -> Any:
    x = x.clone()
    handle = x.value().get_tensor()
    y = F.relu(x) * 2.5
    handle.set(np.full((3, 4), 7.0, "float32"), paddle.CPUPlace())
    return y + 1.0


def writes_input(x: Any) -> Any:
    x = x.clone()
    y = F.relu(x) * 2.5
    x.add_(paddle.ones([3, 4]))
    return y + x


def writes_item(x: Any) -> Any:
    x = x.clone()
    y = F.relu(x) * 2.5
    x[1] = 9.0
    return y + x


def writes_elsewhere(x: Any) -> Any:
    """Writes from another thread, which this one joins."""
    x = x.clone()
    y = F.relu(x) * 2.5
    writer = threading.Thread(target=lambda: x.add_(paddle.ones([3, 4])))
    writer.start()
    writer.join()
    return y + x


WRITERS = [writes_array, writes_handle, writes_input, writes_item, writes_elsewhere]


@pytest.mark.parametrize("function", WRITERS, ids=lambda function: function.__name__)
def test_later_writes_do_not_change_earlier_reads(function):
    with paddle.no_grad():
        both(repeated(function, floats(3, 4)), runs=0)
        both(repeated(lambda x: F.gelu(x) * 1.25 + x, floats(3, 4)))


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("act", ["relu", "sigmoid", "tanh"])
def test_former_activations_are_no_graph_breaks(act, trains):
    """``nn.BatchNorm``, as in PaddleOCR's detectors, calls them by Paddle's former names."""

    def build() -> Any:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm(4, act=act), nn.Linear(4, 3))

    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        layer, found = made(build), []
        if isinstance(compiled, Warm):
            compiled(layer, full_graph=True)
        for number in range(CALLS):
            with paddle.set_grad_enabled(trains):
                found.append(layer(floats(6, 4, seed=number)))
            if trains:
                found[-1].square().sum().backward()
        return [*found, layer[1]._mean, *(each.grad for each in layer[0].parameters())]

    both(scenario, runs=1)


# -- running statistics, doubles and names --------------------------------------------------------


class Norms(nn.Layer):
    def __init__(self, act: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.linear, self.norm, self.act = nn.Linear(4, 4), nn.BatchNorm1D(4), act

    def forward(self, x: Any) -> Any:
        return self.act(self, x)


def twice(layer: Any, x: Any) -> Any:
    y = layer.linear(x)
    a, b = layer.norm(y * 3.0), layer.norm(x)
    return y, a, b


def read_between(layer: Any, x: Any) -> Any:
    before = layer.norm._mean * 2.0
    a = layer.norm(layer.linear(x))
    return before, a, layer.norm._mean * 2.0


def evaluated_after(layer: Any, x: Any) -> Any:
    a = layer.norm(layer.linear(x))
    layer.norm.eval()
    b = layer.norm(x)
    layer.norm.train()
    return a, b


def once(layer: Any, x: Any) -> Any:
    return F.relu(layer.norm(layer.linear(x))) * 2.0


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("act", [twice, read_between, evaluated_after, once])
def test_statistics_are_written_in_call_order(act, trains):
    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        layer, found = compiled(made(lambda: Norms(act))), []
        for number in range(CALLS):
            with paddle.set_grad_enabled(trains):
                found.append(layer(floats(6, 4, seed=number)))
            found += [layer.norm._mean.clone(), layer.norm._variance.clone()]
        return found

    both(scenario, runs=1 if act is once else 0)


@pytest.mark.parametrize("number", [0.1, 3.0, 1e40, 1 / 3])
def test_scalars_of_float64_keep_their_precision(number):
    def function(x: Any) -> Any:
        y = x.astype("float64")
        return [y * number, y + number, y / number, F.relu(x) * 1.5]

    for results in both(repeated(function, floats(3, 4)), runs=0):
        wide = floats(3, 4).astype("float64").numpy()
        np.testing.assert_allclose(results[0].numpy(), wide * number, rtol=1e-15)
        np.testing.assert_allclose(results[1].numpy(), wide + number, rtol=1e-15)


@pytest.mark.parametrize("trains", [False, True])
def test_lazy_tensors_have_names(trains):
    """Recomputation, for example, records the names of layers' results."""
    layer = made(mlp)
    names: list[str] = []

    def forward(x):
        hidden = layer(x) * 2
        names.append(hidden.name)
        last = F.relu(hidden)
        return last, hidden, hidden.name

    def scenario(compiled):
        called = compiled(forward)
        names.clear()
        found = []
        for number in range(CALLS):
            with paddle.set_grad_enabled(trains):
                last, hidden, name = called(floats(4, 20, seed=number))
            assert names[-1] == name == hidden.name
            found += [last, hidden]
        assert len(set(names)) == CALLS
        return found

    both(scenario, runs=2)
    compiled = paddle_ngraph.compile(forward)
    for number in range(3):
        with paddle.set_grad_enabled(trains):
            compiled(floats(4, 20, seed=number))
    assert paddle_ngraph.explain(compiled).breaks == []


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_empty_results(rows):
    def function(x: Any) -> Any:
        y = F.relu(x[:rows]) * 2.0
        return [y, y.shape, F.tanh(x) + 1.0]

    both(repeated(function, floats(3, 4)), runs=min(rows, 1))


def test_changed_flags_take_effect():
    """Without strides a slice is a copy, and keeps its values."""

    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        function, found = compiled(lambda x: (x[1:], F.relu(x) * 2.5)), []
        try:
            for number in range(9):
                if number % 3 == 0:
                    paddle.set_flags({"FLAGS_use_stride_kernel": number != 3})
                x = floats(3, 4)
                part, result = function(x)
                x.zero_()
                found += [part, result]
        finally:
            paddle.set_flags({"FLAGS_use_stride_kernel": True})
        return found

    both(scenario)


def test_nan_check_covers_each_operator():
    function = paddle_ngraph.compile(lambda x: F.relu(paddle.log(x)) * 2.5)
    for _ in range(3):
        function(floats(3, 4))
    before = paddle_ngraph.stats()["engine_runs"]
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    try:
        with pytest.raises(RuntimeError, match="NAN or INF"):
            function(-paddle.ones([3, 4]))
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False})
    assert before == paddle_ngraph.stats()["engine_runs"] > 0


# -- threads, and failures -----------------------------------------------------------------------


def test_another_thread_reads_a_lazy_tensor():
    layer, asked, answers = made(mlp).eval(), queue.Queue(), queue.Queue()

    def reader() -> None:
        while (tensor := asked.get()) is not None:
            answers.put(tensor.numpy())

    def function(x: Any, number: float) -> Any:
        y = layer(x) * 2.0
        asked.put(y)
        z = F.tanh(y) * number  # the argument may be constant or new to the trace
        return z, answers.get()

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        compiled, x = paddle_ngraph.compile(function), floats(5, 20)
        with paddle.no_grad():
            expected = layer(x) * 2.0
            for number in (1.5, 1.5, 1.5, 2.5, 1.5, 3.5, 1.5, 2.5):
                z, seen = compiled(x, number)
                agree(z, F.tanh(expected) * number)
                np.testing.assert_allclose(seen, expected.numpy(), rtol=1e-5, atol=1e-6)
    finally:
        asked.put(None)
        thread.join()
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_a_failed_graph_raises_and_leaves_tensors_computable(monkeypatch):
    """After a MemoryError, for example, a lazy tensor without memory is never taken for an empty
    one.
    """
    kept: list[Any] = []

    def function(x: Any) -> Any:
        y = F.relu(x) * 2.5
        kept.append(y)
        return F.tanh(y) + 1.0

    compiled, x = paddle_ngraph.compile(function), floats(3, 4)
    with paddle.no_grad():
        for _ in range(3):
            agree(compiled(x), function(x))
        (graph,) = compiled._tuner.traces.graphs()

        def fail(*args: Any) -> Any:
            raise MemoryError("no room")

        monkeypatch.setattr(type(graph), "__call__", fail)
        kept.clear()
        with pytest.raises(MemoryError, match="no room"):
            compiled(x)
    agree(kept[0], F.relu(x) * 2.5)  # computed by calling the operators
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_model_fit():
    """Model.fit inspects the arguments of forward."""
    model = paddle.Model(paddle_ngraph.compile(made(mlp)))
    model.prepare(paddle.optimizer.SGD(0.05, parameters=model.parameters()), nn.CrossEntropyLoss())
    data = paddle.io.TensorDataset([floats(32, 20), paddle.randint(0, 3, [32, 1])])
    model.fit(data, batch_size=8, epochs=2, verbose=0)
    assert paddle_ngraph.stats()["engine_runs"] > 0


# -- the first functions of a process --------------------------------------------------------------

FIRST = """
import sys
import paddle, paddle_ngraph
from tests.programs import at_once

def stopped(x):
    y = paddle.nn.functional.relu(x)
    y.stop_gradient = True
    return y * x

def work(number):
    function = paddle_ngraph.compile(stopped)
    for _ in range(4):
        x = paddle.to_tensor([1.0, -2.0, 3.0], stop_gradient=False)
        function(x).sum().backward()
        assert x.grad.tolist() == [1.0, 0.0, 3.0]

sys.setswitchinterval(1e-6)
at_once(work, 8)
assert paddle_ngraph.stats()["engine_runs"] > 0
"""


@pytest.mark.slow("starts a process")
def test_threads_compile_their_first_functions_together():
    """One thread runs graphs that train, the others their own operators."""
    settings = {"FLAGS_ngraph_background_compile": "0", "FLAGS_ngraph_min_interval_us": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST],
        env={**os.environ, **settings},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
