"""``explain`` and ``operators``: where operators run, and which can."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from paddle_ngraph import api, library
from paddle_ngraph.commands.arguments import (
    add_json,
    add_model,
    print_json,
    print_text,
    shapes_of,
    write,
)
from paddle_ngraph.errors import NgraphError


def add_explain(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="show which operators of a saved model run through nGraph",
        description=_explain.__doc__,
    )
    add_model(parser)
    add_json(parser)
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page with the graph to a file. The model runs natively and by the engine, on "
        "random inputs: the page has the times, and what ran",
    )
    parser.add_argument(
        "--shapes",
        metavar="NAME=SIZExSIZE",
        nargs="+",
        help="with --html: the shapes of some or all inputs (default: 2 for dynamic dimensions)",
    )
    parser.add_argument("--no-run", action="store_true", help="with --html: do not run the model")
    parser.set_defaults(command=_explain)


def add_operators(commands: Any) -> None:
    parser = commands.add_parser(
        "operators", help="list the operators nGraph can run", description=_operators.__doc__
    )
    add_json(parser)
    parser.set_defaults(command=_operators)


def _explain(options: argparse.Namespace) -> int:
    """Print which operators of a saved model run through nGraph, and why others do not."""
    library.load()
    from paddle_ngraph.frontends.saved_models import saved_model

    if options.html is not None:
        return _explain_as_page(options)
    for name in ("shapes", "no_run"):
        if getattr(options, name):
            raise NgraphError(f"--{name.replace('_', '-')} is for --html: give both")
    programs = saved_model.find(options.model)
    if options.json:
        reports = [(p, api.explain(saved_model.SavedModel.at(p).config())) for p in programs]
        print_json([{"model": str(path), **report.as_dict()} for path, report in reports])
        return 0
    for program in programs:
        if len(programs) > 1:
            print_text(f"{program}:")
        print_text(api.explain(saved_model.SavedModel.at(program).config()))
    return 0


def _explain_as_page(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from paddle_ngraph.doctor import observation
    from paddle_ngraph.frontends.saved_models import saved_model

    if options.no_run:
        model = saved_model.SavedModel.at(saved_model.find_only(options.model))
        report = replace(
            api.explain(model.config(), input_shapes=shapes_of(options.shapes or ())),
            name=Path(options.model).name,
            why_unmeasured="Not measured: --no-run was given.",
        )
    else:
        report = observation.explain_model(options.model, shapes_of(options.shapes or ()))
    write(options.html, report.to_html(), "--html")
    if options.json:
        print_json([{"model": options.model, **report.as_dict()}])
    else:
        print_text(f"{options.html}: open it in a browser")
    return 0


def _operators(options: argparse.Namespace) -> int:
    """Print every operator that nGraph can run and the limits of its converter, as Markdown, or
    with --json as JSON."""
    library.load()
    from paddle_ngraph.conversion import operator_table

    if options.json:
        print_json(operator_table.as_dict())
    else:
        print(operator_table.markdown(), end="")
    return 0
