"""ProgramDesc programs step by step: results, variables and exposed memory match plain Paddle."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import static
from paddle.base import core
from paddle.base.layer_helper import LayerHelper

import paddle_ngraph
from tests.programs import Program, floats

PROGRAMS: dict[str, tuple[Any, bool]] = {}


def program(build=None, *, engine=True):
    """Adds a program to the list; ``engine``: whether the engine is to run some of it."""
    if build is None:
        return lambda build: program(build, engine=engine)
    PROGRAMS[build.__name__] = build, engine
    return build


def data(*shape, dtype="float32", name="x", lod_level=0):
    return static.data(name, list(shape), dtype, lod_level=lod_level)


def train(loss, optimizer=None):
    (optimizer or paddle.optimizer.SGD(0.1)).minimize(loss)
    return loss


def append(kind, inputs, attributes=None, out=None, slot="Out"):
    helper = LayerHelper(kind)
    out = out if out is not None else helper.create_variable_for_type_inference("float32")
    helper.append_op(type=kind, inputs=inputs, outputs={slot: [out]}, attrs=attributes or {})
    return out


def state(value=0.0, shape=(8,), name="state", dtype="float32"):
    return static.create_global_var(list(shape), value, dtype, persistable=True, name=name)


# -- layers of paddle.static.nn ------------------------------------------------------------------


@program
def fc_of_rank_three():
    hidden = static.nn.fc(data(None, 3, 8), 6, num_flatten_dims=2, activation="relu")
    out = static.nn.fc(hidden, 4, num_flatten_dims=2)
    return [train(out.mean(), paddle.optimizer.Adam(0.01)), out]


@program
def fc_of_pictures():
    return train(static.nn.fc(F.relu(data(None, 3, 4, 4)), 5, activation="tanh").mean())


@program
def classic_cnn():
    hidden = static.nn.conv2d(data(None, 3, 8, 8), 8, 3, padding=1, bias_attr=False)
    hidden = F.max_pool2d(static.nn.batch_norm(hidden, act="relu"), 2)
    logits = static.nn.fc(hidden, 4)
    loss = F.cross_entropy(logits, data(None, 1, dtype="int64", name="y")).mean()
    return train(loss, paddle.optimizer.Momentum(0.01, 0.9))


@program
def conv2d_transpose():
    return train(static.nn.conv2d_transpose(data(None, 3, 6, 6), 4, filter_size=3).mean())


@program
def conv3d():
    return train(static.nn.conv3d(data(None, 2, 4, 4, 4), 4, 3).mean())


@program
def conv3d_transpose():
    return train(static.nn.conv3d_transpose(data(None, 2, 4, 4, 4), 4, filter_size=3).mean())


@program
def embedding():
    rows = static.nn.embedding(data(None, 5, dtype="int64", name="y"), (4, 8))
    return train(static.nn.fc(rows, 3, num_flatten_dims=2).mean(), paddle.optimizer.AdamW(0.01))


@program
def sparse_embedding():
    rows = static.nn.embedding(data(None, 5, dtype="int64", name="y"), (4, 8), is_sparse=True)
    loss = static.nn.fc(F.relu(rows), 3, num_flatten_dims=2).mean()
    return train(loss, paddle.optimizer.Adam(0.01, lazy_mode=True))


@program
def layer_norm():
    normal = static.nn.layer_norm(data(None, 4, 8), begin_norm_axis=2)
    return train(F.relu(normal).mean(), paddle.optimizer.Adagrad(0.1))


@program
def group_norm():
    return train(F.relu(static.nn.group_norm(data(None, 4, 6, 6), 2)).mean())


@program
def instance_norm():
    return train(F.relu(static.nn.instance_norm(data(None, 4, 6, 6))).mean())


@program
def prelu():
    hidden = static.nn.conv2d(data(None, 3, 5, 5), 4, 3)
    return train(static.nn.prelu(hidden, mode="channel").mean())


@program
def bilinear_tensor_product():
    x, z = data(None, 4), data(None, 5, name="z")
    return train(static.nn.bilinear_tensor_product(x, z, 3).mean())


@program
def deformable_convolution():
    offsets = data(None, 18, 4, 4, name="offsets")
    return train(static.nn.deform_conv2d(data(None, 3, 6, 6), offsets, None, 4, 3).mean())


@program(engine=False)
def sequence_pool():
    return static.nn.sequence_pool(F.relu(data(-1, 4, lod_level=1)) * 2.0, "sum")


# -- training ------------------------------------------------------------------------------------


def classifier():
    logits = static.nn.fc(static.nn.fc(data(None, 8), 6, activation="relu"), 5)
    return F.cross_entropy(logits, data(None, 1, dtype="int64", name="y")).mean()


@program
def nesterov():
    return train(classifier(), paddle.optimizer.Momentum(0.1, 0.9, use_nesterov=True))


@program
def rmsprop():
    return train(classifier(), paddle.optimizer.RMSProp(0.01))


@program
def lamb():
    return train(classifier(), paddle.optimizer.Lamb(0.01))


@program
def dropout():
    return train(F.dropout(static.nn.fc(data(None, 8), 5), 0.3).mean())


@program
def gradient_merge():
    from paddle.incubate.optimizer import GradientMergeOptimizer

    return train(classifier(), GradientMergeOptimizer(paddle.optimizer.SGD(0.05), k_steps=3))


@program
def gradient_merge_of_momentum():
    from paddle.incubate.optimizer import GradientMergeOptimizer

    inner = paddle.optimizer.Momentum(0.05, 0.9)
    return train(classifier(), GradientMergeOptimizer(inner, k_steps=2, avg=False))


@program
def lookahead():
    return train(classifier(), paddle.incubate.LookAhead(paddle.optimizer.SGD(0.1), 0.5, 2))


@program
def model_average():
    loss = train(classifier())
    paddle.incubate.ModelAverage(0.15, min_average_window=2, max_average_window=4)
    return loss


@program
def recompute():
    from paddle.incubate.optimizer import RecomputeOptimizer

    hidden = static.nn.fc(data(None, 8), 8, activation="relu")
    loss = static.nn.fc(hidden, 8, activation="relu").mean()
    optimizer = RecomputeOptimizer(paddle.optimizer.SGD(0.1))
    optimizer._set_checkpoints([hidden])
    return train(loss, optimizer)


@program
def moving_average_of_a_parameter():
    loss = train(classifier())
    parameter = static.default_main_program().all_parameters()[0]
    average = state(0.0, parameter.shape, "average")
    paddle.assign(average * 0.9 + parameter * 0.1, output=average)
    return [loss, average * 2.0]


@program
def learning_rate_computed_in_the_program():
    step = state(0.0, (1,), "step")
    paddle.increment(step)
    rate = append("scale", {"X": step}, {"scale": 0.05, "bias": 0.01})
    rate.persistable = False
    return [train(classifier()), rate]


@program
def piecewise_decay():
    return train(
        classifier(), paddle.optimizer.SGD(paddle.optimizer.lr.PiecewiseDecay([2], [0.1, 0.01]))
    )


@program
def noam_decay():
    return train(classifier(), paddle.optimizer.Adam(paddle.optimizer.lr.NoamDecay(8, 3)))


# -- memory that is written over -----------------------------------------------------------------


@program
def added_into_the_second_operand():
    total = state()
    batch = append("reduce_sum", {"X": data(None, 8)}, {"dim": [0]})
    append("elementwise_add", {"X": batch, "Y": total}, {"axis": -1}, total)
    return append("scale", {"X": total}, {"scale": 1.5})


@program
def summed_into_the_first_operand():
    total = state()
    batch = append("reduce_sum", {"X": data(None, 8)}, {"dim": [0]})
    append("sum", {"X": [total, batch]}, {}, total)
    return append("scale", {"X": total}, {"scale": 1.5})


@program  # Paddle's kernel overwrites the second operand: a bug of Paddle's, which stays
def summed_into_the_second_operand():
    total = state()
    batch = append("reduce_sum", {"X": data(None, 8)}, {"dim": [0]})
    append("sum", {"X": [batch, total]}, {}, total)
    return append("scale", {"X": total}, {"scale": 1.5})


@program
def a_temporary_written_over():
    state()
    first = append("relu", {"X": data(None, 8)})
    second = append("scale", {"X": first}, {"scale": 3.0})
    append("elementwise_add", {"X": first, "Y": second}, {"axis": -1}, second)
    return [first, second]


@program
def filled_and_assigned():
    x, kept = data(None, 8), state(1.0)
    before = x + kept
    paddle.assign(kept + x[0], output=kept)
    after = x * kept
    paddle.tensor.fill_constant([8], "float32", 0.25, out=kept)
    return [before, after]


@program
def a_queue():
    queue = state(0.0, (16, 8))
    both = append("concat", {"X": [data(None, 8), queue]}, {"axis": 0})
    append("slice", {"Input": both}, {"axes": [0], "starts": [0], "ends": [16]}, queue)
    return append("reduce_sum", {"X": queue}, {"dim": [0]})


@program
def a_counter():
    count = state(3.0, (1,))
    paddle.increment(count, 2.0)
    before = count * 1.0
    paddle.increment(count, 0.5)
    return [before, data(None, 8) * count]


@program
def arrays():
    x = data(None, 8)
    first = paddle.tensor.fill_constant([1], "int64", 0)
    array = paddle.tensor.array_write(x * 2.0, first)
    second = paddle.increment(paddle.assign(first))
    paddle.tensor.array_write(x * 3.0, second, array=array)
    read = [paddle.tensor.array_read(array, at) for at in (first, second)]
    return [read[0] + 1.0, read[1] * read[0]]


@program
def normalized_with_adam():
    """A ProgramDesc that declares float32 for the never filled workspace of a normalization."""
    hidden = paddle.nn.BatchNorm1D(16)(paddle.nn.Linear(8, 16, bias_attr=False)(data(None, 8)))
    loss = paddle.mean(paddle.square(paddle.nn.Linear(16, 1)(F.relu(hidden)) - 0.25))
    paddle.optimizer.Adam(0.01).minimize(loss)
    return [loss, hidden]


# -- attributes that get lost ----------------------------------------------------------------------


@program
def a_reversed_column():
    x = data(None, 3, 8)
    column = x[:, ::-1, 0]
    return [column, F.relu(column) + x[:, :, 1]]


@program
def powers_along_the_first_axis():
    x = F.relu(data(None, 8)) + 0.5
    exponents = append("reduce_mean", {"X": x}, {"dim": [1]})
    return append("elementwise_pow", {"X": x, "Y": exponents}, {"axis": 0})


@program
def products_along_the_middle():
    x, scale = data(None, 3, 8), state(1.5, (3,))
    return append("elementwise_mul", {"X": x, "Y": scale}, {"axis": 1})


@program
def a_place_as_a_vector():
    x = data(None, 8)
    place = append("arg_max", {"X": x}, {"axis": 1, "dtype": 3})
    place.desc.set_dtype(core.VarDesc.VarType.INT64)
    chosen = append("one_hot_v2", {"X": place}, {"depth": 8, "dtype": 5})
    return F.relu(x) * chosen + x


@program
def a_column_replaced():
    x = data(None, 8)
    whole = paddle.cast(x * 9.0, "int32")
    column = paddle.cast(append("reduce_sum", {"X": x}, {"dim": [1]}), "int32")
    place = {"axes": [1], "starts": [3], "ends": [4], "steps": [1], "decrease_axes": [1]}
    values = {"Input": whole, "ValueTensor": column}
    replaced = append("set_value", values, {**place, "dtype": core.VarDesc.VarType.INT32})
    return F.relu(paddle.cast(replaced, "float32")) + x


# -- control flow ----------------------------------------------------------------------------------


@program
def a_loop_that_writes_a_state():
    x, kept = append("reduce_sum", {"X": data(None, 8)}, {"dim": [0]}), state(1.0)
    end = paddle.full([1], 3, "int64")

    def body(i, hidden):
        paddle.assign(kept + hidden, output=kept)
        return [i + 1, hidden * 0.5]

    start = [paddle.full([1], 0, "int64"), x]
    return [static.nn.while_loop(lambda i, _: i < end, body, start)[1], F.relu(kept)]


@program
def a_loop_that_starts_from_a_state():
    kept, end = state(1.0), paddle.full([1], 3, "int64")
    start = [paddle.full([1], 0, "int64"), kept]
    x = append("reduce_sum", {"X": data(None, 8)}, {"dim": [0]})
    hidden = static.nn.while_loop(lambda i, _: i < end, lambda i, h: [i + 1, h * 0.5 + x], start)[1]
    return [hidden, kept * 2.0]


@program
def nested_loops():
    x, kept = append("reduce_sum", {"X": data(None, 8)}, {"dim": [0]}), state(1.0)
    end = paddle.full([1], 2, "int64")

    def outer(i, hidden):
        def inner(j, h):
            paddle.assign(kept * 0.5 + h, output=kept)
            return [j + 1, h * 0.9]

        zero = paddle.full([1], 0, "int64")
        return [i + 1, static.nn.while_loop(lambda j, _: j < end, inner, [zero, hidden])[1] + kept]

    start = [paddle.full([1], 0, "int64"), x]
    return static.nn.while_loop(lambda i, _: i < end, outer, start)[1]


@program
def a_block_that_runs_every_other_time():
    """As ``static.nn.cond`` makes it of one branch."""
    from paddle.static.nn.control_flow import ConditionalBlock

    step, kept = state(0.0, (1,), "step"), state(1.0)
    x = append("reduce_sum", {"X": data(None, 8)}, {"dim": [0]})
    paddle.increment(step)
    rest = append("elementwise_mod", {"X": step, "Y": paddle.full([1], 2.0)}, {"axis": -1})
    is_odd = append("cast", {"X": rest}, {"in_dtype": 5, "out_dtype": 0})
    is_odd.desc.set_dtype(core.VarDesc.VarType.BOOL)
    with ConditionalBlock([is_odd], is_scalar_condition=True).block():
        paddle.assign(kept * 2.0 + x, output=kept)
        paddle.assign(kept + 1.0, output=kept)
    return [F.relu(kept), step * 1.0]


@program
def a_variable_that_an_unchanged_operator_creates():
    hidden = F.relu(static.nn.fc(data(None, 16), 8))
    kept = append("hard_swish", {"X": hidden}, {"offset": 2.5})
    kept.persistable = True
    return [kept * 2.0, append("hard_swish", {"X": kept}, {"offset": 2.5})]


@program
def a_list_with_a_variable_that_outlives_a_run():
    x, kept = data(None, 16), state(0.5, (4, 16), "kept")
    append("erfinv", {"X": F.softmax(x)}, out=kept)
    joined = paddle.concat([kept, x * 2.0])
    return [F.relu(static.nn.fc(joined, 8)), append("hard_swish", {"X": kept}, {"offset": 2.5})]


# -- the test --------------------------------------------------------------------------------------


def feeds_of(main: Any, step: int) -> dict[str, Any]:
    """Random feeds, of another batch size at each step."""
    batch = (5, 3, 5, 8, 1)[step % 5]
    random = np.random.default_rng(step)
    found = {}
    for variable in main.list_vars():
        if not variable.desc.need_check_feed():
            continue
        shape = [batch if size < 0 else size for size in variable.shape]
        if variable.name == "y":
            found["y"] = random.integers(0, 4, shape)
        elif variable.lod_level > 0:
            lengths = [[1] * (batch - 1) + [2]] if batch > 1 else [[1]]
            rows = random.normal(size=[sum(lengths[0]), *shape[1:]]).astype("float32")
            found["x"] = paddle.base.create_lod_tensor(rows, lengths, paddle.CPUPlace())
        else:
            found[variable.name] = random.normal(size=shape).astype("float32")
    return found


def variables_of(program: Program) -> dict[str, np.ndarray | None]:
    kept = {}
    for variable in program.main.list_vars():
        if not variable.persistable or variable.name in ("feed", "fetch"):
            continue
        found = program.scope.find_var(variable.name)
        if found is not None and variable.type == core.VarDesc.VarType.DENSE_TENSOR:
            tensor = found.get_tensor()
            kept[variable.name] = np.array(tensor) if tensor._is_initialized() else None
    return kept


def run(program: Program, engine: bool, feed: dict[str, Any]) -> list[Any]:
    with static.scope_guard(program.scope), paddle_ngraph.use_ngraph(engine):
        return program.executor.run(
            program.main, feed=feed, fetch_list=program.fetches, return_numpy=False
        )


@pytest.fixture
def old_ir():
    with paddle.pir_utils.OldIrGuard():
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_step_by_step(name, old_ir, native_in_order):
    build, runs_in_engine = PROGRAMS[name]
    native, engine = Program(build), Program(build)
    paddle_ngraph.reset_stats()
    exposed: list[tuple[Any, np.ndarray]] = []
    for step in range(4):
        feed = feeds_of(native.main, step)
        results = []
        for each, is_engine in ((native, False), (engine, True)):
            paddle.seed(step)
            results.append(run(each, is_engine, dict(feed)))
        for expected, found in zip(*results):
            assert expected.lod() == found.lod()
            assert expected.shape() == found.shape()
            np.testing.assert_allclose(np.array(found), np.array(expected), rtol=2e-5, atol=2e-6)
        exposed += [(tensor, np.array(tensor)) for tensor in results[1]]
        expected, found = variables_of(native), variables_of(engine)
        assert expected.keys() == found.keys()
        for variable, contents in expected.items():
            assert (contents is None) == (found[variable] is None), variable
            if contents is not None:
                np.testing.assert_allclose(
                    found[variable], contents, rtol=5e-5, atol=5e-6, err_msg=variable
                )
    for tensor, contents in exposed:
        np.testing.assert_array_equal(np.array(tensor), contents)
    assert (paddle_ngraph.stats()["engine_runs"] > 0) == runs_in_engine
    assert paddle_ngraph.stats()["native_runs"] == 0, "what is converted runs in the engine"


@pytest.mark.parametrize("name", ["classic_cnn", "nesterov", "a_queue", "filled_and_assigned"])
def test_alternating_engine_and_fallback_runs(name, old_ir):
    build, _ = PROGRAMS[name]
    native, alternating = Program(build), Program(build)
    for step in range(4):
        feed = feeds_of(native.main, step)
        expected, found = (
            run(native, False, dict(feed)),
            run(alternating, step % 2 == 0, dict(feed)),
        )
        for a, b in zip(expected, found):
            np.testing.assert_allclose(np.array(b), np.array(a), rtol=2e-5, atol=2e-6)
    assert paddle_ngraph.stats()["engine_runs"] > 0


def sum_of_two():
    x, y = data(None, 2), data(None, 2, name="y")
    out = static.nn.fc(x, 2) + F.relu(y)
    paddle.optimizer.SGD(0.1).minimize(out.mean())
    return out


@pytest.mark.parametrize("forgotten", ["x", "y"])
def test_a_forgotten_feed_is_an_error(forgotten, old_ir):
    native, engine = Program(sum_of_two), Program(sum_of_two)
    feed = {"x": floats(3, 2), "y": floats(3, 2, seed=1)}
    lacking = {name: array for name, array in feed.items() if name != forgotten}
    errors = []
    for each, is_engine in ((native, False), (engine, True)):
        for _ in range(3):
            run(each, is_engine, dict(feed))
        for _ in range(2):
            with pytest.raises(Exception) as raised:
                run(each, is_engine, dict(lacking))
            errors.append(raised.type)
        run(each, is_engine, dict(feed))
    assert len(set(errors)) == 1
    assert paddle_ngraph.stats()["engine_runs"] >= 4
    found = [variables_of(each) for each in (native, engine)]
    for name, contents in found[0].items():
        np.testing.assert_allclose(found[1][name], contents, rtol=1e-5)


@pytest.mark.parametrize("ways", [(False, False), (True, True), (True, False), (False, True)])
def test_a_fed_parameter_keeps_its_value(ways, old_ir):
    weight = paddle.ParamAttr(name="fed_weight")
    program = Program(lambda: static.nn.fc(data(-1, 8), 4, weight_attr=weight, bias_attr=False) * 3)
    x, w = floats(2, 8), floats(8, 4, seed=1)
    for scale, feeds in ((1, {"fed_weight": w}), (1, {}), (2, {"fed_weight": w * 2}), (2, {})):
        for engine in ways:
            (found,) = run(program, engine, {"x": x, **feeds})
            np.testing.assert_allclose(np.array(found), x @ w * 3 * scale, rtol=1e-5, atol=1e-5)
    assert (paddle_ngraph.stats()["engine_runs"] > 0) == any(ways)


def test_a_level_of_detail_that_only_the_feed_has(old_ir):
    def build():
        return F.relu(data(-1, 4)) * 2.0

    program = Program(build)
    plain = floats(5, 4)
    run(program, True, {"x": plain})
    assert paddle_ngraph.stats()["engine_runs"] == 1
    with_lod = paddle.base.create_lod_tensor(plain, [[2, 3]], paddle.CPUPlace())
    (found,) = run(program, True, {"x": with_lod})
    assert found.lod() == [[0, 2, 5]]
    np.testing.assert_array_equal(np.array(found), np.maximum(plain, 0) * 2)


def test_most_programs_run_in_the_engine():
    assert sum(engine for _, engine in PROGRAMS.values()) >= 30
    assert len(PROGRAMS) - sum(engine for _, engine in PROGRAMS.values()) <= 4


def unsupported_program(kind):
    if kind == "levels of detail":
        return static.nn.sequence_pool(F.relu(data(-1, 4, lod_level=1)), "sum")
    kept = state(0.0, (8, 8))
    return append("matmul_v2", {"X": data(8, 8), "Y": kept}, {"trans_x": True}, kept)


@pytest.mark.parametrize(
    ("kind", "type", "reason"),
    [("levels of detail", "sequence_pool", "LoD"), ("overlap", "matmul_v2", "which it reads")],
)
def test_explain_names_operators_that_are_not_translated(kind, type, reason, old_ir):
    main = static.Program()
    with static.program_guard(main, static.Program()):
        unsupported_program(kind)
    report = paddle_ngraph.explain(main)
    (found,) = [op for op in report.native if op.type == type]
    assert reason in found.reason
    assert not any("the program runs natively" in op.reason for op in report.native)
