"""Functions with dynamic shapes: one for hundreds of widths, lengths and batch sizes.

Converters see concrete shapes, and a separate function for every shape would cost one compilation
each. So when a graph has run with several shapes, the dimensions that differed between these become
*symbolic*: the function is built with symbolic sizes that record the decisions that depend on them
(symbolic_sizes.py), and then serves every shape for which its guards hold. Dimensions that were
always equal to each other share one symbol. A shape that violates the guards gets another function,
with dynamic shapes too where that helps; so several functions of one graph coexist. Where no
dimension stays dynamic, or dynamic shapes fail, every shape keeps its own function.

Integers in inputs that are read by value (the index of a slice, the end of a range) are sizes too:
they become symbolic as dimensions do, so that a counting loop needs no function for each count.
Integers whose difference was always equal share one symbol.

Where a batch is computed in chunks (batch_split.py), its size stays static next to dynamic
dimensions: a function for one batch size and all widths is faster than one for all of both.
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
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache

Shape = tuple[int, ...]
Signature = tuple[tuple[str, Shape], ...]
# The contents of the inputs that are read by value, by the index of the input.
Contents = Mapping[int, np.ndarray]


FIXED = -1

# Guards ``_graphs``, the record of the shapes of each graph.
_lock = new_lock()


class _Splittable(Protocol):
    """Interface of the result of a build (draft.Draft): the number of chunks of the batch."""

    @property
    def chunks(self) -> int: ...


DraftT = TypeVar("DraftT", bound=_Splittable)


@dataclass(frozen=True)
class DynamicModel(Generic[DraftT]):
    """A model with dynamic shapes.

    Attributes:
        draft: The result of the build; the symbolic dimensions of its model are dynamic.
        sizes: For each dimension of each input, in order, then for each element of inputs that are
            read by value: the index of its symbol, or -1.
        guards: The conditions for its validity, as words (:func:`symbolic_sizes.to_words`).
    """

    draft: DraftT
    sizes: list[int]
    guards: list[int]


class SymbolicDims:
    """The symbolic dimensions and contents of one build.

    Args:
        signature: Dtypes and shapes of the inputs.
        classes: For each dimension of each input, then for each element of ``contents``, its
            symbol, or ``None``.
        contents: The integers in the inputs that are read by value, by input index.
        distances: Symbols that are defined by another symbol, and the difference between the two.

    Attributes:
        symbols: For each dimension of each input, its symbol, or ``None``.
        contents: For each element of inputs that are read by value, its symbol, or ``None``.
        distances: Those of the given distances whose two symbols are in use here.
        guards: The symbols, and the decisions that depend on them.
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
            # A dimension whose size is 0, 1 (repeated along its axis) or too large gets no symbol,
            # and stays static.
            rows.append(
                [
                    symbol if MIN_SYMBOLIC_SIZE <= size <= MAX_SYMBOLIC_SIZE else None
                    for symbol, size in zip(row, sizes)
                ]
            )
            for symbol, size in zip(rows[-1], sizes):
                if symbol is not None:
                    hints[symbol] = size
        self.symbols = dict(enumerate(rows[: len(signature)]))
        self.contents = dict(zip(contents, rows[len(signature) :]))
        self.distances = {
            symbol: (other, distance)
            for symbol, (other, distance) in distances.items()
            if symbol in hints and hints.get(other) == hints[symbol] - distance
        }
        self.guards = Guards({n: hint for n, hint in hints.items() if n not in self.distances})

    def size(self, symbol: int) -> Number:
        """The size of a dimension with this symbol, perhaps as another symbol plus a constant."""
        if symbol not in self.distances:
            return self.guards.size(symbol)
        other, distance = self.distances[symbol]
        return self.guards.size(other) + distance

    def is_only_batch(self) -> bool:
        """Whether only the dimension of axis 0 is dynamic, with one symbol, and no contents."""
        symbolic_axes = {
            (axis, symbol)
            for row in self.symbols.values()
            for axis, symbol in enumerate(row)
            if symbol is not None
        }
        return [axis for axis, _ in symbolic_axes] == [0] and not self.has_symbolic_contents()

    def has_symbolic_contents(self) -> bool:
        """Whether inputs that are read by value have symbolic elements."""
        return any(n is not None for row in self.contents.values() for n in row)

    def batches(self) -> set[int]:
        """The sizes, at the signature of the build, of the dynamic dimensions along axis 0."""
        firsts = [row[0] for row in self.symbols.values() if row and row[0] is not None]
        return {int(self.guards.hints[symbol]) for symbol in firsts}

    def fix(self, position: int) -> None:
        """Makes the dynamic dimensions of the input ``position`` static."""
        for symbol in self.symbols[position]:
            if symbol is not None:
                int(self.size(symbol))


class EmptyTensorFound(Exception):
    """A tensor is empty at the current shapes: dynamic shapes do not apply."""


