"""Slow-client settings of AMPS, XAP, ActiveMQ and Qpid, and Sluice's quotas: one class and one table each.

A row of a table holds a setting's name here, its name in its original system, its meaning, unit, bounds and
default. `config`, `slow_clients.rules.presets`, the console's forms and tables, and the API's serializers
read these rows. Tests compare them with docs/slow-clients.md and with the console's importers. Sources: seeds
000 (AMPS), 001 (XAP), 003 (ActiveMQ), 004 (Qpid).

The target of an entry (`topic`, `transport`, `user`) is not a setting and not in the tables. A field that is
None takes its value from a less specific entry, then from the instance, and at last from the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Final, get_type_hints

from broker_core.config.document_reader import DocumentReader
from broker_core.config.rule_terms import EnforcementMode, Unit
from broker_core.config.rules import MAX_MS

MAX_PREFETCH: Final = 32_767
"""Maximum number of unacknowledged messages that one subscription may have in flight."""
MAX_CONNECTIONS: Final = 20_000
"""Maximum number of connections to an instance."""
MAX_SUBSCRIPTIONS: Final = 1_000
"""Maximum number of subscriptions that one client may have at a time."""
MAX_DURABLES: Final = 10_000
"""Maximum number of durable subscriptions that an instance stores."""
MAX_MANAGED: Final = 1_000
"""Maximum number of managed replays that an instance stores, including finished ones."""
MAX_BYTES: Final = 2**62
MAX_COUNT: Final = 2**53
"""Largest count in a setting. JSON readers of browsers lose digits of larger integers."""
DEFAULT_MEMORY_PERCENT: Final = 10
"""Default memory limit, in percent of the host's memory or of the ulimit, whichever is lower.

This is AMPS's default of MessageMemoryLimit.
"""
DEFAULT_DISK_LIMIT: Final = 10**9
"""Default disk limit in bytes: AMPS's 1GB."""
DEFAULT_CLIENT_MAX_CAPACITY: Final = 50
MODE_MEANING: Final = "In shadow its decisions are recorded and nothing is done."


class SettingType(StrEnum):
    """Type of a setting's value."""

    INTEGER = "whole number"
    DECIMAL = "number"
    FLAG = "true or false"
    CONFIRMATION = "true or false, to confirm another setting"
    PATH = "absolute path"
    MODE = "off, shadow or enforce"


@dataclass(frozen=True, slots=True)
class PresetField:
    """Row of a table: the definition of one setting.

    Attributes:
        word: Name of the setting in its original system. "": Sluice added it.
        meaning: One sentence for forms, API and documents.
        kind: Type of the value.
        unit: Unit of the value, or "".
        low: Lowest permitted number.
        high: Highest permitted number.
        default: Default value. None: there is no limit, or the default is computed; `default_words` explains
            it.
        default_words: Explanation of the default.
        name: Name of the field of the settings class. `_make_table` sets it.
    """

    word: str
    meaning: str
    kind: SettingType = SettingType.INTEGER
    unit: str = ""
    low: int = 0
    high: int = 0
    default: Any = None
    default_words: str = ""
    name: str = ""

    @property
    def default_text(self) -> str:
        """The default as operators read it: `30000`, `false`, `-1 (any number)`, `no limit`."""
        if self.default is None:
            return self.default_words
        text = str(self.default).lower()
        return f"{text} ({self.default_words})" if self.default_words else text

    @property
    def help_text(self) -> str:
        """Meaning and default in one line, for forms and the API."""
        return f"{self.meaning} Default: {self.default_text}."


Table = Mapping[str, PresetField]


def _make_table(kind: type) -> Table:
    """Return the rows of a settings class, by field name."""
    hints = get_type_hints(kind, include_extras=True)
    rows = {name: row for name, hint in hints.items() for row in getattr(hint, "__metadata__", ())}
    return MappingProxyType({name: replace(row, name=name) for name, row in rows.items()})


_MODE: Final = PresetField("", MODE_MEANING, SettingType.MODE, default=EnforcementMode.ENFORCE)


