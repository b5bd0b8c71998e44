"""The distribution transpiler: gradients are averaged before anything is done with them.

A program for two ranks, run by one that is alone, halves each gradient: it must train as a program
with half the loss does.
"""

from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.base import core

import paddle_ngraph
from paddle_ngraph.__main__ import main as command_line
from paddle_ngraph.paddle_private.names import make_gloo_context
from paddle_ngraph.partitioning.analysis.block_view import is_engine
from paddle_ngraph.plan.data_dependency_engine import PlannedProgram
from paddle_ngraph.transpiler import distribution_transpiler, training_program
from paddle_ngraph.transpiler.distribution_transpiler import DistributionOptions
from tests.frontends.test_ngraph_transpiler import ScopedProgram, text_of
from tests.jobs import free_port, new_group
from tests.programs import floats

STEPS = 4
ALONE = new_group()  # a gloo context of one

pytestmark = pytest.mark.usefixtures("small_intervals_pay")
NgraphError = paddle_ngraph.NgraphError


@pytest.fixture(scope="module", autouse=True)
def alone():
    store = core.TCPStore("127.0.0.1", free_port(), True, 1, 60)
    make_gloo_context(store, str(ALONE), 0, 1)
    yield
    del store


def network(share):
    """The loss of two layers times ``share``; one parameter has a single element."""
    x = paddle.static.data("x", [-1, 4], "float32")
    hidden = F.relu(nn.Linear(4, 5)(x))
    return share * paddle.mean(nn.Linear(5, 1)(hidden * hidden) ** 2)


def trained(make_optimizer, share=1.0):
    def build():
        loss = network(share)
        make_optimizer().minimize(loss)
        return [loss]

    return build


CLIPS = {
    "none": lambda: None,
    "value": lambda: nn.ClipGradByValue(0.05),
    "norm": lambda: nn.ClipGradByNorm(0.1),
    "global": lambda: nn.ClipGradByGlobalNorm(0.1),
}
DECAYS = {"": None, "L1": paddle.regularizer.L1Decay(0.01), "L2": 0.01}
OPTIMIZERS = (
    {
        "schedule": lambda: paddle.optimizer.SGD(paddle.optimizer.lr.StepDecay(0.2, 1)),
    }
    | {
        f"momentum-{clip}-{decay}": lambda clip=clip, decay=decay: paddle.optimizer.Momentum(
            0.1, 0.9, grad_clip=CLIPS[clip](), weight_decay=DECAYS[decay]
        )
        for clip in CLIPS
        for decay in DECAYS
    }
    | {
        name: lambda name=name: getattr(paddle.optimizer, name)(
            0.05, grad_clip=nn.ClipGradByGlobalNorm(0.1)
        )
        for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSProp", "Adamax", "Adadelta", "Lamb")
    }
)


def distributed(scoped, ranks=2, **options):
    """Makes a scoped run the program of a rank, alone."""
    with scoped.inside():
        made = distribution_transpiler.transpile(
            scoped.program, ranks, scoped.fetches, DistributionOptions(ring=ALONE, **options)
        )
    scoped.program, scoped.fetches, scoped.form = made.program, made.fetches, "pir"
    return made


def names(program):
    return [op.name().removeprefix("pd_op.") for op in program.global_block().ops]


# Paddle cannot build the others.
PIR = [name for name in OPTIMIZERS if "value" not in name]
OLD = [name for name in OPTIMIZERS if name.startswith("momentum") and "global" not in name]


@pytest.mark.parametrize(
    ("name", "form"), [(name, "pir") for name in PIR] + [(name, "old") for name in OLD]
)
def test_gradients_are_averaged_before_they_are_clipped(name, form):
    native = ScopedProgram(trained(OPTIMIZERS[name], 0.5), form)
    rank = ScopedProgram(trained(OPTIMIZERS[name]), form)
    distributed(rank)
    expected = native.steps()
    with paddle_ngraph.use_ngraph():
        found = rank.steps()
    for (loss,), (half,) in zip(found, expected):
        np.testing.assert_allclose(loss, 2 * half, rtol=2e-5, atol=1e-7)
    assert paddle_ngraph.stats()["engine_runs"] == 2 * STEPS
    assert names(rank.program).count("all_reduce_") == 1


def two_optimizers(share):
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        layer, losses = nn.Linear(4, 3), []
        for rate in (0.1, 0.2):
            losses.append(share * paddle.mean(paddle.tanh(layer(x)) ** 2))
            clip = nn.ClipGradByGlobalNorm(0.05)
            paddle.optimizer.SGD(rate, grad_clip=clip).minimize(losses[-1])
        return losses

    return build


