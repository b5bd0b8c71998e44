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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_scaled_dot_product_attention(dropout, causal):
    def build(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, None, dropout, causal)

    inputs = {"q": heads(), "k": heads(seed=1), "v": heads(seed=2)}
    converted = ["matmul", "softmax", *(["dropout", "dropout_grad"] if dropout else [])]
    dynamic = {name: [-1, *value.shape[1:]] for name, value in inputs.items()}
    check(build, inputs, converted, dynamic=dynamic, runs=2, atol=1e-5)


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


@pytest.mark.parametrize("network", [multi_head, encoder, decoder, transformer, gpt])
def test_training_with_dropout(network: Callable[[], Any]):
    def build() -> Any:
        loss = paddle.mean(paddle.square(network()[:, :, :5] - 1.0))
        paddle.optimizer.Adam(1e-2).minimize(loss)
        return loss

    report = paddle_ngraph.explain(Program(build).main)
    assert not report.native, str(report)
    assert len(report.intervals) == 1
    losses = []
    for engine in (False, True):
        program = Program(build)
        paddle.seed(11)
        losses.append([program.run(engine, **feed(program, step))[0] for step in range(5)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-4)
    assert np.abs(np.diff(losses[0])).max() > 1e-3
