"""Shape inference with symbolic sizes, by a rule for each node type.

nGraph infers the concrete shapes of nodes. Here shapes are inferred for every value of the dynamic
dimensions (symbolic_sizes.py). The result of a rule is compared with nGraph's shapes. A type
without a rule, or a node that its rule does not cover, fixes every symbolic size that it reads,
which is always correct.

The contents of small integer tensors (targets of reshapes, ends of slices, and values that a
program computes from shapes) are tracked likewise.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import Node, Output, Type, opset15

from paddle_ngraph.conversion.extensions import evaluate
from paddle_ngraph.conversion.node_tools import Key, key_of
from paddle_ngraph.conversion.symbolic_sizes import (
    Guards,
    Number,
    SymbolicSize,
    Terms,
    Undecided,
    hint_of,
    is_symbolic,
)
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import MAX_FOLDED_ELEMENTS

Dims = list[Number]

# Bounds beyond which the engine's results differ: it computes integers in int32, and may divide
# them in float32.
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_MAX_EXACT_FLOAT32_INTEGER = 2**24

_INTEGERS = frozenset({"i8", "u8", "i16", "i32", "i64", "boolean"})


class _NoRule(Exception):
    """Raised by a size rule for a node that the rule does not cover."""


def is_same_shape(a: Sequence[Number], b: Sequence[Number]) -> bool:
    """Whether two shapes are equal for all values of the symbols; adds no guard."""
    return len(a) == len(b) and all(
        x.terms == y.terms
        if isinstance(x, SymbolicSize) and isinstance(y, SymbolicSize)
        else not is_symbolic((x, y)) and x == y
        for x, y in zip(a, b)
    )


def _size_of(dim: ov.Dimension) -> int:
    """A size in a model at its hints; -1 where a kernel call determines it (kernel_calls.py)."""
    return int(dim.get_length()) if dim.is_static else -1


def touches_empty_tensor(node: Node) -> bool:
    """Whether a node reads or computes an empty tensor, which nGraph's evaluation does not support.

    The folding of some nodes (softmax along an axis of 1) writes beyond an empty result. An empty
    list of integers, such as axes, is no such tensor; nor is a constant, unless a node reads it.
    """
    if node.get_type_name() == "Constant":
        return False
    return any(map(_is_empty_tensor, (*node.input_values(), *node.outputs())))


def _is_empty_tensor(output: Output) -> bool:
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic or not any(
        size.is_static and size.get_length() == 0 for size in shape
    ):
        return False
    return len(shape) != 1 or output.get_element_type().is_real()


class Shapes:
    """The shapes of the nodes of one build, and their integer contents.

    Args:
        guards: The symbols, and the decisions that depend on them.
    """

    def __init__(self, guards: Guards) -> None:
        self.guards = guards
        self._dims: dict[Key, Dims] = {}
        self._values: dict[Key, np.ndarray | None] = {}
        self._sources: dict[str, str] = {}
        # For each size, an output of the model from which a run reads the size: the output, an axis
        # of its shape or an index into its contents, and whether it is an index.
        self._size_locations: dict[Terms, tuple[Output, int, bool]] = {}
        self._size_nodes: dict[Terms, Output] = {}
        # For each trip count, the initial size of a dimension that grows by 1 per iteration.
        self._trip_counts: dict[Terms, Number] = {}

    def declare(self, parameter: Output, sizes: Sequence[SymbolicSize | None]) -> None:
        """Declares the shape of a parameter: per axis a symbolic size, or ``None`` if static."""
        dims: Dims = list(map(int, parameter.get_shape()))
        for axis, size in enumerate(sizes):
            if size is not None:
                dims[axis] = size
                self._size_locations.setdefault(size.terms, (parameter, axis, False))
        self._dims[key_of(parameter)] = dims

    def known_sizes(self) -> list[SymbolicSize]:
        """The symbols from which nodes of this model can compute sizes; iterations included."""
        known = {*self._size_locations, *self._size_nodes, *self._trip_counts}
        return [s for s in map(self.guards.size, self.guards.numbers()) if s.terms in known]

    def declare_trip_count(self, trip_count: SymbolicSize, before: Number) -> None:
        """Declares that ``trip_count`` iterations of a loop enlarge a dimension of size ``before``.

        The dimension grows by 1 per iteration, so nodes compute the trip count from its final size.
        """
        self._trip_counts[trip_count.terms] = before

    def declare_contents(self, output: Output, numbers: Sequence[Number]) -> None:
        """Declares the contents of an input of the model: integers, some of them symbolic sizes."""
        for index, number in enumerate(numbers):
            if isinstance(number, SymbolicSize):
                self._size_locations.setdefault(number.terms, (output, index, True))
        self._values[key_of(output)] = _array(list(numbers)).reshape(tuple(output.get_shape()))
        self._sources[output.get_node().get_name()] = "sizes"

    # -- shapes ----------------------------------------------------------------------------------

    def set(self, output: Output, dims: Sequence[Number]) -> None:
        """Sets the shape of ``output``, the result of a node without a size rule."""
        is_known = output.get_partial_shape().is_static
        if not is_known or list(map(hint_of, dims)) == list(output.get_shape()):
            self._dims[key_of(output)] = list(dims)

    def of(self, output: Output) -> Dims:
        """The shape of ``output``, with symbolic sizes where dimensions are dynamic."""
        key = key_of(output)
        if key not in self._dims:
            self._infer(output.get_node())
        return list(self._dims[key])

    def _infer(self, node: Node) -> None:
        inputs = [self.of(value) for value in node.input_values()]
        known = [list(map(_size_of, output.get_partial_shape())) for output in node.outputs()]
        found = self._by_rule(node, inputs, known)
        if found is None or [list(map(hint_of, dims)) for dims in found] != known:
            self._fix_inputs(node, inputs)
            found = known
        for output, dims in zip(node.outputs(), found):
            for dim in dims:
                # Fixes a size that may be 0: empty tensors have rules of their own, and other nodes
                # often compute them.
                if isinstance(dim, SymbolicSize) and not dim >= 1:
                    int(dim)
            self._dims[key_of(output)] = dims

    def _by_rule(self, node: Node, inputs: list[Dims], known: list[Dims]) -> list[Dims] | None:
        type_name = node.get_type_name()
        rule = _BY_SHAPES.get(type_name) or _BY_VALUES.get(type_name)
        reads = node.input_values() if type_name in _BY_VALUES else []
        is_static = not any(map(is_symbolic, inputs))
        if not inputs or (is_static and rule and not any(map(self._may_depend_on_sizes, reads))):
            return known
        try:
            return rule(self, node, inputs) if rule else None
        except _NoRule:
            return None

    def _may_depend_on_sizes(self, value: Output) -> bool:
        return self.depends_on(value) in ("sizes", "shapes")

    def _fix_inputs(self, node: Node, inputs: list[Dims]) -> None:
        for dim in (dim for dims in inputs for dim in dims):
            int(dim)
        for value in filter(self._may_depend_on_sizes, node.input_values()):
            self.fixed_value(value)

    # -- contents --------------------------------------------------------------------------------

    def value(self, output: Output) -> np.ndarray | None:
        """The integers in ``output``, symbolic ones included; ``None`` if they depend on data."""
        key = key_of(output)
        if key not in self._values:
            self._values[key] = self._computed(output)
        return self._values[key]

    def numbers(self, output: Output) -> list[Number]:
        """The integers in ``output``, a list of sizes. Raises _NoRule if they are not known."""
        found = self.value(output)
        if found is None:
            raise _NoRule
        return list(found.reshape(-1).tolist())

    def _computed(self, output: Output) -> np.ndarray | None:
        node, dims = output.get_node(), self.of(output)
        if output.get_element_type().get_type_name() not in _INTEGERS or is_symbolic(dims):
            return None
        if math.prod(dims) > MAX_FOLDED_ELEMENTS:
            return None
        type_name = node.get_type_name()
        if type_name == "Constant":
            return np.array(node.get_data()).astype(object)
        if type_name == "ShapeOf":
            return _array(self.of(node.input_value(0)))
        rule = _OF_VALUES.get(type_name)
        if rule is None:
            return None
        values = []
        for source in node.input_values():
            value = self.value(source)
            if value is None:
                return None
            values.append(value)
        try:
            found = _array(rule(node, values)[output.get_index()])
        except (_NoRule, ArithmeticError, Undecided):
            return None
        expected = self._evaluated(node, [_hints(value) for value in values])
        hints = _hints(found).reshape(dims)
        if expected is None or not np.array_equal(expected[output.get_index()], hints):
            return None
        return found.reshape(dims)

    def depends_on(self, output: Output) -> str:
        """The sources of the contents of ``output``.

        Returns:
            ``"nothing"`` (only constants); ``"sizes"``; ``"shapes"``, if tensors of symbolic shapes
            are involved; ``"data"``.
        """
        node = output.get_node()
        name = node.get_name()
        if name not in self._sources:
            self._sources[name] = self._source(node)
        return self._sources[name]

    def _source(self, node: Node) -> str:
        if node.get_type_name() == "ShapeOf":
            return "sizes" if is_symbolic(self.of(node.input_value(0))) else "nothing"
        if not node.input_values():
            return "nothing" if node.get_type_name() == "Constant" else "data"
        found = {self.depends_on(value) for value in node.input_values()}
        if any(is_symbolic(self.of(output)) for output in node.outputs()):
            found.add("shapes")
        if "sizes" in found and self._needs_per_iteration_node(node):
            found.add("data")
        return next(s for s in ("data", "shapes", "sizes", "nothing") if s in found)

    def _needs_per_iteration_node(self, node: Node) -> bool:
        """Whether a node of sizes has to be computed in each iteration, as its value varies."""
        sources = [self.value(source) for source in node.input_values()]
        sizes = [size for found in sources if found is not None for size in found.reshape(-1)]
        if not any(map(self._varies_per_iteration, sizes)):
            return False
        return any(self.value(output) is None for output in node.outputs())

    def _varies_per_iteration(self, number: Number) -> bool:
        return isinstance(number, SymbolicSize) and self.guards.varies_per_iteration(number.terms)

    def fixed_value(self, output: Output) -> np.ndarray | None:
        """The contents of ``output`` at the current sizes; ``None`` if they depend on data.

        Fixes the sizes involved: the function is valid for their current values only.
        """
        node = output.get_node()
        type_name = node.get_type_name()
        if type_name == "Constant":
            return np.array(node.get_data())
        if type_name == "Parameter":
            return None
        shape = [int(dim) for dim in self.of(output)]
        if type_name == "ShapeOf":
            dims = [int(dim) for dim in self.of(node.input_value(0))]
            return np.array(dims, output.get_element_type().to_dtype())
        value = self.value(output)
        if value is not None:
            numbers = [int(number) for number in value.reshape(-1)]
            return np.array(numbers, output.get_element_type().to_dtype()).reshape(shape)
        values = []
        for source in node.input_values():
            found = self.fixed_value(source)
            if found is None:
                return None
            values.append(found)
        results = self._evaluated(node, values) if values else None
        return None if results is None else results[output.get_index()]

    @staticmethod
    def _evaluated(node: Node, values: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The results of a node, evaluated by nGraph for known inputs; ``None`` if it cannot."""
        if touches_empty_tensor(node):
            return None
        tensors = []
        for source, value in zip(node.input_values(), values):
            array = value.astype(source.get_element_type().to_dtype())
            tensors.append(ov.Tensor(np.ascontiguousarray(array).reshape(value.shape)))
        results = [ov.Tensor(o.get_element_type(), o.get_shape()) for o in node.outputs()]
        if not evaluate(node, results, tensors):
            return None
        return [np.array(result.data) for result in results]

    # -- sizes as nodes --------------------------------------------------------------------------

    def node(self, numbers: Iterable[Number]) -> Output:
        """A node that computes sizes from the actual shapes in a run, as a 1-D int64 tensor."""
        pieces: list[Output] = []
        constants: list[int] = []
        values = list(numbers)
        for number in values:
            if not isinstance(number, SymbolicSize):
                constants.append(int(number))
                continue
            if constants:
                pieces.append(_ints(constants))
                constants = []
            pieces.append(self._size_node(number.terms))
        if constants or not pieces:
            pieces.append(_ints(constants))
        found = pieces[0] if len(pieces) == 1 else opset15.concat(pieces, 0).output(0)
        self._values[key_of(found)] = _array(values)
        self._sources[found.get_node().get_name()] = "sizes" if is_symbolic(values) else "nothing"
        return found

    def _size_node(self, terms: Terms) -> Output:
        """An int64 output, [1], with the value that the symbolic size ``terms`` has in a run."""
        if terms not in self._size_nodes:
            is_atom = len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1
            if terms in self._size_locations:
                build = self._node_at_location
            else:
                build = self._atom_node if is_atom else self._sum_node
            self._size_nodes[terms] = build(terms)
            self._require_32_bits(self.guards.of(terms))
        return self._size_nodes[terms]

    def _sum_node(self, terms: Terms) -> Output:
        first, *others = (self._product_node(*term) for term in terms)
        number: Number = 0
        for monomial, factor in terms:
            number = number + self.guards.of(((monomial, factor),))
            self._require_32_bits(number)
        for other in others:
            first = opset15.add(first, other).output(0)
        return first

    def _product_node(self, monomial: tuple[Any, ...], factor: int) -> Output:
        product: Output | None = None
        number: Number = 1
        for atom in monomial:
            node = self._size_node((((atom,), 1),))
            number = number * self.guards.of((((atom,), 1),))
            product = node if product is None else opset15.multiply(product, node).output(0)
            self._require_32_bits(number)
        if product is None or factor != 1:
            self._require_32_bits(number * factor)
            constant = _ints([factor])
            product = constant if product is None else opset15.multiply(product, constant).output(0)
        return product

    def _node_at_location(self, terms: Terms) -> Output:
        source, axis, in_contents = self._size_locations[terms]
        if in_contents:
            wide = opset15.convert(source, Type.i64)
            sizes = opset15.reshape(wide, _ints([-1]), False)
        else:
            sizes = opset15.shape_of(source, Type.i64)
        return opset15.gather(sizes, _ints([axis]), opset15.constant(np.int64(0))).output(0)

    def _atom_node(self, terms: Terms) -> Output:
        atom = terms[0][0][0]
        if atom[0] == 0:
            return self._trip_count_node(terms)
        dividend, divisor = (self.guards.of(each) for each in atom[1:])
        are_exact = all(
            self._is_bounded_by(size, _MAX_EXACT_FLOAT32_INTEGER - 1)
            for size in (dividend, divisor)
        )
        if dividend < 0 or not are_exact:
            raise NgraphError("a quotient of sizes beyond what the engine divides exactly")
        nodes = [
            self._size_node(number.terms) if isinstance(number, SymbolicSize) else _ints([number])
            for number in (dividend, divisor)
        ]
        return opset15.divide(*nodes).output(0)

    def _trip_count_node(self, trip_count: Terms) -> Output:
        if trip_count not in self._trip_counts:
            raise Undecided
        before = self._trip_counts[trip_count]
        after = self.node([self.guards.of(trip_count) + before])
        return opset15.subtract(after, self.node([before])).output(0)

    def _require_32_bits(self, number: Number) -> None:
        if number < _INT32_MIN or not self._is_bounded_by(number, _INT32_MAX):
            raise NgraphError("a size that needs 64 bits")

    def _is_bounded_by(self, number: Number, most: int) -> bool:
        """Whether a size is at most ``most``; limits the trip counts of loops if they decide it."""
        while True:
            try:
                return bool(number <= most)
            except Undecided:
                if not self.guards.bound_iterations(number.terms):
                    raise


