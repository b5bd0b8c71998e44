"""The ngraph transpiler: the new program computes the results of the old one, also in other
processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import _core, flags
from paddle_ngraph.__main__ import main as command_line
from paddle_ngraph.conversion import registry
from paddle_ngraph.partitioning.analysis.block_view import FETCH, SOURCES, BlockView, is_engine
from tests.programs import Program, chain, floats, with_untranslatable_noise

ROOT = Path(__file__).parents[2]
STEPS = 4

pytestmark = pytest.mark.usefixtures("small_intervals_pay")


# -- programs: for x [-1, 4]; old-style ones can be built with these functions of Paddle, too ------


def linear(name=None):
    weight = paddle.ParamAttr(name=name, initializer=nn.initializer.Normal(0, 0.4))
    return nn.Linear(4, 4, weight_attr=weight)


def data():
    return paddle.static.data("x", [-1, 4], "float32")


def in_two_intervals(hidden):
    """Nothing converts ``erfinv``."""
    return paddle.erfinv(paddle.clip(hidden, -0.7, 0.8))


def inference():
    x = data()
    hidden = F.relu(linear()(x))
    return [linear()(in_two_intervals(hidden)), hidden, x]


def momentum():
    loss = paddle.mean(linear()(F.relu(linear()(data()))) ** 2)
    paddle.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return [loss]


def adam_with_dropout():
    """Samples in two subgraphs, with a schedule of the learning rate."""
    hidden = F.dropout(linear()(data()), 0.4)
    loss = paddle.mean(linear()(F.dropout(in_two_intervals(hidden), 0.3)) ** 2)
    paddle.optimizer.Adam(paddle.optimizer.lr.StepDecay(0.05, 2)).minimize(loss)
    return [loss]


def shared_parameter():
    loss = paddle.mean(linear("w")(F.relu(linear("w")(data()))) ** 2)
    paddle.optimizer.Adam(0.05).minimize(loss)
    return [loss]


def loop():
    x, layer = data(), linear()
    number, last = paddle.zeros([1], "int64"), paddle.full([1], 3, "int64")

    def body(number, hidden):
        return [number + 1, F.relu(layer(hidden)) + x]

    _, hidden = paddle.static.nn.while_loop(
        lambda number, _: number < last, body, [number, F.relu(x)]
    )
    return [hidden, paddle.mean(hidden)]


def trained_branch():
    x, first, second = data(), linear(), linear()
    hidden = F.relu(first(x))
    hidden = paddle.static.nn.cond(
        paddle.mean(x) > 0, lambda: second(hidden) * 2, lambda: second(hidden) - 1
    )
    loss = paddle.mean(hidden * hidden)
    paddle.optimizer.Momentum(0.1).minimize(loss)
    return [loss]


def batch_norm():
    """The running statistics are states."""
    loss = paddle.mean(nn.BatchNorm1D(4)(linear()(data())) ** 3)
    clip = nn.ClipGradByGlobalNorm(0.5)
    paddle.optimizer.Momentum(0.1, grad_clip=clip).minimize(loss)
    return [loss]


def counter():
    """Two variables that outlive a run: one exists before, the other does not."""
    y = linear()(data())
    count = paddle.static.create_global_var([1], 1.5, "float32", persistable=True, name="count")
    paddle.increment(count)
    block = paddle.static.default_main_program().global_block()
    kept = block.create_var(name="kept", shape=[-1, 4], dtype="float32", persistable=True)
    block.append_op(type="scale", inputs={"X": [y]}, outputs={"Out": [kept]}, attrs={"scale": 3.0})
    return [F.relu(kept) * count, "kept", count]


def fetches_of_inputs():
    """Fetches values that the program does not compute: a feed, a constant, a parameter; one
    twice.
    """
    x, layer = data(), linear()
    y = paddle.exp(layer(x))
    paddle.optimizer.SGD(0.1).minimize(paddle.mean(y))
    return [x, paddle.full([2, 3], 7.0), layer.weight, y, y]


PIR = [
    inference,
    momentum,
    adam_with_dropout,
    shared_parameter,
    loop,
    trained_branch,
    batch_norm,
    fetches_of_inputs,
]
# Paddle cannot build the others as old-style programs any more.
OLD = [inference, momentum, adam_with_dropout, shared_parameter, loop, counter]
EVERY = [(build, "pir") for build in PIR] + [(build, "old") for build in OLD]


class ScopedProgram:
    """A program in a scope of its own; equal calls create equal programs.

    Args:
        build: Called inside the program; returns the variables to fetch.
        form: ``"pir"`` or ``"old"``.
    """

    def __init__(self, build, form="pir"):
        self.form = form
        self.scope = paddle.static.Scope()
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        with self.inside():
            self.program, startup = paddle.static.Program(), paddle.static.Program()
            inside = paddle.static.program_guard(self.program, startup)
            with inside, paddle.utils.unique_name.guard():
                self.fetches = build()
            paddle.seed(7)
            self.executor.run(startup)

    @contextlib.contextmanager
    def inside(self):
        old = paddle.pir_utils.OldIrGuard() if self.form == "old" else contextlib.nullcontext()
        with old, paddle.static.scope_guard(self.scope):
            yield

    def transpile(self):
        """Runs the transpiled program from here on."""
        self.program, self.fetches = paddle_ngraph.transpile(self.program, self.fetches)
        self.form = "pir"
        return self

    def run(self, step=0, batch=6):
        with self.inside():
            results = self.executor.run(
                self.program, feed={"x": floats(batch, 4, seed=step)}, fetch_list=self.fetches
            )
            if hasattr(self.program, "lr_scheduler"):
                self.program.lr_scheduler.step()
            return results

    def states(self, names):
        return {name: np.array(self.scope.find_var(name).get_tensor()) for name in names}

    def names_of_states(self):
        return [
            each.name
            for each in self.program.list_vars()
            if each.persistable and each.name not in ("feed", "fetch")
        ]

    def steps(self, in_order=False):
        """Some runs with random numbers of their own."""
        paddle.set_flags({"FLAGS_new_executor_sequential_run": in_order})
        try:
            paddle.seed(11)
            return [self.run(step) for step in range(STEPS)]
        finally:
            paddle.set_flags({"FLAGS_new_executor_sequential_run": False})


def text_of(program):
    if isinstance(program, paddle.pir.Program):
        return str(program), _core.program_fingerprint(program)
    return program.desc.serialize_to_string()


def count_engines(program):
    """The number of engine operators in the global block."""
    return sum(is_engine(op.name()) for op in program.global_block().ops)


def assert_close(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def assert_equal_states(scoped, other):
    names = other.names_of_states()
    expected, actual = other.states(names), scoped.states(names)
    assert_close(list(actual.values()), list(expected.values()))


# -- the new program -----------------------------------------------------------------------------


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize(("build", "form"), EVERY)
def test_it_computes_the_results_of_the_old_one(build, form, on):
    native, scoped = ScopedProgram(build, form), ScopedProgram(build, form)
    old = scoped.program
    before = text_of(old)
    scoped.transpile()
    assert text_of(old) == before
    expected = native.steps(in_order=True)
    paddle_ngraph.reset_stats()
    with paddle_ngraph.use_ngraph(on):
        for results, others in zip(scoped.steps(), expected):
            assert_close(results, others)
    assert_equal_states(scoped, native)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] >= STEPS * count_engines(scoped.program) > 0
    assert stats["native_runs"] == 0
    assert stats["ops_converted"] == 0, "it was rewritten again"


def test_a_program_that_was_transpiled_stays_as_it_is():
    scoped = ScopedProgram(adam_with_dropout).transpile()
    once = str(scoped.program)
    paddle_ngraph.reset_stats()
    assert str(scoped.transpile().program) == once
    assert paddle_ngraph.stats()["ops_converted"] == 0
    assert count_engines(scoped.program) == 3
    assert paddle_ngraph.explain(scoped.program).engines == 3


@pytest.mark.parametrize("on", [False, True])
def test_random_numbers_are_sampled_in_program_order(leave_native, on):
    """No data dependency orders the two samplings, and the subgraph has to be compiled first."""

    def independent_samples():
        return [F.dropout(linear()(data()), 0.5), paddle.randn([3, 5])]

    leave_native("pd_op.gaussian")
    native, scoped = (
        ScopedProgram(independent_samples),
        ScopedProgram(independent_samples).transpile(),
    )
    expected = native.steps(in_order=True)
    paddle_ngraph.clear_cache()
    with paddle_ngraph.use_ngraph(on):
        for results, others in zip(scoped.steps(), expected):
            assert_close(results, others)
    assert paddle_ngraph.stats()["engine_runs"] == STEPS


@pytest.mark.slow("compiles many or large functions")
def test_states_of_engine_operators_are_the_variables():
    """Two of them update a parameter, between which and after which others read it."""

    def two_updates():
        x, layer = data(), linear()
        loss = paddle.mean(F.relu(layer(x)) ** 2)
        paddle.optimizer.SGD(0.3).minimize(loss)
        other = paddle.mean(paddle.tanh(layer(x)) * 3.0)
        paddle.optimizer.SGD(0.5).minimize(other)
        return [loss, other, paddle.exp(layer.weight)]

    native, scoped = ScopedProgram(two_updates), ScopedProgram(two_updates)
    with registry.without(["pd_op.tanh", "pd_op.tanh_grad", "pd_op.exp"]):
        scoped.transpile()
    engines = count_engines(scoped.program)
    view = BlockView(scoped.program.global_block())
    for node in view.nodes:
        if node.type == "builtin.split":
            assert {view.producer[view.root(vid)].type for vid in node.writes} <= SOURCES
    expected = native.steps()
    paddle_ngraph.reset_stats()
    with paddle_ngraph.use_ngraph():  # operators that fell back are converted now
        for results, others in zip(scoped.steps(), expected):
            assert_close(results, others)
    assert_equal_states(scoped, native)
    stats = paddle_ngraph.stats()
    assert stats["ops_converted"] > 0
    assert stats["engine_runs"] > STEPS * engines >= 2 * STEPS


def test_another_executor_leaves_the_variables_where_they_are():
    scoped = ScopedProgram(counter, "old").transpile()
    scoped.run()
    before = [scoped.scope.find_var(name) for name in ("kept", "count")]
    scoped.executor = paddle.static.Executor(paddle.CPUPlace())
    expected = scoped.run(1)
    assert [scoped.scope.find_var(name) for name in ("kept", "count")] == before
    assert_close([np.array(each.get_tensor()) for each in before], expected[1:])
    assert paddle_ngraph.stats()["engine_runs"] == 2


def test_training_and_inference_share_a_scope():
    """Weights of the second program are constants while the first does not run."""

    def both(transpiles):
        scoped = ScopedProgram(momentum)
        test, start = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(test, start), paddle.utils.unique_name.guard():
            result = [linear()(F.relu(linear()(data())))]
        programs = [(scoped.program, scoped.fetches), (test, result)]
        if transpiles:
            programs = [paddle_ngraph.transpile(*each) for each in programs]
        with scoped.inside():
            for step in (0, 1, 0, 1, 1, 1, 1, 0, 1, 1):
                program, fetches = programs[step]
                feed = {"x": floats(5, 4, seed=step)}
                yield scoped.executor.run(program, feed=feed, fetch_list=fetches)

    expected = list(both(transpiles=False))
    for results, others in zip(both(transpiles=True), expected):
        assert_close(results, others)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] == 10 and stats["functions_with_weights"] > 0


def test_a_small_program_of_one_interval_is_converted():
    """The cost rule is for intervals among Paddle's own operators."""
    flags.set("ngraph_min_interval_us", 60)
    program = Program(chain)
    assert paddle_ngraph.explain(program.main).ops_converted == 0
    program.main, program.fetches = paddle_ngraph.transpile(program.main, program.fetches)
    program.run_as_is(x=floats(3, 4))
    assert paddle_ngraph.stats()["engine_runs"] == 1


