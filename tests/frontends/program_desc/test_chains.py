"""Old programs with effects, rows of sparse gradients and gradients of loops and branches.

Operators that the translation to PIR cannot keep run natively in their place, in order, and the
engine runs the rest.
"""

from __future__ import annotations

import gc
import random
import re
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import static
from paddle.base.layer_helper import LayerHelper

import paddle_ngraph
from paddle_ngraph.partitioning import operator_chains
from tests import old_programs
from tests.programs import Program, at_once, floats

WIDTH, WORDS, STEPS = 6, 12, 3


@pytest.fixture(autouse=True)
def old_ir():
    with paddle.pir_utils.OldIrGuard():
        yield


def append(kind: str, inputs: Any, dtype: str = "float32", **attributes: Any) -> Any:
    """Appends an operator with the result ``Out``."""
    helper = LayerHelper(kind)
    out = helper.create_variable_for_type_inference(dtype)
    helper.append_op(type=kind, inputs=inputs, outputs={"Out": out}, attrs=attributes)
    return out


def product(x: Any, y: Any) -> Any:
    return append("matmul_v2", {"X": x, "Y": y}, trans_x=False, trans_y=False)


class Drawing:
    """A program with operators that cannot be translated, between layers that can.

    Args:
        seed: Of the random choices.
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._weights = 0

    def build(self) -> list[Any]:
        """Builds the program; returns the variables to fetch."""
        x = static.data("x", [-1, WIDTH], "float32")
        x.stop_gradient = False
        hidden, fetched = F.relu(static.nn.fc(x, WIDTH)), []
        pieces = [self.rows, self.python, self.shown, self.loop, self.nested, self.branch]
        pieces += [self.dropped, self.shown_in_a_loop]
        for piece in self._draw.sample(pieces, 3):
            hidden = piece(hidden)
            fetched.append(hidden)
            hidden = F.relu(static.nn.fc(hidden, WIDTH)) + hidden
        loss = paddle.mean(static.nn.fc(hidden, 3))
        if self._draw.random() < 0.8:
            self.optimizer().minimize(loss)
        return [loss, *fetched]

    def optimizer(self) -> Any:
        is_lazy, decay = self._draw.random() < 0.5, self._draw.choice([None, 0.1])
        return self._draw.choice(
            [
                paddle.optimizer.SGD(0.1, weight_decay=decay),
                paddle.optimizer.Momentum(0.1, 0.8, use_nesterov=is_lazy),
                # With a large epsilon: small gradients, divided by their size, would show rounding.
                paddle.optimizer.Adam(0.01, 0.9, 0.99, 0.1, lazy_mode=is_lazy, weight_decay=decay),
                paddle.optimizer.Adagrad(0.1, 0.1),
            ]
        )

    def weight(self) -> Any:
        self._weights += 1
        return static.create_parameter([WIDTH, WIDTH], "float32", name=f"weight{self._weights}")

    def rows(self, x: Any) -> Any:
        """Rows of a table, read once or twice, with a sparse gradient."""
        ids = static.data("ids", [-1, 2], "int64")
        name = paddle.ParamAttr(name="table")
        for _ in range(self._draw.randint(1, 2)):
            found = static.nn.embedding(ids, (WORDS, WIDTH), is_sparse=True, param_attr=name)
            x = x + paddle.mean(found, axis=1)
        return x

    def python(self, x: Any) -> Any:
        """Functions of the user, which print."""
        block = static.default_main_program().current_block()
        out = block.create_var(name=f"python{len(block.ops)}", dtype="float32", shape=[-1, WIDTH])

        def forward(x: Any) -> np.ndarray:
            print("forward", np.array(x).shape, flush=True)
            return np.array(x) * 2.0

        def backward(x: Any, y: Any, gradient: Any) -> np.ndarray:
            print("backward", np.array(gradient).shape, flush=True)
            return np.array(gradient) * 2.0

        static.py_func(forward, x, out, backward_func=backward)
        return out

    def shown(self, x: Any) -> Any:
        """A function, so that what is printed has to keep the order."""
        many = self._draw.choice([-1, 2])
        x = static.Print(x, message="hidden", first_n=many, summarize=2, print_phase="forward")
        return self.python(static.Print(x, message="again", summarize=0, print_phase="forward"))

    def loop(self, x: Any) -> Any:
        """A loop with a gradient."""
        weight = self.weight()

        def body(i: Any, x: Any) -> list[Any]:
            return [i + 1, append("tanh", {"X": product(x, weight)})]

        return self._looped(body, x, self._draw.randint(1, 3))

    def nested(self, x: Any) -> Any:
        """A loop in a loop, with gradients."""
        weight = self.weight()

        def inner(i: Any, x: Any) -> list[Any]:
            return [i + 1, append("tanh", {"X": product(x, weight)})]

        return self._looped(lambda i, x: [i + 1, self._looped(inner, x, 2) * 0.5], x, 2)

    def shown_in_a_loop(self, x: Any) -> Any:
        """A loop without a gradient that prints."""

        def body(i: Any, x: Any) -> list[Any]:
            return [i + 1, static.Print(F.relu(x), message="inside", summarize=1) * 0.5]

        x.stop_gradient = True
        return self.python(self._looped(body, x, 2))

    def _looped(self, body: Callable[..., list[Any]], x: Any, times: int) -> Any:
        end, start = (paddle.full([1], value, "int64") for value in (times, 0))
        start.stop_gradient = True
        return static.nn.while_loop(lambda i, _: i < end, body, [start, x])[1]

    def branch(self, x: Any) -> Any:
        """A branch with a gradient."""
        drawing = old_programs.Drawing(self._draw.randrange(100))
        drawing.keep(old_programs.Value(x, "batch"))
        mean = append("reduce_mean", {"X": x}, dim=[0], reduce_all=True)
        flag = paddle.reshape(mean, [1]) > paddle.full([1], self._draw.choice([0.0, -9.0, 9.0]))
        return drawing.select(flag, old_programs.Value(x, "batch"))

    def dropped(self, x: Any) -> Any:
        """Samples beside functions of the user, which may sample, too."""
        return self.python(F.dropout(x, 0.4))


def feed_of(program: Program, step: int) -> dict[str, Any]:
    feed = {"x": floats(3, WIDTH, seed=step)}
    if program.main.global_block().has_var("ids"):
        feed["ids"] = np.random.default_rng(step).integers(0, WORDS, (3, 2))
    return feed


def apart(printed: str) -> tuple[list[str], np.ndarray]:
    """Splits printed text into that without the contents of tensors, and these."""
    pieces = re.split(r"data: \[(.*)\]", printed)
    return pieces[::2], np.array(" ".join(pieces[1::2]).split(), "float64")


def history_of(seed: int, is_on: bool, capfd: Any) -> list[tuple[old_programs.Outcome, str]]:
    program = Program(Drawing(seed).build)
    capfd.readouterr()
    return [
        (old_programs.outcome(program, is_on, feed_of(program, step)), capfd.readouterr().out)
        for step in range(STEPS)
    ]


def require_equal(seed: int, capfd: Any) -> None:
    native = history_of(seed, False, capfd)
    before = paddle_ngraph.stats()["engine_runs"]
    engine = history_of(seed, True, capfd)
    assert paddle_ngraph.stats()["engine_runs"] >= before + STEPS, "the engine did not run the rest"
    for (expected, printed), (found, printed_by_engine) in zip(native, engine):
        assert not expected.error, expected.error
        assert old_programs.distance(expected, found) <= old_programs.TOLERANCE
        (text, numbers), (found_text, found_numbers) = apart(printed), apart(printed_by_engine)
        assert found_text == text
        np.testing.assert_allclose(found_numbers, numbers, 1e-4, 1e-5)


@pytest.mark.usefixtures("small_intervals_pay", "native_in_order")
@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed, capfd):
    require_equal(seed, capfd)


@pytest.mark.slow("many programs")
@pytest.mark.usefixtures("small_intervals_pay", "native_in_order")
@pytest.mark.parametrize("first", range(8, 208, 20))
def test_many_random_programs(first, capfd):
    for seed in range(first, first + 20):
        require_equal(seed, capfd)


# -- functions of the user -------------------------------------------------------------------------


def calling(function: Callable[[Any], Any]) -> Callable[[], list[Any]]:
    """A program that calls a function between layers."""

    def build() -> list[Any]:
        hidden = F.relu(static.nn.fc(static.data("x", [-1, WIDTH], "float32"), WIDTH))
        block = static.default_main_program().current_block()
        out = block.create_var(name="out", dtype="float32", shape=[-1, WIDTH])
        static.py_func(function, hidden, out)
        return [static.nn.fc(F.relu(out), 2)]

    return build


class Refused(Exception):
    """An error of a function of the user."""


@pytest.mark.usefixtures("small_intervals_pay")
@pytest.mark.parametrize("kind", [Refused, KeyboardInterrupt, ZeroDivisionError])
def test_errors_of_functions_reach_the_caller_and_the_next_run_works(kind):
    errors: list[BaseException] = []

    def function(x: Any) -> np.ndarray:
        if errors:
            raise errors.pop()
        return np.array(x) + 1.0

    program, feed = Program(calling(function)), {"x": floats(2, WIDTH)}
    for is_on in (False, True):
        errors.append(kind("no"))
        with pytest.raises(kind, match="no"):
            program.run(is_on, **feed)
        program.both(**feed)
    gc.collect()  # the frames of the errors
    assert operator_chains.live_runs() == 0


@pytest.mark.usefixtures("small_intervals_pay")
def test_a_handler_of_a_signal_runs_inside_a_function():
    seen: list[str] = []

    def function(x: Any) -> np.ndarray:
        signal.raise_signal(signal.SIGUSR1)
        seen.append("after")
        return np.array(x)

    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("handler"))
    program = Program(calling(function))
    try:
        for _ in range(2):
            program.run(True, x=floats(2, WIDTH))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == ["handler", "after"] * 2
    assert paddle_ngraph.stats()["engine_runs"] > 0


@pytest.mark.usefixtures("small_intervals_pay")
def test_a_function_may_run_a_program():
    inner = Program(calling(lambda x: np.array(x) * 3.0))

    def function(x: Any) -> np.ndarray:
        return np.array(x) + inner.run_as_is(x=np.array(x))[0].mean()

    outer = Program(calling(function))
    for step in range(3):
        outer.both(x=floats(2, WIDTH, seed=step))


@pytest.mark.usefixtures("small_intervals_pay")
def test_threads_have_runs_of_their_own():
    programs = [Program(calling(lambda x: np.array(x) + 1.0)) for _ in range(2)]
    feeds = [floats(2, WIDTH, seed=seed) for seed in range(2)]
    expected = [p.run(False, x=feed)[0] for p, feed in zip(programs, feeds)]
    with paddle_ngraph.use_ngraph():

        def work(number: int) -> None:
            for _ in range(10):
                (found,) = programs[number].run_as_is(x=feeds[number])
                np.testing.assert_allclose(found, expected[number], 1e-5, 1e-6)

        at_once(work, 2)


# -- rows ------------------------------------------------------------------------------------------


def large_table() -> list[Any]:
    ids = static.data("ids", [-1, 2], "int64")
    name = paddle.ParamAttr(name="table")
    found = static.nn.embedding(ids, (20000, WIDTH), is_sparse=True, param_attr=name)
    loss = paddle.mean(static.nn.fc(F.relu(paddle.mean(found, axis=1)), WIDTH))
    paddle.optimizer.Adam(0.01, lazy_mode=True).minimize(loss)
    return [loss]


@pytest.mark.usefixtures("small_intervals_pay")
def test_a_table_is_updated_in_place(monkeypatch):
    """Updates write rows alone, and programs that read the table find them."""
    copied: list[int] = []

    def copying(tensor: Any, place: Any) -> Any:
        copied.append(int(np.prod(tensor.shape())))
        return copy_of(tensor, place)

    copy_of = operator_chains.copy_of
    monkeypatch.setattr(operator_chains, "copy_of", copying)
    native, engine = Program(large_table), Program(large_table)
    report = paddle_ngraph.explain(engine.main)
    assert not any("assign" in type for each in report.intervals for type in each.types)
    readers = [program.main.clone(for_test=True) for program in (native, engine)]
    for step in range(3):
        ids = np.random.default_rng(step).integers(0, 20000, (3, 2))
        results = []
        for program, reader, is_on in zip((native, engine), readers, (False, True)):
            (loss,) = program.run(is_on, ids=ids)
            with static.scope_guard(program.scope), paddle_ngraph.use_ngraph(is_on):
                name = program.fetches[0].name
                again = program.executor.run(reader, feed={"ids": ids}, fetch_list=[name])
            results.append([loss, *again])
        np.testing.assert_allclose(results[1], results[0], 1e-5, 1e-6)
        assert results[0][0] != results[0][1]
    assert not copied
    assert paddle_ngraph.stats()["engine_runs"] >= 3
    assert operator_chains.live_runs() == 0


# -- prints ----------------------------------------------------------------------------------------


def printing_twice() -> list[Any]:
    hidden = F.relu(static.nn.fc(static.data("x", [-1, WIDTH], "float32"), WIDTH))
    shown = static.Print(hidden, first_n=2, message="twice")
    block = static.default_main_program().current_block()
    out = block.create_var(name="out", dtype="float32", shape=[-1, WIDTH])
    static.py_func(lambda x: np.array(x), shown, out)
    return [static.nn.fc(F.relu(out), 2)]


@pytest.mark.usefixtures("small_intervals_pay")
def test_a_print_counts_its_runs_while_the_program_is_translated_again(capfd):
    program = Program(printing_twice)
    for rows in (1, 1, 1, 64, 4096, 1, 1):
        program.run(True, x=floats(rows, WIDTH))
    assert capfd.readouterr().out.count("twice") == 2
    assert paddle_ngraph.stats()["engine_runs"] > 0


# -- samples ---------------------------------------------------------------------------------------


def dropped_sequences() -> list[Any]:
    """Dropout in training on words with a LoD, beside samples that are translated."""
    x = static.data("x", [-1, WIDTH], "float32")
    hidden = F.relu(static.nn.fc(x, WIDTH))
    helper = LayerHelper("lod_reset")
    words = helper.create_variable_for_type_inference("float32")
    helper.append_op(
        type="lod_reset",
        inputs={"X": hidden},
        outputs={"Out": words},
        attrs={"target_lod": [0, 1, 3]},
    )
    kept = F.dropout(words, 0.4)
    return [F.dropout(F.relu(static.nn.fc(x, WIDTH)), 0.4), kept, F.dropout(kept * 2.0, 0.3)]


@pytest.mark.usefixtures("small_intervals_pay", "native_in_order")
def test_dropout_of_sequences_samples_as_in_paddle():
    native, engine = Program(dropped_sequences), Program(dropped_sequences)
    for step in range(3):
        feed = {"x": floats(3, WIDTH, seed=step)}
        expected = old_programs.outcome(native, False, feed)
        found = old_programs.outcome(engine, True, feed)
        assert not expected.error and expected.results[1][1]
        assert old_programs.distance(expected, found) <= old_programs.TOLERANCE
    assert paddle_ngraph.stats()["engine_runs"] > 0
