"""User rights: which entitlements apply, how they add up, and what is narrowed or refused."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.access import ALL_RIGHTS, AccessPolicy, Rights
from broker_core.access import rights as rights_module
from broker_core.access.policy import access_problems
from broker_core.config import EntitlementSettings
from broker_core.errors import ClientError, OperatorError
from broker_core.filters import Filter, compile_filter
from broker_core.subscriptions.topics import TopicPattern
from tests.broker_core.access.making import entitlement, policy, user


def rights(*entitlements: object, name: str = "maria") -> Rights:
    made = policy(user("maria", groups=("desk",)), user("feed-1"), *entitlements)  # type: ignore[arg-type]
    return AccessPolicy(made).rights("tcp", name)


def granted(made: Rights, topic: str, filter: str | None = None) -> tuple[str, str | None, bool]:
    found = made.check_subscribe(TopicPattern.parse(topic), compile_filter(filter) if filter else None)
    return found.pattern.text, found.filter and found.filter.text, found.narrowed


def may_publish(made: Rights, *topics: str) -> bool:
    try:
        made.check_publish(topics)
    except ClientError as error:
        assert error.code == "not_entitled"
        return False
    return True


@pytest.mark.parametrize(
    ("who", "name", "meant"),
    [
        ("*", "maria", True),
        ("maria", "maria", True),
        ("vera", "maria", False),
        ("group:desk", "maria", True),
        ("group:desk", "feed-1", False),
        ("group:", "maria", False),
        ("feed-*", "feed-1", True),
        ("feed-*", "maria", False),
        ("*", "", True),
        ("maria", "", False),
        ("m*", "", False),
    ],
)
def test_entitlements_match_users_and_patterns(who: str, name: str, meant: bool) -> None:
    assert may_publish(rights(entitlement(who, publish="a"), name=name), "a") is meant


def test_entitlements_add_up_and_what_none_allows_is_refused() -> None:
    made = rights(entitlement("maria", publish="orders.*"), entitlement("group:desk", publish="quotes.>"))
    assert may_publish(made, "orders.eu", "quotes.eu.de", "orders.us")
    assert not may_publish(made, "orders.eu", "orders.eu.de")
    assert not may_publish(made, "$SLUICE.x")
    assert not may_publish(rights(), "a")


def test_a_transport_that_is_not_restricted_allows_everything() -> None:
    made = AccessPolicy(policy(user("maria"), restricted=False)).rights("tcp", "maria")
    assert may_publish(made, "anything.at.all")
    assert granted(made, ">", "/x = 1") == (">", "/x = 1", False)
    assert granted(ALL_RIGHTS, ">") == (">", None, False)


def test_an_entitlement_may_be_for_some_transports() -> None:
    made = policy(user("maria"), entitlement("*", publish="a", transports=("tcp",)))
    assert may_publish(AccessPolicy(made).rights("tcp", "maria"), "a")


def test_a_pattern_that_is_covered_is_served_as_asked() -> None:
    made = rights(entitlement("*", subscribe="orders.> quotes.*"))
    for topic in ("orders.eu", "orders.>", "orders.*.new", "quotes.*", "quotes.eu"):
        assert granted(made, topic) == (topic, None, False)


def test_a_broader_pattern_is_narrowed_and_says_so() -> None:
    made = rights(entitlement("*", subscribe="orders.> quotes.*"))
    found = made.check_subscribe(TopicPattern.parse(">"), None)
    assert found.narrowed
    assert [
        topic
        for topic in ("orders.a.b", "quotes.a", "quotes.a.b", "x", "$SLUICE.x")
        if found.pattern.matches(topic)
    ] == ["orders.a.b", "quotes.a"]
    expression = made.check_subscribe(TopicPattern.parse("~.*eu"), None)
    assert expression.narrowed
    assert expression.pattern.matches("orders.eu") and not expression.pattern.matches("x.eu")


def test_narrowed_patterns_of_different_rights_are_distinct() -> None:
    asked = TopicPattern.parse(">")
    one = rights(entitlement("*", subscribe="a.>")).check_subscribe(asked, None).pattern
    other = rights(entitlement("*", subscribe="b.>")).check_subscribe(asked, None).pattern
    assert one != other and one != asked
    assert one == rights(entitlement("*", subscribe="a.>")).check_subscribe(asked, None).pattern


def test_what_nothing_allows_is_refused() -> None:
    made = rights(entitlement("*", subscribe="orders.>", publish="x"))
    for topic in ("x", "quotes.>", "$SLUICE.>"):
        with pytest.raises(ClientError) as caught:
            granted(made, topic)
        assert caught.value.code == "not_entitled"


def test_an_entitlements_filter_is_added_to_every_subscription() -> None:
    made = rights(entitlement("*", subscribe="orders.>", filter="/region = 'eu'"))
    assert granted(made, "orders.a") == ("orders.a", "/region = 'eu'", False)
    assert granted(made, "orders.>", "/x = 1 OR /y = 1")[1] == "(/x = 1 OR /y = 1) AND (/region = 'eu')"
    assert granted(made, ">", "/x = 1")[1:] == ("(/x = 1) AND (/region = 'eu')", True)


def test_no_text_of_a_filter_breaks_out_of_the_one_that_is_added() -> None:
    made = rights(entitlement("*", subscribe="a", filter="/region = 'eu'"))
    found = made.check_subscribe(TopicPattern.parse("a"), compile_filter("/x = 1 OR 1 = 1")).filter
    assert found is not None
    assert not found.matches_object({"region": "us", "x": 1})
    assert found.matches_object({"region": "eu"})


def test_two_filters_for_the_same_topics_pass_what_one_of_them_passes() -> None:
    made = rights(
        entitlement("*", subscribe="a.>", filter="/x = 1"),
        entitlement("maria", subscribe="a.*", filter="/y = 1"),
    )
    found = made.check_subscribe(TopicPattern.parse("a.b"), None).filter
    assert found is not None
    assert [found.matches_object(m) for m in ({"x": 1}, {"y": 1}, {"z": 1})] == [True, True, False]
    unfiltered = rights(
        entitlement("*", subscribe="a.>", filter="/x = 1"), entitlement("maria", subscribe="a.*")
    )
    assert granted(unfiltered, "a.b") == ("a.b", None, False)


def test_parts_with_different_filters_are_refused_with_what_to_ask_for_instead() -> None:
    made = rights(entitlement("*", subscribe="a.>", filter="/x = 1"), entitlement("*", subscribe="b.>"))
    with pytest.raises(ClientError) as caught:
        granted(made, ">")
    assert (caught.value.code, caught.value.fix) == ("not_entitled", "Subscribe separately to a.>, b.>.")
    assert granted(made, "a.>")[1] == "/x = 1"
    assert granted(made, "b.>") == ("b.>", None, False)


PATTERNS = ["a", "a.*", "a.>", ">", "*.b", "b.>"]
FILTERS = [None, "/x = 1", "/y = 1"]
TOPICS = ["a", "b", "a.a", "a.b", "b.b", "b.a.b", "c.b"]
MESSAGES = [dict(zip("xyz", bits, strict=True)) for bits in product((0, 1), repeat=3)]


def is_allowed(chosen: Filter | None, message: dict[str, int]) -> bool:
    return chosen is None or chosen.matches_object(message)


@given(
    st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(FILTERS)), max_size=3),
    st.sampled_from(PATTERNS),
    st.sampled_from([None, "/z = 1"]),
)
def test_a_subscription_gets_exactly_what_is_asked_and_what_some_entitlement_allows(
    allowed: list[tuple[str, str | None]], asked: str, filter: str | None
) -> None:
    made = rights(*(entitlement("*", subscribe=pattern, filter=own) for pattern, own in allowed))
    pattern, chosen = TopicPattern.parse(asked), compile_filter(filter) if filter else None
    compiled = [(TopicPattern.parse(text), compile_filter(own) if own else None) for text, own in allowed]
    expected = {
        (topic, number)
        for topic in TOPICS
        for number, message in enumerate(MESSAGES)
        if pattern.matches(topic)
        and is_allowed(chosen, message)
        and any(one.matches(topic) and is_allowed(own, message) for one, own in compiled)
    }
    try:
        found = made.check_subscribe(pattern, chosen)
    except ClientError as error:
        assert "different filters" in error.sentence or not expected
        return
    got = {
        (topic, number)
        for topic in TOPICS
        for number, message in enumerate(MESSAGES)
        if found.pattern.matches(topic) and is_allowed(found.filter, message)
    }
    assert got == expected


# Patterns that mean much, or nothing.


@pytest.mark.parametrize(
    ("pattern", "covered", "refused"),
    [
        (">", ("a", "a.b.c", "a.*", "a.>", ">", "*.b"), ("$SLUICE.clients", "$SLUICE.>", "$x")),
        (
            "$SLUICE.>",
            ("$SLUICE.clients", "$SLUICE.*", "$SLUICE.>"),
            ("a", "a.>", "SLUICE.clients", "$OTHER.a"),
        ),
        ("$SLUICE.*", ("$SLUICE.clients",), ("$SLUICE.a.b", "a")),
        ("*", ("a",), ("a.b", "$SLUICE", "$SLUICE.a")),
        ("~a[.].*", ("a.b", "a.b.c", "~a[.].*"), ("a", "b.a", "$a.b")),
    ],
)
def test_what_a_pattern_alone_gives(pattern: str, covered: tuple[str, ...], refused: tuple[str, ...]) -> None:
    made = rights(entitlement("*", subscribe=pattern, publish=pattern))
    for topic in covered:
        assert granted(made, topic) == (topic, None, False)
    for topic in refused:
        with pytest.raises(ClientError, match="You may not subscribe"):
            granted(made, topic)
    for topic in filter(lambda text: not set(text) & set("*>~"), (*covered, *refused)):
        assert may_publish(made, topic) is (topic in covered)


def test_a_right_to_all_topics_excludes_system_topics_and_vice_versa() -> None:
    everything, own = (
        rights(entitlement("*", subscribe=">")),
        rights(entitlement("*", subscribe="$SLUICE.>")),
    )
    expression = TopicPattern.parse("~.*")
    for made, sees, lacks in ((everything, "a.b", "$SLUICE.x"), (own, "$SLUICE.x", "a.b")):
        found = made.check_subscribe(expression, None)
        assert not found.pattern.matches(lacks)
        assert found.pattern.matches(sees) is expression.matches(sees)


def test_an_expression_is_never_taken_for_covered_unless_it_is_the_same() -> None:
    made = rights(entitlement("*", subscribe="~a[.].*"))
    assert granted(made, "~a[.].*") == ("~a[.].*", None, False)
    found = made.check_subscribe(TopicPattern.parse("~.*[.]b"), None)
    assert found.narrowed and found.pattern.text == "~.*[.]b within ~a[.].*"
    assert [t for t in ("a.b", "a.c", "c.b", "b") if found.pattern.matches(t)] == ["a.b"]
    narrowed = made.check_subscribe(TopicPattern.parse("a.>"), None)
    assert narrowed.narrowed and narrowed.pattern.matches("a.x")
    with pytest.raises(ClientError, match="not_entitled"):
        granted(made, "b.c")


@pytest.mark.parametrize("pattern", ["a..b", "a.>.b", "a*", "~(", "", ".", "a b", "~", "~$", "$>", "a\u200b"])
@pytest.mark.parametrize("where", ["publish", "subscribe"])
def test_a_pattern_that_cannot_be_read_stops_the_whole_policy(pattern: str, where: str) -> None:
    patterns: dict[str, tuple[str, ...]] = {"publish": (), "subscribe": (), where: ("fine", pattern)}
    bad = EntitlementSettings(("*",), (), patterns["publish"], patterns["subscribe"], None)
    problems = access_problems(policy(user("maria"), entitlement("*", publish="a"), bad))
    assert len(problems) == 1 and problems[0].startswith("entitlement 2: ")
    with pytest.raises(OperatorError) as caught:
        AccessPolicy(policy(user("maria"), bad))
    assert caught.value.code == "bad_policy"


def test_every_mistake_of_an_entitlement_is_said_at_once() -> None:
    made = policy(
        user("maria"),
        entitlement("*", publish="a*", subscribe=">.a", filter="/x =", transports=("tcp", "no-such")),
    )
    problems = access_problems(made)
    assert len(problems) == 4 and all(problem.startswith("entitlement 1: ") for problem in problems)
    assert "there is no transport 'no-such'" in problems[0]


# What is remembered of topics.


def test_what_was_learned_of_a_topic_is_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights_module, "MAX_REMEMBERED_TOPICS", 3)
    made = rights(entitlement("*", publish="a.*"))
    asked: list[str] = []
    pattern = made._entitlements[0].publish[0]  # type: ignore[index]
    monkeypatch.setattr(pattern, "_test", lambda topic: asked.append(topic) or topic.startswith("a."))
    for topic in ("a.1", "a.2", "a.1", "b", "b", "a.2"):
        assert may_publish(made, topic) is topic.startswith("a.")
    assert asked == ["a.1", "a.2", "b"], "each is looked at once"
    assert may_publish(made, "a.4") and list(made._publish_permissions) == ["a.4"], "a fourth begins anew"
    assert not may_publish(made, "b")
    assert asked == ["a.1", "a.2", "b", "a.4", "b"]


def test_all_topics_of_a_batch_are_looked_at_and_the_first_that_may_not_be_is_named() -> None:
    made = rights(entitlement("*", publish="a"))
    with pytest.raises(ClientError) as caught:
        made.check_publish(["a", "b" * 100, "c"])
    assert caught.value.details == {"topic": "b" * 100}
    assert repr("b" * 80) in caught.value.sentence


def test_ten_patterns_are_named_and_more_are_counted() -> None:
    def told(number: int) -> str:
        made = rights(*(entitlement("*", subscribe=f"t{n:02}.>", filter=f"/x = {n}") for n in range(number)))
        with pytest.raises(ClientError) as caught:
            granted(made, ">")
        return caught.value.fix

    assert told(10).endswith("t08.>, t09.>.")
    assert told(11).endswith("t08.>, t09.> and 1 more.")
    assert told(12).endswith("t09.> and 2 more.")


def test_narrowed_filters_are_those_of_what_is_left() -> None:
    made = rights(
        entitlement("*", subscribe="a.x", filter="/x = 1"),
        entitlement("*", subscribe="b.>", filter="/y = 1"),
    )
    found = made.check_subscribe(TopicPattern.parse("a.*"), compile_filter("/z = 1"))
    assert found.narrowed and found.filter is not None
    assert found.filter.matches_object({"x": 1, "z": 1})
    assert not found.filter.matches_object({"y": 1, "z": 1})
    assert found.pattern.levels == TopicPattern.parse("a.*").levels
