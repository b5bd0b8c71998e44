"""The predictor hook: the link between Paddle Inference and the program pass.

A predictor runs on one of two Paddle predictors: the plain one with the user's configuration, and
the engine's, which is created from a copy of that configuration. The flag at creation time selects
the predictor that is returned to the user. The other one, its counterpart, is created when the flag
is switched, and its results are shared with the user's predictor, to which the user's handles
belong. Paddle's class is patched, not replaced, so the name under which a module imported it does
not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from paddle_ngraph import _core, flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.executor import weight_writes
from paddle_ngraph.frontends.predictor import configuration
from paddle_ngraph.frontends.predictor.configuration import UNSUPPORTED_SETTERS, why_native
from paddle_ngraph.frontends.predictor.explanation import program_id_of
from paddle_ngraph.frontends.predictor.model import FILES_CHANGED_MESSAGE, Model
from paddle_ngraph.frontends.predictor.shared_tensors import recording_lod
from paddle_ngraph.frontends.predictor.switch import PredictorSwitch
from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.frontends.saved_models.saved_model import SavedModel
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import AnalysisConfig, PaddleDType
from paddle_ngraph.paddle_private.protocols import Config, Handle, Predictor
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import first_use, signals
from paddle_ngraph.utils.fork_safe_locks import new_lock

T = TypeVar("T")

_CONFIGURATION = int(_core.Reason.CONFIGURATION)

_create: Callable[[Config], Predictor] = replaced.CREATE_PREDICTOR.original
_init = replaced.INIT_PREDICTOR.original
_run = replaced.RUN_PREDICTOR.original
_clone: Callable[..., Predictor] = replaced.CLONE_PREDICTOR.original

_install_lock = new_lock()
_is_installed = False


def install() -> None:
    """Installs the hook, once; other threads wait until that is done."""
    global _is_installed
    if _is_installed:
        return
    with _install_lock:
        if not _is_installed:
            _install()
            _is_installed = True


def _install() -> None:
    weight_writes.install_for_predictors()
    replaced.CREATE_PREDICTOR.replace(lambda _: create_predictor)
    replaced.ENABLE_PASSES.replace(lambda _: configuration.recording_passes)
    replaced.SET_THREADS.replace(configuration.recording_threads)
    replaced.SET_MODEL_BUFFER.replace(configuration.recording_buffers)
    replaced.MODEL_FROM_MEMORY.replace(configuration.model_from_memory)
    for target in replaced.CONFIG_SETTERS:
        target.replace(
            partial(configuration.recording_unsupported, reason=UNSUPPORTED_SETTERS[target.name])
        )
    replaced.INIT_PREDICTOR.replace(lambda _: _init_switched)
    replaced.RUN_PREDICTOR.replace(lambda _: _run_switched)
    replaced.CLONE_PREDICTOR.replace(lambda _: _clone_switched)
    for target in replaced.FREE_MEMORY:
        target.replace(_on_both_predictors)
    for target in replaced.HOOK_OPERATORS:
        target.replace(_on_plain_predictor)
    for target in replaced.GET_HANDLES:
        target.replace(_exposing_handles)
    replaced.SET_LOD.replace(recording_lod)
    replaced.CREATE_POOL.replace(lambda _: staticmethod(_create_pool))


def install_pool() -> None:
    """Patches the copying of results, which with the engine on uses pooled memory."""
    replaced.COPY_RESULT.replace(_copying_to_pool)


def _uninterrupted(function: Callable[..., T]) -> Callable[..., T]:
    """Has no handler of a signal but Ctrl-C run while Paddle creates or runs a predictor.

    Paddle's predictors run, and are created, one at a time.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        with signals.deferred_signals(except_ctrl_c=True):
            return function(*args, **kwargs)

    return call


_switches: WeakKeyDictionary[Predictor, PredictorSwitch] = WeakKeyDictionary()
# Predictors whose configuration the engine does not support, with their ids in events.
_unsupported: WeakKeyDictionary[Predictor, int] = WeakKeyDictionary()


def _switched(
    predictor: Predictor, model: Model, is_engine: bool, original: Predictor | None = None
) -> Predictor:
    _switches[predictor] = PredictorSwitch(model, is_engine, original)
    return predictor


@wraps(_create)
@_uninterrupted
def create_predictor(*args: Any, **kwargs: Any) -> Predictor:
    """Creates predictors by Paddle's function, which follow the flag at each run."""
    model = _model_of(args)
    if model is None:
        unsupported = _create(*args, **kwargs)
        _record_unsupported(unsupported, args)
        return unsupported
    if model.wants_engine(_is_on()):
        predictor = model.create_engine(_create)
        if predictor is not None and model.obstacle is None:
            return _switched(predictor, model, True)
        if predictor is not None and model.may_measure():
            model.keep_spare(predictor)
    return _switched(_create(*args), model, False)


@wraps(_init)
@_uninterrupted
def _init_switched(self: Predictor, *args: Any, **kwargs: Any) -> None:
    model = _model_of(args)
    if model is None:
        _init(self, *args, **kwargs)
        _record_unsupported(self, args)
        return

    def into_self(config: Config) -> Predictor:
        _init(self, config)
        return self

    # The user's object is initialized only once: if its predictor is the engine's, and the engine
    # does not pay off, the counterpart runs instead.
    is_engine = model.wants_engine(_is_on()) and model.create_engine(into_self) is self
    if not is_engine:
        _init(self, *args)
    _switched(self, model, is_engine)


