"""PP-OCR, published networks with trained weights, on photographs: the same text is read."""

from __future__ import annotations

import paddle
import pytest

from demos.ocr_demo import files, pipeline
from tests.models import ocr
from tests.models.checking import left_native

PAGE = [
    "Region-based segmentation",
    "Let us first determine markers of the coins and the",
    "background. These markers are pixels that we can label",
    "unambiguously as either object or background. Here,",
    "histogram of grey values:",
]


@pytest.fixture(scope="module", params=files.VERSIONS)
def reader(request) -> pipeline.Reader:
    paddle.enable_static()
    return pipeline.Reader(request.param)


@pytest.mark.slow("runs whole networks")
@pytest.mark.parametrize("photograph", files.PHOTOGRAPHS)
def test_the_same_text_is_read(reader, photograph):
    reading = ocr.read(reader, photograph)
    assert reading.engine.text == reading.native.text
    assert not reading.wrong()
    assert not any(left_native(report) for report in reading.reports.values())
    assert reading.engine_runs == sum(reading.runs(step) for step in pipeline.STEPS) > 0
    assert reading.functions_built == 0
    if photograph == "page":
        found = [text.replace(" ", "") for text in reading.engine.text]
        assert all(line.replace(" ", "") in found for line in PAGE)
