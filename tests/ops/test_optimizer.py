"""Optimizers: parameters and optimizer state after many steps with given gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.ir.graph import Op
from tests.programs import Program, floats

# Enough steps for rounding errors to accumulate and states to be read and written several times.
STEPS = 12
SHAPES: list[list[int]] = [[], [1], [7], [3, 5], [2, 3, 4, 5], [40, 30]]


def gradients_are_given(make_optimizer: Callable[[], Any]) -> Callable[[], Any]:
    """A program whose parameters, one of each shape, take the feeds as their gradients."""

    def build() -> Any:
        losses = []
        for number, shape in enumerate(SHAPES):
            gradient = paddle.static.data(f"gradient_{number}", shape, "float32")
            parameter = paddle.create_parameter(
                shape,
                "float32",
                name=f"parameter_{number}",
                default_initializer=paddle.nn.initializer.Normal(),
            )
            losses.append(paddle.sum(parameter * gradient))
        loss = paddle.add_n(losses)
        make_optimizer().minimize(loss)
        return loss

    return build


def feeds(step: int, bad: bool = False) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(step)
    found = {
        f"gradient_{number}": np.asarray(generator.normal(size=shape), dtype="float32")
        for number, shape in enumerate(SHAPES)
    }
    if bad:  # one element of each of up to three parameters
        for name, value in zip(list(found)[-4:-1], (np.nan, np.inf, -np.inf)):
            found[name].flat[found[name].size // 2] = value
    return found


def states_after(make_optimizer: Callable[[], Any], engine: bool) -> Any:
    """Returns the program, and its states: before gradients that are not finite, and after."""
    program = Program(gradients_are_given(make_optimizer))
    states = []
    for bad in (False, True):
        for step in range(STEPS if not bad else 2):
            program.run(engine, **feeds(step, bad and step == 0))
        state = program.main.state_dict("all", program.scope)
        states.append({name: np.array(value) for name, value in state.items()})
    return program, states


def check(make_optimizer: Callable[[], Any], kind: str) -> None:
    """Asserts that ``kind`` ran in the engine and left the same state as steps by Paddle."""
    _, native = states_after(make_optimizer, engine=False)
    paddle_ngraph.reset_stats()
    program, engine = states_after(make_optimizer, engine=True)
    assert paddle_ngraph.stats()["engine_runs"] >= STEPS + 2
    converted = [name for i in paddle_ngraph.explain(program.main).intervals for name in i.types]
    assert converted.count(f"pd_op.{kind}") == len(SHAPES)
    for expected, actual in zip(native, engine):
        assert_same_state(expected, actual)


def assert_same_state(native: dict[str, np.ndarray], engine: dict[str, np.ndarray]) -> None:
    assert native.keys() == engine.keys()
    for name, expected in native.items():
        # Every step rounds a few times; the terms of a parameter's sum set the scale.
        finite = expected[np.isfinite(expected)]
        scale = max(1.0, np.abs(finite).max(initial=0.0))
        np.testing.assert_allclose(engine[name], expected, 2e-6, 1e-6 * scale, err_msg=name)


O = paddle.optimizer  # noqa: E741
OPTIMIZERS = {
    "sgd_": [lambda: O.SGD(0.1)],
    "momentum_": [
        lambda: O.Momentum(0.1, 0.9),
        lambda: O.Momentum(0.1, 0.9, use_nesterov=True),
        lambda: O.Momentum(0.1, 0.9, weight_decay=paddle.regularizer.L2Decay(0.01)),
        lambda: O.Momentum(0.1, 0.8, use_nesterov=True, weight_decay=0.02),
        lambda: O.Momentum(0.1, 0.9, rescale_grad=0.5),
        lambda: O.Momentum(0.1, 0.9, use_multi_tensor=True),
    ],
    "adam_": [
        lambda: O.Adam(0.01),
        lambda: O.Adam(0.01, beta1=0.8, beta2=0.95, epsilon=1e-3),
        lambda: O.Adam(0.01, amsgrad=True),
        lambda: O.Adam(0.01, use_multi_tensor=True),
    ],
    "adamw_": [
        lambda: O.AdamW(0.01),
        lambda: O.AdamW(0.01, weight_decay=0.3),
        lambda: O.AdamW(0.01, amsgrad=True),
        lambda: O.AdamW(0.01, apply_decay_param_fun=lambda name: False),
    ],
    "lamb_": [lambda: O.Lamb(0.01), lambda: O.Lamb(0.01, 0.0), lambda: O.Lamb(0.01, 0.1, 0.8)],
    "adamax_": [lambda: O.Adamax(0.01), lambda: O.Adamax(0.01, 0.8, 0.95, 1e-3)],
    "adagrad_": [
        lambda: O.Adagrad(0.1),
        lambda: O.Adagrad(0.1, epsilon=1e-2, initial_accumulator_value=0.5),
    ],
    "adadelta_": [lambda: O.Adadelta(0.1), lambda: O.Adadelta(0.1, epsilon=1e-3, rho=0.8)],
    "rmsprop_": [
        lambda: O.RMSProp(0.01),
        lambda: O.RMSProp(0.01, centered=True),
        lambda: O.RMSProp(0.01, rho=0.8, epsilon=1e-3, momentum=0.9, centered=True),
        lambda: O.RMSProp(0.01, momentum=0.9),
    ],
}
CASES = [
    pytest.param(kind, make, id=f"{kind}{number}")
    for kind, makers in OPTIMIZERS.items()
    for number, make in enumerate(makers)
]


@pytest.mark.parametrize("kind, make_optimizer", CASES)
def test_many_steps_and_bad_gradients(kind, make_optimizer):
    check(make_optimizer, kind)


@pytest.mark.parametrize("kind", ["momentum_", "adam_", "adamw_"])
def test_large_parameters(kind, monkeypatch):
    """Updates of large parameters are split among threads, in chunks."""
    monkeypatch.setattr(sys.modules[__name__], "SHAPES", [[520, 513], [3, 70001]])
    monkeypatch.setattr(sys.modules[__name__], "STEPS", 4)
    for make_optimizer in OPTIMIZERS[kind][:4]:
        check(make_optimizer, kind)


@pytest.mark.parametrize(
    "clip",
    [
        lambda: paddle.nn.ClipGradByNorm(1.0),
        lambda: paddle.nn.ClipGradByGlobalNorm(1.0),
    ],
)
def test_clipped_gradients(clip):
    check(lambda: O.Momentum(0.1, 0.9, grad_clip=clip()), "momentum_")


@pytest.mark.parametrize(
    "decay", [paddle.regularizer.L1Decay(0.01), paddle.regularizer.L2Decay(0.01)]
)
def test_weight_decay(decay):
    check(lambda: O.Adam(0.01, weight_decay=decay), "adam_")


LR = paddle.optimizer.lr
SCHEDULERS = {
    "NoamDecay": lambda: LR.NoamDecay(64, 10),
    "PiecewiseDecay": lambda: LR.PiecewiseDecay([2, 4], [0.1, 0.05, 0.01]),
    "NaturalExpDecay": lambda: LR.NaturalExpDecay(0.1, 0.5),
    "InverseTimeDecay": lambda: LR.InverseTimeDecay(0.1, 0.5),
    "PolynomialDecay": lambda: LR.PolynomialDecay(0.1, 5),
    "LinearWarmup": lambda: LR.LinearWarmup(LR.CosineAnnealingDecay(0.1, 5), 3, 0.0, 0.1),
    "ExponentialDecay": lambda: LR.ExponentialDecay(0.1, 0.5),
    "MultiStepDecay": lambda: LR.MultiStepDecay(0.1, [2, 4]),
    "StepDecay": lambda: LR.StepDecay(0.1, 2),
    "LambdaDecay": lambda: LR.LambdaDecay(0.1, lambda epoch: 0.9**epoch),
    "ReduceOnPlateau": lambda: LR.ReduceOnPlateau(0.1, patience=1),
    "CosineAnnealingDecay": lambda: LR.CosineAnnealingDecay(0.1, 5),
    "MultiplicativeDecay": lambda: LR.MultiplicativeDecay(0.1, lambda epoch: 0.9),
    "OneCycleLR": lambda: LR.OneCycleLR(0.1, 10),
    "CyclicLR": lambda: LR.CyclicLR(0.01, 0.1, 2),
    "LinearLR": lambda: LR.LinearLR(0.1, 5),
    "CosineAnnealingWarmRestarts": lambda: LR.CosineAnnealingWarmRestarts(0.1, 3),
}


def losses_of(engine: bool, make_scheduler: Callable[[], Any], **options: Any) -> list[float]:
    """Losses of six training steps of a small network, which must run in the engine as a whole."""
    scheduler = make_scheduler()

    def build() -> Any:
        x, y = (paddle.static.data(name, [-1, 4], "float32") for name in "xy")
        network = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.Linear(8, 4))
        loss = paddle.mean((network(x) - y) ** 2)
        O.Momentum(scheduler, **options).minimize(loss)
        return loss

    program = Program(build)
    report = paddle_ngraph.explain(program.main)
    assert not report.native and len(report.intervals) == 1, report
    losses = []
    for step in range(6):
        [loss] = program.run(engine, x=floats(5, 4, seed=step), y=floats(5, 4, seed=step + 9))
        losses.append(float(loss))
        if isinstance(scheduler, LR.ReduceOnPlateau):
            scheduler.step(loss)
        elif isinstance(scheduler, LR.LRScheduler):
            scheduler.step()
    return losses


@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduled_learning_rates(name):
    native, engine = (losses_of(engine, SCHEDULERS[name]) for engine in (False, True))
    np.testing.assert_allclose(engine, native, 2e-6)


@pytest.mark.parametrize(
    "decay", [None, 0.02, paddle.regularizer.L1Decay(0.01), paddle.regularizer.L2Decay(0.01)]
)
@pytest.mark.parametrize(
    "clip", [None, paddle.nn.ClipGradByNorm(0.3), paddle.nn.ClipGradByGlobalNorm(0.3)]
)
def test_clips_with_decays(clip, decay):
    options = {"grad_clip": clip, "weight_decay": decay}
    native, engine = (losses_of(engine, lambda: 0.1, **options) for engine in (False, True))
    np.testing.assert_allclose(engine, native, 2e-6)


@pytest.mark.parametrize("kind", ["sgd_", "momentum_", "adam_", "adagrad_"])
def test_multi_precision_falls_back(kind):
    entry = find_converter(f"pd_op.{kind}")
    assert entry is not None
    reason = entry.reason_against(Op(f"pd_op.{kind}", 0, attrs={"multi_precision": True}))
    assert reason is not None and "multi-precision" in reason


def test_shared_powers_of_beta_fall_back():
    entry = find_converter("pd_op.adam_")
    assert entry is not None
    reason = entry.reason_against(Op("pd_op.adam_", 0, attrs={"use_global_beta_pow": True}))
    assert reason is not None and "powers of beta" in reason
