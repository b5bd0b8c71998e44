"""An interval run by Paddle itself: the native twin of an engine operator.

The graph string holds everything that Paddle's operators have, so a program can be made from it
again. That program reads and writes the memory that the engine operator was given. The engine
publishes nothing before it has succeeded; so whatever fails there, the interval can still run here,
for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
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
    remove_scope,
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
from paddle_ngraph.utils.lru_cache import LRUCache

Tensors = Sequence[Tensor]

# Of so many graphs, programs wait for another run.
_MAX_IDLE_GRAPHS = 32

# Executors take PIR programs, and stay in the thread that asks.
_PIR_IN_EXECUTOR = _core.FlagOverride("enable_pir_in_executor")
_TRACE_RUN = _core.FlagOverride("enable_pir_in_executor_trace_run")
# Without the pass that lets the last reader of a value take its memory: it does not know that a
# branch may hand on what it was given, or that the value may belong to a variable.
_WITHOUT_INPLACE_PASS = _core.FlagOverride("pir_apply_inplace_pass")


def run(text: str, inputs: Tensors, states: Tensors, outputs: Tensors) -> None:
    """Called by the C++ engine: runs the interval with Paddle's kernels.

    Args:
        text: The graph string.
        inputs: Tensors that are read, in the order of the graph.
        states: Tensors that are read and written.
        outputs: Tensors that receive the results.

    Raises:
        What Paddle's operators raise.
    """
    dtypes = tuple(map(_dtype, [*inputs, *states]))
    program = _acquire(text, dtypes)
    if program is None:
        try:
            graph = Graph.from_string(text)
            _require_kernels(graph)
            if _name(text) not in _recorded_graphs:
                program_of(graph, dtypes, as_declared=False)
            program = FallbackProgram(graph, dtypes)
        except Exception as error:
            raise NgraphError(f"Paddle cannot run the interval either: {error}") from error
    program.run(inputs, states, outputs)
    _release(text, dtypes, program)


def _require_kernels(graph: Graph) -> None:
    """Raises NgraphError for bfloat16 where Paddle's kernels on CPUs would not compute with it.

    Where Paddle has no kernel, it reads freed memory. Where oneDNN has the only one, results may be
    wrong (``softplus``, the gradient of ``clip``), and a gradient that nobody wants is written to
    no memory.
    """
    for op in graph.all_ops():
        name = op.type.removeprefix("pd_op.").removesuffix("_")
        if op.has_bfloat16() and not op.blocks and not _computes_bfloat16(name):
            raise NgraphError(f"Paddle has no kernel of its own for {op.type} in bfloat16")


@cache
def _computes_bfloat16(name: str) -> bool:
    """Whether Paddle has a kernel of its own for it on CPUs, in bfloat16."""
    found = phi_kernels("all").get(name, [])
    return any(each.startswith("(CPU,") and "bfloat16" in each for each in found)


# Graphs that the program pass has made in this process. Paddle's kernels rely on what Paddle checks
# when it makes an operator; those of any other graph, one of a saved program, are made in that way
# once. So are those of a graph that is forgotten.
_recorded_graphs: LRUCache[str, bool] = LRUCache(4096)


def record_graph(text: str) -> None:
    """Records that a graph string was made from the operators of a program."""
    _recorded_graphs.put(_name(text), True)


def _name(text: str) -> str:
    return text.partition("\n")[0]


class FallbackProgram:
    """A graph as a program of Paddle's own operators, with a scope of its own. One run at a time.

    Args:
        graph: The interval.
        dtypes: Those of its inputs and states, which may differ from what the program declares;
            ``None`` for one without contents.

    Raises:
        NgraphError: The graph does not describe its operators for Paddle, or this release of Paddle
            has no such operator.
    """

    def __init__(self, graph: Graph, dtypes: Sequence[str | None]) -> None:
        program = program_of(graph, dtypes)
        own_scope = _core.OwnedScope(new_scope(), remove_scope)
        scope = own_scope.scope
        sources = [*graph.inputs, *graph.states]
        self._inputs = [scope.var(_input_name(i)).get_tensor() for i in range(len(sources))]
        with _PIR_IN_EXECUTOR, _WITHOUT_INPLACE_PASS:
            plan = PaddlePlan([PaddleJob("default")], {"default": program})
            own_scope.set_user(StandaloneExecutor(paddle.CPUPlace(), plan, scope))
        self._own_scope = own_scope  # the last to go: that takes long, and signals may come in it

    def run(self, inputs: Tensors, states: Tensors, outputs: Tensors) -> None:
        """See :func:`run`."""
        given = [*inputs, *states]
        try:
            for mine, theirs in zip(self._inputs, given):
                _core.share_tensor(mine, theirs)
            with _PIR_IN_EXECUTOR, _TRACE_RUN:
                fetched = values_of(self._own_scope.user.run([], False))
            for number in range(len(outputs)):
                clear_tensor(self._own_scope.scope.var(f"output_{number}@fetch").get_tensor())
            for mine, theirs in zip(fetched, outputs):
                _core.share_tensor(theirs, _with_own_memory(mine))
        finally:  # a kernel that fails may have written states before
            for mine, theirs in zip(self._inputs[len(inputs) :], states):
                _core.share_tensor(theirs, mine)
            for mine in self._inputs:
                clear_tensor(mine)


def _with_own_memory(tensor: Tensor) -> Tensor:
    """A result with memory of its own: a variable of the interpreter has the present one.

    The next run writes there again, while the user may still have the result of this one, or a
    backward pass may have to read it.
    """
    if 0 in tensor.shape():
        return tensor
    copy = copy_of(tensor, paddle.CPUPlace())
    copy.set_lod(tensor.lod())
    return copy


# A list of axes among them may well be empty.
_CONSTANT_TYPES = CONSTANTS | {"builtin.parameter"}
# Added to sizes, it is more than any window.
_LARGE_DIMENSION = 1 << 12


def makes_empty(text: str, given: Sequence[Tensor]) -> bool:
    """Called by the C++ engine: whether Paddle makes an empty tensor in an interval.

    Args:
        text: The graph string.
        given: Its inputs and states. Only their shapes are used: if contents decide, nothing is
            known.
    """
    try:
        graph = Graph.from_string(text)
        dtypes, shapes = list(map(_dtype, given)), [tuple(t.shape()) for t in given]
        found = _inferred(graph, dtypes, shapes)
        if any(0 in shape for shape in found):
            return True
        # For a window beyond its input Paddle infers less than nothing, as for what it cannot know.
        if not any(size < 0 for shape in found for size in shape):
            return False
        larger = _inferred(
            graph, dtypes, list(map(_enlarged, [*graph.inputs, *graph.states], shapes))
        )
    except Exception:  # whatever Paddle's shape inference says
        return False
    pairs = ((a, b) for one, other in zip(found, larger) for a, b in zip(one, other))
    return any(size < 0 < grown for size, grown in pairs)


def _inferred(
    graph: Graph, dtypes: Sequence[str | None], shapes: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """The shapes of all results, given inputs and states of these shapes.

    Those inside of loops and branches count: the engine makes a model of these, too.
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
    """The shape, if the open dimensions of the program were larger."""
    return tuple(now + _LARGE_DIMENSION * (size < 0) for size, now in zip(spec.shape, shape))


