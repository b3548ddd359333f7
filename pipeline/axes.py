"""Positions and labels of axis ticks: round amounts in steps of their unit, round times in UTC. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

Unit = Literal["", "bytes", "ms", "s"]
"""Unit of a column's numbers: a count, bytes, or a time in ms or s."""

_SIZES: Final[dict[Unit, tuple[tuple[float, str], ...]]] = {
    "": ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")),
    "bytes": tuple(
        (1024**power, name) for power, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    ),
    "ms": ((1, "ms"), (1e3, "s"), (60e3, "min"), (3_600e3, "h"), (86_400e3, "d")),
    "s": ((1e-3, "ms"), (1, "s"), (60, "min"), (3_600, "h"), (86_400, "d")),
}
_SECOND: Final = 1_000_000
_MINUTE, _HOUR, _DAY = 60 * _SECOND, 3_600 * _SECOND, 86_400 * _SECOND
_SPANS: Final = (
    *(_SECOND * many for many in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * many for many in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * many for many in (1, 2, 3, 6, 12)),
    *(_DAY * many for many in (1, 2, 7, 14, 28, 91, 364)),
)
"""Possible distances of ticks on a time axis, in microseconds."""


class AxisTick(NamedTuple):
    """A tick of an axis: position and label."""

    at: float
    label: str
    below: str = ""
    """Second line of the label: the day, where a new one begins."""


def amount_ticks(low: float, high: float, unit: Unit, integers: bool, max_ticks: int = 5) -> list[AxisTick]:
    """Return at least two ticks, the first at or below `low`, the last at or above `high`.

    With `integers` no tick is between two integers.
    """
    size, name = _binary_size(max(abs(low), abs(high)), unit)
    step = _round_step((high - low) / size / (max_ticks - 1))
    if integers and size == 1:
        step = max(step, 1.0)
    first, last = math.floor(low / size / step), math.ceil(high / size / step)
    last = max(last, first + 1)
    return [
        AxisTick(number * step * size, _format_unit(number * step, name)) for number in range(first, last + 1)
    ]


def format_amount(value: float, unit: Unit) -> str:
    """Format an amount to three digits: `1.5 GiB`, `23.1 min`."""
    size, name = _binary_size(abs(value), unit)
    return _format_unit(value / size, name)


def time_ticks(low: float, high: float, max_ticks: int) -> list[AxisTick]:
    """Return ticks at round times from `low` to `high`, microseconds since 1970.

    If fewer than two round times are in the range, the ticks are the bounds themselves.
    """
    step = next((one for one in _SPANS if (high - low) / one <= max_ticks - 1), _SPANS[-1])
    times = [time * step for time in range(math.ceil(low / step), math.floor(high / step) + 1)]
    if len(times) < 2:
        times, step = sorted({int(low), int(high)}), _SECOND
    shape = "%H:%M" if step >= _MINUTE else "%H:%M:%S"
    marks: list[AxisTick] = []
    before = ""
    for time in times:
        at = datetime.fromtimestamp(time / _SECOND, UTC)
        day, zone = f"{at.day} {at:%b}", "" if marks else "UTC"
        if step >= _DAY:
            marks.append(AxisTick(time, day, zone))
        else:
            below = ", ".join(word for word in (day if day != before else "", zone) if word)
            marks.append(AxisTick(time, f"{at:{shape}}", below))
        before = day
    return marks


def _binary_size(largest: float, unit: Unit) -> tuple[float, str]:
    sizes = _SIZES[unit]
    return next((one for one in reversed(sizes) if largest >= one[0]), sizes[0])


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is at least `least`."""
    if least <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(power * many for many in (1, 2, 5, 10) if power * many >= least * (1 - 1e-9))


def _format_unit(value: float, name: str) -> str:
    text = f"{value:.3g}" if abs(value) < 1_000 else f"{value:,.0f}"
    return f"{text} {name}" if name and value else text
