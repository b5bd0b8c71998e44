"""Decoders in the forms in which PaddleOCR exports those of text and formulas.

Each appends to its words in a ``while`` until all rows have ended: with a ``break`` in front of the
concatenation, with samples, with masks of float64, with a cache that starts without a row. These
forms are PaddleOCR's; sizes are arguments, and weights are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.jit.api import set_dynamic_shape

BEGIN, END = 1, 2
_LOWEST = float(np.finfo("float32").min)


class Heads(nn.Layer):
    """Attention of several heads, from ``x`` to itself or to a context.

    Args:
        width: The width.
        heads: The number of heads.
        context: The width of the context; 0: that of ``x``.
    """

    def __init__(self, width: int, heads: int, context: int = 0) -> None:
        super().__init__()
        self._heads = heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key = nn.Linear(context or width, width)
        self.value = nn.Linear(context or width, width)

    def split(self, x: Any) -> Any:
        rows, length, width = paddle.shape(x)
        return x.reshape([rows, length, self._heads, width // self._heads]).transpose([0, 2, 1, 3])

    def forward(self, x: Any, context: Any = None, mask: Any = None, cache: Any = None) -> Any:
        source = x if context is None else context
        query = self.split(self.query(x))
        key, value = self.split(self.key(source)), self.split(self.value(source))
        if cache is not None:
            key = paddle.concat([cache[0], key], axis=2)
            value = paddle.concat([cache[1], value], axis=2)
        scores = paddle.matmul(query * query.shape[-1] ** -0.5, key, transpose_y=True)
        scores = scores if mask is None else scores + mask
        found = paddle.matmul(F.softmax(scores), value).transpose([0, 2, 1, 3])
        rows, length, _, _ = paddle.shape(found)
        return self.out(found.reshape([rows, length, x.shape[-1]])), (key, value)


class DecoderLayer(nn.Layer):
    """Attention to the words, attention to the context, and a feed-forward part."""

    def __init__(self, width: int, heads: int, wide: int, by_convolutions: bool = False) -> None:
        super().__init__()
        self.words, self.context = Heads(width, heads), Heads(width, heads)
        make = (lambda n, m: nn.Conv2D(n, m, 1)) if by_convolutions else nn.Linear
        self.wide, self.narrow = make(width, wide), make(wide, width)
        self.norms = nn.LayerList([nn.LayerNorm(width) for _ in range(3)])
        self._by_convolutions = by_convolutions

    def forward(self, x: Any, context: Any, mask: Any = None, cache: Any = None) -> Any:
        found, cache = self.words(x, mask=mask, cache=cache)
        x = self.norms[0](x + found)
        x = self.norms[1](x + self.context(x, context)[0])
        if self._by_convolutions:
            columns = paddle.unsqueeze(paddle.transpose(x, [0, 2, 1]), 2)
            columns = paddle.squeeze(self.narrow(F.relu(self.wide(columns))), 2)
            found = paddle.transpose(columns, [0, 2, 1])
        else:
            found = self.narrow(F.gelu(self.wide(x)))
        return self.norms[2](x + found), cache


class Decoder(nn.Layer):
    """The network of a step; subclasses have the loop.

    Args:
        width, heads, wide, depth, words: The sizes of the network.
        steps: The largest number of steps.
        end: The word that ends a row.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        wide: int,
        depth: int,
        words: int,
        steps: int,
        end: int = END,
    ) -> None:
        super().__init__()
        self._width, self._steps, self._end = width, steps, end
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(steps + 2, width)
        convolves = isinstance(self, TextDecoder)
        self.layers = nn.LayerList(
            [DecoderLayer(width, heads, wide, convolves) for _ in range(depth)]
        )
        self.logits = nn.Linear(width, words)
        self.spec = [None, None, width]

    def has_ended(self, ids: Any) -> Any:
        """Whether each row has its end, as formula decoders ask."""
        ends = paddle.cumsum((ids == self._end).cast("int64"), 1)
        return (ends[:, -1] >= 1).all()


