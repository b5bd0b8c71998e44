"""Reproducers: a run of a subgraph or of a kernel in one file, which others can run again.

The file is an uncompressed ``.npz`` archive without pickles. It comes from others, so everything
in it is checked before memory is allocated for it: names, dtypes and sizes of the arrays against
the length of the file, and against the graph.
"""

from __future__ import annotations

import io
import math
import os
import stat
import struct
import tempfile
import tokenize
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.lib import format as npy

from paddle_ngraph import _core, flags, installation
from paddle_ngraph.conversion import kernel_calls, processor
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.errors import NgraphError, first_line, printable, summarized
from paddle_ngraph.ir.graph import BFLOAT16, Graph, TensorSpec
from paddle_ngraph.paddle_private.names import dtype_of
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.partitioning import fallback
from paddle_ngraph.partitioning.analysis.block_view import dtype_name
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.dtypes import DTYPES
from paddle_ngraph.verification.comparison import SubgraphRun
from paddle_ngraph.verification.evaluation import array_of, tensor_of
from paddle_ngraph.verification.judgement import COMPRESSED
from paddle_ngraph.verification.kernel_runs import KERNELS, CallRun

T = TypeVar("T")

FORMAT = 2
NUMPY_DTYPES = "bool int8 uint8 int16 uint16 int32 int64 float16 float32 float64"
MAX_BYTES = 1 << 28
_MAX_HEADER_BYTES = 1 << 12
_MAX_ARRAYS = 1 << 14
# Bytes of the directory of an archive, which zipfile reads as a whole, with an object per entry.
_MAX_DIRECTORY_BYTES = 1 << 22
_END_OF_DIRECTORY = struct.Struct("<4s4H2LH")
# Inputs of at most this many elements that are read by value are stored even without data: shapes
# and axes, which the function depends on.
_MAX_VALUE_ELEMENTS = 1024


@dataclass(frozen=True)
class Reproducer:
    """A run of a subgraph or kernel, with or without its data.

    Attributes:
        run: The run; of one without data, ``given`` has random numbers.
        versions: The versions and the processor where it was recorded.
        precision: ``FLAGS_ngraph_precision`` there.
        weight_format: ``FLAGS_ngraph_weights`` there.
        calls_kernels: ``FLAGS_ngraph_kernel_calls`` there.
        results: The results of the engine there, by name; empty without data.
    """

    run: SubgraphRun
    versions: str
    precision: str
    weight_format: str
    calls_kernels: bool
    results: dict[str, np.ndarray] = field(default_factory=dict)

    def other_results(self, results: Sequence[Tensor]) -> list[str]:
        """The names of recorded results to which these are not equal, bit by bit."""
        found = {self.run.name(index): np.array(tensor) for index, tensor in enumerate(results)}
        return [
            name
            for name, array in self.results.items()
            if name not in found or found[name].tobytes() != array.tobytes()
        ]

    @contextmanager
    def recorded_flags(self) -> Iterator[None]:
        """Sets the flags on which results depend as they were recorded."""
        values: dict[str, str | bool] = {
            "ngraph_precision": self.precision,
            "ngraph_weights": self.weight_format,
            "ngraph_kernel_calls": self.calls_kernels,
        }
        before = {name: flags.get(name) for name in values}
        try:
            for name, value in values.items():
                flags.set(name, value)
            yield
        finally:
            for name, value in before.items():
                flags.set(name, value)


def recorded(run: SubgraphRun, results: Sequence[Tensor] = ()) -> Reproducer:
    """The reproducer of a run in this process, with its results by the engine."""
    arrays = {run.name(index): np.array(tensor) for index, tensor in enumerate(results)}
    versions = ", ".join([*installation.versions(), processor.field("model name")])
    names = ("ngraph_precision", "ngraph_weights", "ngraph_kernel_calls")
    precision, weight_format, calls_kernels = map(flags.get, names)
    return Reproducer(run, versions, precision, weight_format, bool(calls_kernels), arrays)


