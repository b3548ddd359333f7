"""Logons that were refused, gathered by remote address and minute, so that guessing can't fill whoever keeps them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

REMOTES = 20
"""Addresses of one minute with an entry of their own; what the others tried is counted in one more."""
NAMES = 5
"""User and client names that an entry keeps."""
MOST_WAITING = 1_000
"""Entries kept while nobody takes them; with more the oldest go."""
LONGEST_NAME = 64
OTHERS = ""


@dataclass(slots=True)
class Refused:
    """What was refused to one remote address within one minute (minutes since 1970). `remote` is "" for the others."""

    minute: int
    remote: str
    codes: Counter[str] = field(default_factory=Counter)
    transports: set[str] = field(default_factory=set)
    users: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Logons."""
        return self.codes.total()


class Refusals:
    """Belongs to the loop. `dropped` counts entries that waited for too long."""

    def __init__(self) -> None:
        self._minute = 0
        self._now: dict[str, Refused] = {}
        self._waiting: deque[Refused] = deque(maxlen=MOST_WAITING)
        self.dropped = 0

    def add(self, minute: int, remote: str, transport: str, code: str, user: str, client: str) -> None:
        """One more. Names come from whoever tries, and prove nothing."""
        self._turn(minute)
        if remote not in self._now and len(self._now) >= REMOTES:
            remote = OTHERS
        entry = self._now.setdefault(remote, Refused(minute, remote))
        entry.codes[code] += 1
        entry.transports.add(transport)
        _remember(entry.users, user)
        _remember(entry.clients, client)

    def take(self, minute: int) -> list[Refused]:
        """The entries of minutes before this one, oldest first; they are forgotten here."""
        self._turn(minute)
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def put_back(self, entries: list[Refused]) -> None:
        """They couldn't be stored; there may be newer ones meanwhile."""
        self._wait([*entries, *self.take(self._minute)])

    def _turn(self, minute: int) -> None:
        if minute != self._minute:
            self._wait(self._now.values())
            self._minute, self._now = minute, {}

    def _wait(self, entries: Iterable[Refused]) -> None:
        for entry in entries:
            self.dropped += len(self._waiting) == MOST_WAITING
            self._waiting.append(entry)


def _remember(names: list[str], name: str) -> None:
    # A NUL would be refused by the database, and other control characters deceive whoever reads them.
    shown = "".join(letter if letter.isprintable() else "?" for letter in name[:LONGEST_NAME])
    if shown and shown not in names and len(names) < NAMES:
        names.append(shown)
