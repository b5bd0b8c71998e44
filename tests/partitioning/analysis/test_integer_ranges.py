"""The 64-bit rule: the engine has int32, and no int64 result may ever be wrong for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.programs import Program, floats
from tests.zips import zip_equal

WIDE = 2**40 + 1
IDS = np.array([[3, 0, 1, 0], [0, 2, 5, 1]])


def with_ids(write: Callable[[Any], Any], shape: Any = (-1, -1)) -> Program:
    """A program that looks up ids [rows, columns] below 12, and applies ``write`` to them too."""

    def build() -> Any:
        ids = paddle.static.data("ids", list(shape), "int64")
        written = write(ids)
        return [*(written if isinstance(written, tuple) else (written,)), looked_up(ids)]

    return Program(build)


def looked_up(ids: Any) -> Any:
    return paddle.nn.Embedding(12, 3)(ids)


def native(program: Program) -> dict[str, str]:
    report = paddle_ngraph.explain(program.main)
    return {op.type.removeprefix("pd_op."): op.reason for op in report.native}


def positions(ids: Any) -> Any:
    """Position ids of BERT."""
    ones = paddle.ones_like(ids)
    return paddle.cumsum(ones, axis=-1) - ones


def position_ids_with_padding(ids: Any) -> Any:
    """Position ids of RoBERTa: tokens are counted, padding (0) is not."""
    is_word = (ids != 0).astype("int64")
    return paddle.cumsum(is_word, axis=1) * is_word + 1


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("make", [positions, position_ids_with_padding])
@pytest.mark.parametrize("shape", [(-1, -1), (-1, 4), (2, 4)], ids=str)
def test_position_ids_are_counted_in_the_engine(make, shape):
    program = with_ids(lambda ids: (make(ids), looked_up(make(ids))), shape)
    assert native(program) == {}
    assert len(paddle_ngraph.explain(program.main).intervals) == 1
    program.both(ids=IDS)
    if shape[1] == -1:
        program.both(ids=np.tile(IDS, (3, 2)))


@pytest.mark.slow("compiles many or large functions")
def test_position_ids_of_many_shapes_share_a_function():
    program = with_ids(lambda ids: (positions(ids), looked_up(positions(ids)), ids == 0))
    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()
    for rows, columns in ((2, 4), (3, 5), (4, 7), (5, 6), (6, 9), (2, 12)):
        program.both(ids=np.resize(IDS, (rows, columns)))
    assert paddle_ngraph.stats()["functions_built"] <= 3


COMPARISONS = ["equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal"]


@pytest.mark.parametrize("name", COMPARISONS)
def test_ids_are_compared_in_the_engine(name):
    compare = getattr(paddle, name)
    program = with_ids(lambda ids: (compare(ids, paddle.full([1], 1, "int64")), compare(ids, ids)))
    assert native(program) == {}
    program.both(ids=IDS)


def test_ids_that_are_looked_up_in_another_shape_are_compared_too():
    def build():
        ids = paddle.static.data("ids", [-1, -1], "int64")
        return ids == 0, looked_up(paddle.reshape(ids, [-1])), paddle.logical_not(ids)

    program = Program(build)
    assert native(program) == {}
    program.both(ids=IDS)


@pytest.mark.parametrize("value", [WIDE, -WIDE, 2**31, -(2**31) - 1])
def test_an_id_beyond_int32_is_rejected_as_in_paddle(value):
    program = with_ids(lambda ids: (ids == 0, position_ids_with_padding(ids)))
    assert native(program) == {}
    ids = IDS.copy()
    ids[1, 1] = value
    for engine in (False, True):
        with pytest.raises(ValueError):
            program.run(engine, ids=ids)


def test_the_ends_of_int32_are_compared_exactly():
    """As float32, in which the engine's own comparison computes, they would be equal."""
    ends = np.array([2**31 - 1, 2**31 - 2, -(2**31), -(2**31) + 1])

    def build():
        x = paddle.static.data("x", [4, 1], "int32").astype("int64")
        y = paddle.static.data("y", [4], "int32").astype("int64")
        return [getattr(paddle, name)(x, y) for name in COMPARISONS]

    program = Program(build)
    assert native(program) == {}
    program.both(x=ends[:, None].astype("int32"), y=ends.astype("int32"))


@pytest.mark.parametrize("name", [*COMPARISONS, "add", "subtract", "multiply"])
def test_integers_that_are_no_indices_keep_64_bits(name):
    def build():
        n = paddle.static.data("n", [4], "int64")
        return getattr(paddle, name)(n, n - 1), paddle.exp(paddle.static.data("x", [4]))

    program = Program(build)
    assert name in native(program)
    program.both(n=np.array([WIDE, -WIDE, 2**31, 5]), x=floats(4))


