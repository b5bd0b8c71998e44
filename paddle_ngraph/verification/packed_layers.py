"""Recurrent layers with packed weights, compared with Paddle's operators.

A packed layer is an operator of its own, and part of no subgraph. Paddle's ``rnn`` computes the
same from the same operands. The gradient of a packed layer reads values that only a packed layer
saves, so the reference computes both, ``rnn`` and ``rnn_grad``.
"""

from __future__ import annotations

from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.verification import checks
from paddle_ngraph.verification.bisection import Located
from paddle_ngraph.verification.kernel_runs import (
    Attributes,
    Operands,
    PackedRun,
    given_or_zeros,
    kind_of,
    layer_graph,
)

_streams: LRUCache[str, Any] = process_cache(
    __name__,
    "dropout_streams",
    "random generators before verified packed layers with dropout, for their gradients",
    key="digest of the dropout mask",
    bound=64,
)


def check_layer(
    attributes: Attributes, given: Operands, found: list[Tensor], random: Any, other_changes: int
) -> None:
    """Compares a run of a packed layer, or of its gradient. Called by the operator's kernel.

    Args:
        attributes: Those of the operator.
        given: Its operands by name.
        found: Its results: those of a layer end with saved state and the dropout mask.
        random: The random generator before the run.
        other_changes: Changes of the generator by other threads before the run, or -1.
    """
    checks.check(lambda: _check(attributes, given, found, random, other_changes))


def _check(
    attributes: Attributes, given: Operands, found: list[Tensor], random: Any, other_changes: int
) -> None:
    is_gradient = "out" in given
    layer = _Layer(attributes, given)
    subject = checks.subjects.get_or_create(layer.key, layer.subject)
    assert subject.graph is not None
    stream = layer.stream() if is_gradient else random
    run = PackedRun(subject.graph, layer.given, stream, subject.text)
    changes = None if is_gradient else other_changes
    if not is_gradient:
        *found, _, mask = found
        _streams.put(_core.digest_of(mask), random)
    located = Located(subject.graph.ops[-1], run.description)
    checks.judge(
        subject, run, found, lambda wrong: checks.Mismatch(wrong, located, run, found), changes
    )


class _Layer:
    """Paddle's operators for a packed layer, or for its gradient."""

    def __init__(self, attributes: Attributes, operands: Operands) -> None:
        self._attributes = attributes
        self._has_cell_state = attributes["mode"] == "LSTM"
        count = 3 if self._has_cell_state else 2
        x, *states = operands["inputs"][:count]
        self._operands: dict[str, list[Tensor]] = {
            "x": [x],
            "pre_state": states,
            "weight_list": operands["inputs"][count:],
            "sequence_length": operands.get("sequence_length", []),
        }
        self._mask = operands.get("mask", [])
        if "out" in operands:
            names = ["h_grad", "c_grad"][: len(states)]
            pairs = [(operands.get(name), state) for name, state in zip(names, states)]
            self._operands["state_grad"] = [given_or_zeros(*pair) for pair in pairs]
            gradient = operands.get("out_grad")
            self._operands["out_grad"] = [given_or_zeros(gradient, operands["out"][0])]

    @property
    def given(self) -> list[Tensor]:
        """The inputs of the graph."""
        return [tensor for tensors in self._operands.values() for tensor in tensors]

    @property
    def key(self) -> str:
        """A text that is equal for layers of one graph."""
        return f"packed layer {self._attributes} {self._kinds}"

    @property
    def _kinds(self) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
        return {name: list(map(kind_of, found)) for name, found in self._operands.items()}

    def stream(self) -> Any:
        """The random generator before the forward run of a gradient.

        Raises:
            NgraphError: The run was not verified, and has dropout.
        """
        found = _streams.get(_core.digest_of(self._mask[0])) if self._mask else None
        if found is None and self._attributes["dropout_prob"] > 0:
            raise NgraphError(
                "the gradient of a packed layer with dropout, whose forward run was not compared"
            )
        return found or _core.RandomState()

    def subject(self) -> checks.Subject:
        """The graph of Paddle's operators."""
        graph = layer_graph(self._attributes, self._kinds)
        return checks.Subject(graph, graph.to_string())
