"""Several executors on one scope, in threads: torn numbers at worst, as natively, and no crash."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
import numpy as np, paddle, paddle_ngraph

steps, threads = int(sys.argv[1]), sys.argv[2]
paddle.enable_static()
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": "",
                  "FLAGS_ngraph_num_threads": int(threads)})

def net(trains, number):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        h = x = paddle.static.data(f"x{number}", [-1, 64], "float32")
        for i in range(6):
            h = paddle.nn.functional.relu(paddle.static.nn.fc(
                h, 64 if i == 5 else 96, weight_attr=paddle.ParamAttr(name=f"w{i}"),
                bias_attr=paddle.ParamAttr(name=f"b{i}")))
        loss = paddle.mean(paddle.square(h - x))
        if trains:
            paddle.optimizer.Momentum(1e-4, 0.9).minimize(loss)
    return main, startup, loss

jobs = [net(number < 2, number) for number in range(4)]
scope = paddle.static.global_scope()
paddle.static.Executor(paddle.CPUPlace()).run(jobs[0][1])
paddle_ngraph.enable()
absurd, runs = [], [0] * len(jobs)

def work(program, _, loss, number):
    paddle.enable_static()
    executor, random = paddle.static.Executor(paddle.CPUPlace()), np.random.default_rng(number)
    for _ in range(steps):
        feed = {f"x{number}": random.random((4 + runs[number] % 3 * 4, 64), dtype="float32")}
        (value,) = executor.run(program, feed=feed, fetch_list=[loss], scope=scope)
        runs[number] += 1
        if not np.isfinite(value).all() or abs(value).max() > 10:
            absurd.append(float(np.max(value)))

workers = [threading.Thread(target=work, args=(*job, number)) for number, job in enumerate(jobs)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert paddle_ngraph.stats()["engine_runs"] >= sum(runs), "the engine did not run"
assert min(runs) == steps and not absurd, (runs, absurd[:3])
"""


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("threads", ["0", "3"])
def test_training_and_inference_side_by_side(threads: str) -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, "400", threads],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr[-2000:]
