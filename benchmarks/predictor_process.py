"""One process with a predictor, as in user code; ``benchmarks.native`` runs it.

    python predictor_process.py WAY MODEL FEEDS RUNS

This project is imported only if WAY is the engine. Prints the median time of a run in ms, the peak
memory in MB, and the first elements of each result, as JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ENGINE, INFERENCE = "engine in Python", "Paddle Inference"
SHOWN = 100  # elements of a result


def answer(way: str, model: str, feeds: str, runs: int) -> dict[str, Any]:
    """Runs a predictor once, then ``runs`` times with timing; returns the data to print."""
    if way == ENGINE:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        import paddle_ngraph

        paddle_ngraph.enable()
    from paddle.inference import Config, create_predictor

    config = Config(model, str(Path(model).with_suffix(".pdiparams")))
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(len(os.sched_getaffinity(0)))
    predictor = create_predictor(config)
    with np.load(feeds) as arrays:
        for name in predictor.get_input_names():
            handle = predictor.get_input_handle(name)
            handle.reshape(list(arrays[name].shape))
            handle.copy_from_cpu(arrays[name])

    def run() -> list[Any]:
        predictor.run()
        names = predictor.get_output_names()
        return [predictor.get_output_handle(name).copy_to_cpu() for name in names]

    values = [array.ravel()[:SHOWN].tolist() for array in run()]
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    if way == ENGINE and paddle_ngraph.stats()["engine_runs"] == 0:
        raise RuntimeError("the engine did not run")
    status = Path("/proc/self/status").read_text()
    memory = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return {"run": statistics.median(times or [0.0]), "memory": memory, "values": values}


if __name__ == "__main__":
    _, given_way, given_model, given_feeds, given_runs = sys.argv
    print(json.dumps(answer(given_way, given_model, given_feeds, int(given_runs))))
