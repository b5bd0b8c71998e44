"""Programs that are half made: something may be refused at any time, and they are dropped then."""

from __future__ import annotations

import gc
from collections.abc import Callable

import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.transpiler.building import Builder
from tests.programs import Program, floats

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

STEPS: list[Callable] = [
    lambda build, x: build.scaled(x, 2.0),
    lambda build, x: build("pd_op.add", [x, build.variable("v", [2, 4], "float32")]),
    lambda build, x: build("pd_op.multiply", [x, build.fed("more", [2, 4], "float32")]),
    lambda build, x: build("pd_op.concat", [[x, x], build.number(0, "int32")]),
    lambda build, x: build.unflattened(build.flat([x, x]), [[4, 4], [4, 4]])[1],
    lambda build, x: build("pd_op.add_n", [[x, build.zeros([4, 4], "float32")]]),
    lambda build, x: build.like(x.get_defining_op(), [[x, x]])[0],
    lambda build, x: build.reshaped(x, [2, 8]),
]


@pytest.mark.parametrize("count", range(1, len(STEPS) + 1))
def test_every_operator_follows_its_inputs(count: int) -> None:
    """Paddle ends a process that drops a program with an operator before its input."""
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        found = paddle.static.data("x", [2, 4], "float32")
        last = paddle.exp(paddle.tanh(found))
    block = main.global_block()
    reader = last.get_defining_op()
    build = Builder(block, before=reader)
    first = reader.operand_source(0)
    value = first
    for step in STEPS[:count]:
        value = step(build, value)
        reader.operand(0).set_source(value)
        made: set[int] = set()
        for op in block.ops:
            assert all(v.get_defining_op().id() in made for v in op.operands_source())
            made.add(op.id())
    del build, found, last, reader, first, value, op, block
    gc.collect()
    del main
    gc.collect()


def network() -> list:
    """Of these results a transpiler of slices takes the first one alone."""
    x = paddle.static.data("x", [-1, 4], "float32")
    h = paddle.tanh(paddle.nn.Linear(4, 3)(x))
    return [h, paddle.transpose(h, [1, 0]) * 2, paddle.argmax(h), h * 3]


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [0, 2], [0, 3, 1], [2, 3]])
def test_slices_that_are_refused_leave_the_process_alone(order: list[int]) -> None:
    program = Program(network)
    with pytest.raises(NgraphError, match="cannot be computed in slices"):
        paddle_ngraph.data_parallel(program.main, 2, [program.fetches[i] for i in order])
    gc.collect()
    program.both(x=floats(4, 4))


def test_stages_that_are_refused_leave_the_process_alone() -> None:
    """The first thing that crosses is one that a stage can be fed, the second is not."""

    def build() -> list:
        x = paddle.static.data("x", [-1, 4], "float32")
        layers = [paddle.nn.Linear(4, 4, bias_attr=False) for _ in range(3)]
        first = paddle.tanh(layers[0](x))
        second = paddle.tanh(layers[1](first))
        copy = second * 1.0
        paddle.assign(first.detach(), output=copy)
        loss = paddle.mean(layers[2](second + copy) ** 2)
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss]

    program = Program(build)
    for _ in range(3):
        with pytest.raises(NgraphError, match="crosses from one stage"):
            paddle_ngraph.pipeline(program.main, 2, program.fetches, micro_batches=1)
        gc.collect()
    Program(network).both(x=floats(4, 4))