# fmt: off
# The rows below are a table: one setting each.
@dataclass(frozen=True, slots=True)
class PoolSettings:
    """AMPS's shared memory and disk budget (seed 000), of the instance or of one transport."""

    message_memory_limit: Annotated[int | None, PresetField(
        "MessageMemoryLimit",
        "Memory limit for the messages of a pool’s clients. Above it, the broker offlines the "
        "clients with the largest usage until the pool is within the limit.",
        unit=Unit.BYTES, low=1, high=MAX_BYTES,
        default_words=f"the lower of {DEFAULT_MEMORY_PERCENT} % of the host’s memory and "
                      f"{DEFAULT_MEMORY_PERCENT} % of the process’s memory limit",
    )] = None
    message_disk_limit: Annotated[int | None, PresetField(
        "MessageDiskLimit",
        "Disk limit for the spools of a pool’s offlined clients. Above it, the broker "
        "disconnects the clients with the largest spools until the pool is within the limit.",
        unit=Unit.BYTES, low=1, high=MAX_BYTES,
        default_words=f"{DEFAULT_DISK_LIMIT // 10**9} GB or the memory limit, whichever is higher",
    )] = None
    message_disk_path: Annotated[str | None, PresetField(
        "MessageDiskPath", "Absolute path of the directory for spools.", SettingType.PATH,
        default_words="the spool directory under SLUICE_HOME",
    )] = None


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """AMPS's limits for one client (seed 000), of the instance or of one transport."""

    client_max_capacity: Annotated[int | None, PresetField(
        "ClientMaxCapacity",
        "Maximum share of one client. Above this share of the memory limit it is offlined; "
        "above this share of the disk limit it is disconnected.",
        unit="%", low=1, high=100, default=DEFAULT_CLIENT_MAX_CAPACITY,
    )] = None
    client_message_age_limit_ms: Annotated[int | None, PresetField(
        "ClientMessageAgeLimit",
        "The broker disconnects a client whose oldest message has waited longer in memory or on disk.",
        unit=Unit.MILLISECONDS, low=1, high=MAX_COUNT, default_words="no limit",
    )] = None


@dataclass(frozen=True, slots=True)
class XapPolicy:
    """XAP's slow-consumer settings (seed 001), of the instance or of one transport."""

    transport: str = ""
    enabled: Annotated[bool | None, PresetField(
        "slow-consumer.enabled",
        "Whether the broker detects slow consumers.",
        SettingType.FLAG, default=False,
    )] = None
    throughput: Annotated[int | None, PresetField(
        "slow-consumer.throughput", "Minimum read rate of a client while messages wait for it.",
        unit=Unit.BYTES_PER_SECOND, low=1, high=MAX_COUNT, default=5_000,
    )] = None
    latency: Annotated[int | None, PresetField(
        "slow-consumer.latency", "Time for the client to recover.",
        unit=Unit.MILLISECONDS, low=1, high=MAX_MS, default=500,
    )] = None
    retries: Annotated[int | None, PresetField(
        "slow-consumer.retries", "Number of further checks within the latency.",
        unit=Unit.TIMES, low=1, high=1_000, default=3,
    )] = None
    mode: Annotated[EnforcementMode | None, _MODE] = None


