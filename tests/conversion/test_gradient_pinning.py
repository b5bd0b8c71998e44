"""Gradients that stay in the memory of a function until the optimizer updates have run."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from openvino import opset15
from paddle import static

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.conversion import build, denylist, gradient_pinning
from paddle_ngraph.conversion.draft import Draft
from paddle_ngraph.settings import SETTINGS
from tests.conversion.test_optimizer_updates import (
    OPTIMIZERS,
    Life,
    assert_same_states,
    draft_of,
    parameter,
    state_of,
    variable,
)
from tests.programs import Program, at_once, floats

pytestmark = pytest.mark.usefixtures("nothing_cached")

O = paddle.optimizer  # noqa: E741
WIDTH = 192  # a square matrix of this width is just large enough


@pytest.fixture
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small gradients are pinned too."""
    monkeypatch.setattr(SETTINGS, "min_pinned_gradient_bytes", 0)


def pinned_types(draft: Draft) -> list[str]:
    """Returns the types of the nodes whose values a draft pins."""
    gradient_pinning.pin_gradients(draft)
    last = draft.model.get_results()[-1].input_value(0).get_node()
    if last.get_type_name() != "PinValues":
        return []
    count = last.get_attributes()["count"]
    return [value.get_node().get_type_name() for value in last.input_values()[:count]]


def deep(optimizer: str = "adam", depth: int = 3) -> Callable[[], Any]:
    """Layers with large gradients, an embedding, and small parameters."""

    def build() -> Any:
        ids = static.data("ids", [8, 1], "int64")
        hidden = paddle.reshape(F.embedding(ids, parameter("table", 300, WIDTH)), [8, WIDTH])
        hidden = hidden + static.data("x", [8, WIDTH], "float32")
        for layer in range(depth):
            weight = parameter(f"w{layer}", WIDTH, WIDTH)
            hidden = paddle.tanh(hidden @ weight * 0.1 + parameter(f"b{layer}", WIDTH))
        loss = paddle.mean(hidden**2)
        OPTIMIZERS[optimizer]().minimize(loss)
        return loss

    return build


def feed_of(step: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(step).integers(0, 300, (8, 1))
    return {"ids": ids, "x": floats(8, WIDTH, seed=step)}


def num_pinned(run: Callable[[], Any]) -> int:
    """Returns the number of gradients that a run reads in the memory of a function."""
    before = paddle_ngraph.stats()["gradients_held"]
    run()
    return int(paddle_ngraph.stats()["gradients_held"] - before)


# -- the pass --------------------------------------------------------------------------------------


def test_large_gradients_are_no_results() -> None:
    draft = draft_of(deep("momentum"))
    found = pinned_types(draft)
    assert sorted(found) == ["EmbeddingGrad", "MatMul", "MatMul", "MatMul"]
    # Gradients of terms, then indices of the other gradients; no results are fetched.
    assert len(draft.model.get_results()) == 3 + 1
    read = sorted(-1 - source for update in draft.updates for source in update.gradients)
    assert read == list(range(3 + 4))


def test_small_gradients_are_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "min_pinned_gradient_bytes", 4 * WIDTH * WIDTH + 1)
    assert pinned_types(draft_of(deep())) == ["EmbeddingGrad"]


def viewed() -> Any:
    """Each gradient is a view of another value, or is shared with another reader."""
    x, w, v = static.data("x", [8, WIDTH], "float32"), *map(square, "wv")
    loss = paddle.mean(paddle.tanh(x @ w) @ v)
    of_w, of_v = static.gradients(loss, [w, v])
    given = static.data("given", [WIDTH, WIDTH], "float32")
    pairs = [
        (square("a"), paddle.reshape(w, [WIDTH, WIDTH])),
        (square("b"), paddle.transpose(v, [1, 0])),
        (square("c"), paddle.reshape(given, [WIDTH, WIDTH])),
        (square("d"), paddle.reshape(paddle.transpose(of_w, [1, 0]), [WIDTH, WIDTH])),
        (square("e"), of_v),
    ]
    O.SGD(0.1, parameters=[p for p, _ in pairs]).apply_gradients(pairs)
    return [loss, of_v]


