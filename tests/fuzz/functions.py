"""Damaged files of stored functions: each counts as missing, or is a function that can run.

Bytes of a file change without its authentication code, and then it has to be missing. Numbers,
lists and sections change with the right code, as an owner of a model could write them: whatever
they say, nothing may crash. OpenVINO's part of a file changes as a whole only, since OpenVINO's
import is given trusted files alone.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import paddle

import paddle_ngraph
from paddle_ngraph import _core, flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.settings import SETTINGS
from tests.fuzz.graphs import network, strings_of
from tests.stored_functions import StoredFile, secret_path

# The words of a file, as core/engine/stored_function.cc writes them: numbers, lists (with their
# lengths in front), and lists of records. A record is a tuple of these.
NUMBER, LIST = "number", "list"
SAMPLE = (NUMBER, NUMBER, NUMBER, NUMBER, LIST)
CHECK = (NUMBER, LIST, LIST, LIST, LIST, NUMBER, NUMBER)
UPDATE = (NUMBER, LIST, LIST, LIST, LIST, LIST)
SCHEMA: tuple[Any, ...] = (
    *[NUMBER] * 8, LIST, NUMBER, NUMBER,  # settings
    LIST, LIST, LIST,  # inputs of the parameters, symbolic dimensions, guards
    [SAMPLE], [CHECK],
    NUMBER, [UPDATE],
)  # fmt: skip
SYMBOLS = 12  # the index of symbolic dimensions
# Records to insert where a function has none.
_RECORDS: dict[tuple[str, ...], list[Any]] = {
    SAMPLE: [1, 0, 4607182418800017408, 7, [2, 3]],
    CHECK: [0, [0], [10], [], [104, 105], 0, -1],
    UPDATE: [0, [], [0], [-1], [], [0]],
}
_ODD = (
    *range(-3, 9), 64, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40,
    1 << 62, (1 << 63) - 1, -(1 << 31), -(1 << 31) - 1, -(1 << 62), -(1 << 63),
    4607182418800017408,  # 1.0
    9221120237041090560,  # NaN
    9218868437227405312,  # infinity
)  # fmt: skip


class Wrong(AssertionError):
    """A damaged file that was used, or raised something unexpected."""


# -- functions ------------------------------------------------------------------------------------


def _random() -> None:
    x = paddle.static.data("x", [-1, 6], "float32")
    paddle.nn.functional.dropout(paddle.exp(x), 0.5) + paddle.uniform([1, 6])


def _indices() -> None:
    ids = paddle.static.data("x", [-1, 3], "int64")
    paddle.nn.Embedding(10, 4)(ids) * 2.0


def _training() -> None:
    x = paddle.static.data("x", [-1, 192], "float32")
    loss = paddle.mean(paddle.square(paddle.nn.Linear(192, 192)(x)))
    paddle.optimizer.Adam(0.01).minimize(loss)


def _momentum() -> None:
    x = paddle.static.data("x", [-1, 4], "float32")
    loss = paddle.mean(paddle.square(paddle.nn.Linear(4, 2)(x)))
    paddle.optimizer.Momentum(0.01, use_nesterov=True).minimize(loss)


def _shapes() -> None:
    x = paddle.static.data("x", [-1, 4], "float32")
    shape = paddle.static.data("shape", [2], "int32")
    paddle.reshape(paddle.exp(x), shape)


@dataclass(frozen=True)
class Case:
    """An engine, the inputs of a call and of one with other shapes, and the file for the first."""

    engine: Any
    inputs: tuple[np.ndarray, ...]
    other_inputs: tuple[np.ndarray, ...]
    file: StoredFile

    def load(self) -> tuple[Any, Any]:
        """The function on disk, ``None`` if it is missing, and the tensors to run it on."""
        io = _tensors(self.engine, self.inputs)
        return self.engine.load_ng_function(io), io


_io: dict[int, Any] = {}


def _tensors(engine: Any, inputs: tuple[np.ndarray, ...]) -> Any:
    """The tensors of a call.

    They stay, unless a function may write states: weights in new tensors again and again would
    become inputs of functions.
    """
    if engine.num_states > 0:
        return engine.build_ng_io([array.copy() for array in inputs])
    if id(inputs) not in _io:
        _io[id(inputs)] = engine.build_ng_io(list(inputs))
    return _io[id(inputs)]


@cache
def _folder() -> Path:
    """A cache folder, which serves until the process ends."""
    return Path(tempfile.mkdtemp(prefix="paddle_ngraph_fuzz_"))


@contextmanager
def storing() -> Iterator[None]:
    """Stores every function in the folder, and nothing of the user's."""
    settings = {
        "ngraph_cache_dir": str(_folder() / "cache"),
        "ngraph_cache_min_ms": 0,
        "ngraph_num_threads": 2,  # with one, no batch is computed in chunks
    }
    before = {name: flags.get(name) for name in settings}
    chunk = SETTINGS.min_multiplications_per_chunk
    state = os.environ.get("XDG_STATE_HOME")
    for name, value in settings.items():
        flags.set(name, value)
    SETTINGS.min_multiplications_per_chunk = 1
    os.environ["XDG_STATE_HOME"] = str(_folder() / "state")
    try:
        yield
    finally:
        for name, value in before.items():
            flags.set(name, value)
        SETTINGS.min_multiplications_per_chunk = chunk
        if state is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = state


