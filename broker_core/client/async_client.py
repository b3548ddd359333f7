"""Client for asyncio: publishes, subscribes, and reconnects automatically.

    async with AsyncClient("tcp://127.0.0.1:9007", "prices") as client:
        await client.publish("fx.eurusd", {"bid": 1.0842})
        await client.flush()                    # returns when everything is on disk, or raises

    store = FileBookmarkStore("marks")
    async with AsyncClient("tcp://127.0.0.1:9007", "screen", bookmark_store=store) as client:
        subscription = await client.subscribe("fx.>", filter="/bid > 1", bookmark="MOST_RECENT")
        async for message in subscription:
            print(message.topic, message.data)
            subscription.done(message)          # after a restart, the next message follows

After a lost connection the client reconnects with exponential back-off and logs on. It publishes
unacknowledged messages again; the broker drops those that it already has. A subscription with a bookmark
resumes after the last record that it received. A subscription without a bookmark is live only: it does not
receive messages that were published during an outage.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Self, TypedDict, Unpack, assert_never

from broker_core.bookmark import EPOCH_TEXT
from broker_core.client.acknowledgements import Acknowledger, CreditWindow
from broker_core.client.bookmark_store import MOST_RECENT, BookmarkStore, resolve_bookmark
from broker_core.client.connector import ConnectionLoss, Connector, ReconnectPolicy, log
from broker_core.client.flow_commands import OPTION_COMMAND_TAGS, SubscriptionControl
from broker_core.client.links import ClientLink, Tls, parse_addresses, to_ssl_context
from broker_core.client.messages import BATCH_BYTES, Body
from broker_core.client.publish_store import MemoryPublishStore, PublishStore
from broker_core.client.publisher import Publisher, Rejection
from broker_core.client.subscription import Subscription, default_id
from broker_core.client.subscriptions import ActiveSubscriptions
from broker_core.client.time_limits import CLOSE_TIMEOUT_S, REQUEST_TIMEOUT_S, limit_time
from broker_core.client.unsent import NOTHING_UNSENT, Unsent, closing_notes, is_interruption
from broker_core.errors import ClientError, OperatorError, SluiceError
from broker_core.protocols import commands, replies
from broker_core.protocols.names import check_client_name, check_subscription_id
from broker_core.protocols.native import COMMAND, NativeFrame

MAX_UNREAD_BYTES = 4 * 1024 * 1024
"""Default limit in bytes of a subscription's unread data. The broker holds back the rest."""
HEARTBEAT_MS = 10_000
"""Default heartbeat interval in milliseconds."""


class SubscribeOptions(TypedDict, total=False):
    """Delivery options of a subscription, described in `AsyncClient.subscribe`."""

    on_gap: commands.OnGap | None
    timestamp: bool
    durability: commands.Durability | None
    ack: commands.AckWord | None
    prefetch: int | None
    durable: str | None
    shared: bool
    max_deliveries: int | None
    lease_ms: int | None
    snapshot_key: str | None
    resume_how: commands.ResumeHow | None
    rate: str | None
    rate_max_gap: str | None
    paused: bool
    conflation: str | None
    conflation_key: str | None
    managed: str | None


