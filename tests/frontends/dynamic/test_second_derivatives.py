"""Second and higher derivatives of compiled layers: those of Paddle, at any time."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.autograd import PyLayer

import paddle_ngraph
from paddle_ngraph.frontends.dynamic import autotuner, tuning_policy
from paddle_ngraph.frontends.dynamic import hook as dynamic_hook
from paddle_ngraph.frontends.to_static import gradients
from paddle_ngraph.frontends.to_static import hook as to_static_hook
from tests.dynamic import agree, floats, made, set_policy, values
from tests.frontends.dynamic.test_compiled_gradients import Body, found
from tests.frontends.dynamic.test_compiled_layer import both, warm

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")


class Sampling(nn.Layer):
    """Random numbers and running statistics, which a second derivative must not move once more.

    A random mask takes the place of dropout, which Paddle cannot differentiate twice.
    """

    def __init__(self) -> None:
        super().__init__()
        # A bias before the normalization would have rounding errors as its gradient.
        self.one, self.norm = nn.Linear(4, 6, bias_attr=False), nn.BatchNorm1D(6)
        self.other = nn.Linear(6, 4)
        self.weight = self.one.weight

    def forward(self, x: Any) -> Any:
        y = F.tanh(self.norm(self.one(x))) * paddle.rand([x.shape[0], 1])
        return self.other(y) * paddle.floor(0.7 + paddle.rand([x.shape[0], 1]))


class Picture(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2D(1, 2, 2), nn.Linear(2, 4)
        self.weight = self.conv.weight

    def forward(self, x: Any) -> Any:
        y = F.leaky_relu(self.conv(x.reshape([-1, 1, 2, 2])), 0.2)
        return F.sigmoid(self.linear(y.reshape([-1, 2])))


class Stages(nn.Layer):
    """Results from the middle, of which one is a view, so that there are several graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight = self.other.weight
        self.seen: list[Any] = []

    def forward(self, x: Any) -> Any:
        middle = F.tanh(self.one(x))
        self.seen = [middle, middle[:, 1:]]
        y = F.sigmoid(self.other(middle)) * F.tanh(x)
        with paddle.no_grad():
            scale = y.square() + 0.5
        return y * scale + self.seen[1].sum() * 0.1


class Plain(Body):
    def __init__(self) -> None:
        super().__init__()
        self.weight = self.second.weight


def step(layer: Any, x: Any) -> list[Any]:
    layer(x).square().sum().backward()
    return [layer.weight.grad.stop_gradient]


def penalty(layer: Any, x: Any) -> list[Any]:
    y = layer(x)
    (gradient,) = paddle.grad(y.sum(), x, create_graph=True)
    (y.square().sum() + gradient.square().sum()).backward()
    return [y, gradient]


def third_derivative(layer: Any, x: Any) -> list[Any]:
    """Paddle raises for layers with operators that it differentiates twice only."""
    y, gradients = layer(x), []
    try:
        for _ in range(3):
            gradients += paddle.grad((y * y * y).sum(), x, create_graph=True)
            y = gradients[-1]
        y.sum().backward()
    except RuntimeError:
        gradients.append(len(gradients))
    return gradients


def curvature(layer: Any, x: Any) -> list[Any]:
    """A product with the Hessian of the loss."""
    parameters = [each for each in layer.parameters() if not each.stop_gradient]
    gradients = paddle.grad(layer(x).square().sum(), parameters, create_graph=True)
    product = sum((each * (each + 1.0)).sum() for each in gradients)
    return [gradients, paddle.grad(product, parameters)]


def after_passes(layer: Any, x: Any) -> list[Any]:
    y = layer(x)
    y.sum().backward(retain_graph=True)
    before = paddle.grad(y.square().sum(), x)
    (gradient,) = paddle.grad(y.square().sum(), x, create_graph=True)
    after = paddle.grad(y.sum(), [x, layer.weight], retain_graph=True)
    (gradient.square().sum() + y.sum()).backward()
    return [before, gradient, after]


