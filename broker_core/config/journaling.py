"""Which topics are journaled: by exact name, pattern or content filter, and of what message type they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_core.config.reading import MAX_TEXTS, Reader

MESSAGE_TYPES = ("json", "fix", "nvfix", "msgpack", "binary")
MAX_TEXT = 4_096


@dataclass(frozen=True, slots=True)
class JournaledTopic:
    """One entry of `journaled_topics`. In JSON a pattern alone, or an object with these names.

    topic          an exact name or a pattern
    message_type   how filters read these topics' bodies: json (default), fix, nvfix, msgpack or binary
    filter         only messages that pass it are journaled; default all. Not for binary
    separator      the character between the fields of fix and nvfix; default SOH (0x01)
    """

    topic: str
    message_type: str = "json"
    filter: str | None = None
    separator: str | None = None

    def as_json(self) -> str | dict[str, str]:
        """The shortest way to write it; reading that gives the same entry."""
        made = {"topic": self.topic}
        if self.message_type != "json":
            made["message_type"] = self.message_type
        if self.filter is not None:
            made["filter"] = self.filter
        if self.separator is not None:
            made["separator"] = self.separator
        return self.topic if len(made) == 1 else made


EVERYTHING = (JournaledTopic(">"),)


def read_journaled_topics(
    reader: Reader, source: Mapping[str, Any], key: str, where: str
) -> tuple[JournaledTopic, ...]:
    """A list of patterns and objects; everything when it isn't set."""
    value = source.get(key)
    if value is None:
        return EVERYTHING
    if not isinstance(value, (list, tuple)) or len(value) > MAX_TEXTS:
        reader.problems.append(
            f"{where}: {key} must be a list of topic patterns or objects, {MAX_TEXTS} at most"
        )
        return EVERYTHING
    return tuple(_read_one(reader, item, f"{where}: {key}[{number}]") for number, item in enumerate(value))


def _read_one(reader: Reader, item: Any, where: str) -> JournaledTopic:
    if isinstance(item, str):
        item = {"topic": item}
    if not isinstance(item, Mapping):
        reader.problems.append(f"{where} must be a topic pattern or an object")
        return EVERYTHING[0]
    reader.only(item, JournaledTopic.__dataclass_fields__, where)
    topic, message_type = _text(reader, item, "topic", where), item.get("message_type", "json")
    if not item.get("topic"):
        reader.problems.append(f"{where}: topic is needed")
    if message_type not in MESSAGE_TYPES:
        reader.problems.append(f"{where}: message_type must be one of {', '.join(MESSAGE_TYPES)}")
    chosen, separator = _text(reader, item, "filter", where), _text(reader, item, "separator", where)
    if chosen and message_type == "binary":
        reader.problems.append(f"{where}: a filter can't look into binary messages")
    if separator is not None and (
        message_type not in ("fix", "nvfix") or len(separator) != 1 or separator == "="
    ):
        reader.problems.append(
            f"{where}: separator is one character other than =, and of fix and nvfix alone"
        )
    return JournaledTopic(topic or ">", str(message_type), chosen or None, separator)


def _text(reader: Reader, item: Mapping[str, Any], key: str, where: str) -> str | None:
    value = item.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        reader.problems.append(f"{where}: {key} must be a text of at most {MAX_TEXT} characters")
        return None
    return value
