"""The models: how each is built, its feeds, and the number of its runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from numpy.typing import NDArray
from paddle import nn

from tests.programs import floats

Feed = dict[str, NDArray[Any]]
Variable = Any

CLASSES = 10
VOCABULARY = 500


@dataclass(frozen=True)
class Model:
    """A program and the data of its runs.

    Attributes:
        name: What the tables call it.
        build: Called inside a program; returns the variables to fetch.
        feeds: One for each run; their shapes may differ.
        trains: Whether the program has an optimizer: its state in the scope is compared, too.
    """

    name: str
    build: Callable[[], Any]
    feeds: list[Feed]
    trains: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def tolerance(self) -> float:
        """How far results may be apart anyhow; a near tie of a maximum moves gradients by 1e-4."""
        return 1e-3 if self.trains else 1e-5


def whole(high: int, *shape: int, seed: int = 0) -> NDArray[np.int64]:
    """Whole numbers from 1 to ``high`` - 1."""
    return np.random.default_rng(seed).integers(1, high, shape)


def trained(loss: Variable, optimizer: Any) -> Variable:
    """``loss``, with ``optimizer`` minimizing it."""
    optimizer.minimize(loss)
    return loss


# -- pictures ------------------------------------------------------------------------------------


# The smallest pictures that a network takes, where that is not 64 x 64.
SMALLEST = {"LeNet": 28, "alexnet": 224, "googlenet": 224, "inception_v3": 139}
LARGEST = {"LeNet": 28, "inception_v3": 299}
CONSTRUCTORS = [
    name for name in paddle.vision.models.__all__ if name[0].islower() or name == "LeNet"
]
# One of each, with its smallest member.
FAMILIES = [
    *("resnet18", "resnext50_32x4d", "wide_resnet50_2", "vgg11", "mobilenet_v1", "mobilenet_v2"),
    *("mobilenet_v3_small", "LeNet", "densenet121", "alexnet", "inception_v3", "squeezenet1_1"),
    *("googlenet", "shufflenet_v2_x0_25"),
]


def picture_shape(name: str, batch: int, size: int | None = None) -> tuple[int, ...]:
    """The shape of ``batch`` pictures for the network ``name``."""
    side = size or SMALLEST.get(name, 64)
    return (batch, 1 if name == "LeNet" else 3, side, side)


def picture_network(name: str) -> nn.Layer:
    """A network of ``paddle.vision.models`` for 10 classes."""
    network: nn.Layer = getattr(paddle.vision.models, name)(num_classes=CLASSES)
    return network


def vision(name: str, full_size: bool = False, dynamic: bool = False) -> Model:
    """Inference of one picture; ``dynamic``: of several, in other numbers and sizes."""
    shape = picture_shape(name, 1, LARGEST.get(name, 224) if full_size else None)

    def build() -> Any:
        network = picture_network(name)
        network.eval()
        open_shape = [-1, shape[1], -1, -1]
        return network(paddle.static.data("x", open_shape if dynamic else shape))

    feeds: list[Feed] = [{"x": floats(*shape)}]
    if dynamic:
        others = [(2, 64, 96), (1, 96, 64), (3, 64, 64), (2, 64, 96)]
        feeds += [{"x": floats(batch, shape[1], *size)} for batch, *size in others]
    return Model(f"{name}, any batch and size" if dynamic else name, build, feeds)


class ShortResNet(paddle.vision.models.ResNet):  # type: ignore[misc]
    """Half as wide, with two blocks of each size: one that changes the size, one that does not."""

    def __init__(self, **options: Any) -> None:
        block = paddle.vision.models.resnet.BottleneckBlock
        super().__init__(block, 50, num_classes=0, **options)
        self.num_classes = CLASSES
        self.fc = nn.Linear(256 * block.expansion, CLASSES)

    def _make_layer(self, block: Any, planes: int, blocks: int, **options: Any) -> Any:
        return super()._make_layer(block, planes // 2, min(blocks, 2), **options)


def short_network(name: str) -> nn.Layer:
    """As :func:`picture_network`, where blocks repeat with fewer of them, or of fewer neurons.

    The operators are those of the whole network, and so are the inputs of each of them.
    """
    models, narrow = paddle.vision.models, 64
    if name in ("resnext50_32x4d", "wide_resnet50_2"):
        sizes = {"groups": 32, "width": 4} if name == "resnext50_32x4d" else {"width": 128}
        return ShortResNet(**sizes)
    if name not in ("vgg11", "alexnet", "inception_v3"):
        return picture_network(name)
    if name == "inception_v3":
        network = picture_network(name)
        kept = [b for n, b in enumerate(network.inception_block_list) if n not in (2, 5, 6)]
        network.inception_block_list = nn.LayerList(kept)
        return network
    network = getattr(models, name)(num_classes=0)
    network.num_classes = CLASSES
    if name == "vgg11":
        wide, half = nn.Linear(512 * 7 * 7, narrow), nn.Linear(narrow, narrow)
        network.classifier = nn.Sequential(
            *(wide, nn.ReLU(), nn.Dropout(), half, nn.ReLU(), nn.Dropout()),
            nn.Linear(narrow, CLASSES),
        )
    else:
        network._drop1 = nn.Dropout(0.5, mode="downscale_in_infer")
        network._drop2 = nn.Dropout(0.5, mode="downscale_in_infer")
        network._fc6, network._fc7 = nn.Linear(256 * 6 * 6, narrow), nn.Linear(narrow, narrow)
        network._fc8 = nn.Linear(narrow, CLASSES)
    return network


def vision_training(
    name: str, batch: int = 4, size: int | None = None, short: bool = False
) -> Model:
    """One step of training with momentum; ``short``: of a network with fewer blocks."""
    shape = picture_shape(name, batch, size)

    def build() -> Any:
        x = paddle.static.data("x", shape)
        label = paddle.static.data("label", [batch, 1], "int64")
        network = short_network(name) if short else picture_network(name)
        if name == "googlenet":
            # Its three heads drop out independently, and Paddle's executor chooses which of them
            # draws its random numbers first: not the order of the program.
            for layer in network.sublayers():
                if isinstance(layer, nn.Dropout):
                    layer.p = 0
        outputs = network(x)
        if not isinstance(outputs, (list, tuple)):  # GoogLeNet has two more heads
            outputs = [outputs]
        loss = paddle.add_n([F.cross_entropy(output, label) for output in outputs])
        return trained(loss, paddle.optimizer.Momentum(0.01, 0.9, weight_decay=1e-4))

    feed: Feed = {"x": floats(*shape), "label": whole(CLASSES, batch, 1)}
    return Model(f"{name}, training", build, [feed], trains=True)


# -- words ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """How large a model of words is."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    batch: int = 4
    length: int = 16
    vocabulary: int = VOCABULARY


