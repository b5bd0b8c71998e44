"""Loops and branches: nGraph nodes with bodies.

Inputs of such a node may turn out to be constants once the model around it is complete: weights.
The plugin would move constants into the bodies after our passes, which have to see them there
(constants.py gives the reason). So the node is built again then, with these constants inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import openvino as ov
from openvino import Node, Output, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion import constants
from paddle_ngraph.conversion.analysis.early_exits import EarlyExit
from paddle_ngraph.conversion.node_tools import constant_of
from paddle_ngraph.conversion.sizes import Sizes
from paddle_ngraph.conversion.symbolic_sizes import (
    Number,
    SymbolicSize,
    hint_of,
    symbolic_size,
)


class Cut(NamedTuple):
    """A result of a loop that grows in each iteration but the last one, if that is an early exit.

    Attributes:
        arg: The index of the loop-carried value.
        exits: The early exits.
        axis, growth: What the last iteration must not add: so many elements along this axis.
        shape: The shape of the result.
        grown: The number of iterations in which it grows.
    """

    arg: int
    exits: Sequence[EarlyExit]
    axis: int
    growth: Number
    shape: list[Number]
    grown: SymbolicSize


@dataclass
class RegionBody:
    """The body of a loop or branch.

    Attributes:
        model: The body's model. The first result of a loop body is the condition for another
            iteration.
        reads: For each of its parameters, the index of the source that the parameter gets.
        shapes: The shapes of its results, for all values of the dynamic dimensions.
        regions: The loops and branches inside.
        update_trip_count_check: Applies the limits of the complete model to the check of the
            iteration index.
        reads_iteration: Whether the last parameter, beyond ``reads``, is the iteration index.
        collected: The indices of sources that are TensorArrays. The last results are appended to
            these, those of all iterations in order, along axis 0.
        has_placeholders: Whether some result of a loop is undefined without an iteration.
        cuts: The results of a loop that may be shorter than the model's.
        count: The number of iterations of a loop, if sizes depend on it and it may be 0.
        loop_carried: The number of values that a loop carries.
    """

    model: ov.Model
    reads: list[int]
    shapes: list[list[Number]]
    regions: Regions
    update_trip_count_check: Callable[[], None]
    reads_iteration: bool = False
    collected: Sequence[int] = ()
    has_placeholders: bool = False
    cuts: Sequence[Cut] = ()
    count: SymbolicSize | None = None
    loop_carried: int = 0

    def results(self) -> list[Output]:
        """The outputs that the results of the body's model read."""
        return [result.input_value(0) for result in self.model.get_results()]

    def inline_constants(self, constants: dict[int, Node]) -> None:
        """Replaces parameters by constants, which are given by index of the source."""
        parameters = list(zip(self.model.get_parameters(), self.reads))
        for parameter, index in parameters:
            if index in constants:
                data = np.array(constants[index].get_data())
                replace_node(parameter, opset15.constant(data))
                self.model.remove_parameter(parameter)
        self.reads = [index for _, index in parameters if index not in constants]


class Region(ABC):
    """A loop or branch.

    Args:
        condition: A bool with one element.
        sources: The values that the bodies may read.
        bodies: The bodies.

    Attributes:
        bodies: The bodies.
        node: The node.
    """

    # The input of the loop or branch node that reads the first source; inputs before it are
    # conditions and counts.
    _FIRST_SOURCE_INPUT = 1

    def __init__(
        self, condition: Output, sources: Sequence[Output], bodies: Sequence[RegionBody]
    ) -> None:
        self.bodies = list(bodies)
        # The number of loop-carried values: the first sources are their initial values.
        self._num_loop_carried = 0
        # For each input of the node after the first ones, the index of the source that it reads.
        self._parameter_order: list[int] = []
        self._condition = condition
        self._sources = list(sources)
        self.node: Node

    def inline_constants(self) -> bool:
        """Moves constant inputs of the node into its bodies, and then builds the node again.

        Loop-carried inputs stay, since their values change.

        Returns:
            Whether there were any constants to move; else the node is left as it is.
        """
        values = self.node.input_values()
        self._condition = values[self._FIRST_SOURCE_INPUT - 1]
        for index, value in zip(self._parameter_order, values[self._FIRST_SOURCE_INPUT :]):
            self._sources[index] = value
        invariant = [index for index in self._parameter_order if index >= self._num_loop_carried]
        self._compute_constants(invariant)
        moved = {
            index: self._sources[index].get_node()
            for index in invariant
            if self._sources[index].get_node().get_type_name() == "Constant"
        }
        if not moved:
            return False
        for body in self.bodies:
            body.inline_constants(moved)
        before = self.node
        self.build_node()
        replace_node(before, self.node)
        return True

    def _compute_constants(self, indices: Sequence[int]) -> None:
        """Replaces sources that constants determine, such as weights times a number, by constants.

        The plugin computes these, too, and then fails as it moves them into the bodies.
        """
        found = [
            index
            for index in indices
            if self._sources[index].get_node().get_type_name() != "Constant"
            and constants.may_be_computed(self._sources[index])
        ]
        values = [self._sources[index] for index in found]
        computed = constants.evaluated(values) if values else []
        for index, value, data in zip(found, values, computed):
            constant = constant_of(data, value.get_element_type())
            self._sources[index] = constant.output(0)

    @abstractmethod
    def build_node(self) -> None:
        """Builds :attr:`node`, the loop or branch, from its bodies and sources."""


