"""The passes of a build: after each the model is valid, with unchanged results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openvino as ov
import paddle
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import flags
from paddle_ngraph.conversion import build, dynamic_shapes, processor
from paddle_ngraph.conversion.build import PASSES
from paddle_ngraph.conversion.draft import Draft
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.openvino_core import core
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import program_pass
from tests.programs import Program, chain, floats

F = nn.functional


def training_cnn() -> Any:
    x = paddle.static.data("x", [4, 3, 12, 12])
    hidden = F.relu(nn.BatchNorm2D(8)(nn.Conv2D(3, 8, 3, padding=1)(x)))
    hidden = F.relu6(nn.BatchNorm2D(8)(nn.Conv2D(8, 8, 3, bias_attr=False)(hidden)))
    loss = nn.Linear(8, 3)(hidden.mean([2, 3])).square().mean()
    paddle.optimizer.Momentum(0.1).minimize(loss)
    return loss


def classifier() -> Any:
    """A network whose batch is worth splitting."""
    x = paddle.static.data("x", [8, 16, 40, 40])
    hidden = F.relu(nn.Conv2D(16, 32, 3, padding=1)(x))
    hidden = F.hardswish(nn.Conv2D(32, 32, 3, padding=1)(hidden)) / 3.0
    return F.softmax(nn.Linear(32, 5)(hidden.mean([2, 3])))


def encoder() -> Any:
    """Attention over padded sequences, as in BERT."""
    ids = paddle.static.data("ids", [-1, -1], "int64")
    hidden = nn.Embedding(30, 16)(ids)
    mask = paddle.unsqueeze((ids == 0).astype("float32") * -1e4, [1, 2])
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, activation="gelu")
    return nn.TransformerEncoder(layer, 2)(hidden, mask).abs() + hidden


def recurrent() -> Any:
    x = paddle.static.data("x", [-1, 5, 6])
    out, (state, _) = nn.LSTM(6, 7, num_layers=2, direction="bidirect")(x)
    return out, state.sum()


def comparing() -> Any:
    """A comparison, and |x| next to x."""
    x = paddle.static.data("x", [-1, 130])
    wide = paddle.matmul(x, paddle.static.create_parameter([130, 96], "float32"))
    return (wide > 0.25).astype("float32") + wide.abs() / 3.0 + wide


def scalar() -> Any:
    """The only element of a matmul."""
    x = paddle.static.data("x", [4, 130])
    return paddle.matmul(x.reshape([1, 520]), paddle.ones([520, 1])).reshape([]) / 7.0


def moments() -> Any:
    """Means over samples."""
    pooled = nn.functional.avg_pool2d(paddle.static.data("x", [-1, 3, 6, 6]), 2)
    of_samples = paddle.mean(pooled, [2, 3], keepdim=True)
    behind = paddle.sum(paddle.unsqueeze(pooled, 2), [1], keepdim=True)
    means = paddle.mean(pooled, [0, 2, 3]), paddle.mean(of_samples, 0)
    return [*means, pooled - of_samples, behind]


MODELS: dict[str, tuple[Callable[[], Any], Callable[[int], dict[str, np.ndarray]]]] = {
    "training_cnn": (training_cnn, lambda n: {"x": floats(4, 3, 12, 12)}),
    "encoder": (
        encoder,
        lambda n: {"ids": np.random.default_rng(n).integers(0, 30, (n, 3 + n))},
    ),
    "classifier": (classifier, lambda n: {"x": floats(8, 16, 40, 40)}),
    "recurrent": (recurrent, lambda n: {"x": floats(n, 5, 6)}),
    "comparing": (comparing, lambda n: {"x": floats(n, 130)}),
    "scalar": (scalar, lambda n: {"x": floats(4, 130)}),
    "moments": (moments, lambda n: {"x": floats(n, 3, 6, 6)}),
    "chain": (chain, lambda n: {"x": floats(n, 4)}),
}


def tensors_read(op: Any) -> Iterator[Any]:
    for operand in op.operands_source():
        if operand.initialized():
            yield from operand.get_defining_op().operands_source()  # a list


def drafts(name: str, is_open: bool, keeps_weights: bool) -> Iterator[tuple[Draft, list[Any]]]:
    """Yields models as the bridge builds them for a program's subgraphs, and their inputs."""
    make, feed_of = MODELS[name]
    program = Program(make)
    main = program.main.clone()
    with program_pass.rewritten_programs() as rewritten:
        program_pass.apply(main, open_size=None)
    assert rewritten == [main]
    feed = feed_of(4)
    for op in main.global_block().ops:
        if "ngraph_engine" not in op.name():
            continue
        text = op.attrs()["graph"]
        arrays, weights = [], {}
        for value in tensors_read(op):
            producer = value.get_defining_op()
            is_weight = producer.name() == "builtin.parameter"
            known = producer.attrs()["parameter_name" if is_weight else "name"]
            array = feed[known] if known in feed else program.variable(known)
            if is_weight and keeps_weights:
                weights[len(arrays)] = array
            arrays.append(np.ascontiguousarray(array))
        signature = [(ov.Type(a.dtype).get_type_name(), a.shape) for a in arrays]
        opening = None
        if is_open:
            graph = Graph.from_string(text)
            rows = [
                [n + 10 * position if dim < 0 else None for n, dim in enumerate(spec.shape)]
                for position, spec in enumerate([*graph.inputs, *graph.states])
            ]
            opening = dynamic_shapes.SymbolicDims(signature, rows)
        builder = FunctionBuilder(Graph.from_string(text), signature, symbolic_dims=opening)
        model, positions = builder.build(weights)
        draft = Draft(model, positions, builder, RunSettings(threads=2), splits_batch=not is_open)
        yield draft, arrays


