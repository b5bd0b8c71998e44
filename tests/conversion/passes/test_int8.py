"""Networks quantized by Paddle's tools: int8 kernels compared with Paddle's simulation.

Sums of integers are exact, and Paddle's sums in float32 are not. So a value that is quantized next
may lie on the other side of a boundary: results may be a few quanta off.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.inference import Config, create_predictor
from paddle.quantization import PTQ, QAT, QuantConfig
from paddle.quantization.observers import AbsmaxObserver
from paddle.quantization.quanters import FakeQuanterWithAbsMaxObserver
from paddle.static import InputSpec

import paddle_ngraph
from benchmarks import functions, quantizing
from paddle_ngraph import _core
from paddle_ngraph.conversion import processor
from tests.dynamic import dynamic_mode
from tests.programs import Program

SHAPE = [4, 3, 16, 16]
# One quantum of the last layer's input changes a result by at most this; a few may change.
CLOSE = {"rtol": 0, "atol": 0.02}
LAYERS = ("Convolution", "FullyConnected", "GroupConvolution")

pytestmark = pytest.mark.usefixtures("small_intervals_pay")
needs_int8 = pytest.mark.skipif(not processor.has_int8(), reason="no int8 units: float32 is used")


class Network(nn.Layer):
    """A typical image network: residuals, depthwise convolutions, a classifier."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2D(3, 16, 3, padding=1, bias_attr=False)
        self.norm = nn.BatchNorm2D(16)
        self.depthwise = nn.Conv2D(16, 16, 3, stride=2, padding=1, groups=16)
        self.pointwise = nn.Conv2D(16, 32, 1)
        self.second = nn.Conv2D(32, 32, 3, padding=1)
        self.relu = nn.ReLU()
        self.classify = nn.Linear(32, 10)

    def forward(self, x):
        x = self.relu(self.norm(self.first(x)))
        x = self.relu(self.pointwise(self.depthwise(x)))
        x = self.relu(self.second(x) + x)
        return self.classify(x.mean([2, 3]))


def pictures(seed=0):
    return np.random.default_rng(seed).normal(size=SHAPE).astype("float32")


def network(trains=False):
    paddle.seed(7)
    made = Network()
    return made.train() if trains else made.eval()


def of_products(quanter):
    """Quantizes activations and weights of the operators with int8 kernels."""
    config = QuantConfig(activation=None, weight=None)
    config.add_type_config([nn.Conv2D, nn.Linear], activation=quanter, weight=quanter)
    return config


def of_everything(quanter):
    return QuantConfig(activation=quanter, weight=quanter)


def trained(config):
    """Quantization-aware training."""
    tool = QAT(config(FakeQuanterWithAbsMaxObserver()))
    quantized = tool.quantize(network(trains=True))
    optimizer = paddle.optimizer.SGD(0.01, parameters=quantized.parameters())
    for step in range(3):
        quantized(paddle.to_tensor(pictures(step))).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return quantized.eval()


def observed(config):
    """Post-training quantization."""
    tool = PTQ(config(AbsmaxObserver()))
    quantized = tool.quantize(network())
    quantized(paddle.to_tensor(pictures()))
    return tool.convert(quantized).eval()


DYNAMIC = {
    "QAT": lambda: trained(of_products),
    "QAT of everything": lambda: trained(of_everything),
    "PTQ": lambda: observed(of_products),
    "PTQ of everything": lambda: observed(of_everything),
}


def saved(make: Callable[[], nn.Layer], folder: Path) -> tuple[str, np.ndarray]:
    """Saves a model; returns its results in dynamic mode, where all simulations are right."""
    prefix = str(folder / "model")
    with dynamic_mode():
        layer = make()
        expected = layer(paddle.to_tensor(pictures(9))).numpy()
        paddle.jit.save(layer, prefix, [InputSpec(SHAPE, "float32", "x")])
    return prefix, expected


def check(found, expected):
    assert paddle_ngraph.stats()["engine_runs"] > 0, "the engine did not run"
    assert paddle_ngraph.stats()["native_runs"] == 0
    np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_array_equal(found.argmax(1), expected.argmax(1))


