"""One client's lanes by stream number, and what waits in all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from broker_core.delivery.entry import OutboxEntry
from broker_core.delivery.lane import Lane


class Lanes(dict[int, Lane]):
    """A mapping of streams to lanes. Of those few hold something."""

    def __init__(self) -> None:
        super().__init__()
        self.filled: dict[int, Lane] = {}
        """Those in which something waits."""

    @property
    def nbytes(self) -> int:
        """Bytes that wait in lanes."""
        return sum(lane.nbytes for lane in self.filled.values())

    @property
    def messages(self) -> int:
        """Messages that wait in lanes."""
        return sum(lane.messages for lane in self.filled.values())

    @property
    def unacked(self) -> int:
        """Messages that windows have let through and that aren't acknowledged."""
        return sum(lane.window.unacked for lane in self.values() if lane.window is not None)

    def oldest(self) -> list[int]:
        """From when the age of each one's oldest delivery counts, ns."""
        return [lane.oldest_at for lane in self.filled.values()]

    def unacked_since(self) -> list[int]:
        """From when the age of each window's oldest unacknowledged message counts, ns."""
        return [
            one.window.oldest_accepted_at
            for one in self.values()
            if one.window is not None and one.window.oldest_accepted_at
        ]

    def firsts(self) -> list[int]:
        """Sequence of each one's first journaled record; 0 where there is none."""
        return [lane.first_sequence for lane in self.filled.values()]

    def offer(self, lane: Lane, entry: OutboxEntry) -> None:
        """Queue one delivery in its lane."""
        lane.offer(entry)
        self.filled[lane.stream] = lane

    def pull(self, max_bytes: int, now_ns: int) -> list[OutboxEntry]:
        """What may leave each lane now, `max_bytes` of each at most."""
        pulled: list[OutboxEntry] = []
        for stream, lane in list(self.filled.items()):
            pulled += lane.take(max_bytes, now_ns)
            if not lane.messages:
                del self.filled[stream]
        return pulled

    def settle(self, stream: int) -> None:
        """Something was taken from a lane: note whether anything still waits there."""
        if not self[stream].messages:
            self.filled.pop(stream, None)

    def end(self, stream: int) -> list[OutboxEntry]:
        """Remove a lane, if there is one; what waited in it."""
        lane = self.pop(stream, None)
        self.filled.pop(stream, None)
        return lane.take_all() if lane is not None else []

    def take_all(self, unsent: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        """Everything that waits, each subscription's in its order, behind what of `unsent` has no lane.

        What a lane has given and wasn't sent goes back before it first: its window counts it as sent.
        """
        entries: list[OutboxEntry] = []
        back: dict[int, list[OutboxEntry]] = {}
        for entry in unsent:
            if entry.stream in self:
                back.setdefault(entry.stream, []).append(entry)
            else:
                entries.append(entry)
        for stream, mine in back.items():
            self[stream].put_back(mine)
            self.filled[stream] = self[stream]
        for lane in self.filled.values():
            entries += lane.take_all()
        self.filled.clear()
        return entries
