"""Servers on a cluster: no request is lost and none wrong when replicas and machines are."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import paddle
import pytest

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


def test_no_request_is_lost_when_a_replica_is_killed_and_a_machine_switched_off(tmp_path):
    saved_network(tmp_path / "model")
    generator = np.random.default_rng(2)
    requests = [generator.normal(size=(1 + n % 3, 8)).astype("float32") for n in range(12)]
    expected = [native.result(tmp_path / "model", {"x": each}) for each in requests]
    lines = (json.dumps({"x": each.tolist()}) for each in requests)
    (tmp_path / "requests.jsonl").write_text("\n".join(lines))
    with Machines(tmp_path, [1, 1]) as cluster:
        cluster.start(0, 1, 2)
        driver = cluster.run(SCRIPT, tmp_path)
        end = time.monotonic() + 400
        while not (tmp_path / "wish").exists():
            assert driver.process.poll() is None and time.monotonic() < end, driver.output()[-6000:]
            time.sleep(0.05)
        cluster.switch_off(2)
        (tmp_path / "switched").touch()
        assert driver.wait() == 0, driver.output()[-6000:]
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["failures"] == [] and len(outcome["killed"]) == 1
    assert len(outcome["malformed"]) == 6 and set(outcome["malformed"]) == {400}
    answers = [answer for _, answer in outcome["answers"]]
    assert len({answer["pid"] for answer in answers}) >= 2
    assert {answer["threads"] for answer in answers} == {1}
    assert all(answer["engine"] > 0 and answer["built"] == 0 for answer in answers)
    assert max(answer["batch"] for answer in answers) > 1
    for number, answer in outcome["answers"]:
        (name,) = answer.keys() - {"pid", "batch", "built", "engine", "threads"}
        np.testing.assert_allclose(answer[name], expected[number], rtol=1e-5, atol=1e-5)
