"""Dropout: masks equal Paddle's, whichever other operators sample from the same generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.ops.harness import check, check_fallback
from tests.programs import Program, at_once, floats

pytestmark = pytest.mark.usefixtures("native_in_order")

BOTH = ["dropout", "dropout_grad"]
UP, DOWN = "upscale_in_train", "downscale_in_infer"
MODES = [UP, DOWN]


def dropout_op(
    x: Any,
    p: Any = 0.5,
    seed_tensor: Any = None,
    is_test: bool = False,
    mode: str = UP,
    seed: int = 0,
    fix_seed: bool = False,
) -> Any:
    """Calls Paddle's operator with attributes that no Python function of Paddle sets."""
    mode = mode.replace("downscale", "downgrade")
    return paddle._C_ops.dropout(x, seed_tensor, p, is_test, mode, seed, fix_seed)


def mask_of(out: Any) -> Any:
    return out.get_defining_op().result(1)


def same_stream(build: Any, sides: str, seed: int = 5, **feed: np.ndarray) -> Any:
    """Runs by Paddle, then alternately ("n" by Paddle, "e" by the engine), from the same seed."""
    program = Program(build)
    results = []
    for plan in ("n" * len(sides), sides):
        paddle.seed(seed)
        results.append([program.run(engine=side == "e", **feed) for side in plan])
    for expected, actual in zip(*results):
        for one, other in zip(expected, actual):
            np.testing.assert_allclose(other, one, 1e-5, 1e-6)
    return program


# -- the operator --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 1), (2, 3, 4), (2, 1, 3, 2, 2)])
def test_dropout(shape, mode):
    check(lambda x: F.dropout(x * 2.0, 0.4, mode=mode), {"x": floats(*shape)}, BOTH, runs=3)


# The core takes over the random stream in blocks of 312 numbers, from 1248 on.
@pytest.mark.parametrize("count", [311, 1247, 1248, 1249, 1559, 1560, 1561, 5000])
def test_the_stream_continues_after_a_mask_of_any_size(count):
    def build(x: Any) -> Any:
        x = x * 2.0
        return F.dropout(x, 0.5), F.dropout(x[:5], 0.3), F.dropout(x, 0.01)

    check(build, {"x": floats(count)}, BOTH, runs=3)


@pytest.mark.parametrize("p", [1e-20, 1e-9, 1e-3, 1 / 3, 0.999, 1 - 2**-24])
def test_probabilities(p):
    check(lambda x: F.dropout(x * 2.0, p), {"x": floats(4000)}, BOTH)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_all_or_none(p, mode):
    def build(x: Any) -> Any:
        return dropout_op(x * 2.0, p, mode=mode), F.dropout(x, 0.5)

    x = floats(6, 50)
    x[0, :3] = np.nan, np.inf, -np.inf
    check(build, {"x": x}, BOTH, runs=2)


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_samples_nothing(mode):
    def build(x: Any) -> Any:
        return F.dropout(x * 2.0, 0.3, training=False, mode=mode), F.dropout(x, 0.5)

    check(build, {"x": floats(6, 50)}, BOTH, runs=2)


@pytest.mark.parametrize(
    "seeds",
    [
        {"seed": 9, "fix_seed": True},
        {"seed": -9, "fix_seed": True},
        {"seed": 9, "fix_seed": False},
        {"seed": 0, "fix_seed": True},
    ],
)
@pytest.mark.parametrize("tensor", [None, 0, 11, -3])
def test_an_explicit_seed(seeds, tensor):
    def build(x: Any) -> Any:
        given = None if tensor is None else paddle.full([1], tensor, "int32")
        return dropout_op(x * 2.0, seed_tensor=given, **seeds), F.dropout(x, 0.5)

    check(build, {"x": floats(6, 50)}, BOTH, runs=2)


@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinity(mode):
    x = floats(3, 400)
    x[0, ::3], x[1, ::3], x[2, ::3] = np.nan, np.inf, -np.inf
    check(lambda x: F.dropout(paddle.abs(x), 0.4, mode=mode), {"x": x}, BOTH)


