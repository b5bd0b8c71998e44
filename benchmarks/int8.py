"""Networks quantized by Paddle's own tools: int8 through the engine, beside float32."""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import report
from benchmarks.comparison import Pace
from benchmarks.options import Progress, chosen
from benchmarks.worker import PeerError, Worker
from benchmarks.works import INFERENCE_MODELS, Array, Feed
from demos import datasets
from demos.datasets import DataFile
from demos.ocr_demo import files

MODELS = ("resnet50", "mobilenet_v2", "rec")
BATCH = 8
CALIBRATED, COMPARED = 8, 32  # batches
FLOAT32, INT8, SIMULATED = "engine, float32", "engine, int8", "Paddle, simulated"
# The program it runs, and whether through the engine.
WAYS = {FLOAT32: ("float32", True), INT8: ("int8", True), SIMULATED: ("int8", False)}
ABOUT = """\
Networks quantized by Paddle's `PostTrainingQuantization` (weights by channel, activations by
tensor), batch {batch}, in processes that take turns: medians over {rounds} turns. Scales are of
{calibrated} crops of photographs. *Ratio*: how many times as fast int8 is as float32, the median
over the turns. *Simulated*: the quantized program natively, where Paddle computes in float32 with
rounded numbers. *Agreement*: in what share of the top-1 answers to {compared} other crops
(recognition: of those of each time step) the engine agrees with the simulation; in brackets, in
what share the network in float32 does, and how many different answers there are. The weights of
ResNet-50 and MobileNetV2 are random, with statistics of crops in their normalizations; their last
layer is fitted to tell the photographs apart. Where the processor has no units for int8, the engine
computes in float32, too."""
_PHOTOGRAPHS = {
    "astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
    "camera.png": "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a",
    "chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    "coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    "coins.png": "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba",
    "hubble_deep_field.jpg": "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4",
    "ihc.png": "f8dd1aa387ddd1f49d8ad13b50921b237df8e9b262606d258770687b0ef93cef",
    "motorcycle_left.png": "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179",
}
PHOTOGRAPHS = [
    DataFile(files.SCIKIT_IMAGE, (f"skimage/data/{name}",), sha256)
    for name, sha256 in _PHOTOGRAPHS.items()
]
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


@dataclass(frozen=True)
class Found:
    """One model: times of turns, and shares of answers that are as the simulated ones."""

    name: str
    turns_ms: dict[str, list[float]]
    agreement: dict[str, float]
    answers: int

    def ms(self, way: str) -> float:
        """The median of the turns."""
        return statistics.median(self.turns_ms[way])

    @property
    def ratio(self) -> float:
        """How many times as fast int8 is."""
        pairs = zip(self.turns_ms[FLOAT32], self.turns_ms[INT8])
        return statistics.median(a / b for a, b in pairs)


def measure(options: Namespace) -> None:
    """Measures it; writes ``int8.md`` and ``.json``."""
    pace = Pace(1, 0.1) if options.quick else Pace(options.rounds)
    batches = (1, 2) if options.quick else (CALIBRATED, COMPARED)
    names = chosen(options, MODELS)
    earlier = report.earlier(options.output, "int8")
    kept = earlier["models"] if earlier.get("batches") == list(batches) else []
    found = {item["name"]: Found(**item) for item in kept}
    with Progress("int8", len(names)) as progress:
        for name in names:
            progress.say(name)
            found[name] = item = _compare(name, pace, *batches)
            progress.done(f"{name}: {item.ratio:.2f}x, {item.agreement[INT8]:.1%} agree")
            _write(options.output, list(found.values()), pace, batches)


