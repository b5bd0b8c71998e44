"""The program pass: the subgraphs it finds, with unchanged results."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import flags
from paddle_ngraph.conversion import registry
from paddle_ngraph.partitioning import program_pass, rules
from paddle_ngraph.partitioning.analysis.block_view import BlockView
from paddle_ngraph.partitioning.classify import classify, fixpoint
from tests.programs import Program, chain, floats, linear_regression


def engine_ops(program):
    return [op for op in program.global_block().ops if "ngraph_engine" in op.name()]


def types(interval):
    return [kind.removeprefix("pd_op.") for kind in interval.types]


# -- subgraphs ---------------------------------------------------------------------------------


@pytest.mark.slow("compiles many or large functions")
def test_a_chain_is_one_subgraph():
    program = Program(chain)
    report = paddle_ngraph.explain(program.main)
    (interval,) = report.intervals
    assert types(interval) == ["relu", "scale", "scale", "exp"]
    assert report.share == 1.0
    program.both(x=floats(2, 4))


@pytest.mark.slow("trains through many compiles")
def test_a_training_step_is_one_subgraph():
    program = Program(linear_regression)
    report = paddle_ngraph.explain(program.main)
    assert len(report.intervals) == 1 and not report.native, str(report)


def fallback_between():
    """Two chains; ``erfinv`` has no converter and depends on neither, so it must not split them."""
    x = paddle.static.data("x", [-1, 4], "float32")
    a = paddle.exp(x)
    aside = paddle.erfinv(paddle.tanh(x))
    return paddle.exp(a * 0.1), aside


def test_an_independent_fallback_operator_does_not_split():
    program = Program(fallback_between)
    report = paddle_ngraph.explain(program.main)
    assert [types(i) for i in report.intervals] == [["exp", "tanh", "scale", "exp"]]
    assert [op.type for op in report.native] == ["pd_op.erfinv"]
    program.both(x=floats(2, 4))


def fallback_before():
    x = paddle.static.data("x", [-1, 4], "float32")
    a = paddle.exp(x)
    b = paddle.erfinv(x)
    return a + b


def test_a_fallback_operator_before_does_not_split():
    program = Program(fallback_before)
    assert [types(i) for i in paddle_ngraph.explain(program.main).intervals] == [["exp", "add"]]
    program.both(x=np.full((2, 4), 0.25, "float32"))


def fallback_in_the_middle():
    x = paddle.static.data("x", [-1, 4], "float32")
    a = paddle.tanh(x)
    b = paddle.erfinv(a)
    return paddle.exp(b) + a


def test_a_fallback_operator_in_the_middle_splits_once():
    program = Program(fallback_in_the_middle)
    intervals = paddle_ngraph.explain(program.main).intervals
    assert [types(i) for i in intervals] == [["tanh"], ["exp", "add"]]
    program.both(x=floats(2, 4))


def test_the_original_program_is_unchanged():
    program = Program(chain)
    text = str(program.main)
    program.run(x=floats(2, 4))
    paddle_ngraph.explain(program.main)
    assert str(program.main) == text


def test_the_result_can_be_cloned_and_saved():
    program = Program(chain)
    main = program.main.clone()
    program_pass.apply(main)
    (op,) = engine_ops(main)
    assert set(op.attrs()) >= {"graph", "interval"}
    assert "ngraph_engine" in str(main)
    assert len(engine_ops(main.clone())) == 1
    assert {op.name() for op in main.global_block().ops} <= {
        "pd_op.data",
        "builtin.combine",
        op.name(),
    }, "what is dead must go"


def test_applying_it_twice_changes_nothing():
    main = Program(chain).main.clone()
    program_pass.apply(main)
    text = str(main)
    assert program_pass.apply(main).ops_converted == 0
    assert str(main) == text


def test_small_subgraphs_fall_back_on_request():
    program = Program(fallback_in_the_middle)
    flags.set("ngraph_min_interval_us", 12)
    try:
        report = paddle_ngraph.explain(program.main)
    finally:
        flags.set("ngraph_min_interval_us", 0)
    assert [types(i) for i in report.intervals] == [["exp", "add"]]
    assert "FLAGS_ngraph_min_interval_us=12" in str(report)


def test_the_pass_is_registered_with_paddle():
    program = Program(chain)
    main = program.main.clone()
    manager = paddle.pir.PassManager(2)
    manager.add_pass("ngraph_pass", {})
    manager.run(main)
    assert len(engine_ops(main)) == 1


def many_results():
    x = paddle.static.data("x", [12], "float32")
    return [part * 2.0 for part in paddle.split(x, 12)]


def test_more_outputs_than_the_operator_has(monkeypatch):
    monkeypatch.setattr(rules, "_MAX_OUTPUTS", 10)
    program = Program(many_results)
    results = program.run(x=floats(12))
    np.testing.assert_allclose(np.concatenate(results), floats(12) * 2.0, rtol=1e-6)
    assert "more than 10 outputs" in str(paddle_ngraph.explain(program.main))


@pytest.mark.slow("compiles many or large functions")
def test_an_operator_of_thousands_of_outputs():
    """A forward pass passes that many to its backward pass in a network that reads single rows."""

    def build():
        x = paddle.static.data("x", [1200], "float32")
        return [part * 2.0 for part in paddle.split(x, 1200)]

    program = Program(build)
    assert len(paddle_ngraph.explain(program.main).intervals) == 1
    program.both(x=floats(1200))


def dead_code():
    x = paddle.static.data("x", [-1, 4], "float32")
    paddle.argmax(x, axis=1)
    paddle.cast(paddle.tanh(x), "bool")
    paddle.sum(paddle.exp(x))
    return paddle.tanh(x) + 1.0


def test_unread_results():
    Program(dead_code).both(x=floats(2, 4))


# -- memory and order of operators -------------------------------------------------------------


def read_after_update():
    """The weight is read before and after SGD writes it."""
    x = paddle.static.data("x", [-1, 4], "float32")
    linear = paddle.nn.Linear(4, 4)
    loss = paddle.mean(linear(x))
    paddle.optimizer.SGD(0.1).minimize(loss)
    return loss, paddle.exp(linear.weight), paddle.erfinv(linear.weight * 0.1)


def test_later_readers_see_an_update_in_place():
    native, engine = Program(read_after_update), Program(read_after_update)
    for step in range(3):
        expected = native.run(engine=False, x=floats(2, 4, seed=step))
        actual = engine.run(engine=True, x=floats(2, 4, seed=step))
        for e, a in zip(expected, actual):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        engine.variable("linear_0.w_0"), native.variable("linear_0.w_0"), rtol=1e-6
    )


def fallback_reader_before_update():
    """An operator that falls back reads the weight before the engine writes it."""
    x = paddle.static.data("x", [-1, 4], "float32")
    linear = paddle.nn.Linear(4, 4)
    before = paddle.erfinv(linear.weight * 1.0)
    loss = paddle.mean(linear(x))
    paddle.optimizer.SGD(0.5).minimize(loss)
    return before, loss


def test_a_fallback_reader_precedes_the_update():
    native, engine = Program(fallback_reader_before_update), Program(fallback_reader_before_update)
    for _ in range(2):
        for e, a in zip(native.run(False, x=floats(2, 4)), engine.run(True, x=floats(2, 4))):
            np.testing.assert_allclose(a, e, rtol=1e-5)


def increments():
    x = paddle.static.data("x", [4], "float32")
    zero = paddle.nn.initializer.Constant(0.0)
    counter = paddle.static.create_parameter([1], "float32", "counter", default_initializer=zero)
    counter.stop_gradient = True
    paddle.increment(counter)
    return x + counter


def test_a_counter_counts():
    program = Program(increments)
    values = [program.run(x=np.zeros(4, "float32"))[0][0] for _ in range(3)]
    assert values == [1.0, 2.0, 3.0]


def state(name, *shape, value=0.0):
    """A persistable variable that no optimizer updates."""
    initializer = paddle.nn.initializer.Constant(value)
    variable = paddle.static.create_parameter(
        shape, "float32", name, default_initializer=initializer
    )
    variable.stop_gradient, variable.trainable = True, False
    return variable


def write_in_a_branch():
    x = paddle.static.data("x", [-1, 4], "float32")
    s = state("s", 4, value=0.1)

    def write():
        paddle.assign(s * 0.5 + 0.2, output=s)
        return x * 2.0

    return paddle.static.nn.cond(paddle.sum(x) > -100.0, write, lambda: x), paddle.sin(s)


def test_a_write_in_a_branch_is_visible_outside():
    native, engine = Program(write_in_a_branch), Program(write_in_a_branch)
    for _ in range(3):
        for e, a in zip(native.run(False, x=floats(2, 4)), engine.run(True, x=floats(2, 4))):
            np.testing.assert_allclose(a, e, rtol=1e-5)


def read_before_a_loop():
    x = paddle.static.data("x", [-1, 4], "float32")
    start = paddle.sin(paddle.tanh(x))
    before = paddle.nn.functional.softmax(start)
    _, end = paddle.static.nn.while_loop(
        lambda i, v: i < 3,
        lambda i, v: [i + 1, paddle.sin(v) + 0.5],
        [paddle.full([1], 0, "int64"), start],
    )
    return before, paddle.minimum(end, before)


def test_an_initial_value_is_read_before_the_loop():
    Program(read_before_a_loop).both(x=floats(2, 4))


def gradient_of_branches():
    x = paddle.static.data("x", [-1, 4], "float32")
    w = paddle.static.create_parameter([4, 4], "float32", "w")
    v = paddle.static.data("v", [4, 4], "float32")
    product = paddle.static.nn.cond(
        paddle.sum(x) > 0.0,
        lambda: paddle.static.nn.cond(
            paddle.sum(x) > 1.0, lambda: paddle.matmul(x, w), lambda: paddle.matmul(x, v)
        ),
        lambda: paddle.tanh(paddle.matmul(x, w)),
    )
    loss = paddle.mean(product)
    paddle.optimizer.SGD(0.1).minimize(loss)
    return loss


@pytest.mark.slow("trains through many compiles")
def test_a_training_step_through_branches():
    for sign in (1.0, -1.0):
        native, engine = Program(gradient_of_branches), Program(gradient_of_branches)
        feed = {"x": np.full((2, 4), sign, "float32"), "v": floats(4, 4)}
        for _ in range(2):
            np.testing.assert_allclose(engine.run(True, **feed), native.run(False, **feed), 1e-5)


def random_between():
    x = paddle.static.data("x", [-1, 4], "float32")
    noise = paddle.uniform([4], min=0.0, max=1.0)
    more = paddle.uniform([4], min=0.0, max=1.0)
    return paddle.exp(x) + noise, more * 2.0


def test_random_operators_keep_their_order():
    results = []
    for engine in (False, True):
        program = Program(random_between)
        paddle.seed(11)
        results.append(program.run(engine=engine, x=floats(2, 4)))
    for native, accelerated in zip(*results):
        np.testing.assert_allclose(accelerated, native, rtol=1e-5)


# -- control flow ------------------------------------------------------------------------------


def branches(last=lambda x: x * 3.0):
    x = paddle.static.data("x", [-1, 4], "float32")
    scaled = x * 2.0
    return paddle.static.nn.cond(
        paddle.sum(x) > 0,
        lambda: last(paddle.exp(scaled) + 1.0),
        lambda: last(paddle.tanh(scaled) - 1.5),
    )


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_both_branches_of_a_condition_run_in_the_engine(sign):
    program = Program(branches)
    report = paddle_ngraph.explain(program.main)
    (block,) = report.blocks
    assert "if" in types(*block.intervals) and not block.native, str(report)
    program.both(x=np.full((2, 4), sign, "float32"))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_both_branches_of_a_fallback_condition_run_in_the_engine(sign):
    def build():
        return branches(lambda x: paddle.lgamma(x))

    program = Program(build)
    report = paddle_ngraph.explain(program.main)
    assert len(report.blocks) == 3
    assert all(block.intervals for block in report.blocks), str(report)
    program.both(x=np.full((2, 4), sign, "float32"))


def loop():
    x = paddle.static.data("x", [-1, 4], "float32")
    i = paddle.full([1], 0, "int64")

    def body(i, v):
        return [i + 1, paddle.lgamma(paddle.abs(paddle.tanh(v) * 1.5 + x) + 0.5)]

    return paddle.static.nn.while_loop(lambda i, v: i < 5, body, [i, x])


def test_the_body_of_a_loop_runs_in_the_engine():
    program = Program(loop)
    report = paddle_ngraph.explain(program.main)
    assert "tanh" in {kind for i in report.blocks[1].intervals for kind in types(i)}, str(report)
    paddle_ngraph.reset_stats()
    program.both(x=floats(2, 4))
    assert paddle_ngraph.stats()["engine_runs"] >= 5


# -- dtypes ------------------------------------------------------------------------------------


def wide_integers():
    n = paddle.static.data("n", [3], "int64")
    x = paddle.static.data("x", [3], "float32")
    return n + 1, n * 3, paddle.exp(x)


def test_64_bit_arithmetic_falls_back():
    program = Program(wide_integers)
    report = paddle_ngraph.explain(program.main)
    assert {op.type for op in report.native} >= {"pd_op.scale"}, str(report)
    n, tripled, _ = program.both(n=np.array([2**40, -(2**40), 5]), x=floats(3))
    assert n[0] == 2**40 + 1 and tripled[1] == -3 * 2**40


def wide_moved():
    n = paddle.static.data("n", [4, 2], "int64")
    x = paddle.static.data("x", [3], "float32")
    return paddle.reshape(n, [2, 4]), paddle.concat([n, n]), paddle.exp(x)


def test_64_bit_outputs_fall_back():
    program = Program(wide_moved)
    program.both(n=np.arange(8).reshape(4, 2) * 2**35, x=floats(3))


def wide_constants():
    x = paddle.static.data("x", [-1, 4], "float32")
    length = paddle.shape(x)[0]
    wide = paddle.full([1], 2**40, "int64")
    return (
        length * 2**33,
        paddle.full([2000], 2**40, "int64") + 1,
        paddle.arange(2000, dtype="int64") * 2**33,
        paddle.full_like(x, 2**40, "int64"),
        paddle.cast(paddle.full([2000], 2**40, "int64"), "float32"),
        paddle.expand(wide, [3000]) + length,
        paddle.reshape(wide, [1, 1]),
        paddle.reshape(x, [length * 2, -1]),
    )


def test_64_bit_constants_keep_64_bits():
    Program(wide_constants).both(x=floats(2, 4))


def wide_in_place():
    x = paddle.static.data("x", [-1, 4], "float32")
    n = paddle.full([1], 2**31 - 1, "int64")
    paddle.increment(n)
    return paddle.reshape(n, [1, 1]), paddle.exp(x)


def test_an_overwritten_value_is_no_constant():
    Program(wide_in_place).both(x=floats(2, 4))


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("step", [lambda n: n + 1, lambda n: paddle.reshape(n, [3])])
def test_a_long_chain_of_integers(step):
    def build():
        n = paddle.static.data("n", [3], "int64")
        x = paddle.static.data("x", [3], "float32")
        for _ in range(1200):
            n = step(n)
        return n, paddle.exp(x)

    Program(build).both(n=np.arange(3) * 2**40, x=floats(3))


def positions_that_leave():
    x = paddle.static.data("x", [-1, 4], "float32")
    w = paddle.static.create_parameter([4, 2], "float32", "w")
    n = paddle.argmax(x, axis=1)
    return n, paddle.nn.functional.embedding(n, w), n + 2**40, paddle.reshape(n, [-1, 1])


def test_checked_indices_keep_their_dtype():
    Program(positions_that_leave).both(x=floats(2, 4))


def one_constant_for_all():
    x = paddle.static.data("x", [-1, 4], "float32")
    one = paddle.full([1], 1, "int64")
    return paddle.gather(x, one), paddle.concat([x, x], axis=one)


def test_a_constant_is_an_index_and_an_axis():
    Program(one_constant_for_all).both(x=floats(2, 4))


def unusual_dtypes():
    x = paddle.static.data("x", [-1, 4], "float32")
    c = paddle.static.data("c", [3], "complex64")
    return (
        paddle.exp(x),
        paddle.shape(c),
        paddle.full_like(c, 2.0, "float32"),
        paddle.full_like(x, 0.1, "float64"),
        paddle.full_like(x, 3, "int8"),
        paddle.arange(0, 1, 0.1, "float64"),
    )


def test_unusual_dtypes_are_no_subgraph_inputs():
    Program(unusual_dtypes).both(x=floats(2, 4), c=np.ones(3, "complex64"))


def double():
    x = paddle.static.data("x", [3], "float64")
    y = paddle.static.data("y", [3], "float32")
    return paddle.exp(x) + 1.0, paddle.exp(y)


def test_float64_falls_back_without_kernel_calls():
    paddle.set_flags({"FLAGS_ngraph_kernel_calls": False})
    program = Program(double)
    report = paddle_ngraph.explain(program.main)
    assert any("float64" in op.reason for op in report.native), str(report)
    program.both(x=np.array([0.1, 0.2, 0.3]), y=floats(3))


# -- the report --------------------------------------------------------------------------------


def test_a_rejection_propagates_to_dependent_operators():
    """int64 may be concatenated where it is only an index: not once that use falls back."""

    def build():
        ids = paddle.static.data("ids", [-1], "int64")
        return paddle.nn.Embedding(20, 3)(paddle.concat([ids, ids]))

    program = Program(build)
    capable = classify(BlockView(program.main.global_block()))
    before = {**capable.ops}
    joins, looks_up = (
        next(node for node in capable.ops if node.type == f"pd_op.{name}")
        for name in ("concat", "embedding")
    )
    smaller = fixpoint(capable.without({looks_up: "a test says so"}))
    assert capable.ops == before and capable.can_convert(joins) and capable.can_convert(looks_up)
    assert not smaller.can_convert(joins) and "64 bits" in smaller.reasons[joins]
    assert smaller.reasons[looks_up] == "a test says so"
    assert fixpoint(smaller).ops == smaller.ops  # ends when nothing changes
    program.both(ids=np.array([3, 1, 19]))


def test_the_text_of_the_report():
    text = str(paddle_ngraph.explain(Program(fallback_in_the_middle).main))
    assert "3 of 4 compute ops (75.0%) run through nGraph, in 2 intervals." in text
    assert "native erfinv x1" in text and "no converter" in text


def test_the_report_explains_missing_converters():
    def build():
        x = paddle.static.data("x", [4], "float32")
        made = [paddle.static.create_parameter([n], "float32") for n in (4, 4, 1)]
        parameter, velocity, rate = ([value] for value in made)
        kinds, coefficients = [""], [0.0]
        paddle._C_ops.merged_momentum_(
            parameter, [x * x], velocity, rate, None, 0.9, False, kinds, coefficients, False, 1.0
        )
        return x + x

    (op,) = paddle_ngraph.explain(Program(build).main).native
    assert op.type == "pd_op.merged_momentum_"
    assert op.reason.startswith("Paddle's optimizers use one operator for each parameter")


def test_the_report_names_wrong_roles_of_a_converter(leave_native):
    leave_native("pd_op.exp")
    registry.converter("pd_op.exp", inputs={"axes": registry.Role.CONSTANT})(
        lambda bridge, op: None
    )
    try:
        (op,) = paddle_ngraph.explain(Program(chain).main).native
    finally:
        registry.unregister("pd_op.exp")
    assert op.type == "pd_op.exp"
    assert op.reason == "its converter gives a role to input 'axes', which it does not have"


def test_explain_rejects_other_objects():
    with pytest.raises(paddle_ngraph.NgraphError, match="takes a static program, not int"):
        paddle_ngraph.explain(3)


def test_stats_count_operators():
    program = Program(fallback_in_the_middle)
    paddle_ngraph.reset_stats()
    program.run(x=floats(2, 4))
    stats = paddle_ngraph.stats()
    assert stats["ops_converted"] == 3
    assert stats["ops_native"] == 1
    assert stats["native_by_type"] == {"pd_op.erfinv": 1}


# -- empty tensors -----------------------------------------------------------------------------


def empty_middle():
    """A tensor that only a run shows to be empty."""
    x = paddle.static.data("x", [-1, -1], "float32")
    nothing = x[:, 4:] * 2.0
    return paddle.concat([nothing, x], axis=1), nothing, paddle.erfinv(nothing) + 1.0


def test_an_empty_tensor_may_be_a_subgraph_input():
    """Paddle then runs the subgraph, with its own rules for empty tensors."""
    program = Program(empty_middle)
    expected = program.run(engine=False, x=floats(3, 4))
    found = program.run(engine=True, x=floats(3, 4))
    assert paddle_ngraph.stats()["native_runs"] > 0, "no engine operator ran"
    for native, engine in zip(expected, found):
        np.testing.assert_array_equal(native, engine)
    assert found[1].shape == found[2].shape == (3, 0)


def test_ids_whose_shape_is_read_are_still_indices():
    def build():
        words = paddle.static.data("words", [2, 6], "int64")[:, :-1]
        count = paddle.cast(paddle.shape(words)[1], "float32")
        return paddle.nn.Embedding(9, 4)(words) * count

    program = Program(build)
    assert paddle_ngraph.explain(program.main).share == 1
    program.both(words=np.arange(12).reshape(2, 6) % 9)


def test_a_size_passes_between_subgraphs():
    def build():
        x = paddle.static.data("x", [-1, 6])
        size = paddle.shape(x * 2.0)[0]
        middle = paddle.cast(paddle.cast(size, "float16") + 0.5, "float32")  # falls back
        ones = paddle.ones([size, size], "float32") * middle
        return paddle.matmul(ones, x)

    program = Program(build)
    assert len(paddle_ngraph.explain(program.main).intervals) == 2
    for rows in (3, 5):
        program.both(x=floats(rows, 6))
    reasons = [op.reason for op in paddle_ngraph.explain(program.main).native]
    assert not any("raised" in reason for reason in reasons), reasons


def test_complex_attributes_fall_back():
    def build():
        x = paddle.static.data("x", [2, 3], "complex64")
        y = paddle.static.data("y", [2, 3], "float32")
        x = x * 2.0
        x[0] = 1 + 2j
        return [x, paddle.tanh(y)]

    program = Program(build)
    program.both(x=floats(2, 3).astype("complex64"), y=floats(2, 3))
    assert "attribute 'values' cannot be read" in str(paddle_ngraph.explain(program.main))
