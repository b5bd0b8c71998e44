"""Names of classes: each says which of several similar things it is, in all of the package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "paddle_ngraph"

# A definition at the start of a line; classes inside of others are qualified by their names.
CPP_CLASS = re.compile(r"^(?:enum )?(?:class|struct) (\w+)(?= final| :(?!:)| \{)", re.MULTILINE)

# Public classes that have one name in Python and in the core, since they are one thing in both.
SHARED_BY_LANGUAGES = {
    "CacheDeclaration": "a cache declares itself in the language that has it, for one list of both",
    "CacheInfo": "the statistics of the function cache, which Python reads from the core",
    "Dtype": "the columns of one table of dtypes, each language has those that it needs",
    "ErrorCode": "the codes are equal: tests/core/test_error_codes.py",
    "Event": "the record of a run in the core, with names in place of numbers",
    "FinishedSpan": "the record of a span in the core, with names in place of numbers",
    "NgraphError": "Python raises the error that the core throws",
    "RangeCheck": "the builder of a function declares the checks that the core does",
    "Reason": "a row of the table of the core",
    "Scope": "Paddle's class: the members that the package uses",
    "Tensor": "Paddle's class: the members that the package uses",
    "TraceCache": "the class in Python owns an object of that in the core",
    "TracedCall": "the class in Python is a view of that in the core",
    "Update": "the builder of a function declares the updates that the core does",
    "WholeProgram": "the class in Python owns an object of that in the core",
}


def python_classes() -> Iterator[tuple[str, str]]:
    """Name and location of each class."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield node.name, f"{path.relative_to(ROOT)}:{node.lineno}"


def cpp_classes() -> Iterator[tuple[str, str]]:
    """Name and file of each class of the core and of the packed layers."""
    for folder in ("core", "mkl_packed"):
        for path in sorted((PACKAGE / folder).rglob("*")):
            if path.suffix in (".cc", ".h"):
                for found in CPP_CLASS.finditer(path.read_text()):
                    yield found[1], str(path.relative_to(ROOT))


@pytest.mark.parametrize("classes", [python_classes, cpp_classes])
def test_no_two_classes_share_a_name(classes):
    found = defaultdict(list)
    for name, location in classes():
        found[name.strip("_")].append(location)
    shared = {name: locations for name, locations in found.items() if len(locations) > 1}
    assert not shared, "give each a name that says which it is"


def test_a_class_in_both_languages_is_one_thing():
    python, cpp = dict(python_classes()), dict(cpp_classes())
    shared = {name: (python[name], cpp[name]) for name in python.keys() & cpp.keys()}
    assert shared.keys() == SHARED_BY_LANGUAGES.keys(), shared
