"""The pattern index against a linear scan of the patterns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_core.subscriptions import TopicPattern
from broker_core.subscriptions.registry import PatternIndex

names = st.sampled_from(["a", "b", "$c", ""])
topics = st.lists(names, min_size=1, max_size=4).map(".".join)
patterns = st.builds(
    lambda levels, end: ".".join([*levels, *end]),
    st.lists(st.sampled_from(["a", "b", "$c", "*"]), min_size=1, max_size=3),
    st.sampled_from([(), (">",)]),
) | st.just(">")


def levels_of(text: str) -> tuple[str, ...]:
    levels = TopicPattern.parse(text).levels
    assert levels is not None
    return levels


@given(st.lists(st.tuples(patterns, st.booleans()), max_size=20), st.lists(topics, min_size=1, max_size=5))
def test_nothing_that_matches_is_left_out_and_nothing_comes_twice(
    changes: list[tuple[str, bool]], asked: list[str]
) -> None:
    index, known = PatternIndex[str](), set[str]()
    for text, stays in changes:
        if stays:
            index.add(levels_of(text), text)
            known.add(text)
        elif text in known:
            index.remove(levels_of(text), text)
            known.remove(text)
    for topic in asked:
        found = list(index.candidates(topic))
        assert len(set(found)) == len(found)
        assert {text for text in known if TopicPattern.parse(text).matches(topic)} <= set(found) <= known


def test_what_was_taken_out_leaves_no_levels_behind() -> None:
    index, texts = PatternIndex[str](), ["a.b.c", "a.b.>", "a.*.c", "a", ">"]
    for text in texts:
        index.add(levels_of(text), text)
    for text in texts:
        index.remove(levels_of(text), text)
        assert text not in index.candidates("a.b.c")
    assert not index._root.following
