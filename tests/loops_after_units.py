"""Programs in which elementwise operators join a fused unit of the plugin with another loop.

Run as a script, as such a program may end the process. Prints the name of each program that was
computed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle.static.nn import fc

import paddle_ngraph


def _layers(h, depth: int, width: int = 96):
    sizes = [width] * (depth - 1) + [64]
    for size in sizes:
        h = fc(h, size, activation="relu")
    return h


def _loop(x):
    return paddle.tanh(paddle.exp(x))


def _attention(x):
    heads = paddle.reshape(x, [2, 4, 48, 32])
    scores = F.softmax(paddle.matmul(heads, paddle.transpose(heads, [0, 1, 3, 2])))
    return paddle.transpose(paddle.matmul(scores, heads), [0, 2, 1, 3])


def _composed_attention(x):
    heads = paddle.reshape(x, [2, 4, 48, 32])
    scores = paddle.exp(paddle.matmul(heads, paddle.transpose(heads, [0, 1, 3, 2])) * 0.01)
    scores = scores / scores.sum(-1, keepdim=True)
    return paddle.transpose(paddle.matmul(scores, heads), [0, 2, 1, 3])


def _gated(x):
    hidden = F.silu(fc(x, 96, bias_attr=False)) * fc(x, 96, bias_attr=False)
    return fc(hidden, 64, bias_attr=False)


def _composed_norm(x):
    rows = paddle.reshape(x, [2, 4, -1])
    rows = rows - rows.mean(-1, keepdim=True)
    rows = rows / paddle.sqrt((rows * rows).mean(-1, keepdim=True) + 1e-5)
    weight, bias = (paddle.static.create_parameter([8, 1, 1], "float32") for _ in range(2))
    return paddle.reshape(rows, [2, 8, 16, 16]) * weight + bias


_ROWS, _HEADS, _PICTURES = (4, 64), (2, 48, 4, 32), (2, 8, 16, 16)

PROGRAMS: dict[str, tuple[tuple[int, ...], Callable]] = {
    **{
        f"{depth} layers and what they read": (
            _ROWS,
            lambda x, depth=depth: paddle.mean(paddle.square(_layers(x, depth) - x)),
        )
        for depth in (2, 3, 4, 5, 6, 8, 12)
    },
    "layers and a loop, added": (_ROWS, lambda x: _layers(x, 4) + _loop(x)),
    "layers and a loop, divided": (_ROWS, lambda x: _layers(x, 4, 80) / (2 + _loop(x))),
    "layers and a loop, compared": (
        _ROWS,
        lambda x: paddle.cast(_layers(x, 2) > _loop(x), "float32"),
    ),
    "layers and a loop, selected": (
        _ROWS,
        lambda x: paddle.where(_loop(x) > 0.5, _layers(x, 2), x),
    ),
    "residual layers": (_ROWS, lambda x: _residual(x, 5)),
    "gated layers": (_ROWS, lambda x: paddle.maximum(_gated(x), _loop(x)) - x),
    "attention": (_HEADS, lambda x: _attention(x) * _loop(x)),
    "composed attention": (_HEADS, lambda x: _composed_attention(x) * _loop(x)),
    "group normalization": (
        _PICTURES,
        lambda x: paddle.nn.GroupNorm(4, 8)(x) * _loop(x),
    ),
    "composed group normalization": (_PICTURES, lambda x: _composed_norm(x) * _loop(x)),
}


def _residual(x, blocks: int):
    for _ in range(blocks):
        x = F.relu(_layers(x, 2) + F.gelu(x))
    return x


def compute(name: str) -> None:
    """Runs a program by Paddle and with the engine, and compares."""
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": ""})
    shape, build = PROGRAMS[name]
    x = np.random.default_rng(5).random(shape, dtype=np.float32)
    main, start = paddle.static.Program(), paddle.static.Program()
    paddle.seed(7)
    with paddle.static.program_guard(main, start):
        out = build(paddle.static.data("x", list(shape), "float32"))
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(start)
    paddle_ngraph.disable()
    (expected,) = executor.run(main, feed={"x": x}, fetch_list=[out])
    paddle_ngraph.enable()
    before = paddle_ngraph.stats()["engine_runs"]
    for _ in range(2):
        (found,) = executor.run(main, feed={"x": x}, fetch_list=[out])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == before + 2


if __name__ == "__main__":
    paddle.enable_static()
    for name in PROGRAMS:
        compute(name)
        print(name, flush=True)