def hooks(layer: Any, x: Any) -> list[Any]:
    y, calls = layer(x), []
    y.retain_grads()
    handles = [y.register_hook(lambda gradient: calls.append("y") or gradient * 3.0)]
    x.register_hook(lambda gradient: calls.append("x") or gradient.tanh())
    (y * y).sum().backward(retain_graph=True)
    seen = [y.grad.clone(), x.grad.clone()]
    (gradient,) = paddle.grad((y * y).sum(), x, create_graph=True)
    handles[0].remove()
    (gradient.square().sum() + y.sum()).backward()
    return [seen, gradient, len(calls)]


def some_inputs(layer: Any, x: Any) -> list[Any]:
    other = floats(2)
    other.stop_gradient = False
    y, z = layer(x), layer(x * 2.0)
    gradients = paddle.grad(
        [y, z], [layer.weight, other, x], [y.detach(), None], create_graph=True, allow_unused=True
    )
    assert gradients[1] is None
    scaled = x * 2.0
    stopped = paddle.grad(
        (layer(scaled) * scaled).sum(), x, create_graph=True, no_grad_vars=[layer.weight]
    )
    (gradients[0].square().sum() + (gradients[2] * stopped[0]).sum()).backward()
    return [gradients[0], gradients[2], stopped]


def chained(layer: Any, x: Any) -> list[Any]:
    y = layer(x)
    z = layer(F.tanh(y))
    (inner,) = paddle.grad(z.square().sum(), y, create_graph=True)
    (outer,) = paddle.grad(inner.square().sum() + y.sum(), x, retain_graph=True)
    (inner.square().sum() + z.sum()).backward()
    return [inner, outer]


