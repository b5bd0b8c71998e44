"""Converters of paddle_ngraph.ops.manipulation compared with plain Paddle."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.ir.graph import Op, TensorSpec
from tests.dynamic import dynamic_mode
from tests.ops.harness import MAKERS, check, check_dtypes, strange, whole
from tests.ops.merging import merged
from tests.programs import Program

RESHAPES = [
    ([2, 3, 4], [-1, 6]),
    ([2, 3, 4], [0, -1]),
    ([2, 3, 4], [4, 3, 2, 1]),
    ([1], []),
    ([], [1, 1]),
    ([2, 3, 4], [0, 0, 2, 2]),
]


@merged
@pytest.mark.parametrize("shape, target", RESHAPES)
def test_reshape(shape, target):
    check_dtypes(lambda x: paddle.reshape(x, target), shape, ["reshape", "reshape_grad"])


@merged
def test_reshape_dynamic():
    build = lambda x: paddle.reshape(x, [0, -1]) * 2.0  # noqa: E731
    check(build, {"x": strange(5, 3, 4)}, ["reshape"], dynamic={"x": [-1, 3, 4]})


@merged
def test_reshape_to_a_shape_computed_from_another():
    def build(x):
        dims = paddle.shape(x)
        return paddle.reshape(x, [dims[1], dims[0]])

    check(build, {"x": strange(5, 3)}, ["reshape", "shape64", "slice"], dynamic={"x": [-1, -1]})


@merged
def test_reshape_to_a_shape_that_is_fed():
    feeds = {"x": strange(2, 6), "shape": np.array([3, 4], "int32")}
    check(lambda x, shape: paddle.reshape(x, shape), feeds, ["reshape"], gradients=False)


@merged
def test_reshape_in_place():
    build = lambda x: paddle.reshape_(x + x, [3, 2])  # noqa: E731
    check(build, {"x": strange(2, 3)}, gradients=False)


@merged
@pytest.mark.parametrize(
    "shape, start, stop",
    [
        ([2, 3, 4], 1, -1),
        ([2, 3, 4], 0, -1),
        ([2, 3, 4, 5], 1, 2),
        ([2, 3, 4], -2, 2),
        ([], 0, 0),
        ([3], 0, 0),
    ],
)
def test_flatten(shape, start, stop):
    check_dtypes(lambda x: paddle.flatten(x, start, stop), shape, ["flatten", "flatten_grad"])


@merged
def test_flatten_dynamic():
    build = lambda x: paddle.flatten(x, 1)  # noqa: E731
    check(build, {"x": strange(3, 2, 4)}, ["flatten", "flatten_grad"], dynamic={"x": [-1, 2, 4]})


@merged
@pytest.mark.parametrize(
    "shape, axis",
    [
        ([2, 1, 4], [1]),
        ([1, 2, 1], None),
        ([2, 1, 4, 1], [-1]),
        ([2, 1, 4], [0, 1]),
        ([1], [0]),
        ([1, 1], None),
    ],
)
def test_squeeze(shape, axis):
    check_dtypes(lambda x: paddle.squeeze(x, axis), shape, ["squeeze", "squeeze_grad"])


@merged
@pytest.mark.parametrize(
    "shape, axis",
    [
        ([2, 4], [0]),
        ([2, 4], [0, -1]),
        ([2, 4], [-1, 0]),
        ([2, 4], [1, 1]),
        ([], [0]),
        ([], [0, 1]),
        ([2, 4], [-3]),
    ],
)
def test_unsqueeze(shape, axis):
    check_dtypes(lambda x: paddle.unsqueeze(x, axis), shape, ["unsqueeze", "unsqueeze_grad"])


@merged
@pytest.mark.parametrize(
    "shape, perm",
    [
        ([2, 3], [1, 0]),
        ([2, 3, 4], [2, 0, 1]),
        ([2, 3, 1, 4], [0, 2, 3, 1]),
        ([2, 3, 4], [0, 1, 2]),
        ([2, 3, 4], [-1, 0, 1]),
        ([2, 3, 2, 4, 2], [4, 2, 0, 1, 3]),
        ([2, 3, 2, 2, 2, 3], [5, 1, 4, 0, 2, 3]),
        ([3], [0]),
        ([], []),
    ],
)
def test_transpose(shape, perm):
    check_dtypes(lambda x: paddle.transpose(x, perm), shape, ["transpose", "transpose_grad"])


def test_permutations_of_the_first_axes():
    """Dynamic mode accepts them, where Paddle's kernels for programs raise an error."""
    orders = [list(order) for count in range(4) for order in permutations(range(count))]
    data = strange(2, 3, 4, 5)

    def network(x):
        return [paddle.tanh(x).transpose(order) * 2.0 for order in orders]

    with dynamic_mode():
        compiled, found = paddle_ngraph.compile(network), []
        before = paddle_ngraph.stats()["engine_runs"]
        for function in (network, compiled, compiled):
            x = paddle.to_tensor(data, stop_gradient=False)
            results = function(x)
            paddle.add_n([(r * r).sum() for r in results]).backward()
            found.append([r.numpy() for r in (*results, x.grad)])
        assert paddle_ngraph.stats()["engine_runs"] > before
        report = str(paddle_ngraph.explain(compiled))
    for actual in found[1:]:
        for one, other in zip(found[0], actual):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert "native transpose" not in report


