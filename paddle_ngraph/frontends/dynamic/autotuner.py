"""Autotuner of dynamic mode: times a function natively and captured, and picks the faster way.

Whatever holds a call up (tracing, builds, trials) is paid from the function's account. Decisions
are measured choices (utils/measured_choice.py) between native calls, the incumbent, and captured
calls. They are made for each bucket of sizes of the inputs in inference, where a trace has open
sizes, and for each size in training. Functions that are compiled by name begin captured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any
from weakref import ref

import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.frontends.dynamic import code_identity, input_signature, tuning_policy
from paddle_ngraph.frontends.dynamic.inner_layers import InnerLayerProfile
from paddle_ngraph.frontends.dynamic.input_signature import FlatInputs
from paddle_ngraph.frontends.dynamic.lazy.capture import TraceCache
from paddle_ngraph.frontends.dynamic.lazy.trace_graph import compile_budget_set
from paddle_ngraph.frontends.to_static import gradients
from paddle_ngraph.paddle_private.names import has_gradients
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.partitioning.choice_files import choice_file
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.lru_cache import LRUCache, cache_of_each
from paddle_ngraph.utils.measured_choice import MeasuredChoice, Record, RecordFile, TimedCall
from paddle_ngraph.warning_codes import LOGGER

_CASES = cache_of_each(
    "function of dynamic mode",
    __name__,
    "cases",
    "times of native and captured calls, and the choice",
    key="types and sizes of the inputs, and whether gradients are on",
    bound=1024,
)
_BUDGET, _SLOWER = int(_core.Reason.BUDGET), int(_core.Reason.SLOWER)
_TIMING = int(_core.Reason.TIMING)


class Account:
    """Seconds that may hold up the calls of a function: a share of its native time."""

    def __init__(self) -> None:
        self.native_seconds = 0.0
        self._spent_seconds = 0.0
        self._is_overdrawn = False

    @property
    def balance(self) -> float:
        """The seconds that are available; negative if too many were spent."""
        floor = flags.get("ngraph_tuning_ms")
        if floor < 0:
            return inf
        earned = tuning_policy.POLICY.native_share * self.native_seconds
        return floor / 1e3 + earned - self._spent_seconds

    def earn(self, native_seconds: float) -> None:
        """Adds the time of a native call."""
        self.native_seconds += native_seconds

    def spend(self, seconds: float) -> None:
        """Charges the time that a captured call took beyond a native one; a gain pays back."""
        self._spent_seconds = max(0.0, self._spent_seconds + seconds)

    def is_overdrawn(self) -> bool:
        """Whether calls have to be native, until there is enough for several captured ones."""
        needed = tuning_policy.POLICY.resume_seconds if self._is_overdrawn else 0.0
        self._is_overdrawn = self.balance < needed
        return self._is_overdrawn

    def stays_overdrawn(self, native_seconds: float) -> bool:
        """Whether calls have to be native for so many more seconds."""
        share = tuning_policy.POLICY.native_share * native_seconds
        return self._is_overdrawn and self.balance + share < tuning_policy.POLICY.resume_seconds


class _Slot:
    """The slot of the one function whose captured training calls are measured at a time.

    Autograd does not attribute backward passes to functions, so their time counts for all.

    Attributes:
        num_changes: The number of decisions so far that training calls are captured.
    """

    def __init__(self) -> None:
        self.num_changes = 0
        self._holder: ref[Tuner] | None = None
        self._calls_waited = 0

    def take(self, tuner: Tuner, has_begun: bool) -> bool:
        """Returns whether a captured call of a function may be measured now.

        Args:
            tuner: The tuner of the function.
            has_begun: Whether such calls of it are being measured already.
        """
        holder = None if self._holder is None else self._holder()
        if holder is tuner:
            if self._calls_waited > 0 and not has_begun:
                return False
        elif (
            holder is not None
            and self._calls_waited < tuning_policy.POLICY.max_calls_waited_for_layer
        ):
            self._calls_waited += 1
            return False
        self._holder, self._calls_waited = ref(tuner), 0
        return True

    def end(self, tuner: Tuner) -> None:
        """Frees the slot, if the function has it."""
        if self._holder is not None and self._holder() is tuner:
            self._holder = None


_slot = _Slot()


@dataclass(eq=False)
class _Case:
    """Calls of similar cost.

    Attributes:
        choice: The choice between native and captured calls.
        deferred_seconds: Expected time of a build that the account could not pay, or 0.
    """

    choice: MeasuredChoice
    deferred_seconds: float = 0.0


@dataclass
class _EndedCall:
    """A call that has ended, except for its backward passes.

    Attributes:
        case, call: The case of the call, and what its choice has told.
        has_gradient: Whether backward passes may follow.
        is_captured: Whether the call was captured; otherwise it was native.
        is_steady: Whether it recorded and built nothing.
        is_measure: Whether its duration may be compared: it did not raise, and the backward passes
            of its own thread have followed.
        seconds: Its duration.
    """

    case: _Case
    call: TimedCall
    has_gradient: bool
    is_captured: bool
    is_steady: bool
    is_measure: bool
    seconds: float


class _Builds:
    """Builds that a captured call in progress asks for.

    Attributes:
        has_asked: Whether it has asked for one.
    """

    def __init__(self, case: _Case, account: Account) -> None:
        self._case, self._account = case, account
        self._expected_seconds = 0.0
        self.has_asked = False
        case.deferred_seconds = 0.0

    def may_build(self, operators: int) -> bool:
        """Returns whether the account allows to build a program of this many operators now."""
        policy = tuning_policy.POLICY
        each = (
            policy.build_seconds_per_trained_operator
            if paddle.is_grad_enabled()
            else policy.build_seconds_per_operator
        )
        expected = policy.build_seconds_per_program + operators * each
        self.has_asked = True
        if self._expected_seconds + expected <= self._account.balance:
            self._expected_seconds += expected
            return True
        self._case.deferred_seconds = expected
        return False


@dataclass
class _Rest:
    """Native calls that are made without a look at their times.

    Attributes:
        case, inputs, has_gradient: What these calls have in common.
        reason: Their reason in events.
        seconds: The usual time of one.
        calls: How many were made.
    """

    case: _Case
    inputs: FlatInputs
    has_gradient: bool
    reason: int
    seconds: float
    calls: int = 0

    def has(self, inputs: Any, kwargs: Any) -> bool:
        """Whether a call is one of these."""
        return (
            self.calls < tuning_policy.POLICY.resting_calls
            and not kwargs
            and self.has_gradient == has_gradients()
            and self.inputs.equal(inputs)
        )


class Tuner:
    """Tuner of a function or layer.

    Args:
        trains: Whether calls with gradients are captured.
        name: Of a function that is compiled by name: its calls are captured until they are known to
            be slower. Otherwise they are native until they are known to be faster.
        now: The clock, in seconds.

    Attributes:
        traces: Traces of the calls.
        account: Pays for what holds calls up.
        is_given_up: Whether the layer is not tuned any more, so that its inner layers are.
    """

    def __init__(self, trains: bool, name: str | None = None) -> None:
        self._name = name
        self.traces = TraceCache(trains)
        self.account = Account()
        self.is_given_up = False
        self._why_given_up = ""
        self._is_logged = False  # that a function that is compiled by name runs natively
        self._profile = InnerLayerProfile() if trains and name is None else None
        self._cases: LRUCache[Hashable, _Case] = LRUCache(_CASES.bound)
        self._latest: tuple[_Case, bool] | None = None  # the last case, and whether captured
        self._num_changes = _slot.num_changes
        self._backward: tuple[_EndedCall, int, float] | None = None
        self._threads: set[int] = set()  # that are in a call
        self._rest: _Rest | None = None
        # The file with decisions of all processes, and those that were in it, or that this process
        # has added.
        self._file: RecordFile | None = None
        self._stored: dict[str, Record] = {}

    @property
    def why_native(self) -> str | None:
        """Reason why the last call was native, or ``None``."""
        if self.is_given_up:
            return self._why_given_up
        if self._latest is None or self._latest[1]:
            return None
        choice = self._latest[0].choice
        record = choice.record
        if record is None or record.uses_challenger:
            return (
                f"it has run for {self.account.native_seconds:.3g} s, "
                "and to compile it may take a share of that"
            )
        return _why_slower(choice, record)

    def restart(self) -> None:
        """Discards the times of measurements in progress."""
        for case in self._cases.values():
            case.choice.restart()

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any, owner: Any = None) -> Any:
        """Calls the function, natively or captured.

        A call within another one of the thread, or within a capture, is a part of that.

        Args:
            function, args, kwargs: The function, and its inputs.
            owner: The object whose method the function is.
        """
        thread = threading.get_ident()
        if thread in self._threads or _core.is_capturing():
            return function(*args, **kwargs)
        rest = self._rest
        if rest is not None:
            if self._backward is not None:
                self._end_backward()
            if rest.has((owner, *args), kwargs):
                rest.calls += 1
                return self.traces.run_natively(rest.reason, function, args, kwargs)
            self._end_rest(rest)
        self._threads.add(thread)
        try:
            return self._run_outermost(function, args, kwargs, owner)
        finally:
            self._threads.discard(thread)

    def _run_outermost(
        self, function: Callable[..., Any], args: Any, kwargs: Any, owner: Any
    ) -> Any:
        self._end_backward()
        has_gradient = paddle.is_grad_enabled()
        signature = input_signature.of((owner, args, kwargs))
        key = has_gradient, signature if has_gradient else signature.bucket
        case = self._cases.get(key)
        if case is None:
            file = self._file_of(function, args, owner)
            case = self._cases.get_or_create(key, partial(self._new_case, file, repr(key)))
        call = case.choice.next_call(partial(self._is_ready, case, has_gradient))
        is_captured = call.is_challenger and (call.is_timed or not self._must_wait(case))
        self._latest = case, is_captured
        # A decision is not to depend on the load of the machine; each call cannot afford that.
        read_clock = clock.own_time if call.is_timed else clock.now
        is_done, is_steady, start = False, True, read_clock()
        try:
            if is_captured:
                additions, builds = self.traces.num_additions, _Builds(case, self.account)
                result = self._run_captured(builds, call, function, args, kwargs)
                is_steady = additions == self.traces.num_additions and not builds.has_asked
            else:
                result = self._run_natively(case, call, signature.sizes, function, args, kwargs)
            is_done = True
            return result
        finally:
            seconds = read_clock() - start
            ended = _EndedCall(
                case, call, has_gradient, is_captured, is_done and is_steady, is_done, seconds
            )
            if has_gradient and is_done:
                self._backward = ended, threading.get_ident(), gradients.seconds()
                gradients.set_clock(read_clock)
            else:
                self._end(ended)
            if not is_captured and not call.is_timed:
                self._begin_rest(ended, (owner, *args), kwargs)

    def _begin_rest(self, ended: _EndedCall, inputs: Any, kwargs: Any) -> None:
        """Has calls like one that has ended be made without a look, if none would be captured."""
        policy, choice = tuning_policy.POLICY, ended.case.choice
        native = choice.incumbent_seconds
        if native is None or max(native, ended.seconds) >= policy.max_resting_seconds or kwargs:
            return
        calls = policy.resting_calls
        if choice.stays_incumbent(calls):
            reason = _SLOWER
        elif choice.record is not None and self.account.stays_overdrawn(calls * native):
            reason = _BUDGET
        else:
            return
        if FlatInputs.are_flat(inputs):
            self._rest = _Rest(ended.case, FlatInputs(inputs), ended.has_gradient, reason, native)

    def _end_rest(self, rest: _Rest) -> None:
        self._rest = None
        self.account.earn(rest.calls * rest.seconds)
        rest.case.choice.skip(rest.calls)

    def _file_of(self, function: Callable[..., Any], args: Any, owner: Any) -> RecordFile:
        """The file with the decisions of earlier processes."""
        if self._file is None:
            layer = args[0] if owner is None and args else owner
            file = RecordFile(None)
            with signals.own_errors(), suppress(Exception):  # of properties of the user's class
                identity = code_identity.identity_of(function, layer)
                by = "enable" if self._name is None else "name"
                file = choice_file(f"compiled by {by}\n{identity}", _native_threads())
            self._stored = file.read()
            self._file = file
        return self._file

    def _new_case(self, file: RecordFile, key: str) -> _Case:
        policy = tuning_policy.POLICY
        record, first_check = self._stored.get(key), None
        if record is None and self._name is not None:
            record, first_check = Record(True, 0.0, 0, clock.date()), policy.calls_before_check
        choice = MeasuredChoice(
            policy.choice,
            record,
            lambda found: self._note_decision(choice, found, file, key),
            first_check,
        )
        return _Case(choice)

    def _is_ready(self, case: _Case, has_gradient: bool, is_challenger: bool) -> bool:
        """Whether a call may be timed now."""
        if is_challenger and (self._must_wait(case) or not background_compile.is_idle()):
            _slot.end(self)
            return False
        if not has_gradient or not is_challenger:
            return True
        if self._num_changes != _slot.num_changes:
            # Backward passes take another time than those that were measured.
            self._num_changes = _slot.num_changes
            self.restart()
            return False
        return _slot.take(self, case.choice.is_challenged)

    def _must_wait(self, case: _Case) -> bool:
        """Whether a call of which captured ones are preferred has to be native."""
        if self.account.is_overdrawn():
            return True
        return case.deferred_seconds > 0.0 and self.account.balance < case.deferred_seconds

    def _run_captured(
        self,
        builds: _Builds,
        call: TimedCall,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
    ) -> Any:
        waits = (
            background_compile.awaiting(tuning_policy.POLICY.max_awaited_build_seconds)
            if call.is_timed
            else nullcontext()
        )
        with waits, compile_budget_set(builds.may_build):
            return self.traces.run(function, args, kwargs)

    def _run_natively(
        self,
        case: _Case,
        call: TimedCall,
        sizes: tuple[int, ...],
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
    ) -> Any:
        record, profile = case.choice.record, self._profile
        reason = _BUDGET
        if call.is_timed:
            reason = _TIMING
        elif record is not None and not record.uses_challenger:
            reason = _SLOWER
        if profile is None or record is not None or not profile.wants(sizes):
            return self.traces.run_natively(reason, function, args, kwargs)
        result = self.traces.run_natively(reason, profile.run, (sizes, function, args, kwargs), {})
        if profile.are_inner_layers_better and not self.traces.graphs():
            self._give_up("layers that it calls have fewer input signatures")
        return result

    def _give_up(self, why: str) -> None:
        self.is_given_up, self._why_given_up = True, why
        _slot.end(self)

    def _end_backward(self) -> None:
        """Ends the last call with the backward passes that have followed in its thread."""
        pending, self._backward = self._backward, None
        if pending is None:
            return
        ended, thread, before = pending
        if thread != threading.get_ident():
            ended.is_measure = False
        else:
            ended.seconds += gradients.seconds() - before
        self._end(ended)

    def _end(self, ended: _EndedCall) -> None:
        """Adds the time of a call to its choice and to the account."""
        case, call, seconds = ended.case, ended.call, ended.seconds
        choice = case.choice
        if not ended.is_captured:
            self.account.earn(seconds)
            if not call.is_challenger:
                choice.end_call(call, seconds if ended.is_measure else None)
        else:
            self._charge(choice, ended)
            is_measure = (
                ended.is_measure
                and ended.is_steady
                and (not call.is_timed or background_compile.is_idle())
            )
            choice.end_call(call, seconds if is_measure else None)
            if not ended.is_steady and not call.is_timed:
                choice.note_change()
        if not call.is_timed or choice.is_measuring or not ended.has_gradient:
            return
        if choice.record is not None and choice.record.uses_challenger:
            _slot.num_changes += 1
            self._num_changes = _slot.num_changes
        if not any(each.choice.is_challenged for each in self._cases.values()):
            _slot.end(self)

    def _charge(self, choice: MeasuredChoice, ended: _EndedCall) -> None:
        native = choice.incumbent_seconds
        if native is not None:
            self.account.spend(ended.seconds - native)
        elif not ended.is_steady:
            self.account.spend(ended.seconds)

    def _note_decision(
        self, choice: MeasuredChoice, record: Record, file: RecordFile, key: str
    ) -> None:
        # Another process decides anew what is undecided.
        if record.ratio > 0 and file.write(key, record):
            self._stored[key] = record
        if record.uses_challenger:
            return
        if self._name is None:
            if record.ratio == 0 and self._profile is None and not self.traces.graphs():
                self._give_up(_why_slower(choice, record))
        elif not self._is_logged:
            self._is_logged = True
            LOGGER.info("%s runs natively: %s", self._name, _why_slower(choice, record))


def _native_threads() -> str:
    name = "FLAGS_paddle_num_threads"
    return f"{paddle.get_flags(name)[name]} native,"


def _why_slower(choice: MeasuredChoice, record: Record) -> str:
    """The reason of a decision against captured calls."""
    native = choice.incumbent_seconds
    if record.ratio == 0:
        return "no two of its calls had the same operators"
    if native is None:
        return f"in an earlier process, compiled calls took {record.ratio:.3g} of the native time"
    compiled = record.ratio * native
    return f"a call took {compiled * 1e3:.3g} ms compiled and {native * 1e3:.3g} ms natively"
