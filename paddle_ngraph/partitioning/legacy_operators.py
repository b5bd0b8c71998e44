"""Operators of ProgramDesc programs that a PIR program runs unchanged.

Where Paddle's translation to PIR would change an operator, the translated program has a custom
operator in its place, which runs the ProgramDesc operator by Paddle's own implementation. The
attributes of the custom operator are the description of the operator, its type, and the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import (
    AttrType,
    DenseTensor,
    OperatorBase,
    OperatorMessage,
    ProgramDesc,
    VarType,
    attribute_variables,
    new_scope,
    scope_remover,
)
from paddle_ngraph.paddle_private.protocols import (
    LegacyBlock,
    LegacyOperator,
    LegacyProgramDesc,
    Operation,
    Tensor,
)
from paddle_ngraph.partitioning import operator_chains
from paddle_ngraph.partitioning.analysis.operator_kinds import LEGACY_PREFIX, is_legacy_operator
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache, taken

MAX_OUTPUTS = 128
# The name by which a description refers to an absent variable.
ABSENT = "@EMPTY@"
_INPUT, _OUTPUT = "input_", "output_"
# Attributes about the script that made the program, without an effect.
_OF_ITS_AUTHOR = ("op_callstack", "op_namescope")
_COMPLEX = (VarType.COMPLEX64, VarType.COMPLEX128)
_REAL = {VarType.FP32: "float32", VarType.FP64: "float64"}
# The fields of an attribute's message with numbers, by the type of the attribute.
_NUMBERS = {AttrType.INT: "i", AttrType.LONG: "l", AttrType.FLOAT: "f", AttrType.FLOAT64: "float64"}
_LISTS = {
    **{AttrType.INTS: "ints", AttrType.LONGS: "longs"},
    **{AttrType.FLOATS: "floats", AttrType.FLOAT64S: "float64s"},
}
# Between the name of an attribute and the inputs that hold its numbers.
_HOLDS = ":"
# Between the name of a variable that an operator only looks up, and the variable's dtype.
_LOOKED_UP = "="
_GRADIENT = "@GRAD"


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


def described(op: LegacyOperator, block: LegacyBlock) -> tuple[str, list[str], list[str]]:
    """The description of an operator as text, and the names of its inputs and outputs, in order.

    The text is the operator in Paddle's format, the names of its outputs there, the names of
    attributes that are variables, and the variables of which Paddle looks up the dtype. A variable
    that the operator overwrites is an input and an output; so is one in place of an attribute an
    input.
    """
    inputs = [name for name in dict.fromkeys(op.input_arg_names(True)) if name != ABSENT]
    outputs = [name for name in dict.fromkeys(op.output_arg_names()) if name != ABSENT]
    names = {name: f"{_OUTPUT}{index}" for index, name in enumerate(outputs)}
    real = {names[name]: dtype for name, dtype in _real_gradients(op, block).items()}
    names = {name: each + _GRADIENT * (each in real) for name, each in names.items()}
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
    held = attribute_variables(op)
    for name in held:
        copy.remove_attr(name)
    if held:
        copy.check_attrs()  # gives them default values, which each run replaces
    attributes = [_HOLDS.join([a, *(names[n] for n in held[a])]) for a in held]
    encoded = base64.b64encode(copy.serialize_to_string()).decode()
    looked_up = [f"{name}{_LOOKED_UP}{dtype}" for name, dtype in real.items()]
    tokens = [encoded, *(names[name] for name in outputs), *attributes, *looked_up]
    return " ".join(tokens), inputs, outputs


def _real_gradients(op: LegacyOperator, block: LegacyBlock) -> dict[str, str]:
    """The outputs of an operator on complex numbers that are gradients of real variables.

    Of such a gradient Paddle keeps the real part, if it finds the variable.

    Returns:
        The dtypes of the variables, by the names of their gradients.
    """
    if not any(_dtype(block, name) in _COMPLEX for name in op.input_arg_names()):
        return {}
    gradients = (name for name in op.output_arg_names() if _GRADIENT in name)
    dtypes = {name: _dtype(block, name.rpartition(_GRADIENT)[0]) for name in gradients}
    return {name: _REAL[dtype] for name, dtype in dtypes.items() if dtype in _REAL}


def _dtype(block: LegacyBlock, name: str) -> Any:
    variable = block.find_var_recursive(name.encode())
    if variable is None or variable.type() != VarType.DENSE_TENSOR:
        return None
    return variable.dtype()


def holds_numbers(op: LegacyOperator) -> bool:
    """Whether all variables in place of attributes hold numbers, which each run can read."""
    program: LegacyProgramDesc = ProgramDesc()
    copy = program.block(0).append_op()
    copy.copy_from(op)
    held = attribute_variables(op)
    for name in held:
        copy.remove_attr(name)
    if held:
        copy.check_attrs()
    types = {copy.attr_type(name, True) for name in held if copy.has_attr(name)}
    return all(map(copy.has_attr, held)) and types <= {*_NUMBERS, *_LISTS}


def run(text: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
    """Runs a ProgramDesc operator. Called by the C++ core.

    Args:
        text: Its description.
        inputs: Tensors that are read, in the order of the description.
        outputs: Tensors that receive the results; more than the operator has are left alone.

    Raises:
        Exception: Any error of the operator.
    """
    if operator_chains.is_chained(text):
        operator_chains.run(text, [each for each in inputs if each is not None], outputs)
        return
    numbers = _numbers_of_attributes(text, inputs)
    with taken(_idle, (text, *numbers.items()), partial(_Kernel, text, numbers)) as kernel:
        kernel.run(inputs, outputs)


def _numbers_of_attributes(
    text: str, inputs: Sequence[Tensor | None]
) -> dict[str, tuple[float, ...]]:
    """The numbers that the inputs of a run hold in place of attributes, by the attributes' names.

    Paddle's operator would read the default of such an attribute.
    """
    found = {}
    for token in text.split(" ")[1:] if _HOLDS in text else ():
        name, *holders = token.split(_HOLDS)
        if holders:
            arrays = [np.array(inputs[int(each.removeprefix(_INPUT))]) for each in holders]
            found[name] = tuple(number for array in arrays for number in array.ravel().tolist())
    return found


def _with_numbers(encoded: str, numbers: dict[str, tuple[float, ...]]) -> bytes:
    """The description of an operator in Paddle's format, with these values of attributes."""
    message = OperatorMessage.FromString(base64.b64decode(encoded))
    for attribute in message.attrs:
        if attribute.name not in numbers:
            continue
        kind, values = AttrType(attribute.type), numbers[attribute.name]
        field = {_LISTS[kind]: values} if kind in _LISTS else {_NUMBERS[kind]: values[0]}
        attribute.CopyFrom(type(attribute)(name=attribute.name, type=attribute.type, **field))
    serialized: bytes = message.SerializeToString()
    return serialized


