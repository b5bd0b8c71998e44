"""Transpilers: a program in, another program out."""

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
    """Generates a C++ project of a program: it runs, and trains, without Python and Paddle.

    The project builds with cmake against OpenVINO and oneDNN; its README.md says how. It computes
    what the program computes here, from what the variables of the program hold now. docs/
    native_code.md describes it.

    Args:
        program: A static program, PIR or ProgramDesc, for inference or training, which stays as it
            is. All of it has to be convertible, but for control flow and its bookkeeping.
        directory: Where the project goes.
        fetch_list: The results: variables of the program, or a mapping that names them. The first
            result of a program that trains is its loss.
        scope: Where the variables of the program are; by default ``paddle.static.global_scope()``.
        shapes: The shapes of the inputs by name, -1 where a dimension stays open; or several such
            mappings. By default everything stays open that the program leaves open, which programs
            that train convolutions or draw random numbers cannot: these need shapes.
        processor: What the project is built for: ``"any"``, ``"avx2"`` or ``"avx512"``, whose
            convolutions in training are faster, or ``"native"``, this one.
        seed: Of the random numbers, as in ``paddle.seed``.
        train: Whether the program has to be one that trains, or must not be; ``None``: either.
        wide_integers: Whether int64 that 32 bits may not hold is left to Paddle's kernels, and not
            looked at in each run, which ends with an error where it does not fit.
        force: Whether to replace a project that is there.

    Returns:
        What was converted.

    Raises:
        NgraphError: The program cannot become C++ (the message names operators and reasons), or
            something is in the way. Nothing has been written then.
    """
    installation.require()  # then importing the package has loaded the engine
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
