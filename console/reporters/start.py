"""Orders for a broker's start, from the database or from the policy on the broker's disk.

The policy on disk is used while the database can't be read, or if the database lacks that policy.

A broker without either waits for the database. A default policy might admit clients that the operators'
policy refuses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
from django.db import Error

from broker_core.config import PolicyDocument
from broker_core.control.policy_file import PolicyFile, StoredPolicy
from broker_core.control.set_back import FIX, SetBack
from broker_core.documents.instance import DatabaseEntry
from broker_core.errors import OperatorError, SluiceError
from broker_core.group.member import KnownGroup
from broker_core.journal.frontier_file import KnownLog
from broker_core.journal.segment import find_segment_files
from broker_core.slow_clients.rules.rulebook import StagedRevision, parse_stage
from console.database_limits import database_error
from console.reporters.database_thread import DatabaseThread
from console.services.journal_directories import (
    JournalDirectories,
    default_directories,
    directories_to_open,
    elsewhere,
    known_group,
    known_log,
)
from console.services.policies import has_policy, policy_orders

START_TIMEOUT_S: Final = 15.0
"""Seconds that a start waits for the database before it uses the policy on disk."""
RETRY_DELAY_S: Final = 2.0
REPEAT_LOG_S: Final = 60.0
"""Interval of the log line of a broker that waits for the database."""
log = structlog.get_logger("sluice.start")


@dataclass(frozen=True, slots=True)
class StartOrders:
    """Policy, directories and known facts about the log for a start.

    `database` is the state of the database.
    """

    policy: PolicyDocument
    stage: StagedRevision | None
    directories: JournalDirectories
    known: KnownLog | None
    group: KnownGroup
    database: DatabaseEntry
    set_back: SetBack | None = None
    """Set if the database lacks the policy on disk, which then is in force."""


async def read_start_orders(
    instance: str,
    member: str,
    file: PolicyFile,
    thread: DatabaseThread,
    on_waiting: Callable[[OperatorError], None],
    timeout_s: float = START_TIMEOUT_S,
) -> StartOrders:
    """Read the orders from the database, or else from disk. Without either, wait for the database.

    Args:
        instance: Name of the instance.
        member: Name of the broker in its group, or "".
        file: File of the policy on disk.
        thread: Thread for calls into the database.
        on_waiting: Called once, when the wait begins.
        timeout_s: Seconds to wait for each read of the database.

    Raises:
        OperatorError: `journal_elsewhere` or `bad_policy`.
    """
    stored, damage = await asyncio.to_thread(_load, file)
    waiting_since = logged_at = 0.0
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                return await thread.run(_from_database, instance, member, stored)
        except (Error, TimeoutError) as problem:
            away = _named(problem, timeout_s)
        if stored is not None:
            log.error(
                "policy_from_disk",
                revision=stored.revision,
                stored_at=stored.stored_at,
                file=str(file.path),
                code=away.code,
                why=away.sentence,
                fix=away.fix,
            )
            return _from_disk(stored, away)
        now = time.monotonic()
        if not waiting_since:
            waiting_since = now
            on_waiting(_unavailable(instance, away, damage))
        if not logged_at or now - logged_at >= REPEAT_LOG_S:
            logged_at = now
            log.error(
                "policy_unavailable",
                waited_s=round(now - waiting_since),
                code=away.code,
                why=away.sentence,
                stored_policy=damage or "none",
                fix=away.fix,
            )
        await asyncio.sleep(RETRY_DELAY_S)


def _load(file: PolicyFile) -> tuple[StoredPolicy | None, str]:
    """Return the policy on disk, or None and the reason why it can't be used ("" if there is none)."""
    try:
        return file.load(), ""
    except OperatorError as problem:
        log.error(problem.code, why=problem.sentence, fix=problem.fix)
        return None, problem.sentence


def _from_database(instance: str, member: str, stored: StoredPolicy | None) -> StartOrders:
    """Return the orders from the database, unless it lacks the policy on disk."""
    ordered = policy_orders(instance)
    policy, stage = PolicyDocument.from_dict(ordered["policy"]), parse_stage(ordered["staged"], member)
    known, group = known_log(instance, member), known_group(instance)
    if stored is not None:
        stage = stored.continue_stage(stage)
        revision = stage.document.revision if stage is not None else policy.revision
        if not has_policy(instance, stored.shown_document):
            return _from_set_back(stored, revision)
        if not group.logs and stored.known is not None:
            known, group = stored.known, KnownGroup.from_log(stored.known)
    return StartOrders(policy, stage, directories_to_open(instance), known, group, DatabaseEntry())


def _from_set_back(stored: StoredPolicy, revision: int) -> StartOrders:
    """Return the policy on disk as orders: the database lacks it, and has another one as `revision`."""
    since = stored.set_back.since if stored.set_back is not None else time.time_ns() // 1_000_000
    log.error(
        "policy_set_back", running=stored.revision, stored_at=stored.stored_at, database=revision, fix=FIX
    )
    entry = DatabaseEntry(policy="disk", policy_stored_at=stored.stored_at)
    return replace(_from_stored(stored, entry), set_back=SetBack(since=since, database_revision=revision))


def _from_disk(stored: StoredPolicy, away: OperatorError) -> StartOrders:
    """Return the policy on disk as orders, for a database that is away."""
    shown = policy_from_disk(stored.revision, away)
    entry = DatabaseEntry(
        away_since=time.time_ns() // 1_000_000,
        code=shown.code,
        message=shown.sentence,
        fix=shown.fix,
        policy="disk",
        policy_stored_at=stored.stored_at,
    )
    return _from_stored(stored, entry)


def _from_stored(stored: StoredPolicy, entry: DatabaseEntry) -> StartOrders:
    """Return orders with the policy on disk. Raises OperatorError `journal_elsewhere`."""
    policy, default = stored.document, default_directories()
    directories = JournalDirectories(
        Path(policy.instance.journal_directory or default.journal),
        Path(policy.instance.archive_directory or default.archive),
    )
    if stored.journal and not find_segment_files(directories.journal, stored.instance, directories.archive):
        earlier = Path(stored.journal)
        if earlier != directories.journal and find_segment_files(earlier, stored.instance):
            raise elsewhere(stored.instance, directories.journal, earlier)
    group = KnownGroup.from_log(stored.known) if stored.known is not None else KnownGroup()
    return StartOrders(policy, stored.stage, directories, stored.known, group, entry, stored.set_back)


def policy_from_disk(revision: int, cause: SluiceError) -> OperatorError:
    """Return the error to show while the policy on disk is in force, with the reason `cause`."""
    return OperatorError(
        "policy_from_disk",
        f"Revision {revision} is in force as stored on the broker's disk. {cause.sentence}",
        cause.fix,
    )


def _unavailable(instance: str, away: OperatorError, damage: str) -> OperatorError:
    return OperatorError(
        "policy_unavailable",
        f"{instance} waits for the database, because it has no stored policy. {away.sentence}"
        + (f" {damage}" if damage else ""),
        away.fix,
    )


def _named(problem: BaseException, timeout_s: float) -> OperatorError:
    """Return the operator's error for an exception of the database."""
    if isinstance(problem, TimeoutError):
        return OperatorError(
            "database_away",
            f"The database didn't answer within {timeout_s:g} s.",
            "Check the database's sessions and locks, and DATABASE_URL.",
        )
    return database_error(problem)
