"""The page of the group."""

from __future__ import annotations

from django.test import Client

from broker_core.documents.links import LinkEntry
from tests.support.fake_broker import CHAIN, FakeBroker, make_group, make_member


def test_it_shows_each_member_its_lag_and_whether_it_is_the_same(browser: Client, broker: FakeBroker) -> None:
    behind = make_member("b", behind=3, sequence=9_810_944, lag_records=256, lag_ms=4_200)
    broker.group = make_group(
        make_member("a", alike=None), behind, make_member("c", alike=False), make_member("d", there=False)
    )
    text = browser.get("/replication/").content.decode()
    assert "3 of 3 up to date, <bdi>engine-2</bdi> leads" in text
    assert "Not all is well: <bdi>c</bdi>, <bdi>d</bdi>" in text and "differs" in text and "away" in text
    assert "256" in text and "4.2 s" in text and CHAIN in text
    slow = make_member("b", mode="downgraded", downgraded_by="policy", confirmed=9_810_944)
    broker.group = make_group(make_member("a", alike=None, mode="sync"), slow)
    text = browser.get("/replication/").content.decode()
    assert "downgraded by policy: nothing waits for it; it has confirmed record 9,810,944" in text
    broker.group = make_group(make_member("a", alike=None), make_member("b"))
    assert "Every member takes part and agrees" in browser.get("/replication/").content.decode()


def test_a_broker_by_itself_says_so_and_shows_its_links(browser: Client, broker: FakeBroker) -> None:
    text = browser.get("/replication/").content.decode()
    assert "by itself" in text and "Destinations at other sites" in text
    assert 'href="/replication/" data-go' in browser.get("/").content.decode()
    broker.links = [
        LinkEntry(
            name="newyork", client="link.newyork", addresses=["tcps://ny:9007"], topic="prices.>", filter="/n > 1",
            state="away", instance="ny", code="broker_away", why="Nobody answers.", fix="", behind=12_345,
            behind_ms=61_000, position="sluice-1|7|", carried=9, gaps=0, connected_at=None,
        )
    ]  # fmt: skip
    text = browser.get("/replication/").content.decode()
    assert (
        "newyork" in text and "away: Nobody answers." in text and "async: no publisher waits for it" in text
    )
    assert "12,345" in text and "1 min 01 s" in text and "sluice-1|7|" in text
