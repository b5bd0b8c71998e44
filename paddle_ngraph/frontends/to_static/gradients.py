"""Autograd of captured graphs: one node for each run of a graph, and its backward pass.

The node's backward pass runs the backward program. Conditions that only this pass can detect are
errors, for example that an in-place operation has written a tensor that the pass needs.

The node has no second derivative, while the nodes of single operators have them. So before
``paddle.grad(create_graph=True)`` differentiates a graph, Paddle runs the graph's operators one by
one, on the same inputs, and gradients of the graph's results go on to the results of these
operators. Each result of a graph is a view, whose own autograd node, a gate, can be redirected that
way: later passes find the operators only, hooks and retained gradients of the results are
unaffected, and the state of the graph is released.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any
from weakref import WeakSet

import paddle

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.to_static import hook as to_static_hook
from paddle_ngraph.frontends.to_static.program_runs import TrainingPrograms
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import (
    NO_GRADIENT,
    PyLayer,
    address_of_grad_node,
    grad_node_of,
    has_gradients,
    next_grad_nodes,
    operators,
    outputs_of,
    set_gradients,
)
from paddle_ngraph.paddle_private.protocols import StaticLayer, StaticPrograms
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.clock import Clock
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.once import once


class _BackwardState(threading.local):
    """The backward passes of a thread.

    Attributes:
        depth, seconds: The number of nested passes, and the total time of all passes so far.
        read_clock: The clock of that time.
        retains: Whether another pass may follow on the nodes that the current pass reaches.
        reached: For a pass on copies of the nodes (``paddle.grad``): the addresses of the nodes
            that it reaches. ``None`` for a pass on the nodes themselves.
        excluded: The tensors that get no gradient in the current pass (``no_grad_vars``).
        ended_nodes: Nodes that have been replaced, while the pass may still use them.
        error: The error that was raised when Paddle reached a graph.
        num_passes_on_nodes: The number of nested passes on the nodes themselves.
        first_new_run: The number of the first run after the start of the outermost of these.
    """

    depth = 0
    num_passes_on_nodes = 0
    first_new_run = 0
    seconds = 0.0
    read_clock: Clock = staticmethod(clock.now)
    retains = False
    reached: set[int] | None = None
    excluded: Sequence[Any] = ()
    error: BaseException | None = None

    def __init__(self) -> None:
        self.ended_nodes: list[_core.RetainedNode] = []


_backward = _BackwardState()

_NO_SECOND_PASS = (
    "the saved tensors of a compiled function are released: an earlier backward pass has not "
    "retained them (retain_graph=True), or an in-place operation has written an input before that "
    "pass: clone it first"
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
    """Patches backward passes to record their options, and ``paddle.grad`` to expand graphs."""
    replaced.RUN_BACKWARD.replace(_recording_options)
    replaced.RUN_PARTIAL_GRAD.replace(_expanding)


def may_compile() -> bool:
    """Whether a layer may be compiled for training without an explicit request by the user.

    Not in a backward pass, where Python hooks and recomputation may call layers.
    """
    return _backward.depth == 0


def seconds() -> float:
    """The total duration, in seconds, of the backward passes of this thread so far."""
    return _backward.seconds


def set_clock(now: Clock) -> None:
    """Sets the clock of :func:`seconds`, for the passes of this thread that follow."""
    _backward.read_clock = now


def _recording_options(original: Callable[..., Any]) -> Callable[..., Any]:
    """Patches ``Tensor.backward``, so that its options are recorded."""

    @wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        retains = bool(kwargs.get("retain_graph") or any(args[2:3]))
        if not (_runs or to_static_hook.has_gradients() or _core.is_capturing()):
            # The pass reaches no program of the engine, in which signals would be deferred.
            with _BackwardPass(retains):
                return original(*args, **kwargs)
        with (
            signals.deferred_signals(except_ctrl_c=True),
            _other_nodes(args[0] if args else kwargs["tensors"]),
            _BackwardPass(retains),
            to_static_hook.first_backward_pass(),
        ):
            return original(*args, **kwargs)

    return run_backward


_GRAD_ARGUMENTS = (
    "outputs",
    "inputs",
    "grad_outputs",
    "retain_graph",
    "create_graph",
    "only_inputs",
    "allow_unused",
    "no_grad_vars",
)


def _expanding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Patches ``paddle.grad``: it expands graphs between outputs and inputs if it creates a graph.

    The pass is on copies of all nodes, so that the nodes are retained whatever its options.
    """

    @wraps(original)
    def run_partial_grad(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(_GRAD_ARGUMENTS, args)) | kwargs
        with (
            signals.deferred_signals(except_ctrl_c=True),
            _BackwardPass(True, set(), given.get("no_grad_vars") or ()),
        ):
            _core.flush_captures()
            with _runs_lock:
                runs = list(_runs)
            former: list[tuple[_GraphRun, _core.RetainedNode]] = []
            if runs:
                between, ends = _nodes_on_paths(given["outputs"], given["inputs"])
                _backward.reached = between | ends
                if given.get("create_graph"):
                    former = _expand(runs, between)
            with _restored(former):
                return original(*args, **kwargs)

    return run_partial_grad


