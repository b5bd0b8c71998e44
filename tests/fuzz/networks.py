"""Networks of which the lives of layers consist: a first layer, some parts, and a last layer.

Each part maps its input to an output of that shape, so that parts follow each other in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.distributed.fleet.utils import recompute

WIDTH = 8
LENGTH = 4  # of a text
CHANNELS, SIDE = 4, 6  # of an image
WORDS = 11
CLASSES = 3
FAMILIES = ("dense", "text", "image")


class _Apply(nn.Layer):
    """Applies a function that has no parameters."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, h: Any) -> Any:
        return self._function(h)


class _Branch(nn.Layer):
    """Branches on an element of its input: sums of normalized values are rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Any) -> Any:
        return self.first(h) if float(h.flatten()[0]) > 0 else F.tanh(self.second(h))


class _Twice(nn.Layer):
    """Calls one sublayer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Any) -> Any:
        return self.shared(F.relu(self.shared(h))) + h


class _Tied(nn.Layer):
    """Multiplies by a matrix and by its transpose, as tied embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.create_parameter([WIDTH, 5])

    def forward(self, h: Any) -> Any:
        return paddle.matmul(F.gelu(paddle.matmul(h, self.weight)), self.weight, transpose_y=True)


class _Swish(paddle.autograd.PyLayer):  # type: ignore[misc]
    """x * sigmoid(x), with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * F.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensor()
        s = F.sigmoid(x)
        return gradient * (s + x * s * (1 - s))


class _Counted(nn.Layer):
    """Counts its calls in Python; every third one takes another path."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Any) -> Any:
        self.calls += 1
        return self.linear(h) * (0.5 if self.calls % 3 == 0 else 1.0)


class _Average(nn.Layer):
    """Subtracts a running mean, which is a buffer that training calls assign."""

    def __init__(self, is_in_place: bool) -> None:
        super().__init__()
        self._is_in_place = is_in_place
        self.register_buffer("mean", paddle.zeros([WIDTH]))

    def forward(self, h: Any) -> Any:
        if self.training:
            with paddle.no_grad():
                batch = h.reshape([-1, WIDTH]).mean(axis=0)
                if self._is_in_place:
                    self.mean.scale_(0.9)
                    self.mean.add_(0.1 * batch)
                else:
                    self.mean = 0.9 * self.mean + 0.1 * batch
        return h - self.mean


class _Written(nn.Layer):
    """Writes to parts of an intermediate result."""

    def forward(self, h: Any) -> Any:
        h = h * 2.0
        h[..., 0] = 0.25
        h[:1, ..., 2:4] = F.tanh(h[:1, ..., 4:6].clone())
        return h


class _Attention(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiHeadAttention(WIDTH, 2, dropout=0.1)

    def forward(self, h: Any) -> Any:
        x = h if h.ndim == 3 else h.unsqueeze(0)
        return self.attention(x).reshape(h.shape)


class _Recurrent(nn.Layer):
    """A recurrent layer over the second axis, or the only one."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer = kind(WIDTH, WIDTH)

    def forward(self, h: Any) -> Any:
        x = h if h.ndim == 3 else h.unsqueeze(0)
        return self.layer(x)[0].reshape(h.shape)


class _CellLoop(nn.Layer):
    """A cell that Python calls in a loop."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell = kind(WIDTH, WIDTH)

    def forward(self, h: Any) -> Any:
        x = h if h.ndim == 3 else h.unsqueeze(1)
        state, outputs = None, []
        for step in range(x.shape[1]):
            output, state = self.cell(x[:, step], state)
            outputs.append(output)
        return paddle.stack(outputs, axis=1).reshape(h.shape)


class _Encoder(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.1, activation="gelu")

    def forward(self, h: Any) -> Any:
        x = h if h.ndim == 3 else h.unsqueeze(0)
        return self.layer(x).reshape(h.shape)


class _Recomputed(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 5), nn.GELU(), nn.Linear(5, WIDTH))

    def forward(self, h: Any) -> Any:
        return recompute(self.inner, h) if self.training else self.inner(h)


class _Observed(nn.Layer):
    """Observes an intermediate result, and changes its gradient with a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seen: list[Any] = []

    def forward(self, h: Any) -> Any:
        h = self.linear(h)
        if not h.stop_gradient:
            h.register_hook(lambda gradient: gradient * 0.5)
        self.seen = [*self.seen[-3:], h.detach()]
        return h + sum(each.mean() for each in self.seen)


