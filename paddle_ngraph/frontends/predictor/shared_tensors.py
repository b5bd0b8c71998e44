"""Inputs and results that a predictor and its counterpart share or copy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import numpy as np
import paddle

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import (
    DenseTensor,
    PaddleDType,
    copy_of,
    operators_compute,
)
from paddle_ngraph.paddle_private.protocols import Handle, Predictor, Tensor
from paddle_ngraph.utils import signals

# Whether some handle has been given a LoD: until then, runs do not look for one.
_is_lod_used = False


def recording_lod(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def set_lod(self: Handle, lod: Any) -> None:
        global _is_lod_used
        original(self, lod)
        _is_lod_used = _is_lod_used or len(lod) > 0

    return set_lod


def has_lod(predictor: Predictor) -> bool:
    """Whether an input of a predictor has a LoD, which engine operators do not pass on."""
    if not _is_lod_used:
        return False
    handles = map(predictor.get_input_handle, predictor.get_input_names())
    return any(handle.lod() for handle in handles)


# No function below calls an operator of dynamic mode: in static mode, where the functions may run,
# these operators crash.


def with_own_memory(tensor: Any) -> Any:
    """Makes a tensor own its memory, by a copy of its data, and returns the tensor."""
    dense = tensor.get_tensor()
    if 0 not in dense.shape():
        _core.share_tensor(dense, copy_of(dense, paddle.CPUPlace()))
    return tensor


def contiguous(tensors: Any) -> Any:
    """The input tensors of a run, with views copied to contiguous memory.

    In a predictor, some kernels of Paddle read the memory of a view without its strides, and so do
    handles.
    """
    if not isinstance(tensors, (list, tuple)):
        return tensors  # passed on unchanged: Paddle raises the error
    return list(map(_contiguous_tensor, tensors))


def _contiguous_tensor(tensor: Any) -> Any:
    if not isinstance(tensor, paddle.Tensor) or tensor.is_contiguous():
        return tensor
    with operators_compute():
        return tensor.contiguous()


def show_inputs(predictor: Predictor, other: Predictor, tensors: Any) -> list[Any]:
    """Makes a predictor's handles show the input tensors of a run of its counterpart.

    Handles do so after a run by Paddle, too: a later run without tensors computes on them again, on
    their contents at that time.

    Returns:
        References to their memory; empty if Paddle does not accept the inputs.
    """
    names = other.get_input_names()
    if not isinstance(tensors, (list, tuple)) or len(tensors) != len(names):
        return []
    shown = []
    for name, tensor in zip(names, tensors):
        if not isinstance(tensor, paddle.Tensor):
            continue
        handle = predictor.get_input_handle(name)
        # Not shown if the handle does not support the dtype of the tensor.
        with suppress(NotImplementedError):
            handle.share_external_data(tensor)
            handle.set_lod(other.get_input_handle(name).lod())
        # This tensor retains the memory, even if the user's tensor is freed.
        shown.append(DenseTensor())
        _core.share_tensor(shown[-1], tensor.get_tensor())
    return shown


def copy_inputs(predictor: Predictor, other: Predictor) -> list[Tensor] | None:
    """Copies the inputs of ``predictor`` to ``other``, its counterpart.

    Returns:
        The copies, which own the new memory. ``None`` if an input could not be read.
    """
    copies = []
    for name in predictor.get_input_names():
        source = predictor.get_input_handle(name)
        with signals.own_errors():
            try:
                copies.append(copy_to_variable(source, other, name))
            except Exception:  # an input does not exist, or cannot be read
                return None
    return copies


def copy_to_variable(source: Handle, predictor: Predictor, name: str) -> Tensor:
    """Sets a variable of ``predictor`` to a copy of ``source``, in new memory.

    The user may have references to the variable's current memory.

    Returns:
        The tensor with the memory, to be retained, since no handle retains it.
    """
    data: np.ndarray = source.copy_to_cpu()
    # For bfloat16, Paddle returns a wider array, of which the first half contains the bits.
    if source.type() == PaddleDType.BFLOAT16:
        data = data.ravel().view(np.uint16)[: data.size].reshape(data.shape)
    # Handles can copy only data of these two dtypes, not share it.
    is_byte = data.dtype in (np.int8, np.uint8)
    # An empty tensor is given one element of memory, because Paddle's branches read the first
    # element even of empty tensors.
    source_data = data if data.size > 0 else np.zeros(1, data.dtype)
    tensor = DenseTensor()
    tensor.set(
        np.zeros(source_data.shape, "float32") if is_byte else source_data, paddle.CPUPlace()
    )
    # Also for outputs: output handles have no methods that write.
    target = predictor.get_input_handle(name)
    target.share_external_data(tensor)
    if is_byte:
        target.copy_from_cpu(source_data)
    if data.size == 0:
        target.reshape(list(data.shape))
    target.set_lod(source.lod())
    return tensor
