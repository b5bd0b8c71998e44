"""Load balance of the core's operators on more threads than this machine has cores.

The operators are evaluated as in a training step while the core records the division of each of
their loops: the number of tasks, and the largest share of a thread over the mean, if each thread
takes the next task when it has finished one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset15

from benchmarks import report
from paddle_ngraph import _core
from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.conversion.passes import blocked_layout

THREADS = (4, 8, 16, 32, 64)
GOAL = 1.15
ABOUT = """\
Into how many tasks an operator's work is divided, and the largest share of a thread over the mean
(of all its loops, by their work), if each thread takes the next task when it has finished one:
computed by the code that divides the work, for numbers of threads that this machine has no cores
for. **Bold**: above {goal}. The first row is of all loops of the table."""


class Division(NamedTuple):
    """Division of the loops of an operator.

    Attributes:
        tasks: Number of tasks of the loop with the most work.
        work: Work of all loops, in multiplications.
        imbalance: The largest share over the mean, averaged over loops by their work.
    """

    tasks: int
    work: float
    imbalance: float


@dataclass(frozen=True)
class Layer:
    """An operator of the core on inputs of some shapes.

    Attributes:
        title: Its role in the network.
        name: Name of the operator.
        inputs: Shapes of the inputs; all float32, except the ids of ``EmbeddingGrad``.
        attributes: Attributes of the operator.
    """

    title: str
    name: str
    inputs: tuple[tuple[int, ...], ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    def division(self, threads: int) -> Division:
        """Returns the division among this number of threads."""
        generator = np.random.default_rng(0)
        arrays = [generator.uniform(0.1, 1, shape).astype("float32") for shape in self.inputs]
        if self.name == "EmbeddingGrad":
            arrays[0] = generator.integers(0, self.attributes["rows"], self.inputs[0], "int32")
        inputs = [opset15.parameter(array.shape, array.dtype.type) for array in arrays]
        node = extension(self.name, inputs, **self.attributes)
        outputs = [ov.Tensor(o.get_element_type(), o.get_shape()) for o in node.outputs()]
        given = [ov.Tensor(array) for array in arrays]
        loops = _core.run_with_threads(threads, lambda: node.evaluate(outputs, given))
        tasks, _, _ = max(loops, key=lambda loop: loop[1])
        work = sum(products for _, products, _ in loops)
        return Division(tasks, work, _by_work((each[1:] for each in loops), work))


def _by_work(parts: Iterable[tuple[float, float]], work: float) -> float:
    """Returns the imbalance of all parts, given the work and the imbalance of each."""
    return sum(products * imbalance for products, imbalance in parts) / work


# Channels, filters, size of the input, kernel, stride: each convolution of ResNet-18 once.
_CONVOLUTIONS = (
    (3, 64, 224, 7, 2),
    (64, 64, 56, 3, 1),
    (64, 128, 56, 3, 2),
    (64, 128, 56, 1, 2),
    (128, 128, 28, 3, 1),
    (128, 256, 28, 3, 2),
    (128, 256, 28, 1, 2),
    (256, 256, 14, 3, 1),
    (256, 512, 14, 3, 2),
    (256, 512, 14, 1, 2),
    (512, 512, 7, 3, 1),
)


def resnet18(batch: int) -> Iterator[Layer]:
    """Yields the operators of a training step."""
    block = max(8, blocked_layout.widest_block())

    def data(channels: int, size: int) -> tuple[int, ...]:
        if channels % block:
            return (batch, channels, size, size)
        return (batch, channels // block, size, size, block)

    for channels, filters, size, kernel, stride in _CONVOLUTIONS:
        pad = [kernel // 2] * 2
        options: dict[str, Any] = {"strides": [stride] * 2, "pads_begin": pad, "pads_end": pad}
        options = {**options, "dilations": [1, 1], "groups": 1}
        x, y = data(channels, size), data(filters, size // stride)
        weights = (filters, channels, kernel, kernel)
        title = f"{channels} to {filters}, {size} x {size}, {kernel} x {kernel} by {stride}"
        kind = "BlockedConvolution"
        yield Layer(title, kind, (x, weights), {**options, "sizes": [block]})
        if channels > 3:
            yield Layer(title, f"{kind}DataGrad", (y, weights), {**options, "sizes": [size] * 2})
        yield Layer(title, f"{kind}FilterGrad", (x, y), {**options, "sizes": [*weights]})
    for channels, size in ((64, 112), (64, 56), (128, 28), (256, 14), (512, 7)):
        x, one = data(channels, size), (channels,)
        title = f"{channels}, {size} x {size}"
        norm = {"epsilon": 1e-5, "momentum": 0.9, "rectified": True, "ceiling": 0.0}
        rectified = {"rectified": True, "ceiling": 0.0}
        yield Layer(title, "BatchNorm", (x, one, one, one, one), norm)
        yield Layer(title, "BatchNormGrad", (x, x, one, one, one, x), rectified)
    frame = {"adaptive": False, "exclusive": True}
    pool = {**frame, "kernel": [3, 3], "strides": [2, 2], "pads": [1, 1], "output": [56, 56]}
    x, y = data(64, 112), data(64, 56)
    yield Layer("64, 112 x 112", "PaddleMaxPool", (x,), pool)
    yield Layer("64, 112 x 112", "PaddleMaxPoolGrad", (x, y, y), pool)
    yield from _updates("Momentum", ((512, 512, 3, 3), (64, 64, 3, 3)))


def bert(batch: int, length: int = 128) -> Iterator[Layer]:
    """Yields the core's operators in a training step of BERT-base; matmuls by ``Gemm``."""
    rows, width, inner = batch * length, 768, 3072
    plain = {"transpose_a": False, "transpose_b": False}
    for m, k, n in ((rows, width, width), (rows, width, inner), (rows, inner, width)):
        shape = f"[{m}, {k}] x [{k}, {n}]"
        yield Layer(f"{shape}, forward", "Gemm", ((m, k), (k, n)), plain)
        yield Layer(
            f"{shape}, data gradient", "Gemm", ((m, n), (k, n)), {**plain, "transpose_b": True}
        )
        yield Layer(
            f"{shape}, weight gradient", "Gemm", ((m, k), (m, n)), {**plain, "transpose_a": True}
        )
    x, scores = (rows, width), (batch * 12 * length, length)
    yield Layer(f"{x}", "LayerNorm", (x, (width,), (width,)), {"epsilon": 1e-5})
    grads = (x, x, (width,), (rows,), (rows,))
    yield Layer(f"{x}", "LayerNormGrad", grads, {"epsilon": 1e-5})
    yield Layer(f"{scores}", "RowSoftmax", (scores,))
    yield Layer(f"{scores}", "RowSoftmaxGrad", (scores, scores))
    yield Layer(
        f"30522 words of {width}",
        "EmbeddingGrad",
        ((rows,), x),
        {"rows": 30522, "padding_idx": -1},
    )
    yield from _updates("Adam", ((width, inner), (width, width)))


