"""All-reduces of two machines with two ranks each, on links of 100 Mbit/s: no Ray is needed."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from tests.cluster import machines
from tests.cluster.machines import Machines

pytestmark = [
    pytest.mark.skipif(bool(machines.why_impossible()), reason=machines.why_impossible() or "none"),
    pytest.mark.slow("starts four ranks, on links that are slow"),
]
SHAPE = ["tbf", "rate", "100mbit", "burst", "64kb", "latency", "100ms"]
SCRIPT = """
import json, sys, time
import numpy as np
import paddle
from paddle import nn

import paddle_ngraph
from paddle_ngraph import distributed

folder, choice = sys.argv[1:]
paddle.enable_static()
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
paddle_ngraph.enable("training")
distributed.init(seed=7)
x, y = paddle.static.data("x", [-1, 64]), paddle.static.data("y", [-1, 1])
hidden = paddle.tanh(nn.Linear(64, 12000)(x))
loss = nn.functional.mse_loss(nn.Linear(12000, 1)(hidden), y)
optimizer = distributed.distributed_optimizer(paddle.optimizer.SGD(1e-4), bucket_mb=0.06)
optimizer.minimize(loss)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
program = paddle.static.default_main_program()
generator = np.random.default_rng(3)
feeds = [generator.normal(size=(8, 64)).astype("float32") for _ in range(5)]
feeds = [distributed.share({"x": each, "y": each[:, :1] * each[:, 1:2]}) for each in feeds]
distributed.prepare(executor, program, feeds[0], [loss], all_reduce=choice)
losses, taken = [], []
for feed in feeds:
    begun = time.perf_counter()
    losses.append(float(executor.run(program, feed=feed, fetch_list=[loss])[0]))
    taken.append(time.perf_counter() - begun)
ops = program.global_block().ops
found = {
    "losses": losses,
    "seconds": sorted(taken)[len(taken) // 2],
    "collectives": sum(op.name() == "pd_op.all_reduce_" for op in ops),
    "engine": paddle_ngraph.stats()["engine_runs"],
}
with open(f"{folder}/{choice}_{distributed.rank()}", "w") as file:
    json.dump(found, file)
distributed.barrier()
"""


def run(cluster: Machines, folder: Path, choice: str) -> list[dict]:
    """The findings of each of four ranks, on machines 1 and 2."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    job = ["--nnodes", "2", "--master", f"{cluster.address(1)}:6070", "--nproc", "2"]
    started = []
    for node in range(2):
        place = ["--node-rank", node, "--log-dir", folder / f"log_{choice}_{node}"]
        command = ["-m", "paddle_ngraph", "launch", *job, *place, script, folder, choice]
        name = f"{choice}_{node}".replace(" ", "_")
        started.append(cluster.run_python(*command, name=name, number=node + 1))
    for each in started:
        assert each.wait() == 0, each.output()[-6000:]
    return [json.loads((folder / f"{choice}_{rank}").read_text()) for rank in range(4)]


def test_two_levels_are_chosen_on_a_slow_network_and_faster(tmp_path, monkeypatch):
    monkeypatch.setenv("PADDLE_NGRAPH_SECRET", secrets.token_hex(16))
    with Machines(tmp_path, [1, 1]) as cluster:
        for number in (1, 2):
            cluster.shape(number, *SHAPE)
        ring, chosen = (run(cluster, tmp_path, each) for each in ("ring", "measured"))
    assert {each["collectives"] for each in ring} == {3}
    assert {each["collectives"] for each in chosen} == {3 * 3}
    assert all(each["engine"] > 0 for each in ring + chosen)
    for one, other in zip(ring, chosen):
        assert one["losses"] == pytest.approx(other["losses"], rel=1e-5)
    # 3 MB: 1.5 times as many bytes cross each link in a ring as in two levels.
    seconds = [max(each["seconds"] for each in found) for found in (ring, chosen)]
    print("ring, two levels:", *seconds)
    assert seconds[1] < seconds[0]
