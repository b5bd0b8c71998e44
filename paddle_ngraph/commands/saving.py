"""``save`` and ``warm-up``: functions compiled before a model is served."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddle_ngraph import api, library
from paddle_ngraph.commands.arguments import (
    ALL_FILES,
    add_json,
    add_model,
    model_and_prefix,
    print_json,
    print_text,
    shapes_of,
)
from paddle_ngraph.errors import NgraphError

if TYPE_CHECKING:
    from paddle_ngraph.partitioning.report import Report


def add_save(commands: Any) -> None:
    parser = commands.add_parser(
        "save",
        help="save a model with engine operators and, with --shapes, compiled functions",
        description=_save.__doc__,
        epilog="example: python -m paddle_ngraph save ocr/det served/det --shapes x=1x3x640x640 "
        "--shapes x=1x3x960x960",
    )
    add_model(parser, ALL_FILES)
    parser.add_argument(
        "output",
        help="path of the new model, without an extension; in an existing folder it keeps its name",
    )
    parser.add_argument(
        "--shapes",
        metavar="NAME=SIZExSIZE",
        nargs="+",
        action="append",
        default=[],
        help="compile functions for these shapes, one shape for each input of the model, and store "
        "them beside the new model (OUTPUT.ngraph). May be repeated for other shapes",
    )
    add_json(parser)
    parser.set_defaults(command=_save)


def add_warm_up(commands: Any) -> None:
    warm_up = commands.add_parser(
        "warm-up",
        help="compile the functions of a saved model for given shapes, into the disk cache",
        description=_warm_up.__doc__,
        epilog="example: python -m paddle_ngraph warm-up ocr/det --shapes x=1x3x640x640 --shapes "
        "x=1x3x960x960",
    )
    add_model(warm_up)
    warm_up.add_argument(
        "--shapes",
        metavar="NAME=SIZExSIZE",
        nargs="+",
        action="append",
        required=True,
        help="a shape for each input of the model. May be repeated for other shapes",
    )
    add_json(warm_up)
    warm_up.set_defaults(command=_warm_up)


def _save(options: argparse.Namespace) -> int:
    """Save a model with engine operators in place of its subgraphs: an ordinary Paddle model
    (OUTPUT.json, OUTPUT.pdiparams) that runs wherever paddle_ngraph is imported, without enable().
    With --shapes, functions compiled for these shapes are stored next to it: a process with the
    same versions, processor and number of threads uses them, others compile their own."""
    library.load()
    from paddle_ngraph.frontends.saved_models import saved_model

    program, prefix = model_and_prefix(options)
    report = convert(program, prefix, [shapes_of(given) for given in options.shapes])
    functions = list(
        saved_model.functions_folder(f"{prefix}.json").glob(saved_model.FUNCTIONS_GLOB)
    )
    if options.json:
        print_json({**files_and_report(prefix, report), "functions": len(functions)})
    else:
        print_text(report)
        print_text(f"saved as {prefix}.json, with {len(functions)} compiled functions")
    return 0


def _warm_up(options: argparse.Namespace) -> int:
    """Compile the functions of a saved model for the given shapes, and store them in the disk
    cache, from which later processes with the same versions, processor and number of threads load
    them. The model runs once for each of the shapes, on zeros."""
    from paddle_ngraph.frontends import verified_use
    from paddle_ngraph.frontends.saved_models import saved_model

    model = saved_model.SavedModel.at(saved_model.find_only(options.model))
    model.check_parameters(model.as_pir(feeds_lod=False))
    shapes = [shapes_of(given) for given in options.shapes]
    found = verified_use.attempt_native(lambda: api.warm_up(options.model, shapes))
    if options.json:
        print_json(found._asdict())
    else:
        counts = f"{found.built} functions compiled, {found.loaded} loaded"
        print_text(f"{counts}, in {found.seconds:.1f} s")
    return 0


def convert(
    program: Path,
    prefix: Path,
    shapes: Sequence[dict[str, list[int]]] = (),
    prepare: Callable[[Any], None] | None = None,
) -> Report:
    """Saves a model with engine operators, and returns the report of the program pass."""
    from paddle_ngraph.frontends.saved_models import saved_model, saving

    model = saved_model.SavedModel.at(program)
    try:
        return saving.convert(model, str(prefix.absolute()), shapes, prepare=prepare)
    except OSError as error:
        file = error.filename2 or error.filename or prefix  # of a copy, its target
        raise NgraphError(f"{file}: {error.strerror}") from error


def files_and_report(prefix: Path, report: Report) -> dict[str, Any]:
    """Returns the files of a model and the report on its program, for ``--json``."""
    files = [f"{prefix}{ending}" for ending in (".json", ".pdiparams")]
    written = [file for file in files if Path(file).is_file()]  # some models have no parameters
    return {"files": written, "report": report.as_dict()}
