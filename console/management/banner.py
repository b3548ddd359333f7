"""What the operator reads when everything is ready. Pure: text from settings."""

from __future__ import annotations

from pathlib import Path

from broker_core.config import PolicyDocument, TransportSettings
from console.supervisor.specs import Installation

SCHEMES = {
    "tcp": "tcp{s}://{host}:{port}",
    "websocket": "ws{s}://{host}:{port}/",
    "stomp": "stomp{s}://{host}:{port}",
    "stomp-ws": "ws{s}://{host}:{port}/stomp",
}
NATIVE = ("tcp", "websocket")
"""Kinds that the client of the first commands speaks."""


def address(transport: TransportSettings) -> str:
    """A transport's address as clients are given it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(transport.host, transport.host)
    return SCHEMES[transport.kind].format(s="s" if transport.tls else "", host=host, port=transport.port)


def up(at: Installation, policy: PolicyDocument, project: Path) -> str:
    """The console's address, the transports', and a first subscribe and publish to paste."""
    enabled = [transport for transport in policy.transports if transport.enabled]
    listed = "".join(f"  {transport.name:<12}{address(transport)}\n" for transport in enabled)
    native = [transport for transport in enabled if transport.kind in NATIVE]
    first = first_commands(at, native[0], project) if native else ""
    return f"""
Sluice is up.

  {"console":<12}{at.web_address}
{listed}  {"data":<12}{at.home}
  {"output":<12}{at.home / "log"}
{first}
Ctrl-C stops everything.
"""


def first_commands(at: Installation, transport: TransportSettings, project: Path) -> str:
    """Two lines to paste: a subscriber, and a message for it."""
    python = Path(at.python)
    if python.is_relative_to(project):
        python = python.relative_to(project)
    module = f"  {python} -m broker_core.client"
    option = f"--address {address(transport)}"
    return (
        "\nTry it, each in a terminal of its own:\n"
        f"{module} subscribe 'greetings.>' {option}\n"
        f"""{module} publish greetings.first '{{"hello": "world"}}' {option}\n"""
    )
