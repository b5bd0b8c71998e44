"""The pipeline form: the stages together compute the step of one program on the whole batch.

Here all stages run in one process, in threads that exchange messages, each on its own scope,
initialized by the startup program of its stage.
"""

from __future__ import annotations

import math
import queue
import threading

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph.distributed.stages import PipelineStage
from paddle_ngraph.partitioning.analysis.block_view import can_be_placed, is_sequential
from paddle_ngraph.partitioning.analysis.placement import NATIVE, device_of
from paddle_ngraph.transpiler.building import ACCUMULATED
from tests.frontends.test_ngraph_transpiler import text_of
from tests.transpiler.test_memory_transpiler import settled
from tests.zips import zip_equal

NgraphError = paddle_ngraph.NgraphError
STEPS, BATCH = 20, 12
SECONDS = 600

pytestmark = pytest.mark.usefixtures("small_intervals_pay")


# -- networks ------------------------------------------------------------------------------------


def mlp():
    x, y = paddle.static.data("x", [-1, 12]), paddle.static.data("y", [-1, 1])
    hidden = x
    for size in (12, 32, 32):
        hidden = paddle.tanh(nn.Linear(size, 32)(hidden))
    loss = F.mse_loss(nn.Linear(32, 1)(hidden), y)
    paddle.optimizer.Momentum(0.02, 0.9, weight_decay=1e-3).minimize(loss)
    return [loss, hidden]


def cnn():
    x, y = paddle.static.data("x", [-1, 1, 8, 8]), paddle.static.data("y", [-1, 1], "int64")
    maps = F.gelu(nn.Conv2D(1, 6, 3, padding=1)(x))
    maps = F.avg_pool2d(F.gelu(nn.Conv2D(6, 8, 3, padding=1)(maps)), 2)
    loss = F.cross_entropy(nn.Linear(128, 4)(paddle.flatten(maps, 1)), y)
    paddle.optimizer.Momentum(0.05, 0.9).minimize(loss)
    return [loss]


def transformer():
    """With a mask computed from the feed, a schedule, and clipping by the norm of all gradients."""
    x, y = paddle.static.data("x", [-1, 6], "int64"), paddle.static.data("y", [-1, 1], "int64")
    mask = paddle.unsqueeze(paddle.cast(x == 0, "float32") * -1e4, [1, 2])
    hidden = nn.Embedding(20, 16)(x) + nn.Embedding(6, 16)(paddle.arange(6))
    for _ in range(2):
        # A bias of keys has no gradient but roundings, which Adam would make steps of.
        biases = [False, None]
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", bias_attr=biases)
        hidden = layer(hidden, mask)
    logits = nn.Linear(16, 4)(paddle.mean(hidden, 1))
    loss = F.cross_entropy(logits, y)
    rate = paddle.optimizer.lr.StepDecay(0.003, 5)
    clip = nn.ClipGradByGlobalNorm(0.2)
    paddle.optimizer.Adam(rate, weight_decay=1e-4, grad_clip=clip).minimize(loss)
    return [loss, logits]


NETWORKS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def batches(network, size=BATCH, steps=STEPS):
    draw = np.random.default_rng(len(network))
    for _ in range(steps):
        y = draw.integers(0, 4, (size, 1))
        if network == "mlp":
            x = draw.normal(size=(size, 12)).astype("float32")
            yield {"x": x, "y": x[:, :1] * x[:, 1:2]}
        elif network == "cnn":
            x = draw.normal(size=(size, 1, 8, 8)) + y[:, :, None, None]
            yield {"x": x.astype("float32"), "y": y}
        else:
            yield {"x": (draw.integers(0, 20, (size, 6)) + y) % 20, "y": y}


# -- all stages in one process -------------------------------------------------------------------


class Network:
    """A program and its startup program."""

    def __init__(self, build, form="pir"):
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self.main, self.startup), paddle.utils.unique_name.guard():
            self.fetches = build()

    def pipeline(self, stages=2, micro_batches=2, **options):
        return paddle_ngraph.pipeline(
            self.main,
            stages,
            self.fetches,
            micro_batches=micro_batches,
            startup_program=self.startup,
            **options,
        )

    def step_schedule(self):
        if hasattr(self.main, "lr_scheduler"):
            self.main.lr_scheduler.step()


class Alone:
    """A network that one process trains natively."""

    def __init__(self, build):
        self.network = Network(build)
        self.scope, self.executor = paddle.static.Scope(), paddle.static.Executor()
        paddle.seed(7)
        self.executor.run(self.network.startup, scope=self.scope)

    def run(self, feed):
        with paddle.static.scope_guard(self.scope):
            network = self.network
            found = self.executor.run(network.main, feed=feed, fetch_list=network.fetches)
        network.step_schedule()
        return found

    def variable(self, name):
        return np.array(self.scope.find_var(name).get_tensor())


