"""Recurrent layers (LSTM, GRU, plain networks) and their gradients, as loops over the steps.

A loop contains only the operators that depend on the previous step: the matmuls with the inputs,
and those for the gradients of weights and inputs, process all steps at once. Tensors are
[steps, batch, features].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np
import openvino as ov
from openvino import Node, Output, Type, opset15

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.node_tools import as_output
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.conversion.symbolic_sizes import Number
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import reshaped

Value = Union[Node, Output]

_MODES = ("LSTM", "GRU", "RNN_TANH", "RNN_RELU")


def _has_all_weights(op: Op) -> bool:
    cells = op.attr("num_layers") * (2 if op.attr("is_bidirec") else 1)
    return len(op.inputs["weight_list"]) == 4 * cells


_LIMITS = (
    Limit(
        "input 'weight_list' does not have two weights and two biases per layer", _has_all_weights
    ),
    Limit("attribute 'mode' is none of " + ", ".join(_MODES), lambda op: op.attr("mode") in _MODES),
    Limit(
        "input 'sequence_length' is int64",
        lambda op: all(spec.dtype == "int32" for spec in op.inputs.get("sequence_length", ())),
    ),
)
_TRAINING = Limit(
    "it is the gradient of a run with attribute 'is_test'", lambda op: not op.attr("is_test")
)


def _has_dropout(op: Op) -> bool:
    """Whether a run applies dropout between the layers."""
    return op.attr("num_layers") > 1 and op.attr("dropout_prob") > 0 and not op.attr("is_test")


def _is_stochastic(op: Op) -> bool:
    # With probability 1, Paddle samples nothing.
    return _has_dropout(op) and op.attr("dropout_prob") < 1


# -- shared by forward and gradient ----------------------------------------------------------------


class _TensorIteratorBuilder:
    """One ``TensorIterator`` over axis 0: a body of nodes that runs once for each step."""

    def __init__(self, bridge: NgraphBridge, backwards: bool) -> None:
        self._bridge = bridge
        # Arguments of a sliced input of TensorIterator: start, stride, slice size, end, axis.
        self._steps = (-1, -1, 1, 0, 0) if backwards else (0, 1, 1, -1, 0)
        self._slices: list[tuple[Node, Output]] = []
        self._invariants: list[tuple[Node, Output]] = []
        self._states: list[tuple[Node, Output]] = []

    def slice(self, source: Value) -> Node:
        """Adds ``source`` as a sliced input; returns its slice of the current step, [1, ...]."""
        return self._parameter(self._slices, source, [1, *self._bridge.shape(source)[1:]])

    def invariant(self, source: Value) -> Node:
        """Adds ``source`` as an input that is equal in all steps; returns it inside the body."""
        return self._parameter(self._invariants, source, self._bridge.shape(source))

    def state(self, initial: Value) -> Node:
        """Adds a loop-carried value; returns its value before a step, ``initial`` in the first."""
        return self._parameter(self._states, initial, self._bridge.shape(initial))

    def run(
        self, carried: Sequence[Value], collected: Sequence[Value]
    ) -> tuple[list[Output], list[Output]]:
        """Closes the body.

        Args:
            carried: The new values of the states, in the order of their creation.
            collected: Nodes whose values are collected from every step.

        Returns:
            The states after the last step, and the collected nodes of all steps, joined.
        """
        parameters = [*self._slices, *self._invariants, *self._states]
        after, every = (
            [as_output(value) for value in carried],
            [as_output(value) for value in collected],
        )
        loop = opset15.tensor_iterator()
        loop.set_function(ov.Model([*after, *every], [parameter for parameter, _ in parameters]))
        for parameter, source in self._slices:
            loop.set_sliced_input(parameter, source, *self._steps)
        for parameter, source in self._invariants:
            loop.set_invariant_input(parameter, source)
        for (parameter, initial), new in zip(self._states, after):
            loop.set_merged_input(parameter, initial, new)
        last = [loop.get_iter_value(new, -1) for new in after]
        steps = [loop.get_concatenated_slices(output, *self._steps) for output in every]
        count = self._bridge.shape(self._slices[0][1])[0]
        for output, parameter in zip(last, after):
            self._bridge.sizes.set(output, self._bridge.shape(parameter))
        for output, parameter in zip(steps, every):
            self._bridge.sizes.set(output, [count, *self._bridge.shape(parameter)[1:]])
        return last, steps

    @staticmethod
    def _parameter(
        parameters: list[tuple[Node, Output]], source: Value, shape: Sequence[Number]
    ) -> Node:
        output = as_output(source)
        parameter = opset15.parameter([int(size) for size in shape], output.get_element_type())
        parameters.append((parameter, output))
        return parameter


@dataclass(frozen=True)
class _Cell:
    """The weights and the initial states of one layer in one direction."""

    bridge: NgraphBridge
    weight_ih: Output  # weight of the input: [gates * hidden, features]
    weight_hh: Output  # weight of h: [gates * hidden, hidden]
    bias_ih: Output
    bias_hh: Output
    states: list[Value]  # initial h and, for LSTM, c: each [1, batch, hidden]
    backwards: bool


@dataclass(frozen=True)
class _CellResults:
    """Results of a cell.

    Attributes:
        out: h of every step, zero after the end of a sequence.
        last: The states after the last step.
        kept: Values of every step that the gradient reads; none if there is no gradient.
    """

    out: Output
    last: list[Output]
    kept: list[Output]


@dataclass(frozen=True)
class _Network:
    """Results of a recurrent operator; lists of cells are by layer, forwards before backwards."""

    mode: str
    directions: int
    mask: Value | None  # [steps, batch, 1]: 1 up to the end of each sequence, then 0
    cells: list[_Cell]
    passes: list[_CellResults]
    inputs: list[Value]  # inputs of all layers, and the output of the last one
    kept: Value | None  # dropout factors between layers: [steps, batch, directions * hidden]


def _network(bridge: NgraphBridge, op: Op, dropout: Output) -> _Network:
    """The results of ``op``; a gradient uses those of its operator, if in the same function."""
    names = ("x", "pre_state", "weight_list", "sequence_length")
    nodes = [dropout, *(node for name in names for node in bridge.get_input_nodes(op, name))]
    identities = ((node.get_node().get_instance_id(), node.get_index()) for node in nodes)
    attributes = (op.attr(name) for name in ("mode", "is_bidirec", "is_test"))
    key = ("rnn", *attributes, *identities)
    if key not in bridge.shared:
        bridge.shared[key] = _computed(bridge, op, dropout)
    network: _Network = bridge.shared[key]
    return network


def _computed(bridge: NgraphBridge, op: Op, dropout: Output) -> _Network:
    mode, directions = op.attr("mode"), 2 if op.attr("is_bidirec") else 1
    x = bridge.get_input_node(op, "x")
    mask = None
    if op.has_input("sequence_length"):
        steps = int(bridge.shape(x)[0])
        bridge.integers.require_range(op, "sequence_length", 0, steps + 1)
        mask = _mask(bridge.get_input_node(op, "sequence_length"), steps)
    cells = _cells(bridge, op, directions)
    kept = dropout if _has_dropout(op) else None
    inputs: list[Value] = [x]
    passes: list[_CellResults] = []
    for layer in range(op.attr("num_layers")):
        found = [
            _forward(mode, cell, inputs[layer], mask, keeps=not op.attr("is_test"))
            for cell in cells[layer * directions :][:directions]
        ]
        passes += found
        out = _joined([one.out for one in found], 2)
        inputs.append(_masked(out, kept) if layer + 1 < op.attr("num_layers") else out)
    return _Network(mode, directions, mask, cells, passes, inputs, kept)


def _cells(bridge: NgraphBridge, op: Op, directions: int) -> list[_Cell]:
    """The cells from ``weight_list``: all weights first, two for each cell; then all biases."""
    count = op.attr("num_layers") * directions
    weights = bridge.get_input_nodes(op, "weight_list")
    states = [_split(state, count, 0) for state in bridge.get_input_nodes(op, "pre_state")]
    cells = []
    for i in range(count):
        weight_ih, weight_hh = weights[2 * i : 2 * i + 2]
        bias_ih, bias_hh = weights[2 * (count + i) : 2 * (count + i) + 2]
        initial = [state[i] for state in states]
        backwards = i % directions == 1
        cells.append(_Cell(bridge, weight_ih, weight_hh, bias_ih, bias_hh, initial, backwards))
    return cells


def _mask(lengths: Output, steps: int) -> Node:
    step = opset15.constant(np.arange(steps, dtype=np.int32).reshape(-1, 1, 1))
    ends = opset15.reshape(lengths, _ints([1, -1, 1]), False)
    return opset15.convert(opset15.less(step, ends), Type.f32)


# -- forward ---------------------------------------------------------------------------------------


@converter(
    "pd_op.rnn",
    inputs={"sequence_length": Role.INDEX, "dropout_state_in": Role.UNUSED},
    outputs={"reserve": Role.OMITTED},
    limits=_LIMITS,
    draws=_is_stochastic,
    rounds=False,
    unchecked=["sequence_length"],
)
def rnn(bridge: NgraphBridge, op: Op) -> None:
    """``h, c = cell(x[t], h, c)`` for every step ``t``, layer and direction (Paddle ``rnn``).

    LSTM: ``i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of W x + b + R h + d``;
    ``c = f c + i g``, ``h = o tanh(c)``. GRU: ``r, z = sigmoid(W x + b + R h + d)``,
    ``n = tanh(W x + b + r (R h + d))``, ``h = z h + (1 - z) n``. Plain:
    ``h = tanh or relu(W x + b + R h + d)``. After the end of a sequence (``sequence_length``) the
    states stay as they are and ``out`` is 0. ``out`` is [steps, batch, directions * hidden], each
    of ``state`` [layers * directions, batch, hidden]. Dropout multiplies the values between
    any two layers by one tensor, ``dropout_state_out``.
    """
    kept = _dropout(bridge, op)
    network = _network(bridge, op, kept)
    bridge.set_output_node(op, "out", network.inputs[-1])
    bridge.set_output_node(op, "dropout_state_out", kept)
    for position, states in enumerate(zip(*(one.last for one in network.passes))):
        bridge.set_output_node(op, "state", _joined(states, 0), position)


def _dropout(bridge: NgraphBridge, op: Op) -> Output:
    """The sampled factors of a layer's output, [steps, batch, directions * hidden].

    0 for dropped elements, ``1 / (1 - dropout_prob)`` for the rest; a scalar without dropout.
    """
    steps, batch, _ = bridge.shape(bridge.get_input_node(op, "x"))
    shape = [steps, batch, op.attr("hidden_size") * (2 if op.attr("is_bidirec") else 1)]
    probability = np.float32(op.attr("dropout_prob"))
    if not _has_dropout(op):
        return bridge.full(1.0, "float32").output(0)
    if not _is_stochastic(op):
        return bridge.full(0.0, "float32", shape).output(0)
    mask = bridge.draw("keep", float(probability), 0, op.attr("seed"), shape)
    share = bridge.full(np.float32(1) - probability, "float32")
    return opset15.divide(opset15.convert(mask, Type.f32), share).output(0)


def _forward(mode: str, cell: _Cell, x: Value, mask: Value | None, keeps: bool) -> _CellResults:
    loop = _TensorIteratorBuilder(cell.bridge, cell.backwards)
    bias: Value = cell.bias_ih
    if mode != "GRU":
        bias = opset15.add(bias, cell.bias_hh)
    gates = loop.slice(_linear(cell.bridge, x, cell.weight_ih, bias))
    states = [loop.state(state) for state in cell.states]
    recurrent = opset15.matmul(states[0], loop.invariant(cell.weight_hh), False, True)
    if mode == "GRU":
        recurrent = opset15.add(recurrent, loop.invariant(cell.bias_hh))
    after, kept = _CELL_STEPS[mode](gates, recurrent, states)
    out = after[0]
    if mask is not None:
        # The mask is multiplied, instead of a Select: as in Paddle, a NaN after the end of a
        # sequence then reaches the state.
        is_active = loop.slice(mask)
        after = [opset15.multiply(state, is_active) for state in after]
        out = after[0]
        has_ended = loop.slice(_complement(mask))
        after = [opset15.add(a, opset15.multiply(b, has_ended)) for a, b in zip(after, states)]
    last, (outs, *others) = loop.run(after, [out, *after[1:], *kept] if keeps else [out])
    return _CellResults(outs, last, others)


def _lstm(gates: Node, recurrent: Node, states: list[Node]) -> tuple[list[Node], list[Node]]:
    total = opset15.add(gates, recurrent)
    i, f, g, o = _lstm_gates(total)
    c = opset15.add(opset15.multiply(g, i), opset15.multiply(states[1], f))
    return [opset15.multiply(o, opset15.tanh(c)), c], [total]


def _lstm_gates(total: Value) -> tuple[Node, Node, Node, Node]:
    i, f, g, o = _split(total, 4, 2)
    return opset15.sigmoid(i), opset15.sigmoid(f), opset15.tanh(g), opset15.sigmoid(o)


def _gru(gates: Node, recurrent: Node, states: list[Node]) -> tuple[list[Node], list[Node]]:
    (r, z, n), (r_h, z_h, n_h) = _split(gates, 3, 2), _split(recurrent, 3, 2)
    r = opset15.sigmoid(opset15.add(r, r_h))
    z = opset15.sigmoid(opset15.add(z, z_h))
    n = opset15.tanh(opset15.add(n, opset15.multiply(r, n_h)))
    h = opset15.subtract(opset15.add(opset15.multiply(z, states[0]), n), opset15.multiply(z, n))
    return [h], [r, z, n, n_h]


def _simple_rnn(activation: Callable[[Node], Node]) -> Callable[..., tuple[list[Node], list[Node]]]:
    def step(gates: Node, recurrent: Node, states: list[Node]) -> tuple[list[Node], list[Node]]:
        return [activation(opset15.add(gates, recurrent))], []

    return step


_CELL_STEPS: dict[str, Callable[..., tuple[list[Node], list[Node]]]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": _simple_rnn(opset15.tanh),
    "RNN_RELU": _simple_rnn(opset15.relu),
}


# -- gradient --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gates:
    """Gradients of ``W x + b`` and of ``R h + d`` in every step, and of the initial states."""

    of_input: Value
    of_recurrent: Value
    of_states: list[Output]


@converter(
    "pd_op.rnn_grad",
    inputs={
        "sequence_length": Role.INDEX,
        "out": Role.UNUSED,
        "reserve": Role.UNUSED,
        "dropout_state_out": Role.SAVED,
    },
    limits=(*_LIMITS, _TRAINING),
    rounds=False,
    unchecked=["sequence_length"],
)
def rnn_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of :func:`rnn`, from the last step back to the first (Paddle ``rnn_grad``).

    ``x_grad``, ``pre_state_grad`` and ``weight_list_grad`` have the shapes of ``x``, ``pre_state``
    and ``weight_list``.
    """
    network = _network(bridge, op, bridge.get_input_node(op, "dropout_state_out"))
    count = len(network.cells)
    last_grads = [_split(g, count, 0) for g in bridge.get_input_nodes(op, "state_grad")]
    out_grad: Value = bridge.get_input_node(op, "out_grad")
    state_grads: dict[int, list[Output]] = {}
    for layer in reversed(range(op.attr("num_layers"))):
        x = network.inputs[layer]
        x_grads = []
        for direction, direction_grad in enumerate(_split(out_grad, network.directions, 2)):
            i = layer * network.directions + direction
            gates = _backward(network, i, direction_grad, [grads[i] for grads in last_grads])
            x_grads.append(opset15.matmul(gates.of_input, network.cells[i].weight_ih, False, False))
            state_grads[i] = gates.of_states
            _set_weight_grads(bridge, op, network, i, gates, x)
        out_grad = x_grads[0] if len(x_grads) == 1 else opset15.add(*x_grads)
        if layer > 0:
            out_grad = _masked(out_grad, network.kept)
    bridge.set_output_node(op, "x_grad", out_grad)
    for position in range(len(last_grads)):
        joined = _joined([state_grads[i][position] for i in range(count)], 0)
        bridge.set_output_node(op, "pre_state_grad", joined, position)


