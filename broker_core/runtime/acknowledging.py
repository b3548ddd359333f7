"""Subscriptions with acknowledgements: the window they open with, and the commands that empty it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_core.bookmark import After, parse_bookmark
from broker_core.delivery import AckMode, Lane, Window
from broker_core.delivery.window import DEFAULT_PREFETCH
from broker_core.errors import ClientError
from broker_core.protocols import commands

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.connection import Connection


def open_window(target: ClientSubscription, command: commands.Subscribe, prefetch: int | None) -> int:
    """Give a subscription that acknowledges its lane. `prefetch` is the policy's, for one that names none.

    A durable subscription acknowledges always: what it hasn't acknowledged is what it gets when it comes back.
    Returns the window's size, 0 for a subscription without acknowledgements.
    """
    word = command.ack or ("auto" if command.durable else None)
    if word is None:
        return 0
    stream = target.subscription.stream
    window = Window(AckMode(word), command.prefetch or prefetch or DEFAULT_PREFETCH)
    target.connection.backlog.lanes[stream] = Lane(stream, window)
    return window.prefetch


def acknowledge(connection: Connection, command: commands.Acknowledge) -> None:
    """Carry out an `ack`. ClientError unknown_subscription, bad_ack or bad_bookmark; then nothing is acknowledged."""
    target = connection.subscriptions.get(command.id)
    lane = connection.backlog.lanes.get(target.subscription.stream) if target is not None else None
    if lane is None or lane.window is None:
        raise ClientError("unknown_subscription", f"There is no subscription {command.id!r} with acknowledgements.",
                          'Subscribe with "ack":"client".', c="ack", id=command.id)
    try:
        _acknowledge(lane.window, command, connection.host.instance)
    except ClientError as error:
        error.details.update(c="ack", id=command.id)
        raise
    connection.backlog.acknowledged(lane)


def _acknowledge(window: Window, command: commands.Acknowledge, instance: str) -> None:
    if command.upto is not None:
        window.acknowledge(command.upto, command.upto)
    elif command.bookmark is not None:
        number = window.number_of(_sequence(command.bookmark, instance))
        if number:
            window.acknowledge(number, number)
    for first, last in command.numbers:
        window.acknowledge(first, last)


def _sequence(text: str, instance: str) -> int:
    start = parse_bookmark(text)
    mine = [b.sequence for b in start.bookmarks if b.origin == instance] if isinstance(start, After) else []
    if not mine:
        raise ClientError("bad_ack", f"{text[:80]!r} isn't the bookmark of a message.", "Acknowledge by upto or numbers.")
    return mine[0]
