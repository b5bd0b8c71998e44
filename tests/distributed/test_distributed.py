"""Jobs of several processes: together they compute the results of one on the whole batch."""

from __future__ import annotations

import json
import os
import re
import socket

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import distributed, flags
from paddle_ngraph.distributed import job, reports
from paddle_ngraph.distributed.job import RankPlacement
from tests import jobs, server_networks
from tests.distributed_networks import NETWORKS, STEPS, Training, batches

NgraphError = paddle_ngraph.NgraphError


# -- training ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 4])
def trained(request, tmp_path_factory):
    """The results of each rank of a job, by network."""
    folder, ranks, port = tmp_path_factory.mktemp("job"), request.param, jobs.free_port()
    command = ["-m", "tests.distributed_networks", str(folder)]
    places = [jobs.of_rank(rank, ranks, port) for rank in range(ranks)]
    jobs.assert_fine(jobs.run(folder, [(command, place) for place in places]))
    return {
        name: [json.loads((folder / f"{name}_{rank}.json").read_text()) for rank in range(ranks)]
        for name in NETWORKS
    }


@pytest.mark.slow("starts several processes")
@pytest.mark.parametrize("network", NETWORKS)
def test_losses_are_those_of_one_process(trained, network):
    ranks = trained[network]
    losses = np.mean([rank["losses"] for rank in ranks], axis=0)
    assert len(losses) == STEPS and losses[-1] < 0.9 * losses[0]
    np.testing.assert_allclose(losses, ranks[0]["alone"], rtol=1e-6, atol=1e-6)
    for rank in ranks:
        # Before and after the gradients are averaged; packed layers are between intervals.
        assert rank["engine_runs"] >= 2 * STEPS
        assert network == "recurrent" or rank["engine_runs"] == 2 * STEPS


