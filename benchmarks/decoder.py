"""An autoregressive decoder: by Paddle, through the engine, and as OpenVINO's own loop.

The greedy decoder of a table's structure: in each iteration, additive attention over an encoder's
columns, a GRU cell that reads the attended column and the last token, and the most likely token as
the next one.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import paddle
import paddle.nn.functional as F
from openvino import opset15

import paddle_ngraph
from benchmarks import functions, growing_decoder, report
from benchmarks.growing_decoder import AGAIN, CACHE, ints, parameters
from benchmarks.options import Progress
from benchmarks.worker import Worker
from benchmarks.works import Array

STEPS = 150
COLUMNS, FEATURES, HIDDEN, WORDS = 64, 96, 96, 30
IN_PLACE = "ids[:, i] = word"
STOPS = "a break at the end"
END = WORDS  # a word that is never written, so that all variants have as many steps
ABOUT = f"""\
{STEPS} steps of a greedy decoder written as `while` (attention over {COLUMNS} columns of
{FEATURES} features, a GRU cell of {HIDDEN}, {WORDS} words), in milliseconds: the median of
runs in turns. Words are written by sums with masks, or in place by `{IN_PLACE}`; with
*{STOPS}*, the loop ends, too, once each row has its end, as those of table decoders do.
*By hand*: the same network as a `Loop`, written with OpenVINO's own nodes. The ratio is the
median of the turns' ratios to *by hand*.

