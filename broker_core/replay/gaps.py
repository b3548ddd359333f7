"""What the client of a replay is told besides its records: gaps, that it has caught up, that it is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker_core.bookmark import Bookmark
from broker_core.protocols import replies
from broker_core.replay.client_subscription import ClientSubscription

DAMAGED: Final = "These records of the log are damaged or lost; `manage.py journal verify` says more."
REMOVED: Final = "These records were removed from the log."


def gap_reply(instance: str, id: str, first: int, last: int, why: str) -> replies.Gap:
    """Tells a subscription that it will not get these records."""
    return replies.Gap(
        id=id, first=str(Bookmark(instance, first)), last=str(Bookmark(instance, last)), why=why
    )


def say_gap(instance: str, targets: Sequence[ClientSubscription], first: int, last: int, why: str) -> None:
    """Tell each that still needs some of these records that it will not get them. They go on behind."""
    for target in targets:
        if target.cursor.next_sequence <= last:
            begins = max(first, target.cursor.next_sequence)
            target.peer.reply(gap_reply(instance, target.id, begins, last, why))
            target.cursor.given(last + 1)


def say_completed(targets: Sequence[ClientSubscription], ended: bool = False) -> None:
    """Tell each that its replay has caught up or, when it has `ended`, that it is over."""
    for target in targets:
        target.completed = True
        target.peer.reply(replies.Ack(ack="completed", of="subscribe", id=target.id, ended=ended or None))
