"""``python -m tools.patches``: writes docs/reference/patches.md, the table of all patches."""

from __future__ import annotations

from paddle_ngraph.paddle_private.patch_table import PATCHES, InstallationPhase, PatchGroup

_INTRODUCTION = """# Patches of Paddle

Written by `make docs` from `paddle_ngraph/paddle_private/patch_table.py`; a test fails when this
page is out of date, and when a new process patches other names than these. A *patch* replaces a
function of Paddle by one that calls the original: a function of the C core in place
(`core/paddle/call_interception.h`), so that references taken before are covered, too; a function or
class in Python as an attribute of its owner.
[Porting](../development/porting.md) explains how the names are checked before any is patched.
`libpaddle` and `executor` are modules in `paddle.base`.
"""

_PHASES = {
    InstallationPhase.IMPORT: "Installed by `import paddle_ngraph`: these detect the first use, or "
    "record facts that cannot be found later.",
    InstallationPhase.CONFIGURATION: "Installed by the first `paddle.inference.Config` of the "
    "process, or by the first use, whichever is earlier.",
    InstallationPhase.FIRST_USE: "Installed before `FLAGS_use_ngraph` is on, by whichever way it "
    "is set, and before a program has engine operators: `transpile()`, a pass by name, a saved "
    "model that is opened, `compile()`. Objects that can write weights are then searched for, and "
    "calls of "
    "Paddle that run in other threads are treated as writers until they return.",
    InstallationPhase.DYNAMIC: "Installed by the first call of a function of "
    "`paddle_ngraph.compile()`, and of `enable(dynamic=...)`.",
    InstallationPhase.JOB: "Installed in processes of a job with collectives of dynamic mode, as "
    "by `distributed.init(dynamic=True)`.",
}

_INTERCEPTION = """## Intercepted in place

C functions of dynamic mode that can write a tensor are intercepted by the core itself
(`core/paddle/call_interception.h`), without a function in Python. `eager_functions()`,
`collective_functions()` and the other generators of `paddle_private/replaced.py` list them.
"""


def markdown() -> str:
    """The page."""
    sections = [_INTRODUCTION]
    for phase, explanation in _PHASES.items():
        groups = [group for group in PATCHES if group.phase is phase]
        count = sum(len(group.targets) for group in groups)
        noun = "name" if count == 1 else "names"
        sections.append(f"## {phase.value.capitalize()}: {count} {noun}\n\n{explanation}\n")
        sections.append("| names | reason |\n| --- | --- |\n" + "".join(map(_row, groups)))
    return "\n".join([*sections, _INTERCEPTION])


def _row(group: PatchGroup) -> str:
    owners: dict[str, list[str]] = {}
    for target in group.targets:
        owner = target.owner.replace(":", ".").removeprefix("paddle.base.")
        owners.setdefault(owner, []).append(f"`{target.name}`")
    names = "; ".join(f"`{owner}`: {', '.join(each)}" for owner, each in owners.items())
    return f"| {names} | {group.reason} |\n"


if __name__ == "__main__":
    print(markdown(), end="")
