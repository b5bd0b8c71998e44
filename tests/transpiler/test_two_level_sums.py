"""Sums in two levels: which slices the ranks sum, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddle_ngraph import NgraphError
from paddle_ngraph.distributed import all_reduces, first_run, job
from paddle_ngraph.distributed.job import RankPlacement, RankRing
from paddle_ngraph.transpiler import two_level_sums
from paddle_ngraph.transpiler.building import SELECT_RING, Builder
from paddle_ngraph.transpiler.two_level_sums import ALL_REDUCE, TwoLevels

RING = 0


def simulated(plans: list[list[TwoLevels]], lengths: int, seed: int) -> np.ndarray:
    """The result of every rank, by machine and rank: ranks sum what the plan says."""
    given = np.random.default_rng(seed).normal(size=(len(plans), len(plans[0]), lengths))
    local = given.sum(1)
    whole = np.zeros((len(plans), len(plans[0]), lengths))
    for number in range(len(plans[0])):
        for machine, of_machine in enumerate(plans):
            first, last = of_machine[number].bounds(lengths)
            whole[machine, number, first:last] = local[:, first:last].sum(0)
    return np.abs(whole.sum(1) - given.sum((0, 1))).max()


@pytest.mark.pure
@pytest.mark.parametrize("length", [1, 2, 3, 7, 64])
def test_slices_of_the_ranks_of_a_machine_are_a_bucket(length):
    for machines in (2, 3):
        for ranks in (2, 3, 5):
            if length >= ranks:
                plans = [[TwoLevels(r, ranks, 1, 2) for r in range(ranks)] for _ in range(machines)]
                assert simulated(plans, length, length) < 1e-12


@pytest.mark.pure
@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("aabb", [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ("abab", [(0, 0), (1, 0), (0, 1), (1, 1)]),
        ("aaabbbccc", [(m, r) for m in range(3) for r in range(3)]),
        ("aaaa", None),
        ("abcd", None),
        ("aab", None),
        ("a", None),
    ],
)
def test_ranks_of_a_machine_have_a_ring_and_those_of_a_number_too(hosts, expected):
    found = [all_reduces.levels_of(list(hosts), rank) for rank in range(len(hosts))]
    if expected is None:
        assert set(found) == {None}
        return
    machines, ranks = len(set(hosts)), len(hosts) // len(set(hosts))
    assert [(i.number - found[0][0].number, i.rank) for i, _ in found] == expected
    assert [(b.rank, b.ranks) for _, b in found] == [(m, machines) for m, _ in expected]
    assert {i.ranks for i, _ in found} == {ranks}
    insides, betweens = ({ring.number for ring in rings} for rings in zip(*found))
    assert len(insides) == machines and len(betweens) == ranks and not insides & betweens


def program_with_a_bucket(length: int) -> paddle.static.Program:
    paddle.enable_static()
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        x = paddle.static.data("x", [length])
    build = Builder(program.global_block())
    summed = build(ALL_REDUCE, [x], ring_id=RING, reduce_type=0)
    build("pd_op.mean_all", [build.scaled(summed, 2.0)])
    return program


def rings_of(program: paddle.static.Program) -> list[int]:
    ops = program.global_block().ops
    return [op.attrs()["ring_id"] for op in ops if op.name() in (ALL_REDUCE, SELECT_RING)]


@pytest.mark.parametrize(("local_rank", "slices"), [(0, 2), (1, 3), (2, 2)])
def test_a_bucket_is_summed_in_two_levels_and_the_digest_stays(local_rank, slices):
    program = program_with_a_bucket(8)
    before = first_run.digest(program)
    assert two_level_sums.buckets(program, RING, 3) == [(8, "float32")]
    first_run.replace_all_reduces(program, TwoLevels(local_rank, 3, 71, 72))
    assert rings_of(program) == [71, RING, 72, RING, 71, RING, RING]
    (split,) = (op for op in program.global_block().ops if op.name() == "pd_op.split")
    assert str(program).count("pd_op.mean_all") == 1 and split is not None
    assert first_run.digest(program) == first_run.digest(program.clone()) == before


def test_a_bucket_smaller_than_a_machine_stays():
    program = program_with_a_bucket(2)
    first_run.replace_all_reduces(program, TwoLevels(0, 3, 71, 72))
    assert rings_of(program) == [RING]


class Alone(job.DistributedJob):
    """A job of which this is the only process."""

    def __init__(self, hosts: str) -> None:
        ranks = len(hosts)
        super().__init__(RankPlacement(0, ranks, 0, 1, "127.0.0.1:1"))
        self._hosts = list(hosts)

    def exchange(self, text: str) -> list[str]:
        return self._hosts

    def connect_rings(self, rings: list[RankRing]) -> None:
        self.connected = rings


@pytest.mark.parametrize(
    ("choice", "hosts", "rings"),
    [
        ("ring", "aabb", [RING]),
        ("measured", "aaaa", [RING]),
        ("two levels", "aabb", [100_000, RING, 100_002, RING, 100_000, RING, RING]),
    ],
)
def test_the_choice_decides(choice, hosts, rings):
    program = program_with_a_bucket(8)
    all_reduces.choose(Alone(hosts), program, choice)
    assert rings_of(program) == rings


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [("tree", "all_reduce='tree': give one of ring"), ("two levels", "needs several machines")],
)
def test_an_impossible_choice_is_one_sentence(choice, sentence):
    with pytest.raises(NgraphError, match=sentence):
        all_reduces.choose(Alone("aab"), program_with_a_bucket(8), choice)


@pytest.mark.parametrize(("taken", "gains"), [([[2.0, 1.0], [1.0, 1.9]], True),
                                              ([[1.0, 0.5], [1.0, 1.1]], False)])  # fmt: skip
def test_the_slowest_rank_decides(monkeypatch, taken, gains):
    """Seconds in a ring and in two levels, of two ranks."""
    member = Alone("aabb")
    monkeypatch.setattr(all_reduces, "_seconds", lambda *given: 0.0)
    monkeypatch.setattr(member, "exchange", lambda text: [str(each) for each in taken])
    assert all_reduces._gains(member, [(8, "float32")], TwoLevels(0, 2, 71, 72)) is gains
