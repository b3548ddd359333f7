"""A member of a group, as the broker uses it: creates the member's log and reports its status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import structlog

from broker_core.clock import Clock
from broker_core.documents.replication import GroupStatus
from broker_core.errors import OperatorError
from broker_core.group.engine_log import LogServiceUnavailableError, NoticeExchange, SharedLog
from broker_core.group.group_status import MEMBER_TIMEOUT_S, group_status
from broker_core.group.replicated_log import MAX_SKEW_MS, ReplicatedLog
from broker_core.group.settings import GroupSettings
from broker_core.journal.commit_log import CommitListener, CommitLog, LogGeneration, Owner
from broker_core.journal.frontier_file import KnownLog, read_mark
from broker_core.journal.journal import Journal
from broker_core.journal.segment import find_segment_files
from broker_core.sync_replication.sync_replication import SyncReplication

log = structlog.get_logger("sluice.group")
RETRY_INTERVAL_S: Final = 1.0
"""Seconds between attempts to reach the log service at start."""


class KnownGroup(NamedTuple):
    """Past of a group as the control plane knows it.

    All logs that members reported, and the newest record of any.
    """

    logs: frozenset[UUID] = frozenset()
    sequence: int = 0

    @classmethod
    def from_log(cls, known: KnownLog) -> KnownGroup:
        """Return the group's past as known from one log."""
        return cls(frozenset() if known.log is None else frozenset((known.log,)), known.sequence)


class GroupMember:
    """A member of a group. It creates the log of its broker.

    Call `set_sync_replication` and `create_log` before any other method except `find_log_identity`.
    """

    def __init__(self, settings: GroupSettings, log_service: SharedLog) -> None:
        self.settings = settings
        self._log_service = log_service
        self._log: ReplicatedLog[Any] | None = None
        self._known = KnownGroup()
        self._clock: Clock | None = None
        self._confirmations: SyncReplication | None = None

    def set_sync_replication(self, confirmations: SyncReplication) -> None:
        """Set the broker's sync replication, which receives the confirmations of other members."""
        self._confirmations = confirmations

    async def find_log_identity(
        self, directory: Path, archive: Path | None, known: KnownGroup | None = None
    ) -> KnownLog | None:
        """Return the group's log, with which a member without a journal begins; None if there is a journal.

        `known`: the past of the group; a group that has had records is never begun again. Waits for the log
        service without limit. Raises OperatorError wrong_stream, group_log_lost and group_log_other.
        """
        instance, self._known = self.settings.instance, known or KnownGroup()
        if read_mark(directory, instance) is not None or find_segment_files(directory, instance, archive):
            return None
        offered, reason = uuid4() if self._may_begin else None, ""
        while True:
            try:
                stream = await self._log_service.attach(offered)
            except LogServiceUnavailableError as problem:
                if reason != str(problem):
                    reason = str(problem)
                    log.warning("engine_away", why=reason, member=self.settings.member)
                await asyncio.sleep(RETRY_INTERVAL_S)
            except OperatorError as problem:
                if problem.code != "engine_lost":
                    raise
                await self._log_service.close()
                raise log_lost_error(instance, str(directory), self._known) from None
            else:
                if not self._may_begin and stream.log not in self._known.logs:
                    await self._log_service.close()
                    raise foreign_log_error(instance, stream.log, self._known)
                return KnownLog(stream.log, 0)

    @property
    def _may_begin(self) -> bool:
        """Whether the group is new as far as is known. Only then may this member create the log."""
        return self._known.sequence == 0

    def create_log(self, journal: Journal, outlet: CommitListener[Owner], clock: Clock) -> CommitLog[Owner]:
        """Create the member's log. `set_sync_replication` must have been called; `start` comes later."""
        assert self._confirmations is not None
        self._log = replicated_log = ReplicatedLog(
            journal, outlet, clock, self._log_service, self.settings, self._confirmations, self._may_begin
        )
        self._clock = clock
        return replicated_log

    def start(self) -> None:
        """Connect to the log service and begin to apply the log."""
        self._replicated_log.start()

    @property
    def is_current(self) -> bool:
        """Whether the member is attached, and has read the end of the log with confirmation since."""
        return self._replicated_log.is_current

    @property
    def log_generation(self) -> LogGeneration | None:
        """Generation of the log; None while the member isn't attached."""
        return self._replicated_log.log_generation

    async def wait_caught_up(self) -> int | None:
        """Read the end of the log with confirmation; return the newest record, None if nothing was confirmed.

        Waits `hold_ms` at most.
        """
        return await self._replicated_log.wait_caught_up()

    def addresses(self, transport: str) -> list[str]:
        """Return the addresses of the other members for a transport, as they reported them."""
        return self._replicated_log.members.addresses(transport)

    def on_current(self, callback: Callable[[], None]) -> None:
        """Register a callback for each time the member has caught up after it attached."""
        self._replicated_log.on_current = callback

    def set_address_source(self, addresses: Callable[[], dict[str, str]]) -> None:
        """Set the function that returns this member's addresses by transport. Other members receive them."""
        self._replicated_log.addresses = addresses

    @property
    def run_id(self) -> str:
        """Identifier of this process among all that append."""
        return self._replicated_log.run_id

    def on_shared_secret(self, callback: Callable[[bytes], None]) -> None:
        """Register a callback for the secret that all members share. It is called after each attach."""
        self._replicated_log.on_attached = lambda stream: callback(stream.key)

    def now_ns(self) -> int:
        """Return this machine's time, or the log service's if they differ by more than SKEW_TOLD_MS."""
        assert self._clock is not None
        skew_ms = self._replicated_log.skew_ms
        return self._clock.now_ns() - (skew_ms * 1_000_000 if abs(skew_ms) > MAX_SKEW_MS else 0)

    def set_notices(self, notices: NoticeExchange) -> None:
        """Set the notices to exchange with the other members."""
        self._replicated_log.notices = notices

    def forget(self, name: str) -> None:
        """Forget a member that was removed for good: don't report it, name it to clients or compare with it.

        Raises OperatorError unknown_member and member_in_use.
        """
        assert self._clock is not None
        if name in self._replicated_log.confirmations.members:
            raise OperatorError(
                "member_in_use",
                f"The policy lists {name} in sync_members.",
                "Remove it from sync_members first.",
            )
        self._replicated_log.members.forget(name, self._clock.seconds() - MEMBER_TIMEOUT_S)

    def status(self) -> GroupStatus:
        """Return the group's status as this member sees it."""
        assert self._clock is not None
        return group_status(
            self._replicated_log, self.settings, self._clock.seconds(), self._clock.now_ns() // 1_000_000
        )

    @property
    def _replicated_log(self) -> ReplicatedLog[Any]:
        assert self._log is not None, "`create_log` comes first"
        return self._log


