"""How patterns stand to each other, against all topics of a small alphabet."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.access.coverage import covers, overlap
from broker_core.subscriptions.topics import TopicPattern

TOPICS = [".".join(levels) for length in range(1, 5) for levels in product(("a", "b", "$x"), repeat=length)]


@st.composite
def patterns(draw: st.DrawFn) -> TopicPattern:
    levels = draw(st.lists(st.sampled_from(["a", "b", "*", "$x"]), min_size=0, max_size=3))
    if not levels or draw(st.booleans()):
        levels.append(">")
    return TopicPattern.parse(".".join(levels))


@given(patterns(), patterns())
def test_what_covers_has_every_topic_and_what_does_not_overlap_has_none_in_common(
    one: TopicPattern, other: TopicPattern
) -> None:
    left, right = ({topic for topic in TOPICS if pattern.matches(topic)} for pattern in (one, other))
    if covers(one, other):
        assert right <= left
    if not overlap(one, other):
        assert not left & right
    assert overlap(one, other) == overlap(other, one)


@given(patterns(), patterns())
def test_patterns_by_levels_are_told_exactly(one: TopicPattern, other: TopicPattern) -> None:
    left, right = ({topic for topic in TOPICS if pattern.matches(topic)} for pattern in (one, other))
    if right:
        assert covers(one, other) == (right <= left)
    assert overlap(one, other) == bool(left & right)


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("~a.*", "abc", True),
        ("~a.*", "b", False),
        ("~a.*", "~a.*", True),
        (">", "~a.*", False),
        ("~.*", "a.>", False),
    ],
)
def test_of_an_expression_only_itself_and_topics_are_told(wide: str, narrow: str, expected: bool) -> None:
    one, other = TopicPattern.parse(wide), TopicPattern.parse(narrow)
    assert covers(one, other) is expected
    assert overlap(one, other) is (narrow != "b")
