"""ProgramDesc programs: information that Paddle's translation to PIR loses, and PIR operators
without a kernel.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle.static.nn.control_flow import ConditionalBlock

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.conversion import denylist, registry
from paddle_ngraph.frontends.program_desc import translation
from tests.programs import Program, floats, with_a_block_as_attribute


def an_xshape():
    block = paddle.static.default_main_program().global_block()
    x = paddle.static.data("x", [2, 3], "float32")
    out = block.create_var(name="out", dtype="float32")
    xshape = block.create_var(name="xshape", dtype="float32", persistable=True)
    outputs = {"Out": out, "XShape": xshape}
    block.append_op(type="squeeze2", inputs={"X": x}, outputs=outputs, attrs={"axes": []})
    return out


def gradient_of_a_reshape(x):
    out = paddle.reshape(x, [-1])
    (gradient,) = paddle.static.gradients(out, [x])
    return [out, gradient]


def of_a_random_number():
    x = paddle.rand([])
    x.stop_gradient = False
    return gradient_of_a_reshape(paddle.scale(x, 2.0))


def of_a_feed():
    x = paddle.static.data("x", [2, 3], "float32")
    x.stop_gradient = False
    return gradient_of_a_reshape(paddle.scale(x, 2.0))


def of_any_shape():
    """Each operator whose gradient restores a shape, of which only a run knows all."""
    x = paddle.static.data("x", [-1, 1, 3], "float32")
    x.stop_gradient = False
    out = paddle.scale(paddle.reshape(paddle.scale(x, 2.0), [1, -1, 3, 1]), 3.0)
    out = paddle.scale(paddle.unsqueeze(paddle.squeeze(out, [0, 3]), [1]), 0.5)
    out = paddle.scale(paddle.flatten(out, 0, 1), 1.5)
    return [out, *paddle.static.gradients(out, [x])]


SHAPES = [
    (of_a_random_number, {}),
    (of_a_feed, {"x": floats(2, 3)}),
    (of_any_shape, {"x": floats(5, 1, 3)}),
    (of_any_shape, {"x": floats(1, 1, 3)}),
]


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize("step", ["", "compile"])
@pytest.mark.parametrize(("build", "feed"), SHAPES)
def test_gradients_restore_shapes_that_the_translation_lost(build, feed, step):
    with paddle.pir_utils.OldIrGuard():
        program = Program(build)
        results = []
        for engine in (False, True):
            paddle.seed(5)
            paddle_ngraph.clear_cache()
            _core.fail_at(step if engine else "")
            results.append(program.run(engine, **feed))
            _core.fail_at("")
        for expected, found in zip(*results):
            np.testing.assert_allclose(found, expected)
        assert paddle_ngraph.stats()["native_runs" if step else "engine_runs"] > 0
        denylist.clear()
        assert not paddle_ngraph.explain(program.main).native


@pytest.mark.parametrize(("build", "feed"), SHAPES)
def test_native_gradients_restore_them_too(build, feed, leave_native):
    """Gradients read valid shapes also if their operators are not converted."""
    types = registry.all_converters()
    leave_native(*(t for t in types if "squeeze_grad" in t or "reshape_grad" in t))
    with paddle.pir_utils.OldIrGuard():
        program = Program(build)
        results = []
        for engine in (False, True):
            paddle.seed(5)
            results.append(program.run(engine, **feed))
        for expected, found in zip(*results):
            np.testing.assert_allclose(found, expected)
        assert paddle_ngraph.stats()["engine_runs"] > 0
        assert {op.type for op in paddle_ngraph.explain(program.main).native} & {
            "pd_op.reshape_grad",
            "pd_op.squeeze_grad",
        }


def merged_momentum():
    loss = paddle.mean(paddle.static.nn.fc(paddle.static.data("x", [2, 3], "float32"), 2))
    paddle.optimizer.Momentum(0.1, use_multi_tensor=True).minimize(loss)
    return loss


def a_kept_piece():
    first, second = paddle.split(paddle.static.data("x", [2, 3], "float32"), 2)
    first.persistable = True
    return paddle.scale(second, 2.0)


def damaged():
    x = paddle.scale(paddle.static.data("x", [2, 3], "float32"), 2.0)
    return with_a_block_as_attribute(x)


def a_level_of_detail():
    x = paddle.static.data("x", [2, 3], "float32")
    x.stop_gradient = False
    block = paddle.static.default_main_program().global_block()
    out = block.create_var(name="out", dtype="float32")
    inputs, attributes = {"X": x}, {"target_lod": [0, 1, 2]}
    block.append_op(type="lod_reset", inputs=inputs, outputs={"Out": out}, attrs=attributes)
    return paddle.static.gradients(paddle.mean(out), [x])[0]


def readings_of_an_array(*positions):
    """A program whose gradient sums an array for each reading."""
    x = paddle.static.data("x", [2, 3], "float32")
    x.stop_gradient = False
    places = [paddle.tensor.fill_constant([1], "int64", i) for i in range(max(positions) + 1)]
    array = paddle.tensor.array_write(x * x, places[0])
    array.stop_gradient = False
    for i, place in enumerate(places[1:], 2):
        paddle.tensor.array_write(x * float(i), place, array=array)
    read = [paddle.tensor.array_read(array, places[i]) for i in positions]
    loss = sum(paddle.mean(each * float(i)) for i, each in enumerate(read, 2))
    return paddle.static.gradients(loss, [x])[0]


UNCHANGED = [
    (an_xshape, "squeeze2"),
    (merged_momentum, "merged_momentum"),
    (a_level_of_detail, "lod_reset"),
]


@pytest.mark.parametrize(("build", "type"), [*UNCHANGED, (a_kept_piece, "")])
def test_operators_that_the_translation_loses_stay_as_they_are(build, type):
    with paddle.pir_utils.OldIrGuard():
        native, engine = Program(build), Program(build)
        for _ in range(2):
            (expected,) = native.run(engine=False, x=floats(2, 3))
            np.testing.assert_allclose(engine.run(x=floats(2, 3))[0], expected, rtol=1e-6)
        report = paddle_ngraph.explain(engine.main)
        assert not type or type in {op.type for op in report.native}
        assert not any("the program runs natively" in op.reason for op in report.native)
        assert paddle_ngraph.stats()["engine_runs"] > 0 or build is not merged_momentum
    kept = {var.name for var in native.main.list_vars() if var.persistable}
    for name in kept & set(native.scope.local_var_names()):
        tensors = [p.scope.find_var(name).get_tensor() for p in (native, engine)]
        assert tensors[0].shape() == tensors[1].shape()


def members_of_lists():
    """Lists of which all members are read, some, and one in each order."""
    x = paddle.static.data("x", [4, 6], "float32")
    first, second, third = paddle.split(paddle.scale(x, 2.0), 3, axis=1)
    rows = paddle.unstack(first + third, axis=0)
    return [rows[3] - rows[1], paddle.scale(second, 3.0), paddle.scale(rows[0], 0.5)]


def members_in_a_loop():
    """A list inside of a loop."""
    x = paddle.static.data("x", [4, 6], "float32")
    first, second = (paddle.scale(part, 2.0) for part in paddle.split(x, 2, axis=1))

    def body(index, total):
        left, right = paddle.split(total, [1, 3], axis=0)
        return [index + 1, paddle.concat([right, left]) + first - second]

    count = paddle.full([1], 0, "int64")
    return paddle.static.nn.while_loop(lambda i, t: i < 3, body, [count, second])[1]


def members_read_in_a_loop():
    """A list outside of a loop whose members iterations read, and operators after the loop."""
    x = paddle.static.data("x", [4, 6], "float32")
    parts = paddle.split(paddle.scale(x, 2.0), 3, axis=1)
    start = [paddle.full([1], 0, "int64"), paddle.scale(parts[0], 0.5)]
    body = lambda i, total: [i + 1, total * 0.5 + parts[2] - parts[1]]  # noqa: E731
    total = paddle.static.nn.while_loop(lambda i, total: i < 3, body, start)[1]
    return [total + parts[0], parts[2]]


@pytest.mark.parametrize("build", [members_of_lists, members_in_a_loop, members_read_in_a_loop])
def test_members_of_lists_are_known(build, small_intervals_pay):
    with paddle.pir_utils.OldIrGuard():
        program = Program(build)
        program.both(x=floats(4, 6))
        assert not paddle_ngraph.explain(program.main).native


@pytest.mark.parametrize("positions", [(0, 0), (0, 0, 0), (1, 0, 1), (0, 1, 1, 0)])
def test_sums_of_arrays(positions, small_intervals_pay):
    with paddle.pir_utils.OldIrGuard():
        program = Program(lambda: readings_of_an_array(*positions))
        x = floats(2, 3)
        grads = [2 * x, np.full_like(x, 2)]
        expected = sum(grads[place] * i / x.size for i, place in enumerate(positions, 2))
        for _ in range(3):
            np.testing.assert_allclose(program.run(x=x)[0], expected, 1e-5)
        assert paddle_ngraph.stats()["engine_runs"] > 0


def blocks_in_blocks():
    x = paddle.static.data("x", [4, 6], "float32")

    def branch(condition, source, factor, output):
        with ConditionalBlock([condition], is_scalar_condition=True).block():
            paddle.assign(F.relu(paddle.scale(source, factor)) + 1.0, output=output)

    start, chosen = F.relu(paddle.scale(x, 3.0)) + 1.0, paddle.scale(x, 0.5)
    large = paddle.reshape(paddle.mean(x), [1]) > paddle.full([1], 0.0)
    branch(large, x, 2.0, chosen)
    branch(large, chosen, -3.0, chosen)

    def body(i, value):
        doubled = F.relu(paddle.scale(value, 0.5)) + 1.0
        branch(i > paddle.full([1], 1, "int64"), value, 0.25, doubled)
        return [i + 1, doubled]

    begin, end = [paddle.full([1], 0, "int64"), start], paddle.full([1], 4, "int64")
    total = paddle.static.nn.while_loop(lambda i, _: i < end, body, begin)[1]
    return [chosen + start, total]


@pytest.mark.parametrize("number", ["0", "inner"])
def test_variables_of_one_name_in_several_blocks(number, small_intervals_pay):
    """Of inner blocks, and with the number 0 of the outermost, too."""
    with paddle.pir_utils.OldIrGuard():
        program = Program(blocks_in_blocks)
        for block in program.main.blocks[1:]:
            for name in [name for name in block.vars if name.startswith(("scale", "relu"))]:
                renamed = f"{name.partition('_')[0]}_{number}.tmp_0"
                block._rename_var(name.encode(), renamed.encode())
        names = [name for block in program.main.blocks for name in block.vars]
        assert len(names) - len(set(names)) >= 6
        for x in (floats(4, 6), floats(4, 6) - 1):
            program.both(x=x)
        assert not any(
            "the program runs natively" in op.reason
            for op in paddle_ngraph.explain(program.main).native
        )


def test_explain_reports_the_fallback():
    with paddle.pir_utils.OldIrGuard():
        program = Program(damaged)
    report = paddle_ngraph.explain(program.main)
    assert report.ops_converted == 0
    assert {op.type for op in report.native} >= {"relu", "scale"}
    assert all("the program runs natively" in op.reason for op in report.native)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_reductions_over_everything(name, dtype):
    """As Paddle 1 wrote them: axis 0 and ``reduce_all``, of which the translation keeps axis 0."""

    def build():
        x = paddle.static.data("x", [3, 4], "float32")
        x.stop_gradient = False
        block = paddle.static.default_main_program().global_block()
        out = block.create_var(dtype=dtype)
        inputs = {"X": paddle.cast(paddle.scale(x, 2.0), dtype)}
        attributes = {"dim": [0], "reduce_all": True, "keep_dim": False}
        block.append_op(
            type=f"reduce_{name}", inputs=inputs, outputs={"Out": out}, attrs=attributes
        )
        return [out, *paddle.static.gradients(out, [x])]

    with paddle.pir_utils.OldIrGuard():
        program = Program(build)
        for _ in range(2):
            out, gradient = program.both(x=floats(3, 4))
            assert out.shape == ()
            assert gradient.shape == (3, 4)


PRODUCTS = [  # declared X, Y, where each is cut into rows and columns, fed X
    ([-1, 4, 6], [6, 5], 2, 1, (2, 4, 6)),
    ([-1, 4, 6], [24, 5], 1, 1, (2, 4, 6)),
    ([-1, -1, 6], [6, 5], 2, 1, (2, 4, 6)),
    ([-1, -1, 6, 3], [18, 5], 2, 1, (2, 4, 6, 3)),
    ([-1, 4, 6, 3], [18, 5], 2, 1, (2, 4, 6, 3)),
    ([-1, 4, -1, 3], [3, 5], 3, 1, (2, 4, 7, 3)),
    ([-1, 6, 1, 1], [6, 5], 1, 1, (3, 6, 1, 1)),
    ([-1, 6], [6, 5, 2], 1, 1, (2, 6)),
    ([-1, 6], [2, 3, 5], 1, 2, (2, 6)),
    ([-1, 4, 6], [2, 3, 5, 2], 2, 2, (2, 4, 6)),
]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(("x_shape", "y_shape", "split", "y_split", "fed"), PRODUCTS)
def test_products_as_paddle_1_wrote_them(x_shape, y_shape, split, y_split, fed, gradients):
    """``mul`` flattens its operands; the shape that the translation declares is wrong."""

    def build():
        x = paddle.static.data("x", x_shape, "float32")
        x.stop_gradient = False
        block = paddle.static.default_main_program().global_block()
        y = paddle.static.create_parameter(y_shape, "float32")
        product = block.create_var(dtype="float32")
        inputs = {"X": paddle.scale(x, 2.0), "Y": y}
        attributes = {"x_num_col_dims": split, "y_num_col_dims": y_split}
        block.append_op(type="mul", inputs=inputs, outputs={"Out": product}, attrs=attributes)
        out = paddle.scale(product, 1.5)
        return [out, *paddle.static.gradients(out, [x, y])] if gradients else [out]

    with paddle.pir_utils.OldIrGuard():
        program = Program(build)
        for seed in range(2):
            for found, expected in zip(
                program.both(x=floats(*fed, seed=seed)),
                program.run(False, x=floats(*fed, seed=seed)),
            ):
                assert found.shape == expected.shape
        report = paddle_ngraph.explain(program.main)
    assert report.share == 1.0
    assert len(report.intervals) == 1


@pytest.mark.parametrize("columns", permutations(range(3)), ids=str)
def test_inputs_come_in_the_order_of_their_columns(columns):
    """However the operators that feed them lie in the file."""
    with paddle.pir_utils.OldIrGuard(), paddle.static.program_guard(paddle.static.Program()):
        main = paddle.static.default_main_program()
        for column in range(3):
            paddle.static.data(f"x{column}", [2], "float32")
        block = main.global_block()
        holder = block.create_var(
            name="feed", type=paddle.base.core.VarDesc.VarType.FEED_MINIBATCH, persistable=True
        )
        for column in columns:
            block.append_op(
                type="feed",
                inputs={"X": holder},
                outputs={"Out": f"x{column}"},
                attrs={"col": column},
            )
        block.append_op(type="sum", inputs={"X": ["x0", "x1", "x2"]}, outputs={"Out": "x0"})
    program = translation.translate(main.desc)
    operators = program.global_block().ops
    found = [op.attrs()["col"] for op in operators if op.name() == "pd_op.feed"]
    assert found == [0, 1, 2]
