"""Functions that are called with tensors of many sizes: one graph serves calls that differ in sizes
only.

Traces are grouped by their operators, not by how often they occur: calls that differ in anything
else, or have side effects, get graphs of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from tests.dynamic import WORDS, Encoder, agree, floats, inputs, lstm, made, mlp
from tests.frontends.dynamic.test_compiled_layer import both

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

ROUNDS = 3  # the first runs eagerly, the second builds graphs
# Objects that are freed in a round may call Paddle, which ends a trace early, or set one of
# Paddle's flags, after which traces start again: either costs an eager call, or a graph.
MOST_ROUNDS = 9


class Block(nn.Layer):
    """Causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inside, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Any, cache: Any) -> Any:
        batch, words, width = x.shape
        query, key, value = (
            each.reshape([batch, words, self.heads, -1]).transpose([0, 2, 1, 3])
            for each in self.inside(self.norm(x)).chunk(3, -1)
        )
        if cache is not None:
            key = paddle.concat([cache[0], key], 2)
            value = paddle.concat([cache[1], value], 2)
        scores = paddle.matmul(query, key, transpose_y=True) * 0.25
        found = paddle.matmul(F.softmax(scores, -1), value).transpose([0, 2, 1, 3])
        x = x + self.out(found.reshape([batch, words, width]))
        return x + self.narrow(F.gelu(self.wide(self.norm_behind(x)))), (key, value)


