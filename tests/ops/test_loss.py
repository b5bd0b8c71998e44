"""Softmax, cross entropy and the other losses, with their gradients."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.ops.harness import check, check_fallback
from tests.ops.merging import merged
from tests.programs import Program, varied

SOFTMAX = ["softmax", "softmax_grad"]
LOG_SOFTMAX = ["log_softmax", "log_softmax_grad"]
CROSS_ENTROPY = ["cross_entropy_with_softmax", "cross_entropy_with_softmax_grad"]
SHAPES = [
    ([], -1),
    ([1], 0),
    ([7], 0),
    ([4, 1], -1),
    ([4, 10], -1),
    ([4, 10], 0),
    ([2, 3, 5], 1),
    ([2, 3, 5], -1),
    ([2, 3, 4, 5], 1),
    ([2, 3, 4, 5], 0),
    ([2, 3, 2, 3, 4], -1),
    ([3, 1000], -1),
    ([2, 3, 4, 37], 3),
]
FUNCTIONS = [(F.softmax, SOFTMAX), (F.log_softmax, LOG_SOFTMAX)]


def labels(shape: list[int], classes: int, dtype: str = "int64") -> np.ndarray:
    return np.random.default_rng(5).integers(0, classes, shape).astype(dtype)


# -- softmax -------------------------------------------------------------------------------------


@merged
@pytest.mark.parametrize("shape, axis", SHAPES)
@pytest.mark.parametrize("function, types", FUNCTIONS)
def test_softmax(function, types, shape, axis):
    check(lambda x: function(x, axis=axis), {"x": 3 * varied(*shape)}, types)


@merged
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("function, types", FUNCTIONS)
def test_softmax_of_one_value(function, types, value):
    check(lambda x: function(x), {"x": np.full([], value, "float32")}, types)


@merged
@pytest.mark.parametrize("function, types", FUNCTIONS)
def test_softmax_with_dynamic_dimensions(function, types):
    check(lambda x: function(x, axis=1), {"x": varied(4, 6)}, types, dynamic={"x": [-1, -1]})


@merged
@pytest.mark.parametrize(
    "function, types, width",
    [(*each, width) for each in FUNCTIONS for width in (4, 12)] + [(*FUNCTIONS[0], 40)],
)
def test_exponents_far_below_the_maximum_are_zero(function, types, width):
    x = varied(5, width)
    x[:, 0] = [-64.5, -1e9, -np.inf, -3.4028235e38, -88.0]
    check(lambda x: function(x), {"x": x}, types, rtol=1e-4, atol=0)


@merged
@pytest.mark.parametrize("function, types", FUNCTIONS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [4, 20])
def test_rows_of_the_lowest_float_are_uniform(function, types, axis, size):
    x = np.full((size, size), -3.4028235e38, dtype="float32")
    check(lambda x: function(x, axis=axis), {"x": x}, types)


BAD_ROWS = [
    [np.nan, 1, 2, 3],
    [0, 1, np.nan, 3],
    [np.inf, 1, 2, 3],
    [np.inf, np.inf, -np.inf, 0],
    [np.nan, np.inf, 1, 2],
    [-np.inf] * 4,
    [0, 1, 2, 3],
]


@merged
@pytest.mark.parametrize("function, types", FUNCTIONS)
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_nan_and_infinity(function, types, axis):
    rows = np.array(BAD_ROWS, dtype="float32")
    x = rows if axis == 1 else np.ascontiguousarray(rows.T)
    check(lambda x: function(x, axis=axis), {"x": x}, types)


@merged
@pytest.mark.parametrize("length", [4, 8, 12, 16, 23, 24, 40, 4096, 4100])
@pytest.mark.parametrize("function, types", FUNCTIONS)
def test_rows_of_minus_infinity(function, types, length):
    """Paddle's softmax is uniform there if the length is a multiple of 8, else NaN."""
    x = varied(2, 3, length)
    x[0, 1], x[1, 2], x[1, 0, 1:] = -np.inf, -np.inf, -np.inf
    check(lambda x: function(x), {"x": x}, types)
    forward = types[:1]
    check(lambda x: function(x + x), {"x": x}, [*forward, "add"], gradients=False)


