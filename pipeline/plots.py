"""Plots as SVG, drawn once when a job has its result.

The console shows them as images, and reports embed them.

Colours and line styles are attributes, so that no content policy removes them. They have medium lightness,
for light and dark pages. A plot contains no script. If there is no room for all lines or bars, the legend
tells how many are missing.
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

from pipeline.axes import AxisTick, Unit, amount_ticks, format_amount, time_ticks

LEFT, RIGHT, TOP, BOTTOM = 70, 16, 30, 34
ROW: Final = 16
"""Height of a row of the legend."""
LETTER: Final = 6.2
"""Upper estimate of a letter's width."""
COLOURS: Final = ("#3b82c4", "#d9822b", "#3f9e6d", "#b65fb0", "#c94f4f", "#8a8f3c", "#4aa3a3", "#8d7ad1")
INK: Final = "#7a7f87"
"""Colour of text. Its contrast is 4.1 to 1 against white and against the darkest page."""
MAX_POINT_MARKERS: Final = "#718096"
"""Colour of a single line or a single kind of bars."""
MAX_BARS: Final = 40
WIDEST_BARS: Final = 96
"""Maximum width of all bars of one label."""
MAX_NAME: Final = 28

UNNAMED_SERIES: Final = "(not told)"
"""Name of a line whose value of `by` is empty."""

Floats = npt.NDArray[np.float64]


class PlotSize(NamedTuple):
    """Size of a plot, and the number of ticks of its time axis."""

    width: int
    height: int
    moments: int
    points: int
    """Maximum points of a line. Longer lines are thinned to the extremes of intervals."""


WIDE: Final = PlotSize(760, 240, 5, 2_000)
NARROW: Final = PlotSize(380, 260, 3, 400)
"""Size for a telephone. Letters keep their size, so fewer ticks fit."""


@dataclass(frozen=True, slots=True)
class PlotSpec:
    """How a table is drawn.

    `x`: a time or number column, with bars also text; `by`: column whose values become a line each; `unit`:
    unit of the `y` columns.
    """

    title: str
    x: str
    y: tuple[str, ...]
    kind: Literal["lines", "bars"] = "lines"
    by: str = ""
    unit: Unit = ""


class _PlotLine(NamedTuple):
    name: str
    xs: Floats
    ys: Floats


def draw_svg(plot: PlotSpec, table: pa.Table, paper: PlotSize = WIDE) -> str:
    """Return the plot as an SVG document of the given width. The legend adds to its height."""
    top, body = _bars(plot, table, paper) if plot.kind == "bars" else _lines(plot, table, paper)
    height, title = paper.height + top - TOP, escape(plot.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {paper.width} {height}" '
        f'role="img" aria-label="{escape(plot.title, {chr(34): "&quot;"})}"'
        f' font-family="sans-serif" font-size="11" fill="{INK}"><title>{title}</title>'
        f'<text x="{LEFT}" y="16" font-size="13">{title}</text>{body}</svg>\n'
    )


