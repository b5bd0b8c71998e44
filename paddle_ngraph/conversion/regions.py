"""Loops and branches: nodes of nGraph with models inside.

What such a node reads may turn out to be constant once the model around it is complete: weights.
The plugin would move constants inside after our passes, which have to see them there (constants.py
says why). So a node is made again then, with these constants inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import Node, Output, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion.symbolic_sizes import Number


@dataclass
class RegionBody:
    """What is inside of a loop or branch.

    Attributes:
        model: It. The results of a loop's begin with whether there is another turn.
        reads: For each of its parameters, which of the sources it is given.
        shapes: The shapes of its results, whatever the open dimensions are.
        reads_iteration: Whether it has one more parameter, the last one: the number of the turn.
        collected: The sources that are TensorArrays to which the last results are appended, those
            of all turns one behind the other, along axis 0.
    """

    model: ov.Model
    reads: list[int]
    shapes: list[list[Number]]
    reads_iteration: bool = False
    collected: Sequence[int] = ()

    def results(self) -> list[Output]:
        """What its results are."""
        return [result.input_value(0) for result in self.model.get_results()]

    def inline_constants(self, constants: dict[int, Node]) -> None:
        """Has these sources, if it reads them, inside from now on."""
        parameters = list(zip(self.model.get_parameters(), self.reads))
        for parameter, number in parameters:
            if number in constants:
                data = np.array(constants[number].get_data())
                replace_node(parameter, opset15.constant(data))
                self.model.remove_parameter(parameter)
        self.reads = [number for _, number in parameters if number not in constants]


class Region(ABC):
    """A loop or branch.

    Args:
        condition: A bool with one element.
        sources: What the bodies may read.
        bodies: What is inside.

    Attributes:
        bodies: The same.
        node: The node.
    """

    _FIRST_SOURCE_INPUT = 1  # the input of the node that is the first of the sources

    def __init__(
        self, condition: Output, sources: Sequence[Output], bodies: Sequence[RegionBody]
    ) -> None:
        self.bodies = list(bodies)
        self._num_loop_carried = 0  # so many of the first sources are others in each turn
        self._parameter_order: list[int] = []  # the sources that the inputs of the node are
        self._condition = condition
        self._sources = list(sources)
        self.node: Node

    def inline_constants(self) -> bool:
        """Makes the node again with what it reads of constants inside, if there are any.

        Returns:
            Whether it did.
        """
        values = self.node.input_values()
        self._condition = values[self._FIRST_SOURCE_INPUT - 1]
        for number, value in zip(
            self._parameter_order, values[self._FIRST_SOURCE_INPUT :], strict=True
        ):
            self._sources[number] = value
        constants = {
            number: self._sources[number].get_node()
            for number in self._parameter_order
            if number >= self._num_loop_carried
            and self._sources[number].get_node().get_type_name() == "Constant"
        }
        if not constants:
            return False
        for body in self.bodies:
            body.inline_constants(constants)
        before = self.node
        self.build_node()
        replace_node(before, self.node)
        return True

    @abstractmethod
    def build_node(self) -> None:
        """Makes the node. Its outputs are the results."""


class Loop(Region):
    """What repeats while a condition is true; it is computed by each turn for the next one.

    The first sources are what the first turn starts from, as many as there are results that the
    last turn makes. Results that are collected follow: with no turn at all, they hold anything.
    """

    _FIRST_SOURCE_INPUT = 2

    def __init__(self, condition: Output, sources: Sequence[Output], body: RegionBody) -> None:
        super().__init__(condition, sources, [body])
        self._num_loop_carried = len(body.shapes) - 1 - len(body.collected)

    def build_node(self) -> None:
        """See :meth:`Region.build_node`."""
        (body,) = self.bodies
        loop = opset15.loop(opset15.constant(np.int64(-1)).output(0), self._condition)
        loop.set_function(body.model)
        loop.set_special_body_ports([len(body.reads) if body.reads_iteration else -1, 0])
        _, *results = body.results()
        ends, collected = results[: self._num_loop_carried], results[self._num_loop_carried :]
        for parameter, number in zip(body.model.get_parameters(), body.reads):
            if number < self._num_loop_carried:
                loop.set_merged_input(parameter, self._sources[number], ends[number])
            else:
                loop.set_invariant_input(parameter, self._sources[number])
        for end in ends:
            loop.get_iter_value(end, -1)
        for result in collected:
            loop.get_concatenated_slices(result, 0, 1, 1, -1, 0)
        self._parameter_order, self.node = list(body.reads), loop


class Branch(Region):
    """One of two bodies, by a condition."""

    def build_node(self) -> None:
        """See :meth:`Region.build_node`."""
        first, second = self.bodies
        node = opset15.if_op(self._condition)
        node.set_then_body(first.model)
        node.set_else_body(second.model)
        parameters = [dict(zip(b.reads, b.model.get_parameters())) for b in self.bodies]
        self._parameter_order = sorted({*first.reads, *second.reads})
        for number in self._parameter_order:
            node.set_input(self._sources[number], *(known.get(number) for known in parameters))
        self.node = node
        for pair in zip(first.model.get_results(), second.model.get_results()):
            node.set_output(*pair)
