"""Clients: who is connected, what is in force for them, what was decided about them, and what an operator does to one."""

from __future__ import annotations

from typing import Protocol

from broker_core.clock import Clock
from broker_core.connections.member import Member
from broker_core.connections.roster import Roster
from broker_core.control import listing
from broker_core.control.status import Statistics
from broker_core.delivery.ledger import Ledger
from broker_core.documents import requests
from broker_core.documents.clients import (
    ClientEntry,
    ClientsPage,
    Delivery,
    Disconnected,
    EffectiveSetting,
    ForecastEntry,
    Offlined,
    Steered,
)
from broker_core.documents.records import DecisionEntry, LossEntry
from broker_core.documents.replays import DurableEntry, DurableName
from broker_core.engine.decisions import Decisions
from broker_core.engine.enforcement import Enforcement, offline_now, pause, resume
from broker_core.engine.events import decision_entry, loss_entry
from broker_core.errors import OperatorError
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.durables import Durables
from broker_core.replay.kept_positions import KeptPositions
from broker_core.slow_clients.accounts.guard import SlowClientGuard


class Connected(Protocol):
    """What these requests need of a broker."""

    @property
    def instance(self) -> str: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def roster(self) -> Roster: ...
    @property
    def guard(self) -> SlowClientGuard: ...
    @property
    def decisions(self) -> Decisions: ...
    @property
    def enforcement(self) -> Enforcement: ...
    @property
    def kept(self) -> KeptPositions: ...
    @property
    def durables(self) -> Durables: ...
    @property
    def ledger(self) -> Ledger: ...


class ClientRequests:
    """Answers about clients. Whoever names one that isn't connected is told `unknown_client`."""

    def __init__(self, broker: Connected, statistics: Statistics) -> None:
        self._broker = broker
        self._statistics = statistics

    async def clients(self, asked: requests.ListClients) -> list[ClientEntry]:
        """All of them."""
        return self._statistics.clients()

    async def page(self, asked: requests.PageClients) -> ClientsPage:
        """Some of them. OperatorError bad_sort."""
        return listing.page(self._statistics.recent_clients(), asked)

    async def client(self, asked: requests.GetClient) -> ClientEntry:
        """One of them."""
        return self._statistics.client(self._connection(asked.name), self._broker.clock.now_ns())

    async def effective(self, asked: requests.Effective) -> list[EffectiveSetting]:
        """The settings in force for one."""
        return self._broker.guard.effective(self._connection(asked.name).name)

    async def forecasts(self, asked: requests.Forecasts) -> list[ForecastEntry]:
        """Of every rule that looks at one, the one that acts first in front, those without a time last."""
        found = self._broker.guard.forecasts(self._connection(asked.name).name, self._broker.clock.now_ns())
        found.sort(key=lambda one: (one.fires_in_ms is None, one.fires_in_ms or 0, -one.percent))
        return found

    async def decisions(self, asked: requests.ListDecisions) -> list[DecisionEntry]:
        """The newest about all."""
        return [decision_entry(one) for one in self._broker.decisions.recent if one["at"] >= asked.since]

    async def losses(self, asked: requests.ListLosses) -> list[LossEntry]:
        """The newest of all, or of one, which needn't be connected."""
        found = (one for one in self._broker.ledger.recent if asked.client in (None, one.client))
        return [loss_entry(one, self._broker.instance) for one in found]

    async def durables(self, asked: requests.ListDurables) -> list[DurableEntry]:
        """Also those whose client is away."""
        return self._broker.durables.listed()

    async def delete_durable(self, asked: requests.DeleteDurable) -> DurableName:
        """Stored when it is answered. OperatorError unknown_durable; JournalError not_kept."""
        durables = self._broker.durables
        durable = durables.delete(asked.client, asked.name)
        await self._broker.kept.save()
        return DurableName(client=durable.client, name=durable.name)

    async def disconnect(self, asked: requests.Disconnect) -> Disconnected:
        """It is told why."""
        connection = self._connection(asked.name)
        why = f"An operator disconnected this client: {asked.reason}"
        connection.close("operator_disconnect", why, retry_after_ms=1_000)
        return Disconnected(name=connection.name, reason=asked.reason)

    async def offline(self, asked: requests.Offline) -> Offlined:
        """As policy would. It is live again when it has taken what waits. OperatorError not_live, disk_full."""
        connection = self._connection(asked.name)
        offline_now(self._broker.enforcement, connection)
        return Offlined(name=connection.name, state=Delivery(connection.backlog.state.value))

    async def pause(self, asked: requests.Pause) -> Steered:
        """Send nothing of the subscriptions until they are resumed. What comes for them waits, and counts."""
        connection = self._connection(asked.name)
        targets = _targets(connection, asked.subscription)
        for target in targets:
            pause(connection, target)
        return _steered(connection, targets)

    async def resume(self, asked: requests.Resume) -> Steered:
        """End a pause by an operator or by policy; one that the client asked for is the client's to end."""
        connection = self._connection(asked.name)
        targets = _targets(connection, asked.subscription)
        for target in targets:
            resume(connection, target)
        return _steered(connection, targets)

    def _connection(self, name: str) -> Member:
        connection = self._broker.roster.clients.get(name)
        if connection is None:
            raise OperatorError(
                "unknown_client", f"No client {name!r} is connected.", "See the clients page."
            )
        return connection


def _targets(connection: Member, id: str) -> list[ClientSubscription]:
    if not id:
        return list(connection.subscriptions.values())
    target = connection.subscriptions.get(id)
    if target is None:
        raise OperatorError(
            "unknown_subscription", f"{connection.name} has no subscription {id!r}.", "See the client's page."
        )
    return [target]


def _steered(connection: Member, targets: list[ClientSubscription]) -> Steered:
    return Steered(name=connection.name, subscriptions=[target.id for target in targets])