def _set_weight_grads(
    bridge: NgraphBridge, op: Op, network: _Network, i: int, gates: _Gates, x: Value
) -> None:
    count, h = len(network.cells), _previous_hidden(network, i)
    for position, grad, other in ((0, gates.of_input, x), (1, gates.of_recurrent, h)):
        weight_grad = opset15.matmul(_flat(bridge, grad), _flat(bridge, other), True, False)
        bridge.set_output_node(op, "weight_list_grad", weight_grad, 2 * i + position)
        bias_grad = opset15.reduce_sum(grad, _ints([0, 1]), False)
        bridge.set_output_node(op, "weight_list_grad", bias_grad, 2 * (count + i) + position)


def _backward(network: _Network, i: int, out_grad: Value, last_grads: list[Value]) -> _Gates:
    out_grad = _masked(out_grad, network.mask)
    if network.mode == "LSTM":
        return _lstm_grad(network, i, out_grad, last_grads)
    if network.mode == "GRU":
        return _gru_grad(network, i, out_grad, last_grads)
    return _simple_rnn_grad(network, i, out_grad, last_grads)


def _lstm_grad(network: _Network, i: int, out_grad: Value, last_grads: list[Value]) -> _Gates:
    cell, mask = network.cells[i], network.mask
    c, total = network.passes[i].kept
    i_, f, g, o = _lstm_gates(total)
    c_before = _previous_states(cell, c, cell.states[1])
    active = opset15.tanh(c)
    slopes = [
        _product(g, _sigmoid_slope(i_)),
        _product(c_before, _sigmoid_slope(f)),
        _product(i_, _tanh_slope(g)),
        _product(active, _sigmoid_slope(o)),
    ]
    loop = _TensorIteratorBuilder(cell.bridge, not cell.backwards)
    h_state, c_state = loop.state(last_grads[0]), loop.state(last_grads[1])
    h_grad = opset15.add(h_state, loop.slice(out_grad))
    through_h = opset15.multiply(h_grad, loop.slice(_product(o, _tanh_slope(active))))
    c_grad = opset15.add(c_state, through_h)
    gates = opset15.multiply(
        opset15.concat([c_grad, c_grad, c_grad, h_grad], 2),
        loop.slice(_masked(opset15.concat(slopes, 2), mask)),
    )
    h_new = opset15.matmul(gates, loop.invariant(cell.weight_hh), False, False)
    c_new = opset15.multiply(c_grad, loop.slice(_masked(f, mask)))
    if mask is not None:
        has_ended = loop.slice(_complement(mask))
        h_new = opset15.add(h_new, opset15.multiply(h_grad, has_ended))
        c_new = opset15.add(c_new, opset15.multiply(c_state, has_ended))
    states, (gate_grads,) = loop.run([h_new, c_new], [gates])
    return _Gates(gate_grads, gate_grads, states)


