"""The operators of a block that can be converted, and for the others the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.conversion.registry import Converter, Role
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.partitioning.analysis.block_view import LISTS, BlockView, OpNode


@dataclass(frozen=True)
class ConvertibleBlock:
    """The body of a loop or branch, all of whose operators can be converted.

    Attributes:
        candidates: The operators of the body.
        args: Loop-carried inputs of the body; none for a branch.
        captured: Variables of outer blocks that it or its sibling block reads.
        results: The yielded values; for a loop, the first one is the loop condition.
    """

    candidates: Candidates
    args: Sequence[str]
    captured: Sequence[str]
    results: Sequence[str]


@dataclass(frozen=True)
class Candidates:
    """The operators of a block that have not been rejected so far. Immutable.

    Attributes:
        view: The block.
        slots: (input name, variable id) of every tensor that an operator reads.
        ops: The convertible operators as converters see them.
        converters: The converters of the operators.
        reasons: Why each other compute operator falls back to Paddle.
        tensor_ids: The id of each variable in graphs.
        constants: Constant operators, copied into every subgraph that reads them.
        unused_by: Readers of outputs that a converter omits: the readers must be converted too,
            since only a converter can do without these outputs.
        bodies: The bodies of convertible loops and branches.
        cut_off: (operator, variable) for variables whose contents are known only to the build of
            another subgraph.
        checked: Operators whose results each run checks for overflow of int32, in bodies too.
        unsized: Variables with a size that depends on data.
        empty_starts: Variables without elements that only loops read, which append to them.
    """

    view: BlockView
    slots: Mapping[OpNode, Sequence[tuple[str, str]]]
    ops: Mapping[OpNode, Op]
    converters: Mapping[OpNode, Converter]
    reasons: Mapping[OpNode, str]
    tensor_ids: Mapping[str, int]
    constants: frozenset[OpNode]
    unused_by: Mapping[OpNode, Sequence[OpNode]]
    bodies: Mapping[OpNode, Sequence[ConvertibleBlock]]
    cut_off: frozenset[tuple[OpNode, str]] = frozenset()
    checked: frozenset[OpNode] = frozenset()
    unsized: frozenset[str] = frozenset()
    empty_starts: frozenset[str] = frozenset()

    def can_convert(self, node: OpNode) -> bool:
        """Whether ``node`` can be converted, and so becomes part of a subgraph."""
        return node in self.ops

    def is_kernel_call(self, node: OpNode) -> bool:
        """Whether ``node`` calls Paddle's kernel inside a subgraph."""
        return self.converters.get(node) is kernel_calls.CONVERTER

    def runs_kernel(self, node: OpNode) -> bool:
        """Whether the function runs Paddle's kernel for ``node``; a view of bytes needs none."""
        if not self.is_kernel_call(node):
            return False
        return kernel_calls.runs_kernel(self.ops[node]) or not self.unsized.isdisjoint(node.reads)

    def calls_inside(self, node: OpNode) -> list[Op]:
        """The operators inside ``node``, a loop or branch, whose kernels of Paddle are called."""
        operators = (op for block in self.ops[node].blocks for op in block.all_ops())
        return list(filter(kernel_calls.runs_kernel, operators))

    def is_unsized_for(self, reader: OpNode, producer: OpNode, vid: str) -> bool:
        """Whether ``reader`` is not in the subgraph of ``producer``, for lack of a static size."""
        is_unsized = vid in self.unsized and self.is_kernel_call(producer)
        return is_unsized and not self.is_kernel_call(reader)

    def inputs_of(self, node: OpNode, *roles: Role) -> list[str]:
        """The variables that ``node``, a convertible operator, reads as inputs with these roles."""
        entry = self.converters[node]
        return [vid for name, vid in self.slots[node] if entry.role(name) in roles]

    def producers(self, vid: str) -> Iterator[OpNode]:
        """The operators that compute a variable, or members of it if it is a list.

        Sources and constants are left out.
        """
        node = self.view.producer.get(vid)
        if node is None or node.is_source or node in self.constants:
            return
        if node.type not in LISTS:
            yield node
            return
        for read in node.reads:
            yield from self.producers(read)

    def without(self, rejected: Mapping[OpNode, str]) -> Candidates:
        """Returns a copy in which the given operators fall back, with their reasons."""
        kept = {each.name: getattr(self, each.name) for each in fields(Candidates)}
        kept["ops"] = {node: op for node, op in self.ops.items() if node not in rejected}
        kept["converters"] = {n: e for n, e in self.converters.items() if n not in rejected}
        kept["reasons"] = {**self.reasons, **rejected}
        return Candidates(**kept)

    def with_cuts(self, edges: frozenset[tuple[OpNode, str]]) -> Candidates:
        """Returns a copy of the candidates with ``edges`` added to the attribute ``cut_off``."""
        return replace(self, cut_off=self.cut_off | edges)

    def with_checks(self, nodes: frozenset[OpNode]) -> Candidates:
        """Returns a copy in which the operators in ``nodes`` get overflow checks, too."""
        bodies = {
            node: [replace(each, candidates=each.candidates.with_checks(nodes)) for each in inside]
            for node, inside in self.bodies.items()
        }
        return replace(self, checked=self.checked | nodes, bodies=bodies)


@dataclass(frozen=True)
class Capability(Candidates):
    """The operators of a block to convert, with facts about variables.

    These are the candidates that ``classify.fixpoint`` does not reject, where the rejection of one
    operator may cause that of others.

    Attributes:
        static: Variables whose contents are known during the build of the function that produces
            them.
    """

    static: frozenset[str] = frozenset()

    def read_by_value(self, node: OpNode) -> set[str]:
        """Ids of the inputs of ``node`` whose contents a build needs, and only a run provides."""
        if not self.can_convert(node):
            return set()
        roles = [Role.CONSTANT]
        if node not in self.constants and node.writes and self.static.issuperset(node.writes):
            roles = [role for role in Role if role.has_contents_read]
        read = self.inputs_of(node, *roles)
        return {v for v in read if v not in self.static or (node, v) in self.cut_off}

    def random_nodes(self, nodes: Sequence[OpNode]) -> list[OpNode]:
        """The operators in ``nodes``, which can be converted, that are stochastic."""
        return [node for node in nodes if self.converters[node].draws(self.ops[node])]
