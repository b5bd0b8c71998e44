"""Kernels of Paddle inside functions, in the bodies of loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import _C_ops as operators
from paddle import inference

import paddle_ngraph
from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.partitioning import program_pass
from tests.kernel_call_programs import floats, kernels_called, predicted, quantity
from tests.programs import Program, at_once, counts_of_two_processes

ROWS, COLUMNS = 4, 6


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with kernels_called():
        yield


def loop(body: Callable[..., Any], dtype: str = "float32", dynamic: bool = False) -> Program:
    """A program that applies ``body`` to a tensor ``n`` times."""

    def build() -> Any:
        x = paddle.static.data("x", [-1 if dynamic else ROWS, COLUMNS], "float32")
        n = paddle.static.data("n", [1], "int64")
        return made_by_loop(body, paddle.cast(paddle.nn.functional.relu(x), dtype), n)

    return Program(build)


def made_by_loop(body: Callable[..., Any], x: Any, n: Any) -> Any:
    _, y = paddle.static.nn.while_loop(
        lambda i, y: i < n,
        lambda i, y: [i + 1, body(y)],
        [paddle.zeros([1], "int64"), x],
    )
    return y * 2.0 if y.dtype == paddle.float32 else y


def feeds(
    rows: int = ROWS, counts: Sequence[int] = (0, 1, 5), dtype: str = "int64"
) -> list[dict[str, np.ndarray]]:
    return [{"x": floats(rows, COLUMNS), "n": np.array([n], dtype)} for n in counts]


def calls_inside(program: Program) -> list[str]:
    """The kernel calls in loops and branches of the only subgraph of a program without others."""
    report = program_pass.dry_run(program.main)
    assert [(op.type, op.reason) for op in report.native] == [] and len(report.intervals) == 1
    return [name.removeprefix("pd_op.") for name in report.intervals[0].calls_inside]


def assert_runs(program: Program, given: Sequence[dict[str, np.ndarray]]) -> list[int]:
    """Runs natively and by the engine alone; returns the numbers of kernel calls of each run."""
    counts = []
    for feed in given:
        natively = program.run(False, **feed)
        before = quantity("kernel_calls"), quantity("native_runs"), quantity("engine_runs")
        found = program.run(**feed)
        for one, other in zip(natively, found):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
        assert quantity("native_runs") == before[1] and quantity("engine_runs") > before[2]
        counts.append(quantity("kernel_calls") - before[0])
    return counts


BODIES: dict[str, Callable[..., Any]] = {
    "shuffle_channel": lambda y: (
        operators.shuffle_channel(y.reshape([-1, COLUMNS, 1, 1]), 2).reshape([-1, COLUMNS]) * 1.5
    ),
    "mode": lambda y: y + operators.mode(paddle.round(y), -1, True)[0],
    "svd": lambda y: y * 0.5 + operators.svd(y, False)[1].sum(),
    "float64": lambda y: paddle.cast(paddle.sin(paddle.cast(y, "float64")) * 0.3, "float32") + y,
    "fft": lambda y: paddle.real(paddle.fft.ifft(paddle.fft.fft(y) * 2.0)) * 0.7,
    # A size that depends on data, for other kernels of the iteration.
    "nonzero": lambda y: y + paddle.cast(paddle.nonzero(y > 1.0).sum(), "float32") * 0.01,
    "masked_select": lambda y: y * 0.5 + paddle.masked_select(y, y > 0.5).mean(),
    "segment_pool": lambda y: (
        y
        + operators.segment_pool(y[0], paddle.to_tensor([0, 0, 1, 1, 2, 2], "int64"), "SUM")[
            0
        ].sum()
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_loops(name, dynamic):
    program = loop(BODIES[name], dynamic=dynamic)
    calls = len(calls_inside(program))
    assert calls > 0
    for rows in (ROWS, 3) if dynamic else (ROWS,):
        assert assert_runs(program, feeds(rows)) == [0, calls, 5 * calls]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("dtype", "body"),
    [
        ("float64", lambda y: paddle.sin(y) + 1e-12),
        ("float64", lambda y: y),
        ("float64", lambda y: paddle.ones_like(y) / 3.0),
        ("complex64", lambda y: paddle.fft.fft(y) * 0.25),
        ("complex128", lambda y: y * y * 0.5),
    ],
)
def test_loop_carried_values_that_are_bytes(dtype, body, dynamic):
    program = loop(body, dtype, dynamic)
    for feed in feeds():
        (natively,), before = program.run(False, **feed), quantity("native_runs")
        (found,) = program.run(**feed)
        assert found.dtype == natively.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found, natively)
        assert quantity("native_runs") == before
    assert program_pass.dry_run(program.main).native == []


def test_captured_values_that_are_bytes():
    def build() -> Any:
        x = paddle.static.data("x", [ROWS, COLUMNS], "float32")
        n = paddle.static.data("n", [1], "int64")
        wide, third = paddle.cast(x * 2.0, "float64"), paddle.full([1], 1 / 3, "float64")
        return made_by_loop(lambda y: y + paddle.cast(wide * third, "float32"), x + 1.0, n)

    assert set(assert_runs(Program(build), feeds(counts=(1, 3)))) != {0}


def test_integers_beyond_32_bits_are_those_of_paddle():
    """Loop-carried int64 values have 32 bits in functions: Paddle does such a run."""

    def body(y: Any) -> Any:
        wide = operators.mode(paddle.cast(y, "int64") * 2**20, -1, True)[0]
        return paddle.cast(wide, "float32") + y

    program = loop(body)
    for feed in feeds(counts=(1, 2)):
        feed["x"] = np.full((ROWS, COLUMNS), 4096, "float32")
        paddle.set_flags({"FLAGS_ngraph_strict": False})
        np.testing.assert_array_equal(program.run(**feed)[0], program.run(False, **feed)[0])


def branch(side: Callable[..., Any], other: Callable[..., Any]) -> Program:
    def build() -> Any:
        x = paddle.static.data("x", [ROWS, COLUMNS], "float32")
        n = paddle.static.data("n", [1], "int32")
        y = paddle.nn.functional.relu(x)
        return paddle.static.nn.cond(n > 1, lambda: side(y), lambda: other(y)) * 2.0

    return Program(build)


@pytest.mark.parametrize("name", BODIES)
def test_branches(name):
    """The kernels of a branch that is not taken are not called."""
    program = branch(BODIES[name], lambda y: paddle.exp(y * 0.1))
    calls = len(calls_inside(program))
    assert calls > 0
    assert assert_runs(program, feeds(counts=(0, 2, 1), dtype="int32")) == [0, calls, 0]


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_results_of_branches_that_are_bytes(dtype):
    def build() -> Any:
        x = paddle.static.data("x", [ROWS, COLUMNS], "float32")
        n = paddle.static.data("n", [1], "int32")
        y = paddle.cast(paddle.nn.functional.relu(x), dtype)
        made = paddle.static.nn.cond(
            n > 1, lambda: y, lambda: paddle.full([ROWS, COLUMNS], 1 / 3, dtype)
        )
        return made * made

    assert set(assert_runs(Program(build), feeds(counts=(0, 2, 1), dtype="int32"))) != {0}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["mode", "fft", "masked_select"])
def test_nested_loops(name, dynamic):
    def build() -> Any:
        x = paddle.static.data("x", [-1 if dynamic else ROWS, COLUMNS], "float32")
        n, inner = (paddle.static.data(each, [1], "int64") for each in ("n", "inner"))

        def body(y: Any) -> Any:
            z = paddle.static.nn.while_loop(
                lambda i, z: i < inner,
                lambda i, z: [i + 1, BODIES[name](z) * 0.5],
                [paddle.zeros([1], "int64"), y],
            )[1]
            return paddle.static.nn.cond(
                z.sum() > 9.0, lambda: operators.mode(paddle.round(z), -1, True)[0] + z, lambda: z
            )

        return made_by_loop(body, paddle.nn.functional.relu(x), n)

    program = Program(build)
    assert "mode" in calls_inside(program)
    for inner in (0, 1, 3):
        given = [{**feed, "inner": np.array([inner], "int64")} for feed in feeds()]
        assert assert_runs(program, given)[0] == 0


def test_a_size_that_depends_on_data_may_not_leave_an_iteration():
    def build() -> Any:
        x = paddle.static.data("x", [ROWS, COLUMNS], "float32")
        n = paddle.static.data("n", [1], "int32")
        y = paddle.nn.functional.relu(x)
        kept = paddle.static.nn.cond(
            n > 1, lambda: paddle.masked_select(y, y > 0), lambda: paddle.masked_select(y, y > 1)
        )
        return [kept * 2.0, y * 2.0]

    program = Program(build)
    reasons = {op.type: op.reason for op in program_pass.dry_run(program.main).native}
    assert "a size that depends on data" in reasons["pd_op.if"]
    for feed in feeds(dtype="int32"):
        for one, other in zip(program.run(False, **feed), program.run(**feed)):
            np.testing.assert_allclose(other, one, rtol=1e-6)


def test_growing_values():
    """A loop-carried value that grows has another size in each call."""

    def build() -> Any:
        x = paddle.static.data("x", [ROWS, COLUMNS], "float32")
        n = paddle.static.data("n", [1], "int64")
        _, words = paddle.static.nn.while_loop(
            lambda i, words: i < n,
            lambda i, words: [
                i + 1,
                paddle.concat([words, operators.mode(paddle.round(words), 1, True)[0]], 1),
            ],
            [paddle.zeros([1], "int64"), paddle.nn.functional.relu(x)],
        )
        return words * 2.0

    program = Program(build)
    assert calls_inside(program) == ["mode"]
    assert assert_runs(program, feeds()) == [0, 1, 5]


def failing(dynamic: bool) -> Program:
    """A loop whose kernel fails for some feeds, and whose condition depends on its results."""

    def build() -> Any:
        x = paddle.static.data("x", [-1 if dynamic else 2, 3, 3], "float32")
        y, _ = paddle.static.nn.while_loop(
            lambda y, total: total < 1000.0,
            lambda y, total: [y * 1.5, operators.cholesky(y, False).sum()],
            [x + 0.0, paddle.zeros([], "float32")],
        )
        return y * 2.0

    return Program(build)


RIGHT = {"x": np.stack([np.eye(3), 2 * np.eye(3)]).astype("float32")}
WRONG = {"x": -RIGHT["x"]}
MESSAGE = "Cholesky"


@pytest.mark.parametrize("dynamic", [False, True])
def test_errors_of_a_kernel_in_a_loop_are_those_of_paddle(dynamic):
    """With the zeros of a failed kernel the loop would never end."""
    program = failing(dynamic)
    assert assert_runs(program, [RIGHT])[0] > 9
    with pytest.raises(Exception, match=MESSAGE):
        program.run(False, **WRONG)
    with pytest.raises(ValueError, match=f"kernel of pd_op.cholesky: .*{MESSAGE}"):
        program.run(**WRONG)
    paddle.set_flags({"FLAGS_ngraph_strict": False})
    for _ in range(3):
        with pytest.raises(Exception, match=MESSAGE):
            program.run(**WRONG)
    assert assert_runs(program, [RIGHT])[0] > 9


def test_failing_runs_beside_others():
    """An error ends the loops of its own run only."""
    program = failing(dynamic=True)
    (natively,) = program.run(False, **RIGHT)
    program.run(**RIGHT)
    paddle.set_flags({"FLAGS_ngraph_strict": False})

    def work(number: int) -> None:
        scope, executor = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
        for step in range(8):
            feed = WRONG if (number + step) % 4 == 0 else RIGHT
            try:
                (found,) = executor.run(
                    program.main, feed=feed, fetch_list=program.fetches, scope=scope
                )
            except Exception as error:
                assert feed is WRONG and MESSAGE in str(error)
            else:
                assert feed is RIGHT
                np.testing.assert_allclose(found, natively, rtol=1e-5)

    with paddle_ngraph.use_ngraph():
        at_once(work, 4)


def test_two_clones_at_once(tmp_path):
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        x = paddle.static.data("x", [-1, COLUMNS], "float32")
        n = paddle.static.data("n", [1], "int64")
        result = made_by_loop(BODIES["fft"], paddle.nn.functional.relu(x), n)
        executor = paddle.static.Executor(paddle.CPUPlace())
        paddle.static.save_inference_model(
            str(tmp_path / "model"), [x, n], [result], executor, program=main
        )

    def create() -> Any:
        paths = (str(tmp_path / name) for name in ("model.json", "model.pdiparams"))
        config = inference.Config(*paths)
        config.disable_glog_info()
        config.disable_mkldnn()
        return inference.create_predictor(config)

    given = feeds(ROWS) + feeds(9)
    natively = create()
    expected = [predicted(natively, feed)[0] for feed in given]
    with paddle_ngraph.use_ngraph():
        first = create()
        predicted(first, given[1])
        clones = [first.clone() for _ in range(2)]
        before = quantity("kernel_calls")

        def work(number: int) -> None:
            for step in range(8):
                which = (number + step) % len(given)
                (found,) = predicted(clones[number], given[which])
                np.testing.assert_allclose(found, expected[which], rtol=1e-5, atol=1e-6)

        at_once(work, 2)
    assert quantity("kernel_calls") > before


def once_on_disk() -> None:
    paddle.set_flags({"FLAGS_ngraph_kernel_calls": True, "FLAGS_ngraph_num_threads": 8})
    for dynamic in (False, True):
        program = loop(BODIES["fft"], dynamic=dynamic)
        assert assert_runs(program, feeds())[2] > 0
    print("counts", quantity("functions_built"), quantity("functions_loaded"))


@pytest.mark.slow("two new processes")
def test_functions_on_disk(tmp_path):
    assert counts_of_two_processes(__name__, tmp_path) == [[2, 0], [0, 2]]


def test_explain_counts_calls_in_loops_as_native():
    program = loop(BODIES["mode"])
    report = paddle_ngraph.explain(program.main)
    assert "native, by Paddle's kernels in its loops and branches: mode" in str(report)
    assert report.kernel_calls == ["pd_op.mode"] and report.ops_native == 1
    assert report.share < 1


def test_the_cost_model_counts_no_call_in_a_loop():
    """A loop of kernel calls takes as long in a function."""

    def in_loop(step: Callable[..., Any]) -> str:
        def body(y: Any) -> Any:
            for _ in range(40):
                y = step(y)
            return y

        paddle.set_flags({"FLAGS_ngraph_min_interval_us": 4000})
        report = program_pass.dry_run(loop(body).main)
        return "".join(op.reason for op in report.native)

    assert "too little" in in_loop(operators.i0)
    assert in_loop(lambda y: paddle.exp(y) + paddle.tanh(y)) == ""


def test_without_kernel_calls_such_loops_are_native():
    for body, dtype in ((BODIES["mode"], "float32"), (lambda y: paddle.sin(y), "float64")):
        with kernel_calls.disabled():
            report = program_pass.dry_run(loop(body, dtype).main)
        assert "pd_op.while" in {op.type for op in report.native} and not report.kernel_calls
