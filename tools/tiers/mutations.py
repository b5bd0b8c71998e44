"""Mutations of four kinds, as replacements in a source text."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Union

KINDS = ("sign", "boundary", "guard", "swap")
SMALL = 8
# Calls whose swapped arguments are equivalent (min), or an obvious error (isinstance).
NOT_SWAPPED = frozenset(
    ("min", "max", "isinstance", "issubclass", "hasattr", "getattr", "swap", "add", "multiply")
).union(("minimum", "maximum", "logical_and", "logical_or", "equal", "not_equal"))


class Mutation(NamedTuple):
    """Replaces ``text[begin:end]`` with ``new``; only tests that run ``line`` can detect it."""

    kind: str
    line: int
    begin: int
    end: int
    new: str

    def applied(self, text: str) -> str:
        return text[: self.begin] + self.new + text[self.end :]

    def described(self, text: str) -> str:
        return f"{_short(text[self.begin : self.end])} → {_short(self.new)}"


def _short(code: str) -> str:
    code = " ".join(code.split())
    return code if len(code) <= 60 else f"{code[:57]}..."


def mutations_of(file: str, text: str) -> list[Mutation]:
    found = python_mutations(text) if file.endswith(".py") else cpp_mutations(text)
    return sorted(set(found))


# -- Python --------------------------------------------------------------------------------------

_SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod)
_TEXTS = (ast.JoinedStr, ast.List, ast.Tuple)
Code = Union[ast.stmt, ast.expr]


def python_mutations(text: str) -> Iterator[Mutation]:
    """Yields mutations of code inside functions: code that an import runs has no test context."""
    offsets = _line_offsets(text)
    for node in _in_functions(ast.parse(text)):
        for kind, old, mutated in _mutated(node):
            begin = offsets(old.lineno, old.col_offset)
            end = offsets(old.end_lineno or 0, old.end_col_offset or 0)
            new = ast.unparse(mutated)
            if isinstance(mutated, ast.expr) and not isinstance(mutated, (ast.Call, ast.Constant)):
                new = f"({new})"
            yield Mutation(kind, old.lineno, begin, end, new)


def _line_offsets(text: str) -> Callable[[int, int], int]:
    """Returns a function from line and byte column, as in ast, to the offset in a text."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    return lambda line, column: (
        starts[line - 1] + len(lines[line - 1].encode()[:column].decode(errors="ignore"))
    )


def _in_functions(tree: ast.Module) -> Iterator[Code]:
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in function.body:
                yield from _below(statement)


