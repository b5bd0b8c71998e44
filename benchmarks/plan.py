"""Execution plans: independent subgraphs on core groups, and batch slices, against all cores."""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from benchmarks import peers, report, works
from benchmarks.ocr_widths import memory_mb
from benchmarks.options import Progress
from benchmarks.peers import Assets
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array, Work

SAMPLES, SECONDS = 12, 0.5
TOLERANCE = 1e-3
TOWER, LAYERS = 256, 6
PICTURE = 96
TITLE = "Execution plans"
ABOUT = f"""\
*Two towers*: two stacks of {LAYERS} layers of {TOWER} with layer normalization, whose results a
layer compares. *Ensemble*: the mean of four MobileNetV2 of half width, {PICTURE} x {PICTURE}. *One
function*: the engine as it is, all of the program in one function on all cores. *Plan*: a branch
has a core group of its own, as `paddle_ngraph.execution_plan` spreads them over groups of equal
size. *2 slices*: halves of the batch at once, as `paddle_ngraph.data_parallel` makes them.
Processes take turns of {SECONDS} s; the medians of {SAMPLES} turns in each of {{rounds}} rounds, \
and
in brackets how many times as fast as one function. *Memory*: the most that a process held, less
what it held before it built the program, in brackets by that of one function."""


@dataclass(frozen=True)
class Network:
    """A measured network: its name in the table, branches, batch size, whether it trains, and
    whether in batch slices or with branches on core groups. Or a workload of other topics."""

    title: str
    branches: int
    batch: int
    trains: bool = False
    in_slices: bool = False
    work: Work | None = None

    @classmethod
    def of_others(cls, work: Work) -> Network:
        """Returns the network of a workload of other topics, in slices."""
        title = work.description if work.trains else f"{work.description}, batch {work.batch}"
        return cls(title, 1, work.batch, work.trains, in_slices=True, work=work)

    @property
    def variants(self) -> list[str]:
        return ["native", "one function", "2 slices" if self.in_slices else "plan"]


NETWORKS = {
    "two_towers": Network("two towers, batch 16", 2, 16),
    "two_towers_trained": Network("two towers, batch 16, a step of Adam", 2, 16, trains=True),
    "ensemble": Network("ensemble of 4, batch 1", 4, 1),
    "towers_in_slices": Network("two towers, batch 256", 2, 256, in_slices=True),
    "towers_trained_in_slices": Network(
        "two towers, batch 256, a step of Adam", 2, 256, trains=True, in_slices=True
    ),
    "ensemble_in_slices": Network("MobileNetV2 of half width, batch 8", 1, 8, in_slices=True),
    "mobilenet_v2": Network.of_others(works.inference("mobilenet_v2", 8)),
    "resnet50": Network.of_others(works.inference("resnet50", 8)),
    "mlp": Network.of_others(works.TRAINING["mlp"]),
    "transformer": Network.of_others(works.TRAINING["transformer"]),
}
ABOUT_AUTOMATIC = """\
`paddle_ngraph.automatic_plan` predicts what a run takes from its intervals, timed alone and in
company, and times what may be the fastest. *Off*: how far the prediction is from the time, if both
are there. What it chose is in bold."""


@dataclass(frozen=True)
class Found:
    """Results of one variant of one network.

    Attributes:
        ms: The median time of a run, in milliseconds.
        ratio: The median, over samples, of the time of one function over this time.
        peak_mb: Peak memory of the process, minus its memory before; the median over rounds.
    """

    ms: float
    ratio: float
    peak_mb: float


def measure(options: Namespace) -> None:
    """Measures the networks; writes ``plan.md`` and ``.json`` after each of them."""
    names = ["two_towers", "towers_trained_in_slices"] if options.quick else list(NETWORKS)
    rounds, samples, seconds = (1, 2, 0.1) if options.quick else (options.rounds, SAMPLES, SECONDS)
    found: dict[str, dict[str, Any]] = {}
    with Progress("plan", len(names)) as progress:
        for name in names:
            progress.say(name)
            variants = _compare(name, rounds, samples, seconds)
            found[name] = {variant: asdict(item) for variant, item in variants.items()}
            texts = (
                f"{variant} {item.ms:.2f} ms {item.ratio:.2f}x"
                for variant, item in variants.items()
            )
            progress.done(f"{name}: {', '.join(texts)}")
            sections = [ABOUT.format(rounds=rounds), *_tables(found)]
            data: dict[str, Any] = {"plan": found}
            report.write(options.output, "plan", TITLE, sections, data, _beside(found))
    automatic = _automatic(names[:1] if options.quick else names)
    sections += ["## Automatic plans", ABOUT_AUTOMATIC, _table_of_choices(automatic)]
    data = {"plan": found, "automatic": automatic}
    report.write(options.output, "plan", TITLE, sections, data, _beside(found))


