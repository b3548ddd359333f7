"""The group as one member sees it, for the console, the command `replication status` and `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker_core.documents.replication import GroupStatus, MemberEntry
from broker_core.errors import SluiceError
from broker_core.group.member_status import PeerMember
from broker_core.group.replicated_log import ReplicatedLog
from broker_core.group.settings import GroupSettings
from broker_core.names import LINK_PREFIX

SILENT_S: Final = 5.0
"""Seconds without a status message after which a member isn't reported as `there`."""


def group_status(made: ReplicatedLog[Any], settings: GroupSettings, now: float, now_ms: int) -> GroupStatus:
    """Return the status of the whole group.

    `now`: monotonic seconds; `now_ms`: the same moment, ms UTC.
    """
    attached, trouble, problem = made.attached, made.trouble, made.problem
    return GroupStatus(
        instance=settings.instance,
        member=settings.member,
        state=trouble.code if trouble is not None else "away" if made.away is not None else "taking part",
        why=_as_sentence(problem.sentence) if problem is not None else "",
        fix=problem.fix if problem is not None else "",
        code=_code_of(problem),
        since=made.state_since // 1_000_000,
        log=str(attached.log) if attached is not None else "",
        generation=attached.generation if attached is not None else 0,
        last=attached.last if attached is not None else 0,
        leader=attached.leader if attached is not None else "",
        engines=attached.servers if attached is not None else 0,
        engines_current=attached.current if attached is not None else 0,
        engines_since=made.engines_since // 1_000_000
        if made.engines_since is not None and attached is not None
        else None,
        clock_ahead_ms=made.skew_ms,
        confirmed=made.confirmations.confirmed_sequence,
        downgrades=_of_members(made.confirmations.confirming.downgrades),
        upgrades=_of_members(made.confirmations.confirming.upgrades),
        members=_members(made, settings.member, now, now_ms),
    )


def _members(made: ReplicatedLog[Any], own: str, now: float, now_ms: int) -> list[MemberEntry]:
    """List this member, those that sent a status, and those that the policy lists and that sent none."""
    others = made.members.others
    most = max([made.chain.sequence, *(one.told.sequence for one in others.values())])
    newest = max([made.applied_at, *(one.told.at for one in others.values())])
    end = max([made.applied + made.behind, *(one.told.entry for one in others.values())])
    return [
        _own(made, own, most, newest),
        *(
            _heard(name, other, made, now, now_ms, most, newest, end)
            for name, other in sorted(others.items())
        ),
        *(_never_heard(name, made, now, now_ms) for name in made.confirmations.members if name not in others),
    ]


def _own(made: ReplicatedLog[Any], name: str, most: int, newest: int) -> MemberEntry:
    value, knows = made.chain.value, made.attached is not None
    # Before another member sends a status, the number and the age of the missing records are unknown.
    behind = made.behind if knows else None
    records = most - made.chain.sequence if behind is not None else 0
    lag_ms = _lag_ms(made.applied_at, newest) if behind is not None else 0
    return MemberEntry(
        name=name,
        there=True,
        applied=made.applied,
        behind=behind,
        sequence=made.chain.sequence,
        chain=value.hex() if value is not None else "",
        lag_records=records or (0 if behind == 0 else None),
        lag_ms=lag_ms or (0 if behind == 0 else None),
        mode=made.confirmations.confirming.mode(name),
        confirmed=made.chain.sequence,
    )


def _heard(
    name: str,
    other: PeerMember,
    made: ReplicatedLog[Any],
    now: float,
    now_ms: int,
    most: int,
    newest: int,
    end: int,
) -> MemberEntry:
    """Describe another member from its last status."""
    since = other.unlike_since
    there = now - other.heard_at < SILENT_S
    return MemberEntry(
        name=name,
        there=there,
        applied=other.told.entry,
        # The last status of a silent member counts from an older end of the log.
        behind=other.told.behind if there else end - other.told.entry,
        sequence=other.told.sequence,
        chain=other.told.chain,
        lag_records=most - other.told.sequence,
        lag_ms=_lag_ms(other.told.at, newest),
        alike=other.alike,
        heard_s=round(now - other.heard_at, 1),
        since=_moment(other.heard_at if not there else since, now, now_ms),
        mode=made.confirmations.confirming.mode(name),
        downgraded_by=made.confirmations.confirming.downgraded_by(name),
        downgraded_at=made.confirmations.downgraded_at(name),
        confirmed=made.confirmations.confirming.confirmed_sequence_of(name),
        unconfirmed_ms=made.confirmations.confirming.waited_ms(name, now),
    )


def _never_heard(name: str, made: ReplicatedLog[Any], now: float, now_ms: int) -> MemberEntry:
    """Describe a member that the policy lists and that has sent no status since this process started."""
    return MemberEntry(
        lag_records=None,
        lag_ms=None,
        since=_moment(made.started_at, now, now_ms),
        name=name,
        there=False,
        applied=0,
        behind=None,
        sequence=0,
        chain="",
        mode=made.confirmations.confirming.mode(name),
        downgraded_by=made.confirmations.confirming.downgraded_by(name),
        downgraded_at=made.confirmations.downgraded_at(name),
        unconfirmed_ms=made.confirmations.confirming.waited_ms(name, now),
    )


def _of_members(numbers: Mapping[str, int]) -> int:
    return sum(number for name, number in numbers.items() if not name.startswith(LINK_PREFIX))


def _code_of(problem: SluiceError | None) -> str:
    return "" if problem is None else problem.code


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def _moment(at: float | None, now: float, now_ms: int) -> int | None:
    """Convert monotonic seconds to ms UTC; None stays None."""
    return None if at is None else now_ms - round(1_000 * (now - at))


def _lag_ms(at: int, newest: int) -> int | None:
    """Return the ms between two entries, by the log service's clock alone.

    None if the member has read no entry since it started.
    """
    return (newest - at) // 1_000_000 if at else None
