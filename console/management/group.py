"""`manage.py up --group N`: engines, members and one console on one machine, under one supervisor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from django.conf import settings

from broker_core.config import PolicyDocument, TransportSettings
from broker_core.errors import OperatorError
from broker_core.group.engine_config import EngineAddress, engine_config
from broker_core.group.settings import read_settings
from console.management import banner, startup
from console.project.home import prepare_home
from console.supervisor import redis_source, sockets
from console.supervisor.group import (
    MOST_MEMBERS,
    OneMember,
    engine_addresses,
    group_children,
    member_names,
    members_of,
    ports_wanted,
)
from console.supervisor.specs import Installation

PREPARED_S = 120


def up(number: int, *, show_output: bool = False) -> int:
    """The whole of `make up GROUP=N`; returns the exit code. Engines that SLUICE_GROUP_ENGINES names are taken instead of own ones."""
    if not 2 <= number <= MOST_MEMBERS:
        raise OperatorError("bad_group", f"A group here has 2 to {MOST_MEMBERS} members.", "make up GROUP=3")
    with startup.only_one():
        given = tuple(settings.SLUICE_GROUP.engines) if settings.SLUICE_GROUP is not None else ()
        engines = () if given else engine_addresses(settings.SLUICE_ENGINE_PORT)
        executable = None if given else nats_server()
        urls = given or tuple(one.url for one in engines)
        names = member_names(number)
        read_settings(settings.SLUICE_INSTANCE, names[0], urls)
        startup.refuse_taken(ports_wanted(engines))
        policy = startup.prepare()
        at = startup.installation()
        # Standard transports alone: another one's port is known to nobody but the policy of the first.
        ports = [
            (startup.PORT_VARIABLES[one.name], one.port)
            for one in policy.transports
            if one.name in startup.PORT_VARIABLES
        ]
        members = members_of(at, names, urls, ports, [_home_of(at, name) for name in names[1:]])
        for one in engines:
            _configure(one, engines)
        _prepare(members[1:])
        startup.say(at.redis.sentence())
        listed = [(one, transports_of(one, policy)) for one in members]
        text = banner.group(at, listed, urls, Path(settings.BASE_DIR))
        return startup.supervise(
            group_children(members, engines, executable, at.home),
            at,
            lambda: print(text, flush=True),
            show_output=show_output,
        )


def nats_server() -> Path:
    """The one beside this Python, or on the PATH. OperatorError group_not_installed."""
    found = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise OperatorError(
            "group_not_installed",
            "There is no nats-server.",
            "Install requirements-group.txt, or name engines that run (SLUICE_GROUP_ENGINES).",
        )
    return Path(found)


def _configure(own: EngineAddress, engines: Sequence[EngineAddress]) -> None:
    home = Path(settings.SLUICE_HOME)
    others = [one for one in engines if one is not own]
    (home / f"{own.name}.conf").write_text(engine_config(own, others, home / own.name))


def _home_of(at: Installation, name: str) -> Installation:
    home = prepare_home(at.home / name)
    run = sockets.run_directory(home, (f"{at.instance}.sock", "redis.sock"))
    redis = redis_source.choose("", redis_source.on_path(), redis_source.bundled(), run / "redis.sock")
    return replace(at, home=home, run_directory=run, redis=redis)


def _prepare(members: Sequence[OneMember]) -> None:
    """Database, policy and ports of the others, each in a process of its own: settings belong to one home."""
    started = []
    for one in members:
        environment = {**startup.environment(one.at), **dict(one.environment), "REDIS_URL": ""}
        command = (sys.executable, "manage.py", "up", "--prepare-broker")
        process = subprocess.Popen(
            command, cwd=settings.BASE_DIR, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )  # fmt: skip
        started.append((one, process))
    try:
        for one, process in started:
            _, said = process.communicate(timeout=PREPARED_S)
            if process.returncode:
                why = said.strip().rpartition("\n")[2].removeprefix("CommandError: ")
                raise OperatorError("bad_group", f"Member {one.name} can't be made ready.", why)
    finally:
        for _, process in started:
            process.kill()
            process.wait()


def transports_of(member: OneMember, policy: PolicyDocument) -> list[TransportSettings]:
    """A member's transports: the first's, at its own ports."""
    moved = dict(member.environment)
    return [
        replace(one, port=int(moved.get(startup.PORT_VARIABLES[one.name], one.port)))
        for one in policy.transports
        if one.enabled and one.name in startup.PORT_VARIABLES
    ]
