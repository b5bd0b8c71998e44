"""int64 values that may exceed int32: each run checks them, and falls back if they do."""

from __future__ import annotations

import operator

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.conversion import denylist
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import program_pass
from paddle_ngraph.partitioning.analysis.capability import Candidates
from tests.programs import Program, floats
from tests.zips import zip_equal

pytestmark = pytest.mark.usefixtures("nothing_cached")

LEAST, MOST = -(2**31), 2**31 - 1
ENDS = [0, 1, -1, 7, 46340, -46341, 65536, 2**30, -(2**30), MOST, MOST - 1, LEAST, LEAST + 1]


def run_both(program, in_engine, **feed):
    """Compares the results bit by bit, and the path of execution."""
    native = program.run(engine=False, **feed)
    paddle_ngraph.reset_stats()
    found = program.run(**feed)
    stats = paddle_ngraph.stats()
    assert (stats["engine_runs"], stats["native_runs"]) == ((1, 0) if in_engine else (0, 1))
    for one, other in zip_equal(native, found):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(other, one)


def is_one_subgraph(program):
    report = paddle_ngraph.explain(program.main)
    return not report.native and len(report.intervals) == 1


def checked(program):
    """Returns the operators that runs check, in loops and branches too."""
    (block, *_) = program_pass.dry_run(program.main).blocks
    return [
        op.type.removeprefix("pd_op.")
        for interval in block.intervals
        for op in interval.graph.all_ops()
        if op.checked
    ]


# -- casts ---------------------------------------------------------------------------------------

INSIDE = [0.5, -0.5, -1.9, 2.5, 0.0, -0.0, 1e-40, -(2.0**31), 2.0**31 - 128, 16777217.0, -3.9999998]
BEYOND = [2.0**31, -(2.0**31) - 256, 3e9, 2.0**63, -(2.0**63), 1e38, np.inf, -np.inf, np.nan]


def cast(shape, dtype="int64"):
    return Program(lambda: paddle.cast(paddle.static.data("x", shape, "float32"), dtype))


@pytest.mark.slow("compiles many or large functions")
def test_a_cast_within_int32_runs_in_the_engine():
    program = cast([-1])
    assert is_one_subgraph(program)
    run_both(program, True, x=np.array(INSIDE, "float32"))
    for each in INSIDE:
        run_both(program, True, x=np.array([each, 1.0], "float32"))


@pytest.mark.parametrize("place", [0, 1, 5000, -1])
@pytest.mark.parametrize("value", BEYOND)
def test_a_cast_beyond_int32_falls_back(value, place):
    program = cast([-1])
    x = np.resize(np.array(INSIDE, "float32"), 9000)
    run_both(program, True, x=x)
    x[place] = value
    run_both(program, False, x=x)
    run_both(program, True, x=np.resize(np.array(INSIDE, "float32"), 77))


def test_a_cast_of_an_empty_tensor():
    x = np.zeros([0], "float32")
    program = cast([-1])
    np.testing.assert_array_equal(program.run(x=x)[0], program.run(engine=False, x=x)[0])


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_casts_of_many_shapes_share_a_function(rank):
    program = cast([-1] * rank)
    for seed in range(6):
        shape = [2 + (seed + i) % 5 for i in range(rank)]
        run_both(program, True, x=floats(*shape, seed=seed) * 1e4)
    run_both(program, False, x=np.full([3] * rank, 1e10, "float32"))


