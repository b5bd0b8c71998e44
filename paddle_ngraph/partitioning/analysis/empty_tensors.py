"""Static analysis of tensors that never have an element.

nGraph does not compute with empty tensors: a subgraph that reads or produces one would fall back to
Paddle in every run, with all its operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from paddle_ngraph import _core
from paddle_ngraph.conversion.registry import Role, find_converter
from paddle_ngraph.paddle_private.protocols import Operation, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    FEEDS,
    REGIONS,
    WHILE,
    BlockView,
    value_id,
)
from paddle_ngraph.utils import signals

# Operators whose inferred size 0 is reliable. Others may compute with the -1 of a dynamic dimension
# of their inputs, and infer 0 from it.
_EMPTY_TENSOR_SOURCES = frozenset(
    {
        *("pd_op.full", "pd_op.full_with_tensor", "pd_op.empty", "pd_op.slice"),
        *("pd_op.expand", "pd_op.tile"),
    }
)
# An empty list of sizes or axes does not make a tensor empty; feeds may have other sizes than the
# program declares.
_COPY = "pd_op.assign"
_READ_SHAPES = frozenset({"pd_op.shape", "pd_op.shape64"})
_UNKNOWN_SIZED = FEEDS | {"pd_op.full_int_array"}


def always_empty(view: BlockView) -> frozenset[str]:
    """Ids of the variables of a block that never have an element.

    Variables of rank 1 are excluded: they may be lists of sizes or axes.
    """
    found = _EmptyTensors()
    for node in view.nodes:
        for vid in node.reads:
            if vid not in view.producer:
                found.visit_outer(view.values[vid])
        found.visit(node.op)
    return frozenset(vid for vid, value in found.values.items() if len(value.shape) > 1)


def only_start_loops(view: BlockView, empty: frozenset[str]) -> frozenset[str]:
    """Returns those of ``empty`` that only loops read which append to them, as to a cache."""
    own = (vid for vid in empty if vid in view.producer)
    return frozenset(vid for vid in own if _only_starts_loops(view.values[vid]))


def _only_starts_loops(value: Value) -> bool:
    """Whether only loops read a variable, as an initial value to which iterations append."""
    readers = value.all_used_ops()
    return bool(readers) and all(
        _only_starts_loops(reader.result(0))
        if reader.name() == _COPY
        else reader.name() == WHILE and _is_only_extended(reader, value)
        for reader in readers
    )


def _is_only_extended(loop: Operation, value: Value) -> bool:
    """Whether the body of a loop only appends to ``value``, and reads its shape."""
    (body,) = loop.blocks()
    pairs = zip(loop.operands_source()[1:], body.args())
    readers = [op for given, arg in pairs if given.is_same(value) for op in arg.all_used_ops()]
    return all(
        op.name() in _READ_SHAPES
        or (
            op.name() == "builtin.combine"
            and all(user.name() == "pd_op.concat" for user in op.result(0).all_used_ops())
        )
        for op in readers
    )


class _EmptyTensors:
    """Finds results that are empty in every run, by visiting operators."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self._seen: set[str] = set()

    def visit(self, op: Operation) -> None:
        """Visits an operator whose inputs' producers have been visited."""
        if op.name() in _UNKNOWN_SIZED:
            return
        inputs = list(tensors_read(op))
        reads_one = any(value_id(value) in self.values for value in inputs)
        results: Iterable[Value] = ()
        if op.name() == _COPY:
            results = op.results() if reads_one else ()
        elif reads_one or _can_produce_empty(op, inputs):
            results = _empty_results(op)
        self.values.update((value_id(value), value) for value in results)

    def visit_outer(self, value: Value) -> None:
        """Visits the operators that compute a variable of an enclosing block."""
        pending = list(_members(value))
        while pending:
            value = pending[-1]
            if (producer := value.get_defining_op()) is not None and self._is_new(value):
                is_copy = producer.name() == _COPY
                inputs = [each for each in tensors_read(producer) if is_copy or 0 in each.shape]
                if inputs := list(filter(self._is_new, inputs)):
                    pending += inputs
                    continue
                self.visit(producer)
            self._seen.add(value_id(value))
            pending.pop()

    def _is_new(self, value: Value) -> bool:
        return value_id(value) not in self._seen


def _can_produce_empty(op: Operation, inputs: Sequence[Value]) -> bool:
    """Whether an operator may produce an empty tensor from inputs that have elements."""
    # If an input of size 0 is not known to be empty, its producer inferred the 0 from a size of -1.
    unknown = {0}
    if op.name() not in _EMPTY_TENSOR_SOURCES:
        if not any(0 in value.shape for value in op.results() if _is_tensor(value)):
            return False
        unknown = {0, -1}
    return all(unknown.isdisjoint(value.shape) for value in inputs)


def tensors_read(op: Operation) -> Iterator[Value]:
    """The tensors that an operator reads: operands, and members of lists."""
    for value in op.operands_source():
        yield from _members(value)


def _members(value: Value) -> Iterator[Value]:
    if _is_tensor(value):
        yield value
    elif value.initialized() and (producer := value.get_defining_op()) is not None:
        yield from tensors_read(producer) if producer.name() == "builtin.combine" else ()


def _empty_results(op: Operation) -> Iterator[Value]:
    """Yields the empty results of an operator, except lists and saved state for its gradient."""
    if op.name() in REGIONS or not op.name().startswith("pd_op."):
        return
    entry = find_converter(op.name())
    for name, value, inferred in zip(op.get_output_names(), op.results(), inferred_shapes(op)):
        is_result = entry is None or entry.output_role(name) is Role.RESULT
        if is_result and _is_tensor(value) and 0 in (*value.shape, *inferred):
            yield value


def inferred_shapes(op: Operation) -> Iterator[Sequence[int]]:
    """The shapes that Paddle infers for the results; ``()`` for a result that is not a tensor.

    The declared shape may be dynamic instead: for an initial value of a loop, Paddle declares the
    sizes that an iteration changes as -1.
    """
    with signals.own_errors():
        try:
            types = _core.inferred_types(op)
        except Exception:
            # Without shape inference, or after its failure, no result is known as empty.
            types = [None] * len(op.results())
    for type in types:
        yield type[1] if isinstance(type, tuple) else ()


def _is_tensor(value: Value) -> bool:
    return bool(value.initialized() and value.is_dense_tensor_type())
