"""Indices out of range: the engine rejects them as Paddle does, for every source of indices."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.programs import Program, floats, summary


def direct():
    ids = paddle.static.data("ids", [-1, 4], "int64")
    return paddle.nn.Embedding(10, 3)(ids)


def shifted():
    """Only the first three columns are looked up."""
    ids = paddle.static.data("ids", [-1, 4], "int64")
    return paddle.nn.Embedding(10, 3)(ids[:, :-1])


def trained():
    ids = paddle.static.data("ids", [-1, 4], "int64")
    label = paddle.static.data("label", [-1, 1], "int64")
    logits = paddle.nn.Linear(3, 5)(paddle.mean(paddle.nn.Embedding(10, 3)(ids), axis=1))
    loss = paddle.mean(paddle.nn.functional.cross_entropy(logits, label))
    paddle.optimizer.SGD(0.1).minimize(loss)
    return loss


IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])


def with_id(row, column, value):
    ids = IDS.copy()
    ids[row, column] = value
    return ids


@pytest.mark.parametrize("build", [direct, shifted])
@pytest.mark.parametrize("value", [10, -1, 2**31 - 1, 2**32 + 1, -(2**40)])
def test_an_id_out_of_range_is_rejected(build, value):
    program = Program(build)
    program.both(ids=IDS)
    if value == -1:  # Paddle treats it as "no padding", and reads memory before the table
        shapes = [program.run(e, ids=with_id(1, 2, value))[0].shape for e in (False, True)]
        assert shapes[0] == shapes[1]
        return
    for engine in (False, True):
        with pytest.raises(ValueError, match=r"range|Variable value|out of|expected"):
            program.run(engine, ids=with_id(1, 2, value))
    program.both(ids=IDS)


def test_an_unread_id_is_not_checked():
    Program(shifted).both(ids=with_id(0, 3, 99))


@pytest.mark.parametrize("feed", [{"ids": with_id(0, 0, 10)}, {"label": np.array([[5], [0]])}])
def test_a_rejected_step_changes_no_weight(feed):
    program = Program(trained)
    names = ["embedding_0.w_0", "linear_0.w_0", "linear_0.b_0"]
    before = [program.variable(name) for name in names]
    good = {"ids": IDS, "label": np.array([[1], [4]])}
    messages = []
    for engine in (False, True):
        with pytest.raises((ValueError, IndexError)) as caught:
            program.run(engine, **{**good, **feed})
        messages.append((caught.type, summary(caught.value)))
    assert messages[0] == messages[1]
    for name, value in zip(names, before):
        np.testing.assert_array_equal(program.variable(name), value)
    paddle_ngraph.reset_stats()
    program.run(True, **good)
    assert paddle_ngraph.stats()["engine_runs"] == 1


def nested():
    x = paddle.static.data("x", [3, 4], "float32")
    index = paddle.static.data("index", [-1, 2], "int64")
    return paddle.gather_nd(x, index)


def test_each_position_of_gather_nd_has_its_own_bounds():
    program = Program(nested)
    program.both(x=floats(3, 4), index=np.array([[2, 3], [-3, -4], [0, 0]]))
    for bad in ([3, 0], [0, 4], [-4, 0], [0, -5]):
        for engine in (False, True):
            with pytest.raises(ValueError):
                program.run(engine, x=floats(3, 4), index=np.array([bad]))


def test_an_ignored_label_is_allowed():
    def build():
        x = paddle.static.data("x", [3, 4], "float32")
        label = paddle.static.data("label", [3, 1], "int64")
        return paddle.nn.functional.cross_entropy(x, label, ignore_index=-100, reduction="none")

    Program(build).both(x=floats(3, 4), label=np.array([[0], [-100], [3]]))
