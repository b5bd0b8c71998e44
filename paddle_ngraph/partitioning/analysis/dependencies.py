"""Dependencies between the operators of a block: by data, memory and ordering effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from paddle_ngraph.partitioning.analysis.block_view import BlockView, OpNode

EffectsOf = Callable[[OpNode], frozenset[str]]


def memory_and_effect_dependencies(
    view: BlockView,
    is_native: Callable[[OpNode], bool],
    effects_of: EffectsOf = attrgetter("effects"),
) -> Mapping[OpNode, Sequence[OpNode]]:
    """Returns the predecessors of each operator of a block, other than its data dependencies.

    An operator that overwrites memory follows all earlier readers of the memory, under whatever
    name, and precedes all later ones. The rule also covers operators that Paddle may run in place
    over a member of a list: Paddle checks for readers of the variable itself, and not for readers
    of the list. Operators with the same effect (sampling, external side effect, communication) keep
    their order.

    Args:
        view: The block.
        is_native: Whether Paddle's interpreter will run an operator.
        effects_of: The ordering effects of an operator.
    """
    in_lists = _list_members(view, is_native)
    found: dict[OpNode, list[OpNode]] = {}
    writer: dict[str, OpNode] = {}
    readers: dict[str, list[OpNode]] = {}
    last_by_effect: dict[str, OpNode] = {}
    for node in view.nodes:
        before: list[OpNode] = []
        read = {view.memory(member) for vid in node.reads for member in view.members(vid)}
        targets = [*(operand for operand, _ in node.overwrites), *node.outer_writes]
        overwritten = {view.memory(member) for vid in targets for member in view.members(vid)}
        if node.has_in_place_form and is_native(node):
            overwritten |= read & in_lists
        for root in read:
            if last := writer.get(root):
                before.append(last)
        for root in overwritten:
            before += [reader for reader in readers.pop(root, ()) if reader is not node]
            writer[root] = node
        for root in read:
            readers.setdefault(root, []).append(node)
        for effect in effects_of(node):
            if effect in last_by_effect:
                before.append(last_by_effect[effect])
            last_by_effect[effect] = node
        found[node] = before
    return found


def _list_members(view: BlockView, is_native: Callable[[OpNode], bool]) -> set[str]:
    """The memory of all members of lists that operators which fall back read."""
    lists = [node for node in view.nodes if node.type == "builtin.combine"]
    read = [n for n in lists if any(map(is_native, view.readers.get(n.writes[0], ())))]
    return {view.memory(vid) for node in read for vid in node.reads}
