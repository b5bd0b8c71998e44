"""Decisions that depend on time read one clock, which tests set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import paddle_ngraph
from paddle_ngraph.utils import clock
from tests.clocks import Clock

PACKAGE = Path(paddle_ngraph.__file__).parent

# Modules that read another clock, and why no test depends on its value.
OTHER_CLOCKS = {
    "utils/clock.py": "it is the clock",
    # Ranks are processes: waits for them, and times that they exchange.
    "distributed/connections.py": "limits of waits for other processes",
    "distributed/launcher.py": "moments that processes tell each other, and limits of waits",
    "distributed/rendezvous.py": "limits of waits for other processes",
    "distributed/reports.py": "moments that processes tell each other",
    "distributed/store.py": "the limit of a wait for rank 0",
    "distributed/all_reduces.py": "steps of all ranks, by which they choose a way to sum together",
    "distributed/stages.py": "a report, and the limit of a wait",
    "distributed/machines.py": "limits of waits for other machines",
    "core/common/resting_threads.cc": "the limit of a wait for other threads",
    "core/engine/ngraph_engine.cc": "times of fallback runs for background_compile.wants",
    "frontends/executor/calls_in_flight.py": "pauses of a thread that polls for the end of calls",
    "core/engine/function_store.cc": "the time of a build, for a flag",
    "core/engine/events.cc": "times of events, which decide nothing",
    "core/engine/events.h": "the same",
    "core/manylinux/glibc_2_28.cc": "a function of glibc in terms of an older one",
    "core/paddle/call_interception.cc": "the limit of a wait for other threads",
    "core/paddle/phi_kernel.cc": "a counter",
    "core/paddle/data_dependency_engine.cc": "how long a thread looks before it sleeps; a report",
    "mkl_packed/stragglers.cc": "threads that wait for a core; results are the same alone",
    "mkl_packed/stragglers.h": "the same",
    "mkl_packed/packed_gemm.cc": "the provider that auto takes: tests name one",
    "codegen/project/runtime/command_line.cc": "a report",
    "profiling/profile.py": "times that a user asks for, which decide nothing",
}


# The clock for each type of source.
CLOCKS = {
    ".py": re.compile(r"^\s*(import|from)\s.*\btime\b", re.M),
    ".cc": (in_cpp := re.compile(r"\w_clock\b|\bclock_gettime\b|\bgettimeofday\b|rdtsc")),
    ".h": in_cpp,
}


def test_readers_of_other_clocks_are_listed() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*")
        if path.suffix in CLOCKS and CLOCKS[path.suffix].search(path.read_text())
    }
    assert found == set(OTHER_CLOCKS)


def test_the_clock_of_the_tests_advances_with_each_reading() -> None:
    assert clock.now() + 1.0 == clock.now()


def test_a_clock_is_overridden_temporarily() -> None:
    time, before = Clock(), clock.now()
    with pytest.raises(KeyError), clock.overridden(time):
        with clock.overridden(Clock(tick=5.0)):
            assert [clock.now(), clock.now()] == [5.0, 10.0]
        time.advance(0.5)
        assert clock.now() == 0.5
        raise KeyError
    assert clock.now() == before + 1.0


def test_the_own_time_of_a_thread_is_that_of_a_replaced_clock() -> None:
    with clock.overridden(Clock(tick=5.0)):
        assert [clock.own_time(), clock.own_time()] == [5.0, 10.0]


@pytest.mark.parametrize("report", [None, "", "17", "17 unknown 3", "17 2500000000 3"])
def test_the_own_time_leaves_out_waits_for_a_processor(report, monkeypatch, tmp_path) -> None:
    """As far as the system reports them: processor time, time in the queue, and turns."""
    path = tmp_path / "schedstat"
    if report is not None:
        path.write_text(report)
    monkeypatch.setattr(clock, "_QUEUE_REPORT", str(path))
    monkeypatch.setattr(clock, "perf_counter", fake := Clock())
    fake.advance(10.0)
    with clock.overridden(fake):
        assert clock.own_time() == (7.5 if report == "17 2500000000 3" else 10.0)
