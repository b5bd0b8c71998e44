"""``python -m tools.legacy_operators``: writes docs/reference/program_desc.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

_RESULTS = Path(__file__).parents[1] / "tests" / "legacy_operators.json"
_LOD = "@LOD"
_GRADIENT = "_grad"
_TRANSLATED, _KEPT, _REFUSED, _NOT_RUN = "translated", "as it is: ", "refused: ", "not run: "

_INTRODUCTION = """# Operators of ProgramDesc programs

Written by `make docs` from `tests/legacy_operators.json`, which `python -m
tests.legacy_operator_walk` writes: it runs every operator of ProgramDesc in a program of its own,
and again with the operator's gradient, once with default attributes and once with each attribute
off its default, and compares results and LoD with Paddle's. Where Paddle itself has no result on
CPUs, the reason is what its registries of kernels show, or the error or signal of a run in a
process of its own; tests find each of them again.

A ProgramDesc program (`.pdmodel`, `FLAGS_enable_pir_api=0`) is [translated to
PIR](../how_it_works/executor.md#programdesc-programs). An operator that the translation would
change *stays as it is*: Paddle runs it, and the program around it runs through nGraph. Operators
that stay run in program order, and in one scope for each run (*a chain*, [how it
works](../how_it_works/executor.md#operators-in-a-chain)), if they

- call Python (`py_func`), print (`print` of a tensor with a LoD), read or write files
  (`file_path`), or communicate (`epmap`, `endpoints`, `ring_id`); then each `print` stays, too;
- draw from the generator that all samplers share, as samplers without a seed do
  (`uniform_random` with `diag_num`, `dropout` in training on a LoD);
- run a block of the program that PIR does not have, or that a gradient reads again (`recurrent`;
  `while` and `conditional_block` with `while_grad` and `conditional_block_grad`). What is inside
  runs natively, too;
- read or write other variables than dense tensors, such as rows of a sparse gradient, or a
  TensorArray that one of these operators has.

A program falls back as a whole, with the reason in `explain`, where such a variable outlives a run
or is fetched; where a block that stays declares a variable that outlives a run, and a block around
it has another one of that name; and where a damaged file has an operator run a block around it.
Saved and transpiled programs, and those of predictors, have no chains: Paddle's passes may drop
what has no results, and a function that `py_func` calls ends with its process. They fall back as a
whole.

A run that feeds a LoD falls back, too.

"""


def markdown() -> str:
    """The page."""
    known: dict[str, dict[str, str]] = json.loads(_RESULTS.read_text())
    found = {type: {n: v for n, v in row.items() if n != _LOD} for type, row in known.items()}
    whole = {type: row.get("", "") for type, row in found.items()}
    kept = {t: text.removeprefix(_KEPT) for t, text in whole.items() if text.startswith(_KEPT)}
    refused = {
        t: text.removeprefix(_REFUSED) for t, text in whole.items() if text.startswith(_REFUSED)
    }
    lines = [
        _counted("operators", {t: row for t, row in found.items() if not t.endswith(_GRADIENT)}),
        "",
        _counted("gradients", {t: row for t, row in found.items() if t.endswith(_GRADIENT)}),
        "",
        "## Operators that stay as they are",
        "",
        "| operator | reason |",
        "| --- | --- |",
        *(f"| `{type}` | {reason} |" for type, reason in kept.items()),
        "",
        "## Operators that stay as they are with some attributes",
        "",
        "| operator | attributes off their defaults |",
        "| --- | --- |",
        *_attribute_rows({t: row for t, row in found.items() if whole[t] == _TRANSLATED}),
        "",
        "## Operators with which a program falls back",
        "",
        "| operator | reason |",
        "| --- | --- |",
        *(f"| `{type}` | {reason} |" for type, reason in refused.items()),
        "",
        "## Operators that are not judged",
        "",
        *_not_run_rows({(type, ""): text for type, text in whole.items()}),
        "",
        "## Attributes that are not judged",
        "",
        *_not_run_rows(_of_attributes(found)),
    ]
    return _INTRODUCTION + "\n".join(lines) + "\n"


def _counted(kind: str, found: dict[str, dict[str, str]]) -> str:
    whole = [row.get("", "") for row in found.values()]
    tried = [text for row in found.values() for name, text in row.items() if name]
    judged = [text for text in tried if not text.startswith(_NOT_RUN)]
    return (
        f"{len(whole)} {kind}: {whole.count(_TRANSLATED)} are translated, "
        f"{_starting(whole, _KEPT)} stay as they are, {_starting(whole, _REFUSED)} have the "
        f"program fall back, and {_starting(whole, _NOT_RUN)} are not judged. Of {len(tried)} "
        f"attributes off their defaults, {judged.count(_TRANSLATED)} are translated, "
        f"{_starting(judged, _KEPT)} have the operator stay as it is, "
        f"{_starting(judged, _REFUSED)} have the program fall back, and "
        f"{_starting(tried, _NOT_RUN)} are not judged."
    )


def _starting(texts: list[str], prefix: str) -> int:
    return sum(text.startswith(prefix) for text in texts)


def _of_attributes(found: dict[str, dict[str, str]]) -> dict[tuple[str, str], str]:
    return {(type, name): v for type, row in found.items() for name, v in row.items() if name}


def _not_run_rows(texts: dict[tuple[str, str], str]) -> Iterator[str]:
    """The operators, or attributes of operators, without a verdict, by reason."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for (type, name), text in texts.items():
        if text.startswith(_NOT_RUN):
            types = reasons.setdefault(text.removeprefix(_NOT_RUN), {})
            types.setdefault(type, []).extend([f"`{name}`"] if name else [])
    for reason, types in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = (f"`{type}`{_enclosed(names)}" for type, names in types.items())
        yield f"- {reason} ({len(types)}): {', '.join(shown)}."


def _enclosed(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _attribute_rows(found: dict[str, dict[str, str]]) -> Iterator[str]:
    for type, row in found.items():
        names = [n for n, text in row.items() if n and text.startswith((_KEPT, _REFUSED))]
        if names:
            yield f"| `{type}` | {', '.join(f'`{name}`' for name in names)} |"


if __name__ == "__main__":
    print(markdown(), end="")
