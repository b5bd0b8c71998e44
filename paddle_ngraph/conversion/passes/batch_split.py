"""Batch split: several concurrent requests, each for a chunk of the samples.

Each image of a batch passes through a network independently of the others. One request for the
whole batch writes the activations of all its images to memory, layer by layer, and reads them
again; a request for a chunk keeps them in a core's caches. So where every node computes each sample
from that sample alone, the model is turned into one for a chunk of the batch.

Rules, one for each type of node, decide whether that holds. A value is either *batched*, with the
samples' slices in order along an axis, or equal for all samples. A node without a rule prevents the
split.

The model may be one whose dimensions, except the batch, become dynamic later: a decision of a rule
by such a size adds a guard (symbolic_sizes.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from openvino import Model, Node, Output, PartialShape, opset15

from paddle_ngraph.conversion.kernel_calls import SAMPLEWISE
from paddle_ngraph.conversion.node_tools import ELEMENTWISE, Key, key_of
from paddle_ngraph.conversion.symbolic_sizes import Number, SymbolicSize
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.settings import SETTINGS


class SizeInfo(Protocol):
    """Interface for the sizes in a model, which the bridge implements."""

    def shape(self, node: Any) -> list[Number]:
        """The shape of an output; symbolic dimensions are Sizes."""

    def ints(self, values: Sequence[Number]) -> Any:
        """A 1-D int64 tensor with the values ``values``, which are sizes."""


class _StaticSizes:
    """The sizes in a model without dynamic dimensions: integers."""

    def shape(self, node: Any) -> list[Number]:
        return list(node.get_shape())

    def ints(self, values: Sequence[Number]) -> Any:
        return opset15.constant(np.array(values, np.int64))


def split_batch(model: Model, threads: int, sizes: SizeInfo = _StaticSizes()) -> int:  # noqa: B008 - it is empty
    """Turns the model of a batch into the model of a chunk of it, where that is faster.

    Args:
        model: A complete model, at its signature.
        threads: The number of threads that compute the chunks.
        sizes: Access to the model's sizes.

    Returns:
        The number of chunks, which divides the first axis of each parameter and of each result.
        1: the model is unchanged.

    Raises:
        NgraphError: A rule is wrong.
    """
    samples = _batch_size(model, sizes)
    chunks = _best_part_count(model, samples, threads)
    if chunks == 1:
        return 1
    try:
        targets = _Batch(model, samples, sizes).targets
    except _NotIndependent:
        return 1
    for node, index in targets:
        shape = sizes.shape(node.output(0))
        shape[index] //= chunks
        target = sizes.ints(shape)
        node.input(1).replace_source_output(
            target.output(0) if isinstance(target, Node) else target
        )
    expected = [_chunk_shape(output, chunks) for output in model.outputs]
    for node in model.get_parameters():
        node.set_partial_shape(PartialShape(_chunk_shape(node.output(0), chunks)))
    model.validate_nodes_and_infer_types()
    if [list(output.get_shape()) for output in model.outputs] != expected:
        raise NgraphError("a part of the batch has other results than the batch")
    return chunks


def _chunk_shape(output: Output, chunks: int) -> list[int]:
    first, *rest = output.get_shape()
    return [first // chunks, *rest]


def _batch_size(model: Model, sizes: SizeInfo) -> int:
    """The size of axis 0 of all inputs of the model; 1 if they differ, or one is symbolic."""
    parameters = model.get_parameters()
    if any(node.get_output_partial_shape(0).is_dynamic for node in parameters):
        return 1
    firsts = [sizes.shape(node.output(0))[:1] for node in parameters]
    if any(isinstance(size, SymbolicSize) for first in firsts for size in first):
        return 1
    found = {tuple(first) for first in firsts}
    size = found.pop() if len(found) == 1 else ()
    return int(size[0]) if size else 1


# -- the number of chunks ------------------------------------------------------------------------


def _best_part_count(model: Model, samples: int, threads: int) -> int:
    """The largest number of chunks of a batch with enough work each, for few idle threads."""
    work = _multiplications(model) if samples > 1 else 0
    for chunks in range(min(samples, work // SETTINGS.min_multiplications_per_chunk), 1, -1):
        if (
            samples % chunks == 0
            and _thread_utilization(chunks, threads) >= SETTINGS.min_busy_thread_share
        ):
            return chunks
    return 1


def _thread_utilization(chunks: int, threads: int) -> float:
    """The average share of threads that are busy; a chunk takes one thread one time unit.

    With fewer chunks than threads, several threads share each chunk, in equal groups. So do the
    threads with chunks that are left over when all groups have computed equally many.
    """
    groups = min(chunks, threads)
    rounds, left = divmod(chunks, groups)
    time = rounds / (threads // groups)
    # All threads are divided among the chunks of the batch that are left over
    # (Settings::shares_remainder in core/ov/ov_function.h).
    if left:
        time += 1 / (threads // left)
    return chunks / time / threads


def _multiplications(model: Model) -> int:
    """The total number of multiplications of all convolutions in a model."""
    total = 0
    for node in model.get_ops():
        if node.get_type_name() in ("Convolution", "GroupConvolution"):
            filter_ = node.get_input_shape(1)
            features = node.get_output_shape(0)[1]
            total += math.prod(node.get_output_shape(0)) * math.prod(filter_) // max(features, 1)
    return total


# -- independence of samples ---------------------------------------------------------------------


class _NotIndependent(Exception):
    """Raised for a node that may compute a sample from other samples: the batch cannot be split."""


class _Batch:
    """The batched values of a model.

    Attributes:
        targets: Reshapes, each with the index of the batch size in its target shape.

    Raises:
        _NotIndependent: A node, or a result, may mix samples, or has another batch axis than 0.
    """

    def __init__(self, model: Model, samples: int, sizes: SizeInfo) -> None:
        self.samples = samples
        self.shape = sizes.shape
        self.targets: list[tuple[Node, int]] = []
        self._axes: dict[Key, int] = {}
        for node in model.get_ordered_ops():
            if node.get_type_name() == "Parameter":
                self._put(node, 0)
            elif node.get_type_name() == "ShapeOf" and self._reads_other_sizes(node):
                continue
            elif any(self.axis(value) is not None for value in node.input_values()):
                rule = _RULES.get(node.get_type_name())
                self._put(node, None if rule is None else rule(self, node))
        if any(self.axis(result.input_value(0)) != 0 for result in model.get_results()):
            raise _NotIndependent

    def axis(self, value: Output) -> int | None:
        """The axis along which ``value`` is batched; ``None`` if it is equal for all samples."""
        return self._axes.get(key_of(value))

    def only_first_axis(self, node: Node) -> int | None:
        """The batch axis of ``node``: its first input's; ``None`` if another input is batched."""
        first, *rest = map(self.axis, node.input_values())
        return first if all(axis is None for axis in rest) else None

    def _reads_other_sizes(self, node: Node) -> bool:
        """Whether no reader of ``node``, a ShapeOf, uses the size along the batch axis."""
        axis = self.axis(node.input_value(0))
        readers = [port.get_node() for port in node.output(0).get_target_inputs()]
        taken = [
            _known_integers(reader, 1) for reader in readers if reader.get_type_name() == "Gather"
        ]
        rank = len(node.input_value(0).get_shape())
        return len(taken) == len(readers) and all(
            indices is not None and axis not in [index % rank for index in indices]
            for indices in taken
        )

    def _put(self, node: Node, axis: int | None) -> None:
        for output in node.outputs():
            is_dynamic = output.get_partial_shape().is_dynamic
            if axis is None or is_dynamic or self.shape(output)[axis] % self.samples != 0:
                raise _NotIndependent
            self._axes[key_of(output)] = axis


