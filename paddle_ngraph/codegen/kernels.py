"""Kernels of Paddle for operators that fall back: their arguments and result types."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import paddle

from paddle_ngraph import _core
from paddle_ngraph.codegen.toolchain import folder_of
from paddle_ngraph.errors import NgraphError, first_line
from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    ACT,
    COMMUNICATE,
    CONSTANTS,
    DRAW,
    dtype_name,
    ordering_effects,
)
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.dtypes import DTYPES
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache

# For each ordering effect, the reason why a project cannot call an operator with that effect.
_EFFECT_REASONS = {
    DRAW: "it samples random numbers",
    ACT: "it has side effects",
    COMMUNICATE: "it communicates with other processes",
}
# By operator: the property of elements whose number is a data-dependent size of a result, and the
# indices of the operands with these elements. Sizes with equal properties and operands are equal.
# For any other operator the property is specific to the operator, and depends on all operands.
_DATA_DEPENDENT_SIZES = {
    "pd_op.nonzero": ("what is not zero", (0,)),
    "pd_op.masked_select": ("what is not zero", (1,)),
}

Sizes = Sequence[int]
# Type of a result: (dtype, shape); for a list of tensors a list of these; ``None`` for an absent
# result.
Type = Any


@dataclass(frozen=True)
class PhiKernel:
    """A kernel of PHI, with the arguments of one operator.

    Attributes:
        name: The name of the kernel.
        dtype: The dtype that selects it.
        infer_meta: The function of PHI that computes dtypes and shapes of the results.
        lists: The indices of the operands that are lists.
        meta_inputs, inputs: The operands that ``infer_meta``, and the kernel, read as tensors.
        meta_attributes, attributes: The other arguments, as in ``_core.kernel_call``.
        results: The declared type of each result.
    """

    name: str
    dtype: str
    infer_meta: str
    lists: Sequence[int]
    meta_inputs: Sequence[int]
    inputs: Sequence[int]
    meta_attributes: Sequence[tuple[str, Any]]
    attributes: Sequence[tuple[str, Any]]
    results: Sequence[Type]


def kernel_of(op: Operation) -> PhiKernel:
    """The kernel that Paddle calls for an operator.

    Raises:
        NgraphError: The kernel cannot be called without the rest of Paddle.
    """
    reasons = [
        reason for effect, reason in _EFFECT_REASONS.items() if effect in ordering_effects(op)
    ]
    if reasons:
        raise NgraphError(reasons[0])
    with signals.own_errors():
        try:
            program, _ = _single_operator_program(op, lambda _, value: value.shape)
            found = _core.kernel_call(program, op.name())
        except Exception as error:
            # Catches all exceptions, since Paddle raises errors of many types.
            raise NgraphError(first_line(error)) from error
    if not _is_exported(found["infer_meta"]):
        raise NgraphError("the function that infers the shapes of its results is not in libphi")
    kernel = PhiKernel(
        found["kernel"],
        found["dtype"],
        found["infer_meta"],
        found["lists"],
        found["meta_inputs"],
        found["kernel_inputs"],
        found["meta_attributes"],
        found["kernel_attributes"],
        _core.result_types(op),
    )
    given = [dtype_name(v.dtype) for value in op.operands_source() for v in _members(value)]
    if unsupported := {*given, *(dtype for dtype, _ in flat(kernel.results))} - DTYPES.keys():
        raise NgraphError(f"it has tensors of dtype {sorted(unsupported)[0]}")
    return kernel


def flat(results: Sequence[Type]) -> list[tuple[str, list[int]]]:
    """(dtype, shape) of each result: members of lists alone, absent results left out."""
    lists = (each if isinstance(each, list) else [each] for each in results)
    return [each for members in lists for each in members if each is not None]


def inferred(op: Operation, shapes: Sequence[Sequence[Sizes]]) -> list[Sizes]:
    """The shapes of all results of ``op``, for operands of these shapes; -1 if data-dependent.

    Raises:
        NgraphError: Paddle rejects operands of these shapes.
    """
    rows = {v.id: size for value, sizes in zip(op.operands_source(), shapes)
            for v, size in zip(_members(value), sizes)}  # fmt: skip
    with signals.own_errors():
        try:
            _, results = _single_operator_program(op, lambda _, value: rows[value.id])
        except Exception as error:
            raise NgraphError(first_line(error)) from error
    members = (each if isinstance(each, list) else [each] for each in results)
    return [list(v.shape) for values in members for v in values if v.initialized()]


def data_dependent_sizes(op: Operation) -> tuple[str, Sequence[int]]:
    """The property of data that determines sizes of results, and the operands with these data."""
    return _DATA_DEPENDENT_SIZES.get(op.name(), (op.name(), range(op.num_operands())))


def _single_operator_program(
    op: Operation, shape_of: Callable[[int, Value], Sizes]
) -> tuple[Program, list[Any]]:
    """Returns a program of one operator, and of the constants that it reads, with its results."""
    program: Program = paddle.pir.Program()
    block = program.global_block()
    known: dict[int, Any] = {}

    def variable(value: Value) -> Any:
        if value.id not in known:
            producer = value.get_defining_op()
            if producer is not None and producer.name() in CONSTANTS:
                attributes = _core.attributes_of(producer)
                (made,) = _core.append_operator(block, producer.name(), [], None, attributes)
            else:
                type = dtype_name(value.dtype), list(shape_of(len(known), value))
                made = _core.append_variable(block, f"variable_{len(known)}", type)
            known[value.id] = made
        return known[value.id]

    operands: list[Any] = []
    for value in op.operands_source():
        if not value.initialized():
            operands.append(None)
        elif value.is_dense_tensor_type():
            operands.append(variable(value))
        else:
            operands.append([variable(member) for member in _members(value)])
    attributes = _core.attributes_of(op)
    return program, _core.append_operator(block, op.name(), operands, None, attributes)


def _members(value: Value) -> list[Value]:
    """The members of a list; a tensor is its only member, and an absent value has none."""
    if not value.initialized():
        return []
    if value.is_dense_tensor_type():
        return [value]
    producer = value.get_defining_op()
    if producer is None or producer.name() != "builtin.combine":
        raise NgraphError("it reads a list whose length is known in a run only")
    return producer.operands_source()


# -- the libraries ---------------------------------------------------------------------------------


_exported: LRUCache[str, bool] = process_cache(
    __name__,
    "exported_functions",
    "whether Paddle's library exports a function that infers shapes",
    key="name of the function",
    bound=1024,
)


def _is_exported(function: str) -> bool:
    """Whether libphi_core exports the function ``phi::function``."""
    return _exported.get_or_create(function, lambda: _find_exported(function))


def _find_exported(function: str) -> bool:
    symbol = f"_ZN3phi{len(function)}{function}E".encode()
    path = folder_of("paddle") / "libs" / "libphi_core.so"
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library,
    ):
        return bool(function) and library.find(symbol) >= 0
