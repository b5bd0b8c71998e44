"""Profile of a measured program: the JSON input of a simulation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.simulation.collectives import SimulatedLink

ByCores = Mapping[int, float]  # milliseconds by the number of cores that a rank has


@dataclass(frozen=True)
class ProfileSegment:
    """A segment of the forward and backward pass.

    Attributes:
        name: The name of the segment.
        ms: Its milliseconds by the number of cores of a rank, while ranks compute on all cores of
            the machine.
        bucket_bytes: The bytes of the gradient bucket that is complete after it; 0: none.
    """

    name: str
    ms: ByCores
    bucket_bytes: int = 0


@dataclass(frozen=True)
class Profile:
    """A training step of one rank, and the machine that it was measured on.

    Attributes:
        name: The name of the neural network.
        processor: The processor of the machine.
        cores: The number of cores of the machine.
        samples: The samples of a rank in a step.
        intervals: The forward and backward pass, in order.
        update_ms: Milliseconds of the optimizer update, by the number of cores of a rank.
        packing_ms: Milliseconds of packing gradients into buckets and unpacking them, with more
            than one rank.
        link: The link between two ranks of the machine.
        spread: The standard deviation of the logarithm of a rank's time for a step.
        checkpoint_s: Seconds of writing a checkpoint.
        restart_s: Seconds from the start of a rank until it trains.
        measured: Measured step times in milliseconds, by the number of ranks on the machine.
    """

    name: str
    processor: str
    cores: int
    samples: int
    intervals: Sequence[ProfileSegment]
    update_ms: ByCores
    packing_ms: ByCores
    link: SimulatedLink
    spread: float = 0.0
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    measured: Mapping[int, float] = field(default_factory=dict)

    def without_spread(self) -> Profile:
        """Returns a copy in which all ranks are equally fast."""
        return replace(self, spread=0.0)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object for :func:`parsed`."""
        return {
            **{key: getattr(self, key) for key in _SCALAR_FIELDS},
            "intervals": [
                {"name": i.name, "ms": _with_text_keys(i.ms), "bucket_bytes": i.bucket_bytes}
                for i in self.intervals
            ],
            "update_ms": _with_text_keys(self.update_ms),
            "packing_ms": _with_text_keys(self.packing_ms),
            "link": {name: getattr(self.link, name) for name in _LINK},
            "measured": _with_text_keys(self.measured),
        }


_SCALAR_FIELDS = ("name", "processor", "cores", "samples", "spread", "checkpoint_s", "restart_s")
_LINK = ("latency_us", "gigabytes_per_s", "call_us")
_OTHER_FIELDS = ("intervals", "update_ms", "packing_ms", "link", "measured")
_OPTIONAL = {"packing_ms", "spread", "checkpoint_s", "restart_s", "measured"}


def read(path: Path) -> Profile:
    """Reads a profile.

    Raises:
        NgraphError: The file cannot be read, or is not a profile.
    """
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise NgraphError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise NgraphError(f"{path} is no JSON file: {error}") from error
    return parsed(found, str(path))


def parsed(found: Any, where: str) -> Profile:
    """Parses a profile from the contents of a JSON file.

    Args:
        found: The contents.
        where: The name of the file, for errors.

    Raises:
        NgraphError: The contents are not a profile.
    """
    top = _Fields(found, where)
    top.only({*_SCALAR_FIELDS, *_OTHER_FIELDS}, _OPTIONAL)
    intervals = [
        _interval(each, f"{where}: intervals[{index}]")
        for index, each in enumerate(top.list("intervals"))
    ]
    update = top.by_count("update_ms")
    packing = top.by_count("packing_ms") or dict.fromkeys(update, 0.0)
    for name, ms in [*((i.name, i.ms) for i in intervals), ("packing_ms", packing)]:
        if ms.keys() != update.keys():
            raise NgraphError(
                f"{where}: {name!r} has times for {_counts(ms)} cores and update_ms for "
                f"{_counts(update)}: give all for the same numbers of cores"
            )
    link = _Fields(top.get("link"), f"{where}: link")
    link.only({*_LINK}, {"call_us"})
    return Profile(
        name=top.text("name"),
        processor=top.text("processor"),
        cores=top.integer("cores"),
        samples=top.integer("samples"),
        intervals=intervals,
        update_ms=update,
        packing_ms=packing,
        link=SimulatedLink(
            link.number("latency_us"),
            link.number("gigabytes_per_s", above=True),
            link.number("call_us"),
        ),
        spread=top.number("spread"),
        checkpoint_s=top.number("checkpoint_s"),
        restart_s=top.number("restart_s"),
        measured=top.by_count("measured"),
    )


def _interval(found: Any, where: str) -> ProfileSegment:
    fields = _Fields(found, where)
    fields.only({"name", "ms", "bucket_bytes"}, {"bucket_bytes"})
    return ProfileSegment(
        fields.text("name"), fields.by_count("ms"), int(fields.number("bucket_bytes"))
    )


class _Fields:
    """The fields of a JSON object; each is checked when it is read."""

    def __init__(self, found: Any, where: str) -> None:
        if not isinstance(found, dict):
            raise NgraphError(f"{where}: an object is needed, with names and values in braces")
        self._found = found
        self._where = where

    def only(self, known: set[str], optional: set[str]) -> None:
        """Raises NgraphError if a required field is missing, or a field is unknown."""
        for name in sorted(known - optional - self._found.keys()):
            raise NgraphError(f"{self._where}: {name!r} is missing")
        for name in sorted(self._found.keys() - known):
            names = ", ".join(sorted(known))
            raise NgraphError(f"{self._where}: {name!r} is unknown: there are {names}")

    def get(self, name: str) -> Any:
        return self._found.get(name)

    def text(self, name: str) -> str:
        return str(self.get(name))

    def list(self, name: str) -> list[Any]:
        found = self.get(name)
        if not isinstance(found, list) or not found:
            raise NgraphError(f"{self._where}: {name!r} has to be a list with at least one element")
        return found

    def number(self, name: str, above: bool = False) -> float:
        """A number of at least 0, or above 0 if ``above``; 0 if the field is missing."""
        return self._checked(name, self._found.get(name, 0.0), above)

    def integer(self, name: str) -> int:
        found = self.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise NgraphError(f"{self._where}: {name!r} has to be an integer of 1 or more")
        return found

    def by_count(self, name: str) -> dict[int, float]:
        """Milliseconds (0 or more) by a number of cores or ranks; empty if the field is missing."""
        found = _Fields(self._found.get(name, {}), f"{self._where}: {name}")._found
        for key in found:
            if not key.isdecimal() or int(key) < 1:
                raise NgraphError(
                    f"{self._where}: {name!r} has {key!r}, which is no number of cores or ranks"
                )
        return {int(key): self._checked(f"{name}[{key}]", ms) for key, ms in found.items()}

    def _checked(self, name: str, found: Any, above: bool = False) -> float:
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        if not is_number or not math.isfinite(found) or found < 0 or (above and found == 0):
            limit = "above 0" if above else "of 0 or more"
            raise NgraphError(f"{self._where}: {name!r} has to be a number {limit}, not {found!r}")
        return float(found)


def _counts(ms: Mapping[int, float]) -> str:
    return ", ".join(map(str, sorted(ms))) or "no"


def _with_text_keys(values: Mapping[int, float]) -> dict[str, float]:
    return {str(key): value for key, value in sorted(values.items())}
