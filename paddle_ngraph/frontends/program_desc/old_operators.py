"""Checks that Paddle's translation to PIR preserves the semantics of ProgramDesc operators.

Each operator is translated alone, and all its inputs, outputs and attributes are searched for in
the resulting PIR operators. Operators with known losses are rewritten first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np

from paddle_ngraph import _core
from paddle_ngraph.frontends.program_desc import single_assignment, unchanged_operators
from paddle_ngraph.frontends.program_desc.single_assignment import (
    IN_PLACE,
    LossyOperators,
    NotTranslatable,
    blocks,
    copy_variable,
    declared,
    load_dialect,
    number_of,
    numbered,
    operators,
)
from paddle_ngraph.paddle_private.names import (
    ProgramDesc,
    Scalar,
    VarType,
    attribute_variables,
    insert_operator,
    producer_of,
    set_attribute,
    translate_with_values,
)
from paddle_ngraph.paddle_private.protocols import (
    LegacyBlock,
    LegacyOperator,
    LegacyProgramDesc,
    Value,
)
from paddle_ngraph.partitioning.analysis.block_view import (
    CONSTANTS,
    LISTS,
    SCOPE_NAMES,
    overwritten,
)
from paddle_ngraph.partitioning.analysis.operator_kinds import is_known
from paddle_ngraph.utils import signals

_ARRAYS = frozenset(
    {"write_to_array", "read_from_array", "lod_array_length", "tensor_array_to_tensor"}
)
# Operators whose translation by Paddle involves their blocks, or inputs and outputs of the program.
_STRUCTURE = frozenset(
    {"feed", "fetch", "fetch_v2", "while", "conditional_block", "select_input", "print", "py_func"}
)
# Operators whose output may overwrite an input: their kernels read each element before they
# overwrite it.
_MAY_OVERWRITE_INPUTS = IN_PLACE | frozenset(
    {
        "abs",
        "assign",
        "cast",
        "clip",
        "cumsum",
        "dropout",
        "exp",
        "fake_quantize_dequantize_moving_average_abs_max",
        "fake_quantize_moving_average_abs_max",
        "fake_quantize_range_abs_max",
        "flatten2",
        "flatten_contiguous_range",
        "floor",
        "increment",
        "leaky_relu",
        "logical_and",
        "logical_not",
        "logical_or",
        "relu",
        "reshape2",
        "round",
        "rsqrt",
        "scale",
        "set_value",
        "sigmoid",
        "softmax",
        "sqrt",
        "square",
        "squeeze2",
        "tanh",
        "unsqueeze2",
        "write_to_array",
    }
)
# Attributes of operators that have no effect on the results.
IRRELEVANT_ATTRIBUTES = frozenset(
    {
        "ALGO",
        "exhaustive_search",
        "force_cpu",
        "grad_inplaced",
        "in_dtype",
        "infer_flags",
        "mkldnn_data_type",
        "name",
        "op_callstack",
        "op_device",
        "op_namescope",
        "op_role",
        "op_role_var",
        "place_type",
        "sub_block",
        "use_addto",
        "use_cudnn",
        "use_mkldnn",
        "use_quantizer",
        "with_quant_attr",
        "workspace_size_MB",
    }
)
# Names that an attribute of ProgramDesc may have in PIR, where Paddle's table has no other one: its
# translator renames them in code.
_ALIASES: dict[str, tuple[str, ...]] = {
    "depth": ("num_classes",),
    "out_dtype": ("dtype",),
    "step": ("value",),
    "str_value": ("value",),
}


# Operators that align operands as elementwise ones do.
_COMPARING = frozenset(
    {"equal", "grad_add", "greater_equal", "greater_than", "less_equal", "less_than", "not_equal"}
)
# Reductions whose kernels ignore `reduce_all`.
_OWN_AXES = frozenset({"reduce_amax", "reduce_amin"})


# -- rewrites before the translation ------------------------------------------------------------


def rewrite_for_translation(description: LegacyProgramDesc) -> None:
    """Rewrites, in place, operators of which the translation is known to lose information."""
    types = {op.type() for block in blocks(description) for op in operators(block)}
    for block in blocks(description):
        for op in [op for op in operators(block) if op.type() == "conditional_block"]:
            _make_condition_scalar(block, op)
        for op in list(operators(block)):
            copy_attribute_variables(block, op)
            if f"{op.type()}_grad" not in types:
                _rewrite_first_version(block, op)
            if op.type().startswith("reduce_") and op.type() not in _OWN_AXES:
                _list_axes(block, op)
            elif op.type() in ("mul", "mul_grad"):
                _rewrite_mul(block, op)
            elif op.type().startswith("elementwise_") and not op.type().endswith("_grad"):
                _align_operands(block, op)
            elif op.type() == "strided_slice":
                _squeeze_axes(block, op)
            elif _is_quantization(op) and _is_true(op, "is_test"):
                _rename_unwritten(block, op)
            elif op.type() == "exponential":
                _draw_in_place(block, op)
            elif op.type() == "dequantize_linear" and not _is_true(op, "only_observer"):
                _declare_weights(block, op)


# First versions of operators, which Paddle's translator does not have, and the present ones that
# compute the same: the type, and attributes under other names.
_FIRST_VERSIONS: dict[str, tuple[str, dict[str, str]]] = {
    "expand": ("tile", {"expand_times": "repeat_times"}),
    "top_k": ("top_k_v2", {}),
    "transpose": ("transpose2", {}),
}
# The attributes with the sizes of the results of resizing operators, by the rank of the input.
_SIZES = {3: ("out_w",), 4: ("out_h", "out_w"), 5: ("out_d", "out_h", "out_w")}


def _rewrite_first_version(block: LegacyBlock, op: LegacyOperator) -> None:
    """Converts the first version of an operator to the present one, where they agree."""
    if op.type() in _FIRST_VERSIONS:
        type, renamed = _FIRST_VERSIONS[op.type()]
        op.set_type(type)
        for name, present in renamed.items():
            set_attribute(op, present, op.attr(name))
            op.remove_attr(name)
        op.check_attrs()
    elif op.type() == "flatten2":
        _rewrite_flatten(block, op)
    elif op.type() in ("bilinear_interp", "nearest_interp"):
        _rewrite_resize(block, op)


def _rewrite_flatten(block: LegacyBlock, op: LegacyOperator) -> None:
    """Converts a flattening to a matrix, if the rows are an axis of the operand."""
    if op.attr("axis") != 1 or len(_shape(block, op, "X")) < 2:
        return
    op.set_type("flatten_contiguous_range")
    op.remove_attr("axis")
    set_attribute(op, "start_axis", 1)
    set_attribute(op, "stop_axis", -1)
    op.check_attrs()


def _rewrite_resize(block: LegacyBlock, op: LegacyOperator) -> None:
    """Converts a resizing operator to its second version, which has a scale for each axis.

    Both sample at multiples of ``1 / scale`` if there is a scale. An operator with a scale and
    sizes in ``OutSize``, which computes with both, stays.
    """
    scale, names = op.attr("scale"), _SIZES.get(len(_shape(block, op, "X")), ())
    if op.attr("data_layout") != "NCHW" or not names or _has(op, "input", "Scale"):
        return
    if scale > 0 and _has(op, "input", "OutSize"):
        return
    scales: list[float] = []
    if scale > 0 and not _has(op, "input", "SizeTensor"):
        scales = [scale] * len(names)
        for name in names:
            set_attribute(op, name, -1)
    op.set_type(f"{op.type()}_v2")
    op.remove_attr("scale")
    set_attribute(op, "scale", scales)
    op.check_attrs()


def _list_axes(block: LegacyBlock, op: LegacyOperator) -> None:
    """Sets the axes of a reduction over all axes: a translation loses ``reduce_all``."""
    shape = _shape(block, op, "X")
    if op.has_attr("reduce_all") and op.attr("reduce_all") and shape:
        set_attribute(op, "dim", list(range(len(shape))))


def _rewrite_mul(block: LegacyBlock, op: LegacyOperator) -> None:
    """Converts ``mul`` to ``matmul_v2`` of flattened operands.

    Paddle's translation of ``mul`` has results of wrong shapes.
    """
    x, y = _shape(block, op, "X"), _shape(block, op, "Y")
    split, y_split = op.attr("x_num_col_dims"), op.attr("y_num_col_dims")
    rows, tail = x[:split], y[y_split:]
    if not tail or -1 in x[split:] or -1 in y:
        return
    # Unchanged axes, also dynamic ones, are copied: the reshape target has a 0 for them.
    unchanged, columns = [0] * split, _product(tail)
    flat_x = _Flattening([*rows, _product(x[split:])], [*unchanged, *x[split:]], unchanged)
    flat_y = _Flattening([_product(y[:y_split]), columns], y, [])
    flat_out = _Flattening([*rows, columns], [*unchanged, *tail], unchanged)
    is_grad = op.type() == "mul_grad"
    for slot, flat in (("X", flat_x), ("Y", flat_y), ("Out@GRAD", flat_out)):
        if slot != "Out@GRAD" or is_grad:
            _flatten_input(block, op, slot, flat)
    for slot, flat in (("X@GRAD", flat_x), ("Y@GRAD", flat_y), ("Out", flat_out)):
        if (slot != "Out") == is_grad and _has(op, "output", slot):
            _unflatten_output(block, op, slot, flat)
    op.set_type("matmul_v2_grad" if is_grad else "matmul_v2")
    for name in ("x_num_col_dims", "y_num_col_dims"):
        op.remove_attr(name)
    set_attribute(op, "trans_x", False)
    set_attribute(op, "trans_y", False)


class _Flattening(NamedTuple):
    """A reshape of a tensor to a matrix, or to a batch of matrices.

    Attributes:
        matrix: The shape after the reshape.
        whole: The target of the inverse reshape.
        kept: The first elements of the reshape's target; 0 copies a dimension.
    """

    matrix: list[int]
    whole: list[int]
    kept: list[int]

    @property
    def changes(self) -> bool:
        """Whether an operand must be reshaped to a matrix: it has another rank."""
        return len(self.matrix) != len(self.whole)

    @property
    def target(self) -> list[int]:
        """The target shape of the reshape to a matrix; 0 keeps a dimension."""
        return [*self.kept, *self.matrix[len(self.kept) :]]


def _flatten_input(block: LegacyBlock, op: LegacyOperator, slot: str, flat: _Flattening) -> None:
    if not flat.changes:
        return
    (name,) = op.input(slot)
    matrix, position = _matrix_of(block, op, name, flat)
    _insert(block, position, "reshape2", {"X": [name]}, {"Out": [matrix]}, {"shape": flat.target})
    op.set_input(slot, [matrix])


def _unflatten_output(block: LegacyBlock, op: LegacyOperator, slot: str, flat: _Flattening) -> None:
    if not flat.changes:
        return
    (name,) = op.output(slot)
    matrix, position = _matrix_of(block, op, name, flat)
    op.set_output(slot, [matrix])
    _insert(
        block, position + 1, "reshape2", {"X": [matrix]}, {"Out": [name]}, {"shape": flat.whole}
    )


def _matrix_of(
    block: LegacyBlock, op: LegacyOperator, name: str, flat: _Flattening
) -> tuple[str, int]:
    """Declares a variable for ``name`` as a matrix; returns its name, and the index of ``op``."""
    position = block_position(block, op)
    matrix = f"{name}@matrix{position}"
    copy_variable(block, declared(block, name), matrix, flat.matrix)
    return matrix, position


def _align_operands(block: LegacyBlock, op: LegacyOperator) -> None:
    """Appends axes to the second operand, if ``axis`` aligns it with leading axes of the first."""
    axis = op.attr("axis") if op.has_attr("axis") else -1
    x, y = _shape(block, op, "X"), _shape(block, op, "Y")
    lacking = len(x) - len(y) - axis
    if axis < 0 or lacking <= 0 or not y:
        return
    (name,) = op.input("Y")
    position = block_position(block, op)
    result = f"{name}@aligned{position}"
    copy_variable(block, declared(block, name), result, [*y, *[1] * lacking])
    axes = list(range(len(y), len(y) + lacking))
    _insert(block, position, "unsqueeze2", {"X": [name]}, {"Out": [result]}, {"axes": axes})
    op.set_input("Y", [result])
    set_attribute(op, "axis", -1)


def _squeeze_axes(block: LegacyBlock, op: LegacyOperator) -> None:
    """Inserts a squeeze after a strided slice: the translation ignores ``decrease_axis``."""
    axes = op.attr("decrease_axis") if op.has_attr("decrease_axis") else []
    shape = list(_shape(block, op, "Out", "output"))
    if not axes or any(block.op(i).type() == "strided_slice_grad" for i in range(block.op_size())):
        return
    if len(axes) == len(_shape(block, op, "Input")):
        return
    (name,) = op.output("Out")
    for axis in sorted(axes):
        shape.insert(axis, 1)
    whole = f"{name}@whole"
    copy_variable(block, declared(block, name), whole, shape)
    op.set_output("Out", [whole])
    set_attribute(op, "decrease_axis", [])
    position = block_position(block, op) + 1
    _insert(block, position, "squeeze2", {"X": [whole]}, {"Out": [name]}, {"axes": list(axes)})


def _is_quantization(op: LegacyOperator) -> bool:
    return op.type().startswith("fake_quantize_") and not op.type().endswith("_grad")


def _is_true(op: LegacyOperator, attribute: str) -> bool:
    return op.has_attr(attribute) and bool(op.attr(attribute))


def _rename_unwritten(block: LegacyBlock, op: LegacyOperator) -> None:
    """Renames the outputs of a quantization in evaluation, other than its result.

    In evaluation the operator does not write these outputs, but their names are those of its
    inputs, such as the scale.
    """
    for slot in set(op.output_names()) - {"Out"}:
        for name in op.output(slot):
            unused = f"{name}@unwritten{block_position(block, op)}"
            copy_variable(block, declared(block, name), unused)
            op.set_output(slot, [unused])


def copy_attribute_variables(block: LegacyBlock, op: LegacyOperator) -> dict[str, str]:
    """Has an operator read copies of the persistable variables in place of its attributes.

    Paddle's translator reads such a variable as a parameter only for inputs.

    Returns:
        The names of the copies by those of the variables.
    """
    copies: dict[str, str] = {}
    for name in dict.fromkeys(chain.from_iterable(attribute_variables(op).values())):
        variable = declared(block, name)
        if variable.persistable():
            position = block_position(block, op)
            copies[name] = f"{name}@attribute{position}"
            copy_variable(block, variable, copies[name])
            _insert(block, position, "assign", {"X": [name]}, {"Out": [copies[name]]}, {})
    single_assignment.rename_attributes(block, op, copies)
    return copies


def _make_condition_scalar(block: LegacyBlock, op: LegacyOperator) -> None:
    """Gives a ``conditional_block`` a scalar condition: whether all its inputs have elements.

    Raises:
        LossyOperators: An input is no dense tensor.
    """
    if op.attr("is_scalar_condition"):
        return
    tensors = [name for name in op.input("Input") if not unchanged_operators.is_mark(name)]
    if any(declared(block, name).type() != VarType.DENSE_TENSOR for name in tensors):
        number, reason = number_of(op), "conditional_block asks whether a list is empty"
        raise LossyOperators({number: reason}) if number is not None else NotTranslatable(reason)
    made = count()

    def appended(type: str, inputs: dict[str, list[str]], to: Any, **attributes: Any) -> str:
        name = f"{op.output('Scope')[0]}@condition{next(made)}"
        variable = block.var(name.encode())
        variable.set_type(VarType.DENSE_TENSOR)
        variable.set_dtype(to)
        variable.set_shape([])
        _insert(block, block_position(block, op), type, inputs, {"Out": [name]}, attributes)
        return name

    truth, number = VarType.BOOL, VarType.INT64
    attributes: dict[str, Any] = {"shape": [], "value": 1.0, "dtype": int(truth)}
    condition = appended("fill_constant", {}, truth, **attributes)
    for name in tensors:
        size = appended("size", {"Input": [name]}, number)
        attributes = {"in_dtype": int(number), "out_dtype": int(truth)}
        has_elements = appended("cast", {"X": [size]}, truth, **attributes)
        operands = {"X": [condition], "Y": [has_elements]}
        condition = appended("logical_and", operands, truth)
    op.set_input("Cond", [condition])
    set_attribute(op, "is_scalar_condition", True)


def _draw_in_place(block: LegacyBlock, op: LegacyOperator) -> None:
    """Has a sampler overwrite a copy of its input, since PIR has it in place only."""
    (x,), (out,) = op.input("X"), op.output("Out")
    if x == out:
        return
    position = block_position(block, op)
    sampled = f"{x}@sampled{position}"
    copy_variable(block, declared(block, x), sampled)
    op.set_input("X", [sampled])
    op.set_output("Out", [sampled])
    _insert(block, position + 1, "assign", {"X": [sampled]}, {"Out": [out]}, {})
    _insert(block, position, "assign", {"X": [x]}, {"Out": [sampled]}, {})


def _declare_weights(block: LegacyBlock, op: LegacyOperator) -> None:
    """Declares quantized weights as int8, since Paddle's tools store int8 without declaring it."""
    (name,) = op.input("X")
    variable = block.find_var_recursive(name.encode())
    if variable is not None and variable.persistable():
        variable.set_dtype(VarType.INT8)


