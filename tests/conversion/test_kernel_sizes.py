"""Readers of sizes that depend on data, in the function of the kernel that determines them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle
import pytest
from openvino import Type
from paddle import _C_ops as operators

from paddle_ngraph.conversion import kernel_shapes
from paddle_ngraph.conversion.symbolic_sizes import Guards
from paddle_ngraph.partitioning import program_pass
from tests.kernel_call_programs import (
    assert_same,
    boxes,
    calls_in,
    floats,
    kernels_called,
    quantity,
    single,
)
from tests.programs import Program, counts_of_two_processes

# Numbers of elements, or of boxes, that are left.
COUNTS = (0, 1, 7, 1000, 3, 0)


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with kernels_called():
        yield


def mask(count: int) -> np.ndarray:
    """Elements of which ``count`` are positive."""
    x = np.full(1200, -1.0, "float32")
    x[np.random.default_rng(count).permutation(1200)[:count]] = 1.0 + np.arange(count)
    return x


def after_suppression(x: Any, rois: Any) -> Any:
    """The scaled boxes of a detector, with their areas and the sum of their scores."""
    scores = paddle.transpose(x, [0, 2, 1])
    found, index, number = operators.multiclass_nms3(
        rois, scores, None, 0.5, 2000, 2000, 0.45, True, 1.0, -1
    )
    corners = found[:, 2:] * 2.0
    sides = corners[:, 2:] - corners[:, :2]
    areas = sides[:, 0] * sides[:, 1]
    return [corners, areas, paddle.sum(found[:, 1]), index, number + 1]


READERS: dict[str, Callable[..., Any]] = {
    "nonzero": lambda x: paddle.gather_nd(x, paddle.nonzero(x > 0.0)) * 2.0,
    "masked": lambda x: [
        paddle.tanh(paddle.masked_select(x, x > 0.0)),
        paddle.masked_select(x, x > 0.0).sum(),
    ],
    "in a list": lambda x: paddle.concat(
        [paddle.masked_select(x, x > 0.0), paddle.masked_select(x, x <= 0.0)]
    ),
    "indices": lambda x: [
        paddle.cast(paddle.nonzero(x > 0.0), "float32") + 1.0,
        paddle.shape(paddle.nonzero(x > 0.0)),
    ],
    "in float64": lambda x: paddle.cumsum(
        paddle.cast(paddle.masked_select(x, x > 0.0), "float64") * (1.0 + 2.0**-40)
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_readers_are_in_the_same_subgraph(name):
    program = single(READERS[name], {"x": mask(0)})
    calls = calls_in(program)
    assert len(calls) > 1
    natively = [program.run(False, x=mask(count)) for count in COUNTS]
    names = ("functions_built", "native_runs", "kernel_calls")
    before = list(map(quantity, names))
    for count, expected in zip(COUNTS, natively):
        assert_same(expected, program.run(x=mask(count)))
    added = [quantity(name) - number for name, number in zip(names, before)]
    assert added == [1, 0, len(COUNTS) * len(calls)]


def test_boxes_of_a_detector():
    def feed(count: int) -> dict[str, np.ndarray]:
        x = np.zeros((1, 1200, 2), "float32")
        x[0, :count, 1] = np.linspace(1.0, 0.6, count)
        return {"x": x, "rois": boxes(1200).reshape(1, 1200, 4) * np.arange(1, 1201)[:, None]}

    feeds = [{n: a.astype("float32") for n, a in feed(count).items()} for count in COUNTS]
    program = single(after_suppression, feeds[0])
    assert "multiclass_nms3" in calls_in(program)
    natively = [program.run(False, **each) for each in feeds]
    assert len(natively[0][0]) == 0 and len(natively[3][0]) > 100
    before = quantity("functions_built"), quantity("native_runs")
    for each, expected in zip(feeds, natively):
        assert_same(expected, program.run(**each))
    assert (quantity("functions_built"), quantity("native_runs")) == (before[0] + 1, before[1])


def test_matmuls_begin_the_next_subgraph():
    """There they are the engine's, with a dynamic dimension."""
    program = single(
        lambda x: paddle.matmul(
            paddle.reshape(paddle.masked_select(x, x > 0.0), [-1, 1]), paddle.ones([1, 4])
        ),
        {"x": mask(0)},
    )
    report = program_pass.dry_run(program.main)
    assert (len(report.intervals), report.native) == (2, [])
    for count in (1, 7):
        found = program.run(x=mask(count))
        np.testing.assert_allclose(program.run(False, x=mask(count))[0], found[0], rtol=1e-6)