class AsyncClient(SubscriptionControl):
    """Client of one broker or one group, identified by its unique name.

    Use it in one event loop, as `async with`. Messages are published with `publish()` and `flush()`, and
    received with `subscribe()`.

    Attributes:
        name: Unique client name.
        instance: Instance to which the client is connected; "" before the first logon.
        notices: Newest 100 notices of the broker.
        errors: Newest 100 errors that the broker reported.
        last_loss: Newest lost connection or failed attempt to connect, with its reason.
        close_timeout: Default seconds that `close()` may take.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        name: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        tls: Tls = None,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        reconnect: ReconnectPolicy | None = None,
        heartbeat_ms: int | None = HEARTBEAT_MS,
        batch_bytes: int = BATCH_BYTES,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        request_timeout: float | None = REQUEST_TIMEOUT_S,
        close_timeout: float = CLOSE_TIMEOUT_S,
        verify: bool = True,
        on_notice: Callable[[replies.DecisionNotice], None] | None = None,
        on_rejection: Callable[[Rejection], None] | None = None,
        needs_sequence: bool = False,
        publisher_session: int = 0,
        on_disconnect: Callable[[ConnectionLoss], None] | None = None,
    ) -> None:
        """Create a client. `start()`, or entering `async with`, connects it.

        Args:
            address: Address of a transport, or of several transports of one instance, as `tcp://host:9007` or
                `ws://host:9008/`. When one connection is lost, the client tries the next address.
            name: Unique client name. A second client with this name replaces the first.
            user: User name, with `password` or a client certificate.
            password: Password of the user.
            token: Token, for transports that authenticate by token.
            tls: TLS for `tcps://` and `wss://`: a file of trusted authorities (PEM), or a context, which
                `tls_context()` creates. None: the system's authorities.
            publish_store: Store of unacknowledged messages. Default: a `MemoryPublishStore`.
            bookmark_store: Store of processed positions, needed for `MOST_RECENT`. Default: none.
            reconnect: Delays and limits of reconnection. Default: `ReconnectPolicy()`.
            heartbeat_ms: Heartbeat interval in milliseconds, 100 to 3,600,000. A broker that is silent for
                two intervals counts as lost. None: no heartbeats. Default 10,000.
            batch_bytes: Bytes at which gathered messages form a full batch. Default 64 KiB.
            max_unread_bytes: Maximum bytes buffered for each subscription, plus one delivery. Further
                messages wait at the broker; other subscriptions are not affected. Default 4 MiB.
            request_timeout: Seconds that `subscribe`, `pause`, `resume` and `set_rate` wait for the broker's
                answer, also without a connection. Then they raise TimeoutError. None: as long as the client
                tries to connect. Default 60.
            close_timeout: Seconds that `close()` and leaving `async with` may take. Default 10.
            verify: Whether to verify the checksum of received batches. False trusts the network.
            on_notice: Called with each notice of the broker. `notices` has the newest 100.
            on_rejection: Called with each rejection, before the rejected messages leave the publish store.
                The client automatically sends later messages again.
            needs_sequence: Leave a broker immediately if it cannot say which messages of this client it has,
                as a member that is cut off from its group. By default the client moves to the next address
                with its first message.
            publisher_session: Session of a publisher whose sequences are the same for every sender, such as a
                link. Such a client stops publishing at the first rejection and keeps the rejected messages; a
                new client with the same session sends them again. 0: the client creates a session.
            on_disconnect: Called with each lost connection and each failed attempt, with its reason and the
                time of the next attempt. The logger `sluice.client` receives the same.

        Raises:
            ClientError: `bad_client_name`.
            OperatorError: `bad_address` or `bad_certificate`.
        """
        super().__init__(request_timeout)
        self.close_timeout = close_timeout
        self.name = check_client_name(name)
        self.instance = ""
        self.notices: deque[replies.DecisionNotice] = deque(maxlen=100)
        self.errors: deque[ClientError] = deque(maxlen=100)
        self.last_loss: ConnectionLoss | None = None
        self._bookmark_store = bookmark_store
        self._needs_sequence = needs_sequence
        self._on_notice = on_notice
        self._on_disconnect = on_disconnect
        self._publisher = Publisher(
            name,
            MemoryPublishStore() if publish_store is None else publish_store,
            batch_bytes,
            on_rejection,
            publisher_session,
        )
        addresses = parse_addresses(address)
        self._connector = Connector(
            addresses,
            to_ssl_context(tls) if any(address.secure for address in addresses) else None,
            commands.Logon(
                name=name, user=user, password=password, token=token, heartbeat_ms=heartbeat_ms or None
            ),
            lambda: self._publisher.session,  # read at each logon: renumbering messages changes it
            reconnect or ReconnectPolicy(),
            self._on_frames,
            self._check_logon,
            self._on_connected,
            self._on_disconnected,
            self._report_loss,
        )
        self._subscriptions = ActiveSubscriptions(self._send, verify=verify)
        self._max_unread_bytes = max_unread_bytes
        self._is_connected = False
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[Unsent] | None = None

    async def start(self) -> Self:
        """Connect and log on.

        Raises:
            SluiceError: Reason of the failure, after `first_connect_timeout` of the reconnect policy.
            OperatorError: `client_started` if the client was started before.
        """
        if self._task is not None:
            raise OperatorError(
                "client_started", f"Client {self.name} was started before.", "Make a new client."
            )
        self._publisher.open_store()
        self._first_logon: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"client {self.name}")
        await asyncio.wait([self._task, self._first_logon], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done() and self._publisher.failure is not None:
            raise self._publisher.failure
        return self

    async def _run(self) -> None:
        """Run the connection until the client fails for good or is closed."""
        self._fail(await self._connector.run())

    def _fail(self, error: SluiceError) -> None:
        """Fail everything that waits for the broker. The client cannot be used again."""
        self._publisher.fail(error)
        self._end_requests(error)
        self._subscriptions.fail(error)

    async def close(self, timeout: float | None = None) -> None:
        """Send all published messages, wait until they are acknowledged, and disconnect.

        The client does not wait for acknowledgements if its publish store is a file: the store retains
        unacknowledged messages, and the next client with that store sends them.

        Args:
            timeout: Maximum seconds. None: the client's `close_timeout`.

        Raises:
            OperatorError: `unsent_messages`, with the number of `messages` and `bytes` that no broker has
                acknowledged and that exist only in this process.
            SluiceError: A rejection, or a failure of the store, that was not reported yet.
        """
        unsent = await self.disconnect(self.close_timeout if timeout is None else timeout)
        unsent.raise_if_any(self.name)
        if self._publisher.on_rejection is None:
            self._publisher.raise_rejection()

    async def disconnect(self, timeout: float) -> Unsent:
        """Close within `timeout` seconds, without raising errors.

        Returns the messages that are lost with the process.

        Concurrent calls share one close, and each returns the same result. A later call returns nothing
        unsent.
        """
        if self._task is None or (self._closing is not None and self._closing.done()):
            return NOTHING_UNSENT
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_future()
            try:
                unsent = await self._disconnect(self._task, timeout)
            except BaseException:
                self._closing.cancel()
                raise
            self._closing.set_result(unsent)
            return unsent
        await asyncio.wait([self._closing], timeout=timeout)
        is_closed = self._closing.done() and not self._closing.cancelled()
        return self._closing.result() if is_closed else self.unsent

    @property
    def unsent(self) -> Unsent:
        """Unacknowledged messages that would be lost with this process.

        Always empty for a store in a file.
        """
        store = self._publisher.store
        return NOTHING_UNSENT if store.durable else Unsent(store.messages, store.nbytes)

    async def _disconnect(self, task: asyncio.Task[None], timeout: float) -> Unsent:
        # The order matters: wait for acknowledgements, write the pending batch to the store, unsubscribe,
        # close the connection, and only then close the stores.
        deadline = asyncio.get_running_loop().time() + timeout
        store = self._publisher.store
        if self._publisher.failure is None:
            if not store.durable:
                with suppress(TimeoutError, SluiceError):
                    async with asyncio.timeout_at(deadline):
                        await self._publisher.wait_for_acknowledgements()
            with suppress(OperatorError):  # the store's disk rejected a batch, so it was never accepted
                self._publisher.flush_batch()
            for subscription in list(self._subscriptions.by_id.values()):
                await subscription.close()
            await self._connector.close(deadline)
        task.cancel()
        await asyncio.wait([task])
        if self._publisher.failure is None:
            # Messages published while this closed were accepted, so they must reach the store.
            self._publisher.build_pending_batch()
        self._fail(OperatorError("client_closed", f"Client {self.name} is closed.", "Make a new client."))
        unsent, messages, nbytes = self.unsent, store.messages, store.nbytes
        store.close()
        if self._bookmark_store is not None:
            self._bookmark_store.close()
        if not messages:
            return NOTHING_UNSENT
        location = "stored in its publish store" if store.durable else "lost with this process"
        log.warning(
            "%s: closed with %d unacknowledged messages (%d bytes), %s.",
            self.name,
            messages,
            nbytes,
            location,
        )
        return unsent

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> None:
        with closing_notes(error):
            await self.close(0 if is_interruption(error) else None)

    @property
    def connected(self) -> bool:
        """Whether the client is logged on now."""
        return self._is_connected

    @property
    def connections(self) -> int:
        """Number of successful logons."""
        return self._connector.connections

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of unacknowledged batches in the publish store."""
        return self._publisher.store.nbytes

    def publish(self, topic: str, body: Body) -> Awaitable[None]:
        """Publish one message. Await the returned object.

        The message is accepted at the call. The returned awaitable only waits while too many bytes are
        unacknowledged; limit that wait with `asyncio.timeout()`, which does not take the message back.
        `flush()` confirms that the broker has it.

        Messages of one event-loop iteration form one batch, which reaches the publish store at the end of the
        iteration. A process that is killed before then loses them. If the store fails then, `flush()` raises
        the error.

        Args:
            topic: Exact topic.
            body: bytes are sent unchanged, str as UTF-8, anything else as JSON.

        Raises:
            ClientError: `bad_topic`, or `frame_too_large` for a body over the limit.
            SluiceError: Reason why the client failed or is closed.
        """
        return self._publisher.publish(topic, body)

    async def publish_many(self, topic: str, bodies: Sequence[Body]) -> None:
        """Publish messages of one topic as one batch; see `publish`."""
        await self._publisher.publish_many(topic, bodies)

    def publish_numbered_batch(self, first: int, last: int, batch: bytearray) -> None:
        """Publish a batch whose records already have publisher sequences. Does not wait.

        The caller must watch the size of the publish store.

        Args:
            first: First sequence. It must be greater than all published before.
            last: Last sequence. Sequences between the two may be missing.
            batch: Record batch with this client's name.
        """
        self._publisher.publish_numbered_batch(first, last, batch)

    async def wait_closed(self) -> SluiceError:
        """Wait until the client is closed or has failed permanently. Returns the reason."""
        if self._task is not None:
            await asyncio.wait([self._task])
        return self._publisher.failure or OperatorError(
            "client_closed", f"Client {self.name} is closed.", "Make a new client."
        )

    async def store_messages(self, topic: str, bodies: Sequence[Body], timeout: float | None = None) -> None:
        """Put messages of one topic into the publish store and send them. They are stored when this returns.

        Raises:
            TimeoutError: The store was full for `timeout` seconds; no message was accepted.
            OperatorError: `store_failed`, when the store's disk rejected them.
        """
        await self._publisher.store_messages(topic, bodies, timeout)

    def store_in_file(self, topic: str, body: bytes) -> bool:
        """Put a message into a store that outlives the process, even if the store is full.

        Returns whether the message is stored; False for a store in memory, a failed client or a failed disk.
        """
        if not self._publisher.store.durable or self._publisher.failure is not None:
            return False
        with suppress(OperatorError):
            self._publisher.store_batches(topic, [[body]])
            return True
        return False

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all published messages are acknowledged.

        For a journaled topic, acknowledged means that the message is on the broker's disk.

        Args:
            timeout: Maximum seconds. None: as long as the client tries to connect.

        Raises:
            SluiceError: First rejection since the last `flush()`, or the reason why the client failed.
            TimeoutError: The timeout expired. The messages stay in the publish store.
        """
        await self._publisher.flush(timeout)

    async def subscribe(
        self,
        topic: str,
        filter: str | None = None,
        bookmark: str | None = None,
        id: str | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Subscription:
        """Subscribe to a topic pattern. Returns when the broker has accepted the subscription.

        Args:
            topic: Topic, or a pattern such as `orders.*` or `orders.>`.
            filter: Expression that a message must satisfy, such as `/amount > 100`. None: all messages.
            bookmark: Start of the subscription. None: live messages only. "0": replay from the oldest record.
                "0|1|": begin now. A message's bookmark, or a time such as 20261121T134500Z: replay from
                there. "[a:b)": replay from a to b, then end. "MOST_RECENT": resume at the position in the
                bookmark store, or at the oldest record if the store has none.
            id: Name of the subscription in the bookmark store. Default: derived from topic and filter.
            on_gap: With a bookmark, when records after it were removed: "error" refuses the subscription
                (`bookmark_gone`). Default "replay": report a gap and start with the oldest record.
            timestamp: Whether messages carry the time at which the broker accepted them.
            durability: With a bookmark, when a record is delivered after the replay: "persisted" (default)
                when it is on disk, "live" before, "fully_durable" when every sync member and sync destination
                has it.
            ack: "auto", "client" or "client-individual". At most `prefetch` messages are then delivered
                without being acknowledged; see `Subscription.ack`. Default: "auto" with `durable`, else none.
            prefetch: Maximum number of unacknowledged messages. Default: the policy's value, or 1,000.
            durable: Name of a subscription that the broker retains while this client is disconnected.
            shared: Whether other clients consume the same durable subscription. Each message goes to one of
                them.
            max_deliveries: With `shared`: failed deliveries after which a record becomes a dead letter. 0:
                never. Default 10.
            lease_ms: The broker ends the subscription unless it is renewed within this time. The client
                renews it, and subscribes again if the broker cancels it.
            snapshot_key: Start with the last record of each key, such as "/id".
            resume_how: How to continue after a policy has dropped this client: "log" (default) sends the
                missed interval, "conflated" the last record per key, "now" nothing. `Subscription.resumed`
                has the number of missed messages.
            rate: With a bookmark: messages per second ("1000"), bytes per second ("500KB"), or a multiple of
                the recorded pace ("2X").
            rate_max_gap: With a multiple: longest pause between two records, such as "10s".
            paused: With a bookmark: whether the subscription starts paused.
            conflation: With a bookmark: interval, such as "1s", in which only the last message per key is
                delivered.
            conflation_key: Key of the conflation, such as "/id".
            managed: Name of a managed replay, which the broker retains while this client is disconnected, and
                which operators see and control. Subscribing again with the name continues it.

        Raises:
            ClientError: The broker's reason for rejecting the subscription.
            OperatorError: `bad_subscription` if the id is in use, `no_bookmark_store`, or `client_closed`.
            TimeoutError: No answer within `request_timeout` seconds.
        """
        if self._publisher.failure is not None:
            raise self._publisher.failure
        id = check_subscription_id(id) if id is not None else default_id(topic, filter)
        if id in self._subscriptions.by_id:
            raise OperatorError(
                "bad_subscription", f"There is a subscription {id!r} already.", "Give it another id."
            )
        requested, bookmark = bookmark, resolve_bookmark(bookmark, self._bookmark_store, id)
        received = None
        if options.get("managed") is not None and requested == MOST_RECENT and bookmark != EPOCH_TEXT:
            received, bookmark = bookmark, EPOCH_TEXT
        command = commands.Subscribe(
            id=id, topic=topic, filter=filter, bookmark=bookmark, received=received, **options
        )
        ack_mode = command.ack or ("auto" if command.durable is not None else None)
        subscription = Subscription(
            command,
            self._bookmark_store,
            CreditWindow(id, self._max_unread_bytes, self._send),
            self._subscriptions.end,
            self,
            Acknowledger(id, ack_mode, self._send) if ack_mode is not None else None,
        )
        async with limit_time(self._request_timeout, "subscribe"):
            await self._subscriptions.begin(subscription)
        return subscription

    def _send(self, command: commands.Command) -> bool:
        """Send a command that is meaningless on a later connection.

        Returns whether there was a connection.
        """
        link = self._connector.link if self._is_connected else None
        if link is not None:
            link.send_command(command)
        return link is not None

    # Connection callbacks.

    def _check_logon(self, ack: replies.Ack) -> None:
        """Raise ClientError `behind` if messages must be published to a member that is cut off."""
        if ack.sequence is None and (self._needs_sequence or self._publisher.store.nbytes):
            raise self._add_behind_error(ack.instance)

    def _add_behind_error(self, instance: str | None) -> ClientError:
        """Return the error for leaving a member that is cut off from its group. Also adds it to `errors`."""
        self.errors.append(
            ClientError(
                "behind",
                f"This broker of {instance} is cut off from its group.",
                "Nothing: the client tries the next address.",
            )
        )
        return self.errors[-1]

    async def _on_connected(self, link: ClientLink, ack: replies.Ack) -> None:
        """Handle a logon: compare sequences, subscribe again, and send unacknowledged messages."""
        if ack.sequence is None:
            self._on_connected_read_only(link, ack)
            return
        known = ack.sequence
        if self.instance not in ("", ack.instance):
            self._publisher.check_instance(known)
            self._publisher.acknowledged = known  # another log counts this client's messages separately
        self.instance = ack.instance or ""
        self._is_connected = True
        self._subscriptions.on_connected(self.instance, link)
        if known < self._publisher.acknowledged:
            self._on_missing(known)
        if ack.forgotten and (repeats := self._publisher.possible_repeats):
            self._on_forgotten(repeats)
        if not self._first_logon.done():
            self._first_logon.set_result(None)
        await self._publisher.on_connected(link, known, ack.session, ack.stored or 0)

    def _on_connected_read_only(self, link: ClientLink, ack: replies.Ack) -> None:
        """Stay connected to a member that is cut off from its group, for reading only.

        The first published message moves the client to the next address.
        """

        def change_broker() -> None:
            link.abort(self._add_behind_error(ack.instance))

        self._publisher.on_connected_read_only(change_broker)
        self.instance = ack.instance or ""
        self._is_connected = True
        self._subscriptions.on_connected(self.instance, link)
        if not self._first_logon.done():
            self._first_logon.set_result(None)

    def _on_missing(self, known: int) -> None:
        """Report that the broker lacks messages that it had acknowledged."""
        acknowledged, self._publisher.acknowledged = self._publisher.acknowledged, known
        self._report_notice(
            replies.DecisionNotice(
                code="acknowledged_missing",
                message=f"{self.instance} has this client's messages up to {known}, and had acknowledged "
                f"{acknowledged}: its log was restored from an older backup. Publish the missing "
                "messages again, if no other system has them.",
                details={"known": known, "acknowledged": acknowledged},
            )
        )

    def _on_forgotten(self, repeats: int) -> None:
        """Report that the broker forgot this client's session. Some messages may be stored twice."""
        self._report_notice(
            replies.DecisionNotice(
                code="session_forgotten",
                message=f"{self.instance} remembers newer publisher sessions of this name alone, so it can't"
                f" say which of {repeats} unacknowledged messages it has: some may be stored twice.",
                details={"messages": repeats},
            )
        )

    def _report_notice(self, notice: replies.DecisionNotice) -> None:
        """Report a notice to the log and to the application."""
        self.notices.append(notice)
        log.warning("%s: notice %s: %s", self.name, notice.code, notice.message)
        if self._on_notice is not None:
            self._on_notice(notice)

    def _on_disconnected(self) -> None:
        self._is_connected = False
        self._end_requests(None)
        self._publisher.on_disconnected()

    def _report_loss(self, loss: ConnectionLoss) -> None:
        self.last_loss = loss
        if self._on_disconnect is not None:
            try:
                self._on_disconnect(loss)
            except Exception:
                # An exception in the application's callback must not end the task that reconnects.
                log.exception("on_disconnect of client %s failed", self.name)

    def _on_frames(self, link: ClientLink, frames: list[NativeFrame]) -> None:
        for frame in frames:
            if link.error is not None:
                return  # an earlier frame closed the link; the broker delivers the others again, in order
            if frame.kind == COMMAND:
                self._on_reply(frame)
            else:
                self._subscriptions.deliver(frame)
                self._connector.on_progress()

    def _on_reply(self, frame: NativeFrame) -> None:
        reply = replies.parse_reply(frame.payload)
        match reply:
            case replies.Ack() as ack:
                self._on_ack(ack)
            case replies.ErrorReply() as error:
                self._on_error(error)
            case replies.BrokerHeartbeat():
                self._connector.on_heartbeat()
            case replies.GapNotice() as gap:
                if found := self._subscriptions.by_id.get(gap.id):
                    found.gaps.append(gap)
            case replies.DecisionNotice() as notice:
                if notice.decision is not None:
                    self._send(commands.NoticeReceived(decision=notice.decision))
                self._subscriptions.resume_token = notice.resume_token or self._subscriptions.resume_token
                if notice.code == "bookmark_unknown":
                    self._subscriptions.on_unknown(notice.details["id"], notice.details["unknown"])
                self._connector.on_closing(notice)
                self._report_notice(notice)
            case replies.SubscriptionCancelled() as cancelled:
                self._subscriptions.on_cancelled(cancelled)
            case replies.ResumedNotice() as resumed:
                if found := self._subscriptions.by_id.get(resumed.id):
                    found.resumed = resumed
            case replies.CloseRequested() as requested:
                self._connector.on_close_requested(requested)
            case replies.ClosingNotice() as closing:
                self._connector.on_closing(closing)
            case replies.TextMessage() | None:
                pass  # records arrive as batches in this mode; a newer broker may send unknown replies
            case _:
                assert_never(reply)

    def _on_ack(self, ack: replies.Ack) -> None:
        if ack.of is None or ack.of == "flush":
            self._publisher.on_ack(ack)
            self._connector.on_progress()
        elif ack.of == "subscribe":
            self._subscriptions.on_ack(ack)
        elif ack.of in OPTION_COMMAND_TAGS:
            self._on_request_ack(ack)
        # Replies to unsubscribe and renew are ignored.

    def _on_error(self, error: replies.ErrorReply) -> None:
        problem = ClientError.from_dict(error.code, error.message, error.fix, error.details)
        if error.code != "refused_before":  # these messages are sent again
            self.errors.append(problem)
        if error.of == "subscribe" and error.id is not None:
            self._subscriptions.on_rejected(error.id, problem)
        elif error.of in OPTION_COMMAND_TAGS:
            self._on_request_error(str(error.of), problem)
        elif error.of == "renew" and error.id is not None:
            self._subscriptions.on_cancelled(
                replies.SubscriptionCancelled(id=error.id, code=error.code, message=error.message)
            )
        elif error.of == "publish" or error.first is not None:
            self._publisher.on_error(error)
        elif error.of is None and self._connector.link is not None:
            # The error concerns no command of this client: the bytes were damaged in transit. Reconnect to
            # send them again.
            self._connector.link.abort(problem)
