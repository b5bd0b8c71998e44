"""The switch of a predictor between Paddle and the engine, at each run."""

from __future__ import annotations

from typing import Any

from paddle_ngraph import _core, flags, statistics
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.frontends.predictor.fast_path import run_engine
from paddle_ngraph.frontends.predictor.model import FILES_CHANGED_MESSAGE, Model
from paddle_ngraph.frontends.predictor.obstacles import Obstacle
from paddle_ngraph.frontends.predictor.shared_tensors import (
    contiguous,
    copy_inputs,
    copy_to_variable,
    has_lod,
    show_inputs,
    with_own_memory,
)
from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.protocols import Handle, Predictor, Tensor
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.measured_choice import MeasuredChoice, TimedCall
from paddle_ngraph.warning_codes import WarningCode, warn

_LOD_FEED, _HOOKS = int(_core.Reason.LOD_FEED), int(_core.Reason.HOOKS)
_FILES_CHANGED, _ENGINE_FAILED = map(int, (_core.Reason.FILES_CHANGED, _core.Reason.ENGINE_FAILED))

_run = replaced.RUN_PREDICTOR.original


class PredictorSwitch:
    """Runs a predictor by Paddle or the engine, depending on ``FLAGS_use_ngraph`` at each run.

    Args:
        model: The state that the predictor shares with its clones.
        is_engine: Whether the user's predictor is the engine's.
        original: The predictor of which the user's is a clone; retained, since Paddle's clones on
            oneDNN fail without it.
    """

    def __init__(self, model: Model, is_engine: bool, original: Predictor | None = None) -> None:
        self.model = model
        self.is_engine = is_engine
        self._original = original
        self.other: Predictor | None = None
        # The engine's predictor in place of the user's, if the partition of that is outdated.
        self._repartitioned: Predictor | None = None
        self._partition = 0
        self._cannot_switch = False
        self._inputs: list[Handle] | None = None  # the predictor's, from its first measured run on
        # Memory that the two predictors share, retained since a handle retains none: results and
        # inputs shown by the user's handles, and inputs of the counterpart.
        self._shared_outputs: list[Tensor] = []
        self._shown_inputs: list[Any] = []
        self._shared_inputs: list[Tensor] = []

    def run(self, predictor: Predictor, args: tuple[Any, ...], is_on: bool) -> Any:
        """Runs ``predictor`` once; ``args`` are those of its ``run``, ``is_on`` is the flag."""
        engine = self.model.wants_engine(is_on)
        if is_on and not engine and self.model.may_measure():
            choice = self._choice(predictor, args)
            if choice is not None:
                return self._run_measured(choice, predictor, args)
        return self._run_by(engine, predictor, args, is_on)

    def _choice(self, predictor: Predictor, args: tuple[Any, ...]) -> MeasuredChoice | None:
        """The choice for the inputs of a run; ``None`` if they tell no shapes, or have a LoD."""
        with signals.own_errors():
            try:
                if args:
                    return self.model.choice_for([tuple(tensor.shape) for tensor in args[0]])
                if has_lod(predictor):
                    return None
                if self._inputs is None:
                    names = predictor.get_input_names()
                    self._inputs = [predictor.get_input_handle(name) for name in names]
                return self.model.choice_for([handle.shape() for handle in self._inputs])
            except Exception:  # Paddle reports what is wrong with the inputs
                return None

    def _run_measured(
        self, choice: MeasuredChoice, predictor: Predictor, args: tuple[Any, ...]
    ) -> Any:
        """Runs by oneDNN or the engine, and times the run if the choice measures."""
        # A function that is being compiled would have Paddle's plain kernels run its subgraph.
        call = choice.next_call(lambda engine: not engine or background_compile.wait(0))
        if (call.is_challenger or self.is_engine) and not self._can_switch():
            choice.give_up()
            call = TimedCall(self.is_engine, False)
        try:
            if not call.is_timed:
                return self._run_by(call.is_challenger, predictor, args, True)
            return self._run_timed(choice, call, predictor, args)
        finally:
            # In each clone, one of which has run the call that decided.
            may_drop = self.other is not None and not (self.is_engine or call.is_challenger)
            if may_drop and not self.model.needs_engine():
                self.other = None

    def _run_timed(
        self, choice: MeasuredChoice, call: TimedCall, predictor: Predictor, args: tuple[Any, ...]
    ) -> Any:
        fallbacks, start, is_measured = statistics.native_runs(), clock.now(), False
        try:
            results = self._run_by(call.is_challenger, predictor, args, True)
            seconds = clock.now() - start
            is_measured = not call.is_challenger or statistics.native_runs() == fallbacks
            return results
        finally:
            choice.end_call(call, seconds if is_measured else None)

    def _run_by(
        self, engine: bool, predictor: Predictor, args: tuple[Any, ...], is_on: bool
    ) -> Any:
        feeds_lod = engine and not args and has_lod(predictor)
        engine = engine and not feeds_lod
        if engine != self.is_engine and not self._can_switch():
            engine = self.is_engine
        if not engine:
            reason = _LOD_FEED if feeds_lod else self._native_reason(is_on)
            return self._run_fallback(predictor, args, reason)
        with signals.own_errors():
            try:
                if self._partition != self.model.partition():
                    self._partition_again()
                return self._run(True, predictor, args)
            except Exception as error:
                if flags.get("ngraph_strict") or (self.is_engine and not self._can_switch()):
                    raise
                # For an error of the inputs, Paddle raises its own; if Paddle can run them, the
                # engine has failed.
                results = self._run_fallback(predictor, args, _ENGINE_FAILED)
                sentence = printable(f"the engine failed: {saved_model.last_line(error)}")
                self.model.obstacle = Obstacle(_ENGINE_FAILED, sentence)
                message = f"a predictor runs natively now: {self.model.why_native}"
                warn(WarningCode.PREDICTOR_FAILED, message, stacklevel=3)
                return results

    def _partition_again(self) -> None:
        """Replaces the engine's predictor: Paddle runs its subgraphs with a denied operator."""
        self._partition = self.model.partition()
        if (created := self.model.create_repartitioned()) is None:
            return
        if self.is_engine:
            self._repartitioned = created
        else:
            self.other = created

    def _native_reason(self, is_on: bool) -> int | None:
        """The reason, for an event, why the engine does not run; ``None`` if the flag is off."""
        if not is_on:
            return None
        return _FILES_CHANGED if self.model.obstacle is None else self.model.obstacle.reason

    def _run_fallback(self, predictor: Predictor, args: tuple[Any, ...], reason: int | None) -> Any:
        if reason is None:
            return self._run(False, predictor, args)
        start = _core.ticks()
        try:
            return self._run(False, predictor, args)
        finally:
            _core.record_event(reason, self.model.program_id, start)

    def fall_back_permanently(self, sentence: str, predictor: Predictor) -> Predictor:
        """Makes all later runs fall back to Paddle; returns the plain predictor."""
        plain = self.native(predictor)
        self.model.obstacle = Obstacle(_HOOKS, sentence)
        return plain

    def native(self, predictor: Predictor) -> Predictor:
        """The plain predictor.

        Raises:
            NgraphError: There is none.
        """
        if self.is_engine and not self._can_switch():
            raise NgraphError(FILES_CHANGED_MESSAGE)
        return self._counterpart if self.is_engine else predictor

    @property
    def _counterpart(self) -> Predictor:
        """The counterpart of the user's predictor: one is the engine's, the other one Paddle's."""
        assert self.other is not None
        return self.other

    def _can_switch(self) -> bool:
        if self.other is None and not self._cannot_switch:
            self.other = self.model.create_counterpart(engine=not self.is_engine)
            self._cannot_switch = self.other is None
        return not self._cannot_switch

    def _run(self, engine: bool, predictor: Predictor, args: tuple[Any, ...]) -> Any:
        run = run_engine if engine else _run
        if engine or engine != self.is_engine:
            args = tuple(map(contiguous, args))
        if engine == self.is_engine and not (engine and self._repartitioned):
            results = run(predictor, *args)
            # Copies the results if the handles may show their memory, which is released after the
            # next run.
            return list(map(with_own_memory, results)) if args and self._shared_outputs else results
        other = self._counterpart if engine != self.is_engine else self._repartitioned
        assert other is not None
        if args:
            try:
                results = run(other, *args)
            finally:
                self._shown_inputs = show_inputs(predictor, other, *args) or self._shown_inputs
        else:
            inputs = copy_inputs(predictor, other)
            if inputs is None:
                # Runs the user's predictor, which reports the error of the inputs.
                return _run(predictor)
            self._shared_inputs = inputs
            results = run(other)
        self._show_outputs(predictor, other)
        return results

    def _show_outputs(self, predictor: Predictor, other: Predictor) -> None:
        """Makes the user's handles show the results of another predictor."""
        results = predictor.get_output_names()
        # Not shared: each predictor has parameters of its own.
        parameters = self.model.parameters_among(results)
        self._shared_outputs = [
            copy_to_variable(other.get_output_handle(theirs), predictor, ours)
            for ours, theirs in zip(results, other.get_output_names())
            if ours not in parameters
        ]