@pytest.mark.slow("compiles many or large functions")
def test_indices_computed_from_floats():
    """As in T5: the logarithm of a distance, cast to int64, is looked up."""

    def build():
        x = paddle.static.data("x", [-1, -1, 8], "float32")
        places = paddle.arange(paddle.shape(x)[1], dtype="int64")
        apart = paddle.abs(places.unsqueeze(0) - places.unsqueeze(1))
        far = 4 + (paddle.log(apart.astype("float32") / 4) / 0.7).astype("int64")
        far = paddle.minimum(far, paddle.full_like(far, 7))
        bucket = paddle.where(apart < 4, apart, far) + (places > 2).astype("int64")
        bias = paddle.nn.Embedding(9, 2)(bucket)
        return paddle.matmul(x, x, transpose_y=True).unsqueeze(-1) + bias, bucket

    program = Program(build)
    assert is_one_subgraph(program)
    paddle_ngraph.reset_stats()
    for length in (3, 5, 4, 9, 12):  # the logarithm of 0 is cast, and not selected
        native = program.run(engine=False, x=floats(2, length, 8))
        found = program.run(x=floats(2, length, 8))
        np.testing.assert_array_equal(found[1], native[1])
        np.testing.assert_allclose(found[0], native[0], rtol=1e-5, atol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == 5 and not paddle_ngraph.stats()["native_runs"]


FORWARDED = {
    "at once": lambda c, x: c,
    "scale": lambda c, x: c * 2 + 1,
    "add": lambda c, x: c + paddle.full_like(c, 3),
    "subtract": lambda c, x: paddle.full([1], 9, "int64") - c,
    "multiply": lambda c, x: c * c,
    "minimum": lambda c, x: paddle.minimum(c, paddle.full_like(c, 7)),
    "maximum": lambda c, x: paddle.maximum(paddle.full_like(c, 7), c),
    "assign": lambda c, x: paddle.assign(c),
    "two": lambda c, x: c + paddle.cast(x * 2.0, "int64"),
    "repeated": lambda c, x: c + paddle.zeros([1, 1], "int64"),
    "where": lambda c, x: paddle.where(x > 5.0, c, c + 1),
}
READ = {
    "result": lambda c: c,
    "comparison": lambda c: c < 5,
    "cast": lambda c: paddle.cast(c, "float32"),
    "branch": lambda c: paddle.static.nn.cond(
        paddle.sum(paddle.cast(c * 0, "float32")) < 1.0, lambda: c + 1, lambda: c * 2
    ),
    "loop": lambda c: paddle.static.nn.while_loop(
        lambda i, n: i < 3, lambda i, n: [i + 1, n + i], [paddle.zeros([1], "int64"), c % 9]
    )[1],
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("forwarded", FORWARDED)
def test_values_that_where_discards_are_not_checked(forwarded, read):
    def build():
        x = paddle.static.data("x", [-1], "float32")
        c = FORWARDED[forwarded](paddle.cast(x, "int64"), x)
        few = paddle.where(paddle.abs(x) < 100.0, c, paddle.full_like(c, -1))
        return READ[read](few)

    program = Program(build)
    assert is_one_subgraph(program)
    for values in (BEYOND, INSIDE[:5], [*INSIDE[:5], *BEYOND]):
        run_both(program, True, x=np.array(values, "float32"))


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("forwarded", FORWARDED)
def test_values_that_where_selects_are_checked(forwarded, read):
    def build():
        x = paddle.static.data("x", [-1], "float32")
        c = FORWARDED[forwarded](paddle.cast(x, "int64"), x)
        few = paddle.where(paddle.abs(x) < 100.0, paddle.full_like(c, -1), c)
        return READ[read](few), paddle.exp(x * 0.0)

    program = Program(build)
    assert is_one_subgraph(program)
    run_both(program, True, x=np.array(INSIDE[:5] * 2, "float32"))
    for value in BEYOND:
        denylist.clear()
        run_both(program, False, x=np.array([*INSIDE[:5], value], "float32"))


@pytest.mark.parametrize("value", BEYOND)
def test_casts_in_branches_and_loops(value):
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        branch = paddle.static.nn.cond(
            x[0, 0] > 0.0,
            lambda: paddle.matmul(x, x.t()) * paddle.cast(x, "int64")[:, :1].astype("float32"),
            lambda: paddle.matmul(x, x.t()),
        )
        loop = paddle.static.nn.while_loop(
            lambda i, n: i < 3,
            lambda i, n: [i + 1, paddle.cast(n.astype("float32") + x, "int64") % 99],
            [paddle.zeros([1], "int64"), paddle.cast(paddle.zeros_like(x), "int64")],
        )
        return paddle.isfinite(branch), loop[1]

    program = Program(build)
    x = np.arange(12, dtype="float32").reshape(3, 4) + 1
    if is_one_subgraph(program):
        run_both(program, True, x=x)
    x[2, 1] = value
    for feed in (x, -x):
        for one, other in zip_equal(program.run(engine=False, x=feed), program.run(x=feed)):
            np.testing.assert_array_equal(other, one)


# -- sums, differences, products -----------------------------------------------------------------

BINARY = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
UNARY = {
    "scale": (lambda x: paddle.scale(x, 3, -5), lambda x: 3 * x - 5),
    "scale before": (lambda x: paddle.scale(x, 2, 7, False), lambda x: 2 * (x + 7)),
    "negative": (operator.neg, operator.neg),
    "abs": (paddle.abs, abs),
    "far": (lambda x: x * 2**30, lambda x: x * 2**30),
    "beyond": (lambda x: x * 2**31, None),  # no factor of 32 bits
}


def wide(name, shape=(-1,)):
    return paddle.static.data(name, list(shape), "int32").astype("int64")


def fits(*numbers):
    return all(LEAST <= number <= MOST for number in numbers)


@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name):
    def build():
        return getattr(paddle, name)(wide("x"), wide("y"))

    program = Program(build)
    assert is_one_subgraph(program) and checked(program) == [name]
    function = BINARY[name]
    kinds = set()
    for x in ENDS:
        results = [function(x, y) for y in ENDS]
        for within in (True, False):
            y = [y for y, result in zip(ENDS, results) if fits(result) is within]
            if not y:
                continue
            if not within:
                y = [0, *y, 1, 0][-4:] if fits(function(x, 0), function(x, 1)) else y
            denylist.clear()
            run_both(program, within, x=np.array([x] * len(y), "int32"), y=np.array(y, "int32"))
            kinds.add(within)
    assert kinds == {True, False}


@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name):
    build, exact = UNARY[name]
    program = Program(lambda: build(wide("x")))
    if exact is None:
        return program.both(x=np.array(ENDS, "int32")) if checked(program) else None
    assert is_one_subgraph(program) and len(checked(program)) == 1
    inside = [x for x in ENDS if fits(exact(x)) and (name != "scale" or fits(3 * x))]
    run_both(program, True, x=np.array(inside, "int32"))
    for x in ENDS:
        if not fits(exact(x)):
            denylist.clear()
            run_both(program, False, x=np.array([*inside, x, 0], "int32"))


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    "shapes", [((-1, 1), (1, -1)), ((-1, -1), (-1,)), ((), (-1,)), ((3, 4), (4,))]
)
def test_broadcast_operands(name, shapes):
    program = Program(lambda: getattr(paddle, name)(*map(wide, "xy", shapes)))
    assert is_one_subgraph(program)
    for size in (4, 2, 5, 7, 9):
        of = [[d if d > 0 else size for d in shape] for shape in shapes]
        if shapes == ((3, 4), (4,)):
            size = 4
        x, y = (np.random.default_rng(size).integers(-9999, 9999, shape) for shape in of)
        run_both(program, True, x=x.astype("int32"), y=y.astype("int32"))
        x, y = np.full_like(x, MOST), np.full_like(y, MOST)
        if name != "subtract":
            run_both(program, False, x=x.astype("int32"), y=y.astype("int32"))


