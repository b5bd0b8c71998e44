"""The objects, and the files, that fragments in the documentation presuppose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle

import paddle_ngraph
from tests.docs.blocks import ROOT

SCRIPT = """\
import numpy
import paddle
import paddle_ngraph

paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(program, startup):
    x = paddle.static.data("x", [None, 256])
    result = paddle.nn.functional.softmax(paddle.nn.Linear(256, 256)(x))
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(startup)
executor.run(program, feed={"x": numpy.ones([512, 256], "float32")}, fetch_list=[result])
"""


def training_program() -> dict[str, Any]:
    """A static program that trains, with its variables initialized."""
    paddle.enable_static()
    main_program, startup_program = paddle.static.Program(), paddle.static.Program()
    guard = paddle.static.program_guard(main_program, startup_program)
    with guard, paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [None, 256])
        y = paddle.static.data("y", [None, 1], "int64")
        hidden = paddle.nn.functional.relu(paddle.nn.Linear(256, 512)(x))
        scores = paddle.nn.Linear(512, 10)(hidden)
        loss = paddle.nn.functional.cross_entropy(scores, y)
        paddle.optimizer.Adam(1e-3).minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup_program)
    generator = np.random.default_rng(0)
    data = generator.random([64, 256], "float32")
    labels = generator.integers(0, 10, [64, 1])
    return {
        "main_program": main_program,
        "startup_program": startup_program,
        "program": main_program,
        "executor": executor,
        "x": x,
        "y": y,
        "scores": scores,
        "loss": loss,
        "loss_variable": loss,
        "feed": {"x": data, "y": labels},
        "batches": [(data, labels)],
    }


def dynamic_layer() -> dict[str, Any]:
    """A layer of dynamic mode, and a recurrent one."""
    paddle.disable_static()
    layer = paddle.nn.Sequential(paddle.nn.Linear(256, 512), paddle.nn.ReLU())
    compiled = paddle_ngraph.compile(layer)
    for _ in range(2):
        compiled(paddle.ones([64, 256]))
    return {"layer": compiled, "model": paddle.nn.LSTM(16, 16)}


def configuration() -> dict[str, Any]:
    """The configuration of a predictor for the model in the current folder."""
    from paddle.inference import Config

    return {"config": Config("model.json", "model.pdiparams")}


GIVEN: Mapping[str, Callable[[], dict[str, Any]]] = {
    "program": training_program,
    "layer": dynamic_layer,
    "config": configuration,
}


def write_files(folder: Path) -> None:
    """Writes the models and scripts that commands name."""
    names = training_program()
    with paddle.static.program_guard(names["main_program"], names["startup_program"]):
        paddle.static.save_inference_model(
            str(folder / "model"), [names["x"]], [names["scores"]], names["executor"]
        )
    paddle.static.save(names["main_program"], str(folder / "net"))
    for name in ("script.py", "train.py"):
        (folder / name).write_text(SCRIPT)
    for name in ("benchmarks", "Makefile"):
        (folder / name).symlink_to(ROOT / name)
