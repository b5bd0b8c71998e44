"""Text generated token by token in a Python loop of dynamic mode: natively and through the engine.

A decoder of Llama's kind with a cache that grows by ``concat``, greedy, on one thread.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

import paddle_ngraph
from benchmarks import report
from benchmarks.options import Progress
from benchmarks.worker import Worker

HEADS, WORDS, TOKENS = 8, 1000, 64
# Numbers of layers, and their widths.
SIZES = ((4, 256), (8, 512))
PROMPTS = (16, 23, 9, 40)
_ROUNDS_BEFORE = 2  # in which the engine compiles
ABOUT = f"""\
{TOKENS} tokens after prompts of {min(PROMPTS)} to {max(PROMPTS)} words by a decoder written by hand
(rotary embedding, RMSNorm, gated feed-forward part, {HEADS} heads, a vocabulary of {WORDS} words,
random weights), in a Python loop of dynamic mode: milliseconds of the processor a token, on one
thread, the median of rounds in turns. *Engine*: `paddle_ngraph.compile(model)`, without a choice by
the tuner. Both generate the same words. The ratio is the median of the rounds' ratios."""

_Cache = tuple[Any, Any]


class _Norm(nn.Layer):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = self.create_parameter([width], default_initializer=nn.initializer.Constant(1))

    def forward(self, x: Any) -> Any:
        return x * paddle.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.scale


class _Block(nn.Layer):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 4 * width) for _ in range(2))
        self.down = nn.Linear(4 * width, width)
        self.before, self.after = _Norm(width), _Norm(width)

    def forward(
        self, x: Any, rotation: tuple[Any, Any], mask: Any, cache: _Cache | None
    ) -> tuple[Any, _Cache]:
        h, cache = self._attended(self.before(x), rotation, mask, cache)
        x = x + h
        h = self.after(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), cache

    def _attended(
        self, x: Any, rotation: tuple[Any, Any], mask: Any, cache: _Cache | None
    ) -> tuple[Any, _Cache]:
        batch, length, width = x.shape
        q, k, v = (
            layer(x).reshape([batch, length, HEADS, width // HEADS]).transpose([0, 2, 1, 3])
            for layer in (self.q, self.k, self.v)
        )
        q, k = _rotated(q, rotation), _rotated(k, rotation)
        if cache is not None:
            k, v = paddle.concat([cache[0], k], 2), paddle.concat([cache[1], v], 2)
        scores = paddle.matmul(q, k, transpose_y=True) / (width // HEADS) ** 0.5
        weights = F.softmax(scores if mask is None else scores + mask, -1)
        mixed = paddle.matmul(weights, v).transpose([0, 2, 1, 3])
        return self.out(mixed.reshape([batch, length, width])), (k, v)


def _rotated(x: Any, rotation: tuple[Any, Any]) -> Any:
    """Rotates pairs of elements by the angles of their positions."""
    half = x.shape[-1] // 2
    return x * rotation[0] + paddle.concat([-x[..., half:], x[..., :half]], -1) * rotation[1]


class _Decoder(nn.Layer):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.LayerList([_Block(width) for _ in range(layers)])
        self.norm, self.logits = _Norm(width), nn.Linear(width, WORDS)
        self.width = width // HEADS

    def forward(self, ids: Any, caches: list[_Cache] | None) -> tuple[Any, list[_Cache]]:
        length = ids.shape[1]
        start = 0 if caches is None else caches[0][0].shape[2]
        places = paddle.arange(start, start + length, dtype="float32").unsqueeze(1)
        powers = paddle.arange(0, self.width, 2, dtype="float32") / self.width
        angles = paddle.concat([places / 10000**powers] * 2, -1)
        mask = paddle.triu(paddle.full([length, length], -1e9), 1) if length > 1 else None
        x, new = self.words(ids), []
        for number, block in enumerate(self.blocks):
            cache = None if caches is None else caches[number]
            x, cache = block(x, (angles.cos(), angles.sin()), mask, cache)
            new.append(cache)
        return self.logits(self.norm(x)), new


class Generation:
    """A decoder that generates text, in a process of its own.

    Args:
        layers, width: The size of the decoder.
        engine: Whether it runs through the engine.
    """

    def __init__(self, layers: int, width: int, engine: bool) -> None:
        paddle.seed(0)
        paddle.set_flags({"FLAGS_ngraph_tuning_ms": -1, "FLAGS_ngraph_num_threads": 1})
        model = _Decoder(layers, width)
        model.eval()
        self._model = paddle_ngraph.compile(model) if engine else model
        self._engine = engine

    def round(self) -> tuple[float, list[list[int]]]:
        """Generates a text for each prompt; returns milliseconds a token, and the texts.

        Raises:
            ValueError: The engine has run nothing.
        """
        random = np.random.default_rng(0)
        paddle_ngraph.reset_stats()
        start = time.process_time()
        texts = [self._text(random.integers(0, WORDS, (1, length))) for length in PROMPTS]
        seconds = time.process_time() - start
        if self._engine and not paddle_ngraph.stats()["engine_runs"]:
            raise ValueError("the engine has run nothing")
        return 1e3 * seconds / (TOKENS * len(PROMPTS)), texts

    @paddle.no_grad()
    def _text(self, prompt: np.ndarray) -> list[int]:
        ids, caches, found = paddle.to_tensor(prompt), None, []
        for _ in range(TOKENS):
            logits, caches = self._model(ids, caches)
            ids = logits[:, -1:].argmax(-1)
            found.append(int(ids.item()))
        return found


def _times(layers: int, width: int, rounds: int) -> dict[str, list[float]]:
    """Returns milliseconds a token of rounds in turns, natively and through the engine.

    Raises:
        ValueError: The engine generates other words.
    """
    times: dict[str, list[float]] = {"native": [], "engine": []}
    with Worker({}) as native, Worker({}) as engine:
        workers = {"native": native, "engine": engine}
        for name, worker in workers.items():
            worker.hold(Generation, layers, width, name == "engine")
            for _ in range(_ROUNDS_BEFORE):
                worker.ask("round")
        for _ in range(rounds):
            texts = []
            for name, worker in workers.items():
                milliseconds, text = worker.ask("round")
                times[name].append(milliseconds)
                texts.append(text)
            if texts[0] != texts[1]:
                raise ValueError("the engine generates other words")
    return times


def measure(options: Namespace) -> None:
    """Measures the decoders; writes ``generation.md`` and ``.json``.

    Raises:
        ValueError: The engine generates other words.
    """
    rows, found = [], {}
    rounds = 3 if options.quick else 9
    with Progress("generation", len(SIZES)) as progress:
        for layers, width in SIZES:
            label = f"{layers} layers of {width}"
            times = _times(layers, width, rounds)
            found[label] = times
            ratio = statistics.median(np.divide(times["native"], times["engine"]))
            for name, text in (("native", "1.00"), ("engine", f"{ratio:.2f}")):
                rows.append([f"{label}, {name}", f"{statistics.median(times[name]):.2f}", text])
            progress.done(f"{label}: {ratio:.2f}")
    header = ["", "ms", "ratio"]
    sections = [ABOUT, report.table(header, rows)]
    beside = report.column(header, rows, "ms", "ratio")
    report.write(options.output, "generation", "Text", sections, {"ms": found}, beside)
