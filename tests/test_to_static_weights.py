"""Whatever writes a parameter of a layer: the next evaluation uses what is there."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

import paddle_ngraph
from tests.dynamic import dynamic_mode, floats, made

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


@pytest.fixture(autouse=True)
def dynamic() -> Iterator[None]:
    with dynamic_mode():
        yield


class Model:
    """A layer in evaluation whose function keeps its weights; nothing is new to it."""

    def __init__(self, name: str) -> None:
        # What is known of weights is kept by graph: each test has another.
        self.shift = float(zlib.crc32(name.encode()) % 1000)
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
    *(another_parameter, layer_to, batch_statistics, batch_statistics_of_the_engine),
]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_the_next_evaluation_uses_what_was_written(write, model, tmp_path):
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
def test_each_evaluation_uses_what_a_view_wrote(view, model):
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