def test_kernels_with_sizes_from_outside_fall_back():
    """Each size would need a function."""
    program = single(
        lambda x: [operators.mode(paddle.unique(x), -1, False)[0], x * 2.0], {"x": floats(9)}
    )
    report = program_pass.dry_run(program.main)
    reasons = {op.type: op.reason for op in report.native}
    assert "depends on data" in reasons["pd_op.mode"]
    assert_same(program.run(False, x=floats(9)), program.run(x=floats(9)))


def dynamic(shape: list[int], build: Callable[[Any], Any]) -> Program:
    """A program of an operator with dynamic sizes, between operators with converters."""

    def whole() -> Any:
        made = build(paddle.nn.functional.relu(paddle.static.data("x", shape, "float32")))
        return made + 1.0

    return Program(whole)


DYNAMIC: dict[str, tuple[list[int], Callable[[Any], Any], Sequence[tuple[int, ...]]]] = {
    "batch": (
        [-1, 4, 6, 6],
        lambda x: operators.shuffle_channel(x, 2),
        [(n, 4, 6, 6) for n in (2, 3, 4, 5, 6, 2)],
    ),
    "all": (
        [-1, 4, -1, -1],
        lambda x: paddle.nn.functional.softmax(operators.shuffle_channel(x, 2), -1),
        [(2, 4, 6, 6), (3, 4, 7, 6), (3, 4, 8, 9), (5, 4, 3, 11), (2, 4, 9, 2)],
    ),
    "reduced": (
        [-1, -1, 5],
        lambda x: paddle.sum(operators.kthvalue(x, 2, 1, False)[0], 0),
        [(2, 6, 5), (3, 7, 5), (4, 4, 5), (5, 9, 5)],
    ),
    "bytes": (
        [-1, 8],
        lambda x: paddle.abs(operators.fft_r2c(x, [1], "backward", True, True)),
        [(2, 8), (3, 8), (4, 8), (6, 8)],
    ),
    "sizes in a target": (
        [-1, -1, 4],
        lambda x: paddle.reshape(operators.shuffle_channel(paddle.unsqueeze(x, 3), 1), [0, -1]),
        [(2, 6, 4), (3, 7, 4), (4, 4, 4), (5, 9, 4)],
    ),
    "a product of sizes": (
        [-1, -1],
        lambda x: paddle.cast(paddle.flatten(paddle.sin(paddle.cast(x, "float64"))), "float32"),
        [(2, 3), (4, 5), (6, 7), (2, 8), (5, 5), (3, 9)],
    ),
    "a sum of sizes": (
        [-1, -1],
        lambda x: paddle.cast(
            paddle.concat([paddle.cast(x, "float64").sum(axis) for axis in (0, 1)]), "float32"
        ),
        [(2, 3), (4, 5), (6, 7), (2, 8), (5, 5), (3, 9)],
    ),
    "steps along a signal": (
        [-1, -1],
        lambda x: operators.frame(x, 5, 3, -1),
        [(2, 16), (3, 20), (4, 29), (2, 30), (5, 7), (3, 31)],
    ),
    "long steps": (
        [2, -1],
        lambda x: operators.frame(x, 400, 160, -1),
        [(2, 410), (2, 560), (2, 1000), (2, 719), (2, 720), (2, 5000)],
    ),
    "rows as another tensor": (
        [-1, 4],
        lambda x: operators.send_u_recv(
            x,
            paddle.to_tensor(np.array([0, 1, 0])),
            paddle.to_tensor(np.array([1, 0, 1])),
            "SUM",
            [0],
        ),
        [(2, 4), (3, 4), (5, 4), (9, 4)],
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_sizes(name):
    shape, build, sizes = DYNAMIC[name]
    program = dynamic(shape, build)
    calls = calls_in(program)
    assert calls
    names = ("functions_built", "native_runs", "kernel_calls")
    before = list(map(quantity, names))
    for size in sizes:
        feed = {"x": floats(*size)}
        for expected, found in zip(program.run(False, **feed), program.run(**feed)):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    added = [quantity(name) - number for name, number in zip(names, before)]
    # The first two sizes have functions of their own, and the third one is for all others.
    assert added == [3, 0, len(sizes) * len(calls)]


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_and_one_beside_many(rows):
    """Tensors without elements, and a size of 1, have functions of their own, or fall back."""
    shape, build, sizes = DYNAMIC["batch"]
    program = dynamic(shape, build)
    paddle.set_flags({"FLAGS_ngraph_strict": False})
    for size in (*sizes[:4], (rows, 4, 6, 6), sizes[4], (rows, 4, 6, 6)):
        feed = {"x": floats(*size)}
        assert_same(program.run(False, **feed), program.run(**feed))


def test_sizes_that_follow_otherwise_stay_native():
    """Such as the number of patches of a picture: a product of two numbers of steps."""

    def build(x: Any) -> Any:
        return paddle.nn.functional.unfold(paddle.cast(x, "float64"), 3).astype("float32")

    report = program_pass.dry_run(dynamic([2, 2, -1, -1], build).main)
    assert "pd_op.unfold" in [op.type for op in report.native]


def law(draw: random.Random) -> Callable[[int, int], int]:
    """How a size follows from two others."""
    a, b, c, d = (draw.randint(1, most) for most in (6, 6, 40, 300))
    return draw.choice(
        [
            lambda n, m: a,
            lambda n, m: a * n + c,
            lambda n, m: (m * (2 * a - 1) + c) // 2,
            lambda n, m: (n + c) // d + 1,
            lambda n, m: a * n * m + c,
            lambda n, m: n * n * m,
            lambda n, m: a * n + b * m - c,
        ]
    )


@pytest.mark.parametrize("seed", range(40))
def test_rules_of_random_sizes(seed, monkeypatch):
    draw = random.Random(seed)
    first, second = law(draw), law(draw)

    def inferred(kernel: str, types: Any, shapes: Sequence[Sequence[int]]) -> list[list[int]]:
        (n, _), (m,) = shapes
        return [[first(n, m), second(n, m)]]

    monkeypatch.setattr(kernel_shapes, "inferred", inferred)
    guards = Guards({number: draw.randint(20, 60) for number in range(2)})
    symbols = [[guards.size(0), 7], [guards.size(1)]]
    rule = kernel_shapes.symbolic_rule_of("", [Type.f32] * 2, symbols)
    assert rule is not None
    for n, m in [(draw.randint(20, 3000), draw.randint(20, 3000)) for _ in range(20)]:
        shapes = [[n, 7], [m]]
        assert kernel_shapes.sizes_by(rule, shapes) == inferred("", [], shapes)


ONE_SIDED: dict[str, Callable[[Any], Any]] = {
    "rfft": lambda x: paddle.abs(paddle.fft.rfft(x)),
    "irfft": lambda x: paddle.fft.irfft(paddle.fft.fft(x)),
    "roundtrip": lambda x: paddle.fft.irfft(paddle.fft.rfft(x) * 0.5),
    "inner axis": lambda x: paddle.abs(paddle.fft.rfft(paddle.transpose(x, [1, 0]), axis=0)),
    "spectrum": lambda x: paddle.tanh(paddle.abs(paddle.fft.rfft(x)) * 2.0),
}


@pytest.mark.parametrize("name", ONE_SIDED)
@pytest.mark.parametrize("shape", [[2, -1], [-1, -1]])
def test_one_sided_transforms_of_any_length(name, shape):
    program = dynamic(shape, ONE_SIDED[name])
    calls = len(calls_in(program))
    assert calls > 0
    sizes = [(2, n) for n in (16, 17, 9, 30, 31, 8)]
    before = quantity("functions_built"), quantity("native_runs"), quantity("kernel_calls")
    for size in sizes:
        feed = {"x": floats(*size)}
        for expected, found in zip(program.run(False, **feed), program.run(**feed)):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert quantity("functions_built") == before[0] + 3
    assert quantity("native_runs") == before[1]
    assert quantity("kernel_calls") == before[2] + calls * len(sizes)


def test_results_of_unknown_size_beside_dynamic_ones():
    def build() -> Any:
        x = paddle.static.data("x", [-1, 9], "float32")
        return [x * 2.0, paddle.nonzero(paddle.exp(x) > 1.0)]

    program = Program(build)
    assert "nonzero" in calls_in(program)
    before = quantity("functions_built"), quantity("native_runs")
    for rows in (2, 3, 4, 5, 7):
        feed = {"x": floats(rows, 9) - 1}
        assert_same(program.run(False, **feed), program.run(**feed))
    assert (quantity("functions_built"), quantity("native_runs")) == (before[0] + 3, before[1])


def once_on_disk() -> None:
    shape, build, sizes = DYNAMIC["all"]
    program = dynamic(shape, build)
    for size in sizes:
        feed = {"x": floats(*size)}
        (expected,), (found,) = program.run(False, **feed), program.run(**feed)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert quantity("kernel_calls") == len(sizes)
    print("counts", quantity("functions_built"), quantity("functions_loaded"))


@pytest.mark.slow("two new processes")
def test_functions_on_disk(tmp_path):
    assert counts_of_two_processes(__name__, tmp_path) == [[3, 0], [0, 3]]
