"""The shapes of a block's variables for feeds of given shapes: Paddle's own shape inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import SOURCES, dtype_name, scope_name, value_id
from paddle_ngraph.utils import signals

Shapes = Mapping[str, Sequence[int]]
# Type of a result: (dtype, shape); for a list of tensors a list of these; ``None`` for an absent
# result.
Type = Any

_FEEDS = frozenset({"pd_op.data", "pd_op.feed"})


def check(program: Program, shapes: Shapes) -> None:
    """Raises NgraphError if some feed of a program cannot have its shape in ``shapes``."""
    if not isinstance(shapes, Mapping):
        raise NgraphError(f"input_shapes is {shapes!r}: give shapes by the names of feeds")
    feeds = {scope_name(op): op.result(0) for op in program.global_block().ops if _is_feed(op)}
    for name, shape in shapes.items():
        if name not in feeds:
            known = ", ".join(sorted(feeds)) or "none"
            raise NgraphError(f"input_shapes names {name}, and the program is fed {known}")
        declared = list(feeds[name].shape)
        if not isinstance(shape, Sequence) or not _fits(shape, declared):
            raise NgraphError(
                f"{name} has the shape {declared} in the program, which {shape!r} does not match"
            )


def _fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    return len(shape) == len(declared) and all(
        isinstance(size, (int, np.integer)) and size > 0 and known in (-1, size)
        for size, known in zip(shape, declared)
    )


def types_in(block: Block, shapes: Shapes, open_size: int) -> dict[int, list[Type]]:
    """The static types of the results of each operator of a block, by its id.

    Args:
        block: Paddle's block.
        shapes: The shapes of some feeds.
        open_size: The size assumed for all other dynamic dimensions; -1: they stay unknown.
    """
    return _Inference(shapes, open_size).run(block)


def types_of_variables(block: Block, shapes: Shapes) -> dict[str, list[Type]]:
    """The types of the tensors in each variable of a block, of which some may stay dynamic.

    Args:
        block: Paddle's block.
        shapes: The shapes of some feeds.

    Returns:
        By id of the variable, its type, or those of the members of a list.
    """
    types = types_in(block, shapes, -1)
    found = {}
    for op in block.ops:
        for value, type in zip(op.results(), types.get(op.id(), ())):
            if type is not None and value.initialized():
                members = type if isinstance(type, list) else [type]
                found[value_id(value)] = [each for each in members if each is not None]
    return found


def _is_feed(op: Operation) -> bool:
    return op.name() in _FEEDS and not any(op.attrs().get("persistable", ()))


class _Inference:
    """Infers types by rebuilding a block on variables of given shapes; see :func:`types_in`."""

    def __init__(self, shapes: Shapes, open_size: int) -> None:
        self._shapes = shapes
        self._open_size = open_size
        self._program: Program = paddle.pir.Program()
        self._block = self._program.global_block()
        # Value id -> the rebuilt value; for a list, a Python list of values.
        self._values: dict[int, Any] = {}

    def run(self, block: Block) -> dict[int, list[Type]]:
        found = {}
        for op in block.ops:
            if op.results():
                types = self._of_list(op) or self._inferred(op) or self._declared(op)
                found[op.id()] = types
        return found

    def _of_list(self, op: Operation) -> list[Type] | None:
        """The result types of an operator on lists, which are Python lists here; else ``None``."""
        if op.name() not in ("builtin.combine", "builtin.split", "builtin.slice"):
            return None
        members: list[Any] = [self._values.get(value.id) for value in op.operands_source()]
        if any(each is None for each in members):
            return None
        if op.name() == "builtin.combine":
            results = [members]
        elif op.name() == "builtin.split":
            results = list(members[0])
        else:
            results = [members[0][op.attrs()["index"]]]
        self._values.update((value.id, each) for value, each in zip(op.results(), results))
        return [_type_of(each) for each in results]

    def _inferred(self, op: Operation) -> list[Type] | None:
        if op.name() in SOURCES or not op.name().startswith("pd_op.") or op.num_regions() > 0:
            return None
        with signals.own_errors():
            try:
                operands = [self._operand(value) for value in op.operands_source()]
                results = _core.append_operator(
                    self._block, op.name(), operands, None, _core.attributes_of(op)
                )
            except Exception:  # Paddle's shape inference may raise any error
                return None
        for value, each in zip(op.results(), results):
            if value.initialized():
                self._values[value.id] = each
        # An assumed size replaces one that stays unknown since it depends on data, such as the
        # number of nonzero elements.
        return [self._with_known_sizes(_type_of(each), None) for each in results]

    def _operand(self, value: Value) -> Any:
        return self._values[value.id] if value.initialized() else None

    def _declared(self, op: Operation) -> list[Type]:
        """The result types that the program declares, with sizes in place of dynamic dimensions."""
        if op.name().startswith("cf.") or not all(map(_is_tensor, op.results())):
            return []
        known = self._shapes.get(scope_name(op)) if _is_feed(op) else None
        types = []
        for value, type in zip(op.results(), _core.result_types(op)):
            static = self._with_known_sizes(type, known)
            types.append(static)
            if static is not None:
                self._values[value.id] = self._variables(static)
        return types

    def _with_known_sizes(self, type: Type, known: Sequence[int] | None) -> Type:
        if type is None or isinstance(type, list):
            return None if type is None else [self._with_known_sizes(each, known) for each in type]
        dtype, shape = type
        return dtype, [self._open_size if size < 0 else size for size in known or shape]

    def _variables(self, type: Type) -> Any:
        if isinstance(type, list):
            return [self._variables(each) for each in type]
        return _core.append_variable(self._block, f"variable_{len(self._values)}", type)


def _is_tensor(value: Value) -> bool:
    """Whether a value is a dense tensor or a list of them: no SelectedRows, no TensorArray."""
    if not value.initialized() or value.is_dense_tensor_type():
        return True
    return not (value.is_selected_row_type() or value.is_dense_tensor_array_type())


def _type_of(value: Any) -> Type:
    if isinstance(value, list):
        return [_type_of(each) for each in value]
    if not value.initialized() or not value.is_dense_tensor_type():
        return None
    return dtype_name(value.dtype), list(value.shape)