def contents(draft: Draft) -> list[Any]:
    """Returns all that a compile depends on: unless a pass changes it, the results stay."""

    def info(item: Any) -> list[tuple[str, str]]:
        return sorted((key, repr(value)) for key, value in item.get_rt_info().items())

    def node(item: ov.Node) -> tuple[Any, ...]:
        sources = [
            (o.get_node().get_name(), o.get_index(), o.get_element_type(), o.get_partial_shape())
            for o in (i.get_source_output() for i in item.inputs())
        ]
        data = item.data.tobytes() if item.get_type_name() == "Constant" else b""
        return item.get_name(), sources, repr(item.get_attributes()), info(item), data

    models = [
        (info(model), [node(op) for op in model.get_ordered_ops()]) for model in draft.models()
    ]
    return [models, list(draft.positions), draft.chunks]


# The plugin computes them wrong, or crashes, without the passes that work around its bugs.
FAULTY = ("comparing", "scalar", "moments")

IOTypes = list[tuple[str, ov.PartialShape]]


def io_types(model: ov.Model) -> tuple[IOTypes, IOTypes]:
    """Returns dtype and shape of every parameter and of every result."""
    parameters = [node.output(0) for node in model.get_parameters()]
    return tuple(
        [(o.get_element_type().get_type_name(), o.get_partial_shape()) for o in side]
        for side in (parameters, model.outputs)
    )


def assert_kept(before: IOTypes, after: IOTypes, name: str, parts: int) -> None:
    """Asserts that a pass preserves count, dtypes and shapes, except those it has to change."""
    assert [kind for kind, _ in before] == [kind for kind, _ in after]
    for (_, old), (_, new) in zip(before, after):
        if name == "make dimensions dynamic":
            assert new.relaxes(old)
        elif name == "split batch" and parts > 1:
            assert old == ov.PartialShape([new[0].get_length() * parts, *list(new)[1:]])
        else:
            assert old == new


