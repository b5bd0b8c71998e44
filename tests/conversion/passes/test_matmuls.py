"""Selection of the matmuls that oneDNN computes, and their results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import paddle
import paddle.nn.functional as F
import pytest
from openvino import Type, opset15

import paddle_ngraph
from paddle_ngraph.conversion import build, processor
from paddle_ngraph.conversion.draft import Draft
from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.conversion.passes import matmuls
from paddle_ngraph.conversion.settings import RunSettings
from tests.programs import Program, floats


@pytest.fixture(params=[False, True], ids=["avx2", "avx512"])
def has_avx512(request, monkeypatch) -> bool:
    monkeypatch.setattr(processor, "has_avx512", lambda: request.param)
    paddle_ngraph.clear_cache()  # functions of the other setting
    return bool(request.param)


def product(
    m: int, k: int, n: int, constant: bool = False, transpose_a: bool = False, kind: Type = Type.f32
) -> str:
    """Returns the lowered variant of a matmul of [m, k] and [k, n]."""
    a = opset15.parameter([k, m] if transpose_a else [m, k], kind)
    b = opset15.parameter([k, n], kind)
    weights = opset15.constant(np.ones((k, n), "float32")) if constant else b
    node = opset15.matmul(a, weights, transpose_a, False)
    model = ov.Model([opset15.result(node)], [a] if constant else [a, b], "product")
    matmuls.use_onednn_matmuls(model, extension)
    (result,) = model.get_results()
    assert list(result.get_output_shape(0)) == [m, n]
    return str(result.input_value(0).get_node().get_type_name())


def test_large_matmuls_without_avx512(has_avx512):
    assert product(512, 512, 512) == ("MatMul" if has_avx512 else "Gemm")


@pytest.mark.parametrize("has_avx512", [False], indirect=True)
def test_limits(has_avx512):
    assert product(512, 255, 512) == "MatMul"
    assert product(64, 1 << 10, 1 << 10) == "Gemm"
    assert product(63, 1 << 11, 1 << 11) == "MatMul"
    assert product(1 << 11, 1 << 11, 63) == "MatMul"
    assert product(63, 1 << 11, 1 << 11, transpose_a=True) == "MatMul"
    assert product(1 << 11, 63, 1 << 11, transpose_a=True) == "MatMul"
    assert product(1 << 10, 64, 1 << 10, transpose_a=True) == "Gemm"
    assert product(512, 512, 1 << 10, constant=True) == "MatMul"
    assert product(512, 1 << 10, 1 << 10, constant=True) == "Gemm"
    assert product(512, 512, 512, kind=Type.f64) == "MatMul"


@pytest.mark.parametrize("has_avx512", [True], indirect=True)
def test_limits_with_avx512(has_avx512, monkeypatch):
    monkeypatch.setattr(processor, "is_of_intel", lambda: False)
    assert product(128, 2048, 1024, constant=True) == "Gemm"
    assert product(128, 2047, 2048, constant=True) == "MatMul"
    assert product(127, 2048, 1024, constant=True) == "MatMul"
    assert product(63, 2048, 4096, constant=True) == "MatMul"


@pytest.mark.parametrize("vendor", ["AuthenticAMD", "GenuineIntel"])
@pytest.mark.parametrize("has_avx512", [True], indirect=True)
def test_limits_of_computed_operands_with_avx512(has_avx512, vendor, monkeypatch):
    monkeypatch.setattr(processor, "field", lambda name: vendor if name == "vendor_id" else "")
    assert product(1024, 768, 768) == "Gemm"
    assert product(1023, 768, 768) == "MatMul"
    assert product(256, 768, 3072, transpose_a=True) == "Gemm"
    assert product(63, 4096, 4096) == "MatMul"
    packed = "MatMul" if vendor == "GenuineIntel" else "Gemm"
    assert product(1024, 3072, 768, constant=True) == packed


@pytest.mark.parametrize("has_avx512", [False], indirect=True)
def test_views_of_constants_are_constants(has_avx512):
    """The plugin packs them, too."""
    a, weights = opset15.parameter([512, 512], Type.f32), np.ones((512, 512), "float32")
    views = [
        opset15.transpose(opset15.constant(weights), np.array([1, 0])),
        opset15.reshape(opset15.constant(weights.reshape(-1)), np.array([512, 512]), False),
        opset15.relu(opset15.constant(weights)),
    ]
    for view, expected in zip(views, ("MatMul", "MatMul", "Gemm")):
        node = opset15.matmul(a, view, False, False)
        model = ov.Model([opset15.result(node)], [a], "product")
        matmuls.use_onednn_matmuls(model, extension)
        (result,) = model.get_results()
        assert result.input_value(0).get_node().get_type_name() == expected


@pytest.mark.parametrize("has_avx512", [False], indirect=True)
def test_other_precisions_are_left_to_the_plugin(has_avx512):
    (step,) = (each for each in build.PASSES if each.name == "matmul by oneDNN")
    graph, bridge = SimpleNamespace(infers=True), SimpleNamespace(extension=extension)
    inference = SimpleNamespace(graph=graph, bridge=bridge)
    for precision, expected in (("f32", "Gemm"), ("bf16", "MatMul")):
        a, b = (opset15.parameter([512, 512], Type.f32) for _ in range(2))
        model = ov.Model([opset15.result(opset15.matmul(a, b, False, False))], [a, b], "product")
        step.run(Draft(model, [], inference, RunSettings(precision)))
        kinds = {node.get_type_name() for node in model.get_ops()}
        assert kinds & {"Gemm", "MatMul"} == {expected}


@pytest.mark.parametrize("has_avx512", [False], indirect=True)
def test_batched_and_dynamic_matmuls_are_left_to_the_plugin(has_avx512):
    for shape in ([4, 512, 512], [-1, 512]):
        a, b = opset15.parameter(shape, Type.f32), opset15.parameter([512, 512], Type.f32)
        model = ov.Model([opset15.result(opset15.matmul(a, b, False, False))], [a, b], "product")
        matmuls.use_onednn_matmuls(model, extension)
        assert "Gemm" not in {node.get_type_name() for node in model.get_ops()}


def weight(name: str, *shape: int) -> Any:
    initial = paddle.nn.initializer.Assign(floats(*shape, seed=len(name)) / np.sqrt(shape[0]))
    return paddle.static.create_parameter(shape, "float32", name, default_initializer=initial)


def check(program: Program, **feed: np.ndarray) -> None:
    """Compares a run with Paddle, up to the rounding of sums of a thousand values."""
    native = program.run(engine=False, **feed)
    before = paddle_ngraph.stats()["engine_runs"]
    for expected, actual in zip(native, program.run(**feed)):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] > before


@pytest.mark.parametrize("has_avx512", [False], indirect=True)
def test_inference_equals_paddles(has_avx512, kinds):
    """One matmul has constant weights, the other a fed right operand."""

    def build() -> Any:
        x, y = paddle.static.data("x", [520, 1024]), paddle.static.data("y", [1030, 300])
        hidden = F.gelu(paddle.matmul(x, weight("w", 1024, 1030)) + weight("bias", 1030))
        return paddle.matmul(hidden, y)

    program = Program(build)
    for seed in range(2):
        check(program, x=floats(520, 1024, seed=seed), y=floats(1030, 300, seed=seed) / 30)
    assert kinds["Gemm"] >= 2
    assert kinds["MatMul"] == 0
    assert paddle_ngraph.stats()["functions_with_weights"] > 0


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("has_avx512", [True], indirect=True)
def test_sums_over_many_weights_equal_paddles(has_avx512, kinds, monkeypatch):
    monkeypatch.setattr(processor, "is_of_intel", lambda: False)

    def build() -> Any:
        return paddle.matmul(paddle.static.data("x", [130, 2050]), weight("w", 2050, 1030))

    check(Program(build), x=floats(130, 2050))
    assert kinds["Gemm"] == 1


def test_gradients_equal_paddles(has_avx512, kinds):
    """A matmul and both gradients: one with a transposed left operand, one with a right one."""

    def build() -> Any:
        x, w = paddle.static.data("x", [4, 160, 512]), paddle.static.data("w", [512, 2048])
        x.stop_gradient = w.stop_gradient = False
        out = F.tanh(paddle.matmul(x, w)) / 32
        return [out, *paddle.static.gradients([out], [x, w])]

    check(Program(build), x=floats(4, 160, 512), w=floats(512, 2048) / 22)
    assert kinds["Gemm"] == 3
    assert kinds["MatMul"] == 0


# -- uniform operands ------------------------------------------------------------------------------


def fill(shape: tuple[int, int], value: float, is_broadcast: bool) -> Any:
    """Returns a matrix of equal elements, as a constant or as a broadcast."""
    if is_broadcast:
        return opset15.broadcast(opset15.constant(np.float32(value)), list(shape))
    return opset15.constant(np.full(shape, value, np.float32))


def evaluate(model: ov.Model, given: list[np.ndarray]) -> np.ndarray:
    """Returns the result of a model of one result, by OpenVINO's reference implementation."""
    found = [ov.Tensor(Type.f32, ov.Shape([]))]
    assert model.evaluate(found, [ov.Tensor(array) for array in given])
    return np.array(found[0].data)


