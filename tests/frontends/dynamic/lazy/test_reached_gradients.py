"""Parameters that a loss does not reach have no gradient, however a function is split into graphs.

Random functions use values in ways that propagate gradients, and in ways that do not: detached,
compared or as labels. Some of their results are differentiated, others in each step. Zeros instead
of no gradient would be wrong: the weight decay of an optimizer moves such parameters.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph.frontends.dynamic.lazy import trace_graph
from tests.dynamic import floats, made
from tests.frontends.dynamic.test_compiled_layer import both

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

SHAPE = [3, 4]
STEPS = 4


def without_gradient(x: Any) -> Any:
    with paddle.no_grad():
        return F.sigmoid(x)


# Functions of two values. Those of the second line propagate no gradient to y.
USES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, y: x + y,
    "product": lambda x, y: x * F.tanh(y),
    "activation": lambda x, y: F.tanh(x),
    "matrices": lambda x, y: F.tanh(paddle.matmul(x, y, transpose_y=True)[:, :1] + x),
    "views": lambda x, y: x.reshape([4, 3]).reshape(SHAPE) * 0.9,
    "detached": lambda x, y: x * F.tanh(y.detach()),
    "compared": lambda x, y: x * (y > 0).astype("float32"),
    "chosen": lambda x, y: paddle.where(y > 0, x, x * 0.3),
    "sizes": lambda x, y: paddle.expand_as(x[:, :1], y) + 0.1,
    "divergence": lambda x, y: F.kl_div(x, F.sigmoid(y), reduction="none"),
    "labels": lambda x, y: (
        F.cross_entropy(x, paddle.argmax(y, 1, keepdim=True), reduction="none") + x
    ),
    "soft labels": lambda x, y: F.cross_entropy(x, F.softmax(y), soft_label=True) * x,
    "no gradient": lambda x, y: x + without_gradient(y),
}


class RandomFunction:
    """A random function of a tensor and two parameters, with the results to differentiate in each
    step.
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.calls = []
        for count in range(3, 3 + rng.randint(3, 9)):
            # Mostly recent values, so that most of them are used.
            x, y = (max(rng.randrange(count), rng.randrange(count)) for _ in range(2))
            self.calls.append((rng.choice(list(USES)), x, y))
        count = 3 + len(self.calls)
        self.wanted = sorted({rng.randrange(3, count) for _ in range(rng.randint(1, 3))})
        self.differentiated = [
            rng.sample(range(len(self.wanted)), rng.randint(1, len(self.wanted)))
            for _ in range(STEPS)
        ]

    def __call__(self, *given: Any) -> list[Any]:
        values = list(given)
        for name, x, y in self.calls:
            values.append(USES[name](values[x], values[y]))
        return [values[number] for number in self.wanted]

    def play(self, compiled: Callable[[Any], Any]) -> list[Any]:
        """Results, gradients or their absence, and parameters that decay."""
        parameters = [paddle.create_parameter(SHAPE, "float32") for _ in range(2)]
        for number, each in enumerate(parameters):
            each.set_value(floats(*SHAPE, seed=number + 20))
        optimizer = paddle.optimizer.Momentum(0.05, parameters=parameters, weight_decay=0.1)
        function, found = compiled(self), []
        for step, chosen in enumerate(self.differentiated):
            x = floats(*SHAPE, seed=step)
            x.stop_gradient = False
            results = function(x, *parameters)
            found.append(results)
            losses = [results[at].square().mean() for at in chosen if not results[at].stop_gradient]
            if losses:
                sum(losses).backward()
            found += [x.grad, [each.grad for each in parameters]]
            optimizer.step()
            optimizer.clear_grad()
            found.append([each.numpy() for each in parameters])
        return found


@pytest.mark.slow("draws many programs")
@pytest.mark.parametrize("first", range(0, 160, 16))
def test_random_functions(first):
    before = paddle_ngraph.stats()["engine_runs"]
    for seed in range(first, first + 16):
        both(RandomFunction(seed).play, runs=0)
    assert paddle_ngraph.stats()["engine_runs"] - before > 16 * STEPS


