"""The demo that reads photographs: its geometry, and both engines reading the same."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image, ImageDraw

import paddle_ngraph
from demos import running
from demos.ocr_demo import boxes, files, pipeline, read


def test_connected_runs():
    mask = np.array([[1, 1, 0, 0, 1], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 0]], bool)
    areas = boxes.connected_runs(mask)
    sizes = sorted(int(sum(ends - starts)) for _, starts, ends in areas)
    assert sizes == [1, 1, 2, 3]  # pixels that touch at a corner are connected


def test_runs_that_meet_further_down_are_one_area():
    mask = np.array([[1, 0, 1, 0, 1], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1]], bool)
    assert len(boxes.connected_runs(mask)) == 1


def test_nothing_is_connected_where_nothing_is():
    assert boxes.connected_runs(np.zeros((3, 4), bool)) == []
    assert boxes.find_boxes(np.zeros((3, 4), "float32")) == []


@pytest.mark.parametrize("degrees", [0, 10, -30, 45])
def test_smallest_rectangle(degrees):
    angle = np.radians(degrees)
    rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    inside = np.random.default_rng(0).random((50, 2))
    points = np.concatenate([inside, [[0, 0], [1, 0], [1, 1], [0, 1]]]) * [40, 10] @ rotation
    corners = boxes.smallest_rectangle(points)
    lengths = np.linalg.norm(np.diff(corners, axis=0), axis=1)
    np.testing.assert_allclose(sorted(lengths[:2]), [10, 40], rtol=1e-6)
    np.testing.assert_allclose(corners.mean(axis=0), [20, 5] @ rotation, atol=1e-6)


def test_boxes_are_in_reading_order_and_begin_where_the_text_does():
    probability = np.zeros((100, 300), "float32")
    for top, left, right in [(60, 20, 150), (10, 160, 280), (12, 10, 120)]:
        probability[top : top + 10, left:right] = 0.9
    found = boxes.find_boxes(probability)
    starts = [tuple(box[0].round().astype(int).tolist()) for box in found]
    assert [box[:, 0].mean() < 150 for box in found] == [True, False, True]
    assert starts[0][0] < starts[1][0] and starts[2][1] > 50
    for box in found:
        assert box[0][0] < box[1][0] and box[0][1] < box[3][1]


def test_a_line_is_cut_out_upright():
    picture = Image.new("RGB", (200, 100), "white")
    ImageDraw.Draw(picture).rectangle((50, 40, 149, 59), fill="black")
    corners = np.array([[50.0, 40.0], [150.0, 40.0], [150.0, 60.0], [50.0, 60.0]])
    line = pipeline.cut_out(picture, corners)
    assert line.size == (100, 20)
    assert np.asarray(line).mean() < 20


def test_decoding_takes_repetitions_and_gaps_out():
    scores = np.zeros((6, 4), "float32")
    scores[np.arange(6), [1, 1, 0, 1, 2, 3]] = 0.5
    assert pipeline.decode(scores, ["", "a", "b", " "]) == ("aab", pytest.approx(0.5))
    assert pipeline.decode(scores[2:3], ["", "a", "b", " "]) == ("", 0.0)


@pytest.mark.parametrize("version", files.VERSIONS)
def test_the_number_of_characters_is_that_of_the_network(version):
    assert len(files.characters(version)) == {"v4": 6625, "v5": 18385}[version]


@pytest.mark.slow("runs a demo")
def test_both_engines_read_the_heading_of_the_page(tmp_path, capsys):
    files.open_picture("page").crop((0, 0, 384, 40)).save(tmp_path / "heading.png")
    picture = tmp_path / "read.png"
    arguments = ["--image", str(tmp_path / "heading.png"), "--output", str(picture)]
    arguments += ["--repeat", "1"]
    assert read.main(arguments) == 0, capsys.readouterr()
    output = capsys.readouterr().out
    for engine in ("native", "ngraph"):
        assert re.search(rf"\[{engine}\] 0\.9\d+ Region-based", output)
    assert "same text" in output and "speed-up" in output
    assert paddle_ngraph.stats()["engine_runs"] > 0
    with Image.open(picture) as written:
        assert written.width == 1600


def test_a_different_text_is_an_error():
    line = pipeline.Line("one", 1.0, np.zeros((4, 2)))
    with pytest.raises(running.DemoError, match="reads 'one' where the engine reads 'nothing'"):
        read.check_agreement(pipeline.Page([line]), pipeline.Page([]))


def test_different_probabilities_are_an_error():
    pages = [pipeline.Page(), pipeline.Page()]
    for number, page in enumerate(pages):
        page.outputs["detection"].append(np.full((1, 1), number, "float32"))
    with pytest.raises(running.DemoError, match="more than float32 rounding explains"):
        read.check_agreement(*pages)


def test_a_picture_that_is_not_there_is_an_error(capsys):
    assert read.main(["--image", "nowhere.png", "--engine", "native"]) == 1
    assert "give a picture file, or one of page, text" in capsys.readouterr().err
