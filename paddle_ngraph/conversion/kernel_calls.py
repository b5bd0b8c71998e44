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
their contents; other shapes of the same bytes need no kernel. So are int64 tensors that nothing but
kernel calls reads. Parameters and results of the function that are bytes have a name by which the
core gives them their dtype back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

import paddle
from openvino import Node, Output, Type, opset15

from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import kernel_shapes
from paddle_ngraph.conversion.registry import (
    ANY,
    Converter,
    Limit,
    Role,
    find_converter,
    is_left_native,
)
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec, is_random
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.dtypes import BYTES, element_name
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
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
        "viterbi_decode": ("path",),
    }.items()
}
# The rank of results for which programs declare another one.
_RANKS: Mapping[tuple[str, str], int] = {("pd_op.viterbi_decode", "path"): 2}
# The dtypes of results for which programs declare another one.
_RESULT_DTYPES: Mapping[tuple[str, str], str] = {
    ("pd_op.equal_all", "out"): "bool",
    ("pd_op.generate_proposals", "rpn_rois_num"): "int32",
    ("pd_op.viterbi_decode", "path"): "int64",
}
# The results whose dtype is that of the first operand, though programs declare another one.
_DTYPE_AS_FIRST = frozenset({("pd_op.viterbi_decode", "scores")})
# The operators with such results.
WRONGLY_DECLARED = frozenset(type for type, _ in (*_RESULT_DTYPES, *_DTYPE_AS_FIRST))
# By operator, the results that have a LoD, which tensors of functions lack.
_LOD_RESULTS: Mapping[str, str] = {
    "pd_op.collect_fpn_proposals": "fpn_rois",
    "pd_op.distribute_fpn_proposals": "multi_fpn_rois",
}
# The operators that neither read the LoD of an operand, given the operand with this name, nor pass
# it on.
_IGNORE_LOD: Mapping[str, str] = {
    "pd_op.roi_align": "boxes_num",
    "pd_op.roi_align_grad": "boxes_num",
    "pd_op.roi_pool": "boxes_num",
    "pd_op.roi_pool_grad": "boxes_num",
}
# By operator, the results with as many rows as the input ``out_size`` says, or else as ``x`` has.
# Paddle's shape inference knows neither.
_ROWS_AS: Mapping[str, frozenset[str]] = {
    f"pd_op.{name}": frozenset({"out"}) for name in ("send_u_recv", "send_ue_recv")
}
# Operators whose kernels compute each sample, along axis 0, from that sample of every operand.
SAMPLEWISE = frozenset({"pd_op.shuffle_channel", "pd_op.yolo_box"})
# By operator, the input whose elements the result has, in their order. The bytes of a tensor are
# those of the result, so that no kernel has to copy them.
_VIEWS: Mapping[str, str] = {
    f"pd_op.{name}{suffix}": source
    for name, source in {
        **dict.fromkeys(("flatten", "reshape", "squeeze", "unsqueeze"), "x"),
        **dict.fromkeys(("flatten_grad", "reshape_grad"), "out_grad"),
    }.items()
    for suffix in ("", "_")
}
# Operators that sample in loops by their kernels, whose subgraph may not sample anything else.
SAMPLERS = frozenset({"pd_op.multinomial"})
# Operators whose results programs declare with other dtypes than their kernels make, or with
# another shape.
_MISDECLARED = frozenset(
    f"pd_op.{name}"
    for name in (
        *("equal_all", "matrix_rank", "matrix_rank_atol_rtol", "matrix_rank_tol", "slogdet"),
        *("unique", "unique_consecutive"),
    )
)
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
    return reason_against_type(type) is None


def reason_against_type(type: str) -> str | None:
    """Why operators of a type never become kernel calls, or ``None`` if some may."""
    if is_random(type):
        return "samples"
    if type in _MISDECLARED:
        return "makes other tensors than programs declare"
    return (
        _type_reasons.get_or_create(type, lambda: (_core.reason_against_kernel(type),))[0] or None
    )


