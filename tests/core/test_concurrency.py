"""Concurrent runs: each has some of the threads exclusively, and every result is right."""

from __future__ import annotations

import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paddle
import pytest
from paddle.inference import Config, create_predictor

import paddle_ngraph
from paddle_ngraph import _core
from tests.frontends.predictor.test_hook import save
from tests.programs import floats

pytestmark = pytest.mark.usefixtures("small_intervals_pay")
CALLERS, CALLS = 8, 30
SHAPES = [(1, 3, 90, 90), (2, 3, 90, 90), (3, 3, 83, 97)]


# Each test has a new engine, which has seen no other runs.
NUMBERS = itertools.count(1)


def convolutions():
    x = paddle.static.data("x", [-1, 3, -1, -1], "float32")
    hidden = paddle.nn.Conv2D(3, 64, 3, padding=1)(x * float(next(NUMBERS)))
    hidden = paddle.nn.functional.relu(hidden)
    hidden = paddle.nn.functional.relu(paddle.nn.Conv2D(64, 64, 3, padding=1)(hidden))
    return [x], [paddle.mean(paddle.nn.Conv2D(64, 5, 1)(hidden), axis=[2, 3])]


def small():
    x = paddle.static.data("x", [-1, 6], "float32")
    return [x], [paddle.nn.Linear(6, 3)(x * float(next(NUMBERS)))]


def lookup():
    ids = paddle.static.data("x", [-1, 50], "int64")
    words = paddle.nn.Embedding(10, 300)(ids) * float(next(NUMBERS))
    hidden = paddle.nn.Linear(300, 2000)(words)
    return [ids], [paddle.nn.Linear(2000, 4)(paddle.nn.functional.relu(hidden))]


@pytest.fixture(params=[1, 2, 3, 8])
def threads(request):
    before = paddle.get_flags(["FLAGS_ngraph_num_threads"])
    paddle.set_flags({"FLAGS_ngraph_num_threads": request.param})
    yield request.param
    paddle.set_flags(before)


def made(tmp_path, build):
    config = Config(*save(tmp_path, build))
    config.disable_glog_info()
    return create_predictor(config)


def answer(predictor, data):
    handle = predictor.get_input_handle("x")
    handle.reshape(list(data.shape))
    handle.copy_from_cpu(data)
    predictor.run()
    return predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()


def overlapping(predictor, work, callers=CALLERS):
    """Returns the results of ``work(clone, number)`` in threads that start together."""
    clones = [predictor.clone() for _ in range(callers)]
    barrier = threading.Barrier(callers)

    def run(number):
        barrier.wait(60)
        return work(clones[number], number)

    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(run, range(callers)))


def numbers_of_groups(threads):
    """The possible numbers of groups: powers of two, up to one for each core."""
    paddle.set_flags({"FLAGS_ngraph_num_threads": 0})  # all within affinity and quotas
    cores = _core.num_threads()
    paddle.set_flags({"FLAGS_ngraph_num_threads": threads})
    return int(math.log2(min(CALLERS, max(threads, cores))))


def built():
    return paddle_ngraph.stats()["functions_built"]


@pytest.mark.slow("runs several threads for a while")
def test_concurrent_runs_share_the_threads(tmp_path, threads):
    pictures = [floats(*shape, seed=number) for number, shape in enumerate(SHAPES)]
    predictor = made(tmp_path, convolutions)
    expected = [answer(predictor, each) for each in pictures]
    paddle_ngraph.enable()
    for data, right in zip(pictures, expected):
        np.testing.assert_allclose(answer(predictor, data), right, rtol=2e-5, atol=2e-5)
    alone = built()

    def work(clone, number):
        for call in range(CALLS):
            at = (number + call) % len(pictures)
            np.testing.assert_allclose(
                answer(clone, pictures[at]), expected[at], rtol=2e-5, atol=2e-5
            )

    overlapping(predictor, work)
    most = numbers_of_groups(threads)
    assert (built() > alone) == (most > 0), "a function of groups of threads"
    runs = paddle_ngraph.stats()["engine_runs"]
    assert runs == len(pictures) + CALLERS * CALLS
    several = built()
    for _ in range(CALLS):
        answer(predictor, pictures[0])
    assert built() == several, "alone again, the first function is still there"
    overlapping(predictor, work)
    assert built() <= alone * (1 + most)


@pytest.mark.slow("compiles many or large functions")
def test_sequential_callers_share_no_threads(tmp_path, threads):
    paddle_ngraph.enable()
    predictor, lock, data = made(tmp_path, convolutions), threading.Lock(), floats(*SHAPES[0])

    def work(clone, number):
        for _ in range(CALLS):
            with lock:
                answer(clone, data)

    overlapping(predictor, work)
    assert built() == 1


def test_small_programs_have_one_function(tmp_path, threads):
    paddle_ngraph.enable()
    predictor, data = made(tmp_path, small), floats(4, 6)
    right = answer(predictor, data)
    found = overlapping(predictor, lambda clone, number: [answer(clone, data) for _ in range(400)])
    assert all(np.array_equal(each, right) for answers in found for each in answers)
    assert built() == 1


@pytest.mark.slow("compiles many or large functions")
def test_errors_of_operators_reach_their_caller(tmp_path, threads):
    """Each caller gets the error of its own run, and no other."""
    paddle_ngraph.enable()
    predictor = made(tmp_path, lookup)
    ids = np.arange(50).reshape(1, 50) % 10
    right = answer(predictor, ids)
    wrong = ids.copy()
    wrong[0, 7] = 10

    def work(clone, number):
        errors = 0
        for call in range(CALLS):
            if (number + call) % 5:
                np.testing.assert_allclose(answer(clone, ids), right, rtol=2e-5, atol=2e-5)
                continue
            try:
                answer(clone, wrong)
            except Exception as error:
                assert "range" in str(error) or "Variable value" in str(error)
                errors += 1
        return errors

    alone = built()
    assert sum(overlapping(predictor, work)) == CALLERS * CALLS // 5
    assert (built() > alone) == (numbers_of_groups(threads) > 0)
