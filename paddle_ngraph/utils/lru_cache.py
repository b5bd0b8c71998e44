"""LRU cache for values that can be recomputed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from paddle_ngraph.utils.fork_safe_locks import new_lock

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class LRUCache(Generic[K, T]):
    """Thread-safe LRU cache with at most ``size`` entries.

    Dropped values are freed outside the lock, since their destructors may run arbitrary code. A
    signal handler, or ``__del__``, may use the cache in the middle of another use by its thread.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = new_lock()
        self._entries: OrderedDict[K, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> T | None:
        """The value, which becomes the most recently used one, or ``None``."""
        with self._lock:
            try:
                self._entries.move_to_end(key)
                return self._entries[key]
            except KeyError:
                return None

    def get_or_create(self, key: K, create: Callable[[], T]) -> T:
        """The value of a key, created by ``create`` if absent; two threads may both create one."""
        found = self.get(key)
        return self.put(key, create()) if found is None else found

    def put(self, key: K, value: T) -> T:
        """Adds or replaces a value, and returns it."""
        dropped = []
        with self._lock:
            entries = self._entries
            dropped.append(entries.pop(key, None))
            entries[key] = value
            if len(entries) > self._size:
                dropped.append(entries.popitem(last=False)[1])
        return value

    def values(self) -> list[T]:
        """All values, the least recently used one first."""
        with self._lock:
            return list(self._entries.values())

    def pop(self, key: K) -> T | None:
        """Removes and returns a value; ``None`` if there is none."""
        with self._lock:
            return self._entries.pop(key, None)

    def remove(self, predicate: Callable[[K], bool]) -> int:
        """Drops the values of keys for which ``predicate`` is true; returns their number."""
        with self._lock:
            keys = list(filter(predicate, list(self._entries)))
            dropped = [self._entries.pop(key, None) for key in keys]
        return len(dropped)

    def clear(self) -> None:
        """Drops every value."""
        with self._lock:
            dropped, self._entries = self._entries, OrderedDict()
        del dropped  # the old table is not cleared: an interrupted use continues with it


@contextmanager
def taken(idle: LRUCache[K, list[T]], key: K, create: Callable[[], T]) -> Iterator[T]:
    """Takes an idle object out of a cache; returns it there after a block that raises no error.

    Args:
        idle: The idle objects of each key, of which one thread uses each at a time.
        key: The key.
        create: Creates an object in a first block, or where other threads use all.
    """
    objects = idle.get_or_create(key, list)
    try:
        one = objects.pop()
    except IndexError:
        one = create()
    yield one
    objects.append(one)


@dataclass(frozen=True)
class CacheDeclaration:
    """A row of docs/reference/caches.md: the cache of the process, or one for each of some objects.

    Attributes:
        module: The module of the declaration.
        name: The name in ``caches.sizes()``.
        values: Description of the cached values.
        key: Description of the key.
        bound: The maximum number of entries.
        owner: Description of the objects that have such a cache each, and drop it when they die;
            ``None``: one cache for the process, which ``clear_cache()`` empties.
    """

    module: str
    name: str
    values: str
    key: str
    bound: int
    owner: str | None = None

    def __post_init__(self) -> None:
        other = _declarations.setdefault(self.name, self)
        assert other == self, f"two caches are called {self.name}"


_declarations: dict[str, CacheDeclaration] = {}
_process_caches: dict[str, LRUCache[Any, Any]] = {}


def process_cache(module: str, name: str, values: str, *, key: str, bound: int) -> LRUCache[K, T]:
    """Declares and creates a cache of the process: see :class:`CacheDeclaration`."""
    CacheDeclaration(module, name, values, key, bound)
    found: LRUCache[K, T] = LRUCache(bound)
    _process_caches[name] = found
    return found


def cache_of_each(
    owner: str, module: str, name: str, values: str, *, key: str, bound: int
) -> CacheDeclaration:
    """Declares the cache that each object of a class ``owner`` creates as ``LRUCache(bound)``."""
    return CacheDeclaration(module, name, values, key, bound, owner)


def declarations() -> list[CacheDeclaration]:
    """The caches that the imported modules declare."""
    return list(_declarations.values())


def sizes() -> dict[str, int]:
    """The number of entries of each cache of the process."""
    return {name: len(each) for name, each in _process_caches.items()}


def clear_process_caches() -> None:
    """Empties every cache of the process."""
    for each in list(_process_caches.values()):
        each.clear()
