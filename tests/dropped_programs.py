"""Programs that are created and dropped without garbage collection, one frontend after another.

``MALLOC_PERTURB_=165 python -m tests.dropped_programs [FRONTEND ...]`` fills freed memory, so that
a Value that points into it ends the process. Prints each frontend and the number of engine runs.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn

PROGRAMS, GRAPHS = 50, 3  # for each frontend: by Paddle in between, and its own
BATCH = 4


class Cycle:
    """An object in a cycle with Values that do not own their memory, as Paddle leaves them."""

    def __init__(self) -> None:
        paddle.enable_static()
        main = paddle.static.Program()
        with paddle.static.program_guard(main):
            type = paddle.static.data("x", [2]).type()
        paddle.disable_static()
        main.global_block().add_kwarg("k", type)
        self.values = main.global_block().kwargs()
        self.itself = self


def _lenet() -> Any:
    return paddle.vision.models.LeNet(num_classes=10)


def _small() -> Any:
    return nn.Sequential(nn.Conv2D(1, 2, 3), nn.BatchNorm2D(2), nn.Flatten(), nn.Linear(1352, 10))


def _train(layer: Any, steps: int) -> None:
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    for _ in range(steps):
        loss = F.cross_entropy(layer(paddle.randn([BATCH, 1, 28, 28])), paddle.arange(BATCH))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()


def _loaded(path: str) -> Any:
    layer = paddle.jit.load(path)
    layer.train()
    return layer


def live(frontends: list[str]) -> None:
    """Creates programs of Paddle, and some of each frontend; all are dropped at once."""
    import paddle_ngraph
    from paddle_ngraph.frontends.dynamic import tuning_policy
    from tests.dynamic import dynamic_mode

    @contextmanager
    def everything_pays() -> Iterator[None]:
        choice = replace(tuning_policy.POLICY.choice, min_gain=0.0)
        tuning_policy.POLICY = replace(tuning_policy.POLICY, choice=choice)
        paddle.set_flags({"FLAGS_ngraph_tuning_ms": -1})
        paddle_ngraph.enable(dynamic="training")
        try:
            yield
        finally:
            paddle_ngraph.disable()

    def step(frontend: str, path: str) -> None:
        with ExitStack() as stack:
            if frontend == "to_static":
                stack.enter_context(paddle_ngraph.use_ngraph())
                _train(_loaded(path), 1)
            elif frontend == "compile":
                _train(paddle_ngraph.compile(_small()), 3)
            elif frontend == "dynamic":
                stack.enter_context(everything_pays())
                _train(_small(), 14)

    with dynamic_mode(), tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model"
        spec = [paddle.static.InputSpec([BATCH, 1, 28, 28], "float32", "x")]
        paddle.jit.save(paddle.jit.to_static(_lenet(), input_spec=spec, full_graph=True), path)
        for frontend in frontends:
            before = paddle_ngraph.stats()["engine_runs"]
            print(frontend, end=" ", flush=True)
            for number in range(PROGRAMS):
                _train(_loaded(path), 1)
                if number % (PROGRAMS // GRAPHS) == 0:
                    step(frontend, path)
            print(paddle_ngraph.stats()["engine_runs"] - before, flush=True)


if __name__ == "__main__":
    gc.disable()
    left = weakref.ref(Cycle())
    assert left() is not None
    from paddle_ngraph import library
    from paddle_ngraph.utils import first_use

    library.load()
    first_use.begin()
    assert left() is None, "what was made before the first use of the engine is still there"
    live(sys.argv[1:])
