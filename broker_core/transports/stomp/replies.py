"""Replies to a STOMP client: receipts, the last ERROR, and MESSAGE frames between outbox and socket.

`MessageFrameQueue` holds MESSAGE frames and joins them in slices when the socket accepts them. A batch of
small records becomes many times its size as STOMP. So the queue holds the batch's shared frames, and only one
slice of bytes.

`StompReplyWriter` is shared by the parts of a session: it has the connection and the version, and sends
frames.

`ErrorCloser` ends a connection. STOMP has only one frame for that, ERROR, which is the last frame, and
DISCONNECT's receipt. So if a policy ends one subscription, the connection ends, with the figures of the
decision.
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
from broker_core.protocols.stomp.replies import FinalReply, error_frame, receipt_frames

if TYPE_CHECKING:
    from broker_core.connections.connection import Connection


SLICE_BYTES: Final = 64 * 1024
"""Bytes that are joined and sent at a time, also as one WebSocket message. A longer frame is sent alone."""


class MessageFrameQueue:
    """Queue of one client's MESSAGE frames.

    Slices have whole frames, so another frame may be sent between two slices.
    """

    def __init__(self) -> None:
        self._waiting: deque[MessageFrames | bytes] = deque()
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, frames: MessageFrames | bytes) -> int:
        """Queue frames, or a single frame that must not overtake them. Return their bytes."""
        nbytes = len(frames) if isinstance(frames, bytes) else frames.nbytes
        self._waiting.append(frames)
        self.nbytes += nbytes
        return nbytes

    def take(self) -> bytes:
        """Remove and return the next slice; b"" when the queue is empty."""
        slices: list[bytes] = []
        size = 0
        while self._waiting and size < SLICE_BYTES:
            first = self._waiting.popleft()
            if isinstance(first, bytes):
                part = first
            else:
                part, remainder = first.take(SLICE_BYTES - size)
                if remainder is not None:
                    self._waiting.appendleft(remainder)
            slices.append(part)
            size += len(part)
        self.nbytes -= size
        return slices[0] if len(slices) == 1 else b"".join(slices)

    def drop(self) -> int:
        """Discard the queued frames. Return their bytes."""
        dropped, self.nbytes = self.nbytes, 0
        self._waiting.clear()
        return dropped

    def receipts(self) -> bytes:
        """Return the queued receipts, which the last frame of a connection must not replace."""
        return b"".join(one for one in self._waiting if isinstance(one, bytes) and one.startswith(b"RECEIPT"))


MAX_UNREAD_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of receipts that wait for a peer whose socket accepts nothing.

The reply to one batch may have hundreds of receipts, each as long as the peer has chosen.
"""
DISCONNECT_WAIT_S: Final = 5.0
"""Maximum seconds for which a DISCONNECT waits until the client has been sent its messages."""
_SENT_CHECK_S: Final = 0.02
RECEIPT: Final = "receipt"
"""Value of `Ack.of` in a reply to a frame with a receipt header."""


class SessionTransport(ConnectionSink, Protocol):
    """Transport below a STOMP session."""

    def end(self) -> None:
        """Close at the client's request."""

    def write_frame(self, frame: bytes, *, behind: bool = False, last: bool = False) -> None:
        """Send a frame immediately, or `behind` the queued messages, or in their place as the `last` one."""


class StompReplyWriter:
    """Sends one client's frames. The session sets `connection` when it begins."""

    __slots__ = ("_receipts", "_unread_bytes", "connection", "out", "reader", "receipt")
    connection: Connection

    def __init__(self, out: SessionTransport) -> None:
        self.out = out
        self.reader = StompFrameReader(FrameLimits.before_logon())
        self.receipt = ""
        """Receipt that the current frame requests."""
        self._receipts: list[bytes] = []
        """Receipts of this event-loop iteration.

        A thousand SUBSCRIBEs, or batches that are durable together, need one write.
        """
        self._unread_bytes = 0

    @property
    def version(self) -> StompVersion:
        """STOMP version of the session."""
        return self.reader.version or StompVersion.V12

    def send_receipts(self, receipts: Sequence[str], *, behind: bool = False) -> None:
        """Send the receipts of executed frames."""
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
        """Send the receipts of this iteration. Called before any other frame is sent."""
        if self._receipts:
            frames = b"".join(self._receipts)
            self._receipts.clear()
            self.out.write_frame(frames)

    def send_frame(self, frame: bytes, *, behind: bool = False, last: bool = False) -> None:
        """Send a frame, like `SessionTransport.write_frame`."""
        self.flush()
        self.out.write_frame(frame, behind=behind, last=last)

    def send_final_receipt(self, receipt: str) -> None:
        """Send a receipt as the last frame, instead of the queued messages."""
        if receipt:
            self.send_frame(receipt_frames([receipt], self.version), last=True)

    @property
    def on_processed(self) -> replies.Ack:
        """Reply for the current frame's receipt. The connection sends it behind its other replies."""
        return replies.Ack(ack="processed", of=RECEIPT, id=self.receipt)


