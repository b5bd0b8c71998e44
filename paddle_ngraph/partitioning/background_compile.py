"""Functions that are compiled in the background, while Paddle runs their intervals.

The C++ engine asks here when a run lacks its function. If the run goes natively, its function is an
*order*: one thread builds them one after the other. No run waits for an order, so nobody loses more
by it than one native run takes.

The thread has the priority of any other. Threads inherit a lower one for good, also those that
OpenVINO starts while it compiles and that compute functions later; and where a thread of low
priority has the GIL, everybody waits for it.
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
from dataclasses import dataclass

from paddle_ngraph import _core, flags
from paddle_ngraph.conversion.denylist import subgraph_key
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.ir.graph import Graph, Op
from paddle_ngraph.partitioning import cost_model
from paddle_ngraph.utils import clock
from paddle_ngraph.utils.clock import Clock
from paddle_ngraph.utils.fork_safe_locks import new_condition
from paddle_ngraph.utils.lru_cache import LRUCache

# ``auto`` compiles in the background what takes longer than so many native runs.
NATIVE_RUNS = 20

# What a build takes for an operator, as long as none was measured.
_INITIAL_BUILD_US_PER_OPERATOR = 2000.0

# While a function is built, Python's threads take turns of so many seconds: a native run waits
# several times for one, and doubled with Python's default of 5 ms.
_SWITCH_INTERVAL_SECONDS = 0.0005


@dataclass
class _GraphFacts:
    """What is known of a graph.

    Attributes:
        graph: It.
        interval: A key that is the same whatever a program asks the interval for.
        can_fall_back: Whether Paddle may run it instead of the engine.
        trains: Whether it updates anything, or belongs to a program that trains.
    """

    graph: Graph
    interval: str
    can_fall_back: bool
    trains: bool

    @classmethod
    def of(cls, text: str) -> _GraphFacts:
        """Those of a graph string."""
        graph = Graph.from_string(text)
        may_wait = not any(
            # Paddle's few kernels of bfloat16 are oneDNN's, with other results or errors.
            op.form is None or _is_unchecked(op) or op.has_bfloat16()
            for op in graph.all_ops()
        )
        trains = bool(graph.states) or graph.trains
        return cls(graph, subgraph_key(graph), may_wait, trains)

    @property
    def operators(self) -> int:
        """How many there are."""
        return sum(1 for _ in self.graph.all_ops())

    def us_of_run(self, shapes: Sequence[Sequence[int]]) -> float:
        """About how long a native run takes on inputs of these shapes."""
        sources = [*self.graph.inputs, *self.graph.states]
        given = (pair for spec, shape in zip(sources, shapes) for pair in zip(spec.shape, shape))
        open_size = max((size for declared, size in given if declared < 0), default=1)
        return cost_model.us_of_run(self.graph, open_size)


def _is_unchecked(op: Op) -> bool:
    """Whether Paddle's kernel would use positions without a look at them, unlike the engine."""
    entry = find_converter(op.type)
    return entry is not None and any(op.has_input(name) for name in entry.unchecked)


# While turns are short: what they are to be afterwards, and what they are.
_switch_intervals: list[tuple[float, float]] = []


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    if before > _SWITCH_INTERVAL_SECONDS:
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        _switch_intervals.append((before, sys.getswitchinterval()))
    try:
        yield
    finally:
        _restore_switch_interval()


def _restore_switch_interval() -> None:
    for before, now in _switch_intervals:
        if sys.getswitchinterval() == now:  # nobody else has set it
            sys.setswitchinterval(before)
    _switch_intervals.clear()


