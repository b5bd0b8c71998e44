"""Ranges of the integers in a block, and the 64-bit rule: values must fit into int32."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from paddle_ngraph.conversion import denylist, kernel_calls
from paddle_ngraph.conversion.analysis.induction_variables import SLICES
from paddle_ngraph.conversion.analysis.offsets import OPERANDS, VALUE_PRESERVING, Offsets, terms
from paddle_ngraph.conversion.registry import (
    RANGES,
    Converter,
    Range,
    RangeRule,
    Role,
    find_converter,
    range_of,
)
from paddle_ngraph.ir.graph import MAX_FOLDED_ELEMENTS, Op, TensorSpec, compiled_for
from paddle_ngraph.partitioning.analysis import loop_conditions
from paddle_ngraph.partitioning.analysis.block_view import LISTS, REGIONS, WHILE, OpNode, dtype_name
from paddle_ngraph.partitioning.analysis.capability import Candidates, ConvertibleBlock
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils.thread_local import ThreadLocal

_INT32 = RANGES["int32"]
_INT64 = -(2**63), 2**63 - 1
_NEEDS_64_BITS = "int64 arithmetic needs 64 bits, the engine computes it in 32"
# Roles of operands of arithmetic: not indices, shapes, or operands that only a build reads.
_ARITHMETIC_ROLES = (Role.DATA, Role.SAVED)
# Larger than any loop counter of the engine: bounds that grow from iteration to iteration of a loop
# are widened to these, and become unknown if they still grow.
_WIDENING_BOUND = -(2**40), 2**40
# Maximum number of steps that narrow the ranges of a loop again after widening. Several are needed
# because bounds that depend on each other narrow one after the other.
_MAX_NARROWINGS = 4
# Number of iterations whose ranges are joined before widening: some ranges stop growing by
# themselves, such as those of token ids that are written into a list.
_MAX_JOINS = 2
_skips_overflow_checks = ThreadLocal(False)


def without_overflow_checks() -> AbstractContextManager[None]:
    """Disables overflow checks in this thread: runs check indices only.

    Operators whose integers are not proved to fit into int32 fall back to Paddle.
    """
    return _skips_overflow_checks.overridden(True)


@dataclass(frozen=True)
class OuterScope:
    """Facts about outer variables for the body of a loop or branch.

    Attributes:
        integers: The analysis of the enclosing block.
        node: The loop or branch.
        args: The ranges of loop-carried inputs, for any iteration.
    """

    integers: Integers
    node: OpNode
    args: Mapping[str, Range | None]

    def range(self, vid: str) -> Range | None:
        """The minimum and the maximum of a variable; ``None`` if nothing is known."""
        return self.args[vid] if vid in self.args else self.integers.range(vid)

    def is_static(self, vid: str) -> bool:
        """Whether the contents of an outer variable are known during the build of the function."""
        return vid not in self.args and self.integers.is_known_to(self.node, vid)


@dataclass(frozen=True)
class RegionRanges:
    """Analysis of the bodies of a loop or branch.

    Attributes:
        reason: Why the operator has to fall back; ``None`` if it need not.
        results: The ranges of the operator's results, in order.
        blocks: The analysis of each body.
        max_iterations: Maximum trip count of a loop; ``None`` if unknown.
    """

    reason: str | None
    results: list[Range | None]
    blocks: list[Integers]
    max_iterations: int | None = None


class Integers:
    """The 64-bit rule: the engine computes int64 in 32 bits.

    An int64 tensor is accepted only if its values certainly fit into int32, if they are used only
    as indices, or if they are known and are read only during the build of the function.

    Indices that are inputs of a subgraph always fit, even if they have other uses: the engine
    rejects a run in which they do not. Results computed from them have the implied range inside
    that subgraph, but not in another one: if a run is rejected, Paddle computes the results from
    arbitrary values. In another subgraph they have the range of int32, by another check, unless
    their range does not depend on checks.

    Args:
        candidates: The operators.
        outer: Facts about outer blocks; ``None`` for the outermost block.
        is_certain: Whether ranges do not depend on checks, but also hold in any run by Paddle.
    """

    def __init__(
        self, candidates: Candidates, outer: OuterScope | None = None, is_certain: bool = False
    ) -> None:
        self._candidates = candidates
        self._outer = outer
        self._is_certain = is_certain
        self._region_ranges: dict[OpNode, RegionRanges] = {}
        self._view = candidates.view
        self._rejected: dict[OpNode, str] = {}
        self._static: dict[str, bool] = {}
        self._ranges: dict[str, Range | None] = {}
        self._position: dict[str, bool] = {}
        self._checked: set[str] = set()
        self._offsets: Offsets | None = None
        self._build_only: dict[str, bool] = {}

        # Readers are queried first: queries are recursive, and so end early at known answers.
        for node in reversed(self._view.nodes if outer is None else ()):
            for vid in node.writes:
                self._is_build_only(vid)
        self._certain: Integers | None = None
        if is_certain:
            return
        # A run checks only inputs of the outermost block: in a loop body or branch, no range
        # follows from a check.
        if outer is None:
            self._certain = Integers(candidates, is_certain=True)
        for node in reversed(self._view.nodes if outer is None else ()):
            self._checked |= self._checked_by(node)
        self._checked -= self._read_by_value()
        # Producers are queried first: queries are recursive, and so end early at known answers.
        for node in self._view.nodes:
            for vid in node.writes:
                self.is_static(vid)
                self.range(vid)

    @property
    def static(self) -> frozenset[str]:
        """The variables whose contents are known when the function is built."""
        return frozenset(vid for vid, is_static in self._static.items() if is_static)

    def wide_operators(self) -> dict[OpNode, str]:
        """Returns the operators that may need 64-bit integers, with the reason.

        Readers are visited first: a rejected reader is no longer treated as an index use.
        """
        for node in reversed(self._view.nodes):
            for vid in node.writes:
                self.is_position(vid)
            is_constant = node in self._candidates.constants
            is_region = node in self._candidates.bodies and self._candidates.can_convert(node)
            if is_region and (reason := self._region_ranges_of(node).reason) is not None:
                self._rejected[node] = reason
                continue
            if self._candidates.can_convert(node) and not is_constant and not self._fits(node):
                self._rejected[node] = _NEEDS_64_BITS
        return self._rejected

    def operators_to_check(self) -> frozenset[OpNode]:
        """Returns the operators in :meth:`wide_operators` whose overflow a run can check.

        With these checks, later operators may not need 64 bits. Call :meth:`wide_operators` first.
        """
        if _skips_overflow_checks.value:
            return frozenset()
        found = set()
        # For results that get an overflow check in this round, their ranges limited to int32.
        checked: dict[str, Range] = {}
        for node in filter(self._rejected.__contains__, self._view.nodes):
            produced = self._range_if_checked(node, checked)
            if produced is None:
                continue
            reads_checked = any(vid in checked for vid in node.reads)
            if not (reads_checked and _covers(_INT32, produced)):
                found.add(node)
            integers = filter(self._is_int64, node.writes)
            checked.update(dict.fromkeys(integers, _intersection(produced, _INT32)))
        return frozenset(found).union(
            *(
                inner.operators_to_check()
                for each in self._region_ranges.values()
                for inner in each.blocks
            )
        )

    def _range_if_checked(self, node: OpNode, checked: Mapping[str, Range]) -> Range | None:
        """The range of an operator's result before its overflow check.

        ``None`` if no check is possible, or no value in the range fits into int32.
        """
        entry, op = self._candidates.converters.get(node), self._candidates.ops.get(node)
        if entry is None or op is None or node in self._candidates.checked or not entry.checks(op):
            return None
        if denylist.is_overflow_check_denied(op, compiled_for(node.device)):
            return None
        # Accepts loop-carried inputs that do not fit into int32: they may fit once this operator is
        # checked.
        args = {} if self._outer is None else self._outer.args
        data = {name: vid for name, vid in self._data(node, entry) if self._is_integer(vid)}
        if not all(vid in checked or self.is_small(vid) or vid in args for vid in data.values()):
            return None
        if entry.integers is None:
            return _INT64
        known = {
            name: checked.get(vid) or (self.range(vid) if self.is_small(vid) else _INT32)
            for name, vid in data.items()
        }
        produced = entry.integers(
            op, {name: each for name, each in known.items() if each is not None}
        )
        return produced if produced is not None and _overlap(produced, _INT32) else None

    def _converter(self, node: OpNode | None) -> Converter | None:
        """The converter of ``node``; ``None`` if the operator falls back."""
        if node is None or node in self._rejected:
            return None
        return self._candidates.converters.get(node)

    def is_static(self, vid: str) -> bool:
        """Whether the contents of a variable are known when the function is built."""
        if vid not in self._static:
            self._static[vid] = False
            node = self._view.producer.get(vid)
            if node is None and self._outer is not None:
                self._static[vid] = self._outer.is_static(vid)
                return self._static[vid]
            self._static[vid] = (
                node is not None
                and not self._view.is_overwritten(vid)
                and not node.overwrites
                and self._makes_static(node)
            )
        return self._static[vid]

    def is_known_to(self, reader: OpNode, vid: str) -> bool:
        """Whether the contents of ``vid`` are known when the function of ``reader`` is built."""
        return (reader, vid) not in self._candidates.cut_off and self.is_static(vid)

    def _makes_static(self, node: OpNode) -> bool:
        if node in self._candidates.constants:
            return all(_can_be_folded(spec) for spec in self._outputs(node)) or all(
                self.is_small(vid) for vid in node.writes
            )
        entry = self._converter(node)
        if entry is None:
            return False
        is_integer = all(spec.dtype in ("int32", "int64", "bool") for spec in self._outputs(node))
        # A size that is cast to float32 counts as static only if builds alone read it.
        is_cast_for_build = node.type == "pd_op.cast" and all(map(self._is_build_only, node.writes))
        return (is_integer or is_cast_for_build) and self._is_folded(node, entry)

    def _is_folded(self, node: OpNode, entry: Converter) -> bool:
        """Whether the bridge constant-folds ``node`` during the build of the function, in int64."""
        if node.type in REGIONS:
            return False
        read = [(entry.role(name), v) for name, v in self._candidates.slots[node]]
        read = [(role, v) for role, v in read if role.has_contents_read]
        computed = any(role is not Role.CONSTANT for role, _ in read)
        if computed and any(not _can_be_folded(spec) for spec in self._outputs(node)):
            return False
        return all(self.is_known_to(node, v) or self._is_read_by_value(node, v) for _, v in read)

    def _is_read_by_value(self, node: OpNode, vid: str) -> bool:
        """Whether the build for ``node`` reads ``vid``, an input of the subgraph, by value."""
        is_outside = (node, vid) in self._candidates.cut_off or not any(
            map(self._candidates.can_convert, self._candidates.producers(vid))
        )
        if not is_outside or self._outer is not None or self._view.is_overwritten(vid):
            return False
        value = self._view.values[vid]
        sizes = list(value.shape)
        is_short = -1 not in sizes and math.prod(sizes) <= SETTINGS.max_value_input_elements
        is_integer = dtype_name(value.dtype) in ("int32", "int64", "bool")
        return is_short and is_integer and all(map(self._is_build_only, node.writes))

    def _is_build_only(self, vid: str) -> bool:
        """Whether builds alone, no run, read what ``vid`` determines, as far as operators show."""
        if vid not in self._build_only:
            node, readers = self._view.producer.get(vid), self._view.readers.get(vid, ())
            self._build_only[vid] = (
                bool(readers)
                and (node is None or not self._view.is_result(node))
                and all(self._uses_at_build_only(reader, vid) for reader in readers)
            )
        return self._build_only[vid]

    def _uses_at_build_only(self, reader: OpNode, vid: str) -> bool:
        if reader.type in LISTS:
            return all(map(self._is_build_only, reader.writes))
        entry = self._converter(reader)
        if entry is None or reader.type in REGIONS:
            return False
        if self._roles(reader, entry, vid) <= {Role.CONSTANT, Role.SHAPE_ONLY, Role.UNUSED}:
            return True
        outputs = self._outputs(reader)
        return (
            all(spec.dtype in ("int32", "int64", "bool") for spec in outputs)
            and all(map(_can_be_folded, outputs))
            and all(map(self._is_build_only, reader.writes))
        )

    def _outputs(self, node: OpNode) -> list[TensorSpec]:
        return list(self._candidates.ops[node].output_specs())

    def _checked_by(self, node: OpNode) -> set[str]:
        """The variables that ``node`` reads and for which the engine rejects a run outside int32.

        The engine does so only where a variable is an input of the subgraph.
        """
        is_output_checked = not self._checked.isdisjoint(node.writes)
        if node.type in LISTS:
            return set(node.reads) if is_output_checked else set()
        entry = self._converter(node)
        if entry is None:
            return set()
        if node.type in REGIONS:
            return (
                set()
                if _skips_overflow_checks.value
                else {vid for _, vid in self._candidates.slots[node]}
            )
        roles = (
            (Role.INDEX, *_ARITHMETIC_ROLES) if entry.moves and is_output_checked else (Role.INDEX,)
        )
        found = set(self._candidates.inputs_of(node, *roles))
        return set(filter(self._is_int64, found)) if entry is kernel_calls.CONVERTER else found

    def _read_by_value(self) -> set[str]:
        return {
            vid
            for node in self._candidates.ops
            for vid in self._candidates.inputs_of(node, Role.CONSTANT)
        }

    def is_small(self, vid: str) -> bool:
        """Whether a variable is not int64, or all its values certainly fit into int32."""
        if self._view.is_array(vid):
            # A TensorArray itself is small: the values that are written to it are checked instead.
            return True
        if self._view.is_tensor(vid) and not self._is_int64(vid):
            return True
        found = self.range(vid)
        return found is not None and _INT32[0] <= found[0] and found[1] <= _INT32[1]

    def range(self, vid: str) -> Range | None:
        """The minimum and the maximum of a variable; ``None`` if nothing is known."""
        if vid not in self._ranges:
            self._ranges[vid] = None
            self._ranges[vid] = self._range_in_any_subgraph(vid, self._find_range(vid))
        return self._ranges[vid]

    def _range_in_any_subgraph(self, vid: str, found: Range | None) -> Range | None:
        """A range of the variable that also holds if another subgraph, or Paddle, computed it."""
        if self._certain is None or found is None or not self._view.is_tensor(vid):
            return found
        if _covers(found, self._certain.range(vid)):
            return found
        if self._is_int64(vid):
            return _union(found, _INT32)
        return RANGES.get(dtype_name(self._view.values[vid].dtype))

    def _find_range(self, vid: str) -> Range | None:
        if self._view.is_array(vid):
            return None
        node = self._view.producer.get(vid)
        if node is None and self._outer is not None and not self._view.is_overwritten(vid):
            return self._outer.range(vid)
        if self._view.is_tensor(vid) and not self._is_int64(vid):
            integers = RANGES.get(dtype_name(self._view.values[vid].dtype))
            if integers is None or node is None or self._view.is_overwritten(vid):
                return integers
            # A value outside of its dtype's range wraps around: any value of the dtype is possible.
            produced = self._produced_range(node, vid)
            return (
                produced
                if produced and integers[0] <= produced[0] and produced[1] <= integers[1]
                else integers
            )
        if self._view.is_overwritten(vid):
            return None
        if node is not None and node.type in LISTS:
            return self._range_of_all(node.reads)
        found = None if node is None else self._produced_range(node, vid)
        if self._is_certain:
            return found if found is not None and _covers(_INT64, found) else _INT64
        is_small = found is not None and _covers(_INT32, found)
        if vid in self._checked and not is_small and self._stays_native(node, vid):
            if node is not None and self._candidates.can_convert(node):
                # The operator is rejected at once, since the ranges of later operators rely on
                # that.
                self._rejected[node] = _NEEDS_64_BITS
            return _INT32
        return found

    def _stays_native(self, node: OpNode | None, vid: str) -> bool:
        """Whether only Paddle can produce variable ``vid``, which may not fit into int32.

        A subgraph can if the variable is static, or comes from a constant, a loop, a branch, or an
        operator that only moves values.
        """
        if node is None or not self._candidates.can_convert(node):
            return True
        return not (
            self.is_static(vid)
            or node in self._candidates.constants
            or node in self._candidates.bodies
            or self._candidates.converters[node].moves
        )

    def _range_of_all(self, vids: Iterable[str]) -> Range | None:
        ranges = [self.range(vid) for vid in vids]
        found = [(low, high) for low, high in filter(None, ranges)]
        if not found or len(found) < len(ranges):
            return None
        return min(low for low, _ in found), max(high for _, high in found)

    def _produced_range(self, node: OpNode, vid: str) -> Range | None:
        found = self._operator_range(node, vid)
        if node not in self._candidates.checked or self._is_certain or not self._is_int64(vid):
            return found
        if found is None:
            return _INT32
        return _intersection(found, _INT32) if _overlap(found, _INT32) else found

    def _operator_range(self, node: OpNode, vid: str) -> Range | None:
        if node in self._candidates.constants:
            value = self._candidates.ops[node].attr("value")
            return range_of(value if isinstance(value, list) else [value])
        if node in self._candidates.bodies and self._is_certain:
            return None
        if node in self._candidates.bodies and self._converter(node) is not None:
            return self._region_ranges_of(node).results[node.writes.index(vid)]
        entry = self._candidates.converters.get(node) or find_converter(node.type)
        if entry is None:
            return None
        if entry.integers is not None and node in self._candidates.ops:
            found = self._range_by_rule(node, entry, entry.integers)
            if found is not None or not entry.small_integers:
                return found
        if entry.small_integers:
            return _INT32
        if not entry.moves:
            return None
        return self._range_of_all(vid for _, vid in self._data(node, entry))

    def _range_by_rule(self, node: OpNode, entry: Converter, rule: RangeRule) -> Range | None:
        data: dict[str, list[str]] = {}
        for name, vid in self._data(node, entry):
            if self._is_integer(vid):
                data.setdefault(name, []).append(vid)
        ranges = {name: self._range_of_all(vids) for name, vids in data.items()}
        known = {name: found for name, found in ranges.items() if found is not None}
        return rule(self._candidates.ops[node], known) if known == ranges else None

    # -- loops and branches ------------------------------------------------------------------------

    def _region_ranges_of(self, node: OpNode) -> RegionRanges:
        """The integer ranges inside the bodies of a loop or branch, computed once."""
        if node not in self._region_ranges:
            bodies = self._candidates.bodies[node]
            if node.type == WHILE:
                self._region_ranges[node] = self._loop_ranges(node, bodies[0])
            else:
                inner = [Integers(body.candidates, OuterScope(self, node, {})) for body in bodies]
                each = [i._ranges_of(b.results) for i, b in zip(inner, bodies)]
                reasons = [i._rejection_reason() for i in inner]
                self._region_ranges[node] = RegionRanges(
                    next(filter(None, reasons), None),
                    [_union(*ranges) for ranges in zip(*each)],
                    inner,
                )
        return self._region_ranges[node]

    def _loop_ranges(self, node: OpNode, body: ConvertibleBlock) -> RegionRanges:
        """Ranges of loop-carried values that hold in every iteration, by widening and narrowing.

        The inputs of an iteration are the initial values, or the yielded values of the previous
        iteration if its condition holds. Bounds that keep growing are widened first, and then
        narrowed by the loop condition: directly, or by the maximum trip count.
        """
        initial = self._ranges_of(node.initial_values)
        args, iteration_inputs = initial, self._iteration_inputs(node, body, initial)
        for _ in range(_MAX_JOINS):
            args = [_union(*pair) for pair in zip(args, iteration_inputs)]
            iteration_inputs = self._iteration_inputs(node, body, args)
        while not all(map(_covers, args, iteration_inputs)):
            args = [_widened_range(*pair) for pair in zip(args, iteration_inputs)]
            iteration_inputs = self._iteration_inputs(node, body, args)
        for _ in range(_MAX_NARROWINGS):
            if args == iteration_inputs or not all(map(_covers, args, iteration_inputs)):
                break
            args, iteration_inputs = (
                iteration_inputs,
                self._iteration_inputs(node, body, iteration_inputs),
            )
        inner = self._iteration(node, body, args)
        results = inner._ranges_of(body.results[1:])
        reason = inner._rejection_reason()
        if not all(map(_covers, args, iteration_inputs)):
            reason = "the ranges of its integers are not known"
        max_iterations = _max_iterations(
            initial, args, self._growth_per_iteration(node, body, inner)
        )
        return RegionRanges(
            reason, [_union(*pair) for pair in zip(initial, results)], [inner], max_iterations
        )

    def _iteration(
        self, node: OpNode, body: ConvertibleBlock, args: list[Range | None]
    ) -> Integers:
        """The integer ranges in a loop body, for an iteration whose inputs have ranges ``args``."""
        return Integers(body.candidates, OuterScope(self, node, dict(zip(body.args, args))))

    def _iteration_inputs(
        self, node: OpNode, body: ConvertibleBlock, args: list[Range | None]
    ) -> list[Range | None]:
        """The ranges that the loop's inputs have in any iteration, if they are ``args`` in one."""
        inner = self._iteration(node, body, args)
        initial = self._ranges_of(node.initial_values)
        iteration_inputs = [
            _union(*pair) for pair in zip(initial, inner._loop_carried_ranges(body))
        ]
        growth = self._growth_per_iteration(node, body, inner)
        max_iterations = _max_iterations(initial, iteration_inputs, growth)
        if max_iterations is None:
            return iteration_inputs
        return [
            found
            if grown is None or first is None
            else _bounded_by_growth(found, first, grown, max_iterations - 1)
            for found, first, grown in zip(iteration_inputs, initial, growth)
        ]

    def _growth_per_iteration(
        self, node: OpNode, body: ConvertibleBlock, inner: Integers
    ) -> list[Range | None]:
        """Per loop-carried value, (minimum, maximum) that an iteration adds; or ``None``."""
        results = body.results[1:]
        return [
            inner._growths({arg: (0, 0)}).get(result)
            if self._is_counted(start) and not inner._view.is_overwritten(arg)
            else None
            for start, arg, result in zip(node.initial_values, body.args, results)
        ]

    def _is_counted(self, vid: str) -> bool:
        """Whether a variable is int64, so that in Paddle its values do not wrap at 32 bits."""
        return self._view.is_tensor(vid) and self._is_int64(vid)

    def _growths(self, known: Mapping[str, Range]) -> dict[str, Range]:
        """Returns, by id, the range of (variable - x) for variables of this block computed from x.

        Args:
            known: The ranges for x itself, (0, 0), and for variables computed from it outside.
        """
        growths = dict(known)
        for node in self._view.nodes:
            if not growths.keys() & {*node.reads, *node.captured}:
                continue
            found: Sequence[Range | None]
            if node in self._candidates.bodies:
                found = self._growth_by_region(node, growths)
            else:
                found = [self._growth_by(node, growths)] if len(node.writes) == 1 else []
            if not any(map(self._view.is_overwritten, (*node.reads, *node.writes))):
                growths.update((v, g) for v, g in zip(node.writes, found) if g is not None)
        return growths

    def _growth_by(self, node: OpNode, growths: Mapping[str, Range]) -> Range | None:
        """The (minimum, maximum) offset of ``node``'s result from the variable of :meth:`_growths`.

        ``None`` if unknown. ``growths`` contains the offsets of the variables that ``node`` reads.
        """
        if node.type in VALUE_PRESERVING:
            return growths.get(node.reads[0])
        entry, op = find_converter(node.type), self._candidates.ops.get(node)
        if entry is None or entry.integers is None or op is None:
            return None
        read = dict(self._candidates.slots[node])
        term = next((name for name in terms(op) if read[name] in growths), None)
        if term is None:
            return None
        ranges = {name: self.range(vid) for name, vid in read.items() if name in OPERANDS}
        ranges[term] = growths[read[term]]
        known = {name: found for name, found in ranges.items() if found is not None}
        return entry.integers(op, known) if known == ranges else None

    def _growth_by_region(self, node: OpNode, growths: Mapping[str, Range]) -> list[Range | None]:
        """For the results of a loop or branch, the (minimum, maximum) of result minus variable."""
        bodies, inside = self._candidates.bodies[node], self._region_ranges_of(node)
        if node.type != WHILE:
            blocks = zip(inside.blocks, bodies)
            each = [
                [inner._growths(growths).get(vid) for vid in body.results] for inner, body in blocks
            ]
            return [_union(*pair) for pair in zip(*each)]
        before = [growths.get(vid) for vid in node.initial_values]
        ((inner,), (body,), max_iterations) = inside.blocks, bodies, inside.max_iterations
        per_iteration = self._growth_per_iteration(node, body, inner)
        return [
            None
            if max_iterations is None or b is None or g is None
            else _bounded_by_growth(None, b, g, max_iterations)
            for b, g in zip(before, per_iteration)
        ]

    def _loop_carried_ranges(self, body: ConvertibleBlock) -> list[Range | None]:
        """The ranges of loop-carried values after an iteration, if the loop goes on."""
        cond, *results = body.results
        found = loop_conditions.bounds(self._view, cond, self.range)
        carried = []
        for vid, known in zip(results, self._ranges_of(results)):
            for bound in found:
                if known is not None and bound.vid == loop_conditions.source(self._view, vid):
                    known = _narrowed_by(known, bound)
            carried.append(known)
        return carried

    def _ranges_of(self, vids: Iterable[str]) -> list[Range | None]:
        return list(map(self.range, vids))

    def _rejection_reason(self) -> str | None:
        """The reason for a fallback of the operator of this body; ``None`` if there is none."""
        for node in self._candidates.ops:
            for vid in self._candidates.inputs_of(node, Role.CONSTANT):
                if not self.is_known_to(node, vid) and not self._reads_only_slice_starts(node):
                    op_type = node.type.removeprefix("pd_op.")
                    return f"inside, {op_type} reads by value an input that is known in a run only"
        for node, reason in self.wide_operators().items():
            return f"inside, {node.type.removeprefix('pd_op.')} runs natively: {reason}"
        return None

    def _reads_only_slice_starts(self, node: OpNode) -> bool:
        """Whether all contents that only a run provides to ``node`` are start indices of slices."""
        if not self._candidates.converters[node].open_starts:
            return False
        if self._offsets is None:
            tensor_ids = self._candidates.tensor_ids.items()
            changing = {
                tensor_id for vid, tensor_id in tensor_ids if self._view.is_overwritten(vid)
            }
            self._offsets = Offsets(self._candidates.ops.values(), changing)
        op = self._candidates.ops[node]
        return self._offsets.slice_bounds(op) is not None or self._are_loop_counters(
            self._offsets, op
        )

    def _are_loop_counters(self, offsets: Offsets, op: Op) -> bool:
        """Whether slices of ``op`` begin and end at loop counters; the build checks the rest."""
        bases, outer, end = offsets.slice_bases(op), self._outer, self._view.nodes[-1]
        if not bases or outer is None or op.type not in SLICES:
            return False
        tensor_ids = self._candidates.tensor_ids
        args, results = (
            [self._view.spec(vid, tensor_ids.get(vid, -1)) for vid in vids]
            for vids in (outer.args, end.reads[1:])
        )
        counted = {
            arg.id
            for arg, result, start in zip(args, results, outer.node.initial_values)
            if offsets.increment(arg, result) and outer.integers.is_known_to(outer.node, start)
        }
        return {tensor for tensor, _ in bases} <= counted

    def _is_int64(self, vid: str) -> bool:
        return dtype_name(self._view.values[vid].dtype) == "int64"

    def _is_integer(self, vid: str) -> bool:
        return self._is_int64(vid) or dtype_name(self._view.values[vid].dtype) in RANGES

    def _data(self, node: OpNode, entry: Converter) -> Iterator[tuple[str, str]]:
        """(input, variable) of the operands with which the converter computes: no indices."""
        slots = self._candidates.slots[node]
        return ((name, vid) for name, vid in slots if entry.role(name) in _ARITHMETIC_ROLES)

    def is_position(self, vid: str) -> bool:
        """Whether the engine uses a variable as indices only."""
        if vid not in self._position:
            self._position[vid] = False
            node = self._view.producer.get(vid)
            self._position[vid] = (
                (node is None or not self._view.is_result(node))
                and all(
                    self._reads_as_position(reader, vid)
                    for reader in self._view.readers.get(vid, ())
                )
                and (node is None or not node.writes_variables or self._stays_position(node, vid))
            )
        return self._position[vid]

    def _stays_position(self, node: OpNode, vid: str) -> bool:
        """Whether other readers of a variable that ``node`` overwrites use it as indices too."""
        memory = {operand for operand, result in node.overwrites if result == vid}
        readers = [(r, each) for each in memory for r in self._view.readers.get(each, ())]
        others = [(reader, each) for reader, each in readers if reader is not node]
        is_read = bool(others or self._view.readers.get(vid) or not memory)
        return is_read and all(self._reads_as_position(*each) for each in others)

    def _reads_as_position(self, reader: OpNode, vid: str) -> bool:
        if reader.type in LISTS:
            return all(self.is_position(result) for result in reader.writes)
        entry = self._converter(reader)
        if entry is None:
            return False
        roles = self._roles(reader, entry, vid)
        if roles and roles <= {Role.INDEX, Role.SHAPE_ONLY, Role.UNUSED}:
            # Kernel calls read anything: only their integers may be positions.
            return entry is not kernel_calls.CONVERTER or self._is_int64(vid)
        return entry.moves and self._outputs_are_positions(reader)

    def _roles(self, reader: OpNode, entry: Converter, vid: str) -> set[Role]:
        """The roles of all inputs through which an operator reads a variable."""
        return {entry.role(name) for name, v in self._candidates.slots[reader] if v == vid}

    def _outputs_are_positions(self, node: OpNode) -> bool:
        return all(self.is_position(v) for v in node.writes)

    def _is_read_at_build(self, vid: str) -> bool:
        """Whether the contents, which are known, are read only during the build of the function."""
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
        if self._roles(reader, entry, vid).isdisjoint(_ARITHMETIC_ROLES):
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
    """Whether the tensor is static and small enough for constant folding in the bridge."""
    return -1 not in spec.shape and math.prod(spec.shape) <= MAX_FOLDED_ELEMENTS


