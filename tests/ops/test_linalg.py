"""Matrix products and their gradients."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_fallback
from tests.ops.merging import merged
from tests.programs import varied

MATMUL = ["matmul", "matmul_grad"]


def transposed(value: np.ndarray, really: bool) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(value, -1, -2)) if really else value


BATCHES = [
    ([], []),
    ([3], []),
    ([], [3]),
    ([3], [3]),
    ([1], [3]),
    ([3], [1]),
    ([2, 3], []),
    ([2, 3], [3]),
    ([2, 1], [1, 3]),
    ([], [2, 3]),
    ([1, 1], [2, 3]),
    ([2, 3], [1, 1]),
]


@merged
@pytest.mark.parametrize("transpose_x", [False, True])
@pytest.mark.parametrize("transpose_y", [False, True])
@pytest.mark.parametrize("x_batch, y_batch", BATCHES)
def test_matmul(x_batch, y_batch, transpose_x, transpose_y):
    x = transposed(varied(*x_batch, 4, 5), transpose_x)
    y = transposed(varied(*y_batch, 5, 6), transpose_y)
    # Paddle's own gradient fails for these.
    has_gradient = (x_batch, y_batch) != ([2, 3], [3])
    check(
        lambda x, y: paddle.matmul(x, y, transpose_x, transpose_y),
        {"x": x, "y": y},
        MATMUL if has_gradient else MATMUL[:1],
        gradients=has_gradient,
    )


VECTORS = [
    ([5], [5], False, False),
    ([5], [5], True, True),
    ([5], [5, 6], False, False),
    ([5], [6, 5], False, True),
    ([5], [2, 5, 6], False, False),
    ([5], [2, 6, 5], False, True),
    ([4, 5], [5], False, False),
    ([4, 5], [5], False, True),
    ([5, 4], [5], True, False),
    ([2, 4, 5], [5], False, False),
    ([2, 5, 4], [5], True, False),
    ([2, 3, 4, 5], [5], False, False),
    ([1], [1], False, False),
]


@merged
@pytest.mark.parametrize("x_shape, y_shape, transpose_x, transpose_y", VECTORS)
def test_matmul_of_vectors(x_shape, y_shape, transpose_x, transpose_y):
    check(
        lambda x, y: paddle.matmul(x, y, transpose_x, transpose_y),
        {"x": varied(*x_shape), "y": varied(*y_shape)},
        ["matmul"],
    )


@merged
def test_a_vector_is_not_transposed():
    check(
        lambda x, y: paddle.matmul(x, y, transpose_x=True),
        {"x": varied(5), "y": varied(5, 6)},
        MATMUL[:1],
        gradients=False,  # Paddle's own fails
    )


@merged
@pytest.mark.parametrize("rows, inner, columns", [(1, 1, 1), (1, 5, 1), (4, 1, 6), (1, 5, 6)])
def test_matmul_of_single_rows_and_columns(rows, inner, columns):
    check(
        paddle.matmul,
        {"x": varied(rows, inner), "y": varied(inner, columns)},
        MATMUL,
    )


@merged
@pytest.mark.parametrize("shape", [[-1, 5], [-1, -1]])
def test_matmul_with_dynamic_dimensions(shape):
    inputs = {"x": varied(4, 5), "y": varied(5, 6)}
    check(paddle.matmul, inputs, MATMUL, dynamic={"x": shape})


@merged
def test_matmul_with_dynamic_batch():
    inputs = {"x": varied(2, 3, 4, 5), "y": varied(2, 3, 4, 5)}
    check(
        lambda x, y: paddle.matmul(x, y, transpose_y=True),
        inputs,
        MATMUL,
        dynamic={"x": [-1, 3, -1, 5], "y": [-1, 3, -1, 5]},
    )


@merged
@pytest.mark.parametrize("wanted", ["x", "y"])
def test_matmul_grad_with_one_output(wanted):
    def build(x, y):
        out = paddle.matmul(x, y)
        return paddle.static.gradients([out], [{"x": x, "y": y}[wanted]])

    inputs = {"x": varied(3, 4, 5), "y": varied(5, 6)}
    check(build, inputs, MATMUL, gradients=False)


@merged
def test_matmul_keeps_nan_and_infinity():
    x = varied(3, 4)
    x[0, 1], x[1, 2] = np.nan, np.inf
    check(paddle.matmul, {"x": x, "y": varied(4, 5)}, MATMUL)


@merged
def test_large_matmul():
    inputs = {"x": varied(64, 300), "y": varied(300, 200)}
    check(paddle.matmul, inputs, MATMUL, rtol=1e-4, atol=1e-4)


@merged
def test_matmul_of_float64_falls_back():
    check_fallback(
        paddle.matmul,
        {
            "x": varied(3, 4).astype("float64"),
            "y": varied(4, 5).astype("float64"),
        },
        ["matmul"],
        gradients=False,
    )


@merged
@pytest.mark.parametrize(
    "x_shape, y_shape, x_rows, y_rows",
    [
        ([4, 5], [5, 6], 1, 1),
        ([4, 2, 3], [6, 5], 1, 1),
        ([2, 4, 6], [6, 5], 2, 1),
        ([2, 4, 6], [3, 2, 5, 2], 2, 2),
    ],
)
def test_matmul_with_flatten(x_shape, y_shape, x_rows, y_rows):
    def build(x, y):
        return paddle._C_ops.matmul_with_flatten(x, y, x_rows, y_rows)

    inputs = {"x": varied(*x_shape), "y": varied(*y_shape)}
    check(build, inputs, ["matmul_with_flatten", "matmul_with_flatten_grad"])


@merged
@pytest.mark.parametrize("batch", [1, 3])
def test_bmm(batch):
    inputs = {"x": varied(batch, 4, 5), "y": varied(batch, 5, 6)}
    check(paddle.bmm, inputs, ["bmm", "bmm_grad"])


@merged
@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (4, 1)])
def test_mv(shape):
    inputs = {"x": varied(*shape), "vec": varied(shape[1])}
    check(paddle.mv, inputs, ["mv", "mv_grad"])


@merged
@pytest.mark.parametrize("shape", [(5,), (4, 5), (1, 5), (1,)])
def test_dot(shape):
    check(
        paddle.dot,
        {"x": varied(*shape), "y": varied(*shape)},
        ["dot", "dot_grad"],
    )


@merged
@pytest.mark.parametrize("beta, alpha", [(1.0, 1.0), (0.5, 2.0), (0.0, 1.0)])
@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (4, 1), (6,), (1,)])
def test_addmm(shape, beta, alpha):
    inputs = {
        "input": varied(*shape),
        "x": varied(4, 5),
        "y": varied(5, 6),
    }
    check(
        lambda input, x, y: paddle.addmm(input, x, y, beta=beta, alpha=alpha),
        inputs,
        ["addmm", "addmm_grad"],
    )


# -- matmul chains, batched matmuls with a term, outer products ------------------------------------


@merged
@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (0.5, -2.0)])
def test_baddbmm(alpha, beta):
    build = lambda c, x, y: paddle.baddbmm(c, x, y, beta=beta, alpha=alpha)  # noqa: E731
    feeds = {
        "c": varied(2, 3, 5),
        "x": varied(2, 3, 4),
        "y": varied(2, 4, 5),
    }
    check(build, feeds, ["baddbmm", "baddbmm_grad"])


@merged
@pytest.mark.parametrize(
    "shapes",
    [
        [[3, 4], [4, 5]],
        [[3, 4], [4, 5], [5, 2]],
        [[9, 2], [2, 8], [8, 3], [3, 7]],
        [[4], [4, 5], [5]],
        [[4], [4, 5], [5, 2]],
        [[3, 4], [4, 5], [5]],
    ],
)
def test_multi_dot(shapes):
    feeds = {f"x{i}": varied(*shape) for i, shape in enumerate(shapes)}
    build = lambda **x: paddle.linalg.multi_dot(list(x.values()))  # noqa: E731
    check(build, feeds, ["multi_dot", "multi_dot_grad"], rtol=1e-4, atol=1e-5)


@merged
@pytest.mark.parametrize(
    "x, y", [([2, 4], [3, 2]), ([3], [4]), ([2, 3], [4]), ([2], [3, 4]), ([2, 1, 3], [2, 2, 2])]
)
def test_kron(x, y):
    feeds = {"x": varied(*x), "y": varied(*y)}
    check(paddle.kron, feeds, ["kron", "kron_grad"], rtol=1e-4, atol=1e-5)


@merged
def test_kron_of_integers():
    x = np.array([[2**24 + 1, -7], [2**30 + 1, 0]], "int32")
    check(paddle.kron, {"x": x, "y": np.array([[1, -1, 2]], "int32")}, ["kron"])


@merged
@pytest.mark.parametrize("shape, axis", [([2, 3], 1), ([3, 4], 0), ([2, 3, 3], -1), ([5, 3], 9)])
def test_cross(shape, axis):
    x, y = varied(*shape), varied(*shape)[::-1].copy()
    x.reshape(-1)[:2] = [np.nan, np.inf]
    check(lambda x, y: paddle.cross(x, y, axis), {"x": x, "y": y}, ["cross", "cross_grad"])


EQUATIONS = [
    ("bij,bjk->bik", [2, 3, 4], [2, 4, 5]),
    ("bhqd,bhkd->bhqk", [2, 2, 3, 4], [2, 2, 5, 4]),
    ("...ij,...jk", [2, 3, 4], [4, 5]),
    ("i,j->ij", [3], [4]),
    ("ij,ij->", [3, 4], [3, 4]),
    ("ij->ji", [3, 4]),
    ("ij->", [3, 4]),
    ("ii->i", [4, 4]),
    ("ijk->j", [2, 3, 4]),
    ("i,i->", [5], [5]),
    ("bn,anm,bm->ba", [2, 5], [3, 5, 4], [2, 4]),
]


@merged
@pytest.mark.parametrize("equation, shapes", [(e[0], e[1:]) for e in EQUATIONS])
def test_einsum(equation, shapes):
    feeds = {f"x{i}": varied(*shape) for i, shape in enumerate(shapes)}
    build = lambda **x: paddle.einsum(equation, *x.values())  # noqa: E731
    check(build, feeds, ["einsum"], gradients=False, rtol=1e-4, atol=1e-5)


def product(equation, *operands):
    """Multiplies computed tensors, so that their gradients are read and not eliminated."""
    return paddle.einsum(equation, *(paddle.tanh(x) for x in operands))


GRADIENTS = [
    ("ij,jk->ik", [(3, 4), (4, 5)]),
    ("ij,jk->ki", [(3, 4), (4, 5)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("...ij,...jk->...ik", [(2, 3, 3, 4), (2, 3, 4, 5)]),
    ("ij,j->i", [(3, 4), (4,)]),
    ("i,j->ij", [(3,), (4,)]),
    ("ijk,kl->il", [(2, 3, 4), (4, 5)]),
    ("ij,kl->", [(3, 4), (2, 5)]),
    ("ij,ij->ij", [(3, 4), (3, 4)]),
    ("ijk->kij", [(2, 3, 4)]),
    ("ijk->j", [(2, 3, 4)]),
    ("ij->", [(3, 4)]),
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 2)]),
]


@merged
@pytest.mark.parametrize("equation, shapes", GRADIENTS)
def test_gradient_of_einsum(equation, shapes):
    feeds = {f"x{i}": varied(*shape) for i, shape in enumerate(shapes)}
    build = lambda **x: product(equation, *x.values())  # noqa: E731
    check(build, feeds, ["einsum", "einsum_grad"], rtol=1e-4, atol=1e-5)


@merged
def test_gradient_of_einsum_of_dynamic_shape():
    build = lambda x, y: product("bij,bjk->bik", x, y)  # noqa: E731
    feeds = {"x": varied(2, 3, 4), "y": varied(2, 4, 5)}
    dynamic = {"x": [-1, -1, 4], "y": [-1, 4, 5]}
    check(build, feeds, ["einsum", "einsum_grad"], dynamic=dynamic, rtol=1e-4, atol=1e-5)


@merged
def test_gradient_of_one_operand_of_einsum():
    def build(x, y):
        y.stop_gradient = True
        return product("ij,jk->ik", x, y)

    check(
        build,
        {"x": varied(3, 4), "y": varied(4, 5)},
        ["einsum", "einsum_grad"],
        rtol=1e-4,
    )


@merged
def test_gradient_of_einsum_in_another_subgraph():
    build = lambda x, y: product("ij,jk->ik", x, y).erfinv()  # noqa: E731
    feeds = {"x": 0.2 * varied(3, 4), "y": varied(4, 5)}
    native = ["erfinv", "erfinv_grad"]
    check(build, feeds, ["einsum", "einsum_grad"], native=native, rtol=1e-4, atol=1e-5)


@merged
def test_gradient_of_a_diagonal_by_einsum_falls_back():
    build = lambda x, y: product("ii,ij->j", x, y)  # noqa: E731
    check_fallback(build, {"x": varied(3, 3), "y": varied(3, 5)}, ["einsum", "einsum_grad"])


def test_saved_outputs_of_einsum_are_no_results():
    """If a program requests this output, the operator falls back; its gradient need not."""

    def build(x, y):
        out = product("ij,jk->ik", x, y)
        first, _ = out.get_defining_op().results()[1].all_used_ops()[0].results()
        return out, first * 2.0

    feeds = {"x": varied(3, 4), "y": varied(4, 5)}
    check(build, feeds, ["tanh", "einsum_grad"], native=["einsum"], rtol=1e-4)
