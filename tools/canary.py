"""``make canary``: tests another Paddle or OpenVINO, and writes a report of the differences.

The sources are copied to build/canary/PADDLE-OPENVINO/tree with the pins of these releases, and the
Makefile of the copy creates its environment, builds the core and runs the tests there. Each step
runs even if an earlier one failed. A later run continues: ``make`` repeats only what has changed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PINNED = ("requirements/build.txt", "pyproject.toml")
# For make: without requirements/locked.txt, which has the digests of other releases.
REQUIREMENTS = "REQUIREMENTS=-r requirements/build.txt -r requirements/develop.txt"
BUILT = ".venv/.built"
UNCHECKED = "PADDLE_NGRAPH_UNCHECKED"
NO_GIT = "make canary copies the files that git lists: clone the repository, and run it there."
EXAMPLES = 5  # tests listed for each reason


class Releases(NamedTuple):
    paddlepaddle: str
    openvino: str


class Step(NamedTuple):
    """A finished command."""

    name: str
    status: int
    seconds: float
    output: str


# -- the copy of the sources ---------------------------------------------------------------------


def newest(package: str) -> str:
    """Returns the newest release of a package for this Python."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    found = subprocess.run(command, capture_output=True, text=True)
    match = re.search(rf"^{package} \((.+?)\)", found.stdout, re.MULTILINE)
    if match is None:
        raise SystemExit(
            f"{found.stderr}pip names no release of {package}: check the network, or name both "
            "releases (make canary PADDLE=... OPENVINO=...)."
        )
    return match[1]


def pinned(text: str, releases: Releases) -> str:
    """Returns a text with the pins of these releases."""
    for package, release in releases._asdict().items():
        text = re.sub(rf"\b{package}==[\w.]+", f"{package}=={release}", text)
    return text


def sources() -> list[str]:
    """Returns the files of the working tree that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(NO_GIT) from error
    found = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    if PINNED[0] not in found:  # the repository is another one, around the sources
        raise SystemExit(NO_GIT)
    return found


def copy_sources(tree: Path, releases: Releases) -> None:
    """Updates the copy. Unchanged files keep their times, so that builds are incremental."""
    listing, names = tree.parent / "sources.txt", sources()
    before = listing.read_text().splitlines() if listing.exists() else []
    for name in set(before) - set(names):
        (tree / name).unlink(missing_ok=True)
    tree.mkdir(parents=True, exist_ok=True)
    # Tests of tools list the files of their repository; this one ignores the folder of the copy.
    subprocess.run(["git", "init", "--quiet"], cwd=tree, check=True)
    listing.write_text("\n".join(names))
    for name in names:
        _update(ROOT / name, tree / name, releases if name in PINNED else None)


def _update(source: Path, target: Path, releases: Releases | None) -> None:
    content = source.read_bytes()
    if releases is not None:
        content = pinned(content.decode(), releases).encode()
    if target.exists() and target.read_bytes() == content:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(source.stat().st_mode)


# -- the steps -----------------------------------------------------------------------------------


def steps(
    tree: Path, tests: Sequence[str], interpreter: str = sys.executable, target: str = "check"
) -> Iterator[Step]:
    """Runs the steps: environment, private names, build and tests.

    Args:
        tree: The copy of the sources.
        tests: Files of tests; empty: ``make TARGET``.
        interpreter: The Python of the environment.
        target: The target of the Makefile.
    """
    make = ["make", "VENV=.venv", f"PYTHON={interpreter}", REQUIREMENTS]
    python = [".venv/bin/python", "-W", "ignore", "-m"]
    yield _run("environment", [*make, ".venv/.tools"], tree)
    names = _run("private names", [*python, "paddle_ngraph.paddle_private"], tree)
    yield names
    build = _run("build", [*make, BUILT], tree)
    yield build
    # Without a core, `make check` still checks style and types.
    check = [*make, "--keep-going", *(["--old-file", BUILT] if build.status else []), target]
    command = [*python, "pytest", *tests] if tests else check
    unchecked = {UNCHECKED: "1"} if private_names(names.output) else {}
    yield _run("tests", command, tree, unchecked)


def _run(
    name: str, command: Sequence[str], tree: Path, extra: Mapping[str, str] | None = None
) -> Step:
    print(f"{name}: {shlex.join(command)}", flush=True)
    log, start = tree.parent / f"{name.replace(' ', '_')}.log", time.monotonic()
    with log.open("wb") as file:
        try:
            status = subprocess.run(
                command, cwd=tree, env=_environment(tree, extra or {}), stdout=file, stderr=file
            ).returncode
        except FileNotFoundError as error:  # there is no environment
            file.write(str(error).encode())
            status = 127
    output = log.read_text(errors="replace").replace(f"{tree}/", "")
    return Step(name, status, time.monotonic() - start, output)


def _environment(tree: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of this process, without variables of an outer ``make``."""
    of_make = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
    inherited = {name: value for name, value in os.environ.items() if name not in of_make}
    # A test that crashes ends its worker only; other tests run in a new worker.
    pytest = {"PYTEST_ADDOPTS": "-n 1 -rfE --continue-on-collection-errors", "COLUMNS": "500"}
    return {**inherited, **pytest, "PYTHONPATH": str(tree), "GLOG_minloglevel": "2", **extra}