def _is_on() -> bool:
    return bool(flags.get("use_ngraph"))


def _model_of(args: tuple[Any, ...]) -> Model | None:
    """The model of a configuration that may use the engine, or ``None``."""
    if len(args) != 1 or not isinstance(args[0], AnalysisConfig):
        return None
    saved = SavedModel.of(args[0])
    # Paddle's predictor runs the engine operators of the model, whether the flag is on or off.
    if saved.has_engines:
        saved.check()
        first_use.begin()
        saved_model.use_functions_folder(saved.program, saved.parameters)
        return None
    if why_native(args[0]) is not None:
        return None
    return Model(args[0])


def _record_unsupported(predictor: Predictor, args: tuple[Any, ...]) -> None:
    """Records a predictor that Paddle runs because of its configuration, for events of its runs."""
    if len(args) == 1 and isinstance(args[0], AnalysisConfig):
        saved = SavedModel.of(args[0])
        if not saved.has_engines:
            _unsupported[predictor] = program_id_of(saved)


@wraps(_run)
@_uninterrupted
def _run_switched(self: Predictor, *args: Any, **named: Any) -> Any:
    switch = _switches.get(self)
    if switch is None or named.keys() - {"inputs"} or (args and named):
        if self in _unsupported and _is_on():
            return _run_unsupported(self, args, named)
        return _run(self, *args, **named)  # passed on unchanged: Paddle raises the error
    return switch.run(self, args or tuple(named.values()), _is_on())


def _run_unsupported(predictor: Predictor, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    start = _core.ticks()
    try:
        return _run(predictor, *args, **named)
    finally:
        _core.record_event(_CONFIGURATION, _unsupported[predictor], start)


@wraps(_clone)
@_uninterrupted
def _clone_switched(self: Predictor, *args: Any) -> Predictor:
    switch = _switches.get(self)
    if switch is None:
        clone = _clone(self, *args)
        if self in _unsupported:
            _unsupported[clone] = _unsupported[self]
        return clone
    if switch.is_engine and not switch.model.has_its_files():
        raise NgraphError(FILES_CHANGED_MESSAGE)
    clone = switch.model.clone(self, switch.is_engine, *args)
    return _switched(clone, switch.model, switch.is_engine, original=self)


def _on_both_predictors(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def act(self: Predictor, *args: Any) -> Any:
        switch = _switches.get(self)
        if switch is not None and switch.other is not None:
            original(switch.other, *args)
        return original(self, *args)

    return act


def _on_plain_predictor(original: Callable[..., Any]) -> Callable[..., Any]:
    """Registers hooks on single operators with the plain predictor, which runs from then on."""

    @wraps(original)
    def register(self: Predictor, *args: Any) -> Any:
        switch = _switches.get(self)
        if switch is not None:
            self = switch.fall_back_permanently("its operators have hooks", self)
        return original(self, *args)

    return register


_feeds_and_results: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()


def _exposing_handles(original: Callable[..., Handle]) -> Callable[..., Handle]:
    """Tracks handles that can write to parameters during their lifetime.

    These are the handles of variables other than inputs and outputs, and of outputs that are
    parameters. The two predictors have separate parameters, and so has each of Paddle's clones.
    Such a handle belongs to the plain predictor, which runs from then on. A model that was saved
    with engine operators has no plain predictor: while the handle lives, the model reads its
    weights in each run.
    """

    @wraps(original)
    def get_handle(self: Predictor, name: str) -> Handle:
        switch = _switches.get(self)
        names = _feeds_and_results.get(self)
        if names is None:
            results = self.get_output_names()
            returned = frozenset() if switch is None else switch.model.parameters_among(results)
            names = frozenset((*self.get_input_names(), *results)) - returned
            _feeds_and_results[self] = names
        if name in names:
            return original(self, name)
        handle = original(self if switch is None else switch.native(self), name)
        if switch is not None:
            switch.fall_back_permanently("a handle of one of its variables is in use", self)
        weight_writes.may_write_during_lifetime(handle)
        return handle

    return get_handle


def _copying_to_pool(original: Callable[[Handle], np.ndarray]) -> Callable[..., np.ndarray]:
    """Copies large results to the engine's pooled memory; the user owns the copy, as in Paddle."""

    @wraps(original)
    def copy_to_cpu(self: Handle) -> np.ndarray:
        if flags.get("use_ngraph"):
            size = SETTINGS.min_pooled_result_bytes // 4
            copy: np.ndarray | None = _core.copy_from_handle(self, size, PaddleDType.FLOAT32)
            if copy is not None:
                return copy
        return original(self)

    return copy_to_cpu


def _create_pool(cls: type, *args: Any, **kwargs: Any) -> PredictorPool:
    """``__new__`` of Paddle's class, which stays itself under all names that refer to it."""
    return PredictorPool(*args, **kwargs)


class PredictorPool:
    """Predictors that share parameters, in place of those of Paddle's class of this name."""

    def __init__(self, config: Config, size: int) -> None:
        if size < 1:
            raise ValueError(f"a predictor pool has at least one predictor, not {size}")
        first = create_predictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]

    def retrieve(self, index: int) -> Predictor:
        """The predictor at an index of the pool."""
        if not 0 <= index < len(self._predictors):
            raise ValueError(f"the pool has {len(self._predictors)} predictors: none is {index}")
        return self._predictors[index]
