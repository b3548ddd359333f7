"""Requests about clients: lists and pages, effective settings, decisions, and operator actions on one client.

Pages are filtered, sorted and cut in the broker, so that of 10,000 clients only one page is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from broker_core.config.transports import MAX_BODY, STOMP_KINDS, ResumeFrom
from broker_core.connections.connection_view import ConnectionView
from broker_core.control.status import StatusCollector
from broker_core.documents import client_columns, requests
from broker_core.documents.clients import (
    ClientEntry,
    ClientsPage,
    DeliveryState,
    DisconnectReply,
    EffectiveSetting,
    ForecastEntry,
    Health,
    OfflineReply,
    PauseReply,
)
from broker_core.documents.replays import DurableEntry, DurableName
from broker_core.documents.requests import PageClients
from broker_core.documents.system_records import DecisionEntry, LossEntry
from broker_core.engine.enforcement import offline_client, pause_subscription, resume_subscription
from broker_core.engine.engine import Engine
from broker_core.errors import OperatorError
from broker_core.names import name_matches
from broker_core.replay.client_subscription import ClientSubscription

_NAME, _BEHIND = attrgetter("name"), attrgetter("seconds_behind")


def client_page(everyone: Sequence[ClientEntry], asked: PageClients) -> ClientsPage:
    """Return the requested page of the clients that match the request's filters.

    Raises:
        OperatorError: bad_sort.
    """
    needle = asked.search.casefold()
    found = sort_clients(
        [one for one in everyone if _fits(one, asked, needle)], asked.sort or client_columns.DEFAULT_SORT
    )
    return ClientsPage(total=len(found), clients=found[asked.offset : asked.offset + asked.limit])


def sort_clients(entries: Sequence[ClientEntry], sort: str) -> list[ClientEntry]:
    """Return the entries sorted by a column's key, descending after "-". Health is sorted worst first.

    Entries without a value come last in both directions. Ties are sorted by lag, greatest first, then by
    name.

    Raises:
        OperatorError: bad_sort.
    """
    field, down = sort.removeprefix("-"), sort.startswith("-")
    known = client_columns.sort_fields()
    if field not in known:
        raise OperatorError(
            "bad_sort", f"Clients can't be sorted by {field[:50]!r}.", f"Use {', '.join(known)}."
        )
    # One stable sort per key, the least important first. For 10,000 clients each second, sorting by tuples
    # takes four times as long.
    found = sorted(entries, key=_NAME)
    found.sort(key=_BEHIND, reverse=True)
    values = list(map(attrgetter(field), found))
    if values and isinstance(values[0], Health):
        values = [one.rank for one in values]
    filled = [place for place, one in enumerate(values) if one is not None]
    filled.sort(key=values.__getitem__, reverse=down)
    empty = [found[place] for place, one in enumerate(values) if one is None]
    return [found[place] for place in filled] + empty


def matches_search(one: ClientEntry, needle: str) -> bool:
    """Return whether the case-folded `needle` is part of the client's name, transport, address or user.

    Pages and windows use the same search. Written out, because a page calls it for 10,000 clients.
    """
    return (
        needle in one.name.casefold()
        or needle in one.transport.casefold()
        or needle in one.remote.casefold()
        or needle in one.user.casefold()
    )


def _fits(one: ClientEntry, asked: PageClients, needle: str) -> bool:
    """Return whether a client matches the request's filters."""
    return (
        (not asked.delivery or one.delivery == asked.delivery)
        and (not asked.health or one.health == asked.health)
        and (not asked.transport or one.transport == asked.transport)
        and (not needle or matches_search(one, needle))
        and (asked.patterns is None or any(name_matches(pattern, one.name) for pattern in asked.patterns))
    )


