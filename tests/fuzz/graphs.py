"""Damaged graph strings: each is rejected in a sentence, or is a graph.

A saved program contains graph strings, and whoever changes one can recompute its digest. So the
strings of real programs are changed in bytes, numbers, fields and whole components, mostly with a
matching digest, and parsed.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import resource
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import paddle

import paddle_ngraph
from paddle_ngraph import NgraphError
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import program_pass

SECONDS = 2.0  # of processor time: no string takes as long to parse
MEGABYTES = 512  # limit of memory growth over many strings

_ODD_NUMBERS = (
    "-1", "0", "1", "2", "7", "-2", "255", "2147483647", "2147483648", "4294967296",
    "9223372036854775807", "9223372036854775808", "18446744073709551615", "1" + "0" * 40,
    "1e308", "1e999", "-0.0", "0.5", "NaN", "-Infinity", "true", "null", '"3"', "[]", "{}",
    "1" * 5000,
)  # fmt: skip
_ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 10**12, 2**63, 0.5, float("nan"), "", "float32", "x" * 300, "\ud800", [],
    [0], [[]], {}, {"a": 0}, [-1] * 10, [2**40, 2**40],
)  # fmt: skip
_NUMBER = re.compile(r"-?\d+")


@cache
def strings() -> tuple[str, ...]:
    """The graph strings of a few programs: inference, training, shapes read by value."""
    return tuple(text for build in (network, _training, _shapes) for text in strings_of(build))


def strings_of(build: Callable[[], None], **options: Any) -> Iterator[str]:
    """The graph strings of a program; ``options`` are those of the program pass."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        build()
    program = main.clone()
    program_pass.apply(program, **options)
    for op in program.global_block().ops:
        if "ngraph_engine" in op.name():
            yield op.attrs()["graph"]


def network() -> None:
    x = paddle.static.data("x", [-1, 3, 8, 8], "float32")
    hidden = paddle.nn.functional.relu(paddle.nn.Conv2D(3, 4, 3)(x))
    paddle.nn.functional.softmax(paddle.nn.Linear(6, 5)(hidden))


def _training() -> None:
    x = paddle.static.data("x", [-1, 4], "float32")
    loss = paddle.mean(paddle.square(paddle.nn.Linear(4, 2)(x)))
    paddle.optimizer.Adam(0.01).minimize(loss)


def _shapes() -> None:
    x = paddle.static.data("x", [-1, 4], "float32")
    size = paddle.shape(x)
    paddle.reshape(paddle.concat([x, x]), [size[0], 8]) + paddle.full([], float("inf"))


# --- changes -----------------------------------------------------------------------------------

Change = Callable[[random.Random, str], str]


