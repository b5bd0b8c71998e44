"""Test metrics after training in bfloat16, compared with training in float32."""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import report
from benchmarks.options import Progress
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array

PRECISIONS = ("f32", "bf16")
SEEDS = (0, 1, 2)
WORDS = 24  # of a sentence
ABOUT = """\
Test accuracy in percent after the same steps from the same weights on the same batches, trained
through the engine in float32 and with `FLAGS_ngraph_precision=bf16`, for {seeds} seeds, which draw
the split, the weights and the batches. Both are tested in float32. Where the processor has no units
for bfloat16 (AVX512_BF16, AMX; the list below would name them), the two are the same."""


class Data(NamedTuple):
    """Inputs and labels [rows, 1], for training and test."""

    train: tuple[Array, Array]
    test: tuple[Array, Array]


@dataclass(frozen=True)
class Task:
    """A network, its data, and the length of its training.

    Attributes:
        description: Text for the table.
        data: Returns a random split, given a seed.
        layout: Builds logits from the input, in a program.
        inputs: The shape and the dtype of the input.
        rate: Learning rate of Adam.
        steps: Number of steps, with batches of 64.
    """

    description: str
    data: Callable[[int], Data]
    layout: Callable[[Any], Any]
    inputs: tuple[tuple[int, ...], Any]
    rate: float
    steps: int