class Stage(PipelineStage):
    """One of several in a process: the scope of ``scope_guard`` is that of all threads."""

    lock = threading.Lock()

    def _run(self, part, given):
        with self.lock:
            return super()._run(part, given)


class Together:
    """The stages of a network, in threads."""

    def __init__(self, build, stages=2, micro_batches=2, **options):
        self.network = Network(build)
        self.form = self.network.pipeline(stages, micro_batches, **options)
        self.scopes = [paddle.static.Scope() for _ in range(stages)]
        for stage, scope in zip(self.form.stages, self.scopes):
            paddle.seed(7)
            paddle.static.Executor().run(stage.startup, scope=scope)
        inboxes = [queue.SimpleQueue() for _ in range(stages)]
        self.stages = [
            Stage(
                paddle.static.Executor(),
                self.form,
                scope,
                number,
                inboxes[number],
                {
                    other: _Outbox(number, inboxes[other])
                    for other in (number - 1, number + 1)
                    if 0 <= other < stages
                },
            )
            for number, scope in enumerate(self.scopes)
        ]

    def run(self, *feeds):
        """One step; a feed for all stages, or one for each. Returns each one's fetches or error."""
        found = [None] * len(self.stages)

        def work(number):
            paddle.enable_static()
            try:
                found[number] = self.stages[number].run(feeds[number % len(feeds)])
            except NgraphError as error:
                found[number] = error

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(self.stages))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert not any(thread.is_alive() for thread in threads), "they wait for each other"
        self.network.step_schedule()
        return found

    def variables(self):
        """The variables of all stages but for sums, each from its stage."""
        return {
            name: np.array(scope.find_var(name).get_tensor())
            for stage, scope in zip(self.form.stages, self.scopes)
            for name in stage.variables
            if not name.startswith(ACCUMULATED)
        }


class _Outbox:
    def __init__(self, sender, inbox):
        self._sender, self._inbox = sender, inbox

    def put(self, message):
        self._inbox.put((self._sender, message))


def assert_trains_alike(build, feeds, stages=2, micro_batches=2, rtol=2e-5, **options):
    alone, together = Alone(build), Together(build, stages, micro_batches, **options)
    feeds = list(feeds)
    expected = [alone.run(feed) for feed in feeds]
    with paddle_ngraph.use_ngraph():
        found = [together.run(feed) for feed in feeds]
    stats, runs = paddle_ngraph.stats(), 2 * stages * micro_batches - micro_batches
    assert stats["engine_runs"] >= runs * len(feeds)
    assert stats["functions_with_weights"] == 0, "a copy of what the next update changes"
    for each, results in zip(found, expected):
        for of_stage in each:
            for mine, other in zip_equal(of_stage, results):
                np.testing.assert_allclose(mine, other, rtol=rtol, atol=1e-6)
    variables = together.variables()
    for name, value in variables.items():
        np.testing.assert_allclose(value, alone.variable(name), rtol=1e-3, atol=1e-5, err_msg=name)
    return together


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("network", NETWORKS)
def test_two_stages_train_as_one_process_does(network, micro_batches):
    assert_trains_alike(NETWORKS[network], batches(network), micro_batches=micro_batches)


@pytest.mark.slow("starts several processes")
def test_three_stages_have_parameters_of_their_own():
    together = Together(mlp, 3)
    names = [set(stage.variables) - {"learning_rate_0"} for stage in together.form.stages]
    assert all(names) and not (names[0] & names[1] or names[1] & names[2])
    assert_trains_alike(mlp, batches("mlp"), stages=3, micro_batches=3)


@pytest.mark.slow("starts several processes")
def test_a_batch_of_one_part_needs_no_stages():
    assert_trains_alike(mlp, batches("mlp"), stages=1, micro_batches=1)


UPDATES = {
    "sgd": lambda **clip: paddle.optimizer.SGD(0.02, **clip),
    "momentum": lambda **clip: paddle.optimizer.Momentum(0.02, 0.9, **clip),
    "adam": lambda **clip: paddle.optimizer.Adam(0.01, **clip),
    "adamw": lambda **clip: paddle.optimizer.AdamW(0.01, **clip),
    "adagrad": lambda **clip: paddle.optimizer.Adagrad(0.02, **clip),
}


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("optimizer", UPDATES)
def test_sums_and_updates_are_in_place(optimizer, clips):
    """No stage holds a second copy of its sums, or of tensors that Paddle computes from them."""

    def build():
        x, y = paddle.static.data("x", [-1, 12]), paddle.static.data("y", [-1, 1])
        # Without biases, whose gradient may be nothing but rounding.
        layers = [nn.Linear(12, 32, bias_attr=False), nn.Linear(32, 1, bias_attr=False)]
        loss = F.mse_loss(layers[1](paddle.tanh(layers[0](x))), y)
        clip = {"grad_clip": nn.ClipGradByGlobalNorm(0.1)} if clips else {}
        UPDATES[optimizer](**clip).minimize(loss)
        return [loss]

    steps = 3
    together = assert_trains_alike(build, batches("mlp", steps=steps))
    stats = paddle_ngraph.stats()
    assert stats["native_runs"] == 0
    # Of each of the two parameters: the gradients of two micro-batches, a step, zeros.
    is_native = optimizer == "adagrad"
    assert stats["steps_in_place"] == steps * 2 * (2 if is_native else 4)
    sums = [
        np.array(scope.find_var(name).get_tensor())
        for stage, scope in zip(together.form.stages, together.scopes)
        for name in stage.variables
        if name.startswith(ACCUMULATED)
    ]
    assert len(sums) == 2 and not any(total.any() for total in sums)


