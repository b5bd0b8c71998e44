"""The to_static hook: the link between ``paddle.jit.to_static`` and the program pass.

All static programs that Paddle creates in dynamic mode (for functions and layers by AST or SOT,
``paddle.Model``, ``paddle.jit.load``) are run by a ``PartialProgramLayer``: a forward program, a
backward program, and the names of inputs, outputs and values passed between the programs. The hook
retains these, and each call uses the originals or rewritten copies, depending on the flag. A
backward pass must match its forward pass: both programs of a layer are rewritten before the first
of them runs, or neither is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any
from weakref import ref

import paddle_ngraph
from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import denylist
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.executor import interpreter, whole_program
from paddle_ngraph.frontends.to_static import scope_pool
from paddle_ngraph.frontends.to_static.program_runs import TrainingPrograms, random_program_id
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import (
    ASTStaticFunction,
    LegacyTranslatedLayer,
    PirTranslatedLayer,
    StaticFunction,
    attached_to,
    attribute_map,
    backend_of,
    clear_trace,
    clone_program,
    expected_place,
    hook_of_runs,
    is_tracing,
    is_train_mode,
    keys_of_traces,
    known_attributes_of,
    layers_in,
    layers_of,
    prepare_attributes,
    producer_of,
    set_reusable,
    set_stop_gradient,
    set_training,
    skip_frames_of,
)
from paddle_ngraph.paddle_private.protocols import (
    Operation,
    Program,
    Scope,
    StaticLayer,
    StaticPrograms,
    Value,
)
from paddle_ngraph.partitioning import blocked_layout, cost_model, packed_layers, program_pass
from paddle_ngraph.partitioning.analysis.block_view import (
    CONSTANTS,
    SHADOW_OUTPUT,
    dtype_name,
    is_engine,
    is_overwritten,
    may_share_memory,
    must_run_sequentially,
    nodes_of,
    scope_name,
)
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.thread_local import ThreadLocal

# The name of the attribute in which a layer has its ``_LayerSwitch`` objects.
_SWITCHES_ATTRIBUTE = "_ngraph_switches"

# Context of runs that write none of their input tensors, so that weights count as unchanged.
_READING = _core.ReadOnlyRun()

# The reason why the programs of a .pdmodel fall back. Paddle loads such files with
# FLAGS_enable_pir_api=0 only; else paddle.jit.load finds none.
_PROGRAM_DESC_REASON = (
    "paddle.jit.load runs a .pdmodel as a ProgramDesc program; create_predictor and "
    "paddle.static.load_inference_model run it through the engine"
)
_EMPTY_FEED, _CONFIGURATION = int(_core.Reason.EMPTY_FEED), int(_core.Reason.CONFIGURATION)
_NOT_CONVERTIBLE, _COST_RULE = int(_core.Reason.NOT_CONVERTIBLE), int(_core.Reason.COST_RULE)
_NOT_REWRITTEN, _SIGNAL = int(_core.Reason.NOT_REWRITTEN), int(_core.Reason.SIGNAL)
_rewrite_lock = new_lock()
# Whether this thread runs a function inside ``switched_on``: one that was compiled on request.
_is_switched_on = ThreadLocal(False)
# The scope of the current run of this thread; ``None`` between runs.
_acquired_scope: ThreadLocal[Scope | None] = ThreadLocal(None)
# A weak reference to the program that was traced last, by the program's hash, which in Paddle is
# its address.
_traced: dict[int, ref[Program]] = {}


def install() -> None:
    """Installs the hook; a second call changes nothing."""
    replaced.KEY_OF_TRACE.replace(_clearing_stale_trace)
    _clear_earlier_traces()
    replaced.RUN_STATIC.replace(lambda original: _releasing_scope(_with_switch(original)))
    replaced.GET_SCOPE.replace(_acquiring_scope)
    skip_frames_of((f"{Path(paddle_ngraph.__file__).parent}{os.sep}",))


def _with_switch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a layer by its strategies, in the order of frontends/dispatcher.py.

    The list is inlined: a pass over it would take 3 % of a small layer's call.
    """

    @wraps(original)
    def call_run_impl_with_hook(self: StaticLayer, inputs: Any, parameters: Any, attrs: Any) -> Any:
        if not _is_engine_requested():
            return original(self, inputs, parameters, attrs)
        attributes, *others = attrs
        switch = _switch(self, attributes)
        programs = switch.programs_for(inputs)
        if programs is None:
            start = _core.ticks()
            try:
                return original(self, inputs, parameters, attrs)
            finally:
                _core.record_event(switch.native_reason(inputs), switch.program_id, start)
        if switch.is_training:
            _note_gradients()
        with signals.deferred_signals(except_ctrl_c=True):
            if hook_of_runs(self) is None:
                try:
                    returned = programs.run_whole(inputs, parameters)
                except Exception:
                    # Paddle runs the program, whose error shows the location in the user's code.
                    returned = None
                if returned is not None:
                    return returned
            with (
                nullcontext() if programs.has_run else programs.first_run(),
                programs.ordered_run,
                programs.trace_run,
                programs.reading_run,
            ):
                return original(self, inputs, parameters, (programs.attributes, *others))

    return call_run_impl_with_hook


