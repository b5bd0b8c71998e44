"""PaddleOCR's decoders of text and formulas in Paddle Inference: natively and by the engine."""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace

import numpy as np
import paddle
from paddle import inference

import paddle_ngraph
from benchmarks import ocr_networks, report, srn_parts
from benchmarks.options import Progress
from benchmarks.worker import Worker

# The shapes of inputs, without the batch; of others: (columns, width).
SHAPES = {"SAR": (512, 6, 40), "SRN": (512, 8, 32)}
COLUMNS = {"NRTR": 40}
ROUNDS, QUICK_ROUNDS = 5, 2
ABOUT = """\
Decoders in the forms in which PaddleOCR exports them (a `while` with a `break`, words that are
concatenated, sampled words, masks of float64, a cache that starts empty), with random weights, in
Paddle Inference with one thread: milliseconds of processor time of a run, the median of runs in
turns, and native over engine, the median of the turns' ratios. NRTR reads 40 columns and writes 25
words; LaTeX-OCR and the formula decoders read 100 columns and write 64 words of 8,000 and 5,000.
SAR, whose loop is unrolled, reads 6 x 40 features and writes 30 words; SRN has no loop, reads
8 x 32 and writes 25. Native is without oneDNN, with which Paddle itself fails on these loops. Each
loop is one operator of the engine, with equal words and equally many random numbers."""


def measure(options: Namespace) -> None:
    """Measures the decoders; writes ``ocr_decoders.md`` and ``.json``."""
    rows, found = [], {}
    works = [(name, batch) for name in ocr_networks.DECODERS for batch in (1, 6)]
    works = works[::2] if options.quick else works
    with Progress("ocr_decoders", len(works)) as progress:
        for name, batch in works:
            with Worker({"OMP_NUM_THREADS": "1"}) as worker:
                rounds = QUICK_ROUNDS if options.quick else ROUNDS
                times = worker.call(samples, name, batch, rounds)
            found[f"{name}, {batch}"] = times
            native, engine = (statistics.median(times[key]) for key in ("native", "engine"))
            ratio = statistics.median(np.divide(times["native"], times["engine"]))
            label = f"{name}, batch {batch}"
            rows.append([label, f"{native:.1f}", f"{engine:.1f}", f"{ratio:.1f}x"])
            progress.done(f"{label}: {ratio:.1f}x")
    header = ["", "native", "engine", "native / engine"]
    with Worker({"OMP_NUM_THREADS": "1"}) as worker:
        limit, parts = worker.call(srn_parts.measured)
    sections = [ABOUT, report.table(header, rows), limit]
    beside = report.column(header, rows, "native / engine")
    title = "Decoders of PaddleOCR"
    data = {"ms": found, "parts of SRN": parts}
    report.write(options.output, "ocr_decoders", title, sections, data, beside)


class _Predictor:
    def __init__(self, path: str, engine: bool) -> None:
        config = inference.Config(f"{path}.json", f"{path}.pdiparams")
        config.disable_mkldnn()
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(1)
        self._engine = engine
        with paddle_ngraph.use_ngraph(engine):
            self._predictor = inference.create_predictor(config)

    def run(self, context: np.ndarray) -> list[np.ndarray]:
        """Results of a run, and random numbers that follow those of the run."""
        paddle.seed(0)
        predictor = self._predictor
        with paddle_ngraph.use_ngraph(self._engine):
            predictor.get_input_handle(predictor.get_input_names()[0]).copy_from_cpu(context)
            predictor.run()
            names = predictor.get_output_names()
            found = [predictor.get_output_handle(name).copy_to_cpu() for name in names]
        return [*found, paddle.rand([2]).numpy()]


def samples(name: str, batch: int, rounds: int) -> dict[str, list[float]]:
    """Returns milliseconds of processor time of runs in turns, after two other runs.

    Raises:
        ValueError: The results differ, or something runs natively.
    """
    width = ocr_networks.DECODERS[name][1]["width"]
    draw = np.random.default_rng(0)
    shape = SHAPES.get(name, (COLUMNS.get(name, 100), width))
    context = draw.standard_normal((batch, *shape), "float32")
    with tempfile.TemporaryDirectory() as folder:
        # No word ends a row: each run has all steps.
        path = ocr_networks.export(name, folder, end=-1)
        predictors = {key: _Predictor(path, key == "engine") for key in ("native", "engine")}
    times: dict[str, list[float]] = {key: [] for key in predictors}
    for number in range(2 + rounds):
        results = {}
        paddle_ngraph.reset_stats()
        for key, predictor in predictors.items():
            start = time.process_time()
            results[key] = predictor.run(context)
            if number >= 2:
                times[key].append(1e3 * (time.process_time() - start))
        for expected, actual in zip(results["native"], results["engine"]):
            if not np.allclose(actual, expected, rtol=1e-3, atol=1e-4):
                raise ValueError(f"{name}: another result than native Paddle's")
        stats = paddle_ngraph.stats()
        if stats["native_runs"] or not stats["engine_runs"]:
            raise ValueError(f"{name}: something runs natively")
    return times
