"""One client's lanes by stream number, and what waits in all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from broker_core.delivery.earliest import Earliest
from broker_core.delivery.entry import OutboxEntry
from broker_core.delivery.lane import Lane, Total


class Lanes(dict[int, Lane]):
    """A mapping of streams to lanes. Of those few hold something. What is said of all costs the same however many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.filled: dict[int, Lane] = {}
        """Those in which something waits."""
        self._total = Total()
        self._waiting, self._unacked = Earliest(self._oldest_of), Earliest(self._unacked_of)

    def __setitem__(self, stream: int, lane: Lane) -> None:
        super().__setitem__(stream, lane)
        lane.total = self._total

    @property
    def nbytes(self) -> int:
        """Bytes that wait in lanes."""
        return self._total.nbytes

    @property
    def messages(self) -> int:
        """Messages that wait in lanes."""
        return self._total.messages

    @property
    def oldest_at(self) -> int:
        """From when the age of the oldest delivery in any of them counts, ns; 0: nothing waits."""
        return self._waiting.moment()

    @property
    def unacked_at(self) -> int:
        """From when the age of the oldest message counts that a window has let through and that isn't acknowledged, ns; 0:
        there is none."""
        return self._unacked.moment()

    def _oldest_of(self, stream: int) -> int:
        lane = self.filled.get(stream)
        return lane.oldest_at if lane is not None else 0

    def _unacked_of(self, stream: int) -> int:
        lane = self.get(stream)
        return lane.window.oldest_accepted_at if lane is not None and lane.window is not None else 0

    def offer(self, lane: Lane, entry: OutboxEntry) -> None:
        """Queue one delivery in its lane."""
        lane.offer(entry)
        if lane.stream not in self.filled:
            self.filled[lane.stream] = lane
            self._waiting.add(lane.stream)

    def put_back(self, stream: int, entries: Sequence[OutboxEntry]) -> None:
        """What a lane has given didn't leave after all: it waits there again, before the rest."""
        lane = self.filled[stream] = self[stream]
        lane.put_back(entries)
        self._waiting.add(stream, earlier=True)

    def pull(self, max_bytes: int, now_ns: int) -> list[OutboxEntry]:
        """What may leave each lane now, `max_bytes` of each at most."""
        pulled: list[OutboxEntry] = []
        for stream, lane in list(self.filled.items()):
            taken = lane.take(max_bytes, now_ns)
            pulled += taken
            if taken and lane.window is not None:
                self._unacked.add(stream)
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

    def clear(self) -> None:
        """Remove all of them, and what waits there."""
        for lane in self.filled.values():
            lane.take_all()
        self.filled.clear()
        super().clear()

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
            self.put_back(stream, mine)
        for lane in self.filled.values():
            entries += lane.take_all()
        self.filled.clear()
        return entries