# Rules: each returns the batch axis of the outputs of a node, or ``None`` if it may mix samples.


def _elementwise(batch: _Batch, node: Node) -> int | None:
    if node.get_attributes().get("auto_broadcast", "numpy") != "numpy":
        return None
    return _broadcast(batch, node)


def _broadcast(batch: _Batch, node: Node) -> int | None:
    """The batch axis of a node whose operands are broadcast with aligned last axes."""
    values = node.input_values()
    axes = [batch.axis(value) for value in values]
    offsets = {axis - len(v.get_shape()) for v, axis in zip(values, axes) if axis is not None}
    # The batch axis as a negative index, from the last axis, which operands of any rank share.
    index = offsets.pop()
    for value, axis in zip(values, axes):
        shape = value.get_shape()
        if axis is None and len(shape) >= -index and shape[index] != 1:
            return None
    return None if offsets else len(node.get_output_shape(0)) + index


def _prelu(batch: _Batch, node: Node) -> int | None:
    # The batch axis must be 0: a 1-D tensor of slopes is aligned with axis 1, and not with the last
    # axis.
    return 0 if _broadcast(batch, node) == 0 else None


def _matmul(batch: _Batch, node: Node) -> int | None:
    left, right = node.input_values()
    rank = len(node.get_output_shape(0))
    if min(len(left.get_shape()), len(right.get_shape())) < 2:
        return None
    axis = batch.only_first_axis(node)
    # If the batch is along the rows of the left matrix, each row of the result belongs to one
    # sample.
    if axis is not None and axis == len(left.get_shape()) - 2:
        is_independent = not node.get_attributes()["transpose_a"] and len(right.get_shape()) == 2
        return axis if is_independent else None
    found = _broadcast(batch, node)
    return found if found is not None and found < rank - 2 else None


