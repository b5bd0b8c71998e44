"""Patch targets: names of Paddle that are read or patched, and their signatures."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

# The signature of an attribute that methods of the class set on their object.
ATTRIBUTE = "attribute"
MISSING = object()


class PatchTarget(NamedTuple):
    """A name in a module or class of Paddle.

    Attributes:
        owner: ``module``, or ``module:Class``.
        name: The name there.
        signature: The result of :func:`signature_of`; ``ATTRIBUTE`` for an attribute of a class's
            objects; ``None`` if the name is never called, or its signature is not available.
    """

    owner: str
    name: str
    signature: str | None = None

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}".replace(":", ".")

    @property
    def current(self) -> Any:
        """The current object: Paddle's or its replacement; ``MISSING`` if the name is missing."""
        return getattr(resolve(self.owner), self.name, MISSING)

    def why_unfit(self) -> str | None:
        """The mismatch between the name and its record, or ``None``."""
        found = self.current
        if self.signature == ATTRIBUTE:
            exists = found is not MISSING or self.name in _attributes_of(resolve(self.owner))
            return None if exists else f"there is no {self}"
        if found is MISSING:
            return f"there is no {self}"
        if self.signature is not None and signature_of(found) != self.signature:
            return f"{self} is called {signature_of(found)}, not {self.signature}"
        return None

    @property
    def original(self) -> Any:
        """Paddle's object, which stays itself when the name is patched."""
        from paddle_ngraph import _core  # not before Paddle is checked

        if self not in _originals:
            found = self.current
            _originals[self] = _core.original_of(found) if _core.is_replaceable(found) else found
        return _originals[self]

    def replace(self, create: Callable[[Any], Any]) -> None:
        """Patches the name with ``create(original)``, once.

        A function of Paddle's core is replaced in place, so that references taken before are
        covered; a function in Python, or a class, as an attribute of its owner. A name that Paddle
        lacks stays missing (``PADDLE_NGRAPH_UNCHECKED``).
        """
        from paddle_ngraph import _core

        found = self.current
        if self in _replaced or found is MISSING:
            return
        # An exception of a signal handler would leave a replaced function without its record.
        with _core.DeferredSignals():
            new = create(self.original)
            if _core.is_replaceable(found):
                _core.replace_calls(found, new)
            else:
                setattr(resolve(self.owner), self.name, new)
            _replaced.add(self)


_originals: dict[PatchTarget, Any] = {}
_replaced: set[PatchTarget] = set()


def replace_everywhere(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Replaces the first object of each pair by the second, in all modules, under any name."""
    by_id = {id(original): new for original, new in pairs}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if id(value) in by_id:
                names[name] = by_id[id(value)]


def resolve(path: str) -> Any:
    """The module or class of a path; an object without attributes if there is none."""
    module, _, inside = path.partition(":")
    try:
        found = import_module(module)
        return attrgetter(inside)(found) if inside else found
    except (ImportError, AttributeError):
        return MISSING


def _attributes_of(owner: Any) -> frozenset[str]:
    """The names in the code of the methods of a class and its bases."""
    methods = (each for base in getattr(owner, "__mro__", ()) for each in vars(base).values())
    code = (inspect.unwrap(each).__code__ for each in methods if inspect.isfunction(each))
    return frozenset(name for each in code for name in each.co_names)


# -- signatures ----------------------------------------------------------------------------------


def signature_of(function: Any) -> str | None:
    """The signature of a function, ``(self, names, copy=...)``; ``None`` if not available.

    A function of Paddle's core has its signature in its docstring, once for each overload. Of the
    types, only that of the result is included: others differ from build to build.
    """
    try:
        if inspect.isfunction(inspect.unwrap(function)):
            return _without_values(inspect.signature(function))
    except ValueError:
        return None
    return (
        " or ".join(dict.fromkeys(_documented_signatures(getattr(function, "__doc__", None) or "")))
        or None
    )


def _without_values(signature: inspect.Signature) -> str:
    """The text of a signature without types and values of defaults."""
    parameters = [
        each.replace(
            annotation=each.empty, default=each.default if each.default is each.empty else ...
        )
        for each in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters)).replace("Ellipsis", "...")


_SIGNATURE_PATTERN = re.compile(r"^(?:\d+\. )?\w+\((.*)\) -> (.*)$", re.MULTILINE)


def _documented_signatures(documentation: str) -> Iterator[str]:
    for parameters, returned in _SIGNATURE_PATTERN.findall(documentation):
        names = ", ".join(map(_name, _split(parameters)))
        yield f"({names}) -> {re.sub(r'(?:[A-Za-z_]+(?:[.]|::))+', '', returned)}"


def _name(parameter: str) -> str:
    name, _, type = parameter.partition(":")
    return f"{name.strip()}=..." if " = " in type else name.strip()


def _split(parameters: str) -> Iterator[str]:
    """The substrings between commas outside brackets."""
    depth, piece = 0, ""
    for char in parameters:
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            yield piece
            piece = ""
        else:
            piece += char
    if piece:
        yield piece
