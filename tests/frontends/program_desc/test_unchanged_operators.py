"""ProgramDesc operators that Paddle's translation to PIR would change run as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import inference, static
from paddle.base.layer_helper import LayerHelper
from paddle.static.nn.control_flow import ConditionalBlock

import paddle_ngraph
from paddle_ngraph.frontends.program_desc import unchanged_operators
from paddle_ngraph.frontends.program_desc.chains import Chains
from paddle_ngraph.frontends.program_desc.single_assignment import NotTranslatable, operators
from paddle_ngraph.paddle_private.names import ProgramDesc, VarType
from tests.programs import Program, floats, with_untranslatable_noise


@pytest.fixture(autouse=True)
def old_ir():
    with paddle.pir_utils.OldIrGuard():
        yield


def append(kind: str, inputs: Any, outputs: dict[str, str], **attributes: Any) -> list[Any]:
    """Appends an operator to the program; ``outputs`` are dtypes by slot."""
    helper = LayerHelper(kind)
    found = {s: helper.create_variable_for_type_inference(d) for s, d in outputs.items()}
    helper.append_op(type=kind, inputs=inputs, outputs=found, attrs=attributes)
    return list(found.values())


def features(*shape: int) -> Any:
    """A network large enough for the engine, with a result of this shape."""
    x = static.data("x", [-1, 16], "float32")
    hidden = F.relu(static.nn.fc(x, 64))
    return paddle.reshape(static.nn.fc(hidden, int(np.prod(shape))), [-1, *shape])


NMS = {"score_threshold": 0.1, "nms_top_k": 20, "keep_top_k": 10, "nms_threshold": 0.5}


def detector(kind: str = "multiclass_nms") -> list[Any]:
    """Boxes with a LoD, which the operators behind pass on."""
    boxes, scores = F.relu(features(12, 4)), F.softmax(features(3, 12), 1)
    inputs = {"BBoxes": boxes, "Scores": scores}
    outputs = {"Out": "float32"}
    if kind == "multiclass_nms3":
        outputs.update(Index="int32", NmsRoisNum="int32")
    out, *others = append(kind, inputs, outputs, background_label=-1, **NMS)
    out.desc.set_lod_level(1)  # as PaddleDetection's exports declare it
    return [out, *others, paddle.scale(out, 2.0), boxes * 3.0]


def branch() -> list[Any]:
    """The condition of a branch is computed by an operator that is not translated."""
    x, kept = features(8), static.create_global_var([1], 1.0, "float32", True, name="kept")
    total = append("reduce_sum", {"X": x}, {"Out": "float32"}, dim=[0, 1], keep_dim=True)[0]
    total = paddle.reshape(total, [1])
    zero = paddle.full([1], 0.0)
    (less,) = append("less_than", {"X": zero, "Y": total}, {"Out": "bool"}, axis=-1)
    attributes = {"dim": [0], "keep_dim": True, "out_dtype": int(VarType.BOOL)}
    (flag,) = append("reduce_any", {"X": less}, {"Out": "bool"}, **attributes)
    with ConditionalBlock([flag], is_scalar_condition=True).block():
        paddle.assign(kept * 2.0 + total, output=kept)
    return [x * 3.0, kept + 1.0]


def loop() -> list[Any]:
    """An operator in the body of a loop is not translated."""
    x = features(8)

    def body(i: Any, value: Any) -> list[Any]:
        attributes = {"threshold": 4.0, "scale": 5.0, "offset": 2.5}
        (found,) = append("hard_swish", {"X": value}, {"Out": "float32"}, **attributes)
        return [i + 1, found * 0.5]

    end = paddle.full([1], 3, "int64")
    start = [paddle.full([1], 0, "int64"), x]
    return [static.nn.while_loop(lambda i, _: i < end, body, start)[1]]


def overlap() -> list[Any]:
    """An operator writes over an operand."""
    x, kept = features(8), static.create_global_var([8, 8], 0.5, "float32", True, name="kept")
    out = append("matmul_v2", {"X": x, "Y": kept}, {"Out": "float32"})[0]
    block = static.default_main_program().global_block()
    inputs, attributes = {"X": [kept], "Y": [kept]}, {"trans_x": True}
    block.append_op(type="matmul_v2", inputs=inputs, outputs={"Out": [kept]}, attrs=attributes)
    return [out, paddle.scale(kept, 2.0)]


def many_outputs() -> list[Any]:
    x = features(24)
    helper = LayerHelper("split")
    outs = [helper.create_variable_for_type_inference("float32") for _ in range(3)]
    attributes = {"num": 3, "sections": [8, 8, 8], "axis": 1}
    helper.append_op(type="split", inputs={"X": x}, outputs={"Out": outs}, attrs=attributes)
    return [outs[0] * 2.0, outs[2]]


def with_attribute_variables(kind: str, inputs: Any, output: str, **numbers: Any) -> Any:
    """Appends an operator that reads variables in place of attributes; a list has one each."""
    (out,) = append(kind, inputs, {output: "float32"})
    op = static.default_main_program().current_block().ops[-1].desc
    for name, variables in numbers.items():
        if isinstance(variables, list):
            op.set_vars_attr(name, [each.desc for each in variables])
        else:
            op.set_var_attr(name, variables.desc)
    return out


def axis_is_a_variable() -> list[Any]:
    boxes, *_ = detector()
    axis = paddle.full([1], 1, "int64")
    summed = with_attribute_variables("cumsum", {"X": boxes}, "Out", axis=axis)
    return [summed, paddle.scale(boxes, 2.0)]


def axis_differs_in_each_run() -> list[Any]:
    """The axis is that of the larger of two inputs, of which the operator has a LoD."""
    boxes, *others = detector()
    x = static.default_main_program().global_block().var("x")
    axis = (paddle.reshape(F.relu(x), [-1])[0:1] > paddle.full([1], 0.0)).astype("int64")
    return [with_attribute_variables("cumsum", {"X": boxes}, "Out", axis=axis), *others]


PROGRAMS = {
    "variable as axis": (axis_is_a_variable, "cumsum"),
    "axis of a run": (axis_differs_in_each_run, "cumsum"),
    "multiclass_nms": (detector, "multiclass_nms"),
    "branch": (branch, "reduce_any"),
    "loop": (loop, "hard_swish"),
    "overlap": (overlap, "matmul_v2"),
    "many outputs": (many_outputs, "split"),
}


@pytest.mark.usefixtures("small_intervals_pay")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_rest_of_the_program_runs_in_the_engine(name):
    build, type = PROGRAMS[name]
    native, engine = Program(build), Program(build)
    report = paddle_ngraph.explain(engine.main)
    assert type in {op.type for op in report.native}
    for seed in range(3):
        feed = {"x": floats(2 + seed, 16, seed=seed)}
        results = [_run(p, is_on, feed) for p, is_on in ((native, False), (engine, True))]
        for expected, found in zip(*results):
            assert found.lod() == expected.lod()
            np.testing.assert_allclose(np.array(found), np.array(expected), 1e-5, 1e-6)
    assert paddle_ngraph.stats()["engine_runs"] > 0
    if name == "multiclass_nms":
        assert results[1][0].lod() and results[1][1].lod()
        for is_on in (False, True):
            with pytest.raises(RuntimeError, match="hold LoD information"):
                (engine if is_on else native).run(is_on, **feed)


def attribute_is_a_block() -> list[Any]:
    """An attribute that refers to a block, as a damaged file may have it."""
    attributes = {"threshold": 4.0, "scale": 5.0, "offset": 2.5}
    found = append("hard_swish", {"X": features(8)}, {"Out": "float32"}, **attributes)
    program = static.default_main_program()
    program.global_block().ops[-1].desc.set_block_attr("unknown", program.desc.block(0))
    return found


def prints() -> list[Any]:
    return [static.Print(detector()[0], message="boxes")]


def calls_python() -> list[Any]:
    out = detector()[0]
    block = static.default_main_program().current_block()
    doubled = block.create_var(name="doubled", dtype="float32", shape=[-1, 6], lod_level=1)
    static.py_func(lambda boxes: np.array(boxes) * 2.0, out, doubled)
    return [doubled]


@pytest.mark.usefixtures("small_intervals_pay")
@pytest.mark.parametrize("build", [attribute_is_a_block, prints, calls_python])
def test_operators_with_effects_run_in_place_and_damaged_ones_by_paddle(build, capfd):
    results, feed = [], {"x": floats(2, 16)}
    for is_on in (False, True):
        program = Program(build)
        tensors = _run(program, is_on, feed)
        found = [np.array(each) for each in tensors], [each.lod() for each in tensors]
        results.append((*found, capfd.readouterr().out))
    (expected, lod, printed), (found, engine_lod, engine_printed) = results
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
    assert (engine_lod, engine_printed) == (lod, printed)
    reasons = {op.reason for op in paddle_ngraph.explain(program.main).native}
    is_whole = all(each.startswith("the program runs natively") for each in reasons)
    assert is_whole == (build is attribute_is_a_block)
    assert is_whole == (paddle_ngraph.stats()["engine_runs"] == 0)


def _run(program: Program, is_on: bool, feed: dict[str, Any]) -> list[Any]:
    with static.scope_guard(program.scope), paddle_ngraph.use_ngraph(is_on):
        return program.executor.run(
            program.main, feed=dict(feed), fetch_list=program.fetches, return_numpy=False
        )


def test_loops_that_share_their_bodies_receive_a_mark_once():
    """As in a damaged file: the number of ways into the innermost block doubles with each level."""
    description = ProgramDesc()
    blocks = [description.block(0)]
    for name in ("x", "y"):
        variable = blocks[0].var(name.encode())
        variable.set_type(VarType.DENSE_TENSOR)
        variable.set_dtype(VarType.FP32)
        variable.set_shape([2])
    for level in range(5):
        blocks.append(description.append_block(blocks[-1]))
        for _ in range(2):
            loop = blocks[level].append_op()
            loop.set_type("while")
            loop.set_input("X", ["x"])
            loop.set_block_attr("sub_block", blocks[-1])
    op = blocks[-1].append_op()
    op.set_type("hard_swish")
    op.set_input("X", ["x"])
    op.set_output("Out", ["y"])
    unchanged_operators.replace(description, blocks[-1], op, 0, "reason")
    for block in blocks[:-1]:
        for loop in map(block.op, range(2)):
            assert len(loop.input("X")) == 2


# -- variables in place of attributes that are translated ------------------------------------------


def sizes_of_an_unpooling() -> list[Any]:
    """As `max_unpool2d` to the size of a tensor, in an export for pictures of any size."""
    pictures = features(4, 8, 8)
    pooled, mask = F.max_pool2d(pictures, 2, return_mask=True)
    size = paddle.shape(pictures)
    sizes = [size[2:3].desc, size[3:4].desc]
    inputs, attributes = {"X": pooled, "Indices": mask}, {"ksize": [2, 2], "strides": [2, 2]}
    (out,) = append("unpool", inputs, {"Out": "float32"}, unpooling_type="max", **attributes)
    op = static.default_main_program().current_block().ops[-1].desc
    op.set_vars_attr("output_size", sizes)
    return [out * 2.0]


def axis_of_a_parameter() -> list[Any]:
    axis = static.create_global_var([1], 1, "int64", persistable=True, name="axis")
    return [with_attribute_variables("cumsum", {"X": features(8)}, "Out", axis=axis) * 2.0]


def axis_in_a_loop() -> list[Any]:
    """The variable is overwritten between its readings."""
    x = features(8)

    def body(i: Any, value: Any) -> list[Any]:
        axis = paddle.assign(i)
        found = with_attribute_variables("cumsum", {"X": value}, "Out", axis=axis)
        paddle.assign(1 - i, output=axis)
        return [i + 1, found + with_attribute_variables("cumsum", {"X": value}, "Out", axis=axis)]

    end, start = paddle.full([1], 2, "int64"), paddle.full([1], 0, "int64")
    return [static.nn.while_loop(lambda i, _: i < end, body, [start, x])[1]]


@pytest.mark.usefixtures("small_intervals_pay")
@pytest.mark.parametrize("build", [sizes_of_an_unpooling, axis_of_a_parameter, axis_in_a_loop])
def test_variables_in_place_of_attributes_are_translated(build):
    native, engine = Program(build), Program(build)
    report = paddle_ngraph.explain(engine.main)
    assert report.intervals
    assert all(op.type.startswith("pd_op.") for op in report.native), report
    for seed in range(2):
        feed = {"x": floats(2 + seed, 16, seed=seed)}
        for expected, found in zip(native.run(False, **feed), engine.run(True, **feed)):
            np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
    assert paddle_ngraph.stats()["engine_runs"] > 0


# -- predictors ------------------------------------------------------------------------------------


def sequences() -> list[Any]:
    """An output that has the LoD of its input, in a program that reads no LoD."""
    return [features(8) * 2.0]


def segmentation() -> list[Any]:
    """An attribute that has another name in PIR, off its default."""
    (out,) = append("leaky_relu", {"X": features(8)}, {"Out": "float32"}, alpha=0.3)
    return [out]


def anchors() -> list[Any]:
    """Constants that operators without a converter read: Paddle's predictors compute them once."""
    found, x = [], features(8, 8)
    for step in (1.0, 2.0, 3.0):
        rows = [paddle.full([8], 1.0) * step + shift for shift in (0.5, 1.5)]
        found += [x + grid for grid in paddle.meshgrid(*rows)]
    return found


