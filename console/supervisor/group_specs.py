"""A group of brokers on one machine, as data: engines, and members beside the first, which has the console. Pure."""

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
"""A member's transports have the ports of the one before it, and so much."""
ROUTES_APART = 2_000
"""Engines talk to each other at the port that members use, and so much: 6222 where that is 4222."""


@dataclass(frozen=True, slots=True)
class MemberInstallation:
    """One member: its name, its own files, and what its processes have in their environment."""

    name: str
    at: Installation
    ports_apart: int
    environment: tuple[tuple[str, str], ...]


def nats_addresses(first_port: int) -> tuple[NatsServerAddress, ...]:
    """Three engines on loopback, at ports that follow each other."""
    return tuple(
        NatsServerAddress(f"engine-{number + 1}", "127.0.0.1", port, port + ROUTES_APART)
        for number, port in enumerate(range(first_port, first_port + ENGINES))
    )


def nats_ports(engines: Sequence[NatsServerAddress]) -> list[PortRequest]:
    """Where the engines listen."""
    move = "Set SLUICE_ENGINE_PORT to another port than 4222"
    return [
        PortRequest(one.name, one.host, port, move) for one in engines for port in (one.port, one.route_port)
    ]


def member_names(number: int) -> tuple[str, ...]:
    """a, b, c and so on; the first has the console."""
    return tuple("abcde"[:number])


def group_members(
    at: Installation,
    names: Sequence[str],
    engines: Sequence[str],
    database: str,
    homes: Sequence[Installation],
) -> list[MemberInstallation]:
    """The members: the first in this installation, each other in one of `homes`. Database and Redis are the first's."""
    places = list(zip(names, (at, *homes), strict=True))
    brokers = ",".join(f"{at.instance}/{name}=unix:{place.control_socket}" for name, place in places)
    made = []
    for number, (name, place) in enumerate(places):
        environment = [
            ("SLUICE_GROUP_MEMBER", name),
            ("SLUICE_GROUP_ENGINES", ",".join(engines)),
            ("SLUICE_BROKERS", brokers),
        ]
        if number:
            environment += [
                ("SLUICE_HOME", str(place.home)),
                ("DATABASE_URL", database),
                ("SLUICE_PORTS_APART", str(number * PORT_OFFSET)),
                # What names a place of the first's isn't theirs.
                ("SLUICE_JOURNAL_DIRECTORY", str(place.home / "journal")),
                ("SLUICE_ARCHIVE_DIRECTORY", str(place.home / "archive")),
                ("SLUICE_SPOOL_DIRECTORY", str(place.home / "spool")),
                ("SLUICE_CONTROL_LISTEN", ""),
            ]
        made.append(MemberInstallation(name, place, number * PORT_OFFSET, tuple(environment)))
    return made


def nats_child(own: NatsServerAddress, executable: Path, home: Path) -> ChildSpec:
    """One NATS server; its configuration is in `home`."""
    return ChildSpec(
        own.name,
        (str(executable), "-c", str(home / f"{own.name}.conf")),
        ready=lambda _: readiness.is_nats_ready(own.host, own.port),
    )


def group_children(
    members: Sequence[MemberInstallation],
    engines: Sequence[NatsServerAddress],
    executable: Path | None,
    home: Path,
) -> list[ChildSpec]:
    """Engines, then the first member with all that `make up` starts, with the others beside its broker."""
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
