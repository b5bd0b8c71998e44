"""Optimizer updates that write in place to parameters and their states."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import static

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.conversion.bridge import element_type
from paddle_ngraph.conversion.build import make_model
from paddle_ngraph.conversion.draft import Draft
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.optimizer_updates import FILL_STATE, OPTIMIZER_RULES
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import program_pass
from tests.programs import Program, floats, strict_runs

pytestmark = pytest.mark.usefixtures("nothing_cached")

O = paddle.optimizer  # noqa: E741
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: O.SGD(0.1),
    "momentum": lambda: O.Momentum(0.1, 0.9),
    "nesterov": lambda: O.Momentum(0.1, 0.9, use_nesterov=True, weight_decay=0.01),
    "adam": lambda: O.Adam(0.01),
    "amsgrad": lambda: O.Adam(0.01, amsgrad=True),
    "adamw": lambda: O.AdamW(0.01, weight_decay=0.1),
}
# The states of each, the parameter included, without powers of beta.
STATES = {"sgd": 1, "momentum": 2, "nesterov": 2, "adam": 3, "amsgrad": 4, "adamw": 3}


def parameter(name: str, *shape: int) -> Any:
    initial = paddle.nn.initializer.Normal(0.0, 0.5)
    return static.create_parameter(
        list(shape), "float32", attr=paddle.ParamAttr(name, initializer=initial)
    )


def variable(name: str, shape: Sequence[int], dtype: str = "float32") -> Any:
    """A variable of zeros."""
    zeros = paddle.nn.initializer.Constant(0)
    attribute = paddle.ParamAttr(name, initializer=zeros, trainable=False)
    return static.create_parameter(list(shape), dtype, attr=attribute)


def trained(optimizer: str) -> Any:
    x = static.data("x", [-1, 4], "float32")
    loss = paddle.mean(paddle.tanh(x @ parameter("w", 4, 6) + parameter("b", 6)) ** 2)
    OPTIMIZERS[optimizer]().minimize(loss)
    return loss


def draft_of(build: Callable[[], Any]) -> Draft:
    """Returns the draft for a program of one subgraph."""
    main = Program(build).main.clone()
    program_pass.apply(main, open_size=None)
    (text,) = [op.attrs()["graph"] for op in main.global_block().ops if "engine" in op.name()]
    graph = Graph.from_string(text)
    specs = [*graph.inputs, *graph.states]
    shapes = [[3 if size < 0 else size for size in spec.shape] for spec in specs]
    types = [element_type(spec.dtype).get_type_name() for spec in specs]
    return make_model(FunctionBuilder(graph, list(zip(types, shapes))))


def steps_left(draft: Draft) -> int:
    return sum(node.get_type_name() in OPTIMIZER_RULES for node in draft.model.get_ops())


def state_of(program: Program) -> dict[str, np.ndarray]:
    state = program.main.state_dict("all", program.scope)
    return {name: np.array(value) for name, value in state.items()}


def assert_same_states(native: Program, engine: Program) -> None:
    expected, found = state_of(native), state_of(engine)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, 1e-4, 2e-6, err_msg=name)


# -- the pass --------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_updates_are_removed_from_the_model(optimizer):
    draft = draft_of(lambda: trained(optimizer))
    assert steps_left(draft) == 0
    assert len(draft.updates) == 2
    assert [len(update.states) for update in draft.updates] == [STATES[optimizer]] * 2
    # Inputs of updates alone are no parameters of the model: x, w and b, and powers of beta are.
    powers = 4 if "adam" in optimizer or optimizer == "amsgrad" else 0
    assert len(draft.model.get_parameters()) == len(draft.positions) == 3 + powers


def test_the_update_multiplies_a_clipped_gradient():
    def build():
        x = static.data("x", [-1, 4], "float32")
        loss = paddle.mean((x @ parameter("w", 4, 6) + parameter("b", 6)) ** 2)
        O.Adam(0.1, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.01)).minimize(loss)
        return loss

    draft = draft_of(build)
    assert [len(update.factors) for update in draft.updates] == [1, 1]
    assert draft.updates[0].factors == draft.updates[1].factors
    program = Program(build)
    reference = Program(build)
    for step in range(4):
        program.run(x=floats(5, 4, seed=step))
        reference.run(engine=False, x=floats(5, 4, seed=step))
    assert_same_states(reference, program)


def given_gradients(count: int, factor: float | None = None) -> Callable[[], Any]:
    """The gradient is a sum of feeds."""

    def build():
        w = parameter("w", 700, 3)
        before = paddle.mean(w)
        given = [static.data(f"g{i}", [700, 3], "float32") for i in range(count)]
        gradient = paddle.add_n(given) if count > 1 else given[0]
        if factor is not None:
            gradient = paddle.scale(gradient, factor)
        w.stop_gradient = False
        O.Momentum(0.1, 0.9, parameters=[w]).apply_gradients([(w, gradient)])
        return before

    return build


@pytest.mark.parametrize("factor", [None, 0.25])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_update_adds_slices_of_a_gradient(count, factor):
    build = given_gradients(count, factor)
    draft = draft_of(build)
    (update,) = draft.updates
    assert sorted(update.gradients) == list(range(count))
    assert len(update.factors) == (factor is not None)
    native, engine = Program(build), Program(build)
    for step in range(3):
        feed = {f"g{i}": floats(700, 3, seed=7 * step + i) for i in range(count)}
        native.run(engine=False, **feed)
        engine.run(**feed)
    assert paddle_ngraph.stats()["steps_in_place"] == 3
    assert_same_states(native, engine)


def test_long_sums_stay_in_the_function():
    """The gradient of a recurrent network has many terms."""

    def build():
        x, w = static.data("x", [-1, 4], "float32"), parameter("w", 4, 4)
        for _ in range(5):
            x = paddle.tanh(x @ w)
        loss = paddle.mean(x)
        O.SGD(0.1).minimize(loss)
        return loss

    (update,) = draft_of(build).updates
    assert len(update.gradients) == 1


def read_again():
    """The update's result is read in the same function."""
    x, w = static.data("x", [-1, 4], "float32"), parameter("w", 4, 4)
    loss = paddle.mean((x @ w) ** 2)
    O.Momentum(0.1, 0.9).minimize(loss)
    (step,) = [
        op for op in static.default_main_program().global_block().ops if "momentum" in op.name()
    ]
    return loss, paddle.mean(step.result(0))


