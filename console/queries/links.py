"""Links to other sites, as the brokers that carry them see them."""

from __future__ import annotations

from typing import Final, NamedTuple

from broker_core.bookmark import bookmark_sequence
from broker_core.documents.replication import LinkEntry, LinkList, LinkState
from broker_core.documents.requests import GetLinks
from console.broker_link import BrokerAnswer, ask_all_brokers

PATIENCE_S = 2.0
_KNOWING: Final[tuple[LinkState, ...]] = ("carrying", "away", "off", "standing by")


class LinkView(NamedTuple):
    """One link, as the member says that carries it, or else one that would: `member`, "" of a broker by
    itself. `others` stand by."""

    member: str
    entry: LinkEntry
    others: list[str]
    has_any: bool
    """Whether the destination has said that it has anything."""

    @property
    def has_lag(self) -> bool:
        """Whether the time that it is behind can be told: of records that it hasn't passed the oldest's
        moment may be unknown."""
        return bool(self.entry.behind_ms) or not self.entry.behind


class LinksView(NamedTuple):
    """`links`: each once; `away`: brokers that couldn't be asked."""

    links: list[LinkView]
    away: list[BrokerAnswer[LinkList]]

    @property
    def is_healthy(self) -> bool:
        """Whether every broker could be asked, and each link that is to carry does."""
        return not self.away and all(one.entry.state != "away" for one in self.links)


def current_links(instance_name: str) -> LinksView:
    """Of every broker of the instance."""
    told = ask_all_brokers(instance_name, GetLinks(), timeout_s=PATIENCE_S)
    found: dict[str, list[tuple[str, LinkEntry]]] = {}
    for one in told:
        for link in one.answer.links if one.answer is not None else ():
            found.setdefault(link.name, []).append((one.member, link))
    return LinksView(
        [_seen(said, instance_name) for said in found.values()], [one for one in told if one.answer is None]
    )


def _seen(said: list[tuple[str, LinkEntry]], instance_name: str) -> LinkView:
    """Whoever carries it knows; else who tries to, or has it switched off, rather than who stands by."""
    member, entry = min(said, key=lambda one: _KNOWING.index(one[1].state))
    others = [other for other, link in said if link.state == "standing by" and other != member]
    return LinkView(member, entry, others, bool(bookmark_sequence(entry.position or "0", instance_name)))