def contents(reproducer: Reproducer, shapes_only: bool) -> dict[str, np.ndarray]:
    """The arrays of the file.

    Args:
        reproducer: The run.
        shapes_only: Whether shapes and ranges replace the data of the user.
    """
    run = reproducer.run
    arrays = {
        "format": np.array([FORMAT]),
        "graph": _text(run.text),
        "versions": _text(reproducer.versions),
        "precision": _text(reproducer.precision),
        "weights": _text(reproducer.weight_format),
    }
    if reproducer.calls_kernels:
        arrays["kernel calls"] = np.array([True])
    if run.kernel:
        arrays["kernel"] = _text(run.kernel)
    if not shapes_only:
        arrays["random"] = np.array(run.random.words(), np.uint64)
    for index, tensor in enumerate(run.given):
        array = np.array(tensor)
        by_value = index in run.graph.value_inputs and array.size <= _MAX_VALUE_ELEMENTS
        if shapes_only and not by_value:
            arrays[f"shape {index}"] = np.array(array.shape, np.int64)
            arrays[f"range {index}"] = _range(array_of(tensor))
        else:
            arrays[f"input {index}"] = array
    if not shapes_only:
        arrays.update({f"result {name}": each for name, each in reproducer.results.items()})
    return arrays


def summary(arrays: Mapping[str, np.ndarray]) -> str:
    """The sentence that tells what a file with these arrays holds."""
    inputs = [name for name in arrays if name.startswith("input ")]
    shapes = [name for name in arrays if name.startswith("shape ")]
    megabytes = sum(array.nbytes for array in arrays.values()) / 2**20
    data = f"the contents of {len(inputs)} inputs and states" if inputs else "no data"
    if shapes:
        data = f"shapes and ranges of {len(shapes)} inputs and states, " + (
            f"{data} that are read by value" if inputs else data
        )
    results = sum(name.startswith("result ") for name in arrays)
    also = f", {results} results" if results else ""
    subject = arrays["kernel"].tobytes().decode() if "kernel" in arrays else "subgraph"
    return (
        f"{megabytes:.1f} MB: the {subject} (operators, attributes, shapes), {data}{also}, "
        "versions and processor"
    )


def save(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the file, as a whole or not at all.

    Raises:
        NgraphError: It would be too large, or cannot be written.
    """
    size = sum(array.nbytes for array in arrays.values())
    if size > MAX_BYTES:
        raise NgraphError(
            f"the reproducer would have {size / 2**20:.0f} MB, more than {MAX_BYTES >> 20}: "
            "save it with shapes only, or bisect first"
        )
    with signals.recognized_signals():
        try:
            _write(Path(path), arrays)
        except OSError as error:
            signals.raise_if_from_outside(error)
            raise NgraphError(f"{path}: {error.strerror or error}") from error


def _write(target: Path, arrays: Mapping[str, np.ndarray]) -> None:
    if target.exists() and not target.is_file():  # os.replace would remove a device
        raise NgraphError(f"{target} is no file to replace")
    handle, name = tempfile.mkstemp(dir=target.absolute().parent, prefix=f".{target.name}.")
    try:
        with open(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def load(path: str | os.PathLike[str], seed: int = 0) -> Reproducer:
    """Reads a reproducer.

    Args:
        path: The file.
        seed: For the random inputs of one without data.

    Raises:
        NgraphError: The file is no reproducer of this release, or is damaged.
    """
    return _reading(path, lambda arrays: _reproducer(arrays, seed))


def _reading(path: str | os.PathLike[str], read: Callable[[_Arrays], T]) -> T:
    with signals.recognized_signals():
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # a device has no end, a pipe waits
                raise NgraphError(f"{path} is no regular file")
            with open(path, "rb") as file:
                return read(_Arrays(file))
        except OSError as error:
            signals.raise_if_from_outside(error)
            raise NgraphError(f"{path}: {error.strerror or error}") from error
        except NgraphError:
            raise
        except _UNREADABLE as error:
            signals.raise_if_from_outside(error)
            raise NgraphError(
                f"{path} is no file of arrays for this command, or is damaged: {first_line(error)}"
            ) from error


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the arrays of an uncompressed ``.npz`` file without pickles.

    Raises:
        NgraphError: As :func:`load`.
    """
    return _reading(
        path, lambda arrays: {n: arrays.read(n, NUMPY_DTYPES) for n in arrays.names("")}
    )


class _Unfit(Exception):
    """The file violates the format; the message is a clause about it."""


# The errors of modules that read archives and headers, for damaged ones.
_UNREADABLE = (
    *(_Unfit, zipfile.BadZipFile, struct.error, EOFError, ValueError, RuntimeError),
    *(OverflowError, MemoryError, KeyError, IndexError, SyntaxError, TypeError),
    tokenize.TokenError,
)


class _Arrays:
    """The arrays of an archive, read one by one after a check of their sizes."""

    def __init__(self, file: Any) -> None:
        size = os.fstat(file.fileno()).st_size
        if size > 2 * MAX_BYTES:
            raise _Unfit(f"it has more than {2 * MAX_BYTES >> 20} MB")
        _require_small_directory(file, size)
        self._zip = zipfile.ZipFile(file)
        infos = self._zip.infolist()
        if len(infos) > _MAX_ARRAYS or sum(info.file_size for info in infos) > size:
            raise _Unfit("it claims more data than it has")
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise _Unfit("it is compressed")
        self._infos = {info.filename.removesuffix(".npy"): info for info in infos}

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def names(self, prefix: str) -> list[str]:
        """The names that begin with a prefix."""
        return [name for name in self._infos if name.startswith(prefix)]

    def read(self, name: str, dtypes: str) -> np.ndarray:
        """Reads an array.

        Args:
            name: Its name.
            dtypes: NumPy's names of the dtypes that it may have.
        """
        if name not in self._infos:
            raise _Unfit(f"'{name}' is missing")
        data = self._zip.read(self._infos[name])
        stream = io.BytesIO(data)
        if npy.read_magic(stream) != (1, 0):
            raise _Unfit(f"'{name}' has another format")
        shape, is_fortran, dtype = npy.read_array_header_1_0(
            stream, max_header_size=_MAX_HEADER_BYTES
        )
        if dtype.name not in dtypes.split() or not dtype.isnative or is_fortran or len(shape) > 9:
            raise _Unfit(f"'{name}' is {printable(str(dtype))[:40]} of rank {len(shape)}")
        if math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
            raise _Unfit(f"'{name}' has another size than its shape")
        return np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape).copy()

    def text(self, name: str) -> str:
        """Reads a text."""
        return self.read(name, "uint8").tobytes().decode()


