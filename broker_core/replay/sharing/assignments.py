"""Dead letters: records of a shared subscription that consumers failed with too often. Pure.

They are published again under another topic, where they can be looked at, consumed and sent again: of `queue.orders` that is
`queue.dead.orders`, which STOMP clients know as `/queue/dead.orders`; of any other topic `dead.` and its name. Their
headers say where they come from.

Whose each record of a shared subscription is. Pure: records are sequences, and who has them is whatever can be a key.

    took ──▶ here ──gave──▶ a holder ──acknowledged──▶ done
               ▲                └─────returned─────┐
               └────────brought──────── back ◀─────┘

Everything from the low mark up to `upto` that is neither here, nor held, nor back is done, or was never for it. So what is
done needs no list: it is what lies between those that are owed, whose number is bounded (`MAX_OWED`).

Of a record that comes back it is known how often its holder failed with it (`tries`); those that somebody may have had are
remembered until they are done (`again`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import chain
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from broker_core.batch import Batch, build_batch
from broker_core.bookmark import Bookmark
from broker_core.headers import decode, encode
from broker_core.names import BROKER_NAME
from broker_core.protocols.names import MAX_TOPIC_BYTES
from broker_core.protocols.stomp.destinations import QUEUES
from broker_core.sequence_set import SequenceSet, to_intervals

_DEAD: Final = "dead."
FROM: Final = "x-sluice-dead-letter-from"
"""The topic that it was published to."""
OF: Final = "x-sluice-dead-letter-of"
"""The shared subscription that gave it up."""
BOOKMARK: Final = "x-sluice-dead-letter-bookmark"
"""Where it stands in the log."""


def dead_letter_topic(topic: str) -> str:
    """Where a record of this topic goes that is given up; "" for a dead letter, which stays where it is."""
    if topic.startswith((_DEAD, QUEUES + _DEAD)):
        return ""
    return f"{QUEUES}{_DEAD}{topic.removeprefix(QUEUES)}" if topic.startswith(QUEUES) else _DEAD + topic


def to_dead_letters(batch: Batch, name: str, instance: str) -> Batch | None:
    """The records of a batch of the log as dead letters of the shared subscription of that name; None when one of them can't be."""
    topics = [dead_letter_topic(topic) for topic in batch.names()]
    if not all(0 < len(topic.encode()) <= MAX_TOPIC_BYTES for topic in topics):
        return None
    headers = []
    for record in batch.records():
        said = decode(record.headers)
        said.pop("destination", None)  # where it was published to; it goes elsewhere now
        said |= {FROM: record.topic, OF: name, BOOKMARK: str(Bookmark(instance, record.sequence))}
        headers.append(encode(said.items()))
    return Batch.parse(build_batch(BROKER_NAME, topics, batch.bodies(), headers), verify=False)


MAX_OWED: Final = 16_384
"""Records that may be unacknowledged at once, by all holders together. Behind so many nothing new is taken from the log."""

Holder = TypeVar("Holder", bound=Hashable)


