"""Steps of data parallelism on the ranks of one machine, and the predictions of the simulator.

Jobs of 1, 2 and 4 ranks measure the data of a profile of ``paddle_ngraph.simulation``. Each profile
is written, its predicted steps are compared with the measured ones, and tables and figures are
added to ``docs/guides/scaling.md``.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report, works
from benchmarks.options import Progress
from benchmarks.worker import ROOT, PeerError
from paddle_ngraph.simulation import collectives, picture, prediction
from paddle_ngraph.simulation.collectives import Sample, SimulatedLink
from paddle_ngraph.simulation.profile import Profile, ProfileSegment

RANKS = (1, 2, 4)
MODELS = ("mlp", "transformer")
ROUNDS = 2
SECONDS = 10.0
PAGE = ROOT / "docs" / "guides" / "scaling.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
ABOUT = """\
Milliseconds of a training step on the ranks of one machine, each with a batch of its own, beside
what `python -m paddle_ngraph simulate` predicts from measured intervals and all-reduces. What it
predicts for more ranks is in [docs/guides/scaling.md](../../docs/guides/scaling.md)."""

Found = Mapping[str, Any]


def measure(options: Namespace) -> None:
    """Measures the jobs; writes ``ranks.md``, ``.json``, profiles, ``docs/guides/scaling.md``."""
    seconds, rounds = (1.0, 1) if options.quick else (SECONDS, ROUNDS)
    models = [name for name in MODELS if not options.models or name in options.models]
    cores = len(os.sched_getaffinity(0))
    jobs = [
        (what, n) for what in ("parts", "steps") for n in RANKS if what == "steps" or n <= cores
    ]
    found: dict[str, dict[int, list[Found]]] = {"parts": {}, "steps": {}}
    with Progress("ranks", rounds * len(jobs)) as progress, tempfile.TemporaryDirectory() as disk:
        for number in range(rounds):
            for what, ranks in jobs:
                progress.say(f"{what} of {ranks} ranks")
                measured = job(what, ranks, seconds, models, Path(disk))
                found[what].setdefault(ranks, []).append(measured)
                texts = (f"{key} {statistics.median(ms):.1f}" for key, ms in measured["ms"].items())
                progress.done(f"round {number + 1}, {what} of {ranks} ranks: {', '.join(texts)}")
    _write(options.output, profiles(models, found), found)


def job(what: str, ranks: int, seconds: float, models: Sequence[str], disk: Path) -> Found:
    """Runs a job of ``ranks`` ranks, and returns its measurements."""
    with tempfile.TemporaryDirectory() as folder:
        rank = [what, folder, time.time(), seconds, ",".join(models)]
        job = ["-m", "paddle_ngraph", "launch", "--nproc", ranks, "--log-dir", folder]
        command = [*job, ROOT / "benchmarks" / "rank.py", *rank]
        path = os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")]))
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", *map(str, command)],
            env={
                **os.environ,
                "PYTHONPATH": path,
                "GLOG_minloglevel": "2",
                "FLAGS_ngraph_cache_dir": str(disk),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if ended.returncode != 0:
            last = (ended.stdout + ended.stderr).strip().splitlines()[-1:]
            raise PeerError(f"{what} of {ranks} ranks: {' '.join(last)}")
        result: Found = json.loads((Path(folder) / "found.json").read_text())
        return result


# -- profiles --------------------------------------------------------------------------------------


def profiles(
    models: Sequence[str], found: Mapping[str, Mapping[int, Sequence[Found]]]
) -> dict[str, Profile]:
    """Returns the profile of each network, from its fastest round.

    Other load on the machine slows down everything for longer than a part of a round, so parts of
    one round do not explain the steps of another.
    """

    count = min(len(rounds) for by_ranks in found.values() for rounds in by_ranks.values())
    best = min(
        range(count),
        key=lambda number: slowness(
            rounds[number] for by_ranks in found.values() for rounds in by_ranks.values()
        ),
    )
    parts, steps = (
        {ranks: rounds[best] for ranks, rounds in found[what].items()}
        for what in ("parts", "steps")
    )
    link = collectives.fitted(_samples(steps))
    restart_s = found["steps"][2][-1]["restart_s"]  # with functions on disk
    return {name: _profile(name, parts, steps, link, restart_s[name]) for name in models}


def slowness(jobs: Iterable[Found]) -> float:
    """The sum of the logarithms of all times that jobs have measured."""
    return sum(math.log(statistics.median(ms)) for job in jobs for ms in job["ms"].values())


def _samples(steps: Mapping[int, Found]) -> list[Sample]:
    """Returns the measured all-reduces."""
    cores = len(os.sched_getaffinity(0))
    return [
        Sample(ranks, -(-ranks // cores), int(name.split()[1]), _ms(job, *name.split()))
        for ranks, job in steps.items()
        for name in job["ms"]
        if name.startswith("all_reduce")
    ]


def _ms(job: Found, subject: str, what: str) -> float:
    """Returns the median milliseconds of one measurement."""
    return statistics.median(job["ms"][f"{subject} {what}"])


def _profile(
    name: str,
    parts: Mapping[int, Found],
    steps: Mapping[int, Found],
    link: SimulatedLink,
    restart_s: float,
) -> Profile:
    """Returns the profile of a network."""
    cores = len(os.sched_getaffinity(0))
    sizes = [0, *parts[max(parts)]["bucket_bytes"][name]]
    by_cores = {cores // ranks: _Parts(job, name, len(sizes)) for ranks, job in parts.items()}
    names = ["forward", *(f"backward {number}" for number in range(1, len(sizes)))]
    return Profile(
        name=works.TRAINING[name].description,
        processor=report.environment()["processor"],
        cores=cores,
        samples=works.TRAINING[name].batch,
        intervals=[
            ProfileSegment(each, {c: p.intervals_ms[i] for c, p in by_cores.items()}, size)
            for i, (each, size) in enumerate(zip(names, sizes))
        ],
        update_ms={c: p.update_ms for c, p in by_cores.items()},
        packing_ms={c: p.packing_ms for c, p in by_cores.items()},
        link=link,
        spread=_spread(parts[max(parts)]["ms"][f"{name} whole"]),
        checkpoint_s=steps[2]["checkpoint_s"][name],
        restart_s=restart_s,
        measured={ranks: _ms(job, name, "step") for ranks, job in steps.items()},
    )


class _Parts:
    """The parts of a step, from the times of its prefixes."""

    def __init__(self, job: Found, name: str, count: int) -> None:
        whole = _ms(job, name, "whole")
        ends = [_ms(job, name, f"beginning {number}") for number in range(count)]
        # A prefix fetches gradients, which takes time that a whole step does not need.
        factor = min(1.0, whole / max(ends))
        ends = [max(ends[: number + 1]) * factor for number in range(len(ends))]
        self.intervals_ms = [end - start for start, end in zip([0.0, *ends], ends)]
        self.update_ms = max(0.0, whole - ends[-1])
        self.packing_ms = max(0.0, _ms(job, name, "packed") - whole)


def _spread(times: Sequence[float]) -> float:
    """Returns the standard deviation of the logarithm of times, from their quartiles."""
    early, _, late = statistics.quantiles(map(math.log, times), n=4)
    return (late - early) / (2 * statistics.NormalDist().inv_cdf(0.75))


# -- pages -----------------------------------------------------------------------------------------


def _write(folder: Path, profiles: Mapping[str, Profile], found: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    checked, predicted = [ABOUT], []
    for name, profile in profiles.items():
        (folder / f"ranks_{name}.json").write_text(json.dumps(profile.to_json(), indent=1) + "\n")
        known = prediction.checked(profile)
        rows = prediction.predicted(profile, prediction.Scenario())
        title = f"## {profile.name}"
        checked += [title, prediction.checked_table(known)]
        predicted += [title, prediction.checked_table(known), _facts(profile)]
        predicted += [prediction.predicted_table(rows), f"![{name}](scaling_{name}.svg)"]
        if folder == report.FOLDER:
            path = PAGE.with_name(f"scaling_{name}.svg")
            path.write_text(picture.picture(profile, known, rows))
    report.write(folder, "ranks", "Ranks of one machine", checked, _summary(found))
    if folder == report.FOLDER:
        facts = [f"- {name}: {value}" for name, value in report.environment().items()]
        PAGE.write_text(replaced(PAGE.read_text(), [*predicted, "\n".join(facts)]))


def _summary(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the measurements, with the quartiles of times."""
    return {
        what: {
            ranks: [
                {
                    **each,
                    "ms": {key: statistics.quantiles(ms, n=4) for key, ms in each["ms"].items()},
                }
                for each in rounds
            ]
            for ranks, rounds in by_ranks.items()
        }
        for what, by_ranks in found.items()
    }


def _facts(profile: Profile) -> str:
    size = sum(interval.bucket_bytes for interval in profile.intervals) / 1e6
    buckets = sum(1 for interval in profile.intervals if interval.bucket_bytes)
    return (
        f"{size:.1f} MB of gradients in {buckets} buckets; in the machine a collective takes "
        f"{profile.link.call_us:.0f} µs, a message {profile.link.latency_us:.0f} µs and its bytes "
        f"{profile.link.gigabytes_per_s:.2f} GB/s; spread "
        f"{profile.spread:.3f}; a checkpoint takes {profile.checkpoint_s:.2f} s, a restart "
        f"{profile.restart_s:.1f} s."
    )


def replaced(page: str, sections: Sequence[str], begin: str = BEGIN, end: str = END) -> str:
    """Returns the page with other sections between the marks."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return "\n\n".join([before.rstrip(), begin, *sections, end]) + after
