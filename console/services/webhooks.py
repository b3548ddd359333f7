"""One call of a webhook: a declared host, a time limit, no redirects, and an answer of bounded size."""

from __future__ import annotations

import http.client
import ssl
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult

from broker_core.errors import OperatorError

TIMEOUT_S: Final = 10.0
MOST_ANSWER: Final = 65_536


class Answer(NamedTuple):
    """What a host answered."""

    status: int
    text: str


def post(address: SplitResult, body: bytes, kind: str, once_key: str) -> Answer:
    """POST to an address that `check_address` let through. Raises OperatorError webhook_failed, also unless it answers 2xx."""
    make = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    more: dict[str, Any] = {"context": ssl.create_default_context()} if address.scheme == "https" else {}
    connection = make(address.hostname or "", address.port, timeout=TIMEOUT_S, **more)
    path = f"{address.path or '/'}{'?' + address.query if address.query else ''}"
    headers = {"Content-Type": kind, "User-Agent": "Sluice", "Idempotency-Key": once_key}
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        text = answer.read(MOST_ANSWER).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException, ValueError) as problem:
        raise OperatorError(
            "webhook_failed", f"{address.hostname} can't be called: {problem}.", "See whether it listens."
        ) from None
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise OperatorError(
            "webhook_failed", f"{address.hostname} answered {answer.status}.", "See the run's log.",
            status=answer.status, answer=text[:500],
        )  # fmt: skip
    return Answer(answer.status, text)
