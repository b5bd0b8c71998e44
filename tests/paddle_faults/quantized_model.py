"""A network quantized by PTQ computes other numbers once it is saved and loaded."""

import tempfile

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.quantization import PTQ, QuantConfig
from paddle.quantization.observers import AbsmaxObserver
from paddle.static import InputSpec


class Network(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2D(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.linear(F.relu(self.convolution(x)).mean([2, 3]))


def fault() -> str:
    x = paddle.rand([2, 3, 8, 8])
    tool = PTQ(QuantConfig(activation=AbsmaxObserver(), weight=AbsmaxObserver()))
    quantized = tool.quantize(Network().eval())
    quantized(x)  # observes
    quantized = tool.convert(quantized).eval()
    expected = quantized(x).numpy()
    with tempfile.TemporaryDirectory() as folder:
        paddle.jit.save(quantized, f"{folder}/model", [InputSpec(x.shape, "float32", "x")])
        found = paddle.jit.load(f"{folder}/model")(x).numpy()
    return "" if np.allclose(found, expected, atol=1e-2) else f"{found[0]}, not {expected[0]}"


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
