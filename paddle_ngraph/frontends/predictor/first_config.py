"""The first configuration of a process, which installs the hook of predictors.

Without a configuration there is no predictor, so ``import paddle_ngraph`` patches only its class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import INFERENCE_CLASSES
from paddle_ngraph.paddle_private.protocols import Config


def install_at_import() -> None:
    """Patches the creation of configurations; if there is one, installs the hook itself."""
    replaced.CREATE_CONFIG.replace(_installing_hook)
    if any(map(_core.live_objects, INFERENCE_CLASSES)):
        from paddle_ngraph.frontends.predictor import hook

        hook.install()


def _installing_hook(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Config, *args: Any) -> None:
        from paddle_ngraph.frontends.predictor import configuration, hook

        hook.install()
        configuration.init_config(self, *args)

    return __init__