def _automatic(names: Sequence[str]) -> dict[str, Choice]:
    """Returns the automatic plan of each network, by its title."""
    found: dict[str, Choice] = {}
    with Progress("automatic plans", len(names)) as progress:
        for name in names:
            with _worker(name, "native") as worker:
                found[NETWORKS[name].title] = worker.ask("automatic")
            progress.done(NETWORKS[name].title)
    return found


def _table_of_choices(found: Mapping[str, Choice]) -> str:
    rows = []
    for title, choice in found.items():
        for name, predicted, measured, reason in choice["options"]:
            off = measured / predicted - 1 if measured and predicted else None
            rows.append(
                [
                    title,
                    f"**{name}**" if name == choice["chosen"] else name,
                    *("-" if ms is None else f"{ms:.2f}" for ms in (predicted, measured)),
                    "-" if off is None else f"{off:+.0%}",
                    reason[:100],
                ]
            )
    return report.table(
        ["", "variant", "predicted (ms)", "measured (ms)", "off", "why it is left out"], rows
    )


def _compare(name: str, rounds: int, samples: int, seconds: float) -> dict[str, Found]:
    names = NETWORKS[name].variants
    times: dict[str, list[float]] = {variant: [] for variant in names}
    peaks: dict[str, list[float]] = {variant: [] for variant in names}
    for _ in range(rounds):
        with ExitStack() as stack:
            workers = {variant: stack.enter_context(_worker(name, variant)) for variant in names}
            values = {variant: worker.ask("first_runs") for variant, worker in workers.items()}
            for variant, value in values.items():
                if not np.isclose(value, values["native"], rtol=TOLERANCE, atol=TOLERANCE):
                    raise PeerError(f"{name}, {variant}: {value} instead of {values['native']}")
            for _ in range(samples):
                for variant, worker in workers.items():
                    times[variant].append(worker.ask("measure", seconds))
            for variant, worker in workers.items():
                peaks[variant].append(worker.ask("peak_mb"))
    return {
        variant: Found(
            statistics.median(mine) * 1000,
            statistics.median(one / other for one, other in zip(times["one function"], mine)),
            statistics.median(peaks[variant]),
        )
        for variant, mine in times.items()
    }