def _flip(rng: random.Random, text: str) -> str:
    data = bytearray(text.encode(errors="surrogatepass"))
    for _ in range(rng.choice((1, 1, 2, 8))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data.decode(errors=rng.choice(("replace", "surrogateescape")))


def _number(rng: random.Random, text: str) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    return text[: match.start()] + rng.choice(_ODD_NUMBERS) + text[match.end() :]


def _cut(rng: random.Random, text: str) -> str:
    first, last = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return text[:first] if rng.random() < 0.5 else text[:first] + text[last:]


def _repeat(rng: random.Random, text: str) -> str:
    first, last = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return text[:last] + text[first:last] * rng.choice((1, 2, 5)) + text[last:]


def _nest(rng: random.Random, text: str) -> str:
    place, deep = rng.randrange(len(text) + 1), rng.choice((1, 10, 2000, 100_000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    return text[:place] + opening * deep + closing * rng.choice((0, deep)) + text[place:]


def _structure(rng: random.Random, text: str) -> str:
    """Removes, doubles, swaps or replaces a field by one of another type."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return _flip(rng, text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(data))
        if not places:
            break
        container, key = rng.choice(places)
        kind = rng.choice(("remove", "odd", "exchange", "double", "rename", "tensor"))
        if kind == "remove":
            del container[key]
        elif kind == "odd":
            container[key] = rng.choice(_ODD_VALUES)
        elif kind == "exchange":
            other, place = rng.choice(places)
            container[key], other[place] = other[place], container[key]
        elif kind == "double" and isinstance(container, list):
            container.insert(key, container[key])
        elif kind == "rename" and isinstance(container, dict):
            container[rng.choice(("inputs", "x", "", "é", "tensors"))] = container.pop(key)
        elif type(container[key]) is int:
            container[key] = rng.randrange(40)
    try:
        return json.dumps(data, separators=(",", ":"))
    except (ValueError, RecursionError):  # a component swapped with its container
        return _flip(rng, text)


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Yields every item of the data, with its container and key."""
    found: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting and len(found) < 5000:
        item = waiting.pop()
        keys = item.keys() if isinstance(item, dict) else range(len(item))
        for key in keys:
            found.append((item, key))
            if isinstance(item[key], (dict, list)):
                waiting.append(item[key])
    return found


_CHANGES: tuple[Change, ...] = (
    _flip, _number, _number, _cut, _repeat, _nest, _structure, _structure, _structure, _structure,
)  # fmt: skip


def damaged(rng: random.Random) -> str:
    """Returns a string that the pass did not write."""
    header, _, body = rng.choice(strings()).partition("\n")
    if rng.random() < 0.8:
        body = rng.choice(_CHANGES)(rng, body)
    if rng.random() < 0.95:
        header = re.sub(r"[0-9a-f]{64}", _digest_of(body), header)
    if rng.random() < 0.25:
        words = header.split(" ")
        place = rng.randrange(3, len(words)) if rng.random() < 0.8 else rng.randrange(len(words))
        words[place] = rng.choice((_number, _number, _flip, _cut))(rng, words[place])
        header = " ".join(words)
    elif rng.random() < 0.5:
        header = _refitted(header, body)
    return f"{header}\n{body}"


def _digest_of(body: str) -> str:
    return hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()


def _refitted(header: str, body: str) -> str:
    """The header with counts that agree with the body, as far as that has the fields."""
    try:
        data = json.loads(body)
        counts = [len(data["inputs"]) + len(data["states"]), len(data["states"])]
        counts.append(len(data["outputs"]))
        dtypes = {row[0]: row[1] for row in data["tensors"]}
        read = [dtypes[number] for number in (*data["inputs"], *data["states"])]
        lists = [
            ",".join(map(str, each)) or "-"
            for each in (data["value_inputs"], data["weights"], read)
        ]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return header
    words = header.split(" ")
    return " ".join([*words[:3], *map(str, counts), *lists, *words[9:]])


# --- check -------------------------------------------------------------------------------------


class Accepted(AssertionError):
    """A string that is neither rejected nor a graph, or takes too much time or memory."""


def check(text: str, with_core: bool = True) -> bool:
    """Asserts that the string is rejected in a sentence, or is a graph; returns whether it is one.

    Args:
        text: The string.
        with_core: Whether the core reads it too, which caches accepted strings.
    """
    start = time.thread_time()
    try:
        graph: Graph | None = Graph.from_string(text)
    except NgraphError as error:
        graph = None
        if "graph" not in str(error) or len(str(error)) > 1000:
            raise Accepted(f"not a sentence about the graph: {error}") from error
    if time.thread_time() - start > SECONDS:
        raise Accepted(f"took {time.thread_time() - start:.1f} s")
    if graph is not None:
        again = graph.to_string()
        if Graph.from_string(again).to_string() != again:
            raise Accepted("does not survive its own string")
    if with_core:
        _check_core(text, graph)
    return graph is not None


def _check_core(text: str, graph: Graph | None) -> None:
    try:
        engine = paddle_ngraph.NgraphEngine(text.encode(errors="surrogatepass"))
    except RuntimeError as error:
        if graph is not None:
            raise Accepted(f"the core refuses a graph: {error}") from error
        return
    if graph is None:
        if _digest_of(text.partition("\n")[2]) in text:
            raise Accepted("the core accepts what is no graph")
        return  # the core has accepted and cached the string of this digest
    counts = (engine.num_inputs, engine.num_states, engine.num_outputs)
    if counts != (
        len(graph.inputs) + len(graph.states),
        len(graph.states),
        len(graph.outputs),
    ):
        raise Accepted(f"the core counts {counts}")


def check_many(count: int, seed: int, report: Callable[[int], None] = lambda done: None) -> int:
    """Checks ``count`` damaged strings; returns the number of graphs among them."""
    rng = random.Random(seed)
    graphs = 0
    strings()
    before = _megabytes()
    for number in range(count):
        text = damaged(rng)
        try:
            graphs += check(text, with_core=number % 50 == 0)
        except Exception as error:
            raise Accepted(f"string {number} of seed {seed}: {error!r}\n{text[:3000]!r}") from error
        if number % 1000 == 999:
            report(1000)
    grown = _megabytes() - before
    if grown > MEGABYTES:
        raise Accepted(f"{count} strings took {grown} MB")
    return graphs


def _megabytes() -> int:
    return int(np.ceil(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
