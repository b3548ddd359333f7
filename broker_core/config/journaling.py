"""Which topics are journaled: by exact name, pattern or content filter, and of what message type they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from broker_core.config.reading import MAX_TEXTS, Reader, is_list

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
        defaults = asdict(JournaledTopic(self.topic))
        said = {key: value for key, value in asdict(self).items() if value != defaults[key]}
        return {"topic": self.topic, **said} if said else self.topic


EVERYTHING = (JournaledTopic(">"),)


def read_journaled_topics(
    reader: Reader, source: Mapping[str, Any], key: str, where: str
) -> tuple[JournaledTopic, ...]:
    """A list of patterns and objects; everything when it isn't set."""
    value = reader.checked(
        source,
        key,
        where,
        lambda found: is_list(found, object, MAX_TEXTS),
        f"a list of topic patterns or objects, {MAX_TEXTS} at most",
    )
    if value is None:
        return EVERYTHING
    return tuple(_read_one(reader, item, f"{where}: {key}[{number}]") for number, item in enumerate(value))


_A_TEXT = f"a text of at most {MAX_TEXT} characters"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _read_one(reader: Reader, item: Any, where: str) -> JournaledTopic:
    if isinstance(item, str):
        item = {"topic": item}
    if not isinstance(item, Mapping):
        reader.problems.append(f"{where} must be a topic pattern or an object")
        return EVERYTHING[0]
    reader.only(item, JournaledTopic.__dataclass_fields__, where)
    topic = reader.checked(item, "topic", where, _is_text, _A_TEXT)
    message_type = item.get("message_type", "json")
    if not item.get("topic"):
        reader.problems.append(f"{where}: topic is needed")
    if message_type not in MESSAGE_TYPES:
        reader.problems.append(f"{where}: message_type must be one of {', '.join(MESSAGE_TYPES)}")
    chosen = reader.checked(item, "filter", where, _is_text, _A_TEXT)
    separator = reader.checked(item, "separator", where, _is_text, _A_TEXT)
    if chosen and message_type == "binary":
        reader.problems.append(f"{where}: a filter can't look into binary messages")
    if separator is not None and (
        message_type not in ("fix", "nvfix") or len(separator) != 1 or separator == "="
    ):
        reader.problems.append(
            f"{where}: separator is one character other than =, and of fix and nvfix alone"
        )
    return JournaledTopic(topic or ">", str(message_type), chosen or None, separator)
