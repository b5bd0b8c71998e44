"""Writes to parameters of a layer take effect in the next evaluation."""

from __future__ import annotations

import ctypes
import gc
import re
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec
from paddle_ngraph.paddle_private import replaced
from tests.core.test_engine import sgd_graph
from tests.dynamic import floats, made
from tests.jobs import free_port, new_group

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

SIZE = 60
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "Momentum": {},
    "Momentum of several": {"use_multi_tensor": True},
    "Adam": {},
    "Adam of several": {"use_multi_tensor": True},
    "AdamW": {},
    "Adagrad": {},
    "Adadelta": {},
    "Adamax": {},
    "ASGD": {},
    "Lamb": {},
    "NAdam": {},
    "RAdam": {},
    "RMSProp": {},
    "Rprop": {},
}
CPU = paddle.CPUPlace()


class Model:
    """A layer in evaluation whose function keeps its weights as constants, in steady state."""

    def __init__(self, name: str) -> None:
        # Records about weights are kept by graph: each test has its own.
        self.shift = float(zlib.crc32(name.encode()) % 1_000_003)
        self.layer = made(self.build)
        self.layer.eval()
        self.network = paddle.jit.to_static(self.layer, full_graph=True)
        self.x = floats(4, 1, 6, 6)
        self.kept: list[Any] = []
        before = paddle_ngraph.stats()["functions_with_weights"]
        for _ in range(2):
            self.run()
        assert paddle_ngraph.stats()["functions_with_weights"] == before + 1

    def build(self) -> Any:
        return nn.Sequential(
            nn.Conv2D(1, 3, 3),
            nn.BatchNorm2D(3),
            nn.Flatten(),
            nn.Linear(48, SIZE),
            nn.LeakyReLU(1.0 / (2.0 + self.shift)),
        )

    @property
    def weight(self) -> Any:
        return self.layer[3].weight

    def run(self) -> np.ndarray:
        """A run of the engine, then a native one, which is equal."""
        before = paddle_ngraph.stats()["engine_runs"]
        with paddle.no_grad():
            with paddle_ngraph.use_ngraph():
                result = self.network(self.x).numpy()
            assert paddle_ngraph.stats()["engine_runs"] == before + 1, "the engine did not run"
            native = self.network(self.x).numpy()
        np.testing.assert_allclose(result, native, rtol=1e-4, atol=1e-4)
        return result

    def train(self, optimizer: Any = None) -> None:
        """One step in dynamic mode."""
        self.layer.train()
        paddle.jit.enable_to_static(False)
        try:
            self.layer(self.x).square().mean().backward()
        finally:
            paddle.jit.enable_to_static(True)
        if optimizer is not None:
            optimizer.step()
        self.layer.eval()


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.node.name)


def others() -> Any:
    return floats(48, SIZE, seed=7)


def set_value(model: Model, _: Path) -> None:
    model.weight.set_value(others().numpy())


def set_state_dict(model: Model, _: Path) -> None:
    model.layer.set_state_dict({k: v + 0.3 for k, v in model.layer.state_dict().items()})


def load(model: Model, folder: Path) -> None:
    changed = {k: v * 1.5 + 0.1 for k, v in model.layer.state_dict().items()}
    paddle.save(changed, str(folder / "state"))
    model.layer.set_state_dict(paddle.load(str(folder / "state")))


def item(model: Model, _: Path) -> None:
    model.weight[0, 0] = 500.0


def rows(model: Model, _: Path) -> None:
    model.weight[1:3] = others()[1:3] + 5.0


def add_(model: Model, _: Path) -> None:
    model.weight.add_(others())


def subtract_(model: Model, _: Path) -> None:
    model.weight.subtract_(others())


def scale_(model: Model, _: Path) -> None:
    model.weight.scale_(0.25)


def zero_(model: Model, _: Path) -> None:
    model.weight.zero_()


def fill_(model: Model, _: Path) -> None:
    model.weight.fill_(0.5)


def uniform_(model: Model, _: Path) -> None:
    model.weight.uniform_()


def normal_(model: Model, _: Path) -> None:
    model.weight.normal_()


def exponential_(model: Model, _: Path) -> None:
    model.weight.exponential_()


def assign(model: Model, _: Path) -> None:
    paddle.assign(others(), output=model.weight)


def copy_(model: Model, _: Path) -> None:
    model.weight.copy_(others(), True)


def get_tensor(model: Model, _: Path) -> None:
    model.weight.get_tensor().set(others().numpy(), CPU)


def value_get_tensor(model: Model, _: Path) -> None:
    model.weight.value().get_tensor().set(others().numpy(), CPU)


