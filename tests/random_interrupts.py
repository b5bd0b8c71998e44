"""Random interrupts of frontends that create programs and compile functions.

python -m tests.random_interrupts --count 5000 --seed 1

Each interruption has a number, from which everything about it is sampled: the frontend, the moment,
the type, and the surroundings. Half of the moments are counted: the n-th call or return of a
function, in Python or C, as a profiler sees them, so that a number meets the same one again. The
others are times. Afterwards each exception has been raised once, modes, default programs and
handlers are as before, and the next runs compute the native results by the engine.

Numbers that have passed are stored in a file (``--state``), and not repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
NUMBERS_OF_WORKER = 20  # a new process then: Paddle retains memory of each program
LIMIT = 120  # seconds: an interruption that takes longer hangs
RUNS = 3  # the first records, the second creates the programs of a compiled layer
OUTSIDE = 1000  # instructions after a run, where what is late is raised


class Interruption(Exception):
    """An exception of the types that failures of builds have."""


class Stop(BaseException):
    """An exception that is no error."""


RAISED = (Interruption, Stop, KeyboardInterrupt, SystemExit)


# -- types of interruptions -----------------------------------------------------------------------


class Kind:
    """A type of interruption.

    Args:
        act: Interrupts the thread with this identifier.
        expected: The exception that the thread gets; ``None`` if none.
    """

    def __init__(self, act: Callable[[int], None], expected: type[BaseException] | None) -> None:
        self.act, self.expected = act, expected


calls_of_handlers: list[int] = []


def note(number: int, _: FrameType | None) -> None:
    calls_of_handlers.append(number)


def raising(error: type[BaseException]) -> Callable[[int, FrameType | None], None]:
    def handle(*_: object) -> None:
        raise error

    return handle


HANDLERS = {
    signal.SIGALRM: raising(Interruption),
    signal.SIGTERM: raising(SystemExit),
    signal.SIGUSR1: note,
    signal.SIGUSR2: raising(Stop),
    signal.SIGINT: signal.default_int_handler,
}


def by_signal(number: signal.Signals, expected: type[BaseException] | None) -> Kind:
    main = threading.main_thread().ident
    assert main is not None
    return Kind(lambda _: signal.pthread_kill(main, number), expected)


def set_exception(error: type[BaseException], thread: int) -> None:
    set_ = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert set_(ctypes.c_ulong(thread), ctypes.py_object(error)) == 1


def interrupt_main(_: int) -> None:
    import _thread

    _thread.interrupt_main()


class Raising:
    """An object whose finalizer raises, in a cycle that only the collector frees."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        raise Interruption


class Referent:
    pass


def finalize(_: int) -> None:
    Raising()
    gc.collect()


def call_back(_: int) -> None:
    referent = Referent()
    kept = weakref.ref(referent, raising(Interruption))
    del referent
    assert kept() is None


def collect(_: int) -> None:
    callback = raising(Interruption)
    gc.callbacks.append(callback)
    gc.collect()
    gc.callbacks.remove(callback)


def dump(_: int) -> None:
    """Has faulthandler's own thread, which has no GIL, read the frames of all threads."""
    with open(os.devnull, "w") as file:
        faulthandler.dump_traceback_later(0.001, file=file)
        time.sleep(0.01)
        faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(LIMIT, exit=True)


def fork(_: int) -> None:
    """Forks in another thread; the child computes, and its exit status is checked later."""
    thread = threading.Thread(target=_fork)
    thread.start()
    thread.join()


children: list[int] = []


def _fork() -> None:
    sys.setprofile(None)
    child = os.fork()
    if child == 0:
        os._exit(_compute())
    children.append(child)


def _compute() -> int:
    """Computes in a child; returns its exit status."""
    import paddle

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    paddle.disable_static()
    product = paddle.ones([2, 3]) @ paddle.ones([3, 2])
    return 0 if gc.isenabled() and float(product.sum()) == 12 else 3


