"""Settings of three systems that operators know, with the words, units and defaults of their own documents.

They are compiled to rules by `slow_clients.presets`. AMPS's are in `config.slow_clients`. None means: what a less
specific entry says, and at last the document's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from broker_core.config.reading import Reader
from broker_core.config.rules import MAX_MS
from broker_core.config.vocabulary import Mode

MAX_ENTRIES: Final = 200
MAX_PREFETCH: Final = 32_767


@dataclass(frozen=True, slots=True)
class XapPolicy:
    """XAP's slow consumers (seed 001), for the instance or a transport.

    enabled      default false
    throughput   bytes a second a client must take while there is something for it; default 5000
    latency      milliseconds it has to recover; default 500
    retries      how many times within the latency it is looked at again; default 3
    mode         enforce or shadow; default enforce
    """

    transport: str = ""
    enabled: bool | None = None
    throughput: int | None = None
    latency: int | None = None
    retries: int | None = None
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class ActiveMqPolicy:
    """ActiveMQ's policyEntry (seed 003) for the subscriptions to a topic pattern, of one transport or all.

    prefetch                                 messages that may be unacknowledged; default what the subscription asks for
    constant_pending_message_limit_strategy  messages kept beyond the prefetch, older ones are discarded; default -1: all
    prefetch_rate_pending_message_limit_strategy   the same as a multiple of the prefetch; default none
    abort_slow_consumer_strategy             whether slow consumers are aborted; default false
    max_slow_count                           times a consumer may be slow; default -1: any number
    max_slow_duration                        milliseconds it may be slow without a pause; default 30000
    check_period                             milliseconds between two checks; default 30000
    abort_connection                         false: ask the client to close; true: close it; default false
    mode                                     enforce or shadow; default enforce
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
    """Qpid's consumer element (seed 004) for a topic key with wildcards: any one of the three triggers the policy.

    depth               bytes that wait for a subscription; default no limit
    message_age         milliseconds the oldest has waited; default no limit
    message_count       messages that wait; default no limit
    delete_persistent   the Delete policy's option: false leaves durable subscriptions alone; default false
    confirm_delete      must be true with delete_persistent: the messages a durable subscription is owed are lost
    mode                enforce or shadow; default enforce
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
    return tuple(_read_activemq(reader, *entry) for entry in _entries(reader, source, "activemq", ActiveMqPolicy))


def read_qpid(reader: Reader, source: Any) -> tuple[QpidTopic, ...]:
    """The document's `qpid`: a list of topics."""
    return tuple(_read_qpid(reader, *entry) for entry in _entries(reader, source, "qpid", QpidTopic))


def _read_xap(reader: Reader, source: Mapping[str, Any], where: str) -> XapPolicy:
    return XapPolicy(
        _where_to(source)[1],
        reader.flag(source, "enabled", where),
        reader.number(source, "throughput", where, 1, 2**53),
        reader.number(source, "latency", where, 1, MAX_MS),
        reader.number(source, "retries", where, 1, 1_000),
        reader.choice(source, "mode", where, Mode),
    )


def _read_activemq(reader: Reader, source: Mapping[str, Any], where: str) -> ActiveMqPolicy:
    multiplier = "prefetch_rate_pending_message_limit_strategy"
    return ActiveMqPolicy(
        *_where_to(source),
        reader.number(source, "prefetch", where, 1, MAX_PREFETCH),
        reader.number(source, "constant_pending_message_limit_strategy", where, -1, 2**53),
        reader.decimal(source, multiplier, where, 0, 1_000_000),
        reader.flag(source, "abort_slow_consumer_strategy", where),
        reader.number(source, "max_slow_count", where, -1, 2**31 - 1),
        reader.number(source, "max_slow_duration", where, -1, MAX_MS),
        reader.number(source, "check_period", where, 100, MAX_MS),
        reader.flag(source, "abort_connection", where),
        reader.choice(source, "mode", where, Mode),
    )


def _read_qpid(reader: Reader, source: Mapping[str, Any], where: str) -> QpidTopic:
    topic = QpidTopic(
        *_where_to(source),
        reader.number(source, "depth", where, 1, 2**62),
        reader.number(source, "message_age", where, 1, MAX_MS),
        reader.number(source, "message_count", where, 1, 2**53),
        reader.flag(source, "delete_persistent", where),
        reader.flag(source, "confirm_delete", where),
        reader.choice(source, "mode", where, Mode),
    )
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
    reader.problems += [f"{name}: there are two entries" for name in sorted(set(names)) if names.count(name) > 1]
    return named
