"""Interface of a log service, and the packed form of large entries.

A log service orders and replicates the log of a group. The log has at most a few hundred entries a second.
A quorum of servers has stored an entry before any member reads it.

Three servers copy, store and sync each byte of an entry, which costs about 10 ms of processor time per MB
on each. Deflating costs 2 ms per MB once, and inflating 1 to 2 ms at each member. So a large entry is
packed if that makes it much smaller:

    | 0 magic "SLZ1" | 4 unpacked length u32 | 8 deflated, without a checksum: batches have their own |

An entry that isn't packed begins with a batch, "SLB1", or is empty. Packing never changes how an entry is
applied.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, cast
from uuid import UUID

from isal import isal_zlib

from broker_core.batch import MAX_BATCH_BYTES
from broker_core.errors import ClientError

MAX_ENTRY_BYTES = MAX_BATCH_BYTES
"""Maximum bytes of an entry. A batch of the largest size must fit."""
ENTRY_BYTES = 2 * 1024 * 1024
"""Target size of an entry before packing, in bytes.

An entry costs servers and members some milliseconds whatever its size. Only batches that wait for the entry
before gather, so entries stay small under low load.
"""


class LogServiceUnavailableError(Exception):
    """No server of the log service answers, or no quorum of them. The caller tries again."""


class AppendConflictError(Exception):
    """The member's newest entry isn't the one that the append expected: another append came first."""


class EntrySender(NamedTuple):
    """Sender of an entry: a member, the run of its process, and the number of the entry in that run."""

    member: str
    run: str
    number: int


class LogEntry(NamedTuple):
    """An entry of the log.

    `number` is its position in the log, from 1 without holes. `at` is the log service's time in ns, equal
    for all readers. `entries_after` is the number of entries after it.
    """

    number: int
    at: int
    sender: EntrySender
    content: bytes
    entries_after: int


class StreamInfo(NamedTuple):
    """State of the log at the log service.

    `first` and `last` are its oldest and newest entries. `servers` counts the servers that store it.
    `current` counts those that are up to date: they have everything that the log had at the check before.
    `reachable` counts the servers with recent contact to the leader, itself included.
    """

    log: UUID
    generation: int
    first: int
    last: int
    leader: str
    servers: int
    current: int
    base: int = 0
    """Record of the journals behind which the first entry comes.

    Members have records up to it; no entry has them.
    """
    base_chain: bytes = b""
    """Hash chain value at that record."""
    key: bytes = b""
    """Secret of the log. Members use it to verify each other's resume tokens."""
    reachable: int = 1


class StreamOrigin(NamedTuple):
    """A log to be created.

    It continues behind the record `base` of a journal, whose hash chain there is `chain`.
    """

    log: UUID
    generation: int = 1
    base: int = 0
    chain: bytes = b""


@dataclass
class NoticeExchange:
    """Messages that members send each other outside the log, and that may be lost.

    See `connections.name_notices`.
    """

    send_requested: asyncio.Event
    """Set while there is something to send."""
    send_all: Callable[[], None]
    """Queue all valid messages again, because the log was just found."""
    next_message: Callable[[], bytes | None]
    """Return the next message, a JSON array; None when everything was sent."""
    receive: Callable[[bytes], None]
    """Process a message of any member, this one included."""


