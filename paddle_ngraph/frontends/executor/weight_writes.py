"""Tracks possible writes to variables, because functions contain weights as constants.

A variable of a scope is written by a running program, or through Python's object for its tensor. So
two categories of functions of Paddle's core are patched (paddle_private/replaced.py lists them;
core/paddle/exposure.h describes the effects):

- functions that *expose* the tensor of a variable. The variable is treated as exposed while the
object lives. Views, eager tensors and capsules created from the object share its memory, which is
detected anyway;
- functions that *run* programs on a scope. Such a run is treated as a write to variables unless it
is declared as read-only (``run_of``).

Parameters of layers are eager tensors, to which operators of dynamic mode write without either.
Calls of these operators are intercepted in C (core/paddle/call_interception.h), except for a list
of operators that only read.

All other functions work on exposed tensors, or give a variable other memory, which is detected.
``tests/frontends/executor/test_weight_writes.py`` classifies all functions of Paddle's core, so
that a release with additional functions fails there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, TypeVar

from paddle_ngraph import _core
from paddle_ngraph.frontends.executor import calls_in_flight
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import DenseTensor, TrainerBase, dynamic_tracer
from paddle_ngraph.paddle_private.place import PatchTarget
from paddle_ngraph.paddle_private.protocols import Tensor, Variable
from paddle_ngraph.utils.once import once
from paddle_ngraph.utils.thread_local import ThreadLocal

_before_first_use = _core.ProgramRun(True, is_of_thread=False)
_may_write = ThreadLocal(True)
_get_tensor: Callable[[Variable], Tensor] = replaced.GET_TENSOR.original
T = TypeVar("T")


def install_at_import() -> None:
    """Patches the functions whose effects cannot be found later.

    Until the first use, weights are treated as being written: an engine operator that runs earlier,
    however that came about, has no constants.
    """
    _before_first_use.__enter__()
    _replace(
        (replaced.EXPOSE_ADDRESSES, _exposing_address),
        (replaced.SHARE_WITH_TENSOR, _sharing_with_tensor),
        (replaced.SHARE_MEMORY, _sharing_memory),
    )


def install_for_predictors() -> None:
    """Patches the methods of predictors' handles that retain addresses."""
    _replace((replaced.RETAIN_ADDRESSES, _retaining_address))


@once
def install() -> None:
    """Patches Paddle's core, and registers earlier exposures, trainers, and calls in flight."""
    _replace(
        (replaced.EXPOSE_TENSORS, _exposing_tensors),
        (replaced.RUN_PROGRAMS, _declaring_run),
        (replaced.START_TRAINER, _declaring_trainer),
        (replaced.END_TRAINER, _ending_trainer),
    )
    for tensor in _core.live_objects(DenseTensor):
        # Its variable may have been erased before the first use.
        _track_exposure(tensor, _core.record_possible_exposure)
    for trainer in _core.live_objects(TrainerBase):
        may_write_during_lifetime(trainer)
    _intercept_eager_writes()
    calls_in_flight.treat_as_writers()
    _before_first_use.__exit__(None, None, None)


def _replace(
    *patches: tuple[tuple[PatchTarget, ...], Callable[[Callable[..., Any]], Callable[..., Any]]],
) -> None:
    for targets, patch in patches:
        for target in targets:
            target.replace(patch)


def run_of(may_write: bool) -> AbstractContextManager[None]:
    """Declares whether runs inside, in this thread, may write to variables."""
    return _may_write.overridden(may_write)


def may_write_during_lifetime(target: Any) -> None:
    """Declares that weights may be written through an object, at any time until it dies."""
    key = id(target)
    if key not in _writers:
        run = _core.ProgramRun(True, is_of_thread=False)
        run.__enter__()
        # The weakref callback is a C function, as for tensors below: no signal handler interrupts
        # it.
        _writers[key] = run, weakref.ref(target, partial(_writers.pop, key))


# -- exposures -------------------------------------------------------------------------------------


def tensor_of(variable: Variable) -> Tensor:
    """The tensor of a variable without an exposure, for callers that only read it."""
    return _get_tensor(variable)


class _TensorRef(weakref.ref[Tensor]):
    """A weak reference to Python's object for a tensor, with its key and the id of its exposure."""

    __slots__ = ("key", "number")
    key: int
    number: int


_live_tensors: dict[int, _TensorRef] = {}  # the live tensor objects, by id()
_exposure_ended = _core.exposure_end_callback(_live_tensors)
# The same for objects whose memory is that of another tensor, by the ids of their exposures.
_live_sharers: dict[int, _TensorRef] = {}
_sharing_ended = _core.exposure_end_callback(_live_sharers)


