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
from paddle_ngraph.profiling import node_times
from tests.dynamic import dynamic_mode
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


def test_the_table_has_totals_and_the_measured_peak(profiled) -> None:
    table = profiled.table()
    assert table == str(profiled)
    for text in ("in the block", "engine", "Paddle's operators", "functions", "measured peak"):
        assert text in table
    assert "which no cache gets" in table
    assert set(profiled.totals) == {"engine", "Paddle's operators", "functions"}
    assert 0 < profiled.totals["engine"] < profiled.ns
    assert len(profiled.table(rows=1)) < len(table)
    assert node_times.peak() is node_times.peak()


def test_the_trace_is_in_the_trace_event_format(profiled, tmp_path: Path) -> None:
    """https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"""
    profiled.to_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["displayTimeUnit"] in ("ms", "ns")
    spans = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    for each in spans:
        assert isinstance(each["name"], str) and isinstance(each["cat"], str)
        assert isinstance(each["pid"], int) and isinstance(each["tid"], int)
        assert each["ts"] >= 0 and each["dur"] >= 0
    named = {each["pid"] for each in trace["traceEvents"] if each["ph"] == "M"}
    assert {each["pid"] for each in spans} == named
    engine = [each for each in spans if each["cat"] == "engine"]
    assert len(engine) == sum(len(s.runs) for s in profiled.subgraphs)
    unique = [each for each in spans if each["name"] == "unique"]
    assert len(unique) == 3
    # One timeline: between the first and the last run of the engine, within the block.
    assert engine[0]["ts"] < unique[0]["ts"] < unique[-1]["ts"] < profiled.ns / 1e3
    assert all(
        not (run["ts"] < call["ts"] < run["ts"] + run["dur"]) for run in engine for call in unique
    )


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


def test_other_frontends_are_profiled() -> None:
    with dynamic_mode():
        layer = paddle.nn.Sequential(paddle.nn.Linear(64, 64), paddle.nn.GELU())
        compiled = paddle_ngraph.compile(lambda x: layer(x))
        static = paddle.jit.to_static(layer, full_graph=True)
        for function in (compiled, static):
            with paddle.no_grad(), paddle_ngraph.use_ngraph():
                for _ in range(3):
                    function(paddle.ones([64, 64])).numpy()
                with paddle_ngraph.profile() as p:
                    function(paddle.ones([64, 64])).numpy()
            operators = {
                type for s in p.subgraphs for n in s.function.nodes for type, _ in s.operators(n)
            }
            assert "gelu" in operators, p.table()


def test_one_profile_at_a_time_and_none_is_left_on() -> None:
    inner = paddle_ngraph.profile()
    with paddle_ngraph.profile(nodes=False) as p, pytest.raises(NgraphError, match="one block"):
        inner.__enter__()
    assert p.subgraphs == [] and "0.000 ms  engine" in p.table()
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
    assert other.profiler is not None and p.totals["engine"] > 0 and p.calls == []
    assert "Paddle's operators: not measured, since" in p.table()


def test_a_function_that_cannot_be_measured_leaves_the_other_times() -> None:
    program = Program(network)
    program.run(x=floats(64, 64))
    fails = patch.object(node_times, "measure", side_effect=ValueError("planted"))
    with fails, paddle_ngraph.profile() as p:
        program.run(x=floats(64, 64))
    assert p.subgraphs and p.totals["engine"] > 0
    assert "nodes not measured: ValueError: planted" in p.table()