def _split(inputs: Array, labels: Array, seed: int) -> Data:
    order = np.random.default_rng(seed).permutation(len(inputs))
    test, train = np.split(order, [len(order) // 5])
    return Data((inputs[train], labels[train]), (inputs[test], labels[test]))


def _digits(seed: int) -> Data:
    from demos import datasets

    pictures, labels = datasets.mnist()
    return _split(pictures.reshape(-1, 1, 28, 28), labels.reshape(-1, 1), seed)


def _sentences(seed: int) -> Data:
    from demos.imdb_demo import reviews

    examples = [example for side in reviews.read_snippets() for example in side]
    words = reviews.build_dictionary(examples, 2, 10000)
    numbers = {word: number for number, word in enumerate(words)}
    rows = np.zeros((len(examples), WORDS), "int64")
    for row, (text, _) in zip(rows, examples):
        found = [numbers.get(word, reviews.UNKNOWN) for word in text.split()[:WORDS]]
        row[: len(found)] = found
    return _split(rows, np.array([[label] for _, label in examples]), seed)


def _picture_network(image: Any) -> Any:
    import paddle
    from paddle import nn

    hidden = nn.BatchNorm2D(16)(nn.Conv2D(1, 16, 5, padding=2)(image))
    hidden = nn.functional.max_pool2d(nn.functional.relu(hidden), 2)
    hidden = nn.BatchNorm2D(32)(nn.Conv2D(16, 32, 5)(hidden))
    hidden = nn.functional.max_pool2d(nn.functional.relu(hidden), 2)
    hidden = nn.functional.relu(nn.Linear(800, 128)(paddle.flatten(hidden, 1)))
    return nn.Linear(128, 10)(hidden)


def _text_network(words: Any) -> Any:
    from demos import networks

    return networks.text_cnn(10000)(words)


def _transformer(words: Any) -> Any:
    import paddle
    from paddle import nn

    hidden = nn.Embedding(10000, 64)(words)
    hidden = hidden + nn.Embedding(WORDS, 64)(paddle.arange(WORDS))
    for _ in range(2):
        hidden = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0)(hidden)
    return nn.Linear(64, 2)(paddle.mean(hidden, 1))


TASKS = {
    "digits": Task(
        "MNIST, two convolutions of 16 and 32 channels with batch normalization",
        _digits,
        _picture_network,
        ((1, 28, 28), "float32"),
        rate=1e-3,
        steps=200,
    ),
    "reviews": Task(
        "sentences of reviews, convolutions over 3 and 4 words",
        _sentences,
        _text_network,
        ((WORDS,), "int64"),
        rate=1e-3,
        steps=200,
    ),
    "transformer": Task(
        "sentences of reviews, a Transformer of 2 layers of 64",
        _sentences,
        _transformer,
        ((WORDS,), "int64"),
        rate=5e-4,
        steps=200,
    ),
}


def _batches(data: tuple[Array, Array], seed: int) -> Iterator[tuple[Array, Array]]:
    generator = np.random.default_rng(seed)
    while True:
        rows = generator.choice(len(data[0]), 64, replace=False)
        yield data[0][rows], data[1][rows]


def trained(name: str, seed: int, steps: int) -> float:
    """Returns the test accuracy in percent after training, in the precision of this process."""
    import paddle
    from paddle.static import InputSpec

    import paddle_ngraph
    from demos import networks, running
    from paddle_ngraph import flags

    paddle.enable_static()
    task = TASKS[name]
    shape, dtype = task.inputs
    specs = InputSpec([None, *shape], dtype, "input"), InputSpec([None, 1], "int64", "label")
    network = networks.build_network(
        task.layout, networks.cross_entropy, specs, lambda: networks.adam(task.rate)
    )
    data = task.data(seed)
    trainer = running.Trainer(network, running.NGRAPH, running.initial_weights(network, seed))
    before = paddle_ngraph.stats()["engine_runs"]
    for _, batch in zip(range(steps), _batches(data.train, seed)):
        trainer.train_step(batch)
    if paddle_ngraph.stats()["engine_runs"] < before + steps:
        raise PeerError("the engine did not run")
    precision = flags.get("ngraph_precision")
    flags.set("ngraph_precision", "f32")
    inputs, labels = data.test
    logits = [trainer.predict(inputs[at : at + 256]) for at in range(0, len(inputs), 256)]
    flags.set("ngraph_precision", precision)
    return 100.0 * float(np.mean(np.concatenate(logits).argmax(1) == labels[:, 0]))


@dataclass(frozen=True)
class Found:
    """The accuracies of one task, by precision, one per seed."""

    name: str
    accuracies: dict[str, list[float]]

    def mean(self, precision: str) -> float:
        """Returns the mean over the seeds."""
        return statistics.mean(self.accuracies[precision])


def measure(options: Namespace) -> None:
    """Trains all tasks; writes ``convergence.md`` and ``.json``."""
    names, seeds = (list(TASKS)[:1], SEEDS[:1]) if options.quick else (list(TASKS), SEEDS)
    with ExitStack() as stack, Progress("convergence", len(names)) as progress:
        workers = {
            precision: stack.enter_context(Worker({"FLAGS_ngraph_precision": precision}))
            for precision in PRECISIONS
        }
        found: list[Found] = []
        for name in names:
            steps = 20 if options.quick else TASKS[name].steps
            accuracies = {
                precision: [worker.call(trained, name, seed, steps) for seed in seeds]
                for precision, worker in workers.items()
            }
            found.append(Found(name, accuracies))
            progress.done(f"{name}: {accuracies}")
            _write(options.output, found)


def _write(folder: Path, found: Sequence[Found]) -> None:
    rows = [
        [
            f"{TASKS[item.name].description}, {TASKS[item.name].steps} steps",
            *(", ".join(f"{value:.2f}" for value in item.accuracies[p]) for p in PRECISIONS),
            *(f"{item.mean(p):.2f}" for p in PRECISIONS),
            f"{item.mean('bf16') - item.mean('f32'):+.2f}",
        ]
        for item in found
    ]
    header = ["", "float32", "bfloat16", "mean, float32", "mean, bfloat16", "difference"]
    seeds = len(found[0].accuracies[PRECISIONS[0]])
    sections = [ABOUT.format(seeds=seeds), report.table(header, rows)]
    data = {"tasks": [asdict(item) for item in found]}
    beside = report.column(header, rows, "difference")
    title = "Trained in bfloat16 and in float32"
    report.write(folder, "convergence", title, sections, data, beside)
