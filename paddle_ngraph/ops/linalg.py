"""Matrix multiplications: matmul, bmm, mv, dot, addmm and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from openvino import opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import FLOAT, INT32, Limit, Role, converter
from paddle_ngraph.conversion.size_rules import broadcast_shapes, is_same_shape
from paddle_ngraph.conversion.symbolic_sizes import is_always_at_least, may_vary_per_iteration
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.higher_gradients import (
    Bilinear,
    set_double_gradient,
    set_triple_gradient,
)
from paddle_ngraph.ops.nodes import reduce_to, reshaped


@converter("pd_op.matmul")
def matmul(bridge: NgraphBridge, op: Op) -> None:
    """``out = x y``, either one optionally transposed in its last two dimensions (``matmul``).

    Batch dimensions broadcast; a vector is a row on the left and a column on the right.
    """
    bridge.set_output_node(op, "out", _matmul_of(bridge, op, "x", "y").value())


@converter("pd_op.matmul_grad")
def matmul_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradient of :func:`matmul` (Paddle ``matmul_grad``).

    ``x_grad = out_grad y^T`` and ``y_grad = x^T out_grad``, transposed where x or y was, and summed
    over the batch dimensions that were broadcast.
    """
    _set_gradients(bridge, op, _matmul_of(bridge, op, "x", "y"), ("x", "y"))


@converter("pd_op.bmm")
def bmm(bridge: NgraphBridge, op: Op) -> None:
    """``out[b] = x[b] y[b]`` of three-dimensional tensors (Paddle ``bmm``)."""
    bridge.set_output_node(op, "out", _matmul_of(bridge, op, "x", "y").value())


@converter("pd_op.bmm_grad")
def bmm_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradient of :func:`bmm`: see :func:`matmul_grad` (Paddle ``bmm_grad``)."""
    _set_gradients(bridge, op, _matmul_of(bridge, op, "x", "y"), ("x", "y"))


@converter("pd_op.matmul_double_grad")
def matmul_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of ``x``, ``y`` and ``grad_out`` (Paddle ``matmul_double_grad``).

    Not transposed: ``x_grad = grad_out grad_y_grad^T``, ``y_grad = grad_x_grad^T grad_out`` and
    ``grad_out_grad = grad_x_grad y + x grad_y_grad``.
    """
    set_double_gradient(bridge, op, _bilinear(bridge, op))


@converter("pd_op.matmul_triple_grad")
def matmul_triple_grad(bridge: NgraphBridge, op: Op) -> None:
    """The gradients of :func:`matmul_double_grad` (Paddle ``matmul_triple_grad``)."""
    set_triple_gradient(bridge, op, _bilinear(bridge, op))


def _bilinear(bridge: NgraphBridge, op: Op) -> Bilinear:
    """A matmul with the attributes of ``op``, and its gradients."""

    def matmul(x: NodeInput, y: NodeInput) -> _Matmul:
        transposes = op.attr("transpose_x", False), op.attr("transpose_y", False)
        return _Matmul(bridge, x, y, *transposes)

    return Bilinear(
        value=lambda x, y: matmul(x, y).value(),
        x_gradient=lambda x, y, grad: matmul(x, y).x_gradient(grad),
        y_gradient=lambda x, y, grad: matmul(x, y).y_gradient(grad),
    )


@converter("pd_op.mv")
def mv(bridge: NgraphBridge, op: Op) -> None:
    """``out = x vec`` of a matrix and a vector (Paddle ``mv``)."""
    bridge.set_output_node(op, "out", _matmul_of(bridge, op, "x", "vec").value())


@converter("pd_op.mv_grad")
def mv_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradient of :func:`mv`: see :func:`matmul_grad` (Paddle ``mv_grad``)."""
    _set_gradients(bridge, op, _matmul_of(bridge, op, "x", "vec"), ("x", "vec"))


@converter("pd_op.matmul_with_flatten")
def matmul_with_flatten(bridge: NgraphBridge, op: Op) -> None:
    """The matmul of x and y as matrices (Paddle ``matmul_with_flatten``, the former ``mul``).

    The first ``x_num_col_dims`` dimensions of x are its rows and the first ``y_num_col_dims`` of y
    its rows; the rest are the columns.
    """
    matmul, shape = _flat_matmul(bridge, op)
    bridge.set_output_node(op, "out", reshaped(bridge, matmul.value(), shape))


@converter("pd_op.matmul_with_flatten_grad")
def matmul_with_flatten_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradient of :func:`matmul_with_flatten` (Paddle ``matmul_with_flatten_grad``)."""
    matmul, _ = _flat_matmul(bridge, op)
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    out_grad = bridge.get_input_node(op, "out_grad")
    for name, node, gradient in (("x", x, matmul.x_gradient), ("y", y, matmul.y_gradient)):
        if op.has_output(f"{name}_grad"):
            found = reshaped(bridge, gradient(out_grad), bridge.shape(node))
            bridge.set_output_node(op, f"{name}_grad", found)


