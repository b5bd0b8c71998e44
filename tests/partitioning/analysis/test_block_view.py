"""Facts of operators that block views state."""

from __future__ import annotations

import paddle
import pytest

from paddle_ngraph.partitioning.analysis.block_view import ordering_effects


@pytest.mark.parametrize(
    ("dropout", "num_layers", "is_stochastic"), [(0.0, 2, False), (0.5, 1, False), (0.5, 2, True)]
)
def test_dropout_between_recurrent_layers_is_stochastic(
    dropout: float, num_layers: int, is_stochastic: bool
) -> None:
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        x = paddle.static.data("x", [2, 3, 4], "float32")
        paddle.nn.LSTM(4, 5, num_layers=num_layers, dropout=dropout)(x)
    (op,) = (op for op in main.global_block().ops if op.name() == "pd_op.rnn")
    assert bool(ordering_effects(op)) == is_stochastic
