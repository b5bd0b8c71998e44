"""The package's flags where there is no core, which defines them: accepted, without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from paddle_ngraph.paddle_private.place import replace_everywhere
from paddle_ngraph.settings import SETTINGS

_PREFIX = "FLAGS_"
_values: dict[str, Any] = {}


def install(on_use: Callable[[], None]) -> None:
    """Has ``paddle.set_flags`` and ``paddle.get_flags`` accept the flags of the package.

    Args:
        on_use: Called when ``FLAGS_use_ngraph`` is set to a true value.
    """
    import paddle

    def set_flags(original: Callable[..., None], flags: Any) -> None:
        own = _own_flags(flags if isinstance(flags, dict) else ())
        if own:
            _values.update({key: flags[key] for key in own})
            flags = {key: value for key, value in flags.items() if key not in own}
            if _values.get(f"{_PREFIX}use_ngraph"):
                on_use()
        original(flags)

    def get_flags(original: Callable[..., dict[str, Any]], flags: Any) -> dict[str, Any]:
        names = [flags] if isinstance(flags, str) else flags
        own = _own_flags(names if isinstance(names, (list, tuple)) else ())
        if not own:
            return original(flags)
        found = original([name for name in names if name not in own])
        return {**found, **{name: _value(name) for name in own}}

    pairs = ((paddle.set_flags, set_flags), (paddle.get_flags, get_flags))
    replace_everywhere((original, _wrapped(original, new)) for original, new in pairs)


def _wrapped(original: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def wrapper(flags: Any) -> Any:
        return new(original, flags)

    return wrapper


def _own_flags(names: Iterable[Any]) -> list[str]:
    return [name for name in names if isinstance(name, str) and hasattr(SETTINGS, _setting(name))]


def _setting(flag: str) -> str:
    """Returns the field of ``SETTINGS`` with the default of a flag; empty if it is Paddle's."""
    name = flag[len(_PREFIX) :] if flag.startswith(_PREFIX) else ""
    is_switch = name in ("use_ngraph", "use_mkl_packed", "mkl_packed_provider")
    return name if is_switch else name[len("ngraph_") :] if name.startswith("ngraph_") else ""


def _value(flag: str) -> Any:
    return _values.get(flag, getattr(SETTINGS, _setting(flag)))
