"""``paddle_ngraph.profile()``: nodes with operators and lines, calls of Paddle, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import NgraphError, _core, flags
from paddle_ngraph.conversion import disk_cache
from paddle_ngraph.profiling import node_times, pictures, profile, timeline, work
from tests import kernel_call_programs
from tests.programs import Program, floats, parameter


def line_of(text: str) -> str:
    """File and line of this file with a text that occurs in it once, as a comment."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return f"{__file__}:{number}"


def network() -> object:
    x = paddle.static.data("x", [64, 64], "float32")
    product = paddle.matmul(x, parameter(64, 64))  # the product
    values = paddle.unique(paddle.round(product))  # the fallback
    return paddle.nn.functional.softmax(paddle.matmul(product, x)), paddle.sum(values)


_first: list[Any] = []


@pytest.fixture
def profiled() -> Any:
    """A profile of three runs of a program, of which functions exist; the same for all tests."""
    if not _first:
        program = Program(network)
        program.run(x=floats(64, 64))
        with paddle_ngraph.profile() as p:
            for _ in range(3):
                program.run(x=floats(64, 64))
        _first.append(p)
    return _first[0]


def test_a_node_has_its_operators_and_their_lines(profiled) -> None:
    for subgraph in profiled.subgraphs:
        assert subgraph.function.why_unmeasured == ""
        assert len(subgraph.runs) == 3 and subgraph.ns > 0
    found = [
        operator
        for s in profiled.subgraphs
        for n in s.function.nodes
        for operator in s.operators(n)
    ]
    assert ("matmul", line_of("the product")) in found
    types = {type for type, _ in found}
    assert {"matmul", "softmax"} <= types
    computed = {op.type.removeprefix("pd_op.") for s in profiled.subgraphs for op in s.graph.ops}
    assert types <= computed
    flops = sum(n.num_flops for s in profiled.subgraphs for n in s.function.nodes)
    assert flops >= 2 * 2 * 64**3


def test_the_calls_of_paddle_between_are_listed_with_their_lines(profiled) -> None:
    assert [call.type for call in profiled.calls].count("unique") == 3
    (row,) = [row for row in profiled.table().splitlines() if " unique x3" in row]
    assert row.endswith(line_of("the fallback"))
    assert not any("ngraph_engine" in call.type for call in profiled.calls)


KINDS = [
    *("compute", "copies", "optimizer updates", "random numbers", "waits", "other work of runs"),
    *("convert", "compile", "other work of builds", "Paddle's operators"),
]


def test_the_table_has_totals_and_the_measured_peak(profiled) -> None:
    table = profiled.table()
    assert table == str(profiled)
    for text in ("in the block", *KINDS, "measured peak"):
        assert text in table
    assert "which no cache gets" in table
    assert list(profiled.totals) == KINDS
    assert 0 < profiled.totals["compute"] < profiled.ns
    assert profiled.totals["compile"] == profiled.totals["waits"] == 0  # functions existed
    assert len(profiled.table(rows=1)) < len(table)
    assert node_times.peak() is node_times.peak()


def test_the_work_of_subgraphs_adds_up_to_their_runs_and_to_the_totals(profiled) -> None:
    for subgraph in profiled.subgraphs:
        assert sum(subgraph.work.values()) == pytest.approx(subgraph.ns, abs=1e5)
    for kind in work.IN_RUNS:
        assert sum(s.work[kind] for s in profiled.subgraphs) == profiled.totals[kind]


def test_builds_are_conversion_and_compilation_for_which_a_run_waits() -> None:
    program = Program(lambda: paddle.tanh(paddle.static.data("x", [3, 7], "float32") * 3.25))
    before = flags.get("ngraph_background_compile"), flags.get("ngraph_cache_dir")
    flags.set("ngraph_background_compile", "0")
    flags.set("ngraph_cache_dir", "")
    try:
        with paddle_ngraph.profile(nodes=False) as p:
            program.run(x=floats(3, 7))
    finally:
        flags.set("ngraph_background_compile", before[0])
        flags.set("ngraph_cache_dir", before[1])
    assert p.totals["convert"] > 0 and p.totals["compile"] > 0
    assert 0 <= p.totals["other work of builds"] < p.totals["convert"] + p.totals["compile"]
    (run,) = [event for event in p.events if event.outcome == "engine"]
    (built,) = [event for event in p.events if event.outcome == "function"]
    # In another thread while the run waits, or in its own thread.
    assert p.totals["waits"] > 0 if built.thread != run.thread else built.ns < run.ns
    assert p.totals["other work of runs"] < run.ns - built.ns


