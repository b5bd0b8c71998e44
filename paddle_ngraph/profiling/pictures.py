"""Pictures of profiles, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from paddle_ngraph.errors import printable
from paddle_ngraph.profiling.node_times import Peak

_COLOURS = {"engine": "#2f6fd0", "native": "#c96a12"}
_WIDTH, _HEIGHT = 900, 560
# The margins of a chart: left, right, top, bottom.
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 30, 60, 60
_NAMED_POINTS = 12


@dataclass(frozen=True)
class Point:
    """A node of a roofline chart.

    Attributes:
        name: The operators, and where they are.
        ns: The time of all runs.
        flops_per_ns, bytes_per_ns: The speeds.
    """

    name: str
    ns: float
    flops_per_ns: float
    bytes_per_ns: float

    @property
    def intensity(self) -> float:
        """The floating-point operations for each byte."""
        return self.flops_per_ns / self.bytes_per_ns


def in_ms(ns: float) -> str:
    """A duration in words."""
    return f"{ns / 1e6:.3f} ms"


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Returns a picture of durations.

    Args:
        title: The heading.
        rows: Name, nanoseconds, and ``engine`` or ``native`` for each bar.
    """
    longest = max((ns for _, ns, _ in rows), default=1.0) or 1.0
    lines = list(_frame(title, 60 + 22 * len(rows)))
    for row, (name, ns, kind) in enumerate(rows):
        y, width = 48 + 22 * row, 480 * ns / longest
        lines += [
            _label(330, y + 12, name[:50], "end"),
            f'<rect x="340" y="{y}" width="{width:.1f}" height="16" fill="{_COLOURS[kind]}"/>',
            _label(346 + width, y + 12, in_ms(ns)),
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def roofline(title: str, points: Sequence[Point], peak: Peak) -> str:
    """Returns a roofline chart: speed over operations for each byte, beside the peak.

    Williams, Waterman, Patterson: Roofline: an insightful visual performance model for multicore
    architectures (2009). Both axes are logarithmic; the area of a node is its time.

    Args:
        title: The heading.
        points: The nodes.
        peak: The measured peak of the machine.
    """
    shown = sorted(
        (each for each in points if each.flops_per_ns > 0 and each.bytes_per_ns > 0),
        key=lambda point: -point.ns,
    )
    ridge = peak.flops_per_ns / peak.bytes_per_ns
    x = _axis([each.intensity for each in shown] + [ridge / 8, ridge * 8], _LEFT, _WIDTH - _RIGHT)
    speeds = [each.flops_per_ns for each in shown]
    y = _axis([*speeds, peak.flops_per_ns, peak.flops_per_ns / 64], _HEIGHT - _BOTTOM, _TOP)
    lines = list(_frame(title, _HEIGHT))
    lines += _ticks(x, y)
    roof = [(x.least, x.least * peak.bytes_per_ns), (ridge, peak.flops_per_ns)]
    roof.append((x.most, peak.flops_per_ns))
    path = " ".join(f"{x.at(a):.1f},{y.at(max(b, y.least)):.1f}" for a, b in _clipped(roof, y))
    lines.append(f'<polyline points="{path}" fill="none" stroke="#333" stroke-width="2"/>')
    beside, above = x.at(ridge) - 8, y.at(peak.flops_per_ns)
    lines += [
        _label(beside, above - 22, f"{peak.flops_per_ns:.1f} GFLOP/s", "end"),
        _label(beside, above - 6, f"{peak.bytes_per_ns:.1f} GB/s", "end"),
    ]
    total = sum(each.ns for each in shown) or 1.0
    for number, each in enumerate(shown):
        radius = 3 + 24 * math.sqrt(each.ns / total)
        at = f'cx="{x.at(each.intensity):.1f}" cy="{y.at(each.flops_per_ns):.1f}"'
        words = (
            f"{each.name}: {in_ms(each.ns)}, {each.flops_per_ns:.1f} GFLOP/s, "
            f"{each.bytes_per_ns:.1f} GB/s"
        )
        lines.append(
            f'<circle {at} r="{radius:.1f}" fill="{_COLOURS["engine"]}" fill-opacity="0.45" '
            f'stroke="{_COLOURS["engine"]}"><title>{_text(words)}</title></circle>'
        )
        if number < _NAMED_POINTS:
            place = x.at(each.intensity), y.at(each.flops_per_ns) + 4
            lines.append(_label(*place, str(number + 1), "middle"))
    for number, each in enumerate(shown[:_NAMED_POINTS]):
        name = f"{number + 1}: {each.name[:44]}  {each.ns / total:.0%}"
        lines.append(_label(_WIDTH - _RIGHT - 6, 250 + 19 * number, name, "end", 11))
    return "\n".join([*lines, "</svg>"]) + "\n"


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis from ``least`` to ``most``, at the pixels ``first`` to ``last``."""

    least: float
    most: float
    first: float
    last: float

    def at(self, value: float) -> float:
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return self.first + share * (self.last - self.first)


def _axis(values: Sequence[float], first: float, last: float) -> _Axis:
    """An axis of whole powers of ten around the values."""
    least = 10.0 ** math.floor(math.log10(min(values)))
    most = 10.0 ** math.ceil(math.log10(max(values) * 1.05))
    return _Axis(least, max(most, 10 * least), first, last)


def _clipped(roof: Sequence[tuple[float, float]], y: _Axis) -> Iterator[tuple[float, float]]:
    """The roof from where it enters the chart."""
    (x1, y1), (x2, y2), *rest = roof
    yield (x1, y1) if y1 >= y.least else (x2 * y.least / y2, y.least)
    yield x2, y2
    yield from rest


def _ticks(x: _Axis, y: _Axis) -> Iterator[str]:
    for axis, is_x in ((x, True), (y, False)):
        value = axis.least
        while value <= axis.most * 1.001:
            at = axis.at(value)
            if is_x:
                yield f'<path d="M{at:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#ddd"/>'
                yield _label(at, _HEIGHT - _BOTTOM + 18, f"{value:g}", "middle")
            else:
                yield f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
                yield _label(_LEFT - 8, at + 4, f"{value:g}", "end")
            value *= 10
    yield _label((_LEFT + _WIDTH) / 2, _HEIGHT - 16, "floating-point operations per byte", "middle")
    yield (
        f'<text transform="translate(22 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        "GFLOP/s</text>"
    )


def _frame(title: str, height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{_WIDTH}" height="{height}" fill="white"/>'
    yield f'<text x="20" y="28" font-size="15">{_text(title)}</text>'


def _label(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{_text(text)}</text>"
    )


def _text(text: str) -> str:
    return escape(printable(text))