def twice():
    """Two updates of one parameter."""
    x, w = static.data("x", [-1, 4], "float32"), parameter("w", 4, 4)
    w.stop_gradient = False
    loss = paddle.mean((x @ w) ** 2)
    gradient = static.gradients(loss, [w])[0]
    O.SGD(0.1, parameters=[w]).apply_gradients([(w, gradient)])
    O.SGD(0.3, parameters=[w]).apply_gradients([(w, gradient * gradient)])
    return loss


@pytest.mark.parametrize("build", [read_again, twice], ids=lambda build: build.__name__)
def test_updates_with_other_readers_stay_in_the_function(build):
    native, engine = Program(build), Program(build)
    for step in range(4):
        expected = native.run(engine=False, x=floats(3, 4, seed=step))
        found = engine.run(x=floats(3, 4, seed=step))
        for one, other in zip(expected, found):
            np.testing.assert_allclose(other, one, 1e-4, 1e-6)
    assert paddle_ngraph.stats()["native_runs"] == 0
    assert_same_states(native, engine)


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_states_keep_their_memory(optimizer):
    program = Program(lambda: trained(optimizer))

    def addresses() -> list[int]:
        variables = program.main.state_dict("all", program.scope)
        tensors = [program.scope.find_var(name).get_tensor() for name in sorted(variables)]
        return [tensor._ptr() for tensor in tensors]

    program.run(x=floats(5, 4))
    before = addresses()
    for step in range(3):
        program.run(x=floats(5, 4, seed=step))
    assert addresses() == before
    assert paddle_ngraph.stats()["steps_in_place"] == 8


@pytest.mark.slow("compiles many or large functions")
def test_dynamic_shapes():
    program, reference = Program(lambda: trained("adam")), Program(lambda: trained("adam"))
    for rows in (3, 5, 9, 17, 40):
        program.run(x=floats(rows, 4, seed=rows))
        reference.run(engine=False, x=floats(rows, 4, seed=rows))
    stats = paddle_ngraph.stats()
    assert stats["functions_built"] == 3
    assert stats["steps_in_place"] == 10
    assert_same_states(reference, program)


