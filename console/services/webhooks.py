"""Calls of webhooks: declared hosts only, one deadline, no redirects, answers of limited size."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import SplitResult

from broker_core.errors import OperatorError
from console.services.bounded_call import CallSockets, call_within

DEADLINE_S: Final = 10.0
MAX_ANSWER: Final = 65_536


class WebhookResponse(NamedTuple):
    """Status and beginning of a host's answer."""

    status: int
    text: str


def post_webhook(
    address: SplitResult, body: bytes, kind: str, once_key: str, check: Callable[[], object] = bool
) -> WebhookResponse:
    """POST to a checked address (`check_address`), and return the answer.

    Args:
        address: The address.
        body: Body of the request.
        kind: Its content type.
        once_key: Idempotency-Key header, by which the host can recognise a repeated call.
        check: Called several times a second while the call runs. An exception that it raises ends the call.

    Raises:
        OperatorError: `webhook_failed` if the call fails, exceeds `DEADLINE_S`, or gets an answer other
            than 2xx.
    """

    def call(sockets: CallSockets) -> WebhookResponse:
        return _post(sockets, address, body, kind, once_key)

    try:
        answer = call_within(DEADLINE_S, call, check)
    except (OSError, http.client.HTTPException, ValueError) as problem:
        raise OperatorError(
            "webhook_failed",
            f"{address.hostname} isn't reachable: {problem}.",
            "Check that the host listens.",
        ) from None
    if not 200 <= answer.status < 300:
        raise OperatorError(
            "webhook_failed",
            f"{address.hostname} answered {answer.status}.",
            "See the run's log.",
            status=answer.status,
            answer=answer.text[:500],
        )
    return answer


def _post(
    sockets: CallSockets, address: SplitResult, body: bytes, kind: str, once_key: str
) -> WebhookResponse:
    """Send one POST over the call's sockets, and return the status and the first `MAX_ANSWER` bytes."""
    secure, host = address.scheme == "https", address.hostname or ""
    port = address.port or (443 if secure else 80)
    make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = make(host, port, timeout=sockets.remaining_s())
    connection.sock = sockets.connect(host, port)
    try:
        if secure:
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
        path = f"{address.path or '/'}{'?' + address.query if address.query else ''}"
        headers = {"Content-Type": kind, "User-Agent": "Sluice", "Idempotency-Key": once_key}
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return WebhookResponse(answer.status, answer.read(MAX_ANSWER).decode("utf-8", "replace"))
    finally:
        connection.close()
