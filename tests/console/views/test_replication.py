"""The page of the group."""

from __future__ import annotations

from typing import Any

from django.test import Client

from broker_core.documents.group import GroupStatus, MemberEntry
from broker_core.group.settings import GroupSettings
from tests.support.fake_broker import FakeBroker

CHAIN = "0d4f" * 8


def member(name: str, **more: object) -> MemberEntry:
    said = {
        "there": True,
        "applied": 18_212,
        "behind": 0,
        "sequence": 9_811_200,
        "chain": CHAIN,
        "alike": True,
    }
    return MemberEntry(name=name, **{**said, **more})  # type: ignore[arg-type]


def group(*members: MemberEntry) -> GroupStatus:
    return GroupStatus(
        instance="sluice-1", member="a", state="taking part", why="", fix="", log="7b1e0a0e", generation=3, last=18_215,
        leader="engine-2", engines=3, engines_current=3, clock_ahead_ms=0, members=list(members),
    )  # fmt: skip


def test_it_shows_each_member_its_lag_and_whether_it_is_the_same(browser: Client, broker: FakeBroker) -> None:
    behind = member("b", behind=3, sequence=9_810_944, lag_records=256, lag_ms=4_200)
    broker.group = group(member("a", alike=None), behind, member("c", alike=False), member("d", there=False))
    text = browser.get("/replication/").content.decode()
    assert "3 of 3 up to date, <bdi>engine-2</bdi> leads" in text
    assert "not all is well" in text and "differs" in text and "away" in text
    assert "256" in text and "4.2 s" in text and CHAIN in text
    slow = member("b", mode="downgraded", downgraded_by="policy", confirmed=9_810_944)
    broker.group = group(member("a", alike=None, mode="sync"), slow)
    text = browser.get("/replication/").content.decode()
    assert "downgraded by policy: nothing waits for it; it has confirmed record 9,810,944" in text
    broker.group = group(member("a", alike=None), member("b"))
    assert "every member takes part and agrees" in browser.get("/replication/").content.decode()


def test_a_broker_by_itself_says_so_and_only_a_groups_console_leads_there(
    browser: Client, broker: FakeBroker, settings: Any
) -> None:
    assert "by itself" in browser.get("/replication/").content.decode()
    assert 'href="/replication/" data-go' not in browser.get("/").content.decode()
    settings.SLUICE_GROUP = GroupSettings("sluice-1", "a", ("nats://127.0.0.1:4222",))
    assert 'href="/replication/" data-go' in browser.get("/").content.decode()
