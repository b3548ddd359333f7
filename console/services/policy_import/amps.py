"""Importer of AMPS's configuration XML.

It reads slow-client settings (seed 000), transports, the transaction log (seed 002) and actions.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from broker_core.config.document_reader import MAX_TEXTS, DocumentReader
from broker_core.config.instance import MAX_TEXT, JournaledTopic, read_instance
from broker_core.config.presets import read_client_policy, read_pool
from broker_core.config.transports import read_transport
from broker_core.errors import ClientError
from broker_core.filters import compile_filter
from broker_core.subscriptions.topics import TopicPattern
from console.services.policy_import.amps_actions import read_actions
from console.services.policy_import.amps_older import read_older_settings
from console.services.policy_import.amps_values import parse_bytes, parse_seconds, topic_pattern
from console.services.policy_import.result import (
    NO_SUCH_SETTING,
    ImportReport,
    parse_bool,
    parse_int,
    value_problem,
)
from console.services.policy_import.variables import Variables, is_placeholder, unset_reason
from console.services.policy_import.xml_leaves import XmlElement, XmlLeaf, leaf_value, parse_xml

MAX_TRANSPORTS: Final = 64
_AMPS_PATH: Final = "the working directory of AMPS"
_Limit = tuple[str, str, Callable[[str], Any], Callable[[DocumentReader, dict[str, Any], str], object]]
"""Group and name of a setting, conversion of its text, and the reader that validates it."""


def _percent(text: str) -> int | None:
    return parse_int(text.removesuffix("%"))


def _ms(text: str) -> int | None:
    age = parse_seconds(text)
    return None if age is None else round(age * 1_000)


def _path(text: str) -> str:
    """Return an absolute path without `.` and `..`; a relative one unchanged."""
    return os.path.normpath(text) if text.startswith("/") else text


_LIMITS: Final[dict[str, _Limit]] = {
    "MessageMemoryLimit": ("pool", "message_memory_limit", parse_bytes, read_pool),
    "MessageDiskLimit": ("pool", "message_disk_limit", parse_bytes, read_pool),
    "MessageDiskPath": ("pool", "message_disk_path", _path, read_pool),
    "ClientMaxCapacity": ("client_policy", "client_max_capacity", _percent, read_client_policy),
    "ClientMessageAgeLimit": ("client_policy", "client_message_age_limit_ms", _ms, read_client_policy),
}
_JOURNAL: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "JournalSize": ("journal_size", parse_bytes),
    "MinJournalSize": ("journal_size", parse_bytes),
    "PreallocatedJournalFiles": ("preallocated_files", parse_int),
    "JournalDirectory": ("journal_directory", _path),
    "JournalArchiveDirectory": ("archive_directory", _path),
}
_PATHS: Final = frozenset(("message_disk_path", "journal_directory", "archive_directory"))
_TYPES: Final = {"tcp": "tcp", "tcps": "tcp", "websocket": "websocket"}
_MESSAGE_TYPES: Final = {
    "json": "json",
    "fix": "fix",
    "nvfix": "nvfix",
    "msgpack": "msgpack",
    "binary": "binary",
}
_ALLOWS_ALL: Final = frozenset(("amps-default-authentication-module", "amps-default-entitlement-module"))
"""AMPS's modules that admit every user and allow everything. Others of its default modules deny."""
_NOT_POLICY: Final = frozenset((
    "AMPSVersionCompliance", "Admin", "Description", "Environment", "Externals", "Group", "Logging",
    "MessageTypes", "MiniDumpDirectory", "Modules", "ProcessName", "ProcessTuning", "Protocols",
    "RequiredConfigurationVersion", "SOWStatsInterval", "Tuning",
))  # fmt: skip
_SECTIONS: Final = {
    "Name": "The instance retains its name, because bookmarks contain it.",
    "SOW": "Sluice has no SOW topics and no views: a snapshot of a topic's newest records replaces a query.",
    "Replication": "Configure replication manually: under Destinations at other sites, each a link.",
    "Include": "This part is in another file: import that file separately.",
}
_QUEUE: Final = (
    "A queue needs no setting: each topic queue.NAME is a queue. Its consumers can use STOMP, or shared "
    "subscriptions."
)
_OF_TRANSPORT: Final = {
    "MessageType": ("A transport carries all message types; the journaled topics set the type of a topic."),
    "Protocol": "Clients speak Sluice's own protocol or STOMP.",
    "Ciphers": "TLS uses the default settings of the system's library, version 1.2 or newer.",
    "SecureSocketProtocols": "TLS uses the default settings of the system's library, version 1.2 or newer.",
}
_OPENING: Final = (
    "Name", "Type", "InetAddr", "Protocol", "Certificate", "PrivateKey", "CAFile", "VerifyClient",
)  # fmt: skip
"""Settings that decide how a transport opens. A variable in one of them leaves the transport out."""
_NO_TRANSPORT: Final = "No imported transport uses it."
_IN_ANOTHER_FILE: Final = (
    "A part of it is in another file, which may change it: write that part into this file."
)
_UNREAD_LIMIT: Final = (
    "Its {name} can't be read, and the instance's may be lower: write the value into the file."
)


