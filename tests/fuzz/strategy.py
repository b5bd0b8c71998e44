"""The hypothesis strategy for random programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.fuzz.operators import CHOICES, OPTIMIZERS, arithmetic
from tests.fuzz.programs import Builder, Line, Program, Shape, Value

# Operators that read beyond the end of a smaller batch, or leave the result of an empty one.
_UNCHECKED = ("gather_nd", "take_along_axis", "paddle.gather(")
BATCHES = (1, 2, 3, 4, 6, 9, 13, 17, 30)


def the_same_examples(count: int) -> settings:
    """Settings to sample ``count`` examples: the same in each run, without a deadline.

    They are equal in runs of the same tests only: hypothesis samples constants of imported modules,
    too.
    """
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )


@st.composite
def programs(draw: Callable[[Any], Any], largest: int = 30) -> Program:
    """Programs of 2 to ``largest`` operators, some with gradients, some with an optimizer."""
    purpose = draw(st.sampled_from(["forward", "gradients", "optimizer", "gradients"]))
    b = Builder(draw, parameters=60 if purpose == "optimizer" else 15)
    count = b.integer(2, b.choose([6, 12, largest]))
    arithmetic(b)
    for _ in range(4 * count):
        if len(b.program.lines) >= count:
            break
        b.choose(CHOICES)(b)
    _finish(b, purpose)
    return b.program


def _finish(b: Builder, purpose: str) -> None:
    read = {value.name for line in b.program.lines for value in line.arguments}
    made = [value for value in b.values if not value.leaf]
    results = [value for value in made if value.name not in read]
    others = [value for value in made if value.name in read]
    for value in others[-8:]:
        if b.chance(15):
            results.append(value)
    b.program.fetches = [value.name for value in results]
    if purpose == "gradients":
        _add_gradients(b, results)
    elif purpose == "optimizer":
        _add_optimizer(b, results)
    if not any(map(_needs_sizes, b.program.lines)):
        b.program.open_dims = b.chance(25)
    if b.program.parameters:
        b.program.runs = 2
    # Programs without state run at other sizes too.
    elif b.program.open_dims and not _reads_unchecked(b.program):
        b.program.batches = [b.choose(BATCHES) for _ in range(3)]


def _needs_sizes(line: Line) -> bool:
    """Whether Paddle ends the process for an operator on dimensions of unknown sizes.

    It does for a list of unknown length; and ``where`` reads operands of 1 and of 3 rows as if they
    had equal shapes, since both are declared as -1.
    """
    ranks: dict[int, set[Shape]] = {}
    for value in line.arguments if "paddle.where(" in line.code else ():
        ranks.setdefault(len(value.shape), set()).add(value.shape)
    return "unbind" in line.code or any(len(shapes) > 1 for shapes in ranks.values())


def _reads_unchecked(program: Program) -> bool:
    """Whether an operator of Paddle's does not check the size of its operand."""
    return any(name in line.code for line in program.lines for name in _UNCHECKED)


def _add_gradients(b: Builder, results: list[Value]) -> None:
    reals = [value for value in results if value.dtype == "real"]
    sources = [item for item in b.program.inputs if item.value.dtype == "real" and item.trainable]
    if not sources:
        return
    for value in reals[:3]:
        cotangent = b.cotangent(value.shape)
        b.program.targets.append((value.name, cotangent.name))


def _add_optimizer(b: Builder, results: list[Value]) -> None:
    reals = [value for value in results if value.dtype == "real"]
    trained = [item for item in b.program.parameters if item.trainable]
    if reals and trained:
        b.program.optimizer = b.choose(OPTIMIZERS)
