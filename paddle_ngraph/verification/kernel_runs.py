"""Runs of kernels outside of subgraphs: packed recurrent layers, and calls of dynamic optimizers.

Each is recorded as a graph of Paddle's operators, as runs of subgraphs are, and runs again by the
same kernel of the core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import FallbackForm, Graph, Op, TensorSpec
from paddle_ngraph.mkl_packed.layers import OPERATORS
from paddle_ngraph.paddle_private.names import (
    dtype_of,
    is_initialized,
    operators,
    run_custom_operator,
)
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.partitioning.analysis.block_view import dtype_name
from paddle_ngraph.verification.comparison import SubgraphRun
from paddle_ngraph.verification.evaluation import Noise, tensor_of

Operands = Mapping[str, list[Tensor]]
Attributes = Mapping[str, Any]


@contextmanager
def _dynamic_mode(uses_kernels: bool) -> Iterator[None]:
    """Dynamic mode, with or without the kernels of the core."""
    is_static, before = not paddle.in_dynamic_mode(), flags.get("use_ngraph")
    if is_static:
        paddle.disable_static()
    flags.set("use_ngraph", uses_kernels)
    try:
        yield
    finally:
        flags.set("use_ngraph", before)
        if is_static:
            paddle.enable_static()


def _eager(tensor: Tensor) -> Any:
    return paddle.to_tensor(np.array(tensor))


def _owned(tensor: Any) -> Tensor:
    """The contents of a tensor of dynamic mode, in memory of their own."""
    array = tensor.numpy()
    return tensor_of(array, array.dtype.name)


def kind_of(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return dtype_name(dtype_of(tensor)), tuple(tensor.shape())


@dataclass(frozen=True)
class PackedRun(SubgraphRun):
    """A run of a recurrent layer with packed weights, or of its gradient.

    Paddle's ``rnn`` computes the same from the same operands. The gradient of a packed layer reads
    values that only a packed layer saves, so both sides compute the layer, too.
    """

    kernel: ClassVar[str] = "packed layer"

    @staticmethod
    def require(graph: Graph) -> None:
        """Checks that a graph from a file is one of a packed layer.

        Raises:
            NgraphError: It is another one.
        """
        found = None
        if graph.ops and set(graph.ops[0].inputs) >= {"x", "pre_state", "weight_list"}:
            known = {**graph.ops[-1].inputs, **graph.ops[0].inputs}
            names = [name for name in _OPERANDS if name in known]
            attributes = {n: v for n, v in graph.ops[0].attrs.items() if n != "input_size"}
            is_known = set(attributes) == set(_ATTRIBUTES)
            num_states = 2 if attributes.get("mode") == "LSTM" else 1
            is_known &= len(known["pre_state"]) == num_states  # Paddle reads them unchecked
            if is_known and attributes["mode"] in OPERATORS and _is_layer_input(known["x"]):
                kinds = {name: [(s.dtype, s.shape) for s in known[name]] for name in names}
                found = layer_graph(attributes, kinds)
        if found is None or found.to_string() != graph.to_string():
            raise NgraphError("its graph is none of a recurrent layer with packed weights")

    @property
    def description(self) -> str:
        """The kernel in a sentence."""
        op = self.graph.ops[-1]
        return f"{op.type}, a recurrent layer with packed weights ({op.attr('mode')})"

    def by_new_function(self) -> tuple[list[Tensor], Any]:
        """Runs the packed layer, and its gradient; as that of :class:`SubgraphRun`."""
        op, tensors = self.graph.ops[0], iter(self.given)
        is_gradient = len(self.graph.ops) > 1
        with self.replaying(), _dynamic_mode(True):
            found = {
                name: [_eager(next(tensors)) for _ in self.graph.ops[-1].inputs[name]]
                for name in _OPERANDS
                if name in self.graph.ops[-1].inputs
            }
            inputs = [*found["x"], *found["pre_state"], *found["weight_list"]]
            for each in inputs:
                each.stop_gradient = not is_gradient
            results = run_custom_operator(
                OPERATORS[op.attr("mode")],
                inputs,
                next(iter(found["sequence_length"]), None),
                *(op.attr(name) for name in _ATTRIBUTES),
            )[: 1 + len(found["pre_state"])]
            stream = _core.RandomState()
            if is_gradient:
                given = [*found["out_grad"], *found["state_grad"]]
                results = paddle.grad(results, inputs, given)
            return [_owned(each) for each in results], stream


def _is_layer_input(x: Sequence[TensorSpec]) -> bool:
    """Whether the input of a layer is one tensor of steps, batch and features."""
    return len(x) == 1 and len(x[0].shape) == 3


_ATTRIBUTES = (
    *("mode", "hidden_size", "num_layers", "is_bidirec", "dropout_prob", "seed"),
    "is_test",
)
# The operands in the order of the inputs of a graph.
_OPERANDS = ("x", "pre_state", "weight_list", "sequence_length", "state_grad", "out_grad")


def layer_graph(
    attributes: Attributes, kinds: Mapping[str, Sequence[tuple[str, tuple[int, ...]]]]
) -> Graph:
    """The graph of Paddle's operators for a packed layer, or for its gradient.

    Args:
        attributes: Those of the layer.
        kinds: Dtypes and shapes of its operands, by name; a gradient has ``out_grad``.
    """
    specs: list[TensorSpec] = []

    def added(kinds: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[TensorSpec, ...]:
        found = [TensorSpec(len(specs) + n, *kind) for n, kind in enumerate(kinds)]
        specs.extend(found)
        return tuple(found)

    def op(type: str, inputs: dict[str, Any], results: dict[str, Any]) -> Op:
        all_attributes = {**attributes, "input_size": kinds["x"][0][1][2]}
        lists = frozenset({"pre_state", "weight_list", "state_grad"})
        made = frozenset({"state", "pre_state_grad", "weight_list_grad"})
        form = FallbackForm({}, (lists & set(inputs), made & set(results)), {}, results)
        return Op(type, 0, inputs, results, all_attributes, form=form)

    inputs = {name: added(kinds[name]) for name in _OPERANDS if name in kinds}
    given = list(specs)
    gradients: dict[str, Any] = {
        name: inputs.pop(name) for name in ("out_grad", "state_grad") if name in inputs
    }
    width = attributes["hidden_size"] * (2 if attributes["is_bidirec"] else 1)
    results = {
        "out": added([("float32", (*inputs["x"][0].shape[:2], width))]),
        "dropout_state_out": added([("uint8", (-1,))]),
        "state": added([(s.dtype, s.shape) for s in inputs["pre_state"]]),
        "reserve": added([("float32", (-1,))]),
    }
    ops = [op("pd_op.rnn", {**inputs, "dropout_state_in": ()}, results)]
    outputs = [*results["out"], *results["state"]]
    if gradients:
        saved = {name: results[name] for name in ("out", "dropout_state_out", "reserve")}
        named = {
            f"{name}_grad": added([(s.dtype, s.shape) for s in inputs[name]])
            for name in ("x", "pre_state", "weight_list")
        }
        ops.append(op("pd_op.rnn_grad", {**inputs, **saved, **gradients}, named))
        outputs = [spec for found in named.values() for spec in found]
    return Graph(ops, given, [], outputs, [])


# The functions that the core computes for optimizers, with the arguments of the calls that it
# computes (core/paddle/optimizer_calls.cc): (f) a float32 tensor of the shape of the first one, (1)
# one of one element, (-) None, (m) the largest moments of AMSGrad, (n) a number, (i) a whole
# number, (b) a bool, (0) False, (t) a text. Paddle's kernels check neither counts nor most shapes.
_CALLS = {
    "sgd_": "f1f-0",
    "momentum_": "fff1-nbtn0n",
    "adam_": "ff1ffm11--nnnbi00b",
    "adamw_": "ff1ffm11--nnnnnbbi00b",
    "squared_l2_norm": "f",
    "multiply": "f1",
    "multiply_": "f1",
}
_PLAIN: dict[str, tuple[type, ...]] = {
    **{"n": (int, float), "i": (int,), "b": (bool,), "0": (bool,), "t": (str,), "-": (type(None),)}
}
_RESULT, _ARGUMENTS = "out", "arguments"


@dataclass(frozen=True)
class CallRun(SubgraphRun):
    """A call of a C function of Paddle in dynamic mode, which the core computes.

    The graph has one operator, with the tensors among the arguments as inputs, whose ids are the
    positions, and the others as attributes by position.

    Attributes:
        is_compared: Whether the call is compared while it runs: then the core computes none. A
            judgement that pauses may be finished later, in another mode.
    """

    kernel: ClassVar[str] = "call"
    is_compared: bool = field(default=False, repr=False)

    @staticmethod
    def of_call(name: str, arguments: Sequence[Any], result: Any) -> tuple[CallRun, list[Tensor]]:
        """The run of a call, and its results by the core.

        Args:
            name: The function.
            arguments: Its arguments before the call.
            result: The result; of a call in place, tensors among the arguments.

        Raises:
            NgraphError: An argument is of another type than a dense tensor or a plain value.
        """
        inputs, given, values = [], [], {}
        for position, argument in enumerate(arguments):
            if _is_dense(argument):
                given.append(_owned(argument))
                inputs.append(TensorSpec(position, *kind_of(given[-1])))
            elif argument is None or isinstance(argument, (bool, int, float, str)):
                values[str(position)] = argument
            else:
                raise NgraphError(f"a call of {name} with a {type(argument).__name__}")
        found = _results(result)
        outputs = [
            TensorSpec(len(arguments) + position, *kind_of(tensor))
            for position, tensor in found.items()
        ]
        op = Op(
            f"pd_op.{name}",
            0,
            {_ARGUMENTS: tuple(inputs)},
            {_RESULT: tuple(outputs)},
            values,
            form=FallbackForm(),
        )
        graph = Graph([op], inputs, [], outputs, [])
        run = CallRun(graph, given, _core.RandomState(), is_compared=True)
        return run, list(found.values())

    @staticmethod
    def require(graph: Graph) -> None:
        """Checks that a graph from a file is one of a call; as :meth:`PackedRun.require`."""
        error = NgraphError("its graph is none of a call of an optimizer")
        name = graph.ops[0].type.removeprefix("pd_op.") if len(graph.ops) == 1 else ""
        if name not in _CALLS or graph.states:
            raise error
        (op,) = graph.ops
        tensors = {spec.id: spec for spec in graph.inputs}
        values = {_position(name): value for name, value in op.attrs.items()}
        positions, kinds = sorted([*(spec.id for spec in graph.inputs), *values]), _CALLS[name]
        if (
            positions != list(range(len(kinds)))
            or op.inputs != {_ARGUMENTS: tuple(graph.inputs)}
            or not all(spec.id >= len(kinds) for spec in graph.outputs)
        ):
            raise error
        is_amsgrad = values.get(len(kinds) - 1) is True
        for position, kind in enumerate(kinds):
            expected = kind if kind != "m" else "f" if is_amsgrad else "-"
            if expected not in _PLAIN:
                is_fit = _is_operand(tensors.get(position), expected, tensors.get(0))
            else:
                value = values.get(position, error)
                is_fit = type(value) in _PLAIN[expected] and (expected != "0" or value is False)
            if not is_fit:
                raise NgraphError(f"argument {position} is none of a call of {name} by the core")

    @property
    def description(self) -> str:
        """The kernel in a sentence."""
        return f"{self.graph.ops[0].type}, a call of dynamic mode"

    @property
    def is_stochastic(self) -> bool:
        """Whether an operator samples random numbers."""
        return False

    def natively(self) -> tuple[list[Tensor], Any]:
        """Calls Paddle's function; as that of :class:`SubgraphRun`."""
        if self.is_compared:
            return self._called(), self.random
        with _dynamic_mode(False):
            return self._called(), self.random

    def by_new_function(self) -> tuple[list[Tensor], Any]:
        """Calls the function, which the core computes; as that of :class:`SubgraphRun`."""
        with _dynamic_mode(True):
            return self._called(), self.random

    def evaluated(self, noise: Noise | None) -> dict[int, np.ndarray]:
        """The results in float64."""
        is_ready = self.is_compared and paddle.in_dynamic_mode()
        with nullcontext() if is_ready else _dynamic_mode(False):
            found = self._called("float64", noise)
        arrays = {spec.id: np.array(each) for spec, each in zip(self.graph.outputs, found)}
        if noise is None:
            return arrays
        return {number: noise.added(array) for number, array in arrays.items()}

    def _called(self, dtype: str = "float32", noise: Noise | None = None) -> list[Tensor]:
        (op,) = self.graph.ops
        arguments = {_position(name): value for name, value in op.attrs.items()}
        for spec, tensor in zip(self.graph.inputs, self.given):
            array = np.array(tensor)
            if array.dtype.kind == "f":
                array = array.astype(dtype)
                array = array if noise is None else noise.added(array)
            arguments[spec.id] = paddle.to_tensor(array)
        function = getattr(operators, op.type.removeprefix("pd_op."))
        found = _results(function(*(arguments[n] for n in range(len(arguments)))))
        return [found[spec.id - len(arguments)] for spec in self.graph.outputs]


