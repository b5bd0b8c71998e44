"""Recurrent layers of Paddle, of this package and of PyTorch, which run in turns.

Each framework has a process of its own: its OpenMP threads wait for the next loop by spinning, and
two runtimes in one process slowed each other by up to a hundred times.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from benchmarks.worker import Worker
from paddle_ngraph import _core, flags, mkl_packed

VARIANTS = ("forward", "training")
WARM_RUNS = 2
# OpenMP threads spin for 0.2 s after a loop (KMP_BLOCKTIME).
PAUSE = 0.25


@dataclass(frozen=True)
class Case:
    """A network and its input."""

    title: str
    kind: str
    input: int
    hidden: int
    layers: int
    batch: int
    steps: int


@dataclass(frozen=True)
class Contestant:
    """An implementation of the network: a forward pass, and a forward and backward pass."""

    name: str
    infer: Callable[[], Any]
    train: Callable[[], Any]


class Peer:
    """The contestants of one framework, made and run in the process of a :class:`Worker`.

    Args:
        framework: A key of ``FRAMEWORKS``.
        threads: Their number. Times on one thread are processor time.
        names: The contestants to run; all, if empty.
    """

    def __init__(self, framework: str, threads: int, names: Collection[str] = ()) -> None:
        paddle.disable_static()
        set_threads(threads)
        self._framework, self._names = framework, names
        self._clock = time.process_time if threads == 1 else time.perf_counter
        self._contestants: list[Contestant] = []

    def prepare(self, case: Case) -> None:
        """Makes the contestants of a case, in place of those of an earlier one.

        Raises:
            ValueError: A contestant has another output than the first.
        """
        self._contestants = []  # their memory is free before that of the next
        x = np.random.default_rng(0).standard_normal((case.steps, case.batch, case.input))
        made = FRAMEWORKS[self._framework](case, x.astype(np.float32))
        _compare(made)
        self._contestants = [each for each in made if not self._names or each.name in self._names]

    def sample(self, variant: str, runs: int) -> dict[str, float]:
        """Milliseconds by contestant: the median of several runs, after others."""
        found = {}
        for each in self._contestants:
            run = each.infer if variant == "forward" else each.train
            times = []
            for _ in range(WARM_RUNS + runs):
                start = self._clock()
                run()
                times.append(1e3 * (self._clock() - start))
            found[each.name] = statistics.median(times[WARM_RUNS:])
        return found


def _compare(contestants: Sequence[Contestant]) -> None:
    outputs = [(each.name, each.infer().numpy()) for each in contestants]
    for name, found in outputs:
        if not np.isfinite(found).all() or np.abs(found - outputs[0][1]).max() > 1e-5:
            raise ValueError(f"{name}: another result than {outputs[0][0]}'s")


class Alternation:
    """Runs of the frameworks in turns.

    Args:
        threads: Their number.
        rounds: Their number.
        runs: The runs of a contestant in a round.
        names: The contestants to run; all, if empty.
    """

    def __init__(self, threads: int, rounds: int, runs: int, names: Collection[str] = ()) -> None:
        self._rounds, self._runs = rounds, runs
        self._pause = 0.0 if threads == 1 else PAUSE
        self._workers = [Worker({}) for _ in FRAMEWORKS]
        for worker, framework in zip(self._workers, FRAMEWORKS):
            worker.hold(Peer, framework, threads, names)

    def __enter__(self) -> Alternation:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()

    def of(self, case: Case) -> dict[str, list[dict[str, float]]]:
        """Milliseconds of a case: for each variant the rounds, by contestant."""
        for worker in self._workers:
            worker.ask("prepare", case)
        return {
            variant: [*map(partial(self._one_round, variant), range(self._rounds))]
            for variant in VARIANTS
        }

    def _one_round(self, variant: str, number: int) -> dict[str, float]:
        """One round; every other one begins with the last framework."""
        found: dict[str, float] = {}
        for worker in self._workers[:: -1 if number % 2 else 1]:
            time.sleep(self._pause)
            found |= worker.ask("sample", variant, self._runs)
        return {name: found[name] for name in sorted(found, key=_place)}


def _place(name: str) -> tuple[bool, bool, str]:
    """Paddle, the packed layers, PyTorch."""
    return name == "PyTorch", name != "Paddle", name


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The medians of rounds by contestant."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def set_threads(threads: int) -> None:
    """Sets the number of threads of Paddle, of the packed layers, and of PyTorch's next layers."""
    folder = Path(paddle.__file__).parent / "libs"
    ctypes.CDLL(str(folder / "libiomp5.so")).omp_set_num_threads(threads)
    paddle.set_flags({"FLAGS_ngraph_num_threads": threads})


def _paddle(case: Case, x: np.ndarray) -> list[Contestant]:
    """Returns Paddle's layer, and the packed one of each provider with equal weights."""
    paddle.seed(1)
    sizes = (case.input, case.hidden, case.layers)
    native = getattr(paddle.nn, case.kind)(*sizes, time_major=True)
    packed = getattr(mkl_packed, case.kind)(*sizes, time_major=True)
    packed.set_state_dict(native.state_dict())
    tensor = paddle.to_tensor(x)

    def contestant(name: str, net: Any, prepare: Callable[[], None]) -> Contestant:
        def infer() -> Any:
            prepare()
            net.eval()
            with paddle.no_grad():
                return net(tensor)[0]

        def train() -> None:
            prepare()
            net.train()
            net(tensor)[0].mean().backward()
            net.clear_gradients()

        return Contestant(name, infer, train)

    def by(provider: str, packs: bool) -> Callable[[], None]:
        def prepare() -> None:
            flags.set("mkl_packed_provider", provider)
            _core.mkl_packed.set_packing(packs)

        return prepare

    found = [contestant("Paddle", native, lambda: None)]
    for provider in ("onednn", "mkl"):
        if not _core.mkl_packed.why_unavailable(provider):
            found.append(contestant(f"{provider} packed", packed, by(provider, True)))
            found.append(contestant(f"{provider} unpacked", packed, by(provider, False)))
    return found


def _torch(case: Case, x: np.ndarray) -> list[Contestant]:
    try:
        import torch
    except ImportError:
        return []
    torch.set_num_threads(flags.get("ngraph_num_threads"))
    kind = {"SimpleRNN": torch.nn.RNN}.get(case.kind) or getattr(torch.nn, case.kind)
    net = kind(case.input, case.hidden, case.layers)
    tensor = torch.from_numpy(x)

    def infer() -> Any:
        with torch.no_grad():
            return net(tensor)[0]

    def train() -> None:
        net(tensor)[0].mean().backward()
        net.zero_grad()

    return [Contestant("PyTorch", infer, train)]


FRAMEWORKS = {"paddle": _paddle, "torch": _torch}
