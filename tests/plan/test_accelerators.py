"""GPUs and NPUs: operators placed there are compiled for that device, and fall back to Paddle.

No machine with such a device runs these tests. OpenVINO's plugin for several devices, given the CPU
alone, is the placeholder: the plugin compiles for another device string, and ignores the engine's
settings for CPUs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import NgraphError, _core, flags
from paddle_ngraph.codegen.statements import cpp_program_of
from paddle_ngraph.conversion import accelerators, build, disk_cache
from paddle_ngraph.conversion.accelerators import Accelerator
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.ir.graph import Graph, TensorSpec, device_of, is_accelerator
from paddle_ngraph.plan.data_dependency_engine import schedule_of
from tests.conversion.test_optimizer_updates import variable
from tests.plan.networks import WIDTH, Planned, data, tower, training, two_towers
from tests.programs import Program, floats

pytestmark = [
    pytest.mark.usefixtures("small_intervals_pay"),
    pytest.mark.filterwarnings("ignore:.*from now on"),
]

PLACEHOLDER = "HETERO:CPU"
NOWHERE = "HETERO:NOWHERE"
Built = list["tuple[str, set[str]]"]


def set_devices(monkeypatch: pytest.MonkeyPatch, **devices: Accelerator) -> None:
    monkeypatch.setattr(accelerators, "available", lambda: devices)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one GPU, and one NPU, which has no float32."""
    set_devices(
        monkeypatch,
        GPU=Accelerator(PLACEHOLDER, "a placeholder"),
        NPU=Accelerator(PLACEHOLDER, "another", has_float32=False),
    )


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Built]:
    """The functions of a test: OpenVINO's name of the device, and the types of nodes."""
    found: Built = []
    original = build.build_model

    def listed(*arguments: Any) -> build.BuiltModel:
        built = original(*arguments)
        types = {node.get_type_name() for node in built.model.get_ordered_ops()}
        found.append((built.device, types))
        return built

    monkeypatch.setattr(build, "build_model", listed)
    paddle_ngraph.clear_cache()
    yield found
    paddle_ngraph.clear_cache()


def of_device(compiled: Built) -> list[set[str]]:
    """The functions compiled for the placeholder; asserts that none uses engine operators."""
    found = [types for device, types in compiled if device == PLACEHOLDER]
    assert not set().union(*found) & set(_core.extension_op_names())
    return found


def native_runs() -> int:
    return paddle_ngraph.stats()["native_runs"]


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.slow("compiles many or large functions")
def test_devices_are_listed():
    assert paddle_ngraph.devices()[-3:] == ["GPU", "NPU", "native"]


@pytest.mark.parametrize("name", ["GPU.1", "gpu", "GPU:0", "GPU ", "XPU", "GPU\n"])
def test_an_unknown_device_is_an_error_that_lists_those_there_are(name):
    with pytest.raises(NgraphError, match=r"take CPU, .*, GPU, NPU, or native") as error:
        paddle_ngraph.execution_plan(Program(two_towers).main, [name])
    assert repr(name) in str(error.value)


def test_which_names_are_those_of_such_devices():
    assert all(map(is_accelerator, ("GPU", "GPU.0", "GPU.1", "NPU")))
    assert not any(map(is_accelerator, ("CPU", "CPU:0", "CPU:one-of-2", "native", "link", "")))


