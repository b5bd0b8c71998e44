"""The graph string: a subgraph of Paddle operators, serialized.

The first line is read by the C++ engine::

    ngraph_engine <format> <sha256 of the body> <inputs> <states> <outputs> <value inputs> <weights>
        <dtypes> <eager weights> <trains> <threads> <runs at once> <device>

``<value inputs>`` and ``<weights>`` are lists of indices, ``-`` if empty; ``<dtypes>`` are those
of the inputs and states: a run in which one has another dtype falls back to Paddle;
``<eager weights>`` and ``<trains>`` are 0 or 1; ``<threads>`` is the limit for each of
``<runs at once>``, 0: none; functions are compiled for ``<device>``: ``CPU`` for any group of
cores, or ``GPU``.

The body is JSON: the tensors, the operators in program order, and the ids of inputs and outputs.
The string suffices to rebuild the function, and the operators themselves, so that Paddle can run
the subgraph (:mod:`paddle_ngraph.partitioning.fallback`). The string is never executed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paddle_ngraph.errors import NO_OPERATOR, NgraphError
from paddle_ngraph.ir import schema

MAGIC = "ngraph_engine"
FORMAT = 8

# Integer tensors of at most this many elements with known values are folded in 64 bits while a
# function is built: shape arithmetic.
MAX_FOLDED_ELEMENTS = 1024

BFLOAT16 = "bfloat16"

# Name of the CPU as a device, with all cores that the engine may use: functions run there unless an
# execution plan (plan/execution_plan.py) has placed their operators on another device.
CPU = "CPU"
# Devices of OpenVINO other than the CPU: GPU, GPU.1, NPU.
_ACCELERATOR = re.compile(r"(?!CPU)[A-Z][A-Z0-9_]*(\.\w+)*")

# Types of stochastic operators, in place or not.
_RANDOM = frozenset(
    {
        "pd_op.bernoulli",
        "pd_op.binomial",
        "pd_op.class_center_sample",
        "pd_op.dirichlet",
        "pd_op.dpsgd",
        "pd_op.dropout",
        "pd_op.exponential",
        "pd_op.gaussian",
        "pd_op.gaussian_inplace",
        "pd_op.graph_khop_sampler",
        "pd_op.graph_sample_neighbors",
        "pd_op.gumbel_softmax",
        "pd_op.multinomial",
        "pd_op.nce",
        "pd_op.poisson",
        "pd_op.randint",
        "pd_op.random",
        "pd_op.randperm",
        "pd_op.rnn",
        "pd_op.rrelu",
        "pd_op.seed",
        "pd_op.shuffle_batch",
        "pd_op.standard_gamma",
        "pd_op.tdm_sampler",
        "pd_op.top_p_sampling",
        "pd_op.truncated_gaussian_random",
        "pd_op.uniform",
        "pd_op.uniform_inplace",
        "pd_op.uniform_random_batch_size_like",
        "pd_op.weighted_sample_neighbors",
    }
)


def is_accelerator(device: str) -> bool:
    """Returns whether a name is that of a device of OpenVINO other than the CPU."""
    return _ACCELERATOR.fullmatch(device) is not None


def compiled_for(device: str) -> str:
    """Returns the device to compile functions for: a GPU or NPU by name, or else ``CPU``."""
    return device if is_accelerator(device) else CPU


def is_gradient(op_type: str) -> bool:
    """Returns whether operators of a type compute gradients."""
    return op_type.rstrip("_").endswith("_grad")


def is_random(type: str) -> bool:
    """Whether operators of this type draw random numbers."""
    return type.removesuffix("_") in _RANDOM


def function_type(op_type: str) -> str:
    """Returns the type of a function, given that of its in-place variant or a gradient."""
    return re.sub(r"((_double|_triple|_grad)?_grad)?_*$", "", op_type)


def plain_type(op_type: str) -> str:
    """Returns a type without dialect and the mark of in-place variants, as in Paddle's profiler."""
    return op_type.rpartition(".")[2].rstrip("_")


