"""Connection of one client: executes its commands, holds its subscriptions, and sends replies.

A command that fails is answered with an error and harms no other client. A frame or logon that can't be
trusted ends the connection, after an error with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final, assert_never

import structlog
from msgspec import structs

from broker_core.access import ALL_RIGHTS
from broker_core.activity import LAST
from broker_core.bookmark import Bookmark
from broker_core.connections import heartbeats
from broker_core.connections.admission import InputBufferUsage, peer_address
from broker_core.connections.connection_view import ClientIdentity
from broker_core.connections.decision_notices import DecisionNotices, ResultCallback
from broker_core.connections.inbox import Inbox, InputPauseReason, Item
from broker_core.connections.ports import UNKNOWN_POSITION, ConnectionServices, PublishPort
from broker_core.connections.publisher import ConnectionPublisher
from broker_core.connections.resume import SuspendedSubscription, TokenSubscription
from broker_core.connections.subscription_leases import LEASE_RULE
from broker_core.connections.subscription_setup import (
    acknowledge,
    grant_credit,
    make_behind_error,
    open_window,
)
from broker_core.delivery.account import DeliveryAccount, DiscardCause
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.discards import NOTHING_UNDELIVERED, UndeliveredSummary
from broker_core.delivery.lifecycle import ClientState, ClientStateEvent, next_state
from broker_core.delivery.sink import ConnectionSink
from broker_core.errors import ClientError, JournalError, SluiceError
from broker_core.protocols import commands, replies
from broker_core.protocols.close_codes import reconnect_after_ms
from broker_core.protocols.liveness import Liveness
from broker_core.protocols.native import COMMAND, MAX_FRAME, PROTOCOL_VERSION, NativeFrame
from broker_core.replay.client_subscription import CONSUMER_ENDED, LEASE_EXPIRED, ClientSubscription
from broker_core.replay.owed_records import OwedRecords

log = structlog.get_logger("sluice.connection")
MAX_UNREAD_REPLIES = 1_000
"""Maximum number of replies that may wait for a peer whose socket accepts nothing."""
ANSWER_TIMEOUT_S: Final = 10.0
"""Maximum seconds for which a peer that sends nothing more is kept for the answers to its commands."""


class Connection:
    """Connection of a client, from its first byte to its last. Other modules see it as a `ConnectionView`."""

    def __init__(self, services: ConnectionServices, transport: str, sink: ConnectionSink) -> None:
        self.services = services
        self._clock, self._instance = services.facilities.clock, services.facilities.instance
        self.transport = transport
        self.sink = sink
        self.backlog = Backlog(self, sink, services.facilities)
        self.notices = DecisionNotices(sink)
        self.name = ""
        self.user = ""
        self.identity: ClientIdentity | None = None
        self.rights = ALL_RIGHTS
        self._input_usage = InputBufferUsage(services.roster.pending_connections)
        self.inbox = Inbox(
            sink, self.execute_item, self._clock, services.facilities.scheduler, self._input_usage
        )
        self.connected_at = self._clock.now_ns()
        self.last_sent_at = self._clock.monotonic_ms()
        self.liveness = Liveness(self.last_sent_at)
        self.broker_heartbeat_ms = self.client_heartbeat_ms = 0
        self.logged_on_at = 0
        self.has_generated_name = False
        self.resume_key = ""
        """Key of its resume points. "" for a client that resumes by a token of its own."""
        self.durable_owners: dict[str, str] = {}
        """Owners of durable subscriptions that aren't stored under the client's name, by subscription."""
        self.publishing = ConnectionPublisher(self, self.inbox, services)
        self.subscriptions: dict[str, ClientSubscription] = {}
        self.preparing_ids: set[str] = set()
        self.knows_sequence = True
        self.last_stream = 0
        self._unread_replies = 0
        self._is_reset = False
        """Whether the peer closed before it had read everything."""
        self.has_ended_input = False
        """Whether the peer has closed its sending side, and the answers to its commands are awaited."""
        self._answer_timer: asyncio.TimerHandle | None = None
        self._is_released = False
        """Whether it ended without a logon and has released its parts."""

    @property
    def remote(self) -> str:
        return self.sink.remote

    @property
    def input_share(self) -> str:
        """User, or address of a client without one, to which the connection's buffered input is charged."""
        return self.user or peer_address(self.remote)

    @property
    def logged_on(self) -> bool:
        return self.name != ""

    @property
    def is_reading(self) -> bool:
        """Whether the broker reads from the client now.

        While it doesn't, the client's silence means nothing.
        """
        return self.inbox.is_reading

    @property
    def is_closed(self) -> bool:
        return self._is_released or self.backlog.state is ClientState.CLOSED

    # Calls by the transport.

    def receive(self, items: Iterable[Item]) -> None:
        """Queue what the transport has read, in order. The inbox executes it now or in later iterations."""
        try:
            self.inbox.put(items)
        except ClientError as error:
            self.fail(error.with_traceback(None))

    def execute_item(self, item: Item) -> None:
        """Execute one item of the inbox. It never raises: errors are sent to the client."""
        if self._unread_replies > MAX_UNREAD_REPLIES:
            return  # it is about to be closed
        try:
            if isinstance(item, ClientError):
                self.fail(item)
            elif not isinstance(item, NativeFrame | str):
                if not self.is_closed:
                    item.execute()
            elif isinstance(item, str) or item.kind == COMMAND:
                text = item if isinstance(item, str) else item.payload
                if self.is_closed:
                    self._execute_while_closing(text)
                else:
                    self.execute_command(commands.parse_command(text))
            elif not self.is_closed:
                self.publishing.publish_batch(item.payload)
        except ClientError as error:
            self._refuse(error)
        except Exception:
            # A fault caused by one client must not end the iteration that executes others' commands.
            log.exception("command_failed", client=self.name)
            self.close("internal_error", "The broker couldn't execute this client's command.")

    def _execute_while_closing(self, payload: bytearray | str) -> None:
        """Process a command of a client that is being closed: only its answer to a decision notice counts."""
        with contextlib.suppress(ClientError):
            command = commands.parse_command(payload)
            if isinstance(command, commands.NoticeReceived):
                self.notices.on_received(command.decision)

    def on_writable(self) -> None:
        if not self.is_closed:
            self.backlog.on_writable()

    def end_input(self) -> bool:
        """Handle the end of the peer's input: a peer that has closed its sending side may still read.

        Returns whether commands are unanswered. Then the connection closes itself when they are answered,
        after `ANSWER_TIMEOUT_S` at the latest; otherwise the transport must close.
        """
        if self.has_ended_input:
            return True
        if not self._has_unanswered_commands:
            return False
        self.has_ended_input, self.inbox.on_idle = True, self.close_when_answered
        loop = asyncio.get_running_loop()
        self._answer_timer = loop.call_later(ANSWER_TIMEOUT_S, self.sink.close_soon)
        return True

    @property
    def _has_unanswered_commands(self) -> bool:
        return not self.is_closed and (
            not self.inbox.is_idle or bool(self.preparing_ids) or self.publishing.has_unanswered_batches
        )

    def close_when_answered(self) -> None:
        """Close a peer that sends nothing more, if all of its commands are answered."""
        if not self._has_unanswered_commands:
            # The caller may send its reply after this call, and replies are written in a later iteration.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self.sink.close_soon)

    def on_closed(self, *, is_reset: bool = False) -> None:
        """Handle the loss of the transport. Input that was read before is executed first.

        `is_reset`: the peer closed before it had read everything.
        """
        self._is_reset = is_reset
        self.has_ended_input, self.inbox.on_idle = False, None
        if self._answer_timer is not None:
            self._answer_timer.cancel()
        self.inbox.end(self._clean_up)

    def _clean_up(self) -> None:
        """Clean up after the loss of the transport, when all input was executed."""
        self.notices.on_connection_lost()
        self.end_session("closed")
        if not self.logged_on:
            self._release()

    def _release(self) -> None:
        """Release the parts of a connection that never logged on.

        Only its own parts refer to it, in cycles, and Python's collector runs too seldom for a flood of them
        (`engine.maintenance`).
        """
        self.services.roster.pending_connections.remove_closing(self)
        self.sink.drop_input()
        self._is_released = True
        del self.backlog, self.inbox, self.publishing, self.notices

    # Calls by admission.

    def evict(self) -> None:
        """Close, because a newer connection came and this one has been without a logon for longest."""
        self.close(
            "too_many_connections",
            "Too many connections are there that haven't logged on.",
            "Log on immediately.",
        )

    def drop(self) -> None:
        self.sink.drop()

    # Replies.

    def reply(self, reply: replies.Reply) -> None:
        """Send a reply; it doesn't wait behind deliveries.

        A peer that sends requests and never reads would accumulate replies below the outbox, so their number
        is limited.
        """
        if self.is_closed or self._unread_replies > MAX_UNREAD_REPLIES:
            return
        is_writable = self.sink.is_writable
        if not self.sink.send_reply(reply):
            return  # the client receives nothing, so it still needs a heartbeat
        self.last_sent_at = self._clock.monotonic_ms()
        self._unread_replies = 0 if is_writable else self._unread_replies + 1
        if self._unread_replies > MAX_UNREAD_REPLIES:
            self.close_unread_replies()

    def close_unread_replies(self) -> None:
        """Close a client with too many unread replies, in a later iteration."""
        # Not immediately: a subscription that begins during this reply would outlive its client.
        asyncio.get_running_loop().call_soon(self._end_unread)

    def _end_unread(self) -> None:
        if not self.is_closed:
            self.end_session("bad_command")
            self.sink.close("bad_command", "The client sends requests but doesn't read the replies.")

    def _refuse(self, error: ClientError) -> None:
        """Answer an error with an error reply, or end the connection if it is fatal."""
        if error.code == "behind":
            # No error reply, because the client would give its subscription up. Another broker of the group
            # is up to date.
            self.close(error.code, error.sentence, error.fix)
            return
        # Before the logon nothing can be trusted; afterwards only frames that can't be parsed end the
        # connection.
        if not self.logged_on or error.code in ("bad_frame", "frame_too_large", "bad_batch", "input_full"):
            self.fail(error)
            return
        if error.details.get("c") == "publish" and (sequence := error.details.get("sequence")):
            self.publishing.record_refusal(sequence)
        self.reply(replies.error_reply(error))

    def fail(self, error: SluiceError) -> None:
        """Send an error and end the connection."""
        if not self.is_closed:
            self.reply(replies.error_reply(error))
            self.close(error.code, error.sentence, error.fix, error.details.get("retry_after_ms"))

    def close(self, code: str, message: str, fix: str = "", retry_after_ms: int | None = None) -> None:
        """End the connection with a closing notice. The notice reports the undelivered messages."""
        self.close_with_summary(code, message, fix, retry_after_ms)

    def close_with_summary(
        self, code: str, message: str, fix: str = "", retry_after_ms: int | None = None
    ) -> UndeliveredSummary:
        """End the connection like `close`, and return the undelivered messages."""
        if self.is_closed:
            return NOTHING_UNDELIVERED
        ending = self.end_session(code)
        self._send_closing_notice(code, message, fix, retry_after_ms, ending)
        self.sink.close(code, message)
        return ending

    def close_by_decision(
        self,
        identity: str,
        notice: replies.DecisionNotice,
        ending: UndeliveredSummary,
        report_result: ResultCallback,
    ) -> None:
        """Send a decision notice to a client whose session has ended.

        Close it when it acknowledges, or at the deadline.

        `report_result` is called with the result: yes, no or unknown.
        """

        def close(result: str) -> None:
            self.services.roster.closing.discard(self)
            self.sink.close(notice.code, notice.message)
            report_result(result)

        self.services.roster.closing.add(self)
        self.notices.send(identity, notice, close)
        self._send_closing_notice(notice.code, notice.message, "", notice.retry_after_ms, ending)

    def end_session(self, reason: str) -> UndeliveredSummary:
        """End the client's session and return all undelivered messages.

        Only closing notices are still sent.

        A second call has no effect.
        """
        services = self.services
        services.roster.remove(self)
        services.quotas.on_disconnected(self)
        if self.is_closed:
            return NOTHING_UNDELIVERED
        if not self.logged_on:
            self.inbox.discard_all()
        services.judging.on_disconnected(self)
        has_ended_itself = reason == "closed" and not self._is_reset
        for target in self.subscriptions.values():
            target.failure = CONSUMER_ENDED if has_ended_itself else ""
            self._store_position(target)
        ending = self.backlog.close()
        services.roster.ended_account.merge(self.backlog.account)
        for target in self.subscriptions.values():
            services.subscribing.remove(target)
        if self.logged_on:
            self.record_event("disconnect", reason, account=self.backlog.account)
        return ending

    def record_event(
        self,
        event: str,
        state: str,
        target: ClientSubscription | None = None,
        account: DeliveryAccount | None = None,
    ) -> None:
        """Record an event of this client, or of one of its subscriptions, as a system record."""
        topic, filter = (target.topic, target.filter_text or "") if target is not None else (None, None)
        now = self._clock.now_ns()
        self.services.note(now, self.name, event, state, topic, filter, self.transport, account)

    def _send_closing_notice(
        self, code: str, message: str, fix: str, retry_after_ms: int | None, ending: UndeliveredSummary
    ) -> None:
        """Send the closing notice with the undelivered messages and the advice for reconnecting."""
        reconnect_delay_ms = reconnect_after_ms(code) if retry_after_ms is None else retry_after_ms
        following = self.services.publishing.following
        elsewhere = following.addresses(self.transport) if following is not None and code == "behind" else []
        self.sink.send_reply(
            replies.ClosingNotice(
                code=code,
                message=message,
                fix=fix,
                retry_after_ms=reconnect_delay_ms,
                kept=ending.recoverable.messages,
                lost=ending.unrecoverable.messages,
                bookmark=self.resume_bookmark(ending),
                addresses=elsewhere,
            )
        )

    # Commands.

    def execute_command(self, command: commands.Command) -> None:
        """Execute a client's command.

        Raises:
            ClientError: the reason for a refusal, with the command it is about.
        """
        LAST.latest, LAST.command, LAST.client = "command", type(command), self.name
        try:
            self._dispatch(command)
        except ClientError as error:
            raise commands.with_command(error, command) from None

    def _dispatch(self, command: commands.Command) -> None:
        """Dispatch a command to its handler."""
        match command:
            case commands.Logon():
                self._logon(command)
            case _ if not self.logged_on:
                raise ClientError(
                    "not_logged_on",
                    "The first command must be a logon.",
                    'Send {"c":"logon","name":"..."} first.',
                )
            case commands.Publish():
                self.publishing.publish_one(command)
            case commands.Subscribe():
                self.services.subscribing.subscribe(self, command)
                if self.preparing_ids and self.services.frontier.end is not None:
                    # Later commands must come after this one, except subscribes: they share one read of the
                    # log's end.
                    self.inbox.pause(InputPauseReason.END, _may_overtake)
            case commands.Unsubscribe():
                self._unsubscribe(command)
            case commands.PauseSubscriptions() | commands.ResumeSubscriptions() | commands.SetRate():
                if isinstance(command, commands.PauseSubscriptions):
                    self.services.quotas.check_pinned(self, self.name)
                self.services.control.execute(self, command)
            case commands.Flush():
                self.publishing.flush(command.id)
            case commands.ClientHeartbeat():
                self.reply(replies.BrokerHeartbeat())
            case commands.Acknowledge():
                acknowledge(self, self.services, command)
            case commands.GrantCredit():
                grant_credit(self, self._clock.now_ns(), command)
            case commands.RenewLease():
                self.services.leases.renew(self, command.id, self._clock.monotonic_ms())
            case commands.NoticeReceived():
                self.notices.on_received(command.decision)
            case commands.Skip():
                self.publishing.skip(command.sequence)
            case _:
                assert_never(command)

    def _logon(self, command: commands.Logon) -> None:
        """Start a logon. Pause the input until the identity and the publisher sequences are known."""
        if self.logged_on:
            raise ClientError("bad_logon", f"This connection is logged on as {self.name}.", "Log on once.")
        identity = self.services.logons.identify(self, command)
        publishing = self.services.publishing
        if (
            identity is not None
            and publishing.following is None
            and publishing.is_publisher_sequence_known(command.name)
        ):
            self._log_on(command, identity)
            return
        self.inbox.pause(InputPauseReason.LOGON)
        if identity is not None:
            self.on_identified(command, identity)

    def on_identified(self, command: commands.Logon, identity: ClientIdentity) -> None:
        """Log the client on, now that its identity is known, and execute the input that came meanwhile."""
        publishing = self.services.publishing
        if publishing.following is None and publishing.is_publisher_sequence_known(command.name):
            self._admit(command, identity)
        else:
            self.services.facilities.spawn(self._admit_after(publishing, command, identity))

    async def _admit_after(
        self, publishing: PublishPort, command: commands.Logon, identity: ClientIdentity
    ) -> None:
        """Log a client on when this broker has the publisher sequences that other members acknowledged.

        Without a confirmed read of the log's end, the reply has no `sequence`, and the client may number
        nothing.
        """
        end = await self.services.frontier.confirm()
        self.knows_sequence = end is not None and await publishing.wait_publisher_sequence_known(command.name)
        if not self.is_closed:
            self._admit(command, identity)

    def _admit(self, command: commands.Logon, identity: ClientIdentity) -> None:
        try:
            self._log_on(command, identity)
        except ClientError as error:
            self._refuse(commands.with_command(error, command))
        self.inbox.resume(InputPauseReason.LOGON)

    def _log_on(self, command: commands.Logon, identity: ClientIdentity) -> None:
        """Log the client on: check name and quotas, register it, and reply with its publisher position."""
        self.services.logons.check_name(self, command, identity)
        self.identity, self.rights, self.user = identity, identity.rights, identity.user
        services = self.services
        services.refused.check(command.name, self._clock.monotonic_ms())
        services.quotas.check_logon(self, identity, services.roster.clients.get(command.name))
        services.roster.log_on(self, command.name)
        services.quotas.on_logged_on(self, identity)
        self.name = command.name
        self._input_usage.on_logged_on()
        self.sink.on_logged_on()
        self.liveness.restart(self._clock.monotonic_ms())
        self.services.judging.on_logged_on(self)
        self.record_event("connect", "live")
        self.broker_heartbeat_ms = self.client_heartbeat_ms = command.heartbeat_ms or 0
        self.publishing.named_session = command.session or 0
        position = UNKNOWN_POSITION
        if self.knows_sequence:
            position = services.publishing.publisher_position(
                self.name, self.publishing.named_session, proven=identity.proven
            )
        self.backlog.state = next_state(self.backlog.state, ClientStateEvent.LOGGED_ON)
        self.reply(
            replies.Ack(
                ack="processed",
                of="logon",
                id=command.id,
                name=self.name,
                instance=self._instance,
                version=PROTOCOL_VERSION,
                sequence=position.sequence,
                session=position.session,
                stored=position.stored or None,
                forgotten=position.forgotten or None,
                max_frame=MAX_FRAME,
                heartbeat_ms=self.broker_heartbeat_ms or None,
            )
        )
        # After the reply, because the client's protocol may have changed the intervals there.
        heartbeats.start_heartbeat(self, self._clock.monotonic_ms)

    # Backlog. Satisfies `delivery.ports.BacklogOwner`.

    def mark_changed(self) -> None:
        self.services.judging.mark_changed(self)

    def on_live(self) -> None:
        self.services.judging.on_live(self)
        self.record_event("offline_stop", "live")

    def on_spool_failed(self, error: SluiceError) -> None:
        self.services.judging.on_spool_failed(self, error)

    @property
    def account(self) -> DeliveryAccount:
        """Sum of the delivery accounts of all subscriptions."""
        return self.backlog.account

    # Subscriptions.

    def add(self, target: ClientSubscription, command: commands.Subscribe) -> None:
        """Add a subscription that begins. Its window exists before its first delivery."""
        self.subscriptions[target.id] = target
        self.services.quotas.adjust_subscriptions(self, 1)
        # A consumer must not delete a shared subscription, and a policy must not delete it because of one
        # consumer.
        target.durable = "" if command.shared else command.durable or ""
        target.snapshot_key = command.snapshot_key
        prefetch = self.services.judging.prefetch_for(self, command.topic)
        window = open_window(self.backlog, target.stream, command, prefetch)
        self.backlog.add_subscription(target)
        self.services.judging.on_subscribed(self, target, window)

    def on_prepared(self) -> None:
        """Read from the client again if none of its subscribes is being prepared any more."""
        if not self.preparing_ids and not self._is_released:
            self.inbox.resume(InputPauseReason.END)
            if self.has_ended_input:
                self.close_when_answered()

    def check_numbered(self) -> None:
        """Check that the client knows its last publisher sequence, so that it may number messages.

        Raises:
            ClientError: behind.
        """
        if not self.knows_sequence:
            raise make_behind_error(self._instance)

    def _unsubscribe(self, command: commands.Unsubscribe) -> None:
        """End a subscription at the client's request. A durable one stays stored unless `delete` is set.

        Raises:
            ClientError: unknown_subscription.
        """
        target = self.subscriptions.get(command.id)
        if target is None:
            raise ClientError(
                "unknown_subscription",
                f"The subscription {command.id!r} doesn't exist.",
                "Use the id it was subscribed with.",
            )
        is_deleted = command.delete and target.durable != ""
        if is_deleted:
            self.services.durables.delete(self.durable_owner(target.durable), target.durable)
        ending = self.end(target, DiscardCause.UNSUBSCRIBED)
        answer = replies.Ack(ack="processed", of="unsubscribe", id=command.id)
        if is_deleted:
            owed = self.services.durables.take_owed(target)
            self.services.facilities.spawn(self.reply_when_durable(answer, owed, ending))
        else:
            self.reply(self._with_ending(answer, ending))

    def _with_ending(self, answer: replies.Ack, ending: UndeliveredSummary) -> replies.Ack:
        """Return the answer to an unsubscribe with its undelivered messages."""
        return structs.replace(
            answer,
            bookmark=self.resume_bookmark(ending),
            kept=ending.recoverable.messages or None,
            lost=ending.unrecoverable.messages or None,
        )

    async def reply_when_durable(
        self, answer: replies.Ack, owed: OwedRecords | None, ending: UndeliveredSummary = NOTHING_UNDELIVERED
    ) -> None:
        """Reply when the deletion is on disk and the records that it was owed are counted.

        A deleted subscription must not come back after a crash.
        """
        try:
            await self.services.durables.wait_durable()
        except JournalError as error:
            self.reply(replies.error_reply(error, of="unsubscribe", id=answer.id))
            return
        if owed is not None:
            self.inbox.resume(InputPauseReason.DELETION)  # counting may take long in a large log
            ending = ending.plus(await owed.wait())
        self.reply(self._with_ending(answer, ending))

    def end(
        self, target: ClientSubscription, cause: DiscardCause | None, rule: str = ""
    ) -> UndeliveredSummary:
        """End a subscription, record its undelivered messages as discarded, and return them.

        `cause` None: the subscription is complete, and deliveries in flight stay in flight. A second call has
        no effect.
        """
        if self.subscriptions.pop(target.id, None) is None:
            return NOTHING_UNDELIVERED
        self.services.quotas.adjust_subscriptions(self, -1)
        if cause is DiscardCause.UNSUBSCRIBED:
            target.failure = CONSUMER_ENDED
        elif rule == LEASE_RULE:
            target.failure = LEASE_EXPIRED
        self._store_position(target, rule)
        ending = (
            self.backlog.remove_subscription(target, cause, rule)
            if cause is not None
            else self.backlog.complete_subscription(target)
        )
        self.services.subscribing.remove(target)
        self.services.judging.on_unsubscribed(self, target)
        self.record_event("unsubscribe", self.backlog.state.value, target)
        self.mark_changed()
        return ending

    def _store_position(self, target: ClientSubscription, rule: str = "") -> None:
        """Record a subscription's position before it ends. Afterwards it would count as fully delivered."""
        self.services.managed.on_closed(target)
        if target.durable or target.is_shared or target.owed_upto:
            self.services.durables.on_closed(target, rule)
        if target.lease_ms:
            self.services.leases.end(target)

    def durable_owner(self, durable: str) -> str:
        """Return the name under which a durable subscription of this client is stored."""
        return self.durable_owners.get(durable, self.name)

    def get_subscription(self, stream: int) -> ClientSubscription | None:
        found = self.backlog.recipients.get(stream)
        return self.subscriptions.get(found.id) if found is not None else None

    def resume_bookmark(self, ending: UndeliveredSummary) -> str | None:
        """Return the bookmark to resume after, or None if the log keeps none of the undelivered records."""
        return str(Bookmark(self._instance, ending.first - 1)) if ending.first else None

    def save_resume_points(self) -> None:
        """Save the resume points of a client that is about to be closed and has no token.

        Stored subscriptions need none.
        """
        services = self.services
        if not self.resume_key:
            return
        suspended = [
            SuspendedSubscription(
                target.id,
                target.topic,
                target.filter_text,
                services.subscribing.position(target),
                self.backlog.get_last_sent(target.stream),
            )
            for target in self.subscriptions.values()
            if not (target.durable or target.is_shared or target.managed)
            and services.subscribing.is_durable(target)
        ]
        services.resume_points.save(self.resume_key, suspended, self._clock.monotonic_ms())

    def resume_token(self) -> str:
        """Return a token for a client that is about to be closed; "" if no subscription is journaled."""
        services = self.services
        suspended = [
            TokenSubscription(
                target.id, target.topic, target.filter_text, services.subscribing.position(target)
            )
            for target in self.subscriptions.values()
            if services.subscribing.is_durable(target)
        ]
        return services.tokens.issue(self.name, suspended, self._clock.now_ns() // 1_000_000)


def _may_overtake(item: Item) -> bool:
    """Return whether an item may overtake a subscribe in preparation.

    That is another subscribe, or another protocol's action.
    """
    if isinstance(item, NativeFrame) and item.kind != COMMAND:
        return False
    if not isinstance(item, NativeFrame | str):
        return True
    try:
        command = commands.parse_command(item if isinstance(item, str) else item.payload)
    except ClientError:
        return False
    return isinstance(command, commands.Subscribe)