def share_buffer_to(model: Model, _: Path) -> None:
    others()._share_buffer_to(model.weight)


def share_underline_tensor_to(model: Model, _: Path) -> None:
    others()._share_underline_tensor_to(model.weight)


def data(model: Model, _: Path) -> None:
    model.weight.data = others()


def detached(model: Model, _: Path) -> None:
    model.weight.detach().add_(others())


def reshaped(model: Model, _: Path) -> None:
    model.weight.reshape([-1]).add_(others().reshape([-1]))


def another_parameter(model: Model, _: Path) -> None:
    model.layer[3].weight = model.layer[3].create_parameter([48, SIZE])
    model.network = paddle.jit.to_static(model.layer, full_graph=True)


def dlpack(model: Model, _: Path) -> None:
    paddle.utils.dlpack.from_dlpack(paddle.utils.dlpack.to_dlpack(model.weight.detach())).zero_()


def scope(model: Model, _: Path) -> None:
    """A static program that runs on the parameter's memory."""
    main, place = paddle.static.Program(), paddle.static.Scope()
    place.var("shared").get_tensor()._share_data_with(model.weight.get_tensor())
    paddle.enable_static()
    try:
        with paddle.static.program_guard(main):
            shared = paddle.static.data("shared", [48, SIZE])
            shared.persistable = True
            paddle.assign(shared * 3.0, output=shared)
        with paddle.static.scope_guard(place):
            feed = {"shared": place.find_var("shared").get_tensor()}
            paddle.static.Executor(CPU).run(main, feed=feed)
    finally:
        paddle.disable_static()
    model.weight.scale_(1.5)


def layer_to(model: Model, _: Path) -> None:
    model.layer.to(dtype="float64")
    model.layer.to(dtype="float32")
    model.weight.scale_(2.0)


def initializer(kind: Any, *arguments: Any) -> Callable[[Model, Path], None]:
    def write(model: Model, _: Path) -> None:
        kind(*arguments)(model.weight)

    write.__name__ = kind.__name__
    return write


def optimizer(name: str) -> Callable[[Model, Path], None]:
    def write(model: Model, _: Path) -> None:
        with paddle.enable_grad():
            made = getattr(paddle.optimizer, name.split()[0])(
                0.5, parameters=model.layer.parameters(), **OPTIMIZERS[name]
            )
            model.train(made)

    write.__name__ = name
    return write


def batch_statistics(model: Model, _: Path) -> None:
    model.train()


def batch_statistics_of_the_engine(model: Model, _: Path) -> None:
    model.layer.train()
    with paddle_ngraph.use_ngraph():
        model.network(model.x * 3.0 + 1.0)
    model.layer.eval()


def function_that_was_held(model: Model, _: Path) -> None:
    """A reference that was taken before the package was imported, for example."""
    HELD(model.weight, 0.25, 0.0, True)


def legacy_function(model: Model, _: Path) -> None:
    paddle._legacy_C_ops.scale_(model.weight, "scale", 0.25)


def custom_operator(model: Model, _: Path) -> None:
    """One of a library, which writes its argument."""
    bias = model.layer[3].bias
    rate, slope = paddle.to_tensor(0.5), floats(SIZE, seed=5)
    graph = Graph.from_string(sgd_graph())
    read, made = graph.inputs[1], TensorSpec(9, "float32", (-1,))
    graph.ops.append(Op("pd_op.relu", 1, {"x": (read,)}, {"out": (made,)}))
    graph.outputs.append(made)
    text = graph.to_string()
    paddle._C_ops._run_custom_op("ngraph_engine_1", [rate, slope], [bias.detach()], text, [0, 0])


def swapped_data(model: Model, _: Path) -> None:
    """Memory that was a weight's, a weight's again, and written meanwhile."""
    first = model.weight.detach()
    model.weight.data = others()
    model.run()
    first.scale_(3.0)
    model.weight.data = first


def gradient(model: Model, _: Path) -> None:
    """A buffer that is a gradient, which a backward pass adds to."""
    source = paddle.create_parameter([SIZE], "float32")
    with paddle.enable_grad():
        source.sum().backward()
    model.layer[3].bias.data = source.grad
    model.run()
    with paddle.enable_grad():
        (source * 3.0).sum().backward()


