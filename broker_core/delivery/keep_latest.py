"""Conflation of a backlog by policy: of the messages with one key the latest stays, the others are discarded.

`conflation` serves subscribers that ask for conflation. Here a policy acts on a backlog. Reading keys means
decoding every queued message, so it runs in the reader thread. Meanwhile nothing of the subscription is sent,
and new deliveries queue behind. Remaining messages are marked in a copy for this subscription, so that its
client knows that messages were left out. The queue marks the first delivery behind them as the end of the
conflated part.

In shadow mode nothing is conflated. An exact simulation counts the result and stores only hashes of keys.
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
"""Maximum number of keys. The memory pool already bounds the queued messages."""


DoneCallback = Callable[[int, int], None]
"""Callback that gets the number of discarded messages and the number of remaining ones."""


def keep_latest(
    backlog: Backlog,
    facilities: InstanceResources,
    stream: int,
    key_of: KeyOf,
    rule: str,
    done: DoneCallback = lambda *_: None,
) -> None:
    """Conflate the queued messages of a subscription in memory by a key, in a task of its own.

    `done` is not called if nothing is queued, a conflation is in progress, or the client is closed or
    offlined meanwhile.
    """
    queue = backlog.ensure_queue(stream)
    if not queue.is_conflating and queue.messages:
        queue.is_conflating = True
        facilities.spawn(_keep_latest(backlog, facilities, queue, key_of, rule, done))


async def _keep_latest(
    backlog: Backlog,
    facilities: InstanceResources,
    queue: SubscriptionQueue,
    key_of: KeyOf,
    rule: str,
    done: DoneCallback,
) -> None:
    """Conflate the queue's entries in the reader thread, and record the discarded messages."""
    before = queue.peek()
    try:
        after = await facilities.reader.run(_latest_marked, before, key_of)
        # If the client was closed or offlined meanwhile, all of `before` has left the queue.
        if queue.replace_first(before, after):
            lost = discarded_tally(before, after)
            backlog.discard(queue.stream, lost, DiscardCause.CONFLATED, rule)
            done(lost.messages, sum(entry.count for entry in after))
    finally:
        queue.is_conflating = False
        backlog.resume_sending()


def simulate_keep_latest(
    queue: SubscriptionQueue,
    facilities: InstanceResources,
    key_of: KeyOf,
    rule: str,
    cut: int,
    done: DoneCallback,
) -> None:
    """Count the messages that `keep_latest` would discard if earlier shadow decisions had been applied.

    The queue isn't changed. `cut`: number of messages that the rule's state counts as removed by those
    decisions.
    """
    if queue.messages:
        facilities.spawn(_simulate_keep_latest(queue, facilities, key_of, rule, cut, done))


async def _simulate_keep_latest(
    queue: SubscriptionQueue,
    facilities: InstanceResources,
    key_of: KeyOf,
    rule: str,
    cut: int,
    done: DoneCallback,
) -> None:
    """Simulate one conflation of the queue, and store the simulated content under the rule's name."""
    before, queued_in_total, waits = (
        queue.shadow_conflations.get(rule, ShadowConflation()),
        queue.queued_in_total,
        queue.messages,
    )
    newer = await facilities.reader.run(
        _hash_keys, queue.peek(), key_of, min(queued_in_total - before.queued_in_total, waits)
    )
    after = queue.shadow_conflations[rule] = before.conflate(newer, queued_in_total, waits, cut)
    done(after.removed - min(cut, before.removed, waits), len(after.keys))


_keyless = count()
"""Makes the hashes of messages without a key unique."""


def _hash_keys(entries: Sequence[OutboxEntry], key_of: KeyOf, max_messages: int) -> array[int]:
    """Return the hashes of the keys of the `max_messages` newest messages, in order.

    A message without a key gets a unique hash.
    """
    found = array("q")
    passed = sum(entry.count for entry in entries) - max_messages
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
    """Return `latest_per_key` of the entries; if messages were left out, with the mark CONFLATED in each."""
    latest = latest_per_key(entries, key_of)
    if sum(entry.count for entry in latest) == sum(entry.count for entry in entries):
        return latest
    return [entry.with_conflation_mark(CONFLATED) for entry in latest]


def latest_per_key(entries: Sequence[OutboxEntry], key_of: KeyOf) -> list[OutboxEntry]:
    """Return the entries with only the last record of each key, in order.

    Entries up to the last incomplete one get no source, because the log would bring back the replaced
    records.
    """
    fold = LastPerKey(key_of, MAX_KEYS)
    for entry in entries:
        fold.add(entry.batch)
    latest, rereadable, following = list[OutboxEntry](), 0, 0
    for number, rows in fold.last_rows():
        entry = entries[number]
        if number > following:
            rereadable = len(latest)
        if len(rows) < entry.count:
            batch = entry.batch.select(rows)
            entry = replace(entry, batch=batch, count=batch.count, nbytes=batch.nbytes)
            rereadable = len(latest) + 1
        latest.append(entry)
        following = number + 1
    if following < len(entries):
        rereadable = len(latest)
    return [
        replace(entry, rows=None, source=None, source_length=0) for entry in latest[:rereadable]
    ] + latest[rereadable:]


def discarded_tally(before: Sequence[OutboxEntry], after: Sequence[OutboxEntry]) -> DiscardTally:
    """Return the tally of `before` minus that of `after`. `first` and `last` are those of `before`."""
    lost, remaining = tally_entries(before), tally_entries(after)
    lost.messages -= remaining.messages
    lost.nbytes -= remaining.nbytes
    lost.unjournaled -= remaining.unjournaled
    lost.unjournaled_bytes -= remaining.unjournaled_bytes
    return lost
