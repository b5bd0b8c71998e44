"""Optimizers: one update of a parameter and its state, as in Paddle's CPU kernels.

The operators overwrite the parameter and its accumulators; the outputs are the new values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import constant

_SINGLE_PRECISION = Limit(
    "its multi-precision variant has a master copy of the parameter",
    lambda op: not op.attr("multi_precision") and not op.has_input("master_param"),
)
_NO_SKIPPED_UPDATE = Limit(
    "it has an input that skips updates", lambda op: not op.has_input("skip_update")
)
_OWN_BETA_POWERS = Limit(
    "its powers of beta are shared by all parameters",
    lambda op: not op.attr("use_global_beta_pow"),
)


@converter("pd_op.sgd_", limits=[_SINGLE_PRECISION])
def sgd(bridge: NgraphBridge, op: Op) -> None:
    """``param_out = param - learning_rate * grad`` (Paddle ``sgd``).

    In bfloat16 the rate and the product are rounded, too.
    """
    if not bridge.graph.has_bfloat16():
        return _update(bridge, op, "Sgd", ["param", "grad", "learning_rate"], ["param_out"])
    rate = bridge.rounded(op, "param_out", _learning_rate(bridge, op))
    step = bridge.rounded(op, "param_out", opset15.multiply(rate, _gradient(bridge, op)))
    bridge.set_output_node(op, "param_out", _minus(bridge.get_input_node(op, "param"), step))


@converter("pd_op.momentum_", limits=[_SINGLE_PRECISION])
def momentum(bridge: NgraphBridge, op: Op) -> None:
    """``velocity_out = mu * velocity + g``, ``param_out = param - lr * velocity_out``.

    With Nesterov: ``param_out = param - (g + mu * velocity_out) * lr``. ``g`` is the gradient, plus
    ``regularization_coeff * param`` under L2 decay; as on Paddle's CPU, ``rescale_grad`` has no
    effect (Paddle ``momentum``).
    """
    _update(
        bridge,
        op,
        "Momentum",
        ["param", "grad", "velocity", "learning_rate"],
        ["param_out", "velocity_out"],
        mu=float(op.attr("mu")),
        nesterov=bool(op.attr("use_nesterov")),
        decays=op.attr("regularization_method") == "l2_decay",
        decay=float(op.attr("regularization_coeff")),
    )


def _adam(bridge: NgraphBridge, op: Op, **decay: Any) -> None:
    """The update of Adam; ``decay``: attributes of weight decay for this package's operator."""
    betas = [float(bridge.constant(op, name).item()) for name in ("beta1", "beta2")]
    powers = [bridge.get_input_node(op, name) for name in ("beta1_pow", "beta2_pow")]
    read = ["param", "grad", "moment1", "moment2", "learning_rate", "beta1_pow", "beta2_pow"]
    written = ["param_out", "moment1_out", "moment2_out"]
    if op.attr("amsgrad"):
        read.append("moment2_max")
        written.append("moment2_max_out")
    epsilon = float(bridge.constant(op, "epsilon").item())
    options = {"beta1": betas[0], "beta2": betas[1], "epsilon": epsilon, **decay}
    _update(bridge, op, "Adam", read, written, **options)
    for beta, power, name in zip(betas, powers, ("beta1_pow_out", "beta2_pow_out")):
        bridge.set_output_node(op, name, opset15.multiply(constant(beta), power))


_ADAM_LIMITS = [_SINGLE_PRECISION, _NO_SKIPPED_UPDATE, _OWN_BETA_POWERS]


@converter(
    "pd_op.adam_",
    inputs={"beta1": Role.CONSTANT, "beta2": Role.CONSTANT, "epsilon": Role.CONSTANT},
    limits=_ADAM_LIMITS,
)
def adam(bridge: NgraphBridge, op: Op) -> None:
    """One update of Adam (Paddle ``adam``).

    ``m1 = beta1 * m1 + (1 - beta1) * g``, ``m2 = beta2 * m2 + (1 - beta2) * g * g``,
    ``param_out = param - lr * s / (1 - beta1_pow) * (m1 / (sqrt(m2) + epsilon * s))`` with
    ``s = sqrt(1 - beta2_pow)``. AMSGrad uses the largest ``m2`` so far instead.
    """
    _adam(bridge, op)


@converter(
    "pd_op.adamw_",
    inputs={"beta1": Role.CONSTANT, "beta2": Role.CONSTANT, "epsilon": Role.CONSTANT},
    limits=_ADAM_LIMITS,
)
def adamw(bridge: NgraphBridge, op: Op) -> None:
    """:func:`adam` on ``param - lr * lr_ratio * coeff * param`` (Paddle ``adamw``)."""
    _adam(
        bridge,
        op,
        decays=bool(op.attr("with_decay")),
        ratio=float(op.attr("lr_ratio")),
        decay=float(op.attr("coeff")),
    )


