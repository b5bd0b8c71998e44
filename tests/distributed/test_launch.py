"""``python -m paddle_ngraph launch``: the end of a job whose ranks fail, hang, or are killed.

Most ranks here are plain scripts, which report as ``distributed.init`` would.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from paddle_ngraph import NgraphError
from paddle_ngraph.__main__ import main
from paddle_ngraph.distributed import launcher
from paddle_ngraph.distributed.launcher import LauncherOptions
from tests import jobs, kills

PRELUDE = """
import json, os, signal, sys, threading, time
rank, ranks = int(os.environ["PADDLE_TRAINER_ID"]), int(os.environ["PADDLE_TRAINERS_NUM"])
pipe = int(os.environ["PADDLE_NGRAPH_REPORTS"])

def say(**said):
    os.write(pipe, json.dumps(said).encode() + b"\\n")

def live():
    while True:
        say()
        time.sleep(0.2)

def join():
    threading.Thread(target=live, daemon=True).start()

def wait_for(condition):
    while not condition():
        time.sleep(0.01)

def pid_of(rank):
    wait_for(lambda: os.path.exists(f"{rank}.starts") and open(f"{rank}.starts").read())
    return int(open(f"{rank}.starts").read().split()[-3])

def wait_until(rank, state):
    pid = pid_of(rank)
    wait_for(lambda: open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == state)

starts = open(f"{rank}.starts", "a+")
starts.write(f"{os.getpid()} {os.environ['PADDLE_MASTER']} {os.environ['PADDLE_NGRAPH_JOB']}\\n")
starts.flush()
starts.seek(0)
restart = len(starts.readlines()) - 1
"""

# Seconds within which anything is over on the slowest machine; ranks sleep for longer.
LONG = 600


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Launches a script; returns the exit status, the output, and the duration in seconds."""
    monkeypatch.chdir(tmp_path)

    def launch(script, ranks=2, **options):
        path = tmp_path / "script.py"
        path.write_text(PRELUDE + textwrap.dedent(script))
        started = time.monotonic()
        status = launcher.launch(LauncherOptions(str(path), [], ranks, **options))
        return status, capfd.readouterr(), time.monotonic() - started

    yield launch
    for pid in processes(tmp_path):
        assert not is_alive(pid), "a rank has outlived its job"


@pytest.fixture
def all_are_heard(monkeypatch):
    """The launcher waits until every rank has failed or ended, however slow the machine is."""
    monkeypatch.setattr(launcher, "_JUDGEMENT_DELAY_SECONDS", LONG)


@pytest.fixture
def nothing_follows(monkeypatch):
    """The launcher does not wait for consequences of the failure that ends the job."""
    monkeypatch.setattr(launcher, "_JUDGEMENT_DELAY_SECONDS", 0.0)


@pytest.fixture
def killed_soon(monkeypatch):
    """A stopped rank does not react to SIGTERM: the launcher need not wait for it."""
    monkeypatch.setattr(launcher, "_KILL_TIMEOUT_SECONDS", 0.1)


def processes(folder: Path) -> list[int]:
    """The process ids of all ranks that have run in ``folder``."""
    lines = [line for each in folder.glob("*.starts") for line in each.read_text().splitlines()]
    return [int(line.split()[0]) for line in lines]


def is_alive(pid: int) -> bool:
    return launcher._state_of(pid)[0] not in "ZX"


def said_by(text: str) -> list[str]:
    """The sentences of the launcher."""
    return re.findall(r"^paddle_ngraph: (.*)$", text, re.M)


# -- jobs that end well --------------------------------------------------------------------------