@dataclass(frozen=True, slots=True)
class ActiveMqPolicy:
    """ActiveMQ's policyEntry (seed 003), for subscriptions to a topic pattern on one transport or on all."""

    topic: str
    transport: str = ""
    prefetch: Annotated[int | None, PresetField(
        "topicPrefetch", "Maximum unacknowledged messages.",
        unit=Unit.MESSAGES, low=1, high=MAX_PREFETCH, default_words="the subscription’s value",
    )] = None
    constant_pending_message_limit_strategy: Annotated[int | None, PresetField(
        "constantPendingMessageLimitStrategy limit",
        "Maximum retained messages beyond the prefetch, also without acknowledgements; the "
        "broker discards older messages.",
        unit=Unit.MESSAGES, low=-1, high=MAX_COUNT, default=-1, default_words="all are retained",
    )] = None
    prefetch_rate_pending_message_limit_strategy: Annotated[float | None, PresetField(
        "prefetchRatePendingMessageLimitStrategy multiplier",
        "Maximum retained messages as a multiple of the prefetch, such as 2.5. The lower limit applies.",
        SettingType.DECIMAL, high=1_000_000, default_words="none",
    )] = None
    abort_slow_consumer_strategy: Annotated[bool | None, PresetField(
        "abortSlowConsumerStrategy",
        "Whether the broker aborts slow consumers.",
        SettingType.FLAG, default=False,
    )] = None
    abort_slow_ack_consumer_strategy: Annotated[bool | None, PresetField(
        "abortSlowAckConsumerStrategy",
        "Whether the broker aborts consumers that don’t acknowledge their messages.",
        SettingType.FLAG, default=False,
    )] = None
    max_time_since_last_ack: Annotated[int | None, PresetField(
        "maxTimeSinceLastAck",
        "With abortSlowAckConsumerStrategy: a consumer is slow if its last acknowledgement is "
        "older; -1 means no limit.",
        unit=Unit.MILLISECONDS, low=-1, high=MAX_MS, default=30_000,
    )] = None
    max_slow_count: Annotated[int | None, PresetField(
        "maxSlowCount",
        "Number of times that a consumer may be slow before the broker aborts it; with "
        "abortSlowAckConsumerStrategy, number of checks.",
        unit=Unit.TIMES, low=-1, high=2**31 - 1, default=-1, default_words="any number",
    )] = None
    max_slow_duration: Annotated[int | None, PresetField(
        "maxSlowDuration",
        "Maximum time that a consumer may be slow without interruption; 0 and -1 mean no limit.",
        unit=Unit.MILLISECONDS, low=-1, high=MAX_MS, default=30_000,
    )] = None
    check_period: Annotated[int | None, PresetField(
        "checkPeriod", "Time between two checks.",
        unit=Unit.MILLISECONDS, low=100, high=MAX_MS, default=30_000,
    )] = None
    abort_connection: Annotated[bool | None, PresetField(
        "abortConnection", "true closes the consumer’s connection, false ends the subscription.",
        SettingType.FLAG, default=False,
    )] = None
    mode: Annotated[EnforcementMode | None, _MODE] = None


@dataclass(frozen=True, slots=True)
class QpidTopicPolicy:
    """Qpid's consumer element (seed 004), for a topic key with wildcards.

    Exceeding any one of the three limits triggers the policy.
    """

    topic: str
    transport: str = ""
    depth: Annotated[int | None, PresetField(
        "depth",
        "Maximum bytes of message bodies that wait for a subscription or are unacknowledged.",
        unit=Unit.BYTES, low=1, high=MAX_BYTES, default_words="no limit",
    )] = None
    message_age: Annotated[int | None, PresetField(
        "messageAge", "Maximum age of the oldest message that waits or is unacknowledged.",
        unit=Unit.MILLISECONDS, low=1, high=MAX_MS, default_words="no limit",
    )] = None
    message_count: Annotated[int | None, PresetField(
        "messageCount", "Maximum messages that wait for a subscription or are unacknowledged.",
        unit=Unit.MESSAGES, low=1, high=MAX_COUNT, default_words="no limit",
    )] = None
    delete_persistent: Annotated[bool | None, PresetField(
        "delete-persistent", "Whether the broker also deletes durable subscriptions.",
        SettingType.FLAG, default=False,
    )] = None
    confirm_delete: Annotated[bool | None, PresetField(
        "", "Required with delete_persistent: durable subscriptions lose their backlog.",
        SettingType.CONFIRMATION, default=False,
    )] = None
    mode: Annotated[EnforcementMode | None, _MODE] = None


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """Quotas: limits on the resources of one user and of one client of an instance.

    An entry is for all users, or for one user or one transport by name. A client without credentials counts
    as a user that is named by its network address. Durable subscriptions and replays under names without an
    owner count together as one user's.
    """

    user: str = ""
    transport: str = ""
    user_connections: Annotated[int | None, PresetField(
        "", "Maximum connections of one user.",
        unit="connections", low=1, high=MAX_CONNECTIONS, default=MAX_CONNECTIONS // 2,
    )] = None
    user_subscriptions: Annotated[int | None, PresetField(
        "", "Maximum subscriptions of all clients of one user.",
        unit="subscriptions", low=1, high=MAX_COUNT, default=200_000,
    )] = None
    client_subscriptions: Annotated[int | None, PresetField(
        "", "Maximum subscriptions of one client.",
        unit="subscriptions", low=1, high=MAX_SUBSCRIPTIONS, default=MAX_SUBSCRIPTIONS,
    )] = None
    user_durables: Annotated[int | None, PresetField(
        "", "Maximum durable subscriptions of one user.",
        unit="subscriptions", low=0, high=MAX_DURABLES, default=MAX_DURABLES // 2,
    )] = None
    client_durables: Annotated[int | None, PresetField(
        "", "Maximum durable subscriptions of one client name.",
        unit="subscriptions", low=0, high=MAX_DURABLES, default=1_000,
    )] = None
    user_replays: Annotated[int | None, PresetField(
        "", "Maximum unfinished managed replays of one user.",
        unit="replays", low=0, high=MAX_MANAGED, default=MAX_MANAGED // 2,
    )] = None
    client_replays: Annotated[int | None, PresetField(
        "", "Maximum unfinished managed replays of one client name.",
        unit="replays", low=0, high=MAX_MANAGED, default=100,
    )] = None
    user_pinned_bytes: Annotated[int | None, PresetField(
        "",
        "Maximum bytes of the log that one user’s durable subscriptions, replays and pauses "
        "may pin. Above it, the broker refuses new ones and warns the user’s clients.",
        unit=Unit.BYTES, low=0, high=MAX_BYTES, default_words="no limit",
    )] = None
    client_pinned_bytes: Annotated[int | None, PresetField(
        "", "Maximum bytes of the log that one client name may pin. Above it, the broker refuses "
            "new readers and warns the client.",
        unit=Unit.BYTES, low=0, high=MAX_BYTES, default_words="no limit",
    )] = None
    user_publish_rate: Annotated[int | None, PresetField(
        "",
        "Maximum messages per second that one user’s clients may publish together; the broker reads faster "
        "users’ clients more slowly.",
        unit=Unit.MESSAGES_PER_SECOND, low=1, high=MAX_COUNT, default_words="no limit",
    )] = None
    client_publish_rate: Annotated[int | None, PresetField(
        "",
        "Maximum messages per second that one client may publish; the broker reads faster clients more "
        "slowly.",
        unit=Unit.MESSAGES_PER_SECOND, low=1, high=MAX_COUNT, default_words="no limit",
    )] = None
    user_topics: Annotated[int | None, PresetField(
        "", "Topics that one user’s clients may publish to within a minute, and their temporary topics.",
        unit="topics", low=1, high=10_000_000, default=200_000,
    )] = None
    client_topics: Annotated[int | None, PresetField(
        "", "Topics that one client may publish to within a minute, and its temporary topics.",
        unit="topics", low=1, high=10_000_000, default=50_000,
    )] = None


