"""While a thread builds a graph, other threads see Paddle's process-wide state unchanged."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.jit.dy2static import pir_partial_program

import paddle_ngraph
from paddle_ngraph.frontends.dynamic.lazy import trace_graph

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

_PATIENCE = 60
# Seconds that the building of a graph is paused for a thread that may be blocked until it ends.
_PAUSE_SECONDS = 0.2


class Other:
    """A thread that runs a function while a graph is built.

    Args:
        work: The function, called with this object.
    """

    def __init__(self, work: Callable[[Other], Any]) -> None:
        self.making, self._spoke, self._made = (threading.Event() for _ in range(3))
        self._work = work
        self._error: BaseException | None = None
        self._result: Any = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        paddle.in_dynamic_mode()  # the first call at which a thread would block on the graph
        try:
            self._result = self._work(self)
        except BaseException as error:
            self._error = error
        self._spoke.set()

    def wait_until_building(self) -> None:
        """Called by the work, before the graph is built: returns while it is being built."""
        self._spoke.set()
        assert self.making.wait(_PATIENCE)

    def continue_building(self) -> None:
        """Called by the work: the building of the graph continues."""
        self._spoke.set()
        assert self._made.wait(_PATIENCE)

    def wait(self, seconds: float) -> None:
        """Waits until the thread blocks, or ends."""
        self._spoke.wait(seconds)
        self._spoke.clear()

    def end(self) -> Any:
        """The result of its work."""
        self._made.set()
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._result


def network() -> nn.Layer:
    paddle.seed(7)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(layer: nn.Layer) -> Callable[[Any], Any]:
    """A function whose gradients accumulate."""
    return lambda x: (layer(x) * x.mean()).sum() + layer(x).square().mean()


def trained(function: Callable[[Any], Any], layer: nn.Layer) -> list[np.ndarray]:
    layer.clear_gradients()
    loss = function(paddle.to_tensor(np.linspace(-1, 1, 20, dtype="float32").reshape([5, 4])))
    loss.backward()
    return [loss.numpy(), *(each.grad.numpy() for each in layer.parameters())]


def build_alongside(
    work: Callable[[Other], Any],
    monkeypatch: pytest.MonkeyPatch,
    is_first: bool = False,
    is_static: bool = False,
) -> Any:
    """Builds a graph, and checks it, while another thread does some work.

    Args:
        work: The work of that thread.
        is_first: Whether the thread starts before the graph is built.
        is_static: Whether the thread begins in static mode.

    Returns:
        The result of the work.
    """
    layer, native = network(), network()
    expected = trained(loss_of(native), native)
    function = paddle_ngraph.compile(loss_of(layer))
    trained(function, layer)  # runs eagerly; the second call builds the graph
    before, runs = _state(), paddle_ngraph.stats()["engine_runs"]
    if is_static:
        paddle.enable_static()
    other = Other(work)
    if is_first:
        other.wait(_PATIENCE)
    paddle.disable_static()
    original = trace_graph.program_function

    def in_programs(*args: Any) -> Any:
        if not other.making.is_set():
            other.making.set()
            other.wait(_PAUSE_SECONDS)
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(trace_graph, "program_function", in_programs)
        found = trained(function, layer)
    result = other.end()
    for one, wanted in zip(found, expected):
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-5)
    assert other.making.is_set() and paddle_ngraph.stats()["engine_runs"] > runs
    assert _state() == before
    return result


def _state() -> tuple[Any, ...]:
    """The default programs, and the program that operators are added to."""
    added_to = paddle.pir.get_current_insertion_point().block().program
    return *_default_programs(), added_to


def _default_programs() -> tuple[Any, Any]:
    return paddle.static.default_main_program(), paddle.static.default_startup_program()


# -- default programs ----------------------------------------------------------------------------


@pytest.mark.slow("compiles many or large functions")
def test_other_threads_see_their_default_programs(monkeypatch):
    """So do threads that start during the building, also while gradients are added."""
    before, found = _default_programs(), []

    def look(*args: Any) -> None:
        thread = threading.Thread(target=lambda: found.append(_default_programs()))
        thread.start()
        thread.join(_PATIENCE)

    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            look()
            return original(*args, **kwargs)

        return call

    monkeypatch.setattr(trace_graph, "program_function", looking(trace_graph.program_function))
    monkeypatch.setattr(pir_partial_program, "grad", looking(pir_partial_program.grad))
    build_alongside(look, monkeypatch)
    assert len(found) > 5
    for programs in found:
        assert all(one is other for one, other in zip(programs, before))


def _leaves(other: Other) -> None:
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        other.wait_until_building()


def _enters(other: Other) -> None:
    other.wait_until_building()
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        other.continue_building()


def _enters_and_leaves(other: Other) -> None:
    other.wait_until_building()
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        pass


def _stays(other: Other) -> None:
    programs = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(*programs):
        other.wait_until_building()
        assert _default_programs() == programs
        other.continue_building()
        assert _default_programs() == programs


@pytest.mark.parametrize("work", [_leaves, _enters, _enters_and_leaves, _stays])
def test_other_threads_switch_programs_concurrently(work, monkeypatch):
    build_alongside(work, monkeypatch, is_first=True)


# -- optimizers ----------------------------------------------------------------------------------

_OPTIMIZERS = {
    "sgd": paddle.optimizer.SGD,
    "momentum": paddle.optimizer.Momentum,
    "adam": paddle.optimizer.Adam,
    "adamw": paddle.optimizer.AdamW,
    "rmsprop": paddle.optimizer.RMSProp,
    "lamb": paddle.optimizer.Lamb,
}


class CallbackClip(nn.clip.ClipGradBase):
    """A gradient clip without effect, which calls a function in the middle of an optimizer step.

    Args:
        act: The function.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def _dygraph_clip(self, params_grads: Any) -> Any:
        self._act()
        return params_grads


