"""Runs a Paddle custom operator of one's own through nGraph, in training.

    python demos/custom_op_demo/run.py

Compiles ``cubed_relu.cc``, builds a small network with it, shows what nGraph makes of the program
before and after the converters are registered, and trains natively and through the engine.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import paddle
from paddle.utils import cpp_extension

import paddle_ngraph
from demos.command_line import exit_status
from demos.running import DemoError

STEPS = 20
SOURCE = Path(__file__).with_name("cubed_relu.cc")


def compile_operator(folder: Path) -> Any:
    """The module that Paddle makes of ``cubed_relu.cc``, built in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return cpp_extension.load("cubed_relu_demo", [str(SOURCE)], build_directory=str(folder))


def build_program(cubed_relu: Any) -> tuple[Any, Any, Any]:
    """A training step of two layers with the operator between them: main, startup, loss."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [-1, 8], "float32")
        y = paddle.static.data("y", [-1, 1], "float32")
        hidden = cubed_relu(paddle.nn.Linear(8, 16)(x))
        loss = paddle.nn.functional.mse_loss(paddle.nn.Linear(16, 1)(hidden), y)
        paddle.optimizer.Momentum(0.01).minimize(loss)
    return main, startup, loss


def train(main: Any, startup: Any, loss: Any, engine: bool) -> list[float]:
    """The losses of some steps from the same weights on the same data."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(64, 8)).astype("float32")
    y = np.maximum(x.sum(axis=1, keepdims=True), 0) / 8
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()), paddle_ngraph.use_ngraph(engine):
        paddle.seed(1)
        executor.run(startup)
        feed = {"x": x, "y": y}
        return [float(executor.run(main, feed=feed, fetch_list=[loss])[0]) for _ in range(STEPS)]


def run(folder: Path) -> None:
    """The demo.

    Raises:
        DemoError: The operator did not run in the engine, or the losses part.
    """
    paddle.enable_static()
    program = build_program(compile_operator(folder).cubed_relu)
    print("Without converters:", paddle_ngraph.explain(program[0]), sep="\n")
    importlib.import_module("demos.custom_op_demo.converters")
    report = paddle_ngraph.explain(program[0])
    print("\nWith converters:", report, sep="\n")
    if report.native:
        raise DemoError("an operator stayed native")
    native = train(*program, engine=False)
    paddle_ngraph.reset_stats()
    through_engine = train(*program, engine=True)
    print(f"\nloss after {STEPS} steps: native {native[-1]:.6f}, nGraph {through_engine[-1]:.6f}")
    if paddle_ngraph.stats()["engine_runs"] < STEPS:
        raise DemoError("the engine did not run")
    if not np.allclose(native, through_engine, rtol=1e-4):
        raise DemoError("the losses part")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=Path, help="where to compile (default: a temporary)")
    options = parser.parse_args()
    if options.build_dir:
        return exit_status(run, options.build_dir)
    with tempfile.TemporaryDirectory() as folder:
        return exit_status(run, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
