"""A detector of the YOLO type with random weights, as X2Paddle exports one from PyTorch.

X2Paddle writes a folder: ``x2paddle_code.py`` (one layer, modules by type and number, a line for
each operator of the trace), ``model.pdparams`` and ``inference_model``, the output of
``paddle.jit.save`` for these. So does :func:`export`, in lines of the same format.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

CLASSES = 7
BINS = 16  # of the distribution over distances from an anchor to a side
STRIDES = (8, 16, 32)


class Writer:
    """Writes a module line by line; values are the names of variables."""

    def __init__(self) -> None:
        self._modules: list[str] = []
        self._lines: list[str] = []
        self._kinds: Counter[str] = Counter()
        self._values = 0

    def value(self, expression: str) -> str:
        """A new variable."""
        self._values += 3  # a trace has others in between
        name = f"x{self._values}"
        self._lines.append(f"{name} = {expression}")
        return name

    def module(self, layer: str, kind: str, x: str, **arguments: Any) -> str:
        """A separate module, called on ``x``."""
        name = f"{kind}{self._kinds[kind]}"
        self._kinds[kind] += 1
        given = ", ".join(f"{key}={value}" for key, value in arguments.items())
        self._modules.append(f"self.{name} = paddle.nn.{layer}({given})")
        return self.value(f"self.{name}({x})")

    def function(self, name: str, **arguments: Any) -> str:
        given = ", ".join(f"{key}={value}" for key, value in arguments.items())
        return self.value(f"paddle.{name}({given})")

    def parameter(self, *shape: int) -> str:
        """A tensor that the trace has as a constant."""
        self._values += 3
        name = f"x{self._values}"
        self._modules.append(
            f"self.{name} = self.create_parameter(dtype='float32', shape={shape}, "
            "default_initializer=paddle.nn.initializer.Constant(value=0.0))"
        )
        self._lines.append(f"{name} = self.{name}")
        return name

    def several(self, count: int, x: str) -> list[str]:
        """Unpacks a list of variables."""
        names = [f"x{self._values + 1 + i}" for i in range(count)]
        self._values += count
        self._lines.append(f"{', '.join(names)} = {x}")
        return names

    def swapped(self, x: str, first: int, second: int) -> str:
        """``transpose`` of PyTorch, which is written out."""
        axes = [self.value(str(axis)) for axis in (first, second)]
        self._values += 3
        result = f"x{self._values}"
        self._lines += [
            f"{result}_shape = {x}.shape",
            f"{result}_len = len({result}_shape)",
            f"{result}_list = []",
            f"for i in range({result}_len):",
            f"    {result}_list.append(i)",
        ]
        for axis in axes:
            self._lines += [
                f"if {axis} < 0:",
                f"    {axis}_new = {axis} + {result}_len",
                "else:",
                f"    {axis}_new = {axis}",
            ]
        a, b = axes
        self._lines += [
            f"{result}_list[{a}_new] = {b}_new",
            f"{result}_list[{b}_new] = {a}_new",
            f"{result} = paddle.transpose(x={x}, perm={result}_list)",
        ]
        return result

    def code(self, result: str) -> str:
        head = ["import paddle", "import math", "", "class DetectionModel(paddle.nn.Layer):"]
        init = ["    def __init__(self):", "        super(DetectionModel, self).__init__()"]
        forward = ["    def forward(self, x0):", *(f"        {line}" for line in self._lines)]
        modules = [f"        {line}" for line in self._modules]
        return "\n".join([*head, *init, *modules, "", *forward, f"        return {result}", ""])


class Detector:
    """The network, written with a :class:`Writer`; ``size`` is that of the images."""

    def __init__(self, size: int, width: int) -> None:
        self.w = Writer()
        self.size, self.width = size, width
        self.anchors = sum((size // stride) ** 2 for stride in STRIDES)

    def conv(self, x: str, inside: int, outside: int, kernel: int = 1, **more: Any) -> str:
        padding = {"padding": kernel // 2} if kernel > 1 else {}
        channels = {"out_channels": outside, "kernel_size": (kernel, kernel)}
        return self.w.module(
            "Conv2D", "conv2d", x, **more, **padding, **channels, in_channels=inside
        )

    def unit(self, x: str, inside: int, outside: int, kernel: int = 1, **more: Any) -> str:
        return self.w.module("Silu", "silu", self.conv(x, inside, outside, kernel, **more))

    def joined(self, values: list[str], axis: int = 1) -> str:
        return self.w.function("concat", x=self.w.value(f"[{', '.join(values)}]"), axis=axis)

    def block(self, x: str, inside: int, outside: int) -> str:
        """Half of the channels pass through two convolutions, and around them."""
        x = self.unit(x, inside, outside)
        parts = self.w.function("split", x=x, num_or_sections=2, axis=1)
        first, second = self.w.several(2, parts)
        half = outside // 2
        around = self.unit(self.unit(second, half, half, 3), half, half, 3)
        third = self.w.value(f"{second} + {around}")
        return self.unit(self.joined([first, second, third]), outside + half, outside)

    def pyramid(self, x: str, channels: int) -> str:
        """Maxima over growing windows (SPPF)."""
        x = self.unit(x, channels, channels // 2)
        pooled = [x]
        for _ in range(3):
            window = {"kernel_size": [5, 5], "stride": 1, "padding": 2}
            pooled.append(self.w.module("MaxPool2D", "pool2d", pooled[-1], **window))
        return self.unit(self.joined(pooled), channels * 2, channels)

    def doubled(self, x: str) -> str:
        scale = self.w.value("[2.0, 2.0]")
        return self.w.function(
            "nn.functional.interpolate", x=x, scale_factor=scale, mode="'nearest'"
        )

    def head(self, x: str, channels: int) -> str:
        """Distances and classes, with separate convolutions."""
        boxes = self.unit(self.unit(x, channels, 12, 3), 12, 12, 3)
        classes = self.unit(x, channels, channels, 3, groups=channels)
        classes = self.unit(self.unit(classes, channels, 10), 10, 10, 3)
        both = [self.conv(boxes, 12, 4 * BINS), self.conv(classes, 10, CLASSES)]
        return self.joined(both)

    def decoded(self, heads: list[str]) -> str:
        w, total = self.w, 4 * BINS + CLASSES
        flat = [w.function("reshape", x=head, shape=[1, total, -1]) for head in heads]
        parts = w.function(
            "split", x=self.joined(flat, 2), num_or_sections=[4 * BINS, CLASSES], axis=1
        )
        boxes, classes = w.several(2, parts)
        boxes = w.function("reshape", x=boxes, shape=[1, 4, BINS, self.anchors])
        boxes = w.module("Softmax", "softmax", w.swapped(boxes, 2, 1), axis=1)
        boxes = self.conv(boxes, BINS, 1, bias_attr=False)
        boxes = w.function("reshape", x=boxes, shape=[1, 4, self.anchors])
        anchors, strides = w.parameter(1, 2, self.anchors), w.parameter(1, self.anchors)
        near, far = w.several(2, w.function("split", x=boxes, num_or_sections=2, axis=1))
        low, high = w.value(f"{anchors} - {near}"), w.value(f"{anchors} + {far}")
        center = w.value(f"{w.value(f'{low} + {high}')} / {w.value('2')}")
        extent = w.value(f"{high} - {low}")
        boxes = w.value(f"{self.joined([center, extent])} * {strides}")
        return self.joined([boxes, w.module("Sigmoid", "sigmoid", classes)])

    def code(self) -> str:
        c = self.width
        x = self.w.module("BatchNorm", "batchnorm", "x0", is_test=True, num_channels=3)
        x = self.unit(self.unit(x, 3, c, 3, stride=2), c, 2 * c, 3, stride=2)
        fine = self.block(
            self.unit(self.block(x, 2 * c, 2 * c), 2 * c, 4 * c, 3, stride=2), 4 * c, 4 * c
        )
        middle = self.block(self.unit(fine, 4 * c, 8 * c, 3, stride=2), 8 * c, 8 * c)
        coarse = self.unit(middle, 8 * c, 8 * c, 3, stride=2)
        coarse = self.pyramid(self.block(coarse, 8 * c, 8 * c), 8 * c)
        up = self.block(self.joined([self.doubled(coarse), middle]), 16 * c, 8 * c)
        out = [self.block(self.joined([self.doubled(up), fine]), 12 * c, 4 * c)]
        down = self.unit(out[0], 4 * c, 4 * c, 3, stride=2)
        out.append(self.block(self.joined([down, up]), 12 * c, 8 * c))
        down = self.unit(out[1], 8 * c, 8 * c, 3, stride=2)
        out.append(self.block(self.joined([down, coarse]), 16 * c, 8 * c))
        channels = (4 * c, 8 * c, 8 * c)
        return self.w.code(self.decoded([self.head(x, n) for x, n in zip(out, channels)]))


def export(folder: Path, size: int = 96, width: int = 8) -> str:
    """Writes the files of X2Paddle; returns the path of the model to serve, without its suffix."""
    import numpy as np
    import paddle

    detector = Detector(size, width)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "x2paddle_code.py").write_text(detector.code())
    model = _layer(folder)
    random = np.random.default_rng(11)
    state = {}
    for name, tensor in model.state_dict().items():
        shape = tuple(tensor.shape)
        if name.endswith("_variance"):
            value = random.uniform(0.5, 1.5, shape)
        elif shape == (1, BINS, 1, 1):
            value = np.arange(BINS).reshape(shape)
        elif len(shape) == 4:
            value = random.normal(size=shape) * 1.6 / np.sqrt(np.prod(shape[1:]))
        else:
            value = random.normal(size=shape) * 0.3
        state[name] = value.astype("float32")
    grids = [(size // stride, stride) for stride in STRIDES]
    places = [np.stack(np.meshgrid(np.arange(n), np.arange(n))).reshape(2, -1) for n, _ in grids]
    for name, tensor in model.state_dict().items():
        if tuple(tensor.shape) == (1, 2, detector.anchors):
            state[name] = np.concatenate(places, 1)[None].astype("float32") + 0.5
        elif tuple(tensor.shape) == (1, detector.anchors):
            state[name] = np.repeat([s for _, s in grids], [n * n for n, _ in grids])[None].astype(
                "float32"
            )
    paddle.save(
        {name: paddle.to_tensor(value) for name, value in state.items()},
        str(folder / "model.pdparams"),
    )
    model.set_dict(paddle.load(str(folder / "model.pdparams")))
    model.eval()
    spec = [paddle.static.InputSpec(shape=[1, 3, size, size], name="x0", dtype="float32")]
    prefix = str(folder / "inference_model" / "model")
    paddle.jit.save(paddle.jit.to_static(model, input_spec=spec, full_graph=True), prefix)
    return prefix


def _layer(folder: Path) -> Any:
    """The layer in the code that was written."""
    spec = importlib.util.spec_from_file_location("x2paddle_code", folder / "x2paddle_code.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.DetectionModel()
