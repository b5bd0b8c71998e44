"""Ranks compare their layers before Paddle sends parameters: random layers and changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from paddle import nn

from paddle_ngraph.distributed import agreement
from paddle_ngraph.distributed.agreement import RejectedJobError
from tests import jobs
from tests.distributed.test_training_state import of_ranks
from tests.dynamic import dynamic_mode

RANKS = 3


@pytest.fixture(autouse=True)
def dynamic():
    with dynamic_mode():
        yield


def random_layers(chance: random.Random) -> list[Callable[[], Any]]:
    """The constructors of the layers of a network."""
    widths = [chance.randint(2, 5) for _ in range(chance.randint(2, 5))]
    made: list[Callable[[], Any]] = []
    for first, second in zip(widths, widths[1:]):
        made.append(lambda n=first, m=second: nn.Linear(n, m))
        rate = chance.choice([0.1, 0.25])
        others = [nn.Tanh, nn.ReLU, lambda rate=rate: nn.Dropout(rate)]
        made.append(chance.choice([*others, lambda m=second: nn.BatchNorm1D(m)]))
    return made


def frozen(layer: Any) -> Any:
    layer.parameters()[0].stop_gradient = True
    return layer


CHANGES: dict[str, Callable[[list[Any], int], list[Any]]] = {
    "one more": lambda made, at: [*made[:at], nn.Sigmoid, *made[at:]],
    "one less": lambda made, at: made[:at] + made[at + 1 :],
    "another kind": lambda made, at: [*made[:at], nn.Softplus, *made[at + 1 :]],
    "another width": lambda made, at: [*made[:at], lambda: nn.Linear(7, 7), *made[at + 1 :]],
    "another rate": lambda made, at: [*made[:at], lambda: nn.Dropout(0.5), *made[at + 1 :]],
    "without a bias": lambda made, _: [lambda: nn.Linear(2, 2, bias_attr=False), *made[1:]],
    "a frozen one": lambda made, _: [lambda: frozen(made[0]()), *made[1:]],
}


def exchanged(layers: list[Any]) -> list[str]:
    """The message of each rank; empty where it has rejected nothing."""

    def agree(job: Any, rank: int) -> None:
        agreement.agree(job.exchange, layers[rank])

    errors = of_ranks(len(layers), agree)
    assert all(isinstance(error, RejectedJobError) for error in errors if error is not None)
    return ["" if error is None else str(error) for error in errors]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seed", range(4))
def test_one_rank_that_differs_is_named_on_all(change, seed):
    chance = random.Random(seed)
    made = random_layers(chance)
    other, at = chance.randrange(1, RANKS), chance.randrange(len(made))
    kinds = [CHANGES[change](made, at) if rank == other else made for rank in range(RANKS)]
    layers = [nn.Sequential(*(make() for make in each)) for each in kinds]
    messages = exchanged(layers)
    assert len(set(messages)) == 1
    assert messages[0].startswith(f"ranks 0 and {other} train different layers (")
    assert "\n" not in messages[0]


@pytest.mark.parametrize("seed", range(4))
def test_equal_layers_with_other_values_agree(seed):
    made = random_layers(random.Random(seed))
    layers = [nn.Sequential(*(make() for make in made)) for _ in range(RANKS)]
    assert exchanged(layers) == [""] * RANKS


RANK = """
    import paddle
    from paddle_ngraph import distributed
    from paddle_ngraph.distributed.agreement import RejectedJobError

    distributed.init(dynamic=True)
    layer = paddle.nn.Linear(3, 2)
    same = paddle.DataParallel(layer)
    assert same(paddle.ones([1, 3])).shape == [1, 2]
    other = paddle.nn.Linear(3, 2 + distributed.rank())
    try:
        paddle.DataParallel(other)
    except RejectedJobError as error:
        expected = "(Linear(in_features=3, out_features=2, dtype=float32), and Linear("
        assert expected in str(error), error
    else:
        raise AssertionError("nothing was compared")
"""


@pytest.mark.slow("starts several processes")
def test_data_parallel_compares_layers_before_it_sends_any(tmp_path):
    jobs.assert_fine(jobs.run_ranks(tmp_path, RANK, 2))