@pytest.mark.slow("starts several processes")
@pytest.mark.parametrize("network", NETWORKS)
def test_all_ranks_have_the_same_variables(trained, network):
    first, *others = [rank["variables"] for rank in trained[network]]
    for other in others:
        assert other == first
    for name, value in trained[network][0]["variables alone"].items():
        # Running statistics are of parts of the batch; a gradient of 0 is noise for Adam.
        if network != "transformer" and not name.endswith(("w_1", "w_2")):
            np.testing.assert_allclose(first[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow("starts several processes")
@pytest.mark.parametrize("network", NETWORKS)
def test_everything_is_compiled_before_the_first_step(trained, network):
    assert [rank["functions_built"] for rank in trained[network]] == [0] * len(trained[network])


LATE = """
import os, sys, time
import paddle, paddle_ngraph
from paddle_ngraph import distributed
from paddle_ngraph.distributed import first_run
from tests.distributed_networks import Training, batches

paddle.enable_static()
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
distributed.init(seed=3)
paddle_ngraph.enable()
compile_alone, compiled = first_run.compile_single_rank, sys.argv[0] + ".compiled"

def in_turn(*given):
    while distributed.rank() == 1 and not os.path.exists(compiled):
        time.sleep(0.01)
    compile_alone(*given)
    if distributed.rank() == 0:
        open(compiled, "w").close()

first_run.compile_single_rank = in_turn
training = Training("mlp", wrap=distributed.distributed_optimizer)
training.start()
feed = distributed.share(next(batches("mlp")))
distributed.prepare(training.executor, training.main, feed, [training.loss], training.scope)
paddle_ngraph.reset_stats()
training.step(feed)
stats = paddle_ngraph.stats()
assert stats["engine_runs"] == 2 and stats["functions_built"] == 0, stats
distributed.barrier()
"""


@pytest.mark.slow("starts several processes")
def test_a_rank_that_compiles_needs_no_other(tmp_path):
    """Otherwise gloo would give up on a rank that takes 30 seconds longer than the others."""
    jobs.assert_fine(jobs.run_ranks(tmp_path, LATE, 2))


@pytest.mark.slow("starts several processes")
def test_dynamic_mode_and_old_style_programs(tmp_path):
    """Paddle's own data parallelism runs through the engine; ``distribute`` takes old programs."""
    port = jobs.free_port()
    command = ["-m", "tests.distributed_dynamic", str(tmp_path)]
    places = [jobs.of_rank(rank, 2, port) for rank in (0, 1)]
    jobs.assert_fine(jobs.run(tmp_path, [(command, place) for place in places]))
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for way, alone in (
        ("DataParallel", "alone"),
        ("fleet", "alone"),
        ("old-style", "old-style alone"),
    ):
        losses = np.mean([rank[way]["losses"] for rank in ranks], axis=0)
        np.testing.assert_allclose(losses, ranks[0][alone], rtol=1e-6, atol=1e-6, err_msg=way)
        for rank in ranks:
            assert rank[way]["engine_runs"] >= 2 * len(losses), way


OVERLAP = """
import json, os, sys, threading
import numpy as np, paddle, paddle_ngraph
from paddle import nn
from paddle_ngraph import distributed
from paddle_ngraph.plan import data_dependency_engine as engine

paddle.enable_static()
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
distributed.init(seed=3)
paddle_ngraph.enable()

def make(overlap):
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        hidden = paddle.static.data("x", [-1, 16])
        for _ in range(4):
            hidden = nn.functional.dropout(paddle.tanh(nn.Linear(16, 16)(hidden)), 0.1)
        loss = paddle.mean(hidden**2)
        adam = paddle.optimizer.Adam(0.01, grad_clip=nn.ClipGradByGlobalNorm(0.01))
        how = {"bucket_mb": 0.002, "overlap": overlap}
        distributed.distributed_optimizer(adam, **how).minimize(loss)
    paddle.seed(distributed.rank())
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    draw = np.random.default_rng(1)
    def step():
        feed = distributed.share({"x": draw.normal(size=(8, 16)).astype("float32")})
        return float(executor.run(main, feed=feed, fetch_list=[loss], scope=scope)[0])
    feed = distributed.share({"x": np.zeros((8, 16), "float32")})
    distributed.prepare(executor, main, feed, [loss], scope)
    return step

later_began = threading.Event()
collectives = []

class Slow(engine._CollectiveProgram):
    # The first collective ends after a later operator of the program has begun.
    def run(self):
        collectives.append(self)
        if len(collectives) == 1:
            assert later_began.wait(600), "nothing was computed concurrently"
        return super().run()

class Interval:
    def __init__(self, operator):
        self.operator = operator

    def run(self):
        if collectives:
            later_began.set()
        return self.operator.run()

{more}
"""

AT_ONCE = """
losses = []
for overlap in (False, True):
    step = make(overlap)
    losses.append([step() for _ in range(10)])
assert losses[0] == losses[1], losses
step = make(True)
interval = engine._interval
engine._CollectiveProgram, engine._interval = Slow, lambda *given: Interval(interval(*given))
step()
assert len(collectives) >= 3 and later_began.is_set()
distributed.barrier()
"""

KILLED = """
step = make(True)
step()
if distributed.rank() == 1:
    os._exit(0)
try:
    step(), step()
except RuntimeError as error:
    print("noticed", flush=True)
"""


@pytest.mark.slow("starts several processes")
def test_gradients_are_averaged_while_others_are_computed(tmp_path):
    ended = jobs.run_ranks(tmp_path, OVERLAP.replace("{more}", AT_ONCE), 2)
    jobs.assert_fine(ended)


@pytest.mark.slow("starts several processes")
def test_a_rank_that_goes_while_gradients_are_averaged_is_noticed(tmp_path):
    ended = jobs.run_ranks(tmp_path, OVERLAP.replace("{more}", KILLED), 2)
    jobs.assert_fine(ended)
    assert "noticed" in ended[0].output


# -- parameter server ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The results of a server and two trainers."""
    folder, port = tmp_path_factory.mktemp("server"), jobs.free_port()
    command = ["-m", "tests.server_networks", str(folder)]
    places = [jobs.of_rank(rank, 3, port) for rank in range(3)]
    jobs.assert_fine(jobs.run(folder, [(command, place) for place in places]))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]


@pytest.mark.slow("starts several processes")
@pytest.mark.parametrize("network", server_networks.NETWORKS)
def test_a_synchronous_server_computes_the_results_of_one_process(served, network):
    server, *trainers = [rank[f"{network} synchronous"] for rank in served]
    alone, steps = served[0][f"{network} alone"], server_networks.STEPS
    losses = np.mean([trainer["losses"] for trainer in trainers], axis=0)
    np.testing.assert_allclose(losses, alone["losses"], rtol=1e-6, atol=1e-6)
    assert server["updates"] == list(range(1, steps + 1))
    for name, value in alone["parameters"].items():
        np.testing.assert_allclose(server["parameters"][name], value, rtol=1e-4, atol=1e-5)
    assert server["engine_runs"] >= steps
    assert [trainer["engine_runs"] for trainer in trainers] == [steps, steps]


@pytest.mark.slow("starts several processes")
@pytest.mark.parametrize("network", server_networks.NETWORKS)
def test_an_asynchronous_server_takes_gradients_as_they_come(served, network):
    server, *trainers = [rank[f"{network} asynchronous"] for rank in served]
    steps = server_networks.STEPS
    assert server["updates"] == list(range(1, 2 * steps + 1))
    assert server["engine_runs"] >= 2 * steps
    # A trainer that starts later begins with the parameters that the other one has trained so far.
    first = max(np.mean(trainer["losses"][:8]) for trainer in trainers)
    for trainer in trainers:
        assert trainer["engine_runs"] == steps
        assert np.mean(trainer["losses"][-8:]) < 0.7 * first


@pytest.mark.slow("starts several processes")
def test_a_trainer_that_fails_or_is_killed_is_named(tmp_path):
    port = jobs.free_port()
    command = ["-m", "tests.server_failures", str(tmp_path)]
    places = [jobs.of_rank(rank, 3, port) for rank in range(3)]
    ended = jobs.run(tmp_path, [(command, place) for place in places])
    server, first, second = ((tmp_path / f"{rank}.json").read_text() for rank in range(3))
    assert [each.status for each in ended] == [0, 0, -9], "\n".join(e.output for e in ended)
    raised, gone = json.loads(server)
    own = "the batch of 'x' has 5 samples, which are not divisible among 2 ranks"
    assert raised.startswith(f"trainer 2 has failed: NgraphError: {own}")
    assert gone.startswith("trainer 2 has failed: it has gone (")
    raised_on_failure, raised_on_kill = json.loads(first)
    assert raised_on_failure == f"the parameter server has failed: {raised}"
    assert raised_on_kill == f"the parameter server has failed: {gone}"
    assert json.loads(second)[0].startswith(own)
    assert all("\n" not in each for each in (raised, gone))


# -- two ranks that differ -----------------------------------------------------------------------


@pytest.mark.slow("starts several processes")
def test_links_do_not_take_each_other_for_another(tmp_path):
    script = """
        import threading
        import numpy as np
        from paddle_ngraph import distributed
        from paddle_ngraph.distributed import job
        from paddle_ngraph.distributed.link import MessageKind, Message, ProcessLink

        distributed.init()
        mine = job.current()
        rank, ranks = distributed.rank(), distributed.ranks()

        def talk(number, link):
            for turn in range(3):
                if rank == 0:
                    (array,) = link.receive().arrays
                    assert array[0] == number, (array, number)
                else:
                    link.send(Message(MessageKind.PUSH, [np.array([number])]))

        def make(number, made):
            with lock:
                link = ProcessLink.between(mine, number % 10 if rank == 0 else 0, number)
            talk(number, link)
            made.append(number)

        lock = threading.Lock()
        for turn in range(10):
            numbers = [8000 + 10 * turn + each for each in range(1, ranks)]
            numbers, made = numbers if rank == 0 else numbers[rank - 1 : rank], []
            threads = [threading.Thread(target=make, args=(each, made)) for each in numbers]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert sorted(made) == numbers
        mine.barrier()
    """
    jobs.assert_fine(jobs.run_ranks(tmp_path, script, 3))


def test_two_ranks_that_differ(tmp_path):
    """Ranks may differ in partition: collectives keep their order. Other differences are errors."""
    folder, port = tmp_path, jobs.free_port()
    command = ["-m", "tests.distributed_differences", str(folder)]
    places = [jobs.of_rank(rank, 2, port) for rank in range(2)]
    jobs.assert_fine(jobs.run(folder, [(command, place) for place in places]))
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    for found in (first, second):
        program, shapes, versions = found["told"]
        assert re.match(r"ranks 0 and 1 run different programs \(\w+ and \w+\): all ranks", program)
        assert "are fed different shapes or dtypes (x float32 [8, 12]; y" in shapes
        assert "x float32 [4, 12]" in shapes
        assert "have different versions installed" in versions and "0.0.old" in versions
        assert found["engine_runs"] > 0
        *different, equal = found["resumed"]
        sentence = r"ranks 0 and 1 train different programs or layers \(\w+ and \w+\): all"
        assert all(re.match(sentence, each) for each in different) and equal == "step 0"
    assert first["told"] == second["told"]
    assert first["partition"] != second["partition"]
    assert first["dropped"] != second["dropped"], "they draw the same numbers"
    losses = np.mean([first["losses"], second["losses"]], axis=0)
    np.testing.assert_allclose(losses, first["alone"], rtol=1e-6, atol=1e-6)
    usable = os.sched_getaffinity(0)
    assert set(first["cores"]) <= usable and set(second["cores"]) <= usable
    assert len(usable) == 1 or not set(first["cores"]) & set(second["cores"])
    requested = flags.get("ngraph_num_threads")
    assert first["threads"] == (requested or len(first["cores"]))


# -- cores, places, shares -----------------------------------------------------------------------


def test_ranks_share_out_the_cores():
    for cores in range(1, 9):
        for ranks in range(1, 9):
            shares = [job.cores_of(range(cores), rank, ranks) for rank in range(ranks)]
            assert all(shares)
            given = sorted(core for share in shares for core in share)
            assert set(given) == set(range(cores))
            if ranks <= cores:
                assert given == list(range(cores))
                assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_process_without_a_launcher_is_alone():
    assert RankPlacement.of_environment({}) == RankPlacement()


@pytest.mark.parametrize(
    ("variables", "match"),
    [
        ({"PADDLE_TRAINERS_NUM": "two"}, "PADDLE_TRAINERS_NUM='two' .* is no number of processes"),
        ({"PADDLE_TRAINERS_NUM": "0"}, "PADDLE_TRAINERS_NUM='0' .* is no number of processes"),
        ({"PADDLE_TRAINER_ID": ""}, "PADDLE_TRAINER_ID='' .* is no number of processes"),
        ({"PADDLE_TRAINER_ID": "2"}, "rank 2 of 2, .* ranks are counted from 0"),
        ({"PADDLE_LOCAL_SIZE": "1"}, "number 1 of 1 on this machine"),
        ({"PADDLE_MASTER": "nowhere"}, "PADDLE_MASTER='nowhere': give host:port of rank 0"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(variables, match):
    given = jobs.of_rank(1, 2, 6170)
    assert RankPlacement.of_environment(given) == RankPlacement(1, 2, 1, 2, "127.0.0.1:6170")
    with pytest.raises(NgraphError, match=match) as caught:
        RankPlacement.of_environment({**given, **variables})
    assert "\n" not in str(caught.value)


def test_a_port_in_use_is_one_sentence():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        master = job.DistributedJob(RankPlacement(0, 2, 0, 2, f"127.0.0.1:{port}"))
        with pytest.raises(NgraphError, match=rf"port {port} of this machine .* give another one"):
            master.connect(initializes_paddle=False)


def test_two_jobs_at_one_port_do_not_meet(monkeypatch):
    """The first rank 0 there opens the store; it must not take a rank of the other job for one."""
    keys = []
    monkeypatch.setattr(job, "global_store", lambda: None)
    monkeypatch.setattr(job, "Rendezvous", lambda *given: keys.append(given[-1].key))
    for number in (0, 0, 1):
        monkeypatch.setattr(job, "_link_ids", iter([5]))
        monkeypatch.setenv(reports.JOB_VARIABLE, f"start {number}")
        _ = job.DistributedJob(RankPlacement(1, 2, 1, 2, "127.0.0.1:6170"))._rendezvous
    assert keys[0] == keys[1] != keys[2]


def test_dynamic_jobs_are_joined_in_dynamic_mode():
    with pytest.raises(NgraphError, match="in static mode: call it before"):
        job.DistributedJob(RankPlacement(1, 2, 1, 2, "127.0.0.1:1")).connect(True)


def test_a_batch_has_to_divide():
    batch = np.arange(12).reshape(6, 2)
    shares = [job.share_of("x", batch, RankPlacement(rank, 3)) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(shares), batch)
    assert job.share_of("x", batch.tolist(), RankPlacement(2, 3)).tolist() == batch[4:].tolist()
    for bad, size in ((batch, 6), (batch[:0], 0), (np.float32(1), 0)):
        with pytest.raises(NgraphError, match=f"the batch of 'x' has {size} samples, .* 4 ranks"):
            job.share_of("x", bad, RankPlacement(0, 4))


@pytest.mark.usefixtures("no_job")
def test_a_job_has_to_be_joined():
    optimizer = paddle.optimizer.SGD(0.1)
    for call in (
        distributed.rank,
        distributed.ranks,
        distributed.barrier,
        lambda: distributed.share({}),
        lambda: distributed.prepare(None, None, {}),
        lambda: distributed.distributed_optimizer(optimizer),
    ):
        with pytest.raises(NgraphError, match=r"in no job yet: call .*distributed.init\(\)"):
            call()


@pytest.mark.usefixtures("no_job")
def test_one_rank_is_a_job_too(monkeypatch):
    """Without a store, nothing is opened."""
    monkeypatch.setattr(job, "global_store", None)
    distributed.init()
    training = Training("mlp", wrap=distributed.distributed_optimizer)
    alone = Training("mlp")
    training.start()
    alone.start()
    alone.set_variables(training.variables())
    feed = distributed.share(next(batches("mlp")))
    with paddle.static.scope_guard(training.scope):
        distributed.prepare(training.executor, training.main, feed, [training.loss])
    assert training.step(feed) == alone.step(feed)
    assert (distributed.rank(), distributed.ranks()) == (0, 1)


@pytest.mark.usefixtures("no_job")
def test_variables_have_to_be_there():
    distributed.init()
    training = Training("mlp", wrap=distributed.distributed_optimizer)
    feed = next(batches("mlp"))
    with (
        paddle.static.scope_guard(training.scope),
        pytest.raises(NgraphError, match=r"there is no variable '.*' yet: run the startup"),
    ):
        distributed.prepare(training.executor, training.main, feed, [training.loss])


@pytest.mark.usefixtures("no_job")
def test_an_old_style_loss_is_refused():
    distributed.init()
    optimizer = distributed.distributed_optimizer(paddle.optimizer.SGD(0.1))
    with (
        paddle.pir_utils.OldIrGuard(),
        paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()),
    ):
        loss = paddle.mean(paddle.static.data("x", [4]))
        with pytest.raises(NgraphError, match=r"pass a ProgramDesc program to .*distribute\(\)"):
            optimizer.minimize(loss)
