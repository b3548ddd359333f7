"""Options of `format("sluice")`: parsing, checks and meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

import orjson

from broker_core.bookmark import AfterBookmarks, AtTime, parse_bookmark
from broker_core.errors import ClientError, OperatorError
from broker_core.journal.segment import SUFFIX, SUFFIX_COMPRESSED, parse_segment_path
from broker_core.names import is_name
from sluice_spark.arrow_reader import SPLIT_BYTES, ReadRequest
from sluice_spark.location import LogLocation

Mode = Literal["error", "note"]
MB: Final = 1024 * 1024
OPTIONS: Final = (
    "path",
    "archive",
    "instance",
    "topics",
    "columns",
    "start",
    "end",
    "filter",
    "message_type",
    "gaps",
    "durable",
    "partition_mb",
    "max_rows",
    "max_bytes",
    "reader",
    "lease_hours",
)
_OTHERS: Final = frozenset({"__partition_columns"})
"""Options that Spark adds itself."""
_OF_TABLES: Final = frozenset({"owner", "location", "provider"})
"""Options that Spark adds when a table of its catalog is created."""
OF_STREAMS: Final = ("max_rows", "max_bytes", "reader", "lease_hours")
MAX_LEASE_HOURS: Final = 7 * 24


READ_ONLY: Final = "A journal is written by its broker alone: publish to it, or write in another format."


class RangeBound(NamedTuple):
    """A bound of a range: a sequence, or a time in ns UTC. With both None that side is open."""

    sequence: int | None = None
    at: int | None = None


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of a micro-batch, and the stream's lease on the log."""

    rows: int | None = None
    nbytes: int | None = None
    reader: str = ""
    """Name of the lease; empty: the stream holds a lease only while it runs."""
    lease_s: float = 24 * 3_600.0