def _at_axis_0(batch: _Batch, node: Node) -> int | None:
    return 0 if batch.only_first_axis(node) == 0 else None


def _rows(batch: _Batch, node: Node) -> int | None:
    axis, rank = batch.only_first_axis(node), len(node.get_output_shape(0))
    return None if axis == rank - 1 else axis


def _along_axes(batch: _Batch, node: Node) -> int | None:
    """The batch axis of a node; ``None`` if the node computes along that axis."""
    axis, axes = batch.only_first_axis(node), _reduced_axes(node)
    return None if axes is None or axis in axes else axis


def _reduction(batch: _Batch, node: Node) -> int | None:
    axis, axes = _along_axes(batch, node), _reduced_axes(node)
    if axis is None or axes is None or node.get_attributes().get("keep_dims", False):
        return axis
    return axis - sum(other < axis for other in axes)


def _unsqueeze(batch: _Batch, node: Node) -> int | None:
    axis, axes = batch.only_first_axis(node), _reduced_axes(node)
    if axis is None or axes is None:
        return None
    remaining = [k for k in range(len(node.get_output_shape(0))) if k not in axes]
    return remaining[axis]


def _concat(batch: _Batch, node: Node) -> int | None:
    axis, *others = map(batch.axis, node.input_values())
    is_independent = all(other == axis for other in others) and axis not in (
        _reduced_axes(node) or []
    )
    return axis if is_independent else None


def _interpolate(batch: _Batch, node: Node) -> int | None:
    attributes = node.get_attributes()
    pads = [*attributes["pads_begin"], *attributes["pads_end"]]
    has_axes_at_2 = node.get_type_info().version_id == "opset11"
    return _along_axes(batch, node) if has_axes_at_2 and not any(pads) else None


def _pool(batch: _Batch, node: Node) -> int | None:
    # Indices that a max pooling returns refer to the whole batch, so they differ within a chunk.
    reads_indices = any(output.get_target_inputs() for output in node.outputs()[1:])
    return None if reads_indices else _at_axis_0(batch, node)


def _reshape(batch: _Batch, node: Node) -> int | None:
    axis = batch.only_first_axis(node)
    if axis is None or 0 in node.get_output_shape(0):
        return None
    before, after = batch.shape(node.input_value(0)), batch.shape(node.output(0))
    for index, size in enumerate(after):
        # A possible axis: as many elements lie before it as before the old one, and each sample
        # stays contiguous.
        if math.prod(after[:index]) == math.prod(before[:axis]) and size % batch.samples == 0:
            batch.targets.append((node, index))
            return index
    return None


