"""Builds the graph of a subgraph, and lists its input, state and output variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from paddle_ngraph import _core
from paddle_ngraph.conversion.registry import Role
from paddle_ngraph.ir.graph import BFLOAT16, Graph, Op, TensorSpec
from paddle_ngraph.paddle_private.names import is_parameter
from paddle_ngraph.partitioning.analysis.block_view import LISTS, OpNode, dtype_name
from paddle_ngraph.partitioning.analysis.capability import Candidates, Capability, ConvertibleBlock
from paddle_ngraph.partitioning.analysis.placement import share_count, threads_of
from paddle_ngraph.partitioning.partition import Interval

# Dtypes of the parameters that functions retain as constants. Quantized models have int8
# parameters: read as inputs in each run, they would make the plugin multiply in float32.
_WEIGHT_DTYPES = frozenset({"float32", "int8", BFLOAT16})


class SubgraphSettings(NamedTuple):
    """The settings that one run of the pass gives all subgraphs: see :func:`program_pass.apply`."""

    keep_weights: bool
    open_size: int | None
    gradients: Sequence[str] = ()
    eager_weights: bool = False
    threads: int = 0
    tries: bool = True
    folds_constants: bool = False


@dataclass
class Subgraph:
    """The graph of an interval, and the ids of its input, state and output variables."""

    interval: Interval
    graph: Graph
    inputs: list[str]
    states: list[str]
    outputs: list[str]
    # For each variable that a result replaces: "output" or "state", and the index among these.
    replaced_by: dict[str, tuple[str, int]]

    @cached_property
    def text(self) -> str:
        """The graph of the subgraph as a graph string."""
        return self.graph.to_string()


def subgraph_of(capable: Capability, interval: Interval, settings: SubgraphSettings) -> Subgraph:
    """Builds the graph of a subgraph, with its inputs, states and outputs."""
    return _IntervalBuilder(capable, interval, settings).build()


def graph_of(body: ConvertibleBlock) -> Graph:
    """Returns the body block of a loop or branch as a graph without states."""
    return _BodyGraphBuilder(body).build()


class _GraphBuilder:
    """Builds the graph of operators of a block, with the aliasing of Paddle's in-place operators.

    An operator that overwrites its input changes the contents of that memory: later readers, under
    any name, read the new contents.
    """

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._view = candidates.view
        self._names = {number: vid for vid, number in candidates.tensor_ids.items()}
        # First variable of a memory -> variable that has the memory's present contents.
        self._content: dict[str, str] = {}
        # For each memory from outside the subgraph, the name of its first variable; in the order of
        # first use.
        self._external: list[str] = []
        self._external_names: dict[str, str] = {}
        # Memory that operators of the subgraph overwrite, in the order of the last writes.
        self._overwritten: dict[str, None] = {}
        self._ops: list[Op] = []
        # Ids of the tensors that operators have produced so far, including those that converters
        # omit.
        self._produced: set[int] = set()

    def _add(self, node: OpNode) -> None:
        op = self._candidates.ops[node]
        unused = self._candidates.converters[node].named(Role.UNUSED)
        inputs = {
            name: tuple(self._read(self._names[spec.id]) for spec in specs if name not in unused)
            for name, specs in op.inputs.items()
        }
        assert op.form is not None
        kept = {name: self._known_specs(op.inputs.get(name, ())) for name in unused}
        form = replace(op.form, unused={name: specs for name, specs in kept.items() if specs})
        bodies = self._candidates.bodies.get(node, ())
        described = replace(
            op,
            inputs=inputs,
            constants={},
            form=form,
            blocks=list(map(graph_of, bodies)) if self._candidates.checked else op.blocks,
            checked=node in self._candidates.checked,
        )
        self._ops.append(described)
        self._produced.update(spec.id for specs in op.form.results.values() for spec in specs)
        for spec in op.output_specs():
            vid = self._names[spec.id]
            root = self._view.root(vid)
            # A write to a TensorArray changes the variable itself, and defines no other one.
            if self._view.is_array(root):
                self._content.setdefault(root, root)
                continue
            if root != vid and root in self._external_names:
                self._overwritten.pop(root, None)
                self._overwritten[root] = None
            self._content[root] = vid

    def _known_specs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Returns current ``specs`` if the graph so far produces or reads all of them; else ()."""
        roots = [self._view.root(self._names[spec.id]) for spec in specs]
        now = [
            self._spec(self._content[root]) if root in self._content else spec
            for root, spec in zip(roots, specs)
        ]
        known = (
            root in self._content or spec.id in self._produced for root, spec in zip(roots, specs)
        )
        return tuple(now) if all(known) else ()

    def _read(self, vid: str) -> TensorSpec:
        root = self._view.root(vid)
        if root not in self._content:
            producer = self._view.producer.get(vid)
            if producer is not None and producer in self._candidates.constants:
                self._add_constant(producer)
            else:
                self._add_input(vid)
        return self._spec(self._content[root])

    def _add_input(self, vid: str) -> None:
        """Adds a variable from outside the subgraph to the inputs of the graph."""
        root = self._view.root(vid)
        self._external.append(root)
        self._external_names[root] = vid
        self._content[root] = vid

    def _add_constant(self, node: OpNode) -> None:
        op = self._candidates.ops[node]
        self._ops.append(op)
        for spec in op.output_specs():
            vid = self._names[spec.id]
            self._content[vid] = vid

    def _spec(self, vid: str) -> TensorSpec:
        return self._view.spec(vid, self._candidates.tensor_ids[vid])


