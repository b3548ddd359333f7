"""Preview of a policy change as sentences: one per client, or one for many clients with the same change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from broker_core.config.preset_settings import PRESETS
from broker_core.config.rule_terms import FINAL_ACTIONS, EnforcementMode, PolicyAction
from broker_core.documents.instance import (
    AffectedEntry,
    ClosedConnectionEntry,
    LogSubscriberEntry,
    PolicyEffect,
    SettingChange,
)
from broker_core.documents.system_records import DecisionEntry
from console.units import labels

NOT_SET: Final = "not set"
"""Origin of a setting that the other policy lacks (`slow_clients.rules.compare`)."""
MAX_NAMES = 5
"""Maximum client names in a line; further clients are counted."""
CUT_OFF = {
    "transport_closed": "transport removed, disabled or moved",
    "access_changed": "permissions change: must log on again",
}
"""Reasons for closing a connection, by code."""


class EffectLine(NamedTuple):
    """Line of a preview: clients with the same effect for the same reason.

    `kind`: cut_off, unrecorded, part_recorded, disconnect, offline, act; held (beyond a rollout's
    allowance, not carried out); or change. `count` may exceed the number of `names`. `recorded_only`:
    shadow mode.
    """

    kind: str
    sentence: str
    names: list[str]
    count: int  # type: ignore[assignment]  # hides tuple.count
    recorded_only: bool = False

    @property
    def carried_out(self) -> bool:
        """Whether the broker acts on the clients."""
        return not self.recorded_only and self.kind != "held"

    @property
    def hidden_count(self) -> int:
        """Number of clients that are not named."""
        return self.count - len(self.names)


class EffectSummary(NamedTuple):
    """Effect of a preview: immediate effects, worst first, and changed settings, with the number of
    clients.
    """

    at_once: list[EffectLine]
    changes: list[EffectLine]
    clients: int
    touched: int

    @property
    def severe(self) -> bool:
        """Whether publishing must be confirmed.

        True if clients are disconnected or acted on, or if the revision would be withdrawn immediately.
        """
        return any(not line.recorded_only for line in self.at_once)

    @property
    def headline(self) -> str:
        """Summary in one sentence, also for an empty effect."""
        parts = [f"{_clients(line.count)} {_HEADS[line.kind]}" for line in self.at_once if line.carried_out]
        exceeding = sum(line.count for line in self.at_once if line.kind == "held")
        if exceeding:
            parts.append(
                f"{exceeding:,} decisions exceed the allowance: Sluice withdraws the revision immediately"
            )
        shadow = sum(line.count for line in self.at_once if line.recorded_only)
        if shadow:
            parts.append(f"{_clients(shadow)} would be acted on (recorded only)")
        return (", ".join(parts) or "No client is disconnected or acted on") + "."


_HEADS = {
    "cut_off": "cut off",
    "unrecorded": "without new records",
    "part_recorded": "with only a part of their records",
    "disconnect": "disconnected",
    "offline": "offlined",
    "act": "acted on",
    "held": "",
}
"""Verbs of the headline by kind of line, worst first."""
_READERS: Final = {
    "bookmark": "bookmark subscription",
    "durable": "durable subscription",
    "replay": "managed replay",
    "queue": "queue",
    "shared": "shared subscription",
}
"""Names of subscriptions that read the log, by kind."""


def summarise_effect(effect: PolicyEffect, signals: Mapping[str, str] | None = None) -> EffectSummary:
    """Return an effect as lines.

    `signals`: signals of the rules by name. A limit is shown in its signal's unit.
    """
    at_once = [*_cut_off(effect), *_unrecorded(effect), *_acted_on(effect)]
    return EffectSummary(
        at_once, _changes(effect.touched, signals or {}), effect.clients, effect.touched_in_all
    )


def _cut_off(effect: PolicyEffect) -> list[EffectLine]:
    """Return a line per reason for closed connections. Unlisted ones are counted in the first line."""
    by_code: dict[str, list[ClosedConnectionEntry]] = {}
    for one in effect.cut_off:
        by_code.setdefault(one.code, []).append(one)
    unlisted = effect.cut_off_in_all - len(effect.cut_off)
    made = []
    for index, (code, entries) in enumerate(by_code.items()):
        count = len(entries) + (unlisted if index == 0 else 0)
        made.append(EffectLine("cut_off", f"cut off: {CUT_OFF.get(code, code)}", _names(entries), count))
    if not made and unlisted:
        made.append(EffectLine("cut_off", "cut off", [], unlisted))
    return made


def _unrecorded(effect: PolicyEffect) -> list[EffectLine]:
    """Return a line per topic that is no longer journaled although subscriptions read it from the log,
    worst first.
    """
    groups: dict[tuple[str, str, str], list[LogSubscriberEntry]] = {}
    for one in effect.unrecorded:
        groups.setdefault((one.extent, one.topic, one.subscription_kind), []).append(one)
    unlisted = effect.unrecorded_in_all - len(effect.unrecorded)
    made = []
    for index, ((extent, topic, kind), entries) in enumerate(groups.items()):
        gets, unrecorded = (
            ("gets no more records", "it") if extent == "all" else ("gets only a part", "all of it")
        )
        count = len(entries) + (unlisted if index == 0 else 0)
        sentence = f"{_READERS[kind]} of {topic} {gets}: the policy no longer journals {unrecorded}"
        made.append(
            EffectLine("unrecorded" if extent == "all" else "part_recorded", sentence, _names(entries), count)
        )
    return made


def _acted_on(effect: PolicyEffect) -> list[EffectLine]:
    """Return a line per rule and action.

    Unlisted decisions are counted in the first line with the same outcome.
    """
    groups: dict[tuple[str, str, str], list[DecisionEntry]] = {}
    remaining = {
        "enforced": effect.enforced_in_all,
        "held": effect.held_in_all,
        "recorded": effect.acted_on_in_all - effect.enforced_in_all - effect.held_in_all,
    }
    for one in effect.acted_on:
        fate = _fate(one)
        remaining[fate] -= 1
        groups.setdefault((fate, one.action, one.rule), []).append(one)
    made = []
    for (fate, action, _), entries in groups.items():
        unlisted, remaining[fate] = max(0, remaining[fate]), 0
        shadow = fate == "recorded"
        made.append(
            EffectLine(
                "held" if fate == "held" else _kind(action),
                _sentence(entries, fate),
                _names(entries),
                len(entries) + unlisted,
                shadow,
            )
        )
    for fate, unlisted in remaining.items():
        if unlisted > 0:  # all of them concern clients that the caller must not see
            made.append(
                EffectLine(
                    "held" if fate == "held" else "act", _UNSEEN[fate], [], unlisted, fate == "recorded"
                )
            )
    order = list(_HEADS)
    return sorted(made, key=lambda line: (line.recorded_only, order.index(line.kind), -line.count))


_UNSEEN: Final = {
    "enforced": "acted on",
    "held": "no action: the rollout's allowance is used up",
    "recorded": "action on",
}
"""Sentences about decisions on clients that the caller must not see."""


def _fate(one: DecisionEntry) -> str:
    """Return the outcome of a decision: enforced, held by a rollout's allowance, or recorded (shadow)."""
    if one.held_at is not None:
        return "held"
    return "recorded" if one.mode == EnforcementMode.SHADOW else "enforced"


