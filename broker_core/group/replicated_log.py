"""The log of a group's member: ordered by the log service, stored in the member's journal.

    append ─▶ waiting ─▶ one entry of the log service's log at a time ─▶ committed by its quorum
                                                                            │
    applied ◀── own journal, synced ◀── LogStateMachine: repeats dropped, stamped ◀── read by every member

`ReplicatedLog` is a `CommitLog`. Its listener receives batches once they are in this member's journal and
synced. Entries that are read from the log service are committed by its quorum. So a batch that comes out
has both, and may be acknowledged as `persisted`. Only the member that appended a batch acknowledges it.

One entry is in flight at a time; batches that arrive meanwhile gather for the next one. With several in
flight, a failed entry could be overtaken by a later one of the same publisher, whose higher sequences would
then exclude its records.

Failures:

* No entry is accepted for `hold_ms`: all waiting batches fail with `no_quorum`. An entry that was sent may
  still get into the log. Its records are then stored without an acknowledgement. If their publisher sends
  them again, its sequences show that they are repeats.
* The connection, the consumer or the quorum fails: the member attaches again at its journal's end, until it
  succeeds.
* A condition that needs an operator is `trouble`: another log, another process with this member's name, a
  journal that differs from the others'. The member then appends and applies nothing, and checks every few
  seconds. Reading the journal still works.
* The member's disk is full: waiting batches fail, and the same entries are applied again when there is
  space. Any other failure of the disk ends the process, as it does for a broker without a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar
from uuid import uuid4

import structlog

from broker_core.batch import CLAIM, Batch, write_flags
from broker_core.clock import Clock
from broker_core.errors import JournalError, OperatorError
from broker_core.group.append_queue import (
    EntryAppender,
    OutgoingEntry,
    PendingEntries,
    cancel_and_wait,
    entry_batches,
    shield_until_done,
    wait_first_failure,
)
from broker_core.group.engine_log import (
    LogEntry,
    LogServiceUnavailableError,
    NoticeExchange,
    SharedLog,
    StreamInfo,
)
from broker_core.group.hash_chain import HashChain, chain_path, load_chain, write_chain
from broker_core.group.member_status import PeerTable
from broker_core.group.settings import GroupSettings
from broker_core.group.state_machine import (
    START_POSITION,
    JournalEnd,
    LogPosition,
    LogStateMachine,
    applied_position,
    is_batch_of_entry,
    journal_end,
    newest_batch,
    not_group_journal_error,
)
from broker_core.journal.commit_log import (
    MAX_GROUP_BYTES,
    CommitListener,
    LogGeneration,
    Owner,
    PendingBatch,
)
from broker_core.journal.journal import Journal
from broker_core.journal.publishers import Refusal
from broker_core.journal.segment import BatchPosition
from broker_core.sync_replication.sync_replication import MAX_CHECK_PAUSE_S, SyncReplication

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger("sluice.group")
CHECK_INTERVAL_S: Final = 0.1
"""Seconds between checks whether pending batches have waited too long."""
RETRY_INTERVAL_S: Final = 0.25
"""Seconds between attempts to attach."""
STATUS_INTERVAL_S: Final = 0.25
"""Maximum seconds between status messages."""
NOTICE_BATCH_INTERVAL_S: Final = 0.02
"""Seconds for which notices gather, so that several logons go into one message."""
MIN_STATUS_INTERVAL_S: Final = 0.005
"""Minimum seconds between status messages if other members wait for what this one has synced."""
STATUSES_PER_CHECK: Final = 8
"""Status messages (TELL_S each) between two checks of the log service's state."""
TROUBLE_RETRY_INTERVAL_S: Final = 5.0
"""Maximum seconds between attempts while the member is in `trouble`."""
LOSS_CONFIRM_DELAY_S: Final = 2.0
"""Seconds between two answers that the log was lost. A deposed leader knows its successor by then."""
SEEKING: Final = ("engine_away", "no_quorum")
"""Error codes of a member that looks for its log service, or for a majority of its servers."""
NOT_CONNECTED_YET: Final = OperatorError(
    "engine_away", "the log service hasn't been asked yet", "Wait; if this lasts, see the broker's log."
)
"""Initial reason for not being attached."""
MAX_SKEW_MS: Final = 10_000
"""Clock difference to the log service, in ms, above which it is logged and corrected."""
CHAIN_WRITE_INTERVAL_S: Final = 10.0
"""Seconds between writes of the chain file. At start, journal records behind its value are read again."""


