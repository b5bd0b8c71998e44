"""The parameter-server form: trainer and server together compute the step of one program.

Here both run in one process, each on its own scope, and exchange arrays.
"""

from __future__ import annotations

import random

import numpy as np
import paddle
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph.distributed.job import DistributedJob, RankPlacement
from paddle_ngraph.distributed.link import Message, MessageKind
from paddle_ngraph.distributed.server import Server, Trainer
from paddle_ngraph.transpiler import training_program
from paddle_ngraph.transpiler.server_transpiler import GRADIENTS, PARAMETERS
from tests.frontends.test_ngraph_transpiler import ScopedProgram, text_of
from tests.programs import floats
from tests.transpiler.test_distribution_transpiler import OLD, OPTIMIZERS, PIR, STEPS, trained

NgraphError = paddle_ngraph.NgraphError
ROWS = 9

pytestmark = pytest.mark.usefixtures("small_intervals_pay")


class Pair(Trainer):
    """A trainer and its server, without messages; the trainer starts with other parameters."""

    def __init__(self, build, form="pir"):
        self.scoped, other = ScopedProgram(build, form), ScopedProgram(build, form)
        given = self.scoped.program
        made = paddle_ngraph.distribute_to_server(given, self.scoped.fetches)
        self._executor, self._form, self._scope = other.executor, made, other.scope
        self._is_open = True
        self.server = Server(
            self.scoped.executor,
            made,
            self.scoped.scope,
            DistributedJob(RankPlacement(0, 2)),
            True,
            None,
        )
        for name in training_program.variables(made.trainer):
            tensor = other.scope.find_var(name).get_tensor()
            tensor.set(0 * np.array(tensor) - 7, paddle.CPUPlace())
        self._start()

    def _ask(self, message):
        self.server._check(1, message)
        if message.kind == MessageKind.START:
            return self.server._kept()
        if message.kind == MessageKind.GET:
            return self.server._read(message.arrays)
        return self.server._update([message.arrays])

    def steps(self, feeds):
        return [self.run(feed) for feed in feeds]


def feeds():
    draw = np.random.default_rng(2)
    return [{"x": draw.normal(size=(6, 4)).astype("float32")} for _ in range(STEPS)]


def rows(low=0):
    draw = np.random.default_rng(3)
    return [{"x": draw.integers(low, ROWS, (6, 4))} for _ in range(STEPS)]


def assert_trains_alike(build, batches, form="pir"):
    native, pair = ScopedProgram(build, form), Pair(build, form)
    with native.inside():
        expected = [
            native.executor.run(native.program, feed=feed, fetch_list=native.fetches)
            for feed in batches
        ]
    before = paddle_ngraph.stats()["engine_runs"]
    with paddle_ngraph.use_ngraph():
        found = pair.steps(batches)
    assert paddle_ngraph.stats()["engine_runs"] >= before + 2 * STEPS
    for losses, others in zip(found, expected):
        np.testing.assert_allclose(losses, others, rtol=2e-5, atol=1e-7)
    states = native.names_of_states()
    for name, value in native.states(states).items():
        np.testing.assert_allclose(
            pair.scoped.states([name])[name], value, rtol=1e-4, atol=1e-6, err_msg=name
        )
    return pair


@pytest.mark.parametrize(
    ("name", "form"), [(name, "pir") for name in PIR] + [(name, "old") for name in OLD]
)
def test_together_they_train_as_one_program_does(name, form):
    pair = assert_trains_alike(trained(OPTIMIZERS[name]), feeds(), form)
    made = pair._form
    names = {op.attrs().get("name") for op in made.trainer.global_block().ops}
    assert {PARAMETERS, "x"} <= names and GRADIENTS not in names
    assert not any("_velocity" in str(each) or "_moment" in str(each) for each in names)
    names = {op.attrs().get("name") for op in made.server.global_block().ops}
    assert GRADIENTS in names and "x" not in names


def test_trainers_read_variables_that_only_the_server_writes():
    """A parameter that only decays, and an average of another one, which the network reads."""

    def build():
        x, layer = paddle.static.data("x", [-1, 4], "float32"), nn.Linear(4, 5)
        decaying = paddle.create_parameter([4, 5], "float32", name="decaying")
        teacher = paddle.create_parameter([4, 5], "float32", name="teacher")
        teacher.stop_gradient = True
        target = paddle.matmul(x, teacher) * paddle.mean(decaying.detach())
        loss = paddle.mean((layer(x) - target) ** 2) + paddle.mean(decaying**2)
        trained = [*layer.parameters(), decaying]
        paddle.optimizer.Momentum(0.1, 0.9, trained).minimize(loss, parameters=trained)
        paddle.assign(teacher * 0.9 + layer.weight * 0.1, teacher)
        return [loss]

    assert_trains_alike(build, feeds())


