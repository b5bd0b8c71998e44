"""The changes that would gain most, from what was observed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import processor
from paddle_ngraph.doctor.observation import Observation

MOST = 3
# A change below this share of the time is not worth its words.
_LEAST_SHARE = 0.02
# A subgraph with more functions than this gets inputs of many sizes.
_MANY_FUNCTIONS = 4
# By how much bfloat16 shortens matmuls and convolutions is measured with --measure only; without,
# its estimate is that of half the bytes, for half of the time.
_BFLOAT16_GAIN = 0.25


@dataclass(frozen=True)
class Change:
    """A change that the user could make.

    Attributes:
        sentence: The change, as an instruction.
        share: The estimated share of the time that it saves, 0 to 1.
        environment: The variables that make it, for ``--measure``; ``None`` unsets one. Empty if it
            cannot be tried from outside.
        dynamic: The value of ``enable(dynamic=...)`` that makes it, for scripts.
        changes_numbers: Whether results differ by more than float32 rounding.
        ratio: The time with the change relative to that without, once measured.
    """

    sentence: str
    share: float
    environment: Mapping[str, str | None] = field(default_factory=dict)
    dynamic: str = ""
    changes_numbers: bool = False
    ratio: float | None = None

    @property
    def can_be_tried(self) -> bool:
        """Whether a run in another process can try the change."""
        return bool(self.environment or self.dynamic)

    def as_dict(self) -> dict[str, Any]:
        """Returns the change as data for JSON."""
        return {**asdict(self), "environment": dict(self.environment)}

    def measured(self, before: float, after: float) -> Change:
        """The change with the ratio of two measured times."""
        return replace(self, ratio=round(after / before, 3) if before > 0 else None)


def time_of(observation: Observation) -> float:
    """The time that changes shorten: of a run of a model, or of a script, in milliseconds."""
    if observation.kind == "model":
        return observation.engine_run_ms
    return 1e3 * observation.seconds


def changes(observation: Observation) -> list[Change]:
    """Returns the changes that would gain most, the largest estimated gain first."""
    found = [
        *_threads(),
        *_withheld_instructions(),
        *_native_programs(observation),
        *_native_operators(observation),
        *_builds(observation),
        *_dynamic_mode(observation),
        *_precision(observation),
    ]
    worthwhile = [each for each in found if each.share >= _LEAST_SHARE]
    return sorted(worthwhile, key=lambda each: -each.share)[:MOST]


def _threads() -> Iterator[Change]:
    requested, usable = flags.get("ngraph_num_threads"), len(os.sched_getaffinity(0))
    used = _core.num_threads()
    if 0 < requested < usable and used < usable:
        yield Change(
            f"Set FLAGS_ngraph_num_threads=0 for all {usable} cores, instead of {requested}.",
            1 - used / usable,
            {"FLAGS_ngraph_num_threads": "0"},
        )


def _withheld_instructions() -> Iterator[Change]:
    if processor.withheld():
        yield Change(
            "Unset ONEDNN_MAX_CPU_ISA, which withholds " + " ".join(sorted(processor.withheld())),
            0.5,
            {"ONEDNN_MAX_CPU_ISA": None},
        )


def _share(observation: Observation, reason: str) -> float:
    """The share of the time in runs with this reason."""
    total = sum(observation.ms.values())
    if observation.kind == "script":
        total = max(total, 1e3 * observation.seconds)
    return observation.ms.get(reason, 0.0) / total if total > 0 else 0.0


def _native_programs(observation: Observation) -> Iterator[Change]:
    """Changes by which programs that ran natively as a whole would run by the engine."""
    share = _share(observation, "cost_rule")
    if share > 0:
        yield Change(
            "Set FLAGS_ngraph_min_interval_us=0: programs that the cost rule leaves to Paddle take "
            f"{share:.0%} of the time.",
            share / 2,
            {"FLAGS_ngraph_min_interval_us": "0"},
        )
    share = _share(observation, "compiling")
    if observation.kind == "script" and share > 0:
        yield Change(
            "Compile ahead: `python -m paddle_ngraph warm-up MODEL --shapes ...`; Paddle ran "
            f"while functions were compiled for {share:.0%} of the time.",
            share / 2,
        )
    share = _share(observation, "overflow")
    if share > 0:
        yield Change(
            "Use int32 values that fit: integers that needed 64 bits made Paddle run for "
            f"{share:.0%} of the time.",
            share / 2,
        )


def _native_operators(observation: Observation) -> Iterator[Change]:
    flag = "FLAGS_ngraph_min_interval_us"
    small = [each for each in observation.native if each.is_small]
    if small:
        share = sum(each.share for each in small)
        types = ", ".join(each.type for each in small)
        yield Change(
            f"Set {flag}=0: the cost rule leaves {types} to Paddle, {share:.0%} of a native run's "
            "time.",
            share / 2,
            {flag: "0"},
        )
    for each in observation.native:
        if each.is_small:
            continue
        yield Change(
            f"Replace {each.type} ({each.count} in the program), or ask for its converter: it runs "
            f"natively for {each.share:.0%} of a native run's time ({each.reason}).",
            each.share,
        )


def _builds(observation: Observation) -> Iterator[Change]:
    if observation.kind != "script" or observation.seconds <= 0:
        return
    share = observation.build_ms / (1e3 * observation.seconds)
    if observation.functions_of_one_subgraph > _MANY_FUNCTIONS:
        yield Change(
            "Declare the dimensions that change as dynamic (-1, or None in InputSpec): one "
            f"subgraph got {observation.functions_of_one_subgraph} functions; builds took "
            f"{share:.0%} of the time.",
            share,
        )
    elif not flags.get("ngraph_cache_dir"):
        yield Change(
            f"Set FLAGS_ngraph_cache_dir: builds took {share:.0%} of the time, and later processes "
            "would load their functions.",
            share,
        )


def _dynamic_mode(observation: Observation) -> Iterator[Change]:
    in_programs = sum(observation.ms.values())
    if observation.kind != "script" or not observation.is_dynamic or observation.seconds <= 0:
        return
    outside = 1 - min(1.0, in_programs / (1e3 * observation.seconds))
    if outside > 0.5:
        yield Change(
            'Compile layers of dynamic mode: enable(dynamic=True), or enable(dynamic="training") '
            f"where they train; {outside:.0%} of the time was outside of programs.",
            outside / 2,
            dynamic="training",
        )


def _precision(observation: Observation) -> Iterator[Change]:
    if flags.get("ngraph_precision") == "f32" and processor.has_bfloat16():
        yield Change(
            "Set FLAGS_ngraph_precision=bf16, if its numbers are good enough for you.",
            _BFLOAT16_GAIN * observation.converted,
            {"FLAGS_ngraph_precision": "bf16"},
            changes_numbers=True,
        )
