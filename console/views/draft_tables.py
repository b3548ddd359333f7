"""Tables of a draft's parts for its page, in the terms and units of the original systems' documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_core.config import PolicyDocument
from broker_core.config.preset_settings import DEFAULT_CLIENT_MAX_CAPACITY, PRESETS, PresetField, Table
from broker_core.config.rule_terms import EnforcementMode, Signal
from broker_core.config.transports import RESTRICTED_FIELDS, TRANSPORT_DEFAULTS
from broker_core.errors import OperatorError
from broker_core.slow_clients.rules.worst_case import WorstCaseAction, worst_case_actions
from console.forms.journaled_topics import write_line
from console.forms.rule import format_limit, rule_signals
from console.models import PolicyDraft
from console.services.draft_parts import list_entries, transport_settings
from console.units import labels
from console.units.format import duration, size

_TITLES = {
    "xap": "XAP: slow consumers",
    "activemq": "ActiveMQ: policyEntry by topic",
    "qpid": "Qpid: consumer by topic",
}
"""Titles of the presets' tables."""
_KEYS = ("topic", "user", "transport", "mode")
"""Fields of an entry that are not settings."""


def tables(draft: PolicyDraft) -> list[dict[str, Any]]:
    """Return the draft's lists, each with columns and rows."""
    acts = _worst_case_actions(draft)
    presets = [
        {
            "part": part,
            "title": title,
            "columns": ("For", "Settings", "Mode", "Acts within"),
            "add": "Add an entry",
            "rows": [
                _row(part, number, _preset(PRESETS[part], entry, _at(acts[part], number)))
                for number, entry in enumerate(list_entries(draft, part))
            ],
        }
        for part, title in _TITLES.items()
    ]
    found = [
        *presets,
        _rules(draft, acts["rules"]),
        _users(draft),
        _entitlements(draft),
        _quotas(draft),
        _destinations(draft),
    ]
    for table in found:  # on a small screen each cell shows its heading
        for row in table["rows"]:
            row["secret"] = table["part"] == "users"
            row["cells"] = list(zip(table["columns"], row["cells"], strict=True))
    return found


def transports(draft: PolicyDraft) -> list[dict[str, Any]]:
    """Return the draft's transports for display."""
    return [
        {
            **transport,
            "limits": _limits(transport),
            "settings": _kind_settings(transport),
            "for_it_alone": _alone(draft, transport["name"]),
            "tls": transport.get("tls"),
            "authentication": transport.get("authentication") or "none",
        }
        for transport in draft.document.get("transports") or []
    ]


def _kind_settings(transport: Mapping[str, Any]) -> list[str]:
    """Return the settings that only some kinds of transports have, where they differ from the default."""
    stated = {name: transport[name] for name in RESTRICTED_FIELDS if name in transport}
    return [
        f"{name.replace('_', ' ')} {_format_value(value)}"
        for name, value in stated.items()
        if value != TRANSPORT_DEFAULTS[name]
    ]


def _format_value(value: Any) -> str:
    """Return a setting's value as text."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _alone(draft: PolicyDraft, name: str) -> list[str]:
    """Return the settings that would be removed with a transport; empty for a draft with values of wrong
    types.
    """
    try:
        return transport_settings(draft.document, name)
    except (AttributeError, TypeError):
        return []


def limits(draft: PolicyDraft) -> list[tuple[str, str]]:
    """Return the instance's limits and journaled topics as pairs of label and value."""
    document = draft.document
    pool, client, instance = (document.get(key) or {} for key in ("pool", "client_policy", "instance"))
    memory, disk = (
        size(value) if isinstance(value := pool.get(key), int) else "default"
        for key in ("message_memory_limit", "message_disk_limit")
    )
    age = client.get("client_message_age_limit_ms")
    return [
        ("MessageMemoryLimit", memory),
        ("MessageDiskLimit", disk),
        ("ClientMaxCapacity", f"{client.get('client_max_capacity') or DEFAULT_CLIENT_MAX_CAPACITY} %"),
        ("ClientMessageAgeLimit", duration(age) if isinstance(age, int) else "no limit"),
        ("Journaled topics", ", ".join(map(write_line, instance.get("journaled_topics") or [">"]))),
        ("Excluded topics", ", ".join(map(str, instance.get("unjournaled_topics") or [])) or "none"),
        ("Sync members of the group", ", ".join(map(str, instance.get("sync_members") or [])) or "none"),
        ("Sync topics", ", ".join(map(str, instance.get("sync_topics") or [])) or "none"),
    ]