def _below(node: ast.AST) -> Iterator[Code]:
    """Yields nested nodes, except in f-strings, annotations and functions (visited separately)."""
    if isinstance(node, (ast.JoinedStr, ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    if isinstance(node, (ast.stmt, ast.expr)):
        yield node
    for name, value in ast.iter_fields(node):
        if name != "annotation":
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _below(child)


def _mutated(node: Code) -> Iterator[tuple[str, Code, ast.AST]]:
    """Yields kind, replaced node and replacement of each mutation of a node."""
    yield from (("sign", node, new) for new in _other_sign(node))
    yield from (("boundary", node, new) for new in _other_boundary(node))
    yield from (("guard", node, new) for new in _without_guard(node))
    yield from (("swap", node, new) for new in _swapped(node))
    if isinstance(node, ast.If):
        yield from (("guard", node.test, ast.Constant(value)) for value in (False, True))


def _other_sign(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _SIGNS:
        operands = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
        if not any(_is_text(operand) for operand in operands):
            mutated = copy.deepcopy(node)
            mutated.op = _SIGNS[type(node.op)]()
            yield mutated
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, _TEXTS) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


def _other_boundary(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            if type(operator) in _BOUNDARIES:
                mutated = copy.deepcopy(node)
                mutated.ops[index] = _BOUNDARIES[type(operator)]()
                yield mutated
        for index, operand in enumerate(node.comparators):
            for number in _beside(operand):
                mutated = copy.deepcopy(node)
                mutated.comparators[index] = ast.Constant(number)
                yield mutated
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        for name in ("lower", "upper"):
            for number in _beside(getattr(node.slice, name)):
                part = copy.deepcopy(node)
                setattr(part.slice, name, ast.Constant(number))
                yield part


def _beside(node: ast.AST | None) -> Sequence[int]:
    """Returns the neighbors (n + 1, n - 1) of a small integer constant."""
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        return ()
    number = node.value
    return (number + 1, number - 1)[: 1 + (number > 0)] if number <= SMALL else ()


def _without_guard(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.Assert, ast.Raise)):
        yield ast.Pass()
    elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for index in range(len(node.values)):
            rest = [value for i, value in enumerate(node.values) if i != index]
            yield ast.BoolOp(ast.And(), rest) if len(rest) > 1 else rest[0]


def _swapped(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ORDERED):
        if not _is_text(node.left) and ast.dump(node.left) != ast.dump(node.right):
            yield ast.BinOp(node.right, node.op, node.left)
    elif isinstance(node, ast.Call) and len(node.args) == 2:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        never = any(_is_text(a) or isinstance(a, ast.Starred) for a in node.args)
        if never or name in NOT_SWAPPED:
            return
        if ast.dump(node.args[0]) != ast.dump(node.args[1]):
            yield ast.Call(node.func, node.args[::-1], node.keywords)


# -- C++, formatted by clang-format --------------------------------------------------------------

_NAME = r"[A-Za-z_][\w.]*(?:\[\w+\])?(?:\(\))?|\d+"
_CPP_SIGN = re.compile(r"(?<=[\w)\]]) ([+-])=? (?=[\w(*!-])")
_CPP_UNARY = re.compile(r"(?<=[=(,] |.[(])-(?=[\w(])")
_CPP_COMPARED = re.compile(r"(?<=[\w)\]]) (<|<=|>|>=) (?=[\w(*!-])")
_CPP_NUMBER = re.compile(r"(?<= (?:<|>|=) |(?:<|>|=|!)= )(\d)(?![\w.])")
_CPP_ORDERED = re.compile(
    rf"(?<![*/%.>] )(?<![\w.>])({_NAME}) ([-/%]) ({_NAME})(?![\w.(\[>])(?! [*/%])"
)
_CPP_CALL = re.compile(rf"(?<![\w])(\w+)\(({_NAME}), ({_NAME})\)")
_CPP_IF = re.compile(r"\bif \(")


def cpp_mutations(text: str) -> Iterator[Mutation]:
    begin = 0
    code = _code_of(text)
    for number, line in enumerate(code.splitlines(keepends=True), 1):
        if not line.lstrip().startswith(("#", "static_assert", "template", "using ")):
            for kind, first, last, new in _cpp_changes(line):
                if code[begin + first : begin + last] == text[begin + first : begin + last]:
                    yield Mutation(kind, number, begin + first, begin + last, new)
        begin += len(line)


def _code_of(text: str) -> str:
    """Returns C++ code with blanks in place of comments, strings and characters."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)


def _cpp_changes(line: str) -> Iterator[tuple[str, int, int, str]]:
    other_sign = {"+": "-", "-": "+"}
    for m in _CPP_SIGN.finditer(line):
        yield "sign", m.start(1), m.end(1), other_sign[m[1]]
    for m in _CPP_UNARY.finditer(line):
        yield "sign", m.start(), m.end(), ""
    for m in _CPP_COMPARED.finditer(line):
        yield "boundary", m.start(1), m.end(1), m[1][0] + ("=" if len(m[1]) == 1 else "")
    for m in _CPP_NUMBER.finditer(line):
        yield "boundary", m.start(1), m.end(1), str(int(m[1]) + 1)
    for m in _CPP_ORDERED.finditer(line):
        if m[1] != m[3]:
            yield "swap", m.start(), m.end(), f"{m[3]} {m[2]} {m[1]}"
    for m in _CPP_CALL.finditer(line):
        if m[2] != m[3] and m[1] not in NOT_SWAPPED:
            yield "swap", m.start(2), m.end(3), f"{m[3]}, {m[2]}"
    for m in _CPP_IF.finditer(line):
        yield from _cpp_guards(line, m.end())


def _cpp_guards(line: str, begin: int) -> Iterator[tuple[str, int, int, str]]:
    """Yields mutations of a condition that is in one line, and declares no variable."""
    end = _end_of_parenthesis(line, begin)
    condition = line[begin:end]
    if end < 0 or ";" in condition or re.search(r"(?<![=!<>])=(?!=)", condition):
        return
    yield "guard", begin, end, f"false && ({condition})"
    yield "guard", begin, end, f"true || ({condition})"
    parts = _split_at_and(condition)
    for index in range(len(parts) if len(parts) > 1 else 0):
        rest = [part for i, part in enumerate(parts) if i != index]
        yield "guard", begin, end, " && ".join(rest)


def _end_of_parenthesis(line: str, begin: int) -> int:
    depth = 1
    for index in range(begin, len(line)):
        depth += {"(": 1, ")": -1}.get(line[index], 0)
        if depth == 0:
            return index
    return -1


def _split_at_and(condition: str) -> list[str]:
    """Returns the operands of a conjunction."""
    parts: list[str] = []
    depth = begin = 0
    for index, character in enumerate(condition):
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(character, 0)
        if depth == 0 and condition.startswith("||", index):
            return [condition]
        if depth == 0 and condition.startswith(" && ", index):
            parts.append(condition[begin:index])
            begin = index + 4
    return [*parts, condition[begin:]]
