"""The replication page of a group."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from broker_core.documents.replication import LinkEntry
from tests.support.fake_broker import CHAIN, FakeBroker, make_group, make_link, make_member
from tests.support.html import minified
from tests.support.machines import Machines


def test_it_shows_each_member_its_lag_and_whether_it_is_the_same(browser: Client, broker: FakeBroker) -> None:
    behind = make_member("b", behind=3, sequence=9_810_944, lag_records=256, lag_ms=4_200)
    broker.group = make_group(
        make_member("a", alike=None), behind, make_member("c", alike=False), make_member("d", there=False)
    )
    text = minified(browser.get("/replication/"))
    assert "3 of 3 up to date, <bdi>engine-2</bdi> leads" in text
    assert "Attention needed: <bdi>c</bdi>, <bdi>d</bdi>" in text and "differs" in text and "away" in text
    assert "256" in text and "4.2 s" in text and CHAIN in text
    slow = make_member("b", mode="downgraded", downgraded_by="policy", confirmed=9_810_944)
    broker.group = make_group(make_member("a", alike=None, mode="sync"), slow)
    text = minified(browser.get("/replication/"))
    assert (
        "downgraded by policy: acknowledgements do not wait for it; it has confirmed record 9,810,944" in text
    )
    broker.group = make_group(make_member("a", alike=None), make_member("b"))
    assert "Every member is active and consistent" in minified(browser.get("/replication/"))


def test_a_broker_by_itself_says_so_and_shows_its_links(browser: Client, broker: FakeBroker) -> None:
    text = minified(browser.get("/replication/"))
    assert "isn&#x27;t in a group" in text and "Destinations at other sites" in text
    assert 'href="/replication/" data-go' in minified(browser.get("/"))
    broker.links = [make_link("newyork", carried=9)]
    text = minified(browser.get("/replication/"))
    assert (
        "newyork" in text
        and "disconnected: Nobody answers." in text
        and "async: publishers don’t wait" in text
    )
    assert "12,345" in text and "1 min 01 s" in text and "sluice-1|7|" in text


def test_it_says_of_a_sync_destination_whether_it_is_waited_for_and_why_not(
    browser: Client, broker: FakeBroker
) -> None:
    broker.links = [make_link("ny", mode="sync", confirmed=7_654, unconfirmed_ms=2_000)]
    text = minified(browser.get("/replication/"))
    assert (
        "sync: publishers wait for it; it has confirmed record 7,654" in text and "for 2.0 s by now" in text
    )
    broker.links = [make_link("ny", mode="downgraded", downgraded_by="policy", downgrades=3, upgrades=2)]
    text = minified(browser.get("/replication/"))
    assert "downgraded by policy: publishers do not wait for it until it has caught up" in text
    assert "3 downgraded and 2 upgraded since the start" in text
    broker.links = [make_link("ny", mode="downgraded", downgraded_by="ada", downgraded_at=1_764_000_000_000)]
    text = minified(browser.get("/replication/"))
    assert (
        "downgraded by ada, " in text
        and "publishers do not wait for it until it is upgraded manually" in text
    )


def test_of_a_member_that_was_never_heard_of_nothing_is_a_figure(browser: Client, broker: FakeBroker) -> None:
    never = make_member("b", there=False, applied=0, sequence=0, chain="", alike=None, mode="sync")
    broker.group = make_group(make_member("a", alike=None), never)
    row = re.split(r"<bdi>b</bdi></td>", minified(browser.get("/replication/")))[1]
    assert row.count('<span class="muted">unknown</span>') == 3 and ">never<" in row
    assert "at record" not in row and "0 entries" not in row and "What is shown of it" not in row
    gone = make_member("b", there=False, heard_s=75.0, behind=4, lag_records=1, lag_ms=2_500, alike=None)
    broker.group = make_group(make_member("a", alike=None), gone)
    row = re.split(r"<bdi>b</bdi></td>", minified(browser.get("/replication/")))[1]
    assert "1 record," in row and "2.5 s" in row
    assert "Its figures were reported 1 min 15 s ago; its lag is counted from then" in row


@pytest.mark.parametrize(
    ("position", "behind_ms", "said"),
    [("sluice-1|0|", 0, ("time unknown", "nothing yet")), ("sluice-1|7|", 9_000, ("9.0 s", "sluice-1|7|"))],
)
def test_a_link_that_has_carried_nothing_has_no_time_and_no_place(
    browser: Client, broker: FakeBroker, position: str, behind_ms: int, said: tuple[str, str]
) -> None:
    broker.links = [
        LinkEntry(
            name="ny",
            client="link.ny",
            addresses=[],
            topic=">",
            filter=None,
            state="away",
            instance="",
            code="broker_away",
            why="",
            fix="",
            behind=12,
            behind_ms=behind_ms,
            position=position,
            carried=0,
            gaps=0,
            connected_at=None,
        )
    ]
    text = minified(browser.get("/replication/"))
    assert all(words in text for words in said) and "12 records," in text


def test_a_groups_link_is_shown_once_by_who_carries_it(browser: Client, machines: Machines) -> None:
    text = minified(browser.get("/replication/"))
    assert text.count("link.newyork") == 1 and "Links, 2 in all" in text
    assert "by <bdi>a</bdi>; <bdi>b</bdi> and <bdi>c</bdi> stand by" in text
    machines.play("away a")
    text = minified(browser.get("/replication/"))
    assert "standing by: another member of the group forwards, one that is unreachable" in text
    assert "No link report from <bdi>sluice-1/a</bdi>:" in text
