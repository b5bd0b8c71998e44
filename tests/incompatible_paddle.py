"""Loads the engine into a Paddle that lacks a name; a separate process for each.

Reads a JSON list of ``[owner, name, signature, fault]`` from its input, writes the mistakes in the
package's report about each.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import types
import warnings
from collections.abc import Iterable
from typing import Any

import paddle.inference  # all of Paddle, before the package changes it
import paddle.jit.pir_translated_layer  # noqa: F401

FAULTS = ("removed", "called otherwise")
# Around the reason in the warning.
BEFORE, AFTER = "Paddle runs all programs: ", " [NG101]"


def main() -> None:
    installation = package_without_engine()
    wrong = []
    faults = json.load(sys.stdin)
    owners = {owner: resolve(owner) for owner, *_ in faults}
    for owner, name, signature, fault in faults:
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.close(reading)
            try:
                found = load(installation, owners, owner, name, signature, fault)
            except BaseException as error:
                found = f"{type(error).__name__}: {error}"
            os.write(writing, (found or "").encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            if found := answer.read():
                wrong.append(f"{owner} {name} {fault}: {found}")
        os.wait()
    print(json.dumps(wrong))


def package_without_engine() -> Any:
    """Imports the package as if it had no engine: it does not check Paddle then."""
    from importlib import import_module, util

    info = types.ModuleType("paddle_ngraph._build_info")
    info.WITH_NGRAPH = False  # type: ignore[attr-defined]
    sys.modules[info.__name__] = info
    import_module("paddle_ngraph")
    installation = import_module("paddle_ngraph.installation")
    spec = util.find_spec("paddle_ngraph")
    assert spec is not None and spec.submodule_search_locations is not None
    assert "paddle_ngraph._core" not in sys.modules
    assert "paddle_ngraph.paddle_private.check" not in sys.modules
    path = os.path.join(spec.submodule_search_locations[0], "_build_info.py")
    real = util.spec_from_file_location(info.__name__, path)
    assert real is not None and real.loader is not None
    real.loader.exec_module(info)
    return installation


def load(
    installation: Any,
    owners: dict[str, Any],
    owner: str,
    name: str,
    signature: str | None,
    fault: str,
) -> str | None:
    """Describes the mistakes in the package's reaction to the fault; ``None``: none."""
    import paddle_ngraph

    installation.why_unavailable.cache_clear()
    place = owners[owner]
    if signature == "attribute":
        rename_in_methods(place, name)
        remove(place, name)
    elif fault == "removed":
        remove(place, name)
    else:
        setattr(place, name, lambda *surprises: None)
    before = contents(owners.values())
    paddle_ngraph.api.warn_unavailable.cache_clear()
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        paddle_ngraph.enable()
    if len(issued) != 1:
        return f"enable() issued {len(issued)} warnings"
    message = str(issued[0].message).removeprefix(BEFORE).removesuffix(AFTER)
    if contents(owners.values()) != before:
        return "something was replaced"
    if "paddle_ngraph._core" in sys.modules:
        return "the core was loaded"
    paddle_ngraph.disable()
    if paddle_ngraph.is_enabled():
        return "it is enabled"
    parts = (f"{owner}.{name} ".replace(":", "."), "`pip install --force-reinstall paddlepaddle==")
    if not all(part in message.replace(";", " ") for part in parts):
        return f"it says: {message}"
    if "\n" in message or ". " in message or not message.endswith("."):
        return f"that is more than a sentence: {message}"
    return None


def resolve(owner: str) -> Any:
    module, _, inside = owner.partition(":")
    found = __import__(module, fromlist=["_"])
    for part in filter(None, inside.split(".")):
        found = getattr(found, part)
    return found


def remove(place: Any, name: str) -> None:
    """Removes a name where it is defined: in the module, or a base class of the owner."""
    kinds = place.__mro__ if isinstance(place, type) else [place]
    for kind in kinds:
        if name in vars(kind) and kind not in (object, threading.local):
            delattr(kind, name)


def rename_in_methods(kind: type, name: str) -> None:
    for each in (member for base in kind.__mro__ for member in vars(base).values()):
        if inspect.isfunction(each):
            function = inspect.unwrap(each)
            names = (f"{n}_renamed" if n == name else n for n in function.__code__.co_names)
            function.__code__ = function.__code__.replace(co_names=tuple(names))


def contents(owners: Iterable[Any]) -> list[dict[str, int]]:
    """The identity of all contents of these modules and classes."""
    return [{name: id(member) for name, member in vars(each).items()} for each in owners]


if __name__ == "__main__":
    main()
