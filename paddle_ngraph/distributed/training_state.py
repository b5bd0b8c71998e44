"""The state of a training that a checkpoint has: of a static program, or of dynamic layers.

A state consists of arrays by name, and of the plain data of learning rate schedules.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import paddle

from paddle_ngraph.distributed import first_run
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.protocols import Program, Scope
from paddle_ngraph.transpiler.scope_copies import variables_of

# The key of the schedule in the state of an optimizer of dynamic mode.
_SCHEDULE = "LR_Scheduler"
_SEPARATOR = "/"


class TrainingState(Protocol):
    """The state that a checkpoint saves and restores."""

    def digest(self) -> str:
        """A digest of the structure: equal on all ranks, and in each run of a script."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The values, by name. Raises NgraphError if one is missing."""

    def shapes(self) -> dict[str, list[int]]:
        """The shapes of the values that a checkpoint must have, by name."""

    def schedule(self) -> Any:
        """The state of the learning rate schedules; its values consist of dicts and numbers."""

    def restore(self, arrays: Mapping[str, np.ndarray], schedule: Any) -> None:
        """Sets values and schedules, which have been compared with this state."""


def of(state: Any, scope: Scope | None) -> TrainingState:
    """The state of a training.

    Args:
        state: A static PIR program, or a dict of dynamic layers and optimizers by any names.
        scope: The scope of the program; ``None``: the scope of ``scope_guard``.

    Raises:
        NgraphError: ``state`` is neither.
    """
    if isinstance(state, paddle.pir.Program):
        used: Any = paddle.static.global_scope() if scope is None else scope
        return _OfProgram(state, used)
    if isinstance(state, Mapping) and state and all(map(_is_dynamic, state.values())):
        return _OfLayers(state)
    raise NgraphError(
        "checkpoints are of static PIR programs, or of a dict of dynamic layers and optimizers: "
        "paddle_ngraph.distribute() converts a ProgramDesc program"
    )


def _is_dynamic(part: Any) -> bool:
    return isinstance(part, (paddle.nn.Layer, paddle.optimizer.Optimizer))


def plain(schedule: Any, name: str) -> Any:
    """A schedule as JSON has it.

    Args:
        schedule: The state.
        name: The name of its type, for the error message.

    Raises:
        NgraphError: A value is neither a number nor a text.
    """
    try:
        return json.loads(json.dumps(schedule, default=_plain_number))
    except (TypeError, ValueError) as error:
        raise NgraphError(
            f"the state of {name} cannot be saved: its state_dict() has to consist of numbers and "
            f"text ({error})"
        ) from error


def _plain_number(number: Any) -> Any:
    if isinstance(number, np.generic):
        return number.item()
    raise TypeError(f"{type(number).__name__} is neither")


class _OfProgram:
    """The variables of a static program, and its schedule."""

    def __init__(self, program: Program, scope: Scope) -> None:
        self._program = program
        self._scope = scope
        self._scheduler = getattr(program, "lr_scheduler", None)

    def digest(self) -> str:
        return first_run.digest(self._program)

    def arrays(self) -> dict[str, np.ndarray]:
        variables = variables_of(self._program, self._scope)
        return {name: np.array(variable.get_tensor()) for name, variable in variables.items()}

    def shapes(self) -> dict[str, list[int]]:
        variables = variables_of(self._program, self._scope)
        return {name: list(each.get_tensor().shape()) for name, each in variables.items()}

    def schedule(self) -> Any:
        if self._scheduler is None:
            return None
        return plain(self._scheduler.state_dict(), type(self._scheduler).__name__)

    def restore(self, arrays: Mapping[str, np.ndarray], schedule: Any) -> None:
        for name, variable in variables_of(self._program, self._scope).items():
            variable.get_tensor().set(arrays[name], paddle.CPUPlace())
        if self._scheduler is not None:
            self._scheduler.set_state_dict(schedule)


class _OfLayers:
    """The states of dynamic layers and optimizers.

    An optimizer has no values before its first step, so a checkpoint may have more values than the
    state that is restored.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        for name in parts:
            if not isinstance(name, str) or _SEPARATOR in name:
                raise NgraphError(f"{name!r} names a part of a state: give text without a slash")
        self._parts = {name: parts[name] for name in sorted(parts)}

    def digest(self) -> str:
        forms = {name: type(part).__name__ for name, part in self._parts.items()}
        text = json.dumps([forms, self.shapes()])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            f"{name}{_SEPARATOR}{key}": np.array(value)
            for name, part in self._parts.items()
            for key, value in _tensors(part).items()
        }

    def shapes(self) -> dict[str, list[int]]:
        return {
            f"{name}{_SEPARATOR}{key}": list(value.shape)
            for name, part in self._parts.items()
            if isinstance(part, paddle.nn.Layer)
            for key, value in _tensors(part).items()
        }

    def schedule(self) -> Any:
        states = {
            name: part.state_dict().get(_SCHEDULE)
            for name, part in self._parts.items()
            if isinstance(part, paddle.optimizer.Optimizer)
        }
        return plain(states, "the optimizer's schedule")

    def restore(self, arrays: Mapping[str, np.ndarray], schedule: Any) -> None:
        for name, part in self._parts.items():
            prefix = f"{name}{_SEPARATOR}"
            state: dict[str, Any] = {
                key[len(prefix) :]: paddle.to_tensor(value)
                for key, value in arrays.items()
                if key.startswith(prefix)
            }
            if schedule.get(name) is not None:
                state[_SCHEDULE] = schedule[name]
            part.set_state_dict(state)


def _tensors(part: Any) -> dict[str, Any]:
    """The tensors of the state of a layer or optimizer.

    Raises:
        NgraphError: The state has something else, such as float32 copies of parameters.
    """
    state = {key: value for key, value in part.state_dict().items() if key != _SCHEDULE}
    for key, value in state.items():
        if not isinstance(value, paddle.Tensor):
            raise NgraphError(
                f"the state of {type(part).__name__} cannot be saved: {key!r} is no tensor"
            )
    return state
