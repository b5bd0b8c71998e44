"""Handlers of all exceptions, or of all errors of the system, catch none of a signal handler."""

from __future__ import annotations

import ast
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from paddle_ngraph.verification import reproducer

PACKAGE = Path(__file__).parents[2] / "paddle_ngraph"
# A time limit of the user mostly raises TimeoutError, which is an OSError.
BROAD = {"Exception", "BaseException", "OSError", "IOError", "EnvironmentError", "TimeoutError"}
# Code of processes that belong to the package's command line, or that runs without the core.
EXEMPT = {
    "__main__.py",
    "commands/arguments.py",
    "commands/saving.py",
    "commands/transpiling.py",
    "distributed/launcher.py",
    "installation.py",
    "paddle_private/releases.py",
    "ray/machine_launcher.py",
    "simulation/profile.py",
}
SECTIONS = {"signals.own_errors", "signals.deferred_signals"}
RECOGNIZING = "signals.recognized_signals"


def names_in(node: ast.expr | None) -> set[str]:
    """The names in the type of a handler; one without a type catches every exception."""
    if node is None:
        return {"BaseException"}
    found = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)))
    return {n.id if isinstance(n, ast.Name) else n.attr for n in found}


def called(node: ast.expr) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def is_suppress(node: ast.expr) -> bool:
    """Whether an item of ``with`` ignores any exception, or any error of the system."""
    if not isinstance(node, ast.Call) or not called(node).endswith("suppress"):
        return False
    return any(BROAD & names_in(each) for each in node.args)


def is_raised_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def recognizes(handler: ast.ExceptHandler) -> bool:
    """Whether the handler first raises exceptions from outside again."""
    first = handler.body[0]
    return isinstance(first, ast.Expr) and called(first.value) == "signals.raise_if_from_outside"


def ignores_errors(node: ast.AST) -> bool:
    """Whether a call ignores errors of the system, as ``shutil.rmtree`` may."""
    return isinstance(node, ast.Call) and "ignore_errors" in {each.arg for each in node.keywords}


def faults_in(node: ast.AST, section: str = "") -> Iterator[int]:
    """Yields the lines of handlers that may catch an exception from outside.

    Args:
        section: The section of ``paddle_ngraph.utils.signals`` around the node, in its function.
    """
    for child in ast.iter_child_nodes(node):
        inner = "" if isinstance(child, (ast.FunctionDef, ast.Lambda)) else section
        if ignores_errors(child) and inner not in SECTIONS:
            yield child.lineno
        for item in child.items if isinstance(child, ast.With) else ():
            if is_suppress(item.context_expr) and inner not in SECTIONS:
                yield child.lineno
            if called(item.context_expr) in {*SECTIONS, RECOGNIZING}:
                inner = called(item.context_expr)
        if isinstance(child, ast.ExceptHandler) and BROAD & names_in(child.type):
            is_right = inner in SECTIONS or (inner == RECOGNIZING and recognizes(child))
            if not is_right and not is_raised_again(child):
                yield child.lineno
        yield from faults_in(child, inner)


def test_handlers_of_all_exceptions_are_inside_sections() -> None:
    faults, count = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        if str(path.relative_to(PACKAGE)) in EXEMPT:
            continue
        text = path.read_text()
        count += text.count("except Exception") + text.count("except OSError")
        faults += [f"{path.relative_to(PACKAGE)}:{line}" for line in faults_in(ast.parse(text))]
    assert count > 30
    assert not faults, f"use signals.own_errors() or signals.recognized_signals(): {faults}"


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("try: f()\nexcept Exception: pass", 1),
        ("try: f()\nexcept: pass", 1),
        ("try: f()\nexcept (OSError, BaseException): return 1", 1),
        ("try: f()\nexcept BaseException:\n  g()\n  raise", 0),
        ("try: f()\nexcept OSError: pass", 1),
        ("with signals.own_errors():\n  try: f()\n  except (EOFError, OSError): pass", 0),
        ("with suppress(OSError): f()", 1),
        ("rmtree(path, ignore_errors=True)", 1),
        ("with signals.own_errors(): rmtree(path, ignore_errors=True)", 0),
        ("with suppress(Exception): f()", 1),
        ("with suppress(Exception), signals.own_errors(): f()", 1),
        ("with signals.own_errors(), suppress(Exception): f()", 0),
        ("with signals.own_errors():\n  try: f()\n  except Exception: pass", 0),
        ("try:\n  with signals.own_errors(): f()\nexcept Exception: pass", 1),
        ("with signals.own_errors():\n  def g():\n    try: f()\n    except Exception: pass", 1),
        ("with signals.recognized_signals():\n  try: f()\n  except Exception: pass", 1),
        (
            "with signals.recognized_signals():\n  try: f()\n  except Exception as error:\n"
            "    signals.raise_if_from_outside(error)\n    g()",
            0,
        ),
    ],
)
def test_the_check_finds_faults(code: str, number: int) -> None:
    assert len(list(faults_in(ast.parse(code)))) == number


def test_a_time_limit_of_the_user_is_no_error_of_a_file(tmp_path: Path) -> None:
    def limit(*_: object) -> None:
        raise TimeoutError("the user's")

    path = tmp_path / "arrays.npz"
    np.savez(path, array=np.zeros(3))
    before = signal.signal(signal.SIGALRM, limit)
    try:
        with pytest.raises(TimeoutError, match="the user's"):
            reproducer._reading(path, lambda _: signal.raise_signal(signal.SIGALRM))
    finally:
        signal.signal(signal.SIGALRM, before)
