"""Starts the ranks of a job on this machine, monitors those of all machines, and restarts them.

A rank that fails, or is stuck, ends the job: the others cannot continue without it. The launcher
reports the first failure, as the failures of other ranks are its consequences.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from paddle_ngraph.distributed import (
    bound_to_launcher,
    checkpoint_files,
    environment,
    machines,
    reports,
)
from paddle_ngraph.distributed.connections import SECRET_VARIABLE
from paddle_ngraph.distributed.machines import ONE_MACHINE, Link, Place
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.utils import child_process
from paddle_ngraph.utils.own_files import open_own

# The pause between two polls of the ranks. All times in this file are in seconds.
_POLL_SECONDS = 0.05
# The pause between two rounds of messages to other machines.
_ROUND_SECONDS = 0.2
# A busy machine may be late with its messages for this long, even if ranks must not be.
_MIN_LINK_TIMEOUT = 30.0
_LOOPBACK = "127.0.0.1"
# The maximal silence of a rank that is counted per poll: if the launcher was stopped, it has not
# received the heartbeats of that time either.
_MAX_POLL_SECONDS = 1.0
# The wait after a failure: failures of other ranks that follow from it arrive meanwhile, and the
# earliest one is taken as the cause.
_JUDGEMENT_DELAY_SECONDS = 2.0
# The wait for the exit of a rank that has reported its end: its exit status may be the cause of a
# failure.
_ENDING_TIMEOUT_SECONDS = 15.0
# The seconds by which the peers of a process may notice its end earlier than the launcher does. If
# the launcher waits for a core, they notice it much earlier.
_HEAD_START_SECONDS = 0.25
# After a failure, a rank that has been silent for this long is taken as its cause.
_SILENCE_SECONDS = 5.0
_KILL_TIMEOUT_SECONDS, _KILL_TIMEOUT_BY_USER_SECONDS = 2.0, 5.0
_SHOWN_LINES = 20
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class LauncherOptions:
    """Options of the launcher.

    Attributes:
        script: The Python script.
        arguments: The arguments of the script.
        ranks: The number of processes.
        max_restarts: The maximal number of restarts of all ranks.
        checkpoint: The folder for checkpoints, if any.
        log_dir: The folder for the output of all ranks but 0.
        timeout: The seconds without a sign of life after which a rank is considered stuck.
        port: The port of the store; ``None``: a free one for each start.
        place: The place of this launcher, if there is one on each of several machines.
    """

    script: str
    arguments: Sequence[str]
    ranks: int
    max_restarts: int = 0
    checkpoint: str | None = None
    log_dir: str = "log"
    timeout: float = 20.0
    port: int | None = None
    place: Place = ONE_MACHINE

    def check(self) -> None:
        """Raises NgraphError if an option is invalid."""
        if self.ranks < 1:
            raise NgraphError(f"--nproc {self.ranks}: give the number of processes, 1 or more")
        if self.max_restarts < 0:
            raise NgraphError(f"--max-restarts {self.max_restarts}: give a number, 0 or more")
        if not self.timeout > 0:
            raise NgraphError(f"--timeout {self.timeout}: give a number of seconds above 0")
        if self.port is not None and not 0 < self.port < 65536:
            raise NgraphError(f"--port {self.port}: give a number from 1 to 65535")
        if not Path(self.script).is_file():
            raise NgraphError(f"there is no script {self.script}: give the path of a Python file")
        self.place.check()


class End(NamedTuple):
    """The end of all ranks after one start, and that of a job.

    Attributes:
        status: The exit status of the launcher: 0: all ranks have succeeded; 1: a rank has failed;
            2: all ranks reject the job, for one reason; 3: a machine is lost; 128 plus the number
            of the signal that has ended the launcher.
        sentence: The reason.
        culprit: The rank that is the reason; negative: none.
    """

    status: int
    sentence: str = ""
    culprit: int = -1


FAILED, REJECTED, MACHINE_LOST = 1, 2, 3  # statuses of an End


def launch(options: LauncherOptions) -> int:
    """Runs a job to its end, and prints the reason. Returns the status of its :class:`End`.

    Raises:
        NgraphError: The options are invalid, a folder cannot be used, or a port is in use.
    """
    return reported(run(options))


def reported(end: End) -> int:
    """Prints the reason of an end, if there is one; returns its status."""
    if end.sentence:
        _print_status(end.sentence)
    return end.status


def run(options: LauncherOptions) -> End:
    """Runs a job to its end.

    Raises:
        NgraphError: See :func:`launch`.
    """
    options.check()
    if options.checkpoint is not None:
        _check_folder(Path(options.checkpoint), "--checkpoint")
    joined = machines.joined(options.place, options.ranks, max(options.timeout, _MIN_LINK_TIMEOUT))
    with _signals() as signals, joined as link, _logs(options, link) as logs:
        for restart in range(options.max_restarts + 1):
            end = _Start(options, logs, signals, link).run()
            if end.status != FAILED:
                break
            if restart < options.max_restarts:
                _print_status(f"{end.sentence}; all ranks start again {_restart_point(options)} "
                     f"(restart {restart + 1} of {options.max_restarts})")  # fmt: skip
    return end


class _Failure(NamedTuple):
    """The failure that a rank has reported: time and message."""

    when: float
    what: str
    # Whether the rank raised NgraphError: the job is invalid, so that a restart would not help.
    refuses: bool


class _Evidence(NamedTuple):
    """A reason to end the job: time and message."""

    when: float
    what: str


def _print_status(sentence: str) -> None:
    print(f"paddle_ngraph: {printable(sentence)}", file=sys.stderr, flush=True)


def _restart_point(options: LauncherOptions) -> str:
    step = None
    if options.checkpoint is not None:
        step = checkpoint_files.newest_step(Path(options.checkpoint))
    return "from the beginning" if step is None else f"from step {step}"


def _exchanged(link: Link, text: Any) -> list[Any]:
    """The messages of all machines. Raises _MachineLost if one is lost."""
    done = link.exchange(text)
    if done.lost:
        raise _MachineLost(done.lost)
    return done.texts


class _MachineLost(Exception):
    """Raised when a machine of the job is lost; the message is a sentence."""


# -- ranks ---------------------------------------------------------------------------------------


class _Rank:
    """A process of the job, monitored by the launcher.

    Args:
        number: The rank.
        command: The command line of the process.
        variables: The environment of the process.
        log: The file of its output; ``None``: that of the launcher.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        variables: dict[str, str],
        log: IO[bytes] | None,
    ) -> None:
        self.number = number
        self.log = log
        self.log_begins = os.fstat(log.fileno()).st_size if log is not None else 0
        # The exit status; negative: the number of the signal that killed the process; ``None``: it
        # runs.
        self.status: int | None = None
        self.ended = 0.0
        self.meetings = 0
        self.failure: _Failure | None = None
        self.silent = 0.0
        self._ending_since: float | None = None
        # The time of the last poll in which the process was still running.
        self._last_seen = time.monotonic()
        self._has_reported = False
        self._spent = -1
        self._pipe, end = os.pipe()
        os.set_blocking(self._pipe, False)
        self._rest = b""
        self._process = subprocess.Popen(
            bound_to_launcher.bound(command),
            env={**variables, reports.VARIABLE: str(end)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[end],
            start_new_session=True,
        )
        os.close(end)

    def poll(self, elapsed: float) -> None:
        """Updates the status of the process; the previous poll was ``elapsed`` seconds ago."""
        if self.status is None:
            now = time.monotonic()
            # WNOWAIT: the process is not reaped yet, so that neither its id nor that of its group
            # is reused.
            found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                self._last_seen = now
            else:
                killed = found.si_code != os.CLD_EXITED
                self.status = -found.si_status if killed else found.si_status
                self.ended = now
        hears = self._read()
        if self.status is None:
            self._count_silence(hears, elapsed)

    def _read(self) -> bool:
        try:
            data = os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            report = json.loads(line)
            self.meetings = report.get("meetings", self.meetings)
            self._ending_since = report.get("ends", self._ending_since)
            if "failure" in report and self.failure is None:
                # Times of different ranks are comparable, since all processes read one monotonic
                # clock.
                when = report.get("when", time.monotonic())
                self.failure = _Failure(when, report["failure"], report["refuses"])
        return bool(data)

    def is_ending(self) -> bool:
        """Whether the rank has reported its end without a failure, and still runs."""
        return self.status is None and self.failure is None and self._ending_since is not None

    @property
    def left_at(self) -> float:
        """The earliest time at which other ranks may have noticed the end of this rank."""
        if self._ending_since is not None:
            return self._ending_since
        return min(self.ended - _HEAD_START_SECONDS, self._last_seen)

    def _count_silence(self, hears: bool, elapsed: float) -> None:
        """Measures silence: a process is alive if it reports, computes, or waits for a core.

        Before its first report a process may also block, but not be stopped.
        """
        self._has_reported |= hears
        state, spent = _state_of(self._process.pid)
        idle = self._has_reported or state in "Tt"
        if hears or spent != self._spent or not idle or _is_runnable(self._process.pid):
            self.silent = 0.0
        else:
            self.silent += elapsed
        self._spent = spent

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process group of the rank."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kills the process group of a failed or running rank, and reaps the process."""
        if self.status != 0:
            self.signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._pipe)

    def last_lines(self) -> list[str]:
        """The last lines that the rank has written since it was started last."""
        if self.log is None:
            return []
        # Read from the open file: another one may have its name by now.
        descriptor = self.log.fileno()
        end = os.fstat(descriptor).st_size
        begin = max(self.log_begins, end - (1 << 16))
        text = os.pread(descriptor, max(0, end - begin), begin).decode(errors="replace")
        return text.splitlines()[-_SHOWN_LINES:]


