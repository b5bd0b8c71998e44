"""Graphs of captured operators, which compute the requested values of a trace.

A trace (core/lazy/capture.h) is a list of calls of operators. It is partitioned into stages, each
a program in a ``PartialProgramLayer``, which the to_static hook runs through the engine. There is
one stage if no result gets a gradient. Otherwise autograd has to reach each tensor that the user
holds: operators that depend on such a tensor are in a later stage (stages.py).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.dynamic.lazy import trace_isolation
from paddle_ngraph.frontends.dynamic.lazy.calls import (
    TensorMeta,
    TracedCall,
    bind,
    call_eagerly,
    gradients_enabled,
    placeholder,
    values_in,
)
from paddle_ngraph.frontends.dynamic.lazy.deferral_rules import program_function
from paddle_ngraph.frontends.dynamic.lazy.size_relations import SizeRelation, find_relation
from paddle_ngraph.frontends.dynamic.lazy.stages import (
    Read,
    StageSpec,
    StayEager,
    non_differentiable_reads,
    partition_stages,
    with_possible_views,
)
from paddle_ngraph.frontends.to_static import gradients
from paddle_ngraph.frontends.to_static import hook as to_static_hook
from paddle_ngraph.paddle_private import call_stacks
from paddle_ngraph.paddle_private.call_stacks import operators_numbered, without_call_stacks
from paddle_ngraph.paddle_private.names import (
    PartialProgramLayer,
    in_static_mode,
    make_parameter,
    operators,
    set_random_states,
    set_stop_gradient,
    set_training,
)
from paddle_ngraph.partitioning import operator_lines
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.thread_local import ThreadLocal

# Callback that decides whether this thread may build a program of a number of operators now.
_compile_budget: ThreadLocal[Callable[[int], bool] | None] = ThreadLocal(None)
_NO_GRAPH = int(_core.Reason.NO_GRAPH)
_OTHER_THREAD, _BUDGET = int(_core.Reason.OTHER_THREAD), int(_core.Reason.BUDGET)
_SHARED_MEMORY, _SIGNAL = int(_core.Reason.SHARED_MEMORY), int(_core.Reason.SIGNAL)
_build_lock = new_lock()
# The tensors to which the parameters of a program are bound while this thread builds or runs it.
_run_parameters: ThreadLocal[Sequence[Any]] = ThreadLocal(())
_training_graph_ids = itertools.count(1)
_CPU = paddle.CPUPlace()


def make_graph(
    calls: Sequence[tuple[Any, ...]],
    metas: Sequence[tuple[Any, ...]],
    requested: list[int],
    examples: list[tuple[list[list[int]], list[Any]]],
) -> TraceGraph:
    """Builds the graph that computes the requested values of a trace.

    Does not raise: operators of a graph that cannot be built are called one by one.

    Args:
        calls, metas, requested: The trace: its calls, metadata of its values, and ids of the
            values to compute. The last values are the numbers that differ from call to call.
        examples: For an open trace, the shapes of all values, and these numbers, in some calls.
    """
    converted = [TracedCall(*call) for call in calls], [TensorMeta(*meta) for meta in metas]
    return TraceGraph(*converted, requested, examples)


class TraceGraph:
    """The graph of a trace.

    Attributes:
        is_open: Whether the trace is open: the graph has dynamic shapes, or numbers as inputs.
        why_native: Reason why its operators are called one by one instead, or ``None``.
        stages: The programs and calls of dynamic mode, in execution order.
        written_inputs: The ids of the inputs that are running statistics, which a run writes.
    """

    def __init__(
        self,
        calls: list[TracedCall],
        metas: list[TensorMeta],
        requested: list[int],
        examples: list[tuple[list[list[int]], list[Any]]],
    ) -> None:
        self.requested = requested
        self.number_of_calls = len(calls)
        self.stages: list[TraceStage | TracedCall] = []
        self.why_native: str | None = None
        self.is_open = bool(examples)
        self._metas = metas
        self._examples = [shapes for shapes, _ in examples]
        numbers = [given for _, given in examples]
        self._numbers = range(len(metas) - (len(numbers[0]) if numbers else 0), len(metas))
        self._calls = [_with_number(call, self._numbers, metas) for call in calls]
        if self.is_open:
            self._calls = with_possible_views(self._calls)
        self._relations = self._find_relations(numbers)
        self._has_refined_stages = False
        self._is_built = False
        computed = {value for call in calls for value in call.results}
        self.written_inputs = sorted(
            {at for call in calls if call.writes for at in call.views.values()} - computed
        )
        try:
            self._find_stages(set())
        except StayEager as reason:
            self.why_native = str(reason)

    def _find_relations(self, numbers: list[list[Any]]) -> dict[int, SizeRelation]:
        """Returns the relations of the numbers to sizes of inputs, by the ids of the numbers."""
        computed = {value for call in self._calls for value in call.results}
        inputs = [each for each in range(self._numbers.start) if each not in computed]
        found = {
            number: find_relation(given, self._examples, inputs)
            for number, given in zip(self._numbers, zip(*numbers))
        }
        return {number: relation for number, relation in found.items() if relation is not None}

    def _drop_relations(self, given: list[Any]) -> None:
        """Drops relations that do not hold in this call: the graph is built again."""
        wrong = [
            number
            for number, relation in self._relations.items()
            if not relation.holds(given[number], given)
        ]
        if wrong:
            for number in wrong:
                del self._relations[number]
            self._find_stages(set())
            self._has_refined_stages = self._is_built = False

    def _find_stages(self, non_differentiable: set[Read]) -> None:
        self.stages = [
            TraceStage(spec, self._examples, self._numbers, self._relations)
            if isinstance(spec, StageSpec)
            else spec
            for spec in partition_stages(
                self._calls, self._metas, self.requested, non_differentiable
            )
        ]

    @property
    def reports(self) -> list[Report]:
        """The partitioning reports of the stages that have been built."""
        stages = [stage for stage in self.stages if isinstance(stage, TraceStage)]
        return [stage.report for stage in stages if stage.report is not None]

    def __call__(self, given: list[Any]) -> list[Any] | int:
        """Returns the requested values.

        If the graph cannot run, returns the number of the reason for an event, before any effect.

        Args:
            given: The input values of the trace.

        Raises:
            Exception: A program cannot be built, and ``FLAGS_ngraph_strict`` is on.
        """
        if self.why_native is not None:
            return _NO_GRAPH
        trains = any(isinstance(stage, TraceStage) and stage.trains for stage in self.stages)
        if trains and not _may_train():
            return _OTHER_THREAD
        if self.written_inputs and self._has_aliased_statistics(given):
            return _SHARED_MEMORY
        values = dict(enumerate(given))
        self._drop_relations(given)
        # All programs are built before the first stage runs: after an effect, no fallback is
        # possible.
        steps = self._steps(values) if self._is_built else self._build(values)
        if isinstance(steps, int):
            return steps
        with to_static_hook.switched_on():
            for stage, program in steps:
                if isinstance(stage, TracedCall):
                    call_eagerly(stage, values)
                elif program is not None:
                    stage.run(program, values)
        return [values[value_id] for value_id in self.requested]

    def note_lines(self, lines: Mapping[int, str]) -> None:
        """Notes the lines of user code of the calls, by their first results, for reports."""
        for report in self.reports:
            for interval in report.intervals:
                if interval.graph is not None:
                    operator_lines.note_calls(interval.graph.to_string(), lines)
            for block in report.blocks:
                for op in block.native:
                    number = call_stacks.call_of(block.call_stack(op.index))
                    if number is not None:
                        operator_lines.note_native_line(op.type, lines.get(number, ""))

    def random_state(self) -> Any:
        """Returns the state of the random generators before a run, if the graph samples."""
        samples = any(call.is_stochastic for call in self._calls)
        return paddle.get_rng_state("cpu") if samples else None

    def restore_random_state(self, state: Any) -> None:
        """Undoes what a run has sampled since :meth:`random_state`."""
        if state is not None:
            set_random_states(state)

    def _has_aliased_statistics(self, given: list[Any]) -> bool:
        """Returns whether mutated statistics share memory with another input.

        A program may read that input before or after the write.
        """
        written: list[Any] = []
        others: list[Any] = []
        for value_id, tensor in enumerate(given):
            (written if value_id in self.written_inputs else others).append(tensor)
        return _core.is_memory_shared(written, others)

    def _build(
        self, values: dict[int, Any]
    ) -> list[tuple[TraceStage | TracedCall, _TraceProgram | None]] | int:
        """Builds the programs of all stages, and returns :meth:`_steps`, or a reason.

        If a signal arrives, this call runs natively, and the next one builds what is missing.
        """
        # The core defers all signals but Ctrl-C in the whole call.
        with signals.deferred_signals():
            try:
                with signals.abandonable():
                    steps = self._steps(values)
            except _RetryLater as later:
                return later.reason
            except signals.Abandoned:
                return _SIGNAL
            except StayEager as reason:
                self.why_native = str(reason)
                return _NO_GRAPH
            except Exception as error:
                # Whatever the reason why the build has failed, Paddle can run the operators.
                if flags.get("ngraph_strict"):
                    raise
                self.why_native = f"{type(error).__name__}: {error}"
                return _NO_GRAPH
            self._is_built = True
        return steps

    def _steps(
        self, values: dict[int, Any]
    ) -> list[tuple[TraceStage | TracedCall, _TraceProgram | None]]:
        """Returns the stages and calls to run, each stage with its program.

        The list is local, since other threads may refine the stages concurrently.

        Raises:
            NgraphError: No operator of any stage can be converted.
        """
        self._refine_stages()
        steps: list[tuple[TraceStage | TracedCall, _TraceProgram | None]] = []
        for stage in self.stages:
            program = stage.program_for(values) if isinstance(stage, TraceStage) else None
            if isinstance(stage, TraceStage) and program is None:
                # The engine does not run this stage, for example sizes that are computed in
                # addition to a network: its operators are called one by one.
                steps += [(call, None) for call in stage.calls]
            else:
                steps.append((stage, program))
        if all(program is None for _, program in steps):
            raise NgraphError("the engine converts none of its operators")
        # From now on, operators of stages without a program are called one by one.
        self.stages = [stage for stage, _ in steps]
        return steps

    def _refine_stages(self) -> None:
        """Partitions the trace again without gradients of non-differentiable reads.

        Needed once, if several stages train. A value that other stages read without a gradient
        (the target of ``expand_as``) gets none in the stage that computes it, either, which would
        otherwise compute zeros for all its inputs.

        Raises:
            _RetryLater: No program can be built now.
        """
        if self._has_refined_stages:
            return
        if sum(isinstance(stage, TraceStage) and stage.trains for stage in self.stages) > 1:
            with _tracing(), gradients_enabled(True):
                non_differentiable = _in_static_mode(
                    non_differentiable_reads, self._calls, self._metas
                )
            if non_differentiable:
                self._find_stages(non_differentiable)
        self._has_refined_stages = True


# The only thread that may run graphs with gradients; guarded by `_training_thread_lock`.
_training_thread: list[threading.Thread] = []
_training_thread_lock = new_lock()


def _may_train() -> bool:
    """Returns whether graphs of this thread may train: Paddle's interpreters support one thread.

    Other threads call operators one by one until that thread ends.
    """
    here = threading.current_thread()
    with _training_thread_lock:
        if not _training_thread or not _training_thread[0].is_alive():
            _training_thread[:] = [here]
        return _training_thread[0] is here


class _RetryLater(Exception):
    """Other threads were in Paddle, or the budget does not allow a build now; retry later.

    Args:
        reason: Number of the reason for the event of the call.
    """

    def __init__(self, reason: int) -> None:
        super().__init__(reason)
        self.reason = reason


def compile_budget_set(compile_budget: Callable[[int], bool]) -> AbstractContextManager[None]:
    """Returns a context manager in which this thread builds programs within a budget.

    Args:
        compile_budget: Decides whether a program of a number of operators may be built now.
    """
    return _compile_budget.overridden(compile_budget)


_may_build_in_jobs: ThreadLocal[Callable[[int], bool] | None] = ThreadLocal(None)


def building_in_jobs(may_build: Callable[[int], bool]) -> AbstractContextManager[None]:
    """Returns a context manager in which this thread builds programs in a distributed job, too.

    Args:
        may_build: As for :func:`compile_budget_set`.
    """
    return _may_build_in_jobs.overridden(may_build)


def job_budget_set(on_reject: Callable[[], None]) -> AbstractContextManager[None]:
    """Returns a context manager in which this thread builds programs as in a distributed job.

    Outside of :func:`building_in_jobs` it builds none. The first call of a trace is native, and
    later ones of a program would be captured: a job that starts again in the middle would round
    results of its first step in another way than the job that was not interrupted.

    Args:
        on_reject: Called when a program is not built for this reason.
    """

    def builds_none(operators: int) -> bool:
        on_reject()
        return False

    return compile_budget_set(_may_build_in_jobs.value or builds_none)


# The time from which on a thread may try again to exclude all others; guarded by the lock.
_exclusive_retry_at = 0.0


@contextmanager
def _exclusive_access() -> Iterator[None]:
    """Excludes other threads from Paddle.

    Raises:
        _RetryLater: Other threads are in Paddle, or were in the last attempt, less than
            ``exclusive_retry_seconds`` ago.
    """
    global _exclusive_retry_at
    if clock.now() < _exclusive_retry_at:
        raise _RetryLater(_OTHER_THREAD)
    with _core.ExclusiveSection() as is_exclusive:
        if not is_exclusive:
            _exclusive_retry_at = clock.now() + SETTINGS.exclusive_retry_seconds
            raise _RetryLater(_OTHER_THREAD)
        yield


@contextmanager
def _tracing() -> Iterator[None]:
    """Lets one thread at a time build a program, without effect on the modes of other threads.

    Raises:
        _RetryLater: Other threads are in Paddle.
    """
    with (
        _build_lock,
        _exclusive_access(),
        trace_isolation.isolated_tracing(),
        without_call_stacks(),
    ):
        yield


class _SharedProgramLayer(PartialProgramLayer):  # type: ignore[misc]
    """Runs a program on the parameters of the current call, so that several layers share it."""

    @property
    def _params(self) -> list[Any]:
        return list(_run_parameters.value)

    @_params.setter
    def _params(self, weights: Sequence[Any]) -> None:
        """Ignores the parameters that Paddle's constructor sets: each thread has its own."""


