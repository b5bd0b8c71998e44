"""``run`` and ``launch``: scripts with the engine on, in one process or on several ranks."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddle_ngraph import api
from paddle_ngraph.commands.arguments import add_dynamic, write
from paddle_ngraph.errors import NgraphError

if TYPE_CHECKING:
    from paddle_ngraph.distributed.launcher import LauncherOptions


def add_run(commands: Any) -> None:
    parser = commands.add_parser(
        "run", help="run an unchanged script through nGraph", description=run_script.__doc__
    )
    add_dynamic(parser)
    parser.add_argument(
        "--stats", action="store_true", help="print the counters of runs at the end"
    )
    parser.add_argument(
        "--stats-json", type=Path, metavar="FILE", help="write them to a file as JSON"
    )
    parser.add_argument("script", help="the Python script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(command=run_script)


def add_launch(commands: Any) -> None:
    parser = commands.add_parser(
        "launch",
        help="run a script on several processes of this machine, and restart them",
        description=_launch.__doc__,
        epilog="example: python -m paddle_ngraph launch --nproc 4 --max-restarts 3 "
        "--checkpoint checkpoints train.py",
    )
    parser.add_argument(
        "--nproc", type=int, required=True, metavar="N", help="the number of processes, or ranks"
    )
    parser.add_argument(
        "--nnodes",
        type=int,
        metavar="N",
        help="the number of machines, with a launcher on each (default: as SLURM or Open MPI say, "
        "or 1)",
    )
    parser.add_argument(
        "--node-rank", type=int, metavar="N", help="the number of this machine, from 0"
    )
    parser.add_argument(
        "--master",
        metavar="HOST:PORT",
        help="the address at which machine 0 listens for the other launchers",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run the ranks on a cluster of Ray: HOST:PORT of its head, or auto",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="restart all ranks at most this many times when one fails or is stuck (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="the folder for checkpoint() and resume() of paddle_ngraph.distributed",
    )
    parser.add_argument(
        "--log-dir",
        default="log",
        metavar="DIR",
        help="folder of the output of all ranks but 0, workerlog.RANK (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="a rank without a heartbeat for this long is stuck (default: %(default)g)",
    )
    parser.add_argument(
        "--port",
        type=int,
        help="the port of the rendezvous (default: a free one for each start)",
    )
    parser.add_argument("script", help="the Python script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(command=_launch)


def run_script(options: argparse.Namespace) -> int:
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
            write(options.stats_json, json.dumps(api.stats(), indent=1), "--stats-json")
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
    return launcher.launch(_launcher_options(options, port=options.port, place=place))


def _launch_on_ray(options: argparse.Namespace) -> Any:
    from paddle_ngraph.ray import scripts

    for name in ("nnodes", "node_rank", "master", "port"):
        if getattr(options, name) is not None:
            raise NgraphError(
                f"--{name.replace('_', '-')} has no meaning with --ray, where Ray places the ranks"
            )
    return scripts.launch(options.ray, _launcher_options(options))


def _launcher_options(options: argparse.Namespace, **place: Any) -> LauncherOptions:
    """The options of a launcher: those of both ways to launch, and those of a ``place``."""
    from paddle_ngraph.distributed.launcher import LauncherOptions

    return LauncherOptions(
        script=options.script,
        arguments=options.args,
        ranks=options.nproc,
        max_restarts=options.max_restarts,
        checkpoint=options.checkpoint,
        log_dir=options.log_dir,
        timeout=options.timeout,
        **place,
    )
