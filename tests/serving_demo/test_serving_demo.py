"""The servers of demos/serving_demo under load. ``make serve-test`` runs these.

REQUESTS and PAGES in the environment are the numbers of requests.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("gunicorn")
pytest.importorskip("paddleocr")

from demos.serving_demo import load, models, trial
from demos.serving_demo.settings import NATIVE

COUNTS = {
    "classifier": int(os.environ.get("REQUESTS", 400)),
    "ocr": int(os.environ.get("PAGES", 20)),
}
AT_ONCE = 4
KILLS = 4
MOST_GROWTH_MB = 32
APPLICATIONS = tuple(models.NETWORKS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def expected(folder):
    """Native Paddle's answers to each request of an application."""
    known = {}

    def answers(application):
        if application not in known:
            requests = trial.bodies(application)
            with trial.served(application, folder, engine=NATIVE) as port:
                known[application] = trial.send(port, requests, len(requests), 1)
                assert trial.metrics(port)["ngraph_engine_runs_total"] == 0
            assert not known[application].failures
        return known[application]

    return answers


@pytest.fixture(
    params=[(a, s) for a in APPLICATIONS for s in ("gunicorn", "uvicorn")], scope="module"
)
def server(request, folder):
    """A server: its application and port, from the moment at which it is ready."""
    application, name = request.param
    with trial.served(application, folder, name) as port:
        yield application, port


def test_a_worker_has_its_functions_before_the_first_request(server):
    application, port = server
    values = trial.metrics(port)
    shapes = sum(len(models.SHAPES[network]) for network in models.NETWORKS[application])
    workers = len(load.alive_megabytes(values))
    assert workers >= 1
    assert values["ngraph_functions_loaded_total"] == workers * shapes
    assert values["ngraph_functions_built_total"] == 0
    assert values["request_seconds_count"] == 0


def test_answers_are_native_and_memory_flat(server, expected):
    application, port = server
    requests, count = trial.bodies(application), COUNTS[application]
    tenth = max(count // 10, 2 * len(requests))
    trial.require_equal(trial.send(port, requests, tenth, AT_ONCE), expected(application))
    before = trial.metrics(port)
    found = trial.send(port, requests, count, AT_ONCE)
    after = trial.metrics(port)
    assert (found.failures, len(found.milliseconds)) == ([], count)
    trial.require_equal(found, expected(application))
    assert after["ngraph_engine_runs_total"] - before["ngraph_engine_runs_total"] >= count
    assert after["ngraph_native_runs_total"] == after["ngraph_functions_built_total"] == 0
    earlier, later = load.alive_megabytes(before), load.alive_megabytes(after)
    assert earlier.keys() == later.keys()
    assert max(later[worker] - earlier[worker] for worker in later) < MOST_GROWTH_MB


def test_no_request_is_lost_when_workers_are_killed(server, expected):
    application, port = server
    requests = trial.bodies(application)
    count = max(COUNTS[application], 4 * KILLS)
    found = trial.send(port, requests, count, AT_ONCE, kill_every=count // KILLS)
    assert (found.failures, len(found.milliseconds)) == ([], count)
    trial.require_equal(found, expected(application))
    assert found.killed
    assert not set(found.killed) & load.alive_megabytes(trial.metrics(port)).keys()
