"""Values of a trace that raised stay in a table, under the address of its dropped program."""

import gc

import paddle
from paddle import nn
from paddle.jit.dy2static import parameter_recorder


class Network(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        self.linear(x)
        raise ArithmeticError


def fault() -> str:
    layer = paddle.jit.to_static(Network(), full_graph=True)
    try:
        layer(paddle.ones([2, 3]))
    except ArithmeticError:
        gc.collect()
    left = sum(map(len, parameter_recorder._global_parameter_recorder.params_dict.values()))
    return f"{left} parameters are left" if left else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