def square(name: str, width: int = WIDTH) -> Any:
    made = parameter(name, width, width)
    made.stop_gradient = False
    return made


def test_views_and_outputs_are_not_pinned() -> None:
    native, engine = Program(viewed), Program(viewed)
    for step in range(3):
        feed = {"x": floats(8, WIDTH, seed=step), "given": floats(WIDTH, WIDTH, seed=step)}
        for one, other in zip(native.run(engine=False, **feed), engine.run(**feed)):
            np.testing.assert_allclose(other, one, 1e-4, 1e-5)
        assert_same_states(native, engine)
    assert paddle_ngraph.stats()["gradients_held"] == 0


def test_dynamic_shapes_pin_nothing() -> None:
    def build() -> Any:
        loss = paddle.mean(paddle.tanh(static.data("x", [-1, WIDTH], "float32") @ square("w")))
        O.SGD(0.1).minimize(loss)
        return loss

    native, engine = Program(build), Program(build)
    found = []
    for rows in (3, 5, 9, 17, 3):
        x = floats(rows, WIDTH, seed=rows)
        native.run(engine=False, x=x)
        found.append(num_pinned(lambda x=x: engine.run(x=x)))
        assert_same_states(native, engine)
    assert found[:4] == [1, 1, 0, 0]


def test_inner_dynamic_shapes_pin_nothing() -> None:
    """The number of elements found is known only at the end of a run."""

    def build() -> Any:
        x = static.data("x", [8, WIDTH], "float32")
        hidden = paddle.tanh(x @ square("w"))
        loss = paddle.mean(hidden)
        O.SGD(0.1).minimize(loss)
        return [loss, paddle.masked_select(hidden.detach(), x > 0)]

    native, engine = Program(build), Program(build)
    for step in range(2):
        x = floats(8, WIDTH, seed=step)
        expected, found = native.run(engine=False, x=x), engine.run(x=x)
        for one, other in zip(expected, found):
            np.testing.assert_allclose(other, one, 1e-4, 1e-5)
        assert_same_states(native, engine)


# -- values ----------------------------------------------------------------------------------------


def states_after(program: Program, steps: Sequence[dict[str, np.ndarray]]) -> list[Any]:
    """Returns the results of the runs, and the states after each."""
    found: list[Any] = []
    for feed in steps:
        try:
            found.append(program.run(**feed))
        except IndexError as error:
            found.append(type(error))
        found.append(state_of(program))
    return found


def assert_equal(one: Any, other: Any) -> None:
    """Compares bit by bit."""
    if isinstance(one, (list, dict)):
        assert len(one) == len(other)
        items = zip(one, other) if isinstance(one, list) else ((one[n], other[n]) for n in one)
        for each in items:
            assert_equal(*each)
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


def with_and_without(
    monkeypatch: pytest.MonkeyPatch, build: Callable[[], Any], steps: Sequence[Any]
) -> int:
    """Asserts that pinning changes no bit; returns the number of pinned gradients."""
    counts, found = [], []
    for least in (1 << 60, 0):
        monkeypatch.setattr(SETTINGS, "min_pinned_gradient_bytes", least)
        paddle_ngraph.clear_cache()
        program = Program(build)
        counts.append(
            num_pinned(lambda program=program: found.append(states_after(program, steps)))
        )
    assert counts[0] == 0
    assert_equal(*found)
    return counts[1]


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pinned_gradients_equal_results(monkeypatch: Any, optimizer: str) -> None:
    steps = [feed_of(step) for step in range(4)]
    assert with_and_without(monkeypatch, deep(optimizer), steps) == 4 * 4


def test_pinned_gradients_equal_paddles() -> None:
    native, program = Program(deep("momentum")), Program(deep("momentum"))
    for step in range(4):
        native.run(engine=False, **feed_of(step))
        assert num_pinned(lambda step=step: program.run(**feed_of(step))) == 4
        assert_same_states(native, program)