# -- parsing the output --------------------------------------------------------------------------


def private_names(output: str) -> list[str]:
    """Returns the lines of ``python -m paddle_ngraph.paddle_private``."""
    return re.findall(r"^(?:there is no .+|paddle\S* is called .+)$", output, re.MULTILINE)


def errors(output: str) -> list[str]:
    """Returns errors of compilers, linkers and type checkers: the first one of each message."""
    lines = re.findall(
        r"^\s*(\S+?:\d+(?::\d+)?: (?:fatal )?error: .+|.+: undefined reference to .+)$",
        output,
        re.MULTILINE,
    )
    first = {re.sub(r"^\S+ ", "", line): line for line in reversed(lines)}
    return list(reversed(first.values()))


# A line of pytest's summary: kind, test and message; the parameters of a test may contain " - ".
SUMMARY = r"^(FAILED|ERROR) (\S(?:(?! - )[^\[\n])*(?:\[.*?\](?= - |$)|\[.*)?)(?: - (.*))?$"


def failures(output: str) -> dict[str, list[str]]:
    """Returns failed tests by reason; reasons that differ in numbers only are merged."""
    found: dict[str, tuple[str, list[str]]] = {}
    tests = re.findall(SUMMARY, output, re.MULTILINE)
    names = [(kind, _name(test)) for kind, test, _ in tests]
    # Tracebacks name no file, but are in the order of the summary, if each test has one.
    counts = Counter(names)
    messages = {key: of for key, of in _messages(output).items() if len(of) == counts[key]}
    for key, (_, test, summary) in zip(names, tests):
        message = messages[key].pop(0) if key in messages else ""
        reason = message or summary or "no reason given"
        merged = re.sub(r"0x[0-9a-f]+|\d[\d.e+-]*", "N", reason)
        found.setdefault(merged, (reason, []))[1].append(test)
    return dict(sorted(found.values(), key=lambda each: -len(each[1])))


def _name(test: str) -> str:
    """Returns the name of a test in headings of tracebacks; of a file, its path."""
    return (test.partition("::")[2] or test).replace("::", ".")


def _messages(output: str) -> dict[tuple[str, str], list[str]]:
    """Returns the first two lines of the last exception of each failure, by kind and name.

    The expected regular expression is left out, since the message that it does not match follows.
    """
    heading = r"^_{3,} (ERROR (?:collecting|at \w+ of) )?(\S.*?) _{3,}$"
    parts = re.split(heading, output, flags=re.MULTILINE)[1:]
    found: dict[tuple[str, str], list[str]] = {}
    for error, name, traceback in zip(parts[::3], parts[1::3], parts[2::3]):
        exceptions = re.findall(r"(?:^E\b.*\n)+", traceback, re.MULTILINE) or [""]
        lines = [line[1:].strip() for line in exceptions[-1].splitlines()]
        shown = [line for line in lines if line and not line.startswith("Expected regex:")]
        key = ("ERROR" if error else "FAILED", name.replace("::", "."))
        found.setdefault(key, []).append(" ".join(shown[:2]))
    return found