def _insert(
    block: LegacyBlock,
    position: int,
    type: str,
    inputs: dict[str, list[str]],
    outputs: dict[str, list[str]],
    attributes: dict[str, Any],
) -> None:
    op = insert_operator(block, position)
    op.set_type(type)
    for slot, names in inputs.items():
        op.set_input(slot, names)
    for slot, names in outputs.items():
        op.set_output(slot, names)
    for name, value in attributes.items():
        set_attribute(op, name, value)
    op.check_attrs()


def block_position(block: LegacyBlock, op: LegacyOperator) -> int:
    """The index at which an operator is in its block."""
    return next(i for i, other in enumerate(operators(block)) if other is op)


def _shape(block: LegacyBlock, op: LegacyOperator, slot: str, side: str = "input") -> list[int]:
    if not _has(op, side, slot):
        return []
    name = getattr(op, side)(slot)[0]
    variable = block.find_var_recursive(name.encode())
    return list(variable.shape()) if variable is not None else []


def _has(op: LegacyOperator, side: str, slot: str) -> bool:
    return slot in getattr(op, f"{side}_names")() and bool(getattr(op, side)(slot))


def _product(shape: list[int]) -> int:
    return -1 if -1 in shape else int(np.prod(shape, dtype=np.int64))


# -- checks of each operator ---------------------------------------------------------------------


