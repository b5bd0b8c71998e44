"""``verify``, ``replay`` and ``bisect``: results compared with those of Paddle."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from paddle_ngraph import library
from paddle_ngraph.commands.arguments import add_model, print_text, seed, shapes_of
from paddle_ngraph.errors import NgraphError

if TYPE_CHECKING:
    from paddle_ngraph.verification.reproducer import Reproducer


def add_verification(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        help="compare the results of a saved model with Paddle's",
        description=_verify.__doc__,
    )
    add_model(verify)
    verify.add_argument(
        "--shapes",
        nargs="+",
        default=[],
        metavar="NAME=SIZExSIZE",
        help="shapes of inputs (default: 2 for each dynamic dimension)",
    )
    verify.add_argument(
        "--inputs", metavar="FILE", help="an .npz file of the inputs by name (default: random)"
    )
    verify.add_argument("--seed", type=seed, default=0, help="for random inputs")
    _add_reproducer_to_save(verify, "save a reproducer of the first wrong subgraph")
    verify.set_defaults(command=_verify)

    replay = commands.add_parser(
        "replay", help="run the subgraph of a reproducer again", description=_replay.__doc__
    )
    _add_reproducer_to_read(replay)
    replay.add_argument(
        "--save-intermediates",
        metavar="FILE",
        help="an .npz file of all results: by the engine, by Paddle and in float64",
    )
    replay.set_defaults(command=_replay, runs_in_child=True)

    bisect = commands.add_parser(
        "bisect",
        help="find the operator by which a reproducer becomes wrong",
        description=_bisect.__doc__,
    )
    _add_reproducer_to_read(bisect)
    _add_reproducer_to_save(bisect, "save a reproducer of these operators only")
    bisect.set_defaults(command=_bisect, runs_in_child=True)


def _verify(options: argparse.Namespace) -> int:
    """Run a saved model once with every subgraph compared with Paddle's kernels, judged in float64.
    Print the operator by which a result becomes wrong. The exit status is 0 if all are right, 1 if
    one is wrong or none could be compared."""
    library.load()
    from paddle_ngraph.frontends import verified_use
    from paddle_ngraph.verification import reproducer

    arrays = None if options.inputs is None else reproducer.read_arrays(options.inputs)
    log = verified_use.verify_model(options.model, shapes_of(options.shapes), arrays, options.seed)
    print_text(log)
    for mismatch in log.mismatches[:1]:
        _save_reproducer(mismatch.reproducer, options)
    return 0 if log.is_right else 1


def _save_reproducer(found: Reproducer, options: argparse.Namespace) -> None:
    from paddle_ngraph.verification import reproducer

    if options.save is None:
        return
    arrays = reproducer.contents(found, options.shapes_only)
    print_text(f"{options.save} will hold {reproducer.summary(arrays)}")
    reproducer.save(options.save, arrays)


def _replay(options: argparse.Namespace) -> int:
    """Run the subgraph of a reproducer by a function that is built anew, and compare the results
    with Paddle's. Print the operators with the largest errors. The exit status is 1 if a result is
    wrong. A reproducer is a program: run one of a stranger as you would run a model of his."""
    library.load()
    from paddle_ngraph.verification import bisection, intermediates, reproducer

    found = reproducer.load(options.file, options.seed)
    settings = f"FLAGS_ngraph_precision={found.precision}"
    if found.weight_format != "as given":
        settings += f", FLAGS_ngraph_weights={found.weight_format}"
    print_text(f"recorded with {found.versions}, {settings}")
    with found.recorded_flags():
        differences, engine = bisection.replayed(found.run)
        print_text("\n".join(f"{each.name}: {each.text}" for each in differences) or "right")
        if others := found.other_results(engine):
            print_text(f"not as recorded, bit by bit: {', '.join(others)}")
        results = [] if found.run.kernel else intermediates.intermediates(found.run)
    if results:
        print_text(intermediates.table(results))
    elif options.save_intermediates is not None:
        raise NgraphError(f"{found.run.description}, has no results between operators")
    if options.save_intermediates is not None:
        reproducer.save(options.save_intermediates, intermediates.arrays_of(results))
    return 1 if differences else 0


def _bisect(options: argparse.Namespace) -> int:
    """Find the operator by which the results of a reproducer become wrong, and the operators before
    it that this takes. The exit status is 1 if there is one."""
    library.load()
    from paddle_ngraph.verification import bisection, reproducer

    found = reproducer.load(options.file, options.seed)
    with found.recorded_flags():
        differences, _ = bisection.replayed(found.run)
        if not differences:
            print_text("right")
            return 0
        located = bisection.locate(found.run, differences[0])
    print_text(f"{differences[0].name}: {differences[0].text}\nwrong at {located.text}")
    if located.run is not None:
        _save_reproducer(reproducer.recorded(located.run), options)
    return 1


def _add_reproducer_to_read(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="the reproducer")
    parser.add_argument("--seed", type=seed, default=0, help="for a reproducer of shapes only")


def _add_reproducer_to_save(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--save", metavar="FILE", help=meaning)
    parser.add_argument(
        "--shapes-only",
        action="store_true",
        help="save shapes and ranges instead of inputs and results",
    )