def _union(one: Range | None, other: Range | None) -> Range | None:
    """The smallest range that contains two ranges; ``None`` if one of them is unknown."""
    if one is None or other is None:
        return None
    return min(one[0], other[0]), max(one[1], other[1])


def _covers(integers: Range | None, part: Range | None) -> bool:
    """Whether ``integers`` contains ``part``. ``None`` is the range of all values."""
    if integers is None or part is None:
        return integers is None
    return integers[0] <= part[0] and part[1] <= integers[1]


def _overlap(one: Range, other: Range) -> bool:
    """Whether two ranges have a value in common."""
    return one[0] <= other[1] and other[0] <= one[1]


def _intersection(one: Range, other: Range) -> Range:
    """The values that are in both ranges, which must overlap."""
    return max(one[0], other[0]), min(one[1], other[1])


def _widened_range(known: Range | None, grown: Range | None) -> Range | None:
    """``known`` with far bounds in place of those that ``grown`` exceeds; ``None``: no bounds."""
    if (
        known is None
        or grown is None
        or grown[0] < _WIDENING_BOUND[0]
        or grown[1] > _WIDENING_BOUND[1]
    ):
        return None
    return (
        known[0] if grown[0] >= known[0] else _WIDENING_BOUND[0],
        known[1] if grown[1] <= known[1] else _WIDENING_BOUND[1],
    )


