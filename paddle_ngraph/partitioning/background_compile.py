"""Background compilation of functions, while Paddle runs their subgraphs.

The C++ engine calls :func:`wants` when a run has no function. If the run falls back to Paddle, its
function becomes a compile job; one thread builds the jobs in order. No run waits for a job, so the
cost is at most that of a run by Paddle.

The thread has normal priority. Threads inherit a lower priority permanently, including those that
OpenVINO starts during compilation and later computes functions with; and every thread waits for a
low-priority thread that holds the GIL.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from paddle_ngraph import _core, flags
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.ir.graph import Graph, Op
from paddle_ngraph.partitioning import cost_model
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.clock import Clock
from paddle_ngraph.utils.fork_safe_locks import condition_of, new_lock
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.utils.thread_local import ThreadLocal
from paddle_ngraph.warning_codes import LOGGER


@dataclass
class _GraphFacts:
    """A graph, and how the engine may run it.

    Attributes:
        graph: The graph.
        can_fall_back: Whether Paddle may run it instead of the engine.
        trains: Whether the graph updates states, or belongs to a program that trains.
    """

    graph: Graph
    can_fall_back: bool
    trains: bool

    @classmethod
    def of(cls, text: str) -> _GraphFacts:
        """Determines the facts of a graph, given its graph string."""
        graph = Graph.from_string(text)
        can_fall_back = not any(
            # Operators of bfloat16 cannot fall back: Paddle's few kernels for the type are
            # oneDNN's, with other results or errors.
            op.form is None or _is_unchecked(op) or op.has_bfloat16()
            for op in graph.all_ops()
        )
        trains = bool(graph.states) or graph.trains
        return cls(graph, can_fall_back, trains)

    @property
    def operators(self) -> int:
        """The number of operators of the graph, including those in bodies."""
        return sum(1 for _ in self.graph.all_ops())

    def us_of_run(self, shapes: Sequence[Sequence[int]]) -> float:
        """Estimated microseconds of a run by Paddle on inputs and states of these shapes."""
        sources = [*self.graph.inputs, *self.graph.states]
        given = (pair for spec, shape in zip(sources, shapes) for pair in zip(spec.shape, shape))
        open_size = max((size for declared, size in given if declared < 0), default=1)
        return cost_model.us_of_run(self.graph, open_size)


def _is_unchecked(op: Op) -> bool:
    """Whether Paddle's kernel would use indices without a bounds check, unlike the engine."""
    entry = find_converter(op.type)
    return entry is not None and any(op.has_input(name) for name in entry.unchecked)


# The interval of Python's thread switches before a build shortened it, and the shortened one; empty
# while no build runs.
_switch_intervals: list[tuple[float, float]] = []


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    if before > SETTINGS.build_switch_interval_seconds:
        sys.setswitchinterval(SETTINGS.build_switch_interval_seconds)
        _switch_intervals.append((before, sys.getswitchinterval()))
    try:
        yield
    finally:
        _restore_switch_interval()


def _restore_switch_interval() -> None:
    for before, now in _switch_intervals:
        # An interval that other code has set since is left unchanged.
        if sys.getswitchinterval() == now:
            sys.setswitchinterval(before)
    _switch_intervals.clear()


