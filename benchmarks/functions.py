"""The functions that the engine makes of a program: run alone, without Paddle, and profiled.

A program is run through the engine once, and what the program pass made of it is kept. From the
graph of each interval the bridge builds the function again, and OpenVINO's own bindings run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

import paddle_ngraph
from benchmarks.worker import PeerError
from benchmarks.works import Array, Feed
from paddle_ngraph.conversion.bridge import NgraphBridge, element_type
from paddle_ngraph.conversion.build import make_model
from paddle_ngraph.conversion.settings import Settings
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import program_pass
from paddle_ngraph.partitioning.analysis.block_view import value_id

CONFIGURATION = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}


@dataclass(frozen=True)
class Function:
    """The function of one interval.

    Attributes:
        model: Not compiled.
        inputs: What its parameters held in the recorded run, in their order.
        fetched: Where in its results the program's fetches stand, in their order.
        graph: The interval, as the engine gets it.
    """

    model: ov.Model
    inputs: list[Array]
    fetched: list[int]
    graph: str

    def request(self, **configuration: str) -> ov.InferRequest:
        """Compiled for the CPU in float32, with memory for its inputs and results."""
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
    """The function of a program that becomes a single one.

    Args:
        run: Runs the program on a feed.
        scope: The program's variables.
        feed: What to run it on.
        constant_weights: Make the program's parameters constants of the function.

    Raises:
        PeerError: The program becomes several functions, or has native operators before it.
    """
    found = functions(run, scope, feed, constant_weights)
    if len(found) != 1:
        raise PeerError(f"the program becomes {len(found)} functions, not one")
    return found[0]


def functions(
    run: Callable[[Feed], Any], scope: Any, feed: Feed, constant_weights: bool
) -> list[Function]:
    """The functions of a program, in the order in which they run; see :func:`only_function`."""
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
    bridge = NgraphBridge(graph, signature, known)
    weights = {i: arrays[i] for i in graph.weights if constant_weights}
    draft = make_model(bridge, weights, Settings.of(text))
    return Function(draft.model, [arrays[i] for i in draft.positions], _fetched(op, program), text)


def _tensors_read(op: Any) -> Iterator[Any]:
    for value in op.operands_source():
        if value.initialized():
            yield from value.get_defining_op().operands_source()  # a list


def _source(value: Any) -> str:
    """The name of a variable that the program does not compute."""
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
