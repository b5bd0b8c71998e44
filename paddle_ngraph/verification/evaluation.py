"""Evaluation of a graph, operator by operator, with Paddle's kernels: as declared, or in float64.

Unlike a fallback program, an evaluation yields the results of every operator, and can add noise to
them. Loops and branches are evaluated here, so that noise reaches the operators in them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import paddle

from paddle_ngraph import _core
from paddle_ngraph.conversion.registry import Role, find_converter
from paddle_ngraph.conversion.tensor_arrays import APPEND
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import BFLOAT16, FallbackForm, Graph, Op, TensorSpec, function_type
from paddle_ngraph.paddle_private.names import (
    DenseTensor,
    copy_of,
    dtype_of,
    kernel_name,
    phi_kernels,
    tensor_of_array,
)
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.partitioning.analysis.block_view import (
    CAPTURED,
    COND,
    CONSTANTS,
    INITIAL_VALUES,
    OUT,
    WHILE,
    dtype_name,
)
from paddle_ngraph.partitioning.fallback import FallbackProgram, lacks_kernel
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.dtypes import ARRAY_SUFFIX
from paddle_ngraph.utils.once import once
from paddle_ngraph.verification.judgement import BFLOAT16 as BFLOAT16_ROUNDING
from paddle_ngraph.verification.judgement import COMPRESSED, FLOAT32, SAMPLES, Rounding

# Tensors by id; a TensorArray is a list of them.
Values = dict[int, Any]
T = TypeVar("T")
# A computation that can be continued later, wherever it yields.
Steps = Generator[None, None, T]
# The random generator before each stochastic operator, by Op.id.
Streams = Mapping[int, _core.RandomState]

_FLOATS = frozenset({"float32", "bfloat16", "float16"})
_NARROW = _FLOATS - {"float32"}

# Types of operators, without the suffixes ``_`` and ``_grad``, whose results contain elements of
# their operands, unchanged or with another sign: they round nothing, and get no noise, so that ties
# and zeros stay exact. Converters that only move elements (``moves``) add to these.
_EXACT = frozenset(
    f"pd_op.{name}"
    for name in (
        *("abs", "amax", "amin", "argmax", "argmin", "argsort", "ceil", "channel_shuffle", "clip"),
        *("cummax", "cummin", "diag", "diag_embed", "equal", "floor", "fmax", "fmin"),
        *("fractional_max_pool2d", "fractional_max_pool3d", "full_like", "greater_equal"),
        *("greater_than", "isfinite", "isinf", "isnan", "kthvalue", "less_equal", "less_than"),
        *("max", "max_pool2d_with_index", "max_pool3d_with_index", "maximum", "maxout", "min"),
        *("minimum", "mode", "not_equal", "one_hot", "pad", "pad3d", "pixel_shuffle"),
        *("pixel_unshuffle", "relu", "relu6", "round", "scatter", "set_value", "sign"),
        *("temporal_shift", "topk", "tril", "triu", "trunc", "unfold", "unique", "unpool"),
    )
)

# Types, without these suffixes, whose results are sums of terms that may cancel: of operands, or of
# products of them.
_SUMS = frozenset(
    f"pd_op.{name}"
    for name in (
        *("add", "add_n", "addmm", "baddbmm", "bmm", "conv2d", "conv2d_transpose", "conv3d"),
        *("cumsum", "depthwise_conv2d", "dot", "fused_gemm_epilogue", "linear", "matmul", "mean"),
        *("mean_all", "mv", "reduce_as", "subtract", "sum", "trace"),
    )
)

# Types, without these suffixes, whose results are zero where operands are, or change their sign at
# a pole: no noise takes them through a zero of their own.
_PROPORTIONAL = frozenset(
    f"pd_op.{name}"
    for name in (
        *("cast", "divide", "multiply", "pow", "prod", "reciprocal", "rsqrt", "sqrt", "square"),
        *("elementwise_pow", "tan"),
    )
)


def finished(steps: Steps[T]) -> T:
    """The result of a computation, without pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)