class _Kernel:
    """A ProgramDesc operator with the variables of a private scope. One run at a time.

    Args:
        text: The description of the operator.
        numbers: The values of attributes that are variables, by name.
    """

    def __init__(self, text: str, numbers: dict[str, tuple[float, ...]]) -> None:
        encoded, *tokens = text.split(" ")
        looked_up = [token.split(_LOOKED_UP) for token in tokens if _LOOKED_UP in token]
        outputs = [t for t in tokens if _HOLDS not in t and _LOOKED_UP not in t]
        self._operator = OperatorBase.create(_with_numbers(encoded, numbers))
        self._own_scope = _core.OwnedScope(new_scope(), scope_remover())
        names = dict.fromkeys([*self._operator.input_vars(), *outputs])
        scope = self._own_scope.scope
        self._tensors = {n: scope.var(n).get_tensor() for n in names if n != ABSENT}
        self._outputs = [self._tensors[name] for name in outputs]
        for name, dtype in looked_up:
            scope.var(name).get_tensor().set(np.zeros(1, dtype), paddle.CPUPlace())
        self._overwritten = {name for name in outputs if name.startswith(_INPUT)}

    def run(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Runs the operator on ``inputs``; the results are in new memory."""
        try:
            for index, theirs in enumerate(inputs):
                if theirs is None:  # the only element of the list of an operator without inputs
                    continue
                name = f"{_INPUT}{index}"
                if name not in self._tensors:  # in place of an attribute
                    continue
                operator_chains.lend(self._tensors[name], theirs, name in self._overwritten)
            self._operator.run(self._own_scope.scope, paddle.CPUPlace())
            for mine, theirs in zip(self._outputs, outputs):
                _core.share_tensor(theirs, mine)
        finally:
            # The next run must find neither memory nor LoD of this one.
            for mine in self._tensors.values():
                _core.share_tensor(mine, DenseTensor())


# A run takes one out while it uses it.
_idle: LRUCache[Hashable, list[_Kernel]] = process_cache(
    __name__,
    "idle_legacy_operators",
    "idle operators of ProgramDesc programs that translated programs run",
    key="description, numbers of attributes that are variables",
    bound=1024,
)
