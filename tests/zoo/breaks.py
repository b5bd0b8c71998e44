"""Reasons of graph breaks in networks of the zoo and in scripts: counts them, writes the page.

    python -m tests.zoo.breaks --share 1/8
    python -m tests.zoo.breaks --scripts FOLDER
    python -m tests.zoo.breaks --page-only

Each network, or script, runs in a process of its own, without builds: its calls are only recorded.
Of a script counts what it passes to ``paddle_ngraph.compile``. The counts are
``tests/zoo/breaks.json``, the page is ``docs/development/graph_breaks.md``.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.zoo.__main__ import ROOT, SECONDS, run_family, share_of
from tests.zoo.child import MARK
from tests.zoo.families import FAMILIES

MODULE = "tests.zoo.breaks"
FORMS = ("evaluation", "training")
COUNTS = Path(__file__).with_name("breaks.json")
PAGE = ROOT / "docs" / "development" / "graph_breaks.md"
CALLS = 3
# The option of the child process of a script.
_SCRIPT = "--script"

# Of each network and form, or script: the reasons of its graph breaks, and their numbers of lines.
Counts = dict[str, dict[str, int]]

INTRODUCTION = """# Graph breaks of networks

Written by `python -m tests.zoo.breaks`: calls that end a
[trace](../how_it_works/lazy_tensors.md) in networks of the [zoo](zoo.md), evaluated and trained,
and in scripts after public reports. The most frequent ones come first: how many of these have the
call, and at how many lines of their code.

Those that are left read values (`_getitem_from_offset`, `gather_tree`), write what a view shares
(`_setitem_dygraph`), have numbers of 64 bits or more operators than a trace may have (`__add__`),
complex numbers, or gradients of the user's own (`PyLayer.apply`).
"""


def breaks_of(run: Callable[[], object]) -> dict[str, int]:
    """The reasons of the graph breaks of all that a function compiles, with the numbers of lines.

    Nothing is built meanwhile.
    """
    import paddle_ngraph
    from paddle_ngraph.frontends.dynamic.lazy.trace_graph import compile_budget_set

    original, made = paddle_ngraph.compile, []

    @functools.wraps(original)
    def remembering(*args: Any, **kwargs: Any) -> Any:
        made.append(original(*args, **kwargs))
        return made[-1]

    paddle_ngraph.compile = remembering
    try:
        with compile_budget_set(lambda _: False):
            run()
    finally:
        paddle_ngraph.compile = original
    found = {line for compiled in made for line in _explained(compiled)}
    return dict(Counter(reason_of(line) for line in found))


def _explained(compiled: Any) -> list[str]:
    import paddle_ngraph

    try:
        return paddle_ngraph.explain(compiled).breaks
    except paddle_ngraph.NgraphError:  # never called
        return []


def reason_of(text: str) -> str:
    """The name of the call in the text of a break, which ends with the line of code."""
    return re.sub(r" \(.*, line \d+.*\)$", "", text, flags=re.DOTALL)


def _evaluated(family: Any) -> None:
    import paddle

    import paddle_ngraph
    from tests.zoo import networks

    function = paddle_ngraph.compile(networks.network(family))
    with paddle.no_grad():
        for _ in range(CALLS):
            function(*map(paddle.to_tensor, networks.arrays(family)))


def _trained(family: Any) -> None:
    from tests.zoo import training

    training.Training(family, [1.0] * 99, engine=True).run()


def _child_of_family(identity: str, *wanted: str) -> None:
    from tests.zoo import packages

    packages.allow_absent()
    family = next(family for family in FAMILIES if family.id == identity)
    for form in wanted:
        print(f"{MARK}{json.dumps(form)}", flush=True)
        function = _evaluated if form == "evaluation" else _trained
        record: dict[str, Any] = {"family": family.id, "form": form, "outcome": "equal"}
        try:
            if form == "training" and family.untrained:
                record["outcome"] = "paddle"
            else:
                record["breaks"] = breaks_of(functools.partial(function, family))
        except Exception as error:  # of the network, as the zoo's own forms record it
            record |= {"outcome": "fails", "why": f"{type(error).__name__}: {error}"[:200]}
        print(f"{MARK}{json.dumps(record)}", flush=True)


def _child_of_script(path: str) -> None:
    sys.path.insert(0, str(Path(path).parent))
    try:
        found = breaks_of(lambda: runpy.run_path(path, run_name="__main__"))
    finally:
        sys.stdout.flush()
    print(f"\n{MARK}{json.dumps(found)}", flush=True)


def _of_script(path: Path, seconds: float) -> dict[str, int] | None:
    """The breaks of a script that compiles by name where ``MODE=compile``; ``None``: it failed."""
    environment = {**os.environ, "MODE": "compile", "FLAGS_ngraph_tuning_ms": "-1"}
    command = [sys.executable, "-W", "ignore", "-m", MODULE, _SCRIPT, str(path)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    found: dict[str, int] | None = json.loads(lines[-1][len(MARK) :]) if lines else None
    return found


def table(counts: Counts) -> str:
    """The reasons as a table in Markdown, most frequent first."""
    users: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for of_one in counts.values():
        users.update(of_one.keys())
        lines.update(of_one)
    rows = sorted(users, key=lambda reason: (-users[reason], -lines[reason], reason))
    text = ["| call | networks and scripts | lines |", "| --- | --- | --- |"]
    text += [f"| `{reason}` | {users[reason]} | {lines[reason]} |" for reason in rows]
    return "\n".join(text)


def page(counts: Counts) -> str:
    """The page in Markdown."""
    whole = sum(not of_one for of_one in counts.values())
    summary = f"{len(counts)} networks, by form, and scripts; {whole} have no break."
    return f"{INTRODUCTION}\n{summary}\n\n{table(counts)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Counts the breaks of a share of the zoo, or of scripts, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", default="1/1", help="k/n: every n-th family from the k-th")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="families with this in the id")
    parser.add_argument("--scripts", type=Path, metavar="FOLDER", help="scripts, not the zoo")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of each")
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    counts: Counts = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    for name, found in () if options.page_only else _found(options):
        print(name, found, flush=True)
        if found is not None:
            counts[name] = found
            COUNTS.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(counts))


def _found(options: argparse.Namespace) -> Any:
    if options.scripts is not None:
        for path in sorted(options.scripts.glob("[0-9]*.py")):
            if "wrap(" in path.read_text():
                yield f"script {path.stem}", _of_script(path, options.seconds)
        return
    for family in share_of(FAMILIES, options.share):
        if options.only and not any(text in family.id for text in options.only):
            continue
        for record in run_family(family, FORMS, options.seconds, MODULE):
            yield f"{record['family']}, {record['form']}", record.get("breaks")


if __name__ == "__main__":
    if sys.argv[1:2] == [_SCRIPT]:
        _child_of_script(sys.argv[2])
    elif len(sys.argv) > 2 and sys.argv[1] in {family.id for family in FAMILIES}:
        _child_of_family(*sys.argv[1:])
    else:
        main()
