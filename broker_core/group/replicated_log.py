"""The log of a group's member: a `CommitLog` whose order is made by an engine, and whose disk is the member's own journal.

    append ─▶ gathered ─▶ one entry of the engine's log at a time ─▶ committed by its quorum
                                                                            │
    applied ◀── own journal, synced ◀── Order: repeats out, stamped ◀── read by every member, in the one order

Batches come out at the outlet when they are in this member's journal and synced; whoever waits for one here was the one to
append it. What is read of the engine has been committed by its quorum: so coming out means both, and `persisted` can be said.

One entry is under way at a time: what comes meanwhile gathers, and the next entry carries it all. With several, one that fails
could be overtaken by a later one of the same publisher, whose records would then shut its own out.

What happens when something is away:

* No entry is taken for `hold_ms`: everything that waits fails with `no_quorum`. An entry that was sent may still get into
  the log; its records then come out for nobody, and what their publisher sends again is known by its numbers.
* The connection, the reader or the quorum fails: attached anew from where the journal is, again and again.
* What can't get better by itself (another log, another process with this member's name, a journal that differs from the others')
  is `trouble`: nothing is taken or applied, and it is looked at again every few seconds. Reading what is there goes on.
* The own disk is full: those who wait here fail, and the same entries are applied again when there is room. Any other failure of
  the disk ends the process, as it does for a broker by itself.
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
    JournalEnd,
    LogPosition,
    LogStateMachine,
    applied_position,
    journal_end,
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
"""How often it is looked whether what waits has waited too long."""
RETRY_S: Final = 0.25
TELL_S: Final = 0.25
NOTICES_GATHER_S: Final = 0.02
"""Logons of so long go into one message."""
TELL_AT_MOST_S: Final = 0.005
"""Where others wait for what this member has synced, it is told at once, but not more often."""
SAMPLES: Final = 8
"""Of so many times that it is told, the engine is looked at once."""
TROUBLE_RETRY_S: Final = 5.0
CONFIRM_S: Final = 2.0
"""Time between two answers that say that the log was lost. A deposed leader knows of its successor by then."""
SEEKING: Final = ("engine_away", "no_quorum")
"""Codes of a member that looks for its log service, or for a majority of it."""
NOT_ASKED: Final = OperatorError(
    "engine_away", "the engine hasn't been asked yet", "Wait; if this lasts, see the broker's log."
)
SKEW_TOLD_MS: Final = 10_000
CHAIN_RETENTION_S: Final = 10.0
"""How often the chain is stored: what the journal has behind it is read again at a start."""


class ReplicatedLog(Generic[Owner]):
    """See the module. Satisfies `CommitLog`. `start` it on the loop; before, what is appended waits."""

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
        """`may_begin`: whether a journal without records may make the log where the log service has none."""
        self._may_begin = may_begin
        self._journal, self._outlet, self._clock = journal, outlet, clock
        self._engine, self._settings = engine, settings
        self._thread = ThreadPoolExecutor(1, "journal")
        self.run_id = uuid4().hex
        """This process, among those that may bear the member's name."""
        self.trouble: OperatorError | None = None
        """Why this member takes no part, where that doesn't mend itself."""
        self.away: OperatorError | JournalError | None = NOT_ASKED
        """Why it isn't attached; None while it is."""
        self.state_since = clock.now_ns()
        """When this member began to take part, or stopped for the reason of `problem`, ns UTC."""
        self._sought_since: int | None = None
        """Since when the log service was sought before this attachment, ns UTC; None: another reason ended."""
        self.engines_since: int | None = None
        """Since when not every server of the engine is up to date, ns UTC; None while all are."""
        self._end = 0
        """The log's newest entry, as far as was read or answered."""
        self.started_at = self._away_since = clock.seconds()
        self.attached: StreamInfo | None = None
        self.skew_ms = 0
        """How far this machine's clock is ahead of the engine's, as its last own entry shows."""
        self.chain = HashChain(0, None)
        self.applied = 0
        """The newest entry that is applied here whole."""
        self.applied_at = 0
        """When the engine had taken it, ns by its clock; 0 before one was read."""
        self.members = PeerTable(settings, self.run_id)
        self.confirmations = confirmations
        confirmations.unheard = self._unheard
        self.on_attached: Callable[[StreamInfo], None] = lambda _: None
        """The engine's log was found; set by whoever runs the broker."""
        self._is_confirmed = False
        """Whether the end of the log was read with confirmation in this attachment, or the last one."""
        self.on_current: Callable[[], None] = lambda: None
        """The member has caught up after it attached; set by whoever runs the broker."""
        self.addresses: Callable[[], dict[str, str]] = dict
        """Where clients find this member, by transport; set by whoever runs the broker."""
        self.notices: NoticeExchange | None = None
        """What members send each other of their clients; set by whoever runs the broker."""
        self._synced = asyncio.Event()
        """Something was, and hasn't been told."""
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
        """Entries of the log that this member hasn't applied, as far as it was read or answered."""
        return max(self._end - self.applied, 0)

    # In: what `CommitLog` offers.

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
            # The moment goes with the batch; the rest of the stamp is made where it is applied.
            pending.batch.stamp(origin=self._journal.origin, epoch=0, first_sequence=0, accepted_at=at)
        self._waiting.add(batches, self._clock.seconds())

    async def barrier(self) -> None:
        await self._waiting.barrier()

    async def wait_caught_up(self) -> int | None:
        """Read the end of the log with the engine's confirmation.

        Waits until everything that any member has acknowledged before is applied here: `hold_ms` at most, and
        not at all when the engine has been away for longer. Returns the newest record then, or None when
        nothing could be confirmed.
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

    # Who is waited for.

    def _unheard(self) -> list[str]:
        """Without the engine nothing is heard of any member; nothing is held against them then."""
        return self.confirmations.members if self.attached is None else []

    def _hear_confirmed(self) -> None:
        for name, other in self.members.others.items():
            if (
                other.proved > self.confirmations.confirming.confirmed_sequence_of(name)
                or other.alike is None
            ):
                self.confirmations.on_peer_confirmed(name, other.proved)

    def start(self) -> None:
        """Begin to take part."""
        for work in (self._take_part(), self._look()):
            task = asyncio.get_running_loop().create_task(self._unforeseen(work), name="group")
            self._tasks.append(task)

    async def close(self) -> None:
        """What waits for the engine is waited for as long as publishes are held. The journal isn't closed here."""
        if self._tasks and not any(task.done() for task in self._tasks):
            await self.barrier()
        await cancel_and_wait(
            self._tasks, 2.0
        )  # what they have to finish, a write of the journal, isn't to be cut off by the second time
        self._fail([], _no_quorum("the broker is being stopped"))
        await self._engine.close()
        if self._journal.failure is None:
            with suppress(OSError):
                self._keep_chain()
        self._thread.shutdown(wait=True)

    async def _unforeseen(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as problem:
            self._break(problem)

    # Taking part.

    async def _take_part(self) -> None:
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
                # No room: those who wait here have been told, and the same is applied again.
                log.warning("group_waits_for_room", why=problem.sentence)
                self._detach(problem)
                await asyncio.sleep(1.0)

    async def _attend(self) -> None:
        attached, place = await self._find(journal_end(self._journal))
        await self._appending.open()
        order = LogStateMachine(self._journal, attached.generation, place, self.chain)
        self.applied, self._end = order.applied_entry, attached.last
        await self._engine.read_from(order.applied_entry + 1)
        await self._engine.publish_status(self._said())
        if (trouble := self.members.problems()) is not None:
            raise trouble
        self._is_attached(attached)
        self.on_attached(attached)
        log.info("group_attached", applied=order.applied_entry, last=attached.last, leader=attached.leader)
        await wait_first_failure(
            self._tell(), self._send(), self._read(order), self._confirm(), self._send_notices()
        )

    async def _confirm(self) -> None:
        """Read the end of the log once in each attachment, and tell whoever waits for that."""
        while True:
            if await self._waiting.request_catch_up() is not None:
                break
            await asyncio.sleep(RETRY_S)
        self._is_confirmed = True
        self.on_current()
        await asyncio.Event().wait()  # works of an attachment end with it

    async def _find(self, standing: JournalEnd) -> tuple[StreamInfo, LogPosition]:
        """Return the engine's log, and how far this journal has applied it. OperatorError if it's another.

        A loss is believed when a second answer says so: of another server, and of a leader with a majority.
        One answer may come from a deposed leader, or from a server that doesn't know its log yet.
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
        self._check_reach(attached, place.entry)
        return attached, place

    def _check_identity(self, attached: StreamInfo) -> None:
        instance = self._journal.instance
        if attached.log != self._journal.identity:
            raise OperatorError(
                "engine_lost",
                f"The engine's log of {instance} is {attached.log}, and this member's journal is of {self._journal.identity}.",
                "Name the engines of its own group (SLUICE_GROUP_ENGINES). If this member is to join that one: `manage.py replication"
                " reseed`, which moves its files aside.",
                engine=str(attached.log),
                journal=str(self._journal.identity),
            )

    def _check_reach(self, attached: StreamInfo, applied: int) -> None:
        instance = self._journal.instance
        if attached.last < applied:
            raise OperatorError(
                "engine_lost",
                f"The engine's log of {instance} ends with entry {attached.last}, and this member has applied {applied}.",
                "The engine lost entries that its quorum had. Nothing is acknowledged. See `engine_lost` in docs/group.md.",
                engine=attached.last,
                applied=applied,
            )
        if attached.first > applied + 1:
            raise OperatorError(
                "member_behind",
                f"The engine's log of {instance} begins with entry {attached.first}, and this member needs {applied + 1}.",
                "Stop it, and give it another member's journal: `manage.py replication reseed --from DIRECTORY`.",
                engine=attached.first,
                applied=applied,
            )

    def _is_away(self, why: str, *, has_server: bool) -> None:
        """`has_server`: a server is connected, and its answer is missing: there is no quorum."""
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
        if self.trouble is None or self.trouble.code != problem.code:
            log.error("group_trouble", code=problem.code, why=problem.sentence, fix=problem.fix)
        self._detach(problem, trouble=problem)

    def _is_attached(self, attached: StreamInfo) -> None:
        before, self.trouble, self.away = self.problem, None, None
        self._is_confirmed = False
        self._note_change(before)
        self._note_answer(attached)

    def _detach(self, away: OperatorError | JournalError, *, trouble: OperatorError | None = None) -> None:
        if self.attached is not None:
            self._away_since = self._clock.seconds()
        before, self.attached, self.away = self.problem, None, away
        self.trouble = trouble or self.trouble
        self._note_change(before)

    def _note_change(self, before: OperatorError | JournalError | None) -> None:
        """Date the state. It goes on while a member looks for its log service in vain.

        The codes of such a time change with each attempt. An attachment that ends before the end of the log
        was read with confirmation belongs to that time too.
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

    # Out to the engine.

    async def _send(self) -> None:
        while True:
            await self._waiting.wanted.wait()
            outgoing = self._appending.underway or self._waiting.next_outgoing(self._clock.seconds())
            if outgoing is None:
                self._waiting.wanted.clear()
                continue
            await self._appending.append(outgoing)
            self._progress_at = self._clock.seconds()
            self._appending.on_appended(outgoing)

    # In from the engine.

    async def _read(self, order: LogStateMachine) -> None:
        while True:
            entries = await self._engine.next_entry(MAX_GROUP_BYTES)
            trouble = self.members.problems()
            if trouble is not None:
                raise trouble
            self._progress_at = self._clock.seconds()
            await shield_until_done(self._apply(order, entries))
            self._end = max(self._end, entries[-1].number + entries[-1].behind)
            await self._keep_chain_sometimes()

    async def _apply(self, order: LogStateMachine, entries: Sequence[LogEntry]) -> None:
        # Before anything is taken: what is wrong with one leaves the state as it was.
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
        """Of an entry's last batch, which waited least. Waiting makes a clock look as if it were behind."""
        off = abs(self.skew_ms) > SKEW_TOLD_MS
        self.skew_ms = ahead_ns // 1_000_000
        if abs(self.skew_ms) > SKEW_TOLD_MS and not off:
            log.warning("clock_off", ahead_s=round(self.skew_ms / 1_000, 1), fix="Set this machine's clock.")

    def _own_of(self, entry: LogEntry) -> OutgoingEntry[Owner] | None:
        """What this process appended, if somebody still waits for it."""
        number = self._appending.entry_number(entry)
        return None if number is None else self._waiting.outgoing_of(number)

    async def _commit(
        self,
        before: tuple[int, bytes | None],
        group: list[PendingBatch[Owner]],
        reached: list[OutgoingEntry[Owner]],
    ) -> None:
        self._applying = True
        self._outlet.on_stamped(group)
        if (
            self._outlet.shows_early
        ):  # the engine's order stands: no crash gives these numbers to other records
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
        # The law of every acknowledgement.
        assert group[-1].batch.last_sequence <= self._journal.durable_sequence
        self._outlet.on_durable(group, positions)

    def _write(self, batches: Sequence[Batch]) -> list[BatchPosition]:
        positions = self._journal.write(batches)
        self._journal.sync()
        return positions

    # What members say of themselves.

    async def _tell(self) -> None:
        while True:
            if self.attached is not None:
                self._note_answer(await self._engine.stream_info())
            again = self._clock.seconds() + SAMPLES * TELL_S
            while self._clock.seconds() < again:
                self._synced.clear()
                await self._engine.publish_status(self._said())
                await self._until_told_again()

    def _said(self) -> bytes:
        return self.members.encode_status(
            self.applied, self.behind, self.chain, self.applied_at, self.addresses()
        )

    async def _until_told_again(self) -> None:
        if not self.confirmations.is_required:
            await asyncio.sleep(TELL_S)
            return
        await asyncio.sleep(TELL_AT_MOST_S)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._synced.wait(), TELL_S)

    async def _send_notices(self) -> None:
        notices = self.notices
        if notices is None:
            await asyncio.Event().wait()  # it must not end before the others
            return
        notices.send_all()
        while True:
            await notices.wanted.wait()
            await asyncio.sleep(NOTICES_GATHER_S)
            while (message := notices.next_message()) is not None:
                await self._engine.publish_status(message)

    def _heard(self, content: bytes) -> None:
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

    # What has waited too long, and what can't be.

    async def _look(self) -> None:
        now = self._clock.seconds()
        while True:
            before = now
            await asyncio.sleep(CHECK_INTERVAL_S)
            now, hold = self._clock.seconds(), self._settings.hold_s
            if now - before > STOOD_STILL_S:
                self._progress_at = now  # what the engine took meanwhile waits in the socket
            since = self._waiting.oldest_since()
            if self._applying or since is None:
                continue
            if self.trouble is not None:
                self._fail([], _no_quorum(self.trouble.sentence))
            elif now - since > hold and now - self._progress_at > hold:
                why = self.away.sentence if self.away is not None else "no entry was taken"
                self._fail([], _no_quorum(why))

    def _fail(self, stamped: list[PendingBatch[Owner]], error: JournalError) -> None:
        """Nothing that waits here is stored, as far as can be said. `stamped` was being written, and others' may be among it."""
        waiting, nbytes = self._waiting.abandon_all()
        self._appending.underway = None
        own = {id(one) for one in waiting}
        if waiting or stamped:
            log.warning("publishes_refused", batches=len(waiting), code=error.code, why=error.sentence)
            self._outlet.on_failed([*(one for one in stamped if id(one) not in own), *waiting], error)
        self._waiting.release(len(waiting), nbytes)

    def _break(self, problem: Exception) -> None:
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
        now = self._clock.seconds()
        if now - self._chain_kept_at > CHAIN_RETENTION_S:
            self._chain_kept_at = now
            with suppress(OSError):  # only costs the next start some time
                await shield_until_done(self._in_thread(self._keep_chain))

    def _keep_chain(self) -> None:
        sequence, value = self.chain.checkpoint
        if value is not None and sequence != self._chain_kept:
            path = chain_path(self._journal.directory, self._journal.instance)
            write_chain(self._journal.files, path, sequence, value)
            self._chain_kept = sequence

    async def _in_thread(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
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
