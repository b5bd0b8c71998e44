"""Settings of a build, in addition to its graph and its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from paddle_ngraph import _core
from paddle_ngraph.ir.graph import CPU, device_of


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run, determined once per run by ``NgraphEngine::settings`` of the core.

    Settings are part of the key of a function, in memory and on disk, and are passed to every part
    of a build that needs them: no flag is read during a build.

    Attributes:
        precision: ``"f32"``, or ``"bf16"``: in functions with constant weights the plugin may round
            any value to bfloat16, in others only the operands of matmuls and convolutions are
            rounded (mixed_precision.py). ``"f16"``: a GPU or NPU computes in float16.
        weight_format: How constant weights of matmuls are held: ``"as given"``, ``"int8"``
            or ``"int4"`` (passes/weight_compression.py).
        threads: The number of threads that work on a run.
        runs_at_once: The number of concurrent runs of one function, each with ``threads`` threads.
        device: See :attr:`Graph.compiled_for`.
    """

    precision: str = "f32"
    weight_format: str = "as given"
    threads: int = 1
    runs_at_once: int = 1
    device: str = CPU

    @staticmethod
    def of(graph: str) -> RunSettings:
        """The settings of the next run of a graph string. Raises ValueError for bad flags."""
        return RunSettings(*_core.settings(graph), device_of(graph))
