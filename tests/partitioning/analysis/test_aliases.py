"""Variables that share one memory: programs that write under one name and read under another.

Paddle in program order is the reference: its threads do not wait for a write under another name.
Paddle's pass that runs operators in place is off for the reference, since it knows no other names
either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.partitioning.analysis.aliases import Aliases
from paddle_ngraph.partitioning.analysis.block_view import (
    blocks_outermost_first,
    is_engine,
    mark_sequential,
)
from tests.dynamic import dynamic_mode
from tests.ops.test_control_flow import while_loop
from tests.paddle_lines import reason_against
from tests.programs import Program, floats
from tests.zips import zip_equal

ops = paddle._C_ops
SHAPE = [2, 3]


@contextmanager
def without_inplace_pass() -> Iterator[None]:
    paddle.set_flags({"FLAGS_pir_apply_inplace_pass": False})
    try:
        yield
    finally:
        paddle.set_flags({"FLAGS_pir_apply_inplace_pass": True})


def in_order(build: Callable) -> Program:
    with paddle_ngraph.use_ngraph():
        pass  # the first use, from which on marked programs run in order
    program = Program(build)
    mark_sequential(program.main)
    return program


def check(build: Callable, name: str = "") -> bool:
    """Compares runs with native ones; returns whether Paddle can run the program.

    Paddle moves initial values of loops: later reads find no memory, and a parameter loses its own.
    """
    reference, program = in_order(build), Program(build)
    before = paddle_ngraph.stats()["engine_runs"]
    for flag in (True, False, True):
        fed = {"x": floats(*SHAPE, seed=3), "flag": np.array([flag])}
        try:
            with without_inplace_pass():
                expected = reference.run(engine=False, **fed)
        except RuntimeError as error:
            assert "holds no memory" in str(error)
            return False
        expected += [reference.variable(name)] if name else []
        if not expected[-1].size:
            return False
        found = program.run(**fed)
        found += [program.variable(name)] if name else []
        for wanted, value in zip_equal(expected, found):
            np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] > before, "the engine did not run"
    return True


VIEWS: dict[str, Callable] = {
    "share_data": ops.share_data,
    "share_data_": ops.share_data_,
    "detach": lambda x: x.detach(),
    "view_shape": lambda x: ops.view_shape(x, SHAPE),
    "npu_identity": lambda x: ops.npu_identity(x, -1),
    "unsqueeze_": lambda x: ops.squeeze_(ops.unsqueeze_(x, [0]), [0]),
}
# Those that random programs have: the ones that this line of Paddle knows.
SAMPLED = [
    view
    for name, view in VIEWS.items()
    if not reason_against(f"partitioning/analysis/test_aliases.py::test_a_view[{name}")
]
WRITES: dict[str, Callable] = {
    "add": lambda x, y: ops.add_(x, y),
    "tanh": lambda x, _: ops.tanh_(x),
    "assign": lambda x, y: paddle.assign(y * 0.5, output=x),
    "set": lambda x, y: x.__setitem__(0, y[1]),
    "full": lambda x, _: ops.full_(x, SHAPE, 0.3, paddle.float32, paddle.CPUPlace()),
    "row": lambda x, y: ops.add_(ops.view_slice(x, 1, 2), y[:1]),
    "scale": lambda x, _: ops.scale_(x, paddle.full([1], 0.7), 0.1, True),
}


def parameter() -> Any:
    """The parameter ``kept``: each call creates another value of that name in the program."""
    return paddle.static.create_parameter(
        SHAPE,
        "float32",
        "kept",
        default_initializer=paddle.nn.initializer.Assign(floats(*SHAPE, seed=5)),
    )


class RandomAliases:
    """A program whose variables are views, results of branches and loops, feeds and parameters."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def one(self, options: Any) -> Any:
        return list(options)[self.draw.integers(len(options))]

    def build(self) -> Any:
        self.draw = np.random.default_rng(self.seed)
        x = paddle.static.data("x", SHAPE, "float32")
        self.flag = paddle.static.data("flag", [1], "bool")
        kept, again = (parameter() for _ in range(2))
        self.seen = [paddle.tanh(x) * 0.5]
        pool = [x * 0.5, paddle.exp(x) * 0.1, paddle.full(SHAPE, 0.25)]
        pool += [each for each in (x, kept, again) if self.draw.integers(4) == 0]
        self.steps(pool, self.draw.integers(5, 10), depth=2)
        return [*self.seen, *(each * 1.0 for each in pool)]

    def steps(self, pool: list[Any], count: int, depth: int) -> None:
        for _ in range(count):
            kinds = [self.view, self.view, self.write, self.write, self.compute, self.look]
            kinds += [self.array] * (depth == 2)
            self.one(kinds + [self.branch, self.loop] * (depth > 0))(pool, depth)

    def view(self, pool: list[Any], _: int) -> None:
        pool.append(self.one(SAMPLED)(self.one(pool)))

    def write(self, pool: list[Any], _: int) -> None:
        self.one(WRITES.values())(self.one(pool), self.one(pool) + 0.25)

    def compute(self, pool: list[Any], _: int) -> None:
        pool.append(self.one(pool) * 0.75 + self.one(pool) * 0.5)

    def look(self, pool: list[Any], depth: int) -> None:
        if depth == 2:
            self.seen.append(self.one(pool) * 2.0)

    def array(self, pool: list[Any], _: int) -> None:
        index, array = paddle.zeros([1], "int64"), paddle.tensor.create_array("float32")
        paddle.tensor.array_write(self.one(pool), index, array)
        self.write(pool, _)
        pool.append(paddle.reshape(paddle.tensor.array_read(array, index), SHAPE))

    def branch(self, pool: list[Any], depth: int) -> None:
        def block() -> list[Any]:
            inside = list(pool)
            self.steps(inside, self.draw.integers(0, 3), depth - 1)
            return [self.one(inside), self.one(inside)]

        condition = self.flag if self.draw.integers(2) else paddle.mean(self.one(pool)) > 0.1
        pool += paddle.static.nn.cond(condition, block, block)

    def yielded(self, value: Any, outer: list[Any]) -> Any:
        """Paddle crashes on some loops that yield variables from outside, or their arguments."""
        return ops.share_data(value) if any(value.is_same(other) for other in outer) else value

    def loop(self, pool: list[Any], depth: int) -> None:
        often = int(self.draw.integers(3))

        def body(i: Any, *args: Any) -> list[Any]:
            inside = [*pool, *args]
            self.steps(inside, self.draw.integers(1, 4), depth - 1)
            return [i + 1, *(self.yielded(self.one(inside), inside[: len(pool) + 2]) for _ in args)]

        initial = [self.one(pool) for _ in range(2)]
        for each in initial:  # Paddle moves initial values
            if self.draw.integers(2) and len(pool) > 3:
                pool[:] = [other for other in pool if not other.is_same(each)]
        start = [paddle.zeros([1], "int64"), *initial]
        pool += while_loop(lambda i, *_: i < often, body, start)[1:]


