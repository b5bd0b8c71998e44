"""The layers of the programs of a life: each maps ``[-1, 4]`` to ``[-1, 4]``.

Values stay near 1 and no layer amplifies a rounding error, so that after many training steps the
engine and plain Paddle still agree to a few digits. ``k`` is a small integer: a parameter, a
threshold, or a number of iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

WIDTH = 4
WIDE = 128  # a weight of 64 KB: more than is compared at once

Layer = Callable[["Context", Any, int], Any]
LAYERS: dict[str, Layer] = {}
# Layers that a ProgramDesc program has too.
OLD: list[str] = []
# Layers that write into the fed tensor.
FEED_WRITERS: list[str] = []


class Context:
    """Resources of a layer while a program is built.

    Attributes:
        feed: The variable that is fed.
        test: Whether the program is one for tests.
        old: Whether it is a ProgramDesc program.
        parameters: Those of the program by name.
    """

    def __init__(self, feed: Any, test: bool = False, old: bool = False) -> None:
        self.feed = feed
        self.test = test
        self.old = old
        self.parameters: dict[str, Any] = {}

    def product(self, x: Any, y: Any, transpose_y: bool = False) -> Any:
        """The matrix product."""
        if not self.old:
            return paddle.matmul(x, y, transpose_y=transpose_y)
        return _old_operator("matmul_v2", {"X": x, "Y": y}, trans_x=False, trans_y=transpose_y)

    def tanh(self, x: Any) -> Any:
        """The hyperbolic tangent."""
        return _old_operator("tanh", {"X": x}) if self.old else paddle.tanh(x)

    def parameter(
        self, name: str, shape: tuple[int, ...], scale: float = 0.6, trainable: bool = True
    ) -> Any:
        """The parameter of this name: its initial value depends on the name alone."""
        if name not in self.parameters:
            self.parameters[name] = self.once_more(name, shape, scale, trainable)
        return self.parameters[name]

    def once_more(
        self, name: str, shape: tuple[int, ...], scale: float = 0.6, trainable: bool = True
    ) -> Any:
        """The parameter, declared again as if no layer before had declared it."""
        rng = np.random.default_rng(sum(name.encode()))
        data = rng.uniform(-scale, scale, shape).astype("float32")
        attr = paddle.ParamAttr(
            name, initializer=paddle.nn.initializer.Assign(data), trainable=trainable
        )
        parameter = paddle.create_parameter(list(shape), "float32", attr=attr)
        parameter.stop_gradient = not trainable
        return parameter

    def total(self, x: Any) -> Any:
        """The sum of all elements."""
        if not self.old:
            return paddle.sum(x)
        return _old_operator("reduce_sum", {"X": x}, dim=[0], reduce_all=True, keep_dim=False)


def _old_operator(type: str, inputs: dict[str, Any], **attributes: Any) -> Any:
    """An operator of a ProgramDesc program, for which Paddle's function takes no variables."""
    helper = paddle.base.layer_helper.LayerHelper(type)
    out = helper.create_variable_for_type_inference(dtype="float32")
    helper.append_op(type=type, inputs=inputs, outputs={"Out": out}, attrs=attributes)
    return out


def layer(old: bool = False, writes_feed: bool = False) -> Callable[[Layer], Layer]:
    """Adds the decorated function to the table."""

    def register(function: Layer) -> Layer:
        name = function.__name__.strip("_")
        LAYERS[name] = function
        if old:
            OLD.append(name)
        if writes_feed:
            FEED_WRITERS.append(name)
        return function

    return register


def _rows(h: Any) -> Any:
    return paddle.shape(h)[0]


# --- parameters --------------------------------------------------------------------------------


@layer(old=True)
def linear(c: Context, h: Any, k: int) -> Any:
    w = c.parameter(f"w{k % 2}", (WIDTH, WIDTH))
    return c.tanh(c.product(h, w) + c.parameter(f"b{k % 2}", (WIDTH,)))


@layer(old=True)
def wide(c: Context, h: Any, k: int) -> Any:
    h = c.product(h, c.parameter("wide_in", (WIDTH, WIDE), 0.2))
    h = F.relu(c.product(h, c.parameter("wide", (WIDE, WIDE), 0.1)))
    return c.tanh(c.product(h, c.parameter("wide_out", (WIDE, WIDTH), 0.2)))


@layer(old=True)
def shared(c: Context, h: Any, k: int) -> Any:
    """One parameter under two declarations."""
    c.parameter("w0", (WIDTH, WIDTH))
    return c.tanh(c.product(h, c.once_more("w0", (WIDTH, WIDTH)))) + 0.5 * h


