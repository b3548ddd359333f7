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
        "What the messages of a pool’s clients may take in memory together. Over it, of the clients that "
        "aren’t offlined the one that holds most is offlined; then the next, until the pool is within.",
        unit=Unit.BYTES, low=1, high=MAX_BYTES,
        default_words=f"the lower of {DEFAULT_MEMORY_PERCENT} % of the host’s memory and "
        f"{DEFAULT_MEMORY_PERCENT} % of what the process may use",
    )] = None
    message_disk_limit: Annotated[int | None, PresetField(
        "MessageDiskLimit",
        "What the spools of a pool’s offlined clients may take together. Over it, the client with the "
        "largest spool is disconnected; then the next, until the pool is within.",
        unit=Unit.BYTES, low=1, high=MAX_BYTES,
        default_words=f"{DEFAULT_DISK_LIMIT // 10**9} GB or the memory limit, whichever is higher",
    )] = None
    message_disk_path: Annotated[str | None, PresetField(
        "MessageDiskPath", "The directory in which spools are written: an absolute path.", SettingType.PATH,
        default_words="the spool directory under SLUICE_HOME",
    )] = None


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """AMPS's limits for one client (seed 000), of the instance or of one transport."""

    client_max_capacity: Annotated[int | None, PresetField(
        "ClientMaxCapacity",
        "The share one client may use: of the memory limit before it is offlined; of the disk limit after, "
        "where it is disconnected.",
        unit="%", low=1, high=100, default=DEFAULT_CLIENT_MAX_CAPACITY,
    )] = None
    client_message_age_limit_ms: Annotated[int | None, PresetField(
        "ClientMessageAgeLimit",
        "A client whose oldest message has waited longer, in memory or on disk, is disconnected.",
        unit=Unit.MILLISECONDS, low=1, high=MAX_COUNT, default_words="no limit",
    )] = None


@dataclass(frozen=True, slots=True)
class XapPolicy:
    """XAP's slow-consumer settings (seed 001), of the instance or of one transport."""

    transport: str = ""
    enabled: Annotated[bool | None, PresetField(
        "slow-consumer.enabled", "Whether slow consumers are looked for.", SettingType.FLAG, default=False,
    )] = None
    throughput: Annotated[int | None, PresetField(
        "slow-consumer.throughput", "What a client must take while there is something for it.",
        unit=Unit.BYTES_PER_SECOND, low=1, high=MAX_COUNT, default=5_000,
    )] = None
    latency: Annotated[int | None, PresetField(
        "slow-consumer.latency", "The time it has to recover.",
        unit=Unit.MILLISECONDS, low=1, high=MAX_MS, default=500,
    )] = None
    retries: Annotated[int | None, PresetField(
        "slow-consumer.retries", "How many times within the latency it is looked at again.",
        unit=Unit.TIMES, low=1, high=1_000, default=3,
    )] = None
    mode: Annotated[EnforcementMode | None, _MODE] = None


