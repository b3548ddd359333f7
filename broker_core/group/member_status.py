"""Status messages of a group's members, and the comparison of their journals.

Several times a second each member sends how far it has applied the log, with its hash chain there. A member
that still knows its own chain behind that entry compares the two. A member stops if at least as many
members differ from it as agree with it, itself included: of three members that is the odd one, of two it is
both. Status messages may be lost or late; the next comparison corrects that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker_core.errors import OperatorError
from broker_core.group.hash_chain import HashChain
from broker_core.group.settings import GroupSettings

MAX_MEMBERS: Final = 64
REMEMBERED: Final = 1_024
"""Maximum status messages of one member that wait until this member has applied their entry.

The oldest are retained, so that the comparison reaches them.
"""


class MemberStatus(msgspec.Struct, frozen=True):
    """Status message of a member.

    `generation`: of the log; `entry`: newest entry that it has applied; `sequence` and `chain`: its newest
    record and hash (hex, "" if unknown) there; `behind`: entries that it lacks; `at`: when the log service
    accepted that entry, ns by its clock; `addresses`: where clients connect to it, by transport.
    """

    member: str
    run: str
    generation: int
    entry: int
    sequence: int
    chain: str
    behind: int
    at: int
    addresses: dict[str, str]


@dataclass(slots=True)
class PeerMember:
    """Another member, as known from its status messages.

    `told`: the last one; `heard_at`: its time (s); `alike`: whether its journal equals this one's, None
    while unknown.
    """

    told: MemberStatus
    heard_at: float
    alike: bool | None = None
    forked_at: int = 0
    """The entry at which a difference was first seen; 0 while the journals agree."""
    unlike_since: float | None = None
    """When the first differing status arrived (s); None while the journals agree."""
    proved: int = 0
    """The newest record up to which its journal is known to equal this one's."""
    recent: deque[MemberStatus] = field(default_factory=deque)


class PeerTable:
    """The other members of a group, as known from their status messages."""

    def __init__(self, settings: GroupSettings, run: str) -> None:
        self._settings, self._run = settings, run
        self.others: dict[str, PeerMember] = {}

    def encode_status(
        self,
        generation: int,
        entry: int,
        behind: int,
        chain: HashChain,
        taken_at: int,
        addresses: dict[str, str],
    ) -> bytes:
        """Encode the status message of this member."""
        at = chain.state_after(entry)
        sequence, value = at if at is not None else (chain.sequence, b"")
        return msgspec.json.encode(
            MemberStatus(
                self._settings.member,
                self._run,
                generation,
                entry,
                sequence,
                value.hex(),
                behind,
                taken_at,
                addresses,
            )
        )

    def newest_applied(self) -> dict[int, tuple[int, str]]:
        """Return the newest entry that another member has applied, and that member, by generation."""
        found: dict[int, tuple[int, str]] = {}
        for name, other in self.others.items():
            told = other.told
            found[told.generation] = max(found.get(told.generation, (0, "")), (told.entry, name))
        return found

    def addresses(self, transport: str) -> list[str]:
        """Return the addresses of the other members for a transport, as they reported them."""
        found = (one.told.addresses.get(transport) for _, one in sorted(self.others.items()))
        return [one for one in found if one]

    def on_status(self, content: bytes, at: float) -> None:
        """Process the status message of another member, received at `at` (s). Ignore undecodable ones."""
        try:
            told = msgspec.json.decode(content, type=MemberStatus)
        except msgspec.DecodeError:
            return  # a foreign message under this subject: only the log counts
        if told.member == self._settings.member:
            return
        other = self.others.get(told.member)
        if other is None:
            if len(self.others) >= MAX_MEMBERS:
                return
            other = self.others[told.member] = PeerMember(told, at)
        elif other.told.run != told.run:
            other.alike, other.proved, other.unlike_since = None, 0, None
            other.recent.clear()
        other.told, other.heard_at = told, at
        if told.chain and len(other.recent) < REMEMBERED:
            other.recent.append(told)

    def forget(self, name: str, silent_since: float) -> None:
        """Forget a member that was removed for good, until it sends something again.

        Raises OperatorError unknown_member, and member_in_use for one that has sent something after
        `silent_since` (s).
        """
        other = self.others.get(name)
        if other is None:
            raise OperatorError(
                "unknown_member",
                f"{self._settings.member} knows no other member {name[:64]!r}.",
                "See `manage.py replication status`.",
            )
        if other.heard_at > silent_since:
            raise OperatorError(
                "member_in_use",
                f"The member {name} takes part in the group: {self._settings.member} receives its statuses.",
                "Stop its broker for good first, and try again some seconds later.",
            )
        del self.others[name]

    def compare_journals(self, chain: HashChain) -> None:
        """Compare the waiting status messages of others with this member's own hash chain."""
        newest = chain.newest_entry
        for other in self.others.values():
            while other.recent and other.recent[0].entry <= newest:
                told = other.recent.popleft()
                own = chain.state_after(told.entry)
                if own is not None:
                    other.alike = own == (told.sequence, _unhex(told.chain))
                    other.forked_at = 0 if other.alike else other.forked_at or told.entry
                    other.unlike_since = None if other.alike else other.unlike_since or other.heard_at
                    other.proved = told.sequence if other.alike else 0

    def problems(self) -> OperatorError | None:
        """Return why this member must stop applying entries; None while most members agree with it."""
        unlike = [name for name, other in self.others.items() if other.alike is False]
        alike = 1 + sum(other.alike is True for other in self.others.values())
        if len(unlike) < alike:
            return None
        entry = min(self.others[name].forked_at for name in unlike)
        return OperatorError(
            "replica_diverged",
            f"The journal of {self._settings.member} isn't that of {', '.join(sorted(unlike))}: "
            f"they differ at entry {entry} or"
            " before it.",
            "Nothing is applied or acknowledged here; its files are kept: `manage.py replication "
            "reseed --from DIRECTORY` moves them"
            " aside and takes those of a member that agrees with the others.",
            members=sorted(unlike),
            entry=entry,
        )


def _unhex(text: str) -> bytes:
    """Decode hex text; return b"", which equals no hash, if it is malformed."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