def _updates(name: str, shapes: Sequence[tuple[int, ...]]) -> Iterator[Layer]:
    step: dict[str, Any] = {"mu": 0.9, "nesterov": False, "decays": False, "decay": 0.0}
    if name == "Adam":
        step = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "decays": False}
        step = {**step, "ratio": 1.0, "decay": 0.0}
    tensors, numbers = (3, 1) if name == "Momentum" else (4, 3)
    for shape in shapes:
        inputs = (*[shape] * tensors, *[(1,)] * numbers)
        yield Layer(" x ".join(map(str, shape)), name, inputs, step)


NETWORKS = {
    "ResNet-18, batch 8": lambda: resnet18(8),
    "ResNet-18, batch 1": lambda: resnet18(1),
    "BERT-base, batch 8, 128 words": lambda: bert(8),
}


def sections() -> tuple[list[str], dict[str, Any]]:
    """Returns the tables of all networks, and their data."""
    pages, data = [ABOUT.format(goal=GOAL)], {}
    for network, layers in NETWORKS.items():
        found = {
            (layer.name, layer.title): [layer.division(count) for count in THREADS]
            for layer in layers()
        }
        rows = [["all", "", *map(_of_all, zip(*found.values()))]] + [
            [name, title, *(_cell(division) for division in divisions)]
            for (name, title), divisions in found.items()
        ]
        header = ["operator", "layer", *(f"{count} threads" for count in THREADS)]
        pages += [f"### {network}", report.table(header, rows)]
        data[network] = [
            {"operator": name, "layer": title, "divisions": dict(zip(map(str, THREADS), divided))}
            for (name, title), divided in found.items()
        ]
    return pages, data


def _of_all(divisions: Sequence[Division]) -> str:
    work = sum(each.work for each in divisions)
    return _marked(_by_work(((each.work, each.imbalance) for each in divisions), work))


def _cell(division: Division) -> str:
    return f"{division.tasks} tasks, {_marked(division.imbalance)}"


def _marked(imbalance: float) -> str:
    text = f"{imbalance:.2f}"
    return f"**{text}**" if imbalance > GOAL else text
