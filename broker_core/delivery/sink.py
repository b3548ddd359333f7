"""Whether a peer reads what its kernel takes for it: as its window tells.

A socket takes what comes for a peer that reads nothing until the peer's kernel is full, and each message costs a write meanwhile. But a
receiver's window tells it at once: its end moves when bytes are read there, and stays where it is when none are. How wide a window is says less:
kernels narrow it for reasons of their own.

The port between the engine and a transport: what a transport must offer for one connection.

A transport below it (asyncio's for TCP, daphne's for WebSocket) takes what it is handed. When it holds more than
TRANSPORT_HIGH_BYTES that the kernel hasn't taken (daphne's has its own measure) it clears `writable`, and calls
`Connection.on_writable` when it has drained. So whatever a client doesn't read waits in the outbox,
where policy sees it, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from broker_core.delivery.entries import OutboxEntry
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.replies import Reply

LOOK_NS: Final = 500_000_000
"""Over so long at least: who does something else for a moment isn't meant."""
ENOUGH_BYTES: Final = 16 * 1024
"""So much must have come for a peer: Linux opens a window in steps."""


class ReceiveWindowSample(NamedTuple):
    """Of one look at a connection, in bytes since its start; the same each time where nobody tells."""

    acknowledged: int
    """The peer's kernel has it."""
    end: int
    """Up to there it said that it takes."""


UNKNOWN: Final = ReceiveWindowSample(0, 0)


class ReadDetector:
    """One peer's. `leaves`: it has read less than half of what came lately."""

    __slots__ = ("_at", "_since", "leaves")

    def __init__(self) -> None:
        self.leaves = False
        self._since: ReceiveWindowSample | None = None
        self._at = 0

    def update(self, seen: ReceiveWindowSample, now_ns: int) -> bool:
        """`leaves`, as of now; a clock that never jumps. It takes a while to be so, and ends as soon as it is seen to read."""
        since = self._since
        if since is None:
            self._since, self._at = seen, now_ns
            return False
        came, read = seen.acknowledged - since.acknowledged, seen.end - since.end
        reads = 2 * read >= came
        if (self.leaves and reads and read > 0) or (came >= ENOUGH_BYTES and now_ns - self._at >= LOOK_NS):
            self.leaves = not reads
            self._since, self._at = seen, now_ns
        return self.leaves


TRANSPORT_HIGH_BYTES = 1
"""Bytes asyncio may hold below the outbox and still be writable. As good as none: what it holds of a batch keeps the whole
batch in memory, and each of a thousand waiting replays would hold two. The kernel's own buffer keeps the line busy meanwhile.
Not 0: uvloop's TLS pauses at the limit, plain asyncio above it, and would then never resume."""
PULL_BYTES = 64 * 1024
"""Bytes handed to a transport at once: a call for each costs more than the copy."""


class Sink(Protocol):
    """One connection's way out."""

    protocol: str
    remote: str
    text_mode: bool
    """Deliveries leave as texts, which have no size that both sides know."""
    peer_names: frozenset[str]
    """Names in the certificate that the peer showed in its TLS handshake."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes deliveries now."""

    @property
    def is_flushed(self) -> bool:
        """Whether the kernel has everything that was handed over."""

    @property
    def written_bytes(self) -> int:
        """Bytes written to this connection since its start: deliveries and replies with their framing, before TLS."""

    def acked_bytes(self) -> int:
        """How many of these the peer's kernel has acknowledged: looked up now, for a tick and the end, not per message.

        Never less than before, never too much; what is under way under TLS counts as if it were plain. All of them when
        nothing is under way, and the last known once the socket is closed.
        """

    @property
    def window_step_bytes(self) -> int:
        """The largest step in which `taken_bytes` moves while the peer reads steadily, as far as known; 0 while its window
        has never been seen shut. Who reads at some rate is silent for up to lump_bytes / rate."""

    @property
    def is_network_limited(self) -> bool:
        """Whether what waits has waited for the network lately, more than for the peer to open its window."""

    @property
    def receive_window(self) -> ReceiveWindowSample:
        """What the peer's kernel takes, as of the last time that somebody asked for `taken_bytes`."""

    def on_logged_on(self) -> None:
        """It is known who this is: frames may be as large as the protocol allows. Until then they are small."""

    def send_entries(self, entries: Sequence[OutboxEntry]) -> Sequence[int] | None:
        """Hand deliveries to the transport, in order. Called only while `writable`.

        Returns how many bytes each became, where that differs by more than a frame header that is the same for all.
        """

    def send_reply(self, reply: Reply) -> None:
        """Send an ack, an error or a notice. Small, and allowed while not writable: the caller bounds them."""

    def pause_reading(self) -> None:
        """Stop taking bytes from the peer."""

    def resume_reading(self) -> None:
        """Take bytes again."""

    def close(self, code: str, message: str) -> None:
        """Send what was handed over as far as the peer takes it within a moment, then close."""


class ConnectionSink(Sink, Protocol):
    """A sink that is a peer's own connection."""

    def read_progress(self) -> ReadProgress:
        """Bytes read from the peer since the connection's start, and those of a frame that is not whole."""

    def drop(self) -> None:
        """Close now, whatever the peer has read."""

    def drop_input(self) -> None:
        """Its connection has ended and will say nothing more: let go of it."""
