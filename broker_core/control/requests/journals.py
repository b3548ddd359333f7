"""Requests about the journal: its segments, actions on them, and messages in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from broker_core.control import browsing
from broker_core.documents import requests
from broker_core.documents.journals import (
    BrowsedPage,
    JournalAction,
    JournalPlan,
    PlannedSegment,
    RemovalReply,
    SegmentEntry,
    SwapReply,
)
from broker_core.engine.engine import Engine
from broker_core.errors import OperatorError
from broker_core.journal import retention
from broker_core.journal.open_segments import Pin
from broker_core.journal.reader_leases import read_leases


class JournalRequests:
    """Handlers of requests about the journal. Work on files happens in threads."""

    def __init__(self, engine: Engine, archive: Path) -> None:
        self._engine = engine
        self._archive = archive
        # One swap at a time: each is several steps on the same directory.
        self._swapping = asyncio.Lock()

    async def journals(self, request: requests.ListJournals) -> list[SegmentEntry]:
        """Return all segments of the journal, each with the owners of the pins that retain it."""
        journal = self._engine.journal
        pins = self._list_pins()
        return [
            SegmentEntry(
                name=segment.name,
                path=str(segment.path),
                state=segment.state,
                compressed=segment.compressed,
                first_sequence=segment.first_sequence,
                last_sequence=segment.last_sequence,
                first_at=segment.first_at,
                last_at=segment.last_at,
                bytes=segment.nbytes,
                records=segment.records,
                pinned_by=[pin.owner for pin in pins if pin.sequence <= segment.last_sequence],
            )
            for segment in journal.segments()
        ]

    async def plan(self, request: requests.PlanJournals) -> JournalPlan:
        """Return the segments that an action would process, and why others are skipped."""
        plan = self._plan(request.action, request.age_s)
        return JournalPlan(
            action=request.action,
            chosen=[segment.name for segment in plan.chosen],
            segments=[
                PlannedSegment(
                    name=segment.name,
                    path=str(segment.path),
                    bytes=segment.nbytes,
                    records=segment.records,
                    first_sequence=segment.first_sequence,
                    last_sequence=segment.last_sequence,
                )
                for segment in plan.chosen
            ],
            skipped=plan.skipped,
            bytes=plan.nbytes,
            archive_directory=str(self._archive),
        )

    async def swap(self, request: requests.SwapJournal) -> SwapReply:
        """Replace a segment by a prepared file: its archived or compressed form.

        Raises:
            JournalError, OperatorError: See `Journal.archive_swap` and `Journal.compress_swap`.
        """
        journal = self._engine.journal
        swap = {"archive": journal.archive_swap, "compress": journal.compress_swap}[request.action]
        async with self._swapping:
            await asyncio.to_thread(swap, request.name, Path(request.prepared))
        return SwapReply(name=request.name, action=request.action)

    async def remove(self, request: requests.RemoveJournals) -> RemovalReply:
        """Remove segments permanently.

        Raises:
            OperatorError: journal_in_use, when a segment is pinned or may not be removed yet.
        """
        async with self._swapping:
            # Plan again: a replay may have started since the caller's plan.
            plan = self._plan("remove", request.age_s)
            allowed = {segment.name for segment in plan.chosen}
            refused = [name for name in request.names if name not in allowed]
            if refused:
                reasons = {skipped.name: skipped.why for skipped in plan.skipped}
                raise OperatorError(
                    "journal_in_use",
                    f"{refused[0]} can't be removed: {reasons.get(refused[0], 'unknown')}.",
                    "Plan again.",
                    refused=refused,
                )
            now = self._engine.clock.now_ns()
            return await asyncio.to_thread(self._engine.journal.remove, request.names, now)

    async def browse(self, request: requests.BrowseMessages) -> BrowsedPage:
        """Return messages of a topic.

        A page is complete only where the end of the log could be read with confirmation.

        Raises:
            ClientError: bad_pattern, bad_filter or bad_bookmark.
            JournalError: bookmark_gone.
        """
        engine = self._engine
        query = browsing.parse_browse_request(engine.journal, request, engine.dispatch.topics.decoder_of)
        behind = await engine.frontier.confirm() is None
        page = await asyncio.to_thread(
            browsing.browse_messages, engine.journal, engine.instance, query, engine.frontier.durable
        )
        return (
            msgspec.structs.replace(page, complete=False, behind=True) if behind and page.complete else page
        )

    def _plan(self, action: JournalAction, age_s: float) -> retention.RetentionPlan:
        """Return the plan of an action on segments older than `age_s`."""
        now, journal = self._engine.clock.now_ns(), self._engine.journal
        return retention.plan_retention(
            action, journal.segments(), now - int(age_s * 1e9), self._list_pins(), now
        )

    def _list_pins(self) -> list[Pin]:
        """Return the pins of this process and the leases of other processes."""
        journal, clock = self._engine.journal, self._engine.clock
        return [*journal.pins(), *read_leases(journal.directory, self._engine.instance, clock.now_ns())]