@pytest.mark.parametrize("group", range(3))
def test_random_programs(group: int) -> None:
    ran = [check(RandomAliases(seed).build, "kept") for seed in range(group * 8, group * 8 + 8)]
    assert sum(ran) >= 4


@pytest.mark.slow("a quarter of a second for each program")
def test_more_random_programs() -> None:
    ran = [check(RandomAliases(seed).build, "kept") for seed in range(100, 400)]
    assert sum(ran) >= 150


# -- one kind of alias each ----------------------------------------------------------------------


def feed() -> Any:
    return paddle.static.data("x", SHAPE, "float32")


def given() -> Any:
    return paddle.static.data("flag", [1], "bool")


@pytest.mark.parametrize("writes", ["variable", "view"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view(view: str, writes: str) -> None:
    def build() -> Any:
        x = feed()
        given()
        variable = paddle.tanh(x)
        other = VIEWS[view](variable)
        before = other * 2.0
        ops.add_(*((variable, x) if writes == "variable" else (other, x)))
        return [before, variable + 1.0, other + 1.0]

    assert check(build)


@pytest.mark.parametrize("writes", ["variable", "result"])
def test_a_branch_that_yields_a_variable_from_outside(writes: str) -> None:
    def build() -> Any:
        x = feed()
        variable = paddle.tanh(x)
        result = paddle.static.nn.cond(given(), lambda: variable, lambda: variable * 2.0)
        ops.add_(*((variable, x) if writes == "variable" else (result, x)))
        return [variable + 1.0, result + 1.0]

    assert check(build)


@pytest.mark.parametrize("writes", ["captured", "argument", "view", "result"])
@pytest.mark.parametrize("often", [0, 2])
def test_a_loop_that_captures_its_initial_value(writes: str, often: int) -> None:
    def build() -> Any:
        x = feed()
        given()
        variable = paddle.tanh(x)
        view = variable.detach()

        def body(i: Any, h: Any) -> Any:
            targets = {"captured": variable, "argument": h, "view": view}
            if writes in targets:
                ops.add_(targets[writes], x)
            return [i + 1, paddle.exp(h) + variable * 0.5]

        start = [paddle.zeros([1], "int64"), variable]
        _, result = while_loop(lambda i, _: i < often, body, start)
        if writes == "result":
            ops.add_(result, x)
        return [variable * 2.0, view * 2.0, result * 1.0]

    assert check(build)


def test_a_loop_overwrites_the_variable_of_its_initial_value() -> None:
    def build() -> Any:
        x, table = feed(), paddle.zeros(SHAPE)
        given()
        table[:1] = x[:1]

        def body(i: Any, h: Any) -> Any:
            table[1:] = h[1:] + 1.0
            return [i + 1, h + table]

        start = [paddle.zeros([1], "int64"), table]
        return [while_loop(lambda i, _: i < 2, body, start)[1], table * 1.0]

    assert check(build)


def test_a_parameter_is_written_under_another_name() -> None:
    """No function may retain the parameter as a constant."""

    def build() -> Any:
        x, kept = feed(), parameter()
        given()
        ops.add_(ops.share_data(kept), paddle.full(SHAPE, 0.5))
        return paddle.exp(x) * kept

    assert check(build, "kept")


def test_a_constant_is_written_under_another_name() -> None:
    def build() -> Any:
        x, constant = feed(), paddle.full([1], 1, "int64")
        given()
        before = paddle.cast(constant, "float32") * x
        paddle.increment(ops.share_data(constant), 2)
        return [before, paddle.cast(constant, "float32") * x]

    assert check(build)


def test_unobserved_writes_are_converted() -> None:
    """No other variable of the memory is used after the write."""

    def build() -> Any:
        x = feed()
        variable = paddle.tanh(x)
        result = paddle.static.nn.cond(given(), lambda: variable, lambda: variable * 2.0)
        return ops.add_(result, x) * 1.0

    assert not paddle_ngraph.explain(Program(build).main).native
    assert check(build)


def test_states_of_a_subgraph_are_separate_memory() -> None:
    """The members of a list that an engine operator overwrites are no aliases of each other."""

    def build() -> Any:
        layers = paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.Linear(4, 1))
        loss = paddle.mean(paddle.square(layers(feed())))
        paddle.optimizer.SGD(0.1).minimize(loss)
        return paddle.static.nn.cond(given(), lambda: paddle.static.Print(loss), lambda: loss)

    program = Program(build)
    transpiled, _ = paddle_ngraph.transpile(program.main, program.fetches)
    blocks = list(blocks_outermost_first(transpiled))
    assert len(blocks) == 3 and any(is_engine(op.name()) for op in blocks[0].ops)
    assert not Aliases(blocks[0])


def test_coalesced_operands_are_copied() -> None:
    def build() -> Any:
        x = feed()
        one, two = x * 1.0, x * 2.0
        results, _ = ops.coalesce_tensor(
            [one, two], paddle.float32, True, False, False, 0.0, False, -1, -1, [], []
        )
        return [ops.scale_(one, 3.0, 0.0, True) * two, results[1] * 1.0]

    assert not paddle_ngraph.explain(Program(build).main).native
    assert check(build)


def test_coalesced_results_share_memory() -> None:
    def build() -> Any:
        x = feed()
        results, whole = ops.coalesce_tensor(
            [x * 1.0, x * 2.0], paddle.float32, True, False, False, 0.0, False, -1, -1, [], []
        )
        before = whole * 1.0
        written = ops.scale_(results[1], 3.0, 0.0, True)
        return [before, written * 1.0, whole * 1.0]

    assert check(build)


# -- Paddle's in-place pass, which knows one name of a memory --------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_the_memory_of_a_view_is_not_reused(view: str) -> None:
    """The last reader of a variable would overwrite the memory that the view still has."""

    def build() -> Any:
        x = feed()
        given()
        variable = paddle.lgamma(paddle.exp(x) + 1.0)
        other = VIEWS[view](variable)
        last = paddle.digamma(variable)
        return [last, paddle.lgamma(other), other * 1.0]

    assert check(build)


class Shares(paddle.nn.Layer):
    """A layer that writes a variable, which has another name, before Paddle could reuse it."""

    def forward(self, x: Any) -> Any:
        variable = paddle.lgamma(paddle.exp(x) + 1.0)
        other = ops.share_data(variable)
        ops.add_(variable, x)
        return paddle.lgamma(paddle.exp(variable)), other * 1.0


def test_a_compiled_layer_does_not_reuse_shared_memory() -> None:
    with dynamic_mode(), paddle.no_grad():
        x = paddle.to_tensor(floats(*SHAPE, seed=3))
        expected = [each.numpy() for each in Shares()(x)]
        layer = paddle.jit.to_static(Shares(), full_graph=True)
        with paddle_ngraph.use_ngraph():
            found = [each.numpy() for each in layer(x)]
        assert paddle_ngraph.stats()["engine_runs"] > 0, "the engine did not run"
        for wanted, value in zip_equal(expected, found):
            np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-5)
