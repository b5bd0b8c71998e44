"""Pool of the scopes of dynamic mode's programs, each acquired for one run at a time.

A training run leaves in its scope the values that the backward program needs: the saved forward
state. Paddle's autograd node of the run has one backward pass, which empties the scope and releases
it. For another pass, the saved state is retained and restored to the scope.

``paddle.grad`` works on copies of all nodes. A copy that its pass does not reach empties the scope
when the copy is destroyed, although the original node still exists. So the saved state is pinned
during ``paddle.grad``.
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
_latest: ThreadLocal[Scope | None] = ThreadLocal(None)  # the scope that this thread acquired last
# By the address of a scope, guarded by the lock: the number of acquisitions, and the owners that
# pin its contents. Every user of these tables retains the scope, so that no other scope has its
# address.
_claim_counts: Counter[int] = Counter()
_pins: dict[int, list[PinnedState | SavedState]] = {}


def claim(find: Callable[[], Scope]) -> Scope:
    """Acquires a scope that no other run uses.

    Paddle marks a scope as in use only at the end of its run, so that two threads could get one
    scope.
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
    """Pins a scope: no run can acquire it until ``owner`` unpins it, even after its release."""
    with _claims_lock:
        _pins.setdefault(scope.raw_address(), []).append(owner)


def _unpin(scope: Scope, owner: PinnedState | SavedState) -> None:
    address = scope.raw_address()
    with _claims_lock:
        _pins[address].remove(owner)
        if not _pins[address]:
            del _pins[address]


def is_free(scope: Scope) -> bool:
    """Whether a run can acquire the scope: it is released and not pinned."""
    return is_reusable(scope) and scope.raw_address() not in _pins


def latest() -> Scope | None:
    """The scope that this thread has acquired most recently."""
    return _latest.value


class Claim:
    """A record that a run acquired a scope; over once the scope is released or acquired again."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._claim_count = _claim_counts[scope.raw_address()]

    def is_over(self) -> bool:
        """Whether the forward run's claim on the scope has ended.

        A backward pass, or the destruction of the autograd node, releases the scope.
        """
        return (
            is_reusable(self.scope) or _claim_counts[self.scope.raw_address()] != self._claim_count
        )


class PinnedState:
    """The saved forward state of a run, pinned while Paddle may empty the scope.

    Attributes:
        is_emptied: Whether another run found the scope released, so that it may be empty.

    Raises:
        Exception: A value of the state is no dense tensor.
    """

    def __init__(self, scope: Scope, names: Iterable[str]) -> None:
        self.is_emptied = False
        self._scope = scope
        self._snapshot = _ScopeSnapshot(scope, names)
        _pin(scope, self)

    def restore(self) -> None:
        """Restores the contents that the scope had when it was pinned, if it was emptied since."""
        with _claims_lock:
            if self.is_emptied or is_reusable(self._scope):
                self._snapshot.restore()
                set_reusable(self._scope, False)
                self.is_emptied = False

    def unpin(self) -> None:
        """Unpins the scope, so that other runs can acquire it."""
        _unpin(self._scope, self)


class SavedState:
    """The saved forward state of a run, to be restored to the scope before another backward pass.

    Tensors of the user are shared, so that a weight has the optimizer's latest value, as in Paddle.
    The others are copied, since the backward program may overwrite them.

    Args:
        scope: The scope after the run.
        names: The names of the backward program's arguments.
        user_tensors: Tensors that the user references.

    Attributes:
        latest_claim: The latest acquisition of the scope.
        is_emptied: Whether another run found the scope released while it was pinned.

    Raises:
        Exception: A value of the state is no dense tensor.
    """

    def __init__(self, scope: Scope, names: Iterable[str], user_tensors: list[Any]) -> None:
        self.latest_claim = Claim(scope)
        self.is_emptied = self._is_pinned = self._is_claimed = False
        self._snapshot = _ScopeSnapshot(scope, names, user_tensors)

    def pin(self) -> None:
        """Pins the released scope, so that no run acquires it before :meth:`claim`."""
        if not self._is_pinned:
            self._is_pinned = True
            _pin(self.latest_claim.scope, self)

    def claim(self) -> bool:
        """Acquires the scope again, which a backward pass has released, unless another run uses it.

        The scope was not released if an error was raised before the pass reached the run.

        Returns:
            Whether the scope was acquired.
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
        """Restores the saved state in the scope, for a backward pass that releases the scope."""
        self._snapshot.restore()
        self._is_claimed = False

    def __del__(self) -> None:
        if self._is_claimed and not self.latest_claim.is_over():
            set_reusable(self.latest_claim.scope, True)


class _ScopeSnapshot:
    """A snapshot of the tensors of variables of a scope, to be restored later.

    Args:
        scope: The scope.
        names: The names of the variables; those without memory are ignored.
        user_tensors: If given, all other tensors are copied, now and when they are restored.
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
        """Gives the variables of the scope the tensors of this snapshot again."""
        self._tensors.restore_to([self._current_tensor(name) for name in self._names])

    def _current_tensor(self, name: str) -> Tensor:
        variable = self._scope.find_var(name)
        assert variable is not None
        return tensor_of(variable)
