"""The report of the doctor: facts, self-test, what ran where, and what would gain most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Callable

from paddle_ngraph import installation
from paddle_ngraph.doctor.facts import Fact, facts
from paddle_ngraph.errors import printable

if TYPE_CHECKING:
    from paddle_ngraph.doctor.advice import Change
    from paddle_ngraph.doctor.observation import Observation
    from paddle_ngraph.doctor.self_test import SelfTest

# What the doctor looks at beside the machine: a model or a script.
Subject = Callable[[], "Observation"]
_SHOWN_OPERATORS = 5


@dataclass(frozen=True)
class Checkup:
    """The report; ``str()`` gives it in words.

    Attributes:
        facts: Of the installation and the machine.
        self_tests: Small programs; empty without an engine.
        observation: Runs of the model or script, if there is one.
        changes: The changes that would gain most.
    """

    facts: Sequence[Fact]
    self_tests: Sequence[SelfTest] = ()
    observation: Observation | None = None
    changes: Sequence[Change] = ()

    @property
    def problems(self) -> list[str]:
        """Sentences, each with a problem and its remedy."""
        found = [fact.problem for fact in self.facts if fact.problem]
        for each in self.self_tests:
            if not each.passed:
                found.append(
                    f"The self-test {each.name!r} failed ({each.engine_runs} runs of the engine, "
                    f"results {each.difference:.2g} apart): report it with this text."
                )
        if self.observation is not None and self.observation.failure:
            found.append(f"The script ended with {self.observation.failure}.")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as data for JSON; fields of later releases may be added."""
        return {
            "facts": [each.as_dict() for each in self.facts],
            "self_tests": [each.as_dict() for each in self.self_tests],
            "observation": None if self.observation is None else self.observation.as_dict(),
            "changes": [each.as_dict() for each in self.changes],
            "problems": self.problems,
        }

    def __str__(self) -> str:
        lines: list[str] = []
        for section, group in groupby(self.facts, key=lambda fact: fact.section):
            lines += ["", section]
            lines += [f"  {fact.name}: {fact.value}" for fact in group]
        if self.self_tests:
            lines += ["", "self-test"]
            lines += [f"  {_line_of(each)}" for each in self.self_tests]
        if self.observation is not None:
            lines += ["", self.observation.kind, *_lines_of(self.observation)]
            lines += ["", "what would gain most", *_numbered(self.changes)]
        lines += ["", "problems", *([f"  {each}" for each in self.problems] or ["  none"])]
        return printable("\n".join(lines[1:]))


def examine(subject: Subject | None = None) -> Checkup:
    """Reads the facts, tests the engine, and observes the subject, if there is one and an engine.

    Raises:
        NgraphError: The subject cannot be run at all.
    """
    found = Checkup(facts())
    if installation.why_unavailable() is not None:
        return found
    from paddle_ngraph.doctor import advice, self_test

    found = replace(found, self_tests=self_test.self_tests())
    if subject is None:
        return found
    observation = subject()
    return replace(found, observation=observation, changes=advice.changes(observation))


def measured(found: Checkup, arguments: Sequence[str]) -> Checkup:
    """Tries each change that can be tried, in a process of its own.

    Args:
        found: The report without the change.
        arguments: Of ``python -m paddle_ngraph doctor``, for the model or the script.
    """
    if found.observation is None:
        return found
    from paddle_ngraph.doctor import advice

    before, changes = advice.time_of(found.observation), []
    for change in found.changes:
        if change.can_be_tried:
            print(f"trying: {change.sentence}", file=sys.stderr)
            after = _time_with(change, arguments)
            change = change if after is None else change.measured(before, after)
        changes.append(change)
    return replace(found, changes=changes)


def _time_with(change: Change, arguments: Sequence[str]) -> float | None:
    """The time of the subject with a change, in milliseconds, or ``None`` if it failed."""
    environment = {**os.environ, **{k: v for k, v in change.environment.items() if v is not None}}
    for name, value in change.environment.items():
        if value is None:
            environment.pop(name, None)
    given = [f"--dynamic-{change.dynamic}"] if change.dynamic else []
    command = [sys.executable, "-m", "paddle_ngraph", "doctor", "--json", *given, *arguments]
    ended = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    try:
        observation = json.loads(ended.stdout)["observation"]
    except ValueError:
        return None
    if observation is None or observation["failure"]:
        return None
    is_model = observation["kind"] == "model"
    return float(observation["engine_run_ms"] if is_model else 1e3 * observation["seconds"])


def _line_of(test: SelfTest) -> str:
    verdict = "passed" if test.passed else "FAILED"
    return (
        f"{test.name}: {verdict}, {test.native_ms:.3g} ms natively, {test.engine_ms:.3g} ms by the "
        f"engine, results {test.difference:.1g} apart"
    )


def _lines_of(observation: Observation) -> Iterator[str]:
    """The runs in words."""
    if observation.kind == "model":
        ratio = observation.native_run_ms / (observation.engine_run_ms or 1)
        yield (
            f"  {observation.native_run_ms:.3g} ms a run natively, {observation.engine_run_ms:.3g} "
            f"ms by the engine: {ratio:.2f}x; {observation.converted:.1%} of operators converted"
        )
    else:
        yield f"  {observation.seconds:.3g} s in all"
    if observation.why_native is not None:
        yield f"  runs natively: {observation.why_native}"
    for name, count in observation.runs.items():
        yield f"  {count} runs: {name}, {observation.ms[name]:.3g} ms in all"
    if not observation.runs:
        yield "  no program, predictor or compiled layer ran"
    total = f"{observation.build_ms:.4g} ms in all"
    yield f"  {observation.functions} functions built or loaded, {total}"
    for each in observation.native[:_SHOWN_OPERATORS]:
        yield f"  native {each.type} x{each.count}, {each.share:.1%} of native time: {each.reason}"


def _numbered(changes: Sequence[Change]) -> Iterator[str]:
    if not changes:
        yield "  nothing that was looked for"
    for number, change in enumerate(changes, 1):
        if change.ratio is not None:
            gain = f"measured: {change.ratio:.2f} of the time"
        elif change.can_be_tried:
            gain = f"estimate: {1 - change.share:.2f} of the time; --measure tries it"
        else:
            gain = f"estimate: up to {change.share:.0%} of the time"
        numbers = "; results change" if change.changes_numbers else ""
        yield f"  {number}. {change.sentence} ({gain}{numbers})"
