"""Runs that fail in the engine fall back within the same run, without repeated side effects."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import NgraphError, _core, flags
from paddle_ngraph.conversion import denylist, function_builder
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import fallback, program_pass
from tests.paddle_private.test_own_scope import status_of_child
from tests.programs import Program, at_once, counted, floats, is_ended, summary
from tests.zips import zip_equal

ENGINE_STEPS = ["data", "compile", "run", "allocate"]


@contextmanager
def fault(step, monkeypatch):
    """A step that fails, in a function that has to be built again."""
    paddle_ngraph.clear_cache()
    if step != "describe":
        _core.fail_at(step)
        yield
        _core.fail_at("")
        return

    def broken(*args, **kwargs):
        raise KeyError("broken on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(function_builder.FunctionBuilder, "build", broken)
        yield


def training():
    """Two subgraphs around a fallback operator, with statistics, Adam, dropout and a printer."""
    x = paddle.static.data("x", [-1, 4], "float32")
    hidden = paddle.nn.BatchNorm1D(6)(paddle.nn.Linear(4, 6, bias_attr=False)(x))
    hidden = paddle.nn.functional.dropout(paddle.nn.functional.relu(hidden), 0.3)
    hidden = paddle.static.Print(paddle.lgamma(paddle.abs(hidden) + 1.5), message="seen once")
    loss = paddle.mean(paddle.nn.Linear(6, 1)(hidden) ** 2)
    paddle.optimizer.Adam(0.05).minimize(loss)
    return loss


def inference():
    """Lists, and an operator with unused outputs."""
    x = paddle.static.data("x", [-1, 4], "float32")
    parts = paddle.split(paddle.nn.Linear(4, 6)(x), [2, -1], 1)
    return paddle.concat(parts[::-1], 1), paddle.nn.functional.softmax(parts[1] * 2.0)


def loop():
    x = paddle.static.data("x", [3, 4], "float32")
    layer = paddle.nn.Linear(4, 4)
    count = paddle.full([1], 0, "int64")
    _, out = paddle.static.nn.while_loop(
        lambda i, s: i < 4, lambda i, s: [i + 1, paddle.tanh(layer(s)) + s * 0.5], [count, x]
    )
    return out


def branch():
    x = paddle.static.data("x", [3, 4], "float32")
    layer = paddle.nn.Linear(4, 5)
    return paddle.static.nn.cond(
        paddle.mean(x) > 100.0,
        lambda: paddle.exp(layer(x)) + 1.0,
        lambda: paddle.nn.functional.relu(layer(x)) * 3.0,
    )


PROGRAMS = [training, inference, loop, branch]


def life(build, engine, around=None, runs=4, struck=1):
    """Returns results and final state after some runs of a program, one of them in ``around``."""
    program = Program(build)
    paddle.seed(11)
    results = []
    for number in range(runs):
        if around is not None and number == struck:
            with around():
                results.append(program.run(engine, x=floats(3, 4, seed=number)))
        else:
            results.append(program.run(engine, x=floats(3, 4, seed=number)))
    return [*results, left_behind(program)]


def left_behind(program):
    """Returns parameters, statistics and optimizer states."""
    names = sorted(n for n in program.scope.local_var_names() if ".w_" in n or ".b_" in n)
    return [program.variable(name) for name in names]


def assert_same(expected, found):
    for one, other in zip_equal(expected, found):
        for a, b in zip_equal(one, other):
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=1e-6)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("build", PROGRAMS)
@pytest.mark.parametrize("step", [*ENGINE_STEPS, "describe"])
def test_any_failure_falls_back_in_the_same_run(build, step, monkeypatch, capfd):
    native = life(build, engine=False)
    printed = capfd.readouterr().out.count("seen once")
    paddle_ngraph.reset_stats()
    engine = life(build, True, lambda: fault(step, monkeypatch))
    assert_same(native, engine)
    assert capfd.readouterr().out.count("seen once") == printed
    stats = paddle_ngraph.stats()
    assert stats["native_runs"] > 0 and stats["engine_runs"] > 0


@pytest.mark.parametrize("struck", [0, 2])
@pytest.mark.parametrize("step", ["draw", "run"])
def test_random_numbers_before_a_failure_are_sampled_again(step, struck, monkeypatch):
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        return paddle.nn.functional.dropout(x * 2.0, 0.5)

    native = life(build, engine=False)
    paddle_ngraph.reset_stats()
    assert_same(native, life(build, True, lambda: fault(step, monkeypatch), 4, struck))
    assert paddle_ngraph.stats()["native_runs"] > 0


@pytest.mark.parametrize("step", ["load", "store"])
def test_a_failing_disk_cache_is_ignored(step, monkeypatch, tmp_path):
    before = flags.get("ngraph_cache_dir"), flags.get("ngraph_cache_min_ms")
    flags.set("ngraph_cache_dir", str(tmp_path))
    flags.set("ngraph_cache_min_ms", 0)
    try:
        native = life(inference, engine=False)
        paddle_ngraph.reset_stats()
        assert_same(native, life(inference, True, lambda: fault(step, monkeypatch)))
        stats = paddle_ngraph.stats()
        assert stats["native_runs"] == 0 and stats["engine_runs"] == 4
    finally:
        flags.set("ngraph_cache_dir", before[0])
        flags.set("ngraph_cache_min_ms", before[1])


def test_a_failure_is_reported_once_and_falls_back(monkeypatch):
    program = Program(inference)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fault("compile", monkeypatch):
            program.run(x=floats(3, 4))
        program.run(x=floats(3, 4))
        program.run(x=floats(2, 4))
    texts = [str(w.message) for w in caught if "paddle_ngraph" in str(w.message)]
    assert len(texts) == 1 and "pd_op.matmul" in texts[0]
    reasons = {op.type: op.reason for op in paddle_ngraph.explain(program.main).native}
    assert "nGraph could not compile its interval: a fault was injected" in reasons["pd_op.matmul"]


@pytest.mark.parametrize("step", ENGINE_STEPS)
def test_strict_raises(step, monkeypatch):
    program = Program(inference)
    flags.set("ngraph_strict", True)
    try:
        with fault(step, monkeypatch), pytest.raises(Exception, match=r"injected|bad_alloc"):
            program.run(x=floats(3, 4))
    finally:
        flags.set("ngraph_strict", False)
    program.both(x=floats(3, 4))


def labels():
    x = paddle.static.data("x", [-1, 4], "float32")
    label = paddle.static.data("label", [-1, 1], "int64")
    loss = paddle.nn.functional.cross_entropy(paddle.nn.Linear(4, 3)(x), label)
    paddle.optimizer.SGD(0.1).minimize(loss)
    return loss


def error_of(program, engine, **feed):
    with pytest.raises(Exception) as caught:
        program.run(engine, **feed)
    return caught.type, summary(caught.value)


@pytest.mark.parametrize(
    "label", [np.array([[0], [7]]), np.array([[0], [-3]]), np.array([[1], [2], [0]])]
)
def test_errors_are_paddles(label):
    feed = {"x": floats(2, 4), "label": label}
    programs = {engine: Program(labels) for engine in (False, True)}
    for engine, program in programs.items():
        program.run(engine, x=floats(2, 4), label=np.array([[0], [1]]))
    assert error_of(programs[True], True, **feed) == error_of(programs[False], False, **feed)
    for a, b in zip(*map(left_behind, programs.values())):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert paddle_ngraph.explain(programs[True].main).native == []
    paddle_ngraph.reset_stats()
    for engine, program in programs.items():
        program.run(engine, x=floats(2, 4), label=np.array([[2], [1]]))
    assert paddle_ngraph.stats()["engine_runs"] == 1


@pytest.mark.parametrize("step", ENGINE_STEPS)
@pytest.mark.parametrize("rows", [1, 200])
def test_results_of_earlier_runs_are_not_overwritten(step, rows, monkeypatch):
    """Large arrays are returned without a copy, and the next run may not overwrite them."""

    def build():
        h = paddle.static.data("x", [-1, 300], "float32") * 2.0
        return [h, h.exp() + 1.0, h.reshape([-1, 100])]

    feeds = [floats(rows, 300, seed=seed) for seed in range(5)]
    program = Program(build)
    expected = [program.run(engine=False, x=feed) for feed in feeds]
    with fault(step, monkeypatch), paddle_ngraph.use_ngraph():
        found = [program.run_as_is(x=feed) for feed in feeds]
    for ours, theirs in zip(found, expected):
        for array, wanted in zip(ours, theirs):
            np.testing.assert_allclose(array, wanted, rtol=1e-6)
    assert paddle_ngraph.stats()["native_runs"] > 0


def looping():
    """A layer, then four iterations of a loop through another one; both are trained."""
    x = paddle.static.data("x", [11, 4], "float32")
    first, second = (
        paddle.create_parameter(
            [4, 4],
            "float32",
            default_initializer=paddle.nn.initializer.Assign(floats(4, 4, seed=n)),
        )
        for n in (7, 8)
    )
    index, end = paddle.full([1], 0, "int64"), paddle.full([1], 4, "int64")

    def body(index, h):
        return [index + 1, paddle.tanh(paddle.matmul(h, second))]

    start = paddle.assign(paddle.tanh(paddle.matmul(x, first)))  # Paddle moves it into the loop
    _, h = paddle.static.nn.while_loop(lambda index, h: index < end, body, [index, start])
    loss = (h * h).sum()
    paddle.optimizer.SGD(0.05).minimize(loss)
    return [loss, h]


@pytest.mark.parametrize("step", ENGINE_STEPS)
def test_iterations_keep_separate_results(step, monkeypatch):
    """The backward pass reads them in reverse order."""
    programs = [Program(looping) for _ in range(2)]
    expected = [programs[0].run(engine=False, x=floats(11, 4, seed=n)) for n in range(3)]
    with fault(step, monkeypatch):
        found = [programs[1].run(x=floats(11, 4, seed=n)) for n in range(3)]
    for ours, theirs in zip(found, expected):
        for array, wanted in zip(ours, theirs):
            np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)
    assert paddle_ngraph.stats()["native_runs"] > 0


def test_threads_have_separate_programs():
    programs = [Program(inference) for _ in range(4)]
    for program in programs:
        program.run(engine=False, x=floats(1, 4))  # Paddle adds fetches to the program
    found = [[] for _ in programs]

    def work(number):
        program = programs[number]
        for _ in range(5):
            feed = {"x": floats(number + 1, 4)}
            found[number].append(
                program.executor.run(program.main, feed, program.fetches, scope=program.scope)
            )

    with paddle_ngraph.use_ngraph(True):
        _core.fail_at("data")
        at_once(work)
        _core.fail_at("")
    for number, program in enumerate(programs):
        expected = program.run(engine=False, x=floats(number + 1, 4))
        assert len(found[number]) == 5
        for results in found[number]:
            for a, b in zip(expected, results):
                np.testing.assert_array_equal(b, a)


def test_the_graph_string_describes_operators_completely():
    program = Program(training)
    program_pass.apply(program.main)
    engines = [op for op in program.main.global_block().ops if "ngraph_engine" in op.name()]
    assert len(engines) >= 2
    for op in engines:
        text = op.attrs()["graph"]
        graph = Graph.from_string(text)
        assert graph.to_string() == text
        again = fallback.program_of(graph, [spec.dtype for spec in [*graph.inputs, *graph.states]])
        made = [each.name() for each in again.global_block().ops if each.name().startswith("pd_op")]
        assert [name for name in made if name != "pd_op.fetch"] == [each.type for each in graph.ops]


WRITERS = {
    "assigned": lambda state: paddle.assign(state * 0.5 + 0.25, output=state),
    "incremented": lambda state: paddle.increment(state, 0.25),
    "scaled": lambda state: state.scale_(0.5),
    "a unit": lambda state: paddle.nn.functional.relu_(state),
}
LAST_READERS = {
    "scale": lambda value: value * 0.1,
    "exp": paddle.exp,
    "relu": paddle.nn.functional.relu,
    "clip": lambda value: paddle.clip(value, -0.1, 0.1),
    "sum": lambda value: value + 1.0,
}


@pytest.mark.parametrize("read", LAST_READERS.values(), ids=LAST_READERS)
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_written_variables_are_not_overwritten(write, read, monkeypatch):
    """In plain Paddle, too, the last reader of a result may overwrite it."""

    def build():
        state = paddle.static.create_parameter([1], "float32", "state.w_0")
        state.stop_gradient = True
        write(state)
        return read(state) + paddle.static.data("x", [-1, 4], "float32")

    native = life(build, engine=False)
    paddle_ngraph.reset_stats()
    assert_same(native, life(build, True, lambda: fault("compile", monkeypatch)))
    assert paddle_ngraph.stats()["native_runs"] > 0


def _kept(h, g):
    return h


def _either(h, g):
    return paddle.static.nn.cond(paddle.mean(h) > 0.1, lambda: h, lambda: g)


def _either_of_branches(h, g):
    inner = paddle.static.nn.cond(paddle.mean(g) > 0.0, lambda: g, lambda: h)
    return paddle.static.nn.cond(paddle.mean(h) > 0.1, lambda: h, lambda: inner)


def _made_or_given(h, g):
    return paddle.static.nn.cond(paddle.mean(h) > 0.1, lambda: h * 0.5, lambda: g)


@pytest.mark.parametrize("read", LAST_READERS.values(), ids=LAST_READERS)
@pytest.mark.parametrize("yields", [_kept, _either, _either_of_branches, _made_or_given])
@pytest.mark.parametrize("is_loop", [False, True], ids=["branch", "loop"])
def test_branch_outputs_are_not_overwritten(is_loop, yields, read):
    """Plain Paddle, with its memory pass, occasionally overwrites them."""

    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        h, g = paddle.tanh(x), x + 1.0
        if not is_loop:
            return [read(yields(h, g)) + 0.0, g * 1.0, h * 1.0]
        return counted(lambda i, h, g: [read(yields(h, g)), g], h, g, end=3)[1:]

    feeds = [{"x": floats(rows, 4, seed=rows)} for rows in (3, 2, 5, 3)]
    paddle.set_flags({"FLAGS_pir_apply_inplace_pass": False})
    native = Program(build)
    expected = [native.run(engine=False, **feed) for feed in feeds]
    paddle.set_flags({"FLAGS_pir_apply_inplace_pass": True})
    paddle_ngraph.reset_stats()
    program = Program(build)
    for feed, wanted in zip_equal(feeds, expected):
        paddle_ngraph.clear_cache()
        _core.fail_at("run")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = program.run(**feed)
        _core.fail_at("")
        denylist.clear()
        assert_same([wanted], [found])
    assert paddle_ngraph.stats()["native_runs"] > 0


# -- bfloat16 --------------------------------------------------------------------------------------

_ONEDNN_ALONE = {
    "softplus": paddle.nn.functional.softplus,  # the threshold differs
    "clip": lambda x: paddle.clip(x, -0.5, 0.5),  # the gradient differs
    "softmax": paddle.nn.functional.softmax,
    "log_softmax": paddle.nn.functional.log_softmax,
    "matmul": lambda x: paddle.matmul(x, x, transpose_y=True),
    # Paddle reads freed memory.
    "add": lambda x: x + x,
}
_PADDLES_OWN = {
    "scale": lambda x: x * 2.0,
    "multiply": lambda x: x * x,
    "reshape": lambda x: paddle.reshape(x, [-1]),
    "transpose": lambda x: paddle.transpose(x, [1, 0]),
    "sum": lambda x: paddle.sum(x, 1),
    "concat": lambda x: paddle.concat([x, x], 1),
}


def _in_bfloat16(function):
    x = paddle.static.data("x", [4, 8], "float32")
    return function(x.astype("bfloat16")).astype("float32")


@pytest.mark.parametrize("name", [*_ONEDNN_ALONE, *_PADDLES_OWN])
def test_bfloat16_uses_paddles_own_kernels_alone(name):
    """oneDNN's kernels have other results, or end the process."""
    is_own = name in _PADDLES_OWN
    program = Program(lambda: _in_bfloat16({**_ONEDNN_ALONE, **_PADDLES_OWN}[name]))
    x = np.round(floats(4, 8) * 8) / 8
    (expected,) = program.run(x=x)
    (interval,) = paddle_ngraph.explain(program.main).intervals
    graph = Graph.from_string(interval.graph.to_string())
    if not is_own:
        with pytest.raises(NgraphError, match=r"Paddle has no kernel of its own .* in bfloat16"):
            fallback.require_kernels(graph)
    paddle_ngraph.clear_cache()
    _core.fail_at("compile")
    if is_own:
        np.testing.assert_array_equal(program.run(x=x)[0], expected)
        assert paddle_ngraph.stats()["native_runs"] == 1
    else:
        with pytest.raises(Exception, match="a fault was injected"):
            program.run(x=x)


