"""Servers on a cluster: no request is lost and none wrong when replicas and machines are."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_ngraph import use_ngraph
from tests.cluster import machines, native
from tests.cluster.machines import Machines

pytest.importorskip("ray", reason="make cluster has an environment with Ray")
pytest.importorskip("starlette", reason="make cluster has an environment with Ray Serve")
pytestmark = pytest.mark.skipif(
    bool(machines.why_impossible()), reason=machines.why_impossible() or "none"
)
SCRIPT = Path(__file__).with_name("serving.py")


def saved_network(prefix: Path) -> None:
    paddle.seed(5)
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        x = paddle.static.data("x", [-1, 8])
        scores = paddle.nn.Linear(32, 3)(paddle.tanh(paddle.nn.Linear(8, 32)(x)))
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    paddle.static.save_inference_model(str(prefix), [x], [scores], executor, program=program)


@dataclass(frozen=True)
class Served:
    """An application under load.

    Attributes:
        bodies: Requests.
        assert_right: Compares the answer to a request, by its number.
    """

    bodies: list[bytes]
    assert_right: Callable[[int, Any], None]


def saved_model(folder: Path) -> Served:
    saved_network(folder / "model")
    generator = np.random.default_rng(2)
    requests = [generator.normal(size=(1 + n % 3, 8)).astype("float32") for n in range(12)]
    expected = [native.result(folder / "model", {"x": each}) for each in requests]

    def assert_right(number: int, answer: Any) -> None:
        (values,) = answer.values()
        np.testing.assert_allclose(values, expected[number], rtol=1e-5, atol=1e-5)

    return Served([json.dumps({"x": each.tolist()}).encode() for each in requests], assert_right)


def pages(folder: Path) -> Served:
    """PaddleOCR, and pages of several sizes."""
    pytest.importorskip("paddleocr", reason="make cluster has an environment with PaddleOCR")
    from demos.serving_demo import models, ocr, pictures, trial
    from demos.serving_demo.load import Load
    from demos.serving_demo.settings import NATIVE, Settings

    models.prepare("ocr", folder / "models", 1)
    bodies = trial.bodies("ocr")
    with use_ngraph(False):
        read = ocr.load(Settings(folder / "models", NATIVE, 1))
        expected = {n: [read(pictures.decoded(body))] for n, body in enumerate(bodies)}

    def assert_right(number: int, answer: Any) -> None:
        trial.require_equal(Load(answers={number: [answer]}), Load(answers=expected))

    return Served(bodies, assert_right)


@pytest.mark.parametrize(("kind", "make"), [("model", saved_model), ("ocr", pages)])
def test_no_request_is_lost_when_a_replica_is_killed_and_a_machine_switched_off(
    tmp_path, kind, make
):
    served = make(tmp_path)
    (tmp_path / "requests").mkdir()
    for number, body in enumerate(served.bodies):
        (tmp_path / "requests" / f"{number:03}").write_bytes(body)
    with Machines(tmp_path, [1, 1]) as cluster:
        cluster.start(0, 1, 2)
        driver = cluster.run(SCRIPT, tmp_path, kind)
        end = time.monotonic() + machines.LIMIT
        while not (tmp_path / "wish").exists():
            assert driver.process.poll() is None and time.monotonic() < end, driver.output()[-6000:]
            time.sleep(0.05)
        cluster.switch_off(2)
        (tmp_path / "switched").touch()
        assert driver.wait() == 0, driver.output()[-6000:]
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["failures"] == [] and len(outcome["killed"]) == 1
    assert len(outcome["malformed"]) >= 4 and set(outcome["malformed"]) == {400}
    reports = [answer.pop("report") for _, answer in outcome["answers"]]
    assert len({report["pid"] for report in reports}) >= 2
    assert {report["threads"] for report in reports} == {1}
    assert all(report["engine"] > 0 and report["built"] == 0 for report in reports)
    assert max(report["batch"] for report in reports) > 1
    assert outcome["metrics"]["paddle_ngraph_engine_runs"] > 0
    for number, answer in outcome["answers"]:
        served.assert_right(number, answer)
