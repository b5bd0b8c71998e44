"""Releases of Paddle: the lines that the package supports, and their differences.

A line is a minor release with its patch releases, such as 3.3.x. A core is compiled for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, metadata
from types import MappingProxyType
from typing import NamedTuple


class Line(NamedTuple):
    """A line of Paddle's releases. The defaults are those of the newest line.

    Attributes:
        number: The number of the minor release.
        tested: The release that the core is compiled against, and tested with.
        traces: The module with the parameters of the functions that Paddle traces.
        dlpack: The methods of ``DenseTensor`` that share its memory as DLPack, and their
            signatures.
        centred: Interpolations that read the input's centre for an output of one element, if they
            go by centres at all; others read its corner.
        wide_linspace: Whether ``linspace`` computes in float64, and rounds in the end.
        short_indices: Whether ``take_along_axis`` is right where ``indices`` are smaller than
            ``arr`` along another axis.
        fused_rms_norm: The operator that adds a residual and a bias, and normalizes the sum.
    """

    number: str
    tested: str
    traces: str = "paddle.jit.dy2static.parameter_recorder"
    dlpack: Mapping[str, str] = MappingProxyType(
        {
            "_to_dlpack": "(self, dl_device=..., copy=...) -> capsule",
            "_to_dlpack_versioned": "(self, dl_device=..., copy=...) -> capsule",
        }
    )
    centred: tuple[str, ...] = (
        "pd_op.linear_interp",
        "pd_op.trilinear_interp",
        "pd_op.trilinear_interp_grad",
    )
    wide_linspace: bool = False
    short_indices: bool = True
    fused_rms_norm: str = "pd_op.fused_rms_norm_quant"


# The newest comes first: a release of no line is checked by its data (docs/porting.md).
LINES = (
    Line(number="3.3", tested="3.3.1"),
    Line(
        number="3.2",
        tested="3.2.2",
        traces="paddle.jit.pir_dy2static.parameter_recorder",
        dlpack=MappingProxyType({"_to_dlpack": "(self) -> capsule"}),
        centred=(),
        wide_linspace=True,
        short_indices=False,
        fused_rms_norm="pd_op.rms_norm",
    ),
)


def installed() -> str | None:
    """The release of the installed Paddle; ``None`` if there is none."""
    for name in ("paddlepaddle", "paddlepaddle-gpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return version_in("paddle.version", "full_version")


def version_in(module: str, name: str) -> str | None:
    """The version that a package names itself: frozen applications have no metadata."""
    try:
        return str(getattr(import_module(module), name)).partition("-")[0]
    except (ImportError, OSError, AttributeError):
        return None


def number_of(release: str) -> str:
    """The number of the line that a release belongs to: ``3.3`` for ``3.3.1``."""
    return ".".join(release.split(".")[:2])


def line_of(release: str | None) -> Line:
    """The line of a release."""
    number = number_of(release or "")
    return next((line for line in LINES if line.number == number), LINES[0])


# The line of the installed Paddle.
CURRENT = line_of(installed())
