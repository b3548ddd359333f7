"""What a member appends: under its own name, one entry at a time, each behind the one before it.

Each is appended on condition that the newest of this name is the one that this process takes for it. So an entry whose answer was
lost is found in the log instead of being sent twice, and of two processes with one name only the later one appends: the other is
fenced.
"""

from __future__ import annotations

import asyncio
from typing import Final, Generic

from broker_core.errors import OperatorError
from broker_core.group.ports import EngineLog, Entry, OutrunError, Sender
from broker_core.group.waiting import Outgoing
from broker_core.journal.commit_log import Owner

AGAIN_S: Final = 0.1
"""An entry that was overtaken is tried again so soon."""


class Appending(Generic[Owner]):
    """`run` is this process, among those that may bear the member's name."""

    def __init__(self, engine: EngineLog, member: str, run: str) -> None:
        self._engine, self._member, self._run = engine, member, run
        self._newest: int | None = None
        """The place of this member's newest entry; None before this process has opened."""
        self.underway: Outgoing[Owner] | None = None

    async def open(self) -> None:
        """Append under this member's name from now on; an earlier process of that name can't any more. OperatorError member_fenced."""
        while True:
            newest = await self._engine.newest()
            if self._newest is not None:
                self._newest = self._own(newest)
                underway = self.underway
                if underway is not None and newest is not None and newest[1].number >= underway.number:
                    self.underway = None  # it is in the log: only its answer was lost
                return
            at = newest[0] if newest is not None else 0
            try:
                self._newest = await self._engine.append(self._sender(0), b"", at)
                return
            except OutrunError:
                continue

    async def append(self, outgoing: Outgoing[Owner]) -> None:
        """Until it is in the log. EngineAwayError; OperatorError member_fenced."""
        self.underway = outgoing
        while True:
            assert self._newest is not None
            try:
                self._newest = await self._engine.append(
                    self._sender(outgoing.number), outgoing.content, self._newest
                )
                break
            except OutrunError:
                # Its own answer was lost, or one that was given up came late: the newest entry says which.
                newest = await self._engine.newest()
                self._newest = self._own(newest)
                if newest is not None and newest[1].number >= outgoing.number:
                    break
                await asyncio.sleep(AGAIN_S)

    def done(self, outgoing: Outgoing[Owner]) -> None:
        """It is in the log. It may have been given up meanwhile, and another be under way."""
        if self.underway is outgoing:
            self.underway = None

    def number_of(self, entry: Entry) -> int | None:
        """Which of this process's entries this is; None for another's. OperatorError member_fenced when a later process of this name
        appended it."""
        sender = entry.sender
        if sender.member != self._member:
            return None
        if sender.run != self._run:
            # Of an earlier process, unless it came after this one had opened.
            if self._newest is not None and entry.number > self._newest:
                self._own((entry.number, sender))
            return None
        return sender.number

    def _own(self, newest: tuple[int, Sender] | None) -> int:
        if newest is None:
            return 0
        if newest[1].run != self._run:
            raise OperatorError(
                "member_fenced",
                f"Another process has joined the group as {self._member}, after this one.",
                "Stop one of the two, or give it a name of its own (SLUICE_GROUP_MEMBER).",
            )
        return newest[0]

    def _sender(self, number: int) -> Sender:
        return Sender(self._member, self._run, number)
