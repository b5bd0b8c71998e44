"""The bridge: nodes, constants, and errors that name the operator."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import paddle
import pytest
from openvino import opset15

from paddle_ngraph.conversion.bridge import element_type
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.registry import converter, unregister
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec
from paddle_ngraph.utils.dtypes import DTYPES
from tests.programs import Program, floats

NAME = "custom_op.only_in_this_test"
X, Y = TensorSpec(0, "float32", (-1, 4)), TensorSpec(1, "float32", (-1, 4))
SIGNATURE = [("f32", (2, 4))]


@pytest.fixture
def register():
    def add(function, **options):
        converter(NAME, **options)(function)

    yield add
    unregister(NAME)


def bridge(**changes):
    op = Op(NAME, 5, {"x": (X,)}, {"out": (Y,)})
    graph = Graph([op], [X], [], [Y], [])
    for name, value in changes.items():
        setattr(graph, name, value)
    return FunctionBuilder(graph, SIGNATURE)


def test_input_and_output_nodes(register):
    register(lambda b, op: b.set_output_node(op, "out", opset15.relu(b.get_input_node(op, "x"))))
    model, positions = bridge().build()
    assert positions == [0]
    assert list(model.outputs[0].get_shape()) == [2, 4]


def test_a_bridge_is_freed_with_its_last_reference(register):
    """Nodes of a bridge reference the memory of weights until the garbage collector frees them."""
    register(lambda b, op: b.set_output_node(op, "out", opset15.relu(b.get_input_node(op, "x"))))
    builder = bridge()
    builder.build()
    reference = weakref.ref(builder.bridge)
    gc.disable()
    try:
        del builder
        assert reference() is None
    finally:
        gc.enable()


def test_a_wrong_dtype_is_an_error_of_the_operator(register):
    register(lambda b, op: b.set_output_node(op, "out", b.ints([1, 2])))
    with pytest.raises(NgraphError, match=rf"{NAME} \(operator 5\): output 'out' became int64"):
        bridge().build()


def test_a_wrong_shape_is_an_error_of_the_operator(register):
    register(lambda b, op: b.set_output_node(op, "out", b.full(0.0, "float32", [2, 3])))
    with pytest.raises(NgraphError, match=r"became \[2, 3\], Paddle's shape is \[-1, 4\]"):
        bridge().build()


def test_a_forgotten_output_is_an_error(register):
    register(lambda b, op: None)
    with pytest.raises(NgraphError, match="an output was not set"):
        bridge().build()


def test_a_converter_that_raises_is_named(register):
    def broken(b, op):
        raise ValueError("no such thing")

    register(broken)
    with pytest.raises(NgraphError, match=rf"{NAME} \(operator 5\): no such thing"):
        bridge().build()


def test_an_operator_without_converter_is_named():
    with pytest.raises(NgraphError, match="has no converter"):
        bridge().build()


def test_a_run_time_value_is_no_constant(register):
    register(lambda b, op: b.constant(op, "x"))
    with pytest.raises(NgraphError, match="input 'x' is known only at run time"):
        bridge().build()


def test_integers_are_folded_in_64_bits(register):
    wide = TensorSpec(1, "int64", (1,))

    def add_wide(b, op):
        total = opset15.add(b.ints([2**40]), b.ints([1]))
        b.set_output_node(op, "out", total)
        assert b._nodes[wide.id].get_node().get_data()[0] == 2**40 + 1

    register(add_wide)
    op = Op(NAME, 5, {"x": (X,)}, {"out": (wide,)})
    bridge(ops=[op], outputs=[wide]).build()


def test_inputs_read_by_value_are_constants(register):
    def convert(b, op):
        assert b.constant(op, "shape").tolist() == [4, 2]
        shape = b.get_input_node(op, "shape")
        node = opset15.reshape(b.get_input_node(op, "x"), shape, special_zero=False)
        b.set_output_node(op, "out", node)

    register(convert)
    shape, out = TensorSpec(2, "int64", (2,)), TensorSpec(1, "float32", (-1, -1))
    op = Op(NAME, 5, {"x": (X,), "shape": (shape,)}, {"out": (out,)})
    graph = Graph([op], [X, shape], [], [out], [], value_inputs=[1])
    values = {1: np.array([4, 2])}
    model, positions = FunctionBuilder(graph, [*SIGNATURE, ("i64", (2,))], values).build()
    assert positions == [0]
    assert list(model.outputs[0].get_shape()) == [4, 2]


@pytest.mark.parametrize("is_divisor", [True, False])
@pytest.mark.parametrize(
    "make", [paddle.sum, paddle.max, lambda x: paddle.sum(x, 1), lambda x: paddle.matmul(x, x)]
)
def test_divisions_with_constants_are_right(make, is_divisor):
    """The plugin gets some wrong that it fuses with a reduction or a multiplication."""

    def build():
        total = make(paddle.static.data("x", [4, 4], "float32"))
        three = paddle.full([], 3.0)
        return paddle.divide(three, total) if is_divisor else paddle.divide(total, three)

    Program(build).both(x=np.abs(floats(4, 4)) + 1)


def test_gradients_that_are_scalars_of_products():
    def build():
        x = paddle.static.data("x", [], "float32")
        x.stop_gradient = False
        y = paddle.static.data("y", [1, 3], "float32")
        out = paddle.matmul(paddle.unsqueeze(x, 0), y)
        return [out, *paddle.static.gradients([(x - 1.0), out], [x])]

    Program(build).both(x=floats(), y=floats(1, 3))


@pytest.mark.parametrize("name", DTYPES)
def test_the_table_of_dtypes_agrees_with_ngraph_and_numpy(name):
    kind = element_type(name)
    assert kind.get_type_name() == DTYPES[name].element
    if DTYPES[name].range is not None and name != "bool":
        limits = np.iinfo(kind.to_dtype())
        assert DTYPES[name].range == (limits.min, limits.max)