# -- saved from dynamic mode -----------------------------------------------------------------------


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("make", DYNAMIC.values(), ids=DYNAMIC)
def test_executor(tmp_path, make):
    prefix, expected = saved(make, tmp_path)
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()), paddle_ngraph.use_ngraph():
        program, _, fetches = paddle.static.load_inference_model(prefix, executor)
        paddle_ngraph.reset_stats()
        (found,) = executor.run(program, feed={"x": pictures(9)}, fetch_list=fetches)
    check(found, expected)


@pytest.mark.parametrize("make", DYNAMIC.values(), ids=DYNAMIC)
def test_loaded_layer(tmp_path, make):
    prefix, expected = saved(make, tmp_path)
    with dynamic_mode(), paddle_ngraph.use_ngraph():
        layer = paddle.jit.load(prefix)
        paddle_ngraph.reset_stats()
        found = layer(paddle.to_tensor(pictures(9))).numpy()
    check(found, expected)


@pytest.mark.parametrize("step", ["data", "compile", "run"])
@pytest.mark.parametrize("make", DYNAMIC.values(), ids=DYNAMIC)
def test_engine_failures_fall_back(tmp_path, make, step):
    prefix, expected = saved(make, tmp_path)
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()), paddle_ngraph.use_ngraph():
        program, _, fetches = paddle.static.load_inference_model(prefix, executor)
        paddle_ngraph.clear_cache()
        paddle_ngraph.reset_stats()
        _core.fail_at(step)
        try:
            (found,) = executor.run(program, feed={"x": pictures(9)}, fetch_list=fetches)
        finally:
            _core.fail_at("")
            paddle_ngraph.clear_cache()  # else graphs of other tests are on the denylist
    assert paddle_ngraph.stats()["native_runs"] > 0
    assert paddle_ngraph.stats()["engine_runs"] == 0
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# -- kernels ---------------------------------------------------------------------------------------


def requests(run, scope, feed):
    """Returns the requests of a program's functions."""
    with paddle.static.scope_guard(scope):
        found = functions.functions(run, scope, feed, constant_weights=True)
    return [function.request(PERF_COUNT="YES") for function in found]


def kernels(run, scope, feed):
    """Returns OpenVINO's kernel names for the layers of a program's functions."""
    found = requests(run, scope, feed)
    for request in found:
        request.infer()
    infos = [info for request in found for info in request.profiling_info]
    return [info.exec_type for info in infos if info.node_type.startswith(LAYERS)]


def results(run, scope, feed):
    """Returns the output types of the layers of a program's functions."""
    nodes = [
        node.get_rt_info()
        for request in requests(run, scope, feed)
        for node in request.get_compiled_model().get_runtime_model().get_ordered_ops()
    ]
    layers = [info for info in nodes if info["layerType"].astype(str).startswith(LAYERS)]
    return [info["outputPrecisions"].astype(str) for info in layers]


def are_int8(names):
    return [name.lower().endswith(("i8", "u8")) for name in names]


@pytest.mark.slow("compiles many or large functions")
@needs_int8
@pytest.mark.parametrize("make", DYNAMIC.values(), ids=DYNAMIC)
def test_layers_have_int8_kernels(tmp_path, make):
    prefix, _ = saved(make, tmp_path)
    executor, scope = paddle.static.Executor(paddle.CPUPlace()), paddle.static.Scope()
    with paddle.static.scope_guard(scope):
        program, _, fetches = paddle.static.load_inference_model(prefix, executor)

    def run(feed):
        return executor.run(program, feed=feed, fetch_list=fetches)

    found = kernels(run, scope, {"x": pictures()})
    assert are_int8(found) == [True] * 5, found


def test_the_simulation_stays_without_int8_units(tmp_path, monkeypatch):
    """Where sums of two products saturate, results still equal Paddle's."""
    monkeypatch.setattr(processor, "has_int8", lambda: False)
    test_executor(tmp_path, DYNAMIC["QAT"])


