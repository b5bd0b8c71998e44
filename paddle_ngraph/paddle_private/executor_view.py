"""An ``Executor`` during one run, which carries arguments of the package through Paddle's code.

``Executor._run_impl`` and ``_run_pir_impl`` find a program's executor, feed the program, and run
it. These steps are methods and attributes of ``self``: a view in the place of ``self`` gets them.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar


class Request(Protocol):
    """The arguments of a run.

    Attributes:
        prepared: Set to the program that Paddle has prepared.
    """

    prepared: Any


R = TypeVar("R", bound=Request)


class ExecutorView(Generic[R]):
    """``self`` for one call of ``Executor._run_impl`` or ``_run_pir_impl``.

    Args:
        executor: The executor, to which all other attributes belong.
        request: Passed to the program's executor in the place of the argument
            ``enable_job_schedule_profiler``.
    """

    viewed: Any
    request: R

    def __init__(self, executor: Any, request: R) -> None:
        attributes = self.__dict__
        # Copied attributes are found faster than by __getattr__.
        attributes.update(executor.__dict__)
        attributes["viewed"] = executor
        attributes["request"] = attributes["enable_job_schedule_profiler"] = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self.viewed, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.viewed, name, value)

    def _feed_data(self, program: Any, feed: Any, feed_var_name: str, scope: Any) -> None:
        self.request.prepared = program
        self.feed_legacy(program, feed, feed_var_name, scope)

    def _pir_feed_data(self, program: Any, feed: Any, scope: Any, data_op_infos: Any) -> None:
        self.request.prepared = program
        self.viewed._pir_feed_data(program, feed, scope, data_op_infos)

    def feed_legacy(self, program: Any, feed: Any, feed_var_name: str, scope: Any) -> None:
        """Copies the feeds of a ProgramDesc program into the scope."""
        self.viewed._feed_data(program, feed, feed_var_name, scope)
