"""Recurrent layers with packed weights, compared with Paddle's operators.

A packed layer is an operator of its own, and part of no subgraph. Paddle's ``rnn`` computes the
same from the same operands. The gradient of a packed layer reads values that only a packed layer
saves, so the reference computes both, ``rnn`` and ``rnn_grad``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import FallbackForm, Graph, Op, TensorSpec
from paddle_ngraph.paddle_private.names import dtype_of
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.partitioning.analysis.block_view import dtype_name
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.verification import checks
from paddle_ngraph.verification.bisection import Located
from paddle_ngraph.verification.comparison import SubgraphRun
from paddle_ngraph.verification.evaluation import tensor_of

Operands = Mapping[str, list[Tensor]]
Attributes = Mapping[str, Any]

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
    if is_gradient:
        run = SubgraphRun(subject.graph, layer.given, layer.stream(), subject.text)
        differences, _ = subject.differences(run, found)
    else:
        _streams.put(_core.digest_of(found[-1]), random)
        run = SubgraphRun(subject.graph, layer.given, random, subject.text)
        differences = checks.differences_of(subject, run, found[:-2], other_changes)
    op = subject.graph.ops[-1]
    text = f"{op.type}, a recurrent layer with packed weights ({attributes['mode']})"
    checks.record(subject, differences, lambda: checks.Mismatch(differences, Located(op, text)))


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
            self._operands["state_grad"] = [_given_or_zeros(*pair) for pair in pairs]
            gradient = operands.get("out_grad")
            self._operands["out_grad"] = [_given_or_zeros(gradient, operands["out"][0])]

    @property
    def given(self) -> list[Tensor]:
        """The inputs of the graph."""
        return [tensor for tensors in self._operands.values() for tensor in tensors]

    @property
    def key(self) -> str:
        """A text that is equal for layers of one graph."""
        shapes = {name: [_kind(each) for each in found] for name, found in self._operands.items()}
        return f"packed layer {self._attributes} {shapes}"

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
        specs: list[TensorSpec] = []

        def added(kinds: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[TensorSpec, ...]:
            found = [TensorSpec(len(specs) + n, *kind) for n, kind in enumerate(kinds)]
            specs.extend(found)
            return tuple(found)

        inputs = {name: added(list(map(_kind, each))) for name, each in self._operands.items()}
        given = list(specs)
        gradients: dict[str, Any] = {
            name: inputs.pop(name) for name in ("out_grad", "state_grad") if name in inputs
        }
        width = self._attributes["hidden_size"] * (2 if self._attributes["is_bidirec"] else 1)
        results = {
            "out": added([("float32", (*inputs["x"][0].shape[:2], width))]),
            "dropout_state_out": added([("uint8", (-1,))]),
            "state": added([(s.dtype, s.shape) for s in inputs["pre_state"]]),
            "reserve": added([("float32", (-1,))]),
        }
        ops = [self._op("pd_op.rnn", {**inputs, "dropout_state_in": ()}, results)]
        outputs = [*results["out"], *results["state"]]
        if gradients:
            saved = {name: results[name] for name in ("out", "dropout_state_out", "reserve")}
            named = {
                f"{name}_grad": added([(s.dtype, s.shape) for s in inputs[name]])
                for name in ("x", "pre_state", "weight_list")
            }
            ops.append(self._op("pd_op.rnn_grad", {**inputs, **saved, **gradients}, named))
            outputs = [spec for found in named.values() for spec in found]
        graph = Graph(ops, given, [], outputs, [])
        return checks.Subject(graph, graph.to_string())

    def _op(self, type: str, inputs: dict[str, Any], results: dict[str, Any]) -> Op:
        attributes = {**self._attributes, "input_size": self._operands["x"][0].shape()[2]}
        lists = frozenset({"pre_state", "weight_list", "state_grad"})
        made = frozenset({"state", "pre_state_grad", "weight_list_grad"})
        form = FallbackForm({}, (lists & set(inputs), made & set(results)), {}, results)
        return Op(type, 0, inputs, results, attributes, form=form)


def _kind(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return dtype_name(dtype_of(tensor)), tuple(tensor.shape())


def _given_or_zeros(gradient: list[Tensor] | None, like: Tensor) -> Tensor:
    """The gradient of a result; zeros if nothing reads the result."""
    return gradient[0] if gradient else tensor_of(np.zeros(like.shape()), "float32")