def parameter(value):
    value = np.asarray(value, "float32")
    given = nn.initializer.Assign(value)
    return paddle.create_parameter(value.shape, "float32", default_initializer=given)


def on_grid(x, scale, round_type=1):
    """Quantizes ``x`` as the simulation of QAT does; the scale is a parameter."""
    name = "fake_quantize_dequantize_moving_average_abs_max"
    given = (parameter([scale]), None, None, 0.9, 8, True, round_type)
    return getattr(paddle._C_ops, name)(x, *given)[0]


def weights(*shape):
    return np.random.default_rng(5).uniform(-0.5, 0.5, shape).astype("float32")


class Small(Program):
    """A small network, run by Paddle and the engine."""

    def kernels(self, **feed):
        def run(feed):
            return self.run(**feed)

        return kernels(run, self.scope, feed)

    def results(self, **feed):
        def run(feed):
            return self.run(**feed)

        return results(run, self.scope, feed)


def assert_off_by_quanta(native, found, usually, most):
    """Exact sums and Paddle's rounded ones may lie on different sides of a boundary."""
    off = np.abs(native - found)
    assert np.median(off) < usually
    assert off.max() < most, "more than a few quanta"


def assert_layers_have(build, x, results):
    """Checks the output dtypes of a network of convolutions, and its results.

    Without AMX the plugin uses u8 instead of i8, with 128 for zero.
    """
    native, found = (Small(build).run(engine=engine, x=x)[0] for engine in (False, True))
    assert_off_by_quanta(native, found, 1e-5, 0.05)
    written = ["i8" if each == "u8" else each for each in Small(build).results(x=x)]
    assert written == results


# Extremes of a grid: 127 and -127 quanta, or -128.
@pytest.mark.parametrize("round_type", [0, 1])
def test_ends_of_a_grid(round_type):
    def build():
        x = paddle.static.data("x", [8, 16], "float32")
        return on_grid(x, 1.0, round_type) @ on_grid(parameter(weights(16, 8)), 0.5, 0)

    x = np.linspace(-3, 3, 8 * 16, dtype="float32").reshape(8, 16)
    Small(build).both(x=x)


@needs_int8
def test_weights_of_several_matmuls_and_a_second_reader():
    """Each matmul quantizes its operand; the other reader gets the same values."""

    def build():
        x = on_grid(paddle.static.data("x", [4, 16], "float32"), 2.0)
        shared = on_grid(parameter(weights(16, 16)), 0.5)
        return x @ shared + paddle.matmul(x, shared, transpose_y=True), x

    program = Small(build)
    x = weights(4, 16)
    program.both(x=x * 4)
    assert are_int8(Small(build).kernels(x=x)) == [True, True]


@needs_int8
def test_weights_off_the_grid_stay_float():
    def build():
        x = on_grid(paddle.static.data("x", [4, 16], "float32"), 2.0)
        return x @ parameter(weights(16, 16))

    Small(build).both(x=weights(4, 16))
    assert are_int8(Small(build).kernels(x=weights(4, 16))) == [False]


POOLINGS = {
    "ResNet's": {"kernel_size": 3, "stride": 2, "padding": 1},
    "rounded up": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    "part of the input": {"kernel_size": 2, "stride": 3},
}


@needs_int8
@pytest.mark.parametrize("round_type", [0, 1])
@pytest.mark.parametrize("pooling", POOLINGS.values(), ids=POOLINGS)
def test_a_pooling_of_integers(pooling, round_type):
    def build():
        x = paddle.static.data("x", [2, 3, 25, 25], "float32")
        for channels, scale in ((3, 2.0), (32, 1.93)):  # 2.0 would round many ties
            filters = on_grid(parameter(weights(32, channels, 3, 3)), 0.5, round_type)
            x = nn.functional.conv2d(on_grid(x, scale, round_type), filters)
            x = nn.functional.max_pool2d(x, **pooling) if channels == 3 else x
        return x

    x = np.random.default_rng(0).normal(size=(2, 3, 25, 25)).astype("float32")
    assert_layers_have(build, x, ["i8", "f32"])