def import_amps(text: str, variables: Variables) -> ImportReport:
    """Import an `<AMPSConfig>` element, or one of its parts alone.

    The instance keeps its own name, because bookmarks contain it. Raises OperatorError `bad_import`.
    """
    root = parse_xml(text, variables)
    variables.add_defaults(_own_variables(root))
    root.resolve(variables)
    imported = ImportReport(root.all_leaves())
    parts = root.children if root.name == "AMPSConfig" else [root]
    imported.document |= _limits(imported, parts, "")
    reader = _TransportReader(imported, parts, is_whole=root.name == "AMPSConfig")
    if transports := reader.read():
        imported.document["transports"] = transports
    if rules := [*read_older_settings(imported, parts), *reader.rules]:
        imported.document["rules"] = rules
    if made := _transaction_log(imported, parts):
        imported.document["instance"] = made
    for part in parts:
        if part.name == "Actions":
            read_actions(imported, part)
    for part in parts:
        if part.name in _NOT_POLICY:
            imported.record_unrelated(part)
        elif part.name in _SECTIONS:
            for child in part.children:
                if child.name == "Queue":
                    imported.record_skipped(child, _QUEUE)
            imported.record_skipped(part, _SECTIONS[part.name])
        elif part.name in ("Authentication", "Entitlement"):
            imported.record_skipped(part, _NO_TRANSPORT)
    return imported


def _own_variables(root: XmlElement) -> Iterator[tuple[str, str]]:
    """Yield names and values of the variables that a file sets itself: its Environment, and its name."""
    if (name := leaf_value(root.text_of("Name"))) and root.name == "AMPSConfig":
        yield "AMPS_INSTANCE_NAME", name
    environment = root.child("Environment")
    for one in environment.children if environment is not None else ():
        if one.text is not None:
            yield one.name, one.text.value


def _limits(imported: ImportReport, elements: Sequence[XmlElement], part: str) -> dict[str, Any]:
    """Return the slow-client settings in some elements.

    `part` names a transport, or is "" for the instance.
    """
    made: dict[str, dict[str, Any]] = {}
    for element in elements:
        leaf = element.text
        if element.name not in _LIMITS or leaf is None:
            continue
        group, setting, convert, check = _LIMITS[element.name]
        value = convert(leaf.value)
        reason = _skip_reason(leaf, value, {setting: value}, check)
        if setting in made.get(group, {}):
            reason = "The file has it twice: the first was imported."
        if reason:
            imported.record_skipped(leaf, reason)
        else:
            made.setdefault(group, {})[setting] = value
            shown = _shown_setting(setting, value, leaf)
            imported.record_imported(leaf, part or group, f"{group}.{shown}" if part else shown)
    return made


def _skip_reason(
    leaf: XmlLeaf,
    value: object,
    settings: dict[str, Any],
    check: Callable[[DocumentReader, dict[str, Any], str], object],
) -> str:
    if reason := _relative_path_reason(next(iter(settings)), leaf):
        return reason
    return value_problem(leaf, value, lambda reader: check(reader, settings, "it"))


def _relative_path_reason(setting: str, leaf: XmlLeaf) -> str:
    """Return why a relative path isn't imported, with the path that it resolves to, or ""."""
    path = leaf.value
    if setting not in _PATHS or path.startswith("/") or not path or is_placeholder(path):
        return ""
    return (
        f"The path is {os.path.normpath(path)} under {_AMPS_PATH}, which the file doesn't name: write the "
        "absolute path."
    )


def _shown_setting(setting: str, value: object, leaf: XmlLeaf) -> str:
    """Return a setting's name, and its path if the file has another spelling of it."""
    return f"{setting} {value}" if setting in _PATHS and value != leaf.value.rstrip("/") else setting


