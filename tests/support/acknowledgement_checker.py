"""A check of every acknowledgement that an in-process broker sends.

The broker must not report a record as persisted, nor a sequence at logon, before all records of that
publisher up to it are on disk.
"""

from __future__ import annotations

from typing import Any

from broker_core.broker import Broker
from broker_core.connections.connection import Connection
from broker_core.delivery.sink import Sink
from broker_core.journal.commit_log import PendingBatch
from broker_core.protocols import replies


class AcknowledgementChecker:
    """A wrapper of a broker that records acknowledgements sent too early.

    `violations` lists them; `checked` counts the acknowledgements.
    """

    def __init__(self, broker: Broker) -> None:
        self.violations: list[str] = []
        self.checked = 0
        self._journal = broker.engine.journal
        self._taken: list[PendingBatch[Any]] = []
        dispatch: Any = broker.engine.dispatch
        log = dispatch._log
        self._append, self._failed, self._connected = (
            log.append,
            dispatch.on_failed,
            broker.engine.add_connection,
        )
        self._superseded, self._repeated = dispatch.superseded, dispatch.on_duplicate
        log.append, dispatch.on_failed = self._on_append, self._on_failed
        dispatch.superseded, dispatch.on_duplicate = self._on_superseded, self._on_repeated
        broker.engine.add_connection = self._on_connected  # type: ignore[method-assign]

    def _on_append(self, *taken: PendingBatch[Any]) -> None:
        self._taken = [*filter(self._is_under_way, self._taken), *taken]
        self._append(*taken)

    def _on_failed(self, group: Any, error: Any) -> None:
        self._taken.clear()
        self._failed(group, error)

    def _on_superseded(self, pending: PendingBatch[Any]) -> None:
        self._taken = [one for one in self._taken if one is not pending]
        self._superseded(pending)

    def _on_repeated(self, pending: PendingBatch[Any]) -> None:
        self._taken = [one for one in self._taken if one is not pending]
        self._repeated(pending)

    def _is_under_way(self, one: PendingBatch[Any]) -> bool:
        return (
            not 0 < one.batch.last_sequence <= self._journal.durable_sequence or not one.batch.first_sequence
        )

    def _on_connected(self, transport: str, sink: Sink) -> Connection:
        connection = self._connected(transport, sink)
        reply = connection.reply

        def watched(answer: replies.Reply) -> None:
            if isinstance(answer, replies.Ack) and answer.sequence and answer.ack != "processed":
                self._check(connection.name, answer.ack, answer.sequence, connection.publishing.session)
            elif isinstance(answer, replies.Ack) and answer.of == "logon":
                self._check(connection.name, "logon", answer.sequence or 0)
            reply(answer)

        connection.reply = watched  # type: ignore[method-assign]
        return connection

    def _check(self, name: str, what: str, sequence: int, session: int | None = None) -> None:
        self.checked += 1
        for one in self._taken:
            first = one.batch.first_publisher_sequence
            if session is not None and one.batch.session != session:
                continue  # numbers of another session mean other records
            if one.batch.publisher_name == name and 0 < first <= sequence and self._is_under_way(one):
                self.violations.append(f"{what} {sequence} to {name} while {first} isn't on disk")
