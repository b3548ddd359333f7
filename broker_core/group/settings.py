"""Group settings of a broker, and the configuration of the NATS servers that carry a group's log.

Settings come from the environment, since they differ from machine to machine. `manage.py up` and the tests
start servers with the configuration made here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from broker_core.errors import OperatorError
from broker_core.group.engine_log import MAX_ENTRY_BYTES

MAX_PAYLOAD = MAX_ENTRY_BYTES + 64 * 1024
"""Maximum bytes of a NATS message: one batch of the largest size, with its headers."""


class NatsServerAddress(NamedTuple):
    """Addresses of one NATS server: for brokers, and for the other servers."""

    name: str
    host: str
    port: int
    route_port: int

    @property
    def url(self) -> str:
        """URL of the server, for SLUICE_GROUP_ENGINES."""
        return f"nats://{self.host}:{self.port}"


def nats_config(server: NatsServerAddress, other_servers: Sequence[NatsServerAddress], store: Path) -> str:
    """Return the text of one server's configuration file.

    The server syncs everything before it acknowledges it (`sync_interval: always`; NATS's default is two
    minutes).
    """
    lines = [
        f"server_name: {json.dumps(server.name)}",
        f"host: {json.dumps(server.host)}",
        f"port: {server.port}",
        f"max_payload: {MAX_PAYLOAD}",
        f"max_pending: {4 * MAX_PAYLOAD}",
        f"jetstream {{ store_dir: {json.dumps(str(store))}, sync_interval: always }}",
    ]
    if other_servers:
        routes = ", ".join(
            json.dumps(f"nats-route://{other.host}:{other.route_port}") for other in other_servers
        )
        lines.append(
            f"cluster {{ name: sluice, host: {json.dumps(server.host)}, port: {server.route_port}, "
            f"routes: [{routes}] }}"
        )
    return "\n".join(lines) + "\n"


HOLD_MS: Final = 5_000
MAX_COPIES: Final = 5
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Membership of a broker in a group.

    `engines`: addresses of NATS servers, `nats://` or `tls://`. `copies`: number of servers that store the
    log; 0 means three if three servers are named, else one. `hold_ms`: how long publishes wait for a
    quorum. `ca`: file of the authorities that sign the certificates of servers at `tls://`; "" for the
    machine's.
    """

    instance: str
    member: str
    engines: tuple[str, ...]
    copies: int = 0
    hold_ms: int = HOLD_MS
    ca: str = ""

    @property
    def stream(self) -> str:
        """Name of the JetStream stream of the log's first generation."""
        return f"SLUICE_{self.instance}"

    @property
    def replicas(self) -> int:
        """Number of servers that store the log."""
        return self.copies or (3 if len(self.engines) >= 3 else 1)

    @property
    def hold_s(self) -> float:
        return self.hold_ms / 1_000


def read_settings(
    instance: str,
    member: str,
    engines: Sequence[str],
    copies: int = 0,
    hold_ms: int = HOLD_MS,
    ca: str = "",
) -> GroupSettings | None:
    """Check and return the settings; None without `engines`: the broker belongs to no group.

    Raises OperatorError bad_group.
    """
    if not engines:
        return None
    for subject, name in (("An instance", instance), ("A member", member)):
        if not 0 < len(name) <= 64 or not _NAME_CHARACTERS.issuperset(name):
            raise _bad_group_error(
                f"{subject} of a group can't be called {name[:80]!r}.",
                "Letters, digits, dashes and underscores, 64 at most (SLUICE_INSTANCE, SLUICE_GROUP_MEMBER).",
            )
    for address in engines:
        if not address.startswith(("nats://", "tls://")):
            raise _bad_group_error(
                f"{address[:80]!r} isn't the address of a NATS server.",
                "SLUICE_GROUP_ENGINES=nats://HOST:PORT,...",
            )
    if not 0 <= copies <= MAX_COPIES or copies == 2:
        raise _bad_group_error(f"{copies} copies make no quorum.", "SLUICE_GROUP_COPIES is 1, 3 or 5.")
    if not 100 <= hold_ms <= 600_000:
        raise _bad_group_error(
            f"Publishes can't wait {hold_ms} ms.", "SLUICE_GROUP_HOLD_MS is 100 to 600000."
        )
    if ca and not Path(ca).is_file():
        raise _bad_group_error(
            f"{ca} isn't a file.",
            "SLUICE_GROUP_CA names the authority of the log service's certificates, as PEM.",
        )
    return GroupSettings(instance, member, tuple(engines), copies, hold_ms, ca)


def _bad_group_error(sentence: str, fix: str) -> OperatorError:
    return OperatorError("bad_group", sentence, fix)
