"""The Python call stacks that Paddle records for each operator of a program."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from traceback import StackSummary
from types import FrameType

import paddle

from paddle_ngraph.paddle_private.protocols import Operation
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


_skips_call_stacks: ThreadLocal[bool] = ThreadLocal(False)


@contextmanager
def without_call_stacks() -> Iterator[None]:
    """Creates operators without call stacks in this thread, inside ``with``.

    Paddle never frees a call stack: kilobytes per operator, or tens of them in deep calls. At most
    one thread may be inside at a time, so that the original function is restored; unless other code
    has patched it in the meantime. A substitute that therefore remains, or remains in a process
    that another thread has forked, forwards its calls to the original.
    """
    original = traceback.extract_stack
    empty = StackSummary()  # one for all operators, which Paddle does not free either

    def answer(frame: FrameType) -> StackSummary:
        return empty if _skips_call_stacks.value else original(frame)

    substitute = intercepting_extract_stack(answer)
    traceback.extract_stack = substitute
    try:
        with _skips_call_stacks.overridden(True):
            yield
    finally:
        if traceback.extract_stack is substitute:
            traceback.extract_stack = original


_LIBRARIES = (f"{Path(paddle.__file__).parent}/", f"{Path(__file__).parents[1]}/")
_FRAME = re.compile(r'\s*File "(.+)", line (\d+)')


def user_line(op: Operation) -> str:
    """File and line of the user's code that created an operator; empty if Paddle noted none.

    It is the innermost one outside of Paddle and this package.
    """
    if not op.has_attr("op_callstack"):
        return ""
    try:
        stack = op.attrs()["op_callstack"]
    except NotImplementedError:  # Paddle cannot read operators with complex attributes
        return ""
    for frame in map(_FRAME.match, reversed(stack)):  # the innermost one is the last
        if frame and not frame[1].startswith(_LIBRARIES):
            return f"{frame[1]}:{frame[2]}"
    return ""
