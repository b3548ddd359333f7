"""What the control plane may ask of a broker, by name; see `control` for the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from broker_core.config import PolicyDocument
from broker_core.errors import OperatorError
from broker_core.journal import retention
from broker_core.protocols.names import check_topic
from broker_core.runtime import browsing, listing
from broker_core.runtime.action_handlers import action_handlers
from broker_core.runtime.control import Handler
from broker_core.runtime.operator_acts import operator_acts
from broker_core.runtime.replay_handlers import replay_handlers
from broker_core.slow_clients.preview import compare
from broker_core.slow_clients.staging import read_stage

if TYPE_CHECKING:
    from broker_core.runtime.broker import Broker

MOST_PREVIEWED = 500
"""Clients and decisions that a preview lists; it counts them all."""


def handlers(broker: Broker) -> dict[str, Handler]:
    """The table of requests."""
    answers = _Answers(broker)
    names = (
        "status", "snapshot", "clients", "clients_page", "client", "disconnect", "apply", "preview", "journals", "journal_plan", "journal_swap",
        "journal_remove", "browse", "decisions", "durable_delete", "durables", "ledger", "publish",
    )
    own = {name: getattr(answers, name) for name in names}
    return own | replay_handlers(broker) | action_handlers(broker) | operator_acts(broker)


class _Answers:
    """One method per request; each takes the request's fields and returns what is JSON."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # One swap at a time: each is several steps on the same directory.
        self._swapping = asyncio.Lock()

    @property
    def _host(self) -> Any:
        return self._broker.host

    async def status(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._broker.statistics.status()

    async def snapshot(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._broker.statistics.snapshot()

    async def clients(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        return self._broker.statistics.clients()

    async def clients_page(self, request: dict[str, Any]) -> dict[str, Any]:
        return listing.page(self._broker.statistics.recent_clients(), request)

    async def client(self, request: dict[str, Any]) -> dict[str, Any]:
        connection = self._connection(request)
        return self._broker.statistics.client(connection, self._host.now_ns())

    async def disconnect(self, request: dict[str, Any]) -> dict[str, Any]:
        connection = self._connection(request)
        reason = _text(request, "reason")
        connection.close("operator_disconnect", f"An operator disconnected this client: {reason}", retry_after_ms=1_000)
        return {"name": connection.name, "reason": reason}

    async def apply(self, request: dict[str, Any]) -> dict[str, Any]:
        policy = PolicyDocument.from_dict(request.get("policy") or {})
        stage = read_stage(request.get("staged"))
        await self._broker.apply(policy, stage)
        return {"revision": stage.document.revision if stage is not None else policy.revision}

    async def preview(self, request: dict[str, Any]) -> dict[str, Any]:
        """Whom a policy would touch and who would be acted on at once; nothing changes."""
        policy = PolicyDocument.from_dict(request.get("policy") or {})
        guard = self._host.judging.guard
        subjects = guard.subjects()
        touched = await asyncio.to_thread(compare, guard.book, guard.book_of(policy), subjects)
        decisions = guard.preview(policy, self._host.now_ns())
        return {
            "clients": sum(1 for subject in subjects if not subject.topic),
            "touched": [one.as_dict() for one in touched[:MOST_PREVIEWED]],
            "touched_in_all": len({one.client for one in touched}),
            "acted_on": [decision.as_dict() for decision in decisions[:MOST_PREVIEWED]],
            "acted_on_in_all": len(decisions),
        }

    async def journals(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "name": segment.name, "path": str(segment.path), "state": segment.state,
                "compressed": segment.compressed, "first_sequence": segment.first_sequence,
                "last_sequence": segment.last_sequence, "first_at": segment.first_at, "last_at": segment.last_at,
                "bytes": segment.nbytes, "records": segment.records,
                "pinned_by": [pin.owner for pin in self._host.journal.pins() if pin.sequence <= segment.last_sequence],
            }
            for segment in self._host.journal.segments()
        ]

    async def journal_plan(self, request: dict[str, Any]) -> dict[str, Any]:
        plan = self._plan(request)
        return {
            "action": request["action"],
            "chosen": [segment.name for segment in plan.chosen],
            "segments": [
                {"name": segment.name, "path": str(segment.path), "bytes": segment.nbytes, "records": segment.records,
                 "first_sequence": segment.first_sequence, "last_sequence": segment.last_sequence}
                for segment in plan.chosen
            ],
            "skipped": [skipped._asdict() for skipped in plan.skipped],
            "bytes": plan.nbytes,
            "archive_directory": str(self._broker.paths.archive),
        }

    def _plan(self, request: dict[str, Any]) -> retention.Plan:
        action, age = request.get("action"), request.get("age_s")
        if action not in ("archive", "compress", "remove"):
            raise OperatorError("bad_request", "action must be archive, compress or remove.", "Name one of them.")
        if isinstance(age, bool) or not isinstance(age, int | float) or age < 0:
            raise OperatorError("bad_request", "age_s must be seconds, 0 or more.", "Say how old a segment must be.")
        now, journal = self._host.now_ns(), self._host.journal
        return retention.plan(action, journal.segments(), now - int(age * 1e9), journal.pins(), now)

    async def journal_swap(self, request: dict[str, Any]) -> dict[str, Any]:
        journal, name = self._host.journal, _text(request, "name")
        swap: dict[str, Callable[[str, Path], Any]] = {
            "archive": journal.archive_swap, "compress": journal.compress_swap,
        }
        chosen = swap.get(str(request.get("action")))
        if chosen is None:
            raise OperatorError("bad_request", "action must be archive or compress.", "Name one of them.")
        async with self._swapping:
            await asyncio.to_thread(chosen, name, Path(_text(request, "prepared")))
        return {"name": name, "action": request["action"]}

    async def journal_remove(self, request: dict[str, Any]) -> dict[str, Any]:
        names = request.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise OperatorError("bad_request", "names must be a list of segments.", "Take them from journal_plan.")
        async with self._swapping:
            # Planned again here: a replay may have begun since the caller's plan.
            plan = self._plan({**request, "action": "remove"})
            allowed = {segment.name for segment in plan.chosen}
            refused = [name for name in names if name not in allowed]
            if refused:
                why = {skipped.name: skipped.why for skipped in plan.skipped}
                raise OperatorError("journal_in_use", f"{refused[0]} can't be removed: {why.get(refused[0], 'unknown')}.",
                                    "Plan again.", refused=refused)
            receipt = await asyncio.to_thread(self._host.journal.remove, names)
        made: dict[str, Any] = receipt.as_dict()
        return made

    async def decisions(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        since = int(request.get("since") or 0)
        return [decision for decision in self._host.judging.decisions if decision["at"] >= since]

    async def durables(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._host.durables.listed()
        return listed

    async def durable_delete(self, request: dict[str, Any]) -> dict[str, Any]:
        durables = self._host.durables
        durable = durables.delete(_text(request, "client"), _text(request, "name"))
        await asyncio.to_thread(durables.write, durables.content())
        return {"client": durable.client, "name": durable.name}

    async def ledger(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        client, ledger = request.get("client"), self._host.ledger
        return [loss.as_dict(self._host.instance) for loss in ledger.recent if client in (None, loss.client)]

    async def browse(self, request: dict[str, Any]) -> dict[str, Any]:
        journal, asked = self._host.journal, browsing.wanted(self._host.journal, request)
        return await asyncio.to_thread(browsing.browse, journal, self._host.instance, asked, self._host.dispatched_sequence)

    async def publish(self, request: dict[str, Any]) -> dict[str, Any]:
        topic = check_topic(_text(request, "topic"))
        self._host.publishing.publish_own(topic, [orjson.dumps(request.get("data"))])
        return {"topic": topic}

    def _connection(self, request: dict[str, Any]) -> Any:
        name = _text(request, "name")
        connection = self._host.clients.get(name)
        if connection is None:
            raise OperatorError("unknown_client", f"No client {name!r} is connected.", "See the clients page.")
        return connection


def _text(request: dict[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 4_096:
        raise OperatorError("bad_request", f"{key} must be a text.", "Give it.")
    return value
