"""Kernels of Paddle inside functions, for operators without a converter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from openvino import Tensor, opset15
from paddle import _C_ops as operators
from paddle import inference

import paddle_ngraph
from paddle_ngraph import _core, flags, transpiler
from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.conversion.build import conversion_error
from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.partitioning import program_pass
from tests.kernel_call_programs import (
    assert_same,
    boxes,
    calls_in,
    floats,
    kernels_called,
    predicted,
    quantity,
    single,
)
from tests.programs import Program, at_once, counts_of_two_processes

CLASSES = 3
SIZE = 160
STRIDES = (32, 16, 8)
ANCHORS = ([116, 90, 156, 198, 373, 326], [30, 61, 62, 45, 59, 119], [10, 13, 16, 30, 33, 23])
# Numbers of boxes above the threshold.
COUNTS = (0, 1, 7, 1000, 1, 0)


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with kernels_called():
        yield


def head() -> list[Any]:
    """The head of a YOLOv3: boxes of three maps, of which non-maximum suppression selects some."""
    image = paddle.static.data("image", [1, 2], "int32")
    boxes, scores = [], []
    for number, (stride, anchors) in enumerate(zip(STRIDES, ANCHORS)):
        cells = SIZE // stride
        shape = [1, 3 * (5 + CLASSES), cells, cells]
        x = paddle.nn.functional.relu(paddle.static.data(f"map{number}", shape, "float32")) - 10.0
        found, score = operators.yolo_box(
            x, image, anchors, CLASSES, 0.005, stride, True, 1.0, False, 0.5
        )
        boxes.append(found)
        scores.append(paddle.transpose(score, [0, 2, 1]))
    return operators.multiclass_nms3(
        paddle.concat(boxes, 1), paddle.concat(scores, 2),
        None, 0.5, 2000, 2000, 0.45, True, 1.0, -1,
    )  # fmt: skip


def maps(count: int, equal: bool = False) -> dict[str, np.ndarray]:
    """Maps with ``count`` objects, of equal or of different scores."""
    generator = np.random.default_rng(count)
    feed: dict[str, np.ndarray] = {"image": np.array([[SIZE, SIZE]], "int32")}
    left = count
    for number, stride in reversed(list(enumerate(STRIDES))):
        cells = SIZE // stride
        x = np.zeros((3, 5 + CLASSES, cells, cells), "float32")
        x[:, :5] = generator.uniform(5, 8, (3, 5, cells, cells))
        here = min(left, 3 * cells**2)
        left -= here
        for at in generator.permutation(3 * cells**2)[:here]:
            anchor, row, column = np.unravel_index(at, (3, cells, cells))
            x[anchor, 4, row, column] = 18
            score = 16 if equal else generator.uniform(14, 18)
            x[anchor, 5 + at % CLASSES, row, column] = score
        feed[f"map{number}"] = x.reshape(1, -1, cells, cells)
    return feed


def test_sizes_that_a_run_determines_in_one_function():
    program = Program(head)
    assert sorted(calls_in(program)) == ["multiclass_nms3", *["yolo_box"] * 3]
    natively = [program.run(False, **maps(count)) for count in COUNTS]
    assert len(natively[0][0]) == 0 and len(natively[3][0]) > 300
    names = ("functions_built", "engine_runs", "kernel_calls", "kernel_results_copied")
    before = list(map(quantity, names))
    for count, expected in zip(COUNTS, natively):
        assert_same(expected, program.run(**maps(count)))
    runs = len(COUNTS)
    # yolo_box writes its results to the function's memory; results of unknown size are copied,
    # unless there is no box: then only their number is.
    copied = 3 * runs - 2 * COUNTS.count(0)
    assert [quantity(n) - b for n, b in zip(names, before)] == [1, runs, 4 * runs, copied]


def test_order_of_equal_scores_is_that_of_paddle():
    program = Program(head)
    for count in (2, 40, 1000):
        feed = maps(count, equal=True)
        assert_same(program.run(False, **feed), program.run(**feed))


def test_eight_runs_at_once():
    program = Program(head)
    natively = {count: program.run(False, **maps(count)) for count in set(COUNTS)}
    program.run(**maps(7))
    before = quantity("kernel_calls")

    def work(number: int) -> None:
        scope, executor = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
        for step in range(6):
            count = COUNTS[(number + step) % len(COUNTS)]
            found = executor.run(
                program.main, feed=maps(count), fetch_list=program.fetches, scope=scope
            )
            assert_same(natively[count], found)

    with paddle_ngraph.use_ngraph():
        at_once(work, 8)
    assert quantity("kernel_calls") - before == 4 * 48


def test_eight_clones_at_once(tmp_path):
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        results = list(head())
        inputs = [op.result(0) for op in main.global_block().ops if op.name() == "pd_op.data"]
        executor = paddle.static.Executor(paddle.CPUPlace())
        paddle.static.save_inference_model(
            str(tmp_path / "model"), inputs, results, executor, program=main
        )
    config = inference.Config(str(tmp_path / "model.json"), str(tmp_path / "model.pdiparams"))
    config.disable_glog_info()
    natively = inference.create_predictor(config)
    expected = {count: predicted(natively, maps(count)) for count in set(COUNTS)}
    with paddle_ngraph.use_ngraph():
        first = inference.create_predictor(config)
        assert_same(expected[7], predicted(first, maps(7)))
        clones = [first.clone() for _ in range(8)]
        before = quantity("kernel_calls")

        def work(number: int) -> None:
            for step in range(4):
                count = COUNTS[(number + step) % len(COUNTS)]
                assert_same(expected[count], predicted(clones[number], maps(count)))

        at_once(work, 8)
    assert quantity("kernel_calls") == before + 4 * 32


def once_on_disk() -> None:
    paddle.set_flags({"FLAGS_ngraph_kernel_calls": True})
    program = Program(head)
    for count in (0, 7, 1000):
        assert_same(program.run(False, **maps(count)), program.run(**maps(count)))
    assert quantity("kernel_calls") == 12
    print("counts", quantity("functions_built"), quantity("functions_loaded"))


@pytest.mark.slow("two new processes")
def test_functions_on_disk(tmp_path):
    assert counts_of_two_processes(__name__, tmp_path) == [[1, 0], [0, 1]]


OPERATORS: dict[str, tuple[Callable[..., Any], dict[str, np.ndarray]]] = {
    "roi_align": (
        lambda x, rois, count: operators.roi_align(x, rois, count, 3, 3, 0.25, 2, True),
        {"x": floats(2, 4, 16, 16), "rois": boxes(5), "count": np.array([2, 3], "int32")},
    ),
    "prior_box": (
        lambda x, image: operators.prior_box(
            x,
            image,
            [4.0],
            [8.0],
            [1.0, 2.0],
            [0.1, 0.1, 0.2, 0.2],
            True,
            True,
            0.0,
            0.0,
            0.5,
            False,
        ),
        {"x": floats(1, 4, 8, 8), "image": floats(1, 3, 64, 64)},
    ),
    "box_coder": (
        lambda x, target: operators.box_coder(
            x, None, target, "encode_center_size", True, 0, [0.1, 0.1, 0.2, 0.2]
        ),
        {"x": boxes(6), "target": boxes(3)},
    ),
    "matrix_nms": (
        lambda x, rois: operators.matrix_nms(rois, x, 0.1, 20, 10, 0.05, False, 2.0, 0, True),
        {"x": floats(1, 3, 30), "rois": boxes(30).reshape(1, 30, 4)},
    ),
    "warpctc": (
        lambda x, label, length, size: operators.warpctc(x, label, length, size, 0, False),
        {
            "x": floats(12, 2, 6),
            "label": np.array([[1, 2, 2, 3], [4, 5, 1, 0]], "int32"),
            "length": np.array([12, 10], "int64"),
            "size": np.array([4, 3], "int64"),
        },
    ),
    # 64-bit integers, as operands and as results.
    "segment_pool": (
        lambda x, ids: operators.segment_pool(x, ids, "SUM"),
        {"x": floats(6, 4), "ids": np.array([0, 0, 1, 1, 2, 2], "int64")},
    ),
    # An input that the program knows is an attribute of the kernel.
    "send_u_recv": (
        lambda x, src, dst: operators.send_u_recv(x, src, dst, "SUM", [0]),
        {
            "x": floats(5, 4),
            "src": np.array([0, 1, 2, 0], "int64"),
            "dst": np.array([1, 2, 1, 0], "int64"),
        },
    ),
    # A boolean operand, which the plugin has in bytes.
    "masked_select": (
        lambda x, mask: operators.masked_select(x, paddle.logical_not(mask)),
        {"x": floats(3, 9), "mask": floats(3, 9) > 1},
    ),
    "mode": (lambda x: operators.mode(paddle.round(x), -1, False), {"x": floats(3, 9)}),
    "histogram": (
        lambda x: operators.histogram(x, None, 4, 0.0, 2.0, False),
        {"x": floats(20)},
    ),
    # Programs declare the dtypes of the results of these two wrongly.
    "viterbi_decode": (
        lambda x, moves, length: operators.viterbi_decode(x, moves, length, True),
        {"x": floats(3, 7, 5), "moves": floats(5, 5), "length": np.array([5, 6, 3], "int64")},
    ),
    "generate_proposals": (
        lambda x, deltas, size, anchors: operators.generate_proposals(
            x, deltas, size, anchors, paddle.ones([8, 8, 3, 4]), 50, 20, 0.5, 0.1, 1.0, True
        ),
        {
            "x": floats(1, 3, 8, 8),
            "deltas": floats(1, 12, 8, 8) / 8,
            "size": np.array([[64, 64]], "float32"),
            "anchors": boxes(192).reshape(8, 8, 3, 4),
        },
    ),
    "bce_loss": (
        lambda x, label: operators.bce_loss(paddle.clip(x, 0.1, 0.9), label),
        {"x": floats(3, 9), "label": floats(3, 9)},
    ),
    "maxout": (lambda x: operators.maxout(x, 2, 1), {"x": floats(2, 4, 3, 3)}),
    "svd": (lambda x: operators.svd(x, False), {"x": floats(4, 3)}),
    "lu": (lambda x: operators.lu(x, True), {"x": floats(4, 4)}),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    build, feed = OPERATORS[name]
    program = single(build, feed)
    assert calls_in(program) == [name]
    before = quantity("kernel_calls")
    natively = program.run(False, **feed)
    for _ in range(2):
        assert_same(natively, program.run(**feed))
    assert quantity("kernel_calls") == before + 2


EXTREMES: dict[str, Callable[[Any], Any]] = {
    "cumprod": lambda x: paddle.cumprod(x, 1),
    "cummax": lambda x: paddle.cummax(x, 1)[0],
    "cummin": lambda x: paddle.cummin(x, 0)[0],
}


@pytest.mark.parametrize("name", EXTREMES)
def test_products_and_extremes_of_any_length(name):
    def build() -> Any:
        x = paddle.static.data("x", [-1, -1], "float32")
        x.stop_gradient = False
        y = EXTREMES[name](x * 0.5)
        return [y, *paddle.static.gradients([(y * y).sum()], [x])]

    program = Program(build)
    assert set(calls_in(program)) == {name, f"{name}_grad"}
    before = quantity("functions_built"), quantity("native_runs")
    for shape in ((2, 9), (3, 70), (4, 129), (3, 8), (7, 200)):
        feed = {"x": floats(*shape)}
        for expected, found in zip(program.run(False, **feed), program.run(**feed)):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert (quantity("functions_built"), quantity("native_runs")) == (before[0] + 3, before[1])


def proposals(levels_read: bool) -> Program:
    """The proposals of a two-stage detector by levels of a pyramid, with the features of each."""

    def build(x: Any, rois: Any, number: Any) -> list[Any]:
        by_level, counts, order = operators.distribute_fpn_proposals(
            rois * 1.0, number, 2, 4, 3, 16, True
        )
        found = [
            operators.roi_align(x, level, count, 2, 2, 1.0, 2, True)
            for level, count in zip(by_level, counts)
        ]
        return [
            paddle.concat(found) * 2.0,
            *counts,
            order,
            *(level * 2.0 for level in by_level if levels_read),
        ]

    return single(build, {"x": floats(1, 4, 32, 32), "rois": boxes(9), "number": COUNT_OF_ROIS})


COUNT_OF_ROIS = np.array([9], "int32")


def test_proposals_by_level():
    """A LoD of results is dropped where nothing can read it."""
    program = proposals(levels_read=False)
    assert "distribute_fpn_proposals" in calls_in(program)
    before = quantity("native_runs")
    for scale in (1.0, 0.2, 3.0):
        feed = {"x": floats(1, 4, 32, 32), "rois": boxes(9) * np.float32(scale),
                "number": COUNT_OF_ROIS}  # fmt: skip
        assert_same(program.run(False, **feed), program.run(**feed))
    assert quantity("native_runs") == before


def test_results_with_a_lod_that_is_read_stay_native():
    report = program_pass.dry_run(proposals(levels_read=True).main)
    reasons = {op.type: op.reason for op in report.native}
    assert "LoD" in reasons["pd_op.distribute_fpn_proposals"]


def test_splits_nothing():
    """An operator without a converter in the middle of a network would separate two subgraphs."""
    program = single(
        lambda x: paddle.abs(operators.shuffle_channel(x - 1.0, 2)) * 2.0,
        feed := {"x": floats(1, 4, 3, 3)},
    )
    assert calls_in(program) == ["shuffle_channel"]
    with kernel_calls.disabled():
        assert len(program_pass.dry_run(program.main).intervals) == 2
    assert_same(program.run(False, **feed), program.run(**feed))
    report = str(paddle_ngraph.explain(program.main))
    assert "native, by Paddle's kernels in the function: shuffle_channel" in report
    assert "4 of 5 compute ops" in report


def test_training_with_ctc():
    def build() -> Any:
        x = paddle.static.data("x", [2, 12, 8], "float32")
        label = paddle.static.data("label", [2, 4], "int32")
        length, size = (paddle.static.data(name, [2], "int64") for name in ("length", "size"))
        y = paddle.transpose(paddle.nn.Linear(8, 6)(x), [1, 0, 2])
        loss = paddle.nn.functional.ctc_loss(y, label, length, size)
        paddle.optimizer.Adam(0.05).minimize(loss)
        return loss

    feed = {name: OPERATORS["warpctc"][1][name] for name in ("label", "length", "size")}
    feed["x"] = floats(2, 12, 8)
    natively, program = Program(build), Program(build)
    assert set(calls_in(program)) == {"warpctc", "warpctc_grad"}
    before = quantity("native_runs")
    losses = []
    for _ in range(5):
        (expected,), (found,) = natively.run(False, **feed), program.run(**feed)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        losses.append(float(found))
    assert losses[-1] < losses[0] and quantity("native_runs") == before


def test_training_with_gradients_by_kernels():
    def build() -> Any:
        x = paddle.static.data("x", [2, 4, 16, 16], "float32")
        rois = paddle.static.data("rois", [5, 4], "float32")
        count = paddle.static.data("count", [2], "int32")
        y = paddle.nn.Conv2D(4, 8, 3, padding=1)(x)
        y = operators.roi_align(y, rois, count, 3, 3, 0.25, 2, True)
        y = operators.kthvalue(paddle.nn.Linear(72, 4)(paddle.flatten(y, 1)), 2, -1, False)[0]
        loss = (y * y).mean()
        paddle.optimizer.Adam(0.01).minimize(loss)
        return loss

    _, feed = OPERATORS["roi_align"]
    natively, program = Program(build), Program(build)
    assert len(calls_in(program)) == 4
    before = quantity("kernel_calls"), quantity("native_runs")
    for _ in range(5):
        (expected,), (found,) = natively.run(False, **feed), program.run(**feed)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert (quantity("kernel_calls"), quantity("native_runs")) == (before[0] + 20, before[1])


def test_errors_of_a_kernel_are_those_of_paddle():
    build, feed = OPERATORS["segment_pool"]
    program = single(build, feed)
    program.run(**feed)
    wrong = {**feed, "ids": feed["ids"][::-1].copy()}
    with pytest.raises(Exception, match="sorted"):
        program.run(False, **wrong)
    paddle.set_flags({"FLAGS_ngraph_strict": False})
    before = paddle_ngraph.stats()["raised"]
    for _ in range(10):
        with pytest.raises(Exception, match="sorted"):
            program.run(**wrong)
    assert paddle_ngraph.stats()["raised"] != before
    natively, calls = program.run(False, **feed), quantity("kernel_calls")
    assert_same(natively, program.run(**feed))
    assert quantity("kernel_calls") == calls + 1


def test_a_kernel_that_fails_in_functions_only_runs_natively_in_the_end():
    """The kernel of ``viterbi_decode`` makes int64 where programs declare float32."""
    feed = {"x": floats(3, 7, 5), "moves": floats(5, 5), "length": np.array([7, 5, 3], "int64")}
    program = single(
        lambda x, moves, length: operators.viterbi_decode(x, moves, length, True), feed
    )
    natively = program.run(False, **feed)
    paddle.set_flags({"FLAGS_ngraph_strict": False})
    with mock.patch.object(kernel_calls, "made_dtype", lambda *_: None):
        assert calls_in(program) == ["viterbi_decode"]
        for _ in range(7):
            assert_same(natively, program.run(**feed))
        with pytest.warns(UserWarning, match="viterbi_decode"):
            assert_same(natively, program.run(**feed))
        assert_same(natively, program.run(**feed))
        report = program_pass.dry_run(program.main)
    assert [op.type for op in report.native] == ["pd_op.viterbi_decode"]
    assert "another dtype" in report.native[0].reason


@pytest.mark.parametrize(
    "build",
    [
        lambda x: [x * 2, *paddle.unique(x, True)],
        lambda x: [x * 2, *paddle.unique_consecutive(x, True)],
        lambda x: paddle.equal_all(x, x * 2),
        lambda x: paddle.linalg.matrix_rank(x * 2),
        lambda x: paddle.linalg.slogdet(x * 2),
    ],
)
def test_results_that_programs_declare_wrongly_stay_native(build):
    """Of each such function, the first eight runs would fail."""
    program = single(build, feed := {"x": floats(4, 4)})
    assert_same(program.run(False, **feed), program.run(**feed))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda x: paddle.cast(paddle.cast(x, "float16"), "float32"), "float16"),
        (lambda x: operators.bincount(paddle.cast(paddle.flatten(x), "int32"), None,
                                      paddle.cast(x[0, 0], "int32")), "as an attribute"),
    ],
)  # fmt: skip
def test_limits(build, reason):
    report = program_pass.dry_run(single(build, {"x": floats(4, 4)}).main)
    assert any(reason in op.reason for op in report.native)


def test_a_batch_that_is_computed_in_chunks_has_no_calls_that_mix_samples():
    """Convolutions without chunks take longer, by more than a call gains."""

    def found(batch: int, by_sample: bool, side: int = 128) -> list[str]:
        def build() -> Any:
            x = paddle.static.data("x", [batch, 4, side, side], "float32")
            y = paddle.nn.Conv2D(4, 64, 3, padding=1)(x)
            y = operators.shuffle_channel(y, 2) if by_sample else operators.mode(y, -1, False)[0]
            return paddle.exp(y)

        return program_pass.dry_run(Program(build).main).kernel_calls

    assert found(1, by_sample=False) == ["pd_op.mode"]
    assert found(8, by_sample=False) == found(-1, by_sample=False) == []
    assert found(8, by_sample=False, side=16) == ["pd_op.mode"]
    assert found(8, by_sample=True) == found(-1, by_sample=True) == ["pd_op.shuffle_channel"]


@pytest.mark.parametrize(
    "convolution",
    [
        lambda x: paddle.nn.Conv2DTranspose(4, 64, 3, padding=1)(x),
        lambda x: paddle.nn.Conv2D(4, 64, 3, padding=1, groups=4)(x),
        lambda x: paddle.nn.Conv3D(4, 64, 3, padding=1)(x.reshape([-1, 4, 8, 16, 128])),
    ],
    ids=["transposed", "depthwise", "3-D"],
)
def test_batches_of_other_convolutions_are_computed_in_chunks(convolution):
    def build() -> Any:
        x = paddle.static.data("x", [8, 4, 128, 128], "float32")
        return paddle.exp(operators.mode(convolution(x), -1, False)[0])

    assert program_pass.dry_run(Program(build).main).kernel_calls == []


@pytest.mark.parametrize("batch", [8, -1])
def test_chunks_of_a_batch_with_calls(batch):
    def build() -> Any:
        x = paddle.static.data("x", [batch, 8, 64, 64], "float32")
        y = paddle.nn.Conv2D(8, 64, 3, padding=1)(x)
        return operators.shuffle_channel(y, 2) * 2.0

    program, feed = Program(build), {"x": floats(8, 8, 64, 64)}
    natively = program.run(False, **feed)
    calls = quantity("kernel_calls")
    for _ in range(2):
        np.testing.assert_allclose(program.run(**feed)[0], natively[0], rtol=1e-4, atol=1e-5)
    assert quantity("kernel_calls") - calls > 2  # one in each chunk


def test_small_operators_around_a_kernel_stay_native():
    """A kernel takes as long in a function, which is no gain."""
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 60})
    large = single(OPERATORS["svd"][0], {"x": floats(64, 64)})
    report = program_pass.dry_run(large.main)
    assert not report.intervals and "too little" in report.native[0].reason


def test_projects_of_transpiled_programs_are_refused(tmp_path):
    """Generated projects call kernels themselves, outside of functions."""
    program = single(*OPERATORS["svd"])
    transpiled, wanted = paddle_ngraph.transpile(program.main, program.fetches)
    with pytest.raises(NgraphError, match="kernel of pd_op"):
        transpiler.generate_native(transpiled, tmp_path / "project", wanted)


def test_operators_alone_stay_native():
    def build() -> Any:
        return operators.shuffle_channel(paddle.static.data("x", [1, 4, 3, 3], "float32"), 2)

    report = program_pass.dry_run(Program(build).main)
    assert [op.type for op in report.native] == ["pd_op.shuffle_channel"] and not report.intervals


def test_flag_off():
    assert flags.FLAGS["ngraph_kernel_calls"].default is True
    paddle.set_flags({"FLAGS_ngraph_kernel_calls": False})
    report = program_pass.dry_run(Program(head).main)
    assert "pd_op.yolo_box" in {op.type for op in report.native}


NEVER_CALLED = {
    "random": ["bernoulli", "cudnn_lstm", "gaussian", "poisson", "randint", "top_p_sampling"],
    "in place": ["adam_", "assign_out_", "exponential_", "relu_", "set_value_", "uniform_"],
    "other places and files": ["load", "memcpy_d2h", "memcpy_h2d", "print", "save", "share_data"],
    "LoD": ["beam_search", "box_clip", "crf_decoding", "sequence_conv", "sequence_pool"],
    "undefined": ["empty", "empty_like"],
}


@pytest.mark.parametrize("kind", NEVER_CALLED)
def test_operators_that_are_never_called(kind):
    called = {type for type in kernel_calls.callable_types() if type.endswith("_")}
    assert not called
    for name in NEVER_CALLED[kind]:
        assert not kernel_calls.may_call(f"pd_op.{name}"), name
        assert f"pd_op.{name}" not in kernel_calls.callable_types()


def test_results_are_written_to_the_memory_of_the_function():
    x = opset15.parameter([2, 2], np.float32)
    made = extension("KernelCall", [x], kernel=RELU, op_id=0)
    given = Tensor(np.array([[-1, 2], [3, -4]], "float32"))
    memory = np.full((2, 2), 7, "float32")
    result = Tensor(memory, shared_memory=True)
    before = quantity("kernel_results_copied"), quantity("kernel_calls")
    assert made.evaluate([result], [given])
    assert memory.tolist() == [[0, 2], [3, 0]] and np.shares_memory(result.data, memory)
    after = quantity("kernel_results_copied"), quantity("kernel_calls")
    assert after == (before[0], before[1] + 1)


def chain(dynamic: bool) -> Program:
    """Kernels that read the results of kernels, and feeds, and make results of the program."""

    def build() -> Any:
        x = paddle.static.data("x", [-1 if dynamic else 2, 4, 6, 6], "float32")
        y = operators.shuffle_channel(operators.shuffle_channel(x, 2), 2)
        return operators.shuffle_channel(paddle.nn.functional.relu(y), 2)

    return Program(build)


@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_read_and_write_the_memory_of_the_function(dynamic):
    """Feeds, tensors between kernels, and results: none is copied.

    Results of functions with dynamic shapes, of any operator, are copied once their size is known.
    """
    program = chain(dynamic)
    assert calls_in(program) == ["shuffle_channel"] * 3
    executor = paddle.static.Executor(paddle.CPUPlace())
    for rows in (2, 3, 5, 4) if dynamic else (2,):
        fed = paddle.base.core.DenseTensor()
        fed.set(floats(rows, 4, 6, 6), paddle.CPUPlace())
        with paddle_ngraph.use_ngraph():
            _core.record_kernel_memory(True)
            (result,) = executor.run(
                program.main, feed={"x": fed}, fetch_list=program.fetches, return_numpy=False
            )
            first, second, last = _core.record_kernel_memory(False)
        assert {name for name, _, _ in (first, second, last)} == {"pd_op.shuffle_channel"}
        (read,), (made,) = first[1:]
        assert read == fed._ptr()
        assert second[1] == [made]
        has_function_of_its_own = rows in (2, 3)
        assert (last[2] == [result._ptr()]) == has_function_of_its_own


@pytest.mark.parametrize("dynamic", [False, True])
def test_booleans_at_the_border_of_a_function(dynamic):
    """Parameters and results, of kernels and of converters, also unchanged ones."""

    def build() -> Any:
        x = paddle.static.data("x", [-1 if dynamic else 2, 8], "float32")
        mask = paddle.static.data("mask", [-1 if dynamic else 2, 8], "bool")
        y = paddle.nn.functional.relu(x)
        reversed_mask = operators.reverse(mask, [1])
        chosen = operators.masked_select(y, mask)
        joined = mask & (x > 0)
        return reversed_mask, chosen, joined, joined.any(1), paddle.where(mask, y, x), mask

    program = Program(build)
    assert set(calls_in(program)) == {"reverse", "masked_select"}
    for rows in (2, 3, 5, 4) if dynamic else (2, 2):
        feed = {"x": floats(rows, 8), "mask": floats(rows, 8) > 1}
        assert_same(program.run(engine=False, **feed), program.both(**feed))


@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_in_loops_work_on_the_memory_of_an_iteration(dynamic):
    def build() -> Any:
        x = paddle.static.data("x", [-1 if dynamic else 2, 4, 6, 6], "float32")
        n = paddle.static.data("n", [1], "int64")
        return paddle.static.nn.while_loop(
            lambda i, y: i < n,
            lambda i, y: [
                i + 1,
                operators.shuffle_channel(operators.shuffle_channel(paddle.exp(y), 2), 2),
            ],
            [paddle.zeros([1], "int64"), paddle.nn.functional.relu(x)],
        )[1]

    program, feed = Program(build), {"x": floats(2, 4, 6, 6), "n": np.array([3], "int64")}
    program.run(**feed)
    _core.record_kernel_memory(True)
    program.run(**feed)
    recorded = _core.record_kernel_memory(False)
    assert len(recorded) == 6
    for first, second in zip(recorded[::2], recorded[1::2]):
        assert first[2] == second[1]


def node(description: str) -> Any:
    """A node with a kernel of this description, as a function on disk may have one."""
    x = opset15.parameter([2, 2], np.float32)
    return extension("KernelCall", [x], kernel=description, op_id=0)


RELU = "pd_op.relu relu float32 1 0 1 1 float32 1 0 1 sized 1 float32 0 1 0 0 1 0 0"


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        (RELU.replace("relu relu", "relu tanh"), "another name"),
        (RELU.replace("relu relu", "relu save"), "another name"),
        (RELU.replace("relu relu", "relu_ relu"), "overwrites an operand"),
        (RELU.replace("relu relu", "none none"), "no operator"),
        (RELU.replace("float32", "float64").replace("float64 0", "float64 1"), "another dtype"),
        (RELU.replace("float32", "float64"), "in another way"),
        (RELU.replace("sized 1 float32 0", "sized 1 uint8 1"), "in another way"),
        (RELU.replace("1 float32 1 0 1", "1 complex64 1 0 1"), "another dtype"),
        (RELU.replace("1 0 1 sized", "1 0 2 sized"), "no such tensors"),
        (RELU.replace("1 0 1 sized", "1 1 1 sized"), "no such tensors"),
        (RELU.replace("1 0 1 sized 1 float32 0", "0 0"), "other operands"),
        (RELU.replace("1 0 1 1 float32", "1 0 0 0"), "lacks an operand"),
        (RELU.replace("1 0 1 sized", "99999999999 0 1 sized"), "ends early"),
        (RELU[: RELU.index(" 1 0 0 1 0 0")] + " 0 0 1 0 0", "other arguments"),
        (RELU[:-1] + "1 bool 1", "other arguments"),
        (RELU[: RELU.index(" 1 0 0 1 0 0")] + " 1 7 0 1 0 0", "another order"),
        ("pd_op.read_file read_file float32 0 0 1 0 1 sized 1 uint8 0 0 1 text 1:x 0 1 text 1:x",
         "acts outside of its results"),
        ("pd_op.all_reduce all_reduce float32 1 0 1 1 float32 1 0 1 sized 1 float32 0 "
         "1 0 0 1 0 2 int32 0 int32 0", "communicates"),
        ("pd_op.pyramid_hash pyramid_hash float32 0 0 0 0 0 0 0 0", "name a file"),
        (RELU[:40], "ends early"),
        ("", "ends early"),
    ],
)  # fmt: skip
def test_hostile_descriptions(description, reason):
    assert node(RELU).get_output_size() == 1
    with pytest.raises(NgraphError, match=reason):
        node(description)


def test_no_kernel_is_called_without_the_flag():
    """Neither by a function on disk, nor by the graph string of a saved program."""
    report = program_pass.dry_run(single(*OPERATORS["svd"]).main)
    graph = report.intervals[0].graph
    assert graph is not None and conversion_error(graph, graph.to_string()) is None
    paddle.set_flags({"FLAGS_ngraph_kernel_calls": False})
    with pytest.raises(NgraphError, match="is off"):
        node(RELU)
    with pytest.raises(NgraphError, match="has no converter"):
        conversion_error(graph, graph.to_string())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"type": "pd_op.read_file"}, "has no converter"),
        ({"attrs": {"pooltype": "SUM", "filename": "/file"}}, "may name a file"),
    ],
)
def test_hostile_graphs(change, reason):
    """Graphs of saved programs name operators and attributes that the program pass rejects."""
    graph = program_pass.dry_run(single(*OPERATORS["segment_pool"]).main).intervals[0].graph
    assert graph is not None and conversion_error(graph, graph.to_string()) is None
    ops = [replace(op, **change) if op.type == "pd_op.segment_pool" else op for op in graph.ops]
    hostile = replace(graph, ops=ops)
    with pytest.raises(NgraphError, match=reason):
        raise conversion_error(hostile, hostile.to_string()) or AssertionError