def saved(tmp_path: Path, build: Any, feeds: Sequence[str] = ("x",)) -> tuple[str, str]:
    program = Program(build)
    _run(program, False, {name: floats(3, 16) for name in feeds})  # initializes what outlives it
    with static.scope_guard(program.scope):
        inputs = [program.main.global_block().var(name) for name in feeds]
        fetches = [program.main.global_block().var(each.name) for each in program.fetches]
        static.save_inference_model(
            str(tmp_path / "model"), inputs, fetches, program.executor, program=program.main
        )
    return str(tmp_path / "model.pdmodel"), str(tmp_path / "model.pdiparams")


def config_of(files: tuple[str, str]) -> Any:
    config = inference.Config(*files)
    config.disable_onednn()
    return config


def predicted(files: tuple[str, str], is_on: bool, runs: list[tuple[np.ndarray, Any]]) -> list[Any]:
    """The results, with their LoD, of a predictor for inputs with a LoD."""
    found, config = [], config_of(files)
    with paddle_ngraph.use_ngraph(is_on):
        predictor = inference.create_predictor(config)
        for x, lod in runs:
            handle = predictor.get_input_handle("x")
            handle.copy_from_cpu(x)
            handle.set_lod(lod)
            predictor.run()
            handles = map(predictor.get_output_handle, predictor.get_output_names())
            found.append([(each.copy_to_cpu(), each.lod()) for each in handles])
    return found


