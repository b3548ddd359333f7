"""What a running broker says about itself and its journals."""

from __future__ import annotations

from typing import Any

from console.broker_link import link_to
from console.queries.policies import instance_named


def status(instance_name: str | None = None) -> dict[str, Any]:
    """The broker's status. Raises BrokerAway."""
    found: dict[str, Any] = link_to(instance_named(instance_name).name).call("status")
    return found


def snapshot(instance_name: str | None = None) -> dict[str, Any]:
    """The broker's status and all its clients at one moment. Raises BrokerAway."""
    found: dict[str, Any] = link_to(instance_named(instance_name).name).call("snapshot")
    return found


def journals(instance_name: str | None = None) -> list[dict[str, Any]]:
    """The segments of the journal, oldest first. Raises BrokerAway."""
    found: list[dict[str, Any]] = link_to(instance_named(instance_name).name).call("journals")
    return found
