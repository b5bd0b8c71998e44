"""Makes values of blocks own their ``pir::Value``, so that no value outlives its ``pir::Value``.

``Block.args`` and ``Block.kwargs`` are the accessors of PIR that return non-owning references into
the storage of the block. Paddle retains some beyond the lifetime of their program, in a reference
cycle (``RunnableProgram._get_program_all_values``) that exists until the garbage collector runs.
pybind11 finds an object by its address: if a C++ temporary is at the former address of such a
Value, ``split_program`` returns the old object for it, which points into freed memory a moment
later. So processes that created and dropped programs crashed, in plain Paddle as well.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps

from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import copy_of_value
from paddle_ngraph.paddle_private.protocols import Block, Value


def install() -> None:
    """Patches both accessors to return copies, for all callers, whatever the flag is by then."""
    replaced.ARGUMENTS.replace(_copying_list)
    replaced.KEYWORD_ARGUMENTS.replace(_copying_dict)
    gc.collect()  # earlier references in cycles


def _copying_list(original: Callable[[Block], list[Value]]) -> Callable[[Block], list[Value]]:
    @wraps(original)
    def args(self: Block) -> list[Value]:
        return [copy_of_value(value) for value in original(self)]

    return args


def _copying_dict(
    original: Callable[[Block], dict[str, Value]],
) -> Callable[[Block], dict[str, Value]]:
    @wraps(original)
    def kwargs(self: Block) -> dict[str, Value]:
        return {name: copy_of_value(value) for name, value in original(self).items()}

    return kwargs
