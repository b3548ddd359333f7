"""Labels of the broker's codes for pages: signals, reasons, actions, causes of loss, settings.

Pages never show a code without its label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker_core.config import rule_terms
from broker_core.config.preset_settings import PRESETS
from broker_core.config.rule_terms import DecisionReason, EnforcementMode, PolicyAction, Signal, Unit
from broker_core.delivery.account import DiscardCause
from console.units.format import NONE, duration, with_unit

SIGNALS: Final[Mapping[Signal, str]] = {
    Signal.POOL_MEMORY: "memory of the pool",
    Signal.POOL_DISK: "spools of the pool",
    Signal.OUTBOUND_BYTES: "memory of the client",
    Signal.OUTBOUND_MESSAGES: "number of messages in memory",
    Signal.SPOOL_BYTES: "spool",
    Signal.SPOOL_AGE: "time offlined",
    Signal.CONFLATION_BYTES: "bytes in conflation",
    Signal.BACKLOG_BYTES: "backlog in bytes",
    Signal.BACKLOG_MESSAGES: "backlog in messages",
    Signal.WAITING_MESSAGES: "number of unsent messages",
    Signal.OLDEST_AGE: "oldest age",
    Signal.DRAIN_RATE: "read rate",
    Signal.WRITE_BLOCKED: "time with a blocked socket",
    Signal.WINDOW_FULL: "time the window was full",
    Signal.UNACKED_MESSAGES: "unacknowledged messages",
    Signal.UNACKED_AGE: "age of the oldest unacknowledged message",
    Signal.ACK_SILENCE: "time without an acknowledgement",
    Signal.ACKNOWLEDGED_RATE: "acknowledgement rate",
    Signal.PINNED_BYTES: "log retained for the client",
    Signal.USER_PINNED_BYTES: "log retained for its user",
}
"""Label of each signal."""
REASONS: Final[Mapping[DecisionReason, str]] = {
    DecisionReason.POOL_MEMORY: "Memory of its pool",
    DecisionReason.MEMORY_CAPACITY: "Memory share of the client",
    DecisionReason.DISK: "Spools of its pool",
    DecisionReason.CAPACITY: "Its share of the spools",
    DecisionReason.AGE: "Age of its oldest message",
    DecisionReason.BACKLOG: "Its backlog",
    DecisionReason.CONFLATION: "Bytes in conflation",
    DecisionReason.DRAIN_RATE: "Read rate too low",
    DecisionReason.WRITE_BLOCKED: "Socket blocked",
    DecisionReason.WINDOW_FULL: "Window full",
    DecisionReason.UNACKED: "Unacknowledged messages",
    DecisionReason.ACK_SILENCE: "No acknowledgements",
    DecisionReason.ACKNOWLEDGED_RATE: "Acknowledgement rate too low",
    DecisionReason.PINNED: "Retained log",
    DecisionReason.RESOURCE_ERROR: "Backlog over its topic’s limit",
    DecisionReason.SPOOL_FAILED: "Spool not writable",
}
"""Label of each reason for a decision."""


SIGNALS_BY_CODE: Final = {code.value: word for code, word in SIGNALS.items()}
"""Label of each signal, by its code as text."""


class ActionLabel(NamedTuple):
    """Labels of an action: as an operator selects it, when it was done, and when it was only recorded
    (shadow mode).
    """

    does: str
    done: str
    would: str
    icon: str


ACTION_LABELS: Final[Mapping[PolicyAction, ActionLabel]] = {
    PolicyAction.NOTIFY: ActionLabel(
        "notify the operators", "Operators notified", "Operators would be notified", "bolt"
    ),
    PolicyAction.WARN: ActionLabel("warn it", "Warned", "Would be warned", "alert-triangle"),
    PolicyAction.CONFLATE: ActionLabel(
        "newest value only", "Conflated", "Would be conflated", "progress-down"
    ),
    PolicyAction.DISCARD_OLDEST: ActionLabel(
        "discard its oldest", "Oldest discarded", "Oldest would be discarded", "x"
    ),
    PolicyAction.OFFLINE: ActionLabel("offline it", "Offlined", "Would be offlined", "database-import"),
    PolicyAction.CONTINUE_FROM_JOURNAL: ActionLabel(
        "continue from the log", "Moved to the log", "Would be moved to the log", "history"
    ),
    PolicyAction.PAUSE: ActionLabel("pause it", "Paused", "Would be paused", "player-pause"),
    PolicyAction.CANCEL_SUBSCRIPTION: ActionLabel(
        "end the subscription", "Subscription ended", "Subscription would be ended", "circle-x"
    ),
    PolicyAction.ASK_TO_CLOSE: ActionLabel(
        "ask it to close", "Close requested", "Close would be requested", "plug-x"
    ),
    PolicyAction.DISCONNECT: ActionLabel("disconnect it", "Disconnected", "Would be disconnected", "plug-x"),
    PolicyAction.REFUSE: ActionLabel(
        "disconnect and refuse it", "Disconnected and refused", "Would be disconnected and refused", "plug-x"
    ),
    PolicyAction.DELETE_DURABLE: ActionLabel(
        "delete its durable subscription", "Durable deleted", "Durable would be deleted", "circle-x"
    ),
}
"""Labels of each action."""
MODES: Final[Mapping[EnforcementMode, str]] = {
    EnforcementMode.OFF: "off",
    EnforcementMode.SHADOW: "recorded only",
    EnforcementMode.ENFORCE: "carried out",
}
"""Label of each enforcement mode."""
CAUSES: Final[Mapping[DiscardCause, str]] = {
    DiscardCause.DISCARDED: "discarded by a policy",
    DiscardCause.CONFLATED: "replaced by a newer value",
    DiscardCause.CONFLATED_ON_REQUEST: "replaced by a newer value, as requested",
    DiscardCause.EXPIRED: "waited longer than a policy allows",
    DiscardCause.DISCONNECTED: "the connection ended",
    DiscardCause.STORED: "stored in the log",
    DiscardCause.UNSUBSCRIBED: "it unsubscribed",
    DiscardCause.CANCELLED: "its subscription was ended",
    DiscardCause.REFUSED: "refused by the client",
    DiscardCause.RETURNED: "returned for another consumer",
    DiscardCause.REMOVED: "removed from the log",
}
"""Label of each cause of undelivered messages."""
OF_RULES: Final = {
    "limit": "limit",
    "percent": "share of the pool’s limit",
    "hold_ms": "minimum time over the limit",
    "window_ms": "window",
    "count": "times",
    "clear": "clears at",
    "guard_bytes": "minimum backlog",
    "check_ms": "check interval",
    "cooldown_ms": "pause after an action",
    "mode": "mode",
    "signal": "signal",
    "shape": "compared",
    "ladder": "does",
    "choose": "chooses",
    "protected": "protected clients",
    "confirm_delete": "deletion confirmed",
}
"""Labels of a rule's fields."""
_HALVES: Final = {"memory": "memory", "disk": "spool"}
"""Labels of settings that compile to one rule for memory and one for disk."""
_BYTES = ("_limit", "_bytes", "journal_size")
"""Endings of settings in bytes."""


