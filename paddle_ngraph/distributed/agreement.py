"""Compares the layers of all ranks before their first step, when Paddle sends their parameters.

Ranks with different layers would hang in a collective, or average unrelated gradients.
``paddle.DataParallel`` sends the parameters of rank 0 to all ranks; so does ``fleet``, by that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import wraps
from typing import Any

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.replaced import SEND_PARAMETERS

# An all-gather of texts, by rank.
Exchange = Callable[[str], list[str]]
_MAX_SHOWN = 200  # characters of a layer in the error message


class RejectedJobError(NgraphError):
    """Raised on every rank, with one message, for what each start of the job would meet again."""


def install(exchange: Exchange) -> None:
    """Patches the function by which Paddle sends the parameters of a layer to all ranks."""

    def comparing(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def sync_params_buffers(
            model: Any, comm_group: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            # Other groups of ranks may have layers of their own.
            if comm_group is None:
                agree(exchange, model)
            return original(model, comm_group, *args, **kwargs)

        return sync_params_buffers

    SEND_PARAMETERS.replace(comparing)


def agree(exchange: Exchange, layer: Any) -> None:
    """Compares a layer with those of the other ranks; called by all ranks.

    Args:
        exchange: The all-gather of the job.
        layer: The layer, whose parameters are about to be sent.

    Raises:
        RejectedJobError: Ranks differ in a layer, in a parameter, or in their order.
    """
    lines = described(layer)
    text = "\n".join(lines)
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    if len(set(exchange(digest))) == 1:
        return
    first, *others = (json.loads(each) for each in exchange(json.dumps(lines)))
    for rank, other in enumerate(others, 1):
        if other != first:
            number = next(
                (n for n, pair in enumerate(zip(first, other)) if pair[0] != pair[1]),
                min(len(first), len(other)),
            )
            shown = [
                each[number][:_MAX_SHOWN] if number < len(each) else "nothing"
                for each in (first, other)
            ]
            raise RejectedJobError(
                f"ranks 0 and {rank} train different layers ({shown[0]}, and {shown[1]}): all "
                "ranks have to build the same"
            )


def described(layer: Any) -> list[str]:
    """A line for each layer in a layer, and each parameter and buffer: equal on equal ranks."""
    lines = []
    for name, each in layer.named_sublayers(include_self=True):
        kind = f"{type(each).__name__}({each.extra_repr()})"
        lines.append(f"{name}: {kind}" if name else kind)
    for name, each in [*layer.named_parameters(), *layer.named_buffers()]:
        frozen = ", without a gradient" if each.stop_gradient else ""
        lines.append(f"{name}: {each.dtype} {list(each.shape)}{frozen}")
    return lines