def test_trainers_start_with_the_variables_of_the_server():
    """Frozen parameters of several dtypes, and statistics, random initial values included."""

    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        frozen, table = nn.Linear(4, 5), nn.Embedding(3, 5)
        for each in (frozen.weight, frozen.bias, table.weight):
            each.stop_gradient = True
        shift = paddle.create_parameter([1], "float64", name="shift")
        shift.stop_gradient = True
        hidden = frozen(x) + table(paddle.full([1], 1, "int64")) + paddle.cast(shift, "float32")
        hidden = nn.Linear(5, 2)(nn.BatchNorm1D(5)(hidden))
        loss = paddle.mean(hidden**2)
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss]

    pair = Pair(build)
    assert len(pair._form.kept) == 6
    for name in pair._form.kept:
        mine, served = (
            np.array(scope.find_var(name).get_tensor())
            for scope in (pair._scope, pair.scoped.scope)
        )
        np.testing.assert_array_equal(mine, served)
        assert not np.all(mine == -7)
    native = ScopedProgram(build)
    with paddle_ngraph.use_ngraph():
        found = pair.steps(feeds())
    for batch, losses in zip(feeds(), found):
        with native.inside():
            expected = native.executor.run(native.program, feed=batch, fetch_list=native.fetches)
        np.testing.assert_allclose(losses, expected, rtol=2e-5)


def test_a_schedule_is_the_servers():
    def build():
        return trained(lambda: paddle.optimizer.SGD(paddle.optimizer.lr.StepDecay(0.2, 1)))()

    native, pair = ScopedProgram(build), Pair(build)
    counts = []
    pair.server._after_update = lambda count: (
        counts.append(count),
        pair.scoped.program.lr_scheduler.step(),
    )
    expected = native.steps()
    with paddle_ngraph.use_ngraph():
        found = pair.steps([{"x": floats(6, 4, seed=step)} for step in range(STEPS)])
    for (loss,), (other,) in zip(found, expected):
        np.testing.assert_allclose(loss, other, rtol=2e-5)
    assert counts == list(range(1, STEPS + 1))
    assert paddle_ngraph.stats()["engine_runs"] >= 2 * STEPS


def looked_up(optimizer, **options):
    """A table with ``options``, read by two lookups."""

    def build():
        x = paddle.static.data("x", [-1, 4], "int64")
        table = nn.Embedding(ROWS, 3, sparse=True, **options)
        hidden = paddle.sum(table(x), 1) + paddle.tanh(paddle.mean(table(x), 1))
        loss = paddle.mean(nn.Linear(3, 2)(hidden) ** 2)
        optimizer().minimize(loss)
        return [loss]

    return build


@pytest.mark.parametrize("padding", [None, 0, 5])
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_rows_are_updated_as_the_whole_table_is(name, padding):
    """SGD and Adagrad do not change rows without a gradient."""
    build = looked_up(OPTIMIZERS[name], padding_idx=padding)
    pair = assert_trains_alike(build, rows())
    (table,) = pair._form.tables
    assert (table.length, table.width) == (ROWS, 3)
    assert table.paddings == ([] if padding is None else [padding])


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("name", ["Adam", "momentum-global-", "Adamax", "RMSProp"])
def test_other_optimizers_update_the_rows_that_are_looked_up(name):
    every = [{"x": np.arange(36).reshape(9, 4) % ROWS} for _ in range(STEPS)]
    assert_trains_alike(looked_up(OPTIMIZERS[name]), every)
    pair = Pair(looked_up(OPTIMIZERS[name]))
    states = [n for n in pair.scoped.names_of_states() if n.startswith("embedding")]
    whole = [n for n in states if pair.scoped.states([n])[n].shape == (ROWS, 3)]
    pair.steps([{"x": np.arange(24).reshape(6, 4) % ROWS}])
    before = pair.scoped.states(whole)
    pair.steps([{"x": np.full((6, 4), 2)}])
    for state, value in pair.scoped.states(whole).items():
        changed = set(np.flatnonzero(np.any(value != before[state], axis=1)))
        assert changed <= {2}, state
        assert changed or "mean_grad" in state, "RMSProp has one that it does not use"


