"""Numbers, sizes, durations and moments as text for operators. static/js/format.js applies the same rules."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo

Figure = float | Literal[""] | None
"""Number to show. A template passes "" for a missing variable."""

NONE = "–"
"""Text for a missing number."""
BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _digits(amount: float) -> str:
    size = abs(amount)
    return f"{amount:.{2 if size < 10 else 1 if size < 100 else 0}f}"


def size(value: Figure) -> str:
    """Return bytes as text in powers of 1024: 1536 is "1.50 KiB"."""
    if value is None or value == "":
        return NONE
    amount, unit = float(value), 0
    while abs(amount) >= 1024 and unit < len(BYTE_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} B" if unit == 0 else f"{_digits(amount)} {BYTE_UNITS[unit]}"


def number(value: Figure) -> str:
    """Return a count as text with thousands separators; from a million on in M or G."""
    if value is None or value == "":
        return NONE
    amount = float(value)
    if abs(amount) >= 1e9:
        return f"{_digits(amount / 1e9)} G"
    if abs(amount) >= 1e6:
        return f"{_digits(amount / 1e6)} M"
    return f"{amount:,.0f}"


def number_exact(value: int | Literal[""] | None) -> str:
    """Return a whole number as text with all digits, for sequences, which operators compare."""
    return NONE if value is None or value == "" else f"{int(value):,}"


def duration(ms: Figure) -> str:
    """Return milliseconds as text: "850 ms", "12.4 s", "3 min 05 s", "2 h 14 min", "3 d 4 h"."""
    if ms is None or ms == "":
        return NONE
    value = max(0.0, float(ms))
    if value < 1000:
        return f"{value:.0f} ms"
    if value < 60_000:
        return f"{value / 1000:.1f} s"
    seconds = int(value // 1000)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds // 60 % 60:02d} min"
    return f"{seconds // 86_400} d {seconds // 3600 % 24} h"


_MEASURED = re.compile(r"(?<![\w|.])(\d[\d,]*(?:\.\d+)?) (ms|s)\b")
"""Durations in ms or s within a sentence."""


def humanise_sentence(sentence: str | None) -> str:
    """Return a broker's sentence with readable durations and pool names.

    "nothing for 885730 ms" becomes "nothing for 14 min 45 s"; "pool transport:tcp" becomes "pool tcp".
    """

    def written(found: re.Match[str]) -> str:
        return duration(float(found[1].replace(",", "")) * (1 if found[2] == "ms" else 1_000))

    text = (
        (sentence or "")
        .replace("pool transport:", "pool ")
        .replace("of pool instance ", "of the shared pool ")
    )
    return _MEASURED.sub(written, text)


def seconds(value: Figure) -> str:
    """Return seconds as a duration."""
    return duration(None if value is None or value == "" else 1_000 * float(value))


def percent(value: Figure) -> str:
    """Return a percentage as text. `value` is in percent."""
    if value is None or value == "":
        return NONE
    return f"{float(value):.{1 if 0 < float(value) < 10 else 0}f} %"


def with_unit(value: Any, unit: str) -> str:
    """Return a value as text with a decision's unit."""
    if value is None or value == "":
        return NONE
    if unit == "bytes":
        return size(value)
    if unit == "ms":
        return duration(value)
    if unit == "bytes/s":
        return f"{size(value)}/s"
    if unit in ("percent", "%"):
        return percent(value)
    return f"{number(value)} {unit}".rstrip()


def epoch_ms(value: Any) -> int | None:
    """Return a datetime, or an epoch in milliseconds or nanoseconds, as epoch milliseconds; None for 0 or a
    missing value.
    """
    if value is None or value == "" or value == 0:  # the broker sends 0 for "none yet"
        return None
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    # Milliseconds stay below 1e14 until the year 5138; nanoseconds (journals) passed 1e18 in 2001.
    return int(value) // 1_000_000 if int(value) > 10**16 else int(value)


def as_json(value: Any) -> str:
    """Return a value of a policy as JSON text; a missing value is "default"."""
    return (
        "default"
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False)
    )


def format_result_value(value: Any) -> str:
    """Return a value of a job's result or options as text.

    Booleans are yes or no, whole numbers have thousands separators, and lists and objects are JSON.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else as_json(value)


def words_of_key(key: str) -> str:
    """Return a key of a result with spaces instead of underscores."""
    return str(key).replace("_", " ")


def percent_of(used: float | None, limit: float | None) -> float:
    """Return the used share of a limit in percent, 0 to 100; 0 without a limit."""
    return min(100.0, 100.0 * float(used or 0) / float(limit)) if limit else 0.0


def moment_in(value: datetime, zone: ZoneInfo) -> str:
    """Return a moment in a time zone, with the zone's short name: "Sat 21 Nov 2026, 00:30 CET"."""
    return value.astimezone(zone).strftime("%a %-d %b %Y, %H:%M %Z")
