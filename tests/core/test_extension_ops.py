"""The core's own nGraph operators: created by the bridge, compiled and run by the CPU plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import openvino as ov
import pytest
from openvino import Node, opset15

from paddle_ngraph import _core
from paddle_ngraph.conversion import processor
from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.openvino_core import core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph
from tests.core_operators import EXAMPLES, THREADS

SMALL = {
    "kernel": [2, 2],
    "strides": [2, 2],
    "pads": [0, 0],
    "output": [2, 2],
    "adaptive": False,
    "exclusive": True,
}


@pytest.fixture
def bridge() -> NgraphBridge:
    return FunctionBuilder(Graph([], [], [], [], []), []).bridge


def parameters(*arrays: np.ndarray) -> list[Node]:
    return [opset15.parameter(array.shape, array.dtype.type) for array in arrays]


def run(node: Node, inputs: Sequence[Node], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    model = ov.Model([opset15.result(out) for out in node.outputs()], list(inputs), "test")
    compiled = core().compile_model(model, "CPU")
    if compiled.get_property("INFERENCE_NUM_THREADS") == 1:  # loses errors
        compiled = core().compile_model(model, "CPU", {"NUM_STREAMS": 0})
    return list(compiled(list(arrays)).values())


def executed(compiled: ov.CompiledModel) -> set[str]:
    return {op.get_rt_info()["layerType"] for op in compiled.get_runtime_model().get_ops()}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("rows", "width", "count"), [(1, 1, 1), (7, 5, 20), (3000, 64, 5000)])
@pytest.mark.parametrize("padding_idx", [-1, 0, 2])
def test_embedding_grad(bridge, dtype, rows, width, count, padding_idx):
    generator = np.random.default_rng(0)
    ids = generator.integers(0, rows, count).astype(dtype)
    grad = generator.normal(size=(count, width)).astype("float32")
    inputs = parameters(ids, grad)
    node = bridge.extension("EmbeddingGrad", inputs, rows=rows, padding_idx=padding_idx)
    expected = np.zeros((rows, width), "float32")
    np.add.at(expected, ids[ids != padding_idx], grad[ids != padding_idx])
    np.testing.assert_array_equal(run(node, inputs, [ids, grad])[0], expected)


@pytest.mark.parametrize("wrong", [-1, 4])
def test_embedding_grad_rejects_ids_out_of_range(bridge, wrong):
    ids, grad = np.array([0, wrong], "int64"), np.ones((2, 3), "float32")
    inputs = parameters(ids, grad)
    node = bridge.extension("EmbeddingGrad", inputs, rows=4, padding_idx=-1)
    with pytest.raises(RuntimeError, match=rf"EmbeddingGrad: id {wrong} is not in \[0, 4\)"):
        run(node, inputs, [ids, grad])


def test_survives_the_transformations_of_the_plugin(bridge):
    """A converted input, a fused neighbour, a reshape and two readers."""
    data = np.arange(-8, 8, dtype="float32").reshape(1, 1, 4, 4)
    (x,) = parameters(data)
    doubled = opset15.multiply(opset15.relu(x), np.float32(2))
    pooled = bridge.extension("PaddleMaxPool", [doubled], **SMALL)
    flat = opset15.reshape(pooled, np.array([4]), special_zero=False)
    ids = opset15.convert(flat, "i64")
    summed = bridge.extension(
        "EmbeddingGrad", [ids, opset15.unsqueeze(flat, np.array([1]))], rows=15, padding_idx=-1
    )
    (found,) = run(summed, [x], [data])
    expected = np.zeros((15, 1), "float32")
    for value in (0, 0, 10, 14):
        expected[value] += value
    np.testing.assert_array_equal(found, expected)


def test_is_folded_when_its_inputs_are_constant(bridge):
    data = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    node = bridge.extension("PaddleMaxPool", [opset15.constant(data)], **SMALL)
    (x,) = parameters(np.ones((1, 1, 2, 2), "float32"))
    model = ov.Model([opset15.add(node, x)], [x], "test")
    compiled = core().compile_model(model, "CPU")
    assert "Reference" not in executed(compiled)
    found = compiled([np.zeros((1, 1, 2, 2), "float32")])[0]
    np.testing.assert_array_equal(found, data[:, :, 1::2, 1::2])


def test_is_evaluated_by_the_plugin(bridge):
    inputs = parameters(np.ones((1, 1, 4, 4), "float32"))
    model = ov.Model([bridge.extension("PaddleMaxPool", inputs, **SMALL)], inputs, "test")
    assert "Reference" in executed(core().compile_model(model, "CPU"))


def test_evaluates_without_a_plugin(bridge):
    data = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    node = bridge.extension("PaddleMaxPool", parameters(data), **SMALL)
    out = ov.Tensor(ov.Type.f32, ov.Shape([1, 1, 2, 2]))
    assert node.evaluate([out], [ov.Tensor(data)])
    np.testing.assert_array_equal(out.data, data[:, :, 1::2, 1::2])


def test_several_outputs(bridge):
    data = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    inputs = parameters(data)
    node = bridge.extension("MaxPoolWithIndex", inputs, **SMALL)
    out, mask = run(node, inputs, [data])
    np.testing.assert_array_equal(out.ravel(), [5, 7, 13, 15])
    np.testing.assert_array_equal(mask.ravel(), [5, 7, 13, 15])
    assert mask.dtype == np.int32


def test_the_first_maximum_takes_the_gradient(bridge):
    data, out = np.zeros((1, 1, 4, 4), "float32"), np.zeros((1, 1, 2, 2), "float32")
    grad = np.arange(1, 5, dtype="float32").reshape(1, 1, 2, 2)
    inputs = parameters(data, out, grad)
    node = bridge.extension("PaddleMaxPoolGrad", inputs, **SMALL)
    (found,) = run(node, inputs, [data, out, grad])
    np.testing.assert_array_equal(found[0, 0, ::2, ::2], grad[0, 0])
    assert found.sum() == grad.sum()


def test_softmax_of_a_row_of_minus_infinity(bridge):
    """Plain Paddle agrees for short rows only; its kernel for long rows loses the NaN."""
    rows = np.random.default_rng(0).normal(size=(6, 37)).astype("float32")
    rows[0, 30], rows[1, 36], rows[2, 3], rows[3, 5:7] = np.nan, np.nan, np.inf, [np.nan, np.inf]
    rows[4] = -np.inf
    inputs = parameters(rows)
    (found,) = run(bridge.extension("RowSoftmax", inputs), inputs, [rows])
    assert np.isnan(found[:5]).all()
    powers = np.exp(rows[5].astype("float64"))
    np.testing.assert_allclose(found[5], powers / powers.sum(), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "message"),
    [
        ("Nothing", [(1,)], {}, "Nothing"),
        ("PaddleMaxPool", [(2, 3)], SMALL, "PaddleMaxPool: input 0 has rank 2, not 4"),
        ("PaddleMaxPool", [(1, 1, 4, 4)], {**SMALL, "strides": [0, 1]}, "out of range"),
        ("PaddleMaxPool", [(1, 1, 4, 4)], {**SMALL, "kernel": [2]}, "holds 1 numbers"),
        ("PaddleMaxPool", [(1, 1, 4, 4)] * 2, SMALL, "takes 1 input, got 2"),
        ("PaddleMaxPoolGrad", [(1, 1, 4, 4), (1, 1, 2, 2), (1, 1, 2, 3)], SMALL, "must have shape"),
        ("RowSoftmax", [()], {}, "RowSoftmax: input 0 has rank 0, not 1 or more"),
        ("ArgMax", [(2, 3)], {"axis": 2}, "ArgMax: axis 2 is not one of 2"),
        ("RowSoftmaxGrad", [(2, 3), (3, 2)], {}, "y and y_grad differ in shape"),
        ("PaddleAvgPoolGrad", [(1, 1, 3, 2)], {**SMALL, "input": [4, 4]}, "must have shape"),
    ],
)
def test_rejects_wrong_shapes(bridge, name, shapes, attributes, message):
    inputs = parameters(*(np.zeros(shape, "float32") for shape in shapes))
    with pytest.raises(NgraphError, match=message):
        bridge.extension(name, inputs, **attributes)


def test_rejects_other_dtypes(bridge):
    with pytest.raises(NgraphError, match="PaddleMaxPool: input 0 is f64, not f32"):
        bridge.extension("PaddleMaxPool", parameters(np.zeros((1, 1, 4, 4))), **SMALL)
    with pytest.raises(NgraphError, match="EmbeddingGrad: input 0 is f32"):
        floats = parameters(np.zeros(2, "float32"), np.zeros((2, 2), "float32"))
        bridge.extension("EmbeddingGrad", floats, rows=2, padding_idx=-1)


def in_blocks(data: np.ndarray, block: int, padding: float = 0.0) -> np.ndarray:
    """[N, C, H, W] -> [N, ceil(C / block), H, W, block]; plain for a block of 1."""
    if block == 1:
        return data
    extra = -data.shape[1] % block
    whole = np.pad(data, ((0, 0), (0, extra), (0, 0), (0, 0)), constant_values=padding)
    batch, _, height, width = data.shape
    return whole.reshape(batch, -1, block, height, width).transpose(0, 1, 3, 4, 2).copy()


@pytest.mark.parametrize("channels", [1, 5, 8, 11, 16, 23, 48])
@pytest.mark.parametrize("first", [1, 8, 16])
@pytest.mark.parametrize("second", [1, 8, 16])
@pytest.mark.parametrize("size", [(3, 7), (50, 70)])  # by one thread, by all
def test_reorder(bridge, channels, first, second, size):
    data = np.random.default_rng(0).normal(size=(3, channels, *size)).astype("float32")
    given = in_blocks(data, first, padding=np.nan)
    (x,) = parameters(given)
    node = bridge.extension("BlockedReorder", [x], block=second, channels=channels)
    (found,) = run(node, [x], [given])
    np.testing.assert_array_equal(found, in_blocks(data, second))


def test_reorder_converts_all_channels_by_default(bridge):
    data = np.arange(2 * 16 * 6, dtype="float32").reshape(2, 16, 2, 3)
    (x,) = parameters(data)
    blocked = bridge.extension("BlockedReorder", [x], block=8)
    (found,) = run(bridge.extension("BlockedReorder", [blocked], block=1), [x], [data])
    np.testing.assert_array_equal(found, data)


def convolved(bridge, name, arrays, sizes, **attributes):
    inputs = parameters(*arrays)
    options = {"pads_begin": [1, 1], "pads_end": [1, 1], "strides": [1, 1], "dilations": [1, 1]}
    options = {"groups": 1, **options, **attributes}
    return run(bridge.extension(name, inputs, sizes=sizes, **options), inputs, arrays)[0]


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf])
def test_convolutions_leave_zeros_in_padded_lanes(bridge, value):
    generator = np.random.default_rng(0)
    data, grad, filter_ = (
        generator.normal(size=shape).astype("float32")
        for shape in [(4, 6, 5, 5), (4, 11, 5, 5), (11, 6, 3, 3)]
    )
    data[1, 2, 3, 4], grad[1, 2, 3, 4] = value, value
    data, grad = in_blocks(data, 8), in_blocks(grad, 8)
    out = convolved(bridge, "BlockedConvolution", [data, filter_], [8])
    assert out.shape == grad.shape
    np.testing.assert_array_equal(out[:, 1, ..., 3:], 0.0)
    data_grad = convolved(bridge, "BlockedConvolutionDataGrad", [grad, filter_], [5, 5])
    assert data_grad.shape == data.shape
    np.testing.assert_array_equal(data_grad[..., 6:], 0.0)
    for found in (out, data_grad):
        assert np.isfinite(found).all() == np.isfinite(value)


def test_the_gradient_of_a_filter_has_no_padding(bridge):
    data = in_blocks(np.ones((2, 6, 4, 4), "float32"), 8, padding=np.nan)
    grad = in_blocks(np.ones((2, 11, 4, 4), "float32"), 8, padding=np.nan)
    none = {"pads_begin": [0, 0], "pads_end": [0, 0]}
    found = convolved(bridge, "BlockedConvolutionFilterGrad", [data, grad], [11, 6, 1, 1], **none)
    np.testing.assert_array_equal(found, np.full((11, 6, 1, 1), 32.0))


GROUPED = [(2, 1, 4, 4, 8), (12, 4, 3, 3)]


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "message"),
    [
        (
            "BlockedReorder",
            [(2, 1, 4, 4, 8)],
            {"block": 1, "channels": 9},
            "does not hold 9 channels",
        ),
        ("BlockedReorder", [(2, 8, 4, 4)], {"block": 0}, "blocks of 0 channels"),
        ("BlockedConvolution", GROUPED, {"sizes": [8], "groups": 2}, "do not divide into blocks"),
        ("BlockedConvolution", [(2, 1, 4, 4, 8), (8, 12, 3, 3)], {"sizes": [8]}, "does not fit"),
        (
            "BlockedConvolution",
            [(2, 2, 4, 4, 4), (8, 8, 3, 3)],
            {"sizes": [8]},
            "a block of 4 channels",
        ),
        ("LayerNorm", [(2, 3), (3,), (2,)], {}, "must have shape"),
        ("BatchNorm", [(2, 3, 4, 1), (3,), (3,), (3,), (4,)], {}, "must have shape"),
        ("BatchNormGrad", [(2, 3, 4, 1)] * 2 + [(3,)] * 3, {"rectified": True}, "takes 6 inputs"),
    ],
)
def test_training_operators_reject_wrong_shapes(bridge, name, shapes, attributes, message):
    inputs = parameters(*(np.zeros(shape, "float32") for shape in shapes))
    with pytest.raises(NgraphError, match=message):
        bridge.extension(name, inputs, **attributes)


def gemm(bridge, a, b, transpose_a, transpose_b):
    inputs = parameters(a, b)
    node = bridge.extension("Gemm", inputs, transpose_a=transpose_a, transpose_b=transpose_b)
    return run(node, inputs, [a, b])[0]


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (5, 7, 3), (17, 33, 65), (1, 300, 40), (512, 1024, 70), (130, 512, 512)],
)
def test_gemm(bridge, m, n, k, transpose_a, transpose_b):
    generator = np.random.default_rng(0)
    a = generator.normal(size=(k, m) if transpose_a else (m, k)).astype("float32")
    b = generator.normal(size=(n, k) if transpose_b else (k, n)).astype("float32")
    found = gemm(bridge, a, b, transpose_a, transpose_b)
    left, right = a.T if transpose_a else a, b.T if transpose_b else b
    expected = left.astype("float64") @ right.astype("float64")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * k)


def test_gemm_propagates_nan_and_infinity(bridge):
    a, b = np.ones((40, 20), "float32"), np.ones((20, 512), "float32")
    a[3, 4], b[5, 100] = np.nan, np.inf
    found = gemm(bridge, a, b, False, False)
    expected = np.full((40, 512), 20.0)
    expected[:, 100] = np.inf
    expected[3] = np.nan
    np.testing.assert_array_equal(found, expected)


def test_gemm_rejects_wrong_shapes(bridge):
    inputs = parameters(np.ones((2, 3), "float32"), np.ones((4, 5), "float32"))
    with pytest.raises(NgraphError, match=r"Gemm: matrices \[2,3\] and \[4,5\] do not fit"):
        bridge.extension("Gemm", inputs, transpose_a=False, transpose_b=False)


def test_optimizers_reject_tensors_of_another_shape(bridge):
    param, state = np.ones((2, 3), "float32"), np.ones((3, 2), "float32")
    rate = np.ones(1, "float32")
    options = {"mu": 0.9, "nesterov": False, "decays": False, "decay": 0.0}
    with pytest.raises(NgraphError, match=r"Momentum: input 2 is f32\[3,2\], not f32\[2,3\]"):
        bridge.extension("Momentum", parameters(param, param, state, rate), **options)
    with pytest.raises(NgraphError, match=r"Momentum: input 3 is f32\[2,3\], not one f32"):
        bridge.extension("Momentum", parameters(param, param, param, param), **options)


# -- in bfloat16 -------------------------------------------------------------------------------


def bits_of(data: np.ndarray) -> np.ndarray:
    """Float32 values that bfloat16 represents, as the bits of bfloat16."""
    return (data.view("uint32") >> 16).astype("uint16")


def small_integers(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Random small integers, exact in bfloat16, with products and sums exact in float32."""
    return generator.integers(-8, 9, shape).astype("float32")


