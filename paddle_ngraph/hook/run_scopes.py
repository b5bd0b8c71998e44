"""The scopes in which Paddle runs the programs of dynamic mode, each for one run at a time.

A run that trains leaves in its scope what the backward program needs. Paddle's node of the run has
one backward pass, which empties the scope and gives it back. For another pass, what was left is
kept, and put there again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.hook.weight_writes import tensor_of
from paddle_ngraph.locks import new_lock
from paddle_ngraph.paddle_seam.names import is_initialized, is_reusable, set_reusable
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
        of_user: Tensors that the user has.

    Attributes:
        is_claimed: Whether the scope is kept from others.

    Raises:
        Exception: Something of it is no dense tensor.
    """

    def __init__(self, scope: Scope, names: Iterable[str], of_user: list[Any]) -> None:
        self._scope = scope
        self.is_claimed = False
        found = {name: scope.find_var(name) for name in names}
        tensors = {name: tensor_of(each) for name, each in found.items() if each is not None}
        self._names = [name for name, tensor in tensors.items() if is_initialized(tensor)]
        self._kept = _core.KeptTensors([tensors[name] for name in self._names], of_user)

    def claim(self) -> None:
        """Keeps the scope, which a backward pass has given back, unless another run has it."""
        with _claims:
            self.is_claimed = is_reusable(self._scope)
            set_reusable(self._scope, False)

    def put_back(self) -> None:
        """Fills the scope for a backward pass, which gives it back."""
        self._kept.put_into([self._tensor(name) for name in self._names])
        self.is_claimed = False

    def _tensor(self, name: str) -> Tensor:
        variable = self._scope.find_var(name)
        assert variable is not None
        return tensor_of(variable)

    def __del__(self) -> None:
        if self.is_claimed:
            set_reusable(self._scope, True)
