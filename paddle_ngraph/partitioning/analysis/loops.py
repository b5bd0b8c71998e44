"""Cleanup of loop-carried values, and of declared sizes.

``to_static`` makes every variable of a loop body a loop-carried value, some with an initial value
without contents. Loop-carried values without a reader are dropped.

Paddle's ``while`` moves its initial values out of their variables: an operator that reads one
afterwards finds no memory. In Paddle, that depends on the order in which threads reach operators;
with engine operators it would always happen. An initial value that has other readers, or that is a
variable of the scope, is therefore copied. Paddle does not move an initial value that the body also
captures: the first iteration works on its memory. If writes to it are observed, the loop gets
another name of that memory instead of a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import paddle

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.aliases import Aliases
from paddle_ngraph.partitioning.analysis.block_view import (
    SINKS,
    SOURCES,
    WHILE,
    blocks_outermost_first,
    dtype_name,
    overwritten,
    value_id,
)
from paddle_ngraph.partitioning.analysis.empty_tensors import inferred_shapes, tensors_read

_BRANCH, _TRANSFORM = "pd_op.if", "pd_op.fft_r2c"


def drop_dead_loop_outputs(program: Program) -> None:
    """Drops loop-carried values of a PIR program that are read neither inside nor afterwards.

    In ``for row in x``, ``to_static`` makes ``row`` a loop-carried value, whose initial value is a
    placeholder of another shape. Blocks without sinks are skipped: their results may be fetched
    later.
    """
    for block in blocks_outermost_first(program):
        loops = [op for op in block.ops if op.name() == WHILE]
        if not loops or not any(op.name() in SINKS for op in block.ops):
            continue
        for loop in loops:
            for index in reversed(range(len(loop.results()))):
                _drop_dead_write(loop, index)
                is_dead = _is_dead_output(loop, index) and not _is_flag(loop, index)
                if len(loop.results()) > 1 and is_dead:
                    loop = _core.drop_carried_value(loop, index)
            _drop_unread_copies(loop)


def _drop_dead_write(loop: Operation, index: int) -> None:
    """Removes the only write to a loop-carried value without a reader, as ``to_static`` has some.

    Programs that Paddle translates from ProgramDesc assign to a placeholder of the outer block.
    """
    (block,) = loop.blocks()
    arg, end = block.args()[index], block.ops[-1]
    writes = [op for op in arg.all_used_ops() if op.id() != end.id()]
    if len(writes) != 1 or writes[0].name() != "pd_op.assign_out_":
        return
    (write,) = writes
    readers = write.result(0).all_used_ops()
    is_target = write.operand_source(1).is_same(arg) and not write.operand_source(0).is_same(arg)
    if is_target and loop.result(index).use_empty() and all(r.id() == end.id() for r in readers):
        write.result(0).replace_all_uses_with(arg)
        write.get_parent_block().remove_op(write)


def _drop_unread_copies(loop: Operation) -> None:
    (block,) = loop.blocks()
    for op in reversed(block.ops):
        if op.name() == "pd_op.assign" and op.result(0).use_empty():
            block.remove_op(op)


def capture_arrays(program: Program) -> None:
    """Has loops of a PIR program capture the TensorArrays that they carry and only write to.

    Loops of programs that were built as PIR write to a TensorArray of the block around them. Those
    that Paddle translates from ProgramDesc carry it, although it is the same object throughout.
    """
    for block in blocks_outermost_first(program):
        for loop in [op for op in block.ops if op.name() == WHILE]:
            for index in reversed(range(len(loop.results()))):
                if len(loop.results()) > 1 and _is_same_array(loop, index):
                    (body,) = loop.blocks()
                    array = loop.operand_source(index + 1)
                    body.args()[index].replace_all_uses_with(array)
                    loop.result(index).replace_all_uses_with(array)
                    loop = _core.drop_carried_value(loop, index)


def declare_unknown_sizes(program: Program) -> None:
    """Declares sizes in a PIR program as unknown for which Paddle declares a number.

    Those that differ between iterations of a loop: Paddle infers the shapes in a body from the
    initial values. It then declares loop-carried values that change their shape with unknown sizes,
    but not the results that follow from them. And the frequencies of one-sided transforms of
    unknown length, for which Paddle computes with a length of -1.
    """
    outermost = next(iter(blocks_outermost_first(program)))
    names = {op.name() for block in blocks_outermost_first(program) for op in block.ops}
    if not names.isdisjoint((WHILE, _TRANSFORM)):
        _declare_sizes(outermost)


def _declare_sizes(block: Block) -> None:
    for op in block.ops:
        if op.num_regions() > 0:
            for inner in op.blocks():
                _declare_sizes(inner)
                if not inner.ops:
                    continue  # a side of a branch without results
                args, end = inner.args(), inner.ops[-1].operands_source()
                yielded = end[len(end) - len(op.results()) :]
                for values in (args if op.name() == WHILE else (), yielded):
                    for result, value in zip(op.results(), values):
                        _forget_sizes(result, value.shape)
            _declare_dtypes(op)
        elif any(-1 in value.shape for value in tensors_read(op)):
            for result, shape in zip(op.results(), inferred_shapes(op)):
                _forget_sizes(result, shape)
            _forget_frequencies(op)


def _forget_frequencies(op: Operation) -> None:
    """Declares the number of frequencies as unknown if an operator is such a transform."""
    if op.name() != _TRANSFORM or not op.attrs()["onesided"]:
        return
    (x,), (result,) = op.operands_source(), op.results()
    axis = op.attrs()["axes"][-1]
    if x.shape[axis] == -1:
        sizes = list(result.shape)
        sizes[axis] = -1
        _forget_sizes(result, sizes)


def _declare_dtypes(op: Operation) -> None:
    """Declares results of a branch with the dtype of both yielded values, where it has another.

    In ProgramDesc programs, a result that only one side computes has the dtype of a placeholder.
    """
    if op.name() != _BRANCH or not op.results():
        return
    one, other = (block.ops[-1].operands_source() for block in op.blocks())
    for result, *yielded in zip(op.results(), one, other):
        dtypes = {dtype_name(value.dtype) for value in yielded if value.is_dense_tensor_type()}
        if len(dtypes) == 1 and dtypes != {dtype_name(result.dtype)}:
            result.set_type(paddle.pir.create_shaped_type(yielded[0].type(), list(result.shape)))


def _forget_sizes(value: Value, shape: Sequence[int]) -> None:
    """Declares sizes of a tensor as unknown that ``shape`` has so."""
    if not (
        value.initialized() and value.is_dense_tensor_type() and len(value.shape) == len(shape)
    ):
        return
    sizes = [-1 if other == -1 else size for size, other in zip(value.shape, shape)]
    if sizes != list(value.shape):
        value.set_type(paddle.pir.create_shaped_type(value.type(), sizes))


def _is_same_array(loop: Operation, index: int) -> bool:
    """Whether a loop-carried value is a TensorArray that the body writes to, and yields again."""
    (block,) = loop.blocks()
    arg, yielded = block.args()[index], block.ops[-1].operand_source(index + 1)
    if not arg.is_dense_tensor_array_type():
        return False
    written = {result.id: operand for op in block.ops for operand, result in overwritten(op)}
    while not yielded.is_same(arg):
        if yielded.id not in written:
            return False
        yielded = written[yielded.id]
    return True


def _is_dead_output(loop: Operation, index: int) -> bool:
    """Whether the only reader of a loop-carried value is the terminator, at its own index."""
    (block,) = loop.blocks()
    arg, end = block.args()[index], block.ops[-1]
    yielded_at = [n for n, value in enumerate(end.operands_source()) if value.is_same(arg)]
    return (
        loop.result(index).use_empty()
        and all(user.id() == end.id() for user in arg.all_used_ops())
        and yielded_at in ([], [index + 1])
    )


def _is_flag(loop: Operation, index: int) -> bool:
    """Whether a loop-carried value shows after the loop which branch its last iteration took.

    The function of the loop reads it for the size of values that grow (conversion/bodies.py).
    """
    (block,) = loop.blocks()
    arg, yielded = block.args()[index], block.ops[-1].operand_source(index + 1)
    return (
        dtype_name(yielded.dtype) == "bool"
        and list(arg.shape) == list(yielded.shape)
        and len(yielded.all_used_ops()) > 1
    )


def share_initial_values(program: Program) -> None:
    """Gives loops of a PIR program their own names for initial values that have other readers.

    The name is that of a copy, or of the same memory if writes in the loop are observed there.
    """
    aliases = Aliases(next(iter(blocks_outermost_first(program))))
    for loop, index in _shared_initial_values(program):
        is_observed = aliases.is_observed(value_id(loop.operand_source(index)))
        _replace_initial_value(loop, index, "pd_op.share_data" if is_observed else "pd_op.assign")


def _shared_initial_values(program: Program) -> Iterator[tuple[Operation, int]]:
    """Yields (loop, index) of operands that are initial values with other readers."""
    loops = [
        op for block in blocks_outermost_first(program) for op in block.ops if op.name() == WHILE
    ]
    for loop in loops:
        # Operand 0 of a loop is its condition, no initial value.
        for index in range(1, loop.num_operands()):
            value = loop.operand_source(index)
            if value.is_dense_tensor_type() and _is_shared(value, loop):
                yield loop, index


def _is_shared(value: Value, loop: Operation) -> bool:
    producer = value.get_defining_op()
    is_variable = producer is not None and producer.name() in SOURCES
    initial = [each for each in loop.operands_source() if each.is_same(value)]
    return is_variable or len(value.all_used_ops()) > 1 or len(initial) > 1


def _replace_initial_value(loop: Operation, index: int, name: str) -> None:
    value = loop.operand_source(index)
    (own,) = _core.insert_operator(loop, name, [value], [value], {})
    loop.operand(index).set_source(own)
