"""The last runs of subgraphs and programs, from the events of the core, for reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paddle_ngraph import _core, statistics
from paddle_ngraph.conversion.denylist import subgraph_key
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.statistics import REASONS, Event
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache

_SENTENCES = {each.name: each.sentence for each in REASONS}
# The number of single runs that a report shows.
_SHOWN = 3

_keys: LRUCache[int, str] = process_cache(
    __name__,
    "subgraph_keys",
    "keys of subgraphs that have events",
    key="id of the subgraph in events",
    bound=1024,
)


@dataclass(frozen=True)
class LastRuns:
    """The runs of a subgraph or program among the last events.

    Attributes:
        runs: The events that are runs, oldest first.
        functions: The events of functions that were built or loaded.
    """

    runs: Sequence[Event] = ()
    functions: Sequence[Event] = ()

    @classmethod
    def of(cls, events: Sequence[Event]) -> LastRuns:
        """The runs among the events of a subgraph or program."""
        return cls(
            [each for each in events if each.outcome != "function"],
            [each for each in events if each.outcome == "function"],
        )

    def count(self, outcome: str) -> int:
        """The number of runs with an outcome."""
        return sum(each.outcome == outcome for each in self.runs)

    @property
    def while_compiling(self) -> int | None:
        """Number of runs that were native while functions of the subgraph were compiled.

        ``None`` if no function was compiled in the background.
        """
        compiling = sum(each.reason == "compiling" for each in self.runs)
        is_known = any(each.reason == "built_in_background" for each in self.functions)
        return compiling if compiling or is_known else None

    def lines(self) -> list[str]:
        """The runs in words: numbers by outcome and reason, and the last of them."""
        if not self.runs:
            return []
        counts = Counter((each.outcome, each.reason) for each in self.runs)
        in_order = sorted(counts.most_common(), key=lambda found: found[0][0] != "engine")
        parts = [
            f"{count} {outcome}" + ("" if outcome == "engine" else f" ({_SENTENCES[reason]})")
            for (outcome, reason), count in in_order
        ]
        shown = ", ".join(f"{each.reason} {each.ns / 1e6:.3g} ms" for each in self.runs[-_SHOWN:])
        return [f"Last runs: {', '.join(parts)}.", f"Latest: {shown}."]


class History:
    """The last events, by subgraph and program."""

    def __init__(self) -> None:
        self._events: dict[int, list[Event]] = {}
        for each in statistics.events():
            self._events.setdefault(each.subgraph, []).append(each)
        # The ids of subgraphs by their keys. A key is that of several ids if programs request
        # different results of the subgraph.
        self._ids: dict[str, list[int]] = {}
        for subgraph, key in _keys_of(self._events).items():
            self._ids.setdefault(key, []).append(subgraph)

    def of_graph(self, graph: Graph | None) -> LastRuns:
        """The last runs of a subgraph, whatever results of it were requested."""
        if graph is None or not self._ids:
            return LastRuns()
        found = (each for at in self._ids.get(subgraph_key(graph), ()) for each in self._events[at])
        return LastRuns.of(sorted(found))

    def of_program(self, program: int) -> LastRuns:
        """The last runs of a program, layer or trace cache as a whole, by its id."""
        return LastRuns.of(self._events.get(program, []) if program else [])


def _keys_of(ids: Iterable[int]) -> dict[int, str]:
    """The keys of the subgraphs among these ids, by id; not of those whose engines are gone."""
    cached = {each: _keys.get(each) for each in ids}
    keys = {each: key for each, key in cached.items() if key is not None}
    for subgraph, text in _core.engine_graphs(cached.keys() - keys.keys()):
        keys[subgraph] = subgraph_key(Graph.from_string(text))
        _keys.put(subgraph, keys[subgraph])
    return keys