HELD = paddle.base.libpaddle.eager.ops.scale_
I = nn.initializer  # noqa: E741
WRITERS = [
    *(optimizer(name) for name in OPTIMIZERS),
    *(initializer(kind) for kind in (I.Normal, I.Uniform, I.TruncatedNormal, I.XavierNormal)),
    *(initializer(kind) for kind in (I.KaimingUniform, I.KaimingNormal, I.Orthogonal)),
    initializer(I.Constant, 0.7),
    initializer(I.Assign, np.random.default_rng(1).normal(size=(48, SIZE))),
    *(set_value, set_state_dict, load, item, rows, add_, subtract_, scale_, zero_, fill_),
    *(uniform_, normal_, exponential_, assign, copy_, get_tensor, value_get_tensor),
    *(share_buffer_to, share_underline_tensor_to, data, detached, reshaped, dlpack, scope),
    *(function_that_was_held, legacy_function, custom_operator, swapped_data, gradient),
    *(another_parameter, layer_to, batch_statistics, batch_statistics_of_the_engine),
]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_the_next_evaluation_sees_a_write(write, model, tmp_path):
    before = model.run()
    with paddle.no_grad():
        write(model, tmp_path)
    after = model.run()
    assert np.abs(after - before).max() > 1e-4, "nothing was written"


@pytest.mark.parametrize(
    "view",
    [
        lambda model: model.weight.detach(),
        lambda model: model.weight.reshape([-1]),
        lambda model: paddle.utils.dlpack.from_dlpack(
            paddle.utils.dlpack.to_dlpack(model.weight.detach())
        ),
        lambda model: model.weight.get_tensor(),
    ],
    ids=["detached", "reshaped", "capsule", "tensor"],
)
def test_each_evaluation_sees_writes_through_a_view(view, model):
    kept = view(model)
    results = [model.run()]
    for step in range(40):  # long enough for the weights to be constants again
        if step % 13 == 7:
            if isinstance(kept, paddle.Tensor):
                with paddle.no_grad():
                    kept.add_(paddle.full(kept.shape, 0.2))
            else:
                kept.set(np.array(kept) + np.float32(0.2), CPU)
            results.append(model.run())
            assert np.abs(results[-1] - results[-2]).max() > 1e-4
        else:
            np.testing.assert_allclose(model.run(), results[-1], rtol=1e-4, atol=1e-4)


def test_weights_stay_constants(model):
    for _ in range(5):
        model.run()
    stats = paddle_ngraph.stats()
    assert (stats["functions_built"], stats["functions_with_weights"]) == (1, 1)


# -- models that are loaded again and again --------------------------------------------------------


