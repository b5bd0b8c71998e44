"""Matmuls by the plugin and by oneDNN, for the rules in conversion/passes/matmuls.py."""

from __future__ import annotations

import statistics
from argparse import Namespace

import numpy as np
import openvino as ov
from openvino import opset15

from benchmarks import report
from benchmarks.functions import on_this_thread, processor_seconds
from benchmarks.options import Progress
from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.conversion.passes import matmuls

# (M, K, N) of the MLP, the Transformer and BERT, and around the limits of the rules.
SHAPES = (
    (128, 1024, 1024),
    (256, 512, 512),
    (512, 512, 512),
    (1024, 768, 768),
    (128, 2048, 1024),
    (128, 3072, 768),
    (1024, 768, 3072),
    (1024, 768, 2304),
    (256, 768, 3072),
    (1024, 3072, 768),
    (768, 1024, 3072),
)
ABOUT = """\
How many times as fast the core's `Gemm` (oneDNN) computes a product as the plugin's `MatMul`, on
one thread, in turns: the median of the ratios. **Bold**: what the rule for the processor gives to
oneDNN. *Packed*: the right operand is a weight that the function knows."""


def measure(options: Namespace) -> None:
    """Measures the matmuls; writes ``products.md`` and ``.json``."""
    samples = 3 if options.quick else 15
    ratios: dict[str, float] = {}
    with Progress("products", 2 * len(SHAPES)) as progress:
        for shape in SHAPES:
            for packs in (False, True):
                name = _name(shape, packs)
                ratios[name] = _ratio(shape, packs, samples)
                progress.done(f"{name}: {ratios[name]:.2f}")
    ruled = _ruled()
    beside = {"": {name: _cell(ratio, name in ruled) for name, ratio in ratios.items()}}
    data = {"ratios": ratios, "rule": ruled}
    report.write(options.output, "products", "Products by oneDNN", [ABOUT], data, beside)


def _name(shape: tuple[int, int, int], packs: bool) -> str:
    m, k, n = shape
    return f"[{m}, {k}] x [{k}, {n}]" + (", packed" if packs else "")


def _cell(ratio: float, is_ruled: bool) -> str:
    return f"**{ratio:.2f}**" if is_ruled else f"{ratio:.2f}"


def _ruled() -> list[str]:
    """Returns the matmuls that the rule for this processor assigns to oneDNN."""
    return [
        _name(shape, packs)
        for shape in SHAPES
        for packs in (False, True)
        if _model(shape, packs, by_rule=True)[1] == "Gemm"
    ]


def _model(shape: tuple[int, int, int], packs: bool, by_rule: bool) -> tuple[ov.Model, str]:
    """Builds a model with one matmul; returns it and the type of its node."""
    m, k, n = shape
    a, b = opset15.parameter([m, k]), opset15.parameter([k, n])
    right = opset15.constant(_data(k, n)) if packs else b
    result = opset15.result(opset15.matmul(a, right, False, False))
    model = ov.Model([result], [a] if packs else [a, b], "product")
    if by_rule:
        matmuls.use_onednn_matmuls(model, extension)
    return model, str(result.input_value(0).get_node().get_type_name())


def _by_onednn(shape: tuple[int, int, int], packs: bool) -> ov.Model:
    m, k, n = shape
    a, b = opset15.parameter([m, k]), opset15.parameter([k, n])
    right = opset15.constant(_data(k, n)) if packs else b
    options = {"transpose_a": False, "transpose_b": False}
    node = extension("Gemm", [a.output(0), right.output(0)], **options)
    return ov.Model([opset15.result(node)], [a] if packs else [a, b], "product")


def _data(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, columns)).astype("float32")


def _ratio(shape: tuple[int, int, int], packs: bool, samples: int) -> float:
    m, k, n = shape
    arrays = [_data(m, k)] if packs else [_data(m, k), _data(k, n)]
    plugin = on_this_thread(_model(shape, packs, by_rule=False)[0], arrays)
    onednn = on_this_thread(_by_onednn(shape, packs), arrays)
    ratios = []
    for _ in range(samples):
        first, second = processor_seconds(plugin), processor_seconds(onednn)
        ratios.append(first / second)
    return statistics.median(ratios)
