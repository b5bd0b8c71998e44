"""Repeated calls of ``Executor.run`` run the engine directly, with equal results."""

from __future__ import annotations

import contextlib
import gc

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.frontends.executor import call_cache
from paddle_ngraph.frontends.executor.switch import SwitchedExecutor
from tests.programs import Program, at_once, chain, floats, linear_regression


@pytest.fixture
def straight(monkeypatch):
    """For each cached call: whether it ran the engine directly."""
    taken = []
    original = SwitchedExecutor.repeat

    def repeat(self, *arguments):
        results = original(self, *arguments)
        taken.append(results is not None)
        return results

    monkeypatch.setattr(SwitchedExecutor, "repeat", repeat)
    return taken


def doubled():
    return paddle.static.data("x", [-1, 4], "float32") * 2.0


def looked_up():
    ids = paddle.static.data("ids", [-1], "int64")
    return paddle.static.nn.embedding(ids, [10, 4]) * 2.0


def dropped_out():
    x = paddle.static.data("x", [-1, 64], "float32")
    ids = paddle.static.data("ids", [-1], "int64")
    table = paddle.static.create_parameter([10, 64], "float32")
    return paddle.nn.functional.dropout(x, 0.5) + paddle.nn.functional.embedding(ids, table)


def test_it_goes_straight_from_the_second_run_on(straight):
    program = Program(linear_regression)
    other = Program(linear_regression)
    for count in range(4):
        feed = {"x": floats(6, 4, seed=count), "y": floats(6, 1, seed=count)}
        native = other.run(engine=False, **feed)
        np.testing.assert_allclose(program.run(**feed)[0], native[0], rtol=1e-5)
    assert straight == [True] * 3
    assert paddle_ngraph.stats()["engine_runs"] == 4
    for name in other.scope.local_var_names():
        if name.endswith((".w_0", ".b_0")):
            np.testing.assert_allclose(program.variable(name), other.variable(name), rtol=1e-5)


def test_old_style_programs_too(straight):
    with paddle.pir_utils.OldIrGuard():
        program = Program(linear_regression)
        for _ in range(3):
            program.run(x=floats(6, 4), y=floats(6, 1))
    assert straight == [True] * 2


def test_other_sizes(straight):
    program = Program(doubled)
    for rows in (2, 3, 2, 5):
        (out,) = program.run(x=floats(rows, 4))
        np.testing.assert_array_equal(out, 2.0 * floats(rows, 4))
    assert straight == [True] * 3


@pytest.mark.parametrize(
    "feed",
    [
        floats(3, 8)[:, ::2],
        floats(4, 3).T,
        floats(3, 4).astype(">f4").astype("float32").tolist(),
        np.zeros([0, 4], "float32"),
        np.asfortranarray(floats(3, 4)),
    ],
    ids=["strided", "transposed", "list", "empty", "fortran"],
)
def test_feeds_that_paddle_has_to_prepare(straight, feed):
    program = Program(doubled)
    program.run(x=floats(3, 4))
    (native,) = program.run(engine=False, x=feed)
    (out,) = program.run(x=feed)
    np.testing.assert_array_equal(out, native)
    assert straight == [False]


def test_a_feed_of_another_dtype_warns(straight):
    program = Program(doubled)
    program.run(x=floats(3, 4))
    for engine in (False, True):
        with pytest.raises(ValueError, match="does not match the type of data"):
            program.run(engine=engine, x=np.ones([3, 4], "int32"))
    assert straight == [False]


def test_an_unknown_feed_warns(straight):
    program = Program(doubled)
    program.run(x=floats(3, 4))
    for _ in range(2):
        with pytest.warns(UserWarning, match="z is not found in program"):
            program.run(x=floats(3, 4), z=floats(1))
    assert not any(straight)


def test_feeds_that_nothing_reads_have_to_be_there():
    def build():
        paddle.static.data("y", [-1, 4], "float32")
        return doubled()

    program = Program(build)
    program.run(x=floats(3, 4), y=floats(3, 4))
    with pytest.raises(KeyError, match="y"):
        program.run(x=floats(3, 4))


