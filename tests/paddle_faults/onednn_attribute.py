"""A predictor in its default mode, oneDNN, cannot run an image network."""

import tempfile

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import inference, nn
from paddle.static import InputSpec


class Network(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2D(3, 8, 3, padding=1)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return F.interpolate(F.relu(self.convolution(x)), scale_factor=2)


def fault() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model"
        paddle.jit.save(Network(), path, [InputSpec([1, 3, 8, 8], "float32", "x")])
        predictor = inference.create_predictor(
            inference.Config(f"{path}.json", f"{path}.pdiparams")
        )
    predictor.get_input_handle("x").copy_from_cpu(np.ones([1, 3, 8, 8], "float32"))
    try:
        predictor.run()
    except NotImplementedError as error:
        return str(error).split("  ")[0]
    return ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
