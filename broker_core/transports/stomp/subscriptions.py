"""Subscriptions of a STOMP client: SUBSCRIBE, MESSAGE, ACK, NACK, gaps and UNSUBSCRIBE.

The client names a subscription by its id, and the engine by its stream. A message has a number within its
subscription.

A client that a policy closed, and that subscribes again as before, continues at its resume point (the
transport's setting `resume`). A start given in the SUBSCRIBE itself has precedence. Durable subscriptions
have stored positions and need no resume point.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from broker_core.bookmark import EPOCH_TEXT, Bookmark, bookmark_sequence
from broker_core.config.transports import ResumeFrom
from broker_core.connections.admission import peer_address
from broker_core.connections.inbox import InputPauseReason, Item
from broker_core.connections.subscription_setup import make_behind_error, reject_message
from broker_core.delivery.entries import OutboxEntry
from broker_core.errors import ClientError, OperatorError
from broker_core.protocols import commands, replies
from broker_core.protocols.names import check_subscription_id
from broker_core.protocols.stomp.destinations import (
    StompDestination,
    parse_subscribe_destination,
    temporary_topic,
)
from broker_core.protocols.stomp.frames import StompFrame, StompVersion, encode_frame, header_line
from broker_core.protocols.stomp.headers import (
    SubscribeRequest,
    durable_subscription,
    is_multicast,
    parse_boolean,
    parse_subscribe,
    required_header,
)
from broker_core.protocols.stomp.message_frames import (
    MessageFrames,
    MessageTailCache,
    build_ack_frames,
    build_frames,
    mark_redelivered,
    parse_ack_id,
)
from broker_core.replay.client_subscription import SharedSubscriptionPort
from broker_core.subscriptions.topics import TopicPattern
from broker_core.transports.stomp.replies import StompReplyWriter

if TYPE_CHECKING:
    from broker_core.connections.connection import Connection
    from broker_core.engine.engine import Engine


class ResumeResult(NamedTuple):
    """Resume information of a client that is back.

    `had_upto`: last record that the client may already have, 0: none. `missed_from`: first record that it
    missed before its subscription begins, 0: none.
    """

    had_upto: int = 0
    missed_from: int = 0

    def missed(self, instance: str, newest: int) -> str:
        """Return the bookmark range of missed records; "" when there are none.

        `newest`: end of the log at the start.
        """
        if not 0 < self.missed_from <= newest:
            return ""
        return f"[{Bookmark(instance, self.missed_from)}:{Bookmark(instance, newest)}]"


def resume_key(connection: Connection, named: bool) -> str:
    """Return the key of a client's resume points: its name if it is `named`, else its user and address."""
    return (
        f"client {connection.name}"
        if named
        else f"user {connection.user} at {peer_address(connection.remote)}"
    )


def resume_from_position(
    engine: Engine, connection: Connection, command: commands.Subscribe
) -> tuple[commands.Subscribe, ResumeResult | None]:
    """Return a subscribe that starts at the client's resume point, and facts for its first message."""
    positions = (command.bookmark, command.durable, command.managed, command.resume, command.snapshot_key)
    if any(one is not None for one in positions):
        return command, None
    frontier, now = engine.frontier.durable, engine.clock.monotonic_ms()
    point = engine.services.resume_points.claim(
        connection.resume_key, command.id, command.topic, command.filter, now
    )
    if point is None or point.position > frontier:
        return command, None
    if _resume(engine, connection) is ResumeFrom.NOW or not _is_fully_journaled(engine, command.topic):
        return command, ResumeResult(missed_from=point.position)
    after = point.position - 1
    bookmark = str(Bookmark(engine.instance, after)) if after else EPOCH_TEXT
    return structs.replace(command, bookmark=bookmark), ResumeResult(had_upto=point.last_received)


def _resume(engine: Engine, connection: Connection) -> ResumeFrom:
    """Return the setting `resume` of the policy in force. A listener stays open when only that changes."""
    transports = engine.policy.transports
    return next((one.resume for one in transports if one.name == connection.transport), ResumeFrom.NOW)


