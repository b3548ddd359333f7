"""What a member needs of an engine: an ordered log of a few hundred entries a second, which a quorum has before anybody reads them.

An entry's bytes as they travel: batches as they are, or packed, where that makes them much smaller.

Three engines copy, store and sync each byte of an entry: some 10 ms of processor a MB at each, where deflating
takes two, once, and inflating between one and two at each member. A packed entry says so itself:

    | 0 magic "SLZ1" | 4 length u32 of what is packed | 8 deflated, without a checksum: batches have their own |

What isn't packed begins with a batch, "SLB1", or is empty. How it travelled changes nothing of what an entry becomes.
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
"""One entry: a batch of the largest size has to fit."""
ENTRY_BYTES = 2 * 1024 * 1024
"""What an entry is filled up to, before it is packed. Each costs engines and members some milliseconds whatever its size, and only what waits
for the one before it gathers: where little comes, entries are small."""


class LogServiceUnavailableError(Exception):
    """No server answers, or no quorum of them. The caller tries again."""


class AppendConflictError(Exception):
    """Somebody has appended under this member's name since the entry that was expected to be its newest."""


class EntrySender(NamedTuple):
    """Who appended an entry: a member, the run of its process, and the number of the entry in that run."""

    member: str
    run: str
    number: int


class LogEntry(NamedTuple):
    """One entry of the log. `number` is its place there, from 1 without holes; `at` the engine's time, the same for all readers;
    `behind` how many entries there are behind it."""

    number: int
    at: int
    sender: EntrySender
    content: bytes
    behind: int


class StreamInfo(NamedTuple):
    """The log as the engine has it. `servers` are how many keep it, `current` how many of those are up to date: have
    all that the log had when it was looked at the time before. `heard`: how many the leader
    has heard recently, itself included."""

    log: UUID
    generation: int
    first: int
    last: int
    leader: str
    servers: int
    current: int
    base: int = 0
    """The record that its first entry comes behind: what is up to there members have, and no entry."""
    base_chain: bytes = b""
    """The hash at that record."""
    key: bytes = b""
    """Secret of the log, by which members know each other's resume tokens."""
    heard: int = 1


class StreamOrigin(NamedTuple):
    """A log that is to be: it goes on behind the record `base` of a journal, where that one's hash is `chain`."""

    log: UUID
    generation: int = 1
    base: int = 0
    chain: bytes = b""


@dataclass
class NoticeExchange:
    """Messages that members send each other beside the log, and that may get lost: see
    `connections.name_notices`."""

    wanted: asyncio.Event
    """Set while there is something to send."""
    send_all: Callable[[], None]
    """Queue everything that still holds again: the log has just been found."""
    next_message: Callable[[], bytes | None]
    """Return the next message, a JSON array; None when everything was sent."""
    receive: Callable[[bytes], None]
    """Process a message of any member, this one among them."""


class SharedLog(Protocol):
    """One log at an engine. Whatever needs an answer raises LogServiceUnavailableError without one."""

    async def attach(self, offered: UUID | None, *, elsewhere: bool = False) -> StreamInfo:
        """Connect and find the log; make it, with the identity that is offered, where there is none.

        `elsewhere`: connect to another server than the last time, where one is named, and take the answer of
        a leader only if a majority answers it (else LogServiceUnavailableError).

        OperatorError engine_lost when there is none and none is offered, wrong_stream when it can't be the group's.
        """

    async def create_stream(self, beginning: StreamOrigin) -> StreamInfo:
        """Connect, and make the log. OperatorError log_exists when there is one of that name, wrong_stream."""

    async def retire_stream(self) -> str:
        """Connect, and let nobody append to the log any more; it stays, and isn't found. What the engine calls it."""

    async def stream_info(self) -> StreamInfo:
        """How the log is now."""

    async def append(self, sender: EntrySender, content: bytes, expected: int) -> int:
        """The place of the entry. AppendConflictError when the newest of this member isn't the one at `expected` (0: none)."""

    async def newest_entry(self) -> tuple[int, EntrySender] | None:
        """This member's newest entry and its place."""

    async def read_from(self, number: int) -> None:
        """Read from that place on."""

    async def next_entry(self, max_bytes: int) -> list[LogEntry]:
        """What there is, one entry at least and `max_bytes` unpacked about, in order and without holes."""

    async def publish_status(self, content: bytes) -> None:
        """Tell the other members; may get lost."""

    def read_statuses(self, heard: Callable[[bytes], None]) -> None:
        """Call this with what members tell, from the next `attach` on."""

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected; it may lack a quorum."""

    async def close(self) -> None:
        """Let go of the engine."""


WORTH_BYTES: Final = 4 * 1024
"""Smaller entries are a matter of disks' syncs, not of bytes."""
_WORTH: Final = 0.8
"""Of its length at most, or an entry stays as it is."""
_LEVEL: Final = 1
_MAGIC: Final = b"SLZ1"
_HEAD = struct.Struct("<4sI")
_INFLATE_ERRORS = (cast("type[Exception]", isal_zlib.error), ValueError)


def pack_entry(content: bytes) -> bytes:
    """The shorter form of an entry's bytes."""
    if not WORTH_BYTES <= len(content) <= MAX_ENTRY_BYTES:
        return content
    packer = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, -15)
    found = b"".join((_HEAD.pack(_MAGIC, len(content)), packer.compress(content), packer.flush()))
    return found if len(found) < _WORTH * len(content) else content


def unpacked_size(content: bytes) -> int:
    """How long an entry is unpacked, as it says."""
    if not content.startswith(_MAGIC) or len(content) < _HEAD.size:
        return len(content)
    return int(_HEAD.unpack_from(content)[1])


def unpack_entry(content: bytes) -> bytes:
    """Its batches. ClientError bad_batch when that isn't what was packed; never more than MAX_ENTRY_BYTES are made of it."""
    if not content.startswith(_MAGIC):
        return content
    length = unpacked_size(content)
    if length > MAX_ENTRY_BYTES:
        raise _bad(f"{length} bytes are packed, and an entry has {MAX_ENTRY_BYTES}")
    inflater = isal_zlib.decompressobj(-15)
    try:
        found = inflater.decompress(memoryview(content)[_HEAD.size :], length + 1)
    except _INFLATE_ERRORS as problem:
        raise _bad(str(problem)) from None
    if len(found) != length or not inflater.eof:
        raise _bad(f"{length} bytes were packed, and {len(found)} came out")
    return found


def _bad(why: str) -> ClientError:
    return ClientError(
        "bad_batch", f"What is packed can't be unpacked: {why}.", "Look at the engines' disks."
    )
