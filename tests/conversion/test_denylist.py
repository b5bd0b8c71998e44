"""A converter that raises: its operator falls back with a reported reason, and no other effect."""

from __future__ import annotations

import itertools
from contextlib import contextmanager

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import caches
from paddle_ngraph.conversion import denylist, registry
from paddle_ngraph.conversion.errors import ConversionError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ir.reasons import remedy_of
from tests.programs import Program, chain, floats, linear_regression, strict_runs

pytestmark = pytest.mark.pure

BROKEN = "its converter raised: broken on purpose"


@contextmanager
def broken_converter(type):
    """Breaks the converter of an operator for tensors of more than two rows."""
    entry = registry.find_converter(type)

    def broken(bridge, op):
        if bridge.shape(bridge.get_input_node(op, "x"))[0] > 2:
            raise ValueError("broken on purpose")
        entry.function(bridge, op)

    registry.unregister(type)
    registry.converter(type)(broken)
    paddle_ngraph.clear_cache()  # functions that other tests have built for the same graph
    yield
    registry.unregister(type)
    registry.converter(type)(entry.function)


@pytest.fixture
def broken_exp():
    with broken_converter("pd_op.exp"):
        yield


@pytest.fixture
def fallback_tanh(monkeypatch):
    registry.find_converter("pd_op.tanh")
    monkeypatch.delitem(registry._converters, "pd_op.tanh")


def fixed_chain():
    return paddle.exp(paddle.nn.functional.relu(paddle.static.data("x", [3, 4], "float32")))


def regression_and_chain():
    return [linear_regression(), chain_of(paddle.static.data("z", [-1, 4], "float32"))]


def chain_of(x):
    return paddle.exp(paddle.nn.functional.relu(x) * 2.0 + 1.0)


def fallback_operators(program):
    return {op.type: op.reason for op in paddle_ngraph.explain(program.main).native}


def test_static_shapes_are_tried_in_advance(broken_exp):
    program = Program(fixed_chain)
    assert fallback_operators(program) == {"pd_op.exp": BROKEN}
    program.both(x=floats(3, 4))


def test_dynamic_shapes_fail_in_a_run(broken_exp):
    program = Program(chain)
    program.both(x=floats(2, 4))
    assert fallback_operators(program) == {}
    x = floats(3, 4)
    (result,) = program.run(x=x)
    np.testing.assert_allclose(result, program.run(engine=False, x=x)[0], rtol=1e-6)
    assert fallback_operators(program) == {"pd_op.exp": BROKEN}
    program.both(x=x)
    program.both(x=floats(2, 4))


def test_a_changed_converter_is_tried_again(broken_exp):
    program = Program(fixed_chain)
    assert fallback_operators(program)
    function = registry.find_converter("pd_op.relu").function
    registry.unregister("pd_op.exp")
    registry.converter("pd_op.exp")(function)
    assert fallback_operators(program) == {}


def test_a_program_desc_program_continues():
    with broken_converter("pd_op.relu"), paddle.pir_utils.OldIrGuard():
        program = Program(
            lambda: paddle.nn.functional.relu(paddle.static.data("x", [-1, 4], "float32")) * 2.0
        )
        x = floats(3, 4)
        for _ in range(2):
            (result,) = program.run(x=x)
            np.testing.assert_allclose(result, np.maximum(x, 0) * 2)
        assert fallback_operators(program) == {"pd_op.relu": BROKEN}


def test_variables_are_written_once(broken_exp):
    losses = {}
    for engine in (False, True):
        program = Program(regression_and_chain)
        steps = [
            program.run(engine, x=floats(8, 4), y=floats(8, 1), z=floats(rows, 4))[0]
            for rows in (2, 3, 3)
        ]
        losses[engine] = [*steps, program.variable("linear_0.w_0").sum()]
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)


def test_random_numbers_are_sampled_once(broken_exp, fallback_tanh):
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        return paddle.exp(paddle.tanh(paddle.nn.functional.dropout(x * 2.0, 0.5)))

    results = []
    for engine in (False, True):
        program = Program(build)
        paddle.seed(4)
        results.append([program.run(engine, x=floats(50, 4))[0] for _ in range(3)])
    for expected, actual in zip(*results):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


