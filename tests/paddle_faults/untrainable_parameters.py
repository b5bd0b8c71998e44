"""A model that was saved with ``trainable=False`` ends the process of a predictor."""

import tempfile
from typing import Any

import paddle
from endings import ending
from paddle import inference


def saved(folder: str, **options: Any) -> str:
    """The path of a saved program of one layer, without the endings of its files."""
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [2, 3])
        y = paddle.static.nn.fc(x, 4)
    executor = paddle.static.Executor()
    executor.run(startup)
    path = f"{folder}/model"
    paddle.static.save_inference_model(path, [x], [y], executor, program=main, **options)
    return path


def create() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = saved(folder, trainable=False)
        inference.create_predictor(inference.Config(f"{path}.json", f"{path}.pdiparams"))


def fault() -> str:
    return ending(create)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
