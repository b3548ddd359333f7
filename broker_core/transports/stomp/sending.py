"""SEND: what a client publishes, alone or in a transaction, and the receipts that say that it is on disk."""

from __future__ import annotations

from collections.abc import Sequence

from broker_core.errors import ClientError
from broker_core.protocols import replies
from broker_core.protocols.stomp.destinations import Destination, publish_to
from broker_core.protocols.stomp.frames import Frame, Headers
from broker_core.protocols.stomp.reading import lines_of, needed
from broker_core.protocols.stomp.subscribing import is_multicast
from broker_core.transports.stomp.subscribed import Subscribed
from broker_core.transports.stomp.talk import Talk
from broker_core.transports.stomp.transactions import Transactions


class Sending:
    """One client's."""

    __slots__ = ("_batches", "_receipts", "_subscribed", "_talk", "transactions")

    def __init__(self, talk: Talk, subscribed: Subscribed) -> None:
        self._talk = talk
        self._subscribed = subscribed
        self._batches = 0
        self._receipts: dict[str, list[str]] = {}
        """Of batches that aren't durable yet."""
        self.transactions = Transactions()

    def send(self, frames: Sequence[Frame]) -> None:
        """Publish SENDs as one batch. Of one that can't be published those before it are."""
        talk = self._talk
        for number, frame in enumerate(frames):
            try:
                self.destination(frame)
            except ClientError:
                self._publish(frames[:number])
                talk.receipt = frame.headers.get("receipt", "")
                raise
        talk.receipt = frames[-1].headers.get("receipt", "")
        self._publish(frames)
        talk.receipt = ""

    def destination(self, frame: Frame) -> Destination:
        """Where a SEND goes. ClientErrors, also of rights."""
        text = needed(frame.headers, "destination")
        found = publish_to(self._subscribed.own(text) or text, is_multicast(frame.headers))
        self._talk.connection.rights.check_publish((found.topic,))
        return found

    def hold_back(self, frame: Frame) -> None:
        """Until its transaction is committed. ClientErrors of its transaction, and of a SEND's destination."""
        if frame.command == "SEND":
            self.destination(frame)
        self.transactions.add(frame.headers["transaction"], frame)

    def commit(self, name: str) -> None:
        """Its SENDs are one batch; then its ACKs and NACKs count. ClientError bad_transaction."""
        frames = self.transactions.end(name)
        receipt, self._talk.receipt = self._talk.receipt, ""
        self._publish([frame for frame in frames if frame.command == "SEND"], [receipt] if receipt else [])
        for frame in frames:
            if frame.command != "SEND":
                self._subscribed.acknowledge(frame)

    def published(self, batch: str) -> None:
        """A batch is durable, or handed on where no journal keeps it."""
        self._talk.say_receipts(self._receipts.pop(batch))

    def _publish(self, frames: Sequence[Frame], receipts: Sequence[str] = ()) -> None:
        """One batch of SENDs, and what is to be answered when it is done."""
        asked = [receipt for frame in frames if (receipt := frame.headers.get("receipt"))] + [*receipts]
        if not frames:
            self._talk.say_receipts(asked)
            return
        answers: list[replies.Ack] = []
        if asked:
            self._batches += 1
            key = str(self._batches)
            self._receipts[key] = asked
            answers = [replies.Ack(ack="persisted", of="publish", id=key)]
        topics = [self.destination(frame).topic for frame in frames]
        lines = [self._lines(frame, topic) for frame, topic in zip(frames, topics, strict=True)]
        publishing = self._talk.connection.publishing
        publishing.publish_records(topics, [frame.body for frame in frames], lines, answers)

    def _lines(self, frame: Frame, topic: str) -> bytes:
        """The headers that travel with a record. A temporary destination is given to others by a name that they can use, and
        what they send there is heard: RabbitMQ's clients don't subscribe to it."""
        reply_to = frame.headers.get("reply-to", "")
        known = self._subscribed.own(reply_to)
        if not known:
            return lines_of(frame, topic)
        self._subscribed.hear(reply_to, publish_to(known))
        return lines_of(frame._replace(headers=Headers(frame.headers | {"reply-to": known})), topic)