# Comparisons, and labels of two losses, one of them inside the graph that computes the labels.
BETWEEN: dict[str, Callable[[Any, Any], list[Any]]] = {
    "compared": lambda h, q: (lambda a: [a, paddle.expand_as(a[:, :1], h)])(
        q * (h > 1).astype("float32")
    ),
    "detached": lambda h, q: (lambda a: [a, F.kl_div(a, h)])(q * h.detach()),
    "beside": lambda h, q: (lambda a: [a, F.kl_div(a, h)])(q * 2),
    "twice": lambda h, q: (lambda a: [a, F.kl_div(a, h)])(F.kl_div(q, h, reduction="none")),
    "otherwise reached": lambda h, q: (lambda a: [a * h, F.kl_div(a, h * 2)])(q + 1),
    "in one graph and in another": lambda h, q: (lambda a: [a * h, a])(
        F.kl_div(q, h, reduction="none")
    ),
    "made of a label": lambda h, q: (lambda a: [a * F.sigmoid(h), a])(
        paddle.expand_as(q[:, :1], F.sigmoid(h) + h)
    ),
    "in a circle": lambda h, q: (lambda a: [a * h, F.tanh(a)])(q + h.detach()),
}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("chosen", [(0,), (1,), (0, 1)])
def test_values_without_gradient_between_graphs(name, chosen):
    def scenario(compiled):
        p, q = floats(3, 4), floats(3, 4, seed=1)
        p.stop_gradient = q.stop_gradient = False
        function = compiled(lambda p, q: [F.tanh(each).mean() for each in BETWEEN[name](p * p, q)])
        gradients = []
        for _ in range(4):
            results = function(p, q)
            sum(results[at] for at in chosen).backward()
            gradients += [results, p.grad, q.grad]
            for each in (p, q):
                each.clear_gradient(False)
        return gradients

    both(scenario, runs=4)


@pytest.mark.parametrize("name", BETWEEN)
def test_values_without_gradient_in_an_open_trace(name):
    """Also where a bound that was the size of an input is another number later."""

    def scenario(compiled):
        function = compiled(
            lambda p, q, count: [
                F.tanh(each).mean() for each in BETWEEN[name]((p * p)[:, :count], q[:, :count])
            ]
        )
        found = []
        for size, count in ((4, 3), (5, 4), (6, 5), (7, 6), (7, 2), (6, 5), (5, 1)):
            for chosen in ((0,), (1,), (0, 1)):
                p, q = floats(3, size, seed=size), floats(3, size, seed=size + 1)
                p.stop_gradient = q.stop_gradient = False
                results = function(p, q, count)
                sum(results[at] for at in chosen).backward()
                found += [results, p.grad, q.grad]
        return found

    both(scenario, runs=12)


def test_values_without_gradient_belong_to_the_graph_that_reads_them():
    """A mask is no graph of its own, though no gradient reaches it."""

    @paddle_ngraph.compile
    def function(x: Any) -> Any:
        return (F.tanh(x) * (x > 0).astype("float32") + F.sigmoid(x.detach())).mean()

    for _ in range(3):
        x = floats(3, 4)
        x.stop_gradient = False
        function(x).backward()
    (graph,) = function._tuner.traces.graphs()
    assert [isinstance(each, trace_graph.TraceStage) for each in graph.stages] == [True]
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_independent_graphs_sample_in_call_order():
    """Although the first dropout in call order is read last."""

    def scenario(compiled):
        body = made(lambda: nn.Linear(8, 8))

        def function(x):
            y = F.tanh(body(x))
            first, second = F.dropout(y, 0.5), F.dropout(y, 0.5)
            other = F.sigmoid(second).mean()
            return F.tanh(first).mean(), other

        function, found = compiled(function), []
        for step in range(4):
            losses = function(floats(4, 8, seed=step))
            sum(losses).backward()
            found += [losses, body.weight.grad]
        return found

    both(scenario, runs=12)


def test_gradient_flow_is_known_before_graphs_are_built(monkeypatch):
    """Graphs are built once: Paddle retains each program that trains."""
    made_for = []
    build = trace_graph.TraceStage._build
    monkeypatch.setattr(
        trace_graph.TraceStage, "_build", lambda self: made_for.append(self) or build(self)
    )

    @paddle_ngraph.compile
    def function(x: Any, y: Any) -> Any:
        h = F.tanh(y)
        return F.kl_div(F.log_softmax(x), h), F.sigmoid(h).mean()

    for _ in range(3):
        x, y = floats(3, 4), floats(3, 4, seed=1)
        x.stop_gradient = y.stop_gradient = False
        function(x, y)[0].backward()
        assert y.grad is None
    (graph,) = function._tuner.traces.graphs()
    assert len(made_for) == len(graph.stages)
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_values_that_only_a_later_graph_reads_belong_to_it():
    """Losses of two adversarial networks are two graphs."""
    generator, critic = made(lambda: nn.Linear(4, 4)), made(lambda: nn.Linear(4, 1))

    @paddle_ngraph.compile
    def function(x: Any, truth: Any) -> Any:
        made_up = generator(x)
        known, fooled = critic(made_up.detach()), -critic(made_up)
        return F.softplus(fooled).mean(), (F.softplus(-critic(truth)) + F.softplus(known)).mean()

    for _ in range(3):
        sum(function(floats(3, 4), floats(3, 4, seed=1))).backward()
    (graph,) = function._tuner.traces.graphs()
    assert len(graph.stages) == 2
    assert paddle_ngraph.stats()["engine_runs"] > 0
