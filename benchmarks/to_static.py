"""Code of dynamic mode: plain layers, layers by ``to_static``, and models by ``jit.load``."""

from __future__ import annotations

import statistics
import tempfile
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

import paddle_ngraph
from benchmarks import report
from benchmarks.comparison import Pace, milliseconds
from benchmarks.options import Progress
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array

CLASSES = 100
WORDS, WIDTH = 1000, 256
STEPS = 3  # number of losses to compare
TOLERANCE = 1e-3
DYNAMIC, TO_STATIC, ENGINE, PROGRAM = "dynamic", "to_static", "to_static, engine", "program, engine"
COMPILED, SWITCHED = "compile(), engine", "enable(dynamic=True), engine"
SWITCHED_TRAINING = 'enable(dynamic="training"), engine'
TRAINING_VARIANTS = (DYNAMIC, TO_STATIC, COMPILED, SWITCHED_TRAINING, ENGINE, PROGRAM)
LAYER_VARIANTS = (DYNAMIC, COMPILED, SWITCHED)
_CALLS_TO_DECIDE = 14  # enable(dynamic=...) decides after fewer calls
LOADED, LOADED_BY_ENGINE, PREDICTOR, EXECUTOR = (
    "jit.load",
    "jit.load, engine",
    "predictor, engine",
    "Executor, engine",
)
ABOUT = """\
Each way has a process of its own, and they take turns: medians over {rounds} turns of the median
step of a turn. A ratio says how many times as long as {reference} it takes: the median of the
ratios of the turns. What is computed is compared with native Paddle's."""
INTRODUCTION = """\
Networks of dynamic mode, in all the ways in which they run, natively and through the engine."""
TRAINING = """\
A step is forward pass, backward pass and optimizer (momentum). *dynamic*: native Paddle, operator
by operator. *compile()*: the layer by `paddle_ngraph.compile`. *enable(dynamic="training")*: with
no other change; measured is what follows the steps by which it decides. *to_static*:
`paddle.jit.to_static`, natively and through the engine; the optimizer is Paddle's in all of these.
*program, engine*: a static program of the same network, optimizer included, by `Executor.run`."""
LAYERS = """\
The same layers in evaluation, under `paddle.no_grad()`, batch 1. *dynamic*: native Paddle, operator
by operator. *enable(dynamic=True)* leaves a layer to Paddle where compiling does not pay."""
INFERENCE = """\
MobileNetV2 as `paddle.jit.save` wrote it, with random weights, batch {batch}, {side} x {side}.
Feeding and fetching count."""


class Mean(nn.Layer):  # type: ignore[misc]
    """A Transformer encoder over tokens; a classifier of their mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0)
        self.words, self.encoder = nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 4)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Any) -> Any:
        """The classes of texts, int64 [batch, length]."""
        return self.out(self.encoder(self.words(words)).mean(axis=1))


class Recurrent(nn.Layer):  # type: ignore[misc]
    """Two recurrent layers over tokens; a classifier of the mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, 128), nn.LSTM(128, WIDTH, num_layers=2)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Any) -> Any:
        """The classes of texts, int64 [batch, length]."""
        return self.out(self.layers(self.words(words))[0].mean(axis=1))


def _mobilenet() -> Any:
    network = paddle.vision.models.mobilenet_v2(num_classes=CLASSES)
    network.classifier[0].p = 0  # no dropout, so that losses can be compared
    return network


@dataclass(frozen=True)
class Net:
    """A network to train.

    Attributes:
        title: Title in the table.
        make: Creates the layer.
        shape, quick_shape: Shape of a batch: of images, or of tokens if it has two dimensions.
        tolerance: Relative tolerance of losses. With small batches, normalization and ReLU, weights
            that differ in their last bit lead to such differences, by Paddle too.
    """

    title: str
    make: Callable[[], Any]
    shape: tuple[int, ...]
    quick_shape: tuple[int, ...]
    tolerance: float = 1e-2

    def describe(self, batch: int) -> str:
        """Returns the title with the batch size, in images or texts."""
        if len(self.shape) == 2:
            return f"{self.title}, {batch} x {self.shape[1]}"
        return f"{self.title}, {self.shape[-2]} x {self.shape[-1]}, batch {batch}"