class LanguageModel(nn.Layer):
    """A language model with a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 32), nn.Embedding(64, 32)
        self.blocks = nn.LayerList([Block(32, 2) for _ in range(2)])

    def forward(self, words: Any, caches: Any = None) -> Any:
        past = 0 if caches is None else caches[0][0].shape[2]
        x = self.words(words) + self.places(paddle.arange(past, past + words.shape[1]))
        new = []
        for number, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[number])
            new.append(cache)
        return paddle.matmul(x, self.words.weight, transpose_y=True), new


def generated(writer: Any, batch: int, count: int) -> list[Any]:
    """The tokens that a model generates, and its last scores."""
    words, caches, found = inputs(Encoder, 0, batch), None, []
    for _ in range(count):
        scores, caches = writer(words, caches)
        words = scores[:, -1].argmax(-1, keepdim=True)
        found.append(words)
    return [found, scores]


def conv_network() -> Any:
    return nn.Sequential(
        nn.Conv2D(3, 8, 3, padding=1, stride=2),
        nn.BatchNorm2D(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Conv2D(8, 8, 3),
        nn.AdaptiveAvgPool2D(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).eval()


def sentences() -> Any:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 3, 48), 2).eval()


def words(batch: int, count: int) -> Any:
    return inputs(Encoder, count, batch)[:, :1].expand([batch, count])


# Functions, and the arguments of each for a size.
FUNCTIONS_AND_INPUTS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "batches": (lambda: made(mlp).eval(), lambda n: floats(n + 2, 20, seed=n)),
    "conv_network": (lambda: made(conv_network), lambda n: floats(2, 3, 8 + n, 20 - n, seed=n)),
    "sentences": (lambda: made(sentences), lambda n: floats(2 + n % 3, 9 + n, 24)),
    "recurrent": (lambda: made(lstm).eval(), lambda n: words(2, 3 + n)),
    "sums": (lambda: lambda x: F.relu(x * 2.5).sum(-1) + x.mean(), lambda n: floats(2 + n, 3 + n)),
    "outer": (
        lambda: lambda x: F.tanh(x.unsqueeze(0) - x.unsqueeze(1)).max(),
        lambda n: floats(2 + n),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS_AND_INPUTS)
def test_one_graph_serves_many_sizes(name):
    make, given = FUNCTIONS_AND_INPUTS[name]
    function, sizes = make(), range(8)
    with paddle.no_grad():
        expected = [function(given(size)) for size in sizes]
        compiled = paddle_ngraph.compile(make())
        paddle_ngraph.clear_cache()
        runs: list[int] = []
        while len(runs) < MOST_ROUNDS and sum(each >= len(sizes) for each in runs) < ROUNDS - 1:
            before = paddle_ngraph.stats()["engine_runs"]
            agree([compiled(given(size)) for size in sizes], expected)
            runs.append(paddle_ngraph.stats()["engine_runs"] - before)
    assert sum(each >= len(sizes) for each in runs) == ROUNDS - 1, runs
    # Fewer functions than sizes. The graph of "recurrent" has two subgraphs whose shapes are all
    # dynamic.
    assert 0 < paddle_ngraph.cache_info().currsize < len(sizes)


@pytest.mark.slow("compiles many or large functions")
def test_generation_token_by_token():
    with paddle.no_grad():
        expected = [generated(made(LanguageModel).eval(), batch, 16) for batch in (2, 3)]
        writer = paddle_ngraph.compile(made(LanguageModel).eval())
        before = paddle_ngraph.stats()
        for _ in range(ROUNDS):
            agree([generated(writer, batch, 16) for batch in (2, 3)], expected)
    counts = paddle_ngraph.stats()
    assert counts["engine_runs"] - before["engine_runs"] >= 64
    # Two for the prompts, and one or two for all further tokens.
    assert counts["functions_built"] - before["functions_built"] <= 6


# -- calls with graphs of their own --------------------------------------------------------------


class Scaled(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any, factor: float = 2.5) -> Any:
        return F.tanh(self.linear(x)) * factor


def scalars(compiled: Callable[[Any], Any]) -> list[Any]:
    """Another scalar for each size."""
    function = compiled(Scaled())
    return [function(floats(3 + n, 4), 0.5 + n % 2) for n in range(6)]


def rows_of_result(compiled: Callable[[Any], Any]) -> list[Any]:
    """One result per row, and a row at a constant index."""
    function = compiled(lambda x: [F.relu(x).unbind(0), (x * 2.5)[x.shape[0] - 2]])
    return [function(floats(3 + n, 4, seed=n)) for n in range(6)]


def reshaped(compiled: Callable[[Any], Any]) -> list[Any]:
    function = compiled(lambda x: F.relu(x).reshape([-1, x.shape[1]]) + x.reshape([0, -1]))
    return [function(floats(3 + n, 4 + n % 3, seed=n)) for n in range(6)]


def columns(compiled: Callable[[Any], Any]) -> list[Any]:
    """Indices are equal for all sizes, and cut off where there are fewer columns."""
    function = compiled(lambda x: F.tanh(x)[:, :6] * 2.5 + x[:, -6:])
    return [function(floats(2, 3 + n, seed=n)) for n in range(8)]


def repeats(compiled: Callable[[Any], Any]) -> list[Any]:
    """Size 1 is broadcast, other sizes are not."""
    function = compiled(lambda x, y: F.relu(x + y * 2.5) - y)
    pairs = [(n, m) for n in (1, 3, 5) for m in (1, n)]
    return [function(floats(n, 4, seed=n), floats(m, 4, seed=m)) for n, m in pairs]


def empty(compiled: Callable[[Any], Any]) -> list[Any]:
    function = compiled(lambda x: (F.relu(x) * 2.5).sum(0))
    return [function(floats(n, 4)) for n in (3, 0, 4, 1, 5, 2, 6)]


def views(compiled: Callable[[Any], Any]) -> list[Any]:
    """A write to a view of a result is a write to the result."""
    function = compiled(lambda x: (y := F.relu(x) * 2.5, y.reshape([-1])))
    found = []
    for n in range(6):
        y, view = function(floats(3 + n, 4, seed=n))
        y.add_(paddle.ones([1]))
        found += [y, view]
    return found


def noncontiguous(compiled: Callable[[Any], Any]) -> list[Any]:
    """Arguments that are not contiguous."""
    function = compiled(lambda x: F.tanh(x) * 2.5 + x)
    return [function(floats(4 + n, 6, seed=n).transpose([1, 0])) for n in range(6)]


def statistics(compiled: Callable[[Any], Any]) -> list[Any]:
    """Running statistics are updated once per call."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1D(4))
    function = compiled(layer)
    found = [function(floats(3 + n, 4, seed=n)) for n in range(6)]
    return [found, layer[1]._mean, layer[1]._variance]


def samples(compiled: Callable[[Any], Any]) -> list[Any]:
    function = compiled(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    return [[function(floats(3 + n, 4, seed=n)) for n in range(6)], paddle.rand([3])]


def other_weights(compiled: Callable[[Any], Any]) -> list[Any]:
    """Layers of other sizes through one function."""
    layers = [nn.Linear(4, 3 + n) for n in range(6)]
    function = compiled(lambda layer, x: F.relu(layer(x)) * 2.5)
    return [function(layer, floats(5, 4)) for layer in layers]


def weights_that_change(compiled: Callable[[Any], Any]) -> list[Any]:
    layer = Scaled()
    function = compiled(layer)
    found = []
    for n in range(12):
        found.append(function(floats(3 + n % 6, 4, seed=n)))
        layer.linear.weight.set_value(layer.linear.weight * 1.25)
    return found


SCENARIOS = (
    scalars, rows_of_result, reshaped, columns, repeats, empty, views, noncontiguous, statistics,
    samples, other_weights, weights_that_change,
)  # fmt: skip


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_calls_with_many_sizes_match_eager_mode(scenario, grads):
    def played(compiled: Callable[[Any], Any]) -> list[Any]:
        with paddle.set_grad_enabled(grads):
            return made(lambda: scenario(compiled))

    if grads and scenario is views:
        pytest.skip("Paddle differentiates nothing here")
    both(played)
