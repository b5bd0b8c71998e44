"""A predictor of a PIR program without its parameter file computes with unwritten memory."""

import os
import tempfile
from typing import Any

import numpy as np
import paddle
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


def fault() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = saved(folder)
        os.remove(f"{path}.pdiparams")
        try:
            config = inference.Config(f"{path}.json", f"{path}.pdiparams")
            predictor = inference.create_predictor(config)
            predictor.get_input_handle("x").copy_from_cpu(np.ones([2, 3], "float32"))
            predictor.run()
        except (RuntimeError, ValueError, OSError):
            return ""
    return "it runs, without an error"


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