def cpu_kernels() -> dict[str, tuple[list[str], str]]:
    """All CPU kernels of Paddle: the types that run each, and the kinds of its other tensors.

    Other tensors than dense ones are ``"SelectedRows"`` or ``"Sparse"``, say; empty if all are
    dense.
    """
    return _core.cpu_kernels()


def callable_types() -> list[str]:
    """The types without a converter whose CPU kernels of Paddle functions may call."""
    return [type for type in _types_without_converter() if may_call(type)]


def native_types() -> dict[str, str]:
    """The types with a CPU kernel that functions neither convert nor call, with the reasons."""
    reasons = ((type, reason_against_type(type)) for type in _types_without_converter())
    return {type: reason for type, reason in reasons if reason is not None}


def _types_without_converter() -> list[str]:
    types = {type for types, _ in cpu_kernels().values() for type in types}
    return sorted(type for type in types if find_converter(type) is None)


def converter_of(type: str) -> Converter | None:
    """The converter to kernel calls, or ``None`` if operators of this type cannot become some.

    Without the flag there is none, even for graphs of saved programs, which may name any operator.
    """
    is_called = flags.get("ngraph_kernel_calls") and may_call(type) and not is_left_native(type)
    return CONVERTER if is_called else None


def find(op: Op) -> Converter | None:
    """The converter of ``op``, which may be that to kernel calls, or ``None``."""
    return (None if op.called else find_converter(op.type)) or converter_of(op.type)


def runs_kernel(op: Op) -> bool:
    """Whether a function runs Paddle's kernel for ``op``.

    An operator whose result is the bytes of an input in another shape needs none, unless a size of
    that input depends on data.
    """
    return find(op) is CONVERTER and not _is_view(op)


def _is_view(op: Op) -> bool:
    return op.type in _VIEWS and op.input(_VIEWS[op.type]).dtype in BYTES


def has_dtypes_of_kernels(entry: Converter, op: Op) -> bool:
    """Whether the converter ``entry`` refuses the dtypes of ``op``, and only kernels have them."""
    specs = (*op.input_specs(), *op.output_specs())
    return (
        any(spec.dtype in BYTES for spec in specs) and entry.reason_against_dtypes(op) is not None
    )


def tensors_as_bytes(graph: Graph, is_body: bool = False) -> frozenset[int]:
    """The ids of the tensors that are bytes in functions.

    Args:
        graph: A subgraph, or the block of a loop or branch.
        is_body: Whether it is such a block. Then its inputs and outputs are bytes if their dtype
            says so, inside and outside alike.
    """
    values = [*graph.inputs, *graph.states]
    given = {spec.id for index, spec in enumerate(values) if index not in graph.value_inputs}
    made: set[int] = set()
    called: dict[int, str] = {}
    converted: set[int] = set()
    if is_body:
        converted.update(spec.id for spec in (*graph.inputs, *graph.outputs))
        called.update({spec.id: spec.dtype for spec in graph.inputs if spec.dtype in BYTES})
    for op in graph.ops:
        results, specs = list(op.output_specs()), list(op.input_specs())
        if find(op) is not CONVERTER:
            converted.update(spec.id for spec in specs)
            kept = BYTES.keys() if op.blocks else ()
            results, specs = ([s for s in each if s.dtype in kept] for each in (results, specs))
        made.update(spec.id for spec in results)
        called.update({spec.id: spec.dtype for spec in (*results, *specs)})
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
    """The name of a parameter or result of a function that is bytes (core/ov/byte_ports.h)."""
    return f"bytes/{dtype}/{index}"


def reason_against(op: Op, reads_unsized: bool = False) -> str | None:
    """The reason why the kernel of ``op`` cannot be called inside a function, or ``None``.

    Args:
        op: The operator.
        reads_unsized: Whether a size of an operand depends on data: then those of results may.
    """
    if op.form is None:
        return _reason_against(op, reads_unsized)
    used = [name for name in op.outputs if op.has_output(name)]
    key = f"{_form_of(op)} {used} {op.constants} {reads_unsized}"
    return _reasons.get_or_create(key, lambda: (_reason_against(op, reads_unsized),))[0]


