"""Flags: names, defaults, meaning, environment variables.

The core defines and exports the flags (core/paddle/flags.h), for ``paddle.set_flags`` and
``paddle.get_flags``. ``FLAGS_<name>`` in the environment sets one when the package is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import paddle

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import flag_values
from paddle_ngraph.settings import SETTINGS, PolicySettings
from paddle_ngraph.utils import first_use

_PATH_FLAGS = frozenset({"ngraph_cache_dir", "ngraph_trusted_dir"})


@dataclass(frozen=True)
class Flag:
    """A flag of the package: its name without ``FLAGS_``, its default, and its meaning."""

    name: str
    default: bool | int | str
    meaning: str
    is_path: bool = False

    @property
    def key(self) -> str:
        """The name of the flag in ``paddle.set_flags`` and in the environment."""
        return f"FLAGS_{self.name}"

    @property
    def setting(self) -> str:
        """The name of the field of ``PolicySettings`` whose value the flag is."""
        return self.name[len("ngraph_") :] if self.name.startswith("ngraph_") else self.name


def cache_directory() -> str:
    """Returns the user's cache directory for this package; empty without a home directory."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.expanduser("~/.cache")
    return os.path.join(folder, "paddle_ngraph") if os.path.isabs(folder) else ""


FLAGS = {
    name: Flag(
        name,
        cache_directory() if name == "ngraph_cache_dir" else default,
        meaning,
        is_path=name in _PATH_FLAGS,
    )
    for name, default, meaning in _core.flags
}

_KEYS = {name: flag.key for name, flag in FLAGS.items()}

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def get(name: str) -> Any:
    """Returns the value of a flag, of the type of its default, e.g. ``get("use_ngraph")``."""
    # Reads Paddle's table directly, since paddle.get_flags checks names, and each run reads several
    # flags.
    return flag_values()[_KEYS[name]]


def values() -> tuple[Any, ...]:
    """Returns the values of all flags, in the order of ``FLAGS``."""
    table = flag_values()
    return tuple(table[flag.key] for flag in FLAGS.values())


def settings() -> PolicySettings:
    """Returns the ``PolicySettings`` of the process, with the current values of all flags."""
    return replace(SETTINGS, **{flag.setting: get(name) for name, flag in FLAGS.items()})


def set(name: str, value: bool | int | str) -> None:
    """Sets a flag, which takes effect with the next run."""
    paddle.set_flags({FLAGS[name].key: value})


def install() -> None:
    """Patches the setting of flags: setting ``use_ngraph`` first installs all other patches."""
    replaced.SET_FLAG.replace(_beginning_first_use)


def _beginning_first_use(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __setitem__(self: Any, name: str, value: Any) -> None:
        if name == FLAGS["use_ngraph"].key and value:
            first_use.begin()
        if name == FLAGS["ngraph_verify"].key:
            _require_interval(name, value)
        original(self, name, value)

    return __setitem__


def _require_interval(key: str, value: Any) -> None:
    """Raises NgraphError unless a value of a flag means one run in so many, or none."""
    text = str(int(value) if isinstance(value, bool) else value).strip()
    if not text.isdecimal() or int(text) >= 2**31:
        raise NgraphError(f"{key}={value!r}: use 0 for no run, or N for one run in N")


def read_environment() -> None:
    """Sets the flags of the package that are in the environment, and the path flags.

    The default of a path flag is the user's cache directory, which the core does not compute.

    Raises:
        NgraphError: A value is not of the flag's type.
    """
    # Reading the flags registers them in Paddle's table.
    paddle.get_flags([flag.key for flag in FLAGS.values()])
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
        raise NgraphError(f"{flag.key}={text!r} in the environment: use an integer") from None
