"""How one member sees its group, for whoever asks: the page, the command, `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker_core.documents.group import GroupStatus, MemberEntry
from broker_core.group.members import Other
from broker_core.group.replicated_log import ReplicatedLog
from broker_core.group.settings import GroupSettings
from broker_core.names import LINK_PREFIX

SILENT_S: Final = 5.0
"""A member that hasn't said anything for so long isn't `there`."""


def status_of(made: ReplicatedLog[Any], settings: GroupSettings, now: float) -> GroupStatus:
    """The whole. `now` is in seconds."""
    attached, trouble = made.attached, made.trouble
    return GroupStatus(
        instance=settings.instance,
        member=settings.member,
        state=trouble.code if trouble is not None else "away" if made.away else "taking part",
        why=trouble.sentence if trouble is not None else made.away,
        fix=trouble.fix if trouble is not None else "",
        log=str(attached.log) if attached is not None else "",
        generation=attached.generation if attached is not None else 0,
        last=attached.last if attached is not None else 0,
        leader=attached.leader if attached is not None else "",
        engines=attached.servers if attached is not None else 0,
        engines_current=attached.current if attached is not None else 0,
        clock_ahead_ms=made.skew_ms,
        confirmed=made.confirmations.upto,
        downgrades=_of_members(made.confirmations.confirming.downgrades),
        upgrades=_of_members(made.confirmations.confirming.upgrades),
        members=_members(made, settings.member, now),
    )


def _members(made: ReplicatedLog[Any], own: str, now: float) -> list[MemberEntry]:
    """This one, those that were heard of, and those that the policy lists and nobody has heard of."""
    others = made.members.others
    most = max([made.chain.sequence, *(one.told.sequence for one in others.values())])
    newest = max([made.applied_at, *(one.told.at for one in others.values())])
    end = max([made.applied + made.behind, *(one.told.entry for one in others.values())])
    return [
        _own(made, own, most, newest),
        *(_heard(name, other, made, now, most, newest, end) for name, other in sorted(others.items())),
        *(_never_heard(name, made, now) for name in made.confirmations.members if name not in others),
    ]


def _own(made: ReplicatedLog[Any], name: str, most: int, newest: int) -> MemberEntry:
    value = made.chain.value
    return MemberEntry(
        name=name,
        there=True,
        applied=made.applied,
        behind=made.behind if made.attached is not None else None,
        sequence=made.chain.sequence,
        chain=value.hex() if value is not None else "",
        lag_records=most - made.chain.sequence,
        lag_ms=_lag_ms(made.applied_at, newest),
        mode=made.confirmations.confirming.mode(name),
        confirmed=made.chain.sequence,
    )


def _heard(
    name: str, other: Other, made: ReplicatedLog[Any], now: float, most: int, newest: int, end: int
) -> MemberEntry:
    there = now - other.heard_at < SILENT_S
    return MemberEntry(
        name=name,
        there=there,
        applied=other.told.entry,
        # Who is away said so of a log that ended sooner.
        behind=other.told.behind if there else end - other.told.entry,
        sequence=other.told.sequence,
        chain=other.told.chain,
        lag_records=most - other.told.sequence,
        lag_ms=_lag_ms(other.told.at, newest),
        alike=other.alike,
        heard_s=round(now - other.heard_at, 1),
        mode=made.confirmations.confirming.mode(name),
        downgraded_by=made.confirmations.confirming.why(name),
        downgraded_at=made.confirmations.downgraded_at(name),
        confirmed=made.confirmations.confirming.confirmed_by(name),
        unconfirmed_ms=made.confirmations.confirming.waited_ms(name, now),
    )


def _never_heard(name: str, made: ReplicatedLog[Any], now: float) -> MemberEntry:
    """A member that the policy lists, and that hasn't said a word since this process has started."""
    return MemberEntry(
        name=name,
        there=False,
        applied=0,
        behind=None,
        sequence=0,
        chain="",
        mode=made.confirmations.confirming.mode(name),
        downgraded_by=made.confirmations.confirming.why(name),
        downgraded_at=made.confirmations.downgraded_at(name),
        unconfirmed_ms=made.confirmations.confirming.waited_ms(name, now),
    )


def _of_members(numbers: Mapping[str, int]) -> int:
    return sum(number for name, number in numbers.items() if not name.startswith(LINK_PREFIX))


def _lag_ms(at: int, newest: int) -> int:
    """Between two entries, by the engine's clock alone. A member that hasn't read one since it started says none."""
    return (newest - at) // 1_000_000 if at else 0
