"""From the map of the detection network to rectangles around lines of text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
THRESHOLD = 0.3
SMALLEST_SCORE = 0.6
SMALLEST_SIDE = 3.0
GROWTH = 1.6
"""The network marks the core of a line; the line is larger by area * GROWTH / circumference."""


def find_boxes(probability: NDArray[np.float32]) -> list[Points]:
    """Rectangles around the lines of text, in reading order.

    Args:
        probability: For each pixel [height, width], that it is text.

    Returns:
        The corners of each, float64 [4, 2], as (x, y): where the text begins above, where it ends
        above, where it ends below, where it begins below.
    """
    found = []
    for rows, starts, ends in connected_runs(probability > THRESHOLD):
        scores = [probability[y, a:b] for y, a, b in zip(rows, starts, ends)]
        if np.concatenate(scores).mean() < SMALLEST_SCORE:
            continue
        edges = np.concatenate([np.stack([starts, rows], 1), np.stack([ends - 1, rows], 1)])
        corners = smallest_rectangle(edges.astype("float64"))
        if min(_sides(corners)) >= SMALLEST_SIDE:
            found.append(_in_text_order(_grown(corners)))
    return _in_reading_order(found)


def connected_runs(mask: NDArray[np.bool_]) -> list[tuple[NDArray[Any], ...]]:
    """The connected areas of a mask, each as its runs: rows, first columns, columns after the last.

    Pixels that touch at a corner are connected.
    """
    padded = np.pad(mask, ((0, 0), (1, 1))).astype("int8")
    changes = np.diff(padded, axis=1)
    rows, starts = np.nonzero(changes == 1)
    ends = np.nonzero(changes == -1)[1]
    parent = list(range(len(rows)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    above = 0
    for run, row in enumerate(rows):
        while rows[above] < row - 1 or (rows[above] == row - 1 and ends[above] < starts[run]):
            above += 1
        other = above
        while rows[other] == row - 1 and starts[other] <= ends[run]:
            parent[root(other)] = root(run)
            other += 1
    roots = np.array([root(run) for run in range(len(rows))], "int64")
    areas = [np.nonzero(roots == area)[0] for area in np.unique(roots)]
    return [(rows[runs], starts[runs], ends[runs]) for runs in areas]


def smallest_rectangle(points: Points) -> Points:
    """The corners, in order around it, of the smallest rectangle around ``points`` [n, 2].

    One of its sides lies along a side of the convex hull.
    """
    hull = _convex_hull(points)
    sides = np.roll(hull, -1, axis=0) - hull
    best: tuple[float, Points] = (np.inf, hull)
    for angle in np.unique(np.arctan2(sides[:, 1], sides[:, 0]) % (np.pi / 2)):
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        low, high = (hull @ rotation).min(axis=0), (hull @ rotation).max(axis=0)
        area = float(np.prod(high - low))
        if area < best[0]:
            corners = np.array([low, [high[0], low[1]], high, [low[0], high[1]]])
            best = (area, corners @ rotation.T)
    return best[1]


def _convex_hull(points: Points) -> Points:
    """Counterclockwise (Andrew's monotone chain)."""
    ordered = sorted(map(tuple, np.unique(points, axis=0).tolist()))

    def half(sequence: list[Any]) -> list[Any]:
        chain: list[Any] = []
        for x, y in sequence:
            while len(chain) > 1:
                (x0, y0), (x1, y1) = chain[-2:]
                if (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) > 0:
                    break
                chain.pop()
            chain.append((x, y))
        return chain[:-1]

    return np.array(half(ordered) + half(ordered[::-1]) or ordered)


def _sides(corners: Points) -> tuple[float, float]:
    """Lengths of the first two sides."""
    if len(corners) < 4:
        return 0.0, 0.0
    first, second = np.linalg.norm(np.diff(corners[:3], axis=0), axis=1)
    return float(first), float(second)


def _grown(corners: Points) -> Points:
    width, height = _sides(corners)
    distance = width * height * GROWTH / (2 * (width + height))
    along, across = (corners[1] - corners[0]) / width, (corners[2] - corners[1]) / height
    outward = np.array([-along - across, along - across, along + across, across - along])
    return np.asarray(corners + distance * outward)


def _in_text_order(corners: Points) -> Points:
    """Rolled so that the text begins at the first corner, and rises or falls less than 45 degrees.

    What is much higher than wide is text from below to above.
    """
    first = int(np.argmin(corners.sum(axis=1)))
    corners = np.roll(corners, -first, axis=0)
    if (
        np.cross(np.append(corners[1] - corners[0], 0), np.append(corners[2] - corners[1], 0))[2]
        < 0
    ):
        corners = corners[[0, 3, 2, 1]]
    width, height = _sides(corners)
    return np.roll(corners, 1, axis=0) if height > 1.5 * width else corners


def _in_reading_order(boxes: list[Points]) -> list[Points]:
    """From above to below, and within a line from left to right."""
    lines: list[list[Points]] = []
    for box in sorted(boxes, key=lambda corners: float(corners[:, 1].mean())):
        middle = box[:, 1].mean()
        if lines and abs(middle - lines[-1][-1][:, 1].mean()) < _sides(box)[1] / 2:
            lines[-1].append(box)
        else:
            lines.append([box])
    return [box for line in lines for box in sorted(line, key=lambda corners: corners[0, 0])]
