"""Transactions: what a client sends within one is held back until COMMIT, and forgotten at ABORT or when it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from broker_core.batch import MAX_DICTIONARY
from broker_core.errors import ClientError
from broker_core.protocols.stomp.frames import StompFrame

MOST_OPEN: Final = 16
MOST_FRAMES: Final = 1_024
"""In one transaction."""
MOST_TOPICS: Final = MAX_DICTIONARY - 1
"""Of one transaction: it becomes one batch."""
MOST_BYTES: Final = 15 * 1024 * 1024
"""Of the bodies and headers of all that are open: one becomes one batch, and what never ends costs no more."""


@dataclass(slots=True)
class _Transaction:
    frames: list[StompFrame] = field(default_factory=list)
    topics: set[str] = field(default_factory=set)
    nbytes: int = 0
    """What it holds back."""


class Transactions:
    """One connection's."""

    def __init__(self) -> None:
        self._open: dict[str, _Transaction] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """What all of them hold back."""
        return self._nbytes

    def begin(self, name: str) -> None:
        """ClientError bad_transaction: there is one of that name, or as many as there may be."""
        if name in self._open:
            raise _bad(f"There is a transaction {name[:80]!r} already.", name)
        if len(self._open) >= MOST_OPEN:
            raise _bad(f"A connection has {MOST_OPEN} open transactions at most.", name)
        self._open[name] = _Transaction()

    def add(self, name: str, frame: StompFrame, topic: str | None = None) -> None:
        """Hold a frame back, of a SEND with its topic. ClientError bad_transaction: there is none, or a limit is passed."""
        found = self._find(name)
        found.frames.append(frame)
        if topic is not None:
            found.topics.add(topic)
        nbytes = (
            len(frame.body)
            + sum(len(key) + len(value) + 2 for key, value in frame.headers.items())
            + len(frame.receipt)
        )
        found.nbytes += nbytes
        self._nbytes += nbytes
        if len(found.frames) > MOST_FRAMES:
            raise _bad(f"A transaction has {MOST_FRAMES:,} frames at most.", name)
        if len(found.topics) > MOST_TOPICS:
            raise _bad(f"A transaction sends to {MOST_TOPICS:,} topics at most.", name)
        if self._nbytes > MOST_BYTES:
            raise _bad(f"A connection's open transactions have {MOST_BYTES:,} bytes at most.", name)

    def end(self, name: str) -> list[StompFrame]:
        """Its frames; it is over. ClientError bad_transaction."""
        found = self._find(name)
        del self._open[name]
        self._nbytes -= found.nbytes
        return found.frames

    def drop(self) -> None:
        """Whoever began them is gone."""
        self._open.clear()
        self._nbytes = 0

    def _find(self, name: str) -> _Transaction:
        found = self._open.get(name)
        if found is None:
            raise _bad(f"There is no transaction {name[:80]!r}.", name)
        return found


def _bad(sentence: str, name: str) -> ClientError:
    return ClientError(
        "bad_transaction",
        sentence,
        "BEGIN a transaction once, then COMMIT or ABORT it.",
        transaction=name[:80],
    )
