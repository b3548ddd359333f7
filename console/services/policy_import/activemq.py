"""ActiveMQ's policyEntry elements (seed 003): pending message limits and slow consumer strategies, by topic.

There the most specific entry alone counts for a destination; here entries are laid over each other field by
field. So an entry also says ActiveMQ's defaults wherever a wider entry of the file says something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
_DIFFERS: Final = {
    CONSTANT: "a subscription without acknowledgements keeps the prefetch as well, beyond what its socket took",
    RATE: "a subscription without acknowledgements keeps the prefetch as well, beyond what its socket took",
    "abort_connection": "false ends the subscription at once (there after a second), and a STOMP client's connection with it",
    "max_slow_duration": "0 is any time, as there",
}
"""Remarks on settings whose effect is not exactly ActiveMQ's."""
_REFERS: Final = ("slowConsumerStrategy", "pendingMessageLimitStrategy")
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
_USAGE: Final = {
    "memoryUsage": ("memory", "message_memory_limit", "offlines the client that holds most"),
    "tempUsage": ("disk", "message_disk_limit", "disconnects the client that holds most"),
}


_KNOWN: Final = frozenset((*_ABORT, "limit", "multiplier"))
_STRATEGIES: Final = frozenset((
    "abortSlowConsumerStrategy", "constantPendingMessageLimitStrategy", "prefetchRatePendingMessageLimitStrategy",
))  # fmt: skip
Beans = Mapping[str, Element]
"""Elements of the file by their id."""


class _Found(NamedTuple):
    leaf: Leaf
    setting: str


@dataclass(slots=True)
class _Entry:
    """A policyEntry: its topic's leaf, the patterns it is for, what it sets, and the leaves that say so."""

    element: Element
    topic: Leaf | None
    """None of a defaultEntry, which has no leaf of its own."""
    patterns: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    found: list[_Found] = field(default_factory=list)


def read(text: str) -> Imported:
    """Each `<policyEntry topic="...">` as an entry of `activemq`, one for each topic of a composite destination."""
    root = parse_xml(text)
    imported = Imported(root.leaves())
    entries: list[_Entry] = []
    beans = {leaf.value: one for one in root.walk() if (leaf := one.attributes.get("id")) is not None}
    for element in root.walk():
        if element.name == "defaultEntry":
            _default_entry(imported, element, root, entries, beans)
        elif element.name == "policyEntry":
            _entry(imported, element, entries, beans)
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


def _default_entry(
    imported: Imported, element: Element, root: Element, entries: list[_Entry], beans: Beans
) -> None:
    """Read a defaultEntry as the entry of `>`: ActiveMQ uses it for destinations that no entry matches."""
    every = [one.attributes.get("topic") for one in root.walk() if one.name == "policyEntry"]
    taken = any(topic is not None and ">" in map(str.strip, topic.value.split(",")) for topic in every)
    for child in element.children:
        if child.name != "policyEntry":
            imported.leave_out(child, NO_SUCH_SETTING)
        elif taken:
            imported.leave_out(child, "The entry of > matches every topic, so ActiveMQ never uses this one.")
        else:
            entries.append(_settings(imported, _Entry(child, None, [">"]), beans))


def _entry(imported: Imported, element: Element, entries: list[_Entry], beans: Beans) -> None:
    """Read a policyEntry, and add it to the entries if its topic can be taken over."""
    if any(entry.element is element for entry in entries):
        return  # the defaultEntry's
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
        entries.append(_settings(imported, _Entry(element, topic, patterns), beans))


def _settings(imported: Imported, entry: _Entry, beans: Beans) -> _Entry:
    for name, leaf in entry.element.attributes.items():
        if name == "topicPrefetch":
            _set(imported, entry, leaf, "prefetch", whole(leaf.value))
        elif name in _REFERS and leaf.value.startswith("#"):
            _reference(imported, entry, name, leaf, beans)
        elif name != "topic":
            imported.leave_out(leaf, _ATTRIBUTES.get(name, NO_SUCH_SETTING))
    for child in entry.element.children:
        if child.name == "pendingMessageLimitStrategy":
            _pending(imported, entry, child, beans)
        elif child.name == "slowConsumerStrategy":
            _slow(imported, entry, child, beans)
        else:
            imported.leave_out(child, _ELEMENTS.get(child.name, NO_SUCH_SETTING))
    return entry


def _reference(imported: Imported, entry: _Entry, name: str, leaf: Leaf, beans: Beans) -> None:
    """Read a strategy that stands elsewhere in the file, as `slowConsumerStrategy="#id"`."""
    bean = beans.get(leaf.value.removeprefix("#"))
    if bean is None:
        imported.leave_out(
            leaf, f"No bean of this file has the id {leaf.value[1:80]!r}: write the strategy into the entry."
        )
        return
    entry.found.append(_Found(leaf, "the strategy that it refers to"))
    read_strategy = _slow if name == "slowConsumerStrategy" else _pending
    read_strategy(imported, entry, Element(name, bean.line, children=[bean]), beans)


