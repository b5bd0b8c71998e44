"""Saved forward state in the blocked layout of convolutions, for the backward program.

In training, convolutions and their consumers compute on blocked channels
(conversion/passes/blocked_layout.py). Saved state is passed in Paddle's tensors, which would need a
conversion to the plain layout and back. Instead the forward program saves it as [N, C / block, H,
W, block]: Paddle's reshape and transpose come after a saved value, and their inverses before its
readers in the backward program. The engine recognizes the pattern and moves no data; a run by
Paddle has equal results.
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
# Types of operators whose converters compute in blocked layout if the input has a blocked layout.
_NAMES = """
add add_ batch_norm batch_norm_ clip elu hardshrink hardsigmoid hardswish hardtanh leaky_relu mish
multiply multiply_ pool2d relu relu_ relu6 scale sigmoid silu softplus subtract swish tanh
"""
_LAYOUT_PRESERVING = frozenset(f"pd_op.{name}" for name in _NAMES.split())
_BACKWARD_OPERATORS = frozenset(
    f"{name.rstrip('_')}_grad" for name in (*_CONVOLUTIONS, *_LAYOUT_PRESERVING)
)


def save_in_blocked_layout(forward: Program, backward: Program, as_it_is: Container[str]) -> bool:
    """Rewrites programs to save state in the blocked layout, if both compute with that layout.

    State is saved by the forward program and read by the backward program.

    Args:
        as_it_is: Names of saved state that keeps the plain layout in any case.

    Returns:
        Whether any saved state changed its layout.
    """
    forward_block, backward_block = forward.global_block(), backward.global_block()
    arguments = backward_block.kwargs()
    if not arguments:
        return False
    forward_ops, backward_ops = list(forward_block.ops), list(backward_block.ops)
    forward_indices = _indices(forward_ops)
    backward_indices = _indices(backward_ops)
    blocks = _blocks(forward_ops)
    # id of a value that the forward program saves -> the same value in blocked layout.
    blocked: dict[int, Value] = {}
    for op in [op for op in forward_ops if op.name() == SHADOW_OUTPUT]:
        name, value = scope_name(op), op.operand_source(0)
        if name in as_it_is or name not in arguments or not _is_read_in_blocks(arguments[name]):
            continue
        size = blocks.get(value.id, 1)
        if size > 1 and not is_overwritten(value):
            if value.id not in blocked:
                next_op = forward_ops[forward_indices[producer_of(value).id()] + 1]
                blocked[value.id] = _to_blocks(value, size, next_op)
            op.operand(0).set_source(blocked[value.id])
            # An operator in the body of a loop has no index in this block: the value is inserted
            # before all operators.
            first = min(
                backward_indices.get(reader.id(), 0) for reader in arguments[name].all_used_ops()
            )
            _from_blocks(arguments[name], blocked[value.id], backward_ops[first])
    return bool(blocked)


def must_paddle_transpose(*programs: Program) -> bool:
    """Whether Paddle would run transposes to or from blocks, which cost more than blocks save."""
    return any(
        op.name() == "pd_op.transpose" and op.attrs()["perm"] in (TO_BLOCKS, FROM_BLOCKS)
        for program in programs
        for op in program.global_block().ops
    )


def _indices(ops: Sequence[Operation]) -> dict[int, int]:
    return {op.id(): index for index, op in enumerate(ops)}


def _blocks(ops: Sequence[Operation]) -> dict[int, int]:
    """Channel block size by value id, for all values whose channels divide into blocks."""
    found: dict[int, int] = {}
    for op in ops:
        name = op.name()
        if name not in _CONVOLUTIONS and name not in _LAYOUT_PRESERVING:
            continue
        value = op.result(0)
        if not _can_be_blocked(value) or not _is_converted(name):
            continue
        if name in _CONVOLUTIONS:
            size = _convolution_block(op) if _is_converted(f"{name}_grad") else 1
        else:
            sources = (each for each in op.operands_source() if each.initialized())
            size = max((found.get(each.id, 1) for each in sources), default=1)
        if value.shape[1] % size == 0:
            found[value.id] = size
    return found


def _can_be_blocked(value: Value) -> bool:
    """Whether a value is [N, C, H, W] in float32 with static C, H and W."""
    if not value.initialized() or not value.is_dense_tensor_type():
        return False
    shape = value.shape
    return len(shape) == 4 and min(shape[1:]) > 0 and dtype_name(value.dtype) == "float32"


def _convolution_block(op: Operation) -> int:
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
    """Inserts operators that convert ``value``: [N, C, H, W] -> [N, C / size, H, W, size]."""
    channels, *area = value.shape[1:]
    split = _reshaped(value, [channels // size, size, *area], before)
    return _transposed(split, TO_BLOCKS, before)


def _from_blocks(argument: Value, blocked: Value, before: Operation) -> None:
    """Gives an argument of the backward program the type of ``blocked``, a value in blocks.

    Inserts operators that convert the argument to the plain layout for its readers.
    """
    channels, *area = argument.shape[1:]
    argument.set_type(blocked.type())
    split = _transposed(argument, FROM_BLOCKS, before)
    plain = _reshaped(split, [channels, *area], before)
    argument.replace_all_uses_with(plain)
    producer_of(split).operand(0).set_source(argument)


def _reshaped(value: Value, rest: Sequence[int], before: Operation) -> Value:
    """Reshapes ``value`` to its first dimension followed by the sizes ``rest``."""
    attributes = [("value", "int64", [0, *rest]), ("dtype", "dtype", "int64")]
    sizes = put_before(before, "pd_op.full_int_array", [], attributes)
    return put_before(before, "pd_op.reshape", [value, sizes], [])


def _transposed(value: Value, order: Sequence[int], before: Operation) -> Value:
    return put_before(before, "pd_op.transpose", [value], [("perm", None, list(order))])
