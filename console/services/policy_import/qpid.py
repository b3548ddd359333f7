"""Qpid's `<topic key="..."><consumer>` elements (seed 004): depth, messageAge and messageCount by topic key."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from console.services.policy_import.imported import Imported, flag, parse_xml, whole

# The document prints `maessageAge`; files that were copied from it say so too.
_LIMITS = {"depth": "depth", "messageAge": "message_age", "maessageAge": "message_age", "messageCount": "message_count"}


def read(text: str) -> Imported:
    """Each topic with a consumer element as an entry of `qpid`; queues are left out."""
    imported = Imported()
    root = parse_xml(text)
    entries = [
        entry for element in root.iter("topic") if (entry := _topic(imported, element)) is not None
    ]
    for queue in root.iter("queue"):
        if queue.find("consumer") is not None:
            imported.leave_out(f'queue name="{queue.get("name", "")}"', "<consumer>", "Sluice has topics and no queues.")
    if entries:
        imported.document["qpid"] = entries
    return imported


def topic_pattern(key: str) -> str:
    """An AMQP topic key as a pattern: `*` is one word in both; `#` at the end is `>` (and the words before it alone)."""
    return ">" if key == "#" else key[:-2] + ".>" if key.endswith(".#") else key


def _topic(imported: Imported, element: Element) -> dict[str, Any] | None:
    key, consumer = element.get("key", ""), element.find("consumer")
    where = f'topic key="{key}"'
    if consumer is None:
        return None
    if "#" in key[:-1] or not key:
        imported.leave_out(where, key or "no key", "A # is taken over at the end of a key only.")
        return None
    if key.endswith(".#"):
        imported.leave_out(where, f"{key[:-2]} itself", "Here > stands for at least one more word; add an entry for it.")
    made: dict[str, Any] = {"topic": topic_pattern(key)}
    for child in consumer:
        if child.tag in _LIMITS:
            value = whole(child.text)
            if value is None or value < 1:
                imported.leave_out(where, f"<{child.tag}>{child.text}", "It isn't a whole number above 0.")
            else:
                made[_LIMITS[child.tag]] = value
        elif child.tag == "policy":
            made |= _policy(imported, child, where)
        else:
            imported.leave_out(where, f"<{child.tag}>", "Sluice has no setting that does this.")
    return made


def _policy(imported: Imported, element: Element, where: str) -> dict[str, Any]:
    name = element.get("name", "")
    if name.lower() not in ("delete", "topicdelete"):
        imported.leave_out(where, f'policy name="{name}"', "Only the Delete policy is taken over.")
        return {}
    made: dict[str, Any] = {}
    for option in element.iter("option"):
        value = flag(option.get("value"))
        if option.get("name") == "delete-persistent" and value is not None:
            made["delete_persistent"] = value
        else:
            imported.leave_out(where, f'option name="{option.get("name")}"', "It isn't an option of this policy.")
    if made.get("delete_persistent"):
        del made["delete_persistent"]
        imported.leave_out(
            where, "delete-persistent=true",
            "It removes what durable subscriptions are owed: set it here by hand, with its confirmation.",
        )
    return made