class _RemoteRank:
    """A rank on another machine, as the launcher there has described it.

    Times are those of this machine: each description has the seconds that have passed since.
    """

    def __init__(self, described: Mapping[str, Any]) -> None:
        now = time.monotonic()
        self.number = int(described["number"])
        self.status = described["status"]
        self.meetings = int(described["meetings"])
        self.silent = float(described["silent"])
        self.ended = now - float(described["ended"])
        self.left_at = now - float(described["left"])
        self._is_ending = bool(described["ending"])
        failure = described["failure"]
        self.failure = (
            None
            if failure is None
            else _Failure(now - float(failure[0]), str(failure[1]), bool(failure[2]))
        )

    def is_ending(self) -> bool:
        """See :meth:`_Rank.is_ending`."""
        return self._is_ending


def _described(rank: _Rank) -> dict[str, Any]:
    """The state of a rank for other machines; see :class:`_RemoteRank`."""
    now = time.monotonic()
    failure = rank.failure
    return {
        "number": rank.number,
        "status": rank.status,
        "meetings": rank.meetings,
        "silent": rank.silent,
        "ended": now - rank.ended,
        "left": now - rank.left_at,
        "ending": rank.is_ending(),
        "failure": None if failure is None else [now - failure.when, failure.what, failure.refuses],
    }