def _position(name: str) -> int:
    return int(name) if name.isdecimal() and len(name) < 4 else -1


def _is_operand(spec: TensorSpec | None, kind: str, first: TensorSpec | None) -> bool:
    """Whether an argument is a tensor of a kind in ``_CALLS``, given the first argument."""
    if spec is None or first is None or spec.dtype != "float32" or min(spec.shape, default=1) < 1:
        return False
    return math.prod(spec.shape) == 1 if kind == "1" else spec.shape == first.shape


def _is_dense(value: Any) -> bool:
    return isinstance(value, paddle.Tensor) and is_initialized(cast("Tensor", value.get_tensor()))


def _results(result: Any) -> dict[int, Tensor]:
    """The tensors among the results of a call, by position."""
    listed = result if isinstance(result, (tuple, list)) else [result]
    return {number: _owned(value) for number, value in enumerate(listed) if _is_dense(value)}


def given_or_zeros(gradient: list[Tensor] | None, like: Tensor) -> Tensor:
    """The gradient of a result; zeros if nothing reads the result."""
    return gradient[0] if gradient else tensor_of(np.zeros(like.shape()), "float32")


KERNELS: dict[str, type[PackedRun] | type[CallRun]] = {
    PackedRun.kernel: PackedRun,
    CallRun.kernel: CallRun,
}
