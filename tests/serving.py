"""Serves requests of mixed shapes from one model.

``tests/frontends/predictor/test_serving.py`` runs it.

python tests/serving.py WAY PROGRAM PARAMETERS REQUESTS

WAY: ``threads`` (8 clones of a predictor), ``spawned`` or ``forked`` (4 processes). Prints the
number of engine runs, the number of wrong answers, and the megabytes by which a process grew.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

CLONES, PROCESSES = 8, 4
BATCHES = (1, 2, 3, 5, 8)
SEEDS = 7


def megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def make(files: tuple[str, str]) -> Any:
    from paddle.inference import Config, create_predictor

    config = Config(*files)
    config.disable_glog_info()
    return create_predictor(config)


def picture(number: int) -> Any:
    batch, seed = BATCHES[number % len(BATCHES)], number % SEEDS
    return np.random.default_rng(seed).standard_normal((batch, 3, 13, 13), dtype="float32")


def answer(predictor: Any, number: int) -> Any:
    handle = predictor.get_input_handle("x")
    data = picture(number)
    handle.reshape(list(data.shape))
    handle.copy_from_cpu(data)
    predictor.run()
    return predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()


def expected_answers(files: tuple[str, str]) -> list[Any]:
    """Returns the answers of plain Paddle."""
    import paddle_ngraph

    with paddle_ngraph.use_ngraph(False):
        predictor = make(files)
        return [answer(predictor, number) for number in range(len(BATCHES) * SEEDS)]


def count_wrong(predictor: Any, expected: list[Any], first: int, count: int) -> int:
    wrong = 0
    for number in range(first, first + count):
        found, right = answer(predictor, number), expected[number % len(expected)]
        wrong += found.shape != right.shape or not np.allclose(found, right, rtol=2e-5, atol=2e-5)
    return wrong


def serve(
    files: tuple[str, str], expected: list[Any], first: int, count: int, clones: int, results: Any
) -> None:
    """Answers ``count`` requests in each of several threads; memory counts after a quarter."""
    import paddle_ngraph

    paddle_ngraph.enable()
    original = make(files)
    wrong: list[int] = []

    def run(predictor: Any, first: int, count: int) -> None:
        wrong.append(count_wrong(predictor, expected, first, count))

    def run_all(predictors: list[Any], count: int) -> None:
        threads = [
            threading.Thread(target=run, args=(predictor, first + 11 * number, count))
            for number, predictor in enumerate(predictors)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    predictors = [original, *(original.clone() for _ in range(clones - 1))]
    run_all(predictors, count // 4)
    before = megabytes()
    run_all(predictors, count - count // 4)
    grown = megabytes() - before
    results.put((paddle_ngraph.stats()["engine_runs"], len(wrong), sum(wrong), grown))


def in_processes(way: str, target: Any, shares: list[tuple[Any, ...]]) -> list[Any]:
    """Returns the results that ``target(*share, results)`` puts, each from a separate process."""
    context = multiprocessing.get_context("fork" if way == "forked" else "spawn")
    results = context.SimpleQueue()
    processes = [context.Process(target=target, args=(*share, results)) for share in shares]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return found


def put_expected(files: tuple[str, str], results: Any) -> None:
    """Computes the right answers in a process that ends then: a parent of forks has run nothing."""
    results.put(expected_answers(files))


def main(way: str, program: str, parameters: str, requests: str) -> None:
    import paddle_ngraph  # noqa: F401 - forked processes have it from here

    files, count = (program, parameters), int(requests)
    (expected,) = in_processes("spawned", put_expected, [(files,)])
    if way == "threads":
        shares = [(files, expected, 0, count // CLONES, CLONES)]
    else:
        shares = [(files, expected, 3 * i, count // PROCESSES, 1) for i in range(PROCESSES)]
    runs, parts, wrong, grown = zip(*in_processes(way, serve, shares))
    print(f"runs={sum(runs)} parts={sum(parts)} wrong={sum(wrong)} grown={max(grown):.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
