"""Examples of every nGraph operator of the core, and their results where a size is 0.

``python -m tests.core_operators`` evaluates them with each size 0, one at a time, on several
numbers of threads, and prints a line of JSON for each operator: after a crash the rest is missing.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15

from paddle_ngraph import _core
from paddle_ngraph.conversion.extensions import extension

THREADS = (1, 2, 3, 8, 64)
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Example:
    """An operator on inputs whose sizes have names.

    Attributes:
        name: The name of the operator.
        inputs: The dimensions of each input: sizes by name, multiples of them (``8B``) or integers.
            After a colon its contents, if not normally distributed values: integers below a size,
            ``positive`` values, or values in ``bfloat16``.
        sizes: The sizes by name; some are of attributes only.
        attributes: Attributes of the operator, from the sizes.
        refused: The sizes that must not be 0.
        nothing: Where a size is 0, the value that each output is filled with, or the input whose
            values it has; None stands for any. All are 0 for a size that is not here.
        returns_addresses: Whether its output holds addresses of inputs: evaluated, it is the values
            there.
    """

    name: str
    inputs: tuple[str, ...]
    sizes: Sizes
    attributes: Callable[[Sizes], dict[str, Any]] = lambda sizes: {}
    refused: tuple[str, ...] = ()
    nothing: Mapping[str, Sequence[float | str | None]] = field(default_factory=dict)
    returns_addresses: bool = False

    def arrays(self, sizes: Sizes) -> list[np.ndarray]:
        """The inputs for these sizes."""
        return [_array(text, sizes) for text in self.inputs]

    def evaluate(self, threads: int, sizes: Sizes) -> list[np.ndarray]:
        """The outputs for these sizes, computed on ``threads`` threads."""
        given = [_tensor(array) for array in self.arrays(sizes)]
        inputs = [opset15.parameter(t.get_shape(), t.get_element_type()) for t in given]
        node = extension(self.name, inputs, **self.attributes(sizes))
        outputs = [ov.Tensor(o.get_element_type(), o.get_shape()) for o in node.outputs()]
        for output in outputs:
            output.data[...] = 77  # and not uninitialized memory
        _core.run_with_threads(threads, lambda: node.evaluate(outputs, given))
        if self.returns_addresses:
            return [
                _at(place, size) for place, size in outputs[0].data.view("uint64").reshape(-1, 2)
            ]
        return [np.array(output.data) for output in outputs]

    def without(self, size: str, threads: int) -> str:
        """Returns the outcome for a size of 0: the error, ``as expected``, or a description."""
        sizes = {**self.sizes, size: 0}
        try:
            outputs = self.evaluate(threads, sizes)
        except RuntimeError as error:
            return f"refused: {error}"
        inputs = self.arrays(sizes)
        for number, output in enumerate(outputs):
            filling = self.nothing[size][number] if size in self.nothing else 0.0
            if filling is None:
                continue
            expected = inputs[int(filling.split()[1])] if isinstance(filling, str) else filling
            if not np.array_equal(output, np.broadcast_to(expected, output.shape), equal_nan=True):
                return f"output {number} is {output!r}"
        return "as expected"


def _array(text: str, sizes: Sizes) -> np.ndarray:
    dims, _, kind = text.partition(":")
    shape = [_size(name, sizes) for name in dims.split()]
    generator = np.random.default_rng(len(text))
    if kind == "bfloat16":
        return (generator.normal(size=shape).astype("float32").view("uint32") >> 16).astype(
            "uint16"
        )
    if kind == "positive":
        return generator.uniform(0.1, 0.9, shape).astype("float32")
    if kind:
        high = max(_size(kind, sizes), 1)
        return generator.integers(0, high, shape).astype("int32")
    return generator.normal(size=shape).astype("float32")


def _at(place: int, size: int) -> np.ndarray:
    """``count`` floats at this address."""
    floats = (ctypes.c_float * int(size)).from_address(int(place)) if size else ()
    return np.array(floats, "float32")


def _tensor(array: np.ndarray) -> ov.Tensor:
    """A tensor of these values; 16-bit integers are the bits of bfloat16."""
    if array.dtype == np.uint16:
        return ov.Tensor(array, array.shape, ov.Type.bf16)
    return ov.Tensor(array)


def _size(name: str, sizes: Sizes) -> int:
    if name.isdigit():
        return int(name)
    factor = name.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return int(factor or 1) * sizes[name[len(factor) :]]


def _always(**attributes: Any) -> Callable[[Sizes], dict[str, Any]]:
    return lambda sizes: attributes


def _pool(*names: str) -> Callable[[Sizes], dict[str, Any]]:
    """The attribute `input`, for operators that have it, is the size of these names."""
    frame = {"kernel": [3, 3], "strides": [2, 2], "pads": [1, 1]}
    frame = {**frame, "adaptive": False, "exclusive": True}

    def attributes(sizes: Sizes) -> dict[str, Any]:
        given = {"input": [sizes[name] for name in names]} if names else {}
        return {**frame, "output": [sizes["OH"], sizes["OW"]], **given}

    return attributes


def _conv(
    *asked: str, groups: int = 1, pad: int = 1, stride: int = 1, dilation: int = 1
) -> Callable[[Sizes], dict[str, Any]]:
    frame = {
        "strides": [stride] * 2,
        "pads_begin": [pad] * 2,
        "pads_end": [pad] * 2,
        "dilations": [dilation] * 2,
    }
    return lambda sizes: {**frame, "groups": groups, "sizes": [_size(n, sizes) for n in asked]}


def _sort(search: bool) -> Callable[[Sizes], dict[str, Any]]:
    order = {"descending": search, "stable": not search, "search": search, "sorted": True}
    return lambda sizes: {**order, "k": sizes["K" if search else "B"]}


_NAN, _LOWEST = float("nan"), float(np.finfo(np.float32).min)
_MATRIX = {"A": 301, "B": 903}
_PLANES = {"N": 3, "C": 8, "H": 37, "W": 41}
_POOLED = {**_PLANES, "OH": 19, "OW": 21}
_PLANE, _OUT_PLANE = "N C H W", "N C OH OW"
_BLOCKS, _OUT_BLOCKS = f"{_PLANE} 8", f"{_OUT_PLANE} 8"
_NARROW = {"N": 5, "C": 3, "H": 9000}
_BROAD = {"N": 2, "C": 150, "H": 300}
_IMAGES = {"N": 2, "B": 3, "OB": 5, "H": 9, "W": 11, "KH": 3, "KW": 3}
_DATA, _OUT, _FILTER = "N B H W 8", "N OB H W 8", "8OB 8B KH KW"
_GROUPS = {"N": 2, "H": 9, "W": 11, "KH": 3, "KW": 3}
_DEPTHS = {**_GROUPS, "B": 4}
_WIDE, _WIDE_OUT = "N B H W 16:bfloat16", "N OB H W 16:bfloat16"
_TALL = _pool()({"OH": 32, "OW": 17})
_ONE, _THREE = {"N": 1}, {"N": 3}
_ADAM = ("A B",) * 3 + ("A B:positive",) + ("1:positive",) * 3
_STEP = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "decays": True, "ratio": 1.0, "decay": 0.1}
_NORM = {"epsilon": 0.25, "momentum": 0.9, "rectified": False, "ceiling": 0.0}
_RECTIFIED = {"rectified": True, "ceiling": 6.0}
# Empty batches: statistics do not change, a mean of 0 and a deviation of sqrt(epsilon).
_STILL = [None, "input 3", "input 4", 0.0, 2.0]

EXAMPLES = (
    Example("Adam", _ADAM, _MATRIX, _always(**_STEP)),
    Example("Adam", (*_ADAM, "A B:positive"), _MATRIX, _always(**_STEP)),
    Example("Sgd", ("A B", "A B", "1"), _MATRIX),
    Example("Momentum", ("A B", "A B", "A B", "1"), _MATRIX,
            _always(mu=0.9, nesterov=True, decays=True, decay=0.1)),
    Example("BatchNorm", ("N C H 1", *"CCCC"), _NARROW, _always(**_NORM),
            nothing={"N": _STILL, "H": _STILL}),
    Example("BatchNorm", ("N 1 H C", *"CCCC"), _NARROW, _always(**{**_NORM, **_RECTIFIED}),
            nothing={"N": _STILL, "H": _STILL}),
    Example("BatchNorm", ("N 1 H C", *"CCCC"), _BROAD, _always(**{**_NORM, **_RECTIFIED}),
            nothing={"N": _STILL, "H": _STILL}),
    Example("BatchNorm", ("N 3 H 9 8", *["24"] * 4), {"N": 5, "H": 300}, _always(**_NORM),
            nothing={"N": _STILL, "H": _STILL}),
    Example("BatchNormGrad", ("N C H 1", "N C H 1", *"CCC"), _NARROW, _always(rectified=False)),
    Example("BatchNormGrad", ("N 1 H C", "N 1 H C", *"CCC"), _NARROW, _always(rectified=False)),
    Example("BatchNormGrad", ("N 1 H C", "N 1 H C", *"CCC"), _BROAD, _always(rectified=False)),
    Example("BatchNormGrad", ("N 3 H 9 8", "N 3 H 9 8", *["24"] * 3, "N 3 H 9 8"),
            {"N": 5, "H": 300}, _always(**_RECTIFIED)),
    Example("ArgMax", ("A B",), _MATRIX, _always(axis=1)),
    Example("ArgMax", ("A B",), _MATRIX, _always(axis=0)),
    Example("CheckRange", ("A B:9",), _MATRIX, _always(low=[0], high=[9], message="Whole.")),
    Example("ShapeBarrier", ("A B", "1"), _MATRIX, _always(axes=[])),
    Example("EndAfterError", ("A B:9",), _MATRIX),
    Example("BlockedConvolution", (_DATA, _FILTER), _IMAGES, _conv("8"), refused=("H", "W")),
    Example("BlockedConvolution", ("N C H W", "8OB C KH KW"), {**_GROUPS, "C": 3, "OB": 5},
            _conv("8"), refused=("H", "W")),
    Example("BlockedConvolution", (_DATA, "8B 1 KH KW"), _DEPTHS, _conv("8", groups=32),
            refused=("H", "W", "B")),
    Example("BlockedConvolution", ("N 4 H W 8", "48 16 KH KW"), _GROUPS, _conv("8", groups=2),
            refused=("H", "W")),
    Example("BlockedConvolutionDataGrad", (_OUT, _FILTER), _IMAGES, _conv("H", "W")),
    Example("BlockedConvolutionDataGrad", (_DATA, "8B 1 KH KW"), _DEPTHS,
            _conv("H", "W", groups=32)),
    Example("BlockedConvolutionDataGrad", ("N 6 H W 8", "48 16 KH KW"), _GROUPS,
            _conv("H", "W", groups=2)),
    Example("BlockedConvolutionFilterGrad", (_DATA, _OUT), _IMAGES, _conv("8OB", "8B", "KH", "KW")),
    Example("BlockedConvolutionFilterGrad", (_DATA, _DATA), _DEPTHS,
            _conv("8B", "1", "KH", "KW", groups=32), refused=("B",)),
    Example("BlockedConvolutionFilterGrad", ("N 4 H W 8", "N 6 H W 8"), _GROUPS,
            _conv("48", "16", "KH", "KW", groups=2)),
    Example("BlockedConvolution", (_WIDE, "16OB 16B KH KW"), _IMAGES, _conv("16"),
            refused=("H", "W")),
    Example("BlockedConvolutionDataGrad", (_WIDE_OUT, "16OB 16B KH KW"), _IMAGES, _conv("H", "W")),
    Example("BlockedConvolutionFilterGrad", (_WIDE, _WIDE_OUT), _IMAGES,
            _conv("16OB", "16B", "KH", "KW")),
    Example("Bfloat16Gemm", ("N M K:bfloat16", "N K L:bfloat16"),
            {"N": 3, "M": 50, "K": 70, "L": 90}, _always(transpose_a=False, transpose_b=False)),
    Example("Bfloat16Gemm", ("K M:bfloat16", "N K:bfloat16"), {"M": 512, "K": 70, "N": 300},
            _always(transpose_a=True, transpose_b=True)),
    # Fewer samples, groups and blocks of channels than threads: rows are split, too.
    Example("BlockedConvolution", ("N 1 64 33 8", "8 8 3 3"), _ONE, _conv("8")),
    Example("BlockedConvolution", ("N 1 64 33 8", "11 6 3 3"), _ONE, _conv("8")),
    Example("BlockedConvolution", ("N 3 64 65", "8 3 7 7"), _ONE, _conv("8", pad=3, stride=2)),
    Example("BlockedConvolution", ("N 2 61 33 8", "24 16 3 3"), _THREE,
            _conv("8", pad=2, dilation=2)),
    Example("BlockedConvolution", ("N 8 56 57 8", "64 64 1 1"), _ONE, _conv("8", pad=0, stride=2)),
    Example("BlockedConvolution", ("N 2 64 33 8", "16 1 3 3"), _ONE, _conv("8", groups=16)),
    Example("BlockedConvolution", ("N 4 64 33 8", "32 16 3 3"), _ONE, _conv("8", groups=2)),
    Example("BlockedConvolutionDataGrad", ("N 1 64 33 8", "8 8 3 3"), _ONE, _conv("64", "33")),
    Example("BlockedConvolutionDataGrad", ("N 2 64 33 8", "11 6 3 3"), _ONE, _conv("64", "33")),
    Example("BlockedConvolutionDataGrad", ("N 1 31 17 8", "8 16 3 3"), _ONE,
            _conv("61", "33", stride=2)),
    Example("BlockedConvolutionDataGrad", ("N 2 61 33 8", "16 24 3 3"), _THREE,
            _conv("61", "33", pad=2, dilation=2)),
    Example("BlockedConvolutionDataGrad", ("N 8 28 29 8", "64 64 1 1"), _ONE,
            _conv("56", "57", pad=0, stride=2)),
    Example("BlockedConvolutionDataGrad", ("N 2 64 33 8", "16 1 3 3"), _ONE,
            _conv("64", "33", groups=16)),
    Example("BlockedConvolutionFilterGrad", ("N 1 64 33 8", "N 1 64 33 8"), _ONE,
            _conv("8", "8", "3", "3")),
    Example("BlockedConvolutionFilterGrad", ("N 1 64 33 8", "N 2 64 33 8"), _THREE,
            _conv("11", "6", "3", "3")),
    Example("BlockedConvolutionFilterGrad", ("N 3 64 65", "N 1 32 33 8"), _ONE,
            _conv("8", "3", "7", "7", pad=3, stride=2)),
    Example("BlockedConvolutionFilterGrad", ("N 8 13 14 8", "N 6 7 7 8"), {"N": 9},
            _conv("48", "64", "3", "3", stride=2)),
    Example("BlockedConvolutionFilterGrad", ("N 2 64 33 8", "N 2 64 33 8"), _ONE,
            _conv("16", "1", "3", "3", groups=16)),
    Example("BatchNorm", ("N 2 64 33 8", *["16"] * 4), _ONE, _always(**_NORM),
            nothing={"N": _STILL}),
    Example("BatchNormGrad", ("N 2 64 33 8", "N 2 64 33 8", *["16"] * 3), _ONE,
            _always(rectified=False)),
    Example("EmbeddingGrad", ("A:R", "A B"), {"A": 700, "B": 301, "R": 900},
            lambda sizes: {"rows": sizes["R"], "padding_idx": -1}, refused=("R",)),
    Example("Gemm", ("M K", "K N"), {"M": 300, "K": 70, "N": 512},
            _always(transpose_a=False, transpose_b=False)),
    Example("Gemm", ("K M", "N K"), {"M": 512, "K": 70, "N": 300},
            _always(transpose_a=True, transpose_b=True)),
    Example("PinValues", ("A B", "C D", "A:9"), {**_MATRIX, "C": 7, "D": 5}, _always(count=2),
            nothing={"A": [0.0, None], "C": [None, 0.0], **{n: [None, None] for n in "BD"}},
            returns_addresses=True),
    Example("LayerNorm", ("A B", "B", "B"), _MATRIX, _always(epsilon=1e-5),
            nothing={"B": [None, _NAN, _NAN]}),
    Example("LayerNormGrad", ("A B", "A B", "B", "A", "A:positive"), _MATRIX,
            _always(epsilon=1e-5)),
    Example("PaddleMaxPool", (_PLANE,), _POOLED, _pool(), nothing={"H": [_LOWEST], "W": [_LOWEST]}),
    Example("PaddleMaxPool", (_BLOCKS,), _POOLED, _pool(),
            nothing={"H": [_LOWEST], "W": [_LOWEST]}),
    Example("PaddleMaxPoolGrad", (_PLANE, _OUT_PLANE, _OUT_PLANE), _POOLED, _pool()),
    Example("PaddleMaxPoolGrad", (_BLOCKS, _OUT_BLOCKS, _OUT_BLOCKS), _POOLED, _pool()),
    Example("MaxPoolWithIndex", (_PLANE,), _POOLED, _pool(),
            nothing={"H": [_LOWEST, -1], "W": [_LOWEST, -1]}),
    Example("MaxPoolWithIndexGrad", (f"{_OUT_PLANE}:37", _OUT_PLANE), _POOLED,
            lambda sizes: {"input": [sizes["H"], sizes["W"]]}, refused=("H", "W")),
    Example("PaddleAvgPool", (_PLANE,), _POOLED, _pool(), nothing={"H": [None], "W": [None]}),
    Example("PaddleAvgPool", (_BLOCKS,), _POOLED, _pool(), nothing={"H": [None], "W": [None]}),
    Example("PaddleAvgPoolGrad", (_OUT_PLANE,), _POOLED, _pool("H", "W")),
    Example("PaddleAvgPoolGrad", (_OUT_BLOCKS,), _POOLED, _pool("H", "W")),
    Example("PaddleMaxPool", ("N 1 64 33 16",), _ONE, _always(**_TALL)),
    Example("PaddleMaxPoolGrad", ("N 1 64 33 16", *["N 1 32 17 16"] * 2), _ONE, _always(**_TALL)),
    Example("PaddleMaxPoolGrad", ("N 1 64 33", *["N 1 32 17"] * 2), _ONE, _always(**_TALL)),
    Example("PaddleAvgPoolGrad", ("N 1 32 17 16",), _ONE, _always(**_TALL, input=[64, 33])),
    Example("PaddleAvgPoolGrad", ("N 1 32 17",), _ONE, _always(**_TALL, input=[64, 33])),
    Example("LayerNormGrad", ("A B", "A B", "B", "A", "A:positive"), {"A": 3, "B": 20000},
            _always(epsilon=1e-5)),
    Example("EmbeddingGrad", ("A:R", "A B"), {"A": 7000, "B": 31, "R": 2},
            lambda sizes: {"rows": sizes["R"], "padding_idx": -1}, refused=("R",)),
    Example("Gemm", ("M K", "K N"), {"M": 17, "K": 900, "N": 33},
            _always(transpose_a=False, transpose_b=False)),
    Example("BlockedReorder", (_PLANE,), _PLANES, _always(block=8)),
    Example(
        "BlockedReorder", (f"{_PLANE} D",), {**_PLANES, "D": 8}, _always(block=1), refused=("D",)
    ),
    Example("BlockedReorder", (f"{_PLANE} 16",), _PLANES, _always(block=8)),
    Example(
        "Attention",
        ("A 4 1 B", "A 2 C B", "A 2 C D", "A 1 1 C"),
        {"A": 3, "B": 20, "C": 37, "D": 17},
        _always(scale=0.3),
        nothing={"B": [None]},  # all weights are equal
    ),
    Example("RowSoftmax", ("A B",), _MATRIX),
    Example("RowSoftmaxGrad", ("A B:positive", "A B"), _MATRIX),
    Example("Sort", ("A B",), _MATRIX, _sort(search=False)),
    Example("Sort", ("A B",), {**_MATRIX, "K": 5}, _sort(search=True), refused=("B",)),
    Example("CheckedAdd", ("A B:9", "A B:9"), _MATRIX, _always(message="Whole.")),
    Example("CheckedMultiply", ("A B:9", "A B:9"), _MATRIX, _always(message="Whole.")),
    Example("CheckedSubtract", ("A B:9", "A B:9"), _MATRIX, _always(message="Whole.")),
    Example("FloorDivide", ("A B", "A B"), _MATRIX),
    Example("Remainder", ("A B", "A B"), _MATRIX),
    Example("FromBfloat16", ("A B:bfloat16",), _MATRIX),
    Example("RoundToBfloat16", ("A B",), _MATRIX),
    Example("ToBfloat16", ("A B",), _MATRIX),
    Example("ToChannelsLast", (_PLANE,), _PLANES),
    Example("ToChannelsLast", (f"{_PLANE} D",), {**_PLANES, "D": 8}),
)  # fmt: skip


def main() -> None:
    """Prints a line for each operator."""
    for number, example in enumerate(EXAMPLES):
        outcomes = {
            f"{size} {threads}": example.without(size, threads)
            for size in example.sizes
            for threads in THREADS
        }
        print(json.dumps([number, outcomes]), flush=True)


if __name__ == "__main__":
    main()
