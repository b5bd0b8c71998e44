"""Converters of paddle_ngraph.ops.recurrent compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import flags
from paddle_ngraph.conversion import registry
from paddle_ngraph.conversion.build import make_model
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import program_pass
from tests.ops.harness import check, check_fallback
from tests.ops.merging import merged
from tests.programs import Program, floats

BOTH = ["rnn", "rnn_grad"]
GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
MODES = list(GATES)
# Gradients accumulate over the steps, and cancel.
CLOSE = {"rtol": 1e-4, "atol": 5e-6}

pytestmark = pytest.mark.thinned


@pytest.fixture(autouse=True)
def converted():
    """Lets the engine convert layers that otherwise run with packed weights."""
    flags.set("use_mkl_packed", False)
    yield
    flags.set("use_mkl_packed", True)


def network(mode, layers=1, bidirectional=False, dropout=0.0, is_test=False):
    """Builds ``rnn`` from x, the states h (and c), the weights w0, w1, ... and the lengths."""

    def build(x, h, c=None, lengths=None, **weights):
        hidden = h.shape[-1]
        # A program that ends in rnn_grad does not show which of its gradients are requested.
        x, h, *w = (1.0 * v for v in (x, h, *(weights[f"w{i}"] for i in range(len(weights)))))
        return flat(
            paddle._C_ops.rnn(
                x,
                [h] if c is None else [h, 1.0 * c],
                w,
                lengths,
                paddle.full([1], 0, "uint8"),
                dropout,
                bidirectional,
                x.shape[-1],
                hidden,
                layers,
                mode,
                0,
                is_test,
            )
        )

    return build


def flat(results):
    out, _, states = results
    return [out, *states]


def feeds(mode, steps=5, batch=3, features=4, hidden=6, layers=1, bidirectional=False):
    """Random values for the inputs of :func:`network`."""
    directions, rows = 1 + bidirectional, GATES[mode] * hidden
    values = {
        "x": floats(steps, batch, features),
        "h": floats(layers * directions, batch, hidden, seed=1),
    }
    if mode == "LSTM":
        values["c"] = floats(layers * directions, batch, hidden, seed=2)
    shapes = []
    for layer in range(layers):
        width = features if layer == 0 else directions * hidden
        shapes += [(rows, width), (rows, hidden)] * directions
    shapes += [(rows,)] * (2 * layers * directions)
    for i, shape in enumerate(shapes):
        values[f"w{i}"] = 0.25 * floats(*shape, seed=3 + i)
    return values


def lengths(*values):
    return np.array(values, "int32")


@merged
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_rnn(mode, bidirectional, layers):
    values = feeds(mode, layers=layers, bidirectional=bidirectional)
    check(network(mode, layers, bidirectional), values, BOTH, **CLOSE)


@merged
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("ends", [[4, 2, 3], [0, 5, 1], [0, 0, 0]])
def test_sequence_length(mode, bidirectional, ends):
    values = feeds(mode, layers=2, bidirectional=bidirectional)
    values["lengths"] = lengths(*ends)
    check(network(mode, 2, bidirectional), values, BOTH, **CLOSE)


@merged
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "steps, batch, features, hidden", [[1, 3, 4, 6], [2, 1, 1, 1], [8, 2, 3, 16]]
)
def test_sizes(mode, steps, batch, features, hidden):
    values = feeds(mode, steps, batch, features, hidden, bidirectional=True)
    check(network(mode, 1, True), values, BOTH, **CLOSE)
    values["lengths"] = lengths(*([1] * batch))
    check(network(mode, 1, True), values, BOTH, **CLOSE)


@merged
@pytest.mark.parametrize("mode", MODES)
def test_dynamic_batch_and_steps(mode):
    values = feeds(mode, bidirectional=True)
    values["lengths"] = lengths(5, 2, 4)
    dynamic = {"x": [-1, -1, 4], "h": [2, -1, 6], "lengths": [-1]}
    if mode == "LSTM":
        dynamic["c"] = [2, -1, 6]
    check(network(mode, 1, True), values, BOTH, dynamic=dynamic)


@merged
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_special_values(mode, special):
    values = feeds(mode)
    values["x"][2, 1, 3] = special
    check(network(mode), values, BOTH)


@merged
@pytest.mark.parametrize("mode", MODES)
def test_values_after_the_end_of_a_sequence(mode):
    values = feeds(mode, layers=2)
    values["x"][3:, 1] = np.nan
    values["lengths"] = lengths(5, 3, 4)
    check(network(mode, 2), values, BOTH)


@merged
@pytest.mark.parametrize("mode", MODES)
def test_inference(mode):
    values = feeds(mode, layers=2, bidirectional=True)
    values["lengths"] = lengths(5, 2, 4)
    build = network(mode, 2, True, dropout=0.5, is_test=True)
    check(build, values, ["rnn"], gradients=False)


SIZES_OF_CONSTANTS = [(6, 6, 1), (4, 16, 2), (16, 16, 3)]


@pytest.mark.parametrize(
    "mode, features, hidden, layers, is_tied",
    [
        *((mode, *sizes, False) for mode in MODES for sizes in SIZES_OF_CONSTANTS),
        ("RNN_TANH", 8, 8, 1, True),
        ("RNN_RELU", 8, 8, 2, True),
    ],
)
def test_gradients_with_untrained_weights(mode, features, hidden, layers, is_tied):
    """Weights are constants: a square one is read directly and transposed, in loops and outside."""
    values = feeds(mode, features=features, hidden=hidden, layers=layers, bidirectional=True)
    weights = {name: values.pop(name) for name in list(values) if name.startswith("w")}

    def parameter(name):
        initial = paddle.nn.initializer.Assign(weights[name])
        return paddle.static.create_parameter(
            weights[name].shape, "float32", default_initializer=initial
        )

    def build():
        variables = {n: paddle.static.data(n, v.shape, "float32") for n, v in values.items()}
        parameters = {name: parameter(name) for name in weights}
        if is_tied:
            parameters["w1"] = parameters["w0"]
        results = network(mode, layers, True)(**variables, **parameters)
        losses = [paddle.mean(result * result) for result in results]
        return [*results, *paddle.static.gradients(losses, list(parameters.values()))]

    program = Program(build)
    for _ in range(3):
        program.both(**values)
    assert paddle_ngraph.stats()["functions_with_weights"] > 0
    assert not paddle_ngraph.explain(program.main).native


@merged
def test_only_some_gradients():
    values = feeds("LSTM", layers=2)

    def build(x, h, c, **weights):
        for variable in (x, h, weights["w1"], weights["w6"]):
            variable.stop_gradient = True
        out, *_ = network("LSTM", 2)(x, h, c, **weights)
        return out

    check(build, values, BOTH)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layers, bidirectional", [(2, False), (3, True)])
def test_dropout_between_layers(mode, layers, bidirectional):
    """Masks equal those of plain Paddle for the same seed, in every run."""
    values = feeds(mode, layers=layers, bidirectional=bidirectional)
    build = network(mode, layers, bidirectional, dropout=0.4)
    check(build, values, BOTH, runs=3, **CLOSE)


def test_dropout_between_layers_of_sequences():
    values = feeds("LSTM", layers=2)
    values["lengths"] = lengths(5, 2, 4)
    check(network("LSTM", 2, dropout=0.4), values, BOTH, **CLOSE)


@pytest.mark.parametrize("layers, dropout", [(1, 0.5), (2, 1.0)])
def test_dropout_without_samples(layers, dropout):
    def build(**values):
        return *network("GRU", layers, dropout=dropout)(**values), paddle.rand([3])

    check(build, feeds("GRU", layers=layers), BOTH)


def test_dropout_in_training():
    """Layers in a typical program, between other stochastic operators."""

    def build():
        x = paddle.static.data("x", [-1, 5, 4], "float32")
        noisy = paddle.nn.functional.dropout(x, 0.3)
        out, _ = paddle.nn.LSTM(4, 6, num_layers=2, dropout=0.5)(noisy)
        loss = paddle.mean(paddle.nn.functional.dropout(out, 0.2) ** 2)
        paddle.optimizer.SGD(0.1).minimize(loss)
        return loss

    results = []
    for engine in (False, True):
        program = Program(build)
        assert not paddle_ngraph.explain(program.main).native
        paddle.seed(5)
        results.append([program.run(engine, x=floats(3, 5, 4, seed=n)) for n in range(4)])
    np.testing.assert_allclose(*results, rtol=1e-5)


@merged
def test_lengths_of_64_bits():
    values = feeds("GRU")
    values["lengths"] = lengths(5, 0, 2).astype("int64")
    check_fallback(network("GRU"), values, ["rnn", "rnn_grad"])


@pytest.mark.parametrize("ends", [[6, 5, 5], [5, -1, 5]])
def test_lengths_out_of_range(ends):
    """Paddle reads out of bounds for such lengths."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program), paddle.utils.unique_name.guard():
        inputs = {**feeds("GRU"), "lengths": lengths(*ends)}
        variables = {n: paddle.static.data(n, v.shape, str(v.dtype)) for n, v in inputs.items()}
        fetches = network("GRU")(**variables)
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle_ngraph.use_ngraph(True), pytest.raises(Exception, match="out of range"):
        executor.run(program, feed=inputs, fetch_list=fetches)


