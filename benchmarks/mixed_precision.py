"""Training steps in bfloat16 and float32: the engine, compared with PyTorch."""

from __future__ import annotations

import statistics
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import peers, report, works
from benchmarks.comparison import Pace
from benchmarks.options import Progress, chosen
from benchmarks.peers import Assets, Runner
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array, Work

ABOUT = """\
The engine with `FLAGS_ngraph_precision=bf16` beside its default and beside PyTorch, eager, with
channels last where there are pictures, in float32 and under `torch.autocast` to bfloat16: {rounds}
turns of processes that take turns. *paddle.amp*: a program with the casts of `paddle.amp.auto_cast`
to bfloat16, at level O1. A ratio says how many times as long as the engine's step in
bfloat16 a step takes: the median of the ratios of the turns. *Loss off by*: the last of the first
{steps} losses, measured by float32's. Where the processor has no units for bfloat16 (AVX512_BF16,
AMX; the list below would name them), the engine uses float32 in both."""


class Variant(NamedTuple):
    """A training configuration: its title in the table, its runner, and its environment."""

    title: str
    start: Callable[[Work, Assets], Runner]
    settings: Mapping[str, str]


class _Autocast(peers.TorchTraining):
    """An eager training step under autocast to bfloat16."""

    def run(self, feed: works.Feed) -> list[Array]:
        *inputs, label = self.tensors(feed)
        self._optimizer.zero_grad()
        with self.torch.autocast("cpu", self.torch.bfloat16):
            output = self.function(*inputs)
            loss = self.torch.nn.functional.cross_entropy(output.float(), label[:, 0])
        loss.backward()
        self._optimizer.step()
        return [self.torch.tensor(loss.item()).numpy()]


class _LastAutocast(_Autocast):
    """An eager training step under autocast to bfloat16, with channels last."""

    channels_last = True


def _torch(plain: Any, last: Any, work: Work, assets: Assets) -> Runner:
    has_pictures = next(iter(work.feeds()[0].values())).ndim == 4
    runner: Runner = (last if has_pictures else plain)(work, assets)
    return runner


class _Amp(peers.EngineTraining):
    """A program with casts from ``paddle.amp`` at level O1."""

    def parts(self, layout: Any, inputs: Any, make_optimizer: Any) -> tuple[Any, Any, Any]:
        import paddle

        def mixed(*values: Any) -> Any:
            with paddle.amp.auto_cast(dtype="bfloat16"):
                return layout(*values)

        return mixed, inputs, make_optimizer


_TORCH = peers.PEERS["torch"].settings
OURS, FLOAT32 = "engine, bfloat16", "engine, float32"
VARIANTS = {
    variant.title: variant
    for variant in (
        Variant(OURS, peers.EngineTraining, {"FLAGS_ngraph_precision": "bf16"}),
        Variant("engine, paddle.amp", _Amp, {"FLAGS_ngraph_precision": "f32"}),
        Variant(FLOAT32, peers.EngineTraining, {"FLAGS_ngraph_precision": "f32"}),
        Variant(
            "PyTorch, float32",
            partial(_torch, peers.TorchTraining, peers.ChannelsLastTraining),
            _TORCH,
        ),
        Variant("PyTorch, autocast", partial(_torch, _Autocast, _LastAutocast), _TORCH),
    )
}


@dataclass(frozen=True)
class Found:
    """One workload: milliseconds of the samples, and difference of the loss from float32."""

    name: str
    description: str
    turns_ms: dict[str, list[float]]
    loss_off: float

    def milliseconds(self, variant: str) -> str:
        """Formats the median of the samples of a configuration."""
        samples = self.turns_ms.get(variant)
        return f"{statistics.median(samples):.2f}" if samples else "-"

    def ratio(self, variant: str) -> float | None:
        """Returns the time of a configuration over that of the engine."""
        pairs = zip(self.turns_ms.get(variant, ()), self.turns_ms[OURS])
        ratios = [theirs / ours for theirs, ours in pairs]
        return statistics.median(ratios) if ratios else None


def measure(options: Namespace) -> None:
    """Measures the workloads; writes ``mixed_precision.md`` and ``.json``."""
    pace = Pace(1, 0.1) if options.quick else Pace(options.rounds)
    wanted = [works.TRAINING[name] for name in chosen(options, works.TRAINING)]
    earlier = report.earlier(options.output, "mixed_precision").get("works", [])
    found = {item["name"]: Found(**item) for item in earlier}
    with Progress("mixed_precision", len(wanted)) as progress:
        for work in wanted:
            progress.say(work.name)
            found[work.name] = item = _compare(work, pace)
            ratios = ", ".join(
                f"{variant} {_cell(item.ratio(variant))}x" for variant in list(VARIANTS)[1:]
            )
            progress.done(f"{work.name}: {item.milliseconds(OURS)} ms; {ratios}")
            _write(options.output, list(found.values()), pace)


def _write(folder: Path, found: list[Found], pace: Pace) -> None:
    others = list(VARIANTS)[1:]
    rows = [
        [
            item.description,
            *(item.milliseconds(variant) for variant in VARIANTS),
            *(_cell(item.ratio(variant)) for variant in others),
            f"{item.loss_off:.1e}",
        ]
        for item in found
    ]
    header = [
        "",
        *(f"{variant} (ms)" for variant in VARIANTS),
        *(f"{variant} (ratio)" for variant in others),
        "loss off by",
    ]
    about = ABOUT.format(rounds=pace.rounds, steps=peers.CHECKED_STEPS)
    data = {"works": [asdict(item) for item in found]}
    sections = [about, report.table(header, rows)]
    beside = report.column(header, rows, f"{FLOAT32} (ratio)")
    report.write(folder, "mixed_precision", "Training steps in bfloat16", sections, data, beside)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _compare(work: Work, pace: Pace) -> Found:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = {
            variant: stack.enter_context(Worker(VARIANTS[variant].settings)) for variant in VARIANTS
        }
        assets = Assets(folder, workers[OURS].call(peers.weights, work))
        losses: dict[str, list[Array]] = {}
        for variant, worker in list(workers.items()):
            try:
                worker.hold(VARIANTS[variant].start, work, assets)
                losses[variant] = worker.ask("results").values
            except PeerError:  # no PyTorch; or Paddle cannot build a program with its AMP lists
                if variant in (OURS, FLOAT32):
                    raise
                del workers[variant]
        samples: dict[str, list[float]] = {variant: [] for variant in workers}
        for _ in range(pace.rounds):
            for variant, worker in workers.items():
                samples[variant].append(
                    1e3 * statistics.median(worker.ask("measure", pace.seconds))
                )
    found, expected = (float(losses[variant][-1]) for variant in (OURS, FLOAT32))
    return Found(work.name, work.description, samples, abs(found - expected) / abs(expected))
