"""The engine's functions of a program: run alone, without Paddle, and profiled.

A program runs through the engine once, and its graphs are recorded. The bridge builds the function
of each graph again, and OpenVINO's own bindings run it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

import paddle_ngraph
from benchmarks.worker import PeerError
from benchmarks.works import Array, Feed
from paddle_ngraph.conversion.bridge import element_type
from paddle_ngraph.conversion.build import make_model
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import program_pass
from paddle_ngraph.partitioning.analysis.block_view import value_id

# On the calling thread alone, whose processor time excludes other processes.
_ON_THIS_THREAD = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "0"}
CONFIGURATION = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}


def on_this_thread(model: ov.Model, arrays: list[Array]) -> Callable[[], None]:
    """Returns a function that runs a compiled model with these inputs on the calling thread."""
    request = ov.Core().compile_model(model, "CPU", _ON_THIS_THREAD).create_infer_request()
    for number, array in enumerate(arrays):
        request.set_input_tensor(number, ov.Tensor(array))
    request.infer()
    return lambda: request.infer() and None


def processor_seconds(run: Callable[[], None], runs: int = 3) -> float:
    """Returns the seconds of some runs, in processor time of the thread."""
    begin = time.thread_time()
    for _ in range(runs):
        run()
    return time.thread_time() - begin


@dataclass(frozen=True)
class Function:
    """The function of one subgraph.

    Attributes:
        model: The model, not compiled.
        inputs: Values of its parameters in the recorded run, in order.
        fetched: Indices of the program's fetches in its results, in order of the fetches.
        graph: The graph string of the subgraph.
    """

    model: ov.Model
    inputs: list[Array]
    fetched: list[int]
    graph: str

    def request(self, **configuration: str) -> ov.InferRequest:
        """Compiles the model for the CPU in float32; returns a request with its memory."""
        compiled = ov.Core().compile_model(self.model, "CPU", {**CONFIGURATION, **configuration})
        request = compiled.create_infer_request()
        for position, array in enumerate(self.inputs):
            request.set_input_tensor(position, ov.Tensor(array))
        for position, output in enumerate(compiled.outputs):
            tensor = ov.Tensor(output.get_element_type(), output.get_shape())
            request.set_output_tensor(position, tensor)
        return request


def only_function(
    run: Callable[[Feed], Any], scope: Any, feed: Feed, constant_weights: bool
) -> Function:
    """Returns the function of a program with a single one.

    Args:
        run: Runs the program on a feed.
        scope: The scope with the program's variables.
        feed: The feed of the recorded run.
        constant_weights: Whether the program's parameters are constants of the function.

    Raises:
        PeerError: The program has several functions, or fallback operators before the function.
    """
    found = functions(run, scope, feed, constant_weights)
    if len(found) != 1:
        raise PeerError(f"the program becomes {len(found)} functions, not one")
    return found[0]


def functions(
    run: Callable[[Feed], Any], scope: Any, feed: Feed, constant_weights: bool
) -> list[Function]:
    """Returns the functions of a program in execution order; see :func:`only_function`."""
    with program_pass.rewritten_programs() as programs, paddle_ngraph.use_ngraph(True):
        run(feed)
    return [
        _function(op, program, scope, feed, constant_weights)
        for program in programs
        for op in program.global_block().ops
        if "ngraph_engine" in op.name()
    ]


def _function(op: Any, program: Any, scope: Any, feed: Feed, constant_weights: bool) -> Function:
    text = op.attrs()["graph"]
    graph = Graph.from_string(text)
    arrays = [_contents(_source(value), scope, feed) for value in _tensors_read(op)]
    signature = [
        (element_type(spec.dtype).get_type_name(), array.shape)
        for spec, array in zip([*graph.inputs, *graph.states], arrays)
    ]
    known = {i: arrays[i] for i in graph.value_inputs}
    builder = FunctionBuilder(graph, signature, known)
    weights = {i: arrays[i] for i in graph.weights if constant_weights}
    draft = make_model(builder, weights, RunSettings.of(text))
    return Function(draft.model, [arrays[i] for i in draft.positions], _fetched(op, program), text)


def _tensors_read(op: Any) -> Iterator[Any]:
    for value in op.operands_source():
        if value.initialized():
            yield from value.get_defining_op().operands_source()  # the elements of a list


def _source(value: Any) -> str:
    """Returns the name of a variable that the program does not compute."""
    op = value.get_defining_op()
    if op.name() == "builtin.parameter":
        return str(op.attrs()["parameter_name"])
    if op.name() in ("pd_op.data", "pd_op.feed"):
        return str(op.attrs()["name"])
    raise PeerError(f"its function reads what {op.name()} computes")


def _contents(name: str, scope: Any, feed: Feed) -> Array:
    array = feed[name] if name in feed else np.array(scope.find_var(name).get_tensor())
    return np.ascontiguousarray(array)


def _fetched(op: Any, program: Any) -> list[int]:
    results = [value_id(value) for value in op.results() if value.initialized()]
    fetches = [o for o in program.global_block().ops if o.name() == "pd_op.fetch"]
    values = [
        value_id(fetch.operands_source()[0])
        for fetch in sorted(fetches, key=lambda o: o.attrs()["col"])
    ]
    return [results.index(value) for value in values if value in results]