def test_copies_random_numbers_and_updates_are_apart_from_the_computation() -> None:
    def trained() -> object:
        x = paddle.static.data("x", [32, 16], "float32")
        hidden = paddle.nn.BatchNorm1D(16)(paddle.matmul(x, parameter(16, 16)))
        loss = paddle.mean(paddle.nn.functional.dropout(hidden, 0.3) ** 2)
        paddle.optimizer.Adam(0.01).minimize(loss)
        return loss

    program = Program(trained)
    program.run(x=floats(32, 16))
    with paddle_ngraph.profile(nodes=False) as p:
        program.run(x=floats(32, 16))
    for kind in ("compute", "copies", "optimizer updates", "random numbers"):
        assert p.totals[kind] > 0, p.table()


# What the format requires of an event by phase: names and types of fields.
# https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
NUMBER = (int, float)
FIELDS: dict[str, dict[str, Any]] = {
    "X": {
        "name": str,
        "cat": str,
        "ph": str,
        "pid": int,
        "tid": int,
        "ts": NUMBER,
        "dur": NUMBER,
        "args": dict,
    },
    "M": {"name": str, "ph": str, "pid": int, "tid": int, "args": dict},
}
METADATA = {
    "process_name",
    "process_labels",
    "process_sort_index",
    "thread_name",
    "thread_sort_index",
}


def valid_trace(path: Path) -> list[dict[str, Any]]:
    """The complete events of a trace that is valid by the format, and whose spans are nested."""
    trace = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for each in trace["traceEvents"]:
        fields = FIELDS[each["ph"]]
        assert set(each) == set(fields)
        for name, type in fields.items():
            assert isinstance(each[name], type) and not isinstance(each[name], bool), each
        if each["ph"] == "M":
            assert each["name"] in METADATA and isinstance(each["args"]["name"], str)
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    spans = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    assert {(each["pid"], each["tid"]) for each in spans} == named
    around: dict[tuple[int, int], list[float]] = {}
    for each in spans:
        assert each["ts"] >= 0 and each["dur"] >= 0
        ends, end = around.setdefault((each["pid"], each["tid"]), []), each["ts"] + each["dur"]
        while ends and ends[-1] <= each["ts"]:
            ends.pop()
        assert not ends or end <= ends[-1] + 1e-3, each  # microseconds
        ends.append(end)
    return spans


def test_the_trace_is_in_the_trace_event_format(profiled, tmp_path: Path) -> None:
    profiled.to_chrome_trace(tmp_path / "trace.json")
    spans = valid_trace(tmp_path / "trace.json")
    engine = [each for each in spans if each["cat"] == "engine"]
    assert len(engine) == sum(len(s.runs) for s in profiled.subgraphs)
    assert any("matmul" in each["args"]["operators"] for each in engine)
    unique = [e for e in spans if e["name"].endswith("unique") and e["cat"] == "Operator"]
    unique.sort(key=lambda event: event["ts"])  # Paddle lists them by thread
    assert len(unique) == 3
    # One timeline: between the first and the last run of the engine, within the block.
    first, last = min(e["ts"] for e in engine), max(e["ts"] + e["dur"] for e in engine)
    assert first < unique[0]["ts"] < unique[-1]["ts"] < last <= first + profiled.ns / 1e3
    assert all(
        not (run["ts"] < call["ts"] < run["ts"] + run["dur"]) for run in engine for call in unique
    )
    computed = [each for each in spans if each["name"] == "compute"]
    assert len(computed) >= len(engine)


