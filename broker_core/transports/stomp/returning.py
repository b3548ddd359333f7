"""Clients that a policy dropped, and that subscribe again as if nothing had been: where they go on (`resume` of the transport).

What a SUBSCRIBE says itself of where it begins counts more, and what is kept for the client anyhow has its place already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from broker_core.bookmark import EPOCH_TEXT, Bookmark
from broker_core.config.transports import ResumeFrom
from broker_core.connections.admission import peer_address
from broker_core.protocols import commands
from broker_core.subscriptions.topics import TopicPattern

if TYPE_CHECKING:
    from broker_core.connections.connection import Connection
    from broker_core.engine.engine import Engine


class Back(NamedTuple):
    """Facts for a client that is back: the record up to which it may have had the messages before, and the
    first one that it missed before its subscription begins; 0 for none."""

    had_upto: int = 0
    missed_from: int = 0

    def missed(self, instance: str, newest: int) -> str:
        """Return the range of bookmarks that it missed, when the log ended with `newest` as it began; "" when
        it missed none."""
        if not 0 < self.missed_from <= newest:
            return ""
        return f"[{Bookmark(instance, self.missed_from)}:{Bookmark(instance, newest)}]"


def known_as(connection: Connection, named: bool) -> str:
    """As whom a client is known again: by its own name where it is `named`, else as its user, where it connects from."""
    return (
        f"client {connection.name}"
        if named
        else f"user {connection.user} at {peer_address(connection.remote)}"
    )


def from_its_place(
    engine: Engine, connection: Connection, command: commands.Subscribe
) -> tuple[commands.Subscribe, Back | None]:
    """The same subscribe, from where its client was; and what of that it is told with the first message."""
    said = (command.bookmark, command.durable, command.managed, command.resume, command.snapshot_key)
    if any(one is not None for one in said):
        return command, None
    frontier, now = engine.frontier.durable, engine.clock.monotonic_ms()
    place = engine.services.places.claim(
        connection.comes_back_as, command.id, command.topic, command.filter, now
    )
    if place is None or place.position > frontier:
        return command, None
    if _resume(engine, connection) is ResumeFrom.NOW or not _keeps_all(engine, command.topic):
        return command, Back(missed_from=place.position)
    after = place.position - 1
    bookmark = str(Bookmark(engine.instance, after)) if after else EPOCH_TEXT
    return structs.replace(command, bookmark=bookmark), Back(had_upto=place.had_upto)


def _resume(engine: Engine, connection: Connection) -> ResumeFrom:
    """As the policy in force has it: a listener stays when that changes."""
    transports = engine.policy.transports
    return next((one.resume for one in transports if one.name == connection.transport), ResumeFrom.NOW)


def _keeps_all(engine: Engine, topic: str) -> bool:
    """Of other topics what no journal keeps would be missing in a subscription that goes on from the log."""
    return engine.dispatch.topics.covers_all(TopicPattern.parse(topic))