def test_feeds_are_left_as_they_are_and_results_are_the_users(straight):
    program = Program(lambda: paddle.static.data("x", [-1, 4096], "float32") * 2.0)
    for rows in (2, 64):  # small results are copied, the memory of large ones is transferred
        feed = floats(rows, 4096)
        held = []
        for _ in range(3):
            held += program.run(x=feed)
            held[-1] += 1.0
        np.testing.assert_array_equal(feed, floats(rows, 4096))
        for out in held:
            np.testing.assert_array_equal(out, 2.0 * feed + 1.0)
    assert straight == [True] * 5


def test_a_value_fetched_twice_is_two_arrays(straight):
    def build():
        out = paddle.static.data("x", [-1, 4096], "float32") * 2.0
        return [out, out]

    program = Program(build)
    for _ in range(2):
        first, second = program.run(x=floats(64, 4096))
        first[:] = 0.0
        np.testing.assert_array_equal(second, 2.0 * floats(64, 4096))
    assert straight == [True]


def test_nothing_outlives_executor_and_scope():
    def switches():
        gc.collect()
        return sum(isinstance(each, SwitchedExecutor) for each in gc.get_objects())

    before = switches()
    program = Program(doubled)
    for _ in range(3):
        program.run(x=floats(2, 4))
    assert switches() > before
    del program
    assert switches() == before


def test_many_alternating_programs(straight):
    programs = [Program(doubled) for _ in range(12)]
    executor = programs[0].executor
    for _ in range(2):
        for program in programs:
            program.executor = executor
            program.run(x=floats(2, 4))
            np.testing.assert_array_equal(programs[0].run(x=floats(2, 4))[0], 2.0 * floats(2, 4))
    assert straight.count(True) >= 22


@pytest.mark.parametrize("is_old_style", [False, True])
def test_a_program_that_changed(straight, is_old_style):
    with paddle.pir_utils.OldIrGuard() if is_old_style else contextlib.nullcontext():
        _change_program(straight)


def _change_program(straight):
    program = Program(doubled)
    program.run(x=floats(2, 4))
    program.run(x=floats(2, 4))
    with paddle.static.program_guard(program.main):
        program.fetches = [program.fetches[0] + 1.0]
    for _ in range(2):
        np.testing.assert_array_equal(program.run(x=floats(2, 4))[0], 2.0 * floats(2, 4) + 1.0)
    assert straight == [True, True]


def test_an_operator_of_an_old_style_program_that_changed(straight):
    with paddle.pir_utils.OldIrGuard():
        program = Program(lambda: paddle.scale(paddle.static.data("x", [-1, 4]), 2.0))
        for _ in range(2):
            np.testing.assert_array_equal(program.run(x=floats(2, 4))[0], 2.0 * floats(2, 4))
        (scale,) = (op for op in program.main.global_block().ops if op.type == "scale")
        scale.desc._set_attr("scale", 3.0)
        for _ in range(2):
            np.testing.assert_array_equal(program.run(x=floats(2, 4))[0], 3.0 * floats(2, 4))
    assert straight == [True] * 2


def test_a_fetched_variable_of_another_program_that_is_renamed(straight):
    with paddle.pir_utils.OldIrGuard():

        def build():
            x = paddle.static.data("x", [-1, 4])
            return paddle.scale(x, 2.0), paddle.scale(x, 3.0)

        program = Program(build)
        (doubled, tripled), x = program.fetches, floats(2, 4)
        program.main, program.fetches = program.main.clone(for_test=True), [tripled]
        for _ in range(3):
            np.testing.assert_array_equal(program.run(x=x)[0], 3.0 * x)
        tripled.desc.set_name(doubled.name)
        np.testing.assert_array_equal(program.run(x=x)[0], 2.0 * x)
    assert straight == [True] * 2


@pytest.mark.parametrize("attribute", ["_graph", "_pipeline_opt", "_heter_pipeline_opt"])
def test_an_old_style_program_that_is_plain_no_more(straight, attribute):
    with paddle.pir_utils.OldIrGuard():
        program = Program(doubled)
        for _ in range(3):
            program.run(x=floats(2, 4))
        setattr(program.main, attribute, {"section": 1})
        with contextlib.suppress(Exception):  # Paddle may accept or reject it
            program.run(x=floats(2, 4))
    assert straight == [True] * 2


def test_weights_written_between_runs_are_seen(straight):
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        return x * paddle.static.create_parameter([4], "float32", name="weight")

    program = Program(build)
    for value in (1.0, 2.0, 3.0):
        program.scope.find_var("weight").get_tensor().set(
            np.full([4], value, "float32"), paddle.CPUPlace()
        )
        np.testing.assert_array_equal(program.run(x=floats(2, 4))[0], value * floats(2, 4))
    assert straight == [True, True]


