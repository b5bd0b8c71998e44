"""PP-OCR on photographs: the pipeline of the demo, natively and through the engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import paddle_ngraph
from demos.ocr_demo import files, pipeline
from paddle_ngraph.report import Report


@dataclass(frozen=True)
class Reading:
    """A photograph, read by both engines.

    Attributes:
        native, engine: What was read.
        reports: Of the three networks, by step.
        engine_runs: How often an engine operator ran in the engine's last reading.
        functions_built: And how many functions it had to build for that.
    """

    native: pipeline.Page
    engine: pipeline.Page
    reports: dict[str, Report]
    engine_runs: int
    functions_built: int

    def error(self, step: str) -> float:
        """The largest difference between the outputs of a network, which are probabilities."""
        pairs = list(zip(self.native.outputs[step], self.engine.outputs[step]))
        assert len(self.native.outputs[step]) == len(self.engine.outputs[step]) == len(pairs)
        return max((float(np.abs(a - b).max()) for a, b in pairs), default=0.0)

    def runs(self, step: str) -> int:
        """How often a network ran."""
        return len(self.engine.outputs[step])


def read(reader: pipeline.Reader, photograph: str) -> Reading:
    """Reads a photograph natively, and twice through the engine: the second time, all is built."""
    picture = files.open_picture(photograph)
    with paddle_ngraph.use_ngraph(False):
        native = reader.read(picture)
    with paddle_ngraph.use_ngraph():
        reader.read(picture)
        paddle_ngraph.reset_stats()
        engine = reader.read(picture)
    stats = paddle_ngraph.stats()
    reports = {step: paddle_ngraph.explain(net.program) for step, net in reader.networks.items()}
    return Reading(native, engine, reports, stats["engine_runs"], stats["functions_built"])
