"""Runs families of the zoo, each in a process of its own, and writes the page of the results.

    python -m tests.zoo --share 1/8
    python -m tests.zoo --only paddleclas/MixNet --forms "old predictor"
    python -m tests.zoo --timed
    python -m tests.zoo --page-only

Results are lines of JSON in ``tests/zoo/results.jsonl``; a form that has one runs again only if it
was not right, and the sources have changed since. The exit status is 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.shares import revision
from tests.zoo import records
from tests.zoo.child import MARK
from tests.zoo.families import FAMILIES, NetworkFamily

FORMS = (*records.EVALUATED, "dynamic", *records.DYNAMIC)
TIMED_FAMILIES = 20
# The limit of a child by the clock, for what hangs: it is long, since a busy machine takes minutes
# for the training steps of a large network.
SECONDS = 1800
ROOT = records.ROOT


def share_of(families: Sequence[NetworkFamily], share: str) -> list[NetworkFamily]:
    """The families of share ``k/n``: every n-th, so that packages are spread over the shares.

    Raises:
        ValueError: ``share`` is not 1/n to n/n.
    """
    number, _, count = share.partition("/")
    if not number.isdigit() or not count.isdigit() or not 1 <= int(number) <= int(count):
        raise ValueError(f"{share} is no share such as 1/8")
    return list(families[int(number) - 1 :: int(count)])


def timed_families(
    families: Sequence[NetworkFamily], count: int = TIMED_FAMILIES
) -> list[NetworkFamily]:
    """Families of every task, decade and package: next is always what was chosen least so far."""
    left, chosen, seen = list(families), [], Counter[object]()
    for _ in range(min(count, len(left))):
        family = min(left, key=lambda f: sum(seen[trait] for trait in _traits(f)))
        left.remove(family)
        chosen.append(family)
        seen.update(_traits(family))
    return chosen


def _traits(family: NetworkFamily) -> tuple[object, ...]:
    return family.task, family.decade, family.package


def run_family(
    family: NetworkFamily,
    forms: Sequence[str],
    seconds: float = SECONDS,
    module: str = "tests.zoo.child",
) -> Iterator[dict[str, Any]]:
    """Runs forms in a child process; one that crashes or hangs is recorded, and the others follow.

    Args:
        family: The family.
        forms: What to run of it.
        seconds: The time limit of the child.
        module: The child's module.
    """
    waiting = list(forms)
    while waiting:
        running = waiting[0]
        lines, why = _child([sys.executable, "-m", module, family.id, *waiting], seconds)
        for line in lines:
            if isinstance(line, str):
                running = line
            else:
                waiting.remove(line["form"])
                yield line
        if waiting:
            running = running if running in waiting else waiting[0]
            waiting.remove(running)
            yield {
                **records.EMPTY,
                "family": family.id,
                "form": running,
                "outcome": "fails",
                "why": why,
            }


def _child(command: list[str], seconds: float) -> tuple[list[Any], str]:
    environment = {**os.environ, "GLOG_minloglevel": "2", "FLAGS_ngraph_cache_dir": ""}
    environment.setdefault("FLAGS_ngraph_background_compile", "0")
    environment.setdefault("FLAGS_ngraph_tuning_ms", "-1")  # no build waits for a share of time
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
        )
        output, errors, code = done.stdout, done.stderr, str(done.returncode)
    except subprocess.TimeoutExpired as expired:
        output, errors = (_text(stream) for stream in (expired.stdout, expired.stderr))
        code = f"none within {seconds:g} s"
    marked = [line[len(MARK) :] for line in output.splitlines() if line.startswith(MARK)]
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
    return [
        json.loads(line) for line in marked
    ], f"the process ended with code {code}: {last[:200]}"


def _text(stream: bytes | str | None) -> str:
    return stream.decode(errors="replace") if isinstance(stream, bytes) else stream or ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing of a share, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", default="1/1", help="k/n: every n-th family from the k-th")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="families with this in the id")
    parser.add_argument(
        "--forms", nargs="+", choices=(*FORMS, *records.TIMED), metavar="FORM", help="forms to run"
    )
    parser.add_argument("--timed", action="store_true", help="time 20 families instead")
    parser.add_argument("--again", action="store_true", help="run also what has a record")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of a family")
    parser.add_argument("--results", type=Path, default=records.RESULTS, help="lines of JSON")
    parser.add_argument("--page", type=Path, default=records.PAGE, help="the page to write")
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)

    results, now = records.Results(options.results), revision()
    families = timed_families(FAMILIES) if options.timed else FAMILIES
    forms = options.forms or (records.TIMED if options.timed else FORMS)
    wrong = 0
    for family in [] if options.page_only else share_of(families, options.share):
        if options.only and not any(text in family.id for text in options.only):
            continue
        wanted = forms if options.again else results.missing(family, forms, now)
        for record in run_family(family, wanted, options.seconds):
            record["revision"] = now
            if record["form"] in records.TIMED:
                record["machine"] = records.machine()
            results.add(record)
            wrong += record["outcome"] in ("wrong", "fails")
            print(_line(record), flush=True)
    results.compact()
    options.page.write_text(records.page(results))
    return 1 if wrong else 0


def _line(record: dict[str, Any]) -> str:
    covered = "" if record["coverage"] is None else f", {record['coverage']:.1%} of the time"
    detail = f": {record['why']}" if record["why"] else ""
    return (
        f"{record['family']}, {record['form']}: {record['outcome']}, error {record['error']:.1e}"
        f"{covered}, {record['seconds']} s{detail}"
    )


if __name__ == "__main__":
    sys.exit(main())
