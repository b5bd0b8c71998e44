"""``transpile`` and ``codegen``: a saved model becomes another program, or a C++ project."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddle_ngraph import library
from paddle_ngraph.commands.arguments import (
    ALL_FILES,
    add_json,
    add_model,
    model_and_prefix,
    print_json,
    print_text,
    reject_existing,
    seed,
    shapes_of,
)
from paddle_ngraph.commands.saving import convert, files_and_report
from paddle_ngraph.errors import NgraphError

if TYPE_CHECKING:
    from paddle_ngraph.transpiler.distribution_transpiler import DistributionOptions
    from paddle_ngraph.transpiler.memory_transpiler import Limits, MemoryReport


def add_transpile(commands: Any) -> None:
    parser = commands.add_parser(
        "transpile",
        help="transform the program of a saved model: insert engine operators, or distribute it "
        "to ranks",
        description=_transpile.__doc__,
    )
    add_model(parser, ALL_FILES)
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="PREFIX",
        help="path of the new model, without an extension; in an existing folder it keeps its name",
    )
    parser.add_argument(
        "--optimize-memory",
        action="store_true",
        help="reorder the operators so that their results take less memory",
    )
    parser.add_argument(
        "--recompute",
        type=float,
        metavar="MB",
        help="with --optimize-memory: recompute results to keep at most this many MB",
    )
    parser.add_argument(
        "--open-size",
        type=int,
        metavar="SIZE",
        help="with --optimize-memory: typical size of dynamic dimensions, such as the batch "
        "(default: 64)",
    )
    parser.add_argument(
        "--shapes",
        metavar="NAME=SIZExSIZE",
        nargs="+",
        help="with --optimize-memory: the shapes of some or all feeds",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing model")
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="instead, distribute a training program to N processes",
    )
    parser.add_argument(
        "--bucket-mb",
        type=float,
        metavar="MB",
        help="with --ranks: average gradients in buckets of at most this many MB (default: 25)",
    )
    parser.add_argument(
        "--accumulate",
        type=int,
        metavar="RUNS",
        help="with --ranks: accumulate the gradients of this many runs for an update (default: 1)",
    )
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="with --ranks: average a bucket while the backward pass computes the next one",
    )
    add_json(parser)
    parser.set_defaults(command=_transpile)


def add_codegen(commands: Any) -> None:
    parser = commands.add_parser(
        "codegen",
        help="generate a C++ project that runs a saved model without Python and Paddle",
        description=_codegen.__doc__,
        epilog="example: python -m paddle_ngraph codegen ocr/rec -o ocr_rec",
    )
    add_model(parser, ALL_FILES)
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="the directory of the project"
    )
    parser.add_argument(
        "--shapes",
        metavar="NAME=SIZExSIZE",
        nargs="+",
        action="append",
        default=[],
        help="generate functions for these shapes, with -1 for a dynamic dimension. May be "
        "repeated for other shapes (default: dynamic dimensions of the model stay dynamic)",
    )
    parser.add_argument(
        "--train",
        action="store_true",
        help="the model is a training program, saved with skip_prune_program=True",
    )
    parser.add_argument(
        "--processor",
        default="any",
        help="any, avx2, avx512, or native: this processor (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, help="of the random numbers (default: %(default)s)"
    )
    parser.add_argument(
        "--wide-integers",
        action="store_true",
        help="let Paddle's kernels compute int64 that may overflow int32 (default: an overflow "
        "ends the run with an error)",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing project")
    parser.set_defaults(command=_codegen)


def _transpile(options: argparse.Namespace) -> int:
    """Create an ordinary Paddle model (PREFIX.json, PREFIX.pdiparams) with engine operators in
    place of the subgraphs of a saved model, in either format. It runs wherever paddle_ngraph is
    imported, without enable(). With --ranks, the model is a training program (paddle.static.save),
    and the files are programs for paddle.load: PREFIX.json, that of each rank, PREFIX.startup.json,
    which gives all ranks the variables of rank 0, and, with --accumulate, PREFIX.accumulating.json.
    The parameters are not copied."""
    library.load()
    from paddle_ngraph.frontends.saved_models import saved_model

    limits, distributes = _memory_limits(options), _distribution_options(options)
    program, prefix = model_and_prefix(options)
    if distributes is not None:
        if limits is not None:
            raise NgraphError("--ranks and --optimize-memory: give one of them")
        return _distribute(program, prefix, distributes, options)
    reject_existing(saved_model.files_at(prefix), options.force)
    memory: list[MemoryReport] = []
    report = convert(program, prefix, prepare=_memory_transpiler(limits, memory.append))
    if options.json:
        peaks = [{"before": each.before, "after": each.after} for each in memory]
        print_json({**files_and_report(prefix, report), "peak_bytes": peaks[0] if peaks else None})
        return 0
    for each in [*memory, report]:
        print_text(each)
    print_text(f"saved as {prefix}.json")
    return 0


def _distribution_options(options: argparse.Namespace) -> DistributionOptions | None:
    """Returns the options of ``--ranks``, or ``None`` if the option is not given."""
    from paddle_ngraph.transpiler.distribution_transpiler import DistributionOptions

    given = {
        "bucket_mb": options.bucket_mb,
        "accumulate": options.accumulate,
        "overlap": options.overlap or None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if options.ranks is None:
        for name in given:
            raise NgraphError(f"--{name.replace('_', '-')} is for --ranks: give both")
        return None
    return DistributionOptions(**given)


def _distribute(
    program: Path, prefix: Path, distributes: DistributionOptions, options: argparse.Namespace
) -> int:
    from paddle_ngraph.frontends.saved_models import saved_model
    from paddle_ngraph.transpiler import distributing

    model = saved_model.SavedModel.at(program)
    made = distributing.programs_of(model, options.ranks, distributes)
    files = {prefix.with_name(f"{prefix.name}{ending}"): each for ending, each in made.items()}
    reject_existing(list(files), options.force)
    try:
        distributing.save(files)
    except OSError as error:
        raise NgraphError(f"{error.filename or prefix}: {error.strerror}") from error
    if options.json:
        print_json({"files": list(map(str, files))})
        return 0
    for file in files:
        print_text(f"saved {file}")
    return 0


def _memory_limits(options: argparse.Namespace) -> Limits | None:
    """Returns the limits for ``--optimize-memory``, or ``None`` if the option is not given."""
    from paddle_ngraph.transpiler import memory_transpiler

    names = ("recompute", "open_size", "shapes")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if not options.optimize_memory:
        for name in given:
            raise NgraphError(f"--{name.replace('_', '-')} is for --optimize-memory: give both")
        return None
    shapes = shapes_of(given.pop("shapes", ()))
    limits = memory_transpiler.Limits(**given, input_shapes=shapes)
    limits.check()
    return limits


def _memory_transpiler(
    limits: Limits | None, report: Callable[[MemoryReport], None]
) -> Callable[[Any], None] | None:
    """Returns the transpiler for ``--optimize-memory``, which reports its changes, or ``None``."""
    from paddle_ngraph.transpiler import memory_transpiler

    if limits is None:
        return None
    return lambda program: report(memory_transpiler.rewrite(program, limits))


def _codegen(options: argparse.Namespace) -> int:
    """Generate a C++ project of a saved model, in either format. It builds with cmake against
    OpenVINO and oneDNN, and has a command line and a library with a C API."""
    library.load()
    from paddle_ngraph.codegen import toolchain
    from paddle_ngraph.frontends.saved_models import saved_model
    from paddle_ngraph.transpiler import generate_native

    program, scope = saved_model.SavedModel.at(saved_model.find_only(options.model)).load()
    report = generate_native(
        program,
        options.output,
        scope=scope,
        shapes=[shapes_of(given) for given in options.shapes] or None,
        processor=options.processor,
        seed=options.seed,
        train=options.train,
        wide_integers=options.wide_integers,
        force=options.force,
    )
    print_text(report)
    print_text(f"generated {options.output}; to build it:")
    print_text("\n".join(toolchain.commands(Path(options.output))))
    return 0