def _flat_matmul(bridge: NgraphBridge, op: Op) -> tuple[_Matmul, list[int]]:
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    x_shape, y_shape = bridge.shape(x), bridge.shape(y)
    x_rows, y_rows = op.attr("x_num_col_dims"), op.attr("y_num_col_dims")
    x_matrix = [math.prod(x_shape[:x_rows]), math.prod(x_shape[x_rows:])]
    y_matrix = [math.prod(y_shape[:y_rows]), math.prod(y_shape[y_rows:])]
    x, y = reshaped(bridge, x, x_matrix), reshaped(bridge, y, y_matrix)
    return _Matmul(bridge, x, y, False, False), [*x_shape[:x_rows], *y_shape[y_rows:]]


@converter("pd_op.addmm", "pd_op.addmm_")
def addmm(bridge: NgraphBridge, op: Op) -> None:
    """``out = beta * input + alpha * x y`` of matrices; input broadcasts (Paddle ``addmm``)."""
    matmul = _matmul_of(bridge, op, "x", "y").value()
    term = _scaled(bridge, bridge.get_input_node(op, "input"), op.attr("beta"))
    bridge.set_output_node(op, "out", opset15.add(term, _scaled(bridge, matmul, op.attr("alpha"))))


@converter("pd_op.addmm_grad")
def addmm_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradient of :func:`addmm` (Paddle ``addmm_grad``).

    ``input_grad = beta * out_grad``, summed as input was broadcast; ``alpha *`` the gradients of
    :func:`matmul_grad`.
    """
    out_grad = bridge.get_input_node(op, "out_grad")
    matmul = _matmul_of(bridge, op, "x", "y")
    if op.has_output("input_grad"):
        shape = bridge.shape(bridge.get_input_node(op, "input"))
        gradient = reduce_to(bridge, _scaled(bridge, out_grad, op.attr("beta")), shape)
        bridge.set_output_node(op, "input_grad", gradient)
    _set_gradients(bridge, op, matmul, ("x", "y"), op.attr("alpha"))


@converter("pd_op.baddbmm", "pd_op.baddbmm_")
def baddbmm(bridge: NgraphBridge, op: Op) -> None:
    """``out = beta * input + alpha * x y`` of batches of matrices (Paddle ``baddbmm``)."""
    addmm(bridge, op)


@converter("pd_op.baddbmm_grad")
def baddbmm_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradient of :func:`baddbmm`: see :func:`addmm_grad` (Paddle ``baddbmm_grad``)."""
    addmm_grad(bridge, op)


@converter("pd_op.multi_dot")
def multi_dot(bridge: NgraphBridge, op: Op) -> None:
    """The matmul of all tensors of ``x``; the ends may be vectors (Paddle ``multi_dot``)."""
    nodes: list[Any] = bridge.get_input_nodes(op, "x")
    bridge.set_output_node(op, "out", _chain(bridge, nodes))


@converter("pd_op.multi_dot_grad")
def multi_dot_grad(bridge: NgraphBridge, op: Op) -> None:
    """Each gradient: ``out_grad`` times the other factors, transposed (``multi_dot_grad``)."""
    nodes: list[Any] = bridge.get_input_nodes(op, "x")
    shapes = [bridge.shape(node) for node in nodes]
    nodes[0] = reshaped(bridge, nodes[0], [1] * (2 - len(shapes[0])) + shapes[0])
    nodes[-1] = reshaped(bridge, nodes[-1], shapes[-1] + [1] * (2 - len(shapes[-1])))
    rows, columns = bridge.shape(nodes[0])[0], bridge.shape(nodes[-1])[1]
    gradient = reshaped(bridge, bridge.get_input_node(op, "out_grad"), [rows, columns])
    for position, shape in enumerate(shapes):
        found: Any = gradient
        if position:
            found = opset15.matmul(_chain(bridge, nodes[:position]), found, True, False)
        if position + 1 < len(nodes):
            found = opset15.matmul(found, _chain(bridge, nodes[position + 1 :]), False, True)
        bridge.set_output_node(op, "x_grad", reshaped(bridge, found, shape), position)


