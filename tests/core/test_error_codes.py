"""Error codes: the decisions that follow from them, however the messages are worded."""

from __future__ import annotations

import numpy as np
import openvino as ov
import paddle
import pytest
from openvino import opset15

import paddle_ngraph
from paddle_ngraph import _core, caches, errors, flags
from paddle_ngraph.codegen.functions import _overflow_advice
from paddle_ngraph.conversion import denylist
from paddle_ngraph.conversion.errors import ConversionError, RunError, overflow_error
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.openvino_core import core
from paddle_ngraph.errors import ErrorCode, NgraphError
from paddle_ngraph.frontends.ngraph_transpiler import UnknownFetch
from paddle_ngraph.ir.graph import Graph, Op
from paddle_ngraph.partitioning import program_pass
from paddle_ngraph.transpiler import pipeline_transpiler
from tests.programs import Program, floats
from tests.zips import zip_equal

pytestmark = [
    pytest.mark.usefixtures("nothing_cached"),
    pytest.mark.filterwarnings("ignore:paddle_ngraph. Paddle runs"),
]

OVERFLOWS_UNTIL_DENIED = 8


@pytest.fixture(params=["worded as shipped", "reworded"])
def wording(request, monkeypatch):
    if request.param == "reworded":
        for number, name in enumerate(errors.SENTENCES):
            monkeypatch.setitem(errors.SENTENCES, name, f"sentence {number}")


def test_both_languages_have_the_same_codes():
    assert _core.error_codes == {code.name: code.value for code in ErrorCode}


def overflow(feed, program):
    """Runs a program whose integers overflow, until its operator is denied."""
    native = program.run(engine=False, **feed)
    paddle_ngraph.reset_stats()
    for _ in range(OVERFLOWS_UNTIL_DENIED):
        assert not caches.sizes()["denied_overflow_checks"]
        for expected, actual in zip_equal(native, program.run(**feed)):
            np.testing.assert_array_equal(actual, expected)
    stats = paddle_ngraph.stats()
    assert (stats["engine_runs"], stats["native_runs"]) == (0, OVERFLOWS_UNTIL_DENIED)


# -- decisions -------------------------------------------------------------------------------------


def wide_product():
    x, y = paddle.static.data("x", [-1], "int32"), paddle.static.data("y", [4, 4], "float32")
    return x.astype("int64") * 1000003 * 7919, paddle.tanh(paddle.matmul(y, y)) > 0.5


@pytest.mark.usefixtures("wording")
def test_frequent_overflows_deny_the_operator_where_it_needs_a_check():
    program = Program(wide_product)
    feed = {"x": np.arange(1000, 1009, dtype="int32"), "y": np.eye(4, dtype="float32")}
    overflow(feed, program)
    sizes = caches.sizes()
    assert (sizes["denied_overflow_checks"], sizes["denied_operators"]) == (1, 0)
    assert sizes["denied_subgraphs"] == 0
    assert {op.type for op in paddle_ngraph.explain(program.main).native} == {"pd_op.scale"}


@pytest.mark.usefixtures("wording")
def test_an_index_out_of_bounds_is_an_error_before_paddle_runs():
    def build():
        x, ids = floats_of("x", [6]), paddle.static.data("ids", [2], "int64")
        return paddle.index_put(x * 2.0, [ids], paddle.tanh(x[:2]), accumulate=True)

    program = Program(build)
    program.both(x=floats(6), ids=np.array([0, 5]))
    paddle_ngraph.reset_stats()
    with pytest.raises(ValueError, match=r"index_put|sentence"):
        program.run(x=floats(6), ids=np.array([0, 2**20]))
    assert paddle_ngraph.stats()["native_runs"] == 0


@pytest.mark.usefixtures("wording")
def test_an_index_out_of_range_falls_back():
    program = Program(
        lambda: paddle.nn.Embedding(10, 3)(paddle.static.data("ids", [-1], "int64")) * 2.0
    )
    program.both(ids=np.array([1, 9]))
    with pytest.raises(ValueError, match="Variable value"):  # Paddle's sentence
        program.run(ids=np.array([1, 10]))
    assert caches.sizes()["denied_subgraphs"] == caches.sizes()["denied_operators"] == 0


def floats_of(name, shape):
    return paddle.static.data(name, shape, "float32")


@pytest.mark.usefixtures("wording")
def test_an_overflow_in_a_branch_denies_the_operator_of_that_branch():
    """The other branch has an operator of equal type and index, with another attribute."""

    def build():
        x, y = paddle.static.data("x", [4], "int32"), floats_of("y", [4, 4])
        wide = x.astype("int64")
        return paddle.static.nn.cond(
            paddle.mean(y) > 0.0,
            lambda: (paddle.scale(wide, 1000003.0, 1.0), paddle.matmul(y, y)),
            lambda: (paddle.scale(wide, 1000003.0, 2.0), paddle.matmul(y, y.t())),
        )

    program = Program(build)
    (interval,) = program_pass.dry_run(program.main).blocks[0].intervals
    (choice,) = (op for op in interval.graph.ops if op.type == "pd_op.if")
    overflow({"x": np.full(4, 10**6, "int32"), "y": -np.eye(4, dtype="float32")}, program)
    assert caches.sizes()["denied_overflow_checks"] == 1
    denied = [
        [denylist.is_overflow_check_denied(op) for op in block.ops if op.checked]
        for block in choice.blocks
    ]
    assert denied == [[False], [True]]


