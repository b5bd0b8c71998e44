"""Steps of two machines on a shaped link, and the predictions of the simulator.

The machines are network namespaces with one core each, which a pair of network devices connects;
each end sends at a limited rate. Needs root, two cores and the commands ip and tc (iproute2). All
traffic stays inside the namespaces.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import ranks, report
from benchmarks.options import Progress
from benchmarks.worker import ROOT, PeerError
from paddle_ngraph.distributed.connections import SECRET_VARIABLE
from paddle_ngraph.simulation import prediction
from paddle_ngraph.simulation.collectives import SimulatedLink
from paddle_ngraph.simulation.profile import Profile
from paddle_ngraph.simulation.training import AveragingStrategy

MEGABITS = (100, 1000)
SECONDS = 5.0
# Of a frame of 1,538 bytes, with preamble, header, checksum and gap, TCP carries 1,448. The queue
# counts 1,514 of them.
PAYLOAD = 1448 / 1514
BAR = 0.15
NAMES = ("pnlink1", "pnlink2")
ADDRESSES = ("10.9.1.1", "10.9.1.2")
ABOUT = """\
Milliseconds of a training step of two machines with one core each, on a link that sends at most
100 or 1,000 Mbit/s in each direction, beside what `python -m paddle_ngraph simulate` predicts from
a profile of the same machine. The machines are network namespaces."""


def measure(options: Namespace) -> None:
    """Measures the steps; writes ``links.md`` and ``.json``."""
    models = [name for name in ranks.MODELS if not options.models or name in options.models]
    seconds = 1.0 if options.quick else SECONDS
    jobs = [("parts", 1), ("parts", 2), ("steps", 1), ("steps", 2)]
    found: dict[str, dict[int, list[ranks.Found]]] = {"parts": {}, "steps": {}}
    measured = {}
    with (
        Progress("links", len(jobs) + len(MEGABITS)) as progress,
        tempfile.TemporaryDirectory() as disk,
    ):
        for what, count in jobs:
            progress.say(f"{what} of {count} ranks")
            found[what][count] = [ranks.job(what, count, seconds, models, Path(disk))]
            progress.done(f"{what} of {count} ranks")
        for megabits in MEGABITS:
            progress.say(f"{megabits} Mbit/s")
            measured[megabits] = _job(megabits, seconds, models, Path(disk))
            progress.done(f"{megabits} Mbit/s")
    profiles = ranks.profiles(models, found)
    rows = [
        [name, f"{megabits:,}", step, _predicted(profiles[name], megabits)]
        for name in models
        for megabits in MEGABITS
        for step in [statistics.median(measured[megabits]["ms"][f"{name} step"])]
    ]
    table = prediction.table(
        ["network", "Mbit/s", "measured ms", "predicted ms", "predicted / measured"],
        [[*row[:2], f"{row[2]:.1f}", f"{row[3]:.1f}", f"{row[3] / row[2]:.2f}"] for row in rows],
    )
    options.output.mkdir(parents=True, exist_ok=True)
    header = ["network", "megabits", "measured_ms", "predicted_ms"]
    content = {"steps": [dict(zip(header, row)) for row in rows]}
    report.write(options.output, "links", "Two machines on a shaped link", [ABOUT, table], content)
    for name, megabits, step, predicted in rows:
        if abs(predicted / step - 1) > BAR:
            print(f"{name} at {megabits} Mbit/s: {predicted:.1f} ms predicted, {step:.1f} measured")


def _predicted(profile: Profile, megabits: int) -> float:
    network = SimulatedLink(50.0, PAYLOAD * megabits / 8000)
    scenario = prediction.Scenario(ranks=(2,), per_machine=1, network=network)
    (row,) = prediction.predicted(profile, scenario)
    return row.ms[AveragingStrategy("ring", overlaps=False)]


def _job(megabits: int, seconds: float, models: Sequence[str], disk: Path) -> ranks.Found:
    """The measurements of a job of two machines."""
    with tempfile.TemporaryDirectory() as folder, _linked(megabits):
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")])),
            "GLOG_minloglevel": "2",
            "FLAGS_ngraph_cache_dir": str(disk),
            SECRET_VARIABLE: secrets.token_hex(16),
        }
        cores = sorted(os.sched_getaffinity(0))
        rank = [ROOT / "benchmarks" / "rank.py", "steps", folder, time.time(), seconds]
        started = []
        for node, name in enumerate(NAMES):
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
            raise PeerError(f"{megabits} Mbit/s: {outputs[0].strip().splitlines()[-1:]}")
        result: Any = json.loads((Path(folder) / "found.json").read_text())
        return result


@contextmanager
def _linked(megabits: int) -> Iterator[None]:
    """Two namespaces with a link; they are deleted at the end."""
    try:
        for name in NAMES:
            _call("ip", "netns", "add", name)
            _call("ip", "-n", name, "link", "set", "lo", "up")
        peer = ["peer", "name", "eth0", "netns", NAMES[1]]
        _call("ip", "-n", NAMES[0], "link", "add", "eth0", "type", "veth", *peer)
        for name, address in zip(NAMES, ADDRESSES):
            _call("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _call("ip", "-n", name, "link", "set", "eth0", "up")
            queue = ["tbf", "rate", f"{megabits}mbit", "burst", "128kb", "latency", "100ms"]
            _call("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", *queue)
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _call(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise PeerError(f"{' '.join(command)}: {said.strip()}") from error