def summaries(output: str) -> list[str]:
    """Returns the last line of each run of pytest, and the failed targets of ``make``."""
    pattern = r"^=* ?((?:\d+ [a-z]+,? ?)+in [\d.]+s|make(?:\[\d+\])?: \*\*\* .+)"
    return re.findall(pattern, output, re.MULTILINE)


# -- the page ------------------------------------------------------------------------------------


def page(releases: Releases, before: Releases, done: Sequence[Step]) -> str:
    """Returns the report in Markdown."""
    title = f"# Paddle {releases.paddlepaddle} and OpenVINO {releases.openvino}"
    built_for = f"The sources are for Paddle {before.paddlepaddle} and OpenVINO {before.openvino}."
    return "\n\n".join([title, built_for, _table(done), *map(_section, done)]) + "\n"


def _table(done: Iterable[Step]) -> str:
    rows = (
        f"| {step.name} | {'passed' if step.status == 0 else 'failed'} | {step.seconds:.0f} s |"
        for step in done
    )
    return "\n".join(["| step | | time |", "| --- | --- | ---: |", *rows])


def _section(step: Step) -> str:
    found = private_names(step.output) if step.name == "private names" else errors(step.output)
    reasons = failures(step.output)
    lines = [*summaries(step.output), *found] if step.status else summaries(step.output)
    parts = [f"## {step.name.capitalize()}", "\n".join(f"- {_plain(line)}" for line in lines)]
    parts += [_reason(reason, tests) for reason, tests in reasons.items()]
    if step.status == 0:
        parts.append("Nothing differs.")
    elif not (found or reasons):
        parts.append("```\n" + "\n".join(step.output.splitlines()[-20:]) + "\n```")
    return "\n\n".join(filter(None, parts))


def _reason(reason: str, tests: Sequence[str]) -> str:
    shown = [f"- {_plain(test)}" for test in tests[:EXAMPLES]]
    more = [f"- and {len(tests) - EXAMPLES} more"] if len(tests) > EXAMPLES else []
    return "\n".join([f"{len(tests)} x {_plain(reason)}\n", *shown, *more])


def _plain(text: str) -> str:
    """Formats text as code in Markdown."""
    return "`` " + text.strip() + " ``" if "`" in text else f"`{text.strip()}`"


# -- the command line ----------------------------------------------------------------------------


def main() -> int:
    """Runs the command line. Returns the exit status: 0 if all steps pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paddle", help="release of Paddle (default: the newest)")
    parser.add_argument("--openvino", help="release of OpenVINO (default: the newest)")
    parser.add_argument(
        "--tests", action="append", default=[], help="tests to run, not `make check` (repeatable)"
    )
    options = parser.parse_args()
    releases = Releases(
        options.paddle or newest("paddlepaddle"), options.openvino or newest("openvino")
    )
    folder = ROOT / "build" / "canary"
    tree = folder / "-".join(releases) / "tree"
    copy_sources(tree, releases)
    done: list[Step] = []
    written = folder / f"{'-'.join(releases)}.md"
    for step in steps(tree, options.tests):
        done.append(step)
        written.write_text(page(releases, current(), done))
    print(f"{written.relative_to(ROOT)} lists the differences")
    return int(any(step.status for step in done))


def current() -> Releases:
    """Returns the releases that the sources are pinned to."""
    text = (ROOT / PINNED[0]).read_text()
    return Releases(*(re.findall(rf"{name}==([\w.]+)", text)[0] for name in Releases._fields))


if __name__ == "__main__":
    raise SystemExit(main())
