"""Why Paddle itself runs an operator of ProgramDesc on no input, in words that tests verify."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from paddle.base import core

NO_KERNEL = "it has no kernel for CPUs"
ONEDNN = "its kernels for CPUs are oneDNN's alone"
VIEWS = "its kernels for CPUs are those of views in dynamic mode"
SHORT = "its kernels for CPUs take 16-bit numbers alone"
COMMUNICATES = "it communicates"
SPARSE = "it reads or writes sparse tensors, which a ProgramDesc program does not have"
OTHER_VARIABLES = "it reads or writes other variables than dense tensors"
FILES = "it reads or writes files"
FRAME = "other tests run it, with blocks and lists"
RAISES = "its kernel for CPUs raises "
CRASHES = "Paddle crashes on it: "
RANDOM = "its results are others in each run"
NO_OTHER = "it has no other value"

# Operators with blocks and lists, which a program of one operator does not have.
FRAMES = frozenset(
    {
        *("conditional_block", "feed", "fetch", "lod_array_length", "print", "py_func"),
        *("read_from_array", "tensor_array_to_tensor", "while", "write_to_array"),
    }
)
# Operators of which an input or output is a list, rows, strings, or a variable of the caller.
_OTHER_VARIABLES = frozenset(
    {
        *("beam_search_decode", "data", "faster_tokenizer", "fetch_v2", "shadow_output"),
        *("get_tensor_from_selected_rows", "merge_selected_rows"),
    }
)
# Attributes by which operators reach other processes or streams.
_REMOTE = frozenset({"ring_id", "endpoints"})
_FILES = frozenset({"file_path", "filename"})
_STREAMS = frozenset({"c_sync_calc_stream"})


@cache
def _registries() -> list[dict[str, list[str]]]:
    """The kernels of Paddle's two libraries by operator, which Paddle lists in 15 ms."""
    return [core._get_all_register_op_kernels(library) for library in ("phi", "fluid")]


def kernels_for_cpus(type: str) -> list[str]:
    """The kernels for CPUs in Paddle's registries of an operator of this type."""
    names = {type, core._get_phi_kernel_name(type)}
    found = [kernel for each in _registries() for name in names for kernel in each.get(name, ())]
    return [kernel for kernel in found if "place(cpu)" in kernel.lower()]


def known_reason(proto: Any) -> str:
    """The reason that Paddle's description of an operator and its registries show, or none."""
    kernels = kernels_for_cpus(proto.type)
    attributes = {each.name for each in proto.attrs}
    if proto.type in FRAMES:
        return FRAME
    if attributes & _FILES:
        return FILES
    if attributes & _REMOTE or proto.type in _STREAMS:
        return COMMUNICATES
    if proto.type in _OTHER_VARIABLES:
        return OTHER_VARIABLES
    if proto.type.startswith("sparse_") and not kernels:
        return SPARSE
    if not kernels:
        return NO_KERNEL
    for reason, mark in ((ONEDNN, "ONEDNN"), (VIEWS, "data_layout[STRIDED]")):
        if all(mark in kernel for kernel in kernels):
            return reason
    return SHORT if all("float16" in kernel for kernel in kernels) else ""


def name_of_error(error: BaseException) -> str:
    """The name that Paddle gives an error, such as Unimplemented, or that of its type."""
    found = re.search(r"\((\w+)\) ", str(error)) or re.search(r"(\w+)Error: ", str(error))
    return found[1] if found else type(error).__name__
