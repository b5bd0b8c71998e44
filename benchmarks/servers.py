"""HTTP servers under load: the engine beside native Paddle, at the same concurrency.

    python -m benchmarks.servers --requests 10000 --pages 300

It needs the environment of ``make serve-test``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from demos.running import DemoError
from demos.serving_demo import trial
from demos.serving_demo.load import Load
from demos.serving_demo.settings import NATIVE, NGRAPH

TITLES = {"classifier": "MobileNetV2, 224 x 224", "ocr": "PaddleOCR, PP-OCRv5 mobile"}
AT_ONCE = 4
ROUNDS = 10
KILLS = 5
RESULTS = Path(__file__).with_name("results")
EXPLANATION = f"""\
[The servers of demos/serving_demo](../../demos/serving_demo/README.md), gunicorn with a worker for
each core and one thread in each, as clients on the same machine see them: {AT_ONCE} requests at
once, of PNG files, and the time from request to answer, which includes waiting for the requests
before. The two engines take turns of equal numbers of requests, in alternating order. Processor
time is that of the workers. Native Paddle runs the classifier with its default settings (oneDNN),
and PaddleOCR without oneDNN, with which Paddle 3.3 cannot run PP-OCRv5. Each answer is compared
with native Paddle's."""
UNDER_LOAD = """\
The engine's servers answer more requests, by which memory is judged: that of the largest worker,
after the first tenth and at the end. Then workers are killed (SIGKILL) one after another under the
same load: *lost* are requests without a right answer. Functions are loaded before the first
request."""


@dataclass
class Measured:
    """Requests of one engine: their times, and the processor time of the workers."""

    milliseconds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    processor_seconds: float = 0.0

    def summary(self) -> dict[str, float]:
        """Returns the cells of the table by their titles."""
        count = len(self.milliseconds)
        p50, p99 = np.percentile(self.milliseconds, (50, 99))
        return {
            "requests": count,
            "p50 (ms)": round(p50),
            "p99 (ms)": round(p99),
            "in a second": round(count / self.seconds, 1),
            "processor time (ms)": round(1e3 * self.processor_seconds / count, 1),
        }


def measure(application: str, count: int, native: int) -> Iterator[dict[str, Any]]:
    """Measures an application: ``count`` requests of the engine, ``native`` ones of Paddle.

    Yields the results until then after each turn, and at the end with those of kills.
    """
    requests = trial.bodies(application)
    measured = {NATIVE: Measured(), NGRAPH: Measured()}
    share, memory = native // ROUNDS, []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ports = {
            engine: stack.enter_context(trial.served(application, Path(folder), engine=engine))
            for engine in measured
        }
        expected = trial.send(ports[NATIVE], requests, len(requests), 1)
        warm = trial.metrics(ports[NGRAPH])
        # None is the first to read the requests.
        _send(ports[NGRAPH], requests, 2 * len(requests), expected)
        for number in range(ROUNDS):
            for engine in sorted(measured, reverse=bool(number % 2)):
                before = trial.processor_seconds(ports[engine])
                part = _send(ports[engine], requests, share, expected)
                measured[engine].milliseconds += part.milliseconds
                measured[engine].seconds += part.seconds
                after = trial.processor_seconds(ports[engine])
                measured[engine].processor_seconds += after - before
            _send(ports[NGRAPH], requests, max(1, count // ROUNDS - share), expected)
            memory.append(max(trial.memory(ports[NGRAPH]).values()))
            values = trial.metrics(ports[NGRAPH])
            found: dict[str, Any] = {
                "engines": {engine: each.summary() for engine, each in measured.items()},
                "under load": {
                    "requests": (number + 1) * max(share + 1, count // ROUNDS),
                    "MB, first": round(memory[0]),
                    "MB, last": round(memory[-1]),
                    "functions loaded": round(warm["ngraph_functions_loaded_total"]),
                    "built": round(values["ngraph_functions_built_total"]),
                    "native runs": round(values["ngraph_native_runs_total"]),
                },
            }
            yield found
        size = max(8 * KILLS, count // 10)
        kills = _send(ports[NGRAPH], requests, size, expected, kill_every=size // KILLS)
        then = {"then": size, "killed": len(kills.killed), "lost": len(kills.failures)}
        yield {**found, "under load": {**found["under load"], **then}}


def _send(
    port: int, requests: list[bytes], count: int, expected: Load, kill_every: int | None = None
) -> Load:
    """Sends requests, and requires a right answer to each."""
    found = trial.send(port, requests, count, AT_ONCE, kill_every=kill_every)
    if found.failures:
        raise DemoError(f"{len(found.failures)} requests were lost: {found.failures[0]}")
    trial.require_equal(found, expected)
    return found


def _write(found: dict[str, Any], options: argparse.Namespace) -> None:
    engines = {
        f"{TITLES[application]}: {engine}": values
        for application, data in found.items()
        for engine, values in data["engines"].items()
    }
    loads = {TITLES[application]: data["under load"] for application, data in found.items()}
    sections = [EXPLANATION, _table(engines), UNDER_LOAD, _table(loads)]
    if options.conditions:
        sections.append(f"Conditions: {options.conditions}.")
    command = f"python -m benchmarks.servers --requests {options.requests} --pages {options.pages}"
    title = "HTTP servers under load"
    report.write(options.output, "serving_http", title, sections, {"servers": found}, None, command)


def _table(rows: dict[str, dict[str, float]]) -> str:
    """Returns a table of rows that have the same cells, but for those not measured yet."""
    titles = list(dict.fromkeys(title for row in rows.values() for title in row))
    cells = [[name, *(str(row.get(title, "-")) for title in titles)] for name, row in rows.items()]
    return report.table(["", *titles], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1000, help="of the classifier")
    parser.add_argument("--pages", type=int, default=30, help="of PaddleOCR")
    parser.add_argument("--native", type=float, default=0.1, help="share of these sent to Paddle")
    parser.add_argument("--only", choices=TITLES, help="one application; keeps the other's results")
    parser.add_argument("--conditions", help="a remark on the machine, for the page")
    parser.add_argument("--output", type=Path, default=RESULTS, help="(default: %(default)s)")
    options = parser.parse_args()
    for application, count in (("classifier", options.requests), ("ocr", options.pages)):
        if options.only in (None, application):
            native = max(ROUNDS, round(options.native * count))
            for values in measure(application, count, native):
                print(application, values, flush=True)
                found = report.earlier(options.output, "serving_http").get("servers", {})
                _write({**found, application: values}, options)


if __name__ == "__main__":
    main()
