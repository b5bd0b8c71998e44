"""Decoders whose loop-carried tensors grow: by Paddle, through the engine, and as OpenVINO's loop.

One layer of a Transformer generates tokens after a prompt. With a cache, keys and values of all
tokens are loop-carried; without one they are computed again in each iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import paddle
import paddle.nn.functional as F
from openvino import opset15

from benchmarks.works import Array

STEPS, PROMPT = 100, 8
WIDTH, HEADS, WORDS = 128, 4, 500
CACHE, AGAIN = "a cache that grows", "words that are added"
_SHAPES = {
    "word": (WORDS, WIDTH),
    "place": (PROMPT + STEPS, WIDTH),
    **{name: (WIDTH, WIDTH) for name in ("query", "key", "value", "out")},
    "wide": (WIDTH, 4 * WIDTH),
    "narrow": (4 * WIDTH, WIDTH),
    "head": (WIDTH, WORDS),
}


class _Ops(NamedTuple):
    """The operators of an iteration: Paddle's operators or OpenVINO's nodes."""

    weights: Mapping[str, Any]
    matmul: Callable[[Any, Any], Any]
    scores: Callable[[Any, Any], Any]  # x times y, transposed
    softmax: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    heads: Callable[[Any], Any]  # [rows, words, width] as [rows, heads, words, part of the width]
    merged: Callable[[Any], Any]  # and back
    joined: Callable[[Any, Any], Any]  # along the words
    looked_up: Callable[[str, Any], Any]
    last: Callable[[Any], Any]  # the last word: [rows, 1, width]
    likeliest: Callable[[Any], Any]  # [rows, 1, words] as [rows, 1]


def numbers() -> dict[str, Array]:
    """Returns the weights, small enough that rounding errors do not grow over iterations."""
    generator = np.random.default_rng(0)
    return {
        name: (0.5 / shape[0] ** 0.5) * generator.standard_normal(shape, "float32")
        for name, shape in _SHAPES.items()
    }


def _next_word(ops: _Ops, x: Any, keys: Any, values: Any) -> Any:
    """Builds the token after the last one of ``x``, with attention over ``keys`` and ``values``."""
    w = ops.weights
    query, key, value = map(ops.heads, (ops.matmul(x, w["query"]), keys, values))
    seen = ops.matmul(ops.softmax(ops.scores(query, key)), value)
    x = x + ops.matmul(ops.merged(seen), w["out"])
    x = x + ops.matmul(ops.relu(ops.matmul(x, w["wide"])), w["narrow"])
    return ops.likeliest(ops.matmul(x, w["head"]))


def _with_cache(ops: _Ops, i: Any, word: Any, words: Any, keys: Any, values: Any) -> list[Any]:
    x = ops.looked_up("word", word) + ops.looked_up("place", i)
    keys = ops.joined(keys, ops.matmul(x, ops.weights["key"]))
    values = ops.joined(values, ops.matmul(x, ops.weights["value"]))
    word = _next_word(ops, x, keys, values)
    return [word, ops.joined(words, word), keys, values]


def _again(ops: _Ops, i: Any, words: Any) -> list[Any]:
    x = ops.looked_up("word", words)
    keys, values = (ops.matmul(x, ops.weights[name]) for name in ("key", "value"))
    return [ops.joined(words, _next_word(ops, ops.last(x), keys, values))]


def _starts(ops: _Ops, prompt: Any, with_cache: bool) -> list[Any]:
    """Returns the initial values of the loop."""
    if not with_cache:
        return [prompt]
    x = ops.looked_up("word", prompt)
    keys, values = (ops.matmul(x, ops.weights[name]) for name in ("key", "value"))
    return [_next_word(ops, ops.last(x), keys, values), prompt, keys, values]


def parameters(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Creates parameters of the program that is being built, initialized from arrays."""
    return {
        name: paddle.static.create_parameter(
            list(array.shape),
            "float32",
            default_initializer=paddle.nn.initializer.Assign(array),
        )
        for name, array in arrays.items()
    }


def ints(*values: int) -> Any:
    """Returns integers as a constant of OpenVINO."""
    return opset15.constant(np.array(values, np.int64))


