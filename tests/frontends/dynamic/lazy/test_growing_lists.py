"""Lists of tensors that grow from step to step have one trace, whatever their length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph.partitioning import background_compile
from tests.dynamic import agree, floats, gradients, made

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

WIDTH, ROWS = 6, 3
# The numbers of steps after which no length is new.
LENGTHS = (12, 9, 7, 8)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with background_compile.compile_synchronously():
        yield


def number_of_ends(compiled: Any) -> int:
    return len(compiled._tuner.traces._traces.ends())


# How a step adds its result to the results of the steps before.
PLACES: dict[str, Callable[[list[Any], Any], list[Any]]] = {
    "appended": lambda list_, x: [*list_, x],
    "before": lambda list_, x: [x, *list_],
    "amid": lambda list_, x: [*list_[: len(list_) // 2], x, *list_[len(list_) // 2 :]],
    "twice": lambda list_, x: [*list_, x, x],
}
# How a step reads the list, so that the result has the shape of a member.
JOINS: dict[str, Callable[[list[Any]], Any]] = {
    "stack": lambda members: paddle.stack(members, axis=1).mean(axis=1),
    "stack last": lambda members: paddle.stack(members, axis=-1).max(axis=-1),
    "concat": lambda members: paddle.concat(members).mean(axis=0, keepdim=True),
    "concat columns": lambda members: paddle.concat(tuple(members), axis=-1).mean(-1, keepdim=True),
    "add_n": lambda members: paddle.add_n(members) * 0.05,
}


class Steps(nn.Layer):
    """Each step reads the results of all others, and asks Python whether it is the last one."""

    def __init__(self, place: str, join: str) -> None:
        super().__init__()
        self.cell, self.place, self.join = nn.Linear(WIDTH, WIDTH), PLACES[place], JOINS[join]

    def forward(self, x: Any, steps: int) -> Any:
        results: list[Any] = []
        for _ in range(steps):
            x = paddle.tanh(self.cell(x))
            results = self.place(results, x)
            x = x + self.join(results)
            if not bool((x.abs() < 1e9).all()):
                break
        return x, paddle.stack(results).sum(0)


# Sums are rounded in the order of the list: only members at its beginning are added at once.
CASES = [
    (place, join) for place in PLACES for join in JOINS if join != "add_n" or place == "appended"
]


@pytest.mark.parametrize(("place", "join"), CASES)
def test_a_growing_list_has_one_trace(place: str, join: str) -> None:
    layer = made(lambda: Steps(place, join))
    with paddle.no_grad(), paddle_ngraph.use_ngraph(False):
        wanted = [layer(floats(ROWS, WIDTH, seed=steps), steps) for steps in LENGTHS]
    compiled = paddle_ngraph.compile(lambda x, steps: layer(x, steps))
    with paddle.no_grad():
        found = [compiled(floats(ROWS, WIDTH, seed=steps), steps) for steps in LENGTHS]
        agree(found, wanted)
        known, runs = number_of_ends(compiled), paddle_ngraph.stats()["engine_runs"]
        longer = compiled(floats(ROWS, WIDTH), 25)
    assert number_of_ends(compiled) == known
    assert paddle_ngraph.stats()["engine_runs"] > runs + 20
    with paddle.no_grad(), paddle_ngraph.use_ngraph(False):
        agree(longer, layer(floats(ROWS, WIDTH), 25))


@pytest.mark.parametrize("join", ["stack", "concat", "add_n"])
def test_a_growing_list_has_one_trace_in_training(join: str) -> None:
    def trained(run: Callable[[Any], Any]) -> list[Any]:
        layer = made(lambda: Steps("appended", join))
        called, results = run(layer), []
        for steps in LENGTHS:
            x, total = called(floats(ROWS, WIDTH, seed=steps), steps)
            (x.square().mean() + total.mean()).backward()
            results += [x, total, gradients(layer)]
        return results

    compiled: list[Any] = []

    def compiled_layer(layer: Any) -> Any:
        compiled.append(paddle_ngraph.compile(lambda x, steps: layer(x, steps)))
        return compiled[0]

    with paddle_ngraph.use_ngraph(False):
        wanted = trained(lambda layer: layer)
    runs = paddle_ngraph.stats()["engine_runs"]
    agree(trained(compiled_layer), wanted)
    assert paddle_ngraph.stats()["engine_runs"] > runs + 8
    known = number_of_ends(compiled[0])
    compiled[0](floats(ROWS, WIDTH), 20)
    assert number_of_ends(compiled[0]) == known


def test_lists_of_all_lengths_from_outside_have_one_trace() -> None:
    compiled = paddle_ngraph.compile(lambda members: paddle.stack(members, axis=1).exp().sum(1))
    with paddle.no_grad():
        for length in (2, 3, 4, 5, 9, 14, 30):
            members = [floats(ROWS, WIDTH, seed=seed) for seed in range(length)]
            expected = np.exp(np.stack([each.numpy() for each in members], 1)).sum(1)
            np.testing.assert_allclose(compiled(members).numpy(), expected, rtol=1e-5)
        assert number_of_ends(compiled) <= 4


@pytest.mark.parametrize(
    "members",
    [
        lambda x: [floats(2, 3), floats(2, 3), floats(2, 4), x],
        lambda x: [floats(2, 3), floats(2, 3), floats(2, 3).astype("int64"), x],
        lambda x: [floats(2, 3), floats(2, 3), floats(3), x],
    ],
    ids=["sizes", "dtypes", "ranks"],
)
@pytest.mark.parametrize("join", [paddle.stack, paddle.concat, paddle.add_n])
def test_errors_of_lists_that_grow_are_paddles(join: Any, members: Any) -> None:
    def function(list_: Any, x: Any) -> Any:
        y = x * 2.0
        return join([*list_, y]) if list_ is not None else join(members(y))

    def error(called: Any) -> str:
        with paddle.no_grad():
            for length in (1, 2, 3, 4, 5):
                called([floats(2, 3) for _ in range(length)], floats(2, 3))
            try:
                called(None, floats(2, 3)).numpy()
            except Exception as raised:
                return f"{type(raised).__name__}: {str(raised).splitlines()[-1]}"
        return ""

    with paddle_ngraph.use_ngraph(False):
        wanted = error(function)
    assert error(paddle_ngraph.compile(function)) == wanted
