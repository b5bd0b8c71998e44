"""Loop-invariant values are computed once before the loop, with equal results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.tensor import array_length, array_write, create_array
from paddle.tensor.manipulation import tensor_array_to_tensor

import paddle_ngraph
from paddle_ngraph.conversion.bridge import element_type
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from tests.ops.test_control_flow import agree, graph_of
from tests.programs import Program, counted, fed_limit, floats, parameter
from tests.zips import zip_equal

WIDTH = 6


class RandomLoop:
    """Loops with invariant inputs, and random computations with them.

    Args:
        is_apart: Whether branches yield copies. Plain Paddle may overwrite a branch's output while
            the input still has readers: results differ from run to run.
    """

    def __init__(self, seed: int, is_apart: bool = False) -> None:
        self.is_apart = is_apart
        self.draw = np.random.default_rng(seed)
        self.kinds = list(self.draw.choice(KINDS, size=self.draw.integers(1, 4)))
        self.activation = str(self.draw.choice(["tanh", "sigmoid", "relu"]))

    def build(self) -> Any:
        self.x = paddle.static.data("x", [-1, WIDTH], "float32")
        self.place = paddle.static.data("place", [1], "int64")
        self.memory = paddle.tanh(self.x)
        self.weights = [parameter(WIDTH, WIDTH, seed=seed) for seed in range(3)]
        return counted(self.body, self.x * 1.0, self.x + 1.0, end=fed_limit())

    def body(self, i: Any, h: Any, g: Any) -> list[Any]:
        for kind in map(str, self.kinds):
            h, g = getattr(self, kind)(i, h, g)
        return [paddle.tanh(h), g]

    def seen(self, number: int = 0) -> Any:
        """A random loop-invariant value."""
        made = paddle.matmul(self.memory, self.weights[number])
        return getattr(paddle.nn.functional, self.activation)(made + self.weights[number][1])

    def attends(self, i: Any, h: Any, g: Any) -> tuple[Any, Any]:
        scores = paddle.nn.functional.softmax(paddle.matmul(h, self.seen().transpose([1, 0])))
        return paddle.matmul(scores, self.seen(1)), g

    def in_a_chain(self, i: Any, h: Any, g: Any) -> tuple[Any, Any]:
        made = paddle.matmul(self.seen(), self.weights[2]).reshape([-1, WIDTH, 1])
        return h + made.squeeze(2), g

    def hands_it_on(self, i: Any, h: Any, g: Any) -> tuple[Any, Any]:
        return h + g, self.seen()

    def hands_it_on_twice(self, i: Any, h: Any, g: Any) -> tuple[Any, Any]:
        made = self.seen()
        return made, made

    def picks(self, i: Any, h: Any, g: Any) -> tuple[Any, Any]:
        return h + paddle.gather(self.seen(), self.place), g

    def in_a_branch(self, i: Any, h: Any, g: Any) -> tuple[Any, Any]:
        made = self.seen()
        return paddle.static.nn.cond(paddle.mean(h) > 0.1, lambda: h * 0.5, lambda: made), g

    def in_an_inner_loop(self, i: Any, h: Any, g: Any) -> tuple[Any, Any]:
        weight = self.weights[2]

        def body(_: Any, k: Any) -> list[Any]:  # `h` is invariant here only
            return [paddle.tanh(k + self.seen() + paddle.matmul(h, weight))]

        # `g` itself does not work, since an inner loop of plain Paddle overwrites its initial
        # values.
        return counted(body, g * 1.0, end=2)[1], g

    def one_of_two(self, i: Any, h: Any, g: Any) -> tuple[Any, Any]:
        one, other = (each * 1.0 if self.is_apart else each for each in (h, g))
        return paddle.static.nn.cond(paddle.mean(h) > 0.1, lambda: one, lambda: other), g

    def in_a_list(self, i: Any, h: Any, g: Any) -> tuple[Any, Any]:
        stacked, length = self.listed(self.seen(), h, g)
        return stacked.mean(0) + length, g

    def in_a_list_with_the_same(self, i: Any, h: Any, g: Any) -> tuple[Any, Any]:
        stacked, length = self.listed(self.seen(), self.seen(1))
        return h + stacked.sum(0) * length, g

    def listed(self, *members: Any) -> tuple[Any, Any]:
        """A list that each iteration creates again: its elements and their number."""
        made = create_array("float32")
        for member in members:
            array_write(member, array_length(made), made)
        stacked, _ = tensor_array_to_tensor(made, axis=0, use_stack=True)
        return stacked, array_length(made).astype("float32")


KINDS = [
    *("attends", "in_a_chain", "hands_it_on", "hands_it_on_twice", "picks"),
    *("in_a_branch", "in_an_inner_loop", "one_of_two"),
]
LISTS = ["in_a_list", "in_a_list_with_the_same"]


@pytest.mark.parametrize("seed", range(40))
def test_random_loops_agree(seed: int) -> None:
    program, apart = Program(RandomLoop(seed).build), Program(RandomLoop(seed, is_apart=True).build)
    for rows, limit in ((4, 3), (4, 1), (7, 2), (3, 4)):
        feed = {"place": np.array([rows - 1]), "limit": np.array([limit])}
        agree(program, natively=apart, x=floats(rows, WIDTH, seed=rows), **feed)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("seed", range(12))
def test_each_iteration_has_separate_lists(seed: int) -> None:
    """Even if the elements are equal: a list that iterations share would grow."""
    loop = RandomLoop(seed)
    loop.kinds = [*loop.draw.permutation([LISTS[seed % 2], "attends", "picks"])]
    program = Program(loop.build)
    for rows, limit in ((4, 3), (4, 1), (7, 2), (3, 4)):
        feed = {"place": np.array([rows - 1]), "limit": np.array([limit])}
        agree(program, x=floats(rows, WIDTH, seed=rows), **feed)


@pytest.mark.parametrize("kind", [*KINDS, *LISTS])
def test_loops_without_iterations_agree(kind: str) -> None:
    loop = RandomLoop(0)
    loop.kinds = [kind]
    program = Program(loop.build)
    feed = {"x": floats(4, WIDTH), "place": np.array([1]), "limit": np.array([0])}
    for expected, found in zip_equal(program.run(engine=False, **feed), program.run(**feed)):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == 1


def inside(build: Callable) -> Counter[str]:
    """Returns the types of nodes inside loops and branches."""
    graph = graph_of(build)
    border = [
        (element_type(spec.dtype).get_type_name(), [4 if size < 0 else size for size in spec.shape])
        for spec in [*graph.inputs, *graph.states]
    ]
    builder = FunctionBuilder(graph, border)
    builder.build()
    nodes = (node for model in builder.inner_models() for node in model.get_ordered_ops())
    return Counter(node.get_type_name() for node in nodes)


@pytest.mark.parametrize(
    ("kind", "products"),
    [
        *(("attends", 2), ("in_a_chain", 0), ("hands_it_on", 0), ("hands_it_on_twice", 0)),
        *(("picks", 0), ("in_a_branch", 0)),
    ],
)
def test_matmuls_that_stay_in_the_loop(kind: str, products: int) -> None:
    loop = RandomLoop(0)
    loop.kinds = [kind]
    found = inside(loop.build)
    assert (found["MatMul"], found["Transpose"]) == (products, 0)


def test_a_branch_that_only_selects_needs_no_model() -> None:
    loop = RandomLoop(0)
    loop.kinds = ["one_of_two"]
    assert inside(loop.build)["If"] == 0


def test_cheap_nodes_stay_in_the_loop() -> None:
    """Moving it would cost memory: results of iterations are freed."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, WIDTH], "float32")
        return counted(lambda i, h: [h + paddle.exp(x)], x * 1.0, end=fed_limit())

    assert inside(build)["Exp"] == 1
