"""Fallback programs: a subgraph as a program of Paddle's own operators.

The graph string records all attributes and types of Paddle's operators, so a program can be built
from it again. The program reads and writes the memory of the engine operator's variables. The
engine publishes no results before it succeeds: after any failure of the engine, the subgraph can
still run here, with no side effect repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import paddle

from paddle_ngraph import _core
from paddle_ngraph.conversion.registry import Role, find_converter
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import FallbackForm, Graph, Op, TensorSpec
from paddle_ngraph.paddle_private.names import (
    PaddleJob,
    PaddlePlan,
    StandaloneExecutor,
    clear_tensor,
    copy_of,
    dtype_of,
    is_initialized,
    new_scope,
    phi_kernels,
    scope_remover,
    values_of,
)
from paddle_ngraph.paddle_private.protocols import Block, Program, Tensor, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    CAPTURED,
    COND,
    CONSTANTS,
    FETCH,
    INITIAL_VALUES,
    OUT,
    WHILE,
    blocks_outermost_first,
    dtype_name,
)
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.utils.once import once
from paddle_ngraph.warning_codes import WarningCode, warn

Tensors = Sequence[Tensor]


# While both overrides are active, executors accept PIR programs and run them in the calling thread.
_PIR_IN_EXECUTOR = _core.FlagOverride("enable_pir_in_executor")
_TRACE_RUN = _core.FlagOverride("enable_pir_in_executor_trace_run")
# Disables the pass that lets the last reader of a value reuse its memory: the pass ignores that a
# branch may yield its input, and that the value may belong to a variable.
_WITHOUT_INPLACE_PASS = _core.FlagOverride("pir_apply_inplace_pass")


def run(
    text: str, inputs: Tensors, states: Tensors, outputs: Tensors, known: Graph | None = None
) -> None:
    """Runs a subgraph with Paddle's kernels. Called by the C++ engine.

    Args:
        text: The graph string.
        inputs: Tensors that are read, in the order of the graph.
        states: Tensors that are read and written.
        outputs: Tensors that receive the results.
        known: The graph of the string, if the caller has it.

    Raises:
        NgraphError: No program can be built from the graph.
        Exception: Any error of Paddle's operators.
    """
    if _core.is_openvino_lost():
        _warn_of_fork()
    dtypes = tuple(map(_dtype, [*inputs, *states]))
    program = _acquire(text, dtypes)
    if program is None:
        with signals.own_errors():
            try:
                graph = known or Graph.from_string(text)
                require_kernels(graph)
                if _name(text) not in _recorded_graphs:
                    check_operators(graph, dtypes)
                program = FallbackProgram(graph, dtypes)
            except Exception as error:
                raise NgraphError(f"Paddle cannot run the interval either: {error}") from error
    program.run(inputs, states, outputs)
    _release(text, dtypes, program)


@once
def _warn_of_fork() -> None:
    message = "paddle_ngraph: Paddle runs all subgraphs in this process, which was forked"
    reasons = "while another thread used a function, or after a function had been destroyed"
    warn(WarningCode.FORKED, f"{message} {reasons}")


def check_operators(graph: Graph, dtypes: Sequence[str | None]) -> None:
    """Has Paddle check the operators of a graph from a file.

    Shape inference reads attributes without a check of their kinds, and would crash. So operators
    are constructed as declared first, which checks kinds and numbers of operands.

    Raises:
        Exception: Any error of Paddle.
    """
    program_of(graph, dtypes)
    program_of(graph, dtypes, as_declared=False)


def require_kernels(graph: Graph) -> None:
    """Raises NgraphError for bfloat16 operators without a usable CPU kernel of Paddle.

    Without any kernel, Paddle reads freed memory. With only a oneDNN kernel, results may be wrong
    (``softplus``, the gradient of ``clip``), and an unused gradient is written to memory that is
    not allocated.
    """
    for op in graph.all_ops():
        if lacks_kernel(op):
            raise NgraphError(f"Paddle has no kernel of its own for {op.type} in bfloat16")


def lacks_kernel(op: Op) -> bool:
    """Whether an operator in bfloat16 has no usable CPU kernel; see :func:`require_kernels`."""
    name = op.type.removeprefix("pd_op.").removesuffix("_")
    return op.has_bfloat16() and not op.blocks and name not in _bfloat16_kernels()


@once
def _bfloat16_kernels() -> frozenset[str]:
    """The operators for which Paddle has a CPU kernel of its own, not oneDNN's, in bfloat16."""
    return frozenset(
        name
        for name, found in phi_kernels("all").items()
        if any(each.startswith("(CPU,") and "bfloat16" in each for each in found)
    )