NETS = {
    "resnet18": Net(
        "ResNet-18",
        lambda: paddle.vision.models.resnet18(num_classes=CLASSES),
        (8, 3, 112, 112),
        (4, 3, 32, 32),
        tolerance=0.1,
    ),
    "mobilenet_v2": Net(
        "MobileNetV2",
        _mobilenet,
        (8, 3, 112, 112),
        (4, 3, 32, 32),
        tolerance=0.1,
    ),
    "transformer": Net("Transformer, 4 layers of 256", Mean, (16, 128), (2, 16)),
    "lstm": Net("LSTM 128 to 256, 2 layers", Recurrent, (32, 100), (2, 16)),
}


class Variant(ABC):
    """One variant of a run, in a separate process."""

    def __init__(self) -> None:
        self.found = [self.run() for _ in range(STEPS)]

    @abstractmethod
    def run(self) -> Array:
        """Runs one step, and returns its result."""

    def results(self) -> list[Array]:
        """Returns the results of the first steps."""
        return self.found

    def engine_runs(self) -> int:
        """Returns the number of engine runs."""
        return int(paddle_ngraph.stats()["engine_runs"])

    def measure(self, seconds: float) -> list[float]:
        """Runs for ``seconds``, at least three steps; returns the milliseconds of each."""
        return milliseconds(self.run, seconds)


def _batch(shape: tuple[int, ...]) -> tuple[Array, Array]:
    generator = np.random.default_rng(0)
    if len(shape) == 2:
        data: Array = generator.integers(0, WORDS, shape)
    else:
        data = generator.standard_normal(shape, dtype=np.float32)
    return data, generator.integers(0, CLASSES, (shape[0], 1))


def _made(net: Net) -> Any:
    paddle.seed(0)
    with paddle.utils.unique_name.guard():
        return net.make()


def _switch_on(dynamic: bool | Literal["training"]) -> None:
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": -1})  # decide at once: tuning is not measured
    paddle_ngraph.enable(dynamic=dynamic)


class DynamicTraining(Variant):
    """A layer, with or without ``to_static``."""

    def __init__(self, name: str, variant: str, is_quick: bool) -> None:
        net = NETS[name]
        paddle_ngraph.enable() if variant == ENGINE else paddle_ngraph.disable()
        layer = _made(net)
        self._network = layer
        if variant == SWITCHED_TRAINING:
            _switch_on("training")
        elif variant == COMPILED:
            self._network = paddle_ngraph.compile(layer)
        elif variant != DYNAMIC:
            self._network = paddle.jit.to_static(layer, full_graph=True)
        self._optimizer = paddle.optimizer.Momentum(1e-3, 0.9, layer.parameters())
        batch = _batch(net.quick_shape if is_quick else net.shape)
        self._data, self._labels = map(paddle.to_tensor, batch)
        super().__init__()
        if variant == SWITCHED_TRAINING:
            for _ in range(_CALLS_TO_DECIDE):
                self.run()

    def run(self) -> Array:
        loss = F.cross_entropy(self._network(self._data), self._labels)
        loss.backward()
        self._optimizer.step()
        self._optimizer.clear_grad()
        return np.array(loss)


class ProgramTraining(Variant):
    """A static program of the layer, with equal parameters."""

    def __init__(self, name: str, variant: str, is_quick: bool) -> None:
        net = NETS[name]
        data, labels = _batch(net.quick_shape if is_quick else net.shape)
        values = {name: value.numpy() for name, value in _made(net).state_dict().items()}
        paddle.enable_static()
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            layer = _made(net)
            logits = layer(paddle.static.data("data", data.shape, str(data.dtype)))
            loss = F.cross_entropy(logits, paddle.static.data("label", labels.shape, "int64"))
            paddle.optimizer.Momentum(1e-3, 0.9).minimize(loss)
        self._main, self._loss = main, loss
        self._feed = {"data": data, "label": labels}
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._executor.run(startup)
        variables = layer.state_dict()
        for name, value in values.items():
            tensor = paddle.static.global_scope().find_var(variables[name].name).get_tensor()
            tensor.set(value, paddle.CPUPlace())
        paddle_ngraph.enable()
        super().__init__()

    def run(self) -> Array:
        (loss,) = self._executor.run(self._main, feed=self._feed, fetch_list=[self._loss])
        return np.array(loss)