def signal_label(code: object) -> str:
    """Return a signal's label; the code itself for an unknown signal."""
    return SIGNALS.get(Signal(str(code)), "") if str(code) in set(Signal) else _plain(code)


def reason_label(code: object) -> str:
    """Return the label of a decision's reason."""
    return (
        REASONS[DecisionReason(str(code))] if str(code) in set(DecisionReason) else _plain(code).capitalize()
    )


def cause_label(code: object) -> str:
    """Return the label of a cause of undelivered messages."""
    return CAUSES[DiscardCause(str(code))] if str(code) in set(DiscardCause) else _plain(code)


def mode_label(code: object) -> str:
    """Return the label of an enforcement mode."""
    return MODES[EnforcementMode(str(code))] if str(code) in set(EnforcementMode) else _plain(code)


def action_label(code: object) -> ActionLabel:
    """Return the labels of an action."""
    plain = _plain(code).capitalize()
    known = str(code) in set(PolicyAction)
    return (
        ACTION_LABELS[PolicyAction(str(code))]
        if known
        else ActionLabel(plain.lower(), plain, f"Would: {plain.lower()}", "bolt")
    )


def pool_label(name: object) -> str:
    """Return a pool's transport name, or "shared" for the instance's pool."""
    text = str(name or "")
    return "shared" if text == "instance" else text.removeprefix("transport:") or NONE


def setting_label(path: object) -> str:
    """Return a setting's name in its own system: "ClientMaxCapacity" for `amps.client_max_capacity`."""
    group, _, field = str(path).rpartition(".")
    row = PRESETS.get(group, {}).get(field) or PRESETS.get(group, {}).get(f"{field}_ms")
    if row is not None:
        return row.word or _plain(field)
    if field in _HALVES and group:  # one setting that compiles to two rules
        return f"{setting_label(group)} ({_HALVES[field]})"
    return f"{group}: {OF_RULES.get(field, _plain(field))}" if field in OF_RULES else str(path)


