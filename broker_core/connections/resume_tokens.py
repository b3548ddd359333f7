"""Resume tokens: what a client that is dropped takes along, so that it can go on where it was.

    base64url(JSON) . base64url(HMAC-SHA256 of it)        RFC 4648 without padding, RFC 2104

The JSON holds the instance, the client, when the token expires, and each subscription's id, topic, filter and
position. A token is for the client it was given to; nothing of it is stored at the broker but the key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from broker_core.errors import ClientError
from broker_core.journal.files import FileSystem, replace_durably

VALID_MS: Final = 24 * 3_600_000
MAX_TOKEN: Final = 8_000
"""Characters; subscriptions that don't fit are left out, the last first."""
KEY_BYTES: Final = 32


class Held(NamedTuple):
    """One subscription in a token; `position` is the sequence of the first record it hasn't been sent."""

    id: str
    topic: str
    filter: str | None
    position: int


class _Content(msgspec.Struct):
    i: str
    """Instance."""
    c: str
    """Client."""
    e: int
    """When it expires, ms UTC."""
    s: list[Held]


class Tokens:
    """Makes and reads the tokens of one instance."""

    def __init__(self, instance: str, key: bytes) -> None:
        self._instance = instance
        self._keys = [key]
        """The first signs; what any has signed is read."""

    def use(self, key: bytes) -> None:
        """Sign with a key that all members of a group have, from now on."""
        if key != self._keys[0]:
            self._keys = [key, self._keys[-1]]

    def make(self, client: str, subscriptions: list[Held], now_ms: int) -> str:
        """A token; "" when there is nothing to resume."""
        listed = subscriptions
        while listed:
            text = _encode(msgspec.json.encode(_Content(self._instance, client, now_ms + VALID_MS, listed)))
            token = f"{text}.{_encode(_sign(self._keys[0], text))}"
            if len(token) <= MAX_TOKEN:
                return token
            listed = listed[: len(listed) * 3 // 4]
        return ""

    def read(self, token: str, client: str, now_ms: int) -> list[Held]:
        """The subscriptions in it. ClientError bad_resume_token or resume_token_expired."""
        text, _, signature = token.partition(".")
        try:
            signed = _decode(signature)
            genuine = any(hmac.compare_digest(signed, _sign(key, text)) for key in self._keys)
            content = msgspec.json.decode(_decode(text), type=_Content) if genuine else None
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


def key_at(path: Path) -> bytes:
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
