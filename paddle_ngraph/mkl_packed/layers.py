"""``SimpleRNN``, ``GRU`` and ``LSTM`` of ``paddle.nn`` that compute with packed weights."""

from __future__ import annotations

from typing import Any, TypeVar

import paddle
from paddle import nn

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import (
    RNNBase,
    change_class,
    in_dynamic_or_pir_mode,
    in_pir_mode,
    run_custom_operator,
    weights_of,
)

# For each mode of Paddle's recurrent operator, the packed operator.
OPERATORS = {
    "RNN_TANH": "mkl_packed_rnn",
    "RNN_RELU": "mkl_packed_rnn",
    "GRU": "mkl_packed_gru",
    "LSTM": "mkl_packed_lstm",
}
# Attribute of Paddle's own recurrent operator that excludes it from replacement by the program
# pass.
OPT_OUT = "use_mkl_packed"


def _contiguous(value: Any) -> Any:
    """``value``, or a copy of it if it is a tensor whose elements are apart in memory."""
    return value.contiguous() if isinstance(value, paddle.Tensor) else value


class _Packed(RNNBase):
    """Recurrent layer that computes ``out, states`` with packed weights if its input allows it."""

    use_mkl_packed: bool = True

    def _cudnn_impl(self, inputs: Any, initial_states: Any, sequence_length: Any) -> Any:
        if self.use_mkl_packed:
            if not (self.training or paddle.is_grad_enabled()) and paddle.in_dynamic_mode():
                results = self._inferred(inputs, initial_states, sequence_length)
                if results is not None:
                    return results
            if self._fits(inputs):
                return self._packed(inputs, initial_states, sequence_length)
        out, states = super()._cudnn_impl(inputs, initial_states, sequence_length)
        if not self.use_mkl_packed and in_pir_mode():
            first = states[0] if isinstance(states, tuple) else states
            first.get_defining_op().operand_source(0).get_defining_op().set_bool_attr(
                OPT_OUT, False
            )
        return out, states

    def _inferred(self, inputs: Any, initial_states: Any, sequence_length: Any) -> Any:
        """The results of :meth:`_packed` by a direct call; ``None`` if the operator has to run."""
        # A view, such as a transposed tensor, is copied, as Paddle copies it for operators.
        found = _core.mkl_packed.infer(
            [
                _contiguous(self._time_first(inputs)),
                *map(_contiguous, initial_states),
                *weights_of(self),
            ],
            _contiguous(sequence_length),
            self.mode,
            self.hidden_size,
            self.num_layers,
            self.num_directions == 2,
        )
        return None if found is None else self._results(*found)

    def _fits(self, inputs: Any) -> bool:
        """Whether the packed operator supports these inputs; else Paddle's layer runs."""
        if not in_dynamic_or_pir_mode() or paddle.device.get_device() != "cpu":
            return False
        tensors = [inputs, *weights_of(self)]
        return all(tensor.dtype == paddle.float32 for tensor in tensors)

    def _packed(self, inputs: Any, initial_states: Any, sequence_length: Any) -> Any:
        out, *others = run_custom_operator(
            OPERATORS[self.mode],
            [self._time_first(inputs), *initial_states, *weights_of(self)],
            sequence_length,
            self.mode,
            self.hidden_size,
            self.num_layers,
            self.num_directions == 2,
            float(self.dropout),
            0,
            not self.training,
        )
        return self._results(out, *others[: self.state_components])

    def _results(self, out: Any, *states: Any) -> Any:
        """The results of a call, from those of the operator."""
        return self._time_first(out), states if len(states) > 1 else states[0]

    def _time_first(self, tensor: Any) -> Any:
        """``tensor`` with the axes of time and batch exchanged, unless the layer is time-major."""
        return tensor if self.time_major else paddle.transpose(tensor, [1, 0, 2])


class SimpleRNN(_Packed, nn.SimpleRNN):
    """``paddle.nn.SimpleRNN`` with packed weights.

    Args:
        *args, **kwargs: Those of ``paddle.nn.SimpleRNN``.
        use_mkl_packed: ``False``: the layer falls back to Paddle, now and in the program pass.

    Parameters, their names and the state dict are those of ``paddle.nn.SimpleRNN``, and so are
    shapes and results. Inputs that are not float32 or not on the CPU fall back to Paddle.

    Raises:
        ValueError: Mismatched shapes, zero steps, or a sequence longer than the input.
    """

    def __init__(self, *args: Any, use_mkl_packed: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.use_mkl_packed = use_mkl_packed


class GRU(_Packed, nn.GRU):
    """``paddle.nn.GRU`` with packed weights; see :class:`SimpleRNN`."""

    def __init__(self, *args: Any, use_mkl_packed: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.use_mkl_packed = use_mkl_packed


class LSTM(_Packed, nn.LSTM):
    """``paddle.nn.LSTM`` with packed weights; see :class:`SimpleRNN`."""

    def __init__(self, *args: Any, use_mkl_packed: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.use_mkl_packed = use_mkl_packed


_PACKED = {nn.SimpleRNN: SimpleRNN, nn.GRU: GRU, nn.LSTM: LSTM}

Model = TypeVar("Model", bound=nn.Layer)


def use_mkl_packed(layer: Model, on: bool = True) -> Model:
    """Replaces the recurrent layers of ``layer`` with packed ones in place; weights are retained.

    Args:
        layer: Any layer, possibly a recurrent layer itself.
        on: ``False``: the recurrent layers fall back to Paddle, now and in the program pass.

    Returns:
        ``layer``.
    """
    for inner in layer.sublayers(include_self=True):
        if not isinstance(inner, RNNBase):
            continue
        if not isinstance(inner, _Packed):
            layer_type = type(inner)
            change_class(
                inner,
                _PACKED.get(layer_type) or type(layer_type.__name__, (_Packed, layer_type), {}),
            )
        inner.use_mkl_packed = on
    return layer
