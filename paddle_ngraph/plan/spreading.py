"""Devices for operators without a placement rule: greedy list scheduling.

In program order, each operator is assigned to the device with the earliest estimated finish time;
data from another device arrives later by the cost of a subgraph boundary. Independent branches thus
get different devices, and chains stay together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paddle_ngraph.ir.graph import CPU, is_accelerator
from paddle_ngraph.partitioning import cost_model
from paddle_ngraph.partitioning.analysis.block_view import BlockView, OpNode, value_id
from paddle_ngraph.partitioning.analysis.placement import cores_of
from paddle_ngraph.transpiler.training_program import is_update

# Cost of the boundary between two dependent subgraphs.
BOUNDARY_US = 200.0


def assign_devices(
    view: BlockView,
    nodes: Sequence[OpNode],
    fixed: Mapping[OpNode, str],
    followed: Mapping[OpNode, OpNode],
    devices: Sequence[str],
) -> dict[OpNode, str]:
    """Returns the device of each operator.

    Optimizer updates run at the parameters: on the CPU, even if a GPU computes the gradient.

    Args:
        view: The block.
        nodes: The operators, in program order.
        fixed: The devices of operators placed by a rule.
        followed: Operators to place with another operator, and that operator.
        devices: The devices for the other operators.
    """
    host = next((device for device in devices if device == CPU or cores_of(device)), CPU)
    found: dict[OpNode, str] = {}
    # The time at which each device becomes idle in the simulated schedule, in microseconds.
    free: dict[str, float] = {}
    ends: dict[OpNode, float] = {}
    for node in nodes:
        producers = [producer for producer in producers_of(view, node) if producer in ends]
        us = cost_model.us_of(view, node)

        def end_on(device: str, producers: Sequence[OpNode] = producers, us: float = us) -> float:
            ready = (ends[m] + BOUNDARY_US * (found[m] != device) for m in producers)
            return max(free.get(device, 0.0), *ready, 0.0) + us

        device = fixed.get(node) or found.get(followed.get(node, node))
        if device is None:
            device = min(devices, key=end_on)
        if is_update(node.op) and is_accelerator(device):
            device = host
        ends[node] = free[device] = end_on(device)
        found[node] = device
    return found


def leading_operators(view: BlockView, nodes: Sequence[OpNode]) -> dict[OpNode, OpNode]:
    """Maps operators of the backward pass, and updates, to the operators they are placed with."""
    found: dict[OpNode, OpNode] = {}
    users: dict[str, list[OpNode]] = {}
    for node in nodes:
        base = node.type.removesuffix("_").removesuffix("_grad")
        is_backward = node.type.removesuffix("_").endswith("_grad")
        touched = {m for vid in [*node.reads, *node.writes] for m in view.members(vid)}
        if is_update(node.op):
            names = node.op.get_input_names()
            gradient = value_id(node.op.operand_source(names.index("grad")))
            producer = view.producer.get(gradient)
            if producer is not None and producer in nodes:
                found[node] = producer
        elif is_backward:
            shared: dict[OpNode, int] = {}
            for vid in touched:
                for other in users.get(vid, ()):
                    if other.type.removesuffix("_") == base:
                        shared[other] = shared.get(other, 0) + 1
            if shared:
                found[node] = max(shared, key=lambda other: (shared[other], other.index))
        for vid in touched:
            users.setdefault(vid, []).append(node)
    return found


def producers_of(view: BlockView, node: OpNode) -> list[OpNode]:
    """The operators that compute the inputs of ``node``, and the members of lists among these."""
    found: dict[OpNode, None] = {}
    pending = list(node.reads)
    while pending:
        vid = pending.pop()
        producer = view.producer.get(vid)
        if producer is None or producer.is_source:
            continue
        if producer.type.startswith("builtin."):
            pending += producer.reads
        else:
            found[producer] = None
    return list(found)
