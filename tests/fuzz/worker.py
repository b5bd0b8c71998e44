"""One share of a long run, in a process of its own: a crash of it tells which program it was."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("GLOG_minloglevel", "3")

import paddle
from hypothesis import HealthCheck, Phase, given, reject, seed, settings

import paddle_ngraph
from tests.fuzz.check import NativeFailure, Tally, check
from tests.fuzz.programs import Program
from tests.fuzz.strategy import programs

_CACHE_EVERY = 50
_SHRINK_SECONDS = 60.0


def main() -> None:
    """Checks ``--programs`` programs; writes one line of JSON for each event."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--last", type=Path, required=True, help="file for the current program")
    arguments = parser.parse_args()
    paddle.enable_static()
    share = _Share(arguments.last)
    failure = share.run(arguments.programs, arguments.seed)
    if failure is not None:
        _say(failure=failure, program=share.smallest)
    tally = dict(vars(share.tally), native=dict(share.tally.native))
    _say(tally=tally)
    os._exit(0)  # at once: there is nothing to tidy up


class _Share:
    def __init__(self, last: Path) -> None:
        self.tally = Tally()
        self.smallest = ""
        self._last = last
        self._reported = 0
        self._failed_at: float | None = None
        self._failures: dict[str, tuple[Exception, str]] = {}  # by the script as drawn

    def run(self, count: int, first: int) -> str | None:
        """Checks ``count`` programs drawn with the seed ``first``; returns the failure, if any."""

        @seed(first)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(programs())
        def fuzz(program: Program) -> None:
            self._check(program)

        try:
            fuzz()
        except Exception as error:
            text = str(error).strip() or "no message"
            return f"{type(error).__name__}: {text[-1500:]}"
        return None

    def _check(self, program: Program) -> None:
        script = program.script()
        if script in self._failures:  # what failed once fails always, whatever the time
            error, self.smallest = self._failures[script]
            raise error
        if self._failed_at and time.monotonic() > self._failed_at + _SHRINK_SECONDS:
            return  # the smallest so far is small enough
        self._last.write_text(script)
        try:
            check(program, None if self._failed_at else self.tally)
        except NativeFailure:
            reject()
        except Exception as error:
            self._failed_at = self._failed_at or time.monotonic()
            self.smallest = program.script()  # open dimensions that Paddle refused are closed now
            self._failures[script] = error, self.smallest
            raise
        if self.tally.programs - self._reported >= 10:
            _say(programs=self.tally.programs - self._reported)
            self._reported = self.tally.programs
        if self.tally.programs % _CACHE_EVERY == 0:
            paddle_ngraph.clear_cache()
            gc.collect()  # executors hold threads


def _say(**event: object) -> None:
    sys.__stdout__.write(json.dumps(event) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