def test_training_is_seen_by_inference(straight):
    def scaled():
        x = paddle.static.data("x", [-1, 4], "float32")
        return x * paddle.static.create_parameter([4], "float32", name="weight")

    def step():
        loss = paddle.mean(paddle.square(scaled()))
        paddle.optimizer.SGD(0.1).minimize(loss)
        return loss

    results = {}
    for engine in (False, True):
        train, test = Program(step), Program(scaled)
        test.scope = train.scope
        results[engine] = [
            program.run(engine=engine, x=floats(3, 4))[0]
            for _ in range(3)
            for program in (train, test)
        ]
    assert straight == [True] * 4
    for native, ours in zip(results[False], results[True]):
        np.testing.assert_allclose(ours, native, rtol=1e-5)


def test_the_flag_is_asked_at_every_run(straight):
    program = Program(doubled)
    for engine in (True, True, False, True):
        program.run(engine=engine, x=floats(2, 4))
    assert straight == [True, True]
    assert paddle_ngraph.stats()["engine_runs"] == 3


def test_an_error_is_the_same_and_loses_nothing(straight, monkeypatch):
    right = {"x": floats(3, 64), "ids": np.array([1, 2, 3])}
    wrong = {"x": floats(3, 64), "ids": np.array([1, 2, 2**40])}

    def results():
        program = Program(dropped_out)
        paddle.seed(5)
        outs = [program.run(**right)[0] for _ in range(2)]
        with pytest.raises(Exception, match=r"1099511627776") as caught:
            program.run(**wrong)
        return [*outs, *(program.run(**right)[0] for _ in range(2))], caught.type

    ours, error = results()
    assert straight == [True, True, True]  # and one that raised: nothing is run twice
    monkeypatch.setattr(SwitchedExecutor, "repeat", lambda self, feed, prepare, is_on: None)
    prepared, expected_error = results()
    np.testing.assert_array_equal(ours, prepared)
    assert error is expected_error


def test_a_closed_executor_raises(straight):
    program = Program(doubled)
    program.run(x=floats(2, 4))
    program.executor.close()
    with pytest.raises(RuntimeError, match="closed Executor"):
        program.run(x=floats(2, 4))
    assert not straight


def scheduled(scheduler):
    x = paddle.static.data("x", [-1, 4], "float32")
    loss = paddle.mean(paddle.static.nn.fc(x, 1))
    paddle.optimizer.SGD(scheduler).minimize(loss)
    return loss


def losses_of(engine):
    """Of four steps, the learning rate a tenth from one to the next."""
    scheduler = paddle.optimizer.lr.StepDecay(0.5, step_size=1)
    program = Program(lambda: scheduled(scheduler))
    losses = []
    for _ in range(4):
        losses += program.run(engine=engine, x=floats(3, 4))
        scheduler.step()
    name = getattr(program.main, "lr_name", scheduler._var_name)
    np.testing.assert_allclose(program.variable(name), [0.5e-3], rtol=1e-6)
    return losses


@pytest.mark.parametrize("is_old_style", [False, True], ids=["PIR", "old style"])
def test_a_learning_rate_scheduler_is_asked(straight, is_old_style):
    with paddle.pir_utils.OldIrGuard() if is_old_style else contextlib.nullcontext():
        native = losses_of(engine=False)
        np.testing.assert_allclose(losses_of(engine=True), native, rtol=1e-5)
    assert straight == [True] * 3


def test_a_scheduler_is_the_one_of_the_first_run(straight):
    """Paddle keeps a copy of the program, with its scheduler; both executions read that one."""
    program = Program(lambda: scheduled(paddle.optimizer.lr.StepDecay(0.5, step_size=1)))
    for _ in range(3):
        program.run(x=floats(3, 4))
    program.main.lr_scheduler = paddle.optimizer.lr.StepDecay(7.0, step_size=1)
    for feed in (floats(3, 4), floats(3, 8)[:, ::2], floats(3, 4)):
        program.run(x=feed)
        np.testing.assert_array_equal(program.variable(program.main.lr_name), [0.5])
    assert straight == [True, True, True, False, True]