def overlaps(description: LegacyProgramDesc) -> dict[int, str]:
    """Operators with an output that is also an input, unless the kernel is known to allow it.

    Such an operator overwrites an input, and may not have read it before.

    Returns:
        The reasons against their translation, by their numbers.
    """
    return {
        number: f"{op.type()} overwrites '{name}', which it reads"
        for number, (block, op) in enumerate(numbered(description))
        for name in sorted(set(op.output_arg_names()) & set(op.input_arg_names(True)))
        if op.type() not in _STRUCTURE and not _may_overwrite(block, op, name)
    }


def _may_overwrite(block: LegacyBlock, op: LegacyOperator, name: str) -> bool:
    if op.type() == "sum":
        return bool(op.input("X")[0] == name and op.input("X").count(name) == 1)
    if op.type().startswith("elementwise_") and not op.type().endswith("_grad"):
        return _shape(block, op, "X") == _shape(block, op, "Y")
    return op.type() in _MAY_OVERWRITE_INPUTS or name == "@EMPTY@"


def check(description: LegacyProgramDesc) -> None:
    """Translates each operator alone, and identical ones only once, and checks the translation.

    Raises:
        LossyOperators: The translation of operators loses information.
        NotTranslatable: So does that of an operator that another rewrite has inserted.
    """
    checked: dict[tuple[Any, ...], str] = {}
    lossy: dict[int, str] = {}
    for block, op in numbered(description):
        if op.type() in _STRUCTURE | _ARRAYS or unchanged_operators.is_placeholder(op):
            continue
        if (signature := _signature(block, op)) not in checked:
            checked[signature] = _loss(block, op)
        if not checked[signature]:
            continue
        if (number := number_of(op)) is None:
            raise NotTranslatable(checked[signature])
        lossy[number] = checked[signature]
    if lossy:
        raise LossyOperators(lossy)


