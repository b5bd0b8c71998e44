"""The gradients of one cell in NumPy, with matmul operands in bfloat16.

Inputs are results of the layer's forward pass, so that only roundings of the backward pass count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.conversion.passes.test_mixed_precision import rounded

GATES = {"LSTM": 4, "GRU": 3}
# Matmuls of fewer terms or columns keep float32.
LEAST = 16


@dataclass(frozen=True)
class Cell:
    """A cell, its inputs, its results, and the gradients of these.

    Attributes:
        states: h and, for LSTM, c before the first step, [batch, hidden].
        out: h after each step, [steps, batch, hidden].
        is_active: Where sequences have not ended yet, [steps, batch, 1].
    """

    mode: str
    weight_ih: np.ndarray
    weight_hh: np.ndarray
    bias_ih: np.ndarray
    bias_hh: np.ndarray
    x: np.ndarray
    states: Sequence[np.ndarray]
    out: np.ndarray
    is_active: np.ndarray
    backwards: bool
    out_grad: np.ndarray
    state_grads: Sequence[np.ndarray]


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiplies matrices as the bfloat16 provider does."""
    if len(a) > 1 and min(b.shape) >= LEAST:
        a, b = rounded(a), rounded(b)
    return np.matmul(a, b, dtype="float64").astype("float32")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gradients(cell: Cell) -> dict[str, np.ndarray]:
    """Returns gradients of x, the states, the weights and the biases, by name."""
    steps, batch, hidden = cell.out.shape
    order = range(steps)[::-1] if cell.backwards else range(steps)
    gates, kept, c_before = _forwards(cell, order)
    # Outputs are 0 after the end of a sequence, and so is the initial h of a reversed one.
    h_before = np.stack([cell.states[0], *(cell.out[step] for step in order[:-1])])
    of_input = np.zeros((steps, batch, GATES.get(cell.mode, 1), hidden), "float32")
    of_state = np.zeros_like(of_input)
    through = np.zeros((batch, hidden), "float32")
    carried, *others = (grad.copy() for grad in cell.state_grads)
    c_grad = others[0] if others else through
    for i in reversed(range(steps)):
        step, active = order[i], cell.is_active[order[i]]
        h_grad = cell.out_grad[step] + through + carried
        if cell.mode == "GRU":
            r, z, n = gates[step]
            new = h_grad * (1 - z) * (1 - n * n)
            update = h_grad * (h_before[i] - n) * z * (1 - z)
            reset = new * kept[step] * r * (1 - r)
            grads, stays = [reset, update, new * r], h_grad * z
            of_input[step] = np.where(active, [reset, update, new], 0).swapaxes(0, 1)
        elif cell.mode == "LSTM":
            a, f, g, o = gates[step]
            reached = c_grad + h_grad * o * (1 - kept[step] ** 2)
            grads = [
                reached * g * a * (1 - a),
                reached * c_before[step] * f * (1 - f),
                reached * a * (1 - g * g),
                h_grad * kept[step] * o * (1 - o),
            ]
            stays, c_grad = np.zeros_like(h_grad), np.where(active, reached * f, c_grad)
        else:
            h = cell.out[step]
            slope = 1 - h * h if cell.mode == "RNN_TANH" else h > 0
            grads, stays = [h_grad * slope], np.zeros_like(h_grad)
        of_state[step] = np.where(active, grads, 0).swapaxes(0, 1)
        carried = np.where(active, stays, carried + through)
        through = product(of_state[step].reshape(batch, -1), cell.weight_hh)
    if cell.mode != "GRU":
        of_input = of_state
    return {
        "h": carried + through,
        "c": c_grad,
        **_of_parameters(cell, of_input, of_state, h_before[np.argsort(order)]),
    }


def _forwards(cell: Cell, order: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns active gates, [steps, gates, batch, hidden], other operands, and the former c."""
    steps, batch, hidden = cell.out.shape
    count = GATES.get(cell.mode, 1)
    shape = (steps, batch, count, hidden)
    of_x = product(cell.x.reshape(steps * batch, -1), cell.weight_ih.T).reshape(shape)
    bias_ih, bias_hh = cell.bias_ih.reshape(count, hidden), cell.bias_hh.reshape(count, hidden)
    gates = np.zeros((steps, count, batch, hidden), "float32")
    kept, c_before = np.zeros_like(cell.out), np.zeros_like(cell.out)
    h, *others = cell.states
    c = others[0] if others else h
    for step in order:
        inputs = (of_x[step] + bias_ih).swapaxes(0, 1)
        states = product(h, cell.weight_hh.T).reshape(shape[1:]) + bias_hh
        states = states.swapaxes(0, 1)
        if cell.mode == "GRU":
            kept[step] = states[2]
            r, z = sigmoid(inputs[:2] + states[:2])
            gates[step] = r, z, np.tanh(inputs[2] + r * states[2])
        elif cell.mode == "LSTM":
            total, c_before[step] = inputs + states, c
            gates[step] = sigmoid(total)
            gates[step][2] = np.tanh(total[2])
            a, f, g, _ = gates[step]
            c = np.where(cell.is_active[step], f * c + a * g, c)
            kept[step] = np.tanh(c)
        h = np.where(cell.is_active[step], cell.out[step], h)
    return gates, kept, c_before


def _of_parameters(
    cell: Cell, of_input: np.ndarray, of_state: np.ndarray, h_before: np.ndarray
) -> dict[str, np.ndarray]:
    rows = cell.out.shape[0] * cell.out.shape[1]
    x, h = cell.x.reshape(rows, -1), h_before.reshape(rows, -1)
    of_input, of_state = of_input.reshape(rows, -1), of_state.reshape(rows, -1)
    if cell.mode == "GRU":
        weights = product(of_input.T, x), product(of_state.T, h)
    else:  # one matmul for both
        both = product(of_state.T, np.concatenate([x, h], 1))
        weights = both[:, : x.shape[1]], both[:, x.shape[1] :]
    return {
        "x": product(of_input, cell.weight_ih).reshape(cell.x.shape),
        "weight_ih": weights[0],
        "weight_hh": weights[1],
        "bias_ih": of_input.sum(0, dtype="float64"),
        "bias_hh": of_state.sum(0, dtype="float64"),
    }
