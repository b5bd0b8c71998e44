"""Memory that remains after programs, predictors and layers were created, used and dropped.

``python -m tests.leaks`` runs several lives of each type, by Paddle and with the engine,
and prints the remains of the later ones.
"""

from __future__ import annotations

import gc
import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import inference, nn

import paddle_ngraph
from paddle_ngraph import caches
from paddle_ngraph.paddle_private.names import free_scope
from paddle_ngraph.plan import data_dependency_engine
from tests.programs import Program, cores_of_plans, floats, parameter

WARM, COUNTED = 6, 20
LIVES: dict[str, Callable[[bool, int], None]] = {}


def life(function: Callable[[bool, int], None]) -> Callable[[bool, int], None]:
    """Registers a type of life; it receives whether the engine is on, and its index."""
    LIVES[function.__name__] = function
    return function


# -- programs ------------------------------------------------------------------------------------


def _run_program(build: Callable[[], Any]) -> None:
    program = Program(build)
    for _ in range(2):
        program.run_as_is(x=floats(3, 8))
    free_scope(program.scope)


def _network(factor: float = 1.0) -> Any:
    x = paddle.static.data("x", [-1, 8], "float32")
    return (nn.functional.relu(x @ parameter(8, 8)) * factor).mean()


def _training_network(factor: float) -> Any:
    loss = _network(factor)
    paddle.optimizer.Adam(0.1).minimize(loss)
    return loss


@life
def program(_on: bool, number: int) -> None:
    _run_program(lambda: _network(1.0 + number))


@life
def training_program(_on: bool, number: int) -> None:
    _run_program(lambda: _training_network(1.0 + number))


@life
def program_of_a_thread(_on: bool, number: int) -> None:
    thread = threading.Thread(target=lambda: _run_program(lambda: _network(1.0 + number)))
    thread.start()
    thread.join()


@life
def program_that_fails(_on: bool, number: int) -> None:
    def build() -> Any:
        x = paddle.static.data("x", [-1, 8], "float32")
        return paddle.gather(x * (1.0 + number), paddle.static.data("at", [1], "int64"))

    program = Program(build)
    program.run_as_is(x=floats(3, 8), at=np.array([2]))
    try:
        program.run_as_is(x=floats(3, 8), at=np.array([99]))
    except Exception:
        free_scope(program.scope)
        return
    raise AssertionError("there is no row 99")


def save(path: str, factor: float) -> None:
    """Saves a small network; another factor gives another graph."""
    program = Program(lambda: _network(factor))
    with paddle.static.scope_guard(program.scope), paddle_ngraph.use_ngraph(False):
        operators = program.main.global_block().ops
        fed = next(op.result(0) for op in operators if op.name() == "pd_op.data")
        paddle.static.save_inference_model(
            path, [fed], program.fetches, program.executor, program=program.main
        )
    free_scope(program.scope)


def predict(path: str, runs: int) -> None:
    """Creates a predictor of a saved network, and runs it."""
    config = inference.Config(path + ".json", path + ".pdiparams")
    config.disable_glog_info()
    made = inference.create_predictor(config)
    for _ in range(runs):
        made.get_input_handle(made.get_input_names()[0]).copy_from_cpu(floats(3, 8))
        made.run()