# The graphs that are built from operators that Paddle has checked. Paddle's kernels rely on checks
# of shape inference during construction of an operator. The operators of a graph that is not
# recorded here (from a saved program, or evicted) are therefore constructed once with shape
# inference.
_recorded_graphs: LRUCache[str, bool] = process_cache(
    __name__,
    "recorded_graphs",
    "graphs that the program pass has built in this process",
    key="graph header",
    bound=4096,
)


def record_graph(text: str) -> None:
    """Records that a graph string was built from operators that Paddle has checked."""
    _recorded_graphs.put(_name(text), True)


def _name(text: str) -> str:
    return text.partition("\n")[0]


class FallbackProgram:
    """A graph as a program of Paddle's own operators, with a private scope. One run at a time.

    Args:
        graph: The subgraph.
        dtypes: Dtypes of its inputs and states, which may differ from the declared ones; ``None``
            for a tensor without contents.

    Raises:
        NgraphError: The graph does not describe its operators for Paddle, or this release of Paddle
            has no such operator.
    """

    def __init__(self, graph: Graph, dtypes: Sequence[str | None]) -> None:
        program = program_of(graph, dtypes)
        own_scope = _core.OwnedScope(new_scope(), scope_remover())
        scope = own_scope.scope
        sources = [*graph.inputs, *graph.states]
        self._inputs = [scope.var(_input_name(i)).get_tensor() for i in range(len(sources))]
        with _PIR_IN_EXECUTOR, _WITHOUT_INPLACE_PASS:
            plan = PaddlePlan([PaddleJob("default")], {"default": program})
            own_scope.set_user(StandaloneExecutor(paddle.CPUPlace(), plan, scope))
        # The attribute is set last, so that the scope is destroyed last: that takes long, and
        # signals may arrive meanwhile.
        self._own_scope = own_scope

    def run(self, inputs: Tensors, states: Tensors, outputs: Tensors) -> None:
        """Runs the fallback program; see :func:`run`."""
        given = [*inputs, *states]
        try:
            for mine, theirs in zip(self._inputs, given):
                _core.share_tensor(mine, theirs)
            with _PIR_IN_EXECUTOR, _TRACE_RUN:
                fetched = values_of(self._own_scope.user.run([], False))
            for index in range(len(outputs)):
                clear_tensor(self._own_scope.scope.var(f"output_{index}@fetch").get_tensor())
            for mine, theirs in zip(fetched, outputs):
                _core.share_tensor(theirs, _with_own_memory(mine))
        finally:
            # Gives the states back even after an error: kernels that wrote states may have run
            # before the one that failed.
            for mine, theirs in zip(self._inputs[len(inputs) :], states):
                _core.share_tensor(theirs, mine)
            for mine in self._inputs:
                clear_tensor(mine)


def _with_own_memory(tensor: Tensor) -> Tensor:
    """Returns a copy of a result, whose memory belongs to a variable of the interpreter.

    The next run overwrites that memory, while the caller may still hold the result of this run, or
    a backward pass may still have to read it.
    """
    if 0 in tensor.shape():
        return tensor
    copy = copy_of(tensor, paddle.CPUPlace())
    copy.set_lod(tensor.lod())
    return copy


# Operators that are excluded from the search for empty tensors, since their results may be empty
# lists of axes.
_CONSTANT_TYPES = CONSTANTS | {"builtin.parameter"}
# The number by which the search increases dynamic dimensions: larger than any window of a
# convolution or pooling.
_LARGE_DIMENSION = 1 << 12


def makes_empty(text: str, given: Sequence[Tensor]) -> bool:
    """Whether Paddle's shape inference shows an empty tensor in a subgraph. Called by the engine.

    Args:
        text: The graph string.
        given: Its inputs and states. Only their shapes and dtypes are used: shapes that depend on
            contents are unknown.
    """
    with signals.own_errors():
        try:
            graph = Graph.from_string(text)
            dtypes, shapes = list(map(_dtype, given)), [tuple(t.shape()) for t in given]
            if _name(text) not in _recorded_graphs:
                program_of(graph, dtypes)  # raises for attributes that shape inference cannot read
            found = _inferred(graph, dtypes, shapes)
            if any(0 in shape for shape in found):
                return True
            # A negative size is unknown, or shows an empty result, of a window larger than its
            # input. To tell these apart, sizes are inferred again with larger dynamic dimensions:
            # only that of a window becomes positive.
            if not any(size < 0 for shape in found for size in shape):
                return False
            larger = _inferred(
                graph, dtypes, list(map(_enlarged, [*graph.inputs, *graph.states], shapes))
            )
        except Exception:
            # If Paddle's shape inference fails, whatever the error, no tensor is taken for empty.
            return False
    pairs = ((a, b) for one, other in zip(found, larger) for a, b in zip(one, other))
    return any(size < 0 < grown for size, grown in pairs)


