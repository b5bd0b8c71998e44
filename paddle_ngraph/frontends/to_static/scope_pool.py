"""The scopes in which Paddle runs the programs of dynamic mode, each for one run at a time.

A run that trains leaves in its scope what the backward program needs. Paddle's node of the run has
one backward pass, which empties the scope and gives it back. For another pass, what was left is
kept, and put there again.

``paddle.grad`` works on copies of all nodes, and each copy that it does not come to empties the
scope when it goes, though the node is still there. So what was left is held meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.frontends.executor.weight_writes import tensor_of
from paddle_ngraph.paddle_private.names import is_initialized, is_reusable, set_reusable
from paddle_ngraph.paddle_private.protocols import Scope, Tensor
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.thread_local import ThreadLocal

_claims_lock = new_lock()
_latest: ThreadLocal[Scope | None] = ThreadLocal(None)  # that this thread has claimed
# By the address of a scope, guarded by the lock: how often it was claimed, and who holds what is in
# it. Whoever asks for either holds the scope, so that no other one has its address.
_claim_counts: Counter[int] = Counter()
_pins: dict[int, list[PinnedState | SavedState]] = {}


def claim(find: Callable[[], Scope]) -> Scope:
    """A scope that no other run has.

    Paddle marks a scope as in use when the run is over, so that two threads could get the same.
    """
    with _claims_lock:
        scope = find()
        while owners := _pins.get(scope.raw_address()):
            for owner in owners:
                owner.is_emptied = True
            set_reusable(scope, False)
            scope = find()
        _claim(scope)
    _latest.value = scope
    return scope


def _claim(scope: Scope) -> None:
    set_reusable(scope, False)
    _claim_counts[scope.raw_address()] += 1


def _pin(scope: Scope, owner: PinnedState | SavedState) -> None:
    """From here on, no other run gets the scope, though it be given back."""
    with _claims_lock:
        _pins.setdefault(scope.raw_address(), []).append(owner)


def _unpin(scope: Scope, owner: PinnedState | SavedState) -> None:
    address = scope.raw_address()
    with _claims_lock:
        _pins[address].remove(owner)
        if not _pins[address]:
            del _pins[address]


def is_free(scope: Scope) -> bool:
    """Whether no run has it."""
    return is_reusable(scope) and scope.raw_address() not in _pins


def latest() -> Scope | None:
    """The scope that this thread has claimed last."""
    return _latest.value


class Claim:
    """The latest claim of a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._claim_count = _claim_counts[scope.raw_address()]

    def is_over(self) -> bool:
        """Whether the scope was given back, by a backward pass or when the node has gone."""
        return (
            is_reusable(self.scope) or _claim_counts[self.scope.raw_address()] != self._claim_count
        )


class PinnedState:
    """What a run has left in its scope, held while Paddle may empty that.

    Attributes:
        is_emptied: Whether somebody has found the scope empty.

    Raises:
        Exception: Something of it is no dense tensor.
    """

    def __init__(self, scope: Scope, names: Iterable[str]) -> None:
        self.is_emptied = False
        self._scope = scope
        self._snapshot = _Snapshot(scope, names)
        _pin(scope, self)

    def restore(self) -> None:
        """Puts all back, if it is gone."""
        with _claims_lock:
            if self.is_emptied or is_reusable(self._scope):
                self._snapshot.restore()
                set_reusable(self._scope, False)
                self.is_emptied = False

    def unpin(self) -> None:
        """Ends it."""
        _unpin(self._scope, self)


class SavedState:
    """What a run has left in its scope, to be put there again before another backward pass.

    What the user has is shared, so that a weight is what an optimizer has made of it, as natively.
    The rest is copied, for the backward program may write over it.

    Args:
        scope: The scope, as the run has left it.
        names: What the backward program is handed.
        user_tensors: Tensors that the user has.

    Attributes:
        latest_claim: Of the scope.
        is_emptied: Whether somebody has found it empty while it was held.

    Raises:
        Exception: Something of it is no dense tensor.
    """

    def __init__(self, scope: Scope, names: Iterable[str], user_tensors: list[Any]) -> None:
        self.latest_claim = Claim(scope)
        self.is_emptied = self._is_pinned = self._is_claimed = False
        self._snapshot = _Snapshot(scope, names, user_tensors)

    def pin(self) -> None:
        """Keeps the scope from others until it is claimed, since a backward pass gives it back."""
        if not self._is_pinned:
            self._is_pinned = True
            _pin(self.latest_claim.scope, self)

    def claim(self) -> bool:
        """Keeps the scope, which a backward pass has given back, unless another run has it.

        It was not given back where something was raised before the pass came to the run.

        Returns:
            Whether it is kept from others.
        """
        scope = self.latest_claim.scope
        with _claims_lock:
            self._is_claimed = is_reusable(scope) or not self.latest_claim.is_over()
            if self._is_claimed:
                _claim(scope)
                self.latest_claim = Claim(scope)
            if self._is_pinned:
                self._is_pinned = False
                _unpin(scope, self)
            return self._is_claimed

    def restore(self) -> None:
        """Fills the scope for a backward pass, which gives it back."""
        self._snapshot.restore()
        self._is_claimed = False

    def __del__(self) -> None:
        if self._is_claimed and not self.latest_claim.is_over():
            set_reusable(self.latest_claim.scope, True)


class _Snapshot:
    """Variables of a scope, as they are now.

    Args:
        scope: The scope.
        names: Of the variables, as far as they have memory.
        user_tensors: If given, the rest is copied, now and when it is put back.
    """

    def __init__(
        self, scope: Scope, names: Iterable[str], user_tensors: list[Any] | None = None
    ) -> None:
        self._scope = scope
        found = {name: scope.find_var(name) for name in names}
        tensors = {name: tensor_of(each) for name, each in found.items() if each is not None}
        self._names = [name for name, tensor in tensors.items() if is_initialized(tensor)]
        self._tensors = _core.SavedTensors([tensors[name] for name in self._names], user_tensors)

    def restore(self) -> None:
        """Has the variables be that again."""
        self._tensors.restore_to([self._current_tensor(name) for name in self._names])

    def _current_tensor(self, name: str) -> Tensor:
        variable = self._scope.find_var(name)
        assert variable is not None
        return tensor_of(variable)