def beyond_32_bits(ids: Any) -> tuple[Any, ...]:
    many = paddle.cumsum(paddle.expand(ids, [300, 2, 4]), axis=0)
    sums = paddle.cumsum(ids, axis=1), paddle.cumsum(many, axis=0)
    return *sums, ids < WIDE, ids + WIDE, ids * 2**40


def test_sums_and_products_of_ids_keep_64_bits():
    program = with_ids(beyond_32_bits)
    assert native(program).keys() >= {"scale", "cumsum", "less_than"}
    program.both(ids=IDS)


def test_sums_and_products_of_ids_are_checked():
    program = with_ids(lambda ids: (ids + ids, ids * 7, ids * ids - ids))
    assert native(program) == {}
    program.both(ids=IDS)


def variable_of_64_bits():
    made = paddle.static.create_parameter(
        [4], "int64", default_initializer=paddle.nn.initializer.Constant(0)
    )
    made.stop_gradient = True
    return made


@pytest.mark.parametrize("is_looked_up", [False, True])
def test_a_variable_used_as_index_is_converted(is_looked_up):
    """The variable is written in place, and read under its earlier name."""

    def build():
        n, variable = paddle.static.data("n", [4], "int64"), variable_of_64_bits()
        paddle.assign(n if is_looked_up else variable + n, variable)
        return looked_up(variable) if is_looked_up else variable * 1

    program = Program(build)
    made, _ = paddle_ngraph.transpile(program.main, program.fetches)
    names = [op.name() for op in made.global_block().ops]
    assert ("pd_op.assign_out_" in names) is not is_looked_up
    assert any("engine" in name for name in names) is is_looked_up
    for n in ([0, 1, 2, 3], [4, 1, 1, 1]):
        fed = np.array(n) * (1 if is_looked_up else WIDE)
        (found,) = program.run(n=fed)
        again = fed if is_looked_up else fed * 0  # the variable keeps the sum
        np.testing.assert_array_equal(found, program.run(engine=False, n=again)[0])


def test_64_bit_results_may_be_indices():
    def build():
        n = paddle.static.data("n", [4], "int64")
        ids = n * 1000003 % 10
        return ids == 7, looked_up(ids)

    program = Program(build)
    assert {"scale", "remainder"} <= native(program).keys()
    assert "equal" not in native(program)
    program.both(n=np.array([WIDE, -WIDE, 2**31, 5]))