def _state_of(pid: int) -> tuple[str, int]:
    """The state of a process, as a letter, and its CPU time in ticks."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "Z", -1
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])


def _is_runnable(pid: int) -> bool:
    """Whether some thread of a process is runnable, not waiting."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


# -- one start of all ranks ----------------------------------------------------------------------


class _Start:
    """One attempt of a job: all its ranks, from their start to their end.

    Args:
        options: The options of the launcher.
        logs: The output files of the ranks; ``None`` for rank 0.
        signals: The signals that the launcher has received.
        link: The link to the launchers of other machines, if any.
    """

    def __init__(
        self,
        options: LauncherOptions,
        logs: Sequence[IO[bytes] | None],
        signals: list[int],
        link: Link | None,
    ) -> None:
        self._options = options
        self._logs = logs
        self._signals = signals
        self._link = link
        self._ranks: list[_Rank] = []
        self._remote: list[_RemoteRank] = []
        # The end that another machine has decided, if any.
        self._end: End | None = None
        self._last_look = time.monotonic()
        self._last_round = time.monotonic()

    def run(self) -> End:
        """Starts and monitors all ranks; returns when every rank has ended."""
        timeout = _KILL_TIMEOUT_SECONDS
        try:
            # The ports are reserved until the ranks have ended, so that no other process gets them.
            with _ports(self._options) as ports:
                try:
                    for variables, log in zip(self._environments(ports), self._logs):
                        self._ranks.append(self._started(variables, log))
                    end = self._share_end(self._watch())
                except _MachineLost as error:
                    end = End(MACHINE_LOST, str(error))
                for rank in self._ranks:
                    if rank.number == end.culprit:
                        print(*_shown(rank), sep="\n", end="", file=sys.stderr)
                if self._signals:
                    timeout = _KILL_TIMEOUT_BY_USER_SECONDS
                self._stop(timeout)
                return end
        finally:
            for each in self._ranks:
                each.kill()

    def _started(self, variables: dict[str, str], log: IO[bytes] | None) -> _Rank:
        options = self._options
        rank = int(variables["PADDLE_TRAINER_ID"])
        command = [sys.executable, options.script, *options.arguments]
        if log is not None:
            os.write(log.fileno(), f"-- rank {rank} starts\n".encode())
        return _Rank(rank, command, variables, log)

    def _environments(self, ports: Sequence[int]) -> list[dict[str, str]]:
        """The environment of each rank on this machine."""
        link, job = self._link, environment.new_job()
        counts, first, place = [len(ports)], 0, self._options.place
        endpoints = [f"{_LOOPBACK}:{port}" for port in ports]
        if link is not None:
            counts, first = link.ranks, link.first_rank()
            name = job[reports.JOB_VARIABLE]
            mine = [[f"{link.host}:{port}" for port in ports], name]
            found = _exchanged(link, mine)
            endpoints = [str(endpoint) for each, _ in found for endpoint in each]
            name = str(found[0][1])
            job = {reports.JOB_VARIABLE: name, SECRET_VARIABLE: link.secret_of(name)}
        return [
            {
                **_environment(self._options),
                **environment.of_rank(
                    first + local_rank,
                    endpoints,
                    local_rank=local_rank,
                    local_ranks=len(ports),
                    node=place.node,
                    nodes=len(counts),
                ),
                **job,
            }
            for local_rank in range(len(ports))
        ]

    def _all(self) -> list[Any]:
        """The ranks of all machines."""
        return sorted([*self._ranks, *self._remote], key=lambda rank: rank.number)

    def _watch(self) -> End:
        while not self._signals:
            self._poll()
            if self._end is not None:
                return self._end
            if self._options.place.node == 0:
                if self._has_all() and all(rank.status == 0 for rank in self._all()):
                    return End(0)
                if self._evidence() is not None:
                    return self._verdict()
            time.sleep(_POLL_SECONDS)
        return End(128 + self._signals[0])

    def _has_all(self) -> bool:
        return self._link is None or len(self._all()) == sum(self._link.ranks)

    def _meet(self, end: End | None = None) -> None:
        """A round of messages: the ranks of other machines, and the end that one has decided."""
        assert self._link is not None
        found = _exchanged(self._link, [[_described(rank) for rank in self._ranks], end])
        own = {rank.number for rank in self._ranks}
        described = [rank for ranks, _ in found for rank in ranks if rank["number"] not in own]
        self._remote = [_RemoteRank(each) for each in described]
        for _, each in found:
            if each is not None and self._end is None:
                self._end = End(*each)
        self._last_round = time.monotonic()

    def _share_end(self, end: End) -> End:
        """Tells the other machines how the job ends, unless they know; returns the common end."""
        if self._link is not None and self._end is None:
            self._meet(end)
        return self._end or end

    def _poll(self) -> None:
        now = time.monotonic()
        elapsed, self._last_look = min(now - self._last_look, _MAX_POLL_SECONDS), now
        for rank in self._ranks:
            rank.poll(elapsed)
        # Other machines wait for machine 0, so that all poll as often.
        is_due = self._options.place.node > 0 or now > self._last_round + _ROUND_SECONDS
        if self._link is not None and self._end is None and is_due and not self._signals:
            self._meet()

    def _verdict(self) -> End:
        """Determines why the job ends, after a wait for failures that follow from the first one."""
        begun = time.monotonic()
        while not self._signals and self._end is None:
            limit = (
                _ENDING_TIMEOUT_SECONDS
                if any(rank.is_ending() for rank in self._all())
                else _JUDGEMENT_DELAY_SECONDS
            )
            if time.monotonic() > begun + limit:
                break
            if all(rank.failure or rank.status is not None for rank in self._all()):
                break
            time.sleep(_POLL_SECONDS)
            self._poll()
        if self._end is not None:
            return self._end
        ranks = self._all()
        failures = [rank.failure for rank in ranks if rank.failure is not None]
        reasons = {failure.what for failure in failures}
        if len(failures) == len(ranks) and len(reasons) == 1 and failures[0].refuses:
            return End(REJECTED, failures[0].what)
        evidence = self._evidence(_SILENCE_SECONDS)
        assert evidence is not None
        culprit, (when, what) = evidence
        early = [str(rank.number) for rank in ranks if rank.status == 0 and rank.left_at < when]
        if early and culprit.status != 0:
            what += f", after rank {' and '.join(early)} had ended with exit status 0"
        where = "" if self._link is None else f" on {self._link.host_of(culprit.number)}"
        return End(FAILED, f"rank {culprit.number}{where} {what}", culprit.number)

    def _evidence(self, silent: float | None = None) -> tuple[Any, _Evidence] | None:
        """The earliest reason to end the job, SIGKILL before others, and the rank that gives it."""
        limit = self._options.timeout if silent is None else min(silent, self._options.timeout)
        found = [
            (each, what) for each in self._all() if (what := self._evidence_against(each, limit))
        ]
        # Errors and aborts may follow from the loss of another rank, SIGKILL never does; and of
        # a rank on another machine the launcher may hear late.
        return min(found, key=lambda pair: (not _was_killed(pair[0]), pair[1].when), default=None)

    def _evidence_against(self, rank: Any, limit: float) -> _Evidence | None:
        if rank.status is not None and rank.status < 0:
            number = -rank.status
            # An abort counts from the end of the process, and not from earlier: it may well be
            # Paddle's reaction to the loss of another rank.
            when = rank.ended if number == signal.SIGABRT else rank.left_at
            name = child_process.name_of(number)
            return _Evidence(when, f"was killed by {name}{_signal_source(number)}")
        if rank.failure is not None:
            return _Evidence(rank.failure.when, f"has failed: {rank.failure.what}")
        if rank.status:
            return _Evidence(rank.left_at, f"has ended with exit status {rank.status}")
        if rank.status == 0:
            waiters = [o for o in self._all() if o.status != 0 and o.meetings > rank.meetings]
            if not waiters:
                return None
            return _Evidence(
                rank.left_at,
                f"has ended with exit status 0, and rank {waiters[0].number} still waits for it",
            )
        if rank.silent >= limit:
            return _Evidence(
                time.monotonic() - rank.silent,
                f"is stuck: it has had no heartbeat for {rank.silent:.0f} seconds",
            )
        return None

    def _stop(self, timeout: float) -> None:
        """Terminates all ranks that run, and waits for their end up to ``timeout`` seconds."""
        for rank in self._ranks:
            if rank.status is None:
                rank.signal(signal.SIGTERM)
        until = time.monotonic() + timeout
        while any(r.status is None for r in self._ranks) and time.monotonic() < until:
            # A second signal ends the wait for the ranks.
            if len(self._signals) > 1:
                break
            time.sleep(_POLL_SECONDS)
            for rank in self._ranks:
                rank.poll(_POLL_SECONDS)


