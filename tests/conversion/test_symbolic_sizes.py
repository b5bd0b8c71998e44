"""Symbolic sizes compute like integers; guards state the sizes with equal decisions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paddle_ngraph import _core
from paddle_ngraph.conversion.symbolic_sizes import (
    MIN_SYMBOLIC_SIZE,
    Guards,
    SymbolicSize,
    Undecided,
    evaluate,
    hint_of,
    to_words,
)

pytestmark = pytest.mark.pure


def expression(draw: random.Random, sizes: list[Any], depth: int) -> Any:
    """A random expression of the sizes."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice([*sizes, draw.randint(-9, 9)])
    a, b = (expression(draw, sizes, depth - 1) for _ in range(2))
    operation = draw.choice("+-*/%+-")
    if operation in "/%":
        if b == 0:
            return a
        return a // b if operation == "/" else a % b
    return a + b if operation == "+" else a - b if operation == "-" else a * b


def decisions(seed: int, sizes: list[Any]) -> list[Any]:
    """Random Python computations with sizes, and decisions that depend on them."""
    draw = random.Random(seed)
    found: list[Any] = []
    for _ in range(4):
        a, b = expression(draw, sizes, 4), expression(draw, sizes, 3)
        kind = draw.choice("<>=!bmi")
        if kind == "m":
            found.append(min(a, b) + max(b, 7))
        elif kind == "b":
            found.append("yes" if a else "no")
        elif kind == "i":
            found.append(int(b) if draw.random() < 0.2 else abs(b))
        else:
            found.append({"<": a < b, ">": a >= b, "=": a == b, "!": a != b}[kind])
        found.append(a)
    return found


def at(values: list[Any], sizes: dict[int, int]) -> list[Any]:
    return [evaluate(v.terms, sizes) if isinstance(v, SymbolicSize) else v for v in values]


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("start", range(0, 300, 50))
def test_results_under_guards_equal_integers(start):
    admitted = refused = 0
    for seed in range(start, start + 50):
        draw = random.Random(~seed)
        hints = {0: draw.randint(2, 40), 1: draw.randint(2, 40)}
        guards = Guards(hints)
        found = decisions(seed, [guards.size(0), guards.size(1)])
        assert [hint_of(v) if isinstance(v, SymbolicSize) else v for v in found] == decisions(
            seed, list(hints.values())
        )
        fixed, kept = guards.fixed(), guards.remaining()
        assert all(guard.holds(hints) for guard in kept)
        left = [number for number in hints if number not in fixed]
        words = to_words(kept, {number: place for place, number in enumerate(left)})
        for _ in range(20):
            sizes = {0: draw.randint(0, 60), 1: draw.choice([draw.randint(2, 60), hints[1]])}
            values = [sizes[number] for number in left]
            if any(sizes[number] != value for number, value in fixed.items()):
                continue
            holds = all(guard.holds(sizes) for guard in kept)
            assert _core.guards_hold(words, values) == holds
            admitted, refused = admitted + holds, refused + (not holds)
            if holds:
                assert at(found, sizes) == decisions(seed, list(sizes.values()))
    assert admitted > 50
    assert refused > 50


def one(hint: int = 37) -> tuple[Guards, Any]:
    guards = Guards({0: hint})
    return guards, guards.size(0)


@pytest.mark.parametrize(
    "escape",
    [int, float, str, repr, hash, range, "{}".format, lambda n: n / 2, lambda n: [0] * n],
)
def test_escaping_sizes_are_fixed(escape):
    guards, n = one()
    escape(n)
    assert guards.fixed() == {0: 37}


def test_conversion_to_numpy_adds_a_guard():
    import numpy as np

    for use in (np.arange, np.zeros, np.float32, lambda n: np.array([n], np.int64)):
        guards, n = one()
        use(n)
        assert guards.fixed() == {0: 37}


