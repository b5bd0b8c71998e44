"""``python -m paddle_ngraph``: run scripts, explain and save models, show what is installed."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddle_ngraph import api, installation, library
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.version import __version__

if TYPE_CHECKING:
    from paddle_ngraph.transpiler.distribution_transpiler import (
        DistributionOptions,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command of the command line, and returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options) or 0)
    except NgraphError as error:
        print(f"paddle_ngraph: {error}", file=sys.stderr)
        return 2


def _print(value: object) -> None:
    """Prints a text in which names may come from a model or a file system."""
    print(printable(str(value)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paddle_ngraph",
        description="Makes PaddlePaddle programs faster on the CPU.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True)

    run = commands.add_parser(
        "run", help="run an unchanged script through nGraph", description=_run.__doc__
    )
    run.add_argument(
        "--dynamic",
        action="store_true",
        help="compile plain layers of dynamic mode, too, where they infer",
    )
    run.add_argument(
        "--dynamic-training",
        dest="dynamic",
        action="store_const",
        const="training",
        help="compile them where they train, too",
    )
    run.add_argument("--stats", action="store_true", help="print the counters of runs at the end")
    run.add_argument("script", help="the Python script")
    run.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(command=_run)

    launch = commands.add_parser(
        "launch",
        help="run a script on several processes of this machine, and restart them",
        description=_launch.__doc__,
        epilog="example: python -m paddle_ngraph launch --nproc 4 --max-restarts 3 "
        "--checkpoint checkpoints train.py",
    )
    launch.add_argument(
        "--nproc", type=int, required=True, metavar="N", help="the number of processes, or ranks"
    )
    launch.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="restart all ranks at most this many times when one fails or is stuck (default: "
        "%(default)s)",
    )
    launch.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="the folder for checkpoint() and resume() of paddle_ngraph.distributed",
    )
    launch.add_argument(
        "--log-dir",
        default="log",
        metavar="DIR",
        help="folder of the output of all ranks but 0, workerlog.RANK (default: %(default)s)",
    )
    launch.add_argument(
        "--timeout",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="a rank without a heartbeat for this long is stuck (default: %(default)g)",
    )
    launch.add_argument(
        "--port",
        type=int,
        help="the port of the rendezvous (default: a free one for each start)",
    )
    launch.add_argument("script", help="the Python script")
    launch.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    launch.set_defaults(command=_launch)

    explain = commands.add_parser(
        "explain",
        help="show which operators of a saved model run through nGraph",
        description=_explain.__doc__,
    )
    explain.add_argument(
        "model", help="a folder, a .json or .pdmodel file, or its path without the extension"
    )
    explain.set_defaults(command=_explain)

    save = commands.add_parser(
        "save",
        help="save a model with engine operators and, with --shapes, compiled functions",
        description=_save.__doc__,
        epilog="example: python -m paddle_ngraph save ocr/det served/det --shapes x=1x3x640x640 "
        "--shapes x=1x3x960x960",
    )
    save.add_argument(
        "model",
        help="a folder, a .json, .pdmodel or __model__ file, or its path without the extension",
    )
    save.add_argument(
        "output",
        help="path of the new model, without an extension; in an existing folder it keeps its name",
    )
    save.add_argument(
        "--shapes",
        metavar="NAME=SIZExSIZE",
        nargs="+",
        action="append",
        default=[],
        help="compile functions for these shapes, one shape for each input of the model, and store "
        "them beside the new model (OUTPUT.ngraph). May be repeated for other shapes",
    )
    save.set_defaults(command=_save)

    transpile = commands.add_parser(
        "transpile",
        help="transform the program of a saved model: insert engine operators, or distribute it "
        "to ranks",
        description=_transpile.__doc__,
    )
    transpile.add_argument(
        "model",
        help="a folder, a .json, .pdmodel or __model__ file, or its path without the extension",
    )
    transpile.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="PREFIX",
        help="path of the new model, without an extension; in an existing folder it keeps its name",
    )
    transpile.add_argument(
        "--optimize-memory",
        action="store_true",
        help="reorder the operators so that their results take less memory",
    )
    transpile.add_argument(
        "--recompute",
        type=float,
        metavar="MB",
        help="with --optimize-memory: recompute results to keep at most this many MB",
    )
    transpile.add_argument(
        "--open-size",
        type=int,
        metavar="SIZE",
        help="with --optimize-memory: typical size of dynamic dimensions, such as the batch "
        "(default: 64)",
    )
    transpile.add_argument(
        "--shapes",
        metavar="NAME=SIZExSIZE",
        nargs="+",
        help="with --optimize-memory: the shapes of some or all feeds",
    )
    transpile.add_argument("--force", action="store_true", help="replace an existing model")
    transpile.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="instead, distribute a training program to N processes",
    )
    transpile.add_argument(
        "--bucket-mb",
        type=float,
        metavar="MB",
        help="with --ranks: average gradients in buckets of at most this many MB (default: 25)",
    )
    transpile.add_argument(
        "--accumulate",
        type=int,
        metavar="RUNS",
        help="with --ranks: accumulate the gradients of this many runs for an update (default: 1)",
    )
    transpile.add_argument(
        "--overlap",
        action="store_true",
        help="with --ranks: average a bucket while the backward pass computes the next one",
    )
    transpile.set_defaults(command=_transpile)

    codegen = commands.add_parser(
        "codegen",
        help="generate a C++ project that runs a saved model without Python and Paddle",
        description=_codegen.__doc__,
        epilog="example: python -m paddle_ngraph codegen ocr/rec -o ocr_rec",
    )
    codegen.add_argument(
        "model",
        help="a folder, a .json, .pdmodel or __model__ file, or its path without the extension",
    )
    codegen.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="the directory of the project"
    )
    codegen.add_argument(
        "--shapes",
        metavar="NAME=SIZExSIZE",
        nargs="+",
        action="append",
        default=[],
        help="generate functions for these shapes, with -1 for a dynamic dimension. May be "
        "repeated for other shapes (default: dynamic dimensions of the model stay dynamic)",
    )
    codegen.add_argument(
        "--train",
        action="store_true",
        help="the model is a training program, saved with skip_prune_program=True",
    )
    codegen.add_argument(
        "--processor",
        default="any",
        help="any, avx2, avx512, or native: this processor (default: %(default)s)",
    )
    codegen.add_argument(
        "--seed", type=int, default=0, help="of the random numbers (default: %(default)s)"
    )
    codegen.add_argument(
        "--wide-integers",
        action="store_true",
        help="let Paddle's kernels compute int64 that may overflow int32 (default: an overflow "
        "ends the run with an error)",
    )
    codegen.add_argument("--force", action="store_true", help="replace an existing project")
    codegen.set_defaults(command=_codegen)

    simulate = commands.add_parser(
        "simulate",
        help="predict steps of data parallelism on more ranks than this machine has",
        description=_simulate.__doc__,
        epilog="example: python -m paddle_ngraph simulate benchmarks/results/ranks_mlp.json "
        "--ranks 16 64 256 --network-gbit 25 --svg steps.svg. docs/scaling.md describes "
        "profiles, and how to measure one",
    )
    simulate.add_argument("profile", type=Path, help="a JSON file with the measurements")
    simulate.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of ranks (default: 8, 16, ... 4096)",
    )
    simulate.add_argument(
        "--ranks-per-machine",
        type=int,
        metavar="N",
        help="ranks on each machine (default: one for each core of the profile's machine)",
    )
    simulate.add_argument(
        "--network-gbit",
        type=float,
        default=10.0,
        metavar="GBIT",
        help="bandwidth between two machines, in each direction, in 10^9 bits per second "
        "(default: %(default)g)",
    )
    simulate.add_argument(
        "--network-latency-us",
        type=float,
        default=50.0,
        metavar="US",
        help="latency of a message between two machines (default: %(default)g)",
    )
    simulate.add_argument(
        "--spread",
        type=float,
        metavar="S",
        help="the standard deviation of the logarithm of a rank's time for a step (default: that "
        "of the profile)",
    )
    simulate.add_argument(
        "--mtbf-hours",
        type=float,
        default=50000.0,
        metavar="HOURS",
        help="the mean time between failures of one rank (default: %(default)g)",
    )
    simulate.add_argument("--svg", type=Path, metavar="FILE", help="draw a picture, too")
    simulate.set_defaults(command=_simulate)

    operators = commands.add_parser(
        "operators", help="list the operators nGraph can run", description=_operators.__doc__
    )
    operators.set_defaults(command=_operators)

    cache = commands.add_parser(
        "cache", help="show the compiled functions on disk", description=_cache.__doc__
    )
    cache.add_argument("--clear", action="store_true", help="delete them")
    cache.set_defaults(command=_cache)

    info = commands.add_parser(
        "info", help="show versions and whether the engine is ready", description=_info.__doc__
    )
    info.add_argument(
        "--settings", action="store_true", help="show the policy, too (paddle_ngraph/settings.py)"
    )
    info.set_defaults(command=_info)
    return parser


def _run(options: argparse.Namespace) -> int:
    """Run SCRIPT as __main__ with the engine switched on; the script needs no change."""
    script = Path(options.script)
    if not script.is_file():
        raise NgraphError(f"there is no script {script}: give the path of a Python file")
    api.enable(dynamic=options.dynamic)
    sys.argv = [str(script), *options.args]
    sys.path[0] = str(script.resolve().parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        if options.stats:
            print(api.stats(), file=sys.stderr)
    return 0


def _launch(options: argparse.Namespace) -> int:
    """Run SCRIPT on N processes (ranks) of this machine, which train together by means of
    paddle_ngraph.distributed. If one fails or is stuck, all are stopped; with --max-restarts they
    are started again, and continue from the last complete checkpoint. Rank 0 prints here. The exit
    status is 0 if all ranks succeed, 1 if one fails, 2 if all fail with the same NgraphError."""
    from paddle_ngraph.distributed import launcher

    return launcher.launch(
        launcher.LauncherOptions(
            script=options.script,
            arguments=options.args,
            ranks=options.nproc,
            max_restarts=options.max_restarts,
            checkpoint=options.checkpoint,
            log_dir=options.log_dir,
            timeout=options.timeout,
            port=options.port,
        )
    )


def _explain(options: argparse.Namespace) -> int:
    """Print which operators of a saved model run through nGraph, and why others do not."""
    library.load()
    from paddle_ngraph.frontends.saved_models import saved_model

    programs = saved_model.find(options.model)
    for program in programs:
        if len(programs) > 1:
            _print(f"{program}:")
        _print(api.explain(saved_model.SavedModel.at(program).config()))
    return 0


def _save(options: argparse.Namespace) -> int:
    """Save a model with engine operators in place of its subgraphs: an ordinary Paddle model
    (OUTPUT.json, OUTPUT.pdiparams) that runs wherever paddle_ngraph is imported, without enable().
    With --shapes, functions compiled for these shapes are stored next to it: a process with the
    same versions, processor and number of threads uses them, others compile their own."""
    library.load()
    from paddle_ngraph.frontends.saved_models import saved_model

    program, prefix = _model_and_prefix(options)
    _convert(program, prefix, [_shapes(given) for given in options.shapes])
    functions = list(
        saved_model.functions_folder(f"{prefix}.json").glob(saved_model.FUNCTIONS_GLOB)
    )
    _print(f"saved as {prefix}.json, with {len(functions)} compiled functions")
    return 0


def _transpile(options: argparse.Namespace) -> int:
    """Create an ordinary Paddle model (PREFIX.json, PREFIX.pdiparams) with engine operators in
    place of the subgraphs of a saved model, in either format. It runs wherever paddle_ngraph is
    imported, without enable(). With --ranks, the model is a training program (paddle.static.save),
    and the files are programs for paddle.load: PREFIX.json, that of each rank, PREFIX.startup.json,
    which gives all ranks the variables of rank 0, and, with --accumulate, PREFIX.accumulating.json.
    The parameters are not copied."""
    library.load()
    from paddle_ngraph.frontends.saved_models import saved_model

    prepare, distributes = _memory_transpiler(options), _distribution_options(options)
    program, prefix = _model_and_prefix(options)
    if distributes is not None:
        if prepare is not None:
            raise NgraphError("--ranks and --optimize-memory: give one of them")
        return _distribute(program, prefix, distributes, options)
    _reject_existing(saved_model.files_at(prefix), options.force)
    _convert(program, prefix, prepare=prepare)
    _print(f"saved as {prefix}.json")
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
    _reject_existing(list(files), options.force)
    try:
        distributing.save(files)
    except OSError as error:
        raise NgraphError(f"{error.filename or prefix}: {error.strerror}") from error
    for file in files:
        _print(f"saved {file}")
    return 0


def _reject_existing(files: Sequence[Path], is_forced: bool) -> None:
    for path in files:
        if path.exists() and not is_forced:
            raise NgraphError(f"{path} is there already: give --force to replace it")


def _memory_transpiler(options: argparse.Namespace) -> Callable[[Any], None] | None:
    """Returns the transpiler for ``--optimize-memory``, which prints a report, or ``None``."""
    from paddle_ngraph.transpiler import memory_transpiler

    names = ("recompute", "open_size", "shapes")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if not options.optimize_memory:
        for name in given:
            raise NgraphError(f"--{name.replace('_', '-')} is for --optimize-memory: give both")
        return None
    shapes = _shapes(given.pop("shapes", ()))
    limits = memory_transpiler.Limits(**given, input_shapes=shapes)
    limits.check()
    return lambda program: _print(memory_transpiler.rewrite(program, limits))


def _codegen(options: argparse.Namespace) -> int:
    """Generate a C++ project of a saved model, in either format. It builds with cmake against
    OpenVINO and oneDNN, and has a command line and a library with a C API."""
    library.load()
    from paddle_ngraph.codegen import toolchain
    from paddle_ngraph.frontends.saved_models import saved_model
    from paddle_ngraph.transpiler import generate_native

    program, scope = saved_model.SavedModel.at(_only_model(options.model)).load()
    report = generate_native(
        program,
        options.output,
        scope=scope,
        shapes=[_shapes(given) for given in options.shapes] or None,
        processor=options.processor,
        seed=options.seed,
        train=options.train,
        wide_integers=options.wide_integers,
        force=options.force,
    )
    _print(report)
    _print(f"generated {options.output}; to build it:")
    _print("\n".join(toolchain.commands(Path(options.output))))
    return 0


def _only_model(path: str) -> Path:
    """Returns the path of the program at ``path``, where there must be exactly one model."""
    from paddle_ngraph.frontends.saved_models import saved_model

    programs = saved_model.find(path)
    if len(programs) > 1:
        names = ", ".join(str(program) for program in programs)
        raise NgraphError(f"there are several models in {path}: give one of {names}")
    return programs[0]


def _model_and_prefix(options: argparse.Namespace) -> tuple[Path, Path]:
    """Returns the program of the only model at a path, and the prefix of the new model."""
    program, output = _only_model(options.model), Path(options.output)
    return program, output / program.stem if output.is_dir() else output


def _convert(
    program: Path,
    prefix: Path,
    shapes: Sequence[dict[str, list[int]]] = (),
    prepare: Callable[[Any], None] | None = None,
) -> None:
    """Saves a model with engine operators, and prints the report of the program pass."""
    from paddle_ngraph.frontends.saved_models import saved_model, saving

    model = saved_model.SavedModel.at(program)
    try:
        _print(saving.convert(model, str(prefix.absolute()), shapes, prepare=prepare))
    except OSError as error:
        raise NgraphError(f"{error.filename or prefix}: {error.strerror}") from error


def _shapes(arguments: Sequence[str]) -> dict[str, list[int]]:
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


def _simulate(options: argparse.Namespace) -> int:
    """Predict the time of a training step on N ranks, from measurements on one machine: subgraphs,
    buckets of gradients, latency and bandwidth. Print first the measured steps next to their
    predictions; then, for each requested number of ranks, a ring and a hierarchical all-reduce,
    after the backward pass or overlapping with it; the time that stragglers add to the shortest of
    these; the share of computation; the best checkpoint interval, and the share of useful time with
    failures."""
    from dataclasses import replace

    from paddle_ngraph.simulation import prediction, profile
    from paddle_ngraph.simulation.collectives import SimulatedLink
    from paddle_ngraph.simulation.picture import picture

    measured = profile.read(options.profile)
    if options.spread is not None:
        if not 0 <= options.spread < 10:
            raise NgraphError(f"--spread {options.spread:g}: give a number from 0 to 10")
        measured = replace(measured, spread=options.spread)
    scenario = prediction.Scenario(
        options.ranks or prediction.RANKS,
        options.ranks_per_machine,
        SimulatedLink(options.network_latency_us, options.network_gbit / 8),
        options.mtbf_hours,
    )
    known = prediction.checked(measured)
    rows = prediction.predicted(measured, scenario)
    _print(f"{measured.name}, {measured.samples} samples a rank; {measured.processor}")
    if known:
        _print(f"\nOne machine of {measured.cores} cores:\n\n{prediction.checked_table(known)}")
    per_machine = scenario.cluster(measured, rows[0].ranks).per_machine
    _print(f"\nMachines like it, with {per_machine} ranks each:\n")
    _print(prediction.predicted_table(rows))
    if options.svg is not None:
        try:
            options.svg.write_text(picture(measured, known, rows))
        except OSError as error:
            raise NgraphError(f"--svg {options.svg}: {error.strerror}") from error
    return 0


def _operators(options: argparse.Namespace) -> int:
    """Print every operator that nGraph can run and the limits of its converter, as Markdown."""
    library.load()
    from paddle_ngraph.conversion import operator_table

    print(operator_table.markdown(), end="")
    return 0


def _cache(options: argparse.Namespace) -> int:
    """Print the folder, number and size of the compiled functions on disk."""
    library.load()
    from paddle_ngraph import flags
    from paddle_ngraph.conversion import disk_cache

    folder = flags.get("ngraph_cache_dir")
    if not folder:
        print("FLAGS_ngraph_cache_dir is empty: no functions are stored on disk")
        return 0
    files = disk_cache.files()
    megabytes = sum(file.stat().st_size for file in files) / 2**20
    _print(f"{folder}: {len(files)} functions, {megabytes:.1f} MB")
    if options.clear:
        for file in files:
            file.unlink(missing_ok=True)
        print("deleted")
    return 0


def _info(options: argparse.Namespace) -> int:
    """Print the versions and whether the engine is ready."""
    reason = installation.why_unavailable()
    print(f"paddle-ngraph {__version__}")
    for line in installation.versions():
        _print(line)
    _print("engine: ready" if reason is None else f"engine: not available. {reason}")
    if reason is None and options.settings:
        library.load()
        from paddle_ngraph import flags

        for name, value in vars(flags.settings()).items():
            _print(f"{name} = {value!r}")
    return 0 if reason is None else 1


if __name__ == "__main__":
    sys.exit(main())
