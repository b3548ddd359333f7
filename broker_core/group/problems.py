"""Problems of a group as one of its members sees them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker_core.documents.problems import ProblemEntry
from broker_core.documents.replication import GroupStatus, MemberEntry

SETTLING_MS: Final = 2_000
"""Milliseconds for which states that usually end soon aren't reported: connecting, a change of the leader."""
_TRANSIENT_CODES: Final = ("engine_away", "no_quorum", "engine_behind")
_DOCS_HINT: Final = "See docs/group.md."


def group_problems(status: GroupStatus, now_ms: int) -> list[ProblemEntry]:
    """Return the problems of a group at `now_ms`, the most severe first."""
    found = [*_participation_problems(status), *_service_problems(status), *_member_problems(status)]
    return [one for one in found if one.code not in _TRANSIENT_CODES or now_ms - one.since >= SETTLING_MS]


def _participation_problems(status: GroupStatus) -> Iterator[ProblemEntry]:
    if not status.code:
        return
    yield ProblemEntry(
        code=status.code,
        subject=status.member,
        since=status.since,
        severe=True,
        title=f"The member {status.member} is inactive in its group",
        message=status.why,
        fix=status.fix or _DOCS_HINT,
    )


def _service_problems(status: GroupStatus) -> Iterator[ProblemEntry]:
    missing = status.engines - status.engines_current
    if missing <= 0:
        return
    has_quorum = 2 * status.engines_current > status.engines
    yield ProblemEntry(
        code="engine_behind" if has_quorum else "no_quorum",
        subject="",
        since=status.engines_since or status.since,
        severe=not has_quorum,
        title="The group's log service lacks servers" if has_quorum else "The group has lost its quorum",
        message=f"{status.engines_current} of {status.engines} servers are up to date."
        + ("" if has_quorum else " Without a majority, no record is acknowledged."),
        fix="Start the missing servers; they catch up automatically. " + _DOCS_HINT,
    )


def _member_problems(status: GroupStatus) -> Iterator[ProblemEntry]:
    for member in status.members:
        if member.name == status.member:
            continue
        if member.there and member.alike is False:
            yield _member_problem(
                member,
                "replica_diverged",
                f"The journal of the member {member.name} differs",
                f"Its hash isn't that of {status.member} at the same entry.",
                "Compare the hashes of all members on the page Replication, and reseed the one that differs:"
                " `manage.py replication reseed`.",
            )
        # A member that is detached itself receives nothing, which says nothing about the others.
        elif not member.there and not status.code:
            yield _member_problem(
                member,
                "member_silent",
                f"The member {member.name} is inactive in its group",
                f"The member {status.member} receives nothing from it.",
                "Check that its broker runs and reaches the log service: `manage.py replication "
                "status` there. If it was removed for good: `manage.py replication forget "
                f"{member.name}`.",
            )


def _member_problem(member: MemberEntry, code: str, title: str, message: str, fix: str) -> ProblemEntry:
    return ProblemEntry(
        code=code,
        subject=member.name,
        since=member.since or 0,
        severe=False,
        title=title,
        message=message,
        fix=fix,
    )