@pytest.mark.parametrize(
    "equal",
    [
        lambda n: (n * 6 // 3, 2 * n),
        lambda n: ((n + 3) // 2 // 2, (n + 3) // 4),
        lambda n: (n * (n - 1) // (n - 1), n),
        lambda n: ((2 * n + 1) // 2, n),
        lambda n: (((n - 1) // 2 + 1) * 4 // 4, (n + 1) // 2),
        lambda n: ((n + 5) % 4 + (n + 5) // 4 * 4, n + 5),
        lambda n: (-(-n // 3), (n + 2) // 3),
    ],
)
def test_equal_expressions_are_equal_without_a_guard(equal):
    guards, n = one()
    before = len(guards.remaining())
    a, b = equal(n)
    assert a == b
    assert len(guards.remaining()) == before


@pytest.mark.parametrize(
    "known",
    [
        lambda n: n >= MIN_SYMBOLIC_SIZE,
        lambda n: n != 1,
        lambda n: n,
        lambda n: (n - 1) // 2 + 1 >= 1,
        lambda n: n % 5 < 5,
        lambda n: n // 4 - n // 8 * 2 <= 1,
        lambda n: n * n > 3,
    ],
)
def test_tautologies_need_no_guard(known):
    guards, n = one()
    before = len(guards.remaining())
    assert known(n)
    assert len(guards.remaining()) == before


def test_a_repeated_decision_is_one_guard():
    guards, n = one()
    before = len(guards.remaining())
    for _ in range(3):
        assert n > 20
        assert n + 5 > 20
        assert 2 * n > 40
    assert len(guards.remaining()) == before  # a tighter one replaces that of the least size
    assert not _core.guards_hold(to_words(guards.remaining(), {0: 0}), [20])
    assert _core.guards_hold(to_words(guards.remaining(), {0: 0}), [21])


@pytest.mark.parametrize(
    "words",
    [
        [5],
        [-1, 0],
        [2, 9, 0],
        [3, 0, 0, 1, 1],
        [3, 0, 1, 5],
        [4, 0, 0, 1, 2],
        [6, 0, 0, 1, 0, 0, 4],
        [6, 0, 0, 2**62, 0, 4, 3],
    ],
)
def test_malformed_guards_do_not_hold(words):
    assert not _core.guards_hold(words, [7])


@pytest.mark.parametrize("start", range(0, 1500, 250))
def test_decisions_hold_in_every_iteration(start):
    """One size is dynamic, others grow from iteration to iteration of a loop inside another one."""
    decided = checked = 0
    for seed in range(start, start + 250):
        draw = random.Random(~seed)
        hints = {0: draw.randint(2, 20)}
        guards = Guards(hints)
        outer, inner = guards.new_iteration_symbol(2), guards.new_iteration_symbol(2)
        numbers = [guards.size(0), outer + draw.randint(0, 3), inner * draw.randint(1, 2) + 1]
        while seed % 2 and guards.bound_iterations((outer + inner).terms):
            assert min(map(guards.max_iterations, (outer, inner))) >= 9
        try:
            found = small_decisions(seed, numbers)
        except Undecided:
            continue
        decided += any(map(guards.varies_per_iteration, map(terms_of, found)))
        kept, fixed = guards.remaining(), guards.fixed()
        assert all(guard.holds(hints) for guard in kept)
        for _ in range(20):
            sizes = {0: draw.randint(2, 40), -1: draw.choice([0, 1, 2, 9]), -2: draw.randint(0, 9)}
            if any(sizes[number] != value for number, value in fixed.items()):
                continue
            if all(guard.holds(sizes) for guard in kept):
                checked += 1
                expected = small_decisions(seed, at(numbers, sizes))
                assert at(found, sizes) == expected
    assert decided > 8
    assert checked > 200


def small_decisions(seed: int, sizes: list[Any]) -> list[Any]:
    """Random decisions as in :func:`decisions`, simple enough to be certain now and then."""
    draw = random.Random(seed)
    found: list[Any] = []
    for _ in range(2):
        a = expression(draw, sizes, 2) + draw.choice(sizes)
        b = draw.choice([draw.randint(-3, 3), draw.choice(sizes), draw.choice(sizes) * 2])
        found.append({"<": a < b, ">": a >= b, "=": a == b}[draw.choice("<>=")])
        found.append(min(a, b) if draw.random() < 0.5 else a)
    return found


def terms_of(value: Any) -> Any:
    return value.terms if isinstance(value, SymbolicSize) else ()
