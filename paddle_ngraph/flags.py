"""The one place for flags: names, defaults, meaning, environment variables.

Each flag is exported by the C++ core, so ``paddle.set_flags`` and ``paddle.get_flags`` know it, and
``FLAGS_<name>`` in the environment sets it when the package is imported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import paddle

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_seam.names import flag_values


@dataclass(frozen=True)
class Flag:
    """A flag: its name without ``FLAGS_``, its default, and what it does."""

    name: str
    default: bool | int | str
    meaning: str
    is_path: bool = False

    @property
    def key(self) -> str:
        """The name that ``paddle.set_flags`` and the environment use."""
        return f"FLAGS_{self.name}"


def cache_directory() -> str:
    """Where users keep what programs can make again; empty where there is no home."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.expanduser("~/.cache")
    return os.path.join(folder, "paddle_ngraph") if os.path.isabs(folder) else ""


FLAGS = {
    flag.name: flag
    for flag in [
        Flag("use_ngraph", False, "Run static programs on the CPU through nGraph."),
        Flag("ngraph_cache_size", 256, "How many compiled functions are kept."),
        Flag(
            "ngraph_cache_mb",
            1024,
            "Megabytes of weights that the functions kept may hold as constants.",
        ),
        Flag(
            "ngraph_memory_mb",
            512,
            "Megabytes of freed tensors that are kept for the next run.",
        ),
        Flag(
            "ngraph_cache_dir",
            cache_directory(),
            "Where compiled functions are kept for the next process; empty: nowhere.",
            is_path=True,
        ),
        Flag("ngraph_cache_disk_mb", 2048, "Megabytes that they may take on disk."),
        Flag(
            "ngraph_cache_min_ms",
            100,
            "What was built in fewer milliseconds is not worth a file.",
        ),
        Flag(
            "ngraph_num_threads",
            0,
            "Threads of the engine; 0: every core the process may use.",
        ),
        Flag("ngraph_precision", "f32", "What inference computes in: f32 (exact), or bf16."),
        Flag(
            "ngraph_min_interval_us",
            60,
            "An interval that Paddle runs in fewer microseconds stays native, unless it is a whole "
            "program that runs often; 0: none does.",
        ),
        Flag(
            "ngraph_strict",
            False,
            "Raise what the engine cannot run, instead of leaving it to Paddle.",
        ),
        Flag("use_mkl_packed", True, "Run the recurrent layers of a program with packed weights."),
        Flag("mkl_packed_provider", "auto", "Who multiplies by packed weights: auto, mkl, onednn."),
    ]
}

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def get(name: str) -> Any:
    """The value of a flag, of the type of its default, e.g. ``get("use_ngraph")``."""
    # What paddle.get_flags reads, without its checks: each run asks several times.
    return flag_values()[FLAGS[name].key]


def set(name: str, value: bool | int | str) -> None:
    """Sets a flag from the next run on."""
    paddle.set_flags({FLAGS[name].key: value})


def read_environment() -> None:
    """Takes over every ``FLAGS_...`` of ours that the environment holds.

    The core does not know the user's cache directory, so that it is told.

    Raises:
        NgraphError: A value is not of the flag's type.
    """
    paddle.get_flags([flag.key for flag in FLAGS.values()])  # tells Paddle's table of them
    for flag in FLAGS.values():
        if flag.key in os.environ:
            set(flag.name, _parse(flag, os.environ[flag.key]))
        elif flag.is_path:
            set(flag.name, flag.default)


def _parse(flag: Flag, text: str) -> bool | int | str:
    if flag.is_path:
        return os.path.expanduser(text.strip())
    word = text.strip().lower()
    if isinstance(flag.default, str):
        return word
    if isinstance(flag.default, bool):
        if word in _TRUE | _FALSE:
            return word in _TRUE
        raise NgraphError(f"{flag.key}={text!r} in the environment: use 1 or 0")
    try:
        return int(word)
    except ValueError:
        raise NgraphError(f"{flag.key}={text!r} in the environment: use a whole number") from None
