"""Schedules: `4h`, `00:30`, `Saturday at 00:30`, or cron. Pure: times are arguments.

Times are local to a zone unless they end in Z (UTC). At a change of daylight saving, the rules of Debian's
cron hold: a fixed time that is skipped fires at the first moment after it, a time that occurs twice fires
once.

Sources: seed 000 (schedules of actions), facts of AMPS's `amps-action-on-schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from broker_core.errors import OperatorError
from console.choices import WEEKDAYS
from console.units.ages import parse_age

SHORTEST_S = 60
"""Minimum interval in seconds: Celery's beat checks schedules once a minute."""
MAX_CRON_CHARACTERS = 100
LONGEST_CHANGE = timedelta(hours=3)
"""Longer than any interval that a clock repeats or skips: time zones have changed by at most 2 h."""


@dataclass(frozen=True, slots=True)
class IntervalSchedule:
    """Fixed interval, counted from the instance's start."""

    every: timedelta

    def next_after(self, moment: datetime, start: datetime) -> Iterator[datetime]:
        """Yield the firings after a moment, without end."""
        passed = max(0, (moment - start) // self.every)
        number = passed + 1
        while True:
            yield start + number * self.every
            number += 1

    def latest_before(self, moment: datetime, start: datetime) -> datetime | None:
        """Return the newest firing at or before a moment; None before the first."""
        passed = (moment - start) // self.every
        return start + passed * self.every if passed >= 1 else None


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Calendar times, as a cron expression of five fields in a time zone."""

    cron: str
    zone: ZoneInfo

    def next_after(self, moment: datetime, start: datetime) -> Iterator[datetime]:
        """Yield the firings after a moment, in UTC, as long as the expression has later ones.

        `start` has no effect.
        """
        # In an hour that the clock repeats, CronSim begins with a firing of the first pass.
        firings = (due.astimezone(UTC) for due in CronSim(self.cron, moment.astimezone(self.zone)))
        return (due for due in firings if due > moment)

    def latest_before(self, moment: datetime, start: datetime) -> datetime | None:
        """Return the newest firing at or before a moment and not before the start; None without one."""
        # The search begins behind an hour that the clock repeats: in its second pass, CronSim would omit
        # firings of the first one, and a run of the day before would follow that of today.
        back = CronSim(self.cron, (moment + LONGEST_CHANGE).astimezone(self.zone), reverse=True)
        found = next((due.astimezone(UTC) for due in back if due <= moment), None)
        return found if found is not None and found >= start else None


Schedule = IntervalSchedule | CronSchedule


def parse_schedule(text: str, local: ZoneInfo) -> Schedule:
    """Parse a schedule. `local` is the zone of times without Z. Raises OperatorError `bad_schedule`."""
    words = text.split()
    zone = local
    if words and words[-1] != "Z" and words[-1].endswith("Z") and len(words) in (1, 3):
        words[-1], zone = words[-1][:-1], ZoneInfo("UTC")
    elif len(words) == 6 and words[-1] == "Z":
        words, zone = words[:-1], ZoneInfo("UTC")
    match words:
        case [time] if ":" in time:
            return _calendar(f"{_clock(time, text)} * * *", zone, text)
        case [day, at, time] if at.lower() == "at" and ":" in time:
            return _calendar(f"{_clock(time, text)} * * {_weekday(day, text)}", zone, text)
        case [_, _, _, _, _] if len(text) <= MAX_CRON_CHARACTERS:
            return _calendar(" ".join(words), zone, text)
        case [age] if zone is local and not age.isdigit():
            return _interval(age, text)
    raise _bad(text, "its format is unknown")


def next_firings(schedule: Schedule, after: datetime, start: datetime, count: int = 5) -> list[datetime]:
    """Return the next firings after a moment, at most `count`."""
    return list(islice(schedule.next_after(after, start), count))


def _interval(age: str, text: str) -> IntervalSchedule:
    try:
        seconds = parse_age(age)
    except OperatorError:
        raise _bad(text, "its format is unknown") from None
    if seconds < SHORTEST_S:
        raise _bad(text, "the shortest interval is 1m")
    return IntervalSchedule(timedelta(seconds=seconds))


def _clock(time: str, text: str) -> str:
    """Return cron's minute and hour for a time such as "00:30". Raises OperatorError `bad_schedule`."""
    hour, _, minute = time.partition(":")
    if not (_is_number(hour, 23) and _is_number(minute, 59)) or len(minute) != 2:
        raise _bad(text, f"{time!r} isn't a time of day")
    return f"{int(minute)} {int(hour)}"


def _is_number(text: str, maximum: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 2 and int(text) <= maximum


def _weekday(day: str, text: str) -> int:
    """Return cron's number of a weekday; Sunday is 0. Raises OperatorError `bad_schedule`."""
    for number, name in enumerate(WEEKDAYS):
        if day.lower() in (name.lower(), name[:3].lower()):
            return (number + 1) % 7
    raise _bad(text, f"{day!r} isn't a day of the week")


def _calendar(cron: str, zone: ZoneInfo, text: str) -> CronSchedule:
    """Return the schedule of a cron expression that fires at least once.

    Raises OperatorError `bad_schedule`.
    """
    try:
        simulated = CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
        next(simulated)
    except (CronSimError, StopIteration) as problem:
        raise _bad(text, str(problem) or "it has no firing time") from None
    return CronSchedule(cron, zone)


def _bad(text: str, problem: str) -> OperatorError:
    return OperatorError(
        "bad_schedule",
        f"{text[:100]!r} is not a schedule: {problem}.",
        "Use 4h, 00:30, Saturday at 00:30, or 30 0 * * 6. A time that ends in Z is UTC.",
    )
