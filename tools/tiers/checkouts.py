"""Checkouts of the measured commit, in which sources are changed, compiled and tested."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".tiers"


def git(*arguments: str, cwd: Path = ROOT, **options: Any) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


class TestRun(NamedTuple):
    """Result of a run of pytest: exit status, records of its processes in order, output."""

    status: int | None  # None: timeout
    records: list[dict[str, Any]]
    output: str

    @property
    def passed(self) -> bool:
        return self.status == 0

    @property
    def culprits(self) -> list[str]:
        """The failed tests; if there are none, those that did not end (crash or hang)."""
        ended = {r["test"] for r in self.records if "test" in r}
        failed = [r["test"] for r in self.records if r.get("outcome") == "failed"]
        begun = [r["started"] for r in self.records if "started" in r]
        return failed or [name for name in begun if name not in ended]


class Checkout:
    """A git worktree in ``.tiers``, whose core is built in place."""

    def __init__(self, name: str, commit: str, sanitize: str = "") -> None:
        self.path = FOLDER / name
        self.commit = commit
        self.environment = {**os.environ, "PYTHONPATH": _search_path(self.path)}
        self.environment.update(GLOG_minloglevel="2", SANITIZE=sanitize)
        if not (self.path / ".git").exists():
            git("worktree", "prune")
            git("worktree", "add", "--detach", "--force", str(self.path), commit)
        self.restore()

    def restore(self) -> None:
        """Restores the sources of the commit; build outputs stay, for incremental builds."""
        git("reset", "--quiet", "--hard", cwd=self.path)
        git("checkout", "--quiet", "--force", "--detach", self.commit, cwd=self.path)
        git("clean", "--quiet", "-fd", cwd=self.path)

    def build(self) -> bool:
        """Compiles changed sources; returns whether that succeeds."""
        information = "paddle_ngraph/_build_info.py"
        shutil.copy(ROOT / information, self.path / information)
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        return self.run(command, timeout=3600, log="build.log") == 0

    @property
    def build_failed(self) -> str:
        return f"The core was not built: see .tiers/logs/{self.path.name}-build.log."

    def imports(self) -> bool:
        """Returns whether all modules of the package can be imported."""
        code = (
            "import importlib, pkgutil, paddle_ngraph\n"
            "for module in pkgutil.walk_packages(paddle_ngraph.__path__, 'paddle_ngraph.'):\n"
            "    if not module.name.endswith(('__main__', '_mkl')):\n"
            "        importlib.import_module(module.name)"
        )
        return self.run([sys.executable, "-W", "ignore", "-c", code], 600, "import.log") == 0

    def run(
        self,
        command: Sequence[str],
        timeout: float,
        log: str,
        environment: Mapping[str, str] | None = None,
    ) -> int | None:
        """Returns the status of a command, or None after a timeout; kills its process group."""
        (FOLDER / "logs").mkdir(exist_ok=True)
        with (FOLDER / "logs" / f"{self.path.name}-{log}").open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=self.path,
                env={**self.environment, **(environment or {})},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(timeout)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end_group(process)

    def pytest(
        self,
        *arguments: str,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        records: Path | None = None,
    ) -> TestRun:
        folder = records or FOLDER / "records" / self.path.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        cache = f"cache_dir={FOLDER / 'cache'}"  # outside the checkout, which is cleaned
        command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-o", cache]
        settings = {
            "PYTEST_PLUGINS": "tools.tiers.recording",
            "TIERS_RECORDS": str(folder),
            **(environment or {}),
        }
        status = self.run([*command, *arguments], timeout, "pytest.log", settings)
        output = (FOLDER / "logs" / f"{self.path.name}-pytest.log").read_text(errors="replace")
        return TestRun(status, read_records(folder), output)

    def pytest_of(self, names: Sequence[str], timeout: float) -> TestRun:
        """Runs tests in this order, until one fails."""
        chosen = FOLDER / f"{self.path.name}-tests.json"
        chosen.write_text(json.dumps(list(names)))
        files = dict.fromkeys(name.partition("::")[0] for name in names)
        settings = {"TIERS_TESTS": str(chosen)}
        return self.pytest("-x", *files, timeout=timeout, environment=settings)


def _search_path(tree: Path) -> str:
    """Returns PYTHONPATH with the checkout in place of the tree that runs the measurement."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join([str(tree), *(path for path in others if Path(path) != ROOT)])


def read_records(folder: Path) -> list[dict[str, Any]]:
    lines: Iterable[str] = (
        line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()
    )
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:  # the process was killed while it wrote
            continue
    return found


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