@converter("pd_op.lamb_", limits=[_SINGLE_PRECISION, _NO_SKIPPED_UPDATE])
def lamb(bridge: NgraphBridge, op: Op) -> None:
    """One update of LAMB (Paddle ``lamb``).

    ``d = m1 / (1 - beta1_pow) / (sqrt(m2 / (1 - beta2_pow)) + epsilon) + weight_decay * param``,
    with the moments of :func:`adam`; ``param_out = param - lr * r * d``. ``r = |param| / |d|`` if
    there is weight decay or ``always_adapt`` and neither norm is 0; otherwise 1.
    """
    param, grad = bridge.get_input_node(op, "param"), _gradient(bridge, op)
    power1 = bridge.get_input_node(op, "beta1_pow")
    power2 = bridge.get_input_node(op, "beta2_pow")
    beta1, beta2 = np.float32(op.attr("beta1")), np.float32(op.attr("beta2"))
    moment1 = _moving_average(bridge.get_input_node(op, "moment1"), beta1, grad)
    moment2 = _moving_average_of_square(bridge.get_input_node(op, "moment2"), beta2, grad)
    mean = opset15.divide(moment1, opset15.subtract(constant(1.0), _scalar(bridge, power1)))
    square = opset15.divide(moment2, opset15.subtract(constant(1.0), _scalar(bridge, power2)))
    scale = opset15.add(opset15.sqrt(square), constant(op.attr("epsilon")))
    decay = opset15.multiply(constant(op.attr("weight_decay")), param)
    direction = opset15.add(opset15.divide(mean, scale), decay)
    rate = _learning_rate(bridge, op)
    if op.attr("weight_decay") > 0 or op.attr("always_adapt"):
        rate = opset15.multiply(rate, _trust_ratio(bridge, param, direction))
    bridge.set_output_node(op, "moment1_out", moment1)
    bridge.set_output_node(op, "moment2_out", moment2)
    bridge.set_output_node(op, "beta1_pow_out", opset15.multiply(power1, constant(beta1)))
    bridge.set_output_node(op, "beta2_pow_out", opset15.multiply(power2, constant(beta2)))
    bridge.set_output_node(op, "param_out", _minus(param, opset15.multiply(rate, direction)))


def _trust_ratio(bridge: NgraphBridge, param: NodeInput, direction: NodeInput) -> Any:
    axes = bridge.ints(range(len(bridge.shape(param))))
    norms = []
    for node in (param, direction):
        squares = opset15.multiply(node, node)
        total = opset15.reduce_sum(squares, axes) if bridge.shape(param) else squares
        norms.append(opset15.sqrt(total))
    positive = [opset15.greater(norm, constant(0.0)) for norm in norms]
    ratio = opset15.divide(norms[0], norms[1])
    return opset15.select(opset15.logical_and(*positive), ratio, constant(1.0))


@converter("pd_op.adamax_", limits=[_SINGLE_PRECISION])
def adamax(bridge: NgraphBridge, op: Op) -> None:
    """``m = beta1 * m + (1 - beta1) * g``, ``u = max(|g|, beta2 * u + epsilon)``.

    ``param_out = param - lr / (1 - beta1_pow) * (m / u)`` (Paddle ``adamax``).
    """
    grad = _gradient(bridge, op)
    power = _scalar(bridge, bridge.get_input_node(op, "beta1_pow"))
    rate = opset15.divide(_learning_rate(bridge, op), opset15.subtract(constant(1.0), power))
    moment = _moving_average(bridge.get_input_node(op, "moment"), op.attr("beta1"), grad)
    norm = opset15.multiply(constant(op.attr("beta2")), bridge.get_input_node(op, "inf_norm"))
    norm = opset15.add(norm, constant(op.attr("epsilon")))
    # The larger of the two by a Select, as in Paddle: an accumulated NaN is ignored, and a NaN of
    # the gradient stays.
    size = opset15.abs(grad)
    norm = opset15.select(opset15.greater_equal(norm, size), norm, size)
    step = opset15.multiply(rate, opset15.divide(moment, norm))
    bridge.set_output_node(op, "moment_out", moment)
    bridge.set_output_node(op, "inf_norm_out", norm)
    bridge.set_output_node(op, "param_out", _minus(bridge.get_input_node(op, "param"), step))


@converter("pd_op.adagrad_", limits=[_SINGLE_PRECISION])
def adagrad(bridge: NgraphBridge, op: Op) -> None:
    """``m = m + g * g``, ``param_out = param - lr * g / (sqrt(m) + epsilon)``.

    (Paddle ``adagrad``.)
    """
    grad = _gradient(bridge, op)
    moment = opset15.add(bridge.get_input_node(op, "moment"), opset15.multiply(grad, grad))
    scale = opset15.add(opset15.sqrt(moment), constant(op.attr("epsilon")))
    step = opset15.divide(opset15.multiply(_learning_rate(bridge, op), grad), scale)
    bridge.set_output_node(op, "moment_out", moment)
    bridge.set_output_node(op, "param_out", _minus(bridge.get_input_node(op, "param"), step))