@dataclass
class _SeenShapes:
    """The shapes with which a graph has run, for one list of dtypes and ranks."""

    # The distinct signatures of the first runs, up to a limit: their number tells with how many
    # shapes the graph has run.
    seen: list[Signature] = field(default_factory=list)
    # For each dimension of each input a symbol, shared by dimensions that were always equal.
    classes: list[list[int]] = field(default_factory=list)
    varied: set[int] = field(default_factory=set)  # symbols whose size was not equal in all runs

    def add(self, signature: Signature) -> None:
        if signature in self.seen:
            return
        shapes = [shape for _, shape in signature]
        if not self.seen:
            self.classes = [[0] * len(shape) for shape in shapes]
        # Dimensions share a symbol as long as their sizes were equal to each other in every run.
        symbols: dict[tuple[int, int], int] = {}
        varied: set[int] = set()
        first = [shape for _, shape in (self.seen or [signature])[0]]
        for position, shape in enumerate(shapes):
            for axis, size in enumerate(shape):
                before = self.classes[position][axis]
                symbol = symbols.setdefault((before, size), len(symbols))
                if before in self.varied or size != first[position][axis]:
                    varied.add(symbol)
                self.classes[position][axis] = symbol
        self.varied = varied
        if len(self.seen) <= SETTINGS.static_batches_before_dynamic:
            self.seen.append(signature)

    def symbolic_dims(
        self, signature: Signature, contents: Mapping[int, Shape], includes_batch: bool = True
    ) -> SymbolicDims:
        """Returns the symbol of each size that has differed between the recorded signatures.

        Sizes of axis 0 have symbols only with ``includes_batch``.
        """
        rows = [[n if n in self.varied else None for n in row] for row in self.classes]
        if not includes_batch:
            for row in rows[: len(signature)]:
                row[:1] = [None] * len(row[:1])
        return SymbolicDims(signature, rows, contents, self._distances(len(signature)))

    def _distances(self, inputs: int) -> dict[int, tuple[int, int]]:
        """Finds symbols that were another symbol plus a constant in all recorded runs.

        Only symbols that occur in the contents of inputs and in no shape are considered.

        Args:
            inputs: The number of rows of ``classes`` that are shapes; the rows of contents follow.

        Returns:
            For each symbol found, the other symbol and the constant.
        """
        locations: dict[int, tuple[int, int]] = {}
        for row, symbols in enumerate(self.classes):
            for axis, symbol in enumerate(symbols):
                locations.setdefault(symbol, (row, axis))
        seen = {
            symbol: [signature[row][1][axis] for signature in self.seen]
            for symbol, (row, axis) in locations.items()
            if symbol in self.varied
        }
        found: dict[int, tuple[int, int]] = {}
        # Symbols that are not expressed by another symbol. Others refer to these only, so that no
        # symbol refers to one that refers to a third.
        bases: list[int] = []
        for symbol, values in seen.items():
            for other in bases if locations[symbol][0] >= inputs else ():
                distances = {mine - its for mine, its in zip(values, seen[other])}
                if len(distances) == 1:
                    found[symbol] = other, distances.pop()
                    break
            else:
                bases.append(symbol)
        return found


