"""PaddleOCR and PaddleX as they are on the package index. ``make paddleocr`` runs these."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

import paddle_ngraph
from demos.ocr_demo import files
from demos.paddleocr_demo import models, read

pytest.importorskip("paddleocr")

PLAIN = {"enable_mkldnn": False}
PAGES = 200
SIZES = ((1.0, 1.0), (0.77, 0.77), (1.3, 1.1), (1.0, 0.6))
MOST_GROWTH_MB = 32
HEADING = (0, 0, 384, 60)
CELL = (150, 40)


def picture(scale=(1.0, 1.0), turned=False, part=None):
    """A printed page, or a part of it, as PaddleOCR takes it."""
    page = files.open_picture("page").crop(part)
    page = page.resize((round(page.width * scale[0]), round(page.height * scale[1])))
    pixels = np.asarray(page)[:, :, ::-1]
    return np.ascontiguousarray(pixels[::-1, ::-1] if turned else pixels)


def table(rows, columns):
    """A table with lines, a text in each cell."""
    (width, height), margin = CELL, 10
    size = (columns * width + 2 * margin, rows * height + 2 * margin)
    page = Image.new("RGB", size, "white")
    drawing, font = ImageDraw.Draw(page), ImageFont.load_default(size=20)
    for row, column in np.ndindex(rows, columns):
        left, top = margin + column * width, margin + row * height
        drawing.rectangle((left, top, left + width, top + height), outline="black", width=2)
        drawing.text((left + 10, top + 7), f"value {row * columns + column}", "black", font)
    return np.ascontiguousarray(np.asarray(page)[:, :, ::-1])


def page_of(reader, pixels):
    (result,) = reader.predict(pixels)
    return read.page_of(result)


@contextlib.contextmanager
def engine_runs(expected=True):
    before = paddle_ngraph.stats()["engine_runs"]
    yield
    assert (paddle_ngraph.stats()["engine_runs"] > before) == expected


def assert_equal(page, expected):
    assert page.text == expected.text
    for line, other in zip(page.lines, expected.lines):
        assert abs(line.score - other.score) < 1e-3
        np.testing.assert_allclose(line.corners, other.corners, atol=1.0)


@pytest.fixture(scope="module")
def native():
    """A reader that never saw the engine, for each version."""
    readers = {}

    def page(version, pixels):
        with paddle_ngraph.use_ngraph(False):
            if version not in readers:
                readers[version] = read.reader(version, **PLAIN)
            return page_of(readers[version], pixels)

    return page


@pytest.mark.parametrize("version", files.VERSIONS)
@pytest.mark.parametrize("settings", [{}, PLAIN], ids=["default", "plain"])
def test_the_same_text_in_every_mode(native, version, settings):
    paddle_ngraph.enable()
    reader = read.reader(version, **settings)
    for scale in SIZES[:2]:
        with engine_runs():
            page = page_of(reader, picture(scale))
        assert_equal(page, native(version, picture(scale)))
        assert page.lines


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("scale", SIZES)
def test_pages_of_several_sizes(native, reader_v5, scale, turned):
    with paddle_ngraph.use_ngraph(), engine_runs():
        page = page_of(reader_v5, picture(scale, turned))
    assert_equal(page, native("v5", picture(scale, turned)))


@pytest.fixture(scope="module")
def reader_v5():
    with paddle_ngraph.use_ngraph():
        return read.reader("v5")


def test_an_empty_page_has_no_text(reader_v5):
    with paddle_ngraph.use_ngraph(), engine_runs():
        assert page_of(reader_v5, np.full((300, 400, 3), 255, "uint8")).lines == []


def test_several_pages_at_once(native, reader_v5):
    pages = [picture(scale) for scale in SIZES[:3]]
    with paddle_ngraph.use_ngraph(), engine_runs():
        results = reader_v5.predict(pages)
    for result, pixels in zip(results, pages):
        assert_equal(read.page_of(result), native("v5", pixels))


def test_switching_in_the_middle(native):
    reader = read.reader("v5", **PLAIN)
    for on in (False, True, False, True):
        with paddle_ngraph.use_ngraph(on), engine_runs(on):
            assert_equal(page_of(reader, picture()), native("v5", picture()))


@pytest.mark.parametrize("settings", [{}, PLAIN], ids=["default", "plain"])
def test_the_cells_of_a_table(settings):
    paddleocr = pytest.importorskip("paddleocr")
    with paddle_ngraph.use_ngraph(False):
        native = paddleocr.TableStructureRecognition(**models.table_arguments(), **PLAIN)
    with paddle_ngraph.use_ngraph():
        reader = paddleocr.TableStructureRecognition(**models.table_arguments(), **settings)
    for rows, columns in ((2, 3), (5, 2)):
        pixels = table(rows, columns)
        with paddle_ngraph.use_ngraph(), engine_runs():
            (found,) = reader.predict(pixels)
        with paddle_ngraph.use_ngraph(False):
            (expected,) = native.predict(pixels)
        assert found["structure"] == expected["structure"]
        assert found["structure"].count("<td></td>") == rows * columns
        np.testing.assert_allclose(found["bbox"], expected["bbox"], atol=1)


@pytest.mark.parametrize("version", files.VERSIONS)
def test_a_table_with_its_text(version):
    """PaddleX's pipeline: structure of the table, detection and recognition of its text."""
    paddlex = pytest.importorskip("paddlex")
    pixels, pages = table(3, 2), []
    for on in (False, True):
        with paddle_ngraph.use_ngraph(on):
            # In PaddleX's default mode Paddle crashes: it takes oneDNN.
            plain = {} if on else {"engine_config": {"paddle_static": {"run_mode": "paddle"}}}
            pipeline = paddlex.create_pipeline(config=models.table_pipeline(version), **plain)
            with engine_runs(on):
                (result,) = pipeline.predict(pixels)
        pages.append([cells["pred_html"] for cells in result["table_res_list"]])
    assert pages[0] == pages[1]
    assert pages[1][0].lower().replace(" ", "").count("value") == 6


def test_memory_stays_flat(reader_v5):
    def megabytes():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096 / 2**20

    pages = [picture(scale, part=HEADING) for scale in SIZES]
    with paddle_ngraph.use_ngraph(), engine_runs():
        for number in range(PAGES):
            page_of(reader_v5, pages[number % len(pages)])
            if number == PAGES // 4:
                before = megabytes()
    assert megabytes() - before < MOST_GROWTH_MB
