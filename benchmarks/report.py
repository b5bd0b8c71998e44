"""What was measured, as Markdown, JSON and a picture, with what it depends on."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from paddle_ngraph.function import processor

FOLDER = Path(__file__).resolve().parent / "results"
_ACROSS = 3  # panels of a picture side by side
_PACKAGES = ("paddlepaddle", "openvino", "paddle-ngraph", "torch", "numpy")


def environment() -> dict[str, str]:
    """What the numbers depend on: machine, processor, cores, versions."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "vector units": _vector_units(),
        "system": platform.platform(),
        "Python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        if package == "paddle-ngraph":  # beside us, not installed
            from paddle_ngraph.version import __version__

            return __version__
        return "not installed"


def _processor() -> str:
    """Its name, and the numbers of its generation, which virtual machines leave out of the name."""
    name = processor.field("model name") or platform.processor() or "unknown"
    family, model = processor.field("cpu family"), processor.field("model")
    return f"{name} (family {family}, model {model})" if family and model else name


def _vector_units() -> str:
    flags = processor.field("flags").split()
    found = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if name in flags]
    return ", ".join(found) or "unknown"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(
    folder: Path, topic: str, title: str, sections: Sequence[str], data: Mapping[str, Any]
) -> None:
    """Writes ``<topic>.md`` of the sections, and ``<topic>.json`` of the data."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = environment()
    facts = "\n".join(f"- {name}: {value}" for name, value in machine.items())
    page = [f"# {title}", *sections, facts, f"Made by `python -m benchmarks {topic}`."]
    (folder / f"{topic}.md").write_text("\n\n".join(page) + "\n")
    content = json.dumps({"environment": machine, **data}, indent=1)
    (folder / f"{topic}.json").write_text(content + "\n")


def earlier(folder: Path, topic: str) -> dict[str, Any]:
    """The data of an earlier run, if nothing that numbers depend on has changed; else nothing."""
    try:
        data: dict[str, Any] = json.loads((folder / f"{topic}.json").read_text())
    except (OSError, ValueError):
        return {}
    return data if data["environment"] == environment() else {}


def bars(
    path: Path, title: str, label: str, groups: Sequence[str], series: Mapping[str, Sequence[Any]]
) -> None:
    """Writes horizontal bars on a logarithmic axis, ``None`` where a value is missing."""
    figure, axes = _figure(len(groups) * (0.25 + 0.16 * len(series)))
    if axes is None:
        return
    height = 0.85 / len(series)
    for index, (name, values) in enumerate(series.items()):
        places = [group + index * height for group in range(len(groups))]
        numbers = [float("nan") if value is None else value for value in values]
        drawn = axes.barh(places, numbers, height, label=name)
        texts = ["" if value is None else f"{value:.2f}" for value in values]
        axes.bar_label(drawn, texts, fontsize=6, padding=2)
    axes.set_yticks([group + 0.42 - height / 2 for group in range(len(groups))], groups)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set(title=title, xlabel=label, xscale="log")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)


def lines(
    path: Path,
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    label: str,
    scale: str = "log",
) -> None:
    """Writes one panel for each title, with curves by name: their x, their y."""
    columns = min(len(panels), _ACROSS)
    figure, axes = _figure(3.5, columns, -(-len(panels) // columns))
    if axes is None:
        return
    panel_of = list(axes.flat) if len(panels) > 1 else [axes]
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    for panel, (title, curves) in zip(panel_of, panels.items()):
        for name, (x, y) in curves.items():
            panel.plot(x, y, "o-", label=name, markersize=3, color=f"C{names.index(name)}")
        panel.set(title=title, xlabel=label, xscale=scale, yscale=scale)
        if scale == "log":
            _label_plainly(panel, sorted({size for x, _ in curves.values() for size in x}))
        panel.legend(fontsize=7)
    for spare in panel_of[len(panels) :]:
        spare.set_axis_off()
    figure.savefig(path, dpi=120)


def _label_plainly(panel: Any, sizes: Sequence[float]) -> None:
    """Labels the sizes that were measured, and times without powers of ten."""
    from matplotlib.ticker import LogFormatter, NullLocator

    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xticks(sizes, [f"{size:g}" for size in sizes])
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))


def _figure(height: float, columns: int = 1, rows: int = 1) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed", file=sys.stderr)
        return None, None
    width = 9.0 if columns == 1 else 5.0 * columns
    figure = Figure(figsize=(width, rows * (1.5 + height)), layout="constrained")
    return figure, figure.subplots(rows, columns)
