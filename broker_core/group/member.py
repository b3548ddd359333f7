"""One member of a group, for whoever runs a broker: how its log is made, and what it says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import structlog

from broker_core.clock import Clock
from broker_core.confirming.confirmations import Confirmations
from broker_core.documents.group import GroupStatus
from broker_core.errors import OperatorError
from broker_core.group.ports import EngineAwayError, EngineLog, NoticeExchange
from broker_core.group.replicated_log import SKEW_TOLD_MS, ReplicatedLog
from broker_core.group.settings import GroupSettings
from broker_core.group.status import status_of
from broker_core.journal.commit_log import CommitLog, Outlet, Owner
from broker_core.journal.frontier import Known, read_mark
from broker_core.journal.journal import Journal
from broker_core.journal.segment import discover

log = structlog.get_logger("sluice.group")
RETRY_S: Final = 1.0


class Member:
    """Makes the log of a broker that belongs to a group."""

    def __init__(self, settings: GroupSettings, engine: EngineLog) -> None:
        self.settings = settings
        self._engine = engine
        self._log: ReplicatedLog[Any] | None = None
        self._clock: Clock | None = None
        self._confirmations: Confirmations | None = None

    def confirms_with(self, confirmations: Confirmations) -> None:
        """Where the others' words go: the broker's one waiting."""
        self._confirmations = confirmations

    async def identity(self, directory: Path, archive: Path | None) -> Known | None:
        """Which log a member that has none yet is to begin with: the group's. None for one that has its own.

        Waits for the engine as long as it takes. OperatorError wrong_stream.
        """
        instance = self.settings.instance
        if read_mark(directory, instance) is not None or discover(directory, instance, archive):
            return None
        offered, why = uuid4(), ""
        while True:
            try:
                found = await self._engine.attach(offered)
            except EngineAwayError as problem:
                if why != str(problem):
                    why = str(problem)
                    log.warning("engine_away", why=why, member=self.settings.member)
                await asyncio.sleep(RETRY_S)
            else:
                return Known(found.log, 0)

    def log(self, journal: Journal, outlet: Outlet[Owner], clock: Clock) -> CommitLog[Owner]:
        """The log, to be started. `confirms_with` comes first."""
        assert self._confirmations is not None
        self._log = made = ReplicatedLog(
            journal, outlet, clock, self._engine, self.settings, self._confirmations
        )
        self._clock = clock
        return made

    def start(self) -> None:
        """Begin to take part."""
        self._made.start()

    @property
    def is_current(self) -> bool:
        """Whether it is attached, and has applied all that the engine had when it last said so."""
        return self._made.attached is not None and self._made.behind == 0

    async def caught_up(self) -> None:
        """Wait until everything that was acknowledged anywhere before is applied here, as far as that can be."""
        await self._made.caught_up()

    @property
    def run(self) -> str:
        """This process, among all that append."""
        return self._made.run

    def on_key(self, told: Callable[[bytes], None]) -> None:
        """Call this with the secret that all members have, when the engine has told it."""
        self._made.on_attached = lambda attached: told(attached.key)

    def now_ns(self) -> int:
        """Return this machine's time, corrected by the log service's where it is off by more than SKEW_TOLD_MS."""
        assert self._clock is not None
        skew_ms = self._made.skew_ms
        return self._clock.now_ns() - (skew_ms * 1_000_000 if abs(skew_ms) > SKEW_TOLD_MS else 0)

    def exchange(self, notices: NoticeExchange) -> None:
        """Exchange these with the other members."""
        self._made.notices = notices

    def status(self) -> GroupStatus:
        """How this member sees its group."""
        assert self._clock is not None
        return status_of(self._made, self.settings, self._clock.seconds())

    @property
    def _made(self) -> ReplicatedLog[Any]:
        assert self._log is not None, "`log` comes first"
        return self._log


def engine_of(settings: GroupSettings) -> EngineLog:
    """The engine as the settings name it. OperatorError group_not_installed."""
    try:
        from broker_core.group.jetstream import JetStream
    except ImportError:
        raise OperatorError(
            "group_not_installed",
            "SLUICE_GROUP_ENGINES names engines, and nats-py isn't installed.",
            "Install requirements-group.txt, or unset it.",
        ) from None
    return JetStream(settings)


def member_of(settings: GroupSettings | None) -> Member | None:
    """A member as the settings say; None for a broker by itself. OperatorError group_not_installed."""
    return None if settings is None else Member(settings, engine_of(settings))
