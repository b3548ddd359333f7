"""Conflates what waits for a subscription: of the messages with one key the latest stays, the others are given up.

This is an act of policy on a backlog; a subscriber that asks for conflation is served by `conflating`. Reading keys
means decoding every message that waits, so it runs in the reader thread; meanwhile nothing of the subscription
leaves, and what is new queues behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from broker_core.delivery import Cause, OutboxEntry, Tally
from broker_core.sow.last_per_key import KeyOf, LastPerKey, parse_key

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.connection import Connection

MAX_KEYS = 1_000_000
"""What waits is bounded by the pool already."""


def keep_latest(connection: Connection, target: ClientSubscription, rule: str) -> None:
    """Conflate what waits in memory for a subscription, by its key, or by topic when it named none."""
    lane = connection.backlog.lane(target.subscription.stream)
    if lane.busy or not lane.messages:
        return
    lane.busy = True
    key_of = parse_key(target.snapshot_key or "topic")
    connection.host.spawn(_keep_latest(connection, target.subscription.stream, rule, key_of))


async def _keep_latest(connection: Connection, stream: int, rule: str, key_of: KeyOf) -> None:
    backlog = connection.backlog
    lane = backlog.lanes[stream]
    before = lane.peek()
    try:
        after = await connection.host.in_reader_thread(latest, before, key_of)
        # If the client was closed or offlined meanwhile, what waited has moved on, whole.
        if lane.replace_first(before, after):
            backlog.give_up({stream: difference(before, after)}, Cause.CONFLATED, rule)
    finally:
        lane.busy = False
        backlog.go_on()


def latest(entries: Sequence[OutboxEntry], key_of: KeyOf) -> list[OutboxEntry]:
    """The entries with the last record of each key alone, in order."""
    fold = LastPerKey(key_of, MAX_KEYS)
    for entry in entries:
        fold.add(entry.batch)
    kept = []
    for number, rows in fold.remaining():
        entry = entries[number]
        if len(rows) == entry.count:
            kept.append(entry)
            continue
        batch = entry.batch.select(rows)
        of_source = rows if entry.rows is None else entry.rows[rows]
        kept.append(replace(entry, batch=batch, rows=of_source, count=batch.count, nbytes=batch.nbytes))
    return kept


def difference(before: Sequence[OutboxEntry], after: Sequence[OutboxEntry]) -> Tally:
    """What of `before` isn't in `after`, as numbers; `first` and `last` are those of `before`."""
    lost = Tally()
    for entry in before:
        lost.add_entry(entry)
    for entry in after:
        lost.messages -= entry.count
        lost.nbytes -= entry.nbytes
        if not entry.batch.first_sequence:
            lost.unjournaled -= entry.count
            lost.unjournaled_bytes -= entry.nbytes
    return lost
