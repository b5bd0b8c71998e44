"""Shows the profile of a workload: see ``paddle_ngraph.profile``.

  python -m benchmarks.profile resnet50
  python -m benchmarks.profile --train resnet18 --top 30

A kernel `ref` is a node of the package, or OpenVINO's reference code, which is slow: convert the
operator to other nodes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import paddle_ngraph
from benchmarks import peers, works
from benchmarks.peers import Assets
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Work

RUNS = 10


def table(work: Work, folder: Path, top: int) -> str:
    """Returns the profile of some runs of a workload, as text; runs in a worker.

    Args:
        work, folder: The workload, and a folder for its model.
        top: The largest number of nodes, and of Paddle's operators.
    """
    make = peers.PaddleTraining if work.trains else peers.PaddleInference
    paddle = make(work, Assets(folder))
    with paddle.in_use(), paddle_ngraph.use_ngraph():
        paddle.run(paddle.feeds[0])
        paddle_ngraph.wait_for_compiles()
        with paddle_ngraph.profile() as profiled:
            for _ in range(RUNS):
                paddle.run(paddle.feeds[0])
    return str(profiled.table(top))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    models = sorted({*works.INFERENCE_MODELS, *works.TRAINING})
    parser.add_argument("model", choices=models, metavar="MODEL", help=f"of {', '.join(models)}")
    parser.add_argument("--train", action="store_true", help="its training step, not inference")
    parser.add_argument("--batch", type=int, default=1, help="of inference (default: 1)")
    parser.add_argument("--top", type=int, default=10, help="how many nodes (default: 10)")
    options = parser.parse_args(arguments)
    known = works.TRAINING if options.train else works.INFERENCE_MODELS
    if options.model not in known:
        parser.error(
            f"{options.model} is only measured {'without' if options.train else 'with'} --train"
        )
    model = options.model
    work = works.TRAINING[model] if options.train else works.inference(model, options.batch)
    try:
        with tempfile.TemporaryDirectory() as folder, Worker({}) as worker:
            found = worker.call(table, work, Path(folder), options.top)
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(found)
    return 0


if __name__ == "__main__":
    # Pickle needs the module's name, which is not __main__ in the worker.
    from benchmarks import profile

    sys.exit(profile.main())