def test_a_program_of_nothing_but_a_table():
    def build():
        table = nn.Embedding(ROWS, 3, sparse=True)
        loss = paddle.mean(table(paddle.static.data("x", [-1, 4], "int64")) ** 2)
        paddle.optimizer.SGD(0.5).minimize(loss)
        return [loss]

    pair = assert_trains_alike(build, rows())
    assert pair._form.send[1] == []


@pytest.mark.slow("trains through many compiles")
def test_gradients_of_several_trainers_are_averaged():
    """Rows that several have looked up, and rows that one has."""
    build = looked_up(OPTIMIZERS["Adagrad"])
    native, pair = ScopedProgram(build), Pair(build)
    pushed = []
    pair._ask = lambda message: (
        pair.server._read(message.arrays)
        if message.kind == MessageKind.GET
        else pushed.append([np.array(each) for each in message.arrays])
    )
    with paddle_ngraph.use_ngraph():
        for batch in rows():
            del pushed[:]
            halves = [pair.run({"x": batch["x"][part]}) for part in (slice(3), slice(3, 6))]
            pair.server._update(pushed)
            with native.inside():
                (loss,) = native.executor.run(native.program, feed=batch, fetch_list=native.fetches)
            np.testing.assert_allclose(np.mean(halves), loss, rtol=2e-5)
    assert paddle_ngraph.stats()["engine_runs"] >= 3 * STEPS


@pytest.mark.parametrize("form", ["pir", "old"])
def test_the_old_program_stays_as_it_is(form):
    scoped = ScopedProgram(trained(OPTIMIZERS["momentum-norm-L2"]), form)
    before = text_of(scoped.program)
    paddle_ngraph.distribute_to_server(scoped.program, scoped.fetches)
    assert text_of(scoped.program) == before


# -- bad input -----------------------------------------------------------------------------------


def refused(build, match):
    scoped = ScopedProgram(build)
    before = text_of(scoped.program)
    with pytest.raises(NgraphError, match=match) as caught:
        paddle_ngraph.distribute_to_server(scoped.program, scoped.fetches)
    assert "\n" not in str(caught.value)
    assert text_of(scoped.program) == before


def test_programs_that_cannot_be_served_are_rejected():
    def computed():
        table = nn.Embedding(ROWS, 3, sparse=True)
        loss = paddle.mean(table(paddle.static.data("x", [-1, 4], "int64") + 1) ** 2)
        paddle.optimizer.SGD(0.5).minimize(loss)
        return [loss]

    def tied():
        table = nn.Embedding(ROWS, 3, sparse=True)
        hidden = paddle.mean(table(paddle.static.data("x", [-1, 4], "int64")), 1)
        loss = paddle.mean(paddle.matmul(hidden, table.weight, transpose_y=True) ** 2)
        paddle.optimizer.SGD(0.5).minimize(loss)
        return [loss]

    def two_optimizers():
        layer, x = nn.Linear(4, 3), paddle.static.data("x", [-1, 4])
        losses = [paddle.mean(layer(x) ** 2), paddle.mean(paddle.tanh(layer(x)))]
        for loss in losses:
            paddle.optimizer.SGD(0.1).minimize(loss)
        return losses

    def fetches_an_update():
        weight = paddle.create_parameter([4, 4], "float32")
        loss = paddle.mean(paddle.matmul(paddle.static.data("x", [-1, 4]), weight))
        ((_, gradient),) = paddle.static.append_backward(loss)
        clipped = paddle.clip(gradient, -1e-3, 1e-3)
        paddle._C_ops.sgd_(weight, paddle.full([1], 0.1), clipped, None, False)
        return [loss, clipped]

    decay = {"weight_decay": 0.1}
    decaying = looked_up(lambda: paddle.optimizer.SGD(0.1, **decay))
    refused(computed, "table '.*' is looked up by computed indices: feed the indices")
    refused(tied, r"table '.*' is read by pd_op.matmul\S*: give its embedding sparse=False")
    refused(two_optimizers, "'.*' is updated before all gradients are available")
    refused(fetches_an_update, r"fetch_list\[1\] is computed with the updates")
    refused(decaying, "adds to the gradient of all rows of the table .* without decay")


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (1, 2), (0, 2)])
def test_each_rank_has_one_role(rank, ranks):
    scoped = ScopedProgram(trained(OPTIMIZERS["SGD"]))
    form = paddle_ngraph.distribute_to_server(scoped.program)
    given = scoped.executor, form, scoped.scope, DistributedJob(RankPlacement(rank, ranks))
    role = rf"this is rank {rank} of {ranks}: .* rank 0 calls serve\(\)"
    if rank or ranks == 1:
        with pytest.raises(NgraphError, match=role):
            Server(*given, True, None).run()
    if rank == 0:
        with pytest.raises(NgraphError, match=role):
            Trainer(*given)


