"""Autograd of captured graphs: checks and saved forward state of their backward passes.

To autograd a graph is one node. Conditions that only the backward pass can detect are errors there,
for example that an in-place operation has written a tensor that the pass needs.

The node has no second derivative, while the nodes of single operators have them. So before
``paddle.grad(create_graph=True)`` differentiates a graph, Paddle runs the graph's operators one by
one, on the same inputs, and gradients of the graph's results go on to the results of these
operators. Each result of a graph is a view, whose own autograd node can be redirected that way:
later passes find the operators only, hooks and retained gradients of the results are unaffected,
and the state of the graph is released.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import Any, NamedTuple
from weakref import WeakSet

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.to_static import scope_pool
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import (
    NO_GRADIENT,
    address_of_grad_node,
    grad_node_of,
    next_grad_nodes,
    operators,
    outputs_of,
    register_gradient_hook,
)
from paddle_ngraph.paddle_private.protocols import Scope, StaticLayer, StaticPrograms
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.fork_safe_locks import new_lock


class _BackwardState(threading.local):
    """The backward passes of a thread.

    Attributes:
        depth, seconds: The number of nested passes, and the total time of all passes so far.
        retains: Whether another pass may follow on the current graphs.
        error: The error that was raised when Paddle reached a graph.
        saved_states: The states saved for another pass.
        latest: The guard of the graph that the pass reached last.
    """

    depth = 0
    seconds = 0.0
    retains = False
    error: BaseException | None = None
    latest: _BackwardGuard | None = None

    def __init__(self) -> None:
        self.saved_states: list[scope_pool.SavedState] = []


_backward = _BackwardState()

_UNCOMPILED_ADVICE = 'uncompiled (with enable(dynamic="training"): use enable(dynamic=True))'
_NO_SECOND_PASS = (
    "the saved tensors of a compiled function could not be retained for another backward pass "
    f"(retain_graph=True): call it again, add the losses up, or leave it {_UNCOMPILED_ADVICE}"
)
_OVERWRITTEN = (
    "a saved tensor of a compiled function was written by an in-place operation after the "
    "forward pass: clone it first"
)
_INPUT_OVERWRITTEN = (
    "an input of a compiled function was written by an in-place operation after the forward pass, "
    "and a second derivative (create_graph=True) computes the function again: clone it first"
)


def install() -> None:
    """Patches backward passes to record their options, and ``paddle.grad`` to make graphs eager."""
    replaced.RUN_BACKWARD.replace(partial(_recording_options, is_retaining=_retains_graph))
    replaced.RUN_PARTIAL_GRAD.replace(
        # The graph can be differentiated again in any case, not only by an option.
        lambda original: _expanding(_pinning(_recording_options(original, lambda *_: True)))
    )


def _retains_graph(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return bool(kwargs.get("retain_graph") or any(args[2:3]))


def may_compile() -> bool:
    """Whether a layer may be compiled for training without an explicit request by the user.

    Not in a backward pass, where Python hooks and recomputation may call layers.
    """
    return _backward.depth == 0


def seconds() -> float:
    """The total duration, in seconds, of the backward passes of this thread so far."""
    return _backward.seconds


def _recording_options(
    original: Callable[..., Any], is_retaining: Callable[[Sequence[Any], Mapping[str, Any]], bool]
) -> Callable[..., Any]:
    """Patches Paddle's function for backward passes, so that options of each pass are recorded.

    Args:
        is_retaining: Whether another pass on the graph may follow one with these arguments.
    """

    @wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with (
            signals.deferred_signals(except_ctrl_c=True),
            _backward_pass(is_retaining(args, kwargs)),
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
def _backward_pass(retains: bool) -> Iterator[None]:
    """Context of a backward pass: raises the error of a guard, not the one that wraps it."""
    outer_state = (
        _backward.retains,
        _backward.saved_states,
        _backward.error,
        _backward.latest,
    )
    saved_states: list[scope_pool.SavedState] = []
    _backward.retains = retains
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
            _backward.retains,
            _backward.saved_states,
            _backward.error,
            _backward.latest,
        ) = outer_state
        for state in saved_states:
            state.claim()


# -- second derivatives --------------------------------------------------------------------------

_GRAD_ARGUMENTS = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")


def _expanding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Expands the graphs between outputs and inputs to single operators before ``create_graph``."""

    @wraps(original)
    def run_partial_grad(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(_GRAD_ARGUMENTS, args)) | kwargs
        if given.get("create_graph"):
            start = clock.now()
            with signals.deferred_signals(except_ctrl_c=True):
                _expand_graphs(given["outputs"], given["inputs"])
            if _backward.depth == 0:
                _backward.seconds += clock.now() - start
        return original(*args, **kwargs)

    return run_partial_grad