# -- memory --------------------------------------------------------------------------------------

WIDTH, DEPTH = 128, 32


def deep():
    """Layers that two stages share, with an optimizer and clipping that Paddle's kernels do."""
    x, y = paddle.static.data("x", [-1, WIDTH]), paddle.static.data("y", [-1, 1])
    for _ in range(DEPTH):
        x = paddle.tanh(nn.Linear(WIDTH, WIDTH, bias_attr=False)(x))
    loss = F.mse_loss(nn.Linear(WIDTH, 1, bias_attr=False)(x), y)
    clip = nn.ClipGradByGlobalNorm(0.1)
    paddle.optimizer.Adagrad(0.02, grad_clip=clip).minimize(loss)
    return [loss]


def bytes_of(variables):
    return sum(4 * math.prod(value.shape) for value in variables)


@pytest.mark.slow("starts several processes")
def test_a_stage_begins_with_its_own_variables():
    """Initial values of the parameters of other stages are freed."""
    with paddle_ngraph.use_ngraph(False):
        network = Network(deep)
        for stage in network.pipeline().stages:
            before, scope, executor = settled(), paddle.static.Scope(), paddle.static.Executor()
            executor.run(stage.startup, scope=scope)
            found = settled() - before
            own = bytes_of(stage.variables.values())
            assert own <= found < own + 4 * WIDTH * WIDTH, "executors keep what they run"


@pytest.mark.slow("starts several processes")
def test_norms_and_updates_of_sums_need_little_memory():
    """Both programs are placed on Paddle's kernels, in an order that frees early."""
    for stage in Network(deep).pipeline().stages:
        sums = bytes_of(v for n, v in stage.variables.items() if n.startswith(ACCUMULATED))
        for part in (stage.norms, stage.update):
            assert is_sequential(part.program)
            operators = filter(can_be_placed, part.program.global_block().ops)
            assert {device_of(op) for op in operators} == {NATIVE}
            report = paddle_ngraph.explain_memory(part.program, part.fetches)
            assert 0 < report.before < sums / 4, str(report)


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 0}, "stages is 0: give an integer from 1"),
        ({"stages": 2.0}, "stages is 2.0: give an integer"),
        ({"micro_batches": -1}, "micro_batches is -1: give an integer"),
        ({"cuts": []}, "cuts has 0 places for 2 stages: give 1"),
        ({"cuts": ["nothing"]}, "cuts: variable 0"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    network = Network(mlp)
    before = text_of(network.main)
    with pytest.raises(NgraphError, match=message) as caught:
        paddle_ngraph.pipeline(network.main, fetch_list=network.fetches, **options)
    assert "\n" not in str(caught.value)
    assert text_of(network.main) == before


def test_a_parameter_of_two_stages_is_named():
    def tied():
        x, y = paddle.static.data("x", [-1, 12]), paddle.static.data("y", [-1, 1])
        layer, other = nn.Linear(12, 12), nn.Linear(12, 1)
        loss = F.mse_loss(other(paddle.tanh(layer(paddle.tanh(layer(x))))), y)
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss]

    network = Network(tied)
    hidden = next(
        op.result(0) for op in network.main.global_block().ops if op.name() == "pd_op.tanh"
    )
    with pytest.raises(NgraphError, match=r"linear_\d+\.[wb]_0"):
        paddle_ngraph.pipeline(network.main, fetch_list=network.fetches, cuts=[hidden])


def test_batches_that_do_not_fit_fail_on_all_stages():
    together = Together(mlp, micro_batches=4)
    found = together.run(*batches("mlp", size=10, steps=1))
    assert all(isinstance(error, NgraphError) for error in found)
    assert "10 samples, which are not divisible among 4 micro-batches" in str(found[0])
    with pytest.raises(NgraphError, match="closed: create another one"):
        together.stages[0].run({})
    together = Together(mlp)
    found = together.run(*(next(batches("mlp", size=size)) for size in (12, 8)))
    assert "feed all ranks the same batch" in str(found[1])
    together = Together(mlp)
    found = together.run({})
    assert "is not fed, which stage 0 reads" in str(found[0])