class Linear(nn.Layer):
    """A layer whose graph no other test has."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift
        self.layer = nn.Linear(6, SIZE)

    def forward(self, x: Any) -> Any:
        return F.relu(self.layer(x)) + self.shift


def made_anew(layer: Any, _: Path) -> Any:
    return paddle.jit.to_static(layer, full_graph=True)


def loaded_anew(layer: Any, folder: Path) -> Any:
    paddle.jit.save(layer, str(folder / "model"), [paddle.static.InputSpec([4, 1, 6, 6])])
    loaded = paddle.jit.load(str(folder / "model"))
    loaded.eval()
    return loaded


def compiled_anew(layer: Any, _: Path) -> Any:
    return paddle_ngraph.compile(layer)


@pytest.mark.parametrize("load", [made_anew, loaded_anew, compiled_anew])
def test_a_model_that_has_served_pays_for_the_next_one(load, tmp_path):
    """Another model is loaded, and the former one is deleted."""
    shift = float(zlib.crc32(load.__name__.encode()) % 1_003) / 7
    x = floats(4, 1, 6, 6)
    for number in range(6):
        network = None
        gc.collect()
        paddle.seed(number)
        layer = Linear(shift)
        layer.eval()
        before = paddle_ngraph.stats()
        with paddle.no_grad():
            native, network = layer(x), load(layer, tmp_path)
            del layer
            with paddle_ngraph.use_ngraph():
                for _ in range(40):
                    np.testing.assert_allclose(network(x), native, rtol=1e-5, atol=1e-5)
        after = paddle_ngraph.stats()
        assert after["engine_runs"] >= before["engine_runs"] + 39, "the engine did not run"
        for counter in ("functions_built", "functions_with_weights"):
            assert after[counter] == before[counter] + 1, f"{counter} of number {number}"


# -- what a run costs ------------------------------------------------------------------------------


def numbers_of(model: Model) -> np.ndarray:
    """The memory of the weight, by an address whose exposure is not recorded."""
    address = _core.original_of(paddle.base.core.DenseTensor._ptr)(model.weight.get_tensor())
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, (48, SIZE))


def is_read_in_each_run(model: Model) -> bool:
    """Checked by a write that is not recorded, and reverted at once."""
    numbers = numbers_of(model)
    model.run()  # the object of the tensor is gone

    def run() -> np.ndarray:
        before = paddle_ngraph.stats()["engine_runs"]
        with paddle_ngraph.use_ngraph(), paddle.no_grad():
            result = model.network(model.x).numpy()
        assert paddle_ngraph.stats()["engine_runs"] == before + 1
        return result

    before = run()
    numbers[0, 0] += 100.0
    after = run()
    numbers[0, 0] -= 100.0
    return bool(np.abs(after - before).max() > 1e-3)


def test_no_weight_is_read_in_a_run(model):
    assert not is_read_in_each_run(model)


@pytest.mark.parametrize("kind", ["other eager tensors", "steps of another layer", "reading"])
def test_mutations_of_other_tensors_read_no_weight(kind, model):
    numbers, other = numbers_of(model), nn.Linear(4, 4)
    optimizer = paddle.optimizer.Adam(0.1, parameters=other.parameters())
    model.run()
    assert not is_read_in_each_run(model)
    numbers[0, 0] += 100.0
    with paddle_ngraph.use_ngraph(), paddle.no_grad():
        before = model.network(model.x).numpy()
        if kind == "other eager tensors":
            floats(48, SIZE).add_(paddle.ones([48, SIZE]))
        elif kind == "reading":
            model.weight.numpy()
            assert model.weight.shape == [48, SIZE]
        else:
            other.weight.grad = paddle.ones([4, 4])
            optimizer.step()
        after = model.network(model.x).numpy()
    numbers[0, 0] -= 100.0
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("kind", ["capsule", "address", "array without a copy"])
def test_weights_with_unrecorded_writers_are_read_in_each_run(kind, model):
    if kind == "capsule":
        model.kept.append(model.weight.value().get_tensor()._to_dlpack())
    elif kind == "address":
        model.kept.append(model.weight.data_ptr())
    else:
        model.kept.append(model.weight.numpy())
        model.weight.get_tensor().set(model.kept[-1], CPU, True)
    for _ in range(40):
        model.run()
    assert is_read_in_each_run(model)


def test_collectives_have_written_when_they_return(model, monkeypatch):
    """So parameters that ``paddle.DataParallel`` has sent to all processes are constants again."""
    monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
    store = paddle.base.core.TCPStore("127.0.0.1", free_port(), True, 1)
    group = paddle.base.core.ProcessGroupGloo.create(store, 0, 1, new_group())
    group.all_reduce(model.weight, paddle.base.core.ReduceOp.SUM, True)
    for _ in range(40):
        model.run()
    assert not is_read_in_each_run(model)


# -- all that Paddle offers ------------------------------------------------------------------------

LIBRARY = paddle.base.libpaddle
MODULES = [LIBRARY.eager, LIBRARY.eager.ops, LIBRARY.eager.ops.legacy, LIBRARY.pir.ops]
MODULES += [paddle._C_ops, paddle._legacy_C_ops]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_operators_are_intercepted(module):
    """By signature, not by name: including operators of a new release."""
    functions = {
        name: function
        for name, function in vars(module).items()
        if isinstance(function, types.BuiltinFunctionType)
    }
    silent = {name for name, each in functions.items() if not _core.are_calls_intercepted(each)}
    assert functions and silent <= replaced._READING_FUNCTIONS


def test_all_methods_but_readers_are_intercepted():
    methods = {
        name: method
        for name, method in vars(LIBRARY.eager.Tensor).items()
        if isinstance(method, types.MethodDescriptorType)
    }
    silent = {name for name, each in methods.items() if not _core.are_calls_intercepted(each)}
    assert len(methods) > 90 and silent <= replaced._READING_METHODS
    assert not any(re.search(r"(?<!_)_$|^_?set|^_share|clear", name) for name in silent)


def test_in_place_calls_by_paddle_are_intercepted():
    """By the declarations that Paddle ships: an argument that is not const is written."""
    header = Path(paddle.sysconfig.get_include()) / "paddle/phi/api/include/api.h"
    declared = re.findall(r"^PADDLE_API .*?\b(\w+)\((.*?)\);", header.read_text(), re.M)
    writing = {
        name for name, arguments in declared if re.search(r"(?<!const )\bTensor&", arguments)
    }
    found = [name for name in writing if hasattr(paddle._C_ops, name)]
    assert len(found) > 100 and {"sgd_", "adam_"} <= writing
    assert all(_core.are_calls_intercepted(getattr(paddle._C_ops, name)) for name in found)


def test_only_c_functions_can_be_intercepted():
    assert not _core.are_calls_intercepted(floats)
    with pytest.raises(paddle_ngraph.NgraphError, match="no function in C"):
        _core.intercept_calls(floats, _core.WriteEffect.ARGUMENTS)
