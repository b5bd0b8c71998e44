"""What a function is built for, beside its graph and its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from paddle_ngraph import _core


@dataclass(frozen=True)
class Settings:
    """The engine decides them once, at each run (``NgraphEngine::settings`` of the core).

    They are part of the key of a function, in memory and on disk, and go with a build to whoever
    needs them: nobody asks a flag meanwhile.

    Attributes:
        precision: ``"f32"``, or ``"bf16"`` for products and convolutions that may round so.
        threads: How many work on a run.
    """

    precision: str = "f32"
    threads: int = 1

    @staticmethod
    def of(graph: str) -> Settings:
        """Those that the next run of a graph string would have. Raises ValueError for bad flags."""
        return Settings(*_core.settings(graph))
