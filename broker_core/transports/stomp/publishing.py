"""Publishing of a STOMP client: SEND, alone or in a transaction, and the receipts when it is on disk.

The frames of a transaction are held back until COMMIT. ABORT or the end of the connection discards them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker_core.batch import MAX_DICTIONARY
from broker_core.errors import ClientError
from broker_core.protocols import replies
from broker_core.protocols.stomp.destinations import parse_send_destination
from broker_core.protocols.stomp.frames import StompFrame
from broker_core.protocols.stomp.headers import (
    is_multicast,
    parse_boolean,
    record_headers,
    required_header,
)
from broker_core.protocols.stomp.send_headers import SendBatch, StompHeaders
from broker_core.transports.stomp.replies import StompReplyWriter
from broker_core.transports.stomp.subscriptions import StompSubscriptions

MAX_OPEN: Final = 16
"""Maximum number of open transactions of a connection."""
MAX_FRAMES: Final = 1_024
"""Maximum number of frames in one transaction."""
MAX_TOPICS: Final = MAX_DICTIONARY - 1
"""Maximum number of topics in one transaction, because it becomes one batch."""
MAX_BYTES: Final = 15 * 1024 * 1024
"""Maximum bytes of bodies and headers of all open transactions of a connection. One becomes one batch."""


@dataclass(slots=True)
class _Transaction:
    """Transaction that is open, with its frames."""

    frames: list[StompFrame] = field(default_factory=list)
    topics: set[str] = field(default_factory=set)
    nbytes: int = 0
    """Bytes that the transaction holds back."""


class StompTransactions:
    """Open transactions of one connection."""

    def __init__(self) -> None:
        self._open: dict[str, _Transaction] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that all open transactions hold back."""
        return self._nbytes

    def begin(self, name: str) -> None:
        """Begin a transaction.

        Raises:
            ClientError: bad_transaction, when the name is in use or too many are open.
        """
        if name in self._open:
            raise _bad(f"There is a transaction {name[:80]!r} already.", name)
        if len(self._open) >= MAX_OPEN:
            raise _bad(f"A connection has {MAX_OPEN} open transactions at most.", name)
        self._open[name] = _Transaction()

    def add(self, name: str, frame: StompFrame, topic: str | None = None) -> None:
        """Hold a frame back; `topic`: that of a SEND.

        Raises:
            ClientError: bad_transaction, when there is none of that name or a limit is exceeded.
        """
        found = self._find(name)
        found.frames.append(frame)
        if topic is not None:
            found.topics.add(topic)
        nbytes = (
            len(frame.body)
            + sum(len(key) + len(value) + 2 for key, value in frame.headers.items())
            + len(frame.receipt)
        )
        found.nbytes += nbytes
        self._nbytes += nbytes
        if len(found.frames) > MAX_FRAMES:
            raise _bad(f"A transaction has {MAX_FRAMES:,} frames at most.", name)
        if len(found.topics) > MAX_TOPICS:
            raise _bad(f"A transaction sends to {MAX_TOPICS:,} topics at most.", name)
        if self._nbytes > MAX_BYTES:
            raise _bad(f"A connection's open transactions have {MAX_BYTES:,} bytes at most.", name)

    def end(self, name: str) -> list[StompFrame]:
        """End a transaction and return its frames.

        Raises:
            ClientError: bad_transaction, when there is none of that name.
        """
        found = self._find(name)
        del self._open[name]
        self._nbytes -= found.nbytes
        return found.frames

    def drop(self) -> None:
        """Discard all open transactions, because the connection has ended."""
        self._open.clear()
        self._nbytes = 0

    def _find(self, name: str) -> _Transaction:
        found = self._open.get(name)
        if found is None:
            raise _bad(f"There is no transaction {name[:80]!r}.", name)
        return found


def _bad(sentence: str, name: str) -> ClientError:
    return ClientError(
        "bad_transaction",
        sentence,
        "BEGIN a transaction once, then COMMIT or ABORT it.",
        transaction=name[:80],
    )


_Record = tuple[str, bytes]
"""Topic of a record, and the headers that are stored with it."""


