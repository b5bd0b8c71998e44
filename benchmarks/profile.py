"""Shows the slowest nodes of a model's compiled functions, and their kernels.

  python -m benchmarks.profile resnet50
  python -m benchmarks.profile --train resnet18 --top 30

A kernel with `ref` in its name is OpenVINO's reference code, which is slow: convert the operator to
other nodes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers, report, works
from benchmarks.peers import Assets
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Work

RUNS = 10


@dataclass(frozen=True)
class Node:
    """A node of a compiled function.

    Attributes:
        milliseconds: The median over the runs.
        type: OpenVINO's type of the node.
        kernel: Name of the kernel.
        shape: Shape of its first result.
        name: Its name in the function.
    """

    milliseconds: float
    type: str
    kernel: str
    shape: str
    name: str


def nodes(work: Work, folder: Path) -> list[list[Node]]:
    """Returns the nodes of each function of a workload, the slowest first; runs in a worker."""
    from benchmarks import functions

    make = peers.PaddleTraining if work.trains else peers.PaddleInference
    paddle = make(work, Assets(folder))
    with paddle.in_use():
        found = functions.functions(paddle.run, paddle.scope, paddle.feeds[0], not work.trains)
    return [_nodes(function.request(PERF_COUNT="YES")) for function in found]


def _nodes(request: Any) -> list[Node]:
    shapes = {
        op.get_friendly_name(): "x".join(map(str, op.get_output_shape(0)))
        for op in request.get_compiled_model().get_runtime_model().get_ordered_ops()
        if op.get_output_size()
    }
    measured: dict[str, list[float]] = {}
    for _ in range(RUNS + 1):
        request.infer()
        infos = {info.node_name: info for info in request.profiling_info}
        for name, info in infos.items():
            measured.setdefault(name, []).append(1e3 * info.real_time.total_seconds())
    found = [
        Node(
            statistics.median(times[1:]),
            infos[name].node_type,
            infos[name].exec_type,
            shapes.get(name, ""),
            name,
        )
        for name, times in measured.items()
    ]
    return sorted(found, key=lambda node: -node.milliseconds)


def table(found: Sequence[Node], top: int) -> str:
    """Returns a table of the slowest nodes, with their shares of the total time."""
    total = sum(node.milliseconds for node in found)
    rows = [
        [
            *(node.name[:60], node.type, node.kernel, node.shape),
            *(f"{node.milliseconds:.3f}", f"{node.milliseconds / total:.1%}"),
        ]
        for node in found[:top]
    ]
    page = report.table(["node", "type", "kernel", "shape", "ms", "share"], rows)
    by_kernel: dict[str, float] = {}
    for node in found:
        key = f"{node.type} {node.kernel}"
        by_kernel[key] = by_kernel.get(key, 0.0) + node.milliseconds
    largest = sorted(by_kernel.items(), key=lambda item: -item[1])[:top]
    kinds = report.table(
        ["kernel", "ms", "share"],
        [[name, f"{value:.3f}", f"{value / total:.1%}"] for name, value in largest],
    )
    return f"{len(found)} nodes, {total:.2f} ms\n\n{page}\n\n{kinds}"


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
            found = worker.call(nodes, work, Path(folder))
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for function in found:
        print(table(function, options.top))
    return 0


if __name__ == "__main__":
    # Pickle needs the module's name, which is not __main__ in the worker.
    from benchmarks import profile

    sys.exit(profile.main())
