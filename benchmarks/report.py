"""Reports of measurements as Markdown, JSON and plots, with their environment."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from paddle_ngraph.conversion import processor

FOLDER = Path(__file__).resolve().parent / "results"
_ACROSS = 3  # panels per row of a plot
_PACKAGES = ("paddlepaddle", "openvino", "paddle-ngraph", "torch", "numpy")
_UNITS = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
_ZEN = {"23": "2", "25": "3", "26": "5"}  # by family


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the folder of the results."""
    parser.add_argument(
        "--output",
        type=Path,
        default=FOLDER,
        metavar="DIR",
        help="where the results go (default: benchmarks/results)",
    )


def environment() -> dict[str, str]:
    """Returns the environment of the measurements: machine, processor, cores, versions."""
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
        if package == "paddle-ngraph":  # in the source tree, not installed
            from paddle_ngraph.version import __version__

            return __version__
        return "not installed"


def _processor() -> str:
    """Returns the processor's name, family and model, which virtual machines omit from the name."""
    name = processor.field("model name") or platform.processor() or "unknown"
    family, model = processor.field("cpu family"), processor.field("model")
    return f"{name} (family {family}, model {model})" if family and model else name


def _vector_units() -> str:
    flags = processor.field("flags").split()
    found = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if name in flags]
    return ", ".join(found) or "unknown"


def short_name(machine: Mapping[str, str]) -> str:
    """Returns a short name of the processor of an :func:`environment`.

    The name is a generation of AMD, or a line of Intel with its widest vector units. Results of
    processors with one name replace each other.
    """
    name, units = machine["processor"], machine["vector units"]
    widest = next((title for unit, title in _UNITS.items() if unit in units), "")
    family = re.search(r"\(family (\d+)", name)
    if name.startswith("AMD") and family:
        zen = "4" if family[1] == "25" and "avx512f" in units else _ZEN.get(family[1])
        return f"Zen {zen}" if zen else f"AMD {family[1]} {widest}".strip()
    if name.startswith("Intel"):
        return f"{'Xeon' if 'Xeon' in name else 'Core'} {widest}".strip()
    return f"{name.partition(' (')[0]} {widest}".strip()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown, with right-aligned numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def column(
    header: Sequence[str], rows: Sequence[Sequence[str]], *names: str
) -> dict[str, dict[str, str]]:
    """Merges columns of a table into one, to compare processors."""
    places = [header.index(name) for name in names]
    return {", ".join(names): {row[0]: ", ".join(row[place] for place in places) for row in rows}}


def write(
    folder: Path,
    topic: str,
    title: str,
    sections: Sequence[str],
    data: Mapping[str, Any],
    beside: Mapping[str, Mapping[str, str]] | None = None,
    command: str = "",
) -> None:
    """Writes ``<topic>_<processor>.json``, and ``<topic>.md`` of all processors that have one.

    Args:
        folder: The output folder.
        topic: The name of the files.
        title: The title of the page.
        sections: Markdown; the first one explains the measurement.
        data: The measurements.
        beside: Tables with a column for each processor: their titles, and cells by row.
        command: The command of the measurement, if not the topic of ``python -m benchmarks``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    machine = environment()
    content = {
        "topic": topic,
        "processor": short_name(machine),
        "date": datetime.date.today().isoformat(),
        "environment": machine,
        "page": {
            "title": title,
            "sections": sections,
            "beside": beside or {},
            "command": command or f"python -m benchmarks {topic}",
        },
        **data,
    }
    _path(folder, topic, "json").write_text(json.dumps(content, indent=1) + "\n")
    render(folder, topic)


def earlier(folder: Path, topic: str) -> dict[str, Any]:
    """Returns the data of an earlier run in an equal environment, or an empty dictionary."""
    try:
        data: dict[str, Any] = json.loads(_path(folder, topic, "json").read_text())
    except (OSError, ValueError):
        return {}
    return data if data["environment"] == environment() else {}


def picture(folder: Path, topic: str) -> Path:
    """Returns the path of this processor's plot, which pages show if it exists."""
    folder.mkdir(parents=True, exist_ok=True)
    return _path(folder, topic, "png")


def _path(folder: Path, topic: str, ending: str) -> Path:
    return folder / f"{topic}_{_slug(short_name(environment()))}.{ending}"


def _slug(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def render(folder: Path, topic: str) -> None:
    """Writes ``<topic>.md`` from the results of all processors."""
    found = {}
    for path in sorted(folder.glob(f"{topic}_*.json")):
        data = json.loads(path.read_text())
        if data.get("topic") == topic:  # names of other topics may begin with this one
            found[data["processor"]] = data
    pages = {name: data["page"] for name, data in found.items()}
    about = {page["sections"][0] for page in pages.values()}
    newest = max(found.values(), key=lambda data: data["date"])["page"]
    lines = [f"# {newest['title']}", *(about if len(about) == 1 else [])]
    if len(pages) > 1 or len(newest["sections"]) == 1:
        lines += _beside(pages)
    for name, data in found.items():
        sections = data["page"]["sections"][len(about) == 1 :]
        lines += [f"## {name}", *(re.sub("^##", "###", text) for text in sections)]
        plot = f"{topic}_{_slug(name)}.png"
        if (folder / plot).exists():
            lines.append(f"![{newest['title']}, {name}]({plot})")
        facts = {**data["environment"], "date": data["date"]}
        lines.append("\n".join(f"- {fact}: {value}" for fact, value in facts.items()))
    lines.append(f"Made by `{newest['command']}`.")
    (folder / f"{topic}.md").write_text("\n\n".join(lines) + "\n")


def _beside(pages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the tables with a column for each processor."""
    tables = []
    for title in dict.fromkeys(title for page in pages.values() for title in page["beside"]):
        columns = {name: page["beside"].get(title, {}) for name, page in pages.items()}
        keys = dict.fromkeys(key for cells in columns.values() for key in cells)
        rows = [[key, *(cells.get(key, "") for cells in columns.values())] for key in keys]
        tables.append(table([title, *columns], rows))
    return ["## Side by side", *tables] if tables else []


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
        plotted = axes.barh(places, numbers, height, label=name)
        texts = ["" if value is None else f"{value:.2f}" for value in values]
        axes.bar_label(plotted, texts, fontsize=6, padding=2)
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
    """Plots a panel for each title, with curves by name: their x, their y."""
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
    """Labels the measured sizes, and times without powers of ten."""
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
