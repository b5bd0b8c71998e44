"""Graphs and autograd: what the backward pass of a captured graph has to say.

To autograd a graph is one node. It computes its gradients a single time, with what is in memory by
then, and it takes part in no second differentiation. Python's operators are many nodes, which
could do more. What only the backward pass can know is an error there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from paddle_ngraph import _core, interruptions
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_seam import replaced
from paddle_ngraph.paddle_seam.names import (
    outputs_of,
)
from paddle_ngraph.paddle_seam.protocols import StaticLayer, StaticPrograms

# is_differentiating: whether gradients of this thread's backward pass are to have gradients
# error: what a graph has said in it
_here = threading.local()

_NO_SECOND = (
    "a compiled function has no gradient of its gradient (create_graph=True): leave what is "
    "differentiated twice uncompiled"
)
_NO_REPEAT = (
    "a compiled function has one backward pass for each call (retain_graph=True): call it again "
    "for the next one, add the losses up, or leave it uncompiled"
)
_OVERWRITTEN = (
    "a tensor that the backward pass of a compiled function needs was written by an in-place "
    "operation after the forward pass: clone it first"
)


def install() -> None:
    """Has backward passes say what they are asked for."""
    replaced.RUN_BACKWARD.replace(lambda original: _reporting(original, lambda args: False))
    replaced.RUN_PARTIAL_GRAD.replace(lambda original: _reporting(original, _asks_for_graph))


def _asks_for_graph(args: Sequence[Any]) -> bool:
    return len(args) > 4 and bool(args[4])


def _reporting(
    original: Callable[..., Any], is_differentiating: Callable[[Sequence[Any]], bool]
) -> Callable[..., Any]:
    @wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        is_twice = is_differentiating(args) or bool(kwargs.get("create_graph"))
        with interruptions.put_off(but_ctrl_c=True), _pass(is_twice):
            return original(*args, **kwargs)

    return run_backward


@contextmanager
def _pass(is_differentiating: bool) -> Iterator[None]:
    """Paddle has words of its own for what is raised inside of a backward pass."""
    before = getattr(_here, "is_differentiating", False), getattr(_here, "error", None)
    _here.is_differentiating, _here.error = is_differentiating, None
    try:
        yield
    except Exception:
        if _here.error is not None:
            raise _here.error from None
        raise
    finally:
        _here.is_differentiating, _here.error = before


# -- graphs --------------------------------------------------------------------------------------


class Gradients:
    """Those of a graph that was made for training.

    Args:
        layer: The ``PartialProgramLayer`` of the graph.
    """

    def __init__(self, layer: StaticLayer) -> None:
        programs = layer.train_program
        names = programs.program_attr
        positions: list[int] = list(outputs_of(layer).quick_index_map)
        kept = _kept(programs)
        self._inputs = [n for n, name in enumerate(names["fx_names"]) if name in kept]
        self._outputs = [n for n, at in enumerate(positions) if names["fo_names"][at] in kept]

    def attach(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Has the backward pass of a run watch over it."""
        first = next((each for each in outputs if not each.stop_gradient), None)
        if first is not None:
            tensors = [inputs[number] for number in self._inputs]
            # Not the outputs themselves: each holds its graph, which holds this.
            tensors += [outputs[number].detach() for number in self._outputs]
            first.register_hook(_Watch(tensors))


class _Watch:
    """Looks at what a backward pass needs when it comes to the graph."""

    def __init__(self, tensors: list[Any]) -> None:
        self._tensors = tensors
        self._versions = _core.tensor_versions(tensors)
        self._is_done = False

    def __call__(self, gradient: Any) -> None:
        reason = self._why_not()
        if reason is not None:
            _here.error = NgraphError(reason)
            raise _here.error
        self._is_done = True
        self._tensors = []

    def _why_not(self) -> str | None:
        if getattr(_here, "is_differentiating", False):
            return _NO_SECOND
        if self._is_done:
            return _NO_REPEAT
        is_same = _core.tensor_versions(self._tensors) == self._versions
        return None if is_same else _OVERWRITTEN


def _kept(programs: StaticPrograms) -> set[str]:
    """The names of what the backward program reads, its contents included."""
    arguments = programs.backward_program.global_block().kwargs()
    read = {name for name, value in arguments.items() if not value.use_empty()}
    return read - set(programs.program_attr["no_need_buffers_names"])
