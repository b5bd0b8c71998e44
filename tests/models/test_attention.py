"""Attention and Transformers: made of ordinary operators on CPU, all of which convert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from tests.ops.harness import check
from tests.programs import Program, floats

pytestmark = pytest.mark.usefixtures("native_in_order")

BATCH, LENGTH, WIDTH, HEADS, WORDS = 3, 6, 16, 2, 30


def heads(length: int = LENGTH, seed: int = 0) -> np.ndarray:
    return floats(BATCH, length, HEADS, WIDTH // HEADS, seed=seed)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_scaled_dot_product_attention(dropout, causal):
    def build(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, None, dropout, causal)

    inputs = {"q": heads(), "k": heads(seed=1), "v": heads(seed=2)}
    converted = ["matmul", "softmax", *(["dropout", "dropout_grad"] if dropout else [])]
    dynamic = {name: [-1, *value.shape[1:]] for name, value in inputs.items()}
    check(build, inputs, converted, dynamic=dynamic, runs=2, atol=1e-5)


@pytest.mark.slow("compiles many or large functions")
def test_masked_attention_over_another_sequence():
    def build(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, mask, 0.2)

    mask = np.where(floats(BATCH, HEADS, LENGTH, 4, seed=3) > 0, 0, -1e9).astype("float32")
    inputs = {"q": heads(), "k": heads(4, 1), "v": heads(4, 2), "mask": mask}
    check(build, inputs, ["softmax", "dropout"], runs=2, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention(causal):
    def build(q: Any, k: Any, v: Any) -> Any:
        return F.flash_attention.flash_attention(q, k, v, 0.2, causal)[0]

    inputs = {"q": heads(), "k": heads(seed=1), "v": heads(seed=2)}
    check(build, inputs, ["softmax", "dropout"], runs=2, atol=1e-5)


# -- layers, trained -------------------------------------------------------------------------------


def sequence(name: str = "x", length: int = LENGTH) -> Any:
    return paddle.static.data(name, [-1, length, WIDTH])


def padding() -> Any:
    return (paddle.static.data("padding", [-1, 1, 1, LENGTH]) > 0.7).astype("float32") * -1e4


def multi_head() -> Any:
    x = sequence()
    return nn.MultiHeadAttention(WIDTH, HEADS, dropout=0.1)(x, x, x, padding())


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, 0.1, "gelu")
    return nn.TransformerEncoder(layer, 2)(sequence(), padding())


def decoder() -> Any:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 32, 0.1, normalize_before=True)
    ahead = paddle.tensor.triu(paddle.full([LENGTH, LENGTH], float("-inf")), 1)
    return nn.TransformerDecoder(layer, 2, nn.LayerNorm(WIDTH))(sequence(), sequence("y", 4), ahead)


def transformer() -> Any:
    network = nn.Transformer(WIDTH, HEADS, 1, 1, 32, 0.1)
    ahead = network.generate_square_subsequent_mask(4)
    return network(sequence(), sequence("y", 4), padding(), ahead)


def gpt() -> Any:
    words = paddle.static.data("words", [-1, LENGTH], "int64")
    x = F.dropout(nn.Embedding(WORDS, WIDTH)(words), 0.1)
    for _ in range(2):
        mixed = nn.Linear(WIDTH, 3 * WIDTH)(nn.LayerNorm(WIDTH)(x))
        q, k, v = mixed.reshape([0, 0, 3, HEADS, WIDTH // HEADS]).unbind(2)
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + F.dropout(nn.Linear(WIDTH, WIDTH)(seen.reshape([0, 0, WIDTH])), 0.1)
        x = x + nn.Linear(32, WIDTH)(F.gelu(nn.Linear(WIDTH, 32)(nn.LayerNorm(WIDTH)(x))))
    return nn.Linear(WIDTH, WORDS)(x)


def feed(program: Program, step: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(step)
    everything = {
        "x": floats(BATCH, LENGTH, WIDTH, seed=step),
        "y": floats(BATCH, 4, WIDTH, seed=step + 100),
        "padding": generator.random((BATCH, 1, 1, LENGTH), "float32"),
        "words": generator.integers(0, WORDS, (BATCH, LENGTH)),
    }
    ops = program.main.global_block().ops
    names = {op.attrs()["name"] for op in ops if op.name() == "pd_op.data"}
    return {name: value for name, value in everything.items() if name in names}


def assert_same_losses(
    build: Callable[[], Any],
    feed: Callable[[Program, int], dict[str, np.ndarray]],
    rtol: float,
) -> list[np.ndarray]:
    """Trains natively and through the engine, as one interval; the losses of native Paddle."""
    report = paddle_ngraph.explain(Program(build).main)
    assert not report.native, str(report)
    assert len(report.intervals) == 1
    losses = []
    for engine in (False, True):
        program = Program(build)
        paddle.seed(11)
        paddle_ngraph.reset_stats()
        losses.append([program.run(engine, **feed(program, step))[0] for step in range(5)])
        assert paddle_ngraph.stats()["engine_runs"] == (5 if engine else 0)
    np.testing.assert_allclose(losses[1], losses[0], rtol=rtol)
    return losses[0]


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize("network", [multi_head, encoder, decoder, transformer, gpt])
def test_training_with_dropout(network: Callable[[], Any]):
    def build() -> Any:
        loss = paddle.mean(paddle.square(network()[:, :, :5] - 1.0))
        paddle.optimizer.Adam(1e-2).minimize(loss)
        return loss

    losses = assert_same_losses(build, feed, rtol=2e-4)
    assert np.abs(np.diff(losses)).max() > 1e-3


# -- patterns of Transformers ----------------------------------------------------------------------


def assert_all_converted(build, inputs, **options):
    """Checks values and gradients, and that no operator runs natively."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program), paddle.utils.unique_name.guard():
        feeds = {n: paddle.static.data(n, v.shape, str(v.dtype)) for n, v in inputs.items()}
        for name, value in feeds.items():
            value.stop_gradient = inputs[name].dtype.kind != "f"
        out = build(**feeds)
        if options.get("gradients", True):
            sources = [v for n, v in feeds.items() if inputs[n].dtype.kind == "f"]
            paddle.static.gradients([out], sources)
    report = paddle_ngraph.explain(program)
    assert not report.native, report
    check(build, inputs, **options)