def _inputs(graph: Graph, batch: int) -> tuple[np.ndarray, ...]:
    """Arrays for a call; weights are equal in all calls."""
    specs = enumerate((*graph.inputs, *graph.states))
    return tuple(_array(spec, batch, np.random.default_rng(i)) for i, spec in specs)


def _array(spec: Any, batch: int, rng: np.random.Generator) -> np.ndarray:
    shape = [batch if size < 0 else size for size in spec.shape]
    if not spec.dtype.startswith("int"):
        return rng.random(shape).astype(spec.dtype)
    is_shape = shape == [2]
    return np.array([2, batch * 2] if is_shape else rng.integers(0, 9, shape), spec.dtype)


def _cases_of(build: Callable[[], None], batches: tuple[int, ...]) -> Iterator[Case]:
    for text in strings_of(build, keep_weights=build not in (_training, _momentum)):
        graph, engine = Graph.from_string(text), paddle_ngraph.NgraphEngine(text)
        other = _inputs(graph, 2)
        for batch in batches:
            before = set(_core.cache_files())
            inputs = _inputs(graph, batch)
            engine.get_ng_function(_tensors(engine, inputs))
            for path in set(_core.cache_files()) - before:
                yield Case(engine, inputs, other, StoredFile.of(Path(path).read_bytes()))


@cache
def cases() -> tuple[Case, ...]:
    """Functions with everything that a file may hold; the third of a row has dynamic shapes."""
    paddle_ngraph.clear_cache()
    with storing():
        found = [
            *_cases_of(network, (4, 3, 5)),
            *_cases_of(_random, (3, 4, 7)),
            *_cases_of(_indices, (2, 4, 6)),
            *_cases_of(_training, (3,)),
            *_cases_of(_momentum, (3,)),
            *_cases_of(_shapes, (3, 5, 6)),
        ]
    assert len(found) >= 10
    return tuple(found)


def is_symbolic(case: Case) -> bool:
    """Whether the function has symbolic sizes."""
    return parsed(case.file.words)[SYMBOLS] != []


# -- words ----------------------------------------------------------------------------------------


def parsed(words: tuple[int, ...]) -> list[Any]:
    """The words as numbers, lists and lists of records."""
    rest = iter(words)

    def read(item: Any) -> Any:
        if item == NUMBER:
            return next(rest)
        count = next(rest)
        if item == LIST:
            return [next(rest) for _ in range(count)]
        return [[read(each) for each in item[0]] for _ in range(count)]

    tree = [read(item) for item in SCHEMA]
    assert next(rest, None) is None
    return tree


def flattened(tree: list[Any]) -> tuple[int, ...]:
    """The words of such a tree."""

    def write(value: Any, is_record: bool = False) -> Iterator[int]:
        if isinstance(value, int):
            yield value
            return
        if not is_record:
            yield len(value)
        for each in value:
            yield from write(each, is_record=isinstance(each, list) and not is_record)

    return tuple(write(tree, is_record=True))


def _odd(rng: random.Random, value: int) -> int:
    near = value + rng.choice((-1, 1))
    return rng.choice((rng.choice(_ODD), near, value ^ 1 << rng.randrange(63)))


def _change_words(rng: random.Random, words: list[int]) -> None:
    """Changes words, whatever they mean."""
    kind = rng.choice(("odd", "odd", "remove", "insert", "cut", "double"))
    at = rng.randrange(len(words))
    if kind == "odd":
        words[at] = _odd(rng, words[at])
    elif kind == "remove":
        del words[at]
    elif kind == "insert":
        words.insert(at, rng.choice(_ODD))
    elif kind == "cut":
        del words[at:]
    else:
        words[at:at] = words[at : at + rng.choice((1, 2, 9))]