class ErrorCloser:
    """Ends one client's connection with an ERROR frame or a final receipt."""

    __slots__ = ("_cancelled", "_has_ended", "_reply_writer", "last_decision_id")

    def __init__(self, reply_writer: StompReplyWriter) -> None:
        self._reply_writer = reply_writer
        self._has_ended = False
        self._cancelled: replies.SubscriptionCancelled | None = None
        self.last_decision_id = ""
        """Id of the decision in the last frame."""

    def send_last_frame(self, reply: FinalReply, receipt: str = "") -> None:
        """Send an ERROR as the last frame. Only the first call has an effect."""
        if not self._has_ended:
            self._has_ended = True
            reply_writer = self._reply_writer
            reply_writer.send_frame(error_frame(reply, receipt, reply_writer.version), last=True)

    def send_error(self, reply: replies.ErrorReply, receipt: str) -> None:
        """Close the connection with the ERROR of a failed request."""
        self.send_last_frame(reply, receipt)
        self._reply_writer.connection.close(reply.code, reply.message)

    def close_after_disconnect(self, receipt: str) -> None:
        """End the connection after DISCONNECT, when all input before it has been executed.

        A client that reads gets the messages that were matched before, at most for DISCONNECT_WAIT_S.
        """
        self._has_ended = True
        self._reply_writer.flush()
        self._close_when_sent(receipt, asyncio.get_running_loop().time() + DISCONNECT_WAIT_S)

    def _close_when_sent(self, receipt: str, deadline: float) -> None:
        """End the connection if no message waits for its socket, or the deadline has passed."""
        connection, out, loop = (
            self._reply_writer.connection,
            self._reply_writer.out,
            asyncio.get_running_loop(),
        )
        backlog = connection.backlog
        waits = backlog.offline is None and (backlog.outbox.nbytes or not out.is_flushed)
        if waits and not connection.is_closed and loop.time() < deadline:
            loop.call_later(_SENT_CHECK_S, self._close_when_sent, receipt, deadline)
            return
        self._reply_writer.send_final_receipt(receipt)
        connection.end_session("closed")
        out.end()

    def on_subscription_cancelled(self, reply: replies.SubscriptionCancelled) -> None:
        """Remember a subscription that a policy ended.

        The decision's notice comes in the same event-loop iteration.
        """
        self._cancelled = reply
        asyncio.get_running_loop().call_soon(self._without_notice)

    def on_decision_notice(self, reply: replies.DecisionNotice) -> bool:
        """Close the connection with a decision's notice if the decision ended it or a subscription.

        Return whether it did.
        """
        cancelled = self._cancelled
        if self._reply_writer.connection.is_closed:
            self.last_decision_id = reply.decision or ""
            self.send_last_frame(reply)
            return True
        if cancelled is not None and cancelled.decision == reply.decision:
            self._cancelled = None
            notice = msgspec.structs.replace(
                reply,
                resume=cancelled.bookmark or reply.resume,
                subscription=cancelled.id,
                retry_after_ms=cancelled.retry_after_ms,
            )
            self.send_last_frame(notice)
            self._reply_writer.connection.close(cancelled.code, cancelled.message)
            return True
        return False

    def _without_notice(self) -> None:
        """Close the connection of a cancelled subscription without a notice, because none has come."""
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None and not self._reply_writer.connection.is_closed:
            self.send_last_frame(cancelled)
            self._reply_writer.connection.close(cancelled.code, cancelled.message)
