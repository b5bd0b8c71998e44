"""Messages are for people: only errors of other software are recognised by their text."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import paddle_ngraph

pytestmark = pytest.mark.pure

ROOT = Path(paddle_ngraph.__file__).parent

# Files that search messages, each with a comment that says why.
PYTHON_BORDERS: set[str] = set()
CPP_BORDERS = {
    "core/common/deferred_signals.cc",
    "core/engine/model_builder.cc",  # takes Paddle's text apart for people
    "core/ov/plugin_errors.cc",
    "core/paddle/interruption.cc",
}

MESSAGE_NAMES = {"message", "reason"}
ERROR_NAMES = {"error", "exception", "failure", "raised", "reason"}
SEARCHES = {"count", "endswith", "find", "index", "partition", "removeprefix", "startswith"}


def is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in MESSAGE_NAMES
    if isinstance(node, ast.Attribute):
        return node.attr in MESSAGE_NAMES
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    return node.func.id == "str" and any(
        isinstance(each, ast.Name) and each.id in ERROR_NAMES for each in node.args
    )


def is_search(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        tests = zip(node.ops, node.comparators)
        return any(isinstance(op, (ast.In, ast.NotIn)) and is_message(side) for op, side in tests)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if isinstance(node.func.value, ast.Name) and node.func.value.id == "re":
        return any(map(is_message, node.args))
    return node.func.attr in SEARCHES and is_message(node.func.value)


def searches_in_python(text: str) -> bool:
    return any(map(is_search, ast.walk(ast.parse(text))))


def searches_in_cpp(text: str) -> bool:
    text = re.sub(r"//.*", "", text)
    names = re.findall(r"(\w+) = [^;]*(?:\bwhat\(\)|\bmessage_of\()", text)
    names = "|".join([*names, "message", "sentence", "reason"])
    searches = r"(?:find|rfind|compare|starts_with|substr)\("
    return any(
        re.search(pattern, text)
        for pattern in (r"\bstr(?:case)?str\(", r"\bstrn?cmp\([^;]*\bwhat\(\)")
    ) or bool(re.search(rf"\b(?:{names})\.{searches}", text))


@pytest.mark.parametrize(
    "text",
    [
        "if WORDS in str(error): pass",
        "found = any(words in error.reason for words in WORDS)",
        "if not reason.startswith('a'): pass",
        "re.search('a', str(error))",
    ],
)
def test_searches_in_python_are_found(text):
    assert searches_in_python(text)


@pytest.mark.parametrize(
    "text",
    [
        "if (std::strstr(error.what(), kWords) != nullptr) throw;",
        "const bool found = message.find(kWords) != std::string::npos;",
        "const std::string text = error.what();\nif (text.rfind(kWords, 0) == 0) throw;",
    ],
)
def test_searches_in_cpp_are_found(text):
    assert searches_in_cpp(text)


def test_only_borders_search_messages():
    python = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if searches_in_python(path.read_text())
    }
    cpp = {
        str(path.relative_to(ROOT))
        for ending in ("cc", "h")
        for path in ROOT.rglob(f"*.{ending}")
        if searches_in_cpp(path.read_text())
    }
    assert (python, cpp) == (PYTHON_BORDERS, CPP_BORDERS)