def test_rows_out_of_range_are_refused():
    pair = Pair(looked_up(OPTIMIZERS["SGD"]))
    for bad in (-1, ROWS):
        with pytest.raises(NgraphError, match=rf"rows .*{bad}.* looked up, which has {ROWS}"):
            pair.run({"x": np.array([[0, 1, 2, bad]])})
    with pytest.raises(NgraphError, match="'x' is not fed, with which the table"):
        pair.run({})


# -- messages that are not of the program ---------------------------------------------------------


def other_arrays(arrays: list[np.ndarray], draw: random.Random) -> list[np.ndarray]:
    """The arrays of a message with one of them changed, missing, twice or in another place."""
    changed, at = list(arrays), draw.randrange(len(arrays))
    kind = draw.randrange(6)
    if kind == 0:
        del changed[at]
    elif kind == 1:
        changed.insert(at, changed[draw.randrange(len(changed))])
    elif kind == 2:
        changed[at] = changed[at].astype(draw.choice(["int32", "float64", "uint8", "bool"]))
    elif kind == 3:
        changed[at] = changed[at].reshape(
            draw.choice([[-1], [1, -1], [-1, 1], [1, *changed[at].shape]])
        )
    elif kind == 4:
        changed[at] = draw.choice(
            [changed[at][:-1], changed[at][:0], np.repeat(changed[at], 40, 0)]
        )
    elif changed[at].dtype == np.int64:
        changed[at] = changed[at].copy()
        wrong = [-1, ROWS, ROWS + 1, 2**31, 2**40, 2**63 - 1, -(2**63)]
        changed[at][draw.randrange(len(changed[at]))] = draw.choice(wrong)
    return changed


@pytest.mark.parametrize("seed", range(12))
def test_messages_of_another_program_are_refused(seed):
    """A message is refused, or has the arrays of a valid one: then the server computes with it."""
    draw = random.Random(seed)
    pair = Pair(looked_up(OPTIMIZERS["SGD"]))
    row_ids = [np.arange(5)]
    pushed = [np.zeros(value.shape, "float32") for value in pair._form.gradients[:-1]]
    pushed += [np.arange(5), np.zeros((5, pair._form.tables[0].width), "float32")]
    valid = {
        MessageKind.GET: row_ids,
        MessageKind.PUSH: pushed,
        MessageKind.START: [],
        MessageKind.DONE: [],
    }
    refused = 0
    for _ in range(60):
        kind = draw.choice([MessageKind.GET, MessageKind.PUSH])
        arrays = other_arrays(valid[kind], draw)
        sent = draw.choice([kind] * 5 + list(MessageKind))
        message = Message(sent, arrays)
        if sent == MessageKind.FAILURE:
            continue
        try:
            pair.server._check(1, message)
        except NgraphError as error:
            assert "trainer 1 has sent a message" in str(error)
            refused += 1
            continue
        if arrays:
            assert sent == kind
            pair._ask(message)
    assert refused > 20
    for kind, arrays in valid.items():
        pair.server._check(1, Message(kind, arrays))


@pytest.mark.parametrize("seed", range(4))
def test_answers_of_another_program_are_refused(seed, monkeypatch):
    draw = random.Random(seed)
    pair = Pair(looked_up(OPTIMIZERS["SGD"]))
    ask, refused = pair._ask, 0

    def answered(message):
        found = ask(message)
        return other_arrays(found, draw) if message.kind == MessageKind.GET else found

    monkeypatch.setattr(pair, "_ask", answered)
    for _ in range(20):
        try:
            pair.run(rows()[0])
        except NgraphError as error:
            assert str(error).startswith(
                "the answer of the parameter server is not of this program"
            )
            refused += 1
    assert refused > 8