class LayerInference(Variant):
    """A layer in evaluation mode, batch size 1."""

    def __init__(self, name: str, variant: str, is_quick: bool) -> None:
        net = NETS[name]
        if variant == SWITCHED:
            _switch_on(True)
        layer = _made(net)
        layer.eval()
        self._network = paddle_ngraph.compile(layer) if variant == COMPILED else layer
        data, _ = _batch((1, *(net.quick_shape if is_quick else net.shape)[1:]))
        self._data = paddle.to_tensor(data)
        for _ in range(_CALLS_TO_DECIDE):
            self.run()
        super().__init__()

    def run(self) -> Array:
        with paddle.no_grad():
            return np.array(self._network(self._data))


class Inference(Variant):
    """A saved model by ``jit.load``, a predictor or an Executor."""

    def __init__(self, prefix: str, variant: str, shape: tuple[int, ...]) -> None:
        paddle_ngraph.disable() if variant == LOADED else paddle_ngraph.enable()
        data, _ = _batch(shape)
        self._step = {PREDICTOR: self._predictor, EXECUTOR: self._program}.get(
            variant, self._layer
        )(prefix, data)
        super().__init__()

    def run(self) -> Array:
        return self._step()

    def _layer(self, prefix: str, data: Array) -> Callable[[], Array]:
        layer = paddle.jit.load(prefix)
        layer.eval()

        def run() -> Array:
            with paddle.no_grad():
                return np.array(layer(paddle.to_tensor(data)).numpy())

        return run

    def _predictor(self, prefix: str, data: Array) -> Callable[[], Array]:
        config = paddle.inference.Config(f"{prefix}.json", f"{prefix}.pdiparams")
        predictor = paddle.inference.create_predictor(config)
        (name,), (fetched,) = predictor.get_input_names(), predictor.get_output_names()
        given, taken = predictor.get_input_handle(name), predictor.get_output_handle(fetched)

        def run() -> Array:
            given.copy_from_cpu(data)
            predictor.run()
            return np.array(taken.copy_to_cpu())

        return run

    def _program(self, prefix: str, data: Array) -> Callable[[], Array]:
        paddle.enable_static()
        executor = paddle.static.Executor(paddle.CPUPlace())
        program, (name,), fetches = paddle.static.load_inference_model(prefix, executor)

        def run() -> Array:
            (fetched,) = executor.run(program, feed={name: data}, fetch_list=fetches)
            return np.array(fetched)

        return run


def save_mobilenet(prefix: str, shape: tuple[int, ...]) -> None:
    """Saves the model of the inference section."""
    network = _made(NETS["mobilenet_v2"])
    network.eval()
    spec = paddle.static.InputSpec([None, *shape[1:]], "float32")
    paddle.jit.save(network, prefix, input_spec=[spec])


@dataclass
class Row:
    """One network: the median step of each sample, in milliseconds, by variant."""

    name: str
    description: str
    tolerance: float = TOLERANCE
    turns_ms: dict[str, list[float]] = field(default_factory=dict)

    def milliseconds(self, variant: str) -> float:
        """Returns the median sample."""
        return statistics.median(self.turns_ms[variant])

    def ratio(self, variant: str, reference: str) -> float:
        """Returns the time of ``variant`` over that of ``reference``: the median of samples."""
        pairs = zip(self.turns_ms[variant], self.turns_ms[reference])
        return statistics.median(ours / theirs for ours, theirs in pairs)


def measure(options: Namespace) -> None:
    """Measures training, layers and models; writes ``to_static.md``, ``.json`` and ``.png``."""
    pace = Pace(1, 0.1) if options.quick else Pace(options.rounds, 2.0)
    names = [name for name in NETS if not options.models or name in options.models]
    shape = (1, 3, 64, 64) if options.quick else (1, 3, 224, 224)
    rows: list[Row] = []
    layers: list[Row] = []
    with Progress("to_static", 2 * len(names) + 1) as progress:
        for name in names:
            net = NETS[name]
            progress.say(name)
            makers = {variant: DynamicTraining for variant in TRAINING_VARIANTS} | {
                PROGRAM: ProgramTraining
            }
            row = Row(name, net.describe(net.shape[0]), net.tolerance)
            alternate(row, {w: (m, name, w, options.quick) for w, m in makers.items()}, pace)
            progress.done(f"{name}: {row.ratio(DYNAMIC, ENGINE):.2f}x")
            rows.append(row)
            progress.say(f"{name} in evaluation")
            row = Row(name, net.describe(1))
            alternate(
                row, {w: (LayerInference, name, w, options.quick) for w in LAYER_VARIANTS}, pace
            )
            progress.done(f"{name}: {row.ratio(DYNAMIC, COMPILED):.2f}x")
            layers.append(row)
        progress.say("inference")
        loaded = _inference(shape, pace)
        progress.done(f"jit.load: {loaded.ratio(LOADED_BY_ENGINE, EXECUTOR):.2f}x of Executor")
    _write(options, pace, rows, layers, loaded, shape)


