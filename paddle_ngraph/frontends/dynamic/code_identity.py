"""Identity of a function or layer in other processes: its code, and the parts of the layer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import paddle


def identity_of(function: Callable[..., Any], layer: Any) -> str:
    """Returns a text that is equal for equal code, and equal classes and parameters of a layer.

    The values of parameters, and what else Python objects contain, are not part of it.

    Args:
        function: The function, or the method of a layer.
        layer: The layer; any other object counts by its type.
    """
    lines = [_described(function), _described(type(layer))]
    if isinstance(layer, paddle.nn.Layer):
        for name, each in layer.named_sublayers(include_self=True):
            lines.append(f"{name} {_described(type(each))} {_described(type(each).forward)}")
        for name, parameter in layer.named_parameters():
            lines.append(f"{name} {parameter.shape} {parameter.dtype}")
    return "\n".join(lines)


def _described(thing: Any) -> str:
    """The name of a class or function, and a digest of its code, if it has any."""
    thing = getattr(thing, "__func__", thing)
    digest = hashlib.sha256()
    for part in _parts(getattr(thing, "__code__", None)):
        digest.update(part)
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    return f"{module}.{name} {digest.hexdigest()[:16]}"


def _parts(code: CodeType | None) -> Iterator[bytes]:
    """The instructions, names and constants of a function, and of those that are nested in it."""
    if code is None:
        return
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        elif isinstance(constant, frozenset):  # whose order differs in each process
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()