def _expand_graphs(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Expands the graphs through which gradients of ``outputs`` reach ``inputs``."""
    _core.flush_captures()
    with _guards_lock:
        guards = list(_guards)
    by_address = {
        address: guard for guard in guards for address in guard.gates.addresses() if address
    }
    if by_address:
        reached = _nodes_between(outputs, inputs)
        for guard in {guard for address, guard in by_address.items() if address in reached}:
            guard.expand()


def _nodes_between(outputs: Sequence[Any], inputs: Sequence[Any]) -> set[int]:
    """Returns the addresses of the autograd nodes through which gradients reach ``inputs``."""
    readers: dict[int, list[int]] = {}
    pending = [grad_node_of(each) for each in outputs]
    while pending:
        node = pending.pop()
        for next_node in () if node is None else next_grad_nodes(node):
            address = address_of_grad_node(next_node)
            if address not in readers:
                readers[address] = []
                pending.append(next_node)
            readers[address].append(address_of_grad_node(node))
    between: set[int] = set()
    ends = [address_of_grad_node(node) for node in map(grad_node_of, inputs) if node is not None]
    while ends:
        new = set(readers.get(ends.pop(), ())) - between
        between |= new
        ends += new
    return between


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
        written: The indices of inputs that the graph writes, and whose contents it does not read.
        recompute: Has Paddle compute the outputs from the inputs, operator by operator.

    Attributes:
        saved_names: The names of the values that a run saves for its backward pass.
        needed: The indices, among the inputs followed by the needed outputs, of the tensors that a
            backward pass reads.
        recomputed: The indices of the inputs that ``recompute`` reads.
        recompute: The argument.
    """

    def __init__(
        self,
        layer: StaticLayer,
        read: Sequence[int],
        made: Sequence[int],
        written: Sequence[int],
        recompute: Callable[[Sequence[Any], Any], list[Any]],
    ) -> None:
        programs = layer.train_program
        names = programs.program_attr
        positions: list[int] = list(outputs_of(layer).quick_index_map)
        self.saved_names = list(programs.backward_program.global_block().kwargs())
        read_names = _names_read_by_backward(programs)
        input_names, output_names = names["fx_names"], [names["fo_names"][at] for at in positions]
        self._outputs = [
            n for n, name in enumerate(output_names) if name in read_names or n in made
        ]
        self.needed = [n for n, name in enumerate(input_names) if name in read_names or n in read]
        self.needed += range(len(input_names), len(input_names) + len(self._outputs))
        self.recomputed = [at for at in range(len(input_names)) if at not in written]
        self.recompute = recompute

    def attach(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scope: Scope, random_state: Any
    ) -> Sequence[Any]:
        """Registers a guard on the backward pass of a run.

        Args:
            inputs, outputs: The tensors that the run read and returned.
            scope: The scope of the run.
            random_state: The state of the random generators before the run, for ``recompute``.

        Returns:
            The outputs for the user: those that get a gradient are views, with nodes of their own.
        """
        positions = [at for at, each in enumerate(outputs) if not each.stop_gradient]
        if not positions:
            return outputs
        # The outputs are detached, or there would be a cycle of references: an output references
        # its graph, and the graph references the guard.
        needed_outputs = [outputs[index].detach() for index in self._outputs]
        returned = list(outputs)
        for at in positions:
            returned[at] = operators.reshape(outputs[at], outputs[at].shape)
        gates = _core.GradientGates([returned[at] for at in positions])
        run = _GraphRun(inputs, needed_outputs, scope, random_state, positions)
        guard = _BackwardGuard(self, run, gates)
        register_gradient_hook(outputs[positions[0]], _core.record_error_on(guard, _backward))
        return returned


class _GraphRun(NamedTuple):
    """A forward run.

    Attributes:
        inputs: All inputs.
        outputs: The outputs that a backward pass reads.
        scope, random_state: See :meth:`Gradients.attach`.
        positions: The indices of the outputs that get a gradient.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    scope: Scope
    random_state: Any
    positions: Sequence[int]


_guards: WeakSet[_BackwardGuard] = WeakSet()
_guards_lock = new_lock()


class _BackwardGuard:
    """Checks the tensors that a backward pass needs when it reaches the graph, and saves the state.

    The state is saved if another pass may follow.

    Args:
        graph: The graph.
        run: The forward run of the graph.
        gates: The autograd nodes of the results that the user has.

    Attributes:
        is_done: Whether a backward pass has reached the graph.
        gates: The argument.
    """

    def __init__(self, graph: Gradients, run: _GraphRun, gates: _core.GradientGates) -> None:
        self._graph = graph
        self._run: _GraphRun | None = run
        self.gates = gates
        # Tensors of the user, and their versions after the forward run.
        self._tensors = [*run.inputs, *run.outputs]
        self._versions = _core.tensor_versions(self._tensors)
        self._claim: scope_pool.Claim | None = scope_pool.Claim(run.scope)
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
        if has_run and not _backward.retains:
            self._release()

    def pin(self) -> bool:
        """Pins the saved state; ``False`` if a backward pass has run the graph, or on an error."""
        if self.is_done or self._claim is None or self._claim.is_over():
            return False
        # An error is ignored: a later backward pass that needs the saved state raises one.
        with signals.own_errors(), suppress(Exception):
            self._pins.append(scope_pool.PinnedState(self._claim.scope, self._graph.saved_names))
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

    def expand(self) -> None:
        """Has gradients of the results go on to those of Paddle's operators, computed again.

        Raises:
            NgraphError: A tensor that the operators read has been written since the forward run.
        """
        run = self._run
        if run is None:
            return  # released by a pass that was to be the only one: Paddle raises an error
        if self._is_written(self._graph.needed):
            raise NgraphError(_OVERWRITTEN)
        if self._is_written(self._graph.recomputed):
            raise NgraphError(_INPUT_OVERWRITTEN)

        def compute_sources() -> list[Any]:
            computed = self._graph.recompute(run.inputs, run.random_state)
            return [computed[at] for at in run.positions]

        self.gates.redirect(compute_sources)
        self._release()

    def _release(self) -> None:
        self._run = self._claim = self._saved = None
        self._tensors = []

    def _save(self, scope: Scope) -> scope_pool.SavedState:
        return scope_pool.SavedState(scope, self._graph.saved_names, self._tensors)

    def _reason_against(self) -> str | None:
        if not self._is_filled():
            return _NO_SECOND_PASS
        return _OVERWRITTEN if self._is_written(self._graph.needed) else None

    def _is_written(self, indices: Sequence[int]) -> bool:
        """Whether one of these tensors was written since the forward run."""
        versions = _core.tensor_versions(self._tensors)
        if versions == self._versions:
            return False
        before, now = self._versions.split(), versions.split()
        return any(before[index] != now[index] for index in indices)

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