class RecordAssignments(Generic[Holder]):
    """One shared subscription's. It begins where it was kept: everything up to `upto` that isn't `done` is back."""

    def __init__(
        self,
        position: int,
        upto: int,
        done: Iterable[tuple[int, int]] = (),
        tries: Mapping[int, int] | None = None,
        most_tries: int = 0,
    ) -> None:
        self.most_tries = most_tries
        """Who has failed with a record so often gives it up; 0: never."""
        self.upto = upto
        """The last record that was taken from the log."""
        self.back = SequenceSet(SequenceSet(done).gaps_between(position, upto))
        """What has to be brought from the log again before anything else; also what was never for it, as nobody knows yet."""
        self.tries = dict(tries or {})
        self.given_up = {number for number, times in self.tries.items() if 0 < most_tries <= times}
        """Of what is back, what nobody should be given any more."""
        self.again: set[int] = set()
        self._here: dict[int, None] = {}
        self._held: dict[Holder, dict[int, None]] = {}
        self.unacknowledged = 0
        """Records that somebody holds."""

    def records_of(self, holder: Holder) -> Iterable[int]:
        """What it has and hasn't acknowledged, in the order in which it was given."""
        return self._held.get(holder, ())

    @property
    def outstanding_count(self) -> int:
        """Records that are here or held; of what is back their number isn't known, so its intervals count."""
        return len(self._here) + self.unacknowledged + len(self.back)

    @property
    def is_full(self) -> bool:
        """Whether nothing new should be taken."""
        return self.outstanding_count >= MAX_OWED

    def add_new(self, sequences: Iterable[int]) -> None:
        """These came from the log, for the first time."""
        self._here.update(dict.fromkeys(sequences))
        self.upto = max(self.upto, next(reversed(self._here), 0))

    def add_reread(self, sequences: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """These were read again: which of them are back. They are here now; `back` is cleared by who has read all of a stretch."""
        wanted = self.back.contains(sequences)
        found = sequences[wanted].tolist()
        self._here.update(dict.fromkeys(found))
        self.again.update(found)
        return wanted

    def assign(self, holder: Holder, sequences: Iterable[int]) -> None:
        """These are the holder's from now on."""
        mine, here = self._held.setdefault(holder, {}), self._here
        for sequence in sequences:
            del here[sequence]
            mine[sequence] = None
            self.unacknowledged += 1

    def acknowledge(self, holder: Holder, sequences: Iterable[int]) -> None:
        """The holder is done with these. What it doesn't have is passed over: it was taken from it meanwhile."""
        mine = self._held.get(holder, {})
        for sequence in sequences:
            if sequence in mine:
                del mine[sequence]
                self.unacknowledged -= 1
                self.tries.pop(sequence, None)
                self.again.discard(sequence)
                self.given_up.discard(sequence)

    def release(
        self, holder: Holder, sequences: Iterable[int], failed: Iterable[int] = (), *, for_good: bool = False
    ) -> None:
        """The holder gives these back; with those of them that `failed` it couldn't do anything, and nobody can `for_good`."""
        mine = self._held.get(holder, {})
        back = sorted(sequence for sequence in sequences if mine.pop(sequence, self) is None)
        self.unacknowledged -= len(back)
        for first, last in to_intervals(np.array(back, np.uint64)):
            self.back.add(first, last)
        for sequence in set(failed).intersection(back):
            times = self.tries[sequence] = self.tries.get(sequence, 0) + 1
            if for_good or 0 < self.most_tries <= times:
                self.given_up.add(sequence)

    def retry(self, holder: Holder, sequences: Iterable[int]) -> None:
        """What was given up can't be put away: it is back, and tried again."""
        listed = list(sequences)
        self.given_up.difference_update(listed)
        for sequence in listed:
            self.tries.pop(sequence, None)
        self.release(holder, listed)

    def remove_holder(self, holder: Holder, failed: Iterable[int] = ()) -> None:
        """The holder goes, and all that it has is back."""
        self.release(holder, list(self.records_of(holder)), failed)
        self._held.pop(holder, None)

    # What is kept of it.

    def position(self, following: int) -> int:
        """The first record that isn't done; `following` is the next one that may be taken."""
        if not self.outstanding_count:  # almost always, of thousands
            return max(following, self.upto + 1)
        firsts = [self.back.first, *(min(one) for one in (self._here, *self._held.values()) if one)]
        return min((first for first in firsts if first), default=max(following, self.upto + 1))

    def completed_intervals(self) -> list[tuple[int, int]]:
        """What is done between the first record that isn't and `upto`."""
        if not self.outstanding_count:
            return []
        owed = SequenceSet(self.back)
        listed = np.fromiter(chain(self._here, *self._held.values()), np.uint64)
        listed.sort()
        for first, last in to_intervals(listed):
            owed.add(first, last)
        return list(owed.gaps_between(owed.first, self.upto)) if len(owed) else []
