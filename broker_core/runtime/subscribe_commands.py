"""The commands that begin and end subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_core.delivery import Cause
from broker_core.errors import ClientError
from broker_core.protocols import commands, replies
from broker_core.runtime.preparing import needs_preparing, prepare

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.connection import Connection

MAX_SUBSCRIPTIONS = 1_000
"""Subscriptions of one client at a time."""
MAX_STREAM = 65_535
"""Stream numbers aren't used again on a connection, so a late delivery can't reach the wrong subscription."""


def subscribe(connection: Connection, command: commands.Subscribe) -> None:
    """Begin a subscription, at once or when it is prepared. ClientErrors as `Subscribing.add`, too_many_subscriptions."""
    if command.id in connection.subscriptions:
        raise ClientError("bad_command", f"There is a subscription {command.id!r} already.",
                          "Unsubscribe it first, or use another id.", c="subscribe", id=command.id)
    if len(connection.subscriptions) >= MAX_SUBSCRIPTIONS or connection.last_stream >= MAX_STREAM:
        raise ClientError("too_many_subscriptions", f"A client has {MAX_SUBSCRIPTIONS} subscriptions at most.",
                          "Use topic patterns, or a second client.", c="subscribe", id=command.id)
    connection.last_stream += 1
    if needs_preparing(command):
        connection.host.spawn(prepare(connection, command, connection.last_stream, subscribe_now))
    else:
        subscribe_now(connection, command, connection.last_stream)


def subscribe_now(connection: Connection, command: commands.Subscribe, stream: int) -> None:
    """Start a subscription whose preparations are done; ClientErrors as `Subscribing.add`."""
    try:
        if command.id in connection.subscriptions:
            raise ClientError("bad_command", f"There is a subscription {command.id!r} already.", "Use another id.")
        connection.host.subscribing.add(connection, command, stream)
    except ClientError as error:
        error.details.setdefault("c", "subscribe")
        error.details.setdefault("id", command.id)
        raise
    _begin(connection, connection.subscriptions[command.id], command)


def _begin(connection: Connection, target: ClientSubscription, command: commands.Subscribe) -> None:
    """What a subscription has besides topic, filter and bookmark."""
    if command.durable is not None:
        connection.host.durables.opened(target, command.durable)
    if command.lease_ms is not None:
        connection.host.leases.begin(target, command.lease_ms, connection.host.monotonic_ms())
    host, state = connection.host, connection.backlog.state.value
    host.events.add(
        host.now_ns(), connection.name, "subscribe", state, topic=target.topic, filter=target.filter_text or ""
    )


def unsubscribe(connection: Connection, command: commands.Unsubscribe) -> None:
    """End a subscription; a durable one is kept unless the client says delete. ClientError unknown_subscription."""
    subscription = connection.subscriptions.pop(command.id, None)
    if subscription is None:
        raise ClientError("unknown_subscription", f"There is no subscription {command.id!r}.",
                          "Use the id it was subscribed with.", c="unsubscribe", id=command.id)
    connection.end(subscription, Cause.UNSUBSCRIBED, "")
    if subscription.durable and command.delete:
        connection.host.durables.delete(connection.name, subscription.durable)
    connection.reply(replies.Ack(ack="processed", of="unsubscribe", id=command.id))