def test_without_a_fetch_list_unread_results_are_kept():
    native, scoped = ScopedProgram(inference), ScopedProgram(inference)
    scoped.program = paddle_ngraph.transpile(scoped.program)
    engine = [op for op in scoped.program.global_block().ops if is_engine(op.name())][-1]
    scoped.fetches = [engine.result(0)]
    assert_close(scoped.run(), native.run()[:1])
    assert paddle_ngraph.stats()["engine_runs"] == 2


@pytest.mark.parametrize("form", ["pir", "old"])
def test_a_variable_may_be_given_alone(form):
    native, scoped = ScopedProgram(inference, form), ScopedProgram(inference, form)
    given = scoped.fetches[0] if form == "pir" else scoped.fetches[0].name
    scoped.program, scoped.fetches = paddle_ngraph.transpile(scoped.program, given)
    scoped.form = "pir"
    assert_close(scoped.run(), native.run()[:1])
    assert paddle_ngraph.stats()["engine_runs"] == 2


def test_attributes_of_the_program_are_kept():
    scoped = ScopedProgram(adam_with_dropout)
    old = scoped.program
    old.random_seed = 91
    new = scoped.transpile().program
    assert new.random_seed == 91
    assert (new.lr_scheduler, new.lr_name) == (old.lr_scheduler, old.lr_name)


