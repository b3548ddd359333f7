"""The broker's STOMP frames: CONNECTED, RECEIPT and ERROR.

An ERROR is always the last frame of a connection.

An ERROR's `message` is the error code. Its body is the sentence, and figures are headers that begin with
x-sluice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from broker_core.protocols import replies
from broker_core.protocols.stomp.frames import VERSIONS, StompVersion, encode_frame, header_line

HEARTBEAT: Final = b"\n"
_NEXT_RECEIPT: Final = "\n\n\0RECEIPT\nreceipt-id:"
_NOTICE_HEADERS: Final = (
    ("decision", "decision"),
    ("observed", "observed"),
    ("limit", "limit"),
    ("unit", "unit"),
    ("kept", "kept"),
    ("lost", "lost"),
    ("resume", "resume-bookmark"),
    ("bookmark", "resume-bookmark"),
    ("resume_token", "resume-token"),
    ("retry_after_ms", "retry-after-ms"),
    ("subscription", "subscription"),
)
"""Fields of a decision or closing notice, and the ERROR headers (after x-sluice-) that they become."""

FinalReply = (
    replies.ErrorReply | replies.ClosingNotice | replies.DecisionNotice | replies.SubscriptionCancelled
)
"""Replies after which a STOMP connection ends."""


def connected_frame(
    version: StompVersion, session: str, instance: str, sends_every_ms: int, expects_every_ms: int
) -> bytes:
    """Return the reply to a logon.

    Args:
        says_ms: interval in which the broker sends something, ms.
        hears_ms: interval in which it expects something, ms.
    """
    beats = (0, 0) if version is StompVersion.V10 else (sends_every_ms, expects_every_ms)
    return encode_frame(
        "CONNECTED",
        [
            ("version", version.value),
            ("session", session),
            ("server", "sluice/1"),
            ("heart-beat", f"{beats[0]},{beats[1]}"),
            ("x-sluice-instance", instance),
        ],
    )


def receipt_frames(receipts: Sequence[str], version: StompVersion) -> bytes:
    """Return RECEIPT frames for executed frames; an empty receipt is left out."""
    receipt_ids = [receipt for receipt in receipts if receipt]
    if not receipt_ids:
        return b""
    if not "".join(receipt_ids).isalnum():
        receipt_ids = [header_line("", receipt, version)[1:] for receipt in receipt_ids]
    return f"RECEIPT\nreceipt-id:{_NEXT_RECEIPT.join(receipt_ids)}\n\n\0".encode()


def error_frame(reply: FinalReply, receipt: str, version: StompVersion) -> bytes:
    """Return the last frame of a connection. `receipt`: requested by the frame that failed; "" for none."""
    headers: list[tuple[str, Any]] = [("message", reply.code)]
    if receipt:
        headers.append(("receipt-id", receipt))
    if isinstance(reply, replies.DecisionNotice | replies.SubscriptionCancelled):
        headers += _notice_headers(reply)
        body, kind = msgspec.json.encode(reply), "application/json"
    else:
        headers += _notice_headers(reply) if isinstance(reply, replies.ClosingNotice) else _details(reply)
        body, kind = f"{reply.message}\n{reply.fix}\n".encode(errors="replace"), "text/plain"
    return encode_frame("ERROR", [*headers, ("content-type", kind)], body, version)


def _notice_headers(
    reply: replies.DecisionNotice | replies.SubscriptionCancelled | replies.ClosingNotice,
) -> Iterator[tuple[str, Any]]:
    """Yield the ERROR headers of a notice."""
    for field, header in _NOTICE_HEADERS:
        value = getattr(reply, field, None)
        if value not in (None, ""):
            yield f"x-sluice-{header}", value
    if isinstance(reply, replies.ClosingNotice) and reply.addresses:
        yield "x-sluice-addresses", ",".join(reply.addresses)


def _details(reply: replies.ErrorReply) -> Iterator[tuple[str, Any]]:
    """Yield the ERROR headers of an error's details."""
    for key, value in reply.details.items():
        if key == "version":
            yield "version", VERSIONS
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            yield f"x-sluice-{key.replace('_', '-')}", value