def _sentence(entries: list[DecisionEntry], fate: str) -> str:
    """Return the broker's sentence for one client; for many, the action and the rule."""
    if len(entries) == 1 and entries[0].sentence:
        return entries[0].sentence
    label, rule = labels.action_label(entries[0].action), entries[0].rule
    done = {"enforced": label.done, "recorded": label.would, "held": f"not {label.done}"}[fate].lower()
    by = f"{done} by {labels.setting_label(rule) if '.' in rule else f'rule {rule}'}"
    if fate != "held":
        return by
    allowed = entries[0].held_at
    return f"{by}: the rollout may make {allowed:,} decision{'' if allowed == 1 else 's'} here"


def _changes(touched: list[AffectedEntry], signals: Mapping[str, str]) -> list[EffectLine]:
    """Return a line per set of equal changes, the most frequent first."""
    groups: dict[str, list[AffectedEntry]] = {}
    for one in touched:
        groups.setdefault("; ".join(_differences(one.changes, signals)), []).append(one)
    made = []
    for sentence, entries in groups.items():
        names = list(dict.fromkeys(one.client for one in entries))
        made.append(EffectLine("change", sentence, names[:MAX_NAMES], len(names)))
    return sorted(made, key=lambda line: -line.count)


def _differences(changes: list[SettingChange], signals: Mapping[str, str]) -> Iterator[str]:
    """Yield each setting that differs; an added or removed rule or entry is one sentence."""
    by_group: dict[str, list[SettingChange]] = {}
    for change in changes:
        by_group.setdefault(change.setting.rpartition(".")[0], []).append(change)
    for group, found in by_group.items():
        called = group if group in PRESETS else f"rule {group}"
        mode = next((change for change in found if change.setting.endswith(".mode")), None)
        if len(found) > 1 and all(change.before.origin == NOT_SET for change in found):
            yield f"is now under {called}" + (f" ({labels.mode_label(mode.after.value)})" if mode else "")
        elif len(found) > 1 and all(change.after.origin == NOT_SET for change in found):
            yield f"is no longer under {called}"
        else:
            yield from (_change(change, signals.get(group, "")) for change in found)


def _change(change: SettingChange, signal: str) -> str:
    """Return a changed setting as text: old and new value, and the origin of the new one."""
    old, new = (
        labels.setting_value(change.setting, side.value, signal) for side in (change.before, change.after)
    )
    return f"{labels.setting_label(change.setting)} {old} → {new}, from {change.after.origin}"


def _kind(action: str) -> str:
    """Return the kind of line for an action."""
    if action in FINAL_ACTIONS:
        return "disconnect"
    return "offline" if action == PolicyAction.OFFLINE else "act"


def _names(entries: Iterable[ClosedConnectionEntry | DecisionEntry | LogSubscriberEntry]) -> list[str]:
    return list(dict.fromkeys(one.client for one in entries))[:MAX_NAMES]


def _clients(count: int) -> str:
    return f"{count:,} client{'' if count == 1 else 's'}"