def _track_exposure(
    tensor: Tensor, record: Callable[[Tensor], int] = _core.record_exposure
) -> None:
    key = id(tensor)
    # Tracked already: the entry of a dead object is removed before its id can be reused.
    if key in _live_tensors:
        return
    reference = _TensorRef(tensor, _exposure_ended)
    reference.key, reference.number = key, record(tensor)
    _live_tensors[key] = reference


def _exposing_tensors(original: Callable[..., T]) -> Callable[..., T]:
    @wraps(original)
    def exposing(*args: Any, **kwargs: Any) -> T:
        # As in a run, no variable gets other memory until the exposure is recorded.
        with _core.ProgramRun(False):
            returned = original(*args, **kwargs)
            # A tensor by itself, without a generator: this is most calls.
            is_tensor = type(returned) is DenseTensor
            tensors: Iterable[Any] = (returned,) if is_tensor else _tensors_in(returned)
            for tensor in tensors:
                _track_exposure(tensor)
        return returned

    return exposing


def _tensors_in(returned: Any) -> Iterator[Tensor]:
    if isinstance(returned, DenseTensor):
        yield returned
    elif isinstance(returned, (dict, list)):
        for each in returned.values() if isinstance(returned, dict) else returned:
            yield from _tensors_in(each)


def _exposing_address(original: Callable[..., T]) -> Callable[..., T]:
    @wraps(original)
    def exposing_address(self: Any, *args: Any, **kwargs: Any) -> T:
        address = original(self, *args, **kwargs)
        _expose_address(self)
        return address

    return exposing_address


def _sharing_with_tensor(original: Callable[..., T]) -> Callable[..., T]:
    @wraps(original)
    def sharing(self: Any, *args: Any, **kwargs: Any) -> T:
        returned = original(self, *args, **kwargs)
        # Later holders are tensors of Paddle, which are written by calls that are intercepted, or
        # through these objects.
        for tensor in _tensors_in([self, *args]):
            reference = _TensorRef(tensor, _sharing_ended)
            reference.key = reference.number = _core.record_exposure(tensor)
            _live_sharers[reference.key] = reference
        return returned

    return sharing


def _sharing_memory(original: Callable[..., T]) -> Callable[..., T]:
    @wraps(original)
    def sharing(self: Any, *args: Any, **kwargs: Any) -> T:
        for tensor in _tensors_in([self, *args]):
            _core.record_memory_escape(tensor)
        return original(self, *args, **kwargs)

    return sharing


def _retaining_address(original: Callable[..., T]) -> Callable[..., T]:
    @wraps(original)
    def retaining_address(self: Any, tensor: Any) -> T:
        _expose_address(tensor)
        return original(self, tensor)

    return retaining_address


def _expose_address(tensor: Any) -> None:
    """Records that a caller knows the address of a tensor's memory."""
    dense = tensor if isinstance(tensor, DenseTensor) else tensor.get_tensor()
    # A sparse tensor, which has no dense one, has no address to expose.
    if dense is not None:
        _core.record_address_escape(dense)


# -- eager tensors -------------------------------------------------------------------------------


def _intercept_eager_writes() -> None:
    """Intercepts calls that may write an eager tensor which is a constant of a function."""
    effects = {replaced.RUN_PROGRAM: _core.WriteEffect.PROGRAM}
    effects.update(dict.fromkeys(replaced.RUNNING_BACKWARD, _core.WriteEffect.ANY_TENSOR))
    for name, function in replaced.eager_functions():
        _core.intercept_calls(function, effects.get(name, _core.WriteEffect.ARGUMENTS))
    for name, function in replaced.functions_of_tensors():
        if name in replaced.OPTIMIZER_FUNCTIONS:
            _core.replace_optimizer_kernel(function, name, dynamic_tracer)
    for function in replaced.collective_functions():
        _core.intercept_calls(function, _core.WriteEffect.ARGUMENTS)


# -- runs ----------------------------------------------------------------------------------------


def _declaring_run(original: Callable[..., T]) -> Callable[..., T]:
    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> T:
        with _core.ProgramRun(_may_write.value):
            return original(*args, **kwargs)

    return run


# Trainers and similar objects, by id(): the run as which each is treated, which ends when its entry
# is removed, and a weak reference that removes the entry when the object dies.
_writers: dict[int, tuple[_core.ProgramRun, weakref.ref[Any]]] = {}


def _declaring_trainer(original: Callable[..., T]) -> Callable[..., T]:
    @wraps(original)
    def start(executor: Any, trainer: Any, *args: Any) -> T:
        may_write_during_lifetime(trainer)
        return original(executor, trainer, *args)

    return start


def _ending_trainer(original: Callable[..., T]) -> Callable[..., T]:
    @wraps(original)
    def end(*args: Any) -> T:
        try:
            return original(*args)
        finally:
            # The last argument of the patched functions is the trainer.
            _writers.pop(id(args[-1]), None)

    return end