@pytest.mark.slow("compiles many or large functions")
def test_a_function_from_disk(tmp_path):
    before = paddle.get_flags(["FLAGS_ngraph_cache_dir", "FLAGS_ngraph_cache_min_ms"])
    paddle.set_flags({"FLAGS_ngraph_cache_dir": str(tmp_path), "FLAGS_ngraph_cache_min_ms": 0})
    try:
        native, engine = Program(lambda: trained("adamw")), Program(lambda: trained("adamw"))
        for step in range(4):
            if step == 2:
                paddle_ngraph.clear_cache()
            native.run(engine=False, x=floats(5, 4, seed=step))
            engine.run(x=floats(5, 4, seed=step))
        stats = paddle_ngraph.stats()
        assert stats["functions_loaded"] == 1
        assert stats["steps_in_place"] == 8
        assert_same_states(native, engine)
    finally:
        paddle.set_flags(before)


@pytest.mark.parametrize("strict", [False, True])
def test_a_run_that_fails_after_writing_is_not_repeated(strict):
    program = Program(lambda: trained("momentum"))
    program.run(x=floats(5, 4))
    before, stats = state_of(program), paddle_ngraph.stats()
    _core.fail_at("write")
    failure = "while it was writing states, some of which are new now"
    try:
        with strict_runs(strict), pytest.raises(OSError, match=failure):
            program.run(x=floats(5, 4))
    finally:
        _core.fail_at("")
    after = paddle_ngraph.stats()
    assert after["native_runs"] == stats["native_runs"]
    # One update, not two.
    velocity = {n: v for n, v in before.items() if "velocity" in n}
    assert velocity
    reference = Program(lambda: trained("momentum"))
    for _ in range(2):
        reference.run(engine=False, x=floats(5, 4))
    assert_same_states(reference, program)
    program.run(x=floats(5, 4))
    reference.run(engine=False, x=floats(5, 4))
    assert_same_states(reference, program)


def test_a_run_that_fails_before_writing_changes_nothing():
    program, reference = Program(lambda: trained("adam")), Program(lambda: trained("adam"))
    program.run(x=floats(5, 4))
    for _ in range(2):
        reference.run(engine=False, x=floats(5, 4))
    _core.fail_at("run")
    program.run(x=floats(5, 4))  # falls back once
    assert paddle_ngraph.stats()["native_runs"] == 1
    assert_same_states(reference, program)


def classifier_with_loop():
    """Labels are checked inside a branch as well."""
    x = static.data("x", [-1, 4], "float32")
    label = static.data("label", [-1, 1], "int64")
    w = parameter("w", 4, 3)
    scores = x @ w
    loss = F.cross_entropy(scores, label).mean()
    picked = static.nn.cond(
        paddle.mean(x) > -100.0,
        lambda: paddle.sum(paddle.take_along_axis(scores.detach(), label, 1)),
        lambda: paddle.zeros([]),
    )
    O.Adam(0.1).minimize(loss)
    return loss, picked


def test_wrong_labels_change_nothing(native_in_order):
    native, engine = Program(classifier_with_loop), Program(classifier_with_loop)
    good, bad = np.array([[0], [2], [1]]), np.array([[0], [3], [1]])
    for labels in (good, bad, good, bad, good):
        for program, on in ((native, False), (engine, True)):
            feed = {"x": floats(3, 4), "label": labels}
            if labels is good:
                program.run(engine=on, **feed)
                continue
            before = state_of(program)
            with pytest.raises(IndexError):
                program.run(engine=on, **feed)
            for name, value in state_of(program).items():
                np.testing.assert_array_equal(value, before[name])
        assert_same_states(native, engine)
    assert paddle_ngraph.stats()["steps_in_place"] == 3


# -- random programs -------------------------------------------------------------------------------

PARAMETERS = {"p": (4, 6), "q": (4, 6), "r": (24,), "s": (6,), "t": (1,), "u": (6, 4)}