def test_many_elements_on_all_threads():
    program = Program(lambda: wide("x") * wide("y"))
    x = np.arange(300000, dtype="int32")
    run_both(program, True, x=x, y=np.full_like(x, 7000))
    for place in (0, 150001, 299999):
        y = np.full_like(x, 7000)
        x2 = x.copy()
        x2[place], y[place] = 65536, 65536
        run_both(program, False, x=x2, y=y)


def test_consumers_rely_on_the_check():
    """A remainder, a comparison and a look-up of checked values."""

    def build():
        x = wide("x")
        c = x * x + x
        few = c % 10
        return c < 12, few, paddle.nn.Embedding(10, 2)(few), c.astype("float32"), c

    program = Program(build)
    assert is_one_subgraph(program)
    run_both(program, True, x=np.array([1, -2, 3, 46340], "int32"))
    run_both(program, False, x=np.array([1, -2, 3, 46341], "int32"))


# -- symbolic sizes ------------------------------------------------------------------------------


def test_products_of_dynamic_sizes():
    def build():
        x, y = (paddle.static.data(name, [-1], "bool") for name in "xy")
        h, w = paddle.shape(x)[0], paddle.shape(y)[0]
        return h * w, (h * w).astype("float32"), h * w - 7, h * h * w // 2

    program = Program(build)
    assert is_one_subgraph(program)
    for h, w in ((3, 4), (5, 6), (7, 30), (1000, 9), (8, 9), (1200, 1400)):
        run_both(program, True, x=np.zeros(h, bool), y=np.zeros(w, bool))
    for h, w in ((50000, 50000), (46341, 46341), (70000, 2), (65536, 32768)):
        run_both(program, False, x=np.zeros(h, bool), y=np.zeros(w, bool))
    run_both(program, True, x=np.zeros(6, bool), y=np.zeros(8, bool))


