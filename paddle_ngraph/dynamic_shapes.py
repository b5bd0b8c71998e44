"""Functions with open shapes: one for hundreds of widths, lengths and batch sizes.

Converters see concrete shapes, and a function of its own for every shape costs a compilation each.
So when a graph has met several shapes, its models at these and at further sample shapes are laid
side by side. Sizes that vary together are one *open size*. Where the models differ only in numbers
that follow open sizes (targets of reshapes, most of all), one model serves them all: these numbers
are computed from the shapes at hand. Where they differ in anything else, padding that depends on a
remainder for example, every shape keeps a function of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from openvino import Node, Output, Type, opset15

Shape = tuple[int, ...]
Signature = tuple[tuple[str, Shape], ...]
Sizes = tuple[int, ...]  # one value for each sample

# So many shapes get functions of their own, which are faster, before open ones are tried.
OWN_FUNCTIONS = 2

# Further samples lie so far from a shape that was met: every remainder by a stride up to 32 occurs.
_SHIFTS = (1, 2, 4, 8, 16)

# A constant of more numbers is a table, not a shape.
_MOST_NUMBERS = 16

FIXED = -1

# How the constants of a model are named that hold weights; their position follows.
WEIGHT_PREFIX = "weight_"

_lock = threading.Lock()
_met: dict[str, list[Signature]] = {}
_given_up: set[str] = set()


@dataclass(frozen=True)
class OpenModel:
    """A model with open shapes.

    Attributes:
        model: Its open dimensions are dynamic.
        positions: The input that feeds each parameter.
        dimensions: For each dimension of each input, in order: the number of its open size, or -1.
        least: The least value of each open size.
    """

    model: ov.Model
    positions: list[int]
    dimensions: list[int]
    least: list[int]


Build = Callable[[Signature, bool], tuple[ov.Model, list[int]]]


def give_up(text: str) -> None:
    """From now on every shape of this graph has a function of its own."""
    with _lock:
        _given_up.add(text)
        _met.pop(text, None)


def forget() -> None:
    """Forgets what shapes every graph has met."""
    with _lock:
        _met.clear()
        _given_up.clear()


def remember(text: str, signature: Signature) -> None:
    """Tells that a graph has met this signature; the C++ engine calls it, too."""
    with _lock:
        if text in _given_up:
            return
        met = _met.setdefault(text, [])
        if signature not in met:
            met.append(signature)


def open_model(text: str, signature: Signature, build: Build) -> OpenModel | None:
    """A model for every signature that the graph has met and for all like them.

    Args:
        text: The graph string.
        signature: What it meets now.
        build: Makes the model of one signature; its constants are copies of the weights where it is
            told so, else views.

    Returns:
        The model; ``None`` where the graph has not met enough signatures yet, or where there is no
        such model: then it is not tried again.
    """
    remember(text, signature)
    with _lock:  # another thread may give up at any time
        met = list(_met.get(text, ()))
    if len(met) <= OWN_FUNCTIONS:
        return None
    found = _open(met, build)
    if found is None:
        give_up(text)
    return found


def _open(met: list[Signature], build: Build) -> OpenModel | None:
    sizes = _open_sizes(met)
    if not sizes:
        return None
    try:
        samples = [*met, *_samples(met[-1], sizes)]
        models = [build(sample, False)[0] for sample in samples[:-1]]
        model, positions = build(samples[-1], True)
        _Joined([*models, model]).open()
        _open_parameters(model, positions, met[0], sizes)
        _check(model, models, samples, positions)
    except (_Different, RuntimeError, ValueError):  # the latter two: shapes that cannot be
        return None
    least = [min(_value(sample, places) for sample in samples) for places in sizes]
    return OpenModel(model, positions, list(_numbered(met[0], sizes)), least)


class _Different(Exception):
    """The models differ in more than sizes."""


# -- which sizes are open ------------------------------------------------------------------------

Places = list[tuple[int, int]]  # (input, axis)


def _open_sizes(met: list[Signature]) -> list[Places]:
    """The open sizes: the places of each. Places whose sizes were always equal are one."""
    if len({tuple((kind, len(shape)) for kind, shape in each) for each in met}) > 1:
        return []
    found: dict[Sizes, Places] = {}
    for number, (_, shape) in enumerate(met[0]):
        for axis in range(len(shape)):
            values = tuple(each[number][1][axis] for each in met)
            if len(set(values)) > 1:
                found.setdefault(values, []).append((number, axis))
    return list(found.values()) if all(min(values) > 1 for values in found) else []


def _value(signature: Signature, places: Places) -> int:
    number, axis = places[0]
    return signature[number][1][axis]


def _numbered(signature: Signature, sizes: list[Places]) -> Iterator[int]:
    number_of = {place: k for k, places in enumerate(sizes) for place in places}
    for number, (_, shape) in enumerate(signature):
        yield from (number_of.get((number, axis), FIXED) for axis in range(len(shape)))


def _samples(signature: Signature, sizes: list[Places]) -> Iterator[Signature]:
    """Further shapes; different sizes are shifted differently, to tell them apart."""
    for turn in range(len(_SHIFTS)):
        shapes = [list(shape) for _, shape in signature]
        for number, places in enumerate(sizes):
            for index, axis in places:
                shapes[index][axis] += _SHIFTS[(turn + number) % len(_SHIFTS)]
        yield tuple((kind, tuple(shape)) for (kind, _), shape in zip(signature, shapes))


# -- models side by side -------------------------------------------------------------------------


@dataclass
class _Joined:
    """Models of the same graph at different shapes; the last one is opened."""

    models: list[ov.Model]
    _places: dict[str, int] = field(default_factory=dict)  # of nodes, by name
    _sources: dict[Sizes, tuple[int, Output, int]] = field(default_factory=dict)

    def open(self) -> None:
        """Makes the last model independent of open sizes. Raises _Different where it cannot."""
        rows = list(zip(*(model.get_ordered_ops() for model in self.models)))
        lengths = {len(model.get_ops()) for model in self.models}
        if len(lengths) > 1:
            raise _Different("another number of nodes")
        self._places = {node.get_name(): k for k, row in enumerate(rows) for node in row}
        for row in rows:
            _require_alike(row, self._places)
        self._sources = dict(reversed(list(_dimensions(rows))))
        for row in rows:
            if row[-1].get_type_name() == "Constant" and not _is_same_constant(row):
                self._follow(row, rows)

    def _follow(self, row: Sequence[Node], rows: Sequence[Sequence[Node]]) -> None:
        """Replaces a constant whose numbers follow open sizes."""
        values = [np.array(node.get_data()) for node in row]
        for target in list(row[-1].output(0).get_target_inputs()):
            place = self._places[target.get_node().get_name()]
            node = None
            if rows[place][0].get_type_name() == "Reshape" and target.get_index() == 1:
                node = _follow_source(values, rows[place])
            if node is None:
                node = self._computed(values, row[-1].get_output_element_type(0), place)
            target.replace_source_output(node.output(0))

    def _computed(self, values: list[np.ndarray], kind: Type, before: int) -> Node:
        if len({value.shape for value in values}) == 1 and values[0].size <= _MOST_NUMBERS:
            whole = opset15.convert(self._vector([v.reshape(-1) for v in values], before), kind)
            shape = opset15.constant(np.array(values[0].shape, np.int64))
            return opset15.reshape(whole, shape, False)
        first = values[0].reshape(-1)[:1]
        if any(value.ndim != values[0].ndim or (value != first).any() for value in values):
            raise _Different("a table that depends on sizes")
        shape = self._vector([np.array(value.shape) for value in values], before)
        return opset15.broadcast(opset15.constant(first, kind), shape)

    def _vector(self, values: list[np.ndarray], before: int) -> Node:
        """Numbers that follow open sizes, as a node [n] of int64."""
        numbers = zip(*(value.tolist() for value in values))
        return opset15.concat([self._number(tuple(each), before) for each in numbers], 0)

    def _number(self, values: tuple[float, ...], before: int) -> Node:
        """One number of a constant, as a node [1] of int64."""
        if any(value != int(value) for value in values):
            raise _Different("a number that depends on sizes")
        sizes = tuple(int(value) for value in values)
        if len(set(sizes)) == 1:
            return opset15.constant(np.array(sizes[:1], np.int64))
        place, output, axis = self._sources.get(sizes, (before, None, 0))
        if output is None or place >= before:
            raise _Different(f"{values}: a number that is no dimension")
        index, first = opset15.constant(np.array([axis], np.int64)), opset15.constant(np.int64(0))
        return opset15.gather(opset15.shape_of(output, Type.i64), index, first)


def _require_alike(row: Sequence[Node], position: dict[str, int]) -> None:
    first = row[0]
    kinds = {node.get_type_name() for node in row}
    sources = {
        tuple(
            (position[value.get_node().get_name()], value.get_index())
            for value in node.input_values()
        )
        for node in row
    }
    if len(kinds) > 1 or len(sources) > 1:
        raise _Different("other nodes")
    if first.get_type_name() in ("Constant", "Parameter"):
        return
    if len({str(node.get_attributes()) for node in row}) > 1:
        raise _Different(f"{first.get_type_name()} with other attributes")


def _dimensions(rows: Sequence[Sequence[Node]]) -> Iterator[tuple[Sizes, tuple[int, Output, int]]]:
    """Where to read a size: (position of the node, its output in the last model, axis)."""
    for place, row in enumerate(rows):
        if row[0].get_type_name() == "Constant":
            continue
        for number, output in enumerate(row[-1].outputs()):
            shapes = [list(node.get_output_shape(number)) for node in row]
            if len({len(shape) for shape in shapes}) > 1:
                raise _Different("another rank")
            for axis, values in enumerate(zip(*shapes)):
                if len(set(values)) > 1:
                    yield values, (place, output, axis)


def _is_same_constant(row: Sequence[Node]) -> bool:
    name = row[0].get_friendly_name()
    if name.startswith(WEIGHT_PREFIX):
        return all(node.get_friendly_name() == name for node in row)
    values = [node.get_data() for node in row]
    if len({value.shape for value in values}) > 1:
        return False
    inexact = values[0].dtype.kind == "f"
    return all(np.array_equal(values[0], value, equal_nan=inexact) for value in values[1:])


def _follow_source(values: list[np.ndarray], consumers: Sequence[Node]) -> Node | None:
    """A target of Reshape with 0 for sizes that stay and -1 for one that follows from the rest."""
    shapes = [list(consumer.get_input_shape(0)) for consumer in consumers]
    target = values[-1].copy()
    if 0 in target or -1 in target:
        return None
    open_axes = [k for k in range(target.size) if len({int(value[k]) for value in values}) > 1]
    for axis in list(open_axes):
        if all(axis < len(s) and s[axis] == int(v[axis]) for s, v in zip(shapes, values)):
            target[axis] = 0
            open_axes.remove(axis)
    if len(open_axes) > 1:
        return None
    target[open_axes] = -1
    consumers[-1].set_attribute("special_zero", True)
    return opset15.constant(target)


# -- the opened model ----------------------------------------------------------------------------


def _open_parameters(
    model: ov.Model, positions: list[int], signature: Signature, sizes: list[Places]
) -> None:
    is_open = {place for places in sizes for place in places}
    for node, number in zip(model.get_parameters(), positions):
        shape = signature[number][1]
        dims = [-1 if (number, axis) in is_open else size for axis, size in enumerate(shape)]
        node.set_partial_shape(ov.PartialShape(dims))
    model.validate_nodes_and_infer_types()


def _check(
    model: ov.Model, models: list[ov.Model], samples: list[Signature], positions: list[int]
) -> None:
    """Raises _Different where the opened model has other results than those it stands for."""
    for expected, sample in zip(models, samples):
        closed = model.clone()
        shapes = [ov.PartialShape(list(sample[number][1])) for number in positions]
        closed.reshape(dict(zip(closed.inputs, shapes)))
        for ours, theirs in zip(closed.outputs, expected.outputs):
            if ours.get_partial_shape() != theirs.get_partial_shape():
                raise _Different("results of other shapes")
