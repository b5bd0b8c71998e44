"""Tensors that never have an element, as far as operators show that.

nGraph computes nothing with them: an interval that reads or makes one is left to Paddle in every
run, with all that is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from paddle_ngraph import _core
from paddle_ngraph.conversion.registry import Role, find_converter
from paddle_ngraph.paddle_private.protocols import Operation, Value
from paddle_ngraph.partitioning.analysis.block_view import FEEDS, REGIONS, BlockView, value_id

# Others may compute with the -1 that stands for a size that their inputs leave open, and 0 is what
# becomes of it.
_EMPTY_TENSOR_SOURCES = frozenset(
    {
        *("pd_op.full", "pd_op.full_with_tensor", "pd_op.empty", "pd_op.slice"),
        *("pd_op.expand", "pd_op.tile"),
    }
)
# A list of sizes or axes without any says nothing of elements; what is fed may have other sizes
# than the program declares.
_UNKNOWN_SIZED = FEEDS | {"pd_op.full_int_array"}


def always_empty(view: BlockView) -> frozenset[str]:
    """The ids of the variables that a block uses and that never have an element.

    Those of rank 1 are not among them: they may be lists of sizes or axes.
    """
    found = _EmptyTensors()
    for node in view.nodes:
        for vid in node.reads:
            if vid not in view.producer:
                found.visit_outer(view.values[vid])
        found.visit(node.op)
    return frozenset(vid for vid, value in found.values.items() if len(value.shape) > 1)


class _EmptyTensors:
    """What never has an element, by id, of the results of the operators that it has looked at."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self._seen: set[str] = set()

    def visit(self, op: Operation) -> None:
        """Looks at an operator, after those that make what it reads."""
        if op.name() in _UNKNOWN_SIZED:
            return
        inputs = list(_inputs(op))
        reads_one = any(value_id(value) in self.values for value in inputs)
        results: Iterable[Value] = ()
        if op.name() == "pd_op.assign":
            results = op.results() if reads_one else ()
        elif reads_one or _can_produce_empty(op, inputs):
            results = _empty_results(op)
        self.values.update((value_id(value), value) for value in results)

    def visit_outer(self, value: Value) -> None:
        """Looks at what makes a variable of a block around this one."""
        pending = list(_members(value))
        while pending:
            value = pending[-1]
            if (maker := value.get_defining_op()) is not None and self._is_new(value):
                is_copy = maker.name() == "pd_op.assign"
                before = [each for each in _inputs(maker) if is_copy or 0 in each.shape]
                if before := list(filter(self._is_new, before)):
                    pending += before
                    continue
                self.visit(maker)
            self._seen.add(value_id(value))
            pending.pop()

    def _is_new(self, value: Value) -> bool:
        return value_id(value) not in self._seen


def _can_produce_empty(op: Operation, inputs: Sequence[Value]) -> bool:
    """Whether an operator may make one of inputs that have elements."""
    # What has elements, and a size of 0, is of an operator that computed with -1.
    unknown = {0}
    if op.name() not in _EMPTY_TENSOR_SOURCES:
        if not any(0 in value.shape for value in op.results() if _is_tensor(value)):
            return False
        unknown = {0, -1}
    return all(unknown.isdisjoint(value.shape) for value in inputs)


def _inputs(op: Operation) -> Iterator[Value]:
    """The tensors that an operator reads, those in lists too."""
    for value in op.operands_source():
        yield from _members(value)


def _members(value: Value) -> Iterator[Value]:
    if _is_tensor(value):
        yield value
    elif value.initialized() and (maker := value.get_defining_op()) is not None:
        yield from _inputs(maker) if maker.name() == "builtin.combine" else ()


def _empty_results(op: Operation) -> Iterator[Value]:
    """Those that an operator makes: not what it keeps for its gradient, and no lists."""
    if op.name() in REGIONS or not op.name().startswith("pd_op."):
        return
    entry = find_converter(op.name())
    for name, value, inferred in zip(op.get_output_names(), op.results(), _inferred(op)):
        is_made = entry is None or entry.output_role(name) is Role.RESULT
        if is_made and _is_tensor(value) and 0 in (*value.shape, *inferred):
            yield value


def _inferred(op: Operation) -> Iterator[Sequence[int]]:
    """The shapes of results, as Paddle infers them; without a size for what is no tensor.

    Where a loop starts from a result, Paddle declares the sizes open that a turn changes.
    """
    try:
        types = _core.inferred_types(op)
    except Exception:  # it infers nothing, or whatever Paddle's shape inference says
        types = [None] * len(op.results())
    for type in types:
        yield type[1] if isinstance(type, tuple) else ()


def _is_tensor(value: Value) -> bool:
    return bool(value.initialized() and value.is_dense_tensor_type())
