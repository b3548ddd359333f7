"""Settings of three systems that operators know, with the words, units and defaults of their own documents.

What each setting means, its unit, bounds and default is in `preset_fields`. They are compiled to rules by
`slow_clients.rules.presets`. AMPS's are in `config.slow_clients`. None means: what a less specific entry says,
and at last the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from broker_core.config.preset_fields import ACTIVEMQ, QPID, XAP, read_settings
from broker_core.config.reading import Reader
from broker_core.config.vocabulary import Mode

MAX_ENTRIES: Final = 200


@dataclass(frozen=True, slots=True)
class XapPolicy:
    """XAP's slow consumers (seed 001), for the instance or a transport: the settings of `preset_fields.XAP`."""

    transport: str = ""
    enabled: bool | None = None
    throughput: int | None = None
    latency: int | None = None
    retries: int | None = None
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class ActiveMqPolicy:
    """ActiveMQ's policyEntry (seed 003) for the subscriptions to a topic pattern, of one transport or all.

    The settings are those of `preset_fields.ACTIVEMQ`.
    """

    topic: str
    transport: str = ""
    prefetch: int | None = None
    constant_pending_message_limit_strategy: int | None = None
    prefetch_rate_pending_message_limit_strategy: float | None = None
    abort_slow_consumer_strategy: bool | None = None
    max_slow_count: int | None = None
    max_slow_duration: int | None = None
    check_period: int | None = None
    abort_connection: bool | None = None
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class QpidTopic:
    """Qpid's consumer element (seed 004) for a topic key with wildcards: any one of its three limits triggers the policy.

    The settings are those of `preset_fields.QPID`.
    """

    topic: str
    transport: str = ""
    depth: int | None = None
    message_age: int | None = None
    message_count: int | None = None
    delete_persistent: bool | None = None
    confirm_delete: bool | None = None
    mode: Mode | None = None


def read_xap(reader: Reader, source: Any) -> tuple[XapPolicy, ...]:
    """The document's `xap`: a list with an entry for the instance and for transports that differ."""
    return tuple(_read_xap(reader, *entry) for entry in _entries(reader, source, "xap", XapPolicy))


def read_activemq(reader: Reader, source: Any) -> tuple[ActiveMqPolicy, ...]:
    """The document's `activemq`: a list of policy entries."""
    return tuple(
        _read_activemq(reader, *entry) for entry in _entries(reader, source, "activemq", ActiveMqPolicy)
    )


def read_qpid(reader: Reader, source: Any) -> tuple[QpidTopic, ...]:
    """The document's `qpid`: a list of topics."""
    return tuple(_read_qpid(reader, *entry) for entry in _entries(reader, source, "qpid", QpidTopic))


def _read_xap(reader: Reader, source: Mapping[str, Any], where: str) -> XapPolicy:
    return XapPolicy(_where_to(source)[1], **read_settings(reader, XAP, source, where))


def _read_activemq(reader: Reader, source: Mapping[str, Any], where: str) -> ActiveMqPolicy:
    return ActiveMqPolicy(*_where_to(source), **read_settings(reader, ACTIVEMQ, source, where))


def _read_qpid(reader: Reader, source: Mapping[str, Any], where: str) -> QpidTopic:
    topic = QpidTopic(*_where_to(source), **read_settings(reader, QPID, source, where))
    if topic.delete_persistent and not topic.confirm_delete:
        reader.problems.append(
            f"{where}: delete_persistent removes what durable subscriptions are owed: set confirm_delete to true if "
            "that is meant"
        )
    return topic


def _where_to(source: Mapping[str, Any]) -> tuple[str, str]:
    return str(source.get("topic") or ""), str(source.get("transport") or "")


def _entries(reader: Reader, source: Any, where: str, kind: type) -> list[tuple[Mapping[str, Any], str]]:
    """The entries of a list with what they are called in problems; a list of anything else is reported."""
    if source is None:
        return []
    listed = isinstance(source, (list, tuple)) and all(isinstance(entry, Mapping) for entry in source)
    if not listed or len(source) > MAX_ENTRIES:
        reader.problems.append(f"{where} must be a list of at most {MAX_ENTRIES} objects")
        return []
    known = tuple(key.name for key in fields(kind))
    named = [(entry, " ".join((where, *filter(None, _where_to(entry))))) for entry in source]
    for entry, name in named:
        reader.only(entry, known, name)
        if "topic" in known and not (isinstance(entry.get("topic"), str) and entry["topic"]):
            reader.problems.append(f"{name}: topic must be a topic or a pattern")
        if not isinstance(entry.get("transport", ""), str):
            reader.problems.append(f"{name}: transport must be a transport's name")
    names = [name for _, name in named]
    reader.problems += [
        f"{name}: there are two entries" for name in sorted(set(names)) if names.count(name) > 1
    ]
    return named