def device_of(text: str) -> str:
    """Returns :attr:`Graph.compiled_for` of a graph string, from its header."""
    return text.partition("\n")[0].rpartition(" ")[2]


@dataclass(frozen=True)
class TensorSpec:
    """A variable of the subgraph.

    Attributes:
        id: The tensor's id in the graph.
        dtype: Paddle's name of the dtype, e.g. ``"float32"``.
        shape: The dimensions; -1 for dynamic ones.
    """

    id: int
    dtype: str
    shape: tuple[int, ...]


def _as_float32(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype="float32") if spec.dtype == BFLOAT16 else spec


@dataclass
class FallbackForm:
    """Properties of Paddle's operator that only the fallback program needs, not a converter.

    Attributes:
        attribute_types: Paddle's types of attributes whose values do not determine the type, by
            name: ``attributes_of`` of the core lists them.
        lists: Names of the inputs, and of the outputs, that are lists of tensors, of any length.
        unused: Inputs that the converter does not read, computed by the same graph.
        results: The tensors of every output, including those that are ``None`` to converters.
    """

    attribute_types: dict[str, str] = field(default_factory=dict)
    lists: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    unused: dict[str, tuple[TensorSpec, ...]] = field(default_factory=dict)
    results: dict[str, tuple[TensorSpec, ...]] = field(default_factory=dict)


@dataclass
class Op:
    """One Paddle operator, as validators and converters see it.

    Attributes:
        type: The operator's name, e.g. ``"pd_op.matmul"``.
        index: The index in the operator list of the operator's block.
        inputs: Tensors by Paddle's input name; an absent optional input is an empty tuple.
        outputs: Tensors by Paddle's output name; an unused output is ``None``, an absent optional
            output (the gradient of a tensor that is not trained) an empty tuple.
        attrs: Attributes as plain Python values; a dtype is its name.
        constants: Values of inputs that are known when the program is built, by input name.
        form: Properties that Paddle needs to run the operator itself; ``None`` if it cannot.
        blocks: Bodies of a loop or branch: graphs without states, with separate tensor ids. A body
            reads the tensors of the inputs ``"inputs"`` (initial values of a loop) and
            ``"captured"`` (invariant inputs). Its outputs are the yielded values; those of a loop
            begin with the condition for another iteration.
        checked: Whether a run is rejected in which its int64 outputs overflow int32.
        called: Whether functions call Paddle's kernel for it, although its type has a converter.
        id: Its index in :meth:`Graph.all_ops`, by which errors name it; not part of the graph
            string.
    """

    type: str
    index: int
    inputs: dict[str, tuple[TensorSpec, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[TensorSpec | None, ...]] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, list[float] | list[int]] = field(default_factory=dict)
    form: FallbackForm | None = None
    blocks: list[Graph] = field(default_factory=list)
    checked: bool = False
    called: bool = False
    id: int = field(default=NO_OPERATOR, compare=False)

    def attr(self, name: str, default: Any = None) -> Any:
        """Returns the operator's attribute ``name``; ``default`` if it has no such attribute."""
        return self.attrs.get(name, default)

    def has_input(self, name: str) -> bool:
        """Returns whether the optional input ``name`` is given."""
        return bool(self.inputs.get(name))

    def has_output(self, name: str) -> bool:
        """Returns whether the program uses the output ``name``."""
        return any(spec is not None for spec in self.outputs.get(name, ()))

    def input(self, name: str) -> TensorSpec:
        """Returns the single tensor of input ``name``.

        Raises:
            NgraphError: The input has no or several tensors.
        """
        specs = self.inputs.get(name, ())
        if len(specs) != 1:
            raise NgraphError(f"{self.type}: input '{name}' holds {len(specs)} tensors, not one")
        return specs[0]

    def output(self, name: str) -> TensorSpec:
        """Returns the single tensor of output ``name``.

        Raises:
            NgraphError: The output is unused, absent, or has several tensors.
        """
        specs = self.outputs.get(name, ())
        if len(specs) != 1 or specs[0] is None:
            raise NgraphError(f"{self.type}: output '{name}' is not a single tensor")
        return specs[0]

    def input_specs(self) -> Iterator[TensorSpec]:
        """Yields the tensors of all inputs of the operator."""
        for specs in self.inputs.values():
            yield from specs

    def output_specs(self) -> Iterator[TensorSpec]:
        """Yields every output tensor that the program uses."""
        for specs in self.outputs.values():
            yield from (spec for spec in specs if spec is not None)

    def has_bfloat16(self) -> bool:
        """Returns whether an input or output has dtype bfloat16."""
        specs = (*self.input_specs(), *self.output_specs())
        return any(spec.dtype == BFLOAT16 for spec in specs)

    def in_float32(self) -> Op:
        """Returns the operator with float32 in place of bfloat16, as converted (bfloat16.py)."""
        if not self.has_bfloat16() and BFLOAT16 not in self.attrs.values():
            return self
        attrs = {n: "float32" if v == BFLOAT16 else v for n, v in self.attrs.items()}
        return replace(self._with_tensors(_as_float32), attrs=attrs)

    def with_tensor_ids(self, tensor_ids: Mapping[int, int]) -> Op:
        """Returns the operator with other tensor ids, and without its fallback form."""
        other = self._with_tensors(lambda spec: replace(spec, id=tensor_ids[spec.id]))
        return replace(other, form=None)

    def _with_tensors(self, change: Callable[[TensorSpec], TensorSpec]) -> Op:
        """Returns the operator with other inputs and outputs."""
        return replace(
            self,
            inputs={name: tuple(map(change, specs)) for name, specs in self.inputs.items()},
            outputs={
                name: tuple(None if spec is None else change(spec) for spec in specs)
                for name, specs in self.outputs.items()
            },
        )

    def outputs_used(self) -> list[TensorSpec]:
        """Returns every output tensor that the program uses, as a list."""
        return list(self.output_specs())