def _reason_against(op: Op, reads_unsized: bool) -> str | None:
    reason = CONVERTER.reason_against(op)
    if reason is not None:
        return reason
    try:
        kernel = description(op, op.constants)
    except NgraphError as error:
        return f"no converter, and its kernel cannot be called in a function: {error}"
    specs = [spec for name in kernel.tensors for spec in op.inputs[name]]
    types, shapes = [[*each] for each in zip(*map(_type_and_shape, specs))] or ([], [])
    if any(spec.dtype in BYTES for spec in (*specs, *op.output_specs())):
        # Paddle may promote operands to another dtype than the program declares.
        try:
            kernel_shapes.inferred(kernel.text, types, shapes)
        except NgraphError as error:
            return f"no converter, and {error}"
    if reads_unsized or not any(-1 in spec.shape for spec in specs):
        return None
    depend_on_data = DATA_DEPENDENT.get(op.type, ())
    may_be_open = [name in depend_on_data for name, _, _ in _used_results(op)]
    if not kernel_shapes.has_rule(kernel.text, types, shapes, may_be_open):
        return "no converter, and a size of a result does not follow from the dynamic ones"
    return None


def _type_and_shape(spec: TensorSpec) -> tuple[Type, tuple[int, ...]]:
    """The element type and shape of an operand in a function."""
    if spec.dtype in BYTES:
        return Type.u8, (*spec.shape, BYTES[spec.dtype])
    return getattr(Type, str(element_name(spec.dtype))), spec.shape


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
    if op.form is None:
        raise NgraphError("the graph lacks Paddle's attributes of the operator")
    call = _lowered.get_or_create(_form_of(op), lambda: _lower(op))
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


def _form_of(op: Op) -> str:
    """A text of all that the lowering of an operator depends on, which excludes ids of tensors."""
    form = op.form
    assert form is not None
    tensors = [
        [(name, [(spec.dtype, spec.shape) for spec in specs]) for name, specs in lists.items()]
        for lists in (op.inputs, form.results)
    ]
    lists = [sorted(names) for names in form.lists]
    return repr((op.type, tensors, lists, op.attrs, form.attribute_types))


def _lower(op: Op) -> dict[str, Any]:
    """The kernel call of an operator in Paddle's executor (core/paddle/kernel_call.h)."""
    with signals.own_errors():
        try:
            return _core.kernel_call(_program_of(op), op.type)
        except Exception as error:
            # Catches all exceptions, since Paddle raises errors of many types.
            raise NgraphError(str(error).strip().partition("\n")[0]) from error


_lowered: LRUCache[str, dict[str, Any]] = process_cache(
    __name__,
    "kernel_calls",
    "kernels that Paddle calls for operators without a converter, with their arguments",
    key="operator, its attributes, and the dtypes and shapes of its tensors",
    bound=256,
)


_reasons: LRUCache[str, tuple[str | None]] = process_cache(
    __name__,
    "kernel_reasons",
    "why kernels of operators cannot be called in functions, or that they can",
    key="as for `kernel_calls`, the outputs in use, and the known contents",
    bound=1024,
)
_type_reasons: LRUCache[str, tuple[str]] = process_cache(
    __name__,
    "type_reasons",
    "why functions call no kernel of a type of operators, or that they may",
    key="type",
    bound=2048,
)


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
    assert form is not None
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
    if (rank := _RANKS.get((op.type, name))) is not None:
        return f"open{rank}"
    if (rows := rows_of(op, name, known)) is not None:
        return rows
    return "unsized" if name in DATA_DEPENDENT.get(op.type, ()) else "sized"