def test_ranks_know_their_place_and_print(run, tmp_path):
    status, out, _ = run(
        """
        assert sys.argv[1:] == [] and os.environ["PADDLE_LOCAL_SIZE"] == "3"
        ends = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")
        assert len(set(ends)) == 3 and os.environ["PADDLE_CURRENT_ENDPOINT"] == ends[rank]
        assert os.environ["PADDLE_MASTER"] == ends[0]
        print("here is", rank, "of", ranks)
        print("and here", file=sys.stderr)
        """,
        ranks=3,
        log_dir="logs",
    )
    assert (status, out.out, out.err) == (0, "here is 0 of 3\n", "and here\n")
    for rank in (1, 2):
        text = (tmp_path / "logs" / f"workerlog.{rank}").read_text()
        assert text == f"-- rank {rank} starts\nhere is {rank} of 3\nand here\n"


def test_ranks_may_end_at_different_times(run):
    assert run("join(); say(meetings=1); time.sleep(rank)")[0] == 0


# -- ranks that end badly ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "what"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", r"was killed by SIGKILL \(the kernel does that"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("os.kill(os.getpid(), 40)", "was killed by signal 40"),
        ("sys.exit(3)", "has ended with exit status 3"),
        ("say(failure='ValueError: bad', refuses=False); sys.exit(1)", "has failed: ValueError: b"),
    ],
)
def test_a_rank_that_fails_ends_the_job(run, nothing_follows, end, what):
    """Also before ``init``, when no rank has joined."""
    script = f"if rank == 1:\n    print('last words')\n    {end}\ntime.sleep(900)"
    status, out, seconds = run(script)
    assert status == 1 and seconds < LONG
    (sentence,) = said_by(out.err)
    assert re.match(f"rank 1 {what}", sentence)
    assert "-- the last lines of log/workerlog.1:\nlast words\n--\n" in out.err
    assert out.err.index("last words") < out.err.index("paddle_ngraph: ")


@pytest.mark.parametrize("seconds_before", [0.0, 5.0])
def test_the_cause_is_named_and_not_its_consequences(run, all_are_heard, seconds_before):
    """Rank 0 fails because rank 1 was killed, and reports this before rank 1's end is noticed."""
    script = f"""
        seconds_before = {seconds_before}
        join()
        if rank == 0:
            os.kill(pid_of(1), signal.SIGKILL)
            wait_until(1, "Z")
            when = time.monotonic() - seconds_before
            say(failure="RuntimeError: std::exception", refuses=False, when=when)
        time.sleep(900)
        """
    assert said_by(run(script)[1].err)[0].startswith("rank 1 was killed by SIGKILL")
    script = """
        join()
        if rank == 1:
            wait_for(lambda: os.path.exists("said"))
        say(failure=f"ValueError: {rank}", refuses=rank == 1, when=time.monotonic())
        open("said", "w")
        sys.exit(1)
        """
    assert said_by(run(script)[1].err) == ["rank 0 has failed: ValueError: 0"]


def test_a_stopped_rank_is_stuck(run, nothing_follows, killed_soon):
    status, out, seconds = run(
        """
        join()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(900)
        """,
        timeout=2,
    )
    assert status == 1 and 2 < seconds < LONG
    (sentence,) = said_by(out.err)
    assert re.match(r"rank 1 is stuck: it has had no heartbeat for \d+ seconds", sentence)


def test_a_rank_that_is_stopped_before_it_joins_is_stuck(run, nothing_follows, killed_soon):
    script = "if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(900)"
    status, out, _ = run(script, timeout=2)
    assert status == 1 and said_by(out.err)[0].startswith("rank 0 is stuck")


@pytest.mark.slow("starts several processes")
def test_a_rank_that_computes_waits_or_prepares_is_not_stuck(run):
    status, _, _ = run(
        """
        if rank == 0:
            say()  # and nothing afterwards, while it computes
            end = time.monotonic() + 5
            while time.monotonic() < end:
                pass
        elif rank == 1:
            join()
            time.sleep(5)
        else:
            time.sleep(5)  # before it joins
        """,
        ranks=3,
        timeout=2,
    )
    assert status == 0


