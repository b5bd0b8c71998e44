"""Loops that are hard to trace: with compiled or tuned layers against native Paddle, and bounds.

    python -m benchmarks.loops [--calls 400] [--draws 3] [--kinds numbers shapes]

Each kind of loop has several random draws: widths, depths, batches, and what differs in each call.
Each draw runs in processes of its own: natively, by ``compile()``, by ``enable(dynamic=...)``, and
natively again. Times are those of the processor, so that other processes count little.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

import paddle_ngraph

NATIVE, COMPILED, ENABLED = "native", "compile", "enable"
# The bounds: factors of native time, and what is allowed beyond.
THREAD, PROCESS, LONGEST = (1.15, 2.0), (1.5, 10.0), (3.0, 1.0)
EXTRA_MB = 200.0
TOLERANCE = 1e-2  # of results: trained weights part
Call = Callable[[int], Any]


class Loop(NamedTuple):
    """A loop: its layer, what a call does with it, and whether it trains."""

    layer: Any
    call: Callable[[Any, int], Any]
    trains: bool = False


class _Net(nn.Layer):
    """Linear layers, between which a function acts on the tensor."""

    def __init__(self, width: int, depth: int, act: Callable[..., Any]) -> None:
        super().__init__()
        self.layers = nn.LayerList([nn.Linear(width, width) for _ in range(depth)])
        self.act = act

    def forward(self, x: Any, given: Any = None) -> Any:
        for at, layer in enumerate(self.layers):
            x = self.act(layer(x), given, at)
        return x


def _sizes(chance: random.Random) -> tuple[int, int, int]:
    """A width, a depth and a batch."""
    return chance.choice([8, 32, 64, 128]), chance.randint(1, 6), chance.choice([1, 4, 16, 64])


def _numbers(chance: random.Random) -> Loop:
    """A number that differs in each call, in another place for each draw."""
    width, depth, batch = _sizes(chance)
    place = chance.choice(
        [
            lambda x, number, _: F.tanh(x) * number,
            lambda x, number, _: F.softmax(x / number, axis=-1),
            lambda x, number, _: x.clip(-number, number) + number,
            lambda x, number, _: F.leaky_relu(x, negative_slope=number / 10),
        ]
    )
    x = paddle.randn([batch, width])
    return Loop(_Net(width, depth, place), lambda net, i: net(x, 1.0 + i * 1e-3).sum())


def _shapes(chance: random.Random) -> Loop:
    """Lengths that differ, by which Python slices and reshapes."""
    width, depth, batch = _sizes(chance)
    batch = min(batch, 4)
    most = chance.randint(8, 64)
    places = paddle.randn([1, most + 1, width])

    def act(x: Any, length: int, _: int) -> Any:
        return F.gelu(x + places[:, :length]).reshape([batch, length, width])

    def call(net: Any, i: int) -> Any:
        length = random.Random(i).randint(1, most)
        return net(paddle.ones([batch, length, width]), length).sum()

    return Loop(_Net(width, depth, act), call)


def _objects(chance: random.Random) -> Loop:
    """Python objects decide what is computed."""
    width, depth, batch = _sizes(chance)
    x = paddle.randn([batch, width])
    acts = [F.relu, F.tanh, F.gelu, F.silu, F.elu]

    def call(net: Any, i: int) -> Any:
        chances = random.Random(i)
        return net(x, [chances.choice(acts) for _ in range(depth)]).sum()

    return Loop(_Net(width, depth, lambda x, given, at: given[at](x)), call)


def _breaks(chance: random.Random) -> Loop:
    """Values are read at random places."""
    width, depth, batch = _sizes(chance)
    x = paddle.randn([batch, width])

    def act(x: Any, given: set[int], at: int) -> Any:
        if at in given and float(x.max()) > 1e6:
            return x / 2
        return F.relu(x)

    def call(net: Any, i: int) -> Any:
        chances = random.Random(i)
        return net(x, {at for at in range(depth) if chances.random() < 0.3}).sum()

    return Loop(_Net(width, depth, act), call)


def _growing(chance: random.Random) -> Loop:
    """A network that gets another layer now and then, and trains."""
    width, depth, batch = _sizes(chance)
    net, every = _Net(width, depth, lambda x, *_: F.tanh(x)), chance.randint(20, 60)
    x = paddle.randn([batch, width])

    def call(called: Any, i: int) -> Any:
        if i % every == every - 1 and len(net.layers) < 12:
            net.layers.append(nn.Linear(width, width))
        return _step(called(x).square().mean(), net, 0.01)

    return Loop(net, call, trains=True)


def _beams(chance: random.Random) -> Loop:
    """Beam search: candidates of all beams, the best of which are gathered."""
    width, depth, _ = _sizes(chance)
    beams, steps = chance.randint(2, 6), chance.randint(2, 8)
    net = _Net(width, depth, lambda x, *_: F.relu(x))
    start = paddle.randn([beams, width])

    def search(called: Any, i: int) -> Any:
        states, scores = start + float(i % 7), paddle.zeros([beams, 1])
        for _ in range(steps):
            states = called(states)
            found = (scores + F.log_softmax(states, axis=-1)).reshape([-1])
            best, at = paddle.topk(found, beams)
            scores, states = best.reshape([beams, 1]), paddle.gather(states, at // width)
        return scores.sum()

    return Loop(net, search)


def _small(chance: random.Random) -> Loop:
    """A network of microseconds, with two sizes of batches."""
    width, depth = chance.choice([8, 16, 64]), chance.randint(1, 3)
    given = [paddle.randn([size, width]) for size in (1, chance.randint(2, 32))]
    return Loop(_Net(width, depth, lambda x, *_: F.relu(x)), lambda net, i: net(given[i % 2]).sum())


def _training(chance: random.Random) -> Loop:
    """Training with a learning rate, a factor of the loss and batches that differ."""
    width, depth, batch = _sizes(chance)
    net = _Net(width, depth, lambda x, *_: F.tanh(x))
    x = paddle.randn([batch + 1, width])

    def call(called: Any, i: int) -> Any:
        size = random.Random(i).randint(1, batch)
        loss = called(x[:size]).square().mean() * (1.0 + i * 1e-3)
        return _step(loss, net, 0.01 / (1 + i * 1e-3))

    return Loop(net, call, trains=True)


def _unrolled(chance: random.Random) -> Loop:
    """A recurrent cell that Python unrolls over texts of any length, and trains."""
    width, most = chance.choice([8, 32]), chance.randint(3, 12)
    net = _Net(width, 2, lambda x, *_: F.tanh(x))
    x = paddle.randn([most, 4, width])

    class Unrolled(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.cell = net

        def forward(self, steps: int) -> Any:
            state = paddle.zeros([4, width])
            for at in range(steps):
                state = self.cell(state + x[at])
            return state

    layer = Unrolled()

    def call(called: Any, i: int) -> Any:
        return _step(called(random.Random(i).randint(1, most)).square().mean(), layer, 0.01)

    return Loop(layer, call, trains=True)


def _writes(chance: random.Random) -> Loop:
    """Elements of a cache that is kept are written, at another index in each call."""
    width, depth, batch = _sizes(chance)
    cache = paddle.zeros([64, width])
    x = paddle.randn([batch, width])

    def act(x: Any, i: int, at: int) -> Any:
        cache[(i + at) % 64] = x[0]
        return F.relu(x) + cache[: 1 + i % 3].mean(axis=0)

    return Loop(_Net(width, depth, act), lambda net, i: net(x, i).sum())


KINDS: dict[str, Callable[[random.Random], Loop]] = {
    "numbers": _numbers,
    "shapes": _shapes,
    "objects": _objects,
    "breaks": _breaks,
    "growing": _growing,
    "beams": _beams,
    "small": _small,
    "training": _training,
    "unrolled": _unrolled,
    "writes": _writes,
}


def _step(loss: Any, layer: Any, rate: float) -> Any:
    """A step of gradient descent."""
    loss.backward()
    with paddle.no_grad():
        for parameter in layer.parameters():
            if parameter.grad is not None:
                parameter.set_value(parameter - rate * parameter.grad)
    layer.clear_gradients()
    return loss


class Run(NamedTuple):
    """The measurements of a loop: processor seconds, and peak memory.

    Attributes:
        thread, process: Seconds of the calling thread, and of all threads.
        longest: Seconds of the longest call.
        megabytes: Peak memory.
        results: The results of the calls.
    """

    thread: float
    process: float
    longest: float
    megabytes: float
    results: list[float]


def play(kind: str, draw: int, way: str, calls: int) -> Run:
    """Runs a loop in this process."""
    paddle.seed(draw)
    loop = KINDS[kind](random.Random(draw))
    called = loop.layer
    if way == COMPILED:
        called = paddle_ngraph.compile(loop.layer)
    elif way == ENABLED:
        paddle_ngraph.enable(dynamic="training" if loop.trains else True)
    results, longest = [], 0.0
    thread, process = time.thread_time(), time.process_time()
    with paddle.set_grad_enabled(loop.trains):
        for i in range(calls):
            begin = time.thread_time()
            results.append(float(loop.call(called, i)))
            longest = max(longest, time.thread_time() - begin)
    thread, process = time.thread_time() - thread, time.process_time() - process
    paddle_ngraph.wait_for_compiles()
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Run(thread, process, longest, megabytes, results)


def played(kind: str, draw: int, way: str, calls: int) -> Run:
    """Runs a loop in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.loops"]
    child = subprocess.run(
        [*command, "--play", kind, str(draw), way, "--calls", str(calls)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Run(*json.loads(child.stdout.splitlines()[-1]))


def faults(run: Run, native: Run) -> Iterator[str]:
    """The bounds that a run exceeds, against a native one."""
    for name, (factor, extra) in (("thread", THREAD), ("process", PROCESS), ("longest", LONGEST)):
        seconds, bound = getattr(run, name), factor * getattr(native, name) + extra
        if seconds > bound:
            yield f"{name} {seconds:.2f} s > {bound:.2f} s"
    if run.megabytes > native.megabytes + EXTRA_MB:
        yield f"{run.megabytes - native.megabytes:.0f} MB more"
    if not np.allclose(run.results, native.results, TOLERANCE, TOLERANCE):
        yield "other numbers"


def measure(kinds: list[str], draws: int, calls: int) -> int:
    """Prints a line for each loop; returns the number of loops beyond a bound."""
    beyond = 0
    for kind in kinds:
        for draw in range(draws):
            runs = [played(kind, draw, way, calls) for way in (NATIVE, COMPILED, ENABLED, NATIVE)]
            first, last = runs[0], runs[-1]
            native = Run(
                max(first.thread, last.thread),
                max(first.process, last.process),
                max(first.longest, last.longest),
                max(first.megabytes, last.megabytes),
                first.results,
            )
            for way, run in zip((COMPILED, ENABLED), runs[1:]):
                found = ", ".join(faults(run, native))
                beyond += bool(found)
                print(
                    f"{kind} {draw} {way}: thread {run.thread:.2f} s ({native.thread:.2f}), "
                    f"process {run.process:.2f} ({native.process:.2f}), longest {run.longest:.2f}, "
                    f"{run.megabytes - native.megabytes:+.0f} MB: {found or 'within bounds'}",
                    flush=True,
                )
    return beyond


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        kind, draw, way = options.play
        print(json.dumps(play(kind, int(draw), way, options.calls)))
        return
    beyond = measure(options.kinds, options.draws, options.calls)
    print(f"{beyond} beyond a bound")
    sys.exit(beyond > 0)


if __name__ == "__main__":
    main()
