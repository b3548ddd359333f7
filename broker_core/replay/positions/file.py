"""What is kept for a client that is away: who it is for, what it asked for, and where it goes on. Pure.

Nothing of the records themselves is kept, for they are in the log. Moments are ns UTC.

The file `<instance>.kept.json`: everything that is kept for clients that are away, as one JSON object.

    {"version": 2, "crc": 1234, "kept": [{"kind": "durable", "name": …}, {"kind": "managed", "name": …}]}

`emptied` is there when shared subscriptions were deleted: {"crc": 5678, "upto": {"queue.x": 17}}, how far the log was then.
A group's member adds `taken` in the same form: up to which record of the log the file says what was told there.
One that can't be believed counts as none: then the journal is read from its beginning, and what is known already changes nothing.

`crc` is the CRC32C of the list as it stands there, without white space around it: a flipped bit in a position would be a
position still.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

import msgspec
import structlog

from broker_core.bookmark import MAX_SEQUENCE
from broker_core.checksum import crc32c
from broker_core.documents.replays import ReplayState
from broker_core.errors import OperatorError
from broker_core.journal.files import FileSystem, remove_temporaries
from broker_core.replay.span import NEVER, ReplaySpan

SHARED_OWNER: Final = "shared:queues"
"""As whose shared subscriptions are kept. No client can have a name with a colon."""
STEERED: Final = ("rate", "rate_max_gap", "conflation", "conflation_key", "paused", "steered_at")
"""What operators and the client change of a managed replay."""
MAX_DELIVERIES: Final = 10
"""How often consumers may fail with a record of a shared subscription, unless they say otherwise."""


class PositionRecord(msgspec.Struct, kw_only=True, eq=False, tag_field="kind"):
    """One thing that is kept; the fields are those of its JSON, and one that isn't known is passed over."""

    name: str
    client: str
    """Whose it is."""
    topic: str
    filter: str | None
    position: int
    """Sequence of the first record that its client hasn't been given, or hasn't acknowledged."""
    created_at: int

    @property
    def owner(self) -> str:
        """As whom it holds the log."""
        raise NotImplementedError

    @property
    def pinned_from(self) -> int | None:
        """From where it holds the log; None when it needs nothing of it any more."""
        return self.position


class SharedProgress(msgspec.Struct, kw_only=True):
    """Where a shared subscription stands behind its `position`: everything up to `upto` was taken from the log, and of that
    these intervals are done. `tries`: how often consumers failed with a record, of which `max_deliveries` are allowed (0: any)."""

    upto: int
    done: list[tuple[int, int]] = []
    tries: dict[int, int] = {}
    max_deliveries: int = MAX_DELIVERIES


class DurableSubscriptionRecord(PositionRecord, tag="durable"):
    """One durable subscription. `position` is the sequence of the first record that isn't acknowledged."""

    seen_at: int
    """When its client was last subscribed to it."""
    sharing: SharedProgress | None = None
    """Of one that several clients consume."""

    @property
    def owner(self) -> str:
        if self.sharing is not None:
            return f"shared subscription {self.name}"
        return f"durable subscription {self.name} of {self.client}"


class DestinationSetBack(msgspec.Struct, frozen=True):
    """Loss at a link's destination: when the link found it (ns UTC), and the newest record that the
    destination had confirmed, and has."""

    at: int
    had: int
    has: int


class ManagedReplayRecord(PositionRecord, tag="managed"):
    """One managed replay. Texts are as its creator wrote them; only its `client` may have it.

    What of the log it is asked for is a `ReplaySpan`; `position` is the first record that its client hasn't been given; what
    it was given and may not have read begins with `certain`.
    """

    bookmark: str
    rate: str | None
    rate_max_gap: str | None
    conflation: str | None
    conflation_key: str | None
    paused: bool
    first: int
    not_before: int
    last: int
    not_after: int
    begun: bool
    began_at: int = 0
    """Sequence it began with, from which progress counts; 0 before its first record."""
    recorded_at: int = 0
    """The moment on the recorded timeline that it has come to; 0 before its first record."""
    delivered_messages: int = 0
    certain: int = 0
    """Sequence of the first record that its client may not have, for all the broker knows; 0: that is `position`."""
    caught_up: bool = False
    ended: Literal["", "completed", "cancelled"] = ""
    ended_at: int = 0
    carried: int = 0
    """Newest record that a link's destination has confirmed; not every record below `position` is carried."""
    carried_limit: int = 0
    """Newest record that a link can have carried, noted while nothing is carried; 0 while a link carries. It
    isn't known of a group's links."""
    set_back: DestinationSetBack | None = None
    """The last loss at a link's destination."""
    steered_at: int = 0
    """When it was last paused, resumed or paced."""

    @property
    def owner(self) -> str:
        return f"managed replay {self.name}"

    @property
    def span(self) -> ReplaySpan:
        """What is left of what was asked for."""
        not_before = 0 if self.begun else self.not_before
        return ReplaySpan(max(self.first, self.expires_from), not_before, self.last, self.not_after)

    @property
    def pinned_from(self) -> int | None:
        return None if self.ended else self.expires_from

    @property
    def expires_from(self) -> int:
        """From where the log is kept, and where it goes on for a client that doesn't say what it has."""
        return min(self.certain or self.position, self.position)

    def state(self, connected: bool) -> ReplayState:
        if self.ended:
            return self.ended
        if self.paused:
            return "paused"
        if not connected:
            return "waiting"
        return "following" if self.caught_up else "running"

    def advance(self, position: int) -> bool:
        """Note how far it has come; False when that isn't further."""
        if position <= self.position:
            return False
        self.began_at = self.began_at or self.position
        self.position = position
        return True

    def note_progress(self, position: int, certain: int) -> None:
        """Note its position, and the first record that its client may not have. Neither moves back."""
        kept_from = self.expires_from
        self.advance(position)
        self.certain = max(certain, kept_from)

    def merge(self, told: ManagedReplayRecord) -> None:
        """Merge what another member of the group told of the same replay.

        The greater position counts, an end stays, and of what operators steer the later counts. So all members come
        to the same in whatever order they are told.
        """
        kept_from = max(self.expires_from, told.expires_from)
        if told.steering > self.steering:
            for name in STEERED:
                setattr(self, name, getattr(told, name))
        self.recorded_at = max(self.recorded_at, told.recorded_at)
        self.position = max(self.position, told.position)
        self.certain = kept_from if kept_from < self.position else 0
        self.began_at = min(filter(None, (self.began_at, told.began_at)), default=0)
        self.begun = self.begun or told.begun
        self.delivered_messages = max(self.delivered_messages, told.delivered_messages)
        self.carried = max(self.carried, told.carried)
        found = [one for one in (self.set_back, told.set_back) if one is not None]
        self.set_back = max(found, key=lambda one: (one.at, one.had, one.has), default=None)
        if (told.ended_at, told.ended) > (self.ended_at, self.ended):
            self.ended, self.ended_at = told.ended, told.ended_at

    @property
    def steering(self) -> tuple[int, tuple[str, ...]]:
        """Moment of the last change by an operator, and what that made of it. The greater one counts everywhere."""
        return self.steered_at, tuple(str(getattr(self, name)) for name in STEERED)

    def end_sequence(self, newest: int) -> int:
        """The last sequence there is to deliver, as far as is known: `newest` is the log's."""
        return min(self.last, newest)

    def progress(self, newest: int) -> float:
        """From 0 to 1. A replay without an end has 1 when it has caught up."""
        if self.ended == "completed" or (self.caught_up and not self.paused and self.last == MAX_SEQUENCE):
            return 1.0
        begin, goal = self.began_at or self.position, self.end_sequence(newest)
        total, done = goal - begin + 1, self.position - begin
        if total <= 0:
            return 1.0 if self.last == MAX_SEQUENCE and self.not_after == NEVER else 0.0
        return min(max(done / total, 0.0), 1.0)