def test_a_compiled_program_is_unwrapped():
    native, scoped = ScopedProgram(momentum, "old"), ScopedProgram(momentum, "old")
    with scoped.inside():
        scoped.program = paddle.static.CompiledProgram(scoped.program)
    scoped.transpile()
    assert_close(scoped.run(), native.run())
    assert paddle_ngraph.stats()["engine_runs"] == 1


@pytest.mark.parametrize("form", ["pir", "old"])
def test_an_empty_program_stays_empty(form):
    with paddle.pir_utils.OldIrGuard() if form == "old" else contextlib.nullcontext():
        program = paddle.static.Program()
    new, fetches = paddle_ngraph.transpile(program, fetch_list=[])
    assert (new.num_ops(), fetches) == (0, [])


# -- clones and files ----------------------------------------------------------------------------


def test_a_clone_trains_on():
    native, scoped = ScopedProgram(momentum), ScopedProgram(momentum).transpile()
    assert "ngraph_engine_1_" in str(scoped.program)
    expected = native.steps() + native.steps()
    first = scoped.steps()
    mapping = paddle.pir.IrMapping()
    scoped.program = scoped.program.clone(mapping)
    scoped.fetches = [mapping.look_up(value) for value in scoped.fetches]
    for results, others in zip(first + scoped.steps(), expected):
        assert_close(results, others)
    assert paddle_ngraph.stats()["engine_runs"] == 2 * STEPS


