"""Topic patterns: matching, and errors with their column."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.errors import ClientError
from broker_core.subscriptions import TopicPattern

levels = st.sampled_from(["a", "b", "c", "$x", "é"])
topics = st.lists(levels, min_size=1, max_size=4).map(".".join)
patterns = st.builds(
    lambda head, tail: ".".join([*head, *tail]),
    st.lists(st.one_of(levels, st.just("*")), min_size=1, max_size=4),
    st.sampled_from([[], [">"]]),
) | st.just(">")


def simple(pattern: list[str], topic: list[str]) -> bool:
    """Return whether a pattern matches a topic, by the definition, level by level."""
    if not pattern:
        return not topic
    if not topic:
        return False
    if pattern == [">"]:
        return True
    return pattern[0] in ("*", topic[0]) and simple(pattern[1:], topic[1:])


@given(patterns, topics)
@settings(max_examples=400, deadline=None)
def test_a_pattern_matches_level_by_level(pattern: str, topic: str) -> None:
    hidden = topic.startswith("$") and not pattern.startswith("$")
    expected = simple(pattern.split("."), topic.split(".")) and not hidden
    assert TopicPattern.parse(pattern).matches(topic) is expected


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("", 1),
        ("a..b", 3),
        (".a", 1),
        ("a.", 3),
        ("a b", 2),
        ("a.\n", 3),
        ("a.x*", 3),
        ("a.>.b", 3),
        ("a.>>", 3),
        ("x" * 256, 1),
        ("~(", 2),
        ("~(?=a)", 2),
        ("~" + "a" * 1024, 1025),
        ("a\ud800", 2),
        ("~\ud800", 2),
        ("~", 2),
        ("~^", 2),
        ("~$", 2),
        ("~^$", 3),
        ("~$SLUICE.clients", 2),
        ("$>", 1),
    ],
)
def test_a_bad_pattern_names_its_column(text: str, column: int) -> None:
    with pytest.raises(ClientError) as caught:
        TopicPattern.parse(text)
    assert caught.value.code == "bad_pattern"
    assert caught.value.details["column"] == column


def test_only_a_pattern_of_one_topic_is_exact() -> None:
    assert TopicPattern.parse("a.b").exact == "a.b"
    assert [TopicPattern.parse(text).exact for text in ("a.*", "a.>", ">", "~a")] == [None] * 4


def test_an_expression_must_match_the_whole_topic_and_sees_no_broker_topic() -> None:
    assert TopicPattern.parse("~a|b").matches("b")
    assert not TopicPattern.parse("~a|b").matches("ba")
    assert not TopicPattern.parse("~.*").matches("$SLUICE.clients")
    assert TopicPattern.parse(r"~\$SLUICE\..*").matches("$SLUICE.clients")
    assert not TopicPattern.parse(r"~\$SLUICE|a").matches("a")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (">", "a b.c é"),
        ("*", "a é"),
        ("$", "$"),
        ("$.>", "$.x"),
        ("$SLUICE.>", "$SLUICE.clients $SLUICE.x.y"),
        ("#", "#"),
        ("~>", ""),
        ("~.", "a é"),
        ("~\\$", "$"),
        ("~\\$.*", "$ $.x $SLUICE.clients $SLUICE.x.y"),
        ("~[$].*", ""),
        ("~a$", "a"),
    ],
)
def test_what_bare_signs_name(text: str, names: str) -> None:
    topics = ["a", "b.c", "é", "#", "$", "$.x", "$SLUICE.clients", "$SLUICE.x.y"]
    expected = set(names.split()) | ({"#"} if text in (">", "*", "~.") else set())
    assert {topic for topic in topics if TopicPattern.parse(text).matches(topic)} == expected


def test_patterns_with_one_text_are_equal() -> None:
    assert TopicPattern.parse("a.>") == TopicPattern.parse("a.>")
    assert len({TopicPattern.parse("a.>"), TopicPattern.parse("a.>"), TopicPattern.parse("a.*")}) == 2