class Life:
    """A random program, and the actions on it.

    Its parameters are read in several ways; some receive other values than their gradients: another
    parameter, or a view of one, themselves, sums of gradients, constants.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.seed = seed
        self.optimizers = self.draw.sample(sorted(OPTIMIZERS), 2)
        self.odd = {name: self.draw.randrange(12) for name in PARAMETERS}
        self.fetched = self.draw.sample(range(6), 3)
        self.has_clip = self.draw.random() < 0.3
        self.is_shared = self.draw.random() < 0.5
        self.is_between = self.draw.random() < 0.3

    def build(self) -> list[Any]:
        x, label = static.data("x", [-1, 4], "float32"), static.data("label", [-1, 1], "int64")
        given = {name: parameter(name, *shape) for name, shape in PARAMETERS.items()}
        p, q, r, s, t, u = given.values()
        hidden = paddle.tanh(x @ p + s) * t
        hidden = hidden + x @ paddle.reshape(r, [4, 6])
        if self.is_shared:
            hidden = hidden + x @ parameter("p", 4, 6)  # one variable, two values
        if self.is_between:
            hidden = paddle.erfinv(paddle.tanh(hidden) * 0.5)
        hidden = hidden + (x @ q @ u) @ q
        loss = F.cross_entropy(hidden, label).mean()
        old = [paddle.assign(p), paddle.reshape(q, [24]), q + p]
        gradients = dict(zip(PARAMETERS, static.gradients(loss, list(given.values()))))
        pairs = [(value, self.gradient(name, given, gradients)) for name, value in given.items()]
        if self.has_clip:
            pairs = paddle.nn.ClipGradByGlobalNorm(0.1)(pairs)
        half = len(pairs) // 2
        for name, some in zip(self.optimizers, (pairs[:half], pairs[half:])):
            optimizer = OPTIMIZERS[name]()
            optimizer.apply_gradients(some)
        results = [*old, gradients["p"], p, r]
        return [loss, *(results[i] for i in self.fetched)]

    def gradient(self, name: str, given: dict[str, Any], gradients: dict[str, Any]) -> Any:
        shape = list(PARAMETERS[name])
        others = [n for n in given if n != name and np.prod(PARAMETERS[n]) == np.prod(shape)]
        other = others[self.odd[name] % len(others)] if others else name
        return {
            0: lambda: paddle.assign(paddle.reshape(given[other], shape)),
            1: lambda: paddle.reshape(given[other], shape),
            2: lambda: given[name] * 1.0,
            3: lambda: paddle.reshape(given[name], shape),
            4: lambda: gradients[name] * 0.5,
            5: lambda: gradients[name] + paddle.reshape(gradients[other], shape),
            6: lambda: gradients[name] * paddle.mean(given[other]),
            7: lambda: paddle.assign(given[name]),
        }.get(self.odd[name], lambda: gradients[name])()


class Held:
    """The view of another holder of a parameter's memory."""

    def __init__(self, program: Program, name: str) -> None:
        self.name = name
        tensor = program.scope.find_var(name).get_tensor()
        self.capsule = tensor._to_dlpack()
        count = int(np.prod(PARAMETERS[name]))
        self.numbers = np.ctypeslib.as_array((ctypes.c_float * count).from_address(tensor._ptr()))


def share(program: Program, name: str, other: str) -> None:
    """Gives a variable the memory of another one."""
    first, second = (program.scope.find_var(n).get_tensor() for n in (name, other))
    second._share_data_with(first)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("seed", range(24))
def test_a_random_program(seed, native_in_order):
    life = Life(seed)
    native, engine = Program(life.build), Program(life.build)
    held: list[tuple[Held, Held]] = []
    for step in range(8):
        action = life.draw.randrange(8)
        if action == 0:  # another holder has views
            names = life.draw.sample(sorted(PARAMETERS), 2)
            for name in names:
                held.append(tuple(Held(program, name) for program in (native, engine)))
        elif action == 1:
            held.clear()
        elif action == 2:  # the user's memory
            for program in (native, engine):
                tensor = program.scope.find_var("q").get_tensor()
                array = floats(4, 6, seed=step)
                tensor.set(array, paddle.CPUPlace(), True)
                program.kept = array
            held = [pair for pair in held if pair[0].name != "q"]
        elif action == 3:  # another value
            for program in (native, engine):
                tensor = program.scope.find_var("r").get_tensor()
                tensor.set(floats(24, seed=step), paddle.CPUPlace())
            held = [pair for pair in held if pair[0].name != "r"]
        rows = life.draw.choice([3, 3, 5, 7])
        is_wrong = life.draw.random() < 0.15
        labels = np.random.default_rng(step).integers(0, 6, (rows, 1))
        if is_wrong:
            labels[1] = 6
        feed = {"x": floats(rows, 4, seed=step), "label": labels}
        if is_wrong:
            for program, on in ((native, False), (engine, True)):
                with pytest.raises(IndexError):
                    program.run(engine=on, **feed)
        else:
            expected, found = native.run(engine=False, **feed), engine.run(**feed)
            for one, other in zip(expected, found):
                np.testing.assert_allclose(other, one, 1e-3, 1e-5)
        assert_same_states(native, engine)
        for one, other in held:
            np.testing.assert_allclose(other.numbers, one.numbers, 1e-4, 2e-6)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] > 0
    assert stats["steps_in_place"] > 0


