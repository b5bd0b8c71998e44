"""Arguments and output that commands share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from paddle_ngraph.errors import NgraphError, printable

# For the help of commands that write another model or project: models of Paddle 1 are files, too.
ALL_FILES = ".json, .pdmodel or __model__"


def print_text(value: object) -> None:
    """Prints a text in which names may come from a model or a file system."""
    print(printable(str(value)))


def print_json(value: object) -> None:
    print(json.dumps(value, indent=1))


def write(file: Path, text: str, option: str) -> None:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise NgraphError(f"{option} {file}: {error.strerror}") from error


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_model(parser: argparse.ArgumentParser, files: str = ".json or .pdmodel") -> None:
    parser.add_argument(
        "model", help=f"a folder, a {files} file, or its path without the extension"
    )


def add_dynamic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dynamic",
        action="store_true",
        help="compile plain layers of dynamic mode, too, where they infer",
    )
    parser.add_argument(
        "--dynamic-training",
        dest="dynamic",
        action="store_const",
        const="training",
        help="compile them where they train, too",
    )


def seed(text: str) -> int:
    """A seed of NumPy's generators, which negative numbers are not."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no number of at least 0")
    return int(text)


def shapes_of(arguments: Sequence[str]) -> dict[str, list[int]]:
    """Parses arguments ``NAME=SIZExSIZE`` into a dict from names to shapes."""
    found: dict[str, list[int]] = {}
    for name, shape in map(_shape, arguments):
        if name in found:
            raise NgraphError(f"--shapes gives {name} twice: begin others with --shapes again")
        found[name] = shape
    return found


def _shape(text: str) -> tuple[str, list[int]]:
    """Parses an argument such as ``x=1x3x640x640`` into a name and a shape."""
    name, _, sizes = text.rpartition("=")
    dims = sizes.split("x")
    if not name or not all(dim.isdecimal() or dim == "-1" for dim in dims):
        raise NgraphError(f"--shapes {text}: give NAME=SIZExSIZE, for example x=1x3x640x640")
    return name, [int(dim) for dim in dims]


def model_and_prefix(options: argparse.Namespace) -> tuple[Path, Path]:
    """Returns the program of the only model at a path, and the prefix of the new model."""
    from paddle_ngraph.frontends.saved_models import saved_model

    program, output = saved_model.find_only(options.model), Path(options.output)
    return program, output / program.stem if output.is_dir() else output


def reject_existing(files: Sequence[Path], is_forced: bool) -> None:
    for path in files:
        if path.exists() and not is_forced:
            raise NgraphError(f"{path} is there already: give --force to replace it")
