"""Ids of programs in events, for runs by Paddle as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import paddle

from paddle_ngraph.frontends.program_desc.single_assignment import blocks, operators
from paddle_ngraph.paddle_private.protocols import LegacyProgramDesc, Program
from paddle_ngraph.partitioning.analysis.block_view import (
    FETCH,
    SCOPE_NAMES,
    blocks_outermost_first,
    scope_name,
)

# Operators that Executor adds to the program of the user.
_ADDED = frozenset({FETCH, "feed", "fetch", "fetch_v2"})


def of(programs: Iterable[Program | LegacyProgramDesc]) -> int:
    """The id of programs with these operators and variables, whatever they fetch."""
    return of_text("\n".join(line for program in programs for line in _lines(program)))


def of_text(text: str) -> int:
    """The id of a program that a text identifies."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


def _lines(program: Any) -> Iterator[str]:
    """A line for each operator of a program, PIR or ProgramDesc."""
    if isinstance(program, paddle.pir.Program):
        for block in blocks_outermost_first(program):
            for op in block.ops:
                if (type := op.name()) not in _ADDED:
                    yield f"{type} {scope_name(op)}" if type in SCOPE_NAMES else type
        return
    for legacy in blocks(program):
        for each in operators(legacy):
            if each.type() not in _ADDED:
                yield f"{each.type()} {[each.output(slot) for slot in each.output_names()]}"
