"""Creation and evaluation of the nGraph operators that the C++ core defines."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import openvino as ov
from openvino import Node
from openvino.utils.node_factory import NodeFactory

from paddle_ngraph.conversion.node_tools import as_output
from paddle_ngraph.conversion.symbolic_sizes import SymbolicSize
from paddle_ngraph.errors import ErrorCode, NgraphError
from paddle_ngraph.ir.graph import CPU
from paddle_ngraph.utils.once import once


@once
def _extension_factory() -> NodeFactory:
    """The factory that creates nodes of the operators of the C++ core."""
    factory = NodeFactory("opset15")
    # Raises ImportError in a package that was built without the engine (WITH_NGRAPH=OFF).
    core = import_module("paddle_ngraph._core")
    factory.add_extension(str(core.__file__))
    return factory


def extension(name: str, inputs: Sequence[Any], **attributes: Any) -> Node:
    """A node of an operator of this package (core/ov/extension_ops.cc lists them).

    Args:
        name: The class of the operator, e.g. ``"PaddleMaxPoolGrad"``.
        inputs: The operands of the operator in order: nodes or outputs.
        attributes: The attributes of the operator: numbers, bools, or lists of these.

    Raises:
        NgraphError: There is no such operator, or it rejects the inputs or attributes.
    """
    try:
        return _extension_factory().create(name, [as_output(i) for i in inputs], attributes)
    except RuntimeError as error:
        raise NgraphError(f"extension operator {name}: {error}") from error


def extension_for(device: str, name: str, inputs: Sequence[Any], /, **attributes: Any) -> Node:
    """Calls :func:`extension` for a function on ``device``; fixes symbolic sizes in attributes.

    Raises:
        NgraphError: As for :func:`extension`, and if the function is not for the CPU.
    """
    if device != CPU:
        raise NgraphError(f"{device} has no {name}, an operator of the engine for CPUs")
    return extension(name, inputs, **{key: _fixed(each) for key, each in attributes.items()})


def _fixed(attribute: Any) -> Any:
    """An attribute of a node; symbolic sizes in it become static, with their current values."""
    if isinstance(attribute, (list, tuple)):
        return [_fixed(each) for each in attribute]
    return int(attribute) if isinstance(attribute, SymbolicSize) else attribute


def evaluate(node: Node, results: Sequence[ov.Tensor], inputs: Sequence[ov.Tensor]) -> bool:
    """Evaluates a node during the build. Returns whether nGraph can evaluate it.

    Raises:
        NgraphError: An operator of this package rejects the inputs.
    """
    try:
        return bool(node.evaluate(results, inputs))
    except RuntimeError as error:
        # The bindings turn errors of this package's operators into RuntimeError with the same text.
        core = import_module("paddle_ngraph._core")
        if (found := core.operator_error(str(error))) is None:
            raise
        message, code, op_id = found
        raise NgraphError(message, code=ErrorCode(code), op_id=op_id) from error