def test_the_trace_is_joined_with_the_timeline_of_paddle(tmp_path: Path) -> None:
    program = Program(network)
    program.run(x=floats(64, 64))
    with paddle_ngraph.profile(nodes=False) as p, paddle.profiler.RecordEvent("my step"):
        program.run(x=floats(64, 64))
    p.to_chrome_trace(tmp_path / "trace.json")
    assert "my step" in {each["name"] for each in valid_trace(tmp_path / "trace.json")}
    own = paddle.profiler.Profiler(
        targets=[paddle.profiler.ProfilerTarget.CPU], on_trace_ready=lambda _: None
    )
    with own, paddle_ngraph.profile(nodes=False) as p, paddle.profiler.RecordEvent("another step"):
        program.run(x=floats(64, 64))
    assert p.why_no_calls
    with pytest.raises(NgraphError, match="recorded nothing"):
        p.to_chrome_trace(tmp_path / "trace.json", object())
    p.to_chrome_trace(tmp_path / "trace.json", own)
    spans = valid_trace(tmp_path / "trace.json")
    (step,) = [each for each in spans if each["name"] == "another step"]
    runs = [each for each in spans if each["cat"] == "engine"]
    assert runs and all(step["ts"] < e["ts"] < step["ts"] + step["dur"] for e in runs)