@layer()
def tied(c: Context, h: Any, k: int) -> Any:
    """An embedding and a matmul with its table."""
    table = c.parameter("table", (5, WIDTH))
    ids = paddle.argmax(c.product(h, table, transpose_y=True), axis=-1)
    return 0.5 * h + F.embedding(ids, table)


@layer(old=True)
def layer_norm(c: Context, h: Any, k: int) -> Any:
    w, b = c.parameter("norm_w", (WIDTH,), 1.0), c.parameter("norm_b", (WIDTH,))
    return F.layer_norm(h, [WIDTH], w, b, 0.001)


@layer(old=True)
def batch_norm(c: Context, h: Any, k: int) -> Any:
    """Statistics are written in a training program, read in its clone."""
    mean, variance = (
        c.parameter(f"batch_{part}", (WIDTH,), scale, trainable=False)
        for part, scale in (("mean", 0.0), ("variance", 1.0))
    )
    w, b = c.parameter("batch_w", (WIDTH,), 1.0), c.parameter("batch_b", (WIDTH,))
    return F.batch_norm(h, mean, variance * variance if c.test else variance, w, b,
                        training=not c.test, epsilon=0.001)  # fmt: skip


@layer(old=True)
def convolution(c: Context, h: Any, k: int) -> Any:
    image = paddle.reshape(h, [-1, 1, 2, 2])
    image = F.conv2d(image, c.parameter("filter", (4, 1, 2, 2)), padding=k % 2)
    return c.tanh(paddle.mean(image, axis=[2, 3]))


@layer()
def moving_average(c: Context, h: Any, k: int) -> Any:
    """A parameter that a program writes without training."""
    average = c.parameter("average", (WIDTH,), trainable=False)
    moved = 0.9 * average + 0.001 * paddle.sum(h, axis=0)
    paddle.assign(moved, output=average)
    return h + 0.5 * moved


# --- sizes -------------------------------------------------------------------------------------


@layer(old=True)
def first(c: Context, h: Any, k: int) -> Any:
    """The first rows apart from the others."""
    return paddle.concat([h[: 2 * k + 1] * 0.5, h[2 * k + 1 :]], axis=0)


@layer()
def last(c: Context, h: Any, k: int) -> Any:
    return paddle.concat([h[-2 * k - 1 :] * 0.5, h[: -2 * k - 1]], axis=0)


@layer()
def counted(c: Context, h: Any, k: int) -> Any:
    """Some rows by index."""
    kept = paddle.cast(paddle.arange(_rows(h)) < 4 * k + 3, "float32")
    return h * paddle.unsqueeze(kept, -1)


@layer()
def attention(c: Context, h: Any, k: int) -> Any:
    """Attention of each row over earlier rows, and over a few later ones."""
    scores = paddle.tril(c.product(h, h, transpose_y=True), diagonal=3 * k)
    return c.tanh(0.1 * c.product(scores, h)) + 0.5 * h


@layer(old=True)
def halves(c: Context, h: Any, k: int) -> Any:
    left, right = paddle.split(paddle.reshape(h, [-1, 2, 2]), 2, axis=1)
    return paddle.reshape(paddle.concat([right, left * 0.5], axis=1), [-1, WIDTH])


@layer()
def running(c: Context, h: Any, k: int) -> Any:
    return c.tanh(0.1 * paddle.cumsum(h, axis=0))


@layer(old=True)
def softmax(c: Context, h: Any, k: int) -> Any:
    return F.softmax(h, axis=-1) + 0.5 * h


# --- empty tensors -----------------------------------------------------------------------------


@layer()
def chosen(c: Context, h: Any, k: int) -> Any:
    """Selected rows, often none, through a matmul."""
    rows = paddle.nonzero(h[:, 0] > (0.2, 1.7, 9.0)[k % 3])
    some = paddle.gather(h, paddle.reshape(rows, [-1]))
    some = c.tanh(c.product(some, c.parameter("w1", (WIDTH, WIDTH))))
    return h + 0.1 * paddle.sum(some, axis=0, keepdim=True)


@layer()
def nothing(c: Context, h: Any, k: int) -> Any:
    """Empty rows next to all rows: in one subgraph, which then falls back."""
    return 0.5 * h + 0.25 * paddle.concat([h[0:0], h])