@dataclass
class _GraphShapes:
    """The shapes with which a graph has run, and the outcomes of its builds with dynamic shapes."""

    seen: dict[tuple[tuple[str, int], ...], _SeenShapes] = field(default_factory=dict)
    tries: int = 0
    # Whether a function of the graph with dynamic shapes has been built.
    has_dynamic_function: bool = False
    # Whether a function of the graph has computed its batch in chunks.
    splits_batch: bool = False
    # The batch sizes for which there is a function in which all other dimensions are dynamic.
    batches: set[int] = field(default_factory=set)
    # Number of builds with a static batch in which the batch was not computed in chunks.
    unsplit_tries: int = 0
    is_given_up: bool = False

    def should_fix_batch(self, symbolic_dims: SymbolicDims) -> bool:
        """Whether to try a function with a static batch size and all other dimensions dynamic.

        Args:
            symbolic_dims: The symbolic dimensions, the batch size included.
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
        return len(self.batches) < SETTINGS.max_static_batches and (
            self.splits_batch or self.unsplit_tries < SETTINGS.max_unsplit_tries
        )


_graphs: LRUCache[str, _GraphShapes] = process_cache(
    __name__,
    "shape_records",
    "shapes that a graph has run with, and attempts at functions with dynamic shapes",
    key="graph header",
    bound=1024,
)


def _graph(text: str) -> _GraphShapes:
    # The header of a graph string identifies the graph: it contains a digest of the rest.
    key, _, _ = text.partition("\n")
    return _graphs.get_or_create(key, _GraphShapes)


def give_up(text: str) -> None:
    """Ends dynamic shapes for a graph: each shape gets a function of its own from now on."""
    with _lock:
        _graph(text).is_given_up = True


def remember(text: str, signature: Signature, values: Mapping[int, bytes], chunks: int = 1) -> None:
    """Records sizes and contents of the inputs of a run of a graph, for dynamic shapes.

    Also called by the C++ engine.

    Args:
        text: The graph string.
        signature: The signature of the run.
        values: Raw contents of the inputs that are read by value.
        chunks: The number of chunks of the batch in the function for this signature.
    """
    with _lock:
        graph = _graph(text)
        _remember(graph, signature, _symbolic_candidates(contents_of(signature, values)))
        graph.splits_batch |= chunks > 1


def contents_of(signature: Signature, values: Mapping[int, bytes]) -> Contents:
    """Arrays of the raw contents of the inputs that are read by value."""
    return {
        position: np.frombuffer(data, getattr(ov.Type, signature[position][0]).to_dtype()).reshape(
            signature[position][1]
        )
        for position, data in values.items()
    }


def _symbolic_candidates(contents: Contents) -> dict[int, Shape]:
    """Integers in contents that may become symbolic; 0, which never does, for other elements."""
    return {
        position: tuple(array.reshape(-1).tolist())
        if _can_be_symbolic(array)
        else (0,) * array.size
        for position, array in contents.items()
    }


def _can_be_symbolic(array: np.ndarray) -> bool:
    # All elements of the input must be small, also elements without a symbol: the input becomes an
    # int32 parameter.
    is_integer = array.dtype in (np.int32, np.int64)
    fits = bool(((array >= -MAX_SYMBOLIC_SIZE) & (array <= MAX_SYMBOLIC_SIZE)).all())
    return is_integer and array.size <= SETTINGS.max_value_input_elements and fits


def _remember(
    graph: _GraphShapes, signature: Signature, contents: Mapping[int, Shape]
) -> _SeenShapes:
    rows = (*signature, *(("contents", numbers) for numbers in contents.values()))
    structure = tuple((dtype, len(row)) for dtype, row in rows)
    seen = graph.seen.setdefault(structure, _SeenShapes())
    seen.add(rows)
    return seen


def build_dynamic_model(
    text: str, signature: Signature, contents: Contents, build: Callable[[SymbolicDims], DraftT]
) -> DynamicModel[DraftT] | None:
    """A model for this signature, and for all others that satisfy its guards.

    Args:
        text: The graph string.
        signature, contents: The signature and the contents of the current run.
        build: Builds the model at this signature.

    Returns:
        The model; ``None`` if the graph has not run with enough signatures yet, or if there is no
        such model: then another attempt follows only if other shapes may have one.
    """
    # Reads the record of the graph under the lock: another thread may give up on dynamic shapes for
    # the graph at any time.
    with _lock:
        graph = _graph(text)
        integers = _symbolic_candidates(contents)
        seen = _remember(graph, signature, integers)
        symbolic_dims = seen.symbolic_dims(signature, integers)
        is_split = graph.splits_batch and symbolic_dims.is_only_batch()
        threshold = (
            SETTINGS.static_batches_before_dynamic
            if is_split
            else SETTINGS.static_shapes_before_dynamic
        )
        if graph.is_given_up or len(seen.seen) <= threshold:
            return None
        fixed_batch = None
        if graph.should_fix_batch(symbolic_dims):
            fixed_batch = seen.symbolic_dims(signature, integers, includes_batch=False)
    if not symbolic_dims.guards.hints:
        return None
    try:
        split = None if fixed_batch is None else _try_build(fixed_batch, build)
        if split is not None and split.draft.chunks == 1:
            split = None
        found = split or _try_build(symbolic_dims, build)
    except EmptyTensorFound:
        # The next shape is another attempt: with it, no tensor may be empty.
        return None
    with _lock:
        if split is not None:
            graph.batches |= symbolic_dims.batches()
        elif fixed_batch is not None:
            graph.unsplit_tries += 1
        graph.tries += 1
        graph.has_dynamic_function |= found is not None
        most = SETTINGS.max_dynamic_tries * (1 + len(graph.batches))
        graph.is_given_up |= not graph.has_dynamic_function or graph.tries >= most
    return found


def _try_build(
    symbolic_dims: SymbolicDims, build: Callable[[SymbolicDims], DraftT]
) -> DynamicModel[DraftT] | None:
    with signals.own_errors():
        try:
            draft = build(symbolic_dims)
        except EmptyTensorFound:
            raise
        except Exception:
            # The build with static shapes, which follows, succeeds or raises the reason.
            return None
    return dynamic_model_of(symbolic_dims, draft)


def dynamic_model_of(symbolic_dims: SymbolicDims, draft: DraftT) -> DynamicModel[DraftT] | None:
    """A finished model with its dynamic dimensions; ``None`` if guards made all of them static."""
    fixed = symbolic_dims.guards.fixed()
    remaining = [symbol for symbol in symbolic_dims.guards.hints if symbol not in fixed]
    if not remaining:
        return None
    derived = {n: pair for n, pair in symbolic_dims.distances.items() if pair[0] not in fixed}
    order = {symbol: index for index, symbol in enumerate([*remaining, *derived])}
    sizes = [
        order.get(symbol, FIXED) if symbol is not None else FIXED
        for row in [*symbolic_dims.symbols.values(), *symbolic_dims.contents.values()]
        for symbol in row
    ]
    guards = [
        *symbolic_dims.guards.remaining(),
        *(distance_guard(n, *pair) for n, pair in derived.items()),
    ]
    return DynamicModel(draft, sizes, to_words(guards, order))
