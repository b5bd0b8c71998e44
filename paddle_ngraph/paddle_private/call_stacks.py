"""The Python call stacks that Paddle records for each operator of a program."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from traceback import StackSummary
from types import FrameType

import paddle

from paddle_ngraph.paddle_private.protocols import Block
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.utils.thread_local import ThreadLocal


def intercepting_extract_stack(
    answer: Callable[[FrameType], StackSummary],
) -> Callable[..., StackSummary]:
    """``traceback.extract_stack`` that returns the result of ``answer`` to Paddle's core.

    Paddle's core calls it without arguments. A caller whose code refers to it by name is not
    Paddle's core but Python code, for example a signal handler or ``__del__``, and gets the
    original result.

    Args:
        answer: Receives the frame of the caller.
    """
    original = traceback.extract_stack

    @wraps(original)
    def extract_stack(f: FrameType | None = None, limit: int | None = None) -> StackSummary:
        caller = sys._getframe(1)
        is_paddle = "extract_stack" not in caller.f_code.co_names
        if f is None and limit is None and is_paddle:
            return answer(caller)
        return original(caller if f is None else f, limit)

    return extract_stack


# The call stack of the operators that this thread creates, in place of the actual one.
_own_stack: ThreadLocal[StackSummary | None] = ThreadLocal(None)
_NO_STACK = StackSummary()  # one for all operators
_CALL = "<call>"
# One for each number, since Paddle frees none.
_numbers: LRUCache[int, StackSummary] = process_cache(
    __name__,
    "numbers_of_calls",
    "numbers of calls of a trace, in the form of call stacks",
    key="number",
    bound=8192,
)


@contextmanager
def without_call_stacks() -> Iterator[None]:
    """Creates operators without call stacks in this thread, inside ``with``.

    Paddle never frees a call stack: kilobytes per operator, or tens of them in deep calls. At most
    one thread may be inside at a time, so that the original function is restored; unless other code
    has patched it in the meantime. A substitute that therefore remains, or remains in a process
    that another thread has forked, forwards its calls to the original.
    """
    original = traceback.extract_stack

    def answer(frame: FrameType) -> StackSummary:
        own = _own_stack.value
        return original(frame) if own is None else own

    substitute = intercepting_extract_stack(answer)
    traceback.extract_stack = substitute
    try:
        with _own_stack.overridden(_NO_STACK):
            yield
    finally:
        if traceback.extract_stack is substitute:
            traceback.extract_stack = original


def operators_numbered(number: int) -> AbstractContextManager[None]:
    """Returns a context manager in which operators have a number in place of a call stack.

    Inside :func:`without_call_stacks`.
    """
    stack = _numbers.get_or_create(
        number, lambda: StackSummary.from_list([(_CALL, number, "", "")])
    )
    return _own_stack.overridden(stack)


# Frames of these are no user's code: Paddle, this package, and decorators of Paddle's functions.
_LIBRARIES = (
    f"{Path(paddle.__file__).parent}/",
    f"{Path(__file__).parents[1]}/",
    *([str(decorator.__file__)] if (decorator := sys.modules.get("decorator")) else []),
    "<decorator",
    "<frozen",
)
_FRAME = re.compile(r'\s*File "(.+)", line (\d+)')


def stacks_of(block: Block) -> list[int]:
    """Returns handles of the call stacks of all operators of a block in its order; 0: none.

    Handles stay valid without the operators, since Paddle never frees call stacks.
    """
    from paddle_ngraph import _core  # not before Paddle is checked

    found: list[int] = _core.call_stacks_of(block)
    return found


def user_line(stack: int) -> str:
    """File and line of the user's code that created an operator; empty if Paddle noted none.

    It is the innermost one outside of Paddle and this package.

    Args:
        stack: The handle of its call stack.
    """
    for file, line in _frames(stack):
        if file != _CALL and not file.startswith(_LIBRARIES):
            return f"{file}:{line}"
    return ""


def call_of(stack: int) -> int | None:
    """The number that :func:`operators_numbered` gave an operator; ``None`` if it has none."""
    return next((int(line) for file, line in _frames(stack) if file == _CALL), None)


def _frames(stack: int) -> Iterator[tuple[str, str]]:
    """The files and lines of a call stack, the innermost first."""
    if not stack:
        return
    from paddle_ngraph import _core

    for text in reversed(_core.frames_of(stack)):
        if frame := _FRAME.match(text.decode(errors="replace")):
            yield frame[1], frame[2]


def calling_line() -> str:
    """File and line of the user's code that calls into Paddle now; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_LIBRARIES):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
