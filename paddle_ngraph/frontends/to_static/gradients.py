"""Graphs and autograd: what the backward pass of a captured graph has to say.

To autograd a graph is one node, which takes part in no second differentiation. Python's operators
are many nodes, which could. What only the backward pass can know is an error there, such as that
a tensor was written which it needs.

Nobody has asked for the graphs of dynamic layers by name (dynamic/hook.py), so there are none that
train once this process has differentiated twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any
from weakref import WeakSet

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.to_static import scope_pool
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import NO_GRADIENT, outputs_of
from paddle_ngraph.paddle_private.protocols import Scope, StaticLayer, StaticPrograms
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.fork_safe_locks import new_lock


class _Here(threading.local):
    """What a thread knows of its backward passes.

    Attributes:
        depth, seconds: How many it is in, and what they took until now.
        is_differentiating: Whether gradients of the latest are to have gradients.
        retains: Whether there may be another one.
        error: What was raised where Paddle came to a graph.
        kept: What is kept for another one.
        latest: The graph that it has come to last.
    """

    depth = 0
    seconds = 0.0
    is_differentiating = False
    retains = False
    error: BaseException | None = None
    latest: _Watch | None = None

    def __init__(self) -> None:
        self.kept: list[scope_pool.Leftovers] = []


_here = _Here()
_has_differentiated_twice = False  # whether some backward pass was asked for it

_NATIVE_INSTEAD = 'uncompiled (with enable(dynamic="training"): use enable(dynamic=True))'
_NO_SECOND = (
    "a compiled function has no gradient of its gradient (create_graph=True): leave what is "
    f"differentiated twice {_NATIVE_INSTEAD}"
)
_NO_REPEAT = (
    "what the backward pass of a compiled function needs could not be kept for another one "
    f"(retain_graph=True): call it again, add the losses up, or leave it {_NATIVE_INSTEAD}"
)
_OVERWRITTEN = (
    "a tensor that the backward pass of a compiled function needs was written by an in-place "
    "operation after the forward pass: clone it first"
)


def install() -> None:
    """Has backward passes say what they are asked for."""
    retain, create = "retain_graph", "create_graph"
    replaced.RUN_BACKWARD.replace(lambda original: _reporting(original, {retain: 2}))
    replaced.RUN_PARTIAL_GRAD.replace(
        lambda original: _holding(_reporting(original, {create: 4}, retains=True))
    )


def may_compile() -> bool:
    """Whether a layer may be compiled for training though nobody has asked for it by name.

    Not in a backward pass, where Python's hooks and what is recomputed may call layers.
    """
    return not _has_differentiated_twice and _here.depth == 0


def seconds() -> float:
    """What the backward passes of this thread took until now."""
    return _here.seconds


def _reporting(
    original: Callable[..., Any], places: dict[str, int], retains: bool = False
) -> Callable[..., Any]:
    """Has a function say what it is asked for, by arguments in these places.

    Args:
        retains: Whether there may always be another pass.
    """

    @wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        global _has_differentiated_twice
        asked = {name for name, at in places.items() if kwargs.get(name) or any(args[at : at + 1])}
        is_twice = "create_graph" in asked
        _has_differentiated_twice |= is_twice
        with signals.put_off(but_ctrl_c=True), _pass(is_twice, retains or bool(asked)):
            return original(*args, **kwargs)

    return run_backward


def _holding(original: Callable[..., Any]) -> Callable[..., Any]:
    """``paddle.grad`` leaves the graphs that it does not come to as they are.

    Natively it leaves all as they are, whatever it is told to retain: it works on copies.
    """

    @wraps(original)
    def run_partial_grad(*args: Any, **kwargs: Any) -> Any:
        with _watching:
            watches = list(_watches)
        held: list[_Watch] = []
        try:
            for watch in watches:
                if watch.hold():
                    held.append(watch)
            return original(*args, **kwargs)
        finally:
            for watch in held:
                watch.let_go()

    return run_partial_grad


@contextmanager
def _pass(is_differentiating: bool, retains: bool) -> Iterator[None]:
    """Paddle has words of its own for what is raised inside of a backward pass."""
    before = _here.is_differentiating, _here.retains, _here.kept, _here.error, _here.latest
    kept: list[scope_pool.Leftovers] = []
    _here.is_differentiating, _here.retains = is_differentiating, retains
    _here.kept, _here.error, _here.latest = kept, None, None
    _here.depth += 1
    start = clock.now()
    try:
        yield
    except Exception:
        if _here.error is not None:
            raise _here.error from None
        raise
    finally:
        _here.depth -= 1
        if _here.depth == 0:
            _here.seconds += clock.now() - start
        if _here.latest is not None:
            _here.latest.end()
        _here.is_differentiating, _here.retains, _here.kept, _here.error, _here.latest = before
        for each in kept:
            each.claim()


# -- graphs --------------------------------------------------------------------------------------


def inputs_without(layer: StaticLayer) -> list[int]:
    """The numbers of inputs of which the backward program of a graph makes no gradient.

    Paddle makes zeros of them behind it, which an optimizer takes for a gradient.
    """
    names = layer.train_program.program_attr["bx_g_names"]
    return [number for number, name in enumerate(names) if name == NO_GRADIENT]


class Gradients:
    """Those of a graph that was made for training.

    Args:
        layer: The ``PartialProgramLayer`` of the graph.
        read, made: The numbers of inputs and of outputs that Python would read again, beside those
            that the backward program reads.
    """

    def __init__(self, layer: StaticLayer, read: Sequence[int], made: Sequence[int]) -> None:
        programs = layer.train_program
        names = programs.program_attr
        positions: list[int] = list(outputs_of(layer).quick_index_map)
        self._handed_on = list(programs.backward_program.global_block().kwargs())
        kept = _kept(programs)
        given, returned = names["fx_names"], [names["fo_names"][at] for at in positions]
        self._inputs = [n for n, name in enumerate(given) if name in kept or n in read]
        self._outputs = [n for n, name in enumerate(returned) if name in kept or n in made]

    def attach(self, inputs: Sequence[Any], outputs: Sequence[Any], scope: Scope) -> None:
        """Has the backward pass of a run watch over it.

        Args:
            inputs, outputs: What it was given, and has returned.
            scope: The one that it was in.
        """
        first = next((each for each in outputs if not each.stop_gradient), None)
        if first is not None:
            needed = [inputs[number] for number in self._inputs]
            # Not the outputs themselves: each holds its graph, which holds this.
            needed += [outputs[number].detach() for number in self._outputs]
            watch = _Watch(needed, inputs, self._handed_on, scope)
            first.register_hook(_core.record_error_on(watch, _here))


_watches: WeakSet[_Watch] = WeakSet()
_watching = new_lock()


class _Watch:
    """Looks at what a backward pass needs when it comes to the graph, and keeps it for another one.

    Args:
        needed: Tensors of the user that have to be what they were.
        inputs: All that were given.
        handed_on: The names of what the forward run has left for the backward pass.
        scope: Where.

    Attributes:
        is_done: Whether a backward pass has come to it.
    """

    def __init__(
        self,
        needed: Sequence[Any],
        inputs: Sequence[Any],
        handed_on: Sequence[str],
        scope: Scope,
    ) -> None:
        self._needed = needed
        self._inputs = inputs
        self._handed_on = handed_on
        self._claim: scope_pool.Claim | None = scope_pool.Claim(scope)
        self._versions = _core.tensor_versions(list(needed))
        self.is_done = False
        self._left: scope_pool.Leftovers | None = None
        self._held: list[scope_pool.Held] = []
        with _watching:
            _watches.add(self)

    def __call__(self, gradient: Any) -> None:
        if _here.latest is not None:
            _here.latest.end()
        if self._held and not self.is_done:
            self._held[-1].put_back()
        reason = self._why_not()
        if reason is not None:
            raise NgraphError(reason)
        if self._left is not None:
            self._left.put_back()
        elif _here.retains and self._claim is not None:
            with suppress(Exception):  # who repeats it is told so
                self._left = self._leftovers(self._claim.scope)
        self.is_done = True
        _here.latest = self
        if _here.retains and self._left is not None:
            self._left.hold()
            _here.kept.append(self._left)

    def end(self) -> None:
        """The pass that came to it last goes on, or is over."""
        _here.latest = None
        claim = self._claim if self._left is None else self._left.latest_claim
        has_run = claim is None or claim.is_over()
        if self._left is None:
            self.is_done = has_run  # else something was raised before the graph ran
        elif not has_run and self._left not in _here.kept:
            _here.kept.append(self._left)
        if has_run and not (_here.retains and self._left is not None):
            self._needed, self._inputs, self._claim, self._left = [], [], None, None

    def hold(self) -> bool:
        """Holds what its run has left until a backward pass comes to it, if none has."""
        if self.is_done or self._claim is None or self._claim.is_over():
            return False
        with suppress(Exception):  # who needs it is told so
            self._held.append(scope_pool.Held(self._claim.scope, self._handed_on))
            return True
        return False

    def let_go(self) -> None:
        """Ends what was held last, which stays where it was."""
        held = self._held.pop()
        if not self.is_done:
            held.put_back()
        held.let_go()

    def _leftovers(self, scope: Scope) -> scope_pool.Leftovers:
        return scope_pool.Leftovers(scope, self._handed_on, [*self._needed, *self._inputs])

    def _why_not(self) -> str | None:
        if _here.is_differentiating:
            return _NO_SECOND
        if not self._is_filled():
            return _NO_REPEAT
        is_same = _core.tensor_versions(list(self._needed)) == self._versions
        return None if is_same else _OVERWRITTEN

    def _is_filled(self) -> bool:
        """Whether its scope has what its run has left, or that can be put there."""
        if self._left is not None:
            return self._left.claim()
        return not self.is_done and (self._claim is None or not self._claim.is_over())


def _kept(programs: StaticPrograms) -> set[str]:
    """The names of what the backward program reads, its contents included."""
    arguments = programs.backward_program.global_block().kwargs()
    read = {name for name, value in arguments.items() if not value.use_empty()}
    return read - set(programs.program_attr["no_need_buffers_names"])
