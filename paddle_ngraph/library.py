"""Loads the compiled core as a library of custom operators into Paddle."""

from __future__ import annotations

from pathlib import Path

from paddle_ngraph import installation
from paddle_ngraph.utils.once import once


@once
def load() -> None:
    """Loads the core into Paddle, once per process: operators, flags, and patches.

    Most patches are only registered: the first use of the engine installs them.
    """
    installation.require()
    from paddle.utils import cpp_extension

    from paddle_ngraph import _core, flags
    from paddle_ngraph.frontends import gradient_creation
    from paddle_ngraph.frontends.executor import weight_writes
    from paddle_ngraph.frontends.predictor import first_config
    from paddle_ngraph.frontends.saved_models import opening
    from paddle_ngraph.utils import first_use

    cpp_extension.load_op_meta_info_and_register_op(str(Path(_core.__file__)))
    first_use.register(_install_patches)
    flags.install()
    weight_writes.install_at_import()
    first_config.install_at_import()
    opening.install()
    gradient_creation.install()
    flags.read_environment()


def _install_patches() -> None:
    """Installs the patches of the first use.

    Their modules, with the program pass, the converters and the Python package of OpenVINO, take
    longer to import than the rest of the package, so ``import paddle_ngraph`` does without them.
    """
    from paddle_ngraph.frontends.executor import hook as executor_hook
    from paddle_ngraph.frontends.executor import program_key, weight_writes
    from paddle_ngraph.frontends.predictor import hook as predictor_hook
    from paddle_ngraph.frontends.to_static import gradients
    from paddle_ngraph.frontends.to_static import hook as to_static_hook
    from paddle_ngraph.paddle_private import block_values

    block_values.install()
    weight_writes.install()
    executor_hook.install()
    program_key.install()
    predictor_hook.install()
    predictor_hook.install_pool()
    gradients.install()
    to_static_hook.install()
