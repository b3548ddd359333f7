"""Links to other sites, as the brokers that carry them see them."""

from __future__ import annotations

from typing import NamedTuple

from broker_core.documents.links import LinkEntry, Links
from broker_core.documents.requests import GetLinks
from console.broker_link import Told, ask_each


class LinksNow(NamedTuple):
    """`links`: each with the member that says so of itself; `away`: brokers that couldn't be asked."""

    links: list[tuple[str, LinkEntry]]
    away: list[Told[Links]]


def links_now(instance_name: str) -> LinksNow:
    """Of every broker of the instance."""
    told = ask_each(instance_name, GetLinks())
    return LinksNow(
        [(one.member, link) for one in told if one.answer is not None for link in one.answer.links],
        [one for one in told if one.answer is None],
    )
