"""Which variables of a ProgramDesc program are read after a loop or branch."""

from __future__ import annotations

from collections.abc import Callable

from paddle_ngraph.paddle_private.names import block_number
from paddle_ngraph.paddle_private.protocols import LegacyBlock, LegacyOperator, LegacyProgramDesc

# Operators with a block, and the input slot with the condition under which the block runs.
WITH_BLOCK = {"while": "Condition", "conditional_block": "Cond"}


class Liveness:
    """The variables whose contents are read after each loop and branch, in any block.

    Args:
        description: The program, in which other operators have no blocks.
    """

    def __init__(self, description: LegacyProgramDesc) -> None:
        self._description = description
        self._exposed: dict[int, set[str]] = {}
        self._live: dict[int, set[str]] = {}
        self._walk(description.block(0), set(), self._record)

    def is_read_after(self, block: LegacyBlock, name: str) -> bool:
        """Whether contents that this block of a loop or branch gives a variable are read later.

        The next iteration of a loop around the block, or of the block, is later, too.
        """
        return name in self._live[block.id]

    def _record(self, op: LegacyOperator, block: LegacyBlock, live: set[str]) -> None:
        again = self._exposed_by(block) if op.type() == "while" else set()
        self._live[block.id] = self._live.get(block.id, set()) | live | again
        self._walk(block, live | again, self._record)

    def _exposed_by(self, block: LegacyBlock) -> set[str]:
        """The variables that a block reads before it writes them."""
        if block.id not in self._exposed:
            self._exposed[block.id] = self._walk(block, set(), lambda *_: None)
        return self._exposed[block.id]

    def _walk(
        self,
        block: LegacyBlock,
        live: set[str],
        record: Callable[[LegacyOperator, LegacyBlock, set[str]], None],
    ) -> set[str]:
        """The variables that are read after the start of a block, of those ``live`` at its end.

        Args:
            block: The block.
            live: The variables that are read after the block.
            record: Called for each operator with a block, with the variables that are read later.
        """
        live = set(live)
        for number in reversed(range(block.op_size())):
            op = block.op(number)
            if op.type() in WITH_BLOCK:
                inner = self._description.block(block_number(op, "sub_block"))
                record(op, inner, set(live))
                live |= self._exposed_by(inner) | set(op.input(WITH_BLOCK[op.type()]))
            else:
                live -= set(op.output_arg_names())
                live |= set(op.input_arg_names(True))
        return live
