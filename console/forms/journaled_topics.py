"""Text form of journaled topics, one per line.

    orders.>                                        a topic or pattern
    fix.orders as fix where /35 = 'D'               with a message type, and a filter
    legacy.> as nvfix by | where /Symbol = 'IBM'    with the separator between its fields

An entry that this form cannot express, such as a pattern with blanks, is a JSON object.
"""

from __future__ import annotations

import json
from typing import Any

import orjson
from django import forms

from broker_core.config.document_reader import DocumentReader
from broker_core.config.instance import JournaledTopic, read_journaled_topics

Entry = str | dict[str, Any]
"""Journaled topic in a policy: a pattern, or an object."""


class JournaledTopicsField(forms.CharField):
    """Field for the `journaled_topics` of a policy."""

    widget = forms.Textarea(attrs={"rows": 4, "spellcheck": "false"})

    def to_python(self, value: Any) -> Any:
        """Return the entries in their shortest form. Raises ValidationError."""
        lines = [line.strip() for line in str(super().to_python(value) or "").splitlines()]
        reader, entries = DocumentReader(), [read_line(line) for line in lines if line]
        topics = read_journaled_topics(reader, {"lines": entries}, "lines", "journal")
        if reader.problems:
            raise forms.ValidationError(reader.problems)
        return [topic.to_json() for topic in topics]

    def prepare_value(self, value: Any) -> Any:
        """Return the entries as text, one per line."""
        return "\n".join(map(write_line, value)) if isinstance(value, (list, tuple)) else value


def read_line(line: str) -> Entry:
    """Return the entry that a line describes. Raises ValidationError.

    Only the syntax is checked. The caller must check the values.
    """
    if line.startswith("{"):
        try:
            found: dict[str, Any] = orjson.loads(line)
            return found
        except orjson.JSONDecodeError as problem:
            raise forms.ValidationError(f"{line[:80]} isn't a JSON object: {problem}.") from problem
    words, where, chosen = line.partition(" where ")
    topic, *remaining = words.split()
    entry: dict[str, Any] = {"topic": topic}
    if where:
        entry["filter"] = chosen.strip()
    while remaining:
        word, *remaining = remaining
        key = {"as": "message_type", "by": "separator"}.get(word)
        if key is None or key in entry or not remaining:
            raise forms.ValidationError(f"{line[:80]}: use PATTERN [as TYPE] [by SEPARATOR] [where FILTER].")
        entry[key], *remaining = remaining
    if "separator" in entry:
        entry["separator"] = _character(entry["separator"])
    return entry if len(entry) > 1 else topic


def write_line(entry: Entry) -> str:
    """Return an entry as a line, so that `read_line` returns an equal entry."""
    if isinstance(entry, str):
        entry = {"topic": entry}
    topic = JournaledTopic(**entry)
    line = topic.topic
    if topic.message_type != "json":
        line += f" as {topic.message_type}"
    if topic.separator is not None:
        plain = topic.separator.isprintable() and not topic.separator.isspace()
        line += f" by {topic.separator if plain else f'{chr(92)}x{ord(topic.separator):02x}'}"
    if topic.filter is not None:
        line += f" where {topic.filter}"
    try:
        if len(line.splitlines()) == 1 and read_line(line) == topic.to_json():
            return line
    except (forms.ValidationError, ValueError):
        pass
    # JSON in ASCII is always one line
    return json.dumps({"topic": topic.topic, **_others(topic)})


def _others(topic: JournaledTopic) -> dict[str, Any]:
    short = topic.to_json()
    return short if isinstance(short, dict) else {}


def _character(text: str) -> str:
    r"""Return the separator that was typed: the character itself, or \x01 for one that cannot be typed."""
    if (
        text.startswith("\\x")
        and len(text) in (4, 6)
        and all(digit in "0123456789abcdefABCDEF" for digit in text[2:])
    ):
        return chr(int(text[2:], 16))
    return text
