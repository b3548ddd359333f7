"""Map of the log: segments by tier over time, the holders that need them, and the cost of retention.

Pure functions of a broker's list of segments. A holder is a reader, replay or other user of the log that
keeps segments from removal. Its position is the oldest segment that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from broker_core.documents.journals import SegmentEntry
from console.models import ActionRun
from console.queries.overview import DiskForecast

BINS: Final = 120
"""Number of time slots of the map."""
WIDTH: Final = 1_000
"""Width of the map in SVG units."""
HEIGHT: Final = 32
"""Height of a tier in SVG units."""
TICKS: Final = 5
"""Number of intervals of the time axis."""
RANGES: Final = {"24h": 1, "7d": 7, "30d": 30, "90d": 90}
"""Selectable ranges in days. Another value means from the oldest record on."""
AGES_S: Final = tuple(days * 86_400 for days in (1, 3, 7, 14, 30, 90, 365))
"""Ages of retention options, in seconds."""
KINDS: Final = {
    "managed replay": ("Managed replay", "history"),
    "durable subscription": ("Durable subscription", "versions"),
    "spool": ("Spool", "database-import"),
    "replay": ("Replay", "history"),
    "paused subscription": ("Paused subscription", "player-pause"),
    "snapshot": ("Snapshot", "copy"),
    "pipeline": ("Pipeline", "transfer"),
    "reader": ("Reader", "eye"),
}
"""Types of holders in display order, with label and icon."""


class TimeBar(NamedTuple):
    """Rectangle of the map. `y` is its upper edge."""

    x: float
    y: float
    width: float
    height: float


class JournalTier(NamedTuple):
    """Row of the map: segments on disk, compressed, archived or removed."""

    key: str
    word: str
    bytes: int
    segments: int
    bars: list[TimeBar]

    @property
    def segments_text(self) -> str:
        """Number and kind of the tier's entries, such as "3 segments" or "1 removal"."""
        noun = "removal" if self.key == "removed" else "segment"
        return f"{self.segments} {noun}{'' if self.segments == 1 else 's'}"


class LogHolder(NamedTuple):
    """User of the log that needs it from a segment on.

    `client` and `name` identify the client and the subscription or replay; "" where there is none.
    """

    kind: str
    owner: str
    client: str
    name: str
    first_at: int
    bytes: int
    x: float

    @property
    def label(self) -> str:
        """Name of the holder without its type."""
        return self.owner.removeprefix(self.kind).removeprefix(" of ").strip() or self.owner


class HolderGroup(NamedTuple):
    """Holders of one type, oldest position first."""

    kind: str
    word: str
    icon: str
    holders: list[LogHolder]

    @property
    def oldest(self) -> LogHolder:
        """Holder that needs the most of the log."""
        return self.holders[0]


class RetentionOption(NamedTuple):
    """Effect of keeping the log for `age_s` seconds.

    `segments` and `bytes`: would be removed, because no holder needs them. `settles_at`: expected size in
    bytes at this age. `fits`: whether the disk has space for it. `pinned_bytes` and `pinned_by`: older
    segments that holders pin.
    """

    age_s: int
    segments: int
    bytes: int
    settles_at: float
    fits: bool
    pinned_bytes: int
    pinned_by: list[HolderGroup]

    @property
    def label(self) -> str:
        """Age as a text."""
        days = self.age_s // 86_400
        return "1 day" if days == 1 else "1 year" if days == 365 else f"{days} days"


class JournalMap(NamedTuple):
    """Complete map. `start` and `end` are in ns, `ticks` (moments of the axis) in ms."""

    start: int
    end: int
    tiers: list[JournalTier]
    groups: list[HolderGroup]
    ticks: list[int]

    @property
    def holders(self) -> list[LogHolder]:
        """Holders of all types."""
        return [one for group in self.groups for one in group.holders]

    @property
    def oldest(self) -> LogHolder | None:
        """Holder that needs the most of the log; None without holders."""
        return min(self.holders, key=lambda one: one.first_at, default=None)