class _BackwardPass:
    """Context of a backward pass: raises the error of a graph, not the one that wraps it.

    Each pass of the process has one, so that it is no generator.
    """

    def __init__(
        self, retains: bool, reached: set[int] | None = None, excluded: Sequence[Any] = ()
    ) -> None:
        self._state = retains, reached, excluded, None
        self._is_on_nodes = reached is None

    def __enter__(self) -> None:
        now = _backward
        self._outer_state = now.retains, now.reached, now.excluded, now.error
        now.retains, now.reached, now.excluded, now.error = self._state
        now.depth += 1
        if self._is_on_nodes:
            if now.num_passes_on_nodes == 0:
                now.first_new_run = next(_run_numbers)
            now.num_passes_on_nodes += 1
        self._read_clock = now.read_clock
        self._start = self._read_clock()

    def __exit__(self, kind: Any, raised: BaseException | None, trace: Any) -> None:
        now = _backward
        error = now.error
        now.depth -= 1
        now.num_passes_on_nodes -= self._is_on_nodes
        if now.depth == 0:
            now.seconds += self._read_clock() - self._start
            now.ended_nodes.clear()
        now.retains, now.reached, now.excluded, now.error = self._outer_state
        if error is not None and isinstance(raised, Exception):
            raise error from None


def _expand(
    runs: Sequence[_GraphRun], between: set[int]
) -> list[tuple[_GraphRun, _core.RetainedNode]]:
    """Expands the graphs of which a result is at one of these addresses of autograd nodes.

    Returns:
        Runs that an outer pass may still reach, and their nodes, to be restored.
    """
    former = []
    for run in _runs_with_gates(runs, between):
        is_outer = run.is_outer
        node = run.expand(releases=not is_outer)
        if is_outer and node is not None:
            former.append((run, node))
    return former


def _runs_with_gates(runs: Sequence[_GraphRun], addresses: set[int]) -> list[_GraphRun]:
    return [run for run in runs if not addresses.isdisjoint(run.gates.addresses())]


def _other_nodes(tensors: Sequence[Any]) -> AbstractContextManager[None]:
    """Context of a pass in a hook: graphs that the outer pass may still reach get other nodes.

    The outer pass has counted the nodes that it reaches, and each node can run once.
    """
    if _backward.num_passes_on_nodes == 0:
        return nullcontext()
    former: list[tuple[_GraphRun, _core.RetainedNode]] = []
    with _runs_lock:
        outer_runs = [run for run in _runs if run.is_outer and run.is_attachable()]
    if outer_runs:
        _core.flush_captures()
        reached = set(_readers_of_nodes(tensors))
        reached.update(address_of_grad_node(grad_node_of(each)) for each in tensors)
        runs = _runs_with_gates(outer_runs, reached)
        former = [(run, run.attach_other_node()) for run in runs]
    return _restored(former)


@contextmanager
def _restored(former: Sequence[tuple[_GraphRun, _core.RetainedNode]]) -> Iterator[None]:
    """Context at whose end the gradients of runs go to their former nodes again."""
    try:
        yield
    finally:
        for run, node in former:
            run.restore(node)


def _readers_of_nodes(outputs: Sequence[Any]) -> dict[int, list[int]]:
    """Returns the addresses of the nodes from which gradients go on to each node, by address."""
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
    return readers