@needs_int8
def test_a_pooling_with_a_second_reader():
    """The second reader needs it in float32, so the value exists already."""

    def build():
        x = on_grid(paddle.static.data("x", [2, 8, 16, 16], "float32"), 2.0)
        filters = on_grid(parameter(weights(8, 8, 1, 1)), 0.5)
        pooled = nn.functional.max_pool2d(nn.functional.conv2d(x, filters), 2)
        return nn.functional.conv2d(on_grid(pooled, 2.0), filters), pooled

    x = np.random.default_rng(0).normal(size=(2, 8, 16, 16)).astype("float32")
    for native, found in zip(*(Small(build).run(engine=e, x=x) for e in (False, True))):
        assert_off_by_quanta(native, found, 1e-4, 0.05)
    assert Small(build).results(x=x) == ["f32", "f32"]


@needs_int8
@pytest.mark.parametrize("fraction", [1, 8])
def test_zero_filters(fraction):
    """Zero filters are common in trained networks; their scale of 0 is no obstacle."""
    filters = weights(16, 8, 3, 3)
    filters[::fraction] = 0
    quantize = paddle._C_ops.fake_channel_wise_quantize_dequantize_abs_max

    def build():
        x = paddle.static.data("x", [4, 8, 16, 16], "float32")
        on_channel_grids, _ = quantize(parameter(filters), 8, 1, 0)
        return nn.functional.conv2d(on_grid(x, 2.0), on_channel_grids)

    x = np.random.default_rng(0).normal(size=(4, 8, 16, 16)).astype("float32")
    Small(build).both(x=x)
    assert are_int8(Small(build).kernels(x=x)) == [True]


@pytest.mark.parametrize("name", ["", "dequantize_"])
@pytest.mark.parametrize("round_type", [0, 1])
@pytest.mark.parametrize("scale", [0.0, 1e-38, 3e38, np.inf])
def test_scales_without_a_grid(scale, round_type, name):
    """Values that Paddle clips to almost 0 are 0; and no grid is infinitely wide."""
    quantize = getattr(paddle._C_ops, f"fake_quantize_{name}moving_average_abs_max")

    def build():
        x = paddle.static.data("x", [4, 16], "float32")
        given = (parameter([scale]), None, None, 0.9, 8, True, round_type)
        rounded = quantize(x, *given)[0]
        return rounded @ on_grid(parameter(weights(16, 8)), 0.5), rounded * 1.0

    Small(build).both(x=weights(4, 16) * 4)


def test_scales_that_are_fed():
    """The scales are no constants: the arithmetic stays."""

    def build():
        x, scale = (paddle.static.data(n, s, "float32") for n, s in [("x", [4, 16]), ("s", [1])])
        name = "fake_quantize_dequantize_moving_average_abs_max"
        given = (scale, None, None, 0.9, 8, True, 1)
        return getattr(paddle._C_ops, name)(x, *given)[0] @ on_grid(parameter(weights(16, 8)), 0.5)

    Small(build).both(x=weights(4, 16) * 4, s=np.float32([1.5]))


@needs_int8
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_ties_go_to_the_even_number(activation):
    """Half of the roundings between two layers are ties: sums have a unit of one half."""
    halves = np.random.default_rng(3).integers(-2, 3, (16, 16, 3, 3)) / 2

    def build():
        x = paddle.static.data("x", [2, 16, 24, 24], "float32")
        for _ in range(2):  # a quantum is 1
            filters = on_grid(parameter(halves), 63.5, 0)
            x = nn.functional.conv2d(on_grid(x, 127.0, 0), filters)
            x = nn.functional.relu(x) if activation == "relu" else x
        return on_grid(x, 127.0, 0)

    x = np.random.default_rng(0).integers(-20, 21, (2, 16, 24, 24)) / 2
    native, found = (Small(build).run(engine=e, x=x.astype("float32"))[0] for e in (False, True))
    np.testing.assert_array_equal(found, native)
    assert are_int8(Small(build).kernels(x=x.astype("float32"))) == [True, True]


