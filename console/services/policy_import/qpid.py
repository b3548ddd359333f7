"""Importer of Qpid's slow-consumer limits by topic, in both historical forms.

The limits are depth, messageAge and messageCount.

    <topic key="stocks.us.*"><consumer>...</consumer></topic>                     the design's (seed 004)
    <topics><topic><name>stocks.us.*</name><slow-consumer-detection>...           the plug-in's, as it shipped
    <queue name="CLIENT:NAME"><consumer>...</consumer></queue>                    for one durable subscription

A queue with such a name belongs to a durable subscription. Its limits become rules for that client and
subscription. These disconnect the client and keep the subscription, as the plug-in does.

The plug-in also has a `<slow-consumer-detection>` for all topics, which that of a topic replaces
completely. In Sluice entries are merged field by field, so a topic's entry states "no limit" as the highest
possible number.

An imported policy never acts earlier or harder than Qpid. Where an entry can't be imported, wider entries
that cover its topics are imported in shadow mode.
"""

from __future__ import annotations

from typing import Any, Final

from broker_core.config.preset_settings import QPID
from broker_core.config.presets import MAX_ENTRIES, read_qpid
from broker_core.config.rule_terms import EnforcementMode, PolicyAction, Signal
from broker_core.config.rules import MAX_RULES
from broker_core.errors import ClientError, OperatorError
from broker_core.names import is_name
from broker_core.protocols.names import MAX_SUBSCRIPTION_ID
from broker_core.subscriptions.topics import TopicPattern
from console.services.policy_import.result import (
    NO_SUCH_SETTING,
    ImportReport,
    parse_bool,
    parse_int,
    value_problem,
)
from console.services.policy_import.topic_layers import (
    has_wildcards,
    is_laid_under,
    partly_overlapping,
    patterns_beside_topics,
)
from console.services.policy_import.variables import Variables, is_placeholder, unset_reason
from console.services.policy_import.xml_leaves import XmlElement, XmlLeaf, leaf_value, parse_xml

# The document misspells it as `maessageAge`, and so do files that were copied from it.
_LIMITS: Final = {
    "depth": "depth",
    "messageAge": "message_age",
    "maessageAge": "message_age",
    "messageCount": "message_count",
}
_NO_LIMIT: Final = {name: QPID[name].high for name in ("depth", "message_age", "message_count")}
_DETECTION: Final = "slow-consumer-detection"
_DELETES: Final = "The setting removes the backlog of durable subscriptions: set it manually and confirm it."
_NO_SUBSCRIPTION: Final = (
    "The queue isn't of a durable subscription (CLIENT:NAME). In Sluice, other queues are "
    "shared by their consumers: write a rule for queue.NAME, if consumers of the queue may be disconnected."
)
RULES: Final = "qpid.queue."
"""Prefix of the names of imported rules. Rules of equal name are for different subscriptions."""
_LIMIT_SIGNALS: Final = {
    "depth": Signal.BACKLOG_BYTES,
    "message_age": Signal.OLDEST_AGE,
    "message_count": Signal.BACKLOG_MESSAGES,
}
_NO_DELETE: Final = (
    "Only limits with the policy Delete or TopicDelete are imported: in Sluice they disconnect."
)
_BESIDE: Final = "Sluice's topics of queues and temporary destinations"
_IN_SHADOW: Final = (
    "in shadow, because an entry that was not imported may overlap its topics: set enforce "
    "after you have added that entry"
)
_OVERLAP: Final = (
    "in shadow, because another entry has some of its topics, and Qpid may use that one: set enforce "
    "after you have compared the entries"
)
_GENTLER_QUEUE: Final = (
    "in shadow, because a queue of a durable subscription has a higher limit, and Sluice applies both: set "
    "enforce if this limit may apply to that subscription"
)
_SEVERAL_HOSTS: Final = (
    "in shadow, because the file has several virtual hosts, and here the limits concern all clients: set "
    "enforce if they concern them all"
)
_TWICE: Final = (
    "in shadow, because the file has another entry for it, for example of another virtual "
    "host: set enforce after you have compared the entries"
)
_OF_ONE: Final = (
    "for the durable subscription of this name, which is retained; the broker sends the "
    "reason code of the limit, where Qpid sends 506"
)
_ALERT: Final = "This setting is an alert: a rule with the action notify does the same."
_PRODUCERS: Final = "The setting blocks producers. Sluice never blocks producers for it."
_REASONS: Final = {
    "delay": "Sluice checks limits with each message and each second, so it has no period to set.",
    "timeunit": "Sluice checks limits with each message and each second, so it has no period to set.",
    "maximumMessageAge": _ALERT,
    "maximumMessageCount": _ALERT,
    "maximumMessageSize": _ALERT,
    "maximumQueueDepth": _ALERT,
    "minimumAlertRepeatGap": _ALERT,
    "capacity": _PRODUCERS,
    "flowResumeCapacity": _PRODUCERS,
    "security": "Configure logons and permissions manually, under access and at the transports.",
}
_NOT_POLICY: Final = frozenset((
    "advanced", "auto_register", "autodelete", "broker", "cacheDir", "class", "connector", "default",
    "delivery", "durable", "environment-path", "exchange", "exchanges", "exclusive", "heartbeat",
    "housekeeping", "jmx", "management", "plugins", "prefix", "priority", "store", "transport", "work",
))  # fmt: skip


