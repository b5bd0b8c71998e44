"""A predictor retains what a program writes into a constant, and merges equal constants."""

import tempfile

import numpy as np
import paddle
from paddle import _C_ops as operators
from paddle import inference


def fault() -> str:
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [2, 3])
        y = operators.add_(paddle.zeros([2, 3]), x)
        z = paddle.static.nn.fc(x, 2)
    executor = paddle.static.Executor()
    executor.run(startup)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model"
        paddle.static.save_inference_model(path, [x], [y, z], executor, program=main)
        config = inference.Config(f"{path}.json", f"{path}.pdiparams")
        config.disable_onednn()
        predictor = inference.create_predictor(config)
    results = []
    for _ in range(2):
        predictor.get_input_handle("x").copy_from_cpu(np.ones([2, 3], "float32"))
        predictor.run()
        first = predictor.get_output_names()[0]
        results.append(float(predictor.get_output_handle(first).copy_to_cpu()[0, 0]))
    return "" if results == [1, 1] else f"0 + 1 is {results[0]}, and {results[1]} in the next run"


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
