"""What a member needs of an engine: an ordered log of a few hundred entries a second, which a quorum has before anybody reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from broker_core.batch import MAX_BATCH_BYTES

MAX_ENTRY_BYTES = MAX_BATCH_BYTES
"""One entry: a batch of the largest size has to fit."""
ENTRY_BYTES = 2 * 1024 * 1024
"""What an entry is filled up to, before it is packed. Each costs engines and members some milliseconds whatever its size, and only what waits
for the one before it gathers: where little comes, entries are small."""


class EngineAwayError(Exception):
    """No server answers, or no quorum of them. The caller tries again."""


class OutrunError(Exception):
    """Somebody has appended under this member's name since the entry that was expected to be its newest."""


class Sender(NamedTuple):
    """Who appended an entry: a member, the run of its process, and the number of the entry in that run."""

    member: str
    run: str
    number: int


class Entry(NamedTuple):
    """One entry of the log. `number` is its place there, from 1 without holes; `at` the engine's time, the same for all readers;
    `behind` how many entries there are behind it."""

    number: int
    at: int
    sender: Sender
    content: bytes
    behind: int


class Attached(NamedTuple):
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


class Beginning(NamedTuple):
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


class EngineLog(Protocol):
    """One log at an engine. Whatever needs an answer raises EngineAwayError without one."""

    async def attach(self, offered: UUID | None, *, elsewhere: bool = False) -> Attached:
        """Connect and find the log; make it, with the identity that is offered, where there is none.

        `elsewhere`: connect to another server than the last time, where one is named, and take the answer of
        a leader only if a majority answers it (else EngineAwayError).

        OperatorError engine_lost when there is none and none is offered, wrong_stream when it can't be the group's.
        """

    async def begin(self, beginning: Beginning) -> Attached:
        """Connect, and make the log. OperatorError log_exists when there is one of that name, wrong_stream."""

    async def set_aside(self) -> str:
        """Connect, and let nobody append to the log any more; it stays, and isn't found. What the engine calls it."""

    async def look(self) -> Attached:
        """How the log is now."""

    async def append(self, sender: Sender, content: bytes, expected: int) -> int:
        """The place of the entry. OutrunError when the newest of this member isn't the one at `expected` (0: none)."""

    async def newest(self) -> tuple[int, Sender] | None:
        """This member's newest entry and its place."""

    async def read_from(self, number: int) -> None:
        """Read from that place on."""

    async def next(self, max_bytes: int) -> list[Entry]:
        """What there is, one entry at least and `max_bytes` unpacked about, in order and without holes."""

    async def tell(self, content: bytes) -> None:
        """Tell the other members; may get lost."""

    def hear(self, heard: Callable[[bytes], None]) -> None:
        """Call this with what members tell, from the next `attach` on."""

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected; it may lack a quorum."""

    async def close(self) -> None:
        """Let go of the engine."""
