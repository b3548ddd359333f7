"""Which group has a topic: the most specific pattern's, and there is always one most specific."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.client.groups import TopicRouter
from broker_core.errors import ClientError, OperatorError
from broker_core.subscriptions.topics import TopicPattern

THREE = {"prices": ["prices.>"], "eu": ["prices.eu.>", "prices.eu"], "rest": [">"]}


@pytest.mark.parametrize("order", [list(THREE), list(reversed(THREE))])
def test_the_narrower_pattern_decides_whatever_the_order(order: list[str]) -> None:
    routes = TopicRouter({group: THREE[group] for group in order})
    topics = ("prices.us.x", "prices.eu.x", "prices.eu", "prices", "orders.1")
    assert [routes.find_group(topic) for topic in topics] == ["prices", "eu", "eu", "rest", "rest"]
    assert [routes.find_group(topic) for topic in topics] == ["prices", "eu", "eu", "rest", "rest"]


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [
        (">", {"eu", "prices", "rest"}),
        ("prices.>", {"eu", "prices"}),
        ("prices.eu.>", {"eu"}),
        ("prices.us.*", {"prices"}),
        ("prices.*", {"eu", "prices"}),
        ("orders.*", {"rest"}),
        ("*.eu", {"eu", "prices", "rest"}),
        ("~prices\\..*", {"eu", "prices", "rest"}),
        ("prices", {"rest"}),
    ],
)
def test_a_pattern_goes_to_the_groups_that_may_have_its_topics(pattern: str, groups: set[str]) -> None:
    assert set(TopicRouter(THREE).find_groups(pattern)) == groups


@pytest.mark.parametrize(
    "topics",
    [
        {"one": ["prices.*"], "two": ["*.eu"]},
        {"one": ["prices.>"], "two": ["prices.>"]},
        {"one": ["~prices.*"], "two": [">"]},
        {"one": ["prices.>"], "two": []},
        {},
    ],
)
def test_what_isnt_clear_is_refused(topics: dict[str, list[str]]) -> None:
    with pytest.raises(OperatorError) as error:
        TopicRouter(topics)
    assert error.value.code == "bad_groups"


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ClientError) as error:
        TopicRouter({"one": ["a..b"]})
    assert error.value.code == "bad_pattern"


def test_a_topic_that_no_group_has_is_named() -> None:
    routes = TopicRouter({"prices": ["prices.>"]})
    for ask in (
        lambda: routes.find_group("orders.1"),
        lambda: routes.find_group("$SLUICE.clients"),
        lambda: routes.find_groups("orders.>"),
        lambda: routes.find_groups("$SLUICE.>"),
    ):
        with pytest.raises(OperatorError) as error:
            ask()
        assert error.value.code == "no_group_for_topic"


LEVEL = st.sampled_from(["a", "b", "*"])
PATTERN = st.builds(
    lambda levels, rest: ".".join([*levels, *rest]),
    st.lists(LEVEL, min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
) | st.just(">")
TOPIC = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join)


@given(
    topics=st.dictionaries(st.sampled_from("xyz"), st.lists(PATTERN, min_size=1, max_size=3), min_size=1),
    asked=PATTERN,
    topic=TOPIC,
)
def test_a_subscription_goes_wherever_a_topic_of_it_is_published(
    topics: dict[str, list[str]], asked: str, topic: str
) -> None:
    try:
        routes = TopicRouter(topics)
    except OperatorError:
        return
    fitting = {
        group
        for group, texts in topics.items()
        if any(TopicPattern.parse(text).matches(topic) for text in texts)
    }
    if not fitting:
        with pytest.raises(OperatorError):
            routes.find_group(topic)
        return
    group = routes.find_group(topic)
    assert group in fitting
    assert TopicRouter(dict(reversed(topics.items()))).find_group(topic) == group
    if TopicPattern.parse(asked).matches(topic):
        assert group in routes.find_groups(asked)
