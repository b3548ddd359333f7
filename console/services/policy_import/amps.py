"""AMPS's configuration XML: slow-client settings (seed 000), transports, transaction log (seed 002) and actions."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from broker_core.config import JournaledTopic
from console.services.policy_import.amps_actions import read_actions
from console.services.policy_import.amps_words import nbytes, seconds, topic_pattern
from console.services.policy_import.imported import Imported, parse_xml, whole

_POOL = {"MessageMemoryLimit": "message_memory_limit", "MessageDiskLimit": "message_disk_limit"}
_SLOW = {*_POOL, "MessageDiskPath", "ClientMaxCapacity", "ClientMessageAgeLimit"}
_TYPES = {"tcp": "tcp", "tcps": "tcp", "websocket": "websocket"}
_MESSAGE_TYPES = {"json": "json", "fix": "fix", "nvfix": "nvfix", "msgpack": "msgpack", "binary": "binary"}
_READ = {*_SLOW, "Name", "Transports", "TransactionLog", "Actions"}
NOT_HERE = "Sluice has no setting that does this."


def read(text: str) -> Imported:
    """An `<AMPSConfig>`. The instance keeps its own name: bookmarks carry it."""
    imported = Imported()
    root = parse_xml(text)
    for child in root:
        if child.tag not in _READ:
            imported.leave_out("AMPSConfig", f"<{child.tag}>", NOT_HERE)
    imported.document |= _slow_clients(imported, root, "AMPSConfig")
    if transports := _transports(imported, root):
        imported.document["transports"] = transports
    log = root.find("TransactionLog")
    if log is not None:
        imported.document["instance"] = _transaction_log(imported, log)
    read_actions(imported, root)
    return imported


def _slow_clients(imported: Imported, element: Element, where: str) -> dict[str, Any]:
    pool: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for name in sorted(_SLOW):
        text = element.findtext(name)
        if text is None:
            continue
        value: Any
        if name in _POOL:
            value = pool[_POOL[name]] = nbytes(text)
        elif name == "MessageDiskPath":
            value = pool["message_disk_path"] = text.strip() if text.strip().startswith("/") else None
        elif name == "ClientMaxCapacity":
            value = client["client_max_capacity"] = whole(text.strip().removesuffix("%"))
        else:
            age = seconds(text)
            value = client["client_message_age_limit_ms"] = round(age * 1_000) if age else None
        if value is None:
            imported.leave_out(where, f"{name} {text.strip()}", "It isn't a value of this setting.")
    made = {"pool": pool, "client_policy": client}
    return {key: kept for key, values in made.items() if (kept := {k: v for k, v in values.items() if v is not None})}


def _transports(imported: Imported, root: Element) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for element in root.iterfind("Transports/Transport"):
        name = (element.findtext("Name") or "").strip()
        where = f"Transport {name}"
        kind = _TYPES.get((element.findtext("Protocol") or "").strip()) or _TYPES.get((element.findtext("Type") or "").strip())
        host, _, port = (element.findtext("InetAddr") or "").strip().rpartition(":")
        if not name or kind is None or whole(port) is None:
            imported.leave_out(where, f"{element.findtext('Type')} {element.findtext('InetAddr')}",
                               "Sluice listens by TCP and WebSocket on an address with a port.")
            continue
        transport: dict[str, Any] = {"name": name, "kind": kind, "port": whole(port)}
        if host not in ("", "127.0.0.1", "localhost"):
            imported.leave_out(where, f"InetAddr {host}", "It listens on loopback until an operator opens it.")
        transport |= _slow_clients(imported, element, where)
        for child in element:
            if child.tag not in {*_SLOW, "Name", "Type", "Protocol", "InetAddr"}:
                imported.leave_out(where, f"{child.tag} {(child.text or '').strip()}".strip(), NOT_HERE)
        made.append(transport)
    return made


def _transaction_log(imported: Imported, element: Element) -> dict[str, Any]:
    where = "TransactionLog"
    made: dict[str, Any] = {"unjournaled_topics": []}
    topics: list[str | dict[str, str]] = []
    for child in element:
        text = (child.text or "").strip()
        if child.tag == "Topic":
            topics.append(_topic(imported, child))
        elif child.tag == "JournalSize" and (size := nbytes(text)) is not None:
            made["journal_size"] = size
        elif child.tag == "PreallocatedJournalFiles" and (files := whole(text)) is not None:
            made["preallocated_files"] = files
        elif child.tag in ("JournalDirectory", "JournalArchiveDirectory") and text.startswith("/"):
            made["journal_directory" if child.tag == "JournalDirectory" else "archive_directory"] = text
        elif child.tag in ("JournalDirectory", "JournalArchiveDirectory"):
            imported.leave_out(where, f"{child.tag} {text}", "A relative directory; Sluice's own is kept.")
        else:
            imported.leave_out(where, f"{child.tag} {text}".strip(), NOT_HERE)
    return {**made, "journaled_topics": topics}


def _topic(imported: Imported, element: Element) -> str | dict[str, str]:
    name = (element.findtext("Name") or "").strip()
    kind = (element.findtext("MessageType") or "json").strip()
    where = f"TransactionLog Topic {name}"
    if kind not in _MESSAGE_TYPES:
        imported.leave_out(where, f"MessageType {kind}", "Its messages are kept as binary: filters can't look into them.")
    for child in element:
        if child.tag not in ("Name", "MessageType", "Filter"):
            imported.leave_out(where, f"<{child.tag}>", NOT_HERE)
    chosen = (element.findtext("Filter") or "").strip() or None
    return JournaledTopic(topic_pattern(name), _MESSAGE_TYPES.get(kind, "binary"), chosen).as_json()