@pytest.mark.slow("draws many programs")
def test_random_programs_with_pinned_gradients(monkeypatch: Any, native_in_order: None) -> None:
    """Random programs, some without pinned gradients. A wrong label aborts a run."""
    counts = []
    for seed in range(6):
        steps = []
        for step in range(4):
            labels = np.random.default_rng(step).integers(0, 6, (3, 1))
            labels[1] = 6 if step == 2 else labels[1]
            steps.append({"x": floats(3, 4, seed=step), "label": labels})
        counts.append(with_and_without(monkeypatch, Life(seed).build, steps))
    assert sum(count > 0 for count in counts) >= 3
    assert all(count % 3 == 0 for count in counts)  # all but the aborted run


def results_of_all_types() -> Any:
    """Results that the plugin converts, loops and branches alongside pinned values."""
    x, label = static.data("x", [8, WIDTH], "float32"), static.data("label", [8, 1], "int64")
    w, v = square("w"), square("v")
    hidden = paddle.tanh(x @ w)
    scores = hidden @ v
    loss = F.cross_entropy(scores, label).mean()
    positions = paddle.argmax(scores, 1)
    picked = static.nn.cond(
        paddle.mean(x) > -100.0, lambda: paddle.sum(hidden.detach()), lambda: paddle.zeros([])
    )
    O.Momentum(0.1, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.01)).minimize(loss)
    total = variable("total", [WIDTH, WIDTH])
    paddle._C_ops.add_(total, paddle.matmul(x, hidden, transpose_x=True))
    return [loss, positions, positions + 1, scores > 0, picked, hidden]


@pytest.mark.slow("compiles many or large functions")
def test_results_of_all_types(monkeypatch: Any) -> None:
    labels = np.random.default_rng(0).integers(0, WIDTH, (8, 1))
    steps = [{"x": floats(8, WIDTH, seed=step), "label": labels} for step in range(4)]
    with_and_without(monkeypatch, results_of_all_types, steps)
    native, engine = Program(results_of_all_types), Program(results_of_all_types)
    for feed in steps:
        for one, other in zip(native.run(engine=False, **feed), engine.run(**feed)):
            np.testing.assert_allclose(other, one, 1e-3, 1e-4)
        found = state_of(engine)
        for name, value in state_of(native).items():
            np.testing.assert_allclose(found[name], value, 1e-3, 1e-4, err_msg=name)
    assert paddle_ngraph.stats()["native_runs"] == 0