def tables(length, width):
    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, width, 2) / width))
    return np.cos(angles).astype("float32"), np.sin(angles).astype("float32")


def test_rotary_embedding_of_halves():
    cos, sin = (np.concatenate([t, t], -1) for t in tables(6, 8))

    def build(x, cos, sin):
        first, second = paddle.split(x, 2, axis=-1)
        return x * cos + paddle.concat([-second, first], axis=-1) * sin

    assert_all_converted(build, {"x": floats(2, 3, 6, 8), "cos": cos, "sin": sin})


def test_rotary_embedding_of_neighbours():
    cos, sin = tables(6, 8)

    def build(x, cos, sin):
        even, odd = x[..., ::2], x[..., 1::2]
        pairs = [even * cos - odd * sin, odd * cos + even * sin]
        return paddle.flatten(paddle.stack(pairs, axis=-1), -2)

    assert_all_converted(build, {"x": floats(2, 3, 6, 8), "cos": cos, "sin": sin})


def test_rotary_tables_by_position():
    cos, sin = tables(16, 8)

    def build(x, ids, cos, sin):
        cos = paddle.unsqueeze(F.embedding(ids, cos), 1)
        sin = paddle.unsqueeze(F.embedding(ids, sin), 1)
        first, second = paddle.chunk(x, 2, axis=-1)
        return paddle.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)

    ids = np.array([[3, 4, 5, 6], [0, 1, 2, 3]])
    assert_all_converted(build, {"x": floats(2, 3, 4, 8), "ids": ids, "cos": cos, "sin": sin})


