"""Settings of the servers, which their processes inherit as environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ENGINES = NGRAPH, NATIVE = ("ngraph", "native")
_MODELS, _ENGINE, _THREADS = "SERVING_MODELS", "SERVING_ENGINE", "SERVING_THREADS"


@dataclass(frozen=True)
class Settings:
    """The models of a worker, and how it runs them.

    Attributes:
        models: The folder of ``models.prepare``.
        engine: ``ngraph``: models that were saved with their functions; ``native``: the original
            ones, by Paddle's own kernels.
        threads: Threads that compute one request.
    """

    models: Path
    engine: str
    threads: int

    @classmethod
    def from_environment(cls) -> Settings:
        """Returns the settings that the parent process has passed on."""
        return cls(Path(os.environ[_MODELS]), os.environ[_ENGINE], int(os.environ[_THREADS]))

    def environment(self) -> dict[str, str]:
        """Returns the variables that workers need in addition to those of their parent."""
        threads = str(self.threads)
        return {
            _MODELS: str(self.models),
            _ENGINE: self.engine,
            _THREADS: threads,
            # Read when the libraries are imported; their defaults are a thread for each core, in
            # each worker.
            "FLAGS_ngraph_num_threads": threads,
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
        }


def workers_and_threads(cores: int, workers: int | None = None) -> tuple[int, int]:
    """Divides cores among processes: returns the number of workers, and the threads of each.

    By default each core has a worker of one thread, the largest throughput. Fewer workers of
    several threads take less memory, and answer a request that is alone sooner. More workers than
    cores would only wait for each other.
    """
    workers = cores if workers is None else max(1, min(workers, cores))
    return workers, cores // workers
