"""500 lines of text of random widths through PP-OCRv4 recognition: total time, and memory.

Nearly every width is new, so the time includes compilation for new shapes.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers, report, works
from benchmarks.options import Progress
from benchmarks.peers import PEERS, REFERENCE, Assets
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array, Feed

HEIGHT = 48
NAMES = ("engine", "paddle", "paddle-threads", "predictor", "predictor-onednn")
CHUNKS = 10
TOLERANCE = 1e-3
EXPLANATION = """\
{count} lines of text, {height} pixels high, with {distinct} different widths from {low} to {high},
one after the other as they come, through the recognition network of PP-OCRv4. The peers take turns
of {chunk} lines. The time is the sum over all lines, the first one and every compilation included;
memory is what the process holds after so many lines (resident set)."""


def widths(count: int) -> list[int]:
    """Returns random widths of lines, log-uniform from short words to whole lines."""
    sizes = np.exp(np.random.default_rng(0).uniform(np.log(48), np.log(960), count))
    return [int(width) for width in sizes.round()]


@dataclass
class Replay:
    """Results of one peer.

    Attributes:
        seconds: Time of each line.
        memory_mb: Memory before the first line, and after each chunk.
        error: The largest difference from plain Paddle's results, which are probabilities.
        failed: Reason why the peer did not finish, or ``None``.
    """

    seconds: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    error: float = 0.0
    failed: str | None = None


class Reader:
    """Runs lines in a separate process."""

    def __init__(self, folder: Path, peer: str) -> None:
        self._runner = peers.start(works.inference("rec", 1), Assets(folder), peer)

    def read(self, lines: list[int]) -> tuple[list[float], Array, float]:
        """Returns the time of each line, the results of the last one, and the memory afterwards."""
        seconds, output = [], np.empty(0)
        with self._runner.in_use():
            for width in lines:
                feed = _line(width)
                start = time.perf_counter()
                output = self._runner.run(feed)[0]
                seconds.append(time.perf_counter() - start)
        return seconds, np.array(output), memory_mb()


def _line(width: int) -> Feed:
    generator = np.random.default_rng(width)
    return {"x": generator.standard_normal((1, 3, HEIGHT, width), dtype=np.float32)}


def memory_mb(field_name: str = "VmRSS") -> float:
    """Returns a memory field of this process's status, in MB; VmHWM is the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1]) / 1024
    raise PeerError("this system does not tell how much memory a process takes")


def measure(options: Namespace) -> None:
    """Runs the lines; writes ``ocr_widths.md``, ``.json`` and ``.png``."""
    lines = widths(40 if options.quick else 500)
    chunk = len(lines) // CHUNKS
    names = [name for name in NAMES if name in options.peers]
    replays = {name: Replay() for name in names}
    with ExitStack() as stack, Progress("ocr_widths", CHUNKS) as progress:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        readers = {}
        for name in dict.fromkeys([REFERENCE, *names]):
            readers[name] = stack.enter_context(Worker(PEERS[name].settings))
            readers[name].hold(Reader, folder, name)
            if name in replays:
                replays[name].memory_mb.append(readers[name].call(memory_mb))
        for begin in range(0, chunk * CHUNKS, chunk):
            _read_chunk(readers, replays, lines[begin : begin + chunk])
            parts = [f"{name} {sum(replay.seconds):.1f} s" for name, replay in replays.items()]
            progress.done(f"{begin + chunk} lines: {', '.join(parts)}")
    _write(lines, chunk, replays, options.output)


def _read_chunk(readers: dict[str, Worker], replays: dict[str, Replay], lines: list[int]) -> None:
    expected: Array | None = None
    for name, reader in readers.items():
        replay = replays.get(name, Replay())
        if replay.failed:
            continue
        try:
            seconds, output, memory = reader.ask("read", lines)
        except PeerError as error:
            replay.failed = str(error)
            continue
        expected = output if expected is None else expected
        replay.seconds += seconds
        replay.memory_mb.append(memory)
        apart = float(np.abs(output - expected).max())
        replay.error = max(replay.error, apart)
        if not apart <= TOLERANCE:
            replay.failed = f"wrong: a probability is off by {apart:.2g}"


def _write(lines: list[int], chunk: int, replays: dict[str, Replay], folder: Path) -> None:
    ours = replays.get("engine")
    body = []
    for name, replay in replays.items():
        total = sum(replay.seconds)
        ratio = f"{total / sum(ours.seconds):.2f}" if ours and ours.seconds else "-"
        memory = [replay.memory_mb[i] for i in (0, CHUNKS // 2, -1)] if not replay.failed else []
        cells = [f"{value:.0f}" for value in memory] or ["-"] * 3
        time_cell = replay.failed or f"{total:.1f}"
        body.append([PEERS[name].title, time_cell, ratio, *cells])
    half = chunk * CHUNKS // 2
    header = ["", "total (s)", "measured by the engine's", "memory at first (MB)"]
    header += [f"after {half} lines", f"after {2 * half} lines"]
    explanation = EXPLANATION.format(
        height=HEIGHT,
        count=len(lines),
        distinct=len(set(lines)),
        low=min(lines),
        high=max(lines),
        chunk=chunk,
    )
    data: dict[str, Any] = {"widths": lines}
    data["peers"] = {name: vars(replay) for name, replay in replays.items()}
    sections = [explanation, report.table(header, body)]
    done = {PEERS[name].title: replay for name, replay in replays.items() if not replay.failed}
    counts = [float(chunk * number) for number in range(1, CHUNKS + 1)]
    panels = {
        "total time (s)": {
            name: (counts, [sum(r.seconds[: int(c)]) for c in counts]) for name, r in done.items()
        },
        "memory (MB)": {name: (counts, r.memory_mb[1:]) for name, r in done.items()},
    }
    report.lines(report.picture(folder, "ocr_widths"), panels, "lines read", "linear")
    beside = report.column(header, body, header[2])
    report.write(folder, "ocr_widths", "Lines of random widths", sections, data, beside)
