"""Pages for a past time: sampled clients, the revision in force, and no actions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.models import ClientMinute, ClientSample, Decision, Instance, ResourceSample, RevisionReport
from console.services import policies
from console.services.actors import Actor
from tests.support.html import minified

NOW = timezone.now().replace(microsecond=0)
THEN = NOW - timedelta(hours=2)


def address(path: str, at: datetime) -> str:
    return f"{path}?at={at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


@pytest.fixture
def recorded(instance: Instance, actor: Actor) -> Instance:
    """Store data two hours old: a client behind, one idle for 30 s, one already disconnected, and the first
    revision in force.
    """

    def sample(name: str, seconds: int, state: str = "live", lag: int = 0) -> ClientSample:
        at = THEN - timedelta(seconds=seconds)
        return ClientSample(instance=instance, client=name, at=at, state=state, lag_ms=lag, lag_messages=lag)

    ClientSample.objects.bulk_create(
        [
            sample("behind", 10, lag=9),
            sample("behind", 0, "offlined", 70_000),
            sample("resting", 50),
            sample("left", 40, lag=5),
        ]
    )
    ResourceSample.objects.create(
        instance=instance, kind="instance", name=instance.name, at=THEN, messages_in=120
    )
    Decision.objects.create(
        instance=instance,
        at=THEN - timedelta(minutes=1),
        client="behind",
        action="offline",
        reason="slow_client_age",
        sentence="It was offlined.",
    )
    Decision.objects.create(
        instance=instance,
        at=NOW,
        client="behind",
        action="disconnect",
        reason="slow_client_age",
        sentence="Later.",
    )
    RevisionReport.objects.create(
        instance=instance, number=1, pid=3, reported_at=THEN - timedelta(hours=1), seen_at=NOW
    )
    policies.change_instance_policy(
        actor, {"client_policy": {"client_max_capacity": 40}}, reason="since then"
    )
    return instance


def test_clients_stand_as_they_were_sampled_and_who_had_left_is_not_among_them(
    recorded: Instance, browser: Client
) -> None:
    page = minified(browser.get(address("/clients/", THEN)))
    assert page.index(">behind<") < page.index(">resting<") and ">left<" not in page
    assert "2 clients: 1 offlined" in page and "1 min 10 s" in page
    assert "Back to now" in page and 'id="pending-changes"' not in page and "data-feed" not in page
    assert ">resting<" not in minified(browser.get(address("/clients/", THEN) + "&q=BEH"))


def test_overview_client_and_policy_are_of_that_moment_and_links_stay_in_it(
    recorded: Instance, browser: Client
) -> None:
    page = minified(browser.get(address("/", THEN)))
    assert (
        "2 clients were logged on: 1 offlined" in page and "It was offlined." in page and "Later." not in page
    )
    assert f"/clients/behind/?at={THEN:%Y-%m-%dT%H:%M:%SZ}" in page
    one = minified(browser.get(address("/clients/behind/", THEN)))
    assert "1 min 10 s behind" in one and "Later." not in one
    gone = browser.get(address("/clients/behind/", THEN - timedelta(hours=1))).content.decode()
    assert "No sample: it was not connected" in gone and "No broker report from that time" in gone
    policy = minified(browser.get(address("/policies/", THEN)))
    assert "Revision 1 was in force" in policy and "since then" not in policy and "roll-back" not in policy


def test_after_a_day_the_worst_of_each_minute_is_left_and_the_page_says_so(
    recorded: Instance, browser: Client
) -> None:
    long_ago = (NOW - timedelta(days=3)).replace(second=0)
    ClientMinute.objects.create(
        instance=recorded, client="old", at=long_ago, state="draining", lag_ms=5_000, lag_messages=1
    )
    ResourceSample.objects.create(
        instance=recorded, kind="instance", name=recorded.name, seconds=60, at=long_ago
    )
    page = browser.get(address("/clients/", long_ago + timedelta(seconds=30))).content.decode()
    assert ">old<" in page and "the worst of each minute" in page


def test_a_part_of_a_timeline_stays_chosen_at_a_moment_and_back_to_now(
    recorded: Instance, browser: Client
) -> None:
    since, until = int(THEN.timestamp()) - 7_200, int(THEN.timestamp()) + 60
    part = f"&from={since}&to={until}&range=24h"
    page = browser.get(address("/clients/behind/", THEN) + part).content.decode()
    assert "The quarter of an hour before" not in page and "the worst of each 2 min" in page
    assert f'<a href="/clients/behind/?from={since}&amp;to={until}&amp;range=24h">Back to now</a>' in page
    for wrong in ("&from=1e9&to=2", "&from=99999999999&to=999999999999", f"&from={until}&to={since}"):
        page = browser.get(address("/clients/behind/", THEN) + wrong).content.decode()
        assert "The quarter of an hour before" in page


@pytest.mark.parametrize(
    "text", ["nonsense", "2999-01-01T00:00:00Z", "1999-01-01", "0001-01-01T00:00:00+14:00"]
)
def test_a_moment_that_cant_be_shown_leads_back_to_now_and_says_why(
    recorded: Instance, browser: Client, text: str
) -> None:
    answer = browser.get("/clients/", {"at": text}, follow=True)
    assert answer.redirect_chain == [("/clients/", 302)] and "Write at=" in answer.content.decode()