SMALL = Size()
BASE = Size(layers=12, width=768, heads=12, batch=1, length=128, vocabulary=30522)


class Bert(nn.Layer):  # type: ignore[misc]
    """BERT: words, positions and segments, an encoder with a padding mask, a pooler."""

    def __init__(self, size: Size, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(512, size.width)
        self.segments = nn.Embedding(2, size.width)
        self.norm = nn.LayerNorm(size.width, epsilon=1e-12)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, dropout, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, size.layers)
        self.pooler = nn.Linear(size.width, size.width)
        self.classifier = nn.Linear(size.width, CLASSES)

    def forward(self, words: Variable, segments: Variable) -> tuple[Variable, Variable]:
        padding = paddle.cast(words == 0, "float32").unsqueeze([1, 2]) * -1e4
        positions = paddle.cumsum(paddle.ones_like(words), axis=-1) - paddle.ones_like(words)
        embedded = self.words(words) + self.positions(positions) + self.segments(segments)
        sequence = self.encoder(self.dropout(self.norm(embedded)), padding)
        pooled = paddle.tanh(self.pooler(sequence[:, 0]))
        return sequence, self.classifier(pooled)


class Gpt(nn.Layer):  # type: ignore[misc]
    """GPT: normalization first, a causal mask, the embedding used again as the last layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(1024, size.width)
        layer = nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, 0.0, activation="gelu", normalize_before=True
        )
        self.decoder = nn.TransformerEncoder(layer, size.layers, nn.LayerNorm(size.width))

    def forward(self, words: Variable) -> Variable:
        length = paddle.shape(words)[1]
        positions = paddle.arange(0, length, dtype="int64").unsqueeze(0)
        hidden = self.decoder(self.words(words) + self.positions(positions), _causal_mask(length))
        return paddle.matmul(hidden, self.words.weight, transpose_y=True)


class Translator(nn.Layer):  # type: ignore[misc]
    """``paddle.nn.Transformer``: from words to words."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.transformer = nn.Transformer(
            size.width, size.heads, size.layers, size.layers, 2 * size.width, dropout=0.0
        )
        self.last = nn.Linear(size.width, size.vocabulary)

    def forward(self, source: Variable, target: Variable) -> Variable:
        causal = _causal_mask(paddle.shape(target)[1])
        decoded = self.transformer(self.words(source), self.words(target), tgt_mask=causal)
        return self.last(decoded)


def _causal_mask(length: Variable) -> Variable:
    return paddle.triu(paddle.full([length, length], -1e9, "float32"), 1)


