"""The measured networks in Paddle: training programs, and saved inference models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.static import InputSpec, Program

from benchmarks.works import (
    BERT,
    BERT_POSITIONS,
    BERT_SEGMENTS,
    CLASSES,
    ENCODER,
    TOWER,
    VOCABULARY,
    Array,
    EncoderSize,
)
from demos import networks
from demos.networks import Network, Variable
from demos.ocr_demo import files

SEED = 0
OCR = {"det": "PP-OCRv4_det", "rec": "PP-OCRv4_rec", "cls": "PP-OCRv2_cls"}


class Bert(nn.Layer):  # type: ignore[misc]
    """BERT: word, position and segment embeddings, an encoder, a pooler over the first token."""

    def __init__(self) -> None:
        super().__init__()
        width = BERT.width
        self.words = nn.Embedding(BERT.vocabulary, width)
        self.positions = nn.Embedding(BERT_POSITIONS, width)
        self.segments = nn.Embedding(BERT_SEGMENTS, width)
        self.norm = nn.LayerNorm(width)
        self.encoder = _layers(BERT, "gelu")
        self.pooler = nn.Linear(width, width)

    def forward(self, words: Variable, segments: Variable) -> tuple[Variable, Variable]:
        """Maps words and segments, int64 [batch, length], to a vector per token and per text."""
        positions = paddle.arange(words.shape[1], dtype="int64").unsqueeze(0)
        embedded = self.words(words) + self.positions(positions) + self.segments(segments)
        sequence = self.encoder(self.norm(embedded))
        return sequence, paddle.tanh(self.pooler(sequence[:, 0]))


def _layers(size: EncoderSize, activation: str) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(size.width, size.heads, size.hidden, 0.0, activation)
    return nn.TransformerEncoder(layer, size.layers)


def _encoder(words: Variable) -> Variable:
    vectors = nn.Embedding(ENCODER.vocabulary, ENCODER.width)(words)
    encoded = _layers(ENCODER, "relu")(vectors)
    return nn.Linear(ENCODER.width, CLASSES)(paddle.mean(encoded, axis=1))


def bert_classes(words: Variable) -> Variable:
    """Builds BERT as fine-tuned for text classification, with one segment per text."""
    _, pooled = Bert()(words, paddle.zeros_like(words))
    return nn.Linear(BERT.width, CLASSES)(pooled)


def _tower(features: Variable) -> Variable:
    for inputs, outputs in zip(TOWER, TOWER[1:]):
        features = nn.Linear(inputs, outputs)(features)
        features = nn.functional.relu(nn.BatchNorm1D(outputs)(features))
    return nn.Linear(TOWER[-1], CLASSES)(features)


def _lstm(sequence: Variable) -> Variable:
    outputs, _ = nn.LSTM(128, 256, num_layers=2)(sequence)
    return nn.Linear(256, CLASSES)(outputs[:, -1])


def _resnet18(image: Variable) -> Variable:
    return paddle.vision.models.resnet18()(image)


def _mobilenet_v2(image: Variable) -> Variable:
    network = paddle.vision.models.mobilenet_v2()
    network.classifier[0].p = 0  # no dropout, so that the results of all peers can be compared
    return network(image)


def labelled(*shape: int, name: str = "image") -> tuple[InputSpec, InputSpec]:
    """Returns the inputs of a classifier of arrays of a shape."""
    return (
        InputSpec([None, *shape], "float32", name),
        InputSpec([None, 1], "int64", "label"),
    )


def labelled_words(length: int) -> tuple[InputSpec, InputSpec]:
    """Returns the inputs of a classifier of texts of ``length`` tokens."""
    return InputSpec([None, length], "int64", "words"), InputSpec([None, 1], "int64", "label")


CNN = networks.text_cnn(VOCABULARY)
# By model: layout, inputs, optimizer.
_TRAINED: dict[str, tuple[networks.Layout, Any, Callable[[], Any]]] = {
    "mlp": (networks.mlp, labelled(784), lambda: networks.momentum(0.01)),
    "tower": (_tower, labelled(TOWER[0], name="features"), lambda: networks.momentum(0.01)),
    "transformer": (_encoder, networks.text_inputs(), lambda: networks.adam(1e-4)),
    "bert-tuning": (bert_classes, labelled_words(128), lambda: networks.adam(1e-5)),
    "resnet18": (_resnet18, labelled(3, 224, 224), lambda: networks.momentum(1e-3)),
    "mobilenet_v2": (_mobilenet_v2, labelled(3, 224, 224), lambda: networks.momentum(1e-3)),
    "lenet": (networks.lenet, labelled(1, 28, 28), lambda: networks.momentum(0.01)),
    "cnn-adagrad": (CNN, networks.text_inputs(), lambda: networks.adagrad(0.02)),
    "cnn-adam": (CNN, networks.text_inputs(), lambda: networks.adam(1e-3)),
    "lstm": (_lstm, labelled(100, 128, name="sequence"), lambda: networks.adam(1e-3)),
}


def training(model: str) -> Network:
    """Builds the training programs of ``model``, a name in ``works.TRAINING``."""
    return built(*trained(model))


def trained(model: str) -> tuple[networks.Layout, Any, Callable[[], Any]]:
    """Returns layout, inputs and optimizer of ``model``, a name in ``works.TRAINING``."""
    return _TRAINED[model]


def built(layout: networks.Layout, inputs: Any, make_optimizer: Callable[[], Any]) -> Network:
    """Builds the programs of a classifier."""
    return networks.build_network(layout, networks.cross_entropy, inputs, make_optimizer)


def _pictures(network: Any) -> tuple[list[Variable], list[Variable]]:
    image = paddle.static.data("image", [None, 3, 224, 224], "float32")
    network.eval()
    return [image], [network(image)]


def _bert() -> tuple[list[Variable], list[Variable]]:
    words = paddle.static.data("words", [None, 128], "int64")
    segments = paddle.static.data("segments", [None, 128], "int64")
    network = Bert()
    network.eval()
    return [words, segments], list(network(words, segments))


def _chain(length: int) -> tuple[list[Variable], list[Variable]]:
    x = paddle.static.data("x", [None, 64], "float32")
    y = x
    for _ in range(length // 2):
        y = paddle.tanh(y) * 1.01
    return [x], [y]


_BUILT: dict[str, Callable[[], tuple[list[Variable], list[Variable]]]] = {
    "resnet50": lambda: _pictures(paddle.vision.models.resnet50()),
    "mobilenet_v2": lambda: _pictures(paddle.vision.models.mobilenet_v2()),
    "bert": _bert,
    "chain_500": lambda: _chain(500),
    "chain_2000": lambda: _chain(2000),
}


def saved(model: str, folder: Path) -> Path:
    """Returns the path of the program of ``model``, a name known to ``works.inference``.

    A published model is downloaded; another one is created with seeded weights in ``folder``,
    unless it exists.
    """
    if model in OCR:
        return files.network(OCR[model])
    prefix = folder / model
    program = prefix.with_suffix(".json")
    if not program.exists():
        main, startup = Program(), Program()
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            inputs, outputs = _BUILT[model]()
        scope, executor = started(startup)
        with paddle.static.scope_guard(scope):
            paddle.static.save_inference_model(str(prefix), inputs, outputs, executor, program=main)
    return program


def weights(model: str, trains: bool) -> list[Array]:
    """Returns the initial weights of ``model`` in the order in which the network creates them.

    In training, the optimizer's slots follow. Published models have no initial weights.
    """
    if trains:
        startup = training(model).startup
    elif model in _BUILT:
        startup = Program()
        with paddle.static.program_guard(Program(), startup), paddle.utils.unique_name.guard():
            _BUILT[model]()
    else:
        return []
    scope, _ = started(startup)
    return [np.array(scope.find_var(name).get_tensor()) for name in _filled(startup)]


def started(startup: Program) -> tuple[Any, Any]:
    """Returns a scope in which ``startup`` has run from the seed, and its executor."""
    paddle.seed(SEED)
    scope = paddle.static.Scope()
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    return scope, executor


def _filled(startup: Program) -> list[str]:
    operators = startup.global_block().ops
    return [
        op.attrs()["parameter_name"] for op in operators if op.name() == "builtin.set_parameter"
    ]
