"""Networks quantized by Paddle's own tools: int8 through the engine, compared with float32."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import learning, report
from benchmarks.comparison import Pace
from benchmarks.learning import Stage
from benchmarks.options import Progress, chosen
from benchmarks.pictures import Crops, Lines, reads_as
from benchmarks.worker import PeerError, Worker
from benchmarks.works import INFERENCE_MODELS, Array
from demos.ocr_demo import files

MODELS = ("resnet50", "mobilenet_v2", "rec")
BATCH = 8
CALIBRATED, COMPARED = 8, 32  # batches
FLOAT32, INT8 = "engine, float32", "engine, int8"
SIMULATED, BY_ONEDNN = "Paddle, simulated", "simulated by oneDNN"
# By variant: its program, whether it runs through the engine, and the settings of its process.
VARIANTS: dict[str, tuple[str, bool, dict[str, str]]] = {
    FLOAT32: ("float32", True, {}),
    INT8: ("int8", True, {}),
    SIMULATED: ("int8", False, {}),
    BY_ONEDNN: ("int8", False, {"FLAGS_use_onednn": "1"}),
}
_SEEDS = {"calibrated": 0, "compared": 1}  # of the images; training uses another seed
_STEPS = 10  # training steps between two progress reports
_PICTURES, _WANTED = "pictures.npy", "wanted.json"
ABOUT = """\
Networks quantized by Paddle's `PostTrainingQuantization` (weights by channel, activations by
tensor), batch {batch}, in processes that take turns: medians over {rounds} turns. Scales are of
{calibrated} pictures. *Ratio*: how many times as fast int8 is as float32, the median over the
turns. *Simulated*: the quantized program natively, where Paddle computes in float32 with rounded
numbers. *Agreement*: in what share of the top-1 answers to {compared} other pictures (recognition:
of those of each time step) the engine agrees with the simulation. *By oneDNN*: in what share the
simulation agrees with itself if Paddle's oneDNN kernels run it, which add up in another order:
where a number lies between two of the grid, one rounding decides. *Not quantized*: in what share
the network in float32 agrees with it. *Right*: how many of these pictures are told right in
float32, simulated, and by the engine in int8. Where the processor has no units for int8, the engine
computes in float32, too.

No package index has published weights of ResNet-50 and MobileNetV2. These have learned from random
ones, in all their layers and through the engine, to tell {photographs} photographs by crops, which
differ in place, size, brightness and contrast: {stages}.
The crops for scales and those compared are others of the same photographs.

Recognition has its published weights. Its depthwise convolutions stay in float32: most of what they
read is small beside its largest numbers, so that a common scale leaves little of it. It reads
pieces of the lines that PP-OCR finds on a photographed page, of 48 x 320 pixels. A piece is read
right if all but its first and its last character, which may be cut, stand in the line."""


@dataclass(frozen=True)
class Found:
    """One model: times of samples, shares of predictions as simulated, and of correct ones."""

    name: str
    turns_ms: dict[str, list[float]]
    agreement: dict[str, float]
    right: dict[str, float]

    def ms(self, variant: str) -> float:
        """Returns the median of the samples, in milliseconds."""
        return statistics.median(self.turns_ms[variant])

    @property
    def ratio(self) -> float:
        """The speedup of int8 over float32."""
        pairs = zip(self.turns_ms[FLOAT32], self.turns_ms[INT8])
        return statistics.median(a / b for a, b in pairs)


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement. ``basis`` has the settings that results depend on.

    Attributes:
        pace: Duration of the measurement.
        calibrated: Number of batches for calibration of the scales.
        compared: Number of batches whose predictions are compared.
        stages: Stages of training, by name of the network.
        algorithm: Calibration algorithm: scales from activations.
    """

    pace: Pace
    calibrated: int
    compared: int
    stages: dict[str, tuple[Stage, ...]]
    algorithm: str = "hist"

    @property
    def basis(self) -> dict[str, Any]:
        """The settings as JSON data."""
        stages = {name: [asdict(each) for each in stages] for name, stages in self.stages.items()}
        return {"calibrated": self.calibrated, "compared": self.compared, "stages": stages}


