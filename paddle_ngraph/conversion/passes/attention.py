"""Attention of one position to many, as in each step of a decoder, becomes one node.

With dynamic sizes the plugin prepares each node anew for each new length, and its products generate
code for it; the shape of what the core's ``Attention`` returns does not depend on the length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from openvino import Dimension, Model, Node, Output, PartialShape, Type
from openvino.utils import replace_node

from paddle_ngraph.conversion.passes.fusion import Readers, known_value

Extension = Callable[..., Node]


class _Scores(NamedTuple):
    """Scores of a query for keys: ``scale * q k^T + mask``; ``keys`` are [..., L, D]."""

    queries: Output
    keys: Output
    scale: float | None = None
    mask: Output | None = None


def fuse_attention(model: Model, extension: Extension) -> None:
    """Replaces ``matmul(softmax(scale * matmul(q, k^T) + mask), v)`` of one query for each head.

    Scaling and masking may be missing, and the keys may be transposed by a node. Keys and values
    that are repeated for groups of queries are read where they are. Values with other readers stay.

    Args:
        model: The model, whose sizes that differ from run to run are dynamic.
        extension: Creates a node of an operator of this package (``NgraphBridge.extension``).
    """
    readers = Readers(model)
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul" or _transposes(node) != (False, False):
            continue
        weights, values = node.input_values()
        softmax = weights.get_node()
        if softmax.get_type_name() != "RowSoftmax" or len(readers.of(weights)) != 1:
            continue
        scores = _scores(softmax.input_value(0), readers)
        if scores is None or not _fits(scores, values, softmax.get_output_partial_shape(0)):
            continue
        operands = [scores.queries, _unrepeated(scores.keys), _unrepeated(values)]
        if scores.mask is not None:
            operands.append(scores.mask)
        fused = extension(
            "Attention", operands, scale=1.0 if scores.scale is None else scores.scale
        )
        fused.set_friendly_name(node.get_friendly_name())
        replace_node(node, fused)


def _transposes(matmul: Node) -> tuple[bool, bool]:
    attributes = matmul.get_attributes()
    return attributes["transpose_a"], attributes["transpose_b"]


# -- the scores ------------------------------------------------------------------------------------


def _scores(output: Output, readers: Readers) -> _Scores | None:
    """The operands of scores that only ``output`` reads; ``None`` for anything else."""
    node = output.get_node()
    kind = node.get_type_name()
    if len(readers.of(output)) != 1:
        return None
    if kind == "MatMul":
        return _product(node)
    if kind == "Add":
        for term, mask in _both_orders(node):
            found = _scores(term, readers)
            if found is not None and found.mask is None:
                return _Scores(found.queries, found.keys, found.scale, mask)
    if kind in ("Multiply", "Divide"):
        for term, other in _both_orders(node)[: 1 if kind == "Divide" else 2]:
            factor, found = known_value(other), _scores(term, readers)
            # One factor only: the product of two may be beyond float32 where the scores are not.
            if factor and found is not None and found.mask is None and found.scale is None:
                scale = 1 / factor if kind == "Divide" else factor
                return _Scores(found.queries, found.keys, scale) if _is_normal(scale) else None
    return None


def _is_normal(scale: float) -> bool:
    limits = np.finfo(np.float32)
    return float(limits.tiny) <= abs(scale) <= float(limits.max)


def _both_orders(node: Node) -> list[tuple[Output, Output]]:
    first, second = node.input_values()
    return [(first, second), (second, first)]


def _product(matmul: Node) -> _Scores | None:
    queries, keys = matmul.input_values()
    transposes = _transposes(matmul)
    if transposes == (False, True):
        return _Scores(queries, keys)
    source = keys.get_node()
    if transposes == (False, False) and source.get_type_name() == "Transpose":
        order = source.input_value(1).get_node()
        rank = len(keys.get_partial_shape())
        swapped = [*range(rank - 2), rank - 1, rank - 2]
        if order.get_type_name() == "Constant" and order.get_data().reshape(-1).tolist() == swapped:
            return _Scores(queries, source.input_value(0))
    return None


# -- shapes ----------------------------------------------------------------------------------------


def _fits(scores: _Scores, values: Output, shape: PartialShape) -> bool:
    """Whether an ``Attention`` with scores of this shape takes the operands."""
    operands = (scores.queries, scores.keys, values)
    if any(each.get_element_type() != Type.f32 for each in operands):
        return False
    if any(each.get_partial_shape().rank.is_dynamic for each in operands):
        return False
    queries, keys, mixed = (list(each.get_partial_shape()) for each in operands)
    if not 3 <= len(queries) == len(keys) == len(mixed) or queries[-2] != 1:
        return False
    sizes = [*queries, *keys[:-2], keys[-1], *mixed[:-2], mixed[-1]]
    if any(size.is_dynamic for size in sizes) or not queries[:-2] == keys[:-2] == mixed[:-2]:
        return False
    # A mask, or the constant of a scale, may broadcast the scores to more axes, samples or keys.
    if shape.rank.is_dynamic or list(shape)[:-1] != queries[:-1]:
        return False
    if not _are_alike(keys[-2], mixed[-2], shape[-1]):
        return False
    return scores.mask is None or _is_mask(scores.mask, shape)


def _is_mask(mask: Output, scores: PartialShape) -> bool:
    """Whether a mask has a row for all queries, for each sample, or for each query."""
    sizes = mask.get_partial_shape()
    if mask.get_element_type() != Type.f32 or sizes.rank.is_dynamic or len(sizes) == 0:
        return False
    if not _are_alike(sizes[-1], scores[-1]):
        return False
    batch = list(sizes)[:-1]
    if any(size.is_dynamic for size in batch):
        return False
    if all(size == 1 for size in batch):
        return True
    same = [size == other for size, other in zip(batch, scores)]
    is_for_samples = same[:1] == [True] and all(size == 1 for size in batch[1:])
    return len(sizes) == len(scores) and (all(same) or is_for_samples)


def _are_alike(*sizes: Dimension) -> bool:
    """Whether sizes that nodes combine are equal: a dynamic size is never 1, and not broadcast."""
    first = sizes[0]
    return all(
        each.is_dynamic if first.is_dynamic else each.is_static and each == first for each in sizes
    )


def _unrepeated(values: Output) -> Output:
    """Keys or values [..., G, L, D] that ``values`` repeats for groups of queries; else itself.

    They are repeated along a new axis behind G, which a reshape joins with G.
    """
    *outer, length, width = values.get_partial_shape()
    chain = list(_sources(values, ("Reshape", ("Broadcast", "Tile"), ("Unsqueeze", "Reshape"))))
    if len(chain) != 3 or not outer:
        return values
    repeated, single, source = (list(each.get_partial_shape()) for each in chain)
    if len(repeated) != len(outer) + 3 or len(single) != len(repeated):
        return values
    *batch, groups, times, found_length, found_width = repeated
    known = [*batch, groups, times, found_width]
    if any(size.is_dynamic for size in known) or found_width != width:
        return values
    is_joined = [*batch, groups.get_length() * times.get_length()] == outer
    is_repeated = single[:-3] == [*batch, groups] and single[-3] == 1 and single[-1] == width
    is_source = source == [*single[:-3], *single[-2:]]
    is_same_length = _are_alike(length, found_length, single[-2])
    return chain[2] if is_joined and is_repeated and is_source and is_same_length else values


def _sources(output: Output, kinds: tuple[str | tuple[str, ...], ...]) -> Iterator[Output]:
    """The first inputs along a chain of nodes of these types, as far as they are."""
    for kind in kinds:
        node = output.get_node()
        if node.get_type_name() not in (kind if isinstance(kind, tuple) else (kind,)):
            return
        output = node.input_value(0)
        if output.get_partial_shape().rank.is_dynamic:
            return
        yield output