def _gru_grad(network: _Network, i: int, out_grad: Value, last_grads: list[Value]) -> _Gates:
    cell, mask = network.cells[i], network.mask
    r, z, n, n_h = network.passes[i].kept
    to_n = _product(_complement(z), _tanh_slope(n))
    to_z = _product(opset15.subtract(_previous_hidden(network, i), n), _sigmoid_slope(z))
    # Paddle saves r * n_h and divides it by r, which is NaN for r = 0.
    to_r = _product(to_n, opset15.divide(_product(r, n_h), r), _sigmoid_slope(r))
    slopes = opset15.concat([to_r, to_z, _product(to_n, r)], 2)
    stays = _masked(z, mask)
    if mask is not None:
        stays = opset15.add(stays, _complement(mask))
    loop = _TensorIteratorBuilder(cell.bridge, not cell.backwards)
    h_grad = opset15.add(loop.state(last_grads[0]), loop.slice(out_grad))
    gates = opset15.multiply(
        opset15.concat([h_grad, h_grad, h_grad], 2), loop.slice(_masked(slopes, mask))
    )
    h_new = opset15.add(
        opset15.matmul(gates, loop.invariant(cell.weight_hh), False, False),
        opset15.multiply(h_grad, loop.slice(stays)),
    )
    states, (gate_grads, h_grads) = loop.run([h_new], [gates, h_grad])
    r_grad, z_grad, _ = _split(gate_grads, 3, 2)
    n_grad = opset15.multiply(h_grads, _masked(to_n, mask))
    return _Gates(opset15.concat([r_grad, z_grad, n_grad], 2), gate_grads, states)


