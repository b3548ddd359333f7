from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.subscriptions.topics import TopicPattern
from console.access.rights import EffectiveAccess, GrantedRight, name_matches, topic_within
from console.choices import ROLE_PERMISSIONS, Permission, Role

OPERATOR = ROLE_PERMISSIONS[Role.OPERATOR]
LEVELS = st.lists(st.sampled_from(["a", "b", "*", "$s"]), min_size=1, max_size=3)
PATTERNS = st.builds(lambda levels, rest: ".".join([*levels, *rest]), LEVELS, st.sampled_from([[], [">"]]))
TOPICS = st.lists(st.sampled_from(["a", "b", "c", "$s"]), min_size=1, max_size=4).map(".".join)


@given(st.text("ab*", max_size=6), st.text("ab", min_size=1, max_size=8))
def test_a_name_fits_as_a_glob_does(pattern: str, name: str) -> None:
    assert name_matches(pattern, name) == (bool(pattern) and fnmatch.fnmatchcase(name, pattern))


@given(PATTERNS, PATTERNS, TOPICS)
def test_a_pattern_within_another_names_nothing_that_the_other_doesn_t(
    outer: str, inner: str, topic: str
) -> None:
    if topic_within(outer, inner) and TopicPattern.parse(inner).matches(topic):
        assert TopicPattern.parse(outer).matches(topic)


@pytest.mark.parametrize(
    ("pattern", "asked", "within"),
    [
        ("flights.>", "flights.AA.*", True),
        ("flights.>", "flights", False),
        ("flights.*", "flights.>", False),
        (">", "flights.>", True),
        (">", "$events.x", False),
        ("~flights\\..*", "flights.AA", True),
        ("~flights\\..*", "flights.*", False),
        ("", "flights", False),
        ("flights.>", "~.*", False),
    ],
)
def test_whether_a_topic_lies_within_a_scope(pattern: str, asked: str, within: bool) -> None:
    assert topic_within(pattern, asked) == within


def test_a_right_with_a_pattern_covers_only_what_it_names() -> None:
    access = EffectiveAccess((GrantedRight(OPERATOR, "one", clients="desk-*"),))
    assert access.allows(Permission.ACT_ON_CLIENTS, instance="one", client="desk-1")
    assert not access.allows(Permission.ACT_ON_CLIENTS, instance="one", client="board-1")
    assert not access.allows(Permission.ACT_ON_CLIENTS, instance="two", client="desk-1")
    assert not access.allows(Permission.PUBLISH, instance="one", topic="a")
    assert access.allows(Permission.VIEW, instance="one")
    assert not access.allows(Permission.RUN_ACTIONS, instance="one")
    assert (access.client_patterns("one"), access.client_patterns("two")) == (["desk-*"], [])


def test_a_token_may_at_most_what_its_account_may() -> None:
    access = EffectiveAccess(
        (GrantedRight(OPERATOR),), frozenset({Permission.VIEW, Permission.EDIT_POLICIES})
    )
    assert access.allows(Permission.VIEW, instance="one")
    assert not access.allows(Permission.EDIT_POLICIES, instance="one")
    assert not access.allows(Permission.RUN_ACTIONS, instance="one")
    assert access.permissions == {Permission.VIEW}
    assert EffectiveAccess(access.rights, frozenset({Permission.PUBLISH})).client_patterns("one") == []
