"""Who can write a variable is known, for functions keep weights as constants.

A variable of a scope is written by a program that runs, or through the object that Python has of
its tensor. So two kinds of functions of Paddle's core are watched (core/paddle/exposure.h says what
follows):

- those that *hand out* the tensor of a variable. It counts as exposed while the object lives;
  views, eager tensors and capsules made of it share its memory, which shows without their help;
- those that *run* something on a scope. What may write variables says so.

All else works on tensors that were handed out, or gives a variable other memory, which is noticed.
``tests/test_written_weights.py`` sorts everything that Paddle's core offers, so that a release
which offers more fails there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from operator import attrgetter
from typing import Any

from paddle.base import core, libpaddle

from paddle_ngraph import _core

# Functions by class of Paddle's core, those of the module under "".
# What returns the tensor of a variable, or tensors that may share its memory:
HANDING_OUT = {
    "": ("get_fetch_variable", "get_variable_tensor"),
    "pir.Program": ("_state_dict",),
    "DenseTensorArray": ("__getitem__", "_move_to_list"),
    "DistTensor": ("get_tensor",),
    "FetchList": ("_move_to_list",),
    "FetchUnmergedList": ("_move_to_list",),
    "SelectedRows": ("get_tensor",),
    "Variable": ("get_tensor",),
}
# What returns the bare address of memory:
GIVING_ADDRESSES = {"DenseTensor": ("_mutable_data", "_ptr"), "eager.Tensor": ("data_ptr",)}
# What remembers the address of the memory of a tensor that it is given, without holding it:
KEEPING_ADDRESSES = {
    "PaddleInferTensor": ("_share_external_data_bind", "_share_external_data_paddle_tensor_bind")
}
# What runs on a scope, or writes variables of one otherwise:
RUNNING = {
    "": ("_create_loaded_parameter", "set_variable"),
    "pir": ("create_loaded_parameter",),
    "pir.PassManager": ("run",),
    "pir.Program": ("set_state_dict",),
    "AnalysisPredictor": ("init", "run", "zero_copy_run"),
    "Executor": ("create_variables", "init_for_dataset", "run", "run_prepared_ctx"),
    "Fleet": (
        "init_model",
        "load_from_paddle_model",
        "pull_dense",
        "push_dense",
        "shrink_dense_table",
    ),
    "NativePaddlePredictor": ("init", "run", "zero_copy_run"),
    "Operator": ("run",),
    "Pass": ("apply",),
    "StandaloneExecutor": ("run", "run_profile"),
}
# Trainers write in threads of their own, from the first function until one of the others:
STARTING = {"Executor": ("run_from_dataset",)}
ENDING = {"Executor": ("release_trainer",), "TrainerBase": ("finalize",)}

_thread = threading.local()


@cache
def install() -> None:
    """Watches Paddle's core from now on, and the tensors that it handed out before."""
    for table, watched in (
        (HANDING_OUT, _handing_out),
        (GIVING_ADDRESSES, _giving_address),
        (KEEPING_ADDRESSES, _keeping_address),
        (RUNNING, _running),
        (STARTING, _starting),
        (ENDING, _ending),
    ):
        for path, names in table.items():
            owner = attrgetter(path)(libpaddle) if path else libpaddle
            for name in names:
                _replace(owner, name, watched(getattr(owner, name)))
    for tensor in _core.living_tensors():
        _hand_out(tensor)


def _replace(owner: Any, name: str, function: Any) -> None:
    original = getattr(owner, name)
    setattr(owner, name, function)
    if getattr(core, name, None) is original:  # which has the names of libpaddle too
        setattr(core, name, function)


@contextmanager
def run_of(may_write: bool) -> Iterator[None]:
    """Says of the run inside, in this thread, whether it may write variables."""
    before = getattr(_thread, "may_write", True)
    _thread.may_write = may_write
    try:
        yield
    finally:
        _thread.may_write = before


def may_write_while_it_lives(thing: Any) -> None:
    """Says of an object that weights may be written through it, at any time."""
    run = _core.ProgramRun(True)
    run.__enter__()
    weakref.finalize(thing, run.__exit__).atexit = False


# -- hand-outs -----------------------------------------------------------------------------------


class _Object(weakref.ref[Any]):
    """Stands for the object that Python has of a tensor."""

    __slots__ = ("key", "number")
    key: int
    number: int


_living: dict[int, _Object] = {}  # by id()


def _hand_out(tensor: Any) -> None:
    key = id(tensor)
    if key in _living:  # what dies leaves before another object can have its id
        return
    found = _Object(tensor, _take_back)
    found.key, found.number = key, _core.hand_out(tensor)
    _living[key] = found


def _take_back(found: _Object) -> None:
    _living.pop(found.key, None)
    _core.take_back(found.number)


def _handing_out(original: Any) -> Any:
    @wraps(original)
    def hand_out(*args: Any, **kwargs: Any) -> Any:
        with _core.ProgramRun(False):  # no variable gets other memory meanwhile
            returned = original(*args, **kwargs)
            for tensor in _tensors_in(returned):
                _hand_out(tensor)
        return returned

    return hand_out


def _tensors_in(returned: Any) -> Iterator[Any]:
    if isinstance(returned, core.DenseTensor):
        yield returned
    elif isinstance(returned, (dict, list)):
        for each in returned.values() if isinstance(returned, dict) else returned:
            yield from _tensors_in(each)


def _giving_address(original: Any) -> Any:
    @wraps(original)
    def give_address(self: Any, *args: Any, **kwargs: Any) -> Any:
        address = original(self, *args, **kwargs)
        _expose(self)
        return address

    return give_address


def _keeping_address(original: Any) -> Any:
    @wraps(original)
    def keep_address(self: Any, tensor: Any) -> Any:
        _expose(tensor)
        return original(self, tensor)

    return keep_address


def _expose(tensor: Any) -> None:
    """Somebody knows the address of a tensor's memory."""
    dense = tensor if isinstance(tensor, core.DenseTensor) else tensor.get_tensor()
    if dense is not None:  # a sparse tensor has no address to give
        _core.give_address(dense)


# -- runs ----------------------------------------------------------------------------------------


def _running(original: Any) -> Any:
    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _core.ProgramRun(getattr(_thread, "may_write", True)):
            return original(*args, **kwargs)

    return run


_training: dict[int, Any] = {}  # by id() of the trainer: its run, and what ends it when it dies


def _starting(original: Any) -> Any:
    @wraps(original)
    def start(executor: Any, trainer: Any, *args: Any) -> Any:
        key = id(trainer)
        if key not in _training:
            run = _core.ProgramRun(True)
            run.__enter__()
            _training[key] = run, weakref.ref(trainer, lambda _: _end(key))
        return original(executor, trainer, *args)

    return start


def _ending(original: Any) -> Any:
    @wraps(original)
    def end(*args: Any) -> Any:
        try:
            return original(*args)
        finally:
            _end(id(args[-1]))  # the trainer

    return end


def _end(key: int) -> None:
    if key in _training:
        run, _ = _training.pop(key)
        run.__exit__()
