"""The configuration of a NATS server that carries a group's log, as `manage.py up` and the tests start them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from broker_core.group.ports import MAX_ENTRY_BYTES

MAX_PAYLOAD = MAX_ENTRY_BYTES + 64 * 1024
"""One batch of the largest size, with its headers."""


class EngineAddress(NamedTuple):
    """Where one server listens: for brokers, and for the other servers."""

    name: str
    host: str
    port: int
    route_port: int

    @property
    def url(self) -> str:
        """For SLUICE_GROUP_ENGINES."""
        return f"nats://{self.host}:{self.port}"


def engine_config(own: EngineAddress, others: Sequence[EngineAddress], store: Path) -> str:
    """The text of one server's file. It syncs whatever it stores before it says so (`sync_interval`; its default is two minutes)."""
    lines = [
        f"server_name: {json.dumps(own.name)}",
        f"host: {json.dumps(own.host)}",
        f"port: {own.port}",
        f"max_payload: {MAX_PAYLOAD}",
        f"max_pending: {4 * MAX_PAYLOAD}",
        f"jetstream {{ store_dir: {json.dumps(str(store))}, sync_interval: always }}",
    ]
    if others:
        routes = ", ".join(json.dumps(f"nats-route://{one.host}:{one.route_port}") for one in others)
        lines.append(
            f"cluster {{ name: sluice, host: {json.dumps(own.host)}, port: {own.route_port}, routes: [{routes}] }}"
        )
    return "\n".join(lines) + "\n"
