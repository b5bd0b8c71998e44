"""Plots step times over the number of ranks, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from paddle_ngraph.simulation.prediction import Checked, Predicted
from paddle_ngraph.simulation.profile import Profile
from paddle_ngraph.simulation.training import STRATEGIES

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 40, 50
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#000000")
Points = Sequence[tuple[float, float]]


def picture(profile: Profile, known: Sequence[Checked], rows: Sequence[Predicted]) -> str:
    """Returns an SVG figure: measured steps as dots, a curve for each all-reduce strategy."""
    curves: dict[str, Points] = {
        str(strategy): [(row.ranks, row.ms[strategy]) for row in rows] for strategy in STRATEGIES
    }
    if known:
        curves["measured, 1 machine"] = [(row.ranks, row.measured_ms) for row in known]
    return _svg(f"{profile.name}: milliseconds of a step over ranks", curves)


def _svg(title: str, curves: Mapping[str, Points]) -> str:
    points = [point for curve in curves.values() for point in curve]
    low_x, high_x = _decades([x for x, _ in points], 2)
    low_y, high_y = _decades([y for _, y in points], 10)

    def position(x: float, y: float) -> tuple[float, float]:
        right = (math.log(x) - math.log(low_x)) / (math.log(high_x) - math.log(low_x))
        up = (math.log(y) - math.log(low_y)) / (math.log(high_y) - math.log(low_y))
        across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + right * across, _HEIGHT - _BOTTOM - up * down

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, _TOP - 16, title, size=14),
    ]
    for x in _powers(low_x, high_x, 2):
        at = position(x, low_y)
        lines += [_line(at, position(x, high_y)), _text(at[0], at[1] + 18, f"{x:g}", "middle")]
    for y in _powers(low_y, high_y, 10):
        at = position(low_x, y)
        lines += [_line(at, position(high_x, y)), _text(at[0] - 8, at[1] + 4, f"{y:g}", "end")]
    lines.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, "ranks", "middle"))
    for index, (name, curve) in enumerate(curves.items()):
        colour, height = _COLOURS[index % len(_COLOURS)], _TOP + 10 + 20 * index
        placed = [position(*point) for point in curve]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        if index < len(STRATEGIES):
            lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed]
        lines.append(f'<circle cx="{_WIDTH - _RIGHT + 16}" cy="{height}" r="4" fill="{colour}"/>')
        lines.append(_text(_WIDTH - _RIGHT + 26, height + 4, name))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _decades(values: Sequence[float], base: int) -> tuple[float, float]:
    """The nearest powers of ``base`` between which all values lie: (lower, upper)."""
    low = math.floor(math.log(min(values), base) + 1e-9)
    high = math.ceil(math.log(max(values), base) - 1e-9)
    return float(base) ** low, float(base) ** max(high, low + 1)


def _powers(low: float, high: float, base: int) -> list[float]:
    found = [low]
    while found[-1] * base <= high * 1.001:
        found.append(found[-1] * base)
    return found


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        'stroke="#dddddd"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )
