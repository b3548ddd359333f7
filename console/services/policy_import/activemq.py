"""ActiveMQ's policyEntry elements (seed 003): pending message limits and slow consumer strategies, by topic.

There the most specific entry alone counts for a destination; here entries are laid over each other field by
field. So an entry also says ActiveMQ's defaults wherever a wider entry of the file says something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker_core.config import Scope
from broker_core.config.preset_fields import ACTIVEMQ, MAX_PREFETCH
from broker_core.config.presets import MAX_ENTRIES, read_activemq
from broker_core.errors import ClientError
from broker_core.slow_clients.rules.presets.activemq import DEFAULTS
from broker_core.slow_clients.rules.scopes import specificity
from broker_core.subscriptions.topics import TopicPattern
from console.services.policy_import.amps_words import nbytes
from console.services.policy_import.imported import (
    NO_SUCH_SETTING,
    Imported,
    flag,
    number,
    whole,
    why_not,
)
from console.services.policy_import.leaves import Element, Leaf, parse_xml

CONSTANT: Final = "constant_pending_message_limit_strategy"
RATE: Final = "prefetch_rate_pending_message_limit_strategy"
ABORT: Final = "abort_slow_consumer_strategy"
_SILENT: Final[dict[str, Any]] = {**DEFAULTS, "prefetch": MAX_PREFETCH, RATE: float(ACTIVEMQ[RATE].high)}
"""What an entry that says nothing means in ActiveMQ. The prefetch is that of topics; no rate is one never met."""
_ABORT: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "maxSlowCount": ("max_slow_count", whole),
    "maxSlowDuration": ("max_slow_duration", whole),
    "checkPeriod": ("check_period", whole),
    "abortConnection": ("abort_connection", flag),
}
_NOT_POLICY: Final = frozenset((
    "adminConnectionContext", "bean", "destinations", "ioExceptionHandler", "jobSchedulerStore", "locker", "managementContext",
    "persistenceAdapter", "persistenceFactory", "property-placeholder", "services", "shutdownHooks", "sslContext", "tempDataStore",
))  # fmt: skip
_NOT_POLICY_OF_BROKER: Final = frozenset((
    "advisorySupport", "brokerId", "brokerName", "dataDirectory", "dataDirectoryFile", "deleteAllMessagesOnStartup", "id",
    "networkConnectorStartAsync", "persistent", "schedulePeriodForDestinationPurge", "schedulerDirectory", "schedulerSupport",
    "schemaLocation", "start", "startAsync", "tmpDataDirectory", "useJmx", "useShutdownHook", "useVirtualTopics", "vmConnectorURI",
))  # fmt: skip
_BLOCKS: Final = "Passing it makes ActiveMQ hold up producers, which Sluice never does."
_ELEMENTS: Final = {
    "import": "It is another file: import it by itself.",
    "transportConnectors": "Transports are set by hand: Sluice's speak its own protocol and STOMP.",
    "networkConnectors": "Sluice has no network of brokers.",
    "jmsBridgeConnectors": "Sluice has no bridges.",
    "plugins": "Logons and rights are set by hand, under access and at the transports.",
    "destinationInterceptors": "Sluice has no virtual destinations.",
    "messageEvictionStrategy": "Sluice always discards the oldest first.",
    "subscriptionRecoveryPolicy": "A subscription starts where it asks to: the journal is replayed from any bookmark.",
    "deadLetterStrategy": "Only queues have dead letters here, under /queue/dead.",
    "dispatchPolicy": "Each subscription of a topic gets each message.",
    "pendingSubscriberPolicy": "Where messages wait is Sluice's matter: in memory, then on disk.",
    "pendingDurableSubscriberPolicy": "Where messages wait is Sluice's matter: in the journal.",
}
_ATTRIBUTES: Final = {
    "producerFlowControl": _BLOCKS,
    "memoryLimit": _BLOCKS,
    "durableTopicPrefetch": "Sluice has one prefetch for an entry: that of topicPrefetch.",
    "advisoryForSlowConsumers": "Sluice always tells: see the events of slow clients.",
    "advisoryForDiscardingMessages": "Sluice always tells: see the loss ledger.",
}
_ACKS: Final = (
    "Only abortSlowConsumerStrategy is taken over. To act on consumers that don't acknowledge, write a rule with the "
    "signal ack_silence."
)
_USAGE: Final = {
    "memoryUsage": ("memory", "message_memory_limit", "offlines the client that holds most"),
    "tempUsage": ("disk", "message_disk_limit", "disconnects the client that holds most"),
}


class _Found(NamedTuple):
    leaf: Leaf
    setting: str


@dataclass(slots=True)
class _Entry:
    """A policyEntry: its topic's leaf, the patterns it is for, what it sets, and the leaves that say so."""

    element: Element
    topic: Leaf
    patterns: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    found: list[_Found] = field(default_factory=list)