def program_of(graph: Graph, dtypes: Sequence[str | None], as_declared: bool = True) -> Program:
    """The graph as a PIR program: inputs and states are variables, outputs are fetched.

    Args:
        graph, dtypes: See :class:`FallbackProgram`.
        as_declared: Whether results have the types that the graph declares, or those that Paddle
            infers.
    """
    program: Program = paddle.pir.Program()
    block = program.global_block()
    values: dict[int, Value] = {}
    sources = [*graph.inputs, *graph.states]
    for number, (spec, dtype) in enumerate(zip(sources, dtypes, strict=True)):
        if graph.adapts and dtype not in (None, spec.dtype):
            as_declared, spec = False, replace(spec, dtype=dtype)
        values[spec.id] = _core.append_variable(block, _input_name(number), _type(spec))
    for op in graph.ops:
        _append(block, op, values, as_declared)
    for number, spec in enumerate(graph.outputs):
        attributes = [("name", None, f"output_{number}"), ("col", None, number)]
        _core.append_operator(block, FETCH, [values[spec.id]], [_type(spec)], attributes)
    return program


# They need the shape of ``x``, which the interval may not know.
_RESHAPING = frozenset(
    {
        "pd_op.squeeze_grad",
        "pd_op.squeeze_grad_",
        "pd_op.unsqueeze_grad",
        "pd_op.unsqueeze_grad_",
    }
)