@merged
@pytest.mark.parametrize(
    "shape, axis",
    [([5, 8, 1], 1), ([8, 1], 0), ([2, 16, 1, 1], 1), ([3, 8, 2], 1), ([5, 12, 1], -2)],
)
@pytest.mark.parametrize("function, types", FUNCTIONS)
def test_columns_of_minus_infinity(function, types, shape, axis):
    """Paddle treats an axis that only axes of size 1 follow as rows."""
    x = varied(*shape)
    x[0] = -np.inf
    check(lambda x: function(x, axis=axis), {"x": x}, types)


def test_columns_of_minus_infinity_of_dynamic_size():
    program = Program(lambda: F.softmax(paddle.static.data("x", [-1, -1, -1]), 1))
    for shape in ([3, 8, 1], [3, 8, 2], [3, 16, 1], [4, 12, 1], [4, 16, 3], [5, 24, 1], [3, 8, 1]):
        x = varied(*shape)
        x[1] = -np.inf
        program.both(x=x)


def test_rows_of_minus_infinity_of_dynamic_length():
    program = Program(lambda: F.softmax(paddle.static.data("x", [-1, -1, -1])))
    for length in (8, 12, 16, 19, 24, 31, 32, 40):
        x = varied(2, 3, length)
        x[0, 1], x[1, 2, 2:] = -np.inf, -np.inf
        program.both(x=x)


@merged
@pytest.mark.parametrize("length", [12, 16])
@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy_of_minus_infinity(length, soft):
    x = varied(3, length)
    x[1] = -np.inf
    label = np.full((3, length), 1 / length, "float32") if soft else labels([3, 1], length)
    inputs = {"x": x, "label": label}
    check(
        lambda x, label: F.cross_entropy(x, label, soft_label=soft, reduction="none"),
        inputs,
        CROSS_ENTROPY,
    )


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    "shape", [(2, 6), (3, 5), (4, 6), (5, 3), (7, 2), (8, 9), (4, 2, 8), (12, 17)]
)
def test_nan_and_infinity_spoil_their_axis(function, value, shape):
    """Holds for every kernel that the plugin chooses and every fusion."""

    def build():
        x = paddle.static.data("x", [-1, *shape[1:]], "float32")
        return function(x + x, axis=0) * 0.5, function(x, axis=0)

    program = Program(build)
    for place in (0, 1, -1):
        x = np.zeros(shape, "float32")
        x.reshape(shape[0], -1)[1, place] = value
        program.both(x=x)


@pytest.mark.parametrize("length", [4095, 4096, 5003])
def test_rows_of_many_classes(length):
    """Inference; a NaN or infinity spoils its row (not in all kernels of Paddle)."""

    def build():
        x = paddle.static.data("x", [-1, 3, length], "float32")
        return F.softmax(x), F.softmax(x * 0.5) + 1.0

    program = Program(build)
    for rows in (1, 4, 2):
        x = 3 * varied(rows, 3, length)
        x[0, 0, :5] = [-64.5, -1e9, -np.inf, -3.4028235e38, -88.0]
        x[-1, 2] = -3.4028235e38
        expected = program.both(x=x)
        for bad in (np.nan, np.inf):
            x[0, 1, -1] = bad
            for result, sound in zip(program.run(x=x), expected):
                sound[0, 1] = np.nan
                np.testing.assert_allclose(result, sound, rtol=1e-5, atol=1e-6)


# -- cross entropy -------------------------------------------------------------------------------


@merged
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    "shape, axis",
    [
        ([5, 4], -1),
        ([5, 10], -1),
        ([5, 1], -1),
        ([1, 4], -1),
        ([4, 5], 0),
        ([2, 3, 4], -1),
        ([2, 3, 4], 1),
        ([2, 3, 4, 5], 1),
        ([3, 1000], -1),
    ],
)
def test_cross_entropy(shape, axis, dtype):
    wanted = list(shape)
    wanted[axis] = 1
    inputs = {"x": 3 * varied(*shape), "label": labels(wanted, shape[axis], dtype)}
    check(
        lambda x, label: F.cross_entropy(x, label, axis=axis, reduction="none"),
        inputs,
        CROSS_ENTROPY,
    )


@merged
def test_labels_without_a_dimension_for_the_classes():
    inputs = {"x": varied(5, 4), "label": labels([5], 4)}
    check(
        lambda x, label: F.cross_entropy(x, label, reduction="none"),
        inputs,
        CROSS_ENTROPY,
    )


@merged
def test_softmax_with_cross_entropy_returns_both():
    inputs = {"x": varied(5, 4), "label": labels([5, 1], 4)}
    check(
        lambda x, label: F.softmax_with_cross_entropy(x, label, return_softmax=True),
        inputs,
        CROSS_ENTROPY[:1],
        gradients=False,
    )