def weights_then_exp():
    """A step that writes the weights, then ``tanh`` of them by fallback, then ``exp``."""
    loss = linear_regression()
    weights = paddle.static.default_main_program().global_block().all_parameters()[0]
    z = paddle.static.data("z", [-1, 1], "float32")
    return [loss, paddle.exp(z * paddle.tanh(weights).sum())]


def test_a_run_that_wrote_variables_continues(broken_exp, fallback_tanh):
    program = Program(weights_then_exp)
    native = Program(weights_then_exp)
    feed = {"x": floats(8, 4), "y": floats(8, 1)}
    for rows in (2, 3, 3):
        found = program.run(**feed, z=floats(rows, 1))
        for a, b in zip(native.run(engine=False, **feed, z=floats(rows, 1)), found):
            np.testing.assert_allclose(b, a, rtol=1e-5)
    assert "pd_op.exp" in fallback_operators(program)
    np.testing.assert_allclose(
        program.variable("linear_0.w_0"), native.variable("linear_0.w_0"), rtol=1e-5
    )


def test_stored_errors_retain_no_frames(broken_exp, monkeypatch):
    """Frames of a caller retain the program and its values."""
    kept = []
    monkeypatch.setattr(denylist, "record_provisional_failure", lambda _, error: kept.append(error))
    program = Program(lambda: chain_of(paddle.static.data("x", [-1, 4], "float32")))
    program.run(x=floats(3, 4))
    assert [(str(e.reason), e.__traceback__, e.__context__) for e in kept] == [
        ("broken on purpose", None, None)
    ]


def test_a_feed_that_paddle_rejects_adds_no_entry():
    program = Program(linear_regression)
    feed = {"x": floats(8, 4), "y": floats(8, 1)}
    (before,) = program.run(**feed)
    denylist.clear()  # runs without an Executor leave provisional failures
    with pytest.raises(ValueError, match=r"(?i)mismatch|dim|shape|width"):
        program.run(x=floats(8, 5), y=floats(8, 1))
    assert fallback_operators(program) == {}
    assert denylist.count() == 0
    assert program.run(**feed)[0] < before
    assert paddle_ngraph.stats()["engine_runs"] >= 2


def one_channel():
    """A program whose graph the CPU plugin of OpenVINO 2026.4 itself rejects."""
    x = paddle.static.data("x", [2, 2, 2, 5], "float32")
    filters = paddle.static.data("filters", [1, 2, 1, 1], "float32")
    y = paddle.static.data("y", [5, 3], "float32")
    scale = paddle.static.data("scale", [1], "float32")
    hidden = paddle.nn.functional.conv2d(x, filters)
    norm = paddle.nn.functional.group_norm(hidden, 1, 1e-3, scale, scale)
    return [paddle.matmul(hidden, y), norm, hidden * 2]


def test_a_subgraph_that_cannot_be_compiled_falls_back():
    program = Program(one_channel)
    feed = {"x": floats(2, 2, 2, 5), "y": floats(5, 3)}
    feed |= {"filters": floats(1, 2, 1, 1), "scale": floats(1)}
    native = program.run(engine=False, **feed)
    for _ in range(2):
        for expected, found in zip(native, program.run(**feed)):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    reasons = fallback_operators(program)
    assert "pd_op.conv2d" in reasons
    assert all("nGraph could not compile its interval" in text for text in reasons.values())
    assert not any(".cpp" in text or "\n" in text for text in reasons.values())
    Program(chain).both(x=floats(2, 4))


def mean_of_a_difference():
    """The mean of ``x - y`` with a complex ``y``: Paddle declares a real result."""
    x, y = paddle.static.data("x", [3], "float32"), paddle.static.data("y", [3], "complex64")
    block = paddle.static.default_main_program().global_block()
    difference, mean = (block.create_var(dtype="float32") for _ in range(2))
    inputs, outputs = {"X": x, "Y": y}, {"Out": difference}
    block.append_op(type="elementwise_sub", inputs=inputs, outputs=outputs)
    block.append_op(type="mean", inputs={"X": difference}, outputs={"Out": mean})
    return mean