def reason_against(graph: Graph) -> tuple[Op, str] | None:
    """An operator that Paddle could not run in its interval, and why; mostly ``None``."""
    for op in graph.ops:
        entry = find_converter(op.type)
        kept = op.form.unused if op.form is not None else {}
        names = entry.named(Role.SAVED) if entry is not None else ()
        saved = [spec.id for name in names for spec in op.inputs.get(name, ())]
        if saved:
            made = {spec.id for other in graph.ops for spec in other.output_specs()}
            if not made.issuperset(saved):
                return op, "its forward operator is in another interval"
        if op.type in _RESHAPING and "x" not in kept and _squeezes_dynamic_dimension(graph, op):
            return op, "the shape that it restores is known in another interval"
    return None


def _squeezes_dynamic_dimension(graph: Graph, op: Op) -> bool:
    """Whether only a run shows which dimensions a ``squeeze`` drops: whichever are 1."""
    is_open = any(-1 in spec.shape for spec in op.output_specs())
    axes = {spec.id for spec in op.inputs["axis"]}
    lists = (o.attr("value") for o in graph.ops if axes & {s.id for s in o.output_specs()})
    return is_open and op.type.startswith("pd_op.squeeze") and [] in lists


# Inputs that Paddle's operators cannot do without, though within the limits of their converters no
# kernel reads them, and their dtypes.
_NEVER_READ = {
    "pd_op.quantize_linear": dict.fromkeys(("zero_point", "in_accum", "in_state"), "float32"),
    "pd_op.rnn": {"dropout_state_in": "uint8"},
}


def _placeholder(block: Block, dtype: str, values: dict[int, Value]) -> TensorSpec:
    """A tensor that nobody reads, where the graph has none."""
    spec = TensorSpec(min(0, *values) - 1, dtype, (1,))
    given = [("shape", "ints", [1]), ("dtype", "dtype", dtype), ("value", "float64", 0.0)]
    (values[spec.id],) = _core.append_operator(block, "pd_op.full", [], [(dtype, [1])], given)
    return spec


def _append(block: Block, op: Op, values: dict[int, Value], as_declared: bool) -> None:
    form = op.form
    if form is None:
        raise NgraphError(f"the graph does not say how Paddle runs {op.type}")
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
    for (name, specs), made in zip(form.results.items(), results):
        members = made if name in output_lists else [made]
        if len(specs) != len(members) and (specs or name in output_lists):
            raise NgraphError(f"{op.type} has {len(members)} results '{name}', not {len(specs)}")
        values.update((spec.id, member) for spec, member in zip(specs, members))


def _element(block: Block, op: Op, values: dict[int, Value], as_declared: bool) -> Value:
    """The element of a TensorArray that ``slice_array_dense`` reads, if it is there.

    That operator does not look: it reads whatever is behind the last element, and the process ends
    where nothing is. ``array_read`` looks, and raises. A position that is counted from the end, and
    would be in front of the first element, is that of the first one.
    """

    def append(name: str, *operands: Value, **attributes: tuple[str, Any]) -> Value:
        given = [(key, *value) for key, value in attributes.items()]
        (made,) = _core.append_operator(block, name, list(operands), None, given)
        return made

    def as_number(value: Value) -> Value:
        return append("pd_op.cast", value, dtype=("dtype", "int64"))

    array, start = values[op.input("input").id], as_number(values[op.input("starts").id])
    number = ("dtype", "int64")
    zero = append("pd_op.full", shape=("ints", [1]), value=("float64", 0.0), dtype=number)
    is_behind = as_number(append("pd_op.less_than", start, zero))
    count = append("pd_op.multiply", is_behind, append("pd_op.array_length", array))
    place = append("pd_op.maximum", append("pd_op.add", start, count), zero)
    types = [_type(op.output("out"))] if as_declared else None
    (element,) = _core.append_operator(block, "pd_op.array_read", [array, place], types, [])
    return element


