"""Clients: who is connected, what is in force for them, what was decided about them, and what an operator does to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker_core.config.transports import MAX_BODY, STOMP_KINDS, ResumeFrom
from broker_core.connections.connection_view import ConnectionView
from broker_core.control import listing
from broker_core.control.status import Statistics
from broker_core.documents import requests
from broker_core.documents.clients import (
    ClientEntry,
    ClientsPage,
    DeliveryState,
    DisconnectReply,
    EffectiveSetting,
    ForecastEntry,
    OfflineReply,
    PauseReply,
)
from broker_core.documents.replays import DurableEntry, DurableName
from broker_core.documents.system_records import DecisionEntry, LossEntry
from broker_core.engine.enforcement import offline_client, pause_subscription, resume_subscription
from broker_core.engine.engine import Engine
from broker_core.errors import OperatorError
from broker_core.replay.client_subscription import ClientSubscription


class ClientRequests:
    """Answers about clients. Whoever names one that isn't connected is told `unknown_client`."""

    def __init__(self, engine: Engine, statistics: Statistics) -> None:
        self._engine = engine
        self._statistics = statistics

    async def clients(self, asked: requests.ListClients) -> list[ClientEntry]:
        return self._statistics.clients()

    async def page(self, asked: requests.PageClients) -> ClientsPage:
        """Some of them. OperatorError bad_sort."""
        return listing.page(self._statistics.recent_clients(), asked)

    async def client(self, asked: requests.GetClient) -> ClientEntry:
        return self._statistics.client(self._connection(asked.name))

    async def effective(self, asked: requests.GetEffectiveSettings) -> list[EffectiveSetting]:
        """The settings in force for one."""
        connection = self._connection(asked.name)
        return [*self._engine.guard.effective(connection.name), *self._of_stomp(connection.transport)]

    def _of_stomp(self, transport: str) -> Iterator[EffectiveSetting]:
        """What a STOMP transport says beside policies."""
        for own in self._engine.policy.transports:
            if own.name == transport and own.kind in STOMP_KINDS:
                for name, value, default, unit in (
                    ("resume", own.resume.value, ResumeFrom.NOW.value, ""),
                    ("max_body", own.max_body or MAX_BODY, MAX_BODY, "bytes"),
                ):
                    origin = "default" if value == default else f"transport {transport}"
                    yield EffectiveSetting(
                        setting=f"stomp.{name}", value=value, unit=unit, origin=origin, subscription=""
                    )

    async def forecasts(self, asked: requests.GetForecasts) -> list[ForecastEntry]:
        """Of every rule that looks at one, the one that acts first in front, those without a time last."""
        found = self._engine.guard.forecasts(self._connection(asked.name).name, self._engine.clock.now_ns())
        found.sort(key=lambda one: (one.fires_in_ms is None, one.fires_in_ms or 0, -one.percent))
        return found

    async def decisions(self, asked: requests.ListDecisions) -> list[DecisionEntry]:
        return [one for one in self._engine.decisions.recent if one.at >= asked.since]

    async def losses(self, asked: requests.ListLosses) -> list[LossEntry]:
        """The newest of all, or of one, which needn't be connected."""
        found = (one for one in self._engine.ledger.recent if asked.client in (None, one.client))
        return [one.entry(self._engine.instance) for one in found]

    async def durables(self, asked: requests.ListDurables) -> list[DurableEntry]:
        """Also those whose client is away."""
        return self._engine.durables.listed()

    async def delete_durable(self, asked: requests.DeleteDurable) -> DurableName:
        """Stored when it is answered. OperatorError unknown_durable; JournalError not_kept."""
        durable = self._engine.durables.delete(asked.client, asked.name)
        await self._engine.kept.save()
        return DurableName(client=durable.client, name=durable.name)

    async def disconnect(self, asked: requests.DisconnectClient) -> DisconnectReply:
        connection = self._connection(asked.name)
        why = f"An operator disconnected this client: {asked.reason}"
        ending = connection.dismiss("operator_disconnect", why, retry_after_ms=1_000)
        return DisconnectReply(
            name=connection.name,
            reason=asked.reason,
            kept=ending.kept.messages,
            lost=ending.lost.messages,
            bookmark=connection.resume_bookmark(ending) or "",
        )

    async def offline(self, asked: requests.OfflineClient) -> OfflineReply:
        """As policy would. It is live again when it has taken what waits. OperatorError not_live, also when its spool can't
        be written."""
        connection = self._connection(asked.name)
        offline_client(self._engine.enforcement, connection)
        return OfflineReply(name=connection.name, state=DeliveryState(connection.backlog.state.value))

    async def pause(self, asked: requests.PauseClient) -> PauseReply:
        """Send nothing of the subscriptions until they are resumed. What comes for them waits, and counts."""
        return self._steer(asked, pause_subscription)

    async def resume(self, asked: requests.ResumeClient) -> PauseReply:
        """End a pause by an operator or by policy; one that the client asked for is the client's to end."""
        return self._steer(asked, resume_subscription)

    def _steer(
        self,
        asked: requests.PauseClient | requests.ResumeClient,
        steer: Callable[[ConnectionView, ClientSubscription], None],
    ) -> PauseReply:
        connection, id = self._connection(asked.name), asked.subscription
        if id and id not in connection.subscriptions:
            raise OperatorError(
                "unknown_subscription",
                f"{connection.name} has no subscription {id!r}.",
                "See the client's page.",
            )
        steered = [id] if id else list(connection.subscriptions)
        for one in steered:
            steer(connection, connection.subscriptions[one])
        return PauseReply(name=connection.name, subscriptions=steered)

    def _connection(self, name: str) -> ConnectionView:
        connection = self._engine.roster.clients.get(name)
        if connection is None:
            raise OperatorError(
                "unknown_client", f"No client {name!r} is connected.", "See the clients page."
            )
        return connection
