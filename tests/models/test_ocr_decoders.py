"""Decoders of text and formulas as PaddleOCR exports them: each is one operator of a predictor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import inference

import paddle_ngraph
from benchmarks import ocr_networks
from tests.programs import floats
from tests.zips import zip_equal
from tests.zoo.old_ir import old_ir

WIDTH = 16
SIZES = {"width": WIDTH, "heads": 2, "wide": 32, "depth": 1, "words": 8, "steps": 6}
# The word that ends a row, so that rows of several lengths occur.
ENDS = {"NRTR": 4, "LaTeX-OCR": 3, "UniMERNet": 4, "PP-FormulaNet": 4}


def predictor(path: str, engine: bool) -> Callable[[np.ndarray], list[np.ndarray]]:
    ending = ".json" if Path(f"{path}.json").exists() else ".pdmodel"
    config = inference.Config(path + ending, f"{path}.pdiparams")
    config.disable_mkldnn()  # with oneDNN, Paddle itself fails
    with paddle_ngraph.use_ngraph(engine):
        made = inference.create_predictor(config)

    def run(context: np.ndarray) -> list[np.ndarray]:
        paddle.seed(int(context.size))
        with paddle_ngraph.use_ngraph(engine):
            made.get_input_handle(made.get_input_names()[0]).copy_from_cpu(context)
            made.run()
            found = [made.get_output_handle(n).copy_to_cpu() for n in made.get_output_names()]
        # What follows shows how many numbers the run has sampled.
        return [*found, paddle.rand([2]).numpy()]

    return run


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("NRTR", marks=pytest.mark.slow("compiles loops of many lengths")),
        "LaTeX-OCR",
        pytest.param("UniMERNet", marks=pytest.mark.slow("compiles loops of many lengths")),
        "PP-FormulaNet",
    ],
)
def test_a_decoder_is_one_operator(name: str, tmp_path: Path) -> None:
    runs_as_one_operator(ocr_networks.export(name, str(tmp_path), **SIZES, end=ENDS[name]))


def test_a_decoder_of_an_old_file_is_one_operator(tmp_path: Path) -> None:
    with old_ir():
        path = ocr_networks.export("NRTR", str(tmp_path), **SIZES, end=ENDS["NRTR"])
    runs_as_one_operator(path)


def runs_as_one_operator(path: str) -> None:
    native, engine = predictor(path, engine=False), predictor(path, engine=True)
    lengths = set()
    for seed in range(6):
        context = floats(1, 3, WIDTH, seed=seed)
        expected = native(context)
        paddle_ngraph.reset_stats()
        found = engine(context)
        stats = paddle_ngraph.stats()
        assert (stats["engine_runs"], stats["native_runs"]) == (1, 0)
        for one, other in zip_equal(expected, found):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-6)
        lengths.add(found[0].shape[1])
    assert len(lengths) > 1, "some rows end early"