def path_label(text: object) -> str:
    """Return a readable path in a policy document: "tcp: MessageMemoryLimit" for
    `tcp.pool.message_memory_limit`.
    """
    *prefix, field = [
        part for part in str(text).split(".") if part not in ("pool", "client_policy", "instance")
    ] or [str(text)]
    row = next((table[field] for table in PRESETS.values() if field in table and table[field].word), None)
    return ": ".join(
        [
            *([".".join(prefix)] if prefix else []),
            row.word if row is not None else OF_RULES.get(field, _plain(field)),
        ]
    )


def setting_value(path: object, value: Any, signal_code: object = "") -> str:
    """Return a setting's value with its unit, as typed into forms."""
    group, _, field = str(path).rpartition(".")
    row = PRESETS.get(group, {}).get(field)
    if value is None or value == "":
        return "no limit" if row is not None and row.default_words == "no limit" else "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field == "mode":
        return mode_label(value)
    if field == "signal":
        return signal_label(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(rung(one) for one in value) or "none"
    if not isinstance(value, (int, float)):
        return str(value)
    return _measured(value, _unit(field, row.unit if row is not None else "", signal_code))


def rule_sentence(rule: Mapping[str, Any]) -> str:
    """Return a custom rule as a sentence.

    Example: "When the oldest age of prices.> for desk-* passes 20.0 s, disconnect it".
    """
    scope = rule.get("scope") if isinstance(rule.get("scope"), Mapping) else {}
    words = [f"When the {signal_label(rule.get('signal') or rule.get('name'))}"]
    words += [f"of {scope['topic']}"] if scope and scope.get("topic") else []
    targets = [
        f"{key} {value}" if key != "client" else str(value)
        for key, value in (scope or {}).items()
        if value and key != "topic"
    ]
    words += [f"for {', '.join(targets)}"] if targets else []
    words.append("falls below" if rule.get("shape") == "rate_below" else "passes")
    path = f"{rule.get('name')}.limit"
    words.append(
        f"{rule['percent']} % of the pool’s"
        if rule.get("percent")
        else setting_value(path, rule.get("limit"), rule.get("signal"))
    )
    words += [f"for {duration(rule['hold_ms'])}"] if rule.get("hold_ms") else []
    does = [rung(one) for one in rule.get("ladder") or ()]
    return f"{' '.join(words)}, {', then '.join(does) or 'notify the operators'}"


def audit_label(code: object) -> str:
    """Return the label of an audit event's action: "Policy: change" for `policy.change`."""
    about, _, operation = str(code or NONE).partition(".")
    label = f"{_plain(about)}: {_plain(operation.replace('.', ' '))}" if operation else _plain(about)
    return label[:1].upper() + label[1:]


def _measured(value: float, unit: str) -> str:
    """Return a number with its unit."""
    return f"{value:g} %" if unit == "%" else with_unit(value, unit)


def signal_unit(signal_code: object) -> str:
    """Return a signal's unit; "" for an unknown signal."""
    known = str(signal_code) in set(Signal)
    return rule_terms.SIGNALS[Signal(str(signal_code))].unit if known else ""


def _unit(field: str, known: str, signal_code: object) -> str:
    """Return the unit of a rule's field."""
    if known:
        return known
    if field in ("limit", "clear") and (unit := signal_unit(signal_code)):
        return unit
    if field.endswith("_ms"):
        return Unit.MILLISECONDS
    return Unit.BYTES if field.endswith(_BYTES) and field != "limit" else "%" if field == "percent" else ""


def rung(one: Any) -> str:
    """Return a rung with its percentage of the limit and its times: "disconnect it after 10.0 s"."""
    if not isinstance(one, Mapping):
        return str(one)
    words = [action_label(one.get("action")).does]
    words += [f"at {one['at_percent']} %"] if one.get("at_percent") not in (None, 100) else []
    words += [
        f"{word} {duration(one[key])}"
        for key, word in (("after_ms", "after"), ("for_ms", "for"))
        if isinstance(one.get(key), int) and one[key]
    ]
    return " ".join(words)


def _plain(code: object) -> str:
    """Return a code with spaces instead of underscores."""
    return str(code or NONE).replace("_", " ").removesuffix(" ms")
