"""Durable subscriptions of an instance, stored by client and name while the client is away.

Each is a position in the journal, which `positions.store` writes to disk. A shared durable subscription
belongs to no client (`SHARED_OWNER`); any number of clients consume it together (`sharing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from broker_core.config.preset_settings import MAX_DURABLES
from broker_core.delivery.account import DeliveryAccount
from broker_core.delivery.ports import InstanceResources
from broker_core.documents.replays import DurableEntry
from broker_core.errors import ClientError, OperatorError
from broker_core.filters import DecoderOf, compile_filter
from broker_core.protocols import commands
from broker_core.replay.client_subscription import ClientSubscription, SharedSubscriptionPort
from broker_core.replay.cursor import DurableFrontier
from broker_core.replay.owed_records import OwedRecords, OwedRecordsRecorder
from broker_core.replay.positions.file import SHARED_OWNER, DurableSubscriptionRecord, SharedProgress
from broker_core.replay.positions.store import PositionStore
from broker_core.replay.sharing.shared_subscription import SharedSubscription
from broker_core.replay.span import ReplaySpan
from broker_core.subscriptions.subscription import TopicSubscription
from broker_core.subscriptions.topics import TopicPattern

POSITIONS_PER_ITERATION: Final = 64
"""Positions updated per event-loop iteration. There may be 10,000; each is updated once a second."""


class DurableDeletion(NamedTuple):
    """Deleted durable subscription, and the records that it was owed.

    `owed` is None while clients are subscribed: they still get the records, until their subscription ends.
    """

    record: DurableSubscriptionRecord
    owed: OwedRecords | None


class DurableSubscriptions:
    """Durable subscriptions of one instance, by client and name.

    `share` creates the SharedSubscription of a stored record for its first consumer.
    """

    def __init__(
        self,
        facilities: InstanceResources,
        frontier: DurableFrontier,
        store: PositionStore,
        share: Callable[[DurableSubscriptionRecord], SharedSubscription],
        decoder_of: DecoderOf,
        ended_account: DeliveryAccount,
    ) -> None:
        self._clock, self._instance, self._scheduler = (
            facilities.clock,
            facilities.instance,
            facilities.scheduler,
        )
        self._journal = facilities.journal
        self._frontier = frontier
        self._store = store
        self._known = store.durables
        self._share = share
        self._decoder_of = decoder_of
        self._recorder = OwedRecordsRecorder(facilities, ended_account)
        self._owed: dict[ClientSubscription, OwedRecords] = {}
        """Records owed by deleted durables whose subscriptions ended in this event-loop iteration."""
        self._deleted_shared: dict[SharedSubscriptionPort, Callable[[], object]] = {}
        """Deleted shared subscriptions that have consumers, with the function to call after the last one."""
        self._active: dict[tuple[str, str], ClientSubscription] = {}
        self._shared: dict[str, SharedSubscription] = {}
        """Shared subscriptions that have consumers, by name."""
        self.sent_upto: dict[tuple[str, str], int] = {}
        """Newest sequence sent since the start, by client and name; for protocols that flag redeliveries."""
        self.is_journaled: Callable[[str], bool] = lambda topic: True
        """Callback set by the engine: whether the policy in force journals any record of a topic or
        pattern."""

    def is_connected(self, durable: DurableSubscriptionRecord) -> bool:
        if durable.sharing is not None:
            return durable.name in self._shared and self._shared[durable.name].consumers > 0
        return (durable.client, durable.name) in self._active

    def is_known(self, client: str, name: str) -> bool:
        """Return whether a client has a durable subscription of that name."""
        return (client, name) in self._known

    async def claim(
        self, client: str, command: commands.Subscribe, position: int
    ) -> DurableSubscriptionRecord:
        """Return the durable subscription that a subscribe command names, once it is on disk.

        A new one begins at sequence `position`. The caller must open it without awaiting in between: another
        client may take it during an await.

        Raises ClientError durable_differs, durable_in_use or too_many_durables. Raises JournalError not_kept
        when it can't be stored; a new one is then removed.
        """
        while True:
            found = self._find(client, command) or self._make(client, command, position)
            if not self._store.is_new(found):
                return found
            await self._store.wait_durable(found)
            # Another client may have subscribed to it or deleted it during the wait, so check again.

    def _find(self, client: str, command: commands.Subscribe) -> DurableSubscriptionRecord | None:
        """Return the existing record that a subscribe command names; None if there is none.

        Raises ClientError durable_differs for another topic or filter, and durable_in_use while a client has
        it.
        """
        found = self._known.get((client, command.durable or ""))
        if found is None:
            return None
        if (found.topic, found.filter) != (command.topic, command.filter):
            raise ClientError(
                "durable_differs",
                f"The durable subscription {found.name} is of {found.topic}"
                f"{' with ' + found.filter if found.filter else ''}.",
                "Subscribe as before, or delete it first: in the console, or by an unsubscribe with "
                '"delete":true (STOMP: with the headers that made it durable).',
                topic=found.topic,
                filter=found.filter,
            )
        if found.sharing is None and self.is_connected(found):
            raise ClientError(
                "durable_in_use",
                f"The durable subscription {found.name} is subscribed already.",
                "A durable subscription can have one subscriber at a time.",
            )
        return found

    def _make(self, client: str, command: commands.Subscribe, position: int) -> DurableSubscriptionRecord:
        """Create a record at sequence `position` and add it to the store.

        Raises ClientError too_many_durables.
        """
        if len(self._known) >= MAX_DURABLES:
            raise ClientError(
                "too_many_durables",
                f"This instance holds at most {MAX_DURABLES} durable subscriptions.",
                "Delete some that nobody needs.",
            )
        now = self._clock.now_ns()
        durable = DurableSubscriptionRecord(
            name=command.durable or "",
            client=client,
            topic=command.topic,
            filter=command.filter,
            position=position,
            created_at=now,
            seen_at=now,
            sharing=SharedProgress(upto=position - 1) if command.shared else None,
        )
        self._store.add(durable)
        return durable

    def on_subscribed(self, target: ClientSubscription, name: str) -> None:
        """Connect a subscription with the durable record that `claim` returned."""
        key = target.peer.durable_owner(name), name
        self._active[key], target.durable_record = target, self._known.get(key)

    def on_consumer_added(self, target: ClientSubscription, name: str, max_deliveries: int | None) -> None:
        """Add a client as a consumer of a shared subscription that `claim` returned."""
        shared = self._shared.get(name)
        if shared is None:
            shared = self._shared[name] = self._share(self._known[SHARED_OWNER, name])
        if max_deliveries is not None:
            shared.set_max_deliveries(max_deliveries)
        target.shared = shared
        shared.add_consumer(target)

    def _remove_consumer(self, target: ClientSubscription, shared: SharedSubscriptionPort) -> None:
        """Remove a consumer, and close the shared subscription later if it was the last one."""
        shared.remove_consumer(target)
        if not shared.consumers:  # later, because one client may close a thousand subscriptions at once
            self._scheduler.call_in_later_iteration(partial(self._close_if_unused, shared))

    def _close_if_unused(self, shared: SharedSubscriptionPort) -> None:
        """Close a shared subscription, unless a consumer has joined since the last one left."""
        if not shared.consumers:
            if self._shared.get(shared.record.name) is shared:
                self._update_position(self._shared.pop(shared.record.name))
            elif (record_owed := self._deleted_shared.pop(shared, None)) is not None:
                record_owed()
            shared.close()

    def on_closed(self, target: ClientSubscription, rule: str = "") -> None:
        """Store the position of a subscription that ends. `rule` ended it; "": no rule did.

        Of a deleted durable subscription, start to count the records that it was owed and not given.

        Call it before the subscription's deliveries are discarded, because the position is computed from
        them.
        """
        if target.owed_upto:
            self._record_unread(target, rule)
            return
        if target.shared is not None:
            self._remove_consumer(target, target.shared)
            return
        key = (target.peer.durable_owner(target.durable), target.durable)
        if self._active.get(key) is target:
            self._move(key, target)
            del self._active[key]
            if (durable := self._known.get(key)) is not None:
                self._store.record_disconnect(durable)

    def delete(self, client: str, name: str) -> DurableDeletion:
        """Delete a durable subscription and release its pin. It is removed from disk with the next save.

        The records that it was owed are counted and recorded: now, or when its subscription ends.

        Raises OperatorError unknown_durable.
        """
        durable = self._known.get((client, name))
        if durable is None:
            raise OperatorError(
                "unknown_durable",
                f"Client {client} has no durable subscription {name}.",
                "See the list of durable subscriptions.",
            )
        is_subscribed = self.is_connected(durable)
        self._store.remove(durable)
        self.sent_upto.pop((client, name), None)
        if durable.sharing is not None:
            self._store.mark_deleted(name, self._frontier.durable)
            # Consumers keep their records; the position is dropped.
            if (shared := self._shared.pop(name, None)) is not None:
                record_owed = partial(self._record_owed_shared, shared, self._frontier.durable)
                if not is_subscribed:
                    return DurableDeletion(durable, record_owed())
                self._deleted_shared[shared] = record_owed
        if is_subscribed:
            return DurableDeletion(durable, None)
        return DurableDeletion(durable, self._record_owed(durable, self._frontier.durable))

    def _record_owed_shared(self, shared: SharedSubscription, upto: int) -> OwedRecords:
        """Start to count the records that a shared subscription without consumers was owed."""
        shared.record_position()
        return self._record_owed(shared.record, upto)

    def _record_owed(self, durable: DurableSubscriptionRecord, upto: int) -> OwedRecords:
        """Start to count the records from a deleted record's position up to sequence `upto`."""
        subscription = TopicSubscription(
            None,
            durable.name,
            0,
            TopicPattern.parse(durable.topic),
            compile_filter(durable.filter) if durable.filter else None,
            self._decoder_of,
        )
        done = durable.sharing.done if durable.sharing is not None else []
        span = ReplaySpan(durable.position, last=upto)
        owed = OwedRecords(durable.client, durable.topic, subscription, span, done=done)
        self._recorder.start(owed)
        return owed

    def _record_unread(self, target: ClientSubscription, rule: str) -> None:
        """Start to count the records that an ending subscription was owed and that its account lacks."""
        cursor, upto = target.cursor, target.owed_upto
        target.owed_upto = 0
        first = max(cursor.next_sequence, target.account.last_matched + 1)
        if cursor.is_live or cursor.span is None or first > min(upto, cursor.span.last):
            return
        span = cursor.span._replace(first=first, last=min(upto, cursor.span.last))
        if cursor.has_reached_start:
            span = span._replace(not_before=0)
        owed = OwedRecords(target.peer.name, target.topic, target.subscription, span, rule, peer=target.peer)
        self._owed[target] = owed
        asyncio.get_running_loop().call_soon(self._owed.pop, target, None)
        self._recorder.start(owed)

    def take_owed(self, target: ClientSubscription) -> OwedRecords | None:
        """Return the records that an ended subscription was owed and not given; None if there are none.

        Call it right after the end of the subscription, without an await in between.
        """
        return self._owed.pop(target, None)

    def release(self, durable: DurableSubscriptionRecord) -> None:
        """Turn the subscription of a deleted durable record into an ordinary one.

        Closing it then changes no stored record, not even a new one of the same name.
        """
        subscribed = self._active.pop((durable.client, durable.name), None)
        if subscribed is not None:
            subscribed.durable, subscribed.owed_upto = "", self._frontier.durable
            subscribed.durable_record = None

    def close(self) -> None:
        """Store the positions of shared subscriptions at shutdown. Call it after all clients were closed."""
        for shared in list(self._shared.values()):
            self._close_if_unused(shared)

    async def wait_durable(self) -> None:
        """Wait until the durable subscriptions created and deleted so far are on disk.

        Raises JournalError not_kept.
        """
        await self._store.save()

    # Positions.

    async def record_positions(self) -> None:
        """Update the stored position of each connected subscription; call it once a second.

        Yields to the event loop after each NOTED_AT_ONCE positions.
        """
        updated = 0
        for key, target in list(self._active.items()):
            if self._active.get(key) is target:  # otherwise `on_closed` has stored it during a yield
                self._move(key, target)
            updated += 1
            if not updated % POSITIONS_PER_ITERATION:
                await asyncio.sleep(0)
        for name, shared in list(self._shared.items()):
            if self._shared.get(name) is shared:
                self._update_position(shared)
            updated += 1
            if not updated % POSITIONS_PER_ITERATION:
                await asyncio.sleep(0)

    def _update_position(self, shared: SharedSubscription) -> None:
        """Update the stored progress of a shared subscription."""
        shared.record.seen_at = self._clock.now_ns()
        if (
            shared.record_position()
            and self._known.get((shared.record.client, shared.record.name)) is shared.record
        ):
            self._store.mark_changed(shared.record)

    def _move(self, key: tuple[str, str], target: ClientSubscription) -> None:
        """Move the stored position of a connected subscription forward."""
        durable = self._known.get(key)
        if durable is None:
            return
        durable.seen_at = self._clock.now_ns()
        position = target.position(self._frontier.durable)
        if position > durable.position:
            durable.position = position
            self._store.mark_changed(durable)

    def list_records(self) -> list[DurableSubscriptionRecord]:
        """Return the stored records of all durable subscriptions."""
        return list(self._known.values())

    def list_entries(self) -> list[DurableEntry]:
        """Return an entry for each durable subscription, for the control plane."""
        shared = self._shared
        return [
            DurableEntry(
                client=durable.client,
                name=durable.name,
                topic=durable.topic,
                filter=durable.filter,
                bookmark=f"{self._instance}|{durable.position - 1}|",
                connected=self.is_connected(durable),
                shared=durable.sharing is not None,
                consumers=one.consumers
                if (one := shared.get(durable.name)) is not None and one.record is durable
                else int(self.is_connected(durable)),
                unacknowledged=one.unacknowledged if one is not None and one.record is durable else 0,
                behind=self._journal.count(durable.position, self._frontier.durable),
                unrecorded=not self.is_journaled(durable.topic),
                created_at=durable.created_at // 1_000_000,
                seen_at=durable.seen_at // 1_000_000,
            )
            for durable in self._known.values()
        ]
