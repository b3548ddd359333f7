"""Dead letters: records of a shared subscription that consumers failed with too often. Pure.

They are published again under another topic, where they can be looked at, consumed and sent again: of `queue.orders` that is
`queue.dead.orders`, which STOMP clients know as `/queue/dead.orders`; of any other topic `dead.` and its name. Their
headers say where they come from.
"""

from __future__ import annotations

from typing import Final

from broker_core.batch import Batch, build_batch
from broker_core.bookmark import Bookmark
from broker_core.headers import decode, encode
from broker_core.names import BROKER_NAME
from broker_core.protocols.names import MAX_TOPIC_BYTES
from broker_core.protocols.stomp.destinations import QUEUES

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


def dead_letters(batch: Batch, name: str, instance: str) -> Batch | None:
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
