"""FLAGS_ngraph_precision=bf16 in training: operands of matmuls are rounded, and no other values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import openvino as ov
import paddle
import paddle.nn.functional as F
import pytest
from openvino import Type, opset15
from paddle import nn

import paddle_ngraph
from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import build, processor
from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.conversion.passes import mixed_precision
from tests.programs import Program, floats

needs_bfloat16 = pytest.mark.skipif(
    not processor.has_bfloat16(), reason="the processor has no units for bfloat16"
)


def rounded(x: np.ndarray) -> np.ndarray:
    """Rounds ``x`` to the nearest bfloat16, ties to even, in float32."""
    bits = np.ascontiguousarray(x, "float32").view("uint32").astype("uint64")
    nearest = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype("uint32").view("float32")
    return np.where(np.isnan(x), np.float32(np.nan), nearest).astype("float32")


@pytest.fixture
def bfloat16() -> Iterator[None]:
    paddle_ngraph.clear_cache()
    build._warn_without_bfloat16.cache_clear()
    flags.set("ngraph_precision", "bf16")
    yield
    flags.set("ngraph_precision", "f32")
    paddle_ngraph.clear_cache()


def _with_gradients(compute: Callable[..., Any], shapes: Sequence[Sequence[int]]) -> Any:
    """Builds a result of two operands, and their gradients for a fed gradient."""

    def program() -> Any:
        operands = [paddle.static.data(n, s) for n, s in zip("xy", shapes)]
        for operand in operands:
            operand.stop_gradient = False
        out = compute(*operands)
        grad = paddle.static.data("g", out.shape)
        return [out, *paddle.static.gradients([out], operands, [grad])]

    return program


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.dtype == expected.dtype == np.float32
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _check_multiplication(compute: Callable[..., Any], *shapes: Sequence[int]) -> None:
    """Compares result and gradients with those of rounded operands, to float32 precision.

    Float32 operands, or a rounded result, would differ by more.
    """
    program = Program(_with_gradients(compute, shapes))
    feed = dict(zip("xy", (floats(*shape, seed=n) for n, shape in enumerate(shapes))))
    feed["g"] = floats(*program.fetches[0].shape, seed=7)
    before = paddle_ngraph.stats()["engine_runs"]
    found = program.run(**feed)
    assert paddle_ngraph.stats()["engine_runs"] == before + 1
    expected = program.run(engine=False, **{name: rounded(x) for name, x in feed.items()})
    exact = program.run(engine=False, **feed)
    for one, of_rounded, of_exact in zip(found, expected, exact):
        assert _difference(one, of_rounded) < 2e-6
        assert _difference(one, of_exact) > 2e-5
        assert _difference(rounded(one), one) > 2e-5


def _heads_first(x: Any) -> Any:
    return paddle.transpose(x, [0, 2, 1, 3])


PRODUCTS: dict[str, tuple[Callable[..., Any], list[int], list[int]]] = {
    "matrices": (paddle.matmul, [70, 90], [90, 110]),
    "x transposed": (lambda x, y: paddle.matmul(x, y, True), [90, 70], [90, 110]),
    "y transposed": (lambda x, y: paddle.matmul(x, y, False, True), [70, 90], [110, 90]),
    "both transposed": (lambda x, y: paddle.matmul(x, y, True, True), [90, 70], [110, 90]),
    "rows of a batch": (paddle.matmul, [4, 33, 64], [64, 96]),
    "batches": (paddle.bmm, [6, 33, 64], [6, 64, 48]),
    "a batch that broadcasts": (lambda x, y: paddle.matmul(x, y, True), [6, 64, 33], [64, 48]),
    "heads": (
        lambda x, y: paddle.matmul(_heads_first(x), _heads_first(y), False, True),
        [2, 40, 4, 32],
        [2, 50, 4, 32],
    ),
}  # fmt: skip


@needs_bfloat16
@pytest.mark.parametrize("name", PRODUCTS)
def test_matmuls_have_rounded_operands(name: str, bfloat16, kinds) -> None:
    _check_multiplication(*PRODUCTS[name])
    assert kinds["Bfloat16Gemm"] == 3 and kinds["MatMul"] == 0


def _convolution(**attributes: Any) -> Callable[..., Any]:
    return lambda x, y: F.conv2d(x, y, **attributes)


CONVOLUTIONS: dict[str, tuple[Callable[..., Any], list[int], list[int]]] = {
    "plain": (_convolution(padding=1), [3, 32, 11, 13], [16, 32, 3, 3]),
    "strided": (_convolution(padding=1, stride=2), [3, 16, 11, 13], [48, 16, 3, 3]),
    "of one element": (_convolution(), [3, 32, 9, 7], [64, 32, 1, 1]),
    "dilated": (_convolution(padding=2, dilation=2), [2, 16, 11, 13], [32, 16, 3, 3]),
    "grouped": (_convolution(padding=1, groups=2), [3, 32, 11, 13], [32, 16, 3, 3]),
}


OPEN: dict[str, tuple[Callable[..., Any], list[int], list[int], Callable[[int], Any]]] = {
    "rows": (paddle.matmul, [-1, 90], [90, 110], lambda n: ([n, 90], [90, 110])),
    "rows, transposed": (
        lambda x, y: paddle.matmul(x, y, True),
        [-1, 90],
        [-1, 110],
        lambda n: ([n, 90], [n, 110]),
    ),
    "heads": (
        lambda x, y: paddle.matmul(_heads_first(x), _heads_first(y), False, True),
        [-1, -1, 4, 32],
        [-1, -1, 4, 32],
        lambda n: ([n % 3 + 2, n, 4, 32], [n % 3 + 2, n + 5, 4, 32]),
    ),
}


@needs_bfloat16
@pytest.mark.parametrize("name", OPEN)
def test_matmuls_with_dynamic_sizes_have_rounded_operands(name: str, bfloat16, kinds) -> None:
    compute, *declared, shapes_for = OPEN[name]

    def build() -> Any:
        operands = [paddle.static.data(n, s) for n, s in zip("xy", declared)]
        for operand in operands:
            operand.stop_gradient = False
        out = compute(*operands)
        return [out, *paddle.static.gradients([out], operands, [out * 0.5])]

    program = Program(build)
    for number in (40, 41, 50, 61, 47, 50):
        feed = dict(zip("xy", (floats(*s, seed=n) for n, s in enumerate(shapes_for(number)))))
        found = program.run(**feed)
        out = program.run(engine=False, **{name: rounded(x) for name, x in feed.items()})[0]
        assert _difference(found[0], out) < 2e-6
        expected = program.run(engine=False, **feed)
        for ours, exact in zip(found, expected):
            assert 2e-5 < _difference(ours, exact) < 2e-2
    assert paddle_ngraph.stats()["functions_built"] == 3, "the third is for all sizes"
    # One more model may be tried, with a static batch size.
    assert kinds["Bfloat16Gemm"] in (9, 12) and kinds["MatMul"] == 0


@needs_bfloat16
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_have_rounded_operands(name: str, bfloat16, kinds) -> None:
    _check_multiplication(*CONVOLUTIONS[name])
    assert kinds["BlockedConvolution"] == kinds["BlockedConvolutionFilterGrad"] == 1
    last = kinds["ToChannelsLast"]
    assert last == (2 if processor.has_amx() else 0)
    assert kinds["ToBfloat16"] + last == 2, "each is rounded once, and the filter by its readers"


@pytest.mark.skipif(not processor.has_amx(), reason="the processor has no tiles of bfloat16")
@pytest.mark.parametrize("channels", [20, 24, 48])
def test_convolutions_of_any_channels_have_rounded_operands(channels, bfloat16, kinds) -> None:
    """With channels last, kernels exist for any channel count, but with AMX alone."""
    convolution = _convolution(padding=1)
    _check_multiplication(convolution, [3, channels, 11, 13], [40, channels, 3, 3])
    assert kinds["ToChannelsLast"] == 2 and kinds["ToBfloat16"] == 0


@needs_bfloat16
def test_depthwise_convolutions_stay_in_float32(bfloat16, kinds) -> None:
    def compute(x: Any, y: Any) -> Any:
        return F.conv2d(x, y, padding=1, groups=32)

    program = Program(_with_gradients(compute, [[3, 32, 9, 9], [32, 1, 3, 3]]))
    feed = {"x": floats(3, 32, 9, 9), "y": floats(32, 1, 3, 3), "g": floats(3, 32, 9, 9)}
    found = program.run(**feed)
    flags.set("ngraph_precision", "f32")
    for one, other in zip(found, program.run(**feed)):
        np.testing.assert_array_equal(one, other)
    assert kinds["ToBfloat16"] == 0


@needs_bfloat16
def test_an_operand_is_rounded_once(bfloat16, kinds) -> None:
    """x, y and the gradient have two readers each, one of them through a view."""
    _check_multiplication(*PRODUCTS["rows of a batch"])
    assert kinds["ToBfloat16"] == 3


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_matmuls_on_any_number_of_threads(threads: int) -> None:
    for batch in ([], [2], [3], [50]):
        a, b = floats(*batch, 70, 90), floats(*batch, 90, 110, seed=1)
        bits = [(rounded(x).view("uint32") >> 16).astype("uint16") for x in (a, b)]
        given = [ov.Tensor(x, x.shape, Type.bf16) for x in bits]
        inputs = [opset15.parameter(t.get_shape(), Type.bf16) for t in given]
        frame = {"transpose_a": False, "transpose_b": False}
        node = extension("Bfloat16Gemm", inputs, **frame)
        out = ov.Tensor(Type.f32, node.get_output_shape(0))
        out.data[...] = np.nan
        _core.run_with_threads(threads, lambda: node.evaluate([out], given))  # noqa: B023
        expected = rounded(a).astype("float64") @ rounded(b).astype("float64")
        assert _difference(np.array(out.data), expected.astype("float32")) < 2e-6


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_rounding(threads: int) -> None:
    special = [0, 0x80000000, 1, 0x8000, 0x8001, 0x18000, 0x17FFF, 0x3F808000, 0x3F818000,
               0x3F808001, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000,
               0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFBFFFFF]  # fmt: skip
    random = np.random.default_rng(0).integers(0, 1 << 32, 100_003, "uint64").astype("uint32")
    x = np.concatenate([np.array(special, "uint32"), random]).view("float32")
    node = extension("ToBfloat16", [opset15.parameter(x.shape, Type.f32)])
    bits = np.zeros(x.shape, "uint16")
    out = ov.Tensor(bits, bits.shape, Type.bf16)
    _core.run_with_threads(threads, lambda: node.evaluate([out], [ov.Tensor(x)]))
    found = (bits.astype("uint32") << 16).view("float32")
    np.testing.assert_array_equal(found, rounded(x))


@pytest.mark.parametrize("threads", [1, 3])
def test_matmuls_that_round_their_sums(threads: int) -> None:
    a, b = floats(3, 70, 40), floats(3, 40, 90)
    inputs = [opset15.parameter(x.shape, Type.bf16) for x in (a, b)]
    bits = [(rounded(x).view("uint32") >> 16).astype("uint16") for x in (a, b)]
    given = [ov.Tensor(x, x.shape, Type.bf16) for x in bits]
    found = []
    for rounds in (False, True):
        frame = {"transpose_a": False, "transpose_b": False, "rounds": rounds}
        node = extension("Bfloat16Gemm", inputs, **frame)
        out = ov.Tensor(np.zeros((3, 70, 90), "float32"))
        _core.run_with_threads(threads, lambda node=node, out=out: node.evaluate([out], given))
        found.append(np.array(out.data))
    assert (found[0] != found[1]).any()
    np.testing.assert_array_equal(found[1], rounded(found[0]))


@needs_bfloat16
def test_a_matmul_rounds_for_its_only_reader(kinds) -> None:
    def build() -> Any:
        x, y = paddle.static.data("x", [64, 96]), paddle.static.data("y", [96, 80])
        with paddle.amp.auto_cast(dtype="bfloat16"):
            return paddle.matmul(x, y).astype("float32") * 2.0

    program, feed = Program(build), {"x": floats(64, 96), "y": floats(96, 80, seed=1)}
    (found,) = program.run(**feed)
    assert kinds["Bfloat16Gemm"] == 1 and kinds["RoundToBfloat16"] == 0
    np.testing.assert_array_equal(found, rounded(found))
    exact = 2.0 * rounded(feed["x"]).astype("float64") @ rounded(feed["y"])
    assert np.mean(found != rounded(exact)) < 1e-3


def _product(a: list[int], b: list[int], kind: Type = Type.f32) -> str:
    """Returns the lowered variant of a matmul."""
    inputs = [opset15.parameter(shape, kind) for shape in (a, b)]
    node = opset15.matmul(*inputs, False, False)
    model = ov.Model([opset15.result(node)], inputs, "product")
    mixed_precision.use_bfloat16_matmuls(model, extension)
    (result,) = model.get_results()
    return str(result.input_value(0).get_node().get_type_name())


def test_matmuls_that_are_worth_rounding(monkeypatch) -> None:
    monkeypatch.setattr(processor, "has_bfloat16", lambda: True)
    assert _product([64, 64], [64, 64]) == "Bfloat16Gemm"
    assert _product([63, 64], [64, 64]) == "MatMul"
    assert _product([5000, 16], [16, 16]) == "Bfloat16Gemm"
    assert _product([15, 5000], [5000, 16]) == "MatMul"
    assert _product([5000, 15], [15, 16]) == "MatMul"
    assert _product([5000, 16], [16, 15]) == "MatMul"
    assert _product([-1, 64], [64, 64]) == "Bfloat16Gemm"
    assert _product([-1, 64], [64, 15]) == "MatMul"
    assert _product([-1, 4, -1, 32], [-1, 4, 32, -1]) == "Bfloat16Gemm"
    assert _product([-1, 4, -1, 32], [32, 64]) == "MatMul"
    assert _product([64, 64], [64], Type.f32) == "MatMul"
    assert _product([64, 64], [64, 64], Type.i32) == "MatMul"
    assert _product([0, 64], [64, 64]) == "MatMul"


def _everything_else() -> Any:
    x = paddle.static.data("x", [64, 128])
    x.stop_gradient = False
    scale = paddle.create_parameter(
        [128], "float32", default_initializer=nn.initializer.Constant(1)
    )
    hidden = F.layer_norm(F.gelu(x * scale), [128])
    label = paddle.static.data("label", [64, 1], "int64")
    loss = F.cross_entropy(F.softmax(hidden), label, use_softmax=False) + paddle.mean(hidden**2)
    paddle.optimizer.Adam(1e-2).minimize(loss)
    return [loss, hidden]


def test_other_operators_stay_in_float32(bfloat16) -> None:
    feed = {"x": floats(64, 128), "label": np.arange(64, dtype="int64")[:, None]}
    results = []
    for precision in ("bf16", "f32"):
        flags.set("ngraph_precision", precision)
        program = Program(_everything_else)
        results.append([program.run(**feed) for _ in range(3)])
    for found, expected in zip(*results):
        for one, other in zip(found, expected):
            np.testing.assert_array_equal(one, other)
    assert paddle_ngraph.stats()["engine_runs"] == 6


def _network(optimizer: Any) -> Any:
    image = paddle.static.data("image", [32, 16, 12, 12])
    label = paddle.static.data("label", [32, 1], "int64")
    hidden = nn.BatchNorm2D(32)(nn.Conv2D(16, 32, 3, padding=1)(image))
    hidden = F.max_pool2d(F.relu(hidden), 2)
    hidden = nn.LayerNorm(64)(nn.Linear(32 * 6 * 6, 64)(paddle.flatten(hidden, 1)))
    loss = paddle.mean(F.cross_entropy(nn.Linear(64, 64)(F.relu(hidden)), label))
    optimizer().minimize(loss)
    return loss


def _train(build: Callable[[], Any], steps: int = 8) -> tuple[Program, np.ndarray]:
    program = Program(build)
    feed = {"image": floats(32, 16, 12, 12), "label": np.arange(32, dtype="int64")[:, None]}
    return program, np.array([float(program.run(**feed)[0]) for _ in range(steps)])


@pytest.mark.slow("trains through many compiles")
@needs_bfloat16
@pytest.mark.parametrize("name", ["Adam", "Momentum"])
def test_training_stays_close_to_float32(name: str, bfloat16, kinds) -> None:
    """Losses are close, and weights take steps too small for bfloat16."""
    optimizer = getattr(paddle.optimizer, name)

    def build_network() -> Any:
        return _network(lambda: optimizer(1e-4 if name == "Adam" else 1e-3))

    program, found = _train(build_network)
    assert kinds["Bfloat16Gemm"] >= 3 and kinds["ToBfloat16"] >= 3
    flags.set("ngraph_precision", "f32")
    exact_program, exact = _train(build_network)
    assert (found != exact).any()
    np.testing.assert_allclose(found, exact, rtol=2e-2)
    assert found[-1] < found[0]
    for parameter in program.main.global_block().all_parameters():
        one, other = program.variable(parameter.name), exact_program.variable(parameter.name)
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, atol=3e-3)
        if one.size > 100:
            assert (rounded(one) != one).mean() > 0.9, "kept with eight bits"


@pytest.mark.slow("compiles many or large functions")
def test_training_without_bfloat16_units_is_float32(bfloat16, monkeypatch) -> None:
    monkeypatch.setattr(processor, "has_bfloat16", lambda: False)

    def build_network() -> Any:
        return _network(lambda: paddle.optimizer.SGD(1e-2))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, found = _train(build_network, steps=3)
    about = [str(each.message) for each in caught if "bf16" in str(each.message)]
    assert len(about) == 1 and "no units for bfloat16" in about[0]
    flags.set("ngraph_precision", "f32")
    _, exact = _train(build_network, steps=3)
    np.testing.assert_array_equal(found, exact)


@needs_bfloat16
def test_precisions_have_separate_functions(bfloat16, tmp_path) -> None:
    """Separate functions in memory and on disk."""
    before = {name: flags.get(name) for name in ("ngraph_cache_dir", "ngraph_cache_min_ms")}
    flags.set("ngraph_cache_dir", str(tmp_path))
    flags.set("ngraph_cache_min_ms", 0)
    try:
        program = Program(_with_gradients(paddle.matmul, [[70, 90], [90, 110]]))
        feed = {"x": floats(70, 90), "y": floats(90, 110, seed=1), "g": floats(70, 110, seed=2)}

        def run(precision: str) -> list[np.ndarray]:
            flags.set("ngraph_precision", precision)
            return program.run(**feed)

        paddle_ngraph.reset_stats()
        built = {precision: run(precision) for precision in ("bf16", "f32")}
        assert (built["bf16"][0] != built["f32"][0]).any()
        assert paddle_ngraph.stats()["functions_built"] == 2
        for precision, expected in built.items():
            np.testing.assert_array_equal(run(precision)[0], expected[0])
        assert paddle_ngraph.stats()["functions_reused"] == 2
        paddle_ngraph.clear_cache()
        paddle_ngraph.reset_stats()
        for precision, expected in built.items():
            for one, other in zip(run(precision), expected):
                np.testing.assert_array_equal(one, other)
        assert paddle_ngraph.stats()["functions_loaded"] == 2
        assert paddle_ngraph.stats()["functions_built"] == 0
    finally:
        for name, value in before.items():
            flags.set(name, value)
