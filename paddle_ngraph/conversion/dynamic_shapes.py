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
    LEAST_OPEN,
    MOST_OPEN,
    Guards,
    Number,
    is_apart,
    to_words,
)
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.lru_cache import Latest

Shape = tuple[int, ...]
Signature = tuple[tuple[str, Shape], ...]
Contents = Mapping[int, np.ndarray]  # of the inputs that are read by value, by position

# This many shapes get functions of their own, which are faster, before open shapes are tried.
OWN_FUNCTIONS = 2

# This many sizes of the batch do if it is computed in parts, which those of open shapes are not:
# with one thread, 4 pictures by MobileNetV2 take 0.65 times as long (Zen 4).
OWN_BATCHES = 4

# So many sizes of the batch have functions in which all but the batch is open.
MOST_BATCHES = 8

# So often a function of this kind is tried for a graph of which none goes in parts.
MOST_WHOLE = 2

# How often open shapes are tried for a graph: if each function's guards hold for few shapes only,
# the graph would get one function after another.
MOST_TRIES = 16

# Longer inputs that are read by value hold no positions or sizes.
MOST_NUMBERS = 64

# For this many graphs it is known what shapes they met; the least recently used one is forgotten.
MOST_GRAPHS = 1024

FIXED = -1

_lock = new_lock()  # of what is known of each graph


class _InParts(Protocol):
    """What a build makes (draft.Draft): how many parts its batch has."""

    @property
    def parts(self) -> int: ...


Draft = TypeVar("Draft", bound=_InParts)


@dataclass(frozen=True)
class OpenModel(Generic[Draft]):
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


