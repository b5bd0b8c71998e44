"""Recurrent layers whose weights are packed once and reused in every step.

A matrix product converts ("packs") its operands on every call. All steps of a recurrent layer share
one weight: :class:`SimpleRNN`, :class:`GRU` and :class:`LSTM` pack it once for each version of the
weight, and everything else is either one product over all steps or fused into the step.
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
    """How many weights have been packed so far.

    One for each layer and direction whose weights an inference pass finds changed; two for each in
    a training step, one forward and one backward. A single sequence is packed differently from a
    batch: a layer that sees both packs its weights once for each.
    """
    return _core.mkl_packed.pack_count()


def provider() -> str:
    """The library that multiplies, by ``FLAGS_mkl_packed_provider``: ``"mkl"`` or ``"onednn"``.

    ``"onednn bf16"`` with ``FLAGS_ngraph_precision=bf16``, where the processor has units for it.

    Raises:
        NgraphError: The flag names an unknown provider, or one that cannot be used here.
    """
    return _core.mkl_packed.provider()


def clear_cache() -> None:
    """Forgets every packed weight."""
    _core.mkl_packed.clear_packed_weights()
