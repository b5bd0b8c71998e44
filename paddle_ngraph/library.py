"""Loads the compiled core as a library of custom operators into Paddle."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

from paddle_ngraph import installation
from paddle_ngraph.utils.once import once


@once
def load() -> None:
    """Loads the core into Paddle, once per process: operators, flags, and patches.

    Most patches are only registered: the first use of the engine installs them.
    """
    installation.require()
    _preload_openvino()
    from paddle.utils import cpp_extension

    from paddle_ngraph import _core, flags
    from paddle_ngraph.frontends.executor import hook as executor_hook
    from paddle_ngraph.frontends.executor import program_key, weight_writes
    from paddle_ngraph.frontends.predictor import hook as predictor_hook
    from paddle_ngraph.frontends.saved_models import saved_model
    from paddle_ngraph.frontends.to_static import gradients
    from paddle_ngraph.frontends.to_static import hook as to_static_hook
    from paddle_ngraph.paddle_private import block_values
    from paddle_ngraph.utils import first_use

    cpp_extension.load_op_meta_info_and_register_op(str(Path(_core.__file__)))
    first_use.register(
        block_values.install,
        weight_writes.install,
        executor_hook.install,
        program_key.install,
        predictor_hook.install,
        predictor_hook.install_pool,
        gradients.install,
        to_static_hook.install,
    )
    flags.install()
    weight_writes.install_at_import()
    predictor_hook.install_at_import()
    saved_model.install()
    flags.read_environment()


def _preload_openvino() -> None:
    # libpaddle.so exports symbols of the older OpenVINO that it was built with. If libopenvino.so
    # is loaded alone, before the core, which links both, it binds only to its own symbols.
    spec = find_spec("openvino")
    assert spec is not None and spec.origin is not None
    for library in sorted((Path(spec.origin).parent / "libs").glob("libopenvino.so.*")):
        ctypes.CDLL(str(library))