def _rate_is_a_state() -> Any:
    rate, p, first = parameter("q", 1), parameter("p", 1), parameter("w", 4, 6)
    loss = paddle.mean(paddle.tanh(static.data("x", [-1, 4], "float32") @ first))
    (gradient,) = static.gradients(loss, [first])
    half = paddle.full([1], 0.5)
    paddle._C_ops.sgd_(p, half, half, None, False)
    paddle._C_ops.sgd_(first, rate, gradient, None, False)
    return loss


def _steps(first: Any, others: Sequence[Any]) -> Callable[[], Any]:
    """One of two parameters is updated by ``first``, the other one by each of ``others``."""

    def build() -> Any:
        x = static.data("x", [-1, 4], "float32")
        p, q = parameter("p", 4, 6), parameter("q", 4, 6)
        loss = paddle.mean(paddle.tanh(x @ p) * (x @ q))
        of_p, of_q = static.gradients(loss, [p, q])
        p.stop_gradient = q.stop_gradient = False
        first(parameters=[p]).apply_gradients([(p, of_p)])
        for other in others:
            other(parameters=[q]).apply_gradients([(q, of_q)])
        return [loss, paddle.mean(q)]

    return build


SHARING = {
    "two in place": _steps(partial(O.SGD, 0.1), [partial(O.SGD, 0.2)]),
    "one beside": _steps(partial(O.SGD, 0.1), [partial(O.Adagrad, 0.1)]),
    "one with two steps": _steps(partial(O.SGD, 0.1), [partial(O.SGD, 0.2)] * 2),
    "none in place": _steps(partial(O.Adagrad, 0.1), [partial(O.Lamb, 0.1)]),
    "only read": _steps(partial(O.SGD, 0.5), []),
    "a rate": _rate_is_a_state,
}


@pytest.mark.parametrize("build", SHARING.values(), ids=SHARING)
def test_states_that_share_memory(native_in_order, build):
    """Two variables have the same memory: the run falls back."""
    native, engine = Program(build), Program(build)
    for program in (native, engine):
        share(program, "p", "q")
    for step in range(3):
        expected = native.run(engine=False, x=floats(3, 4, seed=step))
        for value, other in zip(expected, engine.run(x=floats(3, 4, seed=step))):
            np.testing.assert_allclose(other, value, rtol=1e-6)
        assert_same_states(native, engine)
    counts = paddle_ngraph.stats()
    assert counts["steps_in_place"] == 0 and counts["native_runs"] == 3


def test_slices_of_a_batch():
    """The slices pass their gradients to the updates."""

    def build():
        x = static.data("x", [-1, 4], "float32")
        loss = paddle.mean(paddle.tanh(x @ parameter("w", 4, 6) + parameter("b", 6)) ** 2)
        O.Adam(0.1).minimize(loss)
        return loss

    native, engine = Program(build), Program(build)
    parallel = paddle_ngraph.data_parallel(engine.main, 3, engine.fetches)
    paddle_ngraph.reset_stats()
    for step in range(4):
        x = floats(6, 4, seed=step)
        native.run(engine=False, x=x)
        with static.scope_guard(engine.scope), paddle_ngraph.use_ngraph(True):
            engine.executor.run(parallel.program, feed={"x": x}, fetch_list=parallel.fetches)
    assert paddle_ngraph.stats()["steps_in_place"] == 8
    assert_same_states(native, engine)


# -- sums into states, and states that are filled --------------------------------------------------

SUM_KINDS = ["plain", "fed", "swapped", "old", "itself", "other", "counted"]
SUM_KINDS += ["new", "twice", "spread", "whole", "widened", "filled", "moved"]
# Updates that the engine runs in place; the others stay in the function.
IN_PLACE = {"plain", "fed", "swapped", "old", "itself", "other", "filled", "moved"}


