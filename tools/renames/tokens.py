"""Code as statements of tokens, without comments and docstrings."""

from __future__ import annotations

from typing import NamedTuple

PYTHON = (".py", ".pyi")
CPP = (".cc", ".cpp", ".h", ".hpp", ".c")

# Shapes of tokens whose text is not part of their shape.
NAME, STRING, ANNOTATION, IMPORT, INCLUDE = "name", "string", "annotation", "import", "include"
# Scopes of names; those of local names of Python are numbers.
GLOBAL, ATTRIBUTE, KEYWORD, IMPORTED, CPP_NAME = "global", "attribute", "keyword", "imported", "C++"


class Token(NamedTuple):
    """A piece of code.

    Attributes:
        shape: Compared exactly.
        line: From 1.
        text: A name, a string, the full name of an import, or the path of an include.
        scope: Of a name: two names are the same where text and scope are.
        bound: The name that an import binds.
    """

    shape: str
    line: int
    text: str = ""
    scope: str = ""
    bound: str = ""


Statement = tuple[Token, ...]