def test_the_others_of_a_rank_that_is_silent_are_not_blamed(run, monkeypatch, killed_soon):
    """The others notice before the time limit."""
    monkeypatch.setattr(launcher, "_SILENCE_SECONDS", 0.5)
    count = launcher._Rank._count_silence

    def noticed(rank, *given):
        count(rank, *given)
        if rank.number == 1 and rank.silent > 0.5:
            Path("silent").touch()

    monkeypatch.setattr(launcher._Rank, "_count_silence", noticed)
    script = """
        join()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        wait_for(lambda: os.path.exists("silent"))
        say(failure="RuntimeError: timeout", refuses=False)
        sys.exit(1)
        """
    status, out, _ = run(script, timeout=100)
    assert status == 1 and said_by(out.err)[0].startswith("rank 1 is stuck")


@pytest.mark.parametrize("has_joined", [True, False])
def test_a_rank_that_ends_early_while_others_wait_for_it(run, nothing_follows, has_joined):
    status, out, seconds = run(
        f"""
        if rank == 1:
            if {has_joined}:
                say(meetings=3)
            sys.exit(0)
        join()
        say(meetings=4)
        time.sleep(900)
        """
    )
    assert status == 1 and seconds < LONG
    early = "rank 1 has ended with exit status 0, and rank 0 still waits for it"
    assert said_by(out.err) == [early]


def test_a_rank_that_takes_long_to_end_is_named(run, monkeypatch):
    monkeypatch.setattr(launcher, "_ENDING_TIMEOUT_SECONDS", LONG)
    monkeypatch.setattr(launcher, "_JUDGEMENT_DELAY_SECONDS", 0.0)
    script = """
        join()
        say(meetings=3 - rank)
        if rank == 1:
            say(ends=time.monotonic())
            open("ends", "w")
            wait_for(lambda: os.path.exists("fails"))
            time.sleep(0.5)
            sys.exit(0)
        wait_for(lambda: os.path.exists("ends"))
        say(failure="NgraphError: waits in vain", refuses=True, when=time.monotonic())
        open("fails", "w")
        sys.exit(1)
        """
    early = "rank 1 has ended with exit status 0, and rank 0 still waits for it"
    assert said_by(run(script)[1].err) == [early]


def test_a_rank_that_ends_early_is_named_when_others_fail(run):
    script = """
        join()
        if rank == 0:
            wait_until(1, "Z")
            say(failure="RuntimeError: gone", refuses=False, when=time.monotonic())
            sys.exit(1)
        """
    (sentence,) = said_by(run(script)[1].err)
    early = "after rank 1 had ended with exit status 0"
    assert sentence == f"rank 0 has failed: RuntimeError: gone, {early}"


RENDEZVOUS = """
import os, signal, sys, time
from paddle_ngraph import distributed

distributed.init()
if distributed.rank() == 1:
    {end}
print("it waits")
distributed.barrier()
"""


@pytest.mark.slow("starts several processes")
@pytest.mark.parametrize(
    ("end", "what"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("sys.exit(3)", "has ended with exit status 3"),
        ("raise ValueError('bad')", "has failed: ValueError: bad"),
        ("time.sleep(1); sys.exit()", "has ended with exit status 0, and rank 0 still waits for"),
    ],
)
def test_a_rank_missing_at_a_rendezvous_is_named(tmp_path, monkeypatch, capfd, end, what):
    """The named rank is not rank 0, which notices first."""
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(RENDEZVOUS.format(end=end))
    monkeypatch.setenv("PYTHONPATH", str(jobs.ROOT))
    assert launcher.launch(LauncherOptions("script.py", [], 2)) == 1
    out = capfd.readouterr()
    assert "it waits" in out.out
    assert said_by(out.err)[-1].startswith(f"rank 1 {what}")


# -- restarts ------------------------------------------------------------------------------------


