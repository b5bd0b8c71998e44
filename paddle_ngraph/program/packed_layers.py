"""Replaces ``pd_op.rnn`` and its gradient in a program with the packed operators.

A separate stage, before the program pass plans its intervals: the packed operators are native to
that pass.
"""

from __future__ import annotations

from typing import Any

from paddle_ngraph import _core, flags
from paddle_ngraph.mkl_packed.layers import OPERATORS, OPT_OUT
from paddle_ngraph.paddle_seam.protocols import Block, Operation, Program, Value
from paddle_ngraph.program.view import blocks_outside_in, dtype_name


def apply(program: Program | Block) -> int:
    """Replaces what can be replaced, if ``FLAGS_use_mkl_packed`` is on.

    Args:
        program: A ``paddle.pir.Program``, or its global block.

    Returns:
        How many recurrent operators were replaced, gradients not counted.
    """
    if not flags.get("use_mkl_packed"):
        return 0
    ops = [op for block in blocks_outside_in(program) for op in block.ops]
    found = [op for op in ops if op.name() == "pd_op.rnn" and _can_be_replaced(op)]
    for op in found:
        _replace(op)
    return len(found)


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
    return _is_taken_apart(_result(op, "state")) and all(
        _is_gradient(user, op) for user in _gradients(op)
    )


def _is_gradient(user: Operation, op: Operation) -> bool:
    return (
        user.name() == "pd_op.rnn_grad"
        and user.get_parent_block() == op.get_parent_block()
        and _inputs(user) is not None
        and _members(_operand(user, "state_grad")) is not None
        and _is_taken_apart(_result(user, "pre_state_grad"))
        and _is_taken_apart(_result(user, "weight_list_grad"))
    )


def _is_taken_apart(value: Value) -> bool:
    """Whether a list is only ever taken apart."""
    return not value.initialized() or all(
        user.name() == "builtin.split" for user in value.all_used_ops()
    )


def _gradients(op: Operation) -> list[Operation]:
    """The operators that read what only the operator's own gradient understands."""
    kept = [_result(op, "reserve"), _result(op, "dropout_state_out")]
    users = {user.id(): user for value in kept for user in value.all_used_ops()}
    return list(users.values())


def _replace(op: Operation) -> None:
    gradients = _gradients(op)
    attrs = op.attrs()
    name = f"custom_op.{OPERATORS[attrs['mode']]}"
    states = _members(_operand(op, "pre_state")) or []
    reserve = _result(op, "reserve")
    attributes = _attributes(attrs)
    if not gradients and not _drops(attrs):
        attributes["is_test"] = True  # the same numbers, and nothing kept for a gradient
    out, *others = _core.insert_operator(
        op,
        name,
        [_core.insert_combine(op, _inputs(op) or []), _lengths(op)],
        [_result(op, "out"), *states, reserve, reserve],
        attributes,
    )
    _result(op, "out").replace_all_uses_with(out)
    for gradient in gradients:
        _replace_gradient(gradient, f"{name}_grad", out, others[len(states) :])
    _replace_members(_result(op, "state"), others)
    op.get_parent_block().remove_op(op)


def _drops(attrs: dict[str, Any]) -> bool:
    return bool(attrs["dropout_prob"] > 0 and attrs["num_layers"] > 1)


def _replace_gradient(op: Operation, name: str, out: Value, kept: list[Value]) -> None:
    inputs = _core.insert_combine(op, _inputs(op) or [])
    state_grads = _members(_operand(op, "state_grad")) or []
    operands = [inputs, _lengths(op), out, *kept, _operand(op, "out_grad"), *state_grads]
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
    """x, the initial states and the weights, if the program shows them."""
    states, weights = _members(_operand(op, "pre_state")), _members(_operand(op, "weight_list"))
    if states is None or weights is None:
        return None
    return [_operand(op, "x"), *states, *weights]


def _members(value: Value) -> list[Value] | None:
    """The tensors in a list, if the program shows them."""
    producer = value.get_defining_op() if value.initialized() else None
    if producer is None or producer.name() != "builtin.combine":
        return None
    return list(producer.operands_source())
