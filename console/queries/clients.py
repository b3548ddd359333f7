"""The clients of a running broker, as it sees them now: a page of them, filtered and sorted, and one with its subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_core.runtime.listing import SORT_FIELDS
from console.broker_link import link_to
from console.queries.policies import instance_named

__all__ = ["SORT_FIELDS", "Clients", "client"]


class Clients(Sequence[dict[str, Any]]):
    """The clients that fit, as a sequence that asks the broker for the part that is looked at: a paginator slices it.

    `sort` like "-lag_ms"; `patterns` are those of the names that may be seen, None being all. Raises BrokerAway, or
    OperatorError bad_sort, when it is looked at.
    """

    def __init__(
        self, instance_name: str | None = None, *, state: str = "", transport: str = "", search: str = "",
        sort: str = "name", patterns: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self._link = link_to(instance_named(instance_name).name)
        self._asked = {
            "state": state, "transport": transport, "search": search, "sort": sort,
            "patterns": list(patterns) if patterns is not None else None,
        }  # fmt: skip
        self._part: tuple[int, int] | None = None
        self._answer: dict[str, Any] = {}

    def __len__(self) -> int:
        if self._part is None:
            self._ask(0, 100)
        return int(self._answer["total"])

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice):
            return self[key : key + 1][0]
        start, stop, _ = key.indices(2**31)
        if self._part is None or not self._part[0] <= start <= stop <= self._part[1]:
            self._ask(start, stop - start)
        first = self._part[0] if self._part else 0
        return self._answer["clients"][start - first : stop - first]

    def _ask(self, offset: int, limit: int) -> None:
        self._answer = self._link.call("clients_page", **self._asked, offset=offset, limit=limit)
        self._part = (offset, offset + limit)


def client(name: str, instance_name: str | None = None) -> dict[str, Any]:
    """One client. Raises OperatorError unknown_client, or BrokerAway."""
    found: dict[str, Any] = link_to(instance_named(instance_name).name).call("client", name=name)
    return found
