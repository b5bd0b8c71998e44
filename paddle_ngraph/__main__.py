"""``paddle-ngraph``, or ``python -m paddle_ngraph``: run scripts, explain and save models."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddle_ngraph import api, installation, library
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.version import __version__

if TYPE_CHECKING:
    from paddle_ngraph.doctor import checkup, observation
    from paddle_ngraph.partitioning.report import Report
    from paddle_ngraph.transpiler.distribution_transpiler import DistributionOptions
    from paddle_ngraph.transpiler.memory_transpiler import Limits, MemoryReport
    from paddle_ngraph.verification.reproducer import Reproducer


_PROGRAM = "paddle-ngraph"  # the entry point in pyproject.toml


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command of the command line, and returns the exit status."""
    options = _parser().parse_args(arguments)
    # Errors of a script, and of Python code that calls this, are for them.
    is_own = arguments is None and options.command is not _run
    try:
        # Not where Python code calls this: the process may have threads, which no child has.
        if arguments is None and "runs_in_child" in options:
            return _in_child(options)
        status = int(options.command(options) or 0)
        if is_own:
            sys.stdout.flush()  # fails on a full disk, and where the reader has gone
        return status
    except NgraphError as error:
        print(f"paddle_ngraph: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if not is_own:
            raise
        # Else Python would try to write the rest of the output when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"paddle_ngraph: {error}", file=sys.stderr)
        return 2


def _in_child(options: argparse.Namespace) -> int:
    """Runs a command on a file of others in a child process, which a kernel may crash.

    Raises:
        NgraphError: A signal has ended the child.
    """
    child = multiprocessing.get_context("fork").Process(target=_exit, args=(options,))
    child.start()
    child.join()
    status = child.exitcode or 0
    if status < 0:
        name = signal.Signals(-status).name
        raise NgraphError(f"a kernel that runs {options.file} has ended its process by {name}")
    return status


def _exit(options: argparse.Namespace) -> None:
    try:
        sys.exit(options.command(options))
    except NgraphError as error:
        print(f"paddle_ngraph: {error}", file=sys.stderr)
        sys.exit(2)


def _print(value: object) -> None:
    """Prints a text in which names may come from a model or a file system."""
    print(printable(str(value)))


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1))


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM if Path(sys.argv[0]).name == _PROGRAM else "python -m paddle_ngraph",
        description="Makes PaddlePaddle programs faster on the CPU.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True)

    run = commands.add_parser(
        "run", help="run an unchanged script through nGraph", description=_run.__doc__
    )
    _add_dynamic(run)
    run.add_argument("--stats", action="store_true", help="print the counters of runs at the end")
    run.add_argument("--stats-json", type=Path, metavar="FILE", help="write them to a file as JSON")
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
        "--nnodes",
        type=int,
        metavar="N",
        help="the number of machines, with a launcher on each (default: as SLURM or Open MPI say, "
        "or 1)",
    )
    launch.add_argument(
        "--node-rank", type=int, metavar="N", help="the number of this machine, from 0"
    )
    launch.add_argument(
        "--master",
        metavar="HOST:PORT",
        help="the address at which machine 0 listens for the other launchers",
    )
    launch.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run the ranks on a cluster of Ray: HOST:PORT of its head, or auto",
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
    _add_json(explain)
    explain.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page with the graph to a file. The model runs natively and by the engine, on "
        "random inputs: the page has the times, and what ran",
    )
    explain.add_argument(
        "--shapes",
        metavar="NAME=SIZExSIZE",
        nargs="+",
        help="with --html: the shapes of some or all inputs (default: 2 for dynamic dimensions)",
    )
    explain.add_argument("--no-run", action="store_true", help="with --html: do not run the model")
    explain.set_defaults(command=_explain)

    _add_verification(commands)

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
    _add_json(save)
    save.set_defaults(command=_save)

    _add_warm_up(commands)

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
    _add_json(transpile)
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
        "--seed", type=_seed, default=0, help="of the random numbers (default: %(default)s)"
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
        "--ranks 16 64 256 --network-gbit 25 --svg steps.svg. docs/guides/scaling.md describes "
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
    _add_json(simulate)
    simulate.set_defaults(command=_simulate)

    operators = commands.add_parser(
        "operators", help="list the operators nGraph can run", description=_operators.__doc__
    )
    _add_json(operators)
    operators.set_defaults(command=_operators)

    cache = commands.add_parser(
        "cache", help="show the compiled functions on disk", description=_cache.__doc__
    )
    cache.add_argument("--clear", action="store_true", help="delete them")
    _add_json(cache)
    cache.set_defaults(command=_cache)

    _add_doctor(commands)

    info = commands.add_parser(
        "info", help="show versions and whether the engine is ready", description=_info.__doc__
    )
    info.add_argument(
        "--settings", action="store_true", help="show the policy, too (paddle_ngraph/settings.py)"
    )
    _add_json(info)
    info.set_defaults(command=_info)
    return parser


