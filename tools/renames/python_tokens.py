"""Python files as statements of tokens, from their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath

from tools.renames.tokens import (
    ANNOTATION,
    ATTRIBUTE,
    GLOBAL,
    IMPORT,
    KEYWORD,
    NAME,
    STRING,
    Statement,
    Token,
)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
ROLES = {
    ("Attribute", "attr"): ATTRIBUTE,
    ("keyword", "arg"): KEYWORD,
    ("MatchClass", "kwd_attrs"): ATTRIBUTE,
}
BINDING_FIELDS = ("name", "rest")  # of ExceptHandler, MatchAs, MatchStar, MatchMapping
ANNOTATIONS = ("annotation", "returns")


def _is_prose(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _bound_by_alias(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the names that statements bind in their own scope."""
    for node in nodes:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield _bound_by_alias(node)
        elif isinstance(node, ast.comprehension):
            yield from _bound_names([node.iter, *node.ifs])
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id
            yield from (v for f, v in ast.iter_fields(node) if f in BINDING_FIELDS and v)
            yield from _bound_names(ast.iter_child_nodes(node))


def _undeclared(body: Iterable[ast.AST]) -> set[str]:
    """Returns names that the body of a function binds, without global and nonlocal ones."""
    nodes = list(body)
    declared = (
        name
        for root in nodes
        for node in ast.walk(root)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        for name in node.names
    )
    return {name for name in _bound_names(nodes) if isinstance(name, str)} - set(declared)


class PythonReader:
    """Flattens the syntax tree of a file into statements of tokens."""

    def __init__(self, path: str, text: str) -> None:
        self.statements: list[Statement] = []
        self._package = PurePosixPath(path).parent.parts
        self._tokens: list[Token] = []
        self._line = 1
        self._scopes: list[tuple[str, set[str]]] = []
        self._count = 0
        self._string = STRING
        self._block("body", ast.parse(text).body)

    def _emit(self, shape: str, text: str = "", scope: str = "", bound: str = "") -> None:
        self._tokens.append(Token(shape, self._line, text, scope, bound))

    def _end(self) -> None:
        if self._tokens:
            self.statements.append(tuple(self._tokens))
        self._tokens = []

    @contextmanager
    def _scope(self, names: Iterable[str], scope: str = "") -> Iterator[None]:
        self._count += 1
        self._scopes.append((scope or str(self._count), set(names)))
        yield
        self._scopes.pop()

    def _scope_of(self, name: str) -> str:
        for i, (scope, names) in enumerate(reversed(self._scopes)):
            is_seen = scope != ATTRIBUTE or i == 0  # names of a class are not visible in functions
            if name in names and is_seen:
                return scope
        return GLOBAL

    def _block(self, field: str, statements: Iterable[ast.stmt]) -> None:
        self._emit(f"{field} {{")
        self._end()
        for statement in statements:
            if not _is_prose(statement):
                self._node(statement)
                self._end()
        self._emit("}")
        self._end()

    def _node(self, node: ast.AST) -> None:
        self._line = getattr(node, "lineno", self._line)
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                self._emit(self._string, node.value)
            else:
                self._emit(repr(node.value))
            return
        self._emit(type(node).__name__)
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, COMPREHENSIONS):
            self._comprehension(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        else:
            self._fields(node)

    def _fields(self, node: ast.AST, leave_out: Sequence[str] = ()) -> None:
        for field, value in ast.iter_fields(node):
            if field not in leave_out:
                string = self._string
                self._string = ANNOTATION if field in ANNOTATIONS else string
                self._field(field, value, ROLES.get((type(node).__name__, field), ""))
                self._string = string

    def _field(self, field: str, value: object, role: str) -> None:
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            self._block(field, value)
        elif isinstance(value, list):
            self._emit("[")
            for item in value:
                self._field(field, item, role)
            self._emit("]")
        elif isinstance(value, ast.AST):
            self._node(value)
        elif isinstance(value, str):
            self._emit(NAME, value, role or self._scope_of(value))
        else:
            self._emit(repr(value))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        a = node.args
        self._fields(node, ("args", "body"))
        self._field("defaults", [*a.defaults, *(d for d in a.kw_defaults if d)], "")
        self._emit(repr([d is None for d in a.kw_defaults]))
        own = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        with self._scope({arg.arg for arg in own} | _undeclared(body)):
            self._fields(a, ("defaults", "kw_defaults"))
            self._field("body", node.body, "")

    def _class(self, node: ast.ClassDef) -> None:
        self._fields(node, ("body",))
        with self._scope(_undeclared(node.body), ATTRIBUTE):
            self._field("body", node.body, "")

    def _comprehension(self, node: ast.AST) -> None:
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        self._node(generators[0].iter)
        with self._scope(_bound_names(each.target for each in generators)):
            for i, each in enumerate(generators):
                self._fields(each, () if i else ("iter",))
            self._fields(node, ("generators",))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        module = ""
        if isinstance(node, ast.ImportFrom):
            base = self._package[: len(self._package) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])]) + "."
        for alias in node.names:
            self._line = getattr(alias, "lineno", self._line)
            bound = alias.asname or (alias.name if module else _bound_by_alias(alias))
            self._emit(IMPORT, module + alias.name, self._scope_of(bound), bound)