def _loss(block: LegacyBlock, op: LegacyOperator) -> str:
    """The loss of the translation of an operator, in words; empty if there is none."""
    try:
        _TranslatedOperator(block, op).check()
    except NotTranslatable as error:
        return str(error)
    return ""


_TENSORS = frozenset(
    {
        VarType.DENSE_TENSOR,
        VarType.DENSE_TENSOR_ARRAY,
        VarType.SELECTED_ROWS,
    }
)


def _signature(block: LegacyBlock, op: LegacyOperator) -> tuple[Any, ...]:
    """A key of an operator: all that its translation depends on, except the names of variables."""
    indices: dict[str, int] = {}

    def variable(name: str) -> tuple[Any, ...]:
        index = indices.setdefault(name, len(indices))
        found = block.find_var_recursive(name.encode())
        if found is None:
            return (index,)
        # For a variable that is no tensor, the signature contains only the type: Paddle has neither
        # its dtype nor its shape.
        if found.type() not in _TENSORS:
            return index, int(found.type())
        return index, int(found.type()), int(found.dtype()), tuple(found.shape())

    slots = [
        *(("attribute", n, *map(variable, names)) for n, names in attribute_variables(op).items())
    ]
    slots += [
        (side, slot, *map(variable, getattr(op, side)(slot)))
        for side in ("input", "output")
        for slot in getattr(op, f"{side}_names")()
    ]
    attributes = [(n, repr(op.attr(n))) for n in op.attr_names() if n not in IRRELEVANT_ATTRIBUTES]
    return op.type(), tuple(slots), tuple(sorted(attributes))


