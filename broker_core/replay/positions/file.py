"""Records of durable subscriptions and managed replays, and the file `<instance>.kept.json` that stores them.

A record names its client, its topic and filter, and its position in the log. The log itself has the messages.
Times are ns UTC. The file is one JSON object:

    {"version": 2, "crc": 1234, "kept": [{"kind": "durable", "name": …}, {"kind": "managed", "name": …}]}

`crc` is the CRC32C of the list's bytes in the file, without white space around it. It is needed because a
position with a flipped bit would still be a valid position.

* `emptied` is present when shared subscriptions were deleted: {"crc": 5678, "upto": {"queue.x": 17}} has the
  newest sequence of the log at each deletion.
* `taken` is written by a member of a group, in the same form: the newest sequence of the log whose position
  updates the file includes. A value with a bad checksum counts as 0: the member then applies the whole
  journal, which changes nothing that the file already has.
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
"""Owner of the records of shared subscriptions. No client can have this name, because of the colon."""
STEERED: Final = ("rate", "rate_max_gap", "conflation", "conflation_key", "paused", "steered_at")
"""Settings of a managed replay that operators and its client may change."""
MAX_DELIVERIES: Final = 10
"""Default limit of failed deliveries per record of a shared subscription; then it becomes a dead letter."""


class PositionRecord(msgspec.Struct, kw_only=True, eq=False, tag_field="kind"):
    """Stored record of a client's position. The fields are those of its JSON; unknown fields are ignored."""

    name: str
    client: str
    """Name of the client it belongs to."""
    topic: str
    filter: str | None
    position: int
    """Sequence of the first record that the client has not been given, or has not acknowledged."""
    created_at: int

    @property
    def owner(self) -> str:
        """Text that names the holder of the log's pin to operators."""
        raise NotImplementedError

    @property
    def pinned_from(self) -> int | None:
        """First sequence that the record pins in the log; None when it needs no more of the log."""
        return self.position


class SharedProgress(msgspec.Struct, kw_only=True):
    """Progress of a shared subscription beyond its `position`.

    * `upto`: newest sequence that was read from the log for its consumers.
    * `done`: finished intervals between `position` and `upto`.
    * `tries`: number of failed deliveries of a record, by sequence.
    * `failures`: causes of the newest failed deliveries of a record, by sequence.
    * `max_deliveries`: limit of failed deliveries; 0 means no limit.
    """

    upto: int
    done: list[tuple[int, int]] = []
    tries: dict[int, int] = {}
    failures: dict[int, list[str]] = {}
    max_deliveries: int = MAX_DELIVERIES


class DurableSubscriptionRecord(PositionRecord, tag="durable"):
    """Stored durable subscription. `position` is the sequence of its first unacknowledged record."""

    seen_at: int
    """Time at which its client was last subscribed to it."""
    sharing: SharedProgress | None = None
    """Progress of a shared subscription; None for one that a single client consumes."""

    @property
    def owner(self) -> str:
        if self.sharing is not None:
            return f"shared subscription {self.name}"
        return f"durable subscription {self.name} of {self.client}"


class DestinationSetBack(msgspec.Struct, frozen=True):
    """Records that a link's destination has lost.

    * `at`: time at which the link noticed it, ns UTC.
    * `had`: newest record that the destination had confirmed.
    * `has`: newest record that the destination has now.
    """

    at: int
    had: int
    has: int