# fmt: on
AMPS_POOL: Final = _make_table(PoolSettings)
AMPS_CLIENT: Final = _make_table(ClientPolicy)
XAP: Final = _make_table(XapPolicy)
ACTIVEMQ: Final = _make_table(ActiveMqPolicy)
QPID: Final = _make_table(QpidTopicPolicy)
QUOTAS: Final = _make_table(QuotaSettings)
AMPS: Final[Table] = MappingProxyType({**AMPS_POOL, **AMPS_CLIENT})
"""AMPS settings of the instance and of each transport: the shared pool and the limits of one client."""
PRESETS: Final[Mapping[str, Table]] = MappingProxyType(
    {"amps": AMPS, "xap": XAP, "activemq": ACTIVEMQ, "qpid": QPID, "quotas": QUOTAS}
)


def default_settings(table: Table) -> dict[str, Any]:
    """Return the default of each setting in a table, by name.

    Confirmations are omitted: they are not merged with other entries.
    """
    return {name: row.default for name, row in table.items() if row.kind is not SettingType.CONFIRMATION}


def read_settings(
    reader: DocumentReader, table: Table, source: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Read the settings of a table from a JSON object.

    Returns them by name; missing and invalid ones are None.

    Problems are added to `reader.problems`.
    """
    return {name: _read_setting(reader, row, source, where) for name, row in table.items()}


def _read_setting(reader: DocumentReader, row: PresetField, source: Mapping[str, Any], where: str) -> Any:
    match row.kind:
        case SettingType.INTEGER:
            return reader.read_int(source, row.name, where, row.low, row.high)
        case SettingType.DECIMAL:
            return reader.read_float(source, row.name, where, row.low, row.high)
        case SettingType.FLAG | SettingType.CONFIRMATION:
            return reader.read_bool(source, row.name, where)
        case SettingType.MODE:
            return reader.read_enum(source, row.name, where, EnforcementMode)
        case SettingType.PATH:
            return reader.read_path(source, row.name, where)
