"""Random models of layers, attention and normalizations, for the plugin to compile.

Run as a script, as a model may end the process: ``random_units.py FIRST END`` prints each seed
before its model is compiled. Models that are marked for loops apart are left out.
"""

from __future__ import annotations

import random
import sys

import numpy as np
from openvino import Model, Type
from openvino import opset15 as ops

from paddle_ngraph.conversion.openvino_core import core
from paddle_ngraph.conversion.passes import plugin_workarounds

_CONFIGURATION = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
_ONES = (
    ops.relu,
    ops.exp,
    ops.tanh,
    ops.negative,
    lambda x: ops.clamp(x, -1.0, 1.0),
    lambda x: ops.softmax(x, len(_shape(x)) - 1),
)
_TWOS = (
    ops.add,
    ops.multiply,
    ops.maximum,
    lambda a, b: ops.divide(a, ops.add(ops.abs(b), ops.constant(np.float32(1)))),
    lambda a, b: ops.select(ops.less(a, b), a, b),
    lambda a, b: ops.select(ops.not_equal(a, a), a, b),
)


def _shape(x) -> list[int]:
    return [size.get_length() for size in x.get_output_partial_shape(0)]


def _transposed(x):
    rank = len(_shape(x))
    return ops.transpose(x, ops.constant(np.array([*range(rank - 2), rank - 1, rank - 2])))


class _Draw:
    """A random model: its values so far, and the generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._width = self._random.choice([16, 48, 64])
        fed = [self._random.choice([2, 4, 8]), self._width]
        self._parameters = [ops.parameter(fed, Type.f32) for _ in range(2)]
        self._values = list(self._parameters)

    def model(self) -> Model:
        steps = (
            self._layer,
            self._one,
            self._two,
            self._reshape,
            self._attention,
            self._norm,
            self._gradient,
        )
        for _ in range(self._random.randint(3, 22)):
            (step,) = self._random.choices(steps, weights=(8, 3, 5, 2, 2, 1, 1))
            self._values.append(step(self._random.choice(self._values[-4:])))
        others = self._values[2:-1]
        results = self._random.sample(others, self._random.randint(0, min(len(others), 2)))
        return Model([self._values[-1], *results], self._parameters, "drawn")

    def _weights(self, *shape: int):
        if self._random.random() < 0.2:  # as in training
            self._parameters.append(ops.parameter(list(shape), Type.f32))
            return self._parameters[-1]
        return ops.constant(self._numbers.standard_normal(shape).astype(np.float32) * 0.1)

    def _product(self, a, b):
        """The matmul of two matrices, each plain or transposed twice: by a node and by a flag."""
        transposed = [self._random.random() < 0.2 for _ in range(2)]
        a, b = (
            _transposed(x) if is_transposed else x for x, is_transposed in zip((a, b), transposed)
        )
        return ops.matmul(a, b, *transposed)

    def _layer(self, x):
        columns = self._random.choice([self._width, 32])
        x = self._product(x, self._weights(_shape(x)[-1], columns))
        x = ops.add(x, self._weights(columns)) if self._random.random() < 0.7 else x
        return self._one(x) if self._random.random() < 0.7 else x

    def _one(self, x):
        return self._random.choice(_ONES)(x)

    def _two(self, x):
        same = [value for value in self._values if _shape(value) == _shape(x)]
        return self._random.choice(_TWOS)(x, self._random.choice(same))

    def _reshape(self, x):
        shape = _shape(x)
        ways = [shape, [int(np.prod(shape[:-1])), shape[-1]]]
        if len(shape) < 4:
            ways += [[*shape, 1], [1, *shape], [shape[0], 1, *shape[1:]]]
        return ops.reshape(x, ops.constant(np.array(self._random.choice(ways))), False)

    def _attention(self, x):
        scores = ops.softmax(self._product(x, _transposed(x)), len(_shape(x)) - 1)
        return self._product(scores, x)

    def _gradient(self, x):
        """The gradient of the weights of a layer, by which others are multiplied."""
        if len(_shape(x)) != 2:
            return self._one(x)
        weights = ops.matmul(x, self._two(x), True, False)
        return self._product(self._one(x), weights)

    def _norm(self, x):
        x = ops.subtract(x, self._mean(x))
        variance = ops.add(self._mean(ops.multiply(x, x)), ops.constant(np.float32(1e-5)))
        return ops.divide(x, ops.sqrt(variance))

    def _mean(self, x):
        return ops.reduce_mean(x, ops.constant(np.array([len(_shape(x)) - 1])), True)


def main(first: int, end: int) -> None:
    """Compiles the models of these seeds; prints how many were compiled and how many left out."""
    compiled = marked = 0
    for seed in range(first, end):
        model = _Draw(seed).model()
        plugin_workarounds.divide_exactly(model)
        plugin_workarounds.squeeze_to_scalars(model)
        plugin_workarounds.separate_abs_input(model)
        plugin_workarounds.compare_by_less(model)
        plugin_workarounds.disable_loop_fusion(model)
        if model.has_rt_info("ngraph_loops_apart"):
            marked += 1
            continue
        print(seed, flush=True)
        core().compile_model(model, "CPU", _CONFIGURATION)
        compiled += 1
    print(f"{compiled} compiled, {marked} left out")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
