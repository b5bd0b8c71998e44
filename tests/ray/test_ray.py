"""``paddle_ngraph.ray`` without a cluster: what the controller decides, and what is missing."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import paddle_ngraph.ray
from paddle_ngraph import NgraphError, ray
from paddle_ngraph.distributed.connections import SECRET_VARIABLE
from paddle_ngraph.distributed.job import RankPlacement
from paddle_ngraph.ray import backend, worker


@pytest.mark.parametrize(
    "use",
    [
        lambda: ray.PaddleTrainer(print),
        lambda: ray.resume(None),
        lambda: ray.checkpoint(None, 1).__enter__(),
    ],
)
def test_without_ray_a_sentence_names_the_extra(monkeypatch, use):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("ray.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        NgraphError, match=r"ray.train cannot .*: pip install 'paddle-ngraph\[ray"
    ) as e:
        use()
    assert "\n" not in str(e.value)


@pytest.fixture
def starts(monkeypatch):
    """Starts the backend on a group, whose results need no Ray to be waited for."""
    monkeypatch.setattr(backend, "ray_module", lambda name: SimpleNamespace(get=list))

    def start(group: Group) -> Group:
        backend.PaddleBackend().on_start(group, backend.PaddleConfig(7))
        return group

    return start


class Group:
    """Workers on machines, each with what it would answer."""

    def __init__(self, hosts: list[str], sees: Any = True, versions: Any = "1") -> None:
        self._hosts = hosts
        self._sees = sees
        self._versions = versions
        self.placed: dict[int, tuple[dict[str, str], int]] = {}
        self.reserved: list[str] = []

    def get_workers(self) -> list[Any]:
        nodes = list(dict.fromkeys(self._hosts))
        made = []
        for rank, host in enumerate(self._hosts):
            place = SimpleNamespace(
                local_rank=self._hosts[:rank].count(host),
                local_world_size=self._hosts.count(host),
                node_rank=nodes.index(host),
            )
            metadata = SimpleNamespace(node_ip=host)
            made.append(SimpleNamespace(metadata=metadata, distributed_context=place))
        return made

    def get_resources_per_worker(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def execute(self, function: Any, *arguments: Any) -> list[Any]:
        return [self.execute_single(rank, function, *arguments) for rank in range(len(self._hosts))]

    def execute_single(self, rank: int, function: Any, *arguments: Any) -> Any:
        if function is worker.describe:
            versions = self._versions
            return versions[rank] if isinstance(versions, list) else described(versions)
        if function is worker.sees_mark:
            return self._sees if isinstance(self._sees, bool) else self._sees[rank]
        if function is worker.reserve_port:
            self.reserved.append(arguments[0])
            return 5000 + rank
        if function is worker.place:
            self.placed[rank] = arguments
        else:
            assert function in (worker.write_mark, worker.remove_mark) and rank == 0
        return None

    execute_single_async = execute_single


def described(versions: str, problem: str = "") -> dict[str, str]:
    return {"versions": versions, "problem": problem}


def test_workers_become_ranks(starts):
    group = starts(Group(["10.0.0.1", "10.0.0.1", "10.0.0.2"]))
    assert group.reserved == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
    assert [cores for _, cores in group.placed.values()] == [2, 2, 2]
    placements = [RankPlacement.of_environment(group.placed[rank][0]) for rank in range(3)]
    assert placements == [
        RankPlacement(0, 3, 0, 2, "10.0.0.1:5000", "10.0.0.1", "10.0.0.1"),
        RankPlacement(1, 3, 1, 2, "10.0.0.1:5000", "10.0.0.1", "10.0.0.1"),
        RankPlacement(2, 3, 0, 1, "10.0.0.1:5000", "10.0.0.2", "10.0.0.1"),
    ]
    secrets = {variables[SECRET_VARIABLE] for variables, _ in group.placed.values()}
    assert len(secrets) == 1 and len(secrets.pop()) == 64


def test_workers_of_one_machine_listen_on_loopback(starts):
    group = starts(Group(["10.0.0.1"] * 2, sees=False))
    assert group.reserved == ["127.0.0.1"] * 2
    assert all("10.0" not in value for each, _ in group.placed.values() for value in each.values())


def test_each_start_has_a_secret_of_its_own(starts):
    first, second = (starts(Group(["10.0.0.1"])).placed[0][0] for _ in range(2))
    assert first[SECRET_VARIABLE] != second[SECRET_VARIABLE]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sees": [True, True, False]}, "10.0.0.2 does not see the storage_path of 10.0.0.1: give"),
        (
            {"versions": [described("1, a"), described("1, a"), described("2, a")]},
            "10.0.0.1 has 1, a installed, and 10.0.0.2 has 2, a: install equal versions",
        ),
        (
            {"versions": [described("1"), described("1"), described("1", "it needs AVX2")]},
            "the worker on 10.0.0.2 cannot run: it needs AVX2",
        ),
    ],
)
def test_workers_that_cannot_form_a_job_are_one_sentence(starts, options, sentence):
    group = Group(["10.0.0.1", "10.0.0.1", "10.0.0.2"], **options)
    with pytest.raises(NgraphError, match=sentence):
        starts(group)
    assert group.placed == {}


def test_a_worker_describes_itself_and_reserves_ports():
    found = worker.describe()
    assert found["problem"] == "" and paddle_ngraph.__version__ in found["versions"]
    ports = {worker.reserve_port("127.0.0.1") for _ in range(2)}
    assert len(ports) == 2
    for _ in ports:
        worker._reserved.pop().close()
