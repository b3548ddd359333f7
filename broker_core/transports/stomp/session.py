"""One STOMP client's conversation: its frames as the commands that there are, replies to these as its frames.

Nothing is decided here about deliveries, journals or slow clients: a session is to a `Connection` what the native frames are.
Frames are carried out in the connection's own turn (`inbox`), so what a frame must come after has been done by then.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from broker_core.connections.acknowledging import refuse
from broker_core.connections.anteroom import Unfinished
from broker_core.connections.inbox import Hold
from broker_core.delivery.entry import OutboxEntry
from broker_core.delivery.sink import Line
from broker_core.errors import ClientError, OperatorError
from broker_core.protocols import commands, replies
from broker_core.protocols.names import check_subscription_id
from broker_core.protocols.stomp.answers import (
    HEARTBEAT,
    Last,
    connected_frame,
    error_frame,
    receipt_frame,
)
from broker_core.protocols.stomp.destinations import (
    Destination,
    publish_to,
    temporary,
)
from broker_core.protocols.stomp.frames import (
    VERSIONS,
    Frame,
    FrameReader,
    Headers,
    Limits,
    Version,
    best_version,
    encode_frame,
    header_line,
)
from broker_core.protocols.stomp.messages import (
    Frames,
    Tails,
    acknowledged_frames,
    read_ack,
    redelivered,
    shared_frames,
)
from broker_core.protocols.stomp.reading import beats, lines_of, needed
from broker_core.protocols.stomp.subscribing import Asked, asked_of, durable_name, durable_of, is_multicast
from broker_core.replay.client_subscription import Sharer
from broker_core.transports.stomp.transactions import Transactions

if TYPE_CHECKING:
    from broker_core.connections.connection import Connection
    from broker_core.connections.inbox import Item
    from broker_core.engine.engine import Engine

MOST_SENDS: Final = 128
"""SENDs of one read that become one batch."""
MOST_SENT_BYTES: Final = 1024 * 1024
_RECEIPT: Final = "receipt"
"""Of an answer to a frame that asked for one."""
_PROCESS: Final = secrets.token_hex(3)
"""So that no name comes again after a restart."""
_names = count(1)


class Out(Line, Protocol):
    """What carries a session."""

    def end(self) -> None:
        """Close, as the client asked."""

    def say(self, frame: bytes, *, behind: bool = False, last: bool = False) -> None:
        """Send a frame at once; `behind` the messages that are on their way; or in their place, as the `last`."""


@dataclass(slots=True)
class _Subscribed:
    """A subscription as its MESSAGEs name it."""

    id: str
    named: bytes
    """Its id as a header's value."""
    acknowledges: bool
    kept_as: tuple[str, str] | None = None
    """Of a durable subscription: whose it is, and its name."""
    had_upto: int = 0
    """Up to which sequence somebody may have had its messages before."""
    sent: int = 0
    gap: str = ""
    """What the next message says is missing before it."""


@dataclass(slots=True)
class _Sends:
    """SENDs that came together, none of them in a transaction."""

    session: Session
    frames: list[Frame]

    def carry_out(self) -> None:
        self.session.send(self.frames)


@dataclass(slots=True)
class _Spoken:
    """Any other frame."""

    session: Session
    frame: Frame

    def carry_out(self) -> None:
        self.session.take(self.frame)


