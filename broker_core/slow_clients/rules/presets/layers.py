"""What presets share: their entries as layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker_core.config import PolicyDocument, Scope
from broker_core.config.preset_settings import PRESETS, default_settings
from broker_core.slow_clients.rules.scopes import Layer, Layers


def set_fields(entry: object, names: Iterable[str]) -> dict[str, Any]:
    """The fields that an entry sets."""
    return {name: value for name in names if (value := getattr(entry, name)) is not None}


def layers(document: PolicyDocument, system: str) -> Layers:
    """The document's entries of `xap`, `activemq`, `qpid` or `quotas` by scope, over that system's defaults."""
    known, found = default_settings(PRESETS[system]), []
    for entry in getattr(document, system):
        topic, user, transport = getattr(entry, "topic", ""), getattr(entry, "user", ""), entry.transport
        origin = " ".join(filter(None, (system, topic, user, transport)))
        found.append(Layer(origin, Scope(transport, topic, user), set_fields(entry, known)))
    return Layers(found, known)
