"""Recurrent layers of Paddle and of this package."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from benchmarks.recurrent import Case, Contestant
from paddle_ngraph import _core, flags, mkl_packed


def set_threads(threads: int) -> None:
    """Sets the number of threads of Paddle and of the packed layers."""
    paddle.disable_static()
    folder = Path(paddle.__file__).parent / "libs"
    ctypes.CDLL(str(folder / "libiomp5.so")).omp_set_num_threads(threads)
    paddle.set_flags({"FLAGS_ngraph_num_threads": threads})


def contestants(case: Case, x: np.ndarray) -> list[Contestant]:
    """Returns Paddle's layer, and the packed one of each provider with equal weights."""
    paddle.seed(1)
    sizes = (case.input, case.hidden, case.layers)
    native = getattr(paddle.nn, case.kind)(*sizes, time_major=True)
    packed = getattr(mkl_packed, case.kind)(*sizes, time_major=True)
    packed.set_state_dict(native.state_dict())
    tensor = paddle.to_tensor(x)

    def contestant(name: str, net: Any, prepare: Callable[[], None]) -> Contestant:
        def infer() -> Any:
            prepare()
            net.eval()
            with paddle.no_grad():
                return net(tensor)[0]

        def train() -> None:
            prepare()
            net.train()
            net(tensor)[0].mean().backward()
            net.clear_gradients()

        return Contestant(name, infer, train)

    def by(provider: str, packs: bool) -> Callable[[], None]:
        def prepare() -> None:
            flags.set("mkl_packed_provider", provider)
            _core.mkl_packed.set_packing(packs)

        return prepare

    found = [contestant("Paddle", native, lambda: None)]
    for provider in ("onednn", "mkl"):
        if not _core.mkl_packed.why_unavailable(provider):
            found.append(contestant(f"{provider} packed", packed, by(provider, True)))
            found.append(contestant(f"{provider} unpacked", packed, by(provider, False)))
    return found
