"""Autograd of captured graphs: checks and saved forward state of their backward passes.

To autograd a graph is one node without second derivatives, while the nodes of single operators have
them. Conditions that only the backward pass can detect are errors there, for example that an
in-place operation has written a tensor that the pass needs.

Graphs of dynamic layers are captured without an explicit request by the user (dynamic/hook.py), so
none is used for training once this process has differentiated twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
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


class _BackwardState(threading.local):
    """The backward passes of a thread.

    Attributes:
        depth, seconds: The number of nested passes, and the total time of all passes so far.
        is_differentiating: Whether the current pass creates a graph (``create_graph``).
        retains: Whether another pass may follow on the current graphs.
        error: The error that was raised when Paddle reached a graph.
        saved_states: The states saved for another pass.
        latest: The guard of the graph that the pass reached last.
    """

    depth = 0
    seconds = 0.0
    is_differentiating = False
    retains = False
    error: BaseException | None = None
    latest: _BackwardGuard | None = None

    def __init__(self) -> None:
        self.saved_states: list[scope_pool.SavedState] = []


_backward = _BackwardState()
# Whether any backward pass in this process was called with ``create_graph=True``.
_has_differentiated_twice = False

_UNCOMPILED_ADVICE = 'uncompiled (with enable(dynamic="training"): use enable(dynamic=True))'
_NO_SECOND_DERIVATIVE = (
    "a compiled function has no second derivative (create_graph=True): leave functions that are "
    f"differentiated twice {_UNCOMPILED_ADVICE}"
)
_NO_SECOND_PASS = (
    "the saved tensors of a compiled function could not be retained for another backward pass "
    f"(retain_graph=True): call it again, add the losses up, or leave it {_UNCOMPILED_ADVICE}"
)
_OVERWRITTEN = (
    "a saved tensor of a compiled function was written by an in-place operation after the "
    "forward pass: clone it first"
)


def install_at_import() -> None:
    """Patches ``paddle.grad`` to record whether the process has differentiated twice."""
    replaced.RUN_PARTIAL_GRAD.replace(
        lambda original: _pinning(_recording_options(original, {"create_graph": 4}, retains=True))
    )


def install() -> None:
    """Patches backward passes to record their options."""
    replaced.RUN_BACKWARD.replace(
        lambda original: _recording_options(original, {"retain_graph": 2})
    )


def may_compile() -> bool:
    """Whether a layer may be compiled for training without an explicit request by the user.

    Not in a backward pass, where Python hooks and recomputation may call layers.
    """
    return not _has_differentiated_twice and _backward.depth == 0


# Whether a program of gradients has been created since the last backward pass.
_has_new_program = False


def note_new_program() -> None:
    """Records a program of gradients: the next backward pass may build its functions."""
    global _has_new_program
    _has_new_program = True


def _seen_signals() -> AbstractContextManager[None]:
    global _has_new_program
    is_first, _has_new_program = _has_new_program, False
    return signals.seen_by_other_threads() if is_first else nullcontext()


def seconds() -> float:
    """The total duration, in seconds, of the backward passes of this thread so far."""
    return _backward.seconds


def _recording_options(
    original: Callable[..., Any], positions: dict[str, int], retains: bool = False
) -> Callable[..., Any]:
    """Patches Paddle's function for backward passes, so that options of each pass are recorded.

    Args:
        positions: The index of the positional argument of each option.
        retains: Whether the graph can be differentiated again in any case, not only by an option.
    """

    @wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        global _has_differentiated_twice
        requested = {
            name for name, at in positions.items() if kwargs.get(name) or any(args[at : at + 1])
        }
        creates_graph = "create_graph" in requested
        _has_differentiated_twice |= creates_graph
        with (
            signals.deferred_signals(except_ctrl_c=True),
            _backward_pass(creates_graph, retains or bool(requested)),
            _seen_signals(),
        ):
            return original(*args, **kwargs)

    return run_backward


def _pinning(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pins the saved state of graphs that ``paddle.grad`` does not reach, so that it is unchanged.

    In plain Paddle all graphs are unchanged, regardless of ``retain_graph``: ``paddle.grad`` works
    on copies.
    """

    @wraps(original)
    def run_partial_grad(*args: Any, **kwargs: Any) -> Any:
        with _guards_lock:
            guards = list(_guards)
        pinned: list[_BackwardGuard] = []
        try:
            for guard in guards:
                if guard.pin():
                    pinned.append(guard)
            return original(*args, **kwargs)
        finally:
            for guard in pinned:
                guard.unpin()

    return run_partial_grad