def _chain(bridge: NgraphBridge, nodes: Sequence[Any]) -> Any:
    """The matmul of a chain of matrices, in the order with the fewest multiplications."""
    if len(nodes) == 1:
        return nodes[0]
    shapes = [bridge.shape(node) for node in nodes]
    sizes = [1 if len(shapes[0]) == 1 else shapes[0][0]]
    sizes += [shape[0] for shape in shapes[1:]]
    sizes.append(1 if len(shapes[-1]) == 1 else shapes[-1][1])
    cut = _cheapest_cut(sizes)
    left, right = _chain(bridge, nodes[:cut]), _chain(bridge, nodes[cut:])
    return _Matmul(bridge, left, right, False, False).value()


def _cheapest_cut(sizes: Sequence[int]) -> int:
    """Where to split a chain of matrices of these sizes for the fewest multiplications."""
    # For each range of matrices, the fewest multiplications, and the index at which to split it.
    best = {(first, first + 1): (0, 0) for first in range(len(sizes) - 1)}
    for length in range(2, len(sizes)):
        for first in range(len(sizes) - length):
            last = first + length
            outer = sizes[first] * sizes[last]
            best[first, last] = min(
                (best[first, cut][0] + best[cut, last][0] + outer * sizes[cut], cut)
                for cut in range(first + 1, last)
            )
    return best[0, len(sizes) - 1][1]


@converter("pd_op.kron", dtypes=FLOAT | INT32)
def kron(bridge: NgraphBridge, op: Op) -> None:
    """Every element of ``x`` times all of ``y``, block by block (Paddle ``kron``)."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    x_cells, y_cells, shape = _kron_cells(bridge, x, y)
    bridge.set_output_node(op, "out", reshaped(bridge, opset15.multiply(x_cells, y_cells), shape))


@converter("pd_op.kron_grad")
def kron_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad``: sums of ``out_grad * y`` over blocks; ``y_grad`` likewise (``kron_grad``)."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    x_cells, y_cells, _ = _kron_cells(bridge, x, y)
    pairs = zip(bridge.shape(x_cells), bridge.shape(y_cells))
    cells = [max(pair) for pair in pairs]
    out_grad = reshaped(bridge, bridge.get_input_node(op, "out_grad"), cells)
    for name, own, own_cells, other in (("x", x, x_cells, y_cells), ("y", y, y_cells, x_cells)):
        if op.has_output(f"{name}_grad"):
            summed = reduce_to(bridge, opset15.multiply(out_grad, other), bridge.shape(own_cells))
            bridge.set_output_node(op, f"{name}_grad", reshaped(bridge, summed, bridge.shape(own)))


def _kron_cells(bridge: NgraphBridge, x: NodeInput, y: NodeInput) -> tuple[Any, Any, list[int]]:
    """Operands of a Kronecker product, and its shape.

    ``x`` with an axis 1 after each axis, ``y`` with one before each: their product by element then
    has the elements of the result.
    """
    x_shape, y_shape = bridge.shape(x), bridge.shape(y)
    rank = max(len(x_shape), len(y_shape))
    x_shape = [1] * (rank - len(x_shape)) + x_shape
    y_shape = [1] * (rank - len(y_shape)) + y_shape
    x_cells = reshaped(bridge, x, [size for dim in x_shape for size in (dim, 1)])
    y_cells = reshaped(bridge, y, [size for dim in y_shape for size in (1, dim)])
    return x_cells, y_cells, [a * b for a, b in zip(x_shape, y_shape)]


_UNIQUE_RESULT_INDICES = Limit(
    "the result names an index twice",
    lambda op: len(set(_result(op))) == len(_result(op)),
)


def _result(op: Op) -> str:
    return str(op.attr("equation")).partition("->")[2]


@converter(
    "pd_op.einsum",
    outputs={"inner_cache": Role.OMITTED, "xshape": Role.OMITTED},
    limits=[_UNIQUE_RESULT_INDICES],
)
def einsum(bridge: NgraphBridge, op: Op) -> None:
    """Sums of products over the index letters that the result lacks (Paddle ``einsum``)."""
    nodes = bridge.get_input_nodes(op, "x")
    bridge.set_output_node(op, "out", opset15.einsum(nodes, op.attr("equation")))


_UNIQUE_OPERAND_INDICES = Limit(
    "an operand names an index twice",
    lambda op: all(len(set(indices)) == len(indices) for indices in _operands(op)),
)
_NO_ELLIPSIS = Limit("the equation has an ellipsis", lambda op: "." not in op.attr("equation"))


def _operands(op: Op) -> list[str]:
    """The index letters of each operand in the attribute ``equation``."""
    return str(op.attr("equation")).partition("->")[0].split(",")


@converter(
    "pd_op.einsum_grad",
    inputs={"inner_cache": Role.UNUSED},
    limits=[_UNIQUE_RESULT_INDICES, _UNIQUE_OPERAND_INDICES, _NO_ELLIPSIS],
)
def einsum_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of :func:`einsum` (Paddle ``einsum_grad``).

    ``x_grad[i]`` is the product of ``out_grad`` and the other operands, summed over indices that
    operand ``i`` lacks and broadcast over indices that only operand ``i`` has.

    Input ``x_shape`` contains the operands (``partitioning/einsum_operands.py``).
    """
    nodes, operands = bridge.get_input_nodes(op, "x_shape"), _operands(op)
    out_grad = bridge.get_input_node(op, "out_grad")
    for i, (node, indices) in enumerate(zip(nodes, operands)):
        sources = [_result(op), *operands[:i], *operands[i + 1 :]]
        common = "".join(index for index in indices if any(index in names for names in sources))
        factors = [out_grad, *nodes[:i], *nodes[i + 1 :]]
        matmul = opset15.einsum(factors, f"{','.join(sources)}->{common}")
        alone = [axis for axis, index in enumerate(indices) if index not in common]
        if alone:
            matmul = opset15.unsqueeze(matmul, bridge.ints(alone))
            matmul = opset15.broadcast(matmul, bridge.ints(bridge.shape(node)))
        bridge.set_output_node(op, "x_grad", matmul, i)