@pytest.mark.parametrize("seed", range(24))
def test_products_by_uniform_matrices(seed):
    """The sum of such a product and a matrix, with infinity and NaN in the other operand."""
    generator = np.random.default_rng(seed)
    m, k, n = (int(each) for each in generator.integers(2, 9, 3))
    index, transposes = int(generator.integers(2)), generator.integers(0, 2, 2).astype(bool)
    batch = [[], [3], [2, 3]][seed % 3]
    shapes = [(m, k), (k, n)]
    value = float(generator.choice([0.0, 0.0, 1.5, np.inf]))
    uniform = fill(shapes[index][:: -1 if transposes[index] else 1], value, seed % 2 == 0)
    given = generator.normal(size=[*batch, *shapes[1 - index]]).astype("float32")
    given[
        (..., *(int(each) for each in generator.integers(0, [given.shape[-2], given.shape[-1]])))
    ] = generator.choice([np.inf, -np.inf, np.nan])
    if transposes[1 - index]:
        given = np.swapaxes(given, -1, -2).copy()
    term = generator.normal(size=[*batch, m, n]).astype("float32")
    parameters = [opset15.parameter(array.shape, Type.f32) for array in (given, term)]
    operands = [parameters[0], uniform] if index else [uniform, parameters[0]]
    product = opset15.matmul(*operands, *(bool(each) for each in transposes))
    results = [opset15.result(opset15.add(product, parameters[1])), opset15.result(product)]
    models = [ov.Model([result], parameters, "uniform") for result in results]
    with np.errstate(invalid="ignore"):
        expected = [evaluate(model, [given, term]) for model in models]
        for model in models[:1]:
            matmuls.narrow_uniform_matmuls(model)
        found = [evaluate(model, [given, term]) for model in models]
    sizes = [
        list(node.get_output_shape(0))
        for node in models[0].get_ops()
        if node.get_type_name() == "MatMul"
    ]
    assert sizes == [[*batch, m, 1] if index else [*batch, 1, n]]
    assert not np.isfinite(expected[0]).all()
    for before, after in zip(expected, found):
        np.testing.assert_allclose(after, before, rtol=1e-5)


def test_other_matrices_are_not_narrowed():
    values = np.zeros((5, 3), np.float32)
    values[2, 1] = 1
    for operand in (
        opset15.constant(values),
        fill((5, 1), 0.0, False),
        opset15.broadcast(opset15.parameter([], Type.f32), [5, 3]),
        fill((5, 0), 0.0, True),  # no column
        fill((0, 3), 0.0, True),  # no term
    ):
        x = opset15.parameter([4, operand.get_output_shape(0)[0]], Type.f32)
        inputs = [each.get_node() for each in operand.input_values()]
        model_inputs = [x, *(each for each in inputs if each.get_type_name() == "Parameter")]
        model = ov.Model(
            [opset15.result(opset15.matmul(x, operand, False, False))], model_inputs, "other"
        )
        matmuls.narrow_uniform_matmuls(model)
        assert model.get_results()[0].input_value(0).get_node().get_type_name() == "MatMul"
