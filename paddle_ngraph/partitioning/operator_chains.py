"""Operators of ProgramDesc programs that run in program order, in one scope for each run.

The *chain* of a translated program has the operators with effects, such as calls of Python, and
those that share other variables than dense tensors, such as rows of a sparse gradient. Its first
operator begins a run: it makes a scope, and a tensor with the number of the run, which all others
read. Each of them reads the link that the one before has written, so their order is that of data.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

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
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache, taken
from paddle_ngraph.utils.thread_local import ThreadLocal

# The context of Python functions of the user, which may run programs themselves, in this thread.
outside: ThreadLocal[AbstractContextManager[Any]] = ThreadLocal(nullcontext())
# The descriptions of the operators that begin and end a run.
BEGIN, END = "begin", "end"
# The number of operands before those of the operator: the number of the run, and the link.
_BEFORE = 2
# How many runs may have variables: an error beside the chain leaves some behind.
_MAX_RUNS = 256
_LINKED = "linked "


class Properties(NamedTuple):
    """Properties of an operator of a chain, beside its program.

    Attributes:
        state: Names the state of the operator, such as how often it has printed.
        calls_python: Whether it calls a Python function of the user.
    """

    state: str
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
    return _LINKED + json.dumps([encoded, list(inputs), list(outputs), list(properties), []])


def overwriting(text: str, operands: Sequence[int]) -> str:
    """The description of an operator that overwrites operands, by their numbers, in place."""
    *described, _ = json.loads(text.removeprefix(_LINKED))
    names = [described[1][operand - _BEFORE] for operand in operands]
    return _LINKED + json.dumps([*described, names])


def is_chained(text: str) -> bool:
    """Whether a description is that of an operator of a chain."""
    return text in (BEGIN, END) or text.startswith(_LINKED)


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
        _core.share_tensor(outputs[0], _tensor(_begin()))
        _core.share_tensor(outputs[1], _tensor(0))
        return
    number = int(np.array(inputs[0])[0])
    try:
        if text != END:
            _run_linked(text, _runs[number].scope, inputs[_BEFORE:], outputs[1:])
    except BaseException:
        _runs.pop(number, None)
        raise
    if text == END:
        _runs.pop(number, None)
    _core.share_tensor(outputs[0], _tensor(0))


def live_runs() -> int:
    """The number of runs with variables."""
    return len(_runs)


def _run_linked(
    text: str, scope: Scope, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> None:
    with (
        taken(_idle, text, partial(_LinkedOperator, text)) as operator,
        outside.value if operator.properties.calls_python else nullcontext(),
    ):
        operator.run(scope, inputs, outputs)


def lend(mine: Tensor, theirs: Tensor, is_overwritten: bool) -> None:
    """Has a variable of an operator share an input of a run, or a copy if it is overwritten."""
    given = theirs
    if is_overwritten and is_initialized(theirs):
        given = copy_of(theirs, paddle.CPUPlace())
        given.set_lod(theirs.lod())
    _core.share_tensor(mine, given)


def _begin() -> int:
    """Makes the scope of a run; returns its number."""
    number = next(_numbers)
    _runs[number] = _core.OwnedScope(new_scope(), scope_remover())
    while len(_runs) > _MAX_RUNS:
        with suppress(KeyError, StopIteration):  # another thread has ended the run
            _runs.pop(next(iter(_runs)))
    return number


def _tensor(number: int) -> Tensor:
    """A tensor of a number, in memory of Paddle: no thread needs Python to release it."""
    tensor: Tensor = DenseTensor()
    tensor.set(np.full(1, number, "int64"), paddle.CPUPlace())
    return tensor


_numbers = count(1)
_runs: dict[int, _core.OwnedScope] = {}


class _LinkedOperator:
    """An operator of a chain, prepared by Paddle. One run at a time.

    Args:
        text: Its description.

    Attributes:
        properties: Its properties, beside its program.
    """

    def __init__(self, text: str) -> None:
        described = json.loads(text.removeprefix(_LINKED))
        encoded, self._inputs, self._outputs, properties, in_place = described
        self.properties = Properties(*properties)
        self._program: LegacyProgramDesc = ProgramDesc(base64.b64decode(encoded))
        self._copied = {*self._inputs} & {*self._outputs} - {*in_place}
        self._executor = BlockExecutor(paddle.CPUPlace())
        self._prepared = self._executor.prepare(self._program, 0, [], True)

    def run(self, scope: Scope, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Runs the operator on the variables of a scope, and these tensors."""
        self._executor.create_variables(self._program, scope, 0)
        names = dict.fromkeys([*self._inputs, *self._outputs])
        tensors = {name: scope.var(name).get_tensor() for name in names}
        try:
            for name, theirs in zip(self._inputs, inputs):
                lend(tensors[name], theirs, name in self._copied)
            # In the scope itself, whose children survive: the scopes of a block's runs.
            self._executor.run_prepared_ctx(self._prepared, scope, False, False, True)
            for name, theirs in zip(self._outputs, outputs):
                _core.share_tensor(theirs, tensors[name])
        finally:
            for mine in tensors.values():
                _core.share_tensor(mine, DenseTensor())


# A run takes one out while it uses it.
_idle: LRUCache[Hashable, list[_LinkedOperator]] = process_cache(
    __name__,
    "idle_chained_operators",
    "idle operators with effects or rows of ProgramDesc programs that translated programs run",
    key="description",
    bound=1024,
)
