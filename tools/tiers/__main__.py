"""``python -m tools.tiers``: the steps of a measurement, each continued where it was interrupted.

measure    run all tests with coverage by test (~ the time of `make test-all`)
mutants    test mutants of the sources
reverts    test reverts of bug fixes
tables     write the results into docs/development/tiers.md
coverage   run `make test` instead, and print the lines that it runs
"""

from __future__ import annotations

import argparse
import os
import sys

from tools.tiers import mutants, reverts, tables
from tools.tiers.checkouts import FOLDER, ROOT, Checkout, git
from tools.tiers.measuring import Measured, covered, measure
from tools.tiers.state import State

STEPS = ("measure", "mutants", "reverts", "tables")


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tools.tiers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help="all but coverage by default")
    parser.add_argument("--commit", default="HEAD", help="what is measured (default: HEAD)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--mutants",
        type=int,
        nargs=len(mutants.AREAS),
        default=mutants.COUNTS,
        metavar="N",
        help=f"how many in each of: {'; '.join(mutants.AREAS)}",
    )
    parser.add_argument("--reverts", type=int, default=reverts.COUNT, metavar="N")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="other than all, for a trial")
    found = parser.parse_args(arguments)
    found.steps = found.steps or list(STEPS)
    unknown = set(found.steps) - {*STEPS, "coverage"}
    if unknown:
        parser.error(f"no step: {', '.join(sorted(unknown))}")
    return found


def main(arguments: list[str]) -> None:
    options = parsed(arguments)
    commit = git("rev-parse", options.commit)
    if options.commit == "HEAD" and git("status", "--porcelain", "--untracked-files=no"):
        print(f"Measured is {commit[:12]}, without what is not committed.", file=sys.stderr)
    FOLDER.mkdir(exist_ok=True)
    if "coverage" in options.steps:
        folder = measure(commit, "test", options.tests, options.jobs)
        print(tables.coverage_table(covered(folder)))
    if not set(STEPS) & set(options.steps):
        return
    folder = measure(commit, "all", options.tests, options.jobs)
    state = State(FOLDER / commit[:12] / "results.jsonl")
    if {"mutants", "reverts"} & set(options.steps):
        _try_changes(options, commit, Measured(folder), state)
    text = tables.results(commit, state, covered(folder, quick=True))
    if "tables" in options.steps:
        page = ROOT / "docs" / "development" / "tiers.md"
        page.write_text(tables.replaced(page.read_text(), text))
    print(text)


def _try_changes(
    options: argparse.Namespace, commit: str, measured: Measured, state: State
) -> None:
    checkouts = [Checkout(f"tree-{number}", commit) for number in range(options.jobs)]
    for checkout in checkouts:
        if not checkout.build():
            raise SystemExit(checkout.build_failed)
    if "mutants" in options.steps:
        counts = dict(zip(mutants.AREAS, options.mutants))
        mutants.run_all(checkouts, measured, state, counts)
    if "reverts" in options.steps:
        reverts.run_all(checkouts, measured, state, options.reverts, options.tests, options.jobs)


if __name__ == "__main__":
    main(sys.argv[1:])
