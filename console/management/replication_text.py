"""Text that `manage.py replication` prints about a group and links."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.table import Table

from broker_core.documents.replication import GroupStatus, LinkEntry, MemberEntry
from console.queries.links import LinksView, LinkView

Column = tuple[str, Literal["left", "right"]]
_MEMBERS: tuple[Column, ...] = (
    ("member", "left"),
    ("", "left"),
    ("applied", "right"),
    ("behind", "right"),
    ("record", "right"),
    ("lag", "right"),
    ("waited for", "left"),
    ("hash there", "left"),
)
_LINKS: tuple[Column, ...] = (
    ("link", "left"),
    ("to", "left"),
    ("", "left"),
    ("behind", "right"),
    ("lag", "right"),
    ("stored there up to", "left"),
    ("waited for", "left"),
)
_LIKE = {None: "not compared yet", True: "the same", False: "DIFFERS"}


def show_group(status: GroupStatus, console: Console) -> None:
    """Print the state of a group as the answering member reports it."""
    _print_sentence(console, f"{status.instance}: {status.member} is {status.state}{_since(status.since)}")
    if status.why:
        _print_sentence(console, f"  {status.why} {status.fix}")
    if status.log:
        leader = f", {status.leader} leads" if status.leader else ""
        _print_sentence(
            console,
            f"  log {status.log}, generation {status.generation}, {status.last} entries;"
            f" {status.engines_current} of {status.engines} NATS servers up to date{leader}",
        )
    if abs(status.clock_ahead_ms) > 2_000:
        _print_sentence(
            console, f"  this machine's clock is {status.clock_ahead_ms / 1_000:+.1f} s off the log service's"
        )
    table = _table(_MEMBERS)
    for one in status.members:
        how = "here" if one.name == status.member else "away" if not one.there else _LIKE[one.alike]
        table.add_row(
            one.name,
            how,
            str(one.applied),
            "unknown" if one.behind is None else str(one.behind),
            str(one.sequence),
            "unknown" if one.lag_ms is None else f"{one.lag_ms / 1_000:.1f} s",
            _mode(one),
            one.chain or "unknown",
        )
    console.print(table)


def show_links(now: LinksView, console: Console) -> None:
    """Print each link once, and why a link is away or a broker didn't answer."""
    table = _table(_LINKS)
    for link in now.links:
        one = link.entry
        lag = f"{one.behind_ms / 1_000:.1f} s" if link.has_lag else "unknown"
        stored = one.position if link.has_any else "nothing yet"
        table.add_row(one.client, _where(one), _state(link), str(one.behind), lag, stored, _mode(one))
    if now.links:
        console.print(table)
    elif not now.away:
        _print_sentence(
            console, "no links to other sites: add a destination to the policy to create one (docs/sites.md)"
        )
    for link in now.links:
        if link.entry.state == "away":
            reason = link.entry.why or "the broker is connecting."
            code, since = link.entry.code or "away", _since(link.entry.since)
            _print_sentence(console, f"  {link.entry.client} ({code}{since}): {reason} {link.entry.fix}")
        if link.entry.gaps:
            _print_sentence(
                console,
                f"  {link.entry.client}: {link.entry.gaps} intervals of the log were removed before "
                "the link forwarded them",
            )
        if link.entry.set_back_at:
            at = datetime.fromtimestamp(link.entry.set_back_at / 1_000, UTC)
            _print_sentence(
                console,
                f"  {link.entry.client}: returned with fewer records at {at:%Y-%m-%d %H:%M} UTC; it "
                f"had confirmed record {link.entry.set_back_had}; from {link.entry.set_back_has + 1} "
                "on the link forwards again",
            )
    for reply in now.away:
        if reply.error is not None:
            _print_sentence(
                console,
                f"  the link status of {reply.address.name} is missing: {reply.error.sentence} "
                f"{reply.error.fix}",
            )


def links_as_json(now: LinksView) -> dict[str, Any]:
    """Return the links as JSON.

    `links` has each link with the member that carries it and the members standing by. `unasked` has brokers
    that didn't answer, each with the error code.
    """
    links = [
        {"member": one.member, "others": one.others} | msgspec.to_builtins(one.entry) for one in now.links
    ]
    unasked = {one.address.name: one.error.code for one in now.away if one.error is not None}
    return {"links": links, "unasked": unasked}


def _table(columns: tuple[Column, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title, justify in columns:
        table.add_column(title, justify=justify, overflow="fold")
    return table


def _print_sentence(console: Console, sentence: str) -> None:
    console.print(sentence.rstrip(), highlight=False, soft_wrap=True, markup=False)


def _since(at: int | None) -> str:
    return f", since {datetime.fromtimestamp(at / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC" if at else ""


def _where(one: LinkEntry) -> str:
    return " ".join(filter(None, (one.instance, f"({', '.join(one.addresses)})")))


def _state(link: LinkView) -> str:
    by = f" by {link.member}" if link.member and link.entry.state == "carrying" else ""
    others = f"; {', '.join(link.others)} on standby" if link.others else ""
    return f"{link.entry.state}{by}{others}"


def _mode(one: MemberEntry | LinkEntry) -> str:
    if one.mode == "downgraded":
        if not one.downgraded_at:
            return f"downgraded by {one.downgraded_by}"
        at = datetime.fromtimestamp(one.downgraded_at / 1_000, UTC)
        return f"downgraded by {one.downgraded_by}, {at:%Y-%m-%d %H:%M} UTC"
    if one.mode == "sync" and one.unconfirmed_ms > 1_000:
        return f"sync, for {one.unconfirmed_ms / 1_000:.1f} s"
    return one.mode
