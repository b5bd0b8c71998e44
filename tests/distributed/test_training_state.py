"""Checkpoints of dynamic layers, and checkpoints in parts, whose ranks are threads."""

from __future__ import annotations

import random
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import NgraphError, distributed
from paddle_ngraph.distributed import checkpoint_files, checkpoints, job, training_state
from tests.distributed.test_checkpoints import begin, leave

# -- dynamic layers ------------------------------------------------------------------------------


@pytest.fixture
def alone(no_job, in_dynamic_mode) -> Iterator[None]:
    begin()
    with paddle.utils.unique_name.guard():
        yield
    leave()


class Layers:
    """A layer of ``to_static`` and one of dynamic mode, with dropout, a schedule and buffers."""

    def __init__(self, width: int = 8) -> None:
        paddle.utils.unique_name.switch()  # names as in a new process
        self.parts = [
            nn.Sequential(nn.Linear(6, width), nn.BatchNorm1D(width), nn.Dropout(0.2)),
            nn.Sequential(nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 1)),
        ]
        self.compiled = paddle.jit.to_static(self.parts[0], full_graph=True)
        self.rate = paddle.optimizer.lr.CosineAnnealingDecay(0.02, 5)
        parameters = [each for part in self.parts for each in part.parameters()]
        self.adam = paddle.optimizer.AdamW(self.rate, parameters=parameters)

    @property
    def state(self) -> dict[str, Any]:
        return {"first": self.parts[0], "second": self.parts[1], "adam": self.adam}

    def step(self) -> float:
        x = paddle.to_tensor(np.random.normal(size=(4, 6)).astype("float32"))
        with paddle_ngraph.use_ngraph():
            loss = (self.parts[1](self.compiled(x)) ** 2).mean()
            loss.backward()
            self.adam.step()
            self.adam.clear_grad()
        self.rate.step()
        return float(loss)


def test_layers_go_on_as_if_nothing_had_happened(alone, small_intervals_pay, tmp_path):
    paddle_ngraph.reset_stats()
    layers = Layers()
    losses = []
    for step in range(6):
        losses.append(layers.step())
        if step < 3:
            distributed.checkpoint(layers.state, step + 1, tmp_path)
    assert paddle_ngraph.stats()["engine_runs"] > 0
    begin(seed=2)
    other = Layers()
    assert distributed.resume(other.state, tmp_path) == 3
    assert [other.step() for _ in range(3)] == losses[3:]
    for part, expected in zip(other.parts, layers.parts):
        for name, value in part.state_dict().items():
            np.testing.assert_array_equal(value, expected.state_dict()[name], err_msg=name)


def test_a_state_that_is_no_tensor_is_one_sentence(alone, tmp_path):
    class Odd(nn.Linear):
        def state_dict(self, *given, **named):
            return {**super().state_dict(*given, **named), "copies": {}}

    with pytest.raises(NgraphError, match="the state of Odd cannot be saved: 'copies' is no tens"):
        distributed.checkpoint({"layer": Odd(2, 2)}, 1, tmp_path)


def test_other_layers_are_refused(alone, tmp_path):
    distributed.checkpoint(Layers().state, 1, tmp_path)
    begin()
    with pytest.raises(NgraphError, match="is that of another program: give another folder"):
        distributed.resume(Layers(width=16).state, tmp_path)
    layer = nn.Linear(2, 2)
    for state in ({}, {"layer": 3}, [layer]):
        with pytest.raises(NgraphError, match="checkpoints are of static PIR programs, or of a"):
            distributed.checkpoint(state, 2, tmp_path)
    for name in ("a/b", 3):
        with pytest.raises(NgraphError, match=f"{name!r} names a part of a state: give text"):
            distributed.checkpoint({name: layer}, 2, tmp_path)


# -- parts ---------------------------------------------------------------------------------------


class State:
    """A state with given values; some differ between ranks."""

    def __init__(self, arrays: dict[str, np.ndarray], digest: str = "any") -> None:
        self._arrays = arrays
        self._digest = digest
        self.restored: dict[str, np.ndarray] = {}

    def digest(self) -> str:
        return self._digest

    def arrays(self) -> dict[str, np.ndarray]:
        return self._arrays

    def shapes(self) -> dict[str, list[int]]:
        return {name: list(value.shape) for name, value in self._arrays.items()}

    def schedule(self) -> Any:
        return {"step": 3}

    def restore(self, arrays: Any, schedule: Any) -> None:
        self.restored = dict(arrays)


def of_ranks(ranks: int, work: Callable[[Any, int], Any]) -> list[Any]:
    """Calls a function in one thread for each rank of a job; returns results, or errors."""
    gate, texts = threading.Barrier(ranks, timeout=60), [""] * ranks
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        def exchange(text: str) -> list[str]:
            texts[rank] = text
            gate.wait()
            answer = list(texts)
            gate.wait()
            return answer

        placement = job.RankPlacement(rank, ranks)
        try:
            results[rank] = work(SimpleNamespace(placement=placement, exchange=exchange), rank)
        except NgraphError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture(autouse=True)
