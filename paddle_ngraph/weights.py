"""Who writes a variable says so, for functions keep weights as constants.

Functions of programs that write no variable have the parameters among their inputs as constants
(core/weights.h). Whatever may write a parameter announces it here, and the engine reads the weights
again before the next run: Paddle's own ways to write a tensor, and runs of programs that write
variables.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from paddle.base import core

from paddle_ngraph import _core
from paddle_ngraph.program_view import nodes_of

# What writes a tensor of a scope, or gives it other memory.
_TENSOR_WRITERS = (
    "set",
    "_alloc_double",
    "_alloc_float",
    "_alloc_int",
    "_clear",
    "_copy_from",
    "_mutable_data",
    "_set_double_element",
    "_set_float_element",
    "_share_data_nocheck_with",
    "_share_data_with",
)
_LOADERS = ("load_combine_func", "load_dense_tensor", "load_dense_tensor_from_memory", "load_func")

_silent = threading.local()


@cache
def install() -> None:
    """Makes Paddle's functions that write tensors announce it."""
    for owner, names in ((core.DenseTensor, _TENSOR_WRITERS), (core, _LOADERS)):
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, _announcing(getattr(owner, name)))


def written() -> None:
    """Announces that a variable may have been written."""
    _core.weights_written()


@contextmanager
def only_temporaries() -> Iterator[None]:
    """Nothing is announced inside: the tensors written there are no variables."""
    before = getattr(_silent, "on", False)
    _silent.on = True
    try:
        yield
    finally:
        _silent.on = before


def may_be_written_by(program: Any) -> bool:
    """Whether running a PIR program may write a variable that outlives the run."""
    return any(node.may_write_variables for node in nodes_of(program))


def _announcing(original: Any) -> Any:
    @wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            if not getattr(_silent, "on", False):
                _core.weights_written()

    return write
