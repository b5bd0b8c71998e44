"""Pages of reports: complete, escaped, bounded; drawn by node in place of a browser."""

from __future__ import annotations

import gc
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import NgraphError, flags
from paddle_ngraph.__main__ import main
from paddle_ngraph.ir.reasons import remedy_of
from paddle_ngraph.pages.page import (
    MAX_BOXES,
    MAX_ROWS,
    Bar,
    BarPart,
    Drawing,
    GroupBox,
    OperatorBox,
    Page,
    TextTable,
)
from paddle_ngraph.partitioning import operator_reports, program_pass, report_page
from tests.dynamic import dynamic_mode
from tests.frontends.executor.test_hook import save_model
from tests.programs import Program, floats, parameter

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(1)>",
    "\"' onload=alert(1) x='",
    "]]>&lt;script&gt;",
    "\u2028\u2029\ud800\x00\x1b[31m\u202e",
    "javascript:alert(1)",
]
SCRIPTS = 2  # the data, and the script that draws them


class Elements(HTMLParser):
    """The elements of a page, as a browser finds them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def chain_page(count: int, groups: int = 3) -> Page:
    """A page with a chain of operators, in groups but for every seventh run of ten."""
    operators = []
    for number in range(count):
        is_native = number // 10 % 7 == 0
        group = -1 if is_native or not groups else number % groups
        kind = "native" if is_native else "engine"
        inputs = [i for i in (number - 1, number // 2) if 0 <= i < number]
        details = [("reason", f"reason {number % 5}"), ("line", f"train.py:{number}")]
        operators.append(OperatorBox(f"type{number % 13}", kind, group, inputs, details))
    group_boxes = [GroupBox(f"subgraph {g}", [("threads", "2")]) for g in range(groups)]
    table = TextTable("Operators", ["name"], [[each.name] for each in operators])
    return Page("Chain", ["A chain."], [], [Drawing("block", operators, group_boxes)], [table])


def hostile_page(text: str) -> Page:
    operator = OperatorBox(text, "native", 0, [], [(text, text)])
    return Page(
        text,
        [text],
        [Bar(text, [BarPart("native", 1, text)])],
        [Drawing(text, [operator], [GroupBox(text, [(text, text)])])],
        [TextTable(text, [text], [[text]], text)],
    )


@pytest.mark.pure
@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_a_model_are_only_texts(text: str) -> None:
    plain, found = (Elements(hostile_page(each).html()) for each in ("text", text))
    names = [name for name, _ in found.tags]
    assert names == [name for name, _ in plain.tags] and names.count("script") == SCRIPTS
    attributes = [sorted(attributes) for _, attributes in found.tags]
    assert attributes == [sorted(attributes) for _, attributes in plain.tags]
    html = hostile_page(text).html()
    html.encode("utf-8")
    frame = Elements(hostile_page(text).frame())
    assert [name for name, _ in frame.tags] == ["iframe"]
    assert frame.tags[0][1]["srcdoc"] == html and frame.tags[0][1]["sandbox"] == "allow-scripts"


@pytest.mark.pure
def test_a_page_loads_nothing() -> None:
    html = chain_page(50).html()
    loading = {"src", "href", "srcset", "action", "data", "poster", "background"}
    assert not any(loading & attributes.keys() for _, attributes in Elements(html).tags)
    assert "default-src &#x27;none&#x27;" in html and "@import" not in html
    assert set(re.findall(r"url\([^)]*\)", html)) <= {"url(#arrow)"}
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "Permission is hereby granted" in html  # the licence of the layout library


@pytest.mark.pure
def test_the_size_and_the_work_grow_with_the_operators() -> None:
    def calls(page: Page) -> int:
        count = 0

        def counted(frame: FrameType, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        page.html()  # reads the assets
        sys.setprofile(counted)
        try:
            page.html()
        finally:
            sys.setprofile(None)
        return count

    empty, small, large = (len(chain_page(count).html()) for count in (0, 1500, 3000))
    assert large - empty < 100 * 3000
    assert large - small < 1.1 * (small - len(chain_page(1).html()))
    assert calls(chain_page(3000)) < 2.2 * calls(chain_page(1500))


@pytest.mark.pure
def test_a_graph_too_large_to_draw_is_a_page_that_reads() -> None:
    html = chain_page(MAX_BOXES + 1).html()
    elements = Elements(html)
    assert elements.count("script") == 0
    assert f"block has {MAX_BOXES + 1:,} operators, more than the" in html
    assert elements.count("tr") == MAX_ROWS + 1
    assert f"The first {MAX_ROWS} of {MAX_BOXES + 1:,} rows." in html
    assert len(html) < 100_000


@pytest.mark.pure
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
@pytest.mark.parametrize("groups", [0, 1, 3])
@pytest.mark.parametrize("count", [1, 30, 3000])
def test_a_drawing_opens_part_by_part(tmp_path: Path, count: int, groups: int) -> None:
    file = tmp_path / "page.html"
    file.write_text(chain_page(count, groups).html())
    found = shown_by_node(file, "train.py:0")
    assert found["found"] == "1 found"
    assert found["shown"]["operators"] + found["shown"]["groups"] <= 60
    assert found["opened"]["operators"] == count
    assert found["opened"]["largest"] <= 60  # boxes that are laid out at once
    assert found["opened"]["layouts"] <= 6 + count / 5
    assert found["closed"]["operators"] <= 60


@pytest.mark.pure
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_hostile_texts_are_shown_as_texts(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    for text in HOSTILE:
        file.write_text(hostile_page(text).html())
        assert shown_by_node(file, "none")["texts"]


def shown_by_node(file: Path, search: str) -> dict[str, dict[str, int]]:
    script = Path(__file__).with_name("draw.js")
    ran = subprocess.run(["node", script, file, search], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


# -- reports --------------------------------------------------------------------------------------


def mixed() -> object:
    x = paddle.static.data("x", [64, 64], "float32")
    y = paddle.static.data("<b>y</b>", [64, 64], "float32")
    product = paddle.matmul(x, y)
    return paddle.exp(paddle.erfinv(paddle.tanh(product)) * 0.1)


def test_the_page_of_a_program_has_its_graph_and_reasons() -> None:
    report = paddle_ngraph.explain(Program(mixed).main)
    page = report.page()
    (drawing,) = page.drawings
    names = [each.name for each in drawing.operators]
    assert names[:2] == ["data x", "data <b>y</b>"]
    by_name = {each.name: each for each in drawing.operators}
    assert [names[i] for i in by_name["matmul"].inputs] == names[:2]
    assert by_name["matmul"].kind == "engine" and by_name["erfinv"].kind == "native"
    details = dict(by_name["erfinv"].details)
    assert details["reason"].startswith("no converter")
    assert "adding_an_operator" in details["would convert it"]
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", details["line"])
    flops = {bar.title: {part.name: part.value for part in bar.parts} for bar in page.bars}
    assert flops["Operators"]["native"] == len(report.native)
    assert flops["Estimated FLOPs"]["engine"] >= 2 * 64**3
    html = report.to_html()
    assert "&lt;b&gt;y" in html or "\\u003cb\\u003ey" in html
    assert "<iframe" in report._repr_html_()


def test_each_reason_has_its_remedy() -> None:
    """Reasons come with what would convert the operator."""
    seen = {}
    original = flags.get
    for threshold in (0, 10**9):
        values = {"ngraph_min_interval_us": threshold}
        with patch.object(flags, "get", lambda name: values.get(name, original(name))):  # noqa: B023
            reasons = [op.reason for op in paddle_ngraph.explain(Program(mixed).main).native]
        seen.update((reason, remedy_of(reason)) for reason in reasons)
    small = next(reason for reason in seen if reason.startswith("its interval takes Paddle"))
    assert seen["no converter"].startswith("a converter (")
    assert "FLAGS_ngraph_min_interval_us=0" in seen[small]
    other = remedy_of("its dtype is int8")
    assert other not in seen.values()


def test_the_page_of_a_saved_model_has_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = save_model(tmp_path)
    file = tmp_path / "page.html"
    assert main(["explain", f"{prefix}.json", "--html", str(file)]) == 0
    html = file.read_text()
    assert "Measured native time" in html and "Last runs:" in html and "built" in html
    assert "open it in a browser" in capsys.readouterr().out
    assert main(["explain", f"{prefix}.json", "--html", str(file), "--no-run"]) == 0
    html = file.read_text()
    assert "Measured native time" not in html and "--no-run was given" in html
    sized = ["--no-run", "--shapes", "x=7x4"]
    assert main(["explain", f"{prefix}.json", "--html", str(file), *sized]) == 0
    assert "Estimates take x 7x4." in file.read_text()
    assert (
        main(["explain", f"{prefix}.json", "--html", str(file), "--no-run", "--shapes", "y=7"]) == 2
    )
    assert main(["explain", f"{prefix}.json", "--html", str(tmp_path / "none" / "page.html")]) == 2
    assert main(["explain", f"{prefix}.json", "--no-run"]) == 2
    assert main(["explain", f"{prefix}.json", "--html", str(file), "--shapes", "none=1"]) == 0
    assert "Not measured: none is no input" in file.read_text()


def test_the_page_of_a_compiled_function_has_its_graphs() -> None:
    with dynamic_mode():
        compiled = paddle_ngraph.compile(lambda x: paddle.exp(x) + 1)
        for _ in range(2):
            compiled(paddle.ones([64, 64]))
        report = paddle_ngraph.explain(compiled)
    (drawing,) = report.page().drawings
    assert drawing.title.startswith("graph 0") and "exp" in [o.name for o in drawing.operators]
    assert "1 graphs, 0 breaks." in report.to_html() and "<iframe" in report._repr_html_()


def test_estimates_take_the_given_shapes() -> None:
    """Shapes of results follow from those of feeds, up to one that depends on data."""

    def build() -> object:
        x = paddle.static.data("x", [-1, -1, 8], "float32")
        rows = paddle.nonzero(paddle.concat([paddle.tanh(x) @ parameter(8, 4)] * 2))
        return rows.astype("float32") @ parameter(3, 2)

    program = Program(build).main

    def flops(shapes: dict[str, list[int]]) -> tuple[int, str]:
        page = paddle_ngraph.explain(program, shapes).page()
        of_kind = {bar.title: bar.parts for bar in page.bars}["Estimated FLOPs"]
        return sum(int(part.value) for part in of_kind), " ".join(page.lines)

    unknown = 64 * 3 + 64 * 3 + 2 * 64 * 3 * 2  # nonzero, the cast, and the last product
    for shape in ([2, 3, 8], [5, 1, 8]):
        elements = shape[0] * shape[1]
        found, sentences = flops({"x": shape})
        assert found == elements * (8 + 2 * 8 * 4 + 2 * 4) + unknown
        given = "x".join(map(str, shape))
        assert f"Estimates take x {given}, and 64 for other dynamic dimensions." in sentences
    assert "Estimates take 64 for dynamic dimensions." in flops({})[1]
    for wrong in ({"y": [1]}, {"x": [2, 3, 9]}, {"x": [2, 3]}):
        with pytest.raises(NgraphError, match=r"has the shape|is fed"):
            paddle_ngraph.explain(program, wrong)
    with dynamic_mode():
        compiled = paddle_ngraph.compile(lambda x: paddle.exp(x) + 1)
        compiled(paddle.ones([4]))
        with pytest.raises(NgraphError, match="call the layer"):
            paddle_ngraph.explain(compiled, {"x": [4]})


def test_native_times_count_a_type_on_both_sides_as_both() -> None:
    report = paddle_ngraph.explain(Program(mixed).main)
    times = {"matmul": 3_000_000, "erfinv": 1_000_000, "full": 500}
    page = replace(report, native_times=times).page()
    (bar,) = [bar for bar in page.bars if bar.title == "Measured native time"]
    assert {p.name: p.value for p in bar.parts} == {"engine": 3e6, "both": 0, "native": 1e6}
    assert report_page.page("title", [], []).bars == []


def test_native_times_come_from_a_profile_of_a_native_run() -> None:
    program = Program(mixed)
    feed = {"x": floats(64, 64), "<b>y</b>": floats(64, 64)}
    with paddle_ngraph.profile(nodes=False) as native:
        program.run(engine=False, **feed)
    assert native.operator_times["erfinv"] > 0
    report = paddle_ngraph.explain(program.main)
    (bar,) = [
        b for b in report.page(native.operator_times).bars if b.title == "Measured native time"
    ]
    of_kind = {part.name: part.value for part in bar.parts}
    assert of_kind["native"] == native.operator_times["erfinv"] and of_kind["engine"] > 0
    assert "Measured native time" in report.to_html(native.operator_times)
    assert "Measured native time" not in report.to_html()


def test_reports_read_nothing_of_a_program_that_is_gone() -> None:
    """Operators of a report are made when they are asked for, also after the rewrite."""
    program = Program(mixed)
    rewritten = program.main.clone()
    expected = paddle_ngraph.explain(program.main).page().drawings
    report = program_pass.apply(rewritten)
    del rewritten
    gc.collect()
    (drawing,) = report.page().drawings
    assert [each.name for each in drawing.operators] == [o.name for o in expected[0].operators]
    assert [each.details for each in drawing.operators] == [
        o.details for o in expected[0].operators
    ]
    assert [each.inputs for each in drawing.operators] == [o.inputs for o in expected[0].operators]


def test_the_pass_makes_no_operators_of_reports() -> None:
    with patch.object(operator_reports, "OperatorReport", side_effect=AssertionError("made")):
        report = program_pass.apply(Program(mixed).main.clone())
        assert report.ops_converted > 0
        with pytest.raises(AssertionError, match="made"):
            report.page()
