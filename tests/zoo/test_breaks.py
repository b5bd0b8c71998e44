"""The count of what ends traces."""

from __future__ import annotations

import json

import pytest

import paddle_ngraph
from tests.dynamic import floats
from tests.zoo import breaks


@pytest.mark.usefixtures("in_dynamic_mode")
def test_reasons_of_all_that_is_compiled_are_counted_by_line():
    def run():
        looks = paddle_ngraph.compile(lambda x: x * float(x.mean()) + 1.0)
        sorts = paddle_ngraph.compile(lambda x: [x.item(0) * 2.0, x.item(1) * x])
        whole = paddle_ngraph.compile(lambda x: x * 2.0 + 1.0)
        paddle_ngraph.compile(lambda x: x)  # never called
        for function in (looks, sorts, whole):
            for _ in range(2):
                function(floats(2, 3) * 2.0)

    before = paddle_ngraph.stats()["functions_built"]
    found = breaks.breaks_of(run)
    assert found and all(count == 1 for count in found.values()), found
    assert paddle_ngraph.stats()["functions_built"] == before


def test_a_reason_has_no_line():
    assert breaks.reason_of("reshape (/a (b)/c.py, line 12)") == "reshape"
    assert breaks.reason_of("the value of a tensor") == "the value of a tensor"


def test_the_most_frequent_reasons_come_first():
    counts = {"one": {"sort_": 1, "numpy": 3}, "two": {"sort_": 1}, "three": {}}
    rows = breaks.table(counts).splitlines()[2:]
    assert rows == ["| `sort_` | 2 | 2 |", "| `numpy` | 1 | 3 |"]
    assert "one" not in breaks.table(counts)
    assert "; 1 have no break." in breaks.page(counts)


def test_the_page_is_current():
    assert breaks.PAGE.read_text() == breaks.page(json.loads(breaks.COUNTS.read_text()))
