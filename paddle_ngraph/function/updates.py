"""Steps of optimizers that write where parameters and states are, when the function is done.

As a node of the model, a step makes new parameters and states beside the old ones: all of them are
there twice, and the step writes to memory that it has not read. So the last pass of a build takes
steps out of the model. Their gradients become results, and the engine takes the steps after the
run (core/ov/updates.h), in place. By then everything in the function has read the old values, and
every check has passed; the model cannot read what a step writes. Steps that anything reads from
within the function stay nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from openvino import Model, Node, Output, opset15

from paddle_ngraph.function.fusion import Readers, gradient_sum
from paddle_ngraph.function.node_tools import Key, key_of

if TYPE_CHECKING:
    from paddle_ngraph.function.build import Draft


class Rule(NamedTuple):
    """What an optimizer's operator reads and writes.

    Attributes:
        number: Of the optimizer, as in core/ov/kernels/optimizer.h.
        states: The inputs that its outputs replace, in this order; those that are absent count not.
        gradient: The input that is the gradient.
        parameters: The inputs that are one number each.
    """

    number: int
    states: tuple[int, ...]
    gradient: int
    parameters: tuple[int, ...]


RULES = {
    "Sgd": Rule(0, (0,), 1, (2,)),
    "Momentum": Rule(1, (0, 2), 1, (3,)),
    "Adam": Rule(2, (0, 2, 3, 7), 1, (4, 5, 6)),
}


class Update(NamedTuple):
    """A step, as the engine takes it (core/ov/updates.h).

    What it reads is an input of the interval, ``n``, or a result of the model, ``-1 - n``.

    Attributes:
        optimizer: Its number.
        attributes: Its attributes, in their order.
        states: The states that it writes, the parameter first.
        gradients: What is added,
        factors: and multiplied by each of these, to be the gradient.
        parameters: Its numbers.
    """

    optimizer: int
    attributes: list[float]
    states: list[int]
    gradients: list[int]
    factors: list[int]
    parameters: list[int]


class _Found(NamedTuple):
    """A step in the model that can be taken out."""

    node: Node
    rule: Rule
    states: list[int]


def update_in_place(draft: Draft, num_inputs: int, num_outputs: int) -> None:
    """Takes the steps of optimizers out of a finished model.

    Args:
        draft: The model, and the inputs that feed its parameters.
        num_inputs: How many inputs the interval has; states follow.
        num_outputs: How many results of the model are outputs; the others are new values of states.
    """
    if draft.parts > 1:
        return
    readers = Readers(draft.model)
    feeds = {
        parameter.get_name(): position
        for parameter, position in zip(draft.model.get_parameters(), draft.positions)
    }
    values = [result.input_value(0) for result in draft.model.get_results()][num_outputs:]
    found = [
        _Found(node, rule, states)
        for node in draft.model.get_ordered_ops()
        for rule in [RULES.get(node.get_type_name())]
        if rule is not None
        for states in [_states_of(node, rule, readers, feeds, num_inputs, values)]
        if states is not None
    ]
    if not found:
        return
    # Results are computed in their order: a gradient when it is there, not all at the end.
    found.sort(key=lambda step: max(step.states))
    sources = _Sources(draft, num_inputs, num_outputs, feeds, found)
    draft.updates = [_update(step, sources, readers) for step in found]
    sources.finish()


def _states_of(
    node: Node,
    rule: Rule,
    readers: Readers,
    feeds: dict[str, int],
    num_inputs: int,
    values: Sequence[Output],
) -> list[int] | None:
    """The states that a step reads as they are, and whose new values nothing else reads."""
    found = []
    inputs = node.get_input_size()
    for output, place in zip(node.outputs(), [i for i in rule.states if i < inputs], strict=True):
        state = feeds.get(node.input_value(place).get_node().get_name(), -1) - num_inputs
        if not 0 <= state < len(values) or key_of(values[state]) != key_of(output):
            return None
        if len(readers.of(output)) != 1:
            return None
        found.append(state)
    return found


def _update(step: _Found, sources: _Sources, readers: Readers) -> Update:
    terms, factors = gradient_sum(
        step.node.input_value(step.rule.gradient), readers, sources.is_given
    )
    return Update(
        step.rule.number,
        [float(value) for value in step.node.get_attributes().values()],
        step.states,
        [sources.of(term) for term in terms],
        [sources.of(factor) for factor in factors],
        [sources.of(step.node.input_value(place)) for place in step.rule.parameters],
    )


class _Sources:
    """What steps read: what the interval is given, or more results of the model."""

    def __init__(
        self,
        draft: Draft,
        num_inputs: int,
        num_outputs: int,
        feeds: dict[str, int],
        found: Sequence[_Found],
    ) -> None:
        self._draft = draft
        self._num_inputs = num_inputs
        self._feeds = feeds
        written = {state for step in found for state in step.states}
        self._left_out = [
            result
            for state, result in enumerate(draft.model.get_results()[num_outputs:])
            if state in written
        ]
        # The new value of a state may be exchanged with the old one before it is read.
        self._results: dict[Key, int] = {
            key_of(result.input_value(0)): number
            for number, result in enumerate(draft.model.get_results()[:num_outputs])
        }
        self._next = len(draft.model.get_results()) - len(written)
        self._added: list[Node] = []

    def is_given(self, output: Output) -> bool:
        """Whether the interval is given it, as nothing that it writes."""
        position = self._feeds.get(output.get_node().get_name(), self._num_inputs)
        return position < self._num_inputs

    def of(self, output: Output) -> int:
        """The number of what an :class:`Update` reads."""
        if self.is_given(output):
            return self._feeds[output.get_node().get_name()]
        key = key_of(output)
        if key not in self._results:
            self._results[key] = self._next
            self._next += 1
            self._added.append(opset15.result(self._draft.bridge.computed(output)))
        return -1 - self._results[key]

    def finish(self) -> None:
        """Leaves the steps out of the model, and adds what they read."""
        model = self._draft.model
        for result in self._left_out:
            model.remove_result(result)
        model.add_results(self._added)
        _leave_out_unread(model, self._draft.positions)
        model.validate_nodes_and_infer_types()


def _leave_out_unread(model: Model, positions: list[int]) -> None:
    read = {
        source.get_node().get_name()
        for node in model.get_ordered_ops()
        for source in node.input_values()
    }
    for number, parameter in reversed(list(enumerate(model.get_parameters()))):
        if parameter.get_name() not in read:
            model.remove_parameter(parameter)
            del positions[number]
