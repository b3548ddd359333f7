"""Listeners of the policy in force. A new revision may change them while clients are connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from broker_core.config import PolicyDocument, TransportSettings
from broker_core.config.transports import transports_to_close
from broker_core.engine.engine import Engine
from broker_core.errors import OperatorError
from broker_core.transports.stomp.tcp import StompListener
from broker_core.transports.tcp import TcpListener

log = structlog.get_logger("sluice.broker")


class Listener(Protocol):
    """Listener of one kind of transport."""

    async def listen(self) -> tuple[str, int]:
        """Start listening and return the address.

        Raises:
            OSError: the port is in use.
        """

    async def stop_listening(self) -> None:
        """Stop accepting connections."""


ListenerFactory = Callable[[Engine, TransportSettings], Listener]


class ListenerManager:
    """Open listeners of one broker.

    `websocket` makes the listeners that need Django and Twisted. Each transport listens on the policy's port
    plus `port_offset`.
    """

    def __init__(self, engine: Engine, websocket: ListenerFactory, port_offset: int) -> None:
        self._engine = engine
        self._factories: dict[str, ListenerFactory] = {
            "tcp": TcpListener,
            "stomp": StompListener,
            "websocket": websocket,
            "stomp-ws": websocket,
        }
        self._port_offset = port_offset
        self._open: dict[str, tuple[TransportSettings, Listener]] = {}
        self._ports: dict[str, int] = {}

    async def apply(self, policy: PolicyDocument) -> None:
        """Open and close transports as a policy revision requires.

        Raises:
            OperatorError: port_taken. The transports of the previous revision are open again then.
        """
        enabled = {transport.name: transport for transport in policy.transports if transport.enabled}
        former = [settings for settings, _ in self._open.values()]
        shut = transports_to_close(former, policy.transports)
        fresh = [one for name, one in enabled.items() if name in shut or name not in self._open]
        for settings in fresh:
            await self._try_address(self._has_moved(settings))
        # Before a transport opens that has stricter authentication than it had.
        self._engine.logons.apply(policy)
        try:
            await self._stop_listeners(shut)
            for settings in fresh:
                await self._begin(settings)
        except OperatorError:
            self._engine.logons.apply(self._engine.policy)
            await self._restart_listener(former)
            raise

    def port_of(self, transport: TransportSettings) -> int:
        """Return the port on which a transport listens, or would listen."""
        return self._ports.get(transport.name, self._has_moved(transport).port)

    async def close(self) -> None:
        """Stop accepting connections on all transports."""
        for _, listener in self._open.values():
            await listener.stop_listening()
        self._open.clear()

    async def _try_address(self, transport: TransportSettings) -> None:
        """Check that an address can be bound, while the open transports stay open.

        A policy that another member can apply, and this machine can't, must disconnect no client. If an open
        transport uses the port, only the host is checked.

        Raises:
            OperatorError: port_taken.
        """
        used_ports = {self._has_moved(settings).port for settings, _ in self._open.values()}
        port = 0 if transport.port in used_ports else transport.port
        try:
            server = await asyncio.get_running_loop().create_server(
                asyncio.Protocol, transport.host, port, start_serving=False
            )
        except OSError as problem:
            raise _not_listening(transport, problem) from None
        server.close()

    async def _stop_listeners(self, names: Collection[str]) -> None:
        """Stop listening on some transports and close their clients."""
        for name in names:
            _, listener = self._open.pop(name)
            await listener.stop_listening()
            self._engine.roster.close_transport(name)

    async def _begin(self, settings: TransportSettings) -> None:
        """Open one transport. Raises OperatorError port_taken."""
        moved = self._has_moved(settings)
        listener = self._factories[settings.kind](self._engine, moved)
        try:
            _, self._ports[settings.name] = await listener.listen()
        except OSError as problem:
            raise _not_listening(moved, problem) from None
        self._open[settings.name] = (settings, listener)

    async def _restart_listener(self, former: Sequence[TransportSettings]) -> None:
        """Open the transports of the previous revision after a failed one."""
        await self._stop_listeners(
            transports_to_close([settings for settings, _ in self._open.values()], former)
        )
        for settings in former:
            if settings.name not in self._open:
                try:
                    await self._begin(settings)
                except OperatorError as problem:
                    log.error("transport_not_opened_again", why=problem.sentence, fix=problem.fix)

    def _has_moved(self, transport: TransportSettings) -> TransportSettings:
        """Return the settings with this broker's port.

        Members of a group on one machine share a policy. Port 0 stays 0.
        """
        return replace(transport, port=transport.port + self._port_offset) if transport.port else transport


def _not_listening(transport: TransportSettings, problem: OSError) -> OperatorError:
    return OperatorError(
        "port_taken",
        f"Transport {transport.name} can't listen on {transport.host}:{transport.port}: {problem}.",
        "Stop what listens there, or give the transport another port, or a host that this machine has: "
        "members that share a policy listen on 0.0.0.0.",
    )
