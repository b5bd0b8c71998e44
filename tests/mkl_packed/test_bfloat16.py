"""FLAGS_ngraph_precision=bf16: matmuls of the packed layers have operands in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import paddle
import pytest

from paddle_ngraph import flags, mkl_packed
from paddle_ngraph.conversion import processor
from tests.conversion.passes.test_mixed_precision import rounded

from .comparing import MODES, Data, Shape, data, layer, pair, run
from .reference_gradients import Cell, gradients

pytestmark = pytest.mark.skipif(
    not processor.has_bfloat16(), reason="the processor has no units for bfloat16"
)


@pytest.fixture(autouse=True, params=[1, 3, 8])
def bfloat16(request: pytest.FixtureRequest, provider: str) -> Iterator[None]:
    if provider != "onednn":
        pytest.skip("bfloat16 has a provider of its own")
    before = flags.get("ngraph_num_threads")
    flags.set("ngraph_precision", "bf16")
    flags.set("ngraph_num_threads", request.param)
    yield
    flags.set("ngraph_precision", "f32")
    flags.set("ngraph_num_threads", before)


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def in_bfloat16(given: Data) -> Data:
    return replace(
        given,
        x=rounded(given.x),
        states=[rounded(state) for state in given.states],
        out_grad=rounded(given.out_grad),
        state_grads=[np.zeros_like(grad) for grad in given.state_grads],
    )


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("batch", [25, 96])
def test_operands_are_rounded_and_sums_are_not(batch: int) -> None:
    """In one step of this network all matmul operands are given, except the results of relu."""
    shape = Shape(40, 64, batch, 1, direction="bidirect")
    native, packed = pair("RNN_RELU", shape)
    given = data("RNN_RELU", shape)
    exact_grads = in_bfloat16(given)
    given = replace(given, out_grad=exact_grads.out_grad, state_grads=exact_grads.state_grads)
    exact = run(native, given)
    found = run(packed, given)
    weights = {name: tensor.numpy() for name, tensor in native.state_dict().items()}
    native.set_state_dict(
        {
            name: paddle.to_tensor(rounded(weight) if weight.ndim == 2 else weight)
            for name, weight in weights.items()
        }
    )
    expected = run(native, exact_grads)
    for name, value in found.items():
        assert difference(value, expected[name]) < 2e-6, name
        if "bias" not in name:
            assert difference(value, exact[name]) > 1e-4, name
    for name, weight in packed.state_dict().items():
        np.testing.assert_array_equal(weight.numpy(), weights[name])
    assert mkl_packed.provider() == "onednn bf16"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    ("features", "hidden", "batch", "steps"),
    [
        (24, 32, 33, 3),
        (40, 48, 64, 2),
        (5, 12, 16, 3),
        (3, 16, 2, 5),
        (130, 20, 1, 4),
        (17, 15, 7, 1),
    ],
)
def test_gradients_round_operands_alone(
    mode: str, ragged: bool, features: int, hidden: int, batch: int, steps: int
) -> None:
    """Starting from the layer's forward results, NumPy computes exactly equal gradients.

    A sum in another order may round a gate's gradient to a neighbouring value: seldom, and then by
    1/256.
    """
    shape = Shape(features, hidden, batch, steps, direction="bidirect")
    packed = layer(mode, shape, packed=True, time_major=True)
    given = data(mode, shape, ragged, time_major=True)
    found = run(packed, given)
    lengths = np.full(batch, steps) if given.lengths is None else given.lengths
    x_grad = np.zeros_like(given.x)
    for direction, suffix in enumerate(["", "_reverse"]):
        half = np.s_[..., direction * hidden : (direction + 1) * hidden]
        names = [f"{kind}_l0{suffix}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        expected = gradients(
            Cell(
                mode,
                *(getattr(packed, name).numpy() for name in names),
                x=given.x,
                states=[state[direction] for state in given.states],
                out=found["out"][half],
                is_active=(np.arange(steps)[:, None] < lengths)[..., None],
                backwards=direction == 1,
                out_grad=given.out_grad[half],
                state_grads=[grad[direction] for grad in given.state_grads],
            )
        )
        x_grad += expected.pop("x")
        states = {
            name: found[f"state_grad_{i}"][direction]
            for i, name in enumerate("hc")
            if i < len(given.states)
        }
        of_parameters = {name[: -len(f"_l0{suffix}")]: found[f"grad of {name}"] for name in names}
        for name, value in {**states, **of_parameters}.items():
            assert distance(value, expected[name]) < 5e-4, name
    assert distance(found["x_grad"], x_grad) < 5e-4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ragged", [False, True])
def test_layers_stay_close(mode: str, ragged: bool) -> None:
    shape = Shape(24, 48, 32, 9, layers=2, direction="bidirect")
    native, packed = pair(mode, shape)
    given = data(mode, shape, ragged)
    exact = run(native, given)
    for name, value in run(packed, given).items():
        # Where relu's input is nearly 0, a gradient passes or does not.
        assert 1e-5 < distance(value, exact[name]) < (0.1 if mode == "RNN_RELU" else 0.03), name


@pytest.mark.parametrize(("features", "hidden", "batch"), [(40, 64, 1), (15, 12, 5)])
def test_small_matmuls_stay_in_float32(features: int, hidden: int, batch: int) -> None:
    shape = Shape(features, hidden, batch, 3)
    _, packed = pair("GRU", shape)
    given = data("GRU", shape)
    inputs = [paddle.to_tensor(given.x), paddle.to_tensor(given.states[0])]
    found = packed(*inputs)[0].numpy()
    flags.set("ngraph_precision", "f32")
    if batch > 1:
        np.testing.assert_array_equal(packed(*inputs)[0].numpy(), found)
    else:  # except the matmul over all steps, which has more than one row
        assert difference(packed(*inputs)[0].numpy(), found) < 1e-2
