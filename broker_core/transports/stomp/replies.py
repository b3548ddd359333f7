"""MESSAGE frames between a client's outbox and its socket: joined a slice at a time, when the socket takes it.

A batch of small records becomes many times its size as STOMP. What waits here is therefore the batch's shared frames, and
one slice of them in bytes.

What the parts of a session have in common: the connection, how something is said to the client, and in which version.

How a connection ends. STOMP has one word for that: an ERROR, which is the last frame; and DISCONNECT's receipt.

So the end of one subscription by a policy is the end of its connection, told with the figures of the decision.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from broker_core.delivery.sink import ConnectionSink
from broker_core.protocols import replies
from broker_core.protocols.stomp.frames import FrameLimits, StompFrameReader, StompVersion
from broker_core.protocols.stomp.message_frames import MessageFrames
from broker_core.protocols.stomp.replies import Last, error_frame, receipt_frames

if TYPE_CHECKING:
    from broker_core.connections.connection import Connection


SLICE_BYTES: Final = 64 * 1024
"""Bytes that are joined and handed on at a time, and a WebSocket message's; a longer frame goes by itself."""


class MessageFrameQueue:
    """One client's, in order. Whole frames, so that something else may be said between two slices."""

    def __init__(self) -> None:
        self._waiting: deque[MessageFrames | bytes] = deque()
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, frames: MessageFrames | bytes) -> int:
        """Queue frames, or one that must not overtake them; how many bytes they are."""
        nbytes = len(frames) if isinstance(frames, bytes) else frames.nbytes
        self._waiting.append(frames)
        self.nbytes += nbytes
        return nbytes

    def take(self) -> bytes:
        """The next slice; b"" when nothing waits."""
        taken: list[bytes] = []
        size = 0
        while self._waiting and size < SLICE_BYTES:
            first = self._waiting.popleft()
            if isinstance(first, bytes):
                part = first
            else:
                part, rest = first.take(SLICE_BYTES - size)
                if rest is not None:
                    self._waiting.appendleft(rest)
            taken.append(part)
            size += len(part)
        self.nbytes -= size
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def drop(self) -> int:
        """Forget what waits; how many bytes that was."""
        dropped, self.nbytes = self.nbytes, 0
        self._waiting.clear()
        return dropped


MAX_UNREAD_BYTES: Final = 4 * 1024 * 1024
"""Of receipts that may wait for a peer whose socket takes nothing: one answer to a batch has hundreds, each as long as the peer likes."""
RECEIPT: Final = "receipt"
"""Of an answer to a frame that asked for one."""


class SessionTransport(ConnectionSink, Protocol):
    """What carries a session."""

    def end(self) -> None:
        """Close, as the client asked."""

    def write_frame(self, frame: bytes, *, behind: bool = False, last: bool = False) -> None:
        """Send a frame at once; `behind` the messages that are on their way; or in their place, as the `last`."""


class StompReplyWriter:
    """One client's. The `connection` is there once the session has begun."""

    __slots__ = ("_receipts", "_unread_bytes", "connection", "out", "reader", "receipt")
    connection: Connection

    def __init__(self, out: SessionTransport) -> None:
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

    def send_receipts(self, receipts: Sequence[str], *, behind: bool = False) -> None:
        """What asked for these is done."""
        frames = receipt_frames(receipts, self.version)
        if not frames:
            return
        self._unread_bytes = 0 if self.out.is_writable else self._unread_bytes + len(frames)
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self.connection.close_unread_replies()
        elif behind:
            self.send_frame(frames, behind=True)
        else:
            if not self._receipts:
                asyncio.get_running_loop().call_soon(self.flush)
            self._receipts.append(frames)

    def flush(self) -> None:
        """Send this turn's receipts, before anything else is."""
        if self._receipts:
            joined = b"".join(self._receipts)
            self._receipts.clear()
            self.out.write_frame(joined)

    def send_frame(self, frame: bytes, *, behind: bool = False, last: bool = False) -> None:
        """Send a frame, as `SessionTransport` does."""
        self.flush()
        self.out.write_frame(frame, behind=behind, last=last)

    def send_final_receipt(self, receipt: str) -> None:
        """In place of what is on its way: nothing follows."""
        if receipt:
            self.send_frame(receipt_frames([receipt], self.version), last=True)

    @property
    def on_processed(self) -> replies.Ack:
        """The connection's answer to the frame under way; said behind what it had to say before."""
        return replies.Ack(ack="processed", of=RECEIPT, id=self.receipt)


class ErrorCloser:
    """One client's."""

    __slots__ = ("_cancelled", "_said", "_talk", "telling")

    def __init__(self, talk: StompReplyWriter) -> None:
        self._talk = talk
        self._said = False
        self._cancelled: replies.SubscriptionCancelled | None = None
        self.telling = ""
        """The decision that the client was told last, before its connection is closed."""

    def send_last_frame(self, reply: Last, receipt: str = "") -> None:
        """The last frame; what would follow it isn't said."""
        if not self._said:
            self._said = True
            talk = self._talk
            talk.send_frame(error_frame(reply, receipt, talk.version), last=True)

    def send_error(self, reply: replies.ErrorReply, receipt: str) -> None:
        """What the client asked for can't be had."""
        self.send_last_frame(reply, receipt)
        self._talk.connection.close(reply.code, reply.message)

    def close_after_disconnect(self, receipt: str) -> None:
        """DISCONNECT, and all that came before it is done."""
        self._said = True
        self._talk.flush()
        self._talk.send_final_receipt(receipt)
        self._talk.connection.end_session("closed")
        self._talk.out.end()

    def on_subscription_cancelled(self, reply: replies.SubscriptionCancelled) -> None:
        """A policy ended a subscription: what the decision says of it comes in the same turn."""
        self._cancelled = reply
        asyncio.get_running_loop().call_soon(self._without_notice)

    def on_decision_notice(self, reply: replies.DecisionNotice) -> None:
        """What a policy decided; said when it is the end of something."""
        cancelled = self._cancelled
        if self._talk.connection.is_closed:
            self.telling = reply.decision or ""
            self.send_last_frame(reply)
        elif cancelled is not None and cancelled.decision == reply.decision:
            self._cancelled = None
            told = msgspec.structs.replace(
                reply,
                resume=cancelled.bookmark or reply.resume,
                subscription=cancelled.id,
                retry_after_ms=cancelled.retry_after_ms,
            )
            self.send_last_frame(told)
            self._talk.connection.close(cancelled.code, cancelled.message)

    def _without_notice(self) -> None:
        """It was cancelled and nothing more was said of it: silence would be worse."""
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None and not self._talk.connection.is_closed:
            self.send_last_frame(cancelled)
            self._talk.connection.close(cancelled.code, cancelled.message)
