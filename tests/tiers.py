"""Selects the tests of `make check`, `make test` and `make test-all` (``--tier check|test|all``).

``all``: every test.

``test``: those not marked ``slow(reason)``. Of a parametrized test as many variants as cover every
value of every parameter once, instead of the full product. Tests marked ``merged`` keep all
variants, since a variant costs little there, unless they are marked ``thinned``, too.

``check``: files marked ``pure``, which compile nothing, and of the merged tests as many as convert
every operator once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pytest

from tests.ops import merging

TIERS = ("check", "test", "all")
MAX_SEEDS = 2
# Parameters that are seeds or counts of random samples: their values are interchangeable.
SEED_PARAMETERS = ("seed",)


def selected(items: Sequence[pytest.Function], tier: str) -> set[str]:
    """The names of the tests that a tier runs."""
    if tier == "all":
        return {item.nodeid for item in items}
    quick = [item for item in items if item.get_closest_marker("slow") is None]
    if tier == "check":
        merged_tests = [item for item in quick if item.get_closest_marker("merged")]
        pure = [item for item in quick if item.get_closest_marker("pure")]
        return {item.nodeid for item in [*_thinned(pure), *_one_for_each_operator(merged_tests)]}
    return {item.nodeid for item in _thinned(quick)}


def _one_for_each_operator(items: Sequence[pytest.Function]) -> Iterator[pytest.Function]:
    recorded = merging.MergedCases()
    recorded.record(items)
    operators: dict[str, set[str]] = {item.nodeid: set() for item in items}
    for (name, _), case in recorded.cases.items():
        operators[name].update(case.converted)
    for index in each_value_once([frozenset(operators[item.nodeid]) for item in items]):
        yield items[index]


def _thinned(items: Sequence[pytest.Function]) -> Iterator[pytest.Function]:
    by_function: dict[Hashable, list[pytest.Function]] = {}
    for item in items:
        by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for variants in by_function.values():
        marked = variants[0].get_closest_marker
        keeps_all = marked("merged") and not marked("thinned")
        if keeps_all or not hasattr(variants[0], "callspec"):
            yield from variants
        else:
            values = [_values(item) for item in variants]
            yield from (variants[index] for index in each_value_once(values))


def _values(item: pytest.Function) -> frozenset[tuple[str, str]]:
    """Returns, for each ``parametrize`` decorator, parameter names and the variant's values."""
    params = item.callspec.params
    marks = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [mark.replace(" ", "").split(",") if isinstance(mark, str) else mark for mark in marks]
    of_fixtures = [[name] for name in params if not any(name in group for group in names)]
    return frozenset(
        (",".join(group), repr([_value(name, params[name]) for name in group]))
        for group in [*names, *of_fixtures]
    )


def _value(name: str, value: Any) -> Any:
    return value % MAX_SEEDS if name in SEED_PARAMETERS and isinstance(value, int) else value


def each_value_once(variants: Sequence[frozenset[Any]]) -> list[int]:
    """The indices of a small subset that has every element of every set, greedily chosen."""
    missing: set[Any] = set().union(*variants)
    chosen = []
    while missing:
        best = max(range(len(variants)), key=lambda index: len(variants[index] & missing))
        chosen.append(best)
        missing -= variants[best]
    return sorted(chosen)