def _limits(source: Mapping[str, Any]) -> int:
    """Return the number of limits that a transport sets itself."""
    parts = [source.get(key) or {} for key in ("pool", "client_policy")]
    return sum(value is not None for part in parts if isinstance(part, Mapping) for value in part.values())


def _rules(draft: PolicyDraft, acts: list[list[WorstCaseAction]]) -> dict[str, Any]:
    entries = list_entries(draft, "rules")
    signals = rule_signals(entries)
    rows = [
        _row("rules", number, _rule(rule, signals, _at(acts, number))) for number, rule in enumerate(entries)
    ]
    return {
        "part": "rules",
        "title": "Custom rules",
        "columns": ("Rule", "When", "Does", "Mode", "Acts within"),
        "rows": rows,
        "add": "Add a rule",
    }


def _users(draft: PolicyDraft) -> dict[str, Any]:
    rows = [
        _row(
            "users",
            number,
            [
                _cell(user.get("name")),
                _cell(_proofs(user)),
                _cell(user.get("groups")),
                _cell(user.get("clients"), "any"),
            ],
        )
        for number, user in enumerate(list_entries(draft, "users"))
    ]
    return {
        "part": "users",
        "title": "Users of transports",
        "columns": ("Name", "Proofs", "Groups", "Client names"),
        "rows": rows,
        "add": "Add a user",
    }


def _entitlements(draft: PolicyDraft) -> dict[str, Any]:
    keys = (
        ("who", ""),
        ("transports", "all"),
        ("publish", "nothing"),
        ("subscribe", "nothing"),
        ("filter", "none"),
    )
    rows = [
        _row("entitlements", number, [_cell(one.get(key), empty) for key, empty in keys])
        for number, one in enumerate(list_entries(draft, "entitlements"))
    ]
    return {
        "part": "entitlements",
        "title": "Entitlements on restricted transports",
        "rows": rows,
        "add": "Add an entitlement",
        "columns": ("Users and groups", "Transports", "May publish to", "May subscribe to", "Filter"),
    }


def _quotas(draft: PolicyDraft) -> dict[str, Any]:
    rows = []
    for number, entry in enumerate(list_entries(draft, "quotas")):
        targets = [f"{key} {entry[key]}" for key in ("user", "transport") if entry.get(key)]
        rows.append(_row("quotas", number, [targets or ["everybody"], _settings(PRESETS["quotas"], entry)]))
    return {
        "part": "quotas",
        "title": "Quotas of users and clients",
        "columns": ("For", "Settings"),
        "rows": rows,
        "add": "Add a quota",
    }


def _destinations(draft: PolicyDraft) -> dict[str, Any]:
    rows = [
        _row(
            "destinations",
            number,
            [
                [str(one.get("name") or "")],
                _cell(one.get("addresses")),
                [str(one.get("topic") or ">"), *([str(one["filter"])] if one.get("filter") else [])],
                [str(one.get("durability") or "async")],
                ["off" if one.get("enabled") is False else "on"],
            ],
        )
        for number, one in enumerate(list_entries(draft, "destinations"))
    ]
    return {
        "part": "destinations",
        "title": "Destinations at other sites",
        "columns": ("Name", "Addresses", "Carries", "Acknowledgements", "Is"),
        "rows": rows,
        "add": "Add a destination",
    }


def _row(part: str, number: int, cells: list[list[str]]) -> dict[str, Any]:
    """Return a row of a table."""
    return {"part": part, "index": number, "cells": cells, "called": " ".join(cells[0])}


def _cell(value: Any, empty: str = "none") -> list[str]:
    """Return the lines of a table cell; `empty` if there is no value."""
    if isinstance(value, (list, tuple)):
        return [str(one) for one in value] or [empty]
    return [str(value)] if value not in (None, "") else [empty]