def _was_killed(rank: Any) -> bool:
    return rank.status == -signal.SIGKILL


def _signal_source(number: int) -> str:
    return " (the kernel does that where memory runs out)" if number == signal.SIGKILL else ""


def _shown(rank: _Rank) -> Iterator[str]:
    """The last lines of a rank's log, with a heading; nothing if the rank has no log."""
    lines = rank.last_lines()
    if rank.log is not None and lines:
        yield f"-- the last lines of {rank.log.name}:"
        yield from lines
        yield "--\n"


def _environment(options: LauncherOptions) -> dict[str, str]:
    """The environment variables that all ranks of this machine have, without those of the job."""
    variables = {
        **os.environ,
        "PADDLE_LOG_DIR": str(Path(options.log_dir).absolute()),
    }
    # Without buffering, so that the last lines of a rank are in its log even if it is killed.
    variables.setdefault("PYTHONUNBUFFERED", "1")
    if options.checkpoint is not None:
        variables[checkpoint_files.VARIABLE] = str(Path(options.checkpoint).absolute())
    return variables


# -- resources of a job --------------------------------------------------------------------------


@contextlib.contextmanager
def _ports(options: LauncherOptions) -> Iterator[list[int]]:
    """A port for each rank, the first for the store: reserved, but without a listener."""
    with contextlib.ExitStack() as stack:
        numbers = []
        for rank in range(options.ranks):
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", options.port or 0 if rank == 0 else 0))
            except OSError as error:
                raise NgraphError(
                    f"--port {options.port} cannot be used ({error.strerror}): give another one, "
                    "or none"
                ) from error
            numbers.append(int(probe.getsockname()[1]))
        yield numbers