_DEFAULT_AXIS = 9


@converter("pd_op.cross")
def cross(bridge: NgraphBridge, op: Op) -> None:
    """The cross product along ``axis``, or along the first axis of 3 (Paddle ``cross``)."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    bridge.set_output_node(op, "out", _cross(bridge, op, x, y))


@converter("pd_op.cross_grad")
def cross_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = y x out_grad``, ``y_grad = out_grad x x`` (Paddle ``cross_grad``)."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", _cross(bridge, op, y, out_grad))
    bridge.set_output_node(op, "y_grad", _cross(bridge, op, out_grad, x))


def _cross(bridge: NgraphBridge, op: Op, x: NodeInput, y: NodeInput) -> Any:
    dims, axis = bridge.shape(x), op.attr("axis")
    axis = dims.index(3) if axis == _DEFAULT_AXIS else axis % len(dims)

    def permuted(node: NodeInput, order: list[int]) -> Any:
        return opset15.gather(node, bridge.ints(order), bridge.full(axis, "int64"))

    after = opset15.multiply(permuted(x, [1, 2, 0]), permuted(y, [2, 0, 1]))
    before = opset15.multiply(permuted(x, [2, 0, 1]), permuted(y, [1, 2, 0]))
    return opset15.subtract(after, before)


@converter("pd_op.dot")
def dot(bridge: NgraphBridge, op: Op) -> None:
    """``out = sum(x * y)`` over the last dimension (Paddle ``dot``)."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    matmul = opset15.multiply(x, y)
    bridge.set_output_node(op, "out", opset15.reduce_sum(matmul, bridge.ints([-1])))


@converter("pd_op.dot_grad")
def dot_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad * y``, ``y_grad = out_grad * x``, per row (Paddle ``dot_grad``)."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    out_grad = opset15.unsqueeze(bridge.get_input_node(op, "out_grad"), bridge.ints([-1]))
    for name, other in (("x_grad", y), ("y_grad", x)):
        if op.has_output(name):
            bridge.set_output_node(op, name, opset15.multiply(out_grad, other))


