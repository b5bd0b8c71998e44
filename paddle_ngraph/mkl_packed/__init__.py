"""Recurrent layers whose weights are packed once and reused in every step.

A matrix multiplication converts ("packs") its operands on every call. All steps of a recurrent
layer share one weight: :class:`SimpleRNN`, :class:`GRU` and :class:`LSTM` pack it once for each
version of the weight. All other computation is either one matmul over all steps or fused into the
step.
"""

from __future__ import annotations

from paddle_ngraph import installation

installation.require()

from paddle_ngraph import _core  # noqa: E402 - needs Paddle's libraries
from paddle_ngraph.mkl_packed.layers import (  # noqa: E402
    GRU,
    LSTM,
    SimpleRNN,
    use_mkl_packed,
)

__all__ = ["GRU", "LSTM", "SimpleRNN", "clear_cache", "pack_count", "provider", "use_mkl_packed"]


def pack_count() -> int:
    """Returns the number of weights packed so far.

    Inference packs once for each layer and direction whose weights have changed; a training step
    packs twice for each, once forward and once backward. The packed format for up to four sequences
    differs from that for more: a layer that gets both packs its weights once for each. The gradient
    of up to four sequences reads a weight of up to 4 MB where it is.
    """
    return _core.mkl_packed.pack_count()


def provider() -> str:
    """Returns the matmul library, by ``FLAGS_mkl_packed_provider``: ``"mkl"`` or ``"onednn"``.

    ``"onednn bf16"`` with ``FLAGS_ngraph_precision=bf16``, where the processor has units for it.

    Raises:
        NgraphError: The flag names an unknown or an unavailable provider.
    """
    return _core.mkl_packed.provider()


def clear_cache() -> None:
    """Clears the cache of packed weights of recurrent layers."""
    _core.mkl_packed.clear_packed_weights()
