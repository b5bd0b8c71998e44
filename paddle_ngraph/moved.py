"""Deprecated module names from docs of earlier releases: attribute access warns.

Only documented names are here, not every module that has moved.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from paddle_ngraph.warning_codes import WarningCode, warn

# Old names of packages and modules -> present names; a package comes before its modules.
_MOVED = {"function": "conversion", "function.registry": "conversion.registry"}


class _Moved(ModuleType):
    """A stand-in for a module under its old name, which warns when it is used."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(old, f"The old name of {new}.")
        self._new = new

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # no warning for tools that inspect all modules
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        message = f"{self.__name__} has moved to {self._new}"
        warn(WarningCode.MOVED, message, category=DeprecationWarning)
        return getattr(import_module(self._new), name)


def install() -> None:
    """Makes the old names importable. The new modules are imported at the first access."""
    for old, new in _MOVED.items():
        name = f"{__package__}.{old}"
        module = sys.modules[name] = _Moved(name, f"{__package__}.{new}")
        parent, _, last = name.rpartition(".")
        vars(sys.modules[parent])[last] = module
