"""One client's connection: reads its commands, holds its subscriptions, and answers.

A command that can't be done is answered with an error and loses nobody else's data. Frames or logons that can't be
trusted end the connection, after an error that says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker_core.access import EVERYTHING
from broker_core.bookmark import Bookmark
from broker_core.delivery import Cause, ClientState, Event, OutboxEntry, Tally, next_state
from broker_core.errors import ClientError, SluiceError
from broker_core.protocols import commands, replies
from broker_core.protocols.close_codes import CLOSE_CODES
from broker_core.protocols.native import COMMAND, MAX_FRAME, PROTOCOL_VERSION, Frame, parse_command
from broker_core.runtime.acknowledging import acknowledge, open_window
from broker_core.runtime.backlog import Backlog
from broker_core.runtime.client_subscription import ClientSubscription
from broker_core.runtime.publisher import Publisher
from broker_core.runtime.sink import Sink
from broker_core.runtime.subscribe_commands import subscribe, unsubscribe
from broker_core.runtime.telling import Settled, Tellings
from broker_core.slow_clients.accounts import Account

if TYPE_CHECKING:
    from broker_core.runtime.host import Host
    from broker_core.runtime.logons import Identity

MAX_UNREAD_REPLIES = 1_000
"""Answers that may wait for a peer whose socket takes nothing."""


class Connection:
    """One connection, from its first byte to its last."""

    def __init__(self, host: Host, transport: str, sink: Sink) -> None:
        self.host = host
        self.transport = transport
        self.sink = sink
        self.backlog = Backlog(self, sink)
        self.tellings = Tellings(sink)
        self.account: Account | None = None
        self.name = ""
        self.user = ""
        self.identity: Identity | None = None
        self.rights = EVERYTHING
        self._held: list[Frame | str] | None = None
        """What came after a logon that is still being checked; at most what had been read by then."""
        self.connected_at = host.now_ns()
        self.heard_at = host.monotonic_ms()
        self.heartbeat_ms = 0
        self.spoke_at = self.heard_at
        self.publishing = Publisher(self)
        self.subscriptions: dict[str, ClientSubscription] = {}
        self._by_stream: dict[int, ClientSubscription] = {}
        self._ended: dict[int, ClientSubscription] = {}
        """Subscriptions that ended while the client was offlined: something of theirs may be in the spool."""
        self.ended_messages = 0
        self.last_stream = 0
        self._unread_replies = 0

    @property
    def logged_on(self) -> bool:
        return self.name != ""

    @property
    def closed(self) -> bool:
        return self.backlog.state is ClientState.CLOSED

    # From the transport.

    def receive(self, frames: Sequence[Frame]) -> None:
        """Take whole frames, in order."""
        self.heard_at = self.host.monotonic_ms()
        for frame in frames:
            if self._held is not None:
                self._held.append(frame)
                continue
            if self.closed:
                if frame.kind == COMMAND:
                    self._last_words(frame.payload)
                continue
            try:
                if frame.kind == COMMAND:
                    self._command(parse_command(frame.payload))
                else:
                    self.publishing.publish_batch(frame.payload)
            except ClientError as error:
                self._refuse(error)

    def receive_text(self, text: str) -> None:
        """Take one command as text."""
        self.heard_at = self.host.monotonic_ms()
        if self._held is not None:
            self._held.append(text)
            return
        if self.closed:
            self._last_words(text)
            return
        try:
            self._command(parse_command(text))
        except ClientError as error:
            self._refuse(error)

    def _last_words(self, payload: bytearray | str) -> None:
        """From a client that is being closed only its answer to the notice counts."""
        with contextlib.suppress(ClientError):
            command = parse_command(payload)
            if isinstance(command, commands.Told):
                self.tellings.heard(command.decision)

    def on_writable(self) -> None:
        """The transport takes bytes again."""
        if not self.closed:
            self.backlog.on_writable()

    def on_closed(self) -> None:
        """The transport is gone."""
        self.tellings.lost()
        self.host.disconnected(self)

    # Answers.

    def reply(self, reply: replies.Reply) -> None:
        """Send an answer; it doesn't wait behind deliveries.

        A peer that asks and never reads would make answers pile up below the outbox, so their number is bounded.
        """
        if self.closed:
            return
        self._unread_replies = 0 if self.sink.writable else self._unread_replies + 1
        if self._unread_replies > MAX_UNREAD_REPLIES:
            self.host.disconnected(self, "bad_command")
            self.sink.close("bad_command", "It asks and doesn't read the answers.")
            return
        self.spoke_at = self.host.monotonic_ms()
        self.sink.send_reply(reply)

    def _refuse(self, error: ClientError) -> None:
        # Before logon nothing can be trusted; afterwards only frames that can't be parsed end the connection.
        if not self.logged_on or error.code in ("bad_frame", "frame_too_large", "bad_batch"):
            self.fail(error)
        else:
            self.reply(replies.error_reply(error))

    def fail(self, error: SluiceError) -> None:
        """Say what was wrong and end the connection."""
        if not self.closed:
            self.reply(replies.error_reply(error))
            self.close(error.code, error.sentence, error.fix, error.details.get("retry_after_ms"))

    def close(self, code: str, message: str, fix: str = "", retry_after_ms: int | None = None) -> None:
        """End the connection with a last word. Everything that waits for it is forgotten."""
        if not self.closed:
            self._say_closing(code, message, fix, retry_after_ms)
            self.host.disconnected(self, code)
            self.sink.close(code, message)

    def close_by_decision(self, identity: str, notice: replies.Notice, settled: Settled) -> None:
        """End the connection with a notice. It is closed when the client says that it has it, or at the deadline."""
        code, message = notice.code, notice.message

        def close(told: str) -> None:
            self.host.parting.discard(self)
            self.sink.close(code, message)
            settled(told)

        self.host.parting.add(self)

        self.tellings.tell(identity, notice, close)
        self._say_closing(code, message, "", notice.retry_after_ms)
        self.host.disconnected(self, code)

    def _say_closing(self, code: str, message: str, fix: str, retry_after_ms: int | None) -> None:
        come_back = retry_after_ms if retry_after_ms is not None else (
            1_000 if code in CLOSE_CODES and CLOSE_CODES[code].reconnect else None
        )
        self.reply(replies.Closing(code=code, message=message, fix=fix, retry_after_ms=come_back))

    # Commands.

    def _command(self, command: commands.Command) -> None:
        match command:
            case commands.Logon():
                self._logon(command)
            case _ if not self.logged_on:
                raise ClientError("not_logged_on", "The first command must be a logon.",
                                  'Send {"c":"logon","name":"..."} first.')
            case commands.Publish():
                self.publishing.publish_one(command)
            case commands.Subscribe():
                subscribe(self, command)
            case commands.Unsubscribe():
                unsubscribe(self, command)
            case commands.Pause() | commands.Resume() | commands.Rate():
                self.host.steering.command(self, command)
            case commands.Flush():
                self.publishing.flush(command.id)
            case commands.Heartbeat():
                self.reply(replies.Heartbeat())
            case commands.Acknowledge():
                acknowledge(self, command)
            case commands.Renew():
                self.host.leases.renew(self, command.id, self.host.monotonic_ms())
            case commands.Told():
                self.tellings.heard(command.decision)

    def _logon(self, command: commands.Logon) -> None:
        if self.logged_on:
            raise ClientError("bad_logon", f"This connection is logged on as {self.name}.", "Log on once.")
        identity = self.host.logons.identify(self, command)
        if identity is not None:
            self._log_on(command, identity)
        else:
            self._held = []
            self.sink.pause_reading()

    def identified(self, command: commands.Logon, identity: Identity) -> None:
        """It is known who this is: log on, and take what came meanwhile."""
        held, self._held = self._held or [], None
        self.sink.resume_reading()
        try:
            self._log_on(command, identity)
        except ClientError as error:
            self._refuse(error)
        for item in held:
            if isinstance(item, str):
                self.receive_text(item)
            else:
                self.receive((item,))

    def _log_on(self, command: commands.Logon, identity: Identity) -> None:
        self.host.logons.check_name(self, command, identity)
        self.identity, self.rights, self.user = identity, identity.rights, identity.user
        self.host.admit(self, command.name)
        self.name = command.name
        self.heartbeat_ms = command.heartbeat_ms or 0
        self.backlog.state = next_state(self.backlog.state, Event.LOGGED_ON)
        self.reply(replies.Ack(
            ack="processed", of="logon", id=command.id, name=self.name, instance=self.host.instance,
            version=PROTOCOL_VERSION, sequence=self.host.publishing.publisher_sequence(self.name), max_frame=MAX_FRAME,
            heartbeat_ms=self.heartbeat_ms or None,
        ))

    # Subscriptions.

    def queue_first(self, entry: OutboxEntry) -> None:
        """Queue what a subscription delivers before the log."""
        target = self._by_stream.get(entry.stream)
        if target is not None:
            target.delivered_messages += entry.count
            self.backlog.offer(entry)

    def add(self, subscription: ClientSubscription, command: commands.Subscribe) -> None:
        """Enter a subscription that the host has accepted. Its window is there before its first delivery."""
        self.subscriptions[subscription.subscription.id] = subscription
        self._by_stream[subscription.subscription.stream] = subscription
        subscription.durable, subscription.snapshot_key = command.durable or "", command.snapshot_key
        account = self.account
        prefetch = self.host.judging.guard.prefetch_of(account, command.topic) if account is not None else None
        self.backlog.measuring.begin(subscription, open_window(subscription, command, prefetch))

    def drop(self, subscription: ClientSubscription) -> None:
        """A subscription has come to its own end; the caller has told the client."""
        if self.subscriptions.pop(subscription.subscription.id, None) is not None:
            self.host.ending(subscription)
            self._forget(subscription, Cause.UNSUBSCRIBED, "")
        subscription.replaying, subscription.replay = False, None

    def cancel(self, subscription: ClientSubscription, rule: str) -> None:
        """A policy, or the end of its lease, ends a subscription; the caller tells the client."""
        if self.subscriptions.pop(subscription.subscription.id, None) is not None:
            self.end(subscription, Cause.CANCELLED, rule)

    def end(self, subscription: ClientSubscription, cause: Cause, rule: str) -> None:
        """End a subscription that has been taken out of `subscriptions`."""
        # Where it stands is noted while it still stands there: what is ended counts as if it had everything.
        self.host.ending(subscription)
        self.host.subscribing.remove(subscription)
        self._forget(subscription, cause, rule)

    def _forget(self, subscription: ClientSubscription, cause: Cause, rule: str) -> None:
        """Give up what waits for a subscription that has ended."""
        stream = subscription.subscription.stream
        self.backlog.measuring.end(subscription)
        del self._by_stream[stream]
        if self.backlog.spool is not None:
            self._ended[stream] = subscription
        self.ended_messages += subscription.delivered_messages
        self.backlog.drop_stream(stream, cause, rule)
        self.host.judging.judge(self)
        self.host.events.add(
            self.host.now_ns(), self.name, "unsubscribe", self.backlog.state.value,
            topic=subscription.topic, filter=subscription.filter_text or "",
        )

    def lost(self, stream: int, what: Tally, cause: Cause, rule: str) -> None:
        """Deliveries of a subscription were given up."""
        target = self._by_stream.get(stream) or self._ended.get(stream)
        if target is not None:
            target.lost_messages += what.messages
            self.host.ledger.enter(
                self.host.now_ns(), self.name, target.subscription.id, target.topic, cause, rule, what
            )

    @property
    def matched_messages(self) -> int:
        """Messages that were for this client, whatever became of them."""
        return self.ended_messages + sum(target.delivered_messages for target in self.subscriptions.values())

    def has_stream(self, stream: int) -> bool:
        """Whether the subscription of that stream number is still there."""
        return stream in self._by_stream

    def subscription_of(self, stream: int) -> ClientSubscription | None:
        """The subscription of a stream; None when it was unsubscribed meanwhile."""
        return self._by_stream.get(stream)

    def bookmark_before(self, sequence: int) -> str:
        """The bookmark after which a new subscription goes on with that record."""
        return str(Bookmark(self.host.instance, sequence - 1))
