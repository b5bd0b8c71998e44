"""A saved program of one layer, for faults of predictors."""

from __future__ import annotations

from typing import Any

import paddle


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
