"""Functions with open shapes: one for hundreds of widths, lengths and batch sizes.

Converters see concrete shapes, and a separate function for every shape would cost one compilation
each. So when a graph has met several shapes, the dimensions that differed among these become
*open*: the function is built with symbolic sizes that record what is decided by them
(symbolic_sizes.py), and then serves every shape for which its guards hold. Dimensions that were
always equal to each other share one open size. A shape that violates the guards gets another
function, with open shapes too where that helps; so several functions of one graph exist side by
side. Where nothing stays open, or open shapes fail, every shape keeps its own function.

Whole numbers in inputs that are read by value (the position of a slice, the end of a range) are
sizes too: they open as dimensions do, so that a loop that counts needs no function for each count.
Those that were always as far apart share one open size.

Where a batch goes in parts (batch_split.py), its size stays closed beside what is open: a function
for one size of the batch and all widths beats one for all of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import numpy as np
import openvino as ov

from paddle_ngraph.conversion.symbolic_sizes import (
    MAX_SYMBOLIC_SIZE,
    MIN_SYMBOLIC_SIZE,
    Guards,
    Number,
    distance_guard,
    to_words,
)
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.lru_cache import LRUCache

Shape = tuple[int, ...]
Signature = tuple[tuple[str, Shape], ...]
Contents = Mapping[int, np.ndarray]  # of the inputs that are read by value, by position

# This many shapes get functions of their own, which are faster, before open shapes are tried.
STATIC_SHAPES_BEFORE_DYNAMIC = 2

# This many sizes of the batch do if it is computed in parts, which those of open shapes are not:
# with one thread, 4 pictures by MobileNetV2 take 0.65 times as long (Zen 4).
STATIC_BATCHES_BEFORE_DYNAMIC = 4

# So many sizes of the batch have functions in which all but the batch is open.
MAX_STATIC_BATCHES = 8

# So often a function of this kind is tried for a graph of which none goes in parts.
MAX_UNSPLIT_TRIES = 2

# How often open shapes are tried for a graph: if each function's guards hold for few shapes only,
# the graph would get one function after another.
MAX_TRIES = 16

# Longer inputs that are read by value hold no positions or sizes.
MAX_VALUE_INPUT_ELEMENTS = 64

# For this many graphs it is known what shapes they met; the least recently used one is forgotten.
MAX_GRAPHS = 1024

FIXED = -1

_lock = new_lock()  # of what is known of each graph


class _Splittable(Protocol):
    """What a build makes (draft.Draft): how many parts its batch has."""

    @property
    def parts(self) -> int: ...


Draft = TypeVar("Draft", bound=_Splittable)


@dataclass(frozen=True)
class DynamicModel(Generic[Draft]):
    """A model with open shapes.

    Attributes:
        draft: What was built; the open dimensions of its model are dynamic.
        sizes: For each dimension of each input, in order, then for each number in inputs that are
            read by value: the number of its open size, or -1.
        guards: For which open sizes it is valid, as words (:func:`symbolic_sizes.to_words`).
    """

    draft: Draft
    sizes: list[int]
    guards: list[int]


class SymbolicDims:
    """What is open in one build.

    Args:
        signature: Dtypes and shapes of the inputs.
        classes: For each dimension of each input, then for each number in ``contents``, the number
            of its open size, or ``None``.
        contents: The whole numbers in the inputs that are read by value, by position.
        distances: For some open sizes another one, and how far they are above it.

    Attributes:
        symbols: For each dimension of each input, the number of its open size, or ``None``.
        contents: The same for each number in an input that is read by value.
        distances: Those whose open sizes are both open here.
        guards: The open sizes, and what was decided by them.
    """

    def __init__(
        self,
        signature: Signature,
        classes: Sequence[Sequence[int | None]],
        contents: Mapping[int, Shape] = MappingProxyType({}),
        distances: Mapping[int, tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        hints: dict[int, int] = {}
        rows: list[list[int | None]] = []
        for sizes, row in zip([*(shape for _, shape in signature), *contents.values()], classes):
            # One element is no size like others: it is repeated along its axis. Nor is none.
            rows.append(
                [
                    number if MIN_SYMBOLIC_SIZE <= size <= MAX_SYMBOLIC_SIZE else None
                    for number, size in zip(row, sizes)
                ]
            )
            for number, size in zip(rows[-1], sizes):
                if number is not None:
                    hints[number] = size
        self.symbols = dict(enumerate(rows[: len(signature)]))
        self.contents = dict(zip(contents, rows[len(signature) :]))
        self.distances = {
            number: (other, distance)
            for number, (other, distance) in distances.items()
            if number in hints and hints.get(other) == hints[number] - distance
        }
        self.guards = Guards({n: hint for n, hint in hints.items() if n not in self.distances})

    def size(self, number: int) -> Number:
        """The open size of this number."""
        if number not in self.distances:
            return self.guards.size(number)
        other, distance = self.distances[number]
        return self.guards.size(other) + distance

    def is_only_batch(self) -> bool:
        """Whether all that is open is one size, along axis 0."""
        open_axes = {
            (axis, number)
            for row in self.symbols.values()
            for axis, number in enumerate(row)
            if number is not None
        }
        return [axis for axis, _ in open_axes] == [0] and not self.has_symbolic_contents()

    def has_symbolic_contents(self) -> bool:
        """Whether numbers in inputs that are read by value are open."""
        return any(n is not None for row in self.contents.values() for n in row)

    def batches(self) -> set[int]:
        """The current values of what is open along axis 0."""
        firsts = [row[0] for row in self.symbols.values() if row and row[0] is not None]
        return {int(self.guards.hints[number]) for number in firsts}

    def fix(self, position: int) -> None:
        """Fixes the open dimensions of an input."""
        for number in self.symbols[position]:
            if number is not None:
                int(self.size(number))


class EmptyTensorFound(Exception):
    """Something has no elements at the current shapes: open shapes do not apply."""


@dataclass
class _SeenShapes:
    """The shapes that a graph has met with one list of dtypes and ranks."""

    # Some of those that were met, to count them.
    seen: list[Signature] = field(default_factory=list)
    # For each dimension of each input a number that dimensions share which were always equal.
    classes: list[list[int]] = field(default_factory=list)
    varied: set[int] = field(default_factory=set)  # the numbers of dimensions that differed

    def add(self, signature: Signature) -> None:
        if signature in self.seen:
            return
        shapes = [shape for _, shape in signature]
        if not self.seen:
            self.classes = [[0] * len(shape) for shape in shapes]
        # Dimensions stay in one class as long as they are equal.
        numbers: dict[tuple[int, int], int] = {}
        varied: set[int] = set()
        own = [shape for _, shape in (self.seen or [signature])[0]]
        for position, shape in enumerate(shapes):
            for axis, size in enumerate(shape):
                before = self.classes[position][axis]
                number = numbers.setdefault((before, size), len(numbers))
                if before in self.varied or size != own[position][axis]:
                    varied.add(number)
                self.classes[position][axis] = number
        self.varied = varied
        if len(self.seen) <= STATIC_BATCHES_BEFORE_DYNAMIC:
            self.seen.append(signature)

    def symbolic_dims(
        self, signature: Signature, contents: Mapping[int, Shape], includes_batch: bool = True
    ) -> SymbolicDims:
        """Opens the numbers that differed; those along axis 0 only with ``includes_batch``."""
        rows = [[n if n in self.varied else None for n in row] for row in self.classes]
        if not includes_batch:
            for row in rows[: len(signature)]:
                row[:1] = [None] * len(row[:1])
        return SymbolicDims(signature, rows, contents, self._distances(len(signature)))

    def _distances(self, inputs: int) -> dict[int, tuple[int, int]]:
        """The numbers in contents that were always as far from another one, and how far.

        Args:
            inputs: How many rows are shapes.
        """
        places: dict[int, tuple[int, int]] = {}
        for row, numbers in enumerate(self.classes):
            for axis, number in enumerate(numbers):
                places.setdefault(number, (row, axis))
        seen = {
            number: [signature[row][1][axis] for signature in self.seen]
            for number, (row, axis) in places.items()
            if number in self.varied
        }
        found: dict[int, tuple[int, int]] = {}
        bases: list[int] = []  # those that no other one gives, so that none is given by a chain
        for number, values in seen.items():
            for other in bases if places[number][0] >= inputs else ():
                distances = {mine - its for mine, its in zip(values, seen[other])}
                if len(distances) == 1:
                    found[number] = other, distances.pop()
                    break
            else:
                bases.append(number)
        return found


@dataclass
class _GraphShapes:
    """What is known of a graph."""

    seen: dict[tuple[tuple[str, int], ...], _SeenShapes] = field(default_factory=dict)
    tries: int = 0
    has_dynamic_function: bool = False  # it has a function with open shapes
    splits_batch: bool = False  # a function computes the samples of a batch one by one
    batches: set[int] = field(default_factory=set)  # those of functions with all else open
    unsplit_tries: int = 0  # such functions that were tried but did not go in parts
    is_given_up: bool = False

    def should_fix_batch(self, symbolic_dims: SymbolicDims) -> bool:
        """Whether a function in which all but the batch is open is to be tried.

        Args:
            symbolic_dims: What is open otherwise.
        """
        sizes = symbolic_dims.batches()
        if (
            len(sizes) != 1
            or symbolic_dims.is_only_batch()
            or symbolic_dims.has_symbolic_contents()
        ):
            return False
        if sizes <= self.batches:
            return True
        return len(self.batches) < MAX_STATIC_BATCHES and (
            self.splits_batch or self.unsplit_tries < MAX_UNSPLIT_TRIES
        )


_graphs: LRUCache[str, _GraphShapes] = LRUCache(MAX_GRAPHS)


def _graph(text: str) -> _GraphShapes:
    key, _, _ = text.partition("\n")  # the first line holds a digest of the rest
    return _graphs.get_or_create(key, _GraphShapes)


def count() -> int:
    """The number of graphs whose shapes are known."""
    return len(_graphs)


def give_up(text: str) -> None:
    """From now on every shape of this graph gets its own function."""
    with _lock:
        _graph(text).is_given_up = True


def forget() -> None:
    """Forgets the shapes that graphs have met."""
    _graphs.clear()


def remember(text: str, signature: Signature, values: Mapping[int, bytes], parts: int = 1) -> None:
    """Records that a graph has met this signature and these contents; also for the C++ engine.

    Args:
        text: The graph string.
        signature: What it has met.
        values: Raw contents of the inputs that are read by value.
        parts: How many parts the batch has in the function for this signature.
    """
    with _lock:
        graph = _graph(text)
        _remember(graph, signature, _openable_integers(contents_of(signature, values)))
        graph.splits_batch |= parts > 1


def contents_of(signature: Signature, values: Mapping[int, bytes]) -> Contents:
    """Raw contents of inputs as arrays."""
    return {
        position: np.frombuffer(data, getattr(ov.Type, signature[position][0]).to_dtype()).reshape(
            signature[position][1]
        )
        for position, data in values.items()
    }


def _openable_integers(contents: Contents) -> dict[int, Shape]:
    """The numbers in contents that may open; 0, which never does, for each of the others."""
    return {
        position: tuple(array.reshape(-1).tolist())
        if _can_be_symbolic(array)
        else (0,) * array.size
        for position, array in contents.items()
    }


def _can_be_symbolic(array: np.ndarray) -> bool:
    # A function has 32 bits for the rest of the input, too.
    is_whole = array.dtype in (np.int32, np.int64)
    fits = bool(((array >= -MAX_SYMBOLIC_SIZE) & (array <= MAX_SYMBOLIC_SIZE)).all())
    return is_whole and array.size <= MAX_VALUE_INPUT_ELEMENTS and fits


def _remember(
    graph: _GraphShapes, signature: Signature, contents: Mapping[int, Shape]
) -> _SeenShapes:
    rows = (*signature, *(("contents", numbers) for numbers in contents.values()))
    structure = tuple((kind, len(row)) for kind, row in rows)
    seen = graph.seen.setdefault(structure, _SeenShapes())
    seen.add(rows)
    return seen


def build_dynamic_model(
    text: str, signature: Signature, contents: Contents, build: Callable[[SymbolicDims], Draft]
) -> DynamicModel[Draft] | None:
    """A model for this signature and for all others for which its guards hold.

    Args:
        text: The graph string.
        signature, contents: What the graph meets now.
        build: Makes the model at this signature.

    Returns:
        The model; ``None`` if the graph has not met enough signatures yet, or if there is no such
        model: then it is not tried again, unless other shapes may have one.
    """
    with _lock:  # another thread may give up at any time
        graph = _graph(text)
        whole = _openable_integers(contents)
        seen = _remember(graph, signature, whole)
        symbolic_dims = seen.symbolic_dims(signature, whole)
        is_split = graph.splits_batch and symbolic_dims.is_only_batch()
        own = STATIC_BATCHES_BEFORE_DYNAMIC if is_split else STATIC_SHAPES_BEFORE_DYNAMIC
        if graph.is_given_up or len(seen.seen) <= own:
            return None
        fixed_batch = None
        if graph.should_fix_batch(symbolic_dims):
            fixed_batch = seen.symbolic_dims(signature, whole, includes_batch=False)
    if not symbolic_dims.guards.hints:
        return None
    try:
        split = None if fixed_batch is None else _try_build(fixed_batch, build)
        if split is not None and split.draft.parts == 1:
            split = None
        found = split or _try_build(symbolic_dims, build)
    except EmptyTensorFound:  # which says nothing of other shapes
        return None
    with _lock:
        if split is not None:
            graph.batches |= symbolic_dims.batches()
        elif fixed_batch is not None:
            graph.unsplit_tries += 1
        graph.tries += 1
        graph.has_dynamic_function |= found is not None
        most = MAX_TRIES * (1 + len(graph.batches))
        graph.is_given_up |= not graph.has_dynamic_function or graph.tries >= most
    return found


def _try_build(
    symbolic_dims: SymbolicDims, build: Callable[[SymbolicDims], Draft]
) -> DynamicModel[Draft] | None:
    try:
        draft = build(symbolic_dims)
    except EmptyTensorFound:
        raise
    except Exception:  # the shape alone may do better; where it does not, that tells why
        return None
    return dynamic_model_of(symbolic_dims, draft)


def dynamic_model_of(symbolic_dims: SymbolicDims, draft: Draft) -> DynamicModel[Draft] | None:
    """What was built with open dimensions; ``None`` if none of them stayed open."""
    fixed = symbolic_dims.guards.fixed()
    left = [number for number in symbolic_dims.guards.hints if number not in fixed]
    if not left:
        return None
    derived = {n: pair for n, pair in symbolic_dims.distances.items() if pair[0] not in fixed}
    order = {number: place for place, number in enumerate([*left, *derived])}
    sizes = [
        order.get(number, FIXED) if number is not None else FIXED
        for row in [*symbolic_dims.symbols.values(), *symbolic_dims.contents.values()]
        for number in row
    ]
    guards = [
        *symbolic_dims.guards.remaining(),
        *(distance_guard(n, *pair) for n, pair in derived.items()),
    ]
    return DynamicModel(draft, sizes, to_words(guards, order))
