"""Ray, if it is installed."""

from __future__ import annotations

import importlib
from typing import Any

from paddle_ngraph.errors import NgraphError

EXTRA = "paddle-ngraph[ray]"


def ray_module(name: str) -> Any:
    """Imports a module of Ray.

    Raises:
        NgraphError: Ray, or something that the module needs, is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NgraphError(f"{name} cannot be imported ({error}): pip install '{EXTRA}'") from error