class StompPublisher:
    """Publishing side of one client."""

    __slots__ = ("_batches", "_receipts", "_reply_writer", "_subscribed", "transactions")

    def __init__(self, reply_writer: StompReplyWriter, subscribed: StompSubscriptions) -> None:
        self._reply_writer = reply_writer
        self._subscribed = subscribed
        self._batches = 0
        self._receipts: dict[str, list[str]] = {}
        """Receipts of batches that aren't durable yet, by batch."""
        self.transactions = StompTransactions()

    def send(self, sends: SendBatch) -> None:
        """Publish SENDs as one batch. If one of them is refused, those before it are published."""
        reply_writer = self._reply_writer
        records = dict[int, _Record]()
        try:
            for headers in sends.headers:
                if id(headers) not in records:
                    records[id(headers)] = self._record(headers)
        except ClientError:
            at = next(at for at, headers in enumerate(sends.headers) if id(headers) not in records)
            self._publish_in_parts(sends.slice(0, at), records)
            reply_writer.receipt = sends.receipts[at]
            raise
        reply_writer.receipt = sends.receipts[-1]
        self._publish_in_parts(sends, records)
        reply_writer.receipt = ""

    def _topic(self, headers: StompHeaders) -> str:
        """Return the topic of a SEND and check that the client may publish to it.

        Raises:
            ClientError: a bad destination, not_entitled, or not_journaled for a queue.
        """
        text = required_header(headers, "destination")
        topic = parse_send_destination(
            self._subscribed.temporary_destination(text) or text, is_multicast(headers)
        ).topic
        self._reply_writer.connection.publishing.check_destination(topic)
        return topic

    def _record(self, headers: StompHeaders) -> _Record:
        """Return the topic and stored headers of a SEND. Called once for SENDs with equal headers.

        Raises:
            ClientError: as for `_topic`.
        """
        topic = self._topic(headers)
        return topic, self._lines(headers, topic)

    def add_to_transaction(self, frame: StompFrame) -> None:
        """Hold a frame back until its transaction is committed.

        Raises:
            ClientError: bad_transaction, bad_command, or for a SEND as for `_topic`.
        """
        if frame.command == "NACK":
            parse_boolean(frame.headers, "requeue")
        topic = self._topic(frame.headers) if frame.command == "SEND" else None
        self.transactions.add(frame.headers["transaction"], frame, topic)

    def commit(self, name: str) -> None:
        """Publish a transaction's SENDs as one batch, then execute its ACKs and NACKs.

        Raises:
            ClientError: bad_transaction.
        """
        frames = self.transactions.end(name)
        receipt = self._reply_writer.receipt
        sends, records = SendBatch(), dict[int, _Record]()
        for frame in frames:
            if frame.command == "SEND":
                sends.add(frame.headers, frame.body, frame.receipt)
                records[id(frame.headers)] = self._record(frame.headers)
        self._publish(sends, records, [receipt] if receipt else [])
        self._reply_writer.receipt = ""  # only an error would name it from here on
        for frame in frames:
            if frame.command != "SEND":
                self._subscribed.acknowledge(frame)

    def on_persisted(self, batch: str) -> None:
        """Send the receipts of a batch that is durable, or was forwarded where no journal keeps it."""
        self._reply_writer.send_receipts(self._receipts.pop(batch))

    def _publish_in_parts(self, sends: SendBatch, records: Mapping[int, _Record]) -> None:
        """Publish SENDs as one batch, or as several if their bodies and headers exceed one."""
        longest = max((len(lines) for _, lines in records.values()), default=0)
        if sends.body_bytes + longest * len(sends) <= MAX_BYTES:
            self._publish(sends, records)
            return
        start = nbytes = 0
        for at, (headers, body) in enumerate(zip(sends.headers, sends.bodies, strict=True)):
            size = len(body) + len(records[id(headers)][1])
            if at > start and nbytes + size > MAX_BYTES:
                self._publish(sends.slice(start, at), records)
                start, nbytes = at, 0
            nbytes += size
        self._publish(sends.slice(start, len(sends)), records)

    def _publish(
        self, sends: SendBatch, records: Mapping[int, _Record], receipts: Sequence[str] = ()
    ) -> None:
        """Publish SENDs as one batch, and send their receipts when it is done.

        `records`: topic and headers by id of the head.
        """
        receipts_due = [*filter(None, sends.receipts), *receipts]
        if not sends:
            self._reply_writer.send_receipts(receipts_due)
            return
        answers: list[replies.Ack] = []
        if receipts_due:
            self._batches += 1
            key = str(self._batches)
            self._receipts[key] = receipts_due
            answers = [replies.Ack(ack="persisted", of="publish", id=key)]
        topics, lines = zip(*[records[id(headers)] for headers in sends.headers], strict=True)
        self._reply_writer.connection.publishing.publish_records(topics, sends.bodies, lines, answers)

    def _lines(self, headers: StompHeaders, topic: str) -> bytes:
        """Return the headers that are stored with a record.

        A temporary `reply-to` is replaced by a name that other clients can use. The client also receives what
        they send there, because RabbitMQ's clients don't subscribe to it.
        """
        reply_to = headers.get("reply-to", "")
        known = self._subscribed.temporary_destination(reply_to)
        if not known:
            return record_headers(headers, topic)
        self._subscribed.allow_reply_to(reply_to, parse_send_destination(known))
        return record_headers(StompHeaders(headers | {"reply-to": known}), topic)
