"""What another policy would change for the clients that are there: their effective settings before and after. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker_core.documents.instance import AffectedEntry, SettingChange, SettingValue
from broker_core.slow_clients.rules.in_force import settings_of
from broker_core.slow_clients.rules.rulebook import RuleBook
from broker_core.slow_clients.rules.scopes import Subject

_NOT_SET: Final = SettingValue(value=None, origin="not set")


def compare(before: RuleBook, after: RuleBook, subjects: Iterable[Subject]) -> list[AffectedEntry]:
    """For whom a value changes; one that only comes from elsewhere isn't a change.

    Subjects come as clients, each followed by its subscriptions: of these only what is theirs alone is listed.
    """
    touched = []
    of_client: list[SettingChange] = []
    for subject in subjects:
        changes = _changes(_settings(before, subject), _settings(after, subject))
        if subject.topic:
            changes = [change for change in changes if change not in of_client]
        else:
            of_client = changes
        if changes:
            touched.append(
                AffectedEntry(
                    client=subject.client,
                    transport=subject.transport,
                    subscription=subject.subscription,
                    changes=changes,
                )
            )
    return touched


def _settings(book: RuleBook, subject: Subject) -> dict[str, SettingValue]:
    found = settings_of(book.effective(subject), book.pool_of(subject))
    return {one.setting: SettingValue(value=one.value, origin=one.origin) for one in found}


def _changes(old: dict[str, SettingValue], new: dict[str, SettingValue]) -> list[SettingChange]:
    return [
        SettingChange(setting=setting, before=before, after=after)
        for setting in new | old
        if (before := old.get(setting, _NOT_SET)).value != (after := new.get(setting, _NOT_SET)).value
    ]