class _TranslatedOperator:
    """A ProgramDesc operator, and the PIR operators of its translation.

    Args:
        block: The block of the operator.
        op: The operator.
    """

    def __init__(self, block: LegacyBlock, op: LegacyOperator) -> None:
        self._block, self._op = block, op
        isolated: LegacyProgramDesc = ProgramDesc()
        inner = isolated.block(0)
        for name in dict.fromkeys([*op.input_arg_names(True), *op.output_arg_names()]):
            variable = block.find_var_recursive(name.encode())
            if variable is not None:
                copy_variable(inner, variable, name)
        for name in op.input_arg_names(True):
            if (variable := inner.find_var(name.encode())) is not None:
                variable.set_persistable(True)
        copy = inner.append_op()
        copy.copy_from(op)
        single_assignment.rename_inputs(inner, copy, {})
        copied = copy_attribute_variables(inner, copy)
        with signals.own_errors():
            try:
                load_dialect()
                self._program, self._values = translate_with_values(isolated)
            except Exception as error:
                # Catches all exceptions, since Paddle raises errors of many types.
                raise NotTranslatable(f"Paddle cannot translate {op.type()}") from error
        values = {name: self._values[each][-1] for name, each in copied.items()}
        copies = {producer_of(value).id() for value in values.values()}
        self._ops = [op for op in self._program.global_block().ops if op.id() not in copies]
        self._names = {
            op.results()[0].id: op.attrs()["parameter_name"]
            for op in self._ops
            if op.name() == "builtin.parameter"
        }
        self._names.update({value.id: name for name, value in values.items()})

    def check(self) -> None:
        """Raises ``NotTranslatable`` if the translated operator computes something else."""
        self._check_kind()
        self._check_inputs()
        self._check_memory()
        self._check_outputs()
        self._check_attributes()

    def _loss_error(self, what: str) -> NotTranslatable:
        return NotTranslatable(f"the translation loses {what} of {self._op.type()}")

    def _check_kind(self) -> None:
        if not all(is_known(op.name()) for op in self._ops):
            raise NotTranslatable(f"the translation of {self._op.type()} runs on oneDNN only")

    def _check_inputs(self) -> None:
        read = {
            self._names.get(value.id)
            for op in self._ops
            for value in op.operands_source()
            if value.initialized()
        }
        is_grad = self._op.type().endswith("_grad")
        for slot in self._op.input_names():
            for name in self._op.input(slot):
                if name in read or name == "@EMPTY@" or (is_grad and "@GRAD" not in slot):
                    continue
                raise self._loss_error(f"the input {slot}")
        for attribute, names in attribute_variables(self._op).items():
            if not read.issuperset(names):
                raise self._loss_error(f"the variable {attribute}")

    def _check_memory(self) -> None:
        """Raises ``NotTranslatable`` if the translation overwrites other variables."""
        in_place = {}
        for op in self._ops:
            if op.name() in SCOPE_NAMES:
                continue
            for operand, result in overwritten(op):
                names = self._members(operand)
                if not set(names) <= set(self._op.output_arg_names()):
                    raise NotTranslatable(
                        f"the translation of {self._op.type()} writes {', '.join(names)}"
                    )
                in_place.update(dict.fromkeys(names, result))
        updated = set(self._op.output_arg_names()) & set(self._op.input_arg_names())
        if self._op.type() in IN_PLACE and not _is_frozen(self._op):
            for name in updated - set(in_place):
                raise self._loss_error(f"the write of {name}")

    def _members(self, value: Value) -> list[str]:
        producer = value.get_defining_op()
        if producer is not None and producer.name() in LISTS:
            return [name for each in producer.operands_source() for name in self._members(each)]
        return [self._names[value.id]] if value.id in self._names else []

    def _check_outputs(self) -> None:
        for name in self._op.output_arg_names():
            variable = self._block.find_var_recursive(name.encode())
            found = self._values.get(name)
            if found is None or variable is None or not found[-1].is_dense_tensor_type():
                continue
            declared_shape, shape = list(variable.shape()), list(found[-1].shape)
            if not declared_shape:
                continue  # the declared shape is unknown, or of rank 0: there is nothing to compare
            fits = len(declared_shape) == len(shape) and all(
                a == b or a < 0 or b < 0 for a, b in zip(declared_shape, shape)
            )
            if not fits:
                raise self._loss_error(f"the shape of the output {name}")

    def _check_attributes(self) -> None:
        pir_values = self._pir_values()
        for name in self._op.attr_names():
            if name in IRRELEVANT_ATTRIBUTES or self._is_tensor_input(name):
                continue
            value = self._op.attr(name)
            names = (name, *_ALIASES.get(name, ()))
            if any(_is_same(value, pir_value) for each in names for pir_value in pir_values[each]):
                continue
            if name in _ACCEPTED and _ACCEPTED[name](self, value):
                continue
            if _is_default(self._op, name, value):
                continue
            raise self._loss_error(f"{name} = {value}")

    def _is_tensor_input(self, name: str) -> bool:
        """Whether the operator has an input tensor in place of the attribute ``name``."""
        if name in self._operands:
            return True
        stem = name.replace("_", "").lower()
        slots = (s for s in self._op.input_names() if self._op.input(s))
        return any(slot.lower().startswith(stem) and "tensor" in slot.lower() for slot in slots)

    @cached_property
    def _operands(self) -> set[str]:
        """The names of operands, as attributes, in which the PIR operators read variables."""
        found = set()
        for op in self._ops:
            with suppress(ValueError):  # an operator of lists, whose operands have no names
                named = zip(op.get_input_names(), op.operands_source())
                found |= {n for n, value in named if value.initialized() and self._members(value)}
        return found | {_core.legacy_attribute_name(self._op.type(), name) for name in found}

    def _pir_values(self) -> dict[str, list[Any]]:
        """The attributes of the PIR operators, and the constants that they read, by name."""
        found: dict[str, list[Any]] = defaultdict(list)
        for op in self._ops:
            if op.name() in SCOPE_NAMES or op.name() in LISTS:
                continue
            for name, value in op.attrs().items():
                self._add(found, name, value)
            try:
                names = op.get_input_names()
            except ValueError:
                continue
            for name, value in zip(names, op.operands_source()):
                producer = value.get_defining_op() if value.initialized() else None
                if producer is not None and producer.name() in CONSTANTS:
                    self._add(found, name, producer.attrs()["value"])
        return found

    def _add(self, found: dict[str, list[Any]], name: str, value: Any) -> None:
        """Adds a value of a PIR attribute under its name, and under its name in ProgramDesc."""
        legacy_name = _core.legacy_attribute_name(self._op.type(), name)
        for each in {name, legacy_name}:
            found[each].append(value)

    # Rules of _ACCEPTED: whether a value of an attribute is equivalent to the default.

    def is_broadcast_axis(self, axis: int) -> bool:
        """Whether ``axis`` of an elementwise operator aligns the last axes, as the default does."""
        x, y = (_shape(self._block, self._op, slot) for slot in "XY")
        is_elementwise = self._op.type().startswith("elementwise_") or self._op.type() in _COMPARING
        return is_elementwise and axis in (-1, len(x) - len(y))

    def is_triangle(self, is_lower: bool) -> bool:
        """Whether the PIR operator is that of the lower or upper triangle."""
        name = "pd_op.tril" if is_lower else "pd_op.triu"
        return self._op.type().startswith("tril_triu") and any(
            op.name().startswith(name) for op in self._ops
        )

    def is_full_reduction(self, is_everything: bool) -> bool:
        """Whether ``reduce_all`` agrees with the axes, of which an empty list means all axes."""
        rank = len(_shape(self._block, self._op, "X"))
        axes = [
            list(each) for each in self._pir_values()["axis"] if isinstance(each, (list, tuple))
        ]
        return is_everything == any(not each or len(each) == rank for each in axes)

    def ignores_axes(self, _: Any) -> bool:
        """Whether an operator ignores ``dim``, since it reduces all axes."""
        return self._op.has_attr("reduce_all") and bool(self._op.attr("reduce_all"))

    def is_maximum(self, kind: str) -> bool:
        """Whether an unpooling is that of the maximum, the only one that Paddle has."""
        return kind == "max"

    def is_dtype_of_values(self, dtype: int) -> bool:
        """Whether ``dtype`` of ``set_value`` is that of its tensor of values, and so redundant."""
        if self._op.type() != "set_value" or not _has(self._op, "input", "ValueTensor"):
            return False
        name = self._op.input("ValueTensor")[0]
        variable = self._block.find_var_recursive(name.encode())
        return variable is not None and int(variable.dtype()) == dtype