@pytest.mark.parametrize("form", ["pir", "old"])
def test_training_resumes_from_files_of_paddle(tmp_path, form):
    native, scoped = ScopedProgram(momentum, form), ScopedProgram(momentum, form).transpile()
    expected = native.steps() + native.steps()
    first = scoped.steps()
    with scoped.inside():
        paddle.static.save(scoped.program, str(tmp_path / "state"))
    between = scoped.steps()  # and back
    with scoped.inside():
        paddle.static.load(scoped.program, str(tmp_path / "state"), scoped.executor)
    for results, others in zip(first + between, expected):
        assert_close(results, others)
    for results, others in zip(scoped.steps(), expected[STEPS:]):
        assert_close(results, others)
    assert_equal_states(scoped, native)
    assert paddle_ngraph.stats()["engine_runs"] == 3 * STEPS


ELSEWHERE = """
import sys
import numpy as np
import paddle
import paddle_ngraph
from tests.programs import floats
from tests.frontends.test_ngraph_transpiler import ScopedProgram, momentum

paddle.enable_static()
paddle_ngraph.use_ngraph(False).__enter__()
prefix = sys.argv[1]
executor = paddle.static.Executor(paddle.CPUPlace())
"""


def elsewhere(prefix, script):
    """Runs a script in another process; returns the fetches that it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ELSEWHERE + textwrap.dedent(script), str(prefix)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FLAGS_ngraph_cache_dir": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [np.array(eval(line), "float32") for line in done.stdout.splitlines()]


@pytest.mark.slow("starts a process")
def test_an_inference_model_runs_elsewhere(tmp_path):
    native, scoped = ScopedProgram(inference), ScopedProgram(inference).transpile()
    result, _, x = scoped.fetches
    with scoped.inside():
        paddle.static.save_inference_model(
            str(tmp_path / "model"), [x], [result], scoped.executor, program=scoped.program
        )
    script = """
        program, names, fetches = paddle.static.load_inference_model(prefix, executor)
        feed = {names[0]: floats(6, 4, seed=2)}
        print(executor.run(program, feed=feed, fetch_list=fetches)[0].tolist())
        print([paddle_ngraph.stats()["engine_runs"], paddle_ngraph.stats()["ops_converted"]])
    """
    results, counts = elsewhere(tmp_path / "model", script)
    assert_close([results], native.run(2)[:1])
    assert counts.tolist() == [2, 0]


def test_a_training_program_runs_elsewhere(tmp_path):
    """The program comes from the file, its variables from those that belong to it."""
    native, scoped = ScopedProgram(momentum), ScopedProgram(momentum).transpile()
    expected = native.steps() + native.steps()
    scoped.steps()
    with scoped.inside():
        paddle.static.save(scoped.program, str(tmp_path / "state"))
    script = """
        scoped = ScopedProgram(momentum)
        scoped.program = paddle.static.Program()
        paddle.base.core.deserialize_pir_program(prefix + ".json", scoped.program)
        engine = [op for op in scoped.program.global_block().ops if "ngraph_engine" in op.name()][0]
        scoped.fetches = [engine.result(0)]
        with scoped.inside():
            paddle.static.load(scoped.program, prefix, scoped.executor)
        for (loss,) in scoped.steps():
            print(loss.tolist())
        for state in scoped.states(["linear_0.w_0", "linear_1.b_0_velocity_0"]).values():
            print(state.tolist())
        print(paddle_ngraph.stats()["engine_runs"])
    """
    *losses, weight, velocity, runs = elsewhere(tmp_path / "state", script)
    assert_close(losses, [loss for (loss,) in expected[STEPS:]])
    states = native.states(["linear_0.w_0", "linear_1.b_0_velocity_0"])
    assert_close([weight, velocity], list(states.values()))
    assert runs == STEPS


def test_fetches_of_a_loaded_model_have_names(tmp_path):
    native = ScopedProgram(inference)
    with native.inside():
        result, _, x = native.fetches
        prefix = str(tmp_path / "model")
        paddle.static.save_inference_model(
            prefix, [x], [result], native.executor, program=native.program
        )
        program, _, fetches = paddle.static.load_inference_model(prefix, native.executor)
        (name,) = [op.attrs()["name"] for op in program.global_block().ops if op.name() == FETCH]
        feed = {"x": floats(6, 4)}
        expected = native.executor.run(program, feed=feed, fetch_list=fetches)
        for wanted in (fetches, [name]):
            new, translated = paddle_ngraph.transpile(program, wanted)
            assert_close(native.executor.run(new, feed=feed, fetch_list=translated), expected)
        assert_close(native.executor.run(new, feed=feed, fetch_list=[name]), expected)
    assert paddle_ngraph.stats()["engine_runs"] == 6


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, 3, "program", paddle.nn.Linear, [1]])
def test_other_objects_are_rejected(given):
    with pytest.raises(paddle_ngraph.NgraphError, match=r"transpile\(\) takes a static program"):
        paddle_ngraph.transpile(given)


@pytest.mark.parametrize("form", ["pir", "old"])
def test_an_unknown_fetch_is_refused(form):
    scoped = ScopedProgram(momentum, form)
    before = text_of(scoped.program)
    for number, bad in enumerate(
        (3, None, "no such name", ScopedProgram(momentum), [scoped.fetches])
    ):
        wanted = [*scoped.fetches * number, bad]
        with pytest.raises(paddle_ngraph.NgraphError, match=rf"fetch_list\[{number}\].*is no var"):
            paddle_ngraph.transpile(scoped.program, wanted)
    assert text_of(scoped.program) == before


def test_fetches_of_another_program_and_of_a_loop_are_refused():
    scoped, other = ScopedProgram(loop), ScopedProgram(loop)
    (body,) = next(op for op in scoped.program.global_block().ops if op.num_regions()).blocks()
    for bad in (other.fetches[0], body.ops[0].result(0)):
        with pytest.raises(paddle_ngraph.NgraphError, match=r"fetch_list\[0\] \(Value\) is no var"):
            paddle_ngraph.transpile(scoped.program, [bad])


def test_untranslatable_programs_are_rejected():
    def with_noise():
        return [with_untranslatable_noise(paddle.static.data("x", [2, 3], "float32"))]

    scoped = ScopedProgram(with_noise, "old")
    with pytest.raises(paddle_ngraph.NgraphError, match=r"cannot become a PIR program: .* loses"):
        paddle_ngraph.transpile(scoped.program, scoped.fetches)


def test_levels_of_detail_pass_through_a_transpiled_program():
    def with_levels():
        x = paddle.static.data("x", [-1, 4], "float32", lod_level=1)
        return [paddle.static.nn.sequence_pool(paddle.nn.functional.relu(x) * 2.0, "sum")]

    scoped = ScopedProgram(with_levels, "old")
    with paddle.pir_utils.OldIrGuard():
        program, fetches = paddle_ngraph.transpile(scoped.program, scoped.fetches)
    x = np.random.RandomState(0).randn(5, 4).astype("float32")
    fed = paddle.base.create_lod_tensor(x, [[2, 3]], paddle.CPUPlace())
    executor = paddle.static.Executor(paddle.CPUPlace())
    (found,) = executor.run(program, feed={"x": fed}, fetch_list=fetches)
    expected = np.add.reduceat(np.maximum(x, 0) * 2, [0, 2])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# -- the command line ----------------------------------------------------------------------------


def saved(tmp_path, form="pir"):
    """A model on disk; returns its prefix and the scoped that saved it."""
    scoped, prefix = ScopedProgram(inference, form), str(tmp_path / "given" / "model")
    with scoped.inside():
        result, _, x = scoped.fetches
        paddle.static.save_inference_model(
            prefix, [x], [result], scoped.executor, program=scoped.program
        )
    return prefix, scoped


def files_in(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("form", ["pir", "old"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_saved_model_is_transpiled(tmp_path, capsys, form, as_folder):
    prefix, native = saved(tmp_path, form)
    expected = native.run()[:1]
    before = files_in(tmp_path / "given")
    new = str(tmp_path / "new" / "net")
    given = str(tmp_path / "given") if as_folder else prefix
    assert command_line(["transpile", given, "-o", new]) == 0
    assert "in 2 intervals" in capsys.readouterr().out
    assert files_in(tmp_path / "given") == before
    assert set(files_in(tmp_path / "new")) == {"net.json", "net.pdiparams"}
    with paddle.static.scope_guard(paddle.static.Scope()):
        program, _, fetches = paddle.static.load_inference_model(new, native.executor)
        feed = {"x": floats(6, 4)}
        paddle_ngraph.reset_stats()
        assert_close(native.executor.run(program, feed=feed, fetch_list=fetches), expected)
    assert paddle_ngraph.stats()["engine_runs"] == 2


def test_a_model_that_is_there_is_replaced_only_by_force(tmp_path, capsys):
    prefix, _ = saved(tmp_path)
    before = files_in(tmp_path)
    for given in (prefix, str(tmp_path / "given")):
        assert command_line(["transpile", given, "-o", prefix]) == 2
        error = capsys.readouterr().err
        assert f"{prefix}.json is there already: give --force" in error and error.count("\n") == 1
    assert files_in(tmp_path) == before
    assert command_line(["transpile", prefix, "-o", prefix, "--force"]) == 0
    assert set(files_in(tmp_path)) == set(before)
    assert b".ngraph_engine_" in files_in(tmp_path)["given/model.json"]


def remove_parameters(prefix):
    Path(prefix + ".pdiparams").unlink()


def truncate_parameters(prefix):
    contents = Path(prefix + ".pdiparams").read_bytes()
    Path(prefix + ".pdiparams").write_bytes(contents[:-9])


def drop_a_parameter(prefix):
    """An intact file, of another model."""
    contents = Path(prefix + ".pdiparams").read_bytes()
    # A version, levels of detail, a version, a description, and four numbers.
    length = 4 + 8 + 4 + 4 + int.from_bytes(contents[16:20], "little") + 16
    Path(prefix + ".pdiparams").write_bytes(contents[length:])


def reshape_a_parameter(prefix):
    """As many numbers as before."""
    contents = Path(prefix + ".pdiparams").read_bytes()
    square, row = b"\x08\x05\x10\x04\x10\x04", b"\x08\x05\x10\x02\x10\x08"
    assert contents.count(square) == 2
    Path(prefix + ".pdiparams").write_bytes(contents.replace(square, row))


def truncate_program(prefix):
    contents = Path(prefix + ".json").read_bytes()
    Path(prefix + ".json").write_bytes(contents[: len(contents) // 2])


def remove_program(prefix):
    Path(prefix + ".json").unlink()


def add_another(prefix):
    Path(prefix + "2.json").write_bytes(Path(prefix + ".json").read_bytes())


DAMAGES = {
    remove_parameters: "the parameters of .* are missing",
    truncate_parameters: "is truncated: 9 bytes are missing",
    drop_a_parameter: "holds 3 parameters, .* has 4",
    reshape_a_parameter: r"holds 'linear_0.w_0' in the shape \[2, 8\], .* has \[4, 4\]",
    truncate_program: "cannot be read",
    remove_program: "there is no model",
    add_another: "there are several models",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_one_sentence(tmp_path, capsys, damage):
    prefix, _ = saved(tmp_path)
    damage(prefix)
    before = files_in(tmp_path)
    given = str(tmp_path / "given")
    assert command_line(["transpile", given, "-o", str(tmp_path / "new" / "net")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert re.search(DAMAGES[damage], error)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("form", ["pir", "old"])
def test_a_model_without_parameters_is_one_sentence(tmp_path, capsys, form):
    prefix, _ = saved(tmp_path, form)
    remove_parameters(prefix)
    assert command_line(["transpile", prefix, "-o", str(tmp_path / "net")]) == 2
    assert re.search("the parameters of .* are missing", capsys.readouterr().err)
    assert not list(tmp_path.glob("net*"))


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path, capsys):
    prefix, _ = saved(tmp_path)
    (tmp_path / "file").write_text("")
    assert command_line(["transpile", prefix, "-o", str(tmp_path / "file" / "net")]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path / 'file'}: File exists" in error and error.count("\n") == 1
    assert (tmp_path / "file").read_text() == ""