class _Matmul:
    """The conversion of a matmul and its gradients; the operands have any rank from 1 on."""

    def __init__(
        self, bridge: NgraphBridge, x: NodeInput, y: NodeInput, transpose_x: bool, transpose_y: bool
    ) -> None:
        self._bridge = bridge
        self._x_shape, self._y_shape = bridge.shape(x), bridge.shape(y)
        self._transpose_x = bool(transpose_x) and len(self._x_shape) > 1
        self._transpose_y = bool(transpose_y) and len(self._y_shape) > 1
        x_matrix = self._x_shape if len(self._x_shape) > 1 else [1, *self._x_shape]
        y_matrix = self._y_shape if len(self._y_shape) > 1 else [*self._y_shape, 1]
        self._rows = x_matrix[-1] if self._transpose_x else x_matrix[-2]
        self._columns = y_matrix[-2] if self._transpose_y else y_matrix[-1]
        self._batch = broadcast_shapes(x_matrix[:-2], y_matrix[:-2])
        matrices = math.prod(y_matrix[:-2])
        is_one = is_always_at_least(matrices, 1) and is_always_at_least(1 - matrices, 0)
        # In a loop where sizes grow, the plugin prepares each Reshape again in each iteration, and
        # a Reshape behind a matmul keeps it from adding the bias.
        grows = any(map(may_vary_per_iteration, x_matrix[:-1])) and bridge.on_cpu
        self._is_flat = is_one and not self._transpose_x and not grows
        if is_one and grows:
            y_matrix = y_matrix[-2:]
        elif self._is_flat:
            # All batches share y: they become the rows of one large matmul.
            x_matrix = [math.prod(x_matrix[:-1]), x_matrix[-1]]
            y_matrix = y_matrix[-2:]
        self._x, self._y = reshaped(bridge, x, x_matrix), reshaped(bridge, y, y_matrix)

    def value(self) -> Any:
        """The matmul of both operands, in the shape that Paddle declares."""
        matmul = opset15.matmul(self._x, self._y, self._transpose_x, self._transpose_y)
        shape = [*self._batch]
        if len(self._x_shape) > 1:
            shape.append(self._rows)
        if len(self._y_shape) > 1:
            shape.append(self._columns)
        return reshaped(self._bridge, matmul, shape)

    def x_gradient(self, out_grad: NodeInput) -> Any:
        """The gradient of x from ``out_grad``, the gradient of the matmul."""
        gradient = self._gradient_matrices(out_grad)
        if self._transpose_x:
            found = opset15.matmul(self._y, gradient, self._transpose_y, True)
        else:
            found = opset15.matmul(gradient, self._y, False, not self._transpose_y)
        return self._summed(found, self._x, self._x_shape)

    def y_gradient(self, out_grad: NodeInput) -> Any:
        """The gradient of y from ``out_grad``, the gradient of the matmul."""
        gradient = self._gradient_matrices(out_grad)
        if self._transpose_y or is_same_shape([self._columns], [1]):
            # Of a single column it is the transposed result: the plugin would transpose all of x.
            found = opset15.matmul(gradient, self._x, True, self._transpose_x)
            if not self._transpose_y:
                found = reshaped(self._bridge, found, [*self._bridge.shape(found)[:-2], -1, 1])
        else:
            found = opset15.matmul(self._x, gradient, not self._transpose_x, False)
        return self._summed(found, self._y, self._y_shape)

    def _gradient_matrices(self, out_grad: NodeInput) -> Any:
        rows = (
            [math.prod(self._batch) * self._rows] if self._is_flat else [*self._batch, self._rows]
        )
        return reshaped(self._bridge, out_grad, [*rows, self._columns])

    def _summed(self, gradient: NodeInput, operand: Any, shape: list[int]) -> Any:
        summed = reduce_to(self._bridge, gradient, self._bridge.shape(operand))
        return reshaped(self._bridge, summed, shape)


def _matmul_of(bridge: NgraphBridge, op: Op, left: str, right: str) -> _Matmul:
    x, y = bridge.get_input_node(op, left), bridge.get_input_node(op, right)
    return _Matmul(bridge, x, y, op.attr("transpose_x", False), op.attr("transpose_y", False))


def _set_gradients(
    bridge: NgraphBridge, op: Op, matmul: _Matmul, names: tuple[str, str], scale: float = 1.0
) -> None:
    out_grad = bridge.get_input_node(op, "out_grad")
    for name, gradient in zip(names, (matmul.x_gradient, matmul.y_gradient)):
        if op.has_output(f"{name}_grad"):
            found = _scaled(bridge, gradient(out_grad), scale)
            bridge.set_output_node(op, f"{name}_grad", found)


def _scaled(bridge: NgraphBridge, node: NodeInput, factor: float) -> Any:
    return node if factor == 1.0 else opset15.multiply(node, bridge.full(factor, "float32"))
