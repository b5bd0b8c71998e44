"""Tracks variables that are recreated, since executors keep the addresses of variables.

Paddle's executors look up the variables of a scope when they are created, and so do the
replacements of these executors. Variables disappear when a user erases them or ends their scope,
and when Paddle creates an executor for a program that gives a result (``builtin.shadow_output``)
the name of an existing variable. All of these events are reported here, and each object that
retained addresses of the variables is rebuilt before its next run. Executors of a program after the
first one do not recreate its variables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import wraps
from typing import Any, Generic, TypeVar, cast
from weakref import WeakSet

from paddle_ngraph import _core
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import ProgramDesc
from paddle_ngraph.paddle_private.protocols import (
    LegacyProgramDesc,
    Operation,
    Program,
    Scope,
    Value,
)
from paddle_ngraph.partitioning.analysis.block_view import (
    LISTS,
    SCOPE_NAMES,
    SHADOW_OUTPUT,
    SOURCES,
    blocks_outermost_first,
    is_engine,
    scope_name,
)
from paddle_ngraph.utils.fork_safe_locks import new_lock

T = TypeVar("T")

_SET_PARAMETER = "builtin.set_parameter"
# Beginnings of names of variables that Paddle's executors create for their own use.
_EXECUTOR_VARIABLE_PREFIXES = ("_inner_var_", "@fetch")

_lock = new_lock()
_bindings: WeakSet[Binding] = WeakSet()


class Binding:
    """A record that an object retains the addresses of a scope's variables.

    Args:
        scope: The scope of the variables.
        names: The names of the variables.

    Attributes:
        root: The address of the outermost scope around ``scope``.
        names: The names of the variables.
        is_broken: Whether one of the variables has disappeared since.
    """

    __slots__ = ("__weakref__", "_scope", "is_broken", "names", "root")

    def __init__(self, scope: Scope, names: frozenset[str]) -> None:
        self._scope = scope
        self.root = _root(scope)
        self.names = names
        self.is_broken = False
        with _lock:
            _bindings.add(self)

    def report_erased(self, programs: Iterable[Program]) -> None:
        """Marks the bindings of other objects to variables that ``programs`` erase as broken.

        Args:
            programs: The PIR programs of an executor, which erases variables of the scope.
        """
        for program in programs:
            erased = {name for name in _erased(program) if self._scope.find_var(name) is not None}
            if erased:
                _report_disappearing(self.root, erased, by=self)


class ScopeBound(Generic[T]):
    """Holds an object that retains addresses of variables, and rebuilds it when these change.

    Args:
        scope: The scope of the variables.
        names: Returns the names of the variables.
        make: Creates the object.
    """

    def __init__(
        self,
        scope: Scope,
        names: Callable[[], frozenset[str]],
        create: Callable[[Binding], T],
    ) -> None:
        self._scope = scope
        self._names = names
        self._create = create
        self._current: tuple[Binding, T] | None = None

    def get(self) -> T:
        current = self._current
        if current is None or current[0].is_broken:
            # The old object is released before the new one is created.
            self._current = None
            binding = Binding(self._scope, self._names())
            self._current = current = binding, self._create(binding)
        return current[1]


def install() -> None:
    """Patches Paddle's functions that erase variables or scopes, so that bindings are broken."""
    for target in replaced.ERASE_VARIABLES:
        target.replace(_reporting)


def count() -> int:
    """The number of objects that currently retain addresses of variables."""
    with _lock:
        return len(_bindings)


def _reporting(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def end(self: Scope, *args: Any) -> None:
        _report_disappearing(_root(self), args[0] if args else None)
        original(self, *args)

    return end


def _report_disappearing(
    root: int, names: Collection[str] | None, by: Binding | None = None
) -> None:
    """Breaks the bindings to variables that are about to disappear.

    Args:
        root: The address of the outermost scope of the variables.
        names: The names of the variables; ``None``: all.
        by: A binding that stays.
    """
    if names is None or any(own in name for name in names for own in _EXECUTOR_VARIABLE_PREFIXES):
        names = None
    with _lock:
        for binding in _bindings:
            if binding.root == root and binding is not by:
                binding.is_broken |= names is None or not binding.names.isdisjoint(names)


def _root(scope: Scope) -> int:
    return _core.root_scope(scope.raw_address())


def names_in(programs: Iterable[Program | LegacyProgramDesc]) -> frozenset[str]:
    """The names of the scope variables that programs (PIR or ProgramDesc) use."""
    return frozenset(name for program in programs for name in _names_in(program))


def _names_in(program: Program | LegacyProgramDesc) -> Iterator[str]:
    if isinstance(program, ProgramDesc):
        description: LegacyProgramDesc = program
        blocks = (description.block(i) for i in range(description.num_blocks()))
        return (variable.name() for block in blocks for variable in block.all_vars())
    operators = (
        op for block in blocks_outermost_first(cast("Program", program)) for op in block.ops
    )
    return (scope_name(op) for op in operators if op.name() in SCOPE_NAMES)


def _erased(program: Program) -> set[str]:
    """The variables that Paddle erases, if they exist, to create an executor for the program."""
    named = {scope_name(op) for op in _outputs(program)}
    operators = program.global_block().ops
    return named - {scope_name(op) for op in operators if op.name() in SOURCES & SCOPE_NAMES.keys()}


def keep_variables(program: Program) -> None:
    """Makes a PIR program write to existing variables that Paddle would otherwise erase."""
    for op in list(_outputs(program)):
        if _is_own_result(op.operand_source(0)):
            name = op.attrs()["output_name"]
            _core.insert_operator(
                op, _SET_PARAMETER, op.operands_source(), [], {"parameter_name": name}
            )
            op.get_parent_block().remove_op(op)


def copy_named_members(program: Program) -> None:
    """Has lists contain copies of the variables that a PIR program names in the scope.

    Paddle gives such a variable its name when it creates an executor. The list would refer to the
    variable from before, unless the program also reads the variable by its name.
    """
    for block in blocks_outermost_first(program):
        read = {scope_name(op) for op in block.ops if op.name() in SOURCES & SCOPE_NAMES.keys()}
        setters = [op for op in block.ops if op.name() == _SET_PARAMETER]
        for value in [op.operand_source(0) for op in setters if scope_name(op) not in read]:
            lists = [op for op in value.all_used_ops() if op.name() == "builtin.combine"]
            for op in {op.id(): op for op in lists}.values():
                (copy,) = _core.insert_operator(op, "pd_op.assign", [value], [value], {})
                for index, member in enumerate(op.operands_source()):
                    if member.is_same(value):
                        op.operand(index).set_source(copy)


def _outputs(program: Program) -> Iterator[Operation]:
    """The operators of a program that store a result in a persistable variable."""
    for block in blocks_outermost_first(program):
        for op in block.ops:
            if op.name() == SHADOW_OUTPUT and op.operand_source(0).persistable:
                yield op


def _is_own_result(value: Value) -> bool:
    """Whether a value is a tensor that shares its variable with no other value."""
    producer = value.get_defining_op()
    if producer is None or not value.is_dense_tensor_type() or producer.num_regions() > 0:
        return False
    is_fresh = is_engine(producer.name()) or not producer.name().endswith("_")
    return is_fresh and producer.name() not in SOURCES | LISTS