def test_a_scheduler_without_a_step_writes_nothing(straight):
    """A test program has the scheduler of the training program, and constant weights."""
    scheduler = paddle.optimizer.lr.StepDecay(0.5, step_size=1)

    def prediction():
        x = paddle.static.data("x", [-1, 4], "float32")
        out = paddle.static.nn.fc(x, 1)
        paddle.static.default_main_program().lr_scheduler = scheduler
        paddle.static.default_main_program().lr_name = "rate"
        scheduler._var_name = "rate"
        return out * paddle.static.create_parameter([], "float32", name="rate")

    program = Program(prediction)
    for _ in range(6):
        (out,) = program.run(x=floats(3, 4))
    assert straight == [True] * 5
    assert paddle_ngraph.stats()["functions_built"] == 1
    scheduler.step()
    np.testing.assert_allclose(program.run(x=floats(3, 4))[0], out / 10, rtol=1e-6)
    assert paddle_ngraph.stats()["functions_built"] == 2


def test_several_scopes(straight):
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        return x * paddle.static.create_parameter([4], "float32", name="weight")

    program = Program(build)
    scopes = {value: paddle.static.Scope() for value in (1.0, 2.0)}
    for value, scope in scopes.items():
        scope.var("weight").get_tensor().set(np.full([4], value, "float32"), paddle.CPUPlace())
    for _ in range(3):
        for value, program.scope in scopes.items():
            np.testing.assert_array_equal(program.run(x=floats(2, 4))[0], value * floats(2, 4))
    assert straight == [True] * 4


@pytest.mark.slow("compiles many or large functions")
def test_calls_that_differ_in_one_thing(straight):
    """Alternately, so that no call repeats the one before."""

    def build():
        x, y = (paddle.static.data(name, [-1, 4], "float32") for name in ("x", "y"))
        weight = paddle.static.create_parameter([4], "float32", name="weight")
        return [x * weight + y, x - y * weight]

    program, other = Program(build), Program(build)
    scopes = {value: paddle.static.Scope() for value in (1.0, 2.0)}
    for value, scope in scopes.items():
        scope.var("weight").get_tensor().set(np.full([4], value, "float32"), paddle.CPUPlace())
    x, y = floats(3, 4, seed=1), floats(3, 4, seed=2)
    paddle_ngraph.enable()
    for _ in range(4):
        for value, scope in scopes.items():
            expected = [x * value + y, x - y * value]
            for made in (program, other):
                for feed in ({"x": x, "y": y}, {"y": y, "x": x}):
                    for wanted in ([0], [1], [0, 1], [1, 0], [1, 1]):
                        found = program.executor.run(
                            made.main,
                            feed=feed,
                            fetch_list=[made.fetches[number] for number in wanted],
                            scope=scope,
                        )
                        for number, array in zip(wanted, found):
                            np.testing.assert_allclose(array, expected[number], rtol=1e-6)
    assert paddle_ngraph.stats()["engine_runs"] == 4 * 40


def test_threads_that_share_a_program(straight):
    program = Program(chain)
    feeds = [floats(1 + i % 5, 4, seed=i) for i in range(60)]
    expected = [program.run(engine=False, x=feed) for feed in feeds]

    def work(_: int) -> None:
        for feed, values in zip(feeds, expected):
            found = program.executor.run(
                program.main, feed={"x": feed}, fetch_list=program.fetches, scope=program.scope
            )
            for value, want in zip(found, values):
                np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)

    paddle_ngraph.enable()
    program.run_as_is(x=feeds[0])
    at_once(work)
    assert all(straight)
    assert len(straight) == 4 * len(feeds)


def test_concurrent_lookups_find_their_own_program():
    """Another thread may run between two reads of the last entry."""
    program, other = Program(doubled), Program(doubled)
    for each in (program, other):
        each.run(x=floats(2, 4))
        each.run(x=floats(2, 4))
    calls = [vars(each.executor)[call_cache._CACHE_ATTRIBUTE] for each in (program, other)]
    mine, theirs = (next(iter(each._entries.values())) for each in calls)

    class Raced(call_cache._CallCache):
        _last = property(lambda self: theirs, lambda self, value: None)

    raced = Raced()
    call = {
        "program": program.main,
        "feed": {"x": floats(2, 4)},
        "fetch_list": program.fetches,
        "scope": program.scope,
    }
    raced.put(call_cache._key(call), mine)
    assert raced.find(call) is mine