class Opening:
    """What is open in one build.

    Args:
        signature: Dtypes and shapes of the inputs.
        classes: For each dimension of each input, then for each number in ``contents``, the number
            of its open size, or ``None``.
        contents: The whole numbers in the inputs that are read by value, by position.
        distances: For some open sizes another one, and how far they are above it.

    Attributes:
        numbers: For each dimension of each input, the number of its open size, or ``None``.
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
                    number if LEAST_OPEN <= size <= MOST_OPEN else None
                    for number, size in zip(row, sizes)
                ]
            )
            for number, size in zip(rows[-1], sizes):
                if number is not None:
                    hints[number] = size
        self.numbers = dict(enumerate(rows[: len(signature)]))
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

    def is_batch_alone(self) -> bool:
        """Whether all that is open is one size, along axis 0."""
        open_axes = {
            (axis, number)
            for row in self.numbers.values()
            for axis, number in enumerate(row)
            if number is not None
        }
        return [axis for axis, _ in open_axes] == [0] and not self.has_open_contents()

    def has_open_contents(self) -> bool:
        """Whether numbers in inputs that are read by value are open."""
        return any(n is not None for row in self.contents.values() for n in row)

    def batches(self) -> set[int]:
        """The current values of what is open along axis 0."""
        firsts = [row[0] for row in self.numbers.values() if row and row[0] is not None]
        return {int(self.guards.hints[number]) for number in firsts}

    def fix(self, position: int) -> None:
        """Fixes the open dimensions of an input."""
        for number in self.numbers[position]:
            if number is not None:
                int(self.size(number))


class Empty(Exception):
    """Something has no elements at the current shapes: open shapes do not apply."""


@dataclass
class _Met:
    """The shapes that a graph has met with one list of dtypes and ranks."""

    # Some of those that were met, to count them.
    first: list[Signature] = field(default_factory=list)
    # For each dimension of each input a number that dimensions share which were always equal.
    classes: list[list[int]] = field(default_factory=list)
    varied: set[int] = field(default_factory=set)  # the numbers of dimensions that differed

    def add(self, signature: Signature) -> None:
        if signature in self.first:
            return
        shapes = [shape for _, shape in signature]
        if not self.first:
            self.classes = [[0] * len(shape) for shape in shapes]
        # Dimensions stay in one class as long as they are equal.
        numbers: dict[tuple[int, int], int] = {}
        varied: set[int] = set()
        own = [shape for _, shape in (self.first or [signature])[0]]
        for position, shape in enumerate(shapes):
            for axis, size in enumerate(shape):
                before = self.classes[position][axis]
                number = numbers.setdefault((before, size), len(numbers))
                if before in self.varied or size != own[position][axis]:
                    varied.add(number)
                self.classes[position][axis] = number
        self.varied = varied
        if len(self.first) <= OWN_BATCHES:
            self.first.append(signature)

    def opening(
        self, signature: Signature, contents: Mapping[int, Shape], opens_batch: bool = True
    ) -> Opening:
        """Opens the numbers that differed; those along axis 0 only with ``opens_batch``."""
        rows = [[n if n in self.varied else None for n in row] for row in self.classes]
        if not opens_batch:
            for row in rows[: len(signature)]:
                row[:1] = [None] * len(row[:1])
        return Opening(signature, rows, contents, self._distances(len(signature)))

    def _distances(self, inputs: int) -> dict[int, tuple[int, int]]:
        """The numbers in contents that were always as far from another one, and how far.

        Args:
            inputs: How many rows are shapes.
        """
        places: dict[int, tuple[int, int]] = {}
        for row, numbers in enumerate(self.classes):
            for axis, number in enumerate(numbers):
                places.setdefault(number, (row, axis))
        met = {
            number: [signature[row][1][axis] for signature in self.first]
            for number, (row, axis) in places.items()
            if number in self.varied
        }
        found: dict[int, tuple[int, int]] = {}
        bases: list[int] = []  # those that no other one gives, so that none is given by a chain
        for number, values in met.items():
            for other in bases if places[number][0] >= inputs else ():
                distances = {mine - its for mine, its in zip(values, met[other])}
                if len(distances) == 1:
                    found[number] = other, distances.pop()
                    break
            else:
                bases.append(number)
        return found


@dataclass
class _Graph:
    """What is known of a graph."""

    met: dict[tuple[tuple[str, int], ...], _Met] = field(default_factory=dict)
    tries: int = 0
    opens: bool = False  # it has a function with open shapes
    has_parts: bool = False  # a function computes the samples of a batch one by one
    batches: set[int] = field(default_factory=set)  # those of functions with all else open
    whole: int = 0  # such functions that were tried but did not go in parts
    is_given_up: bool = False

    def closes_batch(self, opening: Opening) -> bool:
        """Whether a function in which all but the batch is open is to be tried.

        Args:
            opening: What is open otherwise.
        """
        sizes = opening.batches()
        if len(sizes) != 1 or opening.is_batch_alone() or opening.has_open_contents():
            return False
        if sizes <= self.batches:
            return True
        return len(self.batches) < MOST_BATCHES and (self.has_parts or self.whole < MOST_WHOLE)


_graphs: Latest[str, _Graph] = Latest(MOST_GRAPHS)


def _graph(text: str) -> _Graph:
    key, _, _ = text.partition("\n")  # the first line holds a digest of the rest
    return _graphs.get_or_make(key, _Graph)


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
        _remember(graph, signature, _whole(contents_of(signature, values)))
        graph.has_parts |= parts > 1


def contents_of(signature: Signature, values: Mapping[int, bytes]) -> Contents:
    """Raw contents of inputs as arrays."""
    return {
        position: np.frombuffer(data, getattr(ov.Type, signature[position][0]).to_dtype()).reshape(
            signature[position][1]
        )
        for position, data in values.items()
    }


def _whole(contents: Contents) -> dict[int, Shape]:
    """The numbers in contents that may open; 0, which never does, for each of the others."""
    return {
        position: tuple(array.reshape(-1).tolist()) if _may_open(array) else (0,) * array.size
        for position, array in contents.items()
    }


def _may_open(array: np.ndarray) -> bool:
    # A function has 32 bits for the rest of the input, too.
    is_whole = array.dtype in (np.int32, np.int64)
    fits = bool(((array >= -MOST_OPEN) & (array <= MOST_OPEN)).all())
    return is_whole and array.size <= MOST_NUMBERS and fits


def _remember(graph: _Graph, signature: Signature, contents: Mapping[int, Shape]) -> _Met:
    rows = (*signature, *(("contents", numbers) for numbers in contents.values()))
    structure = tuple((kind, len(row)) for kind, row in rows)
    met = graph.met.setdefault(structure, _Met())
    met.add(rows)
    return met


def open_model(
    text: str, signature: Signature, contents: Contents, build: Callable[[Opening], Draft]
) -> OpenModel[Draft] | None:
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
        whole = _whole(contents)
        met = _remember(graph, signature, whole)
        opening = met.opening(signature, whole)
        goes_in_parts = graph.has_parts and opening.is_batch_alone()
        own = OWN_BATCHES if goes_in_parts else OWN_FUNCTIONS
        if graph.is_given_up or len(met.first) <= own:
            return None
        closed_batch = None
        if graph.closes_batch(opening):
            closed_batch = met.opening(signature, whole, opens_batch=False)
    if not opening.guards.hints:
        return None
    try:
        in_parts = None if closed_batch is None else _opened(closed_batch, build)
        if in_parts is not None and in_parts.draft.parts == 1:
            in_parts = None
        found = in_parts or _opened(opening, build)
    except Empty:  # which says nothing of other shapes
        return None
    with _lock:
        if in_parts is not None:
            graph.batches |= opening.batches()
        elif closed_batch is not None:
            graph.whole += 1
        graph.tries += 1
        graph.opens |= found is not None
        most = MOST_TRIES * (1 + len(graph.batches))
        graph.is_given_up |= not graph.opens or graph.tries >= most
    return found


def _opened(opening: Opening, build: Callable[[Opening], Draft]) -> OpenModel[Draft] | None:
    try:
        draft = build(opening)
    except Empty:
        raise
    except Exception:  # the shape alone may do better; where it does not, that tells why
        return None
    return opened(opening, draft)


def opened(opening: Opening, draft: Draft) -> OpenModel[Draft] | None:
    """What was built with open dimensions; ``None`` if none of them stayed open."""
    fixed = opening.guards.fixed()
    left = [number for number in opening.guards.hints if number not in fixed]
    if not left:
        return None
    apart = {n: pair for n, pair in opening.distances.items() if pair[0] not in fixed}
    order = {number: place for place, number in enumerate([*left, *apart])}
    sizes = [
        order.get(number, FIXED) if number is not None else FIXED
        for row in [*opening.numbers.values(), *opening.contents.values()]
        for number in row
    ]
    guards = [*opening.guards.kept(), *(is_apart(n, *pair) for n, pair in apart.items())]
    return OpenModel(draft, sizes, to_words(guards, order))
