"""Aliases: the variables of a program that share one memory under several names.

An operator in place gives the memory of its operand another name, but both names are one variable:
every reader reads its present contents. Other operators give a memory a second variable: views of a
variable (``SHARING``), ``if``, whose result is the memory that the branch yields, and ``while``,
whose first iteration works on the memory of its initial values. A write through one of these
variables changes the others, which neither nGraph nor Paddle's scheduling of threads knows.

Such a write matters only if another variable of the memory, which existed before, is used
afterwards: the memory is *observed*. Operators that overwrite observed memory fall back, as do the
loops and branches that share it; dependencies between operators then follow the memory, and the
program runs in program order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from paddle_ngraph.paddle_private.protocols import Block, Operation, Value
from paddle_ngraph.partitioning.analysis.operator_kinds import (
    SCOPE_NAMES,
    SCOPE_WRITERS,
    SINKS,
    SOURCES,
    WHILE,
    YIELD,
    blocks_outermost_first,
    captured,
    is_known,
    operands_of,
    overwritten,
    value_id,
)

# Types of operators whose result shares the memory of an operand.
_SHARING_NAMES = (
    "as_strided coalesce_tensor depend npu_identity set share_data share_var tensor_unfold "
    "view_dtype view_shape view_slice"
)
SHARING = frozenset(f"pd_op.{name}{end}" for name in _SHARING_NAMES.split() for end in ("", "_"))

# Types of operators whose results share memory with each other, but with no operand: a copy.
_COPYING_TO_SHARED = frozenset({"pd_op.coalesce_tensor", "pd_op.coalesce_tensor_"})

# Types of operators whose result is another name of the memory of an operand, or a view of it.
VIEWS = SHARING - _COPYING_TO_SHARED

# The reason against operators that overwrite observed memory.
OVERWRITES_SHARED = "it overwrites memory that another variable shares"

# (id of an operator with blocks, index of the block) of all enclosing ones, outermost first.
_Path = tuple[tuple[int, int], ...]


def may_share(op: Operation) -> bool:
    """Whether a result may share memory with an operand that the operator does not overwrite.

    A loop shares its initial values, a branch what it yields. A user's custom operator may return
    its operand.
    """
    return op.num_regions() > 0 or op.name() in SHARING or not is_known(op.name())


class Aliases:
    """The memory of the variables of a program, all blocks included.

    Args:
        outermost: The global block.
    """

    def __init__(self, outermost: Block) -> None:
        self._observed: dict[str, str] = {}
        self._lasting: set[str] = set()
        if _may_observe(outermost):
            survey = _MemorySurvey(outermost)
            for members in survey.observed():
                self._observed.update(dict.fromkeys(members, members[0]))
                if any(survey.is_lasting(member) for member in members):
                    self._lasting.update(members)

    @classmethod
    def around(cls, block: Block) -> Aliases:
        """The aliases in the program that contains a block."""
        while (outer := block.parent_block) is not None:
            block = outer
        return cls(block)

    def __bool__(self) -> bool:
        return bool(self._observed)

    def memory(self, vid: str) -> str | None:
        """The name of the memory of a variable if it is observed, else ``None``."""
        return self._observed.get(vid)

    def is_observed(self, vid: str) -> bool:
        """Whether the memory of a variable is overwritten while it has another variable in use."""
        return vid in self._observed

    def is_lasting(self, vid: str) -> bool:
        """Whether observed memory belongs to a variable that outlives the run."""
        return vid in self._lasting


def _may_observe(outermost: Block) -> bool:
    """Whether a program has both operators that share memory and operators in place."""
    shares = writes = False
    for block in blocks_outermost_first(outermost):
        for op in block.ops:
            name = op.name()
            shares = shares or may_share(op)
            writes = writes or name.endswith("_")
            if shares and writes:
                return True
    return False


class _DisjointSets:
    """Disjoint sets of values, that can be united."""

    def __init__(self) -> None:
        self._sets: dict[str, list[str]] = {}

    def of(self, vid: str) -> list[str]:
        """The set that contains a variable."""
        return self._sets.setdefault(vid, [vid])

    def unite(self, first: str, second: str) -> None:
        """Unites the sets of two variables."""
        large, small = sorted((self.of(first), self.of(second)), key=len, reverse=True)
        if large is not small:
            large += small
            self._sets.update(dict.fromkeys(small, large))


class _WriteAt(NamedTuple):
    """A write to a variable in place, at a time, in the blocks of ``path``."""

    vid: str
    time: int
    path: _Path


class _MemorySurvey:
    """A walk through all operators of a program in program order, which is their time."""

    def __init__(self, outermost: Block) -> None:
        self._variables = _DisjointSets()  # values that are one variable
        self._memory = _DisjointSets()  # values that may share memory
        self._homes: dict[str, _Path] = {}  # the blocks around the definition of a value
        self._args: set[str] = set()
        self._defined: dict[str, int] = {}
        self._used: dict[str, float] = {}  # the time of the last use
        self._writes: list[_WriteAt] = []
        self._begins: dict[int, int] = {}  # when a loop begins
        # For initial values, the loops whose iterations move them: such a value has no other name,
        # and the body does not capture it.
        self._moved: dict[str, set[int]] = {}
        self._named: dict[str, str] = {}  # a value for each variable of the scope
        self._fetches_all = not any(
            op.name() in SINKS - {YIELD}
            for block in blocks_outermost_first(outermost)
            for op in block.ops
        )
        self._now = 0
        self._walk(outermost, ())

    def observed(self) -> Iterator[list[str]]:
        """The sets of values whose memory is overwritten while another variable is in use."""
        found: set[str] = set()
        for write in self._writes:
            members = self._memory.of(write.vid)
            own = self._variables.of(write.vid)
            if members[0] in found or len(own) == len(members):
                continue
            since = self._begin(write, members)
            others = {id(each): each for m in members if (each := self._variables.of(m)) is not own}
            if any(self._is_in_use(other, write, since) for other in others.values()):
                found.update(members)
                yield members

    def is_lasting(self, vid: str) -> bool:
        """Whether a value is a variable of the scope."""
        return self._used.get(vid) == math.inf

    def _begin(self, write: _WriteAt, members: list[str]) -> int:
        """The time after which uses follow a write: in a loop, uses before it follow it, too.

        Not if the memory belongs to one iteration.
        """
        for depth, (op, _) in enumerate(write.path, 1):
            inside = write.path[:depth]
            if op in self._begins and any(self._crosses(m, inside) for m in members):
                return self._begins[op]
        return write.time

    def _crosses(self, vid: str, inside: _Path) -> bool:
        """Whether a value exists outside of a block, or is one of its arguments."""
        home = self._homes.get(vid, ())
        return home[: len(inside)] != inside or (vid in self._args and home == inside)

    def _is_in_use(self, variable: list[str], write: _WriteAt, since: int) -> bool:
        """Whether a variable is defined before a write, and used after a time."""
        loops = {op for op, _ in write.path}
        present = [vid for vid in variable if self._moved.get(vid, set()).isdisjoint(loops)]
        is_defined = any(self._defined.get(vid, 0) < write.time for vid in present)
        return is_defined and any(self._used.get(vid, -1) > since for vid in variable)

    # The walk.

    def _walk(self, block: Block, path: _Path) -> None:
        for op in block.ops:
            self._now += 1
            is_last = op.name() in SCOPE_WRITERS
            for value in operands_of(op):
                self._use(value, math.inf if is_last else self._now)
            if op.num_regions() > 0:
                self._walk_region(op, path)
            else:
                self._link(op)
            self._define(op, path)
            for operand, result in overwritten(op):
                self._unite(value_id(operand), value_id(result))
                for member in members_of(operand):
                    self._writes.append(_WriteAt(value_id(member), self._now, path))

    def _define(self, op: Operation, path: _Path) -> None:
        for value in op.results():
            if not value.initialized():
                continue
            vid = value_id(value)
            self._homes[vid] = path
            self._defined[vid] = self._now
            if op.name() in SOURCES or (self._fetches_all and not path and value.use_empty()):
                self._used[vid] = math.inf
        if op.name() in SOURCES and op.name() in SCOPE_NAMES:
            name = op.attrs()[SCOPE_NAMES[op.name()]]
            first = self._named.setdefault(name, value_id(op.results()[0]))
            self._unite(first, value_id(op.results()[0]))

    def _use(self, value: Value, time: float) -> None:
        for member in members_of(value):
            vid = value_id(member)
            if vid not in self._homes:  # a value from outside the program, by a keyword
                self._homes[vid] = ()
                time = math.inf
            self._used[vid] = max(time, self._used.get(vid, -1))

    def _link(self, op: Operation) -> None:
        """Unites values that an operator makes one variable, or one memory."""
        results = [value for value in op.results() if value.initialized()]
        operands = operands_of(op)
        if op.name() == "builtin.split":
            members = list(members_of(operands[0]))
            if len(members) == len(results):
                for member, result in zip(members, results):
                    self._unite(value_id(member), value_id(result))
            else:
                self._share(*operands, *results)
        elif op.name() in _COPYING_TO_SHARED:
            self._share(*results)
        elif op.name() == "builtin.slice" or may_share(op):
            read = [member for operand in operands for member in members_of(operand)]
            for result in results:
                similar = (
                    each for each in read if is_known(op.name()) or _is_similar(each, result)
                )
                self._share(result, *similar)

    def _unite(self, first: str, second: str) -> None:
        self._variables.unite(first, second)
        self._memory.unite(first, second)

    def _walk_region(self, op: Operation, path: _Path) -> None:
        is_loop = op.name() == WHILE
        results, blocks = op.results(), list(op.blocks())
        args = blocks[0].args() if is_loop else []
        if is_loop:
            self._begins[op.id()] = self._now
            read_inside = {value_id(value) for value in captured(op)}
            for initial, arg, result in zip(op.operands_source()[1:], args, results):
                self._args.add(value_id(arg))
                self._homes[value_id(arg)] = (*path, (op.id(), 0))
                self._defined[value_id(arg)] = self._now
                vid = value_id(initial)
                if vid in read_inside or len(self._memory.of(vid)) > 1:
                    self._share(initial, arg)
                else:
                    self._moved.setdefault(vid, set()).add(op.id())
                self._share(initial, result)
        for index, block in enumerate(blocks):
            inside = (*path, (op.id(), index))
            self._walk(block, inside)
            yielded = block.ops[-1].operands_source()[int(is_loop) :] if block.ops else []
            fresh = [self._is_fresh(value, yielded, inside) for value in yielded]
            for number, (value, result) in enumerate(zip(yielded, results)):
                if not fresh[number]:
                    self._share(value, result, *args[number : number + 1])
        self._now += 1

    def _share(self, *values: Value) -> None:
        for value in values[1:]:
            self._memory.unite(value_id(values[0]), value_id(value))

    def _is_fresh(self, value: Value, yielded: Iterable[Value], inside: _Path) -> bool:
        """Whether a block yields memory that it has itself created, and yields it once.

        The result is then the only name of the memory outside of the block.
        """
        members = self._memory.of(value_id(value))
        return sum(
            self._memory.of(value_id(other)) is members for other in yielded
        ) == 1 and not any(
            self._crosses(vid, inside) or self._used.get(vid) == math.inf for vid in members
        )


def _is_similar(operand: Value, result: Value) -> bool:
    """Whether a result may be an operand that a custom operator returns, by dtype and shape."""
    if not (operand.is_dense_tensor_type() and result.is_dense_tensor_type()):
        return True
    first, second = list(operand.shape), list(result.shape)
    is_same_size = min((*first, *second), default=0) >= 0 and math.prod(first) == math.prod(second)
    return operand.dtype == result.dtype and (first == second or is_same_size)


def members_of(value: Value) -> Iterator[Value]:
    """The variables in a list as far as they are known; the variable itself if it is none."""
    if not (value.is_dense_tensor_type() or value.is_dense_tensor_array_type()):
        producer = value.get_defining_op()
        if producer is not None and producer.name() == "builtin.combine":
            for member in producer.operands_source():
                yield from members_of(member)
            return
        pairs = overwritten(producer) if producer is not None else ()
        for operand, result in pairs:
            if result.is_same(value):
                yield from members_of(operand)
                return
    yield value
