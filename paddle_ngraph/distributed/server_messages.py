"""The arrays that messages between a parameter server and its trainers have to contain.

Derived from the programs alone, so that neither side relies on numbers that the other one sends:
they become indices of rows, and shapes of feeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.transpiler.server_transpiler import ServerForm

_ANY = -1  # a size that the receiver does not know

Arrays = Sequence[np.ndarray]


class ArraySpec(NamedTuple):
    """Dtype and shape of an array in a message; sizes may be ``_ANY``."""

    dtype: str
    shape: tuple[int, ...]

    def fits(self, array: np.ndarray) -> bool:
        sizes = zip(self.shape, array.shape)
        is_shape = len(self.shape) == array.ndim and all(w in (_ANY, s) for w, s in sizes)
        return is_shape and str(array.dtype) == self.dtype


class MessageSpecs:
    """The valid arrays of each message.

    Args:
        form: The programs.
        kept: The sizes in bytes of the variables that trainers copy once.
    """

    def __init__(self, form: ServerForm, kept: Sequence[int]) -> None:
        self._tables = form.tables
        self._kept = [ArraySpec("uint8", (size,)) for size in kept]
        # Gradients and parameters that are no tables: one flat array each, if there are any.
        count = len(form.gradients) - len(form.tables)
        self._gradients = [ArraySpec("float32", tuple(v.shape)) for v in form.gradients[:count]]
        self._parameters = [ArraySpec("float32", tuple(v.shape)) for v in form.send[1]]

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients other than those of tables."""
        return bool(self._gradients)

    def max_bytes(self) -> int:
        """The size of the largest valid message."""
        rows = sum(table.length * (8 + 4 * table.width) for table in self._tables)
        dense = (spec.shape[0] for spec in (*self._gradients, *self._parameters))
        return rows + 4 * sum(dense) + sum(spec.shape[0] for spec in self._kept)

    # Each method raises NgraphError for a message with other arrays.

    def check_empty(self, arrays: Arrays) -> None:
        _check(arrays, [])

    def check_kept(self, arrays: Arrays) -> None:
        _check(arrays, self._kept)

    def check_row_ids(self, arrays: Arrays) -> None:
        """Checks the rows that a trainer requests."""
        _check(arrays, [ArraySpec("int64", (_ANY,))] * len(self._tables))
        for table, row_ids in zip(self._tables, arrays):
            _check_rows(row_ids, table.name, table.length)

    def check_gradients(self, arrays: Arrays) -> None:
        """Checks gradients, and the rows to which those of tables belong."""
        row_ids = arrays[len(self._gradients) :: 2]
        rows = [
            spec
            for table, ids in zip(self._tables, row_ids)
            for spec in (
                ArraySpec("int64", (_ANY,)),
                ArraySpec("float32", (ids.size, table.width)),
            )
        ]
        if len(arrays) != len(self._gradients) + 2 * len(self._tables):
            raise NgraphError(f"{len(arrays)} arrays instead of those of all gradients")
        _check(arrays, [*self._gradients, *rows])
        for table, ids in zip(self._tables, row_ids):
            _check_rows(ids, table.name, table.length)

    def check_parameters(self, arrays: Arrays, row_ids: Arrays) -> None:
        """Checks parameters, and the values of the requested rows."""
        rows = [
            ArraySpec("float32", (len(ids), table.width))
            for table, ids in zip(self._tables, row_ids)
        ]
        _check(arrays, [*self._parameters, *rows])


def _check(arrays: Arrays, specs: Sequence[ArraySpec]) -> None:
    if len(arrays) != len(specs):
        raise NgraphError(f"{len(arrays)} arrays instead of {len(specs)}")
    for array, spec in zip(arrays, specs):
        if not spec.fits(array):
            raise NgraphError(
                f"{array.dtype} {list(array.shape)} instead of {spec.dtype} {list(spec.shape)}"
            )


def _check_rows(row_ids: np.ndarray, table: str, length: int) -> None:
    if len(row_ids) > length:
        raise NgraphError(f"{len(row_ids)} rows of {table!r}, which has {length}")
    if len(row_ids) and not 0 <= row_ids.min() <= row_ids.max() < length:
        raise NgraphError(
            f"rows {row_ids.min()} to {row_ids.max()} of {table!r}, which has {length}"
        )