log = structlog.get_logger("sluice.kept")
VERSION: Final = 2

Entry = DurableSubscriptionRecord | ManagedReplayRecord
T = TypeVar("T")
_MISSING: Final = msgspec.Raw(b"null")


class _LogMark(msgspec.Struct):
    """How far the log was, and the checksum of that as it stands there."""

    crc: int
    upto: msgspec.Raw


def encode_positions(entries: Iterable[Entry], emptied: Mapping[str, int] = MappingProxyType({})) -> bytes:
    """The file's content."""
    return join_encoded(encode_entries(list(entries)), emptied)


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Some of them, as they stand in the list: with a comma in between."""
    return msgspec.json.encode(entries)[1:-1]


def join_encoded(entries: bytes, emptied: Mapping[str, int], taken: int = 0) -> bytes:
    """The file's content, of all that were encoded. `taken`: up to which record of a group's log it says what that does."""
    kept, upto = b"[%b]" % entries, msgspec.json.encode(dict(emptied))
    said: dict[str, Any] = {"version": VERSION, "crc": crc32c(kept), "kept": msgspec.Raw(kept)}
    if emptied:
        said["emptied"] = _LogMark(crc32c(upto), msgspec.Raw(upto))
    if taken:
        upto = msgspec.json.encode(taken)
        said["taken"] = _LogMark(crc32c(upto), msgspec.Raw(upto))
    return msgspec.json.encode(said)


def load_upto(path: Path) -> int:
    """Up to which record of a group's log a file says what that does; 0 when it doesn't say, or not for certain. After `load`."""
    try:
        return _checked(path, "taken", int) or 0
    except ValueError as problem:
        log.warning("kept_read_anew", file=str(path), why=str(problem))
        return 0


def load_positions(files: FileSystem, path: Path) -> Sequence[Entry]:
    """Read what is kept, and remove temporary files. Not while anybody writes the file.

    Raises OperatorError bad_kept_positions when the file is there and can't be read; OSError.
    """
    if path.parent.is_dir():
        remove_temporaries(files, path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        found = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        version, crc = (msgspec.json.decode(found.get(name, _MISSING)) for name in ("version", "crc"))
        kept = found.get("kept", _MISSING)
        if version != VERSION:
            raise ValueError(f"version {version}")
        if crc != crc32c(kept):
            raise ValueError("its checksum doesn't fit")
        return msgspec.json.decode(kept, type=list[Entry])
    except ValueError as problem:
        raise OperatorError(
            "bad_kept_positions",
            f"{path} can't be read: {problem}.",
            "Restore it, or move it away: then nothing is kept of clients that are away.",
        ) from problem


def load_deleted(path: Path) -> dict[str, int]:
    """Which shared subscriptions were deleted, and how far the log was then. After `load`, and raises what that does."""
    try:
        return _checked(path, "emptied", dict[str, int]) or {}
    except ValueError as problem:
        raise OperatorError(
            "bad_kept_positions",
            f"{path} can't be read: {problem}.",
            "Restore it, or move it away, which forgets what is kept for clients that are away.",
        ) from problem


def _checked(path: Path, field: str, of: type[T]) -> T | None:
    """What the file says under its own checksum; None when it doesn't. ValueError."""
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw]).get(field)
    if found is None:
        return None
    said = msgspec.json.decode(found, type=_LogMark)
    if said.crc != crc32c(said.upto):
        raise ValueError(f"the checksum of {field} doesn't fit")
    return msgspec.json.decode(said.upto, type=of)