@contextlib.contextmanager
def _logs(options: LauncherOptions, link: Link | None) -> Iterator[list[IO[bytes] | None]]:
    """Opens the log of each rank of this machine inside ``with``; rank 0 has none: ``None``."""
    first = 0 if link is None else link.first_rank()
    with contextlib.ExitStack() as stack:
        files: list[Any] = []
        for rank in range(first, first + options.ranks):
            if rank == 0:
                files.append(None)
                continue
            path = Path(options.log_dir) / f"workerlog.{rank}"
            try:
                os.makedirs(options.log_dir, exist_ok=True)
                file = stack.enter_context(open(path, "a+b", buffering=0, opener=open_own))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.truncate(0)
            except BlockingIOError as error:
                raise NgraphError(
                    f"another job prints to {path}: give each job a --log-dir of its own"
                ) from error
            except OSError as error:
                raise NgraphError(f"--log-dir {options.log_dir}: {error.strerror}") from error
            files.append(file)
        yield files


def _check_folder(path: Path, option: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise NgraphError(f"{option} {path} cannot be written to: {error.strerror}") from error


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects the signals that are to end the launcher in a list, inside ``with``."""
    got: list[int] = []
    before = {}
    for number in _STOPPING:
        # A signal that was ignored when the launcher started, such as SIGHUP under nohup, stays
        # ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, lambda number, frame: got.append(number))
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
