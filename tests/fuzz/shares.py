"""A record of shares of programs, lives, damaged graphs and files of functions, in a file.

A share is a number of examples sampled with one seed. The file lists which shares passed and under
which sources, and which failed: these run again first. The file is rewritten after each share,
under another name and then renamed, so that it is complete whenever the machine is switched off.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

FORMAT = 1
ROOT = Path(__file__).resolve().parents[2]
DEFAULT_FILE = ROOT / ".fuzz" / "state.json"

# Number of examples in a share; small, since a share not finished in time is repeated.
SIZES = {"programs": 40, "lives": 8, "layers": 10, "graphs": 10_000, "functions": 2_000}


@dataclass
class Share:
    """The outcome of a share.

    Attributes:
        kind: One of :data:`SIZES`: ``lives`` of programs, or ``layers``, which are lives of layers.
        seed: Its seed.
        passed: How many examples passed.
        revision: The sources that they were checked with.
        failure: Why it failed, with a script; empty if it passed.
    """

    kind: str
    seed: int
    passed: int
    revision: str
    failure: str = ""

    @property
    def key(self) -> str:
        """The name of the share in the file."""
        return f"{self.kind} {self.seed}"


@dataclass
class State:
    """The shares so far, in a file.

    Args:
        path: The file; it may be missing.
    """

    path: Path
    shares: dict[str, Share] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> State:
        """Reads the state from a file. Raises ValueError for a file of another format."""
        state = State(path)
        if path.exists():
            data = json.loads(path.read_text())
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise ValueError(f"{path} is not a state of the fuzzers; name another with --state")
            for entry in data["shares"]:
                share = Share(**entry)
                state.shares[share.key] = share
        return state

    def add(self, share: Share) -> None:
        """Adds a share, and writes the file."""
        self.shares[share.key] = share
        self.path.parent.mkdir(parents=True, exist_ok=True)
        other = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        shares = [asdict(entry) for entry in self.shares.values()]
        other.write_text(json.dumps({"format": FORMAT, "shares": shares}, indent=0))
        os.replace(other, self.path)

    def passed(self, kind: str, revision: str | None = None) -> int:
        """Returns how many examples passed, in all or with these sources."""
        return sum(
            share.passed
            for share in self.shares.values()
            if share.kind == kind and not share.failure and revision in (None, share.revision)
        )

    def failed(self, kind: str | None = None) -> list[Share]:
        """The shares whose last run failed."""
        return [s for s in self.shares.values() if s.failure and kind in (None, s.kind)]

    def wanted(self, kind: str, count: int, first: int) -> list[tuple[str, int]]:
        """The shares to run: failed, then missing ones of ``count`` examples from ``first``."""
        again = [(kind, share.seed) for share in self.failed(kind)]
        seeds = range(first, first - (-count // SIZES[kind]))
        return again + [(kind, n) for n in seeds if f"{kind} {n}" not in self.shares]

    def __str__(self) -> str:
        lines = []
        now = revision()
        for kind in SIZES:
            total, current = self.passed(kind), self.passed(kind, now)
            lines.append(f"{total} {kind} passed, {current} of them with these sources ({now})")
        older = Counter(s.revision for s in self.shares.values() if not s.failure)
        lines += [f"  {count} shares with {name}" for name, count in older.items() if name != now]
        failed = self.failed()
        lines.append(f"{len(failed)} shares failed" + ":" * bool(failed))
        lines += [f"  {s.key}: {s.failure.strip().splitlines()[0][:160]}" for s in failed]
        return "\n".join(lines)


def revision() -> str:
    """Identifies the sources: the commit, if there is one, and a digest of compiled files."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("paddle_ngraph/**/*")):
        if path.suffix in (".py", ".cc", ".h"):
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return f"{_commit()}{digest.hexdigest()[:8]}"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, no repository
        return ""
    return f"{done.stdout.strip()}+"
