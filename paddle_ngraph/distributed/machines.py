"""The link between the launchers of a job on several machines, one launcher on each.

Machine 0 listens at ``--master``; the others connect, and prove that they know the secret of the
job (connections.py). In each round every machine sends the state of its ranks, and gets that of
all. Machine 0 decides how the job ends. A message is a length and a text of JSON, which is checked.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from paddle_ngraph import installation
from paddle_ngraph.distributed import connections
from paddle_ngraph.distributed.connections import Endpoint, FixedAddress
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.cpu_info import lacks_avx2
from paddle_ngraph.version import __version__

# The wait for all launchers at the beginning, in seconds: schedulers start them at different times.
JOIN_TIMEOUT_SECONDS = 300.0
_RETRY_SECONDS = 0.2
# The port of machine 0, if the scheduler tells no other: jobs of one machine get different ones.
_FIRST_PORT, _NUM_PORTS = 29000, 1000
_LENGTH = struct.Struct(">Q")
_MAX_LENGTH = 1 << 24  # bytes of a message: thousands of ranks
_KEY = "ngraph/machines"
# Why a machine takes no part in a job of several: its ranks would delay all others in each step.
NO_AVX2 = "its processor has no AVX2"


@dataclass(frozen=True)
class Place:
    """The place of a launcher among those of its job.

    Attributes:
        nodes: The number of machines.
        node: The number of this machine, from 0.
        master: ``host:port`` at which machine 0 listens; equal on all machines.
    """

    nodes: int = 1
    node: int = 0
    master: str = ""

    def check(self) -> None:
        """Raises NgraphError if the place is invalid."""
        if self.nodes < 1 or not 0 <= self.node < self.nodes:
            raise NgraphError(
                f"--nnodes {self.nodes} --node-rank {self.node}: machines are counted from 0"
            )
        host, _, port = self.master.rpartition(":")
        if self.nodes > 1 and not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise NgraphError(
                f"--master {self.master!r}: give host:port of the machine with --node-rank 0"
            )


ONE_MACHINE = Place()


def place_of(variables: Mapping[str, str]) -> Place:
    """The place that SLURM or Open MPI has given this process; one machine without them.

    Raises:
        NgraphError: There are several launchers on a machine.
    """
    if variables.get("SLURM_STEP_ID", "").isdecimal():
        nodes = _number(variables, "SLURM_STEP_NUM_NODES", 1)
        if nodes > 1:
            _check_one_on_each(nodes, _number(variables, "SLURM_STEP_NUM_TASKS", nodes), "srun "
                               "--ntasks-per-node=1")  # fmt: skip
            host = _first_host(variables.get("SLURM_STEP_NODELIST", ""))
            port = _FIRST_PORT + _number(variables, "SLURM_JOB_ID", 0) % _NUM_PORTS
            return Place(nodes, _number(variables, "SLURM_NODEID", 0), f"{host}:{port}")
    ranks = _number(variables, "OMPI_COMM_WORLD_SIZE", 1)
    if ranks > 1:
        on_this = _number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
        _check_one_on_each(ranks, ranks * on_this, "mpirun --map-by ppr:1:node")
        return Place(ranks, _number(variables, "OMPI_COMM_WORLD_RANK", 0))
    return ONE_MACHINE


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, str(default))
    if not text.isdecimal():
        raise NgraphError(f"{name}={text!r} in the environment is no number")
    return int(text)


def _check_one_on_each(nodes: int, launchers: int, command: str) -> None:
    if launchers != nodes:
        raise NgraphError(
            f"{launchers} launchers are started on {nodes} machines: start one on each, by "
            f"{command}, and give the number of its ranks by --nproc"
        )


def _first_host(hosts: str) -> str:
    """The first host of a list of SLURM, such as ``a[01-03,7],b2``."""
    match = re.match(r"([^,\[]+)(?:\[(\w+))?", hosts)
    return "" if match is None else match[1] + (match[2] or "")


class Round(NamedTuple):
    """The messages of all machines in a round, by machine; ``lost``: a sentence on lost ones."""

    texts: list[Any]
    lost: str = ""


class Link:
    """The connections of one launcher; closed at the end of a ``with`` block.

    Args:
        place: The place of this launcher.
        secret: The secret that all launchers have.
        ranks: The number of ranks on this machine.
        timeout: The seconds without a message after which a machine is lost.

    Attributes:
        host: The address of this machine for others.
        ranks: The number of ranks on each machine.

    Raises:
        NgraphError: A machine does not answer, has another secret, or other versions.
    """

    def __init__(self, place: Place, secret: str, ranks: int, timeout: float) -> None:
        self.place = place
        self._secret = secret
        self._timeout = timeout
        host, _, port = place.master.rpartition(":")
        address = FixedAddress(f"{host} {port}")
        endpoint = Endpoint(address, _KEY, host, secret, port=int(port))
        self._peers = self._connected(endpoint)
        self.host = host if place.node == 0 else self._peers[0].getsockname()[0]
        try:
            self._hosts = [self.host] * place.nodes
            mine = [
                self.host,
                ranks,
                place.nodes,
                ", ".join([__version__, *installation.versions()]),
                NO_AVX2 if lacks_avx2() else "",
            ]
            found = self.exchange(mine)
            if found.lost:
                raise NgraphError(found.lost)
            self._hosts = [each[0] for each in found.texts]
            self.ranks = [int(each[1]) for each in found.texts]
            self._check(found.texts)
        except BaseException:
            self.close()
            raise

    def _connected(self, endpoint: Endpoint) -> dict[int, socket.socket]:
        until = time.monotonic() + JOIN_TIMEOUT_SECONDS
        with signals.recognized_signals():
            while True:
                try:
                    if self.place.node == 0:
                        return endpoint.accept(range(1, self.place.nodes), JOIN_TIMEOUT_SECONDS)
                    return {0: endpoint.connect(self.place.node, JOIN_TIMEOUT_SECONDS)}
                except OSError as error:
                    signals.raise_if_from_outside(error)
                    starts = isinstance(error, ConnectionRefusedError)
                    if starts and self.place.node > 0 and time.monotonic() < until:
                        time.sleep(_RETRY_SECONDS)
                        continue
                    raise NgraphError(self._why_not_connected(error)) from error

    def _why_not_connected(self, error: OSError) -> str:
        if self.place.node > 0:
            return (
                f"machine 0 cannot be reached at {self.place.master} ({error}): start a launcher "
                f"with --node-rank 0 there, with equal --master and {connections.SECRET_VARIABLE}"
            )
        if isinstance(error, TimeoutError):
            return str(error).replace("rank", "the machine with --node-rank")
        return f"--master {self.place.master} cannot be used on this machine ({error})"

    def _check(self, found: list[Any]) -> None:
        for node, (host, _, nodes, versions, *problem) in enumerate(found):
            if nodes != self.place.nodes:
                raise NgraphError(
                    f"machine 0 was started with --nnodes {found[0][2]}, and machine {node} "
                    f"({host}) with {nodes}"
                )
            if versions != found[0][3]:
                raise NgraphError(
                    f"machine 0 ({found[0][0]}) has {found[0][3]} installed, and machine {node} "
                    f"({host}) has {versions}: install equal versions on all machines"
                )
            if any(problem):
                raise NgraphError(f"machine {node} ({host}) cannot run: {problem[0]}")

    def first_rank(self) -> int:
        """The first rank on this machine."""
        return sum(self.ranks[: self.place.node])

    def host_of(self, rank: int) -> str:
        """The address of the machine of a rank."""
        ends = itertools.accumulate(self.ranks)
        return str(next(host for host, end in zip(self._hosts, ends) if rank < end))

    def secret_of(self, start: str) -> str:
        """The secret of the ranks of one start, which no message contains."""
        return hmac.new(os.fsencode(self._secret), start.encode(), "sha256").hexdigest()

    def exchange(self, text: Any) -> Round:
        """Sends a message to all machines; waits for those of all, by machine."""
        with signals.recognized_signals():
            try:
                return self._lead(text) if self.place.node == 0 else self._follow(text)
            except (OSError, ValueError) as error:
                signals.raise_if_from_outside(error)
                return Round([], f"machine 0 ({self._hosts[0]}) has gone ({error})")

    def _lead(self, text: Any) -> Round:
        texts, lost = [text], ""
        for node in sorted(self._peers):
            with signals.recognized_signals():
                try:
                    texts.append(_receive(self._peers[node], self._timeout))
                except (OSError, ValueError) as error:
                    signals.raise_if_from_outside(error)
                    lost = lost or f"machine {node} ({self._hosts[node]}) has gone ({error})"
        for peer in self._peers.values():
            with signals.own_errors(), contextlib.suppress(OSError):
                _send(peer, [texts, lost])
        return Round([] if lost else texts, lost)

    def _follow(self, text: Any) -> Round:
        _send(self._peers[0], text)
        # Waits longer than machine 0, which then names the machine that is lost.
        texts, lost = _receive(self._peers[0], 2 * self._timeout + 5)
        return Round(texts, str(lost))

    def close(self) -> None:
        """Closes the connections."""
        for peer in self._peers.values():
            peer.close()


@contextlib.contextmanager
def joined(place: Place, ranks: int, timeout: float) -> Iterator[Link | None]:
    """The link to the launchers of other machines inside ``with``; ``None`` on one machine.

    Raises:
        NgraphError: As :class:`Link`; there is no secret.
    """
    if place.nodes == 1:
        yield None
        return
    secret = connections.secret_of(os.environ)
    if not secret:
        raise NgraphError(
            f"{connections.SECRET_VARIABLE} is missing in the environment: set it to one random "
            "text on all machines, so that only launchers of this job can join"
        )
    link = Link(place, secret, ranks, timeout)
    try:
        yield link
    finally:
        link.close()


def _send(peer: socket.socket, text: Any) -> None:
    data = json.dumps(text).encode()
    peer.sendall(_LENGTH.pack(len(data)) + data)


def _receive(peer: socket.socket, timeout: float) -> Any:
    until = time.monotonic() + timeout
    (length,) = _LENGTH.unpack(_read(peer, _LENGTH.size, until))
    if length > _MAX_LENGTH:
        raise ValueError(f"a message of {length} bytes")
    return json.loads(_read(peer, length, until))


def _read(peer: socket.socket, length: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < length:
        peer.settimeout(max(0.001, until - time.monotonic()))
        with signals.recognized_signals():
            try:
                chunk = peer.recv(min(length - len(data), 1 << 20))
            except TimeoutError as error:
                signals.raise_if_from_outside(error)
                raise ConnectionError("it does not answer") from error
        if not chunk:
            raise ConnectionError("the connection is closed")
        data += chunk
    return bytes(data)
