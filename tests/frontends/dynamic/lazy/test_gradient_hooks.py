"""Hooks on the gradients of lazy tensors: no graph breaks, and registered once these are computed.

Programs are random: where hooks are registered and removed, what they do, and what follows them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.dynamic import floats
from tests.frontends.dynamic.lazy.test_captured_integers import check_one_graph, played
from tests.frontends.dynamic.test_compiled_layer import both

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

CALLS = 4


class Program:
    """A random function of x [4, 6]; what its hooks have seen is in ``seen``."""

    STEPS = (
        "hook",
        "hook",
        "keep",
        "remove",
        "compute",
        "compute",
        "view",
        "drop",
        "mutate",
        "read",
    )

    def __init__(self, seed: int, length: int = 10) -> None:
        numbers = random.Random(seed)
        self._steps = [(numbers.choice(self.STEPS), numbers.random()) for _ in range(length)]
        self.seen: list[Any] = []

    def __call__(self, x: Any) -> Any:
        live, helpers, kept = [F.tanh(x) * 2.0], [], []
        for number, (step, at) in enumerate(self._steps):
            y = live[int(at * len(live))]
            if step == "hook" and not y.stop_gradient:
                helpers.append(y.register_hook(self._hook(number)))
            elif step == "keep" and not y.stop_gradient:
                y.retain_grads()
                kept.append(y)
            elif step == "remove" and helpers:
                self.seen.append(helpers.pop(int(at * len(helpers))).remove())
            elif step == "compute":
                live.append(F.tanh(y) + live[-1] * 0.5)
            elif step == "view":
                live.append(y.reshape([4, 6]) * 1.5 if at < 0.5 else y[:2].tile([2, 1]))
            elif step == "drop" and len(live) > 1:
                live = [each for each in live if each is not y]
            elif step == "mutate" and at > 0.7:
                y.scale_(0.5)
            elif step == "read" and at > 0.7:
                self.seen.append(float(y.sum()))
        return live, helpers, kept

    def _hook(self, number: int) -> Callable[[Any], Any]:
        def hook(gradient: Any) -> Any:
            self.seen.append(number)
            self.seen.append(gradient + 0.0)
            return gradient * 1.25 if number % 3 else None

        return hook


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_with_hooks(seed: int) -> None:
    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        program, found = Program(seed), []
        called, other = compiled(program), compiled(lambda x: F.tanh(x) * 3.0)
        for number in range(CALLS):
            x = floats(4, 6, seed=number)
            x.stop_gradient = False
            live, helpers, kept = called(x)
            if helpers and number % 2:
                found.append(helpers[0].remove())
            sum(each.square().sum() for each in live).backward()
            found += [*live, x.grad, *(each.grad for each in kept), *program.seen, other(x)]
            program.seen.clear()
        return found

    both(scenario, runs=CALLS)


# Functions of x and a hook that break no graph.
WITHOUT_BREAK: dict[str, Callable[[Any, Any], Any]] = {
    "of an intermediate": lambda x, hook: _hooked(F.tanh(x) * 2.0, hook) * x,
    "of the result": lambda x, hook: _hooked(F.tanh(x) * 2.0, hook),
    "of the input": lambda x, hook: F.tanh(_hooked(x, hook)) * 2.0,
    "of both": lambda x, hook: _hooked(F.tanh(_hooked(x, hook)) * 2.0, hook),
    "twice": lambda x, hook: _hooked(_hooked(F.tanh(x) * 2.0, hook), hook) * x,
    "after its readers": lambda x, hook: (lambda y: (y * x, _hooked(y, hook))[0])(F.tanh(x) * 2.0),
    "removed": lambda x, hook: (
        lambda y: (y.register_hook(hook).remove(), y * x)[1]  # type: ignore[func-returns-value]
    )(F.tanh(x) * 2.0),
    "kept": lambda x, _: (lambda y: (y.retain_grads(), y * x)[1])(F.tanh(x) * 2.0),
}


def _hooked(y: Any, hook: Any) -> Any:
    y.register_hook(hook)
    return y


@pytest.mark.parametrize("name", WITHOUT_BREAK)
def test_hooks_break_no_graph(name: str) -> None:
    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        seen: list[Any] = []

        def hook(gradient: Any) -> Any:
            seen.append(gradient + 0.0)
            return gradient * 3.0

        called, found = compiled(lambda x: WITHOUT_BREAK[name](x, hook)), []
        for number in range(CALLS):
            x = floats(4, 6, seed=number)
            x.stop_gradient = False
            result = called(x)
            result.square().sum().backward()
            found += [result, x.grad]
        return found + seen

    check_one_graph(played(scenario, runs=CALLS))


def test_a_hook_outlives_the_call_and_is_removed_once() -> None:
    seen: list[Any] = []

    def function(x: Any) -> Any:
        y = F.tanh(x) * 2.0
        return y, y.register_hook(lambda _: seen.append(1))

    compiled = paddle_ngraph.compile(function)
    for _ in range(4):
        x = floats(4, 6)
        x.stop_gradient = False
        y, helper = compiled(x)
    runs = paddle_ngraph.stats()["engine_runs"]
    assert runs > 0
    y.sum().backward(retain_graph=True)
    assert seen == [1]
    assert helper.remove() is True
    y.sum().backward()
    assert seen == [1]
    with pytest.warns(RuntimeWarning, match="does not exist"):
        assert helper.remove() is False


def test_another_thread_hooks_and_reads_a_lazy_tensor() -> None:
    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        def function(x: Any) -> Any:
            y, seen = F.tanh(x) * 2.0, []
            y.register_hook(lambda gradient: gradient * 3.0)
            thread = threading.Thread(target=lambda: seen.append(_hooked(y, lambda g: g * 2.0) + 1))
            thread.start()
            thread.join()
            return y * x

        called, found = compiled(function), []
        other = compiled(lambda x: F.tanh(x) * 3.0)  # graphs of one thread train, others call
        for number in range(CALLS):
            x = floats(4, 6, seed=number)
            x.stop_gradient = False
            result = called(x)
            result.sum().backward()
            found += [result, x.grad, other(x)]
        return found

    both(scenario, runs=CALLS)


def test_hooks_of_tensors_that_get_no_gradient_are_paddles() -> None:
    def errors(called: Any) -> list[str]:
        found = []
        for _ in range(CALLS):
            try:
                called(floats(4, 6))
            except RuntimeError as error:
                found.append(str(error).splitlines()[-1])
        return found

    def function(x: Any) -> Any:
        return _hooked(F.tanh(x) * 2.0, lambda gradient: gradient)

    compiled = paddle_ngraph.compile(function)
    with paddle.no_grad():
        assert errors(compiled) == errors(function)
    assert errors(compiled) == errors(function) != []