def _clear_earlier_traces() -> None:
    """Drops the values that traces before the first use have left, unless a trace is running."""
    keys = keys_of_traces()
    if not any(map(is_tracing, sys._current_frames().values())):
        for key in keys:
            clear_trace(key)


def _is_engine_requested() -> bool:
    return bool(flags.get("use_ngraph")) or _is_switched_on.value


def switched_on() -> AbstractContextManager[None]:
    """Runs this thread's programs through the engine inside ``with``, regardless of the flag."""
    return _is_switched_on.overridden(True)


def _acquiring_scope(original: Callable[..., Scope]) -> Callable[..., Scope]:
    """Gives each thread that calls a layer concurrently with others a scope of its own."""

    @wraps(original)
    def get_scope(*args: Any, **kwargs: Any) -> Scope:
        if not _is_engine_requested():
            return original(*args, **kwargs)
        _acquired_scope.value = scope_pool.claim(lambda: original(*args, **kwargs))
        return _acquired_scope.value

    return get_scope


def _releasing_scope(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the scope of a failed run to the pool; Paddle returns those of other runs itself."""

    @wraps(original)
    def call_run_impl_with_hook(*args: Any) -> Any:
        with _acquired_scope.overridden(None):
            try:
                return original(*args)
            except BaseException:
                if _acquired_scope.value is not None:
                    set_reusable(_acquired_scope.value, True)
                raise

    return call_run_impl_with_hook


def _clearing_stale_trace(original: Callable[[Program], int]) -> Callable[[Program], int]:
    """Clears values that the trace of a destroyed program has left in Paddle's table.

    Paddle stores the values that a trace creates for parameters under the address of its program,
    and drops them at the end of the trace, but not if the trace raised. The next program at that
    address then gets values of a destroyed program, which crashes. Since that happens in runs by
    Paddle too, the flag does not matter here.
    """

    @wraps(original)
    def program_hash(program: Program) -> int:
        key = original(program)
        last = _traced.get(key)
        if last is None or last() is not program:
            # Without an entry here, the trace is not cleared: it may be older than this hook, and
            # still be in use.
            if last is not None:
                clear_trace(key)
            # The address is the key. As long as this program lives, no other one is at the address,
            # so that no other thread changes the entry.
            _traced[key] = ref(program)
        return key

    return program_hash


def is_static(target: Any) -> bool:
    """Whether ``paddle.jit.to_static`` or ``paddle.jit.load`` created a function or layer."""
    return isinstance(getattr(target, "forward", target), StaticFunction) or isinstance(
        target, (PirTranslatedLayer, LegacyTranslatedLayer)
    )


def explain(target: Any) -> Report:
    """The report on the programs of a function or layer, in its current mode (training or not).

    Raises:
        NgraphError: There is no program yet, or the programs fall back to Paddle.
    """
    if isinstance(target, LegacyTranslatedLayer):
        raise NgraphError(f"the programs run natively: {_PROGRAM_DESC_REASON}")
    return explain_programs(_latest_layer(target))


def explain_programs(layer: StaticLayer, in_sot_mode: bool = False) -> Report:
    """The report on the programs of a ``PartialProgramLayer``.

    Raises:
        NgraphError: The programs fall back to Paddle.
    """
    attributes, *_ = prepare_attributes(layer, in_sot_mode)
    signals.safe_point()
    return _switch(layer, attributes).report()


def expect_shapes(layer: StaticLayer, calls: Sequence[Sequence[Sequence[int]]]) -> None:
    """Registers shapes of a layer's calls in evaluation, so that a function serves several shapes.

    Args:
        layer: A ``PartialProgramLayer`` that SOT created.
        calls: For some calls, the shapes of the inputs, then of the parameters.
    """
    attributes, *_ = prepare_attributes(layer, True)
    programs = _switch(layer, attributes).programs_for([])
    if programs is not None and programs.whole is not None:
        for shapes in calls:
            programs.whole.expect_shapes(shapes)


def training_programs(layer: StaticLayer) -> TrainingPrograms:
    """The current programs of a ``PartialProgramLayer`` that trains, rewritten or Paddle's own."""
    attributes, graph_options = prepare_attributes(layer, True)
    return _switch(layer, attributes).training_programs(graph_options)


def _latest_layer(target: Any) -> StaticLayer:
    """The ``PartialProgramLayer`` that the last call of a function or layer ran."""
    if isinstance(target, PirTranslatedLayer):
        layers = list(layers_of(target).values())
        is_training = target.training
    else:
        function = getattr(target, "forward", target)
        if not isinstance(function, ASTStaticFunction):
            raise NgraphError(
                "the graphs of SOT are not accessible: explain a layer of "
                "to_static with full_graph=True"
            )
        is_training = is_train_mode(function)
        programs = reversed(list(layers_in(function.program_cache).items()))
        layers = [layer for key, (_, layer) in programs if layer.training == is_training]
    if not layers:
        raise NgraphError("there is no program for it yet: call it once")
    set_training(layers[0], is_training)
    return layers[0]


def _switch(layer: StaticLayer, attributes: Any) -> _LayerSwitch:
    """The switch of a layer for ``attributes``, created at its first use."""
    switches: dict[int, _LayerSwitch] = attached_to(layer, _SWITCHES_ATTRIBUTE, dict)
    found = switches.get(id(attributes))
    if found is None or found.layer_attributes is not attributes:
        known = known_attributes_of(layer).items()
        _, is_training, in_sot_mode = next(key for key, value in known if value is attributes)
        with signals.deferred_signals():
            created = _LayerSwitch(layer, attributes, is_training, in_sot_mode)
        found = switches[id(attributes)] = created
    return found


# Whether a program of gradients has been created since the last backward pass, and whether layers
# of to_static have run such programs in the process.
_has_new_gradients = False
_has_gradients = False


def _note_new_gradients() -> None:
    global _has_new_gradients
    _has_new_gradients = True


def _note_gradients() -> None:
    global _has_gradients
    _has_gradients = True


def has_gradients() -> bool:
    """Whether a backward pass may reach programs of layers of to_static in the engine."""
    return _has_gradients


def first_backward_pass() -> AbstractContextManager[None]:
    """Context of a backward pass, which may build functions of new programs in other threads."""
    global _has_new_gradients
    is_first, _has_new_gradients = _has_new_gradients, False
    return signals.seen_by_other_threads() if is_first else nullcontext()


class _LayerSwitch:
    """Chooses the programs for each call of a layer: Paddle's or rewritten ones.

    Args:
        layer: The ``PartialProgramLayer``.
        attributes: Paddle's attributes of its runs; retained, so that their ``id`` is not reused.
        is_training: Whether its programs are those with a gradient.
        in_sot_mode: Whether SOT created it.

    Attributes:
        is_training: The argument.
        program_id: Id of the programs in events.
    """

    def __init__(
        self, layer: StaticLayer, attributes: Any, is_training: bool, in_sot_mode: bool
    ) -> None:
        self.layer_attributes = attributes
        self.is_training = is_training
        self._source = _LayerPrograms(
            layer.train_program if is_training else layer.infer_program, is_training, in_sot_mode
        )
        self.program_id = _core.next_program_id()
        self._fallback_reason = _fallback_reason(layer)
        # The reason of the events of runs while there are no rewritten programs.
        self._native_reason = _CONFIGURATION
        self._dynamic_axes = self._source.dynamic_axes()
        # The largest size of a dynamic dimension for which the programs were rewritten; 0: any.
        self._rewritten_size = 0
        self._is_rewritten = self._fallback_reason is not None
        self._programs: _Programs | None = None
        self._native_programs: TrainingPrograms | None = None
        self._report: Report | None = None

    def programs_for(self, inputs: Sequence[Any]) -> _Programs | None:
        """The rewritten programs for a call with these inputs; ``None``: run Paddle's programs."""
        sizes = self._dynamic_sizes(inputs)
        if 0 in sizes:
            return None  # empty inputs: Paddle's kernels have rules for them
        if self._needs_rewrite(sizes):
            with signals.deferred_signals(), _rewrite_lock:
                try:
                    with signals.abandonable():
                        if self._needs_rewrite(sizes):
                            self._rewrite_for(sizes)
                except signals.Abandoned:
                    self._native_reason = _SIGNAL
                    return None
        return self._programs

    def native_reason(self, inputs: Sequence[Any]) -> int:
        """The reason, for an event, why there are no rewritten programs for these inputs."""
        return _EMPTY_FEED if 0 in self._dynamic_sizes(inputs) else self._native_reason

    def training_programs(self, graph_options: Any) -> TrainingPrograms:
        """The programs, rewritten or Paddle's own, as functions of tensors.

        Args:
            graph_options: Paddle's options for CUDA graphs.
        """
        programs = self.programs_for([])
        if programs is not None:
            if programs.training_programs is None:
                programs.training_programs = programs.make_training_programs(graph_options)
            return programs.training_programs
        if self._native_programs is None:
            source = self._source.programs
            self._native_programs = TrainingPrograms(
                source.forward_program,
                source.backward_program,
                source.program_attr,
                graph_options,
                forward_contexts=[_RecordedRun(self)],
            )
        return self._native_programs

    def report(self) -> Report:
        """The report of the program pass on the forward and the backward program."""
        if not self._is_rewritten:
            with signals.deferred_signals(), _rewrite_lock:
                self._rewrite_for([])
        if self._report is None:
            raise NgraphError(f"the programs run natively: {self._fallback_reason}")
        return replace(self._report, program=self.program_id)

    def _needs_rewrite(self, sizes: Sequence[int]) -> bool:
        if not self._is_rewritten:
            return True
        if self._programs is not None and self._programs.denials.has_new_denials():
            return True
        return (
            self._rewritten_size > 0
            and _largest(sizes) >= SETTINGS.rewrite_growth_factor * self._rewritten_size
        )

    def _dynamic_sizes(self, inputs: Sequence[Any]) -> list[int]:
        """The sizes that the inputs of a call have along the dynamic dimensions of the program."""
        axes = ((index, axis) for index, axis in self._dynamic_axes if index < len(inputs))
        dynamic = ((inputs[index].shape, axis) for index, axis in axes)
        return [shape[axis] for shape, axis in dynamic if axis < len(shape)]

    def _rewrite_for(self, sizes: Sequence[int]) -> None:
        size = _largest(sizes)
        with signals.own_errors():
            try:
                programs = self._source.rewritten(size)
            except Exception as error:
                # After any error of the pass, the layer falls back: Paddle can run its programs.
                if flags.get("ngraph_strict"):
                    raise
                self._fallback_reason = f"{type(error).__name__}: {error}"
                self._native_reason = _NOT_REWRITTEN
                programs = None
        self._report = None if programs is None else programs.report
        self._programs = programs if self._report is not None and self._report.changes else None
        is_small = self._report is not None and self._report.has_small_interval
        if self._report is not None:
            self._native_reason = _COST_RULE if is_small else _NOT_CONVERTIBLE
        self._rewritten_size = size if is_small else 0
        self._is_rewritten = True


class _RecordedRun:
    """A context manager: records an event for a run of Paddle's own programs."""

    def __init__(self, switch: _LayerSwitch) -> None:
        self._switch = switch
        self._start = ThreadLocal(0)

    def __enter__(self) -> None:
        self._start.value = _core.ticks()

    def __exit__(self, *_: object) -> None:
        switch = self._switch
        _core.record_event(switch.native_reason([]), switch.program_id, self._start.value)


def _largest(sizes: Sequence[int]) -> int:
    return max(sizes, default=SETTINGS.typical_dimension_size)


def _fallback_reason(layer: StaticLayer) -> str | None:
    """The reason why a layer always falls back to Paddle; ``None`` if it can be rewritten."""
    if not expected_place().is_cpu_place():
        return "it does not run on a CPU"
    backend = backend_of(layer)
    if backend.is_cinn() or backend.is_pcc():
        return "it is compiled by CINN"
    return None


@dataclass
class _Programs:
    """The rewritten programs of a layer, forward and backward.

    Attributes:
        attributes: The attributes of Paddle's ``run_program``: programs, names of values, program
            id.
        report: The report of the pass on both programs.
        ordered_run, trace_run, reading_run: Context managers, in which the forward program runs.
        engines: The engines of their subgraphs, retained.
        denials: Reports that a run has denylisted one of the subgraphs.
        whole: The forward program, if it is one engine operator and no backward pass follows.
        has_run: Whether Paddle has run the forward program.
        stop_gradients: ``stop_gradient`` of each result; fixed when Paddle creates the program, and
            independent of the inputs.
        make_training_programs: Creates ``training_programs``, given Paddle's options for CUDA
            graphs.
        training_programs: Both programs as functions of tensors, for captured graphs.
    """

    attributes: Any
    report: Report
    ordered_run: AbstractContextManager[Any]
    trace_run: AbstractContextManager[Any]
    reading_run: AbstractContextManager[Any]
    engines: list[_core.NgraphEngine]
    denials: denylist.DenialWatcher
    whole: whole_program.WholeLayer | None
    stop_gradients: list[bool]
    make_training_programs: Callable[[Any], TrainingPrograms]
    training_programs: TrainingPrograms | None = None
    has_run: bool = False

    @contextmanager
    def first_run(self) -> Iterator[None]:
        """Context of the first run, which builds functions, perhaps in other threads."""
        with signals.seen_by_other_threads():
            yield
        self.has_run = True

    def run_whole(self, inputs: Sequence[Any], parameters: Sequence[Any]) -> list[Any] | None:
        """Runs the forward program without Paddle, if the program is one engine operator.

        Returns:
            The results. ``None`` if Paddle has to run the program; no tensor was written then, nor
            if an exception is raised.
        """
        if self.whole is None:
            return None
        returned = self.whole.run_on([*inputs, *parameters])
        if returned is not None:
            for each, stops in zip(returned, self.stop_gradients):
                set_stop_gradient(each, stops)
        return returned


@dataclass
class _LayerPrograms:
    """The two programs of a layer, as created by Paddle.

    Attributes:
        programs: Paddle's ``RunnableProgram``.
        is_training, in_sot_mode: As Paddle passes them to ``run_program``.
    """

    programs: StaticPrograms
    is_training: bool
    in_sot_mode: bool

    def dynamic_axes(self) -> list[tuple[int, int]]:
        """(index of the input, axis) of every dynamic dimension of the program's inputs."""
        names = self.programs.program_attr["fx_names"]
        axes = cost_model.dynamic_axes([self.programs.forward_program])
        return [(names.index(name), axis) for name, axis in axes if name in names]

    def rewritten(self, open_size: int, in_blocks: bool = True) -> _Programs:
        """Copies of the forward and backward program in which engine operators replace subgraphs.

        Args:
            open_size: The size that the cost model assumes for dynamic dimensions.
            in_blocks: Whether forward values are saved for the backward program in blocked layout.
        """
        names = dict(self.programs.program_attr)
        forward = _copy(self.programs.forward_program)
        backward = _copy(self.programs.backward_program)
        signals.safe_point()
        packed = packed_layers.apply_across(forward, backward)
        gradient_types = {op.name() for op in backward.global_block().ops if _is_gradient(op)}
        saved = _SavedValues(forward, backward)
        saved.copy_constants()
        signals.safe_point()
        shapes = saved.replace_shape_only_uses(names["no_need_buffers_names"])
        if in_blocks:
            fixed_names = {*names["fo_names"], *names["no_need_buffers_names"]}
            in_blocks = blocked_layout.save_in_blocked_layout(forward, backward, fixed_names)
        signals.safe_point()
        backward_report = program_pass.apply(backward, open_size=open_size, tries=False)
        signals.safe_point()
        saved.restore_shape_only_uses(shapes)
        saved.drop_unread_outputs(keep=set(names["fo_names"]))
        may_write = any(node.may_overwrite_variables for node in nodes_of(forward))
        forward_report = program_pass.apply(
            forward,
            keep_weights=not self.is_training and not may_write,
            open_size=open_size,
            gradients=gradient_types,
            eager_weights=True,
            tries=False,
        )
        if in_blocks and blocked_layout.must_paddle_transpose(forward, backward):
            return self.rewritten(open_size, in_blocks=False)
        replacements = saved.deduplicate_outputs()
        names["fo_names"] = [replacements.get(name, name) for name in names["fo_names"]]
        saved_names = set(backward.global_block().kwargs())
        for each in ("fm_names", "bm_names"):
            names[each] = [name for name in names[each] if name in saved_names]
        shared = set(replacements.values())
        fallback_only = saved.fallback_only_names()
        names["no_need_buffers_names"] = [
            name
            for name in names["no_need_buffers_names"]
            if name not in shared and name in fallback_only
        ]
        attributes = {
            **names,
            "forward_program": forward,
            "backward_program": backward,
            "is_test": not self.is_training,
            "program_id": random_program_id(),
            "in_sot_mode": self.in_sot_mode,
        }
        if self.is_training:
            _note_new_gradients()
        forward_nodes, backward_nodes = list(nodes_of(forward)), list(nodes_of(backward))
        ordered_run = interpreter.order(
            must_run_sequentially(forward_nodes, forward_report.drawing),
            may_share_memory(forward_nodes),
        )
        trace_run = nullcontext() if forward_report.ops_native else interpreter.TRACE_RUN
        reading_run = nullcontext() if may_write else _READING
        graphs = [node.graph for node in (*forward_nodes, *backward_nodes) if node.is_engine]
        return _Programs(
            attributes=attribute_map(attributes),
            report=Report(
                [
                    replace(block, program=name)
                    for name, report in (("forward", forward_report), ("backward", backward_report))
                    for block in report.blocks
                ],
                forward_report.packed + backward_report.packed + packed,
            ),
            ordered_run=ordered_run,
            trace_run=trace_run,
            reading_run=reading_run,
            engines=[_core.NgraphEngine(graph) for graph in graphs],
            denials=denylist.DenialWatcher(graphs),
            whole=None
            if self.is_training or may_write or forward_report.drawing
            else self._whole(forward, names["fo_names"]),
            stop_gradients=[value.stop_gradient for value in names["fo_values"]],
            make_training_programs=lambda graph_options: TrainingPrograms(
                forward,
                backward,
                names,
                graph_options,
                (ordered_run, trace_run, reading_run),
                () if backward_report.ops_native else (interpreter.TRACE_RUN,),
                may_be_whole=not may_write and not forward_report.drawing,
            ),
        )

    def _whole(self, forward: Program, output_names: list[str]) -> whole_program.WholeLayer | None:
        names = self.programs.program_attr
        input_names = [*names["fx_names"], *names["fp_names"]]
        return whole_program.find_layer(forward, input_names, output_names)


class _SavedValues:
    """The values that a forward program saves for its backward program, by name.

    The forward program names a saved value by ``builtin.shadow_output``; in the backward program
    the value is a keyword argument of its block.
    """

    def __init__(self, forward: Program, backward: Program) -> None:
        self._forward = forward.global_block()
        self._backward = backward.global_block()

    def copy_constants(self) -> None:
        """Copies constants that the forward program saves for it into the backward program."""
        arguments = self._backward.kwargs()
        for op in self._outputs():
            value = arguments.get(scope_name(op))
            if value is None or value.use_empty():
                continue
            producer = _constant_source(op.operand_source(0))
            if producer is not None:
                (type,) = _core.result_types(producer)
                copy = self._prepend_constant(producer.name(), type, _core.attributes_of(producer))
                value.replace_all_uses_with(copy)

    def replace_shape_only_uses(self, names: Sequence[str]) -> dict[int, Value]:
        """Replaces saved values of which the backward program needs only the shapes by constants.

        The forward program then need not compute or save them. Only values with static shapes are
        replaced.

        Returns:
            The replaced arguments, by the id of the operator that creates the constant.
        """
        replacements = {}
        arguments = self._backward.kwargs()
        for name in names:
            value = arguments.get(name)
            if value is None or value.use_empty() or not value.is_dense_tensor_type():
                continue
            if any(size < 0 for size in value.shape) or not _is_shape_only(value):
                continue
            dtype, shape = dtype_name(value.dtype), list(value.shape)
            filled = [
                ("shape", "ints", shape),
                ("dtype", "dtype", dtype),
                ("value", "float64", 0.0),
            ]
            zeros = self._prepend_constant("pd_op.full", (dtype, shape), filled)
            value.replace_all_uses_with(zeros)
            replacements[producer_of(zeros).id()] = value
        return replacements

    def restore_shape_only_uses(self, replacements: dict[int, Value]) -> None:
        """Undoes :meth:`replace_shape_only_uses` for operators that fall back to Paddle.

        Paddle's kernels do not read the contents of these operands, so a saved value costs
        nothing.
        """
        for op in list(self._backward.ops):
            if op.name() in CONSTANTS and op.id() in replacements:
                op.result(0).replace_all_uses_with(replacements[op.id()])
                self._backward.remove_op(op)

    def drop_unread_outputs(self, keep: set[str]) -> None:
        """Stops the forward program from saving values that the backward program does not read.

        Args:
            keep: The names of the forward program's outputs.
        """
        for name, value in self._backward.kwargs().items():
            if value.use_empty():
                self._backward.erase_kwarg(name)
        read = keep | set(self._backward.kwargs())
        for op in list(self._outputs()):
            if scope_name(op) not in read:
                self._forward.remove_op(op)

    def deduplicate_outputs(self) -> dict[str, str]:
        """Removes all but one name of each saved value; Paddle would use the last name only.

        The values that operators of Paddle's write to one variable, such as the statistics of a
        batch normalization that is called twice, are distinct. Those that a subgraph writes to a
        variable are one value: the final state of the variable.

        Returns:
            For each removed name, the name to use instead.
        """
        arguments = self._backward.kwargs()
        names: dict[int, str] = {}
        replacements = {}
        # Names that are arguments of the backward program come first, and are kept: that program
        # knows no other names.
        for op in sorted(self._outputs(), key=lambda op: scope_name(op) not in arguments):
            name = scope_name(op)
            known = names.setdefault(op.operand_source(0).id, name)
            if known == name:
                continue
            replacements[name] = known
            if name in arguments:
                arguments[name].replace_all_uses_with(arguments[known])
                self._backward.erase_kwarg(name)
            self._forward.remove_op(op)
        return replacements

    def fallback_only_names(self) -> set[str]:
        """The names of the backward program's arguments that no engine operator reads."""
        arguments = self._backward.kwargs()
        return {name for name, value in arguments.items() if not _is_read_by_engine(value)}

    def _outputs(self) -> Iterator[Operation]:
        return (op for op in self._forward.ops if op.name() == SHADOW_OUTPUT)

    def _prepend_constant(self, name: str, type: Any, attributes: Sequence[Any]) -> Value:
        """Inserts a constant named ``name`` at the beginning of the backward program."""
        value: Value
        (value,) = _core.append_operator(self._backward, name, [], [type], list(attributes))
        self._backward.move_op(producer_of(value), 0)
        return value


def _copy(program: Program) -> Program:
    copied, _ = clone_program(program)
    return copied


def _is_gradient(op: Operation) -> bool:
    return op.name().rstrip("_").endswith("_grad")


def _constant_source(value: Value) -> Operation | None:
    """The operator that creates ``value`` if ``value`` is a constant, or a copy of a constant."""
    producer = value.get_defining_op()
    if producer is None or is_overwritten(value):
        return None
    if producer.name() == "pd_op.assign":
        return _constant_source(producer.operand_source(0))
    return producer if producer.name() in CONSTANTS else None


def _is_shape_only(value: Value) -> bool:
    """Whether all readers of ``value`` have converters, which need at most its shape and dtype."""
    for op in value.all_used_ops():
        entry = find_converter(op.name())
        if entry is None:
            return False
        inputs = zip(op.get_input_names(), op.operands_source())
        if any(v.is_same(value) and entry.role(name).has_contents_read for name, v in inputs):
            return False
    return True


def _is_read_by_engine(value: Value) -> bool:
    """Whether an engine operator reads a value, as a member of its operand, a list."""
    lists = [op for op in value.all_used_ops() if op.name() == "builtin.combine"]
    readers = (reader for op in lists for reader in op.result(0).all_used_ops())
    return any(is_engine(reader.name()) for reader in readers)
