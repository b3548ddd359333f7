"""Form field for journaled topics."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from broker_core.config.instance import MESSAGE_TYPES, JournaledTopic
from console.forms.journaled_topics import JournaledTopicsField, read_line, write_line


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("orders.>", "orders.>"),
        (
            "fix.orders as fix where /35 = 'D'",
            {"topic": "fix.orders", "message_type": "fix", "filter": "/35 = 'D'"},
        ),
        ("a as nvfix by |", {"topic": "a", "message_type": "nvfix", "separator": "|"}),
        (r"a as fix by \x02", {"topic": "a", "message_type": "fix", "separator": "\x02"}),
        ("a where /b = ' where '", {"topic": "a", "filter": "/b = ' where '"}),
        ('{"topic": "~a b"}', {"topic": "~a b"}),
    ],
)
def test_a_line_is_read(line, entry):
    assert read_line(line) == entry


@pytest.mark.parametrize(
    "text", ["a as", "a b", "a as fix as json", "{", "a as xml", "a by |", "a as binary where /b = 1"]
)
def test_what_means_nothing_is_refused(text):
    with pytest.raises(ValidationError):
        JournaledTopicsField().clean(text)


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(
    st.builds(JournaledTopic, texts, st.sampled_from(MESSAGE_TYPES[:4]), st.none() | texts),
    st.none() | st.characters(codec="utf-8", exclude_characters="="),
)
def test_law_an_entry_that_is_shown_and_saved_again_is_the_same(topic, separator):
    if topic.message_type in ("fix", "nvfix"):
        topic = JournaledTopic(topic.topic, topic.message_type, topic.filter, separator)
    field = JournaledTopicsField()
    shown = field.prepare_value([topic.to_json()])
    assert field.clean(shown) == [topic.to_json()]
    assert "\n" not in write_line(topic.to_json())
