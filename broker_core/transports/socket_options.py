"""How a client's TCP socket is set, the same for every transport."""

from __future__ import annotations

import socket

UNSENT_LOW_BYTES = 64 * 1024
"""What the kernel takes beyond what the peer's window lets it send."""


def prepare(raw: socket.socket) -> None:
    """Set a connected socket so that a peer that doesn't read shows at once.

    The kernel would otherwise take up to 4 MB for a client that reads nothing (Linux's tcp_wmem), which policy can't
    see and memory limits don't count. Data on its way to a peer that reads isn't limited by this, so a long fat
    network isn't slowed.
    """
    if raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # Batches are whole when they are written; waiting for more would only delay them.
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_LOW_BYTES)