@merged
@pytest.mark.parametrize("dynamic", [{"x": [-1, 4], "label": [-1, 1]}, {"label": [-1, 1]}])
def test_cross_entropy_with_dynamic_batch(dynamic):
    inputs = {"x": varied(5, 4), "label": labels([5, 1], 4)}
    check(
        lambda x, label: F.cross_entropy(x, label, reduction="none"),
        inputs,
        CROSS_ENTROPY,
        dynamic=dynamic,
    )


@merged
@pytest.mark.parametrize("ignore_index", [-100, -1, 2])
def test_ignored_labels(ignore_index):
    label = labels([6, 1], 4)
    label[1] = label[4] = ignore_index
    x = varied(6, 4)
    x[4, 1] = np.nan
    check(
        lambda x, label: F.cross_entropy(x, label, ignore_index=ignore_index, reduction="none"),
        {"x": x, "label": label},
        CROSS_ENTROPY,
    )


@merged
@pytest.mark.parametrize("shape, axis", [([5, 4], -1), ([2, 3, 4], 1)])
def test_soft_labels(shape, axis):
    label = np.random.default_rng(1).random(shape).astype("float32")
    check(
        lambda x, label: F.cross_entropy(x, label, soft_label=True, axis=axis, reduction="none"),
        {"x": varied(*shape), "label": label},
        CROSS_ENTROPY,
    )


@merged
@pytest.mark.parametrize("soft", [False, True])
def test_probabilities_in_place_of_logits(soft):
    x = np.random.default_rng(1).random((5, 4)).astype("float32")
    x[0], x[1, 1] = [0, np.inf, 1, np.nan], 0
    label = x[::-1].clip(0.1, 1) if soft else labels([5, 1], 4)
    if soft:
        label = np.nan_to_num(label)
    check(
        lambda x, label: F.cross_entropy(
            x, label, soft_label=soft, use_softmax=False, reduction="none"
        ),
        {"x": x, "label": np.ascontiguousarray(label)},
        CROSS_ENTROPY,
    )


@merged
def test_the_loss_of_an_impossible_class_is_finite():
    x = np.array([[0, -1000], [0, -np.inf], [0, -63]], dtype="float32")
    label = np.ones((3, 1), dtype="int64")
    check(
        lambda x, label: F.cross_entropy(x, label, reduction="none"),
        {"x": x, "label": label},
        CROSS_ENTROPY,
    )


@merged
def test_cross_entropy_of_nan_and_infinity():
    x = np.array(BAD_ROWS, dtype="float32")
    check(
        lambda x, label: F.cross_entropy(x, label, reduction="none"),
        {"x": x, "label": labels([len(x), 1], 4)},
        CROSS_ENTROPY,
    )


@pytest.mark.parametrize("wrong", [-1, 4, 2**31])
def test_labels_out_of_range_are_rejected(wrong):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [3, 4])
        label = paddle.static.data("label", [3, 1], "int64")
        loss = F.cross_entropy(x, label, reduction="none")
    feed = {"x": varied(3, 4), "label": np.array([[0], [wrong], [1]])}
    executor = paddle.static.Executor(paddle.CPUPlace())
    for engine in (False, True):
        with (
            paddle_ngraph.use_ngraph(engine),
            pytest.raises(Exception, match=r"label|out of range"),
        ):
            executor.run(main, feed=feed, fetch_list=[loss])


@merged
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [[6, 4], [1, 10], [2, 4, 3, 5]])
def test_negative_log_likelihood(shape, reduction):
    label = labels([shape[0], *shape[2:]], shape[1])
    label.flat[0] = -100
    check(
        lambda x, label: F.nll_loss(x, label, reduction=reduction),
        {"x": varied(*shape), "label": label},
        ["nll_loss", "nll_loss_grad"],
    )


@merged
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [[6, 4], [2, 4, 3, 5]])
def test_negative_log_likelihood_of_weighted_classes(shape, reduction):
    label = labels([shape[0], *shape[2:]], shape[1])
    label.flat[0] = -100
    weight = np.array([0.5, 2.0, 0.0, 0.1], dtype="float32")
    check(
        lambda x, label, weight: F.nll_loss(x, label, weight, reduction=reduction),
        {"x": varied(*shape), "label": label, "weight": weight},
        ["nll_loss", "nll_loss_grad"],
    )


