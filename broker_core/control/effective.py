"""The settings in force for a client and for each of its subscriptions, as the control plane is told them."""

from __future__ import annotations

from broker_core.documents.clients import EffectiveSetting
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.rules.in_force import Setting


def effective_settings(guard: SlowClientGuard, name: str) -> list[EffectiveSetting]:
    """The client's own first, then what holds for single subscriptions besides; [] when it isn't connected."""
    found = guard.effective(name)
    if found is None:
        return []
    made = [_told(one, "") for one in found.settings]
    return made + [_told(one, of.subscription) for of in found.subscriptions for one in of.settings]


def _told(one: Setting, subscription: str) -> EffectiveSetting:
    return EffectiveSetting(**one.as_dict(), subscription=subscription)