def _strategies(imported: Imported, entry: _Entry, element: Element, beans: Beans) -> list[Element]:
    """The strategies within an element; a Spring bean as if it were written by its class's name."""
    found = []
    for child in element.children:
        if child.name == "ref" and (leaf := child.attributes.get("bean")) is not None:
            if leaf.value in beans:
                entry.found.append(_Found(leaf, "the strategy that it refers to"))
                child = beans[leaf.value]
            else:
                imported.leave_out(leaf, f"No bean of this file has the id {leaf.value[:80]!r}.")
        if child.name == "bean" and (kind := child.attributes.get("class")) is not None:
            name = kind.value.strip().rpartition(".")[2]
            bean = Element(name[:1].lower() + name[1:], child.line)
            for one in child.children:
                key, value = one.attributes.get("name"), one.attributes.get("value") or one.text_of("value")
                if one.name == "property" and key is not None and value is not None:
                    bean.attributes[key.value] = value
                    if key.value in _KNOWN:
                        entry.found.append(_Found(key, key.value))
            if bean.name in _STRATEGIES:
                entry.found.append(_Found(kind, bean.name))
            child = bean
        found.append(child)
    return found


def _pending(imported: Imported, entry: _Entry, element: Element, beans: Beans) -> None:
    for child in _strategies(imported, entry, element, beans):
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


def _slow(imported: Imported, entry: _Entry, element: Element, beans: Beans) -> None:
    for child in _strategies(imported, entry, element, beans):
        if child.name != "abortSlowConsumerStrategy":
            imported.leave_out(child, _about_acks(child))
            continue
        entry.settings[ABORT] = True
        if child.text is not None and not child.text.value:
            entry.found.append(_Found(child.text, f"{ABORT} true"))
        for name, leaf in child.attributes.items():
            if name in _ABORT:
                key, convert = _ABORT[name]
                if key == "check_period" and (whole(leaf.value) or 1) <= 0:
                    entry.settings[ABORT] = False
                    entry.found.append(_Found(leaf, f"{ABORT} false: without a period ActiveMQ never looks"))
                else:
                    _set(imported, entry, leaf, key, convert(leaf.value))
            elif name == "ignoreNetworkConsumers":
                imported.leave_out(leaf, "Sluice has no network of brokers.")
    imported.leave_out(element, NO_SUCH_SETTING)


def _about_acks(element: Element) -> str:
    """Why a strategy isn't taken over, and the rule that does the same as abortSlowAckConsumerStrategy."""
    if element.name != "abortSlowAckConsumerStrategy":
        return "Only abortSlowConsumerStrategy is taken over."
    given = {name: leaf.value for name, leaf in element.attributes.items()}
    limit, closes = given.get("maxTimeSinceLastAck", "30000"), given.get("abortConnection") == "true"
    return (
        "It isn't taken over, and nobody is aborted for it: write a rule for the topic with the signal ack_silence, the "
        f"limit {limit} ms and the action {'disconnect' if closes else 'cancel_subscription'}."
    )


def _set(imported: Imported, entry: _Entry, leaf: Leaf, key: str, value: Any) -> None:
    """Set a field by a leaf, or leave the leaf out."""
    why = why_not(leaf, value, lambda reader: read_activemq(reader, [{"topic": "topic", key: value}]))
    if key in entry.settings:
        why = "The entry says this twice: the first was taken."
    if why:
        imported.leave_out(leaf, why)
    else:
        entry.settings[key] = value
        remark = _DIFFERS.get(key)
        entry.found.append(_Found(leaf, f"{key}; {remark}" if remark else key))


def _made(imported: Imported, entry: _Entry, entries: list[_Entry]) -> list[dict[str, Any]]:
    """The entries of the policy that a policyEntry makes."""
    made = [
        {"topic": pattern, **_silent(pattern, entry, entries), **entry.settings} for pattern in entry.patterns
    ]
    if not any(len(one) > 1 for one in made):
        if entry.topic is not None:
            imported.leave_out(entry.topic, "Its entry has no setting that is taken over.")
        return []
    for one in made:
        one.setdefault("prefetch", MAX_PREFETCH)  # limits count beyond it
    part = f"activemq {', '.join(entry.patterns)}"
    silent = sorted({key for one in made for key in one} - {"topic", "prefetch"} - set(entry.settings))
    alone = (
        f"; ActiveMQ's defaults for {', '.join(silent)}, because it doesn't merge entries" if silent else ""
    )
    below = (
        "; .# is also the topic itself, as > is in ActiveMQ"
        if any(one.endswith(".#") for one in entry.patterns)
        else ""
    )
    whole_prefetch = (
        "" if "prefetch" in entry.settings else f"; prefetch {MAX_PREFETCH}, ActiveMQ's for topics"
    )
    if entry.topic is not None:
        imported.take(entry.topic, part, f"topic{below}{alone}{whole_prefetch}")
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
