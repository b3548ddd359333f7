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
    START,
    JournalEnd,
    LogPosition,
    LogStateMachine,
    applied_position,
    is_batch_of_entry,
    journal_end,
    newest_batch,
    not_group_journal_error,
)
from broker_core.journal.commit_log import MAX_GROUP_BYTES, CommitListener, Owner, PendingBatch
from broker_core.journal.journal import Journal
from broker_core.journal.publishers import Refusal
from broker_core.journal.segment import BatchPosition
from broker_core.sync_replication.sync_replication import STOOD_STILL_S, SyncReplication

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger("sluice.group")
CHECK_INTERVAL_S: Final = 0.1
"""Seconds between checks whether pending batches have waited too long."""
RETRY_S: Final = 0.25
"""Seconds between attempts to attach."""
TELL_S: Final = 0.25
"""Maximum seconds between status messages."""
NOTICES_GATHER_S: Final = 0.02
"""Seconds for which notices gather, so that several logons go into one message."""
TELL_AT_MOST_S: Final = 0.005
"""Minimum seconds between status messages if other members wait for what this one has synced."""
SAMPLES: Final = 8
"""Status messages (TELL_S each) between two checks of the log service's state."""
TROUBLE_RETRY_S: Final = 5.0
"""Maximum seconds between attempts while the member is in `trouble`."""
CONFIRM_S: Final = 2.0
"""Seconds between two answers that the log was lost. A deposed leader knows its successor by then."""
SEEKING: Final = ("engine_away", "no_quorum")
"""Error codes of a member that looks for its log service, or for a majority of its servers."""
NOT_ASKED: Final = OperatorError(
    "engine_away", "the engine hasn't been asked yet", "Wait; if this lasts, see the broker's log."
)
"""Initial reason for not being attached."""
SKEW_TOLD_MS: Final = 10_000
"""Clock difference to the log service, in ms, above which it is logged and corrected."""
CHAIN_RETENTION_S: Final = 10.0
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
        engine: SharedLog,
        settings: GroupSettings,
        confirmations: SyncReplication,
        may_begin: bool = True,
    ) -> None:
        """Create the log; it connects in `start`.

        `may_begin`: whether a member with an empty journal may create the log if the log service has none.
        """
        self._may_begin = may_begin
        self._journal, self._outlet, self._clock = journal, outlet, clock
        self._engine, self._settings = engine, settings
        self._thread = ThreadPoolExecutor(1, "journal")
        self.run_id = uuid4().hex
        """Identifier of this process among those that use the member's name."""
        self.trouble: OperatorError | None = None
        """Why this member takes no part, if only an operator can correct it."""
        self.away: OperatorError | JournalError | None = NOT_ASKED
        """Why the member isn't attached; None while it is."""
        self.state_since = clock.now_ns()
        """When this member began to take part, or stopped for the reason of `problem`, ns UTC."""
        self._sought_since: int | None = None
        """Start of the search for the log service that led to this attachment, ns UTC.

        None if another problem preceded.
        """
        self.engines_since: int | None = None
        """Since when some server of the log service isn't up to date, ns UTC; None while all are."""
        self._end = 0
        """The log's newest entry as far as known from reads and answers."""
        self.started_at = self._away_since = clock.seconds()
        self.attached: StreamInfo | None = None
        self.skew_ms = 0
        """How far this machine's clock is ahead of the log service's, by this member's last own entry."""
        self.chain = HashChain(0, None)
        self.applied = 0
        """The newest entry that is applied here whole."""
        self.applied_at = 0
        """When the log service accepted that entry, ns by its clock; 0 before the first read."""
        self.members = PeerTable(settings, self.run_id)
        self.confirmations = confirmations
        confirmations.unheard = self._unheard
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
        self._synced = asyncio.Event()
        """Set when entries were synced that no status message has reported."""
        self._appending: EntryAppender[Owner] = EntryAppender(engine, settings.member, self.run_id)
        self._waiting: PendingEntries[Owner] = PendingEntries()
        self._applying = False
        self._progress_at = clock.seconds()
        self._chain_kept = 0
        self._chain_kept_at = clock.seconds()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def problem(self) -> OperatorError | JournalError | None:
        """Why this member takes no part; None while it does."""
        return self.trouble or self.away

    @property
    def behind(self) -> int:
        """Number of entries known to be in the log and not applied here."""
        return max(self._end - self.applied, 0)

    # Interface of `CommitLog`.

    @property
    def is_full(self) -> bool:
        return self._waiting.is_full

    async def wait_for_room(self) -> None:
        await self._waiting.wait_for_room()

    def append(self, *batches: PendingBatch[Owner]) -> None:
        at = self._clock.now_ns()
        for pending in batches:
            if pending.claims:
                assert isinstance(pending.batch.buf, bytearray)
                write_flags(pending.batch.buf, CLAIM)
            # The accept time travels with the batch. Each member makes the rest of the stamp when it
            # applies the batch.
            pending.batch.stamp(origin=self._journal.origin, epoch=0, first_sequence=0, accepted_at=at)
        self._waiting.add(batches, self._clock.seconds())

    async def barrier(self) -> None:
        await self._waiting.barrier()

    async def wait_caught_up(self) -> int | None:
        """Read the end of the log with the log service's confirmation.

        Waits, at most `hold_ms`, until everything that any member acknowledged before is applied here. It
        doesn't wait if the log service has been away for longer than that. Returns the newest record at
        that time, or None if nothing was confirmed.
        """
        if self.attached is None and self._clock.seconds() - self._away_since > self._settings.hold_s:
            return None
        try:
            return await asyncio.wait_for(self._waiting.request_catch_up(), self._settings.hold_s)
        except TimeoutError:
            return None

    @property
    def is_current(self) -> bool:
        """Whether the end of the log was read with confirmation since this member attached."""
        return self._is_confirmed and self.attached is not None

    # Sync replication.

    def _unheard(self) -> list[str]:
        """Return the members that can't be reached.

        While the log service is away, these are all members, so none is downgraded for it.
        """
        return self.confirmations.members if self.attached is None else []

    def _hear_confirmed(self) -> None:
        """Report the journals of other members that are proved equal to sync replication."""
        for name, other in self.members.others.items():
            if (
                other.proved > self.confirmations.confirming.confirmed_sequence_of(name)
                or other.alike is None
            ):
                self.confirmations.on_peer_confirmed(name, other.proved)

    def start(self) -> None:
        """Start the tasks that attach, append, apply and check time limits."""
        for work in (self._take_part(), self._look()):
            task = asyncio.get_running_loop().create_task(self._unforeseen(work), name="group")
            self._tasks.append(task)

    async def close(self) -> None:
        """Stop. Pending batches get `hold_ms` to be stored; then they fail. The caller closes the journal."""
        if self._tasks and not any(task.done() for task in self._tasks):
            await self.barrier()
        await cancel_and_wait(
            self._tasks, 2.0
        )  # 2 s: a second cancellation must not cut off a write to the journal
        self._fail([], _no_quorum("the broker is being stopped"))
        await self._engine.close()
        if self._journal.failure is None:
            with suppress(OSError):
                self._keep_chain()
        self._thread.shutdown(wait=True)

    async def _unforeseen(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task; treat an unexpected exception as a broken log."""
        try:
            await work
        except Exception as problem:
            self._break(problem)

    # Taking part.

    async def _take_part(self) -> None:
        """Attach again and again, with a pause after each failure."""
        self.chain = await self._in_thread(load_chain, self._journal)
        self._engine.read_statuses(self._heard)
        while True:
            try:
                await self._attend()
            except LogServiceUnavailableError as problem:
                self._is_away(str(problem), has_server=self._engine.is_connected)
                await asyncio.sleep(RETRY_S)
            except OperatorError as problem:
                self._is_troubled(problem)
                await asyncio.sleep(min(TROUBLE_RETRY_S, self._settings.hold_s))
            except JournalError as problem:
                if self._journal.failure is not None:
                    raise
                # No space: the waiting batches have failed, and the same entries are applied again.
                log.warning("group_waits_for_room", why=problem.sentence)
                self._detach(problem)
                await asyncio.sleep(1.0)

    async def _attend(self) -> None:
        """Attach once, and work until a part of the attachment fails."""
        attached, place = await self._find(journal_end(self._journal))
        await self._appending.open()
        order = LogStateMachine(self._journal, attached.generation, place, self.chain)
        self.applied, self._end = order.applied_entry, attached.last
        await self._engine.read_from(order.applied_entry + 1)
        first = await self._check_newest_entry(attached, place)
        await self._engine.publish_status(self._said(attached.generation))
        if (trouble := self.members.problems()) is not None:
            raise trouble
        self._is_attached(attached)
        self.on_attached(attached)
        log.info("group_attached", applied=order.applied_entry, last=attached.last, leader=attached.leader)
        await wait_first_failure(
            self._tell(), self._send(), self._read(order, first), self._confirm(), self._send_notices()
        )

    async def _confirm(self) -> None:
        """Read the end of the log once in each attachment, then call `on_current`."""
        while True:
            if await self._waiting.request_catch_up() is not None:
                break
            await asyncio.sleep(RETRY_S)
        self._is_confirmed = True
        self.on_current()
        await asyncio.Event().wait()  # `wait_first_failure` expects tasks that don't return

    async def _find(self, standing: JournalEnd) -> tuple[StreamInfo, LogPosition]:
        """Return the log service's log, and how far this journal has applied it.

        A loss is believed only if a second answer says so, of another server, and of a leader in contact
        with a majority. One answer may come from a deposed leader, or from a server that doesn't know its
        log yet. Raises OperatorError if the log is another, or lost.
        """
        try:
            return await self._find_once(standing)
        except OperatorError as problem:
            known = self.trouble.code if self.trouble is not None else ""
            if problem.code != "engine_lost" or known == "engine_lost":
                raise
            log.warning("engine_loss_unconfirmed", why=problem.sentence)
            self._is_away("the engine is asked again: one answer says that its log was lost", has_server=True)
        await asyncio.sleep(CONFIRM_S)
        return await self._find_once(standing, elsewhere=True)

    async def _find_once(
        self, standing: JournalEnd, *, elsewhere: bool = False
    ) -> tuple[StreamInfo, LogPosition]:
        """Attach, and check the log against the journal."""
        told = self.members.newest_applied()  # read before the log, so that the log can only be newer
        try:
            begins = self._may_begin and not standing.sequence
            attached = await self._engine.attach(
                self._journal.identity if begins else None, elsewhere=elsewhere
            )
            self._check_identity(attached)
        except OperatorError as problem:
            if problem.code == "engine_lost" and standing.sequence and not standing.generation:
                raise not_group_journal_error(standing.sequence) from None
            raise
        place = applied_position(standing, attached, self.chain.value)
        try:
            self._check_reach(attached, place.entry, told.get(attached.generation, (0, "")))
        except OperatorError as problem:
            if problem.code == "engine_lost" and attached.last < place.entry:
                await self._tell_loss(attached, place)
            raise
        return attached, place

    def _check_identity(self, attached: StreamInfo) -> None:
        """Check that the log is the one of this member's journal. Raises OperatorError engine_lost."""
        instance = self._journal.instance
        if attached.log != self._journal.identity:
            raise OperatorError(
                "engine_lost",
                f"The engine's log of {instance} is {attached.log}, and this member's journal is "
                f"of {self._journal.identity}.",
                "Name the engines of its own group (SLUICE_GROUP_ENGINES). If this member is to "
                "join that one: `manage.py replication"
                " reseed`, which moves its files aside.",
                engine=str(attached.log),
                journal=str(self._journal.identity),
            )

    async def _check_newest_entry(self, attached: StreamInfo, place: LogPosition) -> Sequence[LogEntry]:
        """Read the entry of the journal's newest batch, and return it with the entries after it.

        Raises:
            OperatorError: engine_lost, if the log has another entry there.
        """
        newest = None if place == START else newest_batch(self._journal)
        if newest is None:
            return ()
        entries = await self._engine.next_entry(1)
        if entries[0].number != place.entry or is_batch_of_entry(newest, entries[0]):
            return entries
        await self._tell_loss(attached, place)
        raise OperatorError(
            "engine_lost",
            f"Entry {place.entry} of the engine's log of {self._journal.instance} isn't the one that this"
            f" member applied as record {newest.last_sequence}.",
            "The engine lost entries that its quorum had, and took others. Nothing is acknowledged. See"
            " `engine_lost` in docs/group.md.",
            engine=attached.last,
            applied=place.entry,
        )

    async def _tell_loss(self, attached: StreamInfo, place: LogPosition) -> None:
        """Send the newest applied entry to the other members, so that they can compare it with the log."""
        self.chain.mark_entry_applied(place.entry)
        addresses = self.addresses()
        status = self.members.encode_status(attached.generation, place.entry, 0, self.chain, 0, addresses)
        with suppress(LogServiceUnavailableError):
            await self._engine.publish_status(status)

    def _check_reach(self, attached: StreamInfo, applied: int, told: tuple[int, str]) -> None:
        """Check that the log has what the members applied, and what this member needs next.

        `told`: the newest entry that another member has applied, and that member.

        Raises:
            OperatorError: engine_lost or member_behind.
        """
        instance = self._journal.instance
        if attached.last < told[0] > applied:
            raise OperatorError(
                "engine_lost",
                f"The engine's log of {instance} ends with entry {attached.last}, and member {told[1]} has"
                f" applied {told[0]}.",
                "The engine lost entries that its quorum had. Nothing is acknowledged. See `engine_lost` in"
                " docs/group.md.",
                engine=attached.last,
                applied=told[0],
            )
        if attached.last < applied:
            raise OperatorError(
                "engine_lost",
                f"The engine's log of {instance} ends with entry {attached.last}, and this "
                f"member has applied {applied}.",
                "The engine lost entries that its quorum had. Nothing is acknowledged. See "
                "`engine_lost` in docs/group.md.",
                engine=attached.last,
                applied=applied,
            )
        if attached.first > applied + 1:
            raise OperatorError(
                "member_behind",
                f"The engine's log of {instance} begins with entry {attached.first}, and this "
                f"member needs {applied + 1}.",
                "Stop it, and give it another member's journal: `manage.py replication reseed "
                "--from DIRECTORY`.",
                engine=attached.first,
                applied=applied,
            )

    def _is_away(self, why: str, *, has_server: bool) -> None:
        """Record that the log service can't be used.

        `has_server`: a server is connected and doesn't answer, so the quorum is missing.
        """
        if self.away is None or self.away.sentence != why:
            log.warning("engine_away", why=why)
        self._detach(
            OperatorError(
                "no_quorum" if has_server else "engine_away",
                why,
                "Start the servers of the log service that are missing (SLUICE_GROUP_ENGINES);"
                " the member goes on automatically. See docs/group.md.",
            )
        )

    def _is_troubled(self, problem: OperatorError) -> None:
        """Record a problem that an operator must solve."""
        if self.trouble is None or self.trouble.code != problem.code:
            log.error("group_trouble", code=problem.code, why=problem.sentence, fix=problem.fix)
        self._detach(problem, trouble=problem)

    def _is_attached(self, attached: StreamInfo) -> None:
        """Record that the member is attached."""
        before, self.trouble, self.away = self.problem, None, None
        self._is_confirmed = False
        self._note_change(before)
        self._note_answer(attached)

    def _detach(self, away: OperatorError | JournalError, *, trouble: OperatorError | None = None) -> None:
        """Record that the member isn't attached, and why."""
        if self.attached is not None:
            self._away_since = self._clock.seconds()
        before, self.attached, self.away = self.problem, None, away
        self.trouble = trouble or self.trouble
        self._note_change(before)

    def _note_change(self, before: OperatorError | JournalError | None) -> None:
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
            self._sought_since = began_at if was_seeking else None
        elif is_seeking and before is None and not self._is_confirmed and self._sought_since is not None:
            self.state_since = self._sought_since

    def _note_answer(self, attached: StreamInfo) -> None:
        self.attached = attached
        self._end = max(self._end, attached.last)
        is_whole = attached.current >= attached.servers
        self.engines_since = None if is_whole else self.engines_since or self._clock.now_ns()

    # Appending.

    async def _send(self) -> None:
        """Append entries, one at a time. After a reconnect the append under way comes first."""
        while True:
            await self._waiting.wanted.wait()
            outgoing = self._appending.underway or self._waiting.next_outgoing(self._clock.seconds())
            if outgoing is None:
                # No await between the look-up and this: a batch added meanwhile would be missed.
                self._waiting.wanted.clear()
                continue
            await self._appending.append(outgoing)
            self._progress_at = self._clock.seconds()
            self._appending.on_appended(outgoing)

    # Reading and applying.

    async def _read(self, order: LogStateMachine, first: Sequence[LogEntry]) -> None:
        """Apply the entries in `first`, then read and apply all that follow."""
        while True:
            entries, first = first or await self._engine.next_entry(MAX_GROUP_BYTES), ()
            trouble = self.members.problems()
            if trouble is not None:
                raise trouble
            self._progress_at = self._clock.seconds()
            await shield_until_done(self._apply(order, entries))
            self._end = max(self._end, entries[-1].number + entries[-1].behind)
            await self._keep_chain_sometimes()

    async def _apply(self, order: LogStateMachine, entries: Sequence[LogEntry]) -> None:
        """Apply entries: stamp their new batches, write and sync them, then notify their owners.

        The caller shields this from cancellation, because a thread writes the journal meanwhile.
        """
        # Decode everything first: a damaged entry must not change the state.
        found = [(entry, own := self._own_of(entry), entry_batches(entry, own)) for entry in entries]
        before = self.chain.checkpoint
        group: list[PendingBatch[Owner]] = []
        refused: list[tuple[PendingBatch[Owner], Refusal]] = []
        reached: list[OutgoingEntry[Owner]] = []
        for entry, own, batches in found:
            if own is not None:
                self._waiting.mark_applying(own)
                if batches:
                    self._compare_clocks(batches[-1].accepted_at - entry.at)
            for number, batch in enumerate(batches):
                pending = own.batches[number] if own is not None else PendingBatch[Owner](batch)
                fresh = order.apply_batch(entry, number, batch)
                if isinstance(fresh, Refusal):
                    refused.append((pending, fresh))
                    continue
                pending.batch = fresh
                group.append(pending)
            order.mark_applied(entry)
            if own is not None:
                reached.append(own)
        # Commit before any answer: a repeat may be of a record in this very group.
        if group:
            await self._commit(before, group, reached)
        self.applied, self.applied_at = entries[-1].number, entries[-1].at
        self._synced.set()
        self.members.compare_journals(self.chain)
        self._hear_confirmed()
        for pending, why in refused:
            if why is Refusal.REPEATED:
                self._outlet.on_duplicate(pending)
            else:
                self._outlet.superseded(pending)
        for own in reached:
            self._waiting.remove_applied(own, self.chain.sequence)

    def _compare_clocks(self, ahead_ns: int) -> None:
        """Update the clock difference from an own entry.

        `ahead_ns`: accept time of the entry's last batch minus the log service's time. The last batch
        waited least; waiting makes a clock look as if it were behind.
        """
        off = abs(self.skew_ms) > SKEW_TOLD_MS
        self.skew_ms = ahead_ns // 1_000_000
        if abs(self.skew_ms) > SKEW_TOLD_MS and not off:
            log.warning("clock_off", ahead_s=round(self.skew_ms / 1_000, 1), fix="Set this machine's clock.")

    def _own_of(self, entry: LogEntry) -> OutgoingEntry[Owner] | None:
        """Return the pending entry of this process that came back as `entry`; None for other entries."""
        number = self._appending.entry_number(entry)
        return None if number is None else self._waiting.outgoing_of(number)

    async def _commit(
        self,
        before: tuple[int, bytes | None],
        group: list[PendingBatch[Owner]],
        reached: list[OutgoingEntry[Owner]],
    ) -> None:
        """Write and sync stamped batches, and pass them to the listener.

        On failure restore the state of before.
        """
        self._applying = True
        self._outlet.on_stamped(group)
        # Safe before the sync: the log service's order is final, so no crash gives these sequences to others.
        if self._outlet.shows_early:
            self._outlet.show(group, ())
        try:
            positions = await self._in_thread(self._write, [pending.batch for pending in group])
        except JournalError as problem:
            self.chain.rollback(before)
            self._waiting.unmark_applying(reached)
            self._fail(group, problem)
            raise
        finally:
            self._applying = False
        # Invariant of every acknowledgement: it follows the sync.
        assert group[-1].batch.last_sequence <= self._journal.durable_sequence
        self._outlet.on_durable(group, positions)

    def _write(self, batches: Sequence[Batch]) -> list[BatchPosition]:
        positions = self._journal.write(batches)
        self._journal.sync()
        return positions

    # Status messages and notices.

    async def _tell(self) -> None:
        """Send status messages, and check the log service's state after every SAMPLES of them."""
        told: dict[int, tuple[int, str]] = {}
        while True:
            if self.attached is not None:
                found = await self._engine.stream_info()
                if found.last < told.get(found.generation, (0, ""))[0]:
                    raise LogServiceUnavailableError("another member has applied more than the log has")
                self._note_answer(found)
            # For the next look: a server that leads may have an entry some moments after one that follows.
            told = self.members.newest_applied()
            again = self._clock.seconds() + SAMPLES * TELL_S
            while self._clock.seconds() < again:
                self._synced.clear()
                generation = self.attached.generation if self.attached is not None else 0
                await self._engine.publish_status(self._said(generation))
                await self._until_told_again()

    def _said(self, generation: int) -> bytes:
        """Return the status message of this member."""
        return self.members.encode_status(
            generation, self.applied, self.behind, self.chain, self.applied_at, self.addresses()
        )

    async def _until_told_again(self) -> None:
        """Wait until the next status message is due."""
        if not self.confirmations.is_required:
            await asyncio.sleep(TELL_S)
            return
        await asyncio.sleep(TELL_AT_MOST_S)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._synced.wait(), TELL_S)

    async def _send_notices(self) -> None:
        """Send the notices of this member when there are any."""
        notices = self.notices
        if notices is None:
            await asyncio.Event().wait()  # `wait_first_failure` expects tasks that don't return
            return
        notices.send_all()
        while True:
            await notices.wanted.wait()
            await asyncio.sleep(NOTICES_GATHER_S)
            while (message := notices.next_message()) is not None:
                await self._engine.publish_status(message)

    def _heard(self, content: bytes) -> None:
        """Process a status message or notices of a member."""
        if content.startswith(b"["):
            if self.notices is not None:
                self.notices.receive(content)
            return
        self.members.on_status(content, self._clock.seconds())
        self.members.compare_journals(self.chain)
        self._hear_confirmed()
        trouble = self.members.problems()
        if trouble is not None:
            self._is_troubled(trouble)
        elif self.trouble is not None and self.trouble.code == "replica_diverged":
            before, self.trouble = self.trouble, None
            self._note_change(before)

    # Time limits and failures.

    async def _look(self) -> None:
        """Fail pending batches that have waited too long, without end.

        The limit is `hold_ms` without progress. While the member is in trouble, they fail immediately.
        """
        now = self._clock.seconds()
        while True:
            before = now
            await asyncio.sleep(CHECK_INTERVAL_S)
            now, hold = self._clock.seconds(), self._settings.hold_s
            if now - before > STOOD_STILL_S:
                # the process stood still: answers of the log service wait in the socket
                self._progress_at = now
            since = self._waiting.oldest_since()
            if self._applying or since is None:
                continue
            if self.trouble is not None:
                self._fail([], _no_quorum(self.trouble.sentence))
            elif now - since > hold and now - self._progress_at > hold:
                why = self.away.sentence if self.away is not None else "no entry was taken"
                self._fail([], _no_quorum(why))

    def _fail(self, stamped: list[PendingBatch[Owner]], error: JournalError) -> None:
        """Fail all pending batches with `error`. As far as is known, none of them is stored.

        `stamped`: batches that were being written; other members' may be among them.
        """
        waiting, nbytes = self._waiting.abandon_all()
        self._appending.underway = None
        own = {id(one) for one in waiting}
        if waiting or stamped:
            log.warning("publishes_refused", batches=len(waiting), code=error.code, why=error.sentence)
            self._outlet.on_failed([*(one for one in stamped if id(one) not in own), *waiting], error)
        self._waiting.release(len(waiting), nbytes)

    def _break(self, problem: Exception) -> None:
        """Report an unexpected exception as a broken log, which ends the process."""
        if isinstance(problem, JournalError):
            error = problem
        else:
            log.error("group_failed", exc_info=problem)
            error = JournalError(
                "journal_failed", f"The log failed unforeseen: {problem!r}.", "See the broker's log."
            )
        self._journal.failure = self._journal.failure or error
        self._fail([], error)
        self._outlet.on_log_broken(error)

    # The chain on disk.

    async def _keep_chain_sometimes(self) -> None:
        """Store the chain every CHAIN_RETENTION_S."""
        now = self._clock.seconds()
        if now - self._chain_kept_at > CHAIN_RETENTION_S:
            self._chain_kept_at = now
            with suppress(OSError):  # a missing file only slows the next start
                await shield_until_done(self._in_thread(self._keep_chain))

    def _keep_chain(self) -> None:
        sequence, value = self.chain.checkpoint
        if value is not None and sequence != self._chain_kept:
            path = chain_path(self._journal.directory, self._journal.instance)
            write_chain(self._journal.files, path, sequence, value)
            self._chain_kept = sequence

    async def _in_thread(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run a function in the journal's thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, partial(work, *arguments, **named)
        )


def _is_seeking(problem: OperatorError | JournalError | None) -> bool:
    return problem is not None and problem.code in SEEKING


def _no_quorum(why: str) -> JournalError:
    return JournalError(
        "no_quorum",
        f"The group's log takes nothing from this member: {why}.".replace("..", "."),
        "Publish through another member, or again later; the client library does both.",
    )
