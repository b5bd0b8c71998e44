"""A PIR program that a predictor gets in a buffer ends the process."""

import tempfile
from pathlib import Path
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
        path = saved(folder)
        program = Path(f"{path}.json").read_text()
        parameters = Path(f"{path}.pdiparams").read_bytes()
    config = inference.Config()
    config.set_model_buffer(program, len(program), parameters, len(parameters))
    inference.create_predictor(config)


def fault() -> str:
    return ending(create)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