@pytest.mark.slow("starts a process")
def test_devices_of_openvino_are_queried_once_and_on_demand():
    """OpenVINO finds none here, or the installed ones; a plugin without its driver does no harm."""
    script = """
import os, paddle, paddle_ngraph
from paddle_ngraph.conversion import accelerators
paddle.enable_static()
with paddle_ngraph.use_ngraph():
    main = paddle.static.default_main_program()
    result = paddle.exp(paddle.static.data("x", [2], "float32")) * 2
    core = min(os.sched_getaffinity(0))
    plan = paddle_ngraph.execution_plan(main, [f"CPU:{core}"], [result])
    print(plan)
assert accelerators.available.cache_info().currsize == 0, "queried without need"
first = paddle_ngraph.devices()
assert first[0] == "CPU" and first[-1] == "native" and paddle_ngraph.devices() == first
assert set(accelerators.available()) <= set(first)
assert accelerators.available.cache_info().misses == 1
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)


def test_properties_of_devices(monkeypatch):
    class Core:
        available_devices = ("CPU", "GPU.0", "GPU.1", "NPU")
        properties = (
            ("GPU.0", "FULL_DEVICE_NAME", "Arc"),
            ("GPU.0", "GPU_DRIVER_VERSION", "1.2"),
            ("GPU.0", "OPTIMIZATION_CAPABILITIES", ["FP32", "FP16"]),
            ("NPU", "OPTIMIZATION_CAPABILITIES", ["FP16", "INT8"]),
        )

        def get_property(self, device: str, key: str) -> Any:
            for name, known, value in self.properties:
                if (name, known) == (device, key):
                    return value
            raise RuntimeError("Property was not found")

    monkeypatch.undo()
    monkeypatch.setattr(accelerators, "core", Core)
    found = accelerators.available.__wrapped__()
    assert list(found) == ["GPU.0", "GPU.1", "NPU"]
    assert [each.has_float32 for each in found.values()] == [True, False, False]
    assert "Arc" in found["GPU.0"].identity and "1.2" in found["GPU.0"].identity
    assert len({each.identity for each in found.values()}) == 3


# -- results ---------------------------------------------------------------------------------------


def pictures() -> list[Any]:
    x = paddle.static.data("x", [2, 3, 17, 17], "float32")
    norm = nn.BatchNorm2D(8)
    norm.eval()
    hidden = F.relu(norm(nn.Conv2D(3, 8, 3, padding=1)(x)))
    hidden = F.max_pool2d(hidden, 3, 2, 1)
    hidden = F.hardswish(nn.Conv2D(8, 8, 3, groups=8, bias_attr=False)(hidden))
    pooled = [
        F.max_pool2d(hidden, 3, 2, 0, ceil_mode=True),
        F.avg_pool2d(hidden, 3, 2, 1),
        F.adaptive_avg_pool2d(hidden, 3),
        F.interpolate(hidden, [9, 9], mode="bilinear"),
    ]
    hidden = paddle.flatten(F.adaptive_avg_pool2d(hidden, 1), 1)
    return [F.softmax(nn.Linear(8, 20)(hidden)), *pooled]


def volumes() -> list[Any]:
    x = paddle.static.data("x", [2, 3, 6, 7, 8], "float32")
    hidden = nn.Conv3D(3, 4, 3)(x)
    return [F.max_pool3d(hidden, 2, 2, 0, ceil_mode=True), F.adaptive_avg_pool3d(hidden, 3)]


def normalizations() -> list[Any]:
    x = paddle.static.data("x", [2, 8, 5, 4], "float32")
    norms = [nn.GroupNorm(2, 8), nn.InstanceNorm2D(8), nn.LayerNorm(4)]
    return [*(norm(x) for norm in norms), F.log_softmax(x, 1), F.gelu(x), paddle.std(x, [1, 2])]


def sentences() -> list[Any]:
    """A layer of a Transformer, on embeddings of ids."""
    x = paddle.static.data("x", [2, 6], "int64")
    hidden = nn.Embedding(30, WIDTH)(x) + nn.Embedding(6, WIDTH)(paddle.arange(6))
    query, key, value = (nn.Linear(WIDTH, WIDTH)(hidden) for _ in range(3))
    weights = F.softmax(paddle.matmul(query, key, transpose_y=True) / 4.0)
    hidden = nn.LayerNorm(WIDTH)(hidden + paddle.matmul(weights, value))
    return [F.gelu(nn.Linear(WIDTH, 40)(hidden))]


IDS = np.arange(12).reshape(2, 6) % 30


@pytest.mark.parametrize(
    ("network", "x"),
    [
        (two_towers, floats(4, WIDTH)),
        (pictures, floats(2, 3, 17, 17)),
        (volumes, floats(2, 3, 6, 7, 8)),
        (normalizations, floats(2, 8, 5, 4)),
        (sentences, IDS),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_inference_is_that_of_native_paddle(compiled, network, x):
    planned = Planned(network, "GPU")
    assert {op.device for op in planned.plan.operators} == {"GPU"}, str(planned.plan)
    for _ in range(3):
        planned.both(x=x)
    assert len(of_device(compiled)) == len(compiled) == 1
    assert native_runs() == 0


def test_maxima_of_the_lowest_numbers(compiled):
    x = np.full((2, 3, 17, 17), -np.inf, "float32")
    x[0, 0] = np.finfo("float32").min

    def network() -> list[Any]:
        return [F.max_pool2d(paddle.static.data("x", x.shape, "float32"), 3, 2, 1)]

    Planned(network, "GPU").both(x=x)
    assert of_device(compiled)


@pytest.mark.slow("compiles many or large functions")
def test_a_gpu_beside_core_groups(compiled, planned_runs):
    planned = Planned(two_towers, ["CPU:0", "GPU"])
    planned.plan.place("linear_0.*", "GPU").place("linear_3.*", "CPU:0-1")
    for step in range(3):
        planned.both(x=floats(4, WIDTH, seed=step))
    assert of_device(compiled) and {device for device, _ in compiled} == {"", PLACEHOLDER}
    assert len(planned_runs) == 3


@pytest.mark.slow("compiles many or large functions")
def test_each_shape_has_a_function_of_its_own(compiled):
    planned = Planned(two_towers, "GPU")
    for size in (1, 2, 3, 4, 5, 2):
        planned.both(x=floats(size, WIDTH))
    assert len(of_device(compiled)) == 5


def test_the_batch_is_not_split(compiled):
    def network() -> list[Any]:
        hidden = paddle.static.data("x", [8, 3, 64, 64], "float32")
        for channels in (3, 32, 32):
            hidden = F.relu(nn.Conv2D(channels, 32, 3, padding=1)(hidden))
        return [paddle.mean(hidden, [2, 3])]

    Planned(network, "GPU").both(x=floats(8, 3, 64, 64))
    assert len(of_device(compiled)) == 1


def in_two_places() -> list[Any]:
    with paddle_ngraph.device("CPU:0"):
        first = tower(data())
    with paddle_ngraph.device("GPU"):
        second = tower(paddle_ngraph.copy(first, "GPU"))
    with paddle_ngraph.device("CPU:1"):
        return [F.sigmoid(second), first]


def test_plans_print_copies():
    planned = Planned(in_two_places)
    copies = [(op.copied_from, op.device) for op in planned.plan.operators if op.copied_from]
    assert copies == [("CPU:0", "GPU"), ("GPU", "CPU:1")]
    assert "GPU -> CPU:1" in str(planned.plan) and "CPU:0 -> GPU" in str(planned.plan)
    assert "interval 1 on GPU" in str(planned.plan) and "copy GPU to CPU:1" in planned.plan.to_dot()
    planned.both(x=floats(4, WIDTH))


def test_devices_survive_clones():
    planned = Planned(in_two_places)
    copy = planned.plan.program.clone()
    graphs = [op.attrs()["graph"] for op in copy.global_block().ops if "ngraph_engine" in op.name()]
    assert sorted(map(device_of, graphs)) == ["CPU", "CPU", "GPU"]


def test_a_project_in_cpp_has_cpus_only():
    planned = Planned(lookup, "GPU").plan
    project = cpp_program_of(planned.program, [("found", planned.fetches[0])])
    (interval,) = project.intervals
    assert device_of(interval.text) == interval.graph.compiled_for == "CPU"


# -- training --------------------------------------------------------------------------------------


def normalized_training() -> list[Any]:
    """Training, which uses the engine's own operators on a CPU."""
    x = paddle.static.data("x", [4, 3, 8, 8], "float32")
    hidden = nn.BatchNorm2D(16)(nn.Conv2D(3, 16, 3)(x))
    hidden = nn.LayerNorm(16)(paddle.mean(F.relu(hidden), [2, 3]))
    weights = F.softmax(nn.Linear(16, 16)(hidden))
    loss = paddle.mean((hidden * weights) ** 2)
    paddle.optimizer.Momentum(0.1, parameters=None).minimize(loss)
    return [loss, weights]


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize(
    ("network", "shape"),
    [(training, (8, WIDTH)), (normalized_training, (4, 3, 8, 8))],
    ids=["towers", "normalized"],
)
@pytest.mark.parametrize("defaults", [["GPU"], ["CPU:0", "GPU"], ["GPU", "CPU:1"]])
def test_training_computes_gradients_there_and_updates_on_the_cpu(
    compiled, network, shape, defaults
):
    planned = Planned(network, defaults)
    for kind in ("matmul", "add", "relu", "mean"):
        planned.plan.place(kind, "GPU")
    placed = {op.type: op.device for op in planned.plan.operators}
    host = next((device for device in defaults if device != "GPU"), "CPU")
    updates = [op for op in planned.plan.operators if op.type in ("pd_op.adam_", "pd_op.momentum_")]
    assert {op.device for op in updates} == {host} and len(updates) > 4
    assert placed["pd_op.matmul_grad"] == "GPU", str(planned.plan)
    for step in range(5):
        planned.both(x=floats(*shape, seed=step))
    assert of_device(compiled) and native_runs() == 0
    for name in planned.native.main.state_dict("all", planned.native.scope):
        expected, found = planned.native.variable(name), planned.engine.variable(name)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5, err_msg=name)


