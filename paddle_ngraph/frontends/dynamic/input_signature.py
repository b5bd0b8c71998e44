"""Signatures of the inputs of a call: what decisions about its time are made for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import paddle

# Containers below this depth are not part of a signature.
_MAX_NESTING_LEVELS = 16


class InputSignature(NamedTuple):
    """The signature of inputs.

    Attributes:
        types: Dtypes, ranks and structure; of layers, whether they train.
        sizes: The sizes of all tensors.
    """

    types: Hashable
    sizes: tuple[int, ...]

    @property
    def bucket(self) -> Hashable:
        """Equal for inputs of similar cost: the sizes are rounded up to powers of two."""
        return self.types, tuple([size if size < 2 else _rounded_up(size) for size in self.sizes])


def _rounded_up(size: int) -> int:
    return 1 << (size - 1).bit_length()


class FlatInputs:
    """Inputs of a call that are tensors, layers and objects without tensors, for comparisons.

    Args:
        inputs: The positional arguments of the call.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._inputs = [
            (type(each), list(each.shape), each.dtype)  # compared faster than Paddle's shapes
            if isinstance(each, paddle.Tensor)
            else (type(each), each.training if isinstance(each, paddle.nn.Layer) else None, None)
            for each in inputs
        ]

    @staticmethod
    def are_flat(inputs: Sequence[Any]) -> bool:
        """Whether no container is among inputs."""
        return not any(isinstance(each, (list, tuple, dict)) for each in inputs)

    def equal(self, inputs: Sequence[Any]) -> bool:
        """Whether other inputs have the same types, dtypes and sizes."""
        if len(inputs) != len(self._inputs):
            return False
        for each, (of_type, state, dtype) in zip(inputs, self._inputs):
            if type(each) is not of_type:
                return False
            if dtype is not None:
                # Paddle has one object for each dtype.
                if each.dtype is not dtype or each.shape != state:
                    return False
            elif state is not None and each.training != state:
                return False
        return True


def of(inputs: Any) -> InputSignature:
    """The signature of inputs: tensors and other objects, nested in lists, tuples and dicts."""
    sizes: list[int] = []
    types = _types_of(inputs, sizes, 0)
    return InputSignature(types, tuple(sizes))


def _types_of(value: Any, sizes: list[int], depth: int) -> Hashable:
    """Returns dtypes, ranks and structure of an input, and appends its sizes to ``sizes``."""
    if isinstance(value, paddle.Tensor):
        shape = value.shape
        sizes.extend(shape)  # extend(), since += would call an operator of Paddle's type of shapes
        return value.dtype, len(shape)
    if depth < _MAX_NESTING_LEVELS and isinstance(value, (list, tuple)):
        return (type(value), *[_types_of(each, sizes, depth + 1) for each in value])
    if depth < _MAX_NESTING_LEVELS and isinstance(value, dict):
        return tuple([(key, _types_of(each, sizes, depth + 1)) for key, each in value.items()])
    if isinstance(value, paddle.nn.Layer):
        return type(value), value.training
    return type(value).__qualname__
