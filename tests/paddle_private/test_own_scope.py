"""Paddle scopes that end with an owning object, wherever Python drops it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import paddle
import pytest

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import (
    PaddleJob,
    PaddlePlan,
    StandaloneExecutor,
    new_scope,
    scope_remover,
)
from tests.programs import is_ended

_IN_EXECUTOR = _core.FlagOverride("enable_pir_in_executor")


def made() -> _core.OwnedScope:
    return _core.OwnedScope(new_scope(), scope_remover())


class User:
    """An object whose destructor notes whether the scope still exists."""

    def __init__(self, scope: Any, found: list[bool]) -> None:
        scope.var("x")
        self._scope, self._found = scope, found

    def __del__(self) -> None:
        self._found.append(self._scope.find_var("x") is not None)


def test_a_scope_ends_after_users_of_its_addresses() -> None:
    found: list[bool] = []
    own = made()
    scope = own.scope
    own.set_user(User(scope, found))
    assert not found
    del own
    assert found == [True] and is_ended(scope)


def test_a_scope_ends_in_garbage_collection() -> None:
    class Owner:
        def __init__(self) -> None:
            self.own, self.me = made(), self

    owner = Owner()
    scope = owner.own.scope
    del owner
    gc.collect()
    assert is_ended(scope)


def test_failures_at_the_end_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: messages.append(str(each.exc_value)))
    own = made()
    assert not is_ended(own.scope)
    del own
    (text,) = messages
    assert "nonexistent scope" in text


class Came(Exception):
    """A signal."""


def with_an_executor() -> _core.OwnedScope:
    """Returns a scope that takes a while to end."""
    own = made()
    with _IN_EXECUTOR:
        plan = PaddlePlan([PaddleJob("default")], {"default": paddle.pir.Program()})
        own.set_user(StandaloneExecutor(paddle.CPUPlace(), plan, own.scope))
    return own


def test_no_signal_is_lost_while_a_scope_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler's exception in ``__del__`` would be lost, and the cleanup incomplete."""
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    def handle(*_: object) -> None:
        raise Came

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for number in range(200):
            own: Any = with_an_executor()
            scope = own.scope
            with pytest.raises(Came):
                signal.setitimer(signal.ITIMER_REAL, (1 + number % 20) * 1e-5)
                own = None
                for _ in range(10_000):
                    time.sleep(1e-3)
            own = None
            assert is_ended(scope)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not lost


def status_of_child(work: Callable[[], bool]) -> int:
    """Returns the exit status of a forked process that does some work: 0 if it returns true."""
    gc.collect()  # a child that drops Paddle's executors is killed
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_scope_does_not_end_in_a_forked_process() -> None:
    """The child has no threads for which executors wait."""
    kept = [with_an_executor()]
    scope = kept[0].scope
    assert status_of_child(lambda: (kept.clear(), not is_ended(scope))[1]) == 0
    assert status_of_child(lambda: (with_an_executor(), True)[1]) == 0, "its own do"
    kept.clear()
    assert is_ended(scope)
