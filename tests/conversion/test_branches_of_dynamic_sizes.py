"""Results of branches are valid for later readers, in the first run of each size, too."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.programs import Program

WIDTHS = (4, 8, 32, 128)
# The first two are compiled as they are, the others run through one function with dynamic sizes.
ROWS = (65, 7, 11, 13, 9, 40, 200)


class RandomNetwork:
    """A random network: matmuls, branches, loops, and results with late readers.

    Args:
        seed: For the network and its weights.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._kept: list = []

    def __call__(self):
        x = paddle.static.data("x", [-1, 4], "float32")
        h = self._branch(self._product(x))  # at least one, followed by growing results
        for _ in range(self._rng.integers(3, 7)):
            steps = [self._product] * 3 + [self._branch, self._loop, self._keep, self._join]
            h = steps[self._rng.integers(len(steps))](h)
        return paddle.tanh(self._product(self._join(h), 4))

    def _product(self, h, width=None):
        width = width or int(self._rng.choice(WIDTHS))
        weight = self._rng.uniform(-1, 1, (h.shape[1], width)) / np.sqrt(h.shape[1])
        values = paddle.nn.initializer.Assign(weight.astype("float32"))
        attribute = paddle.ParamAttr(initializer=values)
        made = h @ paddle.create_parameter([h.shape[1], width], "float32", attr=attribute)
        return paddle.nn.functional.relu(made)

    def _branch(self, h):
        """A condition that is true for some batches only."""
        meets = paddle.mean(paddle.sin(50.0 * h)) > 0.0
        made = paddle.static.nn.cond(
            meets, lambda: (paddle.tanh(h), h + 1.0), lambda: (0.5 * h + 0.1, paddle.exp(-h))
        )
        self._kept.append(made[1])
        return made[0]

    def _loop(self, h):
        """Iterations with a branch in them."""
        iterations = int(self._rng.integers(1, 4))
        i, end = paddle.full([1], 0, "int64"), paddle.full([1], iterations, "int64")

        def body(i, h):
            turned = paddle.static.nn.cond(
                paddle.mean(h) > 0.3, lambda: paddle.tanh(h), lambda: h + 0.1
            )
            wide = self._product(self._product(turned, 32), 64)
            return [i + 1, paddle.tanh(self._product(wide, h.shape[1]) + 0.5 * turned)]

        return paddle.static.nn.while_loop(lambda i, h: i < end, body, [i, paddle.assign(h)])[1]

    def _keep(self, h):
        self._kept.append(h)
        return h

    def _join(self, h):
        return paddle.concat([h, *self._kept[-2:]], axis=1)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("seed", range(10))
def test_the_first_run_of_each_size_equals_paddle(seed):
    paddle.enable_static()
    program = Program(RandomNetwork(seed))
    paddle_ngraph.reset_stats()
    for rows in ROWS:
        x = np.random.default_rng(rows).uniform(-1, 1, (rows, 4)).astype("float32")
        program.both(x=x)
    assert paddle_ngraph.stats()["functions_reused"] >= len(ROWS) - 3, "no sizes were open"
