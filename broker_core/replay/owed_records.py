"""Records that a deleted durable subscription was owed: counted in the log, then recorded as discarded.

The records that its client was offered are in the account of its subscription. The others are known to the
log only. Counting them reads the log, so it runs in a task with a pin of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import structlog

from broker_core.batch import Batch
from broker_core.delivery.account import NOTHING, DeliveryAccount, DiscardCause, MessageVolume
from broker_core.delivery.discards import NOTHING_UNDELIVERED, UndeliveredSummary
from broker_core.delivery.loss_ledger import DiscardTally
from broker_core.delivery.ports import InstanceResources
from broker_core.errors import JournalError
from broker_core.journal.open_segments import Pin
from broker_core.replay.client_subscription import SubscriptionOwner
from broker_core.replay.read_ahead import ReadPosition, ReplayTarget
from broker_core.replay.span import ReplaySpan
from broker_core.subscriptions.subscription import TopicSubscription

log = structlog.get_logger("sluice.kept")


@dataclass(slots=True, eq=False)
class OwedRecords:
    """Part of the log that a deleted durable subscription was owed and had not been given.

    * `client`, `topic`, `subscription`, `rule`: as the ledger's rows name them.
    * `span`: the part, with `last` as the newest record at the deletion.
    * `done`: intervals in it that consumers of a shared subscription have finished, in order.
    * `peer`: client whose subscription has ended; None if none was subscribed.
    """

    client: str
    topic: str
    subscription: TopicSubscription[Any]
    span: ReplaySpan
    rule: str = ""
    done: Sequence[tuple[int, int]] = ()
    peer: SubscriptionOwner | None = None
    summary: UndeliveredSummary = NOTHING_UNDELIVERED
    _counted: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> UndeliveredSummary:
        """Return the summary of these records once they are counted and recorded."""
        await self._counted.wait()
        return self.summary

    def on_counted(self, summary: UndeliveredSummary) -> None:
        """Set the summary and wake the callers of `wait`."""
        self.summary = summary
        self._counted.set()


class OwedRecordsRecorder:
    """Counter of the records that deleted durable subscriptions were owed.

    It records them in the loss ledger and in an account, as `DiscardCause.STORED`: in the account of a
    connected client, otherwise in `ended_account`.
    """

    def __init__(self, facilities: InstanceResources, ended_account: DeliveryAccount) -> None:
        self._facilities = facilities
        self._ended_account = ended_account

    def start(self, owed: OwedRecords) -> None:
        """Start to count. The log is pinned at the first record before this returns."""
        owner = f"count of what deleted durable subscription {owed.subscription.id} of {owed.client} was owed"
        pin = self._facilities.journal.pin(owed.span.first, owner, "")
        self._facilities.spawn(self._record(owed, pin))

    async def _record(self, owed: OwedRecords, pin: Pin) -> None:
        """Count the records, then write them to the ledger and to an account."""
        tally = DiscardTally()
        try:
            await self._count(owed, tally)
        except JournalError as error:
            log.error("owed_records_unreadable", client=owed.client, reason=error.sentence)
        finally:
            pin.release()
        volume = MessageVolume(tally.messages, tally.nbytes)
        self._facilities.ledger.record_loss(
            self._facilities.clock.now_ns(),
            owed.client,
            owed.subscription.id,
            owed.topic,
            DiscardCause.STORED,
            owed.rule,
            tally,
        )
        account = DeliveryAccount()
        account.journaled.matched, account.journaled.matched_bytes = volume
        account.discard_waiting(DiscardCause.STORED, volume, journaled=True)
        if owed.peer is None or owed.peer.is_closed:
            self._ended_account.merge(account)
        else:
            owed.peer.backlog.add_ended_account(account)
        owed.on_counted(UndeliveredSummary(volume, NOTHING, tally.first))

    async def _count(self, owed: OwedRecords, tally: DiscardTally) -> None:
        """Add the matching records to a tally, one chunk of the log after the other.

        Raises:
            JournalError: the log can't be read.
        """
        journal, reader, share = self._facilities.journal, self._facilities.reader, self._facilities.share
        position = ReadPosition(journal, [ReplayTarget(owed.subscription, owed.span.first)], owed.span)
        while True:
            await share.wait_slot()
            async with share.reads:
                chunk = await reader.run(position.read_next_chunk, owed.span.last, share.max_chunk_bytes)
            if chunk is None:
                return
            for batch_slice in chunk.slices:
                _add_unfinished(tally, batch_slice.batch, owed.done)


def _add_unfinished(tally: DiscardTally, batch: Batch, done: Sequence[tuple[int, int]]) -> None:
    """Add the records of a batch to a tally, except those in `done`."""
    if not done:
        tally.add(batch.count, batch.header.bodies_length, batch.first_sequence, batch.last_sequence)
        return
    firsts, lasts = (np.array(ends, np.uint64) for ends in zip(*done, strict=True))
    sequences = batch.sequences()
    at = np.searchsorted(firsts, sequences, side="right") - 1
    rows = np.flatnonzero((at < 0) | (sequences > lasts[np.maximum(at, 0)]))
    if len(rows):
        nbytes = int(batch.rows["body"][rows].sum(dtype="u8"))
        tally.add(len(rows), nbytes, int(sequences[rows[0]]), int(sequences[rows[-1]]))