@dataclass(frozen=True, slots=True)
class ActiveMqPolicy:
    """ActiveMQ's policyEntry (seed 003), for subscriptions to a topic pattern on one transport or on all."""

    topic: str
    transport: str = ""
    prefetch: Annotated[int | None, PresetField(
        "topicPrefetch", "Messages that may be unacknowledged.",
        unit=Unit.MESSAGES, low=1, high=MAX_PREFETCH, default_words="what the subscription asks for",
    )] = None
    constant_pending_message_limit_strategy: Annotated[int | None, PresetField(
        "constantPendingMessageLimitStrategy limit",
        "Messages kept beyond the prefetch, also of a subscription without acknowledgements; older ones are "
        "discarded.",
        unit=Unit.MESSAGES, low=-1, high=MAX_COUNT, default=-1, default_words="all are kept",
    )] = None
    prefetch_rate_pending_message_limit_strategy: Annotated[float | None, PresetField(
        "prefetchRatePendingMessageLimitStrategy multiplier",
        "The same as a multiple of the prefetch, such as 2.5. The lower of the two counts.",
        SettingType.DECIMAL, high=1_000_000, default_words="none",
    )] = None
    abort_slow_consumer_strategy: Annotated[bool | None, PresetField(
        "abortSlowConsumerStrategy", "Whether slow consumers are aborted.", SettingType.FLAG, default=False,
    )] = None
    abort_slow_ack_consumer_strategy: Annotated[bool | None, PresetField(
        "abortSlowAckConsumerStrategy",
        "Whether consumers are aborted that owe acknowledgements and send none.",
        SettingType.FLAG, default=False,
    )] = None
    max_time_since_last_ack: Annotated[int | None, PresetField(
        "maxTimeSinceLastAck",
        "With abortSlowAckConsumerStrategy: a consumer is slow while its last acknowledgement is longer ago; "
        "-1 is any time.",
        unit=Unit.MILLISECONDS, low=-1, high=MAX_MS, default=30_000,
    )] = None
    max_slow_count: Annotated[int | None, PresetField(
        "maxSlowCount",
        "How often a consumer may be slow before it is aborted; with abortSlowAckConsumerStrategy, at how "
        "many looks.",
        unit=Unit.TIMES, low=-1, high=2**31 - 1, default=-1, default_words="any number",
    )] = None
    max_slow_duration: Annotated[int | None, PresetField(
        "maxSlowDuration", "How long it may be slow without a pause; 0 and -1 are any time.",
        unit=Unit.MILLISECONDS, low=-1, high=MAX_MS, default=30_000,
    )] = None
    check_period: Annotated[int | None, PresetField(
        "checkPeriod", "The time between two looks.",
        unit=Unit.MILLISECONDS, low=100, high=MAX_MS, default=30_000,
    )] = None
    abort_connection: Annotated[bool | None, PresetField(
        "abortConnection", "true closes its connection, false ends the subscription.",
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
        "Bytes of the bodies of what a subscription is owed: it waits, or is delivered but not acknowledged.",
        unit=Unit.BYTES, low=1, high=MAX_BYTES, default_words="no limit",
    )] = None
    message_age: Annotated[int | None, PresetField(
        "messageAge", "How old the oldest message is that it is owed.",
        unit=Unit.MILLISECONDS, low=1, high=MAX_MS, default_words="no limit",
    )] = None
    message_count: Annotated[int | None, PresetField(
        "messageCount", "Messages that it is owed.",
        unit=Unit.MESSAGES, low=1, high=MAX_COUNT, default_words="no limit",
    )] = None
    delete_persistent: Annotated[bool | None, PresetField(
        "delete-persistent", "Whether durable subscriptions are deleted too; false lets them alone.",
        SettingType.FLAG, default=False,
    )] = None
    confirm_delete: Annotated[bool | None, PresetField(
        "", "Needed with delete_persistent: what a durable subscription is owed is lost.",
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
        "", "Connections of one user.",
        unit="connections", low=1, high=MAX_CONNECTIONS, default=MAX_CONNECTIONS // 2,
    )] = None
    user_subscriptions: Annotated[int | None, PresetField(
        "", "Subscriptions of one user’s clients together.",
        unit="subscriptions", low=1, high=MAX_COUNT, default=200_000,
    )] = None
    client_subscriptions: Annotated[int | None, PresetField(
        "", "Subscriptions of one client.",
        unit="subscriptions", low=1, high=MAX_SUBSCRIPTIONS, default=MAX_SUBSCRIPTIONS,
    )] = None
    user_durables: Annotated[int | None, PresetField(
        "", "Durable subscriptions that are kept for one user.",
        unit="subscriptions", low=0, high=MAX_DURABLES, default=MAX_DURABLES // 2,
    )] = None
    client_durables: Annotated[int | None, PresetField(
        "", "Durable subscriptions that are kept for one client’s name.",
        unit="subscriptions", low=0, high=MAX_DURABLES, default=1_000,
    )] = None
    user_replays: Annotated[int | None, PresetField(
        "", "Managed replays that are kept for one user and aren’t over.",
        unit="replays", low=0, high=MAX_MANAGED, default=MAX_MANAGED // 2,
    )] = None
    client_replays: Annotated[int | None, PresetField(
        "", "Managed replays that are kept for one client’s name and aren’t over.",
        unit="replays", low=0, high=MAX_MANAGED, default=100,
    )] = None
    user_pinned_bytes: Annotated[int | None, PresetField(
        "",
        "Bytes of the log that durable subscriptions, replays and pauses of one user may hold before "
        "another durable subscription, managed replay or pause begins; when they come to hold more, its "
        "clients are warned.",
        unit=Unit.BYTES, low=0, high=MAX_BYTES, default_words="no limit",
    )] = None
    client_pinned_bytes: Annotated[int | None, PresetField(
        "", "The same of one client’s name; a client whose own subscriptions come to hold more is warned.",
        unit=Unit.BYTES, low=0, high=MAX_BYTES, default_words="no limit",
    )] = None
    user_publish_rate: Annotated[int | None, PresetField(
        "",
        "Messages a second that one user’s clients may publish together; faster ones are read from more "
        "slowly.",
        unit=Unit.MESSAGES_PER_SECOND, low=1, high=MAX_COUNT, default_words="no limit",
    )] = None
    client_publish_rate: Annotated[int | None, PresetField(
        "", "The same of one client.",
        unit=Unit.MESSAGES_PER_SECOND, low=1, high=MAX_COUNT, default_words="no limit",
    )] = None
    user_topics: Annotated[int | None, PresetField(
        "", "Topics that one user’s clients may publish to while any of them is connected.",
        unit="topics", low=1, high=10_000_000, default=200_000,
    )] = None
    client_topics: Annotated[int | None, PresetField(
        "", "Topics that one client may publish to on a connection.",
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