def _write(folder: Path, found: list[Found], pace: Pace, batches: tuple[int, int]) -> None:
    header = ["", *(f"{way} (ms)" for way in WAYS), "ratio", "agreement"]
    rows = [
        [
            INFERENCE_MODELS[item.name][0],
            *(f"{item.ms(way):.2f}" for way in WAYS),
            f"{item.ratio:.2f}",
            f"{item.agreement[INT8]:.1%} ({item.agreement[FLOAT32]:.1%}, {item.answers})",
        ]
        for item in found
    ]
    calibrated, compared = (BATCH * count for count in batches)
    about = ABOUT.format(batch=BATCH, rounds=pace.rounds, calibrated=calibrated, compared=compared)
    data = {"batches": batches, "models": [asdict(item) for item in found]}
    beside = report.column(header, rows, "ratio", "agreement")
    sections = [about, report.table(header, rows)]
    report.write(folder, "int8", "int8 beside float32", sections, data, beside)


def _compare(name: str, pace: Pace, calibrated: int, compared: int) -> Found:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with Worker({}, timeout=3600) as worker:
            programs = worker.call(quantized, name, folder, calibrated)
        workers, answers = {}, {}
        for way, (program, engine) in WAYS.items():
            workers[way] = stack.enter_context(Worker({}, timeout=3600))
            workers[way].hold(Subject, name, programs[program], engine)
            answers[way] = workers[way].ask("answers", compared)
        turns: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(pace.rounds):
            for way, worker in workers.items():
                turns[way].append(worker.ask("turn", pace.seconds))
    expected = answers[SIMULATED]
    agreement = {way: float(np.mean(answers[way] == expected)) for way in (INT8, FLOAT32)}
    return Found(name, turns, agreement, len(np.unique(expected)))


# -- in a process of its own -----------------------------------------------------------------------


def feeds(name: str, seed: int, count: int) -> list[Feed]:
    """So many batches of crops of photographs, as the network reads them."""
    return [feed for feed, _ in _crops(name, seed, count)]


def _crops(name: str, seed: int, count: int) -> list[tuple[Feed, Array]]:
    """So many batches, and the numbers of the photographs that each is of."""
    generator = np.random.default_rng(seed)
    crop = _lines() if name == "rec" else _scenes()
    batches = [list(zip(*(crop(generator) for _ in range(BATCH)))) for _ in range(count)]
    return [({"x": np.stack(x).astype("float32")}, np.array(numbers)) for x, numbers in batches]


Crop = Callable[[np.random.Generator], tuple[Array, int]]


def _scenes() -> Crop:
    """Squares of photographs, of 96 pixels up to the whole."""
    pictures = []
    for path in datasets.fetch(PHOTOGRAPHS):
        with Image.open(path) as picture:
            pictures.append(picture.convert("RGB"))

    def crop(generator: np.random.Generator) -> tuple[Array, int]:
        number = int(generator.integers(len(pictures)))
        picture = pictures[number]
        side = int(generator.integers(96, min(picture.size) + 1))
        pixels = _cut(picture, side, side, (224, 224), generator)
        pixels = (pixels - np.reshape(_MEAN, (3, 1, 1))) / np.reshape(_DEVIATION, (3, 1, 1))
        return pixels, number

    return crop


