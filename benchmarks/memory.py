"""Peak memory of programs with and without ``paddle_ngraph.optimize_memory``."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.ocr_widths import memory_mb
from benchmarks.options import Progress, chosen
from benchmarks.worker import PeerError, Worker
from benchmarks.works import CLASSES, TRAINING, VOCABULARY, Array, Feed

RUNS, SAMPLES = 10, 5
RNN_STEPS, RNN_WIDTH = 64, 256
ABOUT = """\
The most that a fresh process held, less what it held before it built the program (Paddle and
paddle-ngraph were imported): parameters, the slots of the optimizer, results of operators, what
allocators keep, and with the engine its compiler. {runs} runs, then {turns} in which the processes
take turns, for the time; medians over {rounds} processes for each number. *Optimized*:
`paddle_ngraph.optimize_memory(program, ...)`; *recompute*: with `recompute=0`, as little as
possible. In brackets: how much less than native Paddle, and how many times as long a run takes as
natively, or through the engine, without it. Results of native runs are equal to the last bit."""


@dataclass(frozen=True)
class Network:
    """A measured network: its name in the table, batch size, and feeds."""

    title: str
    batch: int


NETWORKS = {
    "resnet18": Network("ResNet-18, 224 x 224", 8),
    "transformer": Network("Transformer encoder, 4 layers of 256, 128 tokens", 16),
    "bert": Network("BERT-base, 128 tokens", 4),
    "rnn": Network(f"RNN of {RNN_WIDTH}, unrolled over {RNN_STEPS} steps", 32),
}
# By name: whether the engine is on, whether the program is optimized, and the memory budget.
VARIANTS: dict[str, tuple[bool, bool, float | None]] = {
    "native": (False, False, None),
    "native, optimized": (False, True, None),
    "native, recompute": (False, True, 0.0),
    "engine": (True, False, None),
    "engine, optimized": (True, True, None),
    "engine, recompute": (True, True, 0.0),
}


@dataclass(frozen=True)
class Found:
    """Results of one variant of one network.

    Attributes:
        peak_mb: Peak memory of the process, minus its memory before.
        ms: The median time of a run, in milliseconds.
        ratio: The median, over samples, of the time of a run over that without optimization.
        value: The mean of the fetches in the last of the first runs.
    """

    peak_mb: float
    ms: float
    ratio: float
    value: float


def measure(options: Namespace) -> None:
    """Measures the networks; writes ``memory.md`` and ``.json`` after each of them."""
    names = ["rnn"] if options.quick else chosen(options, NETWORKS)
    rounds = 1 if options.quick else options.rounds
    pace = (3, 1) if options.quick else (RUNS, SAMPLES)
    wanted = ("training",) if options.quick else ("training", "inference")
    kinds = [(kind, name) for kind in wanted for name in names]
    earlier = report.earlier(options.output, "memory").get("memory", {})
    found: dict[str, dict[str, dict[str, Any]]] = {kind: earlier.get(kind, {}) for kind in wanted}
    with Progress("memory", len(kinds)) as progress:
        for kind, name in kinds:
            progress.say(f"{kind}, {name}")
            items = _median([_compare(name, kind == "training", *pace) for _ in range(rounds)])
            _check(f"{kind}, {name}", items)
            found[kind][name] = {variant: asdict(item) for variant, item in items.items()}
            summary = (
                f"{variant} {item.peak_mb:.0f} MB {item.ratio:.2f}x"
                for variant, item in items.items()
            )
            progress.done(f"{kind}, {name}: {', '.join(summary)}")
            about = ABOUT.format(runs=pace[0], turns=pace[1], rounds=rounds)
            tables = [_table(kind, rows) for kind, rows in found.items() if rows]
            sections, data = [about, *tables], {"memory": found}
            report.write(options.output, "memory", "Memory", sections, data, _beside(found))


def _compare(name: str, trains: bool, runs: int, samples: int) -> dict[str, Found]:
    """Measures all variants of a network: those by Paddle, then those through the engine."""
    found = {}
    for base in ("native", "engine"):
        variants = [variant for variant in VARIANTS if variant.partition(",")[0] == base]
        with ExitStack() as stack:
            workers = {
                variant: stack.enter_context(_worker(name, trains, variant)) for variant in variants
            }
            first = {variant: worker.ask("first_runs", runs) for variant, worker in workers.items()}
            taken = [
                {w: worker.ask("measure") for w, worker in workers.items()} for _ in range(samples)
            ]
        for variant in variants:
            peak, value = first[variant]
            ms = statistics.median(sample[variant] for sample in taken) * 1000
            ratio = statistics.median(sample[variant] / sample[base] for sample in taken)
            found[variant] = Found(peak, ms, ratio, value)
    return found


def _worker(name: str, trains: bool, variant: str) -> Worker:
    worker = Worker({"FLAGS_ngraph_cache_dir": ""})
    worker.hold(Subject, name, trains, *VARIANTS[variant])
    return worker


def _median(rounds: list[dict[str, Found]]) -> dict[str, Found]:
    return {
        variant: Found(
            *(statistics.median(each) for each in zip(*(astuple(r[variant]) for r in rounds)))
        )
        for variant in VARIANTS
    }


def _check(work: str, found: dict[str, Found]) -> None:
    """Raises PeerError if results of an optimized program differ."""
    native = found["native"].value
    for variant, item in found.items():
        tolerance = 0.0 if variant.startswith("native") else 1e-3
        if not np.isclose(item.value, native, rtol=tolerance, atol=tolerance):
            raise PeerError(f"{work}, {variant}: {item.value} instead of {native}")


def _beside(found: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, str]]:
    return {
        f"{kind}: MB with the engine, with native Paddle": {
            _title(name): f"{_cell(items, 'engine')}, {_cell(items, 'native')}"
            for name, items in networks.items()
        }
        for kind, networks in found.items()
        if networks
    }


def _title(name: str) -> str:
    return f"{NETWORKS[name].title}, batch {NETWORKS[name].batch}"


def _table(kind: str, found: dict[str, dict[str, Any]]) -> str:
    rows = [[_title(name), *(_cell(items, w) for w in VARIANTS)] for name, items in found.items()]
    return f"## {kind.capitalize()}\n\n" + report.table([f"{kind}, MB", *VARIANTS], rows)


def _cell(items: dict[str, Any], variant: str) -> str:
    item, native = items[variant], items["native"]
    pace = f"{item['ratio']:.2f}x" if "," in variant else f"{item['ms']:.0f} ms"
    if variant == "native":
        return f"{item['peak_mb']:.0f} ({pace})"
    return f"{item['peak_mb']:.0f} ({item['peak_mb'] / native['peak_mb'] - 1:+.0%}, {pace})"


# -- in a separate process -------------------------------------------------------------------------


class Subject:
    """One variant of a network, in a separate process.

    Args:
        name: Name in :data:`NETWORKS`.
        trains: Whether a run is a training step or an inference.
        engine: Whether the program runs through the engine.
        optimized: Whether the program is optimized for memory.
        budget: Memory budget of recomputation, in MB: see ``optimize_memory``.
    """

    def __init__(
        self, name: str, trains: bool, engine: bool, optimized: bool, budget: float | None
    ) -> None:
        import paddle

        import paddle_ngraph
        from benchmarks import paddle_models

        paddle.enable_static()
        paddle_ngraph.disable()
        self._engine = engine
        self._before = memory_mb()
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        network = paddle_models.built(*_layouts()[name])
        self._scope, self._executor = paddle_models.started(network.startup)
        self._program, fetch = network.train, network.loss
        self._feed = _feed(name, NETWORKS[name].batch)
        if not trains:
            self._program, fetch = network.test, network.output
            self._feed.pop("label")
        self._fetches = [fetch]
        if optimized:
            shapes = {name: array.shape for name, array in self._feed.items()}
            self._program, self._fetches = paddle_ngraph.optimize_memory(
                self._program, self._fetches, recompute=budget, input_shapes=shapes
            )

    def first_runs(self, runs: int) -> tuple[float, float]:
        """Returns the peak memory in MB over the runs, and the mean of the last one's fetches."""
        import paddle_ngraph

        for _ in range(runs):
            value = self._run()
        if self._engine and paddle_ngraph.stats()["engine_runs"] < runs:
            raise PeerError("the engine did not run")
        return memory_mb("VmHWM") - self._before, float(np.mean(value))

    def measure(self) -> float:
        """Returns the seconds of a run."""
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start

    def _run(self) -> Array:
        import paddle_ngraph

        with paddle_ngraph.use_ngraph(self._engine):
            results: list[Array] = self._executor.run(
                self._program, feed=self._feed, fetch_list=self._fetches, scope=self._scope
            )
        return results[0]


