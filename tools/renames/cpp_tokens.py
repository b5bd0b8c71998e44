"""C++ files as statements of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.renames.tokens import CPP_NAME, INCLUDE, STRING, Statement, Token

CPP_TOKEN = re.compile(
    r"""
    (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
  | (?P<string>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
      |(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
  | (?P<character>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
  | (?P<number>\.?\d(?:[eEpP][+-]|'[0-9a-zA-Z]|[0-9a-zA-Z_.])*)
  | (?P<name>[A-Za-z_$][\w$]*)
  | (?P<continued>\\\n)
  | (?P<newline>\n)
  | (?P<space>[^\S\n]+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def cpp_pieces(text: str) -> Iterator[tuple[str, str, int]]:
    """Yields kind, text and line of each token of a C++ file, with comments and white space."""
    line = 1
    for match in CPP_TOKEN.finditer(text):
        kind = match.lastgroup or ""  # the group that was closed last, so never "mark"
        yield kind, match[0], line
        line += match[0].count("\n")


class CppReader:
    """Splits a file into statements of tokens: up to ``;``, a brace, or the end of a directive."""

    def __init__(self, path: str, text: str) -> None:
        self.statements: list[Statement] = []
        self._tokens: list[Token] = []
        directive = False
        for kind, piece, line in cpp_pieces(text):
            if kind == "newline" and directive:
                directive = False
                self._end()
            elif kind == "other" and piece == "#" and not directive:
                self._end()
                directive = True
            if kind in ("comment", "newline", "space", "continued"):
                continue
            self._add(kind, piece, line)
            if piece in ";{}" and not directive:
                self._end()
        self._end()

    def _add(self, kind: str, piece: str, line: int) -> None:
        last = self._tokens[-1] if self._tokens else None
        if kind == "string" and last and (joined := _joined(last, piece)):
            self._tokens[-1] = joined
        elif kind == "string" and last and last.text == "include" and len(self._tokens) == 2:
            self._tokens = [Token(INCLUDE, line, piece.strip('"'))]
        elif kind in ("string", "name"):
            self._tokens.append(Token(kind, line, piece, CPP_NAME if kind == "name" else ""))
        else:
            self._tokens.append(Token(piece, line))

    def _end(self) -> None:
        tokens = self._tokens
        if len(tokens) > 2 and tokens[1].text == "include":  # <of another library>
            path = "".join(token.text or token.shape for token in tokens[2:])
            tokens = [Token(INCLUDE, tokens[0].line, path)]
        if tokens:
            self.statements.append(tuple(tokens))
        self._tokens = []


def _joined(last: Token, piece: str) -> Token | None:
    """Returns a string literal that is split over lines as one token, or ``None``."""
    if last.shape == STRING and last.text.endswith('"') and piece.startswith('"'):
        return last._replace(text=last.text[:-1] + piece[1:])
    return None
