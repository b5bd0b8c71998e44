"""Loop-carried values that no iteration reads: a loop's result is what its last iteration yields.

Programs of ``to_static`` carry each variable that a body assigns. Before the loop, such a variable
is a placeholder, whose shape may differ from that of the variable.
"""

from __future__ import annotations

from dataclasses import replace

from paddle_ngraph.ir.graph import Graph


def unread_values(block: Graph, args: int) -> list[int]:
    """The indices of the loop-carried values that no iteration reads.

    Args:
        block: The block of a loop.
        args: The number of loop-carried inputs, which come first.
    """
    read = {spec.id for op in block.ops for spec in op.input_specs()}
    read |= {spec.id for spec in block.outputs}
    return [index for index, spec in enumerate(block.inputs[:args]) if spec.id not in read]


def without_twins(block: Graph, args: int) -> tuple[Graph, dict[int, int]]:
    """Drops loop-carried values that no iteration reads, and that it yields for others, too.

    Args:
        block: The block of a loop.
        args: The number of loop-carried inputs, which come first.

    Returns:
        The block without them, and for each dropped value the index of the other one, which is
        equal to it after at least one iteration.
    """
    unread = set(unread_values(block, args))
    copies = [op for op in block.ops if op.type == "pd_op.assign"]
    copied = {spec.id: op.input("x").id for op in copies for spec in op.output_specs()}
    yielded = [copied.get(spec.id, spec.id) for spec in block.outputs[1 : 1 + args]]
    first: dict[int, int] = {}
    for index in sorted(range(args), key=unread.__contains__):
        first.setdefault(yielded[index], index)
    twins = {index: first[yielded[index]] for index in unread if first[yielded[index]] != index}
    return (
        replace(
            block,
            inputs=[spec for n, spec in enumerate(block.inputs) if n not in twins],
            outputs=[spec for n, spec in enumerate(block.outputs) if n - 1 not in twins],
        ),
        twins,
    )