class _TransportReader:
    """Reader of a file's transports.

    Authentication and entitlement of the instance apply where a transport has none. A transport whose
    module may be in another file is closed, as by a module that isn't AMPS's default.
    """

    def __init__(self, imported: ImportReport, parts: Sequence[XmlElement], *, is_whole: bool) -> None:
        self._imported = imported
        self._parts = parts
        self._knows_instance = is_whole and not any(map(_is_include, parts))
        """Whether authentication and entitlement of the instance are in this file."""
        named = (one for part in parts if part.name == "Modules" for one in part.walk() if one.name == "Name")
        self._open_modules = _ALLOWS_ALL - {leaf_value(one.text) for one in named}
        """Modules that admit every user, and that the file doesn't define itself."""
        self._made: list[dict[str, Any]] = []
        self.rules: list[dict[str, Any]] = []
        """Rules for the transports' older slow-client settings."""

    def read(self) -> list[dict[str, Any]]:
        """Return the imported transports."""
        for part in self._parts:
            for element in (
                part.children if part.name == "Transports" else [part] if part.name == "Transport" else []
            ):
                if element.name == "Transport":
                    self._one(element)
        return self._made

    def _one(self, element: XmlElement) -> None:
        """Import one transport, or record why it is skipped."""
        if reason := self._skip_reason(element):
            self._imported.record_skipped(element, reason)
            return
        address = leaf_value(element.text_of("InetAddr"))
        transport: dict[str, Any] = {
            "name": leaf_value(element.text_of("Name")),
            "kind": _kind(element),
            "port": parse_int(address.rpartition(":")[2]),
        }
        secured, tls = _tls(element)
        if secured:
            transport["tls"] = tls
        part = f"transport {transport['name']}"
        self._record_imported(element, part, transport)
        transport |= self._access(element, part) | _limits(self._imported, element.children, part)
        self.rules += read_older_settings(self._imported, element.children, transport["name"])
        self._skip_remaining_elements(element)
        self._made.append(transport)

    def _skip_reason(self, element: XmlElement) -> str:
        """Return why a transport must be skipped, or "".

        A transport with TLS is never imported without TLS.
        """
        unset = [
            leaf_value(element.text_of(name))
            for name in _OPENING
            if is_placeholder(leaf_value(element.text_of(name)))
        ]
        if unset:
            return unset_reason(" ".join(unset))
        name, address = leaf_value(element.text_of("Name")), leaf_value(element.text_of("InetAddr"))
        kind, port = _kind(element), parse_int(address.rpartition(":")[2])
        secured, tls = _tls(element)
        verify = element.text_of("VerifyClient")
        requires_certificate = parse_bool(leaf_value(verify)) is True
        if kind is None or port is None:
            return "Sluice listens by TCP and WebSocket, on an address with a port."
        if any(map(_is_include, element.walk())):
            return _IN_ANOTHER_FILE
        if unread := self._unread_limit(element):
            return _UNREAD_LIMIT.format(name=unread)
        if verify is not None and verify.value and parse_bool(verify.value) is None:
            return "The transport may require client certificates: set VerifyClient to true or false."
        if any(made["name"] == name or made["port"] == port for made in self._made):
            return "A transport with this name or port was imported already."
        if len(self._made) >= MAX_TRANSPORTS:
            return f"A policy has at most {MAX_TRANSPORTS} transports."
        if requires_certificate and "client_ca" not in tls:
            return (
                "The transport requires client certificates, and Sluice reads their authorities from "
                "one file: set CAFile."
            )
        if secured and not (
            {"certificate", "key"} <= tls.keys() and all(path.startswith("/") for path in tls.values())
        ):
            return (
                "The transport uses TLS and can't open without its files: set Certificate, PrivateKey "
                "(and CAFile) to absolute paths."
            )
        reader = DocumentReader()
        read_transport(
            reader, {"name": name, "kind": kind, "port": port, **({"tls": tls} if secured else {})}
        )
        return "; ".join(f"{problem.partition(': ')[2] or problem}." for problem in reader.problems)

    def _unread_limit(self, element: XmlElement) -> str:
        """Return a limit of the transport that can't be read, or "" without one.

        The limit of the instance would apply in its place.
        """
        report = ImportReport(element.all_leaves())
        read = _limits(report, element.children, "transport")
        for child in element.children:
            if child.name in _LIMITS:
                group, setting, _, _ = _LIMITS[child.name]
                if setting not in read.get(group, {}) and setting in self._imported.document.get(group, {}):
                    return child.name
        return ""

    def _record_imported(self, element: XmlElement, part: str, transport: dict[str, Any]) -> None:
        """Record the leaves of a transport as imported."""
        port = f"port {transport['port']}, on loopback until its host is set"
        settings = {
            "Name": "name",
            "InetAddr": port,
            "Type": "kind and tls" if "tls" in transport else "kind",
        }
        settings |= {"Certificate": "tls.certificate", "PrivateKey": "tls.key"} if "tls" in transport else {}
        if "client_ca" in transport.get("tls", {}):
            settings |= {"CAFile": "tls.client_ca", "VerifyClient": "tls.client_ca"}
        if _TYPES.get(leaf_value(element.text_of("Protocol"))) is not None:
            settings["Protocol"] = "kind"
        for name, setting in settings.items():
            if (leaf := element.text_of(name)) is not None:
                self._imported.record_imported(leaf, part, setting)

    def _access(self, element: XmlElement, part: str) -> dict[str, Any]:
        """Return a transport's authentication and restriction, closed at first.

        A module for authentication becomes passwords, one for entitlement a restricted transport.
        """
        made: dict[str, Any] = {}
        for name, setting, closed_value, open_value in (
            ("Authentication", "authentication", "password", "none"),
            ("Entitlement", "restricted", True, False),
        ):
            own = element.child(name)
            found = [own] if own is not None else [one for one in self._parts if one.name == name]
            if not found and self._knows_instance:
                continue
            leaves = [one.text_of("Module") for one in found]
            is_open = bool(leaves) and all(leaf_value(leaf) in self._open_modules for leaf in leaves)
            value = made[setting] = open_value if is_open else closed_value
            more = "" if is_open else ", users and entitlements are set under access"
            if not found:
                self._imported.remark(
                    part, f"{setting} {str(value).lower()}, as {name} may be in another file"
                )
            for one, leaf in zip(found, leaves, strict=True):
                if leaf is not None:
                    self._imported.record_imported(
                        leaf, part if one is own else "transports", f"{setting} {str(value).lower()}{more}"
                    )
                self._imported.record_skipped(
                    one, "The module's options aren't imported: set users and entitlements under access."
                )
        return made

    def _skip_remaining_elements(self, element: XmlElement) -> None:
        """Record a transport's remaining elements as skipped."""
        if parse_bool(leaf_value(element.text_of("VerifyClient"))) is not True:
            for name in ("VerifyClient", "CAFile", "CAPath"):
                if (one := element.child(name)) is not None:
                    self._imported.record_skipped(
                        one, "Clients need certificates only if VerifyClient is true."
                    )
        for child in element.children:
            if child.name not in _LIMITS:
                self._imported.record_skipped(child, _OF_TRANSPORT.get(child.name, NO_SUCH_SETTING))


