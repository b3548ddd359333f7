"""Cost of a client's subscriptions: each costs the same, however many there are."""

from __future__ import annotations

from tests.support.broker_simulation import START, FixedBacklog, make_guard, policy
from tests.support.call_counts import count_calls
from tests.support.signals import SubscriptionSignals

DOCUMENT = policy(
    activemq=[
        {"topic": ">", "constant_pending_message_limit_strategy": 50},
        {"topic": "t.>", "prefetch": 5},
        *({"topic": f"x{number}.>", "prefetch": 5} for number in range(20)),
    ],
    qpid=[{"topic": f"t.{number}.*.*", "message_count": 5} for number in range(20)],
    rules=[
        {"name": "u", "signal": "unacked_messages", "limit": 5, "ladder": [{"action": "notify"}]},
        {"name": "u", "scope": {"client": "c1*"}, "limit": 7},
    ],
)


def test_what_a_subscription_costs_does_not_grow_with_how_many_there_are() -> None:
    made = make_guard(DOCUMENT)

    def of(client: str, numbers: int) -> int:
        use = made.register(client, "tcp", FixedBacklog(START))
        views = [
            SubscriptionSignals(str(number), f"t.{number % 50}.{client}.{number}")
            for number in range(numbers)
        ]

        def subscribe() -> None:
            for view in views:
                made.subscribe(use, view)

        cost = count_calls(subscribe)
        assert len(use.ruled_subscriptions) == numbers
        return cost

    of("warm", 100)  # what is remembered of a policy is worked out with the first
    few, many = of("few", 100), of("many", 1_000)
    assert many < 11 * few
    for client in range(8):
        of(f"c{client}", 1_000)
    again = count_calls(lambda: made.apply_policy(DOCUMENT))
    assert again < 11 * many, "nine thousand of them, and a policy comes into force"


def test_one_that_comes_or_goes_touches_no_other() -> None:
    made = make_guard(DOCUMENT)
    use = made.register("c", "tcp", FixedBacklog(START))
    first = made.subscribe(use, SubscriptionSignals("1", "t.1.a.b"))
    rules = first.rules
    made.subscribe(use, SubscriptionSignals("2", "t.1.a.c"))
    assert first.rules is rules and use.ruled_subscriptions["2"].rules is rules, (
        "whoever the same settings hold for shares them"
    )
    made.unsubscribe(use, "2")
    made.unsubscribe(use, "2")
    assert list(use.watched) == list(use.ruled_subscriptions) == ["1"]


def test_more_topics_than_are_remembered_are_judged_all_the_same() -> None:
    made = make_guard(policy(qpid=[{"topic": "t.*", "message_count": 5}]))
    use = made.register("c", "tcp", FixedBacklog(START))
    for number in range(20_500):
        assert made.subscribe(use, SubscriptionSignals(str(number), f"t.{number}")).alarm_messages == 5