def _simple_rnn_grad(network: _Network, i: int, out_grad: Value, last_grads: list[Value]) -> _Gates:
    cell, mask, out = network.cells[i], network.mask, network.passes[i].out
    slope = _tanh_slope(out)
    if network.mode == "RNN_RELU":
        zero = opset15.constant(np.float32(0))
        slope = opset15.convert(opset15.greater(out, zero), Type.f32)
    loop = _TensorIteratorBuilder(cell.bridge, not cell.backwards)
    h_grad = opset15.add(loop.state(last_grads[0]), loop.slice(out_grad))
    gates = opset15.multiply(h_grad, loop.slice(_masked(slope, mask)))
    h_new = opset15.matmul(gates, loop.invariant(cell.weight_hh), False, False)
    if mask is not None:
        h_new = opset15.add(h_new, opset15.multiply(h_grad, loop.slice(_complement(mask))))
    states, (gate_grads,) = loop.run([h_new], [gates])
    return _Gates(gate_grads, gate_grads, states)


def _previous_hidden(network: _Network, i: int) -> Value:
    """h before each step, as in Paddle's gradient: 0 where a sequence, read backwards, begins.

    (The forward pass keeps the initial h until there.)
    """
    cell = network.cells[i]
    return _previous_states(cell, network.passes[i].out, cell.states[0])


