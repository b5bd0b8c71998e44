"""The scopes in which Paddle runs the programs of dynamic mode, each for one run at a time.

A run that trains leaves in its scope what the backward program needs. Paddle's node of the run has
one backward pass, which empties the scope and gives it back. For another pass, what was left is
kept, and put there again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import paddle

from paddle_ngraph.locks import new_lock
from paddle_ngraph.paddle_seam.names import (
    DenseTensor,
    address_of,
    copy_of,
    is_initialized,
    is_reusable,
    set_reusable,
    share_memory,
)
from paddle_ngraph.paddle_seam.protocols import Scope, Tensor

_claims = new_lock()
_here = threading.local()  # latest: the scope that this thread has claimed last


def claim(find: Callable[[], Scope]) -> Scope:
    """A scope that no other run has.

    Paddle marks a scope as in use when the run is over, so that two threads could get the same.
    """
    with _claims:
        scope = find()
        set_reusable(scope, False)
    _here.latest = scope
    return scope


def latest() -> Scope | None:
    """The scope that this thread has claimed last."""
    return getattr(_here, "latest", None)


class Leftovers:
    """What a run has left in its scope, to be put there again before another backward pass.

    What the user has is shared, so that a weight is what an optimizer has made of it, as natively.
    The rest is copied, for the backward program may write over it.

    Args:
        scope: The scope, as the run has left it.
        names: What the backward program is handed.
        tensors: What the user has of it: what was given and returned.

    Attributes:
        is_claimed: Whether the scope is kept from others.

    Raises:
        Exception: Something of it is no dense tensor.
    """

    def __init__(self, scope: Scope, names: Iterable[str], tensors: Iterable[Any]) -> None:
        self._scope = scope
        self.is_claimed = False
        of_user = {each.data_ptr() for each in tensors}
        self._shared: dict[str, Tensor] = {}
        self._copied: dict[str, Tensor] = {}
        for name in names:
            if scope.find_var(name) is None or not is_initialized(tensor := _tensor(scope, name)):
                continue
            if address_of(tensor) in of_user:
                share_memory(self._shared.setdefault(name, DenseTensor()), tensor)
            else:
                self._copied[name] = _copy(tensor)

    def claim(self) -> None:
        """Keeps the scope, which a backward pass has given back, unless another run has it."""
        with _claims:
            self.is_claimed = is_reusable(self._scope)
            set_reusable(self._scope, False)

    def put_back(self) -> None:
        """Fills the scope for a backward pass, which gives it back."""
        for name, tensor in self._shared.items():
            share_memory(_tensor(self._scope, name), tensor)
        for name, tensor in self._copied.items():
            share_memory(_tensor(self._scope, name), _copy(tensor))
        self.is_claimed = False

    def __del__(self) -> None:
        if self.is_claimed:
            set_reusable(self._scope, True)


def _tensor(scope: Scope, name: str) -> Tensor:
    variable = scope.find_var(name)
    assert variable is not None
    return variable.get_tensor()


def _copy(tensor: Tensor) -> Tensor:
    return copy_of(tensor, paddle.CPUPlace())
