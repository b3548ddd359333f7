"""Importer of ActiveMQ's policyEntry elements (seed 003).

They contain pending message limits and slow consumer strategies by topic.

In ActiveMQ only the most specific entry applies to a destination. In Sluice entries are merged field by
field, more specific ones over wider ones. So an imported entry also states ActiveMQ's defaults wherever a
wider entry of the file states another value.

An imported policy never acts earlier or harder than ActiveMQ. Where the file doesn't say how late or how
gently ActiveMQ acts, a strategy is skipped, or an entry is imported in shadow mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker_core.config.preset_settings import ACTIVEMQ, MAX_PREFETCH
from broker_core.config.presets import MAX_ENTRIES, read_activemq
from broker_core.config.rule_terms import EnforcementMode
from broker_core.delivery.window import DEFAULT_PREFETCH
from broker_core.errors import ClientError
from broker_core.slow_clients.rules.presets import ACTIVEMQ_DEFAULTS, checks_until_abort
from broker_core.subscriptions.topics import TopicPattern
from console.services.policy_import.amps_values import parse_bytes
from console.services.policy_import.result import (
    NO_SUCH_SETTING,
    ImportReport,
    parse_bool,
    parse_int,
    parse_number,
    value_problem,
)
from console.services.policy_import.topic_layers import (
    has_wildcards,
    is_laid_under,
    partly_overlapping,
    patterns_beside_topics,
)
from console.services.policy_import.variables import Variables, is_placeholder
from console.services.policy_import.xml_leaves import XmlElement, XmlLeaf, parse_xml

CONSTANT: Final = "constant_pending_message_limit_strategy"
RATE: Final = "prefetch_rate_pending_message_limit_strategy"
ABORT: Final = "abort_slow_consumer_strategy"
ABORT_ACK: Final = "abort_slow_ack_consumer_strategy"
_ABORTS: Final = {"abortSlowConsumerStrategy": ABORT, "abortSlowAckConsumerStrategy": ABORT_ACK}
_SILENT: Final[dict[str, Any]] = {
    **ACTIVEMQ_DEFAULTS,
    "prefetch": MAX_PREFETCH,
    RATE: float(ACTIVEMQ[RATE].high),
    "mode": EnforcementMode.ENFORCE.value,
}
"""ActiveMQ's values for settings that an entry doesn't have.