def rows_of(op: Op, name: str, known: Contents) -> str | None:
    """The number of rows of a result, where Paddle's shape inference does not know it.

    Args:
        op: The operator.
        name: The name of the result.
        known: The contents of inputs, by name.

    Returns:
        A number, or ``"as_first"`` for the rows of the first operand, as core/paddle/phi_kernel.h
        has them; ``None`` if shape inference knows the number, or if it depends on data.
    """
    if name not in _ROWS_AS.get(op.type, ()):
        return None
    if op.has_input("out_size"):
        if "out_size" not in known:
            return None
        size = next((int(size) for size in known["out_size"]), 0)
        if size > 0:
            return str(size)
    return "as_first"


def _used_results(op: Op) -> Iterator[tuple[str, int, TensorSpec]]:
    """Yields (name, position, tensor) of each tensor of the results in use: outputs of the node."""
    assert op.form is not None
    first = next(op.input_specs(), None)
    for name, specs in op.form.results.items():
        dtype = made_dtype(op.type, name, "" if first is None else first.dtype)
        for position, spec in enumerate(specs if op.has_output(name) else ()):
            yield name, position, spec if dtype is None else replace(spec, dtype=dtype)


def made_dtype(type: str, result: str, first: str) -> str | None:
    """The dtype of a result, if programs declare another one; else ``None``.

    Args:
        type: The type of the operator.
        result: The name of the result.
        first: The dtype of the first operand.
    """
    if (type, result) in _DTYPE_AS_FIRST:
        return first
    return _RESULT_DTYPES.get((type, result))


def result_with_lod(type: str) -> str | None:
    """The name of the result of an operator of a type that has a LoD; ``None`` without one."""
    return _LOD_RESULTS.get(type)


def ignores_lod(op: Op) -> bool:
    """Whether an operator computes the same for operands with and without a LoD."""
    return op.type in _IGNORE_LOD and op.has_input(_IGNORE_LOD[op.type])


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
    view = find_converter(op.type) if _is_view(op) else None
    if view is not None and _is_sized(bridge.operands(op, _VIEWS[op.type])[0]):
        view.function(bridge, op)
        return
    known = {
        name: bridge.constant(op, name).reshape(-1).tolist()
        for name, specs in op.inputs.items()
        if specs and bridge.is_known(op, name)
    }
    kernel = description(op, known, bridge.as_bytes)
    operands = [node for name in kernel.tensors for node in bridge.operands(op, name)]
    node = _node(bridge, op, kernel.text, operands)
    for (name, position, spec), output in zip(_used_results(op), node.outputs()):
        if op.outputs[name][position] is not None:
            is_narrow = spec.dtype == _INT64 and spec.id not in bridge.as_bytes
            result = opset15.convert(output, Type.i64).output(0) if is_narrow else output
            bridge.set_kernel_result(op, name, result, position, _is_sized(output))


def _is_sized(output: Output) -> bool:
    """Whether the shape of a tensor is known before a run."""
    return bool(output.get_partial_shape().is_static)


def _node(bridge: Any, op: Op, kernel: str, operands: Sequence[Output]) -> Node:
    """A kernel call, with the sizes of its results in a build with symbolic sizes."""
    if not bridge.sizes.are_symbolic:
        return bridge.extension("KernelCall", operands, kernel=kernel, op_id=op.id)
    shapes = list(map(bridge.shape, operands))
    types = [operand.get_element_type() for operand in operands]
    rule = kernel_shapes.symbolic_rule_of(kernel, types, shapes, op.type in SAMPLEWISE)
    if rule is None:
        for size in (size for shape in shapes for size in shape):
            int(size)  # a guard: the function is valid for this size
        return bridge.extension("KernelCall", operands, kernel=kernel, op_id=op.id)
    words = kernel_shapes.words_of(rule)
    node = bridge.extension("KernelCall", operands, kernel=kernel, op_id=op.id, shapes=words)
    for output, shape in zip(node.outputs(), kernel_shapes.sizes_by(rule, shapes)):
        bridge.sizes.set(output, shape)
    return node


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


def _knows_lengths(op: Op) -> bool:
    # Without lengths, the kernels read them from a LoD.
    return "warpctc" not in op.type or op.has_input("logits_length")


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
        Limit("no converter, and its kernel reads a LoD", _knows_lengths),
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
    kept_for="",
)
