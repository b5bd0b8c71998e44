"""Equal constants that are written stay separate variables, in random networks.

Paddle merges equal constants of a predictor and caches folded values from run to run, so a
predictor of plain Paddle is no reference: results are those of dynamic mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import _C_ops as operators
from paddle import inference

import paddle_ngraph
from paddle_ngraph import _core
from tests.dynamic import dynamic_mode
from tests.programs import Program, floats, strict_runs
from tests.zips import zip_equal

SHAPE = [4, 6]
NUMBERS = floats(*SHAPE, seed=9)
SEEDS = range(5)

pytestmark = pytest.mark.usefixtures("small_intervals_pay")


def _parameter() -> Any:
    return paddle.create_parameter(
        SHAPE, "float32", default_initializer=paddle.nn.initializer.Assign(NUMBERS)
    )


# Operators that create a constant, or fold to one.
LEGACY: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda x: paddle.zeros(SHAPE),
    "ones": lambda x: paddle.ones(SHAPE),
    "full": lambda x: paddle.full(SHAPE, 0.5),
    "zeros_like": lambda x: paddle.zeros_like(x),
    "full_like": lambda x: paddle.full_like(x, 2.0),
    "assign": lambda x: paddle.assign(NUMBERS),
    "scaled": lambda x: paddle.ones(SHAPE) * 2.0 + 1.0,
    "cast": lambda x: paddle.cast(paddle.full(SHAPE, 3, "int64"), "float32"),
    "copied": lambda x: paddle.assign(paddle.ones(SHAPE)),
    "joined": lambda x: paddle.concat([paddle.zeros([2, 6]), paddle.ones([2, 6])]),
}
CONSTANTS: dict[str, Callable[[Any], Any]] = {
    **LEGACY,
    "to_tensor": lambda x: paddle.to_tensor(NUMBERS),
    "arange": lambda x: paddle.arange(6, dtype="float32") + paddle.zeros(SHAPE),
    "linspace": lambda x: paddle.linspace(0, 1, 6) * paddle.ones(SHAPE),
    "eye": lambda x: paddle.eye(4, 6),
    "tril": lambda x: paddle.tril(paddle.ones(SHAPE)),
    "diag": lambda x: paddle.concat([paddle.diag(paddle.ones([4])), paddle.zeros([4, 2])], 1),
    "one_hot": lambda x: paddle.nn.functional.one_hot(paddle.arange(4), 6),
    "tile": lambda x: paddle.tile(paddle.arange(6, dtype="float32"), [4, 1]),
    "expand": lambda x: paddle.expand(paddle.full([1, 6], 1.5), SHAPE),
    "of_a_size": lambda x: paddle.full([paddle.full([1], 4, "int32"), 6], 2.5),
    "parameter": lambda x: _parameter() * 1.0,
    "logspace": lambda x: paddle.logspace(0, 1, 6) + paddle.zeros(SHAPE),
    "fallback": lambda x: paddle.erfinv(paddle.full(SHAPE, 0.5)),
    "fallback_of_a_feed": lambda x: paddle.erfinv(paddle.tanh(x) * 0.5),
}


def is_legacy() -> bool:
    """Whether a ProgramDesc is being built."""
    return not paddle.in_dynamic_mode() and not paddle.framework.in_pir_mode()


def put(a: Any, index: Any, value: Any) -> None:
    """``a[index] = value``, in legacy programs too."""
    if is_legacy():
        paddle.assign(paddle.static.setitem(a, index, value), output=a)
    else:
        a[index] = value


def _fill_rows(a: Any, x: Any) -> None:
    if not is_legacy():
        a[1:3] = 2.5
        return
    rows = {"axes": [0], "starts": [1], "ends": [3], "steps": [1], "shape": [1], "values": [2.5]}
    a.block.append_op(
        type="set_value", inputs={"Input": a}, outputs={"Out": a}, attrs={**rows, "dtype": a.dtype}
    )


def _set_columns(a: Any, x: Any) -> None:
    put(a, (slice(None), slice(2, 4)), x[:, 2:4] * 2.0)


def _set_row(a: Any, x: Any) -> None:
    put(a, -1, x[0])


def _set_every_other(a: Any, x: Any) -> None:
    put(a, slice(None, None, 2), x[::2] * 3.0)


def _assign(a: Any, x: Any) -> None:
    paddle.assign(x + 1.0, output=a)


def _increment(a: Any, x: Any) -> None:
    put(a, (0, slice(1)), paddle.increment(paddle.full([1], 3.0)))


SETS = [_fill_rows, _set_columns, _set_row, _set_every_other, _assign, _increment]
WRITES = [
    *SETS,
    lambda a, x: operators.add_(a, x),
    lambda a, x: operators.multiply_(a, x),
    lambda a, x: operators.tanh_(a),
    lambda a, x: operators.scale_(a, 2.0, 0.5, True),
    lambda a, x: operators.clip_(a, -0.5, 0.5),
    lambda a, x: operators.lgamma_(a),  # falls back
]


class RandomNetwork:
    """A random network with equal constants, of several dtypes, that are written and read."""

    def __init__(self, seed: int, way: str) -> None:
        self.seed, self.is_legacy = seed, way.startswith("legacy")
        makers = dict(LEGACY if self.is_legacy else CONSTANTS)
        if way == "to_static":  # a function creates no parameters
            del makers["parameter"]
        # In rotation, so that each is in a network.
        self.makers = list(makers.values())[seed % len(SEEDS) :: len(SEEDS)]
        self.writes = SETS if self.is_legacy else WRITES

    def __call__(self, x: Any) -> list[Any]:
        self.draw = np.random.default_rng(self.seed)
        found = []
        with_region = self.draw.integers(len(self.makers))
        for number, make in enumerate(self.makers):
            equal = [make(x) for _ in range(self.draw.integers(2, 4))]
            found += [a + x for a in equal if self.draw.integers(2)]
            for a in equal:
                self.write(a, x)
            if number == with_region:
                found.append(self.region(equal, x))
            found += [a * 1.0 for a in equal]
            self.write(equal[0], x)
            found += [a + x for a in equal]
        return found

    def write(self, a: Any, x: Any) -> None:
        self.writes[self.draw.integers(len(self.writes))](a, x)

    def region(self, equal: list[Any], x: Any) -> Any:
        """The result of a loop or branch that writes constants of its own and of the network."""

        def step(i: Any, h: Any, falls_back: bool = False) -> Any:
            first, second = (paddle.ones(SHAPE) for _ in range(2))
            put(first, slice(1, 3), h[1:3])
            put(second, (slice(None), slice(2)), h[:, 2:4])
            if falls_back:  # such a loop writes to the constants of the network themselves
                return i + 1, paddle.erfinv(paddle.tanh(first - second) * 0.5)
            put(equal[0], slice(2, None), (second + equal[-1])[2:])
            return i + 1, first * 0.5 + second

        start = paddle.zeros([1], "int64")
        choice = 0 if self.is_legacy else self.draw.integers(3)
        if choice == 1:
            return paddle.static.nn.cond(
                paddle.mean(x) > 0.0, lambda: step(start, x)[1], lambda: step(start, x * 2.0)[1]
            )
        return paddle.static.nn.while_loop(
            lambda i, _: i < 2,
            lambda i, h: step(i, h, falls_back=choice == 2),
            [start, x * 1.0],  # dynamic mode writes there
        )[1]


def feeds() -> list[np.ndarray]:
    """Both signs, so that both branches run; the last one detects effects of earlier runs."""
    x = np.abs(floats(*SHAPE))
    return [x, -x, x * 0.5]


def references(network: RandomNetwork) -> list[list[np.ndarray]]:
    with dynamic_mode():
        return [[found.numpy() for found in network(paddle.to_tensor(x))] for x in feeds()]


Runner = Callable[[np.ndarray], list[np.ndarray]]


def by_executor(network: RandomNetwork, folder: Path) -> Runner:
    program = Program(lambda: network(paddle.static.data("x", SHAPE)))
    return lambda x: program.run(x=x)


def by_to_static(network: RandomNetwork, folder: Path) -> Runner:
    def run(x: np.ndarray) -> list[np.ndarray]:
        with dynamic_mode():
            return [found.numpy() for found in compiled(paddle.to_tensor(x))]

    traced = paddle.jit.not_to_static(lambda x: network(x))  # unmodified: it samples

    def function(x: Any) -> list[Any]:
        return traced(x)

    compiled = paddle.jit.to_static(function, full_graph=True)
    return run


def saved(network: RandomNetwork, folder: Path, form: str) -> tuple[str, str]:
    """Saves a model of the network; returns the paths of its program and of its parameters."""
    guard = paddle.pir_utils.OldIrGuard() if form == "pdmodel" else contextlib.nullcontext()
    with guard, paddle_ngraph.use_ngraph(False):
        program = Program(lambda: [x := paddle.static.data("x", SHAPE), *network(x)])
        x, *results = program.fetches
        with paddle.static.scope_guard(program.scope):
            paddle.static.save_inference_model(
                str(folder / "model"),
                [x],
                results,
                program.executor,
                program=program.main,
                skip_prune_program=True,  # Paddle does not track overwrites
            )
    parameters = folder / "model.pdiparams"
    return str(folder / f"model.{form}"), str(parameters) if parameters.exists() else ""


def by_predictor(form: str, onednn: bool) -> Callable[[RandomNetwork, Path], Runner]:
    def runner(network: RandomNetwork, folder: Path) -> Runner:
        config = inference.Config(*saved(network, folder, form))
        config.disable_glog_info()
        if not onednn:
            config.disable_onednn()
        predictor = inference.create_predictor(config)

        def run(x: np.ndarray) -> list[np.ndarray]:
            predictor.get_input_handle("x").copy_from_cpu(x)
            predictor.run()
            names = predictor.get_output_names()
            return [predictor.get_output_handle(name).copy_to_cpu() for name in names]

        return run

    return runner


def by_legacy_executor(network: RandomNetwork, folder: Path) -> Runner:
    with paddle.pir_utils.OldIrGuard():
        program = Program(lambda: network(paddle.static.data("x", SHAPE)))

    def run(x: np.ndarray) -> list[np.ndarray]:
        with paddle.pir_utils.OldIrGuard():
            return program.run(x=x)

    return run


WAYS: dict[str, Callable[[RandomNetwork, Path], Runner]] = {
    "executor": by_executor,
    "to_static": by_to_static,
    "predictor": by_predictor("json", onednn=False),
    "onednn": by_predictor("json", onednn=True),
    "legacy executor": by_legacy_executor,
    "legacy predictor": by_predictor("pdmodel", onednn=False),
}


def run_and_compare(run: Runner, expected: list[list[np.ndarray]]) -> None:
    for x, results in zip_equal(feeds(), expected):
        for found, right in zip_equal(run(x), results):
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", SEEDS)
def test_equal_constants_that_are_written_are_separate(seed: int, way: str, tmp_path: Path) -> None:
    network = RandomNetwork(seed, way)
    expected = references(network)
    paddle_ngraph.enable()
    with strict_runs():
        run = WAYS[way](network, tmp_path)
        run_and_compare(run, expected)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] >= len(expected) and stats["native_runs"] == 0
    _core.fail_at("run")
    run_and_compare(run, expected)
    assert paddle_ngraph.stats()["native_runs"] > 0