def computed(draft: Draft, given: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the results, with those of the chunks of a batch concatenated."""
    arrays = [given[position] for position in draft.positions]
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core().compile_model(draft.model.clone(), "CPU", settings)
    shares = [np.split(array, draft.chunks) for array in arrays] if draft.chunks > 1 else None
    runs = [list(each) for each in zip(*shares)] if shares else [arrays]
    results = [list(compiled(each).values()) for each in runs]
    return [np.concatenate(each) if draft.chunks > 1 else each[0] for each in zip(*results)]


def without_updated(
    draft: Draft, before: tuple[IOTypes, IOTypes], values: list[np.ndarray] | None
) -> tuple[tuple[IOTypes, IOTypes], list[np.ndarray] | None]:
    """Returns the parameters and results that remain where optimizer updates write states."""
    _, num_outputs = draft.builder.boundary_sizes()
    written = {num_outputs + state for update in draft.updates for state in update.states}

    def left(results: list[Any]) -> list[Any]:
        return [result for place, result in enumerate(results) if place not in written]

    parameters = io_types(draft.model)[0] if draft.updates else before[0]
    return (parameters, left(before[1])), None if values is None else left(values)


@pytest.fixture(autouse=True)
def without_packed_weights() -> Iterator[None]:
    """Lets the engine convert layers that otherwise run with packed weights."""
    flags.set("use_mkl_packed", False)
    yield
    flags.set("use_mkl_packed", True)


@pytest.mark.parametrize("keeps_weights", [False, True], ids=["weights", "constants"])
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("name", MODELS)
def test_each_pass_preserves_validity_and_results(name, is_open, keeps_weights):
    if is_open and name in ("training_cnn", "classifier", "scalar"):
        pytest.skip("the program leaves nothing open")
    found = list(drafts(name, is_open, keeps_weights))
    assert found, "nothing became an interval"
    for draft, arrays in found:
        before = io_types(draft.model)
        expected = None if name in FAULTY else computed(draft, arrays)
        present = contents(draft)
        for step in PASSES:
            step.run(draft)
            draft.model.validate_nodes_and_infer_types()
            if step.name == "update in place":
                assert bool(draft.updates) == (name == "training_cnn" and not keeps_weights)
                before, expected = without_updated(draft, before, expected)
            after = io_types(draft.model)
            if draft.updates:  # inputs of the updates follow
                after = after[0], after[1][: len(before[1])]
            for old, new in zip(before, after):
                assert_kept(old, new, step.name, draft.chunks)
            before = after
            if expected is None and step.name == "compare by less":  # last of the workarounds
                expected = computed(draft, arrays)
            former, present = present, contents(draft)
            is_same = not expected or present == former
            for value, known in zip(() if is_same else computed(draft, arrays), expected or ()):
                np.testing.assert_allclose(value, known, rtol=1e-4, atol=1e-5, err_msg=step.name)


def test_passes_are_named_and_give_reasons():
    assert len({step.name for step in PASSES}) == len(PASSES)
    assert all(len(step.reason) > 20 for step in PASSES)


@pytest.mark.parametrize(
    ("name", "of_interest", "keeps_weights"),
    [
        ("training_cnn", "fuse ReLU", False),
        ("classifier", "split batch", True),
        ("comparing", "compare by less", True),
        ("comparing", "separate input of Abs", True),
        ("scalar", "squeeze to scalars", True),
        ("moments", "divide sums over samples", True),
        ("moments", "reduce without unit axes", True),
    ],
)
def test_these_models_exercise_every_pass(name, of_interest, keeps_weights):
    ((draft, _),) = drafts(name, False, keeps_weights)
    for step in PASSES:
        kinds = [node.get_type_name() for node in draft.model.get_ordered_ops()]
        shapes = io_types(draft.model)
        step.run(draft)
        changed = kinds != [node.get_type_name() for node in draft.model.get_ordered_ops()]
        if step.name == of_interest:
            assert changed or shapes != io_types(draft.model)


def test_the_engine_runs_every_pass_in_its_order(monkeypatch):
    seen: list[str] = []

    def spied(step: build.BuildPass) -> build.BuildPass:
        def run(draft: Draft) -> None:
            seen.append(step.name)
            step.run(draft)

        return step._replace(run=run)

    monkeypatch.setattr(build, "PASSES", tuple(map(spied, PASSES)))
    paddle_ngraph.clear_cache()
    program = Program(comparing)
    names = [step.name for step in PASSES]
    # Two shapes have functions of their own, the third makes the function dynamic.
    for rows, built in ((3, names), (5, names), (7, names), (9, [])):
        seen.clear()
        program.both(x=floats(rows, 130))
        assert seen == built


def test_a_build_reports_to_the_engine_by_name():
    make, _ = MODELS["classifier"]
    main = Program(make).main.clone()
    program_pass.apply(main, open_size=None)
    (text,) = [op.attrs()["graph"] for op in main.global_block().ops if "engine" in op.name()]
    graph = Graph.from_string(text)
    signature = [("f32", spec.shape) for spec in [*graph.inputs, *graph.states]]
    built = build.build_model(text, signature, {}, {}, "f32", "as given", 2)
    assert sorted(built.parameter_inputs) == list(range(len(graph.inputs)))
    assert list(built.draws) == list(built.open_sizes) == list(built.guards) == []
    # The weights are parameters, with a size other than the batch.
    assert built.parts == 1


@pytest.mark.parametrize(
    ("most", "withheld", "rest", "int8"),
    [
        ("AVX2", {"avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "avx_vnni"}, set(), False),
        ("AVX2_VNNI", {"avx512f", "avx512_vnni", "amx_int8"}, {"avx_vnni"}, True),
        # AVX-VNNI is available, but not used alongside AVX-512.
        ("AVX512_CORE", {"avx512_vnni", "avx512_bf16", "amx_bf16"}, {"avx512f"}, False),
        ("AVX512_CORE_VNNI", {"avx512_bf16", "amx_tile"}, {"avx512f", "avx512_vnni"}, True),
        ("DEFAULT", set(), {"avx512f", "amx_int8"}, True),
    ],
)
def test_instructions_disabled_for_onednn_are_unused(most, withheld, rest, int8, monkeypatch):
    """Layouts and kernels are chosen for the instructions that oneDNN and the plugin use."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most)
    names = "avx2 avx_vnni avx512f avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8"
    monkeypatch.setattr(processor, "field", lambda name: names)
    for each in (processor.withheld, processor._units, processor.has_bfloat16):
        each.cache_clear()
    try:
        found = processor.withheld()
        assert withheld <= found and found.isdisjoint(rest)
        assert processor.has_avx512() == ("avx512f" not in found)
        assert processor.has_int8() == int8
        assert processor.has_amx() == ("amx_bf16" not in found)
        if "avx512_bf16" in found:
            assert not processor.has_bfloat16()
    finally:
        monkeypatch.undo()
        for each in (processor.withheld, processor._units, processor.has_bfloat16):
            each.cache_clear()
