"""PP-OCR on photographs: the pipeline of the demo, natively and through the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

import paddle_ngraph
from demos.ocr_demo import files, pipeline
from paddle_ngraph.partitioning.report import Report
from tests.models.comparing import Array, beyond_rounding, nudged, set_variables, variables


@dataclass(frozen=True)
class Reading:
    """A photograph, read by both engines.

    Attributes:
        native, engine: The pages as read.
        rounded: The page as read by Paddle with weights that are changed in their last bit.
        reports: Of the three networks, by step.
        engine_runs: How often an engine operator ran in the engine's last reading.
        functions_built: And how many functions it had to build for that.
    """

    native: pipeline.Page
    engine: pipeline.Page
    rounded: pipeline.Page
    reports: dict[str, Report]
    engine_runs: int
    functions_built: int

    def error(self, step: str) -> float:
        """The largest difference between the outputs of a network, which are probabilities."""
        return _apart(self.native.outputs[step], self.engine.outputs[step])

    def rounding(self, step: str) -> float:
        """The difference between Paddle's two readings: the effect of rounding on this network."""
        return _apart(self.native.outputs[step], self.rounded.outputs[step])

    def wrong(self) -> dict[str, str]:
        """The networks that part further than rounding explains."""
        errors = {step: self.error(step) for step in pipeline.STEPS}
        return beyond_rounding(errors, {step: self.rounding(step) for step in pipeline.STEPS})

    def runs(self, step: str) -> int:
        """How often a network ran."""
        return len(self.engine.outputs[step])


def _apart(expected: list[Array], actual: list[Array]) -> float:
    assert len(expected) == len(actual)
    return max((float(np.abs(a - b).max()) for a, b in zip(expected, actual)), default=0.0)


def read(reader: pipeline.Reader, photograph: str) -> Reading:
    """Reads a photograph by Paddle, and twice through the engine: the second time, all is built.

    Then by Paddle again, to measure the effect of rounding.
    """
    picture = files.open_picture(photograph)
    with paddle_ngraph.use_ngraph(False):
        native = reader.read(picture)
    with paddle_ngraph.use_ngraph():
        reader.read(picture)
        paddle_ngraph.reset_stats()
        engine = reader.read(picture)
    stats = paddle_ngraph.stats()
    reports = {step: paddle_ngraph.explain(net.program) for step, net in reader.networks.items()}
    with paddle_ngraph.use_ngraph(False), _nudged_weights(reader):
        rounded = reader.read(picture)
    return Reading(native, engine, rounded, reports, stats["engine_runs"], stats["functions_built"])


@contextmanager
def _nudged_weights(reader: pipeline.Reader) -> Iterator[None]:
    before = {}
    for step, network in reader.networks.items():
        before[step] = variables(network.program, network.scope)
        set_variables(network.scope, nudged(before[step]))
    try:
        yield
    finally:
        for step, network in reader.networks.items():
            set_variables(network.scope, before[step])
