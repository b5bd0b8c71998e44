"""TensorArrays that begin and end in one interval, to which elements are only appended."""

from __future__ import annotations

import numpy as np
from openvino import Output, Type, opset15

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.function.bridge import NgraphBridge
from paddle_ngraph.function.registry import ANY, ARRAYS, Limit, Role, converter
from paddle_ngraph.function.sizes import MOST_OPEN, Number, is_always_at_least
from paddle_ngraph.function.tensor_arrays import APPEND, TensorArray
from paddle_ngraph.graph import Op
from paddle_ngraph.ops.nodes import known_int, reshaped, transposed


@converter("pd_op.create_array", dtypes=ARRAYS)
def create_array(bridge: NgraphBridge, op: Op) -> None:
    """A TensorArray without elements (Paddle ``create_array``)."""
    bridge.set_array(op, "out", TensorArray())


@converter(APPEND, dtypes=ANY | ARRAYS)
def array_write_(bridge: NgraphBridge, op: Op) -> None:
    """Writes behind the last element of a TensorArray (Paddle ``array_write_``).

    It is certain that it does: what is written elsewhere replaces an element or leaves a gap.
    """
    array = bridge.get_array(op, "array")
    if not bridge.holds(op, "i", bridge.length(array)):
        raise NgraphError("it may write elsewhere than behind the last element")
    element = opset15.unsqueeze(bridge.get_input_node(op, "x"), bridge.ints([0]))
    bridge.append(array, element)
    bridge.set_array(op, "out", array)


@converter("pd_op.array_length", dtypes=ARRAYS, small_integers=True)
def array_length(bridge: NgraphBridge, op: Op) -> None:
    """The number of elements (Paddle ``array_length``)."""
    bridge.set_output_node(op, "out", bridge.ints([bridge.length(bridge.get_array(op, "x"))]))


@converter(
    "pd_op.array_to_tensor",
    dtypes=ARRAYS,
    outputs={"out_index": Role.OMITTED},
    limits=[Limit("its axis counts from the end", lambda op: op.attr("axis") >= 0)],
    small_integers=True,
)
def array_to_tensor(bridge: NgraphBridge, op: Op) -> None:
    """All elements in one tensor, along an axis of theirs or a new one (``array_to_tensor``)."""
    elements = bridge.elements(bridge.get_array(op, "x"))
    count, *shape = bridge.shape(elements)
    axis, is_new = op.attr("axis"), op.attr("use_stack")
    if axis >= len(shape) + is_new:
        raise NgraphError(f"there is no axis {axis}")
    axes = list(range(1, len(shape) + 1))
    axes.insert(axis, 0)
    node = transposed(bridge, elements, axes)
    if not is_new:
        joined = [*shape[:axis], count * shape[axis], *shape[axis + 1 :]]
        node = reshaped(bridge, node, joined)
    bridge.set_output_node(op, "out", node)


@converter(
    "pd_op.slice_array_dense",
    dtypes=ARRAYS,
    inputs={"starts": Role.CONSTANT},
    small_integers=True,
)
def slice_array_dense(bridge: NgraphBridge, op: Op) -> None:
    """One element, counted from the end where that is negative (Paddle ``slice_array_dense``)."""
    array = bridge.get_array(op, "input")
    start = int(known_int(bridge, op, "starts"))
    place = start if start >= 0 else bridge.length(array) + start
    bridge.set_output_node(op, "out", _element_at(bridge, array, place))


@converter(
    "pd_op.array_read",
    dtypes=ARRAYS,
    inputs={"i": Role.INDEX},
    small_integers=True,
)
def array_read(bridge: NgraphBridge, op: Op) -> None:
    """One element (Paddle ``array_read``)."""
    array = bridge.get_array(op, "array")
    if bridge.is_known(op, "i"):
        place = known_int(bridge, op, "i")
        bridge.set_output_node(op, "out", _element_at(bridge, array, place))
        return
    elements = bridge.elements(array)
    bridge.require_range(op, "i", 0, MOST_OPEN)
    place = opset15.convert(reshaped(bridge, bridge.get_input_node(op, "i"), []), Type.i32)
    # How many there are only a run tells: so those behind the place are checked, too.
    count = reshaped(bridge, bridge.ints([bridge.length(array)]), [])
    last = opset15.subtract(opset15.convert(count, Type.i32), opset15.constant(np.int32(1)))
    limits = {"low": [0], "high": [MOST_OPEN], "has_ignored": False, "ignored": 0}
    message = f"{op.type} (operator {op.index}): input 'i' is out of range."
    behind = bridge.extension(
        "CheckRange", [opset15.subtract(last, place)], message=message, **limits
    )
    bridge.set_output_node(op, "out", _taken(elements, opset15.subtract(last, behind).output(0)))


def _element_at(bridge: NgraphBridge, array: TensorArray, place: Number) -> Output:
    """The element at a place that the build knows."""
    if not is_always_at_least(place, 0) or not is_always_at_least(bridge.length(array) - 1, place):
        raise NgraphError("there may be no element at this place")
    return _taken(bridge.elements(array), reshaped(bridge, bridge.ints([place]), []))


def _taken(elements: Output, place: Output) -> Output:
    return opset15.gather(elements, place, opset15.constant(np.int64(0))).output(0)