def _inference(shape: tuple[int, ...], pace: Pace) -> Row:
    row = Row("jit.load", "MobileNetV2")
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "model")
        with Worker({}) as worker:
            worker.call(save_mobilenet, prefix, shape)
        variants = (LOADED, LOADED_BY_ENGINE, PREDICTOR, EXECUTOR)
        alternate(row, {variant: (Inference, prefix, variant, shape) for variant in variants}, pace)
    return row


def alternate(row: Row, starts: dict[str, tuple[Any, ...]], pace: Pace) -> None:
    """Fills a row; the first variant is plain Paddle, whose results are the reference."""
    with ExitStack() as stack:
        workers = {variant: stack.enter_context(Worker({})) for variant in starts}
        expected: Sequence[Array] = []
        for variant, worker in workers.items():
            worker.hold(*starts[variant])
            found = worker.ask("results")
            expected = expected or found
            _check(row, variant, found, expected)
            if (worker.ask("engine_runs") > 0) != variant.endswith("engine"):
                raise PeerError(f"{row.name}, {variant}: whether the engine ran is not as wanted")
        for _ in range(pace.rounds):
            for variant, worker in workers.items():
                sample = statistics.median(worker.ask("measure", pace.seconds))
                row.turns_ms.setdefault(variant, []).append(sample)


def _check(row: Row, variant: str, found: Sequence[Array], expected: Sequence[Array]) -> None:
    offs = [
        float(np.abs(ours - theirs).max() / np.abs(theirs).max())
        for ours, theirs in zip(found, expected)
    ]
    # The first loss is computed from equal weights.
    if not (offs[0] <= TOLERANCE and all(off <= row.tolerance for off in offs)):
        raise PeerError(f"{row.name}, {variant}: off by {max(offs):.1e}")


def _write(
    options: Namespace,
    pace: Pace,
    rows: list[Row],
    layers: list[Row],
    loaded: Row,
    shape: tuple[int, ...],
) -> None:
    sections = [
        INTRODUCTION,
        "## Training",
        TRAINING,
        ABOUT.format(rounds=pace.rounds, reference=f"*{ENGINE}*"),
        _table(rows, TRAINING_VARIANTS, ENGINE),
        "## Layers",
        LAYERS,
        ABOUT.format(rounds=pace.rounds, reference=f"*{COMPILED}*"),
        _table(layers, LAYER_VARIANTS, COMPILED),
        "## Saved models",
        INFERENCE.format(batch=shape[0], side=shape[-1]),
        ABOUT.format(rounds=pace.rounds, reference=f"*{EXECUTOR}*"),
        _table([loaded], list(loaded.turns_ms), EXECUTOR),
    ]
    data = {"quick": options.quick, "training": [asdict(row) for row in rows]}
    data["layers"] = [asdict(row) for row in layers]
    data["inference"] = asdict(loaded)
    report.bars(
        report.picture(options.output, "to_static"),
        "A training step",
        f"times as long as {ENGINE}",
        [row.name for row in rows],
        {variant: [row.ratio(variant, ENGINE) for row in rows] for variant in TRAINING_VARIANTS},
    )
    beside = {
        f"{title}: dynamic, measured by {reference}": {
            row.description: f"{row.ratio('dynamic', reference):.2f}" for row in measured
        }
        for title, measured, reference in (
            ("training", rows, ENGINE),
            ("layers", layers, COMPILED),
        )
    }
    report.write(options.output, "to_static", "Programs of dynamic mode", sections, data, beside)


def _table(rows: Sequence[Row], variants: Sequence[str], reference: str) -> str:
    header = [
        "",
        *(f"{variant} (ms)" for variant in variants),
        *(f"{variant}, ratio" for variant in variants),
    ]
    return report.table(
        header,
        [
            [
                row.description,
                *(f"{row.milliseconds(variant):.2f}" for variant in variants),
                *(f"{row.ratio(variant, reference):.2f}" for variant in variants),
            ]
            for row in rows
        ],
    )
