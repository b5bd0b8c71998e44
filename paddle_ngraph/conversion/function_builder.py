"""Builds the model of a function: a bridge that converts its operators, inputs and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import Node, Output, Type, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion import dynamic_shapes, kernel_calls
from paddle_ngraph.conversion.bridge import PADDLE_DTYPES, NgraphBridge, element_type
from paddle_ngraph.conversion.dynamic_shapes import SymbolicDims
from paddle_ngraph.conversion.errors import ConversionError
from paddle_ngraph.conversion.model_inputs import FunctionInputs
from paddle_ngraph.conversion.node_tools import constant_of, is_used
from paddle_ngraph.conversion.sizes import Sizes
from paddle_ngraph.conversion.symbolic_sizes import Guards
from paddle_ngraph.ir.graph import BFLOAT16, Graph, Op, TensorSpec
from paddle_ngraph.utils.dtypes import element_name

_LOOP = "pd_op.while"


class FunctionBuilder:
    """Builds the ``ov::Model`` of one subgraph for one signature.

    Args:
        graph: The subgraph.
        signature: dtype name and shape of each input, then of each state.
        values: The contents of the inputs that are read by value, by input index.
        symbolic_dims: The symbolic dimensions, and symbolic contents of inputs read by value.

    Attributes:
        graph: The subgraph.
        inputs: The inputs of the subgraph, as parameters of the model.
        bridge: The bridge that converts its operators.

    Raises:
        ValueError: The dtype of an input is not what the program declares.
    """

    def __init__(
        self,
        graph: Graph,
        signature: Sequence[tuple[str, Sequence[int]]],
        values: Mapping[int, np.ndarray] | None = None,
        symbolic_dims: SymbolicDims | None = None,
    ) -> None:
        graph.set_op_ids()
        sizes = _sizes_of(graph, symbolic_dims)
        self.graph = graph
        self.inputs = FunctionInputs(graph, sizes, symbolic_dims)
        self.bridge = NgraphBridge(graph, self.inputs, sizes, graph.compiled_for)
        self._symbolic_dims = symbolic_dims
        self._samplers = [op for op in graph.all_ops() if not op.blocks and _samples(op)]
        self._samples_by_kernel = any(op.type in kernel_calls.SAMPLERS for op in self._samplers)
        if self._samples_by_kernel:
            self.inputs.sample_during_runs()
        values = values or {}
        for position, spec in enumerate([*graph.inputs, *graph.states]):
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
        if dtype != element_name(spec.dtype):
            raise ValueError(
                f"input {position} of the interval is {PADDLE_DTYPES.get(dtype, dtype)}, "
                f"the program declares {spec.dtype}"
            )
        if spec.id in self.bridge.as_bytes:
            size = kernel_calls.bytes_of(spec.dtype)
            node = self.inputs.add(position, Type.u8, [*shape, size])
            name = kernel_calls.name_of_bytes(spec.dtype, f"input_{position}")
            node.get_tensor().set_names({name})
        elif value is None:
            node = self.inputs.add(position, element_type(spec.dtype), shape)
        else:
            node = self.inputs.add_value(position, element_type(spec.dtype), value)
        self.bridge.set_input(spec, node)

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
            feeds it; indices after the inputs continue through :attr:`FunctionInputs.draws`.

        Raises:
            ConversionError: As in :meth:`NgraphBridge.convert`; or a kernel samples in a loop, and
                another operator, too: before the run, and so perhaps out of order.
        """
        if self._samples_by_kernel and len(self._samplers) > 1:
            reason = "an operator of its subgraph samples random numbers, too"
            raise ConversionError(self._samplers[0], reason, self.graph.compiled_for)
        self.bridge.convert()
        self._insert_weights(weights or {}, in_place)
        results = []
        for spec in [*self.graph.outputs, *self.graph.state_outputs]:
            results.append(opset15.result(self._result(spec)))
        regions = self.bridge.regions
        for body in regions.bodies():
            body.update_trip_count_check()
        regions.inline_constants()
        used = list(filter(is_used, self.inputs.parameters))
        model = ov.Model(results, [*used, *regions.placeholders()], "ngraph_interval")
        self.inputs.drop_unread_values(model)
        return model, [*map(self.inputs.position, used), *self.inputs.value_constants]

    def _insert_weights(self, weights: Mapping[int, Any], in_place: bool) -> None:
        known_buffers: set[int] | None = set() if in_place else None
        for node in self.inputs.parameters:
            position = self.inputs.position(node)
            if position in weights:
                replace_node(node, _constant_for(node, weights[position], known_buffers))

    def _result(self, spec: TensorSpec) -> Output:
        output = self.bridge.integers.apply_deferred(spec)
        if spec.dtype == BFLOAT16:
            return self.bridge.bfloat16.narrowed(output)
        return self.computed(output)

    def computed(self, output: Output) -> Output:
        """Returns ``output``; for a parameter, a node that copies it.

        The engine does not write a result that is an input of the model.
        """
        if output.get_node().get_type_name() != "Parameter":
            return output
        shape = self.bridge.ints(self.bridge.shape(output))
        return opset15.reshape(output, shape, False).output(0)

    def name_bytes(self, model: ov.Model) -> None:
        """Names the results of a finished model that are bytes, of which the outputs come first."""
        for index, spec in enumerate(self.graph.outputs):
            if spec.id in self.bridge.as_bytes:
                name = kernel_calls.name_of_bytes(spec.dtype, f"output_{index}")
                model.outputs[index].get_tensor().add_names({name})

    def make_dynamic(self, model: ov.Model) -> None:
        """Makes the dynamic dimensions of a finished model dynamic in OpenVINO.

        Contents of inputs that are symbolic sizes become parameters.
        """
        regions = self.bridge.regions
        if self._symbolic_dims is not None:
            regions.record_sizes(model)
            if regions.has_empty_tensor():
                raise dynamic_shapes.EmptyTensorFound
            self.inputs.make_dynamic(model, self._symbolic_dims)
        placeholders = regions.placeholders()
        regions.replace_placeholders()
        for node in placeholders:
            model.remove_parameter(node)
        if self._symbolic_dims is not None or placeholders:
            model.validate_nodes_and_infer_types()

    def boundary_sizes(self) -> tuple[int, int]:
        """The number of inputs of the subgraph, without states, and the number of its outputs."""
        return len(self.graph.inputs), len(self.graph.outputs)

    def inner_models(self) -> list[ov.Model]:
        """The models inside the loops and branches of the function."""
        return [body.model for body in self.bridge.regions.bodies()]

    def has_placeholders(self) -> bool:
        """Whether the model reads a tensor of dynamic shape from a loop or branch."""
        return bool(self.bridge.regions.placeholders())


def _samples(op: Op) -> bool:
    entry = kernel_calls.find(op)
    return entry is not None and entry.draws(op)


def _sizes_of(graph: Graph, symbolic_dims: SymbolicDims | None) -> Sizes:
    """The bridge's ``sizes``. Without dynamic dimensions only iterations of loops have symbols."""
    if symbolic_dims is not None:
        return Sizes(symbolic_dims.guards)
    return Sizes(Guards({}) if any(op.type == _LOOP for op in graph.all_ops()) else None)


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
