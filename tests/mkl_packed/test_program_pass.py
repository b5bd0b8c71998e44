"""The program pass puts packed operators into existing programs."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import flags

from .comparing import MODES, Packs, Shape, layer, train_static


@pytest.fixture(autouse=True)
def static_graphs(provider):
    paddle.enable_static()
    yield
    flags.set("use_mkl_packed", True)


SHAPE = Shape(6, 24, 4, 5, layers=2, direction="bidirect")


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize("mode", MODES)
def test_rewritten_programs_train_equally(mode):
    native = train_static(mode, SHAPE, packed=False, engine=False, steps=50)
    with Packs() as packs:
        found = train_static(mode, SHAPE, packed=False, engine=True, steps=50)
    np.testing.assert_allclose(found, native, rtol=1e-4)
    assert packs.count == 2 * 50 * SHAPE.cells


@pytest.mark.slow("trains through many compiles")
def test_packed_layers_train_without_the_engine():
    native = train_static("LSTM", SHAPE, packed=False, engine=False, steps=5)
    with Packs() as packs:
        found = train_static("LSTM", SHAPE, packed=True, engine=False, steps=5)
    np.testing.assert_allclose(found, native, rtol=1e-5)
    assert packs.count == 2 * 5 * SHAPE.cells


@pytest.mark.slow("compiles many or large functions")
def test_dropout_samples_equal_numbers():
    options = {"steps": 5, "dropout": 0.5}
    native = train_static("GRU", SHAPE, packed=False, engine=False, **options)
    found = train_static("GRU", SHAPE, packed=False, engine=True, **options)
    np.testing.assert_allclose(found, native, rtol=1e-5)


@pytest.mark.slow("compiles many or large functions")
def test_the_flag_leaves_layers_to_the_engine():
    flags.set("use_mkl_packed", False)
    with Packs() as packs:
        train_static("LSTM", SHAPE, packed=False, engine=True, steps=2)
    assert packs.count == 0


@pytest.mark.slow("compiles many or large functions")
def test_a_layer_that_opts_out_is_unchanged():
    with Packs() as packs:
        train_static("LSTM", SHAPE, packed=True, engine=True, steps=2, use_mkl_packed=False)
    assert packs.count == 0


def build(**options):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [-1, 5, 6], "float32")
        lengths = paddle.static.data("lengths", [-1], "int32")
        out, (h, _) = layer("LSTM", SHAPE, **options)(x, sequence_length=lengths)
    return main, startup, [out, h]


def test_explain_counts_packed_operators():
    main, _, _ = build()
    report = paddle_ngraph.explain(main)
    assert report.packed == 1
    assert "1 recurrent layer run with packed weights" in str(report)
    assert not any("mkl_packed" in op.type for op in report.native)
    assert "pd_op.rnn" in str(main), "explain changes the program"


def test_inference_packs_once():
    # Without eval(): operators without gradient and dropout compute the same.
    main, startup, fetches = build()
    executor = paddle.static.Executor(paddle.CPUPlace())
    random = np.random.default_rng(0)
    feed = {
        "x": random.standard_normal((4, 5, 6)).astype(np.float32),
        "lengths": np.array([5, 1, 3, 2], np.int32),
    }
    with paddle.static.scope_guard(paddle.static.Scope()):
        executor.run(startup)
        native = executor.run(main, feed=feed, fetch_list=fetches)
        with Packs() as packs, paddle_ngraph.use_ngraph():
            for _ in range(5):
                found = executor.run(main, feed=feed, fetch_list=fetches)
    for a, b in zip(native, found):
        np.testing.assert_allclose(b, a, atol=1e-6)
    assert packs.count == SHAPE.cells
