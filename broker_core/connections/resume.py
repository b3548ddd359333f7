"""Places of clients that a policy dropped, and that come back as if nothing had been: STOMP's, which subscribe as before and have
no word for where they were. Native ones take a resume token along.

A place is known by who the client is, and by what it subscribes to as what. Clients that are alike in all of that can't be told
apart: each of them is given the place of the one that was furthest behind, so none misses anything.

Resume tokens: what a client that is dropped takes along, so that it can go on where it was.

    base64url(JSON) . base64url(HMAC-SHA256 of it)        RFC 4648 without padding, RFC 2104

The JSON holds the instance, the client, when the token expires, and each subscription's id, topic, filter and
position. A token is for the client it was given to; nothing of it is stored at the broker but the key.
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
"""For so long a place is kept: who is closed for being slow comes back at once, or isn't the same any more."""
MOST: Final = 10_000
"""Places; for one more the oldest is forgotten."""


class SuspendedSubscription(NamedTuple):
    """A subscription, as it was left. `position` is the first record that its client needs again; up to `had_upto` it may
    have had some of those behind, 0: none."""

    id: str
    topic: str
    filter: str | None
    position: int
    had_upto: int


@dataclass(slots=True)
class _ResumePoint:
    position: int
    had_upto: int
    clients: int
    """How many of that kind were dropped and aren't back."""
    until_ms: int


class ResumePoints:
    """An instance's. Of a client it asks for no more than a key: whoever comes back with it is taken for it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _ResumePoint] = {}
        """Who was dropped longest ago comes first."""

    def __len__(self) -> int:
        return len(self._known)

    def save(self, who: str, subscriptions: Iterable[SuspendedSubscription], now_ms: int) -> None:
        """A client is dropped."""
        for left in subscriptions:
            key = who, left.id, left.topic, left.filter
            place = self._known.pop(key, None)
            if place is None or now_ms > place.until_ms:
                place = _ResumePoint(left.position, 0, 0, 0)
            place.position = min(place.position, left.position)
            place.had_upto = max(place.had_upto, left.had_upto)
            place.clients += 1
            place.until_ms = now_ms + RESUME_POINT_VALID_MS
            self._known[key] = place
        while self._known and (len(self._known) > MOST or now_ms > next(iter(self._known.values())).until_ms):
            del self._known[next(iter(self._known))]

    def claim(
        self, who: str, id: str, topic: str, filter: str | None, now_ms: int
    ) -> SuspendedSubscription | None:
        """The place of a client that is back; None: nothing is known of it."""
        key = who, id, topic, filter
        place = self._known.get(key)
        if place is None:
            return None
        place.clients -= 1
        if not place.clients or now_ms > place.until_ms:
            del self._known[key]
        return (
            SuspendedSubscription(id, topic, filter, place.position, place.had_upto)
            if now_ms <= place.until_ms
            else None
        )


TOKEN_VALID_MS: Final = 24 * 3_600_000
MAX_TOKEN: Final = 8_000
"""Characters; subscriptions that don't fit are left out, the last first."""
KEY_BYTES: Final = 32


class TokenSubscription(NamedTuple):
    """One subscription in a token; `position` is the sequence of the first record it hasn't been sent."""

    id: str
    topic: str
    filter: str | None
    position: int


class _TokenContent(msgspec.Struct):
    i: str
    """Instance."""
    c: str
    """Client."""
    e: int
    """When it expires, ms UTC."""
    s: list[TokenSubscription]


class ResumeTokens:
    """Makes and reads the tokens of one instance."""

    def __init__(self, instance: str, key: bytes) -> None:
        self._instance = instance
        self._keys = [key]
        """The first signs; what any has signed is read."""

    def set_key(self, key: bytes) -> None:
        """Sign with a key that all members of a group have, from now on."""
        if key != self._keys[0]:
            self._keys = [key, self._keys[-1]]

    def issue(self, client: str, subscriptions: list[TokenSubscription], now_ms: int) -> str:
        """A token; "" when there is nothing to resume."""
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
        """The subscriptions in it. ClientError bad_resume_token or resume_token_expired."""
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
    """The instance's key, made the first time, readable by its owner only."""
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