@pytest.mark.usefixtures("small_intervals_pay")
@pytest.mark.parametrize(
    "build", [detector, partial(detector, "multiclass_nms3"), sequences, segmentation, anchors]
)
def test_predictors_of_old_files(tmp_path, build):
    files = saved(tmp_path, build)
    lods: list[Any] = [[], [[0, 1, 3]], []]
    runs = [(floats(3, 16, seed=seed), lod) for seed, lod in enumerate(lods)]
    expected, found = (predicted(files, is_on, runs) for is_on in (False, True))
    for results in zip(expected, found):
        for (value, lod), (other, other_lod) in zip(*results):
            np.testing.assert_allclose(other, value, rtol=1e-5, atol=1e-6)
            assert other_lod == lod
    assert paddle_ngraph.stats()["engine_runs"] > 0
    report = paddle_ngraph.explain(config_of(files))
    assert report.why_native is None and report.intervals


def test_explain_reports_models_that_cannot_be_translated(tmp_path):
    def with_noise() -> list[Any]:
        return [with_untranslatable_noise(paddle.scale(features(3), 2.0))]

    report = paddle_ngraph.explain(config_of(saved(tmp_path, with_noise)))
    assert "the translation loses diag_num" in str(report)
    assert {op.type for op in report.native} >= {"uniform_random", "scale"}


