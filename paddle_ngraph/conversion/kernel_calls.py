"""Calls of Paddle's CPU kernels inside functions, for operators without a converter.

Such an operator becomes a node ``KernelCall`` (core/ov/kernel_call_op.h), which calls the kernel
that Paddle's executor would call, on the memory of the function. So it does not split a subgraph.
``FLAGS_ngraph_kernel_calls`` switches this on; the tables below say for which operators it is
sound.

A size that depends on data, such as the number of boxes that are left, is known when the kernel has
run. Other kernel calls of the function may read such results, but no converter does, since
converters see static sizes.

Tensors of dtypes that nGraph lacks or narrows (complex64, complex128, float64) are bytes in a
function: u8, with the bytes of an element along an additional last axis. Only kernel calls read
their contents. So are int64 tensors that nothing but kernel calls reads. Parameters and results of
the function that are bytes have a name by which the core gives them their dtype back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import paddle
from openvino import Type, opset15

from paddle_ngraph import _core, flags
from paddle_ngraph.conversion.registry import ANY, Converter, Limit, Role, find_converter
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec, is_random
from paddle_ngraph.paddle_private.names import operators
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.dtypes import BYTES
from paddle_ngraph.utils.thread_local import ThreadLocal

# By operator, the results whose number of rows depends on the contents of the inputs.
DATA_DEPENDENT: Mapping[str, frozenset[str]] = {
    f"pd_op.{name}": frozenset(results)
    for name, results in {
        "collect_fpn_proposals": ("fpn_rois", "rois_num"),
        "distribute_fpn_proposals": ("multi_fpn_rois", "multi_level_rois_num", "restore_index"),
        "generate_proposals": ("rpn_rois", "rpn_roi_probs", "rpn_rois_num"),
        "masked_select": ("out",),
        "matrix_nms": ("out", "index", "roisnum"),
        "multiclass_nms3": ("out", "index", "nms_rois_num"),
        "nms": ("out",),
        "nonzero": ("out",),
        "unique": ("out", "indices", "inverse", "counts"),
        "unique_consecutive": ("out", "index", "counts"),
    }.items()
}
# By operator, the results with as many rows as the input ``out_size`` says, or else as ``x`` has.
# Paddle's shape inference knows neither.
_ROWS_AS: Mapping[str, frozenset[str]] = {
    f"pd_op.{name}": frozenset({"out"}) for name in ("send_u_recv", "send_ue_recv")
}
# Operators that sample in loops by their kernels, whose subgraph may not sample anything else.
SAMPLERS = frozenset({"pd_op.multinomial"})
# Operators that no function calls.
EXCLUDED = frozenset(_core.impure_operators()) | {
    # Their results have a LoD, which tensors of functions lack.
    *("pd_op.collect_fpn_proposals", "pd_op.distribute_fpn_proposals"),
    # Programs declare other dtypes of their results than their kernels make, or another shape.
    *("pd_op.equal_all", "pd_op.generate_proposals", "pd_op.matrix_rank", "pd_op.matrix_rank_tol"),
    *("pd_op.matrix_rank_atol_rtol", "pd_op.slogdet", "pd_op.unique", "pd_op.unique_consecutive"),
    "pd_op.viterbi_decode",
}
_MODES = frozenset(_core.mode_attributes())
DTYPES = ANY | frozenset(BYTES)
_INT64 = "int64"

# The contents of inputs that are known during a build, by the name of the input.
Contents = Mapping[str, Sequence[float]]

_disabled = ThreadLocal(False)


def disabled() -> AbstractContextManager[None]:
    """Has this thread leave operators without a converter to Paddle, whatever the flag."""
    return _disabled.overridden(True)


def are_enabled() -> bool:
    """Whether operators without a converter may become kernel calls in this thread."""
    return bool(flags.get("ngraph_kernel_calls")) and not _disabled.value


def may_call(type: str) -> bool:
    """Whether operators of a type may become kernel calls."""
    is_pure = type.startswith("pd_op.") and not type.endswith("_") and not is_random(type)
    return is_pure and type not in EXCLUDED


def callable_types() -> list[str]:
    """The types without a converter that Paddle has a CPU kernel for which functions may call."""
    types = [f"pd_op.{name}" for name in dir(operators) if not name.startswith("_")]
    return [
        type
        for type in sorted(types)
        if find_converter(type) is None and may_call(type) and _core.has_callable_kernel(type)
    ]


def converter_of(type: str) -> Converter | None:
    """The converter to kernel calls, or ``None`` if operators of this type cannot become some.

    Without the flag there is none, even for graphs of saved programs, which may name any operator.
    """
    return CONVERTER if flags.get("ngraph_kernel_calls") and may_call(type) else None


def find(op: Op) -> Converter | None:
    """The converter of ``op``, which may be that to kernel calls, or ``None``."""
    return (None if op.called else find_converter(op.type)) or converter_of(op.type)


def has_dtypes_of_kernels(entry: Converter, op: Op) -> bool:
    """Whether the converter ``entry`` refuses the dtypes of ``op``, and only kernels have them."""
    specs = (*op.input_specs(), *op.output_specs())
    return (
        any(spec.dtype in BYTES for spec in specs) and entry.reason_against_dtypes(op) is not None
    )


def tensors_as_bytes(graph: Graph) -> frozenset[int]:
    """The ids of the tensors that are bytes in functions of a subgraph, or of a block."""
    values = [*graph.inputs, *graph.states]
    given = {spec.id for index, spec in enumerate(values) if index not in graph.value_inputs}
    made: set[int] = set()
    called: dict[int, str] = {}
    converted: set[int] = set()
    for op in graph.ops:
        if find(op) is not CONVERTER:
            converted.update(spec.id for spec in op.input_specs())
            continue
        made.update(spec.id for spec in op.output_specs())
        called.update({spec.id: spec.dtype for spec in (*op.input_specs(), *op.output_specs())})
    return frozenset(
        id
        for id, dtype in called.items()
        if (id in made or id in given)
        and (dtype in BYTES or (dtype == _INT64 and id not in converted))
    )


def bytes_of(dtype: str) -> int:
    """The size of an element of a tensor that is bytes."""
    return BYTES.get(dtype, 8)


def name_of_bytes(dtype: str, index: str) -> str:
    """The name of a parameter or result of a function that is bytes (core/ov/ov_function.cc)."""
    return f"bytes/{dtype}/{index}"


def reason_against(op: Op) -> str | None:
    """The reason why the kernel of ``op`` cannot be called inside a function, or ``None``."""
    reason = CONVERTER.reason_against(op)
    if reason is not None:
        return reason
    try:
        description(op, op.constants)
    except NgraphError as error:
        return f"no converter, and its kernel cannot be called in a function: {error}"
    return None


class KernelDescription(NamedTuple):
    """The kernel that Paddle calls for an operator, and its arguments.

    Attributes:
        text: The description, for core/paddle/phi_kernel.h.
        tensors: The inputs that the kernel reads as tensors, by name; it reads others as
            attributes.
    """

    text: str
    tensors: list[str]


def description(
    op: Op, known: Contents, as_bytes: Collection[int] = frozenset()
) -> KernelDescription:
    """Describes the kernel of ``op``.

    Args:
        op: The operator.
        known: The contents of inputs, by name, that the kernel may read as attributes.
        as_bytes: The ids of the tensors that are bytes in the function.

    Raises:
        NgraphError: The kernel cannot be called in a function.
    """
    with signals.own_errors():
        try:
            call = _core.kernel_call(_program_of(op), op.type)
        except Exception as error:
            # Catches all exceptions, since Paddle raises errors of many types.
            raise NgraphError(str(error).strip().partition("\n")[0]) from error
    assert op.form is not None
    input_lists, output_lists = op.form.lists
    names = list(op.inputs)
    inlined = {names[value] for type, value in call["kernel_attributes"] if type == "operand"}
    tensors = [name for name in names if name not in inlined]
    specs = [spec for name in tensors for spec in op.inputs[name]]
    operands = [
        f"{int(name in input_lists)} {0 if name in inlined else len(op.inputs[name])}"
        for name in names
    ]
    results = [
        f"{int(name in output_lists)} {len(members)} {_use(op, name, known)}"
        for name, members in op.form.results.items()
    ]
    words = [
        *(op.type, call["kernel"], call["dtype"]),
        *_list(operands, str),
        *_list(specs, lambda spec: spec.dtype),
        *_list(results, str),
        *_list(
            [spec for _, _, spec in _used_results(op)],
            lambda spec: f"{spec.dtype} {int(spec.dtype in BYTES or spec.id in as_bytes)}",
        ),
    ]
    for inputs, attributes in (("meta_inputs", "meta_attributes"),
                               ("kernel_inputs", "kernel_attributes")):  # fmt: skip
        values = [_inlined(op, call["scalars"], known, *pair) for pair in call[attributes]]
        words += [*_list(call[inputs], str), *_list(values, lambda pair: _attribute(*pair))]
    return KernelDescription(" ".join(words), tensors)


def _inlined(
    op: Op, scalars: Sequence[int], known: Contents, type: str, value: Any
) -> tuple[str, Any]:
    """An attribute of a kernel, with contents in place of an input that is read as an attribute.

    Raises:
        NgraphError: The contents are known in a run only.
    """
    if type != "operand":
        return type, value
    name = list(op.inputs)[value]
    if name not in known:
        raise NgraphError(f"it reads input '{name}' as an attribute")
    if value in scalars:
        (number,) = known[name]
        return "scalar", (op.input(name).dtype, number)
    return "ints", [int(number) for number in known[name]]


def _program_of(op: Op) -> Any:
    """A program of ``op`` alone."""
    form = op.form
    if form is None:
        raise NgraphError("the graph lacks Paddle's attributes of the operator")
    program = paddle.pir.Program()
    block = program.global_block()
    values: dict[int, Any] = {}
    for number, spec in enumerate({spec.id: spec for spec in op.input_specs()}.values()):
        type = spec.dtype, list(spec.shape)
        values[spec.id] = _core.append_variable(block, f"variable_{number}", type)
    input_lists, output_lists = form.lists
    operands = [
        _packed([values[spec.id] for spec in specs], name in input_lists)
        for name, specs in op.inputs.items()
    ]
    types = [
        _packed([(spec.dtype, list(spec.shape)) for spec in specs], name in output_lists)
        for name, specs in form.results.items()
    ]
    attributes = [(name, form.attribute_types.get(name), value) for name, value in op.attrs.items()]
    _core.append_operator(block, op.type, operands, types, attributes)
    return program


def _use(op: Op, name: str, known: Contents) -> str:
    """The use of a result, for core/paddle/phi_kernel.h."""
    if not op.has_output(name):
        return "unused"
    if (rows := num_rows(op, name, known)) is not None:
        return str(rows)
    return "unsized" if name in DATA_DEPENDENT.get(op.type, ()) else "sized"


def num_rows(op: Op, name: str, known: Contents) -> int | None:
    """The number of rows of a result, where Paddle's shape inference does not know it.

    Args:
        op: The operator.
        name: The name of the result.
        known: The contents of inputs, by name.

    Returns:
        ``None`` if shape inference knows it, or if it depends on data.
    """
    if name not in _ROWS_AS.get(op.type, ()):
        return None
    if op.has_input("out_size"):
        if "out_size" not in known:
            return None
        size = next((int(size) for size in known["out_size"]), 0)
        if size > 0:
            return size
    rows = op.input("x").shape[0]
    return rows if rows > 0 else None


def _used_results(op: Op) -> Iterator[tuple[str, int, TensorSpec]]:
    """Yields (name, position, tensor) of each tensor of the results in use: outputs of the node."""
    assert op.form is not None
    for name, specs in op.form.results.items():
        for position, spec in enumerate(specs if op.has_output(name) else ()):
            yield name, position, spec


def _packed(items: list[Any], is_list: bool) -> Any:
    if is_list:
        return items
    return items[0] if items else None


def _list(items: Sequence[Any], word: Callable[[Any], str]) -> list[str]:
    return [str(len(items)), *map(word, items)]


def _attribute(type: str, value: Any) -> str:
    if type == "place":
        return type
    if type == "dtype":
        return f"dtype {value}"
    if not isinstance(value, list):
        return f"{type} {_value(value)}"
    return " ".join([type, *_list(value, _value)])


def _value(value: Any) -> str:
    if isinstance(value, tuple):  # a scalar: its dtype, and the number
        dtype, number = value
        return f"{dtype} {_number(number)}"
    return f"{len(value.encode())}:{value}" if isinstance(value, str) else _number(value)


def _number(value: Any) -> str:
    return value.hex() if isinstance(value, float) else str(int(value))


def _call(bridge: Any, op: Op) -> None:
    """The converter of all operators whose kernels functions call."""
    # The graph may come from a saved program, which the program pass has not checked.
    if (reason := CONVERTER.reason_against(op)) is not None:
        raise NgraphError(reason)
    known = {
        name: bridge.constant(op, name).reshape(-1).tolist()
        for name, specs in op.inputs.items()
        if specs and bridge.is_known(op, name)
    }
    kernel = description(op, known, bridge.as_bytes)
    operands = [node for name in kernel.tensors for node in bridge.kernel_operands(op, name)]
    node = bridge.extension("KernelCall", operands, kernel=kernel.text, op_id=op.id)
    for (name, position, spec), output in zip(_used_results(op), node.outputs()):
        if op.outputs[name][position] is not None:
            is_narrow = spec.dtype == _INT64 and spec.id not in bridge.as_bytes
            result = opset15.convert(output, Type.i64).output(0) if is_narrow else output
            is_sized = output.get_partial_shape().is_static
            bridge.set_kernel_result(op, name, result, position, is_sized)


def sample(bridge: Any, op: Op) -> None:
    """Samples by Paddle's kernel, from the generator that ``paddle.seed`` sets.

    Only in loops: whether and how often an iteration samples is known in a run only. No pass may
    compute the node, merge it with another, or move it out of the loop, so one of its operands is
    unknown to the build.

    Raises:
        NgraphError: The kernel cannot be called in a function.
    """
    known = {name: bridge.constant(op, name).reshape(-1).tolist() for name in ("num_samples",)}
    kernel = description(op, known)
    x = bridge.get_input_node(op, "x")
    hidden = bridge.extension("ShapeBarrier", [x, bridge.inputs.runtime_input()], axes=[])
    bridge.sizes.set(hidden, bridge.shape(x))
    node = bridge.extension("KernelCall", [hidden], kernel=kernel.text, op_id=op.id)
    bridge.set_output_node(op, "out", opset15.convert(node, Type.i64))


class _Indices(Mapping[str, Role]):
    """The roles of the inputs of any kernel: 64-bit integers are accepted if they fit 32 bits."""

    def __getitem__(self, name: str) -> Role:
        return Role.INDEX

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _names_modes_only(op: Op) -> bool:
    texts = [name for name, value in op.attrs.items() if isinstance(value, str)]
    types = op.form.attribute_types if op.form is not None else {}
    return all(name in _MODES or types.get(name) in ("dtype", "layout") for name in texts)


def _has_declared_dtypes(op: Op) -> bool:
    # Of a mean, Paddle's kernels count in int32, and programs declare float32.
    return not (op.attrs.get("reduce_op") == "MEAN" and op.has_output("dst_count"))


CONVERTER = Converter(
    type="a kernel of Paddle",
    function=_call,
    dtypes=DTYPES,
    inputs=_Indices(),
    outputs={},
    limits=(
        Limit("no converter", lambda op: may_call(op.type)),
        Limit("no converter, and an attribute may name a file", _names_modes_only),
        Limit("no converter, and a result has another dtype than declared", _has_declared_dtypes),
    ),
    draws=lambda op: False,
    moves=False,
    # The node rejects runs whose results need 64 bits.
    small_integers=True,
    integers=None,
    checks=lambda op: False,
    rounds=False,
    unchecked=(),
    open_starts=False,
)