Below are {growing_decoder.STEPS} steps of a decoder that keeps what it writes after a prompt of
{growing_decoder.PROMPT} words (one layer of a Transformer of {growing_decoder.WIDTH},
{growing_decoder.HEADS} heads, {growing_decoder.WORDS} words): with *{CACHE}*, the keys and values
of all words are handed on; with *{AGAIN}*, only these are, and the keys and values computed
again."""
_SHAPES = {
    "input": (HIDDEN + FEATURES, 3 * HIDDEN),
    "hidden": (HIDDEN, 3 * HIDDEN),
    "bias": (3 * HIDDEN,),
    "key": (FEATURES, HIDDEN),
    "query": (HIDDEN, HIDDEN),
    "score": (HIDDEN, 1),
    "word": (WORDS, HIDDEN),
    "out": (HIDDEN, WORDS),
}


def measure(options: Namespace) -> None:
    """Measures the decoders; writes ``decoder.md`` and ``.json``."""
    rows, found = [], {}
    count = 3 if options.quick else 15
    works = [(f"batch {batch}", str(batch), samples, batch) for batch in (1, 8)] + [
        (f"{kind}, batch {batch}", f"{kind}, {batch}", growing_samples, batch, kind == CACHE)
        for kind in (CACHE, AGAIN)
        for batch in ((1,) if options.quick else (1, 8))
    ]
    with Progress("decoder", len(works)) as progress:
        for label, key, work, *arguments in works:
            with Worker({}) as worker:
                times = worker.call(work, *arguments, count)
            found[key] = times
            ratios = {
                n: statistics.median(np.divide(t, times["by hand"])) for n, t in times.items()
            }
            rows += [
                [f"{label}, {name}", f"{statistics.median(each):.2f}", f"{ratios[name]:.2f}"]
                for name, each in times.items()
            ]
            progress.done(f"{label}: {ratios}")
    header = ["", "ms", "ratio"]
    sections = [ABOUT, report.table(header, rows)]
    beside = report.column(header, rows, "ms", "ratio")
    report.write(options.output, "decoder", "A decoder", sections, {"ms": found}, beside)


_Variant = Callable[[], list[Array]]


class _Ops(NamedTuple):
    """The operators of an iteration: Paddle's operators or OpenVINO's nodes."""

    weights: Mapping[str, Any]
    matmul: Callable[[Any, Any], Any]
    tanh: Callable[[Any], Any]
    sigmoid: Callable[[Any], Any]
    columns: Callable[[Any], Any]  # [rows, n] for each column: [rows, 1, n]
    attended: Callable[[Any, Any], Any]  # the mean of columns, weighted by scores
    thirds: Callable[[Any], tuple[Any, Any, Any]]
    joined: Callable[[Any, Any], Any]
    looked_up: Callable[[Any], Any]
    rest: Callable[[Any], Any]  # 1 - x


def _logits(ops: _Ops, features: Any, keys: Any, word: Any, h: Any) -> tuple[Any, Any]:
    """Builds an iteration: the next hidden state, and the logits of the tokens."""
    w = ops.weights
    query = ops.columns(ops.matmul(h, w["query"]))
    seen = ops.attended(ops.matmul(ops.tanh(keys + query), w["score"]), features)
    x = ops.joined(ops.looked_up(word), seen)
    update, reset, new = ops.thirds(ops.matmul(x, w["input"]) + w["bias"])
    update_h, reset_h, new_h = ops.thirds(ops.matmul(h, w["hidden"]))
    update, reset = ops.sigmoid(update + update_h), ops.sigmoid(reset + reset_h)
    h = update * h + ops.rest(update) * ops.tanh(new + reset * new_h)
    return h, ops.matmul(h, w["out"])


def _numbers() -> dict[str, Array]:
    """Returns the weights, small enough that rounding errors do not grow over iterations."""
    generator = np.random.default_rng(0)
    return {
        name: 0.1 * generator.standard_normal(shape, "float32") for name, shape in _SHAPES.items()
    }


def _program(in_place: bool, stops: bool = False) -> list[Any]:
    """Builds the decoder in Paddle; fetches the last hidden state and the tokens.

    Args:
        in_place: Whether a token is assigned to its column; otherwise, logits are added by a mask.
        stops: Whether the loop ends, too, once each row has an end token; only in place.
    """
    features = paddle.static.data("features", [-1, COLUMNS, FEATURES])
    weights = parameters(_numbers())
    ops = _Ops(
        weights,
        paddle.matmul,
        paddle.tanh,
        F.sigmoid,
        lambda x: paddle.unsqueeze(x, 1),
        lambda scores, x: paddle.sum(F.softmax(scores, axis=1) * x, axis=1),
        lambda x: (x[:, :HIDDEN], x[:, HIDDEN : 2 * HIDDEN], x[:, 2 * HIDDEN :]),
        lambda x, y: paddle.concat([x, y], axis=1),
        lambda word: F.embedding(word, weights["word"]),
        lambda x: 1.0 - x,
    )
    keys = paddle.matmul(features, weights["key"])
    h = paddle.mean(keys, axis=1)
    word = paddle.argmax(paddle.matmul(h, weights["out"]) * 0.0, axis=1)
    if in_place:
        return _words_in_place(ops, features, keys, word, h, stops)
    place = paddle.reshape(paddle.arange(STEPS, dtype="int64"), [1, STEPS, 1])
    written = paddle.unsqueeze(paddle.matmul(h, weights["out"]), 1) * paddle.zeros([1, STEPS, 1])

    def step(i: Any, word: Any, h: Any, written: Any) -> list[Any]:
        h, logits = _logits(ops, features, keys, word, h)
        here = paddle.cast(place == i, "float32")
        written = written + paddle.unsqueeze(logits, 1) * here
        return [i + 1, paddle.argmax(logits, axis=1), h, written]

    start = [paddle.full([], 0, "int64"), word, h, written]
    end = paddle.full([], STEPS, "int64")
    _, _, h, written = paddle.static.nn.while_loop(lambda i, *_: i < end, step, start)
    return [h, paddle.argmax(written, axis=2)]


def _words_in_place(
    ops: _Ops, features: Any, keys: Any, word: Any, h: Any, stops: bool
) -> list[Any]:
    ids = paddle.full([paddle.shape(features)[0], STEPS], 0, "int64")

    def step(i: Any, ended: Any, word: Any, h: Any) -> list[Any]:
        h, logits = _logits(ops, features, keys, word, h)
        word = paddle.argmax(logits, axis=1)
        ids[:, i] = word
        if stops:
            ended = paddle.static.nn.cond(
                paddle.all(paddle.any(ids == END, axis=-1)),
                lambda: paddle.full([], True, "bool"),
                lambda: paddle.assign(ended),
            )
        return [i + 1, ended, word, h]

    def goes_on(i: Any, ended: Any, *_: Any) -> Any:
        return paddle.logical_and(i < end, paddle.logical_not(ended)) if stops else i < end

    end = paddle.full([], STEPS, "int64")
    start = [paddle.full([], 0, "int64"), paddle.full([], False, "bool"), word, h]
    *_, h = paddle.static.nn.while_loop(goes_on, step, start)
    return [h, ids]


def _model() -> ov.Model:
    """Builds the decoder as OpenVINO's own ``Loop``."""

    def third(x: Any, number: int) -> Any:
        first = number * HIDDEN
        return opset15.slice(x, ints(first), ints(first + HIDDEN), ints(1), ints(1))

    def softmax_mean(scores: Any, x: Any) -> Any:
        weighted = opset15.multiply(opset15.softmax(scores, 1), x)
        return opset15.reduce_sum(weighted, ints(1))

    constants = {name: opset15.constant(array) for name, array in _numbers().items()}
    axis = opset15.constant(np.int64(0))
    ops = _Ops(
        constants,
        lambda x, y: opset15.matmul(x, y, False, False),
        opset15.tanh,
        opset15.sigmoid,
        lambda x: opset15.unsqueeze(x, ints(1)),
        softmax_mean,
        lambda x: (third(x, 0), third(x, 1), third(x, 2)),
        lambda x, y: opset15.concat([x, y], 1),
        lambda word: opset15.gather(constants["word"], word, axis),
        lambda x: opset15.subtract(opset15.constant(np.float32(1)), x),
    )
    features = opset15.parameter([-1, COLUMNS, FEATURES], np.float32)
    keys = ops.matmul(features, constants["key"])
    start = opset15.reduce_mean(keys, ints(1))
    rows = opset15.gather(opset15.shape_of(features), ints(0), axis)
    word = opset15.broadcast(opset15.constant(np.int64(0)), rows)

    inner = {
        "word": opset15.parameter([-1], np.int64),
        "h": opset15.parameter([-1, HIDDEN], np.float32),
        "features": opset15.parameter([-1, COLUMNS, FEATURES], np.float32),
        "keys": opset15.parameter([-1, COLUMNS, HIDDEN], np.float32),
    }
    h, logits = _logits(ops, inner["features"], inner["keys"], inner["word"], inner["h"])
    best = opset15.topk(logits, opset15.constant(np.int64(1)), 1, "max", "value")
    next_word = opset15.squeeze(opset15.convert(best.output(1), np.int64), ints(1))
    written = opset15.unsqueeze(next_word, ints(1))
    goes_on = opset15.constant(np.array(True))
    results = [opset15.result(v) for v in (goes_on, next_word, h, written)]
    loop = opset15.loop(opset15.constant(np.int64(STEPS)), opset15.constant(np.array(True)))
    loop.set_function(ov.Model(results, list(inner.values())))
    loop.set_special_body_ports([-1, 0])
    loop.set_merged_input(inner["word"], word.output(0), next_word.output(0))
    loop.set_merged_input(inner["h"], start.output(0), h.output(0))
    loop.set_invariant_input(inner["features"], features.output(0))
    loop.set_invariant_input(inner["keys"], keys.output(0))
    last = loop.get_iter_value(h.output(0), -1)
    words = loop.get_concatenated_slices(written.output(0), 0, 1, 1, -1, 1)
    return ov.Model([opset15.result(last), opset15.result(words)], [features])