KINDS: dict[str, Callable[[], Kind]] = {
    "INT": lambda: by_signal(signal.SIGINT, KeyboardInterrupt),
    "ALRM": lambda: by_signal(signal.SIGALRM, Interruption),
    "TERM": lambda: by_signal(signal.SIGTERM, SystemExit),
    "USR1": lambda: by_signal(signal.SIGUSR1, None),
    "USR2": lambda: by_signal(signal.SIGUSR2, Stop),
    "SetAsyncExc, error": lambda: Kind(partial(set_exception, Interruption), Interruption),
    "SetAsyncExc": lambda: Kind(partial(set_exception, Stop), Stop),
    "interrupt_main": lambda: Kind(interrupt_main, KeyboardInterrupt),
    "finalizer": lambda: Kind(finalize, None),
    "weakref": lambda: Kind(call_back, None),
    "gc": lambda: Kind(collect, None),
    "fork": lambda: Kind(fork, None),
    "faulthandler": lambda: Kind(dump, None),
}
# Types that interrupt any thread, not only the main one.
OF_ANY_THREAD = (
    *("SetAsyncExc, error", "SetAsyncExc", "finalizer", "weakref", "gc", "fork"),
    "faulthandler",
)
# Names of frontends that run in dynamic mode begin with these words.
DYNAMIC = ("compile", "to_static", "layer")
# Plain layers, of which the package measures whether the engine is faster, and the argument of
# ``enable``.
HOOKED: dict[str, Any] = {"layer": True, "layer, training": "training"}
SURROUNDINGS = ("main", "main", "main", "asyncio", "thread", "asyncio.run", "Jupyter")


# -- moments --------------------------------------------------------------------------------------


class Probe:
    """Counts the events of this thread, and acts at one of them.

    Args:
        at: The event, from 1; 0: only counts.
        at_borders: Counts only events at the borders between the package, its core and Paddle.
    """

    def __init__(self, at: int, at_borders: bool, act: Callable[[], None]) -> None:
        self.count, self._at, self._at_borders, self._act = 0, at, at_borders, act

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._at_borders and not self._is_border(frame, event, argument):
            return
        self.count += 1
        if self.count == self._at:
            sys.setprofile(None)
            self._act()

    def _is_border(self, frame: FrameType, event: str, argument: Any) -> bool:
        if event in ("c_call", "c_return"):
            return _is_compiled(getattr(argument, "__module__", None) or "", argument)
        caller = frame.f_back
        return caller is not None and _part(frame) != _part(caller)


def _is_compiled(module: str, function: Any) -> bool:
    owner = type(getattr(function, "__self__", None)).__module__
    return any("_core" in name or "libpaddle" in name for name in (module, owner))


def _part(frame: FrameType) -> str:
    file = frame.f_code.co_filename
    return next((part for part in ("/paddle_ngraph/", "/paddle/") if part in file), "")


# -- one interruption -----------------------------------------------------------------------------


def state() -> list[Any]:
    """The state of the process that no interruption may change."""
    import paddle

    from paddle_ngraph.paddle_private.names import set_frame_callback

    callback = set_frame_callback(None)
    set_frame_callback(callback)
    return [
        paddle.in_dynamic_mode(),
        paddle.is_grad_enabled(),
        paddle.static.default_main_program(),
        paddle.static.default_startup_program(),
        {number: signal.getsignal(number) for number in signal.valid_signals()},
        traceback.extract_stack,
        gc.isenabled(),
        sys.getswitchinterval(),
        callback,
        threading.main_thread(),
    ]


def outside() -> None:
    for _ in range(OUTSIDE):
        pass


