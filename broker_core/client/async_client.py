"""The asyncio client: publish, subscribe, and stay connected.

    async with AsyncClient("tcp://127.0.0.1:9007", "prices") as client:
        await client.publish("fx.eurusd", {"bid": 1.0842})
        await client.flush()                                   # everything is on disk, or it raises

    async with AsyncClient("tcp://127.0.0.1:9007", "screen", bookmark_store=FileBookmarkStore("marks")) as client:
        subscription = await client.subscribe("fx.>", filter="/bid > 1", bookmark="MOST_RECENT")
        async for message in subscription:
            print(message.topic, message.data)
            subscription.done(message)                         # a restart goes on after it

After a lost connection it comes back with back-off, logs on, publishes again what wasn't acknowledged (the broker
drops what it has already), and resumes subscriptions that have a bookmark after the last record received. A subscription
without a bookmark is live only: it doesn't get what is published during an outage.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Self, TypedDict, Unpack, assert_never

from broker_core.bookmark import EPOCH_TEXT
from broker_core.client.acknowledgements import Acknowledger, CreditWindow
from broker_core.client.bookmark_store import MOST_RECENT, BookmarkStore, starting_point
from broker_core.client.connector import ConnectionLoss, Connector, ReconnectPolicy, log
from broker_core.client.flow_commands import STEERING_WORDS, SubscriptionControl
from broker_core.client.links import ClientLink, Tls, parse_addresses, to_ssl_context
from broker_core.client.messages import BATCH_BYTES, Body
from broker_core.client.publish_store import MemoryPublishStore, PublishStore
from broker_core.client.publisher import Publisher, Rejection
from broker_core.client.subscription import Subscription, default_id
from broker_core.client.subscriptions import ActiveSubscriptions
from broker_core.client.time_limits import CLOSE_TIMEOUT_S, REQUEST_TIMEOUT_S, within
from broker_core.client.unsent import NOTHING_UNSENT, Unsent, closing_notes, is_interruption
from broker_core.errors import ClientError, OperatorError, SluiceError
from broker_core.protocols import commands, replies
from broker_core.protocols.names import check_client_name, check_subscription_id
from broker_core.protocols.native import COMMAND, NativeFrame

MAX_HELD = 4 * 1024 * 1024
"""Bytes of a subscription that are received but not yet taken by the application; the broker holds back the rest."""
HEARTBEAT_MS = 10_000


class SubscribeOptions(TypedDict, total=False):
    """How a subscription is delivered; see AsyncClient.subscribe."""

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
    """One client of a broker, by its unique name. Use it in one event loop, as `async with`."""

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
        max_held: int = MAX_HELD,
        request_timeout: float | None = REQUEST_TIMEOUT_S,
        close_timeout: float = CLOSE_TIMEOUT_S,
        verify: bool = True,
        on_notice: Callable[[replies.DecisionNotice], None] | None = None,
        on_rejection: Callable[[Rejection], None] | None = None,
        needs_sequence: bool = False,
        publisher_session: int = 0,
        on_disconnect: Callable[[ConnectionLoss], None] | None = None,
    ) -> None:
        """`address` may be several transports of an instance: when one is lost, the next is tried.

        `max_held` bounds the bytes held for each subscription, and one delivery more: what an application doesn't take waits at
        the broker, while everything else of this client goes on.

        `needs_sequence` leaves a broker at once that can't say which messages of this client it has, as a member
        that is cut off from its group; by default the client goes to the next address with its first message.

        `on_disconnect` is called with each lost connection and each failed attempt: why, and when the next
        one is. The logger `sluice.client` gets the same.

        `request_timeout`: seconds that `subscribe`, `pause`, `resume` and `set_rate` wait for the broker's
        answer, also while there is no connection; then they raise TimeoutError. None: as long as the client
        tries to connect. `close_timeout` bounds `close()` and leaving `async with`.

        `verify=False` trusts the network with received batches. `tls`, for `tcps://` and `wss://`, is a file of
        authorities (PEM) or a context, as `tls_context()` makes one with a client certificate.

        `on_rejection` is called with each refusal, before the refused messages leave the publish store. What
        was published behind them is sent again by itself.

        `publisher_session` is for a publisher whose numbers mean the same whoever sends them, such as a
        link; others get one of their own. Such a client stops publishing at the first refusal, and keeps what
        was refused: a new client with the same session tries it again.
        """
        super().__init__(request_timeout)
        self.close_timeout = close_timeout
        self.name = check_client_name(name)
        self.instance = ""
        self.notices: deque[replies.DecisionNotice] = deque(maxlen=100)
        self.errors: deque[ClientError] = deque(maxlen=100)
        self.last_loss: ConnectionLoss | None = None
        """Newest lost connection or failed attempt to connect, with its reason."""
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
            lambda: self._publisher.session,  # it changes when messages are numbered anew
            reconnect or ReconnectPolicy(),
            self._on_frames,
            self._check_logon,
            self._connected,
            self._disconnected,
            self._note_loss,
        )
        self._subscriptions = ActiveSubscriptions(self._send, verify=verify)
        self._max_held = max_held
        self._up = False
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[Unsent] | None = None

    async def start(self) -> Self:
        """Connect and log on. Raises the reason for failing, after the policy's first_connect_timeout."""
        if self._task is not None:
            raise OperatorError(
                "client_started", f"Client {self.name} was started before.", "Make a new client."
            )
        self._publisher.open_store()
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"client {self.name}")
        await asyncio.wait([self._task, self._first], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done() and self._publisher.failure is not None:
            raise self._publisher.failure
        return self

    async def _run(self) -> None:
        self._fail(await self._connector.run())

    def _fail(self, error: SluiceError) -> None:
        self._publisher.fail(error)
        self._steering_ended(error)
        self._subscriptions.fail(error)

    async def close(self, timeout: float | None = None) -> None:
        """Send what was published, wait until it is acknowledged, and disconnect: within `timeout` seconds.

        Without a `timeout` the client's `close_timeout` counts. A store in a file isn't waited for: it keeps
        what isn't acknowledged, and the next client with it sends that.

        Raises:
            OperatorError: unsent_messages, with the number of `messages` and `bytes` that nobody has
            acknowledged and
                that are in this process alone.
            SluiceError: A refusal or failure of the store of which nobody was told yet.
        """
        unsent = await self.disconnect(self.close_timeout if timeout is None else timeout)
        unsent.raise_for(self.name)
        if self._publisher.on_rejection is None:
            self._publisher.raise_rejection()

    async def disconnect(self, timeout: float) -> Unsent:
        """Close within `timeout` seconds. Return what is left in a store that ends with the process.

        Calls at the same time are one closing, and each returns what that leaves. A later call returns
        nothing.
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
        ended = self._closing.done() and not self._closing.cancelled()
        return self._closing.result() if ended else self.unsent

    @property
    def unsent(self) -> Unsent:
        """Unacknowledged messages that would end with this process."""
        store = self._publisher.store
        return NOTHING_UNSENT if store.durable else Unsent(store.messages, store.nbytes)

    async def _disconnect(self, running: asyncio.Task[None], timeout: float) -> Unsent:
        ends = asyncio.get_running_loop().time() + timeout
        store = self._publisher.store
        if self._publisher.failure is None:
            if not store.durable:
                with suppress(TimeoutError, SluiceError):
                    async with asyncio.timeout_at(ends):
                        await self._publisher.wait_for_acknowledgements()
            with suppress(OperatorError):  # the store's disk: what it refused was never taken
                self._publisher.flush_batch()
            for subscription in list(self._subscriptions.by_id.values()):
                await subscription.close()
            await self._connector.close(ends)
        running.cancel()
        await asyncio.wait([running])
        if self._publisher.failure is None:
            self._publisher.build_pending_batch()  # what was published while this closed is in the store, as it was taken
        self._fail(OperatorError("client_closed", f"Client {self.name} is closed.", "Make a new client."))
        unsent, messages, nbytes = self.unsent, store.messages, store.nbytes
        store.close()
        if self._bookmark_store is not None:
            self._bookmark_store.close()
        if not messages:
            return NOTHING_UNSENT
        kept = "kept by its publish store" if store.durable else "lost with this process"
        log.warning(
            "%s: closed with %d unacknowledged messages (%d bytes), %s.",
            self.name,
            messages,
            nbytes,
            kept,
        )
        return unsent

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> None:
        with closing_notes(error):
            await self.close(0 if is_interruption(error) else None)

    @property
    def connected(self) -> bool:
        """Whether it is logged on now."""
        return self._up

    @property
    def connections(self) -> int:
        """How many times it has logged on."""
        return self._connector.connections

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes in the publish store."""
        return self._publisher.store.nbytes

    def publish(self, topic: str, body: Body) -> Awaitable[None]:
        """Publish one message: bytes as they are, text as UTF-8, anything else as JSON. Await what it returns.

        Messages of one turn of the loop travel as one batch, which the publish store has at the end of the
        turn; a process that is killed before loses them, and a store that fails then says so by `flush()`.
        The message is taken at once: what is awaited is room for more, while too much is unacknowledged.
        Bound that wait with `asyncio.timeout()`; it takes no message back. `flush()` says that the broker has
        them.
        """
        return self._publisher.publish(topic, body)

    async def publish_many(self, topic: str, bodies: Sequence[Body]) -> None:
        """Publish messages of one topic as one batch."""
        await self._publisher.publish_many(topic, bodies)

    def publish_numbered_batch(self, first: int, last: int, batch: bytearray) -> None:
        """Publish a batch that has this client's name and its records' own numbers, `first` to `last`, greater than all before. It doesn't
        wait; the caller watches the publish store."""
        self._publisher.publish_numbered_batch(first, last, batch)

    async def wait_closed(self) -> SluiceError:
        """Wait until the client has failed for good or is closed; the reason."""
        if self._task is not None:
            await asyncio.wait([self._task])
        return self._publisher.failure or OperatorError(
            "client_closed", f"Client {self.name} is closed.", "Make a new client."
        )

    async def store_messages(self, topic: str, bodies: Sequence[Body], timeout: float | None = None) -> None:
        """Put messages of one topic into the publish store, and send them: they are there when this returns.

        Raises:
            TimeoutError: The store was full for `timeout` seconds; none of the messages is taken.
            OperatorError: store_failed, when the store's disk refused them.
        """
        await self._publisher.store_messages(topic, bodies, timeout)

    def keep_in_file(self, topic: str, body: bytes) -> bool:
        """Put a message into a store that outlives the process, however full it is. Return whether it is
        there."""
        if not self._publisher.store.durable or self._publisher.failure is not None:
            return False
        with suppress(OperatorError):
            self._publisher.keep(topic, [[body]])
            return True
        return False

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything published is acknowledged. Raises the first error of the broker since the
        last `flush()`, or TimeoutError after `timeout` seconds; without one it waits as long as the client
        tries to connect."""
        await self._publisher.flush(timeout)

    async def subscribe(
        self,
        topic: str,
        filter: str | None = None,
        bookmark: str | None = None,
        id: str | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Subscription:
        """Subscribe to a topic pattern. Raises the broker's error if it refuses, TimeoutError after
        `request_timeout`.

        `bookmark`: None is live only; "0" replays from the start, "0|1|" begins now, a message's bookmark or a time
        (20261121T134500Z) replays from there, "[a:b)" from a to b and then ends, and "MOST_RECENT" resumes where the
        bookmark store says (at the start if it doesn't know). `id` names the subscription in the store; by default it is
        derived from topic and filter.

        With a bookmark: `on_gap="error"` refuses (bookmark_gone) when records after the bookmark were removed, instead
        of reporting a gap and starting with the oldest record; `durability` is "persisted", "live" (before it is on disk, after the replay)
        or "fully_durable". `timestamp`: messages have the time when they were accepted.

        `ack` ("auto", "client", "client-individual"): at most `prefetch` messages (default 1,000) are delivered
        without being acknowledged. `durable` names a subscription that the broker keeps while this client is away;
        with `shared` other clients consume the same one, and each message goes to one of them.
        `lease_ms`: the broker ends the subscription unless it is renewed, which the client does; it subscribes again if one
        was cancelled. `snapshot_key` ("/id"): start with the last record of each key. `resume_how` ("log", "conflated",
        "now"): how to continue after a policy has dropped this client; `subscription.resumed` says what it missed.

        With a bookmark: `rate` is messages a second ("1000"), bytes a second ("500KB") or a multiple of the recorded
        pace ("2X", whose pauses `rate_max_gap` shortens, "10s"); `paused` starts it paused. `managed` names a replay
        that the broker keeps while this client is away, and that operators see and control; subscribing again with the
        name continues it. `conflation` ("1s") delivers only the last message of each `conflation_key` ("/id") per interval.
        """
        if self._publisher.failure is not None:
            raise self._publisher.failure
        id = check_subscription_id(id) if id is not None else default_id(topic, filter)
        if id in self._subscriptions.by_id:
            raise OperatorError(
                "bad_subscription", f"There is a subscription {id!r} already.", "Give it another id."
            )
        asked_for, bookmark = bookmark, starting_point(bookmark, self._bookmark_store, id)
        received = None
        if options.get("managed") is not None and asked_for == MOST_RECENT and bookmark != EPOCH_TEXT:
            received, bookmark = bookmark, EPOCH_TEXT
        command = commands.Subscribe(
            id=id, topic=topic, filter=filter, bookmark=bookmark, received=received, **options
        )
        acks = command.ack or ("auto" if command.durable is not None else None)
        subscription = Subscription(
            command,
            self._bookmark_store,
            CreditWindow(id, self._max_held, self._send),
            self._subscriptions.end,
            self,
            Acknowledger(id, acks, self._send) if acks is not None else None,
        )
        async with within(self._request_timeout, "subscribe"):
            await self._subscriptions.begin(subscription)
        return subscription

    def _send(self, command: commands.Command) -> bool:
        """Send a command that means nothing to a later connection; whether there is one to send it on."""
        link = self._connector.link if self._up else None
        if link is not None:
            link.send_command(command)
        return link is not None

    # The connection.

    def _check_logon(self, ack: replies.Ack) -> None:
        """Leave a member that is cut off from its group if there is something to publish. ClientError
        behind."""
        if ack.sequence is None and (self._needs_sequence or self._publisher.store.nbytes):
            raise self._make_behind(ack.instance)

    def _make_behind(self, instance: str | None) -> ClientError:
        """Return why this client leaves a member that is cut off, and note it among the errors."""
        self.errors.append(
            ClientError(
                "behind",
                f"This broker of {instance} is cut off from its group.",
                "Nothing: the client tries the next address.",
            )
        )
        return self.errors[-1]

    async def _connected(self, link: ClientLink, ack: replies.Ack) -> None:
        if ack.sequence is None:
            self._connected_unsure(link, ack)
            return
        known = ack.sequence
        if self.instance not in ("", ack.instance):
            self._publisher.check_instance(known)
            self._publisher.acknowledged = known  # another log, and another count
        self.instance = ack.instance or ""
        self._up = True
        self._subscriptions.on_connected(self.instance, link)
        if known < self._publisher.acknowledged:
            self._on_missing(known)
        if ack.forgotten and (repeats := self._publisher.repeats):
            self._on_forgotten(repeats)
        if not self._first.done():
            self._first.set_result(None)
        await self._publisher.on_connected(link, known, ack.session, ack.stored or 0)

    def _connected_unsure(self, link: ClientLink, ack: replies.Ack) -> None:
        """Read from a member that is cut off from its group; go to the next address with what is published."""

        def go_elsewhere() -> None:
            link.abort(self._make_behind(ack.instance))

        self._publisher.connected_unsure(go_elsewhere)
        self.instance = ack.instance or ""
        self._up = True
        self._subscriptions.on_connected(self.instance, link)
        if not self._first.done():
            self._first.set_result(None)

    def _on_missing(self, known: int) -> None:
        acknowledged, self._publisher.acknowledged = self._publisher.acknowledged, known
        self._tell(
            replies.DecisionNotice(
                code="acknowledged_missing",
                message=f"{self.instance} has this client's messages up to {known}, and had acknowledged {acknowledged}: its log was restored"
                " from an older backup. Publish again what it lacks, if nobody else has it.",
                details={"known": known, "acknowledged": acknowledged},
            )
        )

    def _on_forgotten(self, repeats: int) -> None:
        self._tell(
            replies.DecisionNotice(
                code="session_forgotten",
                message=f"{self.instance} remembers newer publisher sessions of this name alone, so it can't"
                f" say which of {repeats} unacknowledged messages it has: some may be stored twice.",
                details={"messages": repeats},
            )
        )

    def _tell(self, notice: replies.DecisionNotice) -> None:
        self.notices.append(notice)
        log.warning("%s: notice %s: %s", self.name, notice.code, notice.message)
        if self._on_notice is not None:
            self._on_notice(notice)

    def _disconnected(self) -> None:
        self._up = False
        self._steering_ended(None)
        self._publisher.on_disconnected()

    def _note_loss(self, loss: ConnectionLoss) -> None:
        self.last_loss = loss
        if self._on_disconnect is not None:
            try:
                self._on_disconnect(loss)
            except Exception:
                # An application's mistake must not end the task that reconnects.
                log.exception("on_disconnect of client %s failed", self.name)

    def _on_frames(self, link: ClientLink, frames: list[NativeFrame]) -> None:
        for frame in frames:
            if link.error is not None:
                return  # one of these had it closed: what came with that comes again, in order
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
                self._tell(notice)
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
                pass  # records come as batches where commands come as frames; a newer broker may say more
            case _:
                assert_never(reply)

    def _on_ack(self, ack: replies.Ack) -> None:
        if ack.of is None or ack.of == "flush":
            self._publisher.on_ack(ack)
            self._connector.on_progress()
        elif ack.of == "subscribe":
            self._subscriptions.on_ack(ack)
        elif ack.of in STEERING_WORDS:
            self._steered(ack)
        # Of unsubscribe and renew nothing is awaited.

    def _on_error(self, error: replies.ErrorReply) -> None:
        problem = ClientError.from_dict(error.code, error.message, error.fix, error.details)
        if error.code != "refused_before":  # of messages that are sent again
            self.errors.append(problem)
        if error.of == "subscribe" and error.id is not None:
            self._subscriptions.on_refused(error.id, problem)
        elif error.of in STEERING_WORDS:
            self._not_steered(str(error.of), problem)
        elif error.of == "renew" and error.id is not None:
            self._subscriptions.on_cancelled(
                replies.SubscriptionCancelled(id=error.id, code=error.code, message=error.message)
            )
        elif error.of == "publish" or error.first is not None:
            self._publisher.on_error(error)
        elif error.of is None and self._connector.link is not None:
            # Of nothing that was sent: what the broker can't read was damaged on its way, and must be said again.
            self._connector.link.abort(problem)