@pytest.mark.parametrize("way", ["powers", "multiply", "rsqrt"])
def test_root_mean_square_normalization(way):
    """As models write it: Paddle's own operator for it has no kernel on CPU."""

    def build(x, w):
        squares = {"powers": paddle.pow(x, 2), "multiply": x * x, "rsqrt": paddle.square(x)}[way]
        mean = paddle.mean(squares, -1, keepdim=True) + 1e-6
        scale = paddle.rsqrt(mean) if way == "rsqrt" else 1.0 / paddle.sqrt(mean)
        return x * scale * w

    assert_all_converted(build, {"x": floats(2, 5, 8), "w": floats(8, seed=1)})


@pytest.mark.slow("trains through many compiles")
def test_training_with_rotary_embedding_and_root_mean_squares():
    """A decoder layer of this kind, trained: one interval, the losses of native Paddle."""
    cos, sin = (np.concatenate([t, t], -1) for t in tables(6, 4))

    def turned(x):
        first, second = paddle.split(x, 2, axis=-1)
        return x * paddle.to_tensor(cos) + paddle.concat([-second, first], -1) * paddle.to_tensor(
            sin
        )

    def normalized(x, w):
        return x * paddle.rsqrt(paddle.mean(x * x, -1, keepdim=True) + 1e-6) * w

    def build():
        x = paddle.static.data("x", [2, 6, 8], "float32")
        w = [paddle.static.create_parameter([8], "float32") for _ in range(2)]
        heads = [
            paddle.transpose(paddle.reshape(paddle.nn.Linear(8, 8)(normalized(x, w[0])), s), p)
            for s, p in (((2, 6, 2, 4), (0, 2, 1, 3)),) * 3
        ]
        q, k, v = turned(heads[0]), turned(heads[1]), heads[2]
        scores = F.softmax(paddle.matmul(q, k, transpose_y=True) * 0.5)
        mixed = paddle.reshape(paddle.transpose(paddle.matmul(scores, v), [0, 2, 1, 3]), [2, 6, 8])
        out = paddle.nn.Linear(8, 8)(normalized(x + mixed, w[1]))
        loss = paddle.mean(paddle.square(out - 1.0))
        paddle.optimizer.AdamW(0.01, weight_decay=0.01).minimize(loss)
        return loss

    losses = assert_same_losses(build, lambda program, step: {"x": floats(2, 6, 8)}, rtol=1e-4)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("way", ["triu", "where", "masked_fill"])
def test_causal_attention(way):
    def build(q, k, v):
        scores = paddle.matmul(q, k, transpose_y=True) * 0.35
        if way == "triu":
            scores = scores + paddle.triu(paddle.full([5, 5], float("-inf")), 1)
        elif way == "where":
            allowed = paddle.tril(paddle.ones([5, 5])) > 0.5
            scores = paddle.where(allowed, scores, paddle.full([], -1e9))
        else:
            masked = paddle.cast(paddle.triu(paddle.ones([5, 5]), 1), "bool")
            scores = paddle.masked_fill(scores, masked, -1e9)
        return paddle.matmul(F.softmax(scores), v)

    feeds = {name: floats(2, 2, 5, 8) + i for i, name in enumerate("qkv")}
    assert_all_converted(build, feeds, rtol=1e-4, atol=1e-5)


def test_cache_of_keys_and_values():
    def build(q, k, v, past_k, past_v):
        k, v = paddle.concat([past_k, k], axis=2), paddle.concat([past_v, v], axis=2)
        weights = F.softmax(paddle.matmul(q, k, transpose_y=True))
        return paddle.matmul(weights, v) + k[:, :, -1:] * v[:, :, -1:]

    feeds = {name: floats(2, 2, 1, 4) for name in "qkv"}
    feeds |= {name: floats(2, 2, 6, 4) for name in ("past_k", "past_v")}
    assert_all_converted(build, feeds, rtol=1e-4)
