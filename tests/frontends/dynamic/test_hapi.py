"""``paddle.Model``, and layers that are saved and loaded: results match Paddle's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from tests.dynamic import (
    CLASSES,
    Encoder,
    gradients,
    inputs,
    labels,
    lenet,
    lstm,
    made,
    mlp,
    resnet,
    twice,
    values,
)

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")


class Digits(paddle.io.Dataset):
    """Pictures whose class shifts them."""

    def __init__(self, size: int) -> None:
        self.labels = np.random.default_rng(5).integers(0, CLASSES, (size, 1))
        noise = np.random.default_rng(6).normal(size=(size, 1, 28, 28))
        self.pictures = (noise + self.labels.reshape(-1, 1, 1, 1) * 0.5).astype("float32")

    def __getitem__(self, index: int) -> Any:
        return self.pictures[index], self.labels[index]

    def __len__(self) -> int:
        return len(self.labels)


def test_fit_evaluate_and_predict():
    """The last batch is smaller than the others."""

    def play() -> Any:
        layer = made(lenet)
        spec = [paddle.static.InputSpec([None, 1, 28, 28], "float32", "x")]
        truth = [paddle.static.InputSpec([None, 1], "int64", "label")]
        layer.forward = paddle.jit.to_static(layer.forward, input_spec=spec, full_graph=True)
        model = paddle.Model(layer, spec, truth)
        model.prepare(
            paddle.optimizer.Momentum(0.01, parameters=layer.parameters()),
            nn.CrossEntropyLoss(),
            paddle.metric.Accuracy(topk=(1, 2)),
        )
        train, test = Digits(44), Digits(21)
        model.fit(train, test, batch_size=8, epochs=3, shuffle=False, verbose=0)
        found = model.evaluate(test, batch_size=8, verbose=0)
        (predicted,) = model.predict(test, batch_size=8, stack_outputs=True, verbose=0)
        return found, predicted, values(layer)

    # Six batches of training in each of three epochs, and three of evaluation five times.
    found, _, _ = twice(play, runs=2 * 18 + 3 * 5)
    assert found["acc_top2"] >= found["acc_top1"] > 0


def saved(build: Any, folder: Path, engine: bool, open_batch: bool = True) -> str:
    """The path of a layer that was saved after it ran once."""
    layer = made(build)
    x = inputs(build)
    shape = [-1 if open_batch else x.shape[0], *x.shape[1:]]
    spec = [paddle.static.InputSpec(shape, str(x.dtype).rpartition(".")[2], "x")]
    network = paddle.jit.to_static(layer, input_spec=spec, full_graph=True)
    path = str(folder / f"model_{engine}")
    with paddle_ngraph.use_ngraph(engine):
        layer.eval()
        with paddle.no_grad():
            network(x)
        paddle.jit.save(network, path)
    return path


def program_in(path: str) -> str:
    """A saved program without the layers' names, which count on in the process."""
    return re.sub(r"/\w+/", "", Path(path + ".json").read_text())


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("build", [mlp, lenet, resnet, Encoder, lstm], ids=lambda b: b.__name__)
def test_saved_layers_are_those_saved_without_the_engine(build, tmp_path):
    native, ours = (saved(build, tmp_path, engine) for engine in (False, True))
    assert paddle_ngraph.stats()["engine_runs"] > 0
    assert program_in(native) == program_in(ours)
    assert Path(native + ".pdiparams").read_bytes() == Path(ours + ".pdiparams").read_bytes()


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("build", [mlp, lenet, resnet, Encoder, lstm], ids=lambda b: b.__name__)
def test_a_loaded_layer_infers(build, tmp_path):
    path = saved(build, tmp_path, engine=True)
    paddle_ngraph.clear_cache()  # other tests may have left a function with equal weights

    def play() -> Any:
        layer = paddle.jit.load(path)
        layer.eval()
        with paddle.no_grad():
            return [layer(inputs(build, number, size)) for number, size in ((0, 6), (1, 6), (2, 3))]

    twice(play, runs=3)
    assert paddle_ngraph.stats()["functions_with_weights"] > 0


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize("build", [mlp, lenet, Encoder], ids=lambda b: b.__name__)
def test_a_loaded_layer_goes_on_to_train(build, tmp_path):
    path = saved(build, tmp_path, engine=False)

    def play() -> Any:
        layer = paddle.jit.load(path)
        layer.train()
        optimizer = paddle.optimizer.Momentum(0.01, parameters=layer.parameters())
        seen = []
        for step in range(5):
            loss = F.cross_entropy(layer(inputs(build, step)), labels(step))
            loss.backward()
            seen += [loss.numpy(), *gradients(layer)]
            optimizer.step()
            optimizer.clear_grad()
        layer.eval()
        return seen, layer(inputs(build))

    twice(play, runs=11)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_the_precision_of_inference(precision):
    layer = made(lenet)
    layer.eval()
    network = paddle.jit.to_static(layer, full_graph=True)
    x = inputs(lenet)
    with paddle.no_grad():
        expected = network(x).numpy()
        paddle.set_flags({"FLAGS_ngraph_precision": precision})
        try:
            with paddle_ngraph.use_ngraph():
                found = network(x).numpy()
        finally:
            paddle.set_flags({"FLAGS_ngraph_precision": "f32"})
    assert paddle_ngraph.stats()["engine_runs"] == 1
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 if precision == "f32" else 0.1)
