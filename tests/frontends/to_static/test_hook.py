"""Functions and layers by ``paddle.jit.to_static``: results match Paddle's."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.jit.dy2static.pir_partial_program import PartialProgramLayer

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.conversion import denylist, processor
from paddle_ngraph.frontends.executor.whole_program import WholeLayer
from paddle_ngraph.paddle_private import releases
from paddle_ngraph.partitioning import classify, program_pass
from tests.dynamic import (
    BY,
    CLASSES,
    agree,
    alone,
    flat,
    floats,
    gradients,
    inputs,
    labels,
    lenet,
    made,
    mlp,
    static,
    twice,
    values,
)
from tests.mkl_packed.comparing import Packs
from tests.programs import at_once, summary

pytestmark = pytest.mark.usefixtures("in_dynamic_mode", "little_to_collect")

ROOT = Path(__file__).parents[3]
parameter_recorder = importlib.import_module(releases.CURRENT.traces)


# -- ways to train ---------------------------------------------------------------------------------


class Small(nn.Layer):
    """A convolution, its normalization, dropout and a product, for [N, 1, 6, 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2D(1, 3, 3), nn.BatchNorm2D(3)
        self.drop, self.out = nn.Dropout(0.4), nn.Linear(48, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.out(self.drop(F.relu(self.norm(self.conv(x)))).flatten(1))


def pictures(number: int = 0, size: int = 5) -> Any:
    return floats(size, 1, 6, 6, seed=number)


@pytest.mark.slow("trains through many compiles")
@BY
def test_alternating_training_and_evaluation(by_ast):
    def play() -> Any:
        layer = made(Small)
        network = static(layer, by_ast)
        optimizer = paddle.optimizer.Momentum(0.01, parameters=layer.parameters())
        seen = []
        for step in range(6):
            layer.train()
            loss = F.cross_entropy(network(pictures(step)), labels(step, 5))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            layer.eval()
            seen += [loss.numpy(), network(pictures(100)).numpy()]
        return seen, values(layer)

    twice(play, runs=18)


@pytest.mark.slow("trains through many compiles")
def test_evaluation_with_the_statistics_of_a_forward_pass_without_gradients():
    def play() -> Any:
        layer = made(Small)
        network = static(layer)
        with paddle.no_grad():
            seen = [network(pictures(step)) for step in range(3)]
        layer.eval()
        return seen, network(pictures(9)), values(layer)

    twice(play, runs=4)


@BY
def test_gradients_accumulate(by_ast):
    def play() -> Any:
        layer = made(Small)
        network = static(layer, by_ast)
        for step in range(3):
            network(pictures(step)).mean().backward()
        return gradients(layer)

    twice(play, runs=6)


@BY
def test_frozen_parameters_and_gradients_of_inputs(by_ast):
    def play() -> Any:
        layer = made(Small)
        layer.conv.weight.stop_gradient = True
        layer.out.bias.stop_gradient = True
        network = static(layer, by_ast)
        x = pictures()
        x.stop_gradient = False
        network(x).square().mean().backward()
        return x.grad, gradients(layer)

    twice(play, runs=2)


NORMALIZATIONS = {
    "batch": lambda: nn.BatchNorm2D(6),
    "batch, rows": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1D(6 * 25)),
    "batch, channels last": lambda: nn.BatchNorm2D(5, data_format="NHWC"),
    "layer": lambda: nn.LayerNorm([6, 5, 5]),
    "group": lambda: nn.GroupNorm(3, 6),
    "instance": lambda: nn.InstanceNorm2D(6),
}


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("weight", "bias")], ids=str)
@pytest.mark.parametrize("behind", [True, False], ids=["behind a convolution", "alone"])
@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_frozen_parameters_of_a_normalization(kind, behind, frozen):
    """Where one of two is frozen, some of Paddle's kernels leave the other one without gradient."""

    def play() -> Any:
        layer = made(lambda: nn.Sequential(nn.Conv2D(6, 6, 1), NORMALIZATIONS[kind]()))
        norm = layer[1][1] if kind == "batch, rows" else layer[1]
        weight = norm.scale if kind == "instance" else norm.weight
        with paddle.no_grad():
            weight.set_value(floats(*weight.shape, seed=2))
        weight.stop_gradient = "weight" in frozen
        norm.bias.stop_gradient = "bias" in frozen
        network = static(layer if behind else layer[1])
        x = floats(4, 6, 5, 5)
        x.stop_gradient = False
        (network(x).flatten(1).square() * paddle.arange(1.0, 5.0).unsqueeze(1)).mean().backward()
        return x.grad, gradients(layer)

    twice(play, runs=2, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",)], ids=str)
@pytest.mark.parametrize("leaf", [True, False], ids=["gradient of x", "no gradient of x"])
def test_frozen_parameters_of_a_normalization_of_one_element(leaf, frozen):
    """Such a batch is a case of its own in Paddle's kernel; a frozen parameter is one here too."""

    def play() -> Any:
        layer = made(lambda: nn.BatchNorm1D(3))
        for name in frozen:
            getattr(layer, name).stop_gradient = True
        x = floats(1, 3)
        x.stop_gradient = not leaf
        (static(layer)(x).square() * paddle.arange(1.0, 4.0)).sum().backward()
        return x.grad, gradients(layer)

    twice(play, runs=2)


def test_all_parameters_frozen():
    def play() -> Any:
        layer = made(Small)
        for parameter in layer.parameters():
            parameter.stop_gradient = True
        network = static(layer)
        x = pictures()
        x.stop_gradient = False
        network(x).mean().backward()
        return x.grad, network(pictures()), gradients(layer)

    twice(play, runs=3)


@BY
def test_grad_of_some(by_ast):
    def play() -> Any:
        layer = made(Small)
        network = static(layer, by_ast)
        x = pictures()
        x.stop_gradient = False
        loss = network(x).square().sum()
        return paddle.grad(loss, [x, layer.out.weight])

    twice(play, runs=2)


@BY
def test_interleaved_passes(by_ast):
    """Two forward passes, then their backward passes, the first one first."""

    def play() -> Any:
        layer = made(Small)
        network = static(layer, by_ast)
        first = network(pictures(1)).square().sum()
        second = network(pictures(2)).square().sum()
        first.backward()
        seen = gradients(layer)
        layer.clear_gradients()
        second.backward()
        return seen, gradients(layer), first, second

    twice(play, runs=4)


def test_a_forward_pass_without_backward_pass():
    def play() -> Any:
        layer = made(Small)
        network = static(layer)
        for step in range(4):
            network(pictures(step))
        network(pictures(9)).sum().backward()
        return gradients(layer), values(layer)

    twice(play, runs=6)


@pytest.mark.parametrize("again", [dict(retain_graph=True), dict(create_graph=True)], ids=str)
def test_a_second_gradient_raises_as_in_paddle(again):
    """Once more through the same pass, or the gradient of a gradient."""

    def play() -> Any:
        layer = made(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
        network = static(layer)
        x = floats(5, 4)
        x.stop_gradient = False
        loss = network(x).square().sum()
        seen = paddle.grad(loss, [x], **again)
        try:
            seen += paddle.grad(loss if "retain_graph" in again else seen[0].square().sum(), [x])
        except Exception as error:
            return [each.numpy() for each in seen], [len(type(error).__name__)]
        return seen

    twice(play, runs=2)


@BY
def test_the_stream_of_random_numbers(by_ast):
    """The masks, and the state of the stream afterwards, equal Paddle's."""

    def play() -> Any:
        layer = made(lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(30, 30), nn.Dropout(0.6)))
        network = static(layer, by_ast)
        seen = []
        for step in range(4):
            seen += [network(floats(4, 30, seed=step)), paddle.rand([3])]
        return seen

    twice(play, runs=4)


@BY
def test_the_stream_where_several_draw(by_ast):
    """Side by side, in intervals around an operator that runs natively and draws itself."""

    class Drawing(nn.Layer):
        def forward(self, x: Any) -> Any:
            near, far = F.dropout(x, 0.3), F.dropout(x * 2.0, 0.6)
            noise = paddle.poisson(near.abs() + 1.0)
            return F.dropout(paddle.lgamma(noise + 1.5), 0.2) + F.dropout(far + noise, 0.7)

    def play() -> Any:
        layer = made(Drawing)
        network = static(layer, by_ast)
        return [(network(floats(40, 30, seed=step)), paddle.rand([3])) for step in range(4)]

    # In Paddle they race for the random stream unless run in order.
    paddle.set_flags({"FLAGS_new_executor_sequential_run": True})
    try:
        expected = list(flat(alone(play, engine=False)))
    finally:
        paddle.set_flags({"FLAGS_new_executor_sequential_run": False})
    agree(alone(play, engine=True), expected)
    assert paddle_ngraph.stats()["engine_runs"] >= 8


# -- programs --------------------------------------------------------------------------------------


class Branches(nn.Layer):
    """A branch that depends on data, and a loop whose length is an input."""

    def __init__(self, loops: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.loops = loops

    def forward(self, x: Any, times: Any) -> Any:
        if x.sum() > 0:  # noqa: SIM108
            x = F.relu(self.first(x)) * 2.0
        else:
            x = F.tanh(self.second(x)) - 1.0
        if self.loops:
            step = paddle.zeros([1], "int64")
            while step < times:
                x = F.sigmoid(self.second(x)) + x
                step = step + 1
        return self.first(x)


@pytest.mark.parametrize(
    ("loops", "is_training", "by_ast"),
    [
        (True, False, True),
        (True, False, False),
        (False, False, True),
        (False, True, True),
        (False, True, False),
        (True, True, True),  # Paddle cannot, and says so
    ],
)
def test_control_flow(loops, is_training, by_ast):
    def play() -> Any:
        layer = made(lambda: Branches(loops))
        layer.training = is_training
        network = static(layer, by_ast)
        seen = []
        for step, times in enumerate((2, 0, 3)):
            x = floats(4, 6, seed=step) + (1.0 if step else -1.0)
            x.stop_gradient = False
            out = network(x, paddle.to_tensor([times]))
            seen.append(out.numpy())
            if is_training:
                try:
                    out.square().mean().backward()
                except ValueError as error:
                    return seen, [len(str(error))]
                seen += [x.grad, *gradients(layer)]
        return seen

    twice(play)


@pytest.mark.slow("compiles many or large functions")
@BY
def test_changing_shapes(by_ast):
    def play() -> Any:
        layer = made(mlp)
        network = static(layer, by_ast)
        seen = []
        for size in (3, 8, 5, 1, 8, 13):
            out = network(floats(size, 20, seed=size))
            out.square().mean().backward()
            seen.append(out.numpy())
        return seen, gradients(layer)

    twice(play, runs=12)


@pytest.mark.parametrize("shape", [[-1, 20], [-1, -1]], ids=str)
def test_open_shapes(shape):
    def play() -> Any:
        layer = made(mlp)
        network = paddle.jit.to_static(
            layer, input_spec=[paddle.static.InputSpec(shape)], full_graph=True
        )
        seen = []
        for size in (3, 8, 5, 1, 8, 13, 6):
            out = network(floats(size, 20, seed=size))
            out.square().mean().backward()
            seen.append(out.numpy())
        layer.eval()
        return seen, gradients(layer), [network(floats(size, 20)) for size in (2, 7, 4)]

    twice(play, runs=17)


def test_an_empty_batch():
    def play() -> Any:
        layer = made(mlp)
        network = paddle.jit.to_static(
            layer, input_spec=[paddle.static.InputSpec([-1, 20])], full_graph=True
        )
        seen = []
        for size in (4, 0, 3):
            out = network(floats(size, 20))
            seen.append(out.numpy())
            if size:
                out.sum().backward()
        return seen, gradients(layer)

    twice(play, runs=4)


def test_a_function_of_tensors():
    def play() -> Any:
        @paddle.jit.to_static(full_graph=True)
        def distances(a: Any, b: Any) -> Any:
            apart = a.unsqueeze(1) - b.unsqueeze(0)
            return {"apart": apart, "far": apart.square().sum(-1).sqrt(), "same": a}

        a, b = floats(4, 3), floats(5, 3, seed=2)
        a.stop_gradient = False
        found = distances(a, b)
        found["far"].sum().backward()
        return found["apart"], found["far"], found["same"], a.grad

    twice(play, runs=2)


def test_a_function_that_writes_its_argument():
    def play() -> Any:
        @paddle.jit.to_static(full_graph=True)
        def move(x: Any, by: Any) -> Any:
            paddle.assign(x * 2.0 + by, output=x)
            return x.sum() + by.mean()

        x = floats(40, 3)
        with paddle.no_grad():
            return [move(x, floats(40, 3, seed=step)) for step in range(3)], x

    twice(play, runs=3)


def test_a_buffer_that_counts():
    class Counting(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", paddle.zeros([4]))
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            paddle.assign(self.count + x.mean(0), output=self.count)
            return self.linear(x) * self.count

    def play() -> Any:
        layer = made(Counting)
        network = static(layer)
        seen = []
        for step in range(4):
            layer.training = step != 2
            with paddle.no_grad():
                seen.append(network(floats(5, 4, seed=step)).numpy())
        return seen, layer.count

    twice(play, runs=4)


class Normalized(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1D(4)

    def forward(self, x: Any) -> Any:
        return self.norm(x), self.norm._mean


class Added(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", paddle.zeros([4]))

    def forward(self, x: Any) -> Any:
        paddle.assign(self.total + x.detach().mean(0), output=self.total)
        return self.linear(x), self.total


class Shared(nn.Layer):
    """Calls one layer several times in each graph, as siamese networks do."""

    def __init__(self, kind: Callable[[], Any], times: int, is_returned: bool) -> None:
        super().__init__()
        self.inner, self.times, self.is_returned = kind(), times, is_returned

    def forward(self, x: Any, y: Any) -> Any:
        results = []
        for _ in range(self.times):
            x, written = self.inner(x)
            y, again = self.inner(y)
            if self.is_returned:
                results += [written, again]
        return [*results, paddle.tanh(x), paddle.tanh(y)]


@pytest.mark.slow("compiles many or large functions")
@BY
@pytest.mark.parametrize("is_returned", [False, True], ids=["kept", "returned"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", [Normalized, Added])
def test_a_variable_that_one_graph_writes_several_times(kind, times, is_returned, by_ast):
    """To Paddle each of the values that are written is a variable of its own."""

    def run() -> Any:
        layer = made(lambda: Shared(kind, times, is_returned))
        network = static(layer, by_ast)
        results = []
        for step in range(3):
            found = network(floats(5, 4, seed=step), floats(3, 4, seed=step + 9))
            sum(each.sum() for each in found).backward()
            results += [[each.numpy() for each in found], gradients(layer), values(layer)]
            layer.clear_gradients()
        layer.eval()
        with paddle.no_grad():
            for _ in range(2):
                found = network(floats(5, 4), floats(3, 4))
                results += [[each.numpy() for each in found], values(layer)]
        return results

    twice(run, runs=8)


def test_inputs_that_are_not_contiguous():
    def play() -> Any:
        layer = made(mlp)
        network = static(layer)
        x = floats(20, 6).t()
        x.stop_gradient = False
        network(x).sum().backward()
        return x.grad, gradients(layer)

    twice(play, runs=2)


# -- recurrent layers ------------------------------------------------------------------------------

RECURRENT = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "tanh": nn.SimpleRNN,
    "relu": lambda *sizes, **options: nn.SimpleRNN(*sizes, activation="relu", **options),
}
SHAPES: dict[str, dict[str, Any]] = {
    "one layer": {},
    "backwards too": {"direction": "bidirect"},
    "three layers, dropout": {"num_layers": 3, "dropout": 0.4},
    "two layers, both ways, time first": {
        "num_layers": 2,
        "direction": "bidirect",
        "dropout": 0.3,
        "time_major": True,
    },
}


class OverSteps(nn.Layer):
    """A recurrent layer over [N, 7, 5], with initial states and lengths where they are given."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layer = RECURRENT[kind](5, 11, **options)

    def forward(self, x: Any, states: Any = None, lengths: Any = None) -> Any:
        out, last = self.layer(x, states, lengths)
        last = last if isinstance(last, tuple) else (last,)
        return out, sum((state.square().sum() for state in last), out.tanh().sum())


@pytest.fixture
def packs() -> Iterator[None]:
    """Layers of both passes have to be packed by this package: each weight of a cell is packed
    in both.
    """
    with Packs() as packs:
        yield
    assert packs.count > 0 and packs.count % 2 == 0


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ragged", [True, False], ids=["ragged", "of one length"])
def test_recurrent_layers_train(packs, kind, shape, ragged):
    """The saved state of a layer is passed from the forward to the backward program."""

    def play() -> Any:
        layer = made(lambda: OverSteps(kind, **SHAPES[shape]))
        network = static(layer)
        optimizer = paddle.optimizer.Adam(0.01, parameters=layer.parameters())
        rows = 7 if SHAPES[shape].get("time_major") else 4
        lengths = paddle.to_tensor(np.arange(rows, dtype="int32") % 3 + 2) if ragged else None
        found = []
        for step in range(3):
            x = floats(4, 7, 5, seed=step)
            x.stop_gradient = False
            out, loss = network(x, None, lengths)
            loss.backward()
            found.append((out, loss, x.grad, gradients(layer)))
            optimizer.step()
            optimizer.clear_grad()
        return found, paddle.rand([3])

    twice(play, runs=3)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("written", ["weight", "states", "output", "nothing"])
def test_writes_between_forward_and_backward(packs, kind, written):
    """Paddle's gradient reads the current weights, states and output; saved state is unchanged."""

    def play() -> Any:
        layer = made(lambda: OverSteps(kind))
        network = static(layer)
        x = floats(4, 7, 5)
        x.stop_gradient = False
        states = [floats(1, 4, 11, seed=seed) for seed in (1, 2)]
        out, loss = network(x, tuple(states) if kind == "LSTM" else states[0])
        _, more = network(floats(4, 7, 5, seed=5), None)
        with paddle.no_grad():
            if written == "weight":
                layer.layer.parameters()[1].scale_(0.5)
            elif written == "states":
                states[0].zero_()
            elif written == "output":
                out.zero_()
        loss.backward()
        first = gradients(layer)
        more.backward()
        return x.grad, first, gradients(layer)

    twice(play, runs=4)


@pytest.mark.parametrize("frozen", [(0,), (1, 2), (0, 1, 2, 3), "all but x"], ids=str)
def test_recurrent_layers_with_frozen_weights(frozen):
    def play() -> Any:
        layer = made(lambda: OverSteps("LSTM", num_layers=2))
        parameters = layer.parameters()
        for number in range(len(parameters)) if frozen == "all but x" else frozen:
            parameters[number].stop_gradient = True
        x = floats(4, 7, 5)
        x.stop_gradient = False
        states = [floats(2, 4, 11, seed=seed) for seed in (1, 2)]
        states[1].stop_gradient = False
        _, loss = static(layer)(x, tuple(states))
        loss.backward()
        return x.grad, states[1].grad, gradients(layer)

    with Packs() as packs:
        twice(play, runs=1)
    assert packs.count > 0


@pytest.mark.parametrize("engine_first", [True, False])
def test_the_switch_turned_behind_a_recurrent_layer(engine_first):
    layer = made(lambda: OverSteps("GRU"))
    network = static(layer)
    found = []
    for first, then in ((engine_first, not engine_first), (False, False)):
        with paddle_ngraph.use_ngraph(first):
            _, loss = network(floats(4, 7, 5))
        with paddle_ngraph.use_ngraph(then):
            loss.backward()
        found.append([loss.numpy(), *gradients(layer)])
        layer.clear_gradients()
    agree(found[0], found[1])
    assert (paddle_ngraph.stats()["engine_runs"] > 0) == engine_first


# -- the switch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine_first", [True, False])
def test_the_switch_turned_between_forward_and_backward(engine_first):
    """A backward pass belongs to the forward pass that ran."""
    layer = made(Small)
    network = static(layer)

    def play(forward: bool, backward: bool) -> Any:
        layer.clear_gradients()
        paddle.seed(4)
        before = paddle_ngraph.stats()["engine_runs"]
        with paddle_ngraph.use_ngraph(forward):
            loss = network(pictures()).square().sum()
        with paddle_ngraph.use_ngraph(backward):
            loss.backward()
        return gradients(layer), paddle_ngraph.stats()["engine_runs"] - before

    expected, runs = play(False, False)
    assert runs == 0
    found, runs = play(engine_first, not engine_first)
    assert runs == (2 if engine_first else 0)
    agree(found, expected)


def test_the_switch_turned_before_the_backward_of_several_passes():
    layer = made(Small)
    network = static(layer)

    def play(*engine: bool) -> Any:
        layer.clear_gradients()
        paddle.seed(4)
        losses = []
        for number, each in enumerate(engine):
            with paddle_ngraph.use_ngraph(each):
                losses.append(network(pictures(number)).square().sum())
        for loss in reversed(losses):
            loss.backward()
        return gradients(layer)

    expected = play(False, False, False)
    before = paddle_ngraph.stats()["engine_runs"]
    found = play(True, False, True)
    assert paddle_ngraph.stats()["engine_runs"] == before + 4
    agree(found, expected)


@pytest.mark.slow("runs several threads for a while")
def test_each_thread_has_a_layer():
    """Paddle itself does not let two threads trace at once."""

    def traced() -> tuple[Any, Any]:
        layer = made(lenet)
        network = static(layer)
        network(inputs(lenet))
        return layer, network

    def train(layer: Any, network: Any, number: int) -> Any:
        seen = []
        for step in range(5):
            loss = F.cross_entropy(network(inputs(lenet, step + number)), labels(step))
            loss.backward()
            seen.append(loss.numpy())
        return seen, gradients(layer)

    expected = {number: train(*traced(), number) for number in range(3)}
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        found[number] = train(*all_traced[number], number)

    with paddle_ngraph.use_ngraph(False):
        all_traced = [traced() for _ in expected]
    with paddle_ngraph.use_ngraph():
        at_once(work, len(all_traced))
    agree(found, expected)
    assert paddle_ngraph.stats()["engine_runs"] == 30


@pytest.mark.slow("runs several threads for a while")
def test_threads_share_a_layer_in_evaluation():
    """In Paddle threads overwrite each other's variables, and some calls never return."""
    layer = made(lenet)
    layer.eval()
    network = static(layer)
    batches = [inputs(lenet, number, 2 + number % 2) for number in range(4)]
    with paddle.no_grad():
        expected = [network(batch).numpy() for batch in batches]
        with paddle_ngraph.use_ngraph():
            agree([network(batch) for batch in batches], expected)
    before = paddle_ngraph.stats()["engine_runs"]
    found: list[list[Any]] = [[] for _ in batches]

    def work(number: int) -> None:
        with paddle.no_grad():
            for _ in range(150):
                found[number].append(network(batches[number]).numpy())

    with paddle_ngraph.use_ngraph():
        at_once(work, len(batches))
    assert paddle_ngraph.stats()["engine_runs"] == before + 600
    for results, wanted in zip(found, expected):
        assert len(results) == 150
        for result in results:
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_a_run_that_fails_leaves_its_scope_to_others():
    layer = made(mlp)
    layer.eval()
    network = paddle.jit.to_static(
        layer, input_spec=[paddle.static.InputSpec([-1, -1])], full_graph=True
    )
    with paddle_ngraph.use_ngraph(), paddle.no_grad():
        expected = network(floats(3, 20)).numpy()
        (programs,) = [each for _, each in network.forward.program_cache._caches.values()]
        for _ in range(5):
            with pytest.raises(ValueError):
                network(floats(3, 21))
        np.testing.assert_array_equal(network(floats(3, 20)).numpy(), expected)
    scopes = [scope for each in programs._scope_cache.values() for scope in each]
    assert len(scopes) == 1 and all(scope._can_reused for scope in scopes)


# With these units Paddle gets beyond the missing kernel, to a value that it has erased: the process
# crashes, hangs, or raises, by chance.
BFLOAT16_UNITS = {"avx512_bf16", "amx_bf16", "avx_ne_convert"}
READS_FREED_MEMORY = bool(BFLOAT16_UNITS & set(processor.field("flags").split()))


@pytest.mark.skipif(READS_FREED_MEMORY, reason="Paddle reads freed memory on this processor")
@pytest.mark.parametrize("on", [True, False])
def test_a_missing_kernel_raises(on):
    """Paddle has no such kernel. Without the package the exception ends the process."""

    def plus_one(x: Any) -> Any:
        return paddle.add(paddle.scale(x, 2.0), paddle.ones([3], x.dtype))

    function = static(plus_one)
    with paddle_ngraph.use_ngraph(on):
        with pytest.raises(RuntimeError, match="Paddle cannot run it"):
            function(paddle.ones([3], "bfloat16"))
        np.testing.assert_allclose(function(floats(3)), plus_one(floats(3)), rtol=1e-6)
    assert (paddle_ngraph.stats()["engine_runs"] > 0) == on


# -- evaluation without Paddle's interpreter -------------------------------------------------------


@pytest.fixture
def whole(monkeypatch) -> list[bool]:
    """For each forward program that is one engine operator: whether the engine alone ran it."""
    taken = []
    original = WholeLayer.run_on

    def run_on(self, given):
        returned = original(self, given)
        taken.append(returned is not None)
        return returned

    monkeypatch.setattr(WholeLayer, "run_on", run_on)
    return taken


class ManyResults(nn.Layer):
    """Results of [N, 20]: some that depend on parameters, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 30)
        self.norm = nn.BatchNorm1D(30)

    def forward(self, x: Any) -> Any:
        h = self.norm(self.linear(x))
        others = {"sum": h.sum(axis=1), "twice": x * 2.0, "above": h > 0.0, "mean": x.mean() + 1}
        return h.tanh(), others


@BY
@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("has_grad", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("leaf", [True, False])
def test_results_look_like_paddles(whole, by_ast, traced, has_grad, frozen, leaf):
    """Whether a gradient stops is decided when the program is built: ``traced``."""

    def play() -> Any:
        layer = made(ManyResults)
        layer.eval()
        network = static(layer, by_ast)
        x = floats(5, 20)
        with paddle.set_grad_enabled(traced):
            network(x)
        x.stop_gradient = not leaf
        for parameter in layer.parameters():
            parameter.stop_gradient = frozen
        with paddle.set_grad_enabled(has_grad):
            first, others = network(x)
        results = [first, *others.values()]
        seen.append(
            [
                (each.stop_gradient, each.is_leaf, each.persistable, each.name, str(each.place))
                for each in results
            ]
        )
        return results

    seen: list[Any] = []
    twice(play)
    ours, theirs = (
        [item if by_ast else item[:3] for item in each]  # SOT names what it returns anew
        for each in seen
    )
    assert ours == theirs
    assert whole and all(whole)


def test_programs_run_by_a_custom_executor(whole, monkeypatch):
    called = []

    def hook(original: Any, *given: Any) -> Any:
        called.append(len(given))
        return original(*given)

    layer = made(mlp)
    layer.eval()
    network = static(layer)
    with paddle_ngraph.use_ngraph(), paddle.no_grad():
        network(inputs(mlp))
        with monkeypatch.context() as patch:
            patch.setattr(PartialProgramLayer, "HOOKED_RUN_IMPL", hook)
            network(inputs(mlp))
    assert (called, whole) == ([3], [True])
    assert paddle_ngraph.stats()["engine_runs"] == 2


def test_results_are_the_users(whole):
    layer = made(ManyResults)
    layer.eval()
    network = static(layer)
    batches = [floats(5, 20, seed=number) for number in range(6)]
    with paddle.no_grad():
        expected = [
            [network(batch)[0].numpy(), network(batch)[1]["sum"].numpy()] for batch in batches
        ]
        with paddle_ngraph.use_ngraph():
            found = [network(batch) for batch in batches]
            agree([[first, others["sum"]] for first, others in found], expected)
            for first, others in found:
                first.fill_(7.0)
                others["sum"].zero_()
            agree([[a, b["sum"]] for a, b in map(network, batches)], expected)
    assert whole == [True] * 12
    assert all((first == 7.0).all() for first, _ in found)


def _rows(*rows: int) -> Any:
    return paddle.to_tensor(rows)


@pytest.mark.parametrize(
    "given",
    {
        "a part of a tensor": lambda: paddle.arange(40)[3:9:2],
        "another dtype": lambda: _rows(3, 4, 5).astype("int32"),
        "nothing": lambda: paddle.zeros([0], "int64"),
        "another rank": lambda: _rows(1, 2).reshape([1, 2]),
        "beyond the end": lambda: _rows(1, 10_007),
        "one": lambda: _rows(7),
    }.items(),
    ids=lambda item: item[0],
)
def test_undeclared_inputs_behave_as_in_paddle(given):
    """The results are Paddle's then, or its error, and the next call is unaffected."""
    _, make = given

    def play() -> Any:
        layer = made(lambda: nn.Sequential(nn.Embedding(10_007, 8), nn.Linear(8, 3)))
        layer.eval()
        network = paddle.jit.to_static(
            layer, input_spec=[paddle.static.InputSpec([-1], "int64")], full_graph=True
        )
        results = [network(_rows(5, 6))]
        try:
            results.append(network(make()))
        except Exception as error:
            reported.append((type(error), summary(error)))
        return [*results, network(_rows(5, 6))]

    reported: list[Any] = []
    twice(play, runs=2)
    assert reported[::2] == reported[1::2]


def test_profilers_see_the_operators_of_a_layer(whole):
    layer = made(mlp)
    layer.eval()
    network = static(layer)
    with paddle_ngraph.use_ngraph(), paddle.no_grad():
        network(inputs(mlp))
        with paddle.profiler.Profiler(
            targets=[paddle.profiler.ProfilerTarget.CPU], on_trace_ready=lambda profiler: None
        ):
            network(inputs(mlp))
        network(inputs(mlp))
    assert whole == [True, False, True]
    assert paddle_ngraph.stats()["engine_runs"] == 3


def test_a_layer_of_several_intervals_needs_the_interpreter(whole, leave_native):
    leave_native("pd_op.tanh")

    def play() -> Any:
        layer = made(lambda: nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 4)))
        layer.eval()
        return static(layer)(floats(5, 20))

    twice(play, runs=2)
    assert whole == []


# -- faults ----------------------------------------------------------------------------------------


@contextmanager
def fault(step: str) -> Iterator[None]:
    """A step of the engine that fails, of functions that have to be built anew."""
    paddle_ngraph.clear_cache()
    _core.fail_at(step)
    try:
        yield
    finally:
        _core.fail_at("")
        denylist.clear()


class WithNothing(nn.Layer):
    """Beside its result another one that is empty, which only Paddle's kernels make."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 300)

    def forward(self, x: Any) -> Any:
        h = self.linear(x)
        return h, h[0:0]


@pytest.mark.slow("compiles many or large functions")
@BY
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("step", ["", "data", "run"])
def test_results_of_fallback_runs_are_retained(step, is_training, by_ast, monkeypatch):
    """Results of several runs, and what their backward passes read, are each their own."""
    # As if emptiness were known in runs only: then Paddle does each of them.
    monkeypatch.setattr(classify, "always_empty", lambda view: frozenset())

    def play() -> Any:
        layer = made(WithNothing)
        layer.train() if is_training else layer.eval()
        network = static(layer, by_ast)
        batches = [floats(5, 20, seed=seed) for seed in range(4)]
        for batch in batches:
            batch.stop_gradient = False
        with paddle.set_grad_enabled(is_training):
            results = [network(batch)[0] for batch in batches]
        if not is_training:
            return results
        for result in results:
            result.square().sum().backward()
        return results, [batch.grad for batch in batches], gradients(layer)

    with fault(step):
        agree(alone(play, engine=True), alone(play, engine=False))
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] + stats["native_runs"] >= 4


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("struck", ["forward", "backward", "both"])
@pytest.mark.parametrize("step", ["data", "compile", "allocate", "draw", "run"])
def test_failed_engine_runs_fall_back(step, struck):
    """Masks, the statistics of batches and gradients are what they would be natively."""
    expected = alone(lambda: life(), engine=False)
    before = paddle_ngraph.stats()
    found = alone(lambda: life(lambda: fault(step), struck), engine=True)
    agree(found, expected, atol=1e-5)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] > before["engine_runs"]
    if not (step == "draw" and struck == "backward"):
        assert stats["native_runs"] > before["native_runs"]


def life(strike: Any = None, struck: str = "") -> Any:
    """Four steps of training, of which the third one may be struck, and an evaluation."""
    layer = made(Small)
    network = static(layer)
    optimizer = paddle.optimizer.Momentum(0.01, 0.9, layer.parameters())
    seen = []
    for step in range(4):
        is_struck = strike is not None and step == 2
        with strike() if is_struck and struck != "backward" else nullcontext():
            loss = F.cross_entropy(network(pictures(step)), labels(step, 5))
        with strike() if is_struck and struck != "forward" else nullcontext():
            loss.backward()
        seen += [loss.numpy(), *gradients(layer), paddle.rand([2]).numpy()]
        optimizer.step()
        optimizer.clear_grad()
    layer.eval()
    return seen, values(layer), network(pictures(9))


EINSUMS = {
    "ij,jk->ki": [(3, 4), (4, 5)],
    "bhqd,bhkd->bhqk": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "...ij,...jk->...ik": [(2, 3, 4), (2, 4, 5)],
    "ijk,kl->il": [(2, 3, 4), (4, 5)],
    "ij,kl->": [(3, 4), (2, 5)],
    "ijk->kj": [(2, 3, 4)],
    "ij,jk,kl->li": [(3, 4), (4, 5), (5, 2)],
}


@pytest.mark.slow("trains through many compiles")
@BY
@pytest.mark.parametrize("struck", ["", "forward", "backward", "both"])
@pytest.mark.parametrize("equation", EINSUMS)
def test_gradients_of_einsum_read_the_operands_of_the_forward_pass(equation, struck, by_ast):
    """Whichever of Paddle and the engine runs a pass; one operand is overwritten before the
    gradient.
    """
    operands = [floats(*shape, seed=seed) for seed, shape in enumerate(EINSUMS[equation])]

    def play() -> Any:
        given = [paddle.to_tensor(x.numpy(), stop_gradient=False) for x in operands]

        def product(operands: list[Any]) -> Any:
            first = operands[0] * 2.0
            out = paddle.einsum(equation, first, *operands[1:]).tanh()
            if "." not in equation:  # that of a view, Paddle does not overwrite
                first = first.scale_(0.0)
            return out, first.sum()

        results = []
        network = static(product, by_ast)
        for _ in range(2):
            with fault("data") if struck in ("forward", "both") else nullcontext():
                out, _ = network(given)
            with fault("data") if struck in ("backward", "both") else nullcontext():
                (out * out).sum().backward()
            results += [out, *(x.grad for x in given)]
            for x in given:
                x.clear_gradient()
        return results

    before = paddle_ngraph.stats()
    agree(alone(play, engine=True), alone(play, engine=False))
    after = paddle_ngraph.stats()
    assert "pd_op.einsum" not in after["native_by_type"]
    assert "pd_op.einsum_grad" not in after["native_by_type"]
    counted = {name: after[name] - before[name] for name in ("engine_runs", "native_runs")}
    assert min(counted.values()) == 0 if struck in ("", "both") else min(counted.values()) >= 2


def test_a_rewriter_that_stumbles_leaves_a_layer_native(monkeypatch):
    def stumble(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("stumbled")

    monkeypatch.setattr(program_pass, "apply", stumble)
    expected = alone(life, engine=False)
    agree(alone(life, engine=True), expected)
    assert paddle_ngraph.stats()["engine_runs"] == 0


def test_explain_reports_both_programs():
    layer = made(Small)
    network = static(layer)
    network(pictures())
    report = paddle_ngraph.explain(network)
    assert report.ops_native == 0
    assert {"conv2d", "conv2d_grad"} <= {
        kind.removeprefix("pd_op.") for interval in report.intervals for kind in interval.types
    }
    assert "forward, global block" in str(report) and "backward, global block" in str(report)
    layer.eval()
    network(pictures())
    assert "backward" not in str(paddle_ngraph.explain(network))


def test_explain_of_functions_traced_by_sot():
    network = static(made(Small), by_ast=False)
    with pytest.raises(paddle_ngraph.NgraphError, match="full_graph=True"):
        paddle_ngraph.explain(network)


OLD_STYLE = """
import sys

import numpy as np
import paddle

import paddle_ngraph

prefix = sys.argv[1] + "/model"
paddle.enable_static()
main, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, startup):
    x = paddle.static.data("x", [-1, 8])
    y = paddle.nn.Linear(8, 5)(x)
    executor = paddle.static.Executor()
    executor.run(startup)
    paddle.static.save_inference_model(prefix, [x], [y], executor, program=main)
    numbers = np.random.default_rng(3).normal(size=(3, 8)).astype("float32")
    (expected,) = executor.run(main, {"x": numbers}, [y])
paddle.disable_static()
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
paddle_ngraph.enable()
layer = paddle.jit.load(prefix)
x = paddle.to_tensor(numbers)
for is_training in (False, True):
    layer.train() if is_training else layer.eval()
    found = layer(x)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    parameter = next(each for each in layer.parameters() if each.shape == [8, 5])
    with paddle.no_grad():
        parameter.scale_(2.0)
        expected = 2.0 * (expected - layer(x * 0.0).numpy()) + layer(x * 0.0).numpy()
assert paddle_ngraph.stats()["engine_runs"] == 0
try:
    paddle_ngraph.explain(layer)
except paddle_ngraph.NgraphError as error:
    print(error)
"""


@pytest.mark.slow("starts a process")
def test_old_style_files_stay_native(tmp_path):
    """Files that ``paddle.jit.load`` accepts where Paddle is configured to use ProgramDesc."""
    environment = {**os.environ, "FLAGS_enable_pir_api": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", OLD_STYLE, str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "run natively: paddle.jit.load runs a .pdmodel" in run.stdout
    with paddle_ngraph.use_ngraph(), pytest.raises(ValueError, match="not exists"):
        paddle.jit.load(str(tmp_path / "model"))  # Paddle looks for another suffix


def test_explain_of_a_function_that_was_never_called():
    with pytest.raises(paddle_ngraph.NgraphError, match="call it once"):
        paddle_ngraph.explain(static(made(Small)))


def test_a_small_program_stays_native_until_it_grows():
    """By the cost rule."""
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 60})
    layer = made(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU()))
    layer.eval()
    network = paddle.jit.to_static(
        layer, input_spec=[paddle.static.InputSpec([-1, 4])], full_graph=True
    )
    with paddle_ngraph.use_ngraph(), paddle.no_grad():
        network(floats(3, 4))
        assert paddle_ngraph.stats()["engine_runs"] == 0
        found = network(floats(20000, 4)).numpy()
    assert paddle_ngraph.stats()["engine_runs"] == 1
    np.testing.assert_allclose(found, layer(floats(20000, 4)).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow("makes programs until addresses repeat")
def test_values_of_programs_that_are_gone_are_not_taken_for_others():
    """Paddle leaves Python's objects for values of blocks that it has freed."""
    thresholds = gc.get_threshold()
    paddle_ngraph.enable()
    layer = paddle.nn.Sequential(
        paddle.nn.Linear(16, 16), paddle.nn.ReLU(), paddle.nn.Linear(16, 3)
    )
    function = paddle.jit.to_static(layer, full_graph=True)
    gc.set_threshold(20, 1, 1)
    try:
        for size in range(1, 41):
            function(paddle.ones([size, 16])).square().mean().backward()
    finally:
        gc.set_threshold(*thresholds)
    assert paddle_ngraph.stats()["engine_runs"] >= 40


TRACES_THAT_RAISE = f"""
import sys
import numpy as np, paddle
from paddle import nn
import {parameter_recorder.__name__} as parameter_recorder

# As if each program came to the address of the one before.
parameter_recorder._program_hash = lambda program: 1

import paddle_ngraph

how = sys.argv[1]


class Network(nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        if x.shape[0] == 2:
            if how == "shape":
                return y.reshape([7, 7])
            if how == "call":
                return self.linear(y, y)
            raise ArithmeticError("not this size")
        return y


network = Network()
weight, bias = (each.numpy() for each in network.parameters())
function = paddle.jit.to_static(network.forward, full_graph=True)
raised = 0
paddle_ngraph.enable()  # the first use, from which on Paddle's table of traces is cleared
with paddle_ngraph.use_ngraph(sys.argv[2] == "True"):
    for size in range(3, 27):
        try:
            function(paddle.ones([2, 3]))
        except Exception:
            raised += 1
        found = function(paddle.ones([size, 3])).numpy()
        np.testing.assert_allclose(found, np.ones([size, 3]) @ weight + bias, rtol=1e-4, atol=1e-5)
assert raised == 24
print(paddle_ngraph.stats()["engine_runs"])
"""


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("how", ["shape", "call", "raise"])
def test_traces_that_raise_leave_nothing_to_others(how, on, tmp_path):
    """Alone, Paddle gives the next program at the same address values of the one that is gone."""
    script = tmp_path / "traces.py"  # to_static wants to read it
    script.write_text(TRACES_THAT_RAISE)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "FLAGS_ngraph_min_interval_us": "0",
        "FLAGS_ngraph_background_compile": "0",
        "FLAGS_ngraph_cache_dir": "",
    }
    command = [sys.executable, "-W", "ignore", str(script), how, str(on)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (int(run.stdout) > 0) == on


def test_traces_release_values_with_their_program():
    """And not sooner: of a program that lives on, a trace may be under way."""
    parameters, overwritten = (
        parameter_recorder._global_parameter_recorder,
        parameter_recorder._global_inplace_map,
    )
    addresses: set[int] = set()
    values: list[Any] = []
    met = 0
    paddle.disable_static()
    weight = made(mlp).parameters()[0]
    paddle.enable_static()
    living = paddle.static.Program()
    with paddle.static.program_guard(living):
        of_living = parameters.get(living, weight)
    for _ in range(200):
        program = paddle.static.Program()
        with paddle.static.program_guard(program):
            x = paddle.static.data("x", [2, 3])
            value = parameters.get(program, weight)
            assert all(value is not each for each in values)
            values.append(value)
            assert value.get_defining_op().get_parent_block() == program.global_block()
            assert parameters.get(program, weight) is value
            assert overwritten.get(program, x) is None
            overwritten.add(program, x, x + 1.0)
            assert overwritten.get(program, x) is not None
        met += id(program) in addresses
        addresses.add(id(program))
        del program, x
    assert met > 0  # created at the address of a deleted one
    assert parameters.get(living, weight) is of_living
    assert parameters.pop(living)[0] == [weight]


@pytest.mark.slow("compiles many or large functions")
def test_numbers_of_programs_lie_further_apart_than_scopes(monkeypatch):
    """Paddle's key of an interpreter is 65 times the number, plus a quarter of the scope's address.

    Numbers 4 apart and scopes 1040 bytes apart had one key, and a layer ran as another one.
    """
    numbers = set()
    original = paddle.base.core.calc_scope_cache_key

    def noted(number: int, *rest: Any) -> int:
        numbers.add(number)
        return original(number, *rest)

    monkeypatch.setattr(paddle.base.core, "calc_scope_cache_key", noted)
    with paddle_ngraph.use_ngraph():
        for _ in range(6):
            network = static(made(mlp), True)
            x = floats(4, 20)
            x.stop_gradient = False
            network(x).sum().backward()
    assert len(numbers) == 6
    for found in (numbers, {65 * number % 2**64 for number in numbers}):
        ordered = sorted(found)
        assert min(b - a for a, b in zip(ordered, ordered[1:])) > 1 << 40
