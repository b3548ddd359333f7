"""Settings of the instance itself: its name, its journaled topics, and the files of its journal.

A topic is journaled by exact name, by pattern or by content filter. Each entry also sets the message type of
its topics, which decides how filters parse bodies.
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
    """Topics that the journal stores: one entry of `journaled_topics`.

    In JSON an entry is a pattern alone, or an object with these names.

    Attributes:
        topic: An exact name or a pattern.
        message_type: How filters parse the bodies of these topics: json (default), fix, nvfix, msgpack or
            binary.
        filter: Filter that a message must pass to be journaled. None: all messages. Not available for binary.
        separator: Character between the fields of fix and nvfix. None: SOH (0x01).
    """

    topic: str
    message_type: str = "json"
    filter: str | None = None
    separator: str | None = None

    def to_json(self) -> str | dict[str, str]:
        """Return the shortest JSON form of this entry, which reads back as an equal entry."""
        defaults = asdict(JournaledTopic(self.topic))
        changed = {key: value for key, value in asdict(self).items() if value != defaults[key]}
        return {"topic": self.topic, **changed} if changed else self.topic


EVERYTHING = (JournaledTopic(">"),)


def read_journaled_topics(
    reader: DocumentReader, source: Mapping[str, Any], key: str, where: str
) -> tuple[JournaledTopic, ...]:
    """Read a list of patterns and objects. Returns an entry for all topics if the setting is missing."""
    value = reader.read_checked(
        source,
        key,
        where,
        lambda found: is_list_of(found, object, MAX_TEXTS),
        f"a list of topic patterns or objects, {MAX_TEXTS} at most",
    )
    if value is None:
        return EVERYTHING
    return tuple(
        _read_journaled_topic(reader, item, f"{where}: {key}[{number}]") for number, item in enumerate(value)
    )


_TEXT_DESCRIPTION = f"a text of at most {MAX_TEXT} characters"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _read_journaled_topic(reader: DocumentReader, item: Any, where: str) -> JournaledTopic:
    if isinstance(item, str):
        item = {"topic": item}
    if not isinstance(item, Mapping):
        reader.problems.append(f"{where} must be a topic pattern or an object")
        return EVERYTHING[0]
    reader.check_known_keys(item, JournaledTopic.__dataclass_fields__, where)
    topic = reader.read_checked(item, "topic", where, _is_text, _TEXT_DESCRIPTION)
    message_type = item.get("message_type", "json")
    if not item.get("topic"):
        reader.problems.append(f"{where}: topic is needed")
    if message_type not in MESSAGE_TYPES:
        reader.problems.append(f"{where}: message_type must be one of {', '.join(MESSAGE_TYPES)}")
    filter_text = reader.read_checked(item, "filter", where, _is_text, _TEXT_DESCRIPTION)
    separator = reader.read_checked(item, "separator", where, _is_text, _TEXT_DESCRIPTION)
    if filter_text and message_type == "binary":
        reader.problems.append(f"{where}: a filter can't read binary messages")
    if separator is not None and (
        message_type not in ("fix", "nvfix") or len(separator) != 1 or separator == "="
    ):
        reader.problems.append(
            f"{where}: separator is one character other than =, and of fix and nvfix alone"
        )
    return JournaledTopic(topic or ">", str(message_type), filter_text or None, separator)


MIB = 1024 * 1024
DOWNGRADE_AFTER_MS = 30_000
MAX_SYNC_MEMBERS = 16
MIN_DOWNGRADE_MS, MAX_DOWNGRADE_MS = 100, 3_600_000


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """Settings of an instance: its name, its journaled topics, and the files of its journal.

    Changed topics take effect immediately. `journal_size` and `preallocated_files` apply from the next
    segment on, and directories from the broker's next start.

    Attributes:
        name: Instance name.
        journaled_topics: Patterns, or `JournaledTopic` entries with message type and filter. Default: all
            topics.
        unjournaled_topics: Patterns that are excluded from `journaled_topics`. Default `scratch.>`.
        journal_size: Bytes of one segment. Default 128 MiB, minimum 1 MiB.
        preallocated_files: Number of segments that are created in advance. Default 2, minimum 1.
        journal_directory: Absolute path of the segments. None: the installation's directory.
        archive_directory: Absolute path of archived segments. None: the installation's directory.
        sync_members: Group members that `fully_durable` waits for. Default: none.
        sync_topics: Patterns of topics whose `persisted` acknowledgement waits for `sync_members`, too.
            Default: none.
        downgrade_after_ms: Milliseconds without a confirmation after which the broker no longer waits for a
            member. Default 30 s.
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


GROUP_DEFAULTS: Final[dict[str, Any]] = {
    "sync_members": [],
    "sync_topics": [],
    "downgrade_after_ms": DOWNGRADE_AFTER_MS,
}
"""Default values of the group settings, as JSON.

`PolicyDocument.to_dict` omits settings with these values.
"""


def read_instance(reader: DocumentReader, source: Mapping[str, Any]) -> InstanceSettings:
    """Read the settings of the instance."""
    where = "instance"
    reader.check_known_keys(source, InstanceSettings.__dataclass_fields__, where)
    name = source.get("name", "")
    if not isinstance(name, str) or not is_name(name):
        reader.problems.append("instance.name must be 1 to 64 letters, digits, dots, dashes, underscores")
    directories = [_read_directory(reader, source, key) for key in ("journal_directory", "archive_directory")]
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
        _read_members(reader, source),
        reader.read_texts(source, "sync_topics", where, ()),
        reader.read_int(source, "downgrade_after_ms", where, MIN_DOWNGRADE_MS, MAX_DOWNGRADE_MS)
        or DOWNGRADE_AFTER_MS,
    )


def _read_members(reader: DocumentReader, source: Mapping[str, Any]) -> tuple[str, ...]:
    found = reader.read_texts(source, "sync_members", "instance", (), "names of members")
    if len(found) > MAX_SYNC_MEMBERS or not all(map(is_name, found)) or len(set(found)) < len(found):
        reader.problems.append(
            f"instance: sync_members must be at most {MAX_SYNC_MEMBERS} different names of members: "
            "letters, digits, dashes, underscores"
        )
        return ()
    return found


def _read_directory(reader: DocumentReader, source: Mapping[str, Any], key: str) -> str | None:
    def is_valid(value: Any) -> bool:
        return is_path(value) and len(value) <= 1_024 and "\0" not in value

    found: str | None = reader.read_checked(source, key, "instance", is_valid, "an absolute path")
    return found and (found.rstrip("/") or "/")