class Loop(Region):
    """An nGraph Loop: repeats while a condition is true, which each iteration computes anew.

    Its first sources are the initial values, one for each loop-carried result. After these come
    the collected results, whose contents are undefined after no iteration at all.
    """

    _FIRST_SOURCE_INPUT = 2

    def __init__(self, condition: Output, sources: Sequence[Output], body: RegionBody) -> None:
        super().__init__(condition, sources, [body])
        self._num_loop_carried = len(body.shapes) - 1 - len(body.collected)

    def build_node(self) -> None:
        """Builds a Loop node; see :meth:`Region.build_node`."""
        (body,) = self.bodies
        loop = opset15.loop(opset15.constant(np.int64(-1)).output(0), self._condition)
        loop.set_function(body.model)
        loop.set_special_body_ports([len(body.reads) if body.reads_iteration else -1, 0])
        _, *results = body.results()
        yielded, collected = results[: self._num_loop_carried], results[self._num_loop_carried :]
        for parameter, index in zip(body.model.get_parameters(), body.reads):
            if index < self._num_loop_carried:
                loop.set_merged_input(parameter, self._sources[index], yielded[index])
            else:
                loop.set_invariant_input(parameter, self._sources[index])
        for end in yielded:
            loop.get_iter_value(end, -1)
        for result in collected:
            loop.get_concatenated_slices(result, 0, 1, 1, -1, 0)
        self._parameter_order, self.node = list(body.reads), loop


class Branch(Region):
    """A branch: one of two bodies runs, depending on a condition."""

    def build_node(self) -> None:
        """Builds an If node; see :meth:`Region.build_node`."""
        first, second = self.bodies
        node = opset15.if_op(self._condition)
        node.set_then_body(first.model)
        node.set_else_body(second.model)
        parameters = [dict(zip(b.reads, b.model.get_parameters())) for b in self.bodies]
        self._parameter_order = sorted({*first.reads, *second.reads})
        for index in self._parameter_order:
            node.set_input(self._sources[index], *(known.get(index) for known in parameters))
        self.node = node
        for pair in zip(first.model.get_results(), second.model.get_results()):
            node.set_output(*pair)


class Regions:
    """The loops and branches of one block.

    Readers of results with dynamic shapes get placeholders until the model is complete: parameters
    of the current shapes.

    Args:
        sizes: The sizes of the block.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._regions: list[tuple[Region, Sequence[Sequence[Number]]]] = []
        # For each placeholder: its node, and a function that returns the output that it replaces.
        self._placeholders: list[tuple[Node, Callable[[], Output]]] = []

    def add(self, region: Region, shapes: Sequence[Sequence[Number]]) -> list[Output]:
        """Adds a loop or branch, whose results have these shapes, and returns its outputs."""
        self._regions.append((region, shapes))
        region.build_node()
        self._declare_results(region, shapes)
        return [
            output
            if output.get_partial_shape().is_static
            else self._placeholder_for(output, shape, partial(_result_of, region, n))
            for n, (output, shape) in enumerate(zip(region.node.outputs(), shapes))
        ]

    def cut(self, output: Output, shape: Sequence[Number]) -> Output:
        """A placeholder for a slice of a result, whose size, too, only a run knows."""
        return self._placeholder_for(output, shape, lambda: output)

    def bodies(self) -> Iterator[RegionBody]:
        """The bodies of these loops and branches, and of all loops and branches inside."""
        for region, _ in self._regions:
            for body in region.bodies:
                yield body
                yield from body.regions.bodies()

    def inline_constants(self) -> None:
        """Moves constants that loops and branches read into their bodies, also in nested bodies."""
        for region, shapes in self._regions:
            if region.inline_constants():
                self._declare_results(region, shapes)
        for region, _ in self._regions:
            for body in region.bodies:
                body.regions.inline_constants()

    def record_sizes(self, model: ov.Model) -> None:
        """Records all sizes in the model of the block, and in the models of all bodies."""
        self._sizes.record(model)
        for body in self.bodies():
            body.regions._sizes.record(body.model)

    def has_empty_tensor(self) -> bool:
        """Whether a model whose sizes were recorded, also that of a body, has an empty tensor."""
        inner = (body.regions._sizes for body in self.bodies())
        return any(sizes.has_empty_tensor for sizes in (self._sizes, *inner))

    def placeholders(self) -> list[Node]:
        """The parameters that replace results of dynamic shape of loops and branches."""
        return [node for node, _ in self._placeholders]

    def replace_placeholders(self) -> None:
        """Has readers of placeholders read the results of loops and branches instead."""
        for node, replaced in self._placeholders:
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(replaced())

    def _declare_results(self, region: Region, shapes: Sequence[Sequence[Number]]) -> None:
        for output, shape in zip(region.node.outputs(), shapes):
            self._sizes.set(output, shape)

    def _placeholder_for(
        self, output: Output, shape: Sequence[Number], replaced: Callable[[], Output]
    ) -> Output:
        node = opset15.parameter(list(map(hint_of, shape)), output.get_element_type())
        self._placeholders.append((node, replaced))
        if self._sizes.shapes is not None:
            self._sizes.shapes.declare(node.output(0), [symbolic_size(size) for size in shape])
        return node.output(0)


def _result_of(region: Region, index: int) -> Output:
    return region.node.output(index)