The prefetch is that of topics; the rate is never reached.
"""
_LIMITS: Final = {
    "maxSlowCount": "max_slow_count",
    "maxSlowDuration": "max_slow_duration",
    "maxTimeSinceLastAck": "max_time_since_last_ack",
}
"""Limits of the abort strategies. An unreadable one may be higher than ActiveMQ's default."""
_PERIOD: Final = "checkPeriod"
_DIFFERS: Final = {
    CONSTANT: (
        "a subscription without acknowledgements retains the prefetch too, beyond the data in its socket"
    ),
    RATE: "a subscription without acknowledgements retains the prefetch too, beyond the data in its socket",
    "abort_connection": (
        "false ends the subscription immediately (in ActiveMQ after a second), and a STOMP "
        "client's connection with it"
    ),
    "max_slow_duration": "0 means no limit, as in ActiveMQ",
    ABORT_ACK: "a subscription without acknowledgements is slow while its connection accepts none of "
    "its waiting data; a consumer with nothing to acknowledge has the full time from its "
    "next message",
}
"""Remarks on settings whose effect differs slightly from ActiveMQ's."""
_UNKNOWN_TOPIC: Final = (
    "shadow, because an entry that was not imported may overlap its topics: set enforce "
    "after you have added that entry"
)
_UNKNOWN_PREFETCH: Final = (
    "shadow, because its prefetch is unreadable and limits count beyond the prefetch: set "
    "prefetch and enforce"
)
_TWICE: Final = (
    "shadow, because the file has another entry for its topic, which ActiveMQ may use: set "
    "enforce after you have compared the entries"
)
_PROFILE: Final = "shadow, as it is in a Spring profile: set enforce if that profile is active"
_OVERLAP: Final = (
    "shadow, because another entry has some of its topics, and ActiveMQ may use that one: set enforce "
    "after you have compared the entries"
)
_SEVERAL_BROKERS: Final = (
    "shadow, because the file has several brokers, and here the entry concerns all clients: set enforce "
    "if it concerns them all"
)
_OTHER_MAP: Final = (
    "shadow, because the broker refers to its policies by an id, which isn't that of this entry's policyMap: "
    "set enforce if the broker uses the entry"
)
_TOO_MANY: Final = f"A policy has at most {MAX_ENTRIES} entries of ActiveMQ."
_WIDE_WINDOW: Final = (
    f"Its topicPrefetch is over {MAX_PREFETCH}, Sluice's widest window, which fills "
    "earlier: no consumer is aborted for it."
)
_NEVER_SLOW: Final = (
    "With a topicPrefetch below 2 ActiveMQ calls no consumer of a topic slow: no consumer is aborted for it."
)
_REFERS: Final = ("slowConsumerStrategy", "pendingMessageLimitStrategy")
_NOT_POLICY: Final = frozenset((
    "adminConnectionContext", "bean", "destinations", "ioExceptionHandler", "jobSchedulerStore", "locker",
    "managementContext", "persistenceAdapter", "persistenceFactory", "property-placeholder", "services",
    "shutdownHooks", "sslContext", "tempDataStore",
))  # fmt: skip
_NOT_POLICY_OF_BROKER: Final = frozenset((
    "advisorySupport", "brokerId", "brokerName", "dataDirectory", "dataDirectoryFile",
    "deleteAllMessagesOnStartup", "id", "networkConnectorStartAsync", "persistent",
    "schedulePeriodForDestinationPurge", "schedulerDirectory", "schedulerSupport", "schemaLocation",
    "start", "startAsync", "tmpDataDirectory", "useJmx", "useShutdownHook", "useVirtualTopics",
    "vmConnectorURI",
))  # fmt: skip
_BLOCKS: Final = "Beyond this limit ActiveMQ blocks producers. Sluice never blocks producers for it."
_ELEMENTS: Final = {
    "import": "This part is in another file: import that file separately.",
    "transportConnectors": "Configure transports manually: Sluice's use its own protocol and STOMP.",
    "networkConnectors": "Configure links to other sites manually, in a draft of the policy.",
    "jmsBridgeConnectors": "Sluice has no JMS bridges.",
    "plugins": "Configure logons and permissions manually, under access and at the transports.",
    "destinationInterceptors": "Sluice has no virtual destinations.",
    "messageEvictionStrategy": "Sluice always discards the oldest first.",
    "subscriptionRecoveryPolicy": (
        "A subscription selects its start: Sluice replays the journal from any bookmark."
    ),
    "deadLetterStrategy": "In Sluice only queues have dead letters, under /queue/dead.",
    "dispatchPolicy": "Each subscription of a topic gets each message.",
    "pendingSubscriberPolicy": "Sluice stores waiting messages in memory, then on disk.",
    "pendingDurableSubscriberPolicy": "Sluice stores waiting messages in the journal.",
}
_ATTRIBUTES: Final = {
    "producerFlowControl": _BLOCKS,
    "memoryLimit": _BLOCKS,
    "durableTopicPrefetch": "Sluice uses one prefetch for an entry: topicPrefetch.",
    "advisoryForSlowConsumers": "Sluice always reports slow clients: see their events.",
    "advisoryForDiscardingMessages": "Sluice always reports losses: see the loss ledger.",
}
_USAGE: Final = {
    "memoryUsage": ("memory", "message_memory_limit", "offlines the client with the largest usage"),
    "tempUsage": ("disk", "message_disk_limit", "disconnects the client with the largest usage"),
}


_KNOWN: Final = frozenset((
    *_LIMITS, _PERIOD, "abortConnection", "ignoreIdleConsumers", "ignoreNetworkConsumers", "limit",
    "multiplier",
))  # fmt: skip
_STRATEGIES: Final = frozenset(
    (*_ABORTS, "constantPendingMessageLimitStrategy", "prefetchRatePendingMessageLimitStrategy")
)
_PACKAGE: Final = "org.apache.activemq.broker.region.policy"
_ELSEWHERE: Final = frozenset(("parent", "factory-bean", "factory-method"))
"""Attributes of a Spring bean that has parts elsewhere in the file."""
Beans = Mapping[str, XmlElement]
"""Elements of the file by their id."""


class _Strategy(NamedTuple):
    """Leaf of a file, and the setting it was imported into."""

    leaf: XmlLeaf
    setting: str


