"""Mutation testing: mutants of lines that tests run, tested one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from random import Random
from typing import NamedTuple

from tools.tiers.checkouts import Checkout
from tools.tiers.measuring import Line, Measured
from tools.tiers.mutations import KINDS, Mutation, mutations_of
from tools.tiers.state import State
from tools.tiers.trials import outcome_of, trial, tried_until

STEP = "mutant"
UNFIT = "does not compile"
# Sources, and default number of mutants (COUNTS), by area.
AREAS = {
    "ops": ("paddle_ngraph/ops/*.py",),
    "C++": (
        *(f"paddle_ngraph/core/{folder}/**/*.cc" for folder in ("engine", "ov", "paddle")),
        "paddle_ngraph/mkl_packed/*.cc",
    ),
    "conversion, partitioning, frontends": tuple(
        f"paddle_ngraph/{folder}/**/*.py" for folder in ("conversion", "partitioning", "frontends")
    ),
}
COUNTS = (25, 10, 25)


class Mutant(NamedTuple):
    area: str
    file: str
    mutation: Mutation

    @property
    def name(self) -> str:
        _, line, begin, end, new = self.mutation
        return f"{self.file}:{line} {begin}-{end} {' '.join(new.split())}"


def candidates(tree: Path, area: str) -> list[Mutant]:
    files = sorted({file for pattern in AREAS[area] for file in tree.glob(pattern)})
    return [
        Mutant(area, name, mutation)
        for file in files
        for name in (file.relative_to(tree).as_posix(),)
        for mutation in mutations_of(name, file.read_text())
    ]


def sampled(
    found: Sequence[Mutant], seed: str, is_run: Callable[[str, int], bool]
) -> Iterator[Mutant]:
    """Yields mutants in random order, alternating between kinds, each line at most once.

    The order does not depend on coverage, which differs slightly between runs.
    """
    random = Random(seed)
    queues: dict[str, Iterator[Mutant]] = {}
    for kind in KINDS:
        of_kind = [mutant for mutant in found if mutant.mutation.kind == kind]
        random.shuffle(of_kind)
        queues[kind] = iter(of_kind)
    taken: set[Line] = set()
    for kind in cycle(KINDS):
        if not queues:
            return
        for mutant in queues.get(kind, ()):
            line = Line(mutant.file, mutant.mutation.line)
            if line not in taken and is_run(*line):
                taken.add(line)
                yield mutant
                break
        else:
            queues.pop(kind, None)


def run_all(
    checkouts: Sequence[Checkout], measured: Measured, state: State, counts: Mapping[str, int]
) -> None:
    covered: dict[str, set[int]] = {}

    def is_run(file: str, line: int) -> bool:
        if file not in covered:
            covered[file] = measured.lines(file)
        return line in covered[file]

    def attempt(checkout: Checkout, mutant: Mutant) -> bool:
        known = state.get(STEP, mutant.name)
        outcome = known["outcome"] if known else _run(checkout, measured, state, mutant)
        return outcome != UNFIT

    tree = checkouts[0]
    for area, count in counts.items():
        order = list(sampled(candidates(tree.path, area), f"{tree.commit} {area}", is_run))
        tried_until(count, order, attempt, checkouts, f"mutants in {area}")


def _run(checkout: Checkout, measured: Measured, state: State, mutant: Mutant) -> str:
    file = checkout.path / mutant.file
    text = file.read_text()

    def change() -> bool:
        file.write_text(mutant.mutation.applied(text))
        return True

    line = Line(mutant.file, mutant.mutation.line)
    with trial(checkout, state, change, compiled=not mutant.file.endswith(".py")) as made:
        outcome, test = UNFIT, None
        if made.begin():
            quick = measured.units([line], quick=True)
            outcome, test = outcome_of(made, quick, lambda: measured.units([line], quick=False))
    state.add(
        STEP,
        mutant.name,
        area=mutant.area,
        kind=mutant.mutation.kind,
        line=f"{mutant.file}:{mutant.mutation.line}",
        change=mutant.mutation.described(text),
        outcome=outcome,
        test=test,
    )
    return outcome
