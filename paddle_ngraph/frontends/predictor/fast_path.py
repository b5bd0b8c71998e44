"""Runs of an engine's predictor, without Paddle's interpreter where one operator is the program."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from paddle_ngraph.frontends.executor.whole_program import WholePredictor
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.protocols import Predictor, Scope
from paddle_ngraph.partitioning.whole_program import Whole

_run = replaced.RUN_PREDICTOR.original


class _FastPath:
    """Runs a predictor whose program is one engine operator, without Paddle's interpreter.

    For a network of a hundred weights the interpreter takes 0.1 ms, since it describes each
    weight to the operator. The first run is Paddle's, and creates the variables of the results.
    """

    def __init__(self, whole: Whole, scope: Scope) -> None:
        self._found: tuple[Whole, Scope] | None = (whole, scope)
        self._program: WholePredictor | None = None

    def run(self) -> bool:
        """Runs the program on the inputs of the predictor's handles; returns whether it ran."""
        return self._program is not None and self._program.run()

    def bind(self) -> None:
        """Binds the program to its variables, after the first run."""
        if self._found is not None:
            found, self._found = self._found, None
            with suppress(LookupError):
                self._program = WholePredictor(*found)


_fast_paths: WeakKeyDictionary[Predictor, _FastPath] = WeakKeyDictionary()


def remember(predictor: Predictor, whole: Whole, scope: Scope) -> None:
    """Has later runs of an engine's predictor take the fast path."""
    _fast_paths[predictor] = _FastPath(whole, scope)


def run_engine(predictor: Predictor, *args: Any) -> Any:
    """``_run`` of an engine predictor, by its strategies in the order of frontends/dispatcher.py.

    The list is inlined: a pass over it would take 3 % of a run.
    """
    path = None if args else _fast_paths.get(predictor)
    if path is None:
        return _run(predictor, *args)
    if not path.run():
        _run(predictor)
        path.bind()
    return None