class _CompileQueue:
    """The compile jobs of the process, and the thread that builds them.

    Args:
        now: The clock.
    """

    def __init__(self, now: Clock = clock.now) -> None:
        self._now = now
        # Acquired itself, not through the condition, whose ``__enter__`` is Python code: a signal
        # handler that raises there, after the acquisition, would leave the lock locked for good.
        self._lock = new_lock()
        self._changed = condition_of(self._lock)
        self._pending: deque[_core.CompileJob] = deque()
        self._building: _core.CompileJob | None = None
        self._thread: threading.Thread | None = None
        self._pauses: set[object] = set()
        self.us_per_operator = SETTINGS.initial_build_us_per_operator

    def is_accepting(self) -> bool:
        """Whether the queue accepts jobs: it is not paused, and the process is not exiting."""
        return not self._pauses and threading.main_thread().is_alive()

    def is_paused(self) -> bool:
        """Whether the queue rejects jobs for the time being."""
        return bool(self._pauses)

    def is_stopped(self) -> bool:
        """Whether the queue rejects jobs for good."""
        return self in self._pauses

    def submit(self, job: _core.CompileJob) -> bool:
        """Adds a job to the queue; returns whether the queue accepts it."""
        with self._lock:
            if not self.is_accepting():
                return False
            self._pending.append(job)
            if self._thread is None:
                # The thread is no daemon, because the exit of the process during a compilation
                # would crash: the exit joins the thread first.
                self._thread = threading.Thread(
                    target=self._build_all, name="paddle_ngraph compiles"
                )
                try:
                    self._thread.start()
                except BaseException as error:
                    # Either the system has refused a thread, or Ctrl-C has interrupted start().
                    if not self._thread.is_alive():
                        self._pending.pop()
                        self._thread = None
                        if isinstance(error, RuntimeError):
                            return False
                    raise
            return True

    def wait(self, timeout: float | None = None) -> bool:
        """Waits at most ``timeout`` seconds until no compile job is left; returns whether so."""
        with self._lock:
            if threading.current_thread() is self._thread:
                return False
            return self._changed.wait_for(lambda: not self._unfinished(), timeout)

    def join_threads(self) -> None:
        """Joins all threads that build, even after Ctrl-C has interrupted Python's join at exit."""
        threads = [*_awaited_threads, *([] if self._thread is None else [self._thread])]
        if not threads:
            return
        # signal() raises ValueError in threads other than the main one: then nothing is to be done.
        with suppress(ValueError):
            # Ctrl-C is ignored until the end of the process: it would break the join permanently.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """Rejects new jobs from now on, and waits for those in the queue."""
        self._pause(self)
        self.wait()

    def _pause(self, holder: object) -> None:
        with self._lock:
            self._pauses.add(holder)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside ``with`` no job is queued or being built, and new jobs are rejected."""
        pause = object()
        try:
            # Inside ``try``, since Ctrl-C may interrupt here, and the pause has to end.
            self._pause(pause)
            self.wait()
            yield
        finally:
            self._pauses.discard(pause)

    def cancel(self) -> None:
        """Cancels the jobs in the queue, and the one that is being built."""
        with self._lock:
            for job in self._unfinished():
                job.cancel()
            self._pending.clear()
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._unfinished())

    def _unfinished(self) -> list[_core.CompileJob]:
        return [*self._pending, *([] if self._building is None else [self._building])]

    def _build_all(self) -> None:
        while (job := self._next()) is not None:
            start = self._now()
            with _short_switch_interval():
                job.build()
            facts = _facts(job.graph)
            us = (self._now() - start) * 1e6 / facts.operators
            self.us_per_operator = (self.us_per_operator + us) / 2
            del job

    def _next(self) -> _core.CompileJob | None:
        """Takes the next job from the queue, or ``None`` if the queue is empty; never waits.

        The thread ends after ``None``; the next submitted job starts another thread.
        """
        with self._lock:
            self._building = None
            # During the exit of the process no further job is built.
            if not threading.main_thread().is_alive():
                self.cancel()
            if self._pending:
                self._building = self._pending.popleft()
            else:
                self._thread = None
            self._changed.notify_all()
            return self._building

    def forget_in_child(self) -> None:
        """Clears the queue in a forked process, which has no thread to build jobs."""
        self.cancel()
        self._building = self._thread = None
        _awaited_threads.clear()
        _restore_switch_interval()


_facts_by_graph: LRUCache[str, _GraphFacts] = process_cache(
    __name__,
    "graph_facts",
    "facts about a graph that decide where its functions are built",
    key="graph header",
    bound=32,
)
_queue = _CompileQueue()
# With which expected build time runs of this thread wait; ``None``: as the flag says.
_awaited_seconds: ThreadLocal[float | None] = ThreadLocal(None)
# Builds for which runs wait, or have waited until a signal, by thread.
_awaited_threads: WeakKeyDictionary[threading.Thread, _core.AwaitedBuild] = WeakKeyDictionary()

atexit.register(_queue.join_threads)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_queue.forget_in_child)


def _facts(text: str) -> _GraphFacts:
    return _facts_by_graph.get_or_create(text.partition("\n")[0], lambda: _GraphFacts.of(text))


def wants(text: str, shapes: Sequence[Sequence[int]] = (), native_us: int = 0) -> bool:
    """Whether Paddle runs a subgraph while its function is built. Called by the C++ engine.

    Args:
        text: The graph string.
        shapes: Shapes of its inputs and states, in the order of the graph.
        native_us: Microseconds of a measured run by Paddle; 0 if none was measured.
    """
    when = flags.get("ngraph_background_compile")
    if when == "0" or flags.get("ngraph_strict") or not _queue.is_accepting():
        return False
    facts = _facts(text)
    if not facts.can_fall_back or when == "1":
        return facts.can_fall_back
    expected = facts.operators * _queue.us_per_operator
    awaited = _awaited_seconds.value
    if awaited is None and facts.trains:
        awaited = SETTINGS.awaited_training_build_seconds
    if awaited is not None:
        return expected > awaited * 1e6
    run_us = native_us or facts.us_of_run(shapes)
    return expected > SETTINGS.background_compile_native_runs * run_us


def may_leave(text: str) -> bool:
    """Whether runs of a graph may fall back to Paddle while a function is built.

    Called by the C++ engine.
    """
    return _queue.is_accepting() and _facts(text).can_fall_back


def take(job: _core.CompileJob) -> bool:
    """Queues a compile job; ``False`` if the queue rejects it. Called by the C++ engine."""
    return _queue.submit(job)


def wait_for_build(build: _core.AwaitedBuild, text: str) -> bool | None:
    """Has a thread build the function that a run of the main thread needs, or waits for a build.

    Ctrl-C ends the wait, not the build. Called by the C++ engine.

    Args:
        text: The graph string, if the run may fall back when another signal arrives, whose handler
            runs at the end of the run; else ``""``.

    Returns:
        ``False`` if the caller has to build the function itself: :meth:`begin` returns true once.
        ``None`` if the run falls back.
    """
    is_in_main_thread = threading.current_thread() is threading.main_thread()
    may_end = is_in_main_thread or signals.may_be_seen()
    if not may_end and build.begin():
        return False
    with signals.deferred_signals():
        if may_end and build.begin():
            # With the context of the run, such as the processor for which functions are built. The
            # thread is no daemon, because the exit of the process during a build would crash.
            thread = threading.Thread(
                target=copy_context().run, args=(build.build,), name="paddle_ngraph build"
            )
            try:
                thread.start()
            except RuntimeError:  # the process is exiting
                return False
            _awaited_threads[thread] = build
    waiting = _LoggedWait()
    while not build.wait(SETTINGS.interrupt_check_seconds):
        waiting.log_once()
        # A handler of Ctrl-C may raise here.
        has_arrived = signals.is_pending() or (not is_in_main_thread and signals.is_seen())
        if has_arrived and text and may_leave(text):
            return None
    waiting.log_end()
    return True


class _LoggedWait:
    """A run that waits for its function: the log says so after a while, and when it goes on."""

    def __init__(self) -> None:
        self._begin = clock.now()
        self._is_logged = False

    def log_once(self) -> None:
        if not self._is_logged and clock.now() - self._begin >= SETTINGS.build_log_seconds:
            self._is_logged = True
            LOGGER.info("a run waits while its function is compiled; later runs reuse the function")

    def log_end(self) -> None:
        if self._is_logged:
            LOGGER.info("the function was compiled in %.1f s", clock.now() - self._begin)


def wait(timeout: float | None = None) -> bool:
    """Waits until background compilation is idle, at most ``timeout`` seconds.

    A thread whose run has its function already may still hold the engine: such threads end, too.

    Returns:
        Whether the compiler is idle.
    """
    is_idle = _queue.wait(timeout)
    # A copy, since other threads may start builds meanwhile.
    others = [thread for ref in _awaited_threads.keyrefs() if (thread := ref()) is not None]
    threads = [thread for thread in others if thread is not threading.current_thread()]
    for thread in threads:
        thread.join(timeout)
    return is_idle and not any(thread.is_alive() for thread in threads)


def is_idle() -> bool:
    """Whether no compile job is queued or being built."""
    return not len(_queue)


def is_paused() -> bool:
    """Whether runs wait for builds, as in processes of a distributed job."""
    return _queue.is_paused()


def is_disabled() -> bool:
    """Whether no result may depend on times, as in processes of a distributed job."""
    return _queue.is_stopped()


def compile_synchronously() -> AbstractContextManager[None]:
    """Disables background compilation inside ``with``: runs wait until their function is built."""
    return _queue.paused()


def awaiting(seconds: float) -> AbstractContextManager[None]:
    """Inside ``with``, runs of this thread wait for builds that are expected to be shorter."""
    return _awaited_seconds.overridden(seconds)


def disable() -> None:
    """Disables background compilation for the process: runs wait until their function is built."""
    _queue.stop()


def cancel() -> None:
    """Cancels all compile jobs, queued or being built."""
    _queue.cancel()
    for build in list(_awaited_threads.values()):
        build.cancel()