@pytest.mark.slow("compiles many or large functions")
def test_grids_of_dynamic_sizes():
    """Position embeddings: of counts, and of counts over sizes."""

    def build():
        x = paddle.static.data("x", [-1, 3, -1, -1], "float32")
        b, c, h, w = paddle.shape(x)
        rows, columns = paddle.meshgrid(
            paddle.arange(h, dtype="float32"), paddle.arange(w, dtype="float32")
        )
        places = paddle.arange(h * w).reshape([h, w])
        grid = paddle.stack([rows / h.astype("float32"), columns / w.astype("float32")])
        flat = x.reshape([b, c, h * w]) + places.reshape([1, 1, -1]).astype("float32")
        return flat.transpose([0, 2, 1]), grid, flat.reshape([b * c, h, w]).sum(axis=0)

    program = Program(build)
    assert is_one_subgraph(program)
    for shape in ((1, 3, 4, 5), (2, 3, 6, 4), (1, 3, 7, 7), (3, 3, 5, 9), (2, 3, 8, 5)):
        program.both(x=floats(*shape))


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("again", [False, True])
def test_sizes_known_to_another_subgraph(again):
    """Shapes are computed where they are needed, from scalars that are read by value."""

    def build():
        x = paddle.static.data("x", [-1, 3, -1, -1], "float32")
        b, c, h, w = paddle.shape(paddle.exp(x) * 0.5)
        y = paddle.lgamma(paddle.exp(x))  # falls back
        y = y.reshape([b * c, h * w]) * 2.0
        if again:
            y = paddle.lgamma(paddle.exp(y))
        return y.reshape([b * 3, paddle.minimum(h, h * 2), -1]), paddle.arange(h * w + b)

    program = Program(build)
    report = paddle_ngraph.explain(program.main)
    assert {op.type for op in report.native} == {"pd_op.lgamma"}
    assert len(report.intervals) == 2 + again
    paddle_ngraph.reset_stats()
    for shape in (
        (1, 3, 4, 5),
        (2, 3, 6, 4),
        (1, 3, 7, 7),
        (3, 3, 5, 9),
        (2, 3, 8, 5),
        (4, 3, 9, 2),
    ):
        program.both(x=floats(*shape))
    assert paddle_ngraph.stats()["functions_built"] <= 5 * len(report.intervals)
    assert not paddle_ngraph.stats()["native_runs"]