class ReadOptions(NamedTuple):
    """Parsed options: the log, the request, and limits of a stream."""

    location: LogLocation
    request: ReadRequest
    limits: StreamLimits


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse and check options.

    Raises OperatorError bad_setting, no_journal, bad_columns, bad_range; ClientError bad_pattern,
    bad_filter, bad_bookmark.
    """
    values = {key.lower(): value for key, value in options.items() if value is not None}
    unknown = sorted(key for key in values if key not in OPTIONS and key not in _OTHERS)
    if not _OF_TABLES.isdisjoint(unknown):
        raise _bad_setting_error(
            "A journal can't be a table of Spark's catalog.",
            "Use CREATE TEMPORARY VIEW … USING sluice OPTIONS (path …), or load().",
        )
    if "checkpointlocation" in unknown:
        raise _bad_setting_error(
            "checkpointLocation is an option of the stream's writer.", f"Give it to writeStream. {READ_ONLY}"
        )
    if unknown:
        raise _bad_setting_error(
            f"There is no option {unknown[0]!r}.", f"The options are {', '.join(OPTIONS)}."
        )
    location = _location(values)
    start, end = (
        read_bound(values.get("start", ""), "start", location.instance),
        read_bound(values.get("end", ""), "end", location.instance),
    )
    gaps = values.get("gaps", "error").lower()
    if gaps not in ("error", "note"):
        raise _bad_setting_error(f"gaps is {gaps!r}.", "Give error or note.")
    request = ReadRequest(
        columns=tuple(_parse_list(values.get("columns", ""))) or None,
        topics=tuple(_parse_list(values.get("topics", ""))),
        start=start.sequence,
        end=end.sequence,
        start_at=start.at,
        end_at=end.at,
        durable=_parse_number(values, "durable", 0),
        skip_gaps=gaps == "note",
        filter=values.get("filter", ""),
        message_type=values.get("message_type", "json").lower(),
        split_bytes=(_parse_number(values, "partition_mb", 1) or SPLIT_BYTES // MB) * MB,
    )
    request.check()
    reader = values.get("reader", "")
    if reader and not is_name(reader):
        raise _bad_setting_error(
            f"{reader[:80]!r} can't be a reader's name.", "Use letters, digits, dots and dashes."
        )
    hours = _parse_number(values, "lease_hours", 1) or 24
    if hours > MAX_LEASE_HOURS:
        raise _bad_setting_error(f"lease_hours is {hours}.", f"Give at most {MAX_LEASE_HOURS}.")
    limits = StreamLimits(
        _parse_number(values, "max_rows", 1), _parse_number(values, "max_bytes", 1), reader, hours * 3_600.0
    )
    return ReadOptions(location, request, limits)


def check_batch_options(options: Mapping[str, str]) -> None:
    """Check that a batch read has no options of streams. Raises OperatorError bad_setting.

    Ignoring them would read more than the caller expects.
    """
    for name in options:
        if name.lower() in OF_STREAMS:
            raise _bad_setting_error(
                f"The option {name} is for streams only.",
                "Leave it out, or use readStream. Limit a batch with start, end and topics.",
            )


def _location(values: Mapping[str, str]) -> LogLocation:
    if not values.get("path"):
        raise _bad_setting_error(
            "The option path is missing.", "Give the journal's directory in option() or load()."
        )
    directory = Path(values["path"]).expanduser().absolute()
    if not directory.is_dir():
        raise OperatorError(
            "no_journal", f"The journal directory {directory} doesn't exist.", "Check the option path."
        )
    beside = directory.parent / "archive"
    archive = Path(values["archive"]).expanduser().absolute() if values.get("archive") else None
    if archive is None and beside.is_dir():
        archive = beside
    instance = values.get("instance") or _only_instance(directory)
    if not is_name(instance):
        raise _bad_setting_error(
            f"{instance[:80]!r} can't be an instance's name.", "Check the option instance."
        )
    return LogLocation(directory, archive, instance)


def _only_instance(directory: Path) -> str:
    """Return the name of the only instance in the directory.

    Raises OperatorError no_journal if there isn't exactly one.
    """
    names: set[str] = set()
    for path in directory.iterdir():
        if path.name.endswith((SUFFIX, SUFFIX_COMPRESSED)):
            try:
                names.add(parse_segment_path(path)[0])
            except OperatorError:
                continue
        elif path.name.endswith(".durable"):
            names.add(path.name.removesuffix(".durable"))
    if len(names) != 1:
        content = f"the journals of {', '.join(sorted(names)[:5])}" if names else "no journal"
        raise OperatorError(
            "no_journal",
            f"{directory} holds {content}.",
            "Name one with the option instance.",
            instances=sorted(names)[:5],
        )
    return names.pop()


def _parse_list(text: str) -> list[str]:
    """Parse a JSON list, or words separated by commas.

    A regular expression (`~`) may contain commas, so the whole text is one item.
    """
    if text.lstrip().startswith("["):
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise _bad_setting_error(f"{text[:80]!r} isn't a list of texts.", 'Write a,b or ["a", "b"].')
        return found
    if text.startswith("~"):
        return [text]
    return [word.strip() for word in text.split(",") if word.strip()]


def _parse_number(values: Mapping[str, str], name: str, least: int) -> int | None:
    text = values.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19) or int(text) < least:
        raise _bad_setting_error(f"{name} is {text[:40]!r}.", f"Give a whole number from {least} on.")
    return int(text)


_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?)?")


def read_bound(text: str, name: str, instance: str) -> RangeBound:
    """Parse a bound: a sequence, a bookmark, a bookmark's time, or ISO 8601 (UTC by default)."""
    text = text.strip()
    if not text or text == "0":
        return RangeBound()
    if text.isascii() and text.isdigit() and len(text) < 19:
        return RangeBound(sequence=int(text))
    if _ISO.fullmatch(text):
        return RangeBound(at=_parse_iso(text, name))
    try:
        match parse_bookmark(text):
            case AfterBookmarks((one,)) if one.origin != instance:
                raise OperatorError(
                    "other_origin",
                    f"{text} was accepted by {one.origin}; this is the log of {instance}.",
                    f"Read the journal of {one.origin}.",
                )
            case AfterBookmarks((one,)):
                return RangeBound(sequence=one.sequence)
            case AtTime(at):
                return RangeBound(at=at)
    except ClientError as error:
        raise _bad_setting_error(
            f"{name}: {error.sentence}", "Give a bookmark, 2026-11-21T13:45:00Z, or a number."
        ) from None
    raise _bad_setting_error(
        f"{name} is {text[:80]!r}.", "Give one bookmark, 2026-11-21T13:45:00Z, or a number."
    )


def _parse_iso(text: str, name: str) -> int:
    seconds_text, point, fraction_text = text.partition(".")
    digits = re.match(r"\d*", fraction_text)
    fraction = digits[0] if point and digits else ""
    try:
        moment = datetime.fromisoformat(seconds_text + fraction_text[len(fraction) :])
    except ValueError:
        raise _bad_setting_error(
            f"{name} is {text!r}, which isn't a valid time.", "Give one like 2026-11-21T13:45:00Z."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0") or 0)


def _bad_setting_error(sentence: str, fix: str) -> OperatorError:
    return OperatorError("bad_setting", sentence, fix)