def _bounded_by_growth(
    found: Range | None, first: Range, grown: Range, max_iterations: int
) -> Range | None:
    """``found``, limited to values from ``first`` on plus ``max_iterations`` increments."""
    lower = first[0] + min(0, grown[0]) * max_iterations
    upper = first[1] + max(0, grown[1]) * max_iterations
    if found is None:
        return lower, upper
    return max(found[0], lower), min(found[1], upper)


def _max_iterations(
    initial: Sequence[Range | None],
    iteration_inputs: Sequence[Range | None],
    growth: Sequence[Range | None],
) -> int | None:
    """An upper bound of the trip count, from ranges and increments; ``None`` if unknown.

    Some value grows in each iteration, from ``initial``, and stays in its range of
    ``iteration_inputs``.
    """
    found = []
    for first, integers, grown in zip(initial, iteration_inputs, growth):
        if first is None or integers is None or grown is None:
            continue
        if grown[0] > 0:
            found.append((integers[1] - first[0]) // grown[0] + 1)
        elif grown[1] < 0:
            found.append((first[1] - integers[0]) // -grown[1] + 1)
    return min(found, default=None)


def _narrowed_by(known: Range, bound: loop_conditions.VariableBounds) -> Range:
    """``known``, limited to ``bound``; its lower bound alone if the two do not overlap."""
    lower = known[0] if bound.lower is None else max(known[0], bound.lower)
    upper = known[1] if bound.upper is None else min(known[1], bound.upper)
    return (lower, upper) if lower <= upper else (known[0], known[0])
