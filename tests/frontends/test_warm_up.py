"""Functions that are compiled ahead."""

from __future__ import annotations

import json

import numpy as np
import paddle
import pytest
from paddle.inference import Config, create_predictor

import paddle_ngraph
from paddle_ngraph import NgraphError, flags
from paddle_ngraph.__main__ import main
from tests.dynamic import dynamic_mode
from tests.frontends.executor.test_hook import save_model
from tests.programs import Program, chain, floats, linear_regression


@pytest.fixture(autouse=True)
def no_functions():
    """The cache of functions is empty, and no subgraph is too small for the engine."""
    paddle_ngraph.clear_cache()
    flags.set("ngraph_min_interval_us", 0)


def built_by(run) -> int:
    """The number of functions that a run needs beyond those that are there."""
    before = paddle_ngraph.stats()
    with paddle_ngraph.use_ngraph():
        run()
    after = paddle_ngraph.stats()
    assert after["engine_runs"] > before["engine_runs"]
    return after["functions_built"] - before["functions_built"]


def test_a_model_needs_no_build_for_these_shapes(tmp_path):
    prefix = save_model(tmp_path)
    found = paddle_ngraph.warm_up(prefix, [{"x": [4, 4]}])
    assert found.built == 1
    assert not paddle_ngraph.is_enabled()
    with paddle_ngraph.use_ngraph():
        predictor = create_predictor(Config(f"{prefix}.json", f"{prefix}.pdiparams"))

    def run() -> None:
        predictor.get_input_handle("x").copy_from_cpu(np.ones((4, 4), "float32"))
        predictor.run()

    assert built_by(run) == 0
    assert paddle_ngraph.warm_up(prefix, [[[4, 4]]]).built == 0


def test_a_program_needs_no_build_for_these_shapes():
    program = Program(chain)
    with paddle.static.scope_guard(program.scope):
        found = paddle_ngraph.warm_up(program.main, [{"x": [4, 4]}], program.fetches)
    assert found.built == 1
    assert built_by(lambda: program.run(x=floats(4, 4))) == 0


def test_a_program_that_trains_is_rejected_and_unchanged():
    program = Program(linear_regression)
    (name,) = (p.name for p in program.main.global_block().all_parameters() if len(p.shape) == 2)
    before = program.variable(name)
    feed = {"x": floats(4, 4), "y": floats(4, 1)}
    with (
        paddle.static.scope_guard(program.scope),
        pytest.raises(NgraphError, match="would take a step"),
    ):
        paddle_ngraph.warm_up(program.main, [feed], program.fetches)
    assert np.array_equal(program.variable(name), before)


def test_a_layer_is_left_as_it_was():
    with dynamic_mode():
        paddle.seed(3)
        layer = paddle.nn.Sequential(
            paddle.nn.Linear(8, 8), paddle.nn.BatchNorm1D(8), paddle.nn.Dropout(0.5)
        )
        layer[2].eval()
        state = {name: value.numpy() for name, value in layer.state_dict().items()}
        static = paddle.jit.to_static(layer)
        expected = paddle.rand([3]).numpy()
        paddle.seed(3)
        paddle.nn.Linear(8, 8)  # draws as above
        assert paddle_ngraph.warm_up(static, [[[4, 8]], [[6, 8]]]).built > 0
        assert np.array_equal(paddle.rand([3]).numpy(), expected)
        assert [each.training for each in layer.sublayers()] == [True, True, False]
        assert layer.training
        for name, value in layer.state_dict().items():
            assert np.array_equal(value.numpy(), state[name])
        layer.eval()
        with paddle.no_grad():
            assert built_by(lambda: static(paddle.to_tensor(floats(4, 8)))) == 0


def test_a_plain_function_takes_arrays():
    with dynamic_mode():
        function = paddle_ngraph.compile(lambda x, i: paddle.tanh(x @ x)[i])
        given = [floats(8, 8), np.array([1, 2])]
        assert paddle_ngraph.warm_up(function, [given]).built == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_fills_the_disk_cache(tmp_path, capsys, as_json):
    prefix = save_model(tmp_path)
    flags.set("ngraph_cache_dir", str(tmp_path / "cache"))
    flags.set("ngraph_cache_min_ms", 0)
    command = ["warm-up", prefix, "--shapes", "x=4x4", *(["--json"] if as_json else [])]
    assert main(command) == 0
    paddle_ngraph.clear_cache()
    first = capsys.readouterr().out
    assert main(command) == 0
    second = capsys.readouterr().out
    if as_json:
        assert json.loads(first)["built"] == 1
        assert json.loads(second)["loaded"] == 1
    else:
        assert "1 functions compiled, 0 loaded" in first
        assert "0 functions compiled, 1 loaded" in second


@pytest.mark.parametrize(
    ("target", "inputs", "words"),
    [
        ("no_such_model", [[[1]]], "no_such_model"),
        (3, [[[1]]], "warm_up"),
    ],
)
def test_bad_targets_are_one_sentence(target, inputs, words):
    with pytest.raises(NgraphError, match=words):
        paddle_ngraph.warm_up(target, inputs)
    assert not paddle_ngraph.is_enabled()


def test_unknown_names_and_impossible_shapes_are_one_sentence(tmp_path):
    prefix = save_model(tmp_path)
    with pytest.raises(NgraphError, match="inputs of the predictor are"):
        paddle_ngraph.warm_up(prefix, [{"of_nobody": [2, 2]}])
