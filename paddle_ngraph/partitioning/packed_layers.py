"""Replaces ``pd_op.rnn`` and its gradient in a program with the packed operators.

A separate stage before partitioning, which does not convert the packed operators.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from paddle_ngraph import _core, flags
from paddle_ngraph.mkl_packed.layers import OPERATORS, OPT_OUT
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    SHADOW_OUTPUT,
    blocks_outermost_first,
    dtype_name,
    scope_name,
)
from paddle_ngraph.utils.thread_local import ThreadLocal

_LAYER = "pd_op.rnn"
_is_disabled = ThreadLocal(False)


def disabled() -> AbstractContextManager[None]:
    """Disables the replacement in this thread, for callers that need operators of the engine."""
    return _is_disabled.overridden(True)


def apply(program: Program | Block) -> int:
    """Replaces recurrent operators by packed ones, if ``FLAGS_use_mkl_packed`` is on.

    Operators of layers that opt out are left.

    Args:
        program: A ``paddle.pir.Program``, or its global block.

    Returns:
        The number of replaced recurrent operators, without gradients.
    """
    return _apply([op for block in blocks_outermost_first(program) for op in block.ops])


def apply_across(forward: Program, backward: Program) -> int:
    """Replaces recurrent operators of dynamic mode, whose gradients are in a separate program.

    Saved forward state is passed between the programs by name, for both kinds of operators.

    Args:
        forward: The forward program, which names saved state by ``builtin.shadow_output``.
        backward: The backward program, which reads it as keyword arguments of its block.

    Returns:
        As :func:`apply`.
    """
    return _apply(
        [op for op in forward.global_block().ops if _saves_all_for_backward(op)],
        backward.global_block(),
    )


def _saves_all_for_backward(op: Operation) -> bool:
    """Whether ``op`` is a layer whose saved state is all passed to another program."""
    if op.name() != _LAYER:
        return False
    users = [value.all_used_ops() for value in _private_results(op)]
    return all(len(each) == 1 and each[0].name() == SHADOW_OUTPUT for each in users)


def _apply(ops: list[Operation], other: Block | None = None) -> int:
    """Replaces recurrent layers, and their gradients, by packed layers.

    Args:
        ops: The operators to search for layers.
        other: The block of the gradients, if it is not the block of the layer.
    """
    if not flags.get("use_mkl_packed") or _is_disabled.value:
        return 0
    layers = [op for op in ops if op.name() == _LAYER and _can_be_replaced(op)]
    found = [(op, _gradients(op, other)) for op in layers]
    pairs = [(op, gradients) for op, gradients in found if gradients is not None]
    for op, gradients in pairs:
        _replace(op, gradients)
    return len(pairs)


def _can_be_replaced(op: Operation) -> bool:
    attrs = op.attrs()
    if attrs["mode"] not in OPERATORS or not attrs.get(OPT_OUT, True):
        return False
    inputs = _inputs(op)
    cells = attrs["num_layers"] * (2 if attrs["is_bidirec"] else 1)
    states = 2 if attrs["mode"] == "LSTM" else 1
    if inputs is None or len(inputs) != 1 + states + 4 * cells:
        return False
    if any(dtype_name(value.dtype) != "float32" for value in inputs):
        return False
    return _is_only_unpacked(_result(op, "state"))


def _private_results(op: Operation) -> list[Value]:
    """The results that only the gradient of this operator may read: its saved state."""
    return [_result(op, "reserve"), _result(op, "dropout_state_out")]


def _gradients(op: Operation, other: Block | None) -> list[Operation] | None:
    """The gradient operators of a recurrent operator: the readers of its saved state.

    ``None`` if another operator reads the state, so that the layer cannot be replaced.
    """
    values: list[Value | None] = [*_private_results(op)]
    if other is not None:
        names = [scope_name(value.all_used_ops()[0]) for value in _private_results(op)]
        values = [other.kwargs().get(name) for name in names]
    known = [value for value in values if value is not None]
    users = {user.id(): user for value in known for user in value.all_used_ops()}
    block = op.get_parent_block() if other is None else other
    fits = len(known) == len(values) and all(_is_gradient(each, block) for each in users.values())
    return list(users.values()) if fits else None


def _is_gradient(user: Operation, block: Block) -> bool:
    return (
        user.name() == f"{_LAYER}_grad"
        and user.get_parent_block() == block
        and _inputs(user) is not None
        and _members(_operand(user, "state_grad")) is not None
        and _is_only_unpacked(_result(user, "pre_state_grad"))
        and _is_only_unpacked(_result(user, "weight_list_grad"))
    )


def _is_only_unpacked(value: Value) -> bool:
    """Whether no operator but ``builtin.split`` reads a list, or the list is absent."""
    return not value.initialized() or all(
        user.name() == "builtin.split" for user in value.all_used_ops()
    )


def _replace(op: Operation, gradients: list[Operation]) -> None:
    attrs = op.attrs()
    name = f"custom_op.{OPERATORS[attrs['mode']]}"
    states = _members(_operand(op, "pre_state")) or []
    reserve = _result(op, "reserve")
    attributes = _attributes(attrs)
    if not gradients and not _has_dropout(attrs):
        # In this mode the operator has equal results, but saves nothing for a gradient.
        attributes["is_test"] = True
    out, *others = _core.insert_operator(
        op,
        name,
        [_core.insert_combine(op, _inputs(op) or []), _lengths(op)],
        [_result(op, "out"), *states, reserve, reserve],
        attributes,
    )
    for old, new in zip([_result(op, "out"), *_private_results(op)], [out, *others[len(states) :]]):
        old.replace_all_uses_with(new)
    for gradient in gradients:
        _replace_gradient(gradient, f"{name}_grad")
    _replace_members(_result(op, "state"), others)
    op.get_parent_block().remove_op(op)


def _has_dropout(attrs: dict[str, Any]) -> bool:
    return bool(attrs["dropout_prob"] > 0 and attrs["num_layers"] > 1)


def _replace_gradient(op: Operation, name: str) -> None:
    inputs = _core.insert_combine(op, _inputs(op) or [])
    state_grads = _members(_operand(op, "state_grad")) or []
    forward = [_operand(op, each) for each in ("out", "reserve", "dropout_state_out", "out_grad")]
    operands = [inputs, _lengths(op), *forward, *state_grads]
    (grads,) = _core.insert_operator(op, name, operands, [inputs], _attributes(op.attrs()))
    x_grad, *others = _core.insert_split(op, grads)
    if _result(op, "x_grad").initialized():
        _result(op, "x_grad").replace_all_uses_with(x_grad)
    _replace_members(_result(op, "pre_state_grad"), others[: len(state_grads)])
    _replace_members(_result(op, "weight_list_grad"), others[len(state_grads) :])
    op.get_parent_block().remove_op(op)


def _replace_members(old: Value, members: list[Value]) -> None:
    if not old.initialized():
        return
    for split in list(old.all_used_ops()):
        for value, new in zip(split.results(), members):
            value.replace_all_uses_with(new)
        split.get_parent_block().remove_op(split)


def _attributes(attrs: dict[str, Any]) -> dict[str, bool | int | float | str]:
    return {
        "mode": str(attrs["mode"]),
        "hidden_size": int(attrs["hidden_size"]),
        "num_layers": int(attrs["num_layers"]),
        "is_bidirec": bool(attrs["is_bidirec"]),
        "dropout_prob": float(attrs["dropout_prob"]),
        "seed": int(attrs["seed"]),
        "is_test": bool(attrs["is_test"]),
    }


def _operand(op: Operation, name: str) -> Value:
    return op.operand_source(op.get_input_names().index(name))


def _result(op: Operation, name: str) -> Value:
    return op.result(op.get_output_names().index(name))


def _lengths(op: Operation) -> Value | None:
    value = _operand(op, "sequence_length")
    return value if value.initialized() else None


def _inputs(op: Operation) -> list[Value] | None:
    """The operands of a packed layer: x, the initial states and the weights.

    ``None`` if no ``builtin.combine`` of this program produces the list of states or weights.
    """
    states, weights = _members(_operand(op, "pre_state")), _members(_operand(op, "weight_list"))
    if states is None or weights is None:
        return None
    return [_operand(op, "x"), *states, *weights]


def _members(value: Value) -> list[Value] | None:
    """The tensors in a list; ``None`` if no ``builtin.combine`` in the program produces it."""
    producer = value.get_defining_op() if value.initialized() else None
    if producer is None or producer.name() != "builtin.combine":
        return None
    return list(producer.operands_source())
