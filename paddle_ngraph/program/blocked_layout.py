"""What a forward program hands to its backward program in the layout of convolutions.

In training, convolutions and what follows them compute on channels in blocks
(function/blocked.py). What a forward program hands on are tensors of Paddle's, so that it would
leave the blocks, and come back to them. Instead it is handed on in blocks, [N, C / block, H, W,
block], by operators of Paddle's: behind a value there are a reshape and a transpose, and their
opposites in front of those who read it. The engine finds its blocks there and moves nothing; where
Paddle runs a program, its results are the same.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.function.blocked import FROM_BLOCKS, TO_BLOCKS, blocks_of_convolution
from paddle_ngraph.function.registry import find_converter
from paddle_ngraph.paddle_seam.names import maker_of
from paddle_ngraph.paddle_seam.protocols import Block, Operation, Program, Value
from paddle_ngraph.program.view import SHADOW_OUTPUT, dtype_name, is_overwritten, scope_name

_CONVOLUTIONS = ("pd_op.conv2d", "pd_op.depthwise_conv2d")
# What computes in the layout of what it is given, as far as the engine takes it.
_NAMES = """
add add_ batch_norm batch_norm_ clip elu hardshrink hardsigmoid hardswish hardtanh leaky_relu mish
multiply multiply_ pool2d relu relu_ relu6 scale sigmoid silu softplus subtract swish tanh
"""
_FOLLOWERS = frozenset(f"pd_op.{name}" for name in _NAMES.split())
_OF_BACKWARD = frozenset(f"{name.rstrip('_')}_grad" for name in (*_CONVOLUTIONS, *_FOLLOWERS))


def hand_on_in_blocks(forward: Program, backward: Program, as_it_is: Container[str]) -> bool:
    """Has a forward program hand on in blocks what both programs compute with in blocks.

    Args:
        as_it_is: The names of what stays so, whoever reads it.

    Returns:
        Whether there is anything.
    """
    ahead, behind = _Ops(forward.global_block()), _Ops(backward.global_block())
    given = behind.block.kwargs()
    blocks = _Blocks()
    handed_on: dict[int, Value] = {}  # by the value in the forward program
    for op in [op for op in ahead.ops if op.name() == SHADOW_OUTPUT]:
        name, value = scope_name(op), op.operand_source(0)
        if name in as_it_is or name not in given or not _is_read_in_blocks(given[name]):
            continue
        size = blocks.of(value)
        if size > 1 and not is_overwritten(value):
            if value.id not in handed_on:
                handed_on[value.id] = _to_blocks(value, size, ahead.behind_maker(value))
            op.operand(0).set_source(handed_on[value.id])
            _from_blocks(given[name], handed_on[value.id], behind.first_reader(given[name]))
    return bool(handed_on)


def is_left_to_paddle(*programs: Program) -> bool:
    """Whether Paddle would have to transpose any of it, which takes longer than it saves."""
    return any(
        op.name() == "pd_op.transpose" and op.attrs()["perm"] in (TO_BLOCKS, FROM_BLOCKS)
        for program in programs
        for op in program.global_block().ops
    )


class _Ops:
    """The operators that a block had, by their places."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.ops = list(block.ops)
        self._places = {op.id(): place for place, op in enumerate(self.ops)}

    def behind_maker(self, value: Value) -> Operation:
        """The operator that follows the one which makes ``value``."""
        return self.ops[self._places[maker_of(value).id()] + 1]

    def first_reader(self, value: Value) -> Operation:
        """The first operator that reads ``value``; the first one of all, if one in a loop does."""
        return self.ops[min(self._places.get(op.id(), 0) for op in value.all_used_ops())]


class _Blocks:
    """The blocks of the values of a program."""

    def __init__(self) -> None:
        self._found: dict[int, int] = {}

    def of(self, value: Value) -> int:
        """How many channels of ``value`` lie side by side; 1: it is not in whole blocks."""
        pending = [value]
        while pending:
            here = pending[-1]
            sources = [each for each in self._sources(here) if each.id not in self._found]
            if sources and here.id not in self._found:
                pending += sources
                continue
            pending.pop()
            self._found.setdefault(here.id, self._of(here))
        return self._found[value.id]

    def _of(self, value: Value) -> int:
        maker = value.get_defining_op()
        if maker is None or not _may_be_blocked(value) or not _is_converted(maker.name()):
            return 1
        if maker.name() in _CONVOLUTIONS:
            size = _of_convolution(maker) if _is_converted(f"{maker.name()}_grad") else 1
        else:
            size = max((self._found[each.id] for each in self._sources(value)), default=1)
        return size if value.shape[1] % size == 0 else 1

    def _sources(self, value: Value) -> Iterator[Value]:
        maker = value.get_defining_op()
        if maker is None or maker.name() not in _FOLLOWERS or not maker.result(0).is_same(value):
            return iter(())
        return (each for each in maker.operands_source() if _may_be_blocked(each))


def _may_be_blocked(value: Value) -> bool:
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
    return any(name in _OF_BACKWARD and _is_converted(name) for name in readers)


def _is_converted(name: str) -> bool:
    return find_converter(name) is not None


def _to_blocks(value: Value, size: int, before: Operation) -> Value:
    """[N, C, H, W] -> [N, C / size, H, W, size]."""
    channels, *area = value.shape[1:]
    block = before.get_parent_block()
    apart = _reshaped(block, value, [channels // size, size, *area], before)
    return _transposed(block, apart, TO_BLOCKS, before)


def _from_blocks(given: Value, blocked: Value, before: Operation) -> None:
    """Has an argument be in blocks, as ``blocked`` is, and its readers read its plain form."""
    channels, *area = given.shape[1:]
    block = before.get_parent_block()
    given.set_type(blocked.type())
    apart = _transposed(block, given, FROM_BLOCKS, before)
    plain = _reshaped(block, apart, [channels, *area], before)
    given.replace_all_uses_with(plain)
    maker_of(apart).operand(0).set_source(given)


def _reshaped(block: Block, value: Value, rest: Sequence[int], before: Operation) -> Value:
    """``value`` with other dimensions behind its first one."""
    shape = [0, *rest]
    given = [("value", "int64", shape), ("dtype", "dtype", "int64")]
    (sizes,) = _core.append_operator(
        block, "pd_op.full_int_array", [], [("int64", [len(shape)])], given, before=before
    )
    return _made(block, "pd_op.reshape", [value, sizes], [], before)


def _transposed(block: Block, value: Value, order: Sequence[int], before: Operation) -> Value:
    return _made(block, "pd_op.transpose", [value], [("perm", None, list(order))], before)


def _made(block: Block, name: str, operands: list[Any], attributes: Any, before: Any) -> Value:
    (made,) = _core.append_operator(block, name, operands, None, attributes, before=before)
    return made
