"""Creation of Paddle's interpreter, and overrides of the flags that it reads."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import StandaloneExecutor
from paddle_ngraph.paddle_private.protocols import Executor, Plan, Scope

# While this override is active, Paddle's executor accepts PIR programs, whatever the user's flag.
PIR_IN_EXECUTOR = _core.FlagOverride("enable_pir_in_executor")
# While this one is active, Paddle's executor obeys the user's flag, even if other threads run PIR
# programs.
PIR_IN_EXECUTOR_AS_SET = _core.FlagOverride("enable_pir_in_executor", user_value=True)
# While this override is active, Paddle's executor runs operators one by one, in program order.
SEQUENTIAL_RUN = _core.FlagOverride("new_executor_sequential_run")
# While this override is active, Paddle's executor runs operators in the calling thread: waking
# another thread takes longer than most operators.
TRACE_RUN = _core.FlagOverride("enable_pir_in_executor_trace_run")
# While this override is active, Paddle creates executors that run no operator over an operand of
# which it is the last reader: Paddle knows only one name of a memory.
WITHOUT_INPLACE_PASS = _core.FlagOverride("pir_apply_inplace_pass")


def create(place: Any, plan: Plan, scope: Scope) -> Executor:
    """Creates Paddle's interpreter of a plan, which uses the variables of ``scope``."""
    interpreter: Executor = StandaloneExecutor(place, plan, scope)
    return interpreter


def order(is_sequential: bool, shares_memory: bool) -> AbstractContextManager[Any]:
    """The context in which Paddle creates and runs the interpreter of a program.

    Args:
        is_sequential: Whether operators have to run in program order.
        shares_memory: Whether Paddle's in-place pass would overwrite variables: see
            :data:`WITHOUT_INPLACE_PASS`.
    """
    if not shares_memory:
        return SEQUENTIAL_RUN if is_sequential else nullcontext()
    return (
        _BothOverrides(SEQUENTIAL_RUN, WITHOUT_INPLACE_PASS)
        if is_sequential
        else WITHOUT_INPLACE_PASS
    )


class _BothOverrides:
    """Two overrides as one context."""

    def __init__(self, first: _core.FlagOverride, second: _core.FlagOverride) -> None:
        self._first, self._second = first, second

    def __enter__(self) -> None:
        self._first.__enter__()
        self._second.__enter__()

    def __exit__(self, *error: object) -> None:
        self._second.__exit__(*error)
        self._first.__exit__(*error)


class ReleasedPir:
    """A context inside :data:`PIR_IN_EXECUTOR` in which programs of every kind may be run."""

    def __enter__(self) -> None:
        PIR_IN_EXECUTOR.__exit__(None, None, None)

    def __exit__(self, *error: object) -> None:
        PIR_IN_EXECUTOR.__enter__()


class SequentialPaddleRun(_BothOverrides):
    """A context in which Paddle runs the operators of programs one by one, in program order.

    The operators run in the calling thread: memory that one thread frees is slow to reach another.
    """

    def __init__(self) -> None:
        super().__init__(SEQUENTIAL_RUN, TRACE_RUN)