class Sums:
    """A random program that adds to its states, or fills them."""

    def __init__(self, kinds: Sequence[str], is_clear: bool = False) -> None:
        self.kinds = kinds
        self.is_clear = is_clear

    def build(self) -> list[Any]:
        x = static.data("x", [-1, 4], "float32")
        w = parameter("w", 4, 6)
        w.stop_gradient = False
        (gradient,) = static.gradients(paddle.mean(x @ w), [w])  # exact: a product of feeds
        other = parameter("other", 4, 6)
        fed = static.data("g", [4, 6], "float32")
        results = [paddle.mean(x), paddle.mean(fed), paddle.mean(other)]
        for number, kind in enumerate(self.kinds):
            added = fed if kind == "fed" else gradient
            results += self.change(f"{kind}_{number}", kind, added, other)
        if self.is_clear:  # an operand of updates is filled
            state = parameter("clear", 4, 6)
            w.stop_gradient = False
            O.SGD(0.5, parameters=[w]).apply_gradients([(w, paddle.scale(state, 0.25))])
            paddle._C_ops.assign_out_(paddle.full([4, 6], 2.0), state)
        return results

    def change(self, name: str, kind: str, gradient: Any, other: Any) -> list[Any]:
        add = paddle._C_ops.add_
        if kind == "whole":
            state = variable(name, [6], "int32")
            add(state, paddle.full([6], 2, "int32"))
            return []
        if kind == "counted":
            state = variable(name, [1])
            paddle.increment(state, 0.25)
            return []
        state = parameter(name, 4, 6)
        if kind == "spread":
            add(state, gradient[0])
        elif kind == "swapped":
            paddle._C_ops.assign_out_(gradient + state, state)
        elif kind == "old":
            before = [paddle.assign(state), state * 2.0]
            add(state, gradient)
            return before
        elif kind == "new":
            return [paddle.mean(add(state, gradient))]
        elif kind == "itself":
            add(state, state)
        elif kind == "other":
            add(state, other)
        elif kind == "twice":
            add(add(state, gradient), gradient * gradient)
        elif kind == "widened":
            half = paddle.cast(state, "float64") + paddle.cast(gradient, "float64")
            paddle._C_ops.assign_out_(paddle.cast(half, "float32"), state)
        elif kind == "filled":
            before = [state + gradient]
            paddle._C_ops.assign_out_(paddle.full([4, 6], -0.5), state)
            return before
        elif kind == "moved":
            add(state, paddle.tanh(paddle.transpose(gradient, [1, 0])).reshape([4, 6]))
        else:
            add(state, gradient)
        return []


def run_sums(program: Program, engine: bool, step: int, rows: int = 3) -> list[np.ndarray]:
    g = floats(4, 6, seed=step + 50)
    return program.run(engine=engine, x=floats(rows, 4, seed=step), g=g)


@pytest.mark.parametrize("kind", SUM_KINDS)
def test_each_sum_into_a_state(kind):
    build = Sums([kind]).build
    native, engine = Program(build), Program(build)
    for step in range(3):
        expected, found = run_sums(native, False, step), run_sums(engine, True, step)
        for one, other in zip(expected, found):
            np.testing.assert_allclose(other, one, 1e-6, 1e-7)
        assert_same_states(native, engine)
    stats = paddle_ngraph.stats()
    assert stats["native_runs"] == 0
    assert stats["steps_in_place"] == (3 if kind in IN_PLACE else 0)


@pytest.mark.slow("draws many programs")
@pytest.mark.parametrize("seed", range(12))
def test_random_sums(seed, native_in_order):
    draw = random.Random(seed)
    sums = Sums([*draw.sample(SUM_KINDS, 5), "plain"], is_clear=draw.random() < 0.5)
    in_place = sum(kind in IN_PLACE for kind in sums.kinds) + 2 * sums.is_clear
    native, engine = Program(sums.build), Program(sums.build)
    for step in range(6):
        is_shared = step == 5 and draw.random() < 0.5
        if is_shared:
            name = next(name for name in state_of(engine) if name.startswith("plain"))
            for program in (native, engine):
                share(program, name, "other")
        rows = draw.choice([3, 3, 5, 7])
        expected = run_sums(native, False, step, rows)
        for one, other in zip(expected, run_sums(engine, True, step, rows)):
            np.testing.assert_allclose(other, one, 1e-5, 1e-6)
        assert_same_states(native, engine)
        stats = paddle_ngraph.stats()
        assert stats["native_runs"] == is_shared
        assert stats["steps_in_place"] == (step + (not is_shared)) * in_place