def test_updates_that_a_rule_places_there_are_on_the_cpu_too():
    plan = Planned(training, "CPU:2").plan.place("adam_", "GPU")
    assert {op.device for op in plan.operators if op.type == "pd_op.adam_"} == {"CPU:2"}


def test_gradients_are_added_up_there(compiled):
    """In place, after the run; none is pinned, since the device has its own memory."""

    def network() -> list[Any]:
        x = paddle.static.data("x", [8, 256], "float32")
        total, loss = variable("total", [256, 256]), paddle.mean(x)
        paddle._C_ops.add_(total, paddle.matmul(x, paddle.tanh(x), transpose_x=True))
        return [loss]

    planned = Planned(network, ["GPU"])
    before = paddle_ngraph.stats()
    for step in range(3):
        planned.both(x=floats(8, 256, seed=step))
    after = paddle_ngraph.stats()
    assert of_device(compiled) and after["native_runs"] == before["native_runs"]
    assert after["gradients_held"] == before["gradients_held"]
    expected, found = planned.native.variable("total"), planned.engine.variable("total")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow("draws many programs")
@pytest.mark.usefixtures("native_in_order")
def test_random_numbers_are_sampled_on_the_host(compiled):
    planned = Planned(lambda: training(0.3), ["GPU", "CPU:0"])
    for step in range(3):
        planned.both(seed=step, x=floats(8, WIDTH, seed=step))
    assert of_device(compiled)


