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

MEMBER_TIMEOUT_S: Final = 5.0
"""Seconds without a status message after which a member isn't reported as `there`."""


def group_status(log: ReplicatedLog[Any], settings: GroupSettings, now: float, now_ms: int) -> GroupStatus:
    """Return the status of the whole group.

    `now`: monotonic seconds; `now_ms`: the same moment, ms UTC.
    """
    stream, trouble, problem = log.stream, log.trouble, log.problem
    return GroupStatus(
        instance=settings.instance,
        member=settings.member,
        state=trouble.code
        if trouble is not None
        else "away"
        if log.detach_reason is not None
        else "taking part",
        why=_to_sentence(problem.sentence) if problem is not None else "",
        fix=problem.fix if problem is not None else "",
        code=_error_code(problem),
        since=log.state_since // 1_000_000,
        log=str(stream.log) if stream is not None else "",
        generation=stream.generation if stream is not None else 0,
        last=stream.last if stream is not None else 0,
        leader=stream.leader if stream is not None else "",
        engines=stream.servers if stream is not None else 0,
        engines_current=stream.current if stream is not None else 0,
        engines_since=log.servers_behind_since // 1_000_000
        if log.servers_behind_since is not None and stream is not None
        else None,
        clock_ahead_ms=log.skew_ms,
        confirmed=log.confirmations.confirmed_sequence,
        downgrades=_count_members(log.confirmations.confirming.downgrades),
        upgrades=_count_members(log.confirmations.confirming.upgrades),
        members=_member_entries(log, settings.member, now, now_ms),
    )


def _member_entries(log: ReplicatedLog[Any], local_name: str, now: float, now_ms: int) -> list[MemberEntry]:
    """List this member, those that sent a status, and those that the policy lists and that sent none."""
    peers = log.members.peers
    newest_sequence = max([log.chain.sequence, *(peer.status.sequence for peer in peers.values())])
    newest_at = max([log.applied_entry_at, *(peer.status.at for peer in peers.values())])
    newest_entry = max(
        [log.applied_entry + log.entries_behind, *(peer.status.entry for peer in peers.values())]
    )
    return [
        _local_entry(log, local_name, newest_sequence, newest_at),
        *(
            _peer_entry(name, peer, log, now, now_ms, newest_sequence, newest_at, newest_entry)
            for name, peer in sorted(peers.items())
        ),
        *(_silent_entry(name, log, now, now_ms) for name in log.confirmations.members if name not in peers),
    ]


def _local_entry(log: ReplicatedLog[Any], name: str, newest_sequence: int, newest_at: int) -> MemberEntry:
    value, is_attached = log.chain.value, log.stream is not None
    # Before another member sends a status, the number and the age of the missing records are unknown.
    entries_behind = log.entries_behind if is_attached else None
    records = newest_sequence - log.chain.sequence if entries_behind is not None else 0
    lag_ms = _lag_ms(log.applied_entry_at, newest_at) if entries_behind is not None else 0
    return MemberEntry(
        name=name,
        there=True,
        applied=log.applied_entry,
        behind=entries_behind,
        sequence=log.chain.sequence,
        chain=value.hex() if value is not None else "",
        lag_records=records or (0 if entries_behind == 0 else None),
        lag_ms=lag_ms or (0 if entries_behind == 0 else None),
        mode=log.confirmations.confirming.mode(name),
        confirmed=log.chain.sequence,
    )


def _peer_entry(
    name: str,
    peer: PeerMember,
    log: ReplicatedLog[Any],
    now: float,
    now_ms: int,
    newest_sequence: int,
    newest_at: int,
    newest_entry: int,
) -> MemberEntry:
    """Describe another member from its last status."""
    differs_since = peer.differs_since
    is_reachable = now - peer.received_at < MEMBER_TIMEOUT_S
    return MemberEntry(
        name=name,
        there=is_reachable,
        applied=peer.status.entry,
        # The last status of a silent member counts from an older end of the log.
        behind=peer.status.behind if is_reachable else newest_entry - peer.status.entry,
        sequence=peer.status.sequence,
        chain=peer.status.chain,
        lag_records=newest_sequence - peer.status.sequence,
        lag_ms=_lag_ms(peer.status.at, newest_at),
        alike=peer.alike,
        heard_s=round(now - peer.received_at, 1),
        since=_to_utc_ms(peer.received_at if not is_reachable else differs_since, now, now_ms),
        mode=log.confirmations.confirming.mode(name),
        downgraded_by=log.confirmations.confirming.downgraded_by(name),
        downgraded_at=log.confirmations.downgraded_at(name),
        confirmed=log.confirmations.confirming.get_confirmed_sequence(name),
        unconfirmed_ms=log.confirmations.confirming.waited_ms(name, now),
    )


def _silent_entry(name: str, log: ReplicatedLog[Any], now: float, now_ms: int) -> MemberEntry:
    """Describe a member that the policy lists and that has sent no status since this process started."""
    return MemberEntry(
        lag_records=None,
        lag_ms=None,
        since=_to_utc_ms(log.started_at, now, now_ms),
        name=name,
        there=False,
        applied=0,
        behind=None,
        sequence=0,
        chain="",
        mode=log.confirmations.confirming.mode(name),
        downgraded_by=log.confirmations.confirming.downgraded_by(name),
        downgraded_at=log.confirmations.downgraded_at(name),
        unconfirmed_ms=log.confirmations.confirming.waited_ms(name, now),
    )


def _count_members(numbers: Mapping[str, int]) -> int:
    return sum(number for name, number in numbers.items() if not name.startswith(LINK_PREFIX))


def _error_code(problem: SluiceError | None) -> str:
    return "" if problem is None else problem.code


def _to_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def _to_utc_ms(at: float | None, now: float, now_ms: int) -> int | None:
    """Convert monotonic seconds to ms UTC; None stays None."""
    return None if at is None else now_ms - round(1_000 * (now - at))


def _lag_ms(at: int, newest: int) -> int | None:
    """Return the ms between two entries, by the log service's clock alone.

    None if the member has read no entry since it started.
    """
    return (newest - at) // 1_000_000 if at else None
