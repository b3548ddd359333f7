"""Relations between topic patterns, checked against every topic of a small alphabet."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.subscriptions.topics import TopicPattern, are_disjoint, is_subpattern

LEVELS = ("a", "b", "$S", "other")
TOPICS = [".".join(levels) for length in (1, 2, 3, 4) for levels in product(LEVELS, repeat=length)]
patterns = st.builds(
    lambda levels, end: TopicPattern.parse(".".join([*levels, *end])),
    st.lists(st.sampled_from(["a", "b", "$S", "*"]), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
) | st.sampled_from([TopicPattern.parse(text) for text in (">", "~a.*", "~\\$S.*", "~a")])


def topics_of(pattern: TopicPattern) -> set[str]:
    return {topic for topic in TOPICS if pattern.matches(topic)}


@given(patterns, patterns)
def test_what_is_said_is_so_and_of_levels_everything_is_said(one: TopicPattern, other: TopicPattern) -> None:
    mine, others = topics_of(one), topics_of(other)
    expression = "~" in one.text + other.text
    assert is_subpattern(one, other) == (mine <= others) or (expression and not is_subpattern(one, other))
    assert are_disjoint(one, other) == (not mine & others) or (expression and not are_disjoint(one, other))


@pytest.mark.parametrize(
    ("one", "other", "is_inside", "is_disjoint"),
    [
        ("scratch.x.>", "scratch.>", True, False),
        ("scratch.>", "scratch.x.>", False, False),
        ("a", "~a|b", True, False),
        ("~a|b", "~a|b", True, False),
        ("~a|b", "c", False, True),
        ("*.x", ">", True, False),
        (">", "$SLUICE.>", False, True),
        ("a.>", "a", False, True),
        ("a.*", "a.*.c", False, True),
    ],
)
def test_examples(one: str, other: str, is_inside: bool, is_disjoint: bool) -> None:
    first, second = TopicPattern.parse(one), TopicPattern.parse(other)
    assert (is_subpattern(first, second), are_disjoint(first, second)) == (is_inside, is_disjoint)