def with_an_unread_input() -> list[Any]:
    """As the exports of TTFNet: an operand of a loop that its body does not need."""
    x, unread = features(8), static.data("unread", [-1, 16], "float32")

    def body(i: Any, value: Any, other: Any) -> list[Any]:
        paddle.scale(other, 2.0)
        return [i + 1, value * 0.5, other]

    end, start = paddle.full([1], 2, "int64"), paddle.full([1], 0, "int64")
    return [static.nn.while_loop(lambda i, *_: i < end, body, [start, x, unread])[1]]


@pytest.mark.usefixtures("small_intervals_pay")
def test_predictors_and_clones_have_handles_of_inputs_that_nothing_reads(tmp_path):
    config = config_of(saved(tmp_path, with_an_unread_input, ("unread", "x")))
    results = []
    for is_on in (False, True):
        with paddle_ngraph.use_ngraph(is_on):
            predictor = inference.create_predictor(config)
            for each in (predictor, predictor.clone()):
                for rows in (2, 3):
                    for name in each.get_input_names():
                        each.get_input_handle(name).copy_from_cpu(floats(rows, 16))
                    each.run()
                    (name,) = each.get_output_names()
                    results.append(each.get_output_handle(name).copy_to_cpu())
            assert predictor.get_input_handle("unread").shape() == [3, 16]
    for expected, found in zip(results[:4], results[4:]):
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
    assert paddle_ngraph.stats()["engine_runs"] > 0