@dataclass(slots=True)
class _PolicyEntry:
    """A policyEntry element with its topic patterns, and the settings and leaves read from it so far."""

    element: XmlElement
    topic: XmlLeaf | None
    """Leaf of the topic's name; None for a defaultEntry, which has no such leaf."""
    patterns: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    found: list[_Strategy] = field(default_factory=list)
    excess: int = 0
    """Number of messages by which the prefetch exceeds the largest window that Sluice allows."""
    never_slow: bool = False
    """Whether the prefetch is too small for ActiveMQ to call a consumer slow (TopicSubscription: over 1)."""
    shadow: str = ""
    """Reason why the entry is in shadow mode, or ""."""


def import_activemq(text: str, variables: Variables) -> ImportReport:
    """Import each `<policyEntry topic="...">` as an entry of `activemq`.

    A composite destination makes one entry per topic.

    Raises:
        OperatorError: `bad_import`.
    """
    root = parse_xml(text, variables)
    imported = ImportReport(root.all_leaves())
    entries: list[_PolicyEntry] = []
    beans = {leaf.value: one for one in root.walk() if (leaf := one.attributes.get("id")) is not None}
    has_widest = any(_is_of_every_topic(one) for one in root.walk())
    for element in root.walk():
        if element.name == "defaultEntry":
            _default_entry(imported, element, has_widest, entries, beans)
        elif element.name == "policyEntry":
            _entry(imported, element, entries, beans)
        elif element.name == "systemUsage":
            _usage(imported, element)
    for profile in (one for one in root.walk() if "profile" in one.attributes):
        within = list(profile.walk())
        for entry in entries:
            if any(entry.element is one for one in within):
                entry.shadow = entry.shadow or _PROFILE
    referred = _policies_referred_to(root)
    policy_maps = [one for one in root.walk() if one.name == "policyMap"] if referred else []
    for other in (one for one in policy_maps if not _has_id(one, referred)):
        within = list(other.walk())
        for entry in entries:
            if any(entry.element is one for one in within):
                entry.shadow = entry.shadow or _OTHER_MAP
    several_brokers = sum(one.name == "broker" for one in root.walk()) > 1
    overlapping = partly_overlapping({name: entry.settings for entry in entries for name in entry.patterns})
    for entry in entries:
        overlap = _OVERLAP if not overlapping.isdisjoint(entry.patterns) else ""
        entry.shadow = entry.shadow or overlap or (_SEVERAL_BROKERS if several_brokers else "")
    _put_in_shadow(entries, unknown_topics=_has_unknown_topics(imported, root, entries))
    made = [made for entry in entries for made in _made(imported, entry, entries)]
    if made:
        beside = patterns_beside_topics([one["topic"] for one in made], ">")
        # Queues' consumers keep the defaults where nothing is set, in ActiveMQ and here.
        switched_off = [
            {"topic": one, "prefetch": DEFAULT_PREFETCH, "mode": EnforcementMode.OFF.value} for one in beside
        ]
        imported.document["activemq"] = [*made, *switched_off]
    _others(imported, root)
    return imported


def _has_unknown_topics(imported: ImportReport, root: XmlElement, entries: list[_PolicyEntry]) -> bool:
    """Return whether an entry was skipped whose topics have no imported entry."""
    known = [entry.element for entry in entries]
    names = {name for entry in entries for name in entry.patterns}
    return any(map(_has_entries_elsewhere, root.walk())) or any(
        one.name == "policyEntry"
        and (topic := one.attributes.get("topic")) is not None
        and not any(one is element for element in known)
        and not _has_entries_for(topic.value, names)
        for one in root.walk()
    )


def _policies_referred_to(root: XmlElement) -> set[str]:
    """Return the ids by which the file refers to a broker's destination policy."""
    found = [
        one.attributes["destinationPolicy"] for one in root.walk() if "destinationPolicy" in one.attributes
    ]
    for one in root.walk():
        name = one.attributes.get("name")
        if one.name == "property" and name is not None and name.value == "destinationPolicy":
            found += [
                leaf for key in ("ref", "bean") for inner in one.walk() if (leaf := inner.attributes.get(key))
            ]
    return {leaf.value.removeprefix("#") for leaf in found}


def _has_id(element: XmlElement, ids: set[str]) -> bool:
    """Return whether an element has one of the ids."""
    leaf = element.attributes.get("id")
    return leaf is not None and leaf.value in ids


def _has_entries_elsewhere(element: XmlElement) -> bool:
    """Return whether an element has entries, or is one, whose topics can't be read.

    Such an entry has its topic in a child element, is a Spring bean, or is a reference.
    """
    kind, name = element.attributes.get("class"), element.attributes.get("name")
    if element.name == "policyEntry":
        return element.child("destination") is not None
    if element.name == "bean" and kind is not None and kind.value.strip() == f"{_PACKAGE}.PolicyEntry":
        return True
    lists_entries = element.name == "policyEntries" or (
        element.name == "property" and name is not None and name.value == "policyEntries"
    )
    return "policyEntries" in element.attributes or (lists_entries and _lists_other_elements(element))


def _lists_other_elements(element: XmlElement) -> bool:
    """Return whether a list of entries has a Spring bean, a reference or an import."""
    return any(
        child.name in ("bean", "ref", "idref", "import")
        or (child.name != "policyEntry" and _lists_other_elements(child))
        for child in element.children
    )


def _has_entries_for(text: str, names: set[str]) -> bool:
    """Return whether all topics of a destination's name have an entry."""
    try:
        return set(topic_patterns(text)) <= names
    except ClientError:
        return False


def _put_in_shadow(entries: list[_PolicyEntry], *, unknown_topics: bool) -> None:
    """Set shadow mode on entries for which the file doesn't say when ActiveMQ acts.

    `unknown_topics`: also on entries with wildcards, since they may cover the topics of a skipped entry.
    """
    for entry in entries:
        unknown = unknown_topics and any(map(has_wildcards, entry.patterns))
        entry.shadow = entry.shadow or (_UNKNOWN_TOPIC if unknown else "")
        if unknown or (entry.shadow and entry.settings):
            entry.settings["mode"] = EnforcementMode.SHADOW.value


def topic_patterns(text: str) -> list[str]:
    """Return the patterns of a destination's name, one for each part of a composite name.

    `*` is one level in both systems. In ActiveMQ `a.>` also matches `a` itself, which is `a.#` in Sluice.

    Raises:
        ClientError: `bad_pattern`.
    """
    made = []
    for part in text.split(",", MAX_ENTRIES):  # more entries are refused later
        name = part.strip().removeprefix("topic://")
        if is_placeholder(name):
            raise ClientError(
                "bad_pattern",
                f"{name[:80]!r} is a variable that only ActiveMQ can resolve.",
                "Set it, or write the topic into the file.",
            )
        TopicPattern.parse(name)
        made.append(f"{name[:-2]}.#" if name.endswith(".>") else name)
    return made


def _fits(entries: list[_PolicyEntry], patterns: list[str]) -> bool:
    """Return whether a policy can have entries for these patterns, and for the patterns beside them."""
    combined = [*(pattern for entry in entries for pattern in entry.patterns), *patterns]
    return len(combined) + len(patterns_beside_topics(combined, ">")) <= MAX_ENTRIES


def _is_of_every_topic(element: XmlElement) -> bool:
    """Return whether an element is the entry for `>`, which matches every topic."""
    topic = element.attributes.get("topic")
    return (
        element.name == "policyEntry" and topic is not None and ">" in map(str.strip, topic.value.split(","))
    )


def _default_entry(
    imported: ImportReport, element: XmlElement, has_widest: bool, entries: list[_PolicyEntry], beans: Beans
) -> None:
    """Import a defaultEntry as the entry for `>`: ActiveMQ uses it for destinations that no entry matches.

    `has_widest`: the file has an entry for `>` itself.
    """
    for child in element.children:
        if child.name != "policyEntry":
            imported.record_skipped(child, NO_SUCH_SETTING)
        elif has_widest:
            imported.record_skipped(
                child, "The entry of > matches every topic, so ActiveMQ never uses this one."
            )
        elif first := next((entry for entry in entries if entry.topic is None), None):
            first.shadow = _TWICE
            imported.record_skipped(child, "A policy has one default entry: the first was imported.")
        elif not _fits(entries, [">"]):
            imported.record_skipped(child, _TOO_MANY)
        else:
            entries.append(_settings(imported, _PolicyEntry(child, None, [">"]), beans))


def _entry(imported: ImportReport, element: XmlElement, entries: list[_PolicyEntry], beans: Beans) -> None:
    """Import a policyEntry if its topic can be imported; otherwise record why it is skipped."""
    if any(entry.element is element for entry in entries):
        return  # a defaultEntry, imported before
    topic = element.attributes.get("topic")
    if topic is None:
        queues = "queue" in element.attributes
        imported.record_skipped(
            element,
            "The entry is for queues. Sluice stores messages of queues in the log and discards none of them."
            if queues
            else "The entry names no topic.",
        )
        return
    try:
        patterns = topic_patterns(topic.value)
    except ClientError as problem:
        imported.record_skipped(element, f"{problem.sentence} {problem.fix}")
        return
    known = [pattern for entry in entries for pattern in entry.patterns]
    if not _fits(entries, patterns):
        imported.record_skipped(element, _TOO_MANY)
    elif twice := next(
        (pattern for pattern in patterns if pattern in known or patterns.count(pattern) > 1), None
    ):
        imported.record_skipped(
            element, f"A policy has one entry per topic: the first for {twice} was imported."
        )
        for entry in entries:
            entry.shadow = _TWICE if set(entry.patterns) & set(patterns) else entry.shadow
    else:
        entries.append(_settings(imported, _PolicyEntry(element, topic, patterns), beans))


def _settings(imported: ImportReport, entry: _PolicyEntry, beans: Beans) -> _PolicyEntry:
    """Read an entry's attributes and strategies, and return the entry."""
    if (leaf := entry.element.attributes.get("topicPrefetch")) is not None:
        _prefetch(imported, entry, leaf)  # first, because strategies depend on it
    for name, leaf in entry.element.attributes.items():
        if name in _REFERS and leaf.value.startswith("#"):
            _reference(imported, entry, name, leaf, beans)
        elif name not in ("topic", "topicPrefetch"):
            imported.record_skipped(leaf, _ATTRIBUTES.get(name, NO_SUCH_SETTING))
    for child in entry.element.children:
        if child.name == "pendingMessageLimitStrategy":
            _pending(imported, entry, child, beans)
        elif child.name == "slowConsumerStrategy":
            _slow(imported, entry, child, beans)
        else:
            imported.record_skipped(child, _ELEMENTS.get(child.name, NO_SUCH_SETTING))
    return entry


def _prefetch(imported: ImportReport, entry: _PolicyEntry, leaf: XmlLeaf) -> None:
    """Read a prefetch.

    A value above `MAX_PREFETCH` is cut, and its excess later raises limits that count beyond it.
    """
    value = parse_int(leaf.value)
    entry.never_slow = value is not None and value < 2
    if value is not None and value > MAX_PREFETCH:
        entry.settings["prefetch"] = MAX_PREFETCH
        entry.excess = value - MAX_PREFETCH
        limits = "; limits beyond it are raised by the difference"
        entry.found.append(_Strategy(leaf, f"prefetch {MAX_PREFETCH}, the widest window here{limits}"))
    else:
        _set(imported, entry, leaf, "prefetch", value)
        entry.shadow = _UNKNOWN_PREFETCH if value is None else ""


def _reference(imported: ImportReport, entry: _PolicyEntry, name: str, leaf: XmlLeaf, beans: Beans) -> None:
    """Read a strategy that is elsewhere in the file, for a reference like `slowConsumerStrategy="#id"`."""
    bean = beans.get(leaf.value.removeprefix("#"))
    if bean is None:
        imported.record_skipped(
            leaf, f"No bean of this file has the id {leaf.value[1:80]!r}: write the strategy into the entry."
        )
        return
    entry.found.append(_Strategy(leaf, "the strategy that it refers to"))
    read_strategy = _slow if name == "slowConsumerStrategy" else _pending
    read_strategy(imported, entry, XmlElement(name, bean.line, children=[bean]), beans)


def _strategies(
    imported: ImportReport, entry: _PolicyEntry, element: XmlElement, beans: Beans
) -> list[XmlElement]:
    """Return the strategies in an element, with a Spring bean in the form of ActiveMQ's own element."""
    found = []
    for child in element.children:
        if child.name == "ref" and (leaf := child.attributes.get("bean")) is not None:
            if leaf.value in beans:
                entry.found.append(_Strategy(leaf, "the strategy that it refers to"))
                child = beans[leaf.value]
            else:
                imported.record_skipped(leaf, f"No bean of this file has the id {leaf.value[:80]!r}.")
        if child.name == "bean" and (kind := child.attributes.get("class")) is not None:
            child = _bean_strategy(entry, child, kind)
        found.append(child)
    return found


