"""The inputs of a model during its build, as parameters: of a function, or of a body."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import openvino as ov
from openvino import Node, Output, Type, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion.dynamic_shapes import SymbolicDims
from paddle_ngraph.conversion.node_tools import as_output, constant_of, is_used
from paddle_ngraph.conversion.sizes import Sizes
from paddle_ngraph.conversion.symbolic_sizes import Number, hint_of, symbolic_size
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import MAX_FOLDED_ELEMENTS, Graph


class Draw(NamedTuple):
    """Random numbers that a run samples from a stream; random_numbers.h documents the fields."""

    distribution: int
    a: float
    b: float
    seed: int
    shape: list[int]


# Element types of random numbers by name of the distribution, in the order of the enumeration in
# core/common/random_numbers.h.
_DISTRIBUTIONS = {"keep": Type.u8, "uniform": Type.f32, "normal": Type.f32}


class ModelInputs(ABC):
    """The inputs of a model during its build: of a subgraph, or of the body of a loop or branch.

    Args:
        sizes: The sizes of the model's block.

    Attributes:
        parameters: The parameters of the model, in the order of their creation.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.parameters: list[Node] = []
        self._sizes = sizes
        # By the name of each parameter, the index of the input that feeds it.
        self._positions: dict[str, int] = {}

    def position(self, parameter: Node) -> int:
        """The index of the subgraph input, or of the source, that feeds ``parameter``."""
        return self._positions[parameter.get_friendly_name()]

    def indexed(self) -> list[tuple[Node, int]]:
        """The parameters of the model, each with the index of the input that feeds it."""
        return [(node, self.position(node)) for node in self.parameters]

    def _register(self, position: int, parameter: Node) -> None:
        self.parameters.append(parameter)
        self._positions[parameter.get_friendly_name()] = position

    @abstractmethod
    def subgraph_input(self, node: Output) -> int | None:
        """The index of the subgraph input that a node is, if it is one."""

    @abstractmethod
    def runtime_input(self) -> Output:
        """An output that the build does not know, so that nodes that read it are not folded.

        Raises:
            NgraphError: The only inputs are weights.
        """

    @abstractmethod
    def draw(
        self, distribution: str, a: float, b: float, seed: int, shape: Sequence[int]
    ) -> Output:
        """Adds an input of random numbers; see :meth:`NgraphBridge.draw`."""