@contextmanager
def cell_of_kernel() -> Iterator[None]:
    """Handles Ctrl-C as Jupyter's kernel: by Python's handler in a cell, and not at all outside."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGINT, before)


class Trial:
    """One interruption, sampled from its number."""

    def __init__(self, seed: int, number: int, runners: dict[str, Any]) -> None:
        draw = random.Random(f"{seed} {number}")
        self.frontend = draw.choice(sorted(runners))
        self.surroundings = draw.choice(SURROUNDINGS)
        names = OF_ANY_THREAD if self.surroundings == "thread" else tuple(KINDS)
        self.kind_name = draw.choice(names)
        self.is_counted = draw.random() < 0.5
        self.at_borders = draw.random() < 0.7
        self.position = draw.random()
        self._make = runners[self.frontend]
        self._runs_of_trial = 40 if self.frontend in HOOKED else RUNS
        self._thread = 0
        self.raised: list[BaseException] = []
        self.has_struck = False

    def __str__(self) -> str:
        moment = "a border" if self.at_borders else "an event"
        moment = (
            f"{moment}, {self.position:.4f}" if self.is_counted else f"time {self.position:.4f}"
        )
        return f"{self.frontend}; {self.kind_name}; {self.surroundings}; {moment}"

    def check(self) -> bool:
        """Returns whether it was interrupted; raises AssertionError for a fault."""
        import paddle

        try:
            return self._check()
        finally:
            paddle.enable_static()

    def _enable(self) -> None:
        import paddle_ngraph

        paddle_ngraph.enable(dynamic=HOOKED.get(self.frontend, False))

    def _made(self) -> Callable[[], Any]:
        """The runner, in the mode in which it runs."""
        import paddle

        made: Callable[[], Any] = self._make()
        if self.frontend.startswith(DYNAMIC):
            # Paddle's own switch of modes may be interrupted in the middle, natively too.
            paddle.disable_static()
        return made

    def _check(self) -> bool:
        import paddle_ngraph
        from paddle_ngraph.conversion import denylist
        from tests.signal_cases import assert_close

        paddle_ngraph.disable()
        run = self._made()
        self._native = run()
        self._enable()
        self._kind = KINDS[self.kind_name]()
        events, seconds = self._measured()
        paddle_ngraph.clear_cache()
        paddle_ngraph.disable()
        run = self._made()
        run()
        self._enable()
        before = state()
        self._run_interrupted(run, 1 + int(self.position * events), self.position * seconds)
        assert state() == before, f"before and after: {before} {state()}"
        self._check_raised()
        denied = denylist.count()
        runs = paddle_ngraph.stats()["engine_runs"]
        for _ in range(RUNS):
            assert_close(run(), self._native)
        if self.frontend not in HOOKED:
            assert paddle_ngraph.stats()["engine_runs"] > runs, "the engine does not run"
        assert denied == 0, "a subgraph is denied"
        for child in children:
            assert os.waitpid(child, 0)[1] == 0, "the child failed"
        children.clear()
        return self.has_struck

    def _measured(self) -> tuple[int, float]:
        """The number of events and the seconds of undisturbed runs."""
        import paddle_ngraph

        key = (self.frontend, self.is_counted and self.at_borders, self.is_counted)
        if key not in _known:
            paddle_ngraph.clear_cache()
            run = self._made()
            probe = Probe(0, self.at_borders, lambda: None)
            start = time.perf_counter()
            if self.is_counted:
                sys.setprofile(probe)
            for _ in range(self._runs_of_trial):
                run()
            sys.setprofile(None)
            _known[key] = probe.count, time.perf_counter() - start
        return _known[key]

    def _run_interrupted(self, run: Callable[[], Any], event: int, delay: float) -> None:
        runs = partial(self._runs, run, event, delay)
        if self.surroundings == "main":
            runs()
        elif self.surroundings == "thread":
            thread = threading.Thread(target=runs)
            thread.start()
            thread.join()
        elif self.surroundings == "asyncio.run":
            # Its own handler of Ctrl-C cancels the task, which ends at its next await.
            self._attempt(lambda: asyncio.run(self._in_loop(runs, pauses=True)))
        else:
            loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(self._in_loop(runs, pauses=False))
            finally:
                loop.close()

    async def _in_loop(self, runs: Callable[[], None], pauses: bool) -> None:
        if self.surroundings == "Jupyter":
            with cell_of_kernel():
                runs()
        else:
            runs()
        if pauses:
            await asyncio.sleep(0)

    def _runs(self, run: Callable[[], Any], event: int, delay: float) -> None:
        from tests.signal_cases import assert_close

        self._thread = threading.get_ident()
        timer = threading.Timer(delay, self._strike)
        probe = Probe(event, self.at_borders, self._strike)
        if not self.is_counted:
            self._attempt(timer.start)
        for _ in range(self._runs_of_trial):
            try:
                if self.is_counted and not self.has_struck:
                    sys.setprofile(probe)
                results = run()
                sys.setprofile(None)
                outside()
                assert_close(results, self._native)
            except RAISED as error:
                self.raised.append(error)
            finally:
                sys.setprofile(None)
        while timer.is_alive():
            self._attempt(timer.join)
        self._attempt(outside)

    def _attempt(self, act: Callable[[], object]) -> None:
        try:
            act()
        except RAISED as error:
            self.raised.append(error)

    def _strike(self) -> None:
        self.has_struck = True
        self._kind.act(self._thread)

    def _check_raised(self) -> None:
        found = [type(error) for error in self.raised]
        expected = [self._kind.expected] if self.has_struck and self._kind.expected else []
        assert found == expected, f"raised {found}, not {expected}; unraisable: {unraisable}"
        is_noted = self.kind_name == "USR1" and self.has_struck
        assert calls_of_handlers == [signal.SIGUSR1] * is_noted, calls_of_handlers


_known: dict[Any, tuple[int, float]] = {}
unraisable: list[str] = []


def work(seed: int, numbers: list[int]) -> None:
    """Checks interruptions, and writes a line for each."""
    import paddle

    from paddle_ngraph import flags
    from tests import signal_cases

    sys.unraisablehook = lambda found: unraisable.append(repr(found.exc_value or found.exc_type))
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)
    paddle.enable_static()
    flags.set("ngraph_min_interval_us", 0)
    flags.set("ngraph_cache_dir", "")
    layers: dict[str, Any] = {
        name: partial(signal_cases.dynamic, lambda layer: layer, how == "training")
        for name, how in HOOKED.items()
    }
    with signal_cases.cores_of_plans(2):
        for number in numbers:
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            trial = Trial(seed, number, {**signal_cases.RUNNERS, **layers})
            print(json.dumps({"number": number, "of": str(trial)}), flush=True)
            unraisable.clear()
            calls_of_handlers.clear()
            try:
                fault, is_met = "", trial.check()
            except BaseException:
                fault, is_met = traceback.format_exc(), True
            print(json.dumps({"number": number, "met": is_met, "fault": fault}), flush=True)
            if fault:  # the state of the process is unknown
                break
    os._exit(0)


# -- all of them ----------------------------------------------------------------------------------


class State:
    """The numbers that have passed, with whether they were met, by seed, in a file."""

    def __init__(self, file: Path, seed: int) -> None:
        self._file, self._seed = file, str(seed)
        self._all: dict[str, dict[str, bool]] = (
            json.loads(file.read_text()) if file.exists() else {}
        )
        self.passed = self._all.setdefault(self._seed, {})
        self._lock = threading.Lock()

    def add(self, number: int, is_met: bool) -> None:
        with self._lock:
            self.passed[str(number)] = is_met
            new = self._file.with_suffix(".new")
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(self._all))
            new.replace(self._file)


def check(state: State, seed: int, numbers: list[int]) -> list[str]:
    """Checks interruptions in processes of their own; returns the faults."""
    faults = []
    while numbers:
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.random_interrupts",
            "--seed",
            str(seed),
        ]
        done = subprocess.run(
            [*command, "--work", *map(str, numbers)],
            cwd=ROOT,
            env={"GLOG_minloglevel": "3", **os.environ},
            capture_output=True,
            text=True,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        results = {line["number"]: line for line in lines if "fault" in line}
        for number, line in results.items():
            if not line["fault"]:
                state.add(number, line["met"])
        begun = [line for line in lines if "of" in line]
        failed = [line for line in begun if results.get(line["number"], {}).get("fault", "crash")]
        for line in failed:
            text = results.get(line["number"], {}).get("fault") or done.stderr[-3000:]
            faults.append(f"{line['number']} ({line['of']}): rc {done.returncode}\n{text}")
            print(faults[-1], flush=True)
        if not begun:
            faults.append(done.stderr[-3000:])
            print(faults[-1], flush=True)
            break
        numbers = numbers[len(begun) :]
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description="Interrupts runs at random.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="one number, even if it has passed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "interruptions.json")
    parser.add_argument("--work", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.seed, options.work)
    state = State(options.state, options.seed)
    numbers = [n for n in range(options.count) if str(n) not in state.passed]
    if options.only is not None:
        numbers = [options.only]
    shares = [
        numbers[at : at + NUMBERS_OF_WORKER] for at in range(0, len(numbers), NUMBERS_OF_WORKER)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = pool.map(partial(check, state, options.seed), shares)
        faults = [fault for share in found for fault in share]
    met = sum(state.passed.values())
    print(f"{len(state.passed)} passed, of which {met} were interrupted; {len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