def shared(share):
    """A parameter with two gradients that are added up after the backward operators, and scaled."""

    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        weight = paddle.create_parameter([4, 4], "float32")
        hidden = paddle.matmul(F.relu(paddle.matmul(x, weight * 2.0)), weight)
        loss = share * paddle.mean(hidden**2)
        clip = nn.ClipGradByGlobalNorm(0.05)
        paddle.optimizer.Adam(0.05, grad_clip=clip).minimize(loss)
        return [loss]

    return build


def in_a_branch(share):
    """The backward pass ends in a branch."""

    def build():
        x, layer = paddle.static.data("x", [-1, 4], "float32"), nn.Linear(4, 3)
        hidden = paddle.static.nn.cond(
            paddle.sum(x) < 1e9, lambda: paddle.tanh(layer(x)), lambda: layer(x) * 2.0
        )
        loss = share * paddle.mean(hidden**2)
        clip = nn.ClipGradByGlobalNorm(0.05)
        paddle.optimizer.SGD(0.2, grad_clip=clip).minimize(loss)
        return [loss]

    return build


def of_one_element(share):
    """A parameter of rank 0, whose clipped gradient has rank 1, and one of rank 1."""

    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        factor = paddle.create_parameter(
            [], "float32", default_initializer=nn.initializer.Constant(2)
        )
        bias = paddle.create_parameter([1], "float32")
        loss = share * paddle.mean((paddle.sin(x) * factor + bias) ** 2)
        clip = nn.ClipGradByGlobalNorm(0.05)
        paddle.optimizer.SGD(0.2, grad_clip=clip).minimize(loss)
        return [loss]

    return build


@pytest.mark.parametrize("build", [two_optimizers, shared, in_a_branch, of_one_element])
def test_it_finds_where_gradients_end(build):
    native, rank = ScopedProgram(build(0.5)), ScopedProgram(build(1.0))
    distributed(rank)
    expected = native.steps()
    with paddle_ngraph.use_ngraph():
        found = rank.steps()
    for losses, halves in zip(found, expected):
        np.testing.assert_allclose(losses, 2 * np.array(halves), rtol=2e-5, atol=1e-7)
    assert paddle_ngraph.stats()["engine_runs"] >= 2 * STEPS


def batch_norm():
    x = paddle.static.data("x", [-1, 4], "float32")
    loss = paddle.mean(nn.BatchNorm1D(4)(nn.Linear(4, 4)(x)) ** 3)
    paddle.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return [loss]


