"""The parts of SRN alone: products and tanh, which a run cannot do without."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import openvino as ov
from openvino import Node, opset15

from benchmarks import ocr_networks, report
from benchmarks.functions import on_this_thread, processor_seconds
from paddle_ngraph.conversion.extensions import extension

PIXELS = 256
ROUNDS = 7
ABOUT = """\
## What SRN needs

All products of SRN at batch 1, each kind as a function of its own that has as many weights, by the
faster of the plugin and oneDNN, and `tanh` of the attention: the shortest of seven times, on one
thread. Their sum is the limit of a run on this processor."""


class Part(NamedTuple):
    """Equal products of a run.

    Attributes:
        name: Whose products they are.
        number: How many there are.
        x, y: The shapes of the operands.
        is_weight: Whether the right operand is a weight.
    """

    name: str
    number: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    is_weight: bool = True

    @property
    def operations(self) -> float:
        """The number of floating-point operations."""
        return 2.0 * self.number * np.prod(self.x, dtype=float) * self.y[-1]


def parts() -> list[Part]:
    """The products of a run at batch 1."""
    sizes = ocr_networks.DECODERS["SRN"][1]
    width, heads, steps = sizes["width"], sizes["heads"], sizes["steps"]
    each = width // heads
    found = []
    for name, layers, rows in (("pixels", 2, PIXELS), ("words", 2 * sizes["depth"], steps)):
        # Query, key, value, output, and the feed-forward part, which is as wide.
        found.append(Part(name, 6 * layers, (rows, width), (width, width)))
        scores = (heads, rows, each), (heads, each, rows)
        found.append(Part(f"scores of {name}", layers, *scores, is_weight=False))
        weighted = (heads, rows, rows), (heads, rows, each)
        found.append(Part(f"values of {name}", layers, *weighted, is_weight=False))
    return [
        *found,
        Part("attention", 1, (PIXELS, width), (width, width)),
        Part("its scores", 1, (steps * PIXELS, width), (width, 1)),
        Part("its values", 1, (steps, PIXELS), (PIXELS, width), is_weight=False),
        Part("gate", 1, (steps, 2 * width), (2 * width, width)),
        Part("logits", 3, (steps, width), (width, sizes["words"])),
    ]


def measured() -> tuple[str, dict[str, float]]:
    """Measures all parts; returns a section of Markdown, and milliseconds by part."""
    rows, found, operations = [], {}, 0.0
    for part in parts():
        found[part.name] = 1e3 * min(_seconds(part, onednn) for onednn in (False, True))
        operations += part.operations
        rows.append(_row(part.name, part, found[part.name]))
    steps = ocr_networks.DECODERS["SRN"][1]["steps"]
    found["tanh"] = 1e3 * _of_tanh((steps, PIXELS, 512))
    rows.append(["tanh", f"[{steps}, {PIXELS}, 512]", "", f"{found['tanh']:.2f}", ""])
    total = sum(found.values())
    speed = operations / total / 1e6
    rows.append(["all", "", f"{operations / 1e9:.2f}", f"{total:.1f}", f"{speed:.0f}"])
    header = ["", "shapes", "GFLOP", "ms", "GFLOP/s"]
    return f"{ABOUT}\n\n{report.table(header, rows)}", found


def _row(name: str, part: Part, milliseconds: float) -> list[str]:
    shapes = f"{part.number} x {list(part.x)} {list(part.y)}"
    speed = part.operations / milliseconds / 1e6
    return [name, shapes, f"{part.operations / 1e9:.3f}", f"{milliseconds:.2f}", f"{speed:.0f}"]


def _seconds(part: Part, by_onednn: bool) -> float:
    x, given = opset15.parameter(list(part.x)), []
    arrays = [_data(part.x)]
    if not part.is_weight:
        given = [opset15.parameter(list(part.y))]
        arrays.append(_data(part.y))
    products = []
    for seed in range(part.number):
        y = given[0] if given else opset15.constant(_data(part.y, seed))
        products.append(opset15.result(_product(x, y, by_onednn)))
    return _shortest(ov.Model(products, [x, *given], "products"), arrays)


def _product(x: Node, y: Node, by_onednn: bool) -> Node:
    if not by_onednn or len(x.shape) > 2:
        return opset15.matmul(x, y, False, False)
    options = {"transpose_a": False, "transpose_b": False}
    return extension("Gemm", [x.output(0), y.output(0)], **options)


def _of_tanh(shape: tuple[int, ...]) -> float:
    x = opset15.parameter(list(shape))
    return _shortest(ov.Model([opset15.result(opset15.tanh(x))], [x], "tanh"), [_data(shape)])


def _shortest(model: ov.Model, arrays: list[np.ndarray]) -> float:
    run = on_this_thread(model, arrays)
    return min(processor_seconds(run, runs=1) for _ in range(ROUNDS))


def _data(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")
