"""Many models in one process, alternating and swapped under load: right answers, few functions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle.inference import Config, create_predictor

import paddle_ngraph
from paddle_ngraph import caches, flags
from tests.programs import at_once, floats

WIDTH = 8
FUNCTIONS = 4
SERVERS = 3
VERSIONS = 6

Request = Callable[[Path, np.ndarray], np.ndarray]


def _weights(model: int) -> np.ndarray:
    return np.random.default_rng(model).normal(size=(WIDTH, 3)).astype("float32")


def _factor(model: int) -> float:
    # Of two models one has a program of its own, the other differs from the first in weights only.
    return 1.0 if model % 2 == 0 else 1.0 + model


def _answer(model: int, x: np.ndarray) -> np.ndarray:
    answer: np.ndarray = np.tanh(x @ _weights(model) * np.float32(_factor(model)))
    return answer


def _save(model: int, prefix: Path) -> None:
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        x = paddle.static.data("x", [-1, WIDTH], "float32")
        weight = paddle.static.create_parameter([WIDTH, 3], "float32", "weight")
        result = paddle.nn.functional.tanh(paddle.matmul(x, weight) * _factor(model))
        executor.run(startup)
        scope.find_var("weight").get_tensor().set(_weights(model), paddle.CPUPlace())
        paddle.static.save_inference_model(str(prefix), [x], [result], executor, program=main)


def _by_executor(prefix: Path, x: np.ndarray) -> np.ndarray:
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()):
        program, feeds, fetches = paddle.static.load_inference_model(str(prefix), executor)
        (out,) = executor.run(program, feed={feeds[0]: x}, fetch_list=fetches)
    return np.array(out)


def _by_predictor(prefix: Path, x: np.ndarray) -> np.ndarray:
    config = Config(f"{prefix}.json", f"{prefix}.pdiparams")
    config.disable_mkldnn()
    config.disable_glog_info()
    predictor = create_predictor(config)
    predictor.get_input_handle("x").copy_from_cpu(x)
    predictor.run()
    (name,) = predictor.get_output_names()
    return np.array(predictor.get_output_handle(name).copy_to_cpu())


@pytest.fixture
def few_functions() -> Iterator[None]:
    before = flags.get("ngraph_cache_size")
    flags.set("ngraph_cache_size", FUNCTIONS)
    yield
    flags.set("ngraph_cache_size", before)


@pytest.mark.usefixtures("small_intervals_pay", "few_functions")
@pytest.mark.parametrize("request_of", [_by_executor, _by_predictor])
@pytest.mark.parametrize(
    "count",
    [FUNCTIONS + 2, pytest.param(100, marks=pytest.mark.slow("compiles 200 functions"))],
)
def test_alternating_models(request_of: Request, count: int, tmp_path: Path) -> None:
    paddle_ngraph.clear_cache()
    for model in range(count):
        _save(model, tmp_path / str(model))
    before = paddle_ngraph.stats()["engine_runs"]
    with paddle_ngraph.use_ngraph():
        for iteration in range(2):
            for model in range(count):
                x = floats(2 + iteration, WIDTH) + np.float32(model)
                found = request_of(tmp_path / str(model), x)
                np.testing.assert_allclose(found, _answer(model, x), rtol=1e-5, atol=1e-6)
                assert caches.sizes()["functions"] <= FUNCTIONS
    assert paddle_ngraph.stats()["engine_runs"] == before + 2 * count


@pytest.mark.usefixtures("small_intervals_pay", "few_functions")
def test_weights_that_are_swapped_under_load(tmp_path: Path) -> None:
    served, versions = tmp_path / "served", range(0, 2 * VERSIONS, 2)  # of one program
    for version in versions:
        _save(version, tmp_path / str(version))
    _save(versions[0], served)
    x = floats(4, WIDTH)
    answers = [_answer(version, x) for version in versions]
    is_last = threading.Event()
    found: list[np.ndarray] = []

    def work(number: int) -> None:
        if number == 0:
            try:
                for version in versions:
                    os.replace(tmp_path / f"{version}.pdiparams", served.with_suffix(".pdiparams"))
                    _by_predictor(served, x)
            finally:
                is_last.set()
            return
        while not is_last.is_set():
            found.append(_by_predictor(served, x))

    with paddle_ngraph.use_ngraph():
        at_once(work, 1 + SERVERS)
        np.testing.assert_allclose(_by_predictor(served, x), answers[-1], rtol=1e-5, atol=1e-6)
    assert paddle_ngraph.stats()["engine_runs"] > VERSIONS
    for each in found:
        assert any(np.allclose(each, answer, rtol=1e-5, atol=1e-6) for answer in answers)
