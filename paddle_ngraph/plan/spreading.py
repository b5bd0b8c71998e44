"""Devices for operators that no rule places.

Operators are taken in program order. Each goes to the device on which it would end first, by a
rough estimate of what operators take; data from another device comes later by the cost of a border.
So branches that do not depend on each other get different devices, and chains stay together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paddle_ngraph.ir.graph import CPU, is_accelerator
from paddle_ngraph.partitioning import cost_model
from paddle_ngraph.partitioning.analysis.block_view import BlockView, OpNode, value_id
from paddle_ngraph.partitioning.analysis.placement import cores_of
from paddle_ngraph.transpiler.training_program import is_update

# What the borders of two intervals cost, where one waits for the other.
BOUNDARY_US = 200.0


def assign_devices(
    view: BlockView,
    nodes: Sequence[OpNode],
    fixed: Mapping[OpNode, str],
    followed: Mapping[OpNode, OpNode],
    devices: Sequence[str],
) -> dict[OpNode, str]:
    """The device of each operator.

    Steps of optimizers are taken where parameters are: on the CPU, if a GPU computes the gradient.

    Args:
        view: The block.
        nodes: The operators, in program order.
        fixed: The devices of those for which a rule gives one.
        followed: For those that go where another one is, that one.
        devices: What the others are spread over.
    """
    host = next((device for device in devices if device == CPU or cores_of(device)), CPU)
    found: dict[OpNode, str] = {}
    free: dict[str, float] = {}  # when each device has nothing more to do
    ends: dict[OpNode, float] = {}
    for node in nodes:
        makers = [maker for maker in producers_of(view, node) if maker in ends]
        us = cost_model.us_of(view, node)

        def end_on(device: str, makers: Sequence[OpNode] = makers, us: float = us) -> float:
            ready = (ends[m] + BOUNDARY_US * (found[m] != device) for m in makers)
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
    """The operator that each operator of the backward pass, or update, is placed with."""
    found: dict[OpNode, OpNode] = {}
    users: dict[str, list[OpNode]] = {}
    for node in nodes:
        base = node.type.removesuffix("_").removesuffix("_grad")
        is_backward = node.type.removesuffix("_").endswith("_grad")
        touched = {m for vid in [*node.reads, *node.writes] for m in view.members(vid)}
        if is_update(node.op):
            names = node.op.get_input_names()
            gradient = value_id(node.op.operand_source(names.index("grad")))
            maker = view.producer.get(gradient)
            if maker is not None and maker in nodes:
                found[node] = maker
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
    """The operators that compute what an operator reads, through lists."""
    found: dict[OpNode, None] = {}
    pending = list(node.reads)
    while pending:
        vid = pending.pop()
        maker = view.producer.get(vid)
        if maker is None or maker.is_source:
            continue
        if maker.type.startswith("builtin."):
            pending += maker.reads
        else:
            found[maker] = None
    return list(found)
