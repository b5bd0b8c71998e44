"""``make compatibility``: the pairs, their results, the page."""

from __future__ import annotations

import re

import pytest

from tools import compatibility, wheels
from tools.canary import Step

pytestmark = pytest.mark.pure

BUILD = """\
      paddle_ngraph/core/a.cc:3:1: error: 'x' was not declared
make: *** [Makefile:1: .built] Error 1
"""
TESTS = """\
FAILED tests/a.py::test_one[x] - AssertionError: 0.5 is not 1e-07
=== 1 failed, 12 passed in 5.01s ===
"""


def test_the_page_is_current():
    page = compatibility.PAGE.read_text()
    assert page == compatibility.page(compatibility.read()), "run `make compatibility`"


def test_each_release_of_paddle_meets_each_openvino_and_each_python_occurs():
    pairs = compatibility.PAIRS
    paddles, openvinos = ({pair[field] for pair in pairs} for field in (0, 1))
    assert {pair[:2] for pair in pairs} == {(p, o) for p in paddles for o in openvinos}
    assert len(pairs) == len(paddles) * len(openvinos) == 12
    assert {pair.python for pair in pairs} == set(wheels.PYTHONS)
    assert all(len({p.python for p in pairs if p.paddlepaddle == each}) == 3 for each in paddles)


def test_a_result_has_outcomes_and_reasons():
    pair = compatibility.PAIRS[0]
    done = [Step("environment", 0, 9.0, ""), Step("private names", 1, 1.0, "there is no paddle.x")]
    failed = compatibility.result([*done, Step("build", 2, 1.0, BUILD)])
    assert failed["steps"] == {"environment": "passed", "build": "failed", "tests": "not reached"}
    assert failed["reasons"] == [
        "private name: there is no paddle.x",
        "paddle_ngraph/core/a.cc:3:1: error: 'x' was not declared",
    ]
    tested = compatibility.result([Step("build", 0, 1.0, ""), Step("tests", 1, 5.0, TESTS)])
    assert tested["tests"] == "1 failed, 12 passed"
    text = compatibility.page({pair.key: tested})
    assert re.search(r"passed \| 1 failed, 12 passed \| `1 x AssertionError: 0.5 is not", text)
    assert text.count("not measured") == 3 * 11


def test_reasons_name_no_folder_of_the_machine():
    step = Step("environment", 1, 1.0, "ERROR: no wheel in /home/me/x/wheels/a.whl (from pip)")
    assert compatibility.reasons(step) == ["ERROR: no wheel in a.whl (from pip)"]