class Recurrent(nn.Layer):  # type: ignore[misc]
    """A classifier over the last state of an LSTM, GRU or simple RNN."""

    def __init__(self, kind: str, size: Size, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.cells = getattr(nn, kind)(size.width, size.width, **options)
        both = 2 if options.get("direction") == "bidirect" else 1
        self.last = nn.Linear(both * size.width, CLASSES)

    def forward(self, words: Variable) -> Variable:
        outputs, _ = self.cells(self.words(words))
        return self.last(paddle.mean(outputs, axis=1))


def _inputs(size: Size, dynamic: str) -> Callable[[str], Variable]:
    batch = -1 if "batch" in dynamic else size.batch
    length = -1 if "length" in dynamic else size.length
    return lambda name: paddle.static.data(name, [batch, length], "int64")


def _adam() -> Any:
    return paddle.optimizer.Adam(1e-3)


def _adamw() -> Any:
    clip = nn.ClipGradByGlobalNorm(1.0)
    return paddle.optimizer.AdamW(1e-3, weight_decay=0.01, grad_clip=clip)


def bert(size: Size = SMALL, steps: int = 0, dynamic: str = "", dropout: float = 0.0) -> Model:
    """Inference, or training with AdamW to say the class of a text."""

    def build() -> Any:
        data = _inputs(size, dynamic)
        network = Bert(size, dropout)
        if not steps:
            network.eval()
        sequence, logits = network(data("words"), data("segments"))
        if not steps:
            return sequence, logits
        label = paddle.static.data("label", [-1 if "batch" in dynamic else size.batch, 1], "int64")
        return trained(F.cross_entropy(logits, label), _adamw())

    feeds: list[Feed] = []
    for seed, shaped in enumerate(_shapes(size, steps, dynamic)):
        words = _text(shaped, seed)
        feed = {"words": words, "segments": (np.arange(words.size) % 2).reshape(words.shape)}
        if steps:
            feed["label"] = words[:, :1] % CLASSES
        feeds.append(feed)
    title = _title("BERT encoder", size, steps, dynamic)
    return Model(title, build, feeds, steps > 0)


def gpt(size: Size = SMALL, steps: int = 0, dynamic: str = "") -> Model:
    """Inference, or training with AdamW to say the next word."""

    def build() -> Any:
        words = _inputs(size, dynamic)("words")
        network = Gpt(size)
        if not steps:
            network.eval()
            return network(words)
        return trained(_next_word_loss(network(words[:, :-1]), words[:, 1:]), _adamw())

    feeds = [
        {"words": _text(shaped, seed)} for seed, shaped in enumerate(_shapes(size, steps, dynamic))
    ]
    title = _title("GPT decoder", size, steps, dynamic)
    return Model(title, build, feeds, steps > 0)


def translator(size: Size = SMALL, steps: int = 0, dynamic: str = "") -> Model:
    """``paddle.nn.Transformer``: inference, or training with Adam to repeat the words."""

    def build() -> Any:
        data = _inputs(size, dynamic)
        source, target = data("source"), data("target")
        network = Translator(size)
        if not steps:
            network.eval()
            return network(source, target)
        logits = network(source, target[:, :-1])
        return trained(_next_word_loss(logits, target[:, 1:]), _adam())

    feeds: list[Feed] = []
    for seed, shaped in enumerate(_shapes(size, steps, dynamic)):
        feeds.append({"source": _text(shaped, seed), "target": _text(shaped, seed)})
    title = _title("Transformer", size, steps, dynamic)
    return Model(title, build, feeds, steps > 0)


def recurrent(
    kind: str, size: Size = SMALL, steps: int = 0, dynamic: str = "", **options: Any
) -> Model:
    """A classifier of texts; ``kind`` is LSTM, GRU or SimpleRNN."""

    def build() -> Any:
        words = _inputs(size, dynamic)("words")
        network = Recurrent(kind, size, **options)
        if not steps:
            network.eval()
            return network(words)
        label = paddle.static.data("label", [-1 if "batch" in dynamic else size.batch, 1], "int64")
        return trained(F.cross_entropy(network(words), label), _adam())

    feeds: list[Feed] = []
    for seed, shaped in enumerate(_shapes(size, steps, dynamic)):
        feed = {"words": _text(shaped, seed)}
        if steps:
            feed["label"] = feed["words"][:, :1] % CLASSES
        feeds.append(feed)
    detail = "".join(f", {value} {key}" for key, value in options.items())
    return Model(
        _title(f"{kind} classifier{detail}", size, steps, dynamic), build, feeds, steps > 0
    )


OF_WORDS: dict[str, Callable[..., Model]] = {
    "BERT": bert,
    "GPT": gpt,
    "Transformer": translator,
    "LSTM": partial(recurrent, "LSTM"),
    "bidirectional LSTM": partial(recurrent, "LSTM", direction="bidirect", num_layers=2),
    "GRU": partial(recurrent, "GRU"),
    "SimpleRNN": partial(recurrent, "SimpleRNN"),
}


def _next_word_loss(logits: Variable, words: Variable) -> Variable:
    return F.cross_entropy(logits, words.unsqueeze(-1))


def _shapes(size: Size, steps: int, dynamic: str) -> list[Size]:
    """The size of each run: the same, or with open dimensions always another one."""
    runs = []
    for run in range(max(steps, 4 if dynamic else 1)):
        batch = size.batch + run % 3 if "batch" in dynamic else size.batch
        length = size.length - 3 * (run % 4) if "length" in dynamic else size.length
        runs.append(replace(size, batch=batch, length=length))
    return runs


def _text(size: Size, seed: int) -> NDArray[np.int64]:
    words = whole(size.vocabulary, size.batch, size.length, seed=seed)
    words[-1, -2:] = 0  # padding
    return words


def _title(name: str, size: Size, steps: int, dynamic: str) -> str:
    parts = [name]
    if steps:
        parts.append("training")
    if dynamic:
        parts.append(f"any {dynamic}")
    return ", ".join(parts)
