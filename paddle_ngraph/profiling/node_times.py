"""The times of the nodes of a function, which is compiled for this alone.

The function is that of a run that was observed, with its inputs, at its static sizes. OpenVINO
counts the time of each node, which a function of normal runs does not. No cache gets the function.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15

from paddle_ngraph import _core
from paddle_ngraph.conversion import openvino_core
from paddle_ngraph.conversion.build import make_model, unwrapped_model
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.ir.graph import CPU, Graph, Op, TensorSpec
from paddle_ngraph.paddle_private.names import dtype_of
from paddle_ngraph.partitioning.analysis.block_view import dtype_name
from paddle_ngraph.partitioning.operator_costs import num_flops
from paddle_ngraph.utils import clock
from paddle_ngraph.utils.dtypes import element_name
from paddle_ngraph.utils.once import once

RUNS = 5
_MARK = re.compile(r"paddle_(\d+)_\d+")
# The names of the nodes that became one of a compiled function.
_SOURCES = "originalLayersNames"
# Types of nodes that are the inputs and results of a function.
_PORTS = frozenset({"Input", "Output", "Const", "Parameter", "Result"})
_PEAK_SIZE = 1024
_PEAK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class NodeTime:
    """A node of a function.

    Attributes:
        ns: The median time of a run, in whole microseconds: 0 for less than one.
        type, kernel: OpenVINO's type of the node, and the name of its kernel.
        shape: The shape of its first result.
        operators: Paddle's operators that it computes, by :attr:`Op.id`; empty if unknown.
        num_bytes: The bytes of its inputs and results.
        num_flops: The estimated floating-point operations that it does of these operators.
    """

    ns: float
    type: str
    kernel: str
    shape: str
    operators: Sequence[int]
    num_bytes: int
    num_flops: int = 0

    @property
    def flops_per_ns(self) -> float:
        """Floating-point operations in a nanosecond; 0 if the time is."""
        return self.num_flops / self.ns if self.ns else 0.0

    @property
    def bytes_per_ns(self) -> float:
        """Bytes in a nanosecond; 0 if the time is."""
        return self.num_bytes / self.ns if self.ns else 0.0


@dataclass(frozen=True)
class FunctionTimes:
    """The function of a subgraph.

    Attributes:
        nodes: Its nodes that take time or compute operators, the slowest first.
        convert_ns, compile_ns: The times to build its model, and to compile it.
        why_unmeasured: Why there are no nodes, in words.
    """

    nodes: Sequence[NodeTime] = ()
    convert_ns: float = 0.0
    compile_ns: float = 0.0
    why_unmeasured: str = ""


@dataclass(frozen=True)
class Peak:
    """The measured peak of the machine: floating-point operations and bytes in a nanosecond."""

    flops_per_ns: float
    bytes_per_ns: float


def measure(text: str, given: Sequence[Any]) -> FunctionTimes:
    """Builds the function of a graph string for the given tensors, and measures its nodes."""
    settings = RunSettings.of(text)
    if settings.device != CPU:
        return FunctionTimes(why_unmeasured=f"it runs on {settings.device}")
    arrays = [np.ascontiguousarray(np.array(tensor)) for tensor in given]
    signature = [
        (element_name(dtype_name(dtype_of(tensor))) or "", array.shape)
        for tensor, array in zip(given, arrays)
    ]
    graph = Graph.from_string(text)
    begin = clock.now()
    builder = FunctionBuilder(graph, signature, {i: arrays[i] for i in graph.value_inputs})
    sizes = _mark_nodes(builder)
    draft = make_model(builder, {i: arrays[i] for i in graph.weights}, settings)
    converted = clock.now()
    compiled = _compiled(draft.model, settings)
    end = clock.now()
    inputs = [
        _tensor(port, arrays[position] if position < len(arrays) else None)
        for port, position in zip(compiled.inputs, draft.positions)
    ]
    flops = {op.id: _num_flops(op, sizes) for op in graph.all_ops()}
    nodes = _nodes(compiled, inputs, flops)
    return FunctionTimes(nodes, 1e9 * (converted - begin), 1e9 * (end - converted))


def _compiled(model: ov.Model, settings: RunSettings) -> ov.CompiledModel:
    """A model as the core compiles it, which passes booleans as bytes, but with counters."""
    properties = _core.prepare_for_cpu(unwrapped_model(model), settings.precision, settings.threads)
    return openvino_core.core().compile_model(model, CPU, {**properties, "PERF_COUNT": "YES"})


def _tensor(port: Any, array: np.ndarray | None) -> ov.Tensor:
    """An input of a function; random numbers for a parameter that is no input of the subgraph."""
    shape = [int(size) for size in port.get_shape()]
    dtype = port.get_element_type()
    if array is None:
        numbers = np.random.default_rng(0).random(shape)
        return ov.Tensor(numbers.astype(dtype.to_dtype()))
    tensor = ov.Tensor(dtype, ov.Shape(shape))
    tensor.data.reshape(-1).view(np.uint8)[:] = array.reshape(-1).view(np.uint8)
    return tensor


def _mark_nodes(builder: FunctionBuilder) -> dict[int, TensorSpec]:
    """Converts the operators, and names each node after the operator that it belongs to.

    Returns:
        The tensors of the graph with their actual shapes.
    """
    sizes: dict[int, TensorSpec] = {}
    known: set[str] = set()

    def mark(op: Op, outputs: Mapping[int, ov.Output]) -> None:
        pending = [output.get_node() for output in outputs.values()]
        while pending:
            node = pending.pop()
            if node.get_name() in known:
                continue
            known.add(node.get_name())
            if node.get_type_name() == "Parameter":  # of random numbers: known by its name
                continue
            node.set_friendly_name(f"paddle_{op.id}_{len(known)}")
            pending += [source.get_node() for source in node.input_values()]
        for spec in op.output_specs():
            if spec.id in outputs and outputs[spec.id].get_partial_shape().is_static:
                shape = tuple(int(size) for size in outputs[spec.id].get_shape())
                sizes[spec.id] = TensorSpec(spec.id, spec.dtype, shape)

    builder.bridge.convert(mark)
    return sizes


def _num_flops(op: Op, sizes: Mapping[int, TensorSpec]) -> int:
    read = [sizes.get(spec.id, spec) for spec in op.input_specs()]
    return num_flops(op.type, read, [sizes.get(spec.id, spec) for spec in op.output_specs()])


def _nodes(compiled: Any, inputs: Sequence[ov.Tensor], flops: Mapping[int, int]) -> list[NodeTime]:
    request = compiled.create_infer_request()
    for position, tensor in enumerate(inputs):
        request.set_input_tensor(position, tensor)
    infos = [_infos(request) for _ in range(RUNS + 1)][1:]
    runtime = {op.get_friendly_name(): op for op in compiled.get_runtime_model().get_ops()}
    found = []
    for name, info in infos[-1].items():
        if info.node_type in _PORTS:
            continue
        times = [each[name].real_time.total_seconds() for each in infos if name in each]
        found.append(
            NodeTime(
                1e9 * statistics.median(times),
                info.node_type,
                info.exec_type,
                _shape(runtime.get(name)),
                list(_operators(runtime.get(name), name)),
                _num_bytes(runtime.get(name)),
            )
        )
    found = [node for node in found if node.ns > 0 or node.operators]
    return _with_flops(sorted(found, key=lambda node: -node.ns), flops)


def _with_flops(nodes: Sequence[NodeTime], flops: Mapping[int, int]) -> list[NodeTime]:
    """Divides the operations of each operator among its nodes of the type of its slowest one.

    Two products compute the gradients of a product. A mere reorder computes nothing.
    """
    computing = [node for node in nodes if node.type != "Reorder"]
    type_of: dict[int, str] = {}
    for node in computing:
        for each in node.operators:
            type_of.setdefault(each, node.type)
    counts = Counter((each, node.type) for node in computing for each in node.operators)
    return [
        replace(
            node,
            num_flops=sum(
                flops.get(each, 0) // counts[each, node.type]
                for each in node.operators
                if node.type == type_of.get(each)
            ),
        )
        for node in nodes
    ]


def _infos(request: Any) -> dict[str, Any]:
    request.infer()
    return {info.node_name: info for info in request.profiling_info}


def _operators(node: Any, name: str) -> Iterator[int]:
    """The operators that a node computes, from the names of the nodes that became it."""
    info = {} if node is None else node.get_rt_info()
    sources = info[_SOURCES].astype(str) if _SOURCES in info else ""
    yield from sorted({int(number) for number in _MARK.findall(f"{sources},{name}")})


def _ports(node: Any) -> list[Any]:
    return [] if node is None else [*node.input_values(), *node.outputs()]


def _num_bytes(node: Any) -> int:
    static = [port for port in _ports(node) if port.get_partial_shape().is_static]
    return int(sum(port.get_element_type().size * np.prod(port.get_shape()) for port in static))


def _shape(node: Any) -> str:
    if node is None or not node.get_output_size():
        return ""
    return "x".join(map(str, node.get_output_partial_shape(0)))


def peak() -> Peak:
    """Measures the machine's peak, with the threads of a run; once in a process."""
    return _peak(RunSettings.of(_any_graph()).threads)


