"""``jit.load`` fails on an LSTM that ``save_inference_model`` has saved."""

import tempfile

import paddle
from paddle import nn


def fault() -> str:
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [2, 5, 3])
        y, _ = nn.LSTM(3, 4)(x)
    executor = paddle.static.Executor()
    executor.run(startup)
    with tempfile.TemporaryDirectory() as folder:
        paddle.static.save_inference_model(f"{folder}/model", [x], [y], executor, program=main)
        paddle.disable_static()
        try:
            paddle.jit.load(f"{folder}/model")
        except RuntimeError as error:
            return str(error).splitlines()[0]
    return ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
