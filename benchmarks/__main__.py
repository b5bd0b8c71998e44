"""Compares paddle-ngraph with its peers; writes a table, its data and a plot for each topic.

  inference    one run of published and common networks
  training     one training step
  first_run    the first run, cold and with functions on disk
  overhead     an engine operator, small programs, memory
  memory       peak memory of programs, optimized for memory or not
  scaling      cost as the batch or the sequence grows
  threads      the same work on one thread and on more, up to all cores and beyond
  products     matmuls by the plugin and by oneDNN
  converters   converters of operators, against calls of Paddle's kernels in functions
  decoder      a decoder with a loop over its steps, against OpenVINO's own loop
  generation   text generated token by token, in a Python loop of dynamic mode
  ocr_decoders decoders of text and formulas as PaddleOCR exports them
  ocr_widths   500 lines of text of random widths
  sizes        memory over requests of random sizes: texts, audio, pages
  precision    inference in bfloat16 against float32
  int8         networks quantized by Paddle's tools: int8 against float32
  mixed_precision  training in bfloat16 against float32, and both of PyTorch
  convergence  test metrics after training in bfloat16 and in float32
  intervals    networks split into several subgraphs, against Paddle's oneDNN
  requests     a model that is opened for each request, and many models in turn
  serving      clones of a predictor in threads, and processes, under load
  to_static    layers by compile() and paddle.jit.to_static, models by paddle.jit.load
  pinn         a network trained on a differential equation, with third derivatives
  optimizers   optimizer updates in dynamic mode
  plan         independent subgraphs on core groups
  ranks        steps of 1, 2 and 4 processes, and the simulator's predictions of more
  links        steps of two machines on a shaped link, and the simulator's predictions (needs root)
  ray_steps    steps of two workers of Ray, against two ranks of launch (if Ray is installed)
  native       generated C++ projects, against the engine in Python and Paddle Inference
  paddleocr    a page with PaddleOCR, in each mode that Paddle offers (if it is installed)
  revisions    inference, training and small programs against another checkout (--before)

The peers are plain Paddle in several settings, Paddle Inference, raw OpenVINO, and PyTorch if
installed (pip install -r requirements/bench.txt).
"""

from __future__ import annotations

import importlib.util
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

from benchmarks import (
    convergence,
    converters,
    decoder,
    first_run,
    generation,
    int8,
    intervals,
    links,
    matmuls,
    memory,
    mixed_precision,
    native,
    ocr_decoders,
    ocr_widths,
    optimizers,
    overhead,
    paddleocr_pages,
    pinn,
    plan,
    precision,
    ranks,
    ray_steps,
    requests,
    revisions,
    scaling,
    serving,
    side_by_side,
    sizes,
    threads,
    to_static,
)
from benchmarks.options import parser
from benchmarks.worker import PeerError

TOPICS: dict[str, Callable] = {
    "inference": side_by_side.inference,
    "training": side_by_side.training,
    "first_run": first_run.measure,
    "overhead": overhead.measure,
    "memory": memory.measure,
    "scaling": scaling.measure,
    "threads": threads.measure,
    "products": matmuls.measure,
    "converters": converters.measure,
    "decoder": decoder.measure,
    "generation": generation.measure,
    "ocr_decoders": ocr_decoders.measure,
    "ocr_widths": ocr_widths.measure,
    "sizes": sizes.measure,
    "precision": precision.measure,
    "int8": int8.measure,
    "mixed_precision": mixed_precision.measure,
    "convergence": convergence.measure,
    "intervals": intervals.measure,
    "requests": requests.measure,
    "serving": serving.measure,
    "to_static": to_static.measure,
    "pinn": pinn.measure,
    "optimizers": optimizers.measure,
    "plan": plan.measure,
    "ranks": ranks.measure,
    "links": links.measure,
    "ray_steps": ray_steps.measure,
    "native": native.measure,
    "paddleocr": paddleocr_pages.measure,
    "revisions": revisions.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit status."""
    command = parser(__doc__, TOPICS)
    options = command.parse_args(arguments)
    unknown = [topic for topic in options.topics if topic not in TOPICS]
    if unknown:
        command.error(f"unknown topic {unknown[0]}: take {', '.join(TOPICS)}")
    for topic in options.topics or _all_topics(options):
        try:
            TOPICS[topic](options)
        except PeerError as error:
            print(f"error: {topic}: {error}", file=sys.stderr)
            return 1
        print(f"{topic}: written to {options.output}", flush=True)
    return 0


def _all_topics(options: Namespace) -> list[str]:
    """Returns the topics that can be measured on this machine."""
    left_out = set() if options.before else {"revisions"}
    if not paddleocr_pages.is_installed():
        print(f"paddleocr: left out: {paddleocr_pages.NOT_INSTALLED}")
        left_out.add("paddleocr")
    if importlib.util.find_spec("ray") is None:
        left_out.add("ray_steps")
    return [name for name in TOPICS if name not in left_out]


if __name__ == "__main__":
    sys.exit(main())