@contextmanager
def _backward_pass(is_differentiating: bool, retains: bool) -> Iterator[None]:
    """Context of a backward pass: raises the error of a guard, not the one that wraps it."""
    outer_state = (
        _backward.is_differentiating,
        _backward.retains,
        _backward.saved_states,
        _backward.error,
        _backward.latest,
    )
    saved_states: list[scope_pool.SavedState] = []
    _backward.is_differentiating, _backward.retains = is_differentiating, retains
    _backward.saved_states, _backward.error, _backward.latest = saved_states, None, None
    _backward.depth += 1
    start = clock.now()
    try:
        yield
    except Exception:
        if _backward.error is not None:
            raise _backward.error from None
        raise
    finally:
        _backward.depth -= 1
        if _backward.depth == 0:
            _backward.seconds += clock.now() - start
        if _backward.latest is not None:
            _backward.latest.end()
        (
            _backward.is_differentiating,
            _backward.retains,
            _backward.saved_states,
            _backward.error,
            _backward.latest,
        ) = outer_state
        for state in saved_states:
            state.claim()


# -- graphs --------------------------------------------------------------------------------------


def inputs_without(layer: StaticLayer) -> list[int]:
    """The indices of inputs for which the backward program of a graph computes no gradient.

    Paddle fills in zeros after the program, which an optimizer treats as a gradient.
    """
    names = layer.train_program.program_attr["bx_g_names"]
    return [index for index, name in enumerate(names) if name == NO_GRADIENT]


class Gradients:
    """The backward pass of a graph that was created for training.

    Args:
        layer: The ``PartialProgramLayer`` of the graph.
        read, made: The indices of inputs and of outputs that Python's operators would read in their
            backward pass, in addition to those that the backward program reads.
    """

    def __init__(self, layer: StaticLayer, read: Sequence[int], made: Sequence[int]) -> None:
        programs = layer.train_program
        names = programs.program_attr
        positions: list[int] = list(outputs_of(layer).quick_index_map)
        self._saved_names = list(programs.backward_program.global_block().kwargs())
        saved_names = _names_read_by_backward(programs)
        input_names, output_names = names["fx_names"], [names["fo_names"][at] for at in positions]
        self._inputs = [n for n, name in enumerate(input_names) if name in saved_names or n in read]
        self._outputs = [
            n for n, name in enumerate(output_names) if name in saved_names or n in made
        ]

    def attach(self, inputs: Sequence[Any], outputs: Sequence[Any], scope: Scope) -> None:
        """Registers a guard on the backward pass of a run.

        Args:
            inputs, outputs: The tensors that the run read and returned.
            scope: The scope of the run.
        """
        first = next((each for each in outputs if not each.stop_gradient), None)
        if first is not None:
            needed = [inputs[index] for index in self._inputs]
            # The outputs are detached, or there would be a cycle of references: an output
            # references its graph, and the graph references the guard.
            needed += [outputs[index].detach() for index in self._outputs]
            guard = _BackwardGuard(needed, inputs, self._saved_names, scope)
            first.register_hook(_core.record_error_on(guard, _backward))


_guards: WeakSet[_BackwardGuard] = WeakSet()
_guards_lock = new_lock()