def same_random_streams() -> Iterator[None]:
    streams = random.getstate(), np.random.get_state(), paddle.get_rng_state("cpu")
    yield
    random.setstate(streams[0])
    np.random.set_state(streams[1])
    paddle.set_rng_state(streams[2], "cpu")


def values_of(rank: int, ranks: int) -> dict[str, np.ndarray]:
    return {
        "equal": np.arange(6, dtype="float32").reshape(2, 3),
        "own": np.full(3, rank + 1, "float32"),
        "of the last": np.float32([rank == ranks - 1]),
        "count": np.array(5, "int64"),
    }


def saved(folder: Path, ranks: int, values: Callable[..., Any] = values_of) -> Path:
    """A checkpoint whose files were written to a folder of each rank, and then brought together."""
    folders = [folder / f"part_{rank}" for rank in range(ranks)]
    for each in folders:
        each.mkdir()

    def save(joined: Any, rank: int) -> None:
        state = State(values(rank, ranks))
        checkpoints.save_part(joined, state, 4, folders[rank])

    assert of_ranks(ranks, save) == [None] * ranks
    together = folder / "together"
    for each in folders:
        shutil.copytree(each, together, dirs_exist_ok=True)
        shutil.rmtree(each)
    return together


def restored(path: Path, ranks: int, digest: str = "any") -> list[Any]:
    def restore(joined: Any, rank: int) -> Any:
        state = State(values_of(rank, ranks), digest)
        return checkpoints.restore_parts(joined, state, path), state.restored

    return of_ranks(ranks, restore)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_rank_gets_its_own_values_from_parts(tmp_path, ranks):
    for rank, (step, values) in enumerate(restored(saved(tmp_path, ranks), ranks)):
        assert step == 4
        for name, expected in values_of(rank, ranks).items():
            np.testing.assert_array_equal(values[name], expected)
            assert values[name].dtype == expected.dtype


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (2, 3), (3, 2), (4, 1)])
def test_other_numbers_of_ranks_get_means(tmp_path, before, now):
    for step, values in restored(saved(tmp_path, before), now, digest="of other ranks"):
        assert step == 4
        np.testing.assert_array_equal(values["equal"], values_of(0, 1)["equal"])
        np.testing.assert_allclose(values["own"], (before + 1) / 2, rtol=1e-6)
        np.testing.assert_allclose(values["of the last"], 1 / before, rtol=1e-6)
        assert values["count"] == 5 and values["count"].dtype == "int64"


def test_integers_that_differ_are_refused_for_other_numbers_of_ranks(tmp_path):
    path = saved(
        tmp_path, 2, lambda rank, ranks: {**values_of(rank, ranks), "count": np.array(rank)}
    )
    for error in restored(path, 1):
        assert "which have different integers in 'count': continue with as many ranks" in str(error)


def test_a_damaged_part_is_one_sentence_on_all_ranks(tmp_path):
    path = saved(tmp_path, 2)
    (path / "rank_1.npz").write_bytes(b"")
    errors = restored(path, 2)
    assert {str(error) for error in errors} == {
        f"the checkpoint {path} is damaged (the digest of rank_1.npz is wrong)"
    }


def test_a_folder_that_a_rank_does_not_see_is_one_sentence(tmp_path, monkeypatch):
    def opened(joined: Any, rank: int) -> Any:
        joined.checkpoints = {}
        # Another machine has another folder of that name.
        path = tmp_path / "shared"
        if rank == 1:
            monkeypatch.setattr(Path, "is_file", lambda each: False)
        return checkpoints.Checkpoints(joined, path)

    errors = of_ranks(2, opened)
    assert len({str(error) for error in errors}) == 1
    assert "rank 1 on 127.0.0.1 does not see the folder" in str(errors[0])
    assert checkpoint_files.newest_step(tmp_path / "shared") is None


def test_states_are_of_programs_or_layers():
    state = training_state.of(paddle.static.Program(), None)
    assert state.arrays() == {} and state.schedule() is None


# -- the interface of gloo -----------------------------------------------------------------------


def test_the_interface_of_loopback():
    assert job.interface_of("127.0.0.1") == job.interface_of("localhost") == "lo"


def test_addresses_of_other_machines_have_no_interface(monkeypatch):
    assert job.interface_of("192.0.2.1") == ""  # reserved for documentation

    def fail(host: str) -> str:
        raise socket.gaierror(-2, "unknown")

    monkeypatch.setattr(socket, "gethostbyname", fail)
    assert job.interface_of("elsewhere") == ""
