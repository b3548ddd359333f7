"""The subscriptions of one client: what waits for the application, what the broker says of them, and what keeps them: leases
renewed, cancellations survived, hand-offs resumed."""

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

RENEWALS = 3
"""A lease is renewed that many times in its length."""


class ActiveSubscriptions:
    """`by_id` are those there are. `send` drops commands while there is no connection."""

    def __init__(self, send: Callable[[commands.Command], object], *, verify: bool) -> None:
        self.by_id: dict[str, Subscription] = {}
        self.resume_token = ""
        """Of the last notice that had one: where the broker dropped this client."""
        self._send = send
        self._verify = verify
        self._instance = ""
        self._streams: dict[int, Subscription] = {}
        self._last_stream = 0
        """The newest of this connection: streams are numbered up, and never used again."""
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._unanswered: set[str] = set()
        """Ids asked for on this connection, of which the broker hasn't said yet whether it has them."""
        self._given_up: dict[str, commands.Unsubscribe] = {}
        """Those of them that were ended meanwhile. The broker may be preparing them, and knows nothing to end before its answer."""

    # What the application does.

    async def begin(self, subscription: Subscription) -> None:
        """Ask for a new one. Raises what the broker has against it; then it is forgotten. Cancelled, it is ended there as well."""
        self.by_id[subscription.id] = subscription
        asked = self._asked[subscription.id] = asyncio.get_running_loop().create_future()
        if subscription.id not in self._given_up:  # else when the broker has answered what was given up
            self._ask(subscription)
        try:
            await asked
        except asyncio.CancelledError:
            self.end(subscription)
            raise
        except BaseException:
            self.by_id.pop(subscription.id, None)
            raise
        finally:
            self._asked.pop(subscription.id, None)
        if subscription.lease_ms:
            self._renew_later(subscription)

    def _ask(self, subscription: Subscription) -> None:
        self._unanswered.add(subscription.id)
        self._send(subscription.subscribe_command())

    def end(self, subscription: Subscription) -> None:
        """Let one go, here and at the broker."""
        there = self.by_id.get(subscription.id) is subscription
        self.remove(subscription)
        over = commands.Unsubscribe(id=subscription.id, delete=subscription.delete)
        if subscription.id not in self._unanswered:
            self._send(over)
        elif there:
            self._given_up.setdefault(subscription.id, over)

    def remove(self, subscription: Subscription) -> None:
        """Let one go; what is on its way for it is ignored."""
        if self.by_id.pop(subscription.id, None) is not None:
            subscription.detach()
        for stream in [stream for stream, found in self._streams.items() if found is subscription]:
            del self._streams[stream]

    def _renew_later(self, subscription: Subscription) -> None:
        seconds = subscription.lease_ms / RENEWALS / 1_000
        asyncio.get_running_loop().call_later(seconds, self._renew, subscription)

    def _renew(self, subscription: Subscription) -> None:
        if self.by_id.get(subscription.id) is subscription:
            self._send(commands.RenewLease(id=subscription.id))
            self._renew_later(subscription)

    # What the connection does.

    def on_connected(self, instance: str, link: ClientLink) -> None:
        """A new connection: its streams have other numbers, and each subscription is asked for again."""
        self._instance = instance
        self._streams.clear()
        self._last_stream = 0
        self._given_up.clear()
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
        """Hand on a delivery. Raises OperatorError damaged_delivery."""
        subscription = self._streams.get(frame.stream)
        if subscription is None and frame.stream > self._last_stream:
            # A frame's header has no checksum: taken for a late one, it would be lost without a word.
            raise OperatorError(
                "damaged_delivery", f"A delivery is for stream {frame.stream}, which doesn't exist.", ""
            )
        try:
            batch = Batch.parse(frame.payload, verify=self._verify)
        except ClientError as error:
            # Not the broker's refusal of ours but damage on the way: a new connection delivers it again.
            raise OperatorError(
                "damaged_delivery", f"A delivery was damaged: {error.sentence}", error.fix
            ) from error
        if subscription is not None:  # else it was unsubscribed while this was on its way
            subscription.receive(batch)

    def on_unknown(self, id: str, bookmarks: Sequence[str]) -> None:
        """The broker has begun a subscription elsewhere, because its log never had these."""
        if (subscription := self.by_id.get(id)) is not None:
            subscription.on_restart(bookmarks)

    def on_ack(self, ack: Ack) -> None:
        """The broker has a subscription, or tells how far it is."""
        id = ack.id or ""
        if ack.stream is not None:
            self._last_stream = max(self._last_stream, ack.stream)
            if self._answered(id, there=True):
                return
        subscription = self.by_id.get(id)
        if subscription is None or id in self._unanswered:  # what is said before its answer is of another one
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
            asked = self._asked.get(subscription.id)
            if asked is not None and not asked.done():
                asked.set_result(None)

    def on_refused(self, id: str, error: ClientError) -> None:
        """The broker has something against a subscription: whoever asked for it hears it, else whoever reads it."""
        if self._answered(id, there=False):
            return
        asked = self._asked.get(id)
        subscription = self.by_id.pop(id, None)
        if asked is not None and not asked.done():
            asked.set_exception(error)
        elif subscription is not None:
            subscription.detach()
            subscription.fail(error)

    def _answered(self, id: str, *, there: bool) -> bool:
        """Whether an answer is of a subscription that was given up. Then it is ended at the broker, where it is there, and its id is
        free for who waits for it."""
        self._unanswered.discard(id)
        over = self._given_up.pop(id, None)
        if over is None:
            return False
        if there:
            self._send(over)
        if (waits := self.by_id.get(id)) is not None:
            self._ask(waits)
        return True

    def on_cancelled(self, reply: SubscriptionCancelled) -> None:
        """The broker ended a subscription. One with a lease or a snapshot comes back; others fail with the reason."""
        subscription = self.by_id.get(reply.id)
        if subscription is None:
            return
        if subscription.comes_back:
            delay = (reply.retry_after_ms or 0) / 1_000
            asyncio.get_running_loop().call_later(delay, self._again, subscription)
        else:
            self.remove(subscription)
            subscription.fail(
                ClientError.from_dict(reply.code, reply.message, "Subscribe again when you can keep up.")
            )

    def _again(self, subscription: Subscription) -> None:
        if self.by_id.get(subscription.id) is subscription:
            self._ask(subscription)

    def fail(self, error: SluiceError) -> None:
        for waiter in self._asked.values():
            if not waiter.done():
                waiter.set_exception(error)
        for subscription in self.by_id.values():
            subscription.fail(error)