def _ints(numbers: Sequence[int]) -> Output:
    return opset15.constant(np.array(numbers, np.int64)).output(0)


def _array(numbers: Any) -> np.ndarray:
    """``numbers``, integers or symbolic sizes, as a NumPy array of dtype ``object``."""
    if isinstance(numbers, np.ndarray):
        return numbers.astype(object)
    array = np.empty(len(numbers), object)
    array[:] = numbers
    return array


def _hints(values: np.ndarray) -> np.ndarray:
    found = np.array([hint_of(number) for number in values.reshape(-1)], np.int64)
    return found.reshape(values.shape)


# -- rules: shapes of the outputs from shapes of the inputs ---------------------------------------

Rule = Callable[[Shapes, Node, list[Dims]], list[Dims]]


def _like_first_input(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    """Size rule of nodes whose outputs all have the shape of the first input."""
    return [list(inputs[0]) for _ in node.outputs()]


def broadcast_shapes(*shapes: Sequence[Number]) -> Dims:
    """The shape that results from broadcasting ``shapes``, as in NumPy."""
    rank = max(map(len, shapes), default=0)
    found: Dims = [1] * rank
    for dims in shapes:
        for axis, dim in enumerate(dims, rank - len(dims)):
            if is_same_shape([dim], [1]) or is_same_shape([dim], [found[axis]]):
                continue
            if is_same_shape([found[axis]], [1]) or found[axis] == 1:
                found[axis] = dim
            elif dim != 1 and found[axis] != dim:
                raise ValueError(f"shapes that cannot be broadcast: {shapes}")
    return found


def _broadcast(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    if node.get_attributes().get("auto_broadcast", "numpy") != "numpy":
        raise _NoRule
    return [broadcast_shapes(*inputs)]


def _matmul(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    attributes = node.get_attributes()
    a, b = inputs
    if min(len(a), len(b)) < 2:
        raise _NoRule
    if attributes["transpose_a"]:
        a = [*a[:-2], a[-1], a[-2]]
    if attributes["transpose_b"]:
        b = [*b[:-2], b[-1], b[-2]]
    return [[*broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1]]]


def _concat(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    axis = node.get_attributes()["axis"] % len(inputs[0])
    dims = list(inputs[0])
    dims[axis] = sum(each[axis] for each in inputs)
    for each in inputs[1:]:
        for index, (dim, other) in enumerate(zip(dims, each)):
            if index != axis and dim != other:
                raise _NoRule
    return [dims]


def _convolution(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    data, filter_ = inputs
    grouped = node.get_type_name().startswith("Group")
    if is_symbolic(filter_):
        raise _NoRule
    features = filter_[0] * filter_[1] if grouped else filter_[0]
    kernel = filter_[3:] if grouped else filter_[2:]
    attributes = node.get_attributes()
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, attributes["dilations"])]
    return [[data[0], features, *_windows(attributes, data[2:], extents)]]


def _transposed_convolution(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    data, filter_, *rest = inputs
    attributes = node.get_attributes()
    if rest or is_symbolic(filter_) or attributes["auto_pad"] != "explicit":
        raise _NoRule
    grouped = node.get_type_name().startswith("Group")
    features = filter_[0] * filter_[2] if grouped else filter_[1]
    kernel = filter_[3:] if grouped else filter_[2:]
    names = ("strides", "dilations", "pads_begin", "pads_end", "output_padding")
    sizes = [
        (size - 1) * stride - begin - end + (k - 1) * dilation + 1 + extra
        for size, k, stride, dilation, begin, end, extra in zip(
            data[2:], kernel, *(attributes[name] for name in names)
        )
    ]
    return [[data[0], features, *sizes]]


def _pool(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    attributes = node.get_attributes()
    if attributes["rounding_type"] != "floor":
        raise _NoRule
    return [[*inputs[0][:2], *_windows(attributes, inputs[0][2:], attributes["kernel"])]]


def _windows(attributes: dict[str, Any], sizes: Dims, extents: Sequence[int]) -> Dims:
    """For each axis, the number of windows of this extent that fit into the padded size."""
    if attributes["auto_pad"] not in ("explicit", "valid"):
        raise _NoRule
    names = ("strides", "pads_begin", "pads_end")
    return [
        (size + begin + end - extent) // stride + 1
        for size, extent, stride, begin, end in zip(
            sizes, extents, *(attributes[name] for name in names)
        )
    ]


def _gather_nd(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    data, indices = inputs
    if node.get_attributes()["batch_dims"] or is_symbolic(indices[-1:]):
        raise _NoRule
    return [[*indices[:-1], *data[indices[-1] :]]]


def _einsum(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    sources, arrow, target = node.get_attributes()["equation"].replace(" ", "").partition("->")
    names = sources.split(",")
    if not arrow or "." in sources or [*map(len, names)] != [*map(len, inputs)]:
        raise _NoRule
    size_of: dict[str, Number] = {}
    for name, dim in zip("".join(names), (dim for dims in inputs for dim in dims)):
        if size_of.setdefault(name, dim) != dim:
            raise _NoRule
    return [[size_of[name] for name in target]]


def _like_input(position: int) -> Rule:
    """Returns the size rule of nodes whose output has the shape of the input at ``position``."""
    return lambda shapes, node, inputs: [list(inputs[position])]


def _arg_max(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    dims = list(inputs[0])
    dims[node.get_attributes()["axis"]] = 1
    return [dims]


def _shape_of(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    return [[len(inputs[0])]]


_BY_SHAPES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceiling"),
            *("CheckRange", "CheckedAdd", "CheckedMultiply", "CheckedSubtract"),
            *("FloorDivide", "Remainder"),
            *("Clamp", "Convert", "Cos", "Cosh", "CumSum", "Elu", "Erf", "Exp"),
            *("Floor", "FromBfloat16", "Gelu", "HSigmoid", "HSwish", "IsFinite", "IsInf", "IsNaN"),
            *("Log", "LogSoftmax", "LogicalNot", "MVN", "Mish", "Negative", "NormalizeL2", "PRelu"),
            *("Relu", "Result", "Roll", "Round", "RoundToBfloat16", "RowSoftmax"),
            *("ScatterElementsUpdate", "ScatterNDUpdate", "ScatterUpdate", "Sigmoid", "Sign"),
            *("Sin", "Sinh", "SoftPlus", "SoftSign", "Softmax", "Sqrt", "Swish", "Tan", "Tanh"),
            "ToBfloat16",
        ),
        _like_first_input,
    ),
    **dict.fromkeys(
        (
            *("Add", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Divide", "Equal", "FloorMod"),
            *("Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr"),
            *("LogicalXor", "Maximum", "Minimum", "Mod", "Multiply", "NotEqual", "Power"),
            *("Select", "SquaredDifference", "Subtract"),
        ),
        _broadcast,
    ),
    "ArgMax": _arg_max,
    "AvgPool": _pool,
    "Concat": _concat,
    "Convolution": _convolution,
    "ConvolutionBackpropData": _transposed_convolution,
    "Einsum": _einsum,
    "GatherElements": _like_input(1),
    "GatherND": _gather_nd,
    "GroupConvolution": _convolution,
    "GroupConvolutionBackpropData": _transposed_convolution,
    "MatMul": _matmul,
    "ShapeOf": _shape_of,
}


# -- rules: shapes of the outputs from contents of the inputs, too ---------------------------------


def _axes(shapes: Shapes, output: Output, rank: int) -> list[int]:
    """The axes in ``output``, a known tensor; negative ones are counted from ``rank``."""
    axes = [int(axis) for axis in shapes.numbers(output)]
    return [axis + rank if axis < 0 else axis for axis in axes]


def _reshape(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    dims, target = list(inputs[0]), shapes.numbers(node.input_value(1))
    if node.get_attributes()["special_zero"]:
        target = [dims[i] if is_same_shape([dim], [0]) else dim for i, dim in enumerate(target)]
    left = [i for i, dim in enumerate(target) if is_same_shape([dim], [-1])]
    if left:
        rest = math.prod(dim for i, dim in enumerate(target) if i not in left)
        if rest == 0:
            raise _NoRule
        target[left[0]] = math.prod(dims) // rest
    return [target]


def _squeeze(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    if len(inputs) < 2:
        raise _NoRule
    axes = _axes(shapes, node.input_value(1), len(inputs[0]))
    if any(inputs[0][axis] != 1 for axis in axes):
        raise _NoRule
    return [[dim for axis, dim in enumerate(inputs[0]) if axis not in axes]]


def _unsqueeze(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    dims = list(inputs[0])
    added = shapes.numbers(node.input_value(1))
    rank = len(dims) + len(added)
    for axis in sorted(_axes(shapes, node.input_value(1), rank)):
        dims.insert(axis, 1)
    return [dims]


def _transpose(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    order = _axes(shapes, node.input_value(1), len(inputs[0]))
    return [[inputs[0][axis] for axis in order or reversed(range(len(inputs[0])))]]


def _reduce(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    axes = _axes(shapes, node.input_value(1), len(inputs[0]))
    if node.get_attributes()["keep_dims"]:
        return [[1 if axis in axes else dim for axis, dim in enumerate(inputs[0])]]
    return [[dim for axis, dim in enumerate(inputs[0]) if axis not in axes]]


def _repeat(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    mode = node.get_attributes()["mode"]
    target = shapes.numbers(node.input_value(1))
    if mode == "bidirectional":
        return [broadcast_shapes(inputs[0], target)]
    if mode != "numpy":
        raise _NoRule
    return [target]


def _tile(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    repeats = shapes.numbers(node.input_value(1))
    rank = max(len(repeats), len(inputs[0]))
    dims = [1] * (rank - len(inputs[0])) + inputs[0]
    return [[a * b for a, b in zip(dims, [1] * (rank - len(repeats)) + repeats)]]


def _split(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    (axis,) = _axes(shapes, node.input_value(1), len(inputs[0]))
    count = node.get_attributes()["num_splits"]
    dims = list(inputs[0])
    dims[axis] = dims[axis] // count
    return [list(dims) for _ in range(count)]


def _variadic_split(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    (axis,) = _axes(shapes, node.input_value(1), len(inputs[0]))
    lengths = shapes.numbers(node.input_value(2))
    left = [i for i, length in enumerate(lengths) if is_same_shape([length], [-1])]
    for i in left:
        others = sum(length for k, length in enumerate(lengths) if k != i)
        lengths[i] = inputs[0][axis] - others
    return [[*inputs[0][:axis], length, *inputs[0][axis + 1 :]] for length in lengths]


def _gather(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    data, indices = inputs[:2]
    if node.get_attributes()["batch_dims"]:
        raise _NoRule
    (axis,) = _axes(shapes, node.input_value(2), len(data))
    return [[*data[:axis], *indices, *data[axis + 1 :]]]


def _slice(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    starts, ends, steps = (shapes.numbers(node.input_value(i)) for i in (1, 2, 3))
    rank = len(inputs[0])
    axes = _axes(shapes, node.input_value(4), rank) if len(inputs) > 4 else list(range(rank))
    dims = list(inputs[0])
    for axis, start, end, step in zip(axes, starts, ends, steps):
        dims[axis] = slice_extent(dims[axis], start, end, step)[1]
    return [dims]


def slice_extent(size: Number, start: Number, end: Number, step: int) -> tuple[Number, Number]:
    """Start of ``[start:end:step]`` along an axis of ``size``, and the number of elements."""
    least, most = (0, size) if step > 0 else (-1, size - 1)
    first, last = (
        _clamped(index, least, most)
        for index in (index + size if index < 0 else index for index in (start, end))
    )
    distance = last - first if step > 0 else first - last
    return first, (distance - 1) // abs(step) + 1 if distance > 0 else 0


def _clamped(index: Number, least: Number, most: Number) -> Number:
    try:
        return least if index < least else most if index > most else index
    except Undecided:
        # The bound itself may be what decides: below or equal in all iterations.
        return least if index <= least else most if index >= most else index


def _strided_slice(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    attributes = node.get_attributes()
    masks = ("new_axis_mask", "shrink_axis_mask", "ellipsis_mask")
    if any(any(attributes[mask]) for mask in masks):
        raise _NoRule
    starts, ends, steps = (shapes.numbers(node.input_value(i)) for i in (1, 2, 3))
    dims = list(inputs[0])
    free = [[*attributes[mask], *[0] * len(dims)] for mask in ("begin_mask", "end_mask")]
    for axis, (start, end, step) in enumerate(zip(starts, ends, steps)):
        if step != 1:
            raise _NoRule
        start, end = 0 if free[0][axis] else start, dims[axis] if free[1][axis] else end
        dims[axis] = slice_extent(dims[axis], start, end, 1)[1]
    return [dims]


def _pad(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    before, after = (shapes.numbers(node.input_value(i)) for i in (1, 2))
    return [[first + dim + last for first, dim, last in zip(before, inputs[0], after)]]


def _top_k(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    (count,) = shapes.numbers(node.input_value(1))
    dims = list(inputs[0])
    dims[node.get_attributes()["axis"]] = count
    return [list(dims), list(dims)]


def _one_hot(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    (depth,) = shapes.numbers(node.input_value(1))
    dims = list(inputs[0])
    axis = node.get_attributes()["axis"]
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, depth)
    return [dims]


def _range(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    start, stop, step = (shapes.numbers(node.input_value(i))[0] for i in range(3))
    if isinstance(step, SymbolicSize) or step < 1:
        raise _NoRule
    return [[(stop - start - 1) // step + 1 if stop > start else 0]]


def _interpolate(shapes: Shapes, node: Node, inputs: list[Dims]) -> list[Dims]:
    attributes = node.get_attributes()
    if any([*attributes["pads_begin"], *attributes["pads_end"]]) or len(inputs) < 3:
        raise _NoRule
    dims = list(inputs[0])
    axes = _axes(shapes, node.input_value(2), len(dims))
    if attributes["shape_calculation_mode"] == "sizes":
        sizes = shapes.numbers(node.input_value(1))
    else:
        scales = node.input_value(1).get_node()
        factors = scales.get_data().tolist() if scales.get_type_name() == "Constant" else [0.5]
        if any(factor != int(factor) for factor in factors):
            raise _NoRule
        sizes = [dims[axis] * int(factor) for axis, factor in zip(axes, factors)]
        if not all(size < _MAX_EXACT_FLOAT32_INTEGER for size in sizes):
            raise _NoRule
    for axis, size in zip(axes, sizes):
        dims[axis] = size
    return [dims]


_BY_VALUES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            *("ReduceL1", "ReduceL2", "ReduceLogicalAnd", "ReduceLogicalOr", "ReduceMax"),
            *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
        ),
        _reduce,
    ),
    "Broadcast": _repeat,
    "Gather": _gather,
    "Interpolate": _interpolate,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "Tile": _tile,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "VariadicSplit": _variadic_split,
}


# -- rules: contents of the outputs from contents of the inputs ------------------------------------

# The elements of each input, or output, of a node: NumPy arrays of Python objects.
Values = list[Any]


def _each(function: Callable[..., Any]) -> Callable[[Node, Values], Values]:
    ufunc = np.frompyfunc(function, 1 if function in (operator.neg, abs) else 2, 1)
    return lambda node, values: [_as_array(ufunc(*values))]


def _as_array(found: Any) -> np.ndarray:
    if isinstance(found, np.ndarray):
        return found
    array = np.empty((), object)
    array[()] = found
    return array


def _divided(node: Node, values: Values) -> Values:
    def quotient(x: Number, y: Number) -> Number:
        # For negative operands, a node may round a quotient otherwise than Python: no rule.
        if x < 0 or y <= 0:
            raise _NoRule
        return x // y

    return [_as_array(np.frompyfunc(quotient, 2, 1)(*values))]


def _remainder(x: Number, y: Number) -> Number:
    if x < 0 or y <= 0:
        raise _NoRule
    return x % y


def _converted(node: Node, values: Values) -> Values:
    type_name = node.get_attributes()["destination_type"]

    def convert(x: Number) -> Number:
        if type_name == "boolean":
            return x != 0
        if type_name not in ("i32", "i64") or not _INT32_MIN <= x <= _INT32_MAX:
            raise _NoRule
        return x if isinstance(x, SymbolicSize) else int(x)

    return [_as_array(np.frompyfunc(convert, 1, 1)(values[0]))]


def _reshaped(node: Node, values: Values) -> Values:
    return [values[0].reshape(tuple(node.get_output_shape(0)))]


def _gathered(node: Node, values: Values) -> Values:
    if node.get_attributes()["batch_dims"]:
        raise _NoRule
    indices = np.array(values[1].tolist(), np.int64)
    return [_as_array(np.take(values[0], indices, int(values[2].reshape(-1)[0])))]


def _joined(node: Node, values: Values) -> Values:
    return [np.concatenate(values, node.get_attributes()["axis"])]


def _sliced_values(node: Node, values: Values) -> Values:
    data, *bounds = values
    starts, ends, steps, *axes = (list(value.reshape(-1)) for value in bounds)
    found = [slice(None)] * data.ndim
    for i, axis in enumerate(axes[0] if axes else range(data.ndim)):
        start, end, step = int(starts[i]), int(ends[i]), int(steps[i])
        least = None if step < 0 and end < -data.shape[axis] else end
        found[axis] = slice(start, least, step)
    return [data[tuple(found)]]


_OF_VALUES: dict[str, Callable[[Node, Values], Values]] = {
    "Abs": _each(abs),
    "Add": _each(operator.add),
    "Concat": _joined,
    "Convert": _converted,
    "Divide": _divided,
    "Equal": _each(operator.eq),
    "FloorMod": _each(_remainder),
    "Gather": _gathered,
    "Greater": _each(operator.gt),
    "GreaterEqual": _each(operator.ge),
    "Less": _each(operator.lt),
    "LessEqual": _each(operator.le),
    "Maximum": _each(lambda x, y: x if x >= y else y),
    "Minimum": _each(lambda x, y: x if x <= y else y),
    "Mod": _each(_remainder),
    "Multiply": _each(operator.mul),
    "Negative": _each(operator.neg),
    "NotEqual": _each(operator.ne),
    "Reshape": _reshaped,
    "Slice": _sliced_values,
    "Squeeze": _reshaped,
    "Subtract": _each(operator.sub),
    "Unsqueeze": _reshaped,
}
