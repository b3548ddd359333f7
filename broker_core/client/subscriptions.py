"""Subscriptions of one client: requests, deliveries, leases, cancellations and resumption.

This module tracks which subscriptions exist and which requests the broker has not answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from broker_core.batch import Batch
from broker_core.client.links import ClientLink
from broker_core.client.subscription import Subscription
from broker_core.errors import ClientError, OperatorError, SluiceError
from broker_core.protocols import commands
from broker_core.protocols.native import NativeFrame
from broker_core.protocols.replies import Ack, SubscriptionCancelled

RENEWALS_PER_LEASE = 3
"""Number of times that a lease is renewed during its length."""


class ActiveSubscriptions:
    """Subscriptions of one client, by id in `by_id`."""

    def __init__(self, send: Callable[[commands.Command], object], *, verify: bool) -> None:
        """Create an empty table.

        Args:
            send: Sends a command, or drops it while there is no connection.
            verify: Whether to verify the checksum of received batches.
        """
        self.by_id: dict[str, Subscription] = {}
        self.resume_token = ""
        """Resume token of the last notice that had one: where the broker dropped this client."""
        self._send = send
        self._verify = verify
        self._instance = ""
        self._streams: dict[int, Subscription] = {}
        self._last_stream = 0
        """Newest stream number of this connection. Stream numbers ascend and are never reused."""
        self._pending_requests: dict[str, asyncio.Future[None]] = {}
        self._unanswered: set[str] = set()
        """Ids that were requested on this connection and that the broker has not answered."""
        self._abandoned: dict[str, commands.Unsubscribe] = {}
        """Unsubscribe commands for unanswered ids.

        They are sent after the broker's answer, which knows the subscription.
        """

    # Called by the application.

    async def begin(self, subscription: Subscription) -> None:
        """Subscribe and wait for the broker's answer.

        After cancellation, the subscription is also ended at the broker.

        Raises:
            SluiceError: The broker's rejection, or the failure of the client. The subscription is then
                removed.
        """
        self.by_id[subscription.id] = subscription
        waiter = self._pending_requests[subscription.id] = asyncio.get_running_loop().create_future()
        # An abandoned request with the same id must be answered first; `_answered` then sends this one.
        if subscription.id not in self._abandoned:
            self._send_request(subscription)
        try:
            await waiter
        except asyncio.CancelledError:
            self.end(subscription)
            raise
        except BaseException:
            self.by_id.pop(subscription.id, None)
            raise
        finally:
            self._pending_requests.pop(subscription.id, None)
        if subscription.lease_ms:
            self._renew_later(subscription)

    def _send_request(self, subscription: Subscription) -> None:
        self._unanswered.add(subscription.id)
        self._send(subscription.subscribe_command())

    def end(self, subscription: Subscription) -> None:
        """Remove a subscription here and at the broker."""
        is_active = self.by_id.get(subscription.id) is subscription
        self.remove(subscription)
        unsubscribe = commands.Unsubscribe(id=subscription.id, delete=subscription.delete)
        if subscription.id not in self._unanswered:
            self._send(unsubscribe)
        elif is_active:
            self._abandoned.setdefault(subscription.id, unsubscribe)

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription. Its deliveries in flight are ignored."""
        if self.by_id.pop(subscription.id, None) is not None:
            subscription.detach()
        for stream in [stream for stream, found in self._streams.items() if found is subscription]:
            del self._streams[stream]

    def _renew_later(self, subscription: Subscription) -> None:
        seconds = subscription.lease_ms / RENEWALS_PER_LEASE / 1_000
        asyncio.get_running_loop().call_later(seconds, self._renew, subscription)

    def _renew(self, subscription: Subscription) -> None:
        if self.by_id.get(subscription.id) is subscription:
            self._send(commands.RenewLease(id=subscription.id))
            self._renew_later(subscription)

    # Called by the connection.

    def on_connected(self, instance: str, link: ClientLink) -> None:
        """Subscribe again to everything on a new connection, whose streams have other numbers."""
        self._instance = instance
        self._streams.clear()
        self._last_stream = 0
        self._abandoned.clear()
        self._unanswered = set(self.by_id)
        for subscription in self.by_id.values():
            subscription.instance = instance
            command = subscription.subscribe_command()
            if self.resume_token and command.resume_how is not None:
                command = msgspec.structs.replace(
                    command, resume=self.resume_token, bookmark=None, on_gap=None, durability=None
                )
            link.send_command(command)
        self.resume_token = ""

    def deliver(self, frame: NativeFrame) -> None:
        """Pass a delivery to its subscription.

        Raises:
            OperatorError: `damaged_delivery`.
        """
        subscription = self._streams.get(frame.stream)
        if subscription is None and frame.stream > self._last_stream:
            # Frame headers have no checksum. If an unknown stream were taken for an old one, its records
            # would be lost silently.
            raise OperatorError(
                "damaged_delivery", f"A delivery is for stream {frame.stream}, which doesn't exist.", ""
            )
        try:
            batch = Batch.parse(frame.payload, verify=self._verify)
        except ClientError as error:
            # The bytes were damaged in transit; this is no rejection by the broker. A new connection delivers
            # them again.
            raise OperatorError(
                "damaged_delivery", f"A delivery was damaged: {error.sentence}", error.fix
            ) from error
        if subscription is not None:  # None: it was unsubscribed while this delivery was in flight
            subscription.receive(batch)

    def on_unknown(self, id: str, bookmarks: Sequence[str]) -> None:
        """Handle a subscription that the broker restarted because its log never had these bookmarks."""
        if (subscription := self.by_id.get(id)) is not None:
            subscription.on_restart(bookmarks)

    def on_ack(self, ack: Ack) -> None:
        """Handle a broker's reply about a subscription: accepted, persisted or completed."""
        id = ack.id or ""
        if ack.stream is not None:
            self._last_stream = max(self._last_stream, ack.stream)
            if self._finish_abandoned(id, exists=True):
                return
        subscription = self.by_id.get(id)
        # A reply before the answer to the subscribe command concerns an earlier subscription with this id.
        if subscription is None or id in self._unanswered:
            return
        if ack.ack == "persisted" and ack.bookmark is not None:
            subscription.on_persisted(ack.bookmark)
        elif ack.ack == "completed":
            if ack.ended:
                self.remove(subscription)
            subscription.on_completed(ended=bool(ack.ended))
        elif ack.stream is not None:
            subscription.instance = self._instance
            self._streams[ack.stream] = subscription
            subscription.on_accepted(ack.bookmark)
            waiter = self._pending_requests.get(subscription.id)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def on_rejected(self, id: str, error: ClientError) -> None:
        """Handle a rejected subscription.

        Fails the call to `subscribe`, or the readers if that call returned.
        """
        if self._finish_abandoned(id, exists=False):
            return
        waiter = self._pending_requests.get(id)
        subscription = self.by_id.pop(id, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        elif subscription is not None:
            subscription.detach()
            subscription.fail(error)

    def _finish_abandoned(self, id: str, *, exists: bool) -> bool:
        """Return whether an answer belongs to an abandoned request.

        If so, the subscription is ended at the broker if it exists there, and a waiting request with the same
        id is sent.
        """
        self._unanswered.discard(id)
        unsubscribe = self._abandoned.pop(id, None)
        if unsubscribe is None:
            return False
        if exists:
            self._send(unsubscribe)
        if (replacement := self.by_id.get(id)) is not None:
            self._send_request(replacement)
        return True

    def on_cancelled(self, reply: SubscriptionCancelled) -> None:
        """Handle a subscription that the broker cancelled.

        A subscription with a lease or a snapshot is requested again; others fail with the reason.
        """
        subscription = self.by_id.get(reply.id)
        if subscription is None:
            return
        if subscription.resubscribes:
            delay = (reply.retry_after_ms or 0) / 1_000
            asyncio.get_running_loop().call_later(delay, self._resubscribe, subscription)
        else:
            self.remove(subscription)
            subscription.fail(
                ClientError.from_dict(
                    reply.code, reply.message, "Subscribe again when the application can keep up."
                )
            )

    def _resubscribe(self, subscription: Subscription) -> None:
        if self.by_id.get(subscription.id) is subscription:
            self._send_request(subscription)

    def fail(self, error: SluiceError) -> None:
        """Fail all subscriptions and all calls that wait for an answer."""
        for waiter in self._pending_requests.values():
            if not waiter.done():
                waiter.set_exception(error)
        for subscription in self.by_id.values():
            subscription.fail(error)
