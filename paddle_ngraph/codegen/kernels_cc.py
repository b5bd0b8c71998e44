"""Writes ``kernels.h`` and ``kernels.cc`` of a project: a C++ function per kernel call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from paddle_ngraph.codegen import cpp
from paddle_ngraph.codegen.statements import KernelCall

_HEADER = """\
// Written by `python -m paddle_ngraph codegen`: the operators that Paddle's kernels compute.
#pragma once

#include <vector>

#include "runtime/tensor.h"

namespace kernels {{

// For each operand a tensor, or several if it is a list; none where it is absent.
using Operands = std::vector<native::Tensors>;

{functions}
}}  // namespace kernels
"""

_SOURCE = """\
// Written by `python -m paddle_ngraph codegen`: kernels.h by PHI, the library of Paddle's kernels.
#include "kernels.h"

#include <limits>

#include "paddle/phi/infermeta/backward.h"
#include "paddle/phi/infermeta/binary.h"
#include "paddle/phi/infermeta/fusion.h"
#include "paddle/phi/infermeta/multiary.h"
#include "paddle/phi/infermeta/nullary.h"
#include "paddle/phi/infermeta/ternary.h"
#include "paddle/phi/infermeta/unary.h"

#include "phi/kernel.h"

namespace kernels {{

using native::FromOperand;
using native::Kernel;
using native::Result;
using native::Tensors;

{functions}
}}  // namespace kernels
"""


def header_of(calls: Sequence[KernelCall]) -> str:
    """The contents of ``kernels.h``, which declares the functions."""
    lines = [f"native::Tensors {call.function}(const Operands& operands);\n" for call in calls]
    return _HEADER.format(functions="".join(lines))


def source_of(calls: Sequence[KernelCall]) -> str:
    """The contents of ``kernels.cc``, which defines the functions."""
    functions = ("\n".join(_function(call)) for call in calls)
    return _SOURCE.format(functions="\n".join(functions))


def _function(call: KernelCall) -> Iterator[str]:
    kernel = call.kernel
    yield f"// {call.description}."
    yield f"Tensors {call.function}(const Operands& operands) {{"
    yield f"  static const Kernel kernel({cpp.text(kernel.name)}, {_dtype(kernel.dtype)},"
    yield f"                             PD_INFER_META(phi::{kernel.infer_meta}),"
    yield from cpp.wrapped("      {", [str(number) for number in kernel.lists], "},", "       ")
    yield from _arguments(kernel.meta_inputs, kernel.meta_attributes, ",")
    yield from _arguments(kernel.inputs, kernel.attributes, ",")
    yield from cpp.wrapped("      {", list(_results(call)), "});", "       ")
    yield "  return kernel(operands);"
    yield "}"
    yield ""


def _arguments(inputs: Sequence[int], attributes: Sequence[tuple[str, Any]], end: str) -> list[str]:
    numbers = ", ".join(map(str, inputs))
    values = [_ATTRIBUTES[attribute_type](value) for attribute_type, value in attributes]
    return cpp.wrapped(f"      {{{{{numbers}}}, {{", values, f"}}}}{end}", "       ")


def _results(call: KernelCall) -> Iterator[str]:
    for number, type in enumerate(call.kernel.results):
        if isinstance(type, list):
            size, is_list = len(type), True
        else:
            size, is_list = int(type is not None), False
        overwrites = call.overwrites.get(number)
        overwritten = "Result::kNone" if overwrites is None else str(overwrites)
        yield f"Result{{{size}, {cpp.truth(is_list)}, {overwritten}}}"


def _dtype(name: str) -> str:
    return f"phi::DataType::{'UNDEFINED' if name.lower().startswith('undefined') else name.upper()}"


def _vector(element_type: str, items: Sequence[str]) -> str:
    return f"std::vector<{element_type}>{{{', '.join(items)}}}"


def _scalar(value: tuple[str, Any]) -> str:
    dtype, number = value
    if dtype == "bool":
        return f"phi::Scalar({cpp.truth(number)})"
    if dtype in ("int32", "int64"):
        return f"phi::Scalar({dtype}_t{{{cpp.integer(number)}}})"
    return f"phi::Scalar({'float' if dtype == 'float32' else 'double'}({cpp.number(number)}))"


# C++ expressions of attributes, of exactly PHI's type, by the type in ``_core.kernel_call``.
_ATTRIBUTES = {
    "bool": cpp.truth,
    "int32": lambda value: f"int32_t{{{value}}}",
    "int64": lambda value: f"int64_t{{{cpp.integer(value)}}}",
    "float32": lambda value: f"float({cpp.number(value)})",
    "float64": lambda value: f"double({cpp.number(value)})",
    "text": lambda value: f"std::string({cpp.text(value)})",
    "int32s": lambda values: _vector("int32_t", [str(value) for value in values]),
    "int64s": lambda values: _vector("int64_t", [cpp.integer(value) for value in values]),
    "float32s": lambda values: _vector("float", [f"float({cpp.number(v)})" for v in values]),
    "float64s": lambda values: _vector("double", [cpp.number(value) for value in values]),
    "texts": lambda values: _vector("std::string", [cpp.text(value) for value in values]),
    "scalar": _scalar,
    "scalars": lambda values: _vector("phi::Scalar", [_scalar(value) for value in values]),
    "ints": lambda values: f"phi::IntArray({_vector('int64_t', list(map(cpp.integer, values)))})",
    "dtype": _dtype,
    "place": lambda _: "phi::Place(phi::CPUPlace())",
    "operand": lambda number: f"FromOperand{{{number}}}",
}