@dataclass
class Graph:
    """A subgraph: its operators, inputs and outputs.

    Attributes:
        ops: Operators, in program order.
        inputs: Tensors that are only read.
        states: Tensors that are read and updated in place.
        outputs: New tensors, with readers outside.
        state_outputs: The new value of each state.
        value_inputs: Indices in ``inputs + states`` of tensors whose elements (shapes, axes) are
            read when a function is built.
        weights: Indices in ``inputs`` of parameters that only other programs write: constants of a
            function for as long as they do not change.
        eager_weights: Whether tensors of dynamic mode hold weights, too, while the operator runs.
        adapts: Whether Paddle chooses kernels by the actual dtypes, as it does in ProgramDesc
            programs, and not by those that the program declares.
        gradients: Types of operators in another program that compute gradients for this one.
        threads: The maximum number of threads for a run; 0: as the flags specify.
        runs_at_once: Number of runs intended to be concurrent, each with at most ``threads``.
        device: The device that an execution plan has assigned; empty: none.
    """

    ops: list[Op]
    inputs: list[TensorSpec]
    states: list[TensorSpec]
    outputs: list[TensorSpec]
    state_outputs: list[TensorSpec]
    value_inputs: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    eager_weights: bool = False
    adapts: bool = False
    gradients: list[str] = field(default_factory=list)
    threads: int = 0
    runs_at_once: int = 1
    device: str = ""

    def all_ops(self) -> Iterator[Op]:
        """Yields every operator, including those in blocks of others."""
        for op in self.ops:
            yield op
            for block in op.blocks:
                yield from block.all_ops()

    def set_op_ids(self) -> None:
        """Numbers all operators of the graph: sets :attr:`Op.id`."""
        for number, op in enumerate(self.all_ops()):
            op.id = number

    def all_specs(self) -> list[TensorSpec]:
        """Returns every tensor, except those of blocks of operators."""
        return list(self._tensors().values())

    def described(self) -> dict[str, Any]:
        """Returns operators, tensors, inputs and outputs as JSON: all fields of a block."""
        return {
            "tensors": [[s.id, s.dtype, list(s.shape)] for s in self._tensors().values()],
            "inputs": [spec.id for spec in self.inputs],
            "outputs": [spec.id for spec in self.outputs],
            "ops": [_op_to_json(op) for op in self.ops],
        }

    @property
    def trains(self) -> bool:
        """Whether the graph computes gradients, or another program does so for its results."""
        return any(map(is_gradient, (*(op.type for op in self.all_ops()), *self.gradients)))

    @property
    def compiled_for(self) -> str:
        """``CPU``, or the GPU or NPU that an execution plan has assigned."""
        return compiled_for(self.device)

    @property
    def infers(self) -> bool:
        """Whether the graph has weights and does not train."""
        return bool(self.weights) and not self.trains

    def has_bfloat16(self) -> bool:
        """Returns whether an operator, also one in a body, has an input or output of bfloat16."""
        return any(op.has_bfloat16() for op in self.all_ops())

    def to_string(self) -> str:
        """Serializes the graph; returns the graph string."""
        body = json.dumps(self._to_json(), separators=(",", ":"))
        return f"{self._header(_digest(body))}\n{body}"

    def _header(self, digest: str) -> str:
        sizes = f"{len(self.inputs) + len(self.states)} {len(self.states)} {len(self.outputs)}"
        dtypes = _listed(spec.dtype for spec in (*self.inputs, *self.states))
        lists = f"{_listed(self.value_inputs)} {_listed(self.weights)} {dtypes}"
        limits = f"{int(self.eager_weights)} {int(self.trains)} {self.threads} {self.runs_at_once}"
        return f"{MAGIC} {FORMAT} {digest} {sizes} {lists} {limits} {self.compiled_for}"

    @staticmethod
    def from_string(text: str) -> Graph:
        """Parses a graph string.

        Raises:
            NgraphError: The string is damaged, malformed or of another release.
        """
        _check_digest(text)
        header, _, body = text.partition("\n")
        graph = _from_json(_parsed(body))
        if header != graph._header(header.split(" ")[2]):
            raise _malformed("its first line does not match the rest")
        return graph

    def _tensors(self) -> dict[int, TensorSpec]:
        tensors: dict[int, TensorSpec] = {}
        for op in self.ops:
            tensors.update({spec.id: spec for spec in op.input_specs()})
            tensors.update({spec.id: spec for spec in op.output_specs()})
            for results in op.form.results.values() if op.form else ():
                tensors.update({spec.id: spec for spec in results})
        for specs in (self.inputs, self.states, self.outputs, self.state_outputs):
            tensors.update({spec.id: spec for spec in specs})
        return tensors

    def _to_json(self) -> dict[str, Any]:
        others: dict[str, Any] = {"gradients": self.gradients} if self.gradients else {}
        if self.eager_weights:
            others["eager_weights"] = True
        if self.threads:
            others["threads"] = self.threads
        if self.runs_at_once > 1:
            others["runs_at_once"] = self.runs_at_once
        if self.device:
            others["device"] = self.device
        return {
            **self.described(),
            "states": [spec.id for spec in self.states],
            "state_outputs": [spec.id for spec in self.state_outputs],
            "value_inputs": self.value_inputs,
            "weights": self.weights,
            "adapts": self.adapts,
            **others,
        }


