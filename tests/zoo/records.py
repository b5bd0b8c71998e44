"""The results of the zoo: lines of JSON in a file, and the page that shows them."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from tests.zoo.families import FAMILIES, NetworkFamily

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.jsonl")
PAGE = ROOT / "docs" / "development" / "zoo.md"
EVALUATED = ("old predictor", "old Executor", "predictor", "Executor")
DYNAMIC = ("compile", "enable", "training")
# Forms of which 20 families are timed: by one thread, and as a user who sets nothing has them.
TIMED = tuple(
    f"{kind}, {threads}"
    for kind in ("predictor", "old predictor", "Executor", "to_static", "jit.load")
    for threads in ("one thread", "default")
)
COVERED = 0.95
SLOWER = 1.05
UNDECIDED = 1e-3

Record = dict[str, Any]
Key = tuple[str, str]

# What the file leaves out.
EMPTY: Record = {
    **{"outcome": "equal", "why": "", "error": 0.0, "rounding": 0.0, "engine_runs": 0},
    **{"coverage": None, "left": {}, "ratio": None, "seconds": 0.0, "revision": ""},
    "machine": "",
}

INTRODUCTION = """\
# The zoo

Written by `make zoo` from its results ([testing](testing.md)): networks of public packages, with
random weights, run natively and through the engine in each way that they are used. *Old* forms are
exported under the old IR (`FLAGS_enable_pir_api=0`) to a `.pdmodel`.

- An empty cell: not run yet.
- `=`: the engine ran, and its results are native Paddle's within rounding, judged by native runs
  from weights that differ in their last bit. **wrong**: they differ by more.
- `~`: the same, but native runs part by more than 0.001 themselves, as where boxes are sorted by
  scores of random weights: little is shown.
- *training*: four steps, each from the state in which the native run was, of batches of 8 where a
  batch normalization would have two numbers. Where the engine differs by more than 0.001, both are
  compared with float64, from up to eight weights, 0.1 % apart: wrong is what the engine has, from
  all of them, ten times further from float64 than native Paddle has it in the median. A tensor of
  which native Paddle has no digit right is judged within its layer.
- *native*: right, but no engine ran.
- **fails**: an error or a crash that native Paddle does not have.
- Paddle: native Paddle cannot do it, or no training step is defined.
- *time*, *old time*: the share of native time in operators that the engine itself computes, of a
  predictor.
"""


class Results:
    """Records by family and form, in a file that grows by a line for each.

    Args:
        path: The file; it may be missing. A line that a crash cut short is ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: dict[Key, Record] = {}
        self._read()

    def _read(self) -> None:
        for line in self._path.read_text().splitlines() if self._path.exists() else []:
            try:
                record = {**EMPTY, **json.loads(line)}
            except ValueError:
                continue
            self.records[record["family"], record["form"]] = record

    def add(self, record: Record) -> None:
        """Adds a record, which replaces an earlier one of the same family and form."""
        self.records[record["family"], record["form"]] = record
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(_line(record))

    def compact(self) -> None:
        """Rewrites the file in order, without what later records have replaced."""
        self._read()  # another share may have added some
        if self.records:
            whole = self._path.with_suffix(".new")
            whole.write_text("".join(_line(self.records[key]) for key in sorted(self.records)))
            whole.replace(self._path)

    def missing(self, family: NetworkFamily, forms: Sequence[str], revision: str) -> list[str]:
        """The forms to run: those without a record, and what failed with other sources."""
        return [form for form in forms if not self._is_done(family.id, form, revision)]

    def _is_done(self, family: str, form: str, revision: str) -> bool:
        record = self.records.get((family, form))
        return record is not None and (
            record["outcome"] in ("equal", "paddle") or record["revision"] == revision
        )

    def of(self, family: NetworkFamily, form: str) -> Record | None:
        """The record of a form of a family."""
        return self.records.get((family.id, form))


def machine() -> str:
    """The day, the processor and the cores of a measurement."""
    facts = report.environment()
    return f"{datetime.date.today()}, {facts['processor']}, {facts['cores']} cores"


def _line(record: Record) -> str:
    """A line of the file: six digits are enough, and empty fields are left out."""
    numbers = {k: float(f"{v:.6g}") for k, v in record.items() if isinstance(v, float)}
    stored = {k: v for k, v in (record | numbers).items() if k not in EMPTY or v != EMPTY[k]}
    return json.dumps(stored) + "\n"


def page(results: Results, families: Iterable[NetworkFamily] = FAMILIES) -> str:
    """The page in Markdown."""
    shown = [f for f in families if any(key[0] == f.id for key in results.records)]
    parts = [INTRODUCTION, _bars(results, shown), "## Results\n", _table(results, shown)]
    if timed := _timed(results, shown):
        parts += ["## Time\n", timed]
    parts += ["## What is not equal, and what stays native\n", _causes(results, shown)]
    return "\n".join(part for part in parts if part)