def read(text: str) -> Imported:
    """Each `<policyEntry topic="...">` as an entry of `activemq`, one for each topic of a composite destination."""
    root = parse_xml(text)
    imported = Imported(root.leaves())
    entries: list[_Entry] = []
    for element in root.walk():
        if element.name == "policyEntry":
            _entry(imported, element, entries)
        elif element.name == "systemUsage":
            _usage(imported, element)
    made = [made for entry in entries for made in _made(imported, entry, entries)]
    if made:
        imported.document["activemq"] = made
    _others(imported, root)
    return imported


def topic_patterns(text: str) -> list[str]:
    """The patterns of a destination's name, one for each of a composite one. Raises OperatorError or ClientError.

    `*` is one level in both. A policy for `a.>` is also for `a` itself in ActiveMQ; here `a.#` says that.
    """
    made = []
    for part in text.split(",", MAX_ENTRIES):  # more would be too many
        name = part.strip().removeprefix("topic://")
        TopicPattern.parse(name)
        made.append(f"{name[:-2]}.#" if name.endswith(".>") else name)
    return made


def _entry(imported: Imported, element: Element, entries: list[_Entry]) -> None:
    """Read a policyEntry, and add it to the entries if its topic can be taken over."""
    topic = element.attributes.get("topic")
    if topic is None:
        queues = "queue" in element.attributes
        imported.leave_out(
            element,
            "It is for queues: what a queue owes stays in the log here, and nothing of it is discarded."
            if queues
            else "The entry names no topic.",
        )
        return
    try:
        patterns = topic_patterns(topic.value)
    except ClientError as problem:
        imported.leave_out(element, f"{problem.sentence} {problem.fix}")
        return
    known = [pattern for entry in entries for pattern in entry.patterns]
    if len(known) + len(patterns) > MAX_ENTRIES:
        imported.leave_out(element, f"A policy has at most {MAX_ENTRIES} entries of ActiveMQ.")
    elif twice := next(
        (pattern for pattern in patterns if pattern in known or patterns.count(pattern) > 1), None
    ):
        imported.leave_out(element, f"There is one entry for a topic: the first for {twice} was taken.")
    else:
        entries.append(_settings(imported, _Entry(element, topic, patterns)))


def _settings(imported: Imported, entry: _Entry) -> _Entry:
    for name, leaf in entry.element.attributes.items():
        if name == "topicPrefetch":
            _set(imported, entry, leaf, "prefetch", whole(leaf.value))
        elif name != "topic":
            imported.leave_out(leaf, _ATTRIBUTES.get(name, NO_SUCH_SETTING))
    for child in entry.element.children:
        if child.name == "pendingMessageLimitStrategy":
            _pending(imported, entry, child)
        elif child.name == "slowConsumerStrategy":
            _slow(imported, entry, child)
        else:
            imported.leave_out(child, _ELEMENTS.get(child.name, NO_SUCH_SETTING))
    return entry


def _pending(imported: Imported, entry: _Entry, element: Element) -> None:
    for child in element.children:
        if child.name == "constantPendingMessageLimitStrategy":
            _strategy(imported, entry, child, CONSTANT, "limit", whole, -1)
        elif child.name == "prefetchRatePendingMessageLimitStrategy":
            # Its own default is 0.5; guides that print 2.5 or 3 set it.
            _strategy(imported, entry, child, RATE, "multiplier", number, 0.5)
    imported.leave_out(element, NO_SUCH_SETTING)


def _strategy(
    imported: Imported,
    entry: _Entry,
    element: Element,
    key: str,
    name: str,
    convert: Callable[[str], Any],
    default: Any,
) -> None:
    if name in element.attributes:
        leaf = element.attributes[name]
        _set(imported, entry, leaf, key, convert(leaf.value))
    else:
        entry.settings.setdefault(key, default)
        if element.text is not None and not element.text.value:
            entry.found.append(_Found(element.text, f"{key} {default}"))


def _slow(imported: Imported, entry: _Entry, element: Element) -> None:
    for child in element.children:
        if child.name != "abortSlowConsumerStrategy":
            imported.leave_out(child, _ACKS)
            continue
        entry.settings[ABORT] = True
        if child.text is not None and not child.text.value:
            entry.found.append(_Found(child.text, f"{ABORT} true"))
        for name, leaf in child.attributes.items():
            if name in _ABORT:
                key, convert = _ABORT[name]
                _set(imported, entry, leaf, key, convert(leaf.value))
    imported.leave_out(element, NO_SUCH_SETTING)


def _set(imported: Imported, entry: _Entry, leaf: Leaf, key: str, value: Any) -> None:
    """Set a field by a leaf, or leave the leaf out."""
    why = why_not(leaf, value, lambda reader: read_activemq(reader, [{"topic": "topic", key: value}]))
    if key in entry.settings:
        why = "The entry says this twice: the first was taken."
    if why:
        imported.leave_out(leaf, why)
    else:
        entry.settings[key] = value
        entry.found.append(_Found(leaf, key))


def _made(imported: Imported, entry: _Entry, entries: list[_Entry]) -> list[dict[str, Any]]:
    """The entries of the policy that a policyEntry makes."""
    made = [
        {"topic": pattern, **_silent(pattern, entry, entries), **entry.settings} for pattern in entry.patterns
    ]
    if not any(len(one) > 1 for one in made):
        imported.leave_out(entry.topic, "Its entry has no setting that is taken over.")
        return []
    part = f"activemq {', '.join(entry.patterns)}"
    silent = sorted({key for one in made for key in one} - {"topic"} - set(entry.settings))
    alone = (
        f"; ActiveMQ's defaults for {', '.join(silent)}, because it doesn't merge entries" if silent else ""
    )
    below = (
        "; .# is also the topic itself, as > is in ActiveMQ"
        if any(one.endswith(".#") for one in entry.patterns)
        else ""
    )
    imported.take(entry.topic, part, f"topic{below}{alone}")
    for leaf, setting in entry.found:
        imported.take(leaf, part, setting)
    return made


def _silent(pattern: str, entry: _Entry, entries: list[_Entry]) -> dict[str, Any]:
    """ActiveMQ's defaults for what this entry doesn't say, and another that is laid under it does."""
    rank = specificity(Scope(topic=pattern))
    under = [
        other for other in entries if other is not entry and any(
            specificity(Scope(topic=wider)) <= rank and _meet(wider.split("."), pattern.split(".")) for wider in other.patterns
        )
    ]  # fmt: skip
    keys = {key for other in under for key in other.settings} - set(entry.settings)
    return {key: _SILENT[key] for key in sorted(keys)}


def _meet(one: list[str], other: list[str]) -> bool:
    """Whether some topic is named by both patterns."""
    if one[:1] == ["#"] or other[:1] == ["#"]:
        return True
    if not one or not other:
        return one == other
    if ">" in (one[0], other[0]):
        return True
    return ("*" in (one[0], other[0]) or one[0] == other[0]) and _meet(one[1:], other[1:])


def _usage(imported: Imported, element: Element) -> None:
    """The limits of the whole broker: named, since what passing them does is something else here."""
    for one in element.walk():
        for leaf in one.leaves() if one.name in ("memoryUsage", "storeUsage", "tempUsage") else ():
            if one.name == "storeUsage":
                imported.leave_out(
                    leaf, "The journal has no limit of bytes: an action removes what is older than an age."
                )
                continue
            kind, setting, does = _USAGE[one.name]
            limit = _nbytes(leaf.value) if leaf.name == "limit" else None
            wanted = f"{setting} {limit}" if limit is not None else setting
            imported.leave_out(
                leaf,
                f"{_BLOCKS} A limit of {kind} {does}: if that is meant, set {wanted} (bytes) of the pool.",
            )
    imported.leave_out(element, _BLOCKS)


def _nbytes(text: str) -> int | None:
    """Bytes as ActiveMQ reads them: with `mb` as with `m`, powers of 1,024."""
    return nbytes(text.strip().lower().removesuffix("b"))


def _others(imported: Imported, element: Element) -> None:
    """What stands around the policies."""
    if element.name in _NOT_POLICY:
        imported.not_policy(element)
    elif element.name in _ELEMENTS:
        imported.leave_out(element, _ELEMENTS[element.name])
    else:
        for name, leaf in element.attributes.items() if element.name in ("broker", "beans") else ():
            if name in _NOT_POLICY_OF_BROKER:
                imported.not_policy(leaf)
        for child in element.children:
            _others(imported, child)
