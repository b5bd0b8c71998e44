"""Every test starts in static mode, with the engine disabled.

Counters are 0 then, and no state remains of rejected operators, of measured builds, or of threads
that competed. Flags that a test has set are restored, and its compile jobs are canceled; a test
fails that has disabled background compilation. Decisions that depend on time read a clock of the
tests.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import paddle
import pytest

import paddle_ngraph
from benchmarks import report
from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import build, denylist, registry
from paddle_ngraph.conversion.draft import Draft
from paddle_ngraph.frontends.dynamic.lazy import trace_graph
from paddle_ngraph.frontends.executor import pass_results
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import clock, first_use
from tests import freed_call_stacks, paddle_lines, tiers
from tests.clocks import Clock
from tests.dynamic import dynamic_mode

SECONDS_FOR_A_BUILD = 120
# What programs of tests have for an operator that no function computes, of which few are left.
STAND_INS = [
    f"pd_op.{name}{end}" for name in ("digamma", "erfinv", "lgamma") for end in ("", "_grad")
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier", choices=tiers.TIERS, default="all", help="how much to run, see tests/tiers.py"
    )


def pytest_configure() -> None:
    """Lets tests run as many threads as they request, on few cores too.

    Tracing and builds of dynamic mode may take any time, also in processes that tests start:
    otherwise the engine would run later on a busy machine. A shell that starts its jobs in the
    background has them ignore SIGINT, which tests raise.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _core.allow_more_threads_than_cores(True)
    unlimited = flags.FLAGS["ngraph_tuning_ms"]
    os.environ[unlimited.key] = "-1"
    flags.set(unlimited.name, -1)
    first_use.begin()  # so that no test depends on the order of the tests
    freed_call_stacks.install()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Deselects tests outside the tier, and skips those that Paddle's line cannot pass."""
    kept = tiers.selected(items, config.getoption("tier"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]
    for item in items:
        if (reason := paddle_lines.reason_against(item.nodeid)) is not None:
            item.add_marker(pytest.mark.skip(reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names the machine, on which kernels, and so roundings and signs of zeros, depend."""
    machine = ", ".join(f"{name} {value}" for name, value in report.environment().items())
    terminalreporter.write_line(machine)


@pytest.fixture(scope="session", autouse=True)
def ticking_clock() -> Iterator[None]:
    """Each reading adds a second, whatever the load of the machine."""
    with clock.overridden(Clock(tick=1.0)):
        yield


@pytest.fixture(scope="session", autouse=True)
def native_stand_ins() -> Iterator[None]:
    with registry.without(STAND_INS):
        yield


@pytest.fixture(autouse=True)
def static_mode() -> Iterator[None]:
    paddle.enable_static()
    paddle_ngraph.disable()
    paddle_ngraph.reset_stats()
    denylist.clear()
    pass_results.clear()
    trace_graph._exclusive_retry_at = 0.0
    background_compile._queue.us_per_operator = SETTINGS.initial_build_us_per_operator
    before = {name: flags.get(name) for name in flags.FLAGS}
    yield
    _core.fail_at("")
    paddle_ngraph.disable()
    for name in flags.FLAGS:
        if flags.get(name) != before[name]:
            flags.set(name, before[name])
    background_compile.cancel()
    assert paddle_ngraph.wait_for_compiles(SECONDS_FOR_A_BUILD), "a compile job does not end"
    assert background_compile._queue.is_accepting(), "later tests could not compile in background"


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
    """Takes operator types, which fall back until the test ends."""
    with ExitStack() as stack:
        yield lambda *types: stack.enter_context(registry.without(types))


@pytest.fixture
def small_intervals_pay() -> Iterator[None]:
    """The engine runs every convertible subgraph, and stores nothing on disk."""
    before = paddle.get_flags(["FLAGS_ngraph_min_interval_us", "FLAGS_ngraph_cache_dir"])
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": ""})
    yield
    paddle.set_flags(before)


@pytest.fixture
def nothing_cached() -> None:
    """Starts the test without cached state of graphs."""
    paddle_ngraph.clear_cache()


@pytest.fixture
def kinds(nothing_cached: None, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the nodes by type in all functions that are built; none is from other tests."""
    counts: Counter[str] = Counter()

    def count(draft: Draft) -> None:
        counts.update(n.get_type_name() for n in draft.model.get_ops())

    spy = build.BuildPass("count", "what is compiled is counted", count)
    monkeypatch.setattr(build, "PASSES", (*build.PASSES, spy))
    return counts


def freeze_objects() -> None:
    """Excludes all present objects from garbage collection.

    Except those of a failed test, which pytest keeps until the next call: as part of a cycle, they
    would live until the end of the process, and a writer of weights among them would forbid
    functions to read weights in place.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def little_of_other_files() -> None:
    """Limits garbage collection to objects of the test file.

    A process accumulates hundreds of functions, and millions of objects of Paddle's programs, while
    tests of models collect garbage again and again.
    """
    paddle_ngraph.clear_cache()
    freeze_objects()


@pytest.fixture
def little_to_collect() -> None:
    """Limits collections to new objects, since Paddle's SOT collects garbage for each graph."""
    freeze_objects()
