"""The chart of `benchmarks.compaction_offload`: cores in use over time, drawn by hand as an SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

WIDTH: Final = 860
HEIGHT: Final = 340
LEFT: Final = 60
BOTTOM: Final = 56
TOP: Final = 16
CORES: Final = 2.0
"""The upper end of the scale."""
COLOURS: Final = ("#c0392b", "#7f8c8d", "#2471a3")
SMOOTH_S: Final = 4.0

Samples = Sequence[tuple[float, Mapping[str, float]]]
"""Seconds since the beginning, and the CPU seconds of each process tree until then."""
Curve = Sequence[tuple[float, float]]
"""Seconds since the beginning, and cores in use."""


def rates(samples: Samples, names: Sequence[str]) -> Curve:
    """Return the cores that some process trees use together, as means of some seconds."""
    points, first = [], 0
    totals = [(at, sum(now.get(name, 0.0) for name in names)) for at, now in samples]
    for at, total in totals:
        while at - totals[first][0] > SMOOTH_S:
            first += 1
        passed_s = at - totals[first][0]
        if passed_s > 0:
            points.append((at, (total - totals[first][1]) / passed_s))
    return points


def chart(curves: Mapping[str, Curve]) -> str:
    """Draw the curves in one chart, with a legend below."""
    end = max((at for points in curves.values() for at, _ in points), default=1.0)
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_grid(),
        f'<text x="{WIDTH - 60}" y="{HEIGHT - BOTTOM + 16}">{end:.0f} s</text>',
    ]
    for number, (name, points) in enumerate(curves.items()):
        line = " ".join(f"{_x(at, end):.1f},{_y(cores):.1f}" for at, cores in points)
        colour, left = COLOURS[number], LEFT + number * 260
        parts += [
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>',
            f'<text x="{left}" y="{HEIGHT - 14}" fill="{colour}">{name}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def _grid() -> list[str]:
    parts = []
    for cores in (0.0, 0.5, 1.0, 1.5, 2.0):
        y = _y(cores)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 10}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{y + 4:.1f}">{cores:g} cores</text>')
    return parts


def _x(at: float, end: float) -> float:
    return LEFT + at / end * (WIDTH - LEFT - 10)


def _y(cores: float) -> float:
    return HEIGHT - BOTTOM - min(cores, CORES) / CORES * (HEIGHT - BOTTOM - TOP)