def array_of(tensor: Tensor) -> np.ndarray:
    """The elements of a tensor; those of bfloat16 as float32."""
    array = np.array(tensor)
    if dtype_name(dtype_of(tensor)) != BFLOAT16:
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def tensor_of(array: np.ndarray, dtype: str) -> Tensor:
    """A tensor of a dtype with the elements of an array, rounded to nearest even in bfloat16."""
    if dtype == BFLOAT16:
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        array = np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)
        return tensor_of_array(array.reshape(np.shape(array)), paddle.CPUPlace())
    return tensor_of_array(np.asarray(array, dtype), paddle.CPUPlace())


def rounding_of(
    dtypes: Iterable[str], precision: str = "f32", weight_format: str = "as given"
) -> Rounding:
    """The rounding of results of these dtypes, with these settings of :class:`RunSettings`."""
    if weight_format in COMPRESSED:
        return COMPRESSED[weight_format]
    is_rounded = precision != "f32" or not {"bfloat16", "float16"}.isdisjoint(dtypes)
    return BFLOAT16_ROUNDING if is_rounded else FLOAT32


def draws(op: Op) -> bool:
    """Whether an operator samples random numbers."""
    entry = find_converter(op.type)
    return entry is not None and entry.draws(op)


def workspaces(graph: Graph) -> set[int]:
    """The tensors of a graph without contents, whose sizes mean nothing."""
    found: set[int] = set()
    for op in graph.ops:
        entry = find_converter(op.type)
        for name in entry.named(Role.WORKSPACE) if entry is not None else ():
            found.update(spec.id for spec in op.outputs.get(name, ()) if spec is not None)
    return found


def rounds(op: Op) -> bool:
    """Whether results of an operator are rounded, unlike moved or selected elements."""
    entry = find_converter(op.type)
    base = function_type(op.type)
    moves = entry is not None and entry.moves
    # Maximum pooling; its gradient compares elements with the maximum.
    selects = base in _EXACT or op.attr("pooling_type") == "max"
    return not moves and not selects and op.type not in CONSTANTS