# -- unsupported operators -------------------------------------------------------------------------


def test_operators_of_the_engines_core_fall_back():
    def network() -> list[Any]:
        hidden = tower(paddle.static.data("x", [4, WIDTH], "float32"))
        return [paddle.remainder(hidden, paddle.abs(hidden) + 2.0), tower(hidden)]

    planned = Planned(network, "GPU")
    assert {op.type for op in planned.plan.operators if op.device == "native"} == {
        "pd_op.remainder"
    }
    assert "GPU has no Remainder" in str(planned.plan)
    planned.both(x=floats(4, WIDTH))
    # On CPUs the operator is supported.
    assert {op.device for op in Planned(network, "CPU").plan.operators} == {"CPU"}


def lookup() -> list[Any]:
    ids = paddle.static.data("x", [-1, 3], "int64")
    return [tower(nn.Embedding(10, WIDTH)(paddle.reshape(ids, [3, -1])))]


def ids_with(value: int) -> np.ndarray:
    return np.array([[0, 1, 2], [3, value, 5]])


def padded() -> list[Any]:
    ids = paddle.static.data("x", [-1, 3], "int64")
    return [nn.Embedding(10, WIDTH, padding_idx=2)(ids)]


def test_padding_is_looked_up_as_zeros(compiled):
    (found,) = Planned(padded, "GPU").both(x=ids_with(4))
    assert of_device(compiled) and not found[0, 2].any()


def test_positions_out_of_range_are_refused_as_by_native_paddle(compiled):
    planned = Planned(lookup, "GPU")
    planned.both(x=ids_with(4))
    for bad in (10, 2**31 - 1, 2**32 + 1, -(2**40)):
        with pytest.raises(ValueError, match="expected"):
            planned.native.run(engine=False, x=ids_with(bad))
        with pytest.raises(ValueError, match="expected"):
            planned.run(x=ids_with(bad))
    before = native_runs()
    planned.both(x=ids_with(4))
    assert native_runs() == before and len(of_device(compiled)) == 1


def test_positions_that_are_computed_are_native():
    def network() -> list[Any]:
        ids = paddle.argmax(tower(paddle.static.data("x", [4, WIDTH], "float32")), 1)
        return [tower(nn.Embedding(WIDTH, WIDTH)(ids))]

    planned = Planned(network, "GPU")
    (lookup,) = (op for op in planned.plan.operators if op.type == "pd_op.embedding")
    assert lookup.device == "native" and "computed" in lookup.reason
    planned.both(x=floats(4, WIDTH))