class ClientRequests:
    """Handlers of requests about clients.

    Raises:
        OperatorError: unknown_client, when a request names a client that is not connected.
    """

    def __init__(self, engine: Engine, statistics: StatusCollector) -> None:
        self._engine = engine
        self._statistics = statistics

    async def clients(self, asked: requests.ListClients) -> list[ClientEntry]:
        """Return all clients."""
        return self._statistics.clients()

    async def page(self, asked: requests.PageClients) -> ClientsPage:
        """Return a page of clients. Raises OperatorError bad_sort."""
        return client_page(self._statistics.recent_clients(), asked)

    async def client(self, asked: requests.GetClient) -> ClientEntry:
        """Return one client."""
        return self._statistics.client(self._connection(asked.name))

    async def effective(self, asked: requests.GetEffectiveSettings) -> list[EffectiveSetting]:
        """Return the settings in force for a client."""
        connection = self._connection(asked.name)
        return [*self._engine.guard.effective(connection.name), *self._of_stomp(connection.transport)]

    def _of_stomp(self, transport: str) -> Iterator[EffectiveSetting]:
        """Yield the settings of a STOMP transport that are not part of policies."""
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
        """Return the forecasts of all rules about a client, the first to act first.

        Forecasts without a time come last.
        """
        found = self._engine.guard.forecasts(self._connection(asked.name).name, self._engine.clock.now_ns())
        found.sort(key=lambda one: (one.fires_in_ms is None, one.fires_in_ms or 0, -one.percent))
        return found

    async def decisions(self, asked: requests.ListDecisions) -> list[DecisionEntry]:
        """Return the newest decisions that were made at or after `asked.since`, ms UTC."""
        return [one for one in self._engine.decisions.recent if one.at >= asked.since]

    async def losses(self, asked: requests.ListLosses) -> list[LossEntry]:
        """Return the newest losses of all clients, or of one client, which may be disconnected."""
        found = (one for one in self._engine.ledger.recent if asked.client in (None, one.client))
        return [one.to_entry(self._engine.instance) for one in found]

    async def durables(self, asked: requests.ListDurables) -> list[DurableEntry]:
        """Return the durable subscriptions, including those of disconnected clients."""
        return self._engine.durables.list_entries()

    async def delete_durable(self, asked: requests.DeleteDurable) -> DurableName:
        """Delete a durable subscription. The deletion is stored before the reply.

        Raises:
            OperatorError: unknown_durable.
            JournalError: not_kept.
        """
        durable = self._engine.durables.delete(asked.client, asked.name)
        await self._engine.kept.save()
        return DurableName(client=durable.client, name=durable.name)

    async def disconnect(self, asked: requests.DisconnectClient) -> DisconnectReply:
        """Disconnect a client."""
        connection = self._connection(asked.name)
        why = f"An operator disconnected this client: {asked.reason}"
        ending = connection.close_with_summary("operator_disconnect", why, retry_after_ms=1_000)
        return DisconnectReply(
            name=connection.name,
            reason=asked.reason,
            kept=ending.kept.messages,
            lost=ending.unrecoverable.messages,
            bookmark=connection.resume_bookmark(ending) or "",
        )

    async def offline(self, asked: requests.OfflineClient) -> OfflineReply:
        """Offline a client, as policy would. It is live again when it has read its backlog.

        Raises:
            OperatorError: not_live, also when its spool cannot be written.
        """
        connection = self._connection(asked.name)
        offline_client(self._engine.enforcement, connection)
        return OfflineReply(name=connection.name, state=DeliveryState(connection.backlog.state.value))

    async def pause(self, asked: requests.PauseClient) -> PauseReply:
        """Stop sending to the client's subscriptions until they are resumed. New messages wait, and count."""
        return self._steer(asked, pause_subscription)

    async def resume(self, asked: requests.ResumeClient) -> PauseReply:
        """End a pause by an operator or by policy. A pause that the client requested is not ended."""
        return self._steer(asked, resume_subscription)

    def _steer(
        self,
        asked: requests.PauseClient | requests.ResumeClient,
        steer: Callable[[ConnectionView, ClientSubscription], None],
    ) -> PauseReply:
        """Pause or resume one subscription of a client, or all."""
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
        """Return a connected client. Raises OperatorError unknown_client."""
        connection = self._engine.roster.clients.get(name)
        if connection is None:
            raise OperatorError(
                "unknown_client", f"No client {name!r} is connected.", "See the clients page."
            )
        return connection
