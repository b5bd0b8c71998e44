"""The graph string."""

from __future__ import annotations

import pytest

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec

pytestmark = pytest.mark.pure


def small_graph() -> Graph:
    x, y = TensorSpec(0, "float32", (-1, 4)), TensorSpec(1, "float32", (-1, 4))
    w = TensorSpec(2, "float32", (4,))
    op = Op("pd_op.relu", 7, {"x": (x,)}, {"out": (y,)}, {"alpha": 1.5, "list": [1, -2]})
    return Graph([op], [x], [w], [y], [w], value_inputs=[])


@pytest.mark.slow("compiles many or large functions")
def test_a_graph_round_trips_through_its_string():
    graph = small_graph()
    again = Graph.from_string(graph.to_string())
    assert again == graph


def test_equal_graphs_have_equal_strings():
    assert small_graph().to_string() == small_graph().to_string()


def test_infinities_and_nan_round_trip():
    graph = small_graph()
    graph.ops[0].attrs["value"] = float("-inf")
    assert Graph.from_string(graph.to_string()).ops[0].attrs["value"] == float("-inf")


def test_a_damaged_string_is_rejected():
    text = small_graph().to_string()
    with pytest.raises(NgraphError, match="damaged"):
        Graph.from_string(text.replace("relu", "tanh"))


@pytest.mark.parametrize("text", ["", "hello", "ngraph_engine 99 x 1 0 1 -\n{}", "{}"])
def test_a_foreign_string_is_rejected(text):
    with pytest.raises(NgraphError, match="not a subgraph of this release"):
        Graph.from_string(text)


def test_an_op_names_missing_fields():
    op = Op("pd_op.relu", 0, {"x": ()}, {"out": (None,)})
    with pytest.raises(NgraphError, match="input 'x' holds 0 tensors"):
        op.input("x")
    with pytest.raises(NgraphError, match="output 'out'"):
        op.output("out")