def _bean_strategy(entry: _PolicyEntry, bean: XmlElement, kind: XmlLeaf) -> XmlElement:
    """Return a Spring bean as the element of ActiveMQ's schema, with its properties as attributes.

    A property whose value isn't a text gets its own name as value, which no setting accepts. A bean with
    parts elsewhere in the file, or of a class that isn't ActiveMQ's, is returned unchanged.
    """
    package, _, name = kind.value.strip().rpartition(".")
    strategy = XmlElement(name[:1].lower() + name[1:], bean.line)
    if package != _PACKAGE or any(key in _ELSEWHERE or key.endswith("-ref") for key in bean.attributes):
        return bean
    if strategy.name in _STRATEGIES:
        entry.found.append(_Strategy(kind, strategy.name))
    # Properties as attributes, such as p:maxSlowCount.
    strategy.attributes |= {key: leaf for key, leaf in bean.attributes.items() if key in _KNOWN}
    properties: dict[str, tuple[XmlLeaf, XmlLeaf]] = {}
    for one in bean.children:
        key = one.attributes.get("name")
        if one.name == "property" and key is not None and key.value in _KNOWN:
            value = one.attributes.get("value") or one.text_of("value") or key
            properties[key.value] = (key, value)  # of equal names the last one counts
    for name, (key, value) in properties.items():
        strategy.attributes[name] = value
        if value is not key:
            entry.found.append(_Strategy(key, name))
    return strategy


def _pending(imported: ImportReport, entry: _PolicyEntry, element: XmlElement, beans: Beans) -> None:
    """Read the pending message limit strategies of an entry."""
    for child in _strategies(imported, entry, element, beans):
        if child.name == "constantPendingMessageLimitStrategy":
            _strategy(imported, entry, child, CONSTANT, "limit", parse_int, -1)
        elif child.name == "prefetchRatePendingMessageLimitStrategy":
            # ActiveMQ's default is 0.5; guides that print 2.5 or 3 set it explicitly.
            _strategy(imported, entry, child, RATE, "multiplier", parse_number, 0.5)
    imported.record_skipped(element, NO_SUCH_SETTING)


def _strategy(
    imported: ImportReport,
    entry: _PolicyEntry,
    element: XmlElement,
    key: str,
    name: str,
    convert: Callable[[str], Any],
    default: Any,
) -> None:
    """Read a strategy with a single number. A missing one has the default."""
    if name in element.attributes:
        leaf = element.attributes[name]
        _set(imported, entry, leaf, key, convert(leaf.value))
    else:
        entry.settings.setdefault(key, default)
        if element.text is not None and not element.text.value:
            entry.found.append(_Strategy(element.text, f"{key} {default}"))


def _slow(imported: ImportReport, entry: _PolicyEntry, element: XmlElement, beans: Beans) -> None:
    """Read the strategy that aborts slow consumers. An entry has at most one."""
    for child in _strategies(imported, entry, element, beans):
        strategy = _ABORTS.get(child.name)
        if strategy is None:
            imported.record_skipped(
                child, f"Only {' and '.join(_ABORTS)} are imported unchanged from ActiveMQ."
            )
        elif ABORT in entry.settings or ABORT_ACK in entry.settings:
            imported.record_skipped(child, "An entry has one strategy: the first was imported.")
        elif strategy is ABORT and entry.excess:
            _skip_strategy(imported, entry, child, _WIDE_WINDOW)
        elif strategy is ABORT and entry.never_slow:
            _skip_strategy(imported, entry, child, _NEVER_SLOW)
        else:
            _abort(imported, entry, child, strategy)
    imported.record_skipped(element, NO_SUCH_SETTING)


def _skip_strategy(imported: ImportReport, entry: _PolicyEntry, strategy: XmlElement, reason: str) -> None:
    """Skip a strategy with all its leaves, including a bean's properties."""
    leaves = set(strategy.all_leaves())
    for leaf in leaves:
        imported.record_skipped(leaf, reason)
    words = {strategy.name, *strategy.attributes}
    entry.found = [one for one in entry.found if one.leaf not in leaves and one.setting not in words]


