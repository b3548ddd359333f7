"""Links to other sites, as the brokers that carry them report them."""

from __future__ import annotations

from typing import Final, NamedTuple

from broker_core.bookmark import bookmark_sequence
from broker_core.documents.replication import LinkEntry, LinkList, LinkState
from broker_core.documents.requests import GetLinks
from console.broker_link import BrokerAnswer, ask_all_brokers

PATIENCE_S = 2.0
"""Seconds to wait for a broker's answer."""
_KNOWING: Final[tuple[LinkState, ...]] = ("carrying", "away", "off", "standing by")
"""Link states from best to least informed."""


class LinkView(NamedTuple):
    """Link as reported by the member that carries it, or by one that would.

    `member` is "" for a broker without a group. `others` are members on standby.
    """

    member: str
    entry: LinkEntry
    others: list[str]
    has_any: bool
    """Whether the destination has reported that it has any record."""

    @property
    def has_lag(self) -> bool:
        """Whether the lag in time is known.

        The moment of the oldest record that was not forwarded may be unknown.
        """
        return bool(self.entry.behind_ms) or not self.entry.behind


class LinksView(NamedTuple):
    """Links of an instance, each once, and the brokers that could not be asked (`away`)."""

    links: list[LinkView]
    away: list[BrokerAnswer[LinkList]]

    @property
    def is_healthy(self) -> bool:
        """Whether every broker answered and no link's destination is unavailable."""
        return not self.away and all(one.entry.state != "away" for one in self.links)


def current_links(instance_name: str) -> LinksView:
    """Return the links that the brokers of the instance report."""
    replies = ask_all_brokers(instance_name, GetLinks(), timeout_s=PATIENCE_S)
    found: dict[str, list[tuple[str, LinkEntry]]] = {}
    for one in replies:
        for link in one.answer.links if one.answer is not None else ():
            found.setdefault(link.name, []).append((one.member, link))
    return LinksView(
        [_link_view(reports, instance_name) for reports in found.values()],
        [one for one in replies if one.answer is None],
    )


def _link_view(reports: list[tuple[str, LinkEntry]], instance_name: str) -> LinkView:
    """Return a link as its best-informed member reports it.

    This is the member that carries it, else one that tries to, or has it disabled.
    """
    member, entry = min(reports, key=lambda one: _KNOWING.index(one[1].state))
    others = [other for other, link in reports if link.state == "standing by" and other != member]
    return LinkView(member, entry, others, bool(bookmark_sequence(entry.position or "0", instance_name)))