def measure(options: Namespace) -> None:
    """Measures the networks; writes ``int8.md`` and ``.json``."""
    plan = Plan(Pace(options.rounds), CALIBRATED, COMPARED, learning.STAGES)
    if options.quick:
        plan = Plan(Pace(1, 0.1), 1, 2, dict.fromkeys(learning.STAGES, learning.QUICK), "avg")
    names = chosen(options, MODELS)
    earlier = report.earlier(options.output, "int8")
    kept = earlier["models"] if earlier.get("basis") == plan.basis else []
    found = {item["name"]: Found(**item) for item in kept}
    with Progress("int8", len(names)) as progress:
        for name in names:
            found[name] = item = _compare(name, plan, progress.say)
            progress.done(f"{name}: {item.ratio:.2f}x, {item.agreement[INT8]:.1%} agree")
            _write(options.output, list(found.values()), plan)


def _write(folder: Path, found: list[Found], plan: Plan) -> None:
    columns = ["ratio", "agreement", "by oneDNN", "not quantized", "right"]
    header = ["", *(f"{variant} (ms)" for variant in VARIANTS), *columns]
    rows = [
        [
            INFERENCE_MODELS[item.name][0],
            *(f"{item.ms(variant):.2f}" for variant in VARIANTS),
            f"{item.ratio:.2f}",
            *(f"{item.agreement[variant]:.1%}" for variant in (INT8, BY_ONEDNN, FLOAT32)),
            ", ".join(f"{item.right[variant]:.1%}" for variant in (FLOAT32, SIMULATED, INT8)),
        ]
        for item in found
    ]
    about = ABOUT.format(
        batch=BATCH,
        rounds=plan.pace.rounds,
        calibrated=BATCH * plan.calibrated,
        compared=BATCH * plan.compared,
        photographs=learning.CLASSES,
        stages="; ".join(
            f"{INFERENCE_MODELS[name][0].partition(',')[0]} in "
            + " and then ".join(
                f"{stage.steps} steps of {stage.batch} at {stage.side} x {stage.side}"
                for stage in stages
            )
            for name, stages in plan.stages.items()
        ),
    )
    data = {"basis": plan.basis, "models": [asdict(item) for item in found]}
    beside = report.column(header, rows, "ratio", "agreement", "by oneDNN")
    sections = [about, report.table(header, rows)]
    report.write(folder, "int8", "int8 beside float32", sections, data, beside)


def _compare(name: str, plan: Plan, say: Callable[[str], None]) -> Found:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        programs = _made(name, folder, plan, say)
        say(f"{name}: compared")
        workers, answers, right = {}, {}, {}
        for variant, (program, engine, settings) in VARIANTS.items():
            workers[variant] = stack.enter_context(Worker(settings, timeout=3600))
            workers[variant].hold(Subject, folder, programs[program], engine)
            answers[variant], right[variant] = workers[variant].ask("answers")
        samples: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for _ in range(plan.pace.rounds):
            for variant, worker in workers.items():
                samples[variant].append(worker.ask("measure", plan.pace.seconds))
    expected = answers[SIMULATED]
    agreement = {variant: float(np.mean(found == expected)) for variant, found in answers.items()}
    return Found(name, samples, agreement, right)


def _made(name: str, folder: Path, plan: Plan, say: Callable[[str], None]) -> dict[str, Path]:
    """Creates the ProgramDesc programs of a network, by precision, with images in their folder."""
    with Worker({}, timeout=3600) as worker:
        if name in plan.stages:
            _learn(worker, name, plan.stages[name], say)
            program = worker.ask("save", folder)
        else:
            program = worker.call(files.network, "PP-OCRv4_rec")
        say(f"{name}: pictures")
        worker.call(draw, name, folder, plan.compared)
        say(f"{name}: quantized")
        made = worker.call(quantized, name, program, folder, plan.calibrated, plan.algorithm)
    return {"float32": program, "int8": made}


