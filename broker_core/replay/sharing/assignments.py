"""Assignment of a shared subscription's records to consumers, and dead letters. Pure.

Records are sequences; a holder is any hashable key.

    add_new ──▶ ready ─assign──▶ a holder ──acknowledge──▶ done
                 ▲                 └─────release─────┐
                 └────add_reread─── released ◀───────┘

A record from the position up to `upto` that is neither ready, nor assigned, nor released is done or never
matched. So the done records need no list: they lie between the outstanding ones, of which there are at most
MAX_OUTSTANDING.

`tries` counts how often holders failed with a record. `possible_repeats` has the outstanding records that a
consumer may have received before.

A record that consumers failed with too often becomes a dead letter: it is published again under another
topic, where operators can inspect, consume and resend it. For `queue.orders` the topic is
`queue.dead.orders`, STOMP's `/queue/dead.orders`; for another topic it is `dead.` and the name. Its headers
name its origin.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
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
"""Header with the topic that the record was published to."""
OF: Final = "x-sluice-dead-letter-of"
"""Header with the name of the shared subscription that gave it up."""
BOOKMARK: Final = "x-sluice-dead-letter-bookmark"
"""Header with the bookmark of the original record."""


def dead_letter_topic(topic: str) -> str:
    """Return the dead letter topic of a topic; "" for a dead letter topic, whose records are not moved."""
    if topic.startswith((_DEAD, QUEUES + _DEAD)):
        return ""
    return f"{QUEUES}{_DEAD}{topic.removeprefix(QUEUES)}" if topic.startswith(QUEUES) else _DEAD + topic


FAILURES: Final = "x-sluice-dead-letter-failures"
"""Header with the causes of its failed deliveries, oldest first."""
MAX_FAILURES: Final = 16
"""Maximum number of causes that are kept for a record, the newest ones."""


def to_dead_letters(
    batch: Batch, name: str, instance: str, failures: Mapping[int, Sequence[str]] = MappingProxyType({})
) -> Batch | None:
    """Return a log batch's records as dead letters of the shared subscription `name`.

    `failures`: causes of failed deliveries by sequence.

    Returns None when the topic of one of them would be too long or is already a dead letter topic.
    """
    topics = [dead_letter_topic(topic) for topic in batch.names()]
    if not all(0 < len(topic.encode()) <= MAX_TOPIC_BYTES for topic in topics):
        return None
    headers = []
    for record in batch.records():
        decoded = decode(record.headers)
        decoded.pop("destination", None)  # STOMP's original destination, which is wrong for the dead letter
        decoded |= {FROM: record.topic, OF: name, BOOKMARK: str(Bookmark(instance, record.sequence))}
        if causes := failures.get(record.sequence):
            decoded[FAILURES] = ", ".join(causes)
        headers.append(encode(decoded.items()))
    return Batch.parse(build_batch(BROKER_NAME, topics, batch.bodies(), headers), verify=False)


MAX_OUTSTANDING: Final = 16_384
"""Maximum unacknowledged records of all holders together. At this number no new records are read from the
log."""

Holder = TypeVar("Holder", bound=Hashable)


class RecordAssignments(Generic[Holder]):
    """Assignments of one shared subscription.

    At first every record up to `upto` that isn't `completed` is released.
    """

    def __init__(
        self,
        position: int,
        upto: int,
        completed: Iterable[tuple[int, int]] = (),
        tries: Mapping[int, int] | None = None,
        max_tries: int = 0,
        failures: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        self.max_tries = max_tries
        """Number of failed deliveries at which a record becomes a dead letter; 0: never."""
        self.upto = upto
        """Newest sequence that was read from the log for the first time."""
        self.released = SequenceSet(SequenceSet(completed).gaps_between(position, upto))
        """Records to read from the log again before new ones; may include records that never matched."""
        self.tries = dict(tries or {})
        """Number of failed deliveries by sequence."""
        self.failures = {number: list(causes) for number, causes in (failures or {}).items()}
        """Causes of the newest MAX_FAILURES failed deliveries by sequence."""
        self.dead_letters = {number for number, times in self.tries.items() if 0 < max_tries <= times}
        """Released records that must become dead letters."""
        self.possible_repeats: set[int] = set()
        """Outstanding records that a consumer may have received before."""
        self._ready: dict[int, None] = {}
        """Records that were read and are not assigned, in the order of reading."""
        self._assigned: dict[Holder, dict[int, None]] = {}
        """Unacknowledged records of each holder, in the order of assignment."""
        self.unacknowledged = 0
        """Number of assigned records."""

    def records_of(self, holder: Holder) -> Iterable[int]:
        """Return the unacknowledged records of a holder, in the order of assignment."""
        return self._assigned.get(holder, ())

    @property
    def outstanding_count(self) -> int:
        """Number of ready or assigned records, plus the number of intervals in `released`.

        The records in `released` can't be counted without reading the log.
        """
        return len(self._ready) + self.unacknowledged + len(self.released)

    @property
    def is_full(self) -> bool:
        """Whether no new records should be read."""
        return self.outstanding_count >= MAX_OUTSTANDING

    def add_new(self, sequences: Iterable[int]) -> None:
        """Add records that were read from the log for the first time."""
        self._ready.update(dict.fromkeys(sequences))
        self.upto = max(self.upto, next(reversed(self._ready), 0))

    def add_reread(self, sequences: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Add records that were read again; return a mask of the ones that were released.

        The caller removes the range from `released` once all of it was read.
        """
        is_released = self.released.contains(sequences)
        found = sequences[is_released].tolist()
        self._ready.update(dict.fromkeys(found))
        self.possible_repeats.update(found)
        return is_released

    def assign(self, holder: Holder, sequences: Iterable[int]) -> None:
        """Assign ready records to a holder."""
        assigned, ready = self._assigned.setdefault(holder, {}), self._ready
        for sequence in sequences:
            del ready[sequence]
            assigned[sequence] = None
            self.unacknowledged += 1

    def acknowledge(self, holder: Holder, sequences: Iterable[int]) -> None:
        """Mark a holder's records as done. Records that were released meanwhile are ignored."""
        assigned = self._assigned.get(holder, {})
        for sequence in sequences:
            if sequence in assigned:
                del assigned[sequence]
                self.unacknowledged -= 1
                self.tries.pop(sequence, None)
                self.failures.pop(sequence, None)
                self.possible_repeats.discard(sequence)
                self.dead_letters.discard(sequence)

    def release(
        self,
        holder: Holder,
        sequences: Iterable[int],
        failed_sequences: Iterable[int] = (),
        *,
        cause: str = "",
        is_permanent: bool = False,
    ) -> None:
        """Take records back from a holder. It failed to process those in `failed_sequences`, for a cause.

        A failed record is given up at `max_tries` failures, or immediately with `is_permanent`.
        """
        assigned = self._assigned.get(holder, {})
        returned = sorted(sequence for sequence in sequences if assigned.pop(sequence, self) is None)
        self.unacknowledged -= len(returned)
        for first, last in to_intervals(np.array(returned, np.uint64)):
            self.released.add(first, last)
        for sequence in set(failed_sequences).intersection(returned):
            times = self.tries[sequence] = self.tries.get(sequence, 0) + 1
            causes = self.failures.setdefault(sequence, [])
            causes.append(cause)
            del causes[:-MAX_FAILURES]
            if is_permanent or 0 < self.max_tries <= times:
                self.dead_letters.add(sequence)

    def retry(self, holder: Holder, sequences: Iterable[int]) -> None:
        """Take back records that could not be stored as dead letters, and reset their count of failures."""
        listed = list(sequences)
        self.dead_letters.difference_update(listed)
        for sequence in listed:
            self.tries.pop(sequence, None)
            self.failures.pop(sequence, None)
        self.release(holder, listed)

    def remove_holder(self, holder: Holder, failed_sequences: Iterable[int] = (), cause: str = "") -> None:
        """Remove a holder and take all its records back; `failed_sequences` and `cause` as for `release`."""
        self.release(holder, list(self.records_of(holder)), failed_sequences, cause=cause)
        self._assigned.pop(holder, None)

    # Stored progress.

    def position(self, next_sequence: int) -> int:
        """Return the first record that isn't done; `next_sequence` is the next one that may be read."""
        if not self.outstanding_count:  # the common case, for thousands of idle queues
            return max(next_sequence, self.upto + 1)
        firsts = [self.released.first, *(min(one) for one in (self._ready, *self._assigned.values()) if one)]
        return min((first for first in firsts if first), default=max(next_sequence, self.upto + 1))

    def completed_intervals(self) -> list[tuple[int, int]]:
        """Return the done intervals between the first record that isn't done and `upto`."""
        if not self.outstanding_count:
            return []
        incomplete = SequenceSet(self.released)
        listed = np.fromiter(chain(self._ready, *self._assigned.values()), np.uint64)
        listed.sort()
        for first, last in to_intervals(listed):
            incomplete.add(first, last)
        return list(incomplete.gaps_between(incomplete.first, self.upto)) if len(incomplete) else []