def import_qpid(text: str, variables: Variables) -> ImportReport:
    """Import each topic with limits as an entry of `qpid`, and each durable subscription's queue as `rules`.

    Raises:
        OperatorError: `bad_import`.
    """
    if text.lstrip().startswith("{"):
        raise OperatorError(
            "bad_import",
            "The file is the JSON of Qpid Broker-J, which has no limits for consumers.",
            "Give the XML of Qpid's Java broker up to 0.18. Limits of queues are alerts there: write rules "
            "with notify.",
        )
    root = parse_xml(text, variables)
    imported = ImportReport(root.all_leaves())
    reading = _QpidReader(imported)
    for topics in (
        element for name in ("topics", "queues") for element in root.walk() if element.name == name
    ):
        reading.everything(topics)
    for element in root.walk():
        if element.name == "topic":
            reading.topic(element)
        elif element.name == "queue":
            reading.queue(element)
    reading.several_hosts = sum(one.name == "virtualhost" for one in root.walk()) > 1
    reading.overlapping = partly_overlapping({one["topic"]: {**one, "topic": ""} for one in reading.entries})
    if reading.rules:
        imported.document["rules"] = reading.complete_rules()
    entries = [reading.complete_entry(entry) for entry in reading.entries]
    if entries:
        beside = patterns_beside_topics([one["topic"] for one in entries], "#")
        imported.document["qpid"] = [
            *entries,
            *({"topic": one, "mode": EnforcementMode.OFF.value} for one in beside),
        ]
        for entry in entries:
            if beside := patterns_beside_topics([entry["topic"]], "#"):
                imported.remark(f"qpid {entry['topic']}", f"off for {', '.join(beside)}, {_BESIDE}")
    _others(imported, root)
    return imported


def check_key(key: str) -> str:
    """Return an AMQP topic key unchanged if Sluice can use it.

    `*` is one word, `#` at the end any number of words.

    Raises:
        ClientError: `bad_pattern`.
    """
    if key != "#":
        TopicPattern.parse(f"{key[:-2]}.>" if key.endswith(".#") else key)
    if "#" in key[:-1] or ">" in key:
        raise ClientError(
            "bad_pattern",
            f"{key[:80]!r} isn't imported.",
            "A key can have # only at its end, and can't contain >.",
        )
    return key


def _deletes(policy: XmlElement) -> bool:
    """Return whether a policy element names a policy that disconnects."""
    return leaf_value(policy.attributes.get("name") or policy.text_of("name")).lower() in (
        "delete",
        "topicdelete",
    )


def _is_subscription(name: str) -> bool:
    """Return whether a durable subscription may have this name."""
    return 0 < len(name) <= MAX_SUBSCRIPTION_ID and name.isprintable() and not is_placeholder(name)


def _rule(setting: str, limit: int, scope: dict[str, str]) -> dict[str, Any]:
    """Return the rule for one limit in the form of a policy document."""
    return {
        "name": f"{RULES}{setting}",
        "mode": EnforcementMode.ENFORCE.value,
        "scope": scope,
        "signal": _LIMIT_SIGNALS[setting].value,
        "limit": limit,
        "ladder": [{"action": PolicyAction.DISCONNECT.value}],
    }