def test_running_statistics_are_averaged():
    """Alone, a rank of two keeps half of them."""
    native, rank = ScopedProgram(batch_norm), ScopedProgram(batch_norm)
    distributed(rank)
    native.run()
    with paddle_ngraph.use_ngraph():
        rank.run()
    kept = [name for name in native.names_of_states() if name.endswith(("w_1", "w_2"))]
    assert len(kept) == 2
    for name, half in rank.states(kept).items():
        np.testing.assert_allclose(2 * half, native.states(kept)[name], rtol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == 2


@pytest.mark.parametrize("megabytes", [25, 150 / 2**20, 1e-9])
def test_buckets_are_as_large_as_they_may_be(megabytes):
    rank = ScopedProgram(trained(OPTIMIZERS["Adam"]))
    sizes = [4 * 5, 5, 5, 1]  # 124 bytes
    distributed(rank, bucket_mb=megabytes)
    reduced = [op for op in rank.program.global_block().ops if op.name() == "pd_op.all_reduce_"]
    found = [op.operand_source(0).shape[0] for op in reduced]
    assert sum(found) == sum(sizes)
    assert len(found) == (4 if megabytes < 1e-6 else 1)


@pytest.mark.parametrize(("ranks", "overlap"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize(
    ("name", "form"),
    [("SGD", "pir"), ("Adam", "pir"), ("schedule", "pir"), ("momentum-norm-L2", "old")],
)
def test_gradients_are_accumulated(name, ranks, overlap, form):
    """Of two halves of a batch they are those of the batch."""
    native = ScopedProgram(trained(OPTIMIZERS[name], 1 / ranks), form)
    rank = ScopedProgram(trained(OPTIMIZERS[name]), form)
    made = distributed(rank, ranks, accumulate=2, bucket_mb=50 / 2**20, overlap=overlap)
    programs = [made.accumulating, (made.program, made.fetches)]
    with rank.inside(), paddle_ngraph.use_ngraph():
        rank.executor.run(made.startup)
        for step in range(STEPS):
            batch = floats(6, 4, seed=step)
            losses = []
            for (program, fetches), half in zip(programs, (batch[:3], batch[3:])):
                losses += rank.executor.run(program, feed={"x": half}, fetch_list=fetches)
            if name == "schedule":
                made.program.lr_scheduler.step()
            (loss,) = native.run(step)
            np.testing.assert_allclose(np.mean(losses), ranks * loss, rtol=2e-5, atol=1e-7)
    assert paddle_ngraph.stats()["engine_runs"] >= 2 * STEPS
    assert "all_reduce_" not in names(made.accumulating[0])
    assert names(made.program).count("all_reduce_") == (2 if ranks > 1 else 0)
    assert not any(name.endswith(("momentum_", "adam_")) for name in names(made.accumulating[0]))


def test_a_bucket_goes_as_soon_as_its_gradients_are_there():
    rank = ScopedProgram(trained(OPTIMIZERS["Adam"]))
    distributed(rank, bucket_mb=50 / 2**20)
    operators = names(rank.program)
    backward = [i for i, name in enumerate(operators) if name.endswith("_grad")]
    collectives = [i for i, name in enumerate(operators) if name == "all_reduce_"]
    assert len(collectives) == 2
    assert collectives[0] < backward[-1] < collectives[1] < operators.index("squared_l2_norm")


@pytest.mark.parametrize("form", ["pir", "old"])
@pytest.mark.parametrize("engine", [True, False])
def test_a_bucket_goes_while_others_are_computed(form, engine, monkeypatch):
    """The backward pass is cut at each; nothing is computed in another way."""
    runs, run = [], PlannedProgram._run_steps
    monkeypatch.setattr(
        PlannedProgram, "_run_steps", lambda self: (runs.append(self), run(self))[1]
    )
    found = []
    for overlap in (False, True):
        rank = ScopedProgram(trained(OPTIMIZERS["momentum-norm-L2"]), form)
        distributed(rank, bucket_mb=40 / 2**20, overlap=overlap)
        buckets = names(rank.program).count("all_reduce_")
        assert buckets == 3
        with paddle_ngraph.use_ngraph(engine):
            before = paddle_ngraph.stats()["engine_runs"]
            found.append(rank.steps())
            ran = paddle_ngraph.stats()["engine_runs"] - before
        assert ran == engine * STEPS * (1 + buckets if overlap else 2)
    np.testing.assert_array_equal(*found)
    assert len(runs) == engine * STEPS
    if engine:
        links = [step for step in runs[0]._schedule.steps if not step.node.is_engine]
        assert [step.after for step in links] == [{0}, {1, 2}, {3, 4}], "one after the other"


def test_one_rank_needs_no_communication():
    rank = ScopedProgram(trained(OPTIMIZERS["Adam"]))
    before = str(rank.program)
    given = rank.program
    made = distributed(rank, ranks=1)
    assert str(given) == str(made.program) == before
    assert made.startup.num_ops() == 0


@pytest.mark.parametrize("form", ["pir", "old"])
def test_the_old_program_stays_as_it_is(form):
    rank = ScopedProgram(trained(OPTIMIZERS["momentum-norm-L2"]), form)
    given, before = rank.program, text_of(rank.program)
    distributed(rank)
    assert text_of(given) == before


@pytest.mark.parametrize("on", [False, True])
def test_the_startup_piece_leaves_rank_0_as_it_is(on):
    scoped = ScopedProgram(trained(OPTIMIZERS["Adam"]))
    made = distributed(scoped)
    kept = scoped.states(training_program.variables(made.program))
    assert len(kept) == 21
    with paddle_ngraph.use_ngraph(on), scoped.inside():
        scoped.executor.run(made.startup)
    for name, value in scoped.states(kept).items():
        np.testing.assert_array_equal(value, kept[name])


def test_it_is_transpiled_further():
    """The ngraph transpiler accepts the output of the distribution transpiler."""
    native, rank = (
        ScopedProgram(trained(OPTIMIZERS["Adam"], 0.5)),
        ScopedProgram(trained(OPTIMIZERS["Adam"])),
    )
    distributed(rank)
    rank.transpile()
    assert sum(is_engine(op.name()) for op in rank.program.global_block().ops) == 2
    for (loss,), (half,) in zip(rank.steps(), native.steps()):
        np.testing.assert_allclose(loss, 2 * half, rtol=2e-5, atol=1e-7)
    assert paddle_ngraph.stats()["engine_runs"] == 2 * STEPS


# -- bad input -----------------------------------------------------------------------------------


def refused(build, match, form="pir", ranks=2, **options):
    scoped = ScopedProgram(build, form)
    before = str(scoped.program)
    with pytest.raises(NgraphError, match=match) as caught:
        paddle_ngraph.distribute(scoped.program, ranks, scoped.fetches, **options)
    assert "\n" not in str(caught.value)
    assert str(scoped.program) == before


def test_unsuitable_programs_are_rejected():
    with pytest.raises(NgraphError, match=r"distribute\(\) takes a static program, not int"):
        paddle_ngraph.distribute(3, 2)
    refused(lambda: [network(1.0)], "updates no parameters: .* minimize")
    scoped = ScopedProgram(trained(OPTIMIZERS["SGD"])).transpile()
    with pytest.raises(NgraphError, match="has engine operators already"):
        paddle_ngraph.distribute(scoped.program, 2)
    scoped = ScopedProgram(trained(OPTIMIZERS["SGD"]))
    distributed(scoped)
    with pytest.raises(NgraphError, match=r"all_reduce_ .* is neither the backward pass"):
        paddle_ngraph.distribute(scoped.program, 2)


def test_numbers_out_of_range_are_refused():
    build = trained(OPTIMIZERS["SGD"])
    refused(build, "ranks=0: give the number of processes", ranks=0)
    refused(build, "accumulate=0: give a number of runs", accumulate=0)
    refused(build, "bucket_mb=0: give a size in MB above 0", bucket_mb=0)


def test_updates_that_cannot_be_accumulated_are_rejected():
    refused(two_optimizers(1.0), "is updated before all gradients are available", accumulate=2)

    def decays():
        loss = paddle.mean(paddle.create_parameter([4], "float32") ** 2)
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss + paddle.mean(paddle.static.data("x", [-1, 4], "float32"))]

    refused(decays, "no gradient depends on the feeds", accumulate=2)


def test_an_unknown_fetch_is_refused():
    scoped = ScopedProgram(trained(OPTIMIZERS["SGD"]))
    with pytest.raises(NgraphError, match=r"fetch_list\[0\] \('nothing'\) is no variable"):
        paddle_ngraph.distribute(scoped.program, 2, "nothing")


def test_untranslatable_programs_are_rejected():
    def build():
        x = paddle.cast(paddle.static.data("x", [-1, 4], "float32"), "int64")
        loss = paddle.mean(nn.Embedding(9, 3, sparse=True)(x))
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss]

    refused(build, "cannot become a PIR program: .* rows of a sparse gradient", "old")


def test_an_update_that_differs_by_more_than_its_gradient_is_refused():
    """A rate that is computed from the data, and a clipping that nobody knows."""

    def of_the_data(changes):
        def build():
            weight = paddle.create_parameter([4, 4], "float32")
            loss = paddle.mean(paddle.matmul(paddle.static.data("x", [-1, 4]), weight))
            ((_, gradient),) = paddle.static.append_backward(loss)
            rate = paddle.full([1], 0.1)
            gradient, rate = changes(gradient, rate, loss)
            paddle._C_ops.sgd_(weight, rate, gradient, None, False)
            return [loss]

        return build

    refused(
        of_the_data(lambda g, rate, loss: (g, rate * loss)),
        "updates '.*' with a 'learning_rate' that depends on the data",
    )
    refused(
        of_the_data(lambda g, rate, loss: (paddle.tanh(g), rate)),
        r"tanh \(operator \d+\) is neither the backward pass .* nor a known clipping",
    )
    refused(
        of_the_data(lambda g, rate, loss: (g * loss, rate)),
        "updates '.*' with a 'grad' that depends on the data",
    )


def test_an_update_in_a_branch_is_refused():
    def build():
        weight = paddle.create_parameter([4, 4], "float32")
        loss = paddle.mean(paddle.matmul(paddle.static.data("x", [-1, 4]), weight))
        ((_, gradient),) = paddle.static.append_backward(loss)
        rate = paddle.full([1], 0.1)
        paddle.static.nn.cond(
            loss > 0,
            lambda: paddle._C_ops.sgd_(weight, rate, gradient, None, False)[0],
            lambda: weight * 1.0,
        )
        return [loss]

    refused(build, "pd_op.sgd_ updates parameters inside a branch or loop")


# -- the command line ----------------------------------------------------------------------------


def saved(tmp_path, form):
    """A program that trains, on disk, with its parameters; returns it and the scoped."""
    scoped = ScopedProgram(trained(OPTIMIZERS["momentum-norm-L2"], 0.5), form)
    prefix = tmp_path / "given" / "net"
    with scoped.inside():
        paddle.static.save(scoped.program, str(prefix))
    return prefix, scoped


def loaded(path):
    """A program from disk, with collectives in a ring of one rank, and the mean of its loss."""
    program = paddle.load(str(path))
    for op in program.global_block().ops:
        if op.has_attr("ring_id"):
            op.set_int_attr("ring_id", ALONE)
    means = [op for op in program.global_block().ops if op.name() == "pd_op.mean"]
    return program, [means[0].result(0)] if means else []


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("form", ["pir", "old"])
def test_a_saved_program_is_distributed(tmp_path, capsys, form):
    prefix, native = saved(tmp_path, form)
    before = {file: file.read_bytes() for file in prefix.parent.iterdir()}
    new = tmp_path / "new" / "rank"
    command = ["transpile", str(prefix), "-o", str(new), "--ranks", "2", "--accumulate", "2"]
    command += ["--overlap"]
    assert command_line(command) == 0
    files = [new.with_name(f"rank{each}.json") for each in (".startup", ".accumulating", "")]
    assert sorted(new.parent.iterdir()) == sorted(files)
    assert capsys.readouterr().out == "".join(f"saved {file}\n" for file in files)
    assert {file: file.read_bytes() for file in prefix.parent.iterdir()} == before
    (startup, _), *programs = map(loaded, files)
    rank = ScopedProgram(trained(OPTIMIZERS["momentum-norm-L2"], 0.5), "pir")
    with rank.inside(), paddle_ngraph.use_ngraph():
        rank.executor.run(startup)
        for program, fetches in programs:
            feed = {"x": floats(6, 4)}
            (found,) = rank.executor.run(program, feed=feed, fetch_list=fetches)
    assert paddle_ngraph.stats()["engine_runs"] >= 3
    (loss,) = native.run()
    np.testing.assert_allclose(0.5 * found, loss, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--ranks", "0"], "ranks=0: give the number of processes"),
        (["--ranks", "2", "--bucket-mb", "-1"], "bucket_mb=-1.0: give a size"),
        (["--ranks", "2", "--accumulate", "0"], "accumulate=0: give a number of runs"),
        (["--bucket-mb", "9"], "--bucket-mb is for --ranks: give both"),
        (["--overlap"], "--overlap is for --ranks: give both"),
        (["--ranks", "2", "--optimize-memory"], "--ranks and --optimize-memory: give one"),
    ],
)
def test_bad_options_are_one_sentence(tmp_path, capsys, options, match):
    prefix, _ = saved(tmp_path, "pir")
    assert command_line(["transpile", str(prefix), "-o", str(tmp_path / "net"), *options]) == 2
    error = capsys.readouterr().err
    assert match in error and error.count("\n") == 1
    assert not list(tmp_path.glob("net*"))