class SharedLog(Protocol):
    """The log of a group at its log service.

    Methods that need an answer raise LogServiceUnavailableError without one.
    """

    async def attach(self, offered: UUID | None, *, elsewhere: bool = False) -> StreamInfo:
        """Connect and find the log; if there is none, create it with the identity `offered`.

        `elsewhere`: connect to another server than the last time, if the settings name one, and accept the
        answer of a leader only if it is in contact with a majority (else LogServiceUnavailableError).

        Raises OperatorError engine_lost if there is no log and none is offered, wrong_stream if the stream
        can't be the group's.
        """

    async def create_stream(self, beginning: StreamOrigin) -> StreamInfo:
        """Connect and create the log.

        Raises OperatorError log_exists if there is one of that name, wrong_stream.
        """

    async def retire_stream(self) -> str:
        """Connect and close the log to appends; return the name of its stream.

        The stream keeps its entries, but `attach` doesn't find it any longer.
        """

    async def stream_info(self) -> StreamInfo:
        """Return the current state of the log."""

    async def append(self, sender: EntrySender, content: bytes, expected: int) -> int:
        """Append an entry and return its position.

        `expected`: position of this member's newest entry, 0 if it has none. Raises AppendConflictError if
        the newest is another one.
        """

    async def newest_entry(self) -> tuple[int, EntrySender] | None:
        """Return the position and sender of this member's newest entry; None if it has none."""

    async def read_from(self, number: int) -> None:
        """Start reading at entry `number`."""

    async def next_entry(self, max_bytes: int) -> list[LogEntry]:
        """Return the next entries in order, without holes: at least one, and about `max_bytes` unpacked.

        Waits until there is one.
        """

    async def publish_status(self, content: bytes) -> None:
        """Send a message to the other members. It may be lost."""

    def read_statuses(self, on_message: Callable[[bytes], None]) -> None:
        """Register the callback for messages of members. It takes effect with the next `attach`."""

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected. It may lack a quorum."""

    async def close(self) -> None:
        """Close the connection."""


MIN_PACKED_BYTES: Final = 4 * 1024
"""Minimum bytes of an entry that is packed. The disks' syncs dominate the cost of smaller ones."""
_MAX_PACK_RATIO: Final = 0.8
"""Maximum ratio of packed to unpacked length; above it the entry is sent unpacked."""
_COMPRESSION_LEVEL: Final = 1
_MAGIC: Final = b"SLZ1"
_HEADER = struct.Struct("<4sI")
_INFLATE_ERRORS = (cast("type[Exception]", isal_zlib.error), ValueError)


def pack_entry(content: bytes) -> bytes:
    """Return the bytes of an entry, packed if that makes them much shorter."""
    if not MIN_PACKED_BYTES <= len(content) <= MAX_ENTRY_BYTES:
        return content
    packer = isal_zlib.compressobj(_COMPRESSION_LEVEL, isal_zlib.DEFLATED, -15)
    packed = b"".join((_HEADER.pack(_MAGIC, len(content)), packer.compress(content), packer.flush()))
    return packed if len(packed) < _MAX_PACK_RATIO * len(content) else content


def unpacked_size(content: bytes) -> int:
    """Return the unpacked length that an entry states."""
    if not content.startswith(_MAGIC) or len(content) < _HEADER.size:
        return len(content)
    return int(_HEADER.unpack_from(content)[1])


def unpack_entry(content: bytes) -> bytes:
    """Return the unpacked bytes of an entry, at most MAX_ENTRY_BYTES.

    Raises ClientError bad_batch if the packed bytes are damaged.
    """
    if not content.startswith(_MAGIC):
        return content
    length = unpacked_size(content)
    if length > MAX_ENTRY_BYTES:
        raise _bad_entry_error(f"{length} bytes are packed, and an entry has {MAX_ENTRY_BYTES}")
    inflater = isal_zlib.decompressobj(-15)
    try:
        unpacked = inflater.decompress(memoryview(content)[_HEADER.size :], length + 1)
    except _INFLATE_ERRORS as problem:
        raise _bad_entry_error(str(problem)) from None
    if len(unpacked) != length or not inflater.eof:
        raise _bad_entry_error(f"{length} bytes were packed, and {len(unpacked)} came out")
    return unpacked


def _bad_entry_error(reason: str) -> ClientError:
    return ClientError(
        "bad_batch",
        f"The packed entry can't be unpacked: {reason}.",
        "Check the disks of the log service's servers.",
    )
