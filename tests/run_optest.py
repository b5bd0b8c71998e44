"""Runs Paddle's own operator tests with the engine on: ``--paddle-source DIR``.

The tests are those of a Paddle source tree that you have, of the release that is installed
(``test/legacy_test/test_*_op.py`` with its ``OpTest``). Each file runs in a separate process. A
file with a case that fails is run again without the engine, to separate cases that also fail in
plain Paddle (no GPU, another release). ``optest_manifest.json`` lists skipped files and cases, with
reasons.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = Path(__file__).with_name("optest_manifest.json")
TESTS = Path("test") / "legacy_test"
PASSED, FAILED, SKIPPED, NATIVE_TOO = "passed", "failed", "skipped", "fails natively too"
_CRASHES = 5  # a file is given up after this many
_REST = "the rest of the file"


@dataclass
class Case:
    """One test of a file.

    Attributes:
        outcome: ``passed``, ``failed``, ``skipped`` or ``fails natively too``.
        message: Why it failed or was skipped.
        engine_runs: The number of engine runs.
        converted: The operators that ran in the engine.
        native: The operators that fell back, with the reason.
    """

    name: str
    outcome: str
    message: str = ""
    engine_runs: int = 0
    converted: list[str] = field(default_factory=list)
    native: dict[str, str] = field(default_factory=dict)


# --- the process of one file -------------------------------------------------------------------


class _Recorder(unittest.TestResult):
    """Writes one line of JSON when a case begins and one when it ends."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("a")
        self._case: Case | None = None
        self._reports: list[Any] = []
        from paddle_ngraph import statistics

        count = statistics.count

        def count_and_keep(report: Any) -> None:
            self._reports.append(report)
            count(report)

        statistics.count = count_and_keep

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._begin(_name_of(test))

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self._end()

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._outcome(test, FAILED, _text(err))

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._outcome(test, FAILED, _text(err))

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._outcome(test, FAILED, _text(err))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._outcome(test, SKIPPED, reason)

    def _begin(self, name: str) -> None:
        import paddle_ngraph

        self._case = Case(name, PASSED)
        self._reports.clear()
        paddle_ngraph.reset_stats()
        self._write({"begin": name})

    def _end(self) -> None:
        import paddle_ngraph

        case = self._case
        assert case is not None
        case.engine_runs = paddle_ngraph.stats()["engine_runs"]
        for report in self._reports:
            case.converted += [kind for interval in report.intervals for kind in interval.types]
            case.native.update({op.type: op.reason for op in report.native})
        case.converted = sorted(set(case.converted))
        self._write({"case": vars(case)})
        self._case = None

    def _outcome(self, test: Any, outcome: str, message: str) -> None:
        if self._case is None:  # in setUpClass or tearDownClass
            self._begin(_name_of(test))
            self._outcome(test, outcome, message)
            self._end()
            return
        self._case.outcome, self._case.message = outcome, message[-2000:]

    def _write(self, event: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()


def _text(error: Any) -> str:
    return "".join(traceback.format_exception(*error))


def _name_of(test: Any) -> str:
    name = str(test.id())
    return name.removeprefix("__main__.")


def _run_file(
    path: Path, engine: bool, results: Path, only: Sequence[str], skip: Sequence[str]
) -> None:
    """Runs a test file as a script, with its ``unittest.main`` replaced."""
    import paddle_ngraph

    if engine:
        paddle_ngraph.enable()
    recorder = _Recorder(results)

    def run_tests(*_: Any, **__: Any) -> None:
        suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
        chosen = [
            test
            for test in _cases_of(suite)
            if (not only or _name_of(test) in only) and _name_of(test) not in skip
        ]
        unittest.TestSuite(chosen).run(recorder)

    unittest.main = run_tests  # type: ignore[assignment,misc]
    os.chdir(path.parent)
    sys.path[:0] = [str(path.parent), str(path.parent.parent)]
    sys.argv = [str(path)]
    runpy.run_path(str(path), run_name="__main__")


def _cases_of(suite: Any) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from _cases_of(item)
        else:
            yield item


# --- the parent --------------------------------------------------------------------------------


class Manifest:
    """Which files and cases are skipped, and why.

    Args:
        data: ``files``: pattern -> reason; ``cases``: pattern of ``file::Class.method`` -> reason.
    """

    def __init__(self, data: Mapping[str, Mapping[str, str]]) -> None:
        self._files = data.get("files", {})
        self._cases = data.get("cases", {})

    def reason_for_file(self, name: str) -> str | None:
        """Why a file is skipped."""
        return self._find(self._files, name)

    def reason_for_case(self, name: str, case: str) -> str | None:
        """Why a case is skipped."""
        return self._find(self._cases, f"{name}::{case}")

    @staticmethod
    def _find(patterns: Mapping[str, str], name: str) -> str | None:
        return next((why for key, why in patterns.items() if fnmatch.fnmatch(name, key)), None)


class Runner:
    """Runs test files.

    Args:
        timeout: Seconds for a file.
        manifest: Skipped files and cases.
    """

    def __init__(self, timeout: float, manifest: Manifest) -> None:
        self._timeout = timeout
        self._manifest = manifest

    def run(self, path: Path) -> list[Case]:
        """The cases of a file, with the engine; cases that fail in plain Paddle too are marked."""
        cases = self._run(path, engine=True)
        failed = [case for case in cases if case.outcome == FAILED]
        if failed:
            # The entire file: its cases share random numbers and Paddle's mode.
            native = self._run(path, engine=False)
            outcomes = {case.name: case.outcome for case in native}
            for case in failed:
                # setUpClass and tearDownClass are only reported when they fail.
                unheard = PASSED if native and case.name.endswith(")") else FAILED
                if outcomes.get(case.name, unheard) not in (PASSED, SKIPPED):
                    case.outcome = NATIVE_TOO
        for case in cases:
            reason = self._manifest.reason_for_case(path.name, case.name)
            if reason is not None:
                case.outcome, case.message = SKIPPED, reason
        return cases

    def _run(self, path: Path, engine: bool) -> list[Case]:
        """Starts the process again after a crash, without the case that crashed."""
        end = time.monotonic() + self._timeout
        cases: dict[str, Case] = {}
        for _ in range(_CRASHES):
            found, running, trouble = self._attempt(path, engine, (), list(cases), end)
            cases.update(found)
            if trouble is None:
                break
            name = running or "the file itself"
            cases[name] = Case(name, FAILED, trouble)
            if running is not None and time.monotonic() > end:
                # The time limit applies to the file, perhaps not to the case that was running.
                alone = time.monotonic() + self._timeout
                found, _, trouble = self._attempt(path, engine, [name], (), alone)
                cases.update(found)
                cases[_REST] = Case(_REST, SKIPPED, f"stopped after {self._timeout:.0f} s")
            if running is None or time.monotonic() > end:
                break
        else:
            cases[_REST] = Case(_REST, SKIPPED, f"given up after {_CRASHES} crashes")
        return list(cases.values())

    def _attempt(
        self, path: Path, engine: bool, only: Sequence[str], skip: Sequence[str], end: float
    ) -> tuple[dict[str, Case], str | None, str | None]:
        with tempfile.TemporaryDirectory() as folder:
            results, task = Path(folder) / "results", Path(folder) / "task.json"
            task.write_text(json.dumps({"only": list(only), "skip": list(skip)}))
            command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve())]
            command += ["--file", str(path), "--task", str(task), "--results", str(results)]
            command += ["--engine"] if engine else []
            with (Path(folder) / "log").open("w+") as log:
                try:
                    code: int | str = subprocess.run(
                        command,
                        env=_environment(),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        timeout=max(1.0, end - time.monotonic()),
                        check=False,
                    ).returncode
                except subprocess.TimeoutExpired:
                    code = f"stopped after {self._timeout:.0f} s"
                log.seek(0)
                tail = log.read()[-1500:]
            cases, running = _read(results)
        if code == 0:
            return cases, None, None
        said = code if isinstance(code, str) else f"the process ended with {code}"
        return cases, running, f"{said}\n{tail}"


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "FLAGS_ngraph_cache_dir": "",
        "PYTHONPATH": path,
        "GLOG_minloglevel": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "FLAGS_use_ngraph": "0",
        "FLAGS_ngraph_min_interval_us": "0",
    }