def _transpose(batch: _Batch, node: Node) -> int | None:
    axis, order = batch.only_first_axis(node), _known_integers(node, 1)
    return None if axis is None or not order else order.index(axis)


def _pad(batch: _Batch, node: Node) -> int | None:
    axis, before, after = (
        batch.only_first_axis(node),
        _known_integers(node, 1),
        _known_integers(node, 2),
    )
    if axis is None or not before or not after:
        return None
    return axis if before[axis] == after[axis] == 0 else None


def _gather(batch: _Batch, node: Node) -> int | None:
    table, indices = node.input_values()[:2]
    along = _reduced_axes(node)
    if along is None or node.get_attributes().get("batch_dims", 0) != 0:
        return None
    axis, indices_axis = batch.axis(table), batch.axis(indices)
    if axis is None:
        return None if indices_axis is None else along[0] + indices_axis
    if indices_axis is not None or axis in along:
        return None
    return axis if axis < along[0] else axis - 1 + len(indices.get_shape())


def _kernel_call(batch: _Batch, node: Node) -> int | None:
    name, _, _ = node.get_attributes()["kernel"].partition(" ")
    is_batched = all(batch.axis(value) == 0 for value in node.input_values())
    return 0 if is_batched and name in SAMPLEWISE else None


Rule = Callable[[_Batch, Node], "int | None"]

_AT_AXIS_0 = """
    AdaptiveAvgPool AvgPool Convolution ConvolutionBackpropData DepthToSpace FromBfloat16
    GroupConvolution GroupConvolutionBackpropData GroupNormalization LayerNorm PaddleAvgPool
    PaddleMaxPool SpaceToDepth ToBfloat16
"""

# For each type of node: the attribute, or the index of the input, that specifies the axes along
# which the node computes.
_AXES: dict[str, str | int] = {
    "ArgMax": "axis",
    "Concat": "axis",
    "CumSum": 1,
    "Gather": 2,
    "Interpolate": 2,
    "LogSoftmax": "axis",
    "MVN": 1,
    "NormalizeL2": 1,
    "ReduceL2": 1,
    "ReduceMax": 1,
    "ReduceMean": 1,
    "ReduceMin": 1,
    "ReduceProd": 1,
    "ReduceSum": 1,
    "Slice": 4,
    "Softmax": "axis",
    "Split": 1,
    "Squeeze": 1,
    "TopK": "axis",
    "Unsqueeze": 1,
    "VariadicSplit": 1,
}

_RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(_AT_AXIS_0.split(), _at_axis_0),
    **dict.fromkeys(_AXES, _along_axes),
    **dict.fromkeys([name for name in _AXES if name.startswith("Reduce")], _reduction),
    "Concat": _concat,
    "Gather": _gather,
    "Interpolate": _interpolate,
    "KernelCall": _kernel_call,
    "MatMul": _matmul,
    "MaxPool": _pool,
    "PRelu": _prelu,
    "Pad": _pad,
    "Reshape": _reshape,
    "Result": _Batch.only_first_axis,
    "RowSoftmax": _rows,
    "Squeeze": _reduction,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}


def _attribute(node: Node, name: str) -> int:
    return int(node.get_attributes()[name])


def _reduced_axes(node: Node) -> list[int] | None:
    """The axes along which a node is not elementwise, such as the reduced ones.

    ``None`` if the axes are an input whose contents are known in a run only.
    """
    where = _AXES[node.get_type_name()]
    axes = _known_integers(node, where) if isinstance(where, int) else [_attribute(node, where)]
    is_of_output = node.get_type_name() == "Unsqueeze"
    shape = node.get_output_shape(0) if is_of_output else node.get_input_shape(0)
    return None if axes is None else [axis % len(shape) for axis in axes]


def _known_integers(node: Node, index: int) -> list[int] | None:
    """The integers in the input ``index`` of a node; ``None`` if it is not a constant."""
    if index >= node.get_input_size():
        return None
    source = node.input_value(index).get_node()
    if source.get_type_name() != "Constant":
        return None
    return [int(number) for number in np.atleast_1d(source.get_data())]
