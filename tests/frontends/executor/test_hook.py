"""Switching the engine on and off, both program formats, and bad inputs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.conversion import build as build_module
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.ir.graph import Graph
from tests.programs import Program, at_once, chain, floats, linear_regression

X = np.full((2, 4), 0.5, "float32")


def runs_of(program, **feed):
    paddle_ngraph.reset_stats()
    program.run_as_is(**feed)
    return paddle_ngraph.stats()["engine_runs"]


TRACE_RUN = "FLAGS_enable_pir_in_executor_trace_run"


def chain_with_erfinv():
    """A chain with an operator in the middle that falls back."""
    x = paddle.static.data("x", [-1, 4], "float32")
    return paddle.erfinv(paddle.tanh(x) * 0.5) * 2.0 + 1.0


@pytest.mark.parametrize("build, stays", [(chain, True), (chain_with_erfinv, False)])
def test_a_program_of_engine_operators_stays_in_the_thread_that_runs_it(build, stays, monkeypatch):
    threads = []

    def build_model(*args):
        threads.append(threading.current_thread().name)
        return build_as_ever(*args)

    build_as_ever = build_module.build_model
    monkeypatch.setattr(build_module, "build_model", build_model)
    # The main thread waits for a thread that builds, in a first run wherever the operator runs.
    # Others build themselves.
    builders = (threading.current_thread().name, "paddle_ngraph build")
    program = Program(build)
    paddle_ngraph.clear_cache()
    for is_first in (True, False):
        threads.clear()
        program.both(x=X if is_first else floats(3, 4))
        assert threads
        assert all((thread in builders) == (stays or is_first) for thread in threads)
    assert paddle.get_flags([TRACE_RUN]) == {TRACE_RUN: False}


def test_a_flag_of_paddle_is_on_while_anybody_needs_it():
    flag = _core.FlagOverride("enable_pir_in_executor_trace_run")
    with flag:
        with flag:
            pass
        assert paddle.get_flags([TRACE_RUN]) == {TRACE_RUN: True}
    assert paddle.get_flags([TRACE_RUN]) == {TRACE_RUN: False}
    paddle.set_flags({TRACE_RUN: True})
    try:
        with flag:
            pass
        assert paddle.get_flags([TRACE_RUN]) == {TRACE_RUN: True}
    finally:
        paddle.set_flags({TRACE_RUN: False})
    with pytest.raises(ValueError, match="FLAGS_benchmark"):
        _core.FlagOverride("benchmark")


# -- switching ---------------------------------------------------------------------------------


def test_enable_and_disable_act_at_the_next_run():
    program = Program(chain)
    assert runs_of(program, x=X) == 0
    paddle_ngraph.enable()
    assert runs_of(program, x=X) == 1
    paddle_ngraph.disable()
    assert runs_of(program, x=X) == 0
    paddle_ngraph.enable()
    assert runs_of(program, x=X) == 1


def test_the_context_acts_on_programs_that_ran_before():
    program = Program(chain)
    assert runs_of(program, x=X) == 0
    with paddle_ngraph.use_ngraph(True):
        assert runs_of(program, x=X) == 1
    assert runs_of(program, x=X) == 0


def test_paddle_set_flags_acts_at_the_next_run():
    program = Program(chain)
    paddle.set_flags({"FLAGS_use_ngraph": True})
    assert runs_of(program, x=X) == 1
    paddle.set_flags({"FLAGS_use_ngraph": False})
    assert runs_of(program, x=X) == 0


SCRIPT = textwrap.dedent(
    """
    import sys
    import numpy as np
    import paddle
    {extra}
    paddle.enable_static()
    x = paddle.static.data("x", [-1, 4], "float32")
    y = paddle.exp(x) + 1.0
    executor = paddle.static.Executor(paddle.CPUPlace())
    (out,) = executor.run(feed={{"x": np.zeros((2, 4), "float32")}}, fetch_list=[y])
    assert (out == 2).all()
    import paddle_ngraph
    print("runs", paddle_ngraph.stats()["engine_runs"], *sys.argv[1:])
    """
)


def script_output(tmp_path, *command, extra="", **environment):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(extra=extra))
    found = subprocess.run(
        [sys.executable, *command, str(script), "first", "--second"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.slow("starts a process")
def test_an_executor_older_than_the_import_is_switched(tmp_path):
    script = tmp_path / "late.py"
    script.write_text(
        textwrap.dedent(
            """
            import numpy as np
            import paddle
            paddle.enable_static()
            x = paddle.static.data("x", [-1, 4], "float32")
            y = paddle.exp(x) + 1.0
            executor = paddle.static.Executor(paddle.CPUPlace())
            feed = {"x": np.zeros((2, 4), "float32")}
            executor.run(feed=feed, fetch_list=[y])
            import paddle_ngraph
            for engine in (False, True, True, False):
                with paddle_ngraph.use_ngraph(engine):
                    (out,) = executor.run(feed=feed, fetch_list=[y])
                assert (out == 2).all()
            print("runs", paddle_ngraph.stats()["engine_runs"])
            """
        )
    )
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "runs 2" in found.stdout


def test_the_environment_and_an_import_switch_it_on(tmp_path):
    output = script_output(tmp_path, extra="import paddle_ngraph", FLAGS_use_ngraph="1")
    assert "runs 1 first --second" in output


@pytest.mark.slow("starts a process")
def test_without_the_flag_an_import_changes_nothing(tmp_path):
    assert "runs 0" in script_output(tmp_path, extra="import paddle_ngraph")


@pytest.mark.slow("starts a process")
def test_an_unchanged_script_runs_through_the_command_line(tmp_path):
    assert "runs 1 first --second" in script_output(tmp_path, "-m", "paddle_ngraph", "run")


# -- both program forms ------------------------------------------------------------------------


def test_program_desc_trains_through_the_engine():
    with paddle.pir_utils.OldIrGuard():
        losses = {}
        for engine in (False, True):
            program = Program(linear_regression)
            paddle_ngraph.reset_stats()
            losses[engine] = [
                program.run(engine, x=floats(8, 4, seed=i), y=floats(8, 1))[0] for i in range(5)
            ]
            assert (paddle_ngraph.stats()["engine_runs"] >= 5) is engine
        np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)


def twice_the_same():
    x = paddle.static.data("x", [-1, 4], "float32")
    out = paddle.nn.functional.relu(x)
    return [out, out, x]


def test_program_desc_with_a_variable_fetched_twice():
    with paddle.pir_utils.OldIrGuard():
        assert all(value.shape == (2, 4) for value in Program(twice_the_same).both(x=floats(2, 4)))


def distinct():
    """Runs in Paddle alone."""
    return [paddle.unique(paddle.static.data("x", [-1, 4], "float32"))]


@pytest.mark.slow("runs several threads for a while")
def test_program_desc_in_several_threads():
    def work(number):
        program, expected = jobs[number]
        for feed, value in zip(feeds, expected):
            (found,) = program.executor.run(
                program.main, feed=dict(feed), fetch_list=program.fetches, scope=program.scope
            )
            np.testing.assert_allclose(found, value, rtol=1e-5)

    jobs = []
    with paddle.pir_utils.OldIrGuard():
        feeds = [{"x": floats(1 + i % 7, 4), "y": floats(1 + i % 7, 1)} for i in range(40)]
        for make in (linear_regression, linear_regression, linear_regression, distinct):
            with paddle_ngraph.use_ngraph(False):
                native = Program(make)
                expected = [native.run(False, **feed)[0] for feed in feeds]
            jobs.append((Program(make), expected))
        paddle_ngraph.enable()
        at_once(work, len(jobs))
    assert paddle_ngraph.stats()["engine_runs"] >= 3 * len(feeds)


def plain_chain():
    """``relu(x) * 2 + 1``, of operators that old-style programs have too."""
    x = paddle.static.data("x", [-1, 4], "float32")
    return paddle.nn.functional.relu(x) * 2.0 + 1.0


def save_model(folder, build=plain_chain):
    program = Program(build)
    with paddle.static.scope_guard(program.scope):
        data = program.main.global_block()
        feed = [
            data.var("x")
            if hasattr(data, "var")
            else next(op.result(0) for op in data.ops if op.name() == "pd_op.data")
        ]
        paddle.static.save_inference_model(
            str(folder / "model"), feed, program.fetches, program.executor, program=program.main
        )
    return str(folder / "model")


def predictor_of(prefix, onednn=True):
    """A predictor that has the pass run by its name."""
    config = paddle.inference.Config(prefix + ".json", prefix + ".pdiparams")
    config.disable_gpu()
    if not onednn:
        config.disable_mkldnn()
    config.enable_custom_passes(["ngraph_pass"])
    return paddle.inference.create_predictor(config)


def predict(predictor, x):
    predictor.get_input_handle(predictor.get_input_names()[0]).copy_from_cpu(x)
    predictor.run()
    return predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()


def run_model(prefix):
    executor = paddle.static.Executor(paddle.CPUPlace())
    program, names, fetches = paddle.static.load_inference_model(prefix, executor)
    paddle_ngraph.reset_stats()
    results = {}
    for engine in (False, True):
        with paddle_ngraph.use_ngraph(engine):
            results[engine] = executor.run(program, feed={names[0]: X}, fetch_list=fetches)[0]
    assert paddle_ngraph.stats()["engine_runs"] == 1
    np.testing.assert_allclose(results[True], results[False], rtol=1e-5)


def test_a_saved_pir_model_runs(tmp_path):
    run_model(save_model(tmp_path))


def test_a_saved_pdmodel_runs(tmp_path):
    with paddle.pir_utils.OldIrGuard():
        prefix = save_model(tmp_path)
        assert os.path.exists(prefix + ".pdmodel")
        run_model(prefix)


@pytest.mark.parametrize("onednn", [True, False])
def test_paddle_inference_finds_the_pass(tmp_path, onednn):
    predictor = predictor_of(save_model(tmp_path), onednn)
    paddle_ngraph.reset_stats()
    np.testing.assert_allclose(predict(predictor, X), np.maximum(X, 0) * 2 + 1, rtol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == 1


def with_weights():
    x = paddle.static.data("x", [-1, 3, 8, 8], "float32")
    paddle.seed(1)
    return paddle.nn.Conv2D(3, 4, 3)(x)


def test_a_predictor_keeps_its_weights(tmp_path):
    x = floats(2, 3, 8, 8)
    expected = Program(with_weights).run(engine=False, x=x)[0]
    predictor = predictor_of(save_model(tmp_path, with_weights))
    paddle_ngraph.reset_stats()
    for _ in range(2):
        np.testing.assert_allclose(predict(predictor, x), expected, rtol=1e-5, atol=1e-6)
    stats = paddle_ngraph.stats()
    assert (stats["engine_runs"], stats["functions_with_weights"]) == (2, 1)


def updated():
    x = paddle.static.data("x", [-1, 4], "float32")
    loss = paddle.mean(paddle.nn.Linear(4, 4)(x))
    paddle.optimizer.SGD(0.1).minimize(loss)
    return loss


def test_a_program_that_writes_its_weights_keeps_none():
    from paddle_ngraph.partitioning import program_pass

    graphs = {}
    for make in (with_weights, updated):
        main = Program(make).main.clone()
        program_pass.apply_by_name(main.global_block(), scope=paddle.static.Scope())
        engine = next(op for op in main.global_block().ops if "ngraph_engine" in op.name())
        graphs[make] = Graph.from_string(engine.attrs()["graph"])
    assert graphs[with_weights].weights
    assert not graphs[updated].weights


def test_a_rewritten_program_can_be_saved_and_loaded(tmp_path):
    from paddle_ngraph.partitioning import program_pass

    program = Program(chain)
    program_pass.apply(program.main)
    data = next(op for op in program.main.global_block().ops if op.name() == "pd_op.data")
    with paddle.static.scope_guard(program.scope):
        engine = next(o for o in program.main.global_block().ops if "ngraph_engine" in o.name())
        paddle.static.save_inference_model(
            str(tmp_path / "model"),
            [data.result(0)],
            [engine.result(0)],
            program.executor,
            program=program.main,
        )
    executor = paddle.static.Executor(paddle.CPUPlace())
    loaded, names, fetches = paddle.static.load_inference_model(str(tmp_path / "model"), executor)
    paddle_ngraph.reset_stats()
    (out,) = executor.run(loaded, feed={names[0]: X}, fetch_list=fetches)
    np.testing.assert_allclose(out, np.exp(np.maximum(X, 0) * 2 + 1), rtol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == 1


def test_a_program_on_a_gpu_place_is_left_alone():
    from paddle.base import executor as paddle_executor

    from paddle_ngraph.frontends.executor import hook as executor_hook

    class Place:
        def is_cpu_place(self):
            return False

    hooked = paddle_executor._StandaloneExecutor.__new__(paddle_executor._StandaloneExecutor)
    hooked._place = Place()
    assert hooked._create_new_executor.__wrapped__  # the patch of this package
    created = []
    create = executor_hook._creating_switch(lambda self: created.append(self) or "native")
    assert create(hooked) == "native"
    assert created == [hooked]


# -- inputs that go wrong ----------------------------------------------------------------------


def test_a_shape_that_changes_from_run_to_run():
    program = Program(chain)
    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()
    for rows in (1, 5, 2, 5, 1):
        program.both(x=floats(rows, 4))
    stats = paddle_ngraph.stats()
    assert (stats["functions_built"], stats["functions_reused"]) == (3, 2)


def test_nan_and_infinity_are_computed_as_natively():
    program = Program(chain)
    x = np.array([[np.nan, np.inf, -np.inf, 0.0]], "float32")
    native, engine = program.run(False, x=x), program.run(True, x=x)
    np.testing.assert_allclose(native[0], engine[0], rtol=1e-6)


def test_an_empty_batch_behaves_as_in_paddle():
    program = Program(chain)
    for engine in (False, True):
        assert program.run(engine, x=np.zeros((0, 4), "float32"))[0].shape == (0, 4)
    program.both(x=floats(2, 4))


def failure_type(program, engine, **feed):
    with pytest.raises(Exception) as caught:
        program.run(engine, **feed)
    return type(caught.value)


def test_a_feed_of_the_wrong_dtype_is_paddles_own_error():
    program = Program(chain)
    feed = {"x": np.zeros((2, 4), "int32")}
    assert failure_type(program, True, **feed) is failure_type(program, False, **feed)
    program.both(x=floats(2, 4))


def test_an_undeclared_feed_shape_behaves_as_in_paddle():
    Program(chain).both(x=floats(2, 5))


def test_a_failed_step_loses_no_state():
    program = Program(linear_regression)
    before = program.variable("linear_0.w_0")
    with pytest.raises(Exception):  # noqa: B017 - any error of Paddle's
        program.run(True, x=floats(2, 5), y=floats(2, 1))
    np.testing.assert_array_equal(program.variable("linear_0.w_0"), before)
    program.run(True, x=floats(2, 4), y=floats(2, 1))
    assert not np.array_equal(program.variable("linear_0.w_0"), before)


def kept_in_the_scope():
    x = paddle.static.data("x", [2, 3], "float32")
    kept = paddle.scale(x, 2.0)
    kept.persistable = True
    return [kept, paddle.scale(x, 3.0)]


def test_program_desc_that_keeps_a_variable_in_the_scope():
    with paddle.pir_utils.OldIrGuard():
        Program(kept_in_the_scope).both(x=floats(2, 3))


def test_program_desc_that_paddle_cannot_translate(monkeypatch):
    def fail(_):
        raise ValueError("no such operator")

    with paddle.pir_utils.OldIrGuard():
        program = Program(twice_the_same)
        monkeypatch.setattr(translation, "translate_with_values", fail)
        paddle_ngraph.reset_stats()
        x = floats(2, 4)
        np.testing.assert_array_equal(program.run(True, x=x)[0], np.maximum(x, 0))
        assert paddle_ngraph.stats()["engine_runs"] == 0