class FunctionInputs(ModelInputs):
    """The inputs of a function: those and the states of a subgraph, and random numbers.

    Args:
        graph: The subgraph.
        sizes: The sizes of the graph.
        symbolic_dims: The symbolic dimensions, and symbolic contents of inputs read by value.

    Attributes:
        draws: The random numbers, whose parameters follow those of the subgraph.
        value_constants: The constants that become parameters with symbolic contents, by input
            index.
    """

    def __init__(self, graph: Graph, sizes: Sizes, symbolic_dims: SymbolicDims | None) -> None:
        super().__init__(sizes)
        self._num_tensors = len(graph.inputs) + len(graph.states)
        self._weights = frozenset(graph.weights)
        self._symbolic_dims = symbolic_dims
        self.draws: list[Draw] = []
        self.value_constants: dict[int, Node] = {}

    def add(self, position: int, dtype: Type, shape: Sequence[int]) -> Output:
        """Adds the parameter of the subgraph input ``position``; returns its output."""
        node = opset15.parameter(list(shape), dtype, name=f"input_{position}")
        self._register(position, node)
        if self._sizes.shapes is not None and self._symbolic_dims is not None:
            symbols = self._symbolic_dims.symbols.get(position, ())
            sizes = [None if n is None else self._symbolic_dims.size(n) for n in symbols]
            self._sizes.shapes.declare(node.output(0), sizes)
        return node.output(0)

    def add_value(self, position: int, dtype: Type, value: np.ndarray) -> Output:
        """The node of an input that is read by value: a constant, unless contents are symbolic.

        Until dimensions become dynamic, the node contains hints, from which nGraph infers shapes.
        """
        symbolic_dims = self._symbolic_dims
        symbols = [] if symbolic_dims is None else symbolic_dims.contents[position]
        if (
            self._sizes.shapes is None
            or symbolic_dims is None
            or all(symbol is None for symbol in symbols)
        ):
            return constant_of(value, dtype).output(0)
        self.value_constants[position] = opset15.constant(value, dtype)
        # Converters get a Convert of the constant: contents of the constant itself would count as
        # known, although other runs have others.
        node = opset15.convert(self.value_constants[position], dtype).output(0)
        contents = [
            each if symbol is None else symbolic_dims.size(symbol)
            for symbol, each in zip(symbols, value.reshape(-1).tolist())
        ]
        self._sizes.shapes.declare_contents(node, contents)
        return node

    def drop_unread_values(self, model: ov.Model) -> None:
        """Drops constants from :attr:`value_constants` that the model does not read."""
        if not self.value_constants:
            return
        read = {node.get_name() for node in model.get_ordered_ops()}
        self.value_constants = {
            position: constant
            for position, constant in self.value_constants.items()
            if constant.get_name() in read
        }

    def make_dynamic(self, model: ov.Model, symbolic_dims: SymbolicDims) -> None:
        """Makes dimensions of parameters dynamic that have a symbol in ``symbolic_dims``.

        Contents of inputs that are symbolic sizes become parameters.
        """
        fixed = symbolic_dims.guards.fixed()
        for node in model.get_parameters():
            position = self.subgraph_input(node.output(0))
            symbols = None if position is None else symbolic_dims.symbols.get(position)
            if symbols:
                dims = list(node.get_output_shape(0))
                for axis, symbol in enumerate(symbols):
                    if symbol is not None and symbol not in fixed:
                        dims[axis] = -1
                node.set_partial_shape(ov.PartialShape(dims))
        for position, constant in self.value_constants.items():
            dtype, shape = constant.get_output_element_type(0), list(constant.get_output_shape(0))
            parameter = opset15.parameter(shape, dtype, name=f"input_{position}")
            replace_node(constant, parameter)
            model.add_parameters([parameter])

    def subgraph_input(self, node: Output) -> int | None:
        """The index of the subgraph's input; see :meth:`ModelInputs.subgraph_input`."""
        return self._positions.get(node.get_node().get_friendly_name())

    def runtime_input(self) -> Output:
        """An input that is known in a run only; see :meth:`ModelInputs.runtime_input`."""
        for node in self.parameters:
            if self.position(node) not in self._weights:
                return node.output(0)
        raise NgraphError("a loop that grows is given nothing but weights")

    def draw(
        self, distribution: str, a: float, b: float, seed: int, shape: Sequence[int]
    ) -> Output:
        """Adds an input of random numbers; see :meth:`ModelInputs.draw`."""
        distribution_id = list(_DISTRIBUTIONS).index(distribution)
        position = self._num_tensors + len(self.draws)
        sizes = [int(size) for size in shape]
        self.draws.append(Draw(distribution_id, float(a), float(b), int(seed), sizes))
        return self.add(position, _DISTRIBUTIONS[distribution], sizes)

    def sample_during_runs(self) -> None:
        """Declares that kernels sample during a run; if it fails, the generator is restored.

        That is a sample without a number, and without a parameter.
        """
        self.draws.append(Draw(list(_DISTRIBUTIONS).index("uniform"), 0.0, 1.0, 0, [0]))