def test_all_ranks_start_again_with_a_new_port(run, nothing_follows, tmp_path):
    (tmp_path / "kept" / "step-00000012").mkdir(parents=True)
    status, out, _ = run(
        """
        assert os.environ["PADDLE_NGRAPH_CHECKPOINT_DIR"] == os.path.abspath("kept")
        join()
        other = f"{1 - rank}.starts"
        while not os.path.exists(other) or len(open(other).readlines()) <= restart:
            time.sleep(0.01)
        if restart < 2 and rank == restart:
            os.kill(os.getpid(), signal.SIGKILL)
        if restart < 2:
            time.sleep(900)
        """,
        max_restarts=3,
        checkpoint="kept",
    )
    assert status == 0
    first, second = said_by(out.err)
    assert first.startswith("rank 0 was killed by SIGKILL")
    assert first.endswith("; all ranks start again from step 12 (restart 1 of 3)")
    assert second.startswith("rank 1 was") and second.endswith("(restart 2 of 3)")
    begun = [(tmp_path / f"{rank}.starts").read_text().splitlines() for rank in (0, 1)]
    assert [len(lines) for lines in begun] == [3, 3]
    of_starts = [[line.split()[1:] for line in lines] for lines in begun]
    assert of_starts[0] == of_starts[1]
    assert len({name for _, name in of_starts[0]}) == 3, "each start has a name of its own"
    assert (tmp_path / "log" / "workerlog.1").read_text().count("-- rank 1 starts") == 3


def test_restarts_are_counted(run):
    status, out, _ = run("sys.exit(5)", ranks=1, max_restarts=2)
    assert status == 1
    *restarts, last = said_by(out.err)
    assert last == "rank 0 has ended with exit status 5"
    assert restarts == [
        f"{last}; all ranks start again from the beginning (restart {number} of 2)"
        for number in (1, 2)
    ]


def test_rejections_by_all_ranks_are_not_tried_again(run, all_are_heard):
    script = """
        join()
        say(failure="a sentence", refuses=True)
        sys.exit(1)
        """
    status, out, _ = run(script, max_restarts=3)
    assert (status, said_by(out.err)) == (2, ["a sentence"])
    script = script.replace('"a sentence"', 'f"sentence of {rank}"')
    status, out, _ = run(script, max_restarts=1)
    assert status == 1 and re.match(r"rank (\d) has failed: sentence of \1", said_by(out.err)[-1])


# -- the launcher itself -------------------------------------------------------------------------

WAITING = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
with open(f"{os.environ['PADDLE_TRAINER_ID']}.starts", "w") as file:
    file.write(f"{os.getpid()}\\n{child.pid}\\n")
