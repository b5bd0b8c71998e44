"""Tensors that never have an element, as far as operators show that.

nGraph computes nothing with them: an interval that reads or makes one is left to Paddle in every
run, with all that is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paddle_ngraph import _core
from paddle_ngraph.function.registry import Role, find_converter
from paddle_ngraph.paddle_seam.protocols import Operation, Value
from paddle_ngraph.program.view import REGIONS, BlockView

# Others may compute with the -1 that stands for a size that their inputs leave open, and 0 is what
# becomes of it.
_MAKERS = frozenset(
    {
        *("pd_op.full", "pd_op.full_with_tensor", "pd_op.empty", "pd_op.slice"),
        *("pd_op.expand", "pd_op.tile"),
    }
)


def empty_in(view: BlockView) -> frozenset[str]:
    """The ids of the variables that a block uses and that never have an element.

    Those of rank 1 are not among them: they may be lists of sizes or axes.
    """
    found: set[str] = set()
    for node in view.nodes:
        read = {member for vid in node.reads for member in view.members(vid)}
        found |= {vid for vid in read if vid not in view.producer and _is_empty(view.values[vid])}
        reads_one = not found.isdisjoint(read)
        if node.type == "pd_op.assign" and reads_one:
            found.update(node.writes)
        elif reads_one or _may_make_one(node.op):
            found.update(map(view.known, _empty_results(node.op)))
    return frozenset(found)


def _is_empty(value: Value) -> bool:
    """The same for a variable of a block around this one."""
    maker = value.get_defining_op()
    if maker is None or not _is_tensor(value):
        return False
    if maker.name() == "pd_op.assign":
        return _is_empty(maker.operand_source(0))
    may_be = _may_make_one(maker) or (0 in value.shape and any(map(_is_empty, _inputs(maker))))
    return may_be and any(value.is_same(each) for each in _empty_results(maker))


def _may_make_one(op: Operation) -> bool:
    """Whether an operator may make one of inputs that have elements."""
    if op.name() in _MAKERS:
        return True
    if not any(0 in value.shape for value in op.results() if _is_tensor(value)):
        return False
    return not any(-1 in value.shape for value in _inputs(op))


def _inputs(op: Operation) -> Iterator[Value]:
    """The tensors that an operator reads, those in lists too."""
    for value in op.operands_source():
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
        if is_made and _is_tensor(value) and _is_no_list(value) and 0 in (*value.shape, *inferred):
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


def _is_no_list(value: Value) -> bool:
    return len(value.shape) > 1


def _is_tensor(value: Value) -> bool:
    return bool(value.initialized() and value.is_dense_tensor_type())