class _BackwardGuard:
    """Checks the tensors that a backward pass needs when it reaches the graph, and saves the state.

    The state is saved if another pass may follow.

    Args:
        needed: Tensors of the user that must not have been written since the forward run.
        inputs: All inputs of the forward run.
        saved_names: The names of the values that the forward run has saved for the backward pass.
        scope: The scope of the forward run.

    Attributes:
        is_done: Whether a backward pass has reached the graph.
    """

    def __init__(
        self,
        needed: Sequence[Any],
        inputs: Sequence[Any],
        saved_names: Sequence[str],
        scope: Scope,
    ) -> None:
        self._needed = needed
        self._inputs = inputs
        self._saved_names = saved_names
        self._claim: scope_pool.Claim | None = scope_pool.Claim(scope)
        self._versions = _core.tensor_versions(list(needed))
        self.is_done = False
        self._saved: scope_pool.SavedState | None = None
        self._pins: list[scope_pool.PinnedState] = []
        with _guards_lock:
            _guards.add(self)

    def __call__(self, gradient: Any) -> None:
        if _backward.latest is not None:
            _backward.latest.end()
        if self._pins and not self.is_done:
            self._pins[-1].restore()
        reason = self._reason_against()
        if reason is not None:
            raise NgraphError(reason)
        if self._saved is not None:
            self._saved.restore()
        elif _backward.retains and self._claim is not None:
            # An error is ignored: a repeated backward pass raises one when it finds no saved state.
            with signals.own_errors(), suppress(Exception):
                self._saved = self._save(self._claim.scope)
        self.is_done = True
        _backward.latest = self
        if _backward.retains and self._saved is not None:
            self._saved.pin()
            _backward.saved_states.append(self._saved)

    def end(self) -> None:
        """Ends a backward pass's part in this graph: the pass reaches another graph, or is over."""
        _backward.latest = None
        claim = self._claim if self._saved is None else self._saved.latest_claim
        has_run = claim is None or claim.is_over()
        if self._saved is None:
            # The graph is not done if an error was raised before the backward pass ran it: another
            # pass may follow.
            self.is_done = has_run
        elif not has_run and self._saved not in _backward.saved_states:
            _backward.saved_states.append(self._saved)
        if has_run and not (_backward.retains and self._saved is not None):
            self._needed, self._inputs, self._claim, self._saved = [], [], None, None

    def pin(self) -> bool:
        """Pins the saved state; ``False`` if a backward pass has run the graph, or on an error."""
        if self.is_done or self._claim is None or self._claim.is_over():
            return False
        # An error is ignored: a later backward pass that needs the saved state raises one.
        with signals.own_errors(), suppress(Exception):
            self._pins.append(scope_pool.PinnedState(self._claim.scope, self._saved_names))
            return True
        return False

    def unpin(self) -> None:
        """Ends the latest pin of the graph's saved state.

        Restores the state for a later backward pass, unless a pass has reached the graph meanwhile.
        """
        pinned = self._pins.pop()
        if not self.is_done:
            pinned.restore()
        pinned.unpin()

    def _save(self, scope: Scope) -> scope_pool.SavedState:
        return scope_pool.SavedState(scope, self._saved_names, [*self._needed, *self._inputs])

    def _reason_against(self) -> str | None:
        if _backward.is_differentiating:
            return _NO_SECOND_DERIVATIVE
        if not self._is_filled():
            return _NO_SECOND_PASS
        is_same = _core.tensor_versions(list(self._needed)) == self._versions
        return None if is_same else _OVERWRITTEN

    def _is_filled(self) -> bool:
        """Whether the scope contains the saved forward state, or the state can be restored."""
        if self._saved is not None:
            return self._saved.claim()
        return not self.is_done and (self._claim is None or not self._claim.is_over())


def _names_read_by_backward(programs: StaticPrograms) -> set[str]:
    """The names of the variables that the backward program reads from the scope."""
    arguments = programs.backward_program.global_block().kwargs()
    read = {name for name, value in arguments.items() if not value.use_empty()}
    return read - set(programs.program_attr["no_need_buffers_names"])
