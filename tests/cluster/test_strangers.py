"""Strangers at the port of a job's store, under Ray: they do not join, and disturb nobody."""

from __future__ import annotations

import pytest

from paddle_ngraph.distributed.connections import SECRET_VARIABLE
from paddle_ngraph.distributed.reports import JOB_VARIABLE
from tests import jobs
from tests.cluster import machines, strangers
from tests.cluster.machines import Machines
from tests.cluster.test_training import SCRIPT, launched, losses, wait_for

pytest.importorskip("ray", reason="make cluster has an environment with Ray")
pytestmark = pytest.mark.skipif(
    bool(machines.why_impossible()), reason=machines.why_impossible() or "none"
)
JOINS = '    """Joins the job in the thread of the training loop."""\n'
# Rank 0 describes its job, and waits at its port for rank 1, which waits for the strangers.
HELD = """
    import time
    if os.environ["PADDLE_TRAINER_ID"] == "0":
        names = ["PADDLE_MASTER", "{job}", "{secret}"]
        with open("{folder}/job", "w") as file:
            file.write(" ".join([str(os.getpid()), *map(os.environ.get, names)]) + "\\n")
    while os.environ["PADDLE_TRAINER_ID"] == "1" and not os.path.exists("{folder}/go"):
        time.sleep(0.05)
"""


def test_strangers_at_the_store_of_ranks_under_ray(tmp_path):
    expected = launched(tmp_path / "launched", "dynamic")
    folder = tmp_path / "ray"
    folder.mkdir()
    module = jobs.ROOT / "paddle_ngraph" / "ray" / "worker.py"
    held = HELD.format(folder=folder, job=JOB_VARIABLE, secret=SECRET_VARIABLE)
    holding = tmp_path / "worker.py"
    text = module.read_text()
    assert text.count(JOINS) == 1
    holding.write_text(text.replace(JOINS, JOINS + held))
    job = folder / "job"
    with Machines(tmp_path, [1, 1]) as cluster:
        for number in (1, 2):
            cluster.before_start[number] = f"mount --bind {holding} {module}"
        cluster.start(0, 1, 2)
        driver = cluster.run(SCRIPT, folder, "--network", "dynamic")
        wait_for(lambda: job.exists() and job.read_text().endswith("\n"), driver)
        pid, master, *known = job.read_text().split()
        host, _, port = master.partition(":")
        assert host in (cluster.address(1), cluster.address(2))
        wait_for(lambda: master in jobs.listening(int(pid)), driver)
        arguments = ["-m", "tests.cluster.strangers", host, port, *known]
        stranger = cluster.run_python(*arguments, name="strangers")
        wait_for(lambda: strangers.SENT in stranger.output(), stranger)
        assert stranger.output().count("has another secret") == 2, stranger.output()
        (folder / "go").touch()
        assert driver.wait() == 0, driver.output()[-6000:]
        assert stranger.wait() == 0 and strangers.CLOSED in stranger.output(), stranger.output()
    for rank in range(2):
        assert losses(folder, rank) == losses(expected, rank)