# -- destruction of subgraphs ----------------------------------------------------------------------


def _interval_text():
    program = Program(inference)
    program_pass.apply(program.main)
    operators = program.main.global_block().ops
    (text,) = (op.attrs()["graph"] for op in operators if "ngraph_engine" in op.name())
    graph = Graph.from_string(text)
    tensors = [paddle.base.core.DenseTensor() for _ in graph.inputs]
    for number, (spec, tensor) in enumerate(zip(graph.inputs, tensors)):
        shape = [3 if size < 0 else size for size in spec.shape]
        tensor.set(floats(*shape, seed=number).astype(spec.dtype), paddle.CPUPlace())
    return text, tensors


class _Intervals:
    """Creates, runs and drops subgraphs of one graph."""

    def __init__(self):
        self.text, self._inputs = _interval_text()
        self.graph = Graph.from_string(self.text)
        self.expected = self.run(fallback.run, self.text)

    def run(self, run, *args):
        outputs = [paddle.base.core.DenseTensor() for _ in self.graph.outputs]
        run(*args, self._inputs, [], outputs)
        return [np.array(each) for each in outputs]

    def made(self):
        dtypes = [spec.dtype for spec in self.graph.inputs]
        return fallback.FallbackProgram(self.graph, dtypes)

    def check(self):
        """Checks one subgraph that becomes garbage, and one that another run awaits."""
        interval = self.made()
        interval.itself = interval
        for found in (self.run(interval.run), self.run(fallback.run, self.text)):
            for one, other in zip_equal(self.expected, found):
                np.testing.assert_array_equal(one, other)