def evaluated(name: str, arrays: Sequence[np.ndarray], threads: int, **attributes) -> np.ndarray:
    """The output of an operator that reads bits of bfloat16, computed by ``threads`` threads."""
    given = [ov.Tensor(array, array.shape, ov.Type.bf16) for array in arrays]
    inputs = [opset15.parameter(t.get_shape(), t.get_element_type()) for t in given]
    node = extension(name, inputs, **attributes)
    out = ov.Tensor(node.get_output_element_type(0), node.get_output_shape(0))
    _core.run_with_threads(threads, lambda: node.evaluate([out], given))
    return np.array(out.data)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_matmuls_in_bfloat16(transpose_a, transpose_b):
    """Sizes around those at which the slices of threads begin."""
    generator = np.random.default_rng(0)
    for _ in range(60):
        m, n, k = generator.choice([1, 2, 15, 16, 17, 31, 33, 100, 257], 3)
        batch = generator.choice([1, 2, 5], generator.integers(0, 3))
        threads = int(generator.choice(THREADS))
        a, b = small_integers(generator, *batch, m, k), small_integers(generator, *batch, k, n)
        given = [
            bits_of(np.ascontiguousarray(np.swapaxes(x, -1, -2) if transposed else x))
            for x, transposed in [(a, transpose_a), (b, transpose_b)]
        ]
        options = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        found = evaluated("Bfloat16Gemm", given, threads, **options)
        np.testing.assert_array_equal(found, a @ b, f"{batch} {m} {n} {k} on {threads} threads")


