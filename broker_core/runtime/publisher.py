"""What one client publishes: its batches on their way to the disk, and the flushes that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_core import batch as batches
from broker_core.batch import Batch
from broker_core.errors import ClientError
from broker_core.protocols import commands, replies

if TYPE_CHECKING:
    from broker_core.runtime.connection import Connection


class Publisher:
    """The publishing side of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.messages = 0
        self.uncommitted = 0
        """Batches that aren't durable yet."""
        self._flushes: list[str] = []
        self._reading = True

    def publish_batch(self, payload: bytearray) -> None:
        """A frame of records. ClientError bad_batch, bad_topic, not_logged_on, not_entitled."""
        if not self._connection.logged_on:
            raise ClientError("not_logged_on", "The first command must be a logon.", "Log on before publishing.")
        batch = Batch.parse(payload)
        self.messages += batch.count
        try:
            self._connection.rights.check_publish(batch.topics)
            self._connection.host.publishing.publish(self._connection, batch, ())
        except ClientError as error:
            if batch.first_publisher_sequence:
                error.details |= {"first": batch.first_publisher_sequence, "sequence": batch.last_publisher_sequence}
            error.details["c"] = "publish"
            raise

    def publish_one(self, command: commands.Publish) -> None:
        """One record in a command. ClientErrors as `publish_batch`."""
        built = batches.build_one_topic(self._connection.name, command.topic, [command.body()], command.sequence or 0)
        self.messages += 1
        answers = [replies.Ack(ack=ack, of="publish", id=command.id) for ack in command.ack]
        try:
            self._connection.rights.check_publish((command.topic,))
            self._connection.host.publishing.publish(self._connection, Batch.parse(built, verify=False), answers)
        except ClientError as error:
            error.details |= {"c": "publish", "id": command.id}
            raise

    def submitted(self) -> None:
        """One of its batches is on its way to the disk; read no more from it while too much is."""
        self.uncommitted += 1
        if self._connection.host.publishing.congested and self._reading:
            self._reading = False
            self._connection.sink.pause_reading()
            self._connection.host.publishing.wait_for_room(self._connection)

    def may_read(self) -> None:
        """There is room for what it publishes again."""
        if not self._reading and not self._connection.closed:
            self._reading = True
            self._connection.sink.resume_reading()

    def committed(self, number: int) -> None:
        """That many of its batches are done; answer the flushes that waited for them."""
        self.uncommitted -= number
        if self.uncommitted == 0 and self._flushes:
            for flush in self._flushes:
                self._connection.reply(replies.Ack(ack="completed", of="flush", id=flush))
            self._flushes.clear()

    def flush(self, id: str) -> None:
        """Answer when everything published so far is durable."""
        self._flushes.append(id)
        self.committed(0)