def _append_region(
    block: Block, op: Op, form: FallbackForm, values: dict[int, Value], as_declared: bool
) -> None:
    """A loop or branch, and what is inside of it."""
    read = {name: [values[spec.id] for spec in specs] for name, specs in op.inputs.items()}
    (condition,), captured = read[COND], read[CAPTURED]
    if op.type == WHILE:
        body, args, results = _core.append_while(block, condition, read[INITIAL_VALUES])
        bodies = [body]
    else:
        types = list(map(_type, form.results[OUT]))
        first, second, results = _core.append_if(block, condition, types)
        bodies, args = [first, second], []
    for inner, graph in zip(bodies, op.blocks, strict=True):
        known = dict(zip((spec.id for spec in graph.inputs), [*args, *captured], strict=True))
        for each in graph.ops:
            _append(inner, each, known, as_declared)
        _core.append_yield(inner, [known[spec.id] for spec in graph.outputs])
    values.update((spec.id, made) for spec, made in zip(form.results[OUT], results, strict=True))


def _reshaped(block: Block, value: Value, source: TensorSpec, target: TensorSpec) -> Value:
    """``value`` with the dimensions of size 1 of ``target`` in place of those of ``source``."""
    rest = [size for size in source.shape if size != 1]
    for name, axes, shape in (
        ("pd_op.squeeze", _ones(source), rest),
        ("pd_op.unsqueeze", _ones(target), list(target.shape)),
    ):
        if axes:
            given = [("value", "int64", axes), ("dtype", "dtype", "int64")]
            type = "int64", [len(axes)]
            (positions,) = _core.append_operator(block, "pd_op.full_int_array", [], [type], given)
            types = [(source.dtype, shape)]
            (value,) = _core.append_operator(block, name, [value, positions], types, [])
    return value


def _ones(spec: TensorSpec) -> list[int]:
    return [axis for axis, size in enumerate(spec.shape) if size == 1]


def _packed(items: list[Any], is_list: bool) -> Any:
    """An operand or type as the core expects it; ``None`` if it is absent."""
    if is_list:
        return items
    return items[0] if items else None


def _dtype(tensor: Tensor) -> str | None:
    return dtype_name(dtype_of(tensor)) if is_initialized(tensor) else None


def _type(spec: TensorSpec) -> tuple[str, list[int]]:
    return spec.dtype, list(spec.shape)


def _input_name(number: int) -> str:
    return f"input_{number}"


# Programs that wait for a run, by graph and dtypes of inputs; each belongs to one run at a time.
_idle_programs: LRUCache[tuple[str, tuple[str | None, ...]], list[FallbackProgram]] = LRUCache(
    _MAX_IDLE_GRAPHS
)


def _acquire(text: str, dtypes: tuple[str | None, ...]) -> FallbackProgram | None:
    """Takes a waiting program; it belongs to the caller from then on."""
    programs = _idle_programs.get((text, dtypes))
    try:
        return programs.pop() if programs else None
    except IndexError:  # another thread took the last one
        return None


def _release(text: str, dtypes: tuple[str | None, ...], program: FallbackProgram) -> None:
    _idle_programs.get_or_create((text, dtypes), list).append(program)


def count() -> int:
    """The number of graphs with programs waiting for another run."""
    return len(_idle_programs)


def clear() -> None:
    """Drops every program that waits for another run."""
    _idle_programs.clear()