class TextDecoder(Decoder):
    """NRTR: the most likely words; a ``break`` in front of the concatenation."""

    def forward(self, context: Any) -> Any:
        rows = paddle.shape(context)[0]
        ids = paddle.full((rows, 1), BEGIN, dtype="int64")
        scores = paddle.full((rows, 1), 1.0)
        for step in range(1, paddle.to_tensor(self._steps)):  # noqa: B007 - converted by name
            length = paddle.shape(ids)[1]
            mask = paddle.zeros([length, length]) + paddle.triu(
                paddle.full([length, length], float("-inf")), diagonal=1
            )
            x = self.words(ids) * math.sqrt(self._width) + self.places.weight[:length]
            for layer in self.layers:
                x, _ = layer(x, context, mask)
            found = F.softmax(self.logits(x[:, -1, :]), axis=1)
            best = paddle.argmax(found, axis=1)
            if paddle.equal_all(best, paddle.full(paddle.shape(best), self._end, dtype="int64")):
                break
            ids = paddle.concat([ids, paddle.reshape(best, [-1, 1])], axis=1)
            score = paddle.max(found, axis=1)
            scores = paddle.concat([scores, paddle.reshape(score, [-1, 1])], axis=1)
        return ids, scores


class LatexDecoder(Decoder):
    """LaTeX-OCR: a word is sampled among the most likely ones in each step."""

    def forward(self, context: Any) -> Any:
        ids = paddle.full([context.shape[0], 1], BEGIN, dtype="int64")
        mask = paddle.full_like(ids, True, dtype="bool")
        step = paddle.full([], 0)
        while step < paddle.to_tensor(self._steps):
            x = ids[:, -self._steps :]
            set_dynamic_shape(x, [-1, -1])
            mask = mask[:, -self._steps :]
            set_dynamic_shape(mask, [-1, -1])
            length = paddle.shape(x)[1]
            place = paddle.arange(length)
            later = (place.unsqueeze(1) < place.unsqueeze(0)).cast("float32")
            x = self.words(x) + self.places(place)
            x = x * mask.cast("float32").unsqueeze(2)
            for layer in self.layers:
                x, _ = layer(x, context, later * _LOWEST)
            logits = self.logits(x)[:, -1, :]
            values, indices = paddle.topk(logits, max(1, logits.shape[-1] // 10))
            kept = paddle.full_like(logits, float("-inf"))
            kept = paddle.put_along_axis(kept, indices, values, 1)
            word = paddle.multinomial(F.softmax(kept / 0.333, axis=-1), 1)
            ids = paddle.concat((ids, word), axis=-1)
            more = paddle.full([mask.shape[0], 1], 1, dtype="bool")
            mask = paddle.concat((mask, more), axis=1)
            if self.has_ended(ids):
                break
            step += 1
        return ids[:, 1:]


class FormulaDecoder(Decoder):
    """UniMERNet: a mask of float64, and rows that have ended get padding."""

    def mask(self, length: Any, rows: Any) -> Any:
        mask = paddle.full((length, length), _LOWEST, dtype="float64")
        place = paddle.arange(mask.shape[-1])
        mask = mask.masked_fill(place.unsqueeze(0) <= place.unsqueeze(1), 0.0)
        return mask[None, None].expand([rows, 1, length, length]).cast("float32")

    def forward(self, context: Any) -> Any:
        rows = context.shape[0]
        ids = paddle.ones((rows, 1), dtype="int64") * 0
        alive = paddle.ones([rows], dtype="int64")
        step = paddle.full([], 0)
        last, cache = ids, self.no_cache(rows)
        while step < paddle.to_tensor(self._steps):
            x = self.read(ids, last)
            set_dynamic_shape(x, [-1, -1])
            length = paddle.shape(x)[1]
            first = 0 if cache is None else cache[0][0].shape[2]
            place = paddle.arange(first, first + length, dtype="int64")
            x = self.words(x) * math.sqrt(self._width) + self.places(place)
            mask = self.mask(length, paddle.shape(x)[0]) if cache is None else None
            kept = []
            for number, layer in enumerate(self.layers):
                x, pair = layer(x, context, mask, None if cache is None else cache[number])
                kept.append(pair)
            best = paddle.argmax(self.logits(x)[:, -1, :], axis=-1)
            best = best * alive + 1 * (1 - alive)
            last = best.unsqueeze(1)
            ids = paddle.concat([ids, last], axis=-1)
            if cache is not None:
                cache = kept
            alive = alive & ~(ids[:, -1] == paddle.to_tensor([self._end])).cast("int64")
            if self.has_ended(ids):
                break
            step += 1
        return ids

    def read(self, ids: Any, last: Any) -> Any:
        """The words that a step reads."""
        return ids

    def no_cache(self, rows: Any) -> Any:
        """The keys and values before the first step; ``None``: a step computes all of them."""
        return None


class CachedFormulaDecoder(FormulaDecoder):
    """PP-FormulaNet: keys and values are kept, which have no row before the first step."""

    def read(self, ids: Any, last: Any) -> Any:
        """The last word; see :meth:`FormulaDecoder.read`."""
        return last

    def no_cache(self, rows: Any) -> Any:
        """Keys and values without a row; see :meth:`FormulaDecoder.no_cache`."""
        heads = self.layers[0].words._heads
        pairs = []
        for _ in self.layers:
            none = paddle.zeros([rows, heads, 0, self._width // heads])
            set_dynamic_shape(none, [-1, -1, -1, -1])
            pairs.append((none, none))
        return pairs


class SarDecoder(nn.Layer):
    """SAR: each word computes attention of all words to the picture again, in a loop unrolled.

    Args:
        width: The width of the features and of the LSTMs.
        words, steps: The sizes of the network.
        end: Has no effect: all words are computed.
    """

    def __init__(self, width: int, words: int, steps: int, end: int = END) -> None:
        super().__init__()
        self._steps, self._begin = steps, words - 2
        self.columns = nn.LSTM(width, width, num_layers=2)
        self.whole = nn.Linear(width, width)
        self.recurrent = nn.LSTM(width, width, num_layers=2)
        self.query, self.score = nn.Linear(width, width), nn.Linear(width, 1)
        self.key = nn.Conv2D(width, width, 3, padding=1)
        self.words = nn.Embedding(words, width, padding_idx=words - 1)
        self.logits = nn.Linear(3 * width, words - 1)
        self.spec = [None, width, 6, 40]

    def attend(self, read: Any, picture: Any, whole: Any) -> Any:
        """The logits of all words, [N, steps + 1, words - 1]."""
        found = self.recurrent(read)[0]
        query = paddle.unsqueeze(self.query(found), [3, 4])
        sums = paddle.tanh(self.key(picture).unsqueeze(1) + query)
        scores = self.score(paddle.transpose(sums, [0, 1, 3, 4, 2]))
        rows, length, high, wide, one = paddle.shape(scores)
        weights = F.softmax(paddle.reshape(scores, [rows, length, -1]))
        weights = paddle.reshape(weights, [rows, length, high, wide, one])
        weights = paddle.transpose(weights, [0, 1, 4, 2, 3])
        seen = paddle.sum(picture.unsqueeze(1) * weights, (3, 4))
        whole = paddle.expand(whole, [rows, found.shape[1], whole.shape[-1]])
        return self.logits(paddle.concat([found, seen, whole], 2))

    def forward(self, picture: Any) -> Any:
        highest = F.max_pool2d(picture, (picture.shape[2], 1), 1).squeeze(2)
        columns = self.columns(paddle.transpose(highest, [0, 2, 1]))[0]
        whole = self.whole(columns[:, -1, :])
        rows = picture.shape[0]
        begin = self.words(paddle.full((rows,), self._begin, "int64")).unsqueeze(1)
        begin = paddle.expand(begin, [rows, self._steps, begin.shape[-1]])
        whole = whole.unsqueeze(1)
        read = paddle.concat([whole, begin], axis=1)
        found = []
        for step in range(1, self._steps + 1):
            found.append(F.softmax(self.attend(read, picture, whole)[:, step, :], -1))
            word = self.words(paddle.argmax(found[-1], axis=1))
            if step < self._steps:
                read[:, step + 1, :] = word
        return paddle.stack(found, 1)


class SrnDecoder(nn.Layer):
    """SRN: all words at once, corrected by layers that attend to earlier and to later words.

    Args:
        width, heads, depth, words, steps: The sizes of the network.
        end: Has no effect: all words are computed.
    """

    def __init__(
        self, width: int, heads: int, depth: int, words: int, steps: int, end: int = END
    ) -> None:
        super().__init__()
        self._width, self._steps, self._padding = width, steps, words
        self.spec = [None, width, 8, 32]
        make = nn.TransformerEncoderLayer
        parts = [(2, "features"), (depth, "forwards"), (depth, "backwards")]
        for count, name in parts:
            layers = [make(width, heads, width, 0.0, "relu") for _ in range(count)]
            setattr(self, name, nn.LayerList(layers))
        self.pixels, self.orders = nn.Embedding(256, width), nn.Embedding(steps, width)
        self.linear, self.score = nn.Linear(width, width), nn.Linear(width, 1, bias_attr=False)
        self.first, self.words = nn.Linear(width, words), nn.Embedding(words + 1, width)
        self.places = nn.LayerList([nn.Embedding(steps, width) for _ in range(2)])
        self.gate, self.logits = nn.Linear(2 * width, width), nn.Linear(width, words)
        earlier = np.triu(np.full((steps, steps), -1e9, "float32"), 1)
        self.register_buffer("earlier", paddle.to_tensor(earlier))
        self.register_buffer("later", paddle.to_tensor(earlier.T.copy()))

    def read_picture(self, picture: Any) -> Any:
        """The features of each word, [N, steps, width]."""
        x = paddle.transpose(paddle.reshape(picture, [-1, self._width, 256]), [0, 2, 1])
        x = x * self._width**0.5 + self.pixels(paddle.arange(256))
        for layer in self.features:
            x = layer(x)
        x = self.linear(x)
        pixels = paddle.tile(paddle.unsqueeze(x, 1), [1, self._steps, 1, 1])
        order = paddle.reshape(self.orders(paddle.arange(self._steps)), [1, self._steps, 1, -1])
        sums = F.tanh(paddle.tile(order, [1, 1, 256, 1]) + pixels)
        scores = paddle.reshape(self.score(sums), [-1, self._steps, 256])
        return paddle.matmul(F.softmax(scores), x)

    def correct(self, ids: Any, layers: Any, places: Any, mask: Any) -> Any:
        x = self.words(ids) * self._width**0.5 + places(paddle.arange(self._steps))
        for layer in layers:
            x = layer(x, mask)
        return x

    def forward(self, picture: Any) -> Any:
        seen = self.read_picture(picture)
        first = self.first(paddle.reshape(seen, [-1, self._width]))
        ids = paddle.reshape(paddle.argmax(F.softmax(first), axis=1), [-1, self._steps])
        before = (
            F.pad(
                ids.cast("float32").unsqueeze(2),
                [1, 0],
                value=float(self._padding),
                data_format="NLC",
            )
            .cast("int64")
            .squeeze(2)[:, :-1]
        )
        forwards = self.correct(before, self.forwards, self.places[0], self.earlier)
        backwards = self.correct(ids, self.backwards, self.places[1], self.later)
        backwards = F.pad(backwards, [0, 1], value=0.0, data_format="NLC")[:, 1:]
        meant = forwards + backwards
        other = paddle.matmul(meant, self.words.weight, transpose_y=True)
        gate = F.sigmoid(self.gate(paddle.concat([seen, meant], axis=2)))
        mixed = gate * seen + (1.0 - gate) * meant
        return (
            F.softmax(self.logits(paddle.reshape(mixed, [-1, self._width])), axis=1),
            first,
            other,
        )


# The published sizes, with fewer words where native runs would take seconds.
DECODERS: dict[str, tuple[Callable[..., Any], dict[str, int]]] = {
    "NRTR": (
        TextDecoder,
        {"width": 512, "heads": 8, "wide": 1024, "depth": 6, "words": 39, "steps": 25},
    ),
    "LaTeX-OCR": (
        LatexDecoder,
        {"width": 256, "heads": 8, "wide": 1024, "depth": 4, "words": 8000, "steps": 64},
    ),
    "UniMERNet": (
        FormulaDecoder,
        {"width": 384, "heads": 8, "wide": 1536, "depth": 2, "words": 5000, "steps": 64},
    ),
    "PP-FormulaNet": (
        CachedFormulaDecoder,
        {"width": 384, "heads": 8, "wide": 1536, "depth": 2, "words": 5000, "steps": 64},
    ),
    "SAR": (SarDecoder, {"width": 512, "words": 92, "steps": 30}),
    "SRN": (SrnDecoder, {"width": 512, "heads": 8, "depth": 4, "words": 38, "steps": 25}),
}


def export(name: str, folder: str, seed: int = 0, **sizes: int) -> str:
    """Exports a decoder with random weights, in eval mode; returns the path without its ending.

    Args:
        name: One of ``DECODERS``.
        folder: The folder of the files.
        seed: The seed of the weights.
        sizes: Other sizes than those of ``DECODERS``.
    """
    paddle.disable_static()
    paddle.seed(seed)
    kind, published = DECODERS[name]
    network = kind(**{**published, **sizes})
    network.eval()
    spec = [paddle.static.InputSpec(network.spec, "float32")]
    path = f"{folder}/{kind.__name__}"
    paddle.jit.save(paddle.jit.to_static(network, full_graph=True, input_spec=spec), path)
    return path