@pytest.mark.usefixtures("wording")
def test_a_constant_that_overflows_keeps_its_code():
    """A check of known contents fails while the function is built."""
    op = Op("pd_op.cast", 3)
    bridge = FunctionBuilder(Graph([op], [], [], [], []), []).bridge
    node = bridge.integers.in_range(
        opset15.constant(np.array([1], "int32")), 0, 1, overflow_error(op)
    )
    with pytest.raises(NgraphError) as caught:
        bridge.folding.folded(node.output(0))
    assert (caught.value.code, caught.value.op_id) == (ErrorCode.INT32_OVERFLOW, 0)
    assert str(caught.value) == overflow_error(op).message


def wide_weights():
    x = paddle.static.data("x", [-1], "float32")
    many = [5000]  # more elements than the bridge folds itself
    initializer = paddle.nn.initializer.Constant(3e9)
    weight = paddle.static.create_parameter(many, "float32", default_initializer=initializer)
    return x + 1.0, weight.astype("int64") * 2


@pytest.mark.usefixtures("wording")
def test_frequent_overflows_of_constants_deny_one_operator():
    """A pass evaluates the check, and OpenVINO passes on only the text of the error."""
    overflow({"x": np.ones(3, "float32")}, Program(wide_weights))
    assert caches.sizes()["denied_subgraphs"] == 0


@pytest.mark.usefixtures("wording")
def test_advice_for_native_code():
    op = Op("pd_op.multiply", 3, checked=True)
    error = ConversionError(op, "a reason", code=ErrorCode.INT32_OVERFLOW)
    assert "--wide-integers" in _overflow_advice(error.without_traceback())
    assert not _overflow_advice(ConversionError(op, errors.SENTENCES["int32_overflow"]))


@pytest.mark.usefixtures("wording")
def test_unknown_variables_of_cuts_and_fetches(monkeypatch):
    monkeypatch.setitem(errors.SENTENCES, "unknown_cut", "cut {index}, {shown}")
    monkeypatch.setitem(errors.SENTENCES, "unknown_fetch", "fetch {index}, {shown}")
    program = Program(lambda: paddle.mean(floats_of("x", [2])))
    options = pipeline_transpiler.PipelineOptions(cuts=["nothing"], stages=2)
    with pytest.raises(NgraphError, match=r"^cut 0, 'nothing'$"):
        pipeline_transpiler.transpile(program.main, program.fetches, options)
    with pytest.raises(UnknownFetch, match=r"^fetch 1, 'none'$"):
        pipeline_transpiler.transpile(program.main, [*program.fetches, "none"], options)


def test_stored_functions_keep_codes(tmp_path):
    flags_before = {name: flags.get(name) for name in ("ngraph_cache_dir", "ngraph_cache_min_ms")}
    flags.set("ngraph_cache_dir", str(tmp_path))
    flags.set("ngraph_cache_min_ms", 0)
    try:
        feed = {"x": np.arange(1000, 1009, dtype="int32"), "y": np.eye(4, dtype="float32")}
        Program(wide_product).both(**{**feed, "x": feed["x"] * 0})
        paddle_ngraph.clear_cache()
        program = Program(wide_product)
        overflow(feed, program)
        stats = paddle_ngraph.stats()
        assert (stats["functions_loaded"], stats["functions_built"]) == (1, 0)
        assert caches.sizes()["denied_overflow_checks"] == 1
    finally:
        for name, value in flags_before.items():
            flags.set(name, value)


# -- how errors travel -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [[4], [-1]], ids=["static: thrown", "dynamic: deferred"])
def test_the_core_s_operators_name_code_and_operator(shape):
    """The plugin and its bindings hand on the text of an exception only."""
    bridge = FunctionBuilder(Graph([], [], [], [], []), []).bridge
    x = opset15.parameter(shape, np.int32)
    error = RunError("a > message.", ErrorCode.OUT_OF_BOUNDS, 7)
    model = ov.Model([opset15.result(bridge.integers.in_range(x, 0, 9, error))], [x], "test")
    compiled = core().compile_model(model, "CPU", {"NUM_STREAMS": 0})
    with pytest.raises(RuntimeError) as caught:
        compiled([np.array([0, 1, 9, 2], "int32")])
    message = "a > message. Expected 0 <= value < 9, but got 9."
    assert _core.operator_error(str(caught.value)) == (message, ErrorCode.OUT_OF_BOUNDS, 7)


@pytest.mark.parametrize(
    "text", ["", "a message", "<InvalidInput 1 2>", "<InvalidInput x 2>a</InvalidInput>"]
)
def test_other_messages_hold_no_error_of_an_operator(text):
    assert _core.operator_error(text) is None


def test_errors_of_the_core_have_a_code():
    with pytest.raises(NgraphError) as caught:
        _core.fail_at("no such step")
    assert errors.outcome(caught.value) == (ErrorCode.GENERAL, errors.NO_OPERATOR)


def test_attributes_of_other_exceptions_are_no_codes():
    error = SystemExit(1)
    assert errors.outcome(error) == (ErrorCode.GENERAL, errors.NO_OPERATOR)
