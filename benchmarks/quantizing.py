"""Quantizes saved models by Paddle's own tools, those behind PaddleSlim's ``quant_post_static``.

The tools support ProgramDesc programs only. Paddle runs them, without the engine.
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
# Operators with int8 kernels. Sums and poolings between them stay in float32.
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
    """Quantizes weights per channel and activations per tensor, calibrated with ``feeds``.

    Args:
        program: A ``.pdmodel``, with its parameters in a ``.pdiparams`` of the same name.
        feeds: Inputs by name, with the batch as axis 0; all batches of one size.
        folder: Folder of the quantized model.
        algorithm: Calibration algorithm, of ``ALGORITHMS``: scales from activations.
        in_pairs: Whether each tensor has a pair of quantize and dequantize operators, as in ONNX
            (``onnx_format``), with weights as int8; otherwise results of matmuls are dequantized.
        operators: Types of operators to quantize; others stay in float32.

    Returns:
        The program of the quantized model.
    """
    with (
        _old_style(),
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),  # progress bars
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
