"""Table of the dtypes of tensors that functions read or compute."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

# The minimum and the maximum of the integers in a tensor.
Range = tuple[int, int]


class Dtype(NamedTuple):
    """A dtype.

    Attributes:
        element: The name of its OpenVINO element type, also in signatures.
        range: The range of values, for integers of less than 64 bits.
    """

    element: str
    range: Range | None = None


# The dtypes by Paddle's name. core/paddle/tensors.cc has the same pairs for the C++ types on both
# sides.
DTYPES: Mapping[str, Dtype] = {
    "bool": Dtype("boolean", (0, 1)),
    "int8": Dtype("i8", (-(2**7), 2**7 - 1)),
    "uint8": Dtype("u8", (0, 2**8 - 1)),
    "int16": Dtype("i16", (-(2**15), 2**15 - 1)),
    "int32": Dtype("i32", (-(2**31), 2**31 - 1)),
    "int64": Dtype("i64"),
    "float16": Dtype("f16"),
    "bfloat16": Dtype("bf16"),
    "float32": Dtype("f32"),
    "float64": Dtype("f64"),
}
# Suffix that turns the dtype of elements into the dtype of a TensorArray of them.
ARRAY_SUFFIX = "[]"
# The dtypes that NumPy has, too: all but bfloat16.
NUMPY_DTYPES = frozenset(DTYPES) - {"bfloat16"}
# The dtypes that only Paddle's kernels compute in functions, with the size of an element. Such
# tensors are bytes there: nGraph has no complex ones, and would compute float64 in float32.
BYTES: Mapping[str, int] = {"float64": 8, "complex64": 8, "complex128": 16}
# Their names in signatures, where DTYPES has none; core/common/element_type.h has the same.
_COMPLEX: Mapping[str, str] = {"complex64": "c64", "complex128": "c128"}
# Other dtypes that Paddle's own operators may have in a subgraph; no converter reads them.
UNCONVERTED_DTYPES = frozenset(
    {
        *("uint32", "uint64", "float8_e4m3fn", "float8_e5m2"),
        *("complex64", "complex128", "pstring", "undefined"),
    }
)


def integer_in(dtype: str, number: float) -> int | None:
    """The integer to which a number is truncated; ``None`` if an integer dtype does not have it."""
    if not math.isfinite(number):
        return None
    low, high = DTYPES[dtype].range or (-(1 << 63), (1 << 63) - 1)
    return int(number) if low <= int(number) <= high else None


def element_name(dtype: str) -> str | None:
    """The name of a dtype in the signatures of functions; ``None`` for one that no function has."""
    return DTYPES[dtype].element if dtype in DTYPES else _COMPLEX.get(dtype)


_BITS = re.compile(r"[a-z]+?(\d+)")


def element_bytes(dtype: str) -> int:
    """The size of an element of a dtype, given by Paddle's name, in bytes.

    One byte for a dtype without a fixed size (strings), and for bool and the variants of float8.
    """
    found = _BITS.match(dtype)
    return max(int(found[1]) // 8, 1) if found else 1