time.sleep(600)
"""


@pytest.mark.slow("starts several processes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_launcher(tmp_path, number):
    (tmp_path / "script.py").write_text(WAITING)
    command = ["-m", "paddle_ngraph", "launch", "--nproc", "2", "script.py"]
    job = subprocess.Popen(
        [sys.executable, "-W", "ignore", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(jobs.ROOT)},
        start_new_session=True,
        # In the background of a shell, SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    end = time.monotonic() + LONG
    while len(processes(tmp_path)) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    found = processes(tmp_path)
    assert len(found) == 4
    os.kill(job.pid, number)
    status = job.wait(LONG)
    assert status == (128 + number if number != signal.SIGKILL else -number)
    if number == signal.SIGKILL:  # children of a rank are not bound to the launcher
        ranks = [int(each.read_text().split()[0]) for each in tmp_path.glob("*.starts")]
        children, found = set(found) - set(ranks), ranks
    end = time.monotonic() + LONG
    while any(map(is_alive, found)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_alive, found))
    if number == signal.SIGKILL:
        for child in children:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nproc", "0", "script.py"], "--nproc 0: give the number of processes, 1 or more"),
        (["--nproc", "1", "none.py"], "there is no script none.py: give the path of a Python"),
        (["--nproc", "1", "."], "there is no script .: give"),
        (["--nproc", "1", "--max-restarts", "-1", "script.py"], "--max-restarts -1: give"),
        (["--nproc", "1", "--timeout", "0", "script.py"], "--timeout 0.0: give"),
        (["--nproc", "1", "--timeout", "nan", "script.py"], "--timeout nan: give"),
        (["--nproc", "1", "--port", "70000", "script.py"], "--port 70000: give"),
        (["--nproc", "1", "--checkpoint", "script.py/c", "script.py"], "--checkpoint script.py/c"),
        (["--nproc", "2", "--log-dir", "script.py/c", "script.py"], "--log-dir script.py/c: "),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, monkeypatch, capfd, options, sentence):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("raise AssertionError('this runs')")
    assert main(["launch", *options]) == 2
    out = capfd.readouterr()
    assert out.err.startswith(f"paddle_ngraph: {sentence}") and out.err.count("\n") == 1
    assert sorted(os.listdir()) == ["script.py"], "nothing was made"


def test_a_port_in_use_is_one_sentence(run):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(NgraphError, match=f"--port {port} cannot be used .*: give another"):
            run("", port=port)
    assert run(f"assert os.environ['PADDLE_MASTER'] == '127.0.0.1:{port}'", port=port)[0] == 0


def test_two_jobs_do_not_share_a_log_folder(run, tmp_path):
    (tmp_path / "log").mkdir()
    mine = open(tmp_path / "log" / "workerlog.1", "a")  # noqa: SIM115
    with mine:
        mine.write("of the other job\n")
        mine.flush()
        fcntl.flock(mine, fcntl.LOCK_EX)
        with pytest.raises(NgraphError, match=r"another job prints to log/workerlog\.1: give each"):
            run("")
    assert (tmp_path / "log" / "workerlog.1").read_text() == "of the other job\n"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda log, precious: log.symlink_to(precious), "is a symbolic link"),
        (lambda log, precious: log.symlink_to("nowhere"), "is a symbolic link"),
        (lambda log, precious: os.link(precious, log), "is a hard link"),
        (lambda log, precious: os.mkfifo(log), "is no regular file"),
        (lambda log, precious: log.symlink_to("/dev/null"), "is a symbolic link"),
        (lambda log, precious: log.mkdir(), r"log/workerlog\.1 is a directory"),
    ],
)
def test_logs_are_written_to_no_file_behind_another_name(run, tmp_path, make, reason):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    log = tmp_path / "log" / "workerlog.1"
    log.parent.mkdir()
    make(log, precious)
    with pytest.raises(NgraphError, match=rf"--log-dir log: .*{reason}"):
        run("")
    assert precious.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["log", "precious", "script.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_logs_are_written_to_no_file_of_another_user(run, tmp_path):
    """The file is replaced, unless a job of that user prints to it."""
    log = tmp_path / "log" / "workerlog.1"
    log.parent.mkdir()
    log.write_text("of another user")
    os.chown(log, 65534, 65534)
    with open(log) as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        with pytest.raises(NgraphError, match=r"another job prints to log/workerlog\.1"):
            run("")
        fcntl.flock(kept, fcntl.LOCK_UN)
        assert run("print('of this job')")[0] == 0
        assert kept.read() == "of another user" and os.fstat(kept.fileno()).st_nlink == 0
    assert log.read_text().endswith("of this job\n") and log.stat().st_uid == os.geteuid()


def test_last_lines_are_those_of_the_open_log(run, tmp_path):
    """Not of a file that has taken its name while the job ran."""
    (tmp_path / "secret").write_text("a secret")
    _, out, _ = run("""
        if rank == 1:
            print("the end", flush=True)
            os.remove("log/workerlog.1")
            os.symlink("../secret", "log/workerlog.1")
            raise SystemExit(3)
        time.sleep(600)
    """)
    assert "the end" in out.err and "a secret" not in out.err


# -- a training ----------------------------------------------------------------------------------


@pytest.mark.slow("starts several processes")
def test_a_training_that_is_killed_and_stopped_loses_nothing(tmp_path):
    """``make kills`` does it 20 times."""
    done = kills.check(tmp_path, kills=2, seed=1, steps=100)
    assert len(done) == 2
