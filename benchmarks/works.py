"""The works that are measured: their names, and what they are fed. No framework is imported here.

``benchmarks.paddle_models`` and ``benchmarks.torch_models`` have the networks under these names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Feed = dict[str, Array]
Draw = Callable[[np.random.Generator, int], Feed]

VOCABULARY = 10000
CLASSES = 10
TRAINING_FEEDS = 4


@dataclass(frozen=True)
class EncoderSize:
    """How large a Transformer's encoder is; its hidden layers are four times as wide."""

    vocabulary: int
    layers: int
    width: int
    heads: int

    @property
    def hidden(self) -> int:
        return 4 * self.width


TOWER = (256, 512, 256, 128)  # what the layers of an MLP read and make
ENCODER = EncoderSize(VOCABULARY, layers=4, width=256, heads=4)
BERT = EncoderSize(vocabulary=30522, layers=12, width=768, heads=12)
BERT_POSITIONS = 512
BERT_SEGMENTS = 2


@dataclass(frozen=True)
class Work:
    """A network with the size of its batches.

    Attributes:
        model: Its name in ``paddle_models`` and ``torch_models``.
        description: What a reader of the table needs.
        batch: Samples at once.
        draw: One feed, given a generator and the number of samples.
        trains: One training step, or one inference.
        tolerance: How far results may part from native Paddle's. Inference: the largest difference,
            measured by the largest number. Training: each loss, measured by the first one.
        drift: In training, how far the parameters may part, measured by the way they have gone.
    """

    model: str
    description: str
    batch: int
    draw: Draw
    trains: bool = False
    tolerance: float = 1e-3
    drift: float = 0.05

    @property
    def name(self) -> str:
        """Unique among the works of a topic."""
        return self.model if self.trains else f"{self.model}, batch {self.batch}"

    def feeds(self) -> list[Feed]:
        """What it is fed, the same in every process: one feed, or several that take turns."""
        generator = np.random.default_rng(0)
        return [self.draw(generator, self.batch) for _ in range(TRAINING_FEEDS)][
            : TRAINING_FEEDS if self.trains else 1
        ]


# A work travels to other processes, so what draws its feeds is made of functions of this module.


def _pictures(name: str, *shape: int) -> Draw:
    return partial(_draw_pictures, name, shape)


def _draw_pictures(
    name: str, shape: tuple[int, ...], generator: np.random.Generator, batch: int
) -> Feed:
    return {name: generator.standard_normal((batch, *shape), dtype=np.float32)}


def _labelled(classes: int, *shape: int, name: str = "image") -> Draw:
    return partial(_draw_labelled, name, shape, classes)


def _draw_labelled(
    name: str, shape: tuple[int, ...], classes: int, generator: np.random.Generator, batch: int
) -> Feed:
    return {
        name: generator.random((batch, *shape), dtype=np.float32),
        "label": generator.integers(0, classes, (batch, 1)),
    }


def _texts(length: int, classes: int, vocabulary: int = VOCABULARY) -> Draw:
    return partial(_draw_texts, length, classes, vocabulary)


def _draw_texts(
    length: int, classes: int, vocabulary: int, generator: np.random.Generator, batch: int
) -> Feed:
    return {
        "words": generator.integers(1, vocabulary, (batch, length)),
        "label": generator.integers(0, classes, (batch, 1)),
    }


def _bert(length: int) -> Draw:
    return partial(_draw_bert, length)


def _draw_bert(length: int, generator: np.random.Generator, batch: int) -> Feed:
    return {
        "words": generator.integers(1, BERT.vocabulary, (batch, length)),
        "segments": np.sort(generator.integers(0, 2, (batch, length))),
    }


INFERENCE_MODELS = {
    "det": ("PP-OCRv4 detection, 640 x 640", _pictures("x", 3, 640, 640)),
    "rec": ("PP-OCRv4 recognition, 48 x 320", _pictures("x", 3, 48, 320)),
    "cls": ("PP-OCR orientation, 48 x 192", _pictures("x", 3, 48, 192)),
    "resnet50": ("ResNet-50, 224 x 224", _pictures("image", 3, 224, 224)),
    "mobilenet_v2": ("MobileNetV2, 224 x 224", _pictures("image", 3, 224, 224)),
    "bert": ("BERT-base, 128 tokens", _bert(128)),
}


# What takes long to compile, not to run.
CHAINS = {
    f"chain_{length}": (f"{length} elementwise operators in a row", _pictures("x", 64))
    for length in (500, 2000)
}


def inference(model: str, batch: int) -> Work:
    """One run of ``model``, a name in ``INFERENCE_MODELS`` or ``CHAINS``."""
    description, draw = {**INFERENCE_MODELS, **CHAINS}[model]
    return Work(model, description, batch, draw)


# A near tie of two maxima goes the other way now and then and changes gradients for good; so the
# bounds of deep networks are wide. Adam moves a parameter without a gradient by rounding alone.
TRAINING = {
    work.model: work
    for work in [
        Work(
            "mlp",
            "MLP 784-1024-1024-10, batch 128, momentum",
            128,
            _labelled(CLASSES, 784),
            trains=True,
            tolerance=1e-5,
            # Where what a rectifier reads is 0 but for rounding, a gradient passes or not.
            drift=1e-2,
        ),
        Work(
            "tower",
            "MLP 256-512-256-128-10 with batch normalization, batch 1024, momentum",
            1024,
            _labelled(CLASSES, TOWER[0], name="features"),
            trains=True,
        ),
        Work(
            "transformer",
            "Transformer encoder, 4 layers of 256, 16 x 128 tokens, Adam",
            16,
            _texts(128, CLASSES),
            trains=True,
        ),
        Work(
            "bert-tuning",
            "BERT-base, fine-tuned on 8 x 128 tokens, Adam",
            8,
            _texts(128, CLASSES, BERT.vocabulary),
            trains=True,
        ),
        Work(
            "resnet18",
            "ResNet-18, 224 x 224, batch 8, momentum",
            8,
            _labelled(1000, 3, 224, 224),
            trains=True,
        ),
        Work(
            "mobilenet_v2",
            "MobileNetV2, 224 x 224, batch 8, momentum",
            8,
            _labelled(1000, 3, 224, 224),
            trains=True,
            # Weights that differ in their last bit part its losses as much, natively too.
            tolerance=1e-2,
        ),
        Work(
            "lenet",
            "LeNet-5, 28 x 28, batch 64, momentum",
            64,
            _labelled(CLASSES, 1, 28, 28),
            trains=True,
            tolerance=1e-5,
            drift=1e-2,
        ),
        Work(
            "cnn-adagrad",
            "text CNN, 100 words, windows 3 and 4, batch 128, Adagrad",
            128,
            _texts(100, 2),
            trains=True,
        ),
        Work(
            "cnn-adam",
            "text CNN, 100 words, windows 3 and 4, batch 128, Adam",
            128,
            _texts(100, 2),
            trains=True,
        ),
        Work(
            "lstm",
            "LSTM 128 to 256, 2 layers, 100 steps, batch 32, Adam",
            32,
            _labelled(CLASSES, 100, 128, name="sequence"),
            trains=True,
        ),
    ]
}


def texts(work: Work, length: int) -> Work:
    """A work on words, with texts of another length."""
    return replace(work, draw=_texts(length, CLASSES))
