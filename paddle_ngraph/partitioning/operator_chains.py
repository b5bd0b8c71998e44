"""Operators of ProgramDesc programs that run in program order, in one scope for each run.

The *chain* of a translated program has the operators with effects, such as calls of Python, and
those that share other variables than dense tensors, such as rows of a sparse gradient. Its first
operator begins a run: it makes a scope, and a tensor with the number of the run, which all others
read. Each of them reads the link that the one before has written, so their order is that of data.
"""

from __future__ import annotations

import atexit
import base64
import json
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import paddle

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import (
    BlockExecutor,
    DenseTensor,
    ProgramDesc,
    copy_of,
    is_initialized,
    new_scope,
    scope_remover,
)
from paddle_ngraph.paddle_private.protocols import LegacyProgramDesc, Scope, Tensor
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.utils.thread_local import ThreadLocal

# The context of Python functions of the user, which may run programs themselves, in this thread.
outside: ThreadLocal[AbstractContextManager[Any]] = ThreadLocal(nullcontext())
# The description of the operator that begins a run.
BEGIN = "begin"
_LINKED = "linked "


class Properties(NamedTuple):
    """Properties of an operator of a chain, beside its program.

    Attributes:
        number: Tells apart operators of equal contents, which may have a state (``print``).
        is_last: Whether no other operator of the chain runs later in a run.
        calls_python: Whether it calls a Python function of the user.
    """

    number: int
    is_last: bool
    calls_python: bool


def text_of(
    program: bytes, inputs: Sequence[str], outputs: Sequence[str], properties: Properties
) -> str:
    """The description of an operator of a chain.

    Args:
        program: A serialized ProgramDesc program of the operator, and the blocks that it runs.
        inputs, outputs: The dense tensors that it reads and writes, by name.
        properties: Its other properties.
    """
    encoded = base64.b64encode(program).decode()
    return _LINKED + json.dumps([encoded, list(inputs), list(outputs), list(properties)])


def is_chained(text: str) -> bool:
    """Whether a description is that of an operator of a chain."""
    return text == BEGIN or text.startswith(_LINKED)


def run(text: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Runs an operator of a chain.

    Args:
        text: Its description.
        inputs: For :data:`BEGIN`, anything. Otherwise the number of the run, the last link, and
            the inputs of the operator.
        outputs: For :data:`BEGIN`, the number of the run and the first link. Otherwise the next
            link, and the outputs of the operator; more are left alone.

    Raises:
        Exception: Any error of the operator.
    """
    if text == BEGIN:
        _ended.clear()
        _core.share_tensor(outputs[0], _Run().numbered())
        _core.share_tensor(outputs[1], _link())
        return
    run = _runs[int(np.array(inputs[0])[0])]
    idle = _idle.get_or_create(text, list)
    try:
        operator = idle.pop()
    except IndexError:  # the first run, or other threads use all
        operator = _Operator(text)
    with outside.value if operator.properties.calls_python else nullcontext():
        operator.run(run.scope, inputs[2:], outputs[1:])
    _core.share_tensor(outputs[0], _link())
    if operator.properties.is_last:
        run.end()
    idle.append(operator)


def _link() -> Tensor:
    """A tensor whose only meaning is that it exists."""
    link: Tensor = DenseTensor()
    link.set(np.zeros(1, "int64"), paddle.CPUPlace())
    return link


# The scopes of runs that did not end, as after an error, until the next run begins.
_ended: deque[Any] = deque()


class _Run:
    """A run of a program, with the variables that operators of its chain share."""

    def __init__(self) -> None:
        self._own_scopes = [_core.OwnedScope(new_scope(), scope_remover())]
        self._number = next(_numbers)
        _runs[self._number] = self

    def __del__(self, keep: Callable[[Iterable[Any]], None] = _ended.extend) -> None:
        # Not here: Paddle may be about to remove the scope that has the last reference, and could
        # not remove another one meanwhile.
        keep(self._own_scopes)

    @property
    def scope(self) -> Scope:
        """The variables."""
        scope: Scope = self._own_scopes[0].scope
        return scope

    @property
    def has_ended(self) -> bool:
        """Whether its variables were dropped."""
        return not self._own_scopes

    def end(self) -> None:
        """Drops the variables."""
        self._own_scopes.clear()

    def numbered(self) -> Tensor:
        """A tensor with the number of the run, whose memory keeps the run alive."""
        array = _Number.__new__(_Number, (1,), np.int64)
        array[:] = self._number
        array.run = self
        tensor: Any = DenseTensor()
        tensor.set(array, paddle.CPUPlace(), True)  # without a copy
        return tensor  # type: ignore[no-any-return]


class _Number(np.ndarray):
    """The number of a run, which it keeps alive."""

    run: _Run


_numbers = count(1)
_runs: WeakValueDictionary[int, _Run] = WeakValueDictionary()


def live_runs() -> int:
    """The number of runs with variables."""
    return sum(not run.has_ended for run in list(_runs.values()))


@atexit.register
def _end_runs() -> None:
    """Ends all runs before Paddle removes its scopes, some of which have references to runs."""
    for run in list(_runs.values()):
        run.end()
    _ended.clear()


class _Operator:
    """An operator of a chain, prepared by Paddle. One run at a time.

    Args:
        text: Its description.

    Attributes:
        properties: Its properties, beside its program.
    """

    def __init__(self, text: str) -> None:
        encoded, self._inputs, self._outputs, properties = json.loads(text.removeprefix(_LINKED))
        self.properties = Properties(*properties)
        self._program: LegacyProgramDesc = ProgramDesc(base64.b64decode(encoded))
        self._executor = BlockExecutor(paddle.CPUPlace())
        self._prepared = self._executor.prepare(self._program, 0, [], True)

    def run(self, scope: Scope, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Runs the operator on the variables of a scope, and these tensors."""
        self._executor.create_variables(self._program, scope, 0)
        names = dict.fromkeys([*self._inputs, *self._outputs])
        tensors = {name: scope.var(name).get_tensor() for name in names}
        try:
            for name, theirs in zip(self._inputs, inputs):
                _core.share_tensor(tensors[name], theirs)
                if name in self._outputs and is_initialized(theirs):
                    self._own(tensors[name], theirs, outputs)
            # In the scope itself, whose children survive: the scopes of a block's runs.
            self._executor.run_prepared_ctx(self._prepared, scope, False, False, True)
            for name, theirs in zip(self._outputs, outputs):
                _core.share_tensor(theirs, tensors[name])
        finally:
            for mine in tensors.values():
                _core.share_tensor(mine, DenseTensor())

    def _own(self, mine: Tensor, theirs: Tensor, outputs: Sequence[Tensor]) -> None:
        """Gives an overwritten input memory of its own, if its result is another variable."""
        if not any(theirs is output for output in outputs):
            copy = copy_of(theirs, paddle.CPUPlace())
            copy.set_lod(theirs.lod())
            _core.share_tensor(mine, copy)


# A run takes one out while it uses it.
_idle: LRUCache[Hashable, list[_Operator]] = process_cache(
    __name__,
    "idle_chained_operators",
    "idle operators with effects or rows of ProgramDesc programs that translated programs run",
    key="description",
    bound=1024,
)
