"""Gradients of compiled functions: those of eager mode, or an error that gives the reason."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph.frontends.dynamic.lazy import trace_graph
from paddle_ngraph.frontends.to_static import scope_pool
from tests.dynamic import agree, floats, made, values
from tests.frontends.dynamic.test_compiled_layer import Warm, both, warm

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")


class Body(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.second(F.tanh(self.first(x)))


class Heads(nn.Layer):
    """Two results, of which one does not depend on all parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        y = F.tanh(self.body(x))
        return self.one(y), self.other(y)


def found(layer: Any) -> list[Any]:
    """All gradients; -1 for those that are absent."""
    gradients = [each.grad for each in layer.parameters()]
    return [paddle.full([1], -1.0) if each is None else each.clone() for each in gradients]


# -- accumulation --------------------------------------------------------------------------------


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize("sizes", [(4, 4, 4), (4, 2, 4, 3), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("full_graph", [False, True])
def test_gradients_accumulate_across_traces(sizes, full_graph):
    def scenario(compiled):
        layer = made(Body)
        if isinstance(compiled, Warm):
            compiled(layer, full_graph=full_graph)
        gradients = []
        for number, size in enumerate(sizes):
            layer(floats(size, 4, seed=number)).sum().backward()
            gradients.append(found(layer))
        return gradients

    both(scenario, runs=2 * len(sizes))


@pytest.mark.slow("trains through many compiles")
def test_gradients_of_several_functions_add_up():
    def scenario(compiled):
        layer, x = made(Body), floats(3, 4)
        (layer(x) * 0.5).sum().backward()
        held = layer.first.weight.grad
        one, two = compiled(lambda x: layer(x).sum()), compiled(lambda x: layer(x).square().sum())
        one(x).backward()
        two(x).backward()
        return [found(layer), held]

    both(scenario, runs=4)


# -- frozen and unreached parameters ---------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.BatchNorm2D, nn.InstanceNorm2D, nn.LayerNorm])
@pytest.mark.parametrize("thawed", ["all", "none", "weight", "bias", "statistics"])
def test_normalizations_that_are_frozen_in_part(kind, thawed):
    """An optimizer leaves parameters without gradient alone: not even its decay moves them."""

    def scenario(compiled):
        body, norm = made(lambda: nn.Linear(4, 4)), made(lambda: kind(4))
        layer = compiled(made(lambda: nn.Sequential(body, norm)))
        for each in norm.parameters():
            name = each.name.rpartition(".")[2]
            is_statistic = name in ("w_1", "w_2")
            kinds = {"weight": "w_0", "bias": "b_0"}
            wanted = thawed == "statistics" or (not is_statistic and thawed == "all")
            each.stop_gradient = not (wanted or name == kinds.get(thawed))
        optimizer = paddle.optimizer.Momentum(0.1, parameters=layer.parameters(), weight_decay=0.1)
        results = []
        for step in range(4):
            loss = layer(floats(2, 4, 3, 4, seed=step)).square().square().mean()
            loss.backward()
            results += [loss, found(layer)]
            optimizer.step()
            optimizer.clear_grad()
        return [results, values(layer)]

    is_native = kind is not nn.LayerNorm and thawed in ("weight", "bias")
    is_native |= kind is nn.BatchNorm2D and thawed == "statistics"
    both(scenario, runs=0 if is_native else 4)


# Functions of x, and of a value that gets no gradient, such as a condition.
GONE_BY = {
    "sizes": lambda x, y: paddle.expand_as(x[:, :1], y),
    "divergence": lambda x, y: F.kl_div(F.log_softmax(x), y),
    "soft labels": lambda x, y: F.cross_entropy(x, y, soft_label=True),
    "probabilities": lambda x, y: F.binary_cross_entropy_with_logits(x, y),
    "smoothed labels": lambda x, y: F.cross_entropy(x, F.label_smooth(y), soft_label=True),
    "sizes and values": lambda x, y: paddle.expand_as(x[:, :1], y) * y,
}


@pytest.mark.parametrize("name", GONE_BY)
@pytest.mark.parametrize("target", ["input", "made inside", "parameter"])
def test_inputs_without_gradient_flow_have_no_gradient(name, target):
    """No gradient, and no zeros, which an optimizer would take for a gradient: its decay would
    move it.
    """

    def scenario(compiled):
        body = made(lambda: nn.Linear(4, 4))
        own = paddle.create_parameter([3, 4], "float32")
        own.set_value(F.softmax(floats(3, 4, seed=9)))

        def forward(x, y):
            x = F.tanh(body(x))
            y = own if target == "parameter" else y if target == "input" else F.softmax(y * own)
            return GONE_BY[name](x, y).square().mean()

        function = compiled(forward)
        parameters = [*body.parameters(), own]
        optimizer = paddle.optimizer.Momentum(0.1, parameters=parameters, weight_decay=0.1)
        results = []
        for step in range(4):
            x, y = floats(3, 4, seed=step), F.softmax(floats(3, 4, seed=step + 5))
            x.stop_gradient = y.stop_gradient = False
            function(x, y).backward()
            results += [x.grad, y.grad, [each.grad for each in parameters]]
            optimizer.step()
            optimizer.clear_grad()
            results.append([each.numpy() for each in parameters])
        return results

    both(scenario, runs=4)


@pytest.mark.parametrize("kind", ["alias", "part", "other statistics", "copy"])
def test_statistics_of_which_others_have_the_memory(kind):
    """Views of the statistics are read before the statistics are written, as in eager mode."""

    def scenario(compiled):
        body, norm, head = made(lambda: nn.Linear(4, 4)), nn.BatchNorm1D(4), nn.BatchNorm1D(4)
        seen = norm._mean.detach()
        if kind == "other statistics":
            norm._mean._share_buffer_to(head._mean)
        elif kind != "alias":
            seen = seen[1:2] if kind == "part" else seen.clone()

        def function(x):
            before = seen * 2.0
            y = norm(body(x))
            return y, head(y) + before

        function = compiled(function)
        return [function(floats(5, 4, seed=step)) for step in range(5)]

    both(scenario, runs=10 if kind == "copy" else 0)


def test_frozen_parts_thaw():
    def scenario(compiled):
        layer, results = compiled(made(Body)), []
        optimizer = paddle.optimizer.Momentum(0.05, 0.9, layer.parameters())
        for step in range(8):
            for each in layer.first.parameters():
                each.stop_gradient = step % 4 < 2
            for each in layer.second.parameters():
                each.stop_gradient = step == 5
            y = layer(floats(3, 4, seed=step))
            y.square().mean().backward()
            results += [y, found(layer)]
            optimizer.step()
            optimizer.clear_grad(set_to_zero=False)
        return [results, values(layer)]

    both(scenario, runs=15)


def test_all_frozen():
    def scenario(compiled):
        layer, stopped = compiled(made(Body)), []
        for frozen in (True, False, True):
            for each in layer.parameters():
                each.stop_gradient = frozen
            stopped.append(layer(floats(3, 4)).stop_gradient)
        return [stopped, layer(floats(3, 4))]

    both(scenario, runs=4)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_parameters_that_the_loss_does_not_reach_have_no_gradient(used):
    def scenario(compiled):
        layer = compiled(made(Heads))
        optimizer = paddle.optimizer.AdamW(0.05, parameters=layer.parameters(), weight_decay=0.1)
        gradients = []
        for step in range(5):
            results = layer(floats(3, 4, seed=step))
            sum(results[number].square().mean() for number in used).backward()
            gradients.append(found(layer))
            optimizer.step()
            optimizer.clear_grad(set_to_zero=False)
        with paddle.no_grad():
            answers = layer(floats(3, 4))
        return [gradients, values(layer), list(answers)]

    both(scenario, runs=20)


def test_inputs_that_the_loss_does_not_reach_have_no_gradient():
    def scenario(compiled):
        function = compiled(lambda x, y: (F.tanh(x) * y, F.relu(y) * 2))
        x, y = floats(3, 4), floats(3, 4, seed=2)
        x.stop_gradient = y.stop_gradient = False
        results = []
        for number in (1, 0, 1):
            function(x, y)[number].sum().backward()
            results += [-1.0 if each.grad is None else each.grad.clone() for each in (x, y)]
            x.clear_gradient(False), y.clear_gradient(False)
        with paddle.no_grad():
            return [results, list(function(x, y))]

    both(scenario)


def test_results_without_a_gradient_stop_it():
    def scenario(compiled):
        layer = made(Body)
        function = compiled(
            lambda x: (y := layer(x), y.argmax(-1), y > 0, y.detach(), x * 2, y.astype("int32"))
        )
        results = function(floats(3, 4))
        results[0].sum().backward()
        return [list(results), [each.stop_gradient for each in results[:5]], found(layer)]

    both(scenario, runs=2)


class Rows(nn.Layer):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words, self.linear = nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.linear(self.words(x))


@pytest.mark.parametrize("sparse", [True, False])
def test_sparse_gradients_stay_sparse(sparse):
    def scenario(compiled):
        layer = compiled(made(lambda: Rows(sparse)))
        optimizer = paddle.optimizer.Adam(0.1, parameters=layer.parameters(), lazy_mode=True)
        kinds = []
        for step in range(4):
            layer(paddle.to_tensor([step, 2])).sum().backward()
            kinds.append(layer.words.weight.grad.is_selected_rows())
            optimizer.step()
            optimizer.clear_grad()
        with paddle.no_grad():
            return [kinds, values(layer), layer(paddle.to_tensor([7, 1]))]

    both(scenario, runs=0 if sparse else 9)


# -- requests to a backward pass ----------------------------------------------------------------


def scaled(layer: Any, x: Any) -> None:
    y = F.tanh(layer(x))
    y.scale_(3.0)
    y.sum().backward()


def written_item(layer: Any, x: Any) -> None:
    y = F.softmax(layer(x))
    with paddle.no_grad():
        y[0] = 0.0
    y.sum().backward()


def written_input(layer: Any, x: Any) -> None:
    x = x * 1.0
    y = layer(x)
    with paddle.no_grad():
        x.add_(paddle.ones([3, 4]))
    y.sum().backward()


def written_weight(layer: Any, x: Any) -> None:
    y = layer(x)
    with paddle.no_grad():
        layer.second.weight.add_(paddle.ones([4, 4]))
    y.sum().backward()


class Drawing(nn.Layer):
    """Dropout and running statistics, which another backward pass must not compute again."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.other = nn.Linear(4, 6), nn.BatchNorm1D(6), nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.other(F.dropout(F.gelu(self.norm(self.one(x))), 0.3))


def several(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    y = layer(x)
    losses = [y.mean(), y.square().mean(), (y * x).sum()]
    return [(loss.backward(retain_graph=True), found(layer))[1] for loss in losses]


def several_steps(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    """In eager mode saved results stay unchanged, and weights have their current values."""
    y, results = layer(x), []
    for number in range(3):
        (y * (number + 1.0)).square().mean().backward(retain_graph=number < 2)
        optimizer.step()
        results += [found(layer), values(layer)]
        layer.clear_gradients()
    return results


def others_in_between(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    y = layer(x)
    y.mean().backward(retain_graph=True)
    # of equal shapes: their saved forward states are in scopes of their own
    for number in range(3):
        layer(floats(3, 4, seed=7 + number)).mean().backward(retain_graph=number == 1)
    kept = layer(floats(3, 4, seed=20))
    y.mean().backward()
    kept.mean().backward()
    return [y, kept, found(layer)]


def by_grad(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    y = layer(x)
    (one,) = paddle.grad(y.sum(), x, retain_graph=True)
    (other,) = paddle.grad(y.square().sum(), layer.one.weight, retain_graph=True)
    y.mean().backward()
    return [one, other, found(layer)]


def two_losses(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    y = layer(x)
    z = layer(y)
    y.mean().backward(retain_graph=True)
    z.square().mean().backward(retain_graph=True)
    (y * z).sum().backward()
    return [y, z, found(layer), x.grad.clone()]


def up_to_a_tensor_between(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    """In eager mode the graphs that paddle.grad does not reach stay unchanged."""
    y = layer(x)
    z = layer(y)
    (one,) = paddle.grad(z.square().sum(), y)
    kept = layer(floats(3, 4, seed=20))  # in a scope of its own
    (other,) = paddle.grad(z.mean(), layer.other.weight, retain_graph=True)
    z.mean().backward()
    kept.mean().backward()
    return [one, other, kept, found(layer), x.grad.clone()]


def by_grad_that_retains_nothing(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    """In eager mode paddle.grad works on copies."""
    y = layer(layer(x))
    gradients = [*paddle.grad(y.sum(), x), *paddle.grad(y.square().sum(), [x, layer.one.weight])]
    y.mean().backward()
    return [gradients, found(layer), x.grad.clone()]


def called_in_the_pass(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    """After the graph, whose scope Paddle has released by then."""
    kept: list[Any] = []
    z = x * 1.0
    z.register_hook(lambda gradient: kept.append(layer(floats(3, 4, seed=20))))
    y = layer(z)
    y.mean().backward(retain_graph=True)
    y.square().sum().backward()
    sum(each.mean() for each in kept).backward()
    return [found(layer), x.grad.clone()]


class Stop(Exception):
    """Raised by a hook."""


def stopped(layer: Any, x: Any, differentiate: Any) -> list[Any]:
    """A hook raises before a pass comes to the second graph."""
    is_on = [True]

    def hook(gradient: Any) -> None:
        if is_on[0]:
            raise Stop

    y = layer(x)
    z = layer(y)
    y.register_hook(hook)
    with pytest.raises(Exception, match="Stop"):
        differentiate(z)
    is_on[0] = False
    kept = layer(floats(3, 4, seed=20))
    return [y, z, kept]


def stopped_and_repeated(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    _, z, kept = stopped(layer, x, lambda z: z.mean().backward(retain_graph=True))
    z.square().sum().backward(retain_graph=True)
    z.mean().backward()
    kept.mean().backward()
    return [found(layer), x.grad.clone()]


def stopped_for_good(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    """Nodes that the pass did not reach are unchanged."""
    y, _, kept = stopped(layer, x, lambda z: z.mean().backward())
    y.square().sum().backward()
    kept.mean().backward()
    return [found(layer), x.grad.clone()]


def stopped_grad(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    """Paddle lets go of its copies when the next one begins."""
    _, z, kept = stopped(layer, x, lambda z: paddle.grad(z.mean(), x))
    gradients = paddle.grad(z.square().sum(), x)
    z.mean().backward()
    kept.mean().backward()
    return [gradients, found(layer), x.grad.clone()]


def never_again(layer: Any, x: Any, optimizer: Any) -> list[Any]:
    layer(x).mean().backward(retain_graph=True)
    return [found(layer)]


@pytest.mark.parametrize(
    "act",
    [
        several,
        several_steps,
        others_in_between,
        by_grad,
        two_losses,
        up_to_a_tensor_between,
        by_grad_that_retains_nothing,
        called_in_the_pass,
        stopped_and_repeated,
        stopped_for_good,
        stopped_grad,
        never_again,
    ],
)
def test_a_backward_pass_may_be_repeated(act):
    def scenario(compiled):
        layer, results = compiled(made(Drawing)), []
        optimizer = paddle.optimizer.Momentum(0.05, 0.9, layer.parameters())
        for number in range(4):
            x = floats(3, 4, seed=number)
            x.stop_gradient = False
            results += [act(layer, x, optimizer), values(layer)]
            layer.clear_gradients()
        return results

    both(scenario, runs=6)


def test_a_pass_that_was_not_to_be_repeated_is_not():
    layer, x = paddle_ngraph.compile(made(Body)), floats(3, 4)
    warm(layer, x)
    y = layer(x)
    y.sum().backward()
    with pytest.raises(SystemError, match="retain_graph=True"):  # Paddle's
        y.mean().backward()
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_retained_state_is_not_overwritten():
    layer, x = paddle_ngraph.compile(made(Body)), floats(3, 4)
    warm(layer, x)
    y = layer(x)
    y.sum().backward(retain_graph=True)
    with paddle.no_grad():
        layer.second.weight.add_(paddle.ones([4, 4]))
    with pytest.raises(paddle_ngraph.NgraphError, match="in-place operation"):
        y.mean().backward()
    assert paddle_ngraph.stats()["engine_runs"] > 0


@pytest.mark.parametrize("act", [scaled, written_item, written_input, written_weight])
def test_writes_to_saved_tensors_raise(act):
    """Eager mode raises. Compiled functions raise as well, and compute nothing wrong."""
    native, x = made(Body), floats(3, 4)
    x.stop_gradient = False
    with pytest.raises(RuntimeError, match="version"):
        act(native, x)

    def played(function: Any) -> None:
        warm(function, x if act is not written_input else x * 1.0)
        with pytest.raises(paddle_ngraph.NgraphError, match="in-place operation"):
            act(function, x)

    whole = {scaled: lambda x: F.tanh(layer(x)), written_item: lambda x: F.softmax(layer(x))}
    layer = made(Body)
    if act in whole:  # the result itself is needed
        function = warm(paddle_ngraph.compile(whole[act]), x)
        y = function(x)
        (y.scale_(3.0) if act is scaled else y.add_(paddle.ones([3, 4])))
        with pytest.raises(paddle_ngraph.NgraphError, match="in-place operation"):
            y.sum().backward()
    else:
        played(paddle_ngraph.compile(layer))
    assert paddle_ngraph.stats()["engine_runs"] > 0


@pytest.mark.parametrize("given", ["given", "made"])
@pytest.mark.parametrize(
    "index", [lambda at: at, lambda at: (slice(None), at)], ids=["row", "column"]
)
def test_positions_in_brackets_are_not_overwritten(given, index):
    """Natively the gradient is that of the new positions, or Python raises."""

    def taken(y: Any, at: Any) -> Any:
        at = at if given == "given" else at * 1
        return y[index(at)] * 2.0, at

    def called() -> tuple[Any, Any]:
        y, at = floats(4, 4), paddle.to_tensor([2, 0, 1])
        y.stop_gradient = False
        return y, at

    function = warm(paddle_ngraph.compile(taken), *called())
    result, at = function(*(before := called()))
    result.sum().backward()
    native, _ = taken(*(other := called()))
    native.sum().backward()
    agree(before[0].grad, other[0].grad)
    result, at = function(*called())
    at[0] = 1
    with pytest.raises(paddle_ngraph.NgraphError, match="in-place operation"):
        result.sum().backward()
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_tensors_that_were_not_saved_may_be_overwritten():
    def scenario(compiled):
        layer, x = compiled(made(Body)), floats(3, 4)
        y = layer(x)
        y.scale_(3.0)
        y[0] = 0.5
        y.sum().backward()
        return [y, found(layer)]

    both(scenario, runs=2)


def test_optimizers_may_step_between_the_passes():
    """Optimizers write weights without raising, in eager mode and here."""

    def scenario(compiled):
        layer = compiled(made(Body))
        optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
        layer(floats(3, 4)).sum().backward()
        y = layer(floats(3, 4, seed=1))
        optimizer.step()
        y.sum().backward()
        return [y, found(layer), values(layer)]

    both(scenario, runs=4)


def test_saved_tensors_hooks_see_each_tensor():
    def scenario(compiled):
        layer, seen = compiled(made(Body)), []
        for on in (False, True, False):
            x = floats(3, 4)
            if on:
                hooks = paddle.autograd.saved_tensors_hooks(
                    lambda each: seen.append(1) or each, lambda each: each
                )
                with hooks:
                    y = layer(x)
            else:
                y = layer(x)
            y.sum().backward()
        return [len(seen), found(layer)]

    both(scenario, runs=4)


@pytest.mark.parametrize(("build", "calls"), [(Body, 50), (Drawing, 3)])
def test_a_cell_that_is_called_in_a_loop_has_few_scopes(build, calls, monkeypatch):
    """Paddle keeps threads for each. Statistics are updated by Paddle's interpreter."""
    scopes: set[int] = set()
    claim = scope_pool.claim
    monkeypatch.setattr(
        scope_pool, "claim", lambda find: scopes.add((scope := claim(find)).raw_address()) or scope
    )

    def scenario(compiled):
        layer, results = compiled(made(build)), []
        for number in range(4):
            y = x = floats(3, 4, seed=number)
            x.stop_gradient = False
            for _ in range(calls):
                y = F.tanh(layer(y))
            y.sum().backward(retain_graph=number % 2 == 0)
            if number % 2 == 0:
                y.mean().backward()
            results += [y, x.grad, found(layer)]
        return results

    both(scenario, runs=2 * 4 * 2 * calls, atol=1e-4)
    assert len(scopes) <= 2, "one for each of its programs"


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("build", [Body, lambda: Rows(False)], ids=["body", "rows"])
def test_compiled_graphs_are_released_with_the_layer(build, trains):
    alive = []
    for _ in range(3):
        layer = paddle_ngraph.compile(made(build))
        x = paddle.to_tensor([1, 2]) if isinstance(layer, Rows) else floats(3, 4)
        with paddle.set_grad_enabled(trains):
            for _ in range(3):
                y = layer(x)
                if trains:
                    y.sum().backward()
        alive += [weakref.ref(each) for each in layer.parameters()]
        del layer, y
        gc.collect()
    assert paddle_ngraph.stats()["engine_runs"] >= 6
    assert not any(each() is not None for each in alive)


def test_a_forward_pass_without_a_backward_pass_leaves_nothing():
    layer, x = paddle_ngraph.compile(made(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()))), None
    results = []
    for _ in range(4):
        x = floats(3, 4)
        results.append(weakref.ref(layer(x)))
    gc.collect()
    assert paddle_ngraph.stats()["engine_runs"] == 3
    assert all(each() is None for each in results)


# -- stages --------------------------------------------------------------------------------------


class Anchors(nn.Layer):
    """A detector: a tensor from the middle, and numbers in float64, beside its result."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2D(3, 4, 3), nn.Conv2D(4, 2, 1)

    def forward(self, x: Any, sizes: Any) -> Any:
        features = F.relu(self.body(x))
        return features, self.head(features), paddle.log(sizes) * 2.0


def _sizes() -> Any:
    return paddle.to_tensor([3.0, 5.0], "float64")


def anchors_trained(compiled: Any) -> list[Any]:
    layer, results = compiled(made(Anchors)), []
    for step in range(4):
        results += layer(floats(2, 3, 6, 6, seed=step), _sizes())
        results[-2].square().mean().backward()
        results.append(found(layer))
    return results


def test_stages_without_engine_operators_leave_it_the_others():
    both(anchors_trained, runs=8)


def stages_of(layer: Any) -> list[Any]:
    (graph,) = layer.forward._tuner.traces.graphs()
    return [each for each in graph.stages if isinstance(each, trace_graph.TraceStage)]


@pytest.mark.parametrize("act", [lambda out: sum(out).sum(), lambda out: out[0].sum()])
def test_graphs_are_made_without_a_warning(act):
    """Of Paddle's, about code that is not the user's."""

    class Several(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.other = Body(), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return [self.body(x), *paddle.split(self.other(x), 2, axis=1)[:1], x.mean() * x]

    def scenario(compiled):
        layer = compiled(made(Several))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            act([each.sum() for each in layer(floats(3, 4))]).backward()
        return found(layer)

    both(scenario, runs=2)


def test_values_of_programs_warn_of_their_place_elsewhere():
    paddle.enable_static()
    with paddle.static.program_guard(paddle.static.Program()):
        value = paddle.static.data("x", [2], "float32")
        with pytest.warns(UserWarning, match="place"):
            assert value.place is None


def test_results_without_gradient_are_one_stage():
    class Grid(nn.Layer):
        """A result with a gradient, and several without one."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4)

        def forward(self, x: Any, at: Any) -> Any:
            return self.body(x), F.tanh(at) * 2, F.relu(at + 1), F.sigmoid(at - 1)

    layer = paddle_ngraph.compile(made(Grid))
    x, at = floats(3, 4), floats(3, 4, seed=1)
    results = [layer(x, at) for _ in range(3)]
    agree(results[2], results[0])
    assert len(stages_of(layer)) == 2


def test_a_bias_in_another_shape_is_no_stage():
    """The bias depends on a parameter only, and is read after a tensor that the caller has."""
    layer = paddle_ngraph.compile(made(Anchors))
    for _ in range(3):
        layer(floats(2, 3, 6, 6), _sizes())
    assert [stage.trains for stage in stages_of(layer)] == [True, True]


class Deep(nn.Layer):
    """Blocks that are skipped at random, and return the input of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.LayerList([nn.Linear(4, 4) for _ in range(3)])
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        results = []
        for block in self.blocks:
            kept = paddle.floor(0.7 + paddle.rand([x.shape[0], 1]))
            x = x + self.drop(block(x)) * kept / 0.7
            results.append(x)
        return results


def test_random_numbers_are_sampled_in_the_graph_that_reads_them():
    def scenario(compiled):
        layer, results = compiled(made(Deep)), []
        for step in range(4):
            results += layer(floats(5, 4, seed=step))
            sum(each.square().mean() for each in results[-3:]).backward()
            results += [found(layer), paddle.rand([3])]
        return results

    both(scenario, runs=12)
    layer = paddle_ngraph.compile(made(Deep))
    for _ in range(3):
        layer(floats(5, 4))
    assert len(stages_of(layer)) == 3


def test_random_numbers_that_are_looked_at():
    @paddle_ngraph.compile
    def function(x: Any, low: float) -> Any:
        return paddle.uniform([2, 3], min=low) * 2, F.tanh(x), paddle.rand([2])

    for play in range(3):
        paddle.seed(7 + play)
        results = function(floats(3), -3.0)
        paddle.seed(7 + play)
        agree(results, [paddle.uniform([2, 3], min=-3.0) * 2, F.tanh(floats(3)), paddle.rand([2])])
    assert not function.explain().breaks
    assert paddle_ngraph.stats()["engine_runs"] >= 1
