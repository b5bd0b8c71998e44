"""Operators of ProgramDesc programs that a PIR program runs unchanged.

Where Paddle's translation to PIR would change an operator, the translated program has a custom
operator in its place, which runs the ProgramDesc operator by Paddle's own implementation. The
attributes of the custom operator are the description of the operator, its type, and the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import paddle

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import (
    DenseTensor,
    OperatorBase,
    ProgramDesc,
    copy_of,
    is_initialized,
    new_scope,
    scope_remover,
)
from paddle_ngraph.paddle_private.protocols import (
    LegacyOperator,
    LegacyProgramDesc,
    Operation,
    Tensor,
)
from paddle_ngraph.partitioning.analysis.operator_kinds import LEGACY_PREFIX, is_legacy_operator
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache

MAX_OUTPUTS = 128
# The name by which a description refers to an absent variable.
ABSENT = "@EMPTY@"
_INPUT, _OUTPUT = "input_", "output_"
# Attributes about the script that made the program, without an effect.
_OF_ITS_AUTHOR = ("op_callstack", "op_namescope")


def type_of(outputs: int) -> str:
    """The type of the custom operator that has room for a number of outputs."""
    capacity = 1
    while capacity < outputs:
        capacity *= 2
    return f"{LEGACY_PREFIX}{capacity}"


def capacity_of(type: str) -> int:
    """The number of outputs of a custom operator of this type."""
    return int(type.removeprefix(LEGACY_PREFIX))


def reason_of(op: Operation) -> str | None:
    """Why ``op`` is a ProgramDesc operator; ``None`` for every other operator."""
    return str(op.attrs()["reason"]) if is_legacy_operator(op.name()) else None


def shown_type(op: Operation) -> str:
    """The type of an operator for reports: that of the ProgramDesc operator, if it runs one."""
    return str(op.attrs()["type"]) if is_legacy_operator(op.name()) else op.name()


def described(op: LegacyOperator) -> tuple[str, list[str], list[str]]:
    """The description of an operator as text, and the names of its inputs and outputs, in order.

    The text is the operator in Paddle's format, and the names of its outputs there. A variable that
    the operator overwrites is an input and an output.
    """
    inputs = [name for name in dict.fromkeys(op.input_arg_names()) if name != ABSENT]
    outputs = [name for name in dict.fromkeys(op.output_arg_names()) if name != ABSENT]
    names = {name: f"{_OUTPUT}{index}" for index, name in enumerate(outputs)}
    names.update({name: f"{_INPUT}{index}" for index, name in enumerate(inputs)})
    program: LegacyProgramDesc = ProgramDesc()
    copy = program.block(0).append_op()
    copy.copy_from(op)
    for name in _OF_ITS_AUTHOR:
        if copy.has_attr(name):
            copy.remove_attr(name)
    for slot in copy.input_names():
        copy.set_input(slot, [names.get(name, name) for name in op.input(slot)])
    for slot in copy.output_names():
        copy.set_output(slot, [names.get(name, name) for name in op.output(slot)])
    encoded = base64.b64encode(copy.serialize_to_string()).decode()
    return " ".join([encoded, *(names[name] for name in outputs)]), inputs, outputs


def run(text: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Runs a ProgramDesc operator. Called by the C++ core.

    Args:
        text: Its description.
        inputs: Tensors that are read, in the order of the description.
        outputs: Tensors that receive the results; more than the operator has are left alone.

    Raises:
        Exception: Any error of the operator.
    """
    idle = _idle.get_or_create(text, list)
    try:
        kernel = idle.pop()
    except IndexError:  # the first run, or other threads use all
        kernel = _Kernel(text)
    kernel.run(inputs, outputs)
    idle.append(kernel)


class _Kernel:
    """A ProgramDesc operator with the variables of a private scope. One run at a time.

    Args:
        text: The description of the operator.
    """

    def __init__(self, text: str) -> None:
        encoded, *outputs = text.split(" ")
        self._operator = OperatorBase.create(base64.b64decode(encoded))
        self._own_scope = _core.OwnedScope(new_scope(), scope_remover())
        names = dict.fromkeys([*self._operator.input_vars(), *outputs])
        scope = self._own_scope.scope
        self._tensors = {n: scope.var(n).get_tensor() for n in names if n != ABSENT}
        self._outputs = [self._tensors[name] for name in outputs]
        self._overwritten = {name for name in outputs if name.startswith(_INPUT)}

    def run(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Runs the operator on ``inputs``; the results are in new memory."""
        try:
            for index, theirs in enumerate(inputs):
                name = f"{_INPUT}{index}"
                _core.share_tensor(self._tensors[name], theirs)
                if name in self._overwritten and is_initialized(theirs):
                    copy = copy_of(theirs, paddle.CPUPlace())
                    copy.set_lod(theirs.lod())
                    _core.share_tensor(self._tensors[name], copy)
            self._operator.run(self._own_scope.scope, paddle.CPUPlace())
            for mine, theirs in zip(self._outputs, outputs):
                _core.share_tensor(theirs, mine)
        finally:
            # The next run must find neither memory nor LoD of this one.
            for mine in self._tensors.values():
                _core.share_tensor(mine, DenseTensor())


# A run takes one out while it uses it.
_idle: LRUCache[str, list[_Kernel]] = process_cache(
    __name__,
    "idle_legacy_operators",
    "idle operators of ProgramDesc programs that translated programs run",
    key="description",
    bound=1024,
)
