"""Paddle gets no call stacks while programs are built; other callers get complete ones."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable
from traceback import StackSummary
from typing import Any

import paddle
import pytest

from paddle_ngraph.paddle_private import call_stacks
from paddle_ngraph.paddle_private.call_stacks import without_call_stacks

# Code that does not contain the name `extract_stack`, like Paddle's.
ask: Any = eval("lambda: getattr(traceback, 'extract' + '_stack')()", {"traceback": traceback})


def caller_name() -> str | None:
    """Python code that inspects its caller."""
    found = traceback.extract_stack()
    return found[-1].name if found else None


def make_operators() -> None:
    with paddle.static.program_guard(paddle.static.Program()):
        paddle.static.data("x", [2], "float32") * 2.0 + 1.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of entries in the call stacks that callers received."""
    original, counts = traceback.extract_stack, []

    def counting(*args: Any, **kwargs: Any) -> StackSummary:
        found = original(*args, **kwargs)
        counts.append(len(found))
        return found

    monkeypatch.setattr(traceback, "extract_stack", counting)
    return counts


def test_paddle_gets_no_call_stacks(asked: list[int]) -> None:
    make_operators()
    assert len(asked) > 1 and min(asked) > 1
    asked.clear()
    with without_call_stacks():
        make_operators()
        assert not ask()
    assert not asked
    make_operators()
    assert len(asked) > 1


def test_another_thread_gets_complete_call_stacks(asked: list[int]) -> None:
    thread = threading.Thread(target=make_operators)
    with without_call_stacks():
        thread.start()
        thread.join()
    assert len(asked) > 1 and min(asked) > 1


class Asking:
    """An object whose destructor inspects the call stack."""

    def __init__(self, found: list[str | None]) -> None:
        self._found = found

    def __del__(self) -> None:
        self._found.append(caller_name())


def test_other_code_in_the_thread_gets_call_stacks() -> None:
    """``[-1]`` exists in plain Paddle."""
    found: list[str | None] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: found.append(caller_name()))
    try:
        with without_call_stacks():
            found.append(caller_name())
            signal.raise_signal(signal.SIGUSR1)
            Asking(found)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == ["caller_name"] * 3


def test_a_wrapper_installed_concurrently_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traceback, "extract_stack", traceback.extract_stack)  # restored at the end
    with without_call_stacks():
        replacement = traceback.extract_stack

        def wrapper(*args: Any, **kwargs: Any) -> StackSummary:
            return replacement(*args, **kwargs)

        traceback.extract_stack = wrapper
        assert not ask()
    assert traceback.extract_stack is wrapper
    assert len(ask()) > 1, "what it wraps hands on"
    with without_call_stacks():
        assert not ask()
    assert traceback.extract_stack is wrapper and len(ask()) > 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_gets_call_stacks() -> None:
    """Threads of the child may have ids of threads that only the parent has."""
    is_inside, ends = threading.Event(), threading.Event()

    def make() -> None:
        with without_call_stacks():
            is_inside.set()
            ends.wait(60)

    makes = threading.Thread(target=make)
    makes.start()
    is_inside.wait(60)
    child = os.fork()
    if child == 0:
        counts = [len(ask())]
        threads = [threading.Thread(target=lambda: counts.append(len(ask()))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0 if len(counts) == 9 and min(counts) > 1 else 1)
    ends.set()
    makes.join()
    assert os.waitpid(child, 0)[1] == 0


def made_operators(build: Callable[[], object]) -> list[int]:
    """The call stacks of the operators of a program that is gone, by index."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        build()
    return call_stacks.stacks_of(program.global_block())


def test_operators_may_have_a_number_in_place_of_a_call_stack() -> None:
    def build() -> None:
        x = paddle.static.data("x", [2], "float32")
        with without_call_stacks():
            for number in (7, 8):
                with call_stacks.operators_numbered(number):
                    x = paddle.tanh(x)
            x = paddle.exp(x)

    _, *numbered, unnumbered = made_operators(build)
    assert [call_stacks.call_of(stack) for stack in numbered] == [7, 8]
    assert not any(map(call_stacks.user_line, numbered))
    assert call_stacks.call_of(unnumbered) is None and not call_stacks.user_line(unnumbered)


def test_call_stacks_stay_without_their_operators() -> None:
    stacks = made_operators(make_one)
    gc.collect()
    made_operators(make_operators)
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", call_stacks.user_line(stacks[0]))
    assert call_stacks.call_of(stacks[0]) is None
    assert call_stacks.user_line(0) == "" and call_stacks.call_of(0) is None


def make_one() -> None:
    paddle.static.data("y", [2], "float32")


def test_the_calling_line_is_the_users() -> None:
    assert call_stacks.calling_line().rpartition(":")[0] == __file__
