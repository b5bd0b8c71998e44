"""Layers that are compiled by name in a job: when programs compute them, and what remains."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import distributed
from paddle_ngraph.distributed import training_state
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.warning_codes import LOGGER

STEPS, ROWS, WIDTH = 6, 4, 12
ALONE: Any = SimpleNamespace(exchange=lambda text: [text])
ACTIVATIONS: list[Callable[[], nn.Layer]] = [nn.Tanh, nn.GELU, nn.Sigmoid, nn.Softplus]


@pytest.fixture(autouse=True)
def in_job(monkeypatch, in_dynamic_mode, small_intervals_pay):
    """This process decides as one of a job does."""
    monkeypatch.setattr(background_compile, "is_disabled", lambda: True)
    monkeypatch.setattr(distributed, "_job", lambda: ALONE)
    paddle_ngraph.enable("training")
    with paddle.utils.unique_name.guard():
        yield


class Training:
    """A start of a training; equal seeds make equal ones.

    Args:
        seed: Draws the network, and all random numbers.
        is_prepared: Whether the layers are prepared.
    """

    def __init__(self, seed: int, is_prepared: bool) -> None:
        paddle.utils.unique_name.switch()  # names as in a new process
        draw = np.random.default_rng(seed)
        paddle.seed(seed)
        hidden = int(draw.integers(8, 40))
        activation = ACTIVATIONS[draw.integers(len(ACTIVATIONS))]
        self._feeds = draw.normal(size=(STEPS, ROWS, WIDTH)).astype("float32")
        layer = nn.Sequential(
            nn.Linear(WIDTH, hidden), nn.BatchNorm1D(hidden), activation(), nn.Dropout(0.3),
            nn.Linear(hidden, 1),
        )  # fmt: skip
        self.layer = paddle_ngraph.compile(layer)
        self.optimizer = paddle.optimizer.AdamW(0.01, parameters=layer.parameters())
        self.state = {"layer": layer, "adamw": self.optimizer}
        if is_prepared:
            distributed.prepare_layers(self.state, lambda: self.passes(np.zeros_like(self.feed(0))))

    def feed(self, step: int) -> np.ndarray:
        return self._feeds[step]

    def passes(self, feed: np.ndarray) -> float:
        loss = F.mse_loss(self.layer(paddle.to_tensor(feed)), paddle.to_tensor(feed[:, :1]))
        loss.backward()
        return float(loss)

    def step(self, number: int) -> str:
        paddle.seed(number)
        loss = self.passes(self.feed(number))
        self.optimizer.step()
        self.optimizer.clear_grad()
        return loss.hex()


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_training_that_starts_again_rounds_as_one_that_does_not(seed, is_prepared):
    first = Training(seed, is_prepared)
    restart = 1 + seed % (STEPS - 1)
    losses = [first.step(number) for number in range(restart)]
    saved = training_state.of(first.state, None)
    arrays, schedule = saved.arrays(), saved.schedule()
    losses += [first.step(number) for number in range(restart, STEPS)]

    second = Training(seed, is_prepared)
    training_state.of(second.state, None).restore(arrays, schedule)
    assert [second.step(number) for number in range(restart, STEPS)] == losses[restart:]
    for one, other in zip(first.layer.parameters(), second.layer.parameters()):
        assert one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_programs_compute_prepared_layers_from_the_first_step_on(is_prepared):
    training = Training(1, is_prepared)
    for number in range(3):
        paddle_ngraph.reset_stats()
        training.step(number)
        assert paddle_ngraph.stats()["engine_runs"] == (2 if is_prepared else 0)
        assert paddle_ngraph.stats()["functions_built"] == 0


def test_other_calls_of_a_prepared_layer_are_native():
    training = Training(2, True)
    for _ in range(3):
        paddle_ngraph.reset_stats()
        training.passes(training.feed(0)[: ROWS - 1])
        assert paddle_ngraph.stats()["engine_runs"] == 0


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_function_that_runs_natively_in_a_job_is_logged_once(monkeypatch, is_prepared):
    """Not a prepared one, until a call differs."""
    lines: list[str] = []
    monkeypatch.setattr(LOGGER, "warning", lambda text, *given: lines.append(text % given))
    training = Training(4, is_prepared)
    for number in range(3):
        training.step(number)
    assert len(lines) == (not is_prepared)
    for _ in range(3):
        training.passes(training.feed(0)[: ROWS - 1])
    (line,) = lines
    assert "forward runs natively: distributed.prepare_layers has not compiled this call" in line


@pytest.mark.parametrize("fails", [False, True])
def test_preparing_leaves_no_trace(fails):
    training = Training(3, False)
    before = training_state.of(training.state, None).arrays()
    stream = paddle.get_rng_state("cpu")[0].current_seed(), np.random.get_state()[1].tolist()

    def passes() -> None:
        training.passes(training.feed(1))
        np.random.random()
        if fails:
            raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            distributed.prepare_layers(training.state, passes)
    else:
        distributed.prepare_layers(training.state, passes)
    after = training_state.of(training.state, None).arrays()
    assert {k: v.tobytes() for k, v in after.items()} == {k: v.tobytes() for k, v in before.items()}
    assert all(each.grad is None for each in training.layer.parameters())
    assert stream == (
        paddle.get_rng_state("cpu")[0].current_seed(), np.random.get_state()[1].tolist()
    )  # fmt: skip