READERS: dict[str, Callable[[Any], Any]] = {
    "abs": paddle.abs,
    "relu": F.relu,
    "clip": lambda g: paddle.clip(g, -0.01, 0.01),
    "softmax": F.softmax,
    "reshape": lambda g: paddle.reshape(g, [-1]) * 2,
    "transpose": lambda g: paddle.transpose(g, [1, 0]),
    "split": lambda g: paddle.split(g, 2)[1],
    "concat": lambda g: paddle.concat([g, g]),
    "assign": paddle.assign,
    "cast": lambda g: paddle.cast(g, "float64"),
    "cumsum": lambda g: paddle.cumsum(g, 0),
    "sort": paddle.sort,
    "where": lambda g: paddle.where(g > 0, g, g * 0),
    "norm": lambda g: g / paddle.norm(g),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_do_not_overwrite_a_pinned_gradient(monkeypatch: Any, reader: str) -> None:
    """The plugin computes some results in place of their operands."""

    def build() -> Any:
        x, weights = static.data("x", [4, 32], "float32"), [square(name, 32) for name in "pqr"]
        hidden = x
        for weight in weights:
            hidden = paddle.tanh(hidden @ weight)
        loss = paddle.mean(hidden**2)
        gradients = static.gradients(loss, weights)
        O.Momentum(0.5).apply_gradients(list(zip(weights, gradients)))
        return [loss, READERS[reader](gradients[1])]

    steps = [{"x": floats(4, 32, seed=step)} for step in range(3)]
    assert with_and_without(monkeypatch, build, steps) >= 3 * 2
    native, engine = Program(build), Program(build)
    for feed in steps:
        for one, other in zip(native.run(engine=False, **feed), engine.run(**feed)):
            np.testing.assert_allclose(other, one, 1e-3, 1e-5)
        assert_same_states(native, engine)
    assert paddle_ngraph.stats()["native_runs"] == 0


class Training:
    """A random program that trains, and the batches of its steps.

    Gradients are clipped, only summed, as those of micro-batches, or found to be infinite, as with
    scaled losses: then they are zeros.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.layers = self.draw.choices(("dense", "residual", "norm", "shared", "words"), k=3)
        self.optimizer = self.draw.choice(["sgd", "momentum", "nesterov"])
        self.clip = self.draw.choice([None, "GlobalNorm", "Norm"])
        self.adds_up, self.scales = self.draw.random() < 0.4, self.draw.random() < 0.4

    def build(self) -> Any:
        x, scale = static.data("x", [6, 24], "float32"), static.data("scale", [1], "float32")
        words, hidden, weights = static.data("words", [6], "int64"), x, []
        for number, layer in enumerate(self.layers):
            weight = square(f"w{number}", 24)
            weights.append(weight)
            hidden = {
                "dense": lambda h, w: paddle.tanh(h @ w),
                "residual": lambda h, w: h + F.relu(h @ w),
                "norm": lambda h, w: F.layer_norm(h @ w, [24]),
                "shared": lambda h, w: paddle.tanh(h @ w) @ paddle.transpose(w, [1, 0]),
                "words": lambda h, w: h + F.embedding(words, w),
            }[layer](hidden, weight)
        loss = paddle.mean(hidden**2)
        gradients = static.gradients(loss * scale if self.scales else loss, weights)
        if self.scales:
            gradients, found = paddle._C_ops.check_finite_and_unscale_(gradients, scale)
            zeros = [paddle.zeros_like(gradient) for gradient in gradients]
            gradients = [paddle.where(found, z, g) for z, g in zip(zeros, gradients)]
        if self.adds_up:
            for number, gradient in enumerate(gradients):
                total = variable(f"total{number}", [24, 24])
                paddle._C_ops.add_(total, gradient)
            return loss
        pairs = list(zip(weights, gradients))
        if self.clip is not None:
            pairs = getattr(paddle.nn, f"ClipGradBy{self.clip}")(0.1)(pairs)
        OPTIMIZERS[self.optimizer]().apply_gradients(pairs)
        return loss

    def steps(self) -> list[dict[str, np.ndarray]]:
        scales = [64.0, 64.0, np.inf, 64.0]
        return [
            {
                "x": floats(6, 24, seed=step),
                "words": np.random.default_rng(step).integers(0, 24, 6),
                "scale": np.array([scale], "float32"),
            }
            for step, scale in enumerate(scales)
        ]


@pytest.mark.slow("draws many programs")
def test_random_training(monkeypatch: Any, native_in_order: None) -> None:
    counts = []
    for seed in range(16):
        training, steps = Training(seed), Training(seed).steps()
        counts.append(with_and_without(monkeypatch, training.build, steps))
        native, engine = Program(training.build), Program(training.build)
        for number, feed in enumerate(steps):
            native.run(engine=False, **feed)
            engine.run(**feed)
            if number == 1:  # the next run builds another function
                paddle_ngraph.clear_cache()
            expected, found = state_of(native), state_of(engine)
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, 1e-3, 1e-4, err_msg=name)
    assert sum(count > 0 for count in counts) >= 8
    assert paddle_ngraph.stats()["native_runs"] == 0


# -- exclusive runs --------------------------------------------------------------------------------


def trained_without_pinning(optimizer: str, numbers: Sequence[int], steps: int) -> list[Any]:
    """Returns the final states of programs that train one after the other, without pinning."""
    before, SETTINGS.min_pinned_gradient_bytes = SETTINGS.min_pinned_gradient_bytes, 1 << 60
    try:
        paddle_ngraph.clear_cache()
        return [train(Program(deep(optimizer)), number, steps) for number in numbers]
    finally:
        SETTINGS.min_pinned_gradient_bytes = before
        paddle_ngraph.clear_cache()


def train(program: Program, number: int, steps: int) -> Any:
    with static.scope_guard(program.scope):
        for step in range(steps):
            feed = feed_of(100 * number + step)
            program.executor.run(program.main, feed, program.fetches, scope=program.scope)
    return state_of(program)


@pytest.mark.slow("runs several threads for a while")
def test_threads_run_one_at_a_time() -> None:
    """Threads share one function, each with separate states."""
    with paddle_ngraph.use_ngraph():
        expected = trained_without_pinning("adam", range(4), 6)
        programs = [Program(deep()) for _ in range(4)]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        found[number] = train(programs[number], number, 6)

    before = paddle_ngraph.stats()
    with paddle_ngraph.use_ngraph():
        at_once(work)
    after = paddle_ngraph.stats()
    assert after["functions_built"] - before["functions_built"] == 1
    assert after["gradients_held"] - before["gradients_held"] == 4 * 6 * 4
    assert_equal([found[number] for number in range(4)], expected)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow("compiles many or large functions")
def test_pinned_memory_is_not_reused_before_updates() -> None:
    with paddle_ngraph.use_ngraph():
        expected = trained_without_pinning("momentum", [0, 1], 2)
        programs = [Program(deep("momentum")) for _ in range(2)]
        train(programs[0], 0, 1)
        train(programs[1], 1, 1)
        _core.fail_at("run", blocks=True)
        threads = []
        for number, program in enumerate(programs):
            feed = feed_of(100 * number + 1)
            threads.append(in_thread(lambda p=program, f=feed: p.run(**f)))
            until(lambda: _core.num_blocked_threads() == 1)
        time.sleep(0.3)  # the second one would use the same memory
        assert _core.num_blocked_threads() == 1
        _core.fail_at("")
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()
    assert_equal([state_of(program) for program in programs], expected)


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    def run() -> None:
        paddle.enable_static()
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("step", ["run", "write"])
def test_a_failure_ends_the_exclusive_run(step: str) -> None:
    program, reference = (Program(deep("momentum")) for _ in range(2))
    program.run(**feed_of(0))
    _core.fail_at(step)
    if step == "run":
        program.run(**feed_of(1))  # falls back once
    else:
        with pytest.raises(OSError, match="while it was writing states"):
            program.run(**feed_of(1))
    _core.fail_at("")
    for step_number in range(2):
        reference.run(engine=False, **feed_of(step_number))
    assert_same_states(reference, program)
    denylist.clear()
    _core.reset_denylist()
    functions = paddle_ngraph.stats()["functions_built"]
    assert num_pinned(lambda: Program(deep("momentum")).run(**feed_of(2))) == 4
    assert paddle_ngraph.stats()["functions_built"] == functions  # the function can run again


def test_an_interrupted_run_applies_no_update() -> None:
    program, reference = (Program(deep("momentum")) for _ in range(2))
    for step in range(4):
        feed = feed_of(step)
        if step == 2:
            before = state_of(program)
            feed["ids"][3] = 300
            with pytest.raises((IndexError, ValueError)):
                program.run(**feed)
            assert_equal(state_of(program), before)
            continue
        program.run(**feed)
        reference.run(engine=False, **feed)
    assert paddle_ngraph.stats()["gradients_held"] == 3 * 4
    assert_same_states(reference, program)


FORKED = """
import os, signal, sys
import numpy as np, paddle
import paddle_ngraph
from paddle_ngraph import _core
from tests.programs import Program
from tests.conversion.test_gradient_pinning import (
    assert_equal, deep, feed_of, in_thread, state_of, until
)

paddle.enable_static()
with paddle_ngraph.use_ngraph():
    program, other, reference = (Program(deep()) for _ in range(3))
    for each in (program, other, reference):
        each.run(**feed_of(0))
    reference.run(**feed_of(1))
    expected = state_of(reference)
    _core.fail_at("run", blocks=True)
    thread = in_thread(lambda: other.run(**feed_of(5)))  # it has the turn
    until(lambda: _core.num_blocked_threads() == 1)
    child = os.fork()
    _core.fail_at("")
    if child == 0:
        try:
            signal.alarm(120)
            program.run(**feed_of(1))
            assert_equal(state_of(program), expected)
            assert paddle_ngraph.stats()["gradients_held"] == 5 * 4
            os._exit(0)
        finally:
            os._exit(1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    program.run(**feed_of(1))
    assert_equal(state_of(program), expected)
print("done")
"""


def output_of(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "FLAGS_ngraph_cache_dir": "", **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow("starts a process")
def test_a_fork_can_run_exclusively() -> None:
    """A forked process has one thread, and none of the parent's other threads."""
    assert output_of(FORKED, FLAGS_ngraph_num_threads="1").endswith("done\n")


# -- sources of functions --------------------------------------------------------------------------


@pytest.mark.slow("compiles many or large functions")
def test_a_function_from_disk(tmp_path: Path) -> None:
    before = paddle.get_flags(["FLAGS_ngraph_cache_dir", "FLAGS_ngraph_cache_min_ms"])
    paddle.set_flags({"FLAGS_ngraph_cache_dir": str(tmp_path), "FLAGS_ngraph_cache_min_ms": 0})
    try:
        engine, reference = Program(deep()), Program(deep())
        for step in range(2):
            engine.run(**feed_of(step))
        paddle_ngraph.clear_cache()
        assert num_pinned(lambda: [engine.run(**feed_of(step)) for step in range(2, 4)]) == 2 * 4
        assert paddle_ngraph.stats()["functions_loaded"] == 1
    finally:
        paddle.set_flags(before)
    for step in range(4):
        reference.run(**feed_of(step))
    assert_equal(state_of(engine), state_of(reference))


# -- operators after pinned values -----------------------------------------------------------------


@pytest.mark.slow("compiles many or large functions")
def test_nothing_is_pinned_before_later_nodes(monkeypatch: Any) -> None:
    """Gradients are results where the plugin executes an operator after the Hold."""

    def hold_and_go_on(draft: Draft) -> None:
        gradient_pinning.pin_gradients(draft)
        first, *_, last = draft.model.get_results()
        hold = last.input_value(0)
        if hold.get_node().get_type_name() == "PinValues":
            met.append(hold)
            nothing = opset15.multiply(opset15.convert(hold, "f32"), np.zeros(1, "float32"))
            zero = opset15.reduce_sum(nothing, [0])
            later = opset15.add(first.input_value(0), zero)
            first.input(0).replace_source_output(later.output(0))

    met: list[Any] = []
    monkeypatch.setattr(build, "pin_gradients", hold_and_go_on)
    native, engine = (Program(deep("momentum")) for _ in range(2))
    for step in range(3):
        native.run(engine=False, **feed_of(step))
        engine.run(**feed_of(step))
        assert_same_states(native, engine)
    stats = paddle_ngraph.stats()
    assert len(met) == 1 and stats["engine_runs"] == 3 and stats["gradients_held"] == 0


# -- memory ----------------------------------------------------------------------------------------

PEAK = """
import sys
from pathlib import Path
import paddle
from paddle import static
import paddle_ngraph
from paddle_ngraph.settings import SETTINGS
from tests.programs import Program, floats
from tests.conversion.test_gradient_pinning import LAYERS, NUMBERS, wide

SETTINGS.min_pinned_gradient_bytes = int(sys.argv[1])
paddle.enable_static()
program, feed = Program(wide), floats(NUMBERS, NUMBERS)
Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
for _ in range(3):
    program.run(x=feed)
stats = paddle_ngraph.stats()
assert stats["native_runs"] == 0
status = Path("/proc/self/status").read_text()
print(stats["gradients_held"], next(l for l in status.splitlines() if "VmHWM" in l).split()[1])
"""
LAYERS, NUMBERS = 12, 1024


def wide() -> Any:
    """Activations are as large as gradients, and freed before the gradients are computed."""
    hidden = static.data("x", [NUMBERS, NUMBERS], "float32")
    for layer in range(LAYERS):
        hidden = paddle.tanh(hidden @ parameter(f"w{layer}", NUMBERS, NUMBERS))
    loss = paddle.mean(hidden)
    O.SGD(0.1).minimize(loss)
    return loss


@pytest.mark.slow("starts a process")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
def test_pinned_gradients_take_no_extra_memory() -> None:
    peaks = {}
    for least in (0, 1 << 60):
        script = PEAK.replace("sys.argv[1]", repr(str(least)))
        count, peak = map(int, output_of(script).split()[-2:])
        assert count == (3 * LAYERS if least == 0 else 0)
        peaks[least] = peak * 1024
    gradients = LAYERS * NUMBERS * NUMBERS * 4
    assert peaks[0] < peaks[1 << 60] - gradients / 2