def test_dynamic_shapes():
    x = {"x": [-1, -1, 5]}
    for size in (3, 40):
        inputs = {"x": floats(size, 9, 5)}
        check(lambda x: F.dropout(x * 2.0, 0.4), inputs, BOTH, dynamic=x, runs=2)


def test_in_place():
    def build(x: Any) -> Any:
        return F.dropout(F.dropout(x * 2.0, 0.4, inplace=True) + 1.0, 0.4)

    check(build, {"x": floats(5, 7)}, ["dropout_", *BOTH], runs=2)


def test_the_mask_may_be_fetched():
    def build(x: Any) -> Any:
        out = F.dropout(x * 2.0, 0.4)
        return out, mask_of(out)

    check(build, {"x": floats(5, 7)}, BOTH, runs=2)


def test_the_mask_passes_between_subgraphs():
    def build(x: Any) -> Any:
        out = F.dropout(x * 2.0, 0.4).astype("float64") * 2.0
        return F.dropout(out.astype("float32"), 0.2)

    check(build, {"x": floats(5, 7)}, BOTH, runs=3)


def test_dropout_with_run_time_arguments_falls_back():
    def probability(x: Any, p: Any) -> Any:
        return dropout_op(x * 2.0, p)

    def seed(x: Any, s: Any) -> Any:
        return dropout_op(x * 2.0, seed_tensor=s)

    x = floats(5, 7)
    check_fallback(probability, {"x": x, "p": np.array([0.3], "float32")}, ["dropout"])
    check_fallback(seed, {"x": x, "s": np.array([3], "int32")}, ["dropout"])


# -- random operators composed by Paddle -----------------------------------------------------------


@pytest.mark.parametrize("axis", [0, [0, 2], [1, 2]])
@pytest.mark.parametrize("mode", MODES)
def test_axes(axis, mode):
    check(
        lambda x: F.dropout(x * 2.0, 0.4, axis=axis, mode=mode),
        {"x": floats(6, 7, 8)},
        ["uniform"],
        dynamic={"x": [-1, 7, 8]},
        runs=2,
    )


def test_whole_feature_maps():
    def build(x: Any, y: Any) -> Any:
        return F.dropout2d(x * 2.0, 0.4), F.dropout3d(y * 2.0, 0.4)

    check(build, {"x": floats(5, 6, 2, 3), "y": floats(5, 6, 2, 1, 2)}, ["uniform"], runs=2)


@pytest.mark.parametrize("layer", [paddle.nn.AlphaDropout, paddle.nn.FeatureAlphaDropout])
def test_alpha_dropout(layer):
    check(lambda x: layer(0.4)(x * 2.0), {"x": floats(6, 7, 8)}, ["uniform"], runs=2)


# -- the random stream -----------------------------------------------------------------------------


@pytest.mark.parametrize("sides", ["ee", "nene", "enne"])
def test_paddle_and_the_engine_share_one_stream(sides):
    def build() -> Any:
        x = paddle.static.data("x", [-1, 40])
        return F.dropout(F.dropout(x * 2.0, 0.3), 0.5)

    same_stream(build, sides, x=floats(50, 40))


def test_fallback_operators_sample_in_program_order():
    def build() -> Any:
        x = paddle.static.data("x", [3, 4])
        first = F.dropout(x * 2.0, 0.3)
        positions = paddle.randint(0, 100, [5])
        second = F.dropout(x + 1.0, 0.5)
        wide = paddle.uniform([3, 4], "float64")
        return F.dropout(x, 0.5), second, first, positions, wide

    program = same_stream(build, "eee", x=floats(3, 4))
    report = paddle_ngraph.explain(program.main)
    assert {op.type for op in report.native} == {"pd_op.randint", "pd_op.uniform"}
    assert len(report.intervals) == 3