_Rule = Callable[[_TranslatedOperator, Any], bool]
# Rules for attributes that PIR lacks: by name, whether a value is accepted.
_ACCEPTED: dict[str, _Rule] = {
    "axis": _TranslatedOperator.is_broadcast_axis,
    "dim": _TranslatedOperator.ignores_axes,
    "dtype": _TranslatedOperator.is_dtype_of_values,
    "lower": _TranslatedOperator.is_triangle,
    "reduce_all": _TranslatedOperator.is_full_reduction,
    "unpooling_type": _TranslatedOperator.is_maximum,
}


def _is_frozen(op: LegacyOperator) -> bool:
    """Whether a batch normalization uses its running statistics, and does not update them."""
    return "batch_norm" in op.type() and any(
        op.has_attr(name) and op.attr(name) for name in ("is_test", "use_global_stats")
    )


def _is_default(op: LegacyOperator, name: str, value: Any) -> bool:
    """Whether an attribute has the value that Paddle would give it by default."""
    isolated: LegacyProgramDesc = ProgramDesc()
    copy = isolated.block(0).append_op()
    copy.copy_from(op)
    copy.remove_attr(name)
    with signals.own_errors():
        try:
            copy.check_attrs()
        except Exception:
            # An operator without the attribute is invalid: there is no default.
            return False
    return not copy.has_attr(name) or _is_same(value, copy.attr(name))


def _is_same(old: Any, new: Any) -> bool:
    """Whether an attribute of a ProgramDesc operator is equal to a PIR value."""
    if isinstance(old, Scalar):
        return _is_same(old.value(), new.value() if isinstance(new, Scalar) else new)
    if isinstance(new, (list, tuple)) and not isinstance(old, (list, tuple, str)):
        return len(new) == 1 and _is_same(old, new[0])
    if isinstance(old, (list, tuple)):
        if not isinstance(new, (list, tuple)):
            return len(old) == 1 and _is_same(old[0], new)
        return len(old) == len(new) and all(map(_is_same, old, new))
    if isinstance(old, str) and isinstance(new, (int, float)) and old:
        return _is_same(_parsed_float(old), new)
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return bool(np.float32(old) == np.float32(new)) or old == new
    if isinstance(old, int) and not isinstance(new, str):
        return _dtype_of(old) == str(new).rpartition(".")[2].lower()
    return bool(old == new)


def _parsed_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _dtype_of(number: int) -> str | None:
    try:
        name = VarType(number).name
    except ValueError:
        return None
    return {"FP32": "float32", "FP64": "float64", "FP16": "float16", "BF16": "bfloat16"}.get(
        name, name.lower()
    )
