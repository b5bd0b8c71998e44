"""The functions of a generated project: one for each subgraph and each set of input shapes.

A function is an ``ov::Model`` after all passes of a build, as the engine would compile it. Dynamic
dimensions stay dynamic, as in the engine: a function is valid for all sizes that satisfy its
guards. All functions share one file of constants.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import openvino as ov

from paddle_ngraph.codegen import kernels, statements
from paddle_ngraph.codegen.statements import (
    CppBlock,
    CppProgram,
    CppVariable,
    EngineCall,
    KernelCall,
)
from paddle_ngraph.conversion import build, dynamic_shapes
from paddle_ngraph.conversion.draft import Draft, Update
from paddle_ngraph.conversion.dynamic_shapes import SymbolicDims
from paddle_ngraph.conversion.errors import ConversionError
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.model_inputs import Draw
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.conversion.symbolic_sizes import Guard
from paddle_ngraph.errors import ErrorCode, NgraphError, outcome
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.dtypes import DTYPES

# Hints of dynamic sizes at build time, by axis. Hints differ between axes, so that their symbols
# are distinct; powers of 2 divide them, as required by networks that halve images.
_SIZE_HINTS = (8, 128, 320, 448, 576, 704, 832, 960, 1088)
# Hints of a second function, for small sizes that the guards of the first function exclude.
_SMALL_SIZE_HINTS = (3, 10, 32, 48, 64, 80, 96, 112, 144)
# By tuple of hints, the distance between the further hints that data-dependent sizes get after
# those of the tuple.
_HINT_STEPS: Mapping[tuple[int, ...], int] = {_SIZE_HINTS: 128, _SMALL_SIZE_HINTS: 16}
_ALIGNMENT = 64  # bytes: alignment of constants in the file that contains them


class DimensionSize(NamedTuple):
    """A dimension: its size when the function is built, and whether it is dynamic."""

    hint: int
    is_dynamic: bool = False


Shape = tuple[DimensionSize, ...]
Signature = tuple[tuple[str, tuple[int, ...]], ...]
Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Variant:
    """A function for some shapes.

    Attributes:
        model: The model.
        shapes: Shapes of the inputs, then of the states: sizes, or ``-1 - index`` of a symbol.
        guards: The guards on symbols, encoded as integers.
        parameters: For each parameter the index of its input, or of its random tensor, which are
            counted after the inputs.
        draws: The random tensors that a run generates.
        conditions: The guards as objects.
        positions: The input of the graph that feeds each parameter.
        updates: The optimizer updates that a run applies after the model; their inputs are those
            of the subgraph, without weights.
    """

    model: ov.Model
    shapes: list[list[int]]
    guards: Sequence[int]
    parameters: list[int]
    draws: Sequence[Draw]
    positions: Sequence[int]
    updates: Sequence[Update]
    conditions: Sequence[Guard] = ()

    def serves(self, given: Sequence[Shape]) -> bool:
        """Whether the variant of a function is valid for inputs of these shapes."""
        rows, hints = _with_symbols(given)
        return rows == self.shapes and all(guard.holds(hints) for guard in self.conditions)

    def results(
        self, signature: Signature, num_outputs: int, states: Sequence[Shape]
    ) -> list[Shape]:
        """The shapes of outputs, then of the new values of states.

        Args:
            signature: The signature of all inputs of the graph.
            num_outputs: The number of outputs.
            states: The shapes of the states; a state that an optimizer update writes keeps its
                shape.
        """
        written = {state for update in self.updates for state in update.states}
        made = iter(self._computed(signature))
        outputs = [next(made) for _ in range(num_outputs)]
        new = [shape if number in written else next(made) for number, shape in enumerate(states)]
        return outputs + new

    def _computed(self, signature: Signature) -> list[Shape]:
        if not any(size < 0 for shape in self.shapes for size in shape):
            return [_shape_of(output) for output in self.model.outputs]
        static = self.model.clone()
        parameters = static.get_parameters()
        shapes = [list(signature[position][1]) for position in self.positions]
        static.reshape({p.output(0): shape for p, shape in zip(parameters, shapes)})
        return [
            tuple(
                DimensionSize(int(size), dim.is_dynamic)
                for size, dim in zip(_known_shape(at_hints), output.get_partial_shape())
            )
            for at_hints, output in zip(static.outputs, self.model.outputs)
        ]


def variants_of(
    program: CppProgram, sets: Sequence[Shapes] | None, weights: Callable[[str], np.ndarray]
) -> list[list[Variant]]:
    """Builds the functions of every subgraph.

    Args:
        program: The program.
        sets: Sets of shapes of the feeds, by name; -1 for dynamic dimensions. ``None``: all
            declared dynamic dimensions stay dynamic, and batches of one, a special case, get
            separate functions if possible.
        weights: Returns the value of a parameter.

    Raises:
        NgraphError: A function cannot be built, or only for other sizes than requested.
    """
    found: list[list[Variant]] = [[] for _ in program.intervals]
    declared = {feed.name: list(feed.target.shape) for feed in program.feeds}
    requested = [declared] if sets is None else list(sets)
    for given in requested:
        _propagate(program, given, weights, found)
    single = _batch_of_one(declared)
    if sets is None and single != declared:
        with suppress(NgraphError):
            _propagate(program, single, weights, found)
        requested.append(single)
    more: list[dict[str, Any]] = [{"hints": _SMALL_SIZE_HINTS}]
    if program.kernel_calls:
        more.append({"single": True})
    for given, options in itertools.product(requested, more):
        # A program may be invalid for some sizes: it gets no function for these.
        with suppress(NgraphError):
            _ShapePropagation(program, given, weights, found, **options).block(program.blocks[0])
    for interval, variants in zip(program.intervals, found):
        if not variants:
            raise NgraphError(
                f"interval {interval.number} ({interval.description}) is never reached"
            )
    return found


def _propagate(
    program: CppProgram,
    given: Shapes,
    weights: Callable[[str], np.ndarray],
    found: list[list[Variant]],
) -> None:
    try:
        _ShapePropagation(program, given, weights, found).block(program.blocks[0])
    except NgraphError:
        if not program.kernel_calls:
            raise
        # Tries again with one symbolic size for the selections of all masks: a mask that the
        # program computes twice selects equally many elements each time.
        try:
            _ShapePropagation(program, given, weights, found, one_count=True).block(
                program.blocks[0]
            )
            return
        except NgraphError:
            pass
        raise


def _batch_of_one(declared: Shapes) -> dict[str, list[int]]:
    return {n: [1, *s[1:]] if s[:1] == [-1] else list(s) for n, s in declared.items()}


class _ShapePropagation:
    """Propagates shapes through the program in execution order, and builds the functions.

    Of data-dependent sizes, those that one tensor determines are assumed equal; with ``one_count``,
    all of them are. With ``single``, they are assumed to be 1.
    """

    def __init__(
        self,
        program: CppProgram,
        sets: Shapes,
        weights: Callable[[str], np.ndarray],
        found: list[list[Variant]],
        hints: tuple[int, ...] = _SIZE_HINTS,
        single: bool = False,
        one_count: bool = False,
    ) -> None:
        self._program = program
        self._hints = hints
        self._numbers = itertools.count(hints[-1] + _HINT_STEPS[hints], _HINT_STEPS[hints])
        self._single = single
        self._one_count = one_count
        self._counted: dict[tuple[Any, ...], DimensionSize] = {}
        self._sets = sets
        self._weights = weights
        self._found = found
        self._shapes: dict[CppVariable, Shape] = {}
        self._stacks: dict[CppVariable, list[list[Shape]]] = {}

    def block(self, block: CppBlock) -> list[Shape]:
        """Propagates shapes through a block; returns those of the values that it yields."""
        for statement in block.statements:
            if isinstance(statement, statements.Yield):
                return self._of(statement.values)
            self._statement(statement)
        return []

    def _of(self, variables: Sequence[CppVariable]) -> list[Shape]:
        return [self._shapes[variable] for variable in variables]

    def _set(self, variables: Sequence[CppVariable], shapes: Sequence[Shape]) -> None:
        self._shapes.update(zip(variables, shapes))

    def _statement(self, statement: statements.Statement) -> None:
        if isinstance(statement, statements.Feed):
            shape = self._sets[statement.name]
            self._shapes[statement.target] = tuple(
                DimensionSize(self._hints[axis], True) if size < 0 else DimensionSize(size)
                for axis, size in enumerate(shape)
            )
        elif isinstance(statement, statements.PersistentVariable):
            shape = statement.target.shape
            self._shapes[statement.target] = tuple(DimensionSize(size) for size in shape)
        elif isinstance(statement, statements.Compute):
            self._shapes[statement.target] = self._computed(statement)
        elif isinstance(statement, statements.KernelCall):
            self._kernel_call(statement)
        elif isinstance(statement, statements.EngineCall):
            self._interval(statement)
        elif isinstance(statement, statements.While):
            self._while(statement)
        elif isinstance(statement, statements.If):
            self._if(statement)
        elif isinstance(statement, statements.MakeStack):
            self._stacks[statement.target] = []
        elif isinstance(statement, statements.Push):
            self._stacks[statement.stack].append(self._of(statement.values))
        elif isinstance(statement, statements.Pop):
            self._set(statement.results, self._stacks[statement.stack][-1])
        elif isinstance(statement, statements.HasElements):
            self._shapes[statement.target] = (DimensionSize(1),)

    def _computed(self, statement: statements.Compute) -> Shape:
        if not statement.operands:
            return tuple(DimensionSize(size) for size in statement.target.shape)
        shapes = self._of(statement.operands)
        # Operand 1 of ``scale``, the factor, has one element, and any shape.
        if statement.operator == "scale":
            return shapes[0]
        result = max(shapes, key=lambda shape: (_count(shape), len(shape)))
        if any(shape != result and _count(shape) != 1 for shape in shapes):
            given = " and ".join(str([size.hint for size in shape]) for shape in shapes)
            raise NgraphError(
                f"{statement.description} is not supported in C++: its operands have the shapes "
                f"{given}, and operators that fall back need equal shapes, or one element"
            )
        return result

    def _kernel_call(self, call: KernelCall) -> None:
        given = [self._of(members) for members in call.operands]
        try:
            at_hints = kernels.inferred(call.op, [[_hints_of(s) for s in row] for row in given])
        except NgraphError as error:
            raise NgraphError(f"{call.description} rejects its operands: {error}") from error
        try:
            dynamic = kernels.inferred(call.op, [[_dynamic_shape(s) for s in row] for row in given])
        except NgraphError:
            # Only a run shows whether the kernel accepts dynamic sizes: the declared shapes are
            # used.
            dynamic = [result.shape for result in call.results]
        for number, result in enumerate(call.results):
            self._shapes[result] = tuple(
                DimensionSize(size, dynamic_size < 0)
                if size >= 0
                else self._data_dependent_size(call, number, axis)
                for axis, (size, dynamic_size) in enumerate(zip(at_hints[number], dynamic[number]))
            )

    def _data_dependent_size(self, call: KernelCall, number: int, axis: int) -> DimensionSize:
        """The symbolic size of a data-dependent dimension: results of the same data share one."""
        if self._single:
            return DimensionSize(1)
        what, operands = kernels.data_dependent_sizes(call.op)
        key = (what, *(tuple(call.operands[operand]) for operand in operands), number, axis)
        if self._one_count:
            key = ()
        if key not in self._counted:
            self._counted[key] = DimensionSize(next(self._numbers), True)
        return self._counted[key]

    def _while(self, loop: statements.While) -> None:
        starts = self._of(loop.initial_values)
        self._set(loop.body.arguments, starts)
        _, *ends = self.block(loop.body)
        for variable, start, end in zip(loop.body.arguments, starts, ends):
            if start != end:
                raise NgraphError(
                    f"a loop (block {loop.body.number}) changes the shape of {variable.name}: "
                    "that is not supported in C++"
                )
        self._set(loop.results, ends)

    def _if(self, statement: statements.If) -> None:
        first, second = (self.block(branch) for branch in statement.branches)
        if first != second:
            raise NgraphError(
                f"the two branches of block {statement.branches[0].number} return different "
                "shapes: that is not supported in C++"
            )
        self._set(statement.results, first)

    def _interval(self, interval: EngineCall) -> None:
        given = self._of([*interval.inputs, *interval.states])
        constants = {position: self._weights(name) for position, name in interval.weights.items()}
        signature = _signature(interval, given, constants)
        variants = self._found[interval.number]
        variant = next((v for v in variants if v.serves(given)), None)
        if variant is None:
            variant = _built(interval, given, signature, constants)
            variants.append(variant)
        outputs = len(interval.outputs)
        results = variant.results(signature, outputs, given[len(interval.inputs) :])
        self._set(interval.outputs, results[:outputs])
        self._set(interval.states, results[outputs:])


def _with_symbols(shapes: Sequence[Shape]) -> tuple[list[list[int]], dict[int, int]]:
    """Shapes in which ``-1 - index`` of a symbol replaces a dynamic size; and the symbols' hints.

    Sizes with equal hints share a symbol.
    """
    numbers: dict[int, int] = {}
    rows = [
        [-1 - numbers.setdefault(s.hint, len(numbers)) if s.is_dynamic else s.hint for s in shape]
        for shape in shapes
    ]
    return rows, {number: hint for hint, number in numbers.items()}


def _signature(
    interval: EngineCall, given: Sequence[Shape], constants: Mapping[int, np.ndarray]
) -> Signature:
    """The signature of a function: element types and shapes of all inputs, including weights."""
    shapes = [tuple(size.hint for size in shape) for shape in given]
    for position in sorted(constants):
        shapes.insert(position, constants[position].shape)
    specs = [*interval.graph.inputs, *interval.graph.states]
    return tuple((DTYPES[spec.dtype].element, shape) for spec, shape in zip(specs, shapes))


def _built(
    interval: EngineCall,
    given: Sequence[Shape],
    signature: Signature,
    constants: Mapping[int, np.ndarray],
) -> Variant:
    description = f"interval {interval.number} ({interval.description})"
    if interval.graph.value_inputs:
        raise NgraphError(
            f"{description} reads the contents of an input while it is built, such as a shape"
        )
    views = {position: array.data.cast("B") for position, array in constants.items()}
    rows, hints = _with_symbols(given)
    if hints:
        return _dynamic_variant(interval, rows, hints, signature, views)
    with signals.recognized_signals():
        try:
            builder = FunctionBuilder(interval.graph, signature)
            draft = build.make_model(builder, views, RunSettings())
        except (ConversionError, ValueError, RuntimeError) as error:
            signals.raise_if_from_outside(error)
            raise NgraphError(
                f"{description} cannot be built: {error}{_overflow_advice(error)}"
            ) from error
    return _variant(interval, draft, rows)


def _overflow_advice(error: Exception) -> str:
    """Advice for an int32 overflow that would be checked in a run; empty for other errors."""
    is_checked = isinstance(error, ConversionError) and error.op.checked
    if is_checked and outcome(error)[0] == ErrorCode.INT32_OVERFLOW:
        return "; give --wide-integers (wide_integers=True)"
    return ""


def _indices_without_weights(positions: Sequence[int], interval: EngineCall) -> list[int]:
    """Converts indices of inputs to indices in the list of inputs without the weights."""
    return [
        position - sum(weight < position for weight in interval.weights) for position in positions
    ]


def _dynamic_variant(
    interval: EngineCall,
    rows: list[list[int]],
    hints: Mapping[int, int],
    signature: Signature,
    weights: Mapping[int, memoryview],
) -> Variant:
    classes: list[list[int | None]] = [
        [-1 - size if size < 0 else None for size in shape] for shape in rows
    ]
    for position in sorted(weights):
        classes.insert(position, [None] * len(signature[position][1]))
    opening = SymbolicDims(signature, classes)
    description = f"interval {interval.number} ({interval.description})"
    with signals.own_errors():
        try:
            draft = build.model_with(opening, interval.text, signature, weights, RunSettings())
            found = dynamic_shapes.dynamic_model_of(opening, draft)
        except Exception as error:
            # Catches errors of OpenVINO, too: with static shapes, the build may succeed.
            reason = str(error).strip().partition("\n")[0] or "it has an empty tensor"
            remedy = _overflow_advice(error) or "; give shapes"
            raise NgraphError(f"{description} needs static shapes: {reason}{remedy}") from error
    fixed = sorted(opening.guards.fixed())
    if found is None or fixed:
        sizes = " and ".join(str(hints[number]) for number in fixed)
        raise NgraphError(
            f"{description} has operators that need static shapes: it would be valid for {sizes} "
            "only; give shapes"
        )
    return _variant(interval, draft, rows, found.guards, opening.guards.remaining())


def _variant(
    interval: EngineCall,
    draft: Draft,
    rows: list[list[int]],
    guards: Sequence[int] = (),
    conditions: Sequence[Guard] = (),
) -> Variant:
    for model in draft.models():
        _reject_empty(interval, model)

    # Indices of inputs shift, since weights are no inputs any more. A negative source stands for a
    # result of the model, and is not changed.
    def without(sources: Sequence[int]) -> list[int]:
        return [_indices_without_weights([n], interval)[0] if n >= 0 else n for n in sources]

    updates = [
        Update(
            *update[:3],
            gradients=without(update.gradients),
            factors=without(update.factors),
            parameters=without(update.parameters),
        )
        for update in draft.updates
    ]
    parameters, draws = (
        _indices_without_weights(draft.positions, interval),
        draft.builder.inputs.draws,
    )
    return Variant(
        draft.model, rows, guards, parameters, draws, draft.positions, updates, conditions
    )


def _reject_empty(interval: EngineCall, model: ov.Model) -> None:
    """Rejects empty tensors, which core/ov/empty_tensors.cc would reject in a run."""
    for node in model.get_ops():
        if node.get_type_name() in ("Constant", "Result"):
            continue
        if any(size == 0 for output in node.outputs() for size in output.get_partial_shape()):
            raise NgraphError(
                f"interval {interval.number} ({interval.description}) computes an empty tensor for "
                f"these shapes ({node.get_type_name()}): that is not supported in C++; give other "
                "shapes"
            )


def _hints_of(shape: Shape) -> list[int]:
    return [size.hint for size in shape]


def _dynamic_shape(shape: Shape) -> list[int]:
    return [-1 if size.is_dynamic else size.hint for size in shape]


def _count(shape: Shape) -> int:
    return math.prod(size.hint for size in shape)


def _shape_of(output: Any) -> Shape:
    return tuple(DimensionSize(int(size)) for size in _known_shape(output))


def _known_shape(output: Any) -> Any:
    if output.get_partial_shape().is_dynamic:
        raise NgraphError(
            "a loop appends to a loop-carried value, and the number of iterations is known in a "
            "run only: that is not supported in C++"
        )
    return output.get_shape()


# -- files -----------------------------------------------------------------------------------------


@dataclass
class Constants:
    """One file for the constants of many models, with equal constants stored once.

    Equal constants within one model stay separate: the plugin packs the memory of a constant for
    its readers, and confuses readers with different packed layouts.
    """

    path: Path
    _offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, model: ov.Model, description: Path) -> None:
        """Saves ``model`` as ``description``, with its constants in the file of all models."""
        with tempfile.TemporaryDirectory(dir=description.parent) as folder:
            own = Path(folder) / "model.xml"
            ov.save_model(model, own, compress_to_fp16=False)
            tree = ElementTree.parse(own)
            contents = own.with_suffix(".bin").read_bytes()
        met: Counter[str] = Counter()
        with self.path.open("ab") as file:
            for layer in tree.iter("layer"):
                data = layer.find("data")
                if layer.get("type") == "Const" and data is not None:
                    begin, size = int(data.attrib["offset"]), int(data.attrib["size"])
                    offset = self._offset_of(contents[begin : begin + size], met, file)
                    data.set("offset", str(offset))
        tree.write(description, encoding="utf-8", xml_declaration=True)

    def _offset_of(self, content: bytes, met: Counter[str], file: Any) -> int:
        digest = hashlib.sha256(content).hexdigest()
        key = (digest, met[digest])
        met[digest] += 1
        if key not in self._offsets:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            self._offsets[key] = file.tell()
            file.write(content)
        return self._offsets[key]