def test_subgraphs_sample_in_program_order():
    def build() -> Any:
        x = paddle.static.data("x", [200, 300])
        late = F.dropout((x.astype("float64") * 2.0).astype("float32"), 0.3)
        positions = paddle.randint(0, 100, [5])
        return late, F.dropout(x + 1.0, 0.5), positions, paddle.uniform([300], "float64")

    program, x = Program(build), floats(200, 300)
    paddle.seed(5)
    native = [program.run(engine=False, x=x) for _ in range(5)]
    paddle.set_flags({"FLAGS_new_executor_sequential_run": False})
    paddle.seed(5)
    for expected in native:
        for one, other in zip(expected, program.run(engine=True, x=x)):
            np.testing.assert_allclose(other, one, 1e-5, 1e-6)
    name = "FLAGS_new_executor_sequential_run"
    assert paddle.get_flags([name]) == {name: False}


def test_printing_does_not_split_the_subgraph():
    def build() -> Any:
        x = paddle.static.data("x", [3, 4])
        first = paddle.static.Print(F.dropout(x * 2.0, 0.3), summarize=1)
        return first, F.dropout(x + 1.0, 0.5)

    program = same_stream(build, "ee", x=floats(3, 4))
    assert len(paddle_ngraph.explain(program.main).intervals) == 1


def test_unread_random_numbers_are_sampled():
    def build() -> Any:
        x = paddle.static.data("x", [3, 4])
        F.dropout(x * 2.0, 0.3)
        paddle.exp(F.dropout(x * 3.0, 0.3) * 2.0)
        return F.dropout(x + 1.0, 0.5)

    same_stream(build, "eee", x=floats(3, 4))


def test_an_unread_subgraph_samples_its_numbers():
    def build() -> Any:
        x = paddle.static.data("x", [3, 4])
        paddle.exp(F.dropout(x * 3.0, 0.3) * 2.0)
        return paddle.uniform([3, 4], "float64")

    same_stream(build, "eee", x=floats(3, 4))


def test_control_flow():
    def build() -> Any:
        x = paddle.static.data("x", [3, 40])
        x = F.dropout(x, 0.2)
        small = paddle.mean(x) < 0.0
        y = paddle.static.nn.cond(
            small, lambda: F.dropout(x * 2.0, 0.3), lambda: F.dropout(x + 1.0, 0.6)
        )

        def body(i: Any, z: Any) -> Any:
            return i + 1, F.dropout(z * 1.5, 0.1)

        i = paddle.full([1], 0, "int32")
        _, z = paddle.static.nn.while_loop(lambda i, z: i < 3, body, [i, y])
        return F.dropout(z, 0.5)

    for sign in (1, -1):
        program = same_stream(build, "eee", x=sign * np.abs(floats(3, 40)))
    report = paddle_ngraph.explain(program.main)
    assert not any("dropout" in op.type for op in report.native)


def test_equal_seeds_give_equal_numbers():
    def build() -> Any:
        return F.dropout(paddle.static.data("x", [30, 40]) * 2.0, 0.3)

    program = Program(build)
    masks = []
    for seed in (1, 2, 1):
        paddle.seed(seed)
        masks.append(program.run(x=np.ones((30, 40), "float32"))[0] != 0)
    np.testing.assert_array_equal(masks[0], masks[2])
    assert 300 < (masks[0] != masks[1]).sum() < 700
    assert abs(masks[0].mean() - 0.7) < 0.05


def test_threads():
    def build() -> Any:
        return F.dropout(paddle.static.data("x", [-1, 500]) * 2.0, 0.3)

    programs = [Program(build) for _ in range(3)]
    shares: list[float] = []

    def work(number: int) -> None:
        for _ in range(10):
            (out,) = programs[number].run_as_is(x=np.ones((20 + number, 500), "float32"))
            shares.append(float((out == 0).mean()))

    with paddle_ngraph.use_ngraph():
        for number in range(3):
            work(number)
        at_once(work, 3)
    assert len(shares) == 60
    assert all(abs(share - 0.3) < 0.05 for share in shares)


def test_program_desc_programs():
    def build() -> Any:
        return F.dropout(F.dropout(paddle.static.data("x", [-1, 40]) * 2.0, 0.3), 0.5)

    with paddle.pir_utils.OldIrGuard():
        same_stream(build, "ene", x=floats(30, 40))