NARROWING = {
    "floor_divide": lambda n: n // 2**20,
    "remainder": lambda n: n % (2**40 + 1) // 2**20,
    "clip": lambda n: paddle.clip(n, -(2**31), 2**31) // 2**12,
    "minimum": lambda n: paddle.minimum(n, paddle.full([], 7, "int64")) // 2**20,
    "where": lambda n: paddle.where(n > 0, n, -n) // 2**20,
    "cast": lambda n: paddle.cast(paddle.cast(n // 2**20, "int32"), "int64"),
}


@pytest.mark.parametrize("name", NARROWING)
def test_results_of_a_fallback_run_have_no_range(name):
    """If one subgraph falls back, another does not rely on the checks that it would have done."""

    def build():
        n, x = paddle.static.data("n", [4], "int64"), paddle.static.data("x", [4, 4], "float32")
        few = NARROWING[name](n)
        mask = paddle.nn.functional.sequence_mask(n, maxlen=4, dtype="float32")
        y = paddle.exp(x * mask + paddle.cast(few, "float32").unsqueeze(1) * 1e-9)
        z = paddle.lgamma(y)  # falls back
        many = few * paddle.cast(z[:, 0] < 1e38, "int64") * 2**18
        return z, few, many, many < 5, many // 3

    program = Program(build)
    assert len(paddle_ngraph.explain(program.main).intervals) > 1
    program.both(n=np.array([1, 2, 3, 9]), x=floats(4, 4))
    for n in ([2**40, 2, -(2**40), 2**40 + 2**33], [2**31, 2**33, 5, -7], [2**20, 5, -(2**30), 3]):
        feed = {"n": np.array(n), "x": floats(4, 4)}
        for one, other in zip_equal(program.run(engine=False, **feed), program.run(**feed)):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


WIDE_MADE = {
    "multiply": lambda x: x * x,
    "add": lambda x: x + x,
    "subtract": lambda x: x - paddle.flip(x, [0]) * 1,
    "cumsum": lambda x: paddle.cumsum(x, 0),
    "scale": lambda x: x * 70000,
    "floor_divide": lambda x: (x * x) // 2,
    "maximum": lambda x: paddle.maximum(x * x, x),
    "clip": lambda x: paddle.clip(x * x, 0, 2**50),
    "concat": lambda x: paddle.concat([x * x, x])[4:] + paddle.concat([x, x * x])[4:],
    "where": lambda x: paddle.where(x > 5, x * x, x),
}
READ = {
    "guard": lambda c: looked_up(paddle.where((c < 12) & (c >= 0), c, paddle.zeros_like(c)) % 10),
    "remainder": lambda c: looked_up(c % 10),
    "loop": lambda c: paddle.static.nn.while_loop(
        lambda i, n: i < 3,
        lambda i, n: [i + 1, n + paddle.cast(c < 5, "int32")],
        [paddle.full([1], 0, "int64"), paddle.full([4], 0, "int32")],
    )[1],
    "branch": lambda c: paddle.static.nn.cond(
        paddle.mean(paddle.cast(c, "float32")) > 0.0,
        lambda: paddle.cast(c < 5, "int32"),
        lambda: paddle.cast(c < 7, "int32") + 3,
    ),
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("made", WIDE_MADE)
def test_checked_values_from_64_bit_integers_keep_64_bits(made, read):
    def build():
        x = paddle.cast(paddle.static.data("x", [4], "int32"), "int64")
        c = WIDE_MADE[made](x)
        return [c, c < 12, c < 70000, READ[read](c), paddle.cast(c, "float32") * 0.5]

    program = Program(build)
    for x in ([1, 2, 3, 4], [2**31 - 1, 2**31 - 1, 3, 4], [65536, -65536, 2**31 - 1, 131072]):
        x = np.array(x, "int32")
        native, found = (program.run(engine, x=x) for engine in (False, True))
        for one, other in zip_equal(native, found):
            np.testing.assert_array_equal(other, one)


BY_SIZE = {
    "argmax": lambda x: paddle.argmax(x, 1) * 20000000 + 7,
    "argmin of all": lambda x: paddle.argmin(-x) * 20000000 + 7,
    "topk": lambda x: paddle.topk(x, 1)[1] * 500000000,
    "argsort": lambda x: paddle.argsort(x, 1) * 500000000,
    "sum": lambda x: paddle.sum(paddle.cast(x * 0.0 + 1.0, "int32").astype("int64") * 2**28, 1),
    "count": lambda x: paddle.sum(x > -9.0, 1) * 2**28,
    "cumsum": lambda x: paddle.cumsum((x > -9.0).astype("int64"), 1) * 2**28,
}


@pytest.mark.filterwarnings("ignore:paddle_ngraph. Paddle runs")
@pytest.mark.parametrize("name", BY_SIZE)
def test_ranges_are_of_the_sizes_that_are_fed(name):
    """Paddle accepts other sizes than a program declares."""

    def build():
        x = paddle.static.data("x", [2, 4], "float32")
        found = BY_SIZE[name](x)
        return found, found < 2**31 - 5

    program = Program(build)
    for size in (4, 4, 90, 4, 300):
        x = floats(2, size, seed=size)
        for one, other in zip_equal(program.run(engine=False, x=x), program.run(x=x)):
            np.testing.assert_array_equal(other, one)


@pytest.mark.slow("compiles a chain of many operators")
def test_long_chains_of_integers():
    def build():
        n = paddle.static.data("n", [4], "int32")
        for _ in range(1500):
            n = n + 1
        return paddle.cast(n, "int64") + 1

    Program(build).both(n=np.arange(4, dtype="int32"))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_known_integers_are_computed_in_64_bits(exclusive, reverse):
    def build():
        x = paddle.static.data("x", [-1, 3], "float32")
        wide = paddle.full([2, 3], 2**31, "int64")
        sums = paddle._C_ops.cumsum(wide, 1, False, exclusive, reverse)
        multiples = [sums == wide * n for n in range(4)]
        return *multiples, wide == wide + 2**32, wide < wide + 1, paddle.reshape(x, [3, -1])

    program = Program(build)
    assert native(program) == {}
    *multiples, same, less, _ = program.both(x=floats(2, 3))
    assert np.sum(multiples, axis=0).all() and not same.any() and less.all()


def test_large_sums_are_exact():
    def build():
        counted = paddle.static.data("x", [4, 3], "bool").astype("int64") * (2**29 - 2**10)
        return counted, paddle.cumsum(counted, axis=0)

    program = Program(build)
    assert native(program) == {}
    program.both(x=floats(4, 3) > -1)


def test_a_size_used_as_index_is_compared():
    """Known by value while the function is built: in int64."""

    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        n = paddle.static.data("n", [1], "int64")
        return paddle.reshape(x, [n, -1]), n == 2**31 - 1, looked_up(n)

    program = Program(build)
    for n in (1, 2):
        program.both(x=floats(2, 4), n=np.array([n]))
    with pytest.raises(ValueError):
        program.run(True, x=floats(2, 4), n=np.array([WIDE]))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 2.0**63])
def test_constants_that_are_no_integers_fall_back(value):
    def build():
        ids = paddle.static.data("ids", [2, 4], "int64")
        strange = paddle.full([4], value, "int64")
        return ids < strange, paddle.scale(ids, value), ids + strange, looked_up(ids)

    program = Program(build)
    assert {"less_than", "scale", "add"} <= native(program).keys()
    program.both(ids=IDS)