def log_lost_error(instance: str, directory: str, known: KnownGroup) -> OperatorError:
    """Return the error for a group that lost its log, at a member without a journal."""
    return OperatorError(
        "group_log_lost",
        f"The log service has no log of {instance}, there is no journal in {directory},"
        f" and {known.sequence} records of {_format_logs(known)} are known.",
        "On the member with the most records: `manage.py replication init`; then `replication "
        "reseed` on the others. If no journal remains, restore a backup of one and do the "
        "same. If everything is lost and the group must start again: `manage.py replication "
        "init --empty`, which gives the sequences from 1 on to other records.",
        known=known.sequence,
    )


def foreign_log_error(instance: str, log: UUID, known: KnownGroup) -> OperatorError:
    """Return the error for a member without a journal whose log service has a foreign log."""
    return OperatorError(
        "group_log_other",
        f"The log service's log of {instance} is {log},"
        f" and the control plane knows {known.sequence} records of {_format_logs(known)}.",
        "Set SLUICE_GROUP_ENGINES to the log service of this group. To join that log instead: "
        "`manage.py replication join --yes`.",
        engine=str(log),
        known=known.sequence,
    )


def _format_logs(known: KnownGroup) -> str:
    logs = sorted(str(log) for log in known.logs)
    return f"log {', '.join(logs)}" if logs else "a log"


def connect_log_service(settings: GroupSettings) -> SharedLog:
    """Return the log service of the settings. Raises OperatorError group_not_installed."""
    try:
        from broker_core.group.jetstream import JetStreamLog
    except ImportError:
        raise OperatorError(
            "group_not_installed",
            "SLUICE_GROUP_ENGINES is set, but nats-py isn't installed.",
            "Install requirements-group.txt, or unset SLUICE_GROUP_ENGINES.",
        ) from None
    return JetStreamLog(settings)


def create_member(settings: GroupSettings | None) -> GroupMember | None:
    """Create a member from settings; None for a broker without a group.

    Raises OperatorError group_not_installed.
    """
    return None if settings is None else GroupMember(settings, connect_log_service(settings))
