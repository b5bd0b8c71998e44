"""A few thousand damaged graph strings in every run of the tests; ``make fuzz`` checks many."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys

import pytest

import paddle_ngraph
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph
from tests.fuzz import graphs


@pytest.mark.slow("draws thousands of damaged strings")
def test_damaged_strings_are_rejected_or_are_graphs() -> None:
    found = graphs.check_many(4000, seed=1)
    assert 200 < found < 3000, "both kinds are drawn"


@pytest.mark.slow("compiles many or large functions")
def test_strings_of_programs_are_graphs() -> None:
    for text in graphs.strings():
        assert graphs.check(text)
        assert Graph.from_string(text).to_string() == text


def test_a_slow_string_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "SECONDS", 0.0)
    with pytest.raises(graphs.Accepted, match="took"):
        graphs.check(graphs.strings()[0])


def test_equal_seeds_damage_equally() -> None:
    one, other = (graphs.damaged(random.Random(3)) for _ in range(2))
    assert one == other


def _with_body(change: str, to: str) -> str:
    header, _, body = graphs.strings()[0].partition("\n")
    assert change in body
    body = body.replace(change, to, 1)
    words = header.split(" ")
    words[2] = hashlib.sha256(body.encode()).hexdigest()
    return f"{' '.join(words)}\n{body}"


@pytest.mark.parametrize(
    ("change", "to", "reason"),
    [
        ('"float32"', '"float33"', "not a dtype"),
        ("[-1,3,8,8]", "[-1,3,8,-8]", "sizes"),
        ("[-1,3,8,8]", f"[-1,3,8,{10**20}]", "fits into memory"),
        ("[-1,3,8,8]", f"[{'1,' * 99}1]", "at most 9 dimensions"),
        ("[-1,3,8,8]", "[-1,3,8,true]", "sizes"),
        ('"inputs":[0', '"inputs":[1000', "is not there"),
        ('"inputs":[0', '"inputs":[-1', "an integer of at least 0"),
        ('"weights"', '"weight"', "lacks or should not have"),
        ('"input":[0]', '"input":[12]', "is not there"),
        ('"out":[2]', '"out":[0]', "computed twice"),
        ('"value_inputs":[]', '"value_inputs":[77]', "beyond"),
        ('"ops":[', '"ops":[' + "[" * 200_000, "malformed"),
        ("{", "", "malformed"),
    ],
)
def test_errors_name_the_fault(change: str, to: str, reason: str) -> None:
    text = _with_body(change, to)
    with pytest.raises(NgraphError, match=reason):
        Graph.from_string(text)
    with pytest.raises(RuntimeError, match=reason):
        paddle_ngraph.NgraphEngine(text)


@pytest.mark.parametrize("word", range(3, 9))
@pytest.mark.parametrize(
    "value", ["-1", "0x1", "", "+1", "18446744073709551616", "1,", "1,1", "999"]
)
def test_counts_agree_with_contents(word: int, value: str) -> None:
    header, _, body = graphs.strings()[0].partition("\n")
    words = header.split(" ")
    words[word] = value
    with pytest.raises(NgraphError, match="the attribute 'graph'"):
        Graph.from_string(f"{' '.join(words)}\n{body}")
    with pytest.raises(RuntimeError, match="the attribute 'graph'"):
        paddle_ngraph.NgraphEngine(f"{' '.join(words)}\n{body}")


def test_bytes_that_are_no_text_are_rejected() -> None:
    data = graphs.strings()[0].encode().replace(b"float32", b"float\xff", 1)
    with pytest.raises(RuntimeError, match="not text"):
        paddle_ngraph.NgraphEngine(data)


_FORGED = """
import hashlib, sys
import numpy as np, paddle, paddle_ngraph
from paddle.base.libpaddle import pir
from paddle_ngraph import _core
from paddle_ngraph.partitioning import program_pass
paddle.enable_static()
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": ""})

def string(build):
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        made = paddle.utils.flatten(build(paddle.static.data("x", [2, 6], "float32")))
        pir.append_shadow_outputs(main, made, len(main.global_block().ops), "read")
    program_pass.apply(main)
    return next(o.attrs()["graph"] for o in main.global_block().ops if "ngraph" in o.name())

build, change, to = eval(sys.argv[1]), sys.argv[2], sys.argv[3]
header, _, body = string(build).partition("\\n")
assert change in body, body
body = body.replace(change, to, 1)
words = header.split(" ")
words[2] = hashlib.sha256(body.encode()).hexdigest()
engine = _core.NgraphEngine(" ".join(words) + "\\n" + body)
_core.fail_at("data")
try:
    engine.run(engine.build_ng_io([np.ones([2, 6], "float32")]))
except Exception as error:
    print("refused:", error)
else:
    print("ran natively")
"""


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize(
    ("build", "change", "to"),
    [
        ("lambda x: paddle.split(x, 3, 1)", '"num":3', '"num":3 '),
        ("lambda x: paddle.split(x, 3, 1)", '"num":3', '"num":-1'),
        ("lambda x: paddle.split(x, 3, 1)", '"num":3', '"num":2'),
        ("lambda x: paddle.exp(x[:, 1:5:2])", '"value":[2]', '"value":[]'),
        ("lambda x: paddle.exp(x[:, 1:5:2])", '"value":[5]', '"value":[5,6]'),
        ("lambda x: paddle.exp(x[:, 1:5:2])", '"axes":[1]', '"axes":[]'),
    ],
)
def test_paddle_checks_the_operators_of_a_graph_from_elsewhere(
    build: str, change: str, to: str
) -> None:
    """The digest matches but the attributes do not: Paddle's kernels would not notice."""
    arguments = [sys.executable, "-W", "ignore", "-c", _FORGED, build, change, to]
    found = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-2000:]
    expected = "ran natively" if to.rstrip() == change else "refused:"
    assert found.stdout.splitlines()[0].startswith(expected), found.stdout