def bars(results: Results, families: Iterable[NetworkFamily]) -> dict[str, tuple[int, int]]:
    """How many meet each bar, and of how many."""
    families = list(families)
    records = [r for f in families for form in EVALUATED if (r := results.of(f, form))]
    all_records = [r for key, r in results.records.items() if key[1] not in TIMED]
    exported = [r for r in records if r["outcome"] != "paddle" and r["coverage"] is not None]
    timed = [r for f in families for form in TIMED if (r := results.of(f, form))]
    ratios = [r["ratio"] for r in timed if r["ratio"] is not None]
    return {
        "results that are not wrong": (
            sum(r["outcome"] not in ("wrong", "fails") for r in all_records),
            len(all_records),
        ),
        "exports with 95 % of native time in the engine": (
            sum(r["coverage"] >= COVERED for r in exported),
            len(exported),
        ),
        "timed forms within 5 % of Paddle's best": (
            sum(ratio <= SLOWER for ratio in ratios),
            len(ratios),
        ),
    }


def _bars(results: Results, families: list[NetworkFamily]) -> str:
    lines = [
        f"- {name}: {met} of {of}" for name, (met, of) in bars(results, families).items() if of
    ]
    return "\n".join([f"{len(families)} families:\n", *lines, ""])


def _table(results: Results, families: list[NetworkFamily]) -> str:
    head = ["network", "package", "task", "year", *EVALUATED, *DYNAMIC, "time", "old time"]
    lines = [_row(head), _row(["---"] * len(head))]
    for family in families:
        cells = [family.name, family.package, family.task, str(family.year)]
        cells += [_cell(results.of(family, form)) for form in EVALUATED + DYNAMIC]
        cells += [_share(results.of(family, form)) for form in ("predictor", "old predictor")]
        lines.append(_row(cells))
    return "\n".join([*lines, ""])


def _cell(record: Record | None) -> str:
    outcomes = {"equal": "=", "native": "*native*", "paddle": "Paddle"}
    if record is None:
        return ""
    if record["outcome"] == "equal" and record["error"] > UNDECIDED:
        return "~"
    return outcomes.get(record["outcome"], f"**{record['outcome']}**")


def _share(record: Record | None) -> str:
    if record is None or record["coverage"] is None:
        return ""
    return f"{record['coverage']:.1%}"


def _timed(results: Results, families: list[NetworkFamily]) -> str:
    """Time relative to Paddle's best, and below the medians of what is slower."""
    found = {
        family.id: [results.of(family, form) for form in TIMED]
        for family in families
        if any(results.of(family, form) for form in TIMED)
    }
    if not found:
        return ""
    measured = Counter(
        f"{record['machine']}, sources {record['revision'].partition('+')[0]}"
        for timed in found.values()
        for record in timed
        if record and record["ratio"] is not None
    )
    lines = [
        "Time by the engine relative to Paddle's best, plain or with oneDNN: the median of pairs,",
        "in processor time on one thread, and in wall-clock time where the user sets nothing",
        f"(default). Forms measured: {'; '.join(f'{n} on {at}' for at, n in measured.items())}.\n",
    ]
    lines += [_row(["network", *TIMED]), _row(["---"] * (1 + len(TIMED)))]
    lines += [_row([name, *map(_ratio, timed)]) for name, timed in found.items()]
    slower = [
        f"- {record['family']}, {record['form']}: {record['why']}"
        for timed in found.values()
        for record in timed
        if record and record["ratio"] is not None and record["ratio"] > SLOWER
    ]
    return "\n".join([*lines, "", *slower, ""])


def _ratio(record: Record | None) -> str:
    if record is None:
        return ""
    if record["ratio"] is None:
        return _cell(record)
    return f"{record['ratio']:.2f}" if record["ratio"] <= SLOWER else f"**{record['ratio']:.2f}**"


def _causes(results: Results, families: list[NetworkFamily]) -> str:
    """Reasons, each with the families and forms that have it; the most frequent first."""
    found: dict[str, list[str]] = {}
    for family in families:
        for (name, form), record in results.records.items():
            if name == family.id and record["why"] and form not in TIMED:
                kind = record["outcome"]
                reason = f"{'in part native' if kind == 'equal' else kind}: {record['why']}"
                found.setdefault(reason, []).append(f"{family.name} ({form})")
    lines = [
        f"- {reason.replace('|', '/')}: {', '.join(places)}"
        for reason, places in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    times: Counter[str] = Counter()
    for family in families:
        for form in ("predictor", "old predictor"):
            times.update((results.of(family, form) or {}).get("left", {}))
    if times:
        lines += ["", "Operators left to Paddle, by the sum of their shares of native time:", ""]
        lines += [f"- `{name}`: {share:.2f}" for name, share in times.most_common(20)]
    return "\n".join([*lines, ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
