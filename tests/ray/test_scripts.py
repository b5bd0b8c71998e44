"""``launch --ray`` and failures of trainings, without a cluster."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from paddle_ngraph import NgraphError, __main__
from paddle_ngraph.distributed import launcher
from paddle_ngraph.distributed.agreement import RejectedJobError
from paddle_ngraph.distributed.launcher import End, LauncherOptions
from paddle_ngraph.distributed.machines import Place
from paddle_ngraph.ray import failures, machine_launcher, scripts
from paddle_ngraph.ray.failures import LostError
from tests import jobs


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import os, sys; print(sys.argv[1:], os.getcwd()); sys.exit(int(sys.argv[1]))")
    return path


def test_options_keep_their_values_on_the_way_to_a_machine():
    options = LauncherOptions(
        "a b.py", ["--x", "'"], 3, 2, "c", "log", 7.5, None, Place(2, 1, "h:1")
    )
    assert machine_launcher.unpacked(machine_launcher.packed(options)) == options


def test_a_launcher_of_its_own_runs_the_ranks_of_a_machine(script, capfd):
    options = LauncherOptions(str(script), ["3"], 1)
    expected = End(launcher.FAILED, "rank 0 has ended with exit status 3", 0)
    assert scripts._ended(options, str(script.parent)) == expected
    assert f"['3'] {script.parent}" in capfd.readouterr().out


def test_a_launcher_that_cannot_run_is_one_sentence(script):
    with pytest.raises(NgraphError, match="--timeout 0"):
        scripts._ended(LauncherOptions(str(script), ["0"], 1, timeout=0), str(script.parent))


@pytest.mark.parametrize("option", ["--nnodes=2", "--node-rank=0", "--master=a:1", "--port=5"])
def test_options_of_static_clusters_are_rejected(script, option):
    arguments = ["launch", "--ray", "auto", "--nproc", "2", option, str(script)]
    options = __main__._parser().parse_args(arguments)
    with pytest.raises(NgraphError, match="with --ray") as e:
        options.command(options)
    assert option.partition("=")[0] in str(e.value)


def test_an_address_that_does_not_answer_is_one_sentence(monkeypatch, script):
    address = f"127.0.0.1:{jobs.free_port()}"
    monkeypatch.setattr(scripts, "ray_module", lambda name: SimpleNamespace())
    with pytest.raises(
        NgraphError, match=rf"no cluster of Ray .* --ray {address} \(.*refused"
    ) as e:
        scripts.launch(address, LauncherOptions(str(script), ["0"], 1))
    assert "\n" not in str(e.value)


class ActorError(Exception):
    """Stands for that of Ray for an actor that has died."""


class Wrapped(Exception):
    """An error of Ray Train around that of a worker."""

    def __reduce__(self):
        return Wrapped, self.args


@pytest.fixture
def alive(monkeypatch):
    """The addresses of the machines of a cluster."""
    addresses = ["10.0.0.1", "10.0.0.2"]

    def nodes():
        every = {*addresses, "10.0.0.1", "10.0.0.2"}
        return [{"NodeManagerAddress": each, "Alive": each in addresses} for each in every]

    modules = {
        "ray": SimpleNamespace(nodes=nodes, is_initialized=lambda: True),
        "ray.exceptions": SimpleNamespace(RayActorError=ActorError),
    }
    monkeypatch.setattr(failures, "ray_module", modules.__getitem__)
    return addresses


DIED = ActorError("The actor died.\n\tpid: 5\n\tip: 10.0.0.2\nno more")
REFUSED, LOST = NgraphError("a refusal"), LostError("machine 1 (10.0.0.2) has gone")


@pytest.mark.parametrize(
    ("causes", "sentence"),
    [
        ([REFUSED, NgraphError("a refusal")], "a refusal"),
        ([LOST, REFUSED], "a refusal"),
        (
            [DIED, ValueError("the peer has gone")],
            "a worker on 10.0.0.2 was killed, and no further",
        ),
        (
            [LOST, LostError("machine 0 has gone")],
            r"machine 1 \(10.0.0.2\) has gone, and no further",
        ),
        ([ValueError("of the loop")], None),
        ([REFUSED, ValueError("of the loop")], None),
        ([REFUSED, NgraphError("another refusal")], None),
    ],
)
def test_a_failure_is_one_sentence_unless_the_loop_has_raised(alive, causes, sentence):
    wrapped = {rank: Wrapped("what", each) for rank, each in enumerate(causes)}
    found = failures.failure_of(SimpleNamespace(worker_failures=wrapped), {"10.0.0.1"})
    assert found is None if sentence is None else re.match(sentence, str(found))


@pytest.mark.parametrize("others", [[], [DIED], [ValueError("the peer has gone")]])
def test_a_job_that_a_rank_rejects_is_not_started_again(alive, others):
    """The controller may see one rank's error before those of the others."""
    rejected = RejectedJobError("a rejection")
    errors = dict(enumerate(Wrapped("what", each) for each in [*others, rejected]))
    with pytest.raises(RejectedJobError, match="a rejection"):
        failures.RejectionCallback().after_exception(None, errors)
    ended = SimpleNamespace(controller_failure=rejected)
    assert failures.failure_of(ended, set()) is rejected


@pytest.mark.parametrize("cause", [REFUSED, LOST, DIED, ValueError("of the loop")])
def test_a_job_that_fails_otherwise_may_start_again(alive, cause):
    failures.RejectionCallback().after_exception(None, {0: Wrapped("what", cause)})


def test_a_machine_that_is_lost_is_named(alive):
    before = failures.machines()
    alive.remove("10.0.0.2")
    error = SimpleNamespace(worker_failures={0: Wrapped("what", ValueError("timed out"))})
    found = failures.failure_of(error, before)
    assert str(found) == "the machine 10.0.0.2 is lost, and no further restart is allowed"


def test_a_driver_whose_machine_is_lost_names_the_machine(alive):
    """Ray ends the controller of the training then, and not the workers."""
    before = failures.machines()
    alive.remove("10.0.0.1")
    found = failures.failure_of(DIED, before)
    assert str(found) == "the machine 10.0.0.1 is lost, and no further restart is allowed"
