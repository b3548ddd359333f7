"""The page of the group."""

from __future__ import annotations

from typing import Any

from django.test import Client

from broker_core.group.settings import GroupSettings
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


def test_a_broker_by_itself_says_so_and_only_a_groups_console_leads_there(
    browser: Client, broker: FakeBroker, settings: Any
) -> None:
    assert "by itself" in browser.get("/replication/").content.decode()
    assert 'href="/replication/" data-go' not in browser.get("/").content.decode()
    settings.SLUICE_GROUP = GroupSettings("sluice-1", "a", ("nats://127.0.0.1:4222",))
    assert 'href="/replication/" data-go' in browser.get("/").content.decode()