class TraceStage:
    """A stage of a trace, with the program that computes it.

    Args:
        spec: Calls, inputs and outputs of the stage.
        examples: The shapes of all values in some calls, if dimensions are dynamic.
        numbers: The ids of the numbers of an open trace.
        relations: Their relations to sizes of inputs, which the program contains.
    """

    def __init__(
        self,
        spec: StageSpec,
        examples: list[list[list[int]]],
        numbers: range,
        relations: dict[int, SizeRelation],
    ) -> None:
        self.calls, self._metas, self._examples = spec.calls, spec.metas, examples
        self._outputs = sorted(spec.outputs)
        self._differentiable_outputs = {
            v for v in spec.outputs & spec.gradient_outputs if not spec.metas[v].stop_gradient
        }
        computed = {value for call in spec.calls for value in call.results}
        self._reads = {value for call in spec.calls for value in call.reads}
        inputs = self._reads - computed
        self._relations = {
            number: relation
            for number, relation in relations.items()
            if number in inputs and relation.value in inputs
        }
        self._inputs = sorted(inputs - set(self._relations))
        self._numbers = numbers
        self.trains = bool(self._differentiable_outputs)
        self._samples = any(call.is_stochastic for call in spec.calls)
        self._fed_inputs = [
            v for v in self._inputs if self.trains or not spec.metas[v].is_parameter
        ]
        # If all inputs are parameters, feed them: otherwise the program would be constant-folded,
        # and compiled again for other parameters.
        self._fed_inputs = self._fed_inputs or self._inputs
        self._parameter_inputs = [value for value in self._inputs if value not in self._fed_inputs]
        self._differentiable_inputs = self._find_differentiable_inputs()
        self._program: _TraceProgram | None = None
        self._unfinished: Any = None  # the layer of a program whose build was abandoned
        self.report: Report | None = None

    def run(self, program: _TraceProgram, values: dict[int, Any]) -> None:
        """Runs the program of a stage, and adds the values that it computes to ``values``."""
        # Gradients are on exactly if they were on when the user's calls were captured.
        with gradients_enabled(self.trains):
            inputs = [self._input(values, value_id) for value_id in self._fed_inputs]
            if program.gradients is not None:
                random_state = paddle.get_rng_state("cpu") if self._samples else None
                results = program.gradients.run(inputs, random_state)
            else:
                with _run_parameters.overridden(self._parameters_from(values)):
                    results = program.layer.sot_call(inputs)
        values.update(zip(self._outputs, results))

    def _input(self, values: dict[int, Any], value_id: int) -> Any:
        tensor = values[value_id]
        if value_id in self._numbers:
            return operators.full([], tensor, self._metas[value_id].dtype, _CPU)
        if not self._metas[value_id].is_contiguous:
            # A copy by an operator: ``contiguous()`` would give the view itself other memory than
            # its base.
            tensor = operators.assign(tensor)
        return tensor if value_id in self._differentiable_inputs else tensor.detach()

    def _parameters_from(self, values: dict[int, Any]) -> list[Any]:
        return [values[value_id] for value_id in self._parameter_inputs]

    def program_for(self, values: dict[int, Any]) -> _TraceProgram | None:
        """Returns the program, built at the first call; ``None`` if the operators are to be called.

        Raises:
            _RetryLater: The program cannot be built now.
        """
        if self._program is None:
            compile_budget = _compile_budget.value
            if compile_budget is not None and not compile_budget(len(self.calls)):
                raise _RetryLater(_BUDGET)
            with _tracing(), gradients_enabled(self.trains):
                # Checked again under the lock, since another thread may have built the program
                # meanwhile.
                if self._program is None:
                    with _run_parameters.overridden(self._parameters_from(values)):
                        self._program = self._build()
        return self._program

    def _build(self) -> _TraceProgram | None:
        if self._unfinished is None:
            self._unfinished = _in_static_mode(self._layer)
            set_training(self._unfinished, self.trains)
        layer = self._unfinished
        report = to_static_hook.explain_programs(layer, in_sot_mode=True)
        self.report = report
        if not report.changes:
            return None
        given = [*self._fed_inputs, *self._parameter_inputs]
        to_static_hook.expect_shapes(
            layer, [[shapes[at] for at in given] for shapes in self._examples]
        )
        if not self.trains:
            return _TraceProgram(layer, None)
        is_whole = to_static_hook.training_programs(layer).is_whole
        if not is_whole and next(_training_graph_ids) > SETTINGS.max_training_graphs:
            raise NgraphError(
                f"{SETTINGS.max_training_graphs} graphs are in training, for which Paddle keeps "
                "threads: use batches of fewer shapes"
            )
        # Removes inputs to which operators of dynamic mode give no gradient, such as the target of
        # ``expand_as`` and the labels of losses.
        self._differentiable_inputs -= {
            self._fed_inputs[at] for at in gradients.inputs_without(layer)
        }
        return _TraceProgram(layer, self._gradients(layer))

    def _gradients(self, layer: Any) -> gradients.Gradients:
        positions = self._index_values()
        read = [at for at, value_id in enumerate(self._fed_inputs) if value_id in positions]
        computed = [at for at, value_id in enumerate(self._outputs) if value_id in positions]
        differentiable = [
            at
            for at, value_id in enumerate(self._fed_inputs)
            if value_id in self._differentiable_inputs
        ]
        return gradients.Gradients(
            layer, read, computed, self._written_positions(), differentiable, self._recompute
        )

    def _written_positions(self) -> list[int]:
        """Returns the indices of the inputs that a call writes, such as running statistics."""
        written = {at for call in self.calls if call.writes for at in call.views.values()}
        return [at for at, value_id in enumerate(self._fed_inputs) if value_id in written]

    def _recompute(self, inputs: Sequence[Any], random_state: Any) -> list[Any]:
        """Has Paddle compute the outputs of an earlier run of a trained stage, call by call.

        Random numbers are those of the run, and the random generators and the running statistics
        are left as they are.

        Args:
            inputs: The inputs of the run.
            random_state: The state of the random generators before the run, if it samples.
        """
        values = dict(zip(self._fed_inputs, inputs))
        for at in self._written_positions():
            values[self._fed_inputs[at]] = inputs[at].detach().clone()
        values |= {each: values[each].item() for each in self._numbers if each in values}
        for number, relation in self._relations.items():
            values[number] = relation.in_call(values[relation.value])
        differentiable = [values[value_id] for value_id in self._differentiable_inputs]
        current_state = paddle.get_rng_state("cpu")
        try:
            if random_state is not None:
                set_random_states(random_state)
            # Calls under mixed precision are not captured.
            with gradients.thawed(differentiable), paddle.amp.auto_cast(enable=False):
                for call in self.calls:
                    if call.name == "stop_gradient":  # not of the tensor itself, which users have
                        bind(call.result, values[call.reads[0]].detach(), values)
                    else:
                        call_eagerly(call, values)
        finally:
            set_random_states(current_state)
        return [values[value_id] for value_id in self._outputs]

    def _index_values(self) -> set[int]:
        """Returns the tensors in subscripts, which the gradient of ``x[at]`` reads again.

        Paddle's gradient in dynamic mode reads them, independent of the values saved by a program.
        """
        calls = [call for call in self.calls if call.name == "_getitem_dygraph"]
        return {value for call in calls for value in values_in(call.arguments[1:])}

    def _layer(self) -> Any:
        main = paddle.static.Program()
        with paddle.static.program_guard(main, paddle.static.Program()):
            values = {value_id: self._placeholder(value_id) for value_id in self._inputs}
            for number, relation in self._relations.items():
                values[number] = relation.in_program(values[relation.value])
            for call in self.calls:
                signals.safe_point()
                with operators_numbered(call.first_result):
                    self._append(call, values)
            outputs = [self._output(values[value_id], value_id) for value_id in self._outputs]
        inputs = [values[value_id] for value_id in self._fed_inputs]
        parameters = (
            list(_run_parameters.value),
            [values[value_id] for value_id in self._parameter_inputs],
        )
        return _SharedProgramLayer(main, inputs, [outputs], parameters)

    def _placeholder(self, value_id: int) -> Any:
        meta = self._metas[value_id]
        value = placeholder(value_id, meta)
        set_stop_gradient(value, value_id not in self._differentiable_inputs)
        if value_id in self._parameter_inputs:
            make_parameter(value)
        return value

    def _output(self, value: Any, value_id: int) -> Any:
        """Returns an output, detached if it gets no gradient: Paddle would propagate zeros."""
        is_unchanged = (
            value_id in self._differentiable_outputs or self._metas[value_id].stop_gradient
        )
        return value if is_unchanged else program_function("detach", is_method=True)(value)

    def _append(self, call: TracedCall, values: dict[int, Any]) -> None:
        """Adds an operator to the program that is being built.

        Raises:
            NgraphError: A result has another shape or dtype than in the trace.
        """
        bind(call.result, call.apply(program_function(call.name, call.is_method), values), values)
        for value_id in call.results:
            value, meta = values[value_id], self._metas[value_id]
            is_same = _has_shape(value, meta.shape) and _dtype_name(value.dtype) == meta.dtype
            if not is_same and (value_id in self._reads or value_id in self._outputs):
                raise NgraphError(f"{call.name} is another operator in programs")
            set_stop_gradient(value, meta.stop_gradient)

    def _find_differentiable_inputs(self) -> set[int]:
        """Returns the inputs on which differentiable outputs depend, and which so get gradients."""
        differentiable = set(self._differentiable_outputs)
        for call in reversed(self.calls):
            if not differentiable.isdisjoint(call.results):
                differentiable.update(v for v in call.reads if not self._metas[v].stop_gradient)
        return differentiable & set(self._inputs)


def _with_number(call: TracedCall, numbers: range, metas: list[TensorMeta]) -> TracedCall:
    """Returns a call as Paddle makes it: its product with a float, whose bias leaves no -0."""
    if call.name not in ("__mul__", "__rmul__"):
        return call
    factors = [value for value in values_in(call.arguments[1:]) if value in numbers]
    if not factors or metas[factors[0]].dtype != "float32":
        return call
    return TracedCall("scale", False, [*call.arguments, 0.0, True], *call[3:])


def _has_shape(value: Any, shape: list[int]) -> bool:
    """Returns whether a value of a program has this shape; dynamic dimensions (-1) match any."""
    declared = list(value.shape)
    return len(declared) == len(shape) and all(
        size in (-1, known) for size, known in zip(declared, shape)
    )


def _dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


@in_static_mode
def _in_static_mode(build: Callable[..., Any], *args: Any) -> Any:
    return build(*args)


@dataclass(frozen=True)
class _TraceProgram:
    """The program of a stage.

    Attributes:
        layer: The ``PartialProgramLayer``.
        gradients: The graph as an autograd node, if it trains.
    """

    layer: Any
    gradients: gradients.Gradients | None
