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
MAX_PENDING_STATUSES: Final = 1_024
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

    `status`: the last one; `received_at`: its time (s); `alike`: whether its journal equals this one's, None
    while unknown.
    """

    status: MemberStatus
    received_at: float
    alike: bool | None = None
    differs_at_entry: int = 0
    """The entry at which a difference was first seen; 0 while the journals agree."""
    differs_since: float | None = None
    """When the first differing status arrived (s); None while the journals agree."""
    proved_sequence: int = 0
    """The newest record up to which its journal is known to equal this one's."""
    pending_statuses: deque[MemberStatus] = field(default_factory=deque)


class PeerTable:
    """The other members of a group, as known from their status messages."""

    def __init__(self, settings: GroupSettings, run: str) -> None:
        self._settings, self._run = settings, run
        self.peers: dict[str, PeerMember] = {}

    def encode_status(
        self,
        generation: int,
        entry: int,
        behind: int,
        chain: HashChain,
        accepted_at: int,
        addresses: dict[str, str],
    ) -> bytes:
        """Encode the status message of this member."""
        state = chain.find_state(entry)
        sequence, value = state if state is not None else (chain.sequence, b"")
        return msgspec.json.encode(
            MemberStatus(
                self._settings.member,
                self._run,
                generation,
                entry,
                sequence,
                value.hex(),
                behind,
                accepted_at,
                addresses,
            )
        )

    def newest_applied(self) -> dict[int, tuple[int, str]]:
        """Return the newest entry that another member has applied, and that member, by generation."""
        newest: dict[int, tuple[int, str]] = {}
        for name, peer in self.peers.items():
            status = peer.status
            newest[status.generation] = max(newest.get(status.generation, (0, "")), (status.entry, name))
        return newest

    def addresses(self, transport: str) -> list[str]:
        """Return the addresses of the other members for a transport, as they reported them."""
        addresses = (peer.status.addresses.get(transport) for _, peer in sorted(self.peers.items()))
        return [peer for peer in addresses if peer]

    def on_status(self, content: bytes, at: float) -> None:
        """Process the status message of another member, received at `at` (s). Ignore undecodable ones."""
        try:
            status = msgspec.json.decode(content, type=MemberStatus)
        except msgspec.DecodeError:
            return  # a foreign message under this subject: only the log counts
        if status.member == self._settings.member:
            return
        peer = self.peers.get(status.member)
        if peer is None:
            if len(self.peers) >= MAX_MEMBERS:
                return
            peer = self.peers[status.member] = PeerMember(status, at)
        elif peer.status.run != status.run:
            peer.alike, peer.proved_sequence, peer.differs_since = None, 0, None
            peer.pending_statuses.clear()
        peer.status, peer.received_at = status, at
        if status.chain and len(peer.pending_statuses) < MAX_PENDING_STATUSES:
            peer.pending_statuses.append(status)

    def forget(self, name: str, last_allowed_at: float) -> None:
        """Forget a member that was removed for good, until it sends something again.

        Raises OperatorError unknown_member, and member_in_use for one that has sent something after
        `last_allowed_at` (s).
        """
        peer = self.peers.get(name)
        if peer is None:
            raise OperatorError(
                "unknown_member",
                f"{self._settings.member} knows no other member {name[:64]!r}.",
                "See `manage.py replication status`.",
            )
        if peer.received_at > last_allowed_at:
            raise OperatorError(
                "member_in_use",
                f"The member {name} is active in the group: {self._settings.member} receives its statuses.",
                "Stop its broker for good first, and try again some seconds later.",
            )
        del self.peers[name]

    def compare_journals(self, chain: HashChain) -> None:
        """Compare the waiting status messages of others with this member's own hash chain."""
        newest = chain.newest_entry
        for peer in self.peers.values():
            while peer.pending_statuses and peer.pending_statuses[0].entry <= newest:
                status = peer.pending_statuses.popleft()
                state = chain.find_state(status.entry)
                if state is not None:
                    peer.alike = state == (status.sequence, _decode_hex(status.chain))
                    peer.differs_at_entry = 0 if peer.alike else peer.differs_at_entry or status.entry
                    peer.differs_since = None if peer.alike else peer.differs_since or peer.received_at
                    peer.proved_sequence = status.sequence if peer.alike else 0

    def find_divergence(self) -> OperatorError | None:
        """Return why this member must stop applying entries; None while most members agree with it."""
        differing = [name for name, peer in self.peers.items() if peer.alike is False]
        agreeing = 1 + sum(peer.alike is True for peer in self.peers.values())
        if len(differing) < agreeing:
            return None
        entry = min(self.peers[name].differs_at_entry for name in differing)
        return OperatorError(
            "replica_diverged",
            f"The journal of {self._settings.member} isn't that of {', '.join(sorted(differing))}: "
            f"they differ at entry {entry} or"
            " before it.",
            "The member applies and acknowledges nothing; its files are retained: `manage.py "
            "replication reseed --from DIRECTORY` moves them aside and copies those of a member "
            "that agrees with the others.",
            members=sorted(differing),
            entry=entry,
        )


def _decode_hex(text: str) -> bytes:
    """Decode hex text; return b"", which equals no hash, if it is malformed."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
