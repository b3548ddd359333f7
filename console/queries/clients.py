"""The clients of a running broker, as it sees them now: a page of them, filtered and sorted, and one with its subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from msgspec import structs

from broker_core.documents import requests
from broker_core.documents.clients import ClientEntry, ClientsPage, EffectiveSetting, ForecastEntry
from console.broker_link import link_to
from console.queries.policies import instance_named


class ClientSequence(Sequence[ClientEntry]):
    """The clients that fit, as a sequence that asks the broker for the part that is looked at: a paginator slices it.

    `sort` like "-lag_ms", "" being the worst health first; `patterns` are those of the names that may be seen, None being
    all. Raises BrokerUnavailable, or OperatorError bad_sort, when it is looked at.
    """

    def __init__(
        self, instance_name: str | None = None, *, delivery: str = "", health: str = "", transport: str = "",
        search: str = "", sort: str = "", patterns: Sequence[str] | None = None,
        member: str = "",
    ) -> None:  # fmt: skip
        self._link = link_to(instance_named(instance_name).name, member)
        self._asked = requests.PageClients(
            delivery=delivery, health=health, transport=transport, search=search, sort=sort,
            patterns=list(patterns) if patterns is not None else None,
        )  # fmt: skip
        self._part = (0, 0)
        self._answer: ClientsPage | None = None

    def __len__(self) -> int:
        return (self._answer or self._ask(0, 100)).total

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
            known, first = self._ask(start, stop - start), start
        return known.clients[start - first : stop - first]

    def _ask(self, offset: int, limit: int) -> ClientsPage:
        asked = structs.replace(self._asked, offset=offset, limit=min(limit, requests.MAX_CLIENTS))
        self._answer, self._part = self._link.call(asked), (offset, offset + limit)
        return self._answer


def client(name: str, instance_name: str | None = None) -> ClientEntry:
    """One client. Raises OperatorError unknown_client, or BrokerUnavailable."""
    return link_to(instance_named(instance_name).name).call(requests.GetClient(name=name))


def forecasts(name: str, instance_name: str | None = None) -> list[ForecastEntry]:
    """How near each rule is to acting on a client, the one that acts first in front. Raises as `client`."""
    return link_to(instance_named(instance_name).name).call(requests.GetForecasts(name=name))


def effective_settings(name: str, instance_name: str | None = None) -> list[EffectiveSetting]:
    """The settings in force for a client, with where each is set. Raises as `client`."""
    return link_to(instance_named(instance_name).name).call(requests.GetEffectiveSettings(name=name))
