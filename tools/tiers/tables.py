"""The results in docs/development/tiers.md, between two markers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tools.tiers import mutants, reverts
from tools.tiers.measuring import Covered
from tools.tiers.state import State

BEGIN, END = "<!-- tiers:begin -->", "<!-- tiers:end -->"


def replaced(page: str, text: str) -> str:
    """Returns the page with this text between the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"The page lacks the markers {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n{text.strip()}\n{END}{after}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|")


def code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def results(commit: str, state: State, lines: Mapping[str, Covered]) -> str:
    return "\n\n".join(
        (
            f"Measured at {commit[:12]} by `make tiers`; seeds are the hash of the commit.",
            coverage_table(lines, "run by tests (Python: `make test`, C++: `make test-all`)"),
            *_mutants([r for r in state.of(mutants.STEP) if r["outcome"] != mutants.UNFIT]),
            *_reverts(state.of(reverts.STEP)),
            *_unreliable([result["name"] for result in state.of("unreliable")]),
        )
    )


def coverage_table(lines: Mapping[str, Covered], heading: str = "run by tests") -> str:
    return table(
        ("lines", heading, "of", "%"),
        ((name, run.run, run.lines, f"{run.percent:.1f}") for name, run in sorted(lines.items())),
    )


def _mutants(found: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    counts = Counter((result["area"], result["outcome"]) for result in found)
    areas = {
        area: tuple(counts[area, outcome] for outcome in ("test", "all", "survived"))
        for area in mutants.AREAS
    }
    areas["all"] = tuple(map(sum, zip(*areas.values())))
    yield table(
        (
            "mutants in",
            "drawn",
            "killed by `make test`",
            "only by `make test-all`",
            "survived",
            "%",
        ),
        ((area, sum(n), *n, share(n[0], n[0] + n[1])) for area, n in areas.items()),
    )
    yield "%: of those that `make test-all` kills, those that `make test` kills."
    yield table(
        ("line", "kind", "change", "killed by", "test"),
        (
            (r["line"], r["kind"], code(r["change"]), _tier(r["outcome"]), code(r["test"]))
            for r in sorted(found, key=lambda r: (r["area"], r["line"]))
        ),
    )


def share(part: int, of: int) -> str:
    return f"{100 * part / of:.0f}" if of else "-"


def _tier(outcome: str) -> str:
    return {"test": "`make test`", "all": "`make test-all`"}.get(outcome, outcome)


def _reverts(found: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    fit = [result for result in found if result["outcome"] != reverts.CONFLICT]
    noticed = Counter(result["outcome"] for result in fit)
    yield (
        f"Of {len(fit)} reverted commits {noticed['test']} make `make test` fail, and "
        f"{noticed['all']} only `make test-all`; {len(found) - len(fit)} others conflict or change "
        "no code."
    )
    yield table(
        ("commit", "mended", "fails", "test"),
        (
            (r["name"][:9], r["subject"], _tier(r["outcome"]), code(r["test"]))
            for r in sorted(fit, key=lambda r: r["name"])
        ),
    )


def _unreliable(names: Sequence[str]) -> Iterable[str]:
    if names:
        yield "Left out, as they failed without a change too: " + ", ".join(map(code, names))
