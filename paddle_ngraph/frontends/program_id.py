"""Ids of programs in events, for runs by Paddle as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import paddle

from paddle_ngraph.frontends.program_desc.single_assignment import blocks, operators
from paddle_ngraph.paddle_private.protocols import LegacyProgramDesc, Operation, Program
from paddle_ngraph.partitioning.analysis.block_view import (
    FETCH,
    blocks_outermost_first,
    operands_of,
    value_id,
)
from paddle_ngraph.partitioning.analysis.placement import PLACE_ATTRIBUTE

# Operators that Executor adds to the program of the user.
_ADDED = frozenset({FETCH, "feed", "fetch", "fetch_v2"})
# Attributes in which copies of a program may differ.
_IGNORED = frozenset({"op_callstack", "persistable", "place", "stop_gradient", PLACE_ATTRIBUTE})


def of(programs: Iterable[Program | LegacyProgramDesc]) -> int:
    """The id of programs with these operators, attributes and variables, whatever they fetch."""
    return of_text("\n".join(line for program in programs for line in _lines(program)))


def of_text(text: str) -> int:
    """The id of a program that a text identifies."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


def _lines(program: Any) -> Iterator[str]:
    """A line for each operator of a program, PIR or ProgramDesc."""
    if isinstance(program, paddle.pir.Program):
        numbers: dict[str, int] = {}  # of the values, in program order
        for block in blocks_outermost_first(program):
            for op in block.ops:
                if op.name() not in _ADDED:
                    operands = [numbers.get(value_id(value), -1) for value in operands_of(op)]
                    yield f"{op.name()} {operands} {_attributes(op)}"
                for value in op.results():
                    if value.initialized():
                        numbers[value_id(value)] = len(numbers)
        return
    for legacy in blocks(program):
        for each in operators(legacy):
            if each.type() not in _ADDED:
                yield f"{each.type()} {[each.output(slot) for slot in each.output_names()]}"


def _attributes(op: Operation) -> list[tuple[str, str]]:
    try:
        attributes = op.attrs()
    except NotImplementedError:  # complex numbers, which Paddle only prints
        return [("printed", str(op))]
    return [(name, repr(each)) for name, each in sorted(attributes.items()) if name not in _IGNORED]