def test_the_scope_ends_with_its_subgraph():
    intervals = _Intervals()
    interval = intervals.made()
    intervals.run(interval.run)
    scope = interval._own_scope.scope
    del interval
    assert is_ended(scope)


def test_a_run_that_fails_leaves_no_scope():
    intervals = _Intervals()
    interval = intervals.made()
    scope = interval._own_scope.scope
    with pytest.raises(Exception, match="Error"):
        interval.run([paddle.base.core.DenseTensor() for _ in intervals.graph.inputs], [], [])
    del interval
    gc.collect()
    assert is_ended(scope)


@pytest.mark.slow("runs several threads for a while")
def test_subgraphs_end_in_other_threads():
    intervals, over = _Intervals(), threading.Event()

    def work(number):
        if number == 0:
            while not over.wait(1e-3):
                gc.collect()
            return
        try:
            for index in range(60):
                intervals.check()
                if index % 5 == 0:
                    fallback._idle_programs.clear()
        finally:
            if number == 1:
                over.set()

    at_once(work)


def test_subgraphs_begin_and_end_in_signal_handlers():
    intervals, handled = _Intervals(), []

    def handle(*_):
        intervals.check()
        fallback._idle_programs.clear()
        gc.collect()
        handled.append(True)
        # A handler may run after the timer was stopped below: it must not start the timer again.
        if len(handled) < 40:
            signal.setitimer(signal.ITIMER_REAL, 1e-3)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        while len(handled) < 40:
            intervals.check()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_can_drop_subgraphs():
    """Destructors of Paddle's executors read freed memory there."""
    intervals = _Intervals()
    kept = [intervals.made()]
    intervals.run(kept[0].run)
    assert len(fallback._idle_programs) > 0

    def work():
        kept.clear()
        fallback._idle_programs.clear()
        return True

    assert status_of_child(work) == 0
    intervals.check()


_AT_THE_END = """
import builtins, sys
import paddle
from tests.partitioning.test_fallback import _Intervals
paddle.enable_static()
intervals = _Intervals()
kept = intervals.made()
builtins.kept, sys.kept = intervals.made(), intervals.made()
intervals.check()
print("over")
"""


@pytest.mark.slow("starts a process")
def test_subgraphs_that_remain_at_process_exit():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _AT_THE_END],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "GLOG_minloglevel": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")
