"""Batch inference on a cluster: pictures to Parquet files, killed in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import paddle
import pytest
from PIL import Image

from tests.cluster import machines, native
from tests.cluster.machines import Machines

pytest.importorskip("ray", reason="make cluster has an environment with Ray")
pytestmark = pytest.mark.skipif(
    bool(machines.why_impossible()), reason=machines.why_impossible() or "none"
)
SCRIPT = Path(__file__).with_name("inference.py")
PICTURES, SIDE = 48, 16


def saved_network(prefix: Path) -> None:
    """Saves a small network of pictures."""
    paddle.seed(5)
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        x = paddle.static.data("x", [-1, 3, SIDE, SIDE])
        hidden = paddle.nn.functional.relu(paddle.nn.Conv2D(3, 8, 3)(x))
        scores = paddle.nn.Linear(8 * 14 * 14, 5)(paddle.flatten(hidden, 1))
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    paddle.static.save_inference_model(str(prefix), [x], [scores], executor, program=program)


def logged(folder: Path) -> list[dict]:
    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def done(folder: Path) -> int:
    """The number of pictures that the run will not repeat, once it has ended."""
    parquet = pytest.importorskip("pyarrow.parquet")
    return sum(parquet.read_metadata(file).num_rows for file in committed(folder))


def committed(folder: Path) -> list[Path]:
    """The files of Ray's checkpoint for results that are complete."""
    files = (folder / "done").rglob("*.parquet")
    return [file for file in files if "pending" not in file.name]


def test_pictures_become_parquet_files_and_a_killed_run_continues(tmp_path):
    pandas = pytest.importorskip("pandas")
    generator = np.random.default_rng(3)
    pictures = generator.integers(0, 255, (PICTURES, SIDE, SIDE, 3), "uint8")
    (tmp_path / "pictures").mkdir()
    paths = [tmp_path / "pictures" / f"{number:03}.png" for number in range(PICTURES)]
    for path, picture in zip(paths, pictures):
        Image.fromarray(picture).save(path)
    saved_network(tmp_path / "model")
    # A core for each actor of the model, for Ray's filter of what is done, and for reading.
    with Machines(tmp_path, [2, 2]) as cluster:
        cluster.start(0, 1, 2)
        driver = cluster.run(SCRIPT, tmp_path, name="killed")
        end = time.monotonic() + 300
        while not committed(tmp_path):
            assert driver.process.poll() is None and time.monotonic() < end, driver.output()[-6000:]
            time.sleep(0.05)
        os.killpg(driver.process.pid, signal.SIGKILL)
        driver.process.wait()
        finished, before = done(tmp_path), len(logged(tmp_path))
        assert 0 < finished < PICTURES
        driver = cluster.run(SCRIPT, tmp_path, name="resumed")
        assert driver.wait() == 0, driver.output()[-6000:]
    # Ray's progress, in lines where there is no terminal.
    assert re.search(r"LoggingPredictor\): \d+/\d+$", driver.output(), re.MULTILINE)
    found = pandas.read_parquet(tmp_path / "results")
    assert sorted(found["path"]) == [str(path) for path in paths]
    again = [path for line in logged(tmp_path)[before:] for path in line["paths"]]
    assert len(again) <= PICTURES - finished
    assert all(line["engine"] > 0 for line in logged(tmp_path)[-1:])
    assert len({line["pid"] for line in logged(tmp_path)}) >= 2
    expected = native.result(
        tmp_path / "model", {"x": pictures.astype("float32").transpose(0, 3, 1, 2) / 255}
    )
    (column,) = (name for name in found if name != "path")
    scores = np.stack(found.sort_values("path")[column].map(np.asarray))
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
