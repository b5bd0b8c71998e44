"""PyTorch's recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.recurrent import Case, Contestant

try:
    import torch
except ImportError:
    torch = None


def set_threads(threads: int) -> None:
    """Sets the number of threads of PyTorch."""
    if torch is not None:
        torch.set_num_threads(threads)


def contestants(case: Case, x: np.ndarray) -> list[Contestant]:
    """Returns PyTorch's layer, if it is installed."""
    if torch is None:
        return []
    kind = {"SimpleRNN": torch.nn.RNN}.get(case.kind) or getattr(torch.nn, case.kind)
    net = kind(case.input, case.hidden, case.layers)
    tensor = torch.from_numpy(x)

    def infer() -> Any:
        with torch.no_grad():
            return net(tensor)[0]

    def train() -> None:
        net(tensor)[0].mean().backward()
        net.zero_grad()

    return [Contestant("PyTorch", infer, train)]
