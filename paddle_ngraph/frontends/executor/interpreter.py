"""Creation of Paddle's interpreter, and overrides of the flags that it reads."""

from __future__ import annotations

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


class SequentialPaddleRun:
    """A context in which Paddle runs the operators of programs one by one, in program order.

    The operators run in the calling thread: memory that one thread frees is slow to reach another.
    """

    def __enter__(self) -> None:
        SEQUENTIAL_RUN.__enter__()
        TRACE_RUN.__enter__()

    def __exit__(self, *error: object) -> None:
        TRACE_RUN.__exit__(*error)
        SEQUENTIAL_RUN.__exit__(*error)
