"""The simulator of data parallelism: against hand-made cases and brute force; its command."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from paddle_ngraph import NgraphError
from paddle_ngraph.__main__ import main
from paddle_ngraph.simulation import collectives, prediction, profile, reliability, training
from paddle_ngraph.simulation.collectives import Phase, Sample, SimulatedLink
from paddle_ngraph.simulation.events import Task, simulate, total_ms
from paddle_ngraph.simulation.profile import ProfileSegment
from paddle_ngraph.simulation.training import (
    STRATEGIES,
    AveragingStrategy,
    Cluster,
    compute_ms,
    step_ms,
)

pytestmark = pytest.mark.pure

PROFILE = Path(__file__).with_name("profile.json")
LOCAL, NETWORK = SimulatedLink(100.0, 1.0), SimulatedLink(50.0, 10.0)
RING, RING_OVERLAP = AveragingStrategy("ring", False), AveragingStrategy("ring", True)
TREE, TREE_OVERLAP = (
    AveragingStrategy("hierarchical", False),
    AveragingStrategy("hierarchical", True),
)


@pytest.fixture
def small() -> profile.Profile:
    """The profile of the tests, with ranks that are equally fast."""
    return profile.read(PROFILE).without_spread()


# -- tasks ---------------------------------------------------------------------------------------


def taking(*resources: str) -> list[frozenset]:
    return [frozenset(resources)]


@pytest.mark.slow("compiles many or large functions")
def test_tasks_wait_for_others_and_for_resources():
    spans = simulate(
        {
            "late": Task(1, ["long"], taking("a")),
            "long": Task(4, [], taking("a")),
            "other": Task(2, [], taking("a")),
            "beside": Task(3, [], taking("b")),
            "both": Task(1, [], taking("a", "b")),
            "either": Task(1, [], [*taking("a"), *taking("b")]),
        }
    )
    starts = {key: span.start for key, span in spans.items()}
    assert starts == {"long": 0, "beside": 0, "either": 3, "late": 4, "other": 5, "both": 7}
    assert spans["either"].group == {"b"}
    assert total_ms({}) == 0


@pytest.mark.slow("compiles many or large functions")
def test_tasks_in_a_circle_are_an_error():
    tasks = {"a": Task(1, ["b"], taking("x")), "b": Task(1, ["a"], taking("x"))}
    with pytest.raises(NgraphError, match="wait for each other, or for what is not there: a, b"):
        simulate(tasks)
    with pytest.raises(NgraphError, match="not there: a"):
        simulate({"a": Task(1, ["nobody"], taking("x"))})


def tick_by_tick(tasks: dict[int, Task]) -> dict[int, int]:
    """When each task ends, found by looking at everything in each millisecond."""
    left = {key: int(task.ms) for key, task in tasks.items()}
    held: dict[int, frozenset] = {}
    ends: dict[int, int] = {}
    now = 0
    while len(ends) < len(tasks):
        for key, task in tasks.items():
            if key in held or key in ends or not all(before in ends for before in task.after):
                continue
            used = {resource for group in held.values() for resource in group}
            for group in task.groups:
                if not group & used:
                    held[key] = group
                    break
        now += 1
        for key in list(held):
            left[key] -= 1
            if left[key] == 0:
                ends[key] = now
                del held[key]
    return ends


@pytest.mark.parametrize("seed", range(20))
def test_tasks_against_brute_force(seed):
    draw = random.Random(seed)
    groups = [frozenset(draw.sample("abc", draw.randint(1, 2))) for _ in range(4)]
    tasks = {
        number: Task(
            draw.randint(1, 9),
            [before for before in range(number) if draw.random() < 0.2],
            draw.sample(groups, draw.randint(1, 2)),
        )
        for number in range(15)
    }
    assert {key: span.end for key, span in simulate(tasks).items()} == tick_by_tick(tasks)


# -- all-reduces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_a_ring_against_its_messages(ranks):
    """Chunks go round, are added up, and go round again; each message starts when it can."""
    size = 4 * 1000 * ranks
    data = np.arange(ranks * ranks, dtype=float).reshape(ranks, ranks) ** 2
    sums = data.sum(0)
    times = [0.0] * ranks
    for step in range(2 * (ranks - 1)):
        before, clocks = data.copy(), list(times)
        for rank in range(ranks):
            left = (rank - 1) % ranks
            chunk = (left - step) % ranks
            adds = step < ranks - 1
            data[rank, chunk] = before[left, chunk] + (before[rank, chunk] if adds else 0.0)
            times[rank] = max(clocks[rank], clocks[left]) + LOCAL.message_ms(size / ranks)
    assert (data == sums).all()
    assert collectives.ring_ms(ranks, size, LOCAL) == pytest.approx(max(times))


def test_all_reduces_by_hand():
    # 1 MB at 1 GB/s is 1 ms, at 10 GB/s 0.1 ms.
    assert LOCAL.message_ms(1e6) == pytest.approx(1.1)
    assert collectives.ring_ms(4, 1e6, LOCAL) == pytest.approx(6 * (0.1 + 0.25))
    assert collectives.tree_ms(4, 1e6, LOCAL) == pytest.approx(2 * 1.1)
    assert collectives.tree_ms(1, 1e6, LOCAL) == 0
    assert LOCAL.shared(2).message_ms(1e6) == pytest.approx(2.2)

    def phases(algorithm, machines, ranks, network=NETWORK):
        found = collectives.phases(algorithm, machines, ranks, 1e6, LOCAL, network)
        return [pytest.approx(tuple(phase)) for phase in found]

    assert phases("ring", 1, 2) == [Phase(1.2, 0)]
    # Faster than a core copies: its time is that of the copies, 1.5 ms for 2 * 3 / 4 of the data.
    assert phases("ring", 2, 2) == [Phase(1.5, 0)]
    slow = SimulatedLink(1000.0, 0.1)
    assert phases("ring", 2, 2, slow) == [Phase(1.5, 6 * (1 + 2.5) - 1.5)]
    assert phases("hierarchical", 1, 4) == [Phase(2.2, 0), Phase(2.2, 0)]
    across = Phase(1.0, 2 * (1 + 5) - 1.0)
    assert phases("hierarchical", 2, 2, slow) == [Phase(1.1, 0), across, Phase(1.1, 0)]
    assert phases("hierarchical", 2, 1, slow) == [across] == phases("ring", 2, 1, slow)


def test_a_call_is_paid_once_for_a_collective():
    calling = SimulatedLink(100.0, 1.0, 500.0)
    assert collectives.ring_ms(4, 1e6, calling) == collectives.ring_ms(4, 1e6, LOCAL) + 0.5
    assert collectives.tree_ms(4, 1e6, calling) == collectives.tree_ms(4, 1e6, LOCAL) + 0.5
    assert collectives.tree_ms(1, 1e6, calling) == collectives.ring_ms(1, 1e6, calling) == 0
    assert calling.shared(3) == SimulatedLink(300.0, 1 / 3, 1500.0)
    for algorithm, machines, ranks, calls in (
        ("ring", 1, 4, 1),
        ("ring", 4, 2, 1),
        ("hierarchical", 1, 4, 2),
        ("hierarchical", 4, 2, 3),
    ):
        of_calls, of_others = (
            sum(map(sum, collectives.phases(algorithm, machines, ranks, 1e6, local, NETWORK)))
            for local in (calling, LOCAL)
        )
        assert of_calls - of_others == pytest.approx(0.5 * calls)


@pytest.mark.parametrize("call_us", [0.0, 700.0])
def test_latency_and_bandwidth_are_found_again(call_us):
    link = SimulatedLink(80.0, 1.25, call_us)
    samples = [
        Sample(ranks, per_core, size, collectives.ring_ms(ranks, size, link.shared(per_core)))
        for ranks, per_core in ((2, 1), (4, 2))
        for size in (4096, 2**20, 10 * 2**20)
    ]
    found = collectives.fitted(samples)
    assert found.latency_us == pytest.approx(80) and found.gigabytes_per_s == pytest.approx(1.25)
    assert found.call_us == pytest.approx(call_us, abs=1e-6)
    noisy = [sample._replace(ms=sample.ms * f) for sample, f in zip(samples, (1.1, 0.9) * 3)]
    assert collectives.fitted(noisy).gigabytes_per_s == pytest.approx(1.25, rel=0.2)
    of_two = collectives.fitted([sample for sample in samples if sample.ranks == 2])
    assert of_two.latency_us == 0 and of_two.call_us == pytest.approx(call_us + 2 * 80)
    assert of_two.gigabytes_per_s == pytest.approx(1.25)
    for useless in (samples[:1], [Sample(2, 1, 4096, 5.0), Sample(2, 1, 2**20, 1.0)]):
        with pytest.raises(NgraphError, match="give no latency and bandwidth"):
            collectives.fitted(useless)


# -- a step --------------------------------------------------------------------------------------


def test_steps_on_one_machine_by_hand(small):
    assert step_ms(small, Cluster(1, 1, NETWORK), RING) == 3 + 2 + 3 + 1
    # Two messages for each bucket, of 0.5 and 1.5 MB; and packing.
    two = 4 + 3 + 5 + 2 * (0.1 + 0.5) + 2 * (0.1 + 1.5) + 1 + 2
    assert step_ms(small, Cluster(2, 2, NETWORK), RING) == pytest.approx(two)
    # Cores that copy do not compute: nothing overlaps.
    assert step_ms(small, Cluster(2, 2, NETWORK), RING_OVERLAP) == pytest.approx(two)
    # Two ranks on each core, and six messages of a fourth.
    four = 2 * (4 + 3 + 5 + 6 * (0.1 + 0.25) + 6 * (0.1 + 0.75) + 1 + 2)
    assert step_ms(small, Cluster(4, 4, NETWORK), RING) == pytest.approx(four)
    assert compute_ms(small, Cluster(4, 4, NETWORK)) == 2 * (4 + 3 + 5 + 2)
    assert step_ms(small, Cluster(4, 4, NETWORK), TREE) == pytest.approx(
        2 * (4 + 3 + 5 + 4 * (0.1 + 1) + 4 * (0.1 + 3) + 1 + 2)
    )


def test_overlap_by_hand(small):
    # One rank on each of two machines, with both cores: 0.1 GB/s, 10 and 30 ms for the buckets.
    cluster = Cluster(2, 1, SimulatedLink(0.0, 0.1))
    assert step_ms(small, cluster, RING) == pytest.approx(3 + 2 + 3 + 10 + 30 + 1 + 1)
    # After 5 ms the core copies for 1 ms, goes on with the backward pass, and waits to the end.
    assert step_ms(small, cluster, RING_OVERLAP) == pytest.approx(5 + 10 + 30 + 1 + 1)
    # A backward pass that is longer than the network takes hides it, but for the copies.
    long = replace(small, intervals=[*small.intervals, ProfileSegment("rest", {1: 90.0, 2: 90.0})])
    assert step_ms(long, cluster, RING_OVERLAP) == pytest.approx(3 + 2 + 3 + 90 + 1 + 3 + 1 + 1)


def random_profile(draw: random.Random) -> profile.Profile:
    """Any profile."""
    intervals = [
        ProfileSegment(
            str(number),
            {1: draw.uniform(0.1, 20)},
            draw.choice([0, draw.randint(1000, 10**7)]),
        )
        for number in range(draw.randint(1, 6))
    ]
    link = SimulatedLink(draw.uniform(0, 200), draw.uniform(0.2, 5))
    return replace(
        profile.read(PROFILE),
        intervals=intervals,
        update_ms={1: draw.uniform(0, 5)},
        packing_ms={1: 0.5},
        link=link,
        spread=draw.choice([0.0, 0.2]),
    )


@pytest.mark.parametrize("seed", range(40))
def test_limits_of_a_step(seed):
    draw = random.Random(seed)
    subject = random_profile(draw)
    ranks = draw.choice([4, 16, 64])
    network = SimulatedLink(draw.uniform(0, 200), draw.uniform(0.05, 10))
    cluster = Cluster(ranks, draw.choice([2, 4]), network)
    better = replace(cluster, network=replace(network, gigabytes_per_s=3 * network.gigabytes_per_s))
    nearer = replace(cluster, network=replace(network, latency_us=network.latency_us / 3))
    for slow, fast in ((RING, RING_OVERLAP), (TREE, TREE_OVERLAP)):
        assert step_ms(subject, cluster, fast) <= step_ms(subject, cluster, slow) + 1e-9
    for strategy in STRATEGIES:
        time = step_ms(subject, cluster, strategy)
        assert step_ms(subject, better, strategy) <= time + 1e-9
        assert step_ms(subject, nearer, strategy) <= time + 1e-9
        assert step_ms(subject.without_spread(), cluster, strategy) <= time + 1e-9
        assert compute_ms(subject, cluster) < time or not any(
            interval.bucket_bytes for interval in subject.intervals
        )


def test_clusters_that_cannot_be(small):
    with pytest.raises(NgraphError, match="6 ranks do not fill machines of 4"):
        Cluster(6, 4, NETWORK)
    with pytest.raises(NgraphError, match="at least 1 rank"):
        Cluster(0, 1, NETWORK)
    wide = replace(small, cores=8)
    with pytest.raises(NgraphError, match=r"2 ranks on 8 cores have 4 each, and .* for 1, 2: give"):
        step_ms(wide, Cluster(2, 2, NETWORK), RING)


# -- slow ranks and failures ---------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 4, 64])
def test_the_slowest_rank_against_samples(ranks):
    draw = random.Random(ranks)
    spread = 0.2
    steps = [
        max(math.exp(draw.gauss(0, spread)) for _ in range(ranks)) for _ in range(40000 // ranks)
    ]
    found = reliability.expected(lambda slow_down: slow_down, spread, ranks)
    error = np.std(steps) / math.sqrt(len(steps))
    assert abs(found - np.mean(steps)) < 5 * error + 0.005
    assert reliability.expected(lambda slow_down: slow_down, 0.0, ranks) == 1


def test_slow_ranks_cost_more_the_more_there_are():
    subject = profile.read(PROFILE)
    waiting = [
        step_ms(subject, cluster, RING) - step_ms(subject.without_spread(), cluster, RING)
        for cluster in (Cluster(ranks, 2, NETWORK) for ranks in (8, 64, 512))
    ]
    assert 0 < waiting[0] < waiting[1] < waiting[2]
    (row,) = prediction.predicted(subject, prediction.Scenario([8]))
    assert row.waiting_ms > 0


@pytest.mark.parametrize(("every", "restart"), [(100.0, 10.0), (30.0, 5.0)])
def test_failures_against_samples(every, restart):
    """Work in pieces with a checkpoint after each; a piece that fails before it is repeated."""
    draw = random.Random(1)
    interval, checkpoint, pieces = 20.0, 2.0, 20000
    time, next_failure = 0.0, draw.expovariate(1 / every)
    for _ in range(pieces):
        needed = interval + checkpoint
        while time + needed > next_failure:
            time = next_failure
            next_failure = time + draw.expovariate(1 / every)
            needed = restart + interval + checkpoint  # a restart may fail, too
        time += needed
    found = reliability.useful_fraction(interval, checkpoint, restart, every)
    assert found == pytest.approx(pieces * interval / time, rel=0.02)


def test_the_best_checkpoint_interval():
    for checkpoint, every in ((1.0, 10000.0), (60.0, 3600.0), (100.0, 50.0)):
        best = reliability.best_checkpointing(checkpoint, 30.0, every)
        for factor in (0.5, 0.9, 1.1, 2.0):
            other = reliability.useful_fraction(best.interval_s * factor, checkpoint, 30.0, every)
            assert other < best.useful < 1
    rare = reliability.best_checkpointing(1.0, 30.0, 1e6)
    assert rare.interval_s == pytest.approx(math.sqrt(2 * 1.0 * 1e6), rel=0.01)
    assert reliability.useful_fraction(1e9, 1.0, 1.0, 1.0) == 0


# -- profiles ------------------------------------------------------------------------------------


def test_a_profile_survives_its_file(tmp_path):
    subject = profile.read(PROFILE)
    assert profile.parsed(json.loads(json.dumps(subject.to_json())), "") == subject
    assert subject.intervals[1] == ProfileSegment("backward 1", {1: 3.0, 2: 2.0}, 1000000)
    calling = replace(subject, link=SimulatedLink(1.0, 2.0, 3.0))
    assert profile.parsed(json.loads(json.dumps(calling.to_json())), "") == calling
    shorter = {k: v for k, v in subject.to_json().items() if k not in ("packing_ms", "measured")}
    assert profile.parsed(shorter, "").packing_ms == {1: 0.0, 2: 0.0}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"update_ms": None}, "update_ms: an object is needed"),
        ({"cores": 0}, "'cores' has to be an integer of 1 or more"),
        ({"samples": True}, "'samples' has to be an integer"),
        ({"spread": -1}, "'spread' has to be a number of 0 or more, not -1"),
        ({"spread": float("nan")}, "'spread' has to be a number of 0 or more, not nan"),
        ({"restart_s": "soon"}, "'restart_s' has to be a number of 0 or more, not 'soon'"),
        ({"intervals": []}, "'intervals' has to be a list with at least one element"),
        ({"intervals": [{"name": "a"}]}, r"intervals\[0\]: 'ms' is missing"),
        ({"intervals": [3]}, r"intervals\[0\]: an object is needed"),
        ({"intervals": [{"name": "a", "ms": {"1": 2}}]}, "'a' has times for 1 cores and update_ms"),
        ({"update_ms": {"one": 2}}, "'update_ms' has 'one', which is no number of cores"),
        ({"update_ms": {"1": "x"}}, r"'update_ms\[1\]' has to be a number"),
        ({"link": {"latency_us": 1}}, "link: 'gigabytes_per_s' is missing"),
        ({"link": {"latency_us": 1, "gigabytes_per_s": 0}}, "has to be a number above 0, not 0"),
        ({"bandwidth": 3}, "'bandwidth' is unknown: there are checkpoint_s, cores"),
        ({"name": ...}, "'name' is missing"),
    ],
)
def test_bad_profiles(tmp_path, capsys, change, sentence):
    content = {**json.loads(PROFILE.read_text()), **change}
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))
    assert main(["simulate", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"paddle_ngraph: {path}: ") and said.count("\n") == 1
    assert re.search(sentence, said), said


# -- the command ---------------------------------------------------------------------------------


def numbers(output: str) -> list[list[str]]:
    """The cells of the lines that begin with a number."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()]
    return [row for row in rows if row and row[0].isdecimal()]