def _is_fully_journaled(engine: Engine, topic: str) -> bool:
    """Return whether all records of a topic are journaled.

    Else a subscription from the log would miss some.
    """
    return engine.dispatch.topics.covers_all(TopicPattern.parse(topic))


@dataclass(slots=True)
class _StompSubscription:
    """Subscription, as its MESSAGE frames name it."""

    id: str
    named: bytes
    """Id of the subscription as a header value."""
    acknowledges: bool
    durable_key: tuple[str, str] | None = None
    """Owner and name of a durable subscription."""
    had_upto: int = 0
    """Sequence up to which a client may have received the messages before."""
    sent: int = 0
    gap: str = ""
    """Missing bookmark range that the next message reports."""
    notice: str = ""
    """Code of a decision that the next message reports."""
    missed: str = ""
    """Bookmark range, missed while the client was away, that the next message reports."""


@dataclass(slots=True)
class _PendingSubscribe:
    """SUBSCRIBE in progress."""

    request: SubscribeRequest
    receipt: str
    resumed: ResumeResult | None = None


class StompSubscriptions:
    """Subscriptions of one STOMP client."""

    __slots__ = (
        "_ack_prefix",
        "_begins_one",
        "_engine",
        "_refusal",
        "_reply_writer",
        "_secret",
        "_streams",
        "_subscribing",
        "_tails",
        "_temporary",
        "_unsubscribing",
    )

    def __init__(
        self,
        engine: Engine,
        reply_writer: StompReplyWriter,
        tails: MessageTailCache,
        begins_one: Callable[[Item], bool],
    ) -> None:
        """Create an empty set of subscriptions.

        `begins_one` returns whether an item of the input is a SUBSCRIBE.
        """
        self._engine = engine
        self._reply_writer = reply_writer
        self._begins_one = begins_one
        self._refusal: Callable[[], None] | None = None
        """Function that ends the connection after a refused SUBSCRIBE.

        The pending ones are answered first.
        """
        self._tails = tails
        self._subscribing: dict[str, _PendingSubscribe] = {}
        self._unsubscribing: dict[str, str] = {}
        """Receipts of UNSUBSCRIBEs by subscription id.

        They are sent when the subscription has ended and is deleted, if requested.
        """
        self._streams: dict[int, _StompSubscription] = {}
        self._ack_prefix = secrets.token_hex(5)
        """First part of ack ids. No other connection has it, so a late ACK settles no other message."""
        self._secret = secrets.token_hex(8)
        """Random part of the names of its temporary destinations."""
        self._temporary: set[str] = set()
        """Temporary destinations that it receives without a SUBSCRIBE."""

    # Temporary destinations.

    def temporary_destination(self, destination: str) -> str:
        """Return the public name of this connection's temporary destination; "" when it isn't temporary.

        Raises:
            ClientError: over_quota, when it has too many.
        """
        public = temporary_topic(destination, self._secret)
        if public:
            connection = self._reply_writer.connection
            connection.services.quotas.add_temporary_topic(connection, public.removeprefix("/topic/"))
        return public

    def allow_reply_to(self, reply_to: str, destination: StompDestination) -> None:
        """Subscribe the client to its temporary destination, unless it is subscribed."""
        topic = destination.topic
        if reply_to in self._temporary or any(
            one.topic == topic for one in self._reply_writer.connection.subscriptions.values()
        ):
            return
        self._temporary.add(reply_to)
        command = commands.Subscribe(id=check_subscription_id(reply_to), topic=topic)
        self._subscribing[reply_to] = _PendingSubscribe(
            SubscribeRequest(command, destination, "auto", ""), ""
        )
        self._reply_writer.connection.execute_command(command)

    # Begin and end.

    def subscribe(self, headers: dict[str, str]) -> None:
        """Begin a subscription.

        Raises:
            ClientError: a header is wrong, or the request is refused.
        """
        reply_writer, connection = self._reply_writer, self._reply_writer.connection
        frontier, clock = self._engine.frontier.durable, self._engine.clock
        id = headers.get("id", "")
        if not id and reply_writer.version is StompVersion.V10:
            id = required_header(headers, "destination")[:128]
        destination = headers.get("destination", "")
        if known := self.temporary_destination(destination):
            headers = {**headers, "destination": known}
            if destination in self._temporary:
                self._temporary.discard(destination)
                self._end(destination)
        following = self._engine.dispatch.following
        if headers.get("x-stream-offset") == "last" and following is not None and not following.is_current:
            raise make_behind_error(self._engine.instance)
        emptied = self._engine.position_store.emptied
        request = parse_subscribe(headers, id, self._engine.instance, frontier, clock.now_ns(), emptied)
        if request.owner == "client" and connection.has_generated_name:
            raise ClientError(
                "bad_command",
                "A durable subscription with a name belongs to a client-id, and this client has none.",
                "Send client-id in CONNECT.",
                header="client-id",
            )
        if request.owner == "user" and connection.has_generated_name and request.command.durable is not None:
            connection.durable_owners[request.command.durable] = self._user_owner
        if id in connection.subscriptions or id in self._subscribing:
            raise ClientError(
                "bad_command",
                f"There is a subscription {id!r} already.",
                "Unsubscribe it first, or use another id.",
            )
        command, resumed = resume_from_position(self._engine, connection, request.command)
        self._subscribing[id] = _PendingSubscribe(request, reply_writer.receipt, resumed)
        # Later frames must come after it, except SUBSCRIBEs, which proceed together and share a write of the
        # disk.
        connection.inbox.pause(InputPauseReason.SUBSCRIBE, self._begins_one)
        connection.execute_command(command)

    @property
    def _user_owner(self) -> str:
        """Owner name of the user's durable subscriptions.

        An authenticated user has others than an unauthenticated one.
        """
        connection = self._reply_writer.connection
        identity = connection.identity
        proven = identity is not None and identity.proven
        return f"{'user' if proven else 'anybody'}:{connection.user}"

    def on_subscribed(self, reply: replies.Ack) -> bool:
        """Register a subscription that has begun, and send its receipt. Return whether it has one."""
        reply_writer, connection = self._reply_writer, self._reply_writer.connection
        request, receipt, resumed = self._take(reply)
        assert reply.stream is not None
        named = header_line("", request.command.id, reply_writer.version).encode()[1:]
        made = self._streams[reply.stream] = _StompSubscription(
            request.command.id, named, request.ack != "auto"
        )
        if (durable := request.command.durable) and not request.command.shared:
            made.durable_key = (connection.durable_owner(durable), durable)
            made.had_upto = self._engine.durables.sent_upto.get(made.durable_key, 0)
        if resumed is not None:
            engine = self._engine
            made.had_upto = resumed.had_upto
            made.missed = resumed.missed(engine.instance, engine.frontier.durable)
        if receipt:
            reply_writer.send_receipts([receipt])
        # Later, because it has not begun yet, and the next frame may be its UNSUBSCRIBE.
        asyncio.get_running_loop().call_soon(self._answered)
        return bool(receipt)

    def _answered(self) -> None:
        """Resume the input, or end the connection, when no SUBSCRIBE is pending any more."""
        if self._subscribing:
            return
        if self._refusal is None:
            self._reply_writer.connection.inbox.resume(InputPauseReason.SUBSCRIBE)
        else:
            self._refusal()

    def _take(self, reply: replies.Ack) -> tuple[SubscribeRequest, str, ResumeResult | None]:
        found = self._subscribing.pop(reply.id or "")
        return found.request, found.receipt, found.resumed

    def on_refused(self, id: str, end: Callable[[str], None]) -> None:
        """Refuse a SUBSCRIBE. `end` ends the connection with an ERROR and the receipt that was requested."""
        found = self._subscribing.pop(id, None)
        if self._refusal is None:
            receipt = found.receipt if found is not None else ""
            self._refusal = partial(end, receipt or self._reply_writer.receipt)
            self._reply_writer.connection.inbox.pause(InputPauseReason.SUBSCRIBE)
        self._answered()

    def unsubscribe(self, headers: dict[str, str]) -> None:
        """End a subscription.

        Raises:
            ClientError: unknown_subscription.
        """
        reply_writer = self._reply_writer
        id = headers.get("id") or (
            headers.get("destination", "") if reply_writer.version is StompVersion.V10 else ""
        )
        target = reply_writer.connection.subscriptions.get(id)
        destination = headers.get("destination", "")
        topic = parse_subscribe_destination(destination, is_multicast(headers)).topic if destination else ""
        durable, owner = durable_subscription(headers, topic)
        if target is None and owner == "user" and not destination:
            raise ClientError(
                "unknown_subscription",
                f"The subscription {id[:80]!r} doesn't exist.",
                "To delete a stored one, give its id and destination.",
            )
        if target is None and durable:
            self._delete(durable, owner)
            return
        self._unsubscribing[id] = reply_writer.receipt
        if target is not None and durable:
            reply_writer.connection.inbox.pause(InputPauseReason.DELETION)
        self._end(id, delete=bool(durable))

    def on_unsubscribed(self, id: str) -> bool:
        """Send the receipt of an UNSUBSCRIBE when the subscription has ended. Return whether it has one."""
        receipt = self._unsubscribing.pop(id, "")
        self._reply_writer.send_receipts([receipt], behind=True)
        self._reply_writer.connection.inbox.resume(InputPauseReason.DELETION)
        return bool(receipt)

    def _end(self, id: str, delete: bool = False) -> None:
        connection = self._reply_writer.connection
        target = connection.subscriptions.get(id)
        connection.execute_command(commands.Unsubscribe(id=id, delete=delete))
        if target is not None:
            self._streams.pop(target.stream, None)

    def _delete(self, durable: str, owner: str) -> None:
        """Delete a durable subscription that this connection isn't subscribed to."""
        connection = self._reply_writer.connection
        is_users = owner == "user" and connection.has_generated_name
        owner_name = self._user_owner if is_users else connection.name
        try:
            connection.services.durables.delete(owner_name, durable)
        except OperatorError as error:
            raise ClientError("unknown_subscription", error.sentence, error.fix) from None
        connection.inbox.pause(InputPauseReason.DELETION)
        connection.services.facilities.spawn(self._answer_deletion(self._reply_writer.on_processed))

    async def _answer_deletion(self, answer: replies.Ack) -> None:
        """Answer when the deletion is on disk, then execute the client's next frames."""
        connection = self._reply_writer.connection
        await connection.reply_when_durable(answer, None)
        connection.inbox.resume(InputPauseReason.DELETION)

    def on_ended(self, id: str) -> None:
        """Send the end frame of a subscription that has delivered all of its range."""
        for stream, known in list(self._streams.items()):
            if known.id == id:
                del self._streams[stream]
                headers = [
                    ("subscription", id),
                    ("message-id", f"{self._ack_prefix}-{stream}-end"),
                    ("browser", "end"),
                ]
                frame = encode_frame("MESSAGE", headers, version=self._reply_writer.version)
                self._reply_writer.send_frame(frame, behind=True)

    # Deliveries.

    def frames_of(self, entry: OutboxEntry) -> MessageFrames | None:
        """Return the frames of a delivery; None when its subscription has ended meanwhile."""
        to, version = self._streams.get(entry.stream), self._reply_writer.version
        if to is None:
            return None
        # Before STOMP 1.2 the message-id acknowledges. An unjournaled message has no other unique id.
        is_old = version is not StompVersion.V12
        numbered = to.acknowledges and is_old and not entry.batch.first_sequence
        tails = self._tails.tails_of_batch(entry.batch, version, numbered, entry.rows)
        if to.gap or to.missed or to.notice:
            head_fields = (
                ("x-sluice-gap", to.gap),
                ("x-sluice-missed", to.missed),
                ("x-sluice-notice", to.notice),
            )
            lines = "".join(f"{header_line(name, value, version)}\n" for name, value in head_fields if value)
            tails, to.gap, to.missed, to.notice = [lines.encode() + tails[0], *tails[1:]], "", "", ""
        if to.durable_key is not None and not self._is_durable(to.id):
            to.durable_key, to.had_upto = None, 0  # it was deleted and continues as an ordinary subscription
        if to.had_upto and 0 < entry.batch.first_sequence <= to.had_upto:
            tails = mark_redelivered(tails, (entry.batch.sequences() <= to.had_upto).tolist())
        if to.durable_key is not None and entry.batch.last_sequence:
            sent_upto = self._engine.durables.sent_upto
            sent_upto[to.durable_key] = max(sent_upto.get(to.durable_key, 0), entry.batch.last_sequence)
        sharer = self._sharer(to.id)
        if sharer is not None and (had := sharer.redelivered_flags(entry.batch)) is not None:
            tails = mark_redelivered(tails, had.tolist())
        if not to.acknowledges:
            return build_frames(to.named, tails)
        first = to.sent + 1
        to.sent += len(tails)
        if is_old and not numbered:
            return build_frames(to.named, tails)
        header = b"message-id" if numbered else b"ack"
        return build_ack_frames(to.named, self._ack_prefix, entry.stream, first, tails, header)

    def _sharer(self, id: str) -> SharedSubscriptionPort | None:
        target = self._reply_writer.connection.subscriptions.get(id)
        return target.shared if target is not None else None

    def _is_durable(self, id: str) -> bool:
        target = self._reply_writer.connection.subscriptions.get(id)
        return target is not None and target.durable != ""

    def note_gap(self, reply: replies.GapNotice) -> None:
        """Let the next message report records that the log no longer has."""
        for known in self._streams.values():
            if known.id == reply.id:
                known.gap = f"{known.gap.partition(',')[0] or reply.first},{reply.last}"

    def note_notice(self, reply: replies.DecisionNotice) -> None:
        """Let the subscription's next message report a notice by its code."""
        for known in self._streams.values():
            if known.id == reply.details["id"]:
                known.notice = reply.code

    # Acknowledgements.

    def acknowledge(self, frame: StompFrame) -> None:
        """Execute an ACK or NACK. One that comes too late is ignored.

        Raises:
            ClientError: bad_ack.
        """
        headers, connection = frame.headers, self._reply_writer.connection
        ack_id = (
            headers.get("id") if self._reply_writer.version is StompVersion.V12 else headers.get("message-id")
        )
        ack_id = ack_id or headers.get("id") or required_header(headers, "message-id")
        found = self._find_message(ack_id, headers.get("subscription", ""))
        if found is None:
            return
        subscription, number = found
        if frame.command == "ACK":
            connection.execute_command(commands.Acknowledge(id=subscription.id, upto=number))
            return
        target = connection.subscriptions[subscription.id]
        for_good = not parse_boolean(headers, "requeue", default=True)
        reject_message(connection, connection.services, target, number, for_good=for_good)

    def _find_message(self, ack_id: str, id: str) -> tuple[_StompSubscription, int] | None:
        """Return the subscription and number of the message that an id names.

        `id`: subscription that an ACK before STOMP 1.2 names. None: the message needs no acknowledgement any
        more, or was sent on another connection.

        Raises:
            ClientError: bad_ack.
        """
        if "|" in ack_id:
            return self._find_record(ack_id, id)
        found = parse_ack_id(ack_id)
        if found is None:
            if "." in ack_id:
                return None  # an unjournaled message without acknowledgements
            raise _unknown_message(ack_id)
        if found.connection != self._ack_prefix:
            return None
        subscription = self._streams.get(found.stream)
        if subscription is not None:
            return subscription, found.number
        if 0 < found.stream <= self._reply_writer.connection.last_stream:
            return None  # the subscription has ended, and its messages are accounted
        raise _unknown_message(ack_id)

    def _find_record(self, bookmark: str, id: str) -> tuple[_StompSubscription, int] | None:
        """Return the subscription and number of a record in flight; None if it isn't in flight.

        Raises:
            ClientError: bad_bookmark.
        """
        sequence = bookmark_sequence(bookmark, self._engine.instance)
        if sequence is None:
            return None
        named = [one for one in self._streams.values() if one.id == id] or self._streams.values()
        for subscription in named:
            target = self._reply_writer.connection.subscriptions.get(subscription.id)
            queue = self._reply_writer.connection.backlog.queues.get(target.stream) if target else None
            if queue is None or queue.window is None:
                continue
            with contextlib.suppress(ClientError):
                if number := queue.window.number_of(sequence):
                    return subscription, number
        return None


def _unknown_message(ack_id: str) -> ClientError:
    return ClientError(
        "bad_ack", f"{ack_id[:80]!r} isn't the id of a message.", "Give the one in its ack header."
    )