def test_data_dependent_shapes_fall_back():
    def network() -> list[Any]:
        x = paddle.static.data("x", [4, WIDTH], "float32")
        return [paddle.masked_select(tower(x), x > 0)]

    Planned(network, "CPU").both(x=floats(4, WIDTH))
    planned = Planned(network, "GPU")
    expected = planned.native.run(engine=False, x=floats(4, WIDTH))
    for one, other in zip(expected, planned.run(x=floats(4, WIDTH))):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-6)


def test_bfloat16_tensors_are_native():
    def network() -> list[Any]:
        x = paddle.static.data("x", [4, WIDTH], "float32")
        return [paddle.cast(paddle.cast(x, "bfloat16"), "float32")]

    planned = Planned(network, "GPU")
    assert {op.device for op in planned.plan.operators} == {"native"}
    assert "bfloat16" in str(planned.plan)


# -- failures of the device ------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is there, but nothing can be compiled for it."""
    set_devices(monkeypatch, GPU=Accelerator(NOWHERE, "broken"))


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("network", [two_towers, training], ids=["inference", "training"])
@pytest.mark.usefixtures("broken")
def test_subgraphs_that_do_not_compile_fall_back(compiled, network):
    planned = Planned(network, ["CPU:0", "GPU"])
    planned.plan.place("linear_0.*", "GPU")
    for step in range(4):
        planned.both(x=floats(4, WIDTH, seed=step))
    assert {device for device, _ in compiled} == {"", NOWHERE}
    intervals = len({op.interval for op in planned.plan.operators if op.device == "GPU"})
    assert native_runs() == 4 * intervals > 0
    assert sum(device == NOWHERE for device, _ in compiled) == intervals, "it was tried again"


@pytest.mark.usefixtures("broken")
def test_one_warning_and_explain_give_the_reason():
    planned = Planned(two_towers, "GPU")
    with pytest.warns(UserWarning, match="from now on") as caught:
        for _ in range(3):
            planned.run(x=floats(4, WIDTH))
    assert len([each for each in caught if "from now on" in str(each.message)]) == 1
    again = paddle_ngraph.execution_plan(planned.engine.main, ["GPU"], planned.engine.fetches)
    assert {op.device for op in again.operators} == {"native"}
    assert "could not compile" in str(again)
    # Core groups are not to blame.
    other = paddle_ngraph.execution_plan(planned.engine.main, ["CPU:0"], planned.engine.fetches)
    assert {op.device for op in other.operators} == {"CPU:0"}


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("network", [two_towers, training], ids=["inference", "training"])
@pytest.mark.parametrize("step", ["compile", "run", "allocate"])
def test_failed_runs_fall_back(network, step):
    planned = Planned(network, "GPU")
    expected = [planned.native.run(engine=False, x=floats(4, WIDTH, seed=n)) for n in range(3)]
    _core.fail_at(step)
    try:
        found = [planned.run(x=floats(4, WIDTH, seed=n)) for n in range(2)]
    finally:
        _core.fail_at("")
    found.append(planned.run(x=floats(4, WIDTH, seed=2)))
    assert native_runs() > 0
    for run, native in zip(found, expected):
        for one, other in zip(run, native):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_a_device_that_is_gone(monkeypatch):
    """As where a program that was planned elsewhere is run here."""
    planned = Planned(two_towers, "GPU")
    expected = planned.native.run(engine=False, x=floats(4, WIDTH))
    assert {op.device for op in planned.plan.operators} == {"GPU"}
    set_devices(monkeypatch)
    with pytest.warns(UserWarning, match="there is no device GPU here: only the CPU"):
        found = planned.run(x=floats(4, WIDTH))
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


# -- float16 ---------------------------------------------------------------------------------------


@pytest.fixture
def float16() -> Iterator[None]:
    flags.set("ngraph_precision", "f16")
    yield
    flags.set("ngraph_precision", "f32")


def graph_on(device: str, weights: Sequence[int] = ()) -> str:
    inputs = [TensorSpec(number, "float32", (2,)) for number in weights]
    return Graph([], inputs, [], [], [], weights=list(weights), device=device).to_string()


def test_a_device_without_float32_is_asked_for_by_a_flag():
    with pytest.raises(NgraphError, match=r"NPU computes in float16.*FLAGS_ngraph_precision=f16"):
        paddle_ngraph.execution_plan(Program(two_towers).main, ["NPU"])