def _nodes_on_paths(outputs: Sequence[Any], inputs: Sequence[Any]) -> tuple[set[int], set[int]]:
    """Returns the addresses of autograd nodes that gradients pass, and of those where they end."""
    readers = _readers_of_nodes(outputs)
    ends = {address_of_grad_node(node) for node in map(grad_node_of, inputs) if node is not None}
    between: set[int] = set()
    unread = list(ends)
    while unread:
        new = set(readers.get(unread.pop(), ())) - between
        between |= new
        unread += new
    return between, ends


# -- graphs --------------------------------------------------------------------------------------


@contextmanager
def thawed(tensors: Sequence[Any]) -> Iterator[None]:
    """Context in which tensors get gradients that were frozen (``stop_gradient``) since a run."""
    frozen = [each for each in tensors if each.stop_gradient]
    for each in frozen:
        _core.set_stop_gradient(each, False)
    try:
        yield
    finally:
        for each in frozen:
            _core.set_stop_gradient(each, True)


def inputs_without(layer: StaticLayer) -> list[int]:
    """Returns the indices of inputs for which the backward program of a graph has no gradient.

    Paddle fills in zeros after the program, which an optimizer treats as a gradient.
    """
    names = layer.train_program.program_attr["bx_g_names"]
    return [index for index, name in enumerate(names) if name == NO_GRADIENT]


class Gradients:
    """A graph that was created for training, and its gradients.

    Args:
        layer: The ``PartialProgramLayer`` of the graph.
        read, made: The indices of inputs and of outputs that Python's operators would read in their
            backward pass, in addition to those that the backward program reads.
        written: The indices of inputs that the graph writes, and whose contents it does not read.
        differentiable: The indices of the inputs that get gradients.
        recompute: Has Paddle compute the results from the inputs, operator by operator.

    Attributes:
        differentiable, recompute: The arguments.
        positions: For each result, the index of its value among the outputs of the programs.
        needed: The indices, among the inputs followed by the needed outputs, of the tensors that a
            backward pass reads.
        recomputed: The indices of the inputs that ``recompute`` reads.
        stopped: The indices of the outputs that get no gradient.
    """

    def __init__(
        self,
        layer: StaticLayer,
        read: Sequence[int],
        made: Sequence[int],
        written: Sequence[int],
        differentiable: Sequence[int],
        recompute: Callable[[Sequence[Any], Any], list[Any]],
    ) -> None:
        self._layer = layer
        programs = layer.train_program
        names = programs.program_attr
        values = outputs_of(layer)
        self.positions: list[int] = list(values.quick_index_map)
        self.stopped = [at for at, each in enumerate(names["fo_values"]) if each.stop_gradient]
        read_names = _names_read_by_backward(programs)
        inputs, outputs = names["fx_names"], names["fo_names"]
        made_outputs = {self.positions[n] for n in made}
        self._outputs = [
            n for n, name in enumerate(outputs) if name in read_names or n in made_outputs
        ]
        self.needed = [n for n, name in enumerate(inputs) if name in read_names or n in read]
        self.needed += range(len(inputs), len(inputs) + len(self._outputs))
        self.recomputed = [at for at in range(len(inputs)) if at not in written]
        self.differentiable = list(differentiable)
        self.recompute = recompute

    def run(self, inputs: list[Any], random_state: Any) -> Sequence[Any]:
        """Runs the graph.

        Args:
            inputs: Its inputs.
            random_state: The state of the random generators before the run, for ``recompute``.

        Returns:
            The results; those that get a gradient are views, with autograd nodes of their own.
        """
        programs = to_static_hook.training_programs(self._layer)
        run = _GraphRun(self, programs, inputs, random_state)
        with signals.deferred_signals(except_ctrl_c=True):
            outputs = run.attach(run.compute)
        results = [outputs[at] for at in self.positions]
        gated = [at for at, each in enumerate(results) if not each.stop_gradient]
        for at in gated:
            results[at] = operators.reshape(results[at], results[at].shape)
        if gated:
            source = outputs[self.positions[gated[0]]]
            gates = _core.GradientGates([results[at] for at in gated], source)
            run.set_gates(gated, gates)
        return results

    def kept(self, outputs: Sequence[Any]) -> list[Any]:
        """Returns the outputs that a backward pass reads, without references to the graph."""
        return [outputs[at].detach() for at in self._outputs]


