"""The generated pages of docs/reference: the API, the command line, flags and other tables."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from importlib import import_module
from typing import Any

import paddle_ngraph
from paddle_ngraph import __main__ as command_line
from paddle_ngraph import distributed, errors, flags, mkl_packed, ray, settings, statistics
from tools.reference import docstrings

WRITTEN = "Written by `make docs` from the code; a test fails when this page is out of date."

# The functions of the package by topic; a test compares them with `paddle_ngraph.__all__`.
TOPICS: Mapping[str, Sequence[str]] = {
    "Switching": ("enable", "disable", "is_enabled", "use_ngraph", "compile"),
    "Reports": (
        "explain",
        "profile",
        "stats",
        "events",
        "reset_stats",
        "cache_info",
        "num_threads",
    ),
    "Verification": ("verify", "verified_runs"),
    "Memory and builds": ("clear_cache", "warm_up", "wait_for_compiles"),
    "Programs and models": (
        "transpile",
        "optimize_memory",
        "explain_memory",
        "save_inference_model",
    ),
    "Devices and plans": (
        "devices",
        "device",
        "copy",
        "execution_plan",
        "automatic_plan",
        "data_parallel",
    ),
    "Several processes": ("distribute", "distribute_to_server", "pipeline"),
    "Recurrent layers": ("use_mkl_packed",),
    "Errors and warnings": ("NgraphError", "NgraphWarning"),
    "Converters": ("converter", "Limit", "Role", "NgraphBridge", "Op", "NgraphEngine"),
}
# Classes of results, which users get but do not create.
RESULTS = (
    "partitioning.report.Report",
    "partitioning.report.IntervalReport",
    "run_counters.Stats",
    "statistics.Event",
    "statistics.CacheInfo",
    "frontends.warm_up.WarmUp",
    "verification.checks.Log",
    "plan.execution_plan.ExecutionPlan",
    "plan.data_parallel.DataParallel",
    "plan.automatic.AutomaticPlan",
    "transpiler.distribution_transpiler.Distributed",
    "transpiler.server_transpiler.ServerForm",
    "transpiler.pipeline_transpiler.Pipeline",
    "transpiler.memory_transpiler.MemoryReport",
)
# Of flags: the text in place of the core's sentence, where it needs more than that, or links.
FLAG_DETAILS: Mapping[str, str] = {
    "ngraph_num_threads": "Threads of each run, at most one for each core; 0: every core that the "
    "process may use (affinity, CPU quota). A predictor keeps to "
    "`set_cpu_math_library_num_threads`, too.",
    "ngraph_precision": "`bf16`, where the processor supports it: inference in bfloat16, [up to "
    "twice as fast](../../benchmarks/results/precision.md); in training, [multiplications with "
    "operands in bfloat16](../how_it_works/bfloat16.md#bfloat16-in-training). `f16`: [GPUs and "
    "NPUs](../guides/execution_plan.md#gpus-and-npus) infer in float16.",
    "ngraph_cache_dir": "Folder of compiled functions for later processes; empty: none. The "
    "default is in `$XDG_CACHE_HOME`, if that is set.",
    "ngraph_cache_size": "Maximum number of cached functions.",
    "ngraph_cache_mb": "Megabytes of weights that cached functions may have as constants.",
    "ngraph_cache_disk_mb": "Megabytes of that folder, at most.",
    "ngraph_cache_min_ms": "Functions that took fewer milliseconds to build are not stored there.",
    "ngraph_memory_mb": "Megabytes of freed tensors that are retained for the next run.",
    "ngraph_trusted_dir": "Folder of models, or of functions, that are "
    "[trusted](../operations/security.md#stored-functions) although another user owns them; "
    "empty: none.",
    "ngraph_min_interval_us": "A subgraph that Paddle runs in fewer microseconds falls back "
    "([cost model](../how_it_works/partitioning.md#the-cost-model)), unless it is a whole program "
    "that runs often; 0: none does.",
    "ngraph_background_compile": "Runs are native while their functions are compiled: `auto`: in "
    "inference, where that takes longer than 20 native runs, in training where it takes longer "
    "than a second; `1`: wherever it is sound; `0`: runs wait ([details]"
    "(../how_it_works/background_compilation.md)). "
    "`paddle_ngraph.wait_for_compiles()` waits before a measurement.",
    "ngraph_tuning_ms": "Milliseconds that tracing and building may hold up a function of dynamic "
    "mode, beyond a tenth of its native time ([autotuner](../how_it_works/autotuner.md)); -1: no "
    "limit, and `compile()` does not measure whether it pays.",
    "ngraph_strict": "Raise an error when the engine cannot run a subgraph, instead of falling "
    "back to Paddle.",
    "ngraph_verify": "Compare one run in so many, of each subgraph, with Paddle's kernels, and "
    "warn of a wrong result with its operator ([debugging](../operations/debugging.md)); 0: none.",
    "ngraph_kernel_calls": "Functions call [Paddle's kernels](../how_it_works/kernel_calls.md) for "
    "operators without a converter, so that these split nothing.",
    "mkl_packed_provider": "The library for [matmuls with packed weights]"
    "(../guides/mkl_packed.md): `auto`, `onednn` or `mkl`.",
}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _page(title: str, *paragraphs: str) -> str:
    return "\n\n".join([f"# {title}", WRITTEN, *paragraphs]) + "\n"


def flags_page() -> str:
    """Flags, with defaults and meaning."""
    rows = []
    for flag in flags.FLAGS.values():
        rows.append([f"`{flag.key}`", _default(flag), FLAG_DETAILS.get(flag.name, flag.meaning)])
    return _page(
        "Flags",
        "A flag is set in the environment, which is read when the package is imported, or by "
        "`paddle.set_flags`, with effect from the next run on. `python -m paddle_ngraph info "
        "--settings` prints the values in effect, and [the policy](settings.md).",
        _table(["flag", "default", "meaning"], rows),
    )


def _default(flag: flags.Flag) -> str:
    if flag.name == "ngraph_cache_dir":
        return "`~/.cache/paddle_ngraph`"  # not that of the user who writes the page
    if isinstance(flag.default, bool):
        return "on" if flag.default else "off"
    return str(flag.default)


def settings_page() -> str:
    """The fields of ``PolicySettings``: limits by which the package decides."""
    meanings = dict(
        docstrings.entries(docstrings.parsed(settings.PolicySettings).sections["Attributes"])
    )
    of_flags = {flag.setting for flag in flags.FLAGS.values()}
    rows = [
        [f"`{name}`", str(value), docstrings.inline(meanings[name], _no_anchor)]
        for name, value in vars(settings.PolicySettings()).items()
        if name not in of_flags
    ]
    return _page(
        "Limits of the policy",
        "The numbers by which the package decides which layers to compile, when to build a "
        "function, and how many: fields of `paddle_ngraph.settings.SETTINGS`. Users change "
        "[flags](flags.md), which set the other fields; tests change these. Limits of operators "
        "are in [operators](operators.md), bounds of caches in [caches](caches.md).",
        _table(["field", "value", "meaning"], rows),
    )


def outcomes_page() -> str:
    """The outcomes and reasons of runs."""
    rows = [
        [
            f"`{each.name}`",
            each.outcome,
            "subgraph" if each.is_of_subgraph else "whole",
            each.sentence,
        ]
        for each in statistics.REASONS
    ]
    return _page(
        "Outcomes of runs",
        "The reasons that `paddle_ngraph.stats()`, `paddle_ngraph.events()` and `explain` name "
        "([what ran](../operations/what_ran.md)). *whole*: a program, layer or trace that Paddle "
        "ran as a whole.",
        _table(["reason", "outcome", "of", "meaning"], rows),
    )


def _no_anchor(name: str) -> None:
    return None


def _first_sentence(owner: Any) -> str:
    text = " ".join(" ".join(docstrings.parsed(owner).text).split())
    return docstrings.inline(re.split(r"(?<=\.) ", text)[0], _no_anchor)


def exceptions_page() -> str:
    """The error types, error codes, and the conditions under which functions raise."""
    types = [
        (errors.NgraphError, "RuntimeError"),
        (paddle_ngraph.NgraphWarning, "UserWarning"),
    ]
    codes = docstrings.entries(docstrings.parsed(errors.ErrorCode).sections["Attributes"])
    raised = [
        [f"[`{name}`](api.md#{name})", docstrings.inline(text, _no_anchor)]
        for names in TOPICS.values()
        for name in names
        for error, text in docstrings.entries(_raises(getattr(paddle_ngraph, name)))
        if error == "NgraphError"
    ]
    runs = [
        [f"`{each.name}`", each.sentence] for each in statistics.REASONS if each.outcome == "raised"
    ]
    return _page(
        "Exceptions",
        "The package raises one type of its own, `NgraphError`, whose message is one sentence with "
        "the problem and the remedy. A run raises in the cases of the last table only; in all "
        "others Paddle runs the subgraph, with its own errors "
        "([fallback](../how_it_works/fallback.md)).",
        _table(
            ["type", "base", "meaning"],
            [[f"`{t.__name__}`", f"`{base}`", _first_sentence(t)] for t, base in types],
        ),
        "## Error codes",
        "`NgraphError.code`, a `paddle_ngraph.errors.ErrorCode`, decides how runs continue:",
        _table(["code", "meaning"], [[f"`{name}`", text] for name, text in codes]),
        "## Functions that raise NgraphError",
        _table(["function", "condition"], raised),
        "## Runs that raise",
        _table(["[reason](run_outcomes.md)", "meaning"], runs),
    )


def _raises(owner: Any) -> list[str]:
    return docstrings.parsed(owner).sections.get("Raises", []) if owner.__doc__ else []


def command_line_page() -> str:
    """The commands, with arguments."""
    parser = command_line._parser()
    (commands,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    helps = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    parts = [
        "`paddle-ngraph COMMAND` is short for `python -m paddle_ngraph COMMAND`; `--help` after a "
        "command prints the same. Errors of the package are one sentence on the standard error, "
        "with exit status 2.",
    ]
    for name, command in commands.choices.items():
        parts += [f"## {name}", f"{helps[name][:1].upper()}{helps[name][1:]}."]
        parts.append(_arguments(command))
        if command.epilog:
            code = command.epilog.removeprefix("example: ").partition(". docs/")[0]
            parts.append(f"Example: `{code}`")
    return _page("Command line", *(part for part in parts if part))


def _arguments(command: argparse.ArgumentParser) -> str:
    formatter = command._get_formatter()
    rows = []
    for action in command._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        shown = ", ".join(f"`{each}`" for each in action.option_strings) or f"`{action.dest}`"
        if action.option_strings and action.nargs != 0:
            value = action.metavar or action.dest.upper()
            shown += f" `{value if isinstance(value, str) else ' '.join(value)}`"
        rows.append([shown, formatter._expand_help(action).replace("|", "\\|")])
    return _table(["argument", "meaning"], rows) if rows else ""


def api_page() -> str:
    """The public names, from docstrings."""
    parts = [
        "Names of `paddle_ngraph`, by topic; then those of `paddle_ngraph.distributed`, "
        "`paddle_ngraph.ray`, `paddle_ngraph.mkl_packed` and `paddle_ngraph.transpiler`, and the "
        "classes of results."
    ]
    results = [_imported(f"paddle_ngraph.{path}") for path in RESULTS]
    names = {name for group in TOPICS.values() for name in group}
    names |= {each.__name__ for each in results}

    def known(name: str) -> str | None:
        last = name.rpartition(".")[2]
        return last.lower() if last in names else None

    for topic, group in TOPICS.items():
        parts.append(f"## {topic}")
        for name in group:
            parts += _entry(f"paddle_ngraph.{name}", getattr(paddle_ngraph, name), known)
    for module in (distributed, ray, mkl_packed):
        parts.append(f"## {module.__name__}")
        for name in module.__all__:
            if name not in names:
                parts += _entry(f"{module.__name__}.{name}", getattr(module, name), known)
    transpiler = import_module("paddle_ngraph.transpiler")
    parts.append("## paddle_ngraph.transpiler")
    parts += _entry("paddle_ngraph.transpiler.generate_native", transpiler.generate_native, known)
    parts.append("## Results")
    for result in results:
        parts += _entry(result.__name__, result, known, show_signature=False)
    return _page("API", *parts)


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _entry(
    path: str, owner: Any, known: Callable[[str], str | None], *, show_signature: bool = True
) -> list[str]:
    name = path.rpartition(".")[2]
    made = [f"### {name}"]
    is_plain_class = inspect.isclass(owner) and (issubclass(owner, Enum) or name == "NgraphEngine")
    if show_signature and not is_plain_class:
        # Sphinx and GitHub show a signature as code, not as a command.
        made.append(f"`{path}{docstrings.signature(owner)}`")
    made += docstrings.markdown(owner, known)
    if inspect.isclass(owner) and not is_plain_class and not issubclass(owner, Exception):
        made += _methods(owner, known)
    if inspect.isclass(owner) and issubclass(owner, Enum):
        made.append("\n".join(f"- `{each.name}`: {each.value}" for each in owner))
    return made


def _methods(owner: type, known: Callable[[str], str | None]) -> list[str]:
    """Public methods and properties of a class, each by its first paragraph."""
    rows = []
    for name, member in vars(owner).items():
        function = member.fget if isinstance(member, property) else member
        function = getattr(function, "__func__", function)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        shown = f"`{name}`" if isinstance(member, property) else f"`{name}{_names(function)}`"
        text = " ".join(next(docstrings._blocks(docstrings.parsed(function).text))[1].split())
        rows.append(f"- {shown}: {docstrings.inline(text, known)}")
    return ["\n".join(rows)] if rows else []


def _names(function: Any) -> str:
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    return f"({', '.join(names)})"


PAGES: Mapping[str, Callable[[], str]] = {
    "api": api_page,
    "command_line": command_line_page,
    "exceptions": exceptions_page,
    "flags": flags_page,
    "run_outcomes": outcomes_page,
    "settings": settings_page,
}
