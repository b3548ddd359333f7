"""Current clients of a running broker: a filtered and sorted page, or one client with its subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from msgspec import structs

from broker_core.documents import requests
from broker_core.documents.clients import ClientEntry, ClientsPage, EffectiveSetting, ForecastEntry
from console.broker_link import link_to
from console.queries.policies import instance_named


class ClientSequence(Sequence[ClientEntry]):
    """Matching clients as a lazy sequence.

    Slicing requests that part from the broker, so a paginator loads only its page. Access raises
    BrokerUnavailable, or OperatorError `bad_sort`.

    Args:
        instance_name: Instance; None means the selected one.
        delivery: Delivery state; "" means any.
        health: Health state; "" means any.
        search: Part of the client's name, transport, address or user.
        sort: Column, like "-lag_ms". "" sorts the worst health first.
        patterns: Patterns of the names that the caller may see; None means all.
        member: Member of a group; "" means all.
    """

    def __init__(
        self,
        instance_name: str | None = None,
        *,
        delivery: str = "",
        health: str = "",
        transport: str = "",
        search: str = "",
        sort: str = "",
        patterns: Sequence[str] | None = None,
        member: str = "",
    ) -> None:
        self._link = link_to(instance_named(instance_name).name, member)
        self._page_request = requests.PageClients(
            delivery=delivery,
            health=health,
            transport=transport,
            search=search,
            sort=sort,
            patterns=list(patterns) if patterns is not None else None,
        )
        self._part = (0, 0)
        self._answer: ClientsPage | None = None

    def __len__(self) -> int:
        return (self._answer or self._fetch_page(0, 100)).total

    @overload
    def __getitem__(self, key: int) -> ClientEntry: ...
    @overload
    def __getitem__(self, key: slice) -> list[ClientEntry]: ...
    def __getitem__(self, key: int | slice) -> ClientEntry | list[ClientEntry]:
        if not isinstance(key, slice):
            return self[key : key + 1][0]
        start, stop, _ = key.indices(2**31)
        known, (first, last) = self._answer, self._part
        if known is None or not first <= start <= stop <= last:
            known, first = self._fetch_page(start, stop - start), start
        return known.clients[start - first : stop - first]

    def _fetch_page(self, offset: int, limit: int) -> ClientsPage:
        request = structs.replace(self._page_request, offset=offset, limit=min(limit, requests.MAX_CLIENTS))
        self._answer, self._part = self._link.call(request), (offset, offset + limit)
        return self._answer


def client(name: str, instance_name: str | None = None) -> ClientEntry:
    """Return one client. Raises OperatorError `unknown_client`, or BrokerUnavailable."""
    return link_to(instance_named(instance_name).name).call(requests.GetClient(name=name))


def forecasts(name: str, instance_name: str | None = None) -> list[ForecastEntry]:
    """Return forecasts of the rules that may act on a client, soonest first. Raises as `client`."""
    return link_to(instance_named(instance_name).name).call(requests.GetForecasts(name=name))


def effective_settings(name: str, instance_name: str | None = None) -> list[EffectiveSetting]:
    """Return the settings in force for a client, each with the policy entry that sets it.

    Raises as `client`.
    """
    return link_to(instance_named(instance_name).name).call(requests.GetEffectiveSettings(name=name))
