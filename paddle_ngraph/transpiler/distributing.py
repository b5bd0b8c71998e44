"""Distributes a saved training program over ranks, and saves the results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.frontends.saved_models.saved_model import SavedModel
from paddle_ngraph.paddle_private.names import serialize_program
from paddle_ngraph.paddle_private.protocols import Program
from paddle_ngraph.transpiler import distribution_transpiler
from paddle_ngraph.transpiler.distribution_transpiler import DistributionOptions


def programs_of(model: SavedModel, ranks: int, options: DistributionOptions) -> dict[str, Program]:
    """The programs of the ranks of a training program, by the suffixes of their files.

    Raises:
        NgraphError: The file cannot be read, or its program cannot be distributed.
    """
    program = model.as_pir()
    if not model.is_pir:
        translation.rename_as_pir(program)
    distributed = distribution_transpiler.transpile(program, ranks, (), options)
    programs = {".startup.json": distributed.startup}
    if distributed.accumulating is not None:
        programs[".accumulating.json"] = distributed.accumulating[0]
    return {**programs, ".json": distributed.program}


def save(files: Mapping[Path, Program]) -> None:
    """Saves programs to these files, in this order: all, or none if a file cannot be written.

    Raises:
        OSError: A file cannot be written.
    """
    folder = next(iter(files)).absolute().parent
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=".unfinished", dir=folder) as unfinished:
        written = [Path(unfinished) / str(number) for number in range(len(files))]
        for path, program in zip(written, files.values()):
            serialize_program(program, f"{path}.json", True, False, True)
            if not Path(f"{path}.json").is_file():
                raise NgraphError(f"Paddle could not write a program to {folder}")
        for path, target in zip(written, files):
            os.replace(f"{path}.json", target)
