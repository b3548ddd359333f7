"""Subscriptions with acknowledgements or credit: what they begin with, and the commands by which they get more."""

from __future__ import annotations

from collections.abc import Iterator

from broker_core.bookmark import bookmark_sequence
from broker_core.connections.member import Member
from broker_core.connections.ports import Services
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.subscription_queues import SubscriptionQueue
from broker_core.delivery.window import DEFAULT_PREFETCH, AckMode, AckWindow
from broker_core.errors import ClientError
from broker_core.protocols import commands
from broker_core.replay.client_subscription import ClientSubscription


def open_window(backlog: Backlog, stream: int, command: commands.Subscribe, prefetch: int | None) -> int:
    """Give a subscription that acknowledges, or has credit, its lane. `prefetch` is the policy's, for one that names none.

    A durable subscription acknowledges unless it says otherwise: what it hasn't acknowledged is what it gets when it comes back.
    Returns the window's size, 0 for a subscription without acknowledgements.
    """
    word = command.ack or ("auto" if command.durable else None)
    window = None
    if word is not None and word != "none":
        window = AckWindow(AckMode(word), command.prefetch or prefetch or DEFAULT_PREFETCH)
    if window is not None or command.credit is not None:
        lane = backlog.lanes[stream] = SubscriptionQueue(stream, window)
        lane.credit = command.credit
    return window.prefetch if window is not None else 0


def grant(connection: Member, now_ns: int, command: commands.GrantCredit) -> None:
    """Carry out a `credit`. ClientError unknown_subscription."""
    target = connection.subscriptions.get(command.id)
    lane = connection.backlog.lanes.get(target.stream) if target is not None else None
    if lane is None or lane.credit is None:
        raise ClientError(
            "unknown_subscription",
            f"There is no subscription {command.id!r} with credit.",
            'Subscribe with "credit":1048576.',
        )
    lane.grant(command.upto, now_ns)
    connection.backlog.go_on()


def refuse(
    connection: Member, services: Services, target: ClientSubscription, number: int, *, for_good: bool = False
) -> None:
    """A client won't have a message of a subscription with acknowledgements, and where one stands for all before, those. Shared
    ones go to another, unless it is said `for_good`. ClientError bad_ack, and unknown_subscription of one without
    acknowledgements."""
    _window(connection, target, target.id)
    sequences = _sequences(connection, target, number, number)
    connection.backlog.refuse(target.stream, number)
    if target.shared is not None:
        target.shared.returned(target, sequences, for_good=for_good)
    connection.backlog.go_on()
    services.judging.acknowledged(connection, target)


def acknowledge(connection: Member, services: Services, command: commands.Acknowledge) -> None:
    """Carry out an `ack`. ClientError unknown_subscription, bad_ack or bad_bookmark; what came before the error in the
    command is acknowledged."""
    target = connection.subscriptions.get(command.id)
    target, window = _window(connection, target, command.id)
    try:
        for first, last in _numbers(window, command, services.facilities.instance):
            sequences = _sequences(connection, target, first, last)
            connection.backlog.acknowledge(target.stream, first, last)
            if target.shared is not None:
                target.shared.acknowledged(target, sequences)
    finally:
        connection.backlog.go_on()
        services.judging.acknowledged(connection, target)


def _window(
    connection: Member, target: ClientSubscription | None, id: str
) -> tuple[ClientSubscription, AckWindow]:
    """A subscription and its window. ClientError unknown_subscription, also of one that has none."""
    lane = connection.backlog.lanes.get(target.stream) if target is not None else None
    if target is None or lane is None or lane.window is None:
        raise ClientError(
            "unknown_subscription",
            f"There is no subscription {id!r} with acknowledgements.",
            'Subscribe with "ack":"client".',
        )
    return target, lane.window


def _sequences(connection: Member, target: ClientSubscription, first: int, last: int) -> list[int]:
    """Which records an acknowledgement of these numbers is for; asked by those that share them alone."""
    lane = connection.backlog.lanes.get(target.stream)
    if target.shared is None or lane is None or lane.window is None:
        return []
    return lane.window.sequences(first, last)


def _numbers(window: AckWindow, command: commands.Acknowledge, instance: str) -> Iterator[tuple[int, int]]:
    if command.upto is not None:
        yield command.upto, command.upto
    elif command.bookmark is not None:
        sequence = bookmark_sequence(command.bookmark, instance)
        if sequence is None:
            sentence = f"{command.bookmark[:80]!r} isn't the bookmark of a message."
            raise ClientError("bad_ack", sentence, "Acknowledge by upto or numbers.")
        number = window.number_of(sequence)
        if number:
            yield number, number
    yield from command.numbers