def _learn(
    worker: Worker, name: str, stages: tuple[Stage, ...], say: Callable[[str], None]
) -> None:
    worker.hold(learning.Learner, name, stages)
    steps = sum(stage.steps for stage in stages)
    for done in range(0, steps, _STEPS):
        loss = worker.ask("learn", _STEPS)
        say(f"{name}: learns, step {min(done + _STEPS, steps)} of {steps}, loss {loss:.2f}")


# -- in a separate process -------------------------------------------------------------------------


@cache
def _source(name: str) -> Lines | Crops:
    """Returns the source of images of a network; that of lines reads a page."""
    return Lines() if name == "rec" else Crops()


def _batches(name: str, count: int, purpose: str) -> tuple[Array, list[Any]]:
    """Returns ``count`` batches of images [count, batch, ...], and the label of each."""
    import paddle

    paddle.enable_static()
    source = _source(name)
    generator = np.random.default_rng(_SEEDS[purpose])
    batches, wanted = zip(*(source.batch(generator, BATCH) for _ in range(count)))
    return np.stack(batches), [each for batch in wanted for each in batch]


def draw(name: str, folder: Path, count: int) -> None:
    """Writes batches to a folder, which all processes read."""
    pictures, wanted = _batches(name, count, "compared")
    np.save(folder / _PICTURES, pictures)
    (folder / _WANTED).write_text(json.dumps(wanted))


def quantized(name: str, program: Path, folder: Path, count: int, algorithm: str) -> Path:
    """Returns the quantized program of a network, calibrated with ``count`` batches."""
    from benchmarks import quantizing

    pictures, _ = _batches(name, count, "calibrated")
    feeds = [{"x": each} for each in pictures]
    operators = quantizing.DENSE if name == "rec" else quantizing.OPERATORS
    return quantizing.post_training(
        program, feeds, folder / "int8", algorithm=algorithm, operators=operators
    )


class Subject:
    """A program, run through the engine or by Paddle.

    Args:
        folder: The folder with the images.
        program: The ProgramDesc program, with its parameters in the same folder.
        engine: Whether the program runs through the engine.
    """

    def __init__(self, folder: Path, program: Path, engine: bool) -> None:
        import paddle

        import paddle_ngraph

        paddle.enable_static()
        self._engine = engine
        self._scope = paddle.static.Scope()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.pir_utils.OldIrGuard(), paddle.static.scope_guard(self._scope):
            self._program, _, self._fetches = paddle.static.load_inference_model(
                str(program.with_suffix("")), self._executor
            )
        if engine:
            paddle_ngraph.enable()
        self._pictures = np.load(folder / _PICTURES, mmap_mode="r")
        self._wanted = json.loads((folder / _WANTED).read_text())

    def _run(self, pictures: Array) -> Any:
        import paddle

        with paddle.pir_utils.OldIrGuard():
            return self._executor.run(
                self._program, feed={"x": pictures}, fetch_list=self._fetches, scope=self._scope
            )[0]

    def answers(self) -> tuple[Array, float]:
        """Returns the predicted class of each image, or of each time step; and the accuracy.

        Raises:
            PeerError: The engine should have run, and did not.
        """
        import paddle_ngraph

        found = [self._run(np.array(batch)).argmax(-1) for batch in self._pictures]
        if self._engine and paddle_ngraph.stats()["engine_runs"] == 0:
            raise PeerError("the engine did not run")
        predictions = np.concatenate(found)
        right = [
            reads_as(answer, wanted) if isinstance(wanted, str) else answer == wanted
            for answer, wanted in zip(predictions, self._wanted)
        ]
        return predictions, float(np.mean(right))

    def measure(self, seconds: float) -> float:
        """Runs for ``seconds``; returns the median milliseconds of a run."""
        pictures = np.array(self._pictures[0])
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            self._run(pictures)
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)