@merged
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("arguments", [{}, {"label_smoothing": 0.1}, {"ignore_index": 2}])
def test_cross_entropy_of_weighted_classes(arguments, reduction):
    weight = np.array([0.5, 2.0, 1.0, 0.1], dtype="float32")
    check(
        lambda x, label, weight: F.cross_entropy(
            x, label, weight, reduction=reduction, **arguments
        ),
        {"x": varied(5, 4), "label": labels([5], 4), "weight": weight},
        CROSS_ENTROPY,
    )


@merged
@pytest.mark.parametrize("weighted", [True, False])
def test_cross_entropy_of_soft_labels_with_all_arguments(weighted):
    def build(x, label, weight):
        chosen = weight if weighted else None
        return F.cross_entropy(
            x, label, chosen, soft_label=True, label_smoothing=0.2, reduction="mean"
        )

    inputs = {"x": varied(5, 4), "label": np.abs(varied(5, 4)) / 3}
    check(build, {**inputs, "weight": np.array([0.5, 2, 1, 0.1], "float32")}, CROSS_ENTROPY)


# -- other losses --------------------------------------------------------------------------------

SIGMOID = ["sigmoid_cross_entropy_with_logits", "sigmoid_cross_entropy_with_logits_grad"]


@merged
@pytest.mark.parametrize("shape", [[5], [4, 3], [2, 3, 4]])
def test_binary_cross_entropy_with_logits(shape):
    label = np.random.default_rng(1).integers(0, 2, shape).astype("float32")
    check(
        lambda x, label: F.binary_cross_entropy_with_logits(x, label, reduction="none"),
        {"x": 4 * varied(*shape), "label": label},
        SIGMOID[:1],
    )


def logits_loss(ignore_index: int = -100, normalize: bool = False):
    def build(x, label):
        label.stop_gradient = True
        out = paddle._C_ops.sigmoid_cross_entropy_with_logits(
            x, label, None, normalize, ignore_index
        )
        return [out, *paddle.static.gradients([out], [x])]

    return build


@merged
@pytest.mark.parametrize("ignore_index", [-100, -1, 0, 1, 2])
def test_ignored_labels_of_logits(ignore_index):
    label = np.array([-100, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.9], dtype="float32")
    check(
        logits_loss(ignore_index),
        {"x": varied(10), "label": label},
        SIGMOID,
        gradients=False,
    )


@merged
def test_logits_at_zero_nan_and_infinity():
    x = np.array([0, -0.0, np.nan, np.inf, -np.inf, 100, -100, 1e-30, -1e-30], dtype="float32")
    for value in (0.0, 1.0, 0.3):
        label = np.full(x.shape, value, dtype="float32")
        check(logits_loss(), {"x": x, "label": label}, SIGMOID, gradients=False)


@merged
@pytest.mark.parametrize("shape", [[5], [4, 3], [2, 3, 4]])
def test_binary_cross_entropy_with_weights(shape):
    def build(x, label, positive, weight):
        return F.binary_cross_entropy_with_logits(x, label, weight, pos_weight=positive)

    label = np.random.default_rng(1).uniform(size=shape).astype("float32")
    x = 4 * varied(*shape)
    x.flat[0] = 0.0
    positive = np.linspace(0.1, 3.0, shape[-1], dtype="float32")
    inputs = {"x": x, "label": label, "positive": positive, "weight": positive[::-1].copy()}
    check(build, inputs, SIGMOID)


@merged
def test_normalized_logits_fall_back():
    inputs = {"x": varied(5), "label": np.ones(5, dtype="float32")}
    check_fallback(logits_loss(normalize=True), inputs, SIGMOID, gradients=False)


@merged
@pytest.mark.parametrize("delta", [1.0, 0.3, 2.5])
@pytest.mark.parametrize("shape", [[], [1], [4, 3]])
def test_huber_loss(shape, delta):
    check(
        lambda x, label: F.smooth_l1_loss(x, label, delta=delta, reduction="none"),
        {"x": 3 * varied(*shape), "label": varied(*shape)},
        ["huber_loss", "huber_loss_grad"],
    )


@merged
def test_huber_loss_of_nan_and_infinity():
    x = np.array([np.nan, np.inf, -np.inf, 1, -1, 0], dtype="float32")
    label = np.zeros(6, dtype="float32")
    check(
        lambda x, label: F.smooth_l1_loss(x, label, reduction="none"),
        {"x": x, "label": label},
        ["huber_loss", "huber_loss_grad"],
    )