class ReplicatedLog(Generic[Owner]):
    """`CommitLog` of a group's member: see the module.

    Call `start` on the event loop. Batches that are appended earlier wait until then.
    """

    def __init__(
        self,
        journal: Journal,
        outlet: CommitListener[Owner],
        clock: Clock,
        log_service: SharedLog,
        settings: GroupSettings,
        confirmations: SyncReplication,
        may_begin: bool = True,
    ) -> None:
        """Create the log; it connects in `start`.

        `may_begin`: whether a member with an empty journal may create the log if the log service has none.
        """
        self._may_begin = may_begin
        self._journal, self._outlet, self._clock = journal, outlet, clock
        self._log_service, self._settings = log_service, settings
        self._thread = ThreadPoolExecutor(1, "journal")
        self.run_id = uuid4().hex
        """Identifier of this process among those that use the member's name."""
        self.trouble: OperatorError | None = None
        """Why this member takes no part, if only an operator can correct it."""
        self.detach_reason: OperatorError | JournalError | None = NOT_CONNECTED_YET
        """Why the member isn't attached; None while it is."""
        self.state_since = clock.now_ns()
        """When this member began to take part, or stopped for the reason of `problem`, ns UTC."""
        self._search_started_at: int | None = None
        """Start of the search for the log service that led to this attachment, ns UTC.

        None if another problem preceded.
        """
        self.servers_behind_since: int | None = None
        """Since when some server of the log service isn't up to date, ns UTC; None while all are."""
        self._newest_entry = 0
        """The log's newest entry as far as known from reads and answers."""
        self.started_at = self._detached_since = clock.seconds()
        self.stream: StreamInfo | None = None
        self.skew_ms = 0
        """How far this machine's clock is ahead of the log service's, by this member's last own entry."""
        self.chain = HashChain(0, None)
        self.applied_entry = 0
        """The newest entry that is applied here whole."""
        self.applied_entry_at = 0
        """When the log service accepted that entry, ns by its clock; 0 before the first read."""
        self.members = PeerTable(settings, self.run_id)
        self.confirmations = confirmations
        confirmations.list_unreachable = self._list_unreachable
        self.on_attached: Callable[[StreamInfo], None] = lambda _: None
        """Called when the log was found; set by the broker."""
        self._is_confirmed = False
        """Whether the end of the log was read with confirmation in this attachment, or the last one."""
        self.on_current: Callable[[], None] = lambda: None
        """Called when the member has caught up after it attached; set by the broker."""
        self.addresses: Callable[[], dict[str, str]] = dict
        """Returns where clients connect to this member, by transport; set by the broker."""
        self.notices: NoticeExchange | None = None
        """Notices about clients that members send each other; set by the broker."""
        self._synced_event = asyncio.Event()
        """Set when entries were synced that no status message has reported."""
        self._appender: EntryAppender[Owner] = EntryAppender(log_service, settings.member, self.run_id)
        self._pending: PendingEntries[Owner] = PendingEntries()
        self._is_applying = False
        self._progress_at = clock.seconds()
        self._stored_chain_sequence = 0
        self._chain_stored_at = clock.seconds()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def problem(self) -> OperatorError | JournalError | None:
        """Why this member takes no part; None while it does."""
        return self.trouble or self.detach_reason

    @property
    def entries_behind(self) -> int:
        """Number of entries known to be in the log and not applied here."""
        return max(self._newest_entry - self.applied_entry, 0)

    # Interface of `CommitLog`.

    @property
    def is_full(self) -> bool:
        return self._pending.is_full

    async def wait_for_room(self) -> None:
        await self._pending.wait_for_room()

    def append(self, *batches: PendingBatch[Owner]) -> None:
        at = self._clock.now_ns()
        for pending in batches:
            if pending.claims:
                assert isinstance(pending.batch.buf, bytearray)
                write_flags(pending.batch.buf, CLAIM)
            # The accept time travels with the batch. Each member makes the rest of the stamp when it
            # applies the batch.
            pending.batch.stamp(origin=self._journal.origin, epoch=0, first_sequence=0, accepted_at=at)
        self._pending.add(batches, self._clock.seconds())

    async def barrier(self) -> None:
        await self._pending.barrier()

    async def wait_caught_up(self) -> int | None:
        """Read the end of the log with the log service's confirmation.

        Waits, at most `hold_ms`, until everything that any member acknowledged before is applied here. It
        doesn't wait if the log service has been away for longer than that. Returns the newest record at
        that time, or None if nothing was confirmed.
        """
        if self.stream is None and self._clock.seconds() - self._detached_since > self._settings.hold_s:
            return None
        try:
            return await asyncio.wait_for(self._pending.request_catch_up(), self._settings.hold_s)
        except TimeoutError:
            return None

    @property
    def is_current(self) -> bool:
        """Whether the end of the log was read with confirmation since this member attached."""
        return self._is_confirmed and self.stream is not None

    @property
    def log_generation(self) -> LogGeneration | None:
        """Generation of the log; None while this member isn't attached."""
        stream = self.stream
        return LogGeneration(stream.generation, stream.base) if stream is not None else None

    # Sync replication.

    def _list_unreachable(self) -> list[str]:
        """Return the members that can't be reached.

        While the log service is away, these are all members, so none is downgraded for it.
        """
        return self.confirmations.members if self.stream is None else []

    def _report_confirmed_peers(self) -> None:
        """Report the journals of other members that are proved equal to sync replication."""
        for name, peer in self.members.peers.items():
            if (
                peer.proved_sequence > self.confirmations.confirming.get_confirmed_sequence(name)
                or peer.alike is None
            ):
                self.confirmations.on_peer_confirmed(name, peer.proved_sequence)

    def start(self) -> None:
        """Start the tasks that attach, append, apply and check time limits."""
        for task_body in (self._stay_attached(), self._fail_overdue()):
            task = asyncio.get_running_loop().create_task(self._run_guarded(task_body), name="group")
            self._tasks.append(task)

    async def close(self) -> None:
        """Stop. Pending batches get `hold_ms` to be stored; then they fail. The caller closes the journal."""
        if self._tasks and not any(task.done() for task in self._tasks):
            await self.barrier()
        await cancel_and_wait(
            self._tasks, 2.0
        )  # 2 s: a second cancellation must not cut off a write to the journal
        self._fail_pending([], _no_quorum_error("the broker is being stopped"))
        await self._log_service.close()
        if self._journal.failure is None:
            with suppress(OSError):
                self._store_chain()
        self._thread.shutdown(wait=True)

    async def _run_guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task; treat an unexpected exception as a broken log."""
        try:
            await work
        except Exception as problem:
            self._report_log_failure(problem)

    # Taking part.

    async def _stay_attached(self) -> None:
        """Attach again and again, with a pause after each failure."""
        self.chain = await self._run_in_thread(load_chain, self._journal)
        self._log_service.read_statuses(self._on_message)
        while True:
            try:
                await self._attach_and_work()
            except LogServiceUnavailableError as problem:
                self._mark_unavailable(str(problem), has_server=self._log_service.is_connected)
                await asyncio.sleep(RETRY_INTERVAL_S)
            except OperatorError as problem:
                self._mark_troubled(problem)
                await asyncio.sleep(min(TROUBLE_RETRY_INTERVAL_S, self._settings.hold_s))
            except JournalError as problem:
                if self._journal.failure is not None:
                    raise
                # No space: the waiting batches have failed, and the same entries are applied again.
                log.warning("group_waits_for_room", why=problem.sentence)
                self._detach(problem)
                await asyncio.sleep(1.0)

    async def _attach_and_work(self) -> None:
        """Attach once, and work until a part of the attachment fails."""
        stream, position = await self._find_stream(journal_end(self._journal))
        await self._appender.open()
        state_machine = LogStateMachine(self._journal, stream.generation, position, self.chain)
        self.applied_entry, self._newest_entry = state_machine.applied_entry, stream.last
        await self._log_service.read_from(state_machine.applied_entry + 1)
        first = await self._check_newest_entry(stream, position)
        await self._log_service.publish_status(self._encode_status(stream.generation))
        if (trouble := self.members.find_divergence()) is not None:
            raise trouble
        self._mark_attached(stream)
        self.on_attached(stream)
        log.info(
            "group_attached", applied=state_machine.applied_entry, last=stream.last, leader=stream.leader
        )
        await wait_first_failure(
            self._send_statuses(),
            self._send_entries(),
            self._read_entries(state_machine, first),
            self._confirm_caught_up(),
            self._send_notices(),
        )

    async def _confirm_caught_up(self) -> None:
        """Read the end of the log once in each attachment, then call `on_current`."""
        while True:
            if await self._pending.request_catch_up() is not None:
                break
            await asyncio.sleep(RETRY_INTERVAL_S)
        self._is_confirmed = True
        self.on_current()
        await asyncio.Event().wait()  # `wait_first_failure` expects tasks that don't return

    async def _find_stream(self, end: JournalEnd) -> tuple[StreamInfo, LogPosition]:
        """Return the log service's log, and how far this journal has applied it.

        A loss is believed only if a second answer says so, of another server, and of a leader in contact
        with a majority. One answer may come from a deposed leader, or from a server that doesn't know its
        log yet. Raises OperatorError if the log is another, or lost.
        """
        try:
            return await self._find_stream_once(end)
        except OperatorError as problem:
            trouble_code = self.trouble.code if self.trouble is not None else ""
            if problem.code != "engine_lost" or trouble_code == "engine_lost":
                raise
            log.warning("engine_loss_unconfirmed", why=problem.sentence)
            self._mark_unavailable(
                "the broker queries the log service again: one reply reports that its log was lost",
                has_server=True,
            )
        await asyncio.sleep(LOSS_CONFIRM_DELAY_S)
        return await self._find_stream_once(end, elsewhere=True)

    async def _find_stream_once(
        self, end: JournalEnd, *, elsewhere: bool = False
    ) -> tuple[StreamInfo, LogPosition]:
        """Attach, and check the log against the journal."""
        newest_applied = (
            self.members.newest_applied()
        )  # read before the log, so that the log can only be newer
        try:
            may_create = self._may_begin and not end.sequence
            stream = await self._log_service.attach(
                self._journal.identity if may_create else None, elsewhere=elsewhere
            )
            self._check_identity(stream)
        except OperatorError as problem:
            if problem.code == "engine_lost" and end.sequence and not end.generation:
                raise not_group_journal_error(end.sequence) from None
            raise
        position = applied_position(end, stream, self.chain.value)
        try:
            self._check_reach(stream, position.entry, newest_applied.get(stream.generation, (0, "")))
        except OperatorError as problem:
            if problem.code == "engine_lost" and stream.last < position.entry:
                await self._report_loss(stream, position)
            raise
        return stream, position

    def _check_identity(self, stream: StreamInfo) -> None:
        """Check that the log is the one of this member's journal. Raises OperatorError engine_lost."""
        instance = self._journal.instance
        if stream.log != self._journal.identity:
            raise OperatorError(
                "engine_lost",
                f"The log service's log of {instance} is {stream.log}, and this member's journal is of "
                f"{self._journal.identity}.",
                "Set SLUICE_GROUP_ENGINES to the log service of this group. To join that log instead: "
                "`manage.py replication reseed`, which moves its files aside.",
                engine=str(stream.log),
                journal=str(self._journal.identity),
            )

    async def _check_newest_entry(self, stream: StreamInfo, position: LogPosition) -> Sequence[LogEntry]:
        """Read the entry of the journal's newest batch, and return it with the entries after it.

        Raises:
            OperatorError: engine_lost, if the log has another entry there.
        """
        newest = None if position == START_POSITION else newest_batch(self._journal)
        if newest is None:
            return ()
        entries = await self._log_service.next_entry(1)
        if entries[0].number != position.entry or is_batch_of_entry(newest, entries[0]):
            return entries
        await self._report_loss(stream, position)
        raise OperatorError(
            "engine_lost",
            f"Entry {position.entry} of the log service's log of {self._journal.instance} isn't "
            f"the one that this member applied as record {newest.last_sequence}.",
            "The log service lost entries that its quorum had confirmed, and accepted others. The "
            "member acknowledges nothing. See `engine_lost` in docs/group.md.",
            engine=stream.last,
            applied=position.entry,
        )

    async def _report_loss(self, stream: StreamInfo, position: LogPosition) -> None:
        """Send the newest applied entry to the other members, so that they can compare it with the log."""
        self.chain.mark_entry_applied(position.entry)
        addresses = self.addresses()
        status = self.members.encode_status(stream.generation, position.entry, 0, self.chain, 0, addresses)
        with suppress(LogServiceUnavailableError):
            await self._log_service.publish_status(status)

    def _check_reach(self, stream: StreamInfo, applied: int, newest_applied: tuple[int, str]) -> None:
        """Check that the log has what the members applied, and what this member needs next.

        `newest_applied`: the newest entry that another member has applied, and that member.

        Raises:
            OperatorError: engine_lost or member_behind.
        """
        instance = self._journal.instance
        entry, member = newest_applied
        if stream.last < entry > applied:
            raise OperatorError(
                "engine_lost",
                f"The log service's log of {instance} ends with entry {stream.last}, and member "
                f"{member} has applied {entry}.",
                "The log service lost entries that its quorum had confirmed. The member acknowledges "
                "nothing. See `engine_lost` in docs/group.md.",
                engine=stream.last,
                applied=entry,
            )
        if stream.last < applied:
            raise OperatorError(
                "engine_lost",
                f"The log service's log of {instance} ends with entry {stream.last}, and this member "
                f"has applied {applied}.",
                "The log service lost entries that its quorum had confirmed. The member acknowledges "
                "nothing. See `engine_lost` in docs/group.md.",
                engine=stream.last,
                applied=applied,
            )
        if stream.first > applied + 1:
            raise OperatorError(
                "member_behind",
                f"The log service's log of {instance} begins with entry {stream.first}, and this "
                f"member needs {applied + 1}.",
                "Stop it, and give it another member's journal: `manage.py replication reseed "
                "--from DIRECTORY`.",
                engine=stream.first,
                applied=applied,
            )

    def _mark_unavailable(self, reason: str, *, has_server: bool) -> None:
        """Record that the log service can't be used.

        `has_server`: a server is connected and doesn't answer, so the quorum is missing.
        """
        if self.detach_reason is None or self.detach_reason.sentence != reason:
            log.warning("engine_away", why=reason)
        self._detach(
            OperatorError(
                "no_quorum" if has_server else "engine_away",
                reason,
                "Start the servers of the log service that are missing (SLUICE_GROUP_ENGINES); the "
                "member continues automatically. See docs/group.md.",
            )
        )

    def _mark_troubled(self, problem: OperatorError) -> None:
        """Record a problem that an operator must solve."""
        if self.trouble is None or self.trouble.code != problem.code:
            log.error("group_trouble", code=problem.code, why=problem.sentence, fix=problem.fix)
        self._detach(problem, trouble=problem)

    def _mark_attached(self, stream: StreamInfo) -> None:
        """Record that the member is attached."""
        before, self.trouble, self.detach_reason = self.problem, None, None
        self._is_confirmed = False
        self._update_state_since(before)
        self._update_stream(stream)

    def _detach(self, reason: OperatorError | JournalError, *, trouble: OperatorError | None = None) -> None:
        """Record that the member isn't attached, and why."""
        if self.stream is not None:
            self._detached_since = self._clock.seconds()
        before, self.stream, self.detach_reason = self.problem, None, reason
        self.trouble = trouble or self.trouble
        self._update_state_since(before)

    def _update_state_since(self, before: OperatorError | JournalError | None) -> None:
        """Update `state_since` after the state changed.

        While a member looks for its log service in vain, the state keeps its start, although the codes
        change with each attempt. An attachment that ends before the end of the log was read with
        confirmation belongs to the same search.
        """
        now, began_at = self.problem, self.state_since
        was_seeking, is_seeking = _is_seeking(before), _is_seeking(now)
        if (before and before.code) == (now and now.code) or (was_seeking and is_seeking):
            return
        self.state_since = self._clock.now_ns()
        if now is None:
            self._search_started_at = began_at if was_seeking else None
        elif is_seeking and before is None and not self._is_confirmed and self._search_started_at is not None:
            self.state_since = self._search_started_at

    def _update_stream(self, stream: StreamInfo) -> None:
        self.stream = stream
        self._newest_entry = max(self._newest_entry, stream.last)
        is_complete = stream.current >= stream.servers
        self.servers_behind_since = None if is_complete else self.servers_behind_since or self._clock.now_ns()

    # Appending.

    async def _send_entries(self) -> None:
        """Append entries, one at a time. After a reconnect the append under way comes first."""
        while True:
            await self._pending.work_event.wait()
            outgoing = self._appender.in_flight or self._pending.next_outgoing(self._clock.seconds())
            if outgoing is None:
                # No await between the look-up and this: a batch added meanwhile would be missed.
                self._pending.work_event.clear()
                continue
            await self._appender.append(outgoing)
            self._progress_at = self._clock.seconds()
            self._appender.on_appended(outgoing)

    # Reading and applying.

    async def _read_entries(self, state_machine: LogStateMachine, first: Sequence[LogEntry]) -> None:
        """Apply the entries in `first`, then read and apply all that follow."""
        while True:
            entries, first = first or await self._log_service.next_entry(MAX_GROUP_BYTES), ()
            trouble = self.members.find_divergence()
            if trouble is not None:
                raise trouble
            self._progress_at = self._clock.seconds()
            await shield_until_done(self._apply_entries(state_machine, entries))
            self._newest_entry = max(self._newest_entry, entries[-1].number + entries[-1].entries_after)
            await self._store_chain_if_due()

    async def _apply_entries(self, state_machine: LogStateMachine, entries: Sequence[LogEntry]) -> None:
        """Apply entries: stamp their new batches, write and sync them, then notify their owners.

        The caller shields this from cancellation, because a thread writes the journal meanwhile.
        """
        # Decode everything first: a damaged entry must not change the state.
        decoded = [
            (entry, outgoing := self._find_outgoing(entry), entry_batches(entry, outgoing))
            for entry in entries
        ]
        checkpoint = self.chain.checkpoint
        group: list[PendingBatch[Owner]] = []
        refused: list[tuple[PendingBatch[Owner], Refusal]] = []
        applied: list[OutgoingEntry[Owner]] = []
        for entry, outgoing, batches in decoded:
            if outgoing is not None:
                self._pending.mark_applying(outgoing)
                if batches:
                    self._compare_clocks(batches[-1].accepted_at - entry.at)
            for number, batch in enumerate(batches):
                pending = outgoing.batches[number] if outgoing is not None else PendingBatch[Owner](batch)
                fresh = state_machine.apply_batch(entry, number, batch)
                if isinstance(fresh, Refusal):
                    refused.append((pending, fresh))
                    continue
                pending.batch = fresh
                group.append(pending)
            state_machine.mark_applied(entry)
            if outgoing is not None:
                applied.append(outgoing)
        # Commit before any answer: a repeat may be of a record in this very group.
        if group:
            await self._commit_batches(checkpoint, group, applied)
        self.applied_entry, self.applied_entry_at = entries[-1].number, entries[-1].at
        self._synced_event.set()
        self.members.compare_journals(self.chain)
        self._report_confirmed_peers()
        for pending, refusal in refused:
            if refusal is Refusal.REPEATED:
                self._outlet.on_duplicate(pending)
            else:
                self._outlet.superseded(pending)
        for outgoing in applied:
            self._pending.remove_applied(outgoing, self.chain.sequence)

    def _compare_clocks(self, ahead_ns: int) -> None:
        """Update the clock difference from an own entry.

        `ahead_ns`: accept time of the entry's last batch minus the log service's time. The last batch
        waited least; waiting makes a clock look as if it were behind.
        """
        was_skewed = abs(self.skew_ms) > MAX_SKEW_MS
        self.skew_ms = ahead_ns // 1_000_000
        if abs(self.skew_ms) > MAX_SKEW_MS and not was_skewed:
            log.warning("clock_off", ahead_s=round(self.skew_ms / 1_000, 1), fix="Set this machine's clock.")

    def _find_outgoing(self, entry: LogEntry) -> OutgoingEntry[Owner] | None:
        """Return the pending entry of this process that came back as `entry`; None for other entries."""
        number = self._appender.entry_number(entry)
        return None if number is None else self._pending.get_outgoing(number)

    async def _commit_batches(
        self,
        checkpoint: tuple[int, bytes | None],
        group: list[PendingBatch[Owner]],
        applied: list[OutgoingEntry[Owner]],
    ) -> None:
        """Write and sync stamped batches, and pass them to the listener.

        On failure restore the state of before.
        """
        self._is_applying = True
        self._outlet.on_stamped(group)
        # Safe before the sync: the log service's order is final, so no crash gives these sequences to others.
        if self._outlet.shows_early:
            self._outlet.show(group, ())
        try:
            positions = await self._run_in_thread(self._write_batches, [pending.batch for pending in group])
        except JournalError as problem:
            self.chain.rollback(checkpoint)
            self._pending.unmark_applying(applied)
            self._fail_pending(group, problem)
            raise
        finally:
            self._is_applying = False
        # Invariant of every acknowledgement: it follows the sync.
        assert group[-1].batch.last_sequence <= self._journal.durable_sequence
        self._outlet.on_durable(group, positions)

    def _write_batches(self, batches: Sequence[Batch]) -> list[BatchPosition]:
        positions = self._journal.write(batches)
        self._journal.sync()
        return positions

    # Status messages and notices.

    async def _send_statuses(self) -> None:
        """Send status messages, and check the log service's state after every STATUSES_PER_CHECK of them."""
        newest_applied: dict[int, tuple[int, str]] = {}
        while True:
            if self.stream is not None:
                info = await self._log_service.stream_info()
                if info.last < newest_applied.get(info.generation, (0, ""))[0]:
                    raise LogServiceUnavailableError("another member has applied more than the log has")
                self._update_stream(info)
            # For the next check: a server that leads may have an entry some moments after one that follows.
            newest_applied = self.members.newest_applied()
            next_check = self._clock.seconds() + STATUSES_PER_CHECK * STATUS_INTERVAL_S
            while self._clock.seconds() < next_check:
                self._synced_event.clear()
                generation = self.stream.generation if self.stream is not None else 0
                await self._log_service.publish_status(self._encode_status(generation))
                await self._wait_next_status()

    def _encode_status(self, generation: int) -> bytes:
        """Return the status message of this member."""
        return self.members.encode_status(
            generation,
            self.applied_entry,
            self.entries_behind,
            self.chain,
            self.applied_entry_at,
            self.addresses(),
        )

    async def _wait_next_status(self) -> None:
        """Wait until the next status message is due."""
        if not self.confirmations.is_required:
            await asyncio.sleep(STATUS_INTERVAL_S)
            return
        await asyncio.sleep(MIN_STATUS_INTERVAL_S)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._synced_event.wait(), STATUS_INTERVAL_S)

    async def _send_notices(self) -> None:
        """Send the notices of this member when there are any."""
        notices = self.notices
        if notices is None:
            await asyncio.Event().wait()  # `wait_first_failure` expects tasks that don't return
            return
        notices.send_all()
        while True:
            await notices.send_requested.wait()
            await asyncio.sleep(NOTICE_BATCH_INTERVAL_S)
            while (message := notices.next_message()) is not None:
                await self._log_service.publish_status(message)

    def _on_message(self, content: bytes) -> None:
        """Process a status message or notices of a member."""
        if content.startswith(b"["):
            if self.notices is not None:
                self.notices.receive(content)
            return
        self.members.on_status(content, self._clock.seconds())
        self.members.compare_journals(self.chain)
        self._report_confirmed_peers()
        trouble = self.members.find_divergence()
        if trouble is not None:
            self._mark_troubled(trouble)
        elif self.trouble is not None and self.trouble.code == "replica_diverged":
            before, self.trouble = self.trouble, None
            self._update_state_since(before)

    # Time limits and failures.

    async def _fail_overdue(self) -> None:
        """Fail pending batches that have waited too long, without end.

        The limit is `hold_ms` without progress. While the member is in trouble, they fail immediately.
        """
        now = self._clock.seconds()
        while True:
            previous = now
            await asyncio.sleep(CHECK_INTERVAL_S)
            now, hold_s = self._clock.seconds(), self._settings.hold_s
            if now - previous > MAX_CHECK_PAUSE_S:
                # the process stood still: answers of the log service wait in the socket
                self._progress_at = now
            oldest = self._pending.oldest_pending_time()
            if self._is_applying or oldest is None:
                continue
            if self.trouble is not None:
                self._fail_pending([], _no_quorum_error(self.trouble.sentence))
            elif now - oldest > hold_s and now - self._progress_at > hold_s:
                reason = (
                    self.detach_reason.sentence
                    if self.detach_reason is not None
                    else "the log service accepted no entry"
                )
                self._fail_pending([], _no_quorum_error(reason))

    def _fail_pending(self, stamped: list[PendingBatch[Owner]], error: JournalError) -> None:
        """Fail all pending batches with `error`. As far as is known, none of them is stored.

        `stamped`: batches that were being written; other members' may be among them.
        """
        failed, nbytes = self._pending.abandon_all()
        self._appender.in_flight = None
        failed_ids = {id(pending) for pending in failed}
        if failed or stamped:
            log.warning("publishes_refused", batches=len(failed), code=error.code, why=error.sentence)
            self._outlet.on_failed(
                [*(pending for pending in stamped if id(pending) not in failed_ids), *failed], error
            )
        self._pending.release(len(failed), nbytes)

    def _report_log_failure(self, problem: Exception) -> None:
        """Report an unexpected exception as a broken log, which ends the process."""
        if isinstance(problem, JournalError):
            error = problem
        else:
            log.error("group_failed", exc_info=problem)
            error = JournalError(
                "journal_failed", f"The log failed unforeseen: {problem!r}.", "See the broker's log."
            )
        self._journal.failure = self._journal.failure or error
        self._fail_pending([], error)
        self._outlet.on_log_failed(error)

    # The chain on disk.

    async def _store_chain_if_due(self) -> None:
        """Store the chain every CHAIN_RETENTION_S."""
        now = self._clock.seconds()
        if now - self._chain_stored_at > CHAIN_WRITE_INTERVAL_S:
            self._chain_stored_at = now
            with suppress(OSError):  # a missing file only slows the next start
                await shield_until_done(self._run_in_thread(self._store_chain))

    def _store_chain(self) -> None:
        sequence, value = self.chain.checkpoint
        if value is not None and sequence != self._stored_chain_sequence:
            path = chain_path(self._journal.directory, self._journal.instance)
            write_chain(self._journal.files, path, sequence, value)
            self._stored_chain_sequence = sequence

    async def _run_in_thread(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run a function in the journal's thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, partial(work, *arguments, **named)
        )


def _is_seeking(problem: OperatorError | JournalError | None) -> bool:
    return problem is not None and problem.code in SEEKING


def _no_quorum_error(reason: str) -> JournalError:
    return JournalError(
        "no_quorum",
        f"The group's log accepts nothing from this member: {reason}.".replace("..", "."),
        "Publish through another member, or again later; the client library does both.",
    )