def _seed(text: str) -> int:
    """A seed of NumPy's generators, which negative numbers are not."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no number of at least 0")
    return int(text)


def _add_dynamic(parser: argparse.ArgumentParser) -> None:
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


def _add_warm_up(commands: Any) -> None:
    warm_up = commands.add_parser(
        "warm-up",
        help="compile the functions of a saved model for given shapes, into the disk cache",
        description=_warm_up.__doc__,
        epilog="example: python -m paddle_ngraph warm-up ocr/det --shapes x=1x3x640x640 --shapes "
        "x=1x3x960x960",
    )
    warm_up.add_argument(
        "model", help="a folder, a .json or .pdmodel file, or its path without the extension"
    )
    warm_up.add_argument(
        "--shapes",
        metavar="NAME=SIZExSIZE",
        nargs="+",
        action="append",
        required=True,
        help="a shape for each input of the model. May be repeated for other shapes",
    )
    _add_json(warm_up)
    warm_up.set_defaults(command=_warm_up)


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check the installation and, with a model or script, find what would gain most",
        description=_doctor.__doc__,
        epilog="example: python -m paddle_ngraph doctor --shapes x=1x3x640x640 --measure ocr/det",
    )
    doctor.add_argument(
        "--measure",
        action="store_true",
        help="try each of the changes that would gain most, in a process of its own",
    )
    doctor.add_argument(
        "--shapes",
        action="append",
        default=[],
        metavar="NAME=SIZExSIZE",
        help="the shape of an input of the model (default: 2 for each dynamic dimension). May be "
        "repeated for other inputs",
    )
    _add_dynamic(doctor)
    _add_json(doctor)
    doctor.add_argument(
        "subject",
        nargs="?",
        metavar="MODEL|SCRIPT",
        help="a model, as for explain, or a Python script (.py)",
    )
    doctor.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    doctor.set_defaults(command=_doctor)


def _add_verification(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        help="compare the results of a saved model with Paddle's",
        description=_verify.__doc__,
    )
    verify.add_argument(
        "model", help="a folder, a .json or .pdmodel file, or its path without the extension"
    )
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
    verify.add_argument("--seed", type=_seed, default=0, help="for random inputs")
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


def _add_reproducer_to_read(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="the reproducer")
    parser.add_argument("--seed", type=_seed, default=0, help="for a reproducer of shapes only")


def _add_reproducer_to_save(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--save", metavar="FILE", help=meaning)
    parser.add_argument(
        "--shapes-only",
        action="store_true",
        help="save shapes and ranges instead of inputs and results",
    )


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
        if options.stats_json is not None:
            _write(options.stats_json, json.dumps(api.stats(), indent=1), "--stats-json")
    return 0


def _launch(options: argparse.Namespace) -> int:
    """Run SCRIPT on N processes (ranks) of this machine, which train together by means of
    paddle_ngraph.distributed; with --nnodes, with those of other machines. If one fails or is
    stuck, all are stopped; with --max-restarts they are started again, and continue from the last
    complete checkpoint. Rank 0 prints here. With --ray, a cluster of Ray runs the ranks on its
    machines, on others if one is lost, and prints the output of all. The exit status is 0 if all
    ranks succeed, 1 if one fails, 2 if all fail with the same NgraphError, 3 if a machine is lost.
    """
    from paddle_ngraph.distributed import launcher, machines

    if options.ray is not None:
        return launcher.reported(_launch_on_ray(options))
    found = machines.ONE_MACHINE if options.nnodes else machines.place_of(os.environ)
    place = machines.Place(
        options.nnodes or found.nodes,
        found.node if options.node_rank is None else options.node_rank,
        options.master or found.master,
    )
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
            place=place,
        )
    )


def _launch_on_ray(options: argparse.Namespace) -> Any:
    from paddle_ngraph.distributed.launcher import LauncherOptions
    from paddle_ngraph.ray import scripts

    for name in ("nnodes", "node_rank", "master", "port"):
        if getattr(options, name) is not None:
            raise NgraphError(
                f"--{name.replace('_', '-')} has no meaning with --ray, where Ray places the ranks"
            )
    return scripts.launch(
        options.ray,
        LauncherOptions(
            script=options.script,
            arguments=options.args,
            ranks=options.nproc,
            max_restarts=options.max_restarts,
            checkpoint=options.checkpoint,
            log_dir=options.log_dir,
            timeout=options.timeout,
        ),
    )


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
        _print_json([{"model": str(path), **report.as_dict()} for path, report in reports])
        return 0
    for program in programs:
        if len(programs) > 1:
            _print(f"{program}:")
        _print(api.explain(saved_model.SavedModel.at(program).config()))
    return 0


def _explain_as_page(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from paddle_ngraph.doctor import observation
    from paddle_ngraph.frontends.saved_models import saved_model

    if options.no_run:
        model = saved_model.SavedModel.at(saved_model.find_only(options.model))
        report = replace(
            api.explain(model.config()),
            name=Path(options.model).name,
            why_unmeasured="Not measured: --no-run was given.",
        )
    else:
        report = observation.explain_model(options.model, _shapes(options.shapes or ()))
    _write(options.html, report.to_html(), "--html")
    if options.json:
        _print_json([{"model": options.model, **report.as_dict()}])
    else:
        _print(f"{options.html}: open it in a browser")
    return 0


def _verify(options: argparse.Namespace) -> int:
    """Run a saved model once with every subgraph compared with Paddle's kernels, judged in float64.
    Print the operator by which a result becomes wrong. The exit status is 0 if all are right, 1 if
    one is wrong or none could be compared."""
    library.load()
    from paddle_ngraph.frontends import verified_use
    from paddle_ngraph.verification import reproducer

    arrays = None if options.inputs is None else reproducer.read_arrays(options.inputs)
    log = verified_use.verify_model(options.model, _shapes(options.shapes), arrays, options.seed)
    _print(log)
    for mismatch in log.mismatches[:1]:
        _save_reproducer(mismatch.reproducer, options)
    return 0 if log.is_right else 1


def _save_reproducer(found: Reproducer, options: argparse.Namespace) -> None:
    from paddle_ngraph.verification import reproducer

    if options.save is None:
        return
    arrays = reproducer.contents(found, options.shapes_only)
    _print(f"{options.save} will hold {reproducer.summary(arrays)}")
    reproducer.save(options.save, arrays)


def _replay(options: argparse.Namespace) -> int:
    """Run the subgraph of a reproducer by a function that is built anew, and compare the results
    with Paddle's. Print the operators with the largest errors. The exit status is 1 if a result is
    wrong. A reproducer is a program: run one of a stranger as you would run a model of his."""
    library.load()
    from paddle_ngraph.verification import bisection, intermediates, reproducer

    found = reproducer.load(options.file, options.seed)
    _print(f"recorded with {found.versions}, FLAGS_ngraph_precision={found.precision}")
    with found.recorded_flags():
        differences, engine = bisection.replayed(found.run)
        _print("\n".join(f"{each.name}: {each.text}" for each in differences) or "right")
        if others := found.other_results(engine):
            _print(f"not as recorded, bit by bit: {', '.join(others)}")
        results = [] if found.run.kernel else intermediates.intermediates(found.run)
    if results:
        _print(intermediates.table(results))
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
            _print("right")
            return 0
        located = bisection.locate(found.run, differences[0])
    _print(f"{differences[0].name}: {differences[0].text}\nwrong at {located.text}")
    if located.run is not None:
        _save_reproducer(reproducer.recorded(located.run), options)
    return 1


def _save(options: argparse.Namespace) -> int:
    """Save a model with engine operators in place of its subgraphs: an ordinary Paddle model
    (OUTPUT.json, OUTPUT.pdiparams) that runs wherever paddle_ngraph is imported, without enable().
    With --shapes, functions compiled for these shapes are stored next to it: a process with the
    same versions, processor and number of threads uses them, others compile their own."""
    library.load()
    from paddle_ngraph.frontends.saved_models import saved_model

    program, prefix = _model_and_prefix(options)
    report = _convert(program, prefix, [_shapes(given) for given in options.shapes])
    functions = list(
        saved_model.functions_folder(f"{prefix}.json").glob(saved_model.FUNCTIONS_GLOB)
    )
    if options.json:
        _print_json({**_saved(prefix, report), "functions": len(functions)})
    else:
        _print(report)
        _print(f"saved as {prefix}.json, with {len(functions)} compiled functions")
    return 0


def _warm_up(options: argparse.Namespace) -> int:
    """Compile the functions of a saved model for the given shapes, and store them in the disk
    cache, from which later processes with the same versions, processor and number of threads load
    them. The model runs once for each of the shapes, on zeros."""
    found = api.warm_up(options.model, [_shapes(given) for given in options.shapes])
    if options.json:
        _print_json(found._asdict())
    else:
        counts = f"{found.built} functions compiled, {found.loaded} loaded"
        _print(f"{counts}, in {found.seconds:.1f} s")
    return 0


def _saved(prefix: Path, report: Report) -> dict[str, Any]:
    """Returns the files of a model and the report on its program, for ``--json``."""
    files = [f"{prefix}{ending}" for ending in (".json", ".pdiparams")]
    written = [file for file in files if Path(file).is_file()]  # some models have no parameters
    return {"files": written, "report": report.as_dict()}


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
    program, prefix = _model_and_prefix(options)
    if distributes is not None:
        if limits is not None:
            raise NgraphError("--ranks and --optimize-memory: give one of them")
        return _distribute(program, prefix, distributes, options)
    _reject_existing(saved_model.files_at(prefix), options.force)
    memory: list[MemoryReport] = []
    report = _convert(program, prefix, prepare=_memory_transpiler(limits, memory.append))
    if options.json:
        peaks = [{"before": each.before, "after": each.after} for each in memory]
        _print_json({**_saved(prefix, report), "peak_bytes": peaks[0] if peaks else None})
        return 0
    for each in [*memory, report]:
        _print(each)
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
    if options.json:
        _print_json({"files": list(map(str, files))})
        return 0
    for file in files:
        _print(f"saved {file}")
    return 0


def _reject_existing(files: Sequence[Path], is_forced: bool) -> None:
    for path in files:
        if path.exists() and not is_forced:
            raise NgraphError(f"{path} is there already: give --force to replace it")


def _memory_limits(options: argparse.Namespace) -> Limits | None:
    """Returns the limits for ``--optimize-memory``, or ``None`` if the option is not given."""
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


def _model_and_prefix(options: argparse.Namespace) -> tuple[Path, Path]:
    """Returns the program of the only model at a path, and the prefix of the new model."""
    from paddle_ngraph.frontends.saved_models import saved_model

    program, output = saved_model.find_only(options.model), Path(options.output)
    return program, output / program.stem if output.is_dir() else output


def _convert(
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
    per_machine = scenario.cluster(measured, rows[0].ranks).per_machine
    if options.json:
        found = prediction.as_dict(measured, known, rows)
        _print_json({**found, "ranks_per_machine": per_machine})
    else:
        _print(f"{measured.name}, {measured.samples} samples a rank; {measured.processor}")
        if known:
            table = prediction.checked_table(known)
            _print(f"\nOne machine of {measured.cores} cores:\n\n{table}")
        _print(f"\nMachines like it, with {per_machine} ranks each:\n")
        _print(prediction.predicted_table(rows))
    if options.svg is not None:
        _write(options.svg, picture(measured, known, rows), "--svg")
    return 0


def _operators(options: argparse.Namespace) -> int:
    """Print every operator that nGraph can run and the limits of its converter, as Markdown, or
    with --json as JSON."""
    library.load()
    from paddle_ngraph.conversion import operator_table

    if options.json:
        _print_json(operator_table.as_dict())
    else:
        print(operator_table.markdown(), end="")
    return 0


def _cache(options: argparse.Namespace) -> int:
    """Print the folder, number and size of the compiled functions on disk."""
    library.load()
    from paddle_ngraph import flags
    from paddle_ngraph.conversion import disk_cache

    folder = flags.get("ngraph_cache_dir")
    files = disk_cache.files() if folder else []
    size = sum(file.stat().st_size for file in files)
    if options.json:
        _print_json({"folder": folder, "functions": len(files), "bytes": size})
    elif folder:
        _print(f"{folder}: {len(files)} functions, {size / 2**20:.1f} MB")
    else:
        print("FLAGS_ngraph_cache_dir is empty: no functions are stored on disk")
    if options.clear and folder:
        for file in files:
            file.unlink(missing_ok=True)
        if not options.json:
            print("deleted")
    return 0


def _info(options: argparse.Namespace) -> int:
    """Print the versions and whether the engine is ready; the exit status is 1 if it is not."""
    reason = installation.why_unavailable()
    settings = _settings() if reason is None and options.settings else {}
    if options.json:
        packages = {
            package: {"installed": installed, "compiled_against": built}
            for package, installed, built in installation.packages()
        }
        found = {"version": __version__, "why_unavailable": reason, "packages": packages}
        _print_json({**found, "settings": settings} if options.settings else found)
        return 0 if reason is None else 1
    print(f"paddle-ngraph {__version__}")
    for line in installation.versions():
        _print(line)
    _print("engine: ready" if reason is None else f"engine: not available. {reason}")
    for name, value in settings.items():
        _print(f"{name} = {value!r}")
    return 0 if reason is None else 1


def _doctor(options: argparse.Namespace) -> int:
    """Check versions, processor, threads, settings and the disk cache, and run a self-test of two
    seconds against native Paddle. With a saved model or a script: run it, and print what ran where
    and the three changes that would gain most. The text has no names of files, hosts or users, so
    it can be attached to an issue. The exit status is 1 if there is a problem."""
    from paddle_ngraph.doctor import checkup

    output = sys.stdout
    with redirect_stdout(sys.stderr if options.json else sys.stdout):  # of a script
        found = checkup.examine(_subject(options))
        if options.measure:
            found = checkup.measured(found, _subject_arguments(options))
    if options.json:
        print(json.dumps(found.as_dict(), indent=1), file=output)
    else:
        print(found)
    return 1 if found.problems else 0


def _subject(options: argparse.Namespace) -> checkup.Subject | None:
    """Returns the function that observes the model or script of ``doctor``, if one is given."""
    if options.subject is None:
        if options.measure:
            raise NgraphError("--measure tries changes on a model or a script: give one")
        return None
    is_script = options.subject.endswith(".py")
    if not is_script and (options.args or options.dynamic):
        raise NgraphError(
            f"{options.subject} is no .py file: options come before a model, and --dynamic is for "
            "scripts"
        )
    shapes = _shapes(options.shapes)

    def observe() -> observation.Observation:
        from paddle_ngraph.doctor import observation

        if is_script:
            return observation.observe_script(options.subject, options.args, options.dynamic)
        return observation.observe_model(options.subject, shapes)

    return observe


def _subject_arguments(options: argparse.Namespace) -> list[str]:
    """Returns the arguments by which another process observes the same subject."""
    shapes = [text for shape in options.shapes for text in ("--shapes", shape)]
    return [*shapes, options.subject, *options.args]


def _settings() -> dict[str, object]:
    library.load()
    from paddle_ngraph import flags

    return vars(flags.settings())


def _write(file: Path, text: str, option: str) -> None:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise NgraphError(f"{option} {file}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
