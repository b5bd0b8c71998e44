"""The LRU cache."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ngraph.utils.lru_cache import LRUCache

pytestmark = pytest.mark.pure


@pytest.mark.slow("compiles many or large functions")
@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60))
def test_the_least_recently_used_entry_is_evicted(size: int, steps: list[tuple[bool, int]]) -> None:
    table: LRUCache[int, str] = LRUCache(size)
    used: list[int] = []  # the model: keys, latest last
    for is_put, key in steps:
        if is_put:
            assert table.put(key, f"value {key}") == f"value {key}"
        else:
            assert table.get(key) == (f"value {key}" if key in used else None)
        if is_put or key in used:
            used = [*(each for each in used if each != key), key][-size:]
        assert len(table) == len(used)
        assert all((each in table) == (each in used) for each in range(8))


def test_present_values_are_not_created_again() -> None:
    table: LRUCache[str, list[int]] = LRUCache(2)
    table.get_or_create("a", list).append(1)
    table.get_or_create("a", list).append(2)
    assert table.pop("a") == [1, 2]
    assert table.pop("a") is None


def test_some_or_all_are_removed() -> None:
    table: LRUCache[int, int] = LRUCache(10)
    for number in range(6):
        table.put(number, number)
    assert table.remove(lambda key: key % 2 == 0) == 3
    assert [number in table for number in range(6)] == [False, True] * 3
    table.clear()
    assert len(table) == 0


class _Value:
    """Reads the cache from another thread in its destructor, and notes whether that succeeded."""

    def __init__(self, table: LRUCache[int, _Value], answers: list[bool]) -> None:
        self._table, self._answers = table, answers

    def __del__(self) -> None:
        other = threading.Thread(target=self._table.get, args=(0,), daemon=True)
        other.start()
        other.join(10)
        self._answers.append(not other.is_alive())


def test_evicted_values_are_freed_outside_the_lock() -> None:
    table: LRUCache[int, _Value] = LRUCache(2)
    answers: list[bool] = []
    for key in (0, 1, 2, 2, 3):
        table.put(key, _Value(table, answers))
    table.remove(lambda key: key == 3)
    table.clear()
    assert answers == [True] * 5


class _Key:
    """Runs a callback each time that a cache asks for its hash."""

    def __init__(self, number: int, do: Callable[[], object]) -> None:
        self._number, self._do = number, do

    def __hash__(self) -> int:
        self._do()
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._number == other._number


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("use", ["get", "put", "pop", "remove"])
def test_reentrant_use(use: str, at: int) -> None:
    """As a signal handler may do; here it clears the cache."""
    table: LRUCache[_Key, str] = LRUCache(2)
    calls = itertools.count(-1000)
    keys = [_Key(n, lambda: next(calls) == at and table.clear()) for n in range(3)]
    for key in keys[:2]:
        table.put(key, "value")
    calls = itertools.count()
    if use == "remove":
        assert table.remove(lambda key: hash(key) >= 0) <= 2
    elif use == "put":
        assert table.put(keys[2], "another") == "another"
    else:
        assert getattr(table, use)(keys[0]) in ("value", None)
    calls = itertools.count(1000)
    assert len(table) <= 2
    table.put(keys[0], "new")
    assert table.get(keys[0]) == "new"