def _beside(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    title = "how many times as fast as one function: its plan, or its slices"
    ratios = {n: list(items.values())[-1]["ratio"] for n, items in found.items()}
    return {title: {NETWORKS[n].title: f"{ratio:.2f}" for n, ratio in ratios.items()}}


def _tables(found: dict[str, dict[str, Any]]) -> list[str]:
    """Returns a table of the plans, and one of the slices."""
    tables = []
    for in_slices in (False, True):
        rows = {n: items for n, items in found.items() if NETWORKS[n].in_slices == in_slices}
        if not rows:
            continue
        variants = NETWORKS[next(iter(rows))].variants
        memory = [f"memory, {variant}" for variant in variants[1:]]
        cells = [[NETWORKS[n].title, *_cells(items)] for n, items in rows.items()]
        tables.append(report.table(["", *variants, *memory], cells))
    return tables


def _cells(items: dict[str, Any]) -> list[str]:
    _, one, last = items.values()
    times = [f"{item['ms']:.2f} ms ({item['ratio']:.2f}x)" for item in items.values()]
    part = last["peak_mb"] / one["peak_mb"]
    return [*times, f"{one['peak_mb']:.0f} MB", f"{last['peak_mb']:.0f} MB ({part:.2f}x)"]


def _worker(name: str, variant: str) -> Worker:
    worker = Worker({})
    worker.hold(Subject, name, variant)
    return worker


# -- in a separate process -------------------------------------------------------------------------


class Choice(TypedDict):
    """An automatic plan: the choice; and, of each candidate, name, predicted and measured time in
    milliseconds, and the reason why it was discarded."""

    chosen: str
    options: list[tuple[str, float | None, float | None, str]]


class Subject:
    """One variant of a network, in a separate process.

    Args:
        name: Name in :data:`NETWORKS`.
        variant: Name of the variant.
    """

    _program: Any
    _executor: Any
    _scope: Any
    _fetches: list[Any]
    _feed: Any

    def __init__(self, name: str, variant: str) -> None:
        import paddle

        import paddle_ngraph

        paddle.enable_static()
        paddle_ngraph.disable()
        self._before_mb = memory_mb()
        self._engine = variant != "native"
        network = NETWORKS[name]
        if network.work is None:
            self._build(name, network)
        else:
            self._take(network.work)
        if variant == "plan":
            groups = _core_groups(network.branches)
            plan = paddle_ngraph.execution_plan(self._program, groups, self._fetches)
            self._program, self._fetches = plan.program, plan.fetches
        if variant == "2 slices":
            made = paddle_ngraph.data_parallel(self._program, 2, self._fetches)
            self._program, self._fetches = made.program, made.fetches

    def _build(self, name: str, network: Network) -> None:
        import paddle

        self._program = paddle.static.Program()
        startup = paddle.static.Program()
        with paddle.static.program_guard(self._program, startup):
            paddle.seed(1)
            build = _ensemble if name.startswith("ensemble") else _two_towers
            self._fetches = [build(network)]
        self._scope = paddle.static.Scope()
        self._executor = paddle.static.Executor()
        self._executor.run(startup, scope=self._scope)
        shape = [3, PICTURE, PICTURE] if name.startswith("ensemble") else [TOWER]
        generator = np.random.default_rng(0)
        sample = generator.standard_normal((network.batch, *shape), dtype=np.float32)
        self._feed = {"x": sample}

    def _take(self, work: Work) -> None:
        with tempfile.TemporaryDirectory() as folder:
            taken: Any = peers.start(work, Assets(Path(folder)), peers.REFERENCE)
        self._program, self._fetches = taken.program, taken.fetches
        self._scope, self._executor = taken.scope, taken.executor
        self._feed = taken.feeds[0]

    def peak_mb(self) -> float:
        """Returns the peak memory of the process, minus its memory before, in MB."""
        return memory_mb("VmHWM") - self._before_mb

    def first_runs(self) -> float:
        """Returns the mean of the fetches of the last of some runs."""
        import paddle_ngraph

        for _ in range(5):
            value = self._run()
        if self._engine and paddle_ngraph.stats()["engine_runs"] < 5:
            raise PeerError("the engine did not run")
        return float(np.mean(value))

    def automatic(self) -> Choice:
        """Returns the automatic plan of the program."""
        import paddle

        import paddle_ngraph

        with paddle_ngraph.use_ngraph(True), paddle.static.scope_guard(self._scope):
            made = paddle_ngraph.automatic_plan(self._program, self._feed, self._fetches)
        options = [(o.name, o.predicted_ms, o.measured_ms, o.reason) for o in made.options]
        return {"chosen": made.chosen, "options": options}

    def measure(self, seconds: float) -> float:
        """Runs for ``seconds``; returns the median seconds of a run."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            self._run()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def _run(self) -> Array:
        import paddle_ngraph

        with paddle_ngraph.use_ngraph(self._engine):
            results: list[Array] = self._executor.run(
                self._program, feed=self._feed, fetch_list=self._fetches, scope=self._scope
            )
        return results[0]


def _core_groups(branches: int) -> list[str]:
    """Returns core groups of equal size: one per branch, if there are enough cores."""
    import paddle_ngraph

    cores = [int(name.split(":")[1]) for name in paddle_ngraph.devices() if ":" in name]
    count = min(branches, len(cores))
    size = len(cores) // count
    parts = [cores[size * i : size * (i + 1)] for i in range(count)]
    return ["CPU:" + ",".join(map(str, part)) for part in parts]


def _samples(network: Network) -> int:
    """Returns the first dimension of the feeds: slices need a dynamic one."""
    return -1 if network.in_slices else network.batch


def _two_towers(network: Network) -> Any:
    import paddle
    from paddle import nn

    x = paddle.static.data("x", [_samples(network), TOWER], "float32")

    def tower() -> Any:
        hidden = x
        for _ in range(LAYERS):
            hidden = nn.functional.gelu(nn.Linear(TOWER, TOWER)(nn.LayerNorm(TOWER)(hidden)))
        return hidden

    both = nn.Linear(2 * TOWER, 1)(paddle.concat([tower(), tower()], 1))
    loss = paddle.mean(both**2)
    if network.trains:
        paddle.optimizer.Adam(1e-4).minimize(loss)
    return loss


def _ensemble(network: Network) -> Any:
    import paddle
    from paddle.vision.models import MobileNetV2

    x = paddle.static.data("x", [_samples(network), 3, PICTURE, PICTURE], "float32")
    models = [MobileNetV2(scale=0.5, num_classes=100) for _ in range(network.branches)]
    for model in models:
        model.eval()
    return paddle.add_n([paddle.nn.functional.softmax(model(x)) for model in models]) / len(models)
