"""The dispatcher: runs a program by the first of its strategies that handles the run.

These are all strategies, in order. Each frontend has some of them.

1. Call cache (``executor/call_cache.py``; Executor): the call equals a cached one, whose strategy,
   2 or 3, runs on the feeds without Paddle's preparation of a run.
2. Whole program (``executor/whole_program.py``; Executor, predictors, to_static): one engine
   operator is the whole program, and runs without Paddle's interpreter.
3. Extensions (Executor): strategies that packages built on the core register, such as the
   device schedules of ``plan/``.
4. Interpreter (all frontends): Paddle's interpreter runs the rewritten program.
5. Fallback (all frontends): Paddle runs the unmodified program.

A run for which the flag is off, or whose program has nothing to convert, has strategy 5 only. A
program that contained engine operators before has strategies 1 to 4, whether the flag is on or off.

:func:`dispatch` goes through the list of an Executor. The call cache before it, and the lists of
predictors and to_static, are inlined in the same order, since their runs take 7 to 50 us, of
which a pass over a list would take 3 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, Protocol, TypeVar, Union

import numpy as np

from paddle_ngraph.paddle_private.protocols import Program, Scope

R = TypeVar("R")
T = TypeVar("T")


class _Outcome(Enum):
    NOT_HANDLED = "not handled"


# Returned by a strategy that does not apply to a run; nothing has run then.
NOT_HANDLED = _Outcome.NOT_HANDLED
NotHandled = Literal[_Outcome.NOT_HANDLED]
Strategy = Callable[[R], Union[T, NotHandled]]


def dispatch(strategies: Iterable[Strategy[R, T]], run: R) -> T:
    """Performs a run by the first strategy that handles it, and returns the result.

    One of the strategies has to handle the run: the last one of each frontend does.
    """
    for strategy in strategies:
        result = strategy(run)
        if result is not NOT_HANDLED:
            return result
    raise AssertionError("the last strategy of a list handles every run")


class DirectProgram(Protocol):
    """Interface of a program, with its scope, that runs without Paddle's interpreter."""

    def run(self) -> list[Any]:
        """Runs on the contents of the scope, clears the feeds, and returns the fetched tensors.

        Raises:
            Exception: Any error of an operator.
        """

    def run_on(self, feed: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Runs the program on arrays by name, which are read in place; returns the fetched arrays.

        Returns:
            ``None``, without a run, if the feed is not one contiguous array of the declared dtype
            and shape for each variable.

        Raises:
            Exception: Any error of an operator.
        """


class Extension(Protocol):
    """Interface of a strategy that an extension adds for the rewritten programs of an executor."""

    def check_feeds(self, shape_of: Callable[[str], Sequence[int]]) -> None:
        """Raises an error for feeds that the programs do not accept, whichever strategy runs them.

        Args:
            shape_of: Returns the shape of the feed of a name; empty if unknown.
        """

    def bind(self, scope: Scope) -> DirectProgram | None:
        """Binds the programs to the variables of a scope; ``None`` if a variable does not exist."""


_ExtensionFactory = Callable[[Sequence[Program], bool], Union[Extension, None]]
_factories: list[_ExtensionFactory] = []


def register(factory: _ExtensionFactory) -> None:
    """Registers an extension, for programs that are rewritten from now on.

    Args:
        factory: Called with the programs of an executor, and ``may_schedule`` as in
            :func:`extensions_for`; returns ``None`` for programs that the extension does not
            concern.
    """
    if factory not in _factories:
        _factories.append(factory)


def extensions_for(
    programs_of: Callable[[], Mapping[str, Program]], may_schedule: bool
) -> list[Extension]:
    """The strategies of all extensions for the rewritten programs of an executor.

    Args:
        programs_of: Returns the PIR programs after the program pass, by job type; the caller keeps
            them alive. Not called if there are no extensions.
        may_schedule: Whether a run is a single run of a single program, whose operators may run in
            any order that their dependencies allow.
    """
    programs = list(programs_of().values()) if _factories else []
    found = (factory(programs, may_schedule) for factory in _factories)
    return [each for each in found if each is not None]
