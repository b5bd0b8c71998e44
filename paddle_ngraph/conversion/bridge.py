"""The nGraph bridge: from Paddle operators to nGraph nodes.

One bridge serves one build of one function. The bridge owns the map from the subgraph's variables
to nodes, which converters use through :meth:`NgraphBridge.get_input_node` and
:meth:`NgraphBridge.set_output_node`. A function is built for one input signature. If some of its
dimensions are dynamic, shapes and known contents contain symbolic sizes (symbolic_sizes.py), so
converters get shapes from the bridge only.

Collaborators of a block are attributes of its bridge, each of a class in a file of its own:

- ``sizes`` (sizes.py): shapes of nodes, and sizes as nodes;
- ``folding`` (constant_folding.py): contents of nodes that are known during the build;
- ``arrays`` (tensor_arrays.py): the TensorArrays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import Node, Output, Type, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion import dynamic_shapes
from paddle_ngraph.conversion.analysis.offsets import Offsets
from paddle_ngraph.conversion.bfloat16 import Bfloat16Values
from paddle_ngraph.conversion.constant_folding import VALUE_PRESERVING, ConstantFolding
from paddle_ngraph.conversion.dynamic_shapes import SymbolicDims
from paddle_ngraph.conversion.errors import ConversionError, RunError
from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.conversion.node_tools import as_output, constant_of
from paddle_ngraph.conversion.regions import Region
from paddle_ngraph.conversion.registry import RANGES, Role, find_converter
from paddle_ngraph.conversion.size_rules import is_same_shape
from paddle_ngraph.conversion.sizes import Sizes
from paddle_ngraph.conversion.symbolic_sizes import (
    Guards,
    Number,
    Size,
    Undecided,
    hint_of,
    symbolic_size,
)
from paddle_ngraph.conversion.tensor_arrays import TensorArray, TensorArrays
from paddle_ngraph.errors import SENTENCES, ErrorCode, NgraphError, outcome, summarized
from paddle_ngraph.ir.graph import BFLOAT16, CPU, Graph, Op, TensorSpec
from paddle_ngraph.utils.dtypes import DTYPES

# Paddle's dtype name by nGraph's element type name.
_PADDLE_DTYPES = {dtype.element: name for name, dtype in DTYPES.items()}


def element_type(dtype: str) -> Type:
    """The nGraph element type of a Paddle dtype name. Raises NgraphError if there is none."""
    if dtype not in DTYPES:
        raise NgraphError(f"the dtype {dtype} has no nGraph element type")
    return getattr(Type, DTYPES[dtype].element)


class Draw(NamedTuple):
    """Random numbers that a run samples from a stream; random_numbers.h documents the fields."""

    distribution: int
    a: float
    b: float
    seed: int
    shape: list[int]


_LOOP = "pd_op.while"
# Elementwise operators, and those of their operands whose deferred checks propagate: an element of
# the result overflows int32, or replaces an overflow, only where one of these operands does.
_FORWARDS_DEFERRED_CHECK = {
    **dict.fromkeys(("pd_op.scale", "pd_op.scale_", "pd_op.assign"), ("x",)),
    **dict.fromkeys(
        (
            *("pd_op.add", "pd_op.add_", "pd_op.subtract", "pd_op.subtract_"),
            *("pd_op.multiply", "pd_op.multiply_", "pd_op.maximum", "pd_op.minimum"),
        ),
        ("x", "y"),
    ),
    "pd_op.where": ("x", "y"),
}


# In the order of core/common/random_numbers.h: the element type, by name.
_DISTRIBUTIONS = {"keep": Type.u8, "uniform": Type.f32, "normal": Type.f32}


class RangeCheck(NamedTuple):
    """Bounds of an integer input, which a run checks before a device reads the input.

    Attributes:
        input: The index of the subgraph input.
        low: The minimum; a list of one, or one for each index of the last axis.
        high: One more than the maximum, likewise.
        ignored: Values that are allowed as well.
        error: The error of a run with an index out of range.
    """

    input: int
    low: list[int]
    high: list[int]
    ignored: list[int]
    error: RunError


class DeferredCheck(NamedTuple):
    """A mask of elements that differ from Paddle's results, harmless until a reader uses one.

    Attributes:
        mask: True for these elements; of a shape that broadcasts to that of the tensor.
        error: The error of a run with such elements.
    """

    mask: Output
    error: RunError


class NgraphBridge:
    """Builds the ``ov::Model`` of one subgraph for one signature.

    Args:
        graph: The subgraph.
        signature: dtype name and shape of each input, then of each state.
        values: The contents of the inputs that are read by value, by input index.
        symbolic_dims: The symbolic dimensions, and symbolic contents of inputs read by value.
        sizes: The sizes of a block inside a loop or branch; those of a graph are new.

    Attributes:
        sizes: The shapes of nodes, and sizes as nodes.
        folding: Contents of nodes that are known during the build.
        arrays: The TensorArrays of the graph.
    """

    def __init__(
        self,
        graph: Graph,
        signature: Sequence[tuple[str, Sequence[int]]],
        values: Mapping[int, np.ndarray] | None = None,
        symbolic_dims: SymbolicDims | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        if sizes is None:
            graph.set_op_ids()
        self._graph = graph
        self._nodes: dict[int, Output] = {}
        self._checked: set[tuple[Any, ...]] = set()
        self._input_of_parameter: dict[str, int] = {}
        self._parameters: list[Node] = []
        self._value_constants: dict[int, Node] = {}  # for parameters with symbolic contents
        self._pending = deque(graph.ops)
        self.draws: list[Draw] = []
        self.checks: list[RangeCheck] = []
        self._deferred_checks: dict[int, DeferredCheck] = {}
        self._op_types = frozenset(op.type for op in graph.ops).union(graph.gradients)
        self._symbolic_dims = symbolic_dims
        self.sizes = _sizes_of(graph, symbolic_dims) if sizes is None else sizes
        self.folding = ConstantFolding(self.sizes)
        self.arrays = TensorArrays(self.sizes)
        self._bfloat16 = Bfloat16Values(extension)
        # Tensors of bfloat16, which converters see as float32.
        specs = (spec for op in graph.ops for spec in op.output_specs())
        self._rounded_ids = {spec.id for spec in specs if spec.dtype == BFLOAT16}
        self._inlined = 0  # tensors of inlined blocks
        self._regions: list[tuple[Region, Sequence[Sequence[Number]]]] = []
        self._inner: list[NgraphBridge] = []
        self.model: ov.Model  # of a loop body or branch
        # Results of regions with dynamic shapes. Until the model is complete, their readers get
        # parameters of the current shapes instead.
        self._placeholders: list[tuple[Node, Region, int]] = []
        self._has_empty_tensor: bool | None = None
        # Converts an operator's output from a layout of its own before other operators read it.
        self.materialize: Callable[[Output], Output] = lambda output: output
        # State that converters share within a build, by a key that no other converter family uses.
        self.shared: dict[Any, Any] = {}
        # Paddle accepts feeds of other than the declared shape as long as its kernels do.
        self._as_declared = True
        self._add_inputs(signature, values or {})

    # -- API for converters -------------------------------------------------------------------

    def get_input_node(self, op: Op, name: str, position: int = 0) -> Output:
        """The node of the input ``name`` of ``op``.

        Raises:
            NgraphError: The input is absent.
        """
        specs = op.inputs.get(name, ())
        if position >= len(specs):
            raise NgraphError(f"input '{name}' has no tensor {position}")
        return self._nodes[specs[position].id]

    def get_input_nodes(self, op: Op, name: str) -> list[Output]:
        """The nodes of the input ``name``, which holds a list of tensors."""
        return [self._nodes[spec.id] for spec in op.inputs.get(name, ())]

    def is_used_later(self, tensor: TensorSpec) -> bool:
        """Whether later operators of the block read a tensor."""
        return any(tensor.id == spec.id for op in self._pending for spec in op.input_specs())

    def holds(self, op: Op, name: str, number: Number) -> bool:
        """Whether input ``name`` is one element, ``number`` in every run and iteration."""
        found = self.folding.contents(self.get_input_node(op, name))
        return (
            found is not None
            and found.size == 1
            and is_same_shape(found.reshape(-1).tolist(), [number])
        )

    def set_output_node(self, op: Op, name: str, node: Any, position: int = 0) -> None:
        """Makes ``node`` the output ``name`` of ``op``. An unused output is dropped.

        Raises:
            NgraphError: The node's dtype or shape is not what Paddle declares for the output.
        """
        specs = op.outputs.get(name, ())
        if not specs and name in op.outputs:
            return
        if position >= len(specs):
            raise NgraphError(f"there is no output '{name}' number {position}")
        spec = specs[position]
        if spec is None:
            return
        output = as_output(node)
        self._check_output(name, spec, output)
        if spec.id in self._rounded_ids:
            output = self._bfloat16.rounded(output)
        self._nodes[spec.id] = self.materialize(self.folding.folded(output))

    def rounded(self, op: Op, name: str, node: Any) -> Any:
        """``node``, rounded to bfloat16 if the output ``name`` of ``op`` is.

        For values that Paddle's kernels round on the way: attributes, and intermediate results.
        """
        if self._rounded_ids.isdisjoint(spec.id for spec in op.outputs.get(name, ()) if spec):
            return node
        return self.folding.folded(self._bfloat16.rounded(as_output(node)))

    @property
    def infers(self) -> bool:
        """See :attr:`Graph.infers`."""
        return self._graph.infers

    @property
    def device(self) -> str:
        """See :attr:`Graph.compiled_for`."""
        return self._graph.compiled_for

    @property
    def on_cpu(self) -> bool:
        """Whether the function may contain operators of the core, which other devices lack."""
        return self.device == CPU

    @property
    def has_bfloat16(self) -> bool:
        """Whether tensors of the graph are bfloat16."""
        return self._graph.has_bfloat16()

    def trains(self, *gradients: str) -> bool:
        """Whether one of these gradients (any if none is named) is in the graph, or reads it."""
        if gradients:
            return not self._op_types.isdisjoint(gradients)
        return any(type.endswith("_grad") for type in self._op_types)

    def constant(self, op: Op, name: str) -> np.ndarray:
        """The contents of input ``name``, known during the build.

        Returns an array of the input's shape; the inputs of a list are joined along axis 0.

        Raises:
            NgraphError: The contents are known in a run only.
        """
        arrays = []
        for node in self.get_input_nodes(op, name):
            array = self.folding.contents(node)
            if array is None:
                raise NgraphError(f"input '{name}' is known only at run time")
            arrays.append(array)
        if not arrays:
            raise NgraphError(f"input '{name}' is absent")
        if len(arrays) == 1:
            return arrays[0]
        return np.concatenate([np.atleast_1d(array) for array in arrays])

    def is_known(self, op: Op, name: str) -> bool:
        """Whether :meth:`constant` knows the contents of input ``name``."""
        return all(
            self.folding.contents(node) is not None for node in self.get_input_nodes(op, name)
        )

    @cached_property
    def offsets(self) -> Offsets:
        """Offsets between integers of the graph."""
        return Offsets(self._graph.ops)

    def shape(self, node: Any) -> list[Number]:
        """The shape of a node; symbolic dimensions are Sizes."""
        return self.sizes.of(node)

    def full(self, value: Any, dtype: str | Type, shape: Sequence[Number] = ()) -> Node:
        """A constant with all elements ``value``; a scalar unless ``shape`` is given."""
        element = element_type(dtype) if isinstance(dtype, str) else dtype
        if isinstance(value, Size):
            converted = opset15.convert(self.ints([value]), element)
            scalar = opset15.squeeze(converted, self.ints([0]))
        else:
            scalar = opset15.constant(value, element)
        if not shape:
            return scalar
        return opset15.broadcast(scalar, self.ints(shape))

    def ints(self, values: Sequence[Number]) -> Any:
        """A 1-D int64 tensor (axes, shapes, pads), constant unless ``values`` contain Sizes."""
        return self.sizes.node(values)

    def draw(
        self, distribution: str, a: float, b: float, seed: int, shape: Sequence[int]
    ) -> Output:
        """Random numbers, sampled in each run in the order of the operators.

        Args:
            distribution: ``"keep"``: 0 with probability ``a``, else 1, as u8. ``"uniform"`` from
                ``a`` to ``b``, or ``"normal"`` with mean ``a`` and standard deviation ``b``, as
                f32.
            a, b: The parameters.
            seed: The seed of a separate stream; 0 for the stream that ``paddle.seed`` sets.
            shape: The shape of the result.
        """
        distribution_id = list(_DISTRIBUTIONS).index(distribution)
        position = len(self._graph.inputs) + len(self._graph.states) + len(self.draws)
        sizes = [int(size) for size in shape]
        self.draws.append(Draw(distribution_id, float(a), float(b), int(seed), sizes))
        return self._parameter(position, _DISTRIBUTIONS[distribution], sizes)

    def extension(self, name: str, inputs: Sequence[Any], **attributes: Any) -> Node:
        """See :func:`extension`; symbolic sizes in attributes are fixed.

        Raises:
            NgraphError: As there, and if the function is not for the CPU.
        """
        if not self.on_cpu:
            raise NgraphError(f"{self.device} has no {name}, an operator of the engine for CPUs")
        return extension(name, inputs, **{key: _fixed(each) for key, each in attributes.items()})

    def in_range(self, values: Any, least: int, end: int, error: RunError) -> Node:
        """``values``, checked in each run to be at least ``least`` and less than ``end``."""
        limits = {"low": [least], "high": [end], "has_ignored": False, "ignored": 0}
        return self.extension("CheckRange", [values], **limits, **error.attributes())

    def require_32_bits(self, value: Output) -> bool:
        """Checks that int64 contents that are known during the build are representable in int32.

        Returns:
            Whether the contents are known.

        Raises:
            NgraphError: An element overflows int32.
        """
        known = self.folding.known_contents(value)
        if known is None:
            return False
        least, most = RANGES["int32"]
        for number in known.reshape(-1).tolist():
            if not least <= number <= most:
                raise NgraphError(SENTENCES["int32_overflow"], code=ErrorCode.INT32_OVERFLOW)
        return True

    def defer_check(self, op: Op, name: str, mask: Any, error: RunError) -> None:
        """Has the engine reject a run in which a reader uses wrong elements of an output.

        A ``where`` may discard wrong elements, such as the logarithm of 0.

        Args:
            op: The operator.
            name: The output, which is set already.
            mask: A mask of the wrong elements.
            error: The error of such a run.
        """
        self._deferred_checks[op.output(name).id] = DeferredCheck(as_output(mask), error)

    def _forwarded_check(self, op: Op) -> DeferredCheck | None:
        """The deferred check of an operator's only output; checks of other inputs are applied."""
        entry = find_converter(op.type)
        checks: dict[str, DeferredCheck] = {}
        for name, specs in op.inputs.items():
            for spec in specs if entry is None or entry.role(name).has_contents_read else ():
                if spec.id not in self._deferred_checks:
                    continue
                if name in _FORWARDS_DEFERRED_CHECK.get(op.type, ()):
                    checks[name] = self._deferred_checks[spec.id]
                else:
                    self._apply_deferred_check(spec)
        if not checks:
            return None
        error = next(iter(checks.values())).error
        if op.type == "pd_op.where":
            never = self.full(False, Type.boolean)
            x, y = (checks[name].mask if name in checks else never for name in ("x", "y"))
            condition = self.get_input_node(op, "condition")
            return DeferredCheck(opset15.select(condition, x, y).output(0), error)
        mask, *others = (check.mask for check in checks.values())
        for other in others:
            mask = opset15.logical_or(mask, other).output(0)
        return DeferredCheck(mask, error)

    def _apply_deferred_check(self, spec: TensorSpec) -> Output:
        """The node of a tensor after its deferred check, if any, was applied."""
        check = self._deferred_checks.pop(spec.id, None)
        if check is not None:
            node, dtype = self._nodes[spec.id], self._nodes[spec.id].get_element_type()
            checked = self.in_range(opset15.convert(check.mask, Type.i32), 0, 1, check.error)
            added = opset15.add(
                node, checked if dtype == Type.i32 else opset15.convert(checked, dtype)
            )
            self._nodes[spec.id] = self.folding.folded(added.output(0))
        return self._nodes[spec.id]

    def require_range(
        self,
        op: Op,
        name: str,
        low: int | Sequence[int],
        high: int | Sequence[int],
        ignored: int | None = None,
        position: int = 0,
    ) -> None:
        """Has the engine reject a run whose input ``name`` has an element out of range.

        To be called before the converter gets the input's node, which becomes the checked node.

        Args:
            op: The operator.
            name: One of its inputs, of int32 or int64.
            low: The minimum; a list gives one for each index of the last axis.
            high: One more than the maximum, likewise.
            ignored: A value that is allowed as well.
            position: Index of the tensor, if the input is a list.
        """
        spec = op.inputs[name][position]
        bounds = (tuple(np.atleast_1d(low)), tuple(np.atleast_1d(high)), ignored)
        if (spec.id, *bounds) in self._checked:
            return
        self._checked.add((spec.id, *bounds))
        ids = self._nodes[spec.id]
        entry = find_converter(op.type)
        unchecked = () if entry is None else entry.unchecked
        lowest, highest = ([int(v) for v in bound] for bound in bounds[:2])
        is_unchecked = name in unchecked
        reason = SENTENCES["out_of_bounds" if is_unchecked else "out_of_range"].format(name=name)
        code = ErrorCode.OUT_OF_BOUNDS if is_unchecked else ErrorCode.GENERAL
        error = RunError.of(op, reason, code)
        if not self.on_cpu:
            allowed = [] if ignored is None else [int(ignored)]
            return self._check_beforehand(ids, lowest, highest, allowed, error)
        checked = self.extension(
            "CheckRange",
            [ids],
            low=lowest,
            high=highest,
            has_ignored=ignored is not None,
            ignored=0 if ignored is None else int(ignored),
            **error.attributes(),
        ).output(0)
        if ids.get_element_type() != checked.get_element_type():
            checked = opset15.convert(checked, ids.get_element_type()).output(0)
        self._nodes[spec.id] = self.folding.folded(checked)

    def _check_beforehand(
        self, ids: Output, low: list[int], high: list[int], ignored: list[int], error: RunError
    ) -> None:
        """Checks indices now if they are known, else before the device reads them in a run."""
        known = self.folding.contents(ids)
        if known is not None:
            inside = (known >= np.array(low)) & (known < np.array(high)) | np.isin(known, ignored)
            if not inside.all():
                raise NgraphError(error.message, code=error.code, op_id=error.op_id)
            return
        source = ids
        while len(low) == 1 and source.get_node().get_type_name() in VALUE_PRESERVING:
            source = source.get_node().input_value(0)
            if source.get_element_type() not in (Type.i32, Type.i64):
                break
        position = self._input_of(source)
        if position is None:
            raise NgraphError(f"positions that are computed are not checked on {self.device}")
        self.checks.append(RangeCheck(position, low, high, ignored, error))

    def _input_of(self, positions: Output) -> int | None:
        """Index of the subgraph input that a node is, if it is an input of int32 or int64."""
        is_integer = positions.get_element_type() in (Type.i32, Type.i64)
        name = positions.get_node().get_friendly_name()
        return self._input_of_parameter.get(name) if is_integer else None

    def _any_runtime_input(self) -> Output:
        """An output that is not a constant in the complete model.

        Raises:
            NgraphError: The only inputs are weights.
        """
        weights = set(self._graph.weights)
        for node in self._parameters:
            if self._input_of_parameter[node.get_friendly_name()] not in weights:
                return node.output(0)
        raise NgraphError("a loop that grows is given nothing but weights")

    def inline(self, block: Graph, sources: Sequence[Output | TensorArray]) -> list[Output]:
        """Converts a block as if its operators were part of this graph.

        Args:
            block: The block of a loop or branch, without TensorArrays.
            sources: The values of its inputs.

        Returns:
            The outputs of the block.

        Raises:
            ConversionError: As in :meth:`convert`; ``op`` is one of the block.
        """
        ids = {spec.id: self._next_tensor_id() for spec in block.all_specs()}
        for spec, source in zip(block.inputs, sources):
            if not isinstance(source, TensorArray):
                self._nodes[ids[spec.id]] = source
        for op in block.ops:
            renumbered = op.with_tensor_ids(ids)
            self._rounded_ids |= {s.id for s in renumbered.output_specs() if s.dtype == BFLOAT16}
            try:
                self._convert(renumbered)
            except ConversionError as error:
                raise ConversionError(op, error.reason, error.device, error.code) from error
        return [self._apply_deferred_check(replace(s, id=ids[s.id])) for s in block.outputs]

    def _next_tensor_id(self) -> int:
        """An id that no tensor of the graph has."""
        self._inlined += 1
        return -1 - self._inlined

    def add_inner(self, inner: NgraphBridge) -> None:
        """Adds the bridge of a loop body or branch to this model."""
        self._inner.append(inner)

    def add_region(self, region: Region, shapes: Sequence[Sequence[Number]]) -> list[Output]:
        """Adds a loop or branch, whose results have these shapes, and returns its outputs."""
        self._regions.append((region, shapes))
        region.build_node()
        self._declare_results(region, shapes)
        return [
            output
            if output.get_partial_shape().is_static
            else self._placeholder_for(region, n, shape)
            for n, (output, shape) in enumerate(zip(region.node.outputs(), shapes))
        ]

    def _declare_results(self, region: Region, shapes: Sequence[Sequence[Number]]) -> None:
        for output, shape in zip(region.node.outputs(), shapes):
            self.sizes.set(output, shape)

    def _placeholder_for(self, region: Region, index: int, shape: Sequence[Number]) -> Output:
        """A parameter that replaces a result of a region until the model is complete."""
        dtype = region.node.output(index).get_element_type()
        node = opset15.parameter(list(map(hint_of, shape)), dtype)
        self._placeholders.append((node, region, index))
        if self.sizes.shapes is not None:
            self.sizes.shapes.declare(node.output(0), [symbolic_size(size) for size in shape])
        return node.output(0)

    def _replace_placeholders(self) -> None:
        """Connects readers of placeholders to the results of regions, of any shape."""
        for node, region, index in self._placeholders:
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(region.node.output(index))

    @property
    def has_placeholders(self) -> bool:
        """Whether the model reads a tensor of dynamic shape from a region."""
        return bool(self._placeholders)

    # -- the build ----------------------------------------------------------------------------

    def convert(self) -> None:
        """Converts every operator.

        Raises:
            ConversionError: Names the operator that could not be converted, and why.
        """
        while self._pending:
            self._convert(self._pending.popleft())

    def build(
        self, weights: Mapping[int, Any] | None = None, in_place: bool = False
    ) -> tuple[ov.Model, list[int]]:
        """Converts the remaining operators and creates the model, before any pass (build.py).

        Args:
            weights: The contents of inputs that become constants, by input index: buffers in C
                order.
            in_place: Whether the constants are these buffers, which the caller retains as long as
                the model exists.

        Returns:
            The model at its signature, and for each of its parameters the index of the input that
            feeds it; indices after the inputs continue through :attr:`draws`.

        Raises:
            ConversionError: As in :meth:`convert`.
        """
        self.convert()
        weights = weights or {}
        known_buffers: set[int] = set()
        for node in self._parameters:
            position = self._input_of_parameter[node.get_friendly_name()]
            if position in weights:
                replace_node(
                    node,
                    _constant_for(node, weights[position], known_buffers if in_place else None),
                )
        results = []
        for spec in [*self._graph.outputs, *self._graph.state_outputs]:
            results.append(opset15.result(self._result(spec)))
        for bridge in (self, *self._all_inner()):
            bridge._update_trip_count_check()
        for bridge in (self, *self._all_inner()):
            bridge._inline_constants()
        used = [node for node in self._parameters if is_used(node)]
        placeholders = [node for node, _, _ in self._placeholders]
        model = ov.Model(results, [*used, *placeholders], "ngraph_interval")
        positions = [self._input_of_parameter[node.get_friendly_name()] for node in used]
        read = (
            {node.get_name() for node in model.get_ordered_ops()}
            if self._value_constants
            else set()
        )
        self._value_constants = {
            p: c for p, c in self._value_constants.items() if c.get_name() in read
        }
        return model, [*positions, *self._value_constants]

    def make_dynamic(self, model: ov.Model) -> None:
        """Makes symbolic dimensions of the finished model dynamic, symbolic contents parameters."""
        if self._symbolic_dims is not None:
            self._make_dynamic(model, self._symbolic_dims)
        self._replace_placeholders()
        for node, _, _ in self._placeholders:
            model.remove_parameter(node)
        if self._symbolic_dims is not None or self._placeholders:
            model.validate_nodes_and_infer_types()

    def _make_dynamic(self, model: ov.Model, symbolic_dims: SymbolicDims) -> None:
        self._record_shapes(model)
        for inner in self._all_inner():
            inner._record_shapes(inner.model)
        if any(bridge._has_empty_tensor for bridge in (self, *self._all_inner())):
            raise dynamic_shapes.EmptyTensorFound
        fixed = symbolic_dims.guards.fixed()
        for node in model.get_parameters():
            position = self._input_of_parameter.get(node.get_friendly_name())
            symbols = None if position is None else symbolic_dims.symbols.get(position)
            if symbols:
                dims = [
                    size if symbol is None or symbol in fixed else -1
                    for symbol, size in zip(symbols, node.get_output_shape(0))
                ]
                node.set_partial_shape(ov.PartialShape(dims))
        for position, constant in self._value_constants.items():
            dtype, shape = constant.get_output_element_type(0), list(constant.get_output_shape(0))
            parameter = opset15.parameter(shape, dtype, name=f"input_{position}")
            replace_node(constant, parameter)
            model.add_parameters([parameter])

    def _update_trip_count_check(self) -> None:
        """Applies the limits of the complete model to the check of the iteration index."""

    def _inline_constants(self) -> None:
        for region, shapes in self._regions:
            if region.inline_constants():
                self._declare_results(region, shapes)

    def boundary_sizes(self) -> tuple[int, int]:
        """Number of the subgraph's inputs, without states, and number of its outputs."""
        return len(self._graph.inputs), len(self._graph.outputs)

    def inner_models(self) -> list[ov.Model]:
        """The bodies of loops and branches."""
        return [inner.model for inner in self._all_inner()]

    def _all_inner(self) -> Iterator[NgraphBridge]:
        """The bridges of loop bodies and branches, outer ones first."""
        for inner in self._inner:
            yield inner
            yield from inner._all_inner()

    def _record_shapes(self, model: ov.Model) -> None:
        """Records all sizes in a model, and whether any tensor in the model is empty.

        Only the first call does: afterwards nGraph may no longer know the current shapes.
        """
        if self.sizes.shapes is None or self._has_empty_tensor is not None:
            return
        self._has_empty_tensor = False
        for node in model.get_ordered_ops():
            for output in node.outputs():
                sizes = self.sizes.shapes.of(output)
                is_empty = any(not isinstance(dim, Size) and dim == 0 for dim in sizes)
                self._has_empty_tensor |= is_empty and not _is_list(output)

    def _result(self, spec: TensorSpec) -> Output:
        output = self._apply_deferred_check(spec)
        return self._bfloat16.narrowed(output) if spec.dtype == BFLOAT16 else self.computed(output)

    def computed(self, output: Output) -> Output:
        """``output``, computed by a node: the engine does not write a result that is an input."""
        if output.get_node().get_type_name() != "Parameter":
            return output
        return opset15.reshape(output, self.ints(self.shape(output)), False).output(0)

    def _convert(self, op: Op) -> None:
        entry = find_converter(op.type)
        if entry is None:
            raise NgraphError(
                f"{op.type} (operator {op.index}) has no converter; "
                "import the module that registers it before running this program"
            )
        try:
            if op.has_bfloat16() and not self.on_cpu:
                raise NgraphError(f"{self.device} has no tensors of bfloat16")
            check = self._forwarded_check(op) if self._deferred_checks else None
            entry.function(self, op.in_float32())
            if check is not None:
                self._deferred_checks.update((spec.id, check) for spec in op.output_specs())
        except Exception as error:
            code, _ = outcome(error)
            raise ConversionError(op, _reason(error), self.device, code) from error
        for spec in (
            spec for name in entry.named(Role.WORKSPACE) for spec in op.outputs.get(name, ())
        ):
            if spec is not None:
                self._nodes[spec.id] = opset15.constant([0], element_type(spec.dtype)).output(0)
        for spec in op.output_specs():
            if spec.id not in self._nodes and spec not in self.arrays:
                raise ConversionError(op, "an output was not set", self.device)

    def _add_inputs(
        self, signature: Sequence[tuple[str, Sequence[int]]], values: Mapping[int, np.ndarray]
    ) -> None:
        for position, spec in enumerate([*self._graph.inputs, *self._graph.states]):
            dtype, shape = signature[position]
            self._add_input(position, spec, dtype, shape, values.get(position))

    def _add_input(
        self,
        position: int,
        spec: TensorSpec,
        dtype: str,
        shape: Sequence[int],
        value: np.ndarray | None,
    ) -> None:
        element: Type = getattr(Type, dtype)
        if element != element_type(spec.dtype):
            raise ValueError(
                f"input {position} of the interval is {_PADDLE_DTYPES.get(dtype, dtype)}, "
                f"the program declares {spec.dtype}"
            )
        node = (
            self._parameter(position, element, shape)
            if value is None
            else self._value_input(position, element, value)
        )
        self._nodes[spec.id] = self._bfloat16.widened(node) if element == Type.bf16 else node
        self._as_declared &= fits(spec.shape, self.shape(self._nodes[spec.id]))

    def _value_input(self, position: int, dtype: Type, value: np.ndarray) -> Output:
        """The node of an input that is read by value: a constant, unless contents are symbolic.

        Until dimensions become dynamic, the node contains hints, from which nGraph infers shapes.
        """
        symbolic_dims = self._symbolic_dims
        symbols = [] if symbolic_dims is None else symbolic_dims.contents[position]
        if (
            self.sizes.shapes is None
            or symbolic_dims is None
            or all(symbol is None for symbol in symbols)
        ):
            return constant_of(value, dtype).output(0)
        self._value_constants[position] = opset15.constant(value, dtype)
        # A Convert between them: converters would treat the constant itself as known contents.
        node = opset15.convert(self._value_constants[position], dtype).output(0)
        contents = [
            each if symbol is None else symbolic_dims.size(symbol)
            for symbol, each in zip(symbols, value.reshape(-1).tolist())
        ]
        self.sizes.shapes.declare_contents(node, contents)
        return node

    def _parameter(self, position: int, dtype: Type, shape: Sequence[int]) -> Output:
        node = opset15.parameter(list(shape), dtype, name=f"input_{position}")
        self._parameters.append(node)
        self._input_of_parameter[node.get_friendly_name()] = position
        if self.sizes.shapes is not None and self._symbolic_dims is not None:
            symbols = self._symbolic_dims.symbols.get(position, ())
            sizes = [None if n is None else self._symbolic_dims.size(n) for n in symbols]
            self.sizes.shapes.declare(node.output(0), sizes)
        return node.output(0)

    def _check_output(self, name: str, spec: TensorSpec, output: Output) -> None:
        if output.get_element_type() != element_type(spec.dtype):
            found = _PADDLE_DTYPES.get(output.get_element_type().get_type_name(), "another dtype")
            raise NgraphError(f"output '{name}' became {found}, Paddle's is {spec.dtype}")
        shape = self.shape(output)
        # Programs saved by Paddle before 2.5 declare [1] for some outputs that are scalars today.
        is_scalar = not shape and list(spec.shape) == [1]
        if self._as_declared and not is_scalar and not fits(spec.shape, shape):
            sizes = list(map(hint_of, shape))
            raise NgraphError(
                f"output '{name}' became {sizes}, Paddle's shape is {list(spec.shape)}"
            )


