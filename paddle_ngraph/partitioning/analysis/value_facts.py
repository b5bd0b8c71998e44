"""Facts about the tensors of a block that hold in all runs: equal ones, sizes, small integers.

Sizes follow from parameters, constants and operators, never from the declared sizes of feeds, which
a run may feed otherwise. A size that does not follow is a symbol: that of one axis of one tensor.
Tensors of one *number* are equal in all runs: equal operators compute them from equal tensors
(value numbering, as compilers do it for common subexpression elimination).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Union

from paddle_ngraph import _core
from paddle_ngraph.conversion.analysis.position_wise import (
    BROADCASTING,
    SELECTIONS,
    reads_of_position,
)
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.ir.graph import Op, TensorSpec
from paddle_ngraph.paddle_private.protocols import Value
from paddle_ngraph.partitioning.analysis.block_view import BlockView, OpNode, describe
from paddle_ngraph.partitioning.analysis.operator_kinds import LISTS, REGIONS, dtype_name, value_id
from paddle_ngraph.utils.dtypes import integer_in


class SizeOf(NamedTuple):
    """A size that is not known: that of an axis of the tensors of a number."""

    number: int
    axis: int


Size = Union[int, SizeOf]

# Types of operators whose first result has the shape of an input.
_SAME_SHAPE = {
    "pd_op.dropout": "x",
    "pd_op.layer_norm": "x",
    "pd_op.log_softmax": "x",
    "pd_op.set_value": "x",
    "pd_op.set_value_with_tensor": "x",
    "pd_op.softmax": "x",
}
# The largest number of equal elements that are followed: far more than a tensor has axes.
_MAX_ELEMENTS = 64
_SHAPES = ("pd_op.shape", "pd_op.shape64")
_OF_ONE_ELEMENT = ("pd_op.reshape", "pd_op.squeeze", "pd_op.unsqueeze")
# Attributes that do not change what an operator computes.
_NAMES = frozenset({"op_callstack", "stop_gradient", "struct_name"})


class ValueFacts:
    """The facts about the tensors of a block, by the ids of their variables.

    Args:
        view: The block, in which no operator overwrites a variable.

    Attributes:
        dims: The sizes of each dense tensor.
        elements: The elements of integer tensors of rank 0 and 1, as far as they are known.
        first: For each number, the first tensor that has it.
    """

    def __init__(self, view: BlockView) -> None:
        self.view = view
        self.dims: dict[str, tuple[Size, ...]] = {}
        self.elements: dict[str, tuple[Size, ...]] = {}
        self.first: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._interned: dict[Hashable, int] = {}
        self._ids: dict[str, int] = {}
        self._variables: dict[int, str] = {}
        self._ops: dict[OpNode, Op | None] = {}
        for node in view.nodes:
            self._look_at(node)

    def number(self, vid: str) -> int:
        """The number of a tensor or a list of tensors."""
        if vid not in self._numbers:
            self._give(vid, ("variable", vid))
        return self._numbers[vid]

    def op(self, node: OpNode) -> Op | None:
        """An operator whose tensors have the sizes that are known, -1 for others."""
        return self._ops.get(node)

    def variable(self, spec: TensorSpec) -> str:
        """The variable of a tensor of :meth:`op`."""
        return self._variables[spec.id]

    def integers(self, op: Op, name: str) -> list[int] | None:
        """The integers of an input of :meth:`op`; ``None`` if they are unknown."""
        found = self.sizes(op, name) or ()
        integers = [each for each in found if isinstance(each, int)]
        return integers if found and len(integers) == len(found) else None

    def sizes(self, op: Op, name: str) -> tuple[Size, ...] | None:
        """The elements of the tensors of an input of :meth:`op`; ``None`` if they are unknown."""
        found: list[Size] = []
        for spec in op.inputs.get(name, ()):
            elements = self.elements.get(self.variable(spec))
            if elements is None:
                return None
            found += elements
        return tuple(found)

    def axes(self, op: Op) -> list[int] | None:
        """The integers of the input or attribute ``axis``; ``None`` if they are unknown."""
        if op.has_input("axis"):
            return self.integers(op, "axis")
        axis = op.attr("axis")
        return [axis] if isinstance(axis, int) else axis

    # -- each operator ----------------------------------------------------------------------------

    def _look_at(self, node: OpNode) -> None:
        # By their positions: an absent result, such as a mask that nothing needs, has one, too.
        results = [(n, each) for n, each in enumerate(node.op.results()) if each.initialized()]
        if node.type in LISTS:
            self._look_at_list(node, results)
            return
        op = self._describe(node)
        for index, value in results:
            vid = value_id(value)
            if op is not None and index == 0 and (found := self._elements(op, node)) is not None:
                self.elements[vid] = found
            self._give(vid, self._key(node, op, vid, index))
            if value.is_dense_tensor_type():
                self.dims[vid] = self._dims(node, op, value, index)
        if op is not None:
            self._ops[node] = self._with_sizes(op)

    def _look_at_list(self, node: OpNode, results: Sequence[tuple[int, Value]]) -> None:
        read = tuple(map(self.number, node.reads))
        for index, value in results:
            vid = value_id(value)
            self._give(vid, (node.type, read, index, repr(node.op.attrs().get("index"))))
            if value.is_dense_tensor_type():
                self.dims[vid] = self._unknown(vid, value)

    def _describe(self, node: OpNode) -> Op | None:
        """The operator, whose inputs have the sizes that are known."""
        if node.type in REGIONS or node.is_source:
            return None
        op = describe(self.view, node, self._ids)
        if isinstance(op, str):
            return None
        for vid in reversed(self._ids):  # the new ones
            if self._ids[vid] in self._variables:
                break
            self._variables[self._ids[vid]] = vid
        known = all(self.variable(spec) in self.dims for spec in op.input_specs())
        return self._with_sizes(op) if known else None

    def _with_sizes(self, op: Op) -> Op:
        """The operator with sizes that are known in place of declared ones."""

        def spec_of(spec: TensorSpec | None) -> TensorSpec | None:
            dims = None if spec is None else self.dims.get(self.variable(spec))
            if spec is None or dims is None:
                return spec
            return replace(spec, shape=tuple(n if isinstance(n, int) else -1 for n in dims))

        inputs = {n: tuple(filter(None, map(spec_of, specs))) for n, specs in op.inputs.items()}
        outputs = {name: tuple(map(spec_of, specs)) for name, specs in op.outputs.items()}
        return replace(op, inputs=inputs, outputs=outputs)

    def _give(self, vid: str, key: Hashable) -> None:
        number = self._interned.setdefault(key, len(self._interned))
        self._numbers[vid] = number
        self.first.setdefault(number, vid)

    def _key(self, node: OpNode, op: Op | None, vid: str, index: int) -> Hashable:
        if vid in self.elements:
            value = self.view.values[vid]
            return "integers", dtype_name(value.dtype), len(value.shape), self.elements[vid]
        if not is_pure(node, op):
            return "variable", vid
        read = tuple(
            self.number(value_id(value)) if value.initialized() else None
            for value in node.op.operands_source()
        )
        return node.type, attributes_key(node), read, index

    def _unknown(self, vid: str, value: Value) -> tuple[Size, ...]:
        number = self.number(vid)
        return tuple(SizeOf(number, axis) for axis in range(len(value.shape)))

    # -- integers ---------------------------------------------------------------------------------

    def _elements(self, op: Op, node: OpNode) -> tuple[Size, ...] | None:
        """The elements of the result of an operator, if it has rank 0 or 1."""
        (value, *_) = node.op.results()
        if not value.is_dense_tensor_type() or len(value.shape) > 1:
            return None
        found, dtype = self._numbers_of(op), dtype_name(value.dtype)
        if not found or not dtype.startswith("int"):
            return None
        if dtype not in ("int32", "int64") and any(isinstance(each, SizeOf) for each in found):
            return None
        elements = [n if isinstance(n, SizeOf) else integer_in(dtype, n) for n in found]
        known = tuple(each for each in elements if each is not None)
        return known if len(known) == len(found) else None

    def _numbers_of(self, op: Op) -> tuple[Size | float, ...] | None:
        """The elements of a result, as numbers that the conversion to its dtype may change."""
        if op.type == "pd_op.full_int_array":
            return tuple(op.attr("value"))
        if op.type == "pd_op.full":
            count = math.prod(op.attr("shape"))
            return (op.attr("value"),) * count if count <= _MAX_ELEMENTS else None
        if op.type in _SHAPES:
            return self.dims[self.variable(op.input("x" if "x" in op.inputs else "input"))]
        if op.type == "pd_op.slice":
            return self._elements_of_slice(op)
        if op.type not in ("pd_op.cast", "pd_op.assign", "pd_op.stack", *_OF_ONE_ELEMENT):
            return None
        found = self.sizes(op, "x")
        is_one = found is not None and len(found) == 1
        return found if is_one or op.type not in _OF_ONE_ELEMENT else None

    def _elements_of_slice(self, op: Op) -> tuple[Size, ...] | None:
        elements = self.elements.get(self.variable(op.input("input")))
        starts, ends = (self.integers(op, name) for name in ("starts", "ends"))
        if elements is None or starts is None or ends is None or len(op.attr("axes")) != 1:
            return None
        return elements[starts[0] : ends[0]]

    # -- sizes ------------------------------------------------------------------------------------

    def _dims(self, node: OpNode, op: Op | None, value: Value, index: int) -> tuple[Size, ...]:
        vid = value_id(value)
        unknown = self._unknown(vid, value)
        if node.type == "builtin.parameter":
            return tuple(size if size > 0 else unknown[n] for n, size in enumerate(value.shape))
        if op is None or index > 0:
            return unknown
        if vid in self.elements:
            return (len(self.elements[vid]),) * len(unknown)
        found = self._dims_of(op, unknown)
        return found if found is not None and len(found) == len(unknown) else unknown

    def _dims_of(self, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
        """The sizes of the first result of an operator, by the symbols of ``unknown``."""
        if op.type in _SAME_SHAPE:
            return self._of(op, _SAME_SHAPE[op.type])
        if op.type in BROADCASTING or op.type in SELECTIONS:
            names = SELECTIONS.get(op.type, ("x", "y"))
            return _broadcast([self._of(op, name) for name in names], unknown)
        rule = _RULES.get(op.type)
        if rule is not None:
            return rule(self, op, unknown)
        return self._by_position(op, unknown)

    def _of(self, op: Op, name: str, position: int = 0) -> tuple[Size, ...]:
        return self.dims[self.variable(op.inputs[name][position])]

    def _by_position(self, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...]:
        """Sizes that are those of axes of which each position is computed by itself."""
        found = list(unknown)
        for axis in range(len(found)):
            reads = reads_of_position(op, axis, self.integers) or ()
            # Of several inputs, which one has the size is up to the operator.
            if len(reads) == 1:
                ((name, position, own),) = reads
                found[axis] = self._of(op, name, position)[own]
        return tuple(found)

    def _target(self, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
        """The elements of the input ``shape``."""
        elements = self.sizes(op, "shape")
        return elements if elements is not None and len(elements) == len(unknown) else None


def is_pure(node: OpNode, op: Op | None) -> bool:
    """Whether an operator has equal results for equal inputs, and no effect."""
    entry = find_converter(node.type)
    if op is None or entry is None or op.blocks or node.effects or node.overwrites:
        return False
    return not entry.draws(op)


def attributes_key(node: OpNode) -> Hashable:
    """The attributes that determine what an operator computes."""
    found = (each for each in _core.attributes_of(node.op) if each[0] not in _NAMES)
    return tuple(sorted((name, str(kind), repr(value)) for name, kind, value in found))


def _broadcast(shapes: Sequence[tuple[Size, ...]], unknown: tuple[Size, ...]) -> tuple[Size, ...]:
    found = list(unknown)
    for axis in range(len(found)):
        own = [s[axis - len(found)] for s in shapes if len(s) >= len(found) - axis]
        sizes = {size for size in own if size != 1}
        known = [size for size in sizes if isinstance(size, int)]
        if not sizes:
            found[axis] = 1
        elif len(sizes) == 1 or known:
            # A size that is not known is 1 or the known one, or a run fails.
            found[axis] = known[0] if known else sizes.pop()
    return tuple(found)


def _of_matmul(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    x, y = (facts._of(op, name) for name in "xy")
    if min(len(x), len(y)) < 2:
        return None
    rows, columns = x[-1 if op.attr("transpose_x") else -2], y[-2 if op.attr("transpose_y") else -1]
    return (*_broadcast((x[:-2], y[:-2]), unknown[:-2]), rows, columns)


def _of_embedding(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...]:
    return (*facts._of(op, "x"), facts._of(op, "weight")[1])


def _of_channels(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    """Of a convolution or pooling: the batch, the channels, and sizes that are unknown."""
    if op.attr("data_format") != "NCHW":
        return None
    if op.type == "pd_op.pool2d":
        return (*facts._of(op, "x")[:2], *unknown[2:])
    return (facts._of(op, "input")[0], facts._of(op, "filter")[0], *unknown[2:])


def _of_concat(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    along, shapes = facts.axes(op), [facts._of(op, "x", n) for n in range(len(op.inputs["x"]))]
    if along is None:
        return None
    axis, found = along[0] % len(unknown), list(shapes[0])
    sizes = [shape[axis] for shape in shapes]
    known = [size for size in sizes if isinstance(size, int)]
    found[axis] = sum(known) if len(known) == len(sizes) else unknown[axis]
    return tuple(found)


def _of_unsqueeze(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    axes = facts.axes(op)
    if axes is None:
        return None
    found = list(facts._of(op, "x"))
    for axis in axes:
        found.insert(axis % (len(found) + 1), 1)
    return tuple(found)


def _of_squeeze(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    """Of a result whose rank is the declared one: all axes that are given have size 1."""
    axes, x = facts.axes(op), facts._of(op, "x")
    dropped = {axis % len(x) for axis in axes or ()} if x else set()
    return tuple(size for n, size in enumerate(x) if n not in dropped) if dropped else None


def _of_reduction(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    axes, x = facts.axes(op), facts._of(op, "x")
    if not axes or not x:
        return None
    reduced = {axis % len(x) for axis in axes}
    if op.attr("keepdim"):
        return tuple(1 if n in reduced else size for n, size in enumerate(x))
    return tuple(size for n, size in enumerate(x) if n not in reduced)


def _of_expand(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    target, x = facts._target(op, unknown), facts._of(op, "x")
    if target is None:
        return None
    x = (*(1 for _ in range(len(target) - len(x))), *x)
    return tuple(own if size == -1 else size for own, size in zip(x, target))


def _of_reshape(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    target, x = facts._target(op, unknown), facts._of(op, "x")
    if target is None:
        return None
    found = list(target)
    for axis, size in enumerate(target):
        if size == 0:
            found[axis] = x[axis] if axis < len(x) else unknown[axis]
        elif size == -1:
            found[axis] = _inferred(x, target) or unknown[axis]
    return tuple(found)


def _inferred(x: Sequence[Size], target: Sequence[Size]) -> Size | None:
    """The size that a reshape infers; ``None`` if it does not follow."""
    left = list(x)
    product = 1
    for axis, size in enumerate(target):
        size = x[axis] if size == 0 and axis < len(x) else size
        if isinstance(size, int):
            product *= max(size, 1)
        elif size in left:
            left.remove(size)
        else:
            return None
    symbols = [size for size in left if not isinstance(size, int)]
    whole = math.prod(size for size in left if isinstance(size, int))
    if not symbols and product and whole % product == 0:
        return whole // product
    return symbols[0] if len(symbols) == 1 and whole == product else None


def _of_full(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    return tuple(op.attr("shape"))


def _of_full_like(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    return facts._target(op, unknown)


def _of_slice(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    x, axes, dropped = facts._of(op, "input"), op.attr("axes"), op.attr("decrease_axis")
    found: list[Size | None] = list(x)
    for axis in axes:
        found[axis % len(x)] = None
    for axis in dropped:
        found[axis % len(x)] = 1
    kept = [size for n, size in enumerate(found) if n not in {axis % len(x) for axis in dropped}]
    if len(kept) != len(unknown):
        return None
    return tuple(own if size is None else size for own, size in zip(unknown, kept))


def _of_argmax(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...] | None:
    axes, x = facts.axes(op), facts._of(op, "x")
    if axes is None or op.attr("flatten") or op.attr("keepdims"):
        return None
    return tuple(size for n, size in enumerate(x) if n != axes[0] % len(x))


def _of_rnn(facts: ValueFacts, op: Op, unknown: tuple[Size, ...]) -> tuple[Size, ...]:
    directions = 2 if op.attr("is_bidirec") else 1
    return (*facts._of(op, "x")[:2], directions * op.attr("hidden_size"))


_RULES: Mapping[str, Callable[[ValueFacts, Op, tuple[Size, ...]], tuple[Size, ...] | None]] = {
    "pd_op.argmax": _of_argmax,
    "pd_op.bmm": _of_matmul,
    "pd_op.concat": _of_concat,
    "pd_op.conv2d": _of_channels,
    "pd_op.depthwise_conv2d": _of_channels,
    "pd_op.embedding": _of_embedding,
    "pd_op.expand": _of_expand,
    "pd_op.full": _of_full,
    "pd_op.full_with_tensor": _of_full_like,
    "pd_op.matmul": _of_matmul,
    "pd_op.max": _of_reduction,
    "pd_op.mean": _of_reduction,
    "pd_op.min": _of_reduction,
    "pd_op.pool2d": _of_channels,
    "pd_op.reshape": _of_reshape,
    "pd_op.rnn": _of_rnn,
    "pd_op.slice": _of_slice,
    "pd_op.squeeze": _of_squeeze,
    "pd_op.sum": _of_reduction,
    "pd_op.unsqueeze": _of_unsqueeze,
}
