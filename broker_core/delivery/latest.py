"""Conflates what waits for a subscription: of the messages with one key the latest stays, the others are given up.

This is an act of policy on a backlog; a subscriber that asks for conflation is served by `conflating`. Reading keys
means decoding every message that waits, so it runs in the reader thread; meanwhile nothing of the subscription
leaves, and what is new queues behind. What stays is marked, in a copy for this subscription, so that its client knows that
messages were left out; the lane marks the first delivery behind it, so that it knows when that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from broker_core.batch import CONFLATED
from broker_core.delivery.account import Cause
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.entry import OutboxEntry
from broker_core.delivery.lane import Lane
from broker_core.delivery.ledger import Tally, tally_of
from broker_core.delivery.ports import Facilities
from broker_core.subscriptions.keys import KeyOf, LastPerKey

MAX_KEYS = 1_000_000
"""What waits is bounded by the pool already."""


Done = Callable[[int], None]
"""Is told how many messages were left out."""


def keep_latest(
    backlog: Backlog,
    facilities: Facilities,
    stream: int,
    key_of: KeyOf,
    rule: str,
    done: Done = lambda _: None,
) -> None:
    """Conflate what waits in memory for a subscription, by a key. Where nothing waits, or it is under way, nothing is `done`."""
    lane = backlog.lane(stream)
    if not lane.busy and lane.messages:
        lane.busy = True
        facilities.spawn(_keep_latest(backlog, facilities, lane, key_of, rule, done))


async def _keep_latest(
    backlog: Backlog, facilities: Facilities, lane: Lane, key_of: KeyOf, rule: str, done: Done
) -> None:
    before = lane.peek()
    try:
        after = await facilities.reader.run(_latest_marked, before, key_of)
        # If the client was closed or offlined meanwhile, what waited has moved on, whole.
        if lane.replace_first(before, after):
            lost = difference(before, after)
            backlog.lose(lane.stream, lost, Cause.CONFLATED, rule)
            done(lost.messages)
    finally:
        lane.busy = False
        backlog.go_on()


def _latest_marked(entries: Sequence[OutboxEntry], key_of: KeyOf) -> list[OutboxEntry]:
    """The same as `latest`; when something was left out each has the mark CONFLATED."""
    kept = latest(entries, key_of)
    if sum(entry.count for entry in kept) == sum(entry.count for entry in entries):
        return kept
    return [entry.marked(CONFLATED) for entry in kept]


def latest(entries: Sequence[OutboxEntry], key_of: KeyOf) -> list[OutboxEntry]:
    """The entries with the last record of each key alone, in order.

    Those up to the last that isn't whole have no source any more: the log would bring back what was replaced.
    """
    fold = LastPerKey(key_of, MAX_KEYS)
    for entry in entries:
        fold.add(entry.batch)
    kept, again, following = list[OutboxEntry](), 0, 0
    for number, rows in fold.remaining():
        entry = entries[number]
        if number > following:
            again = len(kept)
        if len(rows) < entry.count:
            batch = entry.batch.select(rows)
            entry = replace(entry, batch=batch, count=batch.count, nbytes=batch.nbytes)
            again = len(kept) + 1
        kept.append(entry)
        following = number + 1
    if following < len(entries):
        again = len(kept)
    return [replace(entry, rows=None, source=None, source_length=0) for entry in kept[:again]] + kept[again:]


def difference(before: Sequence[OutboxEntry], after: Sequence[OutboxEntry]) -> Tally:
    """What of `before` isn't in `after`, as numbers; `first` and `last` are those of `before`."""
    lost, left = tally_of(before), tally_of(after)
    lost.messages -= left.messages
    lost.nbytes -= left.nbytes
    lost.unjournaled -= left.unjournaled
    lost.unjournaled_bytes -= left.unjournaled_bytes
    return lost
