"""Saving a program with the gradient of a ``cond`` aborts the process."""

import tempfile

import paddle
from endings import ending


def save() -> None:
    paddle.enable_static()
    main = paddle.static.Program()
    with paddle.static.program_guard(main):
        x = paddle.static.data("x", [2, 3])
        x.stop_gradient = False
        y = paddle.static.nn.cond(x.sum() > 0, lambda: x * 2, lambda: x * 3)
        (gradient,) = paddle.static.gradients([y.sum()], [x])
    with tempfile.TemporaryDirectory() as folder:
        executor = paddle.static.Executor()
        paddle.static.save_inference_model(
            f"{folder}/model", [x], [y, gradient], executor, program=main
        )


def fault() -> str:
    return ending(save)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