def test_existing_files_are_overwritten_only_by_force(tmp_path, capsys):
    prefix, _ = saved(tmp_path, "pir")
    (tmp_path / "rank.startup.json").write_text("mine")
    command = ["transpile", str(prefix), "-o", str(tmp_path / "rank"), "--ranks", "2"]
    assert command_line(command) == 2
    assert "rank.startup.json is there already: give --force" in capsys.readouterr().err
    assert [file.name for file in tmp_path.glob("rank*")] == ["rank.startup.json"]
    assert (tmp_path / "rank.startup.json").read_text() == "mine"
    assert command_line([*command, "--force"]) == 0
    assert len(list(tmp_path.glob("rank*"))) == 2


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path, capsys):
    prefix, _ = saved(tmp_path, "pir")
    (tmp_path / "file").write_text("")
    command = ["transpile", str(prefix), "-o", str(tmp_path / "file" / "net"), "--ranks", "2"]
    assert command_line(command) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path / 'file'}: File exists" in error and error.count("\n") == 1


def test_a_program_on_disk_that_does_not_train_is_refused(tmp_path, capsys):
    scoped = ScopedProgram(lambda: [network(1.0)])
    with scoped.inside():
        paddle.static.save(scoped.program, str(tmp_path / "net"))
    command = ["transpile", str(tmp_path / "net"), "-o", str(tmp_path / "new"), "--ranks", "2"]
    assert command_line(command) == 2
    assert "updates no parameters" in capsys.readouterr().err
    (tmp_path / "net.json").write_text("{")
    assert command_line(command) == 2
    assert "net.json cannot be read" in capsys.readouterr().err