def _read(results: Path) -> tuple[dict[str, Case], str | None]:
    cases: dict[str, Case] = {}
    running = None
    for line in results.read_text().splitlines() if results.exists() else ():
        event = json.loads(line)
        running = event.get("begin")
        if "case" in event:
            case = Case(**event["case"])
            cases[case.name] = case
    return cases, running


def _table(results: Mapping[str, Sequence[Case]]) -> str:
    lines = [
        f"{'file':44} {'passed':>6} {'failed':>6} {'native':>6} {'skip':>6} {'engine':>6} "
        f"{'float64':>7}  converted",
        f"{'':44} {'':>6} {'':>6} {'fails':>6} {'':>6} {'ran':>6} {'only':>7}",
    ]
    total: Counter[str] = Counter()
    for name, cases in sorted(results.items()):
        counts = Counter(case.outcome for case in cases)
        counts["engine"] = sum(case.engine_runs > 0 for case in cases)
        counts["float64"] = sum(_is_float64(case) for case in cases)
        total.update(counts)
        kinds = sorted({kind.removeprefix("pd_op.") for case in cases for kind in case.converted})
        shown = ", ".join(kinds[:6]) + (", ..." if len(kinds) > 6 else "")
        lines.append(_row(name, counts) + f"  {shown}")
    lines.append(_row(f"{len(results)} files", total))
    return "\n".join(lines)