@life
def predictor(_on: bool, number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        save(path, 1.0 + number)
        predict(path, runs=2)


@life
def planned_program(on: bool, number: int) -> None:
    def build() -> Any:
        x = paddle.static.data("x", [-1, 8], "float32")
        return [nn.functional.relu(x @ parameter(8, 8)) * (1.0 + number) for _ in range(2)]

    program = Program(build)
    run, fetches = program.main, program.fetches
    with cores_of_plans(2):
        if on:
            plan = paddle_ngraph.execution_plan(program.main, "CPU:0", fetches)
            products = [op for op in run.global_block().ops if op.name() == "pd_op.matmul"]
            plan.place(products[1], "CPU:1")
            assert data_dependency_engine.schedule_of(plan.program) is not None
            run, fetches = plan.program, plan.fetches
        for _ in range(2):
            program.executor.run(run, {"x": floats(3, 8)}, fetches, scope=program.scope)
    free_scope(program.scope)


PROGRAMS = frozenset(LIVES)

# -- layers --------------------------------------------------------------------------------------


class Layer(nn.Layer):
    """A small network.

    Args:
        factor: Another factor gives another graph.
    """

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return paddle.tanh(self.linear(x)) * self.factor


def _infer(layer: Any) -> None:
    with paddle.no_grad():
        for _ in range(4):
            layer(paddle.to_tensor(floats(3, 8)))


def _train(layer: Any, inner: nn.Layer) -> None:
    optimizer = paddle.optimizer.SGD(0.1, parameters=inner.parameters())
    for _ in range(4):
        layer(paddle.to_tensor(floats(3, 8))).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()


def _compiled(on: bool, thing: Any) -> Any:
    return paddle_ngraph.compile(thing) if on else thing


@life
def static_layer(_on: bool, number: int) -> None:
    layer = Layer(1.0 + number)
    layer.eval()
    _infer(paddle.jit.to_static(layer, full_graph=True))


@life
def static_layer_that_trains(_on: bool, number: int) -> None:
    layer = Layer(1.0 + number)
    _train(paddle.jit.to_static(layer, full_graph=True), layer)


@life
def compiled_layer(on: bool, number: int) -> None:
    layer = _compiled(on, Layer(1.0 + number))
    layer.eval()
    _infer(layer)


@life
def compiled_layer_that_trains(on: bool, number: int) -> None:
    layer = _compiled(on, Layer(1.0 + number))
    _train(layer, layer)


@life
def compiled_layer_without_backward_passes(on: bool, number: int) -> None:
    layer = _compiled(on, Layer(1.0 + number))
    for _ in range(4):
        layer(paddle.to_tensor(floats(3, 8)))


@life
def compiled_layer_with_a_fallback_operator(on: bool, number: int) -> None:
    layer = _compiled(
        on, lambda x: paddle.bincount((x * number).abs().astype("int32")[0]) + x[0, 0]
    )
    _infer(layer)


@life
def compiled_function(on: bool, number: int) -> None:
    function = _compiled(on, lambda x: paddle.tanh(x * (1.0 + number)) + x)
    for _ in range(4):
        x = paddle.to_tensor(floats(3, 8))
        x.stop_gradient = False
        paddle.grad(function(x).sum(), x)


@life
def compiled_layer_that_fails(on: bool, number: int) -> None:
    layer = _compiled(on, Layer(1.0 + number))
    _infer(layer)
    try:
        layer(paddle.to_tensor(floats(3, 5)))
    except Exception:
        return
    raise AssertionError("8 columns are no 5")


# -- remaining objects ---------------------------------------------------------------------------


def _count() -> dict[str, int]:
    paddle_ngraph.clear_cache()
    gc.collect()
    return {"objects": len(gc.get_objects()), **caches.sizes()}


def values() -> int:
    """Counts references from Python objects to Values of programs; caches may hold some.

    The collector does not track tuples and dicts of nothing but Values.
    """
    gc.collect()
    held = gc.get_referents(*gc.get_objects())
    plain = [x for x in held if type(x) in (dict, tuple) and not gc.is_tracked(x)]
    return sum(type(each) is paddle.pir.Value for each in held + gc.get_referents(*plain))


def _left(kind: str, on: bool) -> dict[str, int]:
    """Returns Python objects and entries of tables that remain of some lives, and engine runs."""
    is_static = kind in PROGRAMS
    paddle.enable_static() if is_static else paddle.disable_static()
    with paddle_ngraph.use_ngraph(on):
        for number in range(WARM):
            LIVES[kind](on, number)
        before, runs = _count(), paddle_ngraph.stats()["engine_runs"]
        for number in range(WARM, WARM + COUNTED):
            LIVES[kind](on, number)
        runs = paddle_ngraph.stats()["engine_runs"] - runs
        after = _count()
    return {**{name: after[name] - size for name, size in before.items()}, "runs": runs}


if __name__ == "__main__":
    held = values()
    left = {kind: [_left(kind, on) for on in (False, True)] for kind in LIVES}
    for kind in LIVES:
        paddle.enable_static() if kind in PROGRAMS else paddle.disable_static()
        with paddle_ngraph.use_ngraph():
            LIVES[kind](True, 0)
    assert values() <= held, "a Value is kept beyond its program"
    print(json.dumps(left))
