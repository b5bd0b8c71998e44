"""Early exits of a loop: branches whose one side runs in the last iteration only.

``if ended: break`` before ``words = concat([words, word])`` becomes a flag, a branch on the flag,
and a condition of the loop that the flag ends. In the last iteration such a branch returns values
as they were before; in all others, the result of operators. These are computed in every iteration
instead, and a branch is left that selects. So a counter that goes up after a ``break`` is an
induction variable, and a value that grows after one grows in each iteration: by the part that the
last iteration must not add, it is cut behind the loop (bodies.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from paddle_ngraph.conversion.analysis.induction_variables import CONJUNCTIONS
from paddle_ngraph.conversion.analysis.loop_invariants import only_selects
from paddle_ngraph.conversion.analysis.offsets import EARLY_EXIT, VALUE_PRESERVING
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec
from paddle_ngraph.utils.dtypes import ARRAY_SUFFIX

_IF, _WHILE = "pd_op.if", "pd_op.while"
_NEGATIONS = ("pd_op.logical_not", "pd_op.bitwise_not")
_DISJUNCTIONS = ("pd_op.logical_or", "pd_op.bitwise_or")


@dataclass(frozen=True)
class EarlyExit:
    """The attribute ``EARLY_EXIT`` of a branch, which has one result.

    Attributes:
        after: The block of the branch, 0 or 1, that iterations take which are not the last one.
        flag: The index of a loop-carried value that shows after an iteration whether it took the
            other block; ``None`` if there is none.
        value: The value of the flag then.
        appends: Whether the result of other iterations begins with that of the last one.
    """

    after: int
    flag: int | None
    value: bool
    appends: bool = False


class _Literal(NamedTuple):
    """A bool tensor, by the id of its source, or its opposite."""

    id: int
    is_true: bool


def compute_before_exits(block: Graph, args: int) -> Graph:
    """The block of a loop, in which branches that an early exit skips only select.

    Args:
        block: The block.
        args: The number of loop-carried inputs, which come first.
    """
    block = _without_copies(block)
    while (found := _Body(block, args).find()) is not None:
        block = _with_selection(block, *found)
    producers = {spec.id: op for op in block.ops for spec in op.output_specs()}
    for op in block.ops:
        if EARLY_EXIT in op.attrs:
            exit = op.attrs[EARLY_EXIT]
            after, before = (op.inputs["captured"][n] for n in (exit.after, 1 - exit.after))
            appends = _appends(before, after, producers)
            op.attrs[EARLY_EXIT] = replace(exit, appends=appends)
    return block


def _without_copies(block: Graph) -> Graph:
    """A block whose operators, also those in branches, read variables instead of their copies.

    Programs that Paddle translates from ProgramDesc copy what a branch or an iteration yields.
    """
    sources: dict[int, TensorSpec] = {}
    ops = []
    for op in block.ops:
        op = _reading(op, sources)
        if op.type == "pd_op.assign" and op.input("x").dtype == op.output("out").dtype:
            sources[op.output("out").id] = op.input("x")
            continue
        if op.type == _IF and EARLY_EXIT not in op.attrs:
            op = replace(op, blocks=list(map(_without_copies, op.blocks)))
        ops.append(op)
    if len(ops) == len(block.ops):
        return replace(block, ops=ops)
    outputs = [sources.get(spec.id, spec) for spec in block.outputs]
    return replace(block, ops=ops, outputs=outputs)


def _appends(before: TensorSpec, after: TensorSpec, producers: Mapping[int, Op]) -> bool:
    """Whether ``after`` is computed as ``before`` with more elements along an axis."""
    op = producers.get(after.id)
    while op is not None and EARLY_EXIT in op.attrs:
        exit = op.attrs[EARLY_EXIT]
        if op.inputs["captured"][1 - exit.after].id != before.id:
            return False
        op = producers.get(op.inputs["captured"][exit.after].id)
    return op is not None and op.type == "pd_op.concat" and op.inputs["x"][0].id == before.id


class _Body:
    """The block of a loop, as :func:`compute_before_exits` examines it."""

    def __init__(self, block: Graph, args: int) -> None:
        self._block = block
        self._producers = {spec.id: op for op in block.ops for spec in op.output_specs()}
        condition, *results = block.outputs[: 1 + args]
        # What the condition for another iteration implies.
        self._implied = set(self._conjuncts(self._literal(condition.id, True)))
        self._flags: dict[int, tuple[int, bool]] = {}
        for index, spec in enumerate(results):
            literal = self._literal(spec.id, True)
            self._flags.setdefault(literal.id, (index, literal.is_true))
        self._of_condition = self._operators_of_condition()

    def find(self) -> tuple[Op, EarlyExit] | None:
        """A branch that an early exit skips, and can be computed in every iteration."""
        for op in self._block.ops:
            if op.type == _IF and EARLY_EXIT not in op.attrs:
                exit = self._exit_of(op)
                if exit is not None and self._can_be_computed(op, exit):
                    return op, exit
        return None

    def _exit_of(self, op: Op) -> EarlyExit | None:
        taken = self._literal(op.input("cond").id, True)
        opposite = _Literal(taken.id, not taken.is_true)
        for after, literal in enumerate((taken, opposite)):
            if literal in self._implied:
                index, is_true = self._flags.get(literal.id, (None, True))
                return EarlyExit(after, index, is_true != literal.is_true)
        return None

    def _can_be_computed(self, op: Op, exit: EarlyExit) -> bool:
        """Whether the operators of a branch may be computed where Paddle does not."""
        computed, skipped = op.blocks[exit.after], op.blocks[1 - exit.after]
        captured = op.inputs.get("captured", ())
        if any(spec.dtype.endswith(ARRAY_SUFFIX) for spec in captured):
            return False
        return (
            only_selects(skipped)
            and not only_selects(computed)
            and not any(map(_is_bound_to_its_branch, computed.all_ops()))
            and all(map(self._may_read, self._readers({s.id for s in op.output_specs()})))
        )

    def _may_read(self, op: Op) -> bool:
        """Whether a reader of a branch may get the value of iterations other than the last."""
        return id(op) in self._of_condition or EARLY_EXIT in op.attrs

    def _readers(self, ids: set[int]) -> Iterator[Op]:
        return (op for op in self._block.ops if any(s.id in ids for s in op.input_specs()))

    def _operators_of_condition(self) -> set[int]:
        """The ids of operators that compute only the condition for another iteration."""
        found: set[int] = set()
        others = {spec.id for spec in self._block.outputs[1:]}
        for op in reversed(self._block.ops):
            if not any(spec.id in others for spec in op.output_specs()):
                found.add(id(op))
            else:
                others |= {spec.id for spec in op.input_specs()}
        return found

    def _literal(self, tensor: int, is_true: bool) -> _Literal:
        while (op := self._producers.get(tensor)) is not None:
            if op.type not in (*VALUE_PRESERVING, *_NEGATIONS) or op.input("x").dtype != "bool":
                break
            tensor, is_true = op.input("x").id, is_true != (op.type in _NEGATIONS)
        return _Literal(tensor, is_true)

    def _conjuncts(self, literal: _Literal) -> Iterator[_Literal]:
        """``literal``, and others that are true where it is."""
        yield literal
        op = self._producers.get(literal.id)
        if op is not None and op.type in (CONJUNCTIONS if literal.is_true else _DISJUNCTIONS):
            for name in ("x", "y"):
                yield from self._conjuncts(self._literal(op.input(name).id, literal.is_true))


def _is_bound_to_its_branch(op: Op) -> bool:
    """Whether an operator has effects, or may fail or never end with values it is not meant for."""
    entry = find_converter(op.type)
    return op.type == _WHILE or op.called or entry is None or entry.draws(op)


def _with_selection(block: Graph, branch: Op, exit: EarlyExit) -> Graph:
    """The block, with the operators of ``branch`` in front of branches that only select."""
    new_ids = count(1 + max(spec.id for spec in block.all_specs()))
    inlined: list[Op] = []
    sides = []
    for each in branch.blocks:
        captured = zip(each.inputs, branch.inputs.get("captured", ()))
        specs = {inside.id: outside for inside, outside in captured}
        for spec in each.all_specs():
            if spec.id not in specs:
                specs[spec.id] = replace(spec, id=next(new_ids))
        inlined += [op.with_tensor_ids({n: s.id for n, s in specs.items()}) for op in each.ops]
        sides.append([specs[spec.id] for spec in each.outputs])
    after: dict[int, TensorSpec] = {}
    for number, result in enumerate(branch.outputs["out"]):
        if result is None:
            continue
        pair = (sides[0][number], sides[1][number])
        after[result.id] = pair[exit.after]
        inlined.append(
            Op(
                _IF,
                branch.index,
                {"cond": branch.inputs["cond"], "captured": pair},
                {"out": (result,)},
                {EARLY_EXIT: exit},
                blocks=[Graph([], list(pair), [], [each], []) for each in pair],
                id=branch.id,
            )
        )
    ops = []
    for op in block.ops:
        if op is branch:
            ops += inlined
        else:
            ops.append(op if EARLY_EXIT in op.attrs else _reading(op, after))
    return replace(block, ops=ops)


def _reading(op: Op, others: Mapping[int, TensorSpec]) -> Op:
    """An operator that reads other tensors in place of some."""
    if not any(spec.id in others for spec in op.input_specs()):
        return op
    inputs = {n: tuple(others.get(s.id, s) for s in specs) for n, specs in op.inputs.items()}
    return replace(op, inputs=inputs)