def verify(data: bytes) -> None:
    """Raises NgraphError when ``data`` is not an intact graph string of this release."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _malformed("it is not text") from error
    Graph.from_string(text)


def _check_digest(text: str) -> None:
    header, _, body = text.partition("\n")
    fields = header.split(" ")
    if len(fields) != 14 or fields[0] != MAGIC or fields[1] != str(FORMAT):
        raise NgraphError(
            "the attribute 'graph' is not a subgraph of this release of paddle-ngraph; "
            "make the program again from the original one"
        )
    if fields[2] != _digest(body):
        raise NgraphError(
            "the attribute 'graph' is damaged: its digest does not match; "
            "make the program again from the original one"
        )


def _parsed(body: str) -> dict[str, Any]:
    try:
        data = json.loads(body)
        schema.check(data)
    except (ValueError, RecursionError) as error:
        # The text is no JSON, is nested too deeply, or is no graph.
        raise _malformed(str(error)) from error
    return data  # type: ignore[no-any-return]


def _malformed(reason: str) -> NgraphError:
    return NgraphError(
        f"the attribute 'graph' is malformed: {reason}; "
        "make the program again from the original one"
    )


def _listed(items: Iterable[object]) -> str:
    return ",".join(map(str, items)) or "-"


def _digest(body: str) -> str:
    # A damaged string may have lone surrogates, which surrogatepass encodes.
    return hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()


def _op_to_json(op: Op) -> dict[str, Any]:
    item = {
        "type": op.type,
        "index": op.index,
        "inputs": {name: [spec.id for spec in specs] for name, specs in op.inputs.items()},
        "outputs": {
            name: [None if spec is None else spec.id for spec in specs]
            for name, specs in op.outputs.items()
        },
        "attrs": op.attrs,
    }
    if op.form is not None:
        item["form"] = _form_to_json(op, op.form)
    if op.checked:
        item["checked"] = True
    if op.called:
        item["called"] = True
    if op.blocks:
        item["blocks"] = [block.described() for block in op.blocks]
    return item


def _form_to_json(op: Op, form: FallbackForm) -> list[Any]:
    differing = {n: specs for n, specs in form.results.items() if specs != op.outputs.get(n, ())}
    unused, results = (
        {name: [spec.id for spec in specs] for name, specs in side.items()}
        for side in (form.unused, differing)
    )
    return [form.attribute_types, *map(sorted, form.lists), unused, results]


def _form_from_json(
    item: list[Any], outputs: Mapping[str, tuple[Any, ...]], tensors: dict[int, TensorSpec]
) -> FallbackForm:
    attribute_types, input_lists, output_lists, unused, differing = item
    results = {name: tuple(tensors[i] for i in ids) for name, ids in differing.items()}
    return FallbackForm(
        attribute_types=attribute_types,
        lists=(frozenset(input_lists), frozenset(output_lists)),
        unused={name: tuple(tensors[i] for i in ids) for name, ids in unused.items()},
        results={name: results.get(name, specs) for name, specs in outputs.items()},
    )


def _op_from_json(item: dict[str, Any], tensors: dict[int, TensorSpec]) -> Op:
    outputs = {
        name: tuple(None if i is None else tensors[i] for i in ids)
        for name, ids in item["outputs"].items()
    }
    return Op(
        type=item["type"],
        index=item["index"],
        inputs={name: tuple(tensors[i] for i in ids) for name, ids in item["inputs"].items()},
        outputs=outputs,
        attrs=item["attrs"],
        form=_form_from_json(item["form"], outputs, tensors) if "form" in item else None,
        blocks=list(map(_block_from_json, item.get("blocks", ()))),
        checked=item.get("checked", False),
        called=item.get("called", False),
    )


def _tensors_from_json(data: dict[str, Any]) -> dict[int, TensorSpec]:
    return {tid: TensorSpec(tid, dtype, tuple(shape)) for tid, dtype, shape in data["tensors"]}


def _block_from_json(data: dict[str, Any]) -> Graph:
    tensors = _tensors_from_json(data)
    return Graph(
        ops=[_op_from_json(item, tensors) for item in data["ops"]],
        inputs=[tensors[i] for i in data["inputs"]],
        states=[],
        outputs=[tensors[i] for i in data["outputs"]],
        state_outputs=[],
    )


def _from_json(data: dict[str, Any]) -> Graph:
    tensors = _tensors_from_json(data)
    ops = [_op_from_json(item, tensors) for item in data["ops"]]
    return Graph(
        ops=ops,
        inputs=[tensors[i] for i in data["inputs"]],
        states=[tensors[i] for i in data["states"]],
        outputs=[tensors[i] for i in data["outputs"]],
        state_outputs=[tensors[i] for i in data["state_outputs"]],
        value_inputs=list(data["value_inputs"]),
        weights=list(data["weights"]),
        adapts=bool(data["adapts"]),
        gradients=list(data.get("gradients", ())),
        eager_weights=bool(data.get("eager_weights", False)),
        threads=data.get("threads", 0),
        runs_at_once=data.get("runs_at_once", 1),
        device=data.get("device", ""),
    )
