"""Machines of a cluster: network namespaces on a bridge, each with an address and a Ray node.

The bridge has a namespace of its own, so no traffic leaves the namespaces. Needs root.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from tests import jobs

# Seconds: whatever takes longer hangs, on the slowest machine.
LIMIT = 900.0
_DELAYED_LINK = Path(__file__).with_name("delayed_link.py")
_STARTED = "Ray runtime started"  # the output of a node that has joined the cluster
# Numbers of the clusters of this process, which may be up together, with outputs in one folder.
_numbers = itertools.count()
# A node that does not answer for this long is lost: 4 checks of 5 seconds. On a busy machine all
# nodes, that of the driver too, may be late.
_HEALTH = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "4",
}


def why_impossible() -> str:
    """Why this machine cannot have namespaces; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (iproute2)"
    return ""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Machines:
    """A cluster whose machine 0 has no cores for workers; used in a ``with`` block.

    Args:
        folder: For the output of the nodes.
        cores: The number of cores of each other machine, one for each.
    """

    def __init__(self, folder: Path, cores: Sequence[int]) -> None:
        self._folder = folder
        self._prefix = f"pn{os.getpid()}c{next(_numbers)}"
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._delays: dict[int, subprocess.Popen[bytes]] = {}
        self._cores = [0, *cores]
        self._starts = 0
        # Ray looks for clusters at the same address among all processes of the real machine.
        self._port = 6379 + os.getpid() % 3000
        self._token = secrets.token_hex(32)
        # Commands that a machine runs before its node starts, in a mount namespace of its own.
        self.before_start: dict[int, str] = {}

    def __enter__(self) -> Machines:
        try:
            _ip("netns", "add", self._hub)
            _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._hub, "link", "set", "bridge", "up")
            for number in range(len(self._cores)):
                self._connect(number)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    @property
    def _hub(self) -> str:
        return f"{self._prefix}hub"

    def _namespace(self, number: int) -> str:
        return f"{self._prefix}m{number}"

    def address(self, number: int) -> str:
        """The address of a machine."""
        return f"10.9.0.{number + 1}"

    def _connect(self, number: int) -> None:
        namespace, port = self._namespace(number), f"port{number}"
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        peer = ["peer", "name", port, "netns", self._hub]
        _ip("-n", namespace, "link", "add", "eth0", "type", "veth", *peer)
        _ip("-n", namespace, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        # Ray takes the address of the default route for that of a machine.
        _ip("-n", namespace, "route", "add", "default", "dev", "eth0")
        _ip("-n", self._hub, "link", "set", port, "master", "bridge", "up")

    def start(self, *numbers: int) -> None:
        """Starts the Ray nodes of machines: 0 is the first, and the head of the cluster."""
        for number in numbers:
            # On a busy machine a node may not start within the 30 seconds that Ray allows.
            until = time.monotonic() + LIMIT
            while not self._start(number):
                if time.monotonic() > until:
                    raise RuntimeError(f"the node of machine {number} does not start")

    def _start(self, number: int) -> bool:
        """Starts the Ray node of a machine; returns whether that was successful."""
        self._starts += 1
        name = f"{self._prefix}_node{number}_{self._starts}"
        role = (
            ["--head", f"--port={self._port}", "--include-dashboard=false"]
            if number == 0
            else [f"--address={self.head}"]
        )
        options = [
            *role,
            f"--node-ip-address={self.address(number)}",
            f"--num-cpus={self._cores[number]}",
            "--disable-usage-stats",
            "--object-store-memory=80000000",
            "--block",
        ]
        ray = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "start", *options]
        process = self._started[number] = self._run(number, name, ray)
        output = self._folder / f"{name}.txt"
        while process.poll() is None:
            if _STARTED in output.read_text(errors="replace"):
                return True
            time.sleep(0.1)
        self._kill(number)
        return False

    def _run(
        self,
        number: int,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, object] = MappingProxyType({}),
    ) -> subprocess.Popen[bytes]:
        shell = f'{self.before_start.get(number, ":")} && exec "$@"'
        path = os.pathsep.join(filter(None, [str(jobs.ROOT), os.getenv("PYTHONPATH")]))
        with open(self._folder / f"{name}.txt", "ab") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self._namespace(number), "sh", "-c", shell, "sh", *command],
                env={
                    **os.environ,
                    **_HEALTH,
                    "PYTHONPATH": path,
                    "GLOG_minloglevel": "2",
                    "FLAGS_ngraph_cache_dir": "",
                    "PYTHONWARNINGS": "ignore",
                    # Ray Train stores results there; data sets stay in the cache of the user.
                    "HOME": str(self._folder),
                    "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
                    # Ray would kill workers when other processes of the real machine use memory.
                    "RAY_memory_monitor_refresh_ms": "0",
                    # Ray rejects connections without the token.
                    "RAY_AUTH_MODE": "token",
                    "RAY_AUTH_TOKEN": self._token,
                    "RAY_ADDRESS": self.head,
                    **{key: str(value) for key, value in variables.items()},
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, script: Path, *arguments: object, name: str = "driver") -> Driver:
        """Starts a driver on machine 0."""
        return self.run_python(str(script), *arguments, name=name)

    def run_python(
        self,
        *arguments: object,
        name: str = "driver",
        python: str = sys.executable,
        number: int = 0,
        variables: Mapping[str, object] = MappingProxyType({}),
    ) -> Driver:
        """Starts Python on a machine, with options and environment variables of its own."""
        command = [python, "-W", "ignore", *map(str, arguments)]
        process = self._run(number, name, command, variables)
        return Driver(process, self._folder / f"{name}.txt")

    @property
    def head(self) -> str:
        """The address of the cluster."""
        return f"{self.address(0)}:{self._port}"

    def switch_off(self, number: int) -> None:
        """Cuts the link of a machine and then kills its processes, so that nobody is told."""
        self.cut(number)
        self._kill(number)

    def cut(self, number: int) -> None:
        """Cuts the link of a machine, until :meth:`mend`."""
        _ip("-n", self._hub, "link", "set", f"port{number}", "down")

    def mend(self, number: int) -> None:
        """Connects the link of a machine again."""
        _ip("-n", self._hub, "link", "set", f"port{number}", "up")

    def delay(self, number: int, seconds: float) -> None:
        """Delays all that a machine sends and receives, until :meth:`restore`."""
        port, inner, outer = f"port{number}", f"inner{number}", f"outer{number}"
        _ip("-n", self._hub, "link", "add", inner, "type", "veth", "peer", "name", outer)
        _ip("-n", self._hub, "link", "set", outer, "master", "bridge", "up")
        _ip("-n", self._hub, "link", "set", inner, "up")
        _ip("-n", self._hub, "link", "set", port, "nomaster")
        command = [sys.executable, "-I", "-S", str(_DELAYED_LINK), port, inner, str(seconds)]
        self._delays[number] = subprocess.Popen(["ip", "netns", "exec", self._hub, *command])

    def restore(self, number: int) -> None:
        """Ends the delay of a machine, if there is one."""
        if number in self._delays:
            self._delays[number].kill()
            self._delays.pop(number).wait()
            _ip("-n", self._hub, "link", "del", f"inner{number}")
            _ip("-n", self._hub, "link", "set", f"port{number}", "master", "bridge")

    def shape(self, number: int, *queue: str) -> None:
        """Shapes what a machine sends by a queueing discipline of tc(8); none: no longer."""
        namespace = ["ip", "netns", "exec", self._namespace(number), "tc", "qdisc"]
        action = (
            ["replace", "dev", "eth0", "root", *queue] if queue else ["del", "dev", "eth0", "root"]
        )
        subprocess.run([*namespace, *action], check=True, capture_output=True)

    def replace(self, number: int) -> None:
        """Switches a machine on again that was switched off, or cut off for good."""
        self._kill(number)
        self.mend(number)
        self.start(number)

    def _kill(self, number: int) -> None:
        listed = ["ip", "netns", "pids", self._namespace(number)]
        for _ in range(20):
            found = subprocess.run(listed, capture_output=True, text=True).stdout.split()
            for pid in found:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if not found:
                break
            time.sleep(0.1)
        if number in self._started:
            self._started.pop(number).wait()

    def _remove(self) -> None:
        for number in list(self._delays):
            self.restore(number)
        for number in range(len(self._cores)):
            self._kill(number)
            subprocess.run(["ip", "netns", "del", self._namespace(number)], capture_output=True)
        subprocess.run(["ip", "netns", "del", self._hub], capture_output=True)


class Driver:
    """A script that runs on a machine."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    def output(self) -> str:
        """The output of the driver so far."""
        return self._output.read_text(errors="replace")

    def wait(self) -> int:
        """Waits for the end of the script; returns its exit status."""
        try:
            return self.process.wait(LIMIT)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
