"""Transpilers: functions that turn a program into other programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paddle_ngraph import installation

if TYPE_CHECKING:
    from paddle_ngraph.partitioning.report import Report


def generate_native(
    program: Any,
    directory: str | os.PathLike[str],
    fetch_list: Sequence[Any] | Mapping[str, Any] = (),
    *,
    scope: Any = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]] | None = None,
    processor: str = "any",
    seed: int = 0,
    train: bool | None = None,
    wide_integers: bool = False,
    force: bool = False,
) -> Report:
    """Generates a C++ project that runs, and trains, a program without Python and Paddle.

    The project builds with cmake against OpenVINO and oneDNN; its README.md explains how. Results
    equal those of the program here, starting from the current values of the program's variables.
    See docs/guides/native_code.md.

    Args:
        program: A static program, PIR or ProgramDesc, for inference or training; not modified. All
            operators have to be convertible, except control flow and its bookkeeping.
        directory: The directory of the project.
        fetch_list: The results: variables of the program, or a mapping that names them. The first
            result of a program that trains is its loss.
        scope: The scope of the program's variables; by default ``paddle.static.global_scope()``.
        shapes: The shapes of the inputs by name, -1 for dynamic dimensions; or several such
            mappings. By default all dimensions stay dynamic that the program declares dynamic.
            Programs that train convolutions or contain stochastic operators require shapes.
        processor: The target of the build: ``"any"``, ``"avx2"`` or ``"avx512"``, which speed up
            convolutions in training, or ``"native"``, the current processor.
        seed: The seed of random numbers, as in ``paddle.seed``.
        train: Whether the program is required to train, or not to; ``None``: either.
        wide_integers: Whether operators with int64 that may overflow int32 run Paddle's kernels,
            instead of a check in each run that raises an error on overflow.
        force: Whether to replace an existing project.

    Returns:
        A report of the conversion.

    Raises:
        NgraphError: The program cannot be converted to C++ (the message lists operators and
            reasons), or the directory is not empty. No file has been written then.
    """
    # Raises an error if the engine is missing; otherwise the import of the package has loaded it.
    installation.require()
    from paddle_ngraph.codegen import project

    return project.generate(
        program,
        directory,
        fetch_list,
        scope,
        shapes,
        processor,
        seed,
        train,
        wide_integers,
        force,
    )
