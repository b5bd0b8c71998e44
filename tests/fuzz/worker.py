"""Checks shares in a separate process: after a crash, the example is known.

Each line of the standard input names a share, ``lives 17``; each line of the output is an event.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import json
import math
import os
import sys
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("GLOG_minloglevel", "3")

import paddle
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis.stateful import run_state_machine_as_test

import paddle_ngraph
from paddle_ngraph.settings import SETTINGS
from tests.fuzz import functions, graphs
from tests.fuzz.check import Mismatch, NativeFailure, Tally, check
from tests.fuzz.layer_steps import RandomLife, lived, random_life
from tests.fuzz.lives import Life, script, shrunk
from tests.fuzz.machine import LifeMachine
from tests.fuzz.programs import Program
from tests.fuzz.shares import SIZES
from tests.fuzz.strategy import programs

_SHRINK_SECONDS = 45.0
_HUNG_SECONDS = 240.0  # no life of layers takes that long


def main() -> None:
    """Checks the shares that standard input names; writes one line of JSON for each event."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--last", type=Path, required=True, help="file for the current example")
    arguments = parser.parse_args()
    paddle.enable_static()
    SETTINGS.max_judgement_time_ratio = math.inf  # under FLAGS_ngraph_verify
    for line in sys.stdin:
        kind, number = line.split()
        share = _SHARES[kind](arguments.last)
        failure = share.run(SIZES[kind], int(number))
        if failure is not None:
            _say(failure=failure, script=share.smallest)
        _say(done=share.passed, tally=share.tally.as_dict())
        paddle_ngraph.clear_cache()
        gc.collect()  # executors hold threads
    os._exit(0)  # at once: no cleanup is needed


class _Share:
    """A share of one type.

    Attributes:
        tally: The outcomes of the examples.
        passed: How many were fine.
        smallest: The script of the smallest failing example.
    """

    def __init__(self, last: Path) -> None:
        self.tally = Tally()
        self.smallest = ""
        self.passed = 0
        self._last = last
        self._failed_at: float | None = None

    def run(self, count: int, first: int) -> str | None:
        """Checks ``count`` examples of the seed ``first``; returns the failure, if any."""
        try:
            self._draw(count, first)
        except Exception as error:
            return _message(error)
        return None

    def _note(self, error: Exception) -> None:
        """Records a failure; the first one is reported at once, since shrinking takes its time."""
        if self._failed_at is None:
            self._failed_at = time.monotonic()
            _say(failure=_message(error), script=self.smallest)

    def _draw(self, count: int, first: int) -> None:
        raise NotImplementedError

    def _is_late(self, seconds: float) -> bool:
        """Whether the smallest failure so far is small enough."""
        return self._failed_at is not None and time.monotonic() > self._failed_at + seconds

    def _settings(self, count: int, steps: int = 1) -> settings:
        return settings(
            max_examples=count,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            print_blob=False,
        )


class _Programs(_Share):
    """Programs of one run each."""

    def __init__(self, last: Path) -> None:
        super().__init__(last)
        self._failures: dict[str, tuple[Exception, str]] = {}  # by the script as sampled

    def _draw(self, count: int, first: int) -> None:
        @seed(first)
        @self._settings(count)
        @given(programs())
        def fuzz(program: Program) -> None:
            self._check(program)

        fuzz()

    def _check(self, program: Program) -> None:
        text = program.script()
        if text in self._failures:  # a failure must recur, whatever the time
            error, self.smallest = self._failures[text]
            raise error
        if self._is_late(_SHRINK_SECONDS):
            return
        self._last.write_text(text)
        try:
            check(program, None if self._failed_at else self.tally)
        except NativeFailure:
            reject()
        except Exception as error:
            self.smallest = program.script()  # rejected dynamic dimensions are static now
            self._note(error)
            self._failures[text] = error, self.smallest
            raise
        self.passed += self._failed_at is None


class _Lives(_Share):
    """Lives, all of them with as many rules."""

    def _draw(self, count: int, first: int) -> None:
        lines: list[str] = []
        known: dict[tuple[str, ...], Exception] = {}  # a failure must recur

        def watch(line: str) -> None:
            if line.startswith("begin"):
                lines.clear()
            lines.append(line)
            if tuple(lines) in known:
                raise known[tuple(lines)]
            interleaved, disk = (word == "True" for word in lines[0][len("begin ") :].split(", "))
            self._last.write_text(script(interleaved, disk, lines[1:]))

        def ended(life: Life, runs: int) -> None:
            self.passed += 1
            self.tally.lives += 1
            self.tally.steps += len(life.steps)
            self.tally.engine_runs += runs
            self.tally.judged_by_noise += bool(life.judged)

        def failed(life: Life, error: Exception) -> None:
            if self._failed_at is None:
                steps = lines[1 : 1 + len(life.steps)]
                self.smallest = script(life.interleaved, life.disk, steps)
                self._note(error)
            known[tuple(lines)] = error

        class Machine(LifeMachine):
            pass

        Machine.watch, Machine.ended = staticmethod(watch), staticmethod(ended)
        Machine.failed = staticmethod(failed)
        seed(first)(Machine)
        steps = 4 + first % 22  # a rule takes one step or a few
        # Steps are removed one by one where the failure is known to be a life (``lives.shrunk``).
        options = settings(self._settings(count, steps), phases=[Phase.generate])
        run_state_machine_as_test(Machine, settings=options)


class _Layers(_Share):
    """Lives of layers. Those in which the engine did not run do not count."""

    def _draw(self, count: int, first: int) -> None:
        for number in itertools.count():
            if self.passed == count:
                return
            if number == 2 * count:
                raise Mismatch(f"the engine ran in {self.passed} of {number} lives")
            self._live(random_life(first, number))

    def _live(self, sampled: RandomLife) -> None:
        self._last.write_text(sampled.script())
        faulthandler.dump_traceback_later(_HUNG_SECONDS, exit=True)
        try:
            life, runs = lived(sampled)
        except Exception as error:
            self.smallest = sampled.script()
            self._note(error)
            self.smallest = shrunk(self.smallest, partial(self._fails, type(error).__name__))
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.passed += runs > 0
        self.tally.layer_lives += runs > 0
        self.tally.layer_lives_without_engine += runs == 0
        self.tally.steps += len(life.steps)
        self.tally.engine_runs += runs
        self.tally.judged_by_noise += bool(life.judged)

    def _fails(self, name: str, text: str) -> bool:
        """Whether the life of a script fails, with an error of the same type."""
        if self._is_late(_SHRINK_SECONDS):
            return False
        self._last.write_text(text)
        try:
            lived(RandomLife.of_script(text))
        except Exception as error:
            return type(error).__name__ == name
        return False


class _Graphs(_Share):
    """Damaged graph strings."""

    def _draw(self, count: int, first: int) -> None:
        self._last.write_text(f"# graph strings of the seed {first}\n")
        graphs.check_many(count, first)
        self.passed = count
        self.tally.strings += count


class _Functions(_Share):
    """Damaged files of stored functions."""

    def _draw(self, count: int, first: int) -> None:
        functions.check_many(count, first, self._last.write_text)
        self.passed = count
        self.tally.files += count


_SHARES: dict[str, type[_Share]] = {
    "programs": _Programs,
    "lives": _Lives,
    "layers": _Layers,
    "graphs": _Graphs,
    "functions": _Functions,
}


def _message(error: Exception) -> str:
    text = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text[-1500:]}"


def _say(**event: object) -> None:
    sys.__stdout__.write(json.dumps(event) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