def _kind(element: XmlElement) -> str | None:
    return _TYPES.get(leaf_value(element.text_of("Protocol"))) or _TYPES.get(
        leaf_value(element.text_of("Type"))
    )


def _tls(element: XmlElement) -> tuple[bool, dict[str, str]]:
    """Return whether a transport uses TLS, and its files.

    AMPS uses TLS for tcps, and for tcp with a private key.
    """
    files = {"certificate": "Certificate", "key": "PrivateKey"}
    if parse_bool(leaf_value(element.text_of("VerifyClient"))) is True:
        files["client_ca"] = "CAFile"
    found = {key: value for key, name in files.items() if (value := leaf_value(element.text_of(name)))}
    return leaf_value(element.text_of("Type")) == "tcps" or "key" in found, found


def _is_include(element: XmlElement) -> bool:
    """Return whether an element stands for a part in another file."""
    return element.name.lower() == "include"


def _transaction_log(imported: ImportReport, parts: Sequence[XmlElement]) -> dict[str, Any]:
    """Return the journal's settings of the TransactionLog elements among a file's parts.

    Without a Topic nothing is journaled, as in AMPS. If one Topic of several can't be imported, or may be in
    another file, all topics are journaled, because AMPS stores its messages. If no Topic can be imported, the
    journaled topics stay unchanged.
    """
    made: dict[str, Any] = {}
    topics: list[str | dict[str, str]] = []
    elements = [part for part in parts if part.name == "TransactionLog"]
    children = [child for element in elements for child in element.children]
    for child in children:
        if child.name == "Topic":
            topics += _topic(imported, child, len(topics))
        elif child.name in _JOURNAL and child.text is not None:
            _journal(imported, child.text, made)
        else:
            imported.record_skipped(child, _IN_ANOTHER_FILE if _is_include(child) else NO_SUCH_SETTING)
    texts = [element.text for element in elements if element.text is not None]
    empty = bool(texts) and not children and not any(leaf.value for leaf in texts)
    for leaf in texts if empty else ():
        imported.record_imported(leaf, "instance", "no topic is journaled")
    named = sum(child.name == "Topic" or _is_include(child) for child in children)
    if topics and len(topics) < named:
        topics = [*topics[: MAX_TEXTS - 1], ">"]
        for child in children:
            imported.remark(_topic_part(child), "all topics are journaled, as one can't be imported")
    if topics or empty or (made and not named and not any(map(_is_include, parts))):
        made |= {"unjournaled_topics": [], "journaled_topics": topics}
    return made