class _QpidReader:
    """Entries and rules read from a file so far."""

    def __init__(self, imported: ImportReport) -> None:
        self.imported = imported
        self.entries: list[dict[str, Any]] = []
        self._has_unknown_topics = False
        """Whether limits of unknown topics were skipped."""
        self._twice: set[str] = set()
        """Topics with several entries. The first of each was imported."""
        self.rules: list[dict[str, Any]] = []
        """Rules for durable subscriptions, made from queues with their names."""
        self._everything: dict[str, Any] = {}
        self.several_hosts = False
        """Whether the file has several virtual hosts."""
        self.overlapping: set[str] = set()
        """Topics of entries that have topics in common while neither entry covers the other."""

    def everything(self, element: XmlElement) -> None:
        """Read the limits for all topics: those of <topics>, or else of <queues> (for topics' queues)."""
        for detection in (child for child in element.children if child.name == _DETECTION):
            if self._everything:
                self._twice |= {"#"} if element.name == "topics" else set()
                self.imported.record_skipped(
                    detection, "A policy has one entry for all topics: that of <topics>, or the first."
                )
                continue
            self._everything = self._limits(detection, "#")
            self.entries += [self._everything] if self._everything else []

    def topic(self, element: XmlElement) -> None:
        """Read one topic in either form. An element without limits makes no entry."""
        name = element.attributes.get("key") or element.text_of("name")
        limits = element.child("consumer") or element.child(_DETECTION)
        if limits is None:
            return
        reason = ""
        key = leaf_value(name)
        subscription = element.child("subscriptionName")
        if name is None or not key:
            reason = "The topic has no key or name."
        elif is_placeholder(key):
            reason = unset_reason(key)
        elif subscription is None and any(entry["topic"] == key for entry in self.entries):
            reason = "A policy has one entry per topic: the first was taken."
        elif not self._fits(key):
            reason = f"A policy has at most {MAX_ENTRIES} entries of Qpid."
        else:
            try:
                check_key(key)
            except ClientError as problem:
                reason = f"{problem.sentence} {problem.fix}"
        if reason or name is None:
            self.imported.record_skipped(element, reason)
            # The skipped entry may be gentler: `complete_entry` puts overlapping entries in shadow mode.
            known = any(entry["topic"] == key for entry in self.entries)
            self._has_unknown_topics |= not known
            self._twice |= {key} if known else set()
        elif subscription is not None:
            self._subscription(element, subscription.text, limits, key)
            self.imported.record_imported(name, f"rules {leaf_value(subscription.text)} {key}", "topic")
        elif made := self._limits(limits, key):
            alone = sorted(set(self._everything) - set(made))
            none = (
                f"; without the limits of all topics ({', '.join(alone)}), which it replaces" if alone else ""
            )
            self.imported.record_imported(name, f"qpid {key}", f"topic{none}")
            self.entries.append(made)
        elif self._everything:
            self.imported.record_imported(
                name, f"qpid {key}", "topic, without any limit, because none of its limits was imported"
            )
            self.entries.append({"topic": key})
        else:
            self.imported.record_skipped(name, "Its entry has no limit that can be imported.")

    def _fits(self, key: str) -> bool:
        """Return whether a policy can have an entry for this key, and entries for the patterns beside it."""
        keys = [*(entry["topic"] for entry in self.entries), key]
        return len(keys) + len(patterns_beside_topics(keys, "#")) <= MAX_ENTRIES

    def queue(self, element: XmlElement) -> None:
        """Read one queue. Its limits are in the element itself, or in a child with any name."""
        within = [one for child in element.children for one in (child, *child.children)]
        limits = next((one for one in within if one.name in ("consumer", _DETECTION)), None)
        if limits is not None:
            self._subscription(element, element.attributes.get("name") or element.text_of("name"), limits)

    def _subscription(
        self, element: XmlElement, name: XmlLeaf | None, limits: XmlElement, topic: str = ""
    ) -> None:
        """Read the limits of a durable subscription, to `topic` or any topic, by the name of its queue."""
        client, _, subscription = leaf_value(name).partition(":")
        scope = {"client": client, "subscription": subscription, **({"topic": topic} if topic else {})}
        if name is None or not is_name(client) or not _is_subscription(subscription):
            self.imported.record_skipped(element, _NO_SUBSCRIPTION)
        elif same := [rule for rule in self.rules if rule["scope"] == scope]:
            for rule in same:
                rule["mode"] = EnforcementMode.SHADOW.value
            self.imported.remark(f"rules {client}:{subscription} {topic}".rstrip(), _TWICE)
            self.imported.record_skipped(
                element, "A policy has one entry per subscription: the first was imported."
            )
        elif len(self.rules) > MAX_RULES - len(_LIMIT_SIGNALS):
            self.imported.record_skipped(element, f"A policy has at most {MAX_RULES} rules.")
        elif made := self._limits(limits, f"{client}:{subscription} {topic}".rstrip(), "rules"):
            del made["topic"]
            self.imported.record_imported(name, f"rules {client}:{subscription} {topic}".rstrip(), _OF_ONE)
            self.rules += [_rule(setting, limit, scope) for setting, limit in made.items()]
        else:
            self.imported.record_skipped(name, "Its entry has no limit that can be imported.")

    def complete_entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return an entry that states "no limit" for each limit that only wider entries have."""
        key = entry["topic"]
        under = [one for one in self.entries if one is not entry and is_laid_under(one["topic"], key)]
        limits = {limit for one in under for limit in one} & set(_NO_LIMIT)
        made = {
            "topic": key,
            **{limit: _NO_LIMIT[limit] for limit in sorted(limits) if limit not in entry},
            **entry,
        }
        if reason := self._shadow_reason(entry):
            self.imported.remark(f"qpid {key}", reason)
            return {**made, "mode": EnforcementMode.SHADOW.value}
        if any(self._shadow_reason(other) for other in under):
            return {**made, "mode": EnforcementMode.ENFORCE.value}
        return made

    def _shadow_reason(self, entry: dict[str, Any]) -> str:
        """Return why Qpid may act later than an entry says, or ""."""
        key = entry["topic"]
        if self._has_unknown_topics and has_wildcards(key):
            return _IN_SHADOW
        if key in self._twice:
            return _TWICE
        if self.several_hosts:
            return _SEVERAL_HOSTS
        if key in self.overlapping:
            return _OVERLAP
        limits = {signal.value: entry[name] for name, signal in _LIMIT_SIGNALS.items() if name in entry}
        gentler = any(limits.get(rule["signal"], rule["limit"]) < rule["limit"] for rule in self.rules)
        return _GENTLER_QUEUE if gentler else ""

    def complete_rules(self) -> list[dict[str, Any]]:
        """Return the rules, in shadow mode if the file has several virtual hosts."""
        if not self.several_hosts:
            return self.rules
        for rule in self.rules:
            rule["mode"] = EnforcementMode.SHADOW.value
        for client, name, topic in {
            (one["client"], one["subscription"], one.get("topic", ""))
            for one in (rule["scope"] for rule in self.rules)
        }:
            self.imported.remark(f"rules {client}:{name} {topic}".rstrip(), _SEVERAL_HOSTS)
        return self.rules

    def _limits(self, element: XmlElement, key: str, into: str = "qpid") -> dict[str, Any]:
        """Return the entry of a topic or subscription; empty if no limit can be imported."""
        made: dict[str, Any] = {}
        acts = [child for child in element.children if child.name == "policy"]
        if acts and not any(_deletes(child) for child in acts):
            self.imported.record_skipped(element, _NO_DELETE)
            return {}
        for child in element.children:
            leaf, setting = child.text, _LIMITS.get(child.name)
            if leaf is not None and setting is not None:
                self._limit(leaf, f"{into} {key}", setting, made)
            elif child.name == "policy":
                self._policy(child, f"{into} {key}")
        self.imported.record_skipped(element, NO_SUCH_SETTING)
        if not made:
            self.imported.undo_part(f"{into} {key}", "Its entry has no limit that can be imported.")
            return {}
        return {"topic": key, **made}

    def _limit(self, leaf: XmlLeaf, part: str, setting: str, made: dict[str, Any]) -> None:
        """Read one limit into the entry `made`, or record why it is skipped."""
        value = parse_int(leaf.value)
        reason = value_problem(
            leaf, value, lambda reader: read_qpid(reader, [{"topic": "topic", setting: value}])
        )
        if setting in made:
            reason = "The entry has this setting twice: the first was imported."
        if reason:
            self.imported.record_skipped(leaf, reason)
        else:
            made[setting] = value
            self.imported.record_imported(leaf, part, setting)

    def _policy(self, element: XmlElement, part: str) -> None:
        """Record the leaves of a policy element as imported or skipped."""
        name = element.attributes.get("name") or element.text_of("name")
        if name is None or not _deletes(element):
            self.imported.record_skipped(element, _NO_DELETE)
            return
        self.imported.record_imported(name, part, "its limits disconnect")
        for one in element.walk():
            if one.name == "delete-persistent":
                self.imported.record_skipped(one, _DELETES)
            elif one.name == "option":
                self._option(one, part)
            elif one.name.lower() == "topicdelete" and one.text is not None:
                self.imported.record_imported(one.text, part, "durable subscriptions are retained")

    def _option(self, element: XmlElement, part: str) -> None:
        """Record the leaves of a policy's option as imported or skipped."""
        option, value = element.attributes.get("name"), element.attributes.get("value")
        if (
            option is None
            or value is None
            or option.value != "delete-persistent"
            or parse_bool(value.value) is None
        ):
            self.imported.record_skipped(element, "This policy has no such option.")
        elif parse_bool(value.value):
            self.imported.record_skipped(element, _DELETES)
        else:
            for leaf in (option, value):
                self.imported.record_imported(leaf, part, "durable subscriptions are retained")


def _others(imported: ImportReport, element: XmlElement) -> None:
    """Record the leaves outside the limits as skipped or as unrelated to policy."""
    if element.name in _REASONS:
        imported.record_skipped(element, _REASONS[element.name])
    elif element.name in _NOT_POLICY:
        imported.record_unrelated(element)
    else:
        names = (
            (element.text_of("name"), element.attributes.get("name"))
            if element.name in ("virtualhost", "queue", "topic")
            else ()
        )
        for leaf in names:
            if leaf is not None:
                imported.record_unrelated(leaf)
        for child in element.children:
            _others(imported, child)
