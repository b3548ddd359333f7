"""`manage.py replication`: output for groups and links, and the choice of an instance by name."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from tests.support.fake_broker import FakeBroker, make_group, make_link, make_member
from tests.support.machines import Machines

CARRYING = {
    "state": "carrying",
    "code": "",
    "why": "",
    "behind": 0,
    "behind_ms": 0,
    "mode": "sync",
    "confirmed": 7,
    "connected_at": 1,
}


def run(*words: str) -> tuple[str, int]:
    """Run `manage.py replication`; return its output and exit code."""
    out, code = StringIO(), 0
    try:
        call_command("replication", *words, stdout=out)
    except SystemExit as ended:
        code = int(str(ended.code or 0))
    return out.getvalue(), code


def test_a_broker_by_itself_has_its_links_told(broker: FakeBroker) -> None:
    broker.links = [make_link("newyork"), make_link("tokyo", **CARRYING)]
    text, code = run("status")
    assert code == 1, "the exit code reports the disconnected link"
    assert "sluice-1: a broker by itself" in text
    row = next(line for line in text.splitlines() if line.startswith("link.newyork "))
    words = ("newyork (tcps://newyork:9007)", "away", "12345", "61.0 s", "sluice-1|7|", "async")
    assert [word for word in words if word not in row] == []
    assert "link.newyork (broker_away): Nobody answers." in text
    row = next(line for line in text.splitlines() if line.startswith("link.tokyo "))
    assert [word for word in ("carrying", "0.0 s", "sync") if word not in row] == []
    broker.links = broker.links[1:]
    assert run("status")[1] == run("links")[1] == 0


def test_a_broker_by_itself_without_links_says_how_one_is_made(broker: FakeBroker) -> None:
    text, code = run("status")
    assert (code, "no links to other sites: add a destination to the policy" in text) == (0, True)


def test_programs_get_the_same_as_json(broker: FakeBroker) -> None:
    broker.links = [make_link("newyork", mode="downgraded", downgraded_by="policy")]
    said = json.loads(run("status", "--json")[0])
    assert (said["instance"], said["state"]) == ("sluice-1", "a broker by itself")
    assert said["links"][0]["downgraded_by"] == "policy" and said["unasked"] == {}
    assert json.loads(run("links", "--json")[0])["links"] == said["links"]
    broker.group = make_group(make_member("a", alike=None))
    said = json.loads(run("status", "--json")[0])
    assert said["members"][0]["name"] == "a" and said["links"][0]["name"] == "newyork"


def test_a_group_is_not_well_whose_link_is_away(broker: FakeBroker) -> None:
    broker.group = make_group(make_member("a", alike=None), make_member("b"))
    assert run("status")[1] == 0
    broker.links = [make_link("newyork")]
    text, code = run("status")
    assert (code, "taking part" in text, "link.newyork (broker_away)" in text) == (1, True, True)


def test_a_groups_link_is_told_once_with_who_carries_it_and_who_cannot_be_asked(machines: Machines) -> None:
    text, _ = run("links")
    assert sum(line.startswith("link.newyork ") for line in text.splitlines()) == 1
    assert "carrying by a; b, c on standby" in " ".join(text.split())
    machines.play("away a")
    text, code = run("links")
    assert (code, "the link status of sluice-1/a is missing" in text) == (1, True)


@pytest.mark.parametrize(
    ("name", "members", "asked"),
    [
        ("newyork", (), ("downgrade_link", "newyork")),
        ("link.newyork", (), ("downgrade_link", "newyork")),
        ("newyork", ("a", "b"), ("downgrade_link", "newyork")),
        ("b", ("a", "b"), ("downgrade_member", "b")),
        ("newyork", ("a", "newyork"), ("downgrade_member", "newyork")),
        ("link.newyork", ("a", "newyork"), ("downgrade_link", "newyork")),
        ("nobody", ("a", "b"), ("downgrade_member", "nobody")),
        ("nobody", (), ("downgrade_link", "nobody")),
    ],
)
def test_a_name_means_a_member_else_a_link(
    broker: FakeBroker, name: str, members: tuple[str, ...], asked: tuple[str, str]
) -> None:
    broker.links = [make_link("newyork", **CARRYING)]
    if members:
        broker.group = make_group(*(make_member(one) for one in members))
    run("downgrade", name)
    told: list[dict[str, Any]] = [one for one in broker.asked if one["do"].startswith("downgrade")]
    assert [(one["do"], one["name"]) for one in told] == [asked]


def test_a_removed_member_is_forgotten_by_each_broker_and_each_refusal_is_told(machines: Machines) -> None:
    text, code = run("forget", "c")
    assert code == 0 and "sluice-1/a has removed c." in text and "sluice-1/b has removed c." in text
    machines.play("away a")
    text, _ = run("forget", "c")
    assert "sluice-1/b has removed c." in text and "sluice-1/a: " in text


def test_a_downgrade_at_an_unknown_moment_is_told_without_one(broker: FakeBroker) -> None:
    broker.links = [
        make_link("newyork", mode="downgraded", downgraded_by="policy"),
        make_link("tokyo", mode="downgraded", downgraded_by="ada", downgraded_at=1_764_000_000_000),
    ]
    text, _ = run("links")
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("link.")}
    assert "downgraded by policy" in rows["link.newyork"] and "UTC" not in rows["link.newyork"]
    assert "downgraded by ada, 2025-11-24 16:00 UTC" in rows["link.tokyo"]