def _layouts() -> dict[str, tuple[Any, Any, Callable[[], Any]]]:
    from paddle import nn

    from benchmarks import paddle_models
    from demos import networks

    def rnn(sequence: Any) -> Any:
        cell = nn.SimpleRNNCell(RNN_WIDTH, RNN_WIDTH)
        state = None
        for step in range(RNN_STEPS):
            _, state = cell(sequence[:, step], state)
        return nn.Linear(RNN_WIDTH, CLASSES)(state)

    sequence = paddle_models.labelled(RNN_STEPS, RNN_WIDTH, name="sequence")
    words = paddle_models.labelled_words(128)
    return {
        "resnet18": paddle_models.trained("resnet18"),
        "transformer": paddle_models.trained("transformer"),
        "bert": (paddle_models.bert_classes, words, lambda: networks.adam(1e-5)),
        "rnn": (rnn, sequence, lambda: networks.momentum(1e-3)),
    }


def _feed(name: str, batch: int) -> Feed:
    generator = np.random.default_rng(0)
    if name in TRAINING:
        return TRAINING[name].draw(generator, batch)
    label = generator.integers(0, CLASSES, (batch, 1))
    if name == "bert":
        return {"words": generator.integers(1, VOCABULARY, (batch, 128)), "label": label}
    sequence = generator.standard_normal((batch, RNN_STEPS, RNN_WIDTH), dtype=np.float32)
    return {"sequence": sequence, "label": label}