class _CompileQueue:
    """The orders of the process, and the thread that builds them.

    Args:
        now: The clock.
    """

    def __init__(self, now: Clock = clock.now) -> None:
        self._now = now
        self._changed = new_condition()
        self._pending: deque[_core.CompileJob] = deque()
        self._building: _core.CompileJob | None = None
        self._thread: threading.Thread | None = None
        self._num_paused = 0
        self.us_per_operator = _INITIAL_BUILD_US_PER_OPERATOR

    def is_accepting(self) -> bool:
        """Whether there may be any."""
        return self._num_paused == 0 and threading.main_thread().is_alive()

    def submit(self, job: _core.CompileJob) -> bool:
        """Has an order built; returns whether it is."""
        with self._changed:
            if not self.is_accepting():
                return False
            self._pending.append(job)
            if self._thread is None:
                # No daemon: a process that ends while OpenVINO compiles would crash.
                self._thread = threading.Thread(
                    target=self._build_all, name="paddle_ngraph compiles"
                )
                try:
                    self._thread.start()
                except BaseException as error:  # there are no more threads, or it was Ctrl-C
                    if self._thread.is_alive():
                        raise
                    self._pending.pop()
                    self._thread = None
                    if not isinstance(error, RuntimeError):
                        raise
                    return False
            return True

    def wait(self, timeout: float | None = None) -> bool:
        """Returns when there is none, or after so many seconds: whether there is none."""
        with self._changed:
            if threading.current_thread() is self._thread:
                return False
            return self._changed.wait_for(lambda: not self._unfinished(), timeout)

    def join_thread(self) -> None:
        """Returns when the thread has ended, if Ctrl-C has ended Python's wait for it."""
        if (thread := self._thread) is None:
            return
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it would end a join for good
        thread.join()

    def stop(self) -> None:
        """Takes none from here on, and returns when there is none."""
        self._pause()
        self.wait()

    def _pause(self) -> None:
        with self._changed:
            self._num_paused += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside of the ``with`` block there are none, and none comes in."""
        self._pause()
        try:
            self.wait()  # Ctrl-C may end it
            yield
        finally:
            with self._changed:
                self._num_paused -= 1

    def cancel(self) -> None:
        """Nothing becomes of those that there are now."""
        with self._changed:
            for job in self._unfinished():
                job.cancel()
            self._pending.clear()
            self._changed.notify_all()

    def runs_meanwhile(self, interval: str) -> int | None:
        """See :func:`native_runs_while_compiling`."""
        with self._changed:
            for job in self._unfinished():
                if _facts(job.graph).interval == interval:
                    return job.fallback_runs
        return _native_runs.get(interval)

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
            _native_runs.put(facts.interval, job.fallback_runs)
            del job

    def _next(self) -> _core.CompileJob | None:
        """The next order; ``None`` ends the thread."""
        with self._changed:
            self._building = None
            if not threading.main_thread().is_alive():  # the process ends
                self.cancel()
            if self._pending:
                self._building = self._pending.popleft()
            else:
                self._thread = None
            self._changed.notify_all()
            return self._building

    def forget_in_child(self) -> None:
        """A forked process has no thread that builds, and so no orders."""
        self.cancel()
        self._building = self._thread = None
        _restore_switch_interval()


_facts_by_graph: LRUCache[str, _GraphFacts] = LRUCache(32)
_queue = _CompileQueue()
# How many runs were native while functions were compiled, by interval.
_native_runs: LRUCache[str, int] = LRUCache(1024)

atexit.register(_queue.join_thread)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_queue.forget_in_child)


def _facts(text: str) -> _GraphFacts:
    return _facts_by_graph.get_or_create(text.partition("\n")[0], lambda: _GraphFacts.of(text))


def wants(text: str, shapes: Sequence[Sequence[int]] = (), native_us: int = 0) -> bool:
    """Called by the C++ engine: whether a run goes natively while its function is built.

    Args:
        text: The graph string.
        shapes: Those of its inputs and states, in the order of the graph.
        native_us: How long a native run took; 0 if none was measured.
    """
    when = flags.get("ngraph_background_compile")
    if when == "0" or flags.get("ngraph_strict") or not _queue.is_accepting():
        return False
    facts = _facts(text)
    if not facts.can_fall_back or when == "1":
        return facts.can_fall_back
    expected = facts.operators * _queue.us_per_operator
    return not facts.trains and expected > NATIVE_RUNS * (native_us or facts.us_of_run(shapes))


def may_leave(text: str) -> bool:
    """Called by the C++ engine: whether Paddle may do runs of a graph, one of them or another."""
    return _queue.is_accepting() and _facts(text).can_fall_back


def take(job: _core.CompileJob) -> bool:
    """Called by the C++ engine: takes an order to build; ``False`` if none is taken now."""
    return _queue.submit(job)


def wait(timeout: float | None = None) -> bool:
    """Returns when nothing is compiled in the background, or after ``timeout`` seconds.

    Returns:
        Whether nothing is.
    """
    return _queue.wait(timeout)


def native_runs_while_compiling(graph: Graph) -> int | None:
    """How many runs of an interval were native while its functions were compiled, so far.

    ``None`` if none was compiled in the background.
    """
    return _queue.runs_meanwhile(subgraph_key(graph)) if len(_native_runs) or _queue else None


def compile_synchronously() -> AbstractContextManager[None]:
    """Inside of the ``with`` block nothing is compiled in the background: runs wait."""
    return _queue.paused()


def disable() -> None:
    """From here on nothing is compiled in the background in this process: runs wait."""
    _queue.stop()


def cancel() -> None:
    """Nothing becomes of what is being compiled in the background, and of what waits."""
    _queue.cancel()
    _native_runs.clear()
    _facts_by_graph.clear()
