"""Samples the steps of lives of layers: all of a life follows from one seed and one number."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz.layer_lives import (
    CLIPS,
    INTERRUPTIONS,
    OPTIMIZERS,
    SCHEDULES,
    WRITERS,
    LayerLife,
    script,
)
from tests.fuzz.lives import call_of
from tests.fuzz.networks import FAMILIES, PARTS

# Whether lives differentiate twice. Layers that ``enable(dynamic="training")`` has compiled raise
# an NgraphError then, and no layer of the process is compiled for training any more.
SECOND_DERIVATIVES = True

_ROWS = (2, 2, 2, 3, 5, 1)
_MOST_STEPS = 18

Step = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class RandomLife:
    """The arguments of a life, and its steps."""

    pays: bool
    watched: bool
    steps: list[Step]

    def script(self) -> str:
        """A script that takes the steps."""
        return script(self.pays, self.watched, [call_of(*step) for step in self.steps])

    @staticmethod
    def of_script(text: str) -> RandomLife:
        """The life of :meth:`script`."""
        recorder = _Recorder()
        names = {"LayerLife": recorder.begin, "life": recorder}
        for line in text.splitlines():
            if line.startswith(("life = ", "life.do(")):
                eval(line.removeprefix("life = "), names)
        return RandomLife(**recorder.options, steps=recorder.steps)


class _Recorder:
    """Takes the calls of a script instead of a life."""

    def __init__(self) -> None:
        self.options: dict[str, bool] = {}
        self.steps: list[Step] = []

    def begin(self, **options: bool) -> None:
        self.options = options

    def do(self, step: str, **arguments: Any) -> None:
        self.steps.append((step, arguments))


def lived(life: RandomLife) -> tuple[LayerLife, int]:
    """Takes the steps of a life; returns it, closed, and the number of engine runs.

    Raises:
        Mismatch: The two sides differ.
    """
    taken = LayerLife(life.pays, life.watched)
    try:
        for step, arguments in life.steps:
            taken.do(step, **arguments)
        return taken, taken.end()
    finally:
        taken.close()


def random_life(seed: int, number: int) -> RandomLife:
    """The life of this number."""
    draw = random.Random(f"{seed} {number}")
    steps = list(_beginning(draw))
    names, weights = zip(*((rule, weight) for rule, weight in _RULES.items() if weight))
    for name in draw.choices(names, weights, k=draw.randint(6, _MOST_STEPS)):
        arguments = _ARGUMENTS[name](draw)
        if name in _OF_NETWORK:
            arguments = {"net": draw.randrange(3), **arguments}
        steps.append((name, arguments))
    return RandomLife(draw.random() < 0.8, draw.random() < 0.6, steps)


def _beginning(draw: random.Random) -> list[Step]:
    """A network that the engine runs, as a rule."""
    on = draw.choice(["compile", "compile", "training", "training", True])
    trains = on != "training" or draw.random() < 0.9
    grad = on is not True
    first = ("compile", {"net": 0}) if on == "compile" else ("enable", {"dynamic": on})
    steps = [("build", _network(draw)), first, ("train", {"net": 0, "on": trains})]
    if draw.random() < 0.7:
        steps.append(("optimizer", {"net": 0, **_optimizer(draw)}))
    rows = draw.choice(_ROWS)
    steps.append(("forward", {"net": 0, "rows": rows, "seed": 1, "times": 4, "grad": grad}))
    return [*steps, ("backward", {"net": 0})]


def _network(draw: random.Random) -> dict[str, Any]:
    family = draw.choice(FAMILIES)
    parts = draw.choices(sorted(PARTS[family]), k=draw.choice([1, 1, 2, 2, 3]))
    returns = draw.choice(["one", "one", "two", "dict"])
    return {"family": family, "parts": parts, "returns": returns, "seed": draw.randrange(5)}


def _optimizer(draw: random.Random) -> dict[str, Any]:
    return {
        "type": draw.choice(list(OPTIMIZERS)),
        "clip": draw.choice(["", "", *CLIPS]),
        "schedule": draw.choice(["", *SCHEDULES]),
        "decay": draw.choice([0.0, 0.0, 0.01]),
    }


def _is(draw: random.Random, share: float = 0.5) -> bool:
    return draw.random() < share


def _batch(draw: random.Random) -> dict[str, Any]:
    return {"rows": draw.choice(_ROWS), "seed": draw.randrange(20)}


def _forward(draw: random.Random) -> dict[str, Any]:
    return {
        **_batch(draw),
        "times": draw.choice([1, 1, 2, 3]),
        "grad": _is(draw, 0.65),
        "amp": _is(draw, 0.06),
        "thread": _is(draw, 0.1),
        "wants": _is(draw, 0.4),
        "reads": _is(draw, 0.7),
        "loss": draw.randrange(3),
        "whole": _is(draw, 0.15),
    }


def _interrupted(draw: random.Random) -> dict[str, Any]:
    return {
        **_batch(draw),
        "at": int(10 ** draw.uniform(0, 4.3)),
        "border": _is(draw, 0.7),
        "kind": draw.choice(list(INTERRUPTIONS)),
        "grad": _is(draw, 0.7),
    }


def _flag(draw: random.Random) -> dict[str, Any]:
    flags: list[tuple[str, list[Any]]] = [
        ("FLAGS_ngraph_num_threads", [1, 2]),
        ("FLAGS_ngraph_cache_size", [1, 256]),
        ("FLAGS_ngraph_background_compile", ["0", "auto"]),
        ("FLAGS_ngraph_min_interval_us", [0, 60]),
    ]
    name, values = draw.choice(flags)
    return {"name": name, "value": draw.choice(values)}


def _part(draw: random.Random) -> dict[str, Any]:
    # A name that every family has.
    names = sorted(set.intersection(*(set(parts) for parts in PARTS.values())))
    return {"part": draw.randrange(3), "name": draw.choice(names)}


def _one_of(name: str, *values: Any) -> Callable[[random.Random], dict[str, Any]]:
    return lambda draw: {name: draw.choice(values)}


def _nothing(draw: random.Random) -> dict[str, Any]:
    return {}


_OF_NETWORK = frozenset(
    ["replace", "copy", "tie", "train", "gain", "freeze", "convert", "forward", "backward",
     "backward_sum", "accumulate", "step_often", "grad", "second", "optimizer", "step", "clear",
     "write", "alias", "write_alias", "buffer", "save", "load", "export", "hook", "unhook", "log",
     "beside", "interrupted", "compile"]
)  # fmt: skip

_ARGUMENTS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "build": _network,
    "replace": _part,
    "copy": _nothing,
    "tie": _one_of("other", 0, 1, 2),
    "train": _one_of("on", True, False),
    "gain": _one_of("value", 1.0, 0.5, 2.0),
    "freeze": lambda draw: {"parameter": draw.randrange(9), "on": _is(draw, 0.6)},
    "convert": _one_of("dtype", "float32", "float64"),
    "forward": _forward,
    "read": _nothing,
    "backward": lambda draw: {"index": draw.choice([-1, -1, 0, 1]), "retain": _is(draw, 0.3)},
    "backward_sum": _nothing,
    "accumulate": lambda draw: {**_batch(draw), "times": 3, "amp": _is(draw, 0.1)},
    "step_often": lambda draw: {**_batch(draw), "times": draw.choice([1, 3])},
    "grad": lambda draw: {**_batch(draw), "then": _is(draw), "wants": _is(draw, 0.7)},
    "second": _batch,
    "optimizer": _optimizer,
    "step": _nothing,
    "clear": _one_of("zeros", True, False, False),
    "write": lambda draw: {
        "parameter": draw.randrange(9),
        "how": draw.choice(list(WRITERS)),
        "seed": draw.randrange(9),
    },
    "alias": lambda draw: {"parameter": draw.randrange(9)},
    "write_alias": _one_of("value", 0.5, 1.25),
    "buffer": lambda draw: {"buffer": draw.randrange(4), "value": draw.choice([0.5, 1.5])},
    "save": _nothing,
    "load": _nothing,
    "export": _batch,
    "hook": lambda draw: {
        "kind": draw.choice(["post", "replace", "pre", "scale", "log"]),
        "parameter": draw.randrange(9),
    },
    "unhook": _nothing,
    "log": _nothing,
    "beside": lambda draw: {**_batch(draw), "other": draw.randrange(3), "grad": _is(draw, 0.7)},
    "interrupted": _interrupted,
    "enable": _one_of("dynamic", True, "training", "training", False),
    "disable": _nothing,
    "compile": _one_of("part", -1, -1, -2, 0, 1),
    "flag": _flag,
    "fail": _one_of("at", "data", "run", "compile", "bind", "", "", ""),
    "forget": _one_of("collect", True, False),
    "collect": _nothing,
    "observe": _one_of("on", True, False, False, False),
}

_RULES = {
    "build": 5,
    "replace": 2,
    "copy": 2,
    "tie": 2,
    "train": 5,
    "gain": 2,
    "freeze": 4,
    "convert": 1,
    "forward": 34,
    "read": 4,
    "backward": 18,
    "backward_sum": 4,
    "accumulate": 5,
    "step_often": 8,
    "grad": 6,
    "second": 5 * SECOND_DERIVATIVES,
    "optimizer": 4,
    "step": 8,
    "clear": 5,
    "write": 9,
    "alias": 2,
    "write_alias": 3,
    "buffer": 2,
    "save": 2,
    "load": 3,
    "export": 1,
    "hook": 5,
    "unhook": 2,
    "log": 2,
    "beside": 3,
    "interrupted": 4,
    "enable": 4,
    "disable": 2,
    "compile": 5,
    "flag": 3,
    "fail": 2,
    "forget": 2,
    "collect": 2,
    "observe": 1,
}