class _Noise(nn.Layer):
    """Adds random numbers in training."""

    def forward(self, h: Any) -> Any:
        return h + 0.1 * paddle.rand(h.shape) if self.training else h


class _Masked(nn.Layer):
    """Selects elements by a mask, whose number depends on values."""

    def forward(self, h: Any) -> Any:
        return h + paddle.masked_select(h, h > 0.5).sum() * 0.1


class _Raising(nn.Layer):
    """Raises for some values of its input."""

    def forward(self, h: Any) -> Any:
        if float(h.abs().max()) > 6.0:
            raise OverflowError("too large")
        return h * 1.1


class _Constant(nn.Layer):
    """Makes a tensor of NumPy's data in each call, and reads the shape of its input."""

    def forward(self, h: Any) -> Any:
        steps = np.arange(h.shape[0], dtype="float32").reshape([-1] + [1] * (h.ndim - 1))
        return h + paddle.to_tensor(steps, dtype=h.dtype) * 0.1


class _Excited(nn.Layer):
    """Scales channels by a function of their means."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, h: Any) -> Any:
        scale = F.sigmoid(self.linear(h.mean(axis=[2, 3])))
        return h * scale.unsqueeze([2, 3])


class _BatchNorm(nn.Layer):
    """Batch normalization of the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1D(WIDTH)

    def forward(self, h: Any) -> Any:
        return self.norm(h.reshape([-1, WIDTH])).reshape(h.shape)


def _mixed(h: Any) -> Any:
    first, second = paddle.split(h, 2, axis=-1)
    return paddle.concat([second, F.relu(first)], axis=-1) + h.flip(axis=[-1])


def _upsampled(h: Any) -> Any:
    return F.avg_pool2d(F.interpolate(h, scale_factor=2, mode="bilinear"), 2)


def _detached(h: Any) -> Any:
    with paddle.no_grad():
        scale = h.abs().mean()
    return h / (scale + 0.5) + h.detach() * 0.5


