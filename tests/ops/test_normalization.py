"""Normalizations compared with plain Paddle."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from paddle_ngraph.conversion.build import make_model
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.openvino_core import core
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec
from paddle_ngraph.partitioning.analysis.block_view import BlockView
from tests.ops.harness import check
from tests.ops.merging import merged
from tests.programs import Program, floats

# -- batch normalization -------------------------------------------------------------------------


def statistics(channels: int) -> tuple[Any, Any]:
    """Running statistics: variables of the program that are updated in place."""
    found = []
    for value in (0.3, 1.7):
        found.append(
            paddle.create_parameter(
                [channels],
                "float32",
                default_initializer=paddle.nn.initializer.Assign(
                    value + 0.1 * np.arange(channels, dtype="float32")
                ),
            )
        )
        found[-1].stop_gradient = True
    return found[0], found[1]


def batch_norm(channels: int, updates: bool = True, **options: Any) -> Any:
    def build(x: Any, weight: Any = None, bias: Any = None) -> Any:
        mean, variance = statistics(channels)
        out = F.batch_norm(x, mean, variance, weight, bias, **options)
        return [out, mean + 0.0, variance * 1.0] if updates else out

    return build


def affine(channels: int) -> dict[str, np.ndarray]:
    return {"weight": 1 + 0.1 * floats(channels, seed=1), "bias": floats(channels, seed=2)}


SHAPES = [
    ((4, 3), "NC"),
    ((2, 3, 5), "NCL"),
    ((2, 5, 3), "NLC"),
    ((2, 3, 4, 5), "NCHW"),
    ((2, 4, 5, 3), "NHWC"),
    ((2, 3, 2, 3, 4), "NCDHW"),
    ((2, 2, 3, 4, 3), "NDHWC"),
    ((1, 3, 1, 1), "NCHW"),
    ((1, 1, 4, 4), "NCHW"),
    # More channels side by side than fit with their sums into registers, and a remainder.
    ((80, 70), "NC"),
    ((5, 65, 1), "NCL"),
    ((2, 9, 8, 130), "NHWC"),
]
MODES = [
    dict(training=True),
    dict(training=False),
    dict(training=True, use_global_stats=True),
    dict(training=False, use_global_stats=False),
    dict(training=True, use_global_stats=False),
]


@merged
@pytest.mark.parametrize(
    "shape, layout, mode",
    [(*SHAPES[3], mode) for mode in MODES[2:]]
    + [(*shape, mode) for shape in SHAPES for mode in MODES[:2]],
)
def test_batch_norm(shape, layout, mode):
    channels = shape[1] if layout[1] == "C" else shape[-1]
    x = floats(*shape) * 2 + 1
    build = batch_norm(channels, data_format=layout, **mode)
    converted = ["batch_norm_", "batch_norm_grad"]
    check(build, {"x": x, **affine(channels)}, converted, runs=2, atol=5e-6)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1), (2, 3), (1, 3, 2, 1)])
@pytest.mark.parametrize("wanted", ["x", "nothing of x", "no gradient of x"])
def test_gradients_of_one_element(shape, wanted):
    """Paddle's kernel computes the bias gradient only where the gradient of x is not requested."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, *shape[1:]], "float32")
        x.stop_gradient = wanted == "no gradient of x"
        scale, bias = (
            paddle.create_parameter(
                [3], "float32", default_initializer=paddle.nn.initializer.Constant(value)
            )
            for value in (1.5, 0.25)
        )
        out = F.batch_norm(x, *statistics(3), scale, bias, training=True)
        loss = (out * out).mean()
        return paddle.static.gradients(loss, [scale, bias, *([x] if wanted == "x" else [])])

    program = Program(build)
    for rows in (5, shape[0]):  # the first function may have a dynamic batch
        program.both(x=floats(rows, *shape[1:]))


@merged
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("given", [(), ("weight",), ("bias",)])
def test_batch_norm_without_scale_or_bias(given, training):
    inputs = {name: value for name, value in affine(3).items() if name in given}
    build = batch_norm(3, training=training, momentum=0.37, epsilon=0.02)
    converted = ["batch_norm_"] if given else ["batch_norm_", "batch_norm_grad"]
    check(build, {"x": floats(2, 3, 4, 4), **inputs}, converted, runs=3, gradients=not given)