def _any_graph() -> str:
    return Graph([], [], [], [], []).to_string()


@once
def _peaks() -> dict[int, Peak]:
    return {}


def _peak(threads: int) -> Peak:
    if threads not in _peaks():
        shape = [_PEAK_SIZE, _PEAK_SIZE]
        left, right = (opset15.parameter(shape, np.float32) for _ in range(2))
        product = _fastest_ns(ov.Model([opset15.matmul(left, right, False, False)], [left, right]))
        one, other = (opset15.parameter([_PEAK_ELEMENTS], np.float32) for _ in range(2))
        total = _fastest_ns(ov.Model([opset15.add(one, other)], [one, other]))
        _peaks()[threads] = Peak(2 * _PEAK_SIZE**3 / product, 3 * 4 * _PEAK_ELEMENTS / total)
    return _peaks()[threads]


def _fastest_ns(model: ov.Model) -> float:
    settings = RunSettings.of(_any_graph())
    compiled = _compiled(model, settings)
    inputs = [_tensor(port, None) for port in compiled.inputs]
    request = compiled.create_infer_request()
    for position, tensor in enumerate(inputs):
        request.set_input_tensor(position, tensor)
    times = []
    for _ in range(RUNS):
        infos = _infos(request).values()
        times.append(1e9 * max(info.real_time.total_seconds() for info in infos))
    return min(time for time in times if time > 0)