def _one_operator(type: str, kind: Any = None, reads: str = "X", **attributes: Any) -> Any:
    """A program of one operator, whose input and output are variables of this kind."""
    program = static.Program()
    block = program.global_block()
    options = {} if kind is None else {"type": kind}
    x, y = (block.create_var(name=name, dtype="float32", **options) for name in "xy")
    block.append_op(type=type, inputs={reads: [x]}, outputs={"Out": [y]}, attrs=attributes)
    return program.desc


# Attributes of `print`, which has no defaults.
PRINTED = {
    **dict.fromkeys(("first_n", "summarize"), -1),
    **dict.fromkeys(
        [f"print_tensor_{part}" for part in ("name", "type", "shape", "layout", "lod")], True
    ),
    **{"message": "", "print_phase": "FORWARD"},
}


@pytest.mark.parametrize(
    ("description", "obstacle"),
    [
        (lambda: _one_operator("py_func", forward_callable_id=0), "calls Python"),
        (lambda: _one_operator("print", reads="In", **PRINTED), "acts in an order"),
        (lambda: _one_operator("bernoulli"), "draws from the generator"),
        (lambda: _one_operator("relu", VarType.SELECTED_ROWS), "rows of a sparse gradient"),
        (lambda: _one_operator("relu", VarType.DENSE_TENSOR_ARRAY), "a TensorArray"),
    ],
)
def test_predictors_refuse_programs_with_the_obstacle(description: Any, obstacle: str) -> None:
    (op,) = operators(description().block(0))
    with pytest.raises(NotTranslatable, match=f"a reason; {op.type()} cannot .* {obstacle}"):
        Chains(description()).reject({0: "a reason"})