def _lines() -> Crop:
    """Pieces of a printed page and of a formula, about as high as a line."""
    pictures = [files.open_picture(name) for name in files.PHOTOGRAPHS]

    def crop(generator: np.random.Generator) -> tuple[Array, int]:
        number = int(generator.integers(len(pictures)))
        picture = pictures[number]
        height = int(generator.integers(14, 41))
        return 2 * _cut(picture, height * 320 // 48, height, (320, 48), generator) - 1, number

    return crop


def _cut(
    picture: Image.Image,
    width: int,
    height: int,
    size: tuple[int, int],
    generator: np.random.Generator,
) -> Array:
    """A part of a picture, at a place that is drawn: [3, height, width] from 0 to 1."""
    left = int(generator.integers(picture.width - width + 1))
    top = int(generator.integers(picture.height - height + 1))
    part = picture.crop((left, top, left + width, top + height))
    part = part.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(part, "float32").transpose(2, 0, 1) / 255


def quantized(name: str, folder: Path, calibrated: int) -> dict[str, Path]:
    """The old-style programs of a network, by how they compute."""
    from benchmarks import quantizing

    is_published = name == "rec"
    program = files.network("PP-OCRv4_rec") if is_published else _saved(name, folder, calibrated)
    target = folder / "quantized"
    made = quantizing.post_training(program, feeds(name, 0, calibrated), target)
    return {"float32": program, "int8": made}


def _saved(name: str, folder: Path, calibrated: int) -> Path:
    import paddle
    from paddle.static import InputSpec

    prefix = folder / name
    with paddle.pir_utils.OldIrGuard():
        paddle.disable_static()
        paddle.seed(0)
        network = getattr(paddle.vision.models, name)(num_classes=len(PHOTOGRAPHS))
        _fit(network, _crops(name, 2, 2 * calibrated))
        inputs = [InputSpec([None, 3, 224, 224], "float32", "x")]
        paddle.jit.save(network.eval(), str(prefix), inputs)
        paddle.enable_static()
    return prefix.with_suffix(".pdmodel")


def _fit(network: Any, batches: list[tuple[Feed, Array]]) -> None:
    """Gives a network of random weights the statistics of crops, and fits its last layer.

    It tells the photographs apart then, by regression; otherwise all get one answer.
    """
    import paddle

    pictures = [paddle.to_tensor(feed["x"]) for feed, _ in batches]
    last = [each for each in network.sublayers() if isinstance(each, paddle.nn.Linear)][-1]
    read: list[Array] = []

    def keep(_: Any, given: Any) -> Any:
        read.append(given[0].numpy())

    with paddle.no_grad():
        for layer in network.sublayers():
            if isinstance(layer, paddle.nn.BatchNorm2D):
                layer._momentum = 0.5
        network.train()
        for batch in pictures[:4]:
            network(batch)
        network.eval()
        hook = last.register_forward_pre_hook(keep)
        for batch in pictures:
            network(batch)
        hook.remove()
    x = np.concatenate(read).astype("float64")
    mean = x.mean(0)
    x -= mean
    wanted = np.eye(len(PHOTOGRAPHS))[np.concatenate([numbers for _, numbers in batches])]
    products = x @ x.T
    ridge = 0.01 * np.trace(products) / len(x) * np.eye(len(x))
    weight = x.T @ np.linalg.solve(products + ridge, wanted)
    last.weight.set_value(weight.astype("float32"))
    last.bias.set_value((-mean @ weight).astype("float32"))


class Subject:
    """A program, through the engine or natively.

    Args:
        name: Of :data:`MODELS`.
        program: The old-style program, with its parameters beside it.
        engine: Whether it runs through the engine.
    """

    def __init__(self, name: str, program: Path, engine: bool) -> None:
        import paddle

        import paddle_ngraph

        paddle.enable_static()
        self._name = name
        self._engine = engine
        self._scope = paddle.static.Scope()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.pir_utils.OldIrGuard(), paddle.static.scope_guard(self._scope):
            self._program, _, self._fetches = paddle.static.load_inference_model(
                str(program.with_suffix("")), self._executor
            )
        if engine:
            paddle_ngraph.enable()
        (self._feed,) = feeds(name, 1, 1)

    def _run(self, feed: Feed) -> Any:
        import paddle

        with paddle.pir_utils.OldIrGuard():
            return self._executor.run(
                self._program, feed=feed, fetch_list=self._fetches, scope=self._scope
            )[0]

    def answers(self, count: int) -> Array:
        """The likeliest class of each crop, or of each time step of it, in so many batches."""
        import paddle_ngraph

        found = [self._run(feed).argmax(-1) for feed in feeds(self._name, 1, count)]
        if self._engine and paddle_ngraph.stats()["engine_runs"] == 0:
            raise PeerError("the engine did not run")
        return np.stack(found)

    def turn(self, seconds: float) -> float:
        """The median milliseconds of runs, for so long."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            self._run(self._feed)
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)
