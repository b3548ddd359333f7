"""Durable subscriptions: named, kept while their client is away, as a position in the journal.

Nothing is stored for an absent client but where it goes on; the journal keeps the records, pinned from there. The
file is JSON, replaced whole (temporary file, fsync, rename, fsync of the directory): at once when a subscription is
made or deleted, and each second when positions have moved. After a crash a position may be a second old, and what
was acknowledged in it comes again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from broker_core.errors import ClientError, JournalError, OperatorError
from broker_core.journal.held import Pin
from broker_core.protocols import commands

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.host import Host

MAX_DURABLES: Final = 10_000
VERSION: Final = 1


@dataclass(slots=True)
class Durable:
    """One durable subscription. `position` is the sequence of the first record that isn't acknowledged."""

    client: str
    name: str
    topic: str
    filter: str | None
    position: int
    created_at: int
    """ns UTC"""
    seen_at: int
    """When its client was last subscribed to it, ns UTC."""

    @property
    def owner(self) -> str:
        """As whom it holds the journal."""
        return f"durable subscription {self.name} of {self.client}"


class Durables:
    """An instance's durable subscriptions, by client and name."""

    def __init__(self, host: Host, path: Path) -> None:
        self._host = host
        self._path = path
        self._known: dict[tuple[str, str], Durable] = {}
        self._pins: dict[tuple[str, str], Pin] = {}
        self._active: dict[tuple[str, str], ClientSubscription] = {}
        self._changed = False
        for durable in _read(path):
            self._enter(durable)

    def __iter__(self) -> Iterator[Durable]:
        return iter(self._known.values())

    def connected(self, durable: Durable) -> bool:
        """Whether its client is subscribed to it now."""
        return (durable.client, durable.name) in self._active

    def find(self, client: str, command: commands.Subscribe) -> Durable | None:
        """The one a subscribe names; ClientError durable_differs when it is of another topic or filter."""
        assert command.durable is not None
        found = self._known.get((client, command.durable))
        if found is not None and (found.topic, found.filter) != (command.topic, command.filter):
            raise ClientError(
                "durable_differs", f"The durable subscription {found.name} is of {found.topic}"
                f"{' with ' + found.filter if found.filter else ''}.",
                'Subscribe as before, or unsubscribe it with "delete":true first.', topic=found.topic, filter=found.filter,
            )
        if found is not None and self.connected(found):
            raise ClientError("durable_in_use", f"The durable subscription {found.name} is subscribed already.",
                              "Subscribe to a durable subscription once at a time.")
        return found

    def make(self, client: str, command: commands.Subscribe, position: int) -> Durable:
        """A new one. ClientError not_journaled or too_many_durables. It is durable after the next `save`."""
        assert command.durable is not None
        if len(self._known) >= MAX_DURABLES:
            raise ClientError("too_many_durables", f"This instance keeps {MAX_DURABLES} durable subscriptions.",
                              "Delete those that nobody needs.")
        now = self._host.now_ns()
        durable = Durable(client, command.durable, command.topic, command.filter, position, now, now)
        self._enter(durable)
        self._changed = True
        return durable

    def _enter(self, durable: Durable) -> None:
        key = (durable.client, durable.name)
        self._known[key] = durable
        self._pins[key] = self._host.pin(durable.position, durable.owner)

    def opened(self, target: ClientSubscription, name: str) -> None:
        """A client is subscribed to it."""
        self._active[target.connection.name, name] = target

    def closed(self, target: ClientSubscription) -> None:
        """The client has left, or has unsubscribed: from here on it is kept. Before its deliveries are forgotten."""
        key = (target.connection.name, target.durable)
        if self._active.get(key) is target:
            self._move(key, target)
            del self._active[key]

    def delete(self, client: str, name: str) -> Durable:
        """Delete it, and let go of the journal. OperatorError unknown_durable."""
        durable = self._known.pop((client, name), None)
        if durable is None:
            raise OperatorError("unknown_durable", f"Client {client} has no durable subscription {name}.",
                                "See the list of durable subscriptions.")
        self._pins.pop((client, name)).release()
        self._active.pop((client, name), None)
        self._changed = True
        return durable

    # Positions.

    def look(self) -> bool:
        """Note how far those that are subscribed have come; whether there is something to save."""
        for key, target in self._active.items():
            self._move(key, target)
        return self._changed

    def _move(self, key: tuple[str, str], target: ClientSubscription) -> None:
        durable = self._known.get(key)
        if durable is None:
            return
        durable.seen_at = self._host.now_ns()
        position = target.connection.backlog.position_of(target)
        if position > durable.position:
            durable.position = position
            self._pins[key].move(position)
            self._changed = True

    # The file.

    def listed(self) -> list[dict[str, Any]]:
        """All of them as JSON, for the control plane."""
        return [
            {
                "client": durable.client, "name": durable.name, "topic": durable.topic, "filter": durable.filter,
                "bookmark": f"{self._host.instance}|{durable.position - 1}|", "connected": self.connected(durable),
                "behind": max(self._host.dispatched_sequence - durable.position + 1, 0),
                "created_at": durable.created_at // 1_000_000, "seen_at": durable.seen_at // 1_000_000,
            }
            for durable in self._known.values()
        ]

    def content(self) -> bytes:
        """What `write` stores."""
        self._changed = False
        return orjson.dumps({"version": VERSION, "durables": [asdict(durable) for durable in self._known.values()]})

    def write(self, content: bytes) -> None:
        """Store, whole. Not on the loop. Raises JournalError disk_full or durables_failed."""
        try:
            write_whole(self._path, content)
        except OSError as problem:
            self._changed = True
            raise JournalError("durables_failed", f"Durable subscriptions can't be stored: {problem}.",
                               f"Make room for {self._path}.") from problem


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace a file so that after a crash it is the old or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(path: Path) -> list[Durable]:
    try:
        content = orjson.loads(path.read_bytes())
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}")
        return [Durable(**durable) for durable in content["durables"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as problem:
        raise OperatorError("bad_durables", f"{path} can't be read: {problem}.",
                            "Restore it, or move it away: then no durable subscription is known.") from problem
