"""All uses of Executor from several threads that Paddle allows work with the engine too."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle.pir_utils import IrGuard, OldIrGuard

import paddle_ngraph
from paddle_ngraph import _core
from tests.fuzz import graphs
from tests.programs import Program, at_once, floats

_THREADS = 4
_TRIES = 8
_RUNS = 5
_LOOKS = 500


def several_fetches() -> Any:
    """A training step with three fetches: more to prepare than to compute."""
    hidden = paddle.static.data("x", [-1, 8], "float32")
    for _ in range(4):
        hidden = paddle.nn.functional.relu(paddle.nn.Linear(8, 8)(hidden))
    loss = paddle.mean(hidden)
    paddle.optimizer.SGD(0.01).minimize(loss)
    return [hidden, loss, hidden * 2.0]


def _run(program: Program, feed: np.ndarray) -> list[np.ndarray]:
    found: list[np.ndarray] = program.executor.run(
        program.main, feed={"x": feed}, fetch_list=program.fetches, scope=program.scope
    )
    return found


def _compare(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow("runs several threads for a while")
@pytest.mark.parametrize("is_shared", [False, True], ids=["executor_each", "one_executor"])
@pytest.mark.parametrize("is_warm", [True, False], ids=["ran_natively", "first_runs"])
@pytest.mark.parametrize("style", [IrGuard, OldIrGuard])
def test_programs_switched_on_run_in_threads(style: Any, is_warm: bool, is_shared: bool) -> None:
    with style():
        reference = Program(several_fetches)
        feeds = [floats(2 + i % 3, 8, seed=i) for i in range(_RUNS + 1)]
        expected = [reference.run(False, x=feed) for feed in feeds]
        first = int(is_warm)
        for _ in range(_TRIES):
            programs = [Program(several_fetches) for _ in range(_THREADS)]
            for program in programs:
                if is_shared:
                    program.executor = programs[0].executor
                if is_warm:
                    program.run(False, x=feeds[0])
            found: dict[int, list[Any]] = {}

            def work(number: int, programs: Any = programs, found: Any = found) -> None:
                found[number] = [_run(programs[number], feed) for feed in feeds[first:]]

            before = paddle_ngraph.stats()["engine_runs"]
            with paddle_ngraph.use_ngraph():
                at_once(work)
            for results in found.values():
                for result, wanted in zip(results, expected[first:]):
                    _compare(result, wanted)
            runs = _THREADS * (len(feeds) - first)
            assert paddle_ngraph.stats()["engine_runs"] - before == runs


@pytest.mark.slow("runs several threads for a while")
@pytest.mark.parametrize("style", [IrGuard, OldIrGuard])
def test_switching_while_threads_run(style: Any) -> None:
    with style():
        feed = floats(3, 8)
        reference = Program(several_fetches)
        expected = [reference.run(False, x=feed) for _ in range(60)]
        programs = [Program(several_fetches) for _ in range(_THREADS)]

        def work(number: int) -> None:
            for index, wanted in enumerate(expected):
                if number == 0 and index % 3 == 0:
                    (paddle_ngraph.enable, paddle_ngraph.disable)[index % 2]()
                _compare(_run(programs[number], feed), wanted)

        at_once(work)
        assert 0 < paddle_ngraph.stats()["engine_runs"] < _THREADS * len(expected)


def weighed() -> Any:
    """Inference; its parameter is the scope's."""
    x = paddle.static.data("x", [-1, 8], "float32")
    return [paddle.nn.functional.relu(x * paddle.static.create_parameter([8], "float32", name="w"))]


@pytest.mark.slow("runs several threads for a while")
@pytest.mark.parametrize("is_warm", [True, False], ids=["ran_natively", "first_runs"])
def test_threads_share_a_program_whose_scopes_are_their_own(is_warm: bool) -> None:
    program = Program(weighed)
    feed = floats(3, 8)
    for _ in range(_TRIES):
        scopes = [paddle.static.Scope() for _ in range(_THREADS)]
        for number, scope in enumerate(scopes):
            values = np.full([8], number + 0.5, "float32")
            scope.var("w").get_tensor().set(values, paddle.CPUPlace())
            if is_warm:
                program.executor.run(
                    program.main, feed={"x": feed}, fetch_list=program.fetches, scope=scope
                )

        def work(number: int, scopes: Any = scopes) -> None:
            for _ in range(_RUNS):
                (found,) = program.executor.run(
                    program.main, feed={"x": feed}, fetch_list=program.fetches, scope=scopes[number]
                )
                np.testing.assert_allclose(found, np.maximum(feed * (number + 0.5), 0), rtol=1e-6)

        before = paddle_ngraph.stats()["engine_runs"]
        with paddle_ngraph.use_ngraph():
            at_once(work)
        assert paddle_ngraph.stats()["engine_runs"] - before == _THREADS * _RUNS


def test_fetches_of_programs_with_py_func_are_independent() -> None:
    """Whichever value other threads have given Paddle's flag when it ends."""
    flag = _core.FlagOverride("enable_pir_in_executor")

    def call(x: Any) -> np.ndarray:
        flag.__enter__()  # as another thread might
        return np.asarray(x)

    def build() -> Any:
        scaled = paddle.static.data("x", [3, 8], "float32") * 2.0
        block = paddle.static.default_main_program().current_block()
        out = block.create_var(name="out", dtype="float32", shape=[3, 8])
        paddle.static.py_func(call, scaled, out)
        return [out + 1.0]

    with OldIrGuard(), paddle_ngraph.use_ngraph():
        program = Program(build)
        for seed in range(3):
            feed = floats(3, 8, seed=seed)
            try:
                (found,) = _run(program, feed)
            finally:
                flag.__exit__()
            np.testing.assert_allclose(found, feed * 2 + 1, rtol=1e-5)


@pytest.mark.slow("compiles many or large functions")
def test_nested_programs_do_not_deadlock() -> None:
    """``py_func`` runs programs for the first time while other threads prepare theirs."""
    with OldIrGuard():
        inner = [Program(several_fetches) for _ in range(_THREADS * 2)]
        feed = floats(3, 8)
        expected = Program(several_fetches).run(False, x=feed)[1]

        def calling(number: int) -> Any:
            def call(x: Any) -> np.ndarray:
                return np.asarray(x) + _run(inner[number], feed)[1]

            def build() -> Any:
                x = paddle.static.data("x", [3, 8], "float32")
                scaled = x * 2.0
                block = paddle.static.default_main_program().current_block()
                out = block.create_var(name=f"out_{number}", dtype="float32", shape=[3, 8])
                paddle.static.py_func(call, scaled, out)
                return [out + 1.0]

            return build

        outer = [Program(calling(number)) for number in range(_THREADS)]

        def work(number: int) -> None:
            (found,) = _run(outer[number], feed)
            np.testing.assert_allclose(found, feed * 2 + expected + 1, rtol=1e-5)
            _run(inner[_THREADS + number], feed)

        with paddle_ngraph.use_ngraph():
            at_once(work)
        assert paddle_ngraph.stats()["engine_runs"] >= 2 * _THREADS


@pytest.mark.slow("compiles many or large functions")
def test_engines_are_given_up_while_others_ask_for_them() -> None:
    """Threads create and drop the engine of one graph; each caller gets a valid one."""
    graph = graphs.strings()[0]

    def work(number: int) -> None:
        for _ in range(_LOOKS):
            if number == 0:
                _core.clear_cache()
            else:
                assert _core.NgraphEngine(graph).num_outputs > 0

    at_once(work)