def _journal(imported: ImportReport, leaf: XmlLeaf, made: dict[str, Any]) -> None:
    """Import one setting of the journal, or record why it is skipped."""
    setting, convert = _JOURNAL[leaf.name]
    value = convert(leaf.value)
    reason = _relative_path_reason(setting, leaf) or value_problem(
        leaf, value, lambda reader: read_instance(reader, {"name": "instance", **made, setting: value})
    )
    if setting in made:
        reason = "The file has it twice: the first was imported."
    if reason:
        imported.record_skipped(leaf, reason)
    else:
        made[setting] = value
        imported.record_imported(leaf, "instance", _shown_setting(setting, value, leaf))


def _topic(imported: ImportReport, element: XmlElement, before: int) -> list[str | dict[str, str]]:
    """Return a journaled topic in a list; an empty list if its name can't be imported.

    `before` is the number so far.
    """
    name, kind, chosen = (element.text_of(one) for one in ("Name", "MessageType", "Filter"))
    pattern = topic_pattern(leaf_value(name))
    if name is not None and is_placeholder(name.value):
        imported.record_skipped(element, unset_reason(name.value))
        return []
    try:
        TopicPattern.parse(pattern)
    except ClientError as problem:
        imported.record_skipped(element, f"{problem.sentence} {problem.fix}")
        return []
    if name is None or before >= MAX_TEXTS:
        imported.record_skipped(element, f"A policy has at most {MAX_TEXTS} journaled topics.")
        return []
    part = _topic_part(element)
    imported.record_imported(name, part, "topic")
    message_type = _MESSAGE_TYPES.get(leaf_value(kind) or "json", "binary")
    if kind is not None and kind.value in _MESSAGE_TYPES:
        imported.record_imported(kind, part, f"message_type {message_type}")
    elif kind is not None and is_placeholder(kind.value):
        imported.record_skipped(kind, f"Its messages are stored as binary. {unset_reason(kind.value)}")
    elif kind is not None:
        imported.record_skipped(kind, "Its messages are stored as binary, so filters can't read them.")
    selected = _filter(imported, chosen, message_type, part) if chosen is not None else None
    imported.record_skipped(element, NO_SUCH_SETTING)
    return [JournaledTopic(pattern, message_type, selected).to_json()]


def _topic_part(element: XmlElement) -> str:
    """Return the name of the part that a Topic element is imported into."""
    return f"journaled topic {topic_pattern(leaf_value(element.text_of('Name')))}"


def _filter(imported: ImportReport, leaf: XmlLeaf, message_type: str, part: str) -> str | None:
    """Return a journaled topic's filter, or None if it is invalid: then all messages are journaled."""
    if len(leaf.value) > MAX_TEXT:
        imported.record_skipped(
            leaf, f"All messages of the topic are journaled: a filter has at most {MAX_TEXT} characters."
        )
        return None
    if is_placeholder(leaf.value):
        imported.record_skipped(leaf, f"All messages of the topic are journaled. {unset_reason(leaf.value)}")
        return None
    try:
        compile_filter(leaf.value)
    except ClientError as problem:
        imported.record_skipped(leaf, f"All messages of the topic are journaled: {problem.sentence}")
        return None
    if message_type == "binary":
        imported.record_skipped(
            leaf, "All messages of the topic are journaled, because a filter can't read binary messages."
        )
        return None
    imported.record_imported(leaf, part, "filter")
    return leaf.value
