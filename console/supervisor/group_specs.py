"""Specifications of a group of brokers on one machine: NATS servers, and members besides the first. Pure.

The first member also has the console.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from broker_core.group.settings import NatsServerAddress
from console.supervisor import readiness
from console.supervisor.child_specs import ChildSpec, Installation, all_children, broker_child
from console.supervisor.ports import PortRequest

ENGINES = 3
MAX_MEMBERS = 5
PORT_OFFSET = 100
"""Difference between the ports of one member's transports and the next member's."""
ROUTES_APART = 2_000
"""Difference between a NATS server's port for members and its port for the other servers: 4222 and 6222."""


@dataclass(frozen=True, slots=True)
class MemberInstallation:
    """Member of the group: name, files, and additional environment variables for its processes."""

    name: str
    at: Installation
    port_offset: int
    environment: tuple[tuple[str, str], ...]


def nats_addresses(first_port: int) -> tuple[NatsServerAddress, ...]:
    """Return three NATS servers on loopback with consecutive ports."""
    return tuple(
        NatsServerAddress(f"engine-{number + 1}", "127.0.0.1", port, port + ROUTES_APART)
        for number, port in enumerate(range(first_port, first_port + ENGINES))
    )


def nats_ports(engines: Sequence[NatsServerAddress]) -> list[PortRequest]:
    """Return the ports at which the NATS servers listen."""
    move = "Set SLUICE_ENGINE_PORT to another port than 4222"
    return [
        PortRequest(one.name, one.host, port, move) for one in engines for port in (one.port, one.route_port)
    ]


def member_names(number: int) -> tuple[str, ...]:
    """Return the names of the members: a, b, c and so on. The first one has the console."""
    return tuple("abcde"[:number])


def group_members(
    at: Installation,
    names: Sequence[str],
    engines: Sequence[str],
    database: str,
    homes: Sequence[Installation],
) -> list[MemberInstallation]:
    """Return the members: the first in this installation, each other one in one of `homes`.

    All use the first member's database and Redis.
    """
    installations = list(zip(names, (at, *homes), strict=True))
    brokers = ",".join(
        f"{at.instance}/{name}=unix:{installation.control_socket}" for name, installation in installations
    )
    made = []
    for number, (name, installation) in enumerate(installations):
        environment = [
            ("SLUICE_GROUP_MEMBER", name),
            ("SLUICE_GROUP_ENGINES", ",".join(engines)),
            ("SLUICE_BROKERS", brokers),
        ]
        if number:
            environment += [
                ("SLUICE_HOME", str(installation.home)),
                ("DATABASE_URL", database),
                ("SLUICE_PORTS_APART", str(number * PORT_OFFSET)),
                # Settings that name directories of the first member must not apply to the others.
                ("SLUICE_JOURNAL_DIRECTORY", str(installation.home / "journal")),
                ("SLUICE_ARCHIVE_DIRECTORY", str(installation.home / "archive")),
                ("SLUICE_SPOOL_DIRECTORY", str(installation.home / "spool")),
                ("SLUICE_CONTROL_LISTEN", ""),
            ]
        made.append(MemberInstallation(name, installation, number * PORT_OFFSET, tuple(environment)))
    return made


def nats_child(server: NatsServerAddress, executable: Path, home: Path) -> ChildSpec:
    """Return one NATS server, whose configuration file is in `home`."""
    return ChildSpec(
        server.name,
        (str(executable), "-c", str(home / f"{server.name}.conf")),
        ready=lambda _: readiness.is_nats_ready(server.host, server.port),
    )


def group_children(
    members: Sequence[MemberInstallation],
    engines: Sequence[NatsServerAddress],
    executable: Path | None,
    home: Path,
) -> list[ChildSpec]:
    """Return all children: NATS servers, the first member's processes, and the other members' brokers."""
    started = [nats_child(one, executable, home) for one in engines] if executable is not None else []
    names = tuple(one.name for one in started)
    first, *others = members
    brokers = []
    for one in others:
        spec = broker_child(one.at)
        brokers.append(
            replace(spec, name=f"broker-{one.name}", needs=(*spec.needs, *names), environment=one.environment)
        )
    specs = []
    for spec in all_children(first.at):
        is_broker = spec.name == "broker"
        needs = (*spec.needs, *names) if is_broker else spec.needs
        specs.append(replace(spec, needs=needs, environment=first.environment))
        specs += brokers if is_broker else []
    return [*started, *specs]
