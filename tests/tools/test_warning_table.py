"""docs/reference/warnings.md is current, and each warning of the package has a code."""

from __future__ import annotations

import logging.handlers
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paddle_ngraph
from paddle_ngraph.warning_codes import WarningCode, warn
from tools import warning_table

ROOT = Path(__file__).parents[2]
PACKAGE = Path(paddle_ngraph.__file__).parent


def test_the_page_is_current():
    page = (ROOT / "docs" / "reference" / "warnings.md").read_text()
    assert page == warning_table.markdown(), "the page is out of date: run `make docs`"


def test_each_warning_of_the_package_has_a_code_and_each_code_a_warning():
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    direct = [path.name for path, text in sources.items() if "warnings.warn(" in text]
    assert direct == ["warning_codes.py"]
    used = set(re.findall(r"WarningCode\.([A-Z]\w+)", "".join(sources.values())))
    assert used == {each.name for each in WarningCode}
    assert len({each.code for each in WarningCode}) == len(WarningCode)


@pytest.fixture
def logged():
    """The records that a handler of the application receives."""
    handler, logger = logging.handlers.BufferingHandler(10), logging.getLogger("paddle_ngraph")
    logger.addHandler(handler)
    yield handler.buffer
    logger.removeHandler(handler)


def test_a_warning_names_its_code_in_both_channels(logged):
    with pytest.warns(paddle_ngraph.NgraphWarning, match=r"^a sentence \[NG201\]$") as caught:
        issue()
    assert caught[0].filename == __file__
    assert [each.getMessage() for each in logged] == ["a sentence [NG201]"]


def issue() -> None:
    warn(WarningCode.DENIED, "a sentence")


def test_a_warning_is_printed_once_and_not_to_the_standard_output():
    code = (
        "from paddle_ngraph.warning_codes import WarningCode, warn\n"
        "warn(WarningCode.DENIED, 'a sentence')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not found.stdout
    assert found.stderr.count("a sentence [NG201]") == 1
