"""Resume points and resume tokens: where clients that a policy disconnected continue.

Resume points are for clients that subscribe as before and can't send their position, such as STOMP's. They
are matched by client, subscription id, topic and filter. Clients that are equal in all of these can't be told
apart. Each of them gets the position of the one that was furthest behind, so that none misses a record.

Native clients get a resume token instead:

    base64url(JSON) . base64url(HMAC-SHA256 of it)        RFC 4648 without padding, RFC 2104

The JSON has the instance, the client, the expiry, and each subscription's id, topic, filter and position. A
token is valid only for the client it was issued to. The broker stores nothing but the key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from broker_core.errors import ClientError
from broker_core.journal.files import FileSystem, replace_durably

RESUME_POINT_VALID_MS: Final = 60_000
"""How long a resume point is kept, ms. Clients closed for slowness normally reconnect within seconds."""
MAX_POINTS: Final = 10_000
"""Maximum number of resume points. For one more the oldest is removed."""


class SuspendedSubscription(NamedTuple):
    """Subscription of a disconnected client.

    `position` is the first record that the client needs again. The client may already have some records
    behind it, up to `last_received`; 0: none.
    """

    id: str
    topic: str
    filter: str | None
    position: int
    last_received: int


@dataclass(slots=True)
class _ResumePoint:
    """Position of equal clients that were disconnected. Times are monotonic milliseconds."""

    position: int
    last_received: int
    clients: int
    """Number of equal clients that were disconnected and are not back."""
    until_ms: int


class ResumePoints:
    """Resume points of one instance. A client is matched by its key alone."""

    def __init__(self) -> None:
        self._points: dict[Hashable, _ResumePoint] = {}
        """Resume points by key, oldest first."""

    def __len__(self) -> int:
        return len(self._points)

    def save(self, client: str, subscriptions: Iterable[SuspendedSubscription], now_ms: int) -> None:
        """Save the resume points of a client that is about to be closed."""
        for suspended in subscriptions:
            key = client, suspended.id, suspended.topic, suspended.filter
            point = self._points.pop(key, None)
            if point is None or now_ms > point.until_ms:
                point = _ResumePoint(suspended.position, 0, 0, 0)
            point.position = min(point.position, suspended.position)
            point.last_received = max(point.last_received, suspended.last_received)
            point.clients += 1
            point.until_ms = now_ms + RESUME_POINT_VALID_MS
            self._points[key] = point
        while self._points and (
            len(self._points) > MAX_POINTS or now_ms > next(iter(self._points.values())).until_ms
        ):
            del self._points[next(iter(self._points))]

    def claim(
        self, client: str, id: str, topic: str, filter: str | None, now_ms: int
    ) -> SuspendedSubscription | None:
        """Return the suspended subscription of a client that is back; None: there is no valid one."""
        key = client, id, topic, filter
        point = self._points.get(key)
        if point is None:
            return None
        point.clients -= 1
        if not point.clients or now_ms > point.until_ms:
            del self._points[key]
        return (
            SuspendedSubscription(id, topic, filter, point.position, point.last_received)
            if now_ms <= point.until_ms
            else None
        )


TOKEN_VALID_MS: Final = 24 * 3_600_000
"""How long a resume token is valid, ms."""
MAX_TOKEN: Final = 8_000
"""Maximum characters of a token. Subscriptions that don't fit are left out, the last first."""
KEY_BYTES: Final = 32


class TokenSubscription(NamedTuple):
    """Subscription in a token. `position`: sequence of the first record that was not sent."""

    id: str
    topic: str
    filter: str | None
    position: int


class _TokenContent(msgspec.Struct):
    """Content of a token. One-letter names keep it short."""

    i: str
    """Instance."""
    c: str
    """Client name."""
    e: int
    """Expiry, ms UTC."""
    s: list[TokenSubscription]


class ResumeTokens:
    """Issues and verifies the resume tokens of one instance."""

    def __init__(self, instance: str, key: bytes) -> None:
        self._instance = instance
        self._keys = [key]
        """Signing keys: the first one signs, and tokens signed by any are accepted."""

    def set_key(self, key: bytes) -> None:
        """Sign from now on with a key that all members of a group share."""
        if key != self._keys[0]:
            self._keys = [key, self._keys[-1]]

    def issue(self, client: str, subscriptions: list[TokenSubscription], now_ms: int) -> str:
        """Return a token; "" when there is nothing to resume."""
        listed = subscriptions
        while listed:
            text = _encode(
                msgspec.json.encode(_TokenContent(self._instance, client, now_ms + TOKEN_VALID_MS, listed))
            )
            token = f"{text}.{_encode(_sign(self._keys[0], text))}"
            if len(token) <= MAX_TOKEN:
                return token
            listed = listed[: len(listed) * 3 // 4]
        return ""

    def verify(self, token: str, client: str, now_ms: int) -> list[TokenSubscription]:
        """Return the subscriptions in a token.

        Raises:
            ClientError: bad_resume_token or resume_token_expired.
        """
        text, _, signature = token.partition(".")
        try:
            signed = _decode(signature)
            genuine = any(hmac.compare_digest(signed, _sign(key, text)) for key in self._keys)
            content = msgspec.json.decode(_decode(text), type=_TokenContent) if genuine else None
        except ValueError:
            content = None
        if content is None or (content.i, content.c) != (self._instance, client):
            raise ClientError(
                "bad_resume_token",
                "The resume token isn't of this instance and client.",
                "Give the token as it was in the notice, or subscribe without one.",
            )
        if now_ms > content.e:
            raise ClientError(
                "resume_token_expired",
                "The resume token has expired.",
                "Subscribe from a bookmark, or without one.",
            )
        return content.s


def _sign(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def load_or_create_key(path: Path) -> bytes:
    """Return the instance's signing key. Create the file the first time, readable by its owner only."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) != KEY_BYTES:
        key = secrets.token_bytes(KEY_BYTES)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(FileSystem(), path, key, mode=0o600)
    return key


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