@pytest.mark.parametrize("training", [True, False])
def test_statistics_that_are_scale_and_bias(training):
    """Paddle reads them after their update, in training."""

    def build(x):
        mean, variance = statistics(3)
        return F.tanh(F.batch_norm(x, mean, variance, variance, mean, training=training))

    converted = ["tanh"] if training else ["tanh", "batch_norm_"]
    check(build, {"x": floats(5, 3)}, converted, runs=3, gradients=False)


def test_gradients_of_scale_without_bias_fall_back():
    entry = find_converter("pd_op.batch_norm_grad")
    assert entry is not None
    reason = entry.reason_against(
        Op("pd_op.batch_norm_grad", 0, {"scale": (TensorSpec(0, "float32", (3,)),)})
    )
    assert reason is not None and "neither gradient" in reason


@merged
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_batch_norm_of_nan_and_infinity(bad, training):
    x = floats(2, 3, 4, 4)
    x[1, 1, 2, 3] = bad
    build = batch_norm(3, training=training)
    check(build, {"x": x, **affine(3)}, ["batch_norm_", "batch_norm_grad"])


@merged
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_large_and_open_batches(training):
    x = floats(9, 20, 17, 13) * 5 + 30
    build = batch_norm(20, training=training)
    dynamic = {"x": [-1, 20, -1, -1]}
    converted = ["batch_norm_", "batch_norm_grad"]
    check(build, {"x": x, **affine(20)}, converted, dynamic=dynamic, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frozen", [None, True, False])
def test_training_steps_of_a_network_with_batch_norm(frozen):
    def build() -> Any:
        x = paddle.static.data("x", [-1, 2, 6, 6], "float32")
        h = paddle.nn.Conv2D(2, 4, 3)(x)
        h = paddle.nn.BatchNorm2D(4, use_global_stats=frozen)(h)
        loss = (paddle.nn.BatchNorm1D(4)(h.mean([2, 3])) ** 2 * h.mean([2, 3])).mean()
        paddle.optimizer.Momentum(0.1).minimize(loss)
        return loss

    report = check_training(build, (5, 2, 6, 6))
    assert not report.native, report


def test_batch_norm_twice_in_a_program():
    """The first updates the running statistics, which the second then reads."""

    def build() -> Any:
        x = paddle.static.data("x", [4, 3, 5], "float32")
        layer = paddle.nn.BatchNorm1D(3)
        h = layer(layer(x) * 2 + 1)
        layer.eval()
        h = layer(h)
        layer.train()
        loss = (layer(h) ** 3).mean()
        paddle.optimizer.SGD(0.01).minimize(loss)
        return loss

    report = check_training(build, (4, 3, 5))
    assert not report.native, report


def test_batch_norm_and_its_gradient_in_different_subgraphs():
    def build() -> Any:
        x = paddle.static.data("x", [4, 3, 5], "float32")
        h = paddle.nn.BatchNorm1D(3)(x)
        loss = (h * paddle.erfinv(paddle.tanh(h) * 0.5)).mean()
        paddle.optimizer.SGD(0.01).minimize(loss)
        return loss

    report = check_training(build, (4, 3, 5))
    kinds = [set(interval.types) for interval in report.intervals]
    assert any("pd_op.batch_norm_" in k and "pd_op.batch_norm_grad" not in k for k in kinds)
    assert any("pd_op.batch_norm_grad" in k for k in kinds)


def check_training(build: Any, shape: tuple[int, ...]) -> Any:
    """Runs some steps by Paddle and by the engine; returns the converted operators."""
    both = [Program(build) for _ in range(2)]
    for step in range(5):
        x = floats(*shape, seed=step)
        losses = [program.run(engine, x=x) for program, engine in zip(both, (False, True))]
        np.testing.assert_allclose(losses[1], losses[0], 1e-4, 1e-6)
    native, engine = (program.main.state_dict("all", program.scope) for program in both)
    assert native
    for name, expected in native.items():
        np.testing.assert_allclose(engine[name], expected, 1e-4, 1e-5, err_msg=name)
    return paddle_ngraph.explain(both[1].main)


def test_batch_norm_is_fused_into_a_convolution():
    """With constant parameters it is a multiply-add that needs no separate pass."""
    shapes = [(2, 3, 8, 8), (4, 3, 3, 3), *[(4,)] * 4, (2, 4, 6, 6), (2, 4, 6, 6)]
    x, weight, mean, variance, scale, bias, middle, out = (
        TensorSpec(number, "float32", shape) for number, shape in enumerate(shapes)
    )
    convolution = Op("pd_op.conv2d", 0, {"input": (x,), "filter": (weight,)}, {"out": (middle,)})
    convolution.attrs = {
        "strides": [1, 1],
        "paddings": [0, 0],
        "padding_algorithm": "EXPLICIT",
        "dilations": [1, 1],
        "groups": 1,
        "data_format": "NCHW",
    }
    names = {"x": middle, "mean": mean, "variance": variance, "scale": scale, "bias": bias}
    inputs = {name: (spec,) for name, spec in names.items()}
    normalization = Op("pd_op.batch_norm_", 1, inputs, {"out": (out,)})
    for name in ("mean_out", "variance_out", "saved_mean", "saved_variance", "reserve_space"):
        normalization.outputs[name] = (None,)
    normalization.attrs = {"is_test": True, "use_global_stats": True, "trainable_statistics": False}
    normalization.attrs |= {"epsilon": 1e-5, "momentum": 0.9, "data_format": "NCHW"}
    sources = [x, weight, mean, variance, scale, bias]
    graph = Graph([convolution, normalization], sources, [], [out], [])
    values = {spec.id: np.abs(floats(*spec.shape)) for spec in sources[1:]}
    draft = make_model(FunctionBuilder(graph, [("f32", s.shape) for s in sources], values))
    compiled = core().compile_model(draft.model, "CPU")
    kinds = {
        node.get_rt_info()["layerType"].value for node in compiled.get_runtime_model().get_ops()
    }
    assert "Convolution" in kinds
    assert kinds <= {"Convolution", "Input", "Const", "Output", "Reorder", "Reshape"}


def test_evaluation_only_reads_statistics():
    """Every evaluation may share the running statistics with other runs."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, 3, 4, 4], "float32")
        model = paddle.nn.BatchNorm2D(3)
        model.eval()
        return model(x)

    program = Program(build)
    program.both(x=floats(2, 3, 4, 4))
    [node] = [n for n in BlockView(program.main.global_block()).nodes if "batch_norm" in n.type]
    assert not node.overwrites


# -- layer, group and instance normalization -----------------------------------------------------


def given(size: int, names: str) -> dict[str, np.ndarray]:
    """Scale ("w") and bias ("b") of ``size``; one scale is 0."""
    found = {"weight": floats(size, seed=1), "bias": floats(size, seed=2)}
    found["weight"][0] = 0
    return {name: value for name, value in found.items() if name[0] in names}


def layer_norm(rank: int, **options: Any) -> Any:
    def build(x: Any, weight: Any = None, bias: Any = None) -> Any:
        return F.layer_norm(x, x.shape[-rank:], weight, bias, **options)

    return build


@merged
@pytest.mark.parametrize(
    "shape, rank, names",
    [
        ((5, 6), 1, "wb"),
        ((5, 6), 1, "w"),
        ((5, 6), 1, "b"),
        ((2, 3, 4), 2, "wb"),
        ((2, 3, 4, 5), 3, ""),
        ((3, 1), 1, "wb"),
    ],
)
def test_layer_norm(shape, rank, names):
    inputs = {"x": floats(*shape), **given(int(np.prod(shape[-rank:])), names)}
    converted = ["layer_norm", "layer_norm_grad"]
    check(layer_norm(rank, epsilon=1e-3), inputs, converted, atol=5e-6)
    check(layer_norm(rank), inputs, ["layer_norm"], gradients=False)


@merged
def test_layer_norm_of_large_and_open_batches():
    inputs = {"x": floats(3, 70, 130) * 3 + 10, **given(130, "wb")}
    converted = ["layer_norm", "layer_norm_grad"]
    check(layer_norm(1), inputs, converted, dynamic={"x": [-1, -1, 130]}, rtol=2e-5, atol=2e-5)


@merged
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_layer_norm_of_nan_and_infinity(bad):
    x = floats(4, 6)
    x[1, 2] = bad
    check(layer_norm(1), {"x": x, **given(6, "wb")}, ["layer_norm", "layer_norm_grad"])
    check(layer_norm(1), {"x": x}, ["layer_norm"], gradients=False)


@merged
@pytest.mark.parametrize("is_trained", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("kind", ["layer_norm", "group_norm", "instance_norm", "batch_norm_"])
def test_untrained_parameters(kind, is_trained):
    normalizations = {
        "layer_norm": layer_norm(1),
        "group_norm": group_norm(2),
        "instance_norm": instance_norm,
        "batch_norm_": batch_norm(4, training=True),
    }

    def build(x: Any) -> Any:
        parameters = [paddle.create_parameter([4], "float32", attr=ones_or_so(i)) for i in (5, 6)]
        for parameter, trained in zip(parameters, is_trained):
            parameter.stop_gradient = not trained
        return normalizations[kind](x, *parameters)

    gradient = f"{kind.removesuffix('_')}_grad"
    check(build, {"x": floats(2, 4, 4)}, [kind, gradient], atol=1e-5)


def ones_or_so(seed: int) -> Any:
    values = 1 + 0.3 * floats(4, seed=seed)
    return paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(values))


def group_norm(groups: int, **options: Any) -> Any:
    def build(x: Any, weight: Any = None, bias: Any = None) -> Any:
        return F.group_norm(x, groups, weight=weight, bias=bias, **options)

    return build


@merged
@pytest.mark.parametrize(
    "shape, layout, groups, names",
    [
        ((2, 6, 5), "NCL", 3, "wb"),
        ((2, 6, 3, 4), "NCHW", 2, "wb"),
        ((2, 6, 3, 4), "NCHW", 2, "w"),
        ((2, 6, 3, 4), "NCHW", 2, "b"),
        ((2, 6, 3, 4), "NCHW", 2, ""),
        ((2, 3, 4, 6), "NHWC", 2, "wb"),
        ((1, 4, 2, 3, 2), "NCDHW", 4, ""),
        ((2, 3, 2, 2, 4), "NDHWC", 1, "wb"),
    ],
)
def test_group_norm(shape, layout, groups, names):
    channels = shape[1] if layout[1] == "C" else shape[-1]
    inputs = {"x": floats(*shape), **given(channels, names)}
    build = group_norm(groups, data_format=layout, epsilon=1e-4)
    check(build, inputs, ["group_norm", "group_norm_grad"], rtol=1e-4, atol=2e-5)
    check(build, inputs, ["group_norm"], gradients=False, atol=5e-6)


@merged
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_group_norm_of_nan_and_infinity(bad):
    x = floats(2, 4, 3, 3)
    x[1, 2, 0, 0] = bad
    dynamic = {"x": [-1, 4, -1, -1]}
    check(group_norm(2), {"x": x, **given(4, "wb")}, ["group_norm"], dynamic=dynamic)


def instance_norm(x: Any, weight: Any = None, bias: Any = None) -> Any:
    return F.instance_norm(x, weight=weight, bias=bias, eps=1e-4)


@merged
@pytest.mark.parametrize("names", ["wb", ""])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 2, 3, 4), (2, 3, 1)])
def test_instance_norm(shape, names):
    inputs = {"x": floats(*shape) + 0.5, **given(3 if shape[1] == 3 else 2, names)}
    check(instance_norm, inputs, ["instance_norm", "instance_norm_grad"], atol=5e-6)
    check(instance_norm, inputs, ["instance_norm"], gradients=False, atol=5e-6)


@merged
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_instance_norm_of_nan_and_infinity(bad):
    x = floats(2, 4, 3, 3)
    x[1, 2, 0, 0] = bad
    converted = ["instance_norm", "instance_norm_grad"]
    dynamic = {"x": [-1, 4, -1, -1]}
    check(instance_norm, {"x": x, **given(4, "wb")}, converted, dynamic=dynamic)


@merged
@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize(
    "build, kind",
    [
        (batch_norm(4, training=True), "batch_norm_"),
        (batch_norm(4, training=False), "batch_norm_"),
        (layer_norm(1), "layer_norm"),
        (group_norm(2), "group_norm"),
        (instance_norm, "instance_norm"),
    ],
)
def test_infinite_and_nan_scales_and_biases(build, kind, name):
    """An infinite scale of finite values gives an infinite gradient, not NaN."""
    inputs = affine(4)
    inputs[name][:3] = [np.inf, -np.inf, np.nan]
    check(build, {"x": floats(2, 4, 4, 4), **inputs}, [kind, f"{kind.removesuffix('_')}_grad"])


@merged
def test_local_response_norm():
    inputs = {"x": floats(2, 6, 3, 4)}
    program_of = ["pow", "pow_grad", "divide", "divide_grad"]
    check(lambda x: F.local_response_norm(x, 3), inputs, program_of)
    check(lambda x: F.local_response_norm(x, 3), {"x": floats(2, 6, 5)}, program_of)
