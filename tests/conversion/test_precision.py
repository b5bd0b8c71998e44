"""FLAGS_ngraph_precision in inference: float32 unless bfloat16 is requested."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.static import Program

import paddle_ngraph
from paddle_ngraph import flags
from paddle_ngraph.conversion import build, processor


@pytest.fixture(autouse=True)
def float32_afterwards() -> Iterator[None]:
    paddle_ngraph.clear_cache()
    build._warn_without_bfloat16.cache_clear()
    yield
    flags.set("ngraph_precision", "f32")


class _Network:
    """A small network."""

    def __init__(self) -> None:
        paddle.seed(3)
        self.program, startup = Program(), Program()
        with paddle.static.program_guard(self.program, startup), paddle.utils.unique_name.guard():
            x = paddle.static.data("x", [64, 128])
            self.fetch = paddle.mean(nn.Linear(128, 128)(x) ** 2)
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        self.executor.run(startup)
        self.feed = {"x": np.random.default_rng(0).standard_normal((64, 128), "float32")}

    def run(self) -> float:
        with paddle_ngraph.use_ngraph():
            (found,) = self.executor.run(self.program, feed=self.feed, fetch_list=[self.fetch])
        return float(found)


def _run(network: _Network) -> tuple[float, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = network.run()
    return found, [str(each.message) for each in caught if "bf16" in str(each.message)]


def test_bfloat16_is_used_on_request_if_supported() -> None:
    network = _Network()
    exact, caught = _run(network)
    assert not caught
    flags.set("ngraph_precision", "bf16")
    found, caught = _run(network)
    assert paddle_ngraph.stats()["engine_runs"] == 2
    assert paddle_ngraph.stats()["functions_built"] == 2, "another precision, another function"
    if processor.has_bfloat16():
        assert found != exact and not caught
        np.testing.assert_allclose(found, exact, rtol=2e-2)
    else:
        assert found == exact
        assert len(caught) == 1 and "this processor has no units for bfloat16" in caught[0]


def test_another_precision_is_rejected() -> None:
    network = _Network()
    flags.set("ngraph_precision", "fp8")
    with pytest.raises(ValueError, match="FLAGS_ngraph_precision=fp8: use f32, bf16 or f16"):
        network.run()
    flags.set("ngraph_precision", "f32")
    network.run()
    assert paddle_ngraph.stats()["engine_runs"] == 1