def _lines(plot: PlotSpec, table: pa.Table, paper: PlotSize) -> tuple[int, str]:
    """Draw a line plot; return the y where it begins, and its SVG."""
    lines, of = _series(plot, table)
    if not lines:
        return TOP, _empty_plot(paper)
    colours = _colours(len(lines))
    legend, top = _legend(
        [(one.name, colour) for one, colour in zip(lines, colours, strict=True)], of, "lines", paper
    )
    base = paper.height + top - TOP - BOTTOM
    low, high = min(one.xs.min() for one in lines), max(one.xs.max() for one in lines)
    integers = all(pa.types.is_integer(table.schema.field(name).type) for name in plot.y)
    least, greatest = min(0.0, *(one.ys.min() for one in lines)), max(0.0, *(one.ys.max() for one in lines))
    marks = amount_ticks(least, greatest, plot.unit, integers)
    across = _LinearScale(low, high, LEFT, paper.width - RIGHT)
    up = _LinearScale(marks[0].at, marks[-1].at, base, top)
    timed = pa.types.is_timestamp(table.schema.field(plot.x).type)
    below = (
        time_ticks(low, high, paper.moments)
        if timed
        else [one for one in amount_ticks(low, high, "", False, paper.moments) if low <= one.at <= high]
    )
    made = [legend, _grid(marks, up, paper)]
    for mark in below:
        made.append(_text(across(mark.at), base + 16, mark.label, "middle"))
        if mark.below:
            made.append(_text(across(mark.at), base + 29, mark.below, "middle"))
    for line, colour in zip(lines, colours, strict=True):
        thinned = zip(*_thin_out(line.xs, line.ys, paper.points), strict=True)
        points = [(across(float(x)), up(float(y))) for x, y in thinned]
        if len(points) == 1:
            made.append(f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3" fill="{colour}"/>')
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        made.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return top, "".join(made)


def _bars(plot: PlotSpec, table: pa.Table, paper: PlotSize) -> tuple[int, str]:
    """Draw a bar chart; return the y where it begins, and its SVG."""
    of, table = table.num_rows, table.slice(0, MAX_BARS)
    if of == 0:
        return TOP, _empty_plot(paper)
    values = [[float(value or 0) for value in table.column(name).to_pylist()] for name in plot.y]
    colours = _colours(len(values))
    legend, top = _legend(
        [(_describe(name), colour) for name, colour in zip(plot.y, colours, strict=True)], of, "bars", paper
    )
    base = paper.height + top - TOP - BOTTOM
    integers = all(pa.types.is_integer(table.schema.field(name).type) for name in plot.y)
    marks = amount_ticks(0.0, max(max(one) for one in values), plot.unit, integers)
    up = _LinearScale(marks[0].at, marks[-1].at, base, top)
    slot_width = (paper.width - LEFT - RIGHT) / table.num_rows
    wide = min(slot_width * 0.8, WIDEST_BARS) / len(plot.y)
    made = [legend, _grid(marks, up, paper)]
    every = -(-80 // max(int(slot_width), 1))
    for index, label in enumerate(table.column(plot.x).to_pylist()):
        x = LEFT + slot_width * index
        for number, (one, colour) in enumerate(zip(values, colours, strict=True)):
            y = up(one[index])
            title = f"{label}: {format_amount(one[index], plot.unit)}"
            made.append(
                f'<rect x="{x + (slot_width - wide * len(values)) / 2 + wide * number:.1f}" '
                f'y="{y:.1f}" width="{wide:.1f}" height="{base - y:.1f}"'
                f' fill="{colour}"><title>{escape(title)}</title></rect>'
            )
        if index % every == 0:
            made.append(_text(x + slot_width / 2, base + 16, _label(label), "middle"))
    return top, "".join(made)


def _colours(many: int) -> Sequence[str]:
    return COLOURS[:many] if many > 1 else (MAX_POINT_MARKERS,)


def _legend(
    names: Sequence[tuple[str, str]], of: int, kind: Literal["lines", "bars"], paper: PlotSize
) -> tuple[str, int]:
    """Return the legend, and the y where the plot begins below it. A single line needs no legend."""
    max_entries = MAX_BARS if kind == "bars" else len(names)
    entries = [(shorten_name(name), colour) for name, colour in names] if len(names) > 1 else []
    if of > max_entries:
        entries.append((f"the first {max_entries} of {of:,}", ""))
    made, x, y = [], float(LEFT), TOP
    for name, colour in entries:
        width = LETTER * len(name) + (18 if colour else 0)
        if x > LEFT and x + width > paper.width - RIGHT:
            x, y = float(LEFT), y + ROW
        if colour:
            made.append(f'<rect x="{x:.1f}" y="{y - 2}" width="12" height="4" fill="{colour}"/>')
        made.append(_text(x + (18 if colour else 0), y + 4, name, "start"))
        x += width + 16
    return "".join(made), y + ROW if entries else TOP


def _series(plot: PlotSpec, table: pa.Table) -> tuple[list[_PlotLine], int]:
    """Return the lines to draw, and how many there are in all."""
    found: list[_PlotLine] = []
    names = [""] if not plot.by else [str(one) for one in table.column(plot.by).unique().to_pylist()]
    drawn = names[: max(len(COLOURS) // len(plot.y), 1)]
    for name in drawn:
        part = table if not plot.by else table.filter(pc.equal(table.column(plot.by).cast(pa.string()), name))
        x = part.column(plot.x)
        xs = (x.cast(pa.int64()) if pa.types.is_timestamp(x.type) else x).to_numpy().astype(np.float64)
        for column in plot.y:
            ys = part.column(column).to_numpy(zero_copy_only=False).astype(np.float64)
            known = np.isfinite(ys) & np.isfinite(xs)
            order = np.argsort(xs[known], kind="stable")
            if len(order):
                of = name or (UNNAMED_SERIES if plot.by else "")
                words = (of, _describe(column) if len(plot.y) > 1 else "")
                label = " ".join(word for word in words if word)
                found.append(_PlotLine(label or _describe(column), xs[known][order], ys[known][order]))
    return found, len(found) + (len(names) - len(drawn)) * len(plot.y)


def _thin_out(xs: Floats, ys: Floats, max_points: int) -> tuple[Floats, Floats]:
    if len(xs) <= max_points:
        return xs, ys
    indexes: list[int] = []
    for section in np.array_split(np.arange(len(xs)), max_points // 2):
        indexes += sorted({int(section[ys[section].argmin()]), int(section[ys[section].argmax()])})
    return xs[indexes], ys[indexes]


class _LinearScale:
    """Linear map from a value to a coordinate."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._start = low, start
        self._each = (end - start) / ((high - low) or 1.0)

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) * self._each


def _grid(marks: Sequence[AxisTick], up: _LinearScale, paper: PlotSize) -> str:
    made = []
    for mark in marks:
        y = up(mark.at)
        made.append(
            f'<line x1="{LEFT}" x2="{paper.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{INK}" stroke-opacity="0.3"/>'
        )
        made.append(_text(LEFT - 6, y + 4, mark.label, "end"))
    return "".join(made)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _empty_plot(paper: PlotSize) -> str:
    return _text(paper.width / 2, paper.height / 2, "Nothing to show", "middle")


def _label(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%m-%d %H:%M}"
    return shorten_name(str(value), 12)


def _describe(column: str) -> str:
    return column.replace("_", " ")


def shorten_name(text: str, max_length: int = MAX_NAME) -> str:
    """Cut a long name in the middle, because long names often begin alike."""
    return (
        text if len(text) <= max_length else f"{text[: (max_length - 1) // 2]}…{text[-(max_length // 2) :]}"
    )
