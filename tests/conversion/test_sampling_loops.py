"""Loops that sample by Paddle's kernel: the words, and the numbers that follow, are native's."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.programs import Program, counted, fed_limit, floats, parameter
from tests.zips import zip_equal

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

WORDS, WIDTH = 7, 4


def sampled(x: Any, weight: Any) -> Any:
    return paddle.multinomial(F.softmax(paddle.matmul(x, weight) * 3.0), 2, replacement=True)


def decoder(with_dropout: bool = False, reads_words: bool = True) -> list[Any]:
    """Words are sampled in a loop; ``ids`` may hold more than there are."""
    x = paddle.static.data("x", [-1, WIDTH], "float32")
    ids = paddle.static.data("ids", [1], "int64")
    weight, words = parameter(WIDTH, WORDS, seed=1), parameter(WORDS, WIDTH, seed=2)
    x = F.dropout(x, 0.5) if with_dropout else x

    def step(i: Any, h: Any, kept: Any) -> list[Any]:
        word = sampled(h if reads_words else x, weight)
        h = paddle.tanh(h + F.embedding(word[:, 0], words) + F.embedding(ids + i, words))
        return [h, paddle.concat([kept, word], axis=1)]

    start = paddle.full([paddle.shape(x)[0], 1], 0, "int64")
    return counted(step, x * 1.0, start, end=fed_limit())


def both(program: Program, **feed: np.ndarray) -> list[np.ndarray]:
    """Runs natively and by the engine from one seed; compares results and what follows."""
    results = []
    for engine in (False, True):
        paddle.seed(5)
        found = program.run(engine=engine, **feed)
        paddle.disable_static()
        results.append([*found, paddle.rand([3]).numpy()])
        paddle.enable_static()
    for one, other in zip_equal(*results):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    return results[1]


@pytest.mark.parametrize("reads_words", [True, False])
def test_a_loop_samples_as_paddle_does(reads_words: bool) -> None:
    program = Program(lambda: decoder(reads_words=reads_words))
    report = paddle_ngraph.explain(program.main)
    assert not report.native and len(report.intervals) == 1, report
    written = set()
    for seed, limit in enumerate([4, 1, 4]):
        feed = {"x": floats(2, WIDTH, seed=seed), "limit": np.array([limit])}
        paddle_ngraph.reset_stats()
        _, _, kept, _ = both(program, **feed, ids=np.array([0]))
        assert paddle_ngraph.stats()["engine_runs"] == 1
        written |= set(kept[:, 1:].ravel().tolist())
    assert len(written) > 3


def test_a_run_that_the_engine_rejects_samples_once() -> None:
    """The index of the third step is none: the engine's samples are none, Paddle's run fails."""
    program = Program(decoder)
    feed = {"x": floats(2, WIDTH), "limit": np.array([3])}
    both(program, **feed, ids=np.array([0]))
    paddle.seed(5)
    with pytest.raises(Exception, match=r"(?i)embedding|index"):
        program.run(**feed, ids=np.array([WORDS - 2]))
    paddle.disable_static()
    after = paddle.rand([1]).numpy()
    paddle.seed(5)
    stream = paddle.rand([16]).numpy()
    paddle.enable_static()
    # Four numbers a step: those of two steps at least, and of three at most.
    assert after[0] in stream[8:13]


def test_other_samples_in_the_subgraph_stay_in_order() -> None:
    program = Program(lambda: decoder(with_dropout=True))
    both(program, x=floats(2, WIDTH), limit=np.array([3]), ids=np.array([0]))


def test_outside_of_loops_paddle_samples() -> None:
    program = Program(
        lambda: sampled(paddle.static.data("x", [-1, WIDTH], "float32"), parameter(WIDTH, WORDS))
    )
    both(program, x=floats(2, WIDTH))
    native = list(paddle_ngraph.explain(program.main).native)
    assert [op.type for op in native] == ["pd_op.multinomial"]
    assert native[0].reason == "functions sample by it in loops only"