def test_the_command(tmp_path, capsys, small):
    svg = tmp_path / "steps.svg"
    flat = ["--spread", "0", "--ranks", "2", "1024", "--network-gbit", "80"]
    assert main(["simulate", str(PROFILE), *flat, "--svg", str(svg)]) == 0
    output = capsys.readouterr().out
    assert "small, 8 samples a rank" in output
    one, two, four, machine, many = numbers(output)
    assert one == ["1", "9.0", "9.0", "1.00"]
    assert two == ["2", "20.0", "19.4", "0.97"]
    assert four[:2] == ["4", "47.0"]
    cluster = Cluster(1024, 2, SimulatedLink(50.0, 10.0))
    assert machine[1] == machine[2] == "19.4"
    assert many[1:5] == [f"{step_ms(small, cluster, strategy):.1f}" for strategy in STRATEGIES]
    best = min(step_ms(small, cluster, strategy) for strategy in STRATEGIES)
    assert many[5:7] == ["0.0", f"{14 / best:.0%}"]
    seconds = math.sqrt(2 * 0.5 * 50000 * 3600 / 1024)
    assert many[7] == f"{seconds / 60:.1f} min" and many[8].endswith("%")
    drawing = ElementTree.parse(svg).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawing.findall(f"{space}polyline")) == len(STRATEGIES)
    texts = [each.text for each in drawing.findall(f"{space}text")]
    assert {"ranks", "1024", *map(str, STRATEGIES)} <= set(texts)