class ManagedReplayRecord(PositionRecord, tag="managed"):
    """Stored managed replay. Texts are as its creator wrote them; only its `client` may subscribe to it.

    `first`, `not_before`, `last` and `not_after` are the requested ReplaySpan. `position` is the first record
    that the client has not been given; `certain` is the first that it may not have read.
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
    """Whether a record of the span's beginning was reached."""
    began_at: int = 0
    """Sequence at which it started, the base of its progress; 0 before its first record."""
    recorded_at: int = 0
    """Acceptance time of the newest delivered record; 0 before the first."""
    delivered_messages: int = 0
    certain: int = 0
    """First sequence that the client may not have read, as far as the broker knows; 0: equal to
    `position`."""
    caught_up: bool = False
    """Whether its subscription was sent `completed`."""
    ended: Literal["", "completed", "cancelled"] = ""
    """How the replay ended; "" while it has not."""
    ended_at: int = 0
    carried: int = 0
    """Newest record that a link's destination has confirmed. The link does not carry every record below
    `position`."""
    carried_limit: int = 0
    """Newest record that a link can have carried, stored while nothing is carried. 0 while a link carries,
    and for links of a group."""
    carried_to: str = ""
    """Instance to which a link carried last."""
    carried_generation: int = 0
    """Generation of the group's log in which a link carried last; 0 for a standalone broker."""
    set_back: DestinationSetBack | None = None
    """Last loss at a link's destination."""
    steered_at: int = 0
    """Time of the last pause, resume or change of rate."""

    @property
    def owner(self) -> str:
        return f"managed replay {self.name}"

    @property
    def span(self) -> ReplaySpan:
        """Remainder of the requested span."""
        not_before = 0 if self.begun else self.not_before
        return ReplaySpan(max(self.first, self.expires_from), not_before, self.last, self.not_after)

    @property
    def pinned_from(self) -> int | None:
        return None if self.ended else self.expires_from

    @property
    def expires_from(self) -> int:
        """First sequence that the replay needs: its pin, and the resume point without a `received`."""
        return min(self.certain or self.position, self.position)

    def state(self, connected: bool) -> ReplayState:
        """Return the state shown to operators. `connected`: its client is subscribed."""
        if self.ended:
            return self.ended
        if self.paused:
            return "paused"
        if not connected:
            return "waiting"
        return "following" if self.caught_up else "running"

    def advance(self, position: int) -> bool:
        """Move the position forward. Return False, without a change, if `position` is not greater."""
        if position <= self.position:
            return False
        self.began_at = self.began_at or self.position
        self.position = position
        return True

    def note_progress(self, position: int, certain: int) -> None:
        """Move `position` and `certain`, the first record that the client may not have read.

        Neither moves back.
        """
        certain_from = self.expires_from
        self.advance(position)
        self.certain = max(certain, certain_from)

    def merge(self, update: ManagedReplayRecord) -> None:
        """Merge another member's record of the same replay into this one.

        The greater position wins, an end is final, and the later change of settings wins. So all members
        reach the same record in whatever order the updates arrive.
        """
        certain_from = max(self.expires_from, update.expires_from)
        if update.steering > self.steering:
            for name in STEERED:
                setattr(self, name, getattr(update, name))
        self.recorded_at = max(self.recorded_at, update.recorded_at)
        self.position = max(self.position, update.position)
        self.certain = certain_from if certain_from < self.position else 0
        self.began_at = min(filter(None, (self.began_at, update.began_at)), default=0)
        self.begun = self.begun or update.begun
        self.delivered_messages = max(self.delivered_messages, update.delivered_messages)
        self.carried = max(self.carried, update.carried)
        self.carried_to = max(self.carried_to, update.carried_to)
        self.carried_generation = max(self.carried_generation, update.carried_generation)
        found = [one for one in (self.set_back, update.set_back) if one is not None]
        self.set_back = max(found, key=lambda one: (one.at, one.had, one.has), default=None)
        if (update.ended_at, update.ended) > (self.ended_at, self.ended):
            self.ended, self.ended_at = update.ended, update.ended_at

    @property
    def steering(self) -> tuple[int, tuple[str, ...]]:
        """Time and values of the last change of settings. Members of a group agree on the greatest."""
        return self.steered_at, tuple(str(getattr(self, name)) for name in STEERED)

    def end_sequence(self, newest: int) -> int:
        """Return the last sequence to deliver, as far as known.

        `newest` is the newest sequence of the log.
        """
        return min(self.last, newest)

    def progress(self, newest: int) -> float:
        """Return the progress from 0 to 1; a replay without an end has 1 when it has caught up."""
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
    """Sequences of the log with the checksum of their JSON bytes."""

    crc: int
    upto: msgspec.Raw


def encode_positions(entries: Iterable[Entry], emptied: Mapping[str, int] = MappingProxyType({})) -> bytes:
    """Return the content of the file for these records and deleted shared subscriptions."""
    return join_encoded(encode_entries(list(entries)), emptied)


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Return the JSON of some records as list items: separated by commas, without brackets."""
    return msgspec.json.encode(entries)[1:-1]


def join_encoded(entries: bytes, emptied: Mapping[str, int], applied_upto: int = 0) -> bytes:
    """Return the content of the file.

    Args:
        entries: Joined results of `encode_entries`.
        emptied: Newest sequence of the log at the deletion of each shared subscription, by name.
        applied_upto: Newest sequence of a group's log whose updates the records include; 0 leaves it out.
    """
    records, upto = b"[%b]" % entries, msgspec.json.encode(dict(emptied))
    document: dict[str, Any] = {"version": VERSION, "crc": crc32c(records), "kept": msgspec.Raw(records)}
    if emptied:
        document["emptied"] = _LogMark(crc32c(upto), msgspec.Raw(upto))
    if applied_upto:
        upto = msgspec.json.encode(applied_upto)
        document["taken"] = _LogMark(crc32c(upto), msgspec.Raw(upto))
    return msgspec.json.encode(document)


def load_applied_upto(path: Path) -> int:
    """Return the newest sequence of a group's log whose updates the file includes, after `load_positions`.

    Returns 0 when the file has no such value or its checksum is wrong.
    """
    try:
        return _checked(path, "taken", int) or 0
    except ValueError as problem:
        log.warning("kept_read_anew", file=str(path), why=str(problem))
        return 0


def load_positions(files: FileSystem, path: Path) -> Sequence[Entry]:
    """Read the stored records, and remove temporary files. Call it while no task writes the file.

    Returns an empty sequence when the file does not exist. Raises OperatorError bad_kept_positions when the
    file can't be read as records; OSError.
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
        records = found.get("kept", _MISSING)
        if version != VERSION:
            raise ValueError(f"version {version}")
        if crc != crc32c(records):
            raise ValueError("its checksum doesn't fit")
        return msgspec.json.decode(records, type=list[Entry])
    except ValueError as problem:
        raise OperatorError(
            "bad_kept_positions",
            f"{path} can't be read: {problem}.",
            "Restore it, or move it away: then nothing is kept of clients that are away.",
        ) from problem


def load_deleted(path: Path) -> dict[str, int]:
    """Return the log's newest sequence at the deletion of each shared subscription, by name.

    Call it after `load_positions`; raises the same errors.
    """
    try:
        return _checked(path, "emptied", dict[str, int]) or {}
    except ValueError as problem:
        raise OperatorError(
            "bad_kept_positions",
            f"{path} can't be read: {problem}.",
            "Restore it, or move it away, which forgets what is kept for clients that are away.",
        ) from problem


def _checked(path: Path, field: str, of: type[T]) -> T | None:
    """Return a field that has a checksum of its own; None if the file does not have it. Raises ValueError."""
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw]).get(field)
    if found is None:
        return None
    mark = msgspec.json.decode(found, type=_LogMark)
    if mark.crc != crc32c(mark.upto):
        raise ValueError(f"the checksum of {field} doesn't fit")
    return msgspec.json.decode(mark.upto, type=of)