def under_mixed_precision(layer: Any, x: Any) -> list[Any]:
    y = layer(x)
    with paddle.amp.auto_cast(dtype="bfloat16"):
        (gradient,) = paddle.grad(y.square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    return [gradient]


def frozen_since(layer: Any, x: Any) -> list[Any]:
    y = layer(x)
    layer.weight.stop_gradient = True
    (gradient,) = paddle.grad(y.square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    layer.weight.stop_gradient = False
    return [gradient]


LAYERS = [Plain, Sampling, Picture, Stages]
ACTS = [
    step,
    penalty,
    third_derivative,
    curvature,
    after_passes,
    hooks,
    some_inputs,
    chained,
    under_mixed_precision,
    frozen_since,
]


def life(layer: Any, acts: list[Callable[[Any, Any], list[Any]]]) -> list[Any]:
    """Trains a layer, with a derivative after each step."""
    optimizer = paddle.optimizer.Momentum(1e-4, 0.9, layer.parameters())
    results: list[Any] = []
    for number, act in enumerate(acts):
        x = floats(3, 4, seed=number)
        x.stop_gradient = False
        results += [act(layer, x), found(layer), -1.0 if x.grad is None else x.grad]
        results += [values(layer), paddle.rand([2])]
        optimizer.step()
        optimizer.clear_grad()
    return results


@pytest.mark.parametrize("build", LAYERS)
@pytest.mark.parametrize("seed", range(2))
def test_second_derivatives_of_compiled_layers(build, seed):
    acts = random.Random(seed).sample(ACTS, len(ACTS))
    acts = [each for act in acts for each in (act, step)]

    def scenario(compiled):
        return life(compiled(made(build)), acts)

    # Each step has a forward and a backward graph, in the second and third of the lives at least.
    both(scenario, runs=4 * len(ACTS), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("build", [Sampling, Stages])
def test_second_derivatives_of_programs_that_the_engine_rejects(build, monkeypatch):
    """Paddle's own programs save values of which their backward programs read the shapes only."""
    monkeypatch.setattr(to_static_hook._LayerSwitch, "programs_for", lambda *_: None)
    acts = [each for act in ACTS for each in (act, step)]
    both(lambda compiled: life(compiled(made(build)), acts), runs=0, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("build", [Plain, Sampling])
def test_second_derivatives_among_the_steps_of_tuned_layers(build, monkeypatch):
    """Layers stay compiled: a step after the derivatives runs through the engine."""
    choice = replace(tuning_policy.POLICY.choice, min_gain=0.0)
    set_policy(monkeypatch, choice=choice)
    monkeypatch.setattr(autotuner, "_slot", autotuner._Slot())
    acts = [penalty] + 14 * [step] + [penalty, step, curvature, step]

    def played() -> list[Any]:
        paddle.seed(11)
        return life(made(build), acts)

    expected = played()
    paddle_ngraph.enable(dynamic="training")
    try:
        agree(played(), expected, rtol=1e-3, atol=1e-4)
        layer = made(build)
        life(layer, acts)
        x = floats(3, 4)
        x.stop_gradient = False
        before = paddle_ngraph.stats()["engine_runs"]
        step(layer, x)
        assert paddle_ngraph.stats()["engine_runs"] - before == 2
    finally:
        dynamic_hook.switch(False)
        paddle_ngraph.disable()


@pytest.mark.parametrize("inner", ["backward", "create_graph", "grad"])
@pytest.mark.parametrize("outer", ["retains", "ends", "grad"])
def test_hooks_differentiate_the_graph_that_the_pass_comes_to(inner, outer):
    def scenario(compiled):
        layer, results = compiled(made(Stages)), []
        x = floats(3, 4)
        x.stop_gradient = False
        y = layer(x)
        z = y * 2.0

        def hook(gradient):
            if results:
                return
            results.append(gradient.clone())
            if inner == "backward":
                y.square().sum().backward(retain_graph=True)
            else:
                is_created = inner == "create_graph"
                results.extend(
                    paddle.grad(y.square().sum(), x, create_graph=is_created, retain_graph=True)
                )

        z.register_hook(hook)
        if outer == "grad":
            if inner != "backward":
                return [y]  # Paddle crashes: the state of paddle.grad is global
            results.extend(paddle.grad(z.square().sum(), x, retain_graph=True))
        else:
            z.square().sum().backward(retain_graph=outer == "retains")
        results.append(x.grad.clone())
        if outer != "ends":
            y.sum().backward(retain_graph=True)
            results += [*paddle.grad(y.square().sum(), x, create_graph=True)]
            (results[-1].square().sum() + y.sum()).backward()
        return [*results, x.grad, found(layer)]

    both(scenario, runs=2)


def test_derivatives_inside_a_compiled_function():
    """A residual of a differential equation: the function differentiates what it has computed."""

    def scenario(compiled):
        layer = made(Plain)

        def residual(x):
            y = layer(x)
            (first,) = paddle.grad(y.sum(), x, create_graph=True)
            (second,) = paddle.grad(first.sum(), x, create_graph=True)
            return second + y * first

        function, results = compiled(residual), []
        for number in range(3):
            x = floats(3, 4, seed=number)
            x.stop_gradient = False
            y = function(x)
            y.square().sum().backward()
            results += [y, found(layer), x.grad]
        return results

    both(scenario, runs=3)


def test_second_derivatives_of_written_inputs_raise():
    layer = paddle_ngraph.compile(made(Plain))
    function = warm(paddle_ngraph.compile(lambda x: layer(x + 1.0)), floats(3, 4))
    written, x = floats(3, 4), floats(3, 4)
    x.stop_gradient = False
    for source in (written, layer.weight):
        y = function(x + written.detach())
        total = x + written
        y = function(total)
        with paddle.no_grad():
            (total if source is written else source).add_(paddle.ones(source.shape))
        if source is written:
            y.sum().backward(retain_graph=True)  # needs no input: its first operator adds
        with pytest.raises(paddle_ngraph.NgraphError, match="in-place operation"):
            paddle.grad(y.sum(), x, create_graph=True)
    assert paddle_ngraph.stats()["engine_runs"] > 0


def plain_and_compiled() -> list[Any]:
    compiled = paddle_ngraph.compile(made(Plain))
    return [made(Plain), warm(compiled, x_with_gradient())]


def x_with_gradient() -> Any:
    x = floats(3, 4)
    x.stop_gradient = False
    return x


def by_optimizer(layer: Any) -> None:
    optimizer = paddle.optimizer.SGD(0.5, parameters=layer.parameters())
    (layer(floats(3, 4, seed=1)) ** 2).sum().backward()
    optimizer.step()
    optimizer.clear_grad()


def by_set_value(layer: Any) -> None:
    for each in layer.parameters():
        each.set_value(each.numpy() * 2.0)


@pytest.mark.parametrize("write", [by_optimizer, by_set_value])
def test_a_second_derivative_is_that_of_the_weights_at_its_time(write):
    """Paddle multiplies activations of the former weights by the present ones.

    A graph does not have the activations, so they are computed again: see
    docs/how_it_works/compiled_gradients.md.
    """
    found: dict[bool, list[Any]] = {}
    for is_compiled, layer in enumerate(plain_and_compiled()):
        before = paddle_ngraph.stats()["engine_runs"]
        x = x_with_gradient()
        y = layer(x)
        write(layer)
        (late,) = paddle.grad(y.sum(), x, create_graph=True)
        (fresh,) = paddle.grad(layer(x).sum(), x, create_graph=True)
        found[bool(is_compiled)] = [late, fresh]
        assert (paddle_ngraph.stats()["engine_runs"] > before) == bool(is_compiled)
    agree(found[False][1], found[True][1])
    agree(found[True][0], found[True][1])
    difference = (found[False][0] - found[False][1]).abs().max()
    assert float(difference) > 1e-3


def test_a_hook_on_a_result_misses_the_part_of_a_second_derivative_through_its_value():
    """Hooks are on the gate of the result, and its gradient reads the value behind the gate."""
    outputs, gradients, calls = [], [], []
    for function in (F.tanh, warm(paddle_ngraph.compile(lambda x: F.tanh(x)), x_with_gradient())):
        x = x_with_gradient()
        y = function(x)
        seen: list[Any] = []
        y.register_hook(seen.append)
        (gradient,) = paddle.grad(y.sum(), x, create_graph=True)
        gradient.sum().backward()
        outputs.append(gradient)
        gradients.append(x.grad)
        calls.append(len(seen))
    agree(*outputs)
    agree(*gradients)
    assert calls == [2, 1]
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_graphs_are_released_after_a_second_derivative():
    layer, x = paddle_ngraph.compile(made(Plain)), floats(3, 4)
    x.stop_gradient = False
    warm(layer, x)
    for keeps_result in (True, False):
        y = layer(x * 1.0)
        (gradient,) = paddle.grad(y.square().sum(), x, create_graph=True)
        alive = [weakref.ref(y), weakref.ref(gradient)]
        del gradient
        if not keeps_result:
            del y
        assert [each() is not None for each in alive] == [keeps_result, False]
    assert paddle_ngraph.stats()["engine_runs"] >= 3


@pytest.mark.parametrize("create_graph", [True, False])
def test_graphs_are_released_after_partial_gradients(create_graph):
    """The search for the graphs between outputs and inputs leaves no reference to a node."""
    layer, x = paddle_ngraph.compile(made(Plain)), floats(3, 4)
    x.stop_gradient = False
    warm(layer, x)
    states: list[Any] = []

    class Before(PyLayer):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.state = floats(1)
            states.append(weakref.ref(context.state))
            return x * 1.0

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient * 1.0

    runs = paddle_ngraph.stats()["engine_runs"]
    earlier = weakref.WeakSet(gradients._runs)
    for _ in range(3):
        y = layer(Before.apply(x))
        states += (weakref.ref(each) for each in gradients._runs if each not in earlier)
        paddle.grad(y.square().sum(), x, create_graph=create_graph)
    del y
    paddle.grad(x.sum(), x)  # until then Paddle has copies of the nodes of the pass before
    gc.collect()
    assert len(states) >= 6 and not any(each() is not None for each in states)
    assert paddle_ngraph.stats()["engine_runs"] >= runs + 3


def test_a_graph_that_was_not_retained_has_no_second_derivative():
    layer, x = paddle_ngraph.compile(made(Plain)), floats(3, 4)
    x.stop_gradient = False
    warm(layer, x)
    y = layer(x)
    y.sum().backward()
    with pytest.raises(Exception, match="retain_graph"):
        paddle.grad(y.sum(), x, create_graph=True)
    assert paddle_ngraph.stats()["engine_runs"] > 0
