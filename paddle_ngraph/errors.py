"""The one error type of the package."""

from __future__ import annotations


class NgraphError(RuntimeError):
    """What paddle-ngraph cannot do, in one sentence that names the thing and the way out."""