class Session:
    """Between what carries it, its `out`, and its `connection`."""

    connection: Connection

    def __init__(self, engine: Engine, transport: str, tails: Tails, out: Out) -> None:
        self.reader = FrameReader(Limits.before_logon())
        self._unfinished = Unfinished(engine.anteroom)
        self.telling = ""
        """The decision that the client was told last, before its connection is closed."""
        self._engine = engine
        self._transport = transport
        self._tails = tails
        self._out = out
        self._beats = (0, 0)
        self._receipt = ""
        """What the frame under way is to be answered with."""
        self._receipts: dict[str, list[str]] = {}
        """Of batches that aren't durable yet."""
        self._batches = 0
        self._subscribing: dict[str, tuple[Asked, str]] = {}
        self._unsubscribing: dict[str, str] = {}
        """What is to be answered when a subscription has ended, and isn't kept any more if it was to be deleted."""
        self._streams: dict[int, _Subscribed] = {}
        self._transactions = Transactions()
        self._secret = secrets.token_hex(8)
        """By which its temporary destinations are known."""
        self._temporary: set[str] = set()
        """Those that it hears without having subscribed to them."""
        self._cancelled: replies.Cancelled | None = None
        self._leaving = self._ended = self._broken = False

    @property
    def _sent_upto(self) -> dict[tuple[str, str], int]:
        return self._engine.durables.sent_upto

    @property
    def version(self) -> Version:
        """The one that is spoken."""
        return self.reader.version or Version.V12

    # What the client says.

    def begin(self) -> None:
        """The connection is there."""
        self.connection = self._engine.connected(self._transport, self._out)

    def received(self, data: bytes | memoryview) -> None:
        """Bytes have come."""
        if self._leaving or self.connection.closed:
            return
        items: list[Item] = [*self._deeds(self.reader.feed(data))]
        try:
            self._unfinished.hold(self.reader.holds)
        except ClientError as error:
            self.reader.release(error.with_traceback(None))
        if self.reader.error is not None and not self._broken:
            self._broken = True
            items.append(self.reader.error)
        if items or self.connection.logged_on:  # before, only whole frames put off the end of its patience
            self.connection.receive(items)

    def logged_on(self) -> None:
        """It is known who this is."""
        self._unfinished.logged_on()
        self.reader.limits = Limits()

    def lost(self) -> None:
        """The connection is gone: nothing of it is kept, whoever still knows this session."""
        self.reader.release()
        self._unfinished.hold(0)

    def _deeds(self, frames: Iterable[Frame]) -> Iterator[_Sends | _Spoken]:
        """SENDs that came together are one batch, as one of a native publisher is."""
        sends: list[Frame] = []
        nbytes = 0
        for frame in frames:
            if frame.command == "SEND" and "transaction" not in frame.headers:
                sends.append(frame)
                nbytes += len(frame.body)
                if len(sends) < MOST_SENDS and nbytes < MOST_SENT_BYTES:
                    continue
            if sends:
                yield _Sends(self, sends)
                sends, nbytes = [], 0
            if frame.command != "SEND" or "transaction" in frame.headers:
                yield _Spoken(self, frame)
        if sends:
            yield _Sends(self, sends)

    def take(self, frame: Frame) -> None:
        """Carry a frame out. ClientErrors say why not; the connection ends with them."""
        if self._leaving:
            return
        headers = frame.headers
        self._receipt = headers.get("receipt", "")
        answered = False
        match frame.command:
            case "CONNECT" | "STOMP":
                self._connect(frame)
                answered = True
            case _ if not self.connection.logged_on:
                raise _not_logged_on()
            case "SUBSCRIBE":
                self._subscribe(headers)
                answered = True
            case "UNSUBSCRIBE":
                self._unsubscribe(headers)
                answered = True
            case "BEGIN":
                self._transactions.begin(needed(headers, "transaction"))
            case "COMMIT":
                self._commit(self._transactions.end(needed(headers, "transaction")))
                answered = True
            case "ABORT":
                self._transactions.end(needed(headers, "transaction"))
            case "DISCONNECT":
                self._leaving = answered = True
                self.connection.publishing.flush(self._receipt)
            case "SEND":
                self._destination(frame)
                self._transactions.add(headers["transaction"], frame)
                answered = True  # with its COMMIT
            case _ if "transaction" in headers:
                self._transactions.add(headers["transaction"], frame)
            case _:
                self._acknowledge(frame)
        if self._receipt and not answered:
            self.connection.reply(replies.Ack(ack="processed", of=_RECEIPT, id=self._receipt))
        self._receipt = ""

    # Logging on.

    def _connect(self, frame: Frame) -> None:
        headers, version = frame.headers, best_version(frame)
        if self.connection.logged_on:
            raise ClientError(
                "bad_logon", f"This connection is logged on as {self.connection.name}.", "Log on once."
            )
        if version is None:
            raise ClientError(
                "bad_logon",
                f"None of the versions {headers.get('accept-version', '')[:80]} is spoken here.",
                f"Accept one of {VERSIONS}.",
                version=VERSIONS,
            )
        self._beats = beats(headers.get("heart-beat", "0,0")) if version is not Version.V10 else (0, 0)
        given = headers.get("client-id", "")
        secret = headers.get("passcode", "")
        self.connection.passing = not given
        self.connection.carry_out(
            commands.Logon(
                name=durable_name(given)
                if given
                else f"stomp-{self._transport[:32]}-{_PROCESS}-{next(_names)}",
                user=headers.get("login") or None,
                password=secret or None,
                token=secret or None,
            )
        )
        self._receipt = ""

    def _logged_on(self) -> None:
        says, hears = self._beats
        self.connection.heartbeat_ms, self.connection.promised_ms = says, hears
        self._out.say(connected_frame(self.version, self.connection.name, self._engine.instance, says, hears))

    # Publishing.

    def send(self, frames: Sequence[Frame]) -> None:
        """Publish SENDs as one batch. Of one that can't be published those before it are."""
        if self._leaving:
            return
        for number, frame in enumerate(frames):
            try:
                self._destination(frame)
            except ClientError:
                self._publish(frames[:number])
                self._receipt = frame.headers.get("receipt", "")
                raise
        self._receipt = frames[-1].headers.get("receipt", "")
        self._publish(frames)
        self._receipt = ""

    def _destination(self, frame: Frame) -> Destination:
        """Where a SEND goes. ClientErrors, also of rights."""
        if not self.connection.logged_on:
            raise _not_logged_on()
        text = needed(frame.headers, "destination")
        found = publish_to(temporary(text, self._secret) or text, is_multicast(frame.headers))
        self.connection.rights.check_publish((found.topic,))
        return found

    def _publish(self, frames: Sequence[Frame], receipts: Sequence[str] = ()) -> None:
        """One batch of SENDs, and what is to be answered when it is done."""
        asked = [receipt for frame in frames if (receipt := frame.headers.get("receipt"))] + [*receipts]
        if not frames:
            if asked:
                self._out.say(self._receipt_frames(asked))
            return
        answers: list[replies.Ack] = []
        if asked:
            self._batches += 1
            key = str(self._batches)
            self._receipts[key] = asked
            answers = [replies.Ack(ack="persisted", of="publish", id=key)]
        topics = [self._destination(frame).topic for frame in frames]
        lines = [self._lines(frame, topic) for frame, topic in zip(frames, topics, strict=True)]
        self.connection.publishing.publish_records(topics, [frame.body for frame in frames], lines, answers)

    def _lines(self, frame: Frame, topic: str) -> bytes:
        """The headers that travel with a record. A temporary destination is given to others by a name that they can use, and
        what they send there is heard: RabbitMQ's clients don't subscribe to it."""
        reply_to = frame.headers.get("reply-to", "")
        known = temporary(reply_to, self._secret)
        if not known:
            return lines_of(frame, topic)
        asked = publish_to(known)
        if reply_to not in self._temporary and not any(
            one.topic == asked.topic for one in self.connection.subscriptions.values()
        ):
            self._temporary.add(reply_to)
            command = commands.Subscribe(id=check_subscription_id(reply_to), topic=asked.topic)
            self._subscribing[reply_to] = (Asked(command, asked, "auto", ""), "")
            self.connection.carry_out(command)
        return lines_of(frame._replace(headers=Headers(frame.headers | {"reply-to": known})), topic)

    def _receipt_frames(self, receipts: Iterable[str]) -> bytes:
        return b"".join([receipt_frame(receipt, self.version) for receipt in receipts])

    def _commit(self, frames: Sequence[Frame]) -> None:
        receipt, self._receipt = self._receipt, ""
        self._publish([frame for frame in frames if frame.command == "SEND"], [receipt] if receipt else [])
        for frame in frames:
            if frame.command != "SEND":
                self._acknowledge(frame)

    # Subscribing.

    def _subscribe(self, headers: dict[str, str]) -> None:
        frontier, clock = self._engine.frontier.durable, self._engine.clock
        id = headers.get("id", "")
        if not id and self.version is Version.V10:
            id = needed(headers, "destination")[:128]
        own = headers.get("destination", "")
        if known := temporary(own, self._secret):
            headers = {**headers, "destination": known}
            if own in self._temporary:
                self._temporary.discard(own)
                self._end_subscription(own)
        asked = asked_of(headers, id, self._engine.instance, frontier, clock.now_ns())
        connection, durable = self.connection, asked.command.durable
        if durable is not None and asked.owner == "user":
            connection.durable_owners[durable] = self._user_owner
        if id in connection.subscriptions:
            raise ClientError(
                "bad_command",
                f"There is a subscription {id!r} already.",
                "Unsubscribe it first, or use another id.",
            )
        self._subscribing[id] = (asked, self._receipt)
        connection.inbox.hold(Hold.SUBSCRIBE)
        connection.carry_out(asked.command)

    @property
    def _user_owner(self) -> str:
        """As whom the durable subscriptions of its user are kept; one who only says who he is has others than one who proves it."""
        identity = self.connection.identity
        proven = identity is not None and identity.proven
        return f"{'user' if proven else 'anybody'}:{self.connection.user}"

    def _subscribed(self, reply: replies.Ack) -> None:
        asked, receipt = self._subscribing.pop(reply.id or "")
        assert reply.stream is not None
        named = header_line("", asked.command.id, self.version).encode()[1:]
        subscribed = self._streams[reply.stream] = _Subscribed(asked.command.id, named, asked.ack != "auto")
        if (durable := asked.command.durable) and not asked.command.shared:
            subscribed.kept_as = (self.connection.keeps_as(durable), durable)
            subscribed.had_upto = self._sent_upto.get(subscribed.kept_as, 0)
        if receipt:
            self._out.say(receipt_frame(receipt, self.version))
        # Not before it has begun: what comes next may be its UNSUBSCRIBE.
        asyncio.get_running_loop().call_soon(self.connection.inbox.release, Hold.SUBSCRIBE)

    def _unsubscribe(self, headers: dict[str, str]) -> None:
        id = headers.get("id") or (headers.get("destination", "") if self.version is Version.V10 else "")
        durable, owner = durable_of(headers)
        target = self.connection.subscriptions.get(id)
        if target is None and durable:
            self._delete(durable, owner)
            return
        self._unsubscribing[id] = self._receipt
        self._end_subscription(id, delete=bool(durable))

    def _end_subscription(self, id: str, delete: bool = False) -> None:
        """ClientError unknown_subscription."""
        target = self.connection.subscriptions.get(id)
        self.connection.carry_out(commands.Unsubscribe(id=id, delete=delete))
        if target is not None:
            self._streams.pop(target.stream, None)

    def _delete(self, durable: str, owner: str) -> None:
        """Delete a durable subscription that nobody is subscribed to on this connection."""
        connection = self.connection
        kept_as = self._user_owner if owner == "user" else connection.name
        try:
            connection.services.durables.delete(kept_as, durable)
        except OperatorError as error:
            raise ClientError("unknown_subscription", error.sentence, error.fix) from None
        answer = replies.Ack(ack="processed", of=_RECEIPT, id=self._receipt)
        connection.services.facilities.spawn(connection.answer_when_stored(answer))

    def _acknowledge(self, frame: Frame) -> None:
        headers = frame.headers
        said = headers.get("id") if self.version is Version.V12 else headers.get("message-id")
        said = said or headers.get("id") or needed(headers, "message-id")
        found = read_ack(said)
        if found is None:
            if "|" in said or "." in said:
                return  # of a message that needs no acknowledgement
            raise ClientError(
                "bad_ack", f"{said[:80]!r} isn't the id of a message.", "Give the one in its ack header."
            )
        stream, number = found
        subscribed = self._streams.get(stream)
        if subscribed is None:
            if 0 < stream <= self.connection.last_stream:
                return  # its subscription has ended: what was owed to it is counted
            raise ClientError(
                "bad_ack", f"{said[:80]!r} isn't the id of a message.", "Give the one in its ack header."
            )
        if frame.command == "ACK":
            self.connection.carry_out(commands.Acknowledge(id=subscribed.id, upto=number))
        else:
            refuse(
                self.connection,
                self.connection.services,
                self.connection.subscriptions[subscribed.id],
                number,
                for_good=headers.get("requeue") == "false",
            )

    # What the broker says.

    def frames_of(self, entry: OutboxEntry) -> Frames | None:
        """A delivery; None when its subscription has ended meanwhile."""
        to = self._streams.get(entry.stream)
        if to is None:
            return None
        tails = self._tails.of(entry.batch, self.version, to.acknowledges)
        if to.gap:
            line = header_line("x-sluice-gap", to.gap, self.version)
            tails, to.gap = [f"{line}\n".encode() + tails[0], *tails[1:]], ""
        if to.kept_as is not None and not self._is_durable(to.id):
            to.kept_as = None  # it was deleted, and goes on as any other
        if to.kept_as is not None and entry.batch.last_sequence:
            if entry.batch.first_sequence <= to.had_upto:
                tails = redelivered(tails, (entry.batch.sequences() <= to.had_upto).tolist())
            self._sent_upto[to.kept_as] = max(self._sent_upto.get(to.kept_as, 0), entry.batch.last_sequence)
        sharer = self._sharer(to.id)
        if sharer is not None and (had := sharer.had_before(entry.batch)) is not None:
            tails = redelivered(tails, had.tolist())
        if not to.acknowledges:
            return shared_frames(to.named, tails)
        first = to.sent + 1
        to.sent += len(tails)
        return acknowledged_frames(to.named, entry.stream, first, tails, self.version)

    def _sharer(self, id: str) -> Sharer | None:
        target = self.connection.subscriptions.get(id)
        return target.shared if target is not None else None

    def _is_durable(self, id: str) -> bool:
        target = self.connection.subscriptions.get(id)
        return target is not None and target.durable != ""

    def answer(self, reply: replies.Reply) -> None:
        """Say what there is a STOMP word for; what there is none for, no client waits for."""
        match reply:
            case replies.Heartbeat():
                self._out.say(HEARTBEAT)
            case replies.Ack(of="publish", id=str(key)):
                self._out.say(self._receipt_frames(self._receipts.pop(key)))
            case replies.Ack(of="logon"):
                self._logged_on()
            case replies.Ack(of="subscribe", ack="processed"):
                self._subscribed(reply)
            case replies.Ack(of="subscribe", ended=True):
                self._over(reply.id or "")
            case replies.Ack(of="flush"):
                self._leave(reply.id or "")
            case replies.Ack(of="unsubscribe", id=str(id)):
                self._say_receipt(self._unsubscribing.pop(id, ""))
            case replies.Ack(of=of, id=str(receipt)) if of == _RECEIPT:
                self._say_receipt(receipt)
            case replies.Gap():
                self._note_gap(reply)
            case replies.Cancelled():
                self._cancelled = reply
                # What the decision says of it comes in the same turn.
                asyncio.get_running_loop().call_soon(self._end_cancelled)
            case replies.Notice():
                self._notice(reply)
            case replies.Error():
                _, receipt = (
                    self._subscribing.pop(reply.id or "", (None, ""))
                    if reply.of == "subscribe"
                    else (None, "")
                )
                self._end(reply, receipt or self._receipt)
                self.connection.close(reply.code, reply.message)
            case replies.Closing():
                self._end(reply, "")

    def _say_receipt(self, receipt: str) -> None:
        if receipt:
            self._out.say(receipt_frame(receipt, self.version), behind=True)

    def _end(self, reply: Last, receipt: str) -> None:
        if not self._ended:
            self._ended = True
            self._out.say(error_frame(reply, receipt, self.version), last=True)

    def _leave(self, receipt: str) -> None:
        """DISCONNECT, and all that came before it is done."""
        self._ended = True
        if receipt:
            self._out.say(receipt_frame(receipt, self.version), last=True)
        self.connection.leave("closed")
        self._out.end()

    def _over(self, id: str) -> None:
        """A subscription has been given all of the range it asked for."""
        for stream, known in list(self._streams.items()):
            if known.id == id:
                del self._streams[stream]
                self._out.say(
                    encode_frame(
                        "MESSAGE",
                        [("subscription", id), ("message-id", f"{stream}-end"), ("browser", "end")],
                        version=self.version,
                    ),
                    behind=True,
                )

    def _note_gap(self, reply: replies.Gap) -> None:
        for known in self._streams.values():
            if known.id == reply.id:
                known.gap = f"{known.gap.partition(',')[0] or reply.first},{reply.last}"

    def _notice(self, reply: replies.Notice) -> None:
        cancelled = self._cancelled
        if self.connection.closed:
            self.telling = reply.decision or ""
            self._end(reply, "")
        elif cancelled is not None and cancelled.decision == reply.decision:
            self._cancelled = None
            self._end(
                msgspec.structs.replace(
                    reply,
                    resume=cancelled.bookmark or reply.resume,
                    subscription=cancelled.id,
                    retry_after_ms=cancelled.retry_after_ms,
                ),
                "",
            )
            self.connection.close(cancelled.code, cancelled.message)

    def _end_cancelled(self) -> None:
        """A subscription was cancelled: STOMP has no word for that but the last one, and silence would be worse."""
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None and not self.connection.closed:
            self._end(cancelled, "")
            self.connection.close(cancelled.code, cancelled.message)


def _not_logged_on() -> ClientError:
    return ClientError("not_logged_on", "The first frame must be CONNECT or STOMP.", "Send CONNECT first.")