@layer()
def masked(c: Context, h: Any, k: int) -> Any:
    some = paddle.masked_select(h, h > (0.2, 1.7, 9.0)[k % 3])
    return h + 0.01 * paddle.sum(F.relu(some) * 0.5)


@layer()
def cut_away(c: Context, h: Any, k: int) -> Any:
    """A slice that is empty where there are few rows."""
    rest = h[3 * k + 1 :]
    rest = F.layer_norm(rest, [WIDTH], epsilon=0.001)
    return h + 0.1 * paddle.sum(rest, axis=0)


# --- control flow ------------------------------------------------------------------------------


@layer()
def branch(c: Context, h: Any, k: int) -> Any:
    w = c.parameter("w0", (WIDTH, WIDTH))
    return paddle.static.nn.cond(
        paddle.sum(h) > 0.2 * k,
        lambda: c.tanh(c.product(h, w)),
        lambda: 0.5 * h + 0.1,
    )


def _start(h: Any) -> Any:
    """Copies an initial value of a loop: plain Paddle overwrites it, and ``h`` has readers."""
    return paddle.assign(h)


@layer(old=True)
def loop(c: Context, h: Any, k: int) -> Any:
    w = c.parameter("w1", (WIDTH, WIDTH))
    i, end = paddle.full([1], 0, "int64"), paddle.full([1], k, "int64")

    def body(i: Any, h: Any) -> Any:
        return [i + 1, c.tanh(c.product(h, w))]

    return paddle.static.nn.while_loop(lambda i, h: i < end, body, [i, _start(h)])[1]


@layer()
def nested(c: Context, h: Any, k: int) -> Any:
    """A branch in each iteration of a loop with as many iterations as rows."""
    i = paddle.full([], 0, "int64")
    end = paddle.minimum(_rows(h), paddle.full([], 3 + k, "int64"))

    def body(i: Any, h: Any) -> Any:
        turned = paddle.static.nn.cond(i % 2 == 0, lambda: c.tanh(h + 0.1), lambda: h * 0.9)
        return [i + 1, turned]

    return paddle.static.nn.while_loop(lambda i, h: i < end, body, [i, _start(h)])[1]


# --- dtypes, random numbers, memory ------------------------------------------------------------


@layer()
def bfloat16(c: Context, h: Any, k: int) -> Any:
    """A round trip through bfloat16, of values that it represents."""
    short = paddle.clip(paddle.round(c.feed * 4) / 4, -2.0, 2.0)
    return h + 0.1 * paddle.cast(paddle.cast(short, "bfloat16") * 2.0, "float32")


@layer(old=True)
def dropout(c: Context, h: Any, k: int) -> Any:
    return F.dropout(h, 0.25, training=not c.test)


@layer()
def in_place(c: Context, h: Any, k: int) -> Any:
    return F.relu_(h * 1.5) - 0.2


@layer(old=True)
def counter(c: Context, h: Any, k: int) -> Any:
    """The number of runs of the program, in the scope."""
    steps = c.parameter("steps", (1,), 0.0, trainable=False)
    paddle.assign(steps + 0.125, output=steps)
    return h + 0.1 * steps


@layer(old=True, writes_feed=True)
def feed_incremented(c: Context, h: Any, k: int) -> Any:
    """Writes to the fed tensor after it was read."""
    return h + 0.1 * paddle.assign(c.feed + 1.0, output=c.feed)


@layer(writes_feed=True)
def feed_row(c: Context, h: Any, k: int) -> Any:
    """A column of the fed tensor."""
    changed = paddle.static.setitem(c.feed, (slice(None), k % WIDTH), 0.25)
    return h + 0.1 * changed


@layer(writes_feed=True)
def feed_scaled(c: Context, h: Any, k: int) -> Any:
    return h + 0.1 * c.feed.scale_(0.5)


OPTIMIZERS = ("SGD", "Momentum", "Adam", "AdamW", "RMSProp")


def optimizer(name: str) -> Any:
    """An optimizer whose updates are no larger than its gradients, to a factor."""
    kinds: dict[str, Callable[[], Any]] = {
        "SGD": lambda: paddle.optimizer.SGD(0.05),
        "Momentum": lambda: paddle.optimizer.Momentum(0.05, 0.9),
        "Adam": lambda: paddle.optimizer.Adam(0.01, epsilon=0.01),
        "AdamW": lambda: paddle.optimizer.AdamW(0.01, epsilon=0.01, weight_decay=0.02),
        "RMSProp": lambda: paddle.optimizer.RMSProp(0.01, epsilon=0.01),
    }
    return kinds[name]()