def _previous_states(cell: _Cell, steps: Value, initial: Value) -> Value:
    ints, count = cell.bridge.ints, cell.bridge.shape(steps)[0]
    if count == 1:
        return initial
    start, end = (1, count) if cell.backwards else (0, count - 1)
    others = opset15.slice(steps, ints([start]), ints([end]), ints([1]), ints([0]))
    return opset15.concat([others, initial] if cell.backwards else [initial, others], 0)


# -- preparation -----------------------------------------------------------------------------------


@converter(
    "pd_op.coalesce_tensor",
    outputs={"fused_output": Role.OMITTED},
    limits=[
        Limit("attribute 'copy_data' is not set", lambda op: bool(op.attr("copy_data"))),
        Limit("attribute 'set_constant' is set", lambda op: not op.attr("set_constant")),
    ],
)
def coalesce_tensor(bridge: NgraphBridge, op: Op) -> None:
    """``output[i] = input[i]``: the memory layout is up to the engine.

    (Paddle ``coalesce_tensor``, which recurrent layers run before any use of their weights.)
    """
    for position, node in enumerate(bridge.get_input_nodes(op, "input")):
        bridge.set_output_node(op, "output", node, position)


# -- helpers ---------------------------------------------------------------------------------------


def _ints(values: Sequence[int]) -> Node:
    return opset15.constant(np.array(values, np.int64))