class _IntervalBuilder(_GraphBuilder):
    """Builder of the graph of one subgraph of a block."""

    def __init__(self, capable: Capability, interval: Interval, settings: SubgraphSettings) -> None:
        super().__init__(capable)
        self._capable = capable
        self._interval = interval
        self._settings = settings
        self._nodes = set(interval.nodes)
        self._value_inputs: set[str] = set()

    def build(self) -> Subgraph:
        """Returns the subgraph: its graph, and its input, state and output variables."""
        for node in self._interval.nodes:
            if self._capable.ops[node].outputs_used():
                self._value_inputs |= {
                    self._view.root(v) for v in self._capable.read_by_value(node)
                }
                self._add(node)
        # The states are in the order of their last writes: nGraph computes results in order, and
        # memory that is written early can be freed early.
        states = list(self._overwritten)
        inputs = [root for root in self._external if root not in self._overwritten]
        replaced, outputs = self._outputs(states)
        graph = Graph(
            ops=self._ops,
            inputs=[self._spec(self._external_names[root]) for root in inputs],
            states=[self._spec(self._external_names[root]) for root in states],
            outputs=[self._spec(self._content[root]) for root in outputs],
            state_outputs=[self._spec(self._content[root]) for root in states],
            value_inputs=[i for i, root in enumerate(inputs) if root in self._value_inputs],
            weights=[i for i, root in enumerate(inputs) if self._is_weight(root)],
            eager_weights=self._settings.eager_weights,
            adapts=any(node.type == "pd_op.feed" for node in self._view.nodes),
            gradients=list(self._settings.gradients),
            threads=self._threads(),
            runs_at_once=share_count(self._interval.device) or 1,
            device=self._interval.device,
        )
        return Subgraph(
            interval=self._interval,
            graph=graph,
            inputs=[self._external_names[root] for root in inputs],
            states=[self._external_names[root] for root in states],
            outputs=[self._content[root] for root in outputs],
            replaced_by=replaced,
        )

    def _threads(self) -> int:
        wanted = threads_of(self._interval.device, _core.num_threads())
        return wanted or self._settings.threads

    def _is_weight(self, root: str) -> bool:
        value = self._view.values[root]
        producer = value.get_defining_op()
        is_weight = producer is not None and is_parameter(producer)
        return (
            self._settings.keep_weights and is_weight and dtype_name(value.dtype) in _WEIGHT_DTYPES
        )

    def _outputs(self, states: list[str]) -> tuple[dict[str, tuple[str, int]], list[str]]:
        replaced: dict[str, tuple[str, int]] = {}
        outputs: list[str] = []
        for node in self._interval.nodes:
            for spec in self._capable.ops[node].output_specs():
                vid = self._names[spec.id]
                root = self._view.root(vid)
                if root in states:
                    replaced[vid] = ("state", states.index(root))
                elif self._is_used_outside(vid) or self._view.is_result(node):
                    if root not in outputs:
                        outputs.append(root)
                    replaced[vid] = ("output", outputs.index(root))
        return replaced, outputs

    def _is_used_outside(self, vid: str) -> bool:
        for reader in self._view.readers.get(vid, ()):
            if reader.type in LISTS:
                if any(self._is_used_outside(result) for result in reader.writes):
                    return True
            elif reader not in self._nodes:
                return True
        return False


class _BodyGraphBuilder(_GraphBuilder):
    """Builder of the graph of a loop body or branch."""

    def __init__(self, body: ConvertibleBlock) -> None:
        super().__init__(body.candidates)
        self._body = body

    def build(self) -> Graph:
        """Returns the graph: from loop-carried and captured inputs to yielded values."""
        for vid in (*self._body.args, *self._body.captured):
            self._add_input(vid)
        inputs = [self._spec(vid) for vid in (*self._body.args, *self._body.captured)]
        for node in self._view.nodes:
            if not self._candidates.can_convert(node) or node in self._candidates.constants:
                continue
            if self._candidates.ops[node].outputs_used():
                self._add(node)
        outputs = [self._read(vid) for vid in self._body.results]
        return Graph(self._ops, inputs, [], outputs, [])
