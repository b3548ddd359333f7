"""What the parts of a session have in common: the connection, how something is said to the client, and in which version."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from broker_core.delivery.sink import ConnectionSink
from broker_core.protocols import replies
from broker_core.protocols.stomp.frames import FrameLimits, StompFrameReader, StompVersion
from broker_core.protocols.stomp.replies import receipt_frames

if TYPE_CHECKING:
    from broker_core.connections.connection import Connection

MOST_UNREAD_BYTES: Final = 4 * 1024 * 1024
"""Of receipts that may wait for a peer whose socket takes nothing: one answer to a batch has hundreds, each as long as the peer likes."""
RECEIPT: Final = "receipt"
"""Of an answer to a frame that asked for one."""


class Out(ConnectionSink, Protocol):
    """What carries a session."""

    def end(self) -> None:
        """Close, as the client asked."""

    def say(self, frame: bytes, *, behind: bool = False, last: bool = False) -> None:
        """Send a frame at once; `behind` the messages that are on their way; or in their place, as the `last`."""


class Talk:
    """One client's. The `connection` is there once the session has begun."""

    __slots__ = ("_receipts", "_unread_bytes", "connection", "out", "reader", "receipt")
    connection: Connection

    def __init__(self, out: Out) -> None:
        self.out = out
        self.reader = StompFrameReader(FrameLimits.before_logon())
        self.receipt = ""
        """What the frame under way is to be answered with."""
        self._receipts: list[bytes] = []
        """Of this turn: a thousand SUBSCRIBEs or batches that are on disk together need one write, not a thousand."""
        self._unread_bytes = 0

    @property
    def version(self) -> StompVersion:
        """The one that is spoken."""
        return self.reader.version or StompVersion.V12

    def say_receipts(self, receipts: Sequence[str], *, behind: bool = False) -> None:
        """What asked for these is done."""
        frames = receipt_frames(receipts, self.version)
        if not frames:
            return
        self._unread_bytes = 0 if self.out.writable else self._unread_bytes + len(frames)
        if self._unread_bytes > MOST_UNREAD_BYTES:
            self.connection.end_unread()
        elif behind:
            self.say(frames, behind=True)
        else:
            if not self._receipts:
                asyncio.get_running_loop().call_soon(self.flush)
            self._receipts.append(frames)

    def flush(self) -> None:
        """Send this turn's receipts, before anything else is."""
        if self._receipts:
            joined = b"".join(self._receipts)
            self._receipts.clear()
            self.out.say(joined)

    def say(self, frame: bytes, *, behind: bool = False, last: bool = False) -> None:
        """Send a frame, as `Out` does."""
        self.flush()
        self.out.say(frame, behind=behind, last=last)

    def say_last_receipt(self, receipt: str) -> None:
        """In place of what is on its way: nothing follows."""
        if receipt:
            self.say(receipt_frames([receipt], self.version), last=True)

    @property
    def processed(self) -> replies.Ack:
        """The connection's answer to the frame under way; said behind what it had to say before."""
        return replies.Ack(ack="processed", of=RECEIPT, id=self.receipt)