def test_a_gradient_that_falls_back_takes_its_operator_along(monkeypatch):
    """The gradient reads ``reserve``, which the engine does not compute."""
    monkeypatch.delitem(registry._converters, "pd_op.rnn_grad")
    check_fallback(network("LSTM"), feeds("LSTM"), ["rnn", "rnn_grad"])


@merged
def test_a_gradient_in_another_subgraph():
    """Both operators fall back, since Paddle's gradient reads Paddle's ``reserve``."""
    values = feeds("GRU")

    def build(x, h, **weights):
        out, state = network("GRU")(x, h, **weights)
        return paddle.erfinv(0.5 * out), state  # erfinv has no converter

    check_fallback(build, values, ["erfinv", "erfinv_grad", *BOTH])


# -- paddle.nn -------------------------------------------------------------------------------------

WORDS, CLASSES, STEPS = 60, 3, 12


def classifier(layer, hidden, with_lengths):
    """Trains embeddings, two recurrent layers and a linear one with Adam."""

    def build():
        words = paddle.static.data("words", [-1, -1], "int64")
        label = paddle.static.data("label", [-1, 1], "int64")
        ends = paddle.static.data("ends", [-1], "int32") if with_lengths else None
        vectors = paddle.nn.Embedding(WORDS, hidden // 2)(words)
        _, states = layer(hidden // 2, hidden, num_layers=2)(vectors, sequence_length=ends)
        last = states[0] if isinstance(states, tuple) else states
        logits = paddle.nn.Linear(hidden, CLASSES)(last[-1])
        loss = paddle.nn.functional.cross_entropy(logits, label)
        paddle.optimizer.Adam(0.01).minimize(loss)
        return loss

    return build


def texts(step, with_lengths):
    generator = np.random.default_rng(step)
    label = generator.integers(0, CLASSES, (8, 1))
    words = generator.integers(0, WORDS // CLASSES, (8, STEPS - step % 3)) * CLASSES + label
    feed = {"words": words, "label": label}
    if with_lengths:
        feed["ends"] = generator.integers(0, words.shape[1] + 1, 8).astype("int32")
    return feed


@pytest.mark.parametrize("layer", [paddle.nn.LSTM, paddle.nn.GRU, paddle.nn.SimpleRNN])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_training(layer, with_lengths):
    build = classifier(layer, 32, with_lengths)
    native, engine = Program(build), Program(build)
    report = paddle_ngraph.explain(engine.main)
    assert len(report.intervals) == 1 and not report.native, str(report)
    losses = []
    for step in range(20):
        feed = texts(step, with_lengths)
        losses.append(native.run(engine=False, **feed)[0])
        np.testing.assert_allclose(engine.run(**feed)[0], losses[-1], rtol=2e-4, atol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == 20
    assert np.mean(losses[-3:]) < np.mean(losses[:3])


@pytest.mark.parametrize("cell", [paddle.nn.LSTMCell, paddle.nn.GRUCell, paddle.nn.SimpleRNNCell])
def test_unrolled_steps(cell):
    def build():
        x = paddle.static.data("x", [-1, 4, 3])
        step, states, outs = cell(3, 5), None, []
        for t in range(4):
            out, states = step(x[:, t], states)
            outs.append(out)
        loss = paddle.mean(paddle.stack(outs))
        paddle.optimizer.SGD(0.1).minimize(loss)
        return loss

    native, engine = Program(build), Program(build)
    report = paddle_ngraph.explain(engine.main)
    assert len(report.intervals) == 1 and not report.native, str(report)
    for step in range(3):
        feed = {"x": floats(2, 4, 3, seed=step)}
        (expected,), (actual,) = native.run(engine=False, **feed), engine.run(**feed)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert paddle_ngraph.stats()["engine_runs"] == 3


def test_the_gradient_recomputes_nothing():
    """In one subgraph the gradient shares the loops of its operator: two bidirectional layers."""

    def build():
        x = paddle.static.data("x", [2, 3, 4])
        out, _ = paddle.nn.LSTM(4, 5, num_layers=2)(x)
        loss = paddle.mean(out)
        paddle.optimizer.SGD(0.1).minimize(loss)
        return loss

    main = Program(build).main.clone()
    program_pass.apply(main)
    (text,) = [op.attrs()["graph"] for op in main.global_block().ops if "engine" in op.name()]
    graph = Graph.from_string(text)
    signature = [("f32", spec.shape) for spec in [*graph.inputs, *graph.states]]
    draft = make_model(FunctionBuilder(graph, signature))
    loops = [node for node in draft.model.get_ops() if node.get_type_name() == "TensorIterator"]
    assert len(loops) == 4


@merged
def test_constant_lengths():
    def build(x):
        ends = paddle.assign(lengths(3, 1))
        out, state = paddle.nn.GRU(4, 8, direction="bidirect")(x, sequence_length=ends)
        return out, state

    check(build, {"x": floats(2, 3, 4)}, [*BOTH, "coalesce_tensor"])


@merged
def test_coalesce_tensor():
    def build(x, y):
        results, _ = paddle._C_ops.coalesce_tensor(
            [x, y], paddle.float32, True, False, False, 0.0, False, -1, -1, [], []
        )
        return results

    feed = {"x": floats(2, 3), "y": floats(4)}
    check(build, feed, ["coalesce_tensor"], gradients=False)