def _change_tree(rng: random.Random, tree: list[Any]) -> None:
    """Changes a number, a list or a list of records."""
    at = rng.randrange(len(SCHEMA))
    item, value = SCHEMA[at], tree[at]
    if isinstance(item, list) and value and rng.random() < 0.7:  # inside of a record
        record = rng.choice(value)
        field = rng.randrange(len(record))
        if isinstance(record[field], list):
            _change_list(rng, record[field], lambda: rng.choice(_ODD))
        else:
            record[field] = _odd(rng, record[field])
    elif isinstance(item, list):
        template = _RECORDS[item[0]]
        _change_list(rng, value, lambda: [list(e) if isinstance(e, list) else e for e in template])
    elif item == LIST:
        _change_list(rng, value, lambda: rng.choice(_ODD))
    else:
        tree[at] = _odd(rng, value)


def _change_list(rng: random.Random, items: list[Any], new: Callable[[], Any]) -> None:
    kind = rng.choice(("remove", "append", "odd", "double", "clear", "exchange"))
    at = rng.randrange(len(items)) if items else 0
    if kind == "append" or not items:
        items.append(new())
    elif kind == "remove":
        del items[at]
    elif kind == "odd" and isinstance(items[at], int):
        items[at] = _odd(rng, items[at])
    elif kind == "double":
        items[at:at] = items[at : at + 1]
    elif kind == "clear":
        items.clear()
    else:
        other = rng.randrange(len(items))
        items[at], items[other] = items[other], items[at]


# -- files ----------------------------------------------------------------------------------------


def _damaged_bytes(rng: random.Random, contents: bytes) -> bytes:
    """A file with other bytes and the same code."""
    kind = rng.choice(("flip", "flip", "cut", "longer", "footer", "zeros"))
    if kind == "cut":
        return contents[: rng.randrange(len(contents))]
    if kind == "longer":
        return contents + rng.randbytes(rng.choice((1, 8, 64, 4096)))
    changed = bytearray(contents)
    at = len(contents) - rng.randrange(1, 65) if kind == "footer" else rng.randrange(len(contents))
    if kind == "zeros":
        changed[at : at + 8] = bytes(len(changed[at : at + 8]))
    else:
        changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def damaged_sections(rng: random.Random, file: StoredFile) -> StoredFile:
    """A file with other contents, to be written with the right code."""
    other = rng.choice(cases()).file
    kind = rng.choice(("words", "tree", "tree", "tree", "blob", "mixed"))
    if kind == "blob":  # the function of another graph or shape
        return replace(file, blob=other.blob)
    if kind == "mixed":
        return replace(file, words=other.words, blob=rng.choice((file.blob, other.blob)))
    changes = rng.choice((1, 1, 1, 2, 4))
    if kind == "words":
        words = list(file.words)
        for _ in range(changes):
            if words:
                _change_words(rng, words)
    else:
        tree = parsed(file.words)
        for _ in range(changes):
            _change_tree(rng, tree)
        words = list(flattened(tree))
    # A word has 64 bits.
    return file.with_words(tuple((word + (1 << 63)) % (1 << 64) - (1 << 63) for word in words))


def write(case: Case, contents: bytes) -> None:
    """Replaces the file of a function, inside of ``storing()``."""
    path = _folder() / "cache" / case.file.name
    path.write_bytes(contents)
    path.chmod(0o600)


def check(rng: random.Random, case: Case) -> bool:
    """Asserts that a damaged file is missing or can run; returns whether it was used."""
    secret = secret_path().read_bytes()
    intact = case.file.contents(secret)
    is_authentic = rng.random() < 0.75
    file = damaged_sections(rng, case.file) if is_authentic else case.file
    contents = file.contents(secret) if is_authentic else _damaged_bytes(rng, intact)
    write(case, contents)
    function, io = case.load()
    if function is None:
        return False
    if not is_authentic and contents != intact:
        raise Wrong("a file with another code was used")
    # Where numbers do not fit, the engine would leave the run to Paddle.
    with suppress(ValueError, RuntimeError, NgraphError):
        function.run(io)
    if is_authentic and parsed(file.words)[SYMBOLS] != [] and rng.random() < 0.3:
        # The function may serve calls of other shapes, too.
        with suppress(ValueError, RuntimeError, NgraphError):
            case.engine.run(_tensors(case.engine, case.other_inputs))
    return True


def check_many(count: int, seed: int, last: Callable[[str], None] = lambda text: None) -> int:
    """Checks ``count`` damaged files; returns how many of them were used."""
    used = 0
    cases()
    with storing():
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            last(f"# file {number} of seed {seed}\n")
            try:
                used += check(rng, rng.choice(cases()))
            except Exception as error:
                raise Wrong(f"file {number} of seed {seed}: {error!r}") from error
    return used