def test_a_sum_is_exact():
    """Results are the float32 values of ``a + b``, infinities and NaN included."""

    def build():
        state = variable("state", [5000])
        total = paddle._C_ops.add_(state, static.data("g", [5000], "float32"))
        del total
        return paddle.mean(static.data("x", [-1], "float32"))

    program = Program(build)
    tensor = program.scope.find_var("state").get_tensor()
    draw = np.random.default_rng(0)
    expected = np.zeros(5000, "float32")
    with np.errstate(all="ignore"):
        for _ in range(5):
            exponents = draw.integers(-44, 39, 5000)
            g = (draw.normal(size=5000) * 10.0**exponents).astype("float32")
            g[:4] = [np.inf, -np.inf, np.nan, 1e-44]
            program.run(g=g, x=np.ones(3, "float32"))
            expected = expected + g
            np.testing.assert_array_equal(np.array(tensor), expected)
    assert paddle_ngraph.stats()["steps_in_place"] == 5


def test_a_lone_sum():
    """The function of a lone sum has no result."""

    def build():
        state = variable("state", [6])
        paddle._C_ops.add_(state, static.data("g", [6], "float32"))
        return []

    program = Program(build)
    for step in range(3):
        program.run(g=np.full(6, step, "float32"))
    np.testing.assert_array_equal(state_of(program)["state"], np.full(6, 3.0, "float32"))
    stats = paddle_ngraph.stats()
    assert stats["native_runs"] == 0 and stats["steps_in_place"] == 3


def test_views_observe_a_sum(native_in_order):
    """The memory of a state stays the same for all its holders."""
    build = Sums(["plain", "filled"]).build
    native, engine = Program(build), Program(build)
    run_sums(engine, True, 0)
    run_sums(native, False, 0)
    names = [n for n in state_of(engine) if n.startswith(("plain", "filled"))]
    seen = []
    for program in (native, engine):
        for name in names:
            tensor = program.scope.find_var(name).get_tensor()
            view = np.ctypeslib.as_array((ctypes.c_float * 24).from_address(tensor._ptr()))
            seen.append((tensor._to_dlpack(), view))
    for step in range(1, 4):
        run_sums(native, False, step)
        run_sums(engine, True, step)
        for (_, one), (_, other) in zip(seen[:2], seen[2:]):
            np.testing.assert_allclose(other, one, 1e-6, 1e-6)
    assert paddle_ngraph.stats()["steps_in_place"] == 8


def test_wrong_labels_leave_sums_as_they_are(native_in_order):
    def build():
        x, label = static.data("x", [-1, 4], "float32"), static.data("label", [-1, 1], "int64")
        w = parameter("w", 4, 3)
        w.stop_gradient = False
        loss = F.cross_entropy(x @ w, label).mean()
        (gradient,) = static.gradients(loss, [w])
        paddle._C_ops.add_(parameter("total", 4, 3), gradient)
        return loss

    native, engine = Program(build), Program(build)
    good, bad = np.array([[0], [2], [1]]), np.array([[0], [3], [1]])
    for labels in (good, bad, good):
        for program, on in ((native, False), (engine, True)):
            if labels is good:
                program.run(engine=on, x=floats(3, 4), label=labels)
                continue
            before = state_of(program)
            with pytest.raises(IndexError):
                program.run(engine=on, x=floats(3, 4), label=labels)
            np.testing.assert_array_equal(state_of(program)["total"], before["total"])
        assert_same_states(native, engine)
    assert paddle_ngraph.stats()["steps_in_place"] == 2


def test_operands_of_updates_are_filled_afterwards():
    """Sums of gradients that restart at zero: the update reads them in place."""
    draft = draft_of(Sums([], is_clear=True).build)
    step, fill = sorted(draft.updates, key=lambda update: update.optimizer)
    assert (step.optimizer, fill.optimizer, fill.attributes) == (0, FILL_STATE, [2.0])
    assert step.gradients == [draft.builder.boundary_sizes()[0] + fill.states[0]]
    assert len(step.factors) == 1
