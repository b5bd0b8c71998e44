"""The nGraph bridge: from Paddle operators to nGraph nodes.

One bridge converts the operators of one block during the build of one function: of the graph, or of
a loop body or branch. The bridge owns the map from the block's variables to nodes. A function is
built for one input signature. If some of its dimensions are dynamic, shapes and known contents
contain symbolic sizes (symbolic_sizes.py), so converters get shapes from the bridge only.

The API for converters:

- ``get_input_node``, ``get_input_nodes``, ``set_output_node``: the map;
- ``shape``; ``constant``, ``is_known``: shapes, and contents that are known during the build;
- ``ints``, ``full``, ``draw``, ``extension``: nodes of integers, constants, random numbers, and
  operators of this package;
- ``rounded``: bfloat16 on the way; ``trains``, ``on_cpu``, ``device``: the build;
- ``inline``, ``is_used_later``: for loops and branches.

Everything else belongs to collaborators, which are attributes of the bridge, each of a class in a
file of its own:

- ``sizes`` (sizes.py): shapes of nodes, and sizes as nodes;
- ``folding`` (constant_folding.py): contents of nodes that are known during the build;
- ``integers`` (integer_checks.py): checks of integers that a run does;
- ``arrays`` (tensor_arrays.py): the TensorArrays;
- ``regions`` (regions.py): the loops and branches;
- ``induction`` (analysis/induction_variables.py): integers that follow from induction variables;
- ``bfloat16`` (bfloat16.py): tensors of bfloat16;
- ``inputs`` (model_inputs.py): the inputs of the model, as parameters.

A builder creates the bridge, sets the inputs, has it convert, and makes a model of the results:
function_builder.py for functions, bodies.py for loop bodies and branches.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from openvino import Node, Output, Type, opset15

from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.conversion.analysis.induction_variables import InductionValues
from paddle_ngraph.conversion.bfloat16 import Bfloat16Values
from paddle_ngraph.conversion.constant_folding import ConstantFolding
from paddle_ngraph.conversion.errors import ConversionError
from paddle_ngraph.conversion.extensions import extension, extension_for
from paddle_ngraph.conversion.integer_checks import IntegerChecks
from paddle_ngraph.conversion.model_inputs import ModelInputs
from paddle_ngraph.conversion.node_tools import as_output
from paddle_ngraph.conversion.regions import Regions
from paddle_ngraph.conversion.registry import Role
from paddle_ngraph.conversion.sizes import Sizes
from paddle_ngraph.conversion.symbolic_sizes import (
    Number,
    SymbolicSize,
    Undecided,
    hint_of,
    is_symbolic,
)
from paddle_ngraph.conversion.tensor_arrays import TensorArray, TensorArrays
from paddle_ngraph.errors import NgraphError, outcome, summarized
from paddle_ngraph.ir.graph import BFLOAT16, CPU, Graph, Op, TensorSpec
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.dtypes import BYTES, DTYPES

# Maximum number of elements of the tensors in :meth:`NgraphBridge.known_integers`.
_MAX_KNOWN_INTEGERS = 16
# The name of a Paddle dtype for each name of an nGraph element type.
PADDLE_DTYPES = {dtype.element: name for name, dtype in DTYPES.items()}

# Called after the conversion of an operator, with the nodes of its outputs by tensor id.
Observer = Callable[[Op, Mapping[int, Output]], None]


def element_type(dtype: str) -> Type:
    """The nGraph element type of a Paddle dtype name. Raises NgraphError if there is none."""
    if dtype not in DTYPES:
        raise NgraphError(f"the dtype {dtype} has no nGraph element type")
    return getattr(Type, DTYPES[dtype].element)


class NgraphBridge:
    """Converts the operators of one block.

    Args:
        graph: The subgraph, or the block of a loop or branch.
        inputs: The inputs of the model.
        sizes: The sizes of the block.
        device: The device that the function is built for.
        induction: Integers that follow from induction variables; by default there are none.
        as_declared: Whether the values around have the shapes that Paddle declares, which accepts
            feeds of other shapes as long as its kernels do.
        is_body: Whether the graph is the block of a loop or branch.

    Attributes:
        graph, device: See above.
        as_declared: Whether the inputs have these shapes, too: then results must.
        materialize: Converts an operator's output from a layout of its own before other operators
            read it.
        as_bytes: The ids of the tensors that are bytes (kernel_calls.py).
        shared: State that converters share within a build, by a key that no other converter family
            uses.

    The docstring of the module lists the collaborators, which are the other attributes.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: ModelInputs,
        sizes: Sizes,
        device: str = CPU,
        induction: InductionValues | None = None,
        as_declared: bool = True,
        is_body: bool = False,
    ) -> None:
        self.graph = graph
        self.inputs = inputs
        self.sizes = sizes
        self.device = device
        self.as_declared = as_declared
        self._nodes: dict[int, Output] = {}
        self._pending = deque(graph.ops)
        self._op_types = frozenset(op.type for op in graph.ops).union(graph.gradients)
        self.folding = ConstantFolding(sizes)
        self.arrays = TensorArrays(sizes)
        self.regions = Regions(sizes)
        self.induction = InductionValues(graph.ops) if induction is None else induction
        self.integers = IntegerChecks(self._nodes, self.folding, inputs.subgraph_input, device)
        self.bfloat16 = Bfloat16Values(extension)
        # The ids of tensors that Paddle declares bfloat16, but converters see as float32 tensors of
        # rounded values.
        specs = (spec for op in graph.ops for spec in op.output_specs())
        self._rounded_ids = {spec.id for spec in specs if spec.dtype == BFLOAT16}
        # The number of tensors of inlined blocks so far, from which their ids in this graph follow.
        self._inlined = 0
        self.materialize: Callable[[Output], Output] = lambda output: output
        self.shared: dict[Any, Any] = {}
        self.as_bytes = kernel_calls.tensors_as_bytes(graph, is_body)

    # -- API for converters -------------------------------------------------------------------

    def get_input_node(self, op: Op, name: str, position: int = 0) -> Output:
        """The node of the input ``name`` of ``op``.

        Raises:
            NgraphError: The input is absent.
        """
        specs = op.inputs.get(name, ())
        if position >= len(specs):
            raise NgraphError(f"input '{name}' has no tensor {position}")
        return self._converter_input(specs[position])

    def get_input_nodes(self, op: Op, name: str) -> list[Output]:
        """The nodes of the input ``name``, which holds a list of tensors."""
        return [self._converter_input(spec) for spec in op.inputs.get(name, ())]

    def _converter_input(self, spec: TensorSpec) -> Output:
        """The node of a tensor; for one that is bytes, another one of its shape and dtype.

        A converter reads only the shape and the dtype of such a tensor.
        """
        node = self._nodes[spec.id]
        if spec.id not in self.as_bytes:
            return node
        first = opset15.gather(node, opset15.constant(0), opset15.constant(-1))
        return opset15.convert(first, element_type(spec.dtype)).output(0)

    def is_used_later(self, tensor: TensorSpec) -> bool:
        """Whether later operators of the block read a tensor."""
        return any(tensor.id == spec.id for op in self._pending for spec in op.input_specs())

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
        if spec.id in self.as_bytes:
            self._check_shape(name, spec, self.shape(output)[:-1])
            self._nodes[spec.id] = output
            return
        self._check_output(name, spec, output)
        if spec.id in self._rounded_ids:
            output = self.bfloat16.rounded(output)
        self._nodes[spec.id] = self.materialize(self.folding.folded(output))

    def operands(self, op: Op, name: str) -> list[Output]:
        """The nodes of input ``name`` of a kernel call, loop or branch, as they are in functions.

        Tensors of dtypes that nGraph lacks or narrows are bytes.

        Raises:
            NgraphError: A tensor that has to be bytes is none, and its contents are not known.
        """
        return [self.operand(spec) for spec in op.inputs.get(name, ())]

    def operand(self, spec: TensorSpec) -> Output:
        """The node of one tensor, as :meth:`operands` has it."""
        node = self._nodes[spec.id]
        if spec.id in self.as_bytes or spec.dtype not in BYTES:
            return node
        contents = self.folding.contents(node)
        if contents is None or is_symbolic(contents.reshape(-1).tolist()):
            raise NgraphError(f"a tensor of {spec.dtype} is no operand of kernels")
        array = np.ascontiguousarray(contents, spec.dtype)
        data = np.frombuffer(array.tobytes(), np.uint8)
        return opset15.constant(data.reshape(*contents.shape, array.itemsize)).output(0)

    def operand_shape(self, spec: TensorSpec) -> list[Number]:
        """The shape of a tensor, without the additional axis of one that is bytes."""
        shape = self.shape(self._nodes[spec.id])
        return shape[:-1] if spec.id in self.as_bytes else shape

    def set_kernel_result(
        self, op: Op, name: str, output: Output, position: int, is_sized: bool
    ) -> None:
        """Makes ``output`` the output ``name`` of ``op``, a kernel call.

        Args:
            op, name, output, position: As for :meth:`set_output_node`.
            is_sized: Whether the shape of the output is known before a run.

        Raises:
            NgraphError: As for :meth:`set_output_node`; or the size is known in a run only, and an
                operator reads it that is no kernel call.
        """
        spec = op.outputs[name][position]
        assert spec is not None
        is_bytes = spec.id in self.as_bytes
        if is_sized:
            self.set_output_node(op, name, output, position)
            return
        readers = (o for o in self._pending if spec.id in {s.id for s in o.input_specs()})
        if any(kernel_calls.find(reader) is not kernel_calls.CONVERTER for reader in readers):
            raise NgraphError(f"the size of output '{name}' is known in a run only")
        if not is_bytes:
            self._check_dtype(name, spec, output)
        self._nodes[spec.id] = output

    def rounded(self, op: Op, name: str, node: Any) -> Any:
        """``node``, rounded to bfloat16 if the output ``name`` of ``op`` has dtype bfloat16.

        For values that Paddle's kernels round, too: attributes, and intermediate results.
        """
        if self._rounded_ids.isdisjoint(spec.id for spec in op.outputs.get(name, ()) if spec):
            return node
        return self.folding.folded(self.bfloat16.rounded(as_output(node)))

    @property
    def on_cpu(self) -> bool:
        """Whether the function may contain this package's operators, which other devices lack."""
        return self.device == CPU

    def trains(self, *gradients: str) -> bool:
        """Whether the graph has one of these gradient operators, or any one if none is named."""
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
        for spec in op.inputs.get(name, ()):
            array = self._contents(spec)
            if array is None:
                raise NgraphError(f"input '{name}' is known only at run time")
            arrays.append(array)
        if not arrays:
            raise NgraphError(f"input '{name}' is absent")
        if len(arrays) == 1:
            return arrays[0]
        return np.concatenate([np.atleast_1d(array) for array in arrays])

    def is_known(self, op: Op, name: str) -> bool:
        """Whether the contents of input ``name`` are known while the function is built."""
        return all(self._contents(spec) is not None for spec in op.inputs.get(name, ()))

    def _contents(self, spec: TensorSpec) -> np.ndarray | None:
        contents = self.folding.contents(self._nodes[spec.id])
        if contents is None or spec.id not in self.as_bytes:
            return contents
        return contents.reshape(-1).view(spec.dtype).reshape(contents.shape[:-1])

    def shape(self, node: Any) -> list[Number]:
        """The shape of a node; symbolic dimensions are Sizes."""
        return self.sizes.of(node)

    def full(self, value: Any, dtype: str | Type, shape: Sequence[Number] = ()) -> Node:
        """A constant with all elements ``value``; a scalar unless ``shape`` is given."""
        element = element_type(dtype) if isinstance(dtype, str) else dtype
        if isinstance(value, SymbolicSize):
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
        return self.inputs.draw(distribution, a, b, seed, shape)

    def extension(self, name: str, inputs: Sequence[Any], **attributes: Any) -> Node:
        """Creates a node of an operator of this package; see :func:`extension_for`."""
        return extension_for(self.device, name, inputs, **attributes)

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
        return [self.integers.apply_deferred(replace(s, id=ids[s.id])) for s in block.outputs]

    def _next_tensor_id(self) -> int:
        """A new id for a tensor of an inlined block: negative, unlike the graph's own ids."""
        self._inlined += 1
        return -1 - self._inlined

    # -- for builders -------------------------------------------------------------------------

    def set_input(self, spec: TensorSpec, node: Output) -> None:
        """Adds ``node`` as the block's input ``spec``."""
        is_narrow = node.get_element_type() == Type.bf16
        self._nodes[spec.id] = self.bfloat16.widened(node) if is_narrow else node
        shape = self.shape(self._nodes[spec.id])
        self.as_declared &= fits(spec.shape, shape[:-1] if spec.id in self.as_bytes else shape)

    def shapes(self) -> dict[int, list[Number]]:
        """The shapes of the tensors of the block that have nodes, by id."""
        return {id: self.shape(node) for id, node in self._nodes.items()}

    def known_integers(self) -> dict[int, np.ndarray]:
        """Contents of small integer tensors that are known during the build, by id."""
        found = {}
        for id, node in self._nodes.items():
            shape = self.shape(node)
            if is_symbolic(shape) or math.prod(map(int, shape)) > _MAX_KNOWN_INTEGERS:
                continue
            if not node.get_element_type().is_integral():
                continue
            contents = self.folding.contents(node)
            if contents is not None:
                found[id] = contents
        return found

    def convert(self, observe: Observer | None = None) -> None:
        """Converts every operator.

        Args:
            observe: Called after each operator, with the nodes of its outputs by tensor id.

        Raises:
            ConversionError: Names the operator that could not be converted, and why.
        """
        while self._pending:
            signals.safe_point()
            op = self._pending.popleft()
            self._convert(op)
            if observe is not None:
                ids = (spec.id for spec in op.output_specs())
                observe(op, {each: self._nodes[each] for each in ids if each in self._nodes})

    def _convert(self, op: Op) -> None:
        entry = kernel_calls.find(op)
        if entry is None:
            raise NgraphError(
                f"{op.type} (operator {op.index}) has no converter; "
                "import the module that registers it before running this program"
            )
        with signals.own_errors():
            try:
                if op.has_bfloat16() and not self.on_cpu:
                    raise NgraphError(f"{self.device} has no tensors of bfloat16")
                check = self.integers.forwarded_check(op)
                entry.function(self, op.in_float32())
                self.integers.defer_forwarded(op, check)
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

    def _check_dtype(self, name: str, spec: TensorSpec, output: Output) -> None:
        if output.get_element_type() != element_type(spec.dtype):
            found = PADDLE_DTYPES.get(output.get_element_type().get_type_name(), "another dtype")
            raise NgraphError(f"output '{name}' became {found}, Paddle's is {spec.dtype}")

    def _check_output(self, name: str, spec: TensorSpec, output: Output) -> None:
        self._check_dtype(name, spec, output)
        self._check_shape(name, spec, self.shape(output))

    def _check_shape(self, name: str, spec: TensorSpec, shape: Sequence[Number]) -> None:
        # A scalar is accepted where [1] is declared: programs saved by Paddle before 2.5 declare
        # that shape for some outputs that are scalars today.
        is_scalar = not shape and list(spec.shape) == [1]
        if self.as_declared and not is_scalar and not fits(spec.shape, shape):
            sizes = list(map(hint_of, shape))
            raise NgraphError(
                f"output '{name}' became {sizes}, Paddle's shape is {list(spec.shape)}"
            )


def _reason(error: Exception) -> str:
    """The reason in a :class:`ConversionError` for an exception of a converter."""
    text = str(error).strip()
    if isinstance(error, NgraphError) or "\n" not in text:
        return text or type(error).__name__
    return f"nGraph refuses what it becomes: {summarized(text)}"


def fits(declared: Sequence[int], actual: Sequence[Number]) -> bool:
    """Whether ``actual`` agrees with a declared shape, in which -1 matches any size."""
    # Some operators leave an output unchanged, for which Paddle declares a shape with a 0.
    if 0 in declared:
        return True
    try:
        return len(actual) == len(declared) and all(d in (-1, a) for d, a in zip(declared, actual))
    except Undecided:
        return False
