"""Data parallelism in one process: concurrent slices of a batch give the results of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import NgraphError, _core
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.paddle_private.names import IrMapping, tensor_of_array
from paddle_ngraph.plan.data_dependency_engine import PlannedProgram
from tests.plan.networks import WIDTH, Planned, data, tower, training, two_towers
from tests.programs import Program, floats

CPU = paddle.CPUPlace()
pytestmark = pytest.mark.usefixtures("small_intervals_pay")


class Sliced:
    """A program, and its copy in slices; each has its own variables."""

    def __init__(self, build: Any, places: int) -> None:
        self.native, self.engine = Program(build), Program(build)
        self.made = paddle_ngraph.data_parallel(self.engine.main, places, self.engine.fetches)

    def run(self, **feed: np.ndarray) -> list[np.ndarray]:
        with paddle.static.scope_guard(self.engine.scope):
            return self.engine.executor.run(
                self.made.program, feed=feed, fetch_list=self.made.fetches
            )

    def both(self, **feed: np.ndarray) -> None:
        """One run each; asserts that they agree, and that the engine ran."""
        expected = self.native.run(engine=False, **feed)
        before = paddle_ngraph.stats()["engine_runs"]
        results = self.run(**feed)
        assert paddle_ngraph.stats()["engine_runs"] > before, "the engine did not run"
        for one, other in zip(expected, results):
            assert one.shape == other.shape
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-6)


def classification() -> list[Any]:
    """Integer labels, softmax, weight decay, clipping by the global norm, a schedule."""
    x, label = data(), paddle.static.data("label", [-1, 1], "int64")
    logits = nn.Linear(WIDTH, 5)(tower(x))
    loss = paddle.mean(F.cross_entropy(logits, label))
    rate = paddle.optimizer.lr.StepDecay(0.05, 2)
    clip = nn.ClipGradByGlobalNorm(0.5)
    paddle.optimizer.AdamW(rate, weight_decay=0.02, grad_clip=clip).minimize(loss)
    return [loss, logits]


def ranked() -> list[Any]:
    """Feeds and results of rows of many dtypes, most of which no operator of the engine divides."""
    x, ids = data(), paddle.static.data("ids", [-1, 3], "int64")
    kept = paddle.static.data("kept", [-1, 1], "bool")
    hidden = tower(x) + paddle.sum(nn.Embedding(50, WIDTH)(ids), 1)
    hidden = paddle.where(kept, hidden, -hidden)
    best, order = paddle.topk(hidden, 2)
    return [paddle.argmax(hidden, 1), order, best, hidden > 0, hidden]


def convolutions() -> list[Any]:
    x = paddle.static.data("x", [-1, 3, 12, 12], "float32")
    hidden = F.max_pool2d(F.relu(nn.Conv2D(3, 8, 3)(x)), 2)
    loss = paddle.mean(nn.Linear(200, 4)(paddle.flatten(hidden, 1)) ** 2)
    paddle.optimizer.Momentum(0.002, 0.9).minimize(loss)
    return [loss, hidden]


@pytest.mark.parametrize("places", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("build", [two_towers, training])
def test_results_are_those_of_the_whole_batch(build, places):
    sliced = Sliced(build, places)
    for step in range(4):
        sliced.both(x=floats(12, WIDTH, seed=step))


@pytest.mark.parametrize("places", [2, 4])
def test_rows_of_any_dtype_are_read_and_put_together_by_the_engine(places, planned_runs):
    sliced = Sliced(ranked, places)
    draw = np.random.default_rng(0)
    for step, size in enumerate((8, 8, 12)):
        ids, kept = draw.integers(0, 50, (size, 3)), draw.random((size, 1)) < 0.5
        sliced.both(x=floats(size, WIDTH, seed=step), ids=ids, kept=kept)
    assert len(planned_runs) == 3, "Paddle's executor ran it"
    assert len(planned_runs[0]._schedule.rows) == 3 * places


def test_rows_that_do_not_follow_each_other_are_an_error():
    tensors = [tensor_of_array(np.zeros(shape, "float32"), CPU) for shape in ([2, 3], [2, 4], [])]
    for first, second in [(0, 1), (0, 2), (2, 2)]:
        with pytest.raises(NgraphError, match="do not follow those of"):
            _core.ConcatRows([tensors[first], tensors[second]]).run()
    (whole,) = _core.ConcatRows([tensors[0], _core.split_rows(tensors[0], 2)[1]]).run()
    assert whole.shape() == [3, 3]


@pytest.mark.slow("trains through many compiles")
def test_a_classifier_trains_as_on_the_whole_batch(planned_runs):
    sliced = Sliced(classification, 2)
    draw = np.random.default_rng(0)
    for step in range(6):
        label = draw.integers(0, 5, (8, 1))
        sliced.both(x=floats(8, WIDTH, seed=step), label=label)
    assert len(planned_runs) == 6, "Paddle's executor ran it"
    sources = [op.attrs() for op in sliced.native.main.global_block().ops]
    names = [each["parameter_name"] for each in sources if "parameter_name" in each]
    assert len(names) >= 8
    for name in names:
        np.testing.assert_allclose(
            sliced.engine.variable(name), sliced.native.variable(name), rtol=1e-4, atol=1e-6
        )


def test_convolutions_train_as_on_the_whole_batch():
    sliced = Sliced(convolutions, 2)
    for step in range(4):
        sliced.both(x=floats(6, 3, 12, 12, seed=step))


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("layer", [nn.SimpleRNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_are_computed_in_slices(layer, trains):
    """As part of the interval: the packed operators, one for all samples, would be beside it."""

    def build():
        x = paddle.static.data("x", [-1, 5, WIDTH], "float32")
        hidden, _ = layer(WIDTH, 8, num_layers=2, direction="bidirect")(x)
        out = nn.Linear(16, 3)(hidden[:, -1])
        loss = paddle.mean(out**2)
        if trains:
            paddle.optimizer.Momentum(0.05).minimize(loss)
        return [loss, out]

    sliced = Sliced(build, 2)
    for step in range(3):
        sliced.both(x=floats(4, 5, WIDTH, seed=step))


@pytest.mark.slow("compiles many or large functions")
def test_batches_of_several_sizes():
    sliced = Sliced(training, 2)
    for size in (4, 8, 2, 20, 4):
        sliced.both(x=floats(size, WIDTH, seed=size))


@pytest.mark.slow("compiles many or large functions")
def test_one_function_serves_all_slices(planned_runs, nothing_cached):
    """So there is one copy of the weights, which are constants of it."""

    def graph_of_its_own() -> list[Any]:
        loss, first = two_towers()
        return [loss, first + 41.0]

    sliced = Sliced(graph_of_its_own, 4)
    for step in range(3):
        sliced.both(x=floats(8, WIDTH, seed=step))
    stats = paddle_ngraph.stats()
    assert stats["functions_with_weights"] > 0
    # Of the slices, and of the mean. One of these may be there twice, if a run could not tell
    # whether the one that there was serves it; with one for each slice there were five.
    assert 2 <= paddle_ngraph.cache_info().currsize <= 3, stats
    assert stats["engine_runs"] == 3 * (4 + 1)  # slices, the mean; rows take none
    assert len(planned_runs) == 3


def test_slices_run_at_the_same_time(planned_runs):
    sliced = Sliced(two_towers, 4)
    sliced.both(x=floats(8, WIDTH))
    steps = planned_runs[0]._schedule.steps
    slices = [step for step in steps if len(step.groups) > 1]
    assert len(slices) == 4
    assert {step.after for step in slices} == {frozenset()}, "one waits for another"
    assert all(len(step.groups) == 4 for step in slices)
    threads = _core.num_threads()
    settings = {RunSettings.of(step.node.graph) for step in slices}
    expected = RunSettings(threads=max(1, threads // 4), runs_at_once=min(4, threads))
    assert settings == {expected}, "they take turns"


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("build", [two_towers, training])
def test_arrays_are_read_where_they_are(planned_runs, monkeypatch, build):
    """From the second run on. Arrays that do not match are copied, or rejected, as in any run."""
    short = []
    original = PlannedProgram.run_on

    def run_on(self, feed):
        short.append(original(self, feed))
        return short[-1]

    monkeypatch.setattr(PlannedProgram, "run_on", run_on)
    sliced = Sliced(build, 2)
    arrays = [floats(size, WIDTH, seed=size) for size in (8, 4, 8)]
    before = [array.copy() for array in arrays]
    for array in [*arrays, arrays[0][:, ::-1], np.asfortranarray(arrays[0])]:
        sliced.both(x=array)
    assert [found is not None for found in short] == [True, True, False, False]
    assert len(planned_runs) == 5
    for array, old in zip(arrays, before):
        np.testing.assert_array_equal(array, old)
    with pytest.raises(NgraphError, match="7 samples"):
        sliced.run(x=floats(7, WIDTH))
    sliced.both(x=arrays[0])


def test_a_part_of_a_feed_that_is_fetched_has_memory_of_its_own(planned_runs):
    def build() -> list[Any]:
        x = data()
        first, second = paddle.split(x, 2)
        one, other = tower(first), tower(second)
        return [first, one + other]

    planned = Planned(build, ["CPU:0", "CPU:1"])
    for seed in range(3):
        array = floats(8, WIDTH, seed=seed)
        found = planned.both(x=array)
        assert not np.shares_memory(found[0], array)
        found[0][:] = 7
        np.testing.assert_array_equal(array, floats(8, WIDTH, seed=seed))


def test_a_feed_that_is_overwritten_stays_the_users(planned_runs):
    def build() -> list[Any]:
        x = data()
        results = [tower(x), tower(x)]
        paddle.assign(x * 2, output=x)
        return [*results, x + 0]

    planned = Planned(build, ["CPU:0", "CPU:1"])
    for seed in range(3):
        array = floats(8, WIDTH, seed=seed)
        planned.both(x=array)
        np.testing.assert_array_equal(array, floats(8, WIDTH, seed=seed))


def test_inputs_of_static_shape_are_for_all_slices():
    def build() -> list[Any]:
        x, scale = data(), paddle.static.data("scale", [1, WIDTH], "float32")
        return [F.relu(x * scale), paddle.mean(x * scale)]

    Sliced(build, 2).both(x=floats(6, WIDTH), scale=floats(1, WIDTH, seed=5))


@pytest.mark.slow("draws many programs")
def test_dropout_samples_each_slice_by_the_seed():
    sliced = [Sliced(lambda: training(0.4), 2) for _ in range(2)]
    found = []
    for each in sliced:
        paddle.seed(7)
        found.append([each.run(x=floats(8, WIDTH, seed=step))[0] for step in range(3)])
    assert found[0] == found[1] and len(set(map(float, found[0]))) == 3


@pytest.mark.slow("compiles many or large functions")
def test_a_batch_that_does_not_divide_is_an_error_and_nothing_is_lost():
    sliced = Sliced(training, 2)
    sliced.both(x=floats(8, WIDTH))
    for engine in (False, True):
        with (
            paddle_ngraph.use_ngraph(engine),
            pytest.raises(
                paddle_ngraph.NgraphError,
                match=r"^the batch of 'x' has 7 samples, which are not divisible among 2 "
                r"slices: feed",
            ),
        ):
            sliced.run(x=floats(7, WIDTH))
    for step in range(3):
        sliced.both(x=floats(8, WIDTH, seed=step))


@pytest.mark.parametrize("places", [0, -1, 1.0, "2", None, True, 10**9])
def test_bad_numbers_of_places(places):
    with pytest.raises(paddle_ngraph.NgraphError, match=r"places is .*integer from 1"):
        paddle_ngraph.data_parallel(Program(two_towers).main, places)


def refused(build: Any, reason: str) -> None:
    program = Program(build)
    before = str(program.main)
    with pytest.raises(paddle_ngraph.NgraphError, match=reason) as error:
        paddle_ngraph.data_parallel(program.main, 2, program.fetches)
    assert "\n" not in str(error.value)
    assert str(program.main) == before


def test_programs_that_cannot_be_computed_in_slices():
    def with_static_shape() -> list[Any]:
        return [F.relu(paddle.static.data("x", [8, 4], "float32"))]

    def native() -> list[Any]:
        return [paddle.erfinv(F.relu(data()))]

    def integers() -> list[Any]:
        return [paddle.sum(paddle.cast(data() > 0, "int32"))]

    def normalized() -> list[Any]:
        loss = paddle.mean(nn.BatchNorm1D(WIDTH)(nn.Linear(WIDTH, WIDTH)(data())) ** 3)
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss]

    def turned() -> list[Any]:
        return [paddle.transpose(F.relu(data()), [1, 0])]

    refused(turned, r"of shape \[\d+, -1\] has its samples in another dimension than the first")
    refused(with_static_shape, "no feed of the program has a dynamic first dimension")
    refused(native, "erfinv .* runs natively")
    refused(integers, "int.* neither a mean over samples nor one for each sample")
    refused(
        normalized,
        "^a batch normalization takes the mean and the variance of the whole batch, which no slice "
        r"of it has, and updates 'batch_norm1d_\d+\.w_1' with them: .*; train it whole, or use",
    )


def test_a_program_with_engine_operators_is_refused():
    program = Program(two_towers)
    transpiled = paddle_ngraph.transpile(program.main)
    with pytest.raises(paddle_ngraph.NgraphError, match="engine operators already"):
        paddle_ngraph.data_parallel(transpiled, 2)


def test_it_survives_a_clone():
    sliced = Sliced(two_towers, 2)
    expected = sliced.run(x=floats(4, WIDTH))
    made = sliced.made
    operators = [op.name() for op in made.program.global_block().ops]
    mapping = IrMapping()
    clone = made.program.clone(mapping)
    assert [op.name() for op in clone.global_block().ops] == operators
    fetches = [mapping.look_up(value) for value in made.fetches]
    with paddle.static.scope_guard(sliced.engine.scope):
        results = sliced.engine.executor.run(
            clone, feed={"x": floats(4, WIDTH)}, fetch_list=fetches
        )
    for one, other in zip(expected, results):
        np.testing.assert_array_equal(one, other)
