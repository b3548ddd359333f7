"""Qpid's slow consumers by topic: depth, messageAge and messageCount, in both of the forms that there were.

    <topic key="stocks.us.*"><consumer>...</consumer></topic>                            the design's (seed 004)
    <topics><topic><name>stocks.us.*</name><slow-consumer-detection>...                  the plug-in's, as it shipped

The plug-in also has a `<slow-consumer-detection>` for all topics, which that of a topic replaces whole; here
entries are laid over each other field by field, so a topic's entry then says "no limit" by the highest number there is.
"""

from __future__ import annotations

from typing import Any, Final

from broker_core.config.preset_fields import QPID
from broker_core.config.presets import MAX_ENTRIES, read_qpid
from broker_core.errors import ClientError
from broker_core.subscriptions.topics import TopicPattern
from console.services.policy_import.imported import (
    NO_SUCH_SETTING,
    Imported,
    flag,
    whole,
    why_not,
)
from console.services.policy_import.leaves import Element, Leaf, parse_xml, value_of

# The document prints `maessageAge`; files that were copied from it say so too.
_LIMITS: Final = {
    "depth": "depth",
    "messageAge": "message_age",
    "maessageAge": "message_age",
    "messageCount": "message_count",
}
_NO_LIMIT: Final = {name: QPID[name].high for name in ("depth", "message_age", "message_count")}
_DETECTION: Final = "slow-consumer-detection"
_DELETES: Final = (
    "It removes what durable subscriptions are owed: set it here by hand, with its confirmation."
)
_ONE_QUEUE: Final = (
    "It is for one queue by its name (a durable subscription's is CLIENT:NAME), and Sluice's entries are by topic: write a "
    "rule with that client and subscription as its scope, a signal backlog_bytes (depth), oldest_age (messageAge) or "
    "backlog_messages (messageCount), and the action disconnect."
)
_ALERT: Final = "It is an alert: a rule with the action notify does the same."
_PRODUCERS: Final = "It holds up producers, which Sluice never does."
_REASONS: Final = {
    "delay": "Limits are looked at with each message and each second: there is no period to set.",
    "timeunit": "Limits are looked at with each message and each second: there is no period to set.",
    "maximumMessageAge": _ALERT, "maximumMessageCount": _ALERT, "maximumMessageSize": _ALERT, "maximumQueueDepth": _ALERT,
    "minimumAlertRepeatGap": _ALERT, "capacity": _PRODUCERS, "flowResumeCapacity": _PRODUCERS,
    "security": "Logons and rights are set by hand, under access and at the transports.",
}  # fmt: skip
_NOT_POLICY: Final = frozenset((
    "advanced", "auto_register", "autodelete", "broker", "cacheDir", "class", "connector", "default", "delivery", "durable",
    "environment-path", "exchange", "exchanges", "exclusive", "heartbeat", "housekeeping", "jmx", "management", "plugins", "prefix",
    "priority", "store", "transport", "work",
))  # fmt: skip


def read(text: str) -> Imported:
    """Each topic with limits as an entry of `qpid`; queues are left out."""
    root = parse_xml(text)
    imported = Imported(root.leaves())
    reading = _Reading(imported)
    for topics in (
        element for name in ("topics", "queues") for element in root.walk() if element.name == name
    ):
        reading.everything(topics)
    for element in root.walk():
        if element.name == "topic":
            reading.topic(element)
    entries = [reading.whole(entry) for entry in reading.entries]
    if entries:
        imported.document["qpid"] = entries
    _others(imported, root)
    return imported


def checked_key(key: str) -> str:
    """An AMQP topic key, as it is: `*` is one word, `#` at the end any number of words. Raises ClientError."""
    if key != "#":
        TopicPattern.parse(f"{key[:-2]}.>" if key.endswith(".#") else key)
    if "#" in key[:-1] or ">" in key:
        raise ClientError(
            "bad_pattern",
            f"{key[:80]!r} isn't taken over.",
            "A # stands at the end of a key, and a > nowhere.",
        )
    return key