@pytest.mark.usefixtures("float16")
def test_float16_is_for_inference_on_such_devices(compiled):
    assert RunSettings.of(graph_on("GPU", weights=[0])).precision == "f16"
    assert RunSettings.of(graph_on("GPU", weights=[])).precision == "f32"
    assert RunSettings.of(graph_on("CPU:0", weights=[0])).precision == "f32"
    planned = Planned(two_towers, "NPU")
    expected = planned.native.run(engine=False, x=floats(4, WIDTH))
    for one, other in zip(planned.run(x=floats(4, WIDTH)), expected):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-2)
    assert of_device(compiled)


@pytest.mark.slow("trains through many compiles")
@pytest.mark.usefixtures("float16")
def test_training_does_not_go_where_there_is_no_float32():
    planned = Planned(training, "NPU")
    before = native_runs()
    planned.both(x=floats(8, WIDTH))
    assert native_runs() > before, "the updates run on the CPU, all else natively"


def test_bfloat16_is_for_cpus():
    flags.set("ngraph_precision", "bf16")
    try:
        assert RunSettings.of(graph_on("GPU")) == RunSettings("f32", device="GPU")
    finally:
        flags.set("ngraph_precision", "f32")


# -- concurrency -----------------------------------------------------------------------------------


def test_a_gpu_uses_no_core_and_runs_one_subgraph_at_a_time():
    planned = Planned(in_two_places, "CPU")
    schedule = schedule_of(planned.plan.program)
    assert schedule is not None
    devices = [Graph.from_string(step.node.graph).device for step in schedule.steps]
    groups = {device: step.groups for device, step in zip(devices, schedule.steps)}
    assert groups["CPU:0"] == [frozenset({0})]
    assert groups["GPU"][0].isdisjoint({0, 1, 2, 3}) and len(groups["GPU"][0]) == 1


def test_two_gpus_do_not_wait_for_each_other(monkeypatch):
    placeholder = Accelerator(PLACEHOLDER, "a placeholder")
    set_devices(monkeypatch, **{"GPU.0": placeholder, "GPU.1": placeholder})
    planned = Planned(two_towers, ["GPU.0", "GPU.1"])
    planned.plan.place("linear_0.*", "GPU.0").place("linear_3.*", "GPU.1")
    schedule = schedule_of(planned.plan.program)
    assert schedule is not None
    groups = {step.groups[0] for step in schedule.steps}
    assert len(groups) == 2 and not frozenset.intersection(*groups)
    planned.both(x=floats(4, WIDTH))


# -- on disk ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, small_intervals_pay: None) -> Iterator[Path]:
    before = flags.get("ngraph_cache_min_ms")
    flags.set("ngraph_cache_dir", str(tmp_path / "cache"))
    flags.set("ngraph_cache_min_ms", 0)
    yield tmp_path / "cache"
    flags.set("ngraph_cache_min_ms", before)
    flags.set("ngraph_cache_dir", "")


@pytest.mark.slow("compiles many or large functions")
def test_functions_are_found_on_disk_by_device_and_driver(folder, compiled, monkeypatch):
    def run(device: str) -> tuple[int, int]:
        paddle_ngraph.clear_cache()
        paddle_ngraph.reset_stats()
        Planned(lookup, device).both(x=ids_with(4))
        stats = paddle_ngraph.stats()
        assert stats["native_runs"] == 0
        return stats["functions_built"], stats["functions_loaded"]

    assert run("GPU") == (1, 0)
    assert run("GPU") == (0, 1)
    assert run("CPU") == (1, 0), "a function of another device"
    assert len(of_device(compiled)) == 1
    set_devices(monkeypatch, GPU=Accelerator(PLACEHOLDER, "another driver"))
    assert run("GPU") == (1, 0)
    set_devices(monkeypatch)
    assert disk_cache.build_environment(graph_on("GPU"), "f32", "as given", 1) == ""


def test_loaded_functions_check_indices(folder):
    planned = Planned(lookup, "GPU")
    planned.both(x=ids_with(4))
    paddle_ngraph.clear_cache()
    planned.both(x=ids_with(4))
    assert paddle_ngraph.stats()["functions_loaded"] == 1
    with pytest.raises(ValueError, match="expected"):
        planned.run(x=ids_with(10))
    planned.both(x=ids_with(4))
    assert paddle_ngraph.stats()["native_runs"] == 0, "Paddle raises, and has not run it"
