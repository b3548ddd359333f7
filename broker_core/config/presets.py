"""How the settings of `preset_settings` are read from a document. `slow_clients.rules.presets` compiles them to rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

from broker_core.config.document_reader import DocumentReader, is_list_of
from broker_core.config.preset_settings import (
    ACTIVEMQ,
    AMPS_CLIENT,
    AMPS_POOL,
    QPID,
    QUOTAS,
    XAP,
    ActiveMqPolicy,
    ClientPolicy,
    PoolSettings,
    QpidTopicPolicy,
    QuotaSettings,
    Table,
    XapPolicy,
    read_settings,
)

MAX_ENTRIES: Final = 200
_Entry = TypeVar("_Entry", XapPolicy, ActiveMqPolicy, QpidTopicPolicy, QuotaSettings)


def read_pool(reader: DocumentReader, source: Mapping[str, Any], where: str) -> PoolSettings:
    """A pool's settings."""
    reader.check_known_keys(source, AMPS_POOL, where)
    return PoolSettings(**read_settings(reader, AMPS_POOL, source, where))


def read_client_policy(reader: DocumentReader, source: Mapping[str, Any], where: str) -> ClientPolicy:
    """What one client may use."""
    reader.check_known_keys(source, AMPS_CLIENT, where)
    return ClientPolicy(**read_settings(reader, AMPS_CLIENT, source, where))


def read_xap(reader: DocumentReader, source: Any) -> tuple[XapPolicy, ...]:
    """The document's `xap`: a list with an entry for the instance and for transports that differ."""
    return _entries(reader, source, "xap", XapPolicy, XAP)


def read_activemq(reader: DocumentReader, source: Any) -> tuple[ActiveMqPolicy, ...]:
    """The document's `activemq`: a list of policy entries."""
    return _entries(reader, source, "activemq", ActiveMqPolicy, ACTIVEMQ)


def read_qpid(reader: DocumentReader, source: Any) -> tuple[QpidTopicPolicy, ...]:
    """The document's `qpid`: a list of topics."""
    return _entries(reader, source, "qpid", QpidTopicPolicy, QPID)


def read_quotas(reader: DocumentReader, source: Any) -> tuple[QuotaSettings, ...]:
    """The document's `quotas`: a list with an entry for everybody and for users and transports that differ."""
    return _entries(reader, source, "quotas", QuotaSettings, QUOTAS)


def _entries(
    reader: DocumentReader, source: Any, system: str, kind: type[_Entry], table: Table
) -> tuple[_Entry, ...]:
    """The entries of a system's list; a list of anything else is reported."""
    if source is None:
        return ()
    if not is_list_of(source, Mapping, MAX_ENTRIES):
        reader.problems.append(f"{system} must be a list of at most {MAX_ENTRIES} objects")
        return ()
    known = [key.name for key in fields(kind)]
    whom = [{key: str(entry.get(key) or "") for key in ("topic", "user", "transport")} for entry in source]
    names = [f"{system} {' '.join(filter(None, about.values()))}".rstrip() for about in whom]
    for entry, name in zip(source, names, strict=True):
        reader.check_known_keys(entry, known, name)
        if "topic" in known and not (isinstance(entry.get("topic"), str) and entry["topic"]):
            reader.problems.append(f"{name}: topic must be a topic or a pattern")
        for key in ("transport", "user"):
            if not isinstance(entry.get(key) or "", str):
                reader.problems.append(f"{name}: {key} must be a {key}'s name")
    twice = sorted({name for name in names if names.count(name) > 1})
    reader.problems += [f"{name}: there are two entries" for name in twice]
    found = []
    for entry, about, name in zip(source, whom, names, strict=True):
        settings = read_settings(reader, table, entry, name)
        if settings.get("delete_persistent") and not settings["confirm_delete"]:
            reader.problems.append(
                f"{name}: delete_persistent removes what durable subscriptions are owed: set confirm_delete to true if "
                "that is meant"
            )
        settings |= {key: value for key, value in about.items() if key in known}
        found.append(kind(**settings))
    return tuple(found)
