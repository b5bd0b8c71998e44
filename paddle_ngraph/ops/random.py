"""Operators that sample random tensors, or use random samples."""

from __future__ import annotations

from openvino import opset15

from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.errors import RunError
from paddle_ngraph.conversion.registry import ANY, Limit, Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.loss import Softmax, softmax_gradient
from paddle_ngraph.ops.nodes import constant, known_ints, select_number

_FLOAT32 = Limit("attribute 'dtype' is not float32", lambda op: op.attr("dtype") == "float32")
_CONSTANT_BOUNDS = Limit(
    "the bounds are known only at run time",
    lambda op: "min" in op.constants and "max" in op.constants,
)


@converter(
    "pd_op.uniform",
    dtypes=ANY,
    rounds=False,
    inputs={"shape": Role.CONSTANT, "min": Role.CONSTANT, "max": Role.CONSTANT},
    limits=[_FLOAT32, _CONSTANT_BOUNDS],
    draws=lambda op: True,
)
def uniform(bridge: NgraphBridge, op: Op) -> None:
    """Uniform samples from ``min`` to ``max``, generated in each run (Paddle ``uniform``)."""
    low, high = bridge.constant(op, "min").item(), bridge.constant(op, "max").item()
    shape = known_ints(bridge, op, "shape")
    numbers = bridge.draw("uniform", low, high, op.attr("seed"), shape)
    bridge.set_output_node(op, "out", numbers)


@converter(
    "pd_op.gaussian",
    dtypes=ANY,
    rounds=False,
    inputs={"shape": Role.CONSTANT},
    limits=[_FLOAT32],
    draws=lambda op: True,
)
def gaussian(bridge: NgraphBridge, op: Op) -> None:
    """Normally distributed samples, generated in each run (Paddle ``gaussian``)."""
    mean, deviation = op.attr("mean"), op.attr("std")
    shape = known_ints(bridge, op, "shape")
    numbers = bridge.draw("normal", mean, deviation, op.attr("seed"), shape)
    bridge.set_output_node(op, "out", numbers)


@converter("pd_op.bernoulli", draws=lambda op: True, rounds=False)
def bernoulli(bridge: NgraphBridge, op: Op) -> None:
    """1 with probability ``x``, else 0, sampled in each run (Paddle ``bernoulli``)."""
    x = bridge.get_input_node(op, "x")
    above, below = opset15.greater_equal(x, constant(0.0)), opset15.less_equal(x, constant(1.0))
    outside = opset15.logical_not(opset15.logical_and(above, below))
    error = RunError.of(op, "a probability is not between 0 and 1.")
    bad = bridge.integers.in_range(opset15.convert(outside, "i32"), 0, 1, error)
    numbers = bridge.draw("uniform", 0.0, 1.0, 0, bridge.shape(x))
    hit = select_number(opset15.less(numbers, x))
    bridge.set_output_node(op, "out", opset15.add(hit, opset15.convert(bad, "f32")))


# Paddle computes Gumbel noise from uniform samples in [1e-5, 1).
_MIN_NOISE = 1e-5


@converter("pd_op.gumbel_softmax", draws=lambda op: len(op.input("x").shape) > 0, rounds=False)
def gumbel_softmax(bridge: NgraphBridge, op: Op) -> None:
    """Softmax of ``(x + noise) / temperature`` along axis, ``noise = -log(-log(u))``.

    u is sampled in each run. ``hard``: 1 for the largest, 0 for the others (``gumbel_softmax``).
    """
    x, axis = bridge.get_input_node(op, "x"), op.attr("axis")
    shape = bridge.shape(x)
    if not shape:
        bridge.set_output_node(op, "out", bridge.full(1.0, "float32"))
        return
    uniform = bridge.draw("uniform", _MIN_NOISE, 1.0, 0, shape)
    noise = opset15.negative(opset15.log(opset15.negative(opset15.log(uniform))))
    scaled = opset15.divide(opset15.add(x, noise), bridge.full(op.attr("temperature"), "float32"))
    out = Softmax(bridge, scaled, axis).probabilities()
    if op.attr("hard"):
        largest = opset15.topk(out, bridge.full(1, "int64"), axis, "max", "none").output(1)
        position = opset15.squeeze(largest, bridge.ints([axis]))
        on, off = bridge.full(1.0, "float32"), bridge.full(0.0, "float32")
        out = opset15.one_hot(position, bridge.full(shape[axis], "int64"), on, off, axis)
    bridge.set_output_node(op, "out", out)


@converter(
    "pd_op.multinomial",
    inputs={"num_samples": Role.CONSTANT},
    draws=lambda op: True,
    small_integers=True,
    rounds=False,
)
def multinomial(bridge: NgraphBridge, op: Op) -> None:
    """Indices with probabilities ``x``, sampled in an iteration of a loop (``multinomial``)."""
    kernel_calls.sample(bridge, op)


@converter("pd_op.gumbel_softmax_grad")
def gumbel_softmax_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = (out_grad - sum(out * out_grad)) * out`` along axis (``gumbel_softmax_grad``)."""
    if bridge.shape(bridge.get_input_node(op, "out")):
        gradient = softmax_gradient(bridge, op, op.attr("axis"))
    else:
        gradient = bridge.full(0.0, "float32")
    bridge.set_output_node(op, "x_grad", gradient)