@needs_int8
@pytest.mark.parametrize("activation", ["none", "relu", "bias", "reshaped"])
@pytest.mark.parametrize("rows", [1, 4, 7, 8, 32])
def test_consecutive_matmuls_with_a_scale_for_each_channel(rows, activation):
    """The plugin fuses them into one node. All values and sums are exact, so results are, too."""
    draw = np.random.default_rng(rows)
    quantize = paddle._C_ops.fake_channel_wise_quantize_dequantize_abs_max
    sizes = [(32, 16), (16, 24), (24, 10)]
    wholes = [draw.integers(-127, 128, size) for size in sizes]
    for whole in wholes:
        whole[0] = 127  # the scale of a channel is that of its largest value
    factors = [whole * 2.0 ** draw.integers(-9, -6, whole.shape[1]) for whole in wholes]

    def build():
        x = paddle.static.data("x", [rows, 32], "float32")
        for factor in factors:
            x = on_grid(x, 127 / 16, 0) @ quantize(parameter(factor), 8, 1, 1)[0]
            x = nn.functional.relu(x) if activation == "relu" else x
            x = parameter(np.round(factor[0])) + x if activation == "bias" else x
            x = paddle.reshape(x, [-1, x.shape[1]]) if activation == "reshaped" else x
        return x

    x = draw.integers(-150, 151, (rows, 32)).astype("float32") / 16
    Small(build).both(x=x)
    assert are_int8(Small(build).kernels(x=x)) == [True] * 3