def program(with_cache: bool) -> Any:
    """Builds the decoder in Paddle; fetches the tokens."""
    weights = parameters(numbers())
    ops = _Ops(
        weights,
        paddle.matmul,
        lambda x, y: paddle.matmul(x, y, transpose_y=True),
        lambda x: F.softmax(x, axis=-1),
        F.relu,
        lambda x: paddle.transpose(paddle.reshape(x, [0, 0, HEADS, WIDTH // HEADS]), [0, 2, 1, 3]),
        lambda x: paddle.reshape(paddle.transpose(x, [0, 2, 1, 3]), [0, 0, WIDTH]),
        lambda x, y: paddle.concat([x, y], axis=1),
        lambda name, ids: F.embedding(ids, weights[name]),
        lambda x: x[:, -1:],
        lambda x: paddle.argmax(x, axis=-1),
    )
    prompt = paddle.static.data("prompt", [-1, PROMPT], "int64")
    step = _with_cache if with_cache else _again
    start = [paddle.full([1], PROMPT, "int64"), *_starts(ops, prompt, with_cache)]
    end = paddle.full([1], PROMPT + STEPS, "int64")
    body = lambda i, *kept: [i + 1, *step(ops, i, *kept)]  # noqa: E731
    found = paddle.static.nn.while_loop(lambda i, *_: i < end, body, start)
    return found[2 if with_cache else 1]


def model(with_cache: bool) -> ov.Model:
    """Builds the decoder as OpenVINO's own ``Loop``."""

    def likeliest(x: Any) -> Any:
        best = opset15.topk(x, opset15.constant(np.int64(1)), 2, "max", "value")
        return opset15.squeeze(opset15.convert(best.output(1), np.int64), ints(2))

    constants = {name: opset15.constant(array) for name, array in numbers().items()}
    order, axis = ints(0, 2, 1, 3), opset15.constant(np.int64(0))
    ops = _Ops(
        constants,
        lambda x, y: opset15.matmul(x, y, False, False),
        lambda x, y: opset15.matmul(x, y, False, True),
        lambda x: opset15.softmax(x, -1),
        opset15.relu,
        lambda x: opset15.transpose(
            opset15.reshape(x, ints(0, 0, HEADS, WIDTH // HEADS), True), order
        ),
        lambda x: opset15.reshape(opset15.transpose(x, order), ints(0, 0, WIDTH), True),
        lambda x, y: opset15.concat([x, y], 1),
        lambda name, ids: opset15.gather(constants[name], ids, axis),
        lambda x: opset15.slice(x, ints(-1), ints(np.iinfo(np.int64).max), ints(1), ints(1)),
        likeliest,
    )
    prompt = opset15.parameter([-1, PROMPT], np.int64)
    starts = _starts(ops, prompt, with_cache)
    ids, row = ([-1, -1], np.int64), ([-1, -1, WIDTH], np.float32)
    inner = [opset15.parameter(*kind) for kind in ([ids, ids, row, row] if with_cache else [ids])]
    counter = opset15.parameter([], np.int64)
    place = opset15.unsqueeze(opset15.add(counter, opset15.constant(np.int64(PROMPT))), ints(0))
    ends = (_with_cache if with_cache else _again)(ops, place, *inner)
    goes_on = opset15.constant(np.array(True))
    loop = opset15.loop(opset15.constant(np.int64(STEPS)), goes_on)
    results = [opset15.result(end) for end in (goes_on, *ends)]
    loop.set_function(ov.Model(results, [*inner, counter]))
    loop.set_special_body_ports([len(inner), 0])
    for parameter, start, end in zip(inner, starts, ends):
        loop.set_merged_input(parameter, start.output(0), end.output(0))
    found = [loop.get_iter_value(end.output(0), -1) for end in ends]
    words = found.pop(1 if with_cache else 0)
    # If the last value of a loop-carried tensor has no reader, the plugin assumes the sizes of the
    # first iteration for all.
    return ov.Model([opset15.result(each) for each in (words, *found)], [prompt])
