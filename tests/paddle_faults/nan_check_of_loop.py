"""``FLAGS_check_nan_inf`` fails for a predictor with a ``while`` loop."""

import tempfile

import numpy as np
import paddle
from paddle import inference


def fault() -> str:
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [2, 3])
        _, y = paddle.static.nn.while_loop(
            lambda i, y: i < 3, lambda i, y: [i + 1, y * 2], [paddle.zeros([1], "int64"), x]
        )
        y = paddle.static.nn.fc(y, 2)
    executor = paddle.static.Executor()
    executor.run(startup)
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model"
        paddle.static.save_inference_model(path, [x], [y], executor, program=main)
        config = inference.Config(f"{path}.json", f"{path}.pdiparams")
        predictor = inference.create_predictor(config)
    predictor.get_input_handle("x").copy_from_cpu(np.ones([2, 3], "float32"))
    try:
        predictor.run()
    except RuntimeError as error:
        return f"finite numbers raise {error}"
    return ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
