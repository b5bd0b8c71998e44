"""TensorArrays that exist inside one subgraph only, and are written by appending only."""

from __future__ import annotations

import numpy as np
from openvino import Output, Type, opset15

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.errors import RunError
from paddle_ngraph.conversion.registry import ANY, ARRAYS, Limit, Role, converter
from paddle_ngraph.conversion.size_rules import is_same_shape
from paddle_ngraph.conversion.symbolic_sizes import MAX_SYMBOLIC_SIZE, Number, is_always_at_least
from paddle_ngraph.conversion.tensor_arrays import APPEND, TensorArray
from paddle_ngraph.errors import SENTENCES, NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import known_int, reshaped, transposed


@converter("pd_op.create_array", dtypes=ARRAYS)
def create_array(bridge: NgraphBridge, op: Op) -> None:
    """A TensorArray without elements (Paddle ``create_array``)."""
    bridge.arrays[op.output("out")] = TensorArray()


@converter(APPEND, dtypes=ANY | ARRAYS)
def array_write_(bridge: NgraphBridge, op: Op) -> None:
    """Appends to a TensorArray (Paddle ``array_write_``).

    Raises:
        NgraphError: The index may differ from the length; a write elsewhere would replace an
            element or leave a gap.
    """
    array = bridge.arrays[op.input("array")]
    if not _is_always(bridge, op, "i", bridge.arrays.length(array)):
        raise NgraphError("its index may differ from the length")
    element = opset15.unsqueeze(bridge.get_input_node(op, "x"), bridge.ints([0]))
    bridge.arrays.append(array, element)
    bridge.arrays[op.output("out")] = array


def _is_always(bridge: NgraphBridge, op: Op, name: str, number: Number) -> bool:
    """Whether input ``name`` has one element, which is ``number`` in all runs and iterations."""
    found = bridge.folding.contents(bridge.get_input_node(op, name))
    contents = [] if found is None else found.reshape(-1).tolist()
    if is_same_shape(contents, [number]):
        return True
    value = bridge.induction.value(op.input(name))
    return value is not None and is_same_shape([value], [number])


@converter(
    "pd_op.array_length",
    dtypes=ARRAYS,
    inputs={"x": Role.SHAPE_ONLY},
    integers=lambda op, ranges: (0, MAX_SYMBOLIC_SIZE),
)
def array_length(bridge: NgraphBridge, op: Op) -> None:
    """The number of elements of a TensorArray (Paddle ``array_length``)."""
    bridge.set_output_node(
        op, "out", bridge.ints([bridge.arrays.length(bridge.arrays[op.input("x")])])
    )


@converter(
    "pd_op.array_to_tensor",
    dtypes=ARRAYS,
    outputs={"out_index": Role.OMITTED},
    limits=[Limit("its axis counts from the end", lambda op: op.attr("axis") >= 0)],
    small_integers=True,
)
def array_to_tensor(bridge: NgraphBridge, op: Op) -> None:
    """All elements of a TensorArray in one tensor, along an existing axis or a new one.

    Paddle ``array_to_tensor``.
    """
    elements = bridge.arrays.elements(bridge.arrays[op.input("x")])
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
    inputs={"starts": Role.INDEX},
    small_integers=True,
)
def slice_array_dense(bridge: NgraphBridge, op: Op) -> None:
    """One element of a TensorArray; negative indices count from the end (``slice_array_dense``)."""
    _set_element(bridge, op, "input", "starts", -MAX_SYMBOLIC_SIZE)


@converter("pd_op.array_read", dtypes=ARRAYS, inputs={"i": Role.INDEX}, small_integers=True)
def array_read(bridge: NgraphBridge, op: Op) -> None:
    """One element of a TensorArray (Paddle ``array_read``)."""
    _set_element(bridge, op, "array", "i", 0)


def _set_element(bridge: NgraphBridge, op: Op, name: str, index: str, least: int) -> None:
    """Sets output ``out`` to an element of the TensorArray in input ``name``.

    Args:
        index: The name of the input that contains the element's index.
        least: The least index: 0, or a negative one if indices may count from the end.
    """
    array = bridge.arrays[op.input(name)]
    position = known_int(bridge, op, index) if bridge.is_known(op, index) else None
    if isinstance(position, int) and least <= position < 0:
        if (element := _recent_element(bridge, array, -position)) is not None:
            bridge.set_output_node(op, "out", element)
            return
        position = bridge.arrays.length(array) + position
    elements, count = bridge.arrays.elements(array), bridge.arrays.length(array)
    if (
        position is not None
        and is_always_at_least(position, 0)
        and is_always_at_least(count - 1, position)
    ):
        node = reshaped(bridge, bridge.ints([position]), [])
    else:
        node = _checked_index(bridge, op, index, least, count)
    out = opset15.gather(elements, node, opset15.constant(np.int64(0)))
    bridge.set_output_node(op, "out", out)


def _recent_element(bridge: NgraphBridge, array: TensorArray, number: int) -> Output | None:
    """The ``number``-th element from the end, if it was appended alone; else ``None``.

    Examples are the elements that the current iteration appends.
    """
    last = array.chunks[-number:]
    if len(last) < number or not all(is_same_shape(bridge.shape(part)[:1], [1]) for part in last):
        return None
    return reshaped(bridge, last[0], bridge.shape(last[0])[1:])


def _checked_index(bridge: NgraphBridge, op: Op, index: str, least: int, count: Number) -> Output:
    """The index of a TensorArray's element, as a node, since only a run knows it; 0 or more.

    If the index is out of range, the run falls back to Paddle.
    """
    bridge.integers.require_range(op, index, least, MAX_SYMBOLIC_SIZE)
    position = opset15.convert(reshaped(bridge, bridge.get_input_node(op, index), []), Type.i32)
    size = opset15.convert(reshaped(bridge, bridge.ints([count]), []), Type.i32)
    if least < 0:
        zero = opset15.constant(np.int32(0))
        position = opset15.select(
            opset15.less(position, zero), opset15.add(position, size), position
        )
        # An index before the first element reads the first element.
        position = opset15.maximum(position, zero)
    # A check has constant limits, unlike the TensorArray's number of elements: so one check is of
    # the number of elements before the index, and one of the number after it.
    error = RunError.of(op, SENTENCES["out_of_range"].format(name=index))
    before = bridge.integers.in_range(position, 0, MAX_SYMBOLIC_SIZE, error)
    last = opset15.subtract(size, opset15.constant(np.int32(1)))
    behind = bridge.integers.in_range(opset15.subtract(last, before), 0, MAX_SYMBOLIC_SIZE, error)
    return opset15.subtract(last, behind).output(0)