def _after_steps(kind: str, is_scheduled: bool, other: Other | None = None) -> list[np.ndarray]:
    """The parameters after three steps, in the second of which a graph is built."""
    layer, acts = network(), iter([])
    rate = paddle.optimizer.lr.StepDecay(0.1, 1) if is_scheduled else 0.1
    clip = CallbackClip(lambda: [act() for act in [next(acts, None)] if act is not None] and None)
    optimizer = _OPTIMIZERS[kind](rate, parameters=layer.parameters(), grad_clip=clip)
    apply = optimizer._apply_optimize

    def held(*args: Any, **kwargs: Any) -> Any:
        """Simulates a thread switch before Paddle looks up its programs."""
        if other is not None and not other.making.is_set():
            other.wait_until_building()
            nonlocal acts
            acts = iter([other.continue_building])
        return apply(*args, **kwargs)

    optimizer._apply_optimize = held
    for _ in range(3):
        trained(loss_of(layer), layer)
        optimizer.step()
        if is_scheduled:
            rate.step()
    return [each.numpy() for each in layer.parameters()]


@pytest.mark.parametrize("is_scheduled", [False, True])
@pytest.mark.parametrize("kind", list(_OPTIMIZERS))
def test_other_threads_run_optimizer_steps_concurrently(kind, is_scheduled, monkeypatch):
    expected = _after_steps(kind, is_scheduled)
    work = lambda other: _after_steps(kind, is_scheduled, other)  # noqa: E731
    found = build_alongside(work, monkeypatch, is_first=True)
    for one, wanted in zip(found, expected):
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-6)


# -- other state that threads share ----------------------------------------------------------------


def test_autocast_state_is_unchanged(monkeypatch):
    """Paddle adds gradients with autocast off, and would leave it off for all threads."""
    state = sys.modules["paddle.amp.auto_cast"].amp_global_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with paddle.amp.auto_cast(dtype="bfloat16"):
            pass
    build_alongside(lambda other: None, monkeypatch)
    assert state.amp_dtype == "bfloat16"


def test_a_thread_in_static_mode_builds_its_program_concurrently(monkeypatch):
    def work(other: Other) -> list[np.ndarray]:
        assert not paddle.in_dynamic_mode()
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [2, 4], "float32")
            hidden = nn.Linear(4, 3, "w_1", "b_1")(x)
            other.wait_until_building()
            hidden = nn.Linear(3, 2, "w_2", "b_2")(hidden) * 0.0
            result = paddle.static.nn.cond(hidden.sum() > 1.0, lambda: hidden, lambda: hidden + 2.0)
            other.continue_building()
        assert _default_programs() != (main, startup)
        executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(paddle.static.Scope()):
            executor.run(startup)
            feed = {"x": np.ones([2, 4], "float32")}
            return executor.run(main, feed=feed, fetch_list=[result])

    (found,) = build_alongside(work, monkeypatch, is_first=True, is_static=True)
    np.testing.assert_array_equal(found, np.full([2, 2], 2.0))
