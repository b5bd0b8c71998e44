"""Loop fusions of the plugin that would crash are blocked, others are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from openvino import Model, Type
from openvino import opset15 as ops

from paddle_ngraph.conversion.passes import plugin_workarounds
from tests.programs import Program, floats

SCRIPT = Path(__file__).parents[2] / "loops_after_units.py"
RANDOM = Path(__file__).parents[2] / "random_units.py"


@pytest.mark.slow("starts a process")
def test_units_are_excluded_from_loop_fusion():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", SCRIPT], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, f"computed: {done.stdout}, then {done.stderr}"


@pytest.mark.slow("starts a process")
def test_random_models_do_not_crash():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", RANDOM, "0", "200"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"compiled: {done.stdout[-200:]}, then {done.stderr}"
    compiled, marked = [int(word) for word in done.stdout.split() if word.isdigit()][-2:]
    assert compiled > marked > 0


def _weight(*shape):
    return ops.constant(np.full(shape, 0.5, np.float32))


def _layer(x, rows=48, columns=48):
    product = ops.matmul(x, _weight(rows, columns), False, False)
    return ops.relu(ops.add(product, _weight(columns)))


def _as_picture(x):
    return ops.reshape(x, ops.constant([4, 48, 1, 1]), False)


def _transformer_block(x):
    """A transformer block whose residuals read a rank-3 matmul with a weight, outside a unit."""
    heads = ops.transpose(
        ops.reshape(_layer(x), ops.constant([2, 8, 3, 16]), False), ops.constant([0, 2, 1, 3])
    )
    scores = ops.softmax(ops.matmul(heads, heads, False, True), 3)
    mixed = ops.transpose(ops.matmul(scores, heads, False, False), ops.constant([0, 2, 1, 3]))
    mixed = ops.reshape(mixed, ops.constant([2, 8, 48]), False)
    x = ops.add(ops.relu(x), _layer(mixed))
    x = ops.multiply(ops.mvn(x, ops.constant([2]), True, 1e-5, "inside_sqrt"), _weight(48))
    return ops.add(x, _layer(_layer(x)))


@pytest.mark.parametrize(
    ("shape", "build"),
    [
        ((4, 48), lambda x: _layer(_layer(_layer(x)))),
        ((4, 48), lambda x: ops.add(_layer(_layer(x)), x)),
        ((4, 48), lambda x: ops.subtract(_layer(x), ops.exp(x))),
        ((4, 48), lambda x: ops.add(_as_picture(_layer(_layer(x))), ops.exp(_as_picture(x)))),
        ((2, 8, 48), _transformer_block),
    ],
    ids=[
        "layers",
        "a residual of what is fed",
        "one layer",
        "layers behind a shape",
        "a transformer's block",
    ],
)
def test_safe_models_keep_loop_fusion(shape, build):
    x = ops.parameter(list(shape), Type.f32)
    model = Model([build(x)], [x], "kept")
    plugin_workarounds.disable_loop_fusion(model)
    assert not model.has_rt_info("ngraph_loops_apart")


@pytest.mark.parametrize(("length", "is_marked"), [(100, False), (200, True)])
def test_long_chains_of_elementwise_nodes_are_not_fused(length, is_marked):
    """The time of fusion grows with the square of the chain's length."""
    x = ops.parameter([4, 8], Type.f32)
    y = x
    for number in range(length):
        y = ops.tanh(y) if number % 2 else ops.add(x, y)
    model = Model([y], [x], "chain")
    plugin_workarounds.disable_loop_fusion(model)
    assert model.has_rt_info("ngraph_loops_apart") == is_marked


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.usefixtures("small_intervals_pay")
def test_a_long_chain_equals_paddle():
    def build():
        x = paddle.static.data("x", [4, 8])
        y = x
        for _ in range(150):
            y = paddle.tanh(y) * 1.01 + x
        return y

    Program(build).both(x=floats(4, 8))
