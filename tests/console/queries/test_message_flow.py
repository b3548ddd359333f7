"""Message flow of 500 clients: a few dozen boxes, slow clients in boxes of their own, and rates from delivery
accounts.
"""

from __future__ import annotations

from typing import Any

from broker_core.documents.clients import ClientEntry, Health
from console.queries.message_flow import MAX_GROUPS, MAX_SLOW, MAX_TOPICS, Flow, FlowMeter, build_flow
from tests.support.fake_broker import make_client, make_snapshot, make_subscription

DESKS, SLOW = 470, 30


def publisher(name: str, **topics: int) -> ClientEntry:
    by_topic = {topic.replace("_", "."): number for topic, number in topics.items()}
    return make_client(name, connected_at=5, published_topics=by_topic, subscriptions=[])


def desk(
    name: str, delivered: int, health: str = "keeps up", topic: str = "prices.>", **more: Any
) -> ClientEntry:
    one = {**make_subscription(health=health), "topic": topic, "delivered_messages": delivered}
    return make_client(name, connected_at=5, health=health, subscriptions=[one], **more)


def seen(*moments: list[ClientEntry], patterns: list[str] | None = None) -> Flow:
    meter = FlowMeter()
    for second, everyone in enumerate(moments):
        snapshot = make_snapshot(2_000 * second, *everyone)
        rates = meter.rates(snapshot)
    return build_flow(snapshot, rates, patterns)


def five_hundred(factor: int) -> list[ClientEntry]:
    slow = [
        desk(f"desk-{n:03}", 0, Health.STALLED if n % 2 else Health.FALLING_BEHIND, seconds_behind=float(n))
        for n in range(SLOW)
    ]
    usual = [desk(f"desk-{n:03}", 10 * factor) for n in range(SLOW, SLOW + DESKS)]
    feeds = [publisher("feed-eu", prices_eur=100 * factor, prices_usd=300 * factor)]
    return [*feeds, *slow, *usual]


def test_five_hundred_clients_are_a_few_boxes_and_the_slow_stand_by_themselves_in_front() -> None:
    found = seen(five_hundred(1), five_hundred(2))
    assert len(found.clients) <= MAX_SLOW + 1 + MAX_GROUPS
    assert sum(one.members for one in found.clients) == DESKS + SLOW
    first = found.clients[0]
    assert (first.name, first.health, first.members) == ("desk-029", "stalled", 1), (
        "the slowest client is listed first"
    )
    assert [one.name for one in found.clients if one.members > 1] == ["more slow", "desk-*"]


def test_rates_are_what_the_accounts_grew_by_and_a_patterns_are_divided_as_what_comes() -> None:
    found = seen(five_hundred(1), five_hundred(2))
    assert found.span_ms == 2_000
    assert [(one.name, one.rate_in) for one in found.topics] == [("prices.eur", 50.0), ("prices.usd", 150.0)]
    desks = next(at for at, one in enumerate(found.clients) if one.name == "desk-*")
    ways = {one.source: one.rate for one in found.handed if one.target == desks}
    whole = 10 * DESKS / 2
    assert ways == {0: float(f"{whole / 4:.3g}"), 1: float(f"{whole * 3 / 4:.3g}")}


def test_the_first_look_says_that_nothing_is_known_yet() -> None:
    assert seen(five_hundred(1)).span_ms is None


def test_many_topics_are_grouped_by_their_first_word_and_who_may_see_a_part_sees_that() -> None:
    many = {f"w{n % 9}_{n}": 100 for n in range(90)}
    everyone = [
        publisher("feed", **many),
        desk("risk-1", 5, topic="w3.>"),
        desk("desk-1", 5, topic="other.>"),
    ]
    found = seen(everyone, everyone)
    assert len(found.topics) <= MAX_TOPICS
    assert {one.name: one.members for one in found.topics}["w3.>"] == 1
    mine = seen(everyone, everyone, patterns=["risk-*"])
    assert ([one.name for one in mine.clients], mine.publishers) == (["risk-1"], [])
    assert [one.name for one in mine.topics] == ["w3.>"]


def test_a_client_that_came_again_begins_at_nothing() -> None:
    before, after = desk("a", 1_000), make_client("a", connected_at=9, subscriptions=[make_subscription()])
    after = type(after)(
        **{
            **{f: getattr(after, f) for f in after.__struct_fields__},
            "subscriptions": desk("a", 6).subscriptions,
        }
    )
    assert seen([before], [after]).clients[0].rate == 3.0
