"""Places of clients that a policy dropped, and that come back as if nothing had been: STOMP's, which subscribe as before and have
no word for where they were. Native ones take a resume token along.

A place is known by who the client is, and by what it subscribes to as what. Clients that are alike in all of that can't be told
apart: each of them is given the place of the one that was furthest behind, so none misses anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

VALID_MS: Final = 60_000
"""For so long a place is kept: who is closed for being slow comes back at once, or isn't the same any more."""
MOST: Final = 10_000
"""Places; for one more the oldest is forgotten."""


class Left(NamedTuple):
    """A subscription, as it was left. `position` is the first record that its client needs again; up to `had_upto` it may
    have had some of those behind, 0: none."""

    id: str
    topic: str
    filter: str | None
    position: int
    had_upto: int


@dataclass(slots=True)
class _Place:
    position: int
    had_upto: int
    clients: int
    """How many of that kind were dropped and aren't back."""
    until_ms: int


class Places:
    """An instance's. Of a client it asks for no more than a key: whoever comes back with it is taken for it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Place] = {}
        """Who was dropped longest ago comes first."""

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, who: str, subscriptions: Iterable[Left], now_ms: int) -> None:
        """A client is dropped."""
        for left in subscriptions:
            key = who, left.id, left.topic, left.filter
            place = self._known.pop(key, None)
            if place is None or now_ms > place.until_ms:
                place = _Place(left.position, 0, 0, 0)
            place.position = min(place.position, left.position)
            place.had_upto = max(place.had_upto, left.had_upto)
            place.clients += 1
            place.until_ms = now_ms + VALID_MS
            self._known[key] = place
        while self._known and (len(self._known) > MOST or now_ms > next(iter(self._known.values())).until_ms):
            del self._known[next(iter(self._known))]

    def claim(self, who: str, id: str, topic: str, filter: str | None, now_ms: int) -> Left | None:
        """The place of a client that is back; None: nothing is known of it."""
        key = who, id, topic, filter
        place = self._known.get(key)
        if place is None:
            return None
        place.clients -= 1
        if not place.clients or now_ms > place.until_ms:
            del self._known[key]
        return Left(id, topic, filter, place.position, place.had_upto) if now_ms <= place.until_ms else None
