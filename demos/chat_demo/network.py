"""A decoder of Llama's kind: RMSNorm, rotary embedding, grouped-query attention, SwiGLU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

# The keys and values of all positions so far, float32 [batch, key_value_heads, length, head_size].
LayerCache = tuple[Tensor, Tensor]


class Shape(NamedTuple):
    """The sizes of a decoder.

    Attributes:
        layers: The number of layers.
        width: The size of a position's hidden state.
        heads: The number of heads of queries.
        key_value_heads: The number of heads of keys and values, of which each serves as many heads
            of queries.
        feed_forward: The width inside of a layer's feed-forward block.
        vocabulary: The number of tokens.
        longest: The largest number of positions.
        rotary_base: The base of the frequencies of the rotary embedding.
        epsilon: What RMSNorm adds to the mean of squares.
    """

    layers: int
    width: int
    heads: int
    key_value_heads: int
    feed_forward: int
    vocabulary: int
    longest: int
    rotary_base: float
    epsilon: float

    @property
    def head_size(self) -> int:
        """The size of a head."""
        return self.width // self.heads


class RMSNorm(nn.Layer):
    """``x / sqrt(mean(x^2) + epsilon) * weight`` (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = self.create_parameter([width])
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes the last axis, float32 [..., width]."""
        scale = paddle.rsqrt(paddle.mean(x * x, axis=-1, keepdim=True) + self._epsilon)
        return x * scale * self.weight


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding (Su et al., 2021) of float32 [batch, heads, length, head_size]."""
    first, second = paddle.chunk(x, 2, axis=-1)
    return x * cosine + paddle.concat([-second, first], axis=-1) * sine


class Attention(nn.Layer):
    """Causal grouped-query attention (Ainslie et al., 2023) with a cache."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._shape = shape
        width, keys = shape.width, shape.key_value_heads * shape.head_size
        self.query, self.output = (nn.Linear(width, width, bias_attr=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, keys, bias_attr=False) for _ in range(2))

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: LayerCache | None
    ) -> tuple[Tensor, LayerCache]:
        """Attends from new positions to all; returns the result and the cache with the new ones.

        Args:
            x: The hidden states of the new positions, float32 [batch, new, width].
            rotation: Cosines and sines of the new positions, float32 [new, head_size].
            mask: Added to scores, float32 [new, length].
            cache: The keys and values of the positions before, if there are some.
        """
        batch, new, width = x.shape
        size, groups = self._shape.head_size, self._shape.key_value_heads

        def heads(tensor: Tensor, count: int) -> Tensor:
            return tensor.reshape([batch, new, count, size]).transpose([0, 2, 1, 3])

        query = rotated(heads(self.query(x), self._shape.heads), *rotation)
        key, value = rotated(heads(self.key(x), groups), *rotation), heads(self.value(x), groups)
        if cache is not None:
            key, value = (paddle.concat(pair, axis=2) for pair in zip(cache, (key, value)))
        shared = self._shape.heads // groups
        # The queries that share a head of keys are one batch of rows.
        query = query.reshape([batch, groups, shared, new, size])
        scores = paddle.matmul(query, key.unsqueeze(2), transpose_y=True) * size**-0.5
        mixed = paddle.matmul(F.softmax(scores + mask, axis=-1), value.unsqueeze(2))
        mixed = mixed.reshape([batch, self._shape.heads, new, size]).transpose([0, 2, 1, 3])
        return self.output(mixed.reshape([batch, new, width])), (key, value)


class FeedForward(nn.Layer):
    """SwiGLU (Shazeer, 2020)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        inner = shape.feed_forward
        self.gate, self.up = (nn.Linear(shape.width, inner, bias_attr=False) for _ in range(2))
        self.down = nn.Linear(inner, shape.width, bias_attr=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transforms hidden states, float32 [batch, length, width]."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nn.Layer):
    """Attention and a feed-forward block, each after a norm and with a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(shape), FeedForward(shape)
        self.attention_norm = RMSNorm(shape.width, shape.epsilon)
        self.feed_forward_norm = RMSNorm(shape.width, shape.epsilon)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: LayerCache | None
    ) -> tuple[Tensor, LayerCache]:
        """As :meth:`Attention.forward`."""
        mixed, cache = self.attention(self.attention_norm(x), rotation, mask, cache)
        x = x + mixed
        return x + self.feed_forward(self.feed_forward_norm(x)), cache


class Decoder(nn.Layer):
    """Predicts the next token; the embedding's table is the output layer's weight, too."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.LayerList([DecoderLayer(shape) for _ in range(shape.layers)])
        self.norm = RMSNorm(shape.width, shape.epsilon)
        exponents = np.arange(0, shape.head_size, 2) / shape.head_size
        angles = np.outer(np.arange(shape.longest), shape.rotary_base**-exponents)
        angles = np.concatenate([angles, angles], axis=-1)
        for name, values in (("cosine", np.cos(angles)), ("sine", np.sin(angles))):
            self.register_buffer(
                name, paddle.to_tensor(values.astype("float32")), persistable=False
            )

    def forward(
        self, tokens: Tensor, caches: list[LayerCache] | None = None
    ) -> tuple[Tensor, list[LayerCache]]:
        """Scores the token after the last one.

        Args:
            tokens: New tokens, int64 [batch, new].
            caches: The caches of the layers after earlier tokens; none at the start.

        Returns:
            Logits, float32 [batch, vocabulary], and the caches with the new tokens.

        Raises:
            ValueError: There are more tokens than the model has positions.
        """
        new = tokens.shape[1]
        before = caches[0][0].shape[2] if caches else 0
        length = before + new
        if length > self.shape.longest:
            raise ValueError(f"{length} tokens are more than the model's {self.shape.longest}")
        rotation = self.cosine[before:length], self.sine[before:length]
        is_later = paddle.arange(length) > paddle.arange(before, length).unsqueeze(1)
        mask = is_later.astype("float32") * -1e9
        x, found = self.embedding(tokens), []
        for number, layer in enumerate(self.layers):
            x, cache = layer(x, rotation, mask, caches[number] if caches else None)
            found.append(cache)
        last = self.norm(x[:, -1])
        return paddle.matmul(last, self.embedding.weight, transpose_y=True), found
