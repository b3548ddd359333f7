"""Text for the operator when all processes are ready. Pure: built from settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker_core.config import PolicyDocument, TransportSettings
from console.supervisor.child_specs import Installation
from console.supervisor.group_specs import MemberInstallation

SCHEMES = {
    "tcp": "tcp{s}://{host}:{port}",
    "websocket": "ws{s}://{host}:{port}/",
    "stomp": "stomp{s}://{host}:{port}",
    "stomp-ws": "ws{s}://{host}:{port}/stomp",
}
NATIVE = ("tcp", "websocket")
"""Kinds of transports that the client of the example commands supports."""


def transport_address(transport: TransportSettings) -> str:
    """Return a transport's address for clients on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(transport.host, transport.host)
    return SCHEMES[transport.kind].format(s="s" if transport.tls else "", host=host, port=transport.port)


def startup_text(at: Installation, policy: PolicyDocument, project: Path) -> str:
    """Return the addresses of console and transports, and example commands to subscribe and publish."""
    enabled = [transport for transport in policy.transports if transport.enabled]
    listed = "".join(f"  {transport.name:<12}{transport_address(transport)}\n" for transport in enabled)
    native = [transport for transport in enabled if transport.kind in NATIVE]
    first = example_commands(at, native[0], project) if native else ""
    console = (
        at.web_address
        if not at.queue
        else f"on another machine; its actions on this journal arrive through the queue {at.queue}"
    )
    return f"""
Sluice is up.

  {"console":<12}{console}
{listed}  {"data":<12}{at.home}
  {"output":<12}{at.home / "log"}
{first}
Ctrl-C stops everything.
"""


def group_startup_text(
    at: Installation,
    members: Sequence[tuple[MemberInstallation, Sequence[TransportSettings]]],
    engines: Sequence[str],
    project: Path,
) -> str:
    """Return the addresses of console, members and NATS servers, and example commands to try a failover."""
    rows = [("console", at.web_address)]
    for member, transports in members:
        rows += [(f"{member.name}: {one.name}", transport_address(one)) for one in transports]
    rows += [(f"NATS server {number}", one) for number, one in enumerate(engines, 1)]
    rows += [(f"data of {member.name}", str(member.at.home)) for member, _ in members]
    rows.append(("output", str(at.home / "log")))
    listed = "".join(f"  {name:<15}{value}\n" for name, value in rows)
    native = [[one for one in transports if one.kind in NATIVE] for _, transports in members]
    if not all(native):
        first = ""
    else:
        addresses = ",".join(transport_address(one[0]) for one in native)
        first = _first_commands(at, addresses, project, " --bookmark 0")
    return f"""
Sluice is up, as a group of {len(members)}.

{listed}{first}
State of the group, as each member reports it:
{_status_commands(at, members, project)}
Ctrl-C stops everything.
"""


def _status_commands(
    at: Installation, members: Sequence[tuple[MemberInstallation, Sequence[TransportSettings]]], project: Path
) -> str:
    python = _short(at, project)
    return "".join(
        f"  SLUICE_HOME={member.at.home} {python} manage.py replication status\n" for member, _ in members
    )


def _short(at: Installation, project: Path) -> Path:
    python = Path(at.python)
    return python.relative_to(project) if python.is_relative_to(project) else python


def example_commands(at: Installation, transport: TransportSettings, project: Path) -> str:
    """Return two example commands: a subscriber, and a message for it."""
    return _first_commands(at, transport_address(transport), project)


def _first_commands(at: Installation, addresses: str, project: Path, more: str = "") -> str:
    module = f"  {_short(at, project)} -m broker_core.client"
    option = f"--address {addresses}"
    return (
        "\nTry it, each in a separate terminal:\n"
        f"{module} subscribe 'greetings.>' {option}{more}\n"
        f"""{module} publish greetings.first '{{"hello": "world"}}' {option}\n"""
    )
