"""What a forward program hands to its backward program in the layout of convolutions.

In training, convolutions and what follows them compute on channels in blocks
(conversion/passes/blocked_layout.py). What a forward program hands on are tensors of Paddle's, so
that it would leave the blocks, and come back to them. Instead it is handed on in blocks, [N, C /
block, H, W, block], by operators of Paddle's: behind a value there are a reshape and a transpose,
and their opposites in front of those who read it. The engine finds its blocks there and moves
nothing; where Paddle runs a program, its results are the same.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from paddle_ngraph.conversion.passes.blocked_layout import (
    FROM_BLOCKS,
    TO_BLOCKS,
    blocks_of_convolution,
)
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    SHADOW_OUTPUT,
    dtype_name,
    is_overwritten,
    put_before,
    scope_name,
)

_CONVOLUTIONS = ("pd_op.conv2d", "pd_op.depthwise_conv2d")
# What computes in the layout of what it is given, as far as the engine takes it.
_NAMES = """
add add_ batch_norm batch_norm_ clip elu hardshrink hardsigmoid hardswish hardtanh leaky_relu mish
multiply multiply_ pool2d relu relu_ relu6 scale sigmoid silu softplus subtract swish tanh
"""
_LAYOUT_PRESERVING = frozenset(f"pd_op.{name}" for name in _NAMES.split())
_BACKWARD_OPERATORS = frozenset(
    f"{name.rstrip('_')}_grad" for name in (*_CONVOLUTIONS, *_LAYOUT_PRESERVING)
)


def save_in_blocked_layout(forward: Program, backward: Program, as_it_is: Container[str]) -> bool:
    """Has a forward program hand on in blocks what both programs compute with in blocks.

    Args:
        as_it_is: The names of what stays so, whoever reads it.

    Returns:
        Whether there is anything.
    """
    ahead, behind = forward.global_block(), backward.global_block()
    given = behind.kwargs()
    if not given:
        return False
    makers, readers = list(ahead.ops), list(behind.ops)
    made_at = _positions(makers)
    read_at = _positions(readers)
    blocks = _blocks(makers)
    handed_on: dict[int, Value] = {}  # by the value in the forward program
    for op in [op for op in makers if op.name() == SHADOW_OUTPUT]:
        name, value = scope_name(op), op.operand_source(0)
        if name in as_it_is or name not in given or not _is_read_in_blocks(given[name]):
            continue
        size = blocks.get(value.id, 1)
        if size > 1 and not is_overwritten(value):
            if value.id not in handed_on:
                behind_maker = makers[made_at[producer_of(value).id()] + 1]
                handed_on[value.id] = _to_blocks(value, size, behind_maker)
            op.operand(0).set_source(handed_on[value.id])
            # The first of all, if one in a loop reads it.
            first = min(read_at.get(reader.id(), 0) for reader in given[name].all_used_ops())
            _from_blocks(given[name], handed_on[value.id], readers[first])
    return bool(handed_on)


def must_paddle_transpose(*programs: Program) -> bool:
    """Whether Paddle would have to transpose any of it, which takes longer than it saves."""
    return any(
        op.name() == "pd_op.transpose" and op.attrs()["perm"] in (TO_BLOCKS, FROM_BLOCKS)
        for program in programs
        for op in program.global_block().ops
    )


def _positions(ops: Sequence[Operation]) -> dict[int, int]:
    return {op.id(): place for place, op in enumerate(ops)}


def _blocks(ops: Sequence[Operation]) -> dict[int, int]:
    """How many channels of a value lie side by side, of all values that are in whole blocks."""
    found: dict[int, int] = {}
    for op in ops:
        name = op.name()
        if name not in _CONVOLUTIONS and name not in _LAYOUT_PRESERVING:
            continue
        value = op.result(0)
        if not _can_be_blocked(value) or not _is_converted(name):
            continue
        if name in _CONVOLUTIONS:
            size = _of_convolution(op) if _is_converted(f"{name}_grad") else 1
        else:
            sources = (each for each in op.operands_source() if each.initialized())
            size = max((found.get(each.id, 1) for each in sources), default=1)
        if value.shape[1] % size == 0:
            found[value.id] = size
    return found


def _can_be_blocked(value: Value) -> bool:
    """Whether it is [N, C, H, W] in float32 with a size for C, H and W."""
    if not value.initialized() or not value.is_dense_tensor_type():
        return False
    shape = value.shape
    return len(shape) == 4 and min(shape[1:]) > 0 and dtype_name(value.dtype) == "float32"


def _of_convolution(op: Operation) -> int:
    attributes, data, filter_ = op.attrs(), *op.operands_source()
    if attributes["data_format"] not in ("NCHW", "AnyLayout"):
        return 1
    return blocks_of_convolution(data.shape[1], filter_.shape[0], attributes["groups"])[1]


def _is_read_in_blocks(value: Value) -> bool:
    readers = (op.name() for op in value.all_used_ops())
    return any(name in _BACKWARD_OPERATORS and _is_converted(name) for name in readers)


def _is_converted(name: str) -> bool:
    return find_converter(name) is not None


def _to_blocks(value: Value, size: int, before: Operation) -> Value:
    """[N, C, H, W] -> [N, C / size, H, W, size]."""
    channels, *area = value.shape[1:]
    apart = _reshaped(value, [channels // size, size, *area], before)
    return _transposed(apart, TO_BLOCKS, before)


def _from_blocks(given: Value, blocked: Value, before: Operation) -> None:
    """Has an argument be in blocks, as ``blocked`` is, and its readers read its plain form."""
    channels, *area = given.shape[1:]
    given.set_type(blocked.type())
    apart = _transposed(given, FROM_BLOCKS, before)
    plain = _reshaped(apart, [channels, *area], before)
    given.replace_all_uses_with(plain)
    producer_of(apart).operand(0).set_source(given)


def _reshaped(value: Value, rest: Sequence[int], before: Operation) -> Value:
    """``value`` with other dimensions behind its first one."""
    given = [("value", "int64", [0, *rest]), ("dtype", "dtype", "int64")]
    sizes = put_before(before, "pd_op.full_int_array", [], given)
    return put_before(before, "pd_op.reshape", [value, sizes], [])


def _transposed(value: Value, order: Sequence[int], before: Operation) -> Value:
    return put_before(before, "pd_op.transpose", [value], [("perm", None, list(order))])