def _row(name: str, counts: Mapping[str, int]) -> str:
    return (
        f"{name[:44]:44} {counts[PASSED]:6} {counts[FAILED]:6} {counts[NATIVE_TOO]:6} "
        f"{counts[SKIPPED]:6} {counts['engine']:6} {counts['float64']:7}"
    )


def _is_float64(case: Case) -> bool:
    reasons = case.native.values()
    return not case.engine_runs and any("is float64" in reason for reason in reasons)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tests; 0 when nothing fails that passes in plain Paddle."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--paddle-source", type=Path, help="a Paddle source tree")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", default="test_*_op.py", help="pattern of file names")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a file (300)")
    parser.add_argument("--report", type=Path, help="write every case to this JSON file")
    for hidden in ("--file", "--task", "--results"):
        parser.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.file is not None:
        task = json.loads(arguments.task.read_text())
        _run_file(arguments.file, arguments.engine, arguments.results, task["only"], task["skip"])
        return 0
    if arguments.paddle_source is None:
        parser.error("--paddle-source DIR is missing")
    return _run_all(arguments, parser)


def _run_all(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    folder = (arguments.paddle_source / TESTS).resolve()
    if not folder.is_dir():
        parser.error(f"{folder} is no folder: give the root of a Paddle source tree")
    manifest = Manifest(json.loads(MANIFEST.read_text()))
    files = [path for path in sorted(folder.glob("*.py")) if _matches(path, arguments.only)]
    if not files:
        parser.error(f"no file in {folder} is called like {arguments.only}")
    results: dict[str, list[Case]] = {}
    runner = Runner(arguments.timeout, manifest)
    chosen = []
    for path in files:
        reason = manifest.reason_for_file(path.name)
        if reason is None:
            chosen.append(path)
        else:
            results[path.name] = [Case("the file", SKIPPED, reason)]
    results.update(_in_parallel(runner, chosen, arguments.jobs))
    return _conclude(results, arguments.report)


def _matches(path: Path, pattern: str) -> bool:
    return fnmatch.fnmatch(path.name, pattern) or pattern in path.name


def _in_parallel(runner: Runner, files: Sequence[Path], jobs: int) -> dict[str, list[Case]]:
    from tqdm import tqdm

    results: dict[str, list[Case]] = {}
    with ThreadPoolExecutor(jobs) as pool, tqdm(total=len(files), unit=" files") as bar:

        def run(path: Path) -> tuple[str, list[Case]]:
            cases = runner.run(path)
            bar.set_postfix_str(path.name)
            bar.update()
            return path.name, cases

        results.update(pool.map(run, files))
    return results


def _conclude(results: Mapping[str, Sequence[Case]], report: Path | None) -> int:
    if report is not None:
        data = {name: [vars(case) for case in cases] for name, cases in results.items()}
        report.write_text(json.dumps(data, indent=1))
    outcomes: Counter[str] = Counter()
    for name, cases in sorted(results.items()):
        for case in cases:
            outcomes[case.outcome] += 1
            if case.outcome == FAILED:
                last = case.message.strip().splitlines()[-1:] or [""]
                print(f"FAILED {name}::{case.name}: {last[0]}")
    print(_table(results))
    with contextlib.suppress(BrokenPipeError):
        skipped = outcomes[SKIPPED] + outcomes[NATIVE_TOO]
        print(f"{outcomes[PASSED]} passed, {outcomes[FAILED]} failed, {skipped} skipped")
    return 1 if outcomes[FAILED] else 0


if __name__ == "__main__":
    raise SystemExit(main())