def _abort(imported: ImportReport, entry: _PolicyEntry, strategy: XmlElement, key: str) -> None:
    """Read an abort strategy. Skip it completely if a limit or its period can't be read."""
    # Results are collected first, because one unreadable limit makes the whole strategy be skipped: without
    # that limit it would abort consumers earlier than ActiveMQ.
    settings: dict[str, Any] = {key: True}
    strategies: list[_Strategy] = []
    for name, leaf in strategy.attributes.items():
        setting, value, remark = name, None, ""
        if name in _LIMITS:
            setting = _LIMITS[name]
            value = parse_int(leaf.value)
            if value is not None and not 0 <= value <= ACTIVEMQ[setting].high:
                value, remark = -1, "-1 is no limit"
        elif name == _PERIOD:
            setting, value = "check_period", parse_int(leaf.value)
            if value is not None and value <= 0:
                settings[key] = False
                strategies.append(_Strategy(leaf, f"{key} false: without a period ActiveMQ never checks"))
                continue
            if value is not None and value < (least := ACTIVEMQ[setting].low):
                value, remark = least, f"{least} ms is Sluice's shortest period"
        elif name == "abortConnection":
            _set(imported, entry, leaf, "abort_connection", parse_bool(leaf.value))
            continue
        else:
            imported.record_skipped(leaf, _about_strategy(name, leaf, key))
            continue
        if reason := _invalid_reason(leaf, setting, value):
            _skip_strategy(
                imported, entry, strategy, f"{name} is unreadable, so no consumer is aborted. {reason}"
            )
            entry.settings.pop("abort_connection", None)
            return
        settings[setting] = value
        remark = "; ".join(filter(None, (remark, _DIFFERS.get(setting))))
        strategies.append(_Strategy(leaf, f"{setting}; {remark}" if remark else setting))
    if settings[key] and not _ever_aborts({**ACTIVEMQ_DEFAULTS, **settings}, key):
        settings[key] = False
    if strategy.text is not None and not strategy.text.value:
        strategies.append(_Strategy(strategy.text, f"{key} true"))
    entry.settings |= settings
    entry.found += strategies
    _remark_on_strategy(entry, strategy, key)


def _ever_aborts(settings: Mapping[str, Any], strategy: str) -> bool:
    """Return whether a strategy with these settings can ever abort a consumer."""
    if strategy == ABORT_ACK:
        return checks_until_abort(settings) is not None
    return bool(settings["max_slow_count"] > 0 or settings["max_slow_duration"] > 0)


def _remark_on_strategy(entry: _PolicyEntry, strategy: XmlElement, key: str) -> None:
    """Add a remark to the strategy's first setting about how its effect differs from ActiveMQ's."""
    remark = "no consumer is aborted, as in ActiveMQ" if not entry.settings[key] else _DIFFERS.get(key, "")
    leaves = set(strategy.all_leaves())
    for index, one in enumerate(entry.found):
        if remark and one.leaf in leaves:
            entry.found[index] = _Strategy(one.leaf, f"{one.setting}; {remark}")
            return


def _about_strategy(name: str, leaf: XmlLeaf, strategy: str) -> str:
    """Return why an attribute of an abort strategy isn't imported."""
    if name == "ignoreNetworkConsumers":
        return "A link to another site is a client like any other, so limits apply to it."
    if name != "ignoreIdleConsumers" or strategy != ABORT_ACK:
        return NO_SUCH_SETTING
    if parse_bool(leaf.value) is True:
        return "Sluice always ignores consumers with nothing to acknowledge, so the setting has no effect."
    return "Sluice always ignores consumers with nothing to acknowledge; ActiveMQ would abort them too."


def _set(imported: ImportReport, entry: _PolicyEntry, leaf: XmlLeaf, key: str, value: Any) -> None:
    """Set a field from a leaf, or skip the leaf if its value is invalid or the field is set already."""
    reason = _invalid_reason(leaf, key, value)
    if key in entry.settings:
        reason = "The entry has this setting twice: the first was imported."
    if reason:
        imported.record_skipped(leaf, reason)
    else:
        entry.settings[key] = value
        remark = _DIFFERS.get(key)
        entry.found.append(_Strategy(leaf, f"{key}; {remark}" if remark else key))


def _invalid_reason(leaf: XmlLeaf, setting: str, value: Any) -> str:
    """Return why a leaf's value is invalid for a setting, or ""."""
    return value_problem(
        leaf, value, lambda reader: read_activemq(reader, [{"topic": "topic", setting: value}])
    )


