"""Optimizer updates that write parameters and optimizer states in place, after the function.

As a node of the model, an update creates new parameters and states next to the old ones: all of
them exist twice, and the update writes to memory that it has not read. So the last pass of a build
takes updates out of the model. Their gradients become results, and the engine does the updates
after the run (core/ov/optimizer_updates.h), in place. By then all nodes of the function have read
the old values, and every check has passed; the model cannot read values that an update writes.
Updates whose results have readers within the function stay nodes.

Two other operations of a program on a state are such updates: adding to it (which accumulates
gradients of several micro-batches), and filling it with one value. Fills come last, so that an
update may read a state that is filled afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from openvino import Model, Node, Output, Type, opset15

from paddle_ngraph.conversion.draft import Draft, Update
from paddle_ngraph.conversion.node_tools import Key, key_of
from paddle_ngraph.conversion.passes.fusion import Readers, gradient_sum, have_same_shape


class OptimizerRule(NamedTuple):
    """The operands of an optimizer's operator.

    Attributes:
        optimizer: The id of the optimizer, as in core/ov/kernels/optimizer.h.
        states: The inputs that its outputs replace, in this order; absent ones are skipped.
        gradient: The input that is the gradient.
        parameters: The inputs with one element each.
    """

    optimizer: int
    states: tuple[int, ...]
    gradient: int
    parameters: tuple[int, ...]


OPTIMIZER_RULES = {
    "Sgd": OptimizerRule(0, (0,), 1, (2,)),
    "Momentum": OptimizerRule(1, (0, 2), 1, (3,)),
    "Adam": OptimizerRule(2, (0, 2, 3, 7), 1, (4, 5, 6)),
}
ADD_TO_STATE = 3
FILL_STATE = 4


class _RemovableUpdate(NamedTuple):
    """An update that can be taken out of the model, for the engine to do after the run.

    Attributes:
        optimizer: The id of the optimizer, ``ADD_TO_STATE`` or ``FILL_STATE``.
        attributes: The attributes of the optimizer.
        states: The indices of the states that the update writes.
        gradient: The gradient, or the added value; ``None`` for ``FILL_STATE``.
        parameters: The inputs of the update with one element each, such as a learning rate.
    """

    optimizer: int
    attributes: list[float]
    states: list[int]
    gradient: Output | None
    parameters: list[Output]


def update_in_place(draft: Draft, num_inputs: int, num_outputs: int) -> None:
    """Takes optimizer updates out of a finished model.

    Args:
        draft: The model, and the inputs that feed its parameters.
        num_inputs: The number of the subgraph's inputs; states follow.
        num_outputs: The number of the model's results that are outputs; the others are new values
            of states.
    """
    if draft.chunks > 1:
        return
    feeds = {
        parameter.get_name(): position
        for parameter, position in zip(draft.model.get_parameters(), draft.positions)
    }
    values = [result.input_value(0) for result in draft.model.get_results()][num_outputs:]
    finder = _Finder(Readers(draft.model), feeds, num_inputs, values)
    found = finder.updates(draft.model)
    if not found:
        return
    # The updates are sorted by their results: nGraph computes results in their order, so each
    # gradient is read early, and not all of them at the end.
    found.sort(key=lambda update: max(update.states))
    sources = _Sources(draft, num_inputs, num_outputs, feeds, found)
    draft.updates = [_update(update, sources, finder.readers) for update in found]
    sources.apply()


class _Finder:
    """Finds the updates that can be taken out.

    Args:
        readers: The readers of the model's outputs.
        feeds: The index of the subgraph input that feeds each parameter of the model, by name.
        num_inputs: The number of the subgraph's inputs; states follow.
        values: The new value of each state.
    """

    def __init__(
        self, readers: Readers, feeds: dict[str, int], num_inputs: int, values: Sequence[Output]
    ) -> None:
        self.readers = readers
        self._feeds = feeds
        self._num_inputs = num_inputs
        self._values = values

    def updates(self, model: Model) -> list[_RemovableUpdate]:
        """All updates that the core can do after a run, instead of nodes of the model."""
        nodes = model.get_ordered_ops()
        values = {
            self._feeds[node.get_name()] - self._num_inputs: node.output(0)
            for node in nodes
            if node.get_name() in self._feeds
        }
        found = [
            update for node in nodes for update in [self._update_of(node)] if update is not None
        ]
        for state, value in enumerate(self._values):
            # A state that the model does not read is skipped: the model does not know the state's
            # size.
            update = self._state_change(state, value, values[state]) if state in values else None
            if update is not None:
                found.append(update)
        return found

    def _update_of(self, node: Node) -> _RemovableUpdate | None:
        """The optimizer update that ``node`` computes, if it can be taken out of the model.

        ``None`` for other nodes.
        """
        rule = OPTIMIZER_RULES.get(node.get_type_name())
        if rule is None:
            return None
        states = self._states_of(node, rule)
        if states is None:
            return None
        return _RemovableUpdate(
            rule.optimizer,
            [float(value) for value in node.get_attributes().values()],
            states,
            node.input_value(rule.gradient),
            [node.input_value(index) for index in rule.parameters],
        )

    def _states_of(self, node: Node, rule: OptimizerRule) -> list[int] | None:
        """The indices of the states that an update writes; ``None`` if it has to stay in the model.

        A removable update reads the states unchanged, and only the states' new values read it.
        """
        found = []
        inputs = node.get_input_size()
        for output, index in zip(node.outputs(), [i for i in rule.states if i < inputs]):
            name = node.input_value(index).get_node().get_name()
            state = self._feeds.get(name, -1) - self._num_inputs
            if not 0 <= state < len(self._values) or key_of(self._values[state]) != key_of(output):
                return None
            if len(self.readers.of(output)) != 1:
                return None
            found.append(state)
        return found

    def _state_change(self, state: int, value: Output, old: Output) -> _RemovableUpdate | None:
        """The update by which a state gets its new ``value``: a sum with the state, or a fill."""
        if not have_same_shape(value, old):
            return None
        fill = _uniform_value(value)
        if fill is not None:
            return _RemovableUpdate(FILL_STATE, [fill], [state], None, [])
        if value.get_node().get_type_name() != "Add" or len(self.readers.of(value)) != 1:
            return None
        left, right = value.get_node().input_values()
        for term, added in ((left, right), (right, left)):
            if key_of(term) == key_of(old) and have_same_shape(added, value):
                return _RemovableUpdate(ADD_TO_STATE, [], [state], added, [])
        return None


def _uniform_value(output: Output) -> float | None:
    """The value that all elements of a float constant have, bit by bit; ``None`` for others."""
    node = output.get_node()
    if node.get_type_name() == "Broadcast":
        return _uniform_value(node.input_value(0))
    if node.get_type_name() != "Constant" or output.get_element_type() != Type.f32:
        return None
    bits = node.get_data().reshape(-1).view(np.uint32)
    if bits.size == 0 or (bits != bits[0]).any():
        return None
    return float(bits[:1].view(np.float32)[0])


def _update(update: _RemovableUpdate, sources: _Sources, readers: Readers) -> Update:
    terms: list[Output] = []
    factors: list[Output] = []
    if update.gradient is not None:
        terms, factors = gradient_sum(update.gradient, readers, sources.is_interval_input)
    return Update(
        update.optimizer,
        update.attributes,
        update.states,
        [sources.of(term) for term in terms],
        [sources.of(factor) for factor in factors],
        [sources.of(parameter) for parameter in update.parameters],
    )


class _Sources:
    """Finds the operands of updates: inputs of the subgraph, or results added to the model."""

    def __init__(
        self,
        draft: Draft,
        num_inputs: int,
        num_outputs: int,
        feeds: dict[str, int],
        found: Sequence[_RemovableUpdate],
    ) -> None:
        self._draft = draft
        self._feeds = feeds
        # The states that updates cannot read as operands, since another update overwrites them.
        # States that are filled with a constant can be operands: fills run after every read.
        overwritten = {
            state for update in found for state in update.states if update.optimizer != FILL_STATE
        }
        self._overwritten = {num_inputs + state for state in overwritten}
        self._num_interval_inputs = num_inputs + len(draft.model.get_results()) - num_outputs
        written = {state for update in found for state in update.states}
        self._removed_results = [
            result
            for state, result in enumerate(draft.model.get_results()[num_outputs:])
            if state in written
        ]
        # The results that updates can read as operands: only outputs, and not new values of states,
        # since a run may exchange the buffers of a state before an update reads it.
        self._results: dict[Key, int] = {
            key_of(result.input_value(0)): index
            for index, result in enumerate(draft.model.get_results()[:num_outputs])
        }
        self._next = len(draft.model.get_results()) - len(written)
        self._added: list[Node] = []

    def is_interval_input(self, output: Output) -> bool:
        """Whether ``output`` is an input of the subgraph whose memory no update writes."""
        position = self._feeds.get(output.get_node().get_name(), self._num_interval_inputs)
        return position < self._num_interval_inputs and position not in self._overwritten

    def of(self, output: Output) -> int:
        """The index by which an :class:`Update` refers to ``output``.

        An index of an input, or -1 - i for result i of the model.
        """
        if self.is_interval_input(output):
            return self._feeds[output.get_node().get_name()]
        key = key_of(output)
        if key not in self._results:
            self._results[key] = self._next
            self._next += 1
            self._added.append(opset15.result(self._draft.builder.computed(output)))
        return -1 - self._results[key]

    def apply(self) -> None:
        """Removes the updates from the model, and makes their operands results of the model."""
        model = self._draft.model
        for result in self._removed_results:
            model.remove_result(result)
        model.add_results(self._added)
        _remove_unread_parameters(model, self._draft.positions)
        model.validate_nodes_and_infer_types()


def _remove_unread_parameters(model: Model, positions: list[int]) -> None:
    read = {
        source.get_node().get_name()
        for node in model.get_ordered_ops()
        for source in node.input_values()
    }
    for index, parameter in reversed(list(enumerate(model.get_parameters()))):
        if parameter.get_name() not in read:
            model.remove_parameter(parameter)
            del positions[index]