def _require_small_directory(file: Any, size: int) -> None:
    """Checks the end of an archive, whose directory may list millions of arrays without data.

    Files of at most 512 MB need none of the forms that zipfile also reads: a comment, or ZIP64.
    """
    length, locator = _END_OF_DIRECTORY.size, 20
    file.seek(max(0, size - length - locator))
    last = file.read(length + locator)
    if len(last) < length:
        raise _Unfit("it is truncated")
    magic, *_, directory, start, comment = _END_OF_DIRECTORY.unpack(last[-length:])
    is_plain = magic == b"PK\5\6" and not comment and not last.startswith(b"PK\6\7")
    if not is_plain or start + directory + length != size:
        raise _Unfit("its end is no directory of an archive")
    if directory > _MAX_DIRECTORY_BYTES:
        raise _Unfit("it lists too many arrays")
    file.seek(0)


def _reproducer(arrays: _Arrays, seed: int) -> Reproducer:
    found = arrays.read("format", "int64").reshape(-1).tolist()
    if found != [FORMAT]:
        raise _Unfit(f"its format is {str(found)[:40]}, that of this release [{FORMAT}]")
    text, versions = arrays.text("graph"), printable(arrays.text("versions"))[:2000]
    kernel = arrays.text("kernel") if "kernel" in arrays else ""
    if kernel and kernel not in KERNELS:
        raise _Unfit("its kernel is unknown")
    try:
        graph = Graph.from_string(text)
    except NgraphError as error:
        sentence = f"its graph is of another release, or damaged (recorded by {versions})"
        raise _Unfit(sentence) from error
    random = _core.RandomState()
    if "random" in arrays:
        words = arrays.read("random", "uint64")
        random = _core.RandomState.of([int(word) for word in words.reshape(-1)[:1024]])
    generator = np.random.default_rng(seed)
    specs = [*graph.inputs, *graph.states]
    _require_sizes(arrays, specs)
    given = [_input(arrays, index, spec, generator) for index, spec in enumerate(specs)]
    results = {
        printable(name.removeprefix("result ")): arrays.read(name, NUMPY_DTYPES)
        for name in arrays.names("result ")
    }
    if kernel:
        KERNELS[kernel].require(graph)
    calls_kernels = "kernel calls" in arrays
    if kernel != CallRun.kernel:
        _require_operators(graph, given, calls_kernels)
    precision = arrays.text("precision")
    if precision not in ("f32", "bf16", "f16"):
        raise _Unfit("its precision is unknown")
    weight_format = arrays.text("weights")
    if weight_format not in ("as given", *COMPRESSED):
        raise _Unfit("the format of its weights is unknown")
    run = KERNELS.get(kernel, SubgraphRun)(graph, given, random, text)
    return Reproducer(run, versions, precision, weight_format, calls_kernels, results)