class _GraphNode(PyLayer):  # type: ignore[misc]
    """The autograd node of a run of a graph.

    A node that has had its backward pass, other than on copies, must not be reachable any more:
    Paddle 3.3.1 crashes when it runs or copies the node again.
    """

    @staticmethod
    def forward(context: Any, run: _GraphRun, compute: Any, *inputs: Any) -> tuple[Any, ...]:
        context.backward = _core.record_error_on(run.backward, _backward)
        outputs = tuple(compute())
        context.mark_non_differentiable(*(outputs[at] for at in run.graph.stopped))
        return outputs


class _EndNode(PyLayer):  # type: ignore[misc]
    """The autograd node of a run whose saved tensors are released: the next pass raises."""

    @staticmethod
    def forward(context: Any, *inputs: Any) -> Any:
        context.backward = _core.record_error_on(_raise_no_second_pass, _backward)
        return _placeholder().detach()


def _raise_no_second_pass(gradient: Any) -> None:
    raise NgraphError(_NO_SECOND_PASS)


@once
def _placeholder() -> Any:
    """The output of all end nodes."""
    return paddle.zeros([1])


_runs: WeakSet[_GraphRun] = WeakSet()
_runs_lock = new_lock()
_run_numbers = itertools.count()


class _GraphRun:
    """A run of a graph, and the saved forward state for its backward passes.

    Args:
        graph: The graph.
        programs: Its programs.
        inputs: The inputs of the run.
        random_state: The state of the random generators before the run.

    Attributes:
        graph: The graph.
        gates: The autograd nodes of the results that the user has.
    """

    gates: _core.GradientGates

    def __init__(
        self, graph: Gradients, programs: TrainingPrograms, inputs: list[Any], random_state: Any
    ) -> None:
        self.graph, self._programs = graph, programs
        self._inputs, self._random_state = inputs, random_state
        self._number = next(_run_numbers)
        self._gated: Sequence[int] = ()
        # The tensors that the backward program reads; ``None`` once they are released.
        self._saved: list[Any] | None = None
        # Tensors of the user, and their versions after the run.
        self._tensors: list[Any] = []
        self._versions = ""
        self._shapes: list[tuple[Sequence[int], Any]] = []  # shapes and dtypes of the outputs

    def attach(self, compute: Callable[[], list[Any]]) -> Sequence[Any]:
        """Creates an autograd node of the run; returns its outputs, as ``compute`` returns them."""
        outputs: Sequence[Any] = _GraphNode.apply(self, compute, *self._differentiable_inputs())
        return outputs

    def compute(self) -> list[Any]:
        """Runs the forward program; returns the outputs."""
        outputs, self._saved = self._programs.run_forward(self._inputs)
        self._shapes = [(each.shape, each.dtype) for each in outputs]
        self._tensors = [*self._inputs, *self.graph.kept(outputs)]
        self._versions = _core.tensor_versions(self._tensors)
        return outputs

    def _placeholders(self) -> list[Any]:
        """Returns tensors with the shapes and dtypes of the outputs."""
        return [paddle.empty(shape, dtype) for shape, dtype in self._shapes]

    def set_gates(self, gated: Sequence[int], gates: _core.GradientGates) -> None:
        """Registers the autograd nodes of the results at the indices ``gated``."""
        self._gated, self.gates = gated, gates
        with _runs_lock:
            _runs.add(self)

    def backward(self, *gradients: Any) -> tuple[Any, ...]:
        """Runs the backward program; returns the gradients of the differentiable inputs.

        Raises:
            NgraphError: A tensor that the program reads has been written since the forward run.
        """
        if self._saved is None:
            raise NgraphError(_NO_SECOND_PASS)
        if self._is_written(self.graph.needed):
            raise NgraphError(_OVERWRITTEN)
        found = self._programs.run_backward(self._saved, gradients, _backward.retains)
        requested = tuple(
            found[at] if self._is_requested(self._inputs[at]) else None
            for at in self.graph.differentiable
        )
        for each in requested:
            if each is not None:  # as the gradients from operators
                _core.set_stop_gradient(each, False)
        if _backward.reached is None:
            repeats = _backward.retains and self.is_attachable()
            # The pass still uses the current node, and may do so until its end.
            node = self.gates.redirect(self._attach_again if repeats else self._end)
            _backward.ended_nodes.append(node)
        return requested

    @property
    def is_outer(self) -> bool:
        """Whether a pass on the nodes themselves, in which Python runs, may still reach the run."""
        return _backward.num_passes_on_nodes > 0 and self._number < _backward.first_new_run

    def expand(self, releases: bool) -> _core.RetainedNode | None:
        """Has gradients of the results go on to those of Paddle's operators, computed again.

        Args:
            releases: Whether to release the state, which a pass on the former node needs.

        Returns:
            The former node.

        Raises:
            NgraphError: A tensor that the operators read has been written since the forward run.
        """
        if self._saved is None:
            return None  # released by a pass that was to be the only one: Paddle raises an error
        if self._is_written(self.graph.needed):
            raise NgraphError(_OVERWRITTEN)
        if self._is_written(self.graph.recomputed):
            raise NgraphError(_INPUT_OVERWRITTEN)
        inputs, random_state = self._inputs, self._random_state

        def compute_sources() -> list[Any]:
            computed = self.graph.recompute(inputs, random_state)
            return [computed[at] for at in self._gated]

        former = self.gates.redirect(compute_sources)
        if releases:
            self._release()
        return former

    def attach_other_node(self) -> _core.RetainedNode:
        """Has gradients of the results go to a new node; returns the former one."""
        return self.gates.redirect(self._attach_again)

    def restore(self, former: _core.RetainedNode) -> None:
        """Has gradients of the results go to a former node again."""
        results: list[Any] = []

        def make_results() -> list[Any]:
            outputs = self._placeholders()
            results.extend(outputs[self.graph.positions[at]] for at in self._gated)
            for each in results:
                _core.set_stop_gradient(each, False)
            return results

        self.gates.redirect(make_results)
        slots = [self.graph.positions[at] for at in self._gated]
        self.gates.restore(former, results, slots)

    def is_attachable(self) -> bool:
        """Whether the run can get another node, for another pass.

        After an in-place operation, the gradients of an input that is a result of other operators
        can no longer be reached.
        """
        return self._saved is not None and (
            not self._is_written(self.graph.differentiable)
            or all(each.is_leaf for each in self._differentiable_inputs())
        )

    def _attach_again(self) -> list[Any]:
        """Creates a new autograd node; returns tensors whose gradients go on to the node."""
        with self._with_gradients():
            outputs = self.attach(self._placeholders)
        return [outputs[self.graph.positions[at]] for at in self._gated]

    def _end(self) -> list[Any]:
        """Creates a node that raises; returns tensors whose gradients go on to the node."""
        with self._with_gradients():
            output = _EndNode.apply(*self._differentiable_inputs())
        self._release()
        return [output] * len(self._gated)

    @contextmanager
    def _with_gradients(self) -> Iterator[None]:
        with (
            _core.GradientMode(has_gradients, set_gradients, True),
            thawed(self._differentiable_inputs()),
        ):
            yield

    def _differentiable_inputs(self) -> list[Any]:
        return [self._inputs[at] for at in self.graph.differentiable]

    def _is_requested(self, source: Any) -> bool:
        """Whether the current pass takes a gradient of an input: Paddle accepts no other one."""
        if _backward.reached is None:
            return True
        if any(source is each for each in _backward.excluded):
            return False
        return address_of_grad_node(grad_node_of(source)) in _backward.reached

    def _release(self) -> None:
        self._inputs, self._tensors, self._saved = [], [], None

    def _is_written(self, indices: Sequence[int]) -> bool:
        """Whether one of these tensors was written since the forward run."""
        versions = _core.tensor_versions(self._tensors)
        if versions == self._versions:
            return False
        before, now = self._versions.split(), versions.split()
        return any(before[index] != now[index] for index in indices)


def _names_read_by_backward(programs: StaticPrograms) -> set[str]:
    """The names of the variables that the backward program reads from the scope."""
    arguments = programs.backward_program.global_block().kwargs()
    read = {name for name, value in arguments.items() if not value.use_empty()}
    return read - set(programs.program_attr["no_need_buffers_names"])
