"""Old-style programs: what Paddle's translation to PIR loses, and what it makes that cannot run."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.errors import NgraphError
from tests.programs import Program, floats


def an_xshape():
    block = paddle.static.default_main_program().global_block()
    x = paddle.static.data("x", [2, 3], "float32")
    out = block.create_var(name="out", dtype="float32")
    xshape = block.create_var(name="xshape", dtype="float32", persistable=True)
    outputs = {"Out": out, "XShape": xshape}
    block.append_op(type="squeeze2", inputs={"X": x}, outputs=outputs, attrs={"axes": []})
    return out


def merged_momentum():
    loss = paddle.mean(paddle.static.nn.fc(paddle.static.data("x", [2, 3], "float32"), 2))
    paddle.optimizer.Momentum(0.1, use_multi_tensor=True).minimize(loss)
    return loss


def sum_of_an_array():
    array = paddle.tensor.create_array("float32")
    x = paddle.scale(paddle.static.data("x", [2, 3], "float32"), 2.0)
    for position in range(2):
        paddle.tensor.array_write(x, paddle.tensor.fill_constant([1], "int64", position), array)
    return paddle.add_n(array)


@pytest.mark.parametrize("build", [an_xshape, merged_momentum, sum_of_an_array])
def test_what_paddle_translates_and_cannot_run_stays_native(build):
    with paddle.pir_utils.OldIrGuard():
        native, engine = Program(build), Program(build)
        for _ in range(2):
            (expected,) = native.run(engine=False, x=floats(2, 3))
            np.testing.assert_array_equal(engine.run(x=floats(2, 3))[0], expected)
        assert paddle_ngraph.stats()["engine_runs"] == 0
        if build is an_xshape:
            assert engine.scope.find_var("xshape").get_tensor().shape() == [0, 2, 3]


def test_explain_says_that_such_a_program_stays_native():
    with paddle.pir_utils.OldIrGuard():
        program = Program(merged_momentum)
    with pytest.raises(NgraphError, match="stays native"):
        paddle_ngraph.explain(program.main)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_reductions_over_everything(name, dtype):
    """As Paddle 1 wrote them: axis 0 and ``reduce_all``, of which the translation keeps axis 0."""

    def build():
        x = paddle.static.data("x", [3, 4], "float32")
        x.stop_gradient = False
        block = paddle.static.default_main_program().global_block()
        out = block.create_var(dtype=dtype)
        inputs = {"X": paddle.cast(paddle.scale(x, 2.0), dtype)}
        attributes = {"dim": [0], "reduce_all": True, "keep_dim": False}
        block.append_op(
            type=f"reduce_{name}", inputs=inputs, outputs={"Out": out}, attrs=attributes
        )
        return [out, *paddle.static.gradients(out, [x])]

    with paddle.pir_utils.OldIrGuard():
        program = Program(build)
        for _ in range(2):
            out, gradient = program.both(x=floats(3, 4))
            assert out.shape == ()
            assert gradient.shape == (3, 4)