class _Reading:
    """The entries so far."""

    def __init__(self, imported: Imported) -> None:
        self.imported = imported
        self.entries: list[dict[str, Any]] = []
        self._everything: dict[str, Any] = {}

    def everything(self, element: Element) -> None:
        """The limits of all topics: those of <topics>, or else those of <queues>, which are for topics' queues."""
        for detection in (child for child in element.children if child.name == _DETECTION):
            if self._everything:
                self.imported.leave_out(
                    detection, "There is one entry for all topics: the one of <topics>, or the first."
                )
                continue
            self._everything = self._limits(detection, "#")
            self.entries += [self._everything] if self._everything else []

    def topic(self, element: Element) -> None:
        """One topic, in either form; an element without limits is no entry."""
        name = element.attributes.get("key") or element.text_of("name")
        limits = element.child("consumer") or element.child(_DETECTION)
        if limits is None:
            return
        why = ""
        key = value_of(name)
        if element.child("subscriptionName") is not None:
            why = _ONE_QUEUE
        elif name is None or not key:
            why = "The topic has no key or name."
        elif any(entry["topic"] == key for entry in self.entries):
            why = "There is one entry for a topic: the first was taken."
        elif len(self.entries) >= MAX_ENTRIES:
            why = f"A policy has at most {MAX_ENTRIES} entries of Qpid."
        else:
            try:
                checked_key(key)
            except ClientError as problem:
                why = f"{problem.sentence} {problem.fix}"
        if why or name is None:
            self.imported.leave_out(element, why)
        elif made := self._limits(limits, key):
            alone = sorted(set(self._everything) - set(made))
            none = (
                f"; without the limits of all topics ({', '.join(alone)}), which it replaces" if alone else ""
            )
            self.imported.take(name, f"qpid {key}", f"topic{none}")
            self.entries.append(made)
        else:
            self.imported.leave_out(name, "Its entry has no limit that is taken over.")

    def whole(self, entry: dict[str, Any]) -> dict[str, Any]:
        """An entry that says all that the entry of all topics does."""
        return {
            "topic": entry["topic"],
            **{key: _NO_LIMIT[key] for key in self._everything if key not in entry},
            **entry,
        }

    def _limits(self, element: Element, key: str) -> dict[str, Any]:
        """A topic's entry; nothing when no limit is taken over."""
        made: dict[str, Any] = {}
        for child in element.children:
            leaf, setting = child.text, _LIMITS.get(child.name)
            if leaf is not None and setting is not None:
                self._limit(leaf, key, setting, made)
            elif child.name == "policy":
                self._policy(child, key)
        self.imported.leave_out(element, NO_SUCH_SETTING)
        if not made:
            self.imported.withdraw(f"qpid {key}", "Its entry has no limit that is taken over.")
            return {}
        return {"topic": key, **made}

    def _limit(self, leaf: Leaf, key: str, setting: str, made: dict[str, Any]) -> None:
        value = whole(leaf.value)
        why = why_not(leaf, value, lambda reader: read_qpid(reader, [{"topic": "topic", setting: value}]))
        if setting in made:
            why = "The entry says this twice: the first was taken."
        if why:
            self.imported.leave_out(leaf, why)
        else:
            made[setting] = value
            self.imported.take(leaf, f"qpid {key}", setting)

    def _policy(self, element: Element, key: str) -> None:
        name = element.attributes.get("name") or element.text_of("name")
        if name is None or name.value.lower() not in ("delete", "topicdelete"):
            self.imported.leave_out(
                element, "Only the policies Delete and TopicDelete are taken over: the limits disconnect."
            )
            return
        self.imported.take(name, f"qpid {key}", "its limits disconnect")
        for one in element.walk():
            if one.name == "delete-persistent":
                self.imported.leave_out(one, _DELETES)
            elif one.name == "option":
                self._option(one, key)
            elif one.name.lower() == "topicdelete" and one.text is not None:
                self.imported.take(one.text, f"qpid {key}", "durable subscriptions are kept")

    def _option(self, element: Element, key: str) -> None:
        option, value = element.attributes.get("name"), element.attributes.get("value")
        if (
            option is None
            or value is None
            or option.value != "delete-persistent"
            or flag(value.value) is None
        ):
            self.imported.leave_out(element, "It isn't an option of this policy.")
        elif flag(value.value):
            self.imported.leave_out(element, _DELETES)
        else:
            for leaf in (option, value):
                self.imported.take(leaf, f"qpid {key}", "durable subscriptions are kept")


def _others(imported: Imported, element: Element) -> None:
    """What stands around the limits of topics."""
    # What a queue sets stands in it, or in an element of the queue's name.
    within = [one for child in element.children for one in (child, *child.children)]
    if element.name == "queue" and any(one.name in ("consumer", _DETECTION) for one in within):
        imported.leave_out(element, _ONE_QUEUE)
    elif element.name in _REASONS:
        imported.leave_out(element, _REASONS[element.name])
    elif element.name in _NOT_POLICY:
        imported.not_policy(element)
    else:
        names = (
            (element.text_of("name"), element.attributes.get("name"))
            if element.name in ("virtualhost", "queue", "topic")
            else ()
        )
        for leaf in names:
            if leaf is not None:
                imported.not_policy(leaf)
        for child in element.children:
            _others(imported, child)