def _require_operators(graph: Graph, given: Sequence[Tensor], calls_kernels: bool) -> None:
    """Checks that the engine converts all operators, and that Paddle accepts their operands.

    With kernel calls, functions may call the kernels of others. Paddle has further operators that
    write files and print, or take addresses, and kernels that rely on the checks of shape
    inference.
    """
    for op in graph.all_ops():
        if op.blocks or (find_converter(op.type) is not None and not op.called):
            continue
        is_kernel_call = calls_kernels and kernel_calls.may_call(op.type)
        if not is_kernel_call or kernel_calls.CONVERTER.reason_against(op) is not None:
            raise _Unfit(f"the engine has no converter for {printable(op.type)}")
    with signals.own_errors():
        try:
            fallback.check_operators(graph, [dtype_name(dtype_of(each)) for each in given])
        except Exception as error:
            raise _Unfit(f"Paddle rejects its operators: {summarized(str(error))}") from error


def _require_sizes(arrays: _Arrays, specs: Sequence[TensorSpec]) -> None:
    """Checks the shapes of inputs without data, all together, before any is allocated."""
    total = 0
    for index, spec in enumerate(specs):
        if f"shape {index}" in arrays:
            shape = _shape(arrays, index, spec)
            total += 8 * math.prod(shape)
    if total > 4 * MAX_BYTES:
        raise _Unfit(f"its shapes take more than {4 * MAX_BYTES >> 20} MB")


def _shape(arrays: _Arrays, index: int, spec: TensorSpec) -> list[int]:
    shape = [int(size) for size in arrays.read(f"shape {index}", "int64").reshape(-1)]
    if not _fits(shape, spec):
        raise _Unfit(f"input {index} is {str(shape)[:80]}, not {list(spec.shape)}")
    return shape


def _fits(shape: Sequence[int], spec: TensorSpec) -> bool:
    sizes = zip(shape, spec.shape)
    return len(shape) == len(spec.shape) and all(a >= 0 and b in (-1, a) for a, b in sizes)


def _input(arrays: _Arrays, index: int, spec: TensorSpec, random: np.random.Generator) -> Tensor:
    if f"input {index}" not in arrays:
        shape = _shape(arrays, index, spec)
        ends = arrays.read(f"range {index}", "float64").reshape(-1).tolist()
        if len(ends) != 2:
            raise _Unfit(f"the range of input {index} has {len(ends)} numbers")
        return tensor_of(_random_values(random, shape, spec.dtype, *ends), spec.dtype)
    array = arrays.read(f"input {index}", NUMPY_DTYPES)
    is_bfloat16 = spec.dtype == BFLOAT16
    if array.dtype.name != ("uint16" if is_bfloat16 else spec.dtype) or not _fits(
        array.shape, spec
    ):
        raise _Unfit(
            f"input {index} is {array.dtype} {list(array.shape)}, not {spec.dtype} "
            f"{list(spec.shape)}"
        )
    if is_bfloat16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return tensor_of(array, spec.dtype)


def _random_values(
    random: np.random.Generator, shape: Sequence[int], dtype: str, low: float, high: float
) -> np.ndarray:
    """Random elements of a dtype in a range."""
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        low, high = 0.0, 1.0
    if dtype.startswith(("float", "bfloat")):
        return random.uniform(low, high, shape)
    first, last = DTYPES[dtype].range or (-(2**62), 2**62)
    low, high = (min(max(value, first), last) for value in (low, high))
    return random.integers(int(low), int(high), shape, endpoint=True)


def _range(array: np.ndarray) -> np.ndarray:
    """The range of the finite elements of an array."""
    values = array[np.isfinite(array)].astype("float64")
    return np.array([values.min(), values.max()] if values.size else [0.0, 0.0])


def _text(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)
