"""Directories of an instance's segments, and stored facts about its log.

JournalDirectory and JournalArchiveDirectory of the policy name the directories; without them the
installation's settings apply. Commands that read the log without a broker find here how bodies are decoded.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError

from broker_core.config import PolicyDocument
from broker_core.control.policy_file import PolicyFile, StoredPolicy
from broker_core.errors import OperatorError
from broker_core.filters import DecoderOf
from broker_core.group.member import KnownGroup
from broker_core.journal.frontier_file import KnownLog
from broker_core.journal.segment import find_segment_files
from broker_core.subscriptions.journaled_topics import JournaledTopics
from console.models import GroupMember, Instance, PolicyRevision


class JournalDirectories(NamedTuple):
    """Directories of an instance's live segments and of its archived segments."""

    journal: Path
    archive: Path


def default_directories() -> JournalDirectories:
    """Return the installation's directories, which apply where a policy names none."""
    return JournalDirectories(
        Path(settings.SLUICE_JOURNAL_DIRECTORY), Path(settings.SLUICE_ARCHIVE_DIRECTORY)
    )


def directories_for(instance_name: str) -> JournalDirectories:
    """Return the directories that the desired policy names; the defaults for an unknown instance."""
    instance = Instance.objects.filter(name=instance_name).first()
    return (
        default_directories()
        if instance is None
        else _directories(instance.journal_directory, instance.archive_directory)
    )


def directories_without_database(instance_name: str) -> JournalDirectories:
    """Return the directories; while the database is away, those of the policy on disk or the defaults."""
    try:
        return directories_for(instance_name)
    except DatabaseError:
        stored = _stored_policy(instance_name)
        if stored is None or not stored.journal:
            return default_directories()
        return JournalDirectories(Path(stored.journal), Path(stored.archive))


def known_log_now(instance_name: str, member: str = "") -> KnownLog | None:
    """Return the log's identity and frontier from the database; while that is away, from the disk."""
    try:
        return known_log(instance_name, member)
    except DatabaseError:
        stored = _stored_policy(instance_name)
        return stored.known if stored is not None else None


def _stored_policy(instance_name: str) -> StoredPolicy | None:
    with suppress(OperatorError):
        return policy_file(instance_name).load()
    return None


def decoder_without_database(instance_name: str) -> DecoderOf | None:
    """Return the decoder of bodies by topic, according to the newest policy.

    None, which means JSON for every topic, without a policy or without the database.
    """
    try:
        newest = PolicyRevision.objects.filter(instance__name=instance_name).order_by("-number").first()
    except DatabaseError:
        return None
    return (
        None
        if newest is None
        else JournaledTopics(PolicyDocument.from_dict(newest.document).instance).decoder_of
    )


def all_directories() -> set[Path]:
    """Return every directory that holds or may hold segments of any instance."""
    pairs = Instance.objects.values_list("journal_directory", "archive_directory")
    return {directory for pair in pairs for directory in _directories(*pair)} | set(default_directories())


def directories_to_open(instance_name: str) -> JournalDirectories:
    """Return the directories for a broker that starts, unless its log is in an earlier directory.

    Opening an empty directory instead would assign sequences of existing bookmarks to other records.

    Raises:
        OperatorError: `journal_elsewhere`.
    """
    configured = directories_for(instance_name)
    if find_segment_files(configured.journal, instance_name, configured.archive):
        return configured
    for earlier in _earlier(instance_name):
        if find_segment_files(earlier, instance_name):
            raise elsewhere(instance_name, configured.journal, earlier)
    return configured


def elsewhere(instance_name: str, configured: Path, found: Path) -> OperatorError:
    """Return the error for a journal that isn't where the policy says."""
    return OperatorError(
        "journal_elsewhere",
        f"The policy sets the journal directory of {instance_name} to {configured}, but the "
        f"segments are in {found}.",
        f"Move the files that begin with {instance_name}. from there, or restore the setting.",
        wanted=str(configured),
        found=str(found),
    )


def policy_file(instance_name: str) -> PolicyFile:
    """Return the file in which this installation's broker stores the instance's policy."""
    return PolicyFile.under(settings.SLUICE_HOME, instance_name)


def known_log(instance_name: str, member: str = "") -> KnownLog | None:
    """Return the last reported log of an instance, or of one member of its group; None for an unknown one."""
    if member:
        copy = GroupMember.objects.filter(instance__name=instance_name, name=member).first()
        return None if copy is None else KnownLog(copy.log, copy.frontier)
    instance = Instance.objects.filter(name=instance_name).first()
    return None if instance is None else KnownLog(instance.log, instance.frontier)


def known_group(instance_name: str) -> KnownGroup:
    """Return every log that the instance or a member of its group has had, and their newest sequence."""
    copies = list(GroupMember.objects.filter(instance__name=instance_name).values_list("log", "frontier"))
    alone = Instance.objects.filter(name=instance_name).exclude(log=None).values_list("log", "frontier")
    found = [*copies, *alone]
    return KnownGroup(
        frozenset(log for log, _ in found if log is not None),
        max((frontier for _, frontier in found), default=0),
    )


def accept_log(instance_name: str, log: UUID, frontier: int, member: str = "") -> None:
    """Record an operator's decision that `log` is the instance's log.

    The database and the file of the policy on disk both store it. Does nothing where the file or the
    database is unavailable.
    """
    with suppress(OperatorError, OSError):
        policy_file(instance_name).save_log(log, frontier)
    with suppress(DatabaseError):
        record_log(instance_name, log, frontier, member)


def record_log(instance_name: str, log: UUID, frontier: int, member: str = "") -> None:
    """Store the identity and the frontier of an instance's log.

    A starting broker compares them with its files.
    """
    if member:
        instance = Instance.objects.filter(name=instance_name).first()
        if instance is not None:
            known = {"log": log, "frontier": frontier}
            GroupMember.objects.update_or_create(instance=instance, name=member, defaults=known)
        return
    Instance.objects.filter(name=instance_name).exclude(log=log, frontier=frontier).update(
        log=log, frontier=frontier
    )


def _earlier(instance_name: str) -> list[Path]:
    """Return every directory that any revision named, and the defaults."""
    documents = PolicyRevision.objects.filter(instance__name=instance_name).values_list(
        "document__instance__journal_directory", "document__instance__archive_directory"
    )
    directories = {directory for pair in documents for directory in _directories(*pair)}
    return sorted(directories | set(default_directories()))


def _directories(journal: str | None, archive: str | None) -> JournalDirectories:
    default = default_directories()
    return JournalDirectories(Path(journal or default.journal), Path(archive or default.archive))