def _inferred(
    graph: Graph, dtypes: Sequence[str | None], shapes: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Infers the shapes of all results, given the shapes of inputs and states.

    Results inside loops and branches are included: the engine converts their bodies, too.
    """
    sources = [*graph.inputs, *graph.states]
    specs = [replace(spec, shape=shape) for spec, shape in zip(sources, shapes)]
    count = len(graph.inputs)
    program = program_of(
        replace(graph, inputs=specs[:count], states=specs[count:]), dtypes, as_declared=False
    )
    operators = [op for block in blocks_outermost_first(program) for op in block.ops]
    values = [
        value for op in operators if op.name() not in _CONSTANT_TYPES for value in op.results()
    ]
    return [tuple(value.shape) for value in values if value.is_dense_tensor_type()]


def _enlarged(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns ``shape`` with larger sizes for the dimensions that the graph leaves dynamic."""
    return tuple(now + _LARGE_DIMENSION * (size < 0) for size, now in zip(spec.shape, shape))


def program_of(graph: Graph, dtypes: Sequence[str | None], as_declared: bool = True) -> Program:
    """Builds a PIR program from a graph: inputs and states are variables, outputs are fetched.

    Args:
        graph, dtypes: See :class:`FallbackProgram`.
        as_declared: Whether results get the types that the graph declares; otherwise Paddle infers
            them.
    """
    program: Program = paddle.pir.Program()
    block = program.global_block()
    values: dict[int, Value] = {}
    sources = [*graph.inputs, *graph.states]
    for index, (spec, dtype) in enumerate(zip(sources, dtypes)):
        if graph.adapts and dtype not in (None, spec.dtype):
            as_declared, spec = False, replace(spec, dtype=dtype)
        values[spec.id] = _core.append_variable(block, _input_name(index), _type(spec))
    for op in graph.ops:
        _append(block, op, values, as_declared)
    for index, spec in enumerate(graph.outputs):
        attributes = [("name", None, f"output_{index}"), ("col", None, index)]
        _core.append_operator(block, FETCH, [values[spec.id]], [_type(spec)], attributes)
    return program


# Gradients of reshapes: they need the shape of ``x``, which may be no input of the subgraph.
_RESHAPING = frozenset(
    {
        "pd_op.squeeze_grad",
        "pd_op.squeeze_grad_",
        "pd_op.unsqueeze_grad",
        "pd_op.unsqueeze_grad_",
    }
)


def reason_against(graph: Graph) -> tuple[Op, str] | None:
    """Returns an operator that Paddle could not run in the subgraph, and why; mostly ``None``."""
    for op in graph.ops:
        entry = find_converter(op.type)
        unused = op.form.unused if op.form is not None else {}
        names = entry.named(Role.SAVED) if entry is not None else ()
        saved = [spec.id for name in names for spec in op.inputs.get(name, ())]
        if saved:
            produced = {spec.id for other in graph.ops for spec in other.output_specs()}
            if not produced.issuperset(saved):
                return op, "its forward operator is in another interval"
        if op.type in _RESHAPING and "x" not in unused and _squeezes_dynamic_dimension(graph, op):
            return op, "the shape that it restores is known in another interval"
    return None


def _squeezes_dynamic_dimension(graph: Graph, op: Op) -> bool:
    """Whether a ``squeeze`` without axes removes dimensions of size 1 of a dynamic shape."""
    is_open = any(-1 in spec.shape for spec in op.output_specs())
    axes = {spec.id for spec in op.inputs["axis"]}
    lists = (o.attr("value") for o in graph.ops if axes & {s.id for s in o.output_specs()})
    return is_open and op.type.startswith("pd_op.squeeze") and [] in lists


# Required inputs of Paddle's operators that no kernel reads within the limits of the converters,
# and their dtypes.
_NEVER_READ = {
    "pd_op.quantize_linear": dict.fromkeys(("zero_point", "in_accum", "in_state"), "float32"),
    "pd_op.rnn": {"dropout_state_in": "uint8"},
}


def _placeholder(block: Block, dtype: str, values: dict[int, Value]) -> TensorSpec:
    """Appends a placeholder tensor for a required input that is not in the graph."""
    spec = TensorSpec(min(0, *values) - 1, dtype, (1,))
    values[spec.id] = _zero(block, dtype)
    return spec


def _zero(block: Block, dtype: str) -> Value:
    attributes = [("shape", "ints", [1]), ("dtype", "dtype", dtype), ("value", "float64", 0.0)]
    (zero,) = _core.append_operator(block, "pd_op.full", [], [(dtype, [1])], attributes)
    return zero


def _append(block: Block, op: Op, values: dict[int, Value], as_declared: bool) -> None:
    form = op.form
    if form is None:
        raise NgraphError(f"the graph lacks Paddle's attributes of {op.type}")
    input_lists, output_lists = form.lists
    if op.blocks:
        _append_region(block, op, form, values, as_declared)
        return
    if op.type in _RESHAPING and "x" not in form.unused:
        target = op.output("x_grad")
        gradient = op.input("out_grad")
        values[target.id] = _reshaped(block, values[gradient.id], gradient, target)
        return
    if op.type == "pd_op.slice_array_dense":
        values[op.output("out").id] = _element(block, op, values, as_declared)
        return
    inputs = {**op.inputs, **form.unused}
    for name, dtype in _NEVER_READ.get(op.type, {}).items():
        if not inputs[name]:
            inputs[name] = (_placeholder(block, dtype, values),)
    operands = [
        _packed([values[spec.id] for spec in specs], name in input_lists)
        for name, specs in inputs.items()
    ]
    types = None
    if as_declared:
        types = [
            _packed([_type(spec) for spec in specs], name in output_lists)
            for name, specs in form.results.items()
        ]
    attributes = [(name, form.attribute_types.get(name), value) for name, value in op.attrs.items()]
    results = _core.append_operator(block, op.type, operands, types, attributes)
    for (name, specs), result in zip(form.results.items(), results):
        members = result if name in output_lists else [result]
        if len(specs) != len(members) and (specs or name in output_lists):
            raise NgraphError(f"{op.type} has {len(members)} results '{name}', not {len(specs)}")
        values.update((spec.id, member) for spec, member in zip(specs, members))


def _element(block: Block, op: Op, values: dict[int, Value], as_declared: bool) -> Value:
    """Appends a bounds-checked ``slice_array_dense``: the element of a TensorArray.

    ``slice_array_dense`` does not check its index: it reads memory after the last element, and may
    crash the process. ``array_read`` checks, and raises. A negative index counts from the end; one
    before the first element is clamped to the first element.
    """

    def append(name: str, *operands: Value, **attributes: tuple[str, Any]) -> Value:
        given = [(key, *value) for key, value in attributes.items()]
        (result,) = _core.append_operator(block, name, list(operands), None, given)
        return result

    def as_int64(value: Value) -> Value:
        return append("pd_op.cast", value, dtype=("dtype", "int64"))

    array, start = values[op.input("input").id], as_int64(values[op.input("starts").id])
    int64 = ("dtype", "int64")
    zero = append("pd_op.full", shape=("ints", [1]), value=("float64", 0.0), dtype=int64)
    is_negative = as_int64(append("pd_op.less_than", start, zero))
    count = append("pd_op.multiply", is_negative, append("pd_op.array_length", array))
    index = append("pd_op.maximum", append("pd_op.add", start, count), zero)
    types = [_type(op.output("out"))] if as_declared else None
    (element,) = _core.append_operator(block, "pd_op.array_read", [array, index], types, [])
    return element


def _append_region(
    block: Block, op: Op, form: FallbackForm, values: dict[int, Value], as_declared: bool
) -> None:
    """Appends a loop or branch, with the operators in its bodies, to ``block``."""
    read = {name: [values[spec.id] for spec in specs] for name, specs in op.inputs.items()}
    (condition,), captured = read[COND], read[CAPTURED]
    made = form.results[OUT]
    padded: Sequence[int] = ()
    if op.type == WHILE:
        body, args, results = _core.append_while(block, condition, read[INITIAL_VALUES])
        bodies = [body]
    else:
        padded = _possibly_empty(op, made)
        types = list(map(_type, made))
        for index in padded:
            types[index] = made[index].dtype, [-1]
            types.append(("int64", [len(made[index].shape)]))
        first, second, results = _core.append_if(block, condition, types)
        bodies, args = [first, second], []
    for inner, graph in zip(bodies, op.blocks):
        known = dict(zip((spec.id for spec in graph.inputs), [*args, *captured]))
        for each in graph.ops:
            _append(inner, each, known, as_declared)
        yielded = [known[spec.id] for spec in graph.outputs]
        for index in padded:
            yielded[index], shape = _with_padding(inner, yielded[index], made[index])
            yielded.append(shape)
        _core.append_yield(inner, yielded)
    shapes = results[len(made) :]
    for index, shape in zip(padded, shapes):
        results[index] = _without_padding(block, results[index], shape, made[index])
    values.update((spec.id, result) for spec, result in zip(made, results))


def _possibly_empty(op: Op, made: Sequence[TensorSpec]) -> list[int]:
    """The results of a branch that may have no element.

    Paddle's ``if`` does not assign such a result: the variable retains the tensor of the last run
    (tests/paddle_faults/empty_branch.py). The branches therefore yield its elements, to which one
    is appended, and its shape.
    """
    yields = zip(made, *(graph.outputs for graph in op.blocks))
    return [
        index
        for index, specs in enumerate(yields)
        if any(size <= 0 for spec in specs for size in spec.shape)
    ]


def _with_padding(block: Block, value: Value, spec: TensorSpec) -> tuple[Value, Value]:
    """Returns the elements of ``value`` and one more, and the shape of ``value``."""
    append, vector = _core.append_operator, (spec.dtype, [-1])
    (flat,) = append(block, "pd_op.reshape", [value, _integers(block, [-1])], [vector], [])
    operands = [[flat, _zero(block, spec.dtype)], _zero(block, "int32")]
    (padded,) = append(block, "pd_op.concat", operands, [vector], [])
    (shape,) = append(block, "pd_op.shape64", [value], [("int64", [len(spec.shape)])], [])
    return padded, shape


def _without_padding(block: Block, padded: Value, shape: Value, spec: TensorSpec) -> Value:
    """Restores a value from :func:`_with_padding`."""
    append, vector = _core.append_operator, (spec.dtype, [-1])
    slices = {"axes": [0], "infer_flags": [1], "decrease_axis": []}
    attributes = [(name, "int64", values) for name, values in slices.items()]
    ends = _integers(block, [0]), _integers(block, [-1])
    (flat,) = append(block, "pd_op.slice", [padded, *ends], [vector], attributes)
    (value,) = append(block, "pd_op.reshape", [flat, shape], [_type(spec)], [])
    return value


def _integers(block: Block, values: list[int]) -> Value:
    attributes = [("value", "int64", values), ("dtype", "dtype", "int64")]
    type = "int64", [len(values)]
    (list_,) = _core.append_operator(block, "pd_op.full_int_array", [], [type], attributes)
    return list_


def _reshaped(block: Block, value: Value, source: TensorSpec, target: TensorSpec) -> Value:
    """Reshapes ``value`` from ``source`` to ``target``, which differ in dimensions of size 1."""
    rest = [size for size in source.shape if size != 1]
    for name, axes, shape in (
        ("pd_op.squeeze", _ones(source), rest),
        ("pd_op.unsqueeze", _ones(target), list(target.shape)),
    ):
        if axes:
            types = [(source.dtype, shape)]
            operands = [value, _integers(block, axes)]
            (value,) = _core.append_operator(block, name, operands, types, [])
    return value


def _ones(spec: TensorSpec) -> list[int]:
    return [axis for axis, size in enumerate(spec.shape) if size == 1]


def _packed(items: list[Any], is_list: bool) -> Any:
    """``items`` if it stands for a list, else the only item; ``None`` without an item."""
    if is_list:
        return items
    return items[0] if items else None


def _dtype(tensor: Tensor) -> str | None:
    return dtype_name(dtype_of(tensor)) if is_initialized(tensor) else None


def _type(spec: TensorSpec) -> tuple[str, list[int]]:
    return spec.dtype, list(spec.shape)


def _input_name(index: int) -> str:
    return f"input_{index}"


# The idle fallback programs of each graph; a run takes one out while it uses it.
_idle_programs: LRUCache[tuple[str, tuple[str | None, ...]], list[FallbackProgram]] = process_cache(
    __name__,
    "idle_fallback_programs",
    "idle programs by which Paddle runs a subgraph",
    key="graph string, and the dtypes of its inputs",
    bound=32,
)


def _acquire(text: str, dtypes: tuple[str | None, ...]) -> FallbackProgram | None:
    """Takes an idle program of a graph out of the cache; ``None`` if there is none."""
    programs = _idle_programs.get((text, dtypes))
    try:
        return programs.pop() if programs else None
    except IndexError:
        # Another thread has taken the last idle program in the meantime.
        return None


def _release(text: str, dtypes: tuple[str | None, ...], program: FallbackProgram) -> None:
    _idle_programs.get_or_create((text, dtypes), list).append(program)