# For [N, WIDTH] and [N, LENGTH, WIDTH].
_VECTORS: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "narrow": lambda: nn.Sequential(nn.Linear(WIDTH, 3), nn.ReLU(), nn.Linear(3, WIDTH)),
    "layer_norm": lambda: nn.LayerNorm(WIDTH),
    "batch_norm": _BatchNorm,
    "dropout": lambda: nn.Dropout(0.3),
    # No PReLU: its gradient ends the process if its input needs none, behind frozen layers.
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
    "softmax": lambda: _Apply(lambda h: F.softmax(h, axis=-1) + h),
    "branch": _Branch,
    "twice": _Twice,
    "tied": _Tied,
    "py_layer": lambda: _Apply(_Swish.apply),
    "counted": _Counted,
    "average": lambda: _Average(False),
    "average_in_place": lambda: _Average(True),
    "written": _Written,
    "attention": _Attention,
    "gru": lambda: _Recurrent(nn.GRU),
    "lstm": lambda: _Recurrent(nn.LSTM),
    "cells": lambda: _CellLoop(nn.GRUCell),
    "simple_cells": lambda: _CellLoop(nn.SimpleRNNCell),
    "encoder": _Encoder,
    "recomputed": _Recomputed,
    "observed": _Observed,
    "noise": _Noise,
    "masked": _Masked,
    "raising": _Raising,
    "constant": _Constant,
    "detached": lambda: _Apply(_detached),
    "mixed": lambda: _Apply(_mixed),
    "weight_norm": lambda: nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)),
}
_IMAGES: dict[str, Callable[[], Any]] = {
    "conv": lambda: nn.Conv2D(CHANNELS, CHANNELS, 3, padding=1),
    "depthwise": lambda: nn.Conv2D(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
    "conv_norm": lambda: nn.Sequential(
        nn.Conv2D(CHANNELS, CHANNELS, 1, bias_attr=False), nn.BatchNorm2D(CHANNELS), nn.ReLU()
    ),
    "batch_norm": lambda: nn.BatchNorm2D(CHANNELS),
    "group_norm": lambda: nn.GroupNorm(2, CHANNELS),
    "instance_norm": lambda: nn.InstanceNorm2D(CHANNELS),
    "max_pool": lambda: nn.MaxPool2D(3, 1, 1),
    "avg_pool": lambda: nn.AvgPool2D(3, 1, 1),
    "transpose": lambda: nn.Conv2DTranspose(CHANNELS, CHANNELS, 3, padding=1),
    "upsampled": lambda: _Apply(_upsampled),
    "dropout": lambda: nn.Dropout2D(0.3),
    "hard_swish": lambda: nn.Hardswish(),
    "excited": _Excited,
    "py_layer": lambda: _Apply(_Swish.apply),
    "written": _Written,
    "noise": _Noise,
    "masked": _Masked,
    "raising": _Raising,
    "constant": _Constant,
    "detached": lambda: _Apply(_detached),
    "mixed": lambda: _Apply(_mixed),
}
_PY_LAYERS = {"py_layer", "recomputed"}
PARTS = {"dense": _VECTORS, "text": _VECTORS, "image": _IMAGES}


class Network(nn.Layer):
    """A network of parts.

    Args:
        family: One of :data:`FAMILIES`, the type of its input.
        parts: Names of :data:`PARTS` of the family.
        returns: ``one`` result, ``two`` or a ``dict``.

    Attributes:
        gain: A Python number by which the output is multiplied.
        passes_once: Whether Paddle cannot repeat the backward pass: that of a PyLayer ends the
            process, even with ``retain_graph``.
        is_stale_after_step: Whether a loss is not differentiated after a step of the optimizer that
            follows it: Paddle does not notice that write, and mixes former and new values; a graph
            keeps the former normalized weight.
    """

    def __init__(self, family: str, parts: list[str], returns: str) -> None:
        super().__init__()
        self.family, self.returns, self.gain = family, returns, 1.0
        self.passes_once = not _PY_LAYERS.isdisjoint(parts)
        self.is_stale_after_step = "weight_norm" in parts
        self.first = _first(family)
        self.parts = nn.LayerList([PARTS[family][name]() for name in parts])
        self.last = nn.Linear(CHANNELS if family == "image" else WIDTH, CLASSES)

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        for part in self.parts:
            h = part(h)
        pooled = h
        if self.family == "image":
            pooled = h.mean(axis=[2, 3])
        elif self.family == "text":
            pooled = h.mean(axis=1)
        out = self.last(pooled) * self.gain
        if self.returns == "two":
            return out, h
        return {"out": out, "hidden": h} if self.returns == "dict" else out

    def replace(self, part: int, name: str) -> None:
        """Replaces a part with a new one."""
        if len(self.parts):
            self.passes_once |= name in _PY_LAYERS
            self.parts[part % len(self.parts)] = PARTS[self.family][name]()

    def forget(self) -> None:
        """Resets the state that is neither a parameter nor a buffer."""
        for layer in self.sublayers():
            if isinstance(layer, _Counted):
                layer.calls = 0
            elif isinstance(layer, _Observed):
                layer.seen = []


def _first(family: str) -> Any:
    if family == "text":
        return nn.Embedding(WORDS, WIDTH, padding_idx=0)
    if family == "image":
        return nn.Conv2D(CHANNELS, CHANNELS, 3, padding=1)
    return nn.Linear(WIDTH, WIDTH)


def outputs_of(found: Any) -> list[Any]:
    """The tensors that a network has returned."""
    if isinstance(found, dict):
        return list(found.values())
    return list(found) if isinstance(found, tuple) else [found]


def inputs(family: str, rows: int, seed: int) -> np.ndarray:
    """A batch for a family."""
    rng = np.random.default_rng(seed)
    if family == "text":
        return rng.integers(0, WORDS, (rows, LENGTH + seed // 10 % 2))
    shape = (CHANNELS, SIDE, SIDE) if family == "image" else (WIDTH,)
    return rng.uniform(-2, 2, (rows, *shape)).astype("float32")