@pytest.mark.parametrize("type", ["transpose", "transpose_grad"])
@pytest.mark.parametrize("order", [[0, 3], [0, -1, 1], [3]])
def test_orders_that_are_no_permutations_fall_back(order, type):
    """Not run here: Paddle's check of such an order counts axes beyond the end of a vector."""
    result = TensorSpec(0, "float32", (2, 3, 4, 5))
    entry = find_converter(f"pd_op.{type}")
    assert entry is not None
    reason = entry.reason_against(
        Op(f"pd_op.{type}", 0, outputs={"out": (result,)}, attrs={"perm": order})
    )
    assert reason is not None and "names an axis behind" in reason


@merged
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("create", MAKERS)
def test_concat(axis, create):
    def build(a, b, c):
        return paddle.concat([a, b, c], axis)

    other = [2, 3, 4]
    other[axis] = 1
    types = ["concat", "concat_grad"] if create is strange else ["concat"]
    check(build, {"a": create(2, 3, 4), "b": create(*other), "c": create(2, 3, 4)}, types)


@merged
def test_concat_of_one_tensor_twice():
    build = lambda x: paddle.concat([x, x * 2.0, x], 0)  # noqa: E731
    check(build, {"x": strange(2, 3)}, ["concat", "concat_grad"])


@merged
def test_concat_dynamic():
    feeds = {"a": strange(3, 2), "b": strange(3, 4)}
    check(
        lambda a, b: paddle.concat([a, b], 1),
        feeds,
        ["concat", "concat_grad"],
        dynamic={"a": [-1, 2], "b": [-1, 4]},
    )


@merged
@pytest.mark.parametrize("shape, axis", [([2, 3], 0), ([2, 3], 1), ([2, 3], -1), ([], 0), ([1], 1)])
@pytest.mark.parametrize("create", MAKERS)
def test_stack(shape, axis, create):
    types = ["stack", "stack_grad"] if create is strange else ["stack"]
    feeds = {"a": create(*shape), "b": create(*shape)}
    check(lambda a, b: paddle.stack([a, b, a], axis), feeds, types)


@merged
@pytest.mark.parametrize("sections, axis", [([1, 3], -1), ([2, -1], 2), ([1, 1, 1], 1), ([2], 0)])
def test_split(sections, axis):
    check_dtypes(lambda x: paddle.split(x, sections, axis), [2, 3, 4], ["split"])


@merged
def test_split_gradient_is_a_concat():
    check(lambda x: paddle.split(x, [1, 3], 1), {"x": strange(2, 4)}, ["split", "concat"])


@merged
def test_split_with_unused_outputs():
    build = lambda x: paddle.split(x, [1, 2, 3], 1)[1] * 2.0  # noqa: E731
    check(build, {"x": strange(2, 6)}, ["split"], gradients=False)


@merged
@pytest.mark.parametrize("num, axis", [(2, 0), (3, 1), (2, -1), (1, 0)])
def test_split_with_num(num, axis):
    check_dtypes(lambda x: paddle.split(x, num, axis), [2, 3, 4], ["split_with_num"])


@merged
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unbind_and_unstack(axis):
    check_dtypes(lambda x: paddle.unbind(x, axis), [2, 3, 4], ["unbind"])
    check(lambda x: paddle.unstack(x, axis), {"x": strange(2, 3, 4)}, ["unstack", "unstack_grad"])
    check(lambda x: paddle.unstack(x, axis), {"x": whole(2, 3, 4)}, ["unstack"])


@merged
def test_shape_and_numel():
    def build(x):
        return paddle.shape(x), paddle.numel(x), paddle.flatten(x) * 2.0

    check(
        build, {"x": strange(3, 2)}, ["shape64", "numel"], dynamic={"x": [-1, -1]}, gradients=False
    )
    check(build, {"x": strange()}, ["numel"], native=["shape64"], gradients=False)


@merged
@pytest.mark.parametrize(
    "build",
    [
        lambda x: paddle.reshape(x, [3, 2]),
        lambda x: paddle.transpose(x, [1, 0]),
        lambda x: paddle.concat([x, x], 0),
        lambda x: paddle.slice(x, [0], [0], [1]),
    ],
)
def test_64_bit_integers_fall_back(build):
    x = np.arange(6, dtype="int64").reshape(2, 3) + 2**40
    check(build, {"x": x}, ())


@pytest.mark.parametrize("dims", [[2, 1, 3], [-1, 1, 3], [-1, 1, -1]], ids=str)
@pytest.mark.parametrize("change", [paddle.squeeze, paddle.unsqueeze])
def test_gradient_of_a_program_desc_squeeze(change, dims):
    def build():
        x = paddle.static.data("x", dims, "float32")
        x.stop_gradient = False
        y = change(x, [1])
        return [y, *paddle.static.gradients([y * y], [x])]

    with paddle.pir_utils.OldIrGuard():
        Program(build).both(x=strange(2, 1, 3))


@pytest.mark.parametrize("change", [paddle.flatten, lambda x: paddle.reshape(x, [6])])
def test_gradient_of_a_program_desc_reshape(change):
    def build():
        x = paddle.static.data("x", [2, 1, 3], "float32")
        x.stop_gradient = False
        y = change(x)
        return [y, *paddle.static.gradients([y * y], [x])]

    with paddle.pir_utils.OldIrGuard():
        Program(build).both(x=strange(2, 1, 3))
