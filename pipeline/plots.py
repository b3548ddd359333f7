"""Plots as SVG: drawn once when a job has its result, shown by the console as images and put into reports as they are.

Colours and lines stand as attributes, so that no page's content policy takes them away; they are of middle lightness, for
light and dark pages alike. Nothing in a plot can run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

LEFT, RIGHT, TOP, BOTTOM = 70, 16, 30, 34
COLOURS: Final = ("#3b82c4", "#d9822b", "#3f9e6d", "#b65fb0", "#c94f4f", "#8a8f3c", "#4aa3a3", "#8d7ad1")
GREY: Final = "#8a8f98"
MOST_BARS: Final = 40

UNTOLD: Final = "(not told)"
"""A line whose value of `by` is empty."""

Floats = npt.NDArray[np.float64]


class Paper(NamedTuple):
    """What a plot is drawn on: its size, and how many moments stand below it."""

    width: int
    height: int
    moments: int
    points: int
    """Of one line: more are thinned to the extremes of as many stretches."""


WIDE: Final = Paper(760, 240, 5, 2_000)
NARROW: Final = Paper(380, 260, 3, 400)
"""For a telephone: letters keep their size, and there is less beside each other."""


@dataclass(frozen=True, slots=True)
class Plot:
    """How a table is drawn. `x` is a time, a number, or with bars a text; `by` makes a line of each of its values."""

    title: str
    x: str
    y: tuple[str, ...]
    kind: Literal["lines", "bars"] = "lines"
    by: str = ""
    unit: str = ""


def draw(plot: Plot, table: pa.Table, paper: Paper = WIDE) -> str:
    """The plot as an SVG document."""
    body = _bars(plot, table, paper) if plot.kind == "bars" else _lines(plot, table, paper)
    title = escape(plot.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {paper.width} {paper.height}" role="img" aria-label="{escape(plot.title, {chr(34): "&quot;"})}"'
        f' font-family="sans-serif" font-size="11" fill="{GREY}"><title>{title}</title>'
        f'<text x="{LEFT}" y="16" font-size="13">{title}{f" ({escape(plot.unit)})" if plot.unit else ""}</text>{body}</svg>\n'
    )


def _lines(plot: Plot, table: pa.Table, paper: Paper) -> str:
    width, height = paper.width, paper.height
    series = list(_series(plot, table))[: len(COLOURS)]
    if not series:
        return _nothing(paper)
    low, high = min(xs.min() for _, xs, _ in series), max(xs.max() for _, xs, _ in series)
    top = max([float(ys.max()) for _, _, ys in series] + [0.0]) or 1.0
    bottom = min([float(ys.min()) for _, _, ys in series] + [0.0])
    across, up = _scale(low, high, LEFT, width - RIGHT), _scale(bottom, top, height - BOTTOM, TOP)
    timed = pa.types.is_timestamp(table.schema.field(plot.x).type)
    made = [_grid(bottom, top, up, paper)]
    for at in np.linspace(low, high, paper.moments) if high > low else [low]:
        said = _moment(at, high - low) if timed else _short(float(at))
        made.append(_text(across(float(at)), height - 14, said, "end" if at == high > low else "middle"))
    for number, (name, xs, ys) in enumerate(series):
        colour = COLOURS[number]
        points = [
            (across(float(x)), up(float(y))) for x, y in zip(*_thinned(xs, ys, paper.points), strict=True)
        ]
        if len(points) == 1:
            made.append(f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3" fill="{colour}"/>')
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        made.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(series) > 1:
            made.append(
                f'<text x="{width - RIGHT}" y="{TOP + 4 + 14 * number}" text-anchor="end" fill="{colour}">{escape(name[:40])}</text>'
            )
    return "".join(made)


def _bars(plot: Plot, table: pa.Table, paper: Paper) -> str:
    width, height = paper.width, paper.height
    table = table.slice(0, MOST_BARS)
    values = [[float(value or 0) for value in table.column(name).to_pylist()] for name in plot.y]
    if table.num_rows == 0:
        return _nothing(paper)
    top = max(max(one) for one in values) or 1.0
    up = _scale(0.0, top, height - BOTTOM, TOP)
    room = (width - LEFT - RIGHT) / table.num_rows
    wide = room * 0.8 / len(plot.y)
    made = [_grid(0.0, top, up, paper)]
    every = -(-80 // max(int(room), 1))
    for place, label in enumerate(table.column(plot.x).to_pylist()):
        x = LEFT + room * place
        for number, one in enumerate(values):
            y = up(one[place])
            made.append(
                f'<rect x="{x + room * 0.1 + wide * number:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{height - BOTTOM - y:.1f}"'
                f' fill="{COLOURS[number]}"><title>{escape(f"{label}: {_short(one[place])}")}</title></rect>'
            )
        if place % every == 0:
            made.append(_text(x + room / 2, height - 14, _label(label), "middle"))
    return "".join(made)


def _series(plot: Plot, table: pa.Table) -> Sequence[tuple[str, Floats, Floats]]:
    found: list[tuple[str, Floats, Floats]] = []
    names = [""] if not plot.by else [str(one) for one in table.column(plot.by).unique().to_pylist()]
    for name in names[: len(COLOURS)]:
        part = table if not plot.by else table.filter(pc.equal(table.column(plot.by).cast(pa.string()), name))
        x = part.column(plot.x)
        xs = (x.cast(pa.int64()) if pa.types.is_timestamp(x.type) else x).to_numpy().astype(np.float64)
        for column in plot.y:
            ys = part.column(column).to_numpy(zero_copy_only=False).astype(np.float64)
            known = np.isfinite(ys) & np.isfinite(xs)
            order = np.argsort(xs[known], kind="stable")
            if len(order):
                label = " ".join(
                    word
                    for word in (name or (UNTOLD if plot.by else ""), column if len(plot.y) > 1 else "")
                    if word
                )
                found.append((label or column, xs[known][order], ys[known][order]))
    return found


def _thinned(xs: Floats, ys: Floats, most: int) -> tuple[Floats, Floats]:
    if len(xs) <= most:
        return xs, ys
    kept: list[int] = []
    for stretch in np.array_split(np.arange(len(xs)), most // 2):
        kept += sorted({int(stretch[ys[stretch].argmin()]), int(stretch[ys[stretch].argmax()])})
    return xs[kept], ys[kept]


class _scale:
    """From a value to a place on the paper."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._start = low, start
        self._each = (end - start) / ((high - low) or 1.0)

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) * self._each


def _grid(bottom: float, top: float, up: _scale, paper: Paper) -> str:
    made = []
    for value in np.linspace(bottom, top, 5):
        y = up(float(value))
        made.append(
            f'<line x1="{LEFT}" x2="{paper.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GREY}" stroke-opacity="0.3"/>'
        )
        made.append(_text(LEFT - 6, y + 4, _short(float(value)), "end"))
    return "".join(made)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _nothing(paper: Paper) -> str:
    return _text(paper.width / 2, paper.height / 2, "Nothing to show", "middle")


def _label(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%m-%d %H:%M}"
    text = str(value)
    return text if len(text) <= 12 else f"{text[:11]}…"


def _moment(micros: float, span: float) -> str:
    at = datetime.fromtimestamp(micros / 1e6, UTC)
    return f"{at:%H:%M:%S}" if span < 3_600e6 else f"{at:%m-%d %H:%M}"


def _short(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
