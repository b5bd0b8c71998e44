"""Runs each frontend once, natively and through the engine; a program of tests/stranger.py.

With the wheel without a core, everything runs natively.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.inference import Config, create_predictor

import paddle_ngraph

HAS_ENGINE = importlib.util.find_spec("paddle_ngraph._core") is not None
X = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)


def main() -> None:
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    folder = Path(sys.argv[1])
    paddle.enable_static()
    through_engine("Executor", executor_run())
    through_engine("training by Executor", executor_run(trains=True))
    with paddle.pir_utils.OldIrGuard():
        through_engine("ProgramDesc", executor_run())
    prefix = save(folder)
    through_engine("predictor", predictor_run(prefix))
    paddle.disable_static()
    through_engine("paddle.jit.load", loaded_run(prefix))
    through_engine("to_static", layer_run(partial(paddle.jit.to_static, full_graph=True)))
    through_engine("compile", layer_run(paddle_ngraph.compile))
    through_engine("training by compile", layer_run(paddle_ngraph.compile, trains=True))
    through_engine("dynamic layer", layer_run(lambda layer: layer), dynamic=True)
    if HAS_ENGINE:
        check_packed_layers()


@contextmanager
def engine_runs(name: str) -> Iterator[None]:
    before = paddle_ngraph.stats()["engine_runs"]
    yield
    has_run = paddle_ngraph.stats()["engine_runs"] > before
    assert has_run == HAS_ENGINE, f"{name}: the engine did not run, or there is none"


def through_engine(name: str, run: Callable[[], Any], dynamic: bool = False) -> None:
    """Compares the results of a run with those of Paddle; the engine has to have run."""
    expected = run()
    paddle_ngraph.enable(dynamic=dynamic)
    with engine_runs(name):
        # Layers are compiled at the second call, of dynamic mode after some timed calls of Paddle.
        for _ in range(40 if dynamic else 4):
            found = run()
            paddle_ngraph.wait_for_compiles()
    paddle_ngraph.disable()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)
    print("ok", name, flush=True)


def network(x: Any, trains: bool) -> Any:
    constant = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.5))
    y = paddle.nn.functional.relu(paddle.static.nn.fc(x, 3, weight_attr=constant))
    if trains:
        paddle.optimizer.SGD(0.0).minimize(paddle.mean(y * y))
    return y


def executor_run(trains: bool = False) -> Callable[[], Any]:
    program, start = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, start):
        y = network(paddle.static.data("x", [2, 4]), trains)
    scope, executor = paddle.static.Scope(), paddle.static.Executor()
    executor.run(start, scope=scope)
    return lambda: executor.run(program, feed={"x": X}, fetch_list=[y], scope=scope)[0]


def save(folder: Path) -> str:
    prefix = str(folder / "model")
    program, start = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, start):
        x = paddle.static.data("x", [2, 4])
        y = network(x, False)
    executor = paddle.static.Executor()
    executor.run(start)
    paddle.static.save_inference_model(prefix, [x], [y], executor, program=program)
    return prefix


def predictor_run(prefix: str) -> Callable[[], Any]:
    config = Config(f"{prefix}.json", f"{prefix}.pdiparams")
    config.disable_glog_info()
    predictor = create_predictor(config)

    def run() -> Any:
        predictor.get_input_handle("x").copy_from_cpu(X)
        predictor.run()
        return predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()

    return run


def loaded_run(prefix: str) -> Callable[[], Any]:
    layer = paddle.jit.load(prefix)
    layer.eval()
    return lambda: layer(paddle.to_tensor(X)).numpy()


def layer_run(transform: Callable[[Any], Any], trains: bool = False) -> Callable[[], Any]:
    layer = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.Tanh())
    compiled = transform(layer)

    def run() -> Any:
        if not trains:
            with paddle.no_grad():
                return compiled(paddle.to_tensor(X)).numpy()
        layer.clear_gradients()
        compiled(paddle.to_tensor(X)).sum().backward()
        return layer[0].weight.grad.numpy()

    return run


def check_packed_layers() -> None:
    """Compares a layer with packed weights with Paddle's, from which it takes its weights."""
    layer, sequence = paddle.nn.LSTM(4, 3), paddle.to_tensor(X[None])
    layer.eval()
    expected = layer(sequence)[0].numpy()
    found = paddle_ngraph.use_mkl_packed(layer)(sequence)[0].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    print("ok packed layers", flush=True)


if __name__ == "__main__":
    main()
