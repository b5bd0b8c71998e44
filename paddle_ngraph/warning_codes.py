"""Warnings: their codes, and the one function that issues them.

A warning goes through ``warnings`` as :class:`NgraphWarning`, and to the handlers of the logger
``paddle_ngraph``, which has none unless the application adds one.
"""

from __future__ import annotations

import logging
import warnings
from enum import Enum


class WarningCode(Enum):
    """A condition that the package warns of; docs/reference/warnings.md is written from this table.

    Attributes:
        code: Appears in brackets at the end of the message, and stays the same in later releases.
        meaning: The condition, and its effect.
        remedy: The reaction that makes the warning go away.
    """

    UNAVAILABLE = (
        "NG101",
        "The engine is unavailable; the message has the reason. Paddle runs all programs.",
        "Follow the message.",
    )
    UNCHECKED = (
        "NG102",
        "`PADDLE_NGRAPH_UNCHECKED=1` loads the core into a Paddle that lacks private names, for "
        "[porting](../development/porting.md). Results may be wrong.",
        "Unset the variable.",
    )
    MOVED = (
        "NG103",
        "A module is used by the name of an earlier release. A `DeprecationWarning`.",
        "Import the name in the message.",
    )
    NO_CORE = (
        "NG104",
        "The package was installed without a core, which exists for Linux with glibc 2.28 or later "
        "on x86-64 and CPython 3.9 to 3.13. Paddle runs all programs.",
        "Run the program on such a machine; [porting](../development/porting.md#other-machines) "
        "has the needs of another one.",
    )
    UNTESTED_PADDLE = (
        "NG105",
        "The installed Paddle is another patch release than the one that the core was compiled "
        "against and tested with. It has all private names that the engine needs, so the engine "
        "runs.",
        "Install the release in the message, or compare results once: "
        "[debugging](../operations/debugging.md).",
    )
    DENIED = (
        "NG201",
        "A subgraph failed in OpenVINO, so Paddle runs it from now on. Results are right.",
        "Report the operator; `paddle_ngraph.clear_cache()` gives the subgraph another attempt.",
    )
    NO_BFLOAT16 = (
        "NG202",
        "`FLAGS_ngraph_precision=bf16` has no effect on a processor without units for bfloat16.",
        "Remove the flag on this machine.",
    )
    PREDICTOR_FAILED = (
        "NG203",
        "The engine failed in a predictor, which Paddle runs from now on. Results are right.",
        "Report the message.",
    )
    WRONG_RESULT = (
        "NG204",
        "`FLAGS_ngraph_verify` has found a result of the engine that rounding does not explain; "
        "the message names the operator.",
        "Save a reproducer, and report it: [debugging](../operations/debugging.md).",
    )
    FORKED = (
        "NG205",
        "Paddle runs all subgraphs in this process, which was forked: while another thread built, "
        "loaded, ran or destroyed a function, so that OpenVINO's locks may be held forever; or "
        "after a function had been destroyed that could use several threads, of which OpenVINO "
        "waits for one forever when it next compiles or loads a function. In the second case the "
        "functions that existed at the fork run by the engine until then. Results are right.",
        "Fork before the first run, or start processes by spawn.",
    )
    MODEL_CHANGED = (
        "NG301",
        "The files of a model have changed since its predictor was created, which can be neither "
        "switched nor cloned.",
        "Create another predictor.",
    )
    NOT_REACHED = (
        "NG302",
        "`save_inference_model` and `save --shapes` compile functions in a run on zeros, which did "
        "not reach all subgraphs: the others are compiled by the process that uses the model.",
        "Pass arrays in `input_shapes`.",
    )
    CHECKPOINT_KEPT = (
        "NG303",
        "An old checkpoint cannot be deleted. The training continues.",
        "Delete it; check permissions and space of the folder.",
    )
    CHECKPOINT_DAMAGED = (
        "NG304",
        "A checkpoint is damaged: it is renamed, and the job continues from an earlier one.",
        "Check the disk.",
    )

    def __init__(self, code: str, meaning: str, remedy: str) -> None:
        self.code = code
        self.meaning = meaning
        self.remedy = remedy


class NgraphWarning(UserWarning):
    """A warning of paddle-ngraph: one sentence, with its code in brackets at the end."""


def warn(
    code: WarningCode,
    message: str,
    stacklevel: int = 2,
    category: type[Warning] = NgraphWarning,
) -> None:
    """Issues a warning; ``stacklevel`` as in ``warnings.warn``: 2 is the caller of the caller.

    Raises:
        Warning: A filter of the user makes the warning an error.
    """
    text = f"{message} [{code.code}]"
    LOGGER.warning("%s", text)
    warnings.warn(text, category, stacklevel=stacklevel + 1)


LOGGER = logging.getLogger("paddle_ngraph")
LOGGER.addHandler(logging.NullHandler())
# Paddle adds a handler to the root logger, which would print each warning a second time.
LOGGER.propagate = False
