"""Where an instance's segments are: JournalDirectory and JournalArchiveDirectory of its policy, or the installation's.

And how what is in them is read, for whoever looks without a broker.
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
    """Where live segments are written, and where archived ones go."""

    journal: Path
    archive: Path


def default_directories() -> JournalDirectories:
    """The installation's, where a policy says nothing."""
    return JournalDirectories(
        Path(settings.SLUICE_JOURNAL_DIRECTORY), Path(settings.SLUICE_ARCHIVE_DIRECTORY)
    )


def directories_for(instance_name: str) -> JournalDirectories:
    """Those of the policy that is wanted; the defaults for a name that has none yet."""
    instance = Instance.objects.filter(name=instance_name).first()
    return (
        default_directories()
        if instance is None
        else _directories(instance.journal_directory, instance.archive_directory)
    )


def directories_without_database(instance_name: str) -> JournalDirectories:
    """Return them where there may be no database: then the stored policy's, or the installation's own."""
    try:
        return directories_for(instance_name)
    except DatabaseError:
        stored = _stored_policy(instance_name)
        if stored is None or not stored.journal:
            return default_directories()
        return JournalDirectories(Path(stored.journal), Path(stored.archive))


def known_log_now(instance_name: str, member: str = "") -> KnownLog | None:
    """Return what the database knows of the log, or while it is away what was stored with the policy."""
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
    """How its policy says that bodies are read; None, all as JSON, where there may be no policy or no database."""
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
    """Every directory that holds segments of some instance, or would."""
    wanted = Instance.objects.values_list("journal_directory", "archive_directory")
    return {place for pair in wanted for place in _directories(*pair)} | set(default_directories())


def directories_to_open(instance_name: str) -> JournalDirectories:
    """The same for a broker that starts. Raises OperatorError journal_elsewhere when its log stands where it was.

    Opening an empty directory instead would give the sequences of bookmarks that clients hold to other records.
    """
    wanted = directories_for(instance_name)
    if find_segment_files(wanted.journal, instance_name, wanted.archive):
        return wanted
    for earlier in _earlier(instance_name):
        if find_segment_files(earlier, instance_name):
            raise elsewhere(instance_name, wanted.journal, earlier)
    return wanted


def elsewhere(instance_name: str, wanted: Path, found: Path) -> OperatorError:
    """Return the error for a journal that isn't where the policy says."""
    return OperatorError(
        "journal_elsewhere",
        f"The policy says that the journal of {instance_name} is in {wanted},"
        f" and its segments are in {found}.",
        f"Move the files that begin with {instance_name}. from there, or take the setting back.",
        wanted=str(wanted),
        found=str(found),
    )


def policy_file(instance_name: str) -> PolicyFile:
    """Return the file in which this installation's broker stores its policy."""
    return PolicyFile.under(settings.SLUICE_HOME, instance_name)


def known_log(instance_name: str, member: str = "") -> KnownLog | None:
    """What was last heard of an instance's log, of a group of that member's; None for one that this database doesn't know."""
    if member:
        copy = GroupMember.objects.filter(instance__name=instance_name, name=member).first()
        return None if copy is None else KnownLog(copy.log, copy.frontier)
    instance = Instance.objects.filter(name=instance_name).first()
    return None if instance is None else KnownLog(instance.log, instance.frontier)


def known_group(instance_name: str) -> KnownGroup:
    """Return the logs that the instance, or any member of its group, has had, and their newest record."""
    copies = list(GroupMember.objects.filter(instance__name=instance_name).values_list("log", "frontier"))
    alone = Instance.objects.filter(name=instance_name).exclude(log=None).values_list("log", "frontier")
    found = [*copies, *alone]
    return KnownGroup(
        frozenset(log for log, _ in found if log is not None),
        max((frontier for _, frontier in found), default=0),
    )


def accept_log(instance_name: str, log: UUID, frontier: int, member: str = "") -> None:
    """Record in the database and beside the stored policy that an operator has made `log` the instance's."""
    with suppress(OperatorError, OSError):
        policy_file(instance_name).save_log(log, frontier)
    with suppress(DatabaseError):
        record_log(instance_name, log, frontier, member)


def record_log(instance_name: str, log: UUID, frontier: int, member: str = "") -> None:
    """Note what an instance's log is and how far it goes. It is compared with what the broker finds when it starts."""
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
    """Every directory that a revision ever named, and the default's."""
    documents = PolicyRevision.objects.filter(instance__name=instance_name).values_list(
        "document__instance__journal_directory", "document__instance__archive_directory"
    )
    places = {place for pair in documents for place in _directories(*pair)}
    return sorted(places | set(default_directories()))


def _directories(journal: str | None, archive: str | None) -> JournalDirectories:
    default = default_directories()
    return JournalDirectories(Path(journal or default.journal), Path(archive or default.archive))
