"""The order in which a transposition puts the axes of a tensor."""

from __future__ import annotations

from paddle_ngraph.ir.graph import Op


def axis_order(op: Op) -> list[int]:
    """The axes of the operand of ``transpose`` or ``transpose_grad``, as they follow in the result.

    Axes behind those that ``perm`` names stay where they are: Paddle's dynamic mode accepts fewer
    axes than the tensor has, and so does its shape inference; its kernels for programs do not.
    """
    (result,) = op.output_specs()
    rank, perm = len(result.shape), op.attr("perm")
    return [*(axis % rank for axis in perm), *range(len(perm), rank)]


def names_each_axis_once(op: Op) -> bool:
    """Whether the order is a permutation.

    It is none where ``perm`` names an axis behind its own length: there Paddle returns a tensor
    with one axis twice, or raises, depending on the memory behind a vector that its check reads.
    """
    order = axis_order(op)
    return sorted(order) == list(range(len(order)))
