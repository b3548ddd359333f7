"""ActiveMQ's policyEntry elements (seed 003): pending message limits and slow consumer strategies, by topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element

from console.services.policy_import.imported import Imported, flag, number, others, parse_xml, whole

_ABORT: dict[str, tuple[str, Callable[[str | None], Any]]] = {
    "maxSlowCount": ("max_slow_count", whole),
    "maxSlowDuration": ("max_slow_duration", whole),
    "checkPeriod": ("check_period", whole),
    "abortConnection": ("abort_connection", flag),
}
NO_SUCH_SETTING = "Sluice has no setting that does this."


def read(text: str) -> Imported:
    """Each `<policyEntry topic="...">` as an entry of `activemq`; entries of queues are left out."""
    imported = Imported()
    entries: list[dict[str, Any]] = []
    for element in parse_xml(text).iter("policyEntry"):
        topic = element.get("topic")
        where = f'policyEntry topic="{topic}"'
        if topic is None:
            imported.leave_out("policyEntry", f'queue="{element.get("queue", "")}"', "Sluice has topics and no queues.")
        elif any(entry["topic"] == topic for entry in entries):
            imported.leave_out(where, "a second entry", "There is one entry for a topic; the first was taken.")
        else:
            entries.append({"topic": topic, **_entry(imported, element, where)})
    if entries:
        imported.document["activemq"] = entries
    return imported


def _entry(imported: Imported, element: Element, where: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    prefetch = whole(element.get("topicPrefetch"))
    if prefetch is not None:
        made["prefetch"] = prefetch
    others(imported, where, element.attrib, {"topic", "topicPrefetch"}, NO_SUCH_SETTING)
    for child in element:
        if child.tag == "pendingMessageLimitStrategy":
            made |= _pending(imported, child, where)
        elif child.tag == "slowConsumerStrategy":
            made |= _slow(imported, child, where)
        else:
            imported.leave_out(where, f"<{child.tag}>", NO_SUCH_SETTING)
    return made


def _pending(imported: Imported, element: Element, where: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for child in element:
        if child.tag == "constantPendingMessageLimitStrategy":
            made["constant_pending_message_limit_strategy"] = _or_left_out(imported, where, child, "limit", whole, -1)
        elif child.tag == "prefetchRatePendingMessageLimitStrategy":
            # Its own default is 0.5; guides that print 2.5 or 3 set it.
            made["prefetch_rate_pending_message_limit_strategy"] = _or_left_out(imported, where, child, "multiplier", number, 0.5)
        else:
            imported.leave_out(where, f"<{child.tag}>", NO_SUCH_SETTING)
    return made


def _slow(imported: Imported, element: Element, where: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for child in element:
        if child.tag != "abortSlowConsumerStrategy":
            imported.leave_out(where, f"<{child.tag}>", "Only abortSlowConsumerStrategy is taken over.")
            continue
        made["abort_slow_consumer_strategy"] = True
        for name, (key, convert) in _ABORT.items():
            if name in child.attrib:
                made[key] = _or_left_out(imported, where, child, name, convert, None)
        others(imported, f"{where} abortSlowConsumerStrategy", child.attrib, set(_ABORT), NO_SUCH_SETTING)
    return {key: value for key, value in made.items() if value is not None}


def _or_left_out(
    imported: Imported, where: str, element: Element, name: str, convert: Callable[[str | None], Any], default: Any
) -> Any:
    """An attribute's value; the default when it is missing, or is left out because it can't be read."""
    if name not in element.attrib:
        return default
    value = convert(element.get(name))
    if value is None:
        imported.leave_out(where, f'{name}="{element.get(name)}"', "It isn't a value of this setting.")
        return default
    return value
