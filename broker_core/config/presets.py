"""Readers for the preset settings of a policy document.

`config.preset_settings` declares the settings, and `slow_clients.rules.presets` compiles them to rules.
"""

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
    """Read the AMPS pool settings of the instance or of a transport."""
    reader.check_known_keys(source, AMPS_POOL, where)
    return PoolSettings(**read_settings(reader, AMPS_POOL, source, where))


def read_client_policy(reader: DocumentReader, source: Mapping[str, Any], where: str) -> ClientPolicy:
    """Read the AMPS client limits of the instance or of a transport."""
    reader.check_known_keys(source, AMPS_CLIENT, where)
    return ClientPolicy(**read_settings(reader, AMPS_CLIENT, source, where))


def read_xap(reader: DocumentReader, source: Any) -> tuple[XapPolicy, ...]:
    """Read the list `xap`: an entry for the instance, and one for each transport that differs."""
    return _read_entries(reader, source, "xap", XapPolicy, XAP)


def read_activemq(reader: DocumentReader, source: Any) -> tuple[ActiveMqPolicy, ...]:
    """Read the list `activemq`: one entry per topic pattern and transport."""
    return _read_entries(reader, source, "activemq", ActiveMqPolicy, ACTIVEMQ)


def read_qpid(reader: DocumentReader, source: Any) -> tuple[QpidTopicPolicy, ...]:
    """Read the list `qpid`: one entry per topic key and transport."""
    return _read_entries(reader, source, "qpid", QpidTopicPolicy, QPID)


def read_quotas(reader: DocumentReader, source: Any) -> tuple[QuotaSettings, ...]:
    """Read the list `quotas`: an entry for all users, and one for each user or transport that differs."""
    return _read_entries(reader, source, "quotas", QuotaSettings, QUOTAS)


def _read_entries(
    reader: DocumentReader, source: Any, system: str, kind: type[_Entry], table: Table
) -> tuple[_Entry, ...]:
    """Read the entries of a preset system's list. Reports unknown keys, missing topics and duplicate targets.

    Args:
        reader: Collects the problems.
        source: Value of the document's setting; None returns no entries.
        system: Name of the setting, used in problems.
        kind: Settings class of one entry.
        table: Rows of that class.
    """
    if source is None:
        return ()
    if not is_list_of(source, Mapping, MAX_ENTRIES):
        reader.problems.append(f"{system} must be a list of at most {MAX_ENTRIES} objects")
        return ()
    known = [key.name for key in fields(kind)]
    targets = [{key: str(entry.get(key) or "") for key in ("topic", "user", "transport")} for entry in source]
    names = [f"{system} {' '.join(filter(None, target.values()))}".rstrip() for target in targets]
    for entry, name in zip(source, names, strict=True):
        reader.check_known_keys(entry, known, name)
        if "topic" in known and not (isinstance(entry.get("topic"), str) and entry["topic"]):
            reader.problems.append(f"{name}: topic must be a topic or a pattern")
        for key in ("transport", "user"):
            if not isinstance(entry.get(key) or "", str):
                reader.problems.append(f"{name}: {key} must be a {key}'s name")
    duplicates = sorted({name for name in names if names.count(name) > 1})
    reader.problems += [f"{name}: there are two entries" for name in duplicates]
    settings_list = []
    for entry, target, name in zip(source, targets, names, strict=True):
        settings = read_settings(reader, table, entry, name)
        if settings.get("delete_persistent") and not settings["confirm_delete"]:
            reader.problems.append(
                f"{name}: delete_persistent removes the backlog of durable subscriptions: set "
                "confirm_delete to true to confirm it"
            )
        settings |= {key: value for key, value in target.items() if key in known}
        settings_list.append(kind(**settings))
    return tuple(settings_list)