def test_fed_sizes():
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        n = paddle.static.data("n", [1], "int64")
        return paddle.exp(x).reshape([n * 2, -1]), paddle.exp(x).sum() * 2.0

    program = Program(build)
    assert is_one_subgraph(program)
    for rows, n in ((4, 2), (6, 3), (4, 1), (10, 5), (12, 4), (8, 2)):
        program.both(x=floats(rows, 4), n=np.array([n]))


# -- loops and branches --------------------------------------------------------------------------


def test_an_unbounded_sum():
    """The value doubles in each iteration, and a feed sets the number of iterations."""

    def build():
        n = paddle.static.data("n", [1], "int64")
        start = [paddle.zeros([1], "int64"), paddle.ones([1], "int64")]
        _, total = paddle.static.nn.while_loop(
            lambda i, s: i < n, lambda i, s: [i + 1, s * 2 + i], start
        )
        return total, paddle.nn.Embedding(99, 3)(n)

    program = Program(build)
    assert is_one_subgraph(program) and "scale" in checked(program) + ["scale"] * 0
    for n in (1, 3, 20, 29):
        run_both(program, True, n=np.array([n]))
    for n in (31, 40, 70):
        run_both(program, False, n=np.array([n]))
    run_both(program, True, n=np.array([4]))


def test_only_the_branch_that_is_taken_is_checked():
    def build():
        x, y = wide("x", [4]), paddle.static.data("y", [4, 4], "float32")
        return paddle.static.nn.cond(
            paddle.mean(y) > 0.0,
            lambda: paddle.matmul(y, y) + (x * x).astype("float32").sum(),
            lambda: paddle.matmul(y, y.t()),
        )

    program = Program(build)
    assert is_one_subgraph(program) and checked(program)
    y, small, large = np.ones([4, 4], "float32"), np.arange(4), np.full(4, 10**6)
    run_both(program, True, x=small.astype("int32"), y=y)
    run_both(program, True, x=large.astype("int32"), y=-y)
    run_both(program, False, x=large.astype("int32"), y=y)


# -- runs that always overflow -------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:paddle_ngraph. Paddle runs")
def test_operators_that_always_overflow_fall_back():
    def build():
        x, y = wide("x"), paddle.static.data("y", [4, 4], "float32")
        return x * 1000003 * 7919, paddle.tanh(paddle.matmul(y, y)) > 0.5

    program = Program(build)
    feed = {"x": np.arange(1000, 1009, dtype="int32"), "y": np.eye(4, dtype="float32")}
    assert is_one_subgraph(program)
    for _ in range(7):
        run_both(program, False, **feed)
    run_both(program, True, **{**feed, "x": np.arange(3, dtype="int32") * 0})  # counted again
    native = program.run(engine=False, **feed)
    for _ in range(20):
        found = program.run(**feed)
    paddle_ngraph.reset_stats()
    program.run(**feed)
    assert paddle_ngraph.stats()["engine_runs"] == 1 and not paddle_ngraph.stats()["native_runs"]
    for one, other in zip_equal(native, found):
        np.testing.assert_array_equal(other, one)
    report = paddle_ngraph.explain(program.main)
    assert {op.type for op in report.native} == {"pd_op.scale"}
    assert "64 bits" in next(iter(report.native)).reason


SAME_KIND = {
    "add": lambda x: x + x,
    "multiply": lambda x: x * x,
    "subtract": lambda x: x - x * -1,
    "scale": lambda x: paddle.scale(x, 1000003.0, 7.0),
    "abs": lambda x: paddle.abs(x),
}


