"""Graphs of captured operators: what computes those results of a path that somebody wants.

A path (core/paddle/capture.h) is a list of calls of operators. It becomes stages, each a program
in a ``PartialProgramLayer``, which the to_static hook runs through the engine. There is one stage,
if nothing is to be differentiated. Else autograd has to find each tensor that the user has: what
depends on one of these is another stage (stages.py).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.dynamic.lazy import trace_isolation
from paddle_ngraph.frontends.dynamic.lazy.calls import (
    Call,
    Kind,
    bind,
    call_natively,
    data,
    gradients_enabled,
    values_in,
)
from paddle_ngraph.frontends.dynamic.lazy.deferral_rules import in_programs
from paddle_ngraph.frontends.dynamic.lazy.stages import (
    Native,
    Part,
    Read,
    check_open,
    reads_without_gradient,
    stages_of,
)
from paddle_ngraph.frontends.to_static import gradients, scope_pool
from paddle_ngraph.frontends.to_static import hook as to_static_hook
from paddle_ngraph.paddle_private.call_stacks import no_call_stacks
from paddle_ngraph.paddle_private.names import (
    PartialProgramLayer,
    in_static_mode,
    make_parameter,
    operators,
    set_stop_gradient,
    set_training,
)
from paddle_ngraph.paddle_private.protocols import Scope
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.utils import clock
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.thread_local import PerThread

# Whom this thread asks before it makes a graph.
_may_build: PerThread[Callable[[int], bool] | None] = PerThread(None)
_building = new_lock()
# The parameters that this thread runs a program on.
_weights: PerThread[Sequence[Any]] = PerThread(())
# Paddle keeps six threads and a megabyte of each scope that a program trains in, for good. It has
# as many as runs that wait for their backward passes (a cell that is called in a loop). Those that
# a program has beyond a few are counted for themselves, or long loops would leave none to others.
_MOST_TRAINING = 128
_MOST_OF_PROGRAM = 32
_FEW_OF_PROGRAM = 4
_MOST_OF_LOOPS = 64
_training = itertools.count(1)
_of_loops = itertools.count(1)


def make_graph(
    calls: Sequence[tuple[Any, ...]],
    kinds: Sequence[tuple[Any, ...]],
    wanted: list[int],
    examples: list[list[list[int]]],
) -> Graph | None:
    """What computes the wanted values of a path; ``None`` if its operators are to be called.

    Args:
        calls, kinds, wanted: What it is.
        examples: If sizes are open, the shapes of all values in some calls.

    Raises:
        Nothing: what cannot be built is called.
    """
    made = [Call(*call) for call in calls], [Kind(*kind) for kind in kinds]
    return Graph(*made, wanted, examples)


class Graph:
    """The graph of a path, or of all paths that differ in sizes only.

    Attributes:
        is_open: Whether there are several.
        why_native: Why its operators are called one by one instead, or ``None``.
        stages: Its programs, in their order.
    """

    def __init__(
        self,
        calls: list[Call],
        kinds: list[Kind],
        wanted: list[int],
        examples: list[list[list[int]]],
    ) -> None:
        self.wanted = wanted
        self.number_of_calls = len(calls)
        self.stages: list[Stage | Call] = []
        self.why_native: str | None = None
        self.is_open = bool(examples)
        self._calls, self._kinds, self._examples = calls, kinds, examples
        self._has_learned = False
        self._written = {at for call in calls if call.writes for at in call.views.values()}
        try:
            if self.is_open:
                check_open(calls)
            self._find_stages(set())
        except Native as reason:
            self.why_native = str(reason)

    def _find_stages(self, without: set[Read]) -> None:
        self.stages = [
            Stage(part, self._examples) if isinstance(part, Part) else part
            for part in stages_of(self._calls, self._kinds, self.wanted, without)
        ]

    @property
    def reports(self) -> list[Report]:
        """What the engine takes of each stage."""
        stages = [stage for stage in self.stages if isinstance(stage, Stage)]
        return [stage.report for stage in stages if stage.report is not None]

    def __call__(self, given: list[Any]) -> list[Any] | None:
        """The wanted values; ``None`` if nothing was done."""
        if self.why_native is not None:
            return None
        trains = any(isinstance(stage, Stage) and stage.trains for stage in self.stages)
        if trains and not _may_train():
            return None
        if self._written and self._writes_what_others_read(given):
            return None
        values = dict(enumerate(given))
        try:  # before anything is done
            steps = self._steps(values)
        except _Busy:
            return None
        except Native as reason:
            self.why_native = str(reason)
            return None
        except Exception as error:  # Paddle can run it, whatever a program stumbles over
            if flags.get("ngraph_strict"):
                raise
            self.why_native = f"{type(error).__name__}: {error}"
            return None
        if not all(program.may_run() for _, program in steps if program is not None):
            return None
        with to_static_hook.switched_on():
            for stage, program in steps:
                if isinstance(stage, Call):
                    call_natively(stage, values)
                elif program is not None:
                    stage.run(program, values)
        return [values[number] for number in self.wanted]

    def _writes_what_others_read(self, given: list[Any]) -> bool:
        """Whether statistics have the memory of another tensor: when a program reads it is open."""
        written: list[Any] = []
        others: list[Any] = []
        for number, tensor in enumerate(given):
            (written if number in self._written else others).append(tensor)
        return _core.is_memory_shared(written, others)

    def _steps(self, values: dict[int, Any]) -> list[tuple[Stage | Call, _Program | None]]:
        """What is called, and the program of each stage; other threads may find others meanwhile.

        Raises:
            NgraphError: The engine takes nothing of any.
        """
        self._learn_of_gradients()
        steps: list[tuple[Stage | Call, _Program | None]] = []
        for stage in self.stages:
            program = stage.program_for(values) if isinstance(stage, Stage) else None
            if isinstance(stage, Stage) and program is None:
                steps += [(call, None) for call in stage.calls]  # sizes, say, beside a network
            else:
                steps.append((stage, program))
        if all(program is None for _, program in steps):
            raise NgraphError("the engine takes nothing of it")
        self.stages = [stage for stage, _ in steps]  # the next time they are known
        return steps

    def _learn_of_gradients(self) -> None:
        """Finds the stages once more, if there are some that train beside each other.

        What its readers only go by gets no gradient in the stage that makes it. That one would
        make zeros for all that it was made of.

        Raises:
            _Busy: It is too soon to ask programs.
        """
        if self._has_learned:
            return
        if sum(isinstance(stage, Stage) and stage.trains for stage in self.stages) > 1:
            with _making_programs(), gradients_enabled(True):
                without = _in_static_mode(reads_without_gradient, self._calls, self._kinds)
            if without:
                self._find_stages(without)
        self._has_learned = True


# The thread whose graphs train, guarded by the lock.
_trainer: list[threading.Thread] = []
_choosing = new_lock()


def _may_train() -> bool:
    """Whether graphs of this thread may train: Paddle's interpreters stand one thread that does.

    The others call operators meanwhile, until it ends.
    """
    here = threading.current_thread()
    with _choosing:
        if not _trainer or not _trainer[0].is_alive():
            _trainer[:] = [here]
        return _trainer[0] is here


class _Busy(Exception):
    """Other threads would not leave Paddle alone, or it is too soon; some time later it may do."""


def building_if(may_build: Callable[[int], bool]) -> AbstractContextManager[None]:
    """Inside of ``with``, this thread asks before it makes a program of so many operators."""
    return _may_build.set_to(may_build)


# Between two trials to be alone: those who wait for a trial lose a twentieth of their time at most.
_PATIENCE = 1.0
_busy_until = 0.0  # guarded by the lock


@contextmanager
def _be_alone() -> Iterator[None]:
    """No other thread is in Paddle, nor enters it meanwhile.

    Raises:
        _Busy: They are in it, or were when this was tried last, a moment ago.
    """
    global _busy_until
    if clock.now() < _busy_until:
        raise _Busy
    with _core.ExclusiveSection() as is_alone:
        if not is_alone:
            _busy_until = clock.now() + _PATIENCE
            raise _Busy
        yield


@contextmanager
def _making_programs() -> Iterator[None]:
    """Of one thread at a time, which leaves the others in their modes.

    Raises:
        _Busy: Others do not leave Paddle alone.
    """
    with _building, _be_alone(), trace_isolation.making(), no_call_stacks():
        yield


class _Layer(PartialProgramLayer):  # type: ignore[misc]
    """What runs a program on whatever parameters it is given: several layers may share it."""

    @property
    def _params(self) -> list[Any]:
        return list(_weights.value)

    @_params.setter
    def _params(self, weights: Sequence[Any]) -> None:
        """Paddle sets those that it is made with, which are those of this thread."""


class Stage:
    """A program of captured operators.

    Args:
        part: What it computes.
        examples: The shapes of all values in some calls, if sizes are open.
    """

    def __init__(self, part: Part, examples: list[list[list[int]]]) -> None:
        self.calls, self._kinds, self._examples = part.calls, part.kinds, examples
        self._outputs = sorted(part.outputs)
        self._given = {v for v in part.outputs & part.given if not part.kinds[v].stop_gradient}
        made = {value for call in part.calls for value in call.results}
        self._read = {value for call in part.calls for value in call.reads}
        self._inputs = sorted(self._read - made)
        self.trains = bool(self._given)
        self._others = [v for v in self._inputs if self.trains or not part.kinds[v].is_parameter]
        # A function of parameters alone would be a constant, another one for each of them.
        self._others = self._others or self._inputs
        self._weights = [value for value in self._inputs if value not in self._others]
        self._differentiated = self._differentiated_inputs()
        self._program: _Program | None = None
        self.report: Report | None = None

    def run(self, program: _Program, values: dict[int, Any]) -> None:
        """Adds its outputs to the values."""
        with gradients_enabled(self.trains):  # as where the operators were called
            inputs = [self._input(values, number) for number in self._others]
            with _weights.set_to(self._weights_among(values)):
                results = program.layer.sot_call(inputs)
        if program.gradients is not None and (scope := scope_pool.latest()) is not None:
            program.scopes[scope.raw_address()] = scope
            program.gradients.attach(inputs, results, scope)
        values.update(zip(self._outputs, results))

    def _input(self, values: dict[int, Any], number: int) -> Any:
        tensor = values[number]
        if not self._kinds[number].is_contiguous:
            tensor = operators.assign(tensor)  # contiguous() would part the user's from its base
        return tensor if number in self._differentiated else tensor.detach()

    def _weights_among(self, values: dict[int, Any]) -> list[Any]:
        return [values[number] for number in self._weights]

    def program_for(self, values: dict[int, Any]) -> _Program | None:
        """What runs it, made with the first values that it is given; ``None``: Paddle's operators.

        Raises:
            _Busy: It is too soon to make it.
        """
        if self._program is None:
            may_build = _may_build.value
            if may_build is not None and not may_build(len(self.calls)):
                raise _Busy
            with _making_programs(), gradients_enabled(self.trains):
                if self._program is None:  # another thread may have made it meanwhile
                    with _weights.set_to(self._weights_among(values)):
                        self._program = self._build()
        return self._program

    def _build(self) -> _Program | None:
        if self.trains and next(_training) > _MOST_TRAINING:
            raise NgraphError(
                f"{_MOST_TRAINING} graphs train already or wait for backward passes, of which "
                "Paddle keeps threads: give it batches of fewer shapes, or call backward() earlier"
            )
        layer = _in_static_mode(self._layer)
        set_training(layer, self.trains)
        report = to_static_hook.explain_programs(layer, in_sot_mode=True)
        self.report = report
        if not report.changes:
            return None
        given = [*self._others, *self._weights]
        to_static_hook.expect(layer, [[shapes[at] for at in given] for shapes in self._examples])
        if not self.trains:
            return _Program(layer, None)
        # Python's operators leave these without one: what expand_as goes by, labels of losses.
        self._differentiated -= {self._others[at] for at in gradients.inputs_without(layer)}
        return _Program(layer, self._gradients(layer))

    def _gradients(self, layer: Any) -> gradients.Gradients:
        positions = self._positions_in_brackets()
        read = [at for at, number in enumerate(self._others) if number in positions]
        made = [at for at, number in enumerate(self._outputs) if number in positions]
        return gradients.Gradients(layer, read, made)

    def _positions_in_brackets(self) -> set[int]:
        """Python's gradient of ``x[at]`` reads them again, whatever a program keeps instead."""
        calls = [call for call in self.calls if call.name == "_getitem_dygraph"]
        return {value for call in calls for value in values_in(call.arguments[1:])}

    def _layer(self) -> Any:
        main = paddle.static.Program()
        with paddle.static.program_guard(main, paddle.static.Program()):
            values = {number: self._data(number) for number in self._inputs}
            for call in self.calls:
                self._append(call, values)
            outputs = [self._output(values[number], number) for number in self._outputs]
        inputs = [values[number] for number in self._others]
        parameters = list(_weights.value), [values[number] for number in self._weights]
        return _Layer(main, inputs, [outputs], parameters)

    def _data(self, number: int) -> Any:
        kind = self._kinds[number]
        value = data(number, kind)
        set_stop_gradient(value, number not in self._differentiated)
        if number in self._weights:
            make_parameter(value)
        return value

    def _output(self, value: Any, number: int) -> Any:
        """A result. Where others give it no gradient, Paddle would take zeros for one."""
        is_as_it_is = number in self._given or self._kinds[number].stop_gradient
        return value if is_as_it_is else in_programs("detach", is_method=True)(value)

    def _append(self, call: Call, values: dict[int, Any]) -> None:
        """Adds an operator to the program that is being made."""
        bind(call.result, call.apply(in_programs(call.name, call.is_method), values), values)
        for number in call.results:
            made, kind = values[number], self._kinds[number]
            is_same = _has_shape(made, kind.shape) and _dtype_name(made.dtype) == kind.dtype
            if not is_same and (number in self._read or number in self._outputs):
                raise NgraphError(f"{call.name} is another operator in programs")
            set_stop_gradient(made, kind.stop_gradient)

    def _differentiated_inputs(self) -> set[int]:
        """The inputs that have gradients: some output depends on them, and says so."""
        wanting = set(self._given)
        for call in reversed(self.calls):
            if not wanting.isdisjoint(call.results):
                wanting.update(v for v in call.reads if not self._kinds[v].stop_gradient)
        return wanting & set(self._inputs)


def _has_shape(value: Any, shape: list[int]) -> bool:
    """Whether a value of a program has this shape, as far as the program knows sizes."""
    declared = list(value.shape)
    return len(declared) == len(shape) and all(
        size in (-1, known) for size, known in zip(declared, shape)
    )


def _dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


@in_static_mode
def _in_static_mode(make: Callable[..., Any], *args: Any) -> Any:
    return make(*args)


@dataclass(frozen=True)
class _Program:
    """What runs a stage.

    Attributes:
        layer: The ``PartialProgramLayer``.
        gradients: What its backward pass has to say, if there is one.
        scopes: Those that it has trained in, by address.
    """

    layer: Any
    gradients: gradients.Gradients | None
    scopes: dict[int, Scope] = field(default_factory=dict)

    def may_run(self) -> bool:
        """Whether there is a scope for it, or may be another one."""
        if not self.scopes or any(map(scope_pool.is_free, self.scopes.values())):
            return True
        if len(self.scopes) < _FEW_OF_PROGRAM:
            return next(_training) <= _MOST_TRAINING
        return len(self.scopes) < _MOST_OF_PROGRAM and next(_of_loops) <= _MOST_OF_LOOPS
