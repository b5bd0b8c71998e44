"""Steps of two machines on a shaped link, and the predictions of the simulator.

The machines are network namespaces with one core each, which a pair of network devices connects;
each end sends at a limited rate. A round measures steps on each link, and without a limit the parts
of a step and all-reduces, from which the steps are predicted. Of several rounds the fastest one is
used. Needs root, two cores and the commands ip and tc (iproute2). All traffic stays
inside the namespaces.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import ranks, report
from benchmarks.options import Progress
from benchmarks.worker import ROOT, PeerError
from paddle_ngraph.distributed.connections import SECRET_VARIABLE
from paddle_ngraph.simulation import prediction
from paddle_ngraph.simulation.collectives import SimulatedLink
from paddle_ngraph.simulation.profile import Profile
from paddle_ngraph.simulation.training import AveragingStrategy, Cluster, step_ms

MEGABITS = {"100 Mbit/s": 100, "1,000 Mbit/s": 1000}
# Parts are computed by one core, and do not wait: their processor time is what they would take
# alone, while other load would make parts and steps differ.
ACTIVITIES = {
    "parts": "parts of a core",
    "steps": "steps",
    **dict.fromkeys(MEGABITS, "steps only"),
}
JOBS = tuple(ACTIVITIES)
SECONDS = 5.0
ROUNDS = 2
# Of a frame of 1,538 bytes, with preamble, header, checksum and gap, TCP carries 1,448. The queue
# counts 1,514 of them.
PAYLOAD = 1448 / 1514
BAR = 0.15
ADDRESSES = ("10.9.1.1", "10.9.1.2")
ABOUT = """\
Milliseconds of a training step of two machines with one core each, on a link that sends at most
100 or 1,000 Mbit/s in each direction, beside what the simulator predicts from a profile of one core
of the same machine. The machines are network namespaces; no frames are delayed."""
PAGE = ROOT / "docs" / "guides" / "scaling.md"
BEGIN, END = "<!-- links: begin -->", "<!-- links: end -->"


def measure(options: Namespace) -> None:
    """Measures the steps; writes ``links.md`` and ``.json``, and ``docs/guides/scaling.md``."""
    models = [name for name in ranks.MODELS if not options.models or name in options.models]
    seconds, count = (1.0, 1) if options.quick else (SECONDS, ROUNDS)
    use_two_cores()
    with (
        Progress("links", count * len(JOBS)) as progress,
        tempfile.TemporaryDirectory() as disk,
    ):
        rounds = [measured_round(models, seconds, Path(disk), progress) for _ in range(count)]
    write(options.output, models, rounds)


def use_two_cores() -> None:
    """Has this process, and those that it starts, use two cores: one for each machine.

    Raises:
        PeerError: There is one core only.
    """
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise PeerError("two machines need two cores")
    os.sched_setaffinity(0, cores)


def measured_round(
    models: Sequence[str], seconds: float, disk: Path, progress: Progress
) -> dict[str, ranks.Found]:
    """The measurements of a round by the names in ``JOBS``, with compiled functions on a disk."""
    found = {}
    for name in JOBS:
        progress.say(name)
        found[name] = _job(ACTIVITIES[name], MEGABITS.get(name), seconds, models, disk)
        progress.done(name)
    return found


def write(folder: Path, models: Sequence[str], rounds: Sequence[Mapping[str, ranks.Found]]) -> None:
    """Writes the steps of the fastest round, beside their predictions."""
    best = min(rounds, key=lambda found: ranks.slowness(found.values()))
    profiles = ranks.profiles(models, {name: {2: [best[name]]} for name in ("parts", "steps")})
    rows = [
        (name, megabits, statistics.median(best[link]["ms"][f"{name} step"]),
         predicted_ms(profiles[name], megabits))
        for name in models
        for link, megabits in MEGABITS.items()
    ]  # fmt: skip
    table = prediction.table(
        ["network", "Mbit/s", "measured ms", "predicted ms", "predicted / measured"],
        [
            [profiles[name].name, f"{megabits:,}", f"{step:.1f}", f"{ms:.1f}", f"{ms / step:.2f}"]
            for name, megabits, step, ms in rows
        ],
    )
    folder.mkdir(parents=True, exist_ok=True)
    header = ["network", "megabits", "measured_ms", "predicted_ms"]
    content = {"steps": [dict(zip(header, row)) for row in rows]}
    report.write(folder, "links", "Two machines on a shaped link", [ABOUT, table], content)
    if folder == report.FOLDER:
        facts = f"Measured on {report.environment()['processor']}."
        PAGE.write_text(ranks.replaced(PAGE.read_text(), [table, facts], BEGIN, END))
    for name, megabits, step, ms in rows:
        if abs(ms / step - 1) > BAR:
            print(f"{name} at {megabits} Mbit/s: {ms:.1f} ms predicted, {step:.1f} measured")


def predicted_ms(profile: Profile, megabits: int) -> float:
    """The predicted step of two machines with a core each.

    Args:
        profile: The profile of a machine with any number of cores.
        megabits: The rate of the link, per second.
    """
    network = SimulatedLink(0.0, PAYLOAD * megabits / 8000)
    cluster = Cluster(ranks=2, per_machine=1, network=network)
    return step_ms(replace(profile, cores=1), cluster, AveragingStrategy("ring", overlaps=False))


def _job(
    what: str, megabits: int | None, seconds: float, models: Sequence[str], disk: Path
) -> ranks.Found:
    """The measurements of a job of two machines; ``None``: on a link without a limit."""
    with tempfile.TemporaryDirectory() as folder, _linked(megabits) as names:
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")])),
            "GLOG_minloglevel": "2",
            "FLAGS_ngraph_cache_dir": str(disk),
            SECRET_VARIABLE: secrets.token_hex(16),
        }
        cores = sorted(os.sched_getaffinity(0))
        rank = [ROOT / "benchmarks" / "rank.py", what, folder, time.time(), seconds]
        started = []
        for node, name in enumerate(names):
            place = ["--nnodes", 2, "--node-rank", node, "--master", f"{ADDRESSES[0]}:6070"]
            launch = ["-m", "paddle_ngraph", "launch", *place, "--nproc", 1, "--log-dir", folder]
            command = ["ip", "netns", "exec", name, "taskset", "-c", cores[node], sys.executable,
                       "-W", "ignore", *launch, *rank, ",".join(models)]  # fmt: skip
            started.append(
                subprocess.Popen(
                    list(map(str, command)),
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        outputs = [each.communicate()[0] for each in started]
        if any(each.returncode for each in started):
            raise PeerError(f"{what}, {megabits} Mbit/s: {outputs[0].strip().splitlines()[-1:]}")
        result: Any = json.loads((Path(folder) / "found.json").read_text())
        return result


@contextmanager
def _linked(megabits: int | None) -> Iterator[tuple[str, str]]:
    """The names of two namespaces with a link; they are deleted at the end."""
    names = (f"pnlink{os.getpid()}a", f"pnlink{os.getpid()}b")
    try:
        for name in names:
            _call("ip", "netns", "add", name)
            _call("ip", "-n", name, "link", "set", "lo", "up")
        peer = ["peer", "name", "eth0", "netns", names[1]]
        _call("ip", "-n", names[0], "link", "add", "eth0", "type", "veth", *peer)
        for name, address in zip(names, ADDRESSES):
            _call("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _call("ip", "-n", name, "link", "set", "eth0", "up")
            if megabits is None:
                continue
            queue = ["tbf", "rate", f"{megabits}mbit", "burst", "128kb", "latency", "100ms"]
            _call("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", *queue)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _call(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise PeerError(f"{' '.join(command)}: {said.strip()}") from error