class BodyInputs(ModelInputs):
    """The inputs of the body of a loop or branch: values of the surrounding block.

    Args:
        sources: The values that the block reads.
        args: The number of loop-carried inputs, which come first.
        sizes: The sizes of the block.
        outer_sizes: The sizes of the surrounding block.

    Attributes:
        sources: The values that the body reads: those of the block, and more.
        arg_shapes: The shapes of the loop-carried inputs in an iteration.
        iteration_parameter: The parameter of the iteration index, if it has a reader.
    """

    def __init__(
        self, sources: Sequence[Output], args: int, sizes: Sizes, outer_sizes: Sizes
    ) -> None:
        super().__init__(sizes)
        self.sources = list(sources)
        self._args = args
        self._outer_sizes = outer_sizes
        self.arg_shapes = [outer_sizes.of(source) for source in self.sources[:args]]
        self.iteration_parameter: Node | None = None
        self._hints: list[tuple[Node, Output]] = []

    def add(self, position: int) -> Output:
        """Adds the parameter for the value ``position`` outside the body; returns its output."""
        source = self.sources[position]
        is_arg = position < self._args
        sizes = self.arg_shapes[position] if is_arg else self._outer_sizes.of(source)
        node = opset15.parameter(list(map(hint_of, sizes)), source.get_element_type())
        self._register(position, node)
        if self._sizes.shapes is not None:
            self._sizes.shapes.declare(node.output(0), list(map(symbolic_size, sizes)))
        return node.output(0)

    def add_value(self, position: int) -> Output:
        """The node in the body for the value ``position`` outside: constant or parameter."""
        source = self.sources[position]
        producer = source.get_node()
        if position < self._args:
            return self.add(position)
        if (
            producer.get_type_name() == "Constant"
            and math.prod(source.get_shape()) <= MAX_FOLDED_ELEMENTS
        ):
            return opset15.constant(np.array(producer.get_data())).output(0)
        node = self.add(position)
        outer_shapes = self._outer_sizes.shapes
        if (
            outer_shapes is None
            or self._sizes.shapes is None
            or outer_shapes.depends_on(source) != "sizes"
        ):
            return node
        sizes = outer_shapes.value(source)
        if sizes is None:
            return opset15.constant(outer_shapes.fixed_value(source)).output(0)
        return self.with_hints(node, sizes.reshape(-1).tolist())

    def add_outer_sizes(self) -> None:
        """Adds a parameter to a body: the symbolic sizes known in the block around, as integers."""
        outer_shapes = self._outer_sizes.shapes
        if outer_shapes is None or self._sizes.shapes is None:
            return
        if sizes := outer_shapes.known_sizes():
            self.sources.append(as_output(self._outer_sizes.node(sizes)))
            self.with_hints(self.add(len(self.sources) - 1), sizes)

    def iteration_index(self) -> Output:
        """The output of the parameter that OpenVINO feeds with the iteration index."""
        if self.iteration_parameter is None:
            self.iteration_parameter = opset15.parameter([], Type.i64)
            if self._sizes.shapes is not None:
                self._sizes.shapes.declare(self.iteration_parameter.output(0), [])
        return self.iteration_parameter.output(0)

    def index_parameters(self) -> list[Node]:
        """A list of the parameter of the iteration index; empty without one."""
        return [] if self.iteration_parameter is None else [self.iteration_parameter]

    def with_hints(self, parameter: Output, sizes: Sequence[Number]) -> Output:
        """Replaces a parameter of sizes by its hints, until the block is complete.

        With the hints, nGraph infers the current shapes that are computed from it.
        """
        assert self._sizes.shapes is not None
        dtype = parameter.get_element_type()
        values = np.array(list(map(hint_of, sizes)), dtype.to_dtype())
        constant = opset15.constant(values.reshape(tuple(parameter.get_shape())))
        # Converters get a Convert of the constant: the hints in the constant itself would count as
        # known contents.
        node = opset15.convert(constant, dtype)
        self._sizes.shapes.declare_contents(node.output(0), sizes)
        self._hints.append((node, parameter))
        return node.output(0)

    def use_runtime_sizes(self) -> None:
        """Replaces hints of sizes, which are constants, by parameters with the sizes of the run."""
        for node, parameter in self._hints:
            if is_used(node):
                node.input(0).replace_source_output(parameter)

    def subgraph_input(self, node: Output) -> int | None:
        """Returns ``None``: the subgraph's inputs belong to another model."""
        return None

    def runtime_input(self) -> Output:
        """An input that is known in a run only; see :meth:`ModelInputs.runtime_input`."""
        return self.iteration_index()

    def draw(
        self, distribution: str, a: float, b: float, seed: int, shape: Sequence[int]
    ) -> Output:
        """Raises NgraphError: how often a loop or branch would sample is unknown before a run."""
        raise NgraphError("random numbers are drawn inside of a loop or branch")