@pytest.mark.filterwarnings("ignore:paddle_ngraph. Paddle runs")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", SAME_KIND)
def test_operators_that_never_overflow_stay_with_the_engine(name, inside):
    """Although similar operators, here and in another program, have always overflowed."""

    def build(bound, both):
        x = wide("x")
        made = SAME_KIND[name](x if bound is None else x % bound)
        if inside:
            i = paddle.zeros([1], "int64")
            step = SAME_KIND[name]
            _, made = paddle.static.nn.while_loop(
                lambda i, n: i < 2,
                lambda i, n: [i + 1, step(x if bound is None else x % bound) * 1],
                [i, paddle.zeros_like(x)],
            )
        few = SAME_KIND[name](x % 10) if both else paddle.tanh(x.astype("float32")) > 2.0
        return made, few

    wide_one = Program(lambda: build(None, True))
    feed = {"x": np.array([LEAST, MOST, MOST, LEAST + 1], "int32")}
    assert is_one_subgraph(wide_one)
    native = wide_one.run(engine=False, **feed)
    for _ in range(18):
        for one, other in zip_equal(native, wide_one.run(**feed)):
            np.testing.assert_array_equal(other, one)
    assert paddle_ngraph.explain(wide_one.main).native
    paddle_ngraph.reset_stats()
    wide_one.run(**feed)
    assert paddle_ngraph.stats()["engine_runs"] and not paddle_ngraph.stats()["native_runs"]

    small = Program(lambda: build(10, False))
    assert is_one_subgraph(small)
    run_both(small, True, **feed)


def test_graph_strings_list_checked_operators():
    program = Program(lambda: wide("x") * wide("y"))
    (interval,) = program_pass.dry_run(program.main).blocks[0].intervals
    text = interval.graph.to_string()
    assert Graph.from_string(text).to_string() == text
    assert [op.checked for op in Graph.from_string(text).ops if "multiply" in op.type] == [True]


@pytest.mark.parametrize("name", ["add", "multiply"])
def test_bools(name):
    def build():
        x, y = (paddle.static.data(n, [-1], "bool") for n in "xy")
        return getattr(paddle, name)(x, y)

    program = Program(build)
    assert is_one_subgraph(program)
    x, y = np.array([[True, False, True, False], [True, True, False, False]])
    run_both(program, True, x=x, y=y)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("given", ["condition", "x", "y"])
def test_where_does_not_broadcast(dtype, given):
    """For shapes known only in a run, Paddle accepts equal ones, and the engine no others."""

    def build():
        of = {
            name: paddle.static.data(name, [-1, 2], "float32") for name in ("condition", "x", "y")
        }
        x, y = ((of[name] * 2.0).astype(dtype) for name in "xy")
        return paddle.where(of["condition"] > 0.0, x, y)

    program = Program(build)
    assert is_one_subgraph(program)
    for size in (3, 1, 4, 5):
        feed = {name: floats(size, 2, seed=i) for i, name in enumerate(("condition", "x", "y"))}
        run_both(program, True, **feed)
        if size > 1:
            feed[given] = floats(1, 2)
            with pytest.raises(ValueError, match="dims"):
                program.run(engine=False, **feed)
            with pytest.raises(ValueError, match="dims"):
                program.run(**feed)


@pytest.mark.slow("compiles many or large functions")
def test_a_chain_is_planned_in_one_round(monkeypatch):
    """Consumers of a checked operator are examined as if it had been checked before."""
    rounds, checking = [], Candidates.with_checks

    def counted(self, nodes):
        rounds.append(len(nodes))
        return checking(self, nodes)

    def build():
        x = y = paddle.cast(paddle.static.data("x", [4], "int32"), "int64")
        for number in range(40):
            y = (y + x, y - x * number, y * 3 - x)[number % 3]
        return y

    program = Program(build)
    monkeypatch.setattr(Candidates, "with_checks", counted)
    assert is_one_subgraph(program)
    assert len(rounds) == 1 and rounds[0] > 40
    run_both(program, True, x=np.zeros(4, "int32"))
    run_both(program, False, x=np.full(4, MOST, "int32"))