def _raise_limits(entry: _PolicyEntry) -> None:
    """Raise the pending limits by the part of the prefetch that exceeds `MAX_PREFETCH`."""
    if (constant := entry.settings.get(CONSTANT, -1)) >= 0:
        raised = constant + entry.excess
        entry.settings[CONSTANT] = raised if raised <= ACTIVEMQ[CONSTANT].high else -1
    if RATE in entry.settings:
        prefetch = MAX_PREFETCH + entry.excess
        beyond = entry.excess + int(entry.settings[RATE] * prefetch)
        # Half a message more, so that rounding down gives `beyond` again.
        rate = (beyond + 0.5) / MAX_PREFETCH
        entry.settings[RATE] = min(rate, float(ACTIVEMQ[RATE].high))


def _made(imported: ImportReport, entry: _PolicyEntry, entries: list[_PolicyEntry]) -> list[dict[str, Any]]:
    """Return the policy's entries for a policyEntry, and record its leaves as imported."""
    if entry.excess:
        _raise_limits(entry)
    made = [
        {"topic": pattern, **_silent(pattern, entry, entries), **entry.settings} for pattern in entry.patterns
    ]
    if not any(len(one) > 1 for one in made):
        if entry.topic is not None:
            imported.record_skipped(entry.topic, "Its entry has no setting that can be imported.")
        return []
    for one in made:
        one.setdefault("prefetch", MAX_PREFETCH)  # limits count messages beyond the prefetch
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
    default_prefetch = (
        "" if "prefetch" in entry.settings else f"; prefetch {MAX_PREFETCH}, ActiveMQ's for topics"
    )
    if beside := patterns_beside_topics(entry.patterns, ">"):
        alone += f"; off for {', '.join(beside)}, Sluice's topics of queues and temporary destinations"
    if entry.shadow:
        alone += f"; {entry.shadow}"
    if entry.topic is not None:
        imported.record_imported(entry.topic, part, f"topic{below}{alone}{default_prefetch}")
    elif alone:
        entry.found[0] = _Strategy(entry.found[0].leaf, f"{entry.found[0].setting}{alone}")
    for leaf, setting in entry.found:
        imported.record_imported(leaf, part, setting)
    return made


def _silent(pattern: str, entry: _PolicyEntry, entries: list[_PolicyEntry]) -> dict[str, Any]:
    """Return ActiveMQ's defaults for settings that only wider entries have and Sluice would merge."""
    under = [
        other
        for other in entries
        if other is not entry and any(is_laid_under(wider, pattern) for wider in other.patterns)
    ]
    keys = {key for other in under for key in other.settings} - set(entry.settings)
    return {key: _SILENT[key] for key in sorted(keys)}


def _usage(imported: ImportReport, element: XmlElement) -> None:
    """Skip the limits of the whole broker, with a hint: exceeding them has another effect in Sluice."""
    for one in element.walk():
        for leaf in one.all_leaves() if one.name in ("memoryUsage", "storeUsage", "tempUsage") else ():
            if one.name == "storeUsage":
                imported.record_skipped(
                    leaf, "The journal has no limit in bytes: an action removes segments older than an age."
                )
                continue
            kind, setting, does = _USAGE[one.name]
            limit = _nbytes(leaf.value) if leaf.name == "limit" else None
            advice = f"{setting} {limit}" if limit is not None else setting
            imported.record_skipped(
                leaf,
                f"{_BLOCKS} A limit of {kind} {does}. For the same effect, set {advice} (bytes) of the pool.",
            )
    imported.record_skipped(element, _BLOCKS)


def _nbytes(text: str) -> int | None:
    """Return the bytes of a size as ActiveMQ reads it: powers of 1,024, with `mb` equal to `m`.

    None if invalid.
    """
    return parse_bytes(text.strip().lower().removesuffix("b"))


def _others(imported: ImportReport, element: XmlElement) -> None:
    """Record the leaves outside the policies as skipped or as unrelated to policy."""
    if element.name in _NOT_POLICY:
        imported.record_unrelated(element)
    elif element.name in _ELEMENTS:
        imported.record_skipped(element, _ELEMENTS[element.name])
    else:
        for name, leaf in element.attributes.items() if element.name in ("broker", "beans") else ():
            if name in _NOT_POLICY_OF_BROKER:
                imported.record_unrelated(leaf)
        for child in element.children:
            _others(imported, child)