def _flat(bridge: NgraphBridge, value: Value) -> Value:
    """Reshapes [steps, batch, features] to a matrix of steps * batch rows."""
    return reshaped(bridge, value, [-1, bridge.shape(value)[-1]])


def _linear(bridge: NgraphBridge, x: Value, weight: Value, bias: Value) -> Value:
    steps, batch, _ = bridge.shape(x)
    rows = opset15.add(opset15.matmul(_flat(bridge, x), weight, False, True), bias)
    return reshaped(bridge, rows, [steps, batch, bridge.shape(rows)[-1]])


def _split(value: Value, count: int, axis: int) -> list[Value]:
    if count == 1:
        return [value]
    return list(opset15.split(value, opset15.constant(np.int64(axis)), count).outputs())


def _joined(values: Sequence[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else opset15.concat(list(values), axis)


def _masked(value: Value, mask: Value | None) -> Value:
    return value if mask is None else opset15.multiply(value, mask)


def _complement(value: Value) -> Node:
    return opset15.subtract(opset15.constant(np.float32(1)), value)


def _product(*values: Value) -> Node:
    first, *others = values
    for other in others:
        first = opset15.multiply(first, other)
    return first


def _sigmoid_slope(active: Value) -> Node:
    return opset15.multiply(active, _complement(active))


def _tanh_slope(active: Value) -> Node:
    return _complement(opset15.multiply(active, active))
