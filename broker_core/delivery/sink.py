"""Interface between engine and transport (`Sink`), and detection of peers that don't read.

A transport (asyncio's for TCP, daphne's for WebSocket) accepts the deliveries that the broker hands to it.
When it holds more than TRANSPORT_HIGH_BYTES that the kernel hasn't accepted, it clears `is_writable`. (daphne
uses its own limit.) When it has drained, it calls `Connection.on_writable`. So unread deliveries wait in the
outbox, where policy sees them, and nowhere else.

A socket accepts bytes for a peer that doesn't read until the peer's kernel is full, and each message costs a
write meanwhile. The peer's receive window shows this at once: its end moves when the peer reads, and stays
when it doesn't. The width of the window says less, because kernels narrow it for reasons of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from broker_core.delivery.entries import OutboxEntry
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.replies import Reply

OBSERVATION_NS: Final = 500_000_000
"""Minimum observation window, ns. A peer that pauses for less than this does not count as not reading."""
MIN_OBSERVED_BYTES: Final = 16 * 1024
"""Minimum bytes that arrive at the peer in an observation window.

Linux opens a receive window in steps.
"""


class ReceiveWindowSample(NamedTuple):
    """Receive window of a peer at one check, in bytes since the start of the connection.

    Constant where it is unknown.
    """

    acknowledged: int
    """Bytes that the peer's kernel has acknowledged."""
    end: int
    """End of the peer's receive window: the byte up to which the peer accepts data."""


UNKNOWN: Final = ReceiveWindowSample(0, 0)


class ReadDetector:
    """Detects whether one peer reads from its socket.

    `is_not_reading`: it has read less than half of the bytes that arrived lately.
    """

    __slots__ = ("_at", "_since", "is_not_reading")

    def __init__(self) -> None:
        self.is_not_reading = False
        self._since: ReceiveWindowSample | None = None
        self._at = 0

    def update(self, sample: ReceiveWindowSample, now_ns: int) -> bool:
        """Evaluate a new sample and return `is_not_reading`. `now_ns` is a monotonic time.

        `is_not_reading` becomes true only after a whole observation window, and false as soon as a
        sample shows that the peer reads.
        """
        since = self._since
        if since is None:
            self._since, self._at = sample, now_ns
            return False
        acknowledged, read = sample.acknowledged - since.acknowledged, sample.end - since.end
        reads = 2 * read >= acknowledged
        if (self.is_not_reading and reads and read > 0) or (
            acknowledged >= MIN_OBSERVED_BYTES and now_ns - self._at >= OBSERVATION_NS
        ):
            self.is_not_reading = not reads
            self._since, self._at = sample, now_ns
        return self.is_not_reading


TRANSPORT_HIGH_BYTES = 1
"""Bytes that asyncio may hold below the outbox and still be writable.

It is practically none. Any byte that asyncio holds of a batch keeps the whole batch in memory, and each of a
thousand waiting replays would hold two. The kernel's own buffer keeps the line busy meanwhile. It is not 0,
because uvloop's TLS pauses at the limit and plain asyncio above it. With 0, TLS would never resume.
"""
PULL_BYTES = 64 * 1024
"""Bytes handed to a transport in one call. One call per delivery would cost more than the copy."""


class Sink(Protocol):
    """Sending side of one connection, as the engine uses it."""

    protocol: str
    remote: str
    text_mode: bool
    """Whether deliveries are sent as text, which has no size that both sides know."""
    peer_names: frozenset[str]
    """Names in the certificate that the peer showed in its TLS handshake."""

    @property
    def is_writable(self) -> bool:
        """Whether the transport accepts deliveries now."""

    @property
    def is_flushed(self) -> bool:
        """Whether the kernel has accepted every byte that was handed over."""

    @property
    def written_bytes(self) -> int:
        """Bytes written to this connection since its start.

        Deliveries and replies count with their framing, before TLS.
        """

    def acked_bytes(self) -> int:
        """Return how many of `written_bytes` the peer's kernel has acknowledged.

        Each call asks the kernel, so it is made at periodic checks and at the end, not per message. The
        figure never shrinks and is never too large. Bytes in flight under TLS count as if they were plain.
        All bytes are acknowledged when none are in flight. Once the socket is closed, the last known figure
        is returned.
        """

    @property
    def window_step_bytes(self) -> int:
        """Largest step, in bytes, in which `acked_bytes` grows while the peer reads steadily.

        0 while the peer's window has never been seen shut. A peer that reads at a steady rate is silent for
        up to window_step_bytes / rate.
        """

    @property
    def is_network_limited(self) -> bool:
        """Whether unsent bytes recently waited more for the network than for the peer's window."""

    @property
    def receive_window(self) -> ReceiveWindowSample:
        """Receive window of the peer's kernel, as of the last call of `acked_bytes`."""

    def on_logged_on(self) -> None:
        """Accept frames up to the protocol's limit from now on, because the client is authenticated.

        Until then the limit is low.
        """

    def send_entries(self, entries: Sequence[OutboxEntry]) -> Sequence[int] | None:
        """Hand deliveries to the transport, in order. Called only while `is_writable`.

        Returns how many bytes each delivery became, or None where only a constant frame header was added to
        each.
        """

    def send_reply(self, reply: Reply) -> bool:
        """Send an ack, an error or a notice. Return whether the peer's protocol has a frame for it.

        Allowed while not writable; the caller bounds the number of replies.
        """

    def pause_reading(self) -> None:
        """Stop reading bytes from the peer."""

    def resume_reading(self) -> None:
        """Read bytes from the peer again."""

    def close(self, code: str, message: str) -> None:
        """Send the bytes that were handed over, as far as the peer reads them within a moment, then close."""


class ConnectionSink(Sink, Protocol):
    """Sink that is a peer's own connection."""

    def read_progress(self) -> ReadProgress:
        """Return the bytes read since the start of the connection, and those of an incomplete frame."""

    def close_soon(self) -> None:
        """Close a peer that sends nothing more, when it has read the bytes that were handed over.

        Unlike `close`, no notice precedes it.
        """

    def drop(self) -> None:
        """Close immediately and discard unsent bytes."""

    def drop_input(self) -> None:
        """Release the buffered input of a connection that has ended."""