def in_float64(op: Op) -> Op:
    """The operator with float64 in place of its float dtypes."""

    def widened(spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype="float64") if spec.dtype in _FLOATS else spec

    def all_widened(tensors: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        return {
            name: tuple(None if spec is None else widened(spec) for spec in specs)
            for name, specs in tensors.items()
        }

    attrs = {
        n: "float64" if isinstance(v, str) and v in _FLOATS else v for n, v in op.attrs.items()
    }
    if op.type in CONSTANTS and attrs != op.attrs and "value" in attrs:
        attrs["value"] = float(np.float32(attrs["value"]))
    form = op.form and replace(
        op.form, unused=all_widened(op.form.unused), results=all_widened(op.form.results)
    )
    return replace(
        op, inputs=all_widened(op.inputs), outputs=all_widened(op.outputs), attrs=attrs, form=form
    )


def has_float64_kernel(op: Op) -> bool:
    """Whether Paddle has a CPU kernel of the operator for float64, or none for any float."""
    found = _kernel_dtypes().get(kernel_name(op.type.removeprefix("pd_op.").removesuffix("_")))
    return found is None or "float64" in found or not found & _FLOATS


@once
def _kernel_dtypes() -> dict[str, set[str]]:
    """The dtypes of Paddle's own CPU kernels, by kernel name."""
    return {
        name: {each.rstrip(")").rpartition(", ")[2] for each in kernels if each.startswith("(CPU,")}
        for name, kernels in phi_kernels("all").items()
    }


@dataclass
class _Step:
    """An operator as a program of its own, with the constants that it reads."""

    program: FallbackProgram
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    copies: bool
    is_widened: bool


class ReferenceProgram:
    """A graph as one program, for its results only: faster than :class:`Evaluation`.

    Args:
        graph: The graph.
        is_noisy: Whether the program is in float32, and multiplies the results of operators that
            round by a number near 1; otherwise it is in float64.

    Raises:
        NgraphError: An operator has no kernel for float64, or operators in a body.
    """

    def __init__(self, graph: Graph, is_noisy: bool = False) -> None:
        for op in graph.ops:
            has_kernel = is_noisy or has_float64_kernel(op)
            if op.blocks or _is_on_array(op) or _unwritten(op) or not has_kernel:
                raise NgraphError(f"{op.type} has no such program")
        ops = list(graph.ops) if is_noisy else [in_float64(op) for op in graph.ops]
        declared, given = _declared(ops), [*graph.inputs, *graph.states]
        outputs = [declared.get(s.id, s) for s in (*graph.outputs, *graph.state_outputs)]
        self._results = [spec.id for spec in outputs]
        self._is_copied = [index >= len(graph.inputs) for index in range(len(given))]
        number = itertools.count(
            1 + max((spec.id for op in ops for spec in specs_of(op)), default=0)
        )
        self._factors: list[TensorSpec] = []
        if is_noisy:
            ops, self._factors, outputs = _with_noise(ops, outputs, number)
        self._given, casts = [], []
        for spec in given:
            wide = declared.get(spec.id, spec)
            source = spec if wide.dtype == spec.dtype else replace(spec, id=next(number))
            self._given.append(source)
            if source is not spec:
                casts.append(_op("pd_op.cast", {"x": (source,)}, wide, dtype=wide.dtype))
        reference = replace(
            graph,
            ops=[*casts, *ops],
            inputs=[*self._factors, *self._given],
            states=[],
            outputs=outputs,
            state_outputs=[],
        )
        self._program = FallbackProgram(reference, [spec.dtype for spec in reference.inputs])

    def run(self, given: Sequence[Tensor], noise: Noise | None = None) -> Values:
        """The results of the graph, by tensor id; see :meth:`Evaluation.run`."""
        inputs = []
        for tensor, spec, is_copied in zip(given, self._given, self._is_copied):
            if spec.dtype != dtype_name(dtype_of(tensor)):
                tensor = tensor_of(array_of(tensor), spec.dtype)
            elif is_copied:  # operators in place may write it
                tensor = copy_of(tensor, paddle.CPUPlace())
            inputs.append(tensor)
        one = np.array(1.0)
        factors = [
            tensor_of(one if noise is None else noise.added(one), "float32") for _ in self._factors
        ]
        outputs = [DenseTensor() for _ in self._results]
        self._program.run([*factors, *inputs], [], outputs)
        return dict(zip(self._results, outputs))


def _op(
    type: str, operands: Mapping[str, tuple[TensorSpec, ...]], out: TensorSpec, **attrs: str
) -> Op:
    """An operator with one result, and dtypes as attributes."""
    form = FallbackForm(dict.fromkeys(attrs, "dtype"), results={"out": (out,)})
    return Op(type, 0, dict(operands), {"out": (out,)}, dict(attrs), form=form)


def _with_noise(
    ops: Sequence[Op], outputs: Sequence[TensorSpec], number: Iterator[int]
) -> tuple[list[Op], list[TensorSpec], list[TensorSpec]]:
    """Operators with noise; also the factors that they read, and the new tensors of ``outputs``."""
    noisy: list[Op] = []
    factors: list[TensorSpec] = []
    renamed: dict[int, TensorSpec] = {}
    read = {spec.id for op in ops for spec in read_by(op)} | {spec.id for spec in outputs}
    for op in ops:
        noisy.append(_reading(op, renamed))
        if op.type.endswith("_") or not rounds(op):
            continue
        for spec in results_of(op):
            if spec.dtype != "float32" or spec.id not in read:
                continue
            factors.append(TensorSpec(next(number), "float32", ()))
            renamed[spec.id] = replace(spec, id=next(number))
            operands = {"x": (spec,), "y": (factors[-1],)}
            noisy.append(_op("pd_op.multiply", operands, renamed[spec.id]))
    return noisy, factors, [renamed.get(spec.id, spec) for spec in outputs]


def _reading(op: Op, renamed: Mapping[int, TensorSpec]) -> Op:
    """The operator with other operands."""

    def changed(side: Mapping[str, tuple[TensorSpec, ...]]) -> dict[str, tuple[TensorSpec, ...]]:
        return {n: tuple(renamed.get(spec.id, spec) for spec in found) for n, found in side.items()}

    form = op.form and replace(op.form, unused=changed(op.form.unused))
    return replace(op, inputs=changed(op.inputs), form=form)


class Evaluation:
    """Evaluates a graph, any number of times.

    Args:
        graph: The graph.
        widens: Whether in float64; operators without a kernel for it run as declared. Otherwise
            only operators run in float64 that have no kernel for bfloat16.
    """

    def __init__(self, graph: Graph, widens: bool) -> None:
        self.graph = graph
        self._widens = widens
        self._steps: dict[int, _Step] = {}
        self._around: dict[int, tuple[set[int], dict[int, Op]]] = {}  # by id of the graph
        # The random generator before each stochastic operator, by Op.id.
        self.streams: dict[int, _core.RandomState] = {}
        self._own_errors: dict[int, float] = {}  # by Op.id

    def run(
        self,
        given: Sequence[Tensor],
        streams: Streams | None = None,
        noise: Noise | None = None,
    ) -> Values:
        """Returns the results of all operators that are read, by tensor id.

        Args:
            given: Inputs and states, as declared. None is written.
            streams: The random generator for each stochastic operator; by default, each continues
                with the generator as it is, and :attr:`streams` records it.
            noise: Rounding errors to add.
        """
        return finished(self.steps(given, streams, noise))

    def steps(
        self, given: Sequence[Tensor], streams: Streams | None, noise: Noise | None
    ) -> Steps[Values]:
        """As :meth:`run`, with a pause after each operator."""
        self.graph.set_op_ids()  # other graphs may share its operators
        sources = [*self.graph.inputs, *self.graph.states]
        values = {spec.id: self._given(tensor) for spec, tensor in zip(sources, given)}
        yield from self._run_block(self.graph, values, streams, noise)
        return values

    def _given(self, tensor: Tensor) -> Tensor:
        dtype = dtype_name(dtype_of(tensor))
        return tensor_of(array_of(tensor), "float64") if self._is_widened(dtype) else tensor

    def _is_widened(self, dtype: str) -> bool:
        return self._widens and dtype in _FLOATS

    def _run_block(
        self,
        graph: Graph,
        values: Values,
        streams: Streams | None,
        noise: Noise | None,
    ) -> Steps[None]:
        for op in graph.ops:
            if op.blocks:
                results = yield from self._run_region(op, values, streams, noise)
            elif _is_on_array(op):
                results = _run_on_array(op, values)
            else:
                results = self._run_op(graph, op, values, streams, noise)
            values.update(results)
            yield

    def _run_region(self, op: Op, values: Values, streams: Any, noise: Any) -> Steps[Values]:
        def run(block: Graph, args: list[Tensor]) -> Steps[list[Tensor]]:
            inner = dict(zip((spec.id for spec in block.inputs), args))
            yield from self._run_block(block, inner, streams, noise)
            return [inner[spec.id] for spec in block.outputs]

        captured = [values[spec.id] for spec in op.inputs[CAPTURED]]
        condition = bool(np.all(array_of(values[op.inputs[COND][0].id])))
        if op.type == WHILE:
            found = [values[spec.id] for spec in op.inputs[INITIAL_VALUES]]
            while condition:
                first, *found = yield from run(op.blocks[0], [*found, *captured])
                condition = bool(np.all(array_of(first)))
        else:
            found = yield from run(op.blocks[0 if condition else 1], captured)
        assert op.form is not None
        return dict(zip((spec.id for spec in op.form.results[OUT]), found))

    def _run_op(
        self, graph: Graph, op: Op, values: Values, streams: Any, noise: Noise | None
    ) -> Values:
        step = self._steps.get(op.id) or self._steps.setdefault(op.id, self._step(graph, op))
        with signals.own_errors():
            try:
                return self._run_step(graph, op, step, values, streams, noise)
            except Exception:
                if not step.is_widened:
                    raise
        # A kernel that is registered for float64, but rejects it.
        step = self._steps[op.id] = self._step(graph, op, may_widen=False)
        return self._run_step(graph, op, step, values, streams, noise)

    def _run_step(
        self, graph: Graph, op: Op, step: _Step, values: Values, streams: Any, noise: Noise | None
    ) -> Values:
        if not step.outputs:
            return {}
        if draws(op):
            if streams is not None:
                streams[op.id].restore()
            else:
                self.streams[op.id] = _core.RandomState()
        noise = noise if noise is not None and rounds(op) else None
        if noise is not None and op.id not in self._own_errors:
            self._own_errors[op.id] = self._own_error(graph, op, step, values)
        results, unwritten = self._results(step, values, noise), _unwritten(op)
        magnitudes = self._magnitudes(op, step, values, results) if noise is not None else {}
        operands = [values[spec.id] for spec in step.inputs]
        if step.is_widened and not self._widens:
            declared = {spec.id: spec.dtype for spec in results_of(op)}
            results = [
                tensor_of(array_of(tensor), declared[spec.id])
                for spec, tensor in zip(step.outputs, results)
            ]
        return {
            spec.id: values[unwritten[spec.id]]
            if spec.id in unwritten
            else self._result(op, spec, tensor, noise, operands, magnitudes.get(spec.id))
            for spec, tensor in zip(step.outputs, results)
        }

    def _magnitudes(
        self, op: Op, step: _Step, values: Values, results: Sequence[Tensor]
    ) -> dict[int, np.ndarray]:
        """The sums of the absolute terms of each element, of operators that compute sums."""
        type = function_type(op.type)
        if type == "pd_op.scale" and op.attr("bias", 0.0):
            bias = 2 * abs(op.attr("bias"))
            return {s.id: np.abs(array_of(r)) + bias for s, r in zip(step.outputs, results)}
        if type not in _SUMS or not step.is_widened:
            return {}
        absolute = dict(values)
        for spec in step.inputs:
            tensor = values[spec.id]
            if dtype_name(dtype_of(tensor)) in _FLOATS | {"float64"}:
                array = np.nan_to_num(np.abs(array_of(tensor)), posinf=0.0)
                absolute[spec.id] = tensor_of(array, "float64")
        if type == "pd_op.subtract":
            y = op.input("y").id
            absolute[y] = tensor_of(-array_of(absolute[y]), "float64")
        sums = self._results(step, absolute, None)
        return {spec.id: np.abs(array_of(tensor)) for spec, tensor in zip(step.outputs, sums)}

    def _results(self, step: _Step, values: Values, noise: Noise | None) -> list[Tensor]:
        given = [self._fitted(values[spec.id], spec, noise, step.copies) for spec in step.inputs]
        results = [DenseTensor() for _ in step.outputs]
        step.program.run(given, [], results)
        return results

    def _own_error(self, graph: Graph, op: Op, step: _Step, values: Values) -> float:
        """The largest error of the operator in float32 on exact operands, relative to the operands.

        It exceeds the error of a rounding where the operator subtracts inside, as ``tanh_shrink``.
        """
        if not step.is_widened or draws(op) or _NARROW & {spec.dtype for spec in specs_of(op)}:
            return 0.0
        declared = self._step(graph, op, may_widen=False)
        rounded = {
            spec.id: self._fitted(values[spec.id], spec, None, True) for spec in declared.inputs
        }
        narrow, wide = (self._results(each, rounded, None) for each in (declared, step))
        errors = [
            _relative_error(array_of(a), array_of(b), rounded.values())
            for a, b in zip(narrow, wide)
        ]
        return max(errors, default=0.0)

    def _fitted(
        self, tensor: Tensor, spec: TensorSpec, noise: Noise | None, copies: bool
    ) -> Tensor:
        """An operand, of the dtype that the operator reads, with noise."""
        dtype = dtype_name(dtype_of(tensor))
        # Kernels return some saved values in another dtype than Paddle declares.
        is_float = {dtype, spec.dtype} <= _FLOATS | {"float64"}
        if not is_float or (dtype == spec.dtype and not (noise and dtype == "float64")):
            return copy_of(tensor, paddle.CPUPlace()) if copies else tensor
        array = array_of(tensor)
        return tensor_of(array if noise is None else noise.added(array), spec.dtype)

    def _result(
        self,
        op: Op,
        spec: TensorSpec,
        tensor: Tensor,
        noise: Noise | None,
        operands: Iterable[Tensor],
        magnitude: np.ndarray | None,
    ) -> Tensor:
        if self._is_widened(dtype_name(dtype_of(tensor))):
            tensor = tensor_of(array_of(tensor), "float64")
        if noise is None or dtype_name(dtype_of(tensor)) != "float64":
            return tensor
        array, own_error = array_of(tensor), self._own_errors.get(op.id, 0.0)
        own: np.ndarray | float = 2 * own_error * _size(array, operands) if own_error else 0.0
        if magnitude is not None:
            own = np.fmax(own, noise.size * magnitude)
        array = noise.added(array, own)
        if _passes_zero(op):
            array = noise.near_zero(spec.id, array, magnitude)
        return tensor_of(array, "float64")

    def _step(self, graph: Graph, op: Op, may_widen: bool = True) -> _Step:
        around = self._around.get(id(graph))
        if around is None:
            around = self._around[id(graph)] = _read_later(graph), _constants(graph)
        alone = alone_in(op, *around)
        widens = self._widens or lacks_kernel(op)
        is_widened = widens and may_widen and has_float64_kernel(op)
        ops = [in_float64(each) if is_widened else each for each in alone.ops]
        declared = _declared(ops)
        inputs = [declared.get(spec.id, spec) for spec in alone.inputs]
        outputs = [declared.get(spec.id, spec) for spec in alone.outputs]
        single = replace(alone, ops=ops, inputs=inputs, outputs=outputs)
        program = FallbackProgram(single, [spec.dtype for spec in inputs])
        return _Step(program, inputs, outputs, op.type.endswith("_"), is_widened)


def _passes_zero(op: Op) -> bool:
    """Whether noise of operands that are not zero may take results through zero."""
    base = function_type(op.type)
    return base not in _PROPORTIONAL and (base != "pd_op.scale" or bool(op.attr("bias", 0.0)))


def _unwritten(op: Op) -> dict[int, int]:
    """The results in place that the operator leaves as they are, which Paddle declares as empty.

    Returns the id of the operand for each.
    """
    return {
        spec.id: op.input(name.removesuffix("_out")).id
        for name, specs in (op.form.results if op.form else {}).items()
        for spec in specs
        if spec.shape == (0,) and name.endswith("_out") and op.has_input(name.removesuffix("_out"))
    }


def _is_on_array(op: Op) -> bool:
    return not op.blocks and any(spec.dtype.endswith(ARRAY_SUFFIX) for spec in specs_of(op))


def _run_on_array(op: Op, values: Values) -> Values:
    """The results of an operator on a TensorArray, which is a list here."""
    if op.type == "pd_op.create_array":
        return {op.output("out").id: []}
    name = next(name for name in ("array", "input", "x") if op.has_input(name))
    array = values[op.input(name).id]
    if op.type == APPEND:
        array.append(values[op.input("x").id])
        return {op.output("out").id: array}
    if op.type == "pd_op.array_length":
        return {op.output("out").id: tensor_of(np.array([len(array)]), "int64")}
    if op.type == "pd_op.array_to_tensor":
        join = np.stack if op.attr("use_stack") else np.concatenate
        joined = join([array_of(element) for element in array], op.attr("axis"))
        return {op.output("out").id: tensor_of(joined, dtype_name(dtype_of(array[0])))}
    index = op.input("i" if op.has_input("i") else "starts")
    position = int(array_of(values[index.id]).reshape(-1)[0])
    if position < 0:  # before the first element, Paddle reads the first one
        position = max(position + len(array), 0)
    return {op.output("out").id: array[position]}


# The distance from zero that counts as beside it, relative to the largest size in samples.
_BESIDE = 2.0**-20


# The elements whose sizes are remembered, of nine bytes each.
_MAX_TRACKED = 1 << 25


class Crossings:
    """The elements of results that noise takes through zero, by their sizes in samples.

    A function of such an element may have a pole or a jump there, and an engine whose error ends
    beside it is right, however large the function is. Random samples hardly come that near.
    """

    def __init__(self) -> None:
        # By tensor and occurrence: the least and the largest size, and the signs (1: -, 2: +, 3).
        self._seen: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._elements = 0

    def add(
        self, result: tuple[int, int], sample: np.ndarray, magnitude: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Adds a sample of a result.

        Args:
            result: The tensor id, and how often the sample has computed this tensor before.
            sample: The elements.
            magnitude: Of sums, those of the absolute terms.

        Returns:
            The indices of elements that pass zero, and the largest size of each.
        """
        flat = sample.reshape(-1)
        if result not in self._seen:
            self._elements += flat.size
        if self._elements > _MAX_TRACKED:
            return np.zeros(0, np.intp), np.zeros(0)
        sizes = np.abs(flat).astype(np.float32)
        signs = (flat < 0) | ((flat > 0).astype(np.int8) << 1)
        sizes[flat == 0] = np.nan  # exact zeros tell nothing
        least, largest, known = self._seen.get(result, (sizes, sizes, signs))
        if least.size == flat.size:  # otherwise a loop over other sizes
            least, largest, signs = np.fmin(least, sizes), np.fmax(largest, sizes), known | signs
        self._seen[result] = least, largest, signs
        # Two values, as of a sum of a tie and a constant, do not pass the zero between them.
        places = np.flatnonzero(4 * least <= largest)
        passes = signs[places] == 3
        if magnitude is not None:  # terms of both signs: the other sign is near
            passes |= 2 * np.abs(flat[places]) <= magnitude.reshape(-1)[places]
        places = places[passes]
        return places, largest[places]


class Noise:
    """Random rounding errors of a relative size, for all elements of a tensor or for none.

    A rounding may preserve a tie in one run and break it in the next.

    Args:
        rounding: The rounding of the arithmetic.
        number: The number of the sample, which is the seed.
        crossings: The elements that earlier samples have taken through zero; updated.
    """

    def __init__(self, rounding: Rounding, number: int, crossings: Crossings | None = None) -> None:
        self.number = number
        # Errors of some samples are wide. Ties that they break are ties, but their effect on floats
        # counts as if it were not (``Spread.add``).
        self.width = rounding.wide if number % 2 == 0 else 1.0
        self.size = rounding.noise * self.width
        self._random = np.random.default_rng(number)
        self._crossings = crossings or Crossings()
        self._occurrences: Counter[int] = Counter()

    def near_zero(
        self, tensor: int, result: np.ndarray, magnitude: np.ndarray | None
    ) -> np.ndarray:
        """The result of an operator with elements that pass zero set to zero, or beside it.

        In one sample of four each, half of them, and in later samples a sixth; the others follow.
        A row with several poles tells nothing of one of them.

        Args:
            tensor: Its id.
            result: The elements.
            magnitude: Of sums, those of the absolute terms.
        """
        self._occurrences[tensor] += 1
        key = tensor, self._occurrences[tensor]
        places, largest = self._crossings.add(key, result, magnitude)
        if not places.size or self.number % 2 == 0:
            return result
        # As good as random, but zero is not left to chance.
        bits = ((places + 977 * tensor) * 2654435761) >> 16
        chosen = (bits + self.number // 4) % (2 if self.number < SAMPLES else 6) == 0
        is_negative = ((bits >> 1) + self.number // 8) % 2 == 1
        signs = 0.0 if self.number % 4 == 1 else np.where(is_negative, -1.0, 1.0)
        result = result.copy()
        result.reshape(-1)[places[chosen]] = (_BESIDE * largest * signs)[chosen]
        return result

    def added(self, array: np.ndarray, absolute: np.ndarray | float = 0.0) -> np.ndarray:
        """The array with new errors.

        Args:
            array: The array.
            absolute: The largest absolute error that is added to the relative one.
        """
        # A sum that cancels up to rounding may be exactly zero, or have either sign. In some
        # samples that is the only error: those of operands would leave no zero, which is a pole
        # of some functions.
        if (kind := self.number % 12 - 8) in (0, 1, 2):
            if not np.any(absolute):
                return array
            error = (0.0, absolute, np.negative(absolute))[kind]
            return np.asarray(np.where(self._cancels(array, absolute), error, array))
        if self._random.random() < 0.5:
            errors = self._random.uniform(-self.size, self.size, array.shape)
            array = array * (1 + errors) + self._random.uniform(-1.0, 1.0, array.shape) * absolute
        share = (1.0, self._random.random(), 0.0, 0.0)[self.number % 4]
        if not share or not np.any(absolute):
            return array
        vanishes = self._random.random(array.shape) < share
        return np.asarray(np.where(vanishes & self._cancels(array, absolute), 0.0, array))

    def _cancels(self, array: np.ndarray, absolute: np.ndarray | float) -> np.ndarray:
        return np.asarray(np.abs(array) <= 3 / self.width * absolute)


def _size(result: np.ndarray, operands: Iterable[Tensor]) -> np.ndarray:
    """The size of each element of a result or, if that is larger, of the operands there.

    Of operands of other shapes, the largest element counts everywhere.
    """
    size = np.nan_to_num(np.abs(result), posinf=0.0)
    for operand in map(array_of, operands):
        if operand.dtype.kind == "f" and operand.size:
            finite = np.nan_to_num(np.abs(operand), posinf=0.0)
            size = np.fmax(size, finite if operand.shape == result.shape else finite.max())
    return size


def _relative_error(narrow: np.ndarray, wide: np.ndarray, operands: Iterable[Tensor]) -> float:
    """The largest error of a result in float32, relative to :func:`_size`; at most 1e-4."""
    if wide.dtype.kind != "f" or narrow.shape != wide.shape or not wide.size:
        return 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.abs(narrow - wide) / _size(wide, operands)  # 0 / 0 is no error
    return min(1e-4, float(np.nan_to_num(errors, posinf=0.0).max()))


def alone_in(op: Op, later: Set[int], constants: Mapping[int, Op]) -> Graph:
    """An operator of a graph as a graph of its own, with the constants that it reads.

    Args:
        op: The operator.
        later: The tensors that are read outside of such graphs.
        constants: The constants of the graph, by the tensors that they compute.
    """
    read = dict.fromkeys(read_by(op))
    ops = list({id(constants[s.id]): constants[s.id] for s in read if s.id in constants}.values())
    return Graph(
        ops=[*ops, op],
        inputs=[spec for spec in read if spec.id not in constants],
        states=[],
        outputs=[spec for spec in results_of(op) if spec.id in later],
        state_outputs=[],
    )


def _constants(graph: Graph) -> dict[int, Op]:
    return {s.id: op for op in graph.ops if op.type in CONSTANTS for s in op.output_specs()}


def _read_later(graph: Graph) -> set[int]:
    """The results that other operators read, or that are results of the graph.

    Constants are part of the graph of each reader that has one.
    """
    constants = {s.id for op in graph.ops if op.type in CONSTANTS for s in results_of(op)}
    read = {spec.id for op in graph.ops for spec in read_by(op)} - constants
    without_graphs = (op for op in graph.ops if op.blocks or _is_on_array(op))
    read |= {spec.id for op in without_graphs for spec in op.input_specs()}
    return read | {spec.id for spec in (*graph.outputs, *graph.state_outputs)}


def read_by(op: Op) -> Iterator[TensorSpec]:
    """Yields the tensors that an operator reads, also those that only Paddle needs."""
    yield from op.input_specs()
    for specs in op.form.unused.values() if op.form else ():
        yield from specs


def results_of(op: Op) -> Iterator[TensorSpec]:
    """Yields the tensors that an operator computes, also those that only Paddle needs."""
    form = op.form or FallbackForm()
    for specs in (form.results or op.outputs).values():
        yield from (spec for spec in specs if spec is not None)


def specs_of(op: Op) -> Iterator[TensorSpec]:
    """Yields the tensors that an operator reads and computes."""
    yield from read_by(op)
    yield from results_of(op)


def _declared(ops: Sequence[Op]) -> dict[int, TensorSpec]:
    """The tensors by id, as the first of these operators declares them."""
    return {spec.id: spec for op in reversed(ops) for spec in reversed(list(specs_of(op)))}