def test_the_roofline_has_a_circle_for_each_node_that_computes(profiled, tmp_path: Path) -> None:
    profiled.roofline(tmp_path / "roofline.svg")
    root = ElementTree.parse(tmp_path / "roofline.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    nodes = [n for s in profiled.subgraphs for n in s.function.nodes]
    # The plugin counts whole microseconds: a node of none has no speed.
    nodes = [n for n in nodes if n.num_flops and n.num_bytes and n.ns]
    circles = list(root.iter(f"{svg}circle"))
    assert len(circles) == len(nodes) > 0
    words = [circle.find(f"{svg}title").text for circle in circles]
    assert any("matmul" in each and "GFLOP/s" in each and "GB/s" in each for each in words)
    peak = node_times.peak()
    texts = {each.text for each in root.iter(f"{svg}text")}
    assert {f"{peak.flops_per_ns:.1f} GFLOP/s", f"{peak.bytes_per_ns:.1f} GB/s"} <= texts
    inside = [(float(c.get("cx")), float(c.get("cy"))) for c in circles]
    assert all(0 < x < 900 and 0 < y < 560 for x, y in inside)


@pytest.mark.pure
@pytest.mark.parametrize("speeds", [[], [(1e-6, 1e-6)], [(1e3, 1e-4), (1e-4, 1e3)], [(0.0, 1.0)]])
def test_a_roofline_may_have_any_speeds(speeds) -> None:
    points = [pictures.Point("<x>", 1e6, *each) for each in speeds]
    root = ElementTree.fromstring(pictures.roofline("any", points, node_times.Peak(100.0, 10.0)))
    for each in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 < float(each.get("cx")) < 900 and 0 < float(each.get("cy")) < 560


def test_a_profile_shows_that_events_were_lost(profiled, monkeypatch) -> None:
    assert "profile a shorter block" not in profiled.table()
    monkeypatch.setattr(profile, "MAX_EVENTS", len(profiled.events))
    assert "profile a shorter block" in profiled.table()


@pytest.mark.pure
def test_spans_that_end_a_little_late_are_nested() -> None:
    spans = [
        timeline.TimelineSpan("outer", "a", 1, 0, 100),
        timeline.TimelineSpan("inner", "a", 1, 50, 51),
        timeline.TimelineSpan("other row", "a", 2, 50, 500),
    ]
    events = json.loads(timeline.trace([("group", spans)]))["traceEvents"]
    assert [each["dur"] for each in events if each["ph"] == "X"] == [0.1, 0.05, 0.5]


def test_the_picture_is_svg(profiled, tmp_path: Path) -> None:
    profiled.plot(tmp_path / "profile.svg")
    root = ElementTree.parse(tmp_path / "profile.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert any("unique" in (each.text or "") for each in root.iter())
    with pytest.raises(NgraphError, match="No such file"):
        profiled.plot(tmp_path / "none" / "profile.svg")


def test_its_functions_are_stored_nowhere(tmp_path: Path) -> None:
    program = Program(network)
    before = flags.get("ngraph_cache_dir")
    flags.set("ngraph_cache_dir", str(tmp_path))
    try:
        program.run(x=floats(64, 64))
        files, info = disk_cache.files(), paddle_ngraph.cache_info()
        built = paddle_ngraph.stats()["functions_built"]
        with paddle_ngraph.profile() as p:
            program.run(x=floats(64, 64))
        assert any(s.function.nodes for s in p.subgraphs)
        assert disk_cache.files() == files
        assert paddle_ngraph.cache_info().currsize == info.currsize
        assert paddle_ngraph.stats()["functions_built"] == built
    finally:
        flags.set("ngraph_cache_dir", before)


def test_results_and_states_are_those_without_a_profile() -> None:
    def trained() -> object:
        x = paddle.static.data("x", [32, 16], "float32")
        loss = paddle.mean(paddle.matmul(x, parameter(16, 16)) ** 2)
        paddle.optimizer.Adam(0.01).minimize(loss)
        return loss

    losses = []
    for is_profiled in (False, True):
        program = Program(trained)
        program.run(x=floats(32, 16))
        if is_profiled:
            with paddle_ngraph.profile() as p:
                found = [program.run(x=floats(32, 16)) for _ in range(3)]
            assert p.subgraphs and all(s.function.nodes for s in p.subgraphs), p.table()
        else:
            found = [program.run(x=floats(32, 16)) for _ in range(3)]
        losses.append(found)
    np.testing.assert_array_equal(*(np.array(each) for each in losses))


def test_one_profile_at_a_time_and_none_is_left_on() -> None:
    inner = paddle_ngraph.profile()
    with paddle_ngraph.profile(nodes=False) as p, pytest.raises(NgraphError, match="one block"):
        inner.__enter__()
    assert p.subgraphs == [] and "0.000 ms  compute" in p.table()
    with pytest.raises(ZeroDivisionError), paddle_ngraph.profile():
        raise ZeroDivisionError
    with patch.object(_core, "set_profile") as switched, paddle_ngraph.profile(nodes=False):
        pass
    assert [call.args[0] == 0 for call in switched.call_args_list] == [False, True]


def test_another_profiler_of_paddle_leaves_the_other_times() -> None:
    program = Program(network)
    program.run(x=floats(64, 64))
    other = paddle.profiler.Profiler(targets=[paddle.profiler.ProfilerTarget.CPU])
    with paddle_ngraph.profile(nodes=False) as p:
        program.run(x=floats(64, 64))
    assert other.profiler is not None and p.totals["compute"] > 0 and p.calls == []
    assert "Paddle's operators: not measured, since" in p.table()


def test_a_function_that_cannot_be_measured_leaves_the_other_times() -> None:
    program = Program(network)
    program.run(x=floats(64, 64))
    fails = patch.object(node_times, "measure", side_effect=ValueError("planted"))
    with fails, paddle_ngraph.profile() as p:
        program.run(x=floats(64, 64))
    assert p.subgraphs and p.totals["compute"] > 0
    assert "nodes not measured: ValueError: planted" in p.table()


def spectrum() -> object:
    return paddle.fft.rfft(paddle.static.data("x", [64, 64], "float32") * 2.0).abs()


def wide_numbers() -> object:
    x = paddle.static.data("x", [64, 64], "float64") * 2.0
    return paddle.tanh(x.astype("float32"))


def truths() -> object:
    return paddle.logical_not(paddle.static.data("x", [64, 64], "bool"))


@pytest.mark.parametrize(
    ("build", "dtype", "types"),
    [
        (spectrum, "float32", {"scale", "fft_r2c", "abs"}),
        (wide_numbers, "float64", {"scale", "cast", "tanh"}),
        (truths, "bool", {"logical_not"}),
    ],
)
def test_tensors_that_functions_pass_as_bytes(build: Any, dtype: str, types: set[str]) -> None:
    program = Program(build)
    size = 64
    x = (10 * floats(size, size) > 5) if dtype == "bool" else floats(size, size).astype(dtype)
    with kernel_call_programs.kernels_called():
        program.both(x=x)
        with paddle_ngraph.profile() as p:
            program.run(x=x)
    (subgraph,) = p.subgraphs
    assert subgraph.function.why_unmeasured == ""
    found = {type for node in subgraph.function.nodes for type, _ in subgraph.operators(node)}
    assert found == types
