"""Quantizes saved models by Paddle's own tools, those behind PaddleSlim's ``quant_post_static``.

The tools know old-style programs only. Everything runs natively.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import paddle
from paddle.static.quantization import PostTrainingQuantization

import paddle_ngraph
from benchmarks.works import Feed

PROGRAM, PARAMETERS = "inference.pdmodel", "inference.pdiparams"
# What has int8 kernels. Sums and poolings between them stay in float32.
DENSE = ("conv2d", "matmul", "matmul_v2", "mul")
OPERATORS = (*DENSE, "depthwise_conv2d")
ALGORITHMS = ("abs_max", "avg", "hist", "KL", "mse")


def post_training(
    program: Path,
    feeds: Sequence[Feed],
    folder: Path,
    algorithm: str = "hist",
    in_pairs: bool = True,
    operators: Sequence[str] = OPERATORS,
) -> Path:
    """Quantizes weights by channel and activations by tensor, as the activations of feeds ask for.

    Args:
        program: A ``.pdmodel``, with its parameters in the ``.pdiparams`` beside it.
        feeds: Inputs by name, with the batch as axis 0; all batches of one size.
        folder: Where the quantized model is written.
        algorithm: How scales follow from activations, of ``ALGORITHMS``.
        in_pairs: Whether each tensor is quantized and dequantized by operators of its own, as in
            ONNX (``onnx_format``), with weights as int8; otherwise products are dequantized.
        operators: What is quantized; the rest stays in float32.

    Returns:
        The program of the quantized model.
    """
    with (
        _old_style(),
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),  # bars of progress
        redirect_stderr(nowhere),
    ):
        tool = PostTrainingQuantization(
            executor=paddle.static.Executor(paddle.CPUPlace()),
            model_dir=str(program.parent),
            model_filename=program.name,
            params_filename=program.with_suffix(".pdiparams").name,
            data_loader=lambda: iter(feeds),
            batch_nums=len(feeds),
            algo=algorithm,
            quantizable_op_type=list(operators),
            onnx_format=in_pairs,
        )
        tool.quantize()
        tool.save_quantized_model(str(folder), model_filename=PROGRAM, params_filename=PARAMETERS)
    return folder / PROGRAM


@contextmanager
def _old_style() -> Iterator[None]:
    with (
        paddle_ngraph.use_ngraph(False),
        paddle.pir_utils.OldIrGuard(),
        paddle.static.scope_guard(paddle.static.Scope()),
    ):
        yield
