"""Every test runs in static mode, with the engine off at first.

The counters are at zero then, and nothing is known of operators that were refused, or of threads
that were in each other's way. What decides by time sees a clock of the tests.
"""

from __future__ import annotations

import gc
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType

import paddle
import pytest

import paddle_ngraph
from benchmarks import report
from paddle_ngraph import _core
from paddle_ngraph.conversion import build, denylist, registry
from paddle_ngraph.conversion.draft import Draft
from paddle_ngraph.frontends.dynamic.lazy import trace_graph
from paddle_ngraph.paddle_private import call_stacks
from paddle_ngraph.utils import clock
from tests import tiers
from tests.clocks import Clock
from tests.dynamic import dynamic_mode


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier", choices=tiers.TIERS, default="all", help="how much to run, see tests/tiers.py"
    )


def pytest_configure() -> None:
    """Tests that ask for many threads mean them on few cores, too."""
    _core.allow_more_threads_than_cores(True)
    _free_call_stacks()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Leaves out what the tier does not run."""
    kept = tiers.selected(items, config.getoption("tier"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def _free_call_stacks() -> None:
    """Paddle never frees the call stack that it asks for with each operator of a program.

    Below pytest that is 10 KB each, gigabytes in the end. Paddle has read it when a thread asks
    for its next one.
    """
    original = traceback.extract_stack
    latest = threading.local()

    def answer(frame: FrameType) -> traceback.StackSummary:
        getattr(latest, "stack", []).clear()
        latest.stack = original(frame)
        return latest.stack

    traceback.extract_stack = call_stacks.intercepting_extract_stack(answer)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names the machine: kernels, and with them roundings and the signs of zeros, differ by it."""
    machine = ", ".join(f"{name} {value}" for name, value in report.environment().items())
    terminalreporter.write_line(machine)


@pytest.fixture(scope="session", autouse=True)
def ticking_clock() -> Iterator[None]:
    """A second passes with each look, however loaded the machine is."""
    with clock.overridden(Clock(tick=1.0)):
        yield


@pytest.fixture(autouse=True)
def static_mode() -> Iterator[None]:
    paddle.enable_static()
    paddle_ngraph.disable()
    paddle_ngraph.reset_stats()
    denylist.clear()
    trace_graph._exclusive_retry_at = 0.0
    yield
    _core.fail_at("")
    paddle_ngraph.disable()


@pytest.fixture
def in_dynamic_mode() -> Iterator[None]:
    with dynamic_mode():
        yield


@pytest.fixture
def native_in_order() -> Iterator[None]:
    """Paddle's own random operators race for the stream unless they run one by one."""
    paddle.set_flags({"FLAGS_new_executor_sequential_run": True})
    yield
    paddle.set_flags({"FLAGS_new_executor_sequential_run": False})


@pytest.fixture
def leave_native() -> Iterator[Callable[..., None]]:
    """Takes types of operators: until the test ends, those stay native."""
    with ExitStack() as stack:
        yield lambda *types: stack.enter_context(registry.without(types))


@pytest.fixture
def small_intervals_pay() -> Iterator[None]:
    """The engine runs whatever it can, and leaves nothing on disk."""
    before = paddle.get_flags(["FLAGS_ngraph_min_interval_us", "FLAGS_ngraph_cache_dir"])
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": ""})
    yield
    paddle.set_flags(before)


@pytest.fixture
def nothing_cached() -> None:
    """The test meets graphs that nothing is known of."""
    paddle_ngraph.clear_cache()


@pytest.fixture
def kinds(nothing_cached: None, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the nodes of all functions that are built, by type: none is there from other tests."""
    counts: Counter[str] = Counter()

    def count(draft: Draft) -> None:
        counts.update(n.get_type_name() for n in draft.model.get_ops())

    spy = build.Pass("count", "what is compiled is counted", count)
    monkeypatch.setattr(build, "PASSES", (*build.PASSES, spy))
    return counts


def _keep_what_there_is() -> None:
    """Whatever is left by now is looked through for garbage no more."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def little_of_other_files() -> None:
    """A process comes to hold hundreds of functions, and millions of objects of Paddle's programs.

    Models collect garbage again and again; it is looked for among what their own file has made.
    """
    paddle_ngraph.clear_cache()
    _keep_what_there_is()


@pytest.fixture
def little_to_collect() -> None:
    """Paddle's SOT collects garbage for each graph; not among what other tests have left."""
    _keep_what_there_is()