def samples(batch: int, count: int) -> dict[str, list[float]]:
    """Returns milliseconds of alternating runs, by variant: see :func:`_timed`."""
    paddle.enable_static()
    features = np.random.default_rng(1).standard_normal((batch, COLUMNS, FEATURES), "float32")

    def of_paddle(engine: bool, in_place: bool, stops: bool = False) -> _Variant:
        return _of_paddle(lambda: _program(in_place, stops), {"features": features}, engine)

    variants = {
        "native": of_paddle(engine=False, in_place=False),
        "engine": of_paddle(engine=True, in_place=False),
        f"native, {IN_PLACE}": of_paddle(engine=False, in_place=True),
        f"engine, {IN_PLACE}": of_paddle(engine=True, in_place=True),
        f"native, {STOPS}": of_paddle(engine=False, in_place=True, stops=True),
        f"engine, {STOPS}": of_paddle(engine=True, in_place=True, stops=True),
        "by hand": _of_openvino(_model(), features, 2),
    }
    return _timed(variants, count)


def growing_samples(batch: int, with_cache: bool, count: int) -> dict[str, list[float]]:
    """Returns :func:`samples` of a decoder that concatenates its tokens (growing_decoder.py)."""
    paddle.enable_static()
    prompt = np.random.default_rng(1).integers(
        0, growing_decoder.WORDS, (batch, growing_decoder.PROMPT)
    )

    def of_paddle(engine: bool) -> _Variant:
        return _of_paddle(lambda: [growing_decoder.program(with_cache)], {"prompt": prompt}, engine)

    variants = {
        "native": of_paddle(engine=False),
        "engine": of_paddle(engine=True),
        "by hand": _of_openvino(growing_decoder.model(with_cache), prompt, 1),
    }
    return _timed(variants, count)


def _of_paddle(build: Callable[[], list[Any]], feed: dict[str, Array], engine: bool) -> _Variant:
    """Returns a function that runs the program of ``build``."""
    executor = paddle.static.Executor(paddle.CPUPlace())
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        fetches = build()
    scope = paddle.static.Scope()
    executor.run(startup, scope=scope)

    def run() -> list[Array]:
        with paddle_ngraph.use_ngraph(engine):
            return list(executor.run(main, feed=feed, fetch_list=fetches, scope=scope))

    return run


def _of_openvino(model: ov.Model, feed: Array, count: int) -> _Variant:
    """Returns a function that runs a model by OpenVINO, and returns its first results."""
    compiled = ov.Core().compile_model(model, "CPU", functions.CONFIGURATION)
    request = compiled.create_infer_request()

    def run() -> list[Array]:
        request.infer([feed])
        return [np.array(request.get_output_tensor(n).data) for n in range(count)]

    return run


def _timed(variants: Mapping[str, _Variant], count: int) -> dict[str, list[float]]:
    """Returns milliseconds of alternating runs of each variant.

    Raises:
        ValueError: Results of the variants differ, or the engine needs more than one operator.
    """
    expected = variants["native"]()
    for name, variant in variants.items():
        paddle_ngraph.reset_stats()
        *rest, words = variant()
        if not all(np.allclose(*pair, rtol=1e-3, atol=1e-4) for pair in zip(rest, expected)):
            raise ValueError(f"{name}: another result than native Paddle's")
        if not np.array_equal(words, expected[-1]):
            raise ValueError(f"{name}: other words than native Paddle's")
        if name.startswith("engine") and paddle_ngraph.stats()["engine_runs"] != 1:
            raise ValueError("the engine runs the decoder by more than one operator")
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(count):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times