@converter("pd_op.adadelta_", limits=[_SINGLE_PRECISION])
def adadelta(bridge: NgraphBridge, op: Op) -> None:
    """``a = rho * a + (1 - rho) * g^2``, ``d = sqrt(b + epsilon) / sqrt(a + epsilon) * g``.

    ``param_out = param - lr * d``, ``b = rho * b + (1 - rho) * d^2`` (Paddle ``adadelta``).
    """
    grad = _gradient(bridge, op)
    rho, epsilon = op.attr("rho"), constant(op.attr("epsilon"))
    squares = bridge.get_input_node(op, "avg_squared_grad")
    updates = bridge.get_input_node(op, "avg_squared_update")
    squares = _moving_average(squares, rho, opset15.multiply(grad, grad))
    ratio = opset15.divide(
        opset15.sqrt(opset15.add(updates, epsilon)), opset15.sqrt(opset15.add(squares, epsilon))
    )
    update = opset15.multiply(ratio, grad)
    step = opset15.multiply(_learning_rate(bridge, op), update)
    updates = _moving_average(updates, rho, opset15.multiply(update, update))
    # Paddle's names of these outputs do not fit: ``moment_out`` is the average of squares,
    # ``inf_norm_out`` that of updates.
    bridge.set_output_node(op, "moment_out", squares)
    bridge.set_output_node(op, "inf_norm_out", updates)
    bridge.set_output_node(op, "param_out", _minus(bridge.get_input_node(op, "param"), step))


@converter("pd_op.rmsprop_", limits=[_SINGLE_PRECISION])
def rmsprop(bridge: NgraphBridge, op: Op) -> None:
    """``s = decay * s + (1 - decay) * g * g``, ``m = momentum * m + lr * g / sqrt(s + epsilon)``.

    ``param_out = param - m``. Centered, ``s - a^2`` replaces ``s`` in ``m``, where
    ``a = decay * a + (1 - decay) * g`` is the mean gradient (Paddle ``rmsprop``).
    """
    grad = _gradient(bridge, op)
    decay = np.float32(op.attr("decay"))
    square = _moving_average_of_square(bridge.get_input_node(op, "mean_square"), decay, grad)
    variance = square
    if op.has_input("mean_grad"):
        mean = bridge.get_input_node(op, "mean_grad")
        if op.attr("centered"):
            mean = _moving_average(mean, decay, grad)
            variance = opset15.subtract(square, opset15.multiply(mean, mean))
        bridge.set_output_node(op, "mean_grad_out", mean)
    scale = opset15.sqrt(opset15.add(variance, constant(op.attr("epsilon"))))
    step = opset15.divide(opset15.multiply(_learning_rate(bridge, op), grad), scale)
    moment = opset15.multiply(constant(op.attr("momentum")), bridge.get_input_node(op, "moment"))
    moment = opset15.add(moment, step)
    bridge.set_output_node(op, "mean_square_out", square)
    bridge.set_output_node(op, "moment_out", moment)
    bridge.set_output_node(op, "param_out", _minus(bridge.get_input_node(op, "param"), moment))


def _update(
    bridge: NgraphBridge,
    op: Op,
    operator: str,
    read: Sequence[str],
    written: Sequence[str],
    **attributes: Any,
) -> None:
    """Converts an update to ``operator`` of the core, with inputs ``read``, outputs ``written``."""
    sources = [
        _gradient(bridge, op) if name == "grad" else bridge.get_input_node(op, name)
        for name in read
    ]
    node = bridge.extension(operator, sources, **attributes)
    for position, name in enumerate(written):
        bridge.set_output_node(op, name, node.output(position))


def _gradient(bridge: NgraphBridge, op: Op) -> Any:
    grad, shape = (
        bridge.get_input_node(op, "grad"),
        bridge.shape(bridge.get_input_node(op, "param")),
    )
    if bridge.shape(grad) == shape:
        return grad
    # Gradient clipping turns the gradient of a 0-D parameter into one of shape [1].
    return _scalar(bridge, grad)


def _minus(param: NodeInput, step: NodeInput) -> Any:
    return opset15.subtract(param, step)


def _moving_average(average: NodeInput, keep: float | np.floating[Any], new: NodeInput) -> Any:
    """The moving average ``keep * average + (1 - keep) * new``."""
    kept = np.float32(keep)
    return opset15.add(
        opset15.multiply(constant(kept), average),
        opset15.multiply(constant(np.float32(1) - kept), new),
    )


def _moving_average_of_square(average: NodeInput, keep: np.floating[Any], new: NodeInput) -> Any:
    """The moving average ``keep * average + (1 - keep) * new * new`` of squares.

    The factors are multiplied from left to right, as in Paddle's kernels.
    """
    part = opset15.multiply(opset15.multiply(constant(np.float32(1) - keep), new), new)
    return opset15.add(opset15.multiply(constant(keep), average), part)


def _learning_rate(bridge: NgraphBridge, op: Op) -> Any:
    return _scalar(bridge, bridge.get_input_node(op, "learning_rate"))


def _scalar(bridge: NgraphBridge, node: NodeInput) -> Any:
    """Reshapes a tensor of one element to a scalar."""
    return opset15.squeeze(node, bridge.ints([0])) if bridge.shape(node) else node
