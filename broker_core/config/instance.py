"""Which topics are journaled: by exact name, pattern or content filter, and of what message type they are.

Settings of an instance itself: its name, its journaled topics, its journal's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from broker_core.config.document_reader import MAX_TEXTS, DocumentReader, is_list_of, is_path
from broker_core.names import is_name

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

    def to_json(self) -> str | dict[str, str]:
        """The shortest way to write it; reading that gives the same entry."""
        defaults = asdict(JournaledTopic(self.topic))
        said = {key: value for key, value in asdict(self).items() if value != defaults[key]}
        return {"topic": self.topic, **said} if said else self.topic


EVERYTHING = (JournaledTopic(">"),)


def read_journaled_topics(
    reader: DocumentReader, source: Mapping[str, Any], key: str, where: str
) -> tuple[JournaledTopic, ...]:
    """A list of patterns and objects; everything when it isn't set."""
    value = reader.read_checked(
        source,
        key,
        where,
        lambda found: is_list_of(found, object, MAX_TEXTS),
        f"a list of topic patterns or objects, {MAX_TEXTS} at most",
    )
    if value is None:
        return EVERYTHING
    return tuple(_read_one(reader, item, f"{where}: {key}[{number}]") for number, item in enumerate(value))


_A_TEXT = f"a text of at most {MAX_TEXT} characters"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _read_one(reader: DocumentReader, item: Any, where: str) -> JournaledTopic:
    if isinstance(item, str):
        item = {"topic": item}
    if not isinstance(item, Mapping):
        reader.problems.append(f"{where} must be a topic pattern or an object")
        return EVERYTHING[0]
    reader.check_known_keys(item, JournaledTopic.__dataclass_fields__, where)
    topic = reader.read_checked(item, "topic", where, _is_text, _A_TEXT)
    message_type = item.get("message_type", "json")
    if not item.get("topic"):
        reader.problems.append(f"{where}: topic is needed")
    if message_type not in MESSAGE_TYPES:
        reader.problems.append(f"{where}: message_type must be one of {', '.join(MESSAGE_TYPES)}")
    chosen = reader.read_checked(item, "filter", where, _is_text, _A_TEXT)
    separator = reader.read_checked(item, "separator", where, _is_text, _A_TEXT)
    if chosen and message_type == "binary":
        reader.problems.append(f"{where}: a filter can't look into binary messages")
    if separator is not None and (
        message_type not in ("fix", "nvfix") or len(separator) != 1 or separator == "="
    ):
        reader.problems.append(
            f"{where}: separator is one character other than =, and of fix and nvfix alone"
        )
    return JournaledTopic(topic or ">", str(message_type), chosen or None, separator)


MIB = 1024 * 1024
DOWNGRADE_AFTER_MS = 30_000
MAX_SYNC = 16
LEAST_DOWNGRADE_MS, MAX_DOWNGRADE_MS = 100, 3_600_000


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """The instance: its name, which topics are journaled, and its journal's files.

    journaled_topics     patterns, or JournaledTopic with message type and filter; default everything
    unjournaled_topics   patterns taken out of those; default scratch.>
    journal_size         bytes of a segment; default 128 MiB, at least 1 MiB
    preallocated_files   segments made in advance; default 2, at least 1
    journal_directory    absolute path; default the installation's. In force from the broker's next start, as all of
    archive_directory    these but the topics
    sync_members         of a group: the members that `fully_durable` waits for; default none
    sync_topics          of a group: patterns whose `persisted` waits for them too; default none
    downgrade_after_ms   after which one that doesn't confirm isn't waited for any more; default 30 s
    """

    name: str
    journaled_topics: tuple[JournaledTopic, ...] = EVERYTHING
    unjournaled_topics: tuple[str, ...] = ("scratch.>",)
    journal_size: int = 128 * MIB
    preallocated_files: int = 2
    journal_directory: str | None = None
    archive_directory: str | None = None
    sync_members: tuple[str, ...] = ()
    sync_topics: tuple[str, ...] = ()
    downgrade_after_ms: int = DOWNGRADE_AFTER_MS


GROUP_SILENT: Final[dict[str, Any]] = {
    "sync_members": [],
    "sync_topics": [],
    "downgrade_after_ms": DOWNGRADE_AFTER_MS,
}
"""What says nothing of a group, as JSON."""


def read_instance(reader: DocumentReader, source: Mapping[str, Any]) -> InstanceSettings:
    """The instance's settings."""
    where = "instance"
    reader.check_known_keys(source, InstanceSettings.__dataclass_fields__, where)
    name = source.get("name", "")
    if not isinstance(name, str) or not is_name(name):
        reader.problems.append("instance.name must be 1 to 64 letters, digits, dots, dashes, underscores")
    directories = [_directory(reader, source, key) for key in ("journal_directory", "archive_directory")]
    if directories[0] is not None and directories[0] == directories[1]:
        reader.problems.append("instance: archive_directory must be another one than journal_directory")
    journal, archive = directories
    return InstanceSettings(
        str(name),
        read_journaled_topics(reader, source, "journaled_topics", where),
        reader.read_texts(source, "unjournaled_topics", where, ("scratch.>",)),
        reader.read_int(source, "journal_size", where, MIB, 16 * 1024 * MIB) or 128 * MIB,
        reader.read_int(source, "preallocated_files", where, 1, 64) or 2,
        journal,
        archive,
        _members(reader, source),
        reader.read_texts(source, "sync_topics", where, ()),
        reader.read_int(source, "downgrade_after_ms", where, LEAST_DOWNGRADE_MS, MAX_DOWNGRADE_MS)
        or DOWNGRADE_AFTER_MS,
    )


def _members(reader: DocumentReader, source: Mapping[str, Any]) -> tuple[str, ...]:
    found = reader.read_texts(source, "sync_members", "instance", (), "names of members")
    if len(found) > MAX_SYNC or not all(map(is_name, found)) or len(set(found)) < len(found):
        reader.problems.append(
            f"instance: sync_members must be at most {MAX_SYNC} different names of members: letters, digits, dashes, underscores"
        )
        return ()
    return found


def _directory(reader: DocumentReader, source: Mapping[str, Any], key: str) -> str | None:
    def fits(value: Any) -> bool:
        return is_path(value) and len(value) <= 1_024 and "\0" not in value

    found: str | None = reader.read_checked(source, key, "instance", fits, "an absolute path")
    return found and (found.rstrip("/") or "/")