def filter_grad(data: np.ndarray, grad: np.ndarray, size: int, stride: int, pad: int) -> np.ndarray:
    """The gradient of a filter [O, C, 1, size]."""
    width = (grad.shape[3] - 1) * stride + 1
    wide = np.pad(data, ((0, 0), (0, 0), (0, 0), (pad, size + width)))
    parts = [wide[..., i : i + width : stride] for i in range(size)]
    return np.stack([np.einsum("nchw,nohw->oc", part, grad) for part in parts], -1)[:, :, None]


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_bfloat16_filter_gradients_read_only_written_memory(stride):
    """Narrow images, computed after one that leaves NaN in the workspace."""
    generator = np.random.default_rng(stride)
    computed = 0
    for width in range(1, 9):
        for size in (1, 2, 3, 4):
            pad = size // 2
            options = {"strides": [1, stride], "pads_begin": [0, pad], "pads_end": [0, pad]}
            options |= {"dilations": [1, 1], "groups": 1, "sizes": [16, 16, 1, size]}
            out = (width + 2 * pad - size) // stride + 1
            if out < 1:
                continue
            data, grad = (
                small_integers(generator, 2, 16, 3, width),
                small_integers(generator, 2, 16, 3, out),
            )
            lost = np.full((2, 16, 3, 50), np.nan, "float32")
            lost_grad = lost[..., : (50 + 2 * pad - size) // stride + 1]
            for x, y in [(lost, lost_grad), (data, grad)]:
                given = [bits_of(in_blocks(np.ascontiguousarray(each), 16)) for each in (x, y)]
                try:
                    found = evaluated("BlockedConvolutionFilterGrad", given, 1, **options)
                except NgraphError as error:
                    assert "oneDNN has no fast kernel" in str(error)
                    found = None
            if found is not None:
                computed += 1
                expected = filter_grad(data, grad, size, stride, pad)
                np.testing.assert_array_equal(found, expected, f"{width} by {size}")
    assert computed > 8 or not processor.has_bfloat16()


# -- all operators -----------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 8, 11, 16, 40])
@pytest.mark.parametrize("block", [1, 8, 16])
@pytest.mark.parametrize("threads", [1, 3])
def test_channels_are_last_in_bfloat16(channels, block, threads):
    data = np.random.default_rng(0).normal(size=(3, channels, 50, 7)).astype("float32")
    given = in_blocks(data, block)
    node = extension("ToChannelsLast", parameters(given))
    out = ov.Tensor(ov.Type.bf16, node.get_output_shape(0))
    _core.run_with_threads(threads, lambda: node.evaluate([out], [ov.Tensor(given)]))
    width = given.shape[1] * block
    assert list(out.shape) == [3, 1, 50, 7, width]
    bits = np.array(out.data).view("uint16").reshape(3, 50, 7, width)
    expected = bits_of(rounded(data)).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(bits[..., :channels], expected)
    np.testing.assert_array_equal(bits[..., channels:], 0)


def rounded(x: np.ndarray) -> np.ndarray:
    """Finite values rounded to the nearest bfloat16, ties to even."""
    bits = x.view("uint32").astype("uint64")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype("uint32").view("float32")


def channels_last(data: np.ndarray, block: int) -> ov.Tensor:
    """[N, C, H, W] as [N, 1, H, W, C], padded to blocks, in bfloat16."""
    blocked = in_blocks(data, block)
    batch, _, height, width = data.shape
    last = blocked.transpose(0, 2, 3, 1, 4) if block > 1 else blocked.transpose(0, 2, 3, 1)
    bits = np.ascontiguousarray(bits_of(last.copy()).reshape(batch, 1, height, width, -1))
    return ov.Tensor(bits, bits.shape, ov.Type.bf16)


def computed(name: str, given: Sequence[ov.Tensor], threads: int, **attributes) -> np.ndarray:
    inputs = [opset15.parameter(t.get_shape(), t.get_element_type()) for t in given]
    node = extension(name, inputs, **attributes)
    out = ov.Tensor(node.get_output_element_type(0), node.get_output_shape(0))
    out.data[...] = np.nan
    _core.run_with_threads(threads, lambda: node.evaluate([out], given))
    return np.array(out.data)


@pytest.mark.skipif(not processor.has_amx(), reason="the processor has no tiles of bfloat16")
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_of_channels_last(size, stride):
    """Integers, with products and sums exact in float32: results equal the blocked kernels'."""
    generator = np.random.default_rng(size * 10 + stride)
    for index in range(14):
        channels = int(generator.choice([3, 8, 20, 40, 64, 96, 144]))
        outputs = int(generator.choice([8, 24, 36, 64, 128, 160]))
        batch, height, width = (int(n) for n in generator.integers([1, 7, 7], [4, 30, 30]))
        threads = int(generator.choice(THREADS))
        block, out_block = (8 if n > 3 else 1 for n in (channels, outputs))
        pad, attributes = size // 2, {"strides": [stride] * 2, "dilations": [1, 1], "groups": 1}
        attributes |= {"pads_begin": [pad, pad], "pads_end": [pad, pad]}
        out_size = [(n + 2 * pad - size) // stride + 1 for n in (height, width)]
        data = small_integers(generator, batch, channels, height, width)
        grad = small_integers(generator, batch, outputs, *out_size)
        filter_ = small_integers(generator, outputs, channels, size, size)
        plain = [ov.Tensor(in_blocks(data, block)), ov.Tensor(in_blocks(grad, out_block))]
        last = [channels_last(data, block), channels_last(grad, out_block)]
        weights = ov.Tensor(filter_)
        cases = [
            ("", [plain[0], weights], [last[0], weights], [out_block], [out_block]),
            ("FilterGrad", plain, last, filter_.shape, filter_.shape),
        ]
        if block > 1:
            sizes = [height, width]
            operands = [plain[1], weights], [last[1], weights]
            cases.append(("DataGrad", *operands, sizes, [*sizes, block]))
        for name, *operands, plain_sizes, sizes in cases:
            name = f"BlockedConvolution{name}"
            expected = computed(name, operands[0], 1, sizes=list(plain_sizes), **attributes)
            attributes_last = {**attributes, "sizes": list(sizes), "channels_last": True}
            found = computed(name, operands[1], threads, **attributes_last)
            where = f"{index}: {name} {data.shape} {filter_.shape} on {threads} threads"
            np.testing.assert_array_equal(found, expected, where)


def test_there_is_an_example_of_every_operator():
    # KernelCall has tests of its own (tests/conversion/test_kernel_calls.py).
    names = set(_core.extension_op_names()) - {"KernelCall"}
    assert {example.name for example in EXAMPLES} == names


@pytest.fixture(scope="module")
def without_a_size() -> dict[int, dict[str, str]]:
    """Runs each example with a size of 0, in a separate process, since it may crash."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.core_operators"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("[")]
    if len(lines) < len(EXAMPLES):
        print(f"ended with {found.returncode} at {EXAMPLES[len(lines)].name}: {found.stderr}")
    return dict(lines)


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=lambda n: f"{n}-{EXAMPLES[n].name}")
def test_every_operator_accepts_empty_inputs(without_a_size, number):
    example = EXAMPLES[number]
    assert number in without_a_size, "the process died"
    for case, outcome in without_a_size[number].items():
        size = case.split()[0]
        if size in example.refused:
            assert outcome.startswith("refused: ") and example.name in outcome, (case, outcome)
        else:
            assert outcome == "as expected", case


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=lambda n: f"{n}-{EXAMPLES[n].name}")
@pytest.mark.parametrize("threads", THREADS[1:])
def test_results_do_not_depend_on_the_number_of_threads(number, threads):
    example = EXAMPLES[number]
    expected, found = (example.evaluate(count, example.sizes) for count in (1, threads))
    for one, many in zip(expected, found):
        largest = float(np.abs(one).max())
        np.testing.assert_allclose(many, one, rtol=1e-5, atol=1e-6 * largest)


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=lambda n: f"{n}-{EXAMPLES[n].name}")
def test_partial_sums_are_deterministic(number):
    example = EXAMPLES[number]
    first, second = (example.evaluate(8, example.sizes) for _ in range(2))
    for one, again in zip(first, second):
        np.testing.assert_array_equal(one, again)