def _sizes_of(graph: Graph, symbolic_dims: SymbolicDims | None) -> Sizes:
    """The sizes of a graph. Without dynamic dimensions only iterations of loops have symbols."""
    if symbolic_dims is not None:
        return Sizes(symbolic_dims.guards)
    return Sizes(Guards({}) if any(op.type == _LOOP for op in graph.all_ops()) else None)


def _fixed(attribute: Any) -> Any:
    """An attribute of a node, with symbolic sizes fixed."""
    if isinstance(attribute, list | tuple):
        return [_fixed(each) for each in attribute]
    return int(attribute) if isinstance(attribute, Size) else attribute


def _reason(error: Exception) -> str:
    """The reason in a :class:`ConversionError` for an exception of a converter."""
    text = str(error).strip()
    if isinstance(error, NgraphError) or "\n" not in text:
        return text or type(error).__name__
    return f"nGraph refuses what it becomes: {summarized(text)}"


def fits(declared: Sequence[int], actual: Sequence[Number]) -> bool:
    """Whether a shape agrees with a declared one."""
    if 0 in declared:  # Paddle's shape of some outputs that an operator leaves unchanged
        return True
    try:
        return len(actual) == len(declared) and all(d in (-1, a) for d, a in zip(declared, actual))
    except Undecided:
        return False


def _constant_for(parameter: Node, contents: Any, known_buffers: set[int] | None) -> Node:
    """A constant that replaces a parameter.

    Args:
        parameter: The parameter.
        contents: A buffer.
        known_buffers: Addresses of the buffers of earlier constants, to use this one in place;
            ``None`` to copy. The plugin identifies packed weights by address, so a buffer that is
            given twice is copied.
    """
    dtype = parameter.get_output_element_type(0)
    array = np.frombuffer(contents, dtype.to_dtype()).reshape(tuple(parameter.get_output_shape(0)))
    address = array.ctypes.data
    if known_buffers is None or address in known_buffers or array.size == 0:
        return constant_of(array, dtype)
    known_buffers.add(address)
    return opset15.constant(ov.Tensor(array, ov.Shape(array.shape), dtype))


def _is_list(output: Output) -> bool:
    """Whether ``output`` is an empty list of axes or sizes, as in core/ov/empty_tensors.cc."""
    is_constant = output.get_node().get_type_name() == "Constant"
    is_row = len(output.get_partial_shape()) == 1
    return is_constant and is_row and bool(output.get_element_type().is_integral())


def is_used(node: Node) -> bool:
    """Whether the first output of a node has a reader."""
    return bool(node.output(0).get_target_inputs())