def journal_map(
    segments: Sequence[SegmentEntry], removals: Sequence[ActionRun], chosen: str, now: datetime
) -> JournalMap:
    """Return the map of the log.

    Args:
        removals: Succeeded runs that removed segments.
        chosen: Key of `RANGES`; any other value means the whole log.
    """
    end = int(now.timestamp() * 1e9)
    removed = [
        (int(one["from"]), int(one["to"]), (run.result or {}).get("bytes", 0))
        for run in removals
        for one in [_accepted(run)]
        if one
    ]
    starts = [one.first_at for one in segments if one.first_at] + [start for start, _, _ in removed if start]
    days = RANGES.get(chosen)
    start = end - days * 86_400 * 10**9 if days else min(starts, default=end - 3_600 * 10**9)
    start = min(start, end - 60 * 10**9)
    spans = (
        ("disk", "On disk", _spans(segments, archived=False, compressed=False)),
        ("compressed", "Compressed", _spans(segments, archived=False, compressed=True)),
        ("archive", "Archive", _spans(segments, archived=True)),
        ("removed", "Removed", removed),
    )
    amounts = {key: _amounts(found, start, end) for key, _, found in spans}
    top = max(max(found) for found in amounts.values()) or 1.0
    tiers = [
        JournalTier(key, word, sum(size for *_, size in found), len(found), _bars(amounts[key], top))
        for key, word, found in spans
    ]
    step = (end - start) // TICKS
    return JournalMap(
        start,
        end,
        tiers,
        holders_by_kind(segments, start, end),
        [(start + n * step) // 10**6 for n in range(TICKS + 1)],
    )


def holders_by_kind(segments: Sequence[SegmentEntry], start: int = 0, end: int = 1) -> list[HolderGroup]:
    """Return the holders of the log, grouped by type."""
    first: dict[str, SegmentEntry] = {}
    pinned_bytes: dict[str, int] = {}
    for segment in sorted(segments, key=lambda one: one.first_sequence):
        for owner in segment.pinned_by:
            first.setdefault(owner, segment)
            pinned_bytes[owner] = pinned_bytes.get(owner, 0) + segment.bytes
    found: dict[str, list[LogHolder]] = {}
    for owner, segment in first.items():
        kind = next((one for one in KINDS if owner.startswith(one)), "reader")
        client, name = _parse_owner(kind, owner)
        x = _x(segment.first_at or end, start, end)
        found.setdefault(kind, []).append(
            LogHolder(kind, owner, client, name, segment.first_at, pinned_bytes[owner], x)
        )
    return [
        HolderGroup(kind, *KINDS[kind], sorted(found[kind], key=lambda one: (one.first_at, one.owner)))
        for kind in KINDS
        if kind in found
    ]


def retention_options(
    segments: Sequence[SegmentEntry], disk: DiskForecast | None, now: datetime
) -> list[RetentionOption]:
    """Return an option for each age, up to the first that exceeds the log's age."""
    rows: list[RetentionOption] = []
    for age in AGES_S:
        before = (now - timedelta(seconds=age)).timestamp() * 1e9
        old = [one for one in segments if one.state != "current" and one.last_at < before]
        if not old and rows and not rows[-1].segments and not rows[-1].pinned_by:
            break
        free = [one for one in old if not one.pinned_by]
        settles = disk.grows_a_day * age / 86_400 if disk is not None else 0.0
        capacity = disk.free + disk.used if disk is not None else 0
        pinned = [one for one in old if one.pinned_by]
        rows.append(
            RetentionOption(
                age,
                len(free),
                sum(one.bytes for one in free),
                settles,
                settles <= capacity,
                sum(one.bytes for one in pinned),
                holders_by_kind(pinned),
            )
        )
    return rows


def _spans(
    segments: Iterable[SegmentEntry], *, archived: bool, compressed: bool | None = None
) -> list[tuple[int, int, int]]:
    """Return (first, last, bytes) of the segments of a tier."""
    return [
        (one.first_at, one.last_at, one.bytes)
        for one in segments
        if (one.state == "archived") == archived and compressed in (None, one.compressed)
    ]


def _accepted(run: ActionRun) -> dict[str, int] | None:
    """Return the time range of the records that a removal deleted, from its receipt."""
    found = (run.result or {}).get("receipt", {}).get("accepted")
    return found if isinstance(found, dict) and found.get("from") and found.get("to") else None


def _amounts(spans: list[tuple[int, int, int]], start: int, end: int) -> list[float]:
    """Return bytes per time slot. A segment's bytes are spread evenly over its slots."""
    amounts = [0.0] * BINS
    for first, last, size in spans:
        low = max(0, int(BINS * (first - start) / (end - start)))
        high = min(BINS - 1, int(BINS * (last - start) / (end - start)))
        if last < start or high < low:
            continue
        slots = max(1, int(BINS * (last - first) / (end - start)) + 1)
        for slot in range(low, high + 1):
            amounts[slot] += size / slots
    return amounts


def _bars(amounts: list[float], top: float) -> list[TimeBar]:
    """Return the bars of a tier. All tiers share one scale; a bar is never too low to be seen."""
    step = WIDTH / BINS
    tall = ((slot, max(3.0, HEIGHT * amount / top)) for slot, amount in enumerate(amounts) if amount)
    return [
        TimeBar(round(slot * step, 2), round(HEIGHT - one, 1), round(step - 1, 2), round(one, 1))
        for slot, one in tall
    ]


def _x(at: int, start: int, end: int) -> float:
    """Return the horizontal position of a moment on the map."""
    return round(min(WIDTH, max(0.0, WIDTH * (at - start) / max(1, end - start))), 1)


def _parse_owner(kind: str, owner: str) -> tuple[str, str]:
    """Return the client and the subscription or replay that an owner's text names."""
    words = owner.removeprefix(kind).strip()
    if kind in ("replay", "spool"):
        return words.removeprefix("of "), ""
    if kind in ("durable subscription", "paused subscription"):
        name, _, client = words.rpartition(" of ")
        return client, name
    return "", words if kind == "managed replay" else ""