def check_fallback_runs(program, feed, reason):
    """Asserts that Paddle runs the feed, without a denylist entry, and that strict runs raise."""
    denylist.clear()
    (native,) = program.run(engine=False, **feed)
    for _ in range(2):
        np.testing.assert_array_equal(program.run(**feed)[0], native)
    assert denylist.count() == 0
    assert paddle_ngraph.stats()["engine_runs"] == 0
    with strict_runs(), pytest.raises(ValueError, match=reason):
        program.run(**feed)
    return native.dtype


def test_undeclared_dtypes_fall_back():
    with paddle.pir_utils.OldIrGuard():
        program = Program(mean_of_a_difference)
        feed = {"x": floats(3), "y": floats(3).astype("complex64") * 1j}
        reason = "input 0 of the interval is complex64, the program declares float32"
        assert check_fallback_runs(program, feed, reason) == "complex64"


def test_feeds_of_another_dtype_fall_back():
    with paddle.pir_utils.OldIrGuard():
        program = Program(
            lambda: paddle.nn.functional.relu(paddle.static.data("x", [-1, 4], "float32")) * 2.0
        )
        program.main.global_block().var("x").desc.set_need_check_feed(False)
        x = floats(3, 4)
        reason = "input 0 of the interval is float64, the program declares float32"
        assert check_fallback_runs(program, {"x": x.astype("float64")}, reason) == "float64"
        np.testing.assert_array_equal(program.run(x=x)[0], np.maximum(x, 0) * 2)  # Paddle cannot
        assert paddle_ngraph.stats()["engine_runs"] == 1


def conversion_error(number):
    op = Op(index=0, type="pd_op.none_such", inputs={}, outputs={}, attrs={"number": number})
    return ConversionError(op, f"broken for {number}")


def test_the_denylist_is_bounded_and_keeps_the_latest():
    errors = [conversion_error(number) for number in range(2000)]
    for error in errors:
        denylist.deny_operator(error)
        denylist.record_provisional_failure(f"graph {error.op.attrs['number']}\n", error)
    sizes = caches.sizes()
    assert sizes["denied_operators"] == sizes["provisional_failures"] == 1024
    reason = denylist.denial_reason(errors[-1].op)
    assert reason == "its converter raised: broken for 1999"
    assert "report the error" in remedy_of(reason)
    assert denylist.denial_reason(errors[0].op) is None
    paddle_ngraph.clear_cache()
    assert denylist.count() == 0
    assert denylist.denial_reason(errors[-1].op) is None


def test_clear_cache_clears_the_denylist():
    program, x = Program(chain), floats(3, 4)
    with broken_converter("pd_op.exp"):
        program.run(x=x)
        assert fallback_operators(program) == {"pd_op.exp": BROKEN}
        paddle_ngraph.clear_cache()
        assert fallback_operators(program) == {}
        (again,) = Program(chain).run(x=x)  # and fails again
        assert fallback_operators(program) == {"pd_op.exp": BROKEN}
    np.testing.assert_allclose(again, program.run(engine=False, x=x)[0], rtol=1e-6)
    before = paddle_ngraph.stats()["engine_runs"]
    paddle_ngraph.clear_cache()
    Program(chain).both(x=x)
    assert paddle_ngraph.stats()["engine_runs"] == before + 1


@pytest.mark.parametrize("dtypes", itertools.product(["int64", "int32"], repeat=3), ids=" ".join)
def test_a_run_of_another_dtype_does_not_affect_later_runs(dtypes):
    """Paddle accepts a label in int32 where int64 is declared."""

    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        label = paddle.static.data("label", [-1, 1], "int64")
        return paddle.nn.functional.cross_entropy(x * 2.0, label)

    program = Program(build)
    x, label = floats(3, 4), np.array([[0], [3], [1]])
    (expected,) = program.run(engine=False, x=x, label=label)
    for dtype in dtypes:
        before = paddle_ngraph.stats()
        (found,) = program.run(x=x, label=label.astype(dtype))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        after = paddle_ngraph.stats()
        is_ours = dtype == "int64"
        assert after["engine_runs"] - before["engine_runs"] == is_ours
        assert after["native_runs"] - before["native_runs"] == (not is_ours)