@pytest.mark.slow("compiles many or large functions")
@needs_int8
@pytest.mark.parametrize("round_type", [0, 1])
@pytest.mark.parametrize("groups", [1, 64])
def test_a_layer_equals_the_simulation_up_to_rounding(groups, round_type):
    """From one grid to the next few values differ, and then by one quantum."""
    bias = weights(64, 1, 1)

    def build():
        x = on_grid(paddle.static.data("x", [4, 64, 40, 40], "float32"), 2.9, round_type)
        filters = on_grid(parameter(weights(64, 64 // groups, 3, 3)), 0.47, round_type)
        x = nn.functional.conv2d(x, filters, groups=groups) + parameter(bias)
        rounded = on_grid(nn.functional.hardswish(x), 7.3, round_type)
        return nn.functional.conv2d(rounded, on_grid(parameter(np.eye(64)[..., None, None]), 1.0))

    # Integer quanta: one rounding difference would change hundreds of results.
    x = np.random.default_rng(0).integers(-127, 128, (4, 64, 40, 40)) * (2.9 / 127)
    x = x.astype("float32")
    native, found = (Small(build).run(engine=engine, x=x)[0] for engine in (False, True))
    off = np.abs(np.rint(native * (127 / 7.3)) - np.rint(found * (127 / 7.3)))
    assert off.max() <= 1 and np.mean(off) < 5e-5
    assert are_int8(Small(build).kernels(x=x)) == [True, True]


def convolutions():
    x = paddle.static.data("x", [-1, 3, 56, 56], "float32")
    for channels in (3, 32):
        filters = on_grid(parameter(weights(32, channels, 3, 3) / 8), 0.0625)
        x = nn.functional.relu(nn.functional.conv2d(on_grid(x, 2.0), filters, padding=1))
    return x


def test_many_shapes():
    program = Small(convolutions)
    for batch in (1, 2, 3, 4, 5):
        x = np.random.default_rng(batch).normal(size=(batch, 3, 56, 56)).astype("float32")
        native, found = (program.run(engine=engine, x=x)[0] for engine in (False, True))
        assert_off_by_quanta(native, found, 1e-5, 0.01)


@needs_int8
def test_a_split_batch():
    x = np.random.default_rng(0).normal(size=(4, 3, 56, 56)).astype("float32")
    assert are_int8(Small(convolutions).kernels(x=x)) == [True, True]


ACTIVATIONS = {
    "relu": nn.functional.relu,
    "relu6": nn.functional.relu6,
    "hardtanh": lambda x: nn.functional.hardtanh(x, -0.25, 3.0),
    "hardswish": nn.functional.hardswish,
    "none": lambda x: x,
}


@needs_int8
@pytest.mark.parametrize("round_type", [0, 1])
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_convolutions_round_their_results(activation, round_type):
    """No separate pass over the values between two convolutions, as in MobileNet."""

    def build():
        x = paddle.static.data("x", [2, 3, 56, 56], "float32")
        for shape in ((32, 3, 3, 3), (32, 1, 3, 3), (64, 32, 1, 1)):
            filters = on_grid(parameter(weights(*shape)), 0.5, round_type)
            groups = 32 if shape[1] == 1 else 1
            x = nn.functional.conv2d(on_grid(x, 2.0, round_type), filters, groups=groups)
            x = activation(x)
        return x

    x = np.random.default_rng(0).normal(size=(2, 3, 56, 56)).astype("float32")
    assert_layers_have(build, x, ["i8", "i8", "f32"])


# -- saved by Paddle's static tools ----------------------------------------------------------------


@pytest.fixture(scope="module", params=[True, False], ids=["in pairs", "products"])
def old_model(request, tmp_path_factory):
    """The program of a quantized ProgramDesc model."""
    folder = tmp_path_factory.mktemp("int8")
    paddle.enable_static()
    with paddle.pir_utils.OldIrGuard():
        paddle.disable_static()
        paddle.jit.save(network(), str(folder / "model"), [InputSpec([-1, *SHAPE[1:]], name="x")])
        paddle.enable_static()
    feeds = [{"x": pictures(seed)} for seed in range(3)]
    return quantizing.post_training(
        folder / "model.pdmodel", feeds, folder / "quantized", in_pairs=request.param
    )


class Old:
    """A quantized ProgramDesc model, loaded."""

    def __init__(self, program):
        self.executor, self.scope = paddle.static.Executor(paddle.CPUPlace()), paddle.static.Scope()
        parameters = program.with_suffix(".pdiparams").name
        names = {"model_filename": program.name, "params_filename": parameters}
        with paddle.pir_utils.OldIrGuard(), paddle.static.scope_guard(self.scope):
            self.program, _, self.fetches = paddle.static.load_inference_model(
                str(program.parent), self.executor, **names
            )

    def run(self, feed, engine=True):
        """Runs the model once, by the engine or by Paddle."""
        with (
            paddle.pir_utils.OldIrGuard(),
            paddle.static.scope_guard(self.scope),
            paddle_ngraph.use_ngraph(engine),
        ):
            paddle_ngraph.reset_stats()
            return self.executor.run(self.program, feed=feed, fetch_list=self.fetches)


@pytest.mark.slow("compiles many or large functions")
def test_program_desc_executor(old_model):
    model, feed = Old(old_model), {"x": pictures(9)}
    (expected,) = model.run(feed, engine=False)
    check(model.run(feed)[0], expected)


@needs_int8
def test_program_desc_layers_have_int8_kernels(old_model):
    model = Old(old_model)
    found = kernels(model.run, model.scope, {"x": pictures()})
    assert are_int8(found) == [True] * 5, found


def predicted(program):
    config = Config(str(program), str(program.with_suffix(".pdiparams")))
    config.disable_glog_info()
    config.disable_mkldnn()
    predictor = create_predictor(config)
    (name,) = predictor.get_input_names()
    predictor.get_input_handle(name).copy_from_cpu(pictures(9))
    predictor.run()
    (name,) = predictor.get_output_names()
    return predictor.get_output_handle(name).copy_to_cpu()


def test_predictor(old_model):
    (expected,) = Old(old_model).run({"x": pictures(9)}, engine=False)
    with paddle_ngraph.use_ngraph():
        found = predicted(old_model)
    check(found, expected)


def test_predictor_of_pir(tmp_path):
    prefix, expected = saved(DYNAMIC["QAT"], tmp_path)
    with paddle_ngraph.use_ngraph():
        found = predicted(Path(f"{prefix}.json"))
    check(found, expected)
