"""What is known of the integers in a block, and the 64-bit rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from paddle_ngraph.function.registry import (
    RANGES,
    Converter,
    Range,
    RangeRule,
    Role,
    find_converter,
    range_of,
)
from paddle_ngraph.graph import FOLD_LIMIT, TensorSpec
from paddle_ngraph.program.capability import Candidates
from paddle_ngraph.program.view import LISTS, OpNode, dtype_name

_INT32 = RANGES["int32"]
# What a converter computes with: no positions, no shapes, nothing that only a build reads.
_COMPUTED_WITH = (Role.DATA, Role.SAVED)


class Integers:
    """The 64-bit rule: the engine computes int64 in 32 bits.

    An int64 tensor may pass only if its values certainly fit into 32 bits, if they are used only as
    positions, or if they are known and are read only while the function is built.

    Positions that come from outside always fit, whatever else is done with them: the engine refuses
    a run in which they do not.
    """

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._view = candidates.view
        self._refused: dict[OpNode, str] = {}
        self._static: dict[str, bool] = {}
        self._ranges: dict[str, Range | None] = {}
        self._position: dict[str, bool] = {}
        self._checked: set[str] = set()

        for node in reversed(self._view.nodes):
            self._checked |= self._checked_by(node)
        self._checked -= self._read_by_value()
        for node in self._view.nodes:  # in this order no recursion goes deep
            for vid in node.writes:
                self.is_static(vid)
                self.is_small(vid)

    @property
    def static(self) -> frozenset[str]:
        """The variables whose contents are known while the function is built."""
        return frozenset(vid for vid, is_static in self._static.items() if is_static)

    def what_needs_64_bits(self) -> dict[OpNode, str]:
        """The operators that violate the rule, and the reason.

        Readers come first: a refused reader no longer counts as using a value as a position.
        """
        for node in reversed(self._view.nodes):
            for vid in node.writes:
                self.is_position(vid)
            is_constant = node in self._candidates.constants
            if self._candidates.can_convert(node) and not is_constant and not self._fits(node):
                self._refused[node] = "int64 arithmetic needs 64 bits, the engine computes it in 32"
        return self._refused

    def _converter(self, node: OpNode | None) -> Converter | None:
        """The converter of an operator that is not rejected."""
        if node is None or node in self._refused:
            return None
        return self._candidates.converters.get(node)

    def is_static(self, vid: str) -> bool:
        """Whether the contents are known while the function is built."""
        if vid not in self._static:
            self._static[vid] = False
            node = self._view.producer.get(vid)
            self._static[vid] = (
                node is not None
                and not self._view.is_overwritten(vid)
                and not node.overwrites
                and self._makes_static(node)
            )
        return self._static[vid]

    def is_known_to(self, reader: OpNode, vid: str) -> bool:
        """Whether ``reader`` knows the contents while its function is built."""
        return (reader, vid) not in self._candidates.cut_off and self.is_static(vid)

    def _makes_static(self, node: OpNode) -> bool:
        if node in self._candidates.constants:
            return all(_can_be_folded(spec) for spec in self._outputs(node)) or all(
                self.is_small(vid) for vid in node.writes
            )
        entry = self._converter(node)
        if entry is None:
            return False
        if any(spec.dtype not in ("int32", "int64", "bool") for spec in self._outputs(node)):
            return False
        return self._is_folded(node, entry)

    def _is_folded(self, node: OpNode, entry: Converter) -> bool:
        """Whether the bridge computes ``node`` while it builds the function, in 64 bits."""
        read = [(entry.role(name), v) for name, v in self._candidates.slots[node]]
        read = [(role, v) for role, v in read if role.has_contents_read]
        computed = any(role is not Role.CONSTANT for role, _ in read)
        if computed and any(not _can_be_folded(spec) for spec in self._outputs(node)):
            return False
        return all(self.is_known_to(node, v) for _, v in read)

    def _outputs(self, node: OpNode) -> list[TensorSpec]:
        return list(self._candidates.ops[node].output_specs())

    def _checked_by(self, node: OpNode) -> set[str]:
        """The inputs of an interval that the engine refuses beyond 32 bits, for ``node``."""
        goes_on = not self._checked.isdisjoint(node.writes)
        if node.type in LISTS:
            return set(node.reads) if goes_on else set()
        entry = self._converter(node)
        if entry is None:
            return set()
        roles = (Role.INDEX, *_COMPUTED_WITH) if entry.moves and goes_on else (Role.INDEX,)
        return set(self._candidates.inputs_of(node, *roles))

    def _read_by_value(self) -> set[str]:
        return {
            vid
            for node in self._candidates.ops
            for vid in self._candidates.inputs_of(node, Role.CONSTANT)
        }

    def is_small(self, vid: str) -> bool:
        """Whether it is not int64, or every value certainly fits into 32 bits."""
        if self._view.is_tensor(vid) and not self._is_int64(vid):
            return True
        found = self._range(vid)
        return found is not None and _INT32[0] <= found[0] and found[1] <= _INT32[1]

    def _range(self, vid: str) -> Range | None:
        """The minimum and the maximum of a variable; ``None`` if nothing is known."""
        if vid not in self._ranges:
            self._ranges[vid] = None
            self._ranges[vid] = self._find_range(vid)
        return self._ranges[vid]

    def _find_range(self, vid: str) -> Range | None:
        node = self._view.producer.get(vid)
        if self._view.is_tensor(vid) and not self._is_int64(vid):
            whole = RANGES.get(dtype_name(self._view.values[vid].dtype))
            if whole is None or node is None or self._view.is_overwritten(vid):
                return whole
            made = self._range_made_by(node)  # beyond the whole range it wraps around
            return made if made and whole[0] <= made[0] and made[1] <= whole[1] else whole
        if self._view.is_overwritten(vid):
            return None
        if node is not None and node.type in LISTS:
            return self._range_of_all(node.reads)
        if vid in self._checked and (node is None or not self._candidates.can_convert(node)):
            return _INT32
        return None if node is None else self._range_made_by(node)

    def _range_of_all(self, vids: Iterable[str]) -> Range | None:
        ranges = [self._range(vid) for vid in vids]
        found = [(low, high) for low, high in filter(None, ranges)]
        if not found or len(found) < len(ranges):
            return None
        return min(low for low, _ in found), max(high for _, high in found)

    def _range_made_by(self, node: OpNode) -> Range | None:
        if node in self._candidates.constants:
            value = self._candidates.ops[node].attr("value")
            return range_of(value if isinstance(value, list) else [value])
        entry = find_converter(node.type)
        if entry is None:
            return None
        if entry.integers is not None and node in self._candidates.ops:
            return self._range_by_rule(node, entry, entry.integers)
        if entry.small_integers:
            return _INT32
        if not entry.moves:
            return None
        return self._range_of_all(vid for _, vid in self._data(node, entry))

    def _range_by_rule(self, node: OpNode, entry: Converter, rule: RangeRule) -> Range | None:
        data: dict[str, list[str]] = {}
        for name, vid in self._data(node, entry):
            if self._is_int64(vid) or dtype_name(self._view.values[vid].dtype) in RANGES:
                data.setdefault(name, []).append(vid)
        ranges = {name: self._range_of_all(vids) for name, vids in data.items()}
        known = {name: found for name, found in ranges.items() if found is not None}
        return rule(self._candidates.ops[node], known) if known == ranges else None

    def _is_int64(self, vid: str) -> bool:
        return dtype_name(self._view.values[vid].dtype) == "int64"

    def _data(self, node: OpNode, entry: Converter) -> Iterator[tuple[str, str]]:
        """The variables that the converter computes with: no positions, no shapes."""
        slots = self._candidates.slots[node]
        return ((name, vid) for name, vid in slots if entry.role(name) in _COMPUTED_WITH)

    def is_position(self, vid: str) -> bool:
        """Whether the variable is only ever used as positions, inside the engine."""
        if vid not in self._position:
            self._position[vid] = False
            node = self._view.producer.get(vid)
            self._position[vid] = (node is None or not self._view.is_result(node)) and all(
                self._reads_as_position(reader, vid) for reader in self._view.readers.get(vid, ())
            )
        return self._position[vid]

    def _reads_as_position(self, reader: OpNode, vid: str) -> bool:
        if reader.type in LISTS:
            return all(self.is_position(result) for result in reader.writes)
        entry = self._converter(reader)
        if entry is None:
            return False
        roles = self._roles(reader, entry, vid)
        if roles and roles <= {Role.INDEX, Role.SHAPE_ONLY, Role.UNUSED}:
            return True
        return entry.moves and self._outputs_are_positions(reader)

    def _roles(self, reader: OpNode, entry: Converter, vid: str) -> set[Role]:
        """The roles in which an operator reads a variable."""
        return {entry.role(name) for name, v in self._candidates.slots[reader] if v == vid}

    def _outputs_are_positions(self, node: OpNode) -> bool:
        return all(self.is_position(v) for v in node.writes)

    def _is_read_at_build(self, vid: str) -> bool:
        """Whether the contents, which are known, are read only while the function is built."""
        node = self._view.producer.get(vid)
        if node is None or self._view.is_result(node):
            return False
        return all(self._reads_at_build(r, vid) for r in self._view.readers.get(vid, ()))

    def _reads_at_build(self, reader: OpNode, vid: str) -> bool:
        if reader.type in LISTS:
            return all(self._is_read_at_build(result) for result in reader.writes)
        entry = self._converter(reader)
        if entry is None:
            return False
        if self._roles(reader, entry, vid).isdisjoint(_COMPUTED_WITH):
            return True
        if all(self.is_static(v) for v in reader.writes):
            return True
        return entry.moves and self._is_folded(reader, entry)

    def _fits(self, node: OpNode) -> bool:
        if not self._outputs(node):
            return True
        entry = self._candidates.converters[node]
        wide = not self._is_folded(node, entry) and any(
            not self.is_small(vid) for _, vid in self._data(node, entry)
        )
        makes_int64 = any(spec.dtype == "int64" for spec in self._outputs(node))
        if not wide and not makes_int64:
            return True
        if all(
            self.is_small(vid) or (self.is_static(vid) and self._is_read_at_build(vid))
            for vid in node.writes
        ):
            return not wide
        return entry.moves and self._outputs_are_positions(node)


def _can_be_folded(spec: TensorSpec) -> bool:
    """Whether the tensor is known to be small enough for the bridge to compute it."""
    return -1 not in spec.shape and math.prod(spec.shape) <= FOLD_LIMIT
