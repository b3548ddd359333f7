"""Conflates what waits for a subscription: of the messages with one key the latest stays, the others are given up.

This is an act of policy on a backlog; a subscriber that asks for conflation is served by `conflating`. Reading keys
means decoding every message that waits, so it runs in the reader thread; meanwhile nothing of the subscription
leaves, and what is new queues behind. What stays is marked, in a copy for this subscription, so that its client knows that
messages were left out; the lane marks the first delivery behind it, so that it knows when that is over.

In shadow nothing of that is done, and counted exactly: what would wait now is kept as the hashes of its keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from broker_core.batch import CONFLATED
from broker_core.delivery.account import DiscardCause
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.loss_ledger import DiscardTally, tally_entries
from broker_core.delivery.ports import InstanceResources
from broker_core.delivery.subscription_queues import ShadowConflation, SubscriptionQueue
from broker_core.subscriptions.keys import KeyOf, LastPerKey

MAX_KEYS = 1_000_000
"""What waits is bounded by the pool already."""


Done = Callable[[int, int], None]
"""Is told how many messages were left out, and how many are left."""


def keep_latest(
    backlog: Backlog,
    facilities: InstanceResources,
    stream: int,
    key_of: KeyOf,
    rule: str,
    done: Done = lambda *_: None,
) -> None:
    """Conflate what waits in memory for a subscription, by a key. Where nothing waits, or it is under way, nothing is `done`."""
    lane = backlog.ensure_queue(stream)
    if not lane.busy and lane.messages:
        lane.busy = True
        facilities.spawn(_keep_latest(backlog, facilities, lane, key_of, rule, done))


async def _keep_latest(
    backlog: Backlog,
    facilities: InstanceResources,
    lane: SubscriptionQueue,
    key_of: KeyOf,
    rule: str,
    done: Done,
) -> None:
    before = lane.peek()
    try:
        after = await facilities.reader.run(_latest_marked, before, key_of)
        # If the client was closed or offlined meanwhile, what waited has moved on, whole.
        if lane.replace_first(before, after):
            lost = discarded_tally(before, after)
            backlog.discard(lane.stream, lost, DiscardCause.CONFLATED, rule)
            done(lost.messages, sum(entry.count for entry in after))
    finally:
        lane.busy = False
        backlog.resume_sending()


def simulate_keep_latest(
    lane: SubscriptionQueue, facilities: InstanceResources, key_of: KeyOf, rule: str, cut: int, done: Done
) -> None:
    """Count what `keep_latest` would leave out, if all that the rule decided before had been done: so many fewer would wait, by
    the `cut` of its hold. Nothing is done to what waits."""
    if lane.messages:
        facilities.spawn(_would_keep_latest(lane, facilities, key_of, rule, cut, done))


async def _would_keep_latest(
    lane: SubscriptionQueue, facilities: InstanceResources, key_of: KeyOf, rule: str, cut: int, done: Done
) -> None:
    before, came, waits = lane.would_be.get(rule, ShadowConflation()), lane.came, lane.messages
    newer = await facilities.reader.run(_keys, lane.peek(), key_of, min(came - before.came, waits))
    after = lane.would_be[rule] = before.conflated(newer, came, waits, cut)
    done(after.cut - min(cut, before.cut, waits), len(after.keys))


_keyless = count()


def _keys(entries: Sequence[OutboxEntry], key_of: KeyOf, most: int) -> array[int]:
    """The hashes of the keys of the newest messages, in order; one without a key has a hash of its own."""
    found = array("q")
    passed = sum(entry.count for entry in entries) - most
    for entry in entries:
        if passed >= entry.count:
            passed -= entry.count
            continue
        topics, indexes, bodies = entry.batch.topics, entry.batch.topic_indexes.tolist(), entry.batch.bodies()
        for row in range(max(passed, 0), entry.count):
            key = key_of(topics[indexes[row] - 1], bodies[row])
            found.append(hash((key,)) if key is not None else hash((None, next(_keyless))))
        passed = 0
    return found


def _latest_marked(entries: Sequence[OutboxEntry], key_of: KeyOf) -> list[OutboxEntry]:
    """The same as `latest`; when something was left out each has the mark CONFLATED."""
    kept = latest_per_key(entries, key_of)
    if sum(entry.count for entry in kept) == sum(entry.count for entry in entries):
        return kept
    return [entry.with_conflation_mark(CONFLATED) for entry in kept]


def latest_per_key(entries: Sequence[OutboxEntry], key_of: KeyOf) -> list[OutboxEntry]:
    """The entries with the last record of each key alone, in order.

    Those up to the last that isn't whole have no source any more: the log would bring back what was replaced.
    """
    fold = LastPerKey(key_of, MAX_KEYS)
    for entry in entries:
        fold.add(entry.batch)
    kept, again, following = list[OutboxEntry](), 0, 0
    for number, rows in fold.last_rows():
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


def discarded_tally(before: Sequence[OutboxEntry], after: Sequence[OutboxEntry]) -> DiscardTally:
    """What of `before` isn't in `after`, as numbers; `first` and `last` are those of `before`."""
    lost, left = tally_entries(before), tally_entries(after)
    lost.messages -= left.messages
    lost.nbytes -= left.nbytes
    lost.unjournaled -= left.unjournaled
    lost.unjournaled_bytes -= left.unjournaled_bytes
    return lost
