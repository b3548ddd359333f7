"""What another policy would change for the clients that are there: their effective settings before and after. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from broker_core.slow_clients.rules.rulebook import RuleBook
from broker_core.slow_clients.rules.scopes import Effective, Subject

NOT_SET = Effective(None, "not set")


class SettingChange(NamedTuple):
    """One setting of one client: its value and where that comes from, before and after."""

    setting: str
    before: Effective
    after: Effective


class Touched(NamedTuple):
    """A client, or one of its subscriptions, for whom something changes."""

    client: str
    transport: str
    subscription: str
    changes: list[SettingChange]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "client": self.client, "transport": self.transport, "subscription": self.subscription,
            "changes": [
                {"setting": change.setting, "before": _json(change.before), "after": _json(change.after)}
                for change in self.changes
            ],
        }  # fmt: skip


def compare(before: RuleBook, after: RuleBook, subjects: Iterable[Subject]) -> list[Touched]:
    """For whom a value changes; one that only comes from elsewhere isn't a change.

    Subjects come as clients, each followed by its subscriptions: of these only what is theirs alone is listed.
    """
    touched = []
    of_client: list[SettingChange] = []
    for subject in subjects:
        changes = _changes(before.effective(subject), after.effective(subject))
        if subject.topic:
            changes = [change for change in changes if change not in of_client]
        else:
            of_client = changes
        if changes:
            touched.append(Touched(subject.client, subject.transport, subject.subscription, changes))
    return touched


def _changes(old: dict[str, Effective], new: dict[str, Effective]) -> list[SettingChange]:
    return [
        SettingChange(setting, old.get(setting, NOT_SET), new.get(setting, NOT_SET))
        for setting in (*new, *(setting for setting in old if setting not in new))
        if old.get(setting, NOT_SET).value != new.get(setting, NOT_SET).value
    ]


def _json(effective: Effective) -> dict[str, Any]:
    value = effective.value
    return {
        "value": value if isinstance(value, int | float | str | bool | None) else str(value),
        "origin": effective.origin,
    }