@pytest.mark.slow("compiles many or large functions")
def test_the_command_predicts_up_to_4096_ranks(capsys):
    assert main(["simulate", str(PROFILE)]) == 0
    rows = numbers(capsys.readouterr().out)[3:]
    assert [int(row[0]) for row in rows] == [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    for row in rows:
        ring, ring_overlap, tree, tree_overlap = map(float, row[1:5])
        assert ring_overlap <= ring and tree_overlap <= tree
    assert float(rows[-1][4]) < float(rows[-1][2]), "with many ranks a ring through all is slower"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ranks", "7"], "7 ranks do not fill machines of 2"),
        (["--ranks", "0"], "at least 1 rank"),
        (["--spread", "-1"], "--spread -1: give a number from 0 to 10"),
        (["--network-gbit", "0"], "the network needs a bandwidth above 0"),
        (["--mtbf-hours", "0"], "time between failures has to be above 0"),
        (["--ranks", "8", "--svg", "/nowhere/at/all.svg"], "--svg /nowhere/at/all.svg: No such"),
    ],
)
def test_bad_arguments(capsys, arguments, sentence):
    assert main(["simulate", str(PROFILE), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_files_that_are_no_profiles(tmp_path, capsys):
    (tmp_path / "text.json").write_text("{")
    assert main(["simulate", str(tmp_path / "text.json")]) == 2
    assert "text.json is no JSON file" in capsys.readouterr().err
    assert main(["simulate", str(tmp_path / "none.json")]) == 2
    assert "none.json cannot be read: No such file" in capsys.readouterr().err


def test_the_help_names_options_and_documentation(capsys):
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    said = capsys.readouterr().out
    assert "--network-gbit" in said and "docs/guides/scaling.md" in said


def test_the_tasks_of_a_rank_take_its_core_one_by_one(small):
    """An assumption of the model: no two tasks use the core at once, nor the network."""
    tasks = training.tasks_of_step(
        small, Cluster(8, 2, SimulatedLink(500.0, 0.1)), TREE_OVERLAP, 1.3
    )
    spans = sorted(simulate(tasks).values())
    for resource in ("core", "network"):
        users = [span for span in spans if resource in span.group]
        assert len(users) > 4
        for earlier, later in zip(users, users[1:]):
            assert earlier.end <= later.start