def _preset(table: Table, entry: Mapping[str, Any], acts: list[WorstCaseAction]) -> list[list[str]]:
    """Return the cells of a preset's entry."""
    scope = [str(entry.get("topic") or "")] + (
        [f"transport {entry['transport']}"] if entry.get("transport") else []
    )
    mode = labels.mode_label(entry.get("mode") or table["mode"].default)
    return [[word for word in scope if word] or ["instance"], _settings(table, entry), [mode], _within(acts)]


def _settings(table: Table, entry: Mapping[str, Any]) -> list[str]:
    """Return the settings of an entry as texts."""
    return [
        _setting(table.get(key), key, value)
        for key, value in entry.items()
        if key not in _KEYS and value is not None
    ]


def _setting(row: PresetField | None, key: str, value: Any) -> str:
    """Return a setting in its system's term and unit. A draft may contain unknown settings."""
    return (
        f"{row.word or key} {_word(value)} {row.unit}".strip() if row is not None else f"{key} {_word(value)}"
    )


def _rule(
    rule: Mapping[str, Any], signals: Mapping[str, str], acts: list[WorstCaseAction]
) -> list[list[str]]:
    """Return the cells of a rule."""
    scope = rule.get("scope") if isinstance(rule.get("scope"), Mapping) else {}
    named = [f"{key} {value}" for key, value in (scope or {}).items() if value]
    ladder = [rung for rung in rule.get("ladder") or () if isinstance(rung, Mapping)]
    return [
        [str(rule.get("name")), *(named or ["instance"])],
        _condition_texts(rule, signals),
        [labels.rung(rung) for rung in ladder] or ["as its rule"],
        [_rule_mode(rule, named)],
        _within(acts),
    ]


def _rule_mode(rule: Mapping[str, Any], named: list[str]) -> str:
    """Return the mode of a rule. An entry with a scope and no mode has the mode of its rule."""
    if rule.get("mode"):
        return labels.mode_label(rule["mode"])
    return "as its rule" if named else labels.mode_label(EnforcementMode.SHADOW)


def _condition_texts(rule: Mapping[str, Any], signals: Mapping[str, str]) -> list[str]:
    """Return the condition of a rule as texts."""
    signal = str(rule.get("signal") or signals.get(str(rule.get("name")), ""))
    texts = [labels.signal_label(signal)] if signal in set(Signal) else []
    texts += [str(rule["shape"]).replace("_", " ")] if rule.get("shape") else []
    for key in ("limit", "clear"):
        if isinstance(rule.get(key), int):
            texts.append(f"{labels.OF_RULES[key]} {format_limit(rule[key], signal)}")
    texts += [f"{rule['percent']} % of the pool’s limit"] if rule.get("percent") else []
    texts += [f"{rule['count']} times"] if rule.get("count") else []
    for key in ("hold_ms", "window_ms", "check_ms", "cooldown_ms"):
        if isinstance(rule.get(key), int) and rule[key]:
            texts.append(f"{labels.OF_RULES[key]} {duration(rule[key])}")
    return texts


def _proofs(user: Mapping[str, Any]) -> list[str]:
    """Return the kinds of credentials of a user."""
    named = [f"certificate {user['certificate']}"] if user.get("certificate") else []
    return [f"{key} set" for key in ("password", "token") if user.get(key)] + named


def _word(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _within(actions: list[WorstCaseAction]) -> list[str]:
    """Return each action with the longest time from crossing the limit to the action."""
    return [
        f"{labels.action_label(action.action).does}: "
        f"{'at once' if not action.worst_case_ms else duration(action.worst_case_ms)}"
        for action in actions
    ]


def _at(acts: list[list[WorstCaseAction]], number: int) -> list[WorstCaseAction]:
    """Return the worst-case actions of an entry; empty if there are none."""
    return acts[number] if number < len(acts) else []


def _worst_case_actions(draft: PolicyDraft) -> dict[str, list[list[WorstCaseAction]]]:
    """Return the worst-case actions of each entry; empty for an invalid draft."""
    try:
        policy = PolicyDocument.from_dict({**draft.document, "revision": 1})
    except OperatorError:
        return {part: [] for part in ("rules", *_TITLES)}
    return worst_case_actions(policy)
