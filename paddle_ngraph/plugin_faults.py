"""Faults of the CPU plugin (OpenVINO 2026.4.1), and the forms of a model that avoid them.

Those that show with constants only are in constants.py.
"""

from __future__ import annotations

import numpy as np
from openvino import Model, Type, opset15
from openvino.utils import replace_node

# Marks a Divide that the engine must not turn into a product with a rounded reciprocal.
_EXACT_DIVIDE = "nonconvertable_divide_0"
# What the plugin joins a division to, and then divides wrongly.
_JOINED = (
    "Reduce",
    "MatMul",
    "Convolution",
    "GroupConvolution",
    "MVN",
    "NormalizeL2",
    "Interpolate",
)
# Comparisons, and the same with the operands exchanged.
_TURNED = {"Greater": opset15.less, "GreaterEqual": opset15.less_equal}


def avoid(model: Model) -> None:
    """Brings a model into a form that the plugin computes right, whatever its inputs."""
    _divide_exactly(model)
    _squeeze_to_scalars(model)
    _keep_what_abs_reads(model)
    _compare_from_below(model)


def _divide_exactly(model: Model) -> None:
    """Marks divisions to be kept as they are, where the engine computes these right.

    It joins a division by or of a constant to what its other input comes from; joined to one of
    ``_JOINED`` the result is wrong.
    """
    constant: set[str] = set()
    joined: set[str] = set()
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_name()
        sources = {value.get_node().get_name() for value in node.input_values()}
        if kind == "Constant" or (sources and sources <= constant):
            constant.add(name)
        elif kind.startswith(_JOINED) or sources & joined:
            joined.add(name)
        if kind == "Divide" and not (sources & constant and sources & joined):
            node.get_rt_info()[_EXACT_DIVIDE] = True


def _keep_what_abs_reads(model: Model) -> None:
    """Forms |x| as |-x| where something else reads x too: nothing else reads -x.

    The plugin's kernel of Abs writes over the register that x is read to, and what is fused behind
    it then finds |x| there: |x| + x comes out as 2 |x|. The larger of x and -x would not do: which
    zero is the larger of 0 and -0 depends on the instruction set.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Abs":
            continue
        x = node.input_value(0)
        if len(x.get_target_inputs()) > 1 and x.get_element_type() == Type.f32:
            replace_node(node, opset15.abs(opset15.negative(x)))


def _compare_from_below(model: Model) -> None:
    """Writes a > b as b < a: with AVX-512 the plugin finds a NaN greater than every number."""
    for node in model.get_ops():
        turned = _TURNED.get(node.get_type_name())
        if turned is not None:
            replace_node(node, turned(node.input_value(1), node.input_value(0)))


def _squeeze_to_scalars(model: Model) -> None:
    """Makes scalars by Squeeze: the engine crashes on some of what Reshape makes of products."""
    for node in model.get_ops():
        if node.get_type_name() == "Reshape" and len(node.get_output_partial_shape(0)) == 0:
            source = node.input_value(0)
            rank = len(source.get_partial_shape())
            if rank:
                axes = opset15.constant(np.arange(rank), Type.i64)
                replace_node(node, opset15.squeeze(source, axes))
